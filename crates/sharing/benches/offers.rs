//! How long it takes to decide on all offers of a large provider anew: `cargo bench -p liqo-sharing`.
//!
//! 1,000 peers, 5,000 nodes and 100,000 pods, a tenth of which belong to peers. Under one policy, and under four that divide the
//! nodes differently; everything anew, and when one pod changed and all offers stand. Says what memory the picture takes, too.

use std::{
    collections::{BTreeMap, HashMap},
    hint::black_box,
    sync::Arc,
    time::Instant,
};

use criterion::{BatchSize, Criterion};
use jiff::Timestamp;
use liqo_api::{ClusterId, DEFAULT_POOL, PeeringPolicy, RESOURCE_REQUEST, ResourceList, ResourceOffer, tenant_namespace};
use liqo_kit::{Key, policies::PolicyPeer};
use liqo_sharing::decide::{
    picture::Picture,
    pods::Pods,
    provider::decide,
    reduce::{Claim, ConsumerNamespace, LocalNode, PodUse, Request},
};
use serde_json::{Value, json};

const PEERS: u32 = 1_000;
const NODES: u32 = 5_000;
const PODS: u32 = 100_000;

fn list(text: &[(&str, &str)]) -> ResourceList {
    text.iter().filter_map(|(name, amount)| Some((*name, amount.parse().ok()?))).collect()
}

fn peer(number: u32) -> ClusterId {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    ClusterId::of_public_key(&key)
}

fn policy(name: &str, priority: i32, spec: &Value) -> Arc<PeeringPolicy> {
    let object =
        json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "PeeringPolicy", "metadata": { "name": name }, "spec": spec });
    let mut policy: PeeringPolicy = serde_json::from_value(object).unwrap_or_else(|error| unreachable!("{error}"));
    policy.spec.priority = priority;
    policy.into()
}

fn pod(number: u32) -> PodUse {
    let claim = number.is_multiple_of(10).then(|| {
        let owner = number / 10 % PEERS;
        Claim { namespace: format!("mapped-{owner}"), consumer: peer(owner).to_string(), pool: DEFAULT_POOL.to_owned() }
    });
    let held = list(&[("cpu", "250m"), ("memory", "512Mi"), ("pods", "1")]).into();
    PodUse { node: Some(format!("node-{}", number % NODES)), held, claim, waits: false }
}

fn pods() -> Arc<Pods> {
    Arc::new((0..PODS).map(pod).collect())
}

fn picture(policies: Vec<Arc<PeeringPolicy>>) -> Picture {
    let allocatable = list(&[("cpu", "64"), ("memory", "256Gi"), ("pods", "110"), ("ephemeral-storage", "1Ti")]);
    let node = |number: u32| {
        let labels = BTreeMap::from([("zone".to_owned(), format!("zone-{}", number % 3))]);
        let node = LocalNode { eligible: true, allocatable: allocatable.clone(), labels };
        (Key::new("", format!("node-{number}")), node.into())
    };
    let mut namespaces = BTreeMap::new();
    for number in 0..PEERS {
        let tenant = ConsumerNamespace { uid: format!("uid-{number}"), consumer: peer(number), tenant: true, terminating: false };
        let mapped = ConsumerNamespace { tenant: false, ..tenant.clone() };
        namespaces.insert(tenant_namespace(&peer(number)), tenant.into());
        namespaces.insert(format!("mapped-{number}"), mapped.into());
    }
    let request = |number: u32| {
        let request = Request { resources: Ok(ResourceList::new()), conditions: Vec::new() };
        (Key::new(tenant_namespace(&peer(number)), RESOURCE_REQUEST), request.into())
    };
    Picture {
        own: peer(u32::MAX),
        policies,
        peers: (0..PEERS).map(|number| (peer(number), PolicyPeer::new(&peer(number), None))).collect(),
        readings: HashMap::new(),
        cluster_labels: BTreeMap::new(),
        nodes: (0..NODES).map(node).collect(),
        pods: pods(),
        namespaces,
        requests: (0..PEERS).map(request).collect(),
        offers: Vec::new(),
        written: HashMap::new(),
        followed: HashMap::new(),
        today: Timestamp::UNIX_EPOCH,
    }
}

/// The picture in which all offers stand.
fn settled(mut picture: Picture) -> Picture {
    let plan = decide(&picture, Instant::now());
    for write in plan.writes {
        let mut offer = ResourceOffer::new(&write.spec.pool.clone(), write.spec);
        offer.metadata.namespace = Some(write.namespace);
        picture.offers.push((Key::of(&offer), offer.into()));
    }
    for write in plan.policies {
        for policy in picture.policies.iter_mut().filter(|policy| policy.metadata.name.as_ref() == Some(&write.name)) {
            Arc::make_mut(policy).status = Some(write.status.clone());
        }
    }
    picture.followed = plan.followed;
    picture
}

/// A line of this process's status, such as the memory that it has now.
fn memory(line: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|one| one.strip_prefix(line));
    found.map(|rest| rest.trim_start_matches(':').trim().to_owned()).unwrap_or_default()
}

fn offers(criterion: &mut Criterion) {
    let one = vec![policy("default", 0, &json!({}))];
    let some = |from: u32| (from..from + 100).map(peer).collect::<Vec<_>>();
    let four = vec![
        policy("default", 0, &json!({ "provide": { "percentage": 50 } })),
        policy(
            "zones",
            1,
            &json!({ "peers": { "clusterIDs": some(0) }, "provide": { "granularity": { "by": "NodeLabel", "label": "zone" } } }),
        ),
        policy(
            "one-zone",
            2,
            &json!({ "peers": { "clusterIDs": some(100) },
            "provide": { "source": { "nodes": { "selectors": [{ "matchLabels": { "zone": "zone-1" } }] } } } }),
        ),
        policy(
            "fixed",
            3,
            &json!({ "peers": { "clusterIDs": some(200) }, "provide": { "source": { "fixed": { "resources": { "cpu": "10", "pods": "20" } } } } }),
        ),
    ];
    let mut group = criterion.benchmark_group("offers to 1,000 peers, 5,000 nodes, 100,000 pods");
    group.sample_size(10);
    for (name, policies) in [("one policy", one), ("four policies", four)] {
        let before = memory("VmRSS");
        let mut picture = settled(picture(policies));
        println!("{name}: memory {before} without the picture, {} with it, {} at most", memory("VmRSS"), memory("VmHWM"));
        group.bench_function(format!("{name}, everything anew"), |bencher| {
            let fresh = || Picture { pods: pods(), ..picture.clone() };
            bencher.iter_batched_ref(fresh, |picture| decide(black_box(picture), Instant::now()), BatchSize::PerIteration);
        });
        let (first, mut changed) = (Arc::new(pod(1)), pod(1));
        changed.held = list(&[("cpu", "300m"), ("memory", "512Mi"), ("pods", "1")]).into();
        let (mut old, mut new) = (first, Arc::new(changed));
        group.bench_function(format!("{name}, one pod changed"), |bencher| {
            bencher.iter(|| {
                Arc::make_mut(&mut picture.pods).changed(Some(&old), Some(&new));
                std::mem::swap(&mut old, &mut new);
                decide(black_box(&picture), Instant::now())
            });
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    offers(&mut criterion);
    criterion.final_summary();
}
