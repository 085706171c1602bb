//! The programs of a release: built with cargo, or found in a folder.
//!
//! A release build leaves out the paths of this machine: the source tree is `/liqo` and cargo's
//! folder is `/cargo` in all texts of the programs. Programs of another machine are then the same
//! if the compiler is. The profile `dev` keeps the paths, because it shares what it compiles with
//! the tests.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use liqo_playground::{CargoProfile, ProgramBuild, build_programs};
use liqoctl::progress::StepProgress;

use crate::{cargo_metadata::ShippedProgram, source_tree::SourceTree};

/// Separates flags in the variable of the same name.
const FLAG_SEPARATOR: &str = "\u{1f}";
const FLAGS_VARIABLE: &str = "CARGO_ENCODED_RUSTFLAGS";

/// Builds programs, and returns their paths by name.
pub async fn build_shipped(
    tree: &SourceTree,
    programs: &[ShippedProgram],
    profile: CargoProfile,
    progress: &StepProgress,
) -> Result<BTreeMap<String, PathBuf>> {
    let step = "Building the programs";
    let environment = match profile {
        CargoProfile::Dev => BTreeMap::new(),
        CargoProfile::Release => release_environment(tree)?,
    };
    let build = ProgramBuild {
        source: tree.folder.clone(),
        programs: programs
            .iter()
            .map(|program| program.name.clone())
            .collect(),
        profile,
        environment,
    };
    let paths = build_programs(&build, |text| progress.message(step, text));
    Ok(progress.run_step(step, paths).await?)
}

/// The paths of programs in a folder, by name.
pub fn find_shipped(
    folder: &Path,
    programs: &[ShippedProgram],
) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for program in programs {
        let path = folder.join(&program.name);
        ensure!(
            path.is_file(),
            "{} is missing in {}: build all programs, or leave out --programs",
            program.name,
            folder.display()
        );
        found.insert(program.name.clone(), path);
    }
    Ok(found)
}

fn release_environment(tree: &SourceTree) -> Result<BTreeMap<String, String>> {
    let cargo_home = match env::var("CARGO_HOME") {
        Ok(home) => PathBuf::from(home),
        Err(_) => env::home_dir()
            .context("there is neither CARGO_HOME nor a home folder")?
            .join(".cargo"),
    };
    let given = env::var(FLAGS_VARIABLE).unwrap_or_else(|_| {
        let flags = env::var("RUSTFLAGS").unwrap_or_default();
        flags
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(FLAG_SEPARATOR)
    });
    let flags = flags_without_paths(&given, &tree.folder, &cargo_home);
    Ok(BTreeMap::from([
        (FLAGS_VARIABLE.to_owned(), flags),
        (
            "SOURCE_DATE_EPOCH".to_owned(),
            tree.epoch_seconds().to_string(),
        ),
    ]))
}

/// The flags of the compiler, and those that replace paths of this machine.
fn flags_without_paths(given: &str, source: &Path, cargo_home: &Path) -> String {
    let mut flags: Vec<String> = given
        .split(FLAG_SEPARATOR)
        .filter(|flag| !flag.is_empty())
        .map(str::to_owned)
        .collect();
    flags.push(flag_replacing(cargo_home, "/cargo"));
    flags.push(flag_replacing(source, "/liqo"));
    flags.join(FLAG_SEPARATOR)
}

/// The flag by which the compiler writes a name in place of a path of this machine.
fn flag_replacing(path: &Path, name: &str) -> String {
    format!("--remap-path-prefix={}={name}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_keeps_the_users_flags_and_replaces_paths() {
        let flags = flags_without_paths("-g\u{1f}-O", Path::new("/a b"), Path::new("/c"));
        assert_eq!(
            flags.split(FLAG_SEPARATOR).collect::<Vec<_>>(),
            [
                "-g",
                "-O",
                "--remap-path-prefix=/c=/cargo",
                "--remap-path-prefix=/a b=/liqo"
            ]
        );
        assert!(flags_without_paths("", Path::new("/a"), Path::new("/c")).starts_with("--remap"));
    }
}
