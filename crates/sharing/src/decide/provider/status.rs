//! What the status of each policy says. It changes when offers do, and when something begins or ends; not with each pod.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use liqo_api::{ACTIVE, ClusterId, HONOURED, PeeringPolicy, PeeringPolicyStatus, ResourceList};
use liqo_kit::conditions::{self, Wanted};

use super::units::Unit;
use crate::decide::picture::{Asking, Picture, PolicyWrite};

/// The policies of which the status is to be written.
pub fn policies(picture: &Picture, asking: &[Asking], units: &[Unit]) -> Vec<PolicyWrite> {
    let consumers = picture.tenants().map(|(_, tenant)| &tenant.consumer);
    let mut held: HashMap<&ClusterId, Option<&Arc<PeeringPolicy>>> =
        asking.iter().map(|one| (&one.tenant.consumer, one.policy)).collect();
    for peer in picture.peers.keys().chain(consumers) {
        held.entry(peer).or_insert_with(|| picture.policy(peer));
    }
    let mut peers: BTreeMap<&str, u32> = BTreeMap::new();
    for policy in held.into_values().flatten() {
        *peers.entry(name(policy)).or_default() += 1;
    }
    let mut offered: BTreeMap<&str, ResourceList> = BTreeMap::new();
    for one in asking {
        let Some(policy) = one.policy else { continue };
        for offer in one.offers.values() {
            *offered.entry(name(policy)).or_default() += &offer.spec.resource_quota.hard;
        }
    }
    let write = |policy: &Arc<PeeringPolicy>| {
        let standing = policy.status.clone().unwrap_or_default();
        let peers = peers.get(name(policy)).copied().unwrap_or_default();
        let overused = units
            .iter()
            .find(|unit| unit.beyond.is_some() && asking[unit.asking].policy.is_some_and(|held| name(held) == name(policy)));
        let wanted = [active(peers), overused.map_or_else(honoured, |unit| not_honoured(picture, asking, unit, &standing))];
        let changed = conditions::decide_for(policy.metadata.generation, &standing.conditions, &wanted, picture.today);
        let status = PeeringPolicyStatus {
            peers,
            offered: offered.get(name(policy)).cloned().unwrap_or_default(),
            conditions: changed.unwrap_or(standing.conditions),
        };
        (policy.status.as_ref() != Some(&status)).then(|| PolicyWrite { name: name(policy).to_owned(), status })
    };
    picture.policies.iter().filter(|policy| policy.metadata.deletion_timestamp.is_none()).filter_map(write).collect()
}

fn name(policy: &PeeringPolicy) -> &str {
    policy.metadata.name.as_deref().unwrap_or_default()
}

fn active(peers: u32) -> Wanted {
    if peers == 0 {
        let message = "it holds for no known peer: it selects none, or policies of a higher priority select them, too";
        return Wanted::no(ACTIVE, "NoPeer", message);
    }
    Wanted::yes(ACTIVE, "HoldsForPeers", "it holds for the peers that it selects; `liqoctl policy list` names them")
}

fn honoured() -> Wanted {
    Wanted::yes(HONOURED, "InBounds", "nobody uses more than can be promised")
}

