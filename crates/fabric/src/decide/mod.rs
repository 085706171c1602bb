//! What this node is to hold, and what its tunnel is to be: pure.

pub mod fallback;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gateways;
pub mod nodes;
pub mod openings;
pub mod quality;
pub mod siblings;
pub mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use liqo_api::{ClusterId, GatewayAddress, Gateways, NetworkRanges, NetworkSettings, Reach, TunnelEndpointSpec};
use liqo_datapath::tunnel::{Inward, PublicKey, Remote, RemoteState};
use liqo_network::{
    PeerMaps,
    plan::{Fabric, Gateway, MOST_GATEWAYS, Mac, Node, NodePlan, Open, Peer},
    space::{Here, overlap},
    spread::gateway_number,
};
use sha2::{Digest as _, Sha256};

use self::{
    gateways::{AllInUse, InUse},
    nodes::Addresses,
    openings::Openings,
};
use crate::view::NodeView;

/// After so long without a word from either side something is sent, so that either knows that the other is there, and address
/// translators between them do not forget the way. To WireGuard what was received is a word, too, so that both ends take turns.
pub const KEEPALIVE: Duration = Duration::from_secs(2);
/// So often each end is heard where nothing is lost: every other turn is its own, and clocks tick a little late.
pub const TURN: Duration = Duration::from_secs(KEEPALIVE.as_secs() * 2 + 1);
/// A gateway that was heard within this time may be there.
const SPEAKS: Duration = Duration::from_secs(TURN.as_secs() + 2);
/// Unless it was not heard for so long, and leaves so many questions without an answer, of which the last may be on its way yet.
const QUIET: Duration = Duration::from_millis(1500);
const UNANSWERED: usize = 4;
/// So many names of gateways are looked up for a peer at most.
const MOST_NAMES: usize = 16;
/// A gateway of a peer is called over TLS at so many addresses at most.
const MOST_SERVERS: usize = 8;
/// IPv6 needs as much.
const LEAST_MTU: u16 = 1280;

/// What is known, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// What the user set.
    pub settings: NetworkSettings,
    /// The ranges of this cluster, once the manager knows them.
    pub ranges: Option<NetworkRanges>,
    /// Our nodes, without virtual ones.
    pub nodes: BTreeMap<String, NodeView>,
    /// The peers.
    pub peers: BTreeMap<ClusterId, TunnelEndpointSpec>,
    /// The gateways that are alive.
    pub gateways: AllInUse,
    /// What single peers may reach; unknown before it was looked up, which only gateways do.
    pub openings: Option<Openings>,
    /// The addresses behind names of peers' gateways.
    pub resolved: BTreeMap<String, Vec<SocketAddr>>,
    /// Which peer each key belonged to until now.
    pub keys: BTreeMap<PublicKey, ClusterId>,
    /// Peers' gateways that [speak](speaking).
    pub speaking: BTreeSet<PublicKey>,
    /// The relays over TLS that are connected, and where the tunnel finds them.
    pub relays: BTreeMap<PublicKey, SocketAddr>,
    /// Who comes through the tunnel to this cluster itself, and where the packets of each go.
    pub guests: BTreeMap<PublicKey, Inward>,
}

impl Snapshot {
    /// The gateways in use, by the numbers of their Leases: of the nodes that may be gateways the first ones, as many as there are to be.
    /// Where peers reach them by addresses that are set, one alone is, because such an address leads to one of them, and not to the one
    /// that is called. What stands in a Lease any node can write: no node counts twice, and no key.
    fn in_use(&self) -> impl Iterator<Item = (u8, &InUse)> {
        let set = &self.settings.gateways;
        let most = if is_one_in_use(set) { 1 } else { set.replicas.min(MOST_GATEWAYS) };
        let may = |one: &InUse| self.nodes.get(&one.node).is_some_and(|node| node.is_selected(&set.node_selector));
        let (mut nodes, mut keys, mut firsts) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let all = self.gateways.iter().map(|(number, one)| (*number, one));
        all.filter(move |(_, one)| may(one) && nodes.insert(&one.node) && keys.insert(one.key) && firsts.insert(one.first_key))
            .take(most.into())
    }

