//! Our announcement to each peer, and what follows from the peer's.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use liqo_api::{ClusterId, MAX_CUSTOMERS, NetworkAnnouncement, TunnelEndpointSpec};
use liqo_network_model::{
    allocator::{Allocations, KeptAddresses, could_keep},
    negotiation::{
        Agreement, AnnouncementRefusal, ClusterRanges, KeptByPeer, PrefixAnnouncement,
        allocate_views, compute_agreement,
    },
};

use super::{
    behind, direct, mtu,
    snapshot::{
        MAX_PASSED_ON, NetworkSnapshot, WantedPeer, is_of_another, kept_addresses,
        last_announcement,
    },
};

/// Maximum number of prefixes of others that we pass on to one peer, and accept from one.
const MAX_TRANSIT: usize = 128;

/// The decision about a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerOutcome {
    /// Our announcement to it.
    pub announcement: NetworkAnnouncement,
    /// `None` if there must be no `TunnelEndpoint`.
    pub endpoint: Option<TunnelEndpointSpec>,
    pub progress: PeerProgress,
}

/// The state of the negotiation with a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerProgress {
    /// The peer has not announced anything.
    Silent,
    /// The peer's announcement is refused for this reason.
    Refused(String),
    Partial {
        /// Prefixes of ours for which the peer has not announced a view yet.
        unseen: Vec<IpNet>,
        /// Prefixes of the peer for which we have no room.
        unallocated: Vec<IpNet>,
    },
    Agreed,
}

/// Decides about each peer.
pub fn decide_outcomes(snapshot: &NetworkSnapshot) -> BTreeMap<ClusterId, PeerOutcome> {
    let ranges = ranges_of_cluster(snapshot);
    let exports: BTreeMap<ClusterId, Vec<IpNet>> = snapshot
        .peers
        .iter()
        .map(|(id, peer)| (id.clone(), wanted_prefixes(snapshot, id, peer)))
        .collect();
    let previous: Allocations = snapshot
        .current
        .iter()
        .flat_map(|(id, endpoint)| {
            endpoint
                .imported
                .iter()
                .map(|(there, here)| ((id.clone(), *there), *here))
        })
        .collect();
    let allocate = |kept: KeptByPeer| allocate_views(&ranges, &exports, kept, &previous).0;
    let kept_by: KeptByPeer = snapshot
        .peers
        .iter()
        .map(|(id, peer)| (id.clone(), kept_addresses(snapshot, id, peer)))
        .collect();
    let unused = kept_by
        .iter()
        .map(|(id, kept)| {
            (
                id.clone(),
                KeptAddresses {
                    in_use: false,
                    ..kept.clone()
                },
            )
        })
        .collect();
    let later = allocate(unused);
    let plan = ranges.address_plan(kept_by.clone());
    let allocations = allocate(kept_by);
    let mut outcomes = BTreeMap::new();
    for (id, peer) in &snapshot.peers {
        let mut outcome = peer_outcome(snapshot, &ranges, &allocations, id, peer);
        if let (Some(endpoint), Some(theirs)) = (&mut outcome.endpoint, last_announcement(peer)) {
            endpoint.waiting = prefixes_to_move(&allocations, &later, id);
            let exports = theirs.exports.iter().copied();
            endpoint.could_keep = exports
                .filter(|prefix| could_keep(&plan, &allocations, id, prefix))
                .collect();
        }
        outcomes.insert(id.clone(), outcome);
    }
    outcomes
}

/// The prefixes of a peer that appear elsewhere later, and where.
fn prefixes_to_move(
    now: &Allocations,
    later: &Allocations,
    id: &ClusterId,
) -> BTreeMap<IpNet, IpNet> {
    let of_peer = later.iter().filter(|(key, _)| key.0 == *id);
    of_peer
        .filter(|(key, here)| now.get(key).is_some_and(|now| now != *here))
        .map(|((_, there), here)| (*there, *here))
        .collect()
}

fn ranges_of_cluster(snapshot: &NetworkSnapshot) -> ClusterRanges {
    ClusterRanges {
        pods: snapshot.ranges.pods.clone(),
        services: snapshot.ranges.services.clone(),
        external: snapshot.ranges.external.clone(),
        // Not the addresses of peers' gateways: a peer could displace the prefixes of others by
        // announcing them. And gateways never call an address within a peer's prefix.
        nodes: snapshot
            .nodes
            .iter()
            .flat_map(|node| node.addresses.iter().copied())
            .collect(),
        reserved: snapshot.settings.reserved_cidrs.clone(),
        pools: snapshot.settings.peer_cidrs.clone(),
    }
}

