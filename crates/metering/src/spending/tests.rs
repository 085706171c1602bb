use liqo_api::{ClusterId, PriceList};
use proptest::prelude::*;

use super::*;
use crate::entry::tests::list;

/// 2026-01-31T23:00:00Z.
const LAST_HOUR: Seconds = 1_769_900_400;

fn contract(versions: &[(Seconds, &str, &str)]) -> ReceiptContract {
    let prices = |cpu: &str, currency: &str| {
        let rates = [("cpu", cpu.parse().unwrap())].into_iter().collect();
        BTreeMap::from([(
            "p".to_owned(),
            PriceList {
                currency: currency.to_owned(),
                rates,
            },
        )])
    };
    let versions = versions
        .iter()
        .zip(1..)
        .map(|((from, cpu, currency), version)| ContractVersion {
            version,
            digest: format!("d{version}"),
            from: *from,
            prices: prices(cpu, currency),
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

fn usage(lines: &[String]) -> UsageEntries {
    lines.iter().map(|line| line.parse().unwrap()).collect()
}

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

#[test]
fn days_and_months_begin_at_midnight_in_utc() {
    let text = |span: Range<Seconds>| {
        [span.start, span.end].map(|at| Timestamp::from_second(at).unwrap().to_string())
    };
    assert_eq!(
        text(span_of(BudgetPeriod::Day, LAST_HOUR)),
        ["2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z"]
    );
    assert_eq!(
        text(span_of(BudgetPeriod::Month, LAST_HOUR)),
        ["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]
    );
    assert_eq!(
        text(span_of(BudgetPeriod::Month, LAST_HOUR + 3600)),
        ["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"]
    );
    assert_eq!(
        span_of(BudgetPeriod::Day, LAST_HOUR + 3599),
        span_of(BudgetPeriod::Day, LAST_HOUR)
    );
}

#[test]
fn costs_are_known_by_namespace_and_follow_the_versions_of_the_contract() {
    let period = Period::at(LAST_HOUR, 3600);
    let half = LAST_HOUR + 1800;
    let contract = contract(&[(0, "1", "EUR"), (half, "4", "credits")]);
    let usage = usage(&[
        format!("a p {LAST_HOUR} {} cpu=1 demo", LAST_HOUR + 3600),
        format!("b p {LAST_HOUR} {half} cpu=2 shop"),
        format!("c other {LAST_HOUR} {half} cpu=2 shop"),
        format!("d p ~{LAST_HOUR} ~{half} cpu=1"),
    ]);
    let costs = contract.period_costs(period, &usage, &(0..Seconds::MAX));
    let all: Vec<String> = costs
        .iter()
        .map(|(currency, namespace, cost)| format!("{namespace}={cost} {currency}"))
        .collect();
    assert_eq!(
        all,
        ["=0.5 EUR", "demo=0.5 EUR", "shop=1 EUR", "demo=2 credits"]
    );
    assert_eq!(
        (
            costs.total("EUR"),
            costs.of_namespace("EUR", "demo"),
            costs.of_namespace("EUR", "none")
        ),
        (money("2"), money("0.5"), Money::ZERO)
    );
    let first_quarter = contract.period_costs(period, &usage, &(0..LAST_HOUR + 900));
    assert_eq!(first_quarter.of_namespace("EUR", "shop"), money("0.5"));
    assert_eq!(
        contract.per_hour("p", &list("cpu=3"), half),
        Some(("credits", money("12")))
    );
    assert_eq!(
        (
            contract.per_hour("other", &list("cpu=3"), half),
            contract.per_hour("p", &list("memory=3"), half)
        ),
        (None, None)
    );
}

#[test]
fn what_is_settled_counts_once_whether_its_record_still_exists_or_not() {
    let period = Period::at(LAST_HOUR, 3600);
    let contract = contract(&[(0, "1", "EUR")]);
    let line = format!("a p {LAST_HOUR} {} cpu=1 demo", period.end());
    let settled =
        SettledCosts::default().with_period(&contract, period, &usage(std::slice::from_ref(&line)));
    let read = SettledCosts::from_annotations(Some(&BTreeMap::from([(
        annotations::SPENT.to_owned(),
        settled.annotation_text(),
    )])));
    assert_eq!(read, settled);
    let mut account = ContractAccount::new(contract.clone(), 3600, read);
    account.add_record(period, true, &line);
    let spent = |kind, now| account.spent(kind, now).total("EUR");
    assert_eq!(spent(BudgetPeriod::Day, LAST_HOUR + 3599), money("1"));
    assert_eq!(
        (
            spent(BudgetPeriod::Day, period.end()),
            spent(BudgetPeriod::Month, period.end())
        ),
        (Money::ZERO, Money::ZERO)
    );
    assert_eq!(
        SettledCosts::from_annotations(Some(&BTreeMap::from([(
            annotations::SPENT.to_owned(),
            "broken".to_owned()
        )]))),
        SettledCosts::default()
    );
}

#[test]
fn a_period_over_midnight_counts_for_both_days() {
    let period = Period::at(LAST_HOUR, 2 * 3600);
    assert_eq!(period.end(), LAST_HOUR + 3600, "it begins at 22:00");
    let long = Period::at(LAST_HOUR, 7 * 24 * 3600);
    let contract = contract(&[(0, "1", "EUR")]);
    let line = format!("a p {} {} cpu=1 demo", LAST_HOUR, LAST_HOUR + 3 * 3600);
    let mut account =
        ContractAccount::new(contract.clone(), long.seconds(), SettledCosts::default());
    account.add_record(long, false, &line);
    assert_eq!(
        account.spent(BudgetPeriod::Day, LAST_HOUR).total("EUR"),
        money("1")
    );
    assert_eq!(
        account
            .spent(BudgetPeriod::Month, LAST_HOUR + 3600)
            .total("EUR"),
        money("2")
    );
}

#[test]
fn pods_that_still_run_count_from_the_last_complete_period_on() {
    let contract = contract(&[(0, "1", "EUR")]);
    let (first, from) = (Period::at(LAST_HOUR, 600), LAST_HOUR);
    let mut account = ContractAccount::new(contract, 600, SettledCosts::default());
    account.add_record(
        first,
        true,
        &format!("a p {from} {} cpu=1 demo", first.end()),
    );
    // It was resized in the second period, and the entry until then is stored.
    account.add_record(
        first.next(),
        false,
        &format!("a p {} ~{} cpu=1 demo", first.end(), first.end() + 300),
    );
    let running: Vec<UsageEntry> = [
        format!("a p {from} {} cpu=1 demo", first.end() + 300),
        format!(
            "a p {} {} cpu=3 demo",
            first.end() + 300,
            first.end() + 1200
        ),
    ]
    .iter()
    .map(|line| line.parse().unwrap())
    .collect();
    account.add_running(&running);
    account.add_rate("demo", "p", &list("cpu=3"), LAST_HOUR);
    assert_eq!(
        account.spent(BudgetPeriod::Day, LAST_HOUR).total("EUR"),
        money("1")
    );
    assert_eq!(account.per_hour().total("EUR"), money("3"));
}

#[test]
fn the_namespaces_that_cost_least_lose_their_name_first() {
    let mut costs = CostsByNamespace::default();
    for number in 0..4000 {
        costs.add(
            "EUR",
            &format!("n{number:062}"),
            Money::from_nanos(1_000_000_000 + number),
        );
    }
    let total = costs.total("EUR");
    let bounded = CostsByNamespace::default().bounded_with(&costs);
    let named = i128::try_from(bounded.iter().count()).unwrap() - 1;
    assert!(
        named > 500 && bounded.total("EUR") == total,
        "{named} of 4000"
    );
    let of = |number: i128| bounded.of_namespace("EUR", &format!("n{number:062}"));
    assert_eq!(
        (of(4000 - named), of(3999 - named)),
        (Money::from_nanos(1_000_004_000 - named), Money::ZERO)
    );
}

#[test]
fn the_annotation_has_a_bounded_length_whatever_namespaces_and_currencies_there_are() {
    let mut settled = SettledCosts::default();
    let amount = Money::from_nanos(1_234_567_890_123_456_789_012_345);
    for number in 0..3 * MAX_CURRENCIES {
        let mut more = CostsByNamespace::default();
        for namespace in 0..60 {
            more.add(
                &format!("credits-{number:04}"),
                &format!("{namespace:063}"),
                amount,
            );
        }
        more.add(&format!("credits-{number:04}"), "", amount);
        settled.day = settled.day.clone().bounded_with(&more);
        settled.month = settled.day.clone();
        settled.until = LAST_HOUR;
        settled = settled.taking_over(&format!("{number:036}"), &settled);
    }
    assert!(
        settled.annotation_text().len() < 200 * 1024,
        "{} bytes",
        settled.annotation_text().len()
    );
    let first = settled.month.total("credits-0000");
    assert_eq!(
        first,
        Money::from_nanos(amount.nanos() * 61),
        "a currency that is known stays"
    );
}

#[test]
fn what_a_contract_cost_stays_when_its_copy_goes() {
    let contract = contract(&[(0, "1", "EUR")]);
    let settled_at = |at: Seconds| {
        let period = Period::at(at, 3600);
        SettledCosts::default().with_period(
            &contract,
            period,
            &usage(&[format!("a p {} {} cpu=1 demo", period.start, period.end())]),
        )
    };
    let (yesterday, today) = (settled_at(LAST_HOUR - 24 * 3600), settled_at(LAST_HOUR));
    let spent = |settled: &SettledCosts| {
        let account = ContractAccount::new(contract.clone(), 3600, settled.clone());
        [BudgetPeriod::Day, BudgetPeriod::Month].map(|kind| {
            account
                .spent(kind, LAST_HOUR)
                .of_namespace("EUR", "demo")
                .to_string()
        })
    };
    let heir = SettledCosts::default().taking_over("u", &today);
    assert_eq!(
        (spent(&heir), heir.until),
        (["1".to_owned(), "1".to_owned()], 0),
        "its own periods are still to be settled"
    );
    assert!(
        heir.has_taken_over("u")
            && !heir.has_taken_over("v")
            && heir.taking_over("u", &today) == heir
    );
    let both = heir.taking_over("v", &yesterday);
    assert_eq!(spent(&both), ["1", "2"]);
    let next = today.taking_over("w", &both);
    assert_eq!(spent(&next), ["2", "3"], "the heir goes, too");
    assert!(
        next.has_taken_over("u"),
        "the costs of u are in those of the heir, and are not added again"
    );
    assert_eq!(
        SettledCosts::from_annotations(Some(&BTreeMap::from([(
            annotations::SPENT.to_owned(),
            next.annotation_text()
        )]))),
        next
    );
    assert_eq!(
        SettledCosts::default().taking_over("x", &SettledCosts::default()),
        SettledCosts::default()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Pods end at any time; periods are settled late or early, their records deleted or not, and
    /// the process restarts at any time.
    #[test]
    fn what_was_spent_is_what_all_entries_cost_whatever_was_settled_or_deleted(
        pods in prop::collection::vec((0..20_000_i64, 1..3000_i64, 1..9_i64, 0..3_usize), 1..25),
        settled_periods in 0..30_usize,
        are_deleted in any::<bool>(),
        seconds in prop::sample::select(vec![600_u32, 3600, 7200]),
    ) {
        // From 20:00 until 02:00 of the next month.
        let (start, now) = (LAST_HOUR - 3 * 3600, LAST_HOUR + 3 * 3600);
        let contract = contract(&[(0, "0.07", "EUR"), (start + 5000, "0.11", "EUR")]);
        let mut records: BTreeMap<Period, UsageEntries> = BTreeMap::new();
        for (n, (from, length, cores, namespace)) in pods.iter().enumerate() {
            let (from, until) = (start + from, (start + from + length).min(now));
            let line = format!("u{n} p {from} {until} cpu={cores} {}", ["demo", "shop", "test"][*namespace]);
            for (period, part) in Period::parts(&line.parse().unwrap(), seconds) {
                records.entry(period).or_default().add(part);
            }
        }
        let mut settled = SettledCosts::default();
        for (period, usage) in records.iter().take(settled_periods).filter(|(period, _)| period.end() <= now) {
            // A process that starts again reads what the former one wrote.
            settled = SettledCosts::from_annotations(Some(&BTreeMap::from([(annotations::SPENT.to_owned(), settled.with_period(&contract, *period, usage).annotation_text())])));
        }
        let mut account = ContractAccount::new(contract.clone(), seconds, settled.clone());
        for (period, usage) in &records {
            if !(are_deleted && period.end() <= settled.until) {
                account.add_record(*period, period.end() <= now, &usage.canonical_text());
            }
        }
        for kind in [BudgetPeriod::Day, BudgetPeriod::Month] {
            let (span, mut expected) = (span_of(kind, now), CostsByNamespace::default());
            for (period, usage) in &records {
                expected.add_all(&contract.period_costs(*period, usage, &span));
            }
            prop_assert_eq!(account.spent(kind, now), expected);
        }
    }
}
