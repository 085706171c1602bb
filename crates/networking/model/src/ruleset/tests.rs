use std::collections::BTreeSet;

use liqo_api::ApiServerEndpoint;

use super::*;
use crate::fixtures::{id, map, net};
use crate::{
    Here, PeerMaps, PrefixMap, There,
    fabric::{FabricNode, MacAddress, ReachableScope},
};

fn server(address: &str, stand_in: &str) -> ApiServerEndpoint {
    ApiServerEndpoint {
        address: address.parse().unwrap(),
        port: 6443,
        stand_in: stand_in.parse().unwrap(),
    }
}

/// One API server is on our node, another on a machine that is none.
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
    let (mac, gateway) = (
        MacAddress::from_hash([0; 5]),
        Some(FabricGateway {
            slot: 0,
            number: spread::gateway_number(&[0; 32]),
        }),
    );
    let node = FabricNode {
        addresses: vec!["172.18.0.1".parse().unwrap()],
        pods: vec![],
        mac,
        gateway,
    };
    Fabric {
        pods: vec![net("10.244.0.0/16")],
        external: vec![net("10.70.0.0/24")],
        api_servers: vec![
            server("172.18.0.1", "10.70.0.2"),
            server("192.0.2.9", "10.70.0.3"),
        ],
        nodes: [("n1".to_owned(), node)].into(),
        peers: [(
            id('a'),
            PeerNetwork {
                maps,
                reachable: ReachableScope::only_addresses(["10.244.0.9".parse().unwrap()]),
                api_server: Some(["10.246.0.7".parse().unwrap()].into()),
                ..PeerNetwork::default()
            },
        )]
        .into(),
        mtu: 1420,
    }
}

fn script(fabric: &Fabric, node: &str, family: &str, name: &str) -> String {
    let tables = node_tables(fabric, node);
    tables
        .into_iter()
        .find(|table| table.family == family && table.name == name)
        .map(|table| table.script)
        .unwrap_or_default()
}

