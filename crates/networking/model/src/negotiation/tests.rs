use proptest::prelude::*;

use super::*;
use crate::fixtures::{id, net, seen_here};

fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
    texts.iter().map(|text| net(text)).collect()
}

/// Every cluster has the same ranges: the usual case.
fn ranges() -> ClusterRanges {
    ClusterRanges {
        pods: vec![net("10.244.0.0/16")],
        services: vec![net("10.96.0.0/12")],
        external: vec![net("10.70.0.0/24")],
        nodes: vec!["172.18.0.2".parse().unwrap()],
        reserved: vec![net("10.0.0.0/16")],
        pools: vec![net("10.0.0.0/8"), net("172.16.0.0/12")],
    }
}

/// Several clusters that exchange announcements until nothing changes.
struct Clusters {
    is_hub: BTreeMap<ClusterId, bool>,
    links: BTreeSet<(ClusterId, ClusterId)>,
    allocations: BTreeMap<ClusterId, Allocations>,
}

impl Clusters {
    fn star(hub: char, leaves: &[char]) -> Self {
        let links = leaves
            .iter()
            .flat_map(|&leaf| [(id(hub), id(leaf)), (id(leaf), id(hub))])
            .collect();
        let is_hub = leaves
            .iter()
            .map(|&leaf| (id(leaf), false))
            .chain([(id(hub), true)])
            .collect();
        let mut clusters = Self {
            is_hub,
            links,
            allocations: BTreeMap::new(),
        };
        while clusters.talk() {}
        clusters
    }

    /// Its own, and, where it is a hub, what others showed it.
    fn exports(&self, from: &ClusterId, to: &ClusterId) -> Vec<IpNet> {
        let all = self.allocations.get(from).into_iter().flatten();
        let others = all
            .filter(|((owner, _), _)| self.is_hub[from] && owner != to)
            .map(|(_, here)| *here);
        ranges()
            .pods
            .into_iter()
            .chain(ranges().external)
            .chain(others)
            .collect()
    }

    /// One round; whether anything changed.
    fn talk(&mut self) -> bool {
        let mut changed = false;
        for cluster in self.is_hub.keys().cloned().collect::<Vec<_>>() {
            let peers = self
                .links
                .iter()
                .filter(|(from, _)| *from == cluster)
                .map(|(_, to)| to.clone());
            let exports = peers
                .map(|peer| (peer.clone(), self.exports(&peer, &cluster)))
                .collect();
            let before = self.allocations.get(&cluster).cloned().unwrap_or_default();
            let (now, without) = allocate_views(&ranges(), &exports, KeptByPeer::new(), &before);
            assert_eq!(without, []);
            changed |= now != before;
            self.allocations.insert(cluster, now);
        }
        changed
    }

    fn announcement(&self, from: &ClusterId, to: &ClusterId) -> PrefixAnnouncement {
        let of_peer = self.allocations[from]
            .iter()
            .filter(|((owner, _), _)| owner == to);
        let views = of_peer
            .map(|((_, prefix), here)| (*prefix, *here))
            .collect();
        PrefixAnnouncement {
            exports: self.exports(from, to).into_iter().collect(),
            views,
        }
    }

    fn agreement(&self, own: char, peer: char) -> Agreement {
        compute_agreement(
            &self.announcement(&id(own), &id(peer)),
            &self.announcement(&id(peer), &id(own)),
        )
        .unwrap()
    }
}

#[test]
fn two_clusters_with_the_same_ranges_agree() {
    let clusters = Clusters::star('a', &['b']);
    let (ours, theirs) = (clusters.agreement('a', 'b'), clusters.agreement('b', 'a'));
    assert!(ours.is_complete() && theirs.is_complete());
    // Each translates to the prefix that the other one sees.
    for (here, there) in ours.maps.exported.pairs() {
        assert_eq!(
            theirs.maps.imported.to_here(There(here.0.addr())),
            Some(Here(there.0.addr()))
        );
    }
    assert_eq!(ours.maps.exported.pairs().count(), 2);
}

#[test]
fn leaves_reach_each_other_through_the_hub_and_none_imports_its_own_prefixes() {
    let clusters = Clusters::star('a', &['b', 'c']);
    // A leaf sees the hub's and the other leaf's two prefixes.
    assert_eq!(clusters.allocations[&id('b')].len(), 4);
    let (b, hub_to_b, hub_to_c, c) = (
        clusters.agreement('b', 'a'),
        clusters.agreement('a', 'b'),
        clusters.agreement('a', 'c'),
        clusters.agreement('c', 'a'),
    );
    let pod_of_c: IpAddr = "10.244.3.9".parse().unwrap();
    let at_hub = seen_here(&hub_to_c.maps, There(pod_of_c)).expect("the hub sees it");
    let at_b = hub_to_b.maps.seen_there(at_hub).expect("the hub shows it");
    assert_eq!(
        b.maps.seen_there(Here(at_b.0)),
        Some(There(at_hub.0)),
        "and b sends it there"
    );
    assert_eq!(c.maps.seen_there(Here(pod_of_c)), Some(There(at_hub.0)));
    let of_itself = clusters.exports(&id('a'), &id('b'));
    let own_at_hub: Vec<_> = clusters.allocations[&id('a')]
        .iter()
        .filter(|((owner, _), _)| *owner == id('b'))
        .collect();
    assert!(own_at_hub.iter().all(|(_, here)| !of_itself.contains(here)));
}

