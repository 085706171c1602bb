//! Rules that let peers reach our API servers: on port 443 of their stand-ins, as pods here reach
//! the Service `kubernetes`. Peers have no address for anything else on those machines, and nothing
//! else from peers passes to them. Gateways let only those pods pass that use an API server; other
//! nodes, which get packets of peers from gateways alone, do not know these pods.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use liqo_api::ApiServerEndpoint;

use super::syntax::{IpFamily, define_set, join_elements};
use crate::{
    fabric::{Fabric, PeerNetwork},
    space::Here,
};

/// The port of the Service `kubernetes` in every cluster.
const PORT: u16 = 443;

/// The API servers that this peer may reach, and the stand-in by which it knows each.
fn reachable_api_servers<'a>(
    fabric: &'a Fabric,
    family: IpFamily,
    peer: &'a PeerNetwork,
) -> impl Iterator<Item = (&'a ApiServerEndpoint, IpAddr)> {
    let of_family = fabric.api_servers.iter().filter(move |server| {
        peer.api_server.is_some() && family.contains_prefix(&server.address.into())
    });
    of_family.filter_map(|server| {
        let there = peer.maps.exported.to_there(Here(server.stand_in))?;
        Some((server, there.0))
    })
}

/// The set of pods at peers that may reach our API servers. Only gateways have it.
const CLIENTS: &str = "api_clients";

/// The definition of [`CLIENTS`]; empty where no peer may reach an API server.
pub(super) fn client_set(fabric: &Fabric, family: IpFamily) -> String {
    if !fabric
        .peers
        .values()
        .any(|peer| reachable_api_servers(fabric, family, peer).next().is_some())
    {
        return String::new();
    }
    let clients = fabric
        .peers
        .values()
        .flat_map(|peer| peer.api_server.iter().flatten());
    define_set(
        family,
        CLIENTS,
        "",
        clients.filter(|&&address| family.contains_prefix(&address.into())),
    )
}

/// Translates the addresses by which this peer knows the stand-ins.
pub(super) fn stand_in_translations(
    fabric: &Fabric,
    family: IpFamily,
    peer: &PeerNetwork,
) -> Vec<String> {
    let keyword = family.keyword();
    reachable_api_servers(fabric, family, peer)
        .map(|(server, there)| {
            let server = SocketAddr::new(server.address, server.port);
            format!(
                "{keyword} saddr @{CLIENTS} {keyword} daddr {there} tcp dport {PORT} dnat to {server}"
            )
        })
        .collect()
}

/// Applies a verdict to packets from peers to those of our API servers whose addresses pass the
/// filter. Gateways have the set [`CLIENTS`].
pub(super) fn api_server_verdicts(
    fabric: &Fabric,
    family: IpFamily,
    is_gateway: bool,
    verdict: &str,
    on: impl Fn(&IpAddr) -> bool,
) -> Vec<String> {
    let keyword = family.keyword();
    let mut rules = Vec::new();
    for server in fabric
        .api_servers
        .iter()
        .filter(|server| on(&server.address))
    {
        let peers = fabric.peers.values().filter(|peer| {
            reachable_api_servers(fabric, family, peer).any(|(other, _)| other == server)
        });
        let prefixes: Vec<IpNet> = peers
            .flat_map(|peer| peer.maps.imported.pairs())
            .map(|(here, _)| here.0)
            .filter(|prefix| family.contains_prefix(prefix))
            .collect();
        if prefixes.is_empty() {
            continue;
        }
        let (address, port) = (server.address, server.port);
        let from = if is_gateway {
            format!("@{CLIENTS}")
        } else {
            format!("{{ {} }}", join_elements(&prefixes))
        };
        rules.push(format!(
            "{keyword} saddr {from} {keyword} daddr {address} tcp dport {port} {verdict}"
        ));
    }
    rules
}
