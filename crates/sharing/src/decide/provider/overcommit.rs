//! Finds promises of plugins beyond what the nodes have.
//!
//! ```text
//!   what nodes have     less what pods request that no offer covers, and what policies without a plugin offer
//!   promised            by the plugins of all policies, to all consumers that do not refuse it
//! ```
//!
//! Own nodes count for own pools, and virtual nodes for borrowed pools that come through as many
//! clusters.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{PluginOvercommit, ResourceList};

use super::{allocations::PoolAllocation, pool_usage::PoolUsage};
use crate::decide::{
    ledger::{self, Claim},
    pools::NodePartition,
    upstream,
};

/// A message about the offers of a consumer.
#[derive(Clone, Debug, PartialEq)]
pub enum OvercommitNote {
    /// More is promised than exists.
    Overcommitted(String),
    /// It is offered less than the plugin says.
    Cut(String),
}

/// Compares what plugins promise with the nodes, and cuts it where the policy says so. The notes
/// are by requester.
pub fn limit_plugin_promises(
    allocations: &mut [PoolAllocation],
    usage: &PoolUsage,
    partitions: &[NodePartition],
) -> BTreeMap<usize, OvercommitNote> {
    let groups: BTreeSet<Option<u8>> = allocations
        .iter()
        .filter(|allocation| allocation.is_of_plugin())
        .map(|one| one.borrowed_hops)
        .collect();
    let mut notes = BTreeMap::new();
    for group in groups {
        let members: Vec<usize> = (0..allocations.len())
            .filter(|&at| allocations[at].is_of_plugin() && allocations[at].borrowed_hops == group)
            .collect();
        limit_group(
            allocations,
            &members,
            &existing_resources(allocations, group, usage, partitions),
            &mut notes,
        );
    }
    notes
}

/// Resources that the nodes have for pools of plugins: for own pools, or for pools borrowed through
/// `borrowed_hops` clusters.
fn existing_resources(
    allocations: &[PoolAllocation],
    borrowed_hops: Option<u8>,
    usage: &PoolUsage,
    partitions: &[NodePartition],
) -> ResourceList {
    let free: ResourceList = partitions
        .iter()
        .zip(&usage.free_for_plugins)
        .filter(|(one, _)| is_at_distance(one, borrowed_hops))
        .map(|(_, free)| free)
        .sum();
    let offered = allocations.iter().filter(|one| {
        partitions
            .iter()
            .any(|partition| is_at_distance(partition, borrowed_hops) && one.includes(partition))
    });
    let others: ResourceList = offered.map(|one| &one.target).sum();
    free.saturating_sub(&others)
}

/// Whether the nodes come through as many clusters, or are own ones.
fn is_at_distance(partition: &NodePartition, borrowed_hops: Option<u8>) -> bool {
    match borrowed_hops {
        Some(hops) => partition
            .nodes
            .iter()
            .any(|(_, node)| upstream::hops_to_owner(node) == Some(hops)),
        None => partition.behind.is_empty(),
    }
}

fn overcommit_mode(allocation: &PoolAllocation) -> PluginOvercommit {
    allocation
        .policy
        .source
        .plugin
        .as_ref()
        .map(|plugin| plugin.overcommit)
        .unwrap_or_default()
}

fn limit_group(
    allocations: &mut [PoolAllocation],
    members: &[usize],
    existing: &ResourceList,
    notes: &mut BTreeMap<usize, OvercommitNote>,
) {
    let (cut, kept): (Vec<usize>, Vec<usize>) = members
        .iter()
        .partition(|&&at| overcommit_mode(&allocations[at]) == PluginOvercommit::Cut);
    let promised: ResourceList = kept.iter().map(|&at| promised_by(&allocations[at])).sum();
    let parts = split_by_weight(
        &existing.saturating_sub(&promised),
        cut.iter().map(|&at| &allocations[at]),
    );
    for (&at, part) in cut.iter().zip(parts) {
        let less = exceeding_resources(&allocations[at].target, &part)
            .filter(|_| !allocations[at].refused);
        if let Some(less) = less {
            let text = format!("the nodes have less than the plugin says: {less}");
            notes
                .entry(allocations[at].requester)
                .or_insert(OvercommitNote::Cut(text));
            (allocations[at].target, allocations[at].is_cut) = (part, true);
        }
    }
    let promised: ResourceList = members
        .iter()
        .map(|&at| promised_by(&allocations[at]))
        .sum();
    let Some(beyond) = exceeding_resources(&promised, existing) else {
        return;
    };
    let text = format!("plugins promise more to all consumers than the nodes have: {beyond}");
    for &at in members
        .iter()
        .filter(|&&at| overcommit_mode(&allocations[at]) == PluginOvercommit::Warn)
    {
        notes.insert(
            allocations[at].requester,
            OvercommitNote::Overcommitted(text.clone()),
        );
    }
}

/// A consumer that refuses an offer keeps only what it uses.
fn promised_by<'a>(pool: &'a PoolAllocation) -> &'a ResourceList {
    if pool.refused {
        &pool.floor
    } else {
        &pool.target
    }
}

/// Divides an amount between pools of plugins, by the weight of their policies. None gets more than
/// the plugin says.
fn split_by_weight<'a>(
    amount: &ResourceList,
    pools: impl Iterator<Item = &'a PoolAllocation<'a>>,
) -> Vec<ResourceList> {
    let pools: Vec<&PoolAllocation> = pools.collect();
    let named: BTreeSet<&str> = pools.iter().flat_map(|pool| pool.target.names()).collect();
    let total: ResourceList = named.iter().map(|&name| (name, amount.get(name))).collect();
    let claims: Vec<Claim> = pools
        .iter()
        .map(|pool| Claim {
            consumer: pool.consumer.clone(),
            weight: pool.policy.weight,
            // What a contract guarantees is no less than what is used.
            in_use: pool.floor.max(&pool.reserved),
            requested: named
                .iter()
                .map(|&name| (name, promised_by(pool).get(name)))
                .collect(),
        })
        .collect();
    let mut parts = ledger::split_by_claims(&total, &claims);
    for (part, pool) in parts.iter_mut().zip(pools) {
        part.retain(|name, _| pool.target.contains(name));
    }
    parts
}

/// The resources of which the first list has more than the second one. Their amounts change with
/// each pod, which is not worth a write.
fn exceeding_resources(most: &ResourceList, least: &ResourceList) -> Option<String> {
    let all: Vec<&str> = most
        .iter()
        .filter(|(name, amount)| *amount > least.get(name))
        .map(|(name, _)| name)
        .collect();
    (!all.is_empty()).then(|| all.join(", "))
}
