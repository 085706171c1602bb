//! How much a guest may take in a time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// What is taken is paid for by time that passes; a debt up to a bound is nothing to wait for.
pub(super) struct Allowance {
    each: Duration,
    burst: Duration,
    debt: Duration,
    at: Instant,
}

impl Allowance {
    /// So many bytes a second, and a quarter of that at once.
    pub(super) fn of_bytes(rate: u32) -> Self {
        Self::new(rate, Duration::from_millis(250))
    }

    /// So many streams a second, and after a pause as many as come in five seconds: who begins anew begins all.
    pub(super) fn of_streams(rate: u32) -> Self {
        Self::new(rate, Duration::from_secs(5))
    }

    fn new(rate: u32, burst: Duration) -> Self {
        Self { each: Duration::from_secs(1) / rate.max(1), burst, debt: Duration::ZERO, at: Instant::now() }
    }

    /// Takes so much, when there is so much.
    pub(super) async fn take(&mut self, amount: u32) {
        let wait = self.owe(amount, Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// How long to wait after this much was taken.
    fn owe(&mut self, amount: u32, now: Instant) -> Duration {
        self.debt = self.debt.saturating_sub(now.saturating_duration_since(self.at)) + self.each * amount;
        self.at = now;
        self.debt.saturating_sub(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_allowed_takes_as_long_as_it_should() {
        let mut allowance = Allowance::of_streams(10);
        let start = allowance.at;
        for _ in 0..50 {
            assert_eq!(allowance.owe(1, start), Duration::ZERO);
        }
        assert_eq!(allowance.owe(1, start), Duration::from_millis(100));
        assert_eq!(allowance.owe(10, start), Duration::from_millis(1100));
        assert_eq!(allowance.owe(1, start + Duration::from_secs(45)), Duration::ZERO);
    }
}
