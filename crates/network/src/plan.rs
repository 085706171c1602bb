//! What one node is to hold: links, routes, rules and nftables.
//!
//! Each node knows the way to the gateways over an overlay (VXLAN), and a gateway knows the way to the peers through its tunnel
//! device. The next hop in the overlay is the other node's own address, said to be on the link; so the overlay needs no
//! addresses of its own. Of IPv6 the kernel takes no address for such a hop that another device leads to: there it is the link-local
//! one that follows from the other node's Ethernet address.
//!
//! ```text
//!   pod -> node --(mark by bucket, table of a gateway)--> overlay -> gateway --(route)--> tunnel
//!   tunnel -> gateway --(own mark, own table)--> overlay -> node -> pod
//! ```
//!
//! Each gateway has a mark and a table. On the other nodes the table leads to it, on itself to them. The main table leads to the first
//! gateway, and on a gateway into its own tunnel; nftables mark what belongs to another one ([`crate::spread`]), and on a gateway
//! what comes from peers for other nodes. So with one gateway there is neither mark nor table elsewhere.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;
use liqo_api::{ApiServerEndpoint, ClusterId};

use crate::{
    map::PeerMaps,
    ruleset,
    space::single,
    spread::{self, Buckets},
};

/// Name of the overlay's device.
pub const OVERLAY: &str = "liqo.overlay";
/// Name of the tunnel's device on gateways.
pub const TUNNEL: &str = "liqo.tunnel";
/// Identifier of the overlay on the wire.
pub const OVERLAY_ID: u32 = 18_252;
/// UDP port of the overlay: not the usual one, which CNIs take.
pub const OVERLAY_PORT: u16 = 6_472;
/// Bytes that the overlay adds to a packet over IPv4 (20 more over IPv6).
pub const OVERLAY_OVERHEAD: u32 = 50;
/// The routing table of the first gateway; those of the others follow.
pub const FIRST_TABLE: u32 = 18_252;
/// Priority of the rules that lead marked packets to the tables of gateways.
pub const PRIORITY: u32 = 1_825;
/// So many gateways are in use at most: their numbers fit into [`MARK_MASK`], without the bit 0x80.
pub const MOST_GATEWAYS: u8 = 7;
/// The bits of a packet's mark that are ours. kube-proxy has 0xc000, Calico 0xffff0000, Cilium 0x0f00. The AWS VPC CNI reads 0x80, so
/// no packet leaves our chains with that bit set.
pub const MARK_MASK: u32 = 0xf0;
/// Metric of the routes that keep packets from leaving elsewhere while a device is gone.
pub const UNREACHABLE_METRIC: u32 = 4_000;

/// All that the nodes of a cluster have to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// Prefixes of our pods.
    pub pods: Vec<IpNet>,
    /// The external prefixes, at most one of each family.
    pub external: Vec<IpNet>,
    /// Our API servers, as peers may reach them.
    pub api_servers: Vec<ApiServerEndpoint>,
    /// Our nodes, without virtual ones.
    pub nodes: BTreeMap<String, Node>,
    /// Our peers.
    pub peers: BTreeMap<ClusterId, Peer>,
    /// What a packet may measure inside the tunnel.
    pub mtu: u32,
}

/// A node of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Prefixes of the pods on it, as far as they are known.
    pub pods: Vec<IpNet>,
    /// Its address in the overlay's Ethernet.
    pub mac: Mac,
    /// Its place among the gateways, if a tunnel ends here.
    pub gateway: Option<Gateway>,
}

impl Node {
    fn address(&self, is_v4: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == is_v4)
    }

    /// What routes of a family over the overlay name as the next hop, where this node is it.
    fn hop(&self, is_v4: bool) -> Option<IpAddr> {
        if is_v4 { self.address(true) } else { Some(self.mac.link_local().into()) }
    }
}

/// A node where a tunnel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gateway {
    /// What tells it from the others of this cluster: the number of its Lease, less than [`MOST_GATEWAYS`].
    pub slot: u8,
    /// What tells it from the others everywhere, by its public key ([`spread::gateway_number`]).
    pub number: u64,
}

impl Gateway {
    /// The mark of packets that belong to it, as far as they are not there by themselves; there, of those for other nodes.
    pub fn mark(self) -> u32 {
        u32::from(self.slot % MOST_GATEWAYS + 1) << 4
    }

    /// The table that leads to it, and there the one that leads to the other nodes.
    pub fn table(self) -> u32 {
        FIRST_TABLE + u32::from(self.slot % MOST_GATEWAYS)
    }

