use liqo_network_model::node_plan::NextHop;
use serde_json::json;

use super::{
    fixtures::{active, id, key, peer, snapshot},
    *,
};

const OURS: PublicKey = PublicKey([9; 32]);

fn wanted(snapshot: &NodeSnapshot, this: &str) -> DesiredState {
    match decide_action(snapshot, this, &[OURS]) {
        NodeAction::Apply(desired) => *desired,
        other => panic!("{other:?}"),
    }
}

/// Only the addresses that the peer `a` may reach.
fn open(reachable: BTreeSet<IpAddr>) -> OpenAddresses {
    OpenAddresses {
        reachable: [(id('a'), reachable)].into(),
        ..OpenAddresses::default()
    }
}

#[test]
fn only_gateways_have_the_tunnel() {
    let tunnel = wanted(&snapshot(), "n1").tunnel.unwrap();
    assert_eq!(tunnel.mtu, 1420);
    assert_eq!(tunnel.listen, ["0.0.0.0:51840".parse().unwrap()]);
    assert_eq!(wanted(&snapshot(), "n2").tunnel, None);
    assert!(wanted(&snapshot(), "n2").plan.overlay.is_some());
}

#[test]
fn all_gateways_are_in_use_unless_peers_call_one_address() {
    let mut both = snapshot();
    both.gateways.extend([active(3, "n2")]);
    for this in ["n1", "n2"] {
        let wanted = wanted(&both, this);
        assert!(wanted.tunnel.is_some() && both.is_gateway(this));
        assert_eq!(
            (wanted.gateways.as_slice(), wanted.plan.rules.len()),
            (&["n1".to_owned(), "n2".to_owned()][..], 2)
        );
    }
    both.settings.gateways.addresses = vec!["gateway.example.org:51840".to_owned()];
    assert!(wanted(&both, "n1").tunnel.is_some());
    assert_eq!(
        (wanted(&both, "n2").tunnel, both.is_gateway("n2")),
        (None, false)
    );
    assert_eq!(wanted(&both, "n2").gateways, ["n1"]);
}

#[test]
fn a_lease_makes_a_gateway_only_of_a_node_that_may_be_one_and_neither_name_nor_key_counts_twice() {
    let mut three = snapshot();
    three.nodes.insert("n3".to_owned(), fixtures::node(3));
    let gateways = |snapshot: &NodeSnapshot| wanted(snapshot, "n3").gateways;
    let with = |gateways: [(u8, ActiveGateway); 3]| NodeSnapshot {
        gateways: gateways.into(),
        ..three.clone()
    };
    let all = with([active(0, "n1"), active(1, "n2"), active(2, "n3")]);
    assert_eq!(gateways(&all), ["n1", "n2"], "there are to be two");
    assert_eq!(
        gateways(&with([active(0, "gone"), active(1, "n2"), active(2, "n3")])),
        ["n2", "n3"]
    );
    assert_eq!(
        gateways(&with([active(0, "n1"), active(1, "n1"), active(2, "n3")])),
        ["n1", "n3"]
    );
    let copied = (
        1,
        ActiveGateway {
            key: key(100),
            ..active(1, "n2").1
        },
    );
    assert_eq!(
        gateways(&with([active(0, "n1"), copied, active(2, "n3")])),
        ["n1", "n3"]
    );
    let mut selected = all.clone();
    selected.settings.gateways.node_selector = [("node".to_owned(), "n3".to_owned())].into();
    assert_eq!(
        (gateways(&selected), selected.is_gateway("n1")),
        (vec!["n3".to_owned()], false)
    );
    // With fewer replicas, a gateway whose number is too high goes on until it has another one.
    let mut fewer = NodeSnapshot {
        gateways: [active(1, "n2")].into(),
        ..three.clone()
    };
    fewer.settings.gateways.replicas = 1;
    assert_eq!(gateways(&fewer), ["n2"]);
}

