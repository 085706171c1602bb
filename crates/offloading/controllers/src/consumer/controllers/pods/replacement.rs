//! When control comes back from the peer that this cluster was tethered to, a pod there ends only
//! when its replacement here is ready.
//!
//! An evicted pod is `Terminating`, so its `ReplicaSet` has already created the next one, and
//! Services use the old one as long as no other is ready. The containers there end when this
//! cluster tells the peer so: it waits with that.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::conditions::has_true_condition;
use liqo_api::{ClusterId, TetheringState};
use liqo_controller_runtime::{
    Key,
    writes::{StepContext as _, StepError},
};

use crate::consumer::state::ConsumerState;
use liqo_offloading_rules::pod::local_state::LocalPod;

/// Interval between two looks at the replacement.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Whether the end of a pod waits for its replacement: until the release is over at the latest.
pub async fn is_awaited(
    consumer: &ConsumerState,
    provider: &ClusterId,
    pod: &LocalPod,
) -> Result<bool, StepError> {
    let config = consumer.context.config();
    let is_released = config.tethering() == (TetheringState::Releasing, Some(provider));
    // Other controllers create the next pod when this one is gone, or none at all.
    let controller = pod
        .controller
        .as_ref()
        .filter(|controller| controller.kind == "ReplicaSet");
    let Some(controller) =
        controller.filter(|_| is_released && pod.deletion.is_some() && !pod.finished)
    else {
        return Ok(false);
    };
    let (client, namespace) = (&consumer.context.client, pod.key.namespace.as_str());
    let whole_namespace = Key::new(namespace, "");
    let sets = Api::<ReplicaSet>::namespaced(client.clone(), namespace)
        .list(&ListParams::default())
        .await;
    let sets = sets.step("list", "ReplicaSets", &whole_namespace)?;
    let wanted = sets
        .items
        .iter()
        .find(|set| set.metadata.uid.as_deref() == Some(&*controller.uid))
        .map(wanted_pods);
    let Some(wanted) = wanted else {
        return Ok(false);
    };
    let pods = Api::<Pod>::namespaced(client.clone(), namespace)
        .list(&ListParams::default())
        .await;
    let pods = pods.step("list", "Pods", &whole_namespace)?;
    Ok(ready_pods(&pods.items, &controller.uid) < wanted)
}

/// Kubernetes: one, if the `ReplicaSet` does not say.
fn wanted_pods(set: &ReplicaSet) -> usize {
    let wanted = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    usize::try_from(wanted).unwrap_or_default()
}

/// Number of ready pods of this controller that do not end.
fn ready_pods(pods: &[Pod], controller: &str) -> usize {
    let owned = pods.iter().filter(|pod| {
        pod.owner_references()
            .iter()
            .any(|owner| owner.uid == controller)
    });
    owned
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_pod_ready(pod))
        .count()
}

fn is_pod_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    has_true_condition(conditions, "Ready")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn pod(owner: &str, ready: &str, deletion: &Value) -> Pod {
        let owners = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner, "controller": true }]);
        from_value(json!({
            "metadata": { "name": "p", "ownerReferences": owners, "deletionTimestamp": deletion },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    #[test]
    fn only_ready_pods_of_the_same_controller_that_stay_count() {
        let ending = json!("2026-01-01T00:00:00Z");
        let pods = [
            pod("a", "True", &ending),
            pod("a", "False", &Value::Null),
            pod("b", "True", &Value::Null),
        ];
        assert_eq!(
            ready_pods(&pods, "a"),
            0,
            "the old one ends, the new one is not ready"
        );
        let pods = [pod("a", "True", &ending), pod("a", "True", &Value::Null)];
        assert_eq!(ready_pods(&pods, "a"), 1);
    }

    #[test]
    fn a_replica_set_that_wants_fewer_pods_waits_for_none() {
        let wanted = |spec: Value| {
            wanted_pods(&from_value(json!({ "metadata": {}, "spec": spec })).unwrap())
        };
        let selector = json!({ "matchLabels": {} });
        assert_eq!(wanted(json!({ "replicas": 0, "selector": selector })), 0);
        assert_eq!(wanted(json!({ "replicas": 2, "selector": selector })), 2);
        assert_eq!(wanted(json!({ "selector": selector })), 1);
    }
}
