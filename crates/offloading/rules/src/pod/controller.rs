//! The owner of a pod that controls it, for example a `ReplicaSet`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use liqo_api::departure;
use serde_json::Value;

use crate::views::PodView;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwningController {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl OwningController {
    /// The controller of this pod.
    pub(crate) fn of_pod(pod: &Value) -> Option<Self> {
        let mut owners = PodView::of(pod).metadata().owner_references();
        let controller = owners.find(|owner| owner.controller() == Some(true))?;
        Some(Self {
            kind: controller.kind().to_owned(),
            name: controller.name().to_owned(),
            uid: controller.uid().to_owned(),
        })
    }

    /// The controller among the owner references of an object.
    pub(crate) fn among_owners(owners: &[OwnerReference]) -> Option<Self> {
        let controller = owners.iter().find(|owner| owner.controller == Some(true))?;
        Some(Self {
            kind: controller.kind.clone(),
            name: controller.name.clone(),
            uid: controller.uid.clone(),
        })
    }

    /// Whether it creates a deleted pod again at no cost. A Job counts it as a failure.
    pub fn recreates_pods(&self) -> bool {
        departure::recreates_pods(&self.kind)
    }
}

/// The kind of this controller, if there is one.
pub fn controller_kind(controller: Option<&OwningController>) -> Option<&str> {
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
            OwningController::of_pod(&pod(owners)),
            Some(OwningController {
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
            assert_eq!(OwningController::of_pod(&pod(none)), None);
        }
        assert_eq!(OwningController::of_pod(&json!({})), None);
    }
}
