//! The state that decisions depend on.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use liqo_api::{
    ClusterId, GatewayAddress, NamespaceOffloading, NetworkAnnouncement, NetworkPolicy,
    NetworkRanges, NetworkSettings, TunnelEndpointSpec,
};

use liqo_network_model::allocator::KeptAddresses;

use super::ranges::NodeNetwork;

/// Maximum number of prefixes of one peer that we pass on to others: its pod ranges and its
/// external ones.
pub const MAX_PASSED_ON: usize = 16;

/// Everything that the outcomes depend on.
#[derive(Clone, Debug)]
pub struct NetworkSnapshot {
    pub own: ClusterId,
    pub settings: NetworkSettings,
    pub ranges: NetworkRanges,
    pub nodes: Vec<NodeNetwork>,
    /// Our gateways, in the order of their Leases.
    pub gateways: Vec<GatewayAddress>,
    /// The peers that we want a network with.
    pub peers: BTreeMap<ClusterId, WantedPeer>,
    /// The existing `TunnelEndpoint`s.
    pub current: BTreeMap<ClusterId, TunnelEndpointSpec>,
}

/// A peer that we want a network with.
#[derive(Clone, Debug)]
pub struct WantedPeer {
    pub name: String,
    /// From the `PeeringPolicy` that applies to the peer.
    pub policy: NetworkPolicy,
    /// Whether a namespace of ours is offloaded to it whose pods may use our API server.
    pub runs_api_clients: bool,
    /// The consumers whose pods we offloaded on to it, with the namespaces of ours that these pods
    /// come from.
    pub customers: BTreeMap<ClusterId, BTreeSet<String>>,
    /// Whether pods of either cluster run at the other. True until that was asked.
    pub runs_pods: bool,
    /// Its last announcement, or why that cannot be read. `None` if we do not know it (yet); the
    /// default if the peer withdrew it.
    pub announcement: Option<Result<NetworkAnnouncement, String>>,
}

/// The addresses that the policy lets a peer keep. None of its prefixes moves while its
/// announcement is missing or cannot be read.
pub fn kept_addresses(
    snapshot: &NetworkSnapshot,
    id: &ClusterId,
    peer: &WantedPeer,
) -> KeptAddresses {
    let others = snapshot
        .current
        .iter()
        .filter(|(other, _)| *other != id)
        .flat_map(|(_, endpoint)| &endpoint.gateways);
    let endpoints = others.flat_map(|gateway| gateway.endpoints.iter().chain(&gateway.tls));
    KeptAddresses {
        // The API server refuses other texts in a policy. One from before it did so must not keep
        // all policies from being read.
        prefixes: peer
            .policy
            .kept_cidrs
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect(),
        in_use: peer.runs_pods || last_announcement(peer).is_none(),
        avoids: endpoints
            .filter_map(|endpoint| Some(endpoint.parse::<SocketAddr>().ok()?.ip()))
            .collect(),
    }
}

/// The last announcement of a peer, if it is known and can be read.
pub fn last_announcement(peer: &WantedPeer) -> Option<&NetworkAnnouncement> {
    peer.announcement.as_ref()?.as_ref().ok()
}

/// Whether another peer had this key first. Peers know each other's keys; with another's key a peer
/// would get its packets.
pub fn is_of_another(snapshot: &NetworkSnapshot, id: &ClusterId, gateway: &GatewayAddress) -> bool {
    let is_its_own = snapshot
        .current
        .get(id)
        .is_some_and(|endpoint| has_gateway_key(endpoint, gateway));
    !is_its_own
        && snapshot
            .current
            .iter()
            .any(|(other, endpoint)| other != id && has_gateway_key(endpoint, gateway))
}

fn has_gateway_key(endpoint: &TunnelEndpointSpec, gateway: &GatewayAddress) -> bool {
    let mut gateways = endpoint.gateways.iter();
    gateways.any(|other| other.public_key == gateway.public_key)
}

/// A namespace that is offloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadedNamespace {
    /// The clusters that run pods of it.
    pub clusters: BTreeSet<ClusterId>,
    /// Whether these pods may use our API server.
    pub api_server: bool,
}

impl OffloadedNamespace {
    pub fn from_offloading(offloading: NamespaceOffloading) -> Option<Self> {
        let clusters = offloading
            .status?
            .remote_namespaces
            .into_iter()
            .map(|remote| remote.cluster_id)
            .collect();
        Some(Self {
            clusters,
            api_server: offloading.spec.api_server,
        })
    }
}
