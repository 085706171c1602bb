use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, schema};

/// What a consumer asks of a provider. Lives in the tenant namespace; the consumer writes the spec, the provider the status.
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
    doc = "What a consumer asks of this cluster",
    derive = "Default",
    derive = "PartialEq",
    printcolumn(name = "Answered", type_ = "string", json_path = ".status.conditions[?(@.type==\"Answered\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestSpec {
    /// At most this much of each resource named; what is not named is wanted as offered.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
}

/// The provider's answer in words; the offers are objects of their own.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestStatus {
    /// `Answered`: an offer was made, or why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Condition of a [`ResourceRequest`]: an offer was made, or why not.
pub const ANSWERED: &str = "Answered";
