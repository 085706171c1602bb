//! Limits how much a client may take in a time.

use liqo_api::token_bucket::{TokenBucket, TokenRate};
use tokio::time::{Instant, sleep};

/// A rate that delays what is too fast.
pub(super) struct RateLimit(TokenBucket<Instant>);

impl RateLimit {
    /// Bytes a second, and a quarter of that at once.
    pub(super) fn of_bytes(rate: u32) -> Self {
        Self(TokenBucket::full(TokenRate::each_second(rate, rate / 4)))
    }

    /// Streams a second, and five times that at once after a pause: a client that reconnects opens
    /// all its streams.
    pub(super) fn of_streams(rate: u32) -> Self {
        Self(TokenBucket::full(TokenRate::each_second(rate, rate * 5)))
    }

    /// Takes an amount, and waits until it is allowed.
    pub(super) async fn take_amount(&mut self, amount: u32) {
        let wait = self.0.take_tokens(amount.into(), Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}
