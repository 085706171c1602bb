//! The providers of a broker, its customers, and the usage of each customer at each provider. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use liqo_api::{
    ClusterId, ForeignCluster, Granularity, Margin, OfferPhase, PeeringPolicy, PoolBy, PriceList,
    Provide, ResourceList, ResourceOffer, VirtualNode, links,
    policies::{PolicyPeer, policies_of_peer},
    provider_namespace,
    requests::EffectiveAmounts,
    tenant_namespace,
};
use liqo_sharing::decide::{
    lists::ObjectLists, reduce, scheduled_pod::ScheduledPod, snapshot::ProviderSnapshot,
};
use serde::Serialize;

use crate::{
    finding::{Finding, serialize_sentences},
    policy, readiness,
    status::LinkSummary,
    unpeer::lends_to,
};

/// Everything that `liqoctl broker status` shows; `-o json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerStatus {
    /// Name of this cluster.
    pub cluster: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Whether a policy lends on what this cluster borrows, or a customer has something of it.
    pub broker: bool,
    /// The policies that lend on what this cluster borrows.
    pub policies: Vec<BrokerPolicy>,
    /// The consumers to which one of these policies applies, or that have something of what is
    /// borrowed.
    pub customers: Vec<Customer>,
    pub providers: Vec<BrokerProvider>,
    /// Consumers that get nothing of what is borrowed.
    pub other_consumers: Vec<OtherConsumer>,
    #[serde(serialize_with = "serialize_sentences")]
    pub warnings: Vec<BrokerWarning>,
}

/// A warning to a broker, which has no name of its own.
pub type BrokerWarning = Finding<()>;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerPolicy {
    pub name: String,
    /// The peers that it is for, as text.
    pub peers: String,
    pub percentage: u8,
    /// Whether it also lends this cluster's own nodes.
    pub own_nodes: bool,
    /// Added to the prices of providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margin: Option<Margin>,
    pub notice_seconds: u32,
    /// Address of the plugin that decides what is lent on, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Customer {
    /// Name of its `ForeignCluster`.
    pub name: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// The policy that applies to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The links of lending, in order.
    pub links: Vec<LinkSummary>,
    pub offers: Vec<LentOffer>,
    /// Its unfinished pods in this cluster, with those that wait for a node.
    pub pods: usize,
}

/// An offer to a customer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LentOffer {
    #[serde(flatten)]
    pub offer: BrokerOffer,
    /// The resources charged for its pods.
    pub used: ResourceList,
    pub pods: usize,
    /// Those of them that wait for a node.
    pub waiting: usize,
    /// The nodes that the offer comes from, and those on which its pods run.
    pub from: Vec<CustomerNodeUsage>,
}

/// The usage of one node by one customer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomerNodeUsage {
    /// Name of the provider, or of this cluster for its own nodes.
    pub cluster: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// The virtual node; nothing for this cluster's own nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub pods: usize,
    pub used: ResourceList,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerProvider {
    /// Name of its `ForeignCluster`.
    pub name: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Time since which this cluster knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_since: Option<String>,
    /// The links of borrowing, in order.
    pub links: Vec<LinkSummary>,
    pub offers: Vec<BorrowedOffer>,
    /// Unfinished pods of customers that run there.
    pub customer_pods: usize,
}

/// An offer of a provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BorrowedOffer {
    #[serde(flatten)]
    pub offer: BrokerOffer,
    /// Its virtual node, once it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub ready: bool,
    /// Whether somebody keeps new pods off the node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// The reason why the node gets no new pods now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_new_pods: Option<String>,
    /// The requests of all unfinished pods on the node, including those of this cluster.
    pub used: ResourceList,
    /// Unfinished pods on the node, by customer; this cluster's own are under its name.
    pub pods: BTreeMap<String, usize>,
    /// The pools that it is lent on in, as `policy/pool`.
    pub lent_in: Vec<String>,
}

