//! Decides the desired state of this node and of its tunnel, from a [`NodeSnapshot`]. Everything
//! here is pure; times are arguments.

mod direct;
pub mod election;
pub mod fallback;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod lan;
pub mod node_addresses;
pub mod probe_results;
pub mod quality;
pub mod reachable_addresses;
pub mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use liqo_api::{
    ClusterId, GatewayAddress, Gateways, NetworkRanges, NetworkSettings, Reach, TunnelEndpointSpec,
};
use liqo_datapath::{
    node::PrefixPair,
    tunnel::{InwardChannel, PublicKey, RemoteConfig, TunnelRemoteState},
};
use liqo_network_model::{
    PeerMaps,
    fabric::{Fabric, FabricGateway, FabricNode, MacAddress, PeerNetwork, ReachableScope},
    gateways::MAX_GATEWAYS,
    node_plan::NodePlan,
    space::{Here, prefixes_overlap},
    spread::gateway_number,
};
use liqo_tunnel_client::session::is_allowed_address;
use sha2::{Digest as _, Sha256};

use self::{
    election::{ActiveGateway, ActiveGateways},
    node_addresses::{NodeAddresses, node_addresses},
    reachable_addresses::{OpenAddresses, ReachableAddresses},
};
use crate::view::NodeView;

/// After this silence of both sides a keepalive is sent, so each side knows that the other is
/// there, and NAT between them keeps its mapping. WireGuard counts received packets, too, so both
/// ends take turns.
pub const KEEPALIVE: Duration = Duration::from_secs(2);
/// The longest time between two packets from one end if none is lost: every other keepalive is its
/// own, and timers fire a little late.
pub const TURN: Duration = Duration::from_secs(KEEPALIVE.as_secs() * 2 + 1);
/// A gateway that was heard within this time is responsive, ...
const RESPONSIVE_WITHIN: Duration = Duration::from_secs(TURN.as_secs() + 2);
/// ... unless it was silent for this time and did not answer this many probes. The last probe's
/// answer may still be on its way.
const QUIET: Duration = Duration::from_millis(1500);
const MIN_UNANSWERED: usize = 4;
/// Maximum number of names of a peer's gateways that are looked up.
const MAX_NAMES: usize = 16;
/// Maximum number of names of gateways on one direct path that are looked up.
const MAX_NAMES_OF_PATH: usize = 4;
/// Maximum number of addresses at which a peer's gateway is called over TLS.
const MAX_TLS_ADDRESSES: usize = 8;
/// The minimum MTU of IPv6.
const MIN_MTU: u16 = 1280;

/// Everything that the desired state depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeSnapshot {
    pub settings: NetworkSettings,
    /// `None` until the manager has written them.
    pub ranges: Option<NetworkRanges>,
    /// Without virtual nodes.
    pub nodes: BTreeMap<String, NodeView>,
    pub peers: BTreeMap<ClusterId, TunnelEndpointSpec>,
    /// The gateways that are not lost.
    pub gateways: ActiveGateways,
    /// The single addresses that are open; `None` until all lists are complete. Only gateways know
    /// them.
    pub open: Option<OpenAddresses>,
    /// The addresses of names of peers' gateways.
    pub resolved: BTreeMap<String, Vec<SocketAddr>>,
    /// The peer that each key belonged to until now.
    pub keys: BTreeMap<PublicKey, ClusterId>,
    /// Peers' gateways that are [responsive].
    pub responsive: BTreeSet<PublicKey>,
    /// The local addresses of the relays over TLS that are connected.
    pub relays: BTreeMap<PublicKey, SocketAddr>,
    /// The admitted tunnel clients, and where the tunnel delivers the packets of each.
    pub tunnel_clients: BTreeMap<PublicKey, InwardChannel>,
}

