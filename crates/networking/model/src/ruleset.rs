//! The text of a node's nftables. Each address family in use has two tables, and on gateways a
//! third one:
//! - `liqo` translates and filters. One transaction replaces it as a whole, so no packet meets a
//!   part of it. Its chains run a little before the usual places (`dstnat`, `srcnat`): the first
//!   chain that translates a connection wins, so the masquerading of CNIs and kube-proxy does not
//!   hide the source.
//! - `liqo_guard` is tiny and stays. While `liqo` is missing, it drops packets that were not
//!   translated, because the kernel would remember the wrong translation for as long as the
//!   connection lives.
//! - `liqo_limits` limits the connections of each peer.
//!
//! With several gateways, each node marks packets for peers by the gateway that carries them
//! ([`crate::spread`]), after Services are translated. Packets that came by the overlay leave by
//! the tunnel whatever their bucket, or they would circle. A node's ICMP errors about a connection
//! take the connection's way: no other gateway knows it. For IPv4 the kernel can check sources
//! (`rp_filter`), for IPv6 it cannot. So the tables check what matters to others: no peer speaks in
//! another's name, and only nodes speak in the overlay.

mod api_server;
mod limits;
mod open;
mod syntax;

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use liqo_api::{ClusterId, short_hash};

use self::syntax::{INTERVAL, IpFamily, add_chain, define_set, join_elements};
use crate::{
    fabric::{Fabric, FabricGateway, MARK_MASK, OVERLAY, OVERLAY_PORT, PeerNetwork, TUNNEL},
    map::fallback_stand_in,
    spread::{self, BUCKETS, Buckets},
};

/// Name of the table that translates.
pub const TABLE: &str = "liqo";
/// Name of the table that stays.
pub const GUARD: &str = "liqo_guard";
/// Name of the table that limits the connections of peers. Everything else works without it.
pub const LIMITS: &str = "liqo_limits";

/// One table of nftables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftTable {
    /// `ip` or `ip6`.
    pub family: &'static str,
    pub name: &'static str,
    /// A hash of the content, stored as the table's comment. The guard's also says which buckets
    /// the gateway carries: see [`buckets_in_fingerprint`].
    pub fingerprint: String,
    /// Replaces the table in one transaction.
    pub script: String,
}

/// The tables of a node, guard first.
pub fn node_tables(fabric: &Fabric, node: &str) -> Vec<NftTable> {
    let mut tables = Vec::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        if fabric.has_remote(family.is_v4()) {
            tables.extend(tables_of_family(fabric, node, family));
        } else if family.is_v4() == fabric.overlay_is_v4() {
            let body = overlay_alone(fabric, family);
            tables.push(build_table(fabric, node, family, TABLE, &body));
        }
    }
    tables
}

/// The buckets that a gateway carries whose guard has this fingerprint.
pub fn buckets_in_fingerprint(fingerprint: &str) -> Buckets {
    let buckets = fingerprint
        .split_once(' ')
        .and_then(|(_, buckets)| Buckets::from_str_radix(buckets, 16).ok());
    buckets.unwrap_or_default()
}

fn tables_of_family(fabric: &Fabric, node: &str, family: IpFamily) -> Vec<NftTable> {
    let translation = translation_body(fabric, node, family);
    let mut tables = vec![build_table(fabric, node, family, TABLE, &translation)];
    if is_gateway(fabric, node) {
        let guard = guard_body(fabric, family);
        tables.insert(0, build_table(fabric, node, family, GUARD, &guard));
        let limits = limits::limits_body(fabric, family);
        tables.push(build_table(fabric, node, family, LIMITS, &limits));
    }
    tables
}

fn build_table(
    fabric: &Fabric,
    node: &str,
    family: IpFamily,
    name: &'static str,
    body: &str,
) -> NftTable {
    let keyword = family.keyword();
    let carries = if name == GUARD {
        format!(" {:04x}", fabric.carried_by(node))
    } else {
        String::new()
    };
    let fingerprint = format!("{}{carries}", short_hash(body));
    // The first line makes sure that there is something to delete.
    let script = format!(
        "table {keyword} {name}\ndelete table {keyword} {name}\n\
         table {keyword} {name} {{\n\tcomment \"{fingerprint}\"\n{body}}}\n"
    );
    NftTable {
        family: keyword,
        name,
        fingerprint,
        script,
    }
}

fn is_gateway(fabric: &Fabric, node: &str) -> bool {
    fabric
        .nodes
        .get(node)
        .is_some_and(|node| node.gateway.is_some())
}

