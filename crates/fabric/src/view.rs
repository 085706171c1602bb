//! What is kept of each object: no more than what is needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::ResourceExt as _;
use liqo_api::{
    ClusterConfig, ClusterId, NamespaceOffloading, NetworkRanges, NetworkSettings, Reflection, TunnelEndpoint,
    TunnelEndpointSpec, TunnelEndpointStatus, Unheard, annotations, labels,
};
use liqo_kit::reflection;
use liqo_network::plan::MOST_GATEWAYS;

use crate::decide::openings::Backends;

/// A node that is no virtual one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Its own addresses, one of each family.
    pub addresses: Vec<IpAddr>,
    /// Prefixes of its pods, where the cluster hands them out.
    pub pods: Vec<IpNet>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl NodeView {
    /// Whether it has all of these labels.
    pub fn is_selected(&self, selector: &BTreeMap<String, String>) -> bool {
        selector.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }
}

/// Keeps real nodes.
pub fn node(node: Node) -> Option<NodeView> {
    if node.labels().get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE) {
        return None;
    }
    let mut view = NodeView { labels: node.metadata.labels.unwrap_or_default(), ..NodeView::default() };
    let listed = node.status.and_then(|status| status.addresses).unwrap_or_default();
    for address in listed.into_iter().filter(|address| address.type_ == "InternalIP") {
        let Ok(address) = address.address.parse::<IpAddr>() else { continue };
        if view.addresses.iter().all(|other| other.is_ipv4() != address.is_ipv4()) {
            view.addresses.push(address);
        }
    }
    let spec = node.spec.unwrap_or_default();
    let mut prefixes = spec.pod_cidrs.unwrap_or_default();
    if prefixes.is_empty() {
        prefixes.extend(spec.pod_cidr);
    }
    view.pods = prefixes.iter().filter_map(|prefix| prefix.parse().ok()).collect();
    Some(view)
}

/// The network's part of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigView {
    /// What the user set.
    pub settings: NetworkSettings,
    /// The ranges of this cluster.
    pub ranges: Option<NetworkRanges>,
}

/// Keeps the network's part.
pub fn config(config: ClusterConfig) -> Option<ConfigView> {
    Some(ConfigView { settings: config.spec.network, ranges: config.status.and_then(|status| status.network) })
}

/// Keeps what it says.
pub fn list(list: ConfigMap) -> Option<BTreeMap<String, String>> {
    list.data
}

/// The network towards a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerView {
    /// What is to be held for it.
    pub spec: TunnelEndpointSpec,
    /// What was said of it.
    pub status: TunnelEndpointStatus,
    /// What changes with each write.
    pub version: Option<String>,
}

/// Keeps spec and status.
pub fn peer(endpoint: TunnelEndpoint) -> Option<PeerView> {
    let version = endpoint.resource_version();
    Some(PeerView { spec: endpoint.spec, status: endpoint.status.unwrap_or_default(), version })
}

/// The Lease of a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView {
    /// The node that holds it.
    pub holder: Option<String>,
    /// The holder's public key.
    pub key: Option<String>,
    /// The first one that it had, where that is another one.
    pub first_key: Option<String>,
    /// What changes with each write.
    pub version: Option<String>,
    /// The gateways that the holder does not hear any more.
    pub unheard: Unheard,
}

/// Keeps who holds it with which key, whom the holder does not hear, and what changes with each renewal.
pub fn lease(lease: Lease) -> Option<LeaseView> {
    let said = |name| lease.annotations().get(name).cloned();
    let (key, first_key) = (said(annotations::GATEWAY_KEY), said(annotations::GATEWAY_FIRST_KEY));
    let unheard =
        lease.annotations().get(annotations::GATEWAY_UNHEARD).map(|text| text.parse().unwrap_or_default()).unwrap_or_default();
    let version = lease.resource_version();
    Some(LeaseView { version, holder: lease.spec.and_then(|spec| spec.holder_identity), key, first_key, unheard })
}

/// The number of a gateway's Lease.
pub fn lease_number(name: &str) -> Option<u8> {
    let number = name.rsplit('-').next()?.parse().ok()?;
    (number < MOST_GATEWAYS && liqo_api::gateway_lease(number) == name).then_some(number)
}

/// Keeps remote pods that are not finished: whose they are, and their addresses.
pub fn remote_pod(pod: Pod) -> Option<(ClusterId, BTreeSet<IpAddr>)> {
    let consumer = pod.labels().get(labels::CONSUMER_ID)?.parse().ok()?;
    let status = pod.status?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    // One in the node's own network has the node's address, which is nobody's to open.
    if pod.spec.is_some_and(|spec| spec.host_network == Some(true)) {
        return None;
    }
    let addresses = status.pod_ips.unwrap_or_default().into_iter().filter_map(|address| address.ip.parse().ok()).collect();
    Some((consumer, addresses))
}

