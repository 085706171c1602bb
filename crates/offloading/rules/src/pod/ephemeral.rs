//! Ephemeral containers, as `kubectl debug` adds them to a running pod.
//!
//! They travel with the other changes of a pod. An API server takes them only for a pod that exists, through a subresource of their
//! own, where Pod Security judges them like all containers. One that the provider's API server refuses is shown as ended: it never
//! starts, and nobody can change it.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::OffloadedReason;
use serde_json::{Value, json};

use crate::json::{items, name, text};
use crate::pod::local_status::{EPHEMERAL_CONTAINERS, EPHEMERAL_STATUSES, cut};
use crate::pod::reported_status::PodStatusText;

/// Maximum number in a remote pod. Kubernetes has none, and they cannot be removed.
const MAX_COUNT: usize = 32;

/// The exit code of a container that never started, as a kubelet reports it.
const NOT_STARTED: i32 = 128;

/// Why containers were refused, by their names.
pub type RefusedContainers = BTreeMap<String, String>;

/// The consumer's side: those that may still run. An ephemeral container never starts twice, not even in the next remote pod.
pub(crate) fn unfinished(pod: &Value) -> Value {
    let has_ended = |container: &Value| {
        let statuses = items(pod, &format!("/status/{EPHEMERAL_STATUSES}"));
        statuses.iter().any(|status| name(status) == name(container) && status.pointer("/state/terminated").is_some())
    };
    items(pod, EPHEMERAL_CONTAINERS).iter().filter(|container| !has_ended(container)).cloned().collect()
}

/// The names of a pod's ephemeral containers. Nothing else of them ever changes.
pub(crate) fn names(pod: &Value) -> BTreeSet<&str> {
    items(pod, EPHEMERAL_CONTAINERS).iter().map(name).collect()
}

/// The provider's side: those that the remote pod lacks.
pub fn missing(carried: &Value, live: &Value) -> Vec<Value> {
    let existing = names(live);
    let room = MAX_COUNT.saturating_sub(existing.len());
    items(carried, EPHEMERAL_CONTAINERS)
        .iter()
        .filter(|container| !existing.contains(name(container)))
        .take(room)
        .cloned()
        .collect()
}

/// The reported status with the containers that were refused.
pub(crate) fn with_refused(status: Option<PodStatusText>, refused: &RefusedContainers) -> Option<PodStatusText> {
    if refused.is_empty() {
        return status;
    }
    let mut status = status.map(|status| status.value()).unwrap_or_default();
    let mut statuses = items(&status, &format!("/{EPHEMERAL_STATUSES}")).to_vec();
    statuses.extend(refused.iter().map(|(name, message)| {
        let ended = json!({ "exitCode": NOT_STARTED, "reason": OffloadedReason::NotAllowed.as_str(), "message": cut(message) });
        json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": ended } })
    }));
    status[EPHEMERAL_STATUSES] = statuses.into();
    Some(PodStatusText::of(&status))
}

/// A sentence about containers that the provider refused, and of which the local pod does not know yet.
pub fn newly_refused(home: &Value, remote: &Value) -> Option<String> {
    let ended = |status: &&Value| status.pointer("/state/terminated").is_some();
    let known = items(home, &format!("/status/{EPHEMERAL_STATUSES}")).iter().filter(ended).map(name).collect::<BTreeSet<_>>();
    let ours = names(home);
    let is_new = |status: &&Value| ours.contains(name(status)) && !known.contains(name(status));
    let is_refused = |status: &&Value| text(status, "/state/terminated/reason") == Some(OffloadedReason::NotAllowed.as_str());
    let refused = items(remote, &format!("/{EPHEMERAL_STATUSES}")).iter().filter(is_new).filter(is_refused).map(|status| {
        let why = text(status, "/state/terminated/message").unwrap_or_default();
        format!("the provider refused the ephemeral container {}: {why}", name(status))
    });
    let all = refused.collect::<Vec<_>>().join("; ");
    (!all.is_empty()).then(|| cut(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: &[&str], ended: &[&str]) -> Value {
        let containers: Vec<Value> = containers.iter().map(|name| json!({ "name": name, "image": "busybox" })).collect();
        let ended: Vec<Value> = ended.iter().map(|name| json!({ "name": name, "state": { "terminated": {} } })).collect();
        json!({ "spec": { "ephemeralContainers": containers }, "status": { EPHEMERAL_STATUSES: ended } })
    }

    #[test]
    fn what_has_ended_is_not_sent_again() {
        let sent = unfinished(&pod(&["a", "b"], &["a"]));
        assert_eq!(sent, json!([{ "name": "b", "image": "busybox" }]));
    }

    #[test]
    fn a_remote_pod_gets_what_it_lacks_and_not_without_limit() {
        let names_of = |all: Vec<Value>| all.iter().map(|one| name(one).to_owned()).collect::<Vec<_>>();
        assert_eq!(names_of(missing(&pod(&["a", "b"], &[]), &pod(&["a"], &[]))), ["b"]);
        let many: Vec<String> = (0..100).map(|number| format!("c{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(missing(&pod(&many, &[]), &pod(&["a"], &[])).len(), MAX_COUNT - 1);
    }

    #[test]
    fn a_refused_container_has_ended_and_its_owner_is_told_once() {
        let refused = RefusedContainers::from([("a".to_owned(), "violates PodSecurity".to_owned())]);
        let reported = with_refused(Some(PodStatusText::of(&json!({ "phase": "Running" }))), &refused).unwrap().value();
        assert_eq!(reported["phase"], "Running");
        let home = pod(&["a"], &[]);
        let message = newly_refused(&home, &reported).unwrap();
        assert_eq!(message, "the provider refused the ephemeral container a: violates PodSecurity");
        assert_eq!(newly_refused(&pod(&["a"], &["a"]), &reported), None, "the local pod shows it");
        assert_eq!(newly_refused(&pod(&["b"], &[]), &reported), None, "a stranger");
        let untouched = Some(PodStatusText::of(&json!({ "phase": "Running" })));
        assert_eq!(with_refused(untouched.clone(), &RefusedContainers::new()), untouched);
    }
}
