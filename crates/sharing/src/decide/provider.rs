//! All that the provider side does at one time: from a picture of the cluster to offers, answers and links.

mod compose;
#[cfg(test)]
mod histories;
mod status;
mod tell;
#[cfg(test)]
mod tests;
mod units;
mod uses;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{PeeringPolicy, Provide, ResourceList};

pub use units::is_refused;

use self::{
    compose::{Composer, deletions, withdraw},
    tell::tell,
    units::{Unit, units},
    uses::Uses,
};
use super::{
    picture::{Asking, Picture, Plan},
    pools::{self, Ground},
    publish::{self, Standing},
    shares::{self, Lot, Party, Shares},
};

/// Decides everything anew.
pub fn decide(picture: &Picture, now: Instant) -> Plan {
    let asking = picture.asking();
    let local = local_policies(&asking);
    let policies: Vec<&Provide> = local.iter().map(|policy| &policy.spec.provide).collect();
    let nodes = picture.nodes.iter().map(|(key, node)| (key.name.as_str(), node.as_ref()));
    let grounds = pools::grounds(nodes, &policies);
    let mut units = units(picture, &asking, &local, &policies, &grounds);
    let mut uses = Uses::count(picture, &asking, &mut units, &grounds);
    let lots = uses.lots(&units, &grounds);
    let parties = parties(&asking, &local, &lots);
    let entitled = shares::plain(&lots, &parties, &policies);
    let whole = lots.iter().map(|lot| lot.whole(&parties, &policies)).collect();
    uses.place(&units, &grounds, &entitled, whole);
    let lots = uses.lots(&units, &grounds);
    // The grounds where the consumers of a policy use more than all of them may have.
    let over: Vec<BTreeSet<usize>> = lots.iter().map(|lot| overdrawn(lot, &parties, &policies)).collect();
    let mut wake = reclaim(picture, &mut units, &over, &entitled, &asking, &grounds);
    let lots = uses.lots(&units, &grounds);
    let shares = shares::share(&lots, &entitled, &parties, &policies);
    for unit in &mut units {
        if unit.local.is_none() {
            continue;
        }
        let of_pool = grounds.iter().zip(&shares).filter(|(ground, _)| unit.is_on(ground));
        let sum: ResourceList = of_pool.filter_map(|(_, shares)| shares.get(&unit.asking)).sum();
        // Pods whose last node is gone stand on no ground.
        unit.target = sum.max(&unit.floor);
    }

    let composer = Composer::new(picture, &asking, &units, &grounds);
    let mut plan = Plan { deletions: deletions(picture, &asking), ..Plan::default() };
    let mut standings: Vec<Standing> = units.iter().map(|unit| composer.standing(unit)).collect();
    tell(picture, &asking, &units, &standings, &mut plan);
    for members in components(&units, &grounds) {
        let total = total(&units, &members, &lots, &parties, &policies, &grounds);
        let of_these: Vec<Standing> = members.iter().map(|&unit| std::mem::take(&mut standings[unit])).collect();
        let publication = publish::decide(&total, &of_these, now);
        wake = sooner(wake, publication.wake);
        for write in publication.writes {
            let unit = &units[members[write.index]];
            plan.writes.push(composer.write(unit, write.hard, write.grows));
        }
    }
    // What is given up comes first, whatever it belongs to.
    plan.writes.sort_by_key(|write| write.grows);
    wake = sooner(wake, withdraw(picture, &asking, &units, &uses, &mut plan));
    plan.wake = wake;
    plan.policies = status::policies(picture, &asking, &units);
    plan
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// The policies of those that ask whose source is here.
fn local_policies<'a>(asking: &[Asking<'a>]) -> Vec<&'a Arc<PeeringPolicy>> {
    let held = asking.iter().filter_map(|asking| asking.policy);
    let local = held.filter(|policy| policy.spec.provide.source.plugin.is_none());
    let by_name: BTreeMap<_, _> = local.map(|policy| (policy.metadata.name.as_deref().unwrap_or_default(), policy)).collect();
    by_name.into_values().collect()
}

/// The consumers, and what bounds them: what they asked for, the caps of the policy, and its fixed amounts.
fn parties(asking: &[Asking], local: &[&Arc<PeeringPolicy>], lots: &[Lot]) -> Vec<Party> {
    let names: BTreeSet<&str> = lots.iter().flat_map(|lot| lot.free.names()).collect();
    let party = |asking: &Asking| {
        let policy = asking.policy.and_then(|held| local.iter().position(|one| one.metadata.name == held.metadata.name));
        let provide = policy.map(|index| &local[index].spec.provide);
        let fixed = provide.and_then(|provide| provide.source.fixed.as_ref());
        // Beside fixed amounts there is nothing.
        let mut limit: ResourceList = match fixed {
            Some(fixed) => names.iter().map(|&name| (name, fixed.resources.get(name))).collect(),
            None => ResourceList::new(),
        };
        let caps = provide.map(|provide| provide.caps.clone()).unwrap_or_default();
        for (name, cap) in caps.iter().chain(asking.asked().iter()) {
            let bound = if limit.contains(name) { limit.get(name).min(cap) } else { cap };
            limit.insert(name, bound);
        }
        Party { consumer: asking.tenant.consumer.clone(), policy: policy.unwrap_or_default(), limit }
    };
    asking.iter().map(party).collect()
}

