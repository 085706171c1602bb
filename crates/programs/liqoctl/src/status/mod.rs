//! `liqoctl status`: shows this cluster, each peer in both directions, and each link of the chain,
//! as a tree.

mod summary;
mod tree;
mod watch;

use std::collections::BTreeMap;

use ipnet::IpNet;
use liqo_api::{
    ClusterId, Condition, Exposed, ForeignCluster, GatewayStatus, OfferPhase,
    PodOffloadingStrategy, PodPlacement, ResourceList, TetheringState, Time,
};
use serde::Serialize;

pub use tree::render_status;
pub use watch::watch_status;

use crate::{
    cluster::Cluster,
    finding::CheckVerdict,
    inspect::{self, ClusterReader},
    kept_addresses::KeepableRanges,
};

/// Reads the status of the cluster, with all offloaded namespaces, or only this one. Users who name
/// a namespace, and may not read what is about the whole cluster, get the namespace alone.
pub async fn collect(cluster: &Cluster, namespace: Option<&str>) -> anyhow::Result<StatusReport> {
    let reader = ClusterReader::new(cluster);
    let objects = Box::pin(reader.liqo_objects(namespace)).await;
    let usage = inspect::collect_usage(&reader, &objects).await;
    let lacks_rights = !reader.forbidden_requests().is_empty();
    usage
        .and_then(|usage| summary::summarize_status(&cluster.context, &objects, &usage))
        .or_else(|why| match namespace {
            Some(_) if lacks_rights => summary::summarize_namespaces_alone(&objects),
            _ => Err(why),
        })
        .map_err(anyhow::Error::msg)
}

/// Everything that `liqoctl status` shows; `-o json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// Nothing if the user may see the offloaded namespaces alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ThisCluster>,
    pub peers: Vec<PeerSummary>,
    pub namespaces: Vec<OffloadedNamespaceSummary>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThisCluster {
    /// Its name; the name in the kubeconfig if Liqo is not installed.
    pub name: String,
    /// Whether Liqo is installed.
    pub installed: bool,
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// URL of its auth endpoint.
    #[serde(rename = "authURL", skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// URL of its API server, which peers get.
    #[serde(rename = "apiServerURL", skip_serializing_if = "Option::is_none")]
    pub api_server_url: Option<String>,
    pub conditions: Vec<LinkSummary>,
    /// How bad it is if the pod network does not enforce `NetworkPolicies`. Programs judge the
    /// condition themselves.
    #[serde(skip)]
    pub isolation: CheckVerdict,
    /// The working mode, unless nobody ever changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<WorkingMode>,
    /// Replicas of the controller manager.
    pub manager: ReplicaCounts,
    /// Reason why another number of replicas would fit the nodes better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_note: Option<String>,
}

/// The working mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkingMode {
    pub state: TetheringState,
    /// Name of the peer that it is about, or its ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The state ends by itself at this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplicaCounts {
    pub available: i32,
    pub wanted: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerSummary {
    /// Name of its `ForeignCluster`.
    pub name: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowing: Option<BorrowingSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lending: Option<LendingSummary>,
    /// The network between its pods and ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkSummary>,
    /// Whether the peering is ending.
    pub ending: bool,
}

/// The state of borrowing from a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BorrowingSummary {
    /// The peering requests no resources, only the network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub network_only: bool,
    /// The gateway, if this cluster reaches the peer through its tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelPath>,
    /// The links of the chain, in order.
    pub links: Vec<LinkSummary>,
    /// Whether each node of the peer is a pool, if this cluster requests that and the peer has
    /// answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_for_each_node: Option<LinkSummary>,
    pub offers: Vec<OfferSummary>,
    /// The virtual nodes of accepted offers.
    pub nodes: Vec<VirtualNodeSummary>,
}

/// The path of this cluster to a provider through its tunnel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelPath {
    /// The gateway that answers; nothing if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

/// The state of lending to a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LendingSummary {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_namespace: Option<String>,
    /// The links of the chain, in order.
    pub links: Vec<LinkSummary>,
    pub offers: Vec<OfferSummary>,
    /// Its pods that were created here and have not finished.
    pub pods: usize,
}

