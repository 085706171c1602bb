use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NodeSelector;
use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, LargestPods, OfferContract, PriceList, Time, schema};

/// One pool of resources that a provider offers to one consumer. It is in the tenant namespace,
/// named after its pool. The consumer stores a copy in its provider namespace.
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
    printcolumn(
        name = "CPU",
        type_ = "string",
        json_path = ".spec.resourceQuota.hard.cpu"
    ),
    printcolumn(
        name = "Memory",
        type_ = "string",
        json_path = ".spec.resourceQuota.hard.memory"
    ),
    printcolumn(
        name = "Pods",
        type_ = "string",
        json_path = ".spec.resourceQuota.hard.pods"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOfferSpec {
    /// ID of the provider.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// Name of the pool. Each pool becomes one virtual node.
    #[schemars(regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"))]
    pub pool: String,
    /// The amounts that the provider offers.
    pub resource_quota: ResourceQuota,
    /// What the nodes with the most room have free now. If there are fewer than 4 lists, a pod that
    /// fits into none of them finds no node. An amount may be a little more than a node has, see
    /// `offerUpdateThresholdPercentage`. If empty, nothing is known.
    #[serde(default, skip_serializing_if = "LargestPods::is_empty")]
    #[schemars(schema_with = "schema::largest_pods")]
    pub largest_pods: LargestPods,
    /// Labels that the provider advertises. The consumer puts only harmless ones on the Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// IDs of the provider and of all clusters behind it from which resources of the pool come, or
    /// which pass them on: the provider first, the others in the order of their IDs. None of them
    /// may be offered the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub path: Vec<ClusterId>,
    /// How many clusters the resources come through, with the provider: 1 for what the provider
    /// owns.
    #[serde(default = "owned", skip_serializing_if = "is_owned")]
    #[schemars(range(min = 1, max = 128))]
    pub hops: u8,
    /// Storage classes that pods of the pool may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub storage_classes: Vec<String>,
    /// Ingress classes that Ingresses of the consumer may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress_classes: Vec<String>,
    /// Load balancer classes that Services of the consumer may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_classes: Vec<String>,
    /// The provider's nodes that form the pool, if not all nodes do. Only the provider uses this
    /// field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// Seconds between the notice that the provider takes something back and the end of the pods
    /// that use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 604_800))]
    pub notice_seconds: Option<u32>,
    /// Time at which the offer ends, if the provider takes it back. Until then pods can move away,
    /// and no new ones come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<Time>,
    /// Time from which the provider ends pods that use more than the offer, the youngest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_timestamp: Option<Time>,
    /// What the offer will be then, as far as the provider knows. The consumer places new pods by
    /// it, and moves pods that do not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_to: Option<ResourceList>,
    /// Time from which the provider ends pods on nodes that the pool does not have any more,
    /// although it has others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timestamp: Option<Time>,
    /// The prices of the resources now. If absent, they cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceList>,
    /// The contract that the offer is under. Absent if the provider's policy has no contracts for
    /// the consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<OfferContract>,
}

/// Maximum number of clusters in the path of an offer.
pub const MAX_PATH_LEN: usize = 128;

fn owned() -> u8 {
    1
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_owned(hops: &u8) -> bool {
    *hops == 1
}

impl ResourceOfferSpec {
    /// The part of the offer that will remain: less than all of it while the provider takes
    /// something back.
    pub fn lasting_resources(&self) -> ResourceList {
        let hard = &self.resource_quota.hard;
        match &self.reclaim_to {
            Some(to) => hard
                .iter()
                .map(|(name, amount)| (name, amount.min(to.get(name))))
                .collect(),
            None => hard.clone(),
        }
    }

    /// Whether the provider borrows the resources of the pool itself. Pods of the pool run on
    /// virtual nodes there.
    pub fn is_borrowed(&self) -> bool {
        self.hops > 1
    }
}

/// The beginning of a consumer's message about an accepted offer whose node gets no new pods now.
pub const NO_NEW_PODS: &str = "no new pods: ";

/// Limits of a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceQuota {
    /// Maximum sum of the requests of all pods in the pool.
    pub hard: ResourceList,
}

/// The consumer's answer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOfferStatus {
    /// Decision of the consumer.
    #[serde(default)]
    pub phase: OfferPhase,
    /// Why the consumer decided so, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Decision of a consumer on an offer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfferPhase {
    /// The consumer has not decided yet.
    #[default]
    Pending,
    /// A person in the consumer cluster must decide.
    ManualActionRequired,
    /// The consumer uses it.
    Accepted,
    /// The consumer does not use it.
    Refused,
}
