//! The pools that are to exist.

use jiff::Timestamp;
use liqo_api::{OfferPhase, PeeringPolicy, Provide, Quantity, ResourceList, ResourceOffer};
use std::sync::Arc;

use super::notice;
use crate::decide::{
    consumer::MOST_POOLS,
    picture::{Asking, Picture},
    pools::{self, Ground},
};

/// A pool of a consumer that is to exist.
pub struct Unit<'a> {
    /// Index of the consumer among those that ask.
    pub asking: usize,
    pub pool: String,
    pub policy: &'a Provide,
    /// Index of that policy, where the pool is made of local nodes.
    pub local: Option<usize>,
    /// Whether the consumer does not want it.
    pub refused: bool,
    /// What its pods use.
    pub in_use: ResourceList,
    /// What it should hold.
    pub target: ResourceList,
    /// From when on pods beyond the offer are ended.
    pub reclaim: Option<Timestamp>,
    /// What that is about: a resource, how much of it is used, and how much may be.
    pub beyond: Option<(String, Quantity, Quantity)>,
    /// The least that it holds: what is used, unless that is being reclaimed.
    pub floor: ResourceList,
}

impl Unit<'_> {
    /// Whether the pool has the nodes of this ground.
    pub fn is_on(&self, ground: &Ground) -> bool {
        self.local.is_some_and(|policy| ground.pools[policy].as_ref() == Some(&self.pool))
    }

    /// Notes that what is used beyond what is due is taken back, after the notice that stands or one that is given now; or that
    /// it is not.
    pub fn take_back(&mut self, beyond: bool, due: &ResourceList, standing: Option<Timestamp>, today: Timestamp) {
        self.reclaim = beyond.then(|| standing.unwrap_or_else(|| notice(today, self.policy.notice_seconds)));
        let first = self.in_use.iter().find(|(name, used)| *used > due.get(name)).filter(|_| beyond);
        self.beyond = first.map(|(name, used)| (name.to_owned(), used, due.get(name)));
    }

    /// Whether what is used beyond the offer is being taken back.
    pub fn is_reclaimed(&self) -> bool {
        self.floor.is_empty() && !self.in_use.is_empty()
    }
}

/// Whether the consumer does not want this offer. What it says of one that is taken back says nothing of the one after it.
pub fn is_refused(offer: &ResourceOffer) -> bool {
    let refused = offer.status.as_ref().is_some_and(|status| status.phase == OfferPhase::Refused);
    refused && offer.spec.withdrawal_timestamp.is_none()
}

/// The pools that are to exist.
pub fn units<'a>(
    picture: &Picture,
    asking: &[Asking<'a>],
    local: &[&Arc<PeeringPolicy>],
    policies: &[&'a Provide],
    grounds: &[Ground],
) -> Vec<Unit<'a>> {
    let mut units = Vec::new();
    for (index, one) in asking.iter().enumerate() {
        let Some(policy) = one.policy else { continue };
        let unit = |pool: &str, local, target| Unit {
            asking: index,
            pool: pool.to_owned(),
            policy: &policy.spec.provide,
            local,
            refused: one.offers.get(pool).is_some_and(|offer| is_refused(offer)),
            in_use: ResourceList::new(),
            target,
            reclaim: None,
            beyond: None,
            floor: ResourceList::new(),
        };
        if let Some(at) = local.iter().position(|one| one.metadata.name == policy.metadata.name) {
            // A consumer refuses more, and what it refuses would be lost to the others.
            let mut names: Vec<String> = pools::names(at, policies[at], grounds).into_iter().collect();
            // A pool that is offered is not given up for a new one.
            names.sort_by_key(|pool| !one.offers.contains_key(pool.as_str()));
            names.truncate(MOST_POOLS);
            units.extend(names.iter().map(|pool| unit(pool, Some(at), ResourceList::new())));
            continue;
        }
        match picture.readings.get(&one.tenant.consumer).and_then(|reading| reading.pools.as_ref()) {
            Some(pools) => {
                // Caps and what is asked for hold for all pools together.
                let (mut caps, mut asked) = (policy.spec.provide.caps.clone(), one.asked());
                for (pool, amounts) in pools {
                    let within = amounts.capped_by(&caps).capped_by(&asked);
                    let within: ResourceList = within.iter().filter(|(_, amount)| !amount.is_negative()).collect();
                    (caps, asked) = (caps.saturating_sub(&within), asked.saturating_sub(&within));
                    units.push(unit(pool, None, within));
                }
            }
            // As long as the plugin has not said anything, what was offered last stays.
            None => units.extend(
                one.offers
                    .iter()
                    .filter(|(_, offer)| offer.spec.withdrawal_timestamp.is_none())
                    .map(|(pool, offer)| unit(pool, None, offer.spec.resource_quota.hard.clone())),
            ),
        }
    }
    units
}
