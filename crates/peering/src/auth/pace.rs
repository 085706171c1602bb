//! Limits how often the auth endpoint works for a consumer, and for strangers. All times are times
//! since the start of the process.

use std::{collections::HashMap, time::Duration};

use liqo_api::ClusterId;
use parking_lot::Mutex;

/// A consumer gets 10 answers at once after a pause, then one every 2 s: a consumer that waits for
/// approval asks every 5 s.
const OF_A_CONSUMER: RequestRate = RequestRate {
    interval: Duration::from_secs(2),
    burst: 10,
};
/// Keys that this cluster does not know, all together.
const OF_STRANGERS: RequestRate = RequestRate {
    interval: Duration::from_millis(200),
    burst: 50,
};

#[derive(Clone, Copy, Debug)]
struct RequestRate {
    interval: Duration,
    /// Maximum number at once after a pause.
    burst: u32,
}

/// The amount taken lately. It decreases with time.
#[derive(Clone, Copy, Debug, Default)]
struct RateBucket {
    debt: Duration,
    /// The time at which `debt` was computed.
    at: Duration,
}

impl RateBucket {
    fn debt(self, now: Duration) -> Duration {
        self.debt.saturating_sub(now.saturating_sub(self.at))
    }

    /// Takes one, if the rate allows it.
    fn take_one(&mut self, rate: RequestRate, now: Duration) -> bool {
        let debt = self.debt(now) + rate.interval;
        if debt > rate.interval * rate.burst {
            return false;
        }
        *self = Self { debt, at: now };
        true
    }
}

/// Lets each consumer have one request in progress, and limits rates.
#[derive(Debug, Default)]
pub(super) struct RequestTurns {
    consumers: Mutex<HashMap<ClusterId, ConsumerTurns>>,
    strangers: Mutex<RateBucket>,
    leaving: Mutex<RateBucket>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ConsumerTurns {
    bucket: RateBucket,
    has_turn: bool,
}

impl RequestTurns {
    /// A turn of a consumer that this cluster knows; none while it has one, or if it asks too
    /// often.
    pub fn take_consumer_turn(&self, id: &ClusterId, now: Duration) -> Option<RequestTurn<'_>> {
        let mut consumers = self.consumers.lock();
        // Forget those that rest, so that the memory depends on the rate only.
        consumers.retain(|_, consumer| consumer.has_turn || !consumer.bucket.debt(now).is_zero());
        let consumer = consumers.entry(id.clone()).or_default();
        if consumer.has_turn || !consumer.bucket.take_one(OF_A_CONSUMER, now) {
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
        self.leaving.lock().take_one(OF_STRANGERS, now)
    }

    /// Whether this cluster may work for a key that it does not know.
    pub fn admit_unknown_key(&self, now: Duration) -> bool {
        self.strangers.lock().take_one(OF_STRANGERS, now)
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
