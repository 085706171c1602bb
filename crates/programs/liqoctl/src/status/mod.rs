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

pub use tree::{Branch, render_status};
pub use watch::watch_status;

use crate::{
    cluster::Cluster,
    inspect::{self, ClusterReader},
    kept_addresses::KeepableRanges,
};

pub async fn collect(cluster: &Cluster) -> anyhow::Result<StatusReport> {
    let reader = ClusterReader::new(cluster);
    let objects = Box::pin(reader.liqo_objects()).await;
    let usage = inspect::collect_usage(&reader, &objects).await;
    usage
        .and_then(|usage| summary::summarize_status(&cluster.context, &objects, &usage))
        .map_err(anyhow::Error::msg)
}

impl StatusReport {
    /// Only this offloaded namespace, if the user names one.
    #[must_use]
    pub fn only_namespace(mut self, namespace: Option<&str>) -> Self {
        self.namespaces
            .retain(|one| namespace.is_none_or(|namespace| one.namespace == namespace));
        self
    }
}

/// Everything that `liqoctl status` shows; `-o json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub cluster: ThisCluster,
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
