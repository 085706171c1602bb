use super::*;
use crate::{
    Here, PeerMaps, There,
    fabric::{FIRST_TABLE, MARK_MASK, PeerNetwork, ReachableScope},
    fixtures::{id, ip, map, net},
    gateways::MAX_GATEWAYS,
    spread::{self, Buckets},
};

/// A gateway in this slot, with its own key.
fn gateway(slot: u8) -> FabricGateway {
    FabricGateway {
        slot,
        number: spread::gateway_number(&[slot; 32]),
    }
}

fn node(last: u8, gateway: Option<FabricGateway>) -> FabricNode {
    FabricNode {
        addresses: vec![IpAddr::from([172, 18, 0, last])],
        pods: vec![net(&format!("10.244.{last}.0/24"))],
        mac: MacAddress::from_hash([0, 0, 0, 0, last]),
        gateway,
    }
}

/// Three nodes, the first is the gateway; one peer with the same pods.
fn fabric() -> Fabric {
    let maps = PeerMaps {
        exported: map(&[
            ("10.244.0.0/16", "10.245.0.0/16"),
            ("10.70.0.0/24", "10.71.0.0/24"),
        ]),
        imported: map(&[
            ("10.246.0.0/16", "10.244.0.0/16"),
            ("10.72.0.0/24", "10.70.0.0/24"),
        ]),
    };
    Fabric {
        pods: vec![net("10.244.0.0/16")],
        external: vec![net("10.70.0.0/24")],
        nodes: [
            ("n1".into(), node(1, Some(gateway(0)))),
            ("n2".into(), node(2, None)),
            ("n3".into(), node(3, None)),
        ]
        .into(),
        peers: [(
            id('a'),
            PeerNetwork {
                maps,
                reachable: ReachableScope::Everything,
                api_server: None,
                ..PeerNetwork::default()
            },
        )]
        .into(),
        mtu: 1420,
        ..Fabric::default()
    }
}

#[test]
fn a_node_sends_packets_for_peers_to_the_gateway() {
    let plan = fabric().node_plan("n2");
    assert_eq!(plan.tunnel, None);
    assert!(plan.rules.is_empty());
    let next = NextHop::Overlay {
        hop: ip("172.18.0.1"),
        source: Some(ip("172.18.0.2")),
        mtu: Some(1420),
    };
    for destination in ["10.246.0.0/16", "10.72.0.0/24"] {
        assert!(plan.routes.contains(&Route {
            destination: net(destination),
            table: None,
            next: next.clone()
        }));
        assert!(plan.routes.contains(&Route {
            destination: net(destination),
            table: None,
            next: NextHop::Unreachable
        }));
    }
    assert_eq!(plan.routes.len(), 4);
}

#[test]
fn nodes_that_are_no_gateways_do_not_know_each_other() {
    let overlay = fabric().node_plan("n2").overlay.expect("an overlay");
    assert_eq!(overlay.local, ip("172.18.0.2"));
    assert_eq!(overlay.neighbours.len(), 1);
    assert_eq!(overlay.neighbours[0].outer, ip("172.18.0.1"));
    assert_eq!(
        fabric()
            .node_plan("n1")
            .overlay
            .expect("an overlay")
            .neighbours
            .len(),
        2
    );
}

#[test]
fn a_gateway_sends_into_the_tunnel_and_back_to_the_nodes() {
    let plan = fabric().node_plan("n1");
    assert_eq!(plan.tunnel, Some(1420));
    let tunnel = NextHop::Tunnel {
        source: Some(ip("172.18.0.1")),
        mtu: None,
    };
    assert!(plan.routes.contains(&Route {
        destination: net("10.246.0.0/16"),
        table: None,
        next: tunnel
    }));
    let to = |last: u8| NextHop::Overlay {
        hop: IpAddr::from([172, 18, 0, last]),
        source: None,
        mtu: None,
    };
    let back = |destination: &str, last| Route {
        destination: net(destination),
        table: Some(FIRST_TABLE),
        next: to(last),
    };
    for route in [
        back("10.244.2.0/24", 2),
        back("172.18.0.2/32", 2),
        back("10.244.3.0/24", 3),
        back("172.18.0.3/32", 3),
    ] {
        assert!(plan.routes.contains(&route), "{route:?}");
    }
    let own = |route: &&Route| route.table.is_some() && route.destination == net("10.244.1.0/24");
    assert_eq!(plan.routes.iter().find(own), None);
    assert_eq!(
        plan.rules,
        [MarkRule {
            is_v6: false,
            mark: 0x10,
            is_from_tunnel: true,
            table: FIRST_TABLE,
            priority: PRIORITY
        }]
    );
}

