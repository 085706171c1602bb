//! How much each cluster is offered, given what there is. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1 as core;
use liqo_api::labels;
use liqo_kit::requests;
use liqo_quantity::{Quantity, ResourceArgument, ResourceList};
use liqo_resource_plugin::{
    Change,
    arguments::NEEDED,
    selector::{Selector, any_matches},
};

/// A node that the labels select.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectedNode {
    /// Whether a consumer's pod could be scheduled there now.
    pub open: bool,
    /// What its kubelet gives to pods.
    pub allocatable: ResourceList,
}

/// Keeps what matters of a node; nothing of one that is not selected, and nothing of a virtual one: what is borrowed is not
/// lent on.
///
/// Consumers' pods come without tolerations, so a taint that keeps pods away closes a node to them.
pub fn node(node: core::Node, selectors: &[Selector]) -> Option<SelectedNode> {
    let found = node.metadata.labels.unwrap_or_default();
    let is_virtual = found.get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE);
    if is_virtual || !any_matches(selectors, &found) {
        return None;
    }
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let ready = status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let open = ready
        && !spec.unschedulable.unwrap_or_default()
        && spec.taints.iter().flatten().all(|taint| taint.effect == "PreferNoSchedule")
        && node.metadata.deletion_timestamp.is_none();
    Some(SelectedNode { open, allocatable: status.allocatable.as_ref().map(requests::list).unwrap_or_default() })
}

/// A pod that occupies a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BoundPod {
    /// The node.
    pub node: String,
    /// What it takes of it.
    pub requests: ResourceList,
    /// Whose pod its labels say it is. To be believed only where that consumer's mapped namespace is.
    pub consumer: Option<String>,
}

/// Keeps what matters of a pod; nothing of one that is finished or has no node yet.
pub fn pod(pod: core::Pod) -> Option<BoundPod> {
    let status = pod.status.unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let spec = pod.spec?;
    let node = spec.node_name.clone().filter(|name| !name.is_empty())?;
    let consumer = pod.metadata.labels.and_then(|mut found| found.remove(labels::CONSUMER_ID));
    Some(BoundPod { node, requests: requests::of_bound_pod(spec, &status), consumer })
}

/// The consumer whose pods run in this namespace, if Liqo made it for that.
pub fn namespace(namespace: core::Namespace) -> Option<String> {
    let mut found = namespace.metadata.labels?;
    let mapped = found.get(labels::MANAGED).is_some_and(|value| value == "true")
        && found.get(labels::NAMESPACE_KIND).is_some_and(|kind| kind == "mapped");
    if mapped { found.remove(labels::CONSUMER_ID) } else { None }
}

/// What each cluster is offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offers {
    /// A cluster that uses nothing.
    newcomer: ResourceList,
    /// Those whose pods run here.
    consumers: BTreeMap<String, ResourceList>,
}

impl Offers {
    /// What this cluster is offered.
    pub fn of(&self, cluster: &str) -> &ResourceList {
        self.consumers.get(cluster).unwrap_or(&self.newcomer)
    }

    /// Whose offers differ in `new`.
    pub fn changes_to(&self, new: &Self) -> Vec<Change> {
        if self.newcomer != new.newcomer {
            return vec![Change::All];
        }
        let mut known: Vec<&String> = self.consumers.keys().chain(new.consumers.keys()).collect();
        known.sort();
        known.dedup();
        known
            .into_iter()
            .filter(|cluster| self.of(cluster) != new.of(cluster))
            .map(|cluster| Change::Cluster(cluster.clone()))
            .collect()
    }
}

/// What one node holds.
#[derive(Default)]
struct Held<'a> {
    all: ResourceList,
    by_consumer: HashMap<&'a str, ResourceList>,
}

/// Counts what is free: for each cluster, what the open nodes have, less the requests of all pods but its own. Nodes that are
/// closed to new pods count for a cluster with what its pods hold there.
///
/// `nodes` and `pods` by name; a pod comes with the name of its namespace, and `namespaces` tells whose that is.
pub fn offers<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a SelectedNode)>,
    pods: impl IntoIterator<Item = (&'a str, &'a BoundPod)>,
    namespaces: &'a HashMap<String, String>,
) -> Offers {
    let nodes: HashMap<&str, &SelectedNode> = nodes.into_iter().collect();
    let mut held: HashMap<&str, Held<'a>> = HashMap::new();
    for (namespace, pod) in pods {
        if !nodes.contains_key(pod.node.as_str()) {
            continue;
        }
        let held = held.entry(&pod.node).or_default();
        held.all += &pod.requests;
        let consumer =
            pod.consumer.as_deref().filter(|consumer| namespaces.get(namespace).is_some_and(|owner| owner == consumer));
        if let Some(consumer) = consumer {
            *held.by_consumer.entry(consumer).or_default() += &pod.requests;
        }
    }

    // Named even where there is nothing, so that everybody understands an answer of zero.
    let mut newcomer: ResourceList = NEEDED.iter().map(|name| (*name, Quantity::ZERO)).collect();
    let mut more: BTreeMap<&str, ResourceList> = BTreeMap::new();
    let nobody = Held::default();
    for (name, node) in &nodes {
        let held = held.get(name).unwrap_or(&nobody);
        let free = if node.open { node.allocatable.saturating_sub(&held.all) } else { ResourceList::new() };
        for (consumer, own) in &held.by_consumer {
            let theirs = if node.open {
                node.allocatable.saturating_sub(&held.all.saturating_sub(own))
            } else {
                own.min(&node.allocatable)
            };
            *more.entry(consumer).or_default() += &theirs.saturating_sub(&free);
        }
        newcomer += &free;
    }
    let tidy = |mut list: ResourceList| {
        let exists = |name: &str| nodes.values().any(|node| !node.allocatable.get(name).is_zero());
        // Names that no container may request, as limits of attached volumes, are of no use to a consumer.
        list.retain(|name, _| NEEDED.contains(&name) || (exists(name) && ResourceArgument::new(name, "0").is_ok()));
        list
    };
    let consumers = more.into_iter().map(|(consumer, more)| (consumer.to_owned(), tidy(newcomer.clone() + &more))).collect();
    Offers { newcomer: tidy(newcomer), consumers }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
