use liqo_api::ClusterId;
use proptest::prelude::*;
use serde_json::{Value, from_value, json};

use super::*;

fn list(text: &str) -> ResourceList {
    let pair = |pair: &str| {
        let (name, quantity) = pair.split_once('=').unwrap();
        (name.to_owned(), quantity.parse::<Quantity>().unwrap())
    };
    text.split(", ")
        .filter(|pair| !pair.is_empty())
        .map(pair)
        .collect()
}

fn shared() -> Vec<Selector> {
    vec!["pool=shared".parse().unwrap()]
}

fn reduced_node(change: impl FnOnce(&mut Value)) -> Option<SelectedNode> {
    let mut value = json!({
        "metadata": { "name": "a", "labels": { "pool": "shared" } },
        "spec": {},
        "status": { "allocatable": { "cpu": "4", "pods": "110" }, "conditions": [{ "type": "Ready", "status": "True" }] }
    });
    change(&mut value);
    select_node(from_value(value).unwrap(), &shared())
}

#[test]
fn a_ready_selected_node_counts_with_its_allocatable() {
    let node = reduced_node(|_| ()).unwrap();
    assert!(node.open);
    assert_eq!(node.allocatable, list("cpu=4, pods=110"));
}

#[test]
fn other_nodes_and_virtual_nodes_do_not_count() {
    assert_eq!(
        reduced_node(|node| node["metadata"]["labels"] = json!({ "pool": "own" })),
        None
    );
    assert_eq!(
        reduced_node(|node| node["metadata"]["labels"] = json!({})),
        None
    );
    assert_eq!(
        reduced_node(|node| node["metadata"]["labels"]["liqo.io/type"] = json!("virtual-node")),
        None
    );
}

#[test]
fn nodes_that_are_cordoned_tainted_not_ready_or_terminating_are_closed() {
    let open = |change: fn(&mut Value)| reduced_node(change).unwrap().open;
    assert!(!open(|node| node["spec"]["unschedulable"] = json!(true)));
    assert!(!open(
        |node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "NoSchedule" }])
    ));
    assert!(!open(
        |node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "NoExecute" }])
    ));
    assert!(open(
        |node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "PreferNoSchedule" }])
    ));
    assert!(!open(
        |node| node["status"]["conditions"][0]["status"] = json!("Unknown")
    ));
    assert!(!open(|node| node["status"]["conditions"] = json!([])));
    assert!(!open(
        |node| node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
    ));
}

fn reduced_pod(change: impl FnOnce(&mut Value)) -> Option<BoundPod> {
    let mut value = json!({
        "metadata": { "name": "p" },
        "spec": { "nodeName": "a", "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
        "status": { "phase": "Running" }
    });
    change(&mut value);
    bound_pod(from_value(value).unwrap())
}

#[test]
fn a_pod_uses_its_node_from_binding_to_its_end() {
    let bound = BoundPod {
        node: "a".into(),
        requests: list("cpu=1, pods=1"),
        consumer: None,
    };
    assert_eq!(reduced_pod(|_| ()), Some(bound.clone()));
    assert_eq!(
        reduced_pod(|pod| pod["status"]["phase"] = json!("Pending")),
        Some(bound.clone()),
        "bound, not started"
    );
    assert_eq!(reduced_pod(|pod| pod["status"] = json!(null)), Some(bound));
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(
            reduced_pod(|pod| pod["status"]["phase"] = json!(phase)),
            None,
            "{phase}"
        );
    }
    for nowhere in [json!(null), json!("")] {
        assert_eq!(reduced_pod(|pod| pod["spec"]["nodeName"] = nowhere), None);
    }
}

#[test]
fn a_pod_that_is_resized_in_place_counts_with_its_allocated_amount() {
    let resized = reduced_pod(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "resources": { "requests": { "cpu": "3" } }
        }]);
    });
    assert_eq!(resized.unwrap().requests, list("cpu=3, pods=1"));
}