#[test]
fn all_gateways_of_a_peer_are_called_and_share_its_prefixes() {
    let tunnel = wanted(&snapshot(), "n1").tunnel.unwrap();
    let [first, second] = &tunnel.remotes[..] else {
        panic!("{:?}", tunnel.remotes)
    };
    // None is responsive yet.
    assert!(first.enabled && second.enabled);
    assert_eq!(
        (first.keepalive, second.keepalive),
        (Some(KEEPALIVE), Some(KEEPALIVE))
    );
    assert_eq!(first.endpoint, Some("192.0.2.1:51840".parse().unwrap()));
    assert_eq!(first.prefixes, ["10.66.0.0/16".parse().unwrap()]);
    assert_eq!(first.prefixes, second.prefixes);
}

#[test]
fn only_responsive_gateways_of_a_peer_are_used() {
    let chosen = |responsive: BTreeSet<PublicKey>| {
        let tunnel = wanted(
            &NodeSnapshot {
                responsive: responsive.clone(),
                ..snapshot()
            },
            "n1",
        )
        .tunnel
        .unwrap();
        assert!(!tunnel.is_outdated(&responsive));
        let enabled: Vec<PublicKey> = tunnel
            .remotes
            .iter()
            .filter(|one| one.enabled)
            .map(|one| one.public_key)
            .collect();
        assert!(tunnel.remotes.iter().all(|one| one.keepalive.is_some()));
        enabled
    };
    assert_eq!(chosen([key(1)].into()), [key(1)]);
    assert_eq!(chosen([key(2)].into()), [key(2)]);
    assert_eq!(chosen([key(1), key(2)].into()), [key(1), key(2)]);
    assert_eq!(chosen(BTreeSet::new()), [key(1), key(2)]);
    // Behind one address the silent one is a standby and is not called.
    let mut behind_one = NodeSnapshot {
        responsive: [key(2)].into(),
        ..snapshot()
    };
    let gateways = &mut behind_one.peers.get_mut(&id('a')).unwrap().gateways;
    gateways[0].endpoints = gateways[1].endpoints.clone();
    let called: Vec<bool> = wanted(&behind_one, "n1")
        .tunnel
        .unwrap()
        .remotes
        .iter()
        .map(|one| one.keepalive.is_some())
        .collect();
    assert_eq!(called, [false, true]);
    let former = wanted(
        &NodeSnapshot {
            responsive: [key(1)].into(),
            ..snapshot()
        },
        "n1",
    )
    .tunnel
    .unwrap();
    assert!(former.is_outdated(&[key(2)].into()));
}

#[test]
fn a_gateway_is_responsive_until_it_is_silent_for_long_or_misses_probes() {
    let is_responsive = |milliseconds: u64, unanswered: usize| {
        let last_received = Some(Duration::from_millis(milliseconds));
        !responsive_gateways(&[TunnelRemoteState {
            last_received,
            unanswered,
            ..TunnelRemoteState::silent(key(1))
        }])
        .is_empty()
    };
    assert!(
        is_responsive(100, 0) && is_responsive(6900, 0) && !is_responsive(7000, 0),
        "it is never asked"
    );
    assert!(
        is_responsive(2400, 3),
        "two probes may be lost, and one answer may be late"
    );
    assert!(is_responsive(1400, 10), "its packets arrive");
    assert!(!is_responsive(1500, 4));
    assert!(
        responsive_gateways(&[TunnelRemoteState::silent(key(1))]).is_empty(),
        "it was never heard"
    );
}

#[test]
fn a_link_without_traffic_is_not_taken_for_silent() {
    // Both ends take turns, so that one is heard after two pauses; the clock of a tunnel ticks four
    // times in a second.
    let longest = wanted(&snapshot(), "n1").tunnel.unwrap().remotes[0]
        .keepalive
        .unwrap()
        * 2
        + Duration::from_millis(500);
    assert!(longest < RESPONSIVE_WITHIN && longest < fallback::SILENCE);
}

#[test]
fn without_a_gateway_packets_for_peers_go_nowhere() {
    let wanted = wanted(
        &NodeSnapshot {
            gateways: ActiveGateways::new(),
            ..snapshot()
        },
        "n1",
    );
    assert_eq!(
        (wanted.tunnel, wanted.plan.overlay, wanted.plan.routes.len()),
        (None, None, 1)
    );
}

