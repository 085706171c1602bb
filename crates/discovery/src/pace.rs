//! Limits how often a list is written: a change is written at once, but frequent changes only once
//! in a while. So somebody who keeps changing the list causes few writes, and a rare change is
//! visible soon.

use std::time::{Duration, Instant};

/// Between two writes.
const MIN_DELAY: Duration = Duration::from_secs(2);
/// Between two writes while the list changes all the time.
const INTERVAL: Duration = Duration::from_mins(1);
/// Number of writes that need not wait for the interval after a quiet time.
const MAX_BURST: u32 = 10;

/// The pace of writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct WritePace {
    last: Option<LastWrite>,
}

/// The last write.
#[derive(Clone, Copy, Debug)]
struct LastWrite {
    at: Instant,
    /// All writes so far would take until then, one in each interval.
    paid_until: Instant,
}

impl WritePace {
    /// Earliest time of the next write. `None`: at once.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let last = self.last?;
        let after_burst = last
            .paid_until
            .checked_sub(INTERVAL * (MAX_BURST - 1))
            .unwrap_or(last.at);
        Some(after_burst.max(last.at + MIN_DELAY)).filter(|next| *next > now)
    }

    /// Records a write.
    pub fn record_write(&mut self, now: Instant) {
        let paid_until = self.last.map_or(now, |last| last.paid_until.max(now)) + INTERVAL;
        self.last = Some(LastWrite {
            at: now,
            paid_until,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_is_written_at_once_and_many_changes_rarely() {
        let (mut pace, start) = (WritePace::default(), Instant::now());
        let (mut now, mut writes) = (start, 0);
        while now < start + Duration::from_mins(10) {
            if pace.next(now).is_none() {
                pace.record_write(now);
                writes += 1;
            }
            now += Duration::from_millis(100);
        }
        assert!(
            (15..=20).contains(&writes),
            "{writes} writes in ten minutes"
        );
        let quiet = now + INTERVAL * MAX_BURST;
        pace.record_write(quiet);
        assert_eq!(pace.next(quiet), Some(quiet + MIN_DELAY));
    }

    #[test]
    fn somebody_who_changes_something_every_quarter_of_a_minute_does_not_wait() {
        let (mut pace, start) = (WritePace::default(), Instant::now());
        for change in 0..4 {
            // A cluster is found, and shortly after it does not answer.
            for delay in [0, 3] {
                let now = start + Duration::from_secs(change * 15 + delay);
                assert_eq!(pace.next(now), None, "change {change}");
                pace.record_write(now);
            }
        }
    }
}
