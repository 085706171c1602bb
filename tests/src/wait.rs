use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// How often the state is looked at.
const PERIOD: Duration = Duration::from_millis(200);

/// Waits until `check` returns something, and returns that. An error of `check` counts as "not yet" and is shown when the
/// time is over.
pub async fn eventually<T, F, Fut>(what: &str, within: Duration, mut check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let deadline = Instant::now() + within;
    loop {
        let seen = match check().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if Instant::now() >= deadline {
            let outcome = seen.map_or_else(|| Err(anyhow::anyhow!("it did not happen")), Err);
            return outcome.with_context(|| format!("waited {} s for: {what}", within.as_secs()));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Checks over a whole period that something stays as it is: `check` returns what it sees, which must equal `expected`.
pub async fn still<T, F, Fut>(what: &str, period: Duration, expected: T, mut check: F) -> Result<()>
where
    T: PartialEq + Debug,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + period;
    while Instant::now() < deadline {
        let seen = check().await?;
        if seen != expected {
            bail!("{what}: expected {expected:?} all the time, saw {seen:?}");
        }
        tokio::time::sleep(PERIOD).await;
    }
    Ok(())
}
