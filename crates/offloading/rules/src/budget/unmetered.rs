//! The costs of running pods in pools that ask for money, at times without a contract in force.
//!
//! Nothing meters these times, so nothing is stored. A pod counts while it runs, at the prices that
//! its pool asks for now, for the part of the month in which no contract had prices for its pool:
//! ```text
//!   pod runs   ├────────────────────────────────────────▶ now
//!   contracts            ├───────────┤          ├───────▶
//!   estimate   ├─────────┤           ├──────────┤
//! ```
//! So it has no cost twice, and its costs do not fall when a contract comes into force. When it has
//! ended, the estimate is gone.

use std::collections::BTreeMap;
use std::ops::Range;

use liqo_api::{BudgetPeriod, PriceList};
use liqo_metering::receipt::ReceiptContract;
use liqo_metering::spending::{ContractAccount, CostsByNamespace, span_of};
use liqo_metering::{Seconds, UsageEntry};
use liqo_quantity::per_hour;

/// A pool that asks for something, and that no contract covers now or covered at some time of this
/// month.
#[derive(Debug, Clone, PartialEq)]
pub struct UnmeteredPool {
    /// Its present prices.
    pub prices: PriceList,
    /// The times of this month until now without a contract. Times for which the contracts may be
    /// gone are left out.
    pub times: Vec<Range<Seconds>>,
    /// Whether no contract in force has prices for it now.
    pub is_unmetered_now: bool,
}

/// The costs of pods in one day, in one month and for one hour.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnmeteredCosts {
    pub day: CostsByNamespace,
    pub month: CostsByNamespace,
    pub per_hour: CostsByNamespace,
}

/// The pools of a provider that nothing meters now, or metered at some time of this month. `asks`
/// are the prices of those that ask for something.
pub fn unmetered_pools(
    asks: &BTreeMap<String, PriceList>,
    accounts: &[ContractAccount],
    now: Seconds,
) -> BTreeMap<String, UnmeteredPool> {
    let month = span_of(BudgetPeriod::Month, now);
    let known_since = accounts.iter().map(known_since).max();
    // Terms that are signed already may count only later.
    let start = month
        .start
        .max(known_since.unwrap_or(Seconds::MIN).min(now));
    let mut unmetered = BTreeMap::new();
    for (pool, prices) in asks {
        let times = times_without_contract(pool, accounts, start..now.saturating_add(1));
        let is_unmetered_now = times.iter().any(|time| time.contains(&now));
        if !times.is_empty() {
            let pool_without_contract = UnmeteredPool {
                prices: prices.clone(),
                times,
                is_unmetered_now,
            };
            unmetered.insert(pool.clone(), pool_without_contract);
        }
    }
    unmetered
}

/// The first second since which an account shows all contracts. Before it, another contract, whose
/// copy is gone, or terms that are not listed any more may have counted pods.
fn known_since(account: &ContractAccount) -> Seconds {
    let first = account.contract.versions.first();
    let first_listed = first
        .filter(|version| version.version > 1)
        .map(|version| version.from);
    first_listed
        .unwrap_or(Seconds::MIN)
        .max(account.former_until())
}

/// The parts of a span in which no contract has prices for the pool.
fn times_without_contract(
    pool: &str,
    accounts: &[ContractAccount],
    span: Range<Seconds>,
) -> Vec<Range<Seconds>> {
    let mut covered: Vec<Range<Seconds>> = accounts
        .iter()
        .flat_map(|account| times_with_prices(&account.contract, pool))
        .collect();
    covered.sort_by_key(|time| time.start);
    covered.push(span.end..Seconds::MAX);
    let mut gaps = Vec::new();
    let mut start = span.start;
    for time in covered {
        let end = time.start.min(span.end);
        if start < end {
            gaps.push(start..end);
        }
        start = start.max(time.end);
    }
    gaps
}

/// The times of the versions with prices for this pool.
fn times_with_prices(contract: &ReceiptContract, pool: &str) -> Vec<Range<Seconds>> {
    let end = contract.end.unwrap_or(Seconds::MAX);
    let nexts = contract.versions.iter().skip(1).map(|next| next.from);
    contract
        .versions
        .iter()
        .zip(nexts.chain([end]))
        .filter(|(version, _)| version.prices.contains_key(pool))
        .map(|(version, next)| version.from..next.min(end))
        // A contract may end before its last terms count.
        .filter(|time| time.start < time.end)
        .collect()
}

/// The costs of the pods that run in these pools now. `running` are the entries of pods from their
/// start until now, also of pods elsewhere.
pub fn unmetered_costs(
    pools: &BTreeMap<String, UnmeteredPool>,
    running: &[UsageEntry],
    now: Seconds,
) -> UnmeteredCosts {
    let (today, this_month) = (
        span_of(BudgetPeriod::Day, now),
        span_of(BudgetPeriod::Month, now),
    );
    let mut costs = UnmeteredCosts::default();
    for entry in running {
        let Some(pool) = pools.get(&entry.pool) else {
            continue;
        };
        for time in &pool.times {
            let [day, month] = [&today, &this_month]
                .map(|period| time.start.max(period.start)..time.end.min(period.end));
            costs.day.add_entry(&pool.prices, entry, &day);
            costs.month.add_entry(&pool.prices, entry, &month);
        }
        if pool.is_unmetered_now {
            costs.per_hour.add(
                &pool.prices.currency,
                &entry.namespace,
                per_hour(&pool.prices.rates, &entry.amounts),
            );
        }
    }
    costs
}
