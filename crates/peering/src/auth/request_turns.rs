//! Limits how often the auth endpoint works for a consumer, and for strangers. All times are times
//! since the start of the process.

use std::{collections::HashMap, time::Duration};

use liqo_api::{
    ClusterId,
    token_bucket::{TokenBucket, TokenRate},
};
use parking_lot::Mutex;

/// A consumer gets 10 answers at once after a pause, then one every 2 s: a consumer that waits for
/// approval asks every 5 s.
const OF_A_CONSUMER: TokenRate = TokenRate::one_each(Duration::from_secs(2), 10);
/// Keys that this cluster does not know, all together.
const OF_STRANGERS: TokenRate = TokenRate::one_each(Duration::from_millis(200), 50);

/// Lets each consumer have one request in progress, and limits rates.
#[derive(Debug)]
pub(super) struct RequestTurns {
    consumers: Mutex<HashMap<ClusterId, ConsumerTurns>>,
    strangers: Mutex<TokenBucket<Duration>>,
    leaving: Mutex<TokenBucket<Duration>>,
}

#[derive(Clone, Copy, Debug)]
struct ConsumerTurns {
    bucket: TokenBucket<Duration>,
    has_turn: bool,
}

impl Default for RequestTurns {
    fn default() -> Self {
        let of_strangers = TokenBucket::full(OF_STRANGERS);
        Self {
            consumers: Mutex::default(),
            strangers: Mutex::new(of_strangers),
            leaving: Mutex::new(of_strangers),
        }
    }
}

impl RequestTurns {
    /// A turn of a consumer that this cluster knows; none while it has one, or if it asks too
    /// often.
    pub fn take_consumer_turn(&self, id: &ClusterId, now: Duration) -> Option<RequestTurn<'_>> {
        let mut consumers = self.consumers.lock();
        // Forget those that rest, so that the memory depends on the rate only.
        consumers.retain(|_, consumer| consumer.has_turn || !consumer.bucket.is_full(now));
        let consumer = consumers.entry(id.clone()).or_insert(ConsumerTurns {
            bucket: TokenBucket::full(OF_A_CONSUMER),
            has_turn: false,
        });
        if consumer.has_turn || !consumer.bucket.take_token_now(now) {
            return None;
        }
        consumer.has_turn = true;
        Some(RequestTurn {
            turns: self,
            consumer: id.clone(),
        })
    }

    /// Whether this cluster may look for what a key that it does not know wants to end.
    pub fn admit_unknown_leaving(&self, now: Duration) -> bool {
        self.leaving.lock().take_token_now(now)
    }

    /// Whether this cluster may work for a key that it does not know.
    pub fn admit_unknown_key(&self, now: Duration) -> bool {
        self.strangers.lock().take_token_now(now)
    }
}

/// The one request of a consumer that is in progress.
pub(super) struct RequestTurn<'a> {
    turns: &'a RequestTurns,
    consumer: ClusterId,
}

impl Drop for RequestTurn<'_> {
    fn drop(&mut self) {
        if let Some(consumer) = self.turns.consumers.lock().get_mut(&self.consumer) {
            consumer.has_turn = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> ClusterId {
        ClusterId::of_public_key(&[number; 32])
    }

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn a_consumer_has_one_turn_at_a_time_and_delays_nobody_else() {
        let turns = RequestTurns::default();
        let first = turns.take_consumer_turn(&id(1), NOW);
        assert!(first.is_some() && turns.take_consumer_turn(&id(1), NOW).is_none());
        assert!(turns.take_consumer_turn(&id(2), NOW).is_some());
        drop(first);
        assert!(turns.take_consumer_turn(&id(1), NOW).is_some());
    }

    #[test]
    fn a_consumer_that_asks_without_end_gets_an_answer_every_two_seconds() {
        let turns = &RequestTurns::default();
        let granted = |seconds: u64| {
            (0..100).filter(move |_| {
                turns
                    .take_consumer_turn(&id(1), NOW + Duration::from_secs(seconds))
                    .is_some()
            })
        };
        assert_eq!(
            (granted(0).count(), granted(1).count(), granted(2).count()),
            (10, 0, 1)
        );
        assert_eq!(granted(60).count(), 10);
    }

    #[test]
    fn strangers_share_one_rate_and_are_not_remembered() {
        let turns = RequestTurns::default();
        assert_eq!(
            (0..1000).filter(|_| turns.admit_unknown_key(NOW)).count(),
            50
        );
        assert_eq!(
            (0..1000)
                .filter(|_| turns.admit_unknown_key(NOW + Duration::from_secs(1)))
                .count(),
            5
        );
        drop(turns.take_consumer_turn(&id(1), NOW));
        drop(turns.take_consumer_turn(&id(2), NOW + Duration::from_mins(1)));
        assert_eq!(turns.consumers.lock().len(), 1);
    }
}
