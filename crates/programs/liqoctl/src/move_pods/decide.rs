//! Decides which pods move and whether there is a place for them, and finds the pods that replaced
//! them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, ensure};
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{ResourceExt as _, api::DynamicObject};
use liqo_api::conditions::StatusCondition;
use liqo_api::{NamespaceOffloading, PodOffloadingStrategy, ResourceList, short_on_largest_node};
use liqo_offloading_rules::{
    namespace::node_selector, node::priced::default_charge, pod::carry::obstacle::pod_obstacle,
    views::WorkloadView,
};
use serde::Serialize;

use crate::evict::decide::{EvictionNode, PodToEvict, controller_of, is_finished};

/// A message names at most this many pods that are waited for.
const MAX_WAITS_NAMED: usize = 3;

/// A peer and the names of its virtual nodes.
#[derive(Clone, Debug)]
pub struct PeerNodes {
    pub name: String,
    pub nodes: BTreeSet<String>,
}

/// The user's request to move pods.
#[derive(Clone, Copy, Debug)]
pub struct MoveRequest<'a> {
    pub namespace: &'a str,
    /// Names of pods; if there are none, all of the namespace.
    pub names: &'a [String],
    pub from: Option<&'a PeerNodes>,
    pub to: Option<&'a PeerNodes>,
    /// Also end pods that no controller creates again.
    pub force: bool,
}

/// The state of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct MoveFacts<'a> {
    pub offloading: Option<&'a NamespaceOffloading>,
    pub nodes: &'a [EvictionNode],
    /// Those of the namespace that the label selector matches.
    pub pods: &'a [Pod],
    /// Free resources of virtual nodes, by name. A node that is missing counts as having room.
    pub free: &'a BTreeMap<String, ResourceList>,
}

/// The effects of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MovePlan {
    pub namespace: String,
    /// Virtual nodes that take no new pods meanwhile.
    pub cordoned_nodes: BTreeSet<String>,
    pub pods: Vec<PlannedEviction>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub staying: Vec<StayingPod>,
}

/// A pod that is evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedEviction {
    pub pod: String,
    pub node: String,
    /// The object that creates it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<PodOwner>,
    #[serde(skip)]
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOwner {
    #[serde(skip)]
    pub api_version: String,
    pub kind: String,
    pub name: String,
    #[serde(skip)]
    pub uid: String,
}

/// A pod that was asked for, and why it stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StayingPod {
    pub pod: String,
    pub reason: String,
}

/// Reason why a pod does not move.
enum StayReason {
    /// The request does not mean it, unless it names it.
    NotMeant(String),
    /// It can run in no other cluster.
    Bound(String),
}

/// Plans the move, or says why it is not possible.
pub fn plan_moves(request: &MoveRequest, facts: &MoveFacts) -> anyhow::Result<MovePlan> {
    let cordoned_nodes = match (request.from, request.to) {
        (_, Some(to)) => other_nodes(request.namespace, facts, to)?,
        (Some(from), None) => {
            check_room_elsewhere(request.namespace, facts, from)?;
            from.nodes.clone()
        }
        (None, None) => {
            bail!("say from where or to where the pods move: --from CLUSTER or --to CLUSTER")
        }
    };
    if let Some(name) = request
        .names
        .iter()
        .find(|name| !facts.pods.iter().any(|pod| pod.name_any() == **name))
    {
        bail!("there is no pod {name} in namespace {}", request.namespace);
    }
    let by_name = !request.names.is_empty();
    let (mut pods, mut staying) = (Vec::new(), Vec::new());
    for pod in facts
        .pods
        .iter()
        .filter(|pod| !by_name || request.names.contains(&pod.name_any()))
    {
        let name = pod.name_any();
        match eviction_for_move(request, pod) {
            Ok(moving) => pods.push(moving),
            Err(StayReason::NotMeant(reason)) if by_name => {
                bail!("pod {name} cannot be moved: {reason}")
            }
            Err(StayReason::NotMeant(_)) => {}
            Err(StayReason::Bound(reason)) => staying.push(StayingPod { pod: name, reason }),
        }
    }
    let without_room = without_room(request, facts, &pods);
    pods.retain(|one| !without_room.iter().any(|other| other.pod == one.pod));
    staying.extend(without_room);
    let lost: Vec<&str> = pods
        .iter()
        .filter(|one| one.controller.is_none())
        .map(|one| one.pod.as_str())
        .collect();
    ensure!(
        request.force || lost.is_empty(),
        "no controller creates these pods again: {}. Name the others, or add --force, which ends these, too",
        lost.join(", ")
    );
    Ok(MovePlan {
        namespace: request.namespace.to_owned(),
        cordoned_nodes,
        pods,
        staying,
    })
}

