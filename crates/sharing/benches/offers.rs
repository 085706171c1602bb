//! Measures the time that a large provider takes to compute all offers:
//! `cargo bench -p liqo-sharing --bench offers`.
//!
//! 1,000 peers, 5,000 nodes and 100,000 pods, a tenth of which belong to peers; with one policy,
//! and with four that divide the nodes differently. Measures the first decision, and a decision
//! after one pod changed. Also prints the memory of the snapshot.
//!
//! The same for a broker with 100 providers and 100 customers, whose 10,000 pods run on what the
//! providers offer.

use std::{
    collections::{BTreeMap, HashMap},
    hint::black_box,
    sync::Arc,
};

use criterion::{BatchSize, Criterion};
use jiff::Timestamp;
use liqo_api::{
    ClusterId, DEFAULT_POOL, PeeringPolicy, RESOURCE_REQUEST, ResourceList, ResourceOffer,
    provider_namespace, tenant_namespace,
};
use liqo_api::{Key, isolation::Lending, policies::PolicyPeer};
use liqo_sharing::decide::{
    pods_by_node::PodsByNode,
    provider::decide_offers,
    reduce::{ClaimedOwner, ConsumerRequest, LocalNode, PodUsage, TenancyNamespace, UpstreamPool},
    snapshot::ProviderSnapshot,
};
use serde_json::{Value, json};
use tokio::time::Instant;

const PEERS: u32 = 1_000;
const NODES: u32 = 5_000;
const PODS: u32 = 100_000;
/// Providers of a broker; it has as many customers.
const PROVIDERS: u32 = 100;
const BROKERED_PODS: u32 = 10_000;

fn list(text: &[(&str, &str)]) -> ResourceList {
    text.iter()
        .filter_map(|(name, amount)| Some((*name, amount.parse().ok()?)))
        .collect()
}

fn peer(number: u32) -> ClusterId {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    ClusterId::of_public_key(&key)
}

fn policy(name: &str, priority: i32, spec: &Value) -> Arc<PeeringPolicy> {
    let object = json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "PeeringPolicy", "metadata": { "name": name }, "spec": spec });
    let mut policy: PeeringPolicy =
        serde_json::from_value(object).unwrap_or_else(|error| unreachable!("{error}"));
    policy.spec.priority = priority;
    policy.into()
}

fn pod(number: u32) -> PodUsage {
    let owner = number.is_multiple_of(10).then(|| {
        let peer_number = number / 10 % PEERS;
        ClaimedOwner {
            namespace: format!("mapped-{peer_number}"),
            consumer: peer(peer_number).to_string(),
            pool: DEFAULT_POOL.to_owned(),
            is_ending: false,
        }
    });
    let resources = list(&[("cpu", "250m"), ("memory", "512Mi"), ("pods", "1")]).into();
    PodUsage {
        node: Some(format!("node-{}", number % NODES)),
        resources,
        owner,
        waits_for_node: false,
        ..PodUsage::default()
    }
}

fn pods() -> Arc<PodsByNode> {
    Arc::new((0..PODS).map(pod).collect())
}

