//! The keys of this node's gateway, in a file that outlives the process. Its name contains the
//! node's, because several nodes may share one machine and its files, as in playgrounds.
//!
//! **Renewal.** A gateway gets a new key in addition to the one it has. For some minutes it
//! announces both to peers, as two gateways at one address, so each peer has a session with the new
//! key before the former one goes. For a day it still accepts the former key, for peers that did
//! not learn of the new one. Flows stay where they are: a gateway's share is derived from its first
//! key.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use data_encoding::BASE64;
use jiff::Timestamp;
use liqo_datapath::tunnel::{PrivateKey, PublicKey};

/// A former key is announced for this time: until each reachable peer has a session with the newest
/// key.
const ANNOUNCED_FOR: Duration = Duration::from_mins(5);
/// A former key is accepted for this time.
const ACCEPTED_FOR: Duration = Duration::from_hours(24);

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error(
        "cannot {step} {path}: {source}; --key-directory has to be a directory that stays when the pod goes"
    )]
    File {
        step: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path} holds no WireGuard key; remove it, and a new one is generated")]
    Invalid { path: PathBuf },
}

/// The keys of a node's gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGatewayKeys {
    pub newest: PrivateKey,
    former: Option<PrivateKey>,
    /// The first key that the gateway had.
    pub first: PublicKey,
    /// The time at which the newest key was generated.
    generated_at: Timestamp,
}

impl NodeGatewayKeys {
    /// Generates a gateway's first key.
    pub fn generate_first(now: Timestamp) -> Self {
        let newest = PrivateKey::generate();
        Self {
            first: newest.public_key(),
            newest,
            former: None,
            generated_at: now,
        }
    }

    /// With a new key, if `not_before` has come and the newest key is older.
    pub fn with_new_key(&self, not_before: Option<Timestamp>, now: Timestamp) -> Option<Self> {
        let is_due = not_before.is_some_and(|moment| self.generated_at < moment && moment <= now);
        is_due.then(|| Self {
            newest: PrivateKey::generate(),
            former: Some(self.newest.clone()),
            first: self.first,
            generated_at: now,
        })
    }

    /// The former key while it is accepted.
    pub fn accepted_former(&self, now: Timestamp) -> Option<&PrivateKey> {
        self.former
            .as_ref()
            .filter(|_| self.is_younger(ACCEPTED_FOR, now))
    }

    /// The former key while it is announced.
    pub fn announced_former(&self, now: Timestamp) -> Option<PublicKey> {
        self.former
            .as_ref()
            .filter(|_| self.is_younger(ANNOUNCED_FOR, now))
            .map(PrivateKey::public_key)
    }

    /// The time until a former key is no longer announced or accepted.
    pub fn changes_after(&self, now: Timestamp) -> Option<Duration> {
        self.former.as_ref()?;
        let ends = [ANNOUNCED_FOR, ACCEPTED_FOR]
            .into_iter()
            .filter_map(|age| Duration::try_from(self.generated_at + age - now).ok());
        ends.filter(|left| !left.is_zero()).min()
    }

    pub fn public_keys(&self) -> Vec<PublicKey> {
        [Some(&self.newest), self.former.as_ref()]
            .into_iter()
            .flatten()
            .map(PrivateKey::public_key)
            .collect()
    }

    fn is_younger(&self, age: Duration, now: Timestamp) -> bool {
        now < self.generated_at + age
    }

    fn parse_keys(text: &str) -> Option<Self> {
        // Earlier versions wrote only the key.
        if let Ok(newest) = text.trim().parse::<PrivateKey>() {
            return Some(Self {
                first: newest.public_key(),
                newest,
                former: None,
                generated_at: Timestamp::UNIX_EPOCH,
            });
        }
        let former = value_of_line(text, "former").map(|key| key.parse().ok());
        if former == Some(None) {
            return None;
        }
        Some(Self {
            newest: value_of_line(text, "newest")?.parse().ok()?,
            former: former.flatten(),
            first: value_of_line(text, "first")?.parse().ok()?,
            generated_at: value_of_line(text, "made")?.parse().ok()?,
        })
    }

    fn file_text(&self) -> String {
        let former = self.former.as_ref().map(|key| key_line("former", key));
        format!(
            "{}{}first {}\nmade {}\n",
            key_line("newest", &self.newest),
            former.unwrap_or_default(),
            self.first,
            self.generated_at
        )
    }
}

fn key_file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.key"))
}

