use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{record_text, schema};

/// The record of one offloaded pod, in the tenant namespace. Its name is the UID of the local pod,
/// so two pods of the same name are never confused. The consumer writes the spec, the provider
/// writes the status.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "ShadowPod",
    plural = "shadowpods",
    shortname = "shp",
    category = "liqo",
    namespaced,
    status = "ShadowPodStatus",
    doc = "The record of one pod that a consumer runs in this cluster",
    derive = "PartialEq",
    validation = kube::core::Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Succeeded', 'Failed', 'Lost']) || (has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase)").message("a terminal phase never changes"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.namespace"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".metadata.annotations['liqo\\.io/home-name']"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ShadowPodSpec {
    /// Namespace of the local pod. The `NamespaceMap` contains its name at the provider.
    #[schemars(length(max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the namespace of a shadow pod does not change"))]
    pub namespace: String,
    /// Name of the pool whose resources it uses.
    #[schemars(length(max = 253))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the pool of a shadow pod does not change"))]
    pub pool: String,
    /// The pod to run, as JSON text: metadata and spec, of any Kubernetes version. Non-ASCII
    /// characters and `<`, `>` and `&` are escaped.
    #[serde(deserialize_with = "record_text::text_or_nothing")]
    #[schemars(schema_with = "schema::pod_text")]
    pub pod: String,
    /// How to delete the remote pod. Set when the local pod is being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<WantedDeletion>,
}

/// How the provider must delete the remote pod.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WantedDeletion {
    /// Seconds that the containers have to end. It can later become shorter, never longer.
    #[schemars(range(min = 0))]
    pub grace_period_seconds: i64,
}

/// The state of the pod at the provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ShadowPodStatus {
    /// State of the shadow pod.
    #[serde(default)]
    pub phase: ShadowPodPhase,
    /// Why the shadow pod is in this phase, if there is more to say: `OfferExceeded`,
    /// `OfferReclaimed`, `PoolWithdrawn`, `NameTaken`, `NamespaceNotReady`, `NotAllowed`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in a sentence, with what to do, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// UID of the remote pod.
    #[serde(rename = "remoteUID", default, skip_serializing_if = "Option::is_none")]
    pub remote_uid: Option<String>,
    /// What the pod was charged, and from when until when, where the tenancy has a contract:
    /// `1767225600- cpu=1,pods=1`. The times are seconds since 1970 by the provider's clock, and an
    /// open charge has no end. `docs/reference/usage-and-receipts.md` has the grammar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub charges: Option<String>,
    /// The part of the remote pod's status that the local pod shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub pod: Option<Value>,
}

/// State of a shadow pod. `Succeeded`, `Failed` and `Lost` are final.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShadowPodPhase {
    /// The provider has not handled it yet, or it waits for what the reason says.
    #[default]
    Pending,
    /// The provider refuses to run it now. It tries again when the offer or the policy changes.
    Refused,
    /// The remote pod exists.
    Created,
    /// The remote pod succeeded.
    Succeeded,
    /// The remote pod failed.
    Failed,
    /// The remote pod is gone without a final status, and must not run again.
    Lost,
}

impl ShadowPodPhase {
    /// Whether no other phase can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Lost)
    }
}