#[test]
fn a_gateway_translates_and_opens_only_what_is_open() {
    let a = id('a');
    // Alone it carries all buckets, and takes the first.
    let everything = (0..16)
        .map(|bits| format!("0.0.0.{bits} : 10.71.0.{bits}"))
        .collect::<Vec<_>>()
        .join(", ");
    let expected = format!(
        r#"table ip liqo
delete table ip liqo
table ip liqo {{
	set remote {{ type ipv4_addr; flags interval; elements = {{ 10.72.0.0/24, 10.246.0.0/16 }}; }}
	set nodes {{ type ipv4_addr; elements = {{ 172.18.0.1 }}; }}
	set api_clients {{ type ipv4_addr; elements = {{ 10.246.0.7 }}; }}
	chain from_{a} {{
		ip saddr @api_clients ip daddr 10.71.0.2 tcp dport 443 dnat to 172.18.0.1:6443
		ip saddr @api_clients ip daddr 10.71.0.3 tcp dport 443 dnat to 192.0.2.9:6443
		dnat ip prefix to ip daddr map {{ 10.245.0.0/16 : 10.244.0.0/16 }}
		counter drop
	}}
	chain to_{a} {{
		snat ip prefix to ip saddr map {{ 10.244.0.0/16 : 10.245.0.0/16 }}
		snat to ip daddr & 0.0.0.15 map {{ {everything} }}
	}}
	set opened_{a} {{ type ipv4_addr; elements = {{ 10.244.0.9 }}; }}
	chain open_{a} {{
		ip daddr @opened_{a} accept
	}}
	chain prerouting {{
		type nat hook prerouting priority dstnat - 10; policy accept;
		iifname "liqo.tunnel" ip saddr vmap {{ 10.72.0.0/24 : jump from_{a}, 10.246.0.0/16 : jump from_{a} }}
	}}
	chain mss {{
		type filter hook forward priority mangle; policy accept;
		oifname "liqo.tunnel" tcp flags syn / syn,rst tcp option maxseg size set rt mtu
		iifname "liqo.tunnel" tcp flags syn / syn,rst tcp option maxseg size set rt mtu
	}}
	chain ports {{
		type filter hook postrouting priority srcnat + 50; policy accept;
		oifname != "liqo.tunnel" ip saddr @remote ct state new ct status snat tcp flags & (fin | syn | rst | ack) != syn counter drop
	}}
	chain via_0 {{
		meta mark set meta mark & 0xffffff0f | 0x00000010
	}}
	chain passing {{
		type filter hook prerouting priority filter - 90; policy accept;
		iifname "liqo.overlay" ip daddr @remote goto via_0
		iifname "liqo.tunnel" ct direction reply ct status dnat accept
		iifname "liqo.tunnel" goto via_0
	}}
	chain forward {{
		type filter hook forward priority filter - 10; policy accept;
		udp dport 6472 ip daddr @nodes counter drop
		iifname != {{ "liqo.tunnel", "liqo.overlay" }} oifname {{ "liqo.tunnel", "liqo.overlay" }} ip saddr @remote counter drop
		iifname "liqo.tunnel" ct state invalid counter drop
		iifname "liqo.tunnel" ct direction reply ct state established,related accept
		iifname "liqo.tunnel" ip saddr vmap {{ 10.72.0.0/24 : jump open_{a}, 10.246.0.0/16 : jump open_{a} }}
		ip saddr @api_clients ip daddr 172.18.0.1 tcp dport 6443 accept
		ip saddr @api_clients ip daddr 192.0.2.9 tcp dport 6443 accept
		iifname "liqo.tunnel" counter drop
	}}
	chain input {{
		type filter hook input priority filter - 10; policy accept;
		udp dport 6472 ip saddr != @nodes counter drop
		ip saddr @remote ct direction reply ct state established,related accept
		ip saddr @api_clients ip daddr 172.18.0.1 tcp dport 6443 accept
		ip saddr @api_clients ip daddr 192.0.2.9 tcp dport 6443 accept
		ip saddr @remote counter drop
		iifname "liqo.tunnel" counter drop
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat - 10; policy accept;
		oifname "liqo.tunnel" ip daddr vmap {{ 10.72.0.0/24 : jump to_{a}, 10.246.0.0/16 : jump to_{a} }}
		ip saddr @api_clients ip daddr 192.0.2.9 tcp dport 6443 masquerade
		ip saddr @remote snat ip prefix to ip saddr map {{ 10.72.0.0/24 : 10.72.0.0/24, 10.246.0.0/16 : 10.246.0.0/16 }}
		oifname "liqo.overlay" ip daddr @remote snat ip prefix to ip saddr map {{ 10.244.0.0/16 : 10.244.0.0/16 }}
	}}
}}
"#
    );
    let script = script(&fabric(), "n1", "ip", TABLE);
    let (before, comment) = (script.lines().count(), |line: &&str| {
        line.starts_with("\tcomment \"")
    });
    let without: Vec<&str> = script.lines().filter(|line| !comment(line)).collect();
    assert_eq!(without, expected.lines().collect::<Vec<_>>());
    assert_eq!(without.len() + 1, before);
}

#[test]
fn connections_that_exist_go_on_to_a_pod_that_gets_no_new_ones() {
    let (mut fabric, a) = (fabric(), id('a'));
    let reachable = |addresses: &[&str]| ReachableScope::Only {
        all: ["10.244.0.9".parse().unwrap()].into(),
        established: addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect(),
    };
    let mut open = |addresses: &[&str]| {
        fabric.peers.get_mut(&a).unwrap().reachable = reachable(addresses);
        let script = script(&fabric, "n1", "ip", TABLE);
        [format!("set established_{a}"), format!("chain open_{a}")]
            .map(|name| lines(&script, &name))
    };
    let for_all = format!("ip daddr @opened_{a} accept");
    let set = format!("set established_{a} {{ type ipv4_addr; elements = {{ 10.244.0.8 }}; }}");
    let for_established = format!("ct state established,related ip daddr @established_{a} accept");
    assert_eq!(
        open(&["10.244.0.8", "fd00::8"]),
        [vec![set], vec![for_all.clone(), for_established]]
    );
    assert_eq!(
        open(&["fd00::8"]),
        [Vec::new(), vec![for_all]],
        "no set without an address of this family"
    );
}

#[test]
fn the_guard_lets_pass_only_addresses_that_this_peer_knows_us_by() {
    let (guard, a) = (script(&fabric(), "n1", "ip", GUARD), id('a'));
    for line in [
        "ip saddr { 10.71.0.0/24, 10.245.0.0/16 } accept".to_owned(),
        "ip daddr { 10.71.0.0/24, 10.245.0.0/16 } accept".to_owned(),
        format!(
            "oifname \"liqo.tunnel\" ip daddr vmap {{ 10.72.0.0/24 : jump out_{a}, 10.246.0.0/16 : jump out_{a} }}"
        ),
        format!(
            "iifname \"liqo.tunnel\" ip saddr vmap {{ 10.72.0.0/24 : jump in_{a}, 10.246.0.0/16 : jump in_{a} }}"
        ),
        "oifname \"liqo.tunnel\" counter drop".to_owned(),
        "iifname \"liqo.tunnel\" counter drop".to_owned(),
    ] {
        assert!(guard.contains(&line), "{line} is not in {guard}");
    }
}