/// The network to a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSummary {
    /// The links of the chain, in order.
    pub links: Vec<LinkSummary>,
    /// The peer's prefixes, and what they are mapped to here.
    pub prefixes: BTreeMap<IpNet, IpNet>,
    /// Those of clusters behind it, with the IDs of the clusters on the way, the owner first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub behind: BTreeMap<IpNet, Vec<ClusterId>>,
    /// Those that could keep their addresses here, and this cluster's that could keep them there.
    #[serde(flatten)]
    pub keepable: KeepableRanges,
    /// Those that are mapped to something else as soon as no pod of either cluster runs at the
    /// other.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub waiting: BTreeMap<IpNet, IpNet>,
    /// The reports of our gateways about their tunnels to it.
    pub gateways: Vec<GatewayStatus>,
}

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkSummary {
    pub name: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: String,
}

impl From<&Condition> for LinkSummary {
    fn from(condition: &Condition) -> Self {
        Self {
            name: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.last_transition_time.0.to_string(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferSummary {
    pub pool: String,
    pub phase: OfferPhase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub resources: ResourceList,
    /// End of the offer, if the provider withdraws it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<String>,
    /// From then on, the provider ends pods beyond the offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<String>,
    /// From then on, the provider ends pods on nodes that the pool does not have any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timestamp: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNodeSummary {
    pub pool: String,
    /// Name of the Node, once it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the Node is Ready.
    pub ready: bool,
    pub resources: ResourceList,
    /// Requests of the unfinished pods on it for these resources, with the requests that a provider
    /// gives to containers without any.
    pub used: ResourceList,
    /// Resources left for other pods.
    pub free: ResourceList,
    /// Unfinished pods on it.
    pub pods: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OffloadedNamespaceSummary {
    pub namespace: String,
    pub pod_offloading_strategy: PodOffloadingStrategy,
    /// The preference of its new pods among these nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<PodPlacement>,
    /// Whether the namespace exists in every selected cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<LinkSummary>,
    pub remote: Vec<RemoteNamespaceSummary>,
}

/// A namespace at a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespaceSummary {
    pub cluster: String,
    pub namespace: String,
    /// Whether pods can run in it.
    pub ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Objects there that are exposed to the outside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<Exposed>,
}

/// The links among `wanted` that a `ForeignCluster` has, in the order of `wanted`.
fn links(foreign: &ForeignCluster, wanted: &[&str]) -> Vec<LinkSummary> {
    wanted
        .iter()
        .filter_map(|kind| foreign.condition(kind))
        .map(LinkSummary::from)
        .collect()
}

/// Whether this cluster wants to borrow, or still has something to give back.
fn borrows(foreign: &ForeignCluster, links: &[LinkSummary]) -> bool {
    foreign.wants_outgoing() || !links.is_empty()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::ClusterAccess;

    /// A cluster whose user may list the offloaded namespaces of namespace `shop`, and nothing else.
    fn cluster_of_colleague() -> Cluster {
        let service = tower::service_fn(|request: Request<Body>| {
            let (code, answer) = answer_colleague(request.uri().path());
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            std::future::ready(Ok::<_, kube::Error>(
                Response::builder().status(code).body(answer).unwrap(),
            ))
        });
        Cluster {
            client: Client::new(service, "default"),
            access: ClusterAccess::default(),
            context: "kind".into(),
            server: "https://rome".into(),
        }
    }

    fn answer_colleague(path: &str) -> (u16, Value) {
        if path.ends_with("/namespaces/shop/namespaceoffloadings") {
            let offloading = json!({
                "metadata": { "name": "offloading", "namespace": "shop" },
                "spec": { "podOffloadingStrategy": "Remote" },
            });
            let list = json!({
                "apiVersion": "offloading.liqo.io/v1beta1",
                "kind": "NamespaceOffloadingList",
                "metadata": {},
                "items": [offloading],
            });
            return (200, list);
        }
        let text = "x is forbidden: User \"ann\" cannot list resource \"pods\" in API group \"\" at the cluster scope";
        let status = json!({
            "kind": "Status",
            "status": "Failure",
            "reason": "Forbidden",
            "message": text,
            "code": 403,
        });
        (403, status)
    }

    #[tokio::test]
    async fn a_colleague_sees_her_namespace_and_not_the_cluster() {
        let cluster = cluster_of_colleague();
        let status = collect(&cluster, Some("shop")).await.unwrap();
        assert!(status.cluster.is_none() && status.peers.is_empty());
        let namespaces: Vec<&str> = status
            .namespaces
            .iter()
            .map(|one| one.namespace.as_str())
            .collect();
        assert_eq!(namespaces, ["shop"]);
        for namespace in [None, Some("other-team")] {
            let error = collect(&cluster, namespace).await.unwrap_err();
            assert!(error.to_string().contains("you may not list"), "{error}");
        }
    }
}
