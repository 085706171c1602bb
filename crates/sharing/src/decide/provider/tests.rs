//! A provider for the tests in these modules.

mod broker;
mod contracts;
mod granularity;
mod largest_pods;
mod policies;
mod pools;
mod pricing;
mod reclaim;
mod requests;
mod tethering;

use std::collections::HashMap;

use liqo_api::{
    ClusterId, DEFAULT_POOL, FreeNodes, PeeringPolicySpec, RESOURCE_REQUEST, ResourceOfferStatus,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    decide::{
        absence::Silence,
        reduce::{ClaimedOwner, ConsumerRequest, LocalNode, PodUsage, TenancyNamespace},
        snapshot::{
            ContractFacts, OfferWrite, OwnWorkingMode, PluginAnswer, RecentWrite, Replacements,
        },
    },
    tests::{cluster, list, offer_of},
};
use liqo_api::Key;
use liqo_api::isolation::Lending;
use liqo_api::{
    OfferPhase, ResourceOffer, ResourceOfferSpec, labels, provider_namespace, tenant_namespace,
};

pub(super) const ROME: u8 = 1;
pub(super) const TURIN: u8 = 2;
const MILAN: u8 = 3;

pub(super) fn policy(name: &str, priority: i32, spec: Value) -> Arc<PeeringPolicy> {
    let spec = PeeringPolicySpec {
        priority,
        ..serde_json::from_value(spec).unwrap()
    };
    Arc::new(PeeringPolicy::new(name, spec))
}

/// Milan with one node of 10 cpu and 10 pods, sharing all of it.
pub(super) fn milan() -> ProviderSnapshot {
    let node = LocalNode {
        eligible: true,
        allocatable: list("cpu=10, pods=10"),
        labels: BTreeMap::new(),
        upstream: None,
    };
    ProviderSnapshot {
        own: cluster(MILAN),
        policies: vec![policy(
            "default",
            0,
            json!({ "provide": { "percentage": 100 } }),
        )],
        peers: HashMap::new(),
        silences: HashMap::new(),
        plugin_answers: HashMap::new(),
        lending: Lending::Isolated,
        cluster_labels: BTreeMap::new(),
        nodes: vec![(Key::new("", "a"), node.into())],
        pods: Arc::default(),
        namespaces: BTreeMap::new(),
        requests: Vec::new(),
        offers: Vec::new(),
        recent_writes: HashMap::new(),
        applied_policies: HashMap::new(),
        contracts: ContractFacts::default(),
        mode: OwnWorkingMode::default(),
        replacements: Replacements::new(),
        wall_time: Timestamp::UNIX_EPOCH,
    }
}

impl ProviderSnapshot {
    pub(super) fn tenant(mut self, consumer: u8) -> Self {
        let id = cluster(consumer);
        let uid = format!("tenant-{consumer}");
        let tenant = TenancyNamespace {
            uid,
            consumer: id.clone(),
            tenant: true,
            terminating: false,
        };
        let mapped = TenancyNamespace {
            uid: format!("mapped-{consumer}"),
            tenant: false,
            ..tenant.clone()
        };
        self.namespaces.insert(tenant_namespace(&id), tenant.into());
        self.namespaces
            .insert(format!("mapped-{consumer}"), mapped.into());
        self
    }

    pub(super) fn request(mut self, consumer: u8, requested: &str) -> Self {
        let request = ConsumerRequest {
            resources: Ok(list(requested)),
            ..ConsumerRequest::default()
        };
        let key = Key::new(tenant_namespace(&cluster(consumer)), RESOURCE_REQUEST);
        self.requests.push((key, request.into()));
        self
    }

    pub(super) fn asks(self, consumer: u8, requested: &str) -> Self {
        self.tenant(consumer).request(consumer, requested)
    }

    pub(super) fn offers(mut self, consumer: u8, hard: &str) -> Self {
        let mut offer = ResourceOffer::new(DEFAULT_POOL, offer_of(MILAN, hard));
        // What is said before any pod comes.
        let free: FreeNodes = self
            .nodes
            .iter()
            .map(|(_, node)| node.allocatable.clone())
            .collect();
        offer.spec.largest_pods = free.select_largest(&list(hard));
        offer.metadata.namespace = Some(tenant_namespace(&cluster(consumer)));
        self.offers.push((Key::of_object(&offer), offer.into()));
        self
    }

