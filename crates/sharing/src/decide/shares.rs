//! What each consumer gets of each ground.
//!
//! What is free on a ground is split in two steps. Fixed amounts come first; what they leave is split between the policies,
//! each bounded by its percentage of what is free; and each policy's part between its consumers, by weight. Nobody gets less
//! than its floor, which is what it uses unless that is being reclaimed.
//!
//! Where a consumer's pods run must not decide how much it gets: what it uses on one ground beyond its plain share of that
//! ground, it is given less on the others.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{ClusterId, Provide, ResourceList};

use super::ledger::{self, Claim};

/// A consumer, wherever it gets something.
#[derive(Clone, Debug, PartialEq)]
pub struct Party {
    /// Who.
    pub consumer: ClusterId,
    /// Index of its policy.
    pub policy: usize,
    /// At most this much of each resource named, on all grounds together.
    pub limit: ResourceList,
}

/// What is to be split, and who has a part in it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lot {
    /// What the nodes have free of everything that is not charged to a party.
    pub free: ResourceList,
    /// The least that each party gets; none for a party that gets nothing here.
    pub floors: BTreeMap<usize, ResourceList>,
    /// Those that do not want more than that.
    pub refused: BTreeSet<usize>,
}

impl Lot {
    /// The same, with nothing that a party must get.
    #[must_use]
    pub fn without_floors(&self) -> Self {
        let floors = self.floors.keys().map(|&party| (party, ResourceList::new())).collect();
        Self { floors, ..self.clone() }
    }

    /// The limit of a party that refuses what it is offered here: just what it must get.
    fn closed(&self, floor: &ResourceList) -> ResourceList {
        self.free.names().map(|name| (name, floor.get(name))).collect()
    }

    /// The most that all parties together can be promised: what is free, and the overcommitment.
    pub fn bound(&self, parties: &[Party], policies: &[&Provide]) -> ResourceList {
        let whole = self.whole(parties, policies);
        let members: BTreeSet<usize> = self.floors.keys().map(|&party| parties[party].policy).collect();
        if members.iter().any(|&policy| policies[policy].source.fixed.is_some()) {
            return whole;
        }
        let caps: Vec<ResourceList> = members.iter().map(|&policy| bound_of(&self.free, policies[policy])).collect();
        whole.min(&caps.iter().sum())
    }

    /// What is free, and the overcommitment.
    pub fn whole(&self, parties: &[Party], policies: &[&Provide]) -> ResourceList {
        let overcommit = self.floors.keys().map(|&party| policies[parties[party].policy].overcommit_percentage).max();
        self.free.percentage(u32::from(overcommit.unwrap_or(100)))
    }
}

/// The most that the consumers of one policy get together of what is free.
pub fn bound_of(free: &ResourceList, provide: &Provide) -> ResourceList {
    let overcommit = u32::from(provide.overcommit_percentage);
    if provide.source.fixed.is_some() {
        return free.percentage(overcommit);
    }
    free.percentage(u32::from(provide.percentage)).percentage(overcommit)
}

/// What each party gets of each lot, by lot.
pub type Shares = Vec<BTreeMap<usize, ResourceList>>;

/// What each party would get of each lot if nobody used anything.
pub fn plain(lots: &[Lot], parties: &[Party], policies: &[&Provide]) -> Shares {
    let bare: Vec<Lot> = lots.iter().map(Lot::without_floors).collect();
    // Nobody has too much then, whatever it is measured by.
    let measure: Shares = bare.iter().map(|lot| lot.floors.clone()).collect();
    share(&bare, &measure, parties, policies)
}

