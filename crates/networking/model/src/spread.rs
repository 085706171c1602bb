//! Chooses which of several gateways carries a packet.
//!
//! Gateways remember translations, so both directions of a flow must pass the same gateway of each
//! side, although each node sees the flow with other addresses. All views have the low bits of
//! addresses in common, because prefix maps keep them. So the low bits choose: every node, on
//! either side and for either direction of a flow, computes the same *bucket*, and the same gateway
//! of each cluster for that bucket.
//!
//! ```text
//!   bucket = low four bits of the source XOR low four bits of the destination
//!   a pod's node, its gateway, the gateway and the node of the other side: 10.244.1.5 -> 10.65.0.9: 5 ^ 9 = 12
//! ```
//!
//! The buckets of a gateway that leaves go to the others, and no other bucket moves.

use std::net::IpAddr;

use ipnet::IpNet;

pub const BUCKETS: u8 = 1 << LOW_BITS;
/// The number of low bits of an address that choose the bucket.
pub const LOW_BITS: u8 = 4;

/// A set of buckets, one bit for each.
pub type Buckets = u16;

/// The bits of an address that choose the bucket: every prefix map keeps them.
pub fn low_bits(address: IpAddr) -> u8 {
    let last = match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    };
    last % BUCKETS
}

/// The bucket of packets between two addresses, in either direction.
pub fn bucket_between(one: IpAddr, other: IpAddr) -> u8 {
    low_bits(one) ^ low_bits(other)
}

/// Whether maps of this prefix keep the low bits.
pub fn keeps_low_bits(prefix: &IpNet) -> bool {
    prefix.prefix_len() + LOW_BITS <= prefix.max_prefix_len()
}

/// A gateway's number, derived from its public key, so all nodes and peers compute the same.
pub fn gateway_number(public_key: &[u8; 32]) -> u64 {
    let (words, _) = public_key.as_chunks::<8>();
    words.iter().fold(0, |number, word| {
        mix_bits(number ^ u64::from_le_bytes(*word))
    })
}

/// The gateway that carries a bucket, in whatever order the gateways are given: the one whose
/// number is highest after the bucket flipped some of its bits. Two gateways get exactly eight
/// buckets each, because half of the buckets flip the first bit in which their numbers differ.
pub fn choose_gateway<T>(bucket: u8, gateways: impl IntoIterator<Item = (u64, T)>) -> Option<T> {
    let flipped = flipped_by(bucket);
    gateways
        .into_iter()
        .max_by_key(|(number, _)| number ^ flipped)
        .map(|(_, gateway)| gateway)
}

/// The buckets that one of these gateways carries.
pub fn carried_buckets(number: u64, gateways: &[u64]) -> Buckets {
    let own = (0..BUCKETS).filter(|bucket| {
        choose_gateway(*bucket, gateways.iter().map(|other| (*other, *other))) == Some(number)
    });
    own.fold(0, |buckets, bucket| buckets | 1 << bucket)
}

/// The single buckets in a set.
pub fn each_bucket(buckets: Buckets) -> impl Iterator<Item = u8> {
    (0..BUCKETS).filter(move |bucket| buckets >> bucket & 1 == 1)
}

/// The bits of a gateway's number that this bucket flips. Any two of fifteen neighbouring bits
/// divide the buckets differently, so a third gateway gets its share, too.
fn flipped_by(bucket: u8) -> u64 {
    const PARTS: [u8; 15] = [1, 2, 4, 8, 3, 12, 5, 10, 6, 9, 7, 14, 11, 13, 15];
    let flipped = PARTS
        .iter()
        .cycle()
        .take(64)
        .map(|part| u64::from((bucket & part).count_ones() % 2));
    flipped.fold(0, |bits, bit| bits << 1 | bit)
}

