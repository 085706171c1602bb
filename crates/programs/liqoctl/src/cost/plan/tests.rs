use serde_json::{Value, json};

use super::*;
use crate::cost::workload;

const EUR: &str = r#"{"currency":"EUR","rates":{"cpu":"0.04"}}"#;

fn node(name: &str, cpu: &str, more: &Value) -> Value {
    let amounts = json!({ "cpu": cpu, "memory": "64Gi", "pods": "100" });
    let mut node = json!({ "metadata": { "name": name, "labels": { "region": "eu" } }, "spec": {},
        "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] } });
    merge(&mut node, more);
    node
}

fn merge(target: &mut Value, more: &Value) {
    match (target.as_object_mut(), more.as_object()) {
        (Some(fields), Some(more)) => {
            for (key, value) in more {
                merge(fields.entry(key).or_insert(Value::Null), value);
            }
        }
        _ => *target = more.clone(),
    }
}

fn virtual_node(name: &str, cpu: &str, prices: &str, more: &Value) -> Value {
    let labels = json!({ "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": format!("id-of-{name}"), "liqo.io/pool": "default" });
    let metadata = json!({ "labels": labels, "annotations": { "liqo.io/prices": prices } });
    let taint = json!({ "key": "virtual-node.liqo.io/not-allowed", "effect": "NoExecute" });
    let mut node = node(
        name,
        cpu,
        &json!({ "metadata": metadata, "spec": { "taints": [taint] } }),
    );
    merge(&mut node, more);
    node
}

fn offloaded(spec: Value) -> NamespaceOffloadingSpec {
    serde_json::from_value(spec).unwrap()
}

fn planned_with(
    pod: &Value,
    nodes: &[Value],
    pods: &[Value],
    offloaded: Option<&NamespaceOffloadingSpec>,
) -> WorkloadCosts {
    let deployment = json!({ "kind": "Deployment", "metadata": { "name": "web" }, "spec": { "replicas": 4, "template": { "spec": pod } } });
    let workload = workload::parse_workloads(&deployment.to_string(), "demo")
        .unwrap()
        .remove(0);
    let nodes: Vec<Node> = nodes
        .iter()
        .map(|node| serde_json::from_value(node.clone()).unwrap())
        .collect();
    let pods: Vec<Pod> = pods
        .iter()
        .map(|pod| serde_json::from_value(pod.clone()).unwrap())
        .collect();
    let peers = [("id-of-milan".to_owned(), "milan".to_owned())].into();
    plan_workload_costs(
        &workload,
        &CostPlanFacts {
            nodes: &nodes,
            pods: &pods,
            peers: &peers,
            own_name: "rome",
            offloaded,
        },
    )
    .unwrap()
}

fn two_cores() -> Value {
    json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2", "memory": "1Gi" } } }] })
}

fn place<'a>(planned: &'a WorkloadCosts, name: &str) -> &'a PlaceCosts {
    planned
        .places
        .iter()
        .find(|place| place.name == name)
        .unwrap()
}

#[test]
fn possible_places_come_first_and_then_the_cheapest() {
    let nodes = [
        node("rome-1", "4", &json!({})),
        virtual_node("milan", "16", EUR, &json!({})),
        virtual_node(
            "turin",
            "16",
            r#"{"currency":"EUR","rates":{"cpu":"0.03"}}"#,
            &json!({}),
        ),
        virtual_node(
            "boston",
            "16",
            r#"{"currency":"USD","rates":{"cpu":"0.01"}}"#,
            &json!({}),
        ),
        virtual_node("small", "1", EUR, &json!({})),
    ];
    let cheapest = offloaded(json!({ "placement": { "strategy": "Cheapest" } }));
    let planned = planned_with(&two_cores(), &nodes, &[], Some(&cheapest));
    let shown = "\
Deployment web in namespace demo: 4 pods, each cpu 2, memory 1Gi, pods 1
PLACE    FIT NOW   PER HOUR   PER 30 DAYS   RANK   WHY NOT
turin    4/4       0.24 EUR   172.8 EUR     2      -
milan    4/4       0.32 EUR   230.4 EUR     3      -
rome     2/4       0          0             1      there is room for 2 of 4 pods now
small    0/4       0.32 EUR   230.4 EUR     3      there is no room: cpu: 1 short (2 requested, 1 available)
boston   4/4       0.08 USD   57.6 USD      4      USD cannot be compared with EUR, so it counts as the most expensive";
    assert_eq!(render_workload_costs(std::slice::from_ref(&planned)), shown);
    let json = serde_json::to_value(&planned).unwrap();
    assert_eq!(
        (&json["places"][1]["peer"], &json["places"][1]["perHour"]),
        (&json!("milan"), &json!("0.32"))
    );
}