#[test]
fn nothing_is_changed_while_something_is_not_known() {
    let waits = |snapshot: &NodeSnapshot, this: &str| {
        matches!(decide_action(snapshot, this, &[OURS]), NodeAction::Wait(_))
    };
    assert!(waits(
        &NodeSnapshot {
            ranges: None,
            ..snapshot()
        },
        "n1"
    ));
    assert!(waits(&snapshot(), "n3"));
    let mut careful = snapshot();
    careful.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    assert!(waits(&careful, "n1"));
    assert!(!waits(&careful, "n2"));
    careful.open = Some(OpenAddresses::default());
    assert!(!waits(&careful, "n1"));
}

#[test]
fn a_gateway_without_its_tunnel_does_not_do_its_part() {
    let does = |snapshot: &NodeSnapshot, applied, running| {
        is_gateway_working(
            snapshot,
            &decide_action(snapshot, "n1", &[OURS]),
            applied,
            running,
        )
    };
    let tried = [(true, true), (true, false), (false, true)];
    assert_eq!(
        tried.map(|(applied, running)| does(&snapshot(), applied, running)),
        [true, false, false]
    );
    // It cannot list reachable addresses, for example. A tunnel that runs already goes on
    // meanwhile.
    let mut waiting = snapshot();
    waiting.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    assert_eq!(
        [false, true].map(|running| does(&waiting, true, running)),
        [false, true]
    );
    // Without ranges nobody has a tunnel.
    assert!(does(
        &NodeSnapshot {
            ranges: None,
            ..waiting
        },
        true,
        false
    ));
}

#[test]
fn a_network_that_is_switched_off_leaves_nothing() {
    let mut off = snapshot();
    off.settings.enabled = false;
    off.ranges = None;
    assert_eq!(decide_action(&off, "n1", &[OURS]), NodeAction::Clear);
}

#[test]
fn reachable_addresses_are_opened_only_on_gateways() {
    let mut careful = snapshot();
    careful.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    careful.open = Some(open([IpAddr::from([10, 244, 1, 7])].into()));
    let text = |this: &str| {
        wanted(&careful, this)
            .plan
            .tables
            .iter()
            .map(|table| table.script.clone())
            .collect::<String>()
    };
    assert!(text("n1").contains("10.244.1.7"));
    assert!(!text("n2").contains("10.244.1.7"));
}

#[test]
fn only_pods_stay_open_to_connections_that_exist_and_only_where_not_everything_is_open() {
    let mut careful = snapshot();
    careful.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    let all = ["10.244.1.7", "172.18.0.2", "10.66.0.9"].map(|text| text.parse::<IpAddr>().unwrap());
    careful.open = Some(OpenAddresses {
        established: [(id('a'), all.into())].into(),
        ..OpenAddresses::default()
    });
    let set = |snapshot: &NodeSnapshot| {
        let tables = wanted(snapshot, "n1").plan.tables;
        let mut lines = tables.iter().flat_map(|table| table.script.lines());
        lines
            .find(|line| line.contains("set established_"))
            .map(|line| line.trim().to_owned())
    };
    let expected = format!(
        "set established_{} {{ type ipv4_addr; elements = {{ 10.244.1.7 }}; }}",
        id('a')
    );
    assert_eq!(set(&careful), Some(expected));
    careful.peers.get_mut(&id('a')).unwrap().reach = Reach::Pods;
    assert_eq!(set(&careful), None);
}

#[test]
fn a_gateway_opens_the_api_server_to_the_pods_at_a_peer_that_use_it() {
    let mut snapshot = snapshot();
    let server = json!({ "address": "172.18.0.1", "port": 6443, "standIn": "10.70.0.16" });
    snapshot.ranges.as_mut().unwrap().api_servers = vec![serde_json::from_value(server).unwrap()];
    snapshot.peers.get_mut(&id('a')).unwrap().api_server = true;
    assert!(
        matches!(decide_action(&snapshot, "n1", &[OURS]), NodeAction::Wait(_)),
        "the pods are not known yet"
    );
    // One is at the peer, the other says so.
    let api_clients = ["10.66.1.7", "10.244.1.7"]
        .map(|text| text.parse().unwrap())
        .into();
    snapshot.open = Some(OpenAddresses {
        api_clients,
        ..OpenAddresses::default()
    });
    let clients = |snapshot: &NodeSnapshot| {
        let tables = wanted(snapshot, "n1").plan.tables;
        let mut lines = tables.iter().flat_map(|table| table.script.lines());
        lines
            .find(|line| line.contains("set api_clients"))
            .map(|line| line.trim().to_owned())
    };
    assert_eq!(
        clients(&snapshot).as_deref(),
        Some("set api_clients { type ipv4_addr; elements = { 10.66.1.7 }; }")
    );
    snapshot.peers.get_mut(&id('a')).unwrap().api_server = false;
    assert_eq!(clients(&snapshot), None);
}

