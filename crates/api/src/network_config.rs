use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{ClusterId, schema};

/// The announcements by which two clusters describe their networks to each other. It is in the
/// tenant namespace. The consumer writes its announcement into the spec, the provider writes its
/// announcement into the status.
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
    doc = "The announcements by which two clusters describe their networks to each other",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Consumer exports",
        type_ = "string",
        json_path = ".spec.announcement.exports"
    ),
    printcolumn(
        name = "Provider exports",
        type_ = "string",
        json_path = ".status.announcement.exports"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigSpec {
    /// Announcement of the consumer.
    #[serde(default)]
    pub announcement: NetworkAnnouncement,
}

/// The part that the provider writes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigStatus {
    /// Announcement of the provider.
    #[serde(default)]
    pub announcement: NetworkAnnouncement,
}

/// What a cluster announces about its network. All prefixes are in its own address space, except
/// the keys of `views`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkAnnouncement {
    /// Its own prefixes that the peer may reach, such as `10.244.0.0/16`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(schema_with = "schema::prefixes")]
    pub exports: BTreeSet<IpNet>,
    /// Prefixes of its other peers that the peer may reach through it, as it sees them, and the IDs
    /// of their clusters. The peer does not pass them on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub transit: BTreeMap<IpNet, ClusterId>,
    /// Prefixes of clusters behind it, as it sees them: consumers whose pods it offloaded on to the
    /// peer, and providers to which it offloaded pods of the peer on. Each with the IDs of the
    /// clusters behind it on the way, the owner of the prefix first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefixes_behind")]
    pub behind: BTreeMap<IpNet, Vec<ClusterId>>,
    /// Where it maps the prefixes that the peer exports: from the peer's prefix to its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::prefix_map")]
    pub views: BTreeMap<IpNet, IpNet>,
    /// Its gateways, where its tunnels end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub gateways: Vec<GatewayAddress>,
    /// Maximum size of a packet inside its tunnels, in bytes; 0 if unknown.
    #[serde(default)]
    pub mtu: u16,
    /// Maximum size of a packet on the way beyond it to prefixes in `transit` and `behind`, in
    /// bytes, where that is less than `mtu`.
    #[serde(
        default,
        rename = "pathMTUs",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(schema_with = "schema::path_mtus")]
    pub path_mtus: BTreeMap<IpNet, u16>,
    /// Whether it exchanges packets directly with clusters behind the peer, where the peer
    /// announces a direct path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepts_direct: bool,
    /// Clusters in `behind` with which the peer may exchange packets directly.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "direct_paths")]
    pub direct: BTreeMap<ClusterId, DirectPath>,
}

/// How a cluster and one behind its peer, the broker, exchange packets directly. On the way packets
/// have the addresses that they would have in the broker.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DirectPath {
    /// Gateways of the other cluster.
    pub gateways: Vec<GatewayAddress>,
    /// Set if the other cluster is the customer: the namespaces of the broker from which its pods
    /// came here. Absent if it is the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<BTreeSet<String>>,
}

/// Maximum number of direct paths that a cluster announces to a peer.
pub const MAX_DIRECT: usize = 16;
/// Maximum number of addresses of each gateway on a direct path.
pub const MAX_DIRECT_ADDRESSES: usize = 2;
/// Maximum number of namespaces of a consumer on a direct path.
pub const MAX_DIRECT_NAMESPACES: usize = 256;

/// Direct paths by the ID of the other cluster. They are many, so each is smaller than what a peer
/// announces of itself.
pub(crate) fn direct_paths(generator: &mut SchemaGenerator) -> Schema {
    let mut gateway = GatewayAddress::json_schema(generator);
    for (field, max) in [("endpoints", MAX_DIRECT_ADDRESSES), ("tls", 0)] {
        if let Some(list) = gateway
            .pointer_mut(&format!("/properties/{field}"))
            .and_then(|list| list.as_object_mut())
        {
            list.insert("maxItems".to_owned(), max.into());
        }
    }
    let name = json_schema!({ "type": "string", "maxLength": 63 });
    json_schema!({
        "type": "object",
        "maxProperties": MAX_DIRECT,
        "additionalProperties": {
            "type": "object",
            "required": ["gateways"],
            "properties": {
                "gateways": { "type": "array", "maxItems": 16, "items": gateway },
                "namespaces": { "type": "array", "maxItems": MAX_DIRECT_NAMESPACES, "items": name },
            },
        },
        "x-kubernetes-validations": [{
            "rule": "self.all(id, id.size() <= 32)",
            "message": "the ID of a cluster is too long",
        }],
    })
}

/// A gateway: one end of a tunnel.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GatewayAddress {
    /// Its WireGuard key (base64).
    #[schemars(regex(pattern = r"^[A-Za-z0-9+/]{43}=$"))]
    pub public_key: String,
    /// Its first key (base64), if its key was renewed. The flows that it carries follow from this
    /// key. During a renewal the list contains the gateway twice, with the same first key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9+/]{43}=$"))]
    pub first_key: Option<String>,
    /// Where it receives datagrams, `address:port`. Absent if the peer cannot send to it before it
    /// has sent itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub endpoints: Vec<String>,
    /// Where it accepts tunnels over TLS from peers whose datagrams do not arrive, `address:port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 300)))]
    pub tls: Vec<String>,
}
