//! Allocates a prefix of our address space to each prefix of a peer.
//!
//! The importer allocates: each cluster decides where in its own address space the prefixes of its
//! peers appear, and tells the peers. Two clusters never have to agree on a prefix.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use liqo_api::ClusterId;

use crate::space::prefixes_overlap;

/// Allocated prefixes, by the peer that exports them and the peer's own prefix.
pub type Allocations = BTreeMap<(ClusterId, IpNet), IpNet>;

/// The address space that may be allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPlan {
    /// Prefixes of peers are allocated within these, in this order.
    pub pools: Vec<IpNet>,
    /// Prefixes in use here: pods, Services, nodes, the external prefix, and what the user
    /// reserves.
    pub taken: Vec<IpNet>,
    /// The peers that keep addresses of their own here.
    pub kept: BTreeMap<ClusterId, KeptAddresses>,
}

/// The addresses that a peer may keep here. The owner of this cluster names them: otherwise a peer
/// could choose which of our addresses lead to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptAddresses {
    /// The peer's own prefixes within these appear here as they are, where they are free.
    pub prefixes: Vec<IpNet>,
    /// Whether pods depend on how its prefixes appear now. Then none changes for the sake of
    /// `prefixes`.
    pub in_use: bool,
    /// Addresses of other peers' gateways: a prefix that contains one would cut that peer off. A
    /// prefix that appears as itself stays.
    pub avoids: Vec<IpAddr>,
}

impl AddressPlan {
    /// Whether the owner names a peer's prefix. Public addresses are never kept.
    fn owner_names(&self, (peer, prefix): &(ClusterId, IpNet)) -> bool {
        let kept = self.kept.get(peer);
        let is_named =
            kept.is_some_and(|kept| kept.prefixes.iter().any(|named| named.contains(prefix)));
        is_named && is_private(prefix)
    }

    /// Whether a peer's prefix appears here as it is if it is free.
    fn keeps_prefix(&self, key: &(ClusterId, IpNet)) -> bool {
        let is_avoided = self
            .kept
            .get(&key.0)
            .is_some_and(|kept| kept.avoids.iter().any(|address| key.1.contains(address)));
        self.owner_names(key) && !is_avoided
    }

    /// Whether a former allocation still has a place: in the pools, or where the prefix is itself.
    fn has_place_for(&self, key: &(ClusterId, IpNet), before: &IpNet) -> bool {
        let fits = before.prefix_len() == key.1.prefix_len()
            && before.addr().is_ipv4() == key.1.addr().is_ipv4();
        fits && (is_within(before, &self.pools) || *before == key.1)
    }

    /// Whether a prefix that appears as `before` has to appear elsewhere because of what the peer
    /// keeps.
    fn must_move(&self, key: &(ClusterId, IpNet), before: &IpNet) -> bool {
        let may_move = self.kept.get(&key.0).is_none_or(|kept| !kept.in_use);
        let appears_as_itself = *before == key.1;
        let is_misplaced = if appears_as_itself {
            !self.owner_names(key) && !is_within(before, &self.pools)
        } else {
            self.keeps_prefix(key)
        };
        may_move && is_misplaced
    }
}

/// Allocates a prefix to each wanted one. A wanted prefix keeps its previous allocation unless that
/// overlaps with a prefix that is taken; all others get themselves if the peer keeps its addresses,
/// else the first free prefix of the pools. Also returns the wanted prefixes that did not fit.
///
/// Where the plan lets no peer keep addresses, only the size of its prefix influences its
/// allocation: else a peer could choose which of our addresses lead to it.
///
/// The answer depends only on the arguments, so it is the same after a restart.
pub fn allocate_prefixes(
    plan: &AddressPlan,
    wanted: &[(ClusterId, IpNet)],
    previous: &Allocations,
) -> (Allocations, Vec<(ClusterId, IpNet)>) {
    let mut wanted: Vec<(ClusterId, IpNet)> = wanted
        .iter()
        .map(|(peer, prefix)| (peer.clone(), prefix.trunc()))
        .collect();
    wanted.sort();
    wanted.dedup();
    let mut occupied = plan.taken.clone();
    let mut allocations = Allocations::new();
    let before: Vec<(&(ClusterId, IpNet), IpNet)> = wanted
        .iter()
        .filter_map(|key| Some((key, *previous.get(key)?)))
        .filter(|(key, before)| plan.has_place_for(key, before))
        .collect();
    // Those that stay come first, so that none of them is in the way of another one later.
    let (moving, staying): (Vec<_>, Vec<_>) = before
        .into_iter()
        .partition(|(key, before)| plan.must_move(key, before));
    let to_itself = moving.into_iter().filter(|(key, _)| plan.keeps_prefix(key));
    let choices = staying.into_iter().map(|(key, before)| (key, vec![before]));
    for (key, choices) in choices.chain(to_itself.map(|(key, before)| (key, vec![key.1, before]))) {
        if let Some(found) = choices
            .into_iter()
            .find(|prefix| is_free(prefix, &occupied))
        {
            occupied.push(found);
            allocations.insert(key.clone(), found);
        }
    }
    let mut without = Vec::new();
    for key in wanted {
        if allocations.contains_key(&key) {
            continue;
        }
        let itself =
            Some(key.1).filter(|prefix| plan.keeps_prefix(&key) && is_free(prefix, &occupied));
        match itself
            .or_else(|| first_free(plan, key.1.prefix_len(), key.1.addr().is_ipv4(), &occupied))
        {
            Some(found) => {
                occupied.push(found);
                allocations.insert(key, found);
            }
            None => without.push(key),
        }
    }
    (allocations, without)
}

