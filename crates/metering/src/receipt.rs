//! The receipt of one period: the use of each pool under each version of the contract, and its
//! cost.
//!
//! A line is one resource of one pool under one version. Each line is computed exactly and rounded
//! once; a total is the sum of its lines. A receipt does not list pods: it has the digest of the
//! canonical text of their entries.
//!
//! A receipt has a bounded size. If its lines take more, it becomes a summary: the same totals
//! without the lines. Both sides compute it from the entries by the same rule.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use liqo_api::{
    ClusterId, ContractSpec, MAX_RECEIPT_CURRENCIES, MAX_RECEIPT_POOLS, MAX_RECEIPT_RESOURCES,
    Money, PriceList, ReceiptLine, ReceiptPool, ReceiptStatement, ReceiptVersion, Time,
    UsagePeriod,
};
use liqo_quantity::{AmountSeconds, cost_of_use, priced_unit};

use crate::Seconds;
use crate::entry::UsageEntry;
use crate::period::Period;
use crate::usage_entries::UsageEntries;

/// Maximum length of a statement as JSON, in bytes: what fits into a signed document.
pub const MAX_STATEMENT_LEN: usize = 32 * 1024;

/// A version of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractVersion {
    /// Its number.
    pub version: u32,
    /// SHA-256 of its terms, in hexadecimal.
    pub digest: String,
    /// The first second in which it applies. It ends where the next one begins.
    pub from: Seconds,
    /// The prices of each pool.
    pub prices: BTreeMap<String, PriceList>,
}

/// The contract that a receipt is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptContract {
    /// Its ID.
    pub id: String,
    /// The cluster that lends.
    pub provider: ClusterId,
    /// The cluster that borrows.
    pub consumer: ClusterId,
    /// Its versions, in the order of time.
    pub versions: Vec<ContractVersion>,
    /// The first second in which it does not apply any more, if it has ended.
    pub end: Option<Seconds>,
}

/// A period has prices in too many currencies, even for a summary. Contains their number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the costs are in {0} currencies, and a receipt has room for {MAX_RECEIPT_CURRENCIES}; use one currency"
)]
pub struct TooManyCurrencies(pub usize);

impl ReceiptContract {
    /// Reads the readable copy of a contract, which its consumer stores as it was signed. `None` if
    /// it was never in force.
    pub fn of_spec(spec: &ContractSpec) -> Option<Self> {
        let earlier = spec.earlier.iter().map(|earlier| ContractVersion {
            version: earlier.version,
            digest: earlier.digest.clone(),
            from: earlier.since.0.as_second(),
            prices: earlier.prices.clone(),
        });
        // Only receipts need the digest of the present terms.
        let (version, digest) = (spec.terms.version, String::new());
        let prices = spec.terms.prices.clone();
        let since = spec
            .in_force_since
            .as_ref()
            .map(|since| since.0.as_second());
        let current = since.map(|from| ContractVersion {
            version,
            digest,
            from,
            prices,
        });
        let mut versions: Vec<ContractVersion> = earlier.chain(current).collect();
        versions.sort_by_key(|version| (version.from, version.version));
        versions.first()?;
        let terms = &spec.terms;
        let (id, provider, consumer) = (
            terms.contract.clone(),
            terms.provider.clone(),
            terms.consumer.clone(),
        );
        Some(Self {
            id,
            provider,
            consumer,
            versions,
            end: spec.ended.as_ref().map(|end| end.at.0.as_second()),
        })
    }

    /// The versions that apply in a period, each with its first second and the first second after
    /// it, within the period.
    pub(crate) fn spans(&self, period: Period) -> Vec<(&ContractVersion, Seconds, Seconds)> {
        let end = self.end.unwrap_or(Seconds::MAX).min(period.end());
        let nexts = self
            .versions
            .iter()
            .skip(1)
            .map(|next| next.from)
            .chain([Seconds::MAX]);
        let spans = self
            .versions
            .iter()
            .zip(nexts)
            .map(|(version, next)| (version, version.from.max(period.start), next.min(end)));
        spans.filter(|(_, from, until)| from < until).collect()
    }

    /// The part of an entry that the contract is about: nothing is charged before it began, nor
    /// after it ended.
    pub fn part_of(&self, entry: &UsageEntry) -> Option<UsageEntry> {
        let start = self.versions.first()?.from;
        let mut part = entry.clone();
        part.from.at = part.from.at.max(start);
        part.until.at = part.until.at.min(self.end.unwrap_or(Seconds::MAX));
        part.if_valid()
    }

