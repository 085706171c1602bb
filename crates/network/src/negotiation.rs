//! What two clusters tell each other before packets flow, and what follows from it.
//!
//! Each says what it exports, and where in its own space it put what the other exports. Nothing is agreed upon: each side needs
//! what the other says about it, and can check it.
//!
//! ```text
//!   rome                                             milan
//!   exports 10.244/16                     ------->   puts it at 10.245/16, says so
//!   translates 10.244/16 to 10.245/16     <-------   views { 10.244/16: 10.245/16 }
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::ClusterId;

use crate::{
    allocator::{Allocations, Plan, allocate},
    map::{InvalidMap, PeerMaps, PrefixMap},
    space::{Here, There, overlap},
    spread::keeps_low_bits,
};

/// How many prefixes a peer may export to us. A hub exports two or more for each cluster behind it.
pub const MOST_EXPORTS: usize = 256;
/// What one peer's prefixes may take of the pools of a family, as a part of it: one of so many.
pub const LARGEST_PART: u128 = 4;
/// The largest prefixes that a peer may export, IPv4 and IPv6: a larger one would leave nothing for others.
pub const LARGEST_EXPORT: (u8, u8) = (10, 40);

/// What one cluster says to another. All prefixes are of the space of the one that says it, but for the keys of `views`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// What the other may reach.
    pub exports: BTreeSet<IpNet>,
    /// Where the other's exports are here.
    pub views: BTreeMap<IpNet, IpNet>,
}

/// What of an announcement cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// More exports than anybody needs.
    #[error("it exports {count} prefixes; at most {MOST_EXPORTS} are taken")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A prefix too large to be given a place.
    #[error("it exports {prefix}, which is larger than anybody has room for")]
    TooLarge {
        /// The prefix.
        prefix: IpNet,
    },
    /// A prefix too small to be shared among gateways.
    #[error("it exports {prefix}, which is smaller than sixteen addresses")]
    TooSmall {
        /// The prefix.
        prefix: IpNet,
    },
    /// A prefix with a part for hosts that is not zero.
    #[error("it exports {prefix}, which is no prefix: {} would be one", prefix.trunc())]
    HostBits {
        /// What it said.
        prefix: IpNet,
    },
    /// Exports that are not apart.
    #[error("it exports {one} and {other}, which overlap")]
    ExportsOverlap {
        /// One of them.
        one: IpNet,
        /// The other.
        other: IpNet,
    },
    /// Views of our prefixes that fit neither them nor each other.
    #[error("it says that it sees our prefixes where they cannot be: {0}")]
    Views(#[from] InvalidMap),
}

/// Ranges of this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Prefixes of our pods.
    pub pods: Vec<IpNet>,
    /// Prefixes of our Services.
    pub services: Vec<IpNet>,
    /// What stands for single addresses and for everything without an address of its own, at most one of each family.
    pub external: Vec<IpNet>,
    /// Addresses of our nodes.
    pub nodes: Vec<IpAddr>,
    /// What else is in use around here and must stay reachable.
    pub reserved: Vec<IpNet>,
    /// Where prefixes of peers are put.
    pub pools: Vec<IpNet>,
}

impl Ranges {
    /// Where a peer's prefixes may be put.
    pub fn plan(&self) -> Plan {
        let nodes = self.nodes.iter().copied().map(IpNet::from);
        let taken = [&self.pods, &self.services, &self.external, &self.reserved].into_iter().flatten().copied().chain(nodes);
        Plan { pools: self.pools.clone(), taken: taken.collect() }
    }
}

/// Whether what a peer exports can be taken at all.
pub fn check(exports: &BTreeSet<IpNet>) -> Result<(), Refused> {
    if exports.len() > MOST_EXPORTS {
        return Err(Refused::TooMany { count: exports.len() });
    }
    if let Some(prefix) = exports.iter().find(|prefix| **prefix != prefix.trunc()) {
        return Err(Refused::HostBits { prefix: *prefix });
    }
    let shortest = |prefix: &IpNet| if prefix.addr().is_ipv4() { LARGEST_EXPORT.0 } else { LARGEST_EXPORT.1 };
    if let Some(prefix) = exports.iter().find(|prefix| prefix.prefix_len() < shortest(prefix)) {
        return Err(Refused::TooLarge { prefix: *prefix });
    }
    if let Some(prefix) = exports.iter().find(|prefix| !keeps_low_bits(prefix)) {
        return Err(Refused::TooSmall { prefix: *prefix });
    }
    // In their order, what overlaps with a prefix follows it at once.
    let mut pairs = exports.iter().zip(exports.iter().skip(1));
    match pairs.find(|(one, other)| overlap(one, other)) {
        Some((one, other)) => Err(Refused::ExportsOverlap { one: *one, other: *other }),
        None => Ok(()),
    }
}

