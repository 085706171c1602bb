//! The pools that must exist.

use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::{ClusterId, OfferPhase, PeeringPolicy, PriceList, Provide, Quantity, ResourceList, ResourceOffer};

use super::notice_end;
use crate::decide::{
    consumer::MAX_POOLS,
    pools::{self, NodePartition},
    snapshot::{Requester, Snapshot},
};

/// One pool of one consumer.
pub struct PoolAllocation<'a> {
    /// Index of the consumer in the list of requesters.
    pub requester: usize,
    pub consumer: &'a ClusterId,
    pub pool: String,
    pub policy: &'a Provide,
    /// Index of that policy; `None` if a plugin decides on the amounts.
    pub local_policy: Option<usize>,
    /// How many clusters the resources come through, if a plugin says that they are borrowed.
    pub borrowed_hops: Option<u8>,
    /// Whether the consumer refuses the offer.
    pub refused: bool,
    /// What the consumer's pods use.
    pub in_use: ResourceList,
    /// What the offer should contain.
    pub target: ResourceList,
    /// When pods beyond the offer begin to end.
    pub reclaim_at: Option<Timestamp>,
    /// The first overused resource: its name, what is used, and what is allowed.
    pub overuse: Option<(String, Quantity, Quantity)>,
    /// The least that the offer contains: what is used, unless that is being reclaimed.
    pub floor: ResourceList,
    /// What a contract guarantees.
    pub reserved: ResourceList,
    /// The notice of the contract, else of the policy.
    pub notice_seconds: u32,
    /// The prices that the policy means now.
    pub prices: Option<PriceList>,
}

impl PoolAllocation<'_> {
    /// Whether the nodes of this partition are in the pool. Nodes that come from the consumer, or through it, are not, unless it is
    /// tethered to this cluster.
    pub fn includes(&self, partition: &NodePartition) -> bool {
        self.local_policy.is_some_and(|policy| partition.pools[policy].as_ref() == Some(&self.pool))
            && partition.is_open_to(self.consumer)
    }

    /// Starts, continues or ends the notice: `existing` is the end of the one that the consumer knows. `due` is what it may use.
    pub fn set_reclaim(&mut self, overuses: bool, due: &ResourceList, existing: Option<Timestamp>, wall_time: Timestamp) {
        self.reclaim_at = overuses.then(|| existing.unwrap_or_else(|| notice_end(wall_time, self.notice_seconds)));
        let first = self.in_use.iter().find(|(name, used)| *used > due.get(name)).filter(|_| overuses);
        self.overuse = first.map(|(name, used)| (name.to_owned(), used, due.get(name)));
    }

    /// Whether the notice is over.
    pub fn is_reclaimed(&self) -> bool {
        self.floor.is_empty() && !self.in_use.is_empty()
    }
}

/// Whether the consumer refuses this offer. Its answer to a withdrawn offer says nothing about the next one.
pub fn is_refused(offer: &ResourceOffer) -> bool {
    let refused = offer.status.as_ref().is_some_and(|status| status.phase == OfferPhase::Refused);
    refused && offer.spec.withdrawal_timestamp.is_none()
}

pub fn allocations<'a>(
    snapshot: &Snapshot,
    requesters: &[Requester<'a>],
    local: &[&Arc<PeeringPolicy>],
    policies: &[&'a Provide],
    partitions: &[NodePartition],
) -> Vec<PoolAllocation<'a>> {
    let mut allocations = Vec::new();
    for (index, requester) in requesters.iter().enumerate() {
        let may_have = |requester: &Requester| {
            requester.is_included(snapshot.lending) && !requester.is_absent() && requester.standing.may_have_offers()
        };
        let Some(policy) = requester.policy.filter(|_| may_have(requester)) else { continue };
        let allocation = |pool: &str, local_policy, target| PoolAllocation {
            requester: index,
            consumer: &requester.tenant.consumer,
            pool: pool.to_owned(),
            policy: &policy.spec.provide,
            local_policy,
            borrowed_hops: None,
            refused: requester.offers.get(pool).is_some_and(|offer| is_refused(offer)),
            in_use: ResourceList::new(),
            target,
            reclaim_at: None,
            overuse: None,
            floor: ResourceList::new(),
            reserved: requester.standing.reserved(pool).cloned().unwrap_or_default(),
            notice_seconds: requester.standing.bound.map_or(policy.spec.provide.notice_seconds, |terms| terms.notice_seconds),
            prices: None,
        };
        if let Some(at) = local.iter().position(|one| one.metadata.name == policy.metadata.name) {
            let mut names: Vec<String> =
                pools::names(at, policies[at], &requester.tenant.consumer, partitions).into_iter().collect();
            // Consumers refuse more than the maximum. Existing offers come first, so a new pool never replaces one.
            names.sort_by_key(|pool| !requester.offers.contains_key(pool.as_str()));
            names.truncate(MAX_POOLS);
            allocations.extend(names.iter().map(|pool| allocation(pool, Some(at), ResourceList::new())));
            continue;
        }
        let answer = snapshot.plugin_answers.get(&requester.tenant.consumer);
        match answer.and_then(|answer| Some((answer.pools.as_ref()?, &answer.hops))) {
            Some((pools, hops)) => {
                // Caps and requests limit all pools together.
                let (mut caps, mut requested) = (policy.spec.provide.caps.clone(), requester.requested());
                for (pool, amounts) in pools {
                    let within = amounts.capped_by(&caps).capped_by(&requested);
                    let within: ResourceList = within.iter().filter(|(_, amount)| !amount.is_negative()).collect();
                    (caps, requested) = (caps.saturating_sub(&within), requested.saturating_sub(&within));
                    let borrowed_hops = hops.get(pool).copied();
                    allocations.push(PoolAllocation { borrowed_hops, ..allocation(pool, None, within) });
                }
            }
            // Existing offers stay until the plugin answers for the first time.
            None => {
                allocations.extend(requester.offers.iter().filter(|(_, offer)| offer.spec.withdrawal_timestamp.is_none()).map(
                    |(pool, offer)| PoolAllocation {
                        borrowed_hops: Some(offer.spec.hops).filter(|_| offer.spec.is_borrowed()),
                        ..allocation(pool, None, offer.spec.resource_quota.hard.clone())
                    },
                ));
            }
        }
    }
    allocations
}
