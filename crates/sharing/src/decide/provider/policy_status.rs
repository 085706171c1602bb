//! The status of each policy. It changes when offers change and when overuse begins or ends, but
//! not with each pod.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use liqo_api::conditions::{self, DesiredCondition};
use liqo_api::policies::{PolicyPeer, selects_peer};
use liqo_api::{
    ACTIVE, ActiveReason, ClusterId, HONOURED, HonouredReason, PeerSelector, PeeringPolicy,
    PeeringPolicyStatus, ResourceList, labels,
};

use super::allocations::{OverusedResource, PoolAllocation};
use crate::decide::snapshot::{PolicyStatusWrite, ProviderSnapshot, Requester};

/// Maximum number of peers that a message names.
const MAX_NAMED: usize = 3;

/// The statuses that differ from the existing ones.
pub fn policy_statuses(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    allocations: &[PoolAllocation],
) -> Vec<PolicyStatusWrite> {
    let consumers = snapshot.tenants().map(|(_, tenant)| &tenant.consumer);
    let mut applied: HashMap<&ClusterId, Option<&Arc<PeeringPolicy>>> = requesters
        .iter()
        .map(|requester| (&requester.tenant.consumer, requester.policy))
        .collect();
    for peer in snapshot.peers.keys().chain(consumers) {
        applied.entry(peer).or_insert_with(|| snapshot.policy(peer));
    }
    let mut peers: BTreeMap<&str, u32> = BTreeMap::new();
    for policy in applied.into_values().flatten() {
        *peers.entry(name(policy)).or_default() += 1;
    }
    let mut offered: BTreeMap<&str, ResourceList> = BTreeMap::new();
    for requester in requesters {
        let Some(policy) = requester.policy else {
            continue;
        };
        for offer in requester.offers.values() {
            *offered.entry(name(policy)).or_default() += &offer.spec.resource_quota.hard;
        }
    }
    let mut writes = Vec::new();
    for policy in snapshot
        .policies
        .iter()
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
    {
        let existing = policy.status.clone().unwrap_or_default();
        let peers = peers.get(name(policy)).copied().unwrap_or_default();
        let overused = allocations.iter().find(|allocation| {
            allocation.overuse.is_some()
                && requesters[allocation.requester]
                    .policy
                    .is_some_and(|applied| name(applied) == name(policy))
        });
        let wanted = [
            if peers == 0 {
                inactive_condition(snapshot, &policy.spec.peers)
            } else {
                active_condition()
            },
            overused.map_or_else(honoured_condition, |allocation| {
                not_honoured_condition(snapshot, requesters, allocation, &existing)
            }),
        ];
        let changed = conditions::updated_conditions_for(
            policy.metadata.generation,
            &existing.conditions,
            &wanted,
            snapshot.wall_time,
        );
        let status = PeeringPolicyStatus {
            peers,
            offered: offered.get(name(policy)).cloned().unwrap_or_default(),
            conditions: changed.unwrap_or(existing.conditions),
        };
        if policy.status.as_ref() != Some(&status) {
            writes.push(PolicyStatusWrite {
                name: name(policy).to_owned(),
                status,
            });
        }
    }
    writes
}

/// The name of the policy that a person wrote: one that replaces it has more behind a slash.
fn name(policy: &PeeringPolicy) -> &str {
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    name.split_once('/').map_or(name, |(name, _)| name)
}

fn active_condition() -> DesiredCondition {
    DesiredCondition::yes(
        ACTIVE,
        ActiveReason::HoldsForPeers,
        "the policy applies to peers; `liqoctl policy list` names them",
    )
}

fn inactive_condition(snapshot: &ProviderSnapshot, selector: &PeerSelector) -> DesiredCondition {
    let why = reason_without_peer(&known_peers(snapshot), selector);
    let message = format!("the policy applies to no peer: {why}");
    DesiredCondition::no(ACTIVE, ActiveReason::NoPeer, message)
}

