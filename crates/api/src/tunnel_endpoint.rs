use std::collections::BTreeMap;

use ipnet::IpNet;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, GatewayAddress, Reach, schema};

/// The network towards one peer, as the nodes of this cluster are to hold it. Lives in Liqo's namespace and is named by the peer's ID;
/// the manager writes the spec, the gateways in use the status.
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
    doc = "The network towards one peer",
    derive = "PartialEq",
    printcolumn(name = "Peer", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Seen here as", type_ = "string", json_path = ".spec.imported"),
    printcolumn(name = "Gateway", type_ = "string", json_path = ".status.gateway"),
    printcolumn(name = "Transport", type_ = "string", json_path = ".status.transport"),
    printcolumn(name = "Connected", type_ = "string", json_path = ".status.conditions[?(@.type==\"Connected\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEndpointSpec {
    /// The peer.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Its friendly name.
    #[serde(default)]
    pub cluster_name: String,
    /// What we show it: from our own prefix to where it sees it. What it has not told us yet is missing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub exported: BTreeMap<IpNet, IpNet>,
    /// What it shows us: from its own prefix to where we see it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub imported: BTreeMap<IpNet, IpNet>,
    /// Where its tunnels end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayAddress>,
    /// What a packet may measure inside the tunnel.
    pub mtu: u16,
    /// Which of our addresses it may open connections to.
    #[serde(default)]
    pub reach: Reach,
    /// Whether pods of ours that run at the peer may reach our API server, beside that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub api_server: bool,
}

/// How the tunnel is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEndpointStatus {
    /// The nodes that tunnels begin at, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// What carries packets to it: TLS, where it carries those of one gateway or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// The same nodes, each with what it says of its tunnels to this peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayStatus>,
    /// `Connected`: a gateway of the peer answers one of ours through the tunnel, or what is known of why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// What one gateway of ours says of its tunnels to a peer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// The gateway's node.
    pub node: String,
    /// Whether a gateway of the peer answers it.
    #[serde(default)]
    pub connected: bool,
    /// What carries packets: TLS, where it carries those of one tunnel or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Where the peer's gateways that answer it were heard from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
}

/// What carries packets between two gateways.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams, as WireGuard sends them.
    #[serde(rename = "UDP")]
    Udp,
    /// A connection over TLS, because datagrams do not arrive.
    #[serde(rename = "TLS")]
    Tls,
}

/// Condition of a [`TunnelEndpoint`]: a gateway of the peer answers through the tunnel.
pub const CONNECTED: &str = "Connected";

impl TunnelEndpoint {
    /// The condition [`CONNECTED`].
    pub fn connected(&self) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == CONNECTED)
    }
}
