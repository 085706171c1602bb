use liqo_api::{
    GatewayAddress, NamespaceOffloading, NetworkPolicy, NetworkRanges, NetworkSettings,
};

use super::*;
use crate::decide::{ranges::NodeNetwork, snapshot::OffloadedNamespace};

fn id(letter: char) -> ClusterId {
    ClusterId::of_public_key(&[u8::try_from(letter).unwrap(); 32])
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn silent(name: &str) -> WantedPeer {
    WantedPeer {
        name: name.into(),
        policy: NetworkPolicy::default(),
        runs_api_clients: false,
        customers: BTreeMap::new(),
        runs_pods: true,
        announcement: None,
    }
}

fn snapshot(own: char, peers: &[(char, WantedPeer)]) -> NetworkSnapshot {
    let ranges = NetworkRanges {
        pods: vec![net("10.244.0.0/16")],
        services: vec![net("10.96.0.0/12")],
        external: vec![net("10.70.0.0/24")],
        ..NetworkRanges::default()
    };
    let key = |letter: char| GatewayAddress {
        public_key: format!("key of {letter}"),
        endpoints: vec!["192.0.2.1:51840".into()],
        ..GatewayAddress::default()
    };
    NetworkSnapshot {
        own: id(own),
        settings: NetworkSettings::default(),
        ranges,
        nodes: vec![NodeNetwork {
            addresses: vec!["172.18.0.2".parse().unwrap()],
            ..NodeNetwork::default()
        }],
        gateways: vec![key(own)],
        peers: peers
            .iter()
            .map(|(letter, peer)| (id(*letter), peer.clone()))
            .collect(),
        current: BTreeMap::new(),
    }
}

/// Lets clusters talk until nothing changes. Each link is between two of them.
fn settle(
    clusters: &mut BTreeMap<char, NetworkSnapshot>,
    links: &[(char, char)],
) -> BTreeMap<char, BTreeMap<ClusterId, PeerOutcome>> {
    for _ in 0..20 {
        let outcomes: BTreeMap<char, _> = clusters
            .iter()
            .map(|(name, snapshot)| (*name, decide_outcomes(snapshot)))
            .collect();
        let before = clusters.clone();
        for (one, other) in links
            .iter()
            .flat_map(|(one, other)| [(*one, *other), (*other, *one)])
        {
            let theirs = outcomes[&one][&id(other)].announcement.clone();
            clusters
                .get_mut(&other)
                .unwrap()
                .peers
                .get_mut(&id(one))
                .unwrap()
                .announcement = Some(Ok(theirs));
        }
        for (name, of_peers) in &outcomes {
            let current = of_peers
                .iter()
                .filter_map(|(id, outcome)| Some((id.clone(), outcome.endpoint.clone()?)));
            clusters.get_mut(name).unwrap().current = current.collect();
        }
        let same = |(one, other): (&NetworkSnapshot, &NetworkSnapshot)| {
            format!("{one:?}") == format!("{other:?}")
        };
        if before.values().zip(clusters.values()).all(same) {
            return outcomes;
        }
    }
    panic!("they do not agree");
}

#[test]
fn two_clusters_with_the_same_ranges_agree() {
    let mut clusters = BTreeMap::from([
        ('a', snapshot('a', &[('b', silent("b"))])),
        ('b', snapshot('b', &[('a', silent("a"))])),
    ]);
    let outcomes = settle(&mut clusters, &[('a', 'b')]);
    for (own, peer) in [('a', 'b'), ('b', 'a')] {
        let outcome = &outcomes[&own][&id(peer)];
        assert_eq!(outcome.progress, PeerProgress::Agreed);
        let endpoint = outcome.endpoint.as_ref().unwrap();
        assert_eq!(
            endpoint.imported.keys().copied().collect::<Vec<_>>(),
            [net("10.70.0.0/24"), net("10.244.0.0/16")]
        );
        assert_eq!(endpoint.gateways[0].public_key, format!("key of {peer}"));
        let other = outcomes[&peer][&id(own)].endpoint.as_ref().unwrap();
        assert_eq!(
            endpoint.imported, other.exported,
            "what one sees is what the other shows"
        );
        let taken = [
            "10.244.0.0/16",
            "10.96.0.0/12",
            "10.70.0.0/24",
            "172.18.0.2/32",
        ]
        .map(net);
        for here in endpoint.imported.values() {
            assert!(
                !taken
                    .iter()
                    .any(|taken| taken.contains(here) || here.contains(taken)),
                "{here} is in use"
            );
        }
    }
}

#[test]
fn nothing_moves_when_a_peer_is_silent_after_a_restart() {
    let mut clusters = BTreeMap::from([
        ('a', snapshot('a', &[('b', silent("b"))])),
        ('b', snapshot('b', &[('a', silent("a"))])),
    ]);
    let outcomes = settle(&mut clusters, &[('a', 'b')]);
    let restarted = clusters.get_mut(&'a').unwrap();
    restarted.peers.get_mut(&id('b')).unwrap().announcement = None;
    restarted.peers.insert(
        id('c'),
        WantedPeer {
            announcement: Some(Ok(outcomes[&'b'][&id('a')].announcement.clone())),
            ..silent("c")
        },
    );
    let after = decide_outcomes(restarted);
    assert_eq!(after[&id('b')].endpoint, outcomes[&'a'][&id('b')].endpoint);
    assert_eq!(after[&id('b')].progress, PeerProgress::Silent);
    assert_eq!(
        after[&id('b')].announcement.views,
        outcomes[&'a'][&id('b')].announcement.views
    );
    let (b, c) = (
        &after[&id('b')].announcement.views,
        &after[&id('c')].announcement.views,
    );
    assert!(b.values().all(|here| {
        !c.values()
            .any(|other| here.contains(other) || other.contains(here))
    }));
}

#[test]
fn the_api_server_is_open_to_a_peer_that_runs_pods_that_use_it_if_the_policy_lets_it() {
    let mut clusters = BTreeMap::from([
        ('a', snapshot('a', &[('b', silent("b"))])),
        ('b', snapshot('b', &[('a', silent("a"))])),
    ]);
    settle(&mut clusters, &[('a', 'b')]);
    let mut opened = |runs_api_clients: bool, api_server: bool, is_silent: bool| {
        let snapshot = clusters.get_mut(&'a').unwrap();
        let peer = snapshot.peers.get_mut(&id('b')).unwrap();
        (peer.runs_api_clients, peer.policy.api_server) = (runs_api_clients, api_server);
        let theirs = peer.announcement.clone();
        peer.announcement = theirs.clone().filter(|_| !is_silent);
        let opened = decide_outcomes(snapshot)[&id('b')]
            .endpoint
            .as_ref()
            .unwrap()
            .api_server;
        snapshot.peers.get_mut(&id('b')).unwrap().announcement = theirs;
        opened
    };
    assert!(opened(true, true, false));
    assert!(!opened(false, true, false));
    // A peer cannot keep it open by falling silent.
    assert!(opened(true, true, true) && !opened(true, false, true));
}

#[test]
fn a_namespace_opens_the_api_server_only_if_its_pods_may_use_it() {
    let offloading = |api_server: bool| -> NamespaceOffloading {
        let remote = serde_json::json!({ "clusterID": id('b'), "clusterName": "b", "namespace": "shop-rome", "ready": true });
        let object = serde_json::json!({
            "apiVersion": "offloading.liqo.io/v1alpha1",
            "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": "shop" },
            "spec": { "apiServer": api_server },
            "status": { "remoteNamespaces": [remote] },
        });
        serde_json::from_value(object).unwrap()
    };
    for api_server in [true, false] {
        let wanted = OffloadedNamespace {
            clusters: [id('b')].into(),
            api_server,
        };
        assert_eq!(
            OffloadedNamespace::from_offloading(offloading(api_server)),
            Some(wanted)
        );
    }
}

