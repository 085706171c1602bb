//! The source tree: its commit and time, its crates, and the compiler.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use liqo_playground::cargo_command;

use crate::cargo_metadata::CargoMetadata;

/// Number of changed files that the refusal of a dirty work tree names.
const MAX_NAMED_CHANGES: usize = 3;

/// What artefacts say about the tree that they are made from.
#[derive(Clone, Debug)]
pub struct SourceTree {
    pub folder: PathBuf,
    /// Full name of the commit.
    pub commit: String,
    /// Time of the commit, or `SOURCE_DATE_EPOCH`.
    pub time: Timestamp,
    pub is_dirty: bool,
    pub compiler: Compiler,
}

impl SourceTree {
    /// Reads the tree that this program was built in, and refuses it if it has changes.
    pub fn read_committed(allow_dirty: bool) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let folder = folder
            .canonicalize()
            .with_context(|| format!("the source tree is no longer at {}", folder.display()))?;
        let changes = run_git(&folder, &["status", "--porcelain"])?;
        if !changes.is_empty() && !allow_dirty {
            bail!("{}", dirty_refusal(&changes));
        }
        let commit_time = run_git(&folder, &["show", "--no-patch", "--format=%ct", "HEAD"])?;
        let given_time = std::env::var("SOURCE_DATE_EPOCH").ok();
        Ok(Self {
            commit: run_git(&folder, &["rev-parse", "HEAD"])?,
            time: parse_time(given_time.as_deref().unwrap_or(&commit_time))?,
            is_dirty: !changes.is_empty(),
            compiler: Compiler::read_version(&folder)?,
            folder,
        })
    }

    /// Seconds since 1970.
    pub fn epoch_seconds(&self) -> u64 {
        u64::try_from(self.time.as_second()).unwrap_or_default()
    }

    /// The crates of the workspace and their dependencies on this platform. Fails if `Cargo.lock`
    /// is not current.
    pub async fn read_metadata(&self) -> Result<CargoMetadata> {
        let output = cargo_command(&self.folder)
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(["--filter-platform", &self.compiler.host])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot start cargo")?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            bail!("cargo cannot read the workspace:\n{}", reason.trim_end());
        }
        serde_json::from_slice(&output.stdout).context("cargo's metadata has an unknown form")
    }
}

/// The compiler that builds the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    /// For example `rustc 1.95.0 (59807616e 2026-04-14)`.
    pub version: String,
    /// For example `x86_64-unknown-linux-gnu`.
    pub host: String,
}

impl Compiler {
    fn read_version(folder: &Path) -> Result<Self> {
        let program = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        let mut command = Command::new(program);
        command.args(["--version", "--verbose"]).current_dir(folder);
        let printed = run_to_end(&mut command, "rustc")?;
        Self::parse_version(&printed).context("rustc does not say its version and its host")
    }

    fn parse_version(printed: &str) -> Option<Self> {
        Some(Self {
            version: printed.lines().next()?.to_owned(),
            host: printed
                .lines()
                .find_map(|line| line.strip_prefix("host: "))?
                .to_owned(),
        })
    }
}

fn run_git(folder: &Path, arguments: &[&str]) -> Result<String> {
    run_to_end(
        Command::new("git").args(arguments).current_dir(folder),
        "git",
    )
}

/// Runs a program and returns what it printed, without the last end of line.
pub fn run_to_end(command: &mut Command, name: &str) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", reason.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

/// Parses seconds since 1970.
fn parse_time(seconds: &str) -> Result<Timestamp> {
    let parsed = seconds.trim().parse().ok().filter(|seconds| *seconds >= 0);
    parsed
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .with_context(|| {
            format!("{seconds:?} is no time in seconds since 1970: change SOURCE_DATE_EPOCH")
        })
}

/// Says which files have changes. `status` is what `git status --porcelain` printed.
fn dirty_refusal(status: &str) -> String {
    let changed: Vec<&str> = status
        .lines()
        .map(|line| line.get(3..).unwrap_or(line))
        .collect();
    let named = changed[..changed.len().min(MAX_NAMED_CHANGES)].join(", ");
    let more = if changed.len() > MAX_NAMED_CHANGES {
        format!(" and {} more", changed.len() - MAX_NAMED_CHANGES)
    } else {
        String::new()
    };
    format!(
        "the work tree has changes that are not committed ({named}{more}): commit them, \
         or use --allow-dirty for artefacts that you do not publish"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_first_changed_files() {
        let short = dirty_refusal(" M a\n?? b");
        assert!(short.contains("not committed (a, b):"), "{short}");
        let long = dirty_refusal(" M a\n M b\n M c\n M d\n M e");
        assert!(long.contains("(a, b, c and 2 more)"), "{long}");
    }

    #[test]
    fn times_are_seconds_and_not_before_1970() {
        assert_eq!(parse_time("1").unwrap().to_string(), "1970-01-01T00:00:01Z");
        assert!(parse_time("-1").is_err() && parse_time("today").is_err());
    }

    #[test]
    fn the_compiler_says_its_host() {
        let printed = "rustc 1.95.0 (5 2026-04-14)\nbinary: rustc\nhost: x86_64-linux\n";
        let compiler = Compiler::parse_version(printed).unwrap();
        assert_eq!(compiler.version, "rustc 1.95.0 (5 2026-04-14)");
        assert_eq!(compiler.host, "x86_64-linux");
    }
}
