use proptest::prelude::*;

use super::*;
use crate::fixtures::{id, ip, map, net, seen_here};

#[test]
fn a_peer_sees_our_pods_where_it_mapped_them_and_its_own_as_they_are() {
    // A hub: its pods, and those of two leaves, are all 10.244/16. To the first leaf it shows the
    // other one, which it sees at 10.246/16.
    let maps = PeerMaps {
        exported: map(&[
            ("10.244.0.0/16", "10.245.0.0/16"),
            ("10.246.0.0/16", "10.247.0.0/16"),
        ]),
        imported: map(&[("10.245.0.0/16", "10.244.0.0/16")]),
    };
    let seen = |address: &str| {
        let there = maps.seen_there(Here(ip(address)))?;
        assert_eq!(seen_here(&maps, there), Some(Here(ip(address))));
        Some(there.0)
    };
    assert_eq!(seen("10.244.3.9"), Some(ip("10.245.3.9")), "ours");
    assert_eq!(seen("10.245.0.7"), Some(ip("10.244.0.7")), "its own");
    assert_eq!(
        seen("10.246.0.43"),
        Some(ip("10.247.0.43")),
        "those of the other leaf"
    );
    assert_eq!(seen("192.0.2.8"), None);
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    let pair = |here: &str, there: &str| (Here(net(here)), There(net(there)));
    let size = PrefixMap::new([pair("10.0.0.0/16", "10.1.0.0/17")]);
    assert_eq!(
        size,
        Err(InvalidMap::Size {
            here: net("10.0.0.0/16"),
            there: net("10.1.0.0/17")
        })
    );
    let here = PrefixMap::new([
        pair("10.0.0.0/16", "10.1.0.0/16"),
        pair("10.0.0.0/16", "10.2.0.0/16"),
    ]);
    assert!(matches!(here, Err(InvalidMap::Overlap { .. })));
    let there = PrefixMap::new([
        pair("10.0.0.0/16", "10.1.0.0/16"),
        pair("10.2.0.0/24", "10.1.3.0/24"),
    ]);
    assert_eq!(
        there,
        Err(InvalidMap::Overlap {
            one: net("10.1.3.0/24"),
            other: net("10.1.0.0/16")
        })
    );
}

#[test]
fn the_prefixes_of_a_tunnel_endpoint_are_read_in_the_right_direction() {
    let mut endpoint = TunnelEndpointSpec {
        cluster_id: id('a'),
        cluster_name: "milan".into(),
        exported: [(net("10.244.0.0/16"), net("10.245.0.0/16"))].into(),
        imported: [(net("10.244.0.0/16"), net("10.71.0.0/16"))].into(),
        behind: [].into(),
        customers: [].into(),
        transit: false,
        gateways: Vec::new(),
        mtu: 1420,
        path_mtus: [].into(),
        could_keep: [].into(),
        waiting: [].into(),
        reach: liqo_api::Reach::default(),
        api_server: false,
        accepts_direct: false,
        direct: [].into(),
    };
    let maps = PeerMaps::try_from(&endpoint).unwrap();
    assert_eq!(
        maps.imported.to_here(There(ip("10.244.0.9"))),
        Some(Here(ip("10.71.0.9")))
    );
    assert_eq!(
        maps.seen_there(Here(ip("10.71.0.9"))),
        Some(There(ip("10.244.0.9")))
    );
    assert_eq!(
        maps.seen_there(Here(ip("10.244.0.5"))),
        Some(There(ip("10.245.0.5")))
    );
    endpoint
        .imported
        .insert(net("10.244.0.0/24"), net("10.72.0.0/24"));
    assert!(PeerMaps::try_from(&endpoint).is_err());
}