/// The parts of an offer that both directions share.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokerOffer {
    pub pool: String,
    pub phase: OfferPhase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub resources: ResourceList,
    pub hops: u8,
    /// IDs of the clusters that it comes from or through, the provider first.
    pub path: Vec<ClusterId>,
    /// The clusters behind the provider by the names that this cluster knows.
    pub behind: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<String>,
    /// From then on, the provider ends pods on nodes that the pool does not have any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timestamp: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherConsumer {
    pub name: String,
    /// The policy that applies to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// The status without warnings.
pub(super) fn status_without_warnings(facts: &BrokerFacts) -> BrokerStatus {
    let mut known: Vec<&ForeignCluster> = facts.peers.iter().collect();
    known.sort_by_key(|foreign| foreign.name_any());
    let (customers, others): (Vec<_>, Vec<_>) = known
        .iter()
        .copied()
        .partition(|foreign| facts.is_customer(foreign));
    let others = others.into_iter().filter(|foreign| lends_to(foreign));
    let policies: Vec<BrokerPolicy> = facts.lending_on().map(broker_policy).collect();
    BrokerStatus {
        cluster: facts.own_name.clone(),
        cluster_id: facts.own.clone(),
        broker: !policies.is_empty() || !customers.is_empty(),
        policies,
        customers: customers
            .into_iter()
            .map(|foreign| customer_status(foreign, facts))
            .collect(),
        providers: known
            .into_iter()
            .filter(|foreign| facts.is_provider(foreign))
            .map(|foreign| provider_status(foreign, facts))
            .collect(),
        other_consumers: others
            .map(|foreign| OtherConsumer {
                name: foreign.name_any(),
                policy: facts
                    .policy_for_peer(foreign)
                    .map(kube::ResourceExt::name_any),
            })
            .collect(),
        warnings: Vec::new(),
    }
}

/// The facts that follow from the lists.
pub(super) struct BrokerFacts {
    own_name: String,
    own: ClusterId,
    peers: Vec<ForeignCluster>,
    policies: Vec<Arc<PeeringPolicy>>,
    offers: Vec<ResourceOffer>,
    pub contracts: Vec<liqo_api::Contract>,
    /// By the name of the Node.
    virtual_nodes: BTreeMap<String, VirtualNode>,
    ready: BTreeSet<String>,
    cordoned: BTreeSet<String>,
    running: Vec<CustomerPod>,
    /// The nodes of each pool, by the policy that lends on. Those of a plugin are all that come
    /// through as many clusters as it says.
    pools: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// The node of each pool of a single node, by policy, where customers may ask for these.
    single_nodes: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

/// An unfinished pod.
pub struct CustomerPod {
    /// Nothing for this cluster's own pods.
    pub customer: Option<ClusterId>,
    pub pool: String,
    node: Option<String>,
    pub amounts: EffectiveAmounts,
}

impl BrokerFacts {
    pub fn new(
        name: &str,
        own: &ClusterId,
        lists: ObjectLists,
        virtual_nodes: &[VirtualNode],
        now: Timestamp,
    ) -> Self {
        let running = customer_pods(&lists.namespaces, &lists.pods);
        let ready = lists
            .nodes
            .iter()
            .filter(|node| readiness::node(node))
            .map(kube::ResourceExt::name_any)
            .collect();
        let cordoned = lists
            .nodes
            .iter()
            .filter(|node| {
                node.spec
                    .as_ref()
                    .is_some_and(|spec| spec.unschedulable == Some(true))
            })
            .map(kube::ResourceExt::name_any)
            .collect();
        let (peers, policies) = (lists.foreign_clusters.clone(), lists.policies.clone());
        let (offers, contracts) = (lists.offers.clone(), lists.contracts.clone());
        let snapshot = ProviderSnapshot::from_lists(own.clone(), BTreeMap::new(), lists, now);
        let lending_on = policies
            .iter()
            .filter(|policy| policy.spec.provide.source.offers.is_some());
        let pools = lending_on
            .clone()
            .map(|policy| {
                (
                    policy.name_any(),
                    snapshot.nodes_of_pools(&policy.spec.provide),
                )
            })
            .collect();
        let choosing = lending_on.filter(|policy| policy.spec.provide.granularity.peers_may_choose);
        let single_nodes = choosing
            .map(|policy| {
                let granularity = Granularity {
                    by: PoolBy::Node,
                    ..Granularity::default()
                };
                let provide = Provide {
                    granularity,
                    ..policy.spec.provide.clone()
                };
                (policy.name_any(), snapshot.nodes_of_pools(&provide))
            })
            .collect();
        let mut facts = Self {
            own_name: name.to_owned(),
            own: own.clone(),
            peers,
            policies: policies.into_iter().map(Arc::new).collect(),
            offers,
            contracts,
            virtual_nodes: virtual_nodes
                .iter()
                .filter_map(|node| Some((node.status.as_ref()?.node_name.clone()?, node.clone())))
                .collect(),
            ready,
            cordoned,
            running,
            pools,
            single_nodes,
        };
        let by_plugins = facts.pools_of_plugins();
        facts.pools.extend(by_plugins);
        facts
    }

