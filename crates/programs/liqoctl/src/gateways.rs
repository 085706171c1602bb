//! The addresses at which another cluster reaches a cluster's gateways.

use std::{net::SocketAddr, str::FromStr};

use anyhow::bail;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use liqo_api::GatewayAddress;
use liqo_network_model::gateways::{GatewayLease, alive_gateways, is_key};

use crate::{
    cluster::{Cluster, ExplainFailure as _, InstalledLiqo},
    lists,
};

/// A gateway on the command line: `KEY@ADDRESS:PORT,ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayArgument(pub GatewayAddress);

impl FromStr for GatewayArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_gateway(text).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not KEY@ADDRESS:PORT as `generate peer-command --through-tunnel` prints it"
            )
        })
    }
}

fn parse_gateway(text: &str) -> Option<GatewayAddress> {
    let (public_key, endpoints) = text.split_once('@')?;
    let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
    (is_key(public_key) && endpoints.iter().all(|one| is_endpoint(one))).then(|| GatewayAddress {
        public_key: public_key.to_owned(),
        first_key: None,
        endpoints,
        tls: Vec::new(),
    })
}

/// Whether it is an address, or a name, with a port. IPv6 addresses need brackets.
fn is_endpoint(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok()
        || text.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains([':', '[', ']']) && port.parse::<u16>().is_ok()
        })
}

/// Formats a gateway as a [`GatewayArgument`].
pub fn gateway_argument(gateway: &GatewayAddress) -> String {
    format!("{}@{}", gateway.public_key, gateway.endpoints.join(","))
}

/// The gateways of a cluster that is reached through its tunnel.
pub async fn gateways_of_cluster(
    cluster: &Cluster,
    installed: &InstalledLiqo,
) -> anyhow::Result<Vec<GatewayAddress>> {
    let network = &installed.config.spec.network;
    if !(network.enabled && network.api_through_tunnel) {
        bail!(
            "other clusters cannot reach this one through the tunnel: `liqoctl install --set network.apiThroughTunnel=true` allows it for clusters with a token"
        );
    }
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let leases = lists::list_gateway_leases(cluster).await?;
    let mut leases = alive_gateways(
        leases.iter().filter_map(GatewayLease::parse).collect(),
        network.gateways.replicas,
        Timestamp::now(),
    );
    leases.sort_by_key(|lease| lease.number);
    let mut found = Vec::new();
    for lease in leases {
        let (Some(public_key), Some(node)) = (lease.public_key, lease.node) else {
            continue;
        };
        // A Lease may exist a few seconds longer than its holder's node.
        let Some(node) = nodes
            .get_opt(&node)
            .await
            .doing(format!("read Node {node}"))?
        else {
            continue;
        };
        let endpoints = if network.gateways.addresses.is_empty() {
            addresses_of_node(&node)
                .into_iter()
                .map(|address| address_with_port(&address, network.gateways.port))
                .collect()
        } else {
            network.gateways.addresses.clone()
        };
        found.push(GatewayAddress {
            public_key,
            first_key: None,
            endpoints,
            tls: Vec::new(),
        });
    }
    if !network.gateways.addresses.is_empty() {
        // Configured addresses lead to one gateway, which is the only one in use.
        found.truncate(1);
    }
    if found.is_empty() {
        bail!("no node of this cluster is a gateway: see `kubectl -n liqo-fabric get pods`");
    }
    Ok(found)
}

/// The addresses of a node, external ones first.
fn addresses_of_node(node: &Node) -> Vec<String> {
    let all = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.clone())
        .unwrap_or_default();
    ["ExternalIP", "InternalIP"]
        .into_iter()
        .flat_map(|kind| all.iter().filter(move |one| one.type_ == kind))
        .map(|one| one.address.clone())
        .collect()
}

fn address_with_port(address: &str, port: u16) -> String {
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_read_as_it_is_printed() {
        let gateway = GatewayAddress {
            public_key: data_encoding::BASE64.encode(&[7; 32]),
            first_key: None,
            endpoints: vec!["203.0.113.5:51840".into(), "[2001:db8::1]:51840".into()],
            tls: Vec::new(),
        };
        assert_eq!(
            gateway_argument(&gateway).parse(),
            Ok(GatewayArgument(gateway.clone()))
        );
        let at = |endpoint: &str| format!("{}@{endpoint}", gateway.public_key);
        assert!(at("milan.example:51840").parse::<GatewayArgument>().is_ok());
        for wrong in [
            "",
            "key@203.0.113.5:1",
            "203.0.113.5:51840",
            &at("2001:db8::1"),
            &at("[2001:db8::1]"),
            &at(":1"),
        ] {
            assert!(wrong.parse::<GatewayArgument>().is_err(), "{wrong:?}");
        }
    }
}
