//! Limits how often something may happen.

use std::time::{Duration, Instant};

/// A token bucket: `burst` times at once, and then once in each `interval`.
#[derive(Debug)]
pub struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// The time at which all tokens are there again; `None` while none was ever taken.
    full_at: Option<Instant>,
}

impl TokenBucket {
    pub fn new(burst: u32, interval: Duration) -> Self {
        Self {
            interval,
            burst,
            full_at: None,
        }
    }

    /// Time until there is a token; zero if there is one.
    pub fn time_until_token(&self, now: Instant) -> Duration {
        let until_full = self
            .full_at
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        until_full.saturating_sub(self.interval * self.burst.saturating_sub(1))
    }

    /// Takes a token.
    pub fn take_token(&mut self, now: Instant) {
        self.full_at = Some(self.full_at.map_or(now, |at| at.max(now)) + self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_there_is_one_token_in_each_interval() {
        let (start, minute) = (Instant::now(), Duration::from_mins(1));
        let mut rate = TokenBucket::new(3, minute);
        for _ in 0..3 {
            assert_eq!(rate.time_until_token(start), Duration::ZERO);
            rate.take_token(start);
        }
        assert_eq!(rate.time_until_token(start), minute);
        assert_eq!(rate.time_until_token(start + minute), Duration::ZERO);
        rate.take_token(start + minute);
        assert_eq!(rate.time_until_token(start + minute), minute);
        let later = start + 100 * minute;
        for _ in 0..3 {
            assert_eq!(
                rate.time_until_token(later),
                Duration::ZERO,
                "no more than a burst is saved"
            );
            rate.take_token(later);
        }
        assert_eq!(rate.time_until_token(later), minute);
    }
}
