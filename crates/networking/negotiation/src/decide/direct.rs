//! Direct paths: a customer and the provider that runs its pods exchange packets without us.
//!
//! ```text
//!   rome (customer)                     milan (us)                     turin (provider)
//!   <-- direct: turin's gateways                    direct: rome's gateways, -->
//!                                            and our namespaces with rome's pods
//! ```
//!
//! We announce a path to both ends if our policies for both allow it and both accept direct paths.
//! On the way packets have our addresses: each end translates them by the prefixes that it agreed
//! with us, so neither learns anything new about addresses of pods. Each end sends packets to us
//! whenever the other one does not answer on the path.

use std::collections::BTreeMap;

use liqo_api::{
    ClusterId, DirectPath, GatewayAddress, MAX_DIRECT, MAX_DIRECT_ADDRESSES, MAX_DIRECT_NAMESPACES,
    NetworkAnnouncement,
};

use super::{
    behind::PrefixesBehind,
    snapshot::{NetworkSnapshot, WantedPeer, is_of_another, last_announcement},
};

/// The direct paths that we announce to a peer, to clusters of which we announce prefixes to it.
pub fn announce_direct_paths(
    snapshot: &NetworkSnapshot,
    to: &ClusterId,
    behind: &PrefixesBehind,
) -> BTreeMap<ClusterId, DirectPath> {
    let Some(peer) = snapshot
        .peers
        .get(to)
        .filter(|peer| accepts_direct_paths(snapshot, to, peer))
    else {
        return BTreeMap::new();
    };
    let others = snapshot.peers.iter().filter(|(id, _)| *id != to);
    others
        .filter(|(id, _)| is_next(behind, id))
        .filter_map(|(id, other)| {
            let path = path_between(snapshot, (to, peer), (id, other))?;
            Some((id.clone(), path))
        })
        .take(MAX_DIRECT)
        .collect()
}

/// The direct path of a peer to another one, if one of them runs pods of the other one.
fn path_between(
    snapshot: &NetworkSnapshot,
    (to, peer): (&ClusterId, &WantedPeer),
    (id, other): (&ClusterId, &WantedPeer),
) -> Option<DirectPath> {
    // With transit, both ends reach more of each other than these pods, which is not known there.
    let has_transit = peer.policy.transit && other.policy.transit;
    let is_wanted = accepts_direct_paths(snapshot, id, other) && !has_transit;
    // If each runs pods of the other one, the ends could not tell whose pods a packet is for.
    let (theirs, ours) = (peer.customers.get(id), other.customers.get(to));
    let is_possible =
        theirs.is_some() != ours.is_some() && theirs.or(ours)?.len() <= MAX_DIRECT_NAMESPACES;
    if !is_wanted || !is_possible {
        return None;
    }
    let gateways: Vec<GatewayAddress> = callable_gateways(snapshot, id, other).collect();
    (!gateways.is_empty()).then(|| DirectPath {
        gateways,
        namespaces: theirs.cloned(),
    })
}

/// Whether a prefix belongs to this cluster, with nobody else on the way behind the announcing one.
fn is_next(behind: &PrefixesBehind, id: &ClusterId) -> bool {
    behind
        .values()
        .any(|way| way.as_slice() == std::slice::from_ref(id))
}

/// Whether the peer accepts direct paths, and our policy allows them. While its announcement is not
/// known, the last one counts.
fn accepts_direct_paths(snapshot: &NetworkSnapshot, id: &ClusterId, peer: &WantedPeer) -> bool {
    peer.policy.direct
        && match last_announcement(peer) {
            Some(theirs) => theirs.accepts_direct,
            None => snapshot
                .current
                .get(id)
                .is_some_and(|current| current.accepts_direct),
        }
}

/// The gateways of a peer, as another peer may call them. While its announcement is not known, the
/// last one counts.
fn callable_gateways<'a>(
    snapshot: &'a NetworkSnapshot,
    id: &'a ClusterId,
    peer: &'a WantedPeer,
) -> impl Iterator<Item = GatewayAddress> + use<'a> {
    let known = match last_announcement(peer) {
        Some(theirs) => Some(&theirs.gateways),
        None => snapshot.current.get(id).map(|current| &current.gateways),
    };
    let own = known
        .into_iter()
        .flatten()
        .filter(|gateway| !is_of_another(snapshot, id, gateway));
    own.map(|gateway| GatewayAddress {
        endpoints: gateway
            .endpoints
            .iter()
            .take(MAX_DIRECT_ADDRESSES)
            .cloned()
            .collect(),
        tls: Vec::new(),
        ..gateway.clone()
    })
}

/// The announced direct paths that we accept. Not those to peers of ours: the tunnel to their
/// gateways carries packets with other addresses. `behind` are the accepted prefixes behind the
/// announcing peer.
pub fn accept_direct_paths(
    snapshot: &NetworkSnapshot,
    theirs: &NetworkAnnouncement,
    behind: &PrefixesBehind,
) -> BTreeMap<ClusterId, DirectPath> {
    let mut accepted = BTreeMap::new();
    for (id, path) in &theirs.direct {
        let is_peer = *id == snapshot.own || snapshot.peers.contains_key(id);
        let is_any_known = path.gateways.iter().any(|gateway| {
            let mut of_peers = snapshot.current.values().map(|peer| &peer.gateways);
            has_same_key(gateway, &theirs.gateways)
                || of_peers.any(|gateways| has_same_key(gateway, gateways))
        });
        if !is_peer && is_next(behind, id) && !path.gateways.is_empty() && !is_any_known {
            accepted.insert(id.clone(), path.clone());
        }
    }
    accepted
}

/// Whether one of the others has the gateway's key.
fn has_same_key(gateway: &GatewayAddress, others: &[GatewayAddress]) -> bool {
    others
        .iter()
        .any(|other| other.public_key == gateway.public_key)
}
