use std::{collections::BTreeMap, fmt};

use kube::{CustomResource, KubeSchema};
use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Charge, ClusterId, Commitment, Condition, PodSecurity, PriceList, Renewal, Time, schema,
};

/// Type of the payload of a signed contract.
pub const CONTRACT_PAYLOAD: &str = "application/vnd.liqo.contract+json";

/// What a provider and a consumer agreed on, signed by both. It is in the tenant namespace; the
/// consumer stores a copy in its provider namespace. The provider writes the spec, the consumer
/// writes the status.
///
/// `spec.document` counts: it is what the provider signed. `status.signature` is the consumer's
/// signature over the same bytes. All other fields are derived from these, for people and programs.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "Contract",
    plural = "contracts",
    category = "liqo",
    namespaced,
    status = "ContractStatus",
    doc = "What a provider and a consumer agreed on, signed by both",
    derive = "PartialEq",
    printcolumn(
        name = "Commitment",
        type_ = "string",
        json_path = ".spec.terms.commitment"
    ),
    printcolumn(name = "Version", type_ = "integer", json_path = ".spec.terms.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "End", type_ = "string", json_path = ".spec.terms.end"),
    printcolumn(
        name = "Honoured",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Honoured\")].status"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ContractSpec {
    /// The terms with the provider's signature: JSON of a DSSE envelope. Its payload has the type
    /// [`CONTRACT_PAYLOAD`].
    #[schemars(length(max = 16_384))]
    pub document: String,
    /// A copy of the signed terms. If it differs from the document, the provider breaks the
    /// contract.
    pub terms: ContractTerms,
    /// The consumer's signature over the same bytes, as the provider found it in the status. Nobody
    /// can take it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub countersignature: Option<ContractSignature>,
    /// Time at which the provider saw both signatures under these terms. Absent until the consumer
    /// has signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force_since: Option<Time>,
    /// The terms that these replaced, the newest last, for receipts. The oldest go first, when no
    /// receipt needs them any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub earlier: Vec<EarlierTerms>,
    /// An amendment: terms that replace these as soon as the consumer has signed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<ProposedTerms>,
    /// What the provider found, the newest last. The oldest go first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub breaches: Vec<Breach>,
    /// The end, if one side announced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<ContractEnd>,
}

/// Maximum number of earlier terms that a contract lists. Prices may follow day and night in a
/// period of a month.
pub const MAX_EARLIER_TERMS: usize = 64;
/// Maximum length in bytes as JSON of all of them: a consumer reads contracts of bounded size.
pub const MAX_EARLIER_LEN: usize = 128 * 1024;
/// Maximum length of a contract's document in bytes.
pub const MAX_CONTRACT_LEN: usize = 16_384;
/// Maximum number of breaches that each side lists.
pub const MAX_BREACHES: usize = 20;
/// Maximum length of the texts in a contract in characters.
pub const MAX_CONTRACT_MESSAGE_LEN: usize = 512;

/// What matters for receipts of terms that others replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EarlierTerms {
    /// Number of the version.
    pub version: u32,
    /// SHA-256 (hexadecimal) of the terms that both sides signed.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub digest: String,
    /// Time since which they were in force, until the next ones were.
    pub since: Time,
    /// Prices per unit and hour, by pool.
    #[schemars(extend("maxProperties" = 16))]
    pub prices: BTreeMap<String, PriceList>,
}

impl EarlierTerms {
    /// Length in bytes as JSON.
    pub fn json_len(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |text| text.len())
    }
}

/// Terms that the consumer has not signed yet.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProposedTerms {
    /// As in the spec.
    #[schemars(length(max = 16_384))]
    pub document: String,
    /// As in the spec.
    pub terms: ContractTerms,
    /// Time at which the provider proposed them.
    pub proposed: Time,
    /// The consumer's signature, as the provider found it in the status. Nobody can take it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub countersignature: Option<ContractSignature>,
    /// Time at which the provider saw that signature. Present while the terms do not count yet, see
    /// `countsAfterSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Time>,
}

