//! Reads files with errors that name them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

pub fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The paths of the entries of a folder, sorted.
pub fn folder_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("cannot read the folder {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(failed)? {
        paths.push(entry.with_context(failed)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// The paths of all files below a folder, sorted.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in folder_entries(folder)? {
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
