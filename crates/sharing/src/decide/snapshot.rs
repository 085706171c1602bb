//! The input of the provider side's decision, and its result.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use liqo_api::{
    ClusterConfig, ClusterId, Condition, ContractDecision, OfferPhase, POOL_FOR_EACH_NODE,
    PeeringPolicy, PeeringPolicyStatus, PluginSource, PriceList, RESOURCE_REQUEST, ResourceList,
    ResourceOffer, ResourceOfferSpec, TetheringState, tenant_namespace,
};
use liqo_api::{
    Key,
    conditions::DesiredCondition,
    isolation::Lending,
    policies::{self, PolicyPeer},
};
use tokio::time::Instant;

use liqo_signing::ClusterIdentity;

use super::{
    absence::Silence,
    pods_by_node::PodsByNode,
    reduce::{ClaimedOwner, ConsumerRequest, LocalNode, TenancyNamespace},
};
use liqo_market::contract::{
    breaches::UnconfirmedBreaches,
    provider::ContractWrite,
    record::IssuedContract,
    standing::{ContractStanding, is_reopened},
};

/// All facts that the provider side knows at one moment.
#[derive(Clone, Debug)]
pub struct ProviderSnapshot {
    /// This cluster.
    pub own: ClusterId,
    pub policies: Vec<Arc<PeeringPolicy>>,
    /// The attributes by which policies select peers. A peer without a `ForeignCluster` is absent.
    pub peers: HashMap<ClusterId, PolicyPeer>,
    /// The consumers that are silent.
    pub silences: HashMap<ClusterId, Silence>,
    /// The last answers of resource plugins.
    pub plugin_answers: HashMap<ClusterId, PluginAnswer>,
    /// Whether this cluster lends, as far as the isolation of consumers' pods decides.
    pub lending: Lending,
    /// The labels of this cluster, which every offer carries.
    pub cluster_labels: BTreeMap<String, String>,
    /// All nodes, also the virtual ones.
    pub nodes: Vec<(Key, Arc<LocalNode>)>,
    pub pods: Arc<PodsByNode>,
    /// Tenant and mapped namespaces, by name.
    pub namespaces: BTreeMap<String, Arc<TenancyNamespace>>,
    pub requests: Vec<(Key, Arc<ConsumerRequest>)>,
    /// All offers in this cluster, including those that it received.
    pub offers: Vec<(Key, Arc<ResourceOffer>)>,
    /// Offers that were written so recently that the cache may not show them.
    pub recent_writes: HashMap<OfferId, RecentWrite>,
    /// The policy that applied to each consumer at the last decision.
    pub applied_policies: HashMap<ClusterId, PolicyVersion>,
    pub contracts: ContractFacts,
    /// The working mode of this cluster.
    pub mode: OwnWorkingMode,
    /// Policies that replace those of persons because of it, or because others are tethered to this
    /// cluster.
    pub replacements: Replacements,
    /// Notices end by the wall clock.
    pub wall_time: Timestamp,
}

/// All facts about contracts that the provider side knows.
#[derive(Clone, Debug, Default)]
pub struct ContractFacts {
    /// The key that signs contracts. Without it, none is written.
    pub identity: Option<Arc<ClusterIdentity>>,
    /// The contracts of each tenant namespace.
    pub records: HashMap<String, Vec<Arc<IssuedContract>>>,
    /// Tenant namespaces that have a new contract which `records` do not show yet: another one
    /// would be too many.
    pub unseen: HashSet<String>,
    /// Decisions of persons here, for each peer, by contract.
    pub decisions: HashMap<ClusterId, BTreeMap<String, ContractDecision>>,
    /// Possible breaches that this process has seen.
    pub unconfirmed: HashMap<ClusterId, UnconfirmedBreaches>,
    /// Reasons why receipts count as not answered, for each tenant namespace, by the ID of the
    /// contract.
    pub unanswered: HashMap<String, BTreeMap<String, String>>,
    /// Random bytes, from which the IDs of new contracts are made.
    pub nonce: [u8; 16],
}