    /// Whether this node is a gateway in use.
    pub fn is_gateway(&self, this: &str) -> bool {
        self.in_use().any(|(_, one)| one.node == this)
    }

    /// Whether clusters come through the tunnel of this node to our own API, as far as they are on the list.
    pub fn takes_guests(&self, this: &str) -> bool {
        self.settings.enabled && self.settings.api_through_tunnel && self.is_gateway(this)
    }
}

/// Whether peers reach the gateways by addresses that are set.
pub fn is_one_in_use(gateways: &Gateways) -> bool {
    !gateways.addresses.is_empty() || !gateways.tls_addresses.is_empty()
}

/// What is to be done on this node.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Nothing yet: what there is, stays. With what is waited for.
    Wait(&'static str),
    /// Nothing of ours is to be left.
    Clear,
    /// The node is to hold this.
    Hold(Box<Wanted>),
}

/// What a node is to hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// In its kernel.
    pub plan: NodePlan,
    /// Its end of the tunnel, where it is a gateway.
    pub tunnel: Option<TunnelEnd>,
    /// The nodes that are gateways, in the order of their Leases.
    pub gateways: Vec<String>,
    /// Peers for which nothing is held, and why.
    pub left_out: BTreeMap<ClusterId, String>,
    /// Nodes with an address that does not count, and why.
    pub doubtful: BTreeMap<String, String>,
}

/// Our end of the tunnel, without its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TunnelEnd {
    /// What a packet in it may measure.
    pub mtu: u16,
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// The gateways of all peers.
    pub remotes: Vec<Remote>,
    /// Whose they are.
    pub owners: BTreeMap<PublicKey, ClusterId>,
    /// The TCP port on which connections over TLS are taken; 0 for none.
    pub tls_port: u16,
    /// Where peers' gateways take them.
    pub tls: BTreeMap<PublicKey, Vec<SocketAddr>>,
}

impl TunnelEnd {
    /// Whether other gateways of peers are to be sent to, now that these speak.
    pub fn is_outdated(&self, speaking: &BTreeSet<PublicKey>) -> bool {
        let mut remotes = self.remotes.clone();
        choose(&mut remotes, &self.owners, speaking);
        remotes != self.remotes
    }
}

/// The gateways of peers that are there, as far as one can hear. One whose node dies is missed within two seconds where it answered
/// questions, which another WireGuard does not.
pub fn speaking(remotes: &[RemoteState]) -> BTreeSet<PublicKey> {
    let speaks = |remote: &&RemoteState| {
        let is_quiet = |ago: Duration| ago >= QUIET && remote.unanswered >= UNANSWERED;
        remote.last_received.is_some_and(|ago| ago < SPEAKS && !is_quiet(ago))
    };
    remotes.iter().filter(speaks).map(|remote| remote.public_key).collect()
}

/// Of the gateways of each peer those that speak are sent to, and share the flows; where none speaks, all. So a peer that loses a gateway
/// is followed before it can tell.
fn choose(remotes: &mut [Remote], owners: &BTreeMap<PublicKey, ClusterId>, speaking: &BTreeSet<PublicKey>) {
    let speaks = |remote: &Remote| speaking.contains(&remote.public_key);
    let of_one_peer = |one: &Remote, other: &Remote| owners.get(&one.public_key) == owners.get(&other.public_key);
    for gateways in remotes.chunk_by_mut(of_one_peer) {
        // Guests are of no peer, and begin themselves.
        if gateways.iter().any(|gateway| gateway.inward.is_some()) {
            continue;
        }
        let spoken_to: Vec<Option<SocketAddr>> = gateways.iter().filter(|one| speaks(one)).map(|one| one.endpoint).collect();
        for gateway in gateways {
            gateway.enabled = spoken_to.is_empty() || speaks(gateway);
            // One that is silent where another one speaks stands by behind the same address.
            let stands_by = !gateway.enabled && gateway.endpoint.is_some() && spoken_to.contains(&gateway.endpoint);
            gateway.keepalive = (!stands_by).then_some(KEEPALIVE);
        }
    }
}

