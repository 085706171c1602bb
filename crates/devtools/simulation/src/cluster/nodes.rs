//! The life of nodes: those that do not answer, and the pods that leave them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    MissingNodes,
    fields::{
        after, condition, created_at, is_ending, items, name, new_condition, set_condition, text,
        time, time_text,
    },
    placement::is_bound,
    plan::Plan,
    pods::{disruption, is_finished, is_ready, node_of},
    selectors::tolerations,
    snapshot::Snapshot,
};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Seconds after the end of a node until its pods are deleted.
const DELETED_NODE_SECONDS: i64 = 40;

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    for node in snapshot.nodes() {
        if !watch_heartbeat(snapshot, node, plan) {
            taint(snapshot, node, plan);
        }
        snapshot
            .pods_on(name(node))
            .for_each(|pod| evict(snapshot, node, pod, plan));
    }
    for pod in snapshot
        .pods()
        .iter()
        .filter(|pod| is_bound(pod) && snapshot.node(node_of(pod)).is_none())
    {
        collect(snapshot, pod, plan);
    }
}

/// Returns true if a node is declared unreachable now.
fn watch_heartbeat(snapshot: &Snapshot, node: &Value, plan: &mut Plan) -> bool {
    let ready = condition(node, "Ready");
    if ready["status"] == "Unknown" || is_ending(node) {
        return false;
    }
    let lease = snapshot.get("leases.coordination.k8s.io", "kube-node-lease", name(node));
    let renewed = lease.and_then(|lease| time(&lease["spec"]["renewTime"]));
    let seen = [renewed, time(&ready["lastHeartbeatTime"]), created_at(node)]
        .into_iter()
        .flatten()
        .max();
    let Some(seen) = seen else { return false };
    if !plan.is_due(after(seen, snapshot.settings.node_grace_seconds)) {
        return false;
    }
    let mut status = node["status"].clone();
    let message = "Kubelet stopped posting node status.";
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let unknown = json!({ "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "message": message });
        set_condition(&mut status, &unknown, snapshot.now);
    }
    plan.update_status("nodes", node, status);
    true
}

/// Gives a node the taints that follow from its state.
fn taint(snapshot: &Snapshot, node: &Value, plan: &mut Plan) {
    let key = match text(&condition(node, "Ready")["status"]) {
        "True" => "",
        "Unknown" => UNREACHABLE,
        _ => NOT_READY,
    };
    let is_missing = condition(node, "Ready").is_null();
    let listed = items(&node["spec"]["taints"]);
    let has = |key: &str, effect: &str| {
        listed
            .iter()
            .find(|taint| taint["key"] == key && taint["effect"] == effect)
    };
    let is_other =
        |taint: &&Value| ![NOT_READY, UNREACHABLE, UNSCHEDULABLE].contains(&text(&taint["key"]));
    let mut taints: Vec<Value> = listed.iter().filter(is_other).cloned().collect();
    let is_unschedulable = node["spec"]["unschedulable"] == true;
    let wanted = [
        (UNSCHEDULABLE, "NoSchedule", is_unschedulable),
        (key, "NoSchedule", !key.is_empty()),
        (key, "NoExecute", !key.is_empty() && !is_missing),
    ];
    for (key, effect, _) in wanted.into_iter().filter(|(_, _, is_wanted)| *is_wanted) {
        let new = json!({ "key": key, "effect": effect, "timeAdded": time_text(snapshot.now) });
        taints.push(has(key, effect).cloned().unwrap_or(new));
    }
    let is_new = !key.is_empty() && !is_missing && has(key, "NoExecute").is_none();
    if is_new {
        // Once for each outage, so that a kubelet that reaches the API server has the last word.
        snapshot
            .pods_on(name(node))
            .for_each(|pod| mark_not_ready(snapshot, pod, plan));
    }
    let is_same = taints.len() == listed.len() && taints.iter().all(|taint| listed.contains(taint));
    if !is_same {
        let mut next = node.clone();
        next["spec"]["taints"] = json!(taints);
        plan.update("nodes", node, next);
    }
}

fn mark_not_ready(snapshot: &Snapshot, pod: &Value, plan: &mut Plan) {
    if is_ready(pod) && !is_finished(pod) {
        let mut status = pod["status"].clone();
        set_condition(
            &mut status,
            &new_condition("Ready", false, "NodeNotReady", ""),
            snapshot.now,
        );
        plan.update_status("pods", pod, status);
    }
}

/// Deletes a pod that does not tolerate a `NoExecute` taint, or not for this long.
fn evict(snapshot: &Snapshot, node: &Value, pod: &Value, plan: &mut Plan) {
    if is_ending(pod) || is_finished(pod) {
        return;
    }
    let taints = items(&node["spec"]["taints"])
        .iter()
        .filter(|taint| taint["effect"] == "NoExecute");
    let Some(end) = taints
        .filter_map(|taint| end_of_stay(snapshot, pod, taint))
        .min()
    else {
        return;
    };
    if plan.is_due(end) {
        let message = "Taint manager: deleting due to NoExecute taint";
        plan.update_status(
            "pods",
            pod,
            disruption(pod, "DeletionByTaintManager", message, snapshot.now),
        );
        plan.delete("pods", pod);
    }
}

/// When a pod has to leave because of a taint. `None`: never. A taint without `timeAdded` counts
/// from the pod's binding.
fn end_of_stay(snapshot: &Snapshot, pod: &Value, taint: &Value) -> Option<Timestamp> {
    let mut tolerations = tolerations(pod, taint).peekable();
    if tolerations.peek().is_none() {
        return Some(snapshot.now);
    }
    let seconds = tolerations
        .filter_map(|toleration| toleration["tolerationSeconds"].as_i64())
        .min()?;
    let bound = time(&condition(pod, "PodScheduled")["lastTransitionTime"]);
    let begin = [time(&taint["timeAdded"]), bound]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(snapshot.now);
    Some(after(begin, seconds.max(0)))
}

/// Finds the missing nodes, of which some were missing `before`.
pub fn missing(snapshot: &Snapshot, before: &MissingNodes) -> MissingNodes {
    let bound = snapshot
        .pods()
        .iter()
        .filter(|pod| is_bound(pod))
        .map(|pod| node_of(pod));
    let gone = bound.filter(|node| snapshot.node(node).is_none());
    gone.map(|node| {
        (
            node.to_owned(),
            before.get(node).copied().unwrap_or(snapshot.now),
        )
    })
    .collect()
}

/// Deletes a pod whose node is gone.
fn collect(snapshot: &Snapshot, pod: &Value, plan: &mut Plan) {
    let since = snapshot
        .missing_nodes
        .get(node_of(pod))
        .copied()
        .unwrap_or(snapshot.now);
    if !plan.is_due(after(since, DELETED_NODE_SECONDS)) {
        return;
    }
    if !is_finished(pod) {
        let mut status = disruption(
            pod,
            "DeletionByPodGC",
            "PodGC: node no longer exists",
            snapshot.now,
        );
        status["phase"] = json!("Failed");
        plan.update_status("pods", pod, status);
    } else if !is_ending(pod) || pod["metadata"]["deletionGracePeriodSeconds"] != 0 {
        plan.delete_with("pods", pod, Some(0), None);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{Cluster, pod},
        *,
    };

    /// Tolerations that every pod gets from the API server.
    fn tolerant() -> Value {
        let keys = [NOT_READY, UNREACHABLE].iter();
        keys.map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 })).collect()
    }

    fn with_outage() -> Cluster {
        let mut cluster = Cluster::with_nodes(&["n1", "n2"]);
        cluster.add(
            "pods",
            pod(
                "p",
                &json!({}),
                &json!({ "tolerations": tolerant(), "nodeSelector": { "host": "n1" } }),
            ),
        );
        cluster.pass(5);
        cluster.settings.nodes_without_power.insert("n1".to_owned());
        cluster
    }

    #[test]
    fn an_unreachable_node_s_pods_leave_after_300_seconds() {
        let mut cluster = with_outage();
        cluster.pass(34);
        assert!(is_ready(&cluster.object("pods", "p")));
        cluster.pass(1);
        let node = cluster.object("nodes", "n1");
        assert_eq!(
            (
                &condition(&node, "Ready")["status"],
                items(&node["spec"]["taints"]).len()
            ),
            (&json!("Unknown"), 2)
        );
        assert!(!is_ready(&cluster.object("pods", "p")));
        cluster.pass(299);
        assert!(!is_ending(&cluster.object("pods", "p")));
        cluster.pass(1);
        let pod = cluster.object("pods", "p");
        assert!(is_ending(&pod));
        assert_eq!(
            condition(&pod, "DisruptionTarget")["reason"],
            "DeletionByTaintManager"
        );
        // Its kubelet does not answer.
        cluster.pass(3600);
        assert!(!cluster.object("pods", "p").is_null());
        cluster.settings.nodes_without_power.clear();
        cluster.settle();
        assert!(cluster.object("pods", "p").is_null());
    }

    #[test]
    fn a_node_that_answers_again_has_its_pods_back() {
        let mut cluster = with_outage();
        cluster.pass(100);
        cluster.settings.nodes_without_power.clear();
        cluster.settle();
        let node = cluster.object("nodes", "n1");
        assert!(
            condition(&node, "Ready")["status"] == "True"
                && items(&node["spec"]["taints"]).is_empty()
        );
        assert!(is_ready(&cluster.object("pods", "p")));
    }

    #[test]
    fn pods_of_a_deleted_node_go_after_a_while() {
        let mut cluster = with_outage();
        cluster.delete("nodes", "n1", None);
        cluster.pass(39);
        assert!(!cluster.object("pods", "p").is_null());
        let mut reasons = Vec::new();
        cluster.pass_and(1, |cluster| {
            reasons.push(
                condition(&cluster.object("pods", "p"), "DisruptionTarget")["reason"].clone(),
            );
        });
        assert!(
            reasons.contains(&json!("DeletionByPodGC")) && cluster.object("pods", "p").is_null()
        );
    }

    #[test]
    fn a_pod_without_toleration_leaves_at_once() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        cluster.add("pods", pod("p", &json!({}), &json!({})));
        cluster.add(
            "pods",
            pod(
                "q",
                &json!({}),
                &json!({ "tolerations": [{ "operator": "Exists" }] }),
            ),
        );
        cluster.pass(5);
        cluster.change("nodes", "n1", |node| {
            node["spec"]["taints"] = json!([{ "key": "k", "effect": "NoExecute" }]);
        });
        cluster.pass(600);
        assert_eq!(cluster.pod_names(), ["q"]);
    }
}