/// Keeps the clusters where the namespace has a twin, and which of its Services are known there.
pub fn offloading(offloading: NamespaceOffloading) -> Option<(BTreeSet<ClusterId>, Reflection)> {
    let clusters = offloading.status?.remote_namespaces.into_iter().map(|remote| remote.cluster_id).collect();
    Some((clusters, offloading.spec.reflection))
}

/// Keeps Services that other clusters may know of: whether they do wherever the namespace is.
pub fn service(service: &Service) -> Option<bool> {
    reflection::is_reflected(service).then(|| reflection::is_allowed(service))
}

/// Keeps the pods that are ready.
pub fn backends(slice: EndpointSlice) -> Option<Backends> {
    if reflection::is_denied(&slice) {
        return None;
    }
    let service = slice.labels().get("kubernetes.io/service-name")?.clone();
    let namespace = slice.namespace()?;
    let pods = slice.endpoints.into_iter().filter(|endpoint| {
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
        ready && endpoint.target_ref.as_ref().is_some_and(|target| target.kind.as_deref() == Some("Pod"))
    });
    let pods = pods.filter_map(|endpoint| {
        let addresses = endpoint.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Some((endpoint.node_name?, addresses))
    });
    Some(Backends { service: (namespace, service), pods: pods.collect() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_keeps_one_address_of_each_family_and_a_virtual_one_is_none() {
        let mut object = json!({
            "metadata": { "name": "n1", "labels": { "zone": "a" } },
            "spec": { "podCIDR": "10.244.1.0/24" },
            "status": { "addresses": [
                { "type": "Hostname", "address": "n1" },
                { "type": "InternalIP", "address": "172.18.0.2" },
                { "type": "InternalIP", "address": "172.18.0.3" },
                { "type": "InternalIP", "address": "fd00::2" },
                { "type": "ExternalIP", "address": "203.0.113.2" },
            ] },
        });
        let view = node(serde_json::from_value(object.clone()).unwrap()).unwrap();
        assert_eq!(view.addresses, ["172.18.0.2", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert_eq!(view.pods, ["10.244.1.0/24".parse::<IpNet>().unwrap()]);
        object["metadata"]["labels"] = json!({ labels::TYPE: labels::TYPE_VIRTUAL_NODE });
        assert_eq!(node(serde_json::from_value(object).unwrap()), None);
    }

    #[test]
    fn only_the_leases_of_gateways_have_a_number() {
        assert_eq!(lease_number(&liqo_api::gateway_lease(3)), Some(3));
        assert_eq!(lease_number("liqo-gateway-03"), None);
        assert_eq!(lease_number(&liqo_api::gateway_lease(MOST_GATEWAYS)), None, "its mark would be that of the first");
        assert_eq!(lease_number("somebody-3"), None);
    }

    #[test]
    fn behind_a_service_are_the_pods_that_are_ready() {
        let slice = json!({
            "metadata": { "name": "web-x", "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.244.0.1"], "nodeName": "n1", "targetRef": { "kind": "Pod", "name": "a" } },
                { "addresses": ["10.244.0.2"], "nodeName": "n1", "targetRef": { "kind": "Pod", "name": "b" }, "conditions": { "ready": false } },
                { "addresses": ["10.9.9.9"], "nodeName": "n1" },
                { "addresses": ["10.244.0.3"], "targetRef": { "kind": "Pod", "name": "c" } },
            ],
        });
        let kept = backends(serde_json::from_value(slice).unwrap()).unwrap();
        assert_eq!(kept.service, ("shop".to_owned(), "web".to_owned()));
        assert_eq!(kept.pods, [("n1".to_owned(), ["10.244.0.1".parse().unwrap()].into())]);
    }

    #[test]
    fn a_remote_pod_that_ended_is_reached_by_nobody() {
        let pod = |phase: &str, labels: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "labels": labels },
                "status": { "phase": phase, "podIPs": [{ "ip": "10.244.0.7" }] },
            }))
            .unwrap()
        };
        let consumer = json!({ labels::CONSUMER_ID: "a".repeat(32) });
        assert!(remote_pod(pod("Running", consumer.clone())).is_some());
        assert_eq!(remote_pod(pod("Failed", consumer)), None);
        assert_eq!(remote_pod(pod("Running", json!({}))), None);
    }
}