    fn rule(self, is_v6: bool, is_from_tunnel: bool) -> Rule {
        Rule { is_v6, mark: self.mark(), is_from_tunnel, table: self.table(), priority: PRIORITY }
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// An address of one's own making (locally administered), the same each time for the same node.
    pub fn of(hash: [u8; 5]) -> Self {
        let mut bytes = [0x0a; 6];
        bytes[1..].copy_from_slice(&hash);
        Self(bytes)
    }

    /// The link-local address that follows from it (RFC 4291, appendix A).
    fn link_local(self) -> Ipv6Addr {
        let mac = self.0;
        let words = [[mac[0] ^ 2, mac[1]], [mac[2], 0xff], [0xfe, mac[3]], [mac[4], mac[5]]].map(u16::from_be_bytes);
        Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&bytes.join(":"))
    }
}

/// A peer as the nodes see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// What it and we show each other.
    pub maps: PeerMaps,
    /// Which of our addresses it may open connections to.
    pub open: Open,
    /// Whether it may reach our API servers.
    pub api_server: bool,
}

/// What is open to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// Everything that is exported to it.
    Everything,
    /// These addresses of ours.
    Only(std::collections::BTreeSet<IpAddr>),
}

impl Default for Open {
    fn default() -> Self {
        Self::Only(std::collections::BTreeSet::new())
    }
}

/// What one node is to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlan {
    /// The overlay, where there is another node to reach.
    pub overlay: Option<Overlay>,
    /// Whether the tunnel's device is to be here, and its MTU.
    pub tunnel: Option<u32>,
    /// Routes, in no particular order.
    pub routes: Vec<Route>,
    /// Rules that choose a table.
    pub rules: Vec<Rule>,
    /// nftables, one script for each table.
    pub tables: Vec<ruleset::Table>,
}

/// The overlay's device and the other nodes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// The address that its packets are sent from.
    pub local: IpAddr,
    /// Its own Ethernet address.
    pub mac: Mac,
    /// What a packet in it may measure.
    pub mtu: u32,
    /// The other nodes.
    pub neighbours: Vec<Neighbour>,
}

/// Another node in the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Where the overlay's packets for it are sent.
    pub outer: IpAddr,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The addresses that routes name as the next hop.
    pub hops: Vec<IpAddr>,
}

/// A route of one of our own tables or the main one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Where to.
    pub destination: IpNet,
    /// That of a gateway, or `None` for the main table.
    pub table: Option<u32>,
    /// By which way.
    pub way: Way,
}

/// The way of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Into the tunnel.
    Tunnel {
        /// The source of what starts on this node.
        source: Option<IpAddr>,
    },
    /// To another node.
    Overlay {
        /// Its address.
        hop: IpAddr,
        /// The source of what starts on this node.
        source: Option<IpAddr>,
        /// What a packet may measure.
        mtu: Option<u32>,
    },
    /// Nowhere: the metric is [`UNREACHABLE_METRIC`].
    Unreachable,
}

/// Marked packets look into another table first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Whether it is for IPv6.
    pub is_v6: bool,
    /// The mark, within [`MARK_MASK`], of the packets that it is for.
    pub mark: u32,
    /// Whether it is only for those that come out of the tunnel, and for checks of the sources of those that go into it. Where an
    /// overlay's packet is sent as a whole, its mark is still there, and is to be no matter.
    pub is_from_tunnel: bool,
    /// The table.
    pub table: u32,
    /// Its priority.
    pub priority: u32,
}

impl Fabric {
    /// The prefixes of peers in our space.
    pub fn remote(&self) -> Vec<IpNet> {
        let mut all: Vec<IpNet> =
            self.peers.values().flat_map(|peer| peer.maps.imported.pairs().map(|(here, _)| here.0)).collect();
        all.sort();
        all
    }

    /// Whether there are prefixes of peers of IPv4, or of IPv6.
    pub fn has_remote(&self, is_v4: bool) -> bool {
        self.peers.values().any(|peer| peer.maps.imported.pairs().any(|(here, _)| here.0.addr().is_ipv4() == is_v4))
    }

    /// Whether the overlay runs over IPv4, else over IPv6: what most nodes have, the same for all of them.
    pub fn overlay_is_v4(&self) -> bool {
        let having = |is_v4| self.nodes.values().filter(|node| node.address(is_v4).is_some()).count();
        having(true) >= having(false)
    }

    /// The gateways, by their slots.
    pub fn gateways(&self) -> Vec<(&str, Gateway)> {
        let mut all: Vec<(&str, Gateway)> =
            self.nodes.iter().filter_map(|(name, node)| Some((name.as_str(), node.gateway?))).collect();
        all.sort_by_key(|(_, gateway)| *gateway);
        all
    }

