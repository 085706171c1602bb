//! Selects the events about the remote pods of a namespace that come back.

use kube::ResourceExt as _;
use liqo_api::{NamespaceOffloading, annotations};

/// The value of the annotation that asks for all events.
const WANTS_ALL: &str = "all";

/// The events about the remote pods of a namespace that come back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventSelection {
    /// Warnings, failed probes, and pulls of images that take long.
    #[default]
    Notable,
    /// All but Normal events of the provider's Liqo.
    All,
}

impl EventSelection {
    /// The choice of the owner of a namespace.
    pub fn of_namespace(offloading: Option<&NamespaceOffloading>) -> Self {
        let wish = offloading
            .and_then(|offloading| offloading.annotations().get(annotations::REMOTE_EVENTS));
        if wish.is_some_and(|wish| wish == WANTS_ALL) {
            Self::All
        } else {
            Self::Notable
        }
    }

    /// The events at a provider that its API server sends us. A field selector has no alternatives,
    /// so it excludes what it must. Of a healthy pod, it sends how each image was pulled or found,
    /// and the end of each container.
    pub const fn field_selector(self) -> &'static str {
        match self {
            Self::Notable => {
                "involvedObject.kind=Pod,reason!=Scheduled,reason!=Created,reason!=Started"
            }
            Self::All => "involvedObject.kind=Pod",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_events_come_back_if_the_namespace_asks_for_them() {
        let with = |annotations: serde_json::Value| -> NamespaceOffloading {
            serde_json::from_value(
                json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
                "metadata": { "annotations": annotations }, "spec": {} }),
            )
            .unwrap()
        };
        assert_eq!(
            EventSelection::of_namespace(Some(&with(json!({ "liqo.io/remote-events": "all" })))),
            EventSelection::All
        );
        assert_eq!(
            EventSelection::of_namespace(Some(&with(json!({ "liqo.io/remote-events": "none" })))),
            EventSelection::Notable
        );
        assert_eq!(
            EventSelection::of_namespace(Some(&with(json!({})))),
            EventSelection::Notable
        );
        assert_eq!(EventSelection::of_namespace(None), EventSelection::Notable);
    }

    #[test]
    fn no_api_server_withholds_what_may_come_back() {
        for selection in [EventSelection::Notable, EventSelection::All] {
            let fields = selection.field_selector();
            assert!(
                ["Pulling", "Pulled", "Killing", "type"]
                    .iter()
                    .all(|word| !fields.contains(word)),
                "{fields}"
            );
        }
    }
}
