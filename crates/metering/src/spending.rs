//! The spending of a consumer under one contract in a day or a month, by namespace.
//!
//! It comes from the consumer's usage records, which are deleted when both sides have signed the
//! receipt. Before that, the costs of complete periods move into an annotation of the consumer's
//! copy of the contract, the [`SettledCosts`]:
//! ```text
//!   periods:   1 complete   2 complete   3 complete   4 not over
//!              └──── settled until here ─┘            │
//!              costs in the annotation    └ records   └ records, and pods that still run
//! ```
//! One write changes the costs and the time until which they are settled. Records before that time
//! no longer count, even if they still exist. So a restart, or a write with an unknown outcome,
//! neither loses a cost nor counts it twice. Costs are rounded for each period, as in a receipt,
//! and for each namespace. Entries with an estimated start count, too.

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use liqo_api::{BudgetPeriod, Money, PriceList, annotations};
use liqo_quantity::{AmountSeconds, ResourceList, cost_of_use, per_hour, priced_unit};
use serde::{Deserialize, Serialize};

use crate::Seconds;
use crate::entry::UsageEntry;
use crate::period::Period;
use crate::receipt::{ContractVersion, ReceiptContract};
use crate::usage_entries::UsageEntries;

/// Maximum length in bytes as JSON of the costs with a namespace, for a day or a month. Those that
/// cost least are added up without it. With the others of all currencies, the annotation is far
/// below the 256 KiB that Kubernetes allows for all annotations.
const MAX_NAMED_LEN: usize = 40 * 1024;
/// Maximum number of currencies in settled costs. What is in others, which came last, counts no
/// more once it is settled: a provider could have a new one in each version of its contract.
const MAX_CURRENCIES: usize = 128;
/// Maximum number of contracts that settled costs name as taken over. Each of them is deleted at
/// once.
const MAX_TAKEN_OVER: usize = 32;

/// The day or month (UTC) in which a time is: its first second, and the first second after it.
pub fn span_of(period: BudgetPeriod, time: Seconds) -> Range<Seconds> {
    let day = Timestamp::from_second(time)
        .unwrap_or_default()
        .to_zoned(TimeZone::UTC)
        .date();
    let (first, next) = match period {
        BudgetPeriod::Day => (day, day.tomorrow()),
        BudgetPeriod::Month => (day.first_of_month(), day.last_of_month().tomorrow()),
    };
    let start = midnight_of(first).unwrap_or(Seconds::MIN);
    start..next.and_then(midnight_of).unwrap_or(Seconds::MAX)
}

fn midnight_of(date: Date) -> Result<Seconds, jiff::Error> {
    date.to_zoned(TimeZone::UTC)
        .map(|zoned| zoned.timestamp().as_second())
}

/// Costs by currency and namespace. The empty name stands for namespaces that are not known; these
/// costs count for no namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CostsByNamespace(BTreeMap<String, BTreeMap<String, Money>>);

impl CostsByNamespace {
    /// Adds a cost. Nothing changes if it is zero.
    pub fn add(&mut self, currency: &str, namespace: &str, cost: Money) {
        if !cost.is_zero() {
            *self
                .0
                .entry(currency.to_owned())
                .or_default()
                .entry(namespace.to_owned())
                .or_default() += cost;
        }
    }

    /// Adds what an entry costs at these prices, as far as it is in a span of time.
    pub fn add_entry(&mut self, prices: &PriceList, entry: &UsageEntry, span: &Range<Seconds>) {
        let seconds = entry
            .until
            .at
            .min(span.end)
            .saturating_sub(entry.from.at.max(span.start));
        let Some(seconds) = u64::try_from(seconds).ok() else {
            return;
        };
        for (resource, amount) in &entry.amounts {
            if let Some(rate) = prices.rates.get(resource) {
                let cost = cost_of_use(
                    rate,
                    priced_unit(resource),
                    AmountSeconds::from_amount(amount, seconds),
                );
                self.add(&prices.currency, &entry.namespace, cost);
            }
        }
    }

    /// Adds all costs of another one.
    pub fn add_all(&mut self, other: &Self) {
        for (currency, namespace, cost) in other.iter() {
            self.add(currency, namespace, cost);
        }
    }

