use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of a consumer's namespaces exist at the provider. Each tenant namespace has one, named
/// `namespaces`. The consumer writes the spec, the provider writes the status. The keys of both are
/// the consumer's namespaces.
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
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapSpec {
    /// The namespaces that the consumer wants at the provider.
    #[serde(default)]
    #[schemars(extend(
        "maxProperties" = 1000,
        "x-kubernetes-validations" = [{
            "rule": "self.all(name, name.size() <= 63)",
            "message": "the name of a namespace has at most 63 characters",
        }]
    ))]
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

/// Which namespaces exist.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapStatus {
    /// The state of each namespace in the spec, and of namespaces that are no longer in it but
    /// still exist.
    #[serde(default)]
    pub namespaces: BTreeMap<String, MappedNamespace>,
}

/// A mapped namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MappedNamespace {
    /// Its name at the provider.
    pub remote_name: String,
    /// Its UID, once the provider created it. The provider deletes only a namespace with this UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// State of the namespace.
    pub phase: MappedNamespacePhase,
    /// Why the namespace is not `Ready`, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// State of a mapped namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedNamespacePhase {
    /// Pods can run in it.
    Ready,
    /// The provider refuses to create it.
    Refused,
    /// The provider is deleting it.
    Terminating,
}
