//! The pulls of images, and what kubelets tell of them in events.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    fields::{after, name, namespace, text, time_text, uid},
    plan::Plan,
    snapshot::Snapshot,
};

/// Whether a container may start, because its image is there; a pull begins at `begin`. Other
/// images than those in the settings always are there, and no event says so.
pub fn has_image(
    pod: &Value,
    container: &Value,
    begin: Timestamp,
    snapshot: &Snapshot,
    plan: &mut Plan,
) -> bool {
    let image = text(&container["image"]);
    let Some(seconds) = snapshot.settings.image_pulls.get(image) else {
        return true;
    };
    let end = after(begin, *seconds);
    let is_there = plan.is_due(end);
    let mut tell = |reason: &str, at: Timestamp, message: &str| {
        let event = event(pod, container, reason, at, message);
        if snapshot
            .get("events", namespace(pod), name(&event))
            .is_none()
        {
            plan.create("events", event);
        }
    };
    if *seconds > 0 {
        tell("Pulling", begin, &format!("Pulling image \"{image}\""));
    }
    if is_there {
        let pulled = match seconds {
            0 => format!("Container image \"{image}\" already present on machine"),
            _ => format!("Successfully pulled image \"{image}\" in {seconds}s"),
        };
        tell("Pulled", end, &pulled);
        tell("Created", end, "Container created");
        tell("Started", end, "Container started");
    }
    is_there
}

/// Its name ends with the time, as those of kubelets do. Events of the same time are one nanosecond
/// apart.
fn event(pod: &Value, container: &Value, reason: &str, at: Timestamp, message: &str) -> Value {
    let order = ["Pulling", "Pulled", "Created", "Started"]
        .iter()
        .position(|one| *one == reason)
        .unwrap_or_default();
    let first = at
        .checked_add(SignedDuration::from_nanos(
            i64::try_from(order).unwrap_or_default(),
        ))
        .unwrap_or(at);
    let (container, namespace, pod_name) = (text(&container["name"]), namespace(pod), name(pod));
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": { "namespace": namespace, "name": format!("{pod_name}.{:x}", first.as_nanosecond()) },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod_name, "uid": uid(pod),
            "fieldPath": format!("spec.containers{{{container}}}"),
        },
        "type": "Normal", "reason": reason, "message": message, "count": 1,
        "firstTimestamp": time_text(at), "lastTimestamp": time_text(at), "source": { "component": "kubelet" },
    })
}
