use proptest::{collection::vec, prelude::*};
use serde_json::{Value, from_value, json};

use super::*;
use crate::tests::list;

#[expect(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
fn policy(value: Value) -> PricePolicy {
    let mut all = json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.01" } });
    all.as_object_mut()
        .unwrap()
        .extend(value.as_object().unwrap().clone());
    from_value(all).unwrap()
}

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

/// A Wednesday.
fn noon() -> Timestamp {
    at("2026-07-01T12:00:00Z")
}

fn in_use(percent: i64) -> Utilization {
    Utilization {
        used: list(&format!("cpu={}m", percent * 10)),
        total: list("cpu=1, memory=1Gi"),
    }
}

fn cpu(list: &PriceList) -> String {
    list.rates.get("cpu").unwrap().to_string()
}

fn price(
    policy: &PricePolicy,
    at: Timestamp,
    percent: i64,
    published: Option<&PriceList>,
) -> PriceList {
    let published: Vec<&PriceList> = published.into_iter().collect();
    prices_at(
        policy,
        &base_prices(Some(policy), None, "default").unwrap(),
        at,
        &in_use(percent),
        &published,
    )
}

#[test]
fn without_schedule_and_steps_the_rates_apply() {
    let plain = policy(json!({}));
    assert_eq!(
        price(&plain, noon(), 100, None).to_string(),
        "cpu=0.04, memory=0.01 EUR"
    );
    assert_eq!(next_change(&plain, noon()), None);
}

#[test]
fn rates_of_the_pool_replace_those_of_the_policy_and_the_plugin_replaces_both() {
    let pools = policy(json!({ "pools": { "gpu": { "cpu": "0.08", "nvidia.com/gpu": "1.2" } } }));
    assert_eq!(
        base_prices(Some(&pools), None, "gpu").unwrap().to_string(),
        "cpu=0.08, memory=0.01, nvidia.com/gpu=1.2 EUR"
    );
    assert_eq!(
        base_prices(Some(&pools), None, "other")
            .unwrap()
            .to_string(),
        "cpu=0.04, memory=0.01 EUR"
    );
    let of_plugin: PriceList =
        from_value(json!({ "currency": "credits", "rates": { "pods": "1" } })).unwrap();
    assert_eq!(
        base_prices(Some(&pools), Some(&of_plugin), "gpu").unwrap(),
        of_plugin
    );
    assert_eq!(
        base_prices(None, Some(&of_plugin), "gpu").unwrap(),
        of_plugin
    );
    assert_eq!(base_prices(None, None, "gpu"), None);
}

#[test]
fn the_first_entry_that_matches_applies() {
    let schedule = policy(json!({ "schedule": [
        { "days": ["Sat", "Sun"], "from": "00:00", "to": "00:00", "percentage": 50 },
        { "from": "22:00", "to": "06:00", "percentage": 75 },
        { "days": ["Mon"], "from": "08:00", "to": "09:00", "percentage": 200 },
    ] }));
    for (time, percentage) in [
        ("2026-06-29T08:00:00Z", 200),
        ("2026-06-29T08:59:59Z", 200),
        ("2026-06-29T09:00:00Z", 100),
        ("2026-06-30T08:30:00Z", 100),
        ("2026-07-01T21:59:59Z", 100),
        ("2026-07-01T22:00:00Z", 75),
        ("2026-07-02T05:59:59.999Z", 75),
        ("2026-07-02T06:00:00Z", 100),
        // A Saturday, from midnight to midnight.
        ("2026-07-03T23:59:00Z", 75),
        ("2026-07-04T00:00:00Z", 50),
        ("2026-07-05T23:59:59Z", 50),
        ("2026-07-06T00:00:00Z", 75),
        ("1969-12-27T12:00:00Z", 50),
    ] {
        assert_eq!(
            scheduled_percentage(&schedule, at(time)),
            percentage,
            "{time}"
        );
    }
}

