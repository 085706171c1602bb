use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, schema};

/// What this cluster is called, how others reach it, and how Liqo behaves in it. There is one, named `liqo`; it is read live.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "config.liqo.io",
    version = "v1alpha1",
    kind = "ClusterConfig",
    plural = "clusterconfigs",
    shortname = "lcc",
    category = "liqo",
    status = "ClusterConfigStatus",
    doc = "Configuration of Liqo in this cluster; the only one is named liqo",
    derive = "Default",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name == 'liqo'").message("the only ClusterConfig is named liqo"),
    printcolumn(name = "Name", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Cluster ID", type_ = "string", json_path = ".status.clusterID"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfigSpec {
    /// Friendly name of this cluster, shown to its peers: a DNS label.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub cluster_name: String,
    /// Labels of this cluster, put on the virtual nodes that its peers make of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_labels: BTreeMap<String, String>,
    /// How peers reach the API server.
    #[serde(default)]
    pub api_server: ApiServerAddress,
    /// How peers reach the auth endpoint.
    #[serde(default)]
    pub authentication: AuthenticationAddress,
    /// Life of peerings.
    #[serde(default)]
    pub peering: PeeringTimes,
    /// Behaviour of offloading.
    #[serde(default)]
    pub offloading: OffloadingBehaviour,
}

/// How peers reach the API server. What is absent is found in `ConfigMap` `kube-public/cluster-info`, else taken from a control-plane node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerAddress {
    /// URL, such as `https://203.0.113.5:6443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Certificates (PEM) that the API server's certificate is checked with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// How peers reach the auth endpoint. When absent, the address of Service `liqo-auth` is taken (load balancer, else node port).
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AuthenticationAddress {
    /// URL, such as `https://203.0.113.5:30443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Life of peerings.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct PeeringTimes {
    /// Seconds after which what is held for a silent consumer is given up.
    #[schemars(range(min = 60))]
    pub consumer_expiry_seconds: u32,
    /// Seconds after which a consumer that nobody approved is forgotten, where a policy wants approval by a person.
    #[schemars(range(min = 60))]
    pub approval_expiry_seconds: u32,
}

impl Default for PeeringTimes {
    fn default() -> Self {
        Self { consumer_expiry_seconds: 24 * 60 * 60, approval_expiry_seconds: 24 * 60 * 60 }
    }
}

/// Behaviour of offloading.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct OffloadingBehaviour {
    /// Seconds after which a refused pod that has a controller is deleted, so that its replacement may be scheduled elsewhere.
    #[schemars(range(min = 1))]
    pub refusal_timeout_seconds: u32,
}

impl Default for OffloadingBehaviour {
    fn default() -> Self {
        Self { refusal_timeout_seconds: 300 }
    }
}

/// What the manager found out about this cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfigStatus {
    /// Identity of this cluster.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// Public key (base64) that the ID follows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Version of the manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// URL of the auth endpoint as peers should call it.
    #[serde(rename = "authURL", default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,
    /// URL of the API server that consumers are given.
    #[serde(rename = "apiServerURL", default, skip_serializing_if = "Option::is_none")]
    pub api_server_url: Option<String>,
    /// `AddressesKnown`: whether peers can be told how to reach this cluster, and what to set if not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition of a [`ClusterConfig`]: peers can be told how to reach this cluster.
pub const ADDRESSES_KNOWN: &str = "AddressesKnown";