impl NodeSnapshot {
    /// The gateways in use, by the numbers of their Leases: the first `replicas` of the nodes that
    /// may be gateways. Only one is in use if the settings contain addresses for peers, because
    /// these addresses lead to one gateway, whichever a peer means. Any node can write a Lease, so
    /// neither a node nor a key counts twice.
    fn in_use(&self) -> impl Iterator<Item = (u8, &ActiveGateway)> {
        let set = &self.settings.gateways;
        let most = if has_one_address(set) {
            1
        } else {
            set.replicas.min(MAX_GATEWAYS)
        };
        let (mut nodes, mut keys, mut firsts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let all = self.gateways.iter().map(|(number, one)| (*number, one));
        all.filter(|(_, one)| self.may_be_gateway(&one.node))
            .filter(move |(_, one)| {
                nodes.insert(&one.node) && keys.insert(one.key) && firsts.insert(one.first_key)
            })
            .take(most.into())
    }

    fn may_be_gateway(&self, node: &str) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|view| self.settings.gateways.selects_node(&view.labels))
    }

    /// Whether this node is a gateway in use.
    pub fn is_gateway(&self, this: &str) -> bool {
        self.in_use().any(|(_, one)| one.node == this)
    }

    /// Whether this node admits the listed tunnel clients.
    pub fn accepts_tunnel_clients(&self, this: &str) -> bool {
        self.settings.enabled && self.settings.api_through_tunnel && self.is_gateway(this)
    }
}

/// Whether the settings contain addresses for peers, so only one gateway can be reached.
pub fn has_one_address(gateways: &Gateways) -> bool {
    !gateways.addresses.is_empty() || !gateways.tls_addresses.is_empty()
}

/// The action on this node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeAction {
    /// Change nothing yet, for this reason.
    Wait(&'static str),
    /// Remove everything that is ours.
    Clear,
    Apply(Box<DesiredState>),
}

/// The desired state of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredState {
    pub plan: NodePlan,
    /// Set on gateways.
    pub tunnel: Option<TunnelEnd>,
    /// The nodes that are gateways, in the order of their Leases.
    pub gateways: Vec<String>,
    /// Peers that get no network, and why.
    pub left_out: BTreeMap<ClusterId, String>,
    /// Nodes with an address that is left out, and why.
    pub doubtful: BTreeMap<String, String>,
    /// The prefixes of peers between which packets may pass elsewhere.
    pub passed_by: Vec<PrefixPair>,
}

/// The applied state of a node with a tunnel; `None` on all other nodes.
pub type AppliedState = Option<Arc<DesiredState>>;

/// Our end of the tunnel, without its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TunnelEnd {
    /// In bytes.
    pub mtu: u16,
    pub listen: Vec<SocketAddr>,
    /// The gateways of all peers.
    pub remotes: Vec<RemoteConfig>,
    /// The peer that each remote's key belongs to.
    pub owners: BTreeMap<PublicKey, ClusterId>,
    /// The direct path that each other remote's key belongs to.
    pub direct: BTreeMap<PublicKey, DirectPathEnds>,
    /// The TCP port on which connections over TLS are accepted; 0 for none.
    pub tls_port: u16,
    /// Where peers' gateways accept them.
    pub tls: BTreeMap<PublicKey, Vec<SocketAddr>>,
}

/// A direct path: the peer that forwards packets else, and the cluster behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectPathEnds {
    pub through: ClusterId,
    pub cluster: ClusterId,
}

impl TunnelEnd {
    /// Whether other gateways of peers have to be used, because these are responsive now.
    pub fn is_outdated(&self, responsive: &BTreeSet<PublicKey>) -> bool {
        let mut remotes = self.remotes.clone();
        keep_responsive(&mut remotes, &self.owners, responsive);
        remotes != self.remotes
    }
}

/// The responsive gateways of peers. A gateway whose node dies is noticed within two seconds if it
/// answers probes, which other implementations of WireGuard do not.
pub fn responsive_gateways(remotes: &[TunnelRemoteState]) -> BTreeSet<PublicKey> {
    remotes
        .iter()
        .filter(|remote| is_responsive(remote))
        .map(|remote| remote.public_key)
        .collect()
}

fn is_responsive(remote: &TunnelRemoteState) -> bool {
    remote.last_received.is_some_and(|ago| {
        let is_quiet = ago >= QUIET && remote.unanswered >= MIN_UNANSWERED;
        ago < RESPONSIVE_WITHIN && !is_quiet
    })
}

/// Sends only to the responsive gateways of a peer, which share the flows; if none responds, to
/// all. So we notice that a peer lost a gateway before the peer can tell us.
fn keep_responsive(
    remotes: &mut [RemoteConfig],
    owners: &BTreeMap<PublicKey, ClusterId>,
    responsive: &BTreeSet<PublicKey>,
) {
    let by_peer = remotes
        .chunk_by_mut(|one, other| owners.get(&one.public_key) == owners.get(&other.public_key));
    for gateways in by_peer {
        // Tunnel clients belong to no peer, and call us. The tunnel chooses among gateways on
        // direct paths.
        if gateways
            .first()
            .is_none_or(|gateway| !owners.contains_key(&gateway.public_key))
        {
            continue;
        }
        let used: Vec<Option<SocketAddr>> = gateways
            .iter()
            .filter(|one| responsive.contains(&one.public_key))
            .map(|one| one.endpoint)
            .collect();
        for gateway in gateways {
            gateway.enabled = used.is_empty() || responsive.contains(&gateway.public_key);
            // A silent gateway behind the same address as a responsive one is a standby.
            let is_standby =
                !gateway.enabled && gateway.endpoint.is_some() && used.contains(&gateway.endpoint);
            gateway.keepalive = (!is_standby).then_some(KEEPALIVE);
        }
    }
}

