//! Which pods fit on which nodes.

use liqo_quantity::{Quantity, ResourceList};
use serde_json::Value;

use super::{
    fields::{is_true, items, name, namespace, text},
    pods::{amounts, is_finished, needs, node_of},
    selectors::{allows_node, selects, tolerations},
    snapshot::Snapshot,
};

/// A node, and what the pods on it leave.
pub struct NodeRoom<'a> {
    pub node: &'a Value,
    allocatable: ResourceList,
    used: ResourceList,
    pub pods: Vec<&'a Value>,
}

impl<'a> NodeRoom<'a> {
    pub fn all(snapshot: &'a Snapshot) -> Vec<Self> {
        let nodes = snapshot.nodes().iter();
        nodes
            .map(|node| {
                let pods: Vec<&Value> = snapshot
                    .pods_on(name(node))
                    .filter(|pod| !is_finished(pod))
                    .collect();
                let mut room = Self {
                    node,
                    allocatable: amounts(&node["status"]["allocatable"]),
                    used: ResourceList::new(),
                    pods: Vec::new(),
                };
                for pod in pods {
                    room.add(pod);
                }
                room
            })
            .collect()
    }

    pub fn add(&mut self, pod: &'a Value) {
        self.used += &needs_with_place(pod);
        self.pods.push(pod);
    }

    /// Thousandths of cpu and memory that would be free with one more pod, on average.
    pub fn free_share(&self, pod: &Value) -> i128 {
        let used = needs(pod, "requests") + &self.used;
        let share = |resource: &str| {
            let (all, used) = (
                self.allocatable.get(resource).nanos(),
                used.get(resource).nanos(),
            );
            if all > 0 {
                (all - used).max(0) * 1000 / all
            } else {
                0
            }
        };
        i128::midpoint(share("cpu"), share("memory"))
    }

    /// Why a pod does not fit, as the scheduler says it: no reason if it fits.
    pub fn obstacles(&self, pod: &Value) -> Vec<String> {
        let taint = untolerated_taint(pod, self.node);
        if let Some(reason) = taint.or_else(|| affinity_obstacle(pod, self.node)) {
            return vec![reason];
        }
        let free = self.allocatable.saturating_sub(&self.used);
        let shortages = needs_with_place(pod)
            .fits_in(&free)
            .err()
            .unwrap_or_default();
        shortages
            .into_iter()
            .map(|shortage| match shortage.resource.as_str() {
                "pods" => "Too many pods".to_owned(),
                resource => format!("Insufficient {resource}"),
            })
            .collect()
    }
}

/// What a pod needs, including the place of one pod.
fn needs_with_place(pod: &Value) -> ResourceList {
    needs(pod, "requests") + &ResourceList::from([("pods", Quantity::from_units(1))])
}

fn affinity_obstacle(pod: &Value, node: &Value) -> Option<String> {
    (!allows_node(pod, node))
        .then(|| "node(s) didn't match Pod's node affinity/selector".to_owned())
}

/// The taints of a node, with the one of a node that was never ready.
pub fn taints(node: &Value) -> impl Iterator<Item = Value> {
    let unschedulable =
        (node["spec"]["unschedulable"] == true).then_some("node.kubernetes.io/unschedulable");
    let not_ready = (!is_true(node, "Ready")).then_some("node.kubernetes.io/not-ready");
    let implied = [unschedulable, not_ready].into_iter().flatten();
    let listed = items(&node["spec"]["taints"]);
    let implied = implied.filter(move |key| !listed.iter().any(|taint| taint["key"] == *key));
    listed
        .iter()
        .cloned()
        .chain(implied.map(|key| serde_json::json!({ "key": key, "effect": "NoSchedule" })))
}

/// Why a taint keeps a pod off a node.
pub fn untolerated_taint(pod: &Value, node: &Value) -> Option<String> {
    let taint = taints(node).find(|taint| {
        taint["effect"] != "PreferNoSchedule" && tolerations(pod, taint).next().is_none()
    })?;
    Some(match text(&taint["key"]) {
        "node.kubernetes.io/unschedulable" => "node(s) were unschedulable".to_owned(),
        key => format!(
            "node(s) had untolerated taint {{{key}: {}}}",
            text(&taint["value"])
        ),
    })
}

/// Whether required anti-affinity, of this pod or of one that runs, keeps a pod off a node.
pub fn is_repelled(pod: &Value, node: &Value, rooms: &[NodeRoom]) -> bool {
    let own = anti_affinity(pod);
    rooms.iter().any(|room| {
        room.pods.iter().any(|other| {
            repels(own, pod, other, node, room.node)
                || repels(anti_affinity(other), other, pod, room.node, node)
        })
    })
}

fn anti_affinity(pod: &Value) -> &[Value] {
    items(
        &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"],
    )
}

/// Whether terms of the owner, which is on one node, are against a pod on another one.
fn repels(
    terms: &[Value],
    owner: &Value,
    pod: &Value,
    owner_node: &Value,
    pod_node: &Value,
) -> bool {
    terms.iter().any(|term| {
        let key = text(&term["topologyKey"]);
        let (left, right) = (
            &owner_node["metadata"]["labels"][key],
            &pod_node["metadata"]["labels"][key],
        );
        let namespaces = items(&term["namespaces"]);
        let is_meant = if namespaces.is_empty() {
            namespace(owner) == namespace(pod)
        } else {
            namespaces.iter().any(|one| one == namespace(pod))
        };
        !left.is_null()
            && left == right
            && is_meant
            && selects(&term["labelSelector"], &pod["metadata"]["labels"])
    })
}

/// Whether a pod is bound to a node.
pub fn is_bound(pod: &Value) -> bool {
    !node_of(pod).is_empty()
}
