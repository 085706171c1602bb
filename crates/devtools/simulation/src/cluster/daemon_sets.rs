//! `DaemonSets`: one pod on each node that has a kubelet.

use serde_json::{Value, json};

use super::{
    fields::{count, fingerprint, is_ending, label, name, set_count, share, text, uid},
    kubelet::has_kubelet,
    placement::untolerated_taint,
    plan::Plan,
    pods::{from_template, is_active, is_available, is_finished, is_ready, min_ready_seconds},
    selectors::allows_node,
    snapshot::Snapshot,
};

const REVISION: &str = "controller-revision-hash";

/// What all pods of `DaemonSets` tolerate.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    for set in snapshot.list("daemonsets.apps") {
        sync(snapshot, &set, plan);
    }
}

fn sync(snapshot: &Snapshot, set: &Value, plan: &mut Plan) {
    let revision = fingerprint(&set["spec"]["template"]);
    let pods: Vec<&Value> = snapshot.pods_of(uid(set)).collect();
    let mut wanted = Vec::new();
    for node in snapshot.nodes.iter().filter(|node| has_kubelet(node)) {
        let pod = new_pod(set, name(node), &revision);
        let is_allowed = allows_node(&pod, node);
        let own: Vec<&Value> = pods.iter().copied().filter(|pod| target(pod) == name(node)).collect();
        // A taint that came later does not end a pod; that is the work of the eviction.
        let should_run = is_allowed && (untolerated_taint(&pod, node).is_none() || own.iter().any(|pod| is_active(pod)));
        if should_run {
            wanted.push(name(node));
        }
        if !is_ending(set) {
            own.iter()
                .filter(|pod| !is_ending(pod) && (is_finished(pod) || !should_run))
                .for_each(|pod| plan.delete("pods", pod));
            if should_run && own.is_empty() {
                plan.create("pods", pod);
            }
        }
    }
    let serving: Vec<&Value> = pods.into_iter().filter(|pod| wanted.contains(&target(pod)) && is_active(pod)).collect();
    if !is_ending(set) {
        replace(set, &serving, wanted.len(), &revision, plan);
    }
    let status = status(set, &serving, wanted.len(), &revision, plan);
    plan.update_status("daemonsets.apps", set, status);
}

/// A pod for one node, which the scheduler binds.
fn new_pod(set: &Value, node: &str, revision: &str) -> Value {
    let mut pod = from_template(set, "apps/v1", "DaemonSet", &[(REVISION, revision)]);
    let field = json!([{ "key": "metadata.name", "operator": "In", "values": [node] }]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = &mut pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
    match affinity.as_array_mut() {
        Some(terms) => terms.iter_mut().for_each(|term| term["matchFields"] = field.clone()),
        None => *affinity = json!([{ "matchFields": field }]),
    }
    let mut tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.extend(TOLERATED.map(|(key, effect)| json!({ "key": key, "operator": "Exists", "effect": effect })));
    pod["spec"]["tolerations"] = Value::Array(tolerations);
    pod
}

/// The node that a pod was made for.
fn target(pod: &Value) -> &str {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    text(&required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
}

/// Deletes pods with an old template, as many at once as may be unavailable.
fn replace(set: &Value, serving: &[&Value], wanted: usize, revision: &str, plan: &mut Plan) {
    if set["spec"]["updateStrategy"]["type"] == "OnDelete" {
        return;
    }
    let total = i64::try_from(wanted).unwrap_or(i64::MAX);
    let limit = share(&set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], total, true).unwrap_or(1).max(1);
    let seconds = min_ready_seconds(set);
    let (available, unavailable): (Vec<&Value>, Vec<&Value>) = serving.iter().partition(|pod| is_available(pod, seconds, plan));
    let is_old = |pod: &&&Value| label(pod, REVISION) != revision;
    unavailable.iter().filter(is_old).for_each(|pod| plan.delete("pods", pod));
    let room = limit - (total - count(available.iter()));
    available.iter().filter(is_old).take(usize::try_from(room).unwrap_or(0)).for_each(|pod| plan.delete("pods", pod));
}

fn status(set: &Value, serving: &[&Value], wanted: usize, revision: &str, plan: &mut Plan) -> Value {
    let mut status = set["status"].clone();
    let seconds = min_ready_seconds(set);
    let available = count(serving.iter().filter(|pod| is_available(pod, seconds, plan)));
    status["desiredNumberScheduled"] = json!(wanted);
    status["currentNumberScheduled"] = json!(serving.len());
    status["numberMisscheduled"] = json!(0);
    status["numberReady"] = json!(count(serving.iter().filter(|pod| is_ready(pod))));
    set_count(&mut status, "numberAvailable", available);
    set_count(&mut status, "numberUnavailable", i64::try_from(wanted).unwrap_or(i64::MAX) - available);
    set_count(&mut status, "updatedNumberScheduled", count(serving.iter().filter(|pod| label(pod, REVISION) == revision)));
    if !set["metadata"]["generation"].is_null() {
        status["observedGeneration"] = set["metadata"]["generation"].clone();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            pods::node_of,
            testing::{Cluster, workload},
        },
        *,
    };

    fn agents() -> Cluster {
        let mut cluster = Cluster::with_nodes(&["n1", "n2", "n3"]);
        let spec = workload("agent", 0, &json!({}));
        cluster.add(
            "daemonsets.apps",
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent" }, "spec": spec }),
        );
        cluster.pass(5);
        cluster
    }

    fn places(cluster: &Cluster) -> Vec<String> {
        let mut places: Vec<String> =
            cluster.pods().iter().filter(|pod| !is_ending(pod)).map(|pod| node_of(pod).to_owned()).collect();
        places.sort();
        places
    }

    #[test]
    fn each_node_runs_one_pod() {
        let mut cluster = agents();
        assert_eq!(places(&cluster), ["n1", "n2", "n3"]);
        assert_eq!(cluster.object("daemonsets.apps", "agent")["status"]["numberAvailable"], 3);
        cluster.change("daemonsets.apps", "agent", |set| {
            set["spec"]["template"]["spec"]["nodeSelector"] = json!({ "host": "n2" });
        });
        cluster.pass(30);
        assert_eq!(places(&cluster), ["n2"]);
    }

    #[test]
    fn pods_are_replaced_one_after_the_other() {
        let mut cluster = agents();
        cluster.change("daemonsets.apps", "agent", |set| {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("agent:2");
        });
        cluster.pass_and(30, |cluster| assert!(cluster.ready() >= 2));
        assert!(cluster.pods().iter().all(|pod| pod["spec"]["containers"][0]["image"] == "agent:2"));
    }
}
