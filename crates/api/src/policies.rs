//! Selects the `PeeringPolicy` that applies to a peer.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use crate::{
    ClusterId, Discovery, ForeignCluster, PeerSelector, PeeringPolicy, labels,
    selectors::label_selector,
};
use kube::core::SelectorExt as _;

/// A peer, with the facts by which policies select it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPeer {
    /// ID of the cluster.
    pub id: ClusterId,
    /// Name of its `ForeignCluster`, if there is one.
    pub name: Option<String>,
    /// Labels of its `ForeignCluster`.
    pub labels: BTreeMap<String, String>,
}

impl PolicyPeer {
    /// A peer with this ID, and its `ForeignCluster` if it has one.
    pub fn new(id: &ClusterId, foreign_cluster: Option<&ForeignCluster>) -> Self {
        let meta = foreign_cluster.map(|cluster| &cluster.metadata);
        Self {
            id: id.clone(),
            name: meta.and_then(|meta| meta.name.clone()),
            labels: meta
                .and_then(|meta| meta.labels.clone())
                .unwrap_or_default(),
        }
    }

    /// Whether Liqo created its `ForeignCluster` when the peer came, and no user did.
    pub fn was_made_by_liqo(&self) -> bool {
        self.labels
            .get(labels::MANAGED)
            .is_some_and(|value| value == "true")
    }

    fn discovered_by(&self) -> Discovery {
        self.labels
            .get(labels::DISCOVERED_BY)
            .and_then(|way| Discovery::of_label(way))
            .unwrap_or_default()
    }
}

/// The policies that select the peer, beginning with the one that applies. A policy that is being
/// deleted selects no peer.
pub fn policies_of_peer<'a>(
    policies: impl IntoIterator<Item = &'a Arc<PeeringPolicy>>,
    peer: &PolicyPeer,
) -> Vec<&'a Arc<PeeringPolicy>> {
    let mut found: Vec<_> = policies
        .into_iter()
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
        .filter(|policy| selects_peer(&policy.spec.peers, peer))
        .collect();
    found.sort_by_key(|policy| {
        (
            Reverse(policy.spec.priority),
            policy.metadata.name.as_deref().unwrap_or_default(),
        )
    });
    found
}

/// A policy without its status and other fields that do not affect decisions.
pub fn without_status(mut policy: PeeringPolicy) -> Option<PeeringPolicy> {
    policy.status = None;
    policy.metadata.managed_fields = None;
    policy.metadata.resource_version = None;
    Some(policy)
}

/// Whether a peer matches every field that is set. An invalid label selector selects no peer.
pub fn selects_peer(selector: &PeerSelector, peer: &PolicyPeer) -> bool {
    let PeerSelector {
        cluster_ids,
        names,
        selector,
        discovered_by,
    } = selector;
    let by_labels = selector.as_ref().is_none_or(|selector| {
        label_selector(selector).is_some_and(|selector| selector.matches(&peer.labels))
    });
    // A consumer chooses the name of the object that Liqo creates for it. It must not choose its
    // policy with that.
    let name = peer.name.as_ref().filter(|_| !peer.was_made_by_liqo());
    (cluster_ids.is_empty() || cluster_ids.contains(&peer.id))
        && (names.is_empty() || name.is_some_and(|name| names.contains(name)))
        && by_labels
        && (discovered_by.is_empty() || discovered_by.contains(&peer.discovered_by()))
}

#[cfg(test)]
mod tests {
    use crate::PeeringPolicySpec;
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, priority: i32, peers: Value) -> Arc<PeeringPolicy> {
        let spec = PeeringPolicySpec {
            priority,
            peers: serde_json::from_value(peers).unwrap(),
            ..PeeringPolicySpec::default()
        };
        Arc::new(PeeringPolicy::new(name, spec))
    }

    fn rome() -> PolicyPeer {
        let labels = [("tier".to_owned(), "partner".to_owned())].into();
        PolicyPeer {
            id: ClusterId::of_public_key(&[1; 32]),
            name: Some("rome".into()),
            labels,
        }
    }

    fn names(policies: &[Arc<PeeringPolicy>], peer: &PolicyPeer) -> Vec<String> {
        policies_of_peer(policies, peer)
            .iter()
            .filter_map(|policy| policy.metadata.name.clone())
            .collect()
    }

    #[test]
    fn the_policy_with_the_highest_priority_applies() {
        let policies = [
            policy("default", 0, json!({})),
            policy(
                "partners",
                10,
                json!({ "selector": { "matchLabels": { "tier": "partner" } } }),
            ),
            policy("others", 20, json!({ "names": ["turin"] })),
            policy("all", 0, json!({})),
        ];
        assert_eq!(names(&policies, &rome()), ["partners", "all", "default"]);
        assert_eq!(
            names(
                &policies,
                &PolicyPeer {
                    name: None,
                    labels: BTreeMap::new(),
                    ..rome()
                }
            ),
            ["all", "default"]
        );
    }

    #[test]
    fn a_consumer_does_not_choose_its_policy_by_its_name() {
        let named = [policy("partners", 10, json!({ "names": ["rome"] }))];
        let mut came_by_itself = rome();
        assert_eq!(names(&named, &came_by_itself), ["partners"]);
        came_by_itself
            .labels
            .insert(labels::MANAGED.into(), "true".into());
        assert!(names(&named, &came_by_itself).is_empty());
    }

    #[test]
    fn a_peer_must_match_every_field() {
        let fits = |peers: Value| selects_peer(&serde_json::from_value(peers).unwrap(), &rome());
        let id = rome().id;
        assert!(fits(
            json!({ "clusterIDs": [id], "names": ["milan", "rome"], "discoveredBy": ["Manual"] })
        ));
        assert!(!fits(json!({ "clusterIDs": [id], "names": ["milan"] })));
        assert!(!fits(
            json!({ "clusterIDs": [ClusterId::of_public_key(&[2; 32])] })
        ));
        assert!(!fits(json!({ "discoveredBy": ["LAN", "DNS"] })));
        assert!(fits(
            json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["partner", "own"] }] } })
        ));
        assert!(!fits(
            json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] } })
        ));
        assert!(!fits(
            json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "Resembles" }] } })
        ));
    }

    #[test]
    fn a_policy_that_is_being_deleted_selects_no_peer() {
        let mut leaving = PeeringPolicy::new("default", PeeringPolicySpec::default());
        leaving.metadata.deletion_timestamp = Some(crate::Time(jiff::Timestamp::UNIX_EPOCH));
        assert!(policies_of_peer(&[Arc::new(leaving)], &rome()).is_empty());
    }

    #[test]
    fn a_label_says_how_a_peer_was_found() {
        let mut found = rome();
        found
            .labels
            .insert(labels::DISCOVERED_BY.into(), "LAN".into());
        assert!(selects_peer(
            &serde_json::from_value(json!({ "discoveredBy": ["LAN"] })).unwrap(),
            &found
        ));
    }
}
