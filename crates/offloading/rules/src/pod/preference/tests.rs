use std::collections::BTreeMap;

use PlacementStrategy::{Cheapest, FixedOrder, OwnFirst, Spread};
use PodOffloadingStrategy::{LocalAndRemote, Remote};
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::json::{items_at, text_at};
use crate::node::priced::tests::{any_nodes, cores, node};
use crate::pod::carry::outgoing_pod;

fn placement(strategy: PlacementStrategy, order: &[&str]) -> PodPlacement {
    let order = order.iter().map(|&name| name.to_owned()).collect();
    PodPlacement {
        strategy,
        order,
        move_when_cheaper: false,
    }
}

/// The patched pod.
fn preferring(
    pod: &Value,
    placement: &PodPlacement,
    strategy: PodOffloadingStrategy,
    nodes: &[PricedNode],
) -> Value {
    let nodes: Vec<&PricedNode> = nodes.iter().collect();
    let amounts = cores(1);
    let mut patch = Vec::new();
    add_preference(
        pod,
        &mut patch,
        &PreferenceFacts {
            placement,
            strategy,
            nodes: &nodes,
            amounts: &amounts,
            own_name: "rome",
        },
    );
    let patch: json_patch::Patch = serde_json::from_value(patch.into()).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

fn preferred(pod: &Value) -> &[Value] {
    items_at(
        pod,
        "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution",
    )
}

fn plain() -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}})
}

/// What the scheduler adds up for a node: the weights of the terms that it matches. `None` is a
/// node of this cluster.
fn weight_of(pod: &Value, node: Option<&PricedNode>) -> i64 {
    let labels = node.map_or_else(BTreeMap::new, |node| node.labels.clone());
    let holds = |one: &Value| {
        let found = labels
            .get(text_at(one, "/key").unwrap())
            .map(String::as_str);
        let is_named = items_at(one, "/values")
            .iter()
            .any(|value| value.as_str() == found && found.is_some());
        match text_at(one, "/operator").unwrap() {
            "DoesNotExist" => found.is_none(),
            "In" => is_named,
            "NotIn" => !is_named,
            operator => unreachable!("{operator}"),
        }
    };
    let matching = preferred(pod).iter().filter(|term| {
        items_at(term, "/preference/matchExpressions")
            .iter()
            .all(holds)
    });
    matching.map(|term| term["weight"].as_i64().unwrap()).sum()
}

fn sold() -> Vec<PricedNode> {
    vec![
        node("milan", Some(("0.05", "EUR"))),
        node("turin", Some(("0.04", "EUR"))),
        node("lyon", Some(("0.01", "USD"))),
    ]
}

fn weights_with(
    placement: &PodPlacement,
    strategy: PodOffloadingStrategy,
    nodes: &[PricedNode],
) -> (i64, Vec<i64>) {
    let pod = preferring(&plain(), placement, strategy, nodes);
    (
        weight_of(&pod, None),
        nodes
            .iter()
            .map(|node| weight_of(&pod, Some(node)))
            .collect(),
    )
}

#[test]
fn the_cheapest_node_is_preferred_and_another_currency_is_last() {
    let cheapest = placement(Cheapest, &[]);
    assert_eq!(
        weights_with(&cheapest, Remote, &sold()),
        (0, vec![10, 100, 1])
    );
    assert_eq!(
        weights_with(&cheapest, LocalAndRemote, &sold()),
        (100, vec![5, 22, 1])
    );
    let mut with_free = sold();
    with_free.push(node("free", None));
    assert_eq!(
        weights_with(&cheapest, LocalAndRemote, &with_free),
        (100, vec![5, 22, 1, 100]),
        "own nodes cost nothing, too"
    );
    assert_eq!(
        weights_with(&cheapest, Remote, &with_free),
        (0, vec![5, 22, 1, 100])
    );
}

#[test]
fn own_nodes_are_preferred_even_to_free_ones() {
    let nodes = [node("free", None), node("milan", Some(("0.05", "EUR")))];
    assert_eq!(
        weights_with(&placement(OwnFirst, &[]), LocalAndRemote, &nodes),
        (100, vec![10, 1])
    );
    assert_eq!(
        weights_with(&placement(OwnFirst, &[]), Remote, &nodes),
        (0, vec![100, 1])
    );
}

