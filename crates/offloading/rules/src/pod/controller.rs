//! The owner of a pod that controls it, for example a `ReplicaSet`.

use liqo_api::departure;
use serde_json::Value;

use crate::json::text;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl Controller {
    /// The controller of this pod.
    pub(crate) fn of(pod: &Value) -> Option<Self> {
        Self::among(pod.pointer("/metadata/ownerReferences")?)
    }

    /// The controller among the owner references of an object.
    pub(crate) fn among(owners: &Value) -> Option<Self> {
        let is_controller = |owner: &&Value| owner.get("controller") == Some(&Value::Bool(true));
        let controller = owners.as_array()?.iter().find(is_controller)?;
        let field = |pointer| text(controller, pointer).unwrap_or_default().to_owned();
        Some(Self {
            kind: field("/kind"),
            name: field("/name"),
            uid: field("/uid"),
        })
    }

    /// Whether it creates a deleted pod again at no cost. A Job counts it as a failure.
    pub fn recreates(&self) -> bool {
        departure::recreates(&self.kind)
    }
}

/// The kind of this controller, if there is one.
pub fn kind(controller: Option<&Controller>) -> Option<&str> {
    controller.map(|controller| controller.kind.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_all_owners_of_a_pod_only_one_controls_it() {
        let pod = |owners: Value| json!({ "metadata": { "ownerReferences": owners } });
        let owners = json!([{ "kind": "Node", "uid": "a" }, { "kind": "Job", "name": "j", "uid": "b", "controller": true }]);
        assert_eq!(
            Controller::of(&pod(owners)),
            Some(Controller {
                kind: "Job".into(),
                name: "j".into(),
                uid: "b".into()
            })
        );
        for none in [
            json!([{ "kind": "Job", "uid": "b", "controller": false }]),
            json!([]),
            json!(null),
        ] {
            assert_eq!(Controller::of(&pod(none)), None);
        }
        assert_eq!(Controller::of(&json!({})), None);
    }
}
