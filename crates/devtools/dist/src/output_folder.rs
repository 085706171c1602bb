//! The folder of a release. Artefacts of an earlier run are removed first; a folder with anything
//! else is refused: nothing of others is removed, and `SHA256SUMS` lists all that is there.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    checksums::{CHECKSUMS_FILE, FileChecksum, render_checksums},
    files::folder_entries,
};

/// A folder that gets the artefacts of one release.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    /// All names that artefacts can have.
    names: BTreeSet<String>,
    written: Vec<FileChecksum>,
}

impl OutputFolder {
    /// Checks that the folder holds nothing but files with these names. Changes nothing.
    pub fn open_checked(path: &Path, names: BTreeSet<String>) -> Result<Self> {
        if let Some(stranger) = strange_entry(path, &names)? {
            bail!(
                "{stranger} is in {}, and is no artefact of this version: \
                 choose another folder for --output",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            names,
            written: Vec::new(),
        })
    }

    /// Creates the folder, or removes what an earlier run made.
    pub fn clear_folder(&self) -> Result<()> {
        fs::create_dir_all(&self.path)
            .with_context(|| format!("cannot create {}", self.path.display()))?;
        for name in &self.names {
            let path = self.path.join(name);
            if path.exists() {
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    pub fn write_artefact(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        self.written.push(FileChecksum::of_bytes(name, bytes));
        self.write_file(name, bytes)
    }

    /// The artefacts so far.
    pub fn written_files(&self) -> &[FileChecksum] {
        &self.written
    }

    /// Writes the checksums of all artefacts. Returns all files, sorted by name.
    pub fn finish_release(mut self) -> Result<Vec<FileChecksum>> {
        let checksums = render_checksums(&self.written);
        self.write_artefact(CHECKSUMS_FILE, checksums.as_bytes())?;
        self.written.sort();
        Ok(self.written)
    }

    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The first entry of a folder that has none of these names. A missing folder has no entries.
fn strange_entry(folder: &Path, names: &BTreeSet<String>) -> Result<Option<String>> {
    if !folder.exists() {
        return Ok(None);
    }
    for path in folder_entries(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() || !names.contains(name.as_ref()) {
            return Ok(Some(name.into_owned()));
        }
    }
    Ok(None)
}