fn snapshot(policies: Vec<Arc<PeeringPolicy>>) -> ProviderSnapshot {
    let allocatable = list(&[
        ("cpu", "64"),
        ("memory", "256Gi"),
        ("pods", "110"),
        ("ephemeral-storage", "1Ti"),
    ]);
    let node = |number: u32| {
        let labels = BTreeMap::from([("zone".to_owned(), format!("zone-{}", number % 3))]);
        let node = LocalNode {
            eligible: true,
            allocatable: allocatable.clone(),
            labels,
            upstream: None,
        };
        (Key::new("", format!("node-{number}")), node.into())
    };
    let mut namespaces = BTreeMap::new();
    for number in 0..PEERS {
        let tenant = TenancyNamespace {
            uid: format!("uid-{number}"),
            consumer: peer(number),
            tenant: true,
            terminating: false,
        };
        let mapped = TenancyNamespace {
            tenant: false,
            ..tenant.clone()
        };
        namespaces.insert(tenant_namespace(&peer(number)), tenant.into());
        namespaces.insert(format!("mapped-{number}"), mapped.into());
    }
    let request = |number: u32| {
        let request = ConsumerRequest::default();
        (
            Key::new(tenant_namespace(&peer(number)), RESOURCE_REQUEST),
            request.into(),
        )
    };
    ProviderSnapshot {
        own: peer(u32::MAX),
        policies,
        peers: (0..PEERS)
            .map(|number| (peer(number), PolicyPeer::new(&peer(number), None)))
            .collect(),
        silences: HashMap::new(),
        plugin_answers: HashMap::new(),
        lending: Lending::Isolated,
        cluster_labels: BTreeMap::new(),
        nodes: (0..NODES).map(node).collect(),
        pods: pods(),
        namespaces,
        requests: (0..PEERS).map(request).collect(),
        offers: Vec::new(),
        recent_writes: HashMap::new(),
        applied_policies: HashMap::new(),
        contracts: liqo_sharing::decide::snapshot::ContractFacts::default(),
        mode: liqo_sharing::decide::snapshot::OwnWorkingMode::default(),
        replacements: liqo_sharing::decide::snapshot::Replacements::new(),
        wall_time: Timestamp::UNIX_EPOCH,
    }
}

/// A broker: each node is an offer of a provider, and customers' pods run there.
fn broker(policy: Arc<PeeringPolicy>) -> ProviderSnapshot {
    let provider = |number: u32| peer(PEERS + number);
    let node = |number: u32| {
        let upstream = UpstreamPool {
            provider: provider(number),
            pool: DEFAULT_POOL.to_owned(),
            offer: None,
        };
        let allocatable = list(&[
            ("cpu", "64"),
            ("memory", "256Gi"),
            ("pods", "110"),
            ("ephemeral-storage", "1Ti"),
        ]);
        let node = LocalNode {
            eligible: true,
            allocatable,
            labels: BTreeMap::new(),
            upstream: Some(upstream),
        };
        (Key::new("", format!("node-{number}")), node.into())
    };
    let offer = |number: u32| {
        let offer: ResourceOffer = serde_json::from_value(json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
            "metadata": { "name": DEFAULT_POOL, "namespace": provider_namespace(&provider(number)) },
            "spec": { "clusterID": provider(number), "pool": DEFAULT_POOL, "path": [provider(number)],
                "resourceQuota": { "hard": { "cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti" } } },
        }))
        .unwrap_or_else(|error| unreachable!("{error}"));
        (Key::of_object(&offer), offer.into())
    };
    let all = snapshot(vec![policy]);
    let pods = (0..BROKERED_PODS).map(|number| {
        let owner = ClaimedOwner {
            namespace: format!("mapped-{}", number % PROVIDERS),
            consumer: peer(number % PROVIDERS).to_string(),
            pool: DEFAULT_POOL.to_owned(),
            is_ending: false,
        };
        PodUsage {
            node: Some(format!("node-{}", number / PROVIDERS)),
            owner: Some(owner),
            ..pod(number)
        }
    });
    ProviderSnapshot {
        nodes: (0..PROVIDERS).map(node).collect(),
        pods: Arc::new(pods.collect()),
        peers: all
            .peers
            .into_iter()
            .filter(|(id, _)| (0..PROVIDERS).any(|number| peer(number) == *id))
            .collect(),
        requests: all.requests.into_iter().take(PROVIDERS as usize).collect(),
        offers: (0..PROVIDERS).map(offer).collect(),
        ..all
    }
}