#[test]
fn a_peer_that_withdraws_its_announcement_has_no_network_any_more() {
    let mut clusters = BTreeMap::from([
        ('a', snapshot('a', &[('b', silent("b"))])),
        ('b', snapshot('b', &[('a', silent("a"))])),
    ]);
    settle(&mut clusters, &[('a', 'b')]);
    let snapshot = clusters.get_mut(&'a').unwrap();
    snapshot.peers.get_mut(&id('b')).unwrap().announcement =
        Some(Ok(NetworkAnnouncement::default()));
    let outcome = &decide_outcomes(snapshot)[&id('b')];
    assert_eq!(
        (&outcome.endpoint, &outcome.progress),
        (&None, &PeerProgress::Silent)
    );
}

#[test]
fn leaves_see_each_other_through_a_hub_that_allows_it() {
    let leaf = |own| snapshot(own, &[('h', silent("hub"))]);
    let through = |name: &str, transit| WantedPeer {
        policy: NetworkPolicy {
            transit,
            ..NetworkPolicy::default()
        },
        ..silent(name)
    };
    let hub = |transit| {
        snapshot(
            'h',
            &[
                ('a', through("a", true)),
                ('b', through("b", true)),
                ('c', through("c", transit)),
            ],
        )
    };
    let mut clusters = BTreeMap::from([
        ('h', hub(false)),
        ('a', leaf('a')),
        ('b', leaf('b')),
        ('c', leaf('c')),
    ]);
    let outcomes = settle(&mut clusters, &[('h', 'a'), ('h', 'b'), ('h', 'c')]);
    let prefixes = |own| {
        outcomes[&own][&id('h')]
            .endpoint
            .as_ref()
            .unwrap()
            .imported
            .len()
    };
    assert_eq!(
        (prefixes('a'), prefixes('b'), prefixes('c')),
        (4, 4, 2),
        "pods and external: of the hub, and of the other leaf"
    );
    assert!(
        outcomes
            .values()
            .flat_map(BTreeMap::values)
            .all(|outcome| outcome.progress == PeerProgress::Agreed)
    );
}

/// A cluster whose pods have this range.
fn with_pods(own: char, pods: &str, peers: &[(char, WantedPeer)]) -> NetworkSnapshot {
    let mut snapshot = snapshot(own, peers);
    snapshot.ranges.pods = vec![net(pods)];
    snapshot
}

fn keeping(name: &str, kept: &[&str]) -> WantedPeer {
    let kept_cidrs = kept.iter().map(|text| (*text).to_owned()).collect();
    WantedPeer {
        policy: NetworkPolicy {
            kept_cidrs,
            transit: true,
            ..NetworkPolicy::default()
        },
        ..silent(name)
    }
}

