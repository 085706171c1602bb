use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Time};

/// One pool of resources that a provider offers to one consumer. Lives in the tenant namespace, named after its pool; the
/// consumer keeps a copy in its provider namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "ResourceOffer",
    plural = "resourceoffers",
    shortname = "offer",
    category = "liqo",
    namespaced,
    status = "ResourceOfferStatus",
    doc = "One pool of resources that a provider offers to one consumer",
    derive = "PartialEq",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "CPU", type_ = "string", json_path = ".spec.resourceQuota.hard.cpu"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.resourceQuota.hard.memory"),
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.resourceQuota.hard.pods"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOfferSpec {
    /// The provider.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// The pool: one pool becomes one virtual node.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub pool: String,
    /// How much.
    pub resource_quota: ResourceQuota,
    /// Labels that the provider advertises; the consumer takes only harmless ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The clusters that the resources came through, the one that owns them first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<ClusterId>,
    /// Storage classes that pods of the pool may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub storage_classes: Vec<String>,
    /// Ingress classes that may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress_classes: Vec<String>,
    /// Load-balancer classes that may be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_classes: Vec<String>,
    /// The provider's nodes that the pool stands for, if not all of them. Only the provider makes use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// So many seconds before pods are ended the provider says that it takes something back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 604_800))]
    pub notice_seconds: Option<u32>,
    /// When the offer ends, if the provider takes it back: until then pods may move away, no new ones come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<Time>,
    /// From when on the provider ends pods that use more than is offered, the youngest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<Time>,
}

/// Upper bounds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceQuota {
    /// The sum of the requests of all pods in the pool never exceeds this.
    pub hard: ResourceList,
}

/// The consumer's answer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOfferStatus {
    /// Where the offer stands.
    #[serde(default)]
    pub phase: OfferPhase,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Where an offer stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfferPhase {
    /// The consumer has not answered.
    #[default]
    Pending,
    /// A person at the consumer is to decide.
    ManualActionRequired,
    /// The consumer uses it.
    Accepted,
    /// The consumer does not want it.
    Refused,
}
