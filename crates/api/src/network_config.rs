use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, schema};

/// What two clusters tell each other about their networks. Lives in the tenant namespace; the consumer writes the spec, the provider
/// the status, and both hold the same kind of announcement.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "NetworkConfig",
    plural = "networkconfigs",
    shortname = "netcfg",
    category = "liqo",
    namespaced,
    status = "NetworkConfigStatus",
    doc = "What two clusters tell each other about their networks",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Consumer exports", type_ = "string", json_path = ".spec.announcement.exports"),
    printcolumn(name = "Provider exports", type_ = "string", json_path = ".status.announcement.exports"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigSpec {
    /// What the consumer says.
    #[serde(default)]
    pub announcement: NetworkAnnouncement,
}

/// The provider's half.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigStatus {
    /// What the provider says.
    #[serde(default)]
    pub announcement: NetworkAnnouncement,
}

/// What one cluster says of its network. All prefixes are of its own address space, but for the keys of `views`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkAnnouncement {
    /// What the other may reach of its own: prefixes, such as `10.244.0.0/16`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub exports: BTreeSet<IpNet>,
    /// What the other may reach through it: where it sees prefixes of its other peers, and whose they are. These are not passed on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub transit: BTreeMap<IpNet, ClusterId>,
    /// Where it sees what the other exports: from the other's prefix to its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub views: BTreeMap<IpNet, IpNet>,
    /// Where its tunnels end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub gateways: Vec<GatewayAddress>,
    /// What a packet may measure inside the tunnel; 0 where it is not known.
    #[serde(default)]
    pub mtu: u16,
}

/// One end of a tunnel.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GatewayAddress {
    /// Its WireGuard key (base64).
    #[schemars(regex(pattern = r"^[A-Za-z0-9+/]{43}=$"))]
    pub public_key: String,
    /// The first key that it had (base64), where it was renewed: its part of the flows follows from it. While a key is being renewed
    /// there are two ends at one place, with the same first key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9+/]{43}=$"))]
    pub first_key: Option<String>,
    /// Where it waits for datagrams, `address:port`; none where it can only begin itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub endpoints: Vec<String>,
    /// Where it takes connections over TLS from those whose datagrams do not arrive, `address:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub tls: Vec<String>,
}
