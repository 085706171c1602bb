//! Names that both sides of a peering must work out alike.

use data_encoding::BASE32_NOPAD;

use crate::ClusterId;

/// The longest DNS label.
const LONGEST: usize = 63;

/// Characters of the hash that stands for what was cut off.
const HASH: usize = 8;

/// The default name, at the provider, of a consumer's namespace: `<namespace>-<cluster name>-<6 characters of the cluster
/// ID>`. Where that is longer than a name may be, the middle is cut and a hash of the whole takes its place, so that two
/// namespaces never get the same name and the end still shows whose it is.
pub fn mapped_namespace(namespace: &str, cluster_name: &str, cluster: &ClusterId) -> String {
    let whole = format!("{namespace}-{cluster_name}-{}", cluster.short());
    if whole.len() <= LONGEST {
        return whole;
    }
    let room = LONGEST - HASH - cluster.short().len() - 2;
    let start: String = format!("{namespace}-{cluster_name}").chars().take(room).collect();
    format!("{}-{}-{}", start.trim_end_matches('-'), &short_hash(&whole)[..HASH], cluster.short())
}

/// 16 characters out of a-z and 2-7 that stand for a text in a name.
pub fn short_hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut hash = BASE32_NOPAD.encode(digest.as_ref());
    hash.make_ascii_lowercase();
    hash.truncate(16);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ClusterId {
        ClusterId::of_public_key(&[7; 32])
    }

    #[test]
    fn a_short_name_stays_readable() {
        assert_eq!(mapped_namespace("demo", "rome", &id()), format!("demo-rome-{}", id().short()));
    }

    #[test]
    fn long_names_fit_differ_and_show_whose_they_are() {
        let (one, two) = ("a".repeat(63), format!("{}b", "a".repeat(62)));
        let names = [mapped_namespace(&one, "rome", &id()), mapped_namespace(&two, "rome", &id())];
        assert_ne!(names[0], names[1]);
        for name in names {
            assert!(name.len() <= 63 && name.ends_with(id().short()), "{name}");
        }
    }

    #[test]
    fn a_cut_beside_a_hyphen_leaves_a_valid_name() {
        let name = mapped_namespace(&"a-".repeat(31), "rome", &id());
        assert!(!name.contains("--"), "{name}");
    }
}
