//! `PodDisruptionBudget`s of home at a provider.
//!
//! A provider protects as many healthy pods as home cannot do without: what home wants healthy,
//! less what is healthy elsewhere.
//!
//! ```text
//!   home wants 3 of 4 healthy;  1 is healthy at home, 3 at the provider  ->  minAvailable 2 at the provider
//! ```
//!
//! So the number changes only when something changes elsewhere. What happens to its own pods, the
//! provider's API server sees at once. Of several providers, what home allows is for one that
//! drains a node, and for one at a time: drains that do not know of each other could use it twice
//! otherwise.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use liqo_api::ClusterId;
use liqo_api::reflection::{is_denied, is_replica};
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::pod::carry::is_label_of_remote_pod;
use crate::replica::kind::ReplicaKind;
use crate::replica::label_selector::NormalizedSelector;

/// Time for which a provider may use what home allows, before the next one may.
const TURN: Duration = Duration::from_secs(30);

/// Delay before it is checked again whether the provider whose turn is over keeps all of its pods.
const HANDOVER: Duration = Duration::from_secs(2);

/// Time for which a smaller number has to be right before it is told. The status of a budget at
/// home follows its pods a moment later.
const SETTLING: Duration = Duration::from_secs(5);

/// The field about the eviction of pods that are not ready.
const UNHEALTHY_POLICY: &str = "unhealthyPodEvictionPolicy";
const ALWAYS_ALLOW: &str = "AlwaysAllow";

/// The reduced form of a `PodDisruptionBudget` at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDisruptionBudget {
    pub selector: NormalizedSelector,
    /// Labels in its selector that remote pods do not have.
    pub unknown_labels: BTreeSet<String>,
    /// Number of pods that may be disrupted now.
    allowed: usize,
    /// Number of further pods that would have to be healthy.
    missing: usize,
    /// Whether pods that are not healthy may always be evicted.
    always_allows_unhealthy: bool,
    /// Whether it is the replica of a budget of one of our consumers.
    pub is_replica: bool,
}

impl LocalDisruptionBudget {
    /// Reduces a budget; `None` if it selects no pods, or if its users keep it here.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what a watch's reduction takes"
    )]
    pub fn from_budget(budget: PodDisruptionBudget) -> Option<Self> {
        let spec = budget.spec.as_ref().filter(|_| !is_denied(&budget))?;
        let selector = NormalizedSelector::from_json(&json!(spec.selector.as_ref()?))?;
        let unknown_labels = selector
            .keys()
            .filter(|key| !is_label_of_remote_pod(key))
            .map(str::to_owned)
            .collect();

        let (allowed, missing) = budget.status.as_ref().map_or((0, 0), |status| {
            // A status of before the last change allows nothing, as for the API server.
            let is_current = status.observed_generation >= budget.metadata.generation;
            let allowed = if is_current {
                count_of(status.disruptions_allowed)
            } else {
                0
            };
            let missing =
                count_of(status.desired_healthy).saturating_sub(count_of(status.current_healthy));
            (allowed, missing)
        });
        Some(Self {
            unknown_labels,
            selector,
            allowed,
            missing,
            always_allows_unhealthy: spec.unhealthy_pod_eviction_policy.as_deref()
                == Some(ALWAYS_ALLOW),
            is_replica: is_replica(&budget),
        })
    }

    /// The number of these pods that must stay healthy at their provider.
    pub fn min_healthy(&self, pods: PodCount, permission: DrainPermission) -> usize {
        match permission {
            DrainPermission::Granted => (pods.healthy + self.missing)
                .saturating_sub(self.allowed)
                .min(pods.all),
            DrainPermission::Withheld => pods.all,
        }
    }

    /// The object inside its record; `None` if nothing has to be protected.
    pub fn object_at_provider(&self, name: &str, least: usize) -> Option<Value> {
        let mut spec = json!({ "minAvailable": least, "selector": self.selector.to_json() });
        if self.always_allows_unhealthy {
            set_at(&mut spec, &[UNHEALTHY_POLICY], ALWAYS_ALLOW);
        }
        let (kind, api_version) = (
            ReplicaKind::PodDisruptionBudget.name(),
            ReplicaKind::PodDisruptionBudget.api_version(),
        );
        let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name }, "spec": spec });
        (least > 0).then_some(object)
    }
}

fn count_of(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Pods at one provider that a budget selects and that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCount {
    pub all: usize,
    /// Ready, and not being deleted.
    pub healthy: usize,
}

/// A provider that has pods which one budget selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderWithPods {
    pub id: ClusterId,
    /// It drains a node with such a pod.
    pub drains: bool,
    /// The budget that it keeps lets no pod go, as far as this cluster can see it.
    pub keeps_all: bool,
}