#[test]
fn an_entry_over_midnight_belongs_to_the_day_on_which_it_begins() {
    let friday = policy(
        json!({ "schedule": [{ "days": ["Fri"], "from": "20:00", "to": "04:00", "percentage": 10 }] }),
    );
    for (time, percentage) in [
        ("2026-07-03T03:00:00Z", 100),
        ("2026-07-03T20:00:00Z", 10),
        ("2026-07-04T03:59:00Z", 10),
        ("2026-07-04T04:00:00Z", 100),
        ("2026-07-04T20:00:00Z", 100),
    ] {
        assert_eq!(
            scheduled_percentage(&friday, at(time)),
            percentage,
            "{time}"
        );
    }
}

#[test]
fn the_clock_of_the_schedule_may_differ_from_utc() {
    let entry = json!([{ "days": ["Thu"], "from": "00:00", "to": "01:00", "percentage": 10 }]);
    let rome = policy(json!({ "utcOffsetMinutes": 60, "schedule": entry }));
    assert_eq!(scheduled_percentage(&rome, at("2026-07-01T23:30:00Z")), 10);
    assert_eq!(scheduled_percentage(&rome, at("2026-07-02T00:00:00Z")), 100);
    assert_eq!(
        next_change(&rome, at("2026-07-01T22:59:59.5Z")),
        Some(Duration::from_millis(500))
    );
    assert_eq!(
        next_change(&rome, at("2026-07-01T23:00:00Z")),
        Some(Duration::from_hours(1))
    );
    assert_eq!(
        next_change(&rome, at("2026-07-02T00:00:00Z")),
        Some(Duration::from_hours(23))
    );
}

#[test]
fn the_highest_step_below_the_utilization_applies() {
    let steps = policy(json!({ "utilization": [
        { "above": 80, "percentage": 200 }, { "above": 50, "percentage": 150 }, { "above": 0, "percentage": 110 }] }));
    for (percent, expected) in [
        (0, "0.04"),
        (1, "0.044"),
        (50, "0.044"),
        (51, "0.06"),
        (80, "0.06"),
        (81, "0.08"),
        (100, "0.08"),
    ] {
        assert_eq!(
            cpu(&price(&steps, noon(), percent, None)),
            expected,
            "{percent}%"
        );
    }
}

#[test]
fn only_resources_with_a_rate_count_and_the_most_used_one_decides() {
    let rates = policy(json!({})).rates;
    let used = |used: &str, total: &str| {
        Utilization {
            used: list(used),
            total: list(total),
        }
        .exceeds(50, &rates)
    };
    assert!(!used("cpu=1, pods=10", "cpu=10, pods=10"));
    assert!(used("cpu=1, memory=6Gi", "cpu=10, memory=10Gi"));
    assert!(used("cpu=1", ""), "a pool that has nothing left is full");
    assert!(!used("", ""));
    assert!(used("memory=8Ei", "memory=9Ei"));
}

#[test]
fn a_step_ends_only_five_points_below_its_beginning() {
    let steps = policy(
        json!({ "utilization": [{ "above": 80, "percentage": 200 }, { "above": 3, "percentage": 150 }] }),
    );
    let high = price(&steps, noon(), 81, None);
    for (percent, expected) in [(80, "0.08"), (76, "0.08"), (75, "0.06")] {
        assert_eq!(
            cpu(&price(&steps, noon(), percent, Some(&high))),
            expected,
            "{percent}%"
        );
    }
    let low = price(&steps, noon(), 4, None);
    assert_eq!(cpu(&price(&steps, noon(), 80, Some(&low))), "0.06");
    assert_eq!(
        (
            cpu(&price(&steps, noon(), 1, Some(&low))),
            cpu(&price(&steps, noon(), 0, Some(&low)))
        ),
        ("0.06".into(), "0.04".into())
    );
    // Other rates: the former step is unknown, and the utilization alone decides.
    let dearer = policy(json!({ "rates": { "cpu": "1" }, "utilization": steps.utilization }));
    assert_eq!(cpu(&price(&dearer, noon(), 78, Some(&high))), "1.5");
}

