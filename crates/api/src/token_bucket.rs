//! Limits how often something may happen: one rule for all rates in Liqo.
//!
//! Time is an argument, and of any clock that never goes back: `std::time::Instant`, the `Instant`
//! of tokio, or the time since the start of a process.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// `tokens` come back in each `period`, and there are at most `burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRate {
    /// Tokens that come back in each period. Zero counts as one.
    pub tokens: u32,
    /// The period, at least a nanosecond for each token.
    pub period: Duration,
    /// Number of tokens that can be taken at once after a pause.
    pub burst: u32,
}

impl TokenRate {
    /// One token comes back in each interval.
    pub const fn one_each(interval: Duration, burst: u32) -> Self {
        Self {
            tokens: 1,
            period: interval,
            burst,
        }
    }

    /// This number of tokens comes back in each second.
    pub const fn each_second(tokens: u32, burst: u32) -> Self {
        Self {
            tokens,
            period: Duration::from_secs(1),
            burst,
        }
    }

    /// Time in which this number of tokens comes back, rounded down to a nanosecond: a burst must
    /// never cost more than its parts.
    fn refill_time(self, count: u64) -> Duration {
        let nanos =
            self.period.as_nanos().saturating_mul(count.into()) / u128::from(self.tokens.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The tokens that one caller has left.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket<T> {
    rate: TokenRate,
    /// The time at which all tokens are there again; `None` while none was ever taken.
    full_at: Option<T>,
}

impl<T> TokenBucket<T>
where
    T: Copy + Ord + Add<Duration, Output = T> + Sub<Output = Duration>,
{
    /// A bucket that has its whole burst.
    pub const fn full(rate: TokenRate) -> Self {
        Self {
            rate,
            full_at: None,
        }
    }

    /// Whether the bucket is like a new one, so that nobody needs to remember it.
    pub fn is_full(&self, now: T) -> bool {
        self.time_until_full(now).is_zero()
    }

    /// Time until there is a token; zero if there is one.
    pub fn time_until_token(&self, now: T) -> Duration {
        self.time_until_tokens(1, now)
    }

    /// Takes tokens, also those that are not there yet. Returns the time until they are.
    pub fn take_tokens(&mut self, count: u64, now: T) -> Duration {
        let wait = self.time_until_tokens(count, now);
        self.full_at = Some(now + self.time_until_full(now) + self.rate.refill_time(count));
        wait
    }

    /// Takes a token and returns the time until it is there. Takes none if that is more than
    /// `max_wait`.
    pub fn take_token_within(&mut self, max_wait: Duration, now: T) -> Option<Duration> {
        let has_token_in_time = self.time_until_token(now) <= max_wait;
        has_token_in_time.then(|| self.take_tokens(1, now))
    }

    /// Takes a token, if there is one. Returns whether there was.
    pub fn take_token_now(&mut self, now: T) -> bool {
        self.take_token_within(Duration::ZERO, now).is_some()
    }

    fn time_until_full(&self, now: T) -> Duration {
        self.full_at
            .filter(|full_at| *full_at > now)
            .map_or(Duration::ZERO, |full_at| full_at - now)
    }

    fn time_until_tokens(&self, count: u64, now: T) -> Duration {
        let capacity = self.rate.refill_time(self.rate.burst.into());
        (self.time_until_full(now) + self.rate.refill_time(count)).saturating_sub(capacity)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);
    /// The time since the start of a process.
    const START: Duration = Duration::ZERO;

    #[test]
    fn after_a_burst_there_is_one_token_in_each_interval() {
        let mut bucket = TokenBucket::full(TokenRate::one_each(MINUTE, 3));
        for _ in 0..3 {
            assert_eq!(bucket.time_until_token(START), Duration::ZERO);
            assert!(bucket.take_token_now(START));
        }
        assert_eq!(bucket.time_until_token(START), MINUTE);
        assert!(!bucket.take_token_now(START) && bucket.take_token_now(START + MINUTE));
        assert_eq!(bucket.time_until_token(START + MINUTE), MINUTE);
        let later = START + 100 * MINUTE;
        assert!(bucket.is_full(later));
        for _ in 0..3 {
            assert!(
                bucket.take_token_now(later),
                "no more than a burst is saved"
            );
        }
        assert_eq!(bucket.time_until_token(later), MINUTE);
    }

    #[test]
    fn tokens_that_are_not_there_yet_take_the_time_that_they_should() {
        let mut bucket = TokenBucket::full(TokenRate::each_second(10, 50));
        assert_eq!(bucket.take_tokens(50, START), Duration::ZERO);
        assert_eq!(bucket.take_tokens(1, START), Duration::from_millis(100));
        assert_eq!(bucket.take_tokens(10, START), Duration::from_millis(1100));
        let later = START + Duration::from_secs(45);
        assert_eq!(bucket.take_tokens(1, later), Duration::ZERO);
    }

    #[test]
    fn who_would_wait_too_long_takes_nothing() {
        let mut bucket = TokenBucket::full(TokenRate::one_each(MINUTE, 1));
        let mut wait = || bucket.take_token_within(2 * MINUTE, START);
        assert_eq!(
            [wait(), wait(), wait(), wait(), wait()],
            [
                Some(Duration::ZERO),
                Some(MINUTE),
                Some(2 * MINUTE),
                None,
                None
            ]
        );
        assert_eq!(
            bucket.take_token_within(2 * MINUTE, START + MINUTE),
            Some(2 * MINUTE),
            "it waits no longer because it asked so often"
        );
    }

    #[test]
    fn every_clock_gives_the_same_answers() {
        let rate = TokenRate::one_each(MINUTE, 2);
        let (mut of_process, mut of_std) = (TokenBucket::full(rate), TokenBucket::full(rate));
        let start = std::time::Instant::now();
        for seconds in [0, 0, 0, 61, 62, 300, 300, 300] {
            let passed = Duration::from_secs(seconds);
            assert_eq!(
                of_process.take_token_now(passed),
                of_std.take_token_now(start + passed)
            );
        }
    }

    fn any_rate() -> impl Strategy<Value = TokenRate> {
        (1_u32..2000, 1_u64..100_000, 1_u32..50).prop_map(|(tokens, millis, burst)| TokenRate {
            tokens,
            period: Duration::from_millis(millis),
            burst,
        })
    }

    /// The most that a rate allows in a time, with one token more for what is rounded.
    fn max_tokens(rate: TokenRate, time: Duration) -> u128 {
        let refilled = time.as_nanos() * u128::from(rate.tokens) / rate.period.as_nanos();
        u128::from(rate.burst) + refilled + 1
    }

    proptest! {
        #[test]
        fn in_no_span_of_time_are_there_more_tokens_than_the_rate_allows(
            rate in any_rate(),
            pauses in vec(0_u64..5_000, 1..200),
        ) {
            let mut bucket = TokenBucket::full(rate);
            let (mut now, mut taken) = (START, Vec::new());
            for pause in pauses {
                now += Duration::from_millis(pause);
                if bucket.take_token_now(now) {
                    taken.push(now);
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let count = u128::try_from(last - first + 1).unwrap();
                    let span = to.checked_sub(*from).unwrap();
                    prop_assert!(count <= max_tokens(rate, span));
                }
            }
        }

        #[test]
        fn who_waits_as_told_has_a_token_then_and_not_before(
            rate in any_rate(),
            pauses in vec(0_u64..5_000, 1..100),
        ) {
            let mut bucket = TokenBucket::full(rate);
            let mut now = START;
            for pause in pauses {
                now += Duration::from_millis(pause);
                let wait = bucket.time_until_token(now);
                if let Some(before) = wait.checked_sub(Duration::from_nanos(1)) {
                    prop_assert!(!bucket.clone().take_token_now(now + before));
                }
                prop_assert!(bucket.clone().take_token_now(now + wait));
                prop_assert_eq!(bucket.take_tokens(1, now), wait);
            }
        }

        #[test]
        fn after_a_pause_the_whole_burst_is_there(rate in any_rate(), count in 0_u64..10_000) {
            let mut bucket = TokenBucket::full(rate);
            let wait = bucket.take_tokens(count, START);
            let rested = START + wait + rate.refill_time(rate.burst.into());
            prop_assert!(bucket.is_full(rested));
            prop_assert_eq!(bucket.take_tokens(rate.burst.into(), rested), Duration::ZERO);
        }
    }
}