/// Whether a provider may use what home allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainPermission {
    Granted,
    Withheld,
}

/// The permission of a provider now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTurn {
    pub permission: DrainPermission,
    /// Time after which to ask again, if not only a change decides that.
    pub ask_after: Option<Duration>,
}

impl DrainTurn {
    const fn granted(ask_after: Option<Duration>) -> Self {
        Self {
            permission: DrainPermission::Granted,
            ask_after,
        }
    }

    const fn withheld(ask_after: Option<Duration>) -> Self {
        Self {
            permission: DrainPermission::Withheld,
            ask_after,
        }
    }
}

/// Decides whether a provider may use what home allows now. Of several providers only one that
/// drains a node may, and only while all others keep all of their pods; if several drain, they take
/// turns.
pub fn drain_turn(provider: &ClusterId, holders: &[ProviderWithPods], now: Timestamp) -> DrainTurn {
    if holders.iter().all(|holder| holder.id == *provider) {
        return DrainTurn::granted(None);
    }
    let mut draining: Vec<&ClusterId> = holders
        .iter()
        .filter(|holder| holder.drains)
        .map(|holder| &holder.id)
        .collect();
    draining.sort();
    let Some(position) = draining.iter().position(|one| *one == provider) else {
        return DrainTurn::withheld(None);
    };
    let now = Duration::try_from(now.as_duration()).unwrap_or_default();
    let (number, count) = (now.as_secs() / TURN.as_secs(), draining.len() as u64);
    let left = TURN
        .saturating_mul(u32::try_from(number + 1).unwrap_or(u32::MAX))
        .saturating_sub(now);
    let ends = (count > 1).then_some(left);
    if position as u64 != number % count {
        return DrainTurn::withheld(ends);
    }
    let others_keep_all = holders
        .iter()
        .all(|holder| holder.id == *provider || holder.keeps_all);
    if others_keep_all {
        DrainTurn::granted(ends)
    } else {
        DrainTurn::withheld(Some(HANDOVER))
    }
}

/// The number of healthy pods to tell a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextMinimum {
    pub least: usize,
    /// Time until another number is to follow.
    pub changes_after: Option<Duration>,
}

/// The last number that a provider was told of one budget, and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedMinimum {
    least: usize,
    /// The largest of the smaller numbers since a smaller one is right, and since when.
    smaller: Option<(usize, Timestamp)>,
}

impl ReportedMinimum {
    pub const fn new(least: usize) -> Self {
        Self {
            least,
            smaller: None,
        }
    }

    /// Returns the number to tell if `least` is right now. A larger number protects, and is told at
    /// once.
    pub fn next_minimum(&mut self, least: usize, now: Timestamp) -> NextMinimum {
        if least >= self.least {
            *self = Self::new(least);
            return NextMinimum {
                least,
                changes_after: None,
            };
        }
        let (largest, since) = self
            .smaller
            .map_or((least, now), |(largest, since)| (largest.max(least), since));
        let left = SETTLING
            .saturating_sub(Duration::try_from(now.duration_since(since)).unwrap_or_default());
        if left.is_zero() {
            *self = Self::new(largest);
            let more = (largest > least).then_some((least, now));
            self.smaller = more;
            return NextMinimum {
                least: largest,
                changes_after: more.map(|_| SETTLING),
            };
        }
        self.smaller = Some((largest, since));
        NextMinimum {
            least: self.least,
            changes_after: Some(left),
        }
    }
}