/// The terms: what the payload of a document says.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractTerms {
    /// ID of the contract: 32 hexadecimal digits. All its versions have the same.
    #[schemars(regex(pattern = r"^[0-9a-f]{32}$"))]
    pub contract: String,
    /// Number of this version, from 1 on. Versions that were never signed leave gaps.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub version: u32,
    /// SHA-256 (hexadecimal) of the payload of the version that these terms replace. Absent in the
    /// first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub previous: Option<String>,
    /// The cluster that lends.
    pub provider: ClusterId,
    /// The cluster that borrows.
    pub consumer: ClusterId,
    /// What the provider promises about the amounts.
    pub commitment: Commitment,
    /// The pools. With `BestEffort` their amounts are those at the time of the proposal.
    #[schemars(length(max = 16))]
    pub pools: Vec<ContractPool>,
    /// Classes that the consumer may use.
    pub classes: ContractClasses,
    /// Prices per unit and hour, by pool. A pool that is absent costs nothing.
    #[schemars(extend("maxProperties" = 16))]
    pub prices: BTreeMap<String, PriceList>,
    /// Seconds between the announcement that the provider takes something back, or that one side
    /// ends the contract, and when it happens.
    #[schemars(range(max = 604_800))]
    pub notice_seconds: u32,
    /// What the provider's policy limits.
    pub limits: ContractLimits,
    /// Begin of the contract.
    pub start: Time,
    /// End of the contract, unless it is renewed. Absent: it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Time>,
    /// What happens at the end.
    pub renewal: Renewal,
    /// Length of the periods for which use is measured, in seconds.
    #[schemars(range(min = 60, max = 2_678_400))]
    pub metering_period_seconds: u32,
    /// The peering that the terms are for: `peering` of the consumer's `ResourceRequest`. Absent if
    /// that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub peering: Option<String>,
    /// Seconds between the consumer's signature and the time from which these terms count, at the
    /// latest the end of the period of those that they replace. Absent: they count at once. A
    /// dearer version has at least the notice of the version that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 604_800))]
    pub counts_after_seconds: Option<u32>,
}

/// One pool in the terms.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractPool {
    /// Name of the pool.
    #[schemars(length(max = 63))]
    pub name: String,
    /// The amounts.
    pub resources: ResourceList,
}

/// Classes that the consumer may use.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractClasses {
    /// Storage classes.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub storage: Vec<String>,
    /// Ingress classes.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub ingress: Vec<String>,
    /// Load balancer classes.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub load_balancer: Vec<String>,
}

/// What the provider's policy limits, in short. `provide.usage` of its `PeeringPolicy` has more.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractLimits {
    /// The Pod Security standard.
    pub pod_security: PodSecurity,
    /// Maximum number of namespaces.
    pub max_namespaces: u16,
    /// Maximum number of Services.
    pub max_services: u16,
    /// Maximum number of endpoints of these Services.
    pub max_endpoints: u32,
    /// Which amounts of a pod are charged.
    pub charge: Charge,
    /// Limits of memory and of ephemeral storage for containers that have none, in percent of what
    /// they request. They also raise what a container requests that has limits.
    #[schemars(range(max = 100_000))]
    pub default_limit_percentage: u32,
}

/// One of the two clusters.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum Party {
    /// The cluster that lends.
    Provider,
    /// The cluster that borrows.
    Consumer,
}

/// For people: `provider`, `consumer`.
impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Provider => "provider",
            Self::Consumer => "consumer",
        })
    }
}

/// A duty that one side did not fulfil, found by the cluster that writes the list.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Breach {
    /// Who broke the contract.
    pub by: Party,
    /// Which duty.
    pub kind: BreachKind,
    /// What it is about: a pool, or the contract itself.
    #[schemars(length(max = 253))]
    pub object: String,
    /// Time at which it was found, by the clock of the cluster that found it.
    pub time: Time,
    /// Time at which it was over. Absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The evidence: amounts and times.
    #[schemars(length(max = 512))]
    pub message: String,
}