fn eviction_for_move(request: &MoveRequest, pod: &Pod) -> Result<PlannedEviction, StayReason> {
    let leaving = PodToEvict::from_pod(pod).ok_or_else(|| {
        StayReason::NotMeant("it has no node, has ended, or belongs to its node".to_owned())
    })?;
    let node = leaving.node;
    if leaving.ends {
        return Err(StayReason::NotMeant("it is being deleted".to_owned()));
    }
    if let Some(from) = request.from.filter(|from| !from.nodes.contains(&node)) {
        return Err(StayReason::NotMeant(format!(
            "it is not at {}, but on node {node}",
            from.name
        )));
    }
    if let Some(to) = request.to {
        if to.nodes.contains(&node) {
            return Err(StayReason::NotMeant(format!(
                "it is at {} already",
                to.name
            )));
        }
        if let Some(refusal) = serde_json::to_value(pod)
            .ok()
            .as_ref()
            .and_then(pod_obstacle)
        {
            return Err(StayReason::Bound(refusal.message));
        }
    }
    Ok(PlannedEviction {
        pod: leaving.key.name,
        node,
        controller: controller_of(pod).map(pod_owner),
        uid: leaving.uid,
    })
}

fn pod_owner(owner: &OwnerReference) -> PodOwner {
    PodOwner {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    }
}

/// The pods that would find no room where they may go. Pods that may run in this cluster, too, are
/// left to the scheduler.
fn without_room(
    request: &MoveRequest,
    facts: &MoveFacts,
    moving: &[PlannedEviction],
) -> Vec<StayingPod> {
    if offloading_strategy(facts) != Some(PodOffloadingStrategy::Remote) {
        return Vec::new();
    }
    let open = facts
        .nodes
        .iter()
        .filter(|node| is_target_node(request, &node.name))
        .filter(|node| takes_pods(facts, node));
    let mut targets: Vec<(&EvictionNode, Option<ResourceList>)> = open
        .map(|node| (node, facts.free.get(&node.name).cloned()))
        .collect();
    let mut staying = Vec::new();
    for one in moving {
        let pod = facts
            .pods
            .iter()
            .find(|pod| pod.uid().as_deref() == Some(&one.uid));
        let Some(amounts) = pod.and_then(|pod| pod.spec.clone()).map(default_charge) else {
            continue;
        };
        if let Some((_, free)) = targets
            .iter_mut()
            .find(|(node, free)| room_at(node, free.as_ref(), &amounts).is_ok())
        {
            *free = free.as_ref().map(|free| free.saturating_sub(&amounts));
        } else {
            let short: Vec<String> = targets
                .iter()
                .filter_map(|(node, free)| room_at(node, free.as_ref(), &amounts).err())
                .collect();
            staying.push(StayingPod {
                pod: one.pod.clone(),
                reason: format!("there is no room for it: {}", short.join("; ")),
            });
        }
    }
    staying
}

/// Whether a virtual node has room for these amounts; otherwise what is short.
fn room_at(
    node: &EvictionNode,
    free: Option<&ResourceList>,
    amounts: &ResourceList,
) -> Result<(), String> {
    if let Some(short) = free.and_then(|free| amounts.fits_in(free).err()) {
        let short: Vec<String> = short.iter().map(ToString::to_string).collect();
        return Err(format!("{}: {}", node.name, short.join(", ")));
    }
    node.largest_pods
        .may_have_room(amounts)
        .map_err(|short| format!("{}: {}", node.name, short_on_largest_node(&short)))
}

/// The names of the nodes whose free amounts a plan depends on.
pub fn target_nodes(request: &MoveRequest, nodes: &[EvictionNode]) -> BTreeSet<String> {
    match request.to {
        Some(to) => to.nodes.clone(),
        None => nodes
            .iter()
            .map(|node| node.name.clone())
            .filter(|name| is_target_node(request, name))
            .collect(),
    }
}

/// Whether a moved pod may run on this node.
fn is_target_node(request: &MoveRequest, node: &str) -> bool {
    match (request.to, request.from) {
        (Some(to), _) => to.nodes.contains(node),
        (None, from) => from.is_none_or(|from| !from.nodes.contains(node)),
    }
}

