//! Milan is a broker: it borrows from turin and genoa, and lends on to rome.

use jiff::Timestamp;
use liqo_api::{
    ClusterId, Contract, VirtualNode, isolation::Lending, provider_namespace, tenant_namespace,
};
use liqo_sharing::decide::{lists::ObjectLists, snapshot::OwnWorkingMode};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use super::{
    change::{self, BrokerObjectsView, CustomerAfterDisable, PolicyChangeError},
    *,
};
use crate::{finding::Finding, output::Paint};

fn id(seed: u8) -> ClusterId {
    ClusterId::of_public_key(&[seed; 32])
}

fn rome() -> ClusterId {
    id(1)
}

fn turin() -> ClusterId {
    id(2)
}

fn milan() -> ClusterId {
    id(3)
}

fn objects<T: DeserializeOwned>(values: Value) -> Vec<T> {
    from_value(values).unwrap()
}

fn condition(kind: &str, status: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": "Reason", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

/// Rome borrows from this cluster, and this cluster borrows from turin.
fn peers() -> Vec<ForeignCluster> {
    let lending = [
        condition("ConsumerReachable", "True", ""),
        condition("ResourcesOffered", "True", ""),
    ];
    objects(json!([
        { "metadata": { "name": "rome", "labels": { "liqo.io/managed": "true" } }, "spec": { "clusterID": rome() },
            "status": { "tenantNamespace": tenant_namespace(&rome()), "conditions": lending } },
        { "metadata": { "name": "turin", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "clusterID": turin(), "outgoingPeering": "Yes", "authURL": "https://203.0.113.5:1" },
            "status": { "conditions": [condition("PeerReachable", "True", "")] } },
    ]))
}

fn default_policy() -> Value {
    json!({ "metadata": { "name": "default", "resourceVersion": "7" }, "spec": { "provide": { "approval": "Manual" } } })
}

/// A policy as `enable` writes it.
fn broker_policy(offers: &Value) -> Value {
    json!({ "metadata": { "name": "broker", "resourceVersion": "8", "annotations": { change::CREATED_BY_ANNOTATION: change::CREATED_BY } },
        "spec": { "priority": 10, "peers": { "clusterIDs": [rome()] },
            "provide": { "percentage": 100, "noticeSeconds": 60, "source": { "offers": offers } } } })
}

fn from_turin(more: &Value) -> Value {
    let mut spec = json!({ "clusterID": turin(), "pool": "default", "path": [turin()],
        "resourceQuota": { "hard": { "cpu": "4", "memory": "8Gi" } } });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "metadata": { "name": "default", "namespace": provider_namespace(&turin()) }, "spec": spec, "status": { "phase": "Accepted" } })
}

fn to_rome(more: &Value) -> Value {
    let mut spec = json!({ "clusterID": milan(), "pool": "default", "path": [milan(), turin()], "hops": 2,
        "resourceQuota": { "hard": { "cpu": "4", "memory": "8Gi" } } });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "metadata": { "name": "default", "namespace": tenant_namespace(&rome()) }, "spec": spec, "status": { "phase": "Accepted" } })
}