/// A broker: `c` is a customer whose pods we offloaded on to `p`, `d` a customer without pods
/// there.
fn broker() -> Fabric {
    let peer = |exported: &[(&str, &str)], imported: &str| PeerNetwork {
        maps: PeerMaps {
            exported: map(exported),
            imported: map(&[(imported, "10.244.0.0/16")]),
        },
        reachable: ReachableScope::Everything,
        ..PeerNetwork::default()
    };
    let own = ("10.244.0.0/16", "10.64.0.0/16");
    let offloaded = ["10.244.0.5", "10.81.0.7", "fd81::7"]
        .map(|address| address.parse().unwrap())
        .into();
    let customer = PeerNetwork {
        offloaded,
        ..peer(&[own, ("10.81.0.0/16", "10.65.0.0/16")], "10.82.0.0/16")
    };
    let provider = PeerNetwork {
        customers: [id('c')].into(),
        ..peer(&[own, ("10.82.0.0/16", "10.66.0.0/16")], "10.81.0.0/16")
    };
    let other = PeerNetwork {
        offloaded: ["10.244.0.6".parse().unwrap()].into(),
        ..peer(&[own], "10.83.0.0/16")
    };
    let peers = [(id('c'), customer), (id('p'), provider), (id('d'), other)].into();
    Fabric {
        peers,
        api_servers: Vec::new(),
        ..fabric()
    }
}

/// The lines of a chain or set.
fn lines(script: &str, name: &str) -> Vec<String> {
    let mut lines = script
        .lines()
        .skip_while(|line| !line.contains(&format!("{name} {{")));
    let first = lines.next().unwrap_or_default();
    if first.contains('}') {
        return vec![first.trim().to_owned()];
    }
    lines
        .take_while(|line| line.trim() != "}")
        .map(|line| line.trim().to_owned())
        .collect()
}

#[test]
fn a_customer_and_its_pods_at_a_provider_reach_each_other_and_nothing_else_there() {
    let (script, [c, p, d]) = (
        script(&broker(), "n1", "ip", TABLE),
        ['c', 'p', 'd'].map(id),
    );
    let set = format!("set pods_{c} {{ type ipv4_addr; elements = {{ 10.81.0.7, 10.244.0.5 }}; }}");
    assert_eq!(lines(&script, &format!("set pods_{c}")), [set]);
    assert!(
        !script.contains(&format!("pods_{d}")),
        "it has no pods at a peer"
    );
    let own = "ip daddr { 10.244.0.0/16 } accept".to_owned();
    assert_eq!(
        lines(&script, &format!("chain open_{c}")),
        [own.clone(), format!("ip daddr @pods_{c} accept")]
    );
    let to_customer = format!("ip saddr @pods_{c} ip daddr {{ 10.82.0.0/16 }} accept");
    let among_pods = format!("ip saddr @pods_{c} ip daddr @pods_{c} accept");
    assert_eq!(
        lines(&script, &format!("chain open_{p}")),
        [own.clone(), to_customer, among_pods]
    );
    assert_eq!(lines(&script, &format!("chain open_{d}")), [own]);
    // Each is translated to what the other side knows.
    let to_provider = "snat ip prefix to ip saddr map { 10.82.0.0/16 : 10.66.0.0/16, 10.244.0.0/16 : 10.64.0.0/16 }";
    assert!(
        lines(&script, &format!("chain to_{p}")).contains(&to_provider.to_owned()),
        "{script}"
    );
}

#[test]
fn peers_with_transit_reach_all_that_is_exported_to_them() {
    let mut fabric = broker();
    for letter in ['c', 'p'] {
        fabric.peers.get_mut(&id(letter)).unwrap().transit = true;
    }
    let script = script(&fabric, "n1", "ip", TABLE);
    let of = |letter: char| lines(&script, &format!("chain open_{}", id(letter)))[0].clone();
    assert_eq!(of('c'), "ip daddr { 10.81.0.0/16, 10.244.0.0/16 } accept");
    assert_eq!(of('p'), "ip daddr { 10.82.0.0/16, 10.244.0.0/16 } accept");
}