fn offloading_strategy(facts: &MoveFacts) -> Option<PodOffloadingStrategy> {
    let offloading = facts
        .offloading
        .filter(|offloading| offloading.metadata.deletion_timestamp.is_none())?;
    Some(offloading.spec.pod_offloading_strategy)
}

fn is_selected(facts: &MoveFacts, node: &EvictionNode) -> bool {
    let selector = facts
        .offloading
        .and_then(|offloading| offloading.spec.cluster_selector.as_ref());
    node_selector::selects_node(selector, &node.name, &node.labels)
}

fn takes_pods(facts: &MoveFacts, node: &EvictionNode) -> bool {
    node.answers && !node.cordoned && is_selected(facts, node)
}

/// Pods that may run only in other clusters need another one.
fn check_room_elsewhere(
    namespace: &str,
    facts: &MoveFacts,
    from: &PeerNodes,
) -> anyhow::Result<()> {
    let has_room = facts
        .nodes
        .iter()
        .any(|node| !from.nodes.contains(&node.name) && takes_pods(facts, node));
    ensure!(
        offloading_strategy(facts) != Some(PodOffloadingStrategy::Remote) || has_room,
        "the pods of namespace {namespace} run only in other clusters (strategy Remote), and no cluster except {} takes them: peer with another one, or let them run in this cluster: `liqoctl offload namespace {namespace} --pod-offloading-strategy LocalAndRemote`",
        from.name
    );
    Ok(())
}

/// The virtual nodes that could take the pods instead of those of this peer.
fn other_nodes(
    namespace: &str,
    facts: &MoveFacts,
    to: &PeerNodes,
) -> anyhow::Result<BTreeSet<String>> {
    let command =
        format!("`liqoctl offload namespace {namespace} --pod-offloading-strategy Remote`");
    match offloading_strategy(facts) {
        Some(PodOffloadingStrategy::Remote) => {}
        Some(PodOffloadingStrategy::LocalAndRemote) => bail!(
            "pods of namespace {namespace} may also run in this cluster (strategy LocalAndRemote), and the scheduler chooses: only with strategy Remote can they be moved to a cluster; {command} changes that"
        ),
        Some(PodOffloadingStrategy::Local) => {
            bail!(
                "the pods of namespace {namespace} run only in this cluster (strategy Local); {command} changes that"
            )
        }
        None => bail!("namespace {namespace} is not offloaded; {command} changes that"),
    }
    let own: Vec<&EvictionNode> = facts
        .nodes
        .iter()
        .filter(|node| to.nodes.contains(&node.name))
        .collect();
    ensure!(
        own.iter().any(|node| is_selected(facts, node)),
        "the selector of namespace {namespace} does not select {}: see `liqoctl offload namespace --help`",
        to.name
    );
    ensure!(
        own.iter().any(|node| takes_pods(facts, node)),
        "{} takes no new pods now: it does not answer, or its node is cordoned; see `liqoctl status`",
        to.name
    );
    let others = facts
        .nodes
        .iter()
        .filter(|node| !to.nodes.contains(&node.name) && is_selected(facts, node));
    Ok(others.map(|node| node.name.clone()).collect())
}

/// A pod that was evicted, and the one that replaced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPod {
    pub pod: String,
    pub from: String,
    /// Name of the pod that replaces it.
    pub new_pod: Option<String>,
    /// Its node.
    pub to: Option<String>,
    /// The reason to wait for its replacement.
    pub waits: Option<String>,
}

/// Finds the pods that replace those of the plan. `known` are the UIDs of pods that existed before.
pub fn match_replacements(
    plan: &MovePlan,
    known: &BTreeSet<String>,
    pods: &[Pod],
) -> Vec<MovedPod> {
    let mut new: Vec<&Pod> = pods
        .iter()
        .filter(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.uid().is_some_and(|uid| !known.contains(&uid))
        })
        .collect();
    new.sort_by_key(|pod| pod.name_any());
    plan.pods
        .iter()
        .map(|one| match_replacement(one, &mut new))
        .collect()
}

