//! Reduces nodes, pods and namespaces to what matters, and computes how much each cluster is
//! offered. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1 as core;
use liqo_api::conditions::has_true_condition;
use liqo_api::is_final_phase;
use liqo_api::labels;
use liqo_api::peer_namespace::{PeerNamespace, PeerNamespaceKind};
use liqo_api::requests;
use liqo_quantity::{Quantity, ResourceArgument, ResourceList};
use liqo_resource_plugin::{
    Change,
    arguments::NEEDED,
    selector::{Selector, any_matches},
};

/// A node that the selectors match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectedNode {
    /// Whether the scheduler could place a consumer's pod there now.
    pub open: bool,
    pub allocatable: ResourceList,
}

/// The relevant part of a node. Returns `None` for nodes that are not selected, and for virtual
/// nodes: borrowed resources are not lent again.
///
/// Pods of consumers have no tolerations, so taints close a node to them.
pub fn select_node(node: core::Node, selectors: &[Selector]) -> Option<SelectedNode> {
    let found = node.metadata.labels.unwrap_or_default();
    let is_virtual = found
        .get(labels::TYPE)
        .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE);
    if is_virtual || !any_matches(selectors, &found) {
        return None;
    }
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let ready = has_true_condition(status.conditions.iter().flatten(), "Ready");
    let open = ready
        && !spec.unschedulable.unwrap_or_default()
        && spec
            .taints
            .iter()
            .flatten()
            .all(|taint| taint.effect == "PreferNoSchedule")
        && node.metadata.deletion_timestamp.is_none();
    Some(SelectedNode {
        open,
        allocatable: status
            .allocatable
            .as_ref()
            .map(requests::parse_amounts)
            .unwrap_or_default(),
    })
}

/// A pod that runs on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BoundPod {
    pub node: String,
    pub requests: ResourceList,
    /// The consumer in its label. Anybody can set this label, so it counts only in that consumer's
    /// mapped namespaces.
    pub consumer: Option<String>,
}

/// The relevant part of a pod. Returns `None` for pods that have finished or have no node yet.
pub fn bound_pod(pod: core::Pod) -> Option<BoundPod> {
    let status = pod.status.unwrap_or_default();
    if status.phase.as_deref().is_some_and(is_final_phase) {
        return None;
    }
    let spec = pod.spec?;
    let node = spec.node_name.clone().filter(|name| !name.is_empty())?;
    let consumer = pod
        .metadata
        .labels
        .and_then(|mut found| found.remove(labels::CONSUMER_ID));
    Some(BoundPod {
        node,
        requests: requests::of_bound_pod(pod.metadata.generation, spec, &status),
        consumer,
    })
}

/// The consumer of a mapped namespace.
#[allow(
    clippy::needless_pass_by_value,
    reason = "what a watch's reduction takes"
)]
pub fn consumer_of_namespace(namespace: core::Namespace) -> Option<String> {
    let found = PeerNamespace::from_metadata(&namespace.metadata)?;
    matches!(found.kind, PeerNamespaceKind::Mapped { .. }).then(|| found.peer.to_string())
}

/// The offer to each cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offers {
    /// The offer to a cluster without pods here.
    newcomer: ResourceList,
    /// The offers to clusters with pods here.
    consumers: BTreeMap<String, ResourceList>,
}

impl Offers {
    /// The offer to this cluster.
    pub fn offer_to(&self, cluster: &str) -> &ResourceList {
        self.consumers.get(cluster).unwrap_or(&self.newcomer)
    }

    /// The clusters whose offers differ in `new`.
    pub fn changes_to(&self, new: &Self) -> Vec<Change> {
        if self.newcomer != new.newcomer {
            return vec![Change::All];
        }
        let mut known: Vec<&String> = self.consumers.keys().chain(new.consumers.keys()).collect();
        known.sort();
        known.dedup();
        known
            .into_iter()
            .filter(|cluster| self.offer_to(cluster) != new.offer_to(cluster))
            .map(|cluster| Change::Cluster(cluster.clone()))
            .collect()
    }
}

/// The requests of the pods on a node.
#[derive(Default)]
struct NodeUsage<'a> {
    total: ResourceList,
    by_consumer: HashMap<&'a str, ResourceList>,
}

/// Computes the offers. An open node counts with its allocatable minus the requests of all pods
/// except the cluster's own. A closed node counts with the requests of the cluster's own pods
/// there.
///
/// `nodes` are keyed by name, `pods` by namespace. `namespaces` maps a mapped namespace to its
/// consumer.
pub fn compute_offers<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a SelectedNode)>,
    pods: impl IntoIterator<Item = (&'a str, &'a BoundPod)>,
    namespaces: &'a HashMap<String, String>,
) -> Offers {
    let nodes: HashMap<&str, &SelectedNode> = nodes.into_iter().collect();
    let mut usage: HashMap<&str, NodeUsage<'a>> = HashMap::new();
    for (namespace, pod) in pods {
        if !nodes.contains_key(pod.node.as_str()) {
            continue;
        }
        let usage = usage.entry(&pod.node).or_default();
        usage.total += &pod.requests;
        let consumer = pod.consumer.as_deref().filter(|consumer| {
            namespaces
                .get(namespace)
                .is_some_and(|owner| owner == consumer)
        });
        if let Some(consumer) = consumer {
            *usage.by_consumer.entry(consumer).or_default() += &pod.requests;
        }
    }

    // These are always listed, so that an offer of nothing says zero explicitly.
    let mut newcomer: ResourceList = NEEDED.iter().map(|name| (*name, Quantity::ZERO)).collect();
    let mut more: BTreeMap<&str, ResourceList> = BTreeMap::new();
    let unused = NodeUsage::default();
    for (name, node) in &nodes {
        let usage = usage.get(name).unwrap_or(&unused);
        let free = if node.open {
            node.allocatable.saturating_sub(&usage.total)
        } else {
            ResourceList::new()
        };
        for (consumer, own) in &usage.by_consumer {
            let theirs = if node.open {
                node.allocatable
                    .saturating_sub(&usage.total.saturating_sub(own))
            } else {
                own.min(&node.allocatable)
            };
            *more.entry(consumer).or_default() += &theirs.saturating_sub(&free);
        }
        newcomer += &free;
    }
    let tidy = |mut list: ResourceList| {
        let exists = |name: &str| {
            nodes
                .values()
                .any(|node| !node.allocatable.get(name).is_zero())
        };
        // A consumer cannot use resources that no container may request, such as limits of attached
        // volumes.
        list.retain(|name, _| {
            NEEDED.contains(&name) || (exists(name) && ResourceArgument::new(name, "0").is_ok())
        });
        list
    };
    let consumers = more
        .into_iter()
        .map(|(consumer, more)| (consumer.to_owned(), tidy(newcomer.clone() + &more)))
        .collect();
    Offers {
        newcomer: tidy(newcomer),
        consumers,
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
