use k8s_openapi::api::core::v1::NodeSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Condition, Exposure, schema};

/// The pods of this namespace may run in other clusters. There is at most one in a namespace, named `offloading`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "offloading.liqo.io",
    version = "v1alpha1",
    kind = "NamespaceOffloading",
    plural = "namespaceoffloadings",
    shortname = "nsoff",
    category = "liqo",
    namespaced,
    status = "NamespaceOffloadingStatus",
    doc = "The pods of this namespace may run in other clusters",
    derive = "Default",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name == 'offloading'").message("the NamespaceOffloading of a namespace is named offloading"),
    printcolumn(name = "Mapping", type_ = "string", json_path = ".spec.namespaceMappingStrategy"),
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.podOffloadingStrategy"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingSpec {
    /// How the namespace is called at the provider.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the mapping of a namespace does not change while it is offloaded; unoffload it first"))]
    pub namespace_mapping_strategy: NamespaceMappingStrategy,
    /// Where pods may run.
    #[serde(default)]
    pub pod_offloading_strategy: PodOffloadingStrategy,
    /// Which of its Services and Ingresses exist at the providers.
    #[serde(default, skip_serializing_if = "Reflection::is_default")]
    pub reflection: Reflection,
    /// Which virtual nodes may be used; all of them when absent or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<NodeSelector>,
}

/// How a namespace is called at the provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMappingStrategy {
    /// `<namespace>-<cluster name>-<6 characters of the cluster ID>`.
    #[default]
    DefaultName,
}

/// Where the pods of an offloaded namespace may run.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodOffloadingStrategy {
    /// On local and virtual nodes, as the scheduler sees fit.
    #[default]
    LocalAndRemote,
    /// On local nodes only; the namespace still exists at the providers.
    Local,
    /// On virtual nodes only.
    Remote,
}

/// Which Services, with their endpoints, and Ingresses of an offloaded namespace exist at the providers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflection {
    /// All but those with the annotation `liqo.io/reflection: deny`.
    #[default]
    DenyList,
    /// Only those with the annotation `liqo.io/reflection: allow`.
    AllowList,
}

impl Reflection {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the namespace stands at each provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingStatus {
    /// `Ready`: every selected cluster has the namespace, or which one has not, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// One element for each selected cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_namespaces: Vec<RemoteNamespace>,
}

/// The namespace's twin at one provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespace {
    /// The provider.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Its friendly name.
    pub cluster_name: String,
    /// Name of the namespace there.
    pub namespace: String,
    /// Whether pods can run in it.
    pub ready: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the world reaches there of its Services and Ingresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<Exposed>,
}

/// What the world reaches at a provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Exposed {
    /// `Service` or `Ingress`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// How it is reached.
    #[serde(flatten)]
    pub exposure: Exposure,
}
