//! The status of each policy. It changes when offers change and when overuse begins or ends, but
//! not with each pod.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use liqo_api::conditions::{self, DesiredCondition};
use liqo_api::{
    ACTIVE, ActiveReason, ClusterId, HONOURED, HonouredReason, PeeringPolicy, PeeringPolicyStatus,
    ResourceList,
};

use super::allocations::{OverusedResource, PoolAllocation};
use crate::decide::snapshot::{PolicyStatusWrite, ProviderSnapshot, Requester};

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
            active_condition(peers),
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

fn active_condition(peers: u32) -> DesiredCondition {
    if peers == 0 {
        let message = "the policy applies to no known peer: it selects none, or policies with a higher priority select the same ones";
        return DesiredCondition::no(ACTIVE, ActiveReason::NoPeer, message);
    }
    DesiredCondition::yes(
        ACTIVE,
        ActiveReason::HoldsForPeers,
        "the policy applies to peers; `liqoctl policy list` names them",
    )
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
    use serde_json::json;

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