#[test]
fn maps_of_two_hops_make_one() {
    // Rome sees milan at 10.71 and turin behind it at 10.73; milan sees rome at 10.81 and turin at
    // 10.82.
    let rome = PeerMaps {
        exported: map(&[
            ("10.244.0.0/16", "10.81.0.0/16"),
            ("10.70.0.0/24", "10.80.0.0/24"),
        ]),
        imported: map(&[
            ("10.71.0.0/16", "10.244.0.0/16"),
            ("10.73.0.0/16", "10.82.0.0/16"),
            ("10.74.0.0/16", "10.83.0.0/16"),
        ]),
    };
    let milan = PeerMaps {
        exported: map(&[
            ("10.244.0.0/16", "10.91.0.0/16"),
            ("10.81.0.0/16", "10.92.0.0/16"),
        ]),
        imported: map(&[("10.82.0.0/16", "10.244.0.0/16")]),
    };
    let seen = |address: &str| {
        rome.followed_by(&milan)
            .seen_there(Here(ip(address)))
            .map(|there| there.0)
    };
    assert_eq!(
        seen("10.73.0.9"),
        Some(ip("10.244.0.9")),
        "a pod of turin itself"
    );
    assert_eq!(seen("10.244.0.5"), Some(ip("10.92.0.5")), "a pod of rome");
    assert_eq!(seen("10.71.0.7"), Some(ip("10.91.0.7")), "a pod of milan");
    for unknown in ["10.70.0.1", "10.74.0.9", "192.0.2.1"] {
        assert_eq!(seen(unknown), None, "{unknown}");
    }
}

#[test]
fn stand_ins_stay_and_have_the_low_bits_of_their_addresses() {
    let external = [net("10.70.0.0/26")];
    let pairs = |externals: &ExternalAddresses| {
        externals
            .pairs()
            .map(|(one, other)| (one.to_string(), other.to_string()))
            .collect::<Vec<_>>()
    };
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    let (first, without) = ExternalAddresses::assign_stand_ins(
        &external,
        [ip("192.0.2.34"), ip("192.0.2.1")],
        &ExternalAddresses::default(),
    );
    assert_eq!(
        pairs(&first),
        [
            pair("192.0.2.1", "10.70.0.17"),
            pair("192.0.2.34", "10.70.0.18")
        ]
    );
    assert!(without.is_empty());
    let (second, _) =
        ExternalAddresses::assign_stand_ins(&external, [ip("192.0.2.2"), ip("192.0.2.34")], &first);
    assert_eq!(
        pairs(&second),
        [
            pair("192.0.2.2", "10.70.0.34"),
            pair("192.0.2.34", "10.70.0.18")
        ]
    );
    // Three of the four sixteens are left to stand-ins.
    let many = (0..5).map(|number| ip(&format!("192.0.2.{}", 2 + 16 * number)));
    let (full, without) = ExternalAddresses::assign_stand_ins(&external, many, &second);
    assert_eq!((full.pairs().count(), without.len()), (3, 2));
    let (_, other_family) =
        ExternalAddresses::assign_stand_ins(&external, [ip("2001:db8::1")], &full);
    assert_eq!(other_family, [ip("2001:db8::1")]);
}

#[test]
fn a_stand_in_that_does_not_fit_any_more_is_replaced() {
    let external = [net("10.70.0.0/24")];
    for before in ["10.70.0.2", "10.70.0.33", "10.71.0.34"] {
        let previous = ExternalAddresses::from_recorded([(ip("192.0.2.2"), ip(before))]);
        let (now, _) = ExternalAddresses::assign_stand_ins(&external, [ip("192.0.2.2")], &previous);
        assert_eq!(
            now.pairs().next(),
            Some((ip("192.0.2.2"), ip("10.70.0.18"))),
            "{before}"
        );
    }
}

#[test]
fn sixteen_stand_ins_are_reserved_for_sources_without_one() {
    let all: Vec<IpAddr> = (0..16)
        .map(|bits| fallback_stand_in(&net("10.70.0.0/28"), bits))
        .collect();
    assert_eq!((all[0], all[15]), (ip("10.70.0.0"), ip("10.70.0.15")));
    assert_eq!(fallback_stand_in(&net("fd00::/124"), 9), ip("fd00::9"));
}

proptest! {
    #[test]
    fn there_and_back_is_the_same_address(host in any::<u16>(), here in 0u8..200, there in 0u8..200) {
        let map = map(&[
            (&format!("10.{here}.0.0/16"), &format!("172.{there}.0.0/16")),
            (&format!("10.{}.0.0/16", here + 1), &format!("172.{}.0.0/16", there + 1)),
        ]);
        let address = Here(IpAddr::from([10, here, host.to_be_bytes()[0], host.to_be_bytes()[1]]));
        let there = map.to_there(address).expect("mapped");
        prop_assert_eq!(map.to_here(there), Some(address));
    }
}
