//! Finds pods that can run in no other cluster, whatever its policy allows. The webhook keeps them
//! at home; a pod that is bound to a virtual node anyway is refused with the same reason.

use std::collections::BTreeSet;

use liqo_api::OffloadedReason;
use serde_json::Value;

use crate::pod::carry::{PodRefusal, outgoing_pod};
use crate::pod::controller::OwningController;

/// The reason why a pod can run at no provider; `None` if some provider may accept it.
///
/// Privileged containers are no obstacle: an administrator may let a mapped namespace run them.
pub fn pod_obstacle(pod: &Value) -> Option<PodRefusal> {
    let of_controller = OwningController::of_pod(pod)
        .and_then(|controller| obstacle_of_controller(&controller.kind));
    // Labels that a provider advertises never make the difference.
    of_controller.or_else(|| outgoing_pod(pod, &BTreeSet::new()).err())
}

/// The same for pods whose controller has this kind: pods of a `DaemonSet`, and static ones, belong
/// to their node.
pub(crate) fn obstacle_of_controller(kind: &str) -> Option<PodRefusal> {
    let reason = match kind {
        "DaemonSet" => OffloadedReason::DaemonSet,
        "Node" => OffloadedReason::Node,
        _ => return None,
    };
    let message = format!(
        "pods of a {kind} belong to their node, and a virtual node has no machine of its own; keep them off nodes with the label liqo.io/type=virtual-node"
    );
    Some(PodRefusal::new(reason.as_str(), message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reason(pod: &Value) -> Option<OffloadedReason> {
        OffloadedReason::parse(pod_obstacle(pod)?.reason)
    }

    #[test]
    fn a_pod_that_no_policy_can_let_in_is_recognized() {
        let container = |field: Value| json!({ "containers": [field] });
        let volume = |source: Value| json!({ "containers": [], "volumes": [source] });
        for (spec, expected) in [
            (
                json!({ "hostNetwork": true }),
                OffloadedReason::HostNamespace,
            ),
            (json!({ "hostPID": true }), OffloadedReason::HostNamespace),
            (
                container(json!({ "name": "c", "ports": [{ "hostPort": 80 }] })),
                OffloadedReason::HostPort,
            ),
            (
                volume(json!({ "name": "v", "hostPath": { "path": "/" } })),
                OffloadedReason::HostPath,
            ),
            (
                volume(json!({ "name": "v", "persistentVolumeClaim": { "claimName": "d" } })),
                OffloadedReason::PersistentVolumeClaim,
            ),
            (
                volume(json!({ "name": "v", "ephemeral": {} })),
                OffloadedReason::PersistentVolumeClaim,
            ),
            (
                volume(json!({ "name": "v", "nfs": {} })),
                OffloadedReason::VolumeType,
            ),
            (
                volume(
                    json!({ "name": "v", "projected": { "sources": [{ "serviceAccountToken": {} }] } }),
                ),
                OffloadedReason::TokenProjection,
            ),
            (
                json!({ "resourceClaims": [{ "name": "gpu" }] }),
                OffloadedReason::ResourceClaims,
            ),
            (json!({ "brandNew": 1 }), OffloadedReason::UnknownField),
        ] {
            let pod = json!({ "metadata": {}, "spec": spec });
            assert_eq!(reason(&pod), Some(expected), "{pod}");
        }
    }

    #[test]
    fn what_a_policy_may_allow_is_no_obstacle() {
        let privileged = json!({ "name": "c", "securityContext": { "privileged": true } });
        let token = json!({ "name": "kube-api-access-x", "projected": { "sources": [{ "serviceAccountToken": {} }] } });
        for spec in [
            json!({ "containers": [privileged], "hostNetwork": false }),
            json!({ "containers": [], "volumes": [token, { "name": "s", "secret": {} }] }),
            json!({ "containers": [], "nodeSelector": { "zone": "a" }, "tolerations": [{ "operator": "Exists" }] }),
        ] {
            assert_eq!(
                pod_obstacle(&json!({ "metadata": {}, "spec": spec })),
                None,
                "{spec}"
            );
        }
    }

    #[test]
    fn pods_of_a_node_stay_there_and_those_of_other_controllers_travel() {
        let of = |kind: &str, controller: bool| json!({ "metadata": { "ownerReferences": [{ "kind": kind, "controller": controller }] }, "spec": { "containers": [] } });
        assert_eq!(
            reason(&of("DaemonSet", true)),
            Some(OffloadedReason::DaemonSet)
        );
        assert_eq!(reason(&of("Node", true)), Some(OffloadedReason::Node));
        assert_eq!(pod_obstacle(&of("ReplicaSet", true)), None);
        assert_eq!(
            pod_obstacle(&of("DaemonSet", false)),
            None,
            "only the controller counts"
        );
    }
}