/// The snapshot after all offers were written.
fn settled(mut snapshot: ProviderSnapshot) -> ProviderSnapshot {
    let plan = decide_offers(&snapshot, Instant::now());
    for write in plan.writes {
        let mut offer = ResourceOffer::new(&write.spec.pool.clone(), write.spec);
        offer.metadata.namespace = Some(write.namespace);
        snapshot.offers.push((Key::of_object(&offer), offer.into()));
    }
    for write in plan.policy_statuses {
        for policy in snapshot
            .policies
            .iter_mut()
            .filter(|policy| policy.metadata.name.as_ref() == Some(&write.name))
        {
            Arc::make_mut(policy).status = Some(write.status.clone());
        }
    }
    snapshot.applied_policies = plan.applied_policies;
    snapshot
}

/// A value of `/proc/self/status`, such as the memory of this process.
fn memory(line: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|one| one.strip_prefix(line));
    found
        .map(|rest| rest.trim_start_matches(':').trim().to_owned())
        .unwrap_or_default()
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
        let mut snapshot = settled(snapshot(policies));
        println!(
            "{name}: memory {before} without the snapshot, {} with it, {} at most",
            memory("VmRSS"),
            memory("VmHWM")
        );
        group.bench_function(format!("{name}, first decision"), |bencher| {
            let fresh = || ProviderSnapshot {
                pods: pods(),
                ..snapshot.clone()
            };
            bencher.iter_batched_ref(
                fresh,
                |snapshot| decide_offers(black_box(snapshot), Instant::now()),
                BatchSize::PerIteration,
            );
        });
        let (first, mut changed) = (Arc::new(pod(1)), pod(1));
        changed.resources = list(&[("cpu", "300m"), ("memory", "512Mi"), ("pods", "1")]).into();
        let (mut old, mut new) = (first, Arc::new(changed));
        group.bench_function(format!("{name}, one pod changed"), |bencher| {
            bencher.iter(|| {
                Arc::make_mut(&mut snapshot.pods).update(Some(&old), Some(&new));
                std::mem::swap(&mut old, &mut new);
                decide_offers(black_box(&snapshot), Instant::now())
            });
        });
    }
    group.finish();
    broker_offers(criterion);
}

fn broker_offers(criterion: &mut Criterion) {
    let policy = policy(
        "default",
        0,
        &json!({ "provide": { "percentage": 100, "source": { "offers": {} } } }),
    );
    let mut snapshot = settled(broker(policy));
    let made = snapshot
        .offers
        .iter()
        .filter(|(_, offer)| offer.spec.cluster_id == snapshot.own)
        .map(|(_, offer)| offer);
    let longest = made
        .clone()
        .map(|offer| offer.spec.path.len())
        .max()
        .unwrap_or_default();
    println!(
        "a broker offers to {} customers: its path names {longest} clusters",
        made.count()
    );
    let mut group =
        criterion.benchmark_group("a broker with 100 providers, 100 customers, 10,000 pods");
    group.sample_size(10);
    group.bench_function("first decision", |bencher| {
        let fresh = || ProviderSnapshot {
            pods: Arc::new(PodsByNode::clone(&snapshot.pods)),
            ..snapshot.clone()
        };
        bencher.iter_batched_ref(
            fresh,
            |snapshot| decide_offers(black_box(snapshot), Instant::now()),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("a node of a provider changed", |bencher| {
        let hard = [
            list(&[("cpu", "64"), ("memory", "256Gi"), ("pods", "110")]),
            list(&[("cpu", "32"), ("memory", "128Gi"), ("pods", "55")]),
        ];
        let mut round = 0;
        bencher.iter(|| {
            round += 1;
            let (key, node) = &snapshot.nodes[0];
            snapshot.nodes[0] = (
                key.clone(),
                LocalNode {
                    allocatable: hard[round % 2].clone(),
                    ..LocalNode::clone(node)
                }
                .into(),
            );
            decide_offers(black_box(&snapshot), Instant::now())
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    offers(&mut criterion);
    criterion.final_summary();
}
