//! The announcements that two clusters exchange before packets flow, and the agreement that follows
//! from them.
//!
//! Each cluster announces the prefixes that it exports, and where in its own address space the
//! other's exports appear (its views). There are no rounds of negotiation: each side reads the
//! other's announcement and can check it.
//!
//! ```text
//!   rome                                             milan
//!   exports 10.244/16                     ------->   sees it at 10.245/16, says so
//!   translates 10.244/16 to 10.245/16     <-------   views { 10.244/16: 10.245/16 }
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::ClusterId;

use crate::{
    allocator::{AddressPlan, Allocations, KeptAddresses, allocate_prefixes},
    map::{InvalidMap, PeerMaps, PrefixMap},
    space::{Here, There, prefixes_overlap},
    spread::keeps_low_bits,
};

/// Maximum number of prefixes that a peer may export to us. A hub exports two or more for each
/// cluster behind it.
pub const MAX_EXPORTS: usize = 256;
/// One peer's prefixes may take the pools of a family divided by this.
pub const MAX_SHARE_DIVISOR: u128 = 4;
/// Minimum length of a prefix that a peer may export, for IPv4 and IPv6: a larger range would leave
/// nothing for others.
pub const MIN_EXPORT_LEN: (u8, u8) = (10, 40);

/// One cluster's announcement to another. All prefixes are of the announcing cluster's address
/// space, except the keys of `views`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixAnnouncement {
    /// The prefixes that the other may reach.
    pub exports: BTreeSet<IpNet>,
    /// The other's exports, and the prefixes as which they appear here.
    pub views: BTreeMap<IpNet, IpNet>,
}

/// Reason to refuse an announcement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementRefusal {
    #[error("it exports {count} prefixes; at most {MAX_EXPORTS} are accepted")]
    TooMany { count: usize },
    #[error("it exports {prefix}, which is larger than any cluster accepts")]
    TooLarge { prefix: IpNet },
    /// The prefix cannot be shared among gateways.
    #[error("it exports {prefix}, which is smaller than sixteen addresses")]
    TooSmall { prefix: IpNet },
    #[error("the host bits of its export {prefix} are not zero; the prefix would be {}", prefix.trunc())]
    HostBits { prefix: IpNet },
    #[error("it exports {one} and {other}, which overlap")]
    ExportsOverlap { one: IpNet, other: IpNet },
    /// The views do not fit our prefixes, or overlap.
    #[error("it cannot see our prefixes as it announces: {0}")]
    Views(#[from] InvalidMap),
}

/// Ranges of this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRanges {
    pub pods: Vec<IpNet>,
    pub services: Vec<IpNet>,
    /// The prefixes of stand-ins ([`crate::ExternalAddresses`], [`crate::map::fallback_stand_in`]),
    /// at most one of each family.
    pub external: Vec<IpNet>,
    pub nodes: Vec<IpAddr>,
    /// Other prefixes that are in use near this cluster and must stay reachable.
    pub reserved: Vec<IpNet>,
    /// Prefixes of peers may appear within these.
    pub pools: Vec<IpNet>,
}

/// The peers that keep addresses of their own.
pub type KeptByPeer = BTreeMap<ClusterId, KeptAddresses>;

impl ClusterRanges {
    pub fn address_plan(&self, kept: KeptByPeer) -> AddressPlan {
        let nodes = self.nodes.iter().copied().map(IpNet::from);
        let taken = [&self.pods, &self.services, &self.external, &self.reserved]
            .into_iter()
            .flatten()
            .copied()
            .chain(nodes);
        AddressPlan {
            pools: self.pools.clone(),
            taken: taken.collect(),
            kept,
        }
    }
}

/// Whether a peer's exports can be accepted at all.
pub fn check_exports(exports: &BTreeSet<IpNet>) -> Result<(), AnnouncementRefusal> {
    if exports.len() > MAX_EXPORTS {
        return Err(AnnouncementRefusal::TooMany {
            count: exports.len(),
        });
    }
    if let Some(prefix) = exports.iter().find(|prefix| **prefix != prefix.trunc()) {
        return Err(AnnouncementRefusal::HostBits { prefix: *prefix });
    }
    if let Some(prefix) = exports
        .iter()
        .find(|prefix| prefix.prefix_len() < shortest_length(prefix))
    {
        return Err(AnnouncementRefusal::TooLarge { prefix: *prefix });
    }
    if let Some(prefix) = exports.iter().find(|prefix| !keeps_low_bits(prefix)) {
        return Err(AnnouncementRefusal::TooSmall { prefix: *prefix });
    }
    // The set is sorted, so a prefix that overlaps with another one follows it at once.
    let mut pairs = exports.iter().zip(exports.iter().skip(1));
    match pairs.find(|(one, other)| prefixes_overlap(one, other)) {
        Some((one, other)) => Err(AnnouncementRefusal::ExportsOverlap {
            one: *one,
            other: *other,
        }),
        None => Ok(()),
    }
}

