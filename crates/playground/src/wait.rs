//! Waiting for what comes by itself.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Asks again and again until there is an answer or the time is over.
pub(crate) async fn poll<T, F: Future<Output = Option<T>>>(limit: Duration, attempt: impl Fn() -> F) -> Option<T> {
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
