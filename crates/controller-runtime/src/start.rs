//! Repeats a step that a program needs to start, while the API server is overloaded or starting
//! itself.

use std::{fmt, time::Duration};

/// Maximum number of attempts of a step at the start of a program. After that the program ends, and
/// the kubelet starts it again.
const START_ATTEMPTS: usize = 10;
/// Delay between two attempts.
const START_RETRY: Duration = Duration::from_secs(1);

/// Does a step that a program needs to start. If it fails, it is tried again for a while, because
/// the API server may be overloaded, or starting itself.
pub async fn retry_at_start<T, E, F>(step: impl FnMut() -> F) -> Result<T, E>
where
    E: fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    retry_step(step, START_RETRY).await
}

async fn retry_step<T, E, F>(mut step: impl FnMut() -> F, delay: Duration) -> Result<T, E>
where
    E: fmt::Display,
    F: Future<Output = Result<T, E>>,
{
    for _ in 1..START_ATTEMPTS {
        match step().await {
            Err(error) => tracing::warn!(%error, "not started yet, trying again"),
            done => return done,
        }
        tokio::time::sleep(delay).await;
    }
    step().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_step_at_the_start_is_tried_until_it_succeeds_but_not_for_ever() {
        for (failures, outcome) in [(0, Ok(1)), (3, Ok(4)), (START_ATTEMPTS, Err("overloaded"))] {
            let mut attempts = 0;
            let step = || {
                attempts += 1;
                std::future::ready(if attempts > failures {
                    Ok(attempts)
                } else {
                    Err("overloaded")
                })
            };
            assert_eq!(retry_step(step, Duration::ZERO).await, outcome);
            assert!(attempts <= START_ATTEMPTS);
        }
    }
}