/// The peers that policies can select, by name. A consumer without a `ForeignCluster` has its ID.
fn known_peers(snapshot: &ProviderSnapshot) -> BTreeMap<String, PolicyPeer> {
    let consumers = snapshot
        .tenants()
        .map(|(_, tenant)| PolicyPeer::new(&tenant.consumer, None))
        .filter(|consumer| !snapshot.peers.contains_key(&consumer.id));
    let peers = snapshot.peers.values().cloned().chain(consumers);
    peers
        .map(|peer| {
            (
                peer.name.clone().unwrap_or_else(|| peer.id.to_string()),
                peer,
            )
        })
        .collect()
}

/// Says why a policy with this selector applies to no peer, and which command helps.
fn reason_without_peer(peers: &BTreeMap<String, PolicyPeer>, selector: &PeerSelector) -> String {
    let Some(first) = peers.keys().next() else {
        return "this cluster has no peer yet".to_owned();
    };
    let selected: Vec<&str> = names_where(peers, |peer| selects_peer(selector, peer));
    if let Some(first) = selected.first() {
        return format!(
            "it selects {}, where another policy comes first, or the working mode of this cluster \
             decides; `liqoctl policy explain {first}` says which",
            first_names(&selected)
        );
    }
    let self_named = names_where(peers, |peer| {
        peer.was_made_by_liqo() && selects_peer(selector, &taken_over(peer))
    });
    if let Some(first) = self_named.first() {
        return format!(
            "`peers.names` does not select a peer that chose its name itself, as {} did; compare \
             its clusterID, then write that into `peers.clusterIDs`, or run `kubectl label \
             foreigncluster {first} {}-`",
            first_names(&self_named),
            labels::MANAGED
        );
    }
    let all: Vec<&str> = peers.keys().map(String::as_str).collect();
    format!(
        "`peers` selects none of {}; `liqoctl policy explain {first}` says what does not fit",
        first_names(&all)
    )
}

/// The peer as it would be if a person took over its `ForeignCluster`.
fn taken_over(peer: &PolicyPeer) -> PolicyPeer {
    let mut peer = peer.clone();
    peer.labels.remove(labels::MANAGED);
    peer
}

fn names_where(
    peers: &BTreeMap<String, PolicyPeer>,
    is_wanted: impl Fn(&PolicyPeer) -> bool,
) -> Vec<&str> {
    let wanted = peers.iter().filter(|(_, peer)| is_wanted(peer));
    wanted.map(|(name, _)| name.as_str()).collect()
}

