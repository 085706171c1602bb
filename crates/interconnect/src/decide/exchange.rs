//! What to tell each peer, and what follows from what it told us.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use liqo_api::{
    ClusterId, GatewayAddress, NetworkAnnouncement, NetworkPolicy, NetworkRanges, NetworkSettings, TunnelEndpointSpec,
};
use liqo_network::{
    allocator::Allocations,
    negotiation::{Agreement, Announcement, Ranges, Refused, agree, place},
};

use super::ranges::NodeAddresses;

/// So many prefixes of one peer are passed on to others: its ranges of pods and its external ones.
const MOST_PASSED_ON: usize = 16;
/// So many prefixes of others are passed on to one peer, and taken from one.
const MOST_TRANSIT: usize = 128;

/// Everything that decisions follow from.
#[derive(Clone, Debug)]
pub struct Picture {
    /// This cluster.
    pub own: ClusterId,
    /// What was set.
    pub settings: NetworkSettings,
    /// Our ranges.
    pub ranges: NetworkRanges,
    /// Our nodes.
    pub nodes: Vec<NodeAddresses>,
    /// Our gateways, in the order of their Leases.
    pub gateways: Vec<GatewayAddress>,
    /// The peers that there is to be a network with.
    pub peers: BTreeMap<ClusterId, Peer>,
    /// What stands for each peer.
    pub standing: BTreeMap<ClusterId, TunnelEndpointSpec>,
}

/// A peer that there is to be a network with.
#[derive(Clone, Debug)]
pub struct Peer {
    /// What it is called.
    pub name: String,
    /// What the policy that holds for it says.
    pub policy: NetworkPolicy,
    /// Whether a namespace of ours is offloaded to it.
    pub runs_our_pods: bool,
    /// What it said last, or why that cannot be read. `None`: nothing is known; the default: it says nothing (any more).
    pub said: Option<Result<NetworkAnnouncement, String>>,
}

/// What follows for a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What it is to be told.
    pub announcement: NetworkAnnouncement,
    /// What is to stand for it. `None`: as long as nothing is known, nothing.
    pub endpoint: Option<TunnelEndpointSpec>,
    /// How far it came.
    pub progress: Progress,
}

/// How far two clusters came.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The peer has not said anything.
    Silent,
    /// What it says cannot be.
    Refused(String),
    /// Something is missing yet.
    Partial {
        /// What the peer has not told us where it sees it.
        unseen: Vec<IpNet>,
        /// What we have no place for.
        unplaced: Vec<IpNet>,
    },
    /// Both know all.
    Agreed,
}

/// What follows for each peer.
pub fn decide(picture: &Picture) -> BTreeMap<ClusterId, Outcome> {
    let ranges = ranges(picture);
    let exports: BTreeMap<ClusterId, BTreeSet<IpNet>> =
        picture.peers.iter().map(|(id, peer)| (id.clone(), wanted(picture, id, peer))).collect();
    let previous: Allocations = picture
        .standing
        .iter()
        .flat_map(|(id, standing)| standing.imported.iter().map(|(there, here)| ((id.clone(), *there), *here)))
        .collect();
    let (allocations, _) = place(&ranges, &exports, &previous);
    picture.peers.iter().map(|(id, peer)| (id.clone(), outcome(picture, &ranges, &allocations, id, peer))).collect()
}

fn ranges(picture: &Picture) -> Ranges {
    Ranges {
        pods: picture.ranges.pods.clone(),
        services: picture.ranges.services.clone(),
        external: picture.ranges.external.clone(),
        // Not where peers say that their gateways are: one could push others from their places so. The fabric calls no address
        // that is a peer's.
        nodes: picture.nodes.iter().flat_map(|node| node.addresses.iter().copied()).collect(),
        reserved: picture.settings.reserved_cidrs.clone(),
        pools: picture.settings.peer_cidrs.clone(),
    }
}

fn announced(peer: &Peer) -> Option<&NetworkAnnouncement> {
    peer.said.as_ref()?.as_ref().ok()
}

/// What a peer shows that we want to see. While nothing is known of it (we were just started, say), what stands.
fn wanted(picture: &Picture, id: &ClusterId, peer: &Peer) -> BTreeSet<IpNet> {
    match announced(peer) {
        Some(said) => shown(picture, said),
        None => picture.standing.get(id).map(|standing| standing.imported.keys().copied().collect()).unwrap_or_default(),
    }
}

/// Its own prefixes, and those of clusters that we have no network with but through it.
fn shown(picture: &Picture, said: &NetworkAnnouncement) -> BTreeSet<IpNet> {
    let behind = said.transit.iter().filter(|(_, whose)| **whose != picture.own && !picture.peers.contains_key(whose));
    let behind = behind.take(MOST_TRANSIT);
    said.exports.iter().chain(behind.map(|(prefix, _)| prefix)).copied().collect()
}