/// Whether this node has to know the single addresses that are open.
pub fn needs_open_addresses(snapshot: &NodeSnapshot, this: &str) -> bool {
    snapshot.is_gateway(this)
        && snapshot.peers.values().any(|peer| {
            peer.reach == Reach::Offloaded
                || peer.api_server
                || !peer.customers.is_empty()
                || direct::needs_pods(peer)
        })
}

/// Decides the action on this node. `ours` are the node's keys.
pub fn decide_action(snapshot: &NodeSnapshot, this: &str, ours: &[PublicKey]) -> NodeAction {
    if !snapshot.settings.enabled {
        return NodeAction::Clear;
    }
    let Some(ranges) = &snapshot.ranges else {
        return NodeAction::Wait(
            "the controller manager has not written the ranges of this cluster yet (ClusterConfig.status.network)",
        );
    };
    if !snapshot.nodes.contains_key(this) {
        return NodeAction::Wait("the cluster does not know this node yet");
    }
    if needs_open_addresses(snapshot, this) && snapshot.open.is_none() {
        return NodeAction::Wait("the pods and Services that peers may reach are being listed");
    }
    let addresses = usable_node_addresses(snapshot, ranges);
    let (fabric, left_out) = build_fabric(snapshot, ranges, &addresses);
    let plan = fabric.node_plan(this);
    // Tunnel clients need neither a peer nor the kernel.
    let has_clients = snapshot.is_gateway(this) && !snapshot.tunnel_clients.is_empty();
    let tunnel =
        (plan.tunnel.is_some() || has_clients).then(|| tunnel_end(snapshot, &fabric, this, ours));
    let gateways = fabric
        .gateways()
        .into_iter()
        .map(|(name, _)| name.to_owned())
        .collect();
    let passed_by = direct::passed_by(snapshot, &fabric);
    NodeAction::Apply(Box::new(DesiredState {
        plan,
        tunnel,
        gateways,
        left_out,
        doubtful: addresses.left_out,
        passed_by,
    }))
}

/// Whether this node, which is a gateway, does its part.
pub fn is_gateway_working(
    snapshot: &NodeSnapshot,
    action: &NodeAction,
    is_applied: bool,
    is_running: bool,
) -> bool {
    match action {
        NodeAction::Apply(desired) => is_applied && (is_running || desired.tunnel.is_none()),
        // Without ranges every node waits, so another gateway would do no better.
        NodeAction::Wait(_) => is_running || snapshot.ranges.is_none(),
        NodeAction::Clear => true,
    }
}

/// The addresses of nodes outside of the ranges of pods and peers. The range of Services may be a
/// guess, and too wide, so it does not count.
fn usable_node_addresses(snapshot: &NodeSnapshot, ranges: &NetworkRanges) -> NodeAddresses {
    let remote = snapshot
        .peers
        .values()
        .flat_map(|peer| peer.imported.values());
    let taken: Vec<IpNet> = ranges
        .pods
        .iter()
        .chain(&ranges.external)
        .chain(remote)
        .copied()
        .collect();
    node_addresses(&snapshot.nodes, |name| snapshot.is_gateway(name), &taken)
}

/// The fabric; and the peers that are left out, with the reason.
fn build_fabric(
    snapshot: &NodeSnapshot,
    ranges: &NetworkRanges,
    addresses: &NodeAddresses,
) -> (Fabric, BTreeMap<ClusterId, String>) {
    let mut fabric = Fabric {
        pods: ranges.pods.clone(),
        external: ranges.external.clone(),
        api_servers: ranges.api_servers.clone(),
        nodes: fabric_nodes(snapshot, addresses),
        peers: BTreeMap::new(),
        mtu: device_mtu(snapshot).into(),
    };
    let mut left_out = BTreeMap::new();
    let own: Vec<IpNet> = ranges
        .pods
        .iter()
        .chain(&ranges.services)
        .chain(&ranges.external)
        .copied()
        .collect();
    for (id, spec) in &snapshot.peers {
        match peer_network(id, spec, snapshot, &fabric, &own) {
            Ok(peer) => {
                fabric.peers.insert(id.clone(), peer);
            }
            Err(reason) => {
                left_out.insert(id.clone(), reason);
            }
        }
    }
    (fabric, left_out)
}

