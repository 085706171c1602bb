//! A cluster's network as all its nodes see it: the nodes, the gateways among them, and the peers.
//! [`Fabric`] is the input of each node's plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::NodeSpec;
use liqo_api::{ApiServerEndpoint, ClusterId};

use crate::{
    gateways::MAX_GATEWAYS,
    map::PeerMaps,
    spread::{self, Buckets},
};

/// Name of the overlay's device.
pub const OVERLAY: &str = "liqo.overlay";
/// Name of the tunnel's device on gateways.
pub const TUNNEL: &str = "liqo.tunnel";
/// VXLAN network identifier of the overlay.
pub const OVERLAY_ID: u32 = 18_252;
/// UDP port of the overlay: not the usual one, which CNIs take.
pub const OVERLAY_PORT: u16 = 6_472;
/// The routing table of the first gateway; those of the others follow.
pub const FIRST_TABLE: u32 = 18_252;
/// The bits of a packet's mark that are ours. kube-proxy has 0xc000, Calico 0xffff0000, Cilium
/// 0x0f00. The AWS VPC CNI reads 0x80, so no packet leaves our chains with that bit set.
pub const MARK_MASK: u32 = 0xf0;

/// The input of every node's plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// Prefixes of our pods.
    pub pods: Vec<IpNet>,
    /// The external prefixes, at most one of each family.
    pub external: Vec<IpNet>,
    /// Our API servers, as peers may reach them.
    pub api_servers: Vec<ApiServerEndpoint>,
    /// Our nodes, without virtual ones.
    pub nodes: BTreeMap<String, FabricNode>,
    pub peers: BTreeMap<ClusterId, PeerNetwork>,
    /// MTU of the tunnel's and the overlay's device, in bytes.
    pub mtu: u32,
}

/// A node of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricNode {
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Prefixes of the pods on it, as far as they are known.
    pub pods: Vec<IpNet>,
    /// Its MAC address in the overlay.
    pub mac: MacAddress,
    /// Set if a tunnel ends on this node.
    pub gateway: Option<FabricGateway>,
}

/// The prefixes of a node's pods, if the cluster assigns them.
pub fn pod_prefixes(spec: Option<NodeSpec>) -> Vec<IpNet> {
    let spec = spec.unwrap_or_default();
    let several = spec.pod_cidrs.unwrap_or_default();
    let all = if several.is_empty() {
        spec.pod_cidr.into_iter().collect()
    } else {
        several
    };
    all.iter()
        .filter_map(|prefix| prefix.parse().ok())
        .collect()
}

impl FabricNode {
    pub(crate) fn address(&self, is_v4: bool) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|address| address.is_ipv4() == is_v4)
    }

    /// The next hop of routes of a family that lead to this node over the overlay.
    pub(crate) fn next_hop(&self, is_v4: bool) -> Option<IpAddr> {
        if is_v4 {
            self.address(true)
        } else {
            Some(self.mac.link_local().into())
        }
    }
}

/// A node where a tunnel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FabricGateway {
    /// The number of its Lease, less than [`MAX_GATEWAYS`]. Unique in this cluster.
    pub slot: u8,
    /// Derived from its public key ([`spread::gateway_number`]), so unique everywhere.
    pub number: u64,
}

impl FabricGateway {
    /// The mark of packets that other nodes send to this gateway. On the gateway itself, the mark
    /// of packets for other nodes.
    pub fn mark(self) -> u32 {
        u32::from(self.slot % MAX_GATEWAYS + 1) << 4
    }

    /// The table whose routes lead to this gateway. On the gateway itself they lead to the other
    /// nodes.
    pub fn table(self) -> u32 {
        FIRST_TABLE + u32::from(self.slot % MAX_GATEWAYS)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// A locally administered address that is derived from a hash of the node's name.
    pub fn from_hash(hash: [u8; 5]) -> Self {
        let mut bytes = [0x0a; 6];
        bytes[1..].copy_from_slice(&hash);
        Self(bytes)
    }

    /// The IPv6 link-local address that is derived from it (RFC 4291, appendix A).
    fn link_local(self) -> Ipv6Addr {
        let mac = self.0;
        let words = [
            [mac[0] ^ 2, mac[1]],
            [mac[2], 0xff],
            [0xfe, mac[3]],
            [mac[4], mac[5]],
        ]
        .map(u16::from_be_bytes);
        Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3])
    }
}

impl std::fmt::Display for MacAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&bytes.join(":"))
    }
}

