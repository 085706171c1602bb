use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{record_text, schema};

/// The record of one object of a consumer that the provider creates in a mapped namespace. It is in
/// the tenant namespace. The provider checks it before it creates the object. Secrets travel as
/// Secrets instead, so that encryption at rest applies to them.
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
    doc = "The record of one object of a consumer that this cluster creates in a mapped namespace",
    derive = "PartialEq",
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.namespace"),
    printcolumn(
        name = "Object",
        type_ = "string",
        json_path = ".metadata.annotations['liqo\\.io/home-name']"
    ),
    printcolumn(name = "Refused", type_ = "string", json_path = ".status.reason"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ReflectedObjectSpec {
    /// Namespace of the object in the consumer cluster.
    #[schemars(length(max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the namespace of a reflected object does not change"))]
    pub namespace: String,
    /// The object, as JSON text: apiVersion, kind, metadata (name, labels, annotations) and
    /// content. Non-ASCII characters and `<`, `>` and `&` are escaped.
    #[serde(deserialize_with = "record_text::text_or_nothing")]
    #[schemars(schema_with = "schema::object_text")]
    pub object: String,
}

/// Whether the object exists at the provider: if `reason` is set, it does not exist, or only in
/// part.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReflectedObjectStatus {
    /// Why the object does not exist, or only in part: `KindNotAllowed`, `NameTaken`,
    /// `NamespaceNotReady`, `Invalid`, `NoService`, `AddressRefused`, `ClassNotAllowed`,
    /// `HostNotAllowed`, `AnnotationNotAllowed`, `LimitReached`, `QuotaExceeded`, `TooManyPorts`,
    /// `TooLarge`, `NoticeOver`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in a sentence, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How clients outside of the cluster reach an Ingress or a Service of type `LoadBalancer`.
    /// Absent if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Of a `PodDisruptionBudget`: whether a node is being drained that has a pod which it selects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

/// How clients outside of a provider reach an object there.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Exposure {
    /// Class of the object at the provider; empty for the default class.
    #[serde(default)]
    pub class: String,
    /// Known IP addresses and host names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
}