/// Between us and each peer only the agreed prefixes pass: out of the tunnel only to addresses by
/// which the peer knows us, and into it only from these.
fn guard_body(fabric: &Fabric, family: IpFamily) -> String {
    let keyword = family.keyword();
    let mut text = String::new();
    for (id, peer) in &fabric.peers {
        let known = peer
            .maps
            .exported
            .pairs()
            .map(|(_, there)| there.0)
            .filter(|prefix| family.contains_prefix(prefix));
        let known: Vec<IpNet> = known.collect();
        for (name, field) in [("out", "saddr"), ("in", "daddr")] {
            let accept = format!("{keyword} {field} {{ {} }} accept", join_elements(&known));
            let rules = if known.is_empty() {
                Vec::new()
            } else {
                vec![accept]
            };
            add_chain(&mut text, &format!("{name}_{id}"), "", &rules);
        }
    }
    add_chain(
        &mut text,
        "postrouting",
        "type filter hook postrouting priority srcnat + 50; policy accept;",
        &[
            format!(
                "oifname \"{TUNNEL}\" {keyword} daddr vmap {{ {} }}",
                prefix_verdicts(fabric, family, "out")
            ),
            format!("oifname \"{TUNNEL}\" counter drop"),
        ],
    );
    add_chain(
        &mut text,
        "prerouting",
        "type filter hook prerouting priority raw; policy accept;",
        &[
            format!(
                "iifname \"{TUNNEL}\" {keyword} saddr vmap {{ {} }}",
                prefix_verdicts(fabric, family, "in")
            ),
            format!("iifname \"{TUNNEL}\" counter drop"),
        ],
    );
    text
}

/// The table of the family that the overlay runs over, when peers have no prefixes of that family.
fn overlay_alone(fabric: &Fabric, family: IpFamily) -> String {
    let mut text = nodes_set(fabric, family);
    let (input, forward) = overlay_rules(fabric, family);
    filter_chains(&mut text, &input, &forward);
    text
}

fn node_addresses(fabric: &Fabric, family: IpFamily) -> Vec<IpAddr> {
    let nodes = fabric
        .nodes
        .values()
        .flat_map(|node| node.addresses.iter().copied());
    nodes
        .filter(|&address| family.contains_prefix(&address.into()))
        .collect()
}

fn nodes_set(fabric: &Fabric, family: IpFamily) -> String {
    define_set(family, "nodes", "", node_addresses(fabric, family))
}

/// Input and forward rules that let only nodes speak in the overlay. A pod's packets to another
/// node have the pod's node as their source there. A packet from another node's address that
/// arrives by a device that does not lead to that node comes from a pod.
fn overlay_rules(fabric: &Fabric, family: IpFamily) -> (Vec<String>, Vec<String>) {
    let keyword = family.keyword();
    let mut input = vec![format!(
        "udp dport {OVERLAY_PORT} {keyword} saddr != @nodes counter drop"
    )];
    if family == IpFamily::V6 && !fabric.overlay_is_v4() {
        input.push(format!(
            "udp dport {OVERLAY_PORT} fib saddr . iif oif missing counter drop"
        ));
    }
    (
        input,
        vec![format!(
            "udp dport {OVERLAY_PORT} {keyword} daddr @nodes counter drop"
        )],
    )
}

fn filter_chains(text: &mut String, input: &[String], forward: &[String]) {
    add_chain(
        text,
        "forward",
        "type filter hook forward priority filter - 10; policy accept;",
        forward,
    );
    add_chain(
        text,
        "input",
        "type filter hook input priority filter - 10; policy accept;",
        input,
    );
}

/// Answers to connections that began here, and their ICMP errors. Packets of connections that a
/// peer began are checked one by one, so closing an address also closes it for existing
/// connections, unless it is one of those that stay open to them.
const ACCEPT_ANSWERS: &str = "ct direction reply ct state established,related accept";

