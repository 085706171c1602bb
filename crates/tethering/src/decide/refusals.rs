//! Finds the controllers that try again to create their pods, now that nothing is refused any more.
//!
//! Kubernetes tries a refused creation again after a time that doubles up to 16 minutes. A change
//! of the controller's object makes it try at once. Events about the refusals name these objects.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use liqo_api::{TetheringState, TetheringStatus};

/// The admission policy that refuses pods while a cluster is tethered; the refusal names it.
const POLICY: &str = "'liqo-tethered'";
/// Group and kind of the workloads that create pods.
const WORKLOADS: [(&str, &str); 5] = [
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    ("batch", "Job"),
    ("", "ReplicationController"),
];
/// Time after a release in which the last refusals may still be reported: API servers learn one
/// after the other that the mode ended.
const AFTERWARDS: SignedDuration = SignedDuration::from_secs(60);

/// Whether an event is about a pod that was refused because of the mode.
pub fn is_refusal(event: &Event) -> bool {
    event
        .message
        .as_deref()
        .is_some_and(|message| message.contains(POLICY))
}

/// The time of the last refusal for which a controller was woken, by the UID of its object.
pub type WokenControllers = BTreeMap<String, Option<Timestamp>>;

/// Whether pods were refused until a moment ago, and are not refused any more.
pub fn refusals_have_ended(status: Option<&TetheringStatus>, now: Timestamp) -> bool {
    status.is_some_and(|status| match status.state {
        TetheringState::Releasing => true,
        TetheringState::Autonomous => now.duration_since(status.since.0) < AFTERWARDS,
        TetheringState::Tethering | TetheringState::Tethered => false,
    })
}

/// The objects whose controllers were refused pods after they were woken last, each with the time
/// of its last refusal.
pub fn controllers_to_wake(
    events: &[Event],
    woken: &WokenControllers,
) -> Vec<(ObjectReference, Option<Timestamp>)> {
    let mut last: BTreeMap<&str, (&ObjectReference, Option<Timestamp>)> = BTreeMap::new();
    for event in events.iter().filter(|event| is_refusal(event)) {
        let Some(uid) = event.involved_object.uid.as_deref() else {
            continue;
        };
        let refused = last.entry(uid).or_insert((&event.involved_object, None));
        refused.1 = refused.1.max(time_of_event(event));
    }
    let new = last
        .into_iter()
        .filter(|(uid, (_, refused))| woken.get(*uid).is_none_or(|before| before < refused));
    new.map(|(_, (object, refused))| (object.clone(), refused))
        .collect()
}

/// A controller that the manager may wake: kind, and what it takes to find the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeableWorkload<'a> {
    pub kind: &'static str,
    pub group: &'static str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The workload that an event names, if it is one of Kubernetes itself. Whoever may create events
/// chooses these words.
pub fn workload_of_event(object: &ObjectReference) -> Option<WakeableWorkload<'_>> {
    let (group, kind) = WORKLOADS
        .into_iter()
        .find(|(_, kind)| object.kind.as_deref() == Some(kind))?;
    Some(WakeableWorkload {
        kind,
        group,
        namespace: safe_name(object.namespace.as_deref()?)?,
        name: safe_name(object.name.as_deref()?)?,
    })
}

/// The name, if it cannot change the path of a request.
fn safe_name(name: &str) -> Option<&str> {
    let is_safe = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'));
    (is_safe && !name.is_empty() && !name.starts_with('.')).then_some(name)
}

fn time_of_event(event: &Event) -> Option<Timestamp> {
    let last = event
        .last_timestamp
        .as_ref()
        .or(event.first_timestamp.as_ref())
        .map(|time| time.0);
    last.max(event.event_time.as_ref().map(|time| time.0))
}

#[cfg(test)]
mod tests {
    use liqo_api::{TetheringReason, Time};
    use serde_json::json;

    use super::*;

    const REFUSAL: &str = "Error creating: pods \"web-x\" is forbidden: ValidatingAdmissionPolicy 'liqo-tethered' with binding \
                           'liqo-tethered' denied request: this cluster is tethered to milan";

    fn event(uid: &str, message: &str, second: i64) -> Event {
        let time = Timestamp::from_second(second).unwrap().to_string();
        let object = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "namespace": "demo", "name": uid, "uid": uid });
        serde_json::from_value(json!({
            "metadata": { "name": uid }, "involvedObject": object, "reason": "FailedCreate", "message": message, "lastTimestamp": time,
        }))
        .unwrap()
    }

    #[test]
    fn each_controller_that_was_refused_in_this_mode_is_woken_once_after_its_last_refusal() {
        let quota = "Error creating: pods \"big-x\" is forbidden: exceeded quota: liqo-tethered";
        let mut events = vec![
            event("web", REFUSAL, 1),
            event("web", REFUSAL, 3),
            event("db", REFUSAL, 2),
            event("big", quota, 9),
        ];
        let mut woken = WokenControllers::new();
        let mut wake = |events: &[Event]| -> Vec<String> {
            let found = controllers_to_wake(events, &woken);
            woken.extend(
                found
                    .iter()
                    .map(|(object, refused)| (object.uid.clone().unwrap(), *refused)),
            );
            found
                .into_iter()
                .filter_map(|(object, _)| object.name)
                .collect()
        };
        assert_eq!(wake(&events), ["db", "web"]);
        assert!(wake(&events).is_empty());
        // The API server did not know yet that the mode had ended.
        events.push(event("web", REFUSAL, 4));
        assert_eq!(wake(&events), ["web"]);
    }

    #[test]
    fn whoever_was_refused_is_woken_once_nothing_is_refused_any_more() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let after = |state: TetheringState, seconds: i64| {
            let since = Time(now - SignedDuration::from_secs(seconds));
            let (reason, message) = (TetheringReason::Untethered.into(), String::new());
            refusals_have_ended(
                Some(&TetheringStatus {
                    state,
                    cluster_id: None,
                    since,
                    deadline: None,
                    reason,
                    message,
                }),
                now,
            )
        };
        assert!(after(TetheringState::Releasing, 300));
        assert!(after(TetheringState::Autonomous, 20) && !after(TetheringState::Autonomous, 61));
        assert!(!after(TetheringState::Tethered, 1) && !after(TetheringState::Tethering, 1));
        assert!(!refusals_have_ended(None, now));
    }

    #[test]
    fn only_workloads_of_kubernetes_by_their_names_are_woken() {
        let named = |kind: &str, name: &str| {
            let object = json!({ "kind": kind, "namespace": "demo", "name": name });
            workload_of_event(&serde_json::from_value(object).unwrap())
                .map(|found| (found.group, found.kind, found.name.to_owned()))
        };
        assert_eq!(
            named("Job", "work-1.a"),
            Some(("batch", "Job", "work-1.a".into()))
        );
        for (kind, name) in [
            ("CloneSet", "web"),
            ("ReplicaSet", "a b"),
            ("ReplicaSet", "../../x"),
            ("ReplicaSet", "a?b"),
            ("Job", ""),
        ] {
            assert_eq!(named(kind, name), None, "{kind} {name}");
        }
    }
}
