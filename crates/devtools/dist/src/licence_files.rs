//! Finds the licence files of crates in the folders into which cargo unpacked them.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{
    crate_graph::ShippedCrate,
    files::{files_below, folder_entries, read_bytes},
    notices::{LicenceFile, LicensedCrate},
};

/// Beginnings of names of licence files, in lower case.
const PREFIXES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];

/// The crates of third parties with their licence files.
pub fn licensed_crates(crates: &[ShippedCrate]) -> Result<Vec<LicensedCrate>> {
    crates
        .iter()
        .filter(|one| one.is_third_party())
        .map(|one| {
            let folder = one.package.manifest_path.parent();
            let folder = folder.with_context(|| format!("{} has no folder", one.title()))?;
            Ok(LicensedCrate {
                shipped: one.clone(),
                files: licence_files(folder)?,
            })
        })
        .collect()
}

fn licence_files(folder: &Path) -> Result<Vec<LicenceFile>> {
    let mut paths = Vec::new();
    for path in folder_entries(folder)? {
        if !is_licence_name(&path) {
            continue;
        }
        if path.is_dir() {
            paths.extend(files_below(&path)?);
        } else {
            paths.push(path);
        }
    }
    paths
        .iter()
        .map(|path| {
            let name = path.strip_prefix(folder).unwrap_or(path);
            Ok(LicenceFile {
                name: name.display().to_string(),
                text: String::from_utf8_lossy(&read_bytes(path)?).into_owned(),
            })
        })
        .collect()
}

/// True for `LICENSE-MIT`, `COPYING`, `LICENSES/` and the like, but not for source files.
fn is_licence_name(path: &Path) -> bool {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase();
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    !is_source && PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_files_are_known_by_their_names() {
        for name in [
            "LICENSE",
            "LICENSE-MIT",
            "license.md",
            "COPYING",
            "UNLICENSE",
            "LICENSES",
        ] {
            assert!(is_licence_name(Path::new(name)), "{name}");
        }
        for name in ["README.md", "src", "license.rs", "Cargo.toml"] {
            assert!(!is_licence_name(Path::new(name)), "{name}");
        }
    }
}