fn fabric_nodes(
    snapshot: &NodeSnapshot,
    addresses: &NodeAddresses,
) -> BTreeMap<String, FabricNode> {
    let mut nodes = BTreeMap::new();
    for (name, view) in &snapshot.nodes {
        let gateway = snapshot.in_use().find(|(_, one)| one.node == *name);
        let node = FabricNode {
            addresses: addresses.accepted.get(name).cloned().unwrap_or_default(),
            pods: view.pods.clone(),
            mac: mac_of_node(name),
            gateway: gateway.map(|(slot, found)| FabricGateway {
                slot,
                number: gateway_number(&found.first_key.0),
            }),
        };
        nodes.insert(name.clone(), node);
    }
    nodes
}

/// A peer as the nodes see it. A peer whose prefixes overlap with others is left out, because nft
/// would refuse the tables of all peers.
fn peer_network(
    id: &ClusterId,
    spec: &TunnelEndpointSpec,
    snapshot: &NodeSnapshot,
    fabric: &Fabric,
    own: &[IpNet],
) -> Result<PeerNetwork, String> {
    let maps =
        PeerMaps::try_from(spec).map_err(|error| format!("its prefixes make no map: {error}"))?;
    let nodes = fabric
        .nodes
        .values()
        .flat_map(|node| node.addresses.iter().copied().map(IpNet::from));
    let taken: Vec<IpNet> = fabric
        .remote()
        .into_iter()
        .chain(own.iter().copied())
        .chain(nodes)
        .collect();
    for (here, _) in maps.imported.pairs() {
        if let Some(other) = taken.iter().find(|other| prefixes_overlap(&here.0, other)) {
            return Err(format!(
                "its prefix {} overlaps with {other}, which is in use here",
                here.0
            ));
        }
    }
    let ours = OurAddresses {
        fabric,
        own,
        maps: &maps,
    };
    let reachable = match spec.reach {
        Reach::Pods => ReachableScope::Everything,
        Reach::Offloaded => reachable_offloaded(id, spec, snapshot, &ours),
    };
    let offloaded = offloaded_pods(id, snapshot, &ours);
    let api_server = spec.api_server.then(|| api_clients(snapshot, &maps));
    let customers = spec.customers.clone();
    let mtus = narrow_prefix_mtus(spec, fabric.mtu);
    Ok(PeerNetwork {
        maps,
        mtus,
        reachable,
        api_server,
        transit: spec.transit,
        customers,
        offloaded,
    })
}

/// Tells our addresses apart, as one peer may see them.
struct OurAddresses<'a> {
    fabric: &'a Fabric,
    own: &'a [IpNet],
    maps: &'a PeerMaps,
}

impl OurAddresses<'_> {
    fn is_node(&self, address: &IpAddr) -> bool {
        self.fabric
            .nodes
            .values()
            .any(|node| node.addresses.contains(address))
    }

    /// Only pods are ever reachable, without those in the network of a node, which have the node's
    /// address.
    fn is_pod_here(&self, address: &IpAddr) -> bool {
        !self.is_node(address) && is_in(&self.fabric.pods, address)
    }

    /// Whether the peer sees it as an address behind this cluster.
    fn is_shown_pod(&self, address: &IpAddr) -> bool {
        !self.is_node(address)
            && self.maps.exported.to_there(Here(*address)).is_some()
            && !is_in(self.own, address)
    }
}

fn is_in(prefixes: &[IpNet], address: &IpAddr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(address))
}

/// The open addresses that a peer may reach which reaches only offloaded pods.
fn reachable_offloaded(
    id: &ClusterId,
    spec: &TunnelEndpointSpec,
    snapshot: &NodeSnapshot,
    ours: &OurAddresses,
) -> ReachableScope {
    // Pods of another peer are reachable if both policies let the peers reach each other through
    // us.
    let others = snapshot
        .peers
        .iter()
        .filter(|(other, peer)| *other != id && spec.transit && peer.transit);
    let others: Vec<IpNet> = others
        .flat_map(|(_, peer)| peer.imported.values().copied())
        .collect();
    let pods_among = |addresses: &ReachableAddresses| {
        let addresses = addresses.get(id).into_iter().flatten().copied();
        addresses
            .filter(|address| {
                ours.is_pod_here(address) || (ours.is_shown_pod(address) && is_in(&others, address))
            })
            .collect()
    };
    let open = snapshot.open.as_ref();
    ReachableScope::Only {
        all: open
            .map(|open| pods_among(&open.reachable))
            .unwrap_or_default(),
        established: open
            .map(|open| pods_among(&open.established))
            .unwrap_or_default(),
    }
}