#[test]
fn pods_of_another_peer_are_reachable_with_transit_and_only_pods_ever_are() {
    let mut hub = snapshot();
    hub.peers.insert(
        id('b'),
        TunnelEndpointSpec {
            transit: true,
            ..peer(&id('b'), "10.67.0.0/16", [3, 4])
        },
    );
    hub.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    let all = [
        "10.67.0.9",
        "10.70.0.9",
        "10.96.0.9",
        "172.18.0.2",
        "203.0.113.9",
    ]
    .map(|text| text.parse::<IpAddr>().unwrap());
    hub.open = Some(open(all.into()));
    let opened = |hub: &NodeSnapshot| {
        let tables = wanted(hub, "n1").plan.tables;
        let lines = tables
            .iter()
            .flat_map(|table| table.script.lines())
            .filter(|line| line.contains("set opened_"));
        lines.map(ToOwned::to_owned).collect::<String>()
    };
    let is_open =
        |hub: &NodeSnapshot| all.map(|address| opened(hub).contains(&address.to_string()));
    assert_eq!(is_open(&hub), [false; 5]);
    let shown: (IpNet, IpNet) = (
        "10.67.0.0/16".parse().unwrap(),
        "10.99.0.0/16".parse().unwrap(),
    );
    hub.peers
        .get_mut(&id('a'))
        .unwrap()
        .exported
        .extend([shown]);
    assert_eq!(is_open(&hub), [false; 5]);
    hub.peers.get_mut(&id('a')).unwrap().transit = true;
    assert_eq!(is_open(&hub), [true, false, false, false, false]);
}

#[test]
fn a_customer_reaches_its_own_pods_at_a_provider_whatever_else_it_may_reach() {
    let mut broker = snapshot();
    let shown = |here: &str, there: &str| -> [(IpNet, IpNet); 1] {
        [(here.parse().unwrap(), there.parse().unwrap())]
    };
    broker
        .peers
        .get_mut(&id('a'))
        .unwrap()
        .exported
        .extend(shown("10.67.0.0/16", "10.99.0.0/16"));
    let mut provider = peer(&id('b'), "10.67.0.0/16", [3, 4]);
    provider
        .exported
        .extend(shown("10.66.0.0/16", "10.98.0.0/16"));
    provider.customers = [id('a')].into();
    broker.peers.insert(id('b'), provider);
    assert!(
        matches!(decide_action(&broker, "n1", &[OURS]), NodeAction::Wait(_)),
        "the pods are not known yet"
    );
    // Here, at the provider, in the network of a node, where no pod of a customer is, at another
    // peer.
    let all = [
        "10.244.1.7",
        "10.67.0.9",
        "172.18.0.2",
        "10.70.0.9",
        "10.66.0.9",
    ]
    .map(|text| text.parse::<IpAddr>().unwrap());
    let of_another = (id('c'), ["10.67.0.10".parse().unwrap()].into());
    let offloaded = [(id('a'), all.into()), of_another].into();
    broker.open = Some(OpenAddresses {
        offloaded,
        ..OpenAddresses::default()
    });
    let script = wanted(&broker, "n1")
        .plan
        .tables
        .into_iter()
        .find(|table| table.name == "liqo")
        .unwrap()
        .script;
    let set = format!(
        "set pods_{} {{ type ipv4_addr; elements = {{ 10.67.0.9, 10.244.1.7 }}; }}",
        id('a')
    );
    assert!(script.contains(&set), "{script}");
    assert!(
        !script.contains("10.67.0.10") && !script.contains(&format!("pods_{}", id('b'))),
        "{script}"
    );
}

