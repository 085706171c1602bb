//! Computes the present prices of each pool. All consumers of a policy pay the same for a pool.

use std::{collections::BTreeMap, time::Duration};

use liqo_api::{Margin, PriceList, PricePolicy, Provide};

use super::{
    allocations::{PoolAllocation, PoolSource},
    earlier_of,
};
use crate::decide::{
    pools::{NodePartition, PolicyIndex},
    prices::{self, Utilization},
    snapshot::{PluginAnswer, ProviderSnapshot, Requester},
    upstream,
};

/// The utilization of one partition.
pub struct PartitionUse<'a> {
    pub partition: &'a NodePartition<'a>,
    pub utilization: Utilization,
}

/// Sets the prices of all allocations. Returns the time until a schedule may change them.
pub fn set_prices(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    allocations: &mut [PoolAllocation],
    partitions: &[NodePartition],
    in_use: &[PartitionUse],
) -> Option<Duration> {
    let mut next = None;
    let constant = PricePolicy::default();
    let mut set: Vec<Option<PriceList>> = Vec::new();
    // The prices of the pools of policies that lend nodes.
    let mut of_pools: BTreeMap<(PolicyIndex, &str), Option<PriceList>> = BTreeMap::new();
    for allocation in allocations.iter() {
        let policy = allocation.policy.prices.as_ref();
        next = earlier_of(
            next,
            policy.and_then(|policy| prices::next_change(policy, snapshot.wall_time)),
        );
        let PoolSource::Policy(lender) = allocation.source else {
            set.push(plugin_prices(snapshot, requesters, allocation));
            continue;
        };
        let margin = offers_margin(allocation.policy);
        if policy.is_none() && margin.is_none() {
            set.push(None);
            continue;
        }
        let pool = allocation.pool.as_str();
        let of_pool = of_pools.entry((lender, pool)).or_insert_with(|| {
            let members = allocations
                .iter()
                .filter(|one| one.source == PoolSource::Policy(lender) && one.pool == pool);
            let published: Vec<&PriceList> = members
                .filter_map(|one| published_prices(snapshot, requesters, one))
                .collect();
            let of_pool = partitions
                .iter()
                .filter(|partition| partition.pool_under(lender) == Some(pool));
            let nodes = of_pool.flat_map(|partition| partition.nodes.iter().map(|(_, node)| *node));
            let borrowed = margin.map(|margin| upstream::with_margin(margin, nodes));
            let base = prices::base_prices(policy, borrowed.as_ref(), pool)?;
            let policy = policy.unwrap_or(&constant);
            Some(prices::prices_at(
                policy,
                &base,
                snapshot.wall_time,
                &pool_utilization(in_use, lender, pool),
                &published,
            ))
        });
        set.push(of_pool.clone());
    }
    for (allocation, prices) in allocations.iter_mut().zip(set) {
        allocation.prices = prices;
    }
    next
}

/// The margin that a policy adds to the prices of what this cluster borrows.
pub fn offers_margin(provide: &Provide) -> Option<&Margin> {
    provide.source.offers.as_ref()?.margin.as_ref()
}

/// Sums the utilization of a pool in all its partitions.
fn pool_utilization(all: &[PartitionUse], policy: PolicyIndex, pool: &str) -> Utilization {
    let mut sum = Utilization::default();
    for one in all
        .iter()
        .filter(|one| one.partition.pool_under(policy) == Some(pool))
    {
        sum.used += &one.utilization.used;
        sum.total += &one.utilization.total;
    }
    sum
}

/// The prices of a pool of a plugin. It is one consumer's own, so only that consumer uses it.
fn plugin_prices(
    snapshot: &ProviderSnapshot,
    requesters: &[Requester],
    allocation: &PoolAllocation,
) -> Option<PriceList> {
    let published = published_prices(snapshot, requesters, allocation);
    let answer = snapshot
        .plugin_answers
        .get(&requesters[allocation.requester].tenant.consumer);
    // Until the plugin answers for the first time, the offer stays as it is.
    let Some(PluginAnswer {
        pools: Some(_),
        prices: of_plugin,
        ..
    }) = answer
    else {
        return published.cloned();
    };
    let policy = allocation.policy.prices.as_ref();
    let base = prices::base_prices(policy, of_plugin.get(&allocation.pool), &allocation.pool)?;
    let constant = PricePolicy::default();
    let utilization = Utilization {
        used: allocation.in_use.clone(),
        total: allocation.target.clone(),
    };
    let published: Vec<&PriceList> = published.into_iter().collect();
    Some(prices::prices_at(
        policy.unwrap_or(&constant),
        &base,
        snapshot.wall_time,
        &utilization,
        &published,
    ))
}

/// The prices that the consumer knows. The cache may not show the last write yet.
fn published_prices<'a>(
    snapshot: &'a ProviderSnapshot,
    requesters: &[Requester<'a>],
    allocation: &PoolAllocation,
) -> Option<&'a PriceList> {
    let requester = &requesters[allocation.requester];
    let (pool, offer) = allocation
        .offer_names()
        .find_map(|pool| Some((pool, requester.offers.get(pool)?)))?;
    match snapshot.recent_write(requester, pool) {
        Some(write) => write.prices.as_ref(),
        None => offer.spec.prices.as_ref(),
    }
}
