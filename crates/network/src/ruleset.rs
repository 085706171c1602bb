//! The text of a node's nftables.
//!
//! Two tables for each family that is in use. `liqo` translates and filters; it is replaced as a whole in one transaction, so no
//! packet ever meets half of it. `liqo_guard` is tiny and stays: it drops what would enter the tunnel from an address by which the
//! peer does not know us, which is what happens to packets while the other table is not there, and what comes out of it for any
//! other address. Such a packet must not pass: the kernel would remember its wrong translation for as long as the connection lives.
//!
//! Where there are several gateways, each node marks what is for peers by the gateway that carries it ([`crate::spread`]), so that it
//! takes the way there. That is done where the destination is what it really is, behind the translation of Services. What came in by
//! the overlay goes on by the tunnel as it is: whoever sent it here knew why, and it cannot go round. Errors that a node has to tell of
//! a connection go where its packets go, whatever the node's own address is: no other gateway knows it.
//!
//! What checks of sources (`rp_filter`) do for IPv4, where they are on, nothing does for IPv6. So the tables see to it themselves, as far
//! as it matters to others than the pods here: nobody speaks in a peer's name to another one, and nobody but nodes in the overlay.
//!
//! The chains that translate stand a little before the usual places (`dstnat`, `srcnat`), because the first chain that binds a
//! connection wins: so the masquerading of CNIs and kube-proxy does not hide who is talking.

mod api_server;

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::{ClusterId, short_hash};

use crate::{
    map::fallback,
    plan::{Fabric, Gateway, MARK_MASK, OVERLAY, OVERLAY_PORT, Open, Peer, TUNNEL},
    space::single,
    spread::{self, BUCKETS, Buckets},
};

/// Name of the table that translates.
pub const TABLE: &str = "liqo";
/// Name of the table that stays.
pub const GUARD: &str = "liqo_guard";

/// One table of nftables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// `ip` or `ip6`.
    pub family: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What tells this content from any other; it stands in the table as its comment. In the guard's stands also what the gateway
    /// carries: see [`carried`].
    pub fingerprint: String,
    /// What replaces it, in one transaction.
    pub script: String,
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn keyword(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
        }
    }

    /// The low bits of an address, as an address.
    fn bits(self, bits: u8) -> String {
        match self {
            Self::V4 => format!("0.0.0.{bits}"),
            Self::V6 => format!("::{bits:x}"),
        }
    }

    fn is_v4(self) -> bool {
        self == Self::V4
    }

    fn has(self, prefix: &IpNet) -> bool {
        prefix.addr().is_ipv4() == self.is_v4()
    }
}

/// The tables of a node, guard first.
pub fn tables(fabric: &Fabric, node: &str) -> Vec<Table> {
    let of_family = |family: Family| {
        if fabric.has_remote(family.is_v4()) {
            of_family(fabric, node, family)
        } else if family.is_v4() == fabric.overlay_is_v4() {
            vec![table(fabric, node, family, TABLE, &overlay_alone(fabric, family))]
        } else {
            Vec::new()
        }
    };
    [Family::V4, Family::V6].into_iter().flat_map(of_family).collect()
}

/// What the gateway carries on which a guard has this fingerprint.
pub fn carried(fingerprint: &str) -> Buckets {
    let buckets = fingerprint.split_once(' ').and_then(|(_, buckets)| Buckets::from_str_radix(buckets, 16).ok());
    buckets.unwrap_or_default()
}

fn of_family(fabric: &Fabric, node: &str, family: Family) -> Vec<Table> {
    let guard = is_gateway(fabric, node).then(|| table(fabric, node, family, GUARD, &guard(fabric, family)));
    guard.into_iter().chain([table(fabric, node, family, TABLE, &body(fabric, node, family))]).collect()
}

