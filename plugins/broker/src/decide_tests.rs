use jiff::Timestamp;
use liqo_api::{isolation::Lending, provider_namespace, tenant_namespace};
use liqo_sharing::decide::lists::ObjectLists;
use serde_json::{Value, from_value, json};

use super::*;

const SERVICE: &str = "liqo-broker-plugin";

/// The ID of a test cluster.
fn cluster(name: &str) -> ClusterId {
    let mut key = [0; 32];
    key[..name.len()].copy_from_slice(name.as_bytes());
    ClusterId::of_public_key(&key)
}

/// The objects of milan, which has an own node of 16 CPUs.
struct Milan {
    policies: Vec<Value>,
    nodes: Vec<Value>,
    pods: Vec<Value>,
    namespaces: Vec<Value>,
    requests: Vec<Value>,
    offers: Vec<Value>,
}

fn milan() -> Milan {
    let (policies, pods, namespaces, requests, offers) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let nodes = vec![node("own", &json!({}), "16")];
    Milan {
        policies,
        nodes,
        pods,
        namespaces,
        requests,
        offers,
    }
    .policy("default", 0, &[], "liqo-broker-plugin.liqo:7000", 1)
}

fn node(name: &str, labels: &Value, cpu: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": labels },
        "status": {
            "allocatable": { "cpu": cpu, "memory": "8Gi", "pods": "10" },
            "conditions": [{ "type": "Ready", "status": "True" }]
        }
    })
}

impl Milan {
    fn policy(
        mut self,
        name: &str,
        priority: i32,
        peers: &[&str],
        plugin: &str,
        weight: u16,
    ) -> Self {
        let ids: Vec<ClusterId> = peers.iter().map(|name| cluster(name)).collect();
        let provide = json!({ "weight": weight, "percentage": 10, "source": { "plugin": { "address": plugin } } });
        let spec =
            json!({ "priority": priority, "peers": { "clusterIDs": ids }, "provide": provide });
        self.policies
            .push(json!({ "metadata": { "name": name }, "spec": spec }));
        self
    }

    /// A virtual node, and the offer that it comes from. `path` are the clusters behind the
    /// provider.
    fn borrows(mut self, provider: &str, cpu: &str, path: &[&str]) -> Self {
        let id = cluster(provider);
        let labels = json!({ "liqo.io/type": "virtual-node", "liqo.io/remote-cluster-id": id, "liqo.io/pool": "default" });
        self.nodes.push(node(provider, &labels, cpu));
        let all: Vec<ClusterId> = [provider]
            .iter()
            .chain(path)
            .map(|name| cluster(name))
            .collect();
        let spec = json!({
            "clusterID": id, "pool": "default", "resourceQuota": { "hard": { "cpu": cpu } }, "path": all, "hops": all.len()
        });
        self.offers.push(json!({ "metadata": { "name": "default", "namespace": provider_namespace(&id) }, "spec": spec }));
        self
    }

    fn asks(mut self, consumer: &str) -> Self {
        let id = cluster(consumer);
        let labels = |kind: &str| json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": kind, "liqo.io/consumer-id": id, "liqo.io/home-namespace": "demo" });
        let tenant = tenant_namespace(&id);
        self.namespaces.push(
            json!({ "metadata": { "name": tenant, "uid": consumer, "labels": labels("tenant") } }),
        );
        self.namespaces.push(json!({ "metadata": { "name": consumer, "uid": consumer, "labels": labels("mapped") } }));
        self.requests.push(json!({ "metadata": { "name": "request", "namespace": tenant }, "spec": { "resources": {} } }));
        self
    }

    fn pod(mut self, namespace: &str, consumer: Option<&str>, node: &str) -> Self {
        let labels = consumer.map_or(
            json!({}),
            |name| json!({ "liqo.io/consumer-id": cluster(name), "liqo.io/pool": "default" }),
        );
        let name = format!("pod-{}", self.pods.len());
        self.pods.push(json!({
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "phase": "Running" }
        }));
        self
    }

    fn offers(self) -> CustomerOffers {
        let lists = ObjectLists {
            policies: objects(self.policies),
            nodes: objects(self.nodes),
            pods: objects(self.pods),
            namespaces: objects(self.namespaces),
            requests: objects(self.requests),
            offers: objects(self.offers),
            lending: Lending::Isolated,
            ..ObjectLists::default()
        };
        let snapshot = ProviderSnapshot::from_lists(
            cluster("milan"),
            BTreeMap::new(),
            lists,
            Timestamp::UNIX_EPOCH,
        );
        CustomerOffers::from_snapshot(snapshot, SERVICE, Instant::now())
    }
}

