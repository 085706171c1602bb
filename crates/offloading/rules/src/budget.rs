//! Decides which clusters get no new pods because a budget is spent, or because their costs cannot
//! be counted for it.
//!
//! Budgets are judged in rounds, and nobody looks between two rounds. So a budget counts as spent
//! when the rest does not cover what the running pods cost until the next round. Only pods that
//! were placed in the last round can exceed it, by their cost in one round.
//!
//! A spent budget stays spent until its day or month ends, or somebody changes it. Otherwise pods
//! would come and go, because the rest may be less than a pod costs in a round. After a restart,
//! budgets are evaluated from scratch.
//!
//! Unknown costs never count as zero. A cluster that asks for money without a contract, even in one
//! pool only, or in another currency, gets no new pods of whoever has a budget. Pods that already
//! run in a pool without a contract count by an estimate, see [`unmetered`].

pub mod unmetered;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    Budget, BudgetPeriod, ClusterId, Money, OffloadedReason, PriceList, WITHIN_BUDGET, WhenSpent,
    WithinBudgetReason, rfc3339,
};
use liqo_metering::UsageEntry;
use liqo_metering::spending::{ContractAccount, CostsByNamespace, span_of};
use unmetered::{unmetered_costs, unmetered_pools};

/// Time between two rounds.
pub const ROUND: Duration = Duration::from_secs(10);
/// Maximum number of clusters that a message names.
const MAX_NAMED: usize = 3;

/// The owner of a budget.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetHolder {
    /// A namespace, for its pods at all providers.
    Namespace(String),
    /// A `PeeringPolicy`, for all pods at the providers to which it applies.
    Policy(String),
}

impl BudgetHolder {
    /// For people: `namespace demo`.
    pub fn in_words(&self) -> String {
        match self {
            Self::Namespace(name) => format!("namespace {name}"),
            Self::Policy(name) => format!("PeeringPolicy {name}"),
        }
    }

    fn includes_provider(&self, provider: &ProviderCosts) -> bool {
        match self {
            Self::Namespace(_) => true,
            Self::Policy(name) => provider.policy.as_deref() == Some(name),
        }
    }

    /// The part of these costs that counts. Costs whose namespace is not known count for policies
    /// only: else a provider that invents pods would spend the budget of every namespace.
    fn counted_costs(&self, costs: &CostsByNamespace, currency: &str) -> Money {
        match self {
            Self::Namespace(name) => costs.of_namespace(currency, name),
            Self::Policy(_) => costs.total(currency),
        }
    }
}

/// The costs at one provider, as far as they are known.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderCosts {
    pub id: ClusterId,
    pub name: String,
    /// Name of the `PeeringPolicy` that applies to it.
    pub policy: Option<String>,
    /// The currencies in which its virtual nodes ask for something.
    pub asks: BTreeSet<String>,
    /// The pools that ask for something and are in no contract in force: nothing meters what new
    /// pods would cost there.
    pub unmetered: BTreeSet<String>,
    /// The currencies of its contract; `None` while none is in force.
    pub contract: Option<BTreeSet<String>>,
    pub day: CostsByNamespace,
    pub month: CostsByNamespace,
    /// The hourly costs of the pods that run now.
    pub per_hour: CostsByNamespace,
}

impl ProviderCosts {
    /// A provider with these accounts, one for each contract, also for those that ended. `asks` has
    /// the prices of each pool that asks for something. `running` are entries of the pods that run
    /// now, from their start on, at least of those in pools without a contract.
    pub fn from_accounts(
        id: ClusterId,
        name: String,
        policy: Option<String>,
        asks: &BTreeMap<String, PriceList>,
        accounts: &[ContractAccount],
        running: &[UsageEntry],
        now: Timestamp,
    ) -> Self {
        let now = now.as_second();
        let pools = unmetered_pools(asks, accounts, now);
        let unmetered::UnmeteredCosts {
            mut day,
            mut month,
            mut per_hour,
        } = unmetered_costs(&pools, running, now);
        let mut contract: Option<BTreeSet<String>> = None;
        for account in accounts {
            day.add_all(&account.spent(BudgetPeriod::Day, now));
            month.add_all(&account.spent(BudgetPeriod::Month, now));
            per_hour.add_all(account.per_hour());
            if let Some(version) = account.contract.version_at(now) {
                let with_prices = version
                    .prices
                    .values()
                    .filter(|prices| !prices.rates.is_empty());
                contract
                    .get_or_insert_default()
                    .extend(with_prices.map(|prices| prices.currency.clone()));
            }
        }
        let asks = asks
            .values()
            .map(|prices| prices.currency.clone())
            .collect();
        let unmetered = pools
            .into_iter()
            .filter(|(_, pool)| pool.is_unmetered_now)
            .map(|(name, _)| name)
            .collect();
        Self {
            id,
            name,
            policy,
            asks,
            unmetered,
            contract,
            day,
            month,
            per_hour,
        }
    }

    fn costs_in(&self, period: BudgetPeriod) -> &CostsByNamespace {
        match period {
            BudgetPeriod::Day => &self.day,
            BudgetPeriod::Month => &self.month,
        }
    }

