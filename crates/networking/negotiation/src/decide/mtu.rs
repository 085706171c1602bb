//! MTUs: each cluster announces its own one, and that of each way beyond it that carries less.
//!
//! So a low MTU counts only for the ways that lead to its cause, and rises again with it: prefixes
//! never circulate, so no announcement depends on itself.

use std::collections::BTreeMap;

use ipnet::IpNet;
use liqo_api::{ClusterId, NetworkAnnouncement};
use liqo_network_model::allocator::Allocations;

use super::snapshot::{NetworkSnapshot, last_announcement};

/// The minimum MTU of IPv6. No peer lowers an MTU further.
const MIN_MTU: u16 = 1280;

/// An announced MTU within bounds; 0 is unknown.
fn bounded_mtu(announced: u16, most: u16) -> u16 {
    if announced == 0 {
        most
    } else {
        announced.min(most).max(MIN_MTU)
    }
}

/// The MTU of the tunnel to a peer.
pub fn of_tunnel(ours: u16, theirs: &NetworkAnnouncement) -> u16 {
    bounded_mtu(theirs.mtu, ours)
}

/// The MTUs of the ways through the tunnel to prefixes of a peer, where they are lower than that of
/// the tunnel.
pub fn beyond_peer(tunnel: u16, theirs: &NetworkAnnouncement) -> BTreeMap<IpNet, u16> {
    let all = theirs
        .path_mtus
        .iter()
        .map(|(prefix, mtu)| (*prefix, bounded_mtu(*mtu, tunnel)));
    all.filter(|(_, mtu)| *mtu < tunnel).collect()
}

/// The MTUs of the ways beyond us to what we announce of others, where they are lower than ours.
/// The gateway at the beginning of the way must know them: it tells senders what passes. A gateway
/// in the middle cannot tell the sender of the first packet of a connection.
pub fn beyond_us(
    snapshot: &NetworkSnapshot,
    allocations: &Allocations,
    ours: &NetworkAnnouncement,
) -> BTreeMap<IpNet, u16> {
    let of_others = allocations
        .iter()
        .filter(|(_, here)| ours.transit.contains_key(*here) || ours.behind.contains_key(*here));
    let mtus = of_others
        .filter_map(|((owner, there), here)| Some((*here, of_way(snapshot, owner, there)?)));
    mtus.filter(|(_, mtu)| *mtu < ours.mtu).collect()
}

/// The MTU of the way to a prefix of a peer. While the announcement of the peer is not known, what
/// was agreed before counts.
fn of_way(snapshot: &NetworkSnapshot, owner: &ClusterId, there: &IpNet) -> Option<u16> {
    if let Some(theirs) = snapshot.peers.get(owner).and_then(last_announcement) {
        let tunnel = of_tunnel(snapshot.settings.mtu, theirs);
        return Some(
            beyond_peer(tunnel, theirs)
                .get(there)
                .copied()
                .unwrap_or(tunnel),
        );
    }
    let current = snapshot.current.get(owner)?;
    Some(current.path_mtus.get(there).copied().unwrap_or(current.mtu))
}
