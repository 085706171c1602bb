//! Waits for controllers: polls, and shows what is missing.

use std::time::Duration;

use anyhow::{anyhow, bail};
use tokio::time::{Instant, sleep};

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Delay until a missing item is news: most waits end sooner.
const NEWS_DELAY: Duration = Duration::from_secs(1);
/// Maximum outage of the API server before waiting ends.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of one poll.
#[derive(Debug)]
pub enum PollResult<T> {
    Done(T),
    /// Not done; what is missing.
    NotYet(String),
}

/// Polls until it is done or `timeout` has passed. `news` gets what is missing, once that has not
/// changed for a second. Single failed requests are ignored.
pub async fn until<T, F, Fut>(
    what: &str,
    timeout: Duration,
    news: impl FnMut(&str),
    look: F,
) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<PollResult<T>>>,
{
    wait_until_every(POLL_INTERVAL, what, timeout, news, look).await
}

/// The same with another time between two polls: for polls that list pods.
pub async fn wait_until_every<T, F, Fut>(
    interval: Duration,
    what: &str,
    timeout: Duration,
    mut news: impl FnMut(&str),
    mut look: F,
) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<PollResult<T>>>,
{
    let deadline = Instant::now() + timeout;
    let mut failing_since = None;
    let mut last: Option<(String, Instant)> = None;
    loop {
        let missing = match look().await {
            Ok(PollResult::Done(value)) => return Ok(value),
            Ok(PollResult::NotYet(text)) => {
                failing_since = None;
                let since = last
                    .take()
                    .filter(|(before, _)| *before == text)
                    .map_or_else(Instant::now, |(_, since)| since);
                if since.elapsed() >= NEWS_DELAY {
                    news(&text);
                }
                last = Some((text.clone(), since));
                text
            }
            Err(error) => {
                let since = *failing_since.get_or_insert_with(Instant::now);
                if error.downcast_ref::<FinalError>().is_some()
                    || since.elapsed() >= UNREACHABLE_TIMEOUT
                {
                    return Err(error);
                }
                format!("{error:#}")
            }
        };
        if Instant::now() >= deadline {
            bail!(
                "timed out after {} s waiting until {what}: {missing}",
                timeout.as_secs()
            );
        }
        sleep(interval).await;
    }
}

/// Waiting longer will not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FinalError(pub String);

/// An error that ends a wait at once.
pub fn final_error(text: impl Into<String>) -> anyhow::Error {
    anyhow!(FinalError(text.into()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_it_is_there_and_says_what_was_missing_when_it_is_not() {
        let looks = AtomicU32::new(0);
        let look = || async {
            Ok(if looks.fetch_add(1, Ordering::Relaxed) == 3 {
                PollResult::Done(7)
            } else {
                PollResult::NotYet("x".into())
            })
        };
        assert_eq!(
            until("it", Duration::from_mins(1), |_| {}, look)
                .await
                .unwrap(),
            7
        );

        let never = || async { Ok(PollResult::<()>::NotYet("the image is being pulled".into())) };
        let error = until("the pod", Duration::from_secs(1), |_| {}, never)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the pod")
                && error.contains("1 s")
                && error.contains("the image is being pulled"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn what_is_missing_for_a_moment_is_no_news() {
        let looks = AtomicU32::new(0);
        let look = || async {
            Ok(match looks.fetch_add(1, Ordering::Relaxed) {
                0 => PollResult::NotYet("no news yet".into()),
                1..7 => PollResult::NotYet("the image is being pulled".into()),
                _ => PollResult::Done(()),
            })
        };
        let mut said = Vec::new();
        until(
            "it",
            Duration::from_mins(1),
            |text| said.push(text.to_owned()),
            look,
        )
        .await
        .unwrap();
        said.dedup();
        assert_eq!(said, ["the image is being pulled"]);
    }

    #[tokio::test]
    async fn a_final_refusal_ends_the_wait_at_once_and_a_glitch_does_not() {
        let start = Instant::now();
        let refused = || async { Err::<PollResult<()>, _>(final_error("the token is spent")) };
        assert_eq!(
            until("x", Duration::from_mins(1), |_| {}, refused)
                .await
                .unwrap_err()
                .to_string(),
            "the token is spent"
        );
        assert!(start.elapsed() < Duration::from_secs(1));

        let looks = AtomicU32::new(0);
        let glitch = || async {
            if looks.fetch_add(1, Ordering::Relaxed) < 3 {
                Err(anyhow!("reset"))
            } else {
                Ok(PollResult::Done(()))
            }
        };
        until("x", Duration::from_mins(1), |_| {}, glitch)
            .await
            .unwrap();
    }
}