#[test]
fn a_fixed_order_names_nodes_clusters_and_this_cluster() {
    let fixed =
        |order: &[&str], strategy| weights_with(&placement(FixedOrder, order), strategy, &sold());
    assert_eq!(
        fixed(&["lyon", "rome", "id-of-milan"], LocalAndRemote),
        (10, vec![1, 0, 100])
    );
    assert_eq!(
        fixed(&["lyon", "rome", "milan"], Remote),
        (0, vec![1, 0, 100])
    );
    assert_eq!(
        fixed(&["nowhere", "turin", "turin"], LocalAndRemote),
        (0, vec![0, 100, 0])
    );
}

#[test]
fn a_term_of_ours_is_as_the_api_server_stores_it() {
    let pod = preferring(&plain(), &placement(Cheapest, &[]), Remote, &sold()[..1]);
    let mark = json!({"key": "liqo.io/placement", "operator": "DoesNotExist"});
    let names = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["milan"]});
    assert_eq!(
        preferred(&pod),
        [json!({"weight": 100, "preference": {"matchExpressions": [mark, names]}})]
    );
    let read: k8s_openapi::api::core::v1::Affinity =
        serde_json::from_value(pod["spec"]["affinity"].clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), pod["spec"]["affinity"]);
}

#[test]
fn a_pod_is_spread_by_the_labels_that_it_shares_unless_it_says_how() {
    let labels = json!({"app": "web", "statefulset.kubernetes.io/pod-name": "web-0", "apps.kubernetes.io/pod-index": "0"});
    let pod = json!({"metadata": {"labels": labels}, "spec": {}});
    let spread = placement(Spread, &[]);
    for (strategy, key) in [
        (Remote, "liqo.io/remote-cluster-id"),
        (LocalAndRemote, "kubernetes.io/hostname"),
    ] {
        let placed = preferring(&pod, &spread, strategy, &sold());
        let constraint = json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}});
        assert_eq!(
            placed["spec"],
            json!({"topologySpreadConstraints": [constraint]})
        );
        assert_eq!(
            preferring(&placed, &spread, strategy, &sold()),
            placed,
            "the second time"
        );
    }
    let own = json!({"metadata": {"labels": labels}, "spec": {"topologySpreadConstraints": [{"topologyKey": "zone"}]}});
    let bare = json!({"metadata": {}, "spec": {}});
    for pod in [own, bare] {
        assert_eq!(preferring(&pod, &spread, Remote, &sold()), pod);
    }
}

#[test]
fn other_changes_to_the_affinity_stay() {
    let required = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}});
    let mut patch = vec![json!({"op": "add", "path": "/spec/affinity", "value": required})];
    let (nodes, amounts) = (sold(), cores(1));
    let nodes: Vec<&PricedNode> = nodes.iter().collect();
    let facts = PreferenceFacts {
        placement: &placement(Cheapest, &[]),
        strategy: Remote,
        nodes: &nodes,
        amounts: &amounts,
        own_name: "rome",
    };
    add_preference(&plain(), &mut patch, &facts);
    assert_eq!(patch.len(), 1);
    let affinity = &patch[0]["value"]["nodeAffinity"];
    assert_eq!(
        affinity["requiredDuringSchedulingIgnoredDuringExecution"],
        required["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    );
    assert_eq!(
        items_at(
            &patch[0],
            "/value/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution"
        )
        .len(),
        3
    );
}

#[test]
fn the_preference_is_bounded() {
    let nodes: Vec<PricedNode> = (0..1000)
        .map(|index| {
            node(
                &format!("n{index:04}"),
                Some((&format!("0.{index:04}"), "EUR")),
            )
        })
        .collect();
    let pod = preferring(&plain(), &placement(OwnFirst, &[]), LocalAndRemote, &nodes);
    assert_eq!(preferred(&pod).len(), MAX_NODES);
    assert_eq!(
        (weight_of(&pod, None), weight_of(&pod, nodes.first())),
        (100, 93)
    );
    assert!(
        pod.to_string().len() < 16 * 1024,
        "{}",
        pod.to_string().len()
    );
    let same: Vec<PricedNode> = (0..1000)
        .map(|index| node(&format!("n{index:04}"), Some(("1", "EUR"))))
        .collect();
    let pod = preferring(&plain(), &placement(Cheapest, &[]), Remote, &same);
    assert_eq!(
        items_at(&preferred(&pod)[0], "/preference/matchExpressions/1/values").len(),
        MAX_NODES
    );
}

#[test]
fn weights_fall_from_100_to_1_by_an_equal_ratio() {
    assert_eq!(class_weights(0), [0_i32; 0]);
    assert_eq!(class_weights(1), [100]);
    assert_eq!(class_weights(2), [100, 1]);
    assert_eq!(class_weights(3), [100, 10, 1]);
    assert_eq!(class_weights(5), [100, 32, 10, 4, 1]);
    for classes in 2..=MAX_NODES {
        let weights = class_weights(classes);
        assert_eq!(
            (weights.len(), weights[0], weights[classes - 1]),
            (classes, 100, 1)
        );
        assert!(weights.is_sorted_by(|one, next| one > next), "{weights:?}");
    }
}

fn any_term() -> impl Strategy<Value = Value> {
    select(vec![
        json!({"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}),
        json!({"weight": 50, "preference": {"matchExpressions": [{"key": "liqo.io/type", "operator": "Exists"}]}}),
        json!({"weight": 50, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["milan"]}]}}),
    ])
}

