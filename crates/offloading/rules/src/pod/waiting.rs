//! A pod that a provider accepted, and none of whose containers has started yet: what keeps it.

use liqo_api::{OffloadedReason, pods};
use serde_json::Value;

use crate::views::{ContainerList, ContainerStatusView, PodStatusView, PodView};

/// The home cluster's knowledge about a pod that waits at its provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitingStatus {
    /// The cause of the wait, and a message for people. A kubelet names no cause while it pulls an
    /// image.
    pub cause: Option<(OffloadedReason, String)>,
}

/// The states of a container that a kubelet cannot start. Source: `pkg/kubelet/images` and
/// `kuberuntime` of Kubernetes.
const CANNOT_START: [&str; 7] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
];

/// Whether a container of a pod with this status runs or ran.
pub fn has_started(status: &Value) -> bool {
    let status = PodStatusView::of(status);
    let is_pending = status.phase().is_none_or(|phase| phase == "Pending");
    !is_pending || started_statuses(status).any(is_or_was_running)
}

/// The statuses of the containers with which the pod starts.
fn started_statuses(status: PodStatusView<'_>) -> impl Iterator<Item = ContainerStatusView<'_>> {
    ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(move |list| status.statuses_in(list))
}

impl WaitingStatus {
    /// Reads the status of a local pod. `None` if a container of it runs or ran.
    pub fn of_pod(pod: &Value) -> Option<Self> {
        let status = PodView::of(pod).status();
        if has_started(status.json()) {
            return None;
        }
        let false_condition = |kind| {
            status
                .conditions()
                .find(|one| one.has_status(kind, "False"))
        };
        let cause = if let Some(condition) = false_condition(pods::REMOTE_SCHEDULED) {
            let message = condition.message().unwrap_or_default();
            Some((OffloadedReason::Unschedulable, message.to_owned()))
        } else if let Some(stuck) = started_statuses(status).find_map(cannot_start) {
            Some((OffloadedReason::NotStarted, stuck))
        } else {
            let stuck = "the kubelet there has not set up the pod's network and volumes".to_owned();
            false_condition("PodReadyToStartContainers")
                .map(|_| (OffloadedReason::NotStarted, stuck))
        };
        Some(Self { cause })
    }
}

fn is_or_was_running(status: ContainerStatusView<'_>) -> bool {
    status.state().running().is_some()
        || status.state().terminated().is_some()
        || status.last_state().terminated().is_some()
        || status.restart_count().unwrap_or_default() > 0
}

fn cannot_start(status: ContainerStatusView<'_>) -> Option<String> {
    let waiting = status.state().waiting()?;
    let reason = waiting
        .reason()
        .filter(|reason| CANNOT_START.contains(reason))?;
    let message = waiting
        .message()
        .map(|message| format!(": {message}"))
        .unwrap_or_default();
    Some(format!("container {}: {reason}{message}", status.name()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[allow(
        clippy::option_option,
        reason = "a pod that has started, and one that nothing keeps, are different"
    )]
    fn of(status: &Value) -> Option<Option<OffloadedReason>> {
        Some(
            WaitingStatus::of_pod(&json!({ "status": status }))?
                .cause
                .map(|(reason, _)| reason),
        )
    }

    fn negative(kind: &str) -> Value {
        json!({ "type": kind, "status": "False", "message": "m" })
    }

    #[test]
    fn a_pod_waits_until_a_container_of_it_has_started() {
        let with = |list: &str, state: &Value| json!({ "phase": "Pending", list: [{ "name": "c", "state": state }] });
        assert_eq!(of(&json!({})), Some(None), "nothing is reported");
        assert_eq!(
            of(&with(
                "containerStatuses",
                &json!({ "waiting": { "reason": "ContainerCreating" } })
            )),
            Some(None)
        );
        for started in ["running", "terminated"] {
            assert_eq!(
                of(&with("initContainerStatuses", &json!({ started: {} }))),
                None
            );
        }
        let restarted = json!({ "phase": "Pending", "containerStatuses": [{ "restartCount": 1, "state": { "waiting": {} } }] });
        assert_eq!(
            (of(&restarted), of(&json!({ "phase": "Running" }))),
            (None, None)
        );
    }

    #[test]
    fn what_keeps_a_pod_is_named() {
        let unscheduled = json!({ "conditions": [negative(pods::REMOTE_SCHEDULED)] });
        assert_eq!(of(&unscheduled), Some(Some(OffloadedReason::Unschedulable)));
        let without_sandbox = json!({ "conditions": [negative("PodReadyToStartContainers"), negative("ContainersReady")] });
        assert_eq!(
            of(&without_sandbox),
            Some(Some(OffloadedReason::NotStarted))
        );
        let pulls = |reason: &str| {
            json!({ "conditions": [negative("ContainersReady")],
                "containerStatuses": [{ "name": "c", "state": { "waiting": { "reason": reason, "message": "not found" } } }] })
        };
        assert_eq!(
            of(&pulls("ImagePullBackOff")),
            Some(Some(OffloadedReason::NotStarted))
        );
        assert_eq!(
            of(&pulls("ContainerCreating")),
            Some(None),
            "an image may take long"
        );
        let waiting = WaitingStatus::of_pod(&json!({ "status": pulls("ErrImagePull") })).unwrap();
        assert_eq!(
            waiting.cause.unwrap().1,
            "container c: ErrImagePull: not found"
        );
    }
}
