//! Consumers that are silent for longer than their policy allows: the resources that they use
//! become free for others.

use std::time::Duration;

use liqo_api::{ForeignCluster, Provide, ResourcesOfferedReason, links};

/// The silence of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Time for which this leader has seen that the consumer does not renew its Lease. `None` if it
    /// is not known yet whether it does.
    pub lasts: Option<Duration>,
    /// Whether its offers were taken back because of this silence.
    pub ended_offers: bool,
}

impl Silence {
    /// `None` if the consumer is not silent, or nothing is known about that. `seen_for` tells for
    /// how long this leader has seen the silence.
    pub fn of_consumer(peer: &ForeignCluster, seen_for: impl FnOnce() -> Duration) -> Option<Self> {
        let lasts = is_silent(peer).map(|is_silent| is_silent.then(seen_for));
        if lasts == Some(None) {
            return None;
        }
        let lasts = lasts.flatten();
        let offered = peer.condition(links::RESOURCES_OFFERED);
        let ended_offers = offered.is_some_and(|condition| {
            condition.reason == ResourcesOfferedReason::ConsumerAbsent.as_str()
        });
        (lasts.is_some() || ended_offers).then_some(Self {
            lasts,
            ended_offers,
        })
    }

    /// Time until the consumer counts as absent under this policy, zero if it does; `None` if the
    /// policy lets it keep its room. Once it is absent it stays so until it is back: a new leader
    /// measures the silence from the start.
    pub fn absent_in(&self, policy: &Provide) -> Option<Duration> {
        let limit = Duration::from_secs(policy.absence_seconds?.into());
        if self.ended_offers {
            return Some(Duration::ZERO);
        }
        Some(limit.saturating_sub(self.lasts?))
    }
}

/// Whether a consumer does not renew its Lease; `None` if that is not known.
pub fn is_silent(peer: &ForeignCluster) -> Option<bool> {
    match peer.condition(links::CONSUMER_REACHABLE)?.status.as_str() {
        "True" => Some(false),
        "False" => Some(true),
        _ => None,
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

    fn silence(conditions: &[(&str, &str, &str)], seconds: u64) -> Option<Silence> {
        Silence::of_consumer(&peer(conditions), || Duration::from_secs(seconds))
    }

    fn policy(absence_seconds: Option<u32>) -> Provide {
        Provide {
            absence_seconds,
            ..Provide::default()
        }
    }

    const SILENT: (&str, &str, &str) = (links::CONSUMER_REACHABLE, "False", "Silent");
    const ENDED: (&str, &str, &str) = (links::RESOURCES_OFFERED, "False", "ConsumerAbsent");

    #[test]
    fn a_silent_consumer_is_absent_after_the_time_of_its_policy_and_never_without_one() {
        let absent_in = |limit, seconds| {
            silence(&[SILENT], seconds)
                .unwrap()
                .absent_in(&policy(limit))
                .map(|left| left.as_secs())
        };
        assert_eq!(
            (absent_in(None, 1_000_000), absent_in(Some(60), 0)),
            (None, Some(60))
        );
        assert_eq!(
            (
                absent_in(Some(60), 59),
                absent_in(Some(60), 60),
                absent_in(Some(60), 900)
            ),
            (Some(1), Some(0), Some(0))
        );
    }

    #[test]
    fn a_consumer_that_is_heard_or_of_which_nothing_is_known_is_not_silent() {
        let waiting = (links::CONSUMER_REACHABLE, "Unknown", "Waiting");
        assert_eq!(
            silence(
                &[(links::CONSUMER_REACHABLE, "True", "Reachable"), ENDED],
                0
            ),
            None
        );
        assert_eq!((silence(&[waiting], 0), silence(&[], 0)), (None, None));
    }

    #[test]
    fn another_leader_gives_an_absent_consumer_no_room_until_it_is_heard() {
        let waiting = (links::CONSUMER_REACHABLE, "Unknown", "Waiting");
        for known in [waiting, SILENT] {
            let silence = silence(&[known, ENDED], 0).unwrap();
            assert_eq!(
                silence.absent_in(&policy(Some(60))),
                Some(Duration::ZERO),
                "{known:?}"
            );
            assert_eq!(
                silence.absent_in(&policy(None)),
                None,
                "the setting is gone"
            );
        }
    }
}
