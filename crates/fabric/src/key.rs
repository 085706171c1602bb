//! The key of this node's gateway: a file that outlives the process. It bears the node's name, because several nodes may share one
//! machine and its files, as they do in playgrounds.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use data_encoding::BASE64;
use liqo_datapath::tunnel::PrivateKey;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A step with a file failed.
    #[error("cannot {step} {path}: {source}; --key-directory has to be a directory that stays when the pod goes")]
    File {
        /// What was to be done.
        step: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it could not be.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{path} holds no WireGuard key; remove it, and a new one is made")]
    Invalid {
        /// The file.
        path: PathBuf,
    },
}

fn file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.key"))
}

/// The key of this node in this directory, made at first use.
pub fn load_or_create(directory: &Path, node: &str) -> Result<PrivateKey, KeyError> {
    let path = file(directory, node);
    let failed = |step| {
        let path = path.clone();
        move |source| KeyError::File { step, path, source }
    };
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| KeyError::Invalid { path: path.clone() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("make the directory of"))?;
            let key = PrivateKey::generate();
            // Whole or not at all, whenever the machine fails.
            let unfinished = path.with_extension("new");
            let _ = fs::remove_file(&unfinished);
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed("write"))?;
            io::Write::write_all(&mut file, BASE64.encode(key.bytes()).as_bytes()).map_err(failed("write"))?;
            file.sync_all().map_err(failed("write"))?;
            fs::rename(&unfinished, &path).map_err(failed("write"))?;
            Ok(key)
        }
        Err(error) => Err(failed("read")(error)),
    }
}

/// Removes the key. No error if there is none.
pub fn remove(directory: &Path, node: &str) -> Result<(), KeyError> {
    let path = file(directory, node);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(KeyError::File { step: "remove", path, source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_nobody_else_reads_it() {
        let directory = std::env::temp_dir().join(format!("liqo-fabric-key-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let key = load_or_create(&directory, "n1").unwrap();
        assert_eq!(load_or_create(&directory, "n1").unwrap(), key);
        let file = super::file(&directory, "n1");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&file, "garbage").unwrap();
        assert_ne!(load_or_create(&directory, "n2").unwrap(), key);
        assert!(matches!(load_or_create(&directory, "n1"), Err(KeyError::Invalid { .. })));
        remove(&directory, "n1").unwrap();
        remove(&directory, "n1").unwrap();
        assert_ne!(load_or_create(&directory, "n1").unwrap(), key);
        fs::remove_dir_all(&directory).unwrap();
    }
}
