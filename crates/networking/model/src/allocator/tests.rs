use proptest::prelude::*;

use super::*;
use crate::fixtures::{id, net};

fn plan(pools: &[&str], taken: &[&str]) -> AddressPlan {
    let nets = |texts: &[&str]| texts.iter().map(|text| net(text)).collect();
    AddressPlan {
        pools: nets(pools),
        taken: nets(taken),
        kept: BTreeMap::new(),
    }
}

fn one(plan: &AddressPlan, wanted: &str) -> Option<IpNet> {
    let (allocations, _) = allocate_prefixes(plan, &[(id('a'), net(wanted))], &Allocations::new());
    allocations.into_values().next()
}

#[test]
fn a_peer_does_not_choose_its_prefix_here() {
    let plan = plan(&["10.0.0.0/8"], &["10.0.0.0/16"]);
    assert_eq!(one(&plan, "10.42.0.0/16"), Some(net("10.1.0.0/16")));
    assert_eq!(one(&plan, "198.51.0.0/16"), Some(net("10.1.0.0/16")));
}

#[test]
fn a_prefix_gets_the_first_free_one_of_its_size() {
    let plan = plan(
        &["10.0.0.0/8"],
        &[
            "10.244.0.0/16",
            "10.96.0.0/12",
            "10.0.0.0/16",
            "10.1.7.0/24",
        ],
    );
    assert_eq!(one(&plan, "10.244.0.0/16"), Some(net("10.2.0.0/16")));
    assert_eq!(one(&plan, "10.96.0.0/12"), Some(net("10.16.0.0/12")));
}

#[test]
fn pools_are_used_in_their_order_and_to_the_end() {
    let two = plan(&["10.0.0.0/16", "100.64.0.0/16"], &["10.0.0.0/16"]);
    assert_eq!(one(&two, "10.0.0.0/16"), Some(net("100.64.0.0/16")));
    let last = plan(&["255.255.255.0/24"], &["255.255.255.0/25"]);
    assert_eq!(
        one(&last, "255.255.255.0/25"),
        Some(net("255.255.255.128/25"))
    );
    let full = plan(&["255.255.255.0/24"], &["255.255.255.0/24"]);
    assert_eq!(one(&full, "10.0.0.0/25"), None);
}

#[test]
fn both_families_are_alike() {
    let plan = plan(&["10.0.0.0/8", "fd00::/8"], &["fd00::/64"]);
    assert_eq!(one(&plan, "fd00::/64"), Some(net("fd00:0:0:1::/64")));
    assert_eq!(one(&plan, "fd11:22::/48"), Some(net("fd00:0:1::/48")));
    assert_eq!(one(&plan, "2001:db8::/7"), None);
}

#[test]
fn prefixes_that_find_no_room_are_returned() {
    let plan = plan(&["10.0.0.0/15"], &[]);
    let wanted: Vec<_> = ('a'..='c')
        .map(|peer| (id(peer), net("10.0.0.0/16")))
        .collect();
    let (allocations, without) = allocate_prefixes(&plan, &wanted, &Allocations::new());
    assert_eq!(allocations.len(), 2);
    assert_eq!(without, [(id('c'), net("10.0.0.0/16"))]);
}

#[test]
fn only_a_prefix_that_overlaps_with_a_new_range_moves() {
    let wanted = [
        (id('a'), net("10.244.0.0/16")),
        (id('b'), net("10.244.0.0/16")),
    ];
    let before = plan(&["10.0.0.0/8"], &["10.244.0.0/16"]);
    let (first, _) = allocate_prefixes(&before, &wanted, &Allocations::new());
    let now = plan(&["10.0.0.0/8"], &["10.244.0.0/16", "10.0.3.0/24"]);
    let (second, _) = allocate_prefixes(&now, &wanted, &first);
    assert_eq!(first[&wanted[0]], net("10.0.0.0/16"));
    assert_eq!(second[&wanted[0]], net("10.2.0.0/16"));
    assert_eq!(first[&wanted[1]], second[&wanted[1]]);
}

fn keeping(prefixes: &[&str], in_use: bool) -> AddressPlan {
    let kept = KeptAddresses {
        prefixes: prefixes.iter().map(|text| net(text)).collect(),
        in_use,
        avoids: vec!["10.43.0.9".parse().unwrap()],
    };
    AddressPlan {
        kept: [(id('a'), kept)].into(),
        ..plan(&["10.0.0.0/8"], &["10.0.0.0/16", "10.7.0.9/32"])
    }
}

#[test]
fn a_peer_keeps_what_the_owner_names_where_that_is_free_and_private() {
    let plan = keeping(
        &["10.40.0.0/13", "198.51.0.0/16", "10.7.0.0/16", "fd00::/8"],
        false,
    );
    for (wanted, found) in [
        ("10.42.0.0/16", Some("10.42.0.0/16")),
        ("10.48.0.0/16", Some("10.1.0.0/16")),
        ("10.43.0.0/16", Some("10.1.0.0/16")),
        ("198.51.0.0/16", Some("10.1.0.0/16")),
        ("10.7.0.0/16", Some("10.1.0.0/16")),
        ("fd12:3456::/48", Some("fd12:3456::/48")),
        ("10.32.0.0/12", Some("10.16.0.0/12")),
    ] {
        assert_eq!(one(&plan, wanted), found.map(net), "{wanted}");
    }
    let (others, _) = allocate_prefixes(
        &plan,
        &[(id('b'), net("10.42.0.0/16"))],
        &Allocations::new(),
    );
    assert_eq!(
        others[&(id('b'), net("10.42.0.0/16"))],
        net("10.1.0.0/16"),
        "another peer has to be named, too"
    );
}

