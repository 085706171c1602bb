//! Chooses the next pods to evict when many leave for one cause: a spent budget with `MoveHome`, or
//! a notice of their provider. Only some pods of a controller leave at a time, so that a Service
//! continues even without a disruption budget.
//!
//! Their controllers create others, and the admission webhook keeps these away from where they must
//! not go.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::Key;

use crate::pod::running_pod::{RunningPod, TargetNode};

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextEviction {
    pub key: Key,
    pub uid: String,
    /// UID of its controller.
    pub controller: String,
    /// Name of its node.
    pub from: String,
    /// Whether a disruption budget selects it.
    pub has_budget: bool,
}

/// Maximum number of pods of a controller that may be missing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxMissingPods {
    One,
    /// A quarter of those on virtual nodes, at least one: as in a rollout of a Deployment that says
    /// nothing else.
    Quarter,
}

impl MaxMissingPods {
    fn limit_for(self, pods: usize) -> usize {
        match self {
            Self::One => 1,
            Self::Quarter => (pods / 4).max(1),
        }
    }
}

/// The places where other pods may run instead of those that leave.
pub struct ReplacementRoom<'a> {
    /// Whether pods of the namespace may run in this cluster.
    pub here: bool,
    pub nodes: Vec<TargetNode<'a>>,
}

impl ReplacementRoom<'_> {
    /// Takes room for a pod that replaces this one, beside it. Returns whether there is any.
    /// Whether a node of this cluster has room is up to the scheduler.
    pub fn take_room(&mut self, pod: &RunningPod) -> bool {
        if self.here && pod.may_run_at_home {
            return true;
        }
        self.nodes
            .iter_mut()
            .filter(|target| !pod.excluded.contains(&target.node.name))
            .any(|target| {
                let Some(free) = &mut target.free else {
                    return false;
                };
                let fits = pod.amounts.fits_in(free).is_ok()
                    && target.node.largest_pods.may_have_room(&pod.amounts).is_ok();
                if fits {
                    *free = free.saturating_sub(&pod.amounts);
                }
                fits
            })
    }
}

/// The pods of one namespace to evict now, at most `max` of those that leave. All `pods` count for
/// whether a controller's pods are Ready; those that are not leave first, because nobody misses
/// them. `leaves` is asked only about pods that may be evicted now. `allowed` and `unsettled` are
/// as in [`SavingFacts`](super::saving::SavingFacts).
pub fn next_evictions(
    pods: &[RunningPod],
    mut leaves: impl FnMut(&RunningPod) -> bool,
    allowed: &BTreeMap<Key, u32>,
    unsettled: &BTreeSet<String>,
    (at_once, max): (MaxMissingPods, usize),
) -> Vec<NextEviction> {
    let mut turns = EvictionLimits::new(pods, unsettled, allowed, at_once);
    let mut candidates: Vec<&RunningPod> = pods.iter().collect();
    candidates.sort_by_key(|pod| (pod.ready, &pod.key));
    let mut chosen = Vec::new();
    for pod in candidates {
        if chosen.len() >= max {
            break;
        }
        if !(turns.is_next(pod) && leaves(pod)) {
            continue;
        }
        let Some(controller) = turns.take_turn(pod) else {
            continue;
        };
        let has_budget = !pod.budgets.is_empty();
        chosen.push(NextEviction {
            key: pod.key.clone(),
            uid: pod.uid.clone(),
            controller,
            from: pod.node.clone(),
            has_budget,
        });
    }
    chosen
}

/// Limits the evictions in one round: to a number of pods of each controller, less those of its
/// pods that are not Ready, and to what the `PodDisruptionBudgets` allow.
pub(super) struct EvictionLimits<'a> {
    /// Number of pods of each controller that may go.
    left: BTreeMap<&'a String, usize>,
    allowed: BTreeMap<Key, u32>,
}

impl<'a> EvictionLimits<'a> {
    pub(super) fn new(
        pods: &'a [RunningPod],
        unsettled: &'a BTreeSet<String>,
        allowed: &BTreeMap<Key, u32>,
        at_once: MaxMissingPods,
    ) -> Self {
        let mut counts: BTreeMap<&String, (usize, usize)> = BTreeMap::new();
        for (controller, ready) in pods
            .iter()
            .filter_map(|pod| Some((pod.controller.as_ref()?, pod.ready)))
        {
            let (all, missing) = counts.entry(controller).or_default();
            *all += 1;
            *missing += usize::from(!ready);
        }
        counts.retain(|controller, _| !unsettled.contains(*controller));
        let left = counts.into_iter().map(|(controller, (all, missing))| {
            (controller, at_once.limit_for(all).saturating_sub(missing))
        });
        Self {
            left: left.collect(),
            allowed: allowed.clone(),
        }
    }

    /// Whether its controller creates it again, and can do without it now.
    pub(super) fn may_wait_for_another(&self, pod: &RunningPod) -> bool {
        let left = pod
            .controller
            .as_ref()
            .and_then(|controller| self.left.get(controller));
        left.is_some_and(|left| *left > 0 || !pod.ready)
    }

    /// The same, if its disruption budget allows it, too.
    pub(super) fn is_next(&self, pod: &RunningPod) -> bool {
        // The API server evicts no pod that several budgets select.
        let is_allowed = match pod.budgets.as_slice() {
            [] => true,
            [one] => self.allowed.get(one).is_some_and(|left| *left > 0),
            _ => false,
        };
        is_allowed && self.may_wait_for_another(pod)
    }