/// The prefixes of a peer that we want a view of, its own ones first. While its announcement is not
/// known (after a start, for example), the current ones.
fn wanted_prefixes(snapshot: &NetworkSnapshot, id: &ClusterId, peer: &WantedPeer) -> Vec<IpNet> {
    match (last_announcement(peer), snapshot.current.get(id)) {
        (Some(theirs), _) => accepted_exports(snapshot, theirs),
        (None, Some(current)) => {
            let (behind, own): (Vec<_>, Vec<_>) = current
                .imported
                .keys()
                .partition(|prefix| current.behind.contains_key(*prefix));
            own.into_iter().chain(behind).copied().collect()
        }
        (None, None) => Vec::new(),
    }
}

/// Its own prefixes, those of clusters that we only reach through it, and those behind it.
fn accepted_exports(snapshot: &NetworkSnapshot, theirs: &NetworkAnnouncement) -> Vec<IpNet> {
    let transit = theirs
        .transit
        .iter()
        .filter(|(_, owner)| **owner != snapshot.own && !snapshot.peers.contains_key(owner));
    let transit = transit.take(MAX_TRANSIT).map(|(prefix, _)| *prefix);
    let behind = behind::accept_behind(&snapshot.own, theirs)
        .into_iter()
        .map(|(prefix, _)| prefix);
    theirs
        .exports
        .iter()
        .copied()
        .chain(transit)
        .chain(behind)
        .collect()
}

fn peer_outcome(
    snapshot: &NetworkSnapshot,
    ranges: &ClusterRanges,
    allocations: &Allocations,
    id: &ClusterId,
    peer: &WantedPeer,
) -> PeerOutcome {
    let mut announcement = NetworkAnnouncement {
        exports: exported_ranges(ranges),
        transit: transit_views(snapshot, allocations, id, peer),
        behind: behind::announce_behind(snapshot, allocations, id),
        views: allocations
            .iter()
            .filter(|((owner, _), _)| owner == id)
            .map(|((_, there), here)| (*there, *here))
            .collect(),
        gateways: snapshot.gateways.clone(),
        mtu: snapshot.settings.mtu,
        path_mtus: BTreeMap::new(),
        accepts_direct: peer.policy.direct,
        direct: BTreeMap::new(),
    };
    announcement.path_mtus = mtu::beyond_us(snapshot, allocations, &announcement);
    announcement.direct = direct::announce_direct_paths(snapshot, id, &announcement.behind);
    let (progress, endpoint) = match &peer.announcement {
        // The agreement stays until the peer announces something else. Only what is open to the
        // peer is our own decision.
        None => (PeerProgress::Silent, current_endpoint(snapshot, id, peer)),
        Some(Ok(theirs)) if *theirs == NetworkAnnouncement::default() => {
            (PeerProgress::Silent, None)
        }
        Some(Err(why)) => (
            PeerProgress::Refused(why.clone()),
            current_endpoint(snapshot, id, peer),
        ),
        Some(Ok(theirs)) => match agreement_with_peer(snapshot, &announcement, theirs) {
            Err(refused) => {
                announcement.views.clear();
                (PeerProgress::Refused(refused.to_string()), None)
            }
            Ok(agreement) => (
                peer_progress(&announcement, &agreement),
                Some(wanted_endpoint(
                    snapshot,
                    id,
                    peer,
                    [&announcement, theirs],
                    &agreement,
                )),
            ),
        },
    };
    PeerOutcome {
        announcement,
        endpoint,
        progress,
    }
}

/// Ignores unseen prefixes behind us: they come and go with namespaces, and a peer without room for
/// them still has a network with us.
fn peer_progress(ours: &NetworkAnnouncement, agreement: &Agreement) -> PeerProgress {
    let unseen: Vec<IpNet> = agreement
        .unseen
        .iter()
        .filter(|prefix| !ours.behind.contains_key(*prefix))
        .copied()
        .collect();
    let unallocated = agreement.unallocated.clone();
    if unseen.is_empty() && unallocated.is_empty() {
        PeerProgress::Agreed
    } else {
        PeerProgress::Partial {
            unseen,
            unallocated,
        }
    }
}

fn current_endpoint(
    snapshot: &NetworkSnapshot,
    id: &ClusterId,
    peer: &WantedPeer,
) -> Option<TunnelEndpointSpec> {
    let mut current = snapshot.current.get(id)?.clone();
    if !peer.policy.direct {
        (current.accepts_direct, current.direct) = (false, BTreeMap::new());
    }
    Some(TunnelEndpointSpec {
        reach: peer.policy.reach,
        api_server: reaches_api_server(peer),
        customers: connected_customers(snapshot, id, peer),
        transit: peer.policy.transit,
        could_keep: BTreeSet::new(),
        waiting: BTreeMap::new(),
        ..current
    })
}

