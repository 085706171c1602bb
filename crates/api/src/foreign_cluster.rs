use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, ContractDecision, GatewayAddress, RequestedGranularity, schema};

/// A cluster that this one knows: who it is, what this cluster wants from it, what it may use here,
/// and the state of the peering.
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
    /// ID of the peer.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the cluster ID of a ForeignCluster does not change"))]
    pub cluster_id: ClusterId,
    /// Friendly name of the peer. If absent, Liqo uses the name of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub cluster_name: Option<String>,
    /// URL of the peer's auth endpoint.
    #[serde(rename = "authURL", default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// Gateways of the peer through whose tunnel this cluster calls its auth endpoint and its API
    /// server. If absent, it calls them directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tunnel: Vec<GatewayAddress>,
    /// Whether this cluster borrows from the peer. `Auto` means: if `consume.automatic` of the
    /// policy that applies to the peer says so.
    #[serde(default)]
    pub outgoing_peering: PeeringIntent,
    /// Whether the peer may borrow from this cluster. `Auto` means: with a valid token, unless the
    /// policy that applies to the peer requires none, and with approval if the policy requires it.
    #[serde(default)]
    pub incoming_peering: PeeringIntent,
    /// The resources that this cluster requests from the peer.
    #[serde(default)]
    pub request: RequestedResources,
    /// Decisions of a person on offers of the peer, by pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offers: BTreeMap<String, OfferDecision>,
    /// Decisions of a person on contracts with the peer, by name of the `Contract`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contracts: BTreeMap<String, ContractDecision>,
    /// Whether packets may flow between the pods of both clusters. With `Auto` the policy decides.
    #[serde(default)]
    pub network: PeeringIntent,
    /// Name of the Secret in Liqo's namespace that contains the token for the first request, under
    /// the key `token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_name: Option<String>,
}

/// Decision of a person on an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferDecision {
    /// Accept it, within the limits of the policy.
    Accept,
    /// Refuse it.
    Refuse,
}

/// What a user wants from one direction of a peering, or from its network.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeeringIntent {
    /// The default of the field.
    #[default]
    Auto,
    /// Allow it, or start it.
    Yes,
    /// End it if it exists, and deny further requests.
    No,
}

/// The resources that a consumer requests.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedResources {
    /// Maximum amount of each resource. Resources that are not listed are not limited.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
    /// How the offer should be divided into pools. If absent, as the peer's policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<RequestedGranularity>,
    /// Whether to request only the network: no resources, whatever `resources` says, and no virtual
    /// node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_only: bool,
}

/// The state of the peering.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ForeignClusterStatus {
    /// The tenant namespace of this cluster at the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_tenant_namespace: Option<String>,
    /// The tenant namespace of the peer in this cluster, if the peer is a consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_namespace: Option<String>,
    /// Version of the protocol that both clusters use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u32>,
    /// URL of the peer's API server.
    #[serde(
        rename = "apiServerURL",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub api_server_url: Option<String>,
    /// Address of the peer's gateway through which this cluster calls it now. Absent if it calls
    /// directly, or if it heard no gateway for eight seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_through: Option<String>,
    /// Whether this cluster borrows from the peer because of the policy, where
    /// `spec.outgoingPeering` is `Auto`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic_outgoing_peering: bool,
    /// One condition for each step of the peering. `liqoctl status` shows them as a tree.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

impl ForeignCluster {
    /// The friendly name, else the name of the object.
    pub fn display_name(&self) -> String {
        self.spec
            .cluster_name
            .clone()
            .or_else(|| self.metadata.name.clone())
            .unwrap_or_default()
    }

    /// Whether the user wants to borrow from the peer: the spec says so, or leaves it to the
    /// policy, which says so. The object is not being deleted.
    pub fn wants_outgoing(&self) -> bool {
        let status = self.status.as_ref();
        let by_policy = status.is_some_and(|status| status.automatic_outgoing_peering);
        let wants = match self.spec.outgoing_peering {
            PeeringIntent::Yes => true,
            PeeringIntent::Auto => self.spec.auth_url.is_some() && by_policy,
            PeeringIntent::No => false,
        };
        wants && self.metadata.deletion_timestamp.is_none()
    }

    /// Whether the user wants to borrow resources from the peer, not only a network.
    pub fn wants_resources(&self) -> bool {
        self.wants_outgoing() && !self.spec.request.network_only
    }

    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status
            .as_ref()?
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn automatic_peering_needs_a_policy_that_says_so_and_a_url() {
        let wants = |mut spec: Value, by_policy: bool| {
            spec["clusterID"] = json!(ClusterId::of_public_key(&[1; 32]));
            let status = json!({ "automaticOutgoingPeering": by_policy });
            let object = json!({ "metadata": { "name": "milan" }, "spec": spec, "status": status });
            serde_json::from_value::<ForeignCluster>(object)
                .unwrap()
                .wants_outgoing()
        };
        let url = "https://203.0.113.5:30443";
        assert!(wants(json!({ "authURL": url }), true));
        assert!(!wants(json!({ "authURL": url }), false) && !wants(json!({}), true));
        assert!(!wants(
            json!({ "authURL": url, "outgoingPeering": "No" }),
            true
        ));
        assert!(wants(
            json!({ "authURL": url, "outgoingPeering": "Yes" }),
            false
        ));
    }
}
