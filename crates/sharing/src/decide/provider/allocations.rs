//! The pools that must exist.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::isolation::Lending;
use liqo_api::{
    ClusterId, PeeringPolicy, PriceList, Provide, Quantity, ResourceList, ResourceOffer,
};

use super::{
    node_pools::{NodeIndex, NodePool, max_pools},
    notice_end,
};
use crate::decide::{
    granularity::Division,
    pools::{self, NodePartition, PolicyIndex},
    reduce::LocalNode,
    snapshot::{ProviderSnapshot, Requester},
    upstream,
};

/// One pool of one consumer.
pub struct PoolAllocation<'a> {
    /// Index of the consumer in the list of requesters.
    pub requester: usize,
    pub consumer: &'a ClusterId,
    pub pool: String,
    /// The pool of the policy that the nodes are in; the pool itself, unless it is a single node.
    pub policy_pool: String,
    pub nodes: PoolNodes,
    pub policy: &'a Provide,
    pub source: PoolSource,
    /// Number of clusters that the resources come through, if a plugin says that they are borrowed.
    pub borrowed_hops: Option<u8>,
    /// Whether the nodes have less than the plugin says.
    pub is_cut: bool,
    /// Whether the consumer refuses the offer.
    pub refused: bool,
    /// Resources that the consumer's pods use.
    pub in_use: ResourceList,
    /// Resources that the offer should contain.
    pub target: ResourceList,
    /// Time at which pods beyond the offer begin to end.
    pub reclaim_at: Option<Timestamp>,
    /// Amounts that the offer gets at that time; `None` after it.
    pub reclaim_to: Option<ResourceList>,
    /// Whether some of its pods are on nodes that it does not have any more, such as nodes of
    /// another source.
    pub has_left_nodes: bool,
    /// Time at which these pods begin to end.
    pub drain_at: Option<Timestamp>,
    /// The first overused resource.
    pub overuse: Option<OverusedResource>,
    /// The least that the offer contains: what is used, unless that is being reclaimed.
    pub floor: ResourceList,
    /// Amounts that a contract guarantees.
    pub reserved: ResourceList,
    /// The notice of the contract, else of the policy.
    pub notice_seconds: u32,
    /// The prices that the policy means now.
    pub prices: Option<PriceList>,
}

/// Decides on the amounts of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolSource {
    Plugin,
    /// This policy lends own nodes.
    Policy(PolicyIndex),
}

/// More of a resource is used than allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct OverusedResource {
    pub name: String,
    pub used: Quantity,
    pub allowed: Quantity,
}

