//! Events: only what a person would want to know.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use liqo_api::short_hash;

/// Tells users about objects.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Reports as `liqo-controller-manager`, from this pod.
    pub fn new(client: Client, pod: Option<String>) -> Self {
        Self { recorder: Recorder::new(client, Reporter { controller: "liqo-controller-manager".into(), instance: pod }) }
    }

    /// Something is wrong; the note says what to do.
    pub async fn warning(&self, object: &ObjectReference, reason: &str, note: impl Into<String>) {
        // The API server takes at most 1024 bytes.
        let note: String = note.into().chars().take(250).collect();
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            // Events that are alike but for their note are one event that is counted, and keeps the first note. By its action this one differs.
            action: format!("Warn-{}", short_hash(&note)),
            secondary: None,
            note: Some(note),
        };
        // An event is a courtesy: its loss must not fail what it tells of.
        if let Err(error) = self.recorder.publish(&event, object).await {
            tracing::debug!(%error, reason, "event not recorded");
        }
    }
}