/// Whether somebody has to look up what single peers may reach.
pub fn needs_openings(snapshot: &Snapshot, this: &str) -> bool {
    snapshot.is_gateway(this) && snapshot.peers.values().any(|peer| peer.reach == Reach::Offloaded)
}

/// What this node is to do. `ours` are its keys.
pub fn decide(snapshot: &Snapshot, this: &str, ours: &[PublicKey]) -> Work {
    if !snapshot.settings.enabled {
        return Work::Clear;
    }
    let Some(ranges) = &snapshot.ranges else {
        return Work::Wait(
            "the controller manager has not found out the ranges of this cluster yet (ClusterConfig.status.network)",
        );
    };
    if !snapshot.nodes.contains_key(this) {
        return Work::Wait("this node is not known to the cluster yet");
    }
    if needs_openings(snapshot, this) && snapshot.openings.is_none() {
        return Work::Wait("the pods and Services that peers may reach are being listed");
    }
    let addresses = addresses(snapshot, ranges);
    let (fabric, left_out) = fabric(snapshot, ranges, &addresses);
    let plan = fabric.plan(this);
    // Guests need no peer, and nothing in the kernel.
    let has_guests = snapshot.is_gateway(this) && !snapshot.guests.is_empty();
    let tunnel = (plan.tunnel.is_some() || has_guests).then(|| tunnel_end(snapshot, &fabric, this, ours));
    let gateways = fabric.gateways().into_iter().map(|(name, _)| name.to_owned()).collect();
    Work::Hold(Box::new(Wanted { plan, tunnel, gateways, left_out, doubtful: addresses.left_out }))
}

/// Whether this node, which is a gateway, does its part: whether what is to be done is `made`, and its tunnel is `running`.
pub fn works(snapshot: &Snapshot, work: &Work, made: bool, running: bool) -> bool {
    match work {
        Work::Hold(wanted) => made && (running || wanted.tunnel.is_none()),
        // What every node waits for, another one does no better.
        Work::Wait(_) => running || snapshot.ranges.is_none(),
        Work::Clear => true,
    }
}

/// The addresses of nodes, none of which is a pod's or at a peer's place. The range of Services may be a guess, and a wide one.
fn addresses(snapshot: &Snapshot, ranges: &NetworkRanges) -> Addresses {
    let remote = snapshot.peers.values().flat_map(|peer| peer.imported.values());
    let taken: Vec<IpNet> = ranges.pods.iter().chain(&ranges.external).chain(remote).copied().collect();
    nodes::addresses(&snapshot.nodes, |name| snapshot.is_gateway(name), &taken)
}