/// Takes the pod that replaces this one from the new pods.
fn match_replacement(one: &PlannedEviction, new: &mut Vec<&Pod>) -> MovedPod {
    let (mut moved, owner) = (without_replacement(one), one.controller.as_ref());
    let Some(owner) = owner else { return moved };
    // A pod of a StatefulSet is replaced by the one of the same name.
    let index = new.iter().position(|pod| {
        controller_of(*pod).is_some_and(|its| its.uid == owner.uid)
            && (owner.kind != "StatefulSet" || pod.name_any() == one.pod)
    });
    let Some(index) = index else {
        moved.waits = Some(format!(
            "{} {} has not created a pod instead of {} yet",
            owner.kind, owner.name, one.pod
        ));
        return moved;
    };
    let pod = new.remove(index);
    moved.new_pod = Some(pod.name_any());
    moved.to = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    moved.waits = reason_not_ready(pod);
    moved
}

fn without_replacement(one: &PlannedEviction) -> MovedPod {
    MovedPod {
        pod: one.pod.clone(),
        from: one.node.clone(),
        new_pod: None,
        to: None,
        waits: None,
    }
}

/// Reason why a new pod is not ready; nothing if it is ready, or has ended already.
fn reason_not_ready(pod: &Pod) -> Option<String> {
    let ready = pod_condition(pod, "Ready");
    if is_finished(pod) || ready.is_some_and(StatusCondition::is_true) {
        return None;
    }
    let name = pod.name_any();
    let unscheduled = pod_condition(pod, "PodScheduled")
        .filter(|one| one.status == "False")
        .and_then(|one| one.message.clone());
    Some(
        match (
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()),
            unscheduled,
        ) {
            (Some(node), _) => format!("{name} is not ready on node {node} yet"),
            (None, Some(why)) => format!("{name} has no node: {why}"),
            (None, None) => format!("{name} has no node yet"),
        },
    )
}

fn pod_condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == kind)
}

/// Number of pods that controllers want, by their UID.
pub type WantedReplicas = BTreeMap<String, u64>;

/// Number of pods that a controller wants. `found` is the object that has its name now.
pub fn wanted_replicas(owner: &PodOwner, found: Option<&DynamicObject>) -> u64 {
    // The API server writes the default, which is 1.
    found
        .filter(|one| {
            one.uid().as_ref() == Some(&owner.uid) && one.metadata.deletion_timestamp.is_none()
        })
        .map_or(0, |one| {
            WorkloadView::of(&one.data).spec().replicas().unwrap_or(1)
        })
}

/// The controllers whose new pods are not there or not ready yet.
pub fn owners_that_wait(plan: &MovePlan, moved: &[MovedPod]) -> Vec<PodOwner> {
    let waiting = plan
        .pods
        .iter()
        .zip(moved)
        .filter(|(_, moved)| moved.waits.is_some());
    let owners = waiting.filter_map(|(one, _)| one.controller.as_ref());
    owners
        .map(|owner| (owner.uid.as_str(), owner))
        .collect::<BTreeMap<_, _>>()
        .into_values()
        .cloned()
        .collect()
}

/// Clears what pods wait for if their controller need not create them: a Job may count the old pod
/// as failed, and any other controller may have all the ready pods that it wants, for example
/// because it was scaled down, replaced by a rollout, or deleted.
pub fn skip_needless_waits(
    plan: &MovePlan,
    moved: &mut [MovedPod],
    wanted: &WantedReplicas,
    pods: &[Pod],
) {
    let mut ready: BTreeMap<&str, u64> = BTreeMap::new();
    for owner in pods
        .iter()
        .filter(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && reason_not_ready(pod).is_none()
                && !is_finished(pod)
        })
        .filter_map(controller_of)
    {
        *ready.entry(&owner.uid).or_default() += 1;
    }
    for (one, moved) in plan.pods.iter().zip(moved) {
        let is_needless = one.controller.as_ref().is_some_and(|owner| {
            let has = ready.get(owner.uid.as_str()).copied().unwrap_or(0);
            owner.kind == "Job" || wanted.get(&owner.uid).is_some_and(|wanted| *wanted <= has)
        });
        if is_needless {
            moved.waits = None;
        }
    }
}

/// The reasons to wait for new pods, in one text.
pub fn describe_missing(moved: &[MovedPod]) -> Option<String> {
    let waits: Vec<&str> = moved
        .iter()
        .filter_map(|one| one.waits.as_deref())
        .collect();
    let more = match waits.len().saturating_sub(MAX_WAITS_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (!waits.is_empty()).then(|| {
        waits
            .iter()
            .take(MAX_WAITS_NAMED)
            .copied()
            .collect::<Vec<_>>()
            .join("; ")
            + &more
    })
}

#[cfg(test)]
mod tests;
