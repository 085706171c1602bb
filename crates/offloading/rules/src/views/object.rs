//! Fields that objects of all kinds have.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::views::Views;

json_views! {
    /// An object of any kind.
    ObjectView {
        api_version: Option<&'a str> = "apiVersion",
        kind: Option<&'a str> = "kind",
        metadata: MetadataView<'a> = "metadata",
        /// Only Secrets have it here.
        type_text: Option<&'a str> = "type",
    }

    /// The metadata of an object.
    MetadataView {
        name: Option<&'a str> = "name",
        generate_name: Option<&'a str> = "generateName",
        namespace: Option<&'a str> = "namespace",
        uid: Option<&'a str> = "uid",
        generation: Option<i64> = "generation",
        deletion_timestamp: Option<&'a Value> = "deletionTimestamp",
        resource_version: Option<&'a Value> = "resourceVersion",
        labels: Option<&'a Map<String, Value>> = "labels",
        annotations: Option<&'a Map<String, Value>> = "annotations",
        owner_references: Views<'a, OwnerView<'a>> = "ownerReferences",
    }

    /// An owner reference.
    OwnerView {
        kind: &'a str = "kind",
        name: &'a str = "name",
        uid: &'a str = "uid",
        controller: Option<bool> = "controller",
    }

    /// A condition of an object.
    ConditionView {
        kind: Option<&'a str> = "type",
        status: Option<&'a str> = "status",
        reason: Option<&'a str> = "reason",
        message: Option<&'a str> = "message",
        last_transition_time: Option<&'a Value> = "lastTransitionTime",
        /// Only conditions of Nodes have it.
        last_heartbeat_time: Option<&'a Value> = "lastHeartbeatTime",
    }

    /// A label selector.
    LabelSelectorView {
        match_expressions: &'a [Value] = "matchExpressions",
    }

    /// An element of a list that has a name.
    NamedView {
        name: Option<&'a str> = "name",
    }
}

impl<'a> MetadataView<'a> {
    pub fn label(self, key: &str) -> Option<&'a str> {
        self.labels()?.get(key)?.as_str()
    }

    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.annotations()?.get(key)?.as_str()
    }
}

impl ConditionView<'_> {
    /// Whether it is the condition of this type, with this status.
    pub fn has_status(self, kind: &str, status: &str) -> bool {
        self.kind() == Some(kind) && self.status() == Some(status)
    }

    /// Time of the last transition.
    pub fn changed_at(self) -> Option<Timestamp> {
        self.last_transition_time()?.as_str()?.parse().ok()
    }
}