    /// Currency, namespace and cost of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, Money)> {
        self.0.iter().flat_map(|(currency, all)| {
            all.iter()
                .map(move |(namespace, cost)| (currency.as_str(), namespace.as_str(), *cost))
        })
    }

    /// All costs in a currency.
    pub fn total(&self, currency: &str) -> Money {
        self.0
            .get(currency)
            .into_iter()
            .flat_map(BTreeMap::values)
            .copied()
            .sum()
    }

    /// The costs of a namespace in a currency.
    pub fn of_namespace(&self, currency: &str, namespace: &str) -> Money {
        self.0
            .get(currency)
            .and_then(|all| all.get(namespace))
            .copied()
            .unwrap_or_default()
    }

    /// These costs and others, within [`MAX_CURRENCIES`] and [`MAX_NAMED_LEN`].
    fn bounded_with(mut self, more: &Self) -> Self {
        for (currency, namespace, cost) in more.iter() {
            if self.0.len() < MAX_CURRENCIES || self.0.contains_key(currency) {
                self.add(currency, namespace, cost);
            }
        }
        let named = self
            .iter()
            .filter(|(_, namespace, _)| !namespace.is_empty());
        let mut by_cost: Vec<(Money, String, String)> = named
            .map(|(currency, namespace, cost)| (cost, currency.to_owned(), namespace.to_owned()))
            .collect();
        by_cost.sort();
        let mut room = MAX_NAMED_LEN;
        for (cost, currency, namespace) in by_cost.into_iter().rev() {
            // In JSON: `"demo":"1.5",`.
            let rest = room.checked_sub(namespace.len() + cost.to_string().len() + 6);
            room = rest.unwrap_or_default();
            if rest.is_none()
                && let Some(all) = self.0.get_mut(&currency)
            {
                all.remove(&namespace);
                *all.entry(String::new()).or_default() += cost;
            }
        }
        self
    }
}

/// The costs of the complete periods of a contract until some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledCosts {
    /// The first second that is not settled.
    pub until: Seconds,
    /// Those of the day of the last settled second.
    day: CostsByNamespace,
    /// Those of the month of the last settled second.
    month: CostsByNamespace,
    /// Costs of contracts whose copies are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    former: Option<Box<SettledCosts>>,
    /// UIDs of these copies, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taken_over: Vec<String>,
}

impl SettledCosts {
    /// Reads [`annotations::SPENT`] of a contract; nothing is settled without it.
    pub fn from_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        annotations
            .and_then(|all| serde_json::from_str(all.get(annotations::SPENT)?).ok())
            .unwrap_or_default()
    }

    /// The text of the annotation.
    pub fn annotation_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Adds the costs of a complete period, which must not be settled yet. `usage` are all its
    /// entries.
    #[must_use]
    pub fn with_period(
        &self,
        contract: &ReceiptContract,
        period: Period,
        usage: &UsageEntries,
    ) -> Self {
        let costs = |kind: BudgetPeriod| {
            let span = span_of(kind, period.end() - 1);
            let costs = self.in_span(kind, &span).cloned().unwrap_or_default();
            costs.bounded_with(&contract.period_costs(period, usage, &span))
        };
        Self {
            until: period.end(),
            day: costs(BudgetPeriod::Day),
            month: costs(BudgetPeriod::Month),
            ..self.clone()
        }
    }

    /// Takes over the settled costs of another contract, before its copy (this UID) goes. The
    /// second time nothing changes.
    #[must_use]
    pub fn taking_over(&self, uid: &str, other: &Self) -> Self {
        let sources: Vec<&Self> = [self.former.as_deref(), Some(other), other.former.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        let until = sources
            .iter()
            .map(|one| one.until)
            .max()
            .unwrap_or_default();
        if until == 0 || self.has_taken_over(uid) {
            return self.clone();
        }
        let costs = |kind: BudgetPeriod| {
            let span = span_of(kind, until - 1);
            let all = sources.iter().filter_map(|one| one.in_span(kind, &span));
            all.fold(CostsByNamespace::default(), CostsByNamespace::bounded_with)
        };
        let former = Self {
            until,
            day: costs(BudgetPeriod::Day),
            month: costs(BudgetPeriod::Month),
            ..Self::default()
        };
        let mut taken_over = [
            self.taken_over.as_slice(),
            &other.taken_over,
            &[uid.to_owned()],
        ]
        .concat();
        taken_over.drain(..taken_over.len().saturating_sub(MAX_TAKEN_OVER));
        Self {
            former: Some(Box::new(former)),
            taken_over,
            ..self.clone()
        }
    }

    /// Whether the costs of the contract whose copy has this UID are among these.
    pub fn has_taken_over(&self, uid: &str) -> bool {
        self.taken_over.iter().any(|other| other == uid)
    }

    /// The settled costs of this day or month. `None` if all that is settled was before.
    fn in_span(&self, kind: BudgetPeriod, span: &Range<Seconds>) -> Option<&CostsByNamespace> {
        let costs = match kind {
            BudgetPeriod::Day => &self.day,
            BudgetPeriod::Month => &self.month,
        };
        (self.until > span.start).then_some(costs)
    }
}

