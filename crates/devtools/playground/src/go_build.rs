//! Builds programs from their Go modules into the cache, all of a module with one run of Go: it
//! compiles what they share once, and uses every processor until the last one is linked.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{ChildStderr, Command},
};

use crate::{
    error::{Error, Result},
    lock::CacheLock,
    program::{Module, Program, cache},
    progress::Progress,
    run::last_lines,
};

/// The rate of the first packages says too little about the rest.
const MIN_PACKAGES_FOR_ESTIMATE: usize = 100;

/// Builds these programs of one module, each to the path that it has in the cache. What another
/// process has built meanwhile is left out.
pub(crate) async fn build(
    go: &Path,
    programs: &[&'static Program],
    progress: &dyn Progress,
) -> Result<()> {
    let _lock = CacheLock::take().await?;
    let programs: Vec<&Program> = programs
        .iter()
        .copied()
        .filter(|program| !program.cached().is_file())
        .collect();
    let Some(module) = programs.first().map(|program| program.module) else {
        return Ok(());
    };
    let names: Vec<_> = programs
        .iter()
        .map(|program| format!("{} {}", program.name, program.version))
        .collect();
    let step = format!("building {}", names.join(", "));
    progress.started(&step);
    remove_abandoned(&cache());
    let work = cache().join(format!(".build-{}-{}", module.name, std::process::id()));
    let result = build_in(&work, go, module, &programs, &step, progress).await;
    let result = result.and_then(|()| {
        programs
            .iter()
            .try_for_each(|program| keep(&built_program(&work, program), program))
    });
    let _ = fs::remove_dir_all(&work);
    result?;
    progress.finished(&step);
    Ok(())
}

/// Removes the files of builds that were killed.
fn remove_abandoned(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let builder = name
            .strip_prefix(".build-")
            .and_then(|rest| rest.rsplit('-').next());
        if builder.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn keep(built: &Path, program: &Program) -> Result<()> {
    let target = program.cached();
    if let Some(directory) = target.parent() {
        fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    }
    fs::rename(built, &target).map_err(Error::file("write", &target))
}

/// Go names a program after the last part of its package that is no version.
fn built_program(work: &Path, program: &Program) -> PathBuf {
    let is_version = |part: &str| {
        part.strip_prefix('v')
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let name = program
        .package
        .rsplit('/')
        .find(|part| !is_version(part))
        .unwrap_or(program.name);
    work.join("built").join(name)
}

async fn build_in(
    work: &Path,
    go: &Path,
    module: &Module,
    programs: &[&Program],
    step: &str,
    progress: &dyn Progress,
) -> Result<()> {
    for (name, text) in module.files {
        let path = work.join(name);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
        }
        fs::write(&path, text).map_err(Error::file("write", &path))?;
    }
    progress.message(step, "downloading modules");
    let packages: Vec<_> = programs.iter().map(|program| program.package).collect();
    let listed = run_go(
        go_command(go, work).args(["list", "-deps"]).args(&packages),
        go,
        |_| {},
    )
    .await?;
    let needed: BTreeSet<&str> = listed.lines().collect();
    let begun = Instant::now();
    let mut compiled = 0;
    let mut command = go_command(go, work);
    // Nobody debugs these programs: without DWARF Go needs a tenth less time.
    command.args([
        "build",
        "-v",
        "-trimpath",
        "-buildvcs=false",
        "-gcflags=all=-dwarf=false",
        "-ldflags",
        module.linker_flags,
    ]);
    command.args(["-o", "built/"]).args(&packages);
    run_go(&mut command, go, |line| {
        compiled += usize::from(needed.contains(line));
        progress.message(step, &news(compiled, needed.len(), begun.elapsed(), line));
    })
    .await
    .map(drop)
}

fn go_command(go: &Path, work: &Path) -> Command {
    let mut command = Command::new(go);
    command
        .current_dir(work)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "")
        .env("GOWORK", "off");
    command
}

/// Runs Go and returns its standard output. `heard` gets each line of standard error: a package
/// that Go compiles, or an error.
async fn run_go(command: &mut Command, go: &Path, heard: impl FnMut(&str)) -> Result<String> {
    let failed = |source| Error::Run {
        program: go.display().to_string(),
        source,
    };
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    let stderr = child.stderr.take();
    let (output, said) = tokio::join!(child.wait_with_output(), read_lines(stderr, heard));
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let arguments: Vec<_> = command
        .as_std()
        .get_args()
        .map(|argument| argument.to_string_lossy())
        .collect();
    Err(Error::Command {
        command: format!("go {}", arguments.join(" ")),
        status: output.status.to_string(),
        output: last_lines(&said, 5),
    })
}

async fn read_lines(stderr: Option<ChildStderr>, mut heard: impl FnMut(&str)) -> String {
    let mut said = String::new();
    let Some(stderr) = stderr else { return said };
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        heard(&line);
        said.push_str(&line);
        said.push('\n');
    }
    said
}

/// How far a build is, and about how long it goes on at the rate so far. What Go compiled earlier
/// is not among its lines, so a build may end early.
fn news(compiled: usize, needed: usize, elapsed: Duration, line: &str) -> String {
    let left = needed.saturating_sub(compiled);
    let rest = elapsed.as_secs() * left as u64 / compiled.max(1) as u64;
    let estimate = match (compiled, rest) {
        (..MIN_PACKAGES_FOR_ESTIMATE, _) => String::new(),
        (_, ..60) => ", less than a minute left".to_owned(),
        _ => format!(", about {} min left", rest.div_ceil(60)),
    };
    format!("{compiled} of {needed} packages{estimate}: {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_says_how_far_the_build_is_and_how_long_it_goes_on() {
        let after =
            |compiled, seconds| news(compiled, 2600, Duration::from_secs(seconds), "k8s.io/api");
        assert_eq!(after(10, 1), "10 of 2600 packages: k8s.io/api");
        assert_eq!(
            after(1300, 130),
            "1300 of 2600 packages, about 3 min left: k8s.io/api"
        );
        assert_eq!(
            after(2500, 250),
            "2500 of 2600 packages, less than a minute left: k8s.io/api"
        );
        assert!(after(2601, 250).starts_with("2601 of 2600 packages, less than a minute left"));
    }
}
