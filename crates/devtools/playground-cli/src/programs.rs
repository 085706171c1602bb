//! Liqo's programs for the clusters: built from the source tree of this program, or found in the
//! directory of this program.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use liqo_playground::{CargoProfile, ProgramBuild};
use liqoctl::progress::StepProgress;

pub const MANAGER: &str = liqo_api::CONTROLLER_MANAGER;
pub const FABRIC: &str = "liqo-fabric";
/// `up` builds it together with the other programs, so that it is ready when somebody types the
/// commands that `up` prints.
const LIQOCTL: &str = "liqoctl";
/// The resource plugins that come with Liqo. `up --plugins` loads the images of these and of all
/// others in the source tree's folder `plugins` into the clusters, so they can be deployed.
const PLUGINS: [&str; 3] = ["broker", "fixed-resources", "node-labels-resources"];
pub const BUILDING: &str = "Building the programs";

/// The paths of the programs that run in the clusters, by name.
pub async fn programs(
    with_plugins: bool,
    profile: CargoProfile,
    progress: &StepProgress,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    if source.join("Cargo.toml").is_file() && std::env::var_os("CARGO").is_some() {
        return build(&source, with_plugins, profile, progress).await;
    }
    if profile == CargoProfile::Release {
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
    profile: CargoProfile,
    progress: &StepProgress,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let build = ProgramBuild {
        source: source.to_owned(),
        programs: all(source, with_plugins)?,
        profile,
        environment: BTreeMap::new(),
    };
    let mut found =
        liqo_playground::build_programs(&build, |text| progress.message(BUILDING, text)).await?;
    // It runs here and not in the clusters.
    found.remove(LIQOCTL);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liqoctl_is_always_built_and_plugins_only_where_they_are_wanted() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        assert_eq!(all(&source, false).unwrap(), [MANAGER, FABRIC, LIQOCTL]);
        let all = all(&source, true).unwrap();
        for name in PLUGINS.into_iter().chain([MANAGER, LIQOCTL]) {
            assert!(all.iter().any(|one| one == name), "{all:?} lacks {name}");
        }
    }
}
