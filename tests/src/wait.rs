use std::{
    fmt::Debug,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// Time between two checks. Many scenarios wait at the same time, and most checks cost a process.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two checks after [`FIRST_SECONDS`].
const LATER_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longer waits are printed.
const LONG_WAIT: Duration = Duration::from_secs(4);
const FIRST_SECONDS: Duration = Duration::from_secs(5);
/// Timeouts are for a machine that is as fast as those of the developers. A slower or busier one
/// gets so many times more.
pub const PATIENCE: u32 = 4;

/// Waits until `check` returns something, and returns that. An error of `check` means "not yet";
/// after the timeout it becomes the error.
pub async fn eventually<T, F, Fut>(what: &str, within: Duration, mut check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let (begun, within) = (Instant::now(), within * PATIENCE);
    loop {
        let seen = match check().await {
            Ok(Some(value)) => {
                show_long(what, begun);
                return Ok(value);
            }
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if begun.elapsed() >= within {
            let outcome = seen.map_or_else(|| Err(anyhow::anyhow!("it did not happen")), Err);
            return outcome.with_context(|| format!("waited {} s for: {what}", within.as_secs()));
        }
        tokio::time::sleep(if begun.elapsed() < FIRST_SECONDS {
            POLL_INTERVAL
        } else {
            LATER_POLL_INTERVAL
        })
        .await;
    }
}

/// Prints what took long: the time of a run is spent there.
pub(crate) fn show_long(what: &str, begun: Instant) {
    if begun.elapsed() > LONG_WAIT {
        eprintln!("{} s: {what}", begun.elapsed().as_secs());
    }
}

/// Checks during a whole period that something does not change: `check` must return `expected` each
/// time.
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
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
