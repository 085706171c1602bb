use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, schema};

/// The request of a consumer for resources. It is in the tenant namespace. The consumer writes the spec, the provider writes the status.
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
    printcolumn(name = "Answered", type_ = "string", json_path = ".status.conditions[?(@.type==\"Answered\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestSpec {
    /// Maximum amount of each resource, for at most 64 resources. Resources that are not listed are not limited.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "schema::requested_resources")]
    pub resources: ResourceList,
    /// Whether the consumer asks the provider to control it, or is controlled by it. The condition `Tethering` is the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tethering: bool,
}

/// The provider's answer. Its offers are separate objects, `ResourceOffer`s.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestStatus {
    /// `Answered`: the provider made an offer. The reason and the message say why not. `Tethering`: the provider lets the consumer tether
    /// itself; `observedGeneration` is the generation of the request that it answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition of a [`ResourceRequest`]: the provider made an offer.
pub const ANSWERED: &str = "Answered";

/// Condition of a [`ResourceRequest`]: the provider lets the consumer tether itself to it.
pub const TETHERING: &str = "Tethering";