#[test]
fn pods_of_clusters_that_name_each_others_ranges_have_one_address_everywhere_also_through_a_hub() {
    let leaf = |own, pods| with_pods(own, pods, &[('h', keeping("hub", &["10.128.0.0/9"]))]);
    let hub = with_pods(
        'h',
        "10.200.0.0/16",
        &[
            ('a', keeping("a", &["10.201.0.0/16"])),
            ('b', keeping("b", &["10.202.0.0/16"])),
        ],
    );
    let mut clusters = BTreeMap::from([
        ('h', hub),
        ('a', leaf('a', "10.201.0.0/16")),
        ('b', leaf('b', "10.202.0.0/16")),
    ]);
    let outcomes = settle(&mut clusters, &[('h', 'a'), ('h', 'b')]);
    let seen = |own: char, peer: char| {
        let imported = outcomes[&own][&id(peer)]
            .endpoint
            .as_ref()
            .unwrap()
            .imported
            .clone();
        imported
            .into_iter()
            .filter(|(there, _)| there.prefix_len() == 16)
            .collect::<Vec<_>>()
    };
    let itself = |prefix| (net(prefix), net(prefix));
    assert_eq!(
        seen('a', 'h'),
        [itself("10.200.0.0/16"), itself("10.202.0.0/16")]
    );
    assert_eq!(
        seen('b', 'h'),
        [itself("10.200.0.0/16"), itself("10.201.0.0/16")]
    );
    assert_eq!(
        (seen('h', 'a'), seen('h', 'b')),
        (vec![itself("10.201.0.0/16")], vec![itself("10.202.0.0/16")])
    );
}

#[test]
fn a_range_that_could_stay_is_told_and_a_change_waits_for_pods() {
    let one = with_pods('a', "10.201.0.0/16", &[('b', silent("b"))]);
    let other = with_pods('b', "10.202.0.0/16", &[('a', silent("a"))]);
    let mut clusters = BTreeMap::from([('a', one), ('b', other)]);
    let endpoint = settle(&mut clusters, &[('a', 'b')])[&'a'][&id('b')]
        .endpoint
        .clone()
        .unwrap();
    let range = net("10.202.0.0/16");
    assert_eq!(
        (endpoint.could_keep, endpoint.waiting.len()),
        ([range].into(), 0)
    );
    let before = endpoint.imported[&range];
    let mut after = |kept: &[&str], runs_pods: bool| {
        let snapshot = clusters.get_mut(&'a').unwrap();
        let peer = snapshot.peers.get_mut(&id('b')).unwrap();
        (peer.policy.kept_cidrs, peer.runs_pods) = (
            kept.iter().map(|text| (*text).to_owned()).collect(),
            runs_pods,
        );
        let endpoint = decide_outcomes(snapshot)[&id('b')]
            .endpoint
            .clone()
            .unwrap();
        snapshot.current.insert(id('b'), endpoint.clone());
        (endpoint.imported[&range], endpoint.waiting)
    };
    assert_eq!(
        after(&["10.202.0.0/16"], true),
        (before, [(range, range)].into())
    );
    assert_eq!(after(&["10.202.0.0/16"], false), (range, [].into()));
    assert_eq!(
        after(&["10.202.3.4/16"], false),
        (range, [].into()),
        "any address of a range names it"
    );
    // When no policy names the range any more, it moves to a prefix of 10.64.0.0/10, where it is
    // not now.
    assert_eq!(after(&[], true), (range, [(range, before)].into()));
    assert_eq!(after(&["no prefix"], false), (before, [].into()));
}

#[test]
fn hubs_in_a_ring_do_not_pass_on_what_is_passed_to_them_and_clusters_that_know_each_other_need_no_hub()
 {
    let through = |letter: char| {
        (
            letter,
            WantedPeer {
                policy: NetworkPolicy {
                    transit: true,
                    ..NetworkPolicy::default()
                },
                ..silent("p")
            },
        )
    };
    let ring = ['a', 'b', 'c', 'd'];
    let neighbours = |at: usize| [ring[(at + 1) % 4], ring[(at + 3) % 4]].map(through);
    let mut clusters: BTreeMap<char, NetworkSnapshot> = ring
        .iter()
        .enumerate()
        .map(|(at, own)| (*own, snapshot(*own, &neighbours(at))))
        .collect();
    let links: Vec<(char, char)> = (0..4).map(|at| (ring[at], ring[(at + 1) % 4])).collect();
    let outcomes = settle(&mut clusters, &links);
    for outcome in outcomes.values().flat_map(BTreeMap::values) {
        let endpoint = outcome.endpoint.as_ref().unwrap();
        assert_eq!(
            (endpoint.imported.len(), &outcome.progress),
            (4, &PeerProgress::Agreed),
            "the neighbour, and whoever is behind it"
        );
    }
}

#[test]
fn an_impossible_announcement_is_refused() {
    let announced = |exports: &[&str]| NetworkAnnouncement {
        exports: exports.iter().map(|prefix| net(prefix)).collect(),
        ..NetworkAnnouncement::default()
    };
    for exports in [&["0.0.0.0/0"][..], &["10.1.0.0/16", "10.1.2.0/24"]] {
        let peer = WantedPeer {
            announcement: Some(Ok(announced(exports))),
            ..silent("liar")
        };
        let outcome = &decide_outcomes(&snapshot('a', &[('b', peer)]))[&id('b')];
        assert!(
            matches!(&outcome.progress, PeerProgress::Refused(_)),
            "{exports:?}"
        );
        assert_eq!(
            (&outcome.endpoint, outcome.announcement.views.len()),
            (&None, 0)
        );
    }
}

