//! The scheduler: binds pods to nodes, or says why it cannot.

use std::{cmp::Reverse, collections::BTreeMap};

use serde_json::{Value, json};

use super::{
    Write,
    fields::{created_at, is_ending, items, name, namespace, set_condition, text},
    placement::{NodeRoom, is_bound, is_repelled, taints},
    plan::Plan,
    pods::is_finished,
    selectors::{term_matches, tolerations},
    snapshot::Snapshot,
};

pub fn run(snapshot: &Snapshot, plan: &mut Plan) {
    let mut waiting: Vec<&Value> = snapshot
        .pods()
        .iter()
        .map(|pod| &**pod)
        .filter(|pod| is_waiting(pod))
        .collect();
    if waiting.is_empty() {
        return;
    }
    waiting.sort_by_key(|pod| {
        (
            Reverse(pod["spec"]["priority"].as_i64().unwrap_or(0)),
            created_at(pod),
        )
    });
    let mut rooms = NodeRoom::all(snapshot);
    for pod in waiting {
        match choose(pod, &rooms) {
            Ok(index) => {
                let (namespace, node) = (
                    namespace(pod).to_owned(),
                    name(rooms[index].node).to_owned(),
                );
                plan.push(Write::Bind {
                    namespace,
                    pod: name(pod).to_owned(),
                    node,
                });
                rooms[index].add(pod);
            }
            Err(message) => refuse(snapshot, pod, &message, plan),
        }
    }
}

fn is_waiting(pod: &Value) -> bool {
    let scheduler = text(&pod["spec"]["schedulerName"]);
    !is_bound(pod)
        && ["", "default-scheduler"].contains(&scheduler)
        && items(&pod["spec"]["schedulingGates"]).is_empty()
        && !is_ending(pod)
        && !is_finished(pod)
}

/// The index of the best node, or why there is none.
fn choose(pod: &Value, rooms: &[NodeRoom]) -> Result<usize, String> {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut best = None;
    for (index, room) in rooms.iter().enumerate() {
        let mut obstacles = room.obstacles(pod);
        if obstacles.is_empty() && is_repelled(pod, room.node, rooms) {
            obstacles.push("node(s) didn't match pod anti-affinity rules".to_owned());
        }
        if obstacles.is_empty() {
            let score = score(pod, room);
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, index));
            }
        }
        for reason in obstacles {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    best.map(|(_, index)| index)
        .ok_or_else(|| explain(&reasons, rooms.len()))
}

/// Higher is better. Of equal nodes the first by name wins.
fn score(pod: &Value, room: &NodeRoom) -> (Reverse<usize>, i64, i128, Reverse<usize>) {
    let avoided = taints(room.node).filter(|taint| {
        taint["effect"] == "PreferNoSchedule" && tolerations(pod, taint).next().is_none()
    });
    let preferred =
        &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let matching = items(preferred)
        .iter()
        .filter(|term| term_matches(&term["preference"], room.node));
    let weight = matching.filter_map(|term| term["weight"].as_i64()).sum();
    (
        Reverse(avoided.count()),
        weight,
        room.free_share(pod),
        Reverse(room.pods.len()),
    )
}

fn explain(reasons: &BTreeMap<String, usize>, nodes: usize) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counts: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    counts.sort();
    let no_help = format!(
        "preemption: 0/{nodes} nodes are available: {nodes} Preemption is not helpful for scheduling."
    );
    format!(
        "0/{nodes} nodes are available: {}. {no_help}",
        counts.join(", ")
    )
}

