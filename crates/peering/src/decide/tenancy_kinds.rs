//! The kinds of objects that are cleared when a tenancy ends.
//!
//! A finalizer on one object keeps its namespace for ever, so the list contains every kind that the
//! consumer may write.

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::api::ApiResource;
use liqo_api::{
    NamespaceMap, NetworkConfig, ReflectedObject, ResourceOffer, ResourceRequest, ShadowPod,
};

/// Kinds to which the manager has rights in every namespace.
pub fn of_liqo() -> [ApiResource; 6] {
    [
        ApiResource::erase::<ResourceRequest>(&()),
        ApiResource::erase::<ResourceOffer>(&()),
        ApiResource::erase::<NamespaceMap>(&()),
        ApiResource::erase::<ShadowPod>(&()),
        ApiResource::erase::<ReflectedObject>(&()),
        ApiResource::erase::<NetworkConfig>(&()),
    ]
}

/// Kinds to which the manager has rights by its binding in the tenant namespace.
pub fn of_kubernetes() -> [ApiResource; 2] {
    [
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<Lease>(&()),
    ]
}

/// All kinds, in the order in which they are cleared.
pub fn all() -> impl Iterator<Item = ApiResource> {
    of_liqo().into_iter().chain(of_kubernetes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
    use liqo_api::roles;

    use super::*;

    const ROLES: &str = include_str!("../../../../deploy/liqo/rbac-bound.yaml");

    /// Group and plural of each kind of which the rules allow to write whole objects.
    fn written(rules: &[PolicyRule]) -> BTreeSet<(String, String)> {
        let writes = |rule: &&PolicyRule| {
            ["create", "update", "patch"]
                .iter()
                .any(|verb| rule.verbs.iter().any(|has| has == verb))
        };
        let kinds = rules.iter().filter(writes).flat_map(|rule| {
            let groups = rule.api_groups.iter().flatten();
            groups.flat_map(|group| {
                rule.resources
                    .iter()
                    .flatten()
                    .map(|kind| (group.clone(), kind.clone()))
            })
        });
        kinds.filter(|(_, kind)| !kind.contains('/')).collect()
    }

    #[test]
    fn every_kind_that_a_consumer_may_write_is_cleared_at_the_end() {
        let role = ROLES
            .split("\n---\n")
            .map(|document| serde_saphyr::from_str::<ClusterRole>(document).unwrap());
        let role = role
            .into_iter()
            .find(|role| role.metadata.name.as_deref() == Some(roles::TENANT))
            .unwrap();
        let written = written(&role.rules.unwrap());
        assert!(
            written.contains(&("net.liqo.io".to_owned(), "networkconfigs".to_owned())),
            "{written:?}"
        );
        let cleared: BTreeSet<_> = all().map(|kind| (kind.group, kind.plural)).collect();
        let missing: Vec<_> = written.difference(&cleared).collect();
        assert!(
            missing.is_empty(),
            "finalizers of these kinds would hold the namespace for ever: {missing:?}"
        );
    }
}
