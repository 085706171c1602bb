//! Pods on virtual nodes that may be evicted, and where others may run instead of them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm, PodSpec, PodStatus};
use liqo_api::departure::DepartureCause;
use liqo_api::{Key, ResourceList, labels};
use serde::Deserialize as _;
use serde_json::Value;

use crate::namespace::node_selector;
use crate::node::priced::{PricedNode, default_charge_on_node};
use crate::pod::local_state::LocalPod;
use crate::views::PodView;

/// A pod on a virtual node, in a namespace whose pods may move.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningPod {
    pub key: Key,
    pub uid: String,
    /// Name of its node.
    pub node: String,
    pub labels: BTreeMap<String, String>,
    /// The charged amounts.
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
    /// A pod on this node; `None` if it has ended, or another one has taken its place. `nodes` are
    /// those to which it could move.
    pub fn on_node(local: &LocalPod, node: &str, nodes: &[&PricedNode]) -> Option<Self> {
        let is_replaced = local.deletion.is_some()
            && !local
                .controller
                .as_ref()
                .is_some_and(|one| waits_for_the_former(&one.kind));
        if local.finished || is_replaced {
            return None;
        }
        let pod = local.to_json();
        let view = PodView::of(&pod);
        let ready = view
            .status()
            .conditions()
            .any(|one| one.has_status("Ready", "True"));
        let excluded = nodes
            .iter()
            .filter(|node| !may_run_on(view, node))
            .map(|node| node.name.clone())
            .collect();
        let labels = view.metadata().labels();
        let labels = labels.and_then(|labels| BTreeMap::deserialize(labels).ok());
        Some(Self {
            key: local.key.clone(),
            uid: local.uid.clone(),
            node: node.to_owned(),
            labels: labels.unwrap_or_default(),
            amounts: charged_amounts_of_json(&pod)?,
            controller: local
                .controller
                .as_ref()
                .filter(|one| DepartureCause::Cheaper.takes_pods_of(Some(&one.kind)))
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

/// The amounts that a pod on a virtual node is charged; `None` if it has ended.
pub fn charged_amounts(local: &LocalPod) -> Option<ResourceList> {
    if local.finished {
        None
    } else {
        charged_amounts_of_json(&local.to_json())
    }
}

fn charged_amounts_of_json(pod: &Value) -> Option<ResourceList> {
    let pod = PodView::of(pod);
    let spec = PodSpec::deserialize(pod.spec().json()).ok()?;
    let status = PodStatus::deserialize(pod.status().json()).unwrap_or_default();
    let generation = pod.metadata().generation();
    Some(default_charge_on_node(generation, spec, &status))
}

/// Whether the node selector and the required affinity of a pod let it run on a node.
fn may_run_on(pod: PodView<'_>, node: &PricedNode) -> bool {
    let selector = pod.spec().node_selector();
    let by_label = selector
        .into_iter()
        .flatten()
        .all(|(key, value)| node.labels.get(key).map(String::as_str) == value.as_str());
    let required = pod.spec().affinity().node_affinity().required();
    let required = required.map(|required| NodeSelector::deserialize(required.json()));
    by_label
        && match required {
            Some(Ok(required)) => {
                node_selector::selects_node(Some(&required), &node.name, &node.labels)
            }
            Some(Err(_)) => false,
            None => true,
        }
}

/// Whether the node selector and the required affinity of a pod do not ask for virtual nodes.
/// Whether a node of this cluster matches the rest, and has room, is up to the scheduler.
pub(super) fn may_run_at_home(pod: &Value) -> bool {
    let spec = PodView::of(pod).spec();
    let selector = spec.node_selector();
    let selector = selector.and_then(|selector| selector.get(labels::TYPE));
    let terms = spec.affinity().required_terms();
    selector.is_none() && (terms.is_empty() || !terms.iter().all(asks_for_virtual_nodes))
}

fn asks_for_virtual_nodes(term: &Value) -> bool {
    let Ok(term) = NodeSelectorTerm::deserialize(term) else {
        return true;
    };
    term.match_expressions.iter().flatten().any(|one| {
        let is_in = one.operator == "In" || one.operator == "Exists";
        is_in && (one.key == labels::TYPE || one.key == labels::REMOTE_CLUSTER_ID)
    })
}

/// A virtual node, and whether pods may move to it.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetNode<'a> {
    pub node: &'a PricedNode,
    /// The free resources there; `None` if it takes no new pods.
    pub free: Option<ResourceList>,
}
