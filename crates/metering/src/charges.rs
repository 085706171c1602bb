//! The provider's charges for one pod, as the status of its shadow pod stores them.
//!
//! ```text
//! charges = charge *("; " charge)      in the order of time; only the last one may be open
//! charge  = from "-" [until] " " amounts
//! ```
//!
//! Example: `1767225600-1767225900 cpu=1,pods=1; 1767225900- cpu=2,pods=1`
//!
//! A charge begins when the API server created the remote pod, and ends when the pod ended or was
//! gone. A resize ends one charge and begins another. A pod that is being deleted is charged until
//! the end of its grace period at most: callers pass that end as the time. A written charge never
//! changes; an open one only gets its end. So another process can continue from here after a
//! restart.

use std::fmt;
use std::str::FromStr;

use liqo_quantity::ResourceList;

use crate::Seconds;
use crate::entry::{
    EntryError, EntryTime, UsageEntry, amounts_text, normalized_amounts, read_amounts,
};

/// Maximum number of charges of one pod, which limits the length of the text. From then on the pod
/// is charged the largest amounts that it had since, and no resize begins another charge.
pub const MAX_CHARGES: usize = 32;
/// Maximum length of the text in bytes.
pub const MAX_CHARGES_LEN: usize = 16 * 1024;

/// The charges of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges(Vec<TimedCharge>);

/// Equal amounts between two times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TimedCharge {
    from: Seconds,
    /// `None` while it is open.
    until: Option<Seconds>,
    amounts: ResourceList,
}

/// A remote pod as the provider sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenPod<'a> {
    /// Time at which the API server created it.
    pub created: Seconds,
    /// Time at which it ended, as its own status says, if it has ended.
    pub ended: Option<Seconds>,
    /// Amounts that the ledger charges for it.
    pub amounts: &'a ResourceList,
    /// The end of the last complete period, if its entries say that the pod ran on: they do not
    /// change any more. Otherwise 0.
    pub settled: Seconds,
}

impl Charges {
    /// Whether the pod was never charged.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the pod is charged now.
    pub fn is_open(&self) -> bool {
        self.0.last().is_some_and(|last| last.until.is_none())
    }

    /// Whether these may be the charges of a pod that had `before` earlier: a provider never
    /// changes when it began to charge a pod.
    pub fn continues(&self, before: &Self) -> bool {
        before
            .charged_from()
            .is_none_or(|from| self.charged_from() == Some(from))
    }

    /// Begin of the first charge of the pod.
    pub fn charged_from(&self) -> Option<Seconds> {
        self.0.first().map(|first| first.from)
    }

    /// The charges after the pod was seen at the time `now`.
    #[must_use]
    pub fn after_seen(&self, pod: &SeenPod<'_>, now: Seconds) -> Self {
        let mut charges = self.clone();
        let ended = pod.ended.map(|ended| ended.max(pod.settled).min(now));
        let amounts = normalized_amounts(pod.amounts);
        let Some(last) = charges.0.last_mut() else {
            charges.0.push(TimedCharge {
                from: pod.created,
                until: ended.map(|ended| ended.max(pod.created)),
                amounts,
            });
            return charges;
        };
        match (last.until, ended) {
            (None, Some(ended)) => last.until = Some(ended.max(last.from)),
            (None, None) if last.amounts != amounts => charges.resize_last(amounts, now),
            // It was created again: its predecessor vanished.
            (Some(until), None) => charges.begin_charge(pod.created.max(until), amounts),
            (None, None) | (Some(_), Some(_)) => {}
        }
        charges
    }

    /// The charges after the pod was found gone at the time `now`.
    ///
    /// `unwatched_since`: the pod was there for the last time before a pause in which nobody
    /// watched, and this pause began then. So the pod may have gone at any time since, and is
    /// charged only until then. A pod that was created later did not go in the pause.
    #[must_use]
    pub fn after_gone(&self, now: Seconds, unwatched_since: Option<Seconds>) -> Self {
        let mut charges = self.clone();
        if let Some(last) = charges.0.last_mut().filter(|last| last.until.is_none()) {
            let shown = unwatched_since
                .filter(|since| last.from <= *since)
                .unwrap_or(now);
            last.until = Some(shown.min(now).max(last.from));
        }
        charges
    }

    fn resize_last(&mut self, amounts: ResourceList, now: Seconds) {
        let is_full = self.0.len() >= MAX_CHARGES;
        let Some(last) = self.0.last_mut() else {
            return;
        };
        if is_full {
            last.amounts = normalized_amounts(&last.amounts.max(&amounts));
        } else if now <= last.from {
            last.amounts = amounts;
        } else {
            last.until = Some(now);
            self.0.push(TimedCharge {
                from: now,
                until: None,
                amounts,
            });
        }
    }

    fn begin_charge(&mut self, from: Seconds, amounts: ResourceList) {
        if self.0.len() < MAX_CHARGES {
            self.0.push(TimedCharge {
                from,
                until: None,
                amounts,
            });
        } else if let Some(last) = self.0.last_mut() {
            last.amounts = normalized_amounts(&last.amounts.max(&amounts));
            last.until = None;
        }
    }

