//! What plugins promise beyond what the nodes have.
//!
//! ```text
//!   what nodes have     free of pods that no offer covers, less what policies without a plugin offer of it
//!   promised            by the plugins of all policies, to all consumers
//! ```
//!
//! Own nodes count for own pools, and virtual nodes for borrowed pools that come through as many clusters.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{PluginOvercommit, ResourceList};

use super::{allocations::PoolAllocation, usage::PoolUsage};
use crate::decide::{
    ledger::{self, Claim},
    pools::NodePartition,
    upstream,
};

/// What is said about the offers of a consumer.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// More is promised than exists.
    Overcommitted(String),
    /// It is offered less than the plugin says.
    Cut(String),
}

/// Compares what plugins promise with the nodes, and cuts it where the policy says so. The notes are by requester.
pub fn limit(allocations: &mut [PoolAllocation], usage: &PoolUsage, partitions: &[NodePartition]) -> BTreeMap<usize, Note> {
    let of_plugin = |allocation: &&PoolAllocation| allocation.local_policy.is_none();
    let groups: BTreeSet<Option<u8>> = allocations.iter().filter(of_plugin).map(|one| one.borrowed_hops).collect();
    let mut notes = BTreeMap::new();
    for group in groups {
        let members: Vec<usize> = (0..allocations.len())
            .filter(|&at| allocations[at].local_policy.is_none() && allocations[at].borrowed_hops == group)
            .collect();
        limit_group(allocations, &members, &existing(allocations, &members, group, usage, partitions), &mut notes);
    }
    notes
}

/// What the nodes have for these pools of plugins, which are all own or all borrowed.
fn existing(
    allocations: &[PoolAllocation],
    members: &[usize],
    borrowed_hops: Option<u8>,
    usage: &PoolUsage,
    partitions: &[NodePartition],
) -> ResourceList {
    let here = |partition: &NodePartition| match borrowed_hops {
        Some(hops) => partition.nodes.iter().any(|(_, node)| upstream::hops(node) == Some(hops)),
        None => partition.behind.is_empty(),
    };
    let free: ResourceList = partitions.iter().zip(&usage.free).filter(|(one, _)| here(one)).map(|(_, free)| free).sum();
    // Pods of these pools are not in what is free.
    let used: ResourceList = members.iter().map(|&at| &allocations[at].in_use).sum();
    let is_offered = |one: &&PoolAllocation| partitions.iter().any(|partition| here(partition) && one.includes(partition));
    let others: ResourceList = allocations.iter().filter(is_offered).map(|one| &one.target).sum();
    (free + &used).saturating_sub(&others)
}

fn limit_group(
    allocations: &mut [PoolAllocation],
    members: &[usize],
    existing: &ResourceList,
    notes: &mut BTreeMap<usize, Note>,
) {
    let mode = |one: &PoolAllocation| one.policy.source.plugin.as_ref().map(|plugin| plugin.overcommit).unwrap_or_default();
    let (cut, kept): (Vec<usize>, Vec<usize>) = members.iter().partition(|&&at| mode(&allocations[at]) == PluginOvercommit::Cut);
    let promised: ResourceList = kept.iter().map(|&at| &allocations[at].target).sum();
    let parts = split(&existing.saturating_sub(&promised), cut.iter().map(|&at| &allocations[at]));
    for (&at, part) in cut.iter().zip(parts) {
        let less = beyond(&allocations[at].target, &part, "said");
        if let Some(less) = less {
            let text = format!("the nodes have less than the plugin says: {less}");
            notes.entry(allocations[at].requester).or_insert(Note::Cut(text));
            allocations[at].target = part;
        }
    }
    let promised: ResourceList = members.iter().map(|&at| &allocations[at].target).sum();
    let Some(beyond) = beyond(&promised, existing, "promised") else { return };
    let text = format!("plugins promise more to all consumers than the nodes have: {beyond}");
    for &at in members.iter().filter(|&&at| mode(&allocations[at]) == PluginOvercommit::Warn) {
        notes.insert(allocations[at].requester, Note::Overcommitted(text.clone()));
    }
}

/// Divides an amount between pools of plugins, by the weight of their policies. None gets more than the plugin says.
fn split<'a>(amount: &ResourceList, pools: impl Iterator<Item = &'a PoolAllocation<'a>>) -> Vec<ResourceList> {
    let pools: Vec<&PoolAllocation> = pools.collect();
    let named: BTreeSet<&str> = pools.iter().flat_map(|pool| pool.target.names()).collect();
    let total: ResourceList = named.iter().map(|&name| (name, amount.get(name))).collect();
    let claim = |pool: &&PoolAllocation| Claim {
        consumer: pool.consumer.clone(),
        weight: pool.policy.weight,
        in_use: pool.floor.clone(),
        requested: named.iter().map(|&name| (name, pool.target.get(name))).collect(),
    };
    let mut parts = ledger::split(&total, &pools.iter().map(claim).collect::<Vec<_>>());
    for (part, pool) in parts.iter_mut().zip(pools) {
        part.retain(|name, _| pool.target.contains(name));
    }
    parts
}

/// The resources of which the first list has more than the second one, as text.
fn beyond(most: &ResourceList, least: &ResourceList, word: &str) -> Option<String> {
    let all = most.iter().filter(|(name, amount)| *amount > least.get(name));
    let all: Vec<String> = all.map(|(name, amount)| format!("{name} {} of {amount} {word}", least.get(name))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}
