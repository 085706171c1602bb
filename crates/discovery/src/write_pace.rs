//! Limits how often a list is written: a change is written at once, but frequent changes only once
//! in a while. So somebody who keeps changing the list causes few writes, and a rare change is
//! visible soon.

use std::time::{Duration, Instant};

use liqo_api::token_bucket::{TokenBucket, TokenRate};

/// Between two writes.
const MIN_DELAY: Duration = Duration::from_secs(2);
/// Writes while the list changes all the time: one a minute, but 10 without delay after a quiet time.
const RATE: TokenRate = TokenRate::one_each(Duration::from_mins(1), 10);

/// The pace of writes.
#[derive(Clone, Copy, Debug)]
pub struct WritePace {
    bucket: TokenBucket<Instant>,
    last: Option<Instant>,
}

impl Default for WritePace {
    fn default() -> Self {
        Self {
            bucket: TokenBucket::full(RATE),
            last: None,
        }
    }
}

impl WritePace {
    /// Earliest time of the next write. `None`: at once.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let next = (now + self.bucket.time_until_token(now)).max(self.last? + MIN_DELAY);
        Some(next).filter(|next| *next > now)
    }

    /// Records a write.
    pub fn record_write(&mut self, now: Instant) {
        self.bucket.take_tokens(1, now);
        self.last = Some(now);
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
        let quiet = now + RATE.period * RATE.burst;
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