    /// The entries of the pod. An open charge counts until `now`.
    pub fn entries(&self, uid: &str, pool: &str, now: Seconds) -> Vec<UsageEntry> {
        self.0
            .iter()
            .filter_map(|charge| {
                let until = charge.until.unwrap_or(now);
                UsageEntry::exact(uid, pool, charge.from, until, &charge.amounts)
            })
            .collect()
    }

    /// The same for the consumer, which saw that the pod is gone: an open charge ends at `end` at
    /// the latest, by the provider's clock. It may have had other amounts after that was seen,
    /// `most` at most.
    pub(crate) fn estimated_entries(
        &self,
        uid: &str,
        pool: &str,
        end: Seconds,
        most: &ResourceList,
    ) -> Vec<UsageEntry> {
        let mut entries = Vec::new();
        for charge in &self.0 {
            let (until, amounts) = match charge.until {
                Some(until) => (EntryTime::exact(until), charge.amounts.clone()),
                None => (
                    EntryTime::estimate(end.max(charge.from)),
                    normalized_amounts(&charge.amounts.max(most)),
                ),
            };
            let entry = UsageEntry {
                uid: uid.to_owned(),
                pool: pool.to_owned(),
                from: EntryTime::exact(charge.from),
                until,
                amounts,
                namespace: String::new(),
            };
            entries.extend(entry.if_valid());
        }
        entries
    }

    /// The times of the first and of the last charge; an open one has no end.
    pub(crate) fn span(&self) -> Option<(Seconds, Option<Seconds>)> {
        Some((self.0.first()?.from, self.0.last()?.until))
    }

    /// The amounts of all charges.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = &ResourceList> {
        self.0.iter().map(|charge| &charge.amounts)
    }
}

impl fmt::Display for Charges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (
            at,
            TimedCharge {
                from,
                until,
                amounts,
            },
        ) in self.0.iter().enumerate()
        {
            let (separator, until) = (
                if at == 0 { "" } else { "; " },
                until.map(|until| until.to_string()).unwrap_or_default(),
            );
            write!(f, "{separator}{from}-{until} {}", amounts_text(amounts))?;
        }
        Ok(())
    }
}

fn parse_exact_time(text: &str) -> Result<Seconds, EntryError> {
    let time: EntryTime = text.parse().map_err(|_| EntryError::Time)?;
    if time.is_estimate {
        Err(EntryError::Time)
    } else {
        Ok(time.at)
    }
}

impl FromStr for Charges {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, EntryError> {
        if text.len() > MAX_CHARGES_LEN {
            return Err(EntryError::TooLong);
        }
        let mut charges = Self::default();
        for part in text.split("; ").filter(|_| !text.is_empty()) {
            let (times, amounts) = part.split_once(' ').ok_or(EntryError::Fields)?;
            let (from, until) = times.split_once('-').ok_or(EntryError::Fields)?;
            let from = parse_exact_time(from)?;
            let until = if until.is_empty() {
                None
            } else {
                Some(parse_exact_time(until)?)
            };
            let follows = charges
                .0
                .last()
                .is_none_or(|last| last.until.is_some_and(|until| until <= from));
            if !follows || until.is_some_and(|until| until < from) || charges.0.len() >= MAX_CHARGES
            {
                return Err(EntryError::Order);
            }
            charges.0.push(TimedCharge {
                from,
                until,
                amounts: read_amounts(amounts)?,
            });
        }
        Ok(charges)
    }
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;
    use crate::entry::tests::list;