    /// The nodes of the borrowed pools that plugins offer to peers, by policy.
    fn pools_of_plugins(&self) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
        let mut all = BTreeMap::<String, BTreeMap<String, BTreeSet<String>>>::new();
        for foreign in &self.peers {
            let Some(policy) = self
                .policy_for_peer(foreign)
                .filter(|policy| policy.spec.provide.source.plugin.is_some())
            else {
                continue;
            };
            let made = self.offers_made_to(foreign).filter(|offer| {
                offer.spec.is_borrowed() && offer.spec.withdrawal_timestamp.is_none()
            });
            for offer in made {
                let pools = all.entry(policy.name_any()).or_default();
                pools
                    .entry(offer.name_any())
                    .or_default()
                    .extend(self.nodes_through(offer.spec.hops, &foreign.spec.cluster_id));
            }
        }
        all
    }

    /// The virtual nodes that come through this many clusters, with this one, and not through the
    /// customer.
    fn nodes_through(&self, hops: u8, customer: &ClusterId) -> impl Iterator<Item = String> {
        self.virtual_nodes
            .iter()
            .filter(move |(_, node)| self.comes_through(node, hops, customer))
            .map(|(name, _)| name.clone())
    }

    fn comes_through(&self, node: &VirtualNode, hops: u8, customer: &ClusterId) -> bool {
        let mut offers = self.offers_in(provider_namespace(&node.spec.cluster_id));
        let offer = offers.find(|offer| offer.spec.pool == node.spec.pool);
        offer.is_some_and(|offer| {
            offer.spec.hops.saturating_add(1) == hops && !offer.spec.path.contains(customer)
        })
    }

    /// The policies that lend on what is borrowed.
    fn lending_on(&self) -> impl Iterator<Item = &PeeringPolicy> {
        let policies = self
            .policies
            .iter()
            .filter(|policy| policy.metadata.deletion_timestamp.is_none())
            .map(|policy| &**policy);
        policies.filter(|policy| self.pools.contains_key(&policy.name_any()))
    }

    /// The policy that applies to a peer.
    pub fn policy_for_peer(&self, foreign: &ForeignCluster) -> Option<&PeeringPolicy> {
        let peer = PolicyPeer::new(&foreign.spec.cluster_id, Some(foreign));
        policies_of_peer(&self.policies, &peer)
            .into_iter()
            .next()
            .map(|policy| &**policy)
    }

    pub fn provide_of_policy(&self, policy: &str) -> Option<&Provide> {
        self.policies
            .iter()
            .find(|one| one.name_any() == policy)
            .map(|one| &one.spec.provide)
    }

