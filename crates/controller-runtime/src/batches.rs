//! Decides how long changes are collected before they are processed together.

use std::time::Duration;

use tokio::time::Instant;

/// Processes a single change soon, and many in few batches: a large batch costs hardly more than a
/// small one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batches {
    interval: Duration,
    last: Option<Instant>,
}

impl Batches {
    /// Time to wait before the next batch.
    pub fn time_to_wait(&self, now: Instant) -> Duration {
        self.last.map_or(Duration::ZERO, |last| {
            self.interval.saturating_sub(now - last)
        })
    }

    /// A batch was processed. The next one comes after `min` at the earliest. The time doubles up
    /// to `max` while batches follow one another.
    pub fn record_batch(&mut self, now: Instant, min: Duration, max: Duration) {
        let follows = self.last.is_some_and(|last| now - last < self.interval * 2);
        self.interval = if follows {
            (self.interval * 2).min(max)
        } else {
            min
        };
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_while_they_follow_one_another_and_are_small_after_a_quiet_time() {
        let (min, max) = (Duration::from_millis(70), Duration::from_secs(1));
        let (mut batches, mut now) = (Batches::default(), Instant::now());
        assert_eq!(batches.time_to_wait(now), Duration::ZERO);
        let mut waits = Vec::new();
        for _ in 0..6 {
            batches.record_batch(now, min, max);
            waits.push(batches.time_to_wait(now));
            now += batches.time_to_wait(now);
            assert_eq!(batches.time_to_wait(now), Duration::ZERO);
        }
        assert!(
            waits.is_sorted() && waits[..3] == [min, min * 2, min * 4] && waits[5] == max,
            "{waits:?}"
        );
        now += max * 2;
        batches.record_batch(now, min, max);
        assert_eq!(batches.time_to_wait(now), min);
    }
}