/// Whether a peer's prefix would keep its addresses if the owner of this cluster named it, and
/// appears elsewhere.
pub fn could_keep(
    plan: &AddressPlan,
    allocations: &Allocations,
    peer: &ClusterId,
    prefix: &IpNet,
) -> bool {
    let key = (peer.clone(), *prefix);
    let mut others = allocations.iter().filter(|(other, _)| **other != key);
    let is_elsewhere = allocations.get(&key).is_some_and(|here| here != prefix);
    is_elsewhere
        && is_private(prefix)
        && !plan.owner_names(&key)
        && is_free(prefix, &plan.taken)
        && others.all(|(_, here)| !prefixes_overlap(prefix, here))
}

fn first_free(plan: &AddressPlan, length: u8, is_v4: bool, occupied: &[IpNet]) -> Option<IpNet> {
    let mut pools = plan
        .pools
        .iter()
        .filter(|pool| pool.addr().is_ipv4() == is_v4 && pool.prefix_len() <= length);
    pools.find_map(|pool| first_free_in(pool, length, occupied))
}

fn is_free(prefix: &IpNet, occupied: &[IpNet]) -> bool {
    !occupied.iter().any(|other| prefixes_overlap(prefix, other))
}

/// Whether addresses are for use within a network: those of RFC 1918, of carriers (RFC 6598), and
/// the unique local ones of IPv6.
pub fn is_private(prefix: &IpNet) -> bool {
    match prefix {
        IpNet::V4(prefix) => {
            let shared = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10);
            let ends = [prefix.network(), prefix.broadcast()];
            prefix.prefix_len() >= 8 && ends.iter().all(Ipv4Addr::is_private)
                || shared.contains(prefix)
        }
        IpNet::V6(prefix) => prefix.prefix_len() >= 7 && prefix.network().is_unique_local(),
    }
}

fn is_within(prefix: &IpNet, pools: &[IpNet]) -> bool {
    pools.iter().any(|pool| pool.contains(prefix))
}

/// Jumps to the end of each occupied prefix, so large pools cost no more than small ones.
fn first_free_in(pool: &IpNet, length: u8, occupied: &[IpNet]) -> Option<IpNet> {
    let mut candidate = prefix_at(pool, first_address(pool), length)?;
    while pool.contains(&candidate) {
        let Some(blocking) = occupied
            .iter()
            .filter(|other| prefixes_overlap(&candidate, other))
            .max_by_key(|other| last_address(other))
        else {
            return Some(candidate);
        };
        let end = last_address(blocking).max(last_address(&candidate));
        candidate = prefix_at(pool, end.checked_add(1)?, length)?;
    }
    None
}

fn first_address(prefix: &IpNet) -> u128 {
    match prefix {
        IpNet::V4(prefix) => prefix.network().to_bits().into(),
        IpNet::V6(prefix) => prefix.network().to_bits(),
    }
}

fn last_address(prefix: &IpNet) -> u128 {
    match prefix {
        IpNet::V4(prefix) => prefix.broadcast().to_bits().into(),
        IpNet::V6(prefix) => prefix.broadcast().to_bits(),
    }
}

/// The prefix of this length at this address, which must be a multiple of its size. `None` after
/// the family's last address.
fn prefix_at(family: &IpNet, address: u128, length: u8) -> Option<IpNet> {
    match family {
        IpNet::V4(_) => Ipv4Net::new(u32::try_from(address).ok()?.into(), length)
            .ok()
            .map(IpNet::V4),
        IpNet::V6(_) => Ipv6Net::new(address.into(), length).ok().map(IpNet::V6),
    }
}

#[cfg(test)]
mod tests;