    fn offers_in(&self, namespace: String) -> impl Iterator<Item = &ResourceOffer> {
        self.offers
            .iter()
            .filter(move |offer| offer.namespace().as_ref() == Some(&namespace))
    }

    fn offers_made_to(&self, foreign: &ForeignCluster) -> impl Iterator<Item = &ResourceOffer> {
        self.offers_in(tenant_namespace(&foreign.spec.cluster_id))
    }

    /// Whether it gets something of what is borrowed, or its policy lends that on.
    fn is_customer(&self, foreign: &ForeignCluster) -> bool {
        let has_some = self
            .offers_made_to(foreign)
            .any(|offer| offer.spec.is_borrowed());
        has_some
            || (lends_to(foreign)
                && self
                    .policy_for_peer(foreign)
                    .is_some_and(|policy| policy.spec.provide.source.offers.is_some()))
    }

    fn is_provider(&self, foreign: &ForeignCluster) -> bool {
        foreign.wants_resources() || self.received_from(foreign).next().is_some()
    }

    fn received_from(&self, foreign: &ForeignCluster) -> impl Iterator<Item = &ResourceOffer> {
        self.offers_in(provider_namespace(&foreign.spec.cluster_id))
    }

    /// The nodes that a policy lends as a pool.
    fn nodes_of_pool(&self, policy: &str, pool: &str) -> Option<&BTreeSet<String>> {
        self.pools
            .get(policy)?
            .get(pool)
            .or_else(|| self.single_nodes.get(policy)?.get(pool))
    }

    /// The pools that a node is lent on in, as `policy/pool`.
    fn pools_of_node(&self, node: &str) -> Vec<String> {
        let all = self.pools.iter().flat_map(|(policy, pools)| {
            pools.iter().map(move |(pool, nodes)| (policy, pool, nodes))
        });
        all.filter(|(_, _, nodes)| nodes.contains(node))
            .map(|(policy, pool, _)| format!("{policy}/{pool}"))
            .collect()
    }

    /// The name of a peer in this cluster, else the beginning of its ID.
    fn name(&self, id: &ClusterId) -> String {
        peer_name(&self.peers, id)
    }

    /// The name of this cluster or of a peer.
    fn cluster_name(&self, id: &ClusterId) -> String {
        if *id == self.own {
            self.own_name.clone()
        } else {
            self.name(id)
        }
    }

    /// The virtual node of this name. Nothing stands for all nodes of this cluster.
    fn virtual_node_of(&self, node: &str) -> Option<String> {
        self.virtual_nodes
            .contains_key(node)
            .then(|| node.to_owned())
    }
}

/// The name of a peer in this cluster, else the beginning of its ID.
pub fn peer_name(known: &[ForeignCluster], id: &ClusterId) -> String {
    let found = known.iter().find(|foreign| foreign.spec.cluster_id == *id);
    found.map_or_else(|| id.short_id().to_owned(), kube::ResourceExt::name_any)
}

/// The unfinished pods among these, with their owners.
pub fn customer_pods(namespaces: &[Namespace], pods: &[ScheduledPod]) -> Vec<CustomerPod> {
    let owners: BTreeMap<String, ClusterId> = namespaces
        .iter()
        .cloned()
        .filter_map(namespace_owner)
        .collect();
    pods.iter()
        .cloned()
        .filter_map(|pod| unfinished_customer_pod(pod, &owners))
        .collect()
}

/// A mapped namespace, and whose it is.
fn namespace_owner(namespace: Namespace) -> Option<(String, ClusterId)> {
    let name = namespace.name_any();
    reduce::namespace(namespace)
        .filter(|one| !one.tenant)
        .map(|one| (name, one.consumer))
}

