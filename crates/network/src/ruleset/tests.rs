use super::*;
use crate::fixtures::{id, map, net};
use crate::{
    Externals, PeerMaps, PrefixMap, There,
    plan::{Mac, Node, Peer},
};

fn fabric() -> Fabric {
    let maps = PeerMaps {
        exported: map(&[("10.244.0.0/16", "10.245.0.0/16"), ("10.70.0.0/24", "10.71.0.0/24")]),
        imported: map(&[("10.246.0.0/16", "10.244.0.0/16"), ("10.72.0.0/24", "10.70.0.0/24")]),
    };
    let node = Node { addresses: vec!["172.18.0.1".parse().unwrap()], pods: vec![], mac: Mac::of([0; 5]), is_gateway: true };
    Fabric {
        pods: vec![net("10.244.0.0/16")],
        external: vec![net("10.70.0.0/24")],
        externals: Externals::recorded([("192.0.2.9".parse().unwrap(), "10.70.0.2".parse().unwrap())]),
        nodes: [("n1".to_owned(), node)].into(),
        peers: [(id('a'), Peer { maps, open: Open::Only(["10.244.0.9".parse().unwrap()].into()) })].into(),
        mtu: 1420,
    }
}

fn script(fabric: &Fabric, is_gateway: bool, family: &str, name: &str) -> String {
    let tables = tables(fabric, is_gateway);
    tables.into_iter().find(|table| table.family == family && table.name == name).map(|table| table.script).unwrap_or_default()
}

#[test]
fn a_gateway_translates_and_opens_only_what_is_open() {
    let a = id('a');
    let expected = format!(
        r#"table ip liqo
delete table ip liqo
table ip liqo {{
	set remote {{ type ipv4_addr; flags interval; elements = {{ 10.72.0.0/24, 10.246.0.0/16 }}; }}
	set nodes {{ type ipv4_addr; elements = {{ 172.18.0.1 }}; }}
	chain from_{a} {{
		dnat ip prefix to ip daddr map {{ 10.245.0.0/16 : 10.244.0.0/16, 10.71.0.2/32 : 192.0.2.9/32 }}
		counter drop
	}}
	chain to_{a} {{
		snat ip prefix to ip saddr map {{ 10.244.0.0/16 : 10.245.0.0/16, 192.0.2.9/32 : 10.71.0.2/32 }}
		snat to 10.71.0.1
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
	chain forward {{
		type filter hook forward priority filter - 10; policy accept;
		udp dport 6472 ip daddr @nodes counter drop
		iifname "liqo.tunnel" ct direction reply ct state established,related accept
		iifname "liqo.tunnel" ip saddr vmap {{ 10.72.0.0/24 : jump open_{a}, 10.246.0.0/16 : jump open_{a} }}
		iifname "liqo.tunnel" counter drop
	}}
	chain input {{
		type filter hook input priority filter - 10; policy accept;
		udp dport 6472 ip saddr != @nodes counter drop
		ip saddr @remote ct direction reply ct state established,related accept
		ip saddr @remote counter drop
		iifname "liqo.tunnel" counter drop
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat - 10; policy accept;
		oifname "liqo.tunnel" ip daddr vmap {{ 10.72.0.0/24 : jump to_{a}, 10.246.0.0/16 : jump to_{a} }}
		ip saddr @remote snat ip prefix to ip saddr map {{ 10.72.0.0/24 : 10.72.0.0/24, 10.246.0.0/16 : 10.246.0.0/16 }}
		oifname "liqo.overlay" ip daddr @remote snat ip prefix to ip saddr map {{ 10.244.0.0/16 : 10.244.0.0/16 }}
	}}
}}
"#
    );
    let script = script(&fabric(), true, "ip", TABLE);
    let (before, comment) = (script.lines().count(), |line: &&str| line.starts_with("\tcomment \""));
    let without: Vec<&str> = script.lines().filter(|line| !comment(line)).collect();
    assert_eq!(without, expected.lines().collect::<Vec<_>>());
    assert_eq!(without.len() + 1, before);
}

#[test]
fn the_guard_lets_pass_only_addresses_that_this_peer_knows_us_by() {
    let (guard, a) = (script(&fabric(), true, "ip", GUARD), id('a'));
    for line in [
        "ip saddr { 10.71.0.0/24, 10.245.0.0/16 } accept".to_owned(),
        "ip daddr { 10.71.0.0/24, 10.245.0.0/16 } accept".to_owned(),
        format!("oifname \"liqo.tunnel\" ip daddr vmap {{ 10.72.0.0/24 : jump out_{a}, 10.246.0.0/16 : jump out_{a} }}"),
        format!("iifname \"liqo.tunnel\" ip saddr vmap {{ 10.72.0.0/24 : jump in_{a}, 10.246.0.0/16 : jump in_{a} }}"),
        "oifname \"liqo.tunnel\" counter drop".to_owned(),
        "iifname \"liqo.tunnel\" counter drop".to_owned(),
    ] {
        assert!(guard.contains(&line), "{line} is not in {guard}");
    }
}

#[test]
fn a_single_address_within_an_exported_prefix_needs_no_stand_in() {
    let mut fabric = fabric();
    fabric.externals = Externals::recorded([("10.244.0.5".parse().unwrap(), "10.70.0.2".parse().unwrap())]);
    let script = script(&fabric, true, "ip", TABLE);
    assert!(script.contains("map { 10.245.0.0/16 : 10.244.0.0/16 }"), "{script}");
}

#[test]
fn a_node_that_is_no_gateway_only_keeps_sources_visible() {
    let tables = tables(&fabric(), false);
    let [table] = tables.as_slice() else { panic!("one table") };
    assert!(!table.script.contains("liqo.tunnel"), "{}", table.script);
    assert!(table.script.contains("oifname \"liqo.overlay\" ip daddr @remote"), "{}", table.script);
}

#[test]
fn ipv6_has_tables_of_its_own() {
    let mut fabric = fabric();
    assert_eq!(script(&fabric, true, "ip6", TABLE), "");
    let peer = fabric.peers.get_mut(&id('a')).unwrap();
    peer.maps.imported.insert(Here(net("fd00:1::/64")), There(net("fd00:9::/64"))).unwrap();
    peer.maps.exported.insert(Here(net("fd00:2::/64")), There(net("fd00:8::/64"))).unwrap();
    fabric.pods.push(net("fd00:2::/64"));
    let script = script(&fabric, true, "ip6", TABLE);
    assert!(script.contains("dnat ip6 prefix to ip6 daddr map { fd00:8::/64 : fd00:2::/64 }"), "{script}");
    assert!(!script.contains("10."), "{script}");
}

#[test]
fn a_peer_that_has_not_said_how_it_sees_us_gets_nothing_out() {
    let mut fabric = fabric();
    fabric.peers.get_mut(&id('a')).unwrap().maps.exported = PrefixMap::default();
    let guard = script(&fabric, true, "ip", GUARD);
    assert!(!guard.contains(" accept\n"), "{guard}");
    let table = script(&fabric, true, "ip", TABLE);
    assert!(!table.contains("snat to "), "{table}");
}

#[test]
fn the_fingerprint_changes_with_the_content_and_only_with_it() {
    let of = |fabric: &Fabric| tables(fabric, true).iter().map(|table| table.fingerprint.clone()).collect::<Vec<_>>();
    let mut fabric = fabric();
    let before = of(&fabric);
    assert_eq!(of(&fabric), before);
    fabric.peers.get_mut(&id('a')).unwrap().open = Open::Only(["10.244.0.10".parse().unwrap()].into());
    assert_ne!(of(&fabric), before);
}