    /// The gateway that the main table of this node leads to: itself, if it is one, else the first.
    pub fn nearest(&self, name: &str) -> Option<(&str, Gateway)> {
        let all = self.gateways();
        all.iter().find(|(gateway, _)| *gateway == name).or(all.first()).copied()
    }

    /// What the gateway on this node carries; nothing where there is none.
    pub fn carried_by(&self, name: &str) -> Buckets {
        let numbers: Vec<u64> = self.gateways().iter().map(|(_, gateway)| gateway.number).collect();
        let own = self.nodes.get(name).and_then(|node| node.gateway);
        own.map(|own| spread::carried(own.number, &numbers)).unwrap_or_default()
    }

    /// What this node is to hold. A node that is not known, and one of a cluster without peers, holds nothing. Without a gateway
    /// what is for peers goes nowhere, instead of where other packets go.
    pub fn plan(&self, name: &str) -> NodePlan {
        let (Some(this), false) = (self.nodes.get(name), self.peers.is_empty()) else { return NodePlan::default() };
        let is_gateway = this.gateway.is_some();
        let nearest = self.nearest(name);
        let mut plan = NodePlan {
            overlay: self.overlay(name, this),
            tunnel: is_gateway.then_some(self.mtu),
            tables: ruleset::tables(self, name),
            ..NodePlan::default()
        };
        for destination in self.remote() {
            let is_v4 = destination.addr().is_ipv4();
            let source = this.address(is_v4);
            let over_there = |gateway: &str| {
                let hop = self.nodes[gateway].hop(is_v4)?;
                Some(Way::Overlay { hop, source, mtu: Some(self.mtu) })
            };
            let usual = if is_gateway { Some(Way::Tunnel { source }) } else { nearest.and_then(|(first, _)| over_there(first)) };
            plan.routes.push(Route { destination, table: None, way: Way::Unreachable });
            plan.routes.extend(usual.map(|way| Route { destination, table: None, way }));
            for (other, gateway) in self.gateways().into_iter().filter(|one| Some(*one) != nearest) {
                let way = over_there(other);
                plan.routes.extend(way.map(|way| Route { destination, table: Some(gateway.table()), way }));
                let rule = gateway.rule(!is_v4, false);
                if !plan.rules.contains(&rule) {
                    plan.rules.push(rule);
                }
            }
        }
        if let Some(gateway) = this.gateway {
            self.to_nodes(name, gateway, &mut plan);
        }
        plan
    }

    fn overlay(&self, name: &str, this: &Node) -> Option<Overlay> {
        // Nodes that are no gateways do not talk to each other here.
        let others =
            self.nodes.iter().filter(|(other, node)| *other != name && (node.gateway.is_some() || this.gateway.is_some()));
        let is_v4 = self.overlay_is_v4();
        let local = this.address(is_v4)?;
        let neighbour = |(_, node): (&String, &Node)| {
            let hops = [true, false].into_iter().filter(|is_v4| self.has_remote(*is_v4)).filter_map(|is_v4| node.hop(is_v4));
            Some(Neighbour { outer: node.address(is_v4)?, mac: node.mac, hops: hops.collect() })
        };
        let neighbours: Vec<Neighbour> = others.filter_map(neighbour).collect();
        (!neighbours.is_empty()).then_some(Overlay { local, mac: this.mac, mtu: self.mtu, neighbours })
    }

    /// What comes from peers goes to the other nodes over the overlay, as strict checks of the return path there want it.
    fn to_nodes(&self, name: &str, gateway: Gateway, plan: &mut NodePlan) {
        let reached: Vec<Mac> = plan.overlay.iter().flat_map(|overlay| &overlay.neighbours).map(|one| one.mac).collect();
        let others: Vec<&Node> = self
            .nodes
            .iter()
            .filter(|(other, node)| *other != name && reached.contains(&node.mac))
            .map(|(_, node)| node)
            .collect();
        for is_v4 in [true, false].into_iter().filter(|is_v4| self.has_remote(*is_v4)) {
            let before = plan.routes.len();
            for (node, hop) in others.iter().filter_map(|node| Some((node, node.hop(is_v4)?))) {
                let pods = node.pods.iter().copied().filter(|prefix| prefix.addr().is_ipv4() == is_v4);
                plan.routes.extend(pods.chain(node.address(is_v4).map(single)).map(|destination| Route {
                    destination,
                    table: Some(gateway.table()),
                    way: Way::Overlay { hop, source: None, mtu: None },
                }));
            }
            plan.rules.extend((plan.routes.len() > before).then(|| gateway.rule(!is_v4, true)));
        }
    }
}

#[cfg(test)]
mod tests;
