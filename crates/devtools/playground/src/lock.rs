//! Locks: one `up` or `down` at a time for each instance, and one process that installs or builds
//! programs.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    layout::Instance,
    program,
};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Held until it is dropped; the kernel releases it when the process dies.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    _file: File,
    path: PathBuf,
}

impl InstanceLock {
    /// Waits until nobody else works on the instance.
    pub async fn take(instance: &Instance) -> Result<Self> {
        let path = instance.lock_file();
        loop {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
            }
            let file = File::options()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(Error::file("open", &path))?;
            // The previous holder may have removed the file that we just locked.
            if file.try_lock().is_ok() && is_same(&file, &path) {
                return Ok(Self { _file: file, path });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Releases the lock and leaves no file.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
        // It fails if other instances exist; then the directory stays.
        if let Some(directory) = self.path.parent() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Held by who installs packages or builds programs; the kernel releases it when it is dropped, or
/// the process dies.
#[derive(Debug)]
pub(crate) struct CacheLock {
    _file: File,
}

impl CacheLock {
    /// Waits until nobody else installs or builds. Look again then at what is missing.
    pub async fn take() -> Result<Self> {
        let directory = program::cache();
        fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
        let path = directory.join(".lock");
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::file("open", &path))?;
        while file.try_lock().is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(Self { _file: file })
    }
}

fn is_same(file: &File, path: &std::path::Path) -> bool {
    let inode = |metadata: std::io::Result<fs::Metadata>| {
        metadata
            .ok()
            .map(|metadata| (metadata.dev(), metadata.ino()))
    };
    let (held, named) = (inode(file.metadata()), inode(fs::metadata(path)));
    held.is_some() && held == named
}