/// The first names, and how many more there are.
fn first_names(names: &[&str]) -> String {
    let shown = names.len().min(MAX_NAMED);
    let text = names[..shown].join(", ");
    match names.len() - shown {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn honoured_condition() -> DesiredCondition {
    DesiredCondition::yes(
        HONOURED,
        HonouredReason::InBounds,
        "no peer uses more than the policy can promise",
    )
}

/// The message contains the amounts at the beginning. Later amounts would change it with each pod.
fn not_honoured_condition(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    allocation: &PoolAllocation,
    existing: &PeeringPolicyStatus,
) -> DesiredCondition {
    let (Some(overuse), Some(at)) = (&allocation.overuse, allocation.reclaim_at) else {
        return honoured_condition();
    };
    let consumer = &requesters[allocation.requester].tenant.consumer;
    let peer = snapshot
        .peers
        .get(consumer)
        .and_then(|peer| peer.name.as_deref())
        .unwrap_or(consumer.as_str());
    let OverusedResource {
        name: resource,
        used,
        allowed,
    } = overuse;
    let what = format!("peer {peer}, pool {}, {resource}: ", allocation.pool);
    let (reason, then) = if at > snapshot.wall_time {
        (
            HonouredReason::Overused,
            format!("pods beyond that end from {at:.0} on"),
        )
    } else {
        (
            HonouredReason::Reclaiming,
            "pods beyond that are ending".to_owned(),
        )
    };
    let reported = existing
        .conditions
        .iter()
        .find(|condition| condition.type_ == HONOURED && condition.reason == reason.as_str());
    let message = match reported.filter(|reported| reported.message.starts_with(&what)) {
        Some(reported) => reported.message.clone(),
        None => format!("{what}{used} used, {allowed} can be promised; {then}"),
    };
    DesiredCondition::no(HONOURED, reason, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::tests::{ROME, TURIN, milan, write},
        *,
    };
    use crate::tests::{cluster, list};

    impl ProviderSnapshot {
        /// The snapshot after all writes, including the statuses of policies.
        fn settled_with_statuses(self) -> Self {
            let plan = self.plan();
            let mut after = self.after(plan.clone());
            for write in plan.policy_statuses {
                let policy = after
                    .policies
                    .iter_mut()
                    .find(|policy| name(policy) == write.name)
                    .unwrap();
                Arc::make_mut(policy).status = Some(write.status);
            }
            after
        }

        fn status(&self, policy: &str) -> PeeringPolicyStatus {
            self.policies
                .iter()
                .find(|one| name(one) == policy)
                .unwrap()
                .status
                .clone()
                .unwrap()
        }

        /// Status and reason of a condition, and its message.
        fn condition(&self, policy: &str, kind: &str) -> (String, String) {
            let found = self
                .status(policy)
                .conditions
                .into_iter()
                .find(|one| one.type_ == kind)
                .unwrap();
            (format!("{} {}", found.status, found.reason), found.message)
        }
    }

    #[test]
    fn a_policy_shows_how_many_peers_it_applies_to_and_what_it_offers_them() {
        let rome =
            json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": { "percentage": 40 } });
        let nobody = json!({ "peers": { "names": ["nobody"] } });
        let policies = [
            ("default", 0, json!({ "provide": { "percentage": 20 } })),
            ("rome", 1, rome),
            ("idle", 2, nobody),
        ];
        let snapshot = milan()
            .asks(ROME, "")
            .asks(TURIN, "")
            .tenant(7)
            .under(&policies)
            .settled_with_statuses()
            .settled_with_statuses();
        assert_eq!(
            (
                snapshot.status("rome").peers,
                snapshot.status("rome").offered
            ),
            (1, list("cpu=4, pods=4"))
        );
        assert_eq!(
            (
                snapshot.status("default").peers,
                snapshot.status("default").offered
            ),
            (2, list("cpu=2, pods=2"))
        );
        assert_eq!(snapshot.condition("idle", ACTIVE).0, "False NoPeer");
        for policy in ["default", "rome"] {
            assert_eq!(snapshot.condition(policy, ACTIVE).0, "True HoldsForPeers");
            assert_eq!(snapshot.condition(policy, HONOURED).0, "True InBounds");
        }
        assert_eq!(
            snapshot.plan().policy_statuses,
            [],
            "an unchanged status is written again"
        );
    }

    /// The `ForeignCluster` of a peer, with the one label if it has any.
    type NamedPeer = (u8, &'static str, Option<(&'static str, &'static str)>);

    /// The message of condition `Active` of a policy for these peers.
    fn inactive_message(selector: &Value, peers: &[NamedPeer]) -> String {
        let mut snapshot = milan().under(&[("idle", 1, json!({ "peers": selector }))]);
        for (seed, name, label) in peers {
            let mut peer = PolicyPeer::new(&cluster(*seed), None);
            peer.name = Some((*name).to_owned());
            let label = label.map(|(key, value)| (key.to_owned(), value.to_owned()));
            peer.labels.extend(label);
            snapshot.peers.insert(peer.id.clone(), peer);
        }
        let settled = snapshot.settled_with_statuses();
        assert_eq!(settled.plan().policy_statuses, [], "it is written again");
        let (reason, message) = settled.condition("idle", ACTIVE);
        assert_eq!(reason, "False NoPeer");
        message
    }

    #[test]
    fn a_policy_that_applies_to_nobody_says_why_and_what_helps() {
        let named = json!({ "names": ["rome"] });
        let labelled = json!({ "selector": { "matchLabels": { "tier": "partner" } } });
        let rome = (ROME, "rome", Some(("liqo.io/managed", "true")));
        let four = [
            (TURIN, "turin", None),
            (7, "oslo", None),
            (8, "paris", None),
            (9, "zurich", None),
        ];
        let cases = [
            (&named, &[][..], "this cluster has no peer yet"),
            (
                &named,
                &four,
                "`peers` selects none of oslo, paris, turin and 1 more; `liqoctl policy explain oslo`",
            ),
            (
                &named,
                &[rome],
                "or run `kubectl label foreigncluster rome liqo.io/managed-`",
            ),
            // To take rome over would not help here.
            (
                &labelled,
                &[rome],
                "`peers` selects none of rome; `liqoctl policy explain rome`",
            ),
        ];
        for (selector, peers, expected) in cases {
            let message = inactive_message(selector, peers);
            assert!(
                message.starts_with("the policy applies to no peer: ")
                    && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn a_policy_that_always_comes_second_names_the_peers_that_it_selects() {
        let policies = [("first", 2, json!({})), ("second", 1, json!({}))];
        let settled = milan()
            .asks(ROME, "")
            .under(&policies)
            .settled_with_statuses();
        let (_, message) = settled.condition("second", ACTIVE);
        let rome = cluster(ROME);
        let expected = format!("it selects {rome}, where another policy comes first");
        assert!(message.contains(&expected), "{message}");
    }

    #[test]
    fn a_single_pod_changes_no_status() {
        let snapshot = milan()
            .asks(ROME, "")
            .settled_with_statuses()
            .settled_with_statuses();
        assert_eq!(
            snapshot
                .clone()
                .pod("mapped-1", Some(ROME), "cpu=1, pods=1")
                .plan()
                .policy_statuses,
            []
        );
        assert_eq!(
            snapshot
                .pod("default", None, "cpu=100m")
                .plan()
                .policy_statuses,
            [],
            "the offer does not change for it"
        );
    }

    #[test]
    fn overuse_is_reported_when_it_begins_and_when_the_reclaim_begins() {
        let capped = [(
            "default",
            0,
            json!({ "provide": { "percentage": 100, "caps": { "cpu": "2" }, "noticeSeconds": 60 } }),
        )];
        let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod(
            "mapped-1",
            Some(ROME),
            "cpu=8, pods=8",
        );
        let snapshot = used.under(&capped).at(1000).settled_with_statuses();
        let (reason, message) = snapshot.condition("default", HONOURED);
        let id = cluster(ROME);
        let expected = format!(
            "peer {id}, pool default, cpu: 8 used, 2 can be promised; pods beyond that end from 1970-01-01T00:17:40Z on"
        );
        assert_eq!(
            (reason.as_str(), message),
            ("False Overused", expected.clone())
        );
        // A pod ends in the meantime, and the message stays.
        let fewer = ProviderSnapshot {
            pods: Arc::default(),
            ..snapshot.clone()
        };
        assert_eq!(
            fewer
                .pod("mapped-1", Some(ROME), "cpu=7, pods=7")
                .settled_with_statuses()
                .condition("default", HONOURED)
                .1,
            expected
        );
        let snapshot = snapshot.at(1060).settled_with_statuses();
        assert_eq!(
            snapshot.condition("default", HONOURED).0,
            "False Reclaiming"
        );
        assert_eq!(
            snapshot.writes(),
            [write(ROME, "cpu=2, pods=10")][..0],
            "and the offer is cut"
        );
        let snapshot = ProviderSnapshot {
            pods: Arc::default(),
            ..snapshot
        }
        .settled_with_statuses();
        assert_eq!(snapshot.condition("default", HONOURED).0, "True InBounds");
    }

    #[test]
    fn the_status_of_a_policy_that_is_being_deleted_is_not_written() {
        let mut snapshot = milan().asks(ROME, "");
        Arc::make_mut(&mut snapshot.policies[0])
            .metadata
            .deletion_timestamp = Some(liqo_api::Time(snapshot.wall_time));
        assert_eq!(snapshot.plan().policy_statuses, []);
    }
}