#[test]
fn a_peer_whose_prefix_is_in_use_is_left_out_and_harms_nobody() {
    for taken in [
        "10.66.128.0/17",
        "10.244.0.0/17",
        "10.96.0.0/17",
        "172.18.0.0/17",
    ] {
        let mut crowded = snapshot();
        let other = serde_json::from_value::<TunnelEndpointSpec>(serde_json::json!({
            "clusterID": id('b'), "imported": { "10.0.0.0/17": taken }, "mtu": 1420, "reach": "Pods",
        }));
        crowded.peers.insert(id('b'), other.unwrap());
        let wanted = wanted(&crowded, "n1");
        assert!(
            wanted.left_out[&id('b')].contains("overlaps"),
            "{taken}: {:?}",
            wanted.left_out
        );
        assert_eq!(wanted.tunnel.unwrap().remotes.len(), 2);
    }
}

#[test]
fn a_node_with_an_address_of_a_peer_or_of_another_node_harms_neither() {
    for wrong in ["10.66.3.4", "10.244.1.7", "172.18.0.1"] {
        let mut lied = snapshot();
        lied.nodes.insert(
            "n3".to_owned(),
            NodeView {
                addresses: vec![wrong.parse().unwrap()],
                ..fixtures::node(3)
            },
        );
        let wanted = wanted(&lied, "n1");
        assert_eq!(
            (wanted.left_out.len(), wanted.doubtful.len()),
            (0, 1),
            "{wrong}"
        );
        assert!(wanted.doubtful["n3"].contains(wrong));
        let neighbours = wanted.plan.overlay.unwrap().neighbours;
        assert_eq!(neighbours.len(), 1, "{neighbours:?}");
    }
}

#[test]
fn nobody_takes_the_key_of_another_or_ours() {
    let mut claimed = snapshot();
    claimed
        .peers
        .insert(id('b'), peer(&id('b'), "10.67.0.0/16", [1, 9]));
    let owners = |snapshot: &NodeSnapshot| wanted(snapshot, "n1").tunnel.unwrap().owners;
    assert_eq!(
        owners(&claimed),
        [(key(1), id('a')), (key(2), id('a'))].into()
    );
    // A key stays with the peer that had it, as long as that peer announces it.
    claimed.keys = [(key(1), id('b'))].into();
    assert_eq!(
        owners(&claimed),
        [(key(1), id('b')), (key(2), id('a'))].into()
    );
    claimed.peers.get_mut(&id('b')).unwrap().gateways.clear();
    assert_eq!(
        owners(&claimed),
        [(key(1), id('a')), (key(2), id('a'))].into()
    );
}

#[test]
fn a_gateway_is_called_only_at_sensible_addresses() {
    let mut called = snapshot();
    let endpoint =
        |snapshot: &NodeSnapshot| wanted(snapshot, "n1").tunnel.unwrap().remotes[0].endpoint;
    let mut announce = |endpoints: &[&str]| {
        let gateways = &mut called.peers.get_mut(&id('a')).unwrap().gateways;
        gateways[0].endpoints = endpoints.iter().map(|&text| text.to_owned()).collect();
        called.clone()
    };
    // This machine, nobody, behind the tunnel itself, a family that this node does not have.
    let senseless = [
        "127.0.0.1:1",
        "0.0.0.0:1",
        "[::ffff:127.0.0.1]:1",
        "10.66.0.1:1",
        "224.0.0.1:1",
        "192.0.2.1:0",
        "[2001:db8::1]:1",
    ];
    assert_eq!(endpoint(&announce(&senseless)), None);
    // One of our nodes, pods and stand-ins.
    assert_eq!(
        endpoint(&announce(&[
            "172.18.0.2:6443",
            "10.244.1.7:80",
            "10.70.0.1:443"
        ])),
        None
    );
    assert_eq!(
        endpoint(&announce(&["[2001:db8::1]:1", "192.0.2.7:1"])),
        Some("192.0.2.7:1".parse().unwrap())
    );

    let mut named = announce(&["gateway.example.org:51840"]);
    assert_eq!(
        gateway_names(&named.peers),
        ["gateway.example.org:51840".to_owned()].into()
    );
    assert_eq!(endpoint(&named), None);
    named.resolved.insert(
        "gateway.example.org:51840".to_owned(),
        vec!["192.0.2.8:51840".parse().unwrap()],
    );
    assert_eq!(endpoint(&named), Some("192.0.2.8:51840".parse().unwrap()));
}

