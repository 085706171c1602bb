//! Names that both sides of a peering must compute in the same way.

use data_encoding::BASE32_NOPAD;

use crate::ClusterId;

/// Maximum length of a DNS label.
const MAX_LEN: usize = 63;

/// Length of the hash that replaces the middle of a long name.
const HASH_LEN: usize = 8;

/// Number of characters of the cluster ID in an alternative name.
const LONG_ID_LEN: usize = 16;

/// The default name, at the provider, of a consumer's namespace:
/// `<namespace>-<cluster name>-<6 characters of the cluster ID>`. If that is too long, a hash of
/// the whole name replaces its middle. So different namespaces have different names, and the end of
/// the name still shows which cluster owns the namespace.
pub fn mapped_namespace(namespace: &str, cluster_name: &str, cluster: &ClusterId) -> String {
    let whole = format!("{namespace}-{cluster_name}-{}", cluster.short_id());
    if whole.len() <= MAX_LEN {
        return whole;
    }
    let start_len = MAX_LEN - HASH_LEN - cluster.short_id().len() - 2;
    let start: String = format!("{namespace}-{cluster_name}")
        .chars()
        .take(start_len)
        .collect();
    format!(
        "{}-{}-{}",
        start.trim_end_matches('-'),
        shortest_hash(&whole),
        cluster.short_id()
    )
}

/// The name instead of a default one that somebody else has taken at the provider: with 16
/// characters of the cluster ID. A key whose ID has the same first six characters is quickly found;
/// one with the same sixteen is not. `None` if this is no default name.
pub fn alternative_mapped_namespace(default: &str, cluster: &ClusterId) -> Option<String> {
    let stem = default
        .strip_suffix(cluster.short_id())?
        .strip_suffix('-')?;
    let id = cluster.as_str().get(..LONG_ID_LEN)?;
    let whole = format!("{stem}-{id}");
    if whole.len() <= MAX_LEN {
        return Some(whole);
    }
    let start: String = stem
        .chars()
        .take(MAX_LEN - HASH_LEN - LONG_ID_LEN - 2)
        .collect();
    Some(format!(
        "{}-{}-{id}",
        start.trim_end_matches('-'),
        shortest_hash(default)
    ))
}

/// The beginning of [`short_hash`].
fn shortest_hash(text: &str) -> String {
    short_hash(text).chars().take(HASH_LEN).collect()
}

/// A hash of a text, for use in names: 16 characters, each one of a-z or 2-7.
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
        assert_eq!(
            mapped_namespace("demo", "rome", &id()),
            format!("demo-rome-{}", id().short_id())
        );
    }

    #[test]
    fn an_alternative_name_shows_more_of_the_id() {
        let alternative = |namespace: &str| {
            alternative_mapped_namespace(&mapped_namespace(namespace, "rome", &id()), &id())
                .unwrap()
        };
        assert_eq!(
            alternative("demo"),
            format!("demo-rome-{}", &id().as_str()[..16])
        );
        let (one, two) = (
            alternative(&"a".repeat(63)),
            alternative(&format!("{}b", "a".repeat(62))),
        );
        assert_ne!(one, two);
        assert!(
            one.len() <= 63 && one.ends_with(&id().as_str()[..16]),
            "{one}"
        );
        assert_eq!(alternative_mapped_namespace("demo", &id()), None);
    }

    #[test]
    fn long_names_fit_differ_and_show_their_owner() {
        let (one, two) = ("a".repeat(63), format!("{}b", "a".repeat(62)));
        let names = [
            mapped_namespace(&one, "rome", &id()),
            mapped_namespace(&two, "rome", &id()),
        ];
        assert_ne!(names[0], names[1]);
        for name in names {
            assert!(
                name.len() <= 63 && name.ends_with(id().short_id()),
                "{name}"
            );
        }
    }

    #[test]
    fn a_name_that_is_cut_at_a_hyphen_is_valid() {
        let name = mapped_namespace(&"a-".repeat(31), "rome", &id());
        assert!(!name.contains("--"), "{name}");
    }
}
