//! Liqo's programs for the clusters: built from the source tree of this program, or found in the directory of this program.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use liqoctl::progress::Progress;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

pub const MANAGER: &str = liqo_api::CONTROLLER_MANAGER;
pub const FABRIC: &str = "liqo-fabric";
/// `up` builds it together with the other programs, so that it is ready when somebody types the commands that `up` prints.
const LIQOCTL: &str = "liqoctl";
/// The resource plugins that come with Liqo. `up --plugins` loads the images of these and of all others in the source tree's folder
/// `plugins` into the clusters, so they can be deployed.
const PLUGINS: [&str; 3] = ["broker", "fixed-resources", "node-labels-resources"];
pub const BUILDING: &str = "Building the programs";

/// The paths of the programs that run in the clusters, by name.
pub async fn programs(with_plugins: bool, progress: &Progress) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    if source.join("Cargo.toml").is_file() && std::env::var_os("CARGO").is_some() {
        return build(&source, with_plugins, progress).await;
    }
    let here = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned)).unwrap_or_default();
    let all = [MANAGER, FABRIC].into_iter().chain(PLUGINS.into_iter().filter(|_| with_plugins));
    let all: BTreeMap<_, _> = all.map(|name| (name.to_owned(), here.join(name))).collect();
    if let Some((missing, _)) = all.iter().find(|(_, path)| !path.is_file()) {
        let command = if with_plugins { "cargo playground up --plugins" } else { "cargo playground up" };
        bail!(
            "{missing} is missing, so no image can be built: run `{command}` in the source tree, or put the program next to liqo-playground"
        );
    }
    Ok(all)
}

/// Liqo's programs and, if wanted, the packages in the folder `plugins`: each builds a program of the same name.
fn all(source: &Path, with_plugins: bool) -> anyhow::Result<Vec<String>> {
    let folder = source.join("plugins");
    let mut all = [MANAGER, FABRIC, LIQOCTL].map(str::to_owned).to_vec();
    if !with_plugins {
        return Ok(all);
    }
    for entry in folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if path.join("Cargo.toml").is_file() {
            all.extend(path.file_name().and_then(|name| name.to_str()).map(ToOwned::to_owned));
        }
    }
    all.sort();
    Ok(all)
}

async fn build(source: &Path, with_plugins: bool, progress: &Progress) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let all = all(source, with_plugins)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Variables that `cargo run` sets for this program would make build scripts run again.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_from_cargo_run)) {
        command.env_remove(name);
    }
    let mut child = command
        .args(["build", "--release", "--message-format", "json-render-diagnostics"])
        .args(all.iter().flat_map(|name| ["--bin", name]))
        .current_dir(source)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start cargo")?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else { bail!("cargo has no output") };
    let news = async {
        let mut said = Vec::new();
        let mut lines = BufReader::new(stderr).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            said.push(line);
            let crates = said.iter().filter(|line| line.trim_start().starts_with("Compiling")).count();
            let line = said.last().map(|line| line.trim()).unwrap_or_default();
            progress.message(BUILDING, &if crates == 0 { line.to_owned() } else { format!("{crates} crates, {line}") });
        }
        said
    };
    let program = async {
        let mut found = BTreeMap::new();
        let mut lines = BufReader::new(stdout).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            found.extend(executable(&line, &all));
        }
        found
    };
    let (said, mut found) = tokio::join!(news, program);
    if !child.wait().await.context("cannot wait for cargo")?.success() {
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

/// Whether `cargo run` set this variable for the program that it runs.
fn is_from_cargo_run(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
        || matches!(name, "CARGO" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR" | "LD_LIBRARY_PATH")
}

/// The program that a line of cargo's messages names.
fn executable(line: &str, all: &[String]) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let name = all.iter().find(|name| message["target"]["name"] == name.as_str())?;
    Some((name.clone(), PathBuf::from(message["executable"].as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_cargo_built_is_found_in_its_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"liqo-controller-manager"},"executable":"/t/liqo-controller-manager"}"#;
        let all = [MANAGER.to_owned()];
        assert_eq!(executable(line, &all).unwrap(), (MANAGER.to_owned(), PathBuf::from("/t/liqo-controller-manager")));
        assert_eq!(executable(r#"{"target":{"name":"liqo-api"},"executable":null}"#, &all), None);
        assert_eq!(executable("Compiling", &all), None);
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
        assert!(["CARGO", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"].into_iter().all(is_from_cargo_run));
        assert!(!["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_NET_OFFLINE", "RUSTFLAGS", "PATH"].into_iter().any(is_from_cargo_run));
    }
}