#[test]
fn what_runs_already_takes_room() {
    let nodes = [
        node("rome-1", "4", &json!({})),
        virtual_node("milan", "4", EUR, &json!({})),
    ];
    let on = |node: &str, containers: Value| json!({ "metadata": { "name": "p" }, "spec": { "nodeName": node, "containers": containers } });
    let one = json!([{ "name": "c", "resources": { "requests": { "cpu": "1" } } }]);
    let nothing = json!([{ "name": "c" }]);
    let running = [
        on("rome-1", one.clone()),
        on("milan", nothing),
        on("elsewhere", one),
    ];
    let spec = offloaded(json!({}));
    let planned = planned_with(&two_cores(), &nodes, &running, Some(&spec));
    assert_eq!(place(&planned, "rome").fits, 1);
    assert_eq!(
        place(&planned, "milan").fits,
        1,
        "a provider charges a pod without requests, too"
    );
    assert_eq!(place(&planned, "milan").rank, None);
}

#[test]
fn the_reasons_are_named() {
    let closed = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "NoNewPods", "status": "True", "message": "cpu costs too much" }] } });
    let nodes = [
        node(
            "rome-1",
            "64",
            &json!({ "spec": { "taints": [{ "key": "control", "effect": "NoSchedule" }] } }),
        ),
        virtual_node("milan", "64", EUR, &json!({})),
        virtual_node(
            "us",
            "64",
            EUR,
            &json!({ "metadata": { "labels": { "region": "us" } } }),
        ),
        virtual_node("closed", "64", EUR, &closed),
        virtual_node(
            "cordoned",
            "64",
            EUR,
            &json!({ "spec": { "unschedulable": true } }),
        ),
        virtual_node(
            "away",
            "64",
            EUR,
            &json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        ),
    ];
    let why = |pod: &Value, spec: Option<Value>, name: &str| {
        let spec = spec.map(offloaded);
        place(&planned_with(pod, &nodes, &[], spec.as_ref()), name)
            .why_not
            .join("; ")
    };
    let only_eu = json!({ "clusterSelector": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "region", "operator": "In", "values": ["eu"] }] }] } });
    let plain = two_cores();
    for (spec, name, expected) in [
        (
            None,
            "milan",
            "namespace demo is not offloaded: `liqoctl offload namespace demo`",
        ),
        (
            Some(json!({ "podOffloadingStrategy": "Local" })),
            "milan",
            "the strategy of namespace demo is Local",
        ),
        (
            Some(json!({ "podOffloadingStrategy": "Remote" })),
            "rome",
            "the strategy of namespace demo is Remote; no node here takes the pods: see their node selector, affinity and tolerations",
        ),
        (
            Some(only_eu.clone()),
            "us",
            "the cluster selector of namespace demo does not select it",
        ),
        (Some(only_eu), "milan", ""),
        (Some(json!({})), "closed", "cpu costs too much"),
        (Some(json!({})), "cordoned", "the node is cordoned"),
        (Some(json!({})), "away", "the node is not Ready"),
    ] {
        assert_eq!(why(&plain, spec, name), expected, "{name}");
    }
    let with = |field: Value| {
        let mut pod = two_cores();
        merge(&mut pod, &field);
        pod
    };
    let bound = with(json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] }));
    assert!(
        why(
            &bound,
            Some(json!({ "podOffloadingStrategy": "Remote" })),
            "milan"
        )
        .contains("hostPath")
    );
    assert!(
        !why(
            &bound,
            Some(json!({ "podOffloadingStrategy": "Remote" })),
            "rome"
        )
        .contains("Remote")
    );
    let tolerant = with(json!({ "tolerations": [{ "key": "control", "operator": "Exists" }] }));
    assert_eq!(why(&tolerant, Some(json!({})), "rome"), "");
    let selecting = with(json!({ "nodeSelector": { "region": "us" } }));
    assert_eq!(
        why(&selecting, Some(json!({})), "milan"),
        "the pod's nodeSelector wants region=us, which the node does not have"
    );
    assert_eq!(why(&selecting, Some(json!({})), "us"), "");
}

#[test]
fn a_pod_that_no_single_node_of_a_provider_has_room_for_does_not_fit_there() {
    let largest =
        |text: &str| json!({ "metadata": { "annotations": { "liqo.io/largest-pods": text } } });
    let nodes = [
        virtual_node(
            "milan",
            "16",
            EUR,
            &largest(r#"[{"cpu":"1719m","memory":"8Gi","pods":"1"}]"#),
        ),
        virtual_node(
            "turin",
            "16",
            EUR,
            &largest(
                r#"[{"cpu":"1","memory":"9Gi","pods":"1"},{"cpu":"2","memory":"1Gi","pods":"1"}]"#,
            ),
        ),
    ];
    let spec = offloaded(json!({ "podOffloadingStrategy": "LocalAndRemote" }));
    let planned = planned_with(&two_cores(), &nodes, &[], Some(&spec));
    assert_eq!(
        (place(&planned, "turin").fits, place(&planned, "milan").fits),
        (4, 0)
    );
    let why_not =
        ["no node has room: cpu: 281m short (2 requested, 1719m available) on the largest node"];
    assert_eq!(place(&planned, "milan").why_not, why_not);
}
