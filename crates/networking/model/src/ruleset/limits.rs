//! Limits the connections that each peer may open through this gateway.
//!
//! The kernel tracks the connections of all pods and peers of a node in one table. When that is
//! full of connections that are alive, it refuses all new ones, and a TCP connection that nobody
//! closes stays for days. So each peer gets a share of it. Connections that ended and those that
//! nobody answered need none: the kernel itself removes them when the table is nearly full.
//!
//! The kernel counts by looking at the connections of a list one by one, so each peer has several
//! short lists. Addresses and ports choose the list: after a change of gateways, connections that
//! began here are first seen in a packet of the peer, all with the port of its server. A peer that
//! chooses its ports gets less.
//!
//! Only the first packet of a connection is counted, before it is translated: a packet that is
//! dropped here is not tracked. The kernel would count a connection without an answer once for each
//! packet. The table has nothing else and changes rarely, because the kernel forgets what it
//! counted when the table is replaced. Each gateway counts for itself.

use std::fmt::Write as _;

use super::{
    prefix_verdicts,
    syntax::{IpFamily, add_chain},
};
use crate::fabric::{Fabric, TUNNEL};

/// Number of lists of each peer and family.
const LISTS: u16 = 64;
/// Maximum number of connections in a list. So a peer opens at most 32768 connections of each
/// family: with both families half of what the table holds at least where kube-proxy sets its size
/// (131072).
const MAX_CONNECTIONS: u16 = 512;

pub(super) fn limits_body(fabric: &Fabric, family: IpFamily) -> String {
    let mut text = String::new();
    let ip = family.keyword();
    for id in fabric.peers.keys() {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "\tset connections_{id} {{ type mark; size {LISTS}; flags dynamic; }}"
        );
        let list = format!("jhash {ip} saddr . {ip} daddr . th sport . th dport mod {LISTS}");
        let count = format!(
            "add @connections_{id} {{ {list} ct count over {MAX_CONNECTIONS} }} counter drop"
        );
        add_chain(&mut text, &format!("limit_{id}"), "", &[count]);
    }
    add_chain(
        &mut text,
        "prerouting",
        "type filter hook prerouting priority mangle; policy accept;",
        &[
            format!("iifname != \"{TUNNEL}\" accept"),
            "ct state != new accept".to_owned(),
            "ct status confirmed accept".to_owned(),
            format!(
                "{} saddr vmap {{ {} }}",
                family.keyword(),
                prefix_verdicts(fabric, family, "limit")
            ),
        ],
    );
    text
}
