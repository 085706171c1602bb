//! Liqo's programs for the clusters: built from the source tree of this program, or found in the
//! directory of this program.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use liqoctl::progress::StepProgress;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

pub const MANAGER: &str = liqo_api::CONTROLLER_MANAGER;
pub const FABRIC: &str = "liqo-fabric";
/// `up` builds it together with the other programs, so that it is ready when somebody types the
/// commands that `up` prints.
const LIQOCTL: &str = "liqoctl";
/// The resource plugins that come with Liqo. `up --plugins` loads the images of these and of all
/// others in the source tree's folder `plugins` into the clusters, so they can be deployed.
const PLUGINS: [&str; 3] = ["broker", "fixed-resources", "node-labels-resources"];
pub const BUILDING: &str = "Building the programs";

/// The profile of cargo in which programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The same as for tests: compiled fast.
    Dev,
    /// Compiled for speed, for measurements.
    Release,
}

impl Profile {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Release => "release",
        }
    }
}

/// The paths of the programs that run in the clusters, by name.
pub async fn programs(
    with_plugins: bool,
    profile: Profile,
    progress: &StepProgress,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    if source.join("Cargo.toml").is_file() && std::env::var_os("CARGO").is_some() {
        return build(&source, with_plugins, profile, progress).await;
    }
    if profile == Profile::Release {
        bail!(
            "--release builds the programs: run `cargo playground up --release` in the source tree"
        );
    }
    let here = std::env::current_exe()
        .ok()
        .and_then(|program| program.parent().map(Path::to_owned))
        .unwrap_or_default();
    let all = [MANAGER, FABRIC]
        .into_iter()
        .chain(PLUGINS.into_iter().filter(|_| with_plugins));
    let all: BTreeMap<_, _> = all.map(|name| (name.to_owned(), here.join(name))).collect();
    if let Some((missing, _)) = all.iter().find(|(_, path)| !path.is_file()) {
        let command = if with_plugins {
            "cargo playground up --plugins"
        } else {
            "cargo playground up"
        };
        bail!(
            "{missing} is missing, so no image can be built: run `{command}` in the source tree, or put the program next to liqo-playground"
        );
    }
    Ok(all)
}

/// Liqo's programs and, if wanted, the packages in the folder `plugins`: each builds a program of
/// the same name.
fn all(source: &Path, with_plugins: bool) -> anyhow::Result<Vec<String>> {
    let folder = source.join("plugins");
    let mut all = [MANAGER, FABRIC, LIQOCTL].map(str::to_owned).to_vec();
    if !with_plugins {
        return Ok(all);
    }
    for entry in folder
        .read_dir()
        .with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry
            .with_context(|| format!("cannot read {}", folder.display()))?
            .path();
        if path.join("Cargo.toml").is_file() {
            all.extend(
                path.file_name()
                    .and_then(|name| name.to_str())
                    .map(ToOwned::to_owned),
            );
        }
    }
    all.sort();
    Ok(all)
}

async fn build(
    source: &Path,
    with_plugins: bool,
    profile: Profile,
    progress: &StepProgress,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let all = all(source, with_plugins)?;
    let needed = crates(source, &all).await?;
    let mut command = cargo(source);
    command.args(["build", "--message-format", "json-render-diagnostics"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    let mut child = command
        .args(all.iter().flat_map(|name| ["--bin", name]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start cargo")?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        bail!("cargo has no output")
    };
    let errors = async {
        let mut said = Vec::new();
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            said.push(line);
        }
        said
    };
    let artifacts = async {
        let (mut found, mut compiled) = (BTreeMap::new(), BTreeSet::new());
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Some(artifact) = Artifact::parse(&line) else {
                continue;
            };
            compiled.insert(artifact.package_id);
            progress.message(
                BUILDING,
                &format!(
                    "{} of {needed} crates: {}",
                    compiled.len(),
                    artifact.target.name
                ),
            );
            if let (Some(path), true) = (artifact.executable, all.contains(&artifact.target.name)) {
                found.insert(artifact.target.name, path);
            }
        }
        found
    };
    let (said, mut found) = tokio::join!(errors, artifacts);
    if !child
        .wait()
        .await
        .context("cannot wait for cargo")?
        .success()
    {
        let end = said.len().saturating_sub(20);
        bail!("the programs do not build:\n{}", said[end..].join("\n"));
    }
    if let Some(missing) = all.iter().find(|name| !found.contains_key(*name)) {
        bail!("cargo built {missing} and did not say where it is");
    }
    // It runs here and not in the clusters.
    found.remove(LIQOCTL);
    Ok(found)
}

/// The number of crates that these programs are built of, for the progress of their build.
async fn crates(source: &Path, programs: &[String]) -> anyhow::Result<usize> {
    let tree = cargo(source)
        .args([
            "tree",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .args(programs.iter().flat_map(|name| ["--package", name]))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start cargo")?;
    if !tree.status.success() {
        bail!(
            "cargo cannot read the workspace:\n{}",
            String::from_utf8_lossy(&tree.stderr)
        );
    }
    let lines = String::from_utf8_lossy(&tree.stdout).into_owned();
    Ok(lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect::<BTreeSet<_>>()
        .len())
}

fn cargo(source: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Variables that `cargo run` sets for this program would make build scripts run again.
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_from_cargo_run))
    {
        command.env_remove(name);
    }
    command.current_dir(source);
    command
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

/// Whether `cargo run` set this variable for the program that it runs.
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
    fn liqoctl_is_always_built_and_plugins_only_where_they_are_wanted() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        assert_eq!(all(&source, false).unwrap(), [MANAGER, FABRIC, LIQOCTL]);
        let all = all(&source, true).unwrap();
        for name in PLUGINS.into_iter().chain([MANAGER, LIQOCTL]) {
            assert!(all.iter().any(|one| one == name), "{all:?} lacks {name}");
        }
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
