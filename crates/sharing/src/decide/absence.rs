//! Which consumers are silent for longer than their policy allows, so that what they use is free for others.

use std::time::Duration;

use jiff::Timestamp;
use liqo_api::{ForeignCluster, Provide, ResourcesOfferedReason, links};

/// What the `ForeignCluster` of a consumer says about its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Since when the consumer does not renew its Lease. `None` if a new leader does not know yet whether it does.
    pub since: Option<Timestamp>,
    /// Whether its offers were taken back because of this silence.
    pub ended_offers: bool,
}

impl Silence {
    /// `None` if the consumer is not silent, or nothing is known about that.
    pub fn of(peer: &ForeignCluster) -> Option<Self> {
        let reachable = peer.condition(links::CONSUMER_REACHABLE);
        if reachable.is_some_and(|condition| condition.status == "True") {
            return None;
        }
        let since = reachable.filter(|condition| condition.status == "False").map(|condition| condition.last_transition_time.0);
        let offered = peer.condition(links::RESOURCES_OFFERED);
        let ended_offers = offered.is_some_and(|condition| condition.reason == ResourcesOfferedReason::ConsumerAbsent.as_str());
        (since.is_some() || ended_offers).then_some(Self { since, ended_offers })
    }

    /// The same as a leader sees it that leads since `start`: what an earlier one wrote may be old, and the consumer may be back.
    #[must_use]
    pub fn measured_from(self, start: Timestamp) -> Self {
        Self { since: self.since.map(|since| since.max(start)), ..self }
    }

    /// Time until the consumer counts as absent under this policy, zero if it does; `None` if the policy lets it keep its room. Once it
    /// is absent it stays so until it is back: a new leader measures the silence from the start.
    pub fn absent_in(&self, policy: &Provide, now: Timestamp) -> Option<Duration> {
        let limit = Duration::from_secs(policy.absence_seconds?.into());
        if self.ended_offers {
            return Some(Duration::ZERO);
        }
        let silent_for = Duration::try_from(now.duration_since(self.since?)).unwrap_or_default();
        Some(limit.saturating_sub(silent_for))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::cluster;

    fn peer(conditions: &[(&str, &str, &str)]) -> ForeignCluster {
        let condition = |(kind, status, reason): &(&str, &str, &str)| -> Value {
            json!({ "type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "1970-01-01T00:01:40Z" })
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let peer = json!({ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster", "metadata": { "name": "rome" },
            "spec": { "clusterID": cluster(1) }, "status": { "conditions": conditions } });
        serde_json::from_value(peer).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn policy(absence_seconds: Option<u32>) -> Provide {
        Provide { absence_seconds, ..Provide::default() }
    }

    const SILENT: (&str, &str, &str) = (links::CONSUMER_REACHABLE, "False", "Silent");
    const ENDED: (&str, &str, &str) = (links::RESOURCES_OFFERED, "False", "ConsumerAbsent");

    #[test]
    fn a_silent_consumer_is_absent_after_the_time_of_its_policy_and_never_without_one() {
        let silence = Silence::of(&peer(&[SILENT])).unwrap();
        let absent_in = |seconds, now| silence.absent_in(&policy(seconds), at(now)).map(|left| left.as_secs());
        assert_eq!((absent_in(None, 1_000_000), absent_in(Some(60), 100)), (None, Some(60)));
        assert_eq!((absent_in(Some(60), 159), absent_in(Some(60), 160), absent_in(Some(60), 900)), (Some(1), Some(0), Some(0)));
        assert_eq!(absent_in(Some(60), 10), Some(60), "a clock that was set back");
    }

    #[test]
    fn a_consumer_that_is_heard_or_of_which_nothing_is_known_is_not_silent() {
        let waiting = (links::CONSUMER_REACHABLE, "Unknown", "Waiting");
        assert_eq!(Silence::of(&peer(&[(links::CONSUMER_REACHABLE, "True", "Reachable"), ENDED])), None);
        assert_eq!((Silence::of(&peer(&[waiting])), Silence::of(&peer(&[]))), (None, None));
    }

    #[test]
    fn a_condition_from_before_the_leader_started_ends_no_pods_at_once() {
        let silence = Silence::of(&peer(&[SILENT])).unwrap().measured_from(at(5000));
        let absent_in = |now| silence.absent_in(&policy(Some(60)), at(now)).map(|left| left.as_secs());
        assert_eq!((absent_in(5000), absent_in(5060)), (Some(60), Some(0)));
        let later = Silence::of(&peer(&[SILENT])).unwrap().measured_from(at(10));
        assert_eq!(later.since, Some(at(100)));
    }

    #[test]
    fn another_leader_gives_an_absent_consumer_no_room_until_it_is_heard() {
        let waiting = (links::CONSUMER_REACHABLE, "Unknown", "Waiting");
        for known in [waiting, SILENT] {
            let silence = Silence::of(&peer(&[known, ENDED])).unwrap();
            assert_eq!(silence.absent_in(&policy(Some(60)), at(100)), Some(Duration::ZERO), "{known:?}");
            assert_eq!(silence.absent_in(&policy(None), at(100)), None, "the setting is gone");
        }
    }
}
