use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

use super::*;
use crate::node::priced::tests::{any_nodes, cores, node};
use crate::pod::local_state::LocalPod;
use crate::pod::running_pod::may_run_at_home;

fn key(name: &str) -> Key {
    Key::new("demo", name)
}

fn pod(name: &str, node: &str, number: i64, budgets: &[&str]) -> RunningPod {
    RunningPod {
        key: key(name),
        uid: name.to_owned(),
        node: node.to_owned(),
        labels: BTreeMap::new(),
        amounts: cores(number),
        controller: Some(format!("controller-of-{name}")),
        ready: true,
        excluded: BTreeSet::new(),
        may_run_at_home: true,
        ends_soon: false,
        budgets: budgets.iter().map(|name| key(name)).collect(),
    }
}

fn targets(nodes: &[PricedNode], free: i64) -> Vec<TargetNode<'_>> {
    nodes
        .iter()
        .map(|node| TargetNode {
            node,
            free: Some(cores(free)),
        })
        .collect()
}

fn found(
    pods: &[RunningPod],
    targets: &[TargetNode],
    allowed: &[(&str, u32)],
    max: usize,
) -> Vec<(String, String, String)> {
    let allowed = allowed
        .iter()
        .map(|(name, number)| (key(name), *number))
        .collect();
    let all = find_savings(&SavingFacts {
        pods,
        targets,
        allowed: &allowed,
        unsettled: &BTreeSet::new(),
        max,
    });
    all.into_iter()
        .map(|one| (one.key.name, one.to, one.per_hour.to_string()))
        .collect()
}

fn moves(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter()
        .map(|(pod, to, saved)| ((*pod).to_owned(), (*to).to_owned(), (*saved).to_owned()))
        .collect()
}

fn sold(milan: &str, turin: &str) -> [PricedNode; 2] {
    [
        node("milan", Some((milan, "EUR"))),
        node("turin", Some((turin, "EUR"))),
    ]
}

#[test]
fn the_largest_saving_is_first_and_only_so_many_move_at_a_time() {
    let nodes = sold("0.05", "0.04");
    let pods = [
        pod("small", "milan", 1, &[]),
        pod("big", "milan", 4, &[]),
        pod("there", "turin", 9, &[]),
    ];
    assert_eq!(
        found(&pods, &targets(&nodes, 100), &[], 9),
        moves(&[("big", "turin", "0.04"), ("small", "turin", "0.01")])
    );
    assert_eq!(
        found(&pods, &targets(&nodes, 100), &[], 1),
        moves(&[("big", "turin", "0.04")])
    );
    assert_eq!(found(&pods, &targets(&nodes, 100), &[], 0), []);
}

#[test]
fn less_than_a_tenth_moves_nothing() {
    let pods = [pod("web", "milan", 1, &[])];
    for (turin, saved) in [
        ("0.09", Some("0.01")),
        ("0.0900001", None),
        ("0.1", None),
        ("0.11", None),
        ("0", Some("0.1")),
    ] {
        let nodes = sold("0.1", turin);
        let expected: Vec<_> = saved
            .into_iter()
            .flat_map(|saved| moves(&[("web", "turin", saved)]))
            .collect();
        assert_eq!(
            found(&pods, &targets(&nodes, 9), &[], 9),
            expected,
            "{turin}"
        );
    }
}

#[test]
fn a_budget_is_kept_and_a_pod_with_two_budgets_stays() {
    let nodes = sold("0.05", "0.01");
    let pods = [
        pod("a", "milan", 3, &["web"]),
        pod("b", "milan", 2, &["web"]),
        pod("c", "milan", 1, &["web", "all"]),
    ];
    assert_eq!(
        found(&pods, &targets(&nodes, 9), &[("web", 1), ("all", 9)], 9),
        moves(&[("a", "turin", "0.12")])
    );
    assert_eq!(found(&pods, &targets(&nodes, 9), &[("web", 0)], 9), []);
    assert_eq!(
        found(&pods, &targets(&nodes, 9), &[], 9),
        [],
        "a budget that is not known allows nothing"
    );
}

#[test]
fn pods_move_only_to_where_there_is_room_and_only_if_they_are_created_again() {
    let nodes = sold("0.05", "0.01");
    let pods = [
        pod("a", "milan", 3, &[]),
        pod("b", "milan", 2, &[]),
        pod("c", "milan", 1, &[]),
    ];
    assert_eq!(
        found(&pods, &targets(&nodes, 4), &[], 9),
        moves(&[("a", "turin", "0.12"), ("c", "turin", "0.04")])
    );
    let closed: Vec<TargetNode> = nodes
        .iter()
        .map(|node| TargetNode { node, free: None })
        .collect();
    assert_eq!(found(&pods, &closed, &[], 9), []);
    let alone = [RunningPod {
        controller: None,
        ..pod("alone", "milan", 1, &[])
    }];
    assert_eq!(found(&alone, &targets(&nodes, 9), &[], 9), []);
    let pinned = [RunningPod {
        excluded: ["turin".to_owned()].into(),
        ..pod("pinned", "milan", 1, &[])
    }];
    assert_eq!(found(&pinned, &targets(&nodes, 9), &[], 9), []);
}