#[test]
fn a_gateway_is_called_over_tls_only_at_sensible_addresses() {
    let mut called = snapshot();
    let gateways = &mut called.peers.get_mut(&id('a')).unwrap().gateways;
    gateways[0].tls = [
        "127.0.0.1:443",
        "10.66.0.1:443",
        "192.0.2.1:443",
        "gateway.example.org:443",
    ]
    .map(str::to_owned)
    .to_vec();
    gateways[1].tls = vec!["[::1]:443".to_owned()];
    assert_eq!(
        gateway_names(&called.peers),
        ["gateway.example.org:443".to_owned()].into()
    );
    called.resolved.insert(
        "gateway.example.org:443".to_owned(),
        vec!["192.0.2.8:443".parse().unwrap()],
    );
    let relay: SocketAddr = "127.0.0.1:4000".parse().unwrap();
    called.relays = [(key(1), relay)].into();
    let tunnel = wanted(&called, "n1").tunnel.unwrap();
    assert_eq!(
        tunnel.tls,
        [(
            key(1),
            vec![
                "192.0.2.1:443".parse().unwrap(),
                "192.0.2.8:443".parse().unwrap()
            ]
        )]
        .into()
    );
    assert_eq!(
        tunnel
            .remotes
            .iter()
            .map(|remote| remote.relay)
            .collect::<Vec<_>>(),
        [Some(relay), None]
    );
    assert_eq!(
        tunnel.remotes[0].endpoint,
        Some("192.0.2.1:51840".parse().unwrap()),
        "UDP is tried all the same"
    );
    assert_eq!(tunnel.tls_port, 443);
    let many = (0..20)
        .map(|last| ([192, 0, 2, last], 443).into())
        .collect();
    called
        .resolved
        .insert("gateway.example.org:443".to_owned(), many);
    assert_eq!(
        wanted(&called, "n1").tunnel.unwrap().tls[&key(1)].len(),
        MAX_TLS_ADDRESSES
    );
}

#[test]
fn packets_fit_the_mtu_of_their_peer_and_of_no_other() {
    let mut two = snapshot();
    two.peers
        .insert(id('b'), peer(&id('b'), "10.67.0.0/16", [3, 4]));
    two.peers.get_mut(&id('b')).unwrap().mtu = 1420;
    let mut mtus = |of_a: u16| {
        two.peers.get_mut(&id('a')).unwrap().mtu = of_a;
        let plan = wanted(&two, "n1").plan;
        assert_eq!((plan.tunnel, plan.overlay.unwrap().mtu), (Some(1420), 1420));
        let of = |destination: &str| {
            let mut routes = plan
                .routes
                .iter()
                .filter(|route| route.destination == destination.parse().unwrap());
            routes.find_map(|route| {
                if let NextHop::Tunnel { mtu, .. } = route.next {
                    mtu
                } else {
                    None
                }
            })
        };
        [of("10.66.0.0/16"), of("10.67.0.0/16")]
    };
    assert_eq!(mtus(1400), [Some(1392), None], "padding fits, too");
    assert_eq!(mtus(100), [Some(1280), None]);
    assert_eq!(mtus(9000), [None, None]);
    assert_eq!(mtus(0), [None, None], "unknown");
}