#[test]
fn no_peer_moves_another_or_takes_its_key() {
    let mut clusters = BTreeMap::from([
        ('a', snapshot('a', &[('b', silent("b"))])),
        ('b', snapshot('b', &[('a', silent("a"))])),
    ]);
    let before = settle(&mut clusters, &[('a', 'b')])[&'a'][&id('b')]
        .endpoint
        .clone()
        .unwrap();
    let snapshot = clusters.get_mut(&'a').unwrap();
    // It announces gateways at addresses where we see b, and b's key as its own.
    let address = before.imported.values().next_back().unwrap().addr();
    let gateways = ["key of b", "key of c"].map(|key| GatewayAddress {
        public_key: key.into(),
        endpoints: vec![format!("{address}:1")],
        ..GatewayAddress::default()
    });
    let theirs = NetworkAnnouncement {
        exports: [net("10.244.0.0/16")].into(),
        gateways: gateways.into(),
        ..NetworkAnnouncement::default()
    };
    snapshot.peers.insert(
        id('c'),
        WantedPeer {
            announcement: Some(Ok(theirs)),
            ..silent("c")
        },
    );
    let after = decide_outcomes(snapshot);
    assert_eq!(after[&id('b')].endpoint.as_ref(), Some(&before));
    let keys: Vec<_> = after[&id('c')]
        .endpoint
        .iter()
        .flat_map(|endpoint| &endpoint.gateways)
        .map(|one| &one.public_key)
        .collect();
    assert_eq!(keys, ["key of c"]);
}

#[test]
fn a_spoke_with_many_prefixes_costs_the_others_nothing() {
    let transit = WantedPeer {
        policy: NetworkPolicy {
            transit: true,
            ..NetworkPolicy::default()
        },
        ..silent("p")
    };
    let announced = |exports: Vec<IpNet>| {
        Some(Ok(NetworkAnnouncement {
            exports: exports.into_iter().collect(),
            ..Default::default()
        }))
    };
    let many = (0..200)
        .map(|number| net(&format!("10.1.{number}.0/24")))
        .collect();
    let peers = [
        (
            'a',
            WantedPeer {
                announcement: announced(many),
                ..transit.clone()
            },
        ),
        (
            'b',
            WantedPeer {
                announcement: announced(vec![net("10.244.0.0/16")]),
                ..transit.clone()
            },
        ),
        ('c', transit),
    ];
    let passed_on = &decide_outcomes(&snapshot('h', &peers))[&id('c')]
        .announcement
        .transit;
    let of = |letter| {
        passed_on
            .values()
            .filter(|owner| **owner == id(letter))
            .count()
    };
    assert_eq!((of('a'), of('b')), (MAX_PASSED_ON, 1));
}

#[test]
fn missing_prefixes_are_named_and_the_others_work() {
    let theirs = NetworkAnnouncement {
        exports: [net("10.244.0.0/16"), net("10.1.0.0/16")].into(),
        views: [(net("10.244.0.0/16"), net("10.9.0.0/16"))].into(),
        mtu: 1300,
        ..NetworkAnnouncement::default()
    };
    let mut snapshot = snapshot(
        'a',
        &[(
            'b',
            WantedPeer {
                announcement: Some(Ok(theirs)),
                ..silent("b")
            },
        )],
    );
    snapshot.settings.peer_cidrs = vec![net("10.64.0.0/14")];
    let outcome = &decide_outcomes(&snapshot)[&id('b')];
    let PeerProgress::Partial {
        unseen,
        unallocated,
    } = &outcome.progress
    else {
        panic!("{:?}", outcome.progress)
    };
    assert_eq!(
        (unseen.as_slice(), unallocated.as_slice()),
        (
            [net("10.70.0.0/24")].as_slice(),
            [net("10.244.0.0/16")].as_slice()
        )
    );
    let endpoint = outcome.endpoint.as_ref().unwrap();
    assert_eq!(
        (
            endpoint.imported.len(),
            endpoint.exported.len(),
            endpoint.mtu
        ),
        (1, 1, 1300)
    );
}

/// A broker `m` that offloaded pods of `r` on to `t`, and pods of `f` on to nobody.
fn brokered() -> (BTreeMap<char, NetworkSnapshot>, [(char, char); 3]) {
    let provider = WantedPeer {
        customers: [(id('r'), ["shop-rome".to_owned()].into())].into(),
        ..silent("t")
    };
    let broker = snapshot(
        'm',
        &[('r', silent("r")), ('f', silent("f")), ('t', provider)],
    );
    let leaf = |own| snapshot(own, &[('m', silent("m"))]);
    let clusters = [
        ('m', broker),
        ('r', leaf('r')),
        ('f', leaf('f')),
        ('t', leaf('t')),
    ]
    .into();
    (clusters, [('m', 'r'), ('m', 'f'), ('m', 't')])
}

/// Where `own` sees the prefix `there` of `peer`.
fn seen(
    outcomes: &BTreeMap<char, BTreeMap<ClusterId, PeerOutcome>>,
    own: char,
    peer: char,
    there: IpNet,
) -> Option<IpNet> {
    outcomes[&own][&id(peer)]
        .endpoint
        .as_ref()?
        .imported
        .get(&there)
        .copied()
}

