use proptest::prelude::*;
use serde_json::{from_value, json, to_string};

use super::*;
use crate::Quantity;

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

fn rates(text: &str) -> Rates {
    text.split(", ")
        .filter(|rate| !rate.is_empty())
        .map(|rate| rate.parse::<RateArgument>().unwrap())
        .collect()
}

fn list(text: &str) -> ResourceList {
    text.split(", ")
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, amount)| (name, amount.parse().unwrap()))
        .collect()
}

#[test]
fn every_resource_has_a_priced_unit() {
    let units = [
        ("cpu", "core"),
        ("memory", "GiB"),
        ("storage", "GiB"),
        ("ephemeral-storage", "GiB"),
        ("hugepages-2Mi", "GiB"),
        ("pods", "piece"),
        ("nvidia.com/gpu", "piece"),
    ];
    for (name, unit) in units {
        assert_eq!(priced_unit(name).to_string(), unit, "{name}");
    }
}

#[test]
fn an_hour_costs_the_sum_of_the_lines() {
    let prices = rates("cpu=0.04, memory=0.005, nvidia.com/gpu=1.2");
    assert_eq!(
        per_hour(
            &prices,
            &list("cpu=1500m, memory=4Gi, nvidia.com/gpu=2, pods=110")
        ),
        money("2.48")
    );
    assert_eq!(per_hour(&prices, &list("pods=110")), Money::ZERO);
    assert_eq!(per_hour(&Rates::new(), &list("cpu=4")), Money::ZERO);
}

#[test]
fn each_line_is_rounded_once_half_away_from_zero() {
    let second = |rate: &str, amount: &str| {
        let used = AmountSeconds::from_amount(amount.parse().unwrap(), 1);
        cost_of_use(money(rate), PricedUnit::Core, used).to_string()
    };
    assert_eq!(second("0.0000036", "1"), "0.000000001");
    assert_eq!(second("0.0000018", "1"), "0.000000001");
    assert_eq!(second("0.000001799", "1"), "0");
    assert_eq!(second("-0.0000018", "1"), "-0.000000001");
    // Two lines of half a billionth each are two billionths, because each is rounded for itself.
    let (one, other) = (
        AmountSeconds::from_amount("1".parse().unwrap(), 1),
        AmountSeconds::from_amount("1".parse().unwrap(), 1),
    );
    let rate = money("0.0000018");
    assert_eq!(
        cost_of_use(rate, PricedUnit::Core, one) + cost_of_use(rate, PricedUnit::Core, other),
        money("0.000000002")
    );
    assert_eq!(
        cost_of_use(rate, PricedUnit::Core, one + other),
        money("0.000000001")
    );
}

#[test]
fn a_pebibyte_for_ten_years_at_the_highest_rate_does_not_overflow() {
    let ten_years = 10 * 366 * 24 * 3600;
    let used = AmountSeconds::from_amount("1Pi".parse().unwrap(), ten_years);
    assert!(used.nanos() < AmountSeconds::MAX_NANOS / 250_000);
    assert_eq!(
        cost_of_use(money("1"), PricedUnit::GiB, used),
        money(&format!("{}", (1_u64 << 20) * 10 * 366 * 24))
    );
    let most = money("999999999999999999.999999999");
    assert_eq!(
        cost_of_use(most, PricedUnit::GiB, used),
        most,
        "it saturates"
    );
}

#[test]
fn prices_of_others_are_checked() {
    let many: Rates = (0..=MAX_RATES)
        .map(|number| (format!("example.com/r{number}"), Money::ZERO))
        .collect();
    let long: Rates = [("x".repeat(MAX_RESOURCE_NAME_LEN + 1), Money::ZERO)]
        .into_iter()
        .collect();
    let negative: Rates = [("cpu", money("-1"))].into_iter().collect();
    assert_eq!(rates("cpu=0.04").check_prices("EUR"), Ok(()));
    assert_eq!(
        rates("cpu=0.04").check_prices(""),
        Err(PricesError::Currency)
    );
    assert_eq!(many.check_prices("EUR"), Err(PricesError::TooMany(65)));
    assert_eq!(long.check_prices("EUR"), Err(PricesError::LongName));
    assert_eq!(
        negative.check_prices("EUR").unwrap_err().to_string(),
        "the price of cpu is negative: -1"
    );
}