/// Reads the keys of this node, or generates the first one.
pub fn load_or_create(
    directory: &Path,
    node: &str,
    now: Timestamp,
) -> Result<NodeGatewayKeys, KeyFileError> {
    let path = key_file(directory, node);
    match fs::read_to_string(&path) {
        Ok(text) => NodeGatewayKeys::parse_keys(&text).ok_or(KeyFileError::Invalid { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = NodeGatewayKeys::generate_first(now);
            save_keys(directory, node, &keys)?;
            Ok(keys)
        }
        Err(source) => Err(KeyFileError::File {
            step: "read",
            path,
            source,
        }),
    }
}

/// The value of the line that begins with this name.
fn value_of_line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

fn key_line(name: &str, key: &PrivateKey) -> String {
    format!("{name} {}\n", BASE64.encode(key.bytes()))
}

/// Writes the keys of this node atomically.
pub fn save_keys(directory: &Path, node: &str, keys: &NodeGatewayKeys) -> Result<(), KeyFileError> {
    let path = key_file(directory, node);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed_step("create the directory of", &path))?;
    let unfinished = path.with_extension("new");
    let _ = fs::remove_file(&unfinished);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .map_err(failed_step("write", &path))?;
    io::Write::write_all(&mut file, keys.file_text().as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&unfinished, &path))
        .map_err(failed_step("write", &path))
}

fn failed_step(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    let path = path.to_owned();
    move |source| KeyFileError::File { step, path, source }
}

/// Removes the keys, and the directory if it is empty. It is no error if there are none.
pub fn remove(directory: &Path, node: &str) -> Result<(), KeyFileError> {
    let path = key_file(directory, node);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(KeyFileError::File {
                step: "remove",
                path,
                source,
            });
        }
        _ => {}
    }
    // It may contain other nodes' keys, and a mounted directory cannot be removed.
    let _ = fs::remove_dir(directory);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_key_is_generated_once_and_nobody_else_reads_it() {
        let directory =
            std::env::temp_dir().join(format!("liqo-fabric-key-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let load = |node: &str| load_or_create(&directory, node, at(0));
        let keys = load("n1").unwrap();
        assert_eq!(load("n1").unwrap(), keys);
        let renewed = keys.with_new_key(Some(at(1)), at(2)).unwrap();
        save_keys(&directory, "n1", &renewed).unwrap();
        assert_eq!(load("n1").unwrap(), renewed);
        let file = super::key_file(&directory, "n1");
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        for garbage in [
            "garbage",
            &renewed.file_text().replace("former ", "former x"),
        ] {
            fs::write(&file, garbage).unwrap();
            assert_ne!(load("n2").unwrap(), keys);
            assert!(matches!(load("n1"), Err(KeyFileError::Invalid { .. })));
        }
        fs::write(&file, format!("{}\n", BASE64.encode(keys.newest.bytes()))).unwrap();
        let alone = load("n1").unwrap();
        assert_eq!(
            (&alone.newest, alone.first, alone.with_new_key(None, at(0))),
            (&keys.newest, keys.first, None)
        );
        assert!(alone.with_new_key(Some(at(0)), at(0)).is_some());
        remove(&directory, "n1").unwrap();
        remove(&directory, "n1").unwrap();
        assert_ne!(load("n1").unwrap(), keys);
        remove(&directory, "n1").unwrap();
        assert!(directory.exists(), "it has the keys of another node");
        remove(&directory, "n2").unwrap();
        assert!(!directory.exists());
    }

    #[test]
    fn a_key_that_is_too_old_is_renewed_once() {
        let keys = NodeGatewayKeys::generate_first(at(0));
        assert_eq!(keys.with_new_key(None, at(100)), None);
        assert_eq!(
            keys.with_new_key(Some(at(0)), at(100)),
            None,
            "it was generated then"
        );
        assert_eq!(keys.with_new_key(Some(at(200)), at(100)), None, "not yet");
        let renewed = keys.with_new_key(Some(at(50)), at(100)).unwrap();
        assert_eq!(
            (renewed.first, renewed.public_keys()),
            (
                keys.first,
                vec![renewed.newest.public_key(), keys.newest.public_key()]
            )
        );
        assert_ne!(renewed.newest, keys.newest);
        assert_eq!(renewed.with_new_key(Some(at(50)), at(101)), None);
    }

    #[test]
    fn a_former_key_is_announced_for_minutes_and_accepted_for_a_day() {
        let keys = NodeGatewayKeys::generate_first(at(0));
        assert_eq!(
            (
                keys.announced_former(at(0)),
                keys.accepted_former(at(0)),
                keys.changes_after(at(0))
            ),
            (None, None, None)
        );
        let renewed = keys
            .with_new_key(Some(at(0) + Duration::from_secs(1)), at(1))
            .unwrap();
        assert_eq!(
            (
                renewed.announced_former(at(300)),
                renewed.changes_after(at(300))
            ),
            (Some(keys.first), Some(Duration::from_secs(1)))
        );
        assert_eq!(
            (
                renewed.announced_former(at(301)),
                renewed.accepted_former(at(301))
            ),
            (None, Some(&keys.newest))
        );
        let day = 24 * 3600;
        assert_eq!(
            renewed.changes_after(at(301)),
            Some(Duration::from_secs(day - 300))
        );
        assert_eq!(
            (
                renewed.accepted_former(at(86_401)),
                renewed.changes_after(at(86_401))
            ),
            (None, None)
        );
        let twice = renewed.with_new_key(Some(at(3)), at(3)).unwrap();
        assert_eq!(
            twice.public_keys(),
            [twice.newest.public_key(), renewed.newest.public_key()],
            "the first one is gone at once"
        );
    }
}