impl OverusedResource {
    fn first_beyond(in_use: &ResourceList, allowed: &ResourceList) -> Option<Self> {
        let (name, used) = in_use
            .iter()
            .find(|(name, used)| *used > allowed.get(name))?;
        Some(Self {
            name: name.to_owned(),
            used,
            allowed: allowed.get(name),
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum PoolNodes {
    /// Those that the policy puts into the pool.
    All,
    /// Each of these nodes becomes a pool of its own. This one is not published.
    Divided(Vec<NodePool>),
    /// One of them, by name.
    Single(String),
}

impl PoolAllocation<'_> {
    pub fn is_of_plugin(&self) -> bool {
        self.source == PoolSource::Plugin
    }

    /// Whether the nodes of this partition are in the pool of the policy. Nodes that come from the
    /// consumer, or through it, are not, unless it is tethered to this cluster.
    pub fn includes(&self, partition: &NodePartition) -> bool {
        let pool = match self.source {
            PoolSource::Policy(policy) => partition.pool_under(policy),
            PoolSource::Plugin => None,
        };
        pool == Some(self.policy_pool.as_str()) && partition.is_open_to(self.consumer)
    }

    /// The node, if this is the pool of a single one that the consumer asked for.
    pub fn single_node(&self) -> Option<&str> {
        match &self.nodes {
            PoolNodes::Single(node) => Some(node),
            PoolNodes::All | PoolNodes::Divided(_) => None,
        }
    }

    /// The nodes that become pools of their own.
    pub fn node_pools(&self) -> &[NodePool] {
        match &self.nodes {
            PoolNodes::Divided(pools) => pools,
            PoolNodes::All | PoolNodes::Single(_) => &[],
        }
    }

    /// The names of the offers that this becomes.
    pub fn offer_names(&self) -> impl Iterator<Item = &str> {
        let own = (!matches!(self.nodes, PoolNodes::Divided(_))).then_some(self.pool.as_str());
        own.into_iter()
            .chain(self.node_pools().iter().map(|pool| pool.pool.as_str()))
    }

    /// Charges resources to the pool, and to one of its nodes if that is a pool of its own.
    pub fn charge(&mut self, node_pool: Option<usize>, resources: &ResourceList) {
        self.in_use += resources;
        if let (PoolNodes::Divided(pools), Some(at)) = (&mut self.nodes, node_pool) {
            pools[at].in_use += resources;
        }
    }

    /// Starts, continues or ends the notice: `existing` is the end of the one that the consumer
    /// knows. `due` is what it may use.
    pub fn set_reclaim(
        &mut self,
        overuses: bool,
        due: &ResourceList,
        existing: Option<Timestamp>,
        wall_time: Timestamp,
    ) {
        self.reclaim_at = overuses
            .then(|| existing.unwrap_or_else(|| notice_end(wall_time, self.notice_seconds)));
        self.overuse = OverusedResource::first_beyond(&self.in_use, due).filter(|_| overuses);
        self.reclaim_to = self
            .reclaim_at
            .filter(|at| *at > wall_time)
            .map(|_| due.clone());
    }

    /// The same for pods on nodes that the pool does not have any more.
    pub fn set_drain(&mut self, existing: Option<Timestamp>, wall_time: Timestamp) {
        self.drain_at = self
            .has_left_nodes
            .then(|| existing.unwrap_or_else(|| notice_end(wall_time, self.notice_seconds)));
    }

    /// Whether a node of this partition is one of the pool. A plugin does not say which ones it
    /// means: they are all own nodes, or all virtual nodes that come through as many clusters as
    /// the plugin says, and not through the consumer.
    pub fn has_node(&self, partition: &NodePartition, node: &LocalNode) -> bool {
        match (self.source, self.borrowed_hops) {
            (PoolSource::Policy(_), _) => self.includes(partition),
            (PoolSource::Plugin, Some(hops)) => {
                upstream::hops_to_owner(node) == Some(hops)
                    && !partition.behind.contains(self.consumer)
            }
            (PoolSource::Plugin, None) => partition.behind.is_empty(),
        }
    }

    /// The pool of one node of this one. `due` is what it may use of what it uses, `free` what the
    /// node has.
    pub fn of_node(
        &self,
        pool: &NodePool,
        amount: &ResourceList,
        due: &ResourceList,
        free: &ResourceList,
    ) -> Self {
        let NodePool {
            in_use, reserved, ..
        } = pool.clone();
        let overuse =
            OverusedResource::first_beyond(&in_use, due).filter(|_| self.reclaim_at.is_some());
        let floor = if self.is_reclaimed() {
            ResourceList::new()
        } else {
            in_use.clone()
        };
        let mut target = amount.max(&floor);
        // A node without GPUs offers none.
        target.retain(|name, amount| !amount.is_zero() || free.contains(name));
        Self {
            pool: pool.pool.clone(),
            policy_pool: self.policy_pool.clone(),
            nodes: PoolNodes::Single(pool.node.clone()),
            refused: pool.refused,
            reclaim_at: self.reclaim_at.filter(|_| overuse.is_some()),
            reclaim_to: self
                .reclaim_to
                .as_ref()
                .filter(|_| overuse.is_some())
                .map(|_| due.clone()),
            // A pool that is one node ends with it.
            drain_at: None,
            overuse,
            target,
            floor,
            in_use,
            reserved,
            prices: self.prices.clone(),
            ..*self
        }
    }

    /// Whether the notice is over.
    pub fn is_reclaimed(&self) -> bool {
        self.floor.is_empty() && !self.in_use.is_empty()
    }
}

pub fn pool_allocations<'a>(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester<'a>],
    local: &[&Arc<PeeringPolicy>],
    divisions: &[Division],
    nodes: &NodeIndex,
    policies: &[&'a Provide],
    partitions: &[NodePartition],
) -> Vec<PoolAllocation<'a>> {
    let mut allocations = Vec::new();
    for (index, requester) in requesters.iter().enumerate() {
        let Some(policy) = requester
            .policy
            .filter(|_| may_have_offers(requester, snapshot.lending))
        else {
            continue;
        };
        let pools = RequesterPools {
            index,
            requester,
            provide: &policy.spec.provide,
        };
        let lender = PolicyIndex::of_policy(local, policy);
        let answer = snapshot.plugin_answers.get(&requester.tenant.consumer);
        allocations.extend(match lender {
            Some(at) if divisions[index].by_node => pools.of_nodes(at, nodes),
            Some(at) => pools.of_policy(at, policies[at.0], partitions),
            None => match answer.and_then(|answer| Some((answer.pools.as_ref()?, &answer.hops))) {
                Some((amounts, hops)) => pools.of_plugin(amounts, hops),
                None => pools.offered_before(),
            },
        });
    }
    allocations
}

fn may_have_offers(requester: &Requester, lending: Lending) -> bool {
    requester.is_included(lending) && !requester.is_absent() && requester.standing.may_have_offers()
}

/// Finds the pools of a requester that may have offers.
struct RequesterPools<'r, 'a> {
    index: usize,
    requester: &'r Requester<'a>,
    /// From the policy that applies to it.
    provide: &'a Provide,
}

impl<'a> RequesterPools<'_, 'a> {
    /// Whether the pool ends with its contract.
    fn is_lost(&self, pool: &str) -> bool {
        self.requester
            .offers
            .get(pool)
            .is_some_and(|offer| self.requester.standing.has_lost(&offer.spec))
    }

