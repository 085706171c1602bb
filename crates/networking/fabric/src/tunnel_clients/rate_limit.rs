//! Limits how much a client may take in a time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Taking something adds to a debt, and passing time reduces it. Only the debt above `burst` has to
/// be waited for.
pub(super) struct RateLimit {
    /// The debt of one unit.
    each: Duration,
    burst: Duration,
    debt: Duration,
    /// The time at which `debt` was computed.
    at: Instant,
}

impl RateLimit {
    /// Bytes a second, and a quarter of that at once.
    pub(super) fn of_bytes(rate: u32) -> Self {
        Self::new(rate, Duration::from_millis(250))
    }

    /// Streams a second, and five times that at once after a pause: a client that reconnects opens
    /// all its streams.
    pub(super) fn of_streams(rate: u32) -> Self {
        Self::new(rate, Duration::from_secs(5))
    }

    fn new(rate: u32, burst: Duration) -> Self {
        Self {
            each: Duration::from_secs(1) / rate.max(1),
            burst,
            debt: Duration::ZERO,
            at: Instant::now(),
        }
    }

    /// Takes an amount, and waits until it is allowed.
    pub(super) async fn take_amount(&mut self, amount: u32) {
        let wait = self.add_debt(amount, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// Adds to the debt, and returns how long to wait.
    fn add_debt(&mut self, amount: u32, now: Instant) -> Duration {
        self.debt = self
            .debt
            .saturating_sub(now.saturating_duration_since(self.at))
            + self.each * amount;
        self.at = now;
        self.debt.saturating_sub(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_more_than_allowed_takes_the_time_that_it_should() {
        let mut limit = RateLimit::of_streams(10);
        let start = limit.at;
        for _ in 0..50 {
            assert_eq!(limit.add_debt(1, start), Duration::ZERO);
        }
        assert_eq!(limit.add_debt(1, start), Duration::from_millis(100));
        assert_eq!(limit.add_debt(10, start), Duration::from_millis(1100));
        assert_eq!(
            limit.add_debt(1, start + Duration::from_secs(45)),
            Duration::ZERO
        );
    }
}
