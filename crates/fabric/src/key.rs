//! The keys of this node's gateway: a file that outlives the process. It bears the node's name, because several nodes may share one
//! machine and its files, as they do in playgrounds.
//!
//! **Renewal.** A gateway gets a new key beside the one that it has. For a while peers are [told](Keys::told) of both, as of two gateways
//! at one place, so that each has a session with the new key before the former one goes; and for longer the former one is still
//! [taken](Keys::taken), for peers that could not be told. Flows stay where they are: a gateway's part of them follows from its first key.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use data_encoding::BASE64;
use jiff::Timestamp;
use liqo_datapath::tunnel::{PrivateKey, PublicKey};

/// For so long peers are told of a former key: until a session of the newest stands with each of them that can be reached.
const IS_TOLD: Duration = Duration::from_mins(5);
/// And for so long it is taken.
const IS_TAKEN: Duration = Duration::from_hours(24);

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

/// The keys of a node's gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The newest.
    pub newest: PrivateKey,
    /// The one before it.
    former: Option<PrivateKey>,
    /// The first one that the gateway had.
    pub first: PublicKey,
    /// When the newest was made.
    made: Timestamp,
}

impl Keys {
    /// A gateway's first key, made now.
    pub fn first(now: Timestamp) -> Self {
        let newest = PrivateKey::generate();
        Self { first: newest.public(), newest, former: None, made: now }
    }

    /// With a new key, if none was made since the moment that keys are to be made after. Moments that are still to come are waited for.
    pub fn renewed(&self, not_before: Option<Timestamp>, now: Timestamp) -> Option<Self> {
        let is_due = not_before.is_some_and(|moment| self.made < moment && moment <= now);
        is_due.then(|| Self { newest: PrivateKey::generate(), former: Some(self.newest.clone()), first: self.first, made: now })
    }

    /// The former key, as long as it is taken.
    pub fn taken(&self, now: Timestamp) -> Option<&PrivateKey> {
        self.former.as_ref().filter(|_| self.is_younger(IS_TAKEN, now))
    }

    /// The former key, as long as peers are told of it.
    pub fn told(&self, now: Timestamp) -> Option<PublicKey> {
        self.former.as_ref().filter(|_| self.is_younger(IS_TOLD, now)).map(PrivateKey::public)
    }

    /// After which time something is different, if it will be.
    pub fn changes_after(&self, now: Timestamp) -> Option<Duration> {
        self.former.as_ref()?;
        let ends = [IS_TOLD, IS_TAKEN].into_iter().filter_map(|age| Duration::try_from(self.made + age - now).ok());
        ends.filter(|left| !left.is_zero()).min()
    }

    /// All that are ours.
    pub fn all(&self) -> Vec<PublicKey> {
        [Some(&self.newest), self.former.as_ref()].into_iter().flatten().map(PrivateKey::public).collect()
    }

    fn is_younger(&self, age: Duration, now: Timestamp) -> bool {
        now < self.made + age
    }

    fn read(text: &str) -> Option<Self> {
        // The key alone, as it was written once.
        if let Ok(newest) = text.trim().parse::<PrivateKey>() {
            return Some(Self { first: newest.public(), newest, former: None, made: Timestamp::UNIX_EPOCH });
        }
        let word = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let former = word("former").map(|key| key.parse().ok());
        if former == Some(None) {
            return None;
        }
        Some(Self {
            newest: word("newest")?.parse().ok()?,
            former: former.flatten(),
            first: word("first")?.parse().ok()?,
            made: word("made")?.parse().ok()?,
        })
    }

    fn text(&self) -> String {
        let key = |name: &str, key: &PrivateKey| format!("{name} {}\n", BASE64.encode(key.bytes()));
        let former = self.former.as_ref().map(|former| key("former", former)).unwrap_or_default();
        format!("{}{former}first {}\nmade {}\n", key("newest", &self.newest), self.first, self.made)
    }
}

fn file(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.key"))
}