    fn new_allocation(
        &self,
        pool: &str,
        source: PoolSource,
        target: ResourceList,
    ) -> PoolAllocation<'a> {
        let requester = self.requester;
        PoolAllocation {
            requester: self.index,
            consumer: &requester.tenant.consumer,
            pool: pool.to_owned(),
            policy_pool: pool.to_owned(),
            nodes: PoolNodes::All,
            policy: self.provide,
            source,
            borrowed_hops: None,
            is_cut: false,
            refused: requester.refuses_pool(pool),
            in_use: ResourceList::new(),
            target,
            reclaim_at: None,
            reclaim_to: None,
            has_left_nodes: false,
            drain_at: None,
            overuse: None,
            floor: ResourceList::new(),
            reserved: requester
                .standing
                .reserved_amounts(pool)
                .cloned()
                .unwrap_or_default(),
            notice_seconds: requester
                .standing
                .bound
                .map_or(self.provide.notice_seconds, |terms| terms.notice_seconds),
            prices: None,
        }
    }

    /// One pool for each pool of the policy, whose nodes become pools of their own.
    fn of_nodes(&self, lender: PolicyIndex, nodes: &NodeIndex) -> Vec<PoolAllocation<'a>> {
        let mut by_pool: BTreeMap<String, Vec<NodePool>> = BTreeMap::new();
        for node in nodes
            .chosen_nodes(self.requester, lender)
            .into_iter()
            .filter(|node| !self.is_lost(&node.pool))
        {
            by_pool
                .entry(node.policy_pool.clone())
                .or_default()
                .push(node);
        }
        by_pool
            .into_iter()
            .map(|(pool, nodes)| PoolAllocation {
                refused: nodes.iter().all(|node| node.refused),
                reserved: nodes.iter().map(|node| &node.reserved).sum(),
                nodes: PoolNodes::Divided(nodes),
                ..self.new_allocation(&pool, PoolSource::Policy(lender), ResourceList::new())
            })
            .collect()
    }

    fn of_policy(
        &self,
        lender: PolicyIndex,
        provide: &Provide,
        partitions: &[NodePartition],
    ) -> Vec<PoolAllocation<'a>> {
        let requester = self.requester;
        let mut names: Vec<String> =
            pools::pools_for_consumer(lender, provide, &requester.tenant.consumer, partitions)
                .into_iter()
                .filter(|pool| !self.is_lost(pool))
                .collect();
        // Existing offers come first, so a new pool never replaces one.
        names.sort_by_key(|pool| !requester.offers.contains_key(pool.as_str()));
        let offered = names
            .iter()
            .filter(|pool| requester.offers.contains_key(pool.as_str()))
            .count();
        names.truncate(max_pools(requester, offered));
        names
            .iter()
            .map(|pool| self.new_allocation(pool, PoolSource::Policy(lender), ResourceList::new()))
            .collect()
    }

    /// The pools that a plugin answered, with the `hops` of those that are borrowed.
    fn of_plugin(
        &self,
        pools: &BTreeMap<String, ResourceList>,
        hops: &BTreeMap<String, u8>,
    ) -> Vec<PoolAllocation<'a>> {
        // Caps and requests limit all pools together.
        let (mut caps, mut requested) = (self.provide.caps.clone(), self.requester.requested());
        let mut allocations = Vec::new();
        for (pool, amounts) in pools.iter().filter(|(pool, _)| !self.is_lost(pool)) {
            let within = amounts.capped_by(&caps).capped_by(&requested);
            let within: ResourceList = within
                .iter()
                .filter(|(_, amount)| !amount.is_negative())
                .collect();
            (caps, requested) = (
                caps.saturating_sub(&within),
                requested.saturating_sub(&within),
            );
            let borrowed_hops = hops.get(pool).copied();
            allocations.push(PoolAllocation {
                borrowed_hops,
                ..self.new_allocation(pool, PoolSource::Plugin, within)
            });
        }
        allocations
    }

    /// Existing offers stay until the plugin answers for the first time.
    fn offered_before(&self) -> Vec<PoolAllocation<'a>> {
        self.requester
            .offers
            .iter()
            .filter(|(_, offer)| self.is_staying(offer))
            .map(|(pool, offer)| {
                let hard = offer.spec.resource_quota.hard.clone();
                PoolAllocation {
                    borrowed_hops: Some(offer.spec.hops).filter(|_| offer.spec.is_borrowed()),
                    ..self.new_allocation(pool, PoolSource::Plugin, hard)
                }
            })
            .collect()
    }

    fn is_staying(&self, offer: &ResourceOffer) -> bool {
        offer.spec.withdrawal_timestamp.is_none() && !self.requester.standing.has_lost(&offer.spec)
    }
}
