//! The way of peers to our API servers: to port 443 of their stand-ins, as pods here reach the Service `kubernetes`. Nothing else of
//! those machines has a name at peers, and of what comes from peers nothing else passes to them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use liqo_api::ApiServerEndpoint;

use super::{Family, elements};
use crate::{
    plan::{Fabric, Peer},
    space::{Here, single},
};

/// The port of the Service `kubernetes` in every cluster.
const PORT: u16 = 443;

fn shown<'a>(fabric: &'a Fabric, family: Family, peer: &'a Peer) -> impl Iterator<Item = (&'a ApiServerEndpoint, IpAddr)> {
    let of_family = move |server: &&ApiServerEndpoint| peer.api_server && family.has(&single(server.address));
    let there = |server: &'a ApiServerEndpoint| Some((server, peer.maps.exported.there(Here(server.stand_in))?.0));
    fabric.api_servers.iter().filter(of_family).filter_map(there)
}

/// What this peer means by the stand-ins.
pub(super) fn meant(fabric: &Fabric, family: Family, peer: &Peer) -> Vec<String> {
    let keyword = family.keyword();
    let of = |(server, there): (&ApiServerEndpoint, IpAddr)| {
        let server = SocketAddr::new(server.address, server.port);
        format!("{keyword} daddr {there} tcp dport {PORT} dnat to {server}")
    };
    shown(fabric, family, peer).map(of).collect()
}

/// What is to happen with packets from peers to our API servers, on some machines.
pub(super) fn reached(fabric: &Fabric, family: Family, verdict: &str, on: impl Fn(&IpAddr) -> bool) -> Vec<String> {
    let keyword = family.keyword();
    let rule = |server: &ApiServerEndpoint| {
        let may = |peer: &&Peer| shown(fabric, family, peer).any(|(other, _)| other == server);
        let prefixes = fabric.peers.values().filter(may).flat_map(|peer| peer.maps.imported.pairs());
        let prefixes: Vec<IpNet> = prefixes.map(|(here, _)| here.0).filter(|prefix| family.has(prefix)).collect();
        let (address, port) = (server.address, server.port);
        (!prefixes.is_empty()).then(|| {
            format!("{keyword} saddr {{ {} }} {keyword} daddr {address} tcp dport {port} {verdict}", elements(&prefixes))
        })
    };
    fabric.api_servers.iter().filter(|server| on(&server.address)).filter_map(rule).collect()
}