#[test]
fn a_narrow_way_lowers_the_mtu_of_its_own_routes_alone() {
    let mut fabric = fabric();
    fabric.peers.get_mut(&id('a')).unwrap().mtus = [(net("10.246.0.0/16"), 1280)].into();
    let mtus = |name: &str| {
        let plan = fabric.node_plan(name);
        let devices = [plan.tunnel, plan.overlay.map(|overlay| overlay.mtu)];
        let of = |destination: &str| {
            let mut routes = plan
                .routes
                .iter()
                .filter(|route| route.table.is_none() && route.destination == net(destination));
            routes.find_map(|route| match route.next {
                NextHop::Tunnel { mtu, .. } | NextHop::Overlay { mtu, .. } => Some(mtu),
                NextHop::Unreachable => None,
            })
        };
        (devices, of("10.246.0.0/16"), of("10.72.0.0/24"))
    };
    assert_eq!(mtus("n1"), ([Some(1420); 2], Some(Some(1280)), Some(None)));
    assert_eq!(
        mtus("n2"),
        ([None, Some(1420)], Some(Some(1280)), Some(Some(1420)))
    );
}

/// The same, and IPv6.
fn dual_stack() -> Fabric {
    let mut fabric = fabric();
    fabric.pods.push(net("fd44::/56"));
    for (node, last) in fabric.nodes.values_mut().zip(1..) {
        node.addresses.push(ip(&format!("fd18::{last}")));
        node.pods.push(net(&format!("fd44:0:0:{last}::/64")));
    }
    let peer = fabric.peers.get_mut(&id('a')).unwrap();
    peer.maps
        .imported
        .insert(Here(net("fd46::/56")), There(net("fd44::/56")))
        .unwrap();
    peer.maps
        .exported
        .insert(Here(net("fd44::/56")), There(net("fd45::/56")))
        .unwrap();
    fabric
}

