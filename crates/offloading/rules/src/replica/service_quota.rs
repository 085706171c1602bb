//! Limits the Services and endpoints of one consumer that a provider serves: each costs rules on
//! every node.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use liqo_api::{Key, Usage};

use crate::pod::consumer_policy::ConsumerPolicy;
use crate::replica::kind::ReplicaKind;
use crate::replica::replica_source::{QUOTA_EXCEEDED, ReplicaProblem, ReplicaSource};

/// The Services and slices of one consumer that have no room here.
#[derive(Clone, Debug, Default)]
pub struct ServiceQuota {
    policy: String,
    max_services: usize,
    max_endpoints: usize,
    /// UIDs of the records without enough room, with the number of endpoints of a slice that have
    /// room.
    over: BTreeMap<String, usize>,
    /// Namespaces, in the consumer's cluster, of records that lost their room and still have
    /// replicas.
    changed: BTreeSet<String>,
}

impl ServiceQuota {
    /// The quota of this policy for a consumer with these sources in all its namespaces. Those that
    /// have room keep it, as far as it suffices; then the oldest get it.
    pub fn new<'a>(
        policy: Option<&ConsumerPolicy>,
        sources: impl IntoIterator<Item = &'a ReplicaSource>,
    ) -> Self {
        let usage = policy.map_or_else(Usage::default, |policy| policy.usage.clone());
        let (max_services, max_endpoints) = (
            usage.max_services.into(),
            usize::try_from(usage.max_endpoints).unwrap_or(usize::MAX),
        );
        let mut all: Vec<&ReplicaSource> = sources
            .into_iter()
            .filter(|source| {
                let is_limited = matches!(
                    source.kind,
                    Some(ReplicaKind::Service | ReplicaKind::EndpointSlice)
                );
                is_limited && !source.deleted && source.problem.is_none()
            })
            .collect();
        all.sort_by(|one, other| quota_order(one).cmp(&quota_order(other)));
        let policy = policy.map(|policy| policy.name.clone()).unwrap_or_default();
        let mut quota = Self {
            policy,
            max_services,
            max_endpoints,
            ..Self::default()
        };
        let (mut services, mut endpoints) = (0, 0);
        for source in all {
            // A Service whose content is refused may have a replica.
            let (used, count, cost, max) = match source.kind {
                Some(ReplicaKind::Service) => (&mut services, 1, 1, max_services),
                _ => (
                    &mut endpoints,
                    source.endpoints,
                    source.ports,
                    max_endpoints,
                ),
            };
            let fitting = count.min(max.saturating_sub(*used) / cost.max(1));
            *used += fitting * cost;
            if fitting == count {
                continue;
            }
            quota.over.insert(source.uid.clone(), fitting);
            if !was_over(source) {
                quota.changed.insert(source.home.clone());
            }
        }
        quota
    }

    /// Refuses a Service or slice that has no room, and cuts a slice down to the endpoints that
    /// have room.
    #[must_use]
    pub fn limit_source(&self, mut source: ReplicaSource) -> ReplicaSource {
        let Some(&fitting) = self
            .over
            .get(&source.uid)
            .filter(|_| source.problem.is_none())
        else {
            return source;
        };
        let whose = if self.policy.is_empty() {
            String::new()
        } else {
            format!(", as its PeeringPolicy {} says", self.policy)
        };
        let message = match source.kind {
            Some(ReplicaKind::Service) => format!(
                "a consumer has at most {} Services at the provider{whose}",
                self.max_services
            ),
            _ => format!(
                "a consumer has at most {} endpoints at the provider, each counted for every port{whose}",
                self.max_endpoints
            ),
        };
        if fitting > 0 {
            let message = format!("left out: all but {fitting} endpoints, because {message}");
            return source.with_endpoints(fitting, ReplicaProblem::new(QUOTA_EXCEEDED, message));
        }
        source.problem = Some(ReplicaProblem::new(QUOTA_EXCEEDED, message));
        source
    }

    /// Whether something has no room, so that it must be tried again.
    pub fn is_exceeded(&self) -> bool {
        !self.over.is_empty()
    }

    /// The namespaces, in the consumer's cluster, whose Services must be looked at again.
    pub fn changed_namespaces(&self) -> impl Iterator<Item = &String> {
        self.changed.iter()
    }
}

/// Whether the last report says that it has no room.
fn was_over(source: &ReplicaSource) -> bool {
    source
        .reported
        .as_ref()
        .is_some_and(|problem| problem.reason == QUOTA_EXCEEDED)
}

