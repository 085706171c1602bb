//! What policies and plugins give to each consumer.

use super::*;

#[test]
fn two_peers_under_different_policies_get_different_offers() {
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 20 } })),
        ("partners", 10, rome_only(&json!({ "percentage": 40 }))),
    ];
    let snapshot = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    assert_eq!(
        snapshot.writes(),
        [write(ROME, "cpu=4, pods=4"), write(TURIN, "cpu=2, pods=2")]
    );
    let snapshot = milan().asks(ROME, "").asks(TURIN, "").under(&policies[1..]);
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=4, pods=4")]);
    assert_eq!(
        snapshot.plan().peer_conditions[&cluster(TURIN)].reason,
        "NoPolicy"
    );
}

#[test]
fn policies_that_together_share_more_than_exists_share_it_fairly() {
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 100 } })),
        ("partners", 1, rome_only(&json!({ "percentage": 80 }))),
    ];
    let snapshot = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    assert_eq!(
        snapshot.writes(),
        [write(ROME, "cpu=5, pods=5"), write(TURIN, "cpu=5, pods=5")]
    );
}

#[test]
fn caps_limit_each_peer_and_can_exclude_a_resource() {
    let policies = [
        (
            "default",
            0,
            json!({ "provide": { "percentage": 100, "caps": { "nvidia.com/gpu": "0" } } }),
        ),
        (
            "gpus",
            1,
            rome_only(&json!({ "percentage": 100, "caps": { "cpu": "1" } })),
        ),
    ];
    let snapshot = milan()
        .node("g", "cpu=0, pods=0, nvidia.com/gpu=2", &[])
        .asks(ROME, "")
        .asks(TURIN, "")
        .under(&policies);
    let expected = [
        write(ROME, "cpu=1, nvidia.com/gpu=2, pods=5"),
        write(TURIN, "cpu=9, nvidia.com/gpu=0, pods=5"),
    ];
    assert_eq!(snapshot.writes(), expected);
}

#[test]
fn the_weight_and_the_overcommitment_of_a_policy_apply() {
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 100 } })),
        (
            "heavy",
            1,
            rome_only(&json!({ "percentage": 100, "weight": 4 })),
        ),
    ];
    let snapshot = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    assert_eq!(
        snapshot.writes(),
        [write(ROME, "cpu=8, pods=8"), write(TURIN, "cpu=2, pods=2")]
    );
    let twice = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "overcommitPercentage": 200 } }),
    )];
    assert_eq!(
        milan().asks(ROME, "").under(&twice).writes(),
        [write(ROME, "cpu=20, pods=20")]
    );
}

