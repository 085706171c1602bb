//! How long changes are collected before they are processed together.

use std::time::Duration;

/// The time between two batches. It doubles up to the maximum while changes go on, because a large batch costs hardly more than a small one.
/// After a quiet time it is the minimum again, so a single change does not wait long.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    min: Duration,
    max: Duration,
    last: Duration,
}

impl Batches {
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, last: min }
    }

    /// The current time between two batches.
    pub fn interval(&self) -> Duration {
        self.last
    }

    /// The time after a batch that followed `after` the one before.
    pub fn next(&mut self, after: Duration) -> Duration {
        self.last = if after < self.last * 2 { (self.last * 2).min(self.max) } else { self.min };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_while_changes_go_on_and_are_small_after_a_quiet_time() {
        let (min, max) = (Duration::from_millis(70), Duration::from_secs(1));
        let mut batches = Batches::new(min, max);
        assert_eq!(batches.interval(), min);
        let mut intervals = vec![batches.interval()];
        for _ in 0..6 {
            let last = batches.interval();
            intervals.push(batches.next(last));
        }
        assert!(intervals.is_sorted() && intervals[1] == min * 2);
        assert_eq!(batches.interval(), max);
        assert_eq!(batches.next(max * 2), min);
    }
}