/// A pod that has not finished, with the owner of its namespace: the labels of a pod prove nothing.
fn unfinished_customer_pod(
    pod: ScheduledPod,
    owners: &BTreeMap<String, ClusterId>,
) -> Option<CustomerPod> {
    let owner = owners.get(&pod.namespace().unwrap_or_default()).cloned();
    let pod = reduce::pod(pod)?;
    let claimed = pod.owner.filter(|claimed| {
        owner
            .as_ref()
            .is_some_and(|owner| claimed.consumer == owner.as_str())
    });
    Some(CustomerPod {
        customer: claimed.as_ref().and(owner),
        pool: claimed.map(|claimed| claimed.pool).unwrap_or_default(),
        node: pod.node,
        amounts: pod.resources,
    })
}

fn broker_policy(policy: &PeeringPolicy) -> BrokerPolicy {
    let source = &policy.spec.provide.source;
    BrokerPolicy {
        name: policy.name_any(),
        peers: policy::peers_in_words(&policy.spec.peers),
        percentage: policy.spec.provide.percentage,
        own_nodes: source
            .offers
            .as_ref()
            .is_some_and(|offers| offers.own_nodes),
        margin: source
            .offers
            .as_ref()
            .and_then(|offers| offers.margin.clone()),
        notice_seconds: policy.spec.provide.notice_seconds,
        plugin: source.plugin.as_ref().map(|plugin| plugin.address.clone()),
    }
}

fn customer_status(foreign: &ForeignCluster, facts: &BrokerFacts) -> Customer {
    let policy = facts.policy_for_peer(foreign);
    let mut offers: Vec<LentOffer> = facts
        .offers_made_to(foreign)
        .map(|offer| lent_offer(foreign, offer, policy, facts))
        .collect();
    offers.sort_by(|one, other| one.offer.pool.cmp(&other.offer.pool));
    let id = &foreign.spec.cluster_id;
    Customer {
        name: foreign.name_any(),
        cluster_id: id.clone(),
        policy: policy.map(kube::ResourceExt::name_any),
        links: links_of_peer(foreign, &links::LENDING),
        offers,
        pods: facts
            .running
            .iter()
            .filter(|pod| pod.customer.as_ref() == Some(id))
            .count(),
    }
}

fn links_of_peer(foreign: &ForeignCluster, wanted: &[&str]) -> Vec<LinkSummary> {
    wanted
        .iter()
        .filter_map(|kind| foreign.condition(kind))
        .map(LinkSummary::from)
        .collect()
}

/// The part of a customer's pods that runs on one node.
#[derive(Default)]
struct NodeShare {
    pods: usize,
    used: ResourceList,
}

fn lent_offer(
    foreign: &ForeignCluster,
    object: &ResourceOffer,
    policy: Option<&PeeringPolicy>,
    facts: &BrokerFacts,
) -> LentOffer {
    let pool = object.name_any();
    let charge = policy
        .map(|policy| policy.spec.provide.usage.charge)
        .unwrap_or_default();
    let nodes = policy.and_then(|policy| facts.nodes_of_pool(&policy.name_any(), &pool));
    let mut shares: BTreeMap<Option<String>, NodeShare> = BTreeMap::new();
    for node in nodes.into_iter().flatten() {
        shares.entry(facts.virtual_node_of(node)).or_default();
    }
    let (mut used, mut pods, mut waiting) = (ResourceList::new(), 0, 0);
    for pod in facts
        .running
        .iter()
        .filter(|pod| pod.customer.as_ref() == Some(&foreign.spec.cluster_id) && pod.pool == pool)
    {
        let amounts = pod.amounts.charged_amounts(charge);
        used += amounts;
        pods += 1;
        let Some(node) = &pod.node else {
            waiting += 1;
            continue;
        };
        let share = shares.entry(facts.virtual_node_of(node)).or_default();
        share.pods += 1;
        share.used += amounts;
    }
    LentOffer {
        offer: offer_status(object, facts),
        used,
        pods,
        waiting,
        from: shares
            .into_iter()
            .map(|(node, share)| customer_node_usage(node, share, facts))
            .collect(),
    }
}

