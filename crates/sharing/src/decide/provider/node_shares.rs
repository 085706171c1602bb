//! Computes each consumer's share of single nodes, if it asked for one pool for each node.
//!
//! It gets the amounts that it would get in the policy's own pools, so what it asks for takes
//! nothing from others. Only then its share of each partition is divided between the nodes:
//!
//! ```text
//!   pool default of rome: cpu 12   ── node a ─▶  pool a: cpu 4
//!   (not published)                ── node b ─▶  pool b: cpu 8
//! ```
//!
//! Several consumers may have a pool of the same node. What one of them gets of it is not there for
//! the next one.

use std::collections::{BTreeMap, HashMap};

use liqo_api::{ClusterId, Quantity, ResourceList};

use super::{
    allocations::{PoolAllocation, PoolNodes},
    node_pools::NodePool,
    pool_usage::{NodeUse, PoolUsage},
};
use crate::decide::{
    ledger::{self, Claim},
    pools::NodePartition,
    shares::{PartitionBudget, Shares, max_for_policy},
};

/// The sum of the weights of all nodes, when a share is divided between them.
const WEIGHTS: i128 = 10_000;

/// Limits each claimant that has some nodes of a partition only to what these nodes have. Nodes
/// that several claimants have count by weight.
pub fn limit_to_nodes(
    budgets: &mut [PartitionBudget],
    allocations: &[PoolAllocation],
    usage: &PoolUsage,
    partitions: &[NodePartition],
) {
    if usage.nodes.is_empty() {
        return;
    }
    let divided: Vec<&PoolAllocation> = allocations
        .iter()
        .filter(|allocation| matches!(allocation.nodes, PoolNodes::Divided(_)))
        .collect();
    for (index, (budget, partition)) in budgets.iter_mut().zip(partitions).enumerate() {
        let mut weights: HashMap<&str, i128> = HashMap::new();
        for allocation in &divided {
            for node in open_nodes(allocation, index) {
                *weights.entry(node).or_default() += i128::from(allocation.policy.weight);
            }
        }
        let all = partition
            .nodes
            .iter()
            .filter(|(_, node)| node.eligible)
            .count();
        for allocation in divided
            .iter()
            .filter(|allocation| allocation.includes(partition))
        {
            let nodes: Vec<&str> = open_nodes(allocation, index).collect();
            if nodes.len() == all {
                continue;
            }
            let weight = i128::from(allocation.policy.weight);
            let sum = nodes.into_iter().fold(ResourceList::new(), |sum, node| {
                sum + &fraction_of_list(&usage.node(node).free, weight, weights[node])
            });
            let named = budget
                .free
                .names()
                .map(|name| (name, sum.get(name)))
                .collect();
            budget.limits.insert(
                allocation.requester,
                max_for_policy(&named, allocation.policy),
            );
        }
    }
}

/// The nodes of a partition in which an allocation can get more than it uses.
fn open_nodes<'a>(
    allocation: &'a PoolAllocation,
    partition: usize,
) -> impl Iterator<Item = &'a str> {
    let pools = allocation.node_pools().iter();
    let open =
        pools.filter(move |pool| pool.partition == partition && pool.eligible && !pool.refused);
    open.map(|pool| pool.node.as_str())
}

/// `list * part / whole`.
fn fraction_of_list(list: &ResourceList, part: i128, whole: i128) -> ResourceList {
    list.iter()
        .map(|(name, amount)| {
            let nanos = amount.nanos().saturating_mul(part) / whole.max(1);
            (name, Quantity::from_nanos(nanos, amount.format()))
        })
        .collect()
}

/// Replaces each divided allocation by one for each of its nodes.
pub fn divide_by_node<'a>(
    allocations: Vec<PoolAllocation<'a>>,
    usage: &PoolUsage,
    shares: &Shares,
    entitlements: &Shares,
) -> Vec<PoolAllocation<'a>> {
    let mut divided: Vec<usize> = (0..allocations.len())
        .filter(|&index| !allocations[index].node_pools().is_empty())
        .collect();
    // Who has few nodes cannot turn to others.
    divided.sort_by_key(|&index| {
        (
            allocations[index].node_pools().len(),
            allocations[index].consumer,
        )
    });
    let mut taken = TakenResources::new(usage, &allocations);
    let mut parts: HashMap<usize, Vec<PoolAllocation<'a>>> = HashMap::new();
    for index in divided {
        let allocation = &allocations[index];
        let mut by_partition: BTreeMap<usize, Vec<&NodePool>> = BTreeMap::new();
        for pool in allocation.node_pools() {
            by_partition.entry(pool.partition).or_default().push(pool);
        }
        for (partition, pools) in by_partition {
            let share = share_of_requester(shares, partition, allocation.requester);
            let due = share_of_requester(entitlements, partition, allocation.requester);
            let rooms: Vec<ResourceList> = pools
                .iter()
                .map(|pool| taken.room_of_pool(allocation, pool))
                .collect();
            let amounts = divide_share(&share, allocation.consumer, &pools, &rooms);
            let covered = covered_use(
                &due,
                allocation.consumer,
                pools.iter().map(|pool| pool.in_use.clone()),
            );
            for ((pool, amount), due) in pools.into_iter().zip(amounts).zip(covered) {
                taken.add_promise(pool, &amount);
                let of_node = allocation.of_node(pool, &amount, &due, &usage.node(&pool.node).free);
                parts.entry(index).or_default().push(of_node);
            }
        }
    }
    let mut all = Vec::new();
    for (index, allocation) in allocations.into_iter().enumerate() {
        match allocation.nodes {
            PoolNodes::Divided(_) => all.extend(parts.remove(&index).unwrap_or_default()),
            PoolNodes::All | PoolNodes::Single(_) => all.push(allocation),
        }
    }
    all
}

