//! What the consumers' pods use, and which nodes it is charged to.

use std::collections::{BTreeMap, HashMap, HashSet};

use liqo_api::ResourceList;
use liqo_kit::requests::Effective;

use super::units::Unit;
use crate::decide::{
    ledger,
    picture::{Asking, Picture},
    pools::Ground,
    reduce::{Claim, LocalNode},
    shares::{Lot, Shares},
    source,
};

/// What the pods use, and where.
pub struct Uses<'a> {
    /// For each unit, by ground.
    by_ground: Vec<BTreeMap<usize, ResourceList>>,
    /// For each unit, what its pods use that have no node, as far as it is not placed yet.
    waiting: BTreeMap<usize, ResourceList>,
    /// The pools that are not to exist and are used all the same, with the consumer of each.
    pub elsewhere: HashSet<(usize, &'a str)>,
    /// What is free of everything that is not charged to a unit, by ground.
    free: Vec<ResourceList>,
}

impl<'a> Uses<'a> {
    /// Charges each pod to the pool that it uses; the others occupy what could be offered.
    pub fn count(picture: &'a Picture, asking: &[Asking<'_>], units: &mut [Unit<'_>], grounds: &[Ground]) -> Self {
        let consumers: HashMap<&str, usize> =
            asking.iter().enumerate().map(|(index, asking)| (asking.tenant.consumer.as_str(), index)).collect();
        let pools: Vec<(usize, String)> = units.iter().map(|unit| (unit.asking, unit.pool.clone())).collect();
        let known: HashMap<(usize, &str), usize> =
            pools.iter().enumerate().map(|(index, (asking, pool))| ((*asking, pool.as_str()), index)).collect();
        let at: HashMap<&str, usize> = grounds
            .iter()
            .enumerate()
            .flat_map(|(index, ground)| ground.nodes.iter().map(move |(name, _)| (*name, index)))
            .collect();
        // A consumer has pods of one pool on many nodes.
        let mut charged_to: HashMap<&Claim, Option<usize>> = HashMap::new();
        let mut uses = Self {
            by_ground: vec![BTreeMap::new(); units.len()],
            waiting: BTreeMap::new(),
            elsewhere: HashSet::new(),
            free: Vec::new(),
        };
        // Whether it is charged to a pool. What is not occupies what could be offered.
        let mut charge = |claim: &'a Claim, held: &Effective, ground: Option<usize>| {
            let find = || {
                let (consumer, pool) = picture.owner(claim)?;
                let &consumer = consumers.get(consumer)?;
                let index = known.get(&(consumer, pool)).copied();
                if index.is_none() {
                    uses.elsewhere.insert((consumer, pool));
                }
                index
            };
            let Some(index) = *charged_to.entry(claim).or_insert_with(find) else { return false };
            let charged = held.charged(units[index].policy.usage.charge);
            units[index].in_use += charged;
            let unit = &units[index];
            match ground {
                // A plugin says what it gives; where that is taken from, it is not there for others.
                _ if unit.local.is_none() => return false,
                // One that waits for a node will get one of its pool, and one whose node is gone ends.
                None if grounds.iter().any(|ground| unit.is_on(ground)) => *uses.waiting.entry(index).or_default() += charged,
                Some(here) if unit.is_on(&grounds[here]) => *uses.by_ground[index].entry(here).or_default() += charged,
                // It is outside of its pool: its node was taken out of it.
                _ => return false,
            }
            true
        };
        let mut displaced: HashMap<&str, ResourceList> = HashMap::new();
        for (node, sums) in picture.pods.sums() {
            let ground = if sums.claimed.is_empty() { None } else { at.get(node).copied() };
            for (claim, held) in &sums.claimed {
                if !charge(claim, held, ground) {
                    *displaced.entry(node).or_default() += &held.requests;
                }
            }
        }
        let mut waiting = picture.pods.unbound();
        waiting.retain(|pod| pod.claim.as_ref().is_none_or(|claim| !charge(claim, &pod.held, None)));
        for unit in units.iter_mut() {
            unit.floor = unit.in_use.clone();
        }
        let nodes: Vec<&[(&str, &LocalNode)]> = grounds.iter().map(|ground| ground.nodes.as_slice()).collect();
        let taken = |node: &str| [picture.pods.own(node), displaced.get(node)];
        uses.free = source::free(&nodes, taken, &waiting);
        uses
    }

    /// Charges what waits for a node to the grounds of its pool: where the consumer has some of its plain share left, so that
    /// pods which are about to start move nobody's offer; and what is more than that, where anything is left.
    pub fn place(&mut self, units: &[Unit], grounds: &[Ground], entitled: &Shares, mut left: Vec<ResourceList>) {
        let nothing = ResourceList::new();
        for (&ground, used) in self.by_ground.iter().flatten() {
            left[ground] = left[ground].saturating_sub(used);
        }
        for (unit, amount) in std::mem::take(&mut self.waiting) {
            let used = &mut self.by_ground[unit];
            let of_pool: Vec<usize> = (0..grounds.len()).filter(|&ground| units[unit].is_on(&grounds[ground])).collect();
            let own = |&ground: &usize| {
                let own = entitled[ground][&units[unit].asking].saturating_sub(used.get(&ground).unwrap_or(&nothing));
                own.min(&left[ground])
            };
            let own: Vec<ResourceList> = of_pool.iter().map(own).collect();
            let beyond = amount.saturating_sub(&own.iter().sum());
            let within = ledger::spread(&amount.saturating_sub(&beyond), &own);
            let rest: Vec<ResourceList> =
                of_pool.iter().zip(&within).map(|(&ground, part)| left[ground].saturating_sub(part)).collect();
            for ((ground, part), more) in of_pool.into_iter().zip(within).zip(ledger::spread(&beyond, &rest)) {
                let part = part + &more;
                left[ground] = left[ground].saturating_sub(&part);
                *used.entry(ground).or_default() += &part;
            }
        }
    }

    /// What is to be split on each ground, and who has a part in it.
    pub fn lots(&self, units: &[Unit], grounds: &[Ground]) -> Vec<Lot> {
        let lot = |(index, ground): (usize, &Ground)| {
            let mut lot = Lot { free: self.free[index].clone(), ..Lot::default() };
            for (unit, used) in units.iter().zip(&self.by_ground).filter(|(unit, _)| unit.is_on(ground)) {
                let floor = used.get(&index).filter(|_| !unit.is_reclaimed());
                lot.floors.insert(unit.asking, floor.cloned().unwrap_or_default());
                lot.refused.extend(unit.refused.then_some(unit.asking));
            }
            lot
        };
        grounds.iter().enumerate().map(lot).collect()
    }
}