fn customer_node_usage(
    node: Option<String>,
    share: NodeShare,
    facts: &BrokerFacts,
) -> CustomerNodeUsage {
    let id = node
        .as_ref()
        .and_then(|node| facts.virtual_nodes.get(node))
        .map_or(&facts.own, |node| &node.spec.cluster_id);
    CustomerNodeUsage {
        cluster: facts.cluster_name(id),
        cluster_id: id.clone(),
        node,
        pods: share.pods,
        used: share.used,
    }
}

fn provider_status(foreign: &ForeignCluster, facts: &BrokerFacts) -> BrokerProvider {
    let mut offers: Vec<BorrowedOffer> = facts
        .received_from(foreign)
        .map(|offer| borrowed_offer(offer, facts))
        .collect();
    offers.sort_by(|one, other| one.offer.pool.cmp(&other.offer.pool));
    BrokerProvider {
        name: foreign.name_any(),
        cluster_id: foreign.spec.cluster_id.clone(),
        known_since: foreign.creation_timestamp().map(|time| time.0.to_string()),
        links: links_of_peer(foreign, &links::BORROWING),
        offers,
        customer_pods: facts
            .running
            .iter()
            .filter(|pod| {
                let node = pod
                    .node
                    .as_ref()
                    .and_then(|node| facts.virtual_nodes.get(node));
                pod.customer.is_some()
                    && node.is_some_and(|node| node.spec.cluster_id == foreign.spec.cluster_id)
            })
            .count(),
    }
}

fn borrowed_offer(object: &ResourceOffer, facts: &BrokerFacts) -> BorrowedOffer {
    let found = facts.virtual_nodes.iter().find(|(_, node)| {
        node.spec.cluster_id == object.spec.cluster_id && node.spec.pool == object.spec.pool
    });
    let (mut used, mut pods) = (ResourceList::new(), BTreeMap::<String, usize>::new());
    for pod in facts
        .running
        .iter()
        .filter(|pod| pod.node.is_some() && pod.node.as_ref() == found.map(|(name, _)| name))
    {
        used += &pod.amounts.requests;
        let who = pod
            .customer
            .as_ref()
            .map_or_else(|| facts.own_name.clone(), |id| facts.name(id));
        *pods.entry(who).or_default() += 1;
    }
    used.retain(|name, _| object.spec.resource_quota.hard.contains(name));
    BorrowedOffer {
        offer: offer_status(object, facts),
        node: found.map(|(name, _)| name.clone()),
        ready: found.is_some_and(|(name, _)| facts.ready.contains(name)),
        cordoned: found.is_some_and(|(name, _)| facts.cordoned.contains(name)),
        no_new_pods: found.and_then(|(_, node)| node.spec.no_new_pods.clone()),
        used,
        pods,
        lent_in: found
            .map(|(name, _)| facts.pools_of_node(name))
            .unwrap_or_default(),
    }
}

fn offer_status(object: &ResourceOffer, facts: &BrokerFacts) -> BrokerOffer {
    let (spec, status) = (&object.spec, object.status.clone().unwrap_or_default());
    BrokerOffer {
        pool: object.name_any(),
        phase: status.phase,
        message: status.message,
        resources: spec.resource_quota.hard.clone(),
        hops: spec.hops,
        behind: spec
            .path
            .iter()
            .skip(1)
            .map(|id| facts.cluster_name(id))
            .collect(),
        path: spec.path.clone(),
        prices: spec.prices.clone(),
        notice_seconds: spec.notice_seconds,
        withdrawal_timestamp: spec
            .withdrawal_timestamp
            .as_ref()
            .map(|time| time.0.to_string()),
        reclaim_timestamp: spec
            .reclaim_timestamp
            .as_ref()
            .map(|time| time.0.to_string()),
        drain_timestamp: spec.drain_timestamp.as_ref().map(|time| time.0.to_string()),
    }
}