fn outcome(picture: &Picture, ranges: &Ranges, allocations: &Allocations, id: &ClusterId, peer: &Peer) -> Outcome {
    let mut announcement = NetworkAnnouncement {
        exports: exports(ranges),
        transit: transit(picture, allocations, id, peer),
        views: allocations.iter().filter(|((owner, _), _)| owner == id).map(|((_, there), here)| (*there, *here)).collect(),
        gateways: picture.gateways.clone(),
        mtu: picture.settings.mtu,
    };
    let (progress, endpoint) = match &peer.said {
        // What was agreed stands until the peer says something else; what is open to it is our own affair.
        None => (Progress::Silent, standing(picture, id, peer)),
        Some(Ok(said)) if *said == NetworkAnnouncement::default() => (Progress::Silent, None),
        Some(Err(why)) => (Progress::Refused(why.clone()), standing(picture, id, peer)),
        Some(Ok(said)) => match agreement(picture, &announcement, said) {
            Err(refused) => {
                announcement.views.clear();
                (Progress::Refused(refused.to_string()), None)
            }
            Ok(agreement) => {
                let progress = if agreement.is_complete() {
                    Progress::Agreed
                } else {
                    Progress::Partial { unseen: agreement.unseen.clone(), unplaced: agreement.unplaced.clone() }
                };
                (progress, Some(endpoint(picture, id, peer, said, &agreement)))
            }
        },
    };
    Outcome { announcement, endpoint, progress }
}

fn standing(picture: &Picture, id: &ClusterId, peer: &Peer) -> Option<TunnelEndpointSpec> {
    let standing = picture.standing.get(id)?.clone();
    Some(TunnelEndpointSpec { reach: peer.policy.reach, api_server: reaches_api_server(peer), ..standing })
}

/// Whether the peer runs pods of ours that may reach our API server.
fn reaches_api_server(peer: &Peer) -> bool {
    peer.policy.api_server && peer.runs_our_pods
}

/// Our pods and external prefixes, of the families in which there is room for peers: in another nobody could be answered.
fn exports(ranges: &Ranges) -> BTreeSet<IpNet> {
    let has_room = |prefix: &&IpNet| ranges.pools.iter().any(|pool| pool.addr().is_ipv4() == prefix.addr().is_ipv4());
    ranges.pods.iter().chain(&ranges.external).filter(has_room).map(IpNet::trunc).collect()
}

/// Where we see prefixes of other peers, if both may reach each other through us. What these show us of others is not passed on:
/// it would go round for ever among hubs.
fn transit(picture: &Picture, allocations: &Allocations, id: &ClusterId, peer: &Peer) -> BTreeMap<IpNet, ClusterId> {
    let may = |owner: &ClusterId| picture.peers.get(owner).filter(|other| owner != id && other.policy.transit);
    let passed = allocations.iter().filter_map(|((owner, there), here)| {
        let is_its_own = announced(may(owner)?)?.exports.contains(there);
        is_its_own.then(|| (*here, owner.clone()))
    });
    if !peer.policy.transit {
        return BTreeMap::new();
    }
    let mut of_each: BTreeMap<ClusterId, usize> = BTreeMap::new();
    let few = passed.filter(|(_, owner)| {
        let count = of_each.entry(owner.clone()).or_default();
        *count += 1;
        *count <= MOST_PASSED_ON
    });
    few.take(MOST_TRANSIT).collect()
}

fn agreement(picture: &Picture, ours: &NetworkAnnouncement, said: &NetworkAnnouncement) -> Result<Agreement, Refused> {
    let ours =
        Announcement { exports: ours.exports.iter().chain(ours.transit.keys()).copied().collect(), views: ours.views.clone() };
    agree(&ours, &Announcement { exports: shown(picture, said), views: said.views.clone() })
}

fn endpoint(
    picture: &Picture,
    id: &ClusterId,
    peer: &Peer,
    said: &NetworkAnnouncement,
    agreement: &Agreement,
) -> TunnelEndpointSpec {
    let maps = &agreement.maps;
    let mtu = Some(said.mtu).filter(|&mtu| mtu > 0).map_or(picture.settings.mtu, |mtu| mtu.min(picture.settings.mtu));
    TunnelEndpointSpec {
        cluster_id: id.clone(),
        cluster_name: peer.name.clone(),
        exported: maps.exported.pairs().map(|(here, there)| (here.0, there.0)).collect(),
        imported: maps.imported.pairs().map(|(here, there)| (there.0, here.0)).collect(),
        gateways: said.gateways.iter().filter(|gateway| !is_of_another(picture, id, gateway)).cloned().collect(),
        // Less than this no network carries.
        mtu: mtu.max(1280),
        reach: peer.policy.reach,
        api_server: reaches_api_server(peer),
    }
}

/// Whether another peer had this key first. Peers know each other's keys; with it one would get what is meant for the other.
fn is_of_another(picture: &Picture, id: &ClusterId, gateway: &GatewayAddress) -> bool {
    let holds = |standing: &TunnelEndpointSpec| standing.gateways.iter().any(|other| other.public_key == gateway.public_key);
    let ours = picture.standing.get(id).is_some_and(holds);
    !ours && picture.standing.iter().any(|(other, standing)| other != id && holds(standing))
}

#[cfg(test)]
mod tests;
