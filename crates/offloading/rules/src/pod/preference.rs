//! Decides which nodes a new pod prefers, by the `placement` of its namespace: the preferred node
//! affinity, or the topology spread constraint, that the admission webhook adds.
//!
//! ```text
//!   placement, what the pod costs at each node ──▶ classes of equally good nodes ──▶ weights 100..1 ──▶ one term for each class
//! ```
//! The scheduler scales the weights so that the best node that has room gets all points. The
//! weights fall by an equal ratio, so when the best nodes are full, the next ones are preferred as
//! clearly. What the user prefers stays, and counts as well.
//!
//! Each of our terms contains a requirement that every node meets, by which we recognize it: a
//! second run, maybe with other prices, replaces the terms of the first. They do not travel,
//! because no provider advertises labels of ours.

use std::collections::BTreeSet;

use liqo_api::{PlacementStrategy, PodOffloadingStrategy, PodPlacement, ResourceList, labels};
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::node::priced::{HourlyCost, PricedNode, costs_by_node, nodes_by_cost};
use crate::views::{AffinityView, PREFERRED_TERMS, PatchView, PodView, PreferredTermView};

/// Maximum number of virtual nodes that get a weight. The best ones do.
pub const MAX_NODES: usize = 64;
const MAX_WEIGHT: i32 = 100;

const AFFINITY: &str = "/spec/affinity";
const CONSTRAINTS: &str = "/spec/topologySpreadConstraints";
/// Every node has it.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Labels that differ between the pods of one controller.
const LABELS_OF_ONE_POD: [&str; 4] = [
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
    "batch.kubernetes.io/job-completion-index",
    "controller.kubernetes.io/pod-index",
];

/// Nodes that are equally good for a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeClass<'a> {
    /// Whether this cluster's own nodes are among them.
    pub own: bool,
    /// Names of virtual nodes.
    pub nodes: BTreeSet<&'a str>,
}

/// The facts on which the preference of a pod depends.
#[derive(Debug, Clone, Copy)]
pub struct PreferenceFacts<'a> {
    pub placement: &'a PodPlacement,
    pub strategy: PodOffloadingStrategy,
    /// The virtual nodes on which the pod may run.
    pub nodes: &'a [&'a PricedNode],
    /// The amounts charged there.
    pub amounts: &'a ResourceList,
    /// Name of this cluster.
    pub own_name: &'a str,
}

/// The nodes in classes, the best class first. Nodes in no class are worse than all.
pub fn node_classes<'a>(facts: &PreferenceFacts<'a>) -> Vec<NodeClass<'a>> {
    let own_nodes = if facts.strategy == PodOffloadingStrategy::Remote {
        OwnNodes::LeftOut
    } else {
        OwnNodes::Included
    };
    match facts.placement.strategy {
        PlacementStrategy::Spread => Vec::new(),
        PlacementStrategy::OwnFirst => {
            let own = (own_nodes == OwnNodes::Included).then(|| NodeClass {
                own: true,
                nodes: BTreeSet::new(),
            });
            own.into_iter()
                .chain(cheapest_first(facts, OwnNodes::LeftOut))
                .collect()
        }
        PlacementStrategy::Cheapest => cheapest_first(facts, own_nodes),
        PlacementStrategy::FixedOrder => classes_in_order(facts, own_nodes),
    }
}

/// Whether this cluster's own nodes are among the classes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnNodes {
    Included,
    LeftOut,
}

/// This cluster's own nodes cost nothing.
fn cheapest_first<'a>(facts: &PreferenceFacts<'a>, own_nodes: OwnNodes) -> Vec<NodeClass<'a>> {
    let mut classes = nodes_by_cost(&costs_by_node(facts.amounts, facts.nodes));
    let own = own_nodes == OwnNodes::Included;
    if own {
        classes.entry(HourlyCost::NOTHING).or_default();
    }
    classes
        .into_iter()
        .map(|(cost, nodes)| NodeClass {
            own: own && cost == HourlyCost::NOTHING,
            nodes,
        })
        .collect()
}

fn classes_in_order<'a>(facts: &PreferenceFacts<'a>, own_nodes: OwnNodes) -> Vec<NodeClass<'a>> {
    let mut left: Vec<&PricedNode> = facts.nodes.to_vec();
    let mut own_left = own_nodes == OwnNodes::Included;
    let mut classes = Vec::new();
    for name in &facts.placement.order {
        // A peer may have the name of this cluster. Then its own nodes come first, and the peer can
        // be named by its ID.
        let own = own_left && name == facts.own_name;
        own_left &= !own;
        let nodes: BTreeSet<&str> = left
            .extract_if(.., |node| !own && node.is_called(name))
            .map(|node| node.name.as_str())
            .collect();
        if own || !nodes.is_empty() {
            classes.push(NodeClass { own, nodes });
        }
    }
    classes
}