#[test]
fn peers_that_may_reach_an_api_server_reach_its_port_and_nothing_else() {
    let mut fabric = fabric();
    let maps = PeerMaps {
        exported: map(&[("10.70.0.0/24", "10.9.0.0/24")]),
        imported: map(&[("10.247.0.0/16", "10.244.0.0/16")]),
    };
    fabric.peers.insert(
        id('b'),
        PeerNetwork {
            maps,
            reachable: ReachableScope::Everything,
            api_server: None,
            ..PeerNetwork::default()
        },
    );
    // On the gateway, and on the other nodes.
    for (node, rules) in [("n1", 7), ("n2", 3)] {
        let script = script(&fabric, node, "ip", TABLE);
        let named = |line: &&str| line.contains("172.18.0.1") || line.contains("192.0.2.9");
        let lines: Vec<&str> = script
            .lines()
            .filter(named)
            .filter(|line| !line.contains("set nodes"))
            .collect();
        assert!(
            lines
                .iter()
                .all(|line| line.contains(" tcp dport ") && !line.contains("10.247.")),
            "{lines:?}"
        );
        assert_eq!(lines.len(), rules, "{lines:?}");
        assert!(!script.contains("ip daddr 10.9.0.2"), "{script}");
    }
    // Only the pods that use it, on the gateway. Other nodes get packets of peers from gateways
    // alone.
    let all = "ip saddr { 10.72.0.0/24, 10.246.0.0/16 } ip daddr 172.18.0.1 tcp dport 6443";
    assert!(
        !script(&fabric, "n1", "ip", TABLE).contains(all)
            && script(&fabric, "n2", "ip", TABLE).contains(all)
    );
    fabric.peers.get_mut(&id('a')).unwrap().api_server = Some(BTreeSet::new());
    let closed = script(&fabric, "n1", "ip", TABLE);
    assert!(
        closed.contains("set api_clients { type ipv4_addr; }") && !closed.contains("10.246.0.7"),
        "{closed}"
    );
    fabric.peers.get_mut(&id('a')).unwrap().api_server = None;
    assert!(!script(&fabric, "n1", "ip", TABLE).contains("6443"));
    // A peer that has not said where it sees the stand-in.
    let peer = fabric.peers.get_mut(&id('a')).unwrap();
    peer.api_server = Some(BTreeSet::new());
    peer.maps.exported = map(&[("10.244.0.0/16", "10.245.0.0/16")]);
    assert!(!script(&fabric, "n1", "ip", TABLE).contains("6443"));
}

#[test]
fn a_gateway_counts_the_first_packets_of_each_peer_before_it_translates_them() {
    let (script, a) = (script(&fabric(), "n1", "ip", LIMITS), id('a'));
    for line in [
        format!("set connections_{a} {{ type mark; size 64; flags dynamic; }}"),
        format!(
            "add @connections_{a} {{ jhash ip saddr . ip daddr . th sport . th dport mod 64 ct count over 512 }} counter drop"
        ),
        // Tracking has the priority -200, translation that of the chain prerouting (-110).
        "type filter hook prerouting priority mangle; policy accept;".to_owned(),
        format!(
            "ip saddr vmap {{ 10.72.0.0/24 : jump limit_{a}, 10.246.0.0/16 : jump limit_{a} }}"
        ),
    ] {
        assert!(script.contains(&line), "{line} is not in {script}");
    }
    assert_eq!(self::script(&fabric(), "n2", "ip", LIMITS), "");
    // The kernel forgets what it counted when the table is replaced, so what is open must not be in
    // it.
    let mut other = fabric();
    other.peers.get_mut(&id('a')).unwrap().reachable = ReachableScope::Everything;
    assert_eq!(self::script(&other, "n1", "ip", LIMITS), script);
}

#[test]
fn a_node_that_is_not_a_gateway_only_keeps_sources_visible() {
    let tables = node_tables(&fabric(), "n2");
    let [table] = tables.as_slice() else {
        panic!("one table")
    };
    assert!(!table.script.contains("liqo.tunnel"), "{}", table.script);
    assert!(
        table
            .script
            .contains("oifname \"liqo.overlay\" ip daddr @remote"),
        "{}",
        table.script
    );
}