#[test]
fn a_customer_and_the_provider_that_runs_its_pods_see_each_other_behind_the_broker_and_nobody_else_does()
 {
    let (mut clusters, links) = brokered();
    let outcomes = settle(&mut clusters, &links);
    assert!(
        outcomes
            .values()
            .flat_map(BTreeMap::values)
            .all(|outcome| outcome.progress == PeerProgress::Agreed)
    );
    let endpoint = |own: char, peer: char| outcomes[&own][&id(peer)].endpoint.as_ref().unwrap();
    let pods = net("10.244.0.0/16");
    for (own, other) in [('r', 't'), ('t', 'r')] {
        let at_broker = seen(&outcomes, 'm', other, pods).unwrap();
        let here =
            seen(&outcomes, own, 'm', at_broker).expect("it is mapped like any prefix of a peer");
        assert_ne!(
            seen(&outcomes, own, 'm', pods),
            Some(here),
            "the broker's own pods are elsewhere"
        );
        assert_eq!(endpoint(own, 'm').behind[&at_broker], [id(other)]);
        assert_eq!(endpoint('m', own).exported[&at_broker], here);
    }
    assert_eq!(
        (
            endpoint('f', 'm').imported.len(),
            endpoint('f', 'm').behind.len()
        ),
        (2, 0)
    );
    assert_eq!(
        (
            &endpoint('m', 't').customers,
            endpoint('m', 'r').customers.len()
        ),
        (&[id('r')].into(), 0)
    );
    assert!(
        outcomes
            .values()
            .flat_map(BTreeMap::values)
            .all(|outcome| outcome.announcement.transit.is_empty())
    );
    // Its pods are gone.
    clusters
        .get_mut(&'m')
        .unwrap()
        .peers
        .get_mut(&id('t'))
        .unwrap()
        .customers
        .clear();
    let after = settle(&mut clusters, &links);
    assert!(
        after
            .values()
            .flat_map(BTreeMap::values)
            .all(|outcome| outcome.endpoint.as_ref().unwrap().behind.is_empty())
    );
}

/// The MTU of the way from `own` through the tunnel to `peer` to one of that peer's prefixes.
fn mtu_to(
    outcomes: &BTreeMap<char, BTreeMap<ClusterId, PeerOutcome>>,
    own: char,
    peer: char,
    there: IpNet,
) -> u16 {
    let endpoint = outcomes[&own][&id(peer)].endpoint.as_ref().unwrap();
    assert!(
        endpoint.imported.contains_key(&there)
            && endpoint
                .path_mtus
                .keys()
                .all(|path| endpoint.imported.contains_key(path))
    );
    endpoint
        .path_mtus
        .get(&there)
        .copied()
        .unwrap_or(endpoint.mtu)
}

#[test]
fn a_low_mtu_behind_a_broker_counts_for_the_way_there_alone_and_rises_again() {
    let (mut clusters, links) = brokered();
    let mut agreed = |of_provider: u16| {
        clusters.get_mut(&'t').unwrap().settings.mtu = of_provider;
        let outcomes = settle(&mut clusters, &links);
        let pods = net("10.244.0.0/16");
        let behind = |other: char| seen(&outcomes, 'm', other, pods).unwrap();
        let through = [
            mtu_to(&outcomes, 'r', 'm', behind('t')),
            mtu_to(&outcomes, 't', 'm', behind('r')),
        ];
        let single = [('r', 'm'), ('m', 'r'), ('m', 't'), ('t', 'm'), ('f', 'm')];
        (
            through,
            single.map(|(own, peer)| mtu_to(&outcomes, own, peer, pods)),
        )
    };
    assert_eq!(agreed(1300), ([1300; 2], [1420, 1420, 1300, 1300, 1420]));
    assert_eq!(agreed(1420), ([1420; 2], [1420; 5]));
}

#[test]
fn a_low_mtu_in_a_ring_of_hubs_counts_for_the_ways_to_its_cluster_alone_and_rises_again() {
    let through = |letter: char| {
        (
            letter,
            WantedPeer {
                policy: NetworkPolicy {
                    transit: true,
                    ..NetworkPolicy::default()
                },
                ..silent("p")
            },
        )
    };
    let ring = ['a', 'b', 'c', 'd'];
    let neighbours = |at: usize| [ring[(at + 1) % 4], ring[(at + 3) % 4]].map(through);
    let mut clusters: BTreeMap<char, NetworkSnapshot> = ring
        .iter()
        .enumerate()
        .map(|(at, own)| (*own, snapshot(*own, &neighbours(at))))
        .collect();
    let links: Vec<(char, char)> = (0..4).map(|at| (ring[at], ring[(at + 1) % 4])).collect();
    let mut agreed = |of_c: u16| {
        clusters.get_mut(&'c').unwrap().settings.mtu = of_c;
        let outcomes = settle(&mut clusters, &links);
        let pods = net("10.244.0.0/16");
        let behind_b = seen(&outcomes, 'b', 'c', pods).unwrap();
        [
            mtu_to(&outcomes, 'a', 'b', behind_b),
            mtu_to(&outcomes, 'b', 'c', pods),
            mtu_to(&outcomes, 'a', 'b', pods),
            mtu_to(&outcomes, 'b', 'a', pods),
        ]
    };
    assert_eq!(agreed(1300), [1300, 1300, 1420, 1420]);
    assert_eq!(agreed(1420), [1420; 4]);
}

#[test]
fn nobody_lowers_or_raises_an_mtu_beyond_bounds() {
    let prefixes = (1..=4).map(|number| net(&format!("10.{number}.0.0/16")));
    let theirs = |mtu: u16, path_mtus: &[u16]| NetworkAnnouncement {
        behind: prefixes
            .clone()
            .map(|prefix| (prefix, vec![id('c')]))
            .collect(),
        mtu,
        path_mtus: prefixes.clone().zip(path_mtus.iter().copied()).collect(),
        ..NetworkAnnouncement::default()
    };
    let mtus = |theirs: NetworkAnnouncement| {
        let peer = WantedPeer {
            announcement: Some(Ok(theirs)),
            ..silent("b")
        };
        let outcomes = [('a', decide_outcomes(&snapshot('a', &[('b', peer)])))].into();
        prefixes
            .clone()
            .map(|prefix| mtu_to(&outcomes, 'a', 'b', prefix))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        mtus(theirs(1400, &[0, 1, 9000, 1300])),
        [1400, 1280, 1400, 1300]
    );
    assert_eq!(
        mtus(theirs(1300, &[])),
        [1300; 4],
        "a peer of an earlier version announces the lowest that it knows"
    );
    assert_eq!(mtus(theirs(0, &[])), [1420; 4], "unknown");
    assert_eq!(mtus(theirs(1, &[1, 9000])), [1280; 4]);
}