/// Spreads a change of any bit to about half of the bits (the finalizer of `SplitMix64`).
fn mix_bits(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Here, PrefixMap, There,
        fixtures::{ip, net},
        space::translate_address,
    };

    fn numbers(keys: &[[u8; 32]]) -> Vec<u64> {
        keys.iter().map(gateway_number).collect()
    }

    #[test]
    fn each_of_two_gateways_carries_half() {
        for key in 1..=255 {
            let both = numbers(&[[0; 32], [key; 32]]);
            let shares = [
                carried_buckets(both[0], &both),
                carried_buckets(both[1], &both),
            ];
            assert_eq!(
                (shares[0].count_ones(), shares[0] ^ shares[1]),
                (8, Buckets::MAX),
                "{key}"
            );
        }
    }

    #[test]
    fn each_of_three_gateways_carries_its_part() {
        for key in 3..=255 {
            let all = numbers(&[[1; 32], [2; 32], [key; 32]]);
            let mut shares = [0, 1, 2].map(|index| carried_buckets(all[index], &all).count_ones());
            shares.sort_unstable();
            assert_eq!(shares, [4, 4, 8], "{key}");
        }
    }

    #[test]
    fn one_gateway_carries_all_and_without_one_nothing_is_carried() {
        assert_eq!(carried_buckets(7, &[7]), Buckets::MAX);
        assert_eq!(carried_buckets(7, &[]), 0);
        assert_eq!(
            each_bucket(0b1000_0000_0000_0110).collect::<Vec<_>>(),
            [1, 2, 15]
        );
    }

    #[test]
    fn a_gateways_buckets_are_the_same_in_every_version() {
        let all = numbers(&[[1; 32], [2; 32], [3; 32]]);
        let shares: Vec<Buckets> = all
            .iter()
            .map(|number| carried_buckets(*number, &all))
            .collect();
        assert_eq!(shares, [0x4444, 0x1111, 0xaaaa]);
        assert_eq!(bucket_between(ip("10.244.1.5"), ip("10.65.0.9")), 12);
        assert_eq!(bucket_between(ip("fd00::25"), ip("fd01::39")), 12);
    }

    #[test]
    fn maps_of_sixteen_addresses_or_more_keep_the_low_bits() {
        for (prefix, keeps) in [
            ("10.0.0.0/28", true),
            ("10.0.0.0/29", false),
            ("fd00::/124", true),
            ("fd00::/125", false),
        ] {
            assert_eq!(keeps_low_bits(&net(prefix)), keeps, "{prefix}");
        }
    }

    fn gateways() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::hash_set(any::<[u8; 32]>(), 1..8)
            .prop_map(|keys| numbers(&keys.into_iter().collect::<Vec<_>>()))
    }

    /// A prefix here, and where the other side sees it.
    fn shown() -> impl Strategy<Value = (IpNet, IpNet)> {
        (any::<u32>(), any::<u32>(), 10u8..=28).prop_map(|(here, there, length)| {
            let prefix = |bits: u32| {
                IpNet::new(std::net::Ipv4Addr::from(bits).into(), length)
                    .unwrap()
                    .trunc()
            };
            (prefix(here), prefix(there))
        })
    }

    fn within(prefix: &IpNet, host: u32) -> IpAddr {
        let (IpNet::V4(prefix), hosts) = (
            prefix,
            u32::MAX
                .checked_shr(prefix.prefix_len().into())
                .unwrap_or(0),
        ) else {
            panic!("of IPv4")
        };
        IpAddr::V4((prefix.network().to_bits() | host & hosts).into())
    }

    proptest! {
        #[test]
        fn whoever_looks_at_a_flow_finds_the_same_gateways(
            (ours, ours_there) in shown(), (theirs, theirs_here) in shown(),
            hosts in any::<(u32, u32)>(), left in gateways(), right in gateways(),
        ) {
            let exported = PrefixMap::new([(Here(ours), There(ours_there))]).unwrap();
            let imported = PrefixMap::new([(Here(theirs_here), There(theirs))]).unwrap();
            let (one, other) = (within(&ours, hosts.0), within(&theirs, hosts.1));
            // As a node here sees them, as they travel, and as a node there sees them; and back.
            let here = (one, imported.to_here(There(other)).unwrap().0);
            let there = (exported.to_there(Here(one)).unwrap().0, other);
            let travelling = [(there.0, here.1), (here.1, there.0)];
            let all = [here, (here.1, here.0), there, (there.1, there.0)].into_iter().chain(travelling);
            for gateways in [&left, &right] {
                let chosen: std::collections::BTreeSet<_> = all.clone()
                    .map(|(from, to)| choose_gateway(bucket_between(from, to), gateways.iter().map(|number| (*number, *number))))
                    .collect();
                prop_assert_eq!(chosen.len(), 1);
            }
        }

        #[test]
        fn a_hub_passes_a_flow_on_by_the_gateway_that_it_came_in_by(
            (leaf, leaf_at_hub) in shown(), (other, other_at_hub) in shown(), at_leaf in any::<u32>(),
            hosts in any::<(u32, u32)>(), gateways in gateways(),
        ) {
            let other_at_leaf = IpNet::new(std::net::Ipv4Addr::from(at_leaf).into(), other.prefix_len()).unwrap().trunc();
            let (from, to) = (within(&leaf, hosts.0), within(&other, hosts.1));
            let carrier = |from, to| choose_gateway(bucket_between(from, to), gateways.iter().map(|number| (*number, *number)));
            let sees = |address, from: &IpNet, to: &IpNet| translate_address(address, from, to).unwrap();
            let sent_to = carrier(from, sees(to, &other, &other_at_leaf));
            let answered_to = carrier(sees(to, &other, &other_at_hub), sees(from, &leaf, &leaf_at_hub));
            prop_assert_eq!(sent_to, answered_to);
        }

        #[test]
        fn losing_a_gateway_moves_only_its_buckets_and_order_does_not_matter(gateways in gateways(), lost in any::<prop::sample::Index>()) {
            let lost = gateways[lost.index(gateways.len())];
            let left: Vec<u64> = gateways.iter().copied().filter(|number| *number != lost).rev().collect();
            for number in &left {
                let (before, after) = (carried_buckets(*number, &gateways), carried_buckets(*number, &left));
                prop_assert_eq!(before & after, before);
            }
            let together = left.iter().fold(0, |buckets, number| buckets | carried_buckets(*number, &left));
            prop_assert_eq!(together, if left.is_empty() { 0 } else { Buckets::MAX });
        }
    }
}
