//! Limits how fast a provider creates pods for each consumer, and lets it start commands in them.
//! Finished pods are free, so their number alone does not bound the costs of short pods; and
//! Kubernetes does not bound commands at all.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Turns of tenants: how often each may do something.
#[derive(Debug)]
pub struct TenantPace {
    /// Time between two turns of a tenant that has had its burst.
    interval: Duration,
    /// Number of turns that a tenant has at once after a pause.
    burst: u32,
    /// The time at which the next turn of each tenant is due, if it had no burst.
    next: HashMap<String, Instant>,
}

impl TenantPace {
    /// Pods: 1,000 at once, then 20 a second.
    pub fn for_pods() -> Self {
        Self {
            interval: Duration::from_millis(50),
            burst: 1000,
            next: HashMap::new(),
        }
    }

    /// Commands, and connections to pods: 50 at once, then 2 a second.
    pub fn for_commands() -> Self {
        Self {
            interval: Duration::from_millis(500),
            burst: 50,
            next: HashMap::new(),
        }
    }

    /// Takes a turn of this tenant, and returns when it is due.
    pub fn take_turn(&mut self, tenant: &str, now: Instant) -> Instant {
        // Tenants that pause have their whole burst again.
        self.next.retain(|_, next| *next > now);
        let next = self.next.entry(tenant.to_owned()).or_insert(now);
        *next += self.interval;
        next.checked_sub(self.interval * self.burst)
            .map_or(now, |at| at.max(now))
    }

    /// Like [`Self::take_turn`], but takes no turn that is due later than in this time.
    pub fn take_turn_within(
        &mut self,
        limit: Duration,
        tenant: &str,
        now: Instant,
    ) -> Option<Instant> {
        let due = self.take_turn(tenant, now);
        if due <= now + limit {
            return Some(due);
        }
        if let Some(next) = self.next.get_mut(tenant) {
            *next -= self.interval;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_its_burst_a_tenant_gets_twenty_pods_a_second_and_others_their_own_burst() {
        let mut pace = TenantPace::for_pods();
        let (interval, now) = (pace.interval, Instant::now() + pace.interval * pace.burst);
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
        assert_eq!(pace.next.len(), 1, "who pauses is forgotten");
    }

    #[test]
    fn who_would_wait_too_long_for_a_command_takes_no_turn() {
        let mut pace = TenantPace::for_commands();
        let (now, limit) = (
            Instant::now() + pace.interval * pace.burst,
            Duration::from_secs(2),
        );
        let waits: Vec<_> = (0..1000)
            .filter_map(|_| pace.take_turn_within(limit, "a", now))
            .map(|at| at.duration_since(now))
            .collect();
        assert_eq!(
            (waits.len(), waits[49], waits[53]),
            (54, Duration::ZERO, limit)
        );
        assert!(
            pace.take_turn_within(limit, "a", now + pace.interval)
                .is_some(),
            "it waits no longer because it asked so often"
        );
        assert_eq!(pace.take_turn_within(limit, "b", now), Some(now));
    }
}