    /// The pod is evicted. Returns the UID of its controller; `None` if it must not be evicted now.
    pub(super) fn take_turn(&mut self, pod: &'a RunningPod) -> Option<String> {
        let controller = pod.controller.as_ref().filter(|_| self.is_next(pod))?;
        if let Some(left) = pod
            .budgets
            .first()
            .and_then(|budget| self.allowed.get_mut(budget))
        {
            *left -= 1;
        }
        if let Some(left) = self.left.get_mut(controller).filter(|_| pod.ready) {
            *left -= 1;
        }
        Some(controller.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::priced::PricedNode;

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
            ends_soon: false,
            budgets: Vec::new(),
        }
    }

    fn chosen(pods: &[RunningPod], allowed: &[(&str, u32)], max: usize) -> Vec<String> {
        let allowed = allowed
            .iter()
            .map(|(name, left)| (Key::new("demo", *name), *left))
            .collect();
        let leaves = |pod: &RunningPod| pod.may_run_at_home && pod.node == "milan";
        next_evictions(
            pods,
            leaves,
            &allowed,
            &BTreeSet::new(),
            (MaxMissingPods::One, max),
        )
        .into_iter()
        .map(|one| one.key.name)
        .collect()
    }

    #[test]
    fn pods_leave_one_of_each_controller_at_a_time() {
        let pods = [
            pod("a-1", "milan", "a"),
            pod("a-2", "milan", "a"),
            pod("b-1", "milan", "b"),
            pod("c-1", "turin", "c"),
        ];
        assert_eq!(chosen(&pods, &[], 9), ["a-1", "b-1"]);
        assert_eq!(chosen(&pods, &[], 1), ["a-1"]);
    }

    #[test]
    fn pods_stay_that_do_not_leave_or_must_not_be_missing() {
        let alone = RunningPod {
            controller: None,
            ..pod("alone", "milan", "")
        };
        let remote = RunningPod {
            may_run_at_home: false,
            ..pod("remote", "milan", "r")
        };
        let starting = RunningPod {
            ready: false,
            ..pod("b-2", "turin", "b")
        };
        let guarded = RunningPod {
            budgets: vec![Key::new("demo", "pdb")],
            ..pod("g-1", "milan", "g")
        };
        let pods = [alone, remote, starting, pod("b-1", "milan", "b"), guarded];
        assert_eq!(chosen(&pods, &[("pdb", 0)], 9), [] as [&str; 0]);
        assert_eq!(chosen(&pods, &[("pdb", 1)], 9), ["g-1"]);
    }

    #[test]
    fn what_is_not_ready_leaves_first_and_holds_up_nobody() {
        let broken = RunningPod {
            ready: false,
            ..pod("web-3", "milan", "web")
        };
        let pods = [
            pod("web-1", "milan", "web"),
            broken,
            pod("web-2", "milan", "web"),
        ];
        assert_eq!(chosen(&pods, &[], 9), ["web-3"]);
    }

    #[test]
    fn a_pod_leaves_only_if_another_one_finds_a_place() {
        let (milan, turin) = (node("milan"), node("turin"));
        let places = |here: bool, free: &str| ReplacementRoom {
            here,
            nodes: vec![
                TargetNode {
                    node: &milan,
                    free: None,
                },
                TargetNode {
                    node: &turin,
                    free: Some(cpu(free)),
                },
            ],
        };
        let leaving: Vec<RunningPod> = (0..3)
            .map(|n| RunningPod {
                amounts: cpu("1"),
                may_run_at_home: n == 0,
                ..pod(&n.to_string(), "milan", &n.to_string())
            })
            .collect();
        let leave = |mut places: ReplacementRoom| {
            leaving.iter().filter(|pod| places.take_room(pod)).count()
        };
        assert_eq!(leave(places(false, "0")), 0);
        assert_eq!(leave(places(true, "0")), 1, "at home");
        assert_eq!(leave(places(false, "2")), 2, "at turin");
        assert_eq!(leave(places(true, "2")), 3);
    }

    fn cpu(amount: &str) -> liqo_api::ResourceList {
        [("cpu", amount.parse().unwrap())].into_iter().collect()
    }

    fn node(name: &str) -> PricedNode {
        PricedNode::from_json(name, &serde_json::json!({}))
    }

    #[test]
    fn of_a_large_controller_a_quarter_leaves_at_a_time_less_by_what_is_not_ready() {
        let all = |missing: usize| -> Vec<RunningPod> {
            (0..8)
                .map(|n| RunningPod {
                    ready: n >= missing,
                    ..pod(&n.to_string(), "milan", "web")
                })
                .collect()
        };
        let leave = |pods: &[RunningPod], unsettled: &[&str]| {
            let unsettled = unsettled.iter().map(|&uid| uid.to_owned()).collect();
            next_evictions(
                pods,
                |pod| pod.ready,
                &BTreeMap::new(),
                &unsettled,
                (MaxMissingPods::Quarter, 9),
            )
            .len()
        };
        assert_eq!(
            [0, 1, 2, 3].map(|missing| leave(&all(missing), &[])),
            [2, 1, 0, 0]
        );
        assert_eq!(leave(&all(0), &["web"]), 0);
        assert_eq!(leave(&all(0)[..3], &[]), 1);
    }
}
