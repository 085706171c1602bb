use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema;

/// One object of a consumer that is to exist in a mapped namespace too. Lives in the tenant namespace; checked and applied by
/// the provider. Secrets do not travel this way but as Secrets, so that encryption at rest holds for them.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "ReflectedObject",
    plural = "reflectedobjects",
    shortname = "refl",
    category = "liqo",
    namespaced,
    status = "ReflectedObjectStatus",
    doc = "One object of a consumer that is to exist in a mapped namespace",
    derive = "PartialEq",
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.namespace"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.object.kind"),
    printcolumn(name = "Name", type_ = "string", json_path = ".spec.object.metadata.name"),
    printcolumn(name = "Refused", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ReflectedObjectSpec {
    /// Namespace of the object at home.
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the namespace of a reflected object does not change"))]
    pub namespace: String,
    /// The object: apiVersion, kind, metadata (name, labels, annotations) and content.
    #[schemars(schema_with = "schema::any_object")]
    pub object: Value,
}

/// Why the object does not exist at the provider, or only in part; no reason when it does.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReflectedObjectStatus {
    /// One word: `KindNotAllowed`, `NameTaken`, `NamespaceNotReady`, `Invalid`, `NoService`, `AddressRefused`, `ClassNotAllowed`,
    /// `HostNotAllowed`, `AnnotationNotAllowed`, `LimitReached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How the world reaches an Ingress or a Service of type `LoadBalancer` there; absent where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
}

/// How the world reaches an object at a provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Exposure {
    /// Its class there; empty for the default of the cluster.
    #[serde(default)]
    pub class: String,
    /// IP addresses and host names, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}