/// What each party gets of each lot. `plain` is what it would get if nobody used anything.
pub fn share(lots: &[Lot], plain: &Shares, parties: &[Party], policies: &[&Provide]) -> Shares {
    // What a party must get later is not given to it twice.
    let mut left: Vec<ResourceList> = parties.iter().map(|party| party.limit.clone()).collect();
    // What each has on one lot beyond its plain share, and gives up on others.
    let mut excess = vec![ResourceList::new(); parties.len()];
    for (lot, plain) in lots.iter().zip(plain) {
        for (&party, floor) in &lot.floors {
            left[party] = left[party].saturating_sub(floor);
            if !lot.refused.contains(&party) {
                excess[party] += &floor.saturating_sub(&plain[&party]);
            }
        }
    }
    let mut all = Vec::new();
    for (lot, plain) in lots.iter().zip(plain) {
        let limit = |party: usize, floor: &ResourceList| {
            if lot.refused.contains(&party) {
                return lot.closed(floor);
            }
            without_excess(raised(&left[party], floor), &plain[&party], &excess[party])
        };
        let claim = |(&party, floor): (&usize, &ResourceList)| {
            let claim = Claim {
                consumer: parties[party].consumer.clone(),
                weight: policies[parties[party].policy].weight,
                in_use: floor.clone(),
                asked: limit(party, floor),
            };
            (party, claim)
        };
        let shares = share_one(lot, lot.floors.iter().map(claim), parties, policies);
        for (&party, share) in &shares {
            left[party] = left[party].saturating_sub(&share.saturating_sub(&lot.floors[&party]));
            excess[party] = excess[party].saturating_sub(&plain[&party].saturating_sub(share));
        }
        all.push(shares);
    }
    all
}

/// The limit, and of what the party has too much elsewhere no more than its plain share less that.
fn without_excess(mut limit: ResourceList, plain: &ResourceList, excess: &ResourceList) -> ResourceList {
    for (name, excess) in excess.iter().filter(|(_, excess)| !excess.is_zero()) {
        let most = plain.get(name).saturating_sub(excess);
        limit.insert(name, if limit.contains(name) { limit.get(name).min(most) } else { most });
    }
    limit
}

/// The limit and what is due anyway.
fn raised(limit: &ResourceList, due: &ResourceList) -> ResourceList {
    limit.iter().map(|(name, amount)| (name, amount + due.get(name))).collect()
}

/// The claims on one lot, of one policy or of fixed amounts, with the party of each.
#[derive(Default)]
struct Group {
    members: Vec<usize>,
    claims: Vec<Claim>,
}

impl Group {
    /// Splits this between the members.
    fn give(&self, total: &ResourceList, shares: &mut BTreeMap<usize, ResourceList>) {
        shares.extend(self.members.iter().copied().zip(ledger::split(total, &self.claims)));
    }
}

fn share_one(
    lot: &Lot,
    claims: impl Iterator<Item = (usize, Claim)>,
    parties: &[Party],
    policies: &[&Provide],
) -> BTreeMap<usize, ResourceList> {
    let (mut fixed, mut groups) = (Group::default(), BTreeMap::<usize, Group>::new());
    for (party, claim) in claims {
        let policy = parties[party].policy;
        let is_fixed = policies[policy].source.fixed.is_some();
        let group = if is_fixed { &mut fixed } else { groups.entry(policy).or_default() };
        group.members.push(party);
        group.claims.push(claim);
    }
    let whole = lot.whole(parties, policies);
    let due: ResourceList = groups.values().flat_map(|group| &group.claims).map(|claim| &claim.in_use).sum();
    let mut shares = BTreeMap::new();
    fixed.give(&whole.saturating_sub(&due), &mut shares);

    let given: ResourceList = shares.values().sum();
    let claims: Vec<Claim> = groups.iter().map(|(&policy, group)| together(lot, policies[policy], &group.claims)).collect();
    let parts = ledger::split(&whole.saturating_sub(&given), &claims);
    for (group, part) in groups.values().zip(parts) {
        group.give(&part, &mut shares);
    }
    shares
}

/// All consumers of one policy as one claim.
fn together(lot: &Lot, provide: &Provide, claims: &[Claim]) -> Claim {
    let mut asked = bound_of(&lot.free, provide);
    // What all of them are limited in, they cannot use together either.
    let wished = |name: &str| claims.iter().all(|claim| claim.asked.contains(name));
    let names: Vec<String> = asked.names().filter(|name| wished(name)).map(str::to_owned).collect();
    for name in names {
        let sum = claims.iter().map(|claim| claim.asked.get(&name).max(claim.in_use.get(&name))).sum();
        let bound = asked.get(&name).min(sum);
        asked.insert(name, bound);
    }
    Claim {
        // Of a group that nobody is in there is no claim.
        consumer: claims[0].consumer.clone(),
        weight: claims.iter().fold(0, |sum: u16, claim| sum.saturating_add(claim.weight)),
        in_use: claims.iter().map(|claim| &claim.in_use).sum(),
        asked,
    }
}