fn translation_body(fabric: &Fabric, node: &str, family: IpFamily) -> String {
    let (keyword, is_gateway) = (family.keyword(), is_gateway(fabric, node));
    let mut text = define_set(family, "remote", INTERVAL, remote_prefixes(fabric, family));
    text.push_str(&nodes_set(fabric, family));
    let (mut input, mut forward) = overlay_rules(fabric, family);
    input.push(format!("{keyword} saddr @remote {ACCEPT_ANSWERS}"));
    input.extend(api_server::api_server_verdicts(
        fabric,
        family,
        is_gateway,
        "accept",
        |_| true,
    ));
    input.push(format!("{keyword} saddr @remote counter drop"));
    // Packets with a peer's source come in by these devices. Nobody else may send them to a peer.
    let devices = if is_gateway {
        [TUNNEL, OVERLAY].as_slice()
    } else {
        &[OVERLAY]
    };
    let devices = format!(
        "{{ {} }}",
        join_elements(devices.iter().map(|device| format!("\"{device}\"")))
    );
    forward.push(format!(
        "iifname != {devices} oifname {devices} {keyword} saddr @remote counter drop"
    ));
    if is_gateway {
        gateway_chains(&mut text, fabric, node, family);
        forward.extend(tunnel_forward_rules(fabric, family));
        input.push(format!("iifname \"{TUNNEL}\" counter drop"));
    }
    mark_chains(&mut text, fabric, node, family);
    filter_chains(&mut text, &input, &forward);
    add_chain(
        &mut text,
        "postrouting",
        "type nat hook postrouting priority srcnat - 10; policy accept;",
        &source_rules(fabric, family, is_gateway),
    );
    text
}

fn remote_prefixes(fabric: &Fabric, family: IpFamily) -> Vec<IpNet> {
    fabric
        .remote()
        .into_iter()
        .filter(|prefix| family.contains_prefix(prefix))
        .collect()
}

/// The sets and chains that only gateways have.
fn gateway_chains(text: &mut String, fabric: &Fabric, node: &str, family: IpFamily) {
    let keyword = family.keyword();
    text.push_str(&api_server::client_set(fabric, family));
    text.push_str(&open::customer_sets(fabric, family));
    for (id, peer) in &fabric.peers {
        peer_chains(text, fabric, node, family, (id, peer));
    }
    add_chain(
        text,
        "prerouting",
        "type nat hook prerouting priority dstnat - 10; policy accept;",
        &[format!(
            "iifname \"{TUNNEL}\" {keyword} saddr vmap {{ {} }}",
            prefix_verdicts(fabric, family, "from")
        )],
    );
    add_chain(
        text,
        "mss",
        "type filter hook forward priority mangle; policy accept;",
        &["oifname", "iifname"].map(|direction| {
            format!(
                "{direction} \"{TUNNEL}\" tcp flags syn / syn,rst tcp option maxseg size set rt mtu"
            )
        }),
    );
    // A connection that is picked up in its middle keeps its port, or its server would reset it.
    // The kernel changes the port while it still knows the connection by its former path. A packet
    // that is dropped here is not remembered, and is sent again.
    add_chain(
        text,
        "ports",
        "type filter hook postrouting priority srcnat + 50; policy accept;",
        &[format!(
            "oifname != \"{TUNNEL}\" {keyword} saddr @remote ct state new ct status snat tcp flags & (fin | syn | rst | ack) != syn counter drop"
        )],
    );
}

/// Forward rules of gateways for packets that come from peers.
fn tunnel_forward_rules(fabric: &Fabric, family: IpFamily) -> Vec<String> {
    let keyword = family.keyword();
    let mut rules = vec![
        // The kernel does not translate these, so they have addresses of another cluster.
        format!("iifname \"{TUNNEL}\" ct state invalid counter drop"),
        format!("iifname \"{TUNNEL}\" {ACCEPT_ANSWERS}"),
        format!(
            "iifname \"{TUNNEL}\" {keyword} saddr vmap {{ {} }}",
            prefix_verdicts(fabric, family, "open")
        ),
    ];
    rules.extend(api_server::api_server_verdicts(
        fabric,
        family,
        true,
        "accept",
        |_| true,
    ));
    rules.push(format!("iifname \"{TUNNEL}\" counter drop"));
    rules
}

/// Rules that translate sources, or keep them.
fn source_rules(fabric: &Fabric, family: IpFamily, is_gateway: bool) -> Vec<String> {
    let keyword = family.keyword();
    let mut rules = Vec::new();
    if is_gateway {
        rules.push(format!(
            "oifname \"{TUNNEL}\" {keyword} daddr vmap {{ {} }}",
            prefix_verdicts(fabric, family, "to")
        ));
    }
    // A machine that is not one of our nodes has no route back to peers.
    let nodes = node_addresses(fabric, family);
    rules.extend(api_server::api_server_verdicts(
        fabric,
        family,
        is_gateway,
        "masquerade",
        |machine| !nodes.contains(machine),
    ));
    // Sources stay visible: packets from a peer keep their source here, and so do those of our pods
    // on their way to the gateway.
    rules.push(format!(
        "{keyword} saddr @remote snat {keyword} prefix to {keyword} saddr map {{ {} }}",
        identity_map(&remote_prefixes(fabric, family))
    ));
    let pods: Vec<IpNet> = fabric
        .pods
        .iter()
        .filter(|prefix| family.contains_prefix(prefix))
        .copied()
        .collect();
    if !pods.is_empty() {
        rules.push(format!(
            "oifname \"{OVERLAY}\" {keyword} daddr @remote snat {keyword} prefix to {keyword} saddr map {{ {} }}",
            identity_map(&pods)
        ));
    }
    rules
}

