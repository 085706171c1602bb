//! The parts of objects that the watches keep.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Pod, PodStatus, Service},
    discovery::v1::EndpointSlice,
};
use kube::ResourceExt as _;
use liqo_api::reflection;
use liqo_api::{
    ClusterConfig, ClusterId, DiscoverySettings, NamespaceOffloading, NamespaceOffloadingSpec, NetworkRanges, NetworkSettings,
    Reflection, TunnelEndpoint, TunnelEndpointSpec, TunnelEndpointStatus, annotations, labels,
};
use liqo_network_model::fabric::pod_prefixes;

/// A node that is not virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// Internal addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// The prefixes of its pods, if the cluster assigns them.
    pub pods: Vec<IpNet>,
    pub labels: BTreeMap<String, String>,
    pub is_ready: bool,
}

/// Keeps nodes that are not virtual.
pub fn node(node: Node) -> Option<NodeView> {
    if node.labels().get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE) {
        return None;
    }
    let mut view = NodeView { labels: node.metadata.labels.unwrap_or_default(), ..NodeView::default() };
    let status = node.status.unwrap_or_default();
    view.is_ready = status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let listed = status.addresses.unwrap_or_default();
    for address in listed.into_iter().filter(|address| address.type_ == "InternalIP") {
        let Ok(address) = address.address.parse::<IpAddr>() else { continue };
        if view.addresses.iter().all(|other| other.is_ipv4() != address.is_ipv4()) {
            view.addresses.push(address);
        }
    }
    view.pods = pod_prefixes(node.spec);
    Some(view)
}

/// The network's part of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigView {
    pub settings: NetworkSettings,
    pub ranges: Option<NetworkRanges>,
    pub discovery: DiscoverySettings,
    pub identity: Option<IdentityView>,
}

/// What others need to find this cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentityView {
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    pub auth_url: Option<String>,
}

#[allow(clippy::unnecessary_wraps)] // A cache expects an Option.
pub fn config(config: ClusterConfig) -> Option<ConfigView> {
    let (spec, status) = (config.spec, config.status.unwrap_or_default());
    let identity = status.cluster_id.map(|cluster_id| IdentityView {
        cluster_id,
        cluster_name: spec.cluster_name,
        auth_url: status.auth_url,
    });
    Some(ConfigView { settings: spec.network, ranges: status.network, discovery: spec.discovery, identity })
}

pub fn list(list: ConfigMap) -> Option<BTreeMap<String, String>> {
    list.data
}

/// The network towards a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerView {
    pub spec: TunnelEndpointSpec,
    pub status: TunnelEndpointStatus,
    /// `metadata.resourceVersion`.
    pub version: Option<String>,
}

#[allow(clippy::unnecessary_wraps)] // A cache expects an Option.
pub fn peer(endpoint: TunnelEndpoint) -> Option<PeerView> {
    let version = endpoint.resource_version();
    Some(PeerView { spec: endpoint.spec, status: endpoint.status.unwrap_or_default(), version })
}

/// The addresses of a pod that is not finished.
fn addresses(status: PodStatus) -> Option<BTreeSet<IpAddr>> {
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    Some(status.pod_ips.unwrap_or_default().into_iter().filter_map(|address| address.ip.parse().ok()).collect())
}

/// Keeps the addresses of a pod that was sent to a provider to use the API server here. The consumer marks pods that get a token before it
/// sends them, and also those that may run only once. The latter may be without an account, and use no API server.
pub fn api_client(pod: Pod) -> Option<BTreeSet<IpAddr>> {
    let marks = pod.annotations();
    let uses = match marks.get(annotations::API_SERVER).map(String::as_str) {
        Some(choice) => choice == "home",
        None => pod.spec.as_ref()?.service_account_name.as_deref().is_some_and(|account| account != "default"),
    };
    let is_client = uses && marks.contains_key(annotations::SENT_TO);
    addresses(pod.status.filter(|_| is_client)?)
}

/// A mapped namespace. Its pods are remote pods; a pod elsewhere that has their labels is none.
#[derive(Clone, Debug, PartialEq)]
pub struct MappedNamespaceView {
    pub consumer: ClusterId,
    /// Its name at the consumer.
    pub home: String,
}

pub fn mapped_namespace(namespace: &Namespace) -> Option<MappedNamespaceView> {
    let label = |key: &str| namespace.labels().get(key).map(String::as_str);
    let is_ours = label(labels::MANAGED) == Some("true") && label(labels::NAMESPACE_KIND) == Some(labels::KIND_MAPPED);
    let consumer = label(labels::CONSUMER_ID).filter(|_| is_ours)?.parse().ok()?;
    Some(MappedNamespaceView { consumer, home: label(labels::HOME_NAMESPACE).unwrap_or_default().to_owned() })
}