fn objects<T: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<T> {
    values
        .into_iter()
        .map(|value| from_value(value).unwrap())
        .collect()
}

/// Name, hops and CPUs of each pool.
fn cpu(offers: &CustomerOffers, consumer: &str) -> Vec<(String, u8, String)> {
    let pools = offers.offer_of_cluster(cluster(consumer).as_str(), Instant::now());
    pools
        .into_iter()
        .map(|pool| (pool.name, pool.hops, pool.resources.get("cpu").to_string()))
        .collect()
}

fn default_pool(cpu: &str) -> Vec<(String, u8, String)> {
    vec![("default".to_owned(), 2, cpu.to_owned())]
}

#[test]
fn a_customer_is_offered_the_sum_of_what_is_borrowed_and_no_own_node() {
    let offers = milan()
        .borrows("turin", "4", &[])
        .borrows("genoa", "6", &[])
        .asks("rome")
        .offers();
    assert_eq!(cpu(&offers, "rome"), default_pool("10"));
    assert_eq!(
        offers.offer_of_cluster(cluster("rome").as_str(), Instant::now())[0]
            .resources
            .to_string(),
        "cpu=10, memory=16Gi, pods=20"
    );
}

#[test]
fn customers_share_by_weight_and_nothing_is_promised_twice() {
    let milan = milan()
        .policy("large", 1, &["rome"], "liqo-broker-plugin:7000", 3)
        .borrows("turin", "8", &[]);
    let offers = milan.asks("rome").asks("venice").offers();
    assert_eq!(
        (cpu(&offers, "rome"), cpu(&offers, "venice")),
        (default_pool("6"), default_pool("2"))
    );
}

#[test]
fn using_an_offer_does_not_make_it_smaller_and_own_pods_do() {
    let offers = milan()
        .borrows("turin", "8", &[])
        .asks("rome")
        .pod("rome", Some("rome"), "turin")
        .offers();
    assert_eq!(cpu(&offers, "rome"), default_pool("8"));
    let offers = milan()
        .borrows("turin", "8", &[])
        .asks("rome")
        .pod("default", None, "turin")
        .pod("default", None, "own")
        .offers();
    assert_eq!(cpu(&offers, "rome"), default_pool("7"));
}

#[test]
fn use_beyond_the_share_is_not_offered_because_the_manager_gives_notice() {
    let mut milan = milan().borrows("turin", "8", &[]).asks("rome");
    for _ in 0..3 {
        milan = milan.pod("rome", Some("rome"), "turin");
    }
    milan.nodes[1]["spec"] = json!({ "unschedulable": true });
    assert_eq!(cpu(&milan.offers(), "rome"), default_pool("0"));
}

#[test]
fn nobody_is_offered_what_comes_from_itself_or_through_it() {
    let offers = milan()
        .borrows("turin", "4", &["venice"])
        .borrows("genoa", "6", &[])
        .asks("genoa")
        .asks("venice")
        .offers();
    assert_eq!(
        cpu(&offers, "genoa"),
        [("hops-3".to_owned(), 3, "4".to_owned())]
    );
    assert_eq!(cpu(&offers, "venice"), default_pool("6"));
    let offers = milan().borrows("turin", "4", &[]).asks("turin").offers();
    assert_eq!(
        cpu(&offers, "turin"),
        default_pool("0"),
        "nothing is said as zero"
    );
}

#[test]
fn resources_of_different_hops_are_different_pools() {
    let offers = milan()
        .borrows("turin", "4", &[])
        .borrows("genoa", "6", &["venice"])
        .asks("rome")
        .offers();
    assert_eq!(
        cpu(&offers, "rome"),
        [
            ("default".to_owned(), 2, "4".to_owned()),
            ("hops-3".to_owned(), 3, "6".to_owned())
        ]
    );
}

