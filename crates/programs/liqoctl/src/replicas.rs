//! Computes the number of replicas of the controller manager that fits a cluster. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, NodeSpec, Pod};
use kube::ResourceExt as _;
use liqo_api::{CONTROLLER_MANAGER, labels};

use crate::{inspect::is_virtual, readiness};

/// Nodes on which a replica of the manager can start now: Ready real nodes that take new pods
/// without special tolerations, except those that Liqo avoids.
pub fn usable_nodes<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    avoided: &BTreeMap<String, String>,
) -> usize {
    nodes
        .into_iter()
        .filter(|node| {
            !is_virtual(node)
                && readiness::node(node)
                && node.spec.as_ref().is_none_or(takes_new_pods)
                && !has_avoided_label(node, avoided)
        })
        .count()
}

fn takes_new_pods(spec: &NodeSpec) -> bool {
    let mut taints = spec.taints.iter().flatten();
    spec.unschedulable != Some(true)
        && !taints.any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

fn has_avoided_label(node: &Node, avoided: &BTreeMap<String, String>) -> bool {
    avoided
        .iter()
        .any(|(key, value)| node.labels().get(key) == Some(value))
}

/// The number where nobody chose one: a second replica only where it can survive the node of the
/// first.
pub fn default_replicas(usable: usize) -> u16 {
    if usable >= 2 { 2 } else { 1 }
}

/// A number of replicas that is not the best one for the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaMismatch {
    pub what: String,
    pub advice: String,
}

/// Whether this number fits the number of usable nodes. Zero replicas are another fault.
pub fn replica_mismatch(replicas: i32, usable: usize) -> Option<ReplicaMismatch> {
    match (replicas, usable) {
        (1, 2..) => Some(ReplicaMismatch {
            what: format!(
                "one replica, although {usable} nodes could run one: until it is replaced, nothing in Liqo changes"
            ),
            advice: format!(
                "{} adds one that takes over within ten seconds",
                command_for_replicas(2)
            ),
        }),
        (2.., 1) => Some(ReplicaMismatch {
            what: format!(
                "{replicas} replicas, but only one node that takes them: they fail with it"
            ),
            advice: format!(
                "check the other nodes (Ready, cordons, taints), or {}",
                command_for_replicas(1)
            ),
        }),
        _ => None,
    }
}

fn command_for_replicas(count: u8) -> String {
    format!("`liqoctl install --set controllerManager.replicas={count}`")
}

/// The node that runs all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedNode {
    pub name: String,
    /// A pod there that does not lead.
    pub follower: String,
}

/// The only node of all replicas, if there are several replicas and another node could run one of
/// them.
pub fn shared_node(pods: &[Pod], usable: usize) -> Option<SharedNode> {
    let managers: Vec<&Pod> = pods.iter().filter(|pod| is_manager_pod(pod)).collect();
    let nodes: BTreeSet<&str> = managers
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let only = nodes
        .first()
        .filter(|_| nodes.len() == 1 && managers.len() > 1 && usable > 1)?;
    let follower = managers
        .iter()
        .find(|pod| {
            pod.labels()
                .get(labels::LEADER)
                .is_none_or(|value| value != "true")
        })
        .or(managers.last())?;
    Some(SharedNode {
        name: (*only).to_owned(),
        follower: follower.name_any(),
    })
}

fn is_manager_pod(pod: &Pod) -> bool {
    let is_named = pod
        .labels()
        .get("app.kubernetes.io/name")
        .is_some_and(|name| name == CONTROLLER_MANAGER);
    is_named && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn node(labels: Value, spec: Value, ready: &str) -> Node {
        let status = json!({ "conditions": [{ "type": "Ready", "status": ready }] });
        serde_json::from_value(json!({ "metadata": { "name": "n", "labels": labels }, "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn only_nodes_count_on_which_the_manager_can_start() {
        let taint = |effect: &str| json!({ "taints": [{ "key": "k", "effect": effect }] });
        let nodes = [
            node(json!({}), json!({}), "True"),
            node(json!({}), taint("PreferNoSchedule"), "True"),
            node(json!({}), json!({}), "Unknown"),
            node(json!({}), json!({ "unschedulable": true }), "True"),
            node(json!({}), taint("NoSchedule"), "True"),
            node(json!({}), taint("NoExecute"), "True"),
            node(json!({ "liqo.io/type": "virtual-node" }), json!({}), "True"),
            node(json!({ "spot": "yes" }), json!({}), "True"),
        ];
        assert_eq!(
            usable_nodes(&nodes, &[("spot".to_owned(), "yes".to_owned())].into()),
            2
        );
        assert_eq!(usable_nodes(&nodes, &BTreeMap::new()), 3);
    }

    #[test]
    fn a_second_replica_needs_a_second_node() {
        assert_eq!([0, 1, 2, 9].map(default_replicas), [1, 1, 2, 2]);
    }

    #[test]
    fn a_number_that_does_not_fit_comes_with_the_one_that_does() {
        assert_eq!(
            [
                replica_mismatch(1, 1),
                replica_mismatch(2, 2),
                replica_mismatch(3, 2),
                replica_mismatch(1, 0),
                replica_mismatch(2, 0)
            ],
            [None, None, None, None, None]
        );
        assert!(
            replica_mismatch(1, 3)
                .unwrap()
                .advice
                .contains("controllerManager.replicas=2")
        );
        assert!(
            replica_mismatch(2, 1)
                .unwrap()
                .advice
                .contains("controllerManager.replicas=1")
        );
    }

    #[test]
    fn replicas_that_share_a_node_without_need_are_shown() {
        let pod = |node: &str, deleted: Value| -> Pod {
            let labels = json!({ "app.kubernetes.io/name": CONTROLLER_MANAGER });
            let metadata =
                json!({ "name": "follower", "labels": labels, "deletionTimestamp": deleted });
            serde_json::from_value(
                json!({ "metadata": metadata, "spec": { "nodeName": node, "containers": [] } }),
            )
            .unwrap()
        };
        let stays = |node: &str| pod(node, Value::Null);
        let mut leader = stays("a");
        leader.metadata.name = Some("leader".into());
        leader
            .labels_mut()
            .insert(labels::LEADER.into(), "true".into());
        for pods in [[leader.clone(), stays("a")], [stays("a"), leader]] {
            assert_eq!(
                shared_node(&pods, 2),
                Some(SharedNode {
                    name: "a".into(),
                    follower: "follower".into()
                })
            );
        }
        assert_eq!(
            shared_node(&[stays("a"), stays("a")], 1),
            None,
            "there is no other node"
        );
        assert_eq!(shared_node(&[stays("a"), stays("b")], 2), None);
        assert_eq!(
            shared_node(&[stays("a"), pod("a", json!("2026-01-01T00:00:00Z"))], 2),
            None,
            "one is being replaced"
        );
    }
}
