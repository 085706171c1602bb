use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use liqo_quantity::{AmountSeconds, Money};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, UsagePeriod};

/// Payload type of a signed receipt.
pub const RECEIPT_PAYLOAD_TYPE: &str = "application/vnd.liqo.receipt+json";
/// Maximum length in characters of the document of a receipt: a payload of 32 KiB in base64, and
/// its signature.
pub const MAX_RECEIPT_LEN: usize = 48 * 1024;
/// Maximum number of pools with their versions in a receipt.
pub const MAX_RECEIPT_POOLS: usize = 512;
/// Maximum number of resources of each of them.
pub const MAX_RECEIPT_RESOURCES: usize = 64;
/// Maximum number of currencies in a receipt.
pub const MAX_RECEIPT_CURRENCIES: usize = 128;
/// Maximum number of pods that a dispute names.
pub const MAX_DISPUTED_PODS: usize = 100;

/// What was used in one period of a contract, and what it costs. The provider writes and signs it
/// in the tenant namespace; the consumer compares it with its own entries, and signs or disputes it
/// in the status. The consumer stores a copy in its provider namespace.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "Receipt",
    plural = "receipts",
    category = "liqo",
    namespaced,
    status = "ReceiptStatus",
    doc = "What was used in one period of a contract, and what it costs",
    derive = "PartialEq",
    printcolumn(
        name = "Contract",
        type_ = "string",
        json_path = ".spec.statement.contract"
    ),
    printcolumn(
        name = "Period",
        type_ = "date",
        json_path = ".spec.statement.period.start"
    ),
    printcolumn(name = "Pods", type_ = "integer", json_path = ".spec.statement.pods"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptSpec {
    /// The signed document: a DSSE envelope as JSON, signed by the provider.
    #[schemars(length(max = 49_152))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf").message("a receipt does not change"))]
    pub document: String,
    /// A copy of what the document says, for people and programs. Only the document counts.
    pub statement: ReceiptStatement,
    /// The consumer's signature over the same bytes. Who received it copies it from the status,
    /// where the consumer may take it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub countersignature: Option<ReceiptSignature>,
}

/// The content of a receipt, as it is signed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptStatement {
    /// ID of the contract.
    #[schemars(length(max = 64))]
    pub contract: String,
    /// Who lent.
    pub provider: ClusterId,
    /// Who borrowed.
    pub consumer: ClusterId,
    /// The period.
    pub period: UsagePeriod,
    /// The versions of the contract that applied in the period, in their order.
    #[schemars(length(max = 256))]
    pub versions: Vec<ReceiptVersion>,
    /// What each pool used under each version. Empty in a receipt that is only a summary.
    #[schemars(length(max = 512))]
    pub pools: Vec<ReceiptPool>,
    /// Whether the pools are left out, because they would take more space than a receipt has. The
    /// totals still contain their costs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_summary: bool,
    /// How many pods were charged.
    pub pods: u64,
    /// The sum of all costs, by currency.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 128))]
    pub totals: BTreeMap<String, Money>,
    /// The number of entries.
    pub entries: u64,
    /// SHA-256 of the canonical text of all entries of the period, in hexadecimal.
    #[schemars(length(max = 64))]
    pub digest: String,
}

/// A version of a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptVersion {
    /// Its number.
    pub version: u32,
    /// SHA-256 of the terms that both sides signed, in hexadecimal.
    #[schemars(length(max = 64))]
    pub digest: String,
}

/// What one pool used under one version of the contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptPool {
    /// Name of the pool.
    #[schemars(length(max = 253))]
    pub pool: String,
    /// Number of the version.
    pub version: u32,
    /// The currency of the rates, if the version has prices for the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 12))]
    pub currency: Option<String>,
    /// Each resource that was used.
    #[schemars(extend("maxProperties" = 64))]
    pub resources: BTreeMap<String, ReceiptLine>,
}

/// One line of a receipt: one resource at one rate.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptLine {
    /// The amount times the seconds: core-seconds, byte-seconds, and seconds of each other resource
    /// and of pods.
    pub amount_seconds: AmountSeconds,
    /// The price of one unit for one hour, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Money>,
    /// What the line costs, rounded once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// The consumer's answer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptStatus {
    /// The decision.
    #[serde(default)]
    pub phase: ReceiptPhase,
    /// The decision in a sentence, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// The consumer's signature over the same bytes, if it agrees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<ReceiptSignature>,
    /// What differs, if it does not agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispute: Option<Dispute>,
}

/// Decision of a consumer on a receipt.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiptPhase {
    /// The consumer has not compared it yet.
    #[default]
    Pending,
    /// The consumer counted the same, and signed.
    Signed,
    /// The consumer counted less.
    Disputed,
}

/// A signature over the bytes of the document's payload.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptSignature {
    /// ID of the cluster that signed.
    #[schemars(length(max = 64))]
    pub keyid: String,
    /// Its Ed25519 public key, in base64.
    #[schemars(length(max = 64))]
    pub public_key: String,
    /// The signature, in base64.
    #[schemars(length(max = 128))]
    pub sig: String,
}

/// What differs between both sides' entries.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Dispute {
    /// The number of pods that differ.
    pub number: u64,
    /// The first of them, at most 100.
    #[schemars(length(max = 100))]
    pub pods: Vec<DisputedPod>,
}

/// A pod that both sides counted differently.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DisputedPod {
    /// UID of the local pod.
    #[schemars(length(max = 253), regex(pattern = r"^[ -~]*$"))]
    pub uid: String,
    /// Seconds that the provider counted.
    pub provider_seconds: i64,
    /// Seconds that the consumer counted.
    pub consumer_seconds: i64,
    /// What differs, in a sentence. Plain ASCII, so that a consumer's answers take few bytes.
    #[schemars(length(max = 256), regex(pattern = r"^[ -~]*$"))]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{Contract, MAX_EARLIER_TERMS};

    fn schema<K: kube::CustomResourceExt>(path: &str) -> Value {
        let crd = serde_json::to_value(K::crd()).unwrap();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            .pointer(path)
            .unwrap()
            .clone()
    }

    #[test]
    fn the_schema_takes_whatever_a_receipt_may_contain() {
        let number = |path: &str| {
            schema::<Receipt>(path)
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .unwrap()
        };
        assert_eq!(number("/document/maxLength"), MAX_RECEIPT_LEN);
        assert_eq!(
            number("/statement/properties/pools/maxItems"),
            MAX_RECEIPT_POOLS
        );
        let resources = "/statement/properties/pools/items/properties/resources/maxProperties";
        assert_eq!(number(resources), MAX_RECEIPT_RESOURCES);
        assert_eq!(
            number("/statement/properties/totals/maxProperties"),
            MAX_RECEIPT_CURRENCIES
        );
        assert!(
            number("/statement/properties/versions/maxItems") > MAX_EARLIER_TERMS,
            "a period may see all of them"
        );
        assert_eq!(schema::<Contract>("/earlier/maxItems"), MAX_EARLIER_TERMS);
    }
}
