//! How fast a provider creates pods for each consumer. Finished pods are free, so their number alone does not bound what short pods cost.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Time between two pods of a consumer, if it has had its burst: 20 a second.
const INTERVAL: Duration = Duration::from_millis(50);
/// How many pods may be created at once after a pause.
const BURST: u32 = 1000;

/// When the next pod of each tenant is due, if it had no burst.
#[derive(Debug, Default)]
pub struct Pace {
    next: HashMap<String, Instant>,
}

impl Pace {
    /// Takes a place in the row of this tenant: the time from which one pod may be created.
    pub fn take(&mut self, tenant: &str, now: Instant) -> Instant {
        // Tenants that pause have their whole burst again.
        self.next.retain(|_, next| *next > now);
        let next = self.next.entry(tenant.to_owned()).or_insert(now);
        *next += INTERVAL;
        next.checked_sub(INTERVAL * BURST).map_or(now, |at| at.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_its_burst_a_tenant_gets_twenty_pods_a_second_and_others_their_own_burst() {
        let (mut pace, now) = (Pace::default(), Instant::now() + INTERVAL * BURST);
        let waits: Vec<Duration> = (0..1100).map(|_| pace.take("a", now).duration_since(now)).collect();
        assert!(waits[..1000].iter().all(Duration::is_zero));
        assert_eq!((waits[1000], waits[1099]), (INTERVAL, INTERVAL * 100));
        assert_eq!(pace.take("b", now), now);
        // What was waited for is given back with time.
        let later = now + Duration::from_secs(10);
        let waits = (0..1000).map(|_| pace.take("a", later).duration_since(later));
        assert_eq!(waits.filter(Duration::is_zero).count(), 100);
        pace.take("b", later + Duration::from_secs(3600));
        assert_eq!(pace.next.len(), 1, "who pauses is forgotten");
    }
}
