//! Tells whether nodes and pods are ready, and why a pod is not.

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod, PodStatus},
};
use liqo_api::conditions::{StatusCondition as _, has_true_condition};

/// Whether a node is Ready.
pub fn node(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    has_true_condition(conditions.into_iter().flatten(), "Ready")
}

/// Whether a pod is Ready, and stays.
pub fn pod(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = has_true_condition(conditions.into_iter().flatten(), "Ready");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// Reason why a pod is not ready, in the words of its status.
pub fn why_pod_not_ready(status: &PodStatus) -> Option<String> {
    for container in status.container_statuses.iter().flatten() {
        let waiting = container
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref());
        if let Some(waiting) =
            waiting.filter(|waiting| waiting.reason.as_deref() != Some("ContainerCreating"))
        {
            return reason_and_message(waiting.reason.as_ref(), waiting.message.as_ref());
        }
    }
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    reason_and_message(unscheduled.reason.as_ref(), unscheduled.message.as_ref())
}

fn reason_and_message(reason: Option<&String>, message: Option<&String>) -> Option<String> {
    let reason = reason?;
    Some(message.map_or_else(|| reason.clone(), |message| format!("{reason}: {message}")))
}

/// Reason why the API server refuses the pods of a Deployment, for example a quota.
pub fn why_pods_refused(deployment: &Deployment) -> Option<String> {
    let conditions = deployment
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.is_true())?
        .message
        .clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_is_being_deleted_is_not_ready_any_more() {
        let mut found: Pod = serde_json::from_value(
            json!({ "metadata": {}, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
        )
        .unwrap();
        assert!(pod(&found));
        found.metadata.deletion_timestamp =
            Some(liqo_api::Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert!(!pod(&found) && !pod(&Pod::default()));
    }

    #[test]
    fn a_pod_that_cannot_start_says_why() {
        let status = |value| serde_json::from_value::<PodStatus>(value).unwrap();
        let waiting = |reason: &str| json!({ "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "waiting": { "reason": reason, "message": "not found" } } }] });
        assert_eq!(
            why_pod_not_ready(&status(waiting("ImagePullBackOff"))).as_deref(),
            Some("ImagePullBackOff: not found")
        );
        assert_eq!(
            why_pod_not_ready(&status(waiting("ContainerCreating"))),
            None
        );
        let pending = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes" }] });
        assert_eq!(
            why_pod_not_ready(&status(pending)).as_deref(),
            Some("Unschedulable: 0/1 nodes")
        );
    }
}
