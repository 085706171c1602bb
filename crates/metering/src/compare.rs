//! Compares the entries of both sides for one period, pod by pod.
//!
//! The consumer agrees with an entry of the provider if one of its own entries covers it: the same
//! pool and amounts, a start that is not earlier, an end that is not later. Where both sides know a
//! time exactly, it may differ by the tolerance of the policy, 0 by default. Where the consumer
//! only estimated it, it may differ by the allowed difference of clocks. Then the provider's
//! seconds count, so both sides get the same sum.
//!
//! An entry that only the consumer has is no dispute: the provider does not charge it.

use std::{collections::BTreeSet, ops::Range};

use liqo_api::{Dispute, DisputedPod, MAX_DISPUTED_PODS};

use crate::Seconds;
use crate::entry::{EntryTime, UsageEntry};
use crate::observation::CLOCKS_OF_A_CLUSTER;
use crate::period::MIN_PERIOD_SECONDS;
use crate::usage_entries::UsageEntries;

/// Default of how many seconds the clocks of both sides may differ.
pub const CLOCK_TOLERANCE_SECONDS: Seconds = 300;

/// Allowed differences between both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// Seconds between times that both sides know exactly.
    pub exact: Seconds,
    /// Seconds between the clocks of both sides.
    pub clocks: Seconds,
}