/// The keys of this node in this directory, made at first use.
pub fn load_or_create(directory: &Path, node: &str, now: Timestamp) -> Result<Keys, KeyError> {
    let path = file(directory, node);
    match fs::read_to_string(&path) {
        Ok(text) => Keys::read(&text).ok_or(KeyError::Invalid { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = Keys::first(now);
            save(directory, node, &keys)?;
            Ok(keys)
        }
        Err(source) => Err(KeyError::File { step: "read", path, source }),
    }
}

/// Writes the keys of this node, whole or not at all, whenever the machine fails.
pub fn save(directory: &Path, node: &str, keys: &Keys) -> Result<(), KeyError> {
    let path = file(directory, node);
    let failed = |step| {
        let path = path.clone();
        move |source| KeyError::File { step, path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("make the directory of"))?;
    let unfinished = path.with_extension("new");
    let _ = fs::remove_file(&unfinished);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed("write"))?;
    io::Write::write_all(&mut file, keys.text().as_bytes()).map_err(failed("write"))?;
    file.sync_all().map_err(failed("write"))?;
    fs::rename(&unfinished, &path).map_err(failed("write"))
}

/// Removes the keys, and the directory if nothing else is in it. No error if there are none.
pub fn remove(directory: &Path, node: &str) -> Result<(), KeyError> {
    let path = file(directory, node);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(KeyError::File { step: "remove", path, source }),
        _ => {}
    }
    // Other nodes' keys may be in it, and where it is mounted it cannot be removed.
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
    fn a_key_is_made_once_and_nobody_else_reads_it() {
        let directory = std::env::temp_dir().join(format!("liqo-fabric-key-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let load = |node: &str| load_or_create(&directory, node, at(0));
        let keys = load("n1").unwrap();
        assert_eq!(load("n1").unwrap(), keys);
        let renewed = keys.renewed(Some(at(1)), at(2)).unwrap();
        save(&directory, "n1", &renewed).unwrap();
        assert_eq!(load("n1").unwrap(), renewed);
        let file = super::file(&directory, "n1");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for garbage in ["garbage", &renewed.text().replace("former ", "former x")] {
            fs::write(&file, garbage).unwrap();
            assert_ne!(load("n2").unwrap(), keys);
            assert!(matches!(load("n1"), Err(KeyError::Invalid { .. })));
        }
        fs::write(&file, format!("{}\n", BASE64.encode(keys.newest.bytes()))).unwrap();
        let alone = load("n1").unwrap();
        assert_eq!((&alone.newest, alone.first, alone.renewed(None, at(0))), (&keys.newest, keys.first, None));
        assert!(alone.renewed(Some(at(0)), at(0)).is_some());
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
        let keys = Keys::first(at(0));
        assert_eq!(keys.renewed(None, at(100)), None);
        assert_eq!(keys.renewed(Some(at(0)), at(100)), None, "it was made then");
        assert_eq!(keys.renewed(Some(at(200)), at(100)), None, "not yet");
        let renewed = keys.renewed(Some(at(50)), at(100)).unwrap();
        assert_eq!((renewed.first, renewed.all()), (keys.first, vec![renewed.newest.public(), keys.newest.public()]));
        assert_ne!(renewed.newest, keys.newest);
        assert_eq!(renewed.renewed(Some(at(50)), at(101)), None);
    }

    #[test]
    fn a_former_key_is_told_for_minutes_and_taken_for_a_day() {
        let keys = Keys::first(at(0));
        assert_eq!((keys.told(at(0)), keys.taken(at(0)), keys.changes_after(at(0))), (None, None, None));
        let renewed = keys.renewed(Some(at(0) + Duration::from_secs(1)), at(1)).unwrap();
        assert_eq!((renewed.told(at(300)), renewed.changes_after(at(300))), (Some(keys.first), Some(Duration::from_secs(1))));
        assert_eq!((renewed.told(at(301)), renewed.taken(at(301))), (None, Some(&keys.newest)));
        let day = 24 * 3600;
        assert_eq!(renewed.changes_after(at(301)), Some(Duration::from_secs(day - 300)));
        assert_eq!((renewed.taken(at(86_401)), renewed.changes_after(at(86_401))), (None, None));
        let twice = renewed.renewed(Some(at(3)), at(3)).unwrap();
        assert_eq!(twice.all(), [twice.newest.public(), renewed.newest.public()], "the first one is gone at once");
    }
}