/// Finds out which pools are used beyond what their policy or the nodes allow. Such a pool is given notice; when that is
/// over, its floor is taken away. Returns when the next notice is over.
fn reclaim(
    picture: &Picture,
    units: &mut [Unit],
    over: &[BTreeSet<usize>],
    entitled: &Shares,
    asking: &[Asking],
    grounds: &[Ground],
) -> Option<Duration> {
    let mut used: BTreeMap<usize, ResourceList> = BTreeMap::new();
    for unit in units.iter() {
        *used.entry(unit.asking).or_default() += &unit.in_use;
    }
    let mut wake = None;
    for unit in units.iter_mut() {
        let offer = asking[unit.asking].offers.get(unit.pool.as_str());
        let standing = offer.and_then(|offer| offer.spec.reclaim_timestamp.as_ref()).map(|time| time.0);
        let Some(policy) = unit.local else {
            let beyond = exceeds(&unit.in_use, &unit.target, None, 0);
            unit.take_back(beyond, &unit.target.clone(), standing, picture.today);
            continue;
        };
        let mine: Vec<usize> = (0..grounds.len()).filter(|&ground| unit.is_on(&grounds[ground])).collect();
        let due: ResourceList = mine.iter().filter_map(|&index| entitled[index].get(&unit.asking)).sum();
        // Caps hold for all pools of a consumer together.
        let capped = exceeds(&used[&unit.asking], &limit_of(unit.policy), Some(&unit.policy.caps), 0);
        let crowded = mine.is_empty() || mine.iter().any(|&index| over[index].contains(&policy));
        let beyond = (capped || crowded) && exceeds(&unit.in_use, &due, None, if capped { 0 } else { unit.policy.threshold() });
        unit.take_back(beyond, &due, standing, picture.today);
    }
    for unit in units {
        let Some(at) = unit.reclaim else { continue };
        let left = Duration::try_from(at.duration_since(picture.today)).unwrap_or_default();
        if left.is_zero() {
            unit.floor = ResourceList::new();
        } else {
            wake = sooner(wake, Some(left));
            // What a plugin gives is not cut below use without notice either.
            if unit.local.is_none() {
                unit.target = unit.target.max(&unit.in_use);
            }
        }
    }
    wake
}

/// When a notice that is given now is over.
fn notice(today: Timestamp, seconds: u32) -> Timestamp {
    today.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(today)
}

/// What the policy says that a consumer gets at most, whatever is free.
fn limit_of(policy: &Provide) -> ResourceList {
    let fixed = policy.source.fixed.as_ref().map(|fixed| fixed.resources.clone()).unwrap_or_default();
    let mut limit = policy.caps.clone();
    for (name, amount) in &fixed {
        let bound = if limit.contains(name) { limit.get(name).min(amount) } else { amount };
        limit.insert(name, bound);
    }
    limit
}

/// Whether more is used than this, by more than `tolerance` percent. With `named`, what neither names is not bounded.
fn exceeds(in_use: &ResourceList, most: &ResourceList, named: Option<&ResourceList>, tolerance: u8) -> bool {
    in_use.iter().any(|(name, used)| {
        let bounded = named.is_none_or(|named| named.contains(name) || most.contains(name));
        bounded && used > most.get(name) && most.get(name).differs_by_more_than(used, u32::from(tolerance))
    })
}

/// The policies whose consumers use more of a ground than they may have together, or than there is.
fn overdrawn(lot: &Lot, parties: &[Party], policies: &[&Provide]) -> BTreeSet<usize> {
    let mut used: BTreeMap<usize, ResourceList> = BTreeMap::new();
    for (&party, floor) in &lot.floors {
        *used.entry(parties[party].policy).or_default() += floor;
    }
    let all: ResourceList = used.values().sum();
    let crowded = exceeds(&all, &lot.bound(parties, policies), None, 0);
    used.into_iter()
        .filter(|(policy, used)| crowded || exceeds(used, &shares::bound_of(&lot.free, policies[*policy]), None, 0))
        .map(|(policy, _)| policy)
        .collect()
}

/// Units that share grounds, directly or through others: what they are promised is weighed together.
fn components(units: &[Unit], grounds: &[Ground]) -> Vec<Vec<usize>> {
    let mut component: Vec<usize> = (0..units.len()).collect();
    for ground in grounds {
        let members: BTreeSet<usize> =
            units.iter().zip(&component).filter(|(unit, _)| unit.is_on(ground)).map(|(_, &component)| component).collect();
        if let Some(&lowest) = members.first() {
            for one in component.iter_mut().filter(|one| members.contains(one)) {
                *one = lowest;
            }
        }
    }
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (unit, &component) in component.iter().enumerate() {
        found.entry(component).or_default().push(unit);
    }
    found.into_values().collect()
}

/// All that the units of a component may be promised together.
fn total(
    units: &[Unit],
    members: &[usize],
    lots: &[Lot],
    parties: &[Party],
    policies: &[&Provide],
    grounds: &[Ground],
) -> ResourceList {
    // What a plugin says is not weighed.
    let plugins = members.iter().filter(|&&unit| units[unit].local.is_none()).map(|&unit| &units[unit].target).sum();
    let of_these = |ground: &Ground| members.iter().any(|&unit| units[unit].is_on(ground));
    let bounds: Vec<ResourceList> =
        grounds.iter().zip(lots).filter(|(ground, _)| of_these(ground)).map(|(_, lot)| lot.bound(parties, policies)).collect();
    bounds.iter().fold(plugins, |sum: ResourceList, bound| sum + bound)
}
