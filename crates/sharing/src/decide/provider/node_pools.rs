//! The nodes that become pools of their own, because a consumer asked for that.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::{PeeringPolicy, ResourceList};

use crate::decide::{
    consumer::MAX_POOLS,
    granularity::{BoundPools, Division, may_choose, was_asked},
    pools::{self, NodePartition, PolicyIndex, pool_name},
    snapshot::{ProviderSnapshot, Requester},
};

/// Maximum number of nodes that a consumer gets as pools of their own. Consumers count pools that
/// are being withdrawn, too: one place stays free for the pool that comes next when the consumer
/// takes its request back.
const MAX_NODE_POOLS: usize = MAX_POOLS - 1;

/// A node that is a pool of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePool {
    pub pool: String,
    pub node: String,
    /// The pool of the policy that the node is in.
    pub policy_pool: String,
    /// Index of the node's partition.
    pub partition: usize,
    /// Whether the node takes pods.
    pub eligible: bool,
    /// Whether the consumer refuses the offer.
    pub refused: bool,
    /// Resources that the consumer's pods use.
    pub in_use: ResourceList,
    /// Amounts that a contract guarantees.
    pub reserved: ResourceList,
}

/// Maximum number of pools for a requester, without pools that are being withdrawn. `offered` of
/// them exist already and stay. A consumer refuses more than [`MAX_POOLS`], and counts pools in
/// withdrawal, too: if one of these was too many, its pods would end without notice.
pub fn max_pools(requester: &Requester, offered: usize) -> usize {
    let leaving = requester.offers.len().saturating_sub(offered);
    MAX_POOLS
        .saturating_sub(leaving)
        .max(offered)
        .min(MAX_POOLS)
}

/// All nodes, each as a pool of its own. Empty if nobody needs it.
pub struct NodeIndex<'a> {
    partitions: &'a [NodePartition<'a>],
    by_pool: HashMap<String, NodePosition>,
    /// In the order in which requesters get them: those that take pods first.
    order: Vec<NodePosition>,
}

/// Whether a requester may have pools of single nodes, and asks for them or has a contract.
fn is_choosing_pools(requester: &Requester) -> bool {
    let may_choose = requester
        .policy
        .is_some_and(|policy| may_choose(&policy.spec.provide));
    may_choose && (was_asked(requester.request) || requester.standing.bound.is_some())
}

/// A node in a partition.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NodePosition {
    partition: usize,
    node: usize,
}

impl<'a> NodeIndex<'a> {
    pub fn new(requesters: &[Requester], partitions: &'a [NodePartition<'a>]) -> Self {
        let mut index = Self {
            partitions,
            by_pool: HashMap::new(),
            order: Vec::new(),
        };
        if !requesters.iter().any(is_choosing_pools) {
            return index;
        }
        for (partition, nodes) in partitions
            .iter()
            .map(|partition| &partition.nodes)
            .enumerate()
        {
            for (node, (name, _)) in nodes.iter().enumerate() {
                index
                    .by_pool
                    .insert(pool_name(name), NodePosition { partition, node });
                index.order.push(NodePosition { partition, node });
            }
        }
        index.order.sort_unstable_by_key(|at| {
            let (name, node) = partitions[at.partition].nodes[at.node];
            (!node.eligible, name)
        });
        index
    }

    /// Whether a policy lends this node to the requester.
    fn is_lent(&self, requester: &Requester, lender: PolicyIndex, at: NodePosition) -> bool {
        let partition = &self.partitions[at.partition];
        partition.pool_under(lender).is_some() && partition.is_open_to(&requester.tenant.consumer)
    }

    /// The node of a pool, if a policy lends it to the requester.
    fn lent_node(
        &self,
        requester: &Requester,
        lender: PolicyIndex,
        pool: &str,
    ) -> Option<NodePosition> {
        self.by_pool
            .get(pool)
            .copied()
            .filter(|at| self.is_lent(requester, lender, *at))
    }

    /// The nodes that a requester gets as pools of their own. It keeps those that it has, so a new
    /// node never replaces one.
    pub fn chosen_nodes(&self, requester: &Requester, lender: PolicyIndex) -> Vec<NodePool> {
        let mut chosen: Vec<NodePosition> = requester
            .offers
            .keys()
            .filter_map(|pool| self.lent_node(requester, lender, pool))
            .take(MAX_POOLS)
            .collect();
        let most = max_pools(requester, chosen.len()).min(MAX_NODE_POOLS.max(chosen.len()));
        for &at in &self.order {
            if chosen.len() >= most {
                break;
            }
            if self.is_lent(requester, lender, at) && !chosen.contains(&at) {
                chosen.push(at);
            }
        }
        chosen
            .into_iter()
            .filter_map(|at| self.node_pool(requester, lender, at))
            .collect()
    }

    fn node_pool(
        &self,
        requester: &Requester,
        lender: PolicyIndex,
        at: NodePosition,
    ) -> Option<NodePool> {
        let partition = &self.partitions[at.partition];
        let (name, node) = partition.nodes[at.node];
        let pool = pool_name(name);
        Some(NodePool {
            refused: requester.refuses_pool(&pool),
            reserved: requester
                .standing
                .reserved_amounts(&pool)
                .cloned()
                .unwrap_or_default(),
            pool,
            node: name.to_owned(),
            policy_pool: partition.pool_under(lender)?.to_owned(),
            partition: at.partition,
            eligible: node.eligible,
            in_use: ResourceList::new(),
        })
    }

    /// Decides how the offer to each requester is divided. `lenders` are the policies that lend
    /// nodes.
    pub fn divide_offers(
        &self,
        snapshot: &ProviderSnapshot,
        requesters: &[Requester],
        lenders: &[&Arc<PeeringPolicy>],
    ) -> Vec<Division> {
        requesters
            .iter()
            .map(|requester| self.divide_offer(requester, lenders, snapshot.wall_time))
            .collect()
    }

    fn divide_offer(
        &self,
        requester: &Requester,
        lenders: &[&Arc<PeeringPolicy>],
        now: Timestamp,
    ) -> Division {
        let provide = requester.policy.map(|policy| &policy.spec.provide);
        Division::for_consumer(
            requester.request,
            provide,
            || {
                let lender = PolicyIndex::of_policy(lenders, requester.policy?)?;
                self.bound_pools(requester, lender)
            },
            now,
        )
    }

    /// Finds the kind of pools that the contract of a requester names.
    fn bound_pools(&self, requester: &Requester, lender: PolicyIndex) -> Option<BoundPools> {
        let (terms, provide) = (requester.standing.bound?, &requester.policy?.spec.provide);
        let of_policy =
            pools::pools_for_consumer(lender, provide, &requester.tenant.consumer, self.partitions);
        if terms
            .pools
            .iter()
            .any(|pool| of_policy.contains(&pool.name))
        {
            return Some(BoundPools::OfPolicy);
        }
        terms
            .pools
            .iter()
            .any(|pool| self.lent_node(requester, lender, &pool.name).is_some())
            .then_some(BoundPools::OfNodes)
    }
}
