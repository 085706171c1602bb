//! Computes the present prices of a pool: the policy's rates, times a percentage for the time of
//! the week, times one for the part of the pool that is in use.
//!
//! ```text
//!   rates of the policy, the pool, plugin or providers      cpu=0.04
//!     x schedule      entry that matches now                     50 %
//!     x utilization   step that applies now                     150 %
//!   rounded once, to a billionth, half away from zero       cpu=0.03
//! ```
//!
//! A step of utilization ends only 5 points below its beginning, so that prices do not change with
//! every pod. Which step was in force follows from the published prices: nothing is remembered, and
//! a restart changes no price.

use std::time::Duration;

use jiff::Timestamp;
use liqo_api::{
    Day, MINUTES_PER_DAY, PriceList, PricePolicy, Rates, ResourceList, ScheduleEntry,
    UtilizationStep,
};

/// Points by which the utilization must fall below the beginning of a step before the step ends.
const HYSTERESIS: u8 = 5;
/// The percentage if no entry and no step applies.
const FULL: u32 = 100;
/// The first of January 1970 was a Thursday.
const DAYS_BEFORE_EPOCH: i64 = 3;
const MILLIS_PER_MINUTE: i64 = 60_000;

/// The part of a pool that is in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Utilization {
    /// Resources that the pods of all consumers use.
    pub used: ResourceList,
    /// Maximum resources for all consumers together.
    pub total: ResourceList,
}

impl Utilization {
    /// Whether more than `percent` per cent of any resource that has a rate is in use.
    fn exceeds(&self, percent: u8, rates: &Rates) -> bool {
        rates.names().any(|name| {
            let (used, total) = (self.used.get(name).nanos(), self.total.get(name).nanos());
            used.saturating_mul(100) > total.saturating_mul(percent.into())
        })
    }
}

/// The prices of a pool before schedule and utilization: those that are `given`, by the plugin or
/// by the providers of what is lent on, otherwise those of the policy.
pub fn base_prices(
    policy: Option<&PricePolicy>,
    given: Option<&PriceList>,
    pool: &str,
) -> Option<PriceList> {
    if let Some(given) = given {
        return Some(given.clone());
    }
    let policy = policy?;
    let rates = match policy.pools.get(pool) {
        Some(of_pool) => policy.rates.replaced_by(of_pool),
        None => policy.rates.clone(),
    };
    Some(PriceList {
        currency: policy.currency.clone(),
        rates,
    })
}

/// The prices that apply at `at`. `published` are those of the existing offers of the pool.
pub fn prices_at(
    policy: &PricePolicy,
    base: &PriceList,
    at: Timestamp,
    utilization: &Utilization,
    published: &[&PriceList],
) -> PriceList {
    let scheduled = scheduled_percentage(policy, at);
    let reached = policy
        .utilization
        .iter()
        .filter(|step| utilization.exceeds(step.above, &base.rates));
    // The offers may differ because some are not written yet.
    let former = published
        .iter()
        .flat_map(|one| former_steps(policy, base, one, scheduled));
    let lasting = former
        .filter(|step| utilization.exceeds(step.above.saturating_sub(HYSTERESIS), &base.rates));
    scaled_prices(
        base,
        scheduled,
        reached.chain(lasting).max_by_key(|step| step.above),
    )
}

fn scaled_prices(base: &PriceList, scheduled: u32, step: Option<&UtilizationStep>) -> PriceList {
    let of_ten_thousand = scheduled.saturating_mul(step.map_or(FULL, |step| step.percentage));
    PriceList {
        currency: base.currency.clone(),
        rates: base.rates.times_ten_thousandths(of_ten_thousand),
    }
}

/// The steps with which these prices may have been computed: those with the same percentage. None
/// if the rates have changed since.
fn former_steps<'a>(
    policy: &'a PricePolicy,
    base: &PriceList,
    published: &PriceList,
    scheduled: u32,
) -> Vec<&'a UtilizationStep> {
    // The schedule may have changed the percentage since.
    let others = policy
        .schedule
        .iter()
        .map(|entry| entry.percentage)
        .chain([FULL]);
    for percentage in [scheduled].into_iter().chain(others) {
        let fitting: Vec<&UtilizationStep> = policy
            .utilization
            .iter()
            .filter(|step| scaled_prices(base, percentage, Some(step)) == *published)
            .collect();
        if !fitting.is_empty() || scaled_prices(base, percentage, None) == *published {
            return fitting;
        }
    }
    Vec::new()
}

/// The percentage of the schedule.
fn scheduled_percentage(policy: &PricePolicy, at: Timestamp) -> u32 {
    let minutes = local_millis(policy, at).div_euclid(MILLIS_PER_MINUTE);
    let (day, minute) = (
        minutes.div_euclid(MINUTES_PER_DAY.into()),
        minutes.rem_euclid(MINUTES_PER_DAY.into()),
    );
    policy
        .schedule
        .iter()
        .find(|entry| is_in_force(entry, day, minute))
        .map_or(FULL, |entry| entry.percentage)
}

/// Whether an entry counts in this minute of the day. One that ends before it begins ends on the
/// next day.
fn is_in_force(entry: &ScheduleEntry, day: i64, minute: i64) -> bool {
    let (from, to) = (
        i64::from(entry.from.minutes()),
        i64::from(entry.to.minutes()),
    );
    if from < to {
        begins_on(entry, day) && (from..to).contains(&minute)
    } else {
        (begins_on(entry, day) && minute >= from) || (begins_on(entry, day - 1) && minute < to)
    }
}

fn begins_on(entry: &ScheduleEntry, day: i64) -> bool {
    entry.days.is_empty() || entry.days.contains(&day_of_week(day))
}

/// The time until the next entry of the schedule begins or ends.
pub fn next_change(policy: &PricePolicy, at: Timestamp) -> Option<Duration> {
    let millis_per_day = i64::from(MINUTES_PER_DAY) * MILLIS_PER_MINUTE;
    let passed = local_millis(policy, at).rem_euclid(millis_per_day);
    let times = policy
        .schedule
        .iter()
        .flat_map(|entry| [entry.from, entry.to]);
    let left = times.map(|time| i64::from(time.minutes()) * MILLIS_PER_MINUTE - passed);
    let next = left
        .map(|left| {
            if left > 0 {
                left
            } else {
                left + millis_per_day
            }
        })
        .min()?;
    u64::try_from(next).ok().map(Duration::from_millis)
}

/// Milliseconds since the epoch by the clock of the schedule.
fn local_millis(policy: &PricePolicy, at: Timestamp) -> i64 {
    at.as_millisecond() + i64::from(policy.utc_offset_minutes) * MILLIS_PER_MINUTE
}

fn day_of_week(day: i64) -> Day {
    let index = usize::try_from((day + DAYS_BEFORE_EPOCH).rem_euclid(7)).unwrap_or_default();
    Day::ALL[index]
}

#[cfg(test)]
mod tests;
