//! Finds the endpoints of a consumer that are not ready here because the tunnel to the consumer
//! does not work.
//!
//! Endpoints behind the tunnel are addresses of the consumer's network, so the tunnel decides and
//! not the consumer's manager: its Services stay reachable while the manager is away. Like
//! Kubernetes for pods of a lost node, the provider marks these endpoints as not ready, and keeps
//! their addresses. Pods of the consumer that run here are reached without the tunnel, so they do
//! not change.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use crate::json::set_at;
use crate::replica::kind::ReplicaKind;
use crate::replica::replica_source::ReplicaSource;
use crate::replica::service;
use crate::views::{EndpointView, ServiceView};

/// Endpoints are not ready after their tunnel has not worked for this time. A tunnel counts as
/// broken after about 9 s of silence, so the sum is the silence after which a virtual node is not
/// ready: [`DOWN_AFTER`](crate::node::object::DOWN_AFTER).
const LOST_AFTER: Duration = Duration::from_secs(31);

/// Time until the endpoints behind a tunnel are not ready, zero if they are not; `None` while the
/// tunnel works. The time comes from the tunnel's condition, so another leader decides the same.
pub fn time_until_lost(broken_since: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    // A time in the future is another node's clock.
    let broken_for = Duration::try_from(now.duration_since(broken_since?)).unwrap_or_default();
    Some(LOST_AFTER.saturating_sub(broken_for))
}

/// The Services that publish endpoints that are not ready.
pub fn services_publishing_unready<'a>(
    services: impl IntoIterator<Item = &'a ReplicaSource>,
) -> BTreeSet<String> {
    services
        .into_iter()
        .filter(|service| {
            let content = service
                .content()
                .filter(|_| service.kind == Some(ReplicaKind::Service));
            content.is_some_and(|content| {
                ServiceView::of(&content)
                    .spec()
                    .publish_not_ready_addresses()
                    == Some(true)
            })
        })
        .map(|service| service.name.clone())
        .collect()
}

impl ReplicaSource {
    /// Marks the endpoints of a slice that are not `here` as not ready. Those of Services that are
    /// `publishing` stay ready, and no longer serve.
    #[must_use]
    pub fn with_lost_endpoints(
        mut self,
        publishing: &BTreeSet<String>,
        here: impl Fn(IpAddr) -> bool,
    ) -> Self {
        let is_wanted = self.kind == Some(ReplicaKind::EndpointSlice) && self.problem.is_none();
        let Some(mut slice) = self.content().filter(|_| is_wanted) else {
            return self;
        };
        let publishes =
            service::service_of(&slice).is_some_and(|service| publishing.contains(service));
        for endpoint in slice
            .get_mut("endpoints")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if EndpointView::of(endpoint)
                .address_texts()
                .filter_map(|address| address.parse().ok())
                .any(&here)
            {
                continue;
            }
            if !publishes {
                set_at(endpoint, &["conditions", "ready"], false);
            }
            set_at(endpoint, &["conditions", "serving"], false);
        }
        self.set_content(&slice);
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::object;
    use crate::json::items_at;
    use crate::node::object::DOWN_AFTER;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn endpoints_are_lost_when_a_node_would_be_and_again_ready_at_once() {
        assert_eq!(time_until_lost(None, at(1000)), None);
        assert_eq!(time_until_lost(Some(at(1000)), at(1000)), Some(LOST_AFTER));
        assert_eq!(
            time_until_lost(Some(at(1000)), at(1030)),
            Some(Duration::from_secs(1))
        );
        assert_eq!(
            time_until_lost(Some(at(1000)), at(1031)),
            Some(Duration::ZERO)
        );
        assert_eq!(
            time_until_lost(Some(at(1000)), at(9000)),
            Some(Duration::ZERO)
        );
        assert_eq!(
            time_until_lost(Some(at(1060)), at(1000)),
            Some(LOST_AFTER),
            "the clock of the gateway's node is ahead"
        );
        assert!(LOST_AFTER < DOWN_AFTER && LOST_AFTER + Duration::from_secs(10) > DOWN_AFTER);
    }

    fn source(content: &Value) -> ReplicaSource {
        object("web", content, |_| {})
    }

    fn slice() -> Value {
        json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "web-x", "labels": { "kubernetes.io/service-name": "web" } }, "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.71.0.5"], "conditions": { "ready": true, "serving": true, "terminating": false } },
                { "addresses": ["10.71.0.6"], "conditions": {} },
                { "addresses": ["10.244.0.9"], "conditions": { "ready": true } },
            ],
            "ports": [{ "port": 80, "protocol": "TCP" }] })
    }

    fn is_here(address: IpAddr) -> bool {
        address == "10.244.0.9".parse::<IpAddr>().unwrap()
    }

    fn conditions(source: &ReplicaSource) -> Vec<Value> {
        items_at(&source.content().unwrap(), "/endpoints")
            .iter()
            .map(|endpoint| endpoint["conditions"].clone())
            .collect()
    }

    #[test]
    fn only_endpoints_behind_the_tunnel_are_not_ready() {
        let before = source(&slice());
        let lost = before
            .clone()
            .with_lost_endpoints(&BTreeSet::new(), is_here);
        let expected = [
            json!({ "ready": false, "serving": false, "terminating": false }),
            json!({ "ready": false, "serving": false }),
            json!({ "ready": true }),
        ];
        assert_eq!(conditions(&lost), expected);
        assert_eq!(
            (&lost.problem, &lost.partial),
            (&None, &None),
            "nothing to tell a consumer that is away"
        );
        assert_ne!(lost.fingerprint, before.fingerprint);
        let again = lost.clone().with_lost_endpoints(&BTreeSet::new(), is_here);
        assert_eq!(again, lost, "the next pass writes nothing");
        assert_eq!(
            before
                .clone()
                .with_lost_endpoints(&BTreeSet::new(), |_| true)
                .fingerprint,
            before.fingerprint
        );
    }

    #[test]
    fn a_service_that_publishes_what_is_not_ready_keeps_its_names() {
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
            "spec": { "clusterIP": "None", "publishNotReadyAddresses": true } });
        let publishing = services_publishing_unready(&[source(&service), source(&slice())]);
        assert_eq!(publishing, BTreeSet::from(["web".to_owned()]));
        let lost = source(&slice()).with_lost_endpoints(&publishing, is_here);
        let expected = [
            json!({ "ready": true, "serving": false, "terminating": false }),
            json!({ "serving": false }),
            json!({ "ready": true }),
        ];
        assert_eq!(conditions(&lost), expected);
    }
}
