//! Files of the playground: written atomically, readable by root only.

use std::{
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

pub(crate) fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create", path))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

/// The entries of a directory; empty if it does not exist.
pub(crate) fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

pub(crate) fn write_json(path: &Path, value: &serde_json::Value) -> Result<()> {
    write(path, &format!("{value:#}\n"))
}

/// Writes atomically, readable by root only, and only if the content changed: some programs watch
/// their files.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let temporary = path.with_extension("new");
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary);
    let mut file = file.map_err(Error::file("write", &temporary))?;
    std::io::Write::write_all(&mut file, text.as_bytes())
        .map_err(Error::file("write", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::file("write", path))
}

/// It is no error if the file does not exist.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}
