//! Which running pods to evict because a budget is spent whose `whenSpent` is `MoveHome`.
//!
//! Their controllers create others, and the admission webhook keeps these away from providers that the budget closes. Pods that may run
//! only at providers stay.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::Key;

use crate::pod::saving::{RunningPod, Turns};

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Homecoming {
    pub key: Key,
    pub uid: String,
    /// UID of its controller.
    pub controller: String,
    /// Name of its node.
    pub from: String,
}

/// The pods of one namespace to evict now, at most `max`. All `pods` count for whether a controller's pods are Ready; those on the nodes
/// `closed` come home. `allowed` and `unsettled` are as in [`Facts`](super::saving::Facts).
pub fn homecomings(
    pods: &[RunningPod],
    closed: &BTreeSet<String>,
    allowed: &BTreeMap<Key, u32>,
    unsettled: &BTreeSet<String>,
    max: usize,
) -> Vec<Homecoming> {
    let mut turns = Turns::new(pods, unsettled, allowed);
    let mut candidates: Vec<&RunningPod> = pods.iter().filter(|pod| pod.may_run_at_home && closed.contains(&pod.node)).collect();
    candidates.sort_by_key(|pod| &pod.key);
    let mut chosen = Vec::new();
    for pod in candidates {
        if chosen.len() >= max {
            break;
        }
        let Some(controller) = turns.take(pod) else { continue };
        chosen.push(Homecoming { key: pod.key.clone(), uid: pod.uid.clone(), controller, from: pod.node.clone() });
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, controller: &str) -> RunningPod {
        RunningPod {
            key: Key::new("demo", name),
            uid: name.to_owned(),
            node: node.to_owned(),
            labels: BTreeMap::new(),
            amounts: liqo_api::ResourceList::new(),
            controller: Some(controller.to_owned()),
            ready: true,
            excluded: BTreeSet::new(),
            may_run_at_home: true,
            budgets: Vec::new(),
        }
    }

    fn chosen(pods: &[RunningPod], allowed: &[(&str, u32)], max: usize) -> Vec<String> {
        let allowed = allowed.iter().map(|(name, left)| (Key::new("demo", *name), *left)).collect();
        let closed = BTreeSet::from(["milan".to_owned()]);
        homecomings(pods, &closed, &allowed, &BTreeSet::new(), max).into_iter().map(|one| one.key.name).collect()
    }

    #[test]
    fn pods_come_home_from_closed_nodes_one_of_each_controller_at_a_time() {
        let pods = [pod("a-1", "milan", "a"), pod("a-2", "milan", "a"), pod("b-1", "milan", "b"), pod("c-1", "turin", "c")];
        assert_eq!(chosen(&pods, &[], 9), ["a-1", "b-1"]);
        assert_eq!(chosen(&pods, &[], 1), ["a-1"]);
    }

    #[test]
    fn pods_stay_that_cannot_come_home_or_must_not_be_missing() {
        let alone = RunningPod { controller: None, ..pod("alone", "milan", "") };
        let remote = RunningPod { may_run_at_home: false, ..pod("remote", "milan", "r") };
        let starting = RunningPod { ready: false, ..pod("b-2", "turin", "b") };
        let guarded = RunningPod { budgets: vec![Key::new("demo", "pdb")], ..pod("g-1", "milan", "g") };
        let pods = [alone, remote, starting, pod("b-1", "milan", "b"), guarded];
        assert_eq!(chosen(&pods, &[("pdb", 0)], 9), [] as [&str; 0]);
        assert_eq!(chosen(&pods, &[("pdb", 1)], 9), ["g-1"]);
    }
}
