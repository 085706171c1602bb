//! Budgets: how much a cluster spends at its providers.

use kube::KubeSchema;
use liqo_quantity::Money;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterId, schema};

/// How much pods in other clusters may cost in a day or a month. Only contracts with prices in the
/// same currency are metered; what runs without one counts by an estimate.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The currency, for example `EUR` or `credits`. A cluster that asks for another one gets no
    /// new pods, because Liqo converts nothing.
    #[schemars(regex(pattern = r"^[A-Za-z][A-Za-z0-9-]{0,11}$"))]
    pub currency: String,
    /// The amount for one period: a decimal number such as `12.5`.
    #[schemars(schema_with = "schema::amount_of_money")]
    pub amount: Money,
    /// How long the amount has to last. In UTC.
    #[serde(default)]
    pub period: BudgetPeriod,
    /// What happens to running pods when the budget is spent. It gets no new ones in any case.
    #[serde(default)]
    pub when_spent: WhenSpent,
}

/// The time for which a budget is.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum BudgetPeriod {
    /// From midnight to midnight in UTC.
    Day,
    /// A calendar month in UTC.
    #[default]
    Month,
}

/// What happens to running pods when a budget is spent.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenSpent {
    /// They go on, and cost more than the budget.
    #[default]
    Keep,
    /// They are evicted, as their `PodDisruptionBudgets` allow, if they may run in this cluster and
    /// their controller creates them again.
    MoveHome,
}

/// What the budget of a namespace does now. Every replica of the admission webhook reads it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// IDs of the clusters that get no new pods of the namespace.
    // Always written: a merge patch removes no field that is missing.
    #[serde(default, rename = "closedClusterIDs")]
    #[schemars(length(max = 256))]
    pub closed_cluster_ids: Vec<ClusterId>,
    /// Whether these are all clusters that the namespace selects.
    #[serde(default)]
    pub all_closed: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_that_is_open_again_overwrites_that_it_was_spent() {
        assert_eq!(
            serde_json::to_value(BudgetStatus::default()).unwrap(),
            json!({ "closedClusterIDs": [], "allClosed": false })
        );
    }
}