/// A peer as the nodes see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNetwork {
    /// The prefixes that the peer and we export to each other.
    pub maps: PeerMaps,
    /// MTUs of the ways to its prefixes in our address space, in bytes: those that are lower than
    /// [`Fabric::mtu`].
    pub mtus: BTreeMap<IpNet, u32>,
    /// The addresses of ours that it may open connections to.
    pub reachable: ReachableScope,
    /// The addresses of its pods that may reach our API servers; `None` if no pod there ever may.
    /// Only gateways know the addresses.
    pub api_server: Option<BTreeSet<IpAddr>>,
    /// Whether it reaches other peers of which this is true, too, through us.
    pub transit: bool,
    /// Our consumers whose pods we offloaded on to it.
    pub customers: BTreeSet<ClusterId>,
    /// The addresses of the pods that it offloaded to us, here and at other peers. Only gateways
    /// know them.
    pub offloaded: BTreeSet<IpAddr>,
}

/// The addresses that a peer may open connections to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReachableScope {
    /// Everything that is exported to it.
    Everything,
    /// These addresses of ours.
    Only {
        all: BTreeSet<IpAddr>,
        /// Further ones that only connections that exist may reach, until their pod ends them.
        established: BTreeSet<IpAddr>,
    },
}

impl ReachableScope {
    /// These addresses, and no others by connections that exist.
    pub fn only_addresses(all: impl IntoIterator<Item = IpAddr>) -> Self {
        Self::Only {
            all: all.into_iter().collect(),
            established: BTreeSet::new(),
        }
    }
}

impl Default for ReachableScope {
    fn default() -> Self {
        Self::only_addresses([])
    }
}

impl Fabric {
    /// The prefixes of peers in our address space.
    pub fn remote(&self) -> Vec<IpNet> {
        let mut all: Vec<IpNet> = self
            .peers
            .values()
            .flat_map(|peer| peer.maps.imported.pairs().map(|(here, _)| here.0))
            .collect();
        all.sort();
        all
    }

    /// The peers whose pods we offloaded on to another peer.
    pub fn customers(&self) -> BTreeMap<&ClusterId, &PeerNetwork> {
        let mut customers = BTreeMap::new();
        for (id, peer) in &self.peers {
            let mut others = self.peers.iter().filter(|(other, _)| *other != id);
            if others.any(|(_, other)| other.customers.contains(id)) {
                customers.insert(id, peer);
            }
        }
        customers
    }

    /// Whether two peers reach through us what each exports to us.
    pub fn is_transit(&self, one: &ClusterId, other: &ClusterId) -> bool {
        [one, other]
            .into_iter()
            .all(|id| self.peers.get(id).is_some_and(|peer| peer.transit))
    }

    /// Whether peers have prefixes of this family.
    pub fn has_remote(&self, is_v4: bool) -> bool {
        self.peers.values().any(|peer| {
            peer.maps
                .imported
                .pairs()
                .any(|(here, _)| here.0.addr().is_ipv4() == is_v4)
        })
    }

    /// Whether the overlay runs over IPv4, else over IPv6. All nodes choose the family that most
    /// nodes have.
    pub fn overlay_is_v4(&self) -> bool {
        let [v4, v6] = [true, false].map(|is_v4| {
            let nodes = self.nodes.values();
            nodes.filter(|node| node.address(is_v4).is_some()).count()
        });
        v4 >= v6
    }

    /// The gateways in the order of their slots.
    pub fn gateways(&self) -> Vec<(&str, FabricGateway)> {
        let mut all: Vec<(&str, FabricGateway)> = self
            .nodes
            .iter()
            .filter_map(|(name, node)| Some((name.as_str(), node.gateway?)))
            .collect();
        all.sort_by_key(|(_, gateway)| *gateway);
        all
    }

    /// The gateway that the main table of this node leads to: itself if it is one, else the first.
    pub fn nearest_gateway(&self, name: &str) -> Option<(&str, FabricGateway)> {
        let all = self.gateways();
        all.iter()
            .find(|(gateway, _)| *gateway == name)
            .or(all.first())
            .copied()
    }

    /// The buckets that the gateway on this node carries; none if there is no gateway.
    pub fn carried_by(&self, name: &str) -> Buckets {
        let numbers: Vec<u64> = self
            .gateways()
            .iter()
            .map(|(_, gateway)| gateway.number)
            .collect();
        let own = self.nodes.get(name).and_then(|node| node.gateway);
        own.map(|own| spread::carried_buckets(own.number, &numbers))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mac_address_of_a_node_is_locally_administered() {
        assert_eq!(
            MacAddress::from_hash([0xff, 0, 1, 2, 3]).to_string(),
            "0a:ff:00:01:02:03"
        );
    }
}