#[test]
fn ipv6_has_tables_of_its_own() {
    let mut fabric = fabric();
    assert_eq!(script(&fabric, "n1", "ip6", TABLE), "");
    let peer = fabric.peers.get_mut(&id('a')).unwrap();
    peer.maps
        .imported
        .insert(Here(net("fd00:1::/64")), There(net("fd00:9::/64")))
        .unwrap();
    peer.maps
        .exported
        .insert(Here(net("fd00:2::/64")), There(net("fd00:8::/64")))
        .unwrap();
    fabric.pods.push(net("fd00:2::/64"));
    let script = script(&fabric, "n1", "ip6", TABLE);
    assert!(
        script.contains("dnat ip6 prefix to ip6 daddr map { fd00:8::/64 : fd00:2::/64 }"),
        "{script}"
    );
    assert!(!script.contains("10."), "{script}");
}

/// Even if the overlay runs over a family without prefixes of peers, only nodes may speak in it.
#[test]
fn the_overlay_is_closed_whatever_family_it_runs_over() {
    let mut fabric = fabric();
    let maps = &mut fabric.peers.get_mut(&id('a')).unwrap().maps;
    *maps = PeerMaps {
        exported: map(&[("fd44::/56", "fd45::/56")]),
        imported: map(&[("fd46::/56", "fd44::/56")]),
    };
    for name in ["n1", "n2"] {
        let script = script(&fabric, name, "ip", TABLE);
        assert!(
            script.contains("udp dport 6472 ip saddr != @nodes counter drop"),
            "{script}"
        );
        assert!(
            script.contains("udp dport 6472 ip daddr @nodes counter drop"),
            "{script}"
        );
        assert!(!script.contains("remote"), "{script}");
        assert_eq!(self::script(&fabric, name, "ip", GUARD), "");
        assert!(!self::script(&fabric, name, "ip6", TABLE).contains("fib"));
    }
    // For IPv6 nothing else checks where a packet comes from.
    fabric.nodes.get_mut("n1").unwrap().addresses = vec!["fd18::1".parse().unwrap()];
    assert_eq!(script(&fabric, "n1", "ip", TABLE), "");
    let script = script(&fabric, "n1", "ip6", TABLE);
    assert!(
        script.contains("udp dport 6472 fib saddr . iif oif missing counter drop"),
        "{script}"
    );
}

#[test]
fn a_peer_that_has_not_said_how_it_sees_us_gets_nothing_out() {
    let mut fabric = fabric();
    fabric.peers.get_mut(&id('a')).unwrap().maps.exported = PrefixMap::default();
    let guard = script(&fabric, "n1", "ip", GUARD);
    assert!(!guard.contains(" accept\n"), "{guard}");
    let table = script(&fabric, "n1", "ip", TABLE);
    assert!(!table.contains("snat to "), "{table}");
}

/// Three nodes, of which the first two are gateways.
fn two_gateways() -> Fabric {
    let mut fabric = fabric();
    let first = fabric.nodes["n1"].clone();
    let gateway = Some(FabricGateway {
        slot: 1,
        number: spread::gateway_number(&[1; 32]),
    });
    fabric.nodes.insert(
        "n2".to_owned(),
        FabricNode {
            gateway,
            addresses: vec!["172.18.0.2".parse().unwrap()],
            ..first.clone()
        },
    );
    fabric.nodes.insert(
        "n3".to_owned(),
        FabricNode {
            gateway: None,
            addresses: vec!["172.18.0.3".parse().unwrap()],
            ..first
        },
    );
    fabric
}

#[test]
fn a_node_marks_packets_that_another_gateway_carries() {
    let fabric = two_gateways();
    let script = script(&fabric, "n3", "ip", TABLE);
    let carried = spread::each_bucket(fabric.carried_by("n2"))
        .map(|bucket| format!("0x{:08x} : goto via_1", u32::from(bucket) << 4));
    let carried: Vec<String> = carried.collect();
    assert_eq!(carried.len(), 8);
    let bits = |name: &str, first: &str, fields: [&str; 2]| {
        let bits = fields
            .into_iter()
            .flat_map(|field| [1, 2, 4, 8].map(|bit| (field, bit)));
        let line = |(field, bit)| {
            format!(
                "\t\t{field} & 0.0.0.{bit} == 0.0.0.{bit} meta mark set meta mark ^ 0x000000{bit}0\n"
            )
        };
        let bits: String = bits.map(line).collect();
        format!(
            "\tchain {name} {{\n{first}\t\tmeta mark set meta mark & 0xffffff0f\n{bits}\t\tgoto by_mark\n\t}}\n"
        )
    };
    let expected = format!(
        "	chain via_1 {{
		meta mark set meta mark & 0xffffff0f | 0x00000020
	}}
	chain by_mark {{
		meta mark & 0x000000f0 vmap {{ {} }}
		meta mark set meta mark & 0xffffff0f
	}}
{}{}	chain starting {{
		type route hook output priority filter - 90; policy accept;
		ip daddr @remote jump by_bucket
	}}
	chain passing {{
		type filter hook prerouting priority filter - 90; policy accept;
		ip daddr @remote jump by_bucket
	}}
