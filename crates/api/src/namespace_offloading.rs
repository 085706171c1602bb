use k8s_openapi::api::core::v1::NodeSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Budget, BudgetStatus, ClusterId, Condition, Exposure, schema};

/// Allows the pods of this namespace to run in other clusters. A namespace has at most one, named
/// `offloading`.
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
    doc = "Allows the pods of this namespace to run in other clusters",
    derive = "Default",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name == 'offloading'").message("the NamespaceOffloading of a namespace is named offloading"),
    printcolumn(name = "Mapping", type_ = "string", json_path = ".spec.namespaceMappingStrategy"),
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.podOffloadingStrategy"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = kube::core::Rule::new("(self.namespaceMappingStrategy == 'SelectedName') == has(self.remoteNamespaceName)").message("SelectedName needs remoteNamespaceName, and no other strategy does"))]
pub struct NamespaceOffloadingSpec {
    /// How the name of the namespace at the provider is chosen.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the mapping of a namespace does not change while it is offloaded; unoffload it first"))]
    pub namespace_mapping_strategy: NamespaceMappingStrategy,
    /// Name of the namespace at the provider, for `SelectedName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("the mapping of a namespace does not change while it is offloaded; unoffload it first"))]
    pub remote_namespace_name: Option<String>,
    /// On which nodes pods may run.
    #[serde(default)]
    pub pod_offloading_strategy: PodOffloadingStrategy,
    /// Which of its Services and Ingresses are reflected to the providers.
    #[serde(default, skip_serializing_if = "Reflection::is_default")]
    pub reflection: Reflection,
    /// Whether pods at providers get tokens of their `ServiceAccounts` for the API server here. A
    /// provider can do with such a token whatever the pod can do. If false, a pod there runs
    /// without one, and a pod that requires one is not sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub api_server: bool,
    /// When Kubernetes evicts pods from the node of a provider that does not answer, counted from
    /// when the node is not Ready: `Never`, or seconds such as `30s`. It replaces the
    /// `tolerationSeconds` of pods on virtual nodes for the taints `not-ready` and `unreachable` of
    /// `node.kubernetes.io`. If absent, those count; they are usually 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = r"^(Never|[0-9]{1,9}s)$"))]
    pub eviction_delay: Option<EvictionDelay>,
    /// Virtual nodes on which pods may run. If absent or empty, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<NodeSelector>,
    /// Which nodes new pods prefer among those on which they may run. If absent, the scheduler
    /// decides alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PodPlacement>,
    /// How much its pods in other clusters may cost. If it is spent, no new ones go there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// Type of the condition of a [`NamespaceOffloading`] that says whether its budget lets new pods go
/// to all selected clusters.
pub const WITHIN_BUDGET: &str = "WithinBudget";

/// Which nodes new pods prefer among those on which they may run.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = kube::core::Rule::new("(self.strategy == 'FixedOrder') == (has(self.order) && self.order.size() > 0)").message("FixedOrder needs an order, and no other strategy has one"))]
#[x_kube(validation = kube::core::Rule::new("!has(self.moveWhenCheaper) || !self.moveWhenCheaper || self.strategy == 'Cheapest'").message("moveWhenCheaper needs the strategy Cheapest"))]
pub struct PodPlacement {
    /// How the nodes are compared.
    pub strategy: PlacementStrategy,
    /// For `FixedOrder`, the best first: names of virtual nodes, names or IDs of clusters. The name
    /// of this cluster means its own nodes. What is not named comes last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::order_of_clusters")]
    pub order: Vec<String>,
    /// Whether running pods are evicted, as their `PodDisruptionBudgets` allow, if another node
    /// would cost at least 10 % less.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub move_when_cheaper: bool,
}

/// How the nodes on which a pod may run are compared.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementStrategy {
    /// This cluster's own nodes first, then the others, the cheapest first.
    #[default]
    OwnFirst,
    /// The cheapest first. This cluster's own nodes cost nothing.
    Cheapest,
    /// Evenly over providers with `podOffloadingStrategy` `Remote`, otherwise over nodes, each
    /// virtual node as one.
    Spread,
    /// As `order` says.
    FixedOrder,
}

/// When Kubernetes evicts a pod from a node that does not answer. The texts are `Never` and, for
/// example, `30s`.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub enum EvictionDelay {
    /// The pod stays until the node answers, or somebody deletes the pod.
    Never,
    /// After the node has been not Ready for so many seconds.
    Seconds(u32),
}

/// A text that is no [`EvictionDelay`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither Never nor a number of seconds such as 30s")]
pub struct NoEvictionDelay(String);

impl TryFrom<String> for EvictionDelay {
    type Error = NoEvictionDelay;

    fn try_from(text: String) -> Result<Self, NoEvictionDelay> {
        if text == "Never" {
            return Ok(Self::Never);
        }
        let seconds = text
            .strip_suffix('s')
            .and_then(|seconds| seconds.parse().ok());
        seconds.map(Self::Seconds).ok_or(NoEvictionDelay(text))
    }
}

impl From<EvictionDelay> for String {
    fn from(delay: EvictionDelay) -> Self {
        match delay {
            EvictionDelay::Never => "Never".to_owned(),
            EvictionDelay::Seconds(seconds) => format!("{seconds}s"),
        }
    }
}

/// How the name of a namespace at the provider is chosen.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMappingStrategy {
    /// `<namespace>-<cluster name>-<6 characters of the cluster ID>`.
    #[default]
    DefaultName,
    /// The same as here, if the provider's policy allows that name. Then names of Services with
    /// their namespace also resolve there.
    EnforceSameName,
    /// `remoteNamespaceName`, if the provider's policy allows that name.
    SelectedName,
}

/// On which nodes the pods of an offloaded namespace may run.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodOffloadingStrategy {
    /// On local and virtual nodes; the scheduler chooses.
    #[default]
    LocalAndRemote,
    /// Only on local nodes. The namespace still exists at the providers.
    Local,
    /// Only on virtual nodes.
    Remote,
}

/// Which Services, with their endpoints, and Ingresses of an offloaded namespace are reflected to
/// the providers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflection {
    /// All except those with the annotation `liqo.io/reflection: deny`.
    #[default]
    DenyList,
    /// Only those with the annotation `liqo.io/reflection: allow`.
    AllowList,
}

impl Reflection {
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde calls it with a reference"
    )]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// State of the namespace at each provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingStatus {
    /// `Ready`: every selected cluster has the namespace. The message says which one does not have
    /// it, and why. `WithinBudget`, if there is a budget: all selected clusters get new pods. The
    /// message says which one does not, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// One element for each selected cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_namespaces: Vec<RemoteNamespace>,
    /// What its budget does now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
}

/// The namespace at one provider.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespace {
    /// ID of the provider.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Friendly name of the provider.
    pub cluster_name: String,
    /// Name of the namespace at the provider.
    pub namespace: String,
    /// Whether pods can run in it.
    pub ready: bool,
    /// Why pods cannot run in it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its Services and Ingresses that are reachable there from outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<Exposed>,
}

/// A Service or Ingress that is reachable at a provider from outside.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Exposed {
    /// `Service` or `Ingress`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Its class and its addresses.
    #[serde(flatten)]
    pub exposure: Exposure,
}