fn share_of_requester(shares: &Shares, partition: usize, requester: usize) -> ResourceList {
    shares[partition]
        .get(&requester)
        .cloned()
        .unwrap_or_default()
}

/// Resources of each node that are used or promised.
struct TakenResources<'a> {
    usage: &'a PoolUsage<'a>,
    by_node: HashMap<String, ResourceList>,
}

impl<'a> TakenResources<'a> {
    fn new(usage: &'a PoolUsage<'a>, allocations: &[PoolAllocation]) -> Self {
        let mut by_node: HashMap<String, ResourceList> = usage
            .nodes
            .iter()
            .map(|(node, NodeUse { by_others, .. })| (node.clone(), by_others.clone()))
            .collect();
        for pool in allocations.iter().flat_map(PoolAllocation::node_pools) {
            *by_node.entry(pool.node.clone()).or_default() += &pool.in_use;
        }
        Self { usage, by_node }
    }

    /// The most that a pool can have: what it uses, and what is left of its node.
    fn room_of_pool(&self, allocation: &PoolAllocation, pool: &NodePool) -> ResourceList {
        let free = self
            .usage
            .node(&pool.node)
            .free
            .percentage(u32::from(allocation.policy.overcommit_percentage));
        free.saturating_sub(&self.by_node[&pool.node]) + &pool.in_use
    }

    /// Notes what is promised to a pool beyond its use.
    fn add_promise(&mut self, pool: &NodePool, amount: &ResourceList) {
        *self.by_node.entry(pool.node.clone()).or_default() += &amount.saturating_sub(&pool.in_use);
    }
}

/// Divides a share between pools: each gets what it uses and what is guaranteed, as far as the
/// share covers that, and then in proportion to its room.
fn divide_share(
    share: &ResourceList,
    consumer: &ClusterId,
    pools: &[&NodePool],
    rooms: &[ResourceList],
) -> Vec<ResourceList> {
    let used = covered_use(
        share,
        consumer,
        pools.iter().map(|pool| pool.in_use.clone()),
    );
    let mut amounts = vec![ResourceList::new(); pools.len()];
    for name in share.names() {
        let total = single_resource(share, name);
        let all = rooms.iter().fold(0, |sum: i128, room| {
            sum.saturating_add(room.get(name).nanos())
        });
        let mut claims: Vec<Claim> = Vec::new();
        for ((pool, room), used) in pools.iter().zip(rooms).zip(&used) {
            let used = single_resource(used, name);
            let reserved = single_resource(&pool.reserved, name).min(&single_resource(room, name));
            claims.push(Claim {
                consumer: consumer.clone(),
                weight: room_weight(room.get(name).nanos(), all),
                requested: if pool.refused {
                    used.clone()
                } else {
                    used.max(&reserved)
                },
                in_use: used,
            });
        }
        let least = ledger::split_by_claims(&total, &claims);
        for (((claim, least), pool), room) in claims.iter_mut().zip(least).zip(pools).zip(rooms) {
            claim.in_use = least;
            if !pool.refused {
                claim.requested = single_resource(room, name);
            }
        }
        for (amount, part) in amounts
            .iter_mut()
            .zip(ledger::split_by_claims(&total, &claims))
        {
            amount.insert(name, part.get(name));
        }
    }
    amounts
}

/// The weight of a pool with this room.
fn room_weight(room: i128, all: i128) -> u16 {
    let weight = room.saturating_mul(WEIGHTS) / all.max(1);
    u16::try_from(weight.clamp(1, WEIGHTS)).unwrap_or(1)
}

/// Returns the part of each pool's use that `total` covers.
fn covered_use(
    total: &ResourceList,
    consumer: &ClusterId,
    in_use: impl Iterator<Item = ResourceList>,
) -> Vec<ResourceList> {
    let claims: Vec<Claim> = in_use
        .map(|used| Claim {
            consumer: consumer.clone(),
            weight: 1,
            in_use: ResourceList::new(),
            requested: total.names().map(|name| (name, used.get(name))).collect(),
        })
        .collect();
    ledger::split_by_claims(total, &claims)
}

fn single_resource(list: &ResourceList, name: &str) -> ResourceList {
    [(name, list.get(name))].into_iter().collect()
}