fn table(fabric: &Fabric, node: &str, family: Family, name: &'static str, body: &str) -> Table {
    let keyword = family.keyword();
    let carries = if name == GUARD { format!(" {:04x}", fabric.carried_by(node)) } else { String::new() };
    let fingerprint = format!("{}{carries}", short_hash(body));
    // The first line makes sure that there is something to delete.
    let script = format!(
        "table {keyword} {name}\ndelete table {keyword} {name}\n\
         table {keyword} {name} {{\n\tcomment \"{fingerprint}\"\n{body}}}\n"
    );
    Table { family: keyword, name, fingerprint, script }
}

fn is_gateway(fabric: &Fabric, node: &str) -> bool {
    fabric.nodes.get(node).is_some_and(|node| node.gateway.is_some())
}

/// Between us and each peer only what both agreed on: out of the tunnel only to addresses by which the peer knows us, and into it
/// only from these.
fn guard(fabric: &Fabric, family: Family) -> String {
    let keyword = family.keyword();
    let mut text = String::new();
    for (id, peer) in &fabric.peers {
        let known = peer.maps.exported.pairs().map(|(_, there)| there.0).filter(|prefix| family.has(prefix));
        let known: Vec<IpNet> = known.collect();
        for (name, field) in [("out", "saddr"), ("in", "daddr")] {
            let accept = format!("{keyword} {field} {{ {} }} accept", elements(&known));
            let rules = if known.is_empty() { Vec::new() } else { vec![accept] };
            chain(&mut text, &format!("{name}_{id}"), "", &rules);
        }
    }
    chain(
        &mut text,
        "postrouting",
        "type filter hook postrouting priority srcnat + 50; policy accept;",
        &[
            format!("oifname \"{TUNNEL}\" {keyword} daddr vmap {{ {} }}", verdicts(fabric, family, "out")),
            format!("oifname \"{TUNNEL}\" counter drop"),
        ],
    );
    chain(
        &mut text,
        "prerouting",
        "type filter hook prerouting priority raw; policy accept;",
        &[
            format!("iifname \"{TUNNEL}\" {keyword} saddr vmap {{ {} }}", verdicts(fabric, family, "in")),
            format!("iifname \"{TUNNEL}\" counter drop"),
        ],
    );
    text
}

/// Where the overlay runs over a family that peers have no prefixes of.
fn overlay_alone(fabric: &Fabric, family: Family) -> String {
    let mut text = nodes_set(fabric, family);
    let (input, forward) = overlay_rules(fabric, family);
    filter_chains(&mut text, &input, &forward);
    text
}

fn nodes(fabric: &Fabric, family: Family) -> Vec<IpAddr> {
    let nodes = fabric.nodes.values().flat_map(|node| node.addresses.iter().copied());
    nodes.filter(|&address| family.has(&single(address))).collect()
}

fn nodes_set(fabric: &Fabric, family: Family) -> String {
    set(family, "nodes", "", nodes(fabric, family))
}

/// Only nodes themselves talk in the overlay: what comes in for it, and what passes. What pods send to other nodes looks like their
/// node's there; what says to be another node's, and comes from where that one is not, is a pod's.
fn overlay_rules(fabric: &Fabric, family: Family) -> (Vec<String>, Vec<String>) {
    let keyword = family.keyword();
    let mut input = vec![format!("udp dport {OVERLAY_PORT} {keyword} saddr != @nodes counter drop")];
    if family == Family::V6 && !fabric.overlay_is_v4() {
        input.push(format!("udp dport {OVERLAY_PORT} fib saddr . iif oif missing counter drop"));
    }
    (input, vec![format!("udp dport {OVERLAY_PORT} {keyword} daddr @nodes counter drop")])
}

fn filter_chains(text: &mut String, input: &[String], forward: &[String]) {
    chain(text, "forward", "type filter hook forward priority filter - 10; policy accept;", forward);
    chain(text, "input", "type filter hook input priority filter - 10; policy accept;", input);
}