    /// The receipt of a period; a summary if its lines take too much space. Entries that begin with
    /// an estimate are not counted.
    pub fn receipt(
        &self,
        period: Period,
        usage: &UsageEntries,
    ) -> Result<ReceiptStatement, TooManyCurrencies> {
        let spans = self.spans(period);
        let mut sums: BTreeMap<(String, u32), BTreeMap<String, AmountSeconds>> = BTreeMap::new();
        let mut pods = BTreeSet::new();
        for entry in usage.entries().filter(|entry| !entry.from.is_estimate) {
            pods.insert(entry.uid.as_str());
            for (version, from, until) in &spans {
                let seconds = entry
                    .until
                    .at
                    .min(*until)
                    .saturating_sub(entry.from.at.max(*from));
                let Some(seconds) = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
                else {
                    continue;
                };
                let sum = sums
                    .entry((entry.pool.clone(), version.version))
                    .or_default();
                for (name, amount) in &entry.amounts {
                    *sum.entry(name.to_owned()).or_default() +=
                        AmountSeconds::from_amount(amount, seconds);
                }
            }
        }
        let pools: Vec<ReceiptPool> = sums
            .into_iter()
            .map(|((pool, version), sums)| self.priced_pool(pool, version, sums))
            .collect();
        let versions = spans.iter().map(|(version, ..)| ReceiptVersion {
            version: version.version,
            digest: version.digest.clone(),
        });
        let statement = ReceiptStatement {
            contract: self.id.clone(),
            provider: self.provider.clone(),
            consumer: self.consumer.clone(),
            period: api_period(period),
            versions: versions.collect(),
            totals: totals_by_currency(&pools),
            pools,
            is_summary: false,
            pods: u64::try_from(pods.len()).unwrap_or(u64::MAX),
            entries: u64::try_from(usage.len()).unwrap_or(u64::MAX),
            digest: usage.digest(),
        };
        let currencies = statement.totals.len();
        if currencies > MAX_RECEIPT_CURRENCIES {
            Err(TooManyCurrencies(currencies))
        } else if fits_document(&statement) {
            Ok(statement)
        } else {
            Ok(ReceiptStatement {
                pools: Vec::new(),
                is_summary: true,
                ..statement
            })
        }
    }

    fn priced_pool(
        &self,
        pool: String,
        number: u32,
        sums: BTreeMap<String, AmountSeconds>,
    ) -> ReceiptPool {
        let version = self
            .versions
            .iter()
            .find(|version| version.version == number);
        let prices = version.and_then(|version| version.prices.get(&pool));
        let resources = sums.into_iter().map(|(name, amount_seconds)| {
            let rate = prices.and_then(|prices| prices.rates.get(&name));
            let cost = rate.map(|rate| cost_of_use(rate, priced_unit(&name), amount_seconds));
            (
                name,
                ReceiptLine {
                    amount_seconds,
                    rate,
                    cost,
                },
            )
        });
        ReceiptPool {
            version: number,
            currency: prices.map(|prices| prices.currency.clone()),
            resources: resources.collect(),
            pool,
        }
    }
}

/// Whether a statement with its lines can be signed and stored.
fn fits_document(statement: &ReceiptStatement) -> bool {
    statement.pools.len() <= MAX_RECEIPT_POOLS
        && statement
            .pools
            .iter()
            .all(|pool| pool.resources.len() <= MAX_RECEIPT_RESOURCES)
        && serde_json::to_string(statement).is_ok_and(|text| text.len() <= MAX_STATEMENT_LEN)
}

/// The sum of all costs, by currency.
pub fn totals_by_currency(pools: &[ReceiptPool]) -> BTreeMap<String, Money> {
    let mut totals: BTreeMap<String, Money> = BTreeMap::new();
    for pool in pools {
        let Some(currency) = &pool.currency else {
            continue;
        };
        let costs: Money = pool.resources.values().filter_map(|line| line.cost).sum();
        *totals.entry(currency.clone()).or_default() += costs;
    }
    totals
}