#[test]
fn what_a_peer_keeps_changes_only_while_no_pod_depends_on_it() {
    let key = (id('a'), net("10.42.0.0/16"));
    let other = (id('b'), net("10.243.0.0/16"));
    let after = |plan: &AddressPlan, before: &str, others: &str| {
        let previous =
            Allocations::from([(key.clone(), net(before)), (other.clone(), net(others))]);
        allocate_prefixes(plan, &[key.clone(), other.clone()], &previous).0[&key].to_string()
    };
    let named = |in_use| keeping(&["10.42.0.0/16"], in_use);
    assert_eq!(
        after(&named(true), "10.1.0.0/16", "10.2.0.0/16"),
        "10.1.0.0/16"
    );
    assert_eq!(
        after(&named(false), "10.1.0.0/16", "10.2.0.0/16"),
        "10.42.0.0/16"
    );
    assert_eq!(
        after(&named(false), "10.1.0.0/16", "10.42.0.0/16"),
        "10.1.0.0/16",
        "another peer appears there"
    );
    let named = AddressPlan {
        pools: vec![net("172.16.0.0/12")],
        ..keeping(&["10.43.0.0/16"], false)
    };
    let (key, appears) = ((id('a'), net("10.43.0.0/16")), net("10.43.0.0/16"));
    let previous = Allocations::from([(key.clone(), appears)]);
    assert_eq!(
        allocate_prefixes(&named, std::slice::from_ref(&key), &previous).0,
        previous,
        "no other peer displaces it"
    );
    // The pools do not contain it any more, and it is not named.
    let elsewhere = |in_use| AddressPlan {
        pools: vec![net("172.16.0.0/12"), net("10.2.0.0/16")],
        ..keeping(&[], in_use)
    };
    assert_eq!(
        after(&elsewhere(true), "10.42.0.0/16", "10.2.0.0/16"),
        "10.42.0.0/16"
    );
    assert_eq!(
        after(&elsewhere(false), "10.42.0.0/16", "10.2.0.0/16"),
        "172.16.0.0/16"
    );
}

fn a_prefix() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<u16>(), 12u8..=28).prop_map(|(bits, length)| {
        IpNet::V4(
            Ipv4Net::new((0x0a00_0000 | u32::from(bits) << 8).into(), length)
                .unwrap()
                .trunc(),
        )
    });
    let v6 = (any::<u16>(), 40u8..=64).prop_map(|(bits, length)| {
        IpNet::V6(
            Ipv6Net::new((0xfd00_u128 << 112 | u128::from(bits) << 72).into(), length)
                .unwrap()
                .trunc(),
        )
    });
    prop_oneof![3 => v4, 1 => v6]
}

/// The prefixes that peers export, and the ranges that are taken here.
type Step = (Vec<(char, IpNet)>, Vec<IpNet>, Vec<(char, KeptAddresses)>);

fn kept_addresses() -> impl Strategy<Value = KeptAddresses> {
    (prop::collection::vec(a_prefix(), 0..3), any::<bool>()).prop_map(|(prefixes, in_use)| {
        KeptAddresses {
            prefixes,
            in_use,
            avoids: Vec::new(),
        }
    })
}

/// At each step peers export other prefixes and keep other ones, and this cluster uses other
/// ranges.
fn a_history() -> impl Strategy<Value = Vec<Step>> {
    let wanted = prop::collection::vec((prop::char::range('a', 'f'), a_prefix()), 0..12);
    let kept = prop::collection::vec((prop::char::range('a', 'f'), kept_addresses()), 0..4);
    prop::collection::vec(
        (wanted, prop::collection::vec(a_prefix(), 0..4), kept),
        1..8,
    )
}

proptest! {
    #[test]
    fn over_any_history_nothing_overlaps_nothing_leaks_and_a_restart_changes_nothing(history in a_history()) {
        let pools = vec![net("10.0.0.0/8"), net("172.16.0.0/12"), net("fd00::/8")];
        let mut previous = Allocations::new();
        for (wanted, taken, kept) in history {
            let kept: BTreeMap<ClusterId, KeptAddresses> = kept.into_iter().map(|(peer, kept)| (id(peer), kept)).collect();
            let wanted: Vec<(ClusterId, IpNet)> = wanted.into_iter().map(|(peer, prefix)| (id(peer), prefix)).collect();
            let plan = AddressPlan { pools: pools.clone(), taken, kept };
            let (now, without) = allocate_prefixes(&plan, &wanted, &previous);
            let all: Vec<IpNet> = now.values().copied().collect();
            for (index, prefix) in all.iter().enumerate() {
                prop_assert!(all[index + 1..].iter().chain(&plan.taken).all(|other| !prefixes_overlap(prefix, other)));
            }
            for (key, here) in &now {
                let was = previous.get(key) == Some(here);
                prop_assert!(is_within(here, &plan.pools) || (*here == key.1 && (was || plan.keeps_prefix(key))));
                prop_assert!(wanted.contains(key), "{key:?} is not wanted any more");
                prop_assert_eq!(now[key].prefix_len(), key.1.prefix_len());
            }
            prop_assert!(wanted.iter().all(|key| now.contains_key(key) != without.contains(key)));
            for (key, before) in &previous {
                if let Some(after) = now.get(key) {
                    let has_to = plan.must_move(key, before) || plan.taken.iter().any(|range| prefixes_overlap(range, before));
                    prop_assert!(before == after || has_to);
                }
            }
            prop_assert_eq!(&allocate_prefixes(&plan, &wanted, &now).0, &now);
            previous = now;
        }
    }
}
