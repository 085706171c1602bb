//! `liqoctl status`: this cluster, each peer in both directions, each link of the chain, as a tree.

mod collect;
mod tree;

use std::collections::BTreeMap;

use ipnet::IpNet;
use liqo_api::{
    ClusterId, Condition, Exposed, ForeignCluster, GatewayStatus, OfferPhase, PodOffloadingStrategy, ResourceList, Wish,
};
use serde::Serialize;

pub use collect::collect;
pub use tree::render;

/// Everything, as programs get it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// This cluster.
    pub cluster: ThisCluster,
    /// The others.
    pub peers: Vec<Peer>,
    /// Offloaded namespaces.
    pub namespaces: Vec<OffloadedNamespace>,
}

/// This cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThisCluster {
    /// Its name; that of the kubeconfig where Liqo is not installed.
    pub name: String,
    /// Whether Liqo is installed.
    pub installed: bool,
    /// Its identity.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Version of Liqo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// URL of its auth endpoint.
    #[serde(rename = "authURL", skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// URL of its API server, as peers are told.
    #[serde(rename = "apiServerURL", skip_serializing_if = "Option::is_none")]
    pub api_server_url: Option<String>,
    /// Its conditions.
    pub conditions: Vec<Link>,
    /// Replicas of the controller manager that are available, and that are wanted.
    pub manager: Replicas,
}

/// Replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replicas {
    /// That work.
    pub available: i32,
    /// That are wanted.
    pub wanted: i32,
}

/// One other cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Name of its `ForeignCluster`.
    pub name: String,
    /// Its identity.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// What this cluster borrows from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowing: Option<Borrowing>,
    /// What it borrows from this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lending: Option<Lending>,
    /// How packets flow between its pods and ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Networking>,
    /// Whether the peering is being ended.
    pub ending: bool,
}

/// What this cluster borrows.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Borrowing {
    /// No resources are wanted, only the network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub network_only: bool,
    /// The way through its tunnel, where that is how it is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Through>,
    /// The links of the chain, in order.
    pub links: Vec<Link>,
    /// What is offered.
    pub offers: Vec<Offer>,
    /// The nodes that follow from it.
    pub nodes: Vec<VirtualNode>,
}

/// How a provider is called through its tunnel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Through {
    /// Its gateway that answers; none, if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

/// What a peer borrows from this cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lending {
    /// The peer's namespace here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_namespace: Option<String>,
    /// The links of the chain, in order.
    pub links: Vec<Link>,
    /// What it is offered.
    pub offers: Vec<Offer>,
    /// Its pods that were made here and have not finished.
    pub pods: usize,
}

/// The network to a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// The links of the chain, in order.
    pub links: Vec<Link>,
    /// The peer's prefixes, and where they are seen here.
    pub prefixes: BTreeMap<IpNet, IpNet>,
    /// What our gateways say of their tunnels to it.
    pub gateways: Vec<GatewayStatus>,
}

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Its condition type.
    pub name: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Since when.
    pub since: String,
}

impl From<&Condition> for Link {
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

/// One offer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// Its pool.
    pub pool: String,
    /// Where it stands.
    pub phase: OfferPhase,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How much.
    pub resources: ResourceList,
    /// When the offer ends, if it is taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<String>,
    /// From when on pods beyond it are ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<String>,
}

/// One virtual node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNode {
    /// Its pool.
    pub pool: String,
    /// Name of the Node, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the Node is Ready.
    pub ready: bool,
    /// What it has.
    pub resources: ResourceList,
    /// Unfinished pods on it.
    pub pods: usize,
}

/// One offloaded namespace.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OffloadedNamespace {
    /// Its name here.
    pub namespace: String,
    /// Where its pods may run.
    pub pod_offloading_strategy: PodOffloadingStrategy,
    /// Whether it exists everywhere it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Link>,
    /// Where it exists: cluster and namespace there.
    pub remote: Vec<Twin>,
}

/// A namespace at a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Twin {
    /// The provider.
    pub cluster: String,
    /// The namespace there.
    pub namespace: String,
    /// Whether pods can run in it.
    pub ready: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the world reaches there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<Exposed>,
}

/// The links among `wanted` that a `ForeignCluster` has, in their order.
fn links(foreign: &ForeignCluster, wanted: &[&str]) -> Vec<Link> {
    wanted.iter().filter_map(|kind| foreign.condition(kind)).map(Link::from).collect()
}

/// Whether this cluster wants to borrow, or still has something to give back.
fn borrows(foreign: &ForeignCluster, links: &[Link]) -> bool {
    foreign.spec.outgoing_peering == Wish::Yes || links.iter().any(|link| link.reason != "NotPeered")
}