/// Returns a message if a statement contradicts itself: whoever computes a line or a total again
/// gets another value.
pub fn statement_contradiction(statement: &ReceiptStatement) -> Option<String> {
    for pool in &statement.pools {
        for (name, line) in &pool.resources {
            if line.cost
                != line
                    .rate
                    .map(|rate| cost_of_use(rate, priced_unit(name), line.amount_seconds))
            {
                return Some(format!(
                    "the cost of {name:.100} in pool {:.100} is not its rate times its amount",
                    pool.pool
                ));
            }
        }
    }
    // Whoever has no entries takes the totals of a summary as they are.
    let is_summary = statement.is_summary && statement.pools.is_empty();
    (!is_summary && statement.totals != totals_by_currency(&statement.pools))
        .then(|| "the totals are not the sums of the costs".to_owned())
}

/// Describes the difference between two statements about the same period, for people. `None` if
/// they are equal.
pub fn statement_difference(ours: &ReceiptStatement, theirs: &ReceiptStatement) -> Option<String> {
    let what = if ours == theirs {
        return None;
    } else if (&ours.contract, &ours.provider, &ours.consumer, &ours.period)
        != (
            &theirs.contract,
            &theirs.provider,
            &theirs.consumer,
            &theirs.period,
        )
    {
        "it is about another contract, peer or period"
    } else if ours.versions != theirs.versions {
        "it names other versions of the contract"
    } else if ours.digest != theirs.digest {
        "its digest is not that of the provider's entries"
    } else if ours.totals != theirs.totals {
        "its total is not what the entries cost at the prices of the contract"
    } else {
        "its amounts are not those of the entries"
    };
    Some(what.to_owned())
}

/// The value of the label of a period's usage records, and the end of its receipt's name.
pub fn period_label(contract: &str, period: Period) -> String {
    format!(
        "{}-{}",
        contract.get(..8).unwrap_or(contract),
        period.name()
    )
}

/// The name of the receipt of a period.
pub fn receipt_name(contract: &str, period: Period) -> String {
    format!("receipt-{}", period_label(contract, period))
}

/// A period as objects hold it.
pub fn api_period(period: Period) -> UsagePeriod {
    UsagePeriod {
        start: Time(Timestamp::from_second(period.start).unwrap_or_default()),
        seconds: period.seconds(),
    }
}

/// The period in an object. `None` if its start or its length are none that a period has.
pub fn period_of(period: &UsagePeriod) -> Option<Period> {
    let start = period.start.0.as_second();
    let found = Period::at(start, period.seconds);
    (found.start == start && found.seconds() == period.seconds).then_some(found)
}

#[cfg(test)]
mod tests {
    use liqo_api::MAX_EARLIER_TERMS;
    use proptest::prelude::*;

    use super::*;

    fn prices(cpu: &str) -> BTreeMap<String, PriceList> {
        let rates = [
            ("cpu", cpu.parse().unwrap()),
            ("memory", "0.005".parse().unwrap()),
        ]
        .into_iter()
        .collect();
        BTreeMap::from([(
            "p".to_owned(),
            PriceList {
                currency: "EUR".to_owned(),
                rates,
            },
        )])
    }

    fn contract(versions: &[(Seconds, &str)]) -> ReceiptContract {
        let versions = versions
            .iter()
            .zip(1..)
            .map(|((from, cpu), version)| ContractVersion {
                version,
                digest: format!("d{version}"),
                from: *from,
                prices: prices(cpu),
            });
        let id = |byte: u8| ClusterId::of_public_key(&[byte; 32]);
        ReceiptContract {
            id: "c".to_owned(),
            provider: id(1),
            consumer: id(2),
            versions: versions.collect(),
            end: None,
        }
    }

    #[test]
    fn a_core_for_an_hour_costs_its_rate() {
        let usage = UsageEntries::parse("u p 0 3600 cpu=1,memory=1073741824,pods=1\n").unwrap();
        let receipt = contract(&[(0, "0.04")])
            .receipt(Period::at(0, 3600), &usage)
            .unwrap();
        let lines = &receipt.pools[0].resources;
        assert_eq!(lines["cpu"].amount_seconds.to_string(), "3600");
        assert_eq!(lines["memory"].amount_seconds.to_string(), "3865470566400");
        assert_eq!((lines["pods"].rate, lines["pods"].cost), (None, None));
        assert_eq!(receipt.totals["EUR"].to_string(), "0.045");
        assert_eq!(
            (receipt.pods, receipt.entries, receipt.digest.as_str()),
            (1, 1, usage.digest().as_str())
        );
        assert_eq!(statement_contradiction(&receipt), None);
    }