impl Default for Tolerance {
    fn default() -> Self {
        Self {
            exact: 0,
            clocks: CLOCK_TOLERANCE_SECONDS,
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The entries with which the consumer agrees, with the provider's times.
    pub agreed: UsageEntries,
    /// The pods with which it does not, sorted by UID.
    pub differences: Vec<PodDifference>,
}

/// A pod that both sides count differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDifference {
    /// UID of the local pod.
    pub uid: String,
    /// Seconds that the provider counts.
    pub provider: Seconds,
    /// Seconds that the consumer counts.
    pub consumer: Seconds,
    /// The difference, in a sentence.
    pub message: String,
}

/// Compares what the provider counts with what the consumer counts.
pub fn compare_usage(
    provider: &UsageEntries,
    consumer: &UsageEntries,
    tolerance: Tolerance,
) -> Comparison {
    let mut comparison = Comparison::default();
    for uid in provider.pods() {
        let theirs: Vec<&UsageEntry> = provider.of_pod(uid).collect();
        let ours: Vec<&UsageEntry> = consumer.of_pod(uid).collect();
        match entries_difference(&theirs, &ours, tolerance) {
            None => comparison.agreed.extend(theirs.into_iter().cloned()),
            Some(message) => comparison.differences.push(PodDifference {
                uid: uid.to_owned(),
                provider: theirs.iter().map(|entry| entry.seconds()).sum(),
                consumer: ours.iter().map(|entry| entry.seconds()).sum(),
                message,
            }),
        }
    }
    comparison
}

impl Comparison {
    /// The list of pods that differ, as a receipt's status holds it. `None` if there are none.
    pub fn dispute(&self) -> Option<Dispute> {
        let pods: Vec<DisputedPod> = self
            .differences
            .iter()
            .take(MAX_DISPUTED_PODS)
            .map(|difference| DisputedPod {
                uid: difference.uid.clone(),
                provider_seconds: difference.provider,
                consumer_seconds: difference.consumer,
                message: difference.message.clone(),
            })
            .collect();
        let number = u64::try_from(self.differences.len()).unwrap_or(u64::MAX);
        (number > 0).then_some(Dispute { number, pods })
    }
}

/// Describes a difference between the entries of one pod.
fn entries_difference(
    theirs: &[&UsageEntry],
    ours: &[&UsageEntry],
    tolerance: Tolerance,
) -> Option<String> {
    if ours.is_empty() {
        return Some("the consumer knows no such pod in this period".to_owned());
    }
    if theirs
        .iter()
        .zip(theirs.iter().skip(1))
        .any(|(one, next)| one.until.at > next.from.at)
    {
        return Some("the provider counts some seconds twice".to_owned());
    }
    if theirs
        .iter()
        .any(|entry| entry.from.is_estimate || entry.until.is_estimate)
    {
        return Some("the provider has only an estimate".to_owned());
    }
    theirs
        .iter()
        .find_map(|entry| uncovered_entry(entry, ours, tolerance))
        .or_else(|| longer_than_estimated(theirs, ours, tolerance))
}

/// Returns a message if the pod ran longer than we saw, and all of our entries are estimates.
/// Clocks that differ move both ends of a pod. Only where the boundary of a period cuts one of
/// them, the other one moves alone.
fn longer_than_estimated(
    theirs: &[&UsageEntry],
    ours: &[&UsageEntry],
    tolerance: Tolerance,
) -> Option<String> {
    if !ours
        .iter()
        .all(|own| own.from.is_estimate && own.until.is_estimate)
    {
        return None;
    }
    let (charged, own) = (whole_span(theirs)?, whole_span(ours)?);
    let (provider, consumer) = (charged.end - charged.start, own.end - own.start);
    let is_longer = provider
        > consumer
            .saturating_add(tolerance.exact)
            .saturating_add(CLOCKS_OF_A_CLUSTER);
    let may_be_cut = is_at_cut(own.start) || is_at_cut(own.end);
    (is_longer && !may_be_cut).then(|| {
        format!("the provider charges it for {provider} seconds, the consumer for {consumer}")
    })
}

/// The time from the first begin to the last end.
fn whole_span(entries: &[&UsageEntry]) -> Option<Range<Seconds>> {
    let first = entries.iter().map(|entry| entry.from.at).min()?;
    Some(first..entries.iter().map(|entry| entry.until.at).max()?)
}

/// Whether a period may begin here, so that an entry was cut. By the provider's clock it may not be
/// cut at all.
fn is_at_cut(time: Seconds) -> bool {
    time % Seconds::from(MIN_PERIOD_SECONDS) == 0
}

/// Returns a message if none of our entries covers this one.
fn uncovered_entry(
    entry: &UsageEntry,
    ours: &[&UsageEntry],
    tolerance: Tolerance,
) -> Option<String> {
    let pools: Vec<&&UsageEntry> = ours.iter().filter(|own| own.pool == entry.pool).collect();
    if pools.is_empty() {
        return Some(format!(
            "the provider charges pool {:.63}, and the pod ran in another one",
            entry.pool
        ));
    }
    let same: Vec<&&UsageEntry> = pools
        .into_iter()
        .filter(|own| is_charged(own, entry))
        .collect();
    if same.is_empty() {
        let names: BTreeSet<&str> = entry
            .amounts
            .names()
            .filter(|name| {
                ours.iter()
                    .all(|own| entry.amounts.get(name) != own.amounts.get(name))
            })
            .collect();
        let names = names.into_iter().take(3).collect::<Vec<_>>().join(", ");
        return Some(format!("the provider charges other amounts: {names:.120}"));
    }
    let (begun, later): (Vec<&&UsageEntry>, Vec<&&UsageEntry>) = same
        .into_iter()
        .partition(|own| covers_begin(own, entry, tolerance));
    if begun.iter().any(|own| covers_end(own, entry, tolerance)) {
        return None;
    }
    if begun.is_empty() {
        let first = later
            .iter()
            .map(|own| own.from.at)
            .min()
            .unwrap_or_default();
        return Some(format!(
            "the provider charges it from second {} on, the consumer from {first} on",
            entry.from.at
        ));
    }
    let last = begun
        .iter()
        .map(|own| own.until.at)
        .max()
        .unwrap_or_default();
    Some(format!(
        "the provider charges it until second {}, the consumer until {last}",
        entry.until.at
    ))
}

fn covers_begin(own: &UsageEntry, theirs: &UsageEntry, tolerance: Tolerance) -> bool {
    let tolerated = tolerated_seconds(own, own.from, tolerance);
    own.from.at.saturating_sub(tolerated) <= theirs.from.at
}

fn covers_end(own: &UsageEntry, theirs: &UsageEntry, tolerance: Tolerance) -> bool {
    let tolerated = tolerated_seconds(own, own.until, tolerance);
    theirs.until.at <= own.until.at.saturating_add(tolerated)
}

/// An estimated end of a pod whose begin is the provider's is by the provider's clock.
fn tolerated_seconds(own: &UsageEntry, time: EntryTime, tolerance: Tolerance) -> Seconds {
    if time.is_estimate && own.from.is_estimate {
        tolerance.clocks
    } else {
        tolerance.exact
    }
}

/// Whether the amounts of the entry are ours. An entry with an estimate has the most that the pod
/// may be charged.
fn is_charged(own: &UsageEntry, entry: &UsageEntry) -> bool {
    if own.from.is_estimate || own.until.is_estimate {
        entry.amounts.fits_in(&own.amounts).is_ok()
    } else {
        entry.amounts == own.amounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(provider: &str, consumer: &str) -> Vec<String> {
        let read = |text: &str| UsageEntries::parse(&text.replace("; ", "\n")).unwrap();
        let comparison = compare_usage(&read(provider), &read(consumer), Tolerance::default());
        let agreed = comparison.agreed.pods().len();
        assert_eq!(
            agreed + comparison.differences.len(),
            read(provider).pods().len()
        );
        comparison
            .differences
            .into_iter()
            .map(|one| {
                format!(
                    "{} {}/{} {}",
                    one.uid, one.provider, one.consumer, one.message
                )
            })
            .collect()
    }

    #[test]
    fn equal_entries_agree_and_so_do_estimates_within_the_clocks() {
        assert!(differences("u p 1 9 cpu=1", "u p 1 9 cpu=1").is_empty());
        assert!(differences("u p 1000 1250 cpu=1", "u p 1000 ~1250 cpu=1").is_empty());
        assert!(
            differences(
                "u p 1000 1250 cpu=1; u p 1250 1300 cpu=2",
                "u p ~1100 ~1400 cpu=2"
            )
            .is_empty()
        );
        assert!(
            differences("u p 1200 1400 cpu=1", "u p ~1200 ~1200 cpu=1").is_empty(),
            "the other end is in the period before"
        );
        assert!(
            differences("u p 1 9 cpu=1", "u p 1 20 cpu=1; v p 1 20 cpu=1").is_empty(),
            "the provider charges less"
        );
    }

    #[test]
    fn what_the_provider_counts_too_much_is_found_by_name() {
        let found = |provider: &str, consumer: &str| {
            let found = differences(provider, consumer);
            assert_eq!(found.len(), 1, "{found:?}");
            found.into_iter().next().unwrap()
        };
        assert_eq!(
            found("u p 1 9 cpu=1; v p 1 9 cpu=1", "v p 1 9 cpu=1"),
            "u 8/0 the consumer knows no such pod in this period"
        );
        assert_eq!(
            found("u p 1 10 cpu=1", "u p 1 9 cpu=1"),
            "u 9/8 the provider charges it until second 10, the consumer until 9"
        );
        assert_eq!(
            found("u p 0 9 cpu=1", "u p 1 9 cpu=1"),
            "u 9/8 the provider charges it from second 0 on, the consumer from 1 on"
        );
        assert_eq!(
            found("u p 1 9 cpu=2", "u p 1 9 cpu=1"),
            "u 8/8 the provider charges other amounts: cpu"
        );
        assert_eq!(
            found("u q 1 9 cpu=1", "u p 1 9 cpu=1"),
            "u 8/8 the provider charges pool q, and the pod ran in another one"
        );
        assert_eq!(
            found("u p 1 9 cpu=1; u p 5 9 cpu=1", "u p 1 9 cpu=1"),
            "u 12/8 the provider counts some seconds twice"
        );
        assert_eq!(
            found("u p 1 ~9 cpu=1", "u p 1 9 cpu=1"),
            "u 8/8 the provider has only an estimate"
        );
        assert!(found("u p 1000 2000 cpu=1", "u p 1000 ~1600 cpu=1").contains("until second 2000"));
        assert_eq!(
            found("u p 730 1410 cpu=1", "u p ~1001 ~1201 cpu=1"),
            "u 680/200 the provider charges it for 680 seconds, the consumer for 200"
        );
    }

    #[test]
    fn a_dispute_names_a_hundred_pods_and_says_how_many_there_are() {
        let provider: UsageEntries = (0..250)
            .map(|n| format!("u{n} p 1 9 cpu=1").parse().unwrap())
            .collect();
        let dispute = compare_usage(&provider, &UsageEntries::default(), Tolerance::default())
            .dispute()
            .unwrap();
        assert_eq!((dispute.number, dispute.pods.len()), (250, 100));
        assert_eq!(
            compare_usage(&provider, &provider, Tolerance::default()).dispute(),
            None
        );
    }
}
