//! Where the gateways of a cluster are, as another cluster has to call them.

use std::{net::SocketAddr, str::FromStr};

use anyhow::bail;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{Api, api::ListParams};
use liqo_api::{GatewayAddress, annotations, gateway_lease, labels};

use crate::{
    cluster::{Cluster, Explained as _, Installed},
    manifests::NAMESPACE,
};

/// A gateway on the command line: `KEY@ADDRESS:PORT,ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayArgument(pub GatewayAddress);

impl FromStr for GatewayArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not KEY@ADDRESS:PORT as `generate peer-command --through-tunnel` prints it");
        let (public_key, endpoints) = text.split_once('@').ok_or_else(wrong)?;
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        // An address of IPv6 has brackets.
        let is_name = |host: &str| !host.is_empty() && !host.contains([':', '[', ']']);
        let is_address = |text: &String| {
            let parts = text.rsplit_once(':');
            text.parse::<SocketAddr>().is_ok() || parts.is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok())
        };
        let is_key = data_encoding::BASE64.decode(public_key.as_bytes()).is_ok_and(|key| key.len() == 32);
        if !is_key || !endpoints.iter().all(is_address) {
            return Err(wrong());
        }
        Ok(Self(GatewayAddress { public_key: public_key.to_owned(), first_key: None, endpoints, tls: Vec::new() }))
    }
}

/// The same as an argument.
pub fn argument(gateway: &GatewayAddress) -> String {
    format!("{}@{}", gateway.public_key, gateway.endpoints.join(","))
}

/// A Lease that was not renewed for so long is nobody's, whatever the difference between our clock and theirs.
const GONE: SignedDuration = SignedDuration::from_mins(5);

/// The Leases that are held: those that ran out while another one was renewed are not.
fn held(leases: Vec<Lease>, now: Timestamp) -> Vec<Lease> {
    let renewed = |lease: &Lease| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0);
    let newest = leases.iter().filter_map(renewed).max();
    let is_held = |lease: &Lease| {
        let (Some(renewed), Some(newest)) = (renewed(lease), newest) else { return false };
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        newest.duration_since(renewed) < SignedDuration::from_secs(seconds.into()) && now.duration_since(renewed) < GONE
    };
    leases.into_iter().filter(is_held).collect()
}

/// The gateways of a cluster whose API is to be reached through its tunnel.
pub async fn of(cluster: &Cluster, installed: &Installed) -> anyhow::Result<Vec<GatewayAddress>> {
    let network = &installed.config.spec.network;
    if !(network.enabled && network.api_through_tunnel) {
        bail!(
            "nobody comes through the tunnel of this cluster: `liqoctl install --set network.apiThroughTunnel=true` lets those in who have a token"
        );
    }
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let gateways = ListParams::default().labels(&format!("{}=true", labels::GATEWAY));
    let mut leases = held(leases.list(&gateways).await.doing("list the Leases of gateways")?.items, Timestamp::now());
    leases.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    let mut found = Vec::new();
    for lease in leases {
        let numbered = (0..network.gateways.replicas).map(gateway_lease).any(|name| lease.metadata.name.as_ref() == Some(&name));
        let key = lease.metadata.annotations.and_then(|mut all| all.remove(annotations::GATEWAY_KEY));
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        let (Some(public_key), Some(node), true) = (key, holder, numbered) else { continue };
        // A Lease may be there some seconds longer than the node of its holder.
        let Some(node) = nodes.get_opt(&node).await.doing(format!("read Node {node}"))? else { continue };
        let endpoints = if network.gateways.addresses.is_empty() {
            addresses(&node).into_iter().map(|address| endpoint(&address, network.gateways.port)).collect()
        } else {
            network.gateways.addresses.clone()
        };
        found.push(GatewayAddress { public_key, first_key: None, endpoints, tls: Vec::new() });
    }
    if !network.gateways.addresses.is_empty() {
        // Addresses that are set lead to one gateway, which is the only one in use.
        found.truncate(1);
    }
    if found.is_empty() {
        bail!("no node of this cluster is a gateway: see `kubectl -n liqo-fabric get pods`");
    }
    Ok(found)
}

/// How a node is reached from elsewhere: external addresses first.
fn addresses(node: &Node) -> Vec<String> {
    let all = node.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
    let of = |kind: &str| all.iter().filter(move |one| one.type_ == kind).map(|one| one.address.clone()).collect::<Vec<_>>();
    [of("ExternalIP"), of("InternalIP")].concat()
}

fn endpoint(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
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
        assert_eq!(argument(&gateway).parse(), Ok(GatewayArgument(gateway.clone())));
        let at = |endpoint: &str| format!("{}@{endpoint}", gateway.public_key);
        assert!(at("milan.example:51840").parse::<GatewayArgument>().is_ok());
        for wrong in ["", "key@203.0.113.5:1", "203.0.113.5:51840", &at("2001:db8::1"), &at("[2001:db8::1]"), &at(":1")] {
            assert!(wrong.parse::<GatewayArgument>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_lease_that_nobody_renews_is_nobodys() {
        let now: Timestamp = "2026-06-01T12:00:00Z".parse().unwrap();
        let lease = |name: &str, seconds_ago: i64| -> Lease {
            let renewed = (now - SignedDuration::from_secs(seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
            let spec = serde_json::json!({ "holderIdentity": name, "leaseDurationSeconds": 6, "renewTime": renewed });
            serde_json::from_value(serde_json::json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
        };
        let names = |leases: Vec<Lease>| -> Vec<String> {
            held(leases, now).into_iter().filter_map(|lease| lease.metadata.name).collect()
        };
        assert_eq!(names(vec![lease("dead", 10), lease("lives", 1)]), ["lives"]);
        assert_eq!(names(vec![lease("a", 62), lease("b", 60)]), ["a", "b"], "our clock is another one");
        assert!(names(vec![lease("alone", 600)]).is_empty());
    }
}
