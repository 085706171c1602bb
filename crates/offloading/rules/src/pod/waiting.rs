//! A pod that a provider accepted, and none of whose containers has started yet: since when, and what keeps it.

use jiff::Timestamp;
use liqo_api::{OffloadedReason, pods};
use serde_json::Value;

use crate::json::{items, name, text};

/// What home knows of a pod that waits at its provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Since when the provider reports that it does not run; `None` before its first report.
    pub since: Option<Timestamp>,
    /// What keeps it there, and a message for people. A kubelet names nothing while it pulls an image.
    pub cause: Option<(OffloadedReason, String)>,
}

/// The states of a container that a kubelet cannot start. Source: `pkg/kubelet/images` and `kuberuntime` of Kubernetes.
const CANNOT_START: [&str; 7] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
];

const STATUSES: [&str; 2] = ["/status/initContainerStatuses", "/status/containerStatuses"];

impl Waiting {
    /// Reads the status of a local pod. `None` if a container of it runs or ran.
    pub fn of(pod: &Value) -> Option<Self> {
        let containers = || STATUSES.iter().flat_map(|list| items(pod, list));
        let is_pending = text(pod, "/status/phase").is_none_or(|phase| phase == "Pending");
        if !is_pending || containers().any(has_started) {
            return None;
        }
        let false_condition = |kind: &str| {
            let conditions = items(pod, "/status/conditions").iter();
            conditions.into_iter().find(|one| text(one, "/type") == Some(kind) && text(one, "/status") == Some("False"))
        };
        let (unscheduled, without_sandbox) =
            (false_condition(pods::REMOTE_SCHEDULED), false_condition("PodReadyToStartContainers"));
        let reported = unscheduled.or_else(|| false_condition("ContainersReady")).or(without_sandbox);
        let since = reported.and_then(|one| text(one, "/lastTransitionTime")?.parse().ok());
        let message = |condition: &Value| text(condition, "/message").unwrap_or_default().to_owned();
        let cause = if let Some(condition) = unscheduled {
            Some((OffloadedReason::Unschedulable, message(condition)))
        } else if let Some(stuck) = containers().find_map(cannot_start) {
            Some((OffloadedReason::NotStarted, stuck))
        } else {
            let stuck = "the kubelet there has not set up the pod's network and volumes".to_owned();
            without_sandbox.map(|_| (OffloadedReason::NotStarted, stuck))
        };
        Some(Self { since, cause })
    }
}

fn has_started(status: &Value) -> bool {
    let signs = ["/state/running", "/state/terminated", "/lastState/terminated"];
    signs.iter().any(|sign| status.pointer(sign).is_some()) || status["restartCount"].as_i64().unwrap_or_default() > 0
}

fn cannot_start(status: &Value) -> Option<String> {
    let waiting = status.pointer("/state/waiting")?;
    let reason = text(waiting, "/reason").filter(|reason| CANNOT_START.contains(reason))?;
    let message = text(waiting, "/message").map(|message| format!(": {message}")).unwrap_or_default();
    Some(format!("container {}: {reason}{message}", name(status)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(status: &Value) -> Option<(Option<i64>, Option<OffloadedReason>)> {
        let waiting = Waiting::of(&json!({ "status": status }))?;
        Some((waiting.since.map(Timestamp::as_second), waiting.cause.map(|(reason, _)| reason)))
    }

    fn negative(kind: &str, second: i64) -> Value {
        let at = Timestamp::from_second(second).unwrap().to_string();
        json!({ "type": kind, "status": "False", "message": "m", "lastTransitionTime": at })
    }

    #[test]
    fn a_pod_waits_until_a_container_of_it_has_started() {
        let with = |list: &str, state: &Value| json!({ "phase": "Pending", list: [{ "name": "c", "state": state }] });
        assert_eq!(of(&json!({})), Some((None, None)), "nothing is reported");
        assert_eq!(of(&with("containerStatuses", &json!({ "waiting": { "reason": "ContainerCreating" } }))), Some((None, None)));
        for started in ["running", "terminated"] {
            assert_eq!(of(&with("initContainerStatuses", &json!({ started: {} }))), None);
        }
        let restarted = json!({ "phase": "Pending", "containerStatuses": [{ "restartCount": 1, "state": { "waiting": {} } }] });
        assert_eq!((of(&restarted), of(&json!({ "phase": "Running" }))), (None, None));
    }

    #[test]
    fn what_keeps_a_pod_is_named_with_the_time_since_when() {
        let unscheduled = json!({ "conditions": [negative(pods::REMOTE_SCHEDULED, 7)] });
        assert_eq!(of(&unscheduled), Some((Some(7), Some(OffloadedReason::Unschedulable))));
        let without_sandbox = json!({ "conditions": [negative("PodReadyToStartContainers", 8), negative("ContainersReady", 9)] });
        assert_eq!(of(&without_sandbox), Some((Some(9), Some(OffloadedReason::NotStarted))));
        let pulls = |reason: &str| {
            json!({ "conditions": [negative("ContainersReady", 9)],
                "containerStatuses": [{ "name": "c", "state": { "waiting": { "reason": reason, "message": "not found" } } }] })
        };
        assert_eq!(of(&pulls("ImagePullBackOff")), Some((Some(9), Some(OffloadedReason::NotStarted))));
        assert_eq!(of(&pulls("ContainerCreating")), Some((Some(9), None)), "an image may take long");
        let waiting = Waiting::of(&json!({ "status": pulls("ErrImagePull") })).unwrap();
        assert_eq!(waiting.cause.unwrap().1, "container c: ErrImagePull: not found");
    }
}
