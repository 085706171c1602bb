//! Builds programs of a source tree with cargo, and finds where it puts them.
//!
//! `cargo playground up` builds the programs of its clusters with it, and `cargo dist` those of a
//! release. cargo prints a JSON message for each crate: they are the progress, and those of
//! programs say where their files are.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Stdio,
};

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{ChildStderr, ChildStdout, Command},
};

use crate::error::{Error, Result};

/// Number of lines of cargo's errors that become part of ours.
const MAX_ERROR_LINES: usize = 20;

/// The profile of cargo in which programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CargoProfile {
    /// The same as for tests: compiled fast.
    Dev,
    /// Compiled for speed, for measurements and releases.
    Release,
}

impl CargoProfile {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }
}

/// Programs to build.
#[derive(Clone, Debug)]
pub struct ProgramBuild {
    /// The folder of the workspace.
    pub source: PathBuf,
    /// Names of programs, which are also names of their packages.
    pub programs: Vec<String>,
    pub profile: CargoProfile,
    /// Variables of the environment that cargo gets in addition to those of this process.
    pub environment: BTreeMap<String, String>,
}

/// Builds programs and returns their paths by name. `report_crate` gets a line for each crate.
pub async fn build_programs(
    build: &ProgramBuild,
    report_crate: impl Fn(&str),
) -> Result<BTreeMap<String, PathBuf>> {
    let needed = count_crates(build).await?;
    let mut command = cargo_command(&build.source);
    command
        .args(["build", "--message-format", "json-render-diagnostics"])
        .envs(&build.environment);
    if build.profile == CargoProfile::Release {
        command.arg("--release");
    }
    let mut child = command
        .args(build.programs.iter().flat_map(|name| ["--bin", name]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(not_run)?;
    let (errors, found) = tokio::join!(
        read_errors(child.stderr.take()),
        read_messages(child.stdout.take(), build, needed, report_crate)
    );
    if !child.wait().await.map_err(not_run)?.success() {
        let end = errors.len().saturating_sub(MAX_ERROR_LINES);
        return Err(Error::Build {
            output: errors[end..].join("\n"),
        });
    }
    match build
        .programs
        .iter()
        .find(|name| !found.contains_key(*name))
    {
        Some(missing) => Err(Error::NotBuilt {
            program: missing.clone(),
        }),
        None => Ok(found),
    }
}

/// cargo in a folder, with the user's settings and without those that `cargo run` makes for the
/// program that it runs: they would make build scripts run again.
pub fn cargo_command(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_from_cargo_run))
    {
        command.env_remove(name);
    }
    command.current_dir(folder);
    command
}

fn not_run(source: std::io::Error) -> Error {
    Error::Run {
        program: "cargo".to_owned(),
        source,
    }
}

async fn read_errors(stderr: Option<ChildStderr>) -> Vec<String> {
    let mut errors = Vec::new();
    let Some(stderr) = stderr else { return errors };
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        errors.push(line);
    }
    errors
}

/// Reads cargo's messages to their end, and returns where the programs are.
async fn read_messages(
    stdout: Option<ChildStdout>,
    build: &ProgramBuild,
    needed: usize,
    report_crate: impl Fn(&str),
) -> BTreeMap<String, PathBuf> {
    let (mut found, mut compiled) = (BTreeMap::new(), BTreeSet::new());
    let Some(stdout) = stdout else { return found };
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(artifact) = Artifact::parse(&line) else {
            continue;
        };
        compiled.insert(artifact.package_id);
        report_crate(&format!(
            "{} of {needed} crates: {}",
            compiled.len(),
            artifact.target.name
        ));
        if let Some(path) = artifact.executable
            && build.programs.contains(&artifact.target.name)
        {
            found.insert(artifact.target.name, path);
        }
    }
    found
}

/// The number of crates that these programs are built of, for the progress of their build.
async fn count_crates(build: &ProgramBuild) -> Result<usize> {
    let tree = cargo_command(&build.source)
        .args(["tree", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}"])
        .args(build.programs.iter().flat_map(|name| ["--package", name]))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(not_run)?;
    if !tree.status.success() {
        return Err(Error::Workspace {
            output: String::from_utf8_lossy(&tree.stderr).into_owned(),
        });
    }
    let lines = String::from_utf8_lossy(&tree.stdout).into_owned();
    Ok(lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect::<BTreeSet<_>>()
        .len())
}

/// cargo's message about a crate, whether it compiled it now or before.
#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    target: Target,
    /// Only programs have one.
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Artifact {
    /// Reads a line of cargo's messages; nothing if it is about something else.
    fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// True if `cargo run` set this variable for the program that it runs.
fn is_from_cargo_run(name: &str) -> bool {
    [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "CARGO" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR" | "LD_LIBRARY_PATH"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_cargo_built_is_found_in_its_messages() {
        let line = r#"{"reason":"compiler-artifact","package_id":"p","target":{"name":"liqo-api"},"executable":"/t/liqo-api"}"#;
        let artifact = Artifact::parse(line).unwrap();
        assert_eq!(
            (artifact.target.name.as_str(), artifact.executable),
            ("liqo-api", Some(PathBuf::from("/t/liqo-api")))
        );
        let library = r#"{"package_id":"p","target":{"name":"liqo-api"},"executable":null}"#;
        assert_eq!(Artifact::parse(library).unwrap().executable, None);
        assert!(Artifact::parse("Compiling").is_none());
        assert!(Artifact::parse(r#"{"reason":"build-finished","success":true}"#).is_none());
    }

    #[test]
    fn the_nested_build_sees_the_users_settings_and_nothing_of_this_program() {
        assert!(
            ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"]
                .into_iter()
                .all(is_from_cargo_run)
        );
        assert!(
            ![
                "CARGO_HOME",
                "CARGO_TARGET_DIR",
                "CARGO_NET_OFFLINE",
                "RUSTFLAGS",
                "PATH"
            ]
            .into_iter()
            .any(is_from_cargo_run)
        );
    }
}