#[test]
fn the_step_lasts_when_the_schedule_changes_the_percentage() {
    let both = policy(json!({
        "schedule": [{ "from": "12:00", "to": "13:00", "percentage": 50 }], "utilization": [{ "above": 80, "percentage": 300 }] }));
    let before = price(&both, at("2026-07-01T11:59:59Z"), 90, None);
    assert_eq!(cpu(&before), "0.12");
    assert_eq!(cpu(&price(&both, noon(), 78, Some(&before))), "0.06");
}

#[test]
fn both_percentages_are_rounded_once() {
    let fine = policy(json!({ "rates": { "cpu": "0.000000001" },
        "schedule": [{ "from": "00:00", "to": "00:00", "percentage": 50 }], "utilization": [{ "above": 0, "percentage": 90 }] }));
    // 0.45 billionths, not 0.9 of one that was rounded up.
    assert_eq!(cpu(&price(&fine, noon(), 50, None)), "0");
}

fn any_policy() -> impl Strategy<Value = PricePolicy> {
    let time =
        (0..24_u16, 0..60_u16).prop_map(|(hours, minutes)| format!("{hours:02}:{minutes:02}"));
    let entry = (vec(0..7_usize, 0..3), time.clone(), time, 0..400_u32).prop_map(
        |(days, from, to, percentage)| {
            let days: Vec<Day> = days.into_iter().map(|day| Day::ALL[day]).collect();
            json!({ "days": days, "from": from, "to": to, "percentage": percentage })
        },
    );
    let step = (0..100_u8, 0..400_u32)
        .prop_map(|(above, percentage)| json!({ "above": above, "percentage": percentage }));
    (vec(entry, 0..4), vec(step, 0..4), -720..=840_i16).prop_map(|(schedule, utilization, offset)| {
        policy(json!({ "schedule": schedule, "utilization": utilization, "utcOffsetMinutes": offset }))
    })
}

proptest! {
    /// So it is enough to look again then.
    #[test]
    fn nothing_changes_before_the_next_change(policy in any_policy(), second in 0..10_000_000_i64, part in 0..1000_u64) {
        let start = Timestamp::from_second(second).unwrap();
        let next = next_change(&policy, start).unwrap_or(Duration::from_hours(24));
        prop_assert!(!next.is_zero() && next <= Duration::from_hours(24));
        let within = start + next.saturating_sub(Duration::from_millis(1)) * u32::try_from(part).unwrap() / 1000;
        prop_assert_eq!(scheduled_percentage(&policy, start), scheduled_percentage(&policy, within));
    }

    /// Whatever came before: the price is that of the utilization alone, or that of a step which
    /// began at most 5 points higher.
    #[test]
    fn the_price_is_that_of_the_utilization_within_five_points(policy in any_policy(), history in vec(0..=100_i64, 1..20)) {
        let mut published: Option<PriceList> = None;
        for percent in history {
            let next = price(&policy, noon(), percent, published.as_ref());
            let alone: Vec<PriceList> = (percent..=percent + i64::from(HYSTERESIS)).map(|percent| price(&policy, noon(), percent, None)).collect();
            prop_assert!(alone.contains(&next), "{percent}%: {next}");
            // Nothing is written again while nothing changes, also after a restart.
            prop_assert_eq!(&price(&policy, noon(), percent, Some(&next)), &next);
            published = Some(next);
        }
    }

    #[test]
    fn utilization_within_the_hysteresis_changes_no_price(policy in any_policy(), percent in 0..=95_i64, down in 0..5_i64) {
        let before = price(&policy, noon(), percent, None);
        let lower = price(&policy, noon(), (percent - down).max(0), Some(&before));
        // A step that begins below 5 ends when nothing is in use.
        prop_assert!(lower == before || percent <= down, "{percent} {down}");
    }
}