    /// Whether it costs nothing.
    fn is_free(&self) -> bool {
        self.asks.is_empty() && self.contract.as_ref().is_none_or(BTreeSet::is_empty)
    }

    /// The reason why its costs cannot be counted for a budget in this currency.
    fn uncounted_reason(&self, currency: &str) -> Option<String> {
        let asks = self
            .asks
            .iter()
            .chain(self.contract.iter().flatten())
            .find(|asks| *asks != currency);
        if let Some(other) = asks {
            return Some(format!(
                "{} asks for {other}, and Liqo converts nothing: set the budget in {other}, or \
                 take it away",
                self.name
            ));
        }
        let pool = self.unmetered.first()?;
        Some(format!(
            "{} asks for {currency} without a contract for pool {pool}, and only contracts are \
             metered: sign its contract if it offers one (`liqoctl contract list`), ask it for one \
             (`provide.contract` of its PeeringPolicy), or take the budget away",
            self.name
        ))
    }
}

/// A budget that somebody has.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldBudget {
    pub holder: BudgetHolder,
    pub budget: Budget,
}

/// The present state of a budget.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetState {
    pub held: HeldBudget,
    /// The first second of the day or month.
    pub since: i64,
    /// The first second after it.
    pub until: i64,
    pub spent: Money,
    /// The hourly costs of the pods that run now.
    pub per_hour: Money,
    pub is_spent: bool,
    /// Clusters that get no new pods, and why.
    pub closed: BTreeMap<ClusterId, ClosedByBudget>,
}

/// Says why a cluster gets no new pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedByBudget {
    /// The reason of pods that come to its virtual node all the same.
    pub reason: OffloadedReason,
    pub message: String,
}

impl BudgetState {
    /// Whether this budget, as it is now, was found spent in the same day or month before.
    fn was_spent(&self, held: &HeldBudget, since: i64) -> bool {
        self.is_spent && self.held.budget == held.budget && self.since == since
    }

    /// Whether running pods go home.
    pub fn moves_home(&self) -> bool {
        self.is_spent && self.held.budget.when_spent == WhenSpent::MoveHome
    }

    /// The part that pods, or the condition of a namespace, depend on.
    fn shown_part(&self) -> (DesiredCondition, Vec<&ClusterId>, &Budget) {
        (
            self.condition(),
            self.closed.keys().collect(),
            &self.held.budget,
        )
    }

    /// The condition of a namespace. It changes only when something begins or ends, so that it
    /// costs no write otherwise.
    pub fn condition(&self) -> DesiredCondition {
        let uncounted: Vec<&str> = self
            .closed
            .values()
            .map(|closed| closed.message.as_str())
            .take(MAX_NAMED)
            .collect();
        if self.is_spent {
            DesiredCondition::no(
                WITHIN_BUDGET,
                WithinBudgetReason::BudgetSpent,
                spent_message(&self.held, self.until),
            )
        } else if uncounted.is_empty() {
            let message = format!(
                "{} for each {} may be spent",
                budget_amount(&self.held.budget),
                period_in_words(self.held.budget.period)
            );
            DesiredCondition::yes(WITHIN_BUDGET, WithinBudgetReason::WithinBudget, message)
        } else {
            DesiredCondition::no(
                WITHIN_BUDGET,
                WithinBudgetReason::CostsNotCounted,
                uncounted.join("; "),
            )
        }
    }
}

/// Judges a budget. `former` is what was found in the last round; `round` is the time until the
/// next one.
pub fn evaluate_budget(
    held: &HeldBudget,
    providers: &[ProviderCosts],
    former: Option<&BudgetState>,
    round: Duration,
    now: Timestamp,
) -> BudgetState {
    let HeldBudget { holder, budget } = held;
    let span = span_of(budget.period, now.as_second());
    let concerned: Vec<&ProviderCosts> = providers
        .iter()
        .filter(|provider| holder.includes_provider(provider))
        .collect();
    let spent: Money = concerned
        .iter()
        .map(|one| holder.counted_costs(one.costs_in(budget.period), &budget.currency))
        .sum();
    let per_hour: Money = concerned
        .iter()
        .map(|one| holder.counted_costs(&one.per_hour, &budget.currency))
        .sum();
    let is_spent = spent + cost_of_round(per_hour, round) >= budget.amount
        || former.is_some_and(|former| former.was_spent(held, span.start));
    let mut closed = BTreeMap::new();
    for provider in concerned {
        if let Some(why) = provider.uncounted_reason(&budget.currency) {
            let budget = holder.in_words();
            let uncounted = ClosedByBudget {
                reason: OffloadedReason::CostsNotCounted,
                message: format!(
                    "the costs of new pods do not count for the budget of {budget}: {why}"
                ),
            };
            closed.insert(provider.id.clone(), uncounted);
        } else if is_spent && !provider.is_free() {
            let spent = ClosedByBudget {
                reason: OffloadedReason::BudgetSpent,
                message: spent_message(held, span.end),
            };
            closed.insert(provider.id.clone(), spent);
        }
    }
    BudgetState {
        held: held.clone(),
        since: span.start,
        until: span.end,
        spent,
        per_hour,
        is_spent,
        closed,
    }
}