/// The fields of a consumer's budget that a provider takes over: no share of pods, because here
/// they have no controller that says how many there should be.
pub(super) fn travelling_budget(content: &Value) -> Map<String, Value> {
    let Some(spec) = content.get("spec") else {
        return Map::new();
    };
    let least = spec
        .get("minAvailable")
        .and_then(Value::as_u64)
        .and_then(|least| i32::try_from(least).ok());
    let selector = spec.get("selector").and_then(NormalizedSelector::from_json);
    let Some((least, selector)) = least.zip(selector) else {
        return Map::new();
    };
    let mut kept = json!({ "minAvailable": least, "selector": selector.to_json() });
    if spec[UNHEALTHY_POLICY] == ALWAYS_ALLOW {
        set_at(&mut kept, &[UNHEALTHY_POLICY], ALWAYS_ALLOW);
    }
    Map::from_iter([("spec".to_owned(), kept)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(
        spec: &Value,
        [healthy, desired, allowed]: [i32; 3],
    ) -> Option<LocalDisruptionBudget> {
        let budget = json!({ "metadata": { "name": "web", "generation": 2 }, "spec": spec, "status": { "observedGeneration": 2,
            "currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": allowed, "expectedPods": 4 } });
        LocalDisruptionBudget::from_budget(serde_json::from_value(budget).unwrap())
    }

    fn web(status: [i32; 3]) -> LocalDisruptionBudget {
        budget(
            &json!({ "minAvailable": 3, "selector": { "matchLabels": { "app": "web" } } }),
            status,
        )
        .unwrap()
    }

    fn pods(all: usize, healthy: usize) -> PodCount {
        PodCount { all, healthy }
    }

    fn tell(told: &mut ReportedMinimum, least: usize, second: i64) -> (usize, Option<Duration>) {
        let next = told.next_minimum(least, at(second));
        (next.least, next.changes_after)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn id(number: u8) -> ClusterId {
        ClusterId::of_public_key(&[number; 32])
    }

    #[test]
    fn a_provider_keeps_what_home_wants_less_what_is_healthy_elsewhere() {
        assert_eq!(
            web([4, 3, 1]).min_healthy(pods(3, 3), DrainPermission::Granted),
            2
        );
        assert_eq!(
            web([3, 3, 0]).min_healthy(pods(3, 3), DrainPermission::Granted),
            3,
            "the pod at home is not healthy"
        );
        assert_eq!(
            web([3, 3, 0]).min_healthy(pods(3, 2), DrainPermission::Granted),
            2,
            "one there is not: the provider sees that itself"
        );
        assert_eq!(
            web([2, 3, 0]).min_healthy(pods(3, 2), DrainPermission::Granted),
            3
        );
        assert_eq!(
            web([9, 3, 6]).min_healthy(pods(3, 3), DrainPermission::Granted),
            0
        );
        assert_eq!(
            web([0, 3, 0]).min_healthy(pods(0, 0), DrainPermission::Granted),
            0
        );
        assert_eq!(
            web([4, 3, 1]).min_healthy(pods(3, 3), DrainPermission::Withheld),
            3,
            "another provider may use what home allows"
        );
    }

    #[test]
    fn a_status_of_before_the_last_change_allows_nothing() {
        let mut changed = json!({ "metadata": { "name": "web", "generation": 3 }, "spec": { "selector": {} },
            "status": { "observedGeneration": 2, "currentHealthy": 4, "desiredHealthy": 3, "disruptionsAllowed": 1, "expectedPods": 4 } });
        let least = |budget: &Value| {
            LocalDisruptionBudget::from_budget(serde_json::from_value(budget.clone()).unwrap())
                .unwrap()
                .min_healthy(pods(3, 3), DrainPermission::Granted)
        };
        assert_eq!(least(&changed), 3);
        changed["metadata"]["generation"] = 2.into();
        assert_eq!(least(&changed), 2);
        changed["status"] = Value::Null;
        assert_eq!(least(&changed), 3);
    }

    #[test]
    fn a_budget_travels_if_remote_pods_have_the_labels_that_it_selects() {
        assert_eq!(
            budget(&json!({ "minAvailable": 3 }), [4, 3, 1]),
            None,
            "it selects nothing"
        );
        let selector = json!({ "matchLabels": { "app": "web", "app.kubernetes.io/name": "web", "example.com/tier": "a" } });
        let unknown = budget(
            &json!({ "maxUnavailable": 1, "selector": selector }),
            [4, 3, 1],
        )
        .unwrap()
        .unknown_labels;
        assert_eq!(
            unknown.into_iter().collect::<Vec<_>>(),
            ["example.com/tier"]
        );
        assert!(web([4, 3, 1]).unknown_labels.is_empty());
        assert_eq!(web([4, 3, 1]).object_at_provider("web", 0), None);
        let spec = json!({ "selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow" });
        let sent = budget(&spec, [4, 3, 1])
            .unwrap()
            .object_at_provider("web", 2)
            .unwrap();
        let kept = json!({ "spec": { "minAvailable": 2, "selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow" } });
        assert_eq!(Value::from(travelling_budget(&sent)), kept);
    }

    #[test]
    fn a_provider_takes_over_a_number_and_a_selector_and_nothing_else() {
        let kept = |spec: Value| Value::from(travelling_budget(&json!({ "spec": spec })));
        let more = json!({ "minAvailable": 2, "maxUnavailable": 1, "selector": {}, "unhealthyPodEvictionPolicy": "IfHealthyBudget", "x": 1 });
        assert_eq!(
            kept(more),
            json!({ "spec": { "minAvailable": 2, "selector": {} } })
        );
        for unusable in [
            json!({ "minAvailable": "50%", "selector": {} }),
            json!({ "minAvailable": -1, "selector": {} }),
            json!({ "minAvailable": u32::MAX, "selector": {} }),
            json!({ "minAvailable": 1 }),
            json!({ "minAvailable": 1, "selector": { "matchLabels": { "a": 1 } } }),
            json!([]),
        ] {
            assert_eq!(kept(unusable.clone()), json!({}), "{unusable}");
        }
        assert_eq!(Value::from(travelling_budget(&json!({}))), json!({}));
    }

    #[test]
    fn of_several_providers_one_that_drains_may_use_what_home_allows_and_two_take_turns() {
        let holders = |all: &[u8], draining: &[u8]| -> Vec<ProviderWithPods> {
            all.iter()
                .map(|&number| ProviderWithPods {
                    id: id(number),
                    drains: draining.contains(&number),
                    keeps_all: true,
                })
                .collect()
        };
        assert_eq!(
            drain_turn(&id(1), &holders(&[1], &[]), at(0)),
            DrainTurn::granted(None)
        );
        assert_eq!(drain_turn(&id(1), &[], at(0)), DrainTurn::granted(None));
        assert_eq!(
            drain_turn(&id(1), &holders(&[1, 2], &[]), at(0)),
            DrainTurn::withheld(None)
        );
        assert_eq!(
            drain_turn(&id(1), &holders(&[1, 2], &[2]), at(0)),
            DrainTurn::withheld(None)
        );
        assert_eq!(
            drain_turn(&id(2), &holders(&[1, 2], &[2]), at(0)),
            DrainTurn::granted(None)
        );
        assert_eq!(
            drain_turn(&id(1), &holders(&[2], &[]), at(0)),
            DrainTurn::withheld(None),
            "its pods are gone, and it keeps none"
        );
        let both = holders(&[1, 2, 3], &[1, 2]);
        let length = TURN.as_secs().cast_signed();
        for second in 0..3 * length {
            let turns = [1, 2, 3].map(|number| drain_turn(&id(number), &both, at(second)));
            assert_eq!(
                turns
                    .iter()
                    .filter(|turn| turn.permission == DrainPermission::Granted)
                    .count(),
                1,
                "{second}"
            );
            let left = Duration::from_secs((length - second % length).unsigned_abs());
            assert_eq!(
                turns.map(|turn| turn.ask_after),
                [Some(left), Some(left), None],
                "{second}"
            );
        }
        assert_ne!(
            drain_turn(&id(1), &both, at(0)).permission,
            drain_turn(&id(1), &both, at(length)).permission
        );
    }

    #[test]
    fn nobody_uses_what_home_allows_while_another_provider_may_still_use_it() {
        let mut holders = [1, 2].map(|number| ProviderWithPods {
            id: id(number),
            drains: number == 2,
            keeps_all: number == 2,
        });
        assert_eq!(
            drain_turn(&id(2), &holders, at(0)),
            DrainTurn::withheld(Some(HANDOVER))
        );
        holders[0].keeps_all = true;
        assert_eq!(
            drain_turn(&id(2), &holders, at(0)),
            DrainTurn::granted(None)
        );
    }

    #[test]
    fn a_larger_number_is_told_at_once_and_a_smaller_one_when_it_has_settled() {
        let mut told = ReportedMinimum::new(2);
        assert_eq!(tell(&mut told, 3, 0), (3, None));
        assert_eq!(tell(&mut told, 2, 1), (3, Some(SETTLING)));
        assert_eq!(tell(&mut told, 2, 5), (3, Some(Duration::from_secs(1))));
        assert_eq!(tell(&mut told, 3, 5), (3, None));
        assert_eq!(
            tell(&mut told, 1, 9),
            (3, Some(SETTLING)),
            "it was not right in between"
        );
        assert_eq!(tell(&mut told, 1, 14), (1, None));
        assert_eq!(tell(&mut told, 1, 15), (1, None));
    }

    #[test]
    fn numbers_that_change_all_the_time_are_told_as_far_as_all_of_them_allow() {
        let mut told = ReportedMinimum::new(9);
        let numbers = [5, 3, 6, 2, 4, 2];
        let said: Vec<usize> = (0..)
            .step_by(2)
            .zip(numbers)
            .map(|(second, least)| tell(&mut told, least, second).0)
            .collect();
        assert_eq!(said, [9, 9, 9, 6, 6, 6]);
        assert_eq!(tell(&mut told, 2, 12), (4, Some(SETTLING)));
        assert_eq!(tell(&mut told, 2, 17), (2, None));
    }
}