    fn pod(created: Seconds, ended: Option<Seconds>, amounts: &ResourceList) -> SeenPod<'_> {
        SeenPod {
            created,
            ended,
            amounts,
            settled: 0,
        }
    }

    fn seen(
        charges: &str,
        created: Seconds,
        ended: Option<Seconds>,
        amounts: &str,
        now: Seconds,
    ) -> String {
        let amounts = list(amounts);
        charges
            .parse::<Charges>()
            .unwrap()
            .after_seen(&pod(created, ended, &amounts), now)
            .to_string()
    }

    #[test]
    fn a_pod_is_charged_from_its_creation_until_its_end() {
        assert_eq!(seen("", 100, None, "cpu=1", 104), "100- cpu=1");
        assert_eq!(seen("100- cpu=1", 100, None, "cpu=1", 200), "100- cpu=1");
        assert_eq!(
            seen("100- cpu=1", 100, Some(180), "cpu=1", 200),
            "100-180 cpu=1"
        );
        assert_eq!(
            seen("100-180 cpu=1", 100, Some(180), "cpu=1", 300),
            "100-180 cpu=1"
        );
        assert_eq!(
            seen("", 100, Some(180), "cpu=1", 300),
            "100-180 cpu=1",
            "it ended before anybody saw it"
        );
        assert_eq!(
            seen("100- cpu=1", 100, Some(900), "cpu=1", 200),
            "100-200 cpu=1",
            "a node's clock is wrong"
        );
        assert_eq!(
            seen("100- cpu=1", 100, Some(50), "cpu=1", 200),
            "100-100 cpu=1"
        );
    }

    #[test]
    fn a_resize_ends_one_charge_and_begins_another() {
        assert_eq!(
            seen("100- cpu=1", 100, None, "cpu=2", 150),
            "100-150 cpu=1; 150- cpu=2"
        );
        assert_eq!(seen("100- cpu=1", 100, None, "cpu=2", 100), "100- cpu=2");
        let entries = "100-150 cpu=1; 150- cpu=2"
            .parse::<Charges>()
            .unwrap()
            .entries("u", "p", 160);
        assert_eq!(
            entries.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["u p 100 150 cpu=1", "u p 150 160 cpu=2"]
        );
    }

    #[test]
    fn a_pod_that_is_created_again_is_not_charged_in_between() {
        let vanished = "100- cpu=1"
            .parse::<Charges>()
            .unwrap()
            .after_gone(150, None)
            .to_string();
        assert_eq!(vanished, "100-150 cpu=1");
        assert_eq!(
            seen(&vanished, 170, None, "cpu=1", 171),
            "100-150 cpu=1; 170- cpu=1"
        );
        assert_eq!(
            seen(&vanished, 140, None, "cpu=1", 171),
            "100-150 cpu=1; 150- cpu=1",
            "never twice for a second"
        );
    }

    #[test]
    fn a_pod_that_went_while_nobody_watched_is_charged_until_it_was_there_for_the_last_time() {
        let gone = |charges: &str, since| {
            charges
                .parse::<Charges>()
                .unwrap()
                .after_gone(950, since)
                .to_string()
        };
        assert_eq!(gone("100- cpu=1", None), "100-950 cpu=1");
        assert_eq!(gone("100- cpu=1", Some(180)), "100-180 cpu=1");
        assert_eq!(
            gone("100- cpu=1", Some(990)),
            "100-950 cpu=1",
            "the clock of the former process is ahead"
        );
        assert_eq!(
            gone("200- cpu=1", Some(180)),
            "200-950 cpu=1",
            "it was created after the pause"
        );
        assert_eq!(gone("100-120 cpu=1", Some(110)), "100-120 cpu=1");
    }

    #[test]
    fn a_pod_that_is_resized_all_the_time_has_a_short_text() {
        let mut charges = Charges::default();
        for second in 0..1000 {
            let amounts = list(&format!("cpu={}", 1 + second % 7));
            charges = charges.after_seen(&pod(0, None, &amounts), second);
        }
        assert_eq!(charges.0.len(), MAX_CHARGES);
        assert!(
            charges.to_string().ends_with("31- cpu=7")
                && charges.to_string().parse::<Charges>().is_ok()
        );
    }

    #[test]
    fn charges_that_begin_at_another_time_than_before_are_of_another_pod() {
        let continues = |now: &str, before: &str| {
            now.parse::<Charges>()
                .unwrap()
                .continues(&before.parse().unwrap())
        };
        assert!(continues("1-5 cpu=1; 5- cpu=2", "1- cpu=1") && continues("1- cpu=1", ""));
        assert!(!continues("9- cpu=1", "1- cpu=1") && !continues("", "1- cpu=1"));
    }

    #[test]
    fn charges_that_overlap_are_refused() {
        for text in [
            "1-5 -; 4-6 -",
            "1- -; 5- -",
            "5-4 -",
            "x",
            "1-2",
            "~1-2 -",
            "-",
            "1-2 -;3-4 -",
        ] {
            assert!(text.parse::<Charges>().is_err(), "{text}");
        }
        assert!("".parse::<Charges>().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn seeing_the_same_twice_changes_nothing(
            created in 0..1000_i64, ended in prop::option::of(0..1000_i64), cpu in 1..5_i64, now in 1000..2000_i64, later in 0..500_i64
        ) {
            let amounts = list(&format!("cpu={cpu}"));
            let once = Charges::default().after_seen(&pod(created, ended, &amounts), now);
            prop_assert_eq!(&once.after_seen(&pod(created, ended, &amounts), now + later), &once);
            let gone = once.after_gone(now, None);
            prop_assert_eq!(&gone.after_gone(now + later, None), &gone);
            prop_assert_eq!(gone.to_string().parse::<Charges>(), Ok(gone));
        }

        #[test]
        fn a_mutated_text_is_refused_or_never_counts_a_second_twice(
            text in mutated_text(Just("100-150 cpu=1; 150-160 cpu=2; 200- cpu=1".to_owned()))
        ) {
            if let Ok(charges) = text.parse::<Charges>() {
                let usage: crate::UsageEntries = charges.entries("u", "p", 10_000_000).into_iter().collect();
                prop_assert_eq!(usage.overlap_seconds(), 0);
            }
        }
    }
}