/// Keeps the consumer and the addresses of remote pods that are not finished.
pub fn remote_pod(pod: Pod) -> Option<(ClusterId, BTreeSet<IpAddr>)> {
    let consumer = pod.labels().get(labels::CONSUMER_ID)?.parse().ok()?;
    let addresses = addresses(pod.status?)?;
    // A pod in the node's own network has the node's address, which no peer may reach.
    if pod.spec.is_some_and(|spec| spec.host_network == Some(true)) {
        return None;
    }
    Some((consumer, addresses))
}

/// An offloaded namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct OffloadingView {
    /// The clusters that have a remote namespace.
    pub clusters: BTreeSet<ClusterId>,
    /// Which of its Services are reflected to them.
    pub reflection: Reflection,
    /// Whether its pods there may use the API server here.
    pub api_server: bool,
}

pub fn offloading(offloading: NamespaceOffloading) -> Option<OffloadingView> {
    let clusters = offloading.status?.remote_namespaces.into_iter().map(|remote| remote.cluster_id).collect();
    let NamespaceOffloadingSpec { reflection, api_server, .. } = offloading.spec;
    Some(OffloadingView { clusters, reflection, api_server })
}

/// Keeps Services that may be reflected and may have pods; `true` if their annotation allows it explicitly.
pub fn service(service: &Service) -> Option<bool> {
    let opens = reflection::is_reflected(service) && !reflection::is_external_name(service);
    opens.then(|| reflection::is_allowed(service))
}

/// The pods behind a Service, or some of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Backends {
    /// Namespace and name.
    pub service: (String, String),
    /// The node and the addresses of each pod that is ready.
    pub pods: Vec<(String, BTreeSet<IpAddr>)>,
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
    fn a_node_keeps_one_address_of_each_family_and_virtual_nodes_are_left_out() {
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
        assert!(!view.is_ready, "nothing says so");
        object["status"]["conditions"] =
            json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "True" }]);
        assert!(node(serde_json::from_value(object.clone()).unwrap()).unwrap().is_ready);
        object["metadata"]["labels"] = json!({ labels::TYPE: labels::TYPE_VIRTUAL_NODE });
        assert_eq!(node(serde_json::from_value(object).unwrap()), None);
    }

    #[test]
    fn the_pods_behind_a_service_are_those_that_are_ready() {
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
    fn only_namespaces_that_liqo_made_for_a_consumer_have_remote_pods() {
        let consumer = ClusterId::of_public_key(&[1; 32]);
        let found = |managed: &str, kind: &str| {
            let labels = json!({ labels::MANAGED: managed, labels::NAMESPACE_KIND: kind, labels::CONSUMER_ID: consumer,
                labels::HOME_NAMESPACE: "shop" });
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "demo", "labels": labels } });
            mapped_namespace(&serde_json::from_value(namespace).unwrap())
        };
        assert_eq!(found("true", "mapped"), Some(MappedNamespaceView { consumer: consumer.clone(), home: "shop".into() }));
        assert_eq!((found("", "mapped"), found("true", "tenant")), (None, None));
    }

    #[test]
    fn nobody_reaches_a_remote_pod_that_ended() {
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

    #[test]
    fn only_a_pod_that_was_sent_to_use_the_api_server_here_is_its_client() {
        let pod = |account: &str, annotations: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "annotations": annotations },
                "spec": { "containers": [], "serviceAccountName": account },
                "status": { "phase": phase, "podIPs": [{ "ip": "10.66.0.7" }] },
            }))
            .unwrap()
        };
        let (sent, choice) = (annotations::SENT_TO, annotations::API_SERVER);
        let address: IpAddr = "10.66.0.7".parse().unwrap();
        assert_eq!(api_client(pod("reader", json!({ sent: "uid" }), "Running")), Some([address].into()));
        assert_eq!(api_client(pod("default", json!({ sent: "uid", choice: "home" }), "Running")), Some([address].into()));
        for other in [
            pod("reader", json!({}), "Running"),
            pod("default", json!({ sent: "uid" }), "Running"),
            pod("reader", json!({ sent: "uid", choice: "none" }), "Running"),
            pod("reader", json!({ sent: "uid" }), "Succeeded"),
        ] {
            assert_eq!(api_client(other.clone()), None, "{other:?}");
        }
    }
}