#[test]
fn a_family_that_one_side_does_not_have_is_not_missing() {
    let both = PrefixAnnouncement {
        exports: nets(&["10.244.0.0/16", "fd44::/56"]),
        views: [(net("10.244.0.0/16"), net("10.245.0.0/16"))].into(),
    };
    let v4 = PrefixAnnouncement {
        exports: nets(&["10.244.0.0/16"]),
        ..both.clone()
    };
    assert!(
        compute_agreement(&both, &v4).unwrap().is_complete()
            && compute_agreement(&v4, &both).unwrap().is_complete()
    );
    // But if nothing is shared, nothing works.
    let v6 = PrefixAnnouncement {
        exports: nets(&["fd44::/56"]),
        ..PrefixAnnouncement::default()
    };
    let apart = compute_agreement(&v4, &v6).unwrap();
    assert_eq!(
        (apart.unseen, apart.unallocated),
        (vec![net("10.244.0.0/16")], vec![net("fd44::/56")])
    );
}

#[test]
fn what_one_side_has_not_said_yet_is_missing_and_nothing_else() {
    let ours = PrefixAnnouncement {
        exports: nets(&["10.244.0.0/16", "10.70.0.0/24"]),
        ..PrefixAnnouncement::default()
    };
    let theirs = PrefixAnnouncement {
        exports: nets(&["10.244.0.0/16"]),
        views: [
            (net("10.244.0.0/16"), net("10.245.0.0/16")),
            (net("10.9.0.0/16"), net("10.245.0.0/16")),
        ]
        .into(),
    };
    let agreement = compute_agreement(&ours, &theirs).unwrap();
    assert_eq!(agreement.unseen, [net("10.70.0.0/24")]);
    assert_eq!(agreement.unallocated, [net("10.244.0.0/16")]);
    assert_eq!(agreement.maps.exported.pairs().count(), 1);
}

#[test]
fn claims_that_cannot_be_are_refused() {
    let says = |exports: &[&str]| {
        compute_agreement(
            &PrefixAnnouncement::default(),
            &PrefixAnnouncement {
                exports: nets(exports),
                ..PrefixAnnouncement::default()
            },
        )
    };
    assert_eq!(
        says(&["10.1.0.0/28", "10.2.0.0/29"]),
        Err(AnnouncementRefusal::TooSmall {
            prefix: net("10.2.0.0/29")
        })
    );
    assert_eq!(
        says(&["0.0.0.0/0"]),
        Err(AnnouncementRefusal::TooLarge {
            prefix: net("0.0.0.0/0")
        })
    );
    assert_eq!(
        says(&["10.0.0.1/16"]),
        Err(AnnouncementRefusal::HostBits {
            prefix: net("10.0.0.1/16")
        })
    );
    assert_eq!(
        says(&["fd00::/8"]),
        Err(AnnouncementRefusal::TooLarge {
            prefix: net("fd00::/8")
        })
    );
    let (one, other) = (net("10.0.0.0/12"), net("10.3.0.0/16"));
    assert_eq!(
        says(&["10.0.0.0/12", "10.3.0.0/16", "192.0.2.0/24"]),
        Err(AnnouncementRefusal::ExportsOverlap { one, other })
    );
    let many: BTreeSet<IpNet> = (0..=1024u32)
        .map(|index| IpNet::new(IpAddr::from((index << 8).to_be_bytes()), 24).unwrap())
        .collect();
    assert_eq!(
        check_exports(&many),
        Err(AnnouncementRefusal::TooMany { count: 1025 })
    );
    let ours = PrefixAnnouncement {
        exports: nets(&["10.244.0.0/16"]),
        ..PrefixAnnouncement::default()
    };
    let views = [(net("10.244.0.0/16"), net("10.245.0.0/24"))].into();
    assert!(matches!(
        compute_agreement(
            &ours,
            &PrefixAnnouncement {
                views,
                ..PrefixAnnouncement::default()
            }
        ),
        Err(AnnouncementRefusal::Views(_))
    ));
}

#[test]
fn a_peer_whose_claims_are_refused_takes_nothing_from_others() {
    let peers = [
        (id('a'), vec![net("10.0.0.0/8")]),
        (id('b'), vec![net("10.244.0.0/16")]),
    ]
    .into();
    let (allocations, without) =
        allocate_views(&ranges(), &peers, KeptByPeer::new(), &Allocations::new());
    assert_eq!(
        allocations
            .keys()
            .map(|(peer, _)| peer.clone())
            .collect::<Vec<_>>(),
        [id('b')]
    );
    assert!(without.is_empty());
}

#[test]
fn a_peer_that_wants_too_much_leaves_enough_for_others() {
    let greedy = [
        "10.128.0.0/10",
        "10.0.0.0/10",
        "10.64.0.0/10",
        "10.192.0.0/10",
    ]
    .map(net)
    .to_vec();
    let peers = [(id('a'), greedy), (id('b'), vec![net("10.244.0.0/16")])].into();
    let (allocations, without) =
        allocate_views(&ranges(), &peers, KeptByPeer::new(), &Allocations::new());
    assert_eq!(allocations.len(), 2, "{allocations:?}");
    assert!(
        allocations.contains_key(&(id('a'), net("10.128.0.0/10"))),
        "its first one fits"
    );
    assert_eq!(without.len(), 3);
    assert!(without.iter().all(|(peer, _)| *peer == id('a')));
}

proptest! {
    #[test]
    fn any_star_agrees(leaves in 1usize..8) {
        let leaves: Vec<char> = ('b'..='z').take(leaves).collect();
        let clusters = Clusters::star('a', &leaves);
        for &leaf in &leaves {
            prop_assert!(clusters.agreement('a', leaf).is_complete());
            prop_assert!(clusters.agreement(leaf, 'a').is_complete());
        }
    }
}