fn body(fabric: &Fabric, node: &str, family: Family) -> String {
    let (keyword, is_gateway) = (family.keyword(), is_gateway(fabric, node));
    let remote: Vec<IpNet> = fabric.remote().into_iter().filter(|prefix| family.has(prefix)).collect();
    let pods: Vec<IpNet> = fabric.pods.iter().filter(|prefix| family.has(prefix)).copied().collect();
    let nodes = nodes(fabric, family);
    let mut text = set(family, "remote", INTERVAL, &remote);
    text.push_str(&nodes_set(fabric, family));
    let mut postrouting = Vec::new();
    // Answers to what began here, and what belongs to them. Whatever a peer began is looked at packet by packet, so that what is
    // closed is closed for connections that stand, too.
    let answers = "ct direction reply ct state established,related accept";
    let (mut input, mut forward) = overlay_rules(fabric, family);
    input.push(format!("{keyword} saddr @remote {answers}"));
    input.extend(api_server::reached(fabric, family, "accept", |_| true));
    input.push(format!("{keyword} saddr @remote counter drop"));
    // What is a peer's comes by these ways, and is nobody else's to say to another one.
    let ways = if is_gateway { [TUNNEL, OVERLAY].as_slice() } else { &[OVERLAY] };
    let ways = format!("{{ {} }}", elements(ways.iter().map(|device| format!("\"{device}\""))));
    forward.push(format!("iifname != {ways} oifname {ways} {keyword} saddr @remote counter drop"));
    if is_gateway {
        for (id, peer) in &fabric.peers {
            peer_chains(&mut text, fabric, node, family, (id, peer));
        }
        let by_peer = |chain: &str| verdicts(fabric, family, chain);
        forward.extend([
            format!("iifname \"{TUNNEL}\" {answers}"),
            format!("iifname \"{TUNNEL}\" {keyword} saddr vmap {{ {} }}", by_peer("open")),
        ]);
        forward.extend(api_server::reached(fabric, family, "accept", |_| true));
        forward.push(format!("iifname \"{TUNNEL}\" counter drop"));
        chain(
            &mut text,
            "prerouting",
            "type nat hook prerouting priority dstnat - 10; policy accept;",
            &[format!("iifname \"{TUNNEL}\" {keyword} saddr vmap {{ {} }}", by_peer("from"))],
        );
        input.push(format!("iifname \"{TUNNEL}\" counter drop"));
        chain(
            &mut text,
            "mss",
            "type filter hook forward priority mangle; policy accept;",
            &[
                format!("oifname \"{TUNNEL}\" tcp flags syn / syn,rst tcp option maxseg size set rt mtu"),
                format!("iifname \"{TUNNEL}\" tcp flags syn / syn,rst tcp option maxseg size set rt mtu"),
            ],
        );
        postrouting.push(format!("oifname \"{TUNNEL}\" {keyword} daddr vmap {{ {} }}", by_peer("to")));
    }
    mark_chains(&mut text, fabric, node, family);
    filter_chains(&mut text, &input, &forward);
    // A machine that is none of our nodes knows no way back to peers.
    postrouting.extend(api_server::reached(fabric, family, "masquerade", |machine| !nodes.contains(machine)));
    // Who talks stays visible: what comes from a peer keeps its source here, and so do our pods on their way to the gateway.
    let same = |prefixes: &[IpNet]| elements(prefixes.iter().map(|prefix| format!("{prefix} : {prefix}")));
    postrouting.push(format!("{keyword} saddr @remote snat {keyword} prefix to {keyword} saddr map {{ {} }}", same(&remote)));
    if !pods.is_empty() {
        postrouting.push(format!(
            "oifname \"{OVERLAY}\" {keyword} daddr @remote snat {keyword} prefix to {keyword} saddr map {{ {} }}",
            same(&pods)
        ));
    }
    chain(&mut text, "postrouting", "type nat hook postrouting priority srcnat - 10; policy accept;", &postrouting);
    text
}

