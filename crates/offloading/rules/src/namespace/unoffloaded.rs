//! Pods that are bound to a virtual node although their namespace is no longer offloaded.
//!
//! A webhook whose watch lags still sends new pods to virtual nodes for a moment after the
//! namespace was unoffloaded. No provider takes them. Their controller creates them again, in this
//! cluster, if they are deleted.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use crate::pod::carry::obstacle::obstacle_of_controller;
use crate::pod::local_state::LocalPod;

/// Period after the end of the offloading in which these pods are deleted. A pod that appears later
/// was not placed by the webhook: its creator tolerates virtual nodes, and would create it again
/// and again.
const LATE_POD_PERIOD: SignedDuration = SignedDuration::from_secs(20);

/// The times at which namespaces were unoffloaded. A restart forgets them; then these pods are
/// deleted after the refusal timeout.
#[derive(Debug, Default)]
pub struct UnoffloadedNamespaces(HashMap<String, Timestamp>);

impl UnoffloadedNamespaces {
    /// The namespace is no longer offloaded.
    pub fn add(&mut self, namespace: &str, now: Timestamp) {
        self.0.insert(namespace.to_owned(), now);
    }

    /// Whether a webhook that lags may still have placed pods of the namespace.
    pub fn is_recent(&mut self, namespace: &str, now: Timestamp) -> bool {
        self.0
            .retain(|_, since| now.duration_since(*since) < LATE_POD_PERIOD);
        self.0.contains_key(namespace)
    }
}

/// Whether a pod of a namespace that is not offloaded is deleted, so that its controller creates it
/// again in this cluster.
pub fn is_recreated_here(pod: &LocalPod) -> bool {
    let is_created_again = pod
        .controller
        .as_ref()
        .is_some_and(|controller| obstacle_of_controller(&controller.kind).is_none());
    is_created_again && !pod.finished && pod.deletion.is_none()
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use liqo_api::Key;
    use serde_json::{Value, json};

    use super::*;

    fn pod(changes: Value) -> LocalPod {
        let mut pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" }, "spec": { "containers": [] } });
        json_patch::merge(&mut pod, &changes);
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("p", "default"),
        )
        .unwrap()
    }

    fn of_kind(kind: &str) -> Value {
        let owner = json!([{ "apiVersion": "x/v1", "kind": kind, "name": "o", "uid": "o", "controller": true }]);
        json!({ "metadata": { "ownerReferences": owner } })
    }

    #[test]
    fn only_a_pod_that_is_created_again_comes_home_and_only_once() {
        assert!(
            is_recreated_here(&pod(of_kind("ReplicaSet")))
                && is_recreated_here(&pod(of_kind("Job")))
        );
        assert!(
            !is_recreated_here(&pod(json!({}))) && !is_recreated_here(&pod(of_kind("DaemonSet")))
        );
        let mut ending = of_kind("ReplicaSet");
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_recreated_here(&pod(ending)));
        let mut finished = of_kind("Job");
        finished["status"] = json!({ "phase": "Succeeded" });
        assert!(!is_recreated_here(&pod(finished)));
    }

    #[test]
    fn pods_are_brought_home_for_a_while_after_the_end() {
        let (mut unoffloaded, end) = (UnoffloadedNamespaces::default(), Timestamp::UNIX_EPOCH);
        assert!(!unoffloaded.is_recent("demo", end));
        unoffloaded.add("demo", end);
        assert!(unoffloaded.is_recent("demo", end + SignedDuration::from_secs(19)));
        assert!(!unoffloaded.is_recent("other", end));
        assert!(!unoffloaded.is_recent("demo", end + LATE_POD_PERIOD));
        assert!(unoffloaded.0.is_empty());
    }
}
