//! Events for what a person wants to know.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use liqo_api::{CONTROLLER_MANAGER, Key, short_hash};

/// The object that an event is about. `api_version` is group and version, for example `v1` or `networking.k8s.io/v1`.
pub fn object_ref(api_version: &str, kind: &str, key: &Key, uid: Option<String>) -> ObjectReference {
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
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Reports as `liqo-controller-manager`, from this pod.
    pub fn new(client: Client, pod: Option<String>) -> Self {
        Self { recorder: Recorder::new(client, Reporter { controller: CONTROLLER_MANAGER.into(), instance: pod }) }
    }

    /// Reports that something is wrong; `note` says what to do.
    pub async fn warning(&self, object: &ObjectReference, reason: &str, note: impl Into<String>) {
        self.publish(object, EventType::Warning, "Warn", reason, note.into()).await;
    }

    /// Reports what was done as a user wished.
    pub async fn normal(&self, object: &ObjectReference, reason: &str, note: impl Into<String>) {
        self.publish(object, EventType::Normal, "Note", reason, note.into()).await;
    }

    async fn publish(&self, object: &ObjectReference, type_: EventType, action: &str, reason: &str, note: String) {
        // The API server takes at most 1024 bytes.
        let note: String = note.chars().take(250).collect();
        let event = Event {
            type_,
            reason: reason.to_owned(),
            // Events that differ only in their note are counted as one, with the first note. So each note gets its own action.
            action: format!("{action}-{}", short_hash(&note)),
            secondary: None,
            note: Some(note),
        };
        // A lost event must not fail the work that it reports on.
        if let Err(error) = self.recorder.publish(&event, object).await {
            tracing::debug!(%error, reason, "event not recorded");
        }
    }
}