/// A duty of a contract.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum BreachKind {
    /// The provider offers less than the guaranteed amounts.
    CapacityMissing,
    /// The provider takes something back, or ends the contract, earlier than the notice allows.
    NoticeTooShort,
    /// The provider ends a contract with guaranteed amounts before its end.
    EndedEarly,
    /// The provider's copy of the terms differs from the signed document.
    TermsDiffer,
    /// The provider acts under terms that the consumer did not sign.
    TermsNotSigned,
    /// An offer under the contract has other prices than the terms.
    PriceDiffers,
    /// The consumer does not accept the end of the contract.
    EndNotAccepted,
    /// The consumer answers no receipts, or signs none of many.
    ReceiptsNotAnswered,
}

impl BreachKind {
    /// The word for logs, events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CapacityMissing => "CapacityMissing",
            Self::NoticeTooShort => "NoticeTooShort",
            Self::EndedEarly => "EndedEarly",
            Self::TermsDiffer => "TermsDiffer",
            Self::TermsNotSigned => "TermsNotSigned",
            Self::PriceDiffers => "PriceDiffers",
            Self::EndNotAccepted => "EndNotAccepted",
            Self::ReceiptsNotAnswered => "ReceiptsNotAnswered",
        }
    }

    /// Whether the provider's terms are not those that were signed.
    pub fn is_about_terms(self) -> bool {
        matches!(self, Self::TermsDiffer | Self::TermsNotSigned)
    }
}

/// The end of a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractEnd {
    /// Who ends it.
    pub by: Party,
    /// Why.
    pub cause: EndCause,
    /// Time of the announcement.
    pub announced: Time,
    /// Time from which the contract is over.
    pub at: Time,
    /// For people.
    #[schemars(length(max = 512))]
    pub reason: String,
}

/// Why a contract ends.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// A person ends it.
    Requested,
    /// Its period is over, and it is not renewed.
    PeriodOver,
    /// The other side broke it, and the policy ends contracts then.
    Breach,
    /// The provider's policy no longer has contracts for this consumer.
    PolicyChanged,
    /// The consumer no longer asks for resources.
    NothingRequested,
    /// The document cannot be read or verified any more.
    Damaged,
    /// The provider removed the contract without an end. Only the consumer's copy says this.
    Removed,
}

/// The consumer's answer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractStatus {
    /// Where the contract stands, as the consumer sees it.
    #[serde(default)]
    pub phase: ContractPhase,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// The consumer's signature over the payload of `spec.document`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<ContractSignature>,
    /// The consumer's signature over the payload of `spec.pending.document`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_signature: Option<ContractSignature>,
    /// Time of `signature`, by the consumer's clock. Only the consumer's own copy has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Time>,
    /// Time of `pendingSignature`. Only the consumer's own copy has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_signed: Option<Time>,
    /// The consumer wants the contract to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_requested: Option<EndRequest>,
    /// What the consumer found, the newest last. The oldest go first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub breaches: Vec<Breach>,
    /// `Honoured`: no breach lasts, whoever found it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::contract_conditions")]
    pub conditions: Vec<Condition>,
}

/// A signature of the consumer.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ContractSignature {
    /// The version of the terms that it covers.
    #[schemars(range(max = 1_000_000))]
    pub version: u32,
    /// ID of the signer.
    #[schemars(length(max = 64))]
    pub keyid: String,
    /// The raw Ed25519 public key of the signer, in base64.
    #[schemars(length(max = 64))]
    pub public_key: String,
    /// The signature, in base64.
    #[schemars(length(max = 128))]
    pub sig: String,
}

/// The consumer wants to end a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EndRequest {
    /// Why.
    pub cause: EndCause,
    /// For people.
    #[schemars(length(max = 512))]
    pub reason: String,
}

