//! What the provider side knows at one moment, and what it makes of it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use liqo_api::{
    ClusterId, Condition, PeeringPolicy, PeeringPolicyStatus, PluginSource, RESOURCE_REQUEST, ResourceList, ResourceOffer,
    ResourceOfferSpec,
};
use liqo_kit::{
    Key,
    conditions::Wanted,
    policies::{self, PolicyPeer},
};

use super::{
    pods::Pods,
    reduce::{Claim, ConsumerNamespace, LocalNode, Request},
};

/// What the provider side knows at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    /// This cluster.
    pub own: ClusterId,
    /// With whom how much is shared.
    pub policies: Vec<Arc<PeeringPolicy>>,
    /// What policies select peers by; peers of which nothing is known are absent.
    pub peers: HashMap<ClusterId, PolicyPeer>,
    /// What plugins said last, for each consumer whose policy names one.
    pub readings: HashMap<ClusterId, Reading>,
    /// Labels of this cluster.
    pub cluster_labels: BTreeMap<String, String>,
    /// Nodes that are not virtual.
    pub nodes: Vec<(Key, Arc<LocalNode>)>,
    /// Unfinished pods.
    pub pods: Arc<Pods>,
    /// Namespaces that Liqo made for consumers, by name.
    pub namespaces: BTreeMap<String, Arc<ConsumerNamespace>>,
    /// What consumers ask for.
    pub requests: Vec<(Key, Arc<Request>)>,
    /// Offers, those that we received included.
    pub offers: Vec<(Key, Arc<ResourceOffer>)>,
    /// What was written in the last seconds.
    pub written: HashMap<OfferId, Written>,
    /// The policy that each consumer's offers follow since they were looked at last.
    pub followed: HashMap<ClusterId, PolicyVersion>,
    /// The time of the day, which notices are measured by.
    pub today: Timestamp,
}

/// One offer of one tenancy: UID of the tenant namespace, and the pool.
pub type OfferId = (String, String);

/// A policy as it is at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyVersion {
    /// Its name.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
}

/// What a plugin said for one consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The pools; nothing before it answered for the first time.
    pub pools: Option<BTreeMap<String, ResourceList>>,
    /// What is wrong with it now.
    pub problem: Option<String>,
}

/// An offer that was written a short time ago; the cache may not show it yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// When.
    pub at: Instant,
    /// What.
    pub hard: ResourceList,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Offers that nobody asks for any more.
    pub deletions: Vec<Key>,
    /// Offers to write, in this order.
    pub writes: Vec<OfferWrite>,
    /// What to say in the status of each request.
    pub answers: Vec<Answer>,
    /// What to say about each consumer.
    pub links: BTreeMap<ClusterId, Wanted>,
    /// What to say in the status of policies.
    pub policies: Vec<PolicyWrite>,
    /// The policy that each consumer's offers follow now.
    pub followed: HashMap<ClusterId, PolicyVersion>,
    /// When to look again although nothing changed.
    pub wake: Option<Duration>,
}

/// One offer to write.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferWrite {
    /// The tenant namespace.
    pub namespace: String,
    /// Its UID.
    pub namespace_uid: String,
    /// Whose it is.
    pub consumer: ClusterId,
    /// What to write.
    pub spec: ResourceOfferSpec,
    /// Whether there is an offer already.
    pub exists: bool,
    /// Whether it needs what earlier writes give up.
    pub grows: bool,
}

/// The status of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyWrite {
    /// Which.
    pub name: String,
    /// What to write.
    pub status: PeeringPolicyStatus,
}

/// The condition of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The tenant namespace.
    pub namespace: String,
    /// The conditions that stand.
    pub current: Vec<Condition>,
    /// The one that should.
    pub wanted: Wanted,
}