/// The message names what is short when it begins; how much is used after that is not told, because it changes with each pod.
fn not_honoured(picture: &Picture, asking: &[Asking], unit: &Unit, standing: &PeeringPolicyStatus) -> Wanted {
    let (Some((resource, used, due)), Some(at)) = (&unit.beyond, unit.reclaim) else { return honoured() };
    let consumer = &asking[unit.asking].tenant.consumer;
    let peer = picture.peers.get(consumer).and_then(|peer| peer.name.as_deref()).unwrap_or(consumer.as_str());
    let what = format!("peer {peer}, pool {}, {resource}: ", unit.pool);
    let (reason, then) = if at > picture.today {
        ("Overused", format!("pods beyond that are ended from {at:.0} on"))
    } else {
        ("Reclaiming", "pods beyond that are being ended".to_owned())
    };
    let told = standing.conditions.iter().find(|condition| condition.type_ == HONOURED && condition.reason == reason);
    let message = match told.filter(|told| told.message.starts_with(&what)) {
        Some(told) => told.message.clone(),
        None => format!("{what}{used} used, {due} can be promised; {then}"),
    };
    Wanted::no(HONOURED, reason, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::tests::{ROME, TURIN, milan, write},
        *,
    };
    use crate::tests::{cluster, list};

    impl Picture {
        /// The picture after everything was done, the status of policies included.
        fn told(self) -> Self {
            let plan = self.plan();
            let mut after = self.after(plan.clone());
            for write in plan.policies {
                let policy = after.policies.iter_mut().find(|policy| name(policy) == write.name).unwrap();
                Arc::make_mut(policy).status = Some(write.status);
            }
            after
        }

        fn status(&self, policy: &str) -> PeeringPolicyStatus {
            self.policies.iter().find(|one| name(one) == policy).unwrap().status.clone().unwrap()
        }

        /// Status and reason of a condition, and its message.
        fn says(&self, policy: &str, kind: &str) -> (String, String) {
            let found = self.status(policy).conditions.into_iter().find(|one| one.type_ == kind).unwrap();
            (format!("{} {}", found.status, found.reason), found.message)
        }
    }

    #[test]
    fn a_policy_says_for_how_many_it_holds_and_what_they_are_offered() {
        let rome = json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": { "percentage": 40 } });
        let nobody = json!({ "peers": { "names": ["nobody"] } });
        let policies = [("default", 0, json!({ "provide": { "percentage": 20 } })), ("rome", 1, rome), ("idle", 2, nobody)];
        let picture = milan().asks(ROME, "").asks(TURIN, "").tenant(7).under(&policies).told().told();
        assert_eq!((picture.status("rome").peers, picture.status("rome").offered), (1, list("cpu=4, pods=4")));
        assert_eq!((picture.status("default").peers, picture.status("default").offered), (2, list("cpu=2, pods=2")));
        assert_eq!(picture.says("idle", ACTIVE).0, "False NoPeer");
        for policy in ["default", "rome"] {
            assert_eq!(picture.says(policy, ACTIVE).0, "True HoldsForPeers");
            assert_eq!(picture.says(policy, HONOURED).0, "True InBounds");
        }
        assert_eq!(picture.plan().policies, [], "what stands is written again");
    }

    #[test]
    fn a_pod_more_or_less_writes_no_status() {
        let picture = milan().asks(ROME, "").told().told();
        assert_eq!(picture.clone().pod("mapped-1", Some(ROME), "cpu=1, pods=1").plan().policies, []);
        assert_eq!(picture.pod("default", None, "cpu=100m").plan().policies, [], "the offer did not change for it");
    }

    #[test]
    fn what_is_used_beyond_what_can_be_promised_is_told_when_it_begins_and_when_it_is_taken_back() {
        let capped = [("default", 0, json!({ "provide": { "percentage": 100, "caps": { "cpu": "2" }, "noticeSeconds": 60 } }))];
        let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=8, pods=8");
        let picture = used.under(&capped).at(1000).told();
        let (reason, message) = picture.says("default", HONOURED);
        let id = cluster(ROME);
        let expected = format!(
            "peer {id}, pool default, cpu: 8 used, 2 can be promised; pods beyond that are ended from 1970-01-01T00:17:40Z on"
        );
        assert_eq!((reason.as_str(), message), ("False Overused", expected.clone()));
        // Meanwhile one ends: that is no news.
        let fewer = Picture { pods: Arc::default(), ..picture.clone() };
        assert_eq!(fewer.pod("mapped-1", Some(ROME), "cpu=7, pods=7").told().says("default", HONOURED).1, expected);
        let picture = picture.at(1060).told();
        assert_eq!(picture.says("default", HONOURED).0, "False Reclaiming");
        assert_eq!(picture.writes(), [write(ROME, "cpu=2, pods=10")][..0], "and the offer is cut");
        let picture = Picture { pods: Arc::default(), ..picture }.told();
        assert_eq!(picture.says("default", HONOURED).0, "True InBounds");
    }

    #[test]
    fn a_policy_that_is_being_deleted_is_left_alone() {
        let mut picture = milan().asks(ROME, "");
        Arc::make_mut(&mut picture.policies[0]).metadata.deletion_timestamp = Some(liqo_api::Time(picture.today));
        assert_eq!(picture.plan().policies, []);
    }
}
