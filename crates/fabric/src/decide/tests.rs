use super::{
    fixtures::{id, in_use, key, peer, remote_state, snapshot},
    *,
};

const OURS: PublicKey = PublicKey([9; 32]);

fn wanted(snapshot: &Snapshot, this: &str) -> Wanted {
    match decide(snapshot, this, &[OURS]) {
        Work::Hold(wanted) => *wanted,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_gateways_have_the_tunnel() {
    let tunnel = wanted(&snapshot(), "n1").tunnel.unwrap();
    assert_eq!(tunnel.mtu, 1400);
    assert_eq!(tunnel.listen, ["0.0.0.0:51840".parse().unwrap()]);
    assert_eq!(wanted(&snapshot(), "n2").tunnel, None);
    assert!(wanted(&snapshot(), "n2").plan.overlay.is_some());
}

#[test]
fn all_gateways_are_in_use_unless_peers_call_one_address() {
    let mut both = snapshot();
    both.gateways.extend([in_use(3, "n2")]);
    for this in ["n1", "n2"] {
        let wanted = wanted(&both, this);
        assert!(wanted.tunnel.is_some() && both.is_gateway(this));
        assert_eq!((wanted.gateways.as_slice(), wanted.plan.rules.len()), (&["n1".to_owned(), "n2".to_owned()][..], 2));
    }
    both.settings.gateways.addresses = vec!["gateway.example.org:51840".to_owned()];
    assert!(wanted(&both, "n1").tunnel.is_some());
    assert_eq!((wanted(&both, "n2").tunnel, both.is_gateway("n2")), (None, false));
    assert_eq!(wanted(&both, "n2").gateways, ["n1"]);
}

#[test]
fn a_lease_makes_a_gateway_only_of_a_node_that_may_be_one_and_neither_name_nor_key_counts_twice() {
    let mut three = snapshot();
    three.nodes.insert("n3".to_owned(), fixtures::node(3));
    let gateways = |snapshot: &Snapshot| wanted(snapshot, "n3").gateways;
    let with = |gateways: [(u8, InUse); 3]| Snapshot { gateways: gateways.into(), ..three.clone() };
    let all = with([in_use(0, "n1"), in_use(1, "n2"), in_use(2, "n3")]);
    assert_eq!(gateways(&all), ["n1", "n2"], "there are to be two");
    assert_eq!(gateways(&with([in_use(0, "gone"), in_use(1, "n2"), in_use(2, "n3")])), ["n2", "n3"]);
    assert_eq!(gateways(&with([in_use(0, "n1"), in_use(1, "n1"), in_use(2, "n3")])), ["n1", "n3"]);
    let copied = (1, InUse { key: key(100), ..in_use(1, "n2").1 });
    assert_eq!(gateways(&with([in_use(0, "n1"), copied, in_use(2, "n3")])), ["n1", "n3"]);
    let mut selected = all.clone();
    selected.settings.gateways.node_selector = [("node".to_owned(), "n3".to_owned())].into();
    assert_eq!((gateways(&selected), selected.is_gateway("n1")), (vec!["n3".to_owned()], false));
    // Where there are to be fewer, one that holds a number too many goes on until it has another.
    let mut fewer = Snapshot { gateways: [in_use(1, "n2")].into(), ..three.clone() };
    fewer.settings.gateways.replicas = 1;
    assert_eq!(gateways(&fewer), ["n2"]);
}

#[test]
fn all_gateways_of_a_peer_are_called_and_share_its_prefixes() {
    let tunnel = wanted(&snapshot(), "n1").tunnel.unwrap();
    let [first, second] = &tunnel.remotes[..] else { panic!("{:?}", tunnel.remotes) };
    // Nobody speaks yet.
    assert!(first.enabled && second.enabled);
    assert_eq!((first.keepalive, second.keepalive), (Some(KEEPALIVE), Some(KEEPALIVE)));
    assert_eq!(first.endpoint, Some("192.0.2.1:51840".parse().unwrap()));
    assert_eq!(first.prefixes, ["10.66.0.0/16".parse().unwrap()]);
    assert_eq!(first.prefixes, second.prefixes);
}

#[test]
fn those_gateways_of_a_peer_are_sent_to_that_speak() {
    let chosen = |speaking: BTreeSet<PublicKey>| {
        let tunnel = wanted(&Snapshot { speaking: speaking.clone(), ..snapshot() }, "n1").tunnel.unwrap();
        assert!(!tunnel.is_outdated(&speaking));
        let enabled: Vec<PublicKey> = tunnel.remotes.iter().filter(|one| one.enabled).map(|one| one.public_key).collect();
        assert!(tunnel.remotes.iter().all(|one| one.keepalive.is_some()));
        enabled
    };
    assert_eq!(chosen([key(1)].into()), [key(1)]);
    assert_eq!(chosen([key(2)].into()), [key(2)]);
    assert_eq!(chosen([key(1), key(2)].into()), [key(1), key(2)]);
    assert_eq!(chosen(BTreeSet::new()), [key(1), key(2)]);
    // Behind one address the one that is silent stands by, and is not called.
    let mut behind_one = Snapshot { speaking: [key(2)].into(), ..snapshot() };
    let gateways = &mut behind_one.peers.get_mut(&id('a')).unwrap().gateways;
    gateways[0].endpoints = gateways[1].endpoints.clone();
    let called: Vec<bool> = wanted(&behind_one, "n1").tunnel.unwrap().remotes.iter().map(|one| one.keepalive.is_some()).collect();
    assert_eq!(called, [false, true]);
    let former = wanted(&Snapshot { speaking: [key(1)].into(), ..snapshot() }, "n1").tunnel.unwrap();
    assert!(former.is_outdated(&[key(2)].into()));
}

#[test]
fn a_gateway_speaks_until_it_was_silent_for_long_or_leaves_questions_without_an_answer() {
    let speaks = |milliseconds: u64, unanswered: usize| {
        let last_received = Some(Duration::from_millis(milliseconds));
        !speaking(&[RemoteState { last_received, unanswered, ..remote_state(1) }]).is_empty()
    };
    assert!(speaks(100, 0) && speaks(6900, 0) && !speaks(7000, 0), "it is never asked");
    assert!(speaks(2400, 3), "two questions may be lost, and one be on its way");
    assert!(speaks(1400, 10), "its packets arrive");
    assert!(!speaks(1500, 4));
    assert!(speaking(&[remote_state(1)]).is_empty(), "it was never heard");
}

#[test]
fn a_link_on_which_nothing_is_sent_is_not_taken_for_silent() {
    // Both ends take turns, so that one is heard after two pauses; the clock of a tunnel ticks four times in a second.
    let longest = wanted(&snapshot(), "n1").tunnel.unwrap().remotes[0].keepalive.unwrap() * 2 + Duration::from_millis(500);
    assert!(longest < SPEAKS && longest < fallback::SILENCE);
}

#[test]
fn without_a_gateway_packets_for_peers_go_nowhere() {
    let wanted = wanted(&Snapshot { gateways: AllInUse::new(), ..snapshot() }, "n1");
    assert_eq!((wanted.tunnel, wanted.plan.overlay, wanted.plan.routes.len()), (None, None, 1));
}

#[test]
fn nothing_is_touched_while_something_is_not_known() {
    let waits = |snapshot: &Snapshot, this: &str| matches!(decide(snapshot, this, &[OURS]), Work::Wait(_));
    assert!(waits(&Snapshot { ranges: None, ..snapshot() }, "n1"));
    assert!(waits(&snapshot(), "n3"));
    let mut careful = snapshot();
    careful.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    assert!(waits(&careful, "n1"));
    assert!(!waits(&careful, "n2"));
    careful.openings = Some(Openings::new());
    assert!(!waits(&careful, "n1"));
}

#[test]
fn a_gateway_without_its_tunnel_does_not_do_its_part() {
    let does = |snapshot: &Snapshot, made, running| works(snapshot, &decide(snapshot, "n1", &[OURS]), made, running);
    let tried = [(true, true), (true, false), (false, true)];
    assert_eq!(tried.map(|(made, running)| does(&snapshot(), made, running)), [true, false, false]);
    // It cannot list what is open, say; a tunnel that runs already goes on meanwhile.
    let mut waiting = snapshot();
    waiting.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    assert_eq!([false, true].map(|running| does(&waiting, true, running)), [false, true]);
    // Without ranges nobody has a tunnel.
    assert!(does(&Snapshot { ranges: None, ..waiting }, true, false));
}

#[test]
fn a_network_that_is_switched_off_leaves_nothing() {
    let mut off = snapshot();
    off.settings.enabled = false;
    off.ranges = None;
    assert_eq!(decide(&off, "n1", &[OURS]), Work::Clear);
}

#[test]
fn what_a_peer_may_reach_is_opened_on_the_gateway_alone() {
    let mut careful = snapshot();
    careful.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    careful.openings = Some([(id('a'), [IpAddr::from([10, 244, 1, 7])].into())].into());
    let text = |this: &str| wanted(&careful, this).plan.tables.iter().map(|table| table.script.clone()).collect::<String>();
    assert!(text("n1").contains("10.244.1.7"));
    assert!(!text("n2").contains("10.244.1.7"));
}

#[test]
fn pods_of_another_peer_are_opened_where_we_show_its_prefix_and_nothing_but_pods_ever_is() {
    let mut hub = snapshot();
    hub.peers.insert(id('b'), peer(&id('b'), "10.67.0.0/16", [3, 4]));
    hub.peers.get_mut(&id('a')).unwrap().reach = Reach::Offloaded;
    let all = ["10.67.0.9", "10.70.0.9", "10.96.0.9", "172.18.0.2", "203.0.113.9"].map(|text| text.parse::<IpAddr>().unwrap());
    hub.openings = Some([(id('a'), all.into())].into());
    let opened = |hub: &Snapshot| {
        let tables = wanted(hub, "n1").plan.tables;
        let lines = tables.iter().flat_map(|table| table.script.lines()).filter(|line| line.contains("set opened_"));
        lines.map(ToOwned::to_owned).collect::<String>()
    };
    let is_open = |hub: &Snapshot| all.map(|address| opened(hub).contains(&address.to_string()));
    assert_eq!(is_open(&hub), [false; 5]);
    let shown: (IpNet, IpNet) = ("10.67.0.0/16".parse().unwrap(), "10.99.0.0/16".parse().unwrap());
    hub.peers.get_mut(&id('a')).unwrap().exported.extend([shown]);
    assert_eq!(is_open(&hub), [true, false, false, false, false]);
}

#[test]
fn a_peer_whose_prefix_is_in_use_is_left_out_and_harms_nobody() {
    for taken in ["10.66.128.0/17", "10.244.0.0/17", "10.96.0.0/17", "172.18.0.0/17"] {
        let mut crowded = snapshot();
        let other = serde_json::from_value::<TunnelEndpointSpec>(serde_json::json!({
            "clusterID": id('b'), "imported": { "10.0.0.0/17": taken }, "mtu": 1420, "reach": "Pods",
        }));
        crowded.peers.insert(id('b'), other.unwrap());
        let wanted = wanted(&crowded, "n1");
        assert!(wanted.left_out[&id('b')].contains("overlaps"), "{taken}: {:?}", wanted.left_out);
        assert_eq!(wanted.tunnel.unwrap().remotes.len(), 2);
    }
}

#[test]
fn a_node_that_says_to_be_at_a_peers_place_or_at_another_node_harms_neither() {
    for wrong in ["10.66.3.4", "10.244.1.7", "172.18.0.1"] {
        let mut lied = snapshot();
        lied.nodes.insert("n3".to_owned(), NodeView { addresses: vec![wrong.parse().unwrap()], ..fixtures::node(3) });
        let wanted = wanted(&lied, "n1");
        assert_eq!((wanted.left_out.len(), wanted.doubtful.len()), (0, 1), "{wrong}");
        assert!(wanted.doubtful["n3"].contains(wrong));
        let neighbours = wanted.plan.overlay.unwrap().neighbours;
        assert_eq!(neighbours.len(), 1, "{neighbours:?}");
    }
}

#[test]
fn nobody_takes_the_key_of_another_or_ours() {
    let mut claimed = snapshot();
    claimed.peers.insert(id('b'), peer(&id('b'), "10.67.0.0/16", [1, 9]));
    let owners = |snapshot: &Snapshot| wanted(snapshot, "n1").tunnel.unwrap().owners;
    assert_eq!(owners(&claimed), [(key(1), id('a')), (key(2), id('a'))].into());
    // Whose it was, theirs it stays, as long as they say so.
    claimed.keys = [(key(1), id('b'))].into();
    assert_eq!(owners(&claimed), [(key(1), id('b')), (key(2), id('a'))].into());
    claimed.peers.get_mut(&id('b')).unwrap().gateways.clear();
    assert_eq!(owners(&claimed), [(key(1), id('a')), (key(2), id('a'))].into());
}

#[test]
fn a_gateway_is_called_where_that_makes_sense() {
    let mut called = snapshot();
    let endpoint = |snapshot: &Snapshot| wanted(snapshot, "n1").tunnel.unwrap().remotes[0].endpoint;
    let mut announce = |endpoints: &[&str]| {
        let gateways = &mut called.peers.get_mut(&id('a')).unwrap().gateways;
        gateways[0].endpoints = endpoints.iter().map(|&text| text.to_owned()).collect();
        called.clone()
    };
    // This machine, nobody, behind the tunnel itself, a family that this node does not have.
    let senseless =
        ["127.0.0.1:1", "0.0.0.0:1", "[::ffff:127.0.0.1]:1", "10.66.0.1:1", "224.0.0.1:1", "192.0.2.1:0", "[2001:db8::1]:1"];
    assert_eq!(endpoint(&announce(&senseless)), None);
    // A node, a pod, and what stands for others, of ours.
    assert_eq!(endpoint(&announce(&["172.18.0.2:6443", "10.244.1.7:80", "10.70.0.1:443"])), None);
    assert_eq!(endpoint(&announce(&["[2001:db8::1]:1", "192.0.2.7:1"])), Some("192.0.2.7:1".parse().unwrap()));

    let mut named = announce(&["gateway.example.org:51840"]);
    assert_eq!(names(&named.peers), ["gateway.example.org:51840".to_owned()].into());
    assert_eq!(endpoint(&named), None);
    named.resolved.insert("gateway.example.org:51840".to_owned(), vec!["192.0.2.8:51840".parse().unwrap()]);
    assert_eq!(endpoint(&named), Some("192.0.2.8:51840".parse().unwrap()));
}

#[test]
fn a_gateway_is_called_over_tls_where_that_makes_sense() {
    let mut called = snapshot();
    let gateways = &mut called.peers.get_mut(&id('a')).unwrap().gateways;
    gateways[0].tls = ["127.0.0.1:443", "10.66.0.1:443", "192.0.2.1:443", "gateway.example.org:443"].map(str::to_owned).to_vec();
    gateways[1].tls = vec!["[::1]:443".to_owned()];
    assert_eq!(names(&called.peers), ["gateway.example.org:443".to_owned()].into());
    called.resolved.insert("gateway.example.org:443".to_owned(), vec!["192.0.2.8:443".parse().unwrap()]);
    let relay: SocketAddr = "127.0.0.1:4000".parse().unwrap();
    called.relays = [(key(1), relay)].into();
    let tunnel = wanted(&called, "n1").tunnel.unwrap();
    assert_eq!(tunnel.tls, [(key(1), vec!["192.0.2.1:443".parse().unwrap(), "192.0.2.8:443".parse().unwrap()])].into());
    assert_eq!(tunnel.remotes.iter().map(|remote| remote.relay).collect::<Vec<_>>(), [Some(relay), None]);
    assert_eq!(tunnel.remotes[0].endpoint, Some("192.0.2.1:51840".parse().unwrap()), "UDP is tried all the same");
    assert_eq!(tunnel.tls_port, 443);
    let many = (0..20).map(|last| ([192, 0, 2, last], 443).into()).collect();
    called.resolved.insert("gateway.example.org:443".to_owned(), many);
    assert_eq!(wanted(&called, "n1").tunnel.unwrap().tls[&key(1)].len(), MOST_SERVERS);
}

#[test]
fn packets_fit_the_way_to_every_peer() {
    let mut narrow = snapshot();
    assert_eq!(wanted(&narrow, "n1").plan.tunnel, Some(1400));
    narrow.peers.get_mut(&id('a')).unwrap().mtu = 100;
    assert_eq!(wanted(&narrow, "n1").plan.tunnel, Some(1280));
    narrow.peers.get_mut(&id('a')).unwrap().mtu = 9000;
    assert_eq!(wanted(&narrow, "n1").plan.tunnel, Some(1420));
}

#[test]
fn a_peer_cannot_have_a_gateway_call_where_no_peer_is() {
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
fn a_peer_has_only_so_many_names_looked_up() {
    let gateway = |number: usize| GatewayAddress {
        endpoints: (0..8).map(|endpoint| format!("gw{number}-{endpoint}.example:1")).chain(["192.0.2.1:1".to_owned()]).collect(),
        ..GatewayAddress::default()
    };
    let mut snapshot = fixtures::snapshot();
    let peer = snapshot.peers.values_mut().next().unwrap();
    peer.gateways = (0..16).map(gateway).collect();
    assert_eq!(names(&snapshot.peers).len(), MOST_NAMES);
}

/// Guests, each with a place for its packets.
fn guests(keys: &[u8]) -> BTreeMap<PublicKey, Inward> {
    keys.iter().map(|byte| (key(*byte), Inward(tokio::sync::mpsc::channel(1).0))).collect()
}

#[test]
fn a_gateway_listens_for_guests_although_there_is_no_peer_and_the_kernel_holds_nothing_for_them() {
    let alone = Snapshot { peers: BTreeMap::new(), guests: guests(&[5]), ..snapshot() };
    let held = wanted(&alone, "n1");
    assert_eq!(held.plan, NodePlan::default());
    let remotes = held.tunnel.unwrap().remotes;
    assert_eq!(remotes.iter().map(|remote| remote.public_key).collect::<Vec<_>>(), [key(5)]);
    assert!(remotes[0].prefixes.is_empty() && remotes[0].endpoint.is_none() && remotes[0].inward.is_some());
    assert_eq!(wanted(&Snapshot { guests: BTreeMap::new(), ..alone.clone() }, "n1").tunnel, None);
    assert_eq!(wanted(&alone, "n2").tunnel, None);
}

#[test]
fn the_door_is_shut_by_the_configuration_whatever_is_on_the_list() {
    let with = |enabled, api_through_tunnel| {
        let snapshot = snapshot();
        let settings = liqo_api::NetworkSettings { enabled, api_through_tunnel, ..snapshot.settings.clone() };
        Snapshot { settings, ..snapshot }
    };
    assert!(with(true, true).takes_guests("n1"));
    assert!(!with(true, true).takes_guests("n2"), "it is no gateway");
    assert!(!with(true, false).takes_guests("n1"));
    assert!(!with(false, true).takes_guests("n1"));
}

#[test]
fn a_peer_cannot_shut_a_guest_out_by_naming_its_key_as_one_of_its_gateways() {
    let both = Snapshot { guests: guests(&[2, 9]), ..snapshot() };
    let end = wanted(&both, "n1").tunnel.unwrap();
    let inward: Vec<(PublicKey, bool)> = end.remotes.iter().map(|one| (one.public_key, one.inward.is_some())).collect();
    assert_eq!(inward, [(key(1), false), (key(2), true)], "and our own key is nobody's");
    assert!(!end.owners.contains_key(&key(2)));
    assert!(!end.is_outdated(&BTreeSet::new()), "guests are not chosen from");
}
