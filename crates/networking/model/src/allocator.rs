//! Allocates a prefix of our address space to each prefix of a peer.
//!
//! The importer allocates: each cluster decides where in its own address space the prefixes of its peers appear, and tells the peers.
//! Two clusters never have to agree on anything.

use std::collections::BTreeMap;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use liqo_api::ClusterId;

use crate::space::overlap;

/// Allocated prefixes, by the peer that exports them and the peer's own prefix.
pub type Allocations = BTreeMap<(ClusterId, IpNet), IpNet>;

/// The address space that may be allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPlan {
    /// Where prefixes of peers are allocated, in this order.
    pub pools: Vec<IpNet>,
    /// Prefixes in use here: pods, Services, nodes, the external prefix, and what the user reserves.
    pub taken: Vec<IpNet>,
}

/// Allocates a prefix to each wanted one. A wanted prefix keeps its previous allocation unless that overlaps with a prefix that is taken;
/// all others get the first free prefix of the pools. Also returns the wanted prefixes that did not fit.
///
/// Only the size of a peer's prefix influences its allocation: else a peer could choose which of our addresses lead to it.
///
/// The answer depends only on the arguments, so it is the same after a restart.
pub fn allocate(
    plan: &AddressPlan,
    wanted: &[(ClusterId, IpNet)],
    previous: &Allocations,
) -> (Allocations, Vec<(ClusterId, IpNet)>) {
    let mut wanted: Vec<(ClusterId, IpNet)> = wanted.iter().map(|(peer, prefix)| (peer.clone(), prefix.trunc())).collect();
    wanted.sort();
    wanted.dedup();
    let mut occupied = plan.taken.clone();
    let mut allocations = Allocations::new();
    for key in &wanted {
        let Some(before) = previous.get(key) else { continue };
        let fits = before.prefix_len() == key.1.prefix_len() && before.addr().is_ipv4() == key.1.addr().is_ipv4();
        if fits && within(before, &plan.pools) && is_free(before, &occupied) {
            occupied.push(*before);
            allocations.insert(key.clone(), *before);
        }
    }
    let mut without = Vec::new();
    for key in wanted {
        if allocations.contains_key(&key) {
            continue;
        }
        match first_free(plan, key.1.prefix_len(), key.1.addr().is_ipv4(), &occupied) {
            Some(found) => {
                occupied.push(found);
                allocations.insert(key, found);
            }
            None => without.push(key),
        }
    }
    (allocations, without)
}

fn first_free(plan: &AddressPlan, length: u8, is_v4: bool, occupied: &[IpNet]) -> Option<IpNet> {
    let mut pools = plan.pools.iter().filter(|pool| pool.addr().is_ipv4() == is_v4 && pool.prefix_len() <= length);
    pools.find_map(|pool| first_free_in(pool, length, occupied))
}

fn is_free(prefix: &IpNet, occupied: &[IpNet]) -> bool {
    !occupied.iter().any(|other| overlap(prefix, other))
}

fn within(prefix: &IpNet, pools: &[IpNet]) -> bool {
    pools.iter().any(|pool| pool.contains(prefix))
}

/// Jumps to the end of each occupied prefix, so large pools cost no more than small ones.
fn first_free_in(pool: &IpNet, length: u8, occupied: &[IpNet]) -> Option<IpNet> {
    let mut candidate = prefix_at(pool, first(pool), length)?;
    while pool.contains(&candidate) {
        let Some(blocking) = occupied.iter().filter(|other| overlap(&candidate, other)).max_by_key(|other| last(other)) else {
            return Some(candidate);
        };
        let end = last(blocking).max(last(&candidate));
        candidate = prefix_at(pool, end.checked_add(1)?, length)?;
    }
    None
}

fn first(prefix: &IpNet) -> u128 {
    match prefix {
        IpNet::V4(prefix) => prefix.network().to_bits().into(),
        IpNet::V6(prefix) => prefix.network().to_bits(),
    }
}

fn last(prefix: &IpNet) -> u128 {
    match prefix {
        IpNet::V4(prefix) => prefix.broadcast().to_bits().into(),
        IpNet::V6(prefix) => prefix.broadcast().to_bits(),
    }
}

/// The prefix of this length at this address, which must be a multiple of its size. `None` after the family's last address.
fn prefix_at(family: &IpNet, address: u128, length: u8) -> Option<IpNet> {
    match family {
        IpNet::V4(_) => Ipv4Net::new(u32::try_from(address).ok()?.into(), length).ok().map(IpNet::V4),
        IpNet::V6(_) => Ipv6Net::new(address.into(), length).ok().map(IpNet::V6),
    }
}

#[cfg(test)]
mod tests;
