//! The parts of objects that the watches keep, and the functions that reduce objects to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::ResourceExt as _;
use liqo_api::conditions::has_true_condition;
use liqo_api::reflection;
use liqo_api::{
    ClusterConfig, ClusterId, DiscoverySettings, NamespaceOffloading, NamespaceOffloadingSpec,
    NetworkRanges, NetworkSettings, Reflection, TunnelEndpoint, TunnelEndpointSpec,
    TunnelEndpointStatus, annotations, is_final_phase, labels,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
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
pub fn node_view(node: Node) -> Option<NodeView> {
    if node
        .labels()
        .get(labels::TYPE)
        .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
    {
        return None;
    }
    let mut view = NodeView {
        labels: node.metadata.labels.unwrap_or_default(),
        ..NodeView::default()
    };
    let status = node.status.unwrap_or_default();
    view.is_ready = has_true_condition(status.conditions.iter().flatten(), "Ready");
    let listed = status.addresses.unwrap_or_default();
    for address in listed
        .into_iter()
        .filter(|address| address.type_ == "InternalIP")
    {
        let Ok(address) = address.address.parse::<IpAddr>() else {
            continue;
        };
        if view
            .addresses
            .iter()
            .all(|other| other.is_ipv4() != address.is_ipv4())
        {
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

/// The data that other clusters need to find this one.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentityView {
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    pub auth_url: Option<String>,
}

#[allow(clippy::unnecessary_wraps)] // A cache expects an Option.
pub fn config_view(config: ClusterConfig) -> Option<ConfigView> {
    let (spec, status) = (config.spec, config.status.unwrap_or_default());
    let identity = status.cluster_id.map(|cluster_id| IdentityView {
        cluster_id,
        cluster_name: spec.cluster_name,
        auth_url: status.auth_url,
    });
    Some(ConfigView {
        settings: spec.network,
        ranges: status.network,
        discovery: spec.discovery,
        identity,
    })
}

pub fn config_map_data(list: ConfigMap) -> Option<BTreeMap<String, String>> {
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
pub fn peer_view(endpoint: TunnelEndpoint) -> Option<PeerView> {
    let version = endpoint.resource_version();
    Some(PeerView {
        spec: endpoint.spec,
        status: endpoint.status.unwrap_or_default(),
        version,
    })
}

/// The addresses of a pod that has one, is not finished and not in the node's own network: no peer
/// may reach the node's address.
fn pod_addresses(pod: &Pod) -> Option<BTreeSet<IpAddr>> {
    let status = pod.status.as_ref()?;
    let is_finished = status.phase.as_deref().is_some_and(is_final_phase);
    if is_finished
        || pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.host_network == Some(true))
    {
        return None;
    }
    let addresses: BTreeSet<IpAddr> = status
        .pod_ips
        .iter()
        .flatten()
        .filter_map(|address| address.ip.parse().ok())
        .collect();
    (!addresses.is_empty()).then_some(addresses)
}

/// A pod of an offloaded namespace that has an address.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalPodView {
    pub node: String,
    pub addresses: BTreeSet<IpAddr>,
    /// Whether it runs at a provider and uses the API server here.
    pub is_api_client: bool,
}

/// Keeps pods that have an address, until they are finished. Nothing else closes the address of a
/// pod: it may answer while it is not ready or terminates.
pub fn local_pod(pod: &Pod) -> Option<LocalPodView> {
    let addresses = pod_addresses(pod)?;
    Some(LocalPodView {
        node: pod.spec.as_ref()?.node_name.clone()?,
        addresses,
        is_api_client: is_api_client(pod),
    })
}

/// Whether a pod was sent to a provider to use the API server here. The consumer marks pods that
/// get a token before it sends them, and also those that may run only once. The latter may be
/// without an account, and use no API server.
fn is_api_client(pod: &Pod) -> bool {
    let marks = pod.annotations();
    let spec = pod.spec.as_ref();
    let account = spec.and_then(|spec| spec.service_account_name.as_deref());
    let uses = match marks.get(annotations::API_SERVER).map(String::as_str) {
        Some(choice) => choice == "home",
        None => account.is_some_and(|account| account != "default"),
    };
    uses && marks.contains_key(annotations::SENT_TO)
}

/// A mapped namespace. Its pods are remote pods; a pod elsewhere that has their labels is none.
#[derive(Clone, Debug, PartialEq)]
pub struct MappedNamespaceView {
    pub consumer: ClusterId,
    /// Its name at the consumer.
    pub home: String,
}

pub fn mapped_namespace(namespace: &Namespace) -> Option<MappedNamespaceView> {
    let PeerNamespace { peer, kind } = PeerNamespace::from_metadata(&namespace.metadata)?;
    let PeerNamespaceKind::Mapped { home } = kind else {
        return None;
    };
    Some(MappedNamespaceView {
        consumer: peer,
        home,
    })
}

/// Keeps the consumer and the addresses of remote pods that have one and are not finished.
pub fn remote_pod(pod: &Pod) -> Option<(ClusterId, BTreeSet<IpAddr>)> {
    let consumer = pod.labels().get(labels::CONSUMER_ID)?.parse().ok()?;
    Some((consumer, pod_addresses(pod)?))
}

/// An offloaded namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct OffloadingView {
    /// The clusters that have a remote namespace.
    pub clusters: BTreeSet<ClusterId>,
    /// Selects the Services that are reflected to them.
    pub reflection: Reflection,
    /// Whether its pods there may use the API server here.
    pub api_server: bool,
}

pub fn offloading_view(offloading: NamespaceOffloading) -> Option<OffloadingView> {
    let clusters = offloading
        .status?
        .remote_namespaces
        .into_iter()
        .map(|remote| remote.cluster_id)
        .collect();
    let NamespaceOffloadingSpec {
        reflection,
        api_server,
        ..
    } = offloading.spec;
    Some(OffloadingView {
        clusters,
        reflection,
        api_server,
    })
}

/// The mark of a Service by which its users control its reflection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MarkedService {
    Denied,
    Nothing,
    Allowed,
}