/// The elements of a map from each prefix to itself.
fn identity_map(prefixes: &[IpNet]) -> String {
    join_elements(prefixes.iter().map(|prefix| format!("{prefix} : {prefix}")))
}

/// Marks packets that must not follow the main table: those that another gateway carries than the
/// one it leads to, and on a gateway those between peers and other nodes.
fn mark_chains(text: &mut String, fabric: &Fabric, node: &str, family: IpFamily) {
    let (keyword, nearest) = (family.keyword(), fabric.nearest_gateway(node));
    let own = fabric.nodes.get(node).and_then(|node| node.gateway);
    let gateways = fabric.gateways();
    let others: Vec<&(&str, FabricGateway)> = gateways
        .iter()
        .filter(|one| Some(**one) != nearest)
        .collect();
    for gateway in others.iter().map(|(_, gateway)| *gateway).chain(own) {
        add_chain(
            text,
            &mark_chain_name(gateway),
            "",
            &[format!(
                "meta mark set meta mark & {:#010x} | {:#010x}",
                !MARK_MASK,
                gateway.mark()
            )],
        );
    }
    let mut passing = Vec::new();
    if let Some(own) = own {
        let own = mark_chain_name(own);
        // From peers by another gateway: strict checks of sources look up the return route, which
        // is in that gateway's table, and not the tunnel. All these tables lead into the overlay,
        // so any of their marks will do.
        passing.extend(others.first().map(|(_, other)| {
            format!(
                "iifname \"{OVERLAY}\" {keyword} saddr @remote {keyword} daddr != @remote goto {}",
                mark_chain_name(*other)
            )
        }));
        passing.extend([
            format!("iifname \"{OVERLAY}\" {keyword} daddr @remote goto {own}"),
            // Answers of a node port of this node to another node go back over the device that the
            // request came from.
            format!("iifname \"{TUNNEL}\" ct direction reply ct status dnat accept"),
            format!("iifname \"{TUNNEL}\" goto {own}"),
        ]);
    }
    if !others.is_empty() {
        bucket_chain(text, fabric, family, &others);
        passing.push(format!("{keyword} daddr @remote jump by_bucket"));
        let starting = format!("{keyword} daddr @remote jump by_bucket");
        add_chain(
            text,
            "starting",
            "type route hook output priority filter - 90; policy accept;",
            &[starting],
        );
    }
    if !passing.is_empty() {
        add_chain(
            text,
            "passing",
            "type filter hook prerouting priority filter - 90; policy accept;",
            &passing,
        );
    }
}

/// The chain that gives a packet a gateway's mark.
fn mark_chain_name(gateway: FabricGateway) -> String {
    format!("via_{}", gateway.slot)
}

/// Marks packets that one of these gateways carries. Rules first compute the bucket in the mark,
/// bit by bit, because nft cannot combine two addresses in one expression; then they replace it by
/// the gateway's mark, or by none.
fn bucket_chain(
    text: &mut String,
    fabric: &Fabric,
    family: IpFamily,
    gateways: &[&(&str, FabricGateway)],
) {
    // Somebody may create two keys with one number: then both gateways carry the same buckets, and
    // nft refuses a key that occurs twice.
    let mut by_bucket = BTreeMap::new();
    for (name, gateway) in gateways {
        for bucket in spread::each_bucket(fabric.carried_by(name)) {
            by_bucket.entry(bucket).or_insert_with(|| {
                format!(
                    "{:#010x} : goto {}",
                    u32::from(bucket) << 4,
                    mark_chain_name(*gateway)
                )
            });
        }
    }
    let reset = format!("meta mark set meta mark & {:#010x}", !MARK_MASK);
    let mut by_mark = vec![reset.clone()];
    if !by_bucket.is_empty() {
        by_mark.insert(
            0,
            format!(
                "meta mark & {MARK_MASK:#010x} vmap {{ {} }}",
                join_elements(by_bucket.into_values())
            ),
        );
    }
    add_chain(text, "by_mark", "", &by_mark);
    let keyword = family.keyword();
    // The client and the server of the connection, as nodes see them.
    let connection =
        ["original", "reply"].map(|direction| format!("ct {direction} {keyword} saddr"));
    let mut by_connection = vec![reset.clone()];
    by_connection.extend(bucket_rules(family, &connection));
    add_chain(text, "by_connection", "", &by_connection);
    let addresses = ["saddr", "daddr"].map(|field| format!("{keyword} {field}"));
    let mut by_bucket = vec!["ct state related goto by_connection".to_owned(), reset];
    by_bucket.extend(bucket_rules(family, &addresses));
    add_chain(text, "by_bucket", "", &by_bucket);
}