#[test]
fn a_cluster_without_a_request_is_answered_too() {
    let offers = milan().borrows("turin", "4", &[]).asks("rome").offers();
    assert_eq!(
        cpu(&offers, "naples"),
        default_pool("2"),
        "its share if it asked"
    );
    assert_eq!(
        offers.offer_of_cluster("3f2b1d9a-an-id-of-earlier-versions", Instant::now())[0]
            .resources
            .get("cpu")
            .to_string(),
        "2"
    );
    assert_eq!(
        cpu(&milan().borrows("turin", "4", &[]).offers(), "naples"),
        default_pool("4")
    );
}

#[test]
fn peers_whose_policy_names_another_plugin_get_no_share() {
    let milan = milan()
        .policy(
            "others",
            1,
            &["venice"],
            "liqo-fixed-resources-plugin.liqo:6001",
            1,
        )
        .borrows("turin", "4", &[]);
    let offers = milan.asks("rome").asks("venice").offers();
    assert_eq!(cpu(&offers, "rome"), default_pool("4"));
    assert_eq!(
        cpu(&offers, "venice"),
        default_pool("2"),
        "what it would get"
    );
}

#[test]
fn what_the_manager_has_written_changes_no_answer() {
    let written = |cpu: &str| {
        let mut milan = milan()
            .borrows("turin", "4", &[])
            .asks("rome")
            .asks("venice");
        let spec = json!({ "clusterID": cluster("milan"), "pool": "default", "resourceQuota": { "hard": { "cpu": cpu } } });
        let namespace = tenant_namespace(&cluster("venice"));
        milan.offers.push(
            json!({ "metadata": { "name": "default", "namespace": namespace }, "spec": spec }),
        );
        super::tests::cpu(&milan.offers(), "rome")
    };
    assert_eq!(
        (written("4"), written("1")),
        (default_pool("2"), default_pool("2"))
    );
}

#[test]
fn only_changed_offers_are_announced() {
    let large = || {
        milan()
            .policy("large", 1, &["rome"], "liqo-broker-plugin:7000", 3)
            .borrows("turin", "8", &[])
            .asks("rome")
    };
    assert_eq!(large().offers().changes_to(&large().offers()), []);
    let with_own_pod = large().pod("default", None, "own").offers();
    assert_eq!(
        large().offers().changes_to(&with_own_pod),
        [],
        "own nodes do not matter"
    );
    assert_eq!(
        large()
            .offers()
            .changes_to(&large().asks("venice").offers()),
        [Change::All]
    );
    let loops = large().borrows("rome", "0", &[]).offers();
    let changed = large()
        .borrows("rome", "0", &[])
        .pod("rome", Some("rome"), "turin")
        .offers();
    assert_eq!(loops.changes_to(&changed), []);
}

#[test]
fn each_generation_gets_what_it_can_read() {
    let lent = milan()
        .borrows("turin", "4", &[])
        .borrows("genoa", "6", &["venice"])
        .asks("rome")
        .offers();
    let lent = lent.offer_of_cluster(cluster("rome").as_str(), Instant::now());
    let pools = answer_in_generation(Generation::P3, &lent);
    let [own, far] = &pools[..] else {
        unreachable!("two pools")
    };
    assert_eq!(
        (own.name.as_deref(), own.hops, far.name.as_deref(), far.hops),
        (None, 2, Some("hops-3"), 3)
    );
    for generation in [Generation::P1, Generation::P2] {
        let pools = answer_in_generation(generation, &lent);
        let [sum] = &pools[..] else {
            unreachable!("one pool")
        };
        assert_eq!(
            (sum.name.as_deref(), sum.resources.to_string().as_str()),
            (None, "cpu=10, memory=16Gi, pods=20")
        );
    }
}

#[test]
fn providers_cannot_make_an_answer_too_large() {
    let mut many: ResourceList = (0..500)
        .map(|number| (format!("example.com/r{number:03}"), Quantity::from_units(1)))
        .collect();
    many.insert("pods", Quantity::from_units(1));
    let kept = bounded_resources(many);
    assert!(is_bounded(&kept) && kept.contains("pods") && kept.contains("example.com/r000"));
}