#[test]
fn a_customer_sees_what_is_behind_the_broker_although_it_knows_the_provider_itself() {
    let (mut clusters, _) = brokered();
    clusters
        .get_mut(&'r')
        .unwrap()
        .peers
        .insert(id('t'), silent("t"));
    clusters
        .get_mut(&'t')
        .unwrap()
        .peers
        .insert(id('r'), silent("r"));
    let outcomes = settle(
        &mut clusters,
        &[('m', 'r'), ('m', 'f'), ('m', 't'), ('r', 't')],
    );
    let pods = net("10.244.0.0/16");
    let behind = seen(
        &outcomes,
        'r',
        'm',
        seen(&outcomes, 'm', 't', pods).unwrap(),
    );
    assert!(
        behind.is_some() && behind != seen(&outcomes, 'r', 't', pods),
        "two ways, two prefixes"
    );
}

#[test]
fn a_broker_that_starts_again_passes_on_what_it_passed_on_before() {
    let (mut clusters, links) = brokered();
    clusters.get_mut(&'t').unwrap().settings.mtu = 1300;
    let outcomes = settle(&mut clusters, &links);
    let broker = clusters.get_mut(&'m').unwrap();
    broker.peers.get_mut(&id('t')).unwrap().announcement = None;
    let after = decide_outcomes(broker);
    for letter in ['r', 'f', 't'] {
        assert_eq!(
            after[&id(letter)].announcement,
            outcomes[&'m'][&id(letter)].announcement,
            "to {letter}"
        );
        assert_eq!(
            after[&id(letter)].endpoint,
            outcomes[&'m'][&id(letter)].endpoint,
            "of {letter}"
        );
    }
}

#[test]
fn over_three_hops_each_broker_passes_on_what_is_behind_its_neighbours() {
    // r borrows from m, m from t, t from g. Each lends on.
    let with = |letter: char, customers: &[char]| {
        (
            letter,
            WantedPeer {
                customers: customers
                    .iter()
                    .map(|letter| (id(*letter), BTreeSet::new()))
                    .collect(),
                ..silent("p")
            },
        )
    };
    let mut clusters: BTreeMap<char, NetworkSnapshot> = [
        ('r', snapshot('r', &[with('m', &[])])),
        ('m', snapshot('m', &[with('r', &[]), with('t', &['r'])])),
        ('t', snapshot('t', &[with('m', &[]), with('g', &['m'])])),
        ('g', snapshot('g', &[with('t', &[])])),
    ]
    .into();
    clusters.get_mut(&'g').unwrap().settings.mtu = 1300;
    let outcomes = settle(&mut clusters, &[('r', 'm'), ('m', 't'), ('t', 'g')]);
    let ways = |own: char, peer: char| {
        let endpoint = outcomes[&own][&id(peer)].endpoint.as_ref().unwrap();
        endpoint.behind.values().cloned().collect::<BTreeSet<_>>()
    };
    assert_eq!(
        ways('r', 'm'),
        [vec![id('t')], vec![id('g'), id('t')]].into()
    );
    assert_eq!(
        ways('g', 't'),
        [vec![id('m')], vec![id('r'), id('m')]].into()
    );
    assert_eq!(
        (ways('m', 't'), ways('m', 'r').len()),
        ([vec![id('g')]].into(), 0)
    );
    let at = |own, peer, there| seen(&outcomes, own, peer, there).unwrap();
    let pods = net("10.244.0.0/16");
    let (behind_one, behind_two) = (at('m', 't', pods), at('m', 't', at('t', 'g', pods)));
    at('r', 'm', behind_two);
    assert_eq!(
        [behind_one, behind_two].map(|there| mtu_to(&outcomes, 'r', 'm', there)),
        [1420, 1300]
    );
}

