use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of a consumer's namespaces exist at the provider. One in each tenant namespace, named `namespaces`; the consumer
/// writes the spec, the provider the status. Keys are the consumer's namespaces.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "NamespaceMap",
    plural = "namespacemaps",
    shortname = "nsmap",
    category = "liqo",
    namespaced,
    status = "NamespaceMapStatus",
    doc = "Which of a consumer's namespaces exist in this cluster",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapSpec {
    /// Wanted namespaces.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 1000))]
    pub mappings: BTreeMap<String, WantedNamespace>,
}

/// A namespace that the consumer wants.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WantedNamespace {
    /// Its name at the provider: the default one, or one that the provider's policy allows.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub remote_name: String,
}

/// What exists.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapStatus {
    /// What became of each wanted namespace, and what is still there of those no longer wanted.
    #[serde(default)]
    pub namespaces: BTreeMap<String, MappedNamespace>,
}

/// A mapped namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MappedNamespace {
    /// Its name at the provider.
    pub remote_name: String,
    /// Its UID, once the provider made it. Only a namespace with this UID is ever deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Where it stands.
    pub phase: MappedNamespacePhase,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Where a mapped namespace stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedNamespacePhase {
    /// Pods can run in it.
    Ready,
    /// The provider will not make it.
    Refused,
    /// It is going away.
    Terminating,
}
