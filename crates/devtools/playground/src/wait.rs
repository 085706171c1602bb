//! Waits by polling.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Calls `attempt` until it returns something or the time is over.
pub(crate) async fn poll<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    attempt: impl Fn() -> F,
) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = attempt().await {
            return Some(found);
        }
        if Instant::now() > deadline {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
