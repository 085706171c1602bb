//! Address spaces. Each cluster has its own, and the same address means different things in two of
//! them. So types tell them apart: [`Here`] is as this cluster knows an address, [`There`] as the
//! peer knows it.

use std::net::IpAddr;

use ipnet::IpNet;

/// An address or prefix as this cluster knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Here<T>(pub T);

/// An address or prefix as the peer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct There<T>(pub T);

/// Whether two prefixes have an address in common.
pub fn prefixes_overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Moves an address from one prefix to another one; its host part stays. `None` if `address` is not
/// in `from`, or if the prefixes differ in family or length.
pub fn translate_address(address: IpAddr, from: &IpNet, to: &IpNet) -> Option<IpAddr> {
    if !from.contains(&address) || from.prefix_len() != to.prefix_len() {
        return None;
    }
    match (address, from.network(), to.network()) {
        (IpAddr::V4(address), IpAddr::V4(from), IpAddr::V4(to)) => Some(IpAddr::V4(
            (address.to_bits() - from.to_bits() + to.to_bits()).into(),
        )),
        (IpAddr::V6(address), IpAddr::V6(from), IpAddr::V6(to)) => Some(IpAddr::V6(
            (address.to_bits() - from.to_bits() + to.to_bits()).into(),
        )),
        _ => None,
    }
}

/// Whether most nodes have an address in this range, which is then wrong. If only a few have one,
/// their addresses are wrong.
pub fn most_are_in<'a>(nodes: impl ExactSizeIterator<Item = &'a [IpAddr]>, range: &IpNet) -> bool {
    let all = nodes.len();
    nodes
        .filter(|addresses| addresses.iter().any(|address| range.contains(address)))
        .count()
        * 2
        > all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::net;

    fn moved(address: &str, from: &str, to: &str) -> Option<String> {
        let (address, from, to) = (
            address.parse().unwrap(),
            from.parse().unwrap(),
            to.parse().unwrap(),
        );
        translate_address(address, &from, &to).map(|address| address.to_string())
    }

    #[test]
    fn the_host_part_stays() {
        assert_eq!(
            moved("10.244.3.9", "10.244.0.0/16", "10.71.0.0/16").as_deref(),
            Some("10.71.3.9")
        );
        assert_eq!(
            moved("fd00::3:9", "fd00::/64", "fd11:0:0:7::/64").as_deref(),
            Some("fd11::7:0:0:3:9")
        );
        assert_eq!(
            moved("192.0.2.7", "192.0.2.7/32", "10.70.0.2/32").as_deref(),
            Some("10.70.0.2")
        );
    }

    #[test]
    fn an_address_outside_of_the_prefix_is_not_translated() {
        assert_eq!(moved("10.245.0.1", "10.244.0.0/16", "10.71.0.0/16"), None);
        assert_eq!(moved("10.244.0.1", "10.244.0.0/16", "10.71.0.0/17"), None);
        assert_eq!(moved("10.0.0.1", "10.0.0.0/8", "fd00::/8"), None);
    }

    #[test]
    fn prefixes_overlap_when_one_is_in_the_other() {
        assert!(prefixes_overlap(&net("10.0.0.0/8"), &net("10.9.0.0/16")));
        assert!(prefixes_overlap(&net("10.9.0.0/16"), &net("10.0.0.0/8")));
        assert!(!prefixes_overlap(&net("10.8.0.0/16"), &net("10.9.0.0/16")));
        assert!(!prefixes_overlap(&net("0.0.0.0/0"), &net("::/0")));
    }
}