#[test]
fn rates_are_a_plain_map_in_json() {
    let read: Rates = from_value(json!({ "memory": "0.0050", "cpu": 1 })).unwrap();
    assert_eq!(to_string(&read).unwrap(), r#"{"cpu":"1","memory":"0.005"}"#);
    assert_eq!(read.to_string(), "cpu=1, memory=0.005");
    assert_eq!(Rates::new().to_string(), "nothing");
    assert!(from_value::<Rates>(json!({ "cpu": 0.04 })).is_err());
    let schema = SchemaGenerator::default().subschema_for::<Rates>();
    assert_eq!(schema.get("maxProperties"), Some(&64.into()));
}

#[test]
fn rates_of_a_pool_replace_those_of_the_same_resources() {
    assert_eq!(
        rates("cpu=1, memory=2").replaced_by(&rates("cpu=3, pods=4")),
        rates("cpu=3, memory=2, pods=4")
    );
    assert_eq!(
        rates("cpu=0.04").times_ten_thousandths(15_000),
        rates("cpu=0.06")
    );
}

#[test]
fn invalid_rates_are_refused_with_the_reason() {
    use RateArgumentError as E;
    type Expected = fn(&E) -> bool;
    let refused: [(&str, Expected); 5] = [
        ("cpu", |e| matches!(e, E::Form(_))),
        ("gpu=1", |e| matches!(e, E::Name(_))),
        ("cpu=", |e| matches!(e, E::Rate { .. })),
        ("cpu=1e3", |e| matches!(e, E::Rate { .. })),
        ("cpu=-0.04", |e| matches!(e, E::Negative { .. })),
    ];
    for (text, expected) in refused {
        let error = text.parse::<RateArgument>().unwrap_err();
        assert!(expected(&error), "{text:?}: {error:?}");
    }
}

/// The exact product in base 2^32, the lowest digit first.
fn product(one: u128, other: u128) -> Vec<u64> {
    let digits = |number: u128| {
        (0..4).map(move |at| u64::try_from(number >> (32 * at) & 0xffff_ffff).unwrap())
    };
    let mut sum = vec![0_u64; 9];
    for (low, a) in digits(one).enumerate() {
        let mut carry = 0_u64;
        for (high, b) in digits(other).enumerate() {
            let next = sum[low + high] + a * b + carry;
            (sum[low + high], carry) = (next & 0xffff_ffff, next >> 32);
        }
        sum[low + 4] += carry;
    }
    sum
}

fn doubled(number: &[u64]) -> Vec<u64> {
    let mut carry = 0;
    let digit = |digit: &u64| {
        let next = digit * 2 + carry;
        carry = next >> 32;
        next & 0xffff_ffff
    };
    number.iter().map(digit).collect()
}

fn compare(one: &[u64], other: &[u64]) -> std::cmp::Ordering {
    one.iter().rev().cmp(other.iter().rev())
}

proptest! {
    /// `result` is the rounded fraction exactly if `(2 result - 1) d <= 2 v t < (2 result + 1) d`.
    #[test]
    fn the_fraction_is_exact_and_rounded_once(
        value in prop_oneof![0..1_000_000_u128, 0..10_u128.pow(33)],
        times in prop_oneof![0..1_000_u128, 0..10_u128.pow(12)],
        divisor in prop_oneof![1..100_u128, Just(3600 * NANOS), Just(3600 * (NANOS << 30))],
    ) {
        let result = rounded_fraction(value, times, divisor);
        prop_assume!(result < u128::MAX / 4);
        let twice = doubled(&product(value, times));
        prop_assert!(compare(&twice, &product(2 * result + 1, divisor)).is_lt());
        if result > 0 {
            prop_assert!(compare(&twice, &product(2 * result - 1, divisor)).is_ge());
        }
    }

    /// Parts that are rounded for themselves differ from the whole by less than a billionth for
    /// each part.
    #[test]
    fn costs_add_up_within_the_rounding(
        rate in 0..10_i128.pow(12),
        parts in proptest::collection::vec((0..10_i64.pow(9), 0..100_000_u64), 1..20),
        unit in prop_oneof![Just(PricedUnit::Core), Just(PricedUnit::GiB)],
    ) {
        let rate = Money::from_nanos(rate);
        let used: Vec<AmountSeconds> = parts.iter().map(|(millis, seconds)| AmountSeconds::from_amount(Quantity::from_millis(*millis), *seconds)).collect();
        let whole = cost_of_use(rate, unit, used.iter().copied().sum());
        let lines: Money = used.iter().map(|used| cost_of_use(rate, unit, *used)).sum();
        let difference = (whole - lines).nanos().abs();
        prop_assert!(2 * difference <= i128::try_from(parts.len()).unwrap() + 1, "{whole} {lines}");
    }

    #[test]
    fn more_never_costs_less(rate in 0..10_i128.pow(20), more in 0..10_i128.pow(6), used in 0..10_u128.pow(34), longer in 0..10_u128.pow(20)) {
        let (low, high) = (Money::from_nanos(rate), Money::from_nanos(rate + more));
        let (short, long) = (AmountSeconds::from_nanos(used), AmountSeconds::from_nanos(used + longer));
        for unit in [PricedUnit::Core, PricedUnit::GiB, PricedUnit::Piece] {
            prop_assert!(cost_of_use(low, unit, short) <= cost_of_use(high, unit, short));
            prop_assert!(cost_of_use(low, unit, short) <= cost_of_use(low, unit, long));
            prop_assert_eq!(cost_of_use(-high, unit, long), -cost_of_use(high, unit, long));
        }
    }
}

#[test]
fn money_is_never_computed_with_floats() {
    let sources = [
        include_str!("../rates.rs"),
        include_str!("../money.rs"),
        include_str!("../amount_seconds.rs"),
        include_str!("../decimal.rs"),
    ];
    for source in sources {
        assert!(
            !["f32", "f64"].iter().any(|float| source.contains(float)),
            "a float"
        );
    }
}
