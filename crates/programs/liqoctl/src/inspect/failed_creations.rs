//! Pods that controllers could not create, as their events tell.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;

/// Whether one of Liqo's admission policies or webhooks refused the pod.
pub fn is_refusal_by_liqo(event: &Event) -> bool {
    let said = event.message.as_deref().unwrap_or_default();
    said.contains("ValidatingAdmissionPolicy 'liqo-") || said.contains(".liqo.io\"")
}

/// Time of the last occurrence of an event.
pub fn time_of(event: &Event) -> Option<Timestamp> {
    let last = event
        .last_timestamp
        .as_ref()
        .or(event.first_timestamp.as_ref())
        .map(|time| time.0);
    last.max(event.event_time.as_ref().map(|time| time.0))
}

/// The time of the last refusal, by the UID of the object whose controller was refused.
pub fn last_refusals(events: &[Event]) -> BTreeMap<String, Option<Timestamp>> {
    let mut last: BTreeMap<String, Option<Timestamp>> = BTreeMap::new();
    for event in events {
        if let Some(uid) = &event.involved_object.uid {
            let time = last.entry(uid.clone()).or_default();
            *time = (*time).max(time_of(event));
        }
    }
    last
}
