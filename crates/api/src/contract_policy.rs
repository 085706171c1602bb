//! What a policy says about contracts.

use liqo_quantity::ResourceList;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The contract that this cluster proposes to each peer. Amounts, prices, notice, classes and
/// limits come from the rest of the policy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvideContract {
    /// What this cluster promises about the amounts.
    pub commitment: Commitment,
    /// Length of a contract in seconds. If absent, contracts have no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 315_360_000))]
    pub period_seconds: Option<u32>,
    /// What happens at the end of the period.
    pub renewal: Renewal,
    /// Seconds that a peer has to sign a contract, or a change of it.
    #[schemars(range(min = 10, max = 31_536_000))]
    pub sign_within_seconds: u32,
    /// What happens if the peer does not sign in time.
    pub if_not_signed: IfNotSigned,
    /// What happens if a peer breaks a contract.
    pub on_breach: OnBreach,
    /// Length in seconds of the periods for which use is measured, each with a receipt: whole
    /// minutes, counted from 1970 in UTC. At most the length of the contract. A change has an
    /// effect on new contracts only.
    #[schemars(range(min = 60, max = 2_678_400), extend("multipleOf" = 60))]
    pub metering_period_seconds: u32,
}

impl Default for ProvideContract {
    fn default() -> Self {
        Self {
            commitment: Commitment::default(),
            period_seconds: None,
            renewal: Renewal::default(),
            sign_within_seconds: 86_400,
            if_not_signed: IfNotSigned::default(),
            on_breach: OnBreach::default(),
            metering_period_seconds: 3600,
        }
    }
}

/// What happens if a peer does not sign a change of a contract in time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfNotSigned {
    /// The old terms go on. If there are none, the offer stays, and no pod is admitted.
    #[default]
    KeepTerms,
    /// The offer is withdrawn, with notice, until the peer signs. Guaranteed amounts stay until the
    /// end of the contract.
    WithdrawOffer,
}

/// What follows from a breach of a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBreach {
    /// A condition, an event and a metric.
    #[default]
    Warn,
    /// In addition, no new pods while the breach lasts.
    RefuseNew,
    /// In addition, the contract ends with notice.
    EndWithNotice,
}

/// What the provider promises about the amounts.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commitment {
    /// They follow the offer, which follows what is free. Prices, notice, classes and limits are
    /// bound.
    #[default]
    BestEffort,
    /// They are reserved until the end. Nobody else gets them.
    Guaranteed,
}

/// What happens at the end of a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewal {
    /// Before the end, the provider proposes the same terms for another period.
    #[default]
    Automatic,
    /// The contract ends, and the provider takes back what it offers.
    None,
}

/// Which contracts of a peer this cluster signs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeContract {
    /// Whether this cluster accepts only offers under a contract.
    pub require: bool,
    /// Who decides on a contract, and on each change of it.
    pub accept: AcceptContract,
    /// The longest contract that this cluster signs, in seconds. If set, it signs none without an
    /// end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60))]
    pub max_period_seconds: Option<u32>,
    /// The largest guaranteed amounts of a contract that this cluster signs, in all pools together.
    #[serde(skip_serializing_if = "ResourceList::is_empty")]
    pub max_resources: ResourceList,
    /// What happens if the peer breaks a contract.
    pub on_breach: OnBreach,
    /// How many seconds the provider may count more for a pod than this cluster knows. Times that
    /// this cluster only estimates may differ by `metering.clockToleranceSeconds` of the
    /// `ClusterConfig`.
    #[schemars(range(max = 3600))]
    pub metering_tolerance_seconds: u32,
}

impl ConsumeContract {
    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Who decides on a contract.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptContract {
    /// Nobody: it is signed, within the limits.
    #[default]
    Automatic,
    /// A person, with `liqoctl offer accept` or `contracts` in the `ForeignCluster`.
    Manual,
}
