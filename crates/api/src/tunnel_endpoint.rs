use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ClusterId, Condition, DirectPath, GatewayAddress, Reach, network_config::direct_paths, schema,
};

/// The network to one peer, as the nodes of this cluster must configure it. It is in Liqo's
/// namespace, and its name is the peer's ID. The manager writes the spec, the gateways write the
/// status.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "TunnelEndpoint",
    plural = "tunnelendpoints",
    shortname = "te",
    category = "liqo",
    namespaced,
    status = "TunnelEndpointStatus",
    doc = "The network to one peer",
    derive = "PartialEq",
    printcolumn(name = "Peer", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Seen here as", type_ = "string", json_path = ".spec.imported"),
    printcolumn(name = "Gateway", type_ = "string", json_path = ".status.gateway"),
    printcolumn(name = "Transport", type_ = "string", json_path = ".status.transport"),
    printcolumn(
        name = "Connected",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Connected\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEndpointSpec {
    /// ID of the peer.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Friendly name of the peer.
    #[serde(default)]
    pub cluster_name: String,
    /// Prefixes that this cluster exports: from its own prefix to the prefix under which the peer
    /// sees it, once the peer has announced it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub exported: BTreeMap<IpNet, IpNet>,
    /// Prefixes that the peer exports: from the peer's own prefix to the prefix under which this
    /// cluster sees it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub imported: BTreeMap<IpNet, IpNet>,
    /// Ranges of the peer that are free in this cluster: they would keep their addresses if
    /// `network.keptCIDRs` of its policy named them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub could_keep: BTreeSet<IpNet>,
    /// Prefixes of the peer that appear elsewhere as soon as no pod of either cluster runs at the
    /// other: from the peer's own prefix to the one under which this cluster sees it then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub waiting: BTreeMap<IpNet, IpNet>,
    /// Those of the peer's prefixes in `imported` that belong to clusters behind the peer, with the
    /// IDs of the clusters behind it on the way, the owner of the prefix first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefixes_behind")]
    pub behind: BTreeMap<IpNet, Vec<ClusterId>>,
    /// Consumers of this cluster whose pods it offloaded on to the peer: these pods and their
    /// consumer reach each other through this cluster.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(schema_with = "schema::cluster_ids")]
    pub customers: BTreeSet<ClusterId>,
    /// Whether the peer reaches other peers of which this is true, too, through this cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transit: bool,
    /// Gateways of the peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayAddress>,
    /// Maximum size of a packet inside the tunnel, in bytes.
    pub mtu: u16,
    /// Maximum size of a packet on the way to those of the peer's prefixes in `imported` where that
    /// is less than `mtu`, in bytes.
    #[serde(
        default,
        rename = "pathMTUs",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(schema_with = "schema::path_mtus")]
    pub path_mtus: BTreeMap<IpNet, u16>,
    /// Addresses of this cluster to which the peer may open connections.
    #[serde(default)]
    pub reach: Reach,
    /// Whether pods of this cluster that run at the peer may also reach this cluster's API server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub api_server: bool,
    /// Whether the peer exchanges packets directly with clusters behind this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepts_direct: bool,
    /// Clusters in `behind` with which this cluster exchanges packets directly while both ends
    /// answer, and through the peer else.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "direct_paths")]
    pub direct: BTreeMap<ClusterId, DirectPath>,
}

/// The state of the tunnels to the peer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEndpointStatus {
    /// Names of the gateways' nodes in this cluster, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Transport of the packets: TLS if at least one gateway uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Report of each gateway of this cluster about its tunnels to this peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayStatus>,
    /// `Connected`: a gateway of the peer answers a gateway of this cluster through the tunnel. The
    /// message says why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Report of one gateway of this cluster about its tunnels to a peer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Name of the gateway's node.
    pub node: String,
    /// Whether a gateway of the peer answers this gateway.
    #[serde(default)]
    pub connected: bool,
    /// Transport of the packets: TLS if at least one tunnel uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Addresses from which the answers of the peer's gateways come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Shortest time between a probe through the tunnel and its answer, in microseconds. If the
    /// peer has several gateways, that of the slowest. Small changes are not written; metrics are
    /// exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_microseconds: Option<u32>,
    /// Minimum percentage of probes that are lost: 0, 5, 20, 50 or 100. If the peer has several
    /// gateways, that of the worst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_percent: Option<u8>,
    /// Clusters behind the peer to which this gateway sends packets directly now.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(schema_with = "schema::cluster_ids")]
    pub direct: BTreeSet<ClusterId>,
}

/// Transport of packets between two gateways.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams of WireGuard.
    #[serde(rename = "UDP")]
    Udp,
    /// A connection over TLS, if datagrams do not arrive.
    #[serde(rename = "TLS")]
    Tls,
}

/// Condition of a [`TunnelEndpoint`]: a gateway of the peer answers through the tunnel.
pub const CONNECTED: &str = "Connected";

impl TunnelEndpoint {
    /// The condition [`CONNECTED`].
    pub fn connected_condition(&self) -> Option<&Condition> {
        self.status
            .as_ref()?
            .conditions
            .iter()
            .find(|condition| condition.type_ == CONNECTED)
    }
}