/// The shortest length of an export of this prefix's family.
fn shortest_length(prefix: &IpNet) -> u8 {
    if prefix.addr().is_ipv4() {
        MIN_EXPORT_LEN.0
    } else {
        MIN_EXPORT_LEN.1
    }
}

/// Allocates views of all peers' exports, those of each peer in the order of their importance. A
/// peer with refused exports gets none. Also returns the exports that did not fit.
pub fn allocate_views(
    ranges: &ClusterRanges,
    peers: &BTreeMap<ClusterId, Vec<IpNet>>,
    kept: KeptByPeer,
    previous: &Allocations,
) -> (Allocations, Vec<(ClusterId, IpNet)>) {
    let sound = peers
        .iter()
        .filter(|(_, exports)| check_exports(&exports.iter().copied().collect()).is_ok());
    let (mut wanted, mut too_much) = (Vec::new(), Vec::new());
    for (peer, exports) in sound {
        // The order is fixed, so the same prefixes fit each time.
        let [mut left_v4, mut left_v6] =
            [true, false].map(|is_v4| size_of(ranges.pools.iter(), is_v4) / MAX_SHARE_DIVISOR);
        for prefix in exports {
            let is_v4 = prefix.addr().is_ipv4();
            let left = if is_v4 { &mut left_v4 } else { &mut left_v6 };
            match left.checked_sub(size_of([prefix], is_v4)) {
                Some(rest) => {
                    *left = rest;
                    wanted.push((peer.clone(), *prefix));
                }
                None => too_much.push((peer.clone(), *prefix)),
            }
        }
    }
    let (allocations, mut without) =
        allocate_prefixes(&ranges.address_plan(kept), &wanted, previous);
    without.extend(too_much);
    without.sort();
    (allocations, without)
}

/// The number of addresses in the prefixes of one family.
pub fn size_of<'a>(prefixes: impl IntoIterator<Item = &'a IpNet>, is_v4: bool) -> u128 {
    let of_family = prefixes
        .into_iter()
        .filter(|prefix| prefix.addr().is_ipv4() == is_v4);
    of_family
        .map(|prefix| {
            1_u128
                .checked_shl(u32::from(prefix.max_prefix_len() - prefix.prefix_len()))
                .unwrap_or(u128::MAX)
        })
        .fold(0, u128::saturating_add)
}

/// The views that two clusters have of each other. The agreement is complete when each has a view
/// of all that the other exports. A cluster that exports nothing of one family has no room for that
/// family either; if both have the other family, nothing is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    pub maps: PeerMaps,
    /// Prefixes of ours for which the peer has not announced a view yet.
    pub unseen: Vec<IpNet>,
    /// Prefixes of the peer for which we have no room.
    pub unallocated: Vec<IpNet>,
}

impl Agreement {
    pub fn is_complete(&self) -> bool {
        self.unseen.is_empty() && self.unallocated.is_empty()
    }
}

/// Computes the agreement from both announcements. Views of prefixes that we do not export are
/// ignored: the peer knew them from an earlier announcement of ours.
pub fn compute_agreement(
    ours: &PrefixAnnouncement,
    theirs: &PrefixAnnouncement,
) -> Result<Agreement, AnnouncementRefusal> {
    check_exports(&theirs.exports)?;
    let seen = ours
        .exports
        .iter()
        .filter_map(|prefix| Some((Here(*prefix), There(*theirs.views.get(prefix)?))));
    let allocated = theirs
        .exports
        .iter()
        .filter_map(|prefix| Some((Here(*ours.views.get(prefix)?), There(*prefix))));
    let is_shared = |is_v4| has_family(&ours.exports, is_v4) && has_family(&theirs.exports, is_v4);
    let are_apart = !is_shared(true) && !is_shared(false);
    let matters = |prefix: &IpNet| are_apart || is_shared(prefix.addr().is_ipv4());
    Ok(Agreement {
        maps: PeerMaps {
            exported: PrefixMap::new(seen)?,
            imported: PrefixMap::new(allocated)?,
        },
        unseen: ours
            .exports
            .iter()
            .filter(|prefix| matters(prefix) && !theirs.views.contains_key(*prefix))
            .copied()
            .collect(),
        unallocated: theirs
            .exports
            .iter()
            .filter(|prefix| matters(prefix) && !ours.views.contains_key(*prefix))
            .copied()
            .collect(),
    })
}

fn has_family(exports: &BTreeSet<IpNet>, is_v4: bool) -> bool {
    exports
        .iter()
        .any(|prefix| prefix.addr().is_ipv4() == is_v4)
}

#[cfg(test)]
mod tests;
