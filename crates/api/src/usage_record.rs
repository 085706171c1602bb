use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Time, schema};

/// What pods used in one period of a contract, or a part of it. Each side writes its own records:
/// the provider in the tenant namespace, where the consumer only reads them, and the consumer in
/// its provider namespace. They are deleted when both sides have signed the receipt of the period.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "UsageRecord",
    plural = "usagerecords",
    shortname = "usage",
    category = "liqo",
    namespaced,
    doc = "What pods used in one period of a contract",
    derive = "PartialEq",
    printcolumn(name = "Contract", type_ = "string", json_path = ".spec.contract"),
    printcolumn(name = "Period", type_ = "date", json_path = ".spec.period.start"),
    printcolumn(name = "Chunk", type_ = "integer", json_path = ".spec.chunk"),
    printcolumn(name = "Chunks", type_ = "integer", json_path = ".spec.chunks"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct UsageRecordSpec {
    /// ID of the contract.
    #[schemars(length(max = 64))]
    pub contract: String,
    /// The period.
    pub period: UsagePeriod,
    /// Number of this part of the period's entries, from 0 on.
    #[schemars(range(max = 9999))]
    pub chunk: u32,
    /// How many parts there are. Set on the last one, when no more entries will follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 10_000))]
    pub chunks: Option<u32>,
    /// The entries, one line a pod and time: UID of the local pod, pool, first second, first second
    /// after the end, amounts. At most 2,000 lines. `docs/reference/usage-and-receipts.md` has the grammar.
    #[serde(default)]
    #[schemars(schema_with = "schema::usage_entries")]
    pub entries: String,
}

/// One period of a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UsagePeriod {
    /// Its first second.
    pub start: Time,
    /// Its length. A whole number of minutes, counted from 1970 in UTC.
    #[schemars(range(min = 60, max = 2_678_400))]
    pub seconds: u32,
}
