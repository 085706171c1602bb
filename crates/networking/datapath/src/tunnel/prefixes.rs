//! Finds the remotes for an address: those with the longest prefix that contains it.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    net::IpAddr,
    ops::BitAnd,
};

use ipnet::IpNet;

/// Prefixes with their values. Unlike in the kernel's WireGuard, where a prefix belongs to one
/// peer, a prefix may have several values: the gateways of one cluster.
#[derive(Debug)]
pub(super) struct PrefixTable<T> {
    v4: PrefixesByMask<u32, T>,
    v6: PrefixesByMask<u128, T>,
}

/// The masks in use, longest first, each with its prefixes. There are few masks even with many
/// prefixes.
type PrefixesByMask<A, T> = Vec<(A, HashMap<A, Vec<T>>)>;

impl<T: Copy + PartialEq> PrefixTable<T> {
    pub(super) fn new(entries: impl IntoIterator<Item = (IpNet, T)>) -> Self {
        let (mut v4, mut v6) = (BTreeMap::new(), BTreeMap::new());
        for (prefix, value) in entries {
            let values = match prefix {
                IpNet::V4(net) => {
                    mask_entry(&mut v4, net.netmask().to_bits(), net.network().to_bits())
                }
                IpNet::V6(net) => {
                    mask_entry(&mut v6, net.netmask().to_bits(), net.network().to_bits())
                }
            };
            if !values.contains(&value) {
                values.push(value);
            }
        }
        Self {
            v4: v4.into_iter().rev().collect(),
            v6: v6.into_iter().rev().collect(),
        }
    }

    /// The values of the longest prefix that contains the address.
    pub(super) fn longest_match(&self, address: IpAddr) -> &[T] {
        match address {
            IpAddr::V4(address) => longest_in_family(&self.v4, address.to_bits()),
            IpAddr::V6(address) => longest_in_family(&self.v6, address.to_bits()),
        }
    }
}

fn longest_in_family<A: Copy + BitAnd<Output = A> + Eq + Hash, T>(
    family: &PrefixesByMask<A, T>,
    address: A,
) -> &[T] {
    let found = family
        .iter()
        .find_map(|(mask, prefixes)| prefixes.get(&(address & *mask)));
    found.map_or(&[], Vec::as_slice)
}

fn mask_entry<A: Ord + Hash, T>(
    family: &mut BTreeMap<A, HashMap<A, Vec<T>>>,
    mask: A,
    network: A,
) -> &mut Vec<T> {
    family.entry(mask).or_default().entry(network).or_default()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn table(entries: &[(&str, usize)]) -> PrefixTable<usize> {
        PrefixTable::new(
            entries
                .iter()
                .map(|(prefix, value)| (prefix.parse().unwrap(), *value)),
        )
    }

    #[test]
    fn the_longest_prefix_wins() {
        let table = table(&[
            ("10.0.0.0/8", 1),
            ("10.1.0.0/16", 2),
            ("0.0.0.0/0", 3),
            ("fd00::/8", 4),
            ("fd00:1::/32", 5),
        ]);
        for (address, value) in [
            ("10.9.9.9", 1),
            ("10.1.9.9", 2),
            ("8.8.8.8", 3),
            ("fd01::1", 4),
            ("fd00:1::1", 5),
        ] {
            assert_eq!(
                table.longest_match(address.parse().unwrap()),
                [value],
                "{address}"
            );
        }
        assert!(
            table
                .longest_match("2001:db8::1".parse().unwrap())
                .is_empty()
        );
    }

    #[test]
    fn several_gateways_have_one_prefix() {
        let table = table(&[("10.1.0.0/16", 1), ("10.1.0.0/16", 2), ("10.1.0.0/16", 1)]);
        assert_eq!(table.longest_match("10.1.2.3".parse().unwrap()), [1, 2]);
    }

    #[test]
    fn bits_behind_the_prefix_do_not_matter() {
        assert_eq!(
            table(&[("10.1.2.3/16", 1)]).longest_match("10.1.9.9".parse().unwrap()),
            [1]
        );
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_a_search_through_all(
            entries in proptest::collection::vec((any::<u16>(), 0u8..=16, any::<bool>()), 0..40),
            addresses in proptest::collection::vec((any::<u16>(), any::<bool>()), 1..40),
        ) {
            // Few leading bits, so that much overlaps.
            let v4 = |bits: u16| IpAddr::V4(Ipv4Addr::from_bits(u32::from(bits) << 16));
            let v6 = |bits: u16| IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits) << 112));
            let address = |bits: u16, six: bool| if six { v6(bits) } else { v4(bits) };
            let entries: Vec<_> = entries
                .into_iter()
                .enumerate()
                .map(|(value, (bits, length, six))| (IpNet::new(address(bits, six), length).unwrap().trunc(), value))
                .collect();
            let table = PrefixTable::new(entries.iter().copied());
            for (bits, six) in addresses {
                let address = address(bits, six);
                let longest = entries.iter().filter(|(net, _)| net.contains(&address)).map(|(net, _)| net.prefix_len()).max();
                let expected: Vec<_> = entries
                    .iter()
                    .filter(|(net, _)| net.contains(&address) && Some(net.prefix_len()) == longest)
                    .map(|(_, value)| *value)
                    .collect();
                prop_assert_eq!(table.longest_match(address), expected);
            }
        }
    }
}