/// Weights for this many classes: from 100 to 1 by an equal ratio, rounded up, and each less than
/// the one before. At most 100 classes.
pub fn class_weights(classes: usize) -> Vec<i32> {
    let steps = i32::try_from(classes.saturating_sub(1)).unwrap_or(MAX_WEIGHT);
    let mut rising: Vec<i32> = Vec::with_capacity(classes);
    for step in 0..=steps {
        let more = rising.last().map_or(1, |last| last + 1);
        rising.push(if steps == 0 {
            MAX_WEIGHT
        } else {
            weight_of_step(step, steps).max(more).min(MAX_WEIGHT)
        });
    }
    rising.truncate(classes);
    rising.reverse();
    rising
}

/// The smallest weight of at least 100^(step / steps). The tolerance is far below the distance of
/// two weights.
fn weight_of_step(step: i32, steps: i32) -> i32 {
    let least = f64::from(MAX_WEIGHT).ln() * f64::from(step) - 1e-6;
    (1..MAX_WEIGHT)
        .find(|&weight| f64::from(weight).ln() * f64::from(steps) >= least)
        .unwrap_or(MAX_WEIGHT)
}

/// The preferred terms for these classes, with at most [`MAX_NODES`] virtual nodes.
pub fn preferred_terms(classes: &[NodeClass]) -> Vec<Value> {
    let mut room = MAX_NODES;
    let mut kept: Vec<(bool, Vec<&str>)> = Vec::new();
    for class in classes.iter().take(MAX_NODES) {
        let nodes: Vec<&str> = class.nodes.iter().copied().take(room).collect();
        room -= nodes.len();
        if class.own || !nodes.is_empty() {
            kept.push((class.own, nodes));
        }
    }
    let mut terms = Vec::new();
    for (weight, (own, nodes)) in class_weights(kept.len()).into_iter().zip(kept) {
        if own {
            terms.push(preferred_term(weight, &json!({"key": labels::TYPE, "operator": "NotIn", "values": [labels::TYPE_VIRTUAL_NODE]})));
        }
        if !nodes.is_empty() {
            terms.push(preferred_term(
                weight,
                &json!({"key": HOSTNAME, "operator": "In", "values": nodes}),
            ));
        }
    }
    terms
}

fn preferred_term(weight: i32, expression: &Value) -> Value {
    json!({"weight": weight, "preference": {"matchExpressions": [marker_requirement(), expression]}})
}

/// A requirement that every node meets, and that nobody else writes.
pub(super) fn marker_requirement() -> Value {
    json!({"key": labels::PLACEMENT, "operator": "DoesNotExist"})
}

fn has_marker(term: &Value) -> bool {
    PreferredTermView::of(term)
        .preference()
        .match_expressions()
        .contains(&marker_requirement())
}

/// Adds the preference to the JSON patch of a pod that may leave. A second run changes nothing.
pub fn add_preference(pod: &Value, patch: &mut Vec<Value>, facts: &PreferenceFacts) {
    if facts.placement.strategy == PlacementStrategy::Spread {
        patch.extend(spread_constraint(pod, facts.strategy));
    }
    let before = patch
        .iter_mut()
        .find(|operation| PatchView::of(operation).path() == Some(AFFINITY));
    let affinity = before
        .as_deref()
        .and_then(|operation| PatchView::of(operation).value())
        .unwrap_or(PodView::of(pod).spec().affinity().json());
    let Some(affinity) = affinity_with_terms(affinity, preferred_terms(&node_classes(facts)))
    else {
        return;
    };
    let operation = json!({"op": "add", "path": AFFINITY, "value": affinity});
    match before {
        Some(before) => *before = operation,
        None => patch.push(operation),
    }
}

/// The affinity with these terms of ours and the user's; `None` if it is so already.
fn affinity_with_terms(affinity: &Value, ours: Vec<Value>) -> Option<Value> {
    let now = AffinityView::of(affinity).node_affinity().preferred();
    let wanted: Vec<Value> = now
        .iter()
        .filter(|term| !has_marker(term))
        .cloned()
        .chain(ours)
        .collect();
    if now == wanted {
        return None;
    }
    let mut affinity = affinity.clone();
    set_at(&mut affinity, &["nodeAffinity", PREFERRED_TERMS], wanted);
    Some(affinity)
}

/// A soft constraint that spreads the pods with the same labels. A pod that has constraints keeps
/// only these.
fn spread_constraint(pod: &Value, strategy: PodOffloadingStrategy) -> Option<Value> {
    let pod = PodView::of(pod);
    if !pod.spec().topology_spread_constraints().is_empty() {
        return None;
    }
    let all = pod.metadata().labels()?;
    let shared = all
        .iter()
        .filter(|(key, _)| !LABELS_OF_ONE_POD.contains(&key.as_str()));
    let shared: Map<String, Value> = shared
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if shared.is_empty() {
        return None;
    }
    // This cluster's own nodes have no cluster ID, and the scheduler gives no points to nodes
    // without the label.
    let key = if strategy == PodOffloadingStrategy::Remote {
        labels::REMOTE_CLUSTER_ID
    } else {
        HOSTNAME
    };
    let constraint = json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": shared}});
    Some(json!({"op": "add", "path": CONSTRAINTS, "value": [constraint]}))
}

#[cfg(test)]
mod tests;
