//! `ReplicaSets`: as many pods as they want.

use std::{cmp::Reverse, collections::HashMap};

use serde_json::{Value, json};

use super::{
    fields::{
        condition, count, created_at, drop_field, is_ending, items, set_count, text, time, uid,
    },
    plan::Plan,
    pods::{from_template, is_active, is_available, is_ready, min_ready_seconds, node_of},
    selectors::has_labels,
    snapshot::Snapshot,
};

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    for set in snapshot.list("replicasets.apps") {
        sync(snapshot, &set, plan);
    }
}

fn sync(snapshot: &Snapshot, set: &Value, plan: &mut Plan) {
    let pods: Vec<&Value> = snapshot
        .pods_of(uid(set))
        .filter(|pod| is_active(pod))
        .collect();
    let wanted = usize::try_from(set["spec"]["replicas"].as_i64().unwrap_or(1)).unwrap_or(0);
    if !is_ending(set) {
        for _ in pods.len()..wanted {
            plan.create("pods", from_template(set, "apps/v1", "ReplicaSet", &[]));
        }
        for pod in first_to_go(&pods, pods.len().saturating_sub(wanted)) {
            plan.delete("pods", pod);
        }
    }
    let status = status(set, &pods, plan);
    plan.update_status("replicasets.apps", set, status);
}

/// The pods that are deleted if there are too many: those that do the least.
pub fn first_to_go<'a>(pods: &[&'a Value], surplus: usize) -> Vec<&'a Value> {
    if surplus == 0 {
        return Vec::new();
    }
    let mut neighbours: HashMap<&str, usize> = HashMap::new();
    for pod in pods {
        *neighbours.entry(node_of(pod)).or_default() += 1;
    }
    let phase_rank = |pod: &Value| {
        ["Pending", "Unknown", "Running"]
            .iter()
            .position(|phase| pod["status"]["phase"] == *phase)
    };
    let cost = |pod: &Value| {
        text(&pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"])
            .parse()
            .unwrap_or(0_i32)
    };
    let restarts = |pod: &Value| {
        items(&pod["status"]["containerStatuses"])
            .iter()
            .filter_map(|one| one["restartCount"].as_i64())
            .max()
    };
    let mut sorted = pods.to_vec();
    sorted.sort_by_cached_key(|pod| {
        let ready_since =
            time(&condition(pod, "Ready")["lastTransitionTime"]).filter(|_| is_ready(pod));
        (
            !node_of(pod).is_empty(),
            phase_rank(pod),
            is_ready(pod),
            cost(pod),
            Reverse(neighbours.get(node_of(pod)).copied()),
            Reverse(ready_since),
            Reverse(restarts(pod)),
            Reverse(created_at(pod)),
        )
    });
    sorted.truncate(surplus);
    sorted
}

fn status(set: &Value, pods: &[&Value], plan: &mut Plan) -> Value {
    let mut status = set["status"].clone();
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    status["replicas"] = json!(pods.len());
    set_count(
        &mut status,
        "fullyLabeledReplicas",
        count(
            pods.iter()
                .filter(|pod| has_labels(&pod["metadata"]["labels"], labels)),
        ),
    );
    set_count(
        &mut status,
        "readyReplicas",
        count(pods.iter().filter(|pod| is_ready(pod))),
    );
    let seconds = min_ready_seconds(set);
    set_count(
        &mut status,
        "availableReplicas",
        count(pods.iter().filter(|pod| is_available(pod, seconds, plan))),
    );
    status["observedGeneration"] = set["metadata"]["generation"].clone();
    if status["observedGeneration"].is_null() {
        drop_field(&mut status, "observedGeneration");
    }
    status
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            fields::name,
            testing::{Cluster, workload},
        },
        *,
    };

    fn three() -> Cluster {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        let spec = workload("web", 3, &json!({}));
        cluster.add(
            "replicasets.apps",
            json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "web" }, "spec": spec }),
        );
        cluster.pass(2);
        cluster
    }

    #[test]
    fn a_pod_that_goes_is_replaced_at_once() {
        let mut cluster = three();
        let first = cluster.pod_names()[0].clone();
        cluster.delete("pods", &first, None);
        cluster.settle();
        assert_eq!(
            (
                cluster.pods().len(),
                cluster.object("replicasets.apps", "web")["status"]["replicas"].as_i64()
            ),
            (4, Some(3))
        );
        cluster.pass(5);
        assert!(cluster.ready() == 3 && !cluster.pod_names().contains(&first));
    }

    #[test]
    fn pods_that_are_not_ready_go_first() {
        let mut cluster = three();
        let victim = cluster.pod_names()[1].clone();
        cluster.change("pods", &victim, |pod| {
            pod["metadata"]["annotations"] = json!({ "simulation.test/ready-seconds": "-1" });
        });
        cluster.settle();
        assert_eq!(cluster.ready(), 2);
        cluster.change("replicasets.apps", "web", |set| {
            set["spec"]["replicas"] = json!(2);
        });
        cluster.pass(5);
        assert_eq!(cluster.ready(), 2);
        let mut pods = cluster.pods();
        pods.retain(|pod| name(pod) == victim);
        assert!(pods.is_empty());
    }

    #[test]
    fn a_pod_counts_as_available_after_min_ready_seconds() {
        let mut cluster = three();
        cluster.change("replicasets.apps", "web", |set| {
            set["spec"]["minReadySeconds"] = json!(30);
        });
        cluster.pass(10);
        assert!(cluster.object("replicasets.apps", "web")["status"]["availableReplicas"].is_null());
        cluster.pass(20);
        assert_eq!(
            cluster.object("replicasets.apps", "web")["status"]["availableReplicas"],
            3
        );
    }
}