/// Places for what all peers export; those whose exports cannot be taken get none. What found no place is returned beside.
pub fn place(
    ranges: &Ranges,
    peers: &BTreeMap<ClusterId, BTreeSet<IpNet>>,
    previous: &Allocations,
) -> (Allocations, Vec<(ClusterId, IpNet)>) {
    let sound = peers.iter().filter(|(_, exports)| check(exports).is_ok());
    let (mut wanted, mut too_much) = (Vec::new(), Vec::new());
    for (peer, exports) in sound {
        // In their order, so that those that fit are always the same.
        let mut left = [true, false].map(|is_v4| size_of(ranges.pools.iter(), is_v4) / LARGEST_PART);
        for prefix in exports {
            let is_v4 = prefix.addr().is_ipv4();
            let left = &mut left[usize::from(!is_v4)];
            match left.checked_sub(size_of([prefix], is_v4)) {
                Some(rest) => {
                    *left = rest;
                    wanted.push((peer.clone(), *prefix));
                }
                None => too_much.push((peer.clone(), *prefix)),
            }
        }
    }
    let (allocations, mut without) = allocate(&ranges.plan(), &wanted, previous);
    without.extend(too_much);
    without.sort();
    (allocations, without)
}

/// How many addresses the prefixes of a family have together.
fn size_of<'a>(prefixes: impl IntoIterator<Item = &'a IpNet>, is_v4: bool) -> u128 {
    let of_family = prefixes.into_iter().filter(|prefix| prefix.addr().is_ipv4() == is_v4);
    of_family
        .map(|prefix| 1_u128.checked_shl(u32::from(prefix.max_prefix_len() - prefix.prefix_len())).unwrap_or(u128::MAX))
        .fold(0, u128::saturating_add)
}

/// How both see each other, from what both say: complete when each has a place for all that the other exports. Who exports nothing of
/// one family has no room for it either, and where both have the other one, nothing is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The maps.
    pub maps: PeerMaps,
    /// What the peer has not yet told us where it sees it.
    pub unseen: Vec<IpNet>,
    /// What we have no place for.
    pub unplaced: Vec<IpNet>,
}

impl Agreement {
    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.unseen.is_empty() && self.unplaced.is_empty()
    }
}

/// What follows from what we say and what the peer says. Views of prefixes that we do not export are not looked at: they are
/// what the peer knew of us before.
pub fn agree(ours: &Announcement, theirs: &Announcement) -> Result<Agreement, Refused> {
    check(&theirs.exports)?;
    let seen = |prefix: &IpNet| Some((Here(*prefix), There(*theirs.views.get(prefix)?)));
    let placed = |prefix: &IpNet| Some((Here(*ours.views.get(prefix)?), There(*prefix)));
    let has = |exports: &BTreeSet<IpNet>, is_v4| exports.iter().any(|prefix| prefix.addr().is_ipv4() == is_v4);
    let is_shared = |is_v4| has(&ours.exports, is_v4) && has(&theirs.exports, is_v4);
    let is_apart = !is_shared(true) && !is_shared(false);
    let matters = |prefix: &IpNet| is_apart || is_shared(prefix.addr().is_ipv4());
    let unseen = |prefix: &&IpNet| matters(prefix) && !theirs.views.contains_key(*prefix);
    let unplaced = |prefix: &&IpNet| matters(prefix) && !ours.views.contains_key(*prefix);
    Ok(Agreement {
        maps: PeerMaps {
            exported: PrefixMap::new(ours.exports.iter().filter_map(seen))?,
            imported: PrefixMap::new(theirs.exports.iter().filter_map(placed))?,
        },
        unseen: ours.exports.iter().filter(unseen).copied().collect(),
        unplaced: theirs.exports.iter().filter(unplaced).copied().collect(),
    })
}

#[cfg(test)]
mod tests;