fn pod(name: &str, namespace: &str, node: Option<&str>, consumer: Option<ClusterId>) -> Value {
    let labels = consumer
        .map(|consumer| json!({ "liqo.io/consumer-id": consumer, "liqo.io/pool": "default" }));
    json!({ "metadata": { "name": name, "namespace": namespace, "labels": labels }, "spec": { "nodeName": node,
        "containers": [{ "name": "c", "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } } }] } })
}

/// Two pods of rome run at turin, and one waits. One pod of milan itself runs at turin. Somebody in
/// milan labels a pod as if it was rome's.
fn lists() -> ObjectLists {
    let mapped = json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": "mapped", "liqo.io/consumer-id": rome(), "liqo.io/home-namespace": "demo" });
    let virtual_node = json!({ "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": turin(), "liqo.io/pool": "default" });
    let ready = json!({ "allocatable": { "cpu": "4", "memory": "8Gi" }, "conditions": [{ "type": "Ready", "status": "True" }] });
    ObjectLists {
        policies: objects(json!([default_policy(), broker_policy(&json!({}))])),
        foreign_clusters: peers(),
        nodes: objects(json!([
            { "metadata": { "name": "milan-1" }, "status": ready },
            { "metadata": { "name": "turin", "labels": virtual_node }, "status": ready },
        ])),
        pods: objects(json!([
            pod("a", "demo-rome", Some("turin"), Some(rome())),
            pod("b", "demo-rome", Some("turin"), Some(rome())),
            pod("c", "demo-rome", None, Some(rome())),
            pod("d", "shop", Some("turin"), None),
            pod("e", "shop", Some("turin"), Some(rome())),
        ])),
        namespaces: objects(
            json!([{ "metadata": { "name": "demo-rome", "uid": "u", "labels": mapped } }]),
        ),
        requests: Vec::new(),
        offers: objects(json!([from_turin(&json!({})), to_rome(&json!({}))])),
        contracts: Vec::new(),
        lending: Lending::Isolated,
        mode: OwnWorkingMode::default(),
    }
}

fn virtual_nodes(more: &Value) -> Vec<VirtualNode> {
    let mut spec = json!({ "clusterID": turin(), "clusterName": "turin", "pool": "default", "resources": { "cpu": "4" } });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    objects(
        json!([{ "metadata": { "name": "default", "namespace": provider_namespace(&turin()) }, "spec": spec,
        "status": { "nodeName": "turin" } }]),
    )
}

fn of(lists: ObjectLists) -> BrokerStatus {
    with_nodes(lists, &virtual_nodes(&json!({})))
}

fn with_nodes(lists: ObjectLists, nodes: &[VirtualNode]) -> BrokerStatus {
    super::status_with_warnings(&super::status::BrokerFacts::new(
        "milan",
        &milan(),
        lists,
        nodes,
        Timestamp::UNIX_EPOCH,
    ))
}

fn warnings(change: impl FnOnce(&mut ObjectLists)) -> Vec<String> {
    let mut lists = lists();
    change(&mut lists);
    sentences(&of(lists))
}

fn sentences(status: &BrokerStatus) -> Vec<String> {
    status.warnings.iter().map(Finding::sentence).collect()
}

const WAITS: &str = "offer default to rome: 1 pod of it waits for a node: `kubectl get pods -A -l liqo.io/consumer-id` shows which";

#[test]
fn the_tree_shows_who_uses_what_of_which_provider() {
    let mut lists = lists();
    let offers =
        json!({ "margin": { "currency": "EUR", "percent": 10, "fixed": { "cpu": "0.001" } } });
    let rates = |cpu: &str| json!({ "prices": { "currency": "EUR", "rates": { "cpu": cpu } } });
    lists.policies = objects(json!([default_policy(), broker_policy(&offers)]));
    lists.offers = objects(json!([
        from_turin(&rates("0.04")),
        to_rome(&rates("0.0450003"))
    ]));
    let expected = format!(
        "\
milan (ID {}) lends on what it borrows
├─ policy broker: 100 % of it to ID {}; margin 10 % and cpu=0.001 (EUR)
├─ customer rome ✓ answers, policy broker, 3 pods
│  └─ offer default: Accepted: cpu=4, memory=8Gi, through 2 clusters (turin)
│     ├─ price: 0.18 EUR per hour (cpu=0.0450003)
│     ├─ used: cpu=1500m, memory=3Gi, pods=3
│     ├─ from turin (node turin): 2 pods: cpu=1, memory=2Gi, pods=2
│     └─ 1 pod without a node
├─ provider turin ✓ answers (known since 2026-01-01T00:00:00Z), 2 pods of customers
│  └─ offer default: Accepted: cpu=4, memory=8Gi
│     ├─ price: 0.16 EUR per hour (cpu=0.04)
│     ├─ node turin: Ready, lent on as broker/default
│     └─ used: cpu=2, memory=4Gi (2 pods of this cluster, 2 pods of rome)
└─ warnings
   └─ {WAITS}
",
        milan(),
        rome().short_id()
    );
    assert_eq!(render_broker_status(&of(lists), Paint::off()), expected);
}

#[test]
fn programs_get_paths_and_pods_of_each_customer() {
    let json = serde_json::to_value(of(lists())).unwrap();
    let lent = &json["customers"][0]["offers"][0];
    assert_eq!(
        (&lent["hops"], &lent["path"], &lent["pods"]),
        (&json!(2), &json!([milan(), turin()]), &json!(3))
    );
    assert_eq!(lent["from"][0]["clusterID"], json!(turin()));
    assert_eq!(
        json["providers"][0]["offers"][0]["pods"],
        json!({ "milan": 2, "rome": 2 })
    );
    assert_eq!(
        (&json["broker"], &json["policies"][0]["percentage"]),
        (&json!(true), &json!(100))
    );
}

#[test]
fn a_cluster_that_lends_nothing_on_is_no_broker_and_says_how_to_become_one() {
    let mut own = lists();
    own.policies = objects(json!([default_policy()]));
    own.offers = objects(json!([from_turin(&json!({}))]));
    let status = of(own);
    assert!(!status.broker && status.warnings.is_empty());
    let said = render_broker_status(&status, Paint::off());
    assert_eq!(
        said,
        "milan is no broker: no policy lends on what it borrows. `liqoctl broker enable` changes that."
    );
    assert_eq!(status.other_consumers[0].name, "rome");
}

#[test]
fn a_broker_by_a_plugin_is_one_and_only_another_source_ends_it() {
    let plugin = json!({ "metadata": { "name": "default" },
        "spec": { "provide": { "source": { "plugin": { "address": "plugin.liqo:6001" } } } } });
    let mut by_plugin = lists();
    by_plugin.policies = objects(json!([plugin]));
    let (policies, peers, offers) = (
        by_plugin.policies.clone(),
        by_plugin.foreign_clusters.clone(),
        by_plugin.offers.clone(),
    );
    let status = of(by_plugin);
    assert!(status.broker);
    assert_eq!(
        sentences(&status),
        [WAITS],
        "turin's node is lent on, and nothing ends"
    );
    assert_eq!(status.providers[0].offers[0].lent_in, ["default/default"]);
    assert_eq!(
        (
            status.customers[0].offers[0].from[0].cluster.as_str(),
            status.customers[0].offers[0].from[0].pods
        ),
        ("turin", 2)
    );
    let said = render_broker_status(&status, Paint::off());
    assert!(
        said.contains(
            "policy default: as much of it as plugin plugin.liqo:6001 says, to everybody"
        ),
        "{said}"
    );
    let present = BrokerObjectsView {
        policies: &policies,
        peers: &peers,
        offers: &offers,
    };
    assert_eq!(change::plan_policy_disabling(None, present).unwrap(), []);
    let plugins = change::by_plugins(present);
    assert_eq!(plugins, ["default"]);
    assert!(
        render_disabled(&[], &plugins)
            .starts_with("Nothing was changed. It lends on by the plugin of policy default, which")
    );
}

#[test]
fn customers_keep_what_they_have_until_it_ends() {
    let mut ended = lists();
    ended.policies = objects(json!([default_policy()]));
    let status = of(ended);
    assert!(
        status.broker && status.customers[0].name == "rome",
        "{status:?}"
    );
    assert!(
        sentences(&status)[0].contains("no policy lends on"),
        "{:?}",
        status.warnings
    );
}

#[test]
fn a_broker_is_warned_about_what_it_borrows() {
    let offers = |more: Value| {
        move |lists: &mut ObjectLists| {
            lists.offers = objects(json!([from_turin(&more), to_rome(&json!({}))]));
        }
    };
    assert_eq!(warnings(|_| {}), [WAITS]);
    let withdrawn = warnings(offers(
        json!({ "withdrawalTimestamp": "2026-01-01T00:05:00Z" }),
    ));
    assert!(
        withdrawn[0]
            .contains("offer default of turin is withdrawn and ends at 2026-01-01T00:05:00Z"),
        "{withdrawn:?}"
    );
    let empty = warnings(offers(
        json!({ "resourceQuota": { "hard": { "cpu": "0" } } }),
    ));
    assert!(empty[0].contains("contains nothing now"), "{empty:?}");
    let short = warnings(offers(json!({ "noticeSeconds": 30 })));
    assert!(
        short[0].contains("promises a notice of 60 s, and a provider gives only 30 s"),
        "{short:?}"
    );
    let dear = warnings(offers(
        json!({ "prices": { "currency": "EUR", "rates": { "cpu": "0.04" } } }),
    ));
    assert!(
        dear.iter()
            .any(|one| one.contains("cpu for 0, for which the provider of node turin asks 0.04")),
        "{dear:?}"
    );
    let refused = warnings(|lists| {
        lists.offers[0].status =
            Some(from_value(json!({ "phase": "Refused", "message": "too far" })).unwrap());
    });
    assert!(
        refused[0].contains("is Refused (too far), so nothing of it is lent on"),
        "{refused:?}"
    );
    let silent = warnings(|lists| {
        let broken = condition("PeerReachable", "False", "no answer for 50 s");
        lists.foreign_clusters[1]
            .status
            .as_mut()
            .unwrap()
            .conditions = objects(json!([broken]));
        lists.nodes[1].status.as_mut().unwrap().conditions = None;
    });
    assert!(
        silent[0].contains(
            "provider turin does not answer since 2026-01-01T00:00:00Z: no answer for 50 s"
        ),
        "{silent:?}"
    );
    assert!(
        silent[1].contains("node turin of turin is not Ready"),
        "{silent:?}"
    );
    let cordoned = warnings(|lists| {
        lists.nodes[1].spec = Some(from_value(json!({ "unschedulable": true })).unwrap());
    });
    assert_eq!(
        cordoned[0],
        "node turin of turin is cordoned, so nothing of it is lent on"
    );
    let other_currency = warnings(|lists| {
        lists.policies = objects(json!([broker_policy(
            &json!({ "margin": { "currency": "USD", "percent": 1 } })
        )]));
        offers(json!({ "prices": { "currency": "EUR", "rates": { "cpu": "0.04" } } }))(lists);
    });
    assert!(
        other_currency[0].contains("its prices are in EUR, and the margin is in another currency"),
        "{other_currency:?}"
    );
    let gone = warnings(|lists| drop(lists.foreign_clusters.pop()));
    assert_eq!(
        gone[0],
        "this cluster borrows nothing, so it has nothing to lend on: `liqoctl peer` borrows from another cluster"
    );
    let json = serde_json::to_value(of(lists())).unwrap();
    assert_eq!(json["warnings"], json!([WAITS]), "programs get sentences");
}

#[test]
fn a_node_that_gets_no_new_pods_is_not_lent() {
    let nodes = virtual_nodes(&json!({ "noNewPods": "no new pods: too dear" }));
    let status = with_nodes(lists(), &nodes);
    assert!(
        sentences(&status)[0].contains("node turin of turin gets no new pods (too dear)"),
        "{:?}",
        status.warnings
    );
}

#[test]
fn a_broker_is_warned_about_its_customers() {
    let empty = warnings(|lists| {
        let nothing = json!({ "resourceQuota": { "hard": { "cpu": "0" } } });
        lists.offers = objects(json!([from_turin(&json!({})), to_rome(&nothing)]));
    });
    assert!(
        empty.contains(&"pool default has nothing to lend to rome now".to_owned()),
        "{empty:?}"
    );
    let refused = warnings(|lists| {
        lists.offers[1].status = Some(
            from_value(json!({ "phase": "Refused", "message": "come through 2 clusters" }))
                .unwrap(),
        );
    });
    assert!(
        refused.contains(&"rome refuses offer default: come through 2 clusters".to_owned()),
        "{refused:?}"
    );
    let nothing = warnings(|lists| {
        let link = condition("ResourcesOffered", "False", "nothing is free");
        lists.foreign_clusters[0]
            .status
            .as_mut()
            .unwrap()
            .conditions = objects(json!([link]));
    });
    assert!(
        nothing.contains(&"customer rome is offered nothing: Reason: nothing is free".to_owned()),
        "{nothing:?}"
    );
    let stranger = warnings(|lists| lists.policies[1].spec.peers.cluster_ids = vec![id(9)]);
    assert!(
        !stranger
            .iter()
            .any(|one| one.contains("applies to a consumer")),
        "rome has an offer: {stranger:?}"
    );
    let nobody = warnings(|lists| {
        lists.policies[1].spec.peers.cluster_ids = vec![id(9)];
        lists.offers.pop();
    });
    assert!(
        nobody
            .iter()
            .any(|one| one.contains("no policy that lends on applies to a consumer")),
        "{nobody:?}"
    );
}

#[test]
fn a_customer_without_the_contract_that_its_policy_requires_is_named() {
    let required = |lists: &mut ObjectLists| {
        lists.policies[1].spec.provide.contract = Some(liqo_api::ProvideContract::default());
    };
    let missing = "customer rome has no contract in force, which policy broker requires";
    assert!(warnings(required)[0].starts_with(missing));
    let signed = |phase: &'static str| {
        move |lists: &mut ObjectLists| {
            required(lists);
            lists.contracts = vec![contract(phase)];
        }
    };
    assert!(
        !warnings(signed("InForce"))
            .iter()
            .any(|one| one.starts_with(missing))
    );
    assert!(
        warnings(signed("Ended"))
            .iter()
            .any(|one| one.starts_with(missing))
    );
}

fn contract(phase: &str) -> Contract {
    from_value(json!({
        "metadata": { "name": "contract-1", "namespace": tenant_namespace(&rome()) },
        "spec": { "document": "", "inForceSince": "2026-01-01T00:00:00Z", "terms": {
            "contract": "0".repeat(32), "version": 1, "provider": milan(), "consumer": rome(), "commitment": "BestEffort", "pools": [],
            "classes": {}, "prices": {}, "noticeSeconds": 60, "start": "2026-01-01T00:00:00Z", "renewal": "Automatic",
            "meteringPeriodSeconds": 3600, "limits": { "podSecurity": "baseline", "maxNamespaces": 1, "maxServices": 1,
                "maxEndpoints": 1, "charge": "Requests", "defaultLimitPercentage": 800 } } },
        "status": { "phase": phase },
    }))
    .unwrap()
}

/// The plan for these flags.
fn enabling(
    wanted: &RequestedPolicyChange,
    policies: Value,
    offers: Value,
) -> Result<EnablePlan, PolicyChangeError> {
    let (policies, offers) = (objects(policies), objects(offers));
    change::plan_policy_change(
        wanted,
        BrokerObjectsView {
            policies: &policies,
            peers: &peers(),
            offers: &offers,
        },
    )
}

fn named(policy: &str) -> RequestedPolicyChange {
    RequestedPolicyChange {
        policy: policy.to_owned(),
        ..RequestedPolicyChange::default()
    }
}

fn for_rome() -> RequestedPolicyChange {
    RequestedPolicyChange {
        customers: Some(Customers::These(vec!["rome".to_owned()])),
        ..named("broker")
    }
}

#[test]
fn a_new_policy_is_a_copy_that_lends_on_and_comes_first() {
    let plan = enabling(
        &for_rome(),
        json!([default_policy()]),
        json!([from_turin(&json!({}))]),
    )
    .unwrap();
    let expected = format!(
        "\
Policy broker is new: a copy of default, with
  peers.clusterIDs        (none) → [\"{}\"]
  priority                0 → 10
  provide.percentage      90 → 100
  provide.source.offers   (none) → {{}}
It applies to rome.",
        rome()
    );
    assert_eq!(render_planned_changes(&plan), expected);
    // Its customers keep their other rules.
    assert_eq!(plan.spec.provide.approval, liqo_api::Approval::Manual);
    assert!(
        planned_policy(&plan)
            .annotations()
            .contains_key(change::CREATED_BY_ANNOTATION)
    );
    let everybody = enabling(
        &named("broker"),
        json!([default_policy()]),
        json!([from_turin(&json!({}))]),
    )
    .unwrap();
    assert!(everybody.spec.peers.is_everybody() && everybody.customers == ["rome"]);
}

#[test]
fn enabling_again_changes_nothing_and_only_what_is_named_changes() {
    let policies = || {
        json!([
            default_policy(),
            broker_policy(&json!({ "ownNodes": true }))
        ])
    };
    let again = enabling(&for_rome(), policies(), json!([])).unwrap();
    assert!(
        !again.is_needed() && again.resource_version.as_deref() == Some("8"),
        "{:?}",
        again.changes
    );
    assert!(render_enabled(&again).contains("nothing was changed"));
    let margin = MarginChange::Set {
        percent: Some(10),
        fixed: vec!["cpu=0.001".parse().unwrap()],
        currency: Some("EUR".into()),
    };
    let plan = enabling(
        &RequestedPolicyChange {
            margin,
            percentage: Some(50),
            ..named("broker")
        },
        policies(),
        json!([]),
    )
    .unwrap();
    let margin = json!({ "currency": "EUR", "percent": 10, "fixed": { "cpu": "0.001" } });
    let expected =
        json!({ "provide": { "percentage": 50, "source": { "offers": { "margin": margin } } } });
    assert_eq!(change::merge_patch(&plan.before, &plan.spec), expected);
    let without = RequestedPolicyChange {
        own_nodes: Some(false),
        ..named("broker")
    };
    let plan = enabling(&without, policies(), json!([])).unwrap();
    let expected = json!({ "provide": { "source": { "offers": { "ownNodes": null } } } });
    assert_eq!(change::merge_patch(&plan.before, &plan.spec), expected);
}

#[test]
fn the_margin_has_the_currency_of_the_providers() {
    let margin = MarginChange::Set {
        percent: Some(10),
        fixed: Vec::new(),
        currency: None,
    };
    let wanted = RequestedPolicyChange {
        margin,
        ..named("broker")
    };
    let priced =
        |currency: &str| json!({ "prices": { "currency": currency, "rates": { "cpu": "0.04" } } });
    let of = |offers| enabling(&wanted, json!([default_policy()]), offers);
    let plan = of(json!([from_turin(&priced("EUR"))])).unwrap();
    assert_eq!(
        plan.spec
            .provide
            .source
            .offers
            .unwrap()
            .margin
            .unwrap()
            .currency,
        "EUR"
    );
    assert_eq!(
        of(json!([from_turin(&json!({}))])).unwrap_err(),
        PolicyChangeError::NoCurrency
    );
    let both = of(json!([
        from_turin(&priced("EUR")),
        from_turin(&priced("CHF"))
    ]))
    .unwrap_err();
    assert_eq!(
        both,
        PolicyChangeError::SeveralCurrencies {
            currencies: "CHF, EUR".into()
        }
    );
    let removed = RequestedPolicyChange {
        margin: MarginChange::Remove,
        ..named("broker")
    };
    let policy = broker_policy(&json!({ "margin": { "currency": "EUR", "percent": 10 } }));
    let plan = enabling(&removed, json!([policy]), json!([])).unwrap();
    assert_eq!(plan.spec.provide.source.offers.unwrap().margin, None);
}

#[test]
fn what_would_not_do_what_the_user_expects_is_refused() {
    let refused = |wanted: &RequestedPolicyChange, policies| {
        enabling(wanted, policies, json!([]))
            .unwrap_err()
            .to_string()
    };
    let unknown = RequestedPolicyChange {
        customers: Some(Customers::These(vec!["genoa".into()])),
        ..named("broker")
    };
    assert!(refused(&unknown, json!([default_policy()])).contains("there are rome, turin"));
    let fixed = json!({ "metadata": { "name": "partners" }, "spec": { "provide": { "source": { "fixed": { "resources": { "cpu": "1" } } } } } });
    assert!(refused(&named("partners"), json!([fixed])).contains("partners lends fixed"));
    let by_label = json!({ "metadata": { "name": "zones" }, "spec": { "provide": { "granularity": { "by": "NodeLabel", "label": "z" } } } });
    assert!(refused(&named("zones"), json!([by_label])).contains("by a label"));
    // A copy of it has one pool.
    assert!(
        enabling(&named("broker"), json!([by_label]), json!([]))
            .unwrap()
            .spec
            .provide
            .granularity
            .is_default()
    );
    let by_hand = json!({ "metadata": { "name": "customers" }, "spec": { "priority": 5, "provide": { "source": { "offers": {} } } } });
    assert!(
        refused(&named("broker"), json!([default_policy(), by_hand]))
            .contains("--policy customers")
    );
    let gold = json!({ "metadata": { "name": "gold" }, "spec": { "priority": 5, "peers": { "clusterIDs": [rome()] } } });
    let both = RequestedPolicyChange {
        customers: Some(Customers::These(vec!["rome".into(), "turin".into()])),
        ..named("broker")
    };
    assert!(refused(&both, json!([default_policy(), gold])).contains("(default, gold)"));
    let hops = RequestedPolicyChange {
        max_hops: Some(2),
        ..for_rome()
    };
    let said = refused(&hops, json!([default_policy()]));
    assert!(
        said.contains("does not apply to turin: set consume.maxHops in policy default"),
        "{said}"
    );
    let hops = RequestedPolicyChange {
        max_hops: Some(2),
        ..named("broker")
    };
    assert_eq!(
        enabling(&hops, json!([default_policy()]), json!([]))
            .unwrap()
            .spec
            .consume
            .max_hops,
        2
    );
}

#[test]
fn the_user_is_told_what_follows() {
    let own = json!({ "clusterID": milan(), "hops": 1, "path": [milan()] });
    let notes = |wanted: &RequestedPolicyChange, policies, offers| {
        enabling(wanted, policies, offers).unwrap().notes.join("\n")
    };
    assert!(
        notes(&for_rome(), json!([default_policy()]), json!([])).contains("borrows nothing yet")
    );
    let ended = notes(
        &for_rome(),
        json!([default_policy()]),
        json!([from_turin(&json!({})), to_rome(&own)]),
    );
    assert!(
        ended.contains(
            "rome uses this cluster's own nodes: its pods there end after a notice of 300 s"
        ),
        "{ended}"
    );
    let both = RequestedPolicyChange {
        own_nodes: Some(true),
        ..for_rome()
    };
    assert_eq!(
        notes(
            &both,
            json!([default_policy()]),
            json!([from_turin(&json!({})), to_rome(&own)])
        ),
        ""
    );
    let gold = json!({ "metadata": { "name": "gold" }, "spec": { "priority": 50, "peers": { "clusterIDs": [rome()] } } });
    let other = notes(
        &named("broker"),
        json!([default_policy(), gold]),
        json!([from_turin(&json!({}))]),
    );
    assert!(
        other.contains("gold (priority 50) applies to rome, not broker"),
        "{other}"
    );
    // A policy that names its customers comes first.
    let first = enabling(&for_rome(), json!([default_policy(), gold]), json!([])).unwrap();
    assert_eq!(
        (first.copy_of.as_deref(), first.spec.priority),
        (Some("gold"), 60)
    );
    let priced =
        from_turin(&json!({ "prices": { "currency": "EUR", "rates": { "cpu": "0.04" } } }));
    assert!(
        notes(&for_rome(), json!([default_policy()]), json!([priced])).contains("--margin PERCENT")
    );
}

#[test]
fn disabling_restores_what_was_before() {
    let by_hand = json!({ "metadata": { "name": "customers" }, "spec": { "peers": { "clusterIDs": [turin()] }, "priority": 1,
        "provide": { "source": { "offers": {} } } } });
    let policies: Vec<PeeringPolicy> = objects(json!([
        default_policy(),
        broker_policy(&json!({})),
        by_hand
    ]));
    let peers = peers();
    let of = |only| {
        change::plan_policy_disabling(
            only,
            BrokerObjectsView {
                policies: &policies,
                peers: &peers,
                offers: &[],
            },
        )
    };
    let all = of(None).unwrap();
    assert_eq!(
        all.iter()
            .map(|one| (one.policy.as_str(), one.deletes))
            .collect::<Vec<_>>(),
        [("broker", true), ("customers", false)]
    );
    let afterwards = CustomerAfterDisable {
        peer: "rome".into(),
        policy: Some("default".into()),
        shares: Some("90 % of all nodes".into()),
    };
    assert_eq!(all[0].customers, [afterwards]);
    assert!(
        render_planned_endings(&all)
            .contains("  rome is then under policy default: 90 % of all nodes"),
        "{}",
        render_planned_endings(&all)
    );
    assert_eq!(of(Some("customers")).unwrap().len(), 1);
    assert!(of(Some("default")).unwrap().is_empty() && of(Some("nope")).is_err());
    assert!(render_disabled(&[], &[]).contains("nothing was changed"));
    let alone = [policies[1].clone()];
    let nothing = change::plan_policy_disabling(
        None,
        BrokerObjectsView {
            policies: &alone,
            peers: &peers,
            offers: &[],
        },
    )
    .unwrap();
    assert!(
        render_planned_endings(&nothing).contains("rome is then under no policy"),
        "{}",
        render_planned_endings(&nothing)
    );
}