/// Rules that compute the bucket of these two addresses in the mark, and go on with it.
fn bucket_rules(family: IpFamily, fields: &[String; 2]) -> Vec<String> {
    let mut rules = Vec::new();
    for field in fields {
        for bit in (0..spread::LOW_BITS).map(|position| 1 << position) {
            let (bits, turned) = (family.low_bits_address(bit), u32::from(bit) << 4);
            rules.push(format!(
                "{field} & {bits} == {bits} meta mark set meta mark ^ {turned:#010x}"
            ));
        }
    }
    rules.push("goto by_mark".to_owned());
    rules
}

/// The translations and the reachable addresses of one peer.
fn peer_chains(
    text: &mut String,
    fabric: &Fabric,
    node: &str,
    family: IpFamily,
    (id, peer): (&ClusterId, &PeerNetwork),
) {
    let keyword = family.keyword();
    let exported: Vec<(IpNet, IpNet)> = peer
        .maps
        .exported
        .pairs()
        .map(|(here, there)| (here.0, there.0))
        .filter(|(here, _)| family.contains_prefix(here))
        .collect();
    // No machine has an address in the external prefix: each of its addresses stands in for another
    // one.
    let pairs: BTreeMap<IpNet, IpNet> = exported
        .iter()
        .filter(|(here, _)| !fabric.external.contains(here))
        .copied()
        .collect();
    let mut to = Vec::new();
    let mut from = api_server::stand_in_translations(fabric, family, peer);
    if !pairs.is_empty() {
        let inward = join_elements(
            pairs
                .iter()
                .map(|(here, there)| format!("{there} : {here}")),
        );
        let outward = join_elements(
            pairs
                .iter()
                .map(|(here, there)| format!("{here} : {there}")),
        );
        from.push(format!(
            "dnat {keyword} prefix to {keyword} daddr map {{ {inward} }}"
        ));
        to.push(format!(
            "snat {keyword} prefix to {keyword} saddr map {{ {outward} }}"
        ));
    }
    // The peer calls an address that has no counterpart here.
    from.push("counter drop".to_owned());
    let external = exported
        .iter()
        .find(|(here, _)| fabric.external.contains(here));
    if let Some((_, there)) = external {
        let stand_ins = join_elements(fallback_stand_ins(fabric, node, there, family));
        to.push(format!(
            "snat to {keyword} daddr & {} map {{ {stand_ins} }}",
            family.low_bits_address(BUCKETS - 1)
        ));
    }
    add_chain(text, &format!("from_{id}"), "", &from);
    add_chain(text, &format!("to_{id}"), "", &to);
    open::chain_of(text, fabric, family, (id, peer));
}

/// The stand-ins for sources without an address that the peer knows, by the low bits of the
/// destination. Answers must come back to this gateway, so the stand-in is in a bucket that this
/// gateway carries.
fn fallback_stand_ins(
    fabric: &Fabric,
    node: &str,
    external: &IpNet,
    family: IpFamily,
) -> Vec<String> {
    // A gateway that carries nothing gets no packets, so any bucket will do.
    let bucket = spread::each_bucket(fabric.carried_by(node))
        .next()
        .unwrap_or_default();
    (0..BUCKETS)
        .map(|low_bits| {
            let source = fallback_stand_in(external, low_bits ^ bucket);
            format!("{} : {source}", family.low_bits_address(low_bits))
        })
        .collect()
}

/// Maps each prefix of each peer to that peer's chain.
fn prefix_verdicts(fabric: &Fabric, family: IpFamily, chain: &str) -> String {
    let mut verdicts = Vec::new();
    for (id, peer) in &fabric.peers {
        let prefixes = peer.maps.imported.pairs().map(|(here, _)| here.0);
        for prefix in prefixes.filter(|prefix| family.contains_prefix(prefix)) {
            verdicts.push(format!("{prefix} : jump {chain}_{id}"));
        }
    }
    join_elements(verdicts)
}

#[cfg(test)]
mod tests;