    #[test]
    fn each_version_has_its_own_lines_and_nothing_is_charged_before_the_first_or_after_the_end() {
        let usage = UsageEntries::parse("u p 0 3600 cpu=1\n").unwrap();
        let mut contract = contract(&[(600, "0.04"), (1800, "0.08")]);
        contract.end = Some(3000);
        let receipt = contract.receipt(Period::at(0, 3600), &usage).unwrap();
        let seconds: Vec<String> = receipt
            .pools
            .iter()
            .map(|pool| pool.resources["cpu"].amount_seconds.to_string())
            .collect();
        assert_eq!(seconds, ["1200", "1200"]);
        assert_eq!(receipt.totals["EUR"].to_string(), "0.04");
        assert_eq!(
            contract
                .part_of(&"u p 0 3600 -".parse().unwrap())
                .unwrap()
                .to_string(),
            "u p 600 3000 -"
        );
        assert_eq!(contract.part_of(&"u p 0 600 -".parse().unwrap()), None);
        assert_eq!(receipt.versions.len(), 2);
    }

    #[test]
    fn a_receipt_of_10_000_pods_is_small() {
        let usage: UsageEntries = (0..10_000)
            .map(|n| {
                format!("u{n} p{} 0 3600 cpu=1,memory=5,pods=1", n % 10)
                    .parse()
                    .unwrap()
            })
            .collect();
        let receipt = contract(&[(0, "0.04")])
            .receipt(Period::at(0, 3600), &usage)
            .unwrap();
        assert_eq!(receipt.pods, 10_000);
        assert!(serde_json::to_string(&receipt).unwrap().len() < 4096);
    }

    /// A contract that changed as often as one can, with prices for 16 pools with 8 resources each,
    /// each price list in one of so many currencies; and pods that used all of that all the time.
    fn largest(currencies: usize) -> (ReceiptContract, UsageEntries) {
        let resources: Vec<String> = (0..8)
            .map(|n| format!("{}.example.com/resource-{n:02}", "x".repeat(40)))
            .collect();
        let mut contract = contract(&[]);
        for number in 0..=MAX_EARLIER_TERMS {
            let of_pool = |pool: usize| {
                let rates = resources
                    .iter()
                    .map(|name| (name.as_str(), "999999999.999999999".parse().unwrap()))
                    .collect();
                let currency = format!("CURRENCY-{:03}", (number * 16 + pool) % currencies);
                (
                    format!("{}{pool:02}", "p".repeat(61)),
                    PriceList { currency, rates },
                )
            };
            let (version, from) = (
                u32::try_from(number).unwrap() + 1,
                i64::try_from(number).unwrap() * 50,
            );
            contract.versions.push(ContractVersion {
                version,
                digest: "d".repeat(64),
                from,
                prices: (0..16).map(of_pool).collect(),
            });
        }
        let amounts = resources
            .iter()
            .map(|name| format!("{name}=9007199254740991"))
            .collect::<Vec<_>>()
            .join(",");
        let line = |pool: usize| {
            format!("u{pool} {}{pool:02} 0 3600 {amounts}", "p".repeat(61))
                .parse()
                .unwrap()
        };
        (contract, (0..16).map(line).collect())
    }

    #[test]
    fn a_receipt_whose_lines_take_too_much_space_is_a_summary_with_the_same_totals() {
        let (contract, usage) = largest(MAX_RECEIPT_CURRENCIES);
        let receipt = contract.receipt(Period::at(0, 3600), &usage).unwrap();
        assert!(
            receipt.is_summary
                && receipt.pools.is_empty()
                && statement_contradiction(&receipt).is_none()
        );
        assert_eq!(
            (receipt.versions.len(), receipt.totals.len()),
            (MAX_EARLIER_TERMS + 1, MAX_RECEIPT_CURRENCIES)
        );
        let length = serde_json::to_string(&receipt).unwrap().len();
        assert!(
            length <= MAX_STATEMENT_LEN / 2,
            "{length}: even longer numbers fit"
        );

        let costs = contract.period_costs(Period::at(0, 3600), &usage, &(0..3600));
        assert!(
            receipt
                .totals
                .iter()
                .all(|(currency, total)| costs.total(currency) == *total && !total.is_zero())
        );
        let (contract, usage) = largest(MAX_RECEIPT_CURRENCIES + 1);
        assert_eq!(
            contract.receipt(Period::at(0, 3600), &usage),
            Err(TooManyCurrencies(MAX_RECEIPT_CURRENCIES + 1))
        );
    }

