//! Limits the requests of each caller. Pure.

use std::{collections::HashMap, net::IpAddr, time::Instant};

use liqo_api::token_bucket::{TokenBucket, TokenRate};

/// A caller may make 20 requests at once, and then 5 a second.
const RATE: TokenRate = TokenRate::each_second(5, 20);
/// Maximum number of callers that are remembered. While there are as many, others are refused.
const MAX_CALLERS: usize = 1024;

/// The requests of each caller.
#[derive(Default)]
pub struct CallerPace {
    buckets: HashMap<IpAddr, TokenBucket<Instant>>,
}

impl CallerPace {
    /// Counts a request. Returns whether the caller may make it.
    pub fn admit(&mut self, caller: IpAddr, now: Instant) -> bool {
        if self.buckets.len() >= MAX_CALLERS {
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        if !self.buckets.contains_key(&caller) && self.buckets.len() >= MAX_CALLERS {
            return false;
        }
        let bucket = self.buckets.entry(caller);
        bucket
            .or_insert(TokenBucket::full(RATE))
            .take_token_now(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(200);

    fn caller(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_caller_may_make_some_requests_at_once_and_then_one_each_interval() {
        let (mut pace, now) = (CallerPace::default(), Instant::now());
        let admitted = (0..100).filter(|_| pace.admit(caller(1), now)).count();
        assert_eq!(admitted, 20);
        assert!(pace.admit(caller(2), now), "others are not slowed down");
        let later = now + INTERVAL * 3;
        assert_eq!((0..100).filter(|_| pace.admit(caller(1), later)).count(), 3);
        assert_eq!(
            (0..100)
                .filter(|_| pace.admit(caller(1), later + Duration::from_mins(1)))
                .count(),
            20
        );
    }

    #[test]
    fn a_bounded_number_of_callers_is_remembered_while_they_call() {
        let (mut pace, now) = (CallerPace::default(), Instant::now());
        let admitted = (0..5000)
            .filter(|number| pace.admit(caller(*number), now))
            .count();
        assert_eq!((admitted, pace.buckets.len()), (MAX_CALLERS, MAX_CALLERS));
        assert!(
            pace.admit(caller(9999), now + INTERVAL),
            "the others have become idle"
        );
        assert_eq!(pace.buckets.len(), 1);
    }
}
