//! Events on local pods.
//!
//! Warnings about brokered pods are shown to their consumer, who knows no names for the clusters
//! behind this one.

use k8s_openapi::api::core::v1::ObjectReference;
use liqo_controller_runtime::events::object_ref;

use super::state::ConsumerState;
use liqo_offloading_rules::pod::local_state::LocalPod;

/// A provider of ours, in words for a consumer of ours.
pub const BEHIND: &str = "a cluster behind the provider";

pub async fn warn(consumer: &ConsumerState, pod: &LocalPod, reason: &str, message: &str) {
    consumer
        .context
        .events
        .record_warning(&pod_reference(pod), reason, message)
        .await;
}

/// Tells the owner of a pod what is in order, but not to be seen in the pod.
pub async fn note(consumer: &ConsumerState, pod: &LocalPod, reason: &str, message: &str) {
    consumer
        .context
        .events
        .record_normal(&pod_reference(pod), reason, message)
        .await;
}

fn pod_reference(pod: &LocalPod) -> ObjectReference {
    object_ref("v1", "Pod", &pod.key, Some(pod.uid.clone()))
}
