use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, schema};

/// The request of a consumer for resources. It is in the tenant namespace. The consumer writes the
/// spec, the provider writes the status.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "ResourceRequest",
    plural = "resourcerequests",
    shortname = "rreq",
    category = "liqo",
    namespaced,
    status = "ResourceRequestStatus",
    doc = "The request of a consumer for resources of this cluster",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(
        name = "Answered",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Answered\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestSpec {
    /// Maximum amount of each resource, for at most 64 resources. Resources that are not listed are
    /// not limited.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::requested_resources")]
    pub resources: ResourceList,
    /// How the consumer wants the offer to be divided into pools. If absent, as the provider's
    /// policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<RequestedGranularity>,
    /// Whether the consumer asks the provider to control it, or is controlled by it. The condition
    /// `Tethering` is the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tethering: bool,
    /// What tells this peering from earlier ones with the same cluster: the UID of the consumer's
    /// provider namespace. The provider writes it into the terms of its contracts, so that nobody
    /// can bring back what was signed in an earlier peering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub peering: Option<String>,
}

/// How a consumer wants an offer to be divided into pools, each of which becomes a virtual node. It
/// has an effect only if the provider's policy lets its peers choose: the condition
/// `PoolForEachNode` is the answer. If absent, the offer is divided as the policy says.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedGranularity {
    /// One pool for each node of the provider.
    Node,
}

/// The provider's answer. Its offers are separate objects, `ResourceOffer`s.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestStatus {
    /// `Answered`: the provider made an offer. The reason and the message say why not. `Tethering`:
    /// the provider lets the consumer tether itself; `observedGeneration` is the generation of the
    /// request that it answers. `PoolForEachNode`: each node is a pool of its own, because the
    /// consumer asked for that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition of a [`ResourceRequest`]: the provider made an offer.
pub const ANSWERED: &str = "Answered";

/// Condition of a [`ResourceRequest`]: the provider lets the consumer tether itself to it.
pub const TETHERING: &str = "Tethering";

/// Condition of a [`ResourceRequest`]: each node is a pool of its own, as the consumer asked. A
/// `ForeignCluster` shows it to the consumer as
/// [`links::POOL_FOR_EACH_NODE`](crate::links::POOL_FOR_EACH_NODE).
pub const POOL_FOR_EACH_NODE: &str = "PoolForEachNode";