#[test]
fn a_policy_can_charge_limits_instead_of_requests() {
    let spec = json!({ "nodeName": "a", "containers": [{ "name": "c",
        "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "8" } } }] });
    let labels = json!({ "liqo.io/consumer-id": cluster(ROME), "liqo.io/pool": DEFAULT_POOL });
    let pod = json!({ "metadata": { "name": "p", "namespace": "mapped-1", "labels": labels }, "spec": spec });
    let pod = crate::decide::reduce::pod(serde_json::from_value(pod).unwrap()).unwrap();
    let mut snapshot = milan().asks(ROME, "").asks(TURIN, "");
    snapshot.add(pod);
    let writes = |charge: &str| {
        let policy = json!({ "provide": { "percentage": 100, "usage": { "charge": charge } } });
        snapshot.clone().under(&[("default", 0, policy)]).writes()
    };
    assert_eq!(
        writes("Requests"),
        [write(ROME, "cpu=5, pods=5"), write(TURIN, "cpu=5, pods=5")]
    );
    assert_eq!(
        writes("Limits"),
        [write(ROME, "cpu=8, pods=5"), write(TURIN, "cpu=2, pods=5")]
    );
}

#[test]
fn fixed_amounts_come_first_and_never_exceed_what_exists() {
    let fixed = |cpu: &str| {
        rome_only(&json!({ "source": { "fixed": { "resources": { "cpu": cpu, "pods": "4" } } } }))
    };
    let under = |cpu: &str| {
        [
            ("default", 0, json!({ "provide": { "percentage": 100 } })),
            ("rome", 1, fixed(cpu)),
        ]
    };
    let snapshot = milan().asks(ROME, "").asks(TURIN, "");
    assert_eq!(
        snapshot.clone().under(&under("7")).writes(),
        [write(ROME, "cpu=7, pods=4"), write(TURIN, "cpu=3, pods=6")]
    );
    assert_eq!(
        snapshot.under(&under("70")).writes(),
        [write(ROME, "cpu=10, pods=4"), write(TURIN, "cpu=0, pods=6")]
    );
}

#[test]
fn a_new_policy_applies_at_once_whatever_the_threshold() {
    let mut snapshot = milan().asks(ROME, "").settled();
    let written = RecentWrite {
        at: Instant::now(),
        hard: list("cpu=10, pods=10"),
        prices: None,
        is_early: false,
    };
    snapshot
        .recent_writes
        .insert(("tenant-1".into(), DEFAULT_POOL.into()), written);
    assert_eq!(snapshot.writes(), []);
    let snapshot = snapshot.under(&[("other", 0, json!({ "provide": { "percentage": 98 } }))]);
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=9800m, pods=9")]);
}

#[test]
fn the_amounts_of_a_plugin_are_offered_exactly_except_for_caps() {
    let plugin = json!({ "provide": { "source": { "plugin": { "address": "p.liqo:6001" } }, "caps": { "memory": "1Gi" } } });
    let mut snapshot = milan().asks(ROME, "cpu=3").under(&[("default", 0, plugin)]);
    assert_eq!(
        (
            snapshot.writes(),
            snapshot.plan().peer_conditions[&cluster(ROME)]
                .reason
                .as_str()
        ),
        (vec![], "NothingOffered")
    );
    let pools = BTreeMap::from([
        ("gold".to_owned(), list("cpu=64, memory=2Gi")),
        ("default".to_owned(), list("cpu=100m")),
    ]);
    snapshot.plugin_answers.insert(
        cluster(ROME),
        PluginAnswer {
            pools: Some(pools),
            ..PluginAnswer::default()
        },
    );
    let offer = |pool: &str, hard: &str| (cluster(ROME), pool.to_owned(), hard.to_owned());
    assert_eq!(
        snapshot.pools(),
        [
            offer("default", "cpu=100m"),
            offer("gold", "cpu=2900m, memory=1Gi")
        ]
    );
    let mut snapshot = snapshot.settled();
    // A failing plugin changes no offer, even after a restart.
    snapshot.plugin_answers.insert(
        cluster(ROME),
        PluginAnswer {
            problem: Some("plugin p.liqo:6001 does not answer".into()),
            ..PluginAnswer::default()
        },
    );
    let plan = snapshot.plan();
    assert_eq!((plan.writes, plan.deletions), (vec![], vec![]));
    assert_eq!(plan.peer_conditions[&cluster(ROME)].reason, "PluginFailed");
    assert_eq!(plan.request_conditions[0].wanted[0].reason, "Offered");
}

#[test]
fn what_a_plugin_says_is_written_exactly_unless_the_policy_has_a_threshold() {
    let under = |threshold: Option<u8>| {
        let source = json!({ "plugin": { "address": "p.liqo:6001" } });
        let provide = json!({ "source": source, "offerUpdateThresholdPercentage": threshold });
        let mut snapshot =
            milan()
                .asks(ROME, "")
                .under(&[("default", 0, json!({ "provide": provide }))]);
        move |cpu: &str| {
            let pools = Some(BTreeMap::from([("default".to_owned(), list(cpu))]));
            snapshot.plugin_answers.insert(
                cluster(ROME),
                PluginAnswer {
                    pools,
                    ..PluginAnswer::default()
                },
            );
            let writes = snapshot.writes();
            snapshot = snapshot.clone().settled();
            writes
        }
    };
    let (mut exact, mut rough) = (under(None), under(Some(20)));
    assert_eq!(
        (exact("cpu=5"), rough("cpu=5")),
        (vec![write(ROME, "cpu=5")], vec![write(ROME, "cpu=5")])
    );
    assert_eq!(
        (exact("cpu=5100m"), rough("cpu=5100m")),
        (vec![write(ROME, "cpu=5100m")], vec![])
    );
    assert_eq!(
        (exact("cpu=7"), rough("cpu=7")),
        (vec![write(ROME, "cpu=7")], vec![write(ROME, "cpu=7")])
    );
}

/// Plugins that promise 8 of milan's 10 cpu to each of rome and turin.
fn promised_twice(overcommit: &str) -> ProviderSnapshot {
    let plugin = json!({ "address": "p.liqo:6001", "overcommit": overcommit });
    let policy = json!({ "provide": { "percentage": 100, "noticeSeconds": 60, "source": { "plugin": plugin } } });
    let mut snapshot = milan()
        .asks(ROME, "")
        .asks(TURIN, "")
        .under(&[("default", 0, policy)]);
    for consumer in [ROME, TURIN] {
        let pools = Some(BTreeMap::from([(
            "default".to_owned(),
            list("cpu=8, pods=5"),
        )]));
        snapshot.plugin_answers.insert(
            cluster(consumer),
            PluginAnswer {
                pools,
                ..PluginAnswer::default()
            },
        );
    }
    snapshot
}

#[test]
fn what_plugins_promise_beyond_the_nodes_is_told_cut_or_allowed_as_the_policy_says() {
    let said = |snapshot: &ProviderSnapshot| {
        let plan = snapshot.plan();
        let answered = &plan.request_conditions[0].wanted[0];
        assert_eq!(
            (answered.reason.as_str(), answered.message.contains("nodes")),
            ("Offered", false),
            "no consumer's business"
        );
        let condition = &plan.peer_conditions[&cluster(TURIN)];
        (
            condition.reason.clone(),
            condition
                .message
                .split("; ")
                .nth(1)
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let whole = [write(ROME, "cpu=8, pods=5"), write(TURIN, "cpu=8, pods=5")];
    let warned = promised_twice("Warn");
    assert_eq!(warned.writes(), whole);
    let text = "plugins promise more to all consumers than the nodes have: cpu";
    assert_eq!(said(&warned), ("Overcommitted".to_owned(), text.to_owned()));

    let cut = promised_twice("Cut");
    assert_eq!(
        cut.writes(),
        [write(ROME, "cpu=5, pods=5"), write(TURIN, "cpu=5, pods=5")]
    );
    assert_eq!(
        said(&cut),
        (
            "Offered".to_owned(),
            "the nodes have less than the plugin says: cpu".to_owned()
        )
    );
    // What rome uses is never cut, and neither what no plugin promised.
    let used = cut
        .pod("mapped-1", Some(ROME), "cpu=7, pods=1")
        .pod("shop", None, "cpu=1, pods=1");
    assert_eq!(
        used.writes(),
        [write(ROME, "cpu=7, pods=5"), write(TURIN, "cpu=2, pods=4")]
    );

    // Pods that wait are no capacity, and neither are limits beyond requests.
    let mut full = promised_twice("Warn").pod("mapped-1", Some(ROME), "cpu=8, pods=1");
    for (node, requests) in [(Some("a"), "cpu=2, pods=1"), (None, "cpu=6, pods=1")] {
        full.add(PodUsage {
            node: node.map(str::to_owned),
            resources: list(requests).into(),
            owner: Some(owner("mapped-2", TURIN, "default")),
            waits_for_node: node.is_none(),
            ..PodUsage::default()
        });
    }
    assert_eq!(said(&full), ("Overcommitted".to_owned(), text.to_owned()));
    // A consumer that refuses its offer takes nothing from others.
    let mut refused = promised_twice("Cut").settled();
    refused.answer(ROME, true);
    assert_eq!(refused.writes(), whole);

    let allowed = promised_twice("Allow");
    assert_eq!(allowed.writes(), whole);
    assert_eq!(said(&allowed), ("Offered".to_owned(), String::new()));
}

#[test]
fn what_other_policies_lend_is_not_there_for_plugins() {
    let plugin =
        json!({ "source": { "plugin": { "address": "p.liqo:6001", "overcommit": "Cut" } } });
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 40 } })),
        ("plugin", 9, rome_only(&plugin)),
    ];
    let mut snapshot = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    let pools = Some(BTreeMap::from([(
        "default".to_owned(),
        list("cpu=8, example.com/gpu=1"),
    )]));
    snapshot.plugin_answers.insert(
        cluster(ROME),
        PluginAnswer {
            pools,
            ..PluginAnswer::default()
        },
    );
    assert_eq!(
        snapshot.writes(),
        [
            write(ROME, "cpu=6, example.com/gpu=0"),
            write(TURIN, "cpu=4, pods=4")
        ]
    );
}

#[test]
fn an_offer_names_the_classes_that_its_consumer_may_use() {
    let usage = json!({ "storageClasses": ["fast"], "ingressClasses": ["public"], "loadBalancerClasses": ["edge"] });
    let policies = [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "usage": usage } }),
    )];
    let spec = milan()
        .asks(ROME, "")
        .under(&policies)
        .plan()
        .writes
        .remove(0)
        .spec;
    let classes = [
        spec.storage_classes,
        spec.ingress_classes,
        spec.load_balancer_classes,
    ]
    .concat();
    assert_eq!(classes, ["fast", "public", "edge"]);
}

#[test]
fn consumers_are_the_tenants_with_a_request_even_without_a_plugin() {
    let asks = json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": { "source": { "plugin": { "address": "p:1" } } } });
    let mut snapshot = milan().asks(ROME, "").asks(TURIN, "").tenant(4);
    snapshot.policies.push(policy("asks", 10, asks));
    let plugins = snapshot.consumers_with_plugins();
    assert_eq!(
        plugins.keys().collect::<BTreeSet<_>>(),
        [&cluster(ROME), &cluster(TURIN)].into()
    );
    assert_eq!(
        plugins[&cluster(ROME)]
            .as_ref()
            .map(|plugin| plugin.address.as_str()),
        Some("p:1")
    );
    assert_eq!(plugins[&cluster(TURIN)], None);
}
