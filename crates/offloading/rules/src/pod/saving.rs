//! Which running pods to evict because another node would cost less: the largest saving first.
//!
//! Kubernetes cannot move a pod, so it is evicted, and its controller creates another one, which prefers the cheaper node
//! ([`preference`](super::preference)). Whether the new pod gets there is up to the scheduler. So only pods with a clear saving move, only a
//! few at a time, and only to where there is room for them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm};
use liqo_api::departure::DepartureCause;
use liqo_api::{Key, Money, NamespaceOffloading, PlacementStrategy, PodOffloadingStrategy, ResourceList, labels, pods};
use serde::Deserialize as _;
use serde_json::Value;

use crate::json::{items, text};
use crate::namespace::node_selector;
use crate::node::priced::{Cost, PricedNode, charged_on_node, costs};
use crate::pod::local_state::LocalPod;
use crate::pod::turns::{AtOnce, Turns};

/// A pod moves only if another node costs at least this much less, in per cent of what it costs now. Small changes of prices, and two
/// providers that undercut each other, move nothing.
pub const MIN_SAVING_PERCENT: u32 = 10;

/// A pod on a virtual node, in a namespace whose pods may move.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningPod {
    pub key: Key,
    pub uid: String,
    /// Name of its node.
    pub node: String,
    pub labels: BTreeMap<String, String>,
    /// What it is charged.
    pub amounts: ResourceList,
    /// UID of its controller, if that creates it again at no cost.
    pub controller: Option<String>,
    /// Whether it is Ready, and not being deleted.
    pub ready: bool,
    /// The nodes that its own node selector and affinity exclude.
    pub excluded: BTreeSet<String>,
    /// Whether it does not ask for virtual nodes.
    pub may_run_at_home: bool,
    /// Whether its provider ends it soon.
    pub ends_soon: bool,
    /// The `PodDisruptionBudgets` that select it.
    pub budgets: Vec<Key>,
}

impl RunningPod {
    /// A pod on this node; `None` if it has ended, or another one has taken its place. `nodes` are those to which it could move.
    pub fn of(local: &LocalPod, node: &str, nodes: &[&PricedNode]) -> Option<Self> {
        let is_replaced =
            local.deletion.is_some() && !local.controller.as_ref().is_some_and(|one| waits_for_the_former(&one.kind));
        if local.finished || is_replaced {
            return None;
        }
        let pod = local.json();
        let ready = items(&pod, "/status/conditions").iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
        let excluded = nodes.iter().filter(|node| !may_run_on(&pod, node)).map(|node| node.name.clone()).collect();
        let labels = pod.pointer("/metadata/labels").and_then(|labels| BTreeMap::deserialize(labels).ok());
        Some(Self {
            key: local.key.clone(),
            uid: local.uid.clone(),
            node: node.to_owned(),
            labels: labels.unwrap_or_default(),
            amounts: charged(&pod)?,
            controller: local
                .controller
                .as_ref()
                .filter(|one| DepartureCause::Cheaper.takes(Some(&one.kind)))
                .map(|one| one.uid.clone()),
            ready: ready && local.deletion.is_none(),
            excluded,
            may_run_at_home: may_run_at_home(&pod),
            ends_soon: local.ends_soon() && local.deletion.is_none(),
            budgets: Vec::new(),
        })
    }
}

/// Whether a controller of this kind creates another pod only when the former one is gone.
fn waits_for_the_former(kind: &str) -> bool {
    kind == "StatefulSet"
}

/// What a pod on a virtual node is charged; `None` if it has ended.
pub fn amounts(local: &LocalPod) -> Option<ResourceList> {
    if local.finished { None } else { charged(&local.json()) }
}

fn charged(pod: &Value) -> Option<ResourceList> {
    let spec = serde_json::from_value(pod.get("spec")?.clone()).ok()?;
    let status = pod.get("status").and_then(|status| serde_json::from_value(status.clone()).ok()).unwrap_or_default();
    let generation = pod.pointer("/metadata/generation").and_then(Value::as_i64);
    Some(charged_on_node(generation, spec, &status))
}

/// Whether the node selector and the required affinity of a pod let it run on a node.
fn may_run_on(pod: &Value, node: &PricedNode) -> bool {
    let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
    let by_label = selector.into_iter().flatten().all(|(key, value)| node.labels.get(key).map(String::as_str) == value.as_str());
    let required = pod.pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution");
    let required = required.map(NodeSelector::deserialize);
    by_label
        && match required {
            Some(Ok(required)) => node_selector::matches(Some(&required), &node.name, &node.labels),
            Some(Err(_)) => false,
            None => true,
        }
}