#[test]
fn a_low_mtu_behind_a_peer_counts_for_the_prefixes_there() {
    let mut behind = snapshot();
    let peer = behind.peers.get_mut(&id('a')).unwrap();
    peer.imported.insert(
        "10.99.0.0/16".parse().unwrap(),
        "10.68.0.0/16".parse().unwrap(),
    );
    peer.mtu = 1420;
    peer.path_mtus = [("10.99.0.0/16".parse().unwrap(), 1300)].into();
    let narrow = |spec: &TunnelEndpointSpec| {
        narrow_prefix_mtus(spec, 1420)
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(narrow(peer), [("10.68.0.0/16".parse().unwrap(), 1296)]);
    peer.path_mtus.values_mut().for_each(|mtu| *mtu = 1400);
    peer.mtu = 1300;
    assert_eq!(
        narrow(peer).iter().map(|(_, mtu)| *mtu).collect::<Vec<_>>(),
        [1296, 1296],
        "the tunnel carries no more"
    );
}

#[test]
fn a_peer_cannot_make_a_gateway_call_addresses_where_no_peer_can_be() {
    let remote = ["10.65.0.0/16".parse().unwrap()];
    let may = |text: &str| may_be_called(&text.parse().unwrap(), &remote);
    for never in [
        "127.0.0.1:1",
        "0.0.0.0:1",
        "224.0.0.1:1",
        "169.254.169.254:80",
        "[fe80::1]:1",
        "[::ffff:127.0.0.1]:1",
        "192.0.2.1:0",
        "10.65.3.4:1",
    ] {
        assert!(!may(never), "{never}");
    }
    assert!(may("192.0.2.1:51840") && may("[2001:db8::1]:51840"));
}

#[test]
fn only_a_limited_number_of_a_peers_names_is_looked_up() {
    let gateway = |number: usize| GatewayAddress {
        endpoints: (0..8)
            .map(|endpoint| format!("gw{number}-{endpoint}.example:1"))
            .chain(["192.0.2.1:1".to_owned()])
            .collect(),
        ..GatewayAddress::default()
    };
    let mut snapshot = fixtures::snapshot();
    let peer = snapshot.peers.values_mut().next().unwrap();
    peer.gateways = (0..16).map(gateway).collect();
    assert_eq!(gateway_names(&snapshot.peers).len(), MAX_NAMES);
}

/// Tunnel clients, each with a channel for its packets.
fn clients(keys: &[u8]) -> BTreeMap<PublicKey, InwardChannel> {
    keys.iter()
        .map(|byte| (key(*byte), InwardChannel(tokio::sync::mpsc::channel(1).0)))
        .collect()
}

#[test]
fn a_gateway_listens_for_tunnel_clients_without_peers_and_without_the_kernel() {
    let alone = NodeSnapshot {
        peers: BTreeMap::new(),
        tunnel_clients: clients(&[5]),
        ..snapshot()
    };
    let desired = wanted(&alone, "n1");
    assert_eq!(desired.plan, NodePlan::default());
    let remotes = desired.tunnel.unwrap().remotes;
    assert_eq!(
        remotes
            .iter()
            .map(|remote| remote.public_key)
            .collect::<Vec<_>>(),
        [key(5)]
    );
    assert!(
        remotes[0].prefixes.is_empty()
            && remotes[0].endpoint.is_none()
            && remotes[0].inward.is_some()
    );
    assert_eq!(
        wanted(
            &NodeSnapshot {
                tunnel_clients: BTreeMap::new(),
                ..alone.clone()
            },
            "n1"
        )
        .tunnel,
        None
    );
    assert_eq!(wanted(&alone, "n2").tunnel, None);
}

#[test]
fn the_configuration_shuts_tunnel_clients_out_whatever_is_on_the_list() {
    let with = |enabled, api_through_tunnel| {
        let snapshot = snapshot();
        let settings = liqo_api::NetworkSettings {
            enabled,
            api_through_tunnel,
            ..snapshot.settings.clone()
        };
        NodeSnapshot {
            settings,
            ..snapshot
        }
    };
    assert!(with(true, true).accepts_tunnel_clients("n1"));
    assert!(
        !with(true, true).accepts_tunnel_clients("n2"),
        "it is no gateway"
    );
    assert!(!with(true, false).accepts_tunnel_clients("n1"));
    assert!(!with(false, true).accepts_tunnel_clients("n1"));
}

#[test]
fn a_peer_cannot_shut_a_tunnel_client_out_by_announcing_its_key() {
    let both = NodeSnapshot {
        tunnel_clients: clients(&[2, 9]),
        ..snapshot()
    };
    let end = wanted(&both, "n1").tunnel.unwrap();
    let inward: Vec<(PublicKey, bool)> = end
        .remotes
        .iter()
        .map(|one| (one.public_key, one.inward.is_some()))
        .collect();
    assert_eq!(
        inward,
        [(key(1), false), (key(2), true)],
        "and our own key is nobody's"
    );
    assert!(!end.owners.contains_key(&key(2)));
    assert!(
        !end.is_outdated(&BTreeSet::new()),
        "tunnel clients are not chosen from"
    );
}
