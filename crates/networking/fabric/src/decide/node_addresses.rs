//! Selects the addresses of our nodes that are used. Each node reports its own, so a wrong address
//! of one node must not harm the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_network_model::space::most_are_in;

use crate::view::NodeView;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The addresses of each node that are used.
    pub accepted: BTreeMap<String, Vec<IpAddr>>,
    /// Nodes with an address that cannot be right, and why.
    pub left_out: BTreeMap<String, String>,
}

/// Leaves out addresses within a range that is `taken` by something else, unless most nodes are in
/// it: then the range is wrong. If several nodes report one address, gateways keep it before
/// others, and then the first node.
pub fn node_addresses(
    nodes: &BTreeMap<String, NodeView>,
    is_gateway: impl Fn(&str) -> bool,
    taken: &[IpNet],
) -> NodeAddresses {
    let taken: Vec<&IpNet> = taken
        .iter()
        .filter(|range| {
            let addresses = nodes.values().map(|view| view.addresses.as_slice());
            !most_are_in(addresses, range)
        })
        .collect();
    let (gateways, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|(name, _)| is_gateway(name));
    let (mut found, mut known) = (NodeAddresses::default(), BTreeSet::new());
    for (name, view) in gateways.into_iter().chain(others) {
        let mut kept = Vec::new();
        for address in &view.addresses {
            let range = taken.iter().find(|range| range.contains(address));
            let wrong = match range {
                Some(range) => Some(format!(
                    "its address {address} is within {range}, which is used by something else"
                )),
                None if !is_machine_address(*address) => {
                    Some(format!("{address} cannot be a node's address"))
                }
                None if !known.insert(*address) => {
                    Some(format!("its address {address} is also another node's"))
                }
                None => None,
            };
            match wrong {
                Some(wrong) => {
                    found.left_out.insert(name.clone(), wrong);
                }
                None => kept.push(*address),
            }
        }
        found.accepted.insert(name.clone(), kept);
    }
    found
}

fn is_machine_address(address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !is_link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(all: &[(&str, &[&str])]) -> BTreeMap<String, NodeView> {
        let view = |addresses: &[&str]| NodeView {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..NodeView::default()
        };
        all.iter()
            .map(|(name, addresses)| ((*name).to_owned(), view(addresses)))
            .collect()
    }

    fn count(nodes: &BTreeMap<String, NodeView>, gateway: &str) -> Vec<usize> {
        let taken = ["10.64.0.0/16", "10.244.0.0/16"].map(|text| text.parse().unwrap());
        node_addresses(nodes, |name| name == gateway, &taken)
            .accepted
            .values()
            .map(Vec::len)
            .collect()
    }

    #[test]
    fn an_address_within_a_taken_range_is_left_out_unless_most_nodes_are_there() {
        let one = nodes(&[
            ("a", &["172.18.0.2", "fd00::2"]),
            ("b", &["10.64.0.9", "fd00::3"]),
            ("c", &["127.0.0.1"]),
        ]);
        assert_eq!(count(&one, ""), [2, 1, 0]);
        let most = nodes(&[
            ("a", &["10.244.0.2"]),
            ("b", &["10.244.0.3"]),
            ("c", &["172.18.0.2"]),
        ]);
        assert_eq!(count(&most, ""), [1, 1, 1]);
    }

    #[test]
    fn if_two_nodes_have_one_address_the_gateway_keeps_it_or_the_first() {
        let both = nodes(&[("a", &["172.18.0.2"]), ("b", &["172.18.0.2"])]);
        assert_eq!(count(&both, "b"), [0, 1]);
        assert_eq!(count(&both, ""), [1, 0]);
        let left_out = node_addresses(&both, |_| false, &[]).left_out;
        assert!(left_out["b"].contains("172.18.0.2"), "{left_out:?}");
    }
}
