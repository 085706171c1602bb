//! Which addresses of our nodes count. Each node says its own, so that what one says must not stop the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use crate::view::NodeView;

/// What counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The addresses of each node.
    pub of: BTreeMap<String, Vec<IpAddr>>,
    /// What nodes say and cannot be, and why.
    pub left_out: BTreeMap<String, String>,
}

/// The addresses of `nodes` but those within a range that is `taken` by something else, unless most nodes are there: then it is the
/// range that is wrong. Of several nodes with one address the first keeps it, and a gateway before others.
pub fn addresses(nodes: &BTreeMap<String, NodeView>, is_gateway: impl Fn(&str) -> bool, taken: &[IpNet]) -> Addresses {
    let is_within = |view: &NodeView, range: &IpNet| view.addresses.iter().any(|address| range.contains(address));
    let holds_most = |range: &IpNet| nodes.values().filter(|view| is_within(view, range)).count() * 2 > nodes.len();
    let taken: Vec<&IpNet> = taken.iter().filter(|range| !holds_most(range)).collect();
    let (gateways, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|(name, _)| is_gateway(name));
    let (mut found, mut known) = (Addresses::default(), BTreeSet::new());
    for (name, view) in gateways.into_iter().chain(others) {
        let mut kept = Vec::new();
        for address in &view.addresses {
            let range = taken.iter().find(|range| range.contains(address));
            let wrong = match range {
                Some(range) => Some(format!("its address {address} is within {range}, which something else has")),
                None if !is_of_a_machine(*address) => Some(format!("{address} is no machine's address")),
                None if !known.insert(*address) => Some(format!("its address {address} is another node's, too")),
                None => None,
            };
            match wrong {
                Some(wrong) => {
                    found.left_out.insert(name.clone(), wrong);
                }
                None => kept.push(*address),
            }
        }
        found.of.insert(name.clone(), kept);
    }
    found
}

fn is_of_a_machine(address: IpAddr) -> bool {
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
        all.iter().map(|(name, addresses)| ((*name).to_owned(), view(addresses))).collect()
    }

    fn count(nodes: &BTreeMap<String, NodeView>, gateway: &str) -> Vec<usize> {
        let taken = ["10.64.0.0/16", "10.244.0.0/16"].map(|text| text.parse().unwrap());
        addresses(nodes, |name| name == gateway, &taken).of.values().map(Vec::len).collect()
    }

    #[test]
    fn an_address_where_no_node_can_be_is_left_out_unless_most_are_there() {
        let one = nodes(&[("a", &["172.18.0.2", "fd00::2"]), ("b", &["10.64.0.9", "fd00::3"]), ("c", &["127.0.0.1"])]);
        assert_eq!(count(&one, ""), [2, 1, 0]);
        let most = nodes(&[("a", &["10.244.0.2"]), ("b", &["10.244.0.3"]), ("c", &["172.18.0.2"])]);
        assert_eq!(count(&most, ""), [1, 1, 1]);
    }

    #[test]
    fn of_two_nodes_with_one_address_the_gateway_keeps_it_or_the_first() {
        let both = nodes(&[("a", &["172.18.0.2"]), ("b", &["172.18.0.2"])]);
        assert_eq!(count(&both, "b"), [0, 1]);
        assert_eq!(count(&both, ""), [1, 0]);
        let left_out = addresses(&both, |_| false, &[]).left_out;
        assert!(left_out["b"].contains("172.18.0.2"), "{left_out:?}");
    }
}