#[test]
fn a_controller_loses_one_pod_at_a_time_and_none_while_it_lacks_one() {
    let nodes = sold("0.05", "0.01");
    let of_web = |name: &str, number, ready| RunningPod {
        controller: Some("web".to_owned()),
        ready,
        ..pod(name, "milan", number, &[])
    };
    let all = [
        of_web("a", 1, true),
        of_web("b", 2, true),
        pod("other", "milan", 1, &[]),
    ];
    assert_eq!(
        found(&all, &targets(&nodes, 9), &[], 9),
        moves(&[("b", "turin", "0.08"), ("other", "turin", "0.04")])
    );
    let one_waits = [of_web("a", 1, true), of_web("b", 2, false)];
    assert_eq!(found(&one_waits, &targets(&nodes, 9), &[], 9), []);
    let unsettled = ["web".to_owned()].into();
    let facts = SavingFacts {
        pods: &all[..2],
        targets: &targets(&nodes, 9),
        allowed: &BTreeMap::new(),
        unsettled: &unsettled,
        max: 9,
    };
    assert_eq!(find_savings(&facts), []);
}

#[test]
fn a_local_pod_becomes_what_the_rule_needs() {
    let json = json!({
        "metadata": { "namespace": "demo", "name": "web-1", "uid": "u", "labels": { "app": "web" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true }] },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "2" } } }], "nodeSelector": { "zone": "a" } },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    let of = |json: &Value| {
        let local = LocalPod::from_pod(
            serde_json::from_value(json.clone()).unwrap(),
            &key("default"),
        )
        .unwrap();
        let mut near = node("near", None);
        near.labels.insert("zone".to_owned(), "a".to_owned());
        RunningPod::on_node(&local, "milan", &[&near, &node("far", None)])
    };
    let found = of(&json).unwrap();
    assert_eq!(
        (found.key, found.node.as_str(), found.controller.as_deref()),
        (key("web-1"), "milan", Some("r"))
    );
    assert_eq!(found.amounts.get("cpu").to_string(), "2");
    assert_eq!(
        (found.ready, found.excluded, found.labels["app"].as_str()),
        (true, ["far".to_owned()].into(), "web")
    );
    let with = |pointer: &str, value: Value| {
        let mut json = json.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        of(&json)
    };
    assert_eq!(with("/status/phase", json!("Succeeded")), None);
    assert_eq!(
        with("/metadata/ownerReferences/0/kind", json!("Job"))
            .unwrap()
            .controller,
        None
    );
    assert!(
        !with("/status/conditions/0/status", json!("False"))
            .unwrap()
            .ready
    );
    let affinity = |values: Value| json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": values }] } });
    let required = affinity(json!([{ "key": "zone", "operator": "DoesNotExist" }]));
    let mut pinned = json.clone();
    pinned["spec"]["nodeSelector"] = json!({});
    pinned["spec"]["affinity"] = json!({ "nodeAffinity": required });
    assert_eq!(of(&pinned).unwrap().excluded, ["near".to_owned()].into());
}

