//! Reserves what contracts guarantee.
//!
//! A guaranteed amount is a floor of its consumer, whether it is used or not. So it comes before
//! everybody else's share, and when nodes die, the reclaim of overused policies finds the others
//! first. What the nodes do not have cannot be reserved.

use std::collections::BTreeMap;

use liqo_api::{Provide, ResourceList};

use super::{allocations::PoolAllocation, node_shares, pool_usage::PoolUsage};
use crate::decide::{
    ledger::{self, Claim},
    pools::NodePartition,
    shares::{Claimant, PartitionBudget},
};

/// The budgets, with what contracts guarantee, and with the limits of those who get single nodes.
pub fn budgets_with_reservations(
    usage: &PoolUsage,
    allocations: &[PoolAllocation],
    partitions: &[NodePartition],
    claimants: &[Claimant],
    policies: &[&Provide],
) -> Vec<PartitionBudget> {
    let mut budgets = usage.partition_budgets(allocations, partitions);
    node_shares::limit_to_nodes(&mut budgets, allocations, usage, partitions);
    if allocations
        .iter()
        .all(|allocation| allocation.reserved.is_empty())
    {
        return budgets;
    }
    let capacities: Vec<ResourceList> = budgets
        .iter()
        .map(|budget| budget.capacity(claimants, policies))
        .collect();
    let mut wanted: Vec<Vec<(usize, ResourceList)>> = vec![Vec::new(); budgets.len()];
    for allocation in allocations
        .iter()
        .filter(|allocation| !allocation.reserved.is_empty())
    {
        for (partition, part) in by_partition(allocation, partitions, &capacities) {
            wanted[partition].push((allocation.requester, part));
        }
    }
    for ((budget, capacity), wanted) in budgets.iter_mut().zip(&capacities).zip(wanted) {
        let claims: Vec<Claim> = wanted
            .iter()
            .map(|(claimant, part)| Claim {
                consumer: claimants[*claimant].consumer.clone(),
                weight: policies[claimants[*claimant].policy.0].weight,
                in_use: ResourceList::new(),
                requested: capacity
                    .names()
                    .map(|name| (name, part.get(name)))
                    .collect(),
            })
            .collect();
        for ((claimant, _), part) in wanted
            .iter()
            .zip(ledger::split_by_claims(capacity, &claims))
        {
            let part: ResourceList = part
                .iter()
                .filter(|(_, amount)| !amount.is_zero())
                .collect();
            if let Some(floor) = budget.floors.get_mut(claimant) {
                *floor = floor.max(&part);
            }
            budget.guaranteed.insert(*claimant, part);
        }
    }
    budgets
}

/// The guaranteed amounts of a pool, by partition.
fn by_partition(
    allocation: &PoolAllocation,
    partitions: &[NodePartition],
    capacities: &[ResourceList],
) -> BTreeMap<usize, ResourceList> {
    let mut parts: BTreeMap<usize, ResourceList> = BTreeMap::new();
    for pool in allocation.node_pools() {
        *parts.entry(pool.partition).or_default() += &pool.reserved;
    }
    if !parts.is_empty() {
        return parts;
    }
    let of_pool: Vec<usize> = (0..partitions.len())
        .filter(|&partition| allocation.includes(&partitions[partition]))
        .collect();
    let room: Vec<ResourceList> = of_pool
        .iter()
        .map(|&partition| capacities[partition].clone())
        .collect();
    of_pool
        .into_iter()
        .zip(ledger::spread_by_capacity(&allocation.reserved, &room))
        .collect()
}