#[test]
fn only_mapped_namespaces_have_a_consumer() {
    let of = |labels: Value| {
        consumer_of_namespace(
            from_value(json!({ "metadata": { "name": "n", "labels": labels } })).unwrap(),
        )
    };
    let rome = ClusterId::of_public_key(&[1; 32]).to_string();
    let mapped = json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": "mapped", "liqo.io/consumer-id": rome, "liqo.io/home-namespace": "demo" });
    assert_eq!(of(mapped.clone()), Some(rome.clone()));
    for (label, other) in [
        ("liqo.io/managed", "false"),
        ("liqo.io/namespace-kind", "tenant"),
    ] {
        let mut labels = mapped.clone();
        labels[label] = json!(other);
        assert_eq!(of(labels), None, "{label}={other}");
    }
    assert_eq!(
        of(json!({ "liqo.io/consumer-id": rome })),
        None,
        "anybody can set a label"
    );
    assert_eq!(of(Value::Null), None);
}

fn open(allocatable: &str) -> SelectedNode {
    SelectedNode {
        open: true,
        allocatable: list(allocatable),
    }
}

fn closed(allocatable: &str) -> SelectedNode {
    SelectedNode {
        open: false,
        ..open(allocatable)
    }
}

/// A pod with its namespace.
type NamespacedPod = (&'static str, BoundPod);

fn own(node: &str, requests: &str) -> NamespacedPod {
    (
        "default",
        BoundPod {
            node: node.into(),
            requests: list(requests),
            consumer: None,
        },
    )
}

fn of(consumer: &'static str, node: &str, requests: &str) -> NamespacedPod {
    (
        consumer,
        BoundPod {
            consumer: Some(consumer.into()),
            ..own(node, requests).1
        },
    )
}

fn counted(nodes: &[(&str, SelectedNode)], pods: &[NamespacedPod]) -> Offers {
    // In these tests each consumer has one namespace of its own name.
    let namespaces =
        HashMap::from(["rome", "milan"].map(|name| (name.to_owned(), name.to_owned())));
    compute_offers(
        nodes.iter().map(|(name, node)| (*name, node)),
        pods.iter().map(|(namespace, pod)| (*namespace, pod)),
        &namespaces,
    )
}

fn offered(nodes: &[(&str, SelectedNode)], pods: &[NamespacedPod], cluster: &str) -> String {
    counted(nodes, pods).offer_to(cluster).to_string()
}

#[test]
fn what_is_free_on_the_selected_nodes_is_offered() {
    let nodes = [
        ("a", open("cpu=4, memory=8Gi, pods=10")),
        ("b", open("cpu=2, memory=8Gi, pods=10")),
    ];
    let pods = [
        own("a", "cpu=1, memory=1Gi, pods=1"),
        own("b", "cpu=500m, pods=1"),
        own("elsewhere", "cpu=100, pods=1"),
    ];
    assert_eq!(
        offered(&nodes, &pods, "rome"),
        "cpu=4500m, memory=15Gi, pods=18"
    );
}

#[test]
fn using_an_offer_does_not_make_it_smaller() {
    let nodes = [("a", open("cpu=4, memory=8Gi, pods=10"))];
    let pods = [of("rome", "a", "cpu=1, pods=1"), own("a", "cpu=1, pods=1")];
    assert_eq!(offered(&nodes, &pods, "rome"), "cpu=3, memory=8Gi, pods=9");
    assert_eq!(
        offered(&nodes, &pods, "milan"),
        "cpu=2, memory=8Gi, pods=8",
        "others cannot use these resources"
    );
}

#[test]
fn the_label_counts_only_in_the_consumers_own_namespaces() {
    let nodes = [("a", open("cpu=4, memory=8Gi, pods=10"))];
    let (_, pod) = of("rome", "a", "cpu=1, pods=1");
    for namespace in ["default", "milan"] {
        assert_eq!(
            offered(&nodes, &[(namespace, pod.clone())], "rome"),
            "cpu=3, memory=8Gi, pods=9",
            "{namespace}"
        );
    }
}

#[test]
fn an_overcommitted_node_does_not_reduce_others_and_nothing_is_negative() {
    let nodes = [("a", open("cpu=1, pods=1")), ("b", open("cpu=4, pods=10"))];
    assert_eq!(
        offered(&nodes, &[own("a", "cpu=3, pods=2")], "rome"),
        "cpu=4, memory=0, pods=10"
    );
    assert_eq!(
        offered(
            &nodes[..1],
            &[own("a", "cpu=3, pods=2"), of("rome", "a", "cpu=1")],
            "rome"
        ),
        "cpu=0, memory=0, pods=0"
    );
}

#[test]
fn a_closed_node_counts_with_the_requests_of_the_clusters_pods() {
    let nodes = [
        ("a", closed("cpu=4, pods=10")),
        ("b", open("cpu=2, pods=10")),
    ];
    let pods = [of("rome", "a", "cpu=1, pods=1"), own("a", "cpu=1, pods=1")];
    assert_eq!(offered(&nodes, &pods, "rome"), "cpu=3, memory=0, pods=11");
    assert_eq!(offered(&nodes, &pods, "milan"), "cpu=2, memory=0, pods=10");
}

#[test]
fn a_change_of_allocatable_changes_the_offer() {
    let pods = [own("a", "cpu=1, pods=1")];
    assert_eq!(
        offered(&[("a", open("cpu=4, pods=10"))], &pods, "rome"),
        "cpu=3, memory=0, pods=9"
    );
    assert_eq!(
        offered(&[("a", open("cpu=3500m, pods=10"))], &pods, "rome"),
        "cpu=2500m, memory=0, pods=9"
    );
}

#[test]
fn without_nodes_the_needed_resources_are_offered_as_zero() {
    assert_eq!(
        offered(&[], &[own("a", "cpu=1")], "rome"),
        "cpu=0, memory=0, pods=0"
    );
}

#[test]
fn resources_that_no_node_has_or_no_pod_can_request_are_removed() {
    let nodes = [(
        "a",
        open("cpu=4, hugepages-1Gi=0, attachable-volumes-aws-ebs=25, nvidia.com/gpu=1"),
    )];
    assert_eq!(
        offered(&nodes, &[], "rome"),
        "cpu=4, memory=0, nvidia.com/gpu=1, pods=0"
    );
    let used = [own("a", "nvidia.com/gpu=1")];
    assert_eq!(
        offered(&nodes, &used, "rome"),
        "cpu=4, memory=0, nvidia.com/gpu=0, pods=0",
        "a resource that is used up is still listed"
    );
}

#[test]
fn only_clusters_whose_offers_changed_are_announced() {
    let nodes = [
        ("a", open("cpu=4, memory=8Gi, pods=10")),
        ("b", closed("cpu=4, pods=10")),
    ];
    let one = counted(&nodes, &[of("rome", "a", "cpu=1, pods=1")]);
    assert_eq!(one.changes_to(&one), []);
    let closed_more = counted(
        &nodes,
        &[
            of("rome", "a", "cpu=1, pods=1"),
            of("rome", "b", "cpu=1, pods=1"),
        ],
    );
    assert_eq!(
        one.changes_to(&closed_more),
        [Change::Cluster("rome".into())]
    );
    assert_eq!(
        closed_more.changes_to(&one),
        [Change::Cluster("rome".into())]
    );
    assert_eq!(
        one.changes_to(&counted(&nodes, &[own("a", "cpu=1, pods=1")])),
        [Change::Cluster("rome".into())]
    );
    assert_eq!(
        one.changes_to(&counted(&nodes, &[])),
        [Change::All],
        "free for everybody"
    );
}

prop_compose! {
    fn cluster()(
        nodes in prop::collection::vec((any::<bool>(), 0_i64..8, 0_i64..4), 0..4),
        pods in prop::collection::vec((0_usize..5, 0_i64..6, 0_usize..4), 0..12),
    ) -> (Vec<(String, SelectedNode)>, Vec<(String, BoundPod)>) {
        let nodes = nodes.into_iter().enumerate().map(|(index, (open, cpu, pods))| {
            let allocatable = [("cpu", Quantity::from_units(cpu)), ("pods", Quantity::from_units(pods))].into();
            (format!("node-{index}"), SelectedNode { open, allocatable })
        });
        let pods = pods.into_iter().map(|(node, cpu, owner)| {
            let requests = [("cpu", Quantity::from_units(cpu)), ("pods", Quantity::from_units(1))].into();
            let consumer = ["rome", "milan", "turin"].get(owner).map(|owner| (*owner).to_owned());
            let namespace = consumer.clone().unwrap_or_else(|| "default".to_owned());
            (namespace, BoundPod { node: format!("node-{node}"), requests, consumer })
        });
        (nodes.collect(), pods.collect())
    }
}

fn count(nodes: &[(String, SelectedNode)], pods: &[(String, BoundPod)]) -> Offers {
    let namespaces = ["rome", "milan", "turin"]
        .map(|name| (name.to_owned(), name.to_owned()))
        .into();
    compute_offers(
        nodes.iter().map(|(name, node)| (name.as_str(), node)),
        pods.iter().map(|(name, pod)| (name.as_str(), pod)),
        &namespaces,
    )
}

proptest! {
    #[test]
    fn offers_equal_the_sum_over_single_nodes((nodes, pods) in cluster()) {
        let offers = count(&nodes, &pods);
        for cluster in ["rome", "milan", "turin", "newcomer"] {
            for resource in ["cpu", "pods"] {
                let mut expected = 0;
                for (name, node) in &nodes {
                    let held = |theirs: bool| -> i64 {
                        let here = pods.iter().filter(|(_, pod)| pod.node == *name);
                        here.filter(|(_, pod)| theirs == (pod.consumer.as_deref() == Some(cluster))).map(|(_, pod)| pod.requests.get(resource).value()).sum()
                    };
                    let allocatable = node.allocatable.get(resource).value();
                    expected += if node.open { (allocatable - held(false)).max(0) } else { held(true).min(allocatable) };
                }
                prop_assert_eq!(offers.offer_to(cluster).get(resource).value(), expected, "{} of {}", cluster, resource);
            }
        }
    }

    #[test]
    fn nothing_is_negative_and_no_offer_exceeds_the_nodes((nodes, pods) in cluster()) {
        let offers = count(&nodes, &pods);
        let all: ResourceList = nodes.iter().map(|(_, node)| &node.allocatable).sum();
        for cluster in ["rome", "milan", "turin", "newcomer"] {
            prop_assert!(offers.offer_to(cluster).iter().all(|(_, quantity)| !quantity.is_negative()));
            prop_assert_eq!(offers.offer_to(cluster).fits_in(&all), Ok(()));
            prop_assert_eq!(offers.offer_to("newcomer").fits_in(offers.offer_to(cluster)), Ok(()));
        }
    }

    #[test]
    fn the_order_of_events_does_not_matter((nodes, pods) in cluster(), turn in 0_usize..12) {
        let mut turned = pods.clone();
        turned.rotate_left(turn % pods.len().max(1));
        turned.reverse();
        prop_assert_eq!(count(&nodes, &pods), count(&nodes, &turned));
    }

    #[test]
    fn exactly_the_real_changes_are_announced((nodes, before) in cluster(), (_, after) in cluster()) {
        let (old, new) = (count(&nodes, &before), count(&nodes, &after));
        let changes = old.changes_to(&new);
        for cluster in ["rome", "milan", "turin", "newcomer"] {
            let announced = changes.contains(&Change::All) || changes.contains(&Change::Cluster(cluster.to_owned()));
            let changed = old.offer_to(cluster) != new.offer_to(cluster);
            prop_assert!(announced || !changed, "the change of {} was not announced", cluster);
            prop_assert!(changed || !changes.contains(&Change::Cluster(cluster.to_owned())), "{} did not change", cluster);
        }
    }
}