impl ContractFacts {
    /// The contracts in a tenant namespace.
    pub(crate) fn of_tenant(&self, namespace: &str) -> &[Arc<IssuedContract>] {
        self.records
            .get(namespace)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }
}

/// The working mode of this cluster, as far as sharing reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnWorkingMode {
    pub state: TetheringState,
    /// The peer that it is about. `None` in the state Autonomous.
    pub peer: Option<ClusterId>,
}

impl OwnWorkingMode {
    /// The mode in the status of the `ClusterConfig`.
    pub fn of_config(config: &ClusterConfig) -> Self {
        config
            .exclusive_peer()
            .map_or_else(Self::default, |peer| Self {
                state: config.tethering().0,
                peer: Some(peer.clone()),
            })
    }
}

/// The policies that replace those of persons, by consumer. `None`: the consumer gets nothing.
pub type Replacements = BTreeMap<ClusterId, Option<Arc<PeeringPolicy>>>;

/// One offer of one tenancy: UID of the tenant namespace, and the pool.
pub type OfferId = (String, String);

/// One generation of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyVersion {
    pub name: String,
    pub uid: String,
    pub generation: i64,
}

/// The answer of a resource plugin about one consumer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginAnswer {
    /// The last valid answer, by pool; `None` if there was none since this process started.
    pub pools: Option<BTreeMap<String, ResourceList>>,
    /// The prices of that answer, by pool, if it gives any.
    pub prices: BTreeMap<String, PriceList>,
    /// Number of clusters that borrowed pools come through, by pool.
    pub hops: BTreeMap<String, u8>,
    /// Reason why the latest call failed.
    pub problem: Option<String>,
}

/// An offer that was just written.
#[derive(Clone, Debug, PartialEq)]
pub struct RecentWrite {
    pub at: Instant,
    /// The amounts that were written.
    pub hard: ResourceList,
    /// The prices that were written.
    pub prices: Option<PriceList>,
    /// Whether another one was just written before it.
    pub is_early: bool,
}

/// All changes that the provider side must write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderPlan {
    /// Offers to delete.
    pub deletions: Vec<Key>,
    /// Offers to write, in this order.
    pub writes: Vec<OfferWrite>,
    /// The conditions of each request.
    pub request_conditions: Vec<RequestCondition>,
    /// The condition of each consumer's `ForeignCluster`.
    pub peer_conditions: BTreeMap<ClusterId, DesiredCondition>,
    pub policy_statuses: Vec<PolicyStatusWrite>,
    pub contract_writes: Vec<ContractChange>,
    pub contract_deletions: Vec<Key>,
    /// Reasons why contracts cannot be proposed, by consumer.
    pub contract_problems: BTreeMap<ClusterId, String>,
    /// Possible breaches.
    pub unconfirmed_breaches: HashMap<ClusterId, UnconfirmedBreaches>,
    /// The policy that applies to each consumer now.
    pub applied_policies: HashMap<ClusterId, PolicyVersion>,
    /// Delay until the next decision if nothing changes.
    pub requeue_after: Option<Duration>,
}

impl ProviderPlan {
    /// The answer to a consumer about one pool for each node.
    pub fn pool_for_each_node(&self, consumer: &ClusterId) -> Option<&DesiredCondition> {
        let namespace = tenant_namespace(consumer);
        let answers = self
            .request_conditions
            .iter()
            .filter(|condition| condition.namespace == namespace);
        answers
            .flat_map(|condition| &condition.wanted)
            .find(|wanted| wanted.kind == POOL_FOR_EACH_NODE)
    }
}

/// One offer to write.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferWrite {
    /// The tenant namespace.
    pub namespace: String,
    pub namespace_uid: String,
    pub consumer: ClusterId,
    pub spec: ResourceOfferSpec,
    /// Whether the cache has this offer already.
    pub exists: bool,
    /// Whether it takes resources that earlier writes give up.
    pub grows: bool,
}

