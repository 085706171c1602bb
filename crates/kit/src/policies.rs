//! Which `PeeringPolicy` holds for a peer.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use crate::Cache;
use kube::core::{Selector, SelectorExt as _};
use liqo_api::{ClusterId, Discovery, ForeignCluster, PeerSelector, PeeringPolicy, labels};

/// A peer, as policies see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPeer {
    /// Its identity.
    pub id: ClusterId,
    /// Name of its `ForeignCluster`, if there is one.
    pub name: Option<String>,
    /// Labels of its `ForeignCluster`.
    pub labels: BTreeMap<String, String>,
}

impl PolicyPeer {
    /// The peer that `foreign_cluster` stands for, if it is known.
    pub fn new(id: &ClusterId, foreign_cluster: Option<&ForeignCluster>) -> Self {
        let meta = foreign_cluster.map(|cluster| &cluster.metadata);
        Self {
            id: id.clone(),
            name: meta.and_then(|meta| meta.name.clone()),
            labels: meta.and_then(|meta| meta.labels.clone()).unwrap_or_default(),
        }
    }

    /// Whether its `ForeignCluster` was made by Liqo when the peer came, and by nobody here.
    pub fn was_made_by_liqo(&self) -> bool {
        self.labels.get(labels::MANAGED).is_some_and(|value| value == "true")
    }

    fn discovered_by(&self) -> Discovery {
        match self.labels.get(labels::DISCOVERED_BY).map(String::as_str) {
            Some("LAN") => Discovery::LAN,
            Some("DNS") => Discovery::DNS,
            _ => Discovery::Manual,
        }
    }
}

/// The policies that select the peer, the one that holds first. One that is being deleted selects nobody.
pub fn of_peer<'a>(policies: impl IntoIterator<Item = &'a Arc<PeeringPolicy>>, peer: &PolicyPeer) -> Vec<&'a Arc<PeeringPolicy>> {
    let stands = |policy: &&Arc<PeeringPolicy>| policy.metadata.deletion_timestamp.is_none();
    let mut found: Vec<_> = policies.into_iter().filter(stands).filter(|policy| selects(&policy.spec.peers, peer)).collect();
    found.sort_by_key(|policy| (Reverse(policy.spec.priority), policy.metadata.name.as_deref().unwrap_or_default()));
    found
}

/// The policy that holds for the peer.
pub fn held(policies: &Cache<PeeringPolicy>, peer: &PolicyPeer) -> Option<Arc<PeeringPolicy>> {
    let all: Vec<_> = policies.all().into_iter().map(|(_, policy)| policy).collect();
    of_peer(&all, peer).first().map(|policy| Arc::clone(policy))
}

/// A policy without its status, which says nothing of what it wants.
pub fn without_status(mut policy: PeeringPolicy) -> Option<PeeringPolicy> {
    policy.status = None;
    policy.metadata.managed_fields = None;
    policy.metadata.resource_version = None;
    Some(policy)
}

/// Whether a peer fits every field that is given. A label selector that cannot be understood selects nobody.
pub fn selects(selector: &PeerSelector, peer: &PolicyPeer) -> bool {
    let PeerSelector { cluster_ids, names, selector, discovered_by } = selector;
    let by_labels =
        selector.clone().is_none_or(|selector| Selector::try_from(selector).is_ok_and(|selector| selector.matches(&peer.labels)));
    // A record that Liqo made for a consumer is called what the consumer calls itself: that must not choose its policy.
    let name = peer.name.as_ref().filter(|_| !peer.was_made_by_liqo());
    (cluster_ids.is_empty() || cluster_ids.contains(&peer.id))
        && (names.is_empty() || name.is_some_and(|name| names.contains(name)))
        && by_labels
        && (discovered_by.is_empty() || discovered_by.contains(&peer.discovered_by()))
}

#[cfg(test)]
mod tests {
    use liqo_api::PeeringPolicySpec;
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, priority: i32, peers: Value) -> Arc<PeeringPolicy> {
        let spec = PeeringPolicySpec { priority, peers: serde_json::from_value(peers).unwrap(), ..PeeringPolicySpec::default() };
        Arc::new(PeeringPolicy::new(name, spec))
    }

    fn rome() -> PolicyPeer {
        let labels = [("tier".to_owned(), "partner".to_owned())].into();
        PolicyPeer { id: ClusterId::of_public_key(&[1; 32]), name: Some("rome".into()), labels }
    }

    fn names(policies: &[Arc<PeeringPolicy>], peer: &PolicyPeer) -> Vec<String> {
        of_peer(policies, peer).iter().filter_map(|policy| policy.metadata.name.clone()).collect()
    }

    #[test]
    fn the_highest_priority_that_selects_the_peer_holds() {
        let policies = [
            policy("default", 0, json!({})),
            policy("partners", 10, json!({ "selector": { "matchLabels": { "tier": "partner" } } })),
            policy("others", 20, json!({ "names": ["turin"] })),
            policy("all", 0, json!({})),
        ];
        assert_eq!(names(&policies, &rome()), ["partners", "all", "default"]);
        assert_eq!(names(&policies, &PolicyPeer { name: None, labels: BTreeMap::new(), ..rome() }), ["all", "default"]);
    }

    #[test]
    fn a_consumer_does_not_choose_its_policy_by_its_name() {
        let named = [policy("partners", 10, json!({ "names": ["rome"] }))];
        let mut came_by_itself = rome();
        assert_eq!(names(&named, &came_by_itself), ["partners"]);
        came_by_itself.labels.insert(labels::MANAGED.into(), "true".into());
        assert!(names(&named, &came_by_itself).is_empty());
    }

    #[test]
    fn a_peer_fits_only_when_every_field_does() {
        let fits = |peers: Value| selects(&serde_json::from_value(peers).unwrap(), &rome());
        let id = rome().id;
        assert!(fits(json!({ "clusterIDs": [id], "names": ["milan", "rome"], "discoveredBy": ["Manual"] })));
        assert!(!fits(json!({ "clusterIDs": [id], "names": ["milan"] })));
        assert!(!fits(json!({ "clusterIDs": [ClusterId::of_public_key(&[2; 32])] })));
        assert!(!fits(json!({ "discoveredBy": ["LAN", "DNS"] })));
        assert!(fits(
            json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["partner", "own"] }] } })
        ));
        assert!(!fits(json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] } })));
        assert!(!fits(json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "Resembles" }] } })));
    }

    #[test]
    fn a_policy_that_is_being_deleted_selects_nobody() {
        let mut leaving = PeeringPolicy::new("default", PeeringPolicySpec::default());
        leaving.metadata.deletion_timestamp = Some(liqo_api::Time(jiff::Timestamp::UNIX_EPOCH));
        assert!(of_peer(&[Arc::new(leaving)], &rome()).is_empty());
    }

    #[test]
    fn how_a_peer_was_found_stands_on_its_foreign_cluster() {
        let mut found = rome();
        found.labels.insert(labels::DISCOVERED_BY.into(), "LAN".into());
        assert!(selects(&serde_json::from_value(json!({ "discoveredBy": ["LAN"] })).unwrap(), &found));
    }
}