/// Marks what does not go by the main table: what belongs to other gateways than the one that it leads to, and on a gateway what is
/// between peers and other nodes.
fn mark_chains(text: &mut String, fabric: &Fabric, node: &str, family: Family) {
    let (keyword, nearest) = (family.keyword(), fabric.nearest(node));
    let own = fabric.nodes.get(node).and_then(|node| node.gateway);
    let gateways = fabric.gateways();
    let others: Vec<&(&str, Gateway)> = gateways.iter().filter(|one| Some(**one) != nearest).collect();
    for gateway in others.iter().map(|(_, gateway)| *gateway).chain(own) {
        chain(text, &via(gateway), "", &[format!("meta mark set meta mark & {:#010x} | {:#010x}", !MARK_MASK, gateway.mark())]);
    }
    let mut passing = Vec::new();
    if let Some(own) = own {
        let own = via(own);
        // From peers by another gateway: strict checks of sources look for the way back, which is the table of that one, and not the
        // tunnel. All these tables lead into the overlay, so that any mark will do.
        passing.extend(others.first().map(|(_, other)| {
            format!("iifname \"{OVERLAY}\" {keyword} saddr @remote {keyword} daddr != @remote goto {}", via(*other))
        }));
        passing.extend([
            format!("iifname \"{OVERLAY}\" {keyword} daddr @remote goto {own}"),
            // What another node asked at a port of this one is answered by the way that the question came.
            format!("iifname \"{TUNNEL}\" ct direction reply ct status dnat accept"),
            format!("iifname \"{TUNNEL}\" goto {own}"),
        ]);
    }
    if !others.is_empty() {
        bucket_chain(text, fabric, family, &others);
        passing.push(format!("{keyword} daddr @remote jump by_bucket"));
        let starting = format!("{keyword} daddr @remote jump by_bucket");
        chain(text, "starting", "type route hook output priority filter - 90; policy accept;", &[starting]);
    }
    if !passing.is_empty() {
        chain(text, "passing", "type filter hook prerouting priority filter - 90; policy accept;", &passing);
    }
}

/// The chain that gives a packet a gateway's mark.
fn via(gateway: Gateway) -> String {
    format!("via_{}", gateway.slot)
}

/// Marks what belongs to one of these gateways. The bucket is put together bit by bit in the mark, because no rule of nft combines two
/// addresses; then it makes room for the gateway's own mark, or none.
fn bucket_chain(text: &mut String, fabric: &Fabric, family: Family, gateways: &[&(&str, Gateway)]) {
    // Keys of one number can be made, and then both carry the same; nft takes none twice.
    let mut ways = BTreeMap::new();
    for (name, gateway) in gateways {
        for bucket in spread::each(fabric.carried_by(name)) {
            ways.entry(bucket).or_insert_with(|| format!("{:#010x} : goto {}", u32::from(bucket) << 4, via(*gateway)));
        }
    }
    let reset = format!("meta mark set meta mark & {:#010x}", !MARK_MASK);
    let mut by_mark = vec![reset.clone()];
    if !ways.is_empty() {
        by_mark.insert(0, format!("meta mark & {MARK_MASK:#010x} vmap {{ {} }}", elements(ways.into_values())));
    }
    chain(text, "by_mark", "", &by_mark);
    let mut marks = |name: &str, first: Option<String>, fields: [String; 2]| {
        let mut rules: Vec<String> = first.into_iter().chain([reset.clone()]).collect();
        for field in fields {
            for bit in (0..spread::LOW_BITS).map(|place| 1 << place) {
                let (bits, turned) = (family.bits(bit), u32::from(bit) << 4);
                rules.push(format!("{field} & {bits} == {bits} meta mark set meta mark ^ {turned:#010x}"));
            }
        }
        rules.push("goto by_mark".to_owned());
        chain(text, name, "", &rules);
    };
    let keyword = family.keyword();
    // Who began it, and who answers, as nodes see both.
    let connection = ["original", "reply"].map(|direction| format!("ct {direction} {keyword} saddr"));
    marks("by_connection", None, connection);
    let error = Some("ct state related goto by_connection".to_owned());
    marks("by_bucket", error, ["saddr", "daddr"].map(|field| format!("{keyword} {field}")));
}

