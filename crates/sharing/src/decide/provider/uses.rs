//! What the consumers' pods use, and which nodes it is charged to.

use std::collections::{BTreeMap, HashMap, HashSet};

use liqo_api::ResourceList;

use super::units::Unit;
use crate::decide::{
    ledger,
    picture::{Asking, Picture},
    pools::Ground,
    reduce::{LocalNode, PodUse},
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
        let known: HashMap<(usize, String), usize> =
            units.iter().enumerate().map(|(index, unit)| ((unit.asking, unit.pool.clone()), index)).collect();
        let at: HashMap<&str, usize> =
            grounds.iter().enumerate().flat_map(|(index, ground)| ground.nodes.keys().map(move |&name| (name, index))).collect();
        let mut by_ground = vec![BTreeMap::<usize, ResourceList>::new(); units.len()];
        let mut elsewhere: HashSet<(usize, &str)> = HashSet::new();
        let mut waiting: BTreeMap<usize, ResourceList> = BTreeMap::new();
        let mut occupants: Vec<&PodUse> = Vec::new();
        for (key, pod) in &picture.pods {
            let owner = picture.owner(key, pod).and_then(|(consumer, pool)| Some((*consumers.get(consumer)?, pool)));
            let unit = owner.and_then(|(asking, pool)| known.get(&(asking, pool.to_owned())).copied());
            let Some(unit) = unit else {
                elsewhere.extend(owner);
                occupants.push(pod);
                continue;
            };
            let charged = pod.held.charged(units[unit].policy.usage.charge);
            units[unit].in_use += charged;
            if units[unit].local.is_none() {
                // A plugin says what it gives; where that is taken from, it is not there for others.
                occupants.push(pod);
                continue;
            }
            match pod.node.as_deref().and_then(|node| at.get(node).copied()) {
                // One that waits for a node will get one of its pool, and one whose node is gone ends.
                None if grounds.iter().any(|ground| units[unit].is_on(ground)) => {
                    *waiting.entry(unit).or_default() += charged;
                }
                Some(here) if units[unit].is_on(&grounds[here]) => {
                    *by_ground[unit].entry(here).or_default() += charged;
                }
                // It is outside of its pool: its node was taken out of it.
                _ => occupants.push(pod),
            }
        }
        for unit in units.iter_mut() {
            unit.floor = unit.in_use.clone();
        }
        let nodes: Vec<&BTreeMap<&str, &LocalNode>> = grounds.iter().map(|ground| &ground.nodes).collect();
        Self { by_ground, waiting, elsewhere, free: source::free(&nodes, &occupants) }
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