",
        carried.join(", "),
        // ICMP errors of a connection, by the connection's client and server.
        bits(
            "by_connection",
            "",
            ["ct original ip saddr", "ct reply ip saddr"]
        ),
        bits(
            "by_bucket",
            "\t\tct state related goto by_connection\n",
            ["ip saddr", "ip daddr"]
        ),
    );
    assert!(script.contains(&expected), "{script}");
}

#[test]
fn no_bucket_is_marked_twice_although_the_keys_of_two_gateways_have_one_number() {
    let mut fabric = two_gateways();
    let copy = fabric.nodes["n2"].clone();
    let gateway = copy
        .gateway
        .map(|gateway| FabricGateway { slot: 2, ..gateway });
    fabric
        .nodes
        .insert("n4".to_owned(), FabricNode { gateway, ..copy });
    let script = script(&fabric, "n3", "ip", TABLE);
    assert_eq!(
        (
            script.matches(" : goto via_1").count(),
            script.matches(" : goto via_2").count()
        ),
        (8, 0),
        "{script}"
    );
}

#[test]
fn a_gateway_passes_packets_from_the_overlay_into_its_tunnel() {
    let fabric = two_gateways();
    for (own, here, other) in [("n1", "via_0", "goto via_1"), ("n2", "via_1", "goto via_0")] {
        let script = script(&fabric, own, "ip", TABLE);
        assert!(
            script.contains(&format!(
                "iifname \"liqo.overlay\" ip daddr @remote goto {here}"
            )),
            "{script}"
        );
        let from_peers = "iifname \"liqo.overlay\" ip saddr @remote ip daddr != @remote ";
        assert!(script.contains(&format!("{from_peers}{other}")), "{script}");
        assert_eq!(script.matches(other).count(), 8 + 1, "{script}");
    }
}

#[test]
fn answers_to_a_stand_in_come_back_to_the_gateway_that_chose_it() {
    let fabric = two_gateways();
    for gateway in ["n1", "n2"] {
        let carried = fabric.carried_by(gateway);
        let all = fallback_stand_ins(&fabric, gateway, &net("10.71.0.0/24"), IpFamily::V4);
        let answered: Vec<(std::net::IpAddr, std::net::IpAddr)> = all
            .iter()
            .map(|pair| {
                pair.split_once(" : ")
                    .map(|(to, stand_in)| (to.parse().unwrap(), stand_in.parse().unwrap()))
                    .unwrap()
            })
            .collect();
        assert_eq!(answered.len(), 16);
        assert!(
            answered
                .iter()
                .all(|(to, stand_in)| carried >> spread::bucket_between(*to, *stand_in) & 1 == 1),
            "{all:?}"
        );
    }
}

#[test]
fn the_guards_fingerprint_says_what_the_gateway_carries() {
    let fabric = two_gateways();
    for gateway in ["n1", "n2"] {
        let guard = node_tables(&fabric, gateway)
            .into_iter()
            .find(|table| table.name == GUARD)
            .unwrap();
        assert_eq!(
            buckets_in_fingerprint(&guard.fingerprint),
            fabric.carried_by(gateway)
        );
    }
    assert_eq!(
        (
            buckets_in_fingerprint("abc"),
            buckets_in_fingerprint(""),
            buckets_in_fingerprint("abc ffff")
        ),
        (0, 0, Buckets::MAX)
    );
}

#[test]
fn the_fingerprint_changes_with_the_content_and_only_with_it() {
    let of = |fabric: &Fabric| {
        node_tables(fabric, "n1")
            .iter()
            .map(|table| table.fingerprint.clone())
            .collect::<Vec<_>>()
    };
    let mut fabric = fabric();
    let before = of(&fabric);
    assert_eq!(of(&fabric), before);
    fabric.peers.get_mut(&id('a')).unwrap().reachable =
        ReachableScope::only_addresses(["10.244.0.10".parse().unwrap()]);
    assert_ne!(of(&fabric), before);
}