/// The addresses of the pods that this peer offloaded to us, if it is a customer of another one.
fn offloaded_pods(
    id: &ClusterId,
    snapshot: &NodeSnapshot,
    ours: &OurAddresses,
) -> BTreeSet<IpAddr> {
    let is_customer = snapshot
        .peers
        .iter()
        .any(|(other, peer)| other != id && peer.customers.contains(id));
    if !is_customer {
        return BTreeSet::new();
    }
    let found = snapshot
        .open
        .as_ref()
        .and_then(|open| open.offloaded.get(id))
        .into_iter()
        .flatten()
        .copied();
    found
        .filter(|address| ours.is_pod_here(address) || ours.is_shown_pod(address))
        .collect()
}

/// The addresses of a peer's pods that use our API servers.
fn api_clients(snapshot: &NodeSnapshot, maps: &PeerMaps) -> BTreeSet<IpAddr> {
    let clients = snapshot.open.iter().flat_map(|open| &open.api_clients);
    clients
        .copied()
        .filter(|address| {
            let mut pairs = maps.imported.pairs();
            pairs.any(|(here, _)| here.0.contains(address))
        })
        .collect()
}

/// The MTU of our devices. Ways to peers that carry less have routes that say so.
fn device_mtu(snapshot: &NodeSnapshot) -> u16 {
    snapshot.settings.mtu.max(MIN_MTU)
}

/// The MTUs of the ways to a peer's prefixes, where they are lower than that of our devices.
/// Multiples of 16, because the tunnel pads packets to a multiple of 16 bytes.
fn narrow_prefix_mtus(spec: &TunnelEndpointSpec, device_mtu: u32) -> BTreeMap<IpNet, u32> {
    let mut narrow = BTreeMap::new();
    for (there, here) in &spec.imported {
        let known = [Some(&spec.mtu), spec.path_mtus.get(there)]
            .into_iter()
            .flatten()
            .filter(|mtu| **mtu > 0);
        let lowest = known.min().map(|mtu| u32::from(*mtu.max(&MIN_MTU)));
        if let Some(mtu) = lowest.filter(|mtu| *mtu < device_mtu) {
            narrow.insert(here.trunc(), mtu / 16 * 16);
        }
    }
    narrow
}

/// The same on all nodes, because it only depends on the node's name.
fn mac_of_node(name: &str) -> MacAddress {
    let digest = Sha256::digest(name.as_bytes());
    MacAddress::from_hash([digest[0], digest[1], digest[2], digest[3], digest[4]])
}