/// The translations and the openings of one peer.
fn peer_chains(text: &mut String, fabric: &Fabric, node: &str, family: Family, (id, peer): (&ClusterId, &Peer)) {
    let keyword = family.keyword();
    let is_external = |prefix: &IpNet| fabric.external.contains(prefix);
    let exported: Vec<(IpNet, IpNet)> =
        peer.maps.exported.pairs().map(|(here, there)| (here.0, there.0)).filter(|(here, _)| family.has(here)).collect();
    // The external prefix is no prefix of anything that exists: its addresses stand for single others.
    let pairs: BTreeMap<IpNet, IpNet> = exported.iter().filter(|(here, _)| !is_external(here)).copied().collect();
    let mut to = Vec::new();
    let mut from = api_server::meant(fabric, family, peer);
    if !pairs.is_empty() {
        let inward = elements(pairs.iter().map(|(here, there)| format!("{there} : {here}")));
        let outward = elements(pairs.iter().map(|(here, there)| format!("{here} : {there}")));
        from.push(format!("dnat {keyword} prefix to {keyword} daddr map {{ {inward} }}"));
        to.push(format!("snat {keyword} prefix to {keyword} saddr map {{ {outward} }}"));
    }
    // What has no other form here is nothing of ours, whatever the peer calls it.
    from.push("counter drop".to_owned());
    let external = exported.iter().find(|(here, _)| is_external(here));
    if let Some((_, there)) = external {
        let stand_ins = elements(stand_ins_for_all(fabric, node, there, family));
        to.push(format!("snat to {keyword} daddr & {} map {{ {stand_ins} }}", family.bits(BUCKETS - 1)));
    }
    chain(text, &format!("from_{id}"), "", &from);
    chain(text, &format!("to_{id}"), "", &to);
    let mut open = Vec::new();
    match &peer.open {
        Open::Everything => {
            let mine = elements(pairs.keys().map(ToString::to_string));
            if !pairs.is_empty() {
                open.push(format!("{keyword} daddr {{ {mine} }} accept"));
            }
        }
        Open::Only(addresses) => {
            let addresses = addresses.iter().copied().filter(|&address| family.has(&single(address)));
            text.push_str(&set(family, &format!("opened_{id}"), "", addresses));
            open.push(format!("{keyword} daddr @opened_{id} accept"));
        }
    }
    chain(text, &format!("open_{id}"), "", &open);
}

/// What stands for sources without an address of their own, by the low bits of the destination. The answer is to come back to this
/// gateway, so it is an address of a bucket that this gateway carries, whatever the source and whyever it came here.
fn stand_ins_for_all(fabric: &Fabric, node: &str, external: &IpNet, family: Family) -> Vec<String> {
    // A gateway that carries nothing is not asked.
    let bucket = spread::each(fabric.carried_by(node)).next().unwrap_or_default();
    let stand_in = |low_bits: u8| format!("{} : {}", family.bits(low_bits), fallback(external, low_bits ^ bucket));
    (0..BUCKETS).map(stand_in).collect()
}

/// From each prefix of each peer to that peer's chain.
fn verdicts(fabric: &Fabric, family: Family, chain: &str) -> String {
    let of_peer = |(id, peer): (&ClusterId, &Peer)| {
        let prefixes = peer.maps.imported.pairs().map(|(here, _)| here.0).filter(|prefix| family.has(prefix));
        prefixes.map(|prefix| format!("{prefix} : jump {chain}_{id}")).collect::<Vec<_>>()
    };
    elements(fabric.peers.iter().flat_map(of_peer))
}

fn set<T: Display>(family: Family, name: &str, flags: &str, members: impl IntoIterator<Item = T>) -> String {
    let members = elements(members);
    // nft refuses an empty list.
    let members = if members.is_empty() { String::new() } else { format!(" elements = {{ {members} }};") };
    format!("\tset {name} {{ type {};{flags}{members} }}\n", family.kind())
}

/// A set of prefixes.
const INTERVAL: &str = " flags interval;";

fn chain(text: &mut String, name: &str, hook: &str, rules: &[String]) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "\tchain {name} {{");
    for line in [hook.to_owned()].iter().filter(|hook| !hook.is_empty()).chain(rules) {
        let _ = writeln!(text, "\t\t{line}");
    }
    text.push_str("\t}\n");
}

fn elements<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