/// Everything that nodes have to know, and the peers that do not fit into it.
fn fabric(snapshot: &Snapshot, ranges: &NetworkRanges, addresses: &Addresses) -> (Fabric, BTreeMap<ClusterId, String>) {
    let gateway = |name: &str| {
        let (slot, found) = snapshot.in_use().find(|(_, one)| one.node == name)?;
        Some(Gateway { slot, number: gateway_number(&found.first_key.0) })
    };
    let node = |(name, view): (&String, &NodeView)| {
        let addresses = addresses.of.get(name).cloned().unwrap_or_default();
        (name.clone(), Node { addresses, pods: view.pods.clone(), mac: mac(name), gateway: gateway(name) })
    };
    let mut fabric = Fabric {
        pods: ranges.pods.clone(),
        external: ranges.external.clone(),
        api_servers: ranges.api_servers.clone(),
        nodes: snapshot.nodes.iter().map(node).collect(),
        peers: BTreeMap::new(),
        mtu: mtu(snapshot).into(),
    };
    let mut left_out = BTreeMap::new();
    let own: Vec<IpNet> = ranges.pods.iter().chain(&ranges.services).chain(&ranges.external).copied().collect();
    for (id, spec) in &snapshot.peers {
        match peer(id, spec, snapshot, &fabric, &own) {
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

/// A peer as the nodes see it. One whose prefixes would take those of others is nobody: a node's tables hold all peers or none.
fn peer(id: &ClusterId, spec: &TunnelEndpointSpec, snapshot: &Snapshot, fabric: &Fabric, own: &[IpNet]) -> Result<Peer, String> {
    let maps = PeerMaps::try_from(spec).map_err(|error| format!("its prefixes make no map: {error}"))?;
    let nodes = fabric.nodes.values().flat_map(|node| node.addresses.iter().copied().map(IpNet::from));
    let taken: Vec<IpNet> = fabric.remote().into_iter().chain(own.iter().copied()).chain(nodes).collect();
    for (here, _) in maps.imported.pairs() {
        if let Some(other) = taken.iter().find(|other| overlap(&here.0, other)) {
            return Err(format!("its prefix {} overlaps with {other}, which is in use here", here.0));
        }
    }
    let open = match spec.reach {
        Reach::Pods => Open::Everything,
        Reach::Offloaded => {
            let found = snapshot.openings.as_ref().and_then(|openings| openings.get(id)).cloned().unwrap_or_default();
            let is_in = |prefixes: &[IpNet], address: &IpAddr| prefixes.iter().any(|prefix| prefix.contains(address));
            // Nothing but pods is ever opened: those in the network of a node have the node's address. Pods of other peers are, where
            // the policies of both let them reach each other through us: then we show this one their prefixes.
            let is_pod = |address: &IpAddr| {
                let is_node = fabric.nodes.values().any(|node| node.addresses.contains(address));
                let is_shown = maps.exported.there(Here(*address)).is_some();
                !is_node && (is_in(&fabric.pods, address) || (is_shown && !is_in(own, address)))
            };
            Open::Only(found.into_iter().filter(is_pod).collect())
        }
    };
    Ok(Peer { maps, open, api_server: spec.api_server })
}

/// The smallest of what is set here and of what was agreed on with each peer: there is one device for all.
fn mtu(snapshot: &Snapshot) -> u16 {
    let agreed = snapshot.peers.values().map(|peer| peer.mtu).filter(|mtu| *mtu > 0);
    agreed.chain([snapshot.settings.mtu]).min().unwrap_or_default().max(LEAST_MTU)
}

/// The same for the same name, on whichever node it is asked.
fn mac(name: &str) -> Mac {
    let digest = Sha256::digest(name.as_bytes());
    Mac::of([digest[0], digest[1], digest[2], digest[3], digest[4]])
}

fn tunnel_end(snapshot: &Snapshot, fabric: &Fabric, this: &str, ours: &[PublicKey]) -> TunnelEnd {
    let addresses = fabric.nodes.get(this).map(|node| node.addresses.clone()).unwrap_or_default();
    let port = snapshot.settings.gateways.port;
    let has = |is_v4: bool| addresses.iter().any(|address| address.is_ipv4() == is_v4);
    let every: [(bool, IpAddr); 2] = [(true, Ipv4Addr::UNSPECIFIED.into()), (false, Ipv6Addr::UNSPECIFIED.into())];
    let listen = every.into_iter().filter(|(is_v4, _)| has(*is_v4)).map(|(_, address)| SocketAddr::new(address, port)).collect();
    let tls_port = snapshot.settings.gateways.tls_port;
    let mut end = TunnelEnd { mtu: mtu(snapshot), listen, tls_port, ..TunnelEnd::default() };
    let nodes = fabric.nodes.values().flat_map(|node| node.addresses.iter().copied().map(IpNet::from));
    let own = fabric.pods.iter().chain(&fabric.external).copied();
    let nowhere: Vec<IpNet> = fabric.remote().into_iter().chain(own).chain(nodes).collect();
    let usable = |address: &SocketAddr| has(address.is_ipv4()) && may_be_called(address, &nowhere);
    for (id, peer) in &fabric.peers {
        let Some(spec) = snapshot.peers.get(id) else { continue };
        let prefixes: Vec<IpNet> = peer.maps.imported.pairs().map(|(here, _)| here.0).collect();
        for gateway in &spec.gateways {
            // A key of ours, and one that is somebody else's, would make the tunnel refuse everybody. A guest has proved that it has its
            // key; what a peer says of its gateways proves nothing.
            let is_free = |key: &PublicKey| !end.owners.contains_key(key) && !snapshot.guests.contains_key(key);
            let Some(public_key) = own_key(gateway, id, snapshot, ours).filter(is_free) else { continue };
            end.owners.insert(public_key, id.clone());
            let tls = addresses_of(&gateway.tls, &snapshot.resolved).into_iter().filter(usable);
            let tls: Vec<SocketAddr> = tls.take(MOST_SERVERS).collect();
            if !tls.is_empty() {
                end.tls.insert(public_key, tls);
            }
            end.remotes.push(Remote {
                public_key,
                inward: None,
                first_key: gateway.first_key.as_ref().and_then(|key| key.parse().ok()),
                endpoint: addresses_of(&gateway.endpoints, &snapshot.resolved).into_iter().find(usable),
                relay: snapshot.relays.get(&public_key).copied(),
                keepalive: Some(KEEPALIVE),
                prefixes: prefixes.clone(),
                enabled: false,
            });
        }
    }
    choose(&mut end.remotes, &end.owners, &snapshot.speaking);
    let guests = snapshot.guests.iter().filter(|(guest, _)| !ours.contains(guest));
    end.remotes.extend(guests.map(|(guest, inward)| Remote {
        public_key: *guest,
        first_key: None,
        inward: Some(inward.clone()),
        endpoint: None,
        relay: None,
        keepalive: None,
        prefixes: Vec::new(),
        enabled: true,
    }));
    end
}

/// The key of a peer's gateway, unless it is ours or another peer's: whose it was before, theirs it is.
fn own_key(gateway: &GatewayAddress, id: &ClusterId, snapshot: &Snapshot, ours: &[PublicKey]) -> Option<PublicKey> {
    let key: PublicKey = gateway.public_key.parse().ok().filter(|key| !ours.contains(key))?;
    let claims = |spec: &TunnelEndpointSpec| spec.gateways.iter().any(|other| other.public_key == gateway.public_key);
    match snapshot.keys.get(&key) {
        Some(owner) if owner != id && snapshot.peers.get(owner).is_some_and(claims) => None,
        _ => Some(key),
    }
}

/// Where a gateway says that it is, as far as that is known.
fn addresses_of(said: &[String], resolved: &BTreeMap<String, Vec<SocketAddr>>) -> Vec<SocketAddr> {
    let of = |text: &String| match text.parse() {
        Ok(address) => vec![address],
        Err(_) => resolved.get(text).cloned().unwrap_or_default(),
    };
    said.iter().flat_map(of).collect()
}

/// A gateway is another machine, and not behind the tunnel that leads to it, nor one of ours: `nowhere`.
fn may_be_called(address: &SocketAddr, nowhere: &[IpNet]) -> bool {
    let ip = address.ip().to_canonical();
    address.port() != 0
        && !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && !is_link_local(ip)
        && !nowhere.iter().any(|prefix| prefix.contains(&ip))
}

/// Where a node finds its own helpers, such as the service that tells a machine of a cloud who it is.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The names among the addresses of peers' gateways; of each peer only so many.
pub fn names(peers: &BTreeMap<ClusterId, TunnelEndpointSpec>) -> BTreeSet<String> {
    let of_peer = |peer: &TunnelEndpointSpec| {
        let said = peer.gateways.iter().flat_map(|gateway| gateway.endpoints.iter().chain(&gateway.tls));
        said.filter(|text| text.parse::<SocketAddr>().is_err()).take(MOST_NAMES).cloned().collect::<Vec<_>>()
    };
    peers.values().flat_map(of_peer).collect()
}

#[cfg(test)]
mod tests;