fn tunnel_end(
    snapshot: &NodeSnapshot,
    fabric: &Fabric,
    this: &str,
    ours: &[PublicKey],
) -> TunnelEnd {
    let addresses = fabric
        .nodes
        .get(this)
        .map(|node| node.addresses.clone())
        .unwrap_or_default();
    let port = snapshot.settings.gateways.port;
    let every: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let listen = every
        .into_iter()
        .filter(|address| has_family_of(&addresses, address))
        .map(|address| SocketAddr::new(address, port))
        .collect();
    let tls_port = snapshot.settings.gateways.tls_port;
    let mut end = TunnelEnd {
        mtu: device_mtu(snapshot),
        listen,
        tls_port,
        ..TunnelEnd::default()
    };
    let nodes = fabric
        .nodes
        .values()
        .flat_map(|node| node.addresses.iter().copied().map(IpNet::from));
    let own = fabric.pods.iter().chain(&fabric.external).copied();
    let forbidden: Vec<IpNet> = fabric
        .remote()
        .into_iter()
        .chain(own)
        .chain(nodes)
        .collect();
    let usable = |address: &SocketAddr| {
        has_family_of(&addresses, &address.ip()) && may_be_called(address, &forbidden)
    };
    for (id, peer) in &fabric.peers {
        let Some(spec) = snapshot.peers.get(id) else {
            continue;
        };
        let prefixes: Vec<IpNet> = peer.maps.imported.pairs().map(|(here, _)| here.0).collect();
        for gateway in &spec.gateways {
            // The tunnel refuses all remotes if a key occurs twice or is ours. A tunnel client has
            // proved that it has its key; a peer's announcement proves nothing.
            let key = own_key(gateway, id, snapshot, ours);
            let Some(public_key) = key.filter(|key| {
                !end.owners.contains_key(key) && !snapshot.tunnel_clients.contains_key(key)
            }) else {
                continue;
            };
            end.owners.insert(public_key, id.clone());
            let tls = addresses_of(&gateway.tls, &snapshot.resolved)
                .into_iter()
                .filter(usable);
            let tls: Vec<SocketAddr> = tls.take(MAX_TLS_ADDRESSES).collect();
            if !tls.is_empty() {
                end.tls.insert(public_key, tls);
            }
            end.remotes.push(RemoteConfig {
                first_key: gateway.first_key.as_ref().and_then(|key| key.parse().ok()),
                endpoint: addresses_of(&gateway.endpoints, &snapshot.resolved)
                    .into_iter()
                    .find(usable),
                relay: snapshot.relays.get(&public_key).copied(),
                keepalive: Some(KEEPALIVE),
                prefixes: prefixes.clone(),
                ..RemoteConfig::new(public_key)
            });
        }
    }
    keep_responsive(&mut end.remotes, &end.owners, &snapshot.responsive);
    direct::add_direct_gateways(&mut end, snapshot, fabric, ours, usable);
    let clients = snapshot
        .tunnel_clients
        .iter()
        .filter(|(client, _)| !ours.contains(client));
    end.remotes
        .extend(clients.map(|(client, inward)| RemoteConfig {
            inward: Some(inward.clone()),
            ..RemoteConfig::new(*client)
        }));
    end
}

/// Whether one of the addresses is of the same IP version as `other`.
fn has_family_of(addresses: &[IpAddr], other: &IpAddr) -> bool {
    addresses
        .iter()
        .any(|address| address.is_ipv4() == other.is_ipv4())
}

/// The key of a peer's gateway, unless it is ours or another peer's. A key stays with the peer that
/// had it first.
fn own_key(
    gateway: &GatewayAddress,
    id: &ClusterId,
    snapshot: &NodeSnapshot,
    ours: &[PublicKey],
) -> Option<PublicKey> {
    let key: PublicKey = gateway
        .public_key
        .parse()
        .ok()
        .filter(|key| !ours.contains(key))?;
    let other_owner = snapshot.keys.get(&key).filter(|owner| *owner != id);
    let is_claimed = other_owner
        .and_then(|owner| snapshot.peers.get(owner))
        .is_some_and(|spec| {
            let mut others = spec.gateways.iter();
            others.any(|other| other.public_key == gateway.public_key)
        });
    (!is_claimed).then_some(key)
}

/// The addresses of a gateway's endpoints, as far as names are resolved.
fn addresses_of(
    endpoints: &[String],
    resolved: &BTreeMap<String, Vec<SocketAddr>>,
) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for endpoint in endpoints {
        match endpoint.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => addresses.extend(resolved.get(endpoint).into_iter().flatten()),
        }
    }
    addresses
}

/// A peer's gateway must be another machine, and neither one of ours nor behind the tunnel itself:
/// those are the `forbidden` prefixes.
fn may_be_called(address: &SocketAddr, forbidden: &[IpNet]) -> bool {
    let ip = address.ip().to_canonical();
    is_allowed_address(address) && !forbidden.iter().any(|prefix| prefix.contains(&ip))
}

/// The names among the endpoints of peers' gateways, at most [`MAX_NAMES`] of each peer, and of
/// gateways on direct paths, at most [`MAX_NAMES_OF_PATH`] of each path.
pub fn gateway_names(peers: &BTreeMap<ClusterId, TunnelEndpointSpec>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for peer in peers.values() {
        names.extend(names_among(&peer.gateways).take(MAX_NAMES).cloned());
        for path in peer.direct.values() {
            names.extend(names_among(&path.gateways).take(MAX_NAMES_OF_PATH).cloned());
        }
    }
    names
}

fn names_among(gateways: &[GatewayAddress]) -> impl Iterator<Item = &String> {
    gateways
        .iter()
        .flat_map(|gateway| gateway.endpoints.iter().chain(&gateway.tls))
        .filter(|text| text.parse::<SocketAddr>().is_err())
}

#[cfg(test)]
mod tests;
