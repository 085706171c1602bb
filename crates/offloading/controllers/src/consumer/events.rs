//! Events on local pods.

use liqo_controller_runtime::events::object_ref;

use super::state::Consumer;
use liqo_offloading_rules::pod::local_state::LocalPod;

pub async fn warn(consumer: &Consumer, pod: &LocalPod, reason: &str, message: &str) {
    consumer.context.events.warning(&object_ref("v1", "Pod", &pod.key, Some(pod.uid.clone())), reason, message).await;
}
