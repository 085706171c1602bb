//! Whether nodes and pods are ready, as Kubernetes has it.

use k8s_openapi::api::core::v1::{Node, Pod};

/// Whether a node is Ready.
pub fn node(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a pod is Ready, and stays.
pub fn pod(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
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
        found.metadata.deletion_timestamp = Some(liqo_api::Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert!(!pod(&found) && !pod(&Pod::default()));
    }
}
