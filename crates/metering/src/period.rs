//! The periods of a contract: equal lengths, aligned to 1970 in UTC.

use jiff::Timestamp;

use crate::Seconds;
use crate::entry::{EntryTime, UsageEntry};

/// Default length of a period: an hour.
pub const DEFAULT_PERIOD_SECONDS: u32 = 3600;
/// Minimum length of a period: names of records contain its start in minutes.
pub const MIN_PERIOD_SECONDS: u32 = 60;

/// Time after its end in which a period takes entries of pods that ended before. The consumer waits
/// for the clock tolerance as well.
pub const GRACE: Seconds = 60;

/// Maximum number of periods into which an entry is cut. Nobody keeps a record open for so long.
pub const MAX_PARTS: i64 = 1000;

/// One period. Its length is a whole number of minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period {
    /// Its first second.
    pub start: Seconds,
    /// Its length.
    seconds: u32,
}

impl Period {
    /// The period that contains a time. A length that is no whole number of minutes is rounded up
    /// to one.
    pub fn at(time: Seconds, seconds: u32) -> Self {
        let seconds = seconds
            .clamp(MIN_PERIOD_SECONDS, u32::MAX / 2)
            .next_multiple_of(MIN_PERIOD_SECONDS);
        Self {
            start: time - time.rem_euclid(i64::from(seconds)),
            seconds,
        }
    }

    /// Its length in seconds.
    pub const fn seconds(self) -> u32 {
        self.seconds
    }

    /// The first second after it.
    pub fn end(self) -> Seconds {
        self.start + i64::from(self.seconds)
    }

    /// The period after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            start: self.end(),
            ..self
        }
    }

    /// The period before it.
    #[must_use]
    pub fn previous(self) -> Self {
        Self {
            start: self.start - i64::from(self.seconds),
            ..self
        }
    }

    /// Its start in UTC as `yyyymmddhhmm`, for names of objects.
    pub fn name(self) -> String {
        Timestamp::from_second(self.start)
            .unwrap_or_default()
            .strftime("%Y%m%d%H%M")
            .to_string()
    }

    /// The part of an entry that is in the period. What was estimated stays so.
    pub fn part_of(self, entry: &UsageEntry) -> Option<UsageEntry> {
        let from = EntryTime {
            at: entry.from.at.max(self.start),
            ..entry.from
        };
        let until = EntryTime {
            at: entry.until.at.min(self.end()),
            ..entry.until
        };
        let is_inside = from.at < self.end() && until.at >= self.start;
        is_inside
            .then(|| UsageEntry {
                from,
                until,
                ..entry.clone()
            })?
            .if_valid()
    }

    /// All parts of an entry, each with its period; of an entry over more than [`MAX_PARTS`]
    /// periods, the last ones.
    pub fn parts(entry: &UsageEntry, seconds: u32) -> Vec<(Self, UsageEntry)> {
        let oldest = entry
            .until
            .at
            .saturating_sub(i64::from(seconds).saturating_mul(MAX_PARTS));
        let mut period = Self::at(entry.from.at.max(oldest), seconds);
        let mut parts = Vec::new();
        loop {
            parts.extend(period.part_of(entry).map(|part| (period, part)));
            period = period.next();
            if period.start >= entry.until.at {
                return parts;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::entry::tests::{entries, list};

    #[test]
    fn periods_are_aligned_and_named_by_their_start() {
        let period = Period::at(1_767_225_600 + 3725, 3600);
        assert_eq!(
            (period.name().as_str(), period.seconds()),
            ("202601010100", 3600)
        );
        assert_eq!(period.previous().next(), period);
        assert_eq!(
            Period::at(125, 61),
            Period {
                start: 120,
                seconds: 120
            }
        );
        assert_eq!(
            Period::at(59, 0),
            Period {
                start: 0,
                seconds: 60
            }
        );
    }

    #[test]
    fn a_pod_that_runs_over_a_boundary_is_cut_there() {
        let entry = UsageEntry::exact("u", "p", 50, 130, &list("cpu=1")).unwrap();
        let parts: Vec<String> = Period::parts(&entry, 60)
            .iter()
            .map(|(_, part)| part.to_string())
            .collect();
        assert_eq!(
            parts,
            ["u p 50 60 cpu=1", "u p 60 120 cpu=1", "u p 120 130 cpu=1"]
        );
        assert_eq!(Period::at(200, 60).part_of(&entry), None);
    }

    #[test]
    fn an_estimate_stays_one() {
        let entry: UsageEntry = "u p ~50 ~70 cpu=1".parse().unwrap();
        let parts: Vec<String> = Period::parts(&entry, 60)
            .iter()
            .map(|(_, part)| part.to_string())
            .collect();
        assert_eq!(parts, ["u p ~50 ~60 cpu=1", "u p ~60 ~70 cpu=1"]);
    }

    #[test]
    fn an_entry_over_all_time_has_few_parts() {
        let parts = Period::parts(
            &UsageEntry::exact("u", "p", 0, 1_767_225_600, &list("cpu=1")).unwrap(),
            60,
        );
        assert_eq!(
            (parts.len(), parts.last().unwrap().1.until.at),
            (1000, 1_767_225_600)
        );
    }

    proptest! {
        #[test]
        fn the_parts_of_an_entry_have_its_seconds(entry in entries(), seconds in 60..4000_u32) {
            let parts = Period::parts(&entry, seconds);
            prop_assert_eq!(parts.iter().map(|(_, part)| part.seconds()).sum::<i64>(), entry.seconds());
            for (period, part) in &parts {
                prop_assert!(part.from.at >= period.start && part.until.at <= period.end());
                prop_assert_eq!(period.part_of(&entry), Some(part.clone()));
            }
        }
    }
}