/// A tenant with a request that can be read.
pub struct Asking<'a> {
    /// The tenant namespace.
    pub namespace: &'a str,
    /// What is known of it.
    pub tenant: &'a ConsumerNamespace,
    /// The request.
    pub request: &'a Request,
    /// The policy that holds for the consumer.
    pub policy: Option<&'a Arc<PeeringPolicy>>,
    /// Its offers, by pool.
    pub offers: BTreeMap<&'a str, &'a ResourceOffer>,
}

impl Asking<'_> {
    /// What is asked for at most.
    pub fn asked(&self) -> ResourceList {
        self.request.resources.clone().unwrap_or_default()
    }
}

impl Picture {
    /// The tenant namespaces that stay.
    pub fn tenants(&self) -> impl Iterator<Item = (&str, &ConsumerNamespace)> {
        let all = self.namespaces.iter().map(|(name, namespace)| (name.as_str(), namespace.as_ref()));
        all.filter(|(_, namespace)| namespace.tenant && !namespace.terminating)
    }

    /// The requests, by tenant namespace.
    pub fn requests(&self) -> HashMap<&str, &Request> {
        let ours = self.requests.iter().filter(|(key, _)| key.name == RESOURCE_REQUEST);
        ours.map(|(key, request)| (key.namespace.as_str(), request.as_ref())).collect()
    }

    /// The tenants that ask for something, in the order of their IDs.
    pub fn asking(&self) -> Vec<Asking<'_>> {
        let requests = self.requests();
        let mut offers: HashMap<&str, BTreeMap<&str, &ResourceOffer>> = HashMap::new();
        // An offer that is being deleted is as good as gone: the one after it is a new one.
        for (key, offer) in self.offers.iter().filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none()) {
            offers.entry(&key.namespace).or_default().insert(&key.name, offer);
        }
        let mut asking: Vec<Asking<'_>> = self
            .tenants()
            .filter_map(|(namespace, tenant)| {
                let request = requests.get(namespace).copied().filter(|request| request.resources.is_ok())?;
                let policy = self.policy(&tenant.consumer);
                Some(Asking { namespace, tenant, request, policy, offers: offers.remove(namespace).unwrap_or_default() })
            })
            .collect();
        asking.sort_by_key(|asking| &asking.tenant.consumer);
        asking
    }

    /// All consumers that ask for something, and the plugin that is to be asked about each, if a plugin is.
    pub fn plugins(&self) -> BTreeMap<ClusterId, Option<PluginSource>> {
        let requests = self.requests();
        let asks = self.tenants().filter_map(|(namespace, tenant)| Some((tenant, requests.get(namespace)?)));
        let plugin = |consumer: &ClusterId| self.policy(consumer)?.spec.provide.source.plugin.clone();
        let of = |(tenant, request): (&ConsumerNamespace, &&Request)| {
            let consumer = &tenant.consumer;
            (consumer.clone(), plugin(consumer).filter(|_| request.resources.is_ok()))
        };
        asks.map(of).collect()
    }

    /// The policy that holds for a consumer.
    pub fn policy(&self, consumer: &ClusterId) -> Option<&Arc<PeeringPolicy>> {
        let stranger;
        let peer = if let Some(peer) = self.peers.get(consumer) {
            peer
        } else {
            stranger = PolicyPeer::new(consumer, None);
            &stranger
        };
        policies::of_peer(&self.policies, peer).into_iter().next()
    }

    /// Whose pod this is, and of which pool. A pod's labels are believed only in a mapped namespace of the same consumer,
    /// because nobody but us makes pods there.
    pub fn owner<'a>(&self, claim: &'a Claim) -> Option<(&'a str, &'a str)> {
        let namespace = self.namespaces.get(&claim.namespace)?;
        let real = !namespace.tenant && namespace.consumer.as_str() == claim.consumer;
        real.then_some((claim.consumer.as_str(), claim.pool.as_str()))
    }
}

impl PolicyVersion {
    /// That of a policy.
    pub fn of(policy: &PeeringPolicy) -> Self {
        let meta = &policy.metadata;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
        }
    }
}
