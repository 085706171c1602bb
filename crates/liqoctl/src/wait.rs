//! Waiting for controllers: ask, show what is missing, ask again.

use std::time::Duration;

use anyhow::{anyhow, bail};
use tokio::time::{Instant, sleep};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// How long the API server may be out of reach before waiting is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// One look at what is waited for.
#[derive(Debug)]
pub enum Look<T> {
    /// It is there.
    Done(T),
    /// Not yet, and what is missing.
    NotYet(String),
}

/// Looks until it is done or `timeout` has passed. `news` is told what is missing after each look. Single failed requests are
/// bridged.
pub async fn until<T, F, Fut>(what: &str, timeout: Duration, mut news: impl FnMut(&str), mut look: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<Look<T>>>,
{
    let deadline = Instant::now() + timeout;
    let mut failing_since = None;
    loop {
        let missing = match look().await {
            Ok(Look::Done(value)) => return Ok(value),
            Ok(Look::NotYet(text)) => {
                failing_since = None;
                news(&text);
                text
            }
            Err(error) => {
                let since = *failing_since.get_or_insert_with(Instant::now);
                if error.downcast_ref::<Final>().is_some() || since.elapsed() >= PATIENCE {
                    return Err(error);
                }
                format!("{error:#}")
            }
        };
        if Instant::now() >= deadline {
            bail!("waited {} s until {what}, in vain: {missing}", timeout.as_secs());
        }
        sleep(PERIOD).await;
    }
}

/// Waiting longer will not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Final(pub String);

/// An error that ends a wait at once.
pub fn give_up(text: impl Into<String>) -> anyhow::Error {
    anyhow!(Final(text.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_it_is_there_and_says_what_was_missing_when_it_is_not() {
        let looks = AtomicU32::new(0);
        let look =
            || async { Ok(if looks.fetch_add(1, Ordering::Relaxed) == 3 { Look::Done(7) } else { Look::NotYet("x".into()) }) };
        assert_eq!(until("it", Duration::from_secs(60), |_| {}, look).await.unwrap(), 7);

        let never = || async { Ok(Look::<()>::NotYet("the image is being pulled".into())) };
        let error = until("the pod", Duration::from_secs(1), |_| {}, never).await.unwrap_err().to_string();
        assert!(error.contains("the pod") && error.contains("1 s") && error.contains("the image is being pulled"), "{error}");
    }

    #[tokio::test]
    async fn a_final_refusal_ends_the_wait_at_once_and_a_glitch_does_not() {
        let start = Instant::now();
        let refused = || async { Err::<Look<()>, _>(give_up("the token is spent")) };
        assert_eq!(until("x", Duration::from_secs(60), |_| {}, refused).await.unwrap_err().to_string(), "the token is spent");
        assert!(start.elapsed() < Duration::from_secs(1));

        let looks = AtomicU32::new(0);
        let glitch =
            || async { if looks.fetch_add(1, Ordering::Relaxed) < 3 { Err(anyhow!("reset")) } else { Ok(Look::Done(())) } };
        until("x", Duration::from_secs(60), |_| {}, glitch).await.unwrap();
    }
}