/// One contract to write.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractChange {
    /// The tenant namespace.
    pub namespace: String,
    pub consumer: ClusterId,
    pub write: ContractWrite,
}

/// The status of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyStatusWrite {
    pub name: String,
    pub status: PeeringPolicyStatus,
}

/// The conditions of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestCondition {
    /// The tenant namespace.
    pub namespace: String,
    /// The request's conditions as they are.
    pub current: Vec<Condition>,
    pub wanted: Vec<DesiredCondition>,
    /// The generation of the request that the conditions are about.
    pub generation: Option<i64>,
}

/// A tenant with a readable request.
pub(crate) struct Requester<'a> {
    /// The tenant namespace.
    pub(crate) namespace: &'a str,
    pub(crate) tenant: &'a TenancyNamespace,
    pub(crate) request: &'a ConsumerRequest,
    /// The policy that applies to the consumer.
    pub(crate) policy: Option<&'a Arc<PeeringPolicy>>,
    /// The existing offers, by pool.
    pub(crate) offers: BTreeMap<&'a str, &'a ResourceOffer>,
    /// Time until its offers are taken back because it is silent; zero if they are.
    pub(crate) absent_in: Option<Duration>,
    /// Effect of its contracts on its offers.
    pub(crate) standing: ContractStanding<'a>,
}

impl Requester<'_> {
    /// The maximum amount of each named resource that the consumer requests.
    pub(crate) fn requested(&self) -> ResourceList {
        self.request.resources.clone().unwrap_or_default()
    }

    /// Whether it refuses the offer of a pool.
    pub(crate) fn refuses_pool(&self, pool: &str) -> bool {
        self.offers.get(pool).is_some_and(|offer| is_refused(offer))
    }

    /// Whether the isolation of its pods allows to offer it something. An offer that is being
    /// withdrawn is none.
    pub(crate) fn is_included(&self, lending: Lending) -> bool {
        lending.includes(
            self.offers
                .values()
                .any(|offer| offer.spec.withdrawal_timestamp.is_none()),
        )
    }

    /// Whether it is silent for longer than its policy allows.
    pub(crate) fn is_absent(&self) -> bool {
        self.absent_in.is_some_and(|left| left.is_zero())
    }
}

/// Whether the consumer refuses this offer. Its answer to a withdrawn offer says nothing about the
/// next one.
pub(crate) fn is_refused(offer: &ResourceOffer) -> bool {
    let refused = offer
        .status
        .as_ref()
        .is_some_and(|status| status.phase == OfferPhase::Refused);
    refused && offer.spec.withdrawal_timestamp.is_none()
}