/// Whether the node selector and the required affinity of a pod do not ask for virtual nodes. Whether a node of this cluster matches the
/// rest, and has room, is up to the scheduler.
fn may_run_at_home(pod: &Value) -> bool {
    let selector = pod.pointer("/spec/nodeSelector").and_then(|selector| selector.get(labels::TYPE));
    let terms = items(pod, "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
    selector.is_none() && (terms.is_empty() || !terms.iter().all(asks_for_virtual_nodes))
}

fn asks_for_virtual_nodes(term: &Value) -> bool {
    let Ok(term) = NodeSelectorTerm::deserialize(term) else { return true };
    term.match_expressions.iter().flatten().any(|one| {
        let is_in = one.operator == "In" || one.operator == "Exists";
        is_in && (one.key == labels::TYPE || one.key == labels::REMOTE_CLUSTER_ID)
    })
}

/// Whether running pods of this namespace may be evicted to save money.
pub fn moves_pods(offloading: &NamespaceOffloading) -> bool {
    let asked =
        |placement: &liqo_api::PodPlacement| placement.move_when_cheaper && placement.strategy == PlacementStrategy::Cheapest;
    offloading.metadata.deletion_timestamp.is_none()
        && offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Local
        && offloading.spec.placement.as_ref().is_some_and(asked)
}

/// Whether a virtual node, as JSON, takes new pods.
pub fn takes_new_pods(node: &Value) -> bool {
    let is_ready = items(node, "/status/conditions").iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
    let repels = |taint: &Value| {
        text(taint, "/key") != Some(pods::VIRTUAL_NODE_TAINT) && text(taint, "/effect") != Some("PreferNoSchedule")
    };
    let is_cordoned = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    is_ready && !is_cordoned && !items(node, "/spec/taints").iter().any(repels)
}

/// A virtual node, and whether pods may move to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Target<'a> {
    pub node: &'a PricedNode,
    /// What is free there; `None` if it takes no new pods.
    pub free: Option<ResourceList>,
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
    /// What it costs less there for one hour.
    pub per_hour: Money,
}

/// The input of [`savings`].
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The pods of one namespace.
    pub pods: &'a [RunningPod],
    /// All virtual nodes on which pods of the namespace run or may run.
    pub targets: &'a [Target<'a>],
    /// How many more pods each `PodDisruptionBudget` allows to be evicted now (`status.disruptionsAllowed`). One that is missing allows none.
    pub allowed: &'a BTreeMap<Key, u32>,
    /// UIDs of controllers whose pods stay for now, for example because one of them has no node yet.
    pub unsettled: &'a BTreeSet<String>,
    /// How many pods may be evicted now.
    pub max: usize,
}

/// The pods to evict now, the largest saving first: at most one of each controller, and none of a controller whose pods are not all
/// Ready. So a controller without a `PodDisruptionBudget` never lacks more than one pod.
pub fn savings(facts: &Facts) -> Vec<Saving> {
    let mut turns = Turns::new(facts.pods, facts.unsettled, facts.allowed, AtOnce::One);
    let mut candidates: Vec<(&RunningPod, Money)> = Vec::new();
    for pod in facts.pods.iter().filter(|pod| pod.ready && turns.may_wait_for_another(pod)) {
        if let Some((_, saving)) = saving(pod, facts.targets, None) {
            candidates.push((pod, saving));
        }
    }
    candidates.sort_by_key(|(pod, saving)| (Reverse(*saving), &pod.key));
    let mut free: Vec<Option<ResourceList>> = facts.targets.iter().map(|target| target.free.clone()).collect();
    let mut chosen = Vec::new();
    for (pod, _) in candidates {
        if chosen.len() >= facts.max {
            break;
        }
        if !turns.is_next(pod) {
            continue;
        }
        // Those before it may have taken the room.
        let Some((index, per_hour)) = saving(pod, facts.targets, Some(&free)) else { continue };
        let Some(controller) = turns.take(pod) else { continue };
        free[index] = free[index].as_ref().map(|free| free.saturating_sub(&pod.amounts));
        let (from, to) = (pod.node.clone(), facts.targets[index].node.name.clone());
        chosen.push(Saving { key: pod.key.clone(), uid: pod.uid.clone(), controller, from, to, per_hour });
    }
    chosen
}

/// The index of the cheapest target with room, and what the pod costs less there; `None` if that is not enough. `free` replaces what
/// the targets say.
fn saving(pod: &RunningPod, targets: &[Target], free: Option<&[Option<ResourceList>]>) -> Option<(usize, Money)> {
    let nodes: Vec<&PricedNode> = targets.iter().map(|target| target.node).collect();
    let costs: Vec<Cost> = costs(&pod.amounts, &nodes).into_iter().map(|(_, cost)| cost).collect();
    let here = nodes.iter().position(|node| node.name == pod.node)?;
    let Cost::Known(now) = costs[here] else { return None };
    let has_room = |index: usize| {
        let free = free.map_or(targets[index].free.as_ref(), |free| free[index].as_ref());
        !pod.excluded.contains(&nodes[index].name)
            && free
                .is_some_and(|free| pod.amounts.fits_in(free).is_ok() && nodes[index].largest_pods.may_take(&pod.amounts).is_ok())
    };
    let others = costs.iter().enumerate().filter(|(index, _)| *index != here && has_room(*index));
    // Where several cost the same, the first by name.
    let (best, cost) = others.min_by_key(|(index, cost)| (**cost, &nodes[*index].name))?;
    let Cost::Known(then) = *cost else { return None };
    let saving = now - then;
    (saving > Money::ZERO && saving >= now.times_percent(MIN_SAVING_PERCENT)).then_some((best, saving))
}

#[cfg(test)]
mod tests;
