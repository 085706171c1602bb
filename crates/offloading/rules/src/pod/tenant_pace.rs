//! Limits how fast a provider creates pods for each consumer, and lets it start commands in them.
//! Finished pods are free, so their number alone does not bound the costs of short pods; and
//! Kubernetes does not bound commands at all.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use liqo_api::token_bucket::{TokenBucket, TokenRate};

/// Turns of tenants: how often each may do something.
#[derive(Debug)]
pub struct TenantPace {
    rate: TokenRate,
    buckets: HashMap<String, TokenBucket<Instant>>,
}

impl TenantPace {
    /// Pods: 1,000 at once, then 20 a second.
    pub fn for_pods() -> Self {
        Self::with_rate(TokenRate::each_second(20, 1000))
    }

    /// Commands, and connections to pods: 50 at once, then 2 a second.
    pub fn for_commands() -> Self {
        Self::with_rate(TokenRate::each_second(2, 50))
    }

    fn with_rate(rate: TokenRate) -> Self {
        Self {
            rate,
            buckets: HashMap::new(),
        }
    }

    /// Takes a turn of this tenant, and returns when it is due.
    pub fn take_turn(&mut self, tenant: &str, now: Instant) -> Instant {
        now + self.bucket_of_tenant(tenant, now).take_tokens(1, now)
    }

    /// Like [`Self::take_turn`], but takes no turn that is due later than in this time.
    pub fn take_turn_within(
        &mut self,
        limit: Duration,
        tenant: &str,
        now: Instant,
    ) -> Option<Instant> {
        let bucket = self.bucket_of_tenant(tenant, now);
        Some(now + bucket.take_token_within(limit, now)?)
    }

    fn bucket_of_tenant(&mut self, tenant: &str, now: Instant) -> &mut TokenBucket<Instant> {
        // Tenants that pause have their whole burst again.
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
        self.buckets
            .entry(tenant.to_owned())
            .or_insert(TokenBucket::full(self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_its_burst_a_tenant_gets_twenty_pods_a_second_and_others_their_own_burst() {
        let mut pace = TenantPace::for_pods();
        let (interval, now) = (Duration::from_millis(50), Instant::now());
        let waits: Vec<Duration> = (0..1100)
            .map(|_| pace.take_turn("a", now).duration_since(now))
            .collect();
        assert!(waits[..1000].iter().all(Duration::is_zero));
        assert_eq!((waits[1000], waits[1099]), (interval, interval * 100));
        assert_eq!(pace.take_turn("b", now), now);
        // What was waited for is given back with time.
        let later = now + Duration::from_secs(10);
        let waits = (0..1000).map(|_| pace.take_turn("a", later).duration_since(later));
        assert_eq!(waits.filter(Duration::is_zero).count(), 100);
        pace.take_turn("b", later + Duration::from_hours(1));
        assert_eq!(pace.buckets.len(), 1, "who pauses is forgotten");
    }

    #[test]
    fn who_would_wait_too_long_for_a_command_takes_no_turn() {
        let mut pace = TenantPace::for_commands();
        let (now, limit) = (Instant::now(), Duration::from_secs(2));
        let waits: Vec<_> = (0..1000)
            .filter_map(|_| pace.take_turn_within(limit, "a", now))
            .map(|at| at.duration_since(now))
            .collect();
        assert_eq!(
            (waits.len(), waits[49], waits[53]),
            (54, Duration::ZERO, limit)
        );
        assert!(
            pace.take_turn_within(limit, "a", now + Duration::from_millis(500))
                .is_some(),
            "it waits no longer because it asked so often"
        );
        assert_eq!(pace.take_turn_within(limit, "b", now), Some(now));
    }
}