/// The costs for one round, computed from those for one hour and rounded up to a billionth.
fn cost_of_round(per_hour: Money, round: Duration) -> Money {
    let seconds = i128::from(round.as_secs()) + i128::from(round.subsec_nanos() > 0);
    let product = per_hour.nanos().saturating_mul(seconds);
    Money::from_nanos(product / 3600 + i128::from(product % 3600 > 0))
}

fn budget_amount(budget: &Budget) -> String {
    format!("{} {}", budget.amount, budget.currency)
}

fn period_in_words(period: BudgetPeriod) -> &'static str {
    match period {
        BudgetPeriod::Day => "day",
        BudgetPeriod::Month => "month",
    }
}

fn spent_message(held: &HeldBudget, until: i64) -> String {
    let next = Timestamp::from_second(until)
        .map(rfc3339)
        .unwrap_or_default();
    format!(
        "the budget of {}, {} for each {}, is spent: no new pods go to clusters that cost something, before {next} or until it is raised",
        held.holder.in_words(),
        budget_amount(&held.budget),
        period_in_words(held.budget.period)
    )
}

/// The present state of all budgets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BudgetEvaluation {
    verdicts: BTreeMap<BudgetHolder, BudgetState>,
    /// The policy that applies to each provider.
    policies: BTreeMap<ClusterId, Option<String>>,
}

impl BudgetEvaluation {
    /// Judges all budgets.
    pub fn evaluate_all(
        budgets: &[HeldBudget],
        providers: &[ProviderCosts],
        former: &Self,
        round: Duration,
        now: Timestamp,
    ) -> Self {
        let judged = budgets.iter().map(|held| {
            let verdict = evaluate_budget(
                held,
                providers,
                former.verdicts.get(&held.holder),
                round,
                now,
            );
            (held.holder.clone(), verdict)
        });
        let policies = providers
            .iter()
            .map(|provider| (provider.id.clone(), provider.policy.clone()))
            .collect();
        Self {
            verdicts: judged.collect(),
            policies,
        }
    }

    /// The state of the budget of a namespace. `None` if it was not judged.
    pub fn state_of_namespace(&self, namespace: &str) -> Option<&BudgetState> {
        self.verdicts
            .get(&BudgetHolder::Namespace(namespace.to_owned()))
    }

    /// The state of the budget of the policy that applies to a provider.
    pub fn state_of_provider(&self, id: &ClusterId) -> Option<&BudgetState> {
        let policy = self.policies.get(id)?.as_ref()?;
        self.verdicts.get(&BudgetHolder::Policy(policy.clone()))
    }

    /// Whether a provider was there when the budgets were judged.
    pub fn has_evaluated(&self, id: &ClusterId) -> bool {
        self.policies.contains_key(id)
    }

    /// Says why a provider gets no new pods at all.
    pub fn closed_for_all(&self, id: &ClusterId) -> Option<&ClosedByBudget> {
        self.state_of_provider(id)?.closed.get(id)
    }

    /// Says why a provider gets no new pods of a namespace.
    pub fn closed_for(&self, namespace: &str, id: &ClusterId) -> Option<&ClosedByBudget> {
        let own = self
            .state_of_namespace(namespace)
            .and_then(|verdict| verdict.closed.get(id));
        own.or_else(|| self.closed_for_all(id))
    }

    /// Whether the running pods of a namespace at a provider go home.
    pub fn moves_home(&self, namespace: &str, id: &ClusterId) -> bool {
        [
            self.state_of_namespace(namespace),
            self.state_of_provider(id),
        ]
        .into_iter()
        .flatten()
        .any(|state| state.moves_home() && state.closed.contains_key(id))
    }

    /// Whether running pods go home anywhere.
    pub fn moves_any_home(&self) -> bool {
        self.verdicts.values().any(BudgetState::moves_home)
    }

    /// The namespaces for which something changed since `former`: all of them (`None`) if a
    /// provider came or went, or a policy closed or opened one.
    pub fn changed_since<'a>(&'a self, former: &'a Self) -> Option<BTreeSet<&'a str>> {
        let is_same = self.policies.keys().eq(former.policies.keys());
        if !is_same || self.closed_by_policies() != former.closed_by_policies() {
            return None;
        }
        let namespaces = self
            .verdicts
            .keys()
            .chain(former.verdicts.keys())
            .filter_map(|holder| match holder {
                BudgetHolder::Namespace(name) => Some(name.as_str()),
                BudgetHolder::Policy(_) => None,
            });
        Some(
            namespaces
                .filter(|namespace| {
                    let (now, before) = (
                        self.state_of_namespace(namespace),
                        former.state_of_namespace(namespace),
                    );
                    now.map(BudgetState::shown_part) != before.map(BudgetState::shown_part)
                })
                .collect(),
        )
    }

    /// The providers that get no new pods because of the budgets of policies, and why.
    fn closed_by_policies(&self) -> BTreeMap<&ClusterId, &ClosedByBudget> {
        self.policies
            .keys()
            .filter_map(|id| Some((id, self.closed_for_all(id)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
