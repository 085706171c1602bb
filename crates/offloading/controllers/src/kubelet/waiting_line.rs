//! Commands that a provider refuses for the moment (429) wait here, and are tried again. So a
//! script that starts many of them gets slower and does not fail. The provider's limit holds:
//! whoever waits takes no turn there, and only the first of the line asks.

use std::future::Future;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::CallFailure;

/// Maximum time that a command waits before it fails. kubectl and API servers would wait longer for
/// an answer.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Time between two tries of the first in the line.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of commands that wait for one virtual node. A provider of Liqo lets two begin
/// each second: more would wait in vain.
const MAX_WAITING: usize = 60;

/// The commands that wait for one virtual node, in the order in which they came.
pub(super) struct WaitingLine {
    places: Semaphore,
    /// Held by the first.
    first: Mutex<()>,
}

impl Default for WaitingLine {
    fn default() -> Self {
        Self {
            places: Semaphore::new(MAX_WAITING),
            first: Mutex::new(()),
        }
    }
}

impl WaitingLine {
    /// Asks the provider to begin a command, and again while it refuses for the moment and somebody
    /// waits for the answer. A command for which there is no place is tried only once.
    pub async fn ask_in_turn<A, F: Future<Output = Result<A, CallFailure>>>(
        &self,
        mut ask: impl FnMut() -> F,
    ) -> Result<A, CallFailure> {
        let asked = Instant::now();
        let mut refusal = None;
        // Nobody overtakes those who wait.
        if self.places.available_permits() == MAX_WAITING {
            let answer = ask().await;
            if !is_paced(&answer) {
                return answer;
            }
            refusal = Some(answer);
        }
        let Ok(_place) = self.places.try_acquire() else {
            return ask().await;
        };
        let Ok(_first) = tokio::time::timeout_at(asked + MAX_WAIT, self.first.lock()).await else {
            return match refusal {
                Some(refusal) => refusal,
                None => ask().await,
            };
        };
        loop {
            let answer = ask().await;
            let Some(next) = next_try(asked, Instant::now()).filter(|_| is_paced(&answer)) else {
                return answer;
            };
            tokio::time::sleep_until(next).await;
        }
    }
}

/// Returns the next try of a command that was refused `now` and was asked for at `asked`.
fn next_try(asked: Instant, now: Instant) -> Option<Instant> {
    let next = now + RETRY_DELAY;
    (next <= asked + MAX_WAIT).then_some(next)
}

fn is_paced<A>(answer: &Result<A, CallFailure>) -> bool {
    matches!(
        answer,
        Err(CallFailure::PeerRefused {
            status: StatusCode::TOO_MANY_REQUESTS,
            ..
        })
    )
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::{Ready, ready};

    use futures::future::join_all;

    use super::*;

    fn refusal(status: StatusCode) -> CallFailure {
        CallFailure::PeerRefused {
            status,
            message: "no".into(),
        }
    }

    /// A provider that lets one command begin in each interval.
    struct Provider {
        interval: Duration,
        last: Cell<Instant>,
        asked: Cell<usize>,
    }

    impl Provider {
        fn new(interval: Duration) -> Self {
            Self {
                interval,
                last: Cell::new(Instant::now()),
                asked: Cell::new(0),
            }
        }

        fn begin(&self) -> Ready<Result<(), CallFailure>> {
            self.asked.set(self.asked.get() + 1);
            if self.last.get().elapsed() < self.interval {
                return ready(Err(refusal(StatusCode::TOO_MANY_REQUESTS)));
            }
            self.last.set(Instant::now());
            ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_the_provider_paces_begins_later_and_nobody_overtakes_it() {
        let (line, provider, order) = (
            WaitingLine::default(),
            Provider::new(Duration::from_secs(2)),
            RefCell::new(Vec::new()),
        );
        let commands = (0..10_u64).map(|number| {
            let (line, provider, order) = (&line, &provider, &order);
            async move {
                tokio::time::sleep(Duration::from_millis(number * 10)).await;
                line.ask_in_turn(|| provider.begin()).await.unwrap();
                order.borrow_mut().push(number);
            }
        });
        join_all(commands).await;
        assert_eq!(*order.borrow(), (0..10).collect::<Vec<_>>());
        assert!(
            provider.asked.get() <= 31,
            "only the first asks, each second: {}",
            provider.asked.get()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_thirty_seconds_a_command_fails_with_what_the_provider_says() {
        let (line, provider, begin) = (
            WaitingLine::default(),
            Provider::new(Duration::MAX),
            Instant::now(),
        );
        let answers = join_all([(); 3].map(|()| line.ask_in_turn(|| provider.begin()))).await;
        assert!(answers.iter().all(is_paced));
        assert_eq!(begin.elapsed(), MAX_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn other_answers_are_final() {
        for status in [
            StatusCode::NOT_FOUND,
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::SERVICE_UNAVAILABLE,
        ] {
            let asked = Cell::new(0);
            let ask = || {
                asked.set(asked.get() + 1);
                ready(Err::<(), _>(refusal(status)))
            };
            assert!(WaitingLine::default().ask_in_turn(ask).await.is_err());
            assert_eq!(asked.get(), 1, "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_wait_and_who_goes_away_leaves_its_place() {
        let (line, provider, begin) = (
            WaitingLine::default(),
            Provider::new(Duration::MAX),
            Instant::now(),
        );
        let mut waiting: Vec<_> = (0..MAX_WAITING)
            .map(|_| Box::pin(line.ask_in_turn(|| provider.begin())))
            .collect();
        for command in &mut waiting {
            assert!(futures::poll!(command).is_pending());
        }
        assert!(is_paced(&line.ask_in_turn(|| provider.begin()).await));
        assert_eq!(begin.elapsed(), Duration::ZERO, "there is no place left");
        drop(waiting);
        provider.last.set(begin);
        let quick = Provider::new(Duration::from_secs(1));
        line.ask_in_turn(|| quick.begin()).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_secs(1));
    }
}
