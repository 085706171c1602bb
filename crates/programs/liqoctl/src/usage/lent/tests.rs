use liqo_api::tenant_namespace;
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};

use super::*;

fn rome() -> ClusterId {
    ClusterId::of_public_key(&[1; 32])
}

fn turin() -> ClusterId {
    ClusterId::of_public_key(&[2; 32])
}

fn objects<T: DeserializeOwned>(values: Value) -> Vec<T> {
    from_value(values).unwrap()
}

fn known() -> Vec<ForeignCluster> {
    objects(json!([
        { "metadata": { "name": "rome" }, "spec": { "clusterID": rome() } },
        { "metadata": { "name": "turin" }, "spec": { "clusterID": turin() } },
    ]))
}

fn mapped(name: &str, consumer: &ClusterId) -> Value {
    json!({ "metadata": { "name": name, "uid": "u", "labels": {
        "liqo.io/managed": "true", "liqo.io/namespace-kind": "mapped",
        "liqo.io/consumer-id": consumer, "liqo.io/home-namespace": "demo" } } })
}

/// A pod that requests one core, and is limited to two.
fn pod(namespace: &str, consumer: &ClusterId, phase: &str) -> Value {
    let amounts = json!({ "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "2" } });
    json!({ "metadata": { "name": "p", "namespace": namespace,
            "labels": { "liqo.io/consumer-id": consumer, "liqo.io/pool": "default" } },
        "spec": { "containers": [{ "name": "c", "resources": amounts }] },
        "status": { "phase": phase } })
}

fn prices(cpu: &str) -> Value {
    json!({ "currency": "EUR", "rates": { "cpu": cpu } })
}

fn offer(consumer: &ClusterId) -> Value {
    json!({ "metadata": { "name": "default", "namespace": tenant_namespace(consumer) },
        "spec": { "clusterID": consumer, "pool": "default", "prices": prices("0.04"),
            "resourceQuota": { "hard": { "cpu": "10" } } } })
}

/// Rome and turin run pods here.
fn lending() -> LendingObjects {
    LendingObjects {
        policies: Vec::new(),
        offers: objects(json!([offer(&rome()), offer(&turin())])),
        namespaces: objects(json!([
            mapped("demo-rome", &rome()),
            mapped("demo-turin", &turin())
        ])),
        pods: objects(json!([
            pod("demo-rome", &rome(), "Running"),
            pod("demo-rome", &rome(), "Pending"),
            pod("demo-rome", &rome(), "Succeeded"),
            // Anybody may write such a label.
            pod("home", &rome(), "Running"),
            pod("demo-turin", &turin(), "Running"),
        ])),
    }
}

/// A contract with turin, which charges limits.
fn contract(ended: Option<&str>) -> Contract {
    let limits = json!({ "podSecurity": "baseline", "maxNamespaces": 1, "maxServices": 1,
        "maxEndpoints": 1, "charge": "Limits", "defaultLimitPercentage": 800 });
    let terms = json!({ "contract": "c", "version": 1, "provider": rome(), "consumer": turin(),
        "commitment": "BestEffort", "pools": [], "classes": {},
        "prices": { "default": prices("1") }, "noticeSeconds": 0, "limits": limits,
        "start": "2026-01-01T00:00:00Z", "renewal": "None", "meteringPeriodSeconds": 3600 });
    let ended = ended.map(|at| {
        json!({ "by": "Provider", "cause": "Requested", "announced": at, "at": at, "reason": "" })
    });
    let object = json!({ "metadata": { "namespace": tenant_namespace(&turin()), "name": "c" },
        "spec": { "document": "", "terms": terms, "inForceSince": "2026-01-01T00:00:00Z",
            "ended": ended } });
    from_value(object).unwrap()
}

fn rows(contract: Contract) -> Vec<ResourceUsage> {
    let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    let pools = lent_pools(&known(), &[contract], &lending(), now);
    let mut rows = Vec::new();
    add_lent_pools(&mut rows, &pools, &known());
    rows
}

#[test]
fn a_provider_sees_what_each_consumer_uses_now_with_a_contract_or_without() {
    let text = render_lent(&rows(contract(None))).unwrap();
    let shown = "\
Used now by each consumer:
CONSUMER   POOL      PODS   IN USE                PER HOUR   CONTRACT
rome       default   2      cpu=2, memory=2Gi     0.08 EUR   no
turin      default   1      cpu=2, memory=1Gi     2 EUR      yes";
    // Columns are as wide as their contents.
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (line, wanted) in text.lines().zip(shown.lines()) {
        assert_eq!(squeezed(line), squeezed(wanted));
    }
    assert!(text.contains("`provide.contract`"), "{text}");
}

#[test]
fn after_its_contract_a_consumer_pays_what_the_offer_asks_for() {
    let ended = rows(contract(Some("2026-01-01T12:00:00Z")));
    let cpu = ended
        .iter()
        .find(|row| row.peer == "turin" && row.resource == "cpu")
        .unwrap();
    assert_eq!(
        serde_json::to_value(cpu).unwrap()["now"],
        json!({ "amount": "1", "perHour": "0.04", "currency": "EUR", "inContract": false })
    );
}

#[test]
fn usage_under_a_contract_and_usage_now_are_in_one_row() {
    let pools = [LentPool {
        consumer: turin(),
        pool: "default".to_owned(),
        in_use: [("cpu", "2".parse().unwrap())].into_iter().collect(),
        prices: None,
        is_in_contract: true,
    }];
    let mut rows: Vec<ResourceUsage> = rows(contract(None))
        .into_iter()
        .filter(|row| row.peer == "turin" && row.resource == "cpu")
        .collect();
    rows[0].pods = 4;
    add_lent_pools(&mut rows, &pools, &known());
    let now = rows[0].now.as_ref().unwrap();
    assert_eq!((rows.len(), rows[0].pods, now.per_hour), (1, 4, None));
}

#[test]
fn a_cluster_that_lends_nothing_now_shows_no_table() {
    assert_eq!(render_lent(&[]), None);
}
