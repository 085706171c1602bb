//! The names of replicas.
//!
//! Replicas of `ConfigMap`s and Secrets have names that only Liqo writes, and the provider gives
//! every reference of a remote pod such a name, whatever its consumer wrote. So no pod can name an
//! object of the provider's own, not even one that is created later. And an object that every
//! cluster writes into all namespaces, such as `kube-root-ca.crt`, does not stand in the way of the
//! one from home.

use liqo_api::short_hash;

use crate::dns_names::{MAX_SUBDOMAIN_LEN, is_subdomain};
use crate::replica::kind::ReplicaKind;

/// Every derived name contains this.
pub(crate) const MARK: &str = "liqo-";

/// The name of the replica of an object with this name. A Service is found by its name, so its
/// replica has the same one; those of `ConfigMap`s and Secrets have derived names: the beginning of
/// the name, and a hash of kind and name.
pub fn replica_name(kind: ReplicaKind, home: &str) -> String {
    if kind.is_of_namespace() {
        return home.to_owned();
    }
    let hash = short_hash(&format!("{}/{home}", kind.name()));
    let end = format!("{MARK}{hash}");
    // An invalid name is not used: only the hash remains.
    let Some(start) = home
        .get(..home.len().min(MAX_SUBDOMAIN_LEN - 1 - end.len()))
        .filter(|_| is_subdomain(home))
    else {
        return end;
    };
    format!("{}-{end}", start.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_name_shows_the_one_at_home_and_is_the_same_each_time() {
        let name = replica_name(ReplicaKind::ConfigMap, "settings");
        assert_eq!(
            name,
            format!("settings-liqo-{}", short_hash("ConfigMap/settings"))
        );
        assert_eq!(name, replica_name(ReplicaKind::ConfigMap, "settings"));
        assert!(name.contains(MARK) && is_subdomain(&name));
        assert_eq!(replica_name(ReplicaKind::Service, "web"), "web");
    }

    #[test]
    fn different_objects_have_different_names_and_a_derived_name_is_derived_again() {
        let twice = replica_name(ReplicaKind::Secret, &replica_name(ReplicaKind::Secret, "a"));
        let (long, longer) = ("a".repeat(252), "a".repeat(253));
        let all = [
            twice,
            replica_name(ReplicaKind::Secret, "a"),
            replica_name(ReplicaKind::ConfigMap, "a"),
            replica_name(ReplicaKind::Secret, &long),
            replica_name(ReplicaKind::Secret, &longer),
        ];
        assert_eq!(
            all.iter().collect::<std::collections::BTreeSet<_>>().len(),
            all.len()
        );
    }

    #[test]
    fn a_derived_name_is_valid_whatever_the_name_is() {
        let dotted = format!("{}.{}", "a".repeat(230), "b".repeat(22));
        let dashed = format!("{}--{}", "a".repeat(229), "b".repeat(22));
        for home in ["a", "kube-root-ca.crt", &"a".repeat(253), &dotted, &dashed] {
            let name = replica_name(ReplicaKind::Secret, home);
            assert!(is_subdomain(&name) && name.len() <= 253, "{name}");
        }
        for home in [
            "",
            "..",
            "../x",
            "a/b",
            "A",
            "ä",
            &"ä".repeat(300),
            &"a".repeat(254),
        ] {
            let name = replica_name(ReplicaKind::Secret, home);
            assert!(
                is_subdomain(&name) && name.starts_with(MARK) && name.len() == 21,
                "{name}"
            );
        }
    }
}
