use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, LargestPods, PriceList, Time, schema};

/// One accepted pool, which becomes a Node. It is in the provider namespace, named after its pool.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "VirtualNode",
    plural = "virtualnodes",
    shortname = "vn",
    category = "liqo",
    namespaced,
    status = "VirtualNodeStatus",
    doc = "One accepted pool of a provider, which becomes a Node",
    derive = "PartialEq",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNodeSpec {
    /// ID of the provider.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the provider of a virtual node does not change"))]
    pub cluster_id: ClusterId,
    /// Friendly name of the provider, from the `ForeignCluster`. The Node is named after it.
    pub cluster_name: String,
    /// Name of the pool.
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the pool of a virtual node does not change"))]
    pub pool: String,
    /// The accepted amounts: the capacity of the Node. Its allocatable is less by what its pods are
    /// charged beyond their requests.
    pub resources: ResourceList,
    /// What the provider's nodes with the most room have free now, as its offer says it. If empty,
    /// nothing is known.
    #[serde(default, skip_serializing_if = "LargestPods::is_empty")]
    #[schemars(schema_with = "schema::largest_pods")]
    pub largest_pods: LargestPods,
    /// Time at which the provider takes the pool back, if it does. Until then the Node gets no new
    /// pods, and its pods are evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<Time>,
    /// Labels that the provider advertises. Only harmless ones get on the Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The prices of the resources now. If absent, they cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    /// Why the Node gets no new pods now, for people. Its pods stay. If absent, it gets new pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub no_new_pods: Option<String>,
}

/// The state of the Node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VirtualNodeStatus {
    /// Name of the Node. Once chosen, it does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Port of the Node's kubelet API at the manager's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_port: Option<u16>,
    /// `Ready`: the Node exists and is Ready. `KubeletServing`: the kubelet API has a certificate
    /// that the cluster trusts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}