/// Those that have room come first, then the oldest.
fn quota_order(source: &ReplicaSource) -> (bool, Timestamp, &Key) {
    (was_over(source), source.since, &source.key)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{object, policy};

    fn dated(name: &str, second: u8, content: &Value) -> ReplicaSource {
        object(name, content, |object| {
            object["metadata"]["uid"] = name.into();
            object["metadata"]["creationTimestamp"] =
                format!("2026-01-01T00:00:{second:02}Z").into();
        })
    }

    fn service(name: &str, second: u8, ports: u16) -> ReplicaSource {
        let ports: Vec<Value> = (1..=ports)
            .map(|port| json!({ "name": format!("p{port}"), "port": port }))
            .collect();
        let metadata = json!({ "name": name });
        dated(
            name,
            second,
            &json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": ports } }),
        )
    }

    fn slice(name: &str, second: u8, endpoints: u8, ports: u16) -> ReplicaSource {
        let endpoints: Vec<Value> = (1..=endpoints)
            .map(|last| json!({ "addresses": [format!("10.0.0.{last}")] }))
            .collect();
        let ports: Vec<Value> = (1..=ports)
            .map(|port| json!({ "name": format!("p{port}"), "port": port }))
            .collect();
        let metadata = json!({ "name": name, "labels": { "kubernetes.io/service-name": "web" } });
        let content = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports });
        dated(name, second, &content)
    }

    /// The names of the refused sources, with the reasons.
    fn refused(usage: Value, sources: &[ReplicaSource]) -> Vec<(String, String)> {
        let quota = ServiceQuota::new(Some(&policy(usage)), sources);
        let refused = sources.iter().filter_map(|source| {
            Some((
                source.uid.clone(),
                quota.limit_source(source.clone()).problem?.reason,
            ))
        });
        refused.collect()
    }

    fn limit(name: &str) -> (String, String) {
        (name.to_owned(), QUOTA_EXCEEDED.to_owned())
    }

    #[test]
    fn the_oldest_services_have_room_and_one_that_was_refused_takes_none_from_others() {
        let two = json!({ "maxServices": 2 });
        let mut all = [
            service("new", 9, 1),
            service("old", 1, 1),
            service("middle", 5, 1),
        ];
        assert_eq!(refused(two.clone(), &all), [limit("new")]);
        all[1].reported = Some(ReplicaProblem::new(QUOTA_EXCEEDED, "x"));
        assert_eq!(refused(two.clone(), &all), [limit("old")]);
        all[2].deleted = true;
        assert_eq!(refused(two, &all), []);
    }

    #[test]
    fn a_service_with_more_ports_than_it_may_have_counts_once() {
        let all = [service("many", 1, 25), service("few", 2, 1)];
        assert_eq!(refused(json!({ "maxServices": 1 }), &all), [limit("few")]);
        assert_eq!(refused(json!({ "maxServices": 2 }), &all), []);
    }

    #[test]
    fn a_service_whose_change_is_refused_keeps_its_room() {
        let mut all = [service("a", 1, 1), service("b", 2, 1)];
        all[0].refused = Some(ReplicaProblem::new("TooLarge", "x"));
        assert_eq!(refused(json!({ "maxServices": 1 }), &all), [limit("b")]);
    }

    #[test]
    fn a_slice_without_room_is_reported_as_such_although_its_service_is_missing() {
        let quota = ServiceQuota::new(
            Some(&policy(json!({ "maxEndpoints": 1 }))),
            &[slice("a", 1, 2, 1)],
        );
        let judged = quota
            .limit_source(slice("a", 1, 2, 1))
            .clamp_slice(&BTreeSet::new(), |_| true);
        assert_eq!(
            judged.problem.map(|problem| problem.reason).as_deref(),
            Some(QUOTA_EXCEEDED)
        );
    }

    #[test]
    fn endpoints_count_for_every_port_and_one_that_grows_takes_the_room_of_younger_ones() {
        let budget = json!({ "maxEndpoints": 20 });
        let all = [
            slice("a", 1, 5, 2),
            slice("b", 2, 5, 2),
            slice("c", 3, 1, 1),
        ];
        assert_eq!(refused(budget.clone(), &all), [limit("c")]);
        let mut grown = [slice("a", 1, 10, 2), slice("b", 2, 5, 2)];
        assert_eq!(refused(budget.clone(), &grown), [limit("b")]);
        // Its namespace is looked at once more, until it is reported.
        let changed = |all: &[ReplicaSource]| {
            ServiceQuota::new(Some(&policy(budget.clone())), all)
                .changed_namespaces()
                .count()
        };
        assert_eq!(changed(&grown), 1);
        grown[1].reported = Some(ReplicaProblem::new(QUOTA_EXCEEDED, "x"));
        assert_eq!(changed(&grown), 0);
    }

    #[test]
    fn a_slice_that_grows_beyond_the_budget_keeps_the_endpoints_that_have_room() {
        let budget = policy(json!({ "maxEndpoints": 21 }));
        let mut all = [
            slice("a", 1, 3, 2),
            slice("b", 2, 20, 2),
            slice("c", 3, 1, 1),
        ];
        let endpoints = |all: &[ReplicaSource]| -> Vec<usize> {
            let quota = ServiceQuota::new(Some(&budget), all);
            let kept = all
                .iter()
                .map(|source| quota.limit_source(source.clone()))
                .filter(|source| source.problem.is_none());
            kept.map(|source| {
                source.content().unwrap()["endpoints"]
                    .as_array()
                    .unwrap()
                    .len()
            })
            .collect()
        };
        assert_eq!(endpoints(&all), [3, 7, 1], "what is left is enough for c");
        let quota = ServiceQuota::new(Some(&budget), &all);
        let partial = quota.limit_source(all[1].clone()).partial.unwrap();
        assert!(
            partial.reason == QUOTA_EXCEEDED
                && partial.message.starts_with("left out: all but 7 endpoints"),
            "{partial:?}"
        );
        all[1].reported = Some(partial);
        assert_eq!(endpoints(&all), [3, 7, 1], "it stays so when it is told");
    }

    #[test]
    fn without_a_policy_the_limits_are_the_default_ones() {
        let all: Vec<ReplicaSource> = (0..1050)
            .map(|number| service(&format!("s{number}"), 1, 1))
            .collect();
        let quota = ServiceQuota::new(None, &all);
        assert_eq!(
            all.iter()
                .filter(|source| quota.limit_source((*source).clone()).problem.is_some())
                .count(),
            50
        );
        assert!(quota.is_exceeded());
    }
}