/// Where a contract stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContractPhase {
    /// The consumer has not answered yet.
    #[default]
    Proposed,
    /// A person at the consumer has to decide.
    AwaitingDecision,
    /// Both signed.
    InForce,
    /// The consumer does not sign.
    Refused,
    /// It is over.
    Ended,
}

impl Contract {
    /// Name of the object of the contract with this ID.
    pub fn name_of(id: &str) -> String {
        format!("contract-{}", id.get(..8).unwrap_or(id))
    }
}

impl ContractSpec {
    /// Time since which something is charged under the contract. `None` if it was never in force.
    pub fn first_in_force(&self) -> Option<&Time> {
        self.earlier
            .first()
            .map(|earlier| &earlier.since)
            .or(self.in_force_since.as_ref())
    }

    /// Remembers terms that others replace now.
    pub fn remember_terms(&mut self, terms: EarlierTerms) {
        self.earlier.push(terms);
        let surplus = self.surplus_terms(0, 0);
        self.earlier.drain(..surplus);
    }

    /// How many of the earlier terms, the oldest ones, leave when so many more come, each of this
    /// length as JSON.
    pub fn surplus_terms(&self, more: usize, length: usize) -> usize {
        let mut room = MAX_EARLIER_LEN.saturating_sub(more.saturating_mul(length));
        let places = MAX_EARLIER_TERMS.saturating_sub(more);
        let mut kept = 0;
        for terms in self.earlier.iter().rev().take(places) {
            let Some(rest) = room.checked_sub(terms.json_len()) else {
                break;
            };
            room = rest;
            kept += 1;
        }
        self.earlier.len() - kept
    }
}

impl ContractTerms {
    /// The amounts of a pool; `None` if the terms do not contain it.
    pub fn amounts_of_pool(&self, name: &str) -> Option<&ResourceList> {
        self.pools
            .iter()
            .find(|pool| pool.name == name)
            .map(|pool| &pool.resources)
    }

    /// The amounts that the provider has to reserve in a pool.
    pub fn guaranteed_in_pool(&self, pool: &str) -> Option<&ResourceList> {
        self.amounts_of_pool(pool)
            .filter(|_| self.commitment == Commitment::Guaranteed)
    }

    /// The amounts of all pools together.
    pub fn total_resources(&self) -> ResourceList {
        self.pools.iter().map(|pool| &pool.resources).sum()
    }
}

/// The contract that an offer is under.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OfferContract {
    /// Name of the [`Contract`] in the same namespace.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Version of the terms that the offer follows.
    pub version: u32,
    /// Whether the provider admits new pods: both signed the terms, and they contain the pool.
    pub in_force: bool,
}

/// Decision of a person on a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ContractDecision {
    /// What to do.
    pub decision: ContractAnswer,
    /// SHA-256 (hexadecimal) of the terms that the person saw. If absent, the decision is about all
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub terms: Option<String>,
    /// Why, for the other side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}

impl ContractDecision {
    /// Whether it is about the terms with this digest.
    pub fn is_about(&self, digest: &str) -> bool {
        self.terms.as_deref().is_none_or(|terms| terms == digest)
    }
}

/// What a person decides about a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContractAnswer {
    /// Sign the terms, within the limits of the policy. Only the consumer needs this.
    Accept,
    /// Do not sign them.
    Refuse,
    /// End the contract, with notice.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_is_named_after_its_id() {
        assert_eq!(
            Contract::name_of("0123456789abcdef0123456789abcdef"),
            "contract-01234567"
        );
    }

    #[test]
    fn a_decision_is_about_the_terms_that_the_person_saw() {
        let decision = |terms: Option<&str>| ContractDecision {
            decision: ContractAnswer::Accept,
            terms: terms.map(str::to_owned),
            reason: None,
        };
        assert!(
            decision(None).is_about("a")
                && decision(Some("a")).is_about("a")
                && !decision(Some("b")).is_about("a")
        );
    }
}
