//! Decides which running pods to evict because another node would cost less: the largest saving
//! first.
//!
//! Kubernetes cannot move a pod, so it is evicted, and its controller creates another one, which
//! prefers the cheaper node ([`preference`](super::preference)). Whether the new pod gets there is
//! up to the scheduler. So only pods with a clear saving move, only a few at a time, and only to
//! where there is room for them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{Key, Money, NamespaceOffloading, PlacementStrategy, PodOffloadingStrategy, pods};
use serde_json::Value;

use crate::node::priced::{HourlyCost, PricedNode, costs_by_node};
use crate::pod::running_pod::{RunningPod, TargetNode};
use crate::pod::turns::{EvictionLimits, MaxMissingPods};
use crate::views::{NodeObjectView, TaintView};

/// A pod moves only if another node costs at least this much less, in per cent of what it costs
/// now. Small changes of prices, and two providers that undercut each other, move nothing.
pub const MIN_SAVING_PERCENT: u32 = 10;

/// Whether running pods of this namespace may be evicted to save money.
pub fn moves_pods(offloading: &NamespaceOffloading) -> bool {
    offloading.metadata.deletion_timestamp.is_none()
        && offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Local
        && offloading.spec.placement.as_ref().is_some_and(|placement| {
            placement.move_when_cheaper && placement.strategy == PlacementStrategy::Cheapest
        })
}

/// Whether a virtual node, as JSON, takes new pods.
pub fn takes_new_pods(node: &Value) -> bool {
    let node = NodeObjectView::of(node);
    let mut conditions = node.status().conditions();
    let is_ready = conditions.any(|one| one.has_status("Ready", "True"));
    let mut taints = node.spec().taints().iter().map(TaintView::of);
    let repels_pods = taints.any(|taint| {
        taint.key() != Some(pods::VIRTUAL_NODE_TAINT) && taint.effect() != Some("PreferNoSchedule")
    });
    is_ready && !node.is_cordoned() && !repels_pods
}

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saving {
    pub key: Key,
    pub uid: String,
    /// UID of its controller.
    pub controller: String,
    /// Name of its node.
    pub from: String,
    /// Name of the cheapest node that has room for it.
    pub to: String,
    /// The saving there for one hour.
    pub per_hour: Money,
}

/// The input of [`find_savings`].
#[derive(Debug, Clone, Copy)]
pub struct SavingFacts<'a> {
    /// The pods of one namespace.
    pub pods: &'a [RunningPod],
    /// All virtual nodes on which pods of the namespace run or may run.
    pub targets: &'a [TargetNode<'a>],
    /// The number of pods that each `PodDisruptionBudget` still allows to evict
    /// (`status.disruptionsAllowed`). A missing one allows none.
    pub allowed: &'a BTreeMap<Key, u32>,
    /// UIDs of controllers whose pods stay for now, for example because one of them has no node
    /// yet.
    pub unsettled: &'a BTreeSet<String>,
    /// Maximum number of pods to evict now.
    pub max: usize,
}

/// The pods to evict now, the largest saving first: at most one of each controller, and none of a
/// controller whose pods are not all Ready. So a controller without a `PodDisruptionBudget` never
/// lacks more than one pod.
pub fn find_savings(facts: &SavingFacts) -> Vec<Saving> {
    let mut turns = EvictionLimits::new(
        facts.pods,
        facts.unsettled,
        facts.allowed,
        MaxMissingPods::One,
    );
    let mut candidates: Vec<(&RunningPod, Money)> = Vec::new();
    for pod in facts
        .pods
        .iter()
        .filter(|pod| pod.ready && turns.may_wait_for_another(pod))
    {
        if let Some((_, saving)) = best_saving(pod, facts.targets) {
            candidates.push((pod, saving));
        }
    }
    candidates.sort_by_key(|(pod, saving)| (Reverse(*saving), &pod.key));
    let mut targets = facts.targets.to_vec();
    let mut chosen = Vec::new();
    for (pod, _) in candidates {
        if chosen.len() >= facts.max {
            break;
        }
        if !turns.is_next(pod) {
            continue;
        }
        // Those before it may have taken the room.
        let Some((index, per_hour)) = best_saving(pod, &targets) else {
            continue;
        };
        let Some(controller) = turns.take_turn(pod) else {
            continue;
        };
        let Some(target) = targets.get_mut(index) else {
            continue;
        };
        target.free = target
            .free
            .as_ref()
            .map(|free| free.saturating_sub(&pod.amounts));
        let (from, to) = (pod.node.clone(), target.node.name.clone());
        chosen.push(Saving {
            key: pod.key.clone(),
            uid: pod.uid.clone(),
            controller,
            from,
            to,
            per_hour,
        });
    }
    chosen
}

/// The index of the cheapest target with room, and what the pod costs less there; `None` if that is
/// not enough.
fn best_saving(pod: &RunningPod, targets: &[TargetNode]) -> Option<(usize, Money)> {
    let nodes: Vec<&PricedNode> = targets.iter().map(|target| target.node).collect();
    let costs = costs_by_node(&pod.amounts, &nodes);
    let (_, HourlyCost::Known(now)) = *costs.iter().find(|(node, _)| node.name == pod.node)? else {
        return None;
    };
    let others = targets.iter().zip(&costs).enumerate();
    let others =
        others.filter(|(_, (target, _))| target.node.name != pod.node && has_room_for(target, pod));
    // Where several cost the same, the first by name.
    let (best, (_, (_, cost))) =
        others.min_by_key(|(_, (target, (_, cost)))| (*cost, &target.node.name))?;
    let HourlyCost::Known(then) = *cost else {
        return None;
    };
    let saving = now - then;
    (saving > Money::ZERO && saving >= now.times_percent(MIN_SAVING_PERCENT))
        .then_some((best, saving))
}

fn has_room_for(target: &TargetNode, pod: &RunningPod) -> bool {
    !pod.excluded.contains(&target.node.name)
        && target.node.largest_pods.may_have_room(&pod.amounts).is_ok()
        && target
            .free
            .as_ref()
            .is_some_and(|free| pod.amounts.fits_in(free).is_ok())
}

#[cfg(test)]
mod tests;