#[test]
fn a_customer_of_a_broker_with_many_prefixes_leaves_the_others_their_share_at_a_provider() {
    // Eight customers of m, whose pods it offloaded on to t. The first one exports as much as a
    // cluster may.
    let customers = ['0', '1', '2', '3', '4', '5', '6', '7'];
    let announced = |letter: char| {
        let many = (0..16)
            .map(|number| net(&format!("10.{number}.0.0/16")))
            .collect();
        let exports = if letter == '0' {
            many
        } else {
            (0..10)
                .map(|number| net(&format!("10.1.{number}.0/24")))
                .collect()
        };
        Some(Ok(NetworkAnnouncement {
            exports,
            ..NetworkAnnouncement::default()
        }))
    };
    let mut peers: Vec<(char, WantedPeer)> = customers
        .map(|letter| {
            (
                letter,
                WantedPeer {
                    announcement: announced(letter),
                    ..silent("customer")
                },
            )
        })
        .into();
    peers.push((
        't',
        WantedPeer {
            customers: customers.map(|letter| (id(letter), BTreeSet::new())).into(),
            ..silent("t")
        },
    ));
    let passed_on = &decide_outcomes(&snapshot('m', &peers))[&id('t')]
        .announcement
        .behind;
    let of = |behind: &BTreeMap<IpNet, Vec<ClusterId>>, letter| {
        behind.values().filter(|way| **way == [id(letter)]).count()
    };
    assert_eq!(
        customers.map(|letter| of(passed_on, letter)),
        [8; 8],
        "of the prefixes"
    );

    // The provider has a quarter of 32 ranges for the broker, whose own pods take one: too little
    // for the first customer.
    let named = |letter: char| {
        let prefix = move |number: u8| {
            if letter == '0' {
                format!("10.{number}.0.0/16")
            } else {
                format!("10.2{letter}.{number}.0/24")
            }
        };
        (0..8).map(move |number| (net(&prefix(number)), vec![id(letter)]))
    };
    let behind = customers.into_iter().flat_map(named).collect();
    let theirs = NetworkAnnouncement {
        exports: [net("10.244.0.0/16")].into(),
        behind,
        ..NetworkAnnouncement::default()
    };
    let mut provider = snapshot(
        't',
        &[(
            'm',
            WantedPeer {
                announcement: Some(Ok(theirs)),
                ..silent("m")
            },
        )],
    );
    provider.settings.peer_cidrs = vec![net("100.64.0.0/11")];
    let outcome = &decide_outcomes(&provider)[&id('m')];
    let accepted = &outcome.endpoint.as_ref().unwrap().behind;
    assert_eq!(
        customers.map(|letter| of(accepted, letter)),
        [6, 8, 8, 8, 8, 8, 8, 8],
        "of the addresses"
    );
    assert!(
        matches!(&outcome.progress, PeerProgress::Partial { unallocated, .. } if unallocated.len() == 2),
        "and says so"
    );
}

#[test]
fn in_a_circle_of_brokers_prefixes_do_not_circulate() {
    // Each offloads pods of the one before it on to the next one.
    let ring = ['a', 'b', 'c', 'd'];
    let of = |at: usize| {
        let (before, next) = (ring[(at + 3) % 4], ring[(at + 1) % 4]);
        let next = (
            next,
            WantedPeer {
                customers: [(id(before), BTreeSet::new())].into(),
                ..silent("p")
            },
        );
        snapshot(ring[at], &[(before, silent("p")), next])
    };
    let mut clusters: BTreeMap<char, NetworkSnapshot> =
        (0..4).map(|at| (ring[at], of(at))).collect();
    let links: Vec<(char, char)> = (0..4).map(|at| (ring[at], ring[(at + 1) % 4])).collect();
    for outcome in settle(&mut clusters, &links)
        .values()
        .flat_map(BTreeMap::values)
    {
        let endpoint = outcome.endpoint.as_ref().unwrap();
        let is_simple =
            |way: &Vec<ClusterId>| way.iter().collect::<BTreeSet<_>>().len() == way.len();
        assert!(
            outcome.progress == PeerProgress::Agreed && endpoint.behind.values().all(is_simple)
        );
        assert_eq!(
            endpoint.behind.len(),
            4,
            "two clusters are behind the neighbour, with two prefixes each"
        );
    }
}

#[test]
fn what_a_peer_says_about_what_is_behind_it_is_bounded_and_comes_after_its_own() {
    let behind = |count: u8, way: Vec<ClusterId>| {
        (0..count).map(move |number| (net(&format!("10.{number}.0.0/16")), way.clone()))
    };
    let decided = |behind: BTreeMap<IpNet, Vec<ClusterId>>, pools: &[&str]| {
        let theirs = NetworkAnnouncement {
            exports: [net("10.244.0.0/16")].into(),
            behind,
            ..NetworkAnnouncement::default()
        };
        let mut snapshot = snapshot(
            'a',
            &[(
                'b',
                WantedPeer {
                    announcement: Some(Ok(theirs)),
                    ..silent("b")
                },
            )],
        );
        snapshot.settings.peer_cidrs = pools.iter().map(|pool| net(pool)).collect();
        decide_outcomes(&snapshot)[&id('b')]
            .announcement
            .views
            .keys()
            .copied()
            .collect::<Vec<_>>()
    };
    let large = ["100.64.0.0/10", "11.0.0.0/8"];
    assert_eq!(decided(behind(3, vec![id('c')]).collect(), &large).len(), 4);
    assert_eq!(
        decided(behind(200, vec![id('c')]).collect(), &large).len(),
        65,
        "its own, and as many as may be"
    );
    // Ways through ourselves, without a cluster or without an end.
    for way in [
        vec![id('c'), id('a')],
        Vec::new(),
        (0..9)
            .map(|byte| ClusterId::of_public_key(&[byte; 32]))
            .collect(),
    ] {
        assert_eq!(
            decided(behind(3, way).collect(), &large),
            [net("10.244.0.0/16")]
        );
    }
    // A quarter of four ranges is one: its own.
    assert_eq!(
        decided(behind(3, vec![id('c')]).collect(), &["100.64.0.0/14"]),
        [net("10.244.0.0/16")]
    );
    // Ranges that overlap with its own are refused, with all others.
    let overlapping = [(net("10.244.9.0/24"), vec![id('c')])].into();
    assert!(decided(overlapping, &large).is_empty());
}

/// Sets `network.direct` in the policies of a cluster for these peers.
fn allow_direct(
    clusters: &mut BTreeMap<char, NetworkSnapshot>,
    own: char,
    peers: &str,
    is_allowed: bool,
) {
    for peer in peers.chars() {
        clusters
            .get_mut(&own)
            .unwrap()
            .peers
            .get_mut(&id(peer))
            .unwrap()
            .policy
            .direct = is_allowed;
    }
}

