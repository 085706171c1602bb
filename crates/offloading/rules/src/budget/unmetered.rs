//! The costs of pods that run in pools which ask for money without a contract in force.
//!
//! Nothing meters them, so nothing is stored. A pod counts while it runs, at the prices that its
//! pool asks for now, since it started or since the last contract about its pool was over. So it
//! has no cost twice, and none any more when it has ended.

use std::collections::BTreeMap;

use liqo_api::{BudgetPeriod, PriceList};
use liqo_metering::receipt::ReceiptContract;
use liqo_metering::spending::{ContractAccount, CostsByNamespace, span_of};
use liqo_metering::{Seconds, UsageEntry};
use liqo_quantity::per_hour;

/// A pool that asks for something and is in no contract in force.
#[derive(Debug, Clone, PartialEq)]
pub struct UnmeteredPool {
    /// Its present prices.
    pub prices: PriceList,
    /// The end of the last contract about it, or second 0.
    pub since: Seconds,
}

/// The costs of pods in one day, in one month and for one hour.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnmeteredCosts {
    pub day: CostsByNamespace,
    pub month: CostsByNamespace,
    pub per_hour: CostsByNamespace,
}

/// The pools of a provider that nothing meters. `asks` are the prices of those that ask for
/// something.
pub fn unmetered_pools(
    asks: &BTreeMap<String, PriceList>,
    accounts: &[ContractAccount],
    now: Seconds,
) -> BTreeMap<String, UnmeteredPool> {
    let mut unmetered = BTreeMap::new();
    for (pool, prices) in asks {
        if is_in_contract(pool, accounts, now) {
            continue;
        }
        let since = accounts
            .iter()
            .map(|account| end_of_prices(&account.contract, pool))
            .max()
            .unwrap_or_default();
        let prices = prices.clone();
        unmetered.insert(pool.clone(), UnmeteredPool { prices, since });
    }
    unmetered
}

/// Whether a contract that is in force has prices for the pool.
fn is_in_contract(pool: &str, accounts: &[ContractAccount], now: Seconds) -> bool {
    accounts
        .iter()
        .filter_map(|account| account.contract.version_at(now))
        .any(|version| version.prices.contains_key(pool))
}

/// The end of the last version with prices of this pool; second 0 if there is none.
fn end_of_prices(contract: &ReceiptContract, pool: &str) -> Seconds {
    let ends = contract
        .versions
        .iter()
        .skip(1)
        .map(|next| Some(next.from))
        .chain([contract.end]);
    let with_ends = contract
        .versions
        .iter()
        .zip(ends)
        .filter(|(version, _)| version.prices.contains_key(pool));
    with_ends
        .filter_map(|(_, end)| end)
        .max()
        .unwrap_or_default()
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
        let Some(UnmeteredPool { prices, since }) = pools.get(&entry.pool) else {
            continue;
        };
        costs
            .day
            .add_entry(prices, entry, &(today.start.max(*since)..today.end));
        costs.month.add_entry(
            prices,
            entry,
            &(this_month.start.max(*since)..this_month.end),
        );
        costs.per_hour.add(
            &prices.currency,
            &entry.namespace,
            per_hour(&prices.rates, &entry.amounts),
        );
    }
    costs
}
