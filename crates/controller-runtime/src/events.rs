//! Events for what a person wants to know.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use liqo_api::{CONTROLLER_MANAGER, Key, short_hash};
use parking_lot::Mutex;

use crate::clock::Clock;

/// An event that comes again within this time is counted, and not written as a new one.
const SERIES_GAP: SignedDuration = SignedDuration::from_mins(6);

/// The API server takes at most this many bytes.
const MAX_NOTE_LEN: usize = 1024;

/// The object that an event is about. `api_version` is group and version, for example `v1` or
/// `networking.k8s.io/v1`.
pub fn object_ref(
    api_version: &str,
    kind: &str,
    key: &Key,
    uid: Option<String>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        name: Some(key.name.clone()),
        uid,
        ..ObjectReference::default()
    }
}

#[derive(Clone)]
pub struct EventRecorder {
    client: Client,
    clock: Clock,
    /// The pod of this process.
    pod: Option<String>,
    /// The events of the last minutes, by object, type, reason and action.
    lately: Arc<Mutex<BTreeMap<String, Event>>>,
}

impl EventRecorder {
    /// Reports as `liqo-controller-manager`, from this pod.
    pub fn new(client: Client, clock: Clock, pod: Option<String>) -> Self {
        Self {
            client,
            clock,
            pod,
            lately: Arc::default(),
        }
    }

    /// Reports that something is wrong; `note` says what to do.
    pub async fn record_warning(
        &self,
        object: &ObjectReference,
        reason: &str,
        note: impl Into<String>,
    ) {
        self.publish(object, "Warning", "Warn", reason, note.into())
            .await;
    }

    /// Reports what was done as a user wished.
    pub async fn record_normal(
        &self,
        object: &ObjectReference,
        reason: &str,
        note: impl Into<String>,
    ) {
        self.publish(object, "Normal", "Note", reason, note.into())
            .await;
    }

    async fn publish(
        &self,
        object: &ObjectReference,
        kind: &str,
        action: &str,
        reason: &str,
        mut note: String,
    ) {
        let end = (0..=MAX_NOTE_LEN.min(note.len()))
            .rev()
            .find(|at| note.is_char_boundary(*at));
        note.truncate(end.unwrap_or_default());
        // To Kubernetes' tools, events that differ only in their note are one. So each note gets
        // its own action.
        let action = format!("{action}-{}", short_hash(&note));
        let (now, key) = (
            self.clock.now(),
            format!("{object:?} {kind} {reason} {action}"),
        );
        let before = {
            let mut lately = self.lately.lock();
            lately.retain(|_, event| {
                last_time(event).is_some_and(|at| now.duration_since(at) < SERIES_GAP)
            });
            lately.get(&key).cloned()
        };
        let api: Api<Event> = Api::namespaced(
            self.client.clone(),
            object.namespace.as_deref().unwrap_or("default"),
        );
        let (event, written) = if let Some(event) = before {
            let event = repeated_event(event, now);
            let written = api
                .patch(
                    &event.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(&event),
                )
                .await;
            (event, written)
        } else {
            let event = self.first_event(
                object,
                kind,
                reason,
                &action,
                note,
                (now, &short_hash(&key)),
            );
            let written = api.create(&PostParams::default(), &event).await;
            (event, written)
        };
        match written {
            Ok(_) => drop(self.lately.lock().insert(key, event)),
            // A lost event must not fail the work that it reports on. If somebody deleted it, the
            // next one is a new one.
            Err(error) => {
                self.lately.lock().remove(&key);
                tracing::debug!(%error, reason, "event not recorded");
            }
        }
    }

    fn first_event(
        &self,
        object: &ObjectReference,
        kind: &str,
        reason: &str,
        action: &str,
        note: String,
        (now, hash): (Timestamp, &str),
    ) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(format!(
                    "{}.{:x}.{hash}",
                    object.name.as_deref().unwrap_or_default(),
                    now.as_nanosecond()
                )),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(kind.to_owned()),
            reason: Some(reason.to_owned()),
            action: Some(action.to_owned()),
            note: Some(note),
            regarding: Some(object.clone()),
            reporting_controller: Some(CONTROLLER_MANAGER.to_owned()),
            reporting_instance: Some(
                self.pod
                    .clone()
                    .unwrap_or_else(|| CONTROLLER_MANAGER.to_owned()),
            ),
            ..Event::default()
        }
    }
}

/// The time at which the event was last seen.
fn last_time(event: &Event) -> Option<Timestamp> {
    let last = event
        .series
        .as_ref()
        .map(|series| &series.last_observed_time)
        .or(event.event_time.as_ref());
    last.map(|time| time.0)
}

/// The same event, seen once more.
fn repeated_event(mut event: Event, now: Timestamp) -> Event {
    let count = event.series.map_or(1, |series| series.count) + 1;
    event.series = Some(EventSeries {
        count,
        last_observed_time: MicroTime(now),
    });
    event
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;
    use serde_json::Value;
    use tokio::time::{Instant, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_said_again_soon_is_counted() {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let requests = seen.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let requests = requests.clone();
            async move {
                let method = request.method().clone();
                let body: Value =
                    serde_json::from_slice(&request.into_body().collect_bytes().await.unwrap())
                        .unwrap();
                let (name, _) = body["metadata"]["name"]
                    .as_str()
                    .unwrap()
                    .rsplit_once('.')
                    .unwrap();
                requests.lock().push(format!(
                    "{method} {name} {} {}",
                    body["note"], body["series"]["count"]
                ));
                Ok::<_, Infallible>(http::Response::new(Body::from(
                    body.to_string().into_bytes(),
                )))
            }
        });
        let clock = Clock::simulated(
            Timestamp::UNIX_EPOCH,
            Instant::now(),
            SignedDuration::from_secs(1),
        );
        let events = EventRecorder::new(Client::new(service, "liqo"), clock, None);
        let object = object_ref("v1", "Pod", &Key::new("demo", "web"), None);
        events.record_warning(&object, "Bad", "one").await;
        advance(std::time::Duration::from_mins(5)).await;
        events.record_warning(&object, "Bad", "one").await;
        events.record_warning(&object, "Bad", "other").await;
        advance(std::time::Duration::from_mins(5)).await;
        events.record_warning(&object, "Bad", "one").await;
        advance(std::time::Duration::from_secs(400)).await;
        events.record_warning(&object, "Bad", "one").await;
        let name = |seconds: u64| format!("web.{:x}", seconds * 1_000_000_000);
        let expected = [
            format!("POST {} \"one\" null", name(1)),
            format!("PATCH {} \"one\" 2", name(1)),
            format!("POST {} \"other\" null", name(301)),
            format!("PATCH {} \"one\" 3", name(1)),
            format!("POST {} \"one\" null", name(1001)),
        ];
        assert_eq!(*seen.lock(), expected);

        seen.lock().clear();
        events
            .record_warning(&object, "Bad", "é".repeat(1000))
            .await;
        assert_eq!(
            *seen.lock(),
            [format!(
                "POST {} \"{}\" null",
                name(1001),
                "é".repeat(MAX_NOTE_LEN / 2)
            )]
        );
    }
}