#[test]
fn for_ipv6_the_next_hop_is_the_link_local_address_in_the_overlay() {
    let fabric = dual_stack();
    let overlay = fabric.node_plan("n2").overlay.expect("an overlay");
    let hop = ip("fe80::800:ff:fe00:1");
    assert_eq!(
        (overlay.local, &overlay.neighbours[0].hops),
        (ip("172.18.0.2"), &vec![ip("172.18.0.1"), hop])
    );
    let next = NextHop::Overlay {
        hop,
        source: Some(ip("fd18::2")),
        mtu: Some(1420),
    };
    assert!(fabric.node_plan("n2").routes.contains(&Route {
        destination: net("fd46::/56"),
        table: None,
        next
    }));
    let plan = fabric.node_plan("n1");
    let next = NextHop::Overlay {
        hop: ip("fe80::800:ff:fe00:2"),
        source: None,
        mtu: None,
    };
    for destination in ["fd44:0:0:2::/64", "fd18::2/128"] {
        let route = Route {
            destination: net(destination),
            table: Some(FIRST_TABLE),
            next: next.clone(),
        };
        assert!(plan.routes.contains(&route), "{route:?}");
    }
    assert_eq!(
        plan.rules.iter().map(|rule| rule.is_v6).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn a_family_without_prefixes_of_peers_has_no_routes_and_no_rules() {
    let mut fabric = dual_stack();
    let peer = fabric.peers.get_mut(&id('a')).unwrap();
    peer.maps = PeerMaps {
        exported: map(&[("fd44::/56", "fd45::/56")]),
        imported: map(&[("fd46::/56", "fd44::/56")]),
    };
    for name in ["n1", "n2"] {
        let plan = fabric.node_plan(name);
        assert!(
            plan.routes
                .iter()
                .all(|route| route.destination.addr().is_ipv6()),
            "{plan:?}"
        );
        assert!(plan.rules.iter().all(|rule| rule.is_v6), "{plan:?}");
        let overlay = plan.overlay.expect("an overlay");
        assert!(
            overlay
                .neighbours
                .iter()
                .all(|one| one.hops.len() == 1 && one.hops[0].is_ipv6()),
            "{overlay:?}"
        );
    }
}

#[test]
fn the_overlay_runs_over_one_family_on_all_nodes() {
    let local =
        |fabric: &Fabric, name: &str| fabric.node_plan(name).overlay.map(|overlay| overlay.local);
    let mut fabric = dual_stack();
    // The order of a node's addresses does not matter.
    fabric.nodes.get_mut("n2").unwrap().addresses.reverse();
    assert_eq!(local(&fabric, "n2"), Some(ip("172.18.0.2")));
    fabric.nodes.get_mut("n3").unwrap().addresses.remove(0);
    assert_eq!(
        (local(&fabric, "n1"), local(&fabric, "n3")),
        (Some(ip("fd18::1")), Some(ip("fd18::3")))
    );
    // A node without addresses does not move the others.
    fabric.nodes.get_mut("n3").unwrap().addresses.clear();
    assert_eq!(
        (local(&fabric, "n1"), local(&fabric, "n3")),
        (Some(ip("172.18.0.1")), None)
    );
}

/// Two of three nodes are gateways; the second by name comes first.
fn two_gateways() -> Fabric {
    let mut fabric = fabric();
    fabric.nodes.insert("n1".into(), node(1, Some(gateway(1))));
    fabric.nodes.insert("n2".into(), node(2, Some(gateway(0))));
    fabric
}

#[test]
fn several_gateways_are_in_use_each_with_its_own_table() {
    let fabric = two_gateways();
    let over = |destination: &str, table: Option<u32>, last: u8, from: u8| {
        let (hop, source) = (
            IpAddr::from([172, 18, 0, last]),
            Some(IpAddr::from([172, 18, 0, from])),
        );
        Route {
            destination: net(destination),
            table,
            next: NextHop::Overlay {
                hop,
                source,
                mtu: Some(1420),
            },
        }
    };
    let marked = |mark, table| MarkRule {
        is_v6: false,
        mark,
        is_from_tunnel: false,
        table,
        priority: PRIORITY,
    };
    // A node sends to the first, and marked packets to the other.
    let plan = fabric.node_plan("n3");
    for destination in ["10.246.0.0/16", "10.72.0.0/24"] {
        assert!(
            plan.routes.contains(&over(destination, None, 2, 3)),
            "{plan:?}"
        );
        assert!(
            plan.routes
                .contains(&over(destination, Some(FIRST_TABLE + 1), 1, 3)),
            "{plan:?}"
        );
    }
    assert_eq!(
        (plan.routes.len(), plan.rules),
        (6, vec![marked(0x20, FIRST_TABLE + 1)])
    );
    // Each gateway sends into its own tunnel, and marked packets to the other.
    for (name, own, other, table) in [("n1", 1, 2, FIRST_TABLE), ("n2", 2, 1, FIRST_TABLE + 1)] {
        let plan = fabric.node_plan(name);
        let tunnel = NextHop::Tunnel {
            source: Some(IpAddr::from([172, 18, 0, own])),
            mtu: None,
        };
        assert!(plan.routes.contains(&Route {
            destination: net("10.246.0.0/16"),
            table: None,
            next: tunnel
        }));
        assert!(
            plan.routes
                .contains(&over("10.246.0.0/16", Some(table), other, own))
        );
        assert_eq!((plan.tunnel, plan.rules.len()), (Some(1420), 2));
    }
}

#[test]
fn a_gateway_that_is_lost_leaves_everything_to_the_other() {
    let mut fabric = two_gateways();
    let carried = [fabric.carried_by("n1"), fabric.carried_by("n2")];
    assert_eq!(
        (carried[0] ^ carried[1], fabric.carried_by("n3")),
        (Buckets::MAX, 0)
    );
    fabric.nodes.get_mut("n2").unwrap().gateway = None;
    assert_eq!(fabric.carried_by("n1"), Buckets::MAX);
    let plan = fabric.node_plan("n3");
    assert!(plan.rules.is_empty());
    assert!(plan.routes.iter().all(|route| route.table.is_none()));
    let next = NextHop::Overlay {
        hop: ip("172.18.0.1"),
        source: Some(ip("172.18.0.3")),
        mtu: Some(1420),
    };
    assert!(plan.routes.contains(&Route {
        destination: net("10.246.0.0/16"),
        table: None,
        next
    }));
}

#[test]
fn gateways_and_nodes_know_each_other_and_marks_are_all_different() {
    let fabric = two_gateways();
    let known = |name: &str| {
        fabric
            .node_plan(name)
            .overlay
            .expect("an overlay")
            .neighbours
            .len()
    };
    assert_eq!(["n1", "n2", "n3"].map(known), [2, 2, 2]);
    let all: Vec<FabricGateway> = (0..MAX_GATEWAYS).map(gateway).collect();
    let marks: std::collections::BTreeSet<u32> = all.iter().map(|gateway| gateway.mark()).collect();
    let tables: std::collections::BTreeSet<u32> =
        all.iter().map(|gateway| gateway.table()).collect();
    assert_eq!((marks.len(), tables.len()), (7, 7));
    assert!(
        marks
            .iter()
            .all(|mark| mark & !MARK_MASK == 0 && *mark != 0 && mark & 0x80 == 0)
    );
}

#[test]
fn a_single_node_needs_no_overlay() {
    let mut fabric = fabric();
    fabric.nodes.retain(|name, _| name == "n1");
    let plan = fabric.node_plan("n1");
    assert_eq!(plan.overlay, None);
    assert_eq!(plan.tunnel, Some(1420));
    assert!(plan.rules.is_empty());
}

#[test]
fn without_peers_the_plan_is_empty_and_without_a_gateway_nothing_gets_out() {
    let mut without_peers = fabric();
    without_peers.peers.clear();
    assert_eq!(without_peers.node_plan("n1"), NodePlan::default());
    assert_eq!(fabric().node_plan("unknown"), NodePlan::default());
    let mut without_gateway = fabric();
    without_gateway.nodes.remove("n1");
    let plan = without_gateway.node_plan("n2");
    assert_eq!(plan.routes.len(), 2);
    assert!(
        plan.routes
            .iter()
            .all(|route| route.next == NextHop::Unreachable)
    );
    assert!(!plan.tables.is_empty());
}

#[test]
fn a_plan_does_not_grow_with_pods_or_with_nodes_times_peers() {
    let mut many = fabric();
    let peer = many.peers[&id('a')].clone();
    for letter in 'b'..='f' {
        let maps = PeerMaps {
            imported: map(&[(&format!("10.{}.0.0/16", letter as u32), "10.244.0.0/16")]),
            ..peer.maps.clone()
        };
        many.peers.insert(
            id(letter),
            PeerNetwork {
                maps,
                reachable: ReachableScope::Everything,
                api_server: None,
                ..PeerNetwork::default()
            },
        );
    }
    for last in 4..=20 {
        many.nodes.insert(format!("n{last}"), node(last, None));
    }
    // Two prefixes of the first peer and one of each of the five others, each with its unreachable
    // route.
    assert_eq!(many.node_plan("n2").routes.len(), 14);
    // And the routes back: pods and address of each other node.
    assert_eq!(many.node_plan("n1").routes.len(), 14 + 19 * 2);
}
