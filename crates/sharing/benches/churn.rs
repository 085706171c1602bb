//! Counts how often offers are rewritten while pods come and go:
//! `cargo bench -p liqo-sharing --bench churn`.
//!
//! Simulates ten minutes of a provider with 100 nodes that lends to ten peers. Each second ten of
//! its own pods end and ten others start on random nodes. In the second half, a job of 600 pods
//! runs in one minute of every two. The bench decides once per simulated second, with the time as
//! an argument, and counts the writes. The seed is fixed, so the results are always the same.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{
    ClusterId, PeeringPolicy, RESOURCE_REQUEST, ResourceList, ResourceOffer, tenant_namespace,
};
use liqo_api::{Key, isolation::Lending, policies::PolicyPeer};
use liqo_sharing::decide::{
    provider::decide_offers,
    reduce::{ConsumerRequest, LocalNode, PodUsage, TenancyNamespace},
    snapshot::{OfferWrite, ProviderSnapshot, RecentWrite},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tokio::time::Instant;

const PEERS: u32 = 10;
const NODES: u32 = 100;
const PODS: u32 = 3_000;
const SECONDS: u64 = 600;
const PODS_A_SECOND: u32 = 10;
/// From this second on, jobs run for one minute of every two.
const JOBS_FROM: u64 = 300;
const JOB: u32 = 600;

fn list(text: &[(&str, String)]) -> ResourceList {
    text.iter()
        .filter_map(|(name, amount)| Some((*name, amount.parse().ok()?)))
        .collect()
}

fn peer(number: u32) -> ClusterId {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    ClusterId::of_public_key(&key)
}

fn policy(threshold: u8) -> Arc<PeeringPolicy> {
    let spec = json!({ "provide": { "offerUpdateThresholdPercentage": threshold } });
    let object = json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "PeeringPolicy",
        "metadata": { "name": "default" }, "spec": spec });
    serde_json::from_value::<PeeringPolicy>(object)
        .unwrap_or_else(|error| unreachable!("{error}"))
        .into()
}

/// An own pod of the provider, with a random size on a random node.
fn pod(random: &mut StdRng) -> Arc<PodUsage> {
    let (cpu, memory) = (
        random.random_range(1..20) * 100,
        random.random_range(1..16) * 256,
    );
    let requests = list(&[
        ("cpu", format!("{cpu}m")),
        ("memory", format!("{memory}Mi")),
        ("pods", "1".to_owned()),
    ]);
    let node = Some(format!("node-{}", random.random_range(0..NODES)));
    PodUsage {
        node,
        resources: requests.into(),
        owner: None,
        waits_for_node: false,
        ..PodUsage::default()
    }
    .into()
}