/// The clusters of [`brokered`], all of whose policies allow direct paths.
fn brokered_with_direct_paths() -> (BTreeMap<char, NetworkSnapshot>, [(char, char); 3]) {
    let (mut clusters, links) = brokered();
    for (own, peers) in [('m', "rtf"), ('r', "m"), ('t', "m"), ('f', "m")] {
        allow_direct(&mut clusters, own, peers, true);
    }
    (clusters, links)
}

/// The other ends of the direct paths of a cluster through the broker `m`.
fn direct(
    outcomes: &BTreeMap<char, BTreeMap<ClusterId, PeerOutcome>>,
    own: char,
) -> Vec<ClusterId> {
    outcomes[&own][&id('m')]
        .endpoint
        .as_ref()
        .unwrap()
        .direct
        .keys()
        .cloned()
        .collect()
}

#[test]
fn a_direct_path_needs_the_policies_of_all_three_clusters() {
    let (mut closed, links) = brokered();
    let none = settle(&mut closed, &links);
    assert!(direct(&none, 'r').is_empty() && direct(&none, 't').is_empty());
    let (mut clusters, links) = brokered_with_direct_paths();
    let all = settle(&mut clusters, &links);
    assert_eq!(
        (direct(&all, 'r'), direct(&all, 't'), direct(&all, 'f')),
        (vec![id('t')], vec![id('r')], Vec::new())
    );
    let path = |own: char, other: char| {
        all[&own][&id('m')].endpoint.as_ref().unwrap().direct[&id(other)].clone()
    };
    assert_eq!(
        (path('r', 't').namespaces, path('t', 'r').namespaces),
        (None, Some(["shop-rome".to_owned()].into()))
    );
    assert_eq!(path('r', 't').gateways, clusters[&'t'].gateways);
    assert_eq!(path('t', 'r').gateways, clusters[&'r'].gateways);
    for (own, peers) in [('m', "r"), ('m', "t"), ('r', "m"), ('t', "m")] {
        allow_direct(&mut clusters, own, peers, false);
        let without = settle(&mut clusters, &links);
        assert!(
            direct(&without, 'r').is_empty() && direct(&without, 't').is_empty(),
            "{own} does not allow it for {peers}"
        );
        allow_direct(&mut clusters, own, peers, true);
        assert_eq!(settle(&mut clusters, &links), all);
    }
    // With transit they reach more of each other than these pods.
    let broker = &mut clusters.get_mut(&'m').unwrap().peers;
    for letter in ['r', 't'] {
        broker.get_mut(&id(letter)).unwrap().policy.transit = true;
    }
    let with_transit = settle(&mut clusters, &links);
    assert!(direct(&with_transit, 'r').is_empty() && direct(&with_transit, 't').is_empty());
}

#[test]
fn a_broker_that_starts_again_keeps_direct_paths_until_it_hears_something_else() {
    let (mut clusters, links) = brokered_with_direct_paths();
    let before = settle(&mut clusters, &links);
    let broker = clusters.get_mut(&'m').unwrap();
    broker
        .peers
        .values_mut()
        .for_each(|peer| peer.announcement = None);
    let after = decide_outcomes(broker);
    for letter in ['r', 't'] {
        assert_eq!(
            after[&id(letter)].announcement.direct,
            before[&'m'][&id(letter)].announcement.direct
        );
    }
}

#[test]
fn no_direct_path_leads_to_a_peer_or_has_the_key_of_one() {
    let (mut clusters, links) = brokered_with_direct_paths();
    settle(&mut clusters, &links);
    let customer = &clusters[&'r'];
    let accepted = |snapshot: &NetworkSnapshot| {
        decide_outcomes(snapshot)[&id('m')]
            .endpoint
            .as_ref()
            .unwrap()
            .direct
            .len()
    };
    assert_eq!(accepted(customer), 1);
    let mut knows_it = customer.clone();
    knows_it.peers.insert(id('t'), silent("t"));
    assert_eq!(accepted(&knows_it), 0);
    // A broker that lies: the key belongs to another peer, or to itself.
    for claims in ['f', 'm'] {
        let mut lied_to = customer.clone();
        let mut other = lied_to.current[&id('m')].clone();
        other.gateways = vec![GatewayAddress {
            public_key: "key of f".into(),
            ..GatewayAddress::default()
        }];
        lied_to.current.insert(id('f'), other);
        let Some(Some(Ok(theirs))) = lied_to
            .peers
            .get_mut(&id('m'))
            .map(|peer| peer.announcement.as_mut())
        else {
            panic!()
        };
        theirs.direct.get_mut(&id('t')).unwrap().gateways[0].public_key =
            format!("key of {claims}");
        assert_eq!(accepted(&lied_to), 0);
    }
    // And one that names a cluster without a prefix behind it.
    let mut unknown = customer.clone();
    let Some(Some(Ok(theirs))) = unknown
        .peers
        .get_mut(&id('m'))
        .map(|peer| peer.announcement.as_mut())
    else {
        panic!()
    };
    let path = theirs.direct.remove(&id('t')).unwrap();
    theirs.direct.insert(id('f'), path);
    assert_eq!(accepted(&unknown), 0);
}

#[test]
fn two_clusters_that_run_pods_of_each_other_have_no_direct_path() {
    let (mut clusters, links) = brokered_with_direct_paths();
    let customer = clusters
        .get_mut(&'m')
        .unwrap()
        .peers
        .get_mut(&id('r'))
        .unwrap();
    customer.customers = [(id('t'), ["shop-turin".to_owned()].into())].into();
    let outcomes = settle(&mut clusters, &links);
    assert!(direct(&outcomes, 'r').is_empty() && direct(&outcomes, 't').is_empty());
}