impl MarkedService {
    /// Whether the Service is reflected from a namespace with this kind of list.
    pub fn is_reflected(self, list: Reflection) -> bool {
        self != Self::Denied && reflection::passes_list(list, self == Self::Allowed)
    }
}

/// Keeps Services that may have pods of this cluster behind them. Replicas have those of a
/// consumer.
pub fn marked_service(service: &Service) -> Option<MarkedService> {
    if reflection::is_external_name(service) || reflection::is_replica(service) {
        return None;
    }
    Some(match reflection::is_reflected(service) {
        false => MarkedService::Denied,
        true if reflection::is_allowed(service) => MarkedService::Allowed,
        true => MarkedService::Nothing,
    })
}

/// The addresses behind a Service, or some of them. Users may write them, so they prove nothing
/// about pods.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceBackends {
    /// Namespace and name.
    pub service: (String, String),
    /// Whatever their conditions are: the Service decides which of them get new connections.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether its users keep these endpoints here.
    pub is_denied: bool,
}

pub fn service_backends(slice: &EndpointSlice) -> Option<ServiceBackends> {
    let service = slice.labels().get("kubernetes.io/service-name")?.clone();
    let addresses = slice
        .endpoints
        .iter()
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse().ok());
    Some(ServiceBackends {
        service: (slice.namespace()?, service),
        addresses: addresses.collect(),
        is_denied: reflection::is_denied(slice),
    })
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
        let view = node_view(serde_json::from_value(object.clone()).unwrap()).unwrap();
        assert_eq!(
            view.addresses,
            ["172.18.0.2", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap())
        );
        assert_eq!(view.pods, ["10.244.1.0/24".parse::<IpNet>().unwrap()]);
        assert!(!view.is_ready, "nothing says so");
        object["status"]["conditions"] = json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "True" }]);
        assert!(
            node_view(serde_json::from_value(object.clone()).unwrap())
                .unwrap()
                .is_ready
        );
        object["metadata"]["labels"] = json!({ labels::TYPE: labels::TYPE_VIRTUAL_NODE });
        assert_eq!(node_view(serde_json::from_value(object).unwrap()), None);
    }

    #[test]
    fn all_addresses_of_a_slice_count_whatever_their_conditions_are_and_whoever_wrote_them() {
        let slice = |annotations: serde_json::Value| {
            let object = json!({
                "metadata": { "name": "web-x", "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" }, "annotations": annotations },
                "addressType": "IPv4",
                "endpoints": [
                    { "addresses": ["10.244.0.1"], "nodeName": "n1", "targetRef": { "kind": "Pod", "name": "a" } },
                    { "addresses": ["10.244.0.2"], "nodeName": "n1", "targetRef": { "kind": "Pod", "name": "b" },
                        "conditions": { "ready": false, "serving": false, "terminating": true } },
                    { "addresses": ["10.244.0.3"] },
                ],
            });
            service_backends(&serde_json::from_value(object).unwrap()).unwrap()
        };
        let kept = slice(json!({}));
        assert_eq!(kept.service, ("shop".to_owned(), "web".to_owned()));
        assert_eq!(
            kept.addresses,
            [1, 2, 3]
                .map(|last| IpAddr::from([10, 244, 0, last]))
                .into()
        );
        assert!(!kept.is_denied && slice(json!({ annotations::REFLECTION: "deny" })).is_denied);
    }

    #[test]
    fn a_service_is_reflected_as_it_is_marked_and_has_no_pods_of_this_cluster_if_it_is_a_replica_or_a_name()
     {
        let service = |metadata: serde_json::Value, kind: &str| {
            marked_service(
                &serde_json::from_value(json!({ "metadata": metadata, "spec": { "type": kind } }))
                    .unwrap(),
            )
        };
        let marked = |mark: &str| json!({ "annotations": { annotations::REFLECTION: mark } });
        let marks = ["", "allow", "deny"].map(|mark| service(marked(mark), "ClusterIP"));
        assert_eq!(
            marks,
            [
                MarkedService::Nothing,
                MarkedService::Allowed,
                MarkedService::Denied
            ]
            .map(Some)
        );
        let reflected = |list| marks.map(|mark| mark.is_some_and(|mark| mark.is_reflected(list)));
        assert_eq!(reflected(Reflection::DenyList), [true, true, false]);
        assert_eq!(reflected(Reflection::AllowList), [false, true, false]);
        assert_eq!(service(json!({}), "ExternalName"), None);
        assert_eq!(
            service(
                json!({ "labels": { labels::REFLECTED: "true" } }),
                "ClusterIP"
            ),
            None
        );
    }

    #[test]
    fn a_pod_has_its_addresses_until_it_is_finished_even_if_it_is_not_ready_or_terminates() {
        let pod = |spec: serde_json::Value, phase: &str, addresses: &[&str]| {
            let addresses: Vec<serde_json::Value> =
                addresses.iter().map(|ip| json!({ "ip": ip })).collect();
            let object = json!({
                "metadata": { "name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z" },
                "spec": spec,
                "status": { "phase": phase, "podIPs": addresses, "conditions": [{ "type": "Ready", "status": "False" }] },
            });
            local_pod(&serde_json::from_value(object).unwrap())
        };
        let (on_node, both) = (
            json!({ "containers": [], "nodeName": "n1" }),
            ["10.244.0.7", "fd00::7"],
        );
        let view = pod(on_node.clone(), "Running", &both).unwrap();
        assert_eq!((view.node.as_str(), view.is_api_client), ("n1", false));
        assert_eq!(
            view.addresses,
            both.map(|text| text.parse::<IpAddr>().unwrap()).into()
        );
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(pod(on_node.clone(), phase, &both), None);
        }
        assert_eq!(pod(on_node, "Pending", &[]), None);
        let in_network_of_node = json!({ "containers": [], "nodeName": "n1", "hostNetwork": true });
        assert_eq!(pod(in_network_of_node, "Running", &["172.18.0.2"]), None);
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
        assert_eq!(
            found("true", "mapped"),
            Some(MappedNamespaceView {
                consumer: consumer.clone(),
                home: "shop".into()
            })
        );
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
        assert!(remote_pod(&pod("Running", consumer.clone())).is_some());
        assert_eq!(remote_pod(&pod("Failed", consumer)), None);
        assert_eq!(remote_pod(&pod("Running", json!({}))), None);
    }

    #[test]
    fn a_remote_pod_without_an_address_is_left_out() {
        let labels = json!({ labels::CONSUMER_ID: "a".repeat(32) });
        let pod = json!({ "metadata": { "name": "p", "labels": labels }, "status": { "phase": "Pending" } });
        assert_eq!(remote_pod(&serde_json::from_value(pod).unwrap()), None);
    }

    #[test]
    fn only_a_pod_that_was_sent_to_use_the_api_server_here_is_its_client() {
        let pod = |account: &str, annotations: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "annotations": annotations },
                "spec": { "containers": [], "nodeName": "milan", "serviceAccountName": account },
                "status": { "phase": phase, "podIPs": [{ "ip": "10.66.0.7" }] },
            }))
            .unwrap()
        };
        let (sent, choice) = (annotations::SENT_TO, annotations::API_SERVER);
        let is_client = |pod: Pod| local_pod(&pod).map(|view| view.is_api_client);
        assert_eq!(
            is_client(pod("reader", json!({ sent: "uid" }), "Running")),
            Some(true)
        );
        assert_eq!(
            is_client(pod(
                "default",
                json!({ sent: "uid", choice: "home" }),
                "Running"
            )),
            Some(true)
        );
        for other in [
            pod("reader", json!({}), "Running"),
            pod("default", json!({ sent: "uid" }), "Running"),
            pod("reader", json!({ sent: "uid", choice: "none" }), "Running"),
        ] {
            assert_eq!(is_client(other.clone()), Some(false), "{other:?}");
        }
        assert_eq!(
            is_client(pod("reader", json!({ sent: "uid" }), "Succeeded")),
            None
        );
    }
}
