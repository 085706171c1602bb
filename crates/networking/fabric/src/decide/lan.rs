//! Decides which node announces this cluster on the local network, and over which of its
//! interfaces.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use liqo_api::Gateways;

use super::election::ActiveGateways;
use crate::view::NodeView;

/// Beginnings of the names of interfaces that belong to pods, containers, virtual machines and
/// tunnels.
const NOT_LAN: [&str; 22] = [
    "lo",
    "liqo",
    "veth",
    "cali",
    "cilium",
    "lxc",
    "flannel",
    "cni",
    "docker",
    "podman",
    "virbr",
    "br-",
    "kube",
    "nodelocaldns",
    "tun",
    "tap",
    "wg",
    "vxlan",
    "geneve",
    "ovn",
    "weave",
    "antrea",
];

/// A network interface of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // The kernel's flags.
pub struct NodeInterface {
    pub name: String,
    pub index: u32,
    pub is_up: bool,
    pub is_multicast: bool,
    pub is_loopback: bool,
    pub is_point_to_point: bool,
    pub addresses: Vec<IpAddr>,
}

impl NodeInterface {
    /// Whether clusters are looked for on this interface: the user `chose` it, or chose none and it
    /// looks like one of a local network.
    pub fn is_lan(&self, chosen: &[String], pods: &[IpNet]) -> bool {
        if !self.is_up || !self.is_multicast || self.addresses.is_empty() {
            return false;
        }
        if !chosen.is_empty() {
            return chosen.contains(&self.name);
        }
        let has_pod_address = self
            .addresses
            .iter()
            .any(|address| pods.iter().any(|prefix| prefix.contains(address)));
        // The host's ends of pods' interfaces have no other address, however the CNI calls them.
        let has_own_address = self.addresses.iter().any(|address| match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        });
        let is_of_others = NOT_LAN.iter().any(|start| self.name.starts_with(start));
        has_own_address
            && !(self.is_loopback || self.is_point_to_point || has_pod_address || is_of_others)
    }

    pub fn has_v4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4)
    }

    pub fn has_v6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }
}

/// Whether `this` node announces the cluster: the gateway with the lowest number. Without a network
/// there are no gateways; then it is the first by name of the nodes that may be gateways, and a
/// Ready one if there is one.
pub fn is_announcer(
    this: &str,
    network: bool,
    gateways: &ActiveGateways,
    settings: &Gateways,
    nodes: &BTreeMap<String, Arc<NodeView>>,
) -> bool {
    let announcer = if network {
        gateways
            .values()
            .next()
            .map(|gateway| gateway.node.as_str())
    } else {
        // The first by name of the Ready ones, or of all if none is.
        let selected = nodes
            .iter()
            .filter(|(_, node)| settings.selects_node(&node.labels));
        selected
            .min_by_key(|(_, node)| !node.is_ready)
            .map(|(name, _)| name.as_str())
    };
    announcer == Some(this)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> NodeInterface {
        NodeInterface {
            name: name.to_owned(),
            index: 2,
            is_up: true,
            is_multicast: true,
            addresses: vec![address.parse().unwrap()],
            ..NodeInterface::default()
        }
    }

    #[test]
    fn only_interfaces_of_a_local_network_are_used() {
        let pods = ["10.244.0.0/16".parse().unwrap()];
        for name in [
            "eth0", "ens3", "enp1s0", "bond0", "br0", "eth0.100", "wlan0",
        ] {
            assert!(interface(name, "192.168.1.2").is_lan(&[], &pods), "{name}");
        }
        for name in [
            "lo",
            "liqo-overlay",
            "veth12",
            "cali1",
            "cilium_host",
            "docker0",
            "br-0a1b",
            "cni0",
            "tunl0",
            "wg0",
        ] {
            assert!(!interface(name, "192.168.1.2").is_lan(&[], &pods), "{name}");
        }
        assert!(
            !interface("bridge", "10.244.1.1").is_lan(&[], &pods),
            "it has an address of pods"
        );
        assert!(
            !interface("eni0a1b2c", "fe80::1").is_lan(&[], &pods),
            "a pod's interface"
        );
        let eth = interface("eth0", "192.168.1.2");
        assert!(
            !NodeInterface {
                is_up: false,
                ..eth.clone()
            }
            .is_lan(&[], &pods)
        );
        assert!(
            !NodeInterface {
                is_multicast: false,
                ..eth.clone()
            }
            .is_lan(&[], &pods)
        );
        assert!(
            !NodeInterface {
                addresses: Vec::new(),
                ..eth.clone()
            }
            .is_lan(&[], &pods)
        );
        assert!(
            !NodeInterface {
                is_point_to_point: true,
                ..eth
            }
            .is_lan(&[], &pods)
        );
    }

    #[test]
    fn a_user_chooses_interfaces() {
        let chosen = ["docker0".to_owned()];
        assert!(interface("docker0", "172.17.0.1").is_lan(&chosen, &[]));
        assert!(!interface("eth0", "192.168.1.2").is_lan(&chosen, &[]));
    }

    #[test]
    fn one_node_announces_the_cluster() {
        let labels = |value: &str| BTreeMap::from([("edge".to_owned(), value.to_owned())]);
        let settings = Gateways {
            node_selector: labels("yes"),
            ..Gateways::default()
        };
        let announcers = |network, ready: &[&str]| {
            let node = |(name, edge): (&str, &str)| {
                let view = NodeView {
                    labels: labels(edge),
                    is_ready: ready.contains(&name),
                    ..NodeView::default()
                };
                (name.to_owned(), Arc::new(view))
            };
            let nodes: BTreeMap<_, _> = [("n1", "no"), ("n2", "yes"), ("n3", "yes"), ("n4", "yes")]
                .map(node)
                .into();
            let is = |node: &&String| {
                is_announcer(node, network, &ActiveGateways::new(), &settings, &nodes)
            };
            nodes.keys().filter(is).cloned().collect::<Vec<_>>()
        };
        assert_eq!(announcers(false, &["n1", "n2", "n3", "n4"]), ["n2"]);
        assert_eq!(
            announcers(false, &["n1", "n3", "n4"]),
            ["n3"],
            "n2 may be dead"
        );
        assert_eq!(
            announcers(false, &["n1"]),
            ["n2"],
            "none of those that may is Ready"
        );
        assert!(
            announcers(true, &["n2"]).is_empty(),
            "no gateway is known yet"
        );
    }
}