impl ReceiptContract {
    /// Costs of the entries of a period, by namespace, as far as they are in a span of time.
    pub fn period_costs(
        &self,
        period: Period,
        usage: &UsageEntries,
        span: &Range<Seconds>,
    ) -> CostsByNamespace {
        let mut sums: BTreeMap<(&str, &str, u32, &str), AmountSeconds> = BTreeMap::new();
        let spans = self.spans(period);
        for entry in usage.entries() {
            for (version, from, until) in &spans {
                let (from, until) = (
                    entry.from.at.max(*from).max(span.start),
                    entry.until.at.min(*until).min(span.end),
                );
                let Some(seconds) = u64::try_from(until.saturating_sub(from))
                    .ok()
                    .filter(|seconds| *seconds > 0)
                else {
                    continue;
                };
                for (resource, amount) in &entry.amounts {
                    let key = (
                        entry.namespace.as_str(),
                        entry.pool.as_str(),
                        version.version,
                        resource,
                    );
                    *sums.entry(key).or_default() += AmountSeconds::from_amount(amount, seconds);
                }
            }
        }
        let mut costs = CostsByNamespace::default();
        for ((namespace, pool, number, resource), used) in sums {
            let version = self
                .versions
                .iter()
                .find(|version| version.version == number);
            if let Some(prices) = version.and_then(|version| version.prices.get(pool))
                && let Some(rate) = prices.rates.get(resource)
            {
                costs.add(
                    &prices.currency,
                    namespace,
                    cost_of_use(rate, priced_unit(resource), used),
                );
            }
        }
        costs
    }

    /// The version that applies at a time.
    pub fn version_at(&self, time: Seconds) -> Option<&ContractVersion> {
        let applies = self.end.is_none_or(|end| time < end);
        self.versions
            .iter()
            .rev()
            .find(|version| applies && version.from <= time)
    }

    /// Currency and cost of these amounts of a pool for one hour, at the given time. `None` if they
    /// cost nothing.
    pub fn per_hour(
        &self,
        pool: &str,
        amounts: &ResourceList,
        time: Seconds,
    ) -> Option<(&str, Money)> {
        let prices = self.version_at(time)?.prices.get(pool)?;
        let cost = per_hour(&prices.rates, amounts);
        (!cost.is_zero()).then_some((prices.currency.as_str(), cost))
    }
}

/// The known costs of one contract.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractAccount {
    /// The contract, from the consumer's copy.
    pub contract: ReceiptContract,
    period_seconds: u32,
    settled: SettledCosts,
    /// The end of the last complete period: pods that still run are in the records until then.
    complete: Seconds,
    /// The entries of periods that are not settled.
    open: BTreeMap<Period, UsageEntries>,
    /// Cost of the pods that run now, for one hour.
    per_hour: CostsByNamespace,
}

impl ContractAccount {
    /// An account without records.
    pub fn new(contract: ReceiptContract, period_seconds: u32, settled: SettledCosts) -> Self {
        let complete = settled.until;
        Self {
            contract,
            period_seconds,
            settled,
            complete,
            open: BTreeMap::new(),
            per_hour: CostsByNamespace::default(),
        }
    }

    /// Adds a record. What cannot be read counts nothing.
    pub fn add_record(&mut self, period: Period, is_last: bool, entries: &str) {
        if period.end() <= self.settled.until {
            return;
        }
        if is_last {
            self.complete = self.complete.max(period.end());
        }
        self.open
            .entry(period)
            .or_default()
            .extend(entries.lines().filter_map(|line| line.parse().ok()));
    }

    /// Adds the entries of a pod that still runs, after all records.
    pub fn add_running(&mut self, entries: &[UsageEntry]) {
        for entry in entries
            .iter()
            .filter_map(|entry| self.contract.part_of(entry))
        {
            let mut rest = entry;
            rest.from.at = rest.from.at.max(self.complete);
            for (period, part) in rest
                .if_valid()
                .iter()
                .flat_map(|rest| Period::parts(rest, self.period_seconds))
            {
                self.open.entry(period).or_default().add(part);
            }
        }
    }

    /// Adds what a pod costs that runs now, or will in a moment.
    pub fn add_rate(&mut self, namespace: &str, pool: &str, amounts: &ResourceList, now: Seconds) {
        if let Some((currency, cost)) = self.contract.per_hour(pool, amounts, now) {
            let currency = currency.to_owned();
            self.per_hour.add(&currency, namespace, cost);
        }
    }

    /// Costs of the present day or month.
    pub fn spent(&self, kind: BudgetPeriod, now: Seconds) -> CostsByNamespace {
        let span = span_of(kind, now);
        let mut costs = self
            .settled
            .in_span(kind, &span)
            .cloned()
            .unwrap_or_default();
        if let Some(former) = self
            .settled
            .former
            .as_ref()
            .and_then(|former| former.in_span(kind, &span))
        {
            costs.add_all(former);
        }
        for (period, usage) in &self.open {
            costs.add_all(&self.contract.period_costs(*period, usage, &span));
        }
        costs
    }

    /// The first second that the costs of contracts whose copies are gone do not include; second 0
    /// if there are none.
    pub fn former_until(&self) -> Seconds {
        let former = self.settled.former.as_ref();
        former.map(|former| former.until).unwrap_or_default()
    }

    /// Cost of the pods that run now, for one hour.
    pub fn per_hour(&self) -> &CostsByNamespace {
        &self.per_hour
    }
}

#[cfg(test)]
mod tests;