    #[test]
    fn lines_that_no_schema_takes_make_a_summary() {
        let contract = contract(&[(0, "0.04")]);
        let is_summary = |usage: UsageEntries| {
            contract
                .receipt(Period::at(0, 3600), &usage)
                .unwrap()
                .is_summary
        };
        let pools = |number: usize| {
            (0..number)
                .map(|n| format!("u{n} p{n} 0 3600 -").parse().unwrap())
                .collect::<UsageEntries>()
        };
        assert!(
            !is_summary(pools(MAX_RECEIPT_POOLS)),
            "a pool without an amount has no lines"
        );
        let resources = |number: usize| {
            (0..number)
                .map(|n| format!("u{n} p 0 3600 r{n}=1").parse().unwrap())
                .collect::<UsageEntries>()
        };
        assert!(
            !is_summary(resources(MAX_RECEIPT_RESOURCES))
                && is_summary(resources(MAX_RECEIPT_RESOURCES + 1))
        );
        let used = |number: usize| {
            (0..number)
                .map(|n| format!("u{n} p{n} 0 3600 r=1").parse().unwrap())
                .collect::<UsageEntries>()
        };
        assert!(!is_summary(used(300)) && is_summary(used(MAX_RECEIPT_POOLS + 1)));
    }

    #[test]
    fn only_a_summary_has_totals_without_lines() {
        let usage = UsageEntries::parse("u p 0 3600 cpu=1\n").unwrap();
        let full = contract(&[(0, "0.04")])
            .receipt(Period::at(0, 3600), &usage)
            .unwrap();
        let summary = ReceiptStatement {
            pools: Vec::new(),
            is_summary: true,
            ..full.clone()
        };
        assert_eq!(statement_contradiction(&summary), None);
        assert!(
            statement_difference(&full, &summary)
                .unwrap()
                .contains("amounts"),
            "the consumer expects the lines"
        );
        assert!(
            statement_contradiction(&ReceiptStatement {
                is_summary: false,
                ..summary.clone()
            })
            .is_some()
        );
        assert!(
            statement_contradiction(&ReceiptStatement {
                pools: full.pools,
                totals: BTreeMap::new(),
                ..summary
            })
            .is_some()
        );
    }

    #[test]
    fn a_changed_amount_or_total_is_a_contradiction() {
        let usage = UsageEntries::parse("u p 0 3600 cpu=1\n").unwrap();
        let receipt = contract(&[(0, "0.04")])
            .receipt(Period::at(0, 3600), &usage)
            .unwrap();
        let mut other = receipt.clone();
        other.totals.insert("EUR".to_owned(), "5".parse().unwrap());
        assert!(statement_contradiction(&other).unwrap().contains("totals"));
        assert!(
            statement_difference(&receipt, &other)
                .unwrap()
                .contains("total")
        );
        let mut other = receipt.clone();
        other.pools[0].resources.get_mut("cpu").unwrap().cost = Some("5".parse().unwrap());
        assert!(statement_contradiction(&other).unwrap().contains("cpu"));
        assert_eq!(statement_difference(&receipt, &receipt.clone()), None);
    }

    #[test]
    fn a_period_is_read_as_it_was_written() {
        let period = Period::at(7200, 3600);
        assert_eq!(period_of(&api_period(period)), Some(period));
        assert_eq!(
            period_of(&UsagePeriod {
                seconds: 61,
                ..api_period(period)
            }),
            None
        );
    }

    proptest! {
        #[test]
        fn sums_equal_entries(pods in prop::collection::vec((0..3000_i64, 1..600_i64, 1..9000_i64), 1..30), boundary in 0..3600_i64) {
            let lines = pods.iter().zip(0..).map(|((from, seconds, millis), n)| {
                format!("u{n} p {from} {} cpu={millis}", from + seconds).replace(&format!("cpu={millis}"), &amount(*millis))
            });
            let usage: UsageEntries = lines.map(|line| line.parse().unwrap()).collect();
            let receipt = contract(&[(0, "0.04"), (boundary, "0.08")]).receipt(Period::at(0, 3600), &usage).unwrap();
            let sum: u128 = receipt.pools.iter().map(|pool| pool.resources["cpu"].amount_seconds.nanos()).sum();
            let expected: i128 = pods.iter().map(|(_, seconds, millis)| i128::from(*seconds) * i128::from(*millis) * 1_000_000).sum();
            prop_assert_eq!(i128::try_from(sum).unwrap(), expected);
            prop_assert_eq!(statement_contradiction(&receipt), None);
        }
    }

    fn amount(millis: i64) -> String {
        format!("cpu={}", liqo_api::Quantity::from_millis(millis))
    }
}