#[test]
fn only_a_namespace_that_asks_for_it_moves_pods() {
    let asks = |spec: Value| {
        let metadata = json!({ "name": "offloading", "namespace": "demo" });
        moves_pods(&serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
    };
    assert!(asks(
        json!({ "placement": { "strategy": "Cheapest", "moveWhenCheaper": true } })
    ));
    assert!(!asks(json!({ "placement": { "strategy": "Cheapest" } })));
    assert!(!asks(
        json!({ "placement": { "strategy": "OwnFirst", "moveWhenCheaper": true } })
    ));
    assert!(!asks(
        json!({ "podOffloadingStrategy": "Local", "placement": { "strategy": "Cheapest", "moveWhenCheaper": true } })
    ));
    assert!(!asks(json!({})));
}

#[test]
fn a_node_that_is_closed_takes_no_pods() {
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let node = |spec: Value| json!({ "spec": spec, "status": { "conditions": ready } });
    let taint = |key: &str, effect: &str| json!({ "taints": [{ "key": "virtual-node.liqo.io/not-allowed", "effect": "NoExecute" }, { "key": key, "effect": effect }] });
    assert!(takes_new_pods(&node(
        json!({ "taints": [{ "key": "virtual-node.liqo.io/not-allowed", "effect": "NoExecute" }] })
    )));
    assert!(takes_new_pods(&node(taint("slow", "PreferNoSchedule"))));
    assert!(!takes_new_pods(&node(taint(
        "virtual-node.liqo.io/no-new-pods",
        "NoSchedule"
    ))));
    assert!(!takes_new_pods(&node(json!({ "unschedulable": true }))));
    assert!(!takes_new_pods(
        &json!({ "spec": {}, "status": { "conditions": [{ "type": "Ready", "status": "False" }] } })
    ));
}

#[test]
fn nothing_moves_to_or_from_another_currency_or_from_an_unknown_node() {
    let nodes = [
        node("milan", Some(("0.05", "EUR"))),
        node("nice", Some(("0.05", "EUR"))),
        node("ny", Some(("0.01", "USD"))),
    ];
    let pods = [
        pod("a", "milan", 1, &[]),
        pod("b", "ny", 1, &[]),
        pod("c", "gone", 1, &[]),
    ];
    assert_eq!(found(&pods, &targets(&nodes, 9), &[], 9), []);
}

proptest! {
    #[test]
    fn each_move_saves_a_tenth_budgets_are_kept_and_room_is_not_exceeded(
        nodes in any_nodes(),
        running in vec((0_usize..8, 1_i64..5, select(vec!["", "x", "y", "xy"])), 0..12),
        (x, y, max, free) in (0_u32..4, 0_u32..4, 0_usize..6, 0_i64..8),
    ) {
        let pods: Vec<RunningPod> = running.iter().enumerate().map(|(index, (on, number, budgets))| {
            let budgets: Vec<String> = budgets.chars().map(String::from).collect();
            let budgets: Vec<&str> = budgets.iter().map(String::as_str).collect();
            pod(&format!("p{index:02}"), &format!("n{on}"), *number, &budgets)
        }).collect();
        let allowed = BTreeMap::from([(key("x"), x), (key("y"), y)]);
        let targets = targets(&nodes, free);
        let chosen = find_savings(&SavingFacts { pods: &pods, targets: &targets, allowed: &allowed, unsettled: &BTreeSet::new(), max });
        prop_assert!(chosen.len() <= max);
        let all: Vec<&PricedNode> = nodes.iter().collect();
        let mut placed: BTreeMap<&str, i64> = BTreeMap::new();
        for one in &chosen {
            let index = pods.iter().position(|pod| pod.uid == one.uid).unwrap();
            let number = running[index].1;
            *placed.entry(&one.to).or_default() += number;
            let costs: BTreeMap<&str, HourlyCost> =
                costs_by_node(&cores(number), &all).into_iter().map(|(node, cost)| (node.name.as_str(), cost)).collect();
            let (HourlyCost::Known(before), HourlyCost::Known(after)) = (costs[one.from.as_str()], costs[one.to.as_str()]) else {
                return Err(TestCaseError::fail("another currency"));
            };
            prop_assert_eq!(before - after, one.per_hour);
            prop_assert!(one.per_hour.nanos() * 10 >= before.nanos() && one.per_hour > Money::ZERO);
        }
        prop_assert!(placed.values().all(|number| *number <= free));
        for (budget, most) in &allowed {
            let evicted = chosen.iter().filter(|one| pods.iter().any(|pod| pod.uid == one.uid && pod.budgets.contains(budget)));
            prop_assert!(evicted.count() <= usize::try_from(*most).unwrap());
        }
    }

    #[test]
    fn when_all_have_moved_nothing_moves_again(nodes in any_nodes(), running in vec((0_usize..8, 1_i64..5), 0..12)) {
        let mut pods: Vec<RunningPod> = running
            .iter()
            .enumerate()
            .map(|(index, (on, number))| pod(&format!("p{index:02}"), &format!("n{on}"), *number, &[]))
            .collect();
        let targets = targets(&nodes, 1000);
        let none = BTreeMap::new();
        for one in find_savings(&SavingFacts { pods: &pods, targets: &targets, allowed: &none, unsettled: &BTreeSet::new(), max: 100 }) {
            pods.iter_mut().find(|pod| pod.uid == one.uid).unwrap().node = one.to;
        }
        prop_assert_eq!(find_savings(&SavingFacts { pods: &pods, targets: &targets, allowed: &none, unsettled: &BTreeSet::new(), max: 100 }), []);
    }
}

#[test]
fn a_pod_may_run_at_home_unless_it_or_its_namespace_asks_for_virtual_nodes() {
    let placed = |strategy| {
        let mut pod = json!({ "spec": { "containers": [] } });
        let patch: json_patch::Patch = serde_json::from_value(
            crate::pod::scheduling::place_pod(&pod, strategy, None, &["x"])
                .patch
                .into(),
        )
        .unwrap();
        json_patch::patch(&mut pod, &patch).unwrap();
        may_run_at_home(&pod)
    };
    assert!(
        placed(PodOffloadingStrategy::LocalAndRemote) && !placed(PodOffloadingStrategy::Remote)
    );
    assert!(may_run_at_home(
        &json!({ "spec": { "nodeSelector": { "kubernetes.io/arch": "amd64" } } })
    ));
    assert!(!may_run_at_home(
        &json!({ "spec": { "nodeSelector": { "liqo.io/type": "virtual-node" } } })
    ));
}