impl ProviderSnapshot {
    /// The tenant namespaces that are not being deleted.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (&str, &TenancyNamespace)> {
        let all = self
            .namespaces
            .iter()
            .map(|(name, namespace)| (name.as_str(), namespace.as_ref()));
        all.filter(|(_, namespace)| namespace.tenant && !namespace.terminating)
    }

    /// The requests, by tenant namespace.
    pub(crate) fn requests(&self) -> HashMap<&str, &ConsumerRequest> {
        let named = self
            .requests
            .iter()
            .filter(|(key, _)| key.name == RESOURCE_REQUEST);
        named
            .map(|(key, request)| (key.namespace.as_str(), request.as_ref()))
            .collect()
    }

    /// The tenants with a readable request, in the order of their cluster IDs.
    pub(crate) fn requesters(&self) -> Vec<Requester<'_>> {
        let requests = self.requests();
        let mut offers: HashMap<&str, BTreeMap<&str, &ResourceOffer>> = HashMap::new();
        // An offer that is being deleted counts as gone: the next one is a new object.
        for (key, offer) in self
            .offers
            .iter()
            .filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none())
        {
            offers
                .entry(&key.namespace)
                .or_default()
                .insert(&key.name, offer);
        }
        let mut requesters: Vec<Requester<'_>> = self
            .tenants()
            .filter_map(|(namespace, tenant)| {
                let request = requests
                    .get(namespace)
                    .copied()
                    .filter(|request| request.resources.is_ok())?;
                let policy = self.policy(&tenant.consumer);
                let silence = self.silences.get(&tenant.consumer);
                let absent_in = policy.and_then(|policy| silence?.absent_in(&policy.spec.provide));
                let offers = offers.remove(namespace).unwrap_or_default();
                let standing = self.contract_standing(namespace, &tenant.consumer, policy);
                Some(Requester {
                    namespace,
                    tenant,
                    request,
                    policy,
                    offers,
                    absent_in,
                    standing,
                })
            })
            .collect();
        requesters.sort_by_key(|requester| &requester.tenant.consumer);
        requesters
    }

    fn contract_standing(
        &self,
        namespace: &str,
        consumer: &ClusterId,
        policy: Option<&Arc<PeeringPolicy>>,
    ) -> ContractStanding<'_> {
        let records = self.contracts.of_tenant(namespace);
        let reopened = self
            .contracts
            .decisions
            .get(consumer)
            .is_none_or(|decisions| is_reopened(records, decisions));
        ContractStanding::of_records(
            policy.map(|policy| &policy.spec.provide),
            records,
            reopened,
            self.wall_time,
        )
    }

    /// All consumers with a request, each with the resource plugin that its policy names.
    pub(crate) fn consumers_with_plugins(&self) -> BTreeMap<ClusterId, Option<PluginSource>> {
        let requests = self.requests();
        let tenants = self
            .tenants()
            .filter_map(|(namespace, tenant)| Some((tenant, requests.get(namespace)?)));
        tenants
            .map(|(tenant, request)| {
                let consumer = &tenant.consumer;
                let policy = self.policy(consumer).filter(|_| request.resources.is_ok());
                let plugin = policy.and_then(|policy| policy.spec.provide.source.plugin.clone());
                (consumer.clone(), plugin)
            })
            .collect()
    }

    /// The last write of a consumer's offer, if it was so recent that the cache may not show it.
    pub(crate) fn recent_write(&self, requester: &Requester, pool: &str) -> Option<&RecentWrite> {
        if self.recent_writes.is_empty() {
            return None;
        }
        self.recent_writes
            .get(&(requester.tenant.uid.clone(), pool.to_owned()))
    }

    /// The policy that applies to a consumer: that of a person, unless the working mode replaces
    /// it.
    pub fn policy(&self, consumer: &ClusterId) -> Option<&Arc<PeeringPolicy>> {
        match self.replacements.get(consumer) {
            Some(replacement) => replacement.as_ref(),
            None => self.policy_of_person(consumer),
        }
    }

    /// The policy that a person wrote for a consumer.
    pub fn policy_of_person(&self, consumer: &ClusterId) -> Option<&Arc<PeeringPolicy>> {
        let unknown;
        let peer = if let Some(peer) = self.peers.get(consumer) {
            peer
        } else {
            unknown = PolicyPeer::new(consumer, None);
            &unknown
        };
        policies::policies_of_peer(&self.policies, peer)
            .into_iter()
            .next()
    }

    /// The consumer and the pool of a pod. Trusts the pod's labels only in a mapped namespace of
    /// the same consumer, because only Liqo creates pods there.
    pub(crate) fn verified_owner<'a>(
        &self,
        claimed: &'a ClaimedOwner,
    ) -> Option<(&'a str, &'a str)> {
        let namespace = self.namespaces.get(&claimed.namespace)?;
        let is_mapped = !namespace.tenant && namespace.consumer.as_str() == claimed.consumer;
        is_mapped.then_some((claimed.consumer.as_str(), claimed.pool.as_str()))
    }
}

impl PolicyVersion {
    pub(crate) fn of_policy(policy: &PeeringPolicy) -> Self {
        let meta = &policy.metadata;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
        }
    }
}