fn provider(threshold: u8) -> ProviderSnapshot {
    let allocatable = list(&[
        ("cpu", "64".to_owned()),
        ("memory", "256Gi".to_owned()),
        ("pods", "110".to_owned()),
    ]);
    let node = |number: u32| {
        let node = LocalNode {
            eligible: true,
            allocatable: allocatable.clone(),
            labels: BTreeMap::new(),
            upstream: None,
        };
        (Key::new("", format!("node-{number}")), node.into())
    };
    let tenant = |number: u32| {
        let tenant = TenancyNamespace {
            uid: format!("uid-{number}"),
            consumer: peer(number),
            tenant: true,
            terminating: false,
        };
        (tenant_namespace(&peer(number)), tenant.into())
    };
    let request = |number: u32| {
        let request = ConsumerRequest::default();
        (
            Key::new(tenant_namespace(&peer(number)), RESOURCE_REQUEST),
            request.into(),
        )
    };
    ProviderSnapshot {
        own: peer(u32::MAX),
        policies: vec![policy(threshold)],
        peers: (0..PEERS)
            .map(|number| (peer(number), PolicyPeer::new(&peer(number), None)))
            .collect(),
        silences: HashMap::new(),
        plugin_answers: HashMap::new(),
        lending: Lending::Isolated,
        cluster_labels: BTreeMap::new(),
        nodes: (0..NODES).map(node).collect(),
        pods: Arc::default(),
        namespaces: (0..PEERS).map(tenant).collect(),
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

/// Writes the offer into the snapshot, as the API server would.
fn apply(snapshot: &mut ProviderSnapshot, write: OfferWrite, now: Instant) {
    let key = Key::new(write.namespace, write.spec.pool.clone());
    let recent = RecentWrite {
        at: now,
        hard: write.spec.resource_quota.hard.clone(),
        prices: None,
        is_early: false,
    };
    snapshot
        .recent_writes
        .insert((write.namespace_uid, key.name.clone()), recent);
    let offer = ResourceOffer::new(&key.name, write.spec).into();
    snapshot.offers.retain(|(other, _)| *other != key);
    snapshot.offers.push((key, offer));
}

/// The changing pods of the provider.
struct Pods {
    steady: Vec<Arc<PodUsage>>,
    job: Vec<Arc<PodUsage>>,
    random: StdRng,
}

impl Pods {
    fn new(snapshot: &mut ProviderSnapshot) -> Self {
        let mut random = StdRng::seed_from_u64(42);
        let steady: Vec<Arc<PodUsage>> = (0..PODS).map(|_| pod(&mut random)).collect();
        for pod in &steady {
            change(snapshot, None, Some(pod));
        }
        Self {
            steady,
            job: Vec::new(),
            random,
        }
    }

    /// Simulates one second.
    fn second(&mut self, second: u64, snapshot: &mut ProviderSnapshot) {
        for _ in 0..PODS_A_SECOND {
            let at = self.random.random_range(0..self.steady.len());
            let new = pod(&mut self.random);
            change(snapshot, Some(&self.steady[at]), Some(&new));
            self.steady[at] = new;
        }
        let runs = second >= JOBS_FROM && ((second - JOBS_FROM) / 60).is_multiple_of(2);
        if runs && self.job.is_empty() {
            self.job = (0..JOB).map(|_| pod(&mut self.random)).collect();
            for pod in &self.job {
                change(snapshot, None, Some(pod));
            }
        } else if !runs {
            for pod in self.job.drain(..) {
                change(snapshot, Some(&pod), None);
            }
        }
    }
}

fn change(
    snapshot: &mut ProviderSnapshot,
    old: Option<&Arc<PodUsage>>,
    new: Option<&Arc<PodUsage>>,
) {
    Arc::make_mut(&mut snapshot.pods).update(old, new);
}

/// Number of writes in the five minutes without jobs, except the first offers, and in the five
/// minutes with jobs.
fn writes(threshold: u8) -> [usize; 2] {
    let mut snapshot = provider(threshold);
    let mut pods = Pods::new(&mut snapshot);
    let (start, mut counts) = (Instant::now(), [0; 2]);
    for second in 0..=SECONDS {
        let now = start + Duration::from_secs(second);
        snapshot.wall_time = Timestamp::UNIX_EPOCH
            + SignedDuration::from_secs(i64::try_from(second).unwrap_or(i64::MAX));
        let plan = decide_offers(&snapshot, now);
        snapshot.applied_policies = plan.applied_policies;
        counts[usize::from(second >= JOBS_FROM)] += if second == 0 { 0 } else { plan.writes.len() };
        for write in plan.writes {
            apply(&mut snapshot, write, now);
        }
        pods.second(second, &mut snapshot);
    }
    counts
}

fn main() {
    println!(
        "offers rewritten in 10 minutes: {PEERS} peers, {NODES} nodes, {PODS} pods of which {PODS_A_SECOND} a second are replaced"
    );
    for threshold in [0, 1, 2, 5, 10] {
        let [steady, jobs] = writes(threshold);
        println!(
            "  threshold {threshold:>2} percent: {steady:>4} in five steady minutes, {jobs:>4} in five with jobs"
        );
    }
}