    pub(super) fn pod(mut self, namespace: &str, consumer: Option<u8>, requests: &str) -> Self {
        let claimed = consumer.map(|consumer| owner(namespace, consumer, DEFAULT_POOL));
        self.add(PodUsage {
            node: Some("a".to_owned()),
            resources: list(requests).into(),
            owner: claimed,
            ..PodUsage::default()
        });
        self
    }

    pub(super) fn add(&mut self, pod: PodUsage) {
        Arc::make_mut(&mut self.pods).push(pod);
    }

    pub(super) fn plan(&self) -> ProviderPlan {
        decide_offers(self, Instant::now())
    }

    /// Consumer and amounts of each write.
    pub(super) fn writes(&self) -> Vec<(ClusterId, String)> {
        self.plan()
            .writes
            .into_iter()
            .map(|write| (write.consumer, write.spec.resource_quota.hard.to_string()))
            .collect()
    }

    /// Replaces all policies.
    pub(super) fn under(self, policies: &[(&str, i32, Value)]) -> Self {
        let policies = policies
            .iter()
            .map(|(name, priority, spec)| policy(name, *priority, spec.clone()))
            .collect();
        Self { policies, ..self }
    }

    /// Consumer, pool and amounts of each write.
    fn pools(&self) -> Vec<(ClusterId, String, String)> {
        let text = |write: OfferWrite| {
            (
                write.consumer,
                write.spec.pool,
                write.spec.resource_quota.hard.to_string(),
            )
        };
        self.plan().writes.into_iter().map(text).collect()
    }

    /// The snapshot after this plan was carried out.
    pub(super) fn after(mut self, plan: ProviderPlan) -> Self {
        for key in plan.deletions {
            self.offers.retain(|(existing, _)| *existing != key);
        }
        for write in plan.writes {
            let mut offer = ResourceOffer::new(&write.spec.pool.clone(), write.spec);
            offer.metadata.namespace = Some(write.namespace);
            let key = Key::of_object(&offer);
            if let Some(at) = self
                .offers
                .iter()
                .position(|(existing, _)| *existing == key)
            {
                offer.status = self.offers.remove(at).1.status.clone();
            }
            self.offers.push((key, offer.into()));
        }
        self.applied_policies = plan.applied_policies;
        self
    }

    /// The snapshot after the present plan was carried out.
    fn settled(self) -> Self {
        let plan = self.plan();
        self.after(plan)
    }

    /// Writes a consumer's answer into all its offers.
    pub(super) fn answer(&mut self, consumer: u8, refuses: bool) {
        let phase = if refuses {
            OfferPhase::Refused
        } else {
            OfferPhase::Accepted
        };
        let namespace = tenant_namespace(&cluster(consumer));
        for (_, offer) in self
            .offers
            .iter_mut()
            .filter(|(key, _)| key.namespace == namespace)
        {
            Arc::make_mut(offer).status = Some(ResourceOfferStatus {
                phase,
                message: None,
            });
        }
    }

    fn node(mut self, name: &str, allocatable: &str, labels: &[(&str, &str)]) -> Self {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let node = LocalNode {
            eligible: true,
            allocatable: list(allocatable),
            labels,
            upstream: None,
        };
        self.nodes.push((Key::new("", name), node.into()));
        self
    }

    pub(super) fn at(self, seconds: i64) -> Self {
        Self {
            wall_time: Timestamp::from_second(seconds).unwrap(),
            ..self
        }
    }

    fn offer(&self, consumer: u8, pool: &str) -> Option<ResourceOfferSpec> {
        let key = Key::new(tenant_namespace(&cluster(consumer)), pool);
        self.offers
            .iter()
            .find(|(existing, _)| *existing == key)
            .map(|(_, offer)| offer.spec.clone())
    }
}

pub(super) fn owner(namespace: &str, consumer: u8, pool: &str) -> ClaimedOwner {
    ClaimedOwner {
        namespace: namespace.into(),
        consumer: cluster(consumer).to_string(),
        pool: pool.into(),
        is_ending: false,
    }
}

pub(super) fn write(consumer: u8, hard: &str) -> (ClusterId, String) {
    (cluster(consumer), hard.to_owned())
}

fn rome_only(provide: &Value) -> Value {
    json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": provide })
}

fn by_zone() -> [(&'static str, i32, Value); 1] {
    [(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "granularity": { "by": "NodeLabel", "label": "zone" } } }),
    )]
}

/// A pod of rome, in a pool.
fn romes_pod(pool: &str, node: &str, requests: &str) -> PodUsage {
    PodUsage {
        node: Some(node.into()),
        resources: list(requests).into(),
        owner: Some(owner("mapped-1", ROME, pool)),
        ..PodUsage::default()
    }
}
