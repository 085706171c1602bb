//! The rules of a provider for the pods of one consumer.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Toleration;
use liqo_api::{ReflectedKind, Usage};
use serde_json::Value;

use crate::pod::carry::amounts::AmountRules;

/// Volume types that need nothing of the home cluster. `image` pulls one more image.
pub(crate) const ALLOWED_VOLUMES: &[&str] = &[
    "configMap",
    "downwardAPI",
    "emptyDir",
    "image",
    "projected",
    "secret",
];

/// The rules that the provider allows and sets, by its policy and its offer.
#[derive(Debug, Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of the policy, or of the offer"
)]
pub struct ProviderRules {
    /// Name of the `PeeringPolicy`, for messages.
    pub policy: String,
    /// Patterns of labels that pods keep in addition to those of users and of Kubernetes'
    /// controllers.
    pub pod_labels: Vec<String>,
    /// Patterns of annotations that pods keep.
    pub pod_annotations: Vec<String>,
    /// How the names of allowed images begin; `None` for all images.
    pub images: Option<Vec<String>>,
    /// Whether nodes ask the registry for every image.
    pub always_pull_images: bool,
    /// Whether containers get the runtime's seccomp profile and no raw sockets, unless they choose
    /// otherwise.
    pub hardened: bool,
    /// Keys of the node labels that the offer advertises: pods may select nodes by these.
    pub advertised: BTreeSet<String>,
    /// The nodes of the pod's pool, as terms of a node selector; empty for all nodes.
    pub nodes: Vec<Value>,
    /// Whether these nodes are virtual, because the provider borrows the pool itself.
    pub borrowed: bool,
    pub volume_types: BTreeSet<String>,
    /// A toleration of a pod is kept if one of these covers it.
    pub tolerations: Vec<Toleration>,
    /// Kinds of objects that are reflected: a pod that cannot start without an object of another
    /// kind is refused.
    pub reflected_kinds: Vec<ReflectedKind>,
    /// Requests, as in the mapped namespace's `LimitRange`, and limits of containers that have
    /// none.
    pub amounts: AmountRules,
    /// Set on every remote pod.
    pub priority_class: Option<String>,
    /// Set on every remote pod.
    pub runtime_class: Option<String>,
    /// Whether pods may have tokens of the `ServiceAccount` of their namespace.
    pub api_server: bool,
    /// Set on every remote pod; the namespace's `default` otherwise.
    pub service_account: Option<String>,
}

impl Default for ProviderRules {
    fn default() -> Self {
        Self {
            policy: String::new(),
            pod_labels: Vec::new(),
            pod_annotations: Vec::new(),
            images: None,
            always_pull_images: false,
            hardened: true,
            advertised: BTreeSet::new(),
            nodes: Vec::new(),
            borrowed: false,
            volume_types: ALLOWED_VOLUMES
                .iter()
                .map(|&kind| kind.to_owned())
                .collect(),
            tolerations: Vec::new(),
            reflected_kinds: Usage::default().reflected_kinds,
            amounts: AmountRules::default(),
            priority_class: None,
            runtime_class: None,
            api_server: false,
            service_account: None,
        }
    }
}
