use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, GatewayAddress, schema};

/// One known peer: who it is, what we want from it, what it may have from us, and how far that came.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "ForeignCluster",
    plural = "foreignclusters",
    shortname = "fc",
    category = "liqo",
    status = "ForeignClusterStatus",
    doc = "A cluster that this one borrows from, lends to, or both",
    derive = "PartialEq",
    validation = kube::core::Rule::new("size(self.metadata.name) <= 63").message("a ForeignCluster's name has at most 63 characters"),
    printcolumn(name = "Cluster ID", type_ = "string", json_path = ".spec.clusterID"),
    printcolumn(name = "Outgoing", type_ = "string", json_path = ".spec.outgoingPeering"),
    printcolumn(name = "Incoming", type_ = "string", json_path = ".spec.incomingPeering"),
    printcolumn(name = "Reachable", type_ = "string", json_path = ".status.conditions[?(@.type==\"PeerReachable\")].status"),
    printcolumn(name = "Nodes Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"VirtualNodesReady\")].status"),
    printcolumn(name = "Tunnel", type_ = "string", json_path = ".status.conditions[?(@.type==\"TunnelConnected\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = kube::core::Rule::new("!has(self.outgoingPeering) || self.outgoingPeering != 'Yes' || has(self.authURL)").message("an outgoing peering needs authURL"))]
#[x_kube(validation = kube::core::Rule::new("!has(self.request) || !has(self.request.networkOnly) || !self.request.networkOnly || !has(self.network) || self.network != 'No'").message("request.networkOnly with network: No asks for nothing at all"))]
#[serde(rename_all = "camelCase")]
pub struct ForeignClusterSpec {
    /// Identity of the peer.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the cluster ID of a ForeignCluster does not change"))]
    pub cluster_id: ClusterId,
    /// Friendly name of the peer; the object's name is used when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub cluster_name: Option<String>,
    /// URL of the peer's auth endpoint.
    #[serde(rename = "authURL", default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// Gateways of the peer through whose tunnel its auth endpoint and its API server are called; none where they are called directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tunnel: Vec<GatewayAddress>,
    /// Whether we borrow from it. `Auto` means no, until a policy says otherwise.
    #[serde(default)]
    pub outgoing_peering: Wish,
    /// Whether it may borrow from us. `Auto` means: with a valid token.
    #[serde(default)]
    pub incoming_peering: Wish,
    /// What we ask for.
    #[serde(default)]
    pub request: RequestedResources,
    /// What was decided by hand on offers of the peer, by pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offers: BTreeMap<String, OfferDecision>,
    /// Whether packets may flow between its pods and ours. `Auto` means: as the policy says.
    #[serde(default)]
    pub network: Wish,
    /// Name of the Secret (key `token`, in Liqo's namespace) with the token for the first contact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_name: Option<String>,
}

/// What a person decided on an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferDecision {
    /// It is accepted, within the policy's limits.
    Accept,
    /// It is refused.
    Refuse,
}

/// What a user wants of one direction of a peering.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// As the policy says.
    #[default]
    Auto,
    /// Yes.
    Yes,
    /// No: an existing peering of this direction is ended, and asking again is denied.
    No,
}

/// How much to ask for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedResources {
    /// At most this much of each resource named; what is not named is taken as offered.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
    /// No resources are asked for, whatever is named above: the peering is for the network alone, and there is no virtual node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_only: bool,
}

/// How far the peering came.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ForeignClusterStatus {
    /// Namespace at the peer that belongs to us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_tenant_namespace: Option<String>,
    /// Namespace here that belongs to the peer as our consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_namespace: Option<String>,
    /// Protocol version that both sides speak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u32>,
    /// URL of the peer's API server.
    #[serde(rename = "apiServerURL", default, skip_serializing_if = "Option::is_none")]
    pub api_server_url: Option<String>,
    /// Address of the peer's gateway through whose tunnel it is called now; none where it is called directly, or no gateway answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_through: Option<String>,
    /// One condition for each link of the chain, see [`crate::links`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl ForeignCluster {
    /// The name to show: the friendly one, else that of the object.
    pub fn display_name(&self) -> String {
        self.spec.cluster_name.clone().or_else(|| self.metadata.name.clone()).unwrap_or_default()
    }

    /// Whether we want a peering with it as our provider: asked for, and the object is not being deleted.
    pub fn wants_outgoing(&self) -> bool {
        self.spec.outgoing_peering == Wish::Yes && self.metadata.deletion_timestamp.is_none()
    }

    /// Whether we want to borrow resources from it, and not only a network to it.
    pub fn wants_resources(&self) -> bool {
        self.wants_outgoing() && !self.spec.request.network_only
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
    }
}
