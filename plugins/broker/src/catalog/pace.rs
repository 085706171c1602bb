//! Limits the requests of each caller. Pure.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Number of requests that a caller may make at once.
const BURST: u32 = 20;
/// Time until a caller may make one more.
const INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of callers that are remembered. While there are as many, others are refused.
const MAX_CALLERS: usize = 1024;

/// The requests of each caller.
#[derive(Default)]
pub struct CallerPace {
    /// Time from which no request of a caller counts any more.
    idle_at: HashMap<IpAddr, Instant>,
}

impl CallerPace {
    /// Counts a request. Returns whether the caller may make it.
    pub fn admit(&mut self, caller: IpAddr, now: Instant) -> bool {
        if self.idle_at.len() >= MAX_CALLERS {
            self.idle_at.retain(|_, idle_at| *idle_at > now);
        }
        let known = self.idle_at.get(&caller).copied();
        if known.is_none() && self.idle_at.len() >= MAX_CALLERS {
            return false;
        }
        let idle_at = known.map_or(now, |idle_at| idle_at.max(now)) + INTERVAL;
        let is_admitted = idle_at.saturating_duration_since(now) <= INTERVAL * BURST;
        if is_admitted {
            self.idle_at.insert(caller, idle_at);
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((admitted, pace.idle_at.len()), (MAX_CALLERS, MAX_CALLERS));
        assert!(
            pace.admit(caller(9999), now + INTERVAL),
            "the others have become idle"
        );
        assert_eq!(pace.idle_at.len(), 1);
    }
}