fn refuse(snapshot: &Snapshot, pod: &Value, message: &str, plan: &mut Plan) {
    let mut status = pod["status"].clone();
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message });
    set_condition(&mut status, &condition, snapshot.now);
    plan.update_status("pods", pod, status);
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            fields::condition,
            testing::{Cluster, pod},
        },
        *,
    };

    fn place(cluster: &mut Cluster, name: &str, spec: &Value) -> String {
        cluster.add("pods", pod(name, &json!({}), spec));
        cluster.settle();
        text(&cluster.object("pods", name)["spec"]["nodeName"]).to_owned()
    }

    fn reason(cluster: &Cluster, name: &str) -> String {
        text(&condition(&cluster.object("pods", name), "PodScheduled")["message"]).to_owned()
    }

    fn container(requests: &Value) -> Value {
        json!([{ "name": "c", "image": "web:1", "resources": { "requests": requests } }])
    }

    #[test]
    fn a_pod_goes_to_the_emptiest_node_that_it_fits_on() {
        let mut cluster = Cluster::with_nodes(&["n1", "n2"]);
        let two = json!({ "containers": container(&json!({ "cpu": "2500m" })) });
        assert_eq!(place(&mut cluster, "a", &two), "n1");
        assert_eq!(place(&mut cluster, "b", &two), "n2");
        assert_eq!(place(&mut cluster, "c", &two), "");
        let text = "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: \
                    2 Preemption is not helpful for scheduling.";
        assert_eq!(reason(&cluster, "c"), text);
        cluster.delete("pods", "a", None);
        cluster.pass(5);
        assert_eq!(cluster.object("pods", "c")["spec"]["nodeName"], "n1");
    }

    #[test]
    fn pods_of_one_decision_share_the_room() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        for name in ["a", "b"] {
            cluster.add(
                "pods",
                pod(
                    name,
                    &json!({}),
                    &json!({ "containers": container(&json!({ "cpu": "3" })) }),
                ),
            );
        }
        cluster.settle();
        assert!(
            cluster.object("pods", "a")["spec"]["nodeName"] == "n1"
                && reason(&cluster, "b").contains("Insufficient cpu")
        );
    }

    #[test]
    fn the_largest_init_container_counts() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        let init = json!([{ "name": "i", "resources": { "requests": { "memory": "9Gi" } } }]);
        assert_eq!(
            place(&mut cluster, "a", &json!({ "initContainers": init })),
            ""
        );
        assert!(reason(&cluster, "a").contains("1 Insufficient memory"));
    }

    #[test]
    fn affinity_decides_before_room() {
        let mut cluster = Cluster::with_nodes(&["n1", "n2", "n3"]);
        let host = |values: &Value, operator: &str| {
            let expression = json!({ "key": "host", "operator": operator, "values": values });
            json!({ "matchExpressions": [expression] })
        };
        let required = json!({ "nodeSelectorTerms": [host(&json!(["n1"]), "NotIn")] });
        let preferred = json!([{ "weight": 10, "preference": host(&json!(["n1", "n3"]), "In") }]);
        let affinity = json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        } });
        for name in ["a", "b"] {
            assert_eq!(
                place(&mut cluster, name, &json!({ "affinity": affinity })),
                "n3"
            );
        }
        assert_eq!(
            place(
                &mut cluster,
                "c",
                &json!({ "nodeSelector": { "host": "n4" } })
            ),
            ""
        );
        assert!(reason(&cluster, "c").starts_with(
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
        ));
    }

    #[test]
    fn taints_and_cordons_keep_pods_off() {
        let mut cluster = Cluster::with_nodes(&["n1", "n2"]);
        let taints = json!([{ "key": "k", "value": "v", "effect": "NoSchedule" }]);
        cluster.change("nodes", "n1", |node| node["spec"]["taints"] = taints);
        cluster.change("nodes", "n2", |node| {
            node["spec"]["unschedulable"] = json!(true);
        });
        assert_eq!(place(&mut cluster, "a", &json!({})), "");
        assert!(
            reason(&cluster, "a")
                .starts_with("0/2 nodes are available: 1 node(s) had untolerated taint {k: v}, 1 node(s) were unschedulable.")
        );
        assert_eq!(
            place(
                &mut cluster,
                "b",
                &json!({ "tolerations": [{ "key": "k", "operator": "Equal", "value": "v" }] })
            ),
            "n1"
        );
        cluster.change("nodes", "n2", |node| {
            node["spec"]["unschedulable"] = json!(false);
        });
        cluster.settle();
        assert_eq!(cluster.object("pods", "a")["spec"]["nodeName"], "n2");
    }

    #[test]
    fn pods_that_repel_each_other_are_apart() {
        let mut cluster = Cluster::with_nodes(&["n1", "n2"]);
        let term = json!({ "topologyKey": "host", "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] } });
        let apart = json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } });
        assert_eq!(place(&mut cluster, "a", &apart), "n1");
        assert_eq!(place(&mut cluster, "b", &json!({})), "n2");
        assert_eq!(place(&mut cluster, "c", &apart), "");
        assert_eq!(
            place(
                &mut cluster,
                "d",
                &json!({ "nodeSelector": { "host": "n1" } })
            ),
            ""
        );
    }

    #[test]
    fn pods_of_others_and_pods_with_gates_are_left_alone() {
        let mut cluster = Cluster::with_nodes(&["n1"]);
        for spec in [
            json!({ "schedulerName": "other" }),
            json!({ "schedulingGates": [{ "name": "g" }] }),
        ] {
            let name = format!("p{}", cluster.pods().len());
            assert_eq!(place(&mut cluster, &name, &spec), "");
            assert!(condition(&cluster.object("pods", &name), "PodScheduled").is_null());
        }
    }
}