/// The customers that have a network with us, too.
fn connected_customers(
    snapshot: &NetworkSnapshot,
    id: &ClusterId,
    peer: &WantedPeer,
) -> BTreeSet<ClusterId> {
    let known = peer
        .customers
        .keys()
        .filter(|customer| *customer != id && snapshot.peers.contains_key(*customer));
    known.take(MAX_CUSTOMERS).cloned().collect()
}

/// Whether the peer runs pods of ours that may reach our API server.
fn reaches_api_server(peer: &WantedPeer) -> bool {
    peer.policy.api_server && peer.runs_api_clients
}

/// Our pods and external prefixes of the families in which peers have room: in another family we
/// could not answer peers.
fn exported_ranges(ranges: &ClusterRanges) -> BTreeSet<IpNet> {
    let exported = ranges.pods.iter().chain(&ranges.external);
    exported
        .filter(|prefix| {
            let mut pools = ranges.pools.iter();
            pools.any(|pool| pool.addr().is_ipv4() == prefix.addr().is_ipv4())
        })
        .map(IpNet::trunc)
        .collect()
}

/// Our views of other peers' prefixes, if both peers may reach each other through us. Prefixes that
/// those peers pass on from others are not passed on again: they would circulate among hubs
/// forever.
fn transit_views(
    snapshot: &NetworkSnapshot,
    allocations: &Allocations,
    id: &ClusterId,
    peer: &WantedPeer,
) -> BTreeMap<IpNet, ClusterId> {
    let passed = allocations.iter().filter_map(|((owner, there), here)| {
        let other = snapshot.peers.get(owner).filter(|_| owner != id)?;
        let is_its_own = last_announcement(other)?.exports.contains(there);
        let is_passed_on = other.policy.transit
            && is_its_own
            && !behind::are_customer_and_provider(snapshot, owner, id);
        is_passed_on.then(|| (*here, owner.clone()))
    });
    if !peer.policy.transit {
        return BTreeMap::new();
    }
    let mut of_each: BTreeMap<ClusterId, usize> = BTreeMap::new();
    let few = passed.filter(|(_, owner)| {
        let count = of_each.entry(owner.clone()).or_default();
        *count += 1;
        *count <= MAX_PASSED_ON
    });
    few.take(MAX_TRANSIT).collect()
}

fn agreement_with_peer(
    snapshot: &NetworkSnapshot,
    ours: &NetworkAnnouncement,
    theirs: &NetworkAnnouncement,
) -> Result<Agreement, AnnouncementRefusal> {
    let exports = ours
        .exports
        .iter()
        .chain(ours.transit.keys())
        .chain(ours.behind.keys())
        .copied()
        .collect();
    let ours = PrefixAnnouncement {
        exports,
        views: ours.views.clone(),
    };
    compute_agreement(
        &ours,
        &PrefixAnnouncement {
            exports: accepted_exports(snapshot, theirs).into_iter().collect(),
            views: theirs.views.clone(),
        },
    )
}

fn wanted_endpoint(
    snapshot: &NetworkSnapshot,
    id: &ClusterId,
    peer: &WantedPeer,
    [ours, theirs]: [&NetworkAnnouncement; 2],
    agreement: &Agreement,
) -> TunnelEndpointSpec {
    let maps = &agreement.maps;
    let imported: BTreeMap<IpNet, IpNet> = maps
        .imported
        .pairs()
        .map(|(here, there)| (there.0, here.0))
        .collect();
    let behind: behind::PrefixesBehind = behind::accept_behind(&snapshot.own, theirs)
        .into_iter()
        .filter(|(prefix, _)| imported.contains_key(prefix))
        .collect();
    let mtu = mtu::of_tunnel(ours.mtu, theirs);
    let path_mtus = mtu::beyond_peer(mtu, theirs)
        .into_iter()
        .filter(|(prefix, _)| imported.contains_key(prefix))
        .collect();
    TunnelEndpointSpec {
        cluster_id: id.clone(),
        cluster_name: peer.name.clone(),
        exported: maps
            .exported
            .pairs()
            .map(|(here, there)| (here.0, there.0))
            .collect(),
        imported,
        could_keep: BTreeSet::new(),
        waiting: BTreeMap::new(),
        direct: if peer.policy.direct {
            direct::accept_direct_paths(snapshot, theirs, &behind)
        } else {
            BTreeMap::new()
        },
        accepts_direct: peer.policy.direct && theirs.accepts_direct,
        behind,
        customers: connected_customers(snapshot, id, peer),
        transit: peer.policy.transit,
        gateways: theirs
            .gateways
            .iter()
            .filter(|gateway| !is_of_another(snapshot, id, gateway))
            .cloned()
            .collect(),
        mtu,
        path_mtus,
        reach: peer.policy.reach,
        api_server: reaches_api_server(peer),
    }
}

#[cfg(test)]
mod tests;