fn any_placement() -> impl Strategy<Value = PodPlacement> {
    let names = vec(
        select(vec!["n0", "n1", "id-of-n2", "rome", "unknown"]),
        1..5,
    );
    (select(vec![OwnFirst, Cheapest, Spread, FixedOrder]), names).prop_map(|(strategy, order)| {
        placement(strategy, if strategy == FixedOrder { &order } else { &[] })
    })
}

proptest! {
    #[test]
    fn a_cheaper_node_never_has_a_lower_weight_and_equal_prices_have_equal_weights(
        nodes in any_nodes(),
        strategy in select(vec![Cheapest, OwnFirst]),
        offloading in select(vec![LocalAndRemote, Remote]),
    ) {
        let pod = preferring(&plain(), &placement(strategy, &[]), offloading, &nodes);
        let all: Vec<&PricedNode> = nodes.iter().collect();
        let costs = costs_by_node(&cores(1), &all);
        for (one, cost) in &costs {
            for (other, others_cost) in &costs {
                let weights = (weight_of(&pod, Some(one)), weight_of(&pod, Some(other)));
                prop_assert_eq!(cost.cmp(others_cost), weights.1.cmp(&weights.0), "{:?} {:?}", one.name, other.name);
            }
            if offloading == LocalAndRemote {
                prop_assert!(weight_of(&pod, None) >= weight_of(&pod, Some(one)), "own nodes cost nothing");
            }
        }
    }

    #[test]
    fn a_second_run_changes_nothing_and_one_with_other_prices_replaces_the_first(
        placement in any_placement(),
        offloading in select(vec![LocalAndRemote, Remote]),
        before in any_nodes(),
        after in any_nodes(),
        theirs in vec(any_term(), 0..3),
    ) {
        let mut pod = plain();
        if !theirs.is_empty() {
            pod["spec"]["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": theirs}});
        }
        let once = preferring(&pod, &placement, offloading, &before);
        prop_assert_eq!(&preferring(&once, &placement, offloading, &before), &once);
        let kept: Vec<&Value> = preferred(&once).iter().filter(|term| !has_marker(term)).collect();
        prop_assert_eq!(kept, theirs.iter().collect::<Vec<_>>());
        let again = preferring(&once, &placement, offloading, &after);
        let directly = preferring(&pod, &placement, offloading, &after);
        prop_assert_eq!(preferred(&again), preferred(&directly));
        prop_assert!(preferred(&again).len() <= theirs.len() + MAX_NODES + 1);
    }

    #[test]
    fn our_preferences_do_not_travel(
        placement in any_placement(),
        offloading in select(vec![LocalAndRemote, Remote]),
        nodes in any_nodes(),
    ) {
        let pod = preferring(&plain(), &placement, offloading, &nodes);
        let advertised = ["zone".to_owned()].into();
        prop_assert_eq!(outgoing_pod(&pod, &advertised).unwrap(), outgoing_pod(&plain(), &advertised).unwrap());
    }
}
