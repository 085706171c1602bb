//! Wakes controllers whose pods were refused while this cluster was tethered.
//!
//! Kubernetes tries a refused creation again after a time that doubles up to 16 minutes. A change of the object makes its controller try at
//! once. The events about the refusals name the objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use liqo_api::Key;
use serde_json::json;

use crate::cluster::{Cluster, Explained as _};

/// The admission policy that refuses pods while a cluster is tethered; the refusal names it.
const POLICY: &str = "'liqo-tethered'";
/// Annotation on an object that was woken, with the time.
const WOKEN: &str = "liqo.io/woken-at";

/// What was woken, and what could not be.
#[derive(Debug, Default)]
pub struct Woken {
    /// Such as `ReplicaSet demo/web-5d4f`.
    pub objects: Vec<String>,
    /// Each with the reason.
    pub failures: Vec<String>,
}

/// Wakes the controllers of all pods that were refused because this cluster was tethered.
pub async fn refused_while_tethered(cluster: &Cluster) -> anyhow::Result<Woken> {
    let refused = ListParams::default().fields("reason=FailedCreate");
    let events = Api::<Event>::all(cluster.client.clone()).list(&refused).await.doing("list the events about refused pods")?;
    let mut woken = Woken::default();
    for (name, object) in objects(&events.items) {
        let (Some(kind), Some(key)) = (resource(&object), key(&object)) else { continue };
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &key.namespace, &kind);
        let now = jiff::Timestamp::now().to_string();
        let change = json!({ "metadata": { "uid": object.uid, "annotations": { WOKEN: now } } });
        match api.patch_metadata(&key.name, &PatchParams::default(), &Patch::Merge(&change)).await {
            Ok(_) => woken.objects.push(name),
            // It is gone, or another one has its name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => woken.failures.push(format!("{name}: {error}")),
        }
    }
    Ok(woken)
}

/// The objects of refused pods, by their names for people.
fn objects(events: &[Event]) -> BTreeMap<String, ObjectReference> {
    let refused = events.iter().filter(|event| event.message.as_deref().is_some_and(|message| message.contains(POLICY)));
    let named = |event: &Event| {
        let (object, key) = (event.involved_object.clone(), key(&event.involved_object)?);
        Some((format!("{} {key}", object.kind.as_deref()?), object))
    };
    refused.filter_map(named).collect()
}

fn key(object: &ObjectReference) -> Option<Key> {
    Some(Key::new(object.namespace.clone()?, object.name.clone()?))
}

fn resource(object: &ObjectReference) -> Option<ApiResource> {
    let (version, kind) = (object.api_version.as_deref()?, object.kind.as_deref()?);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Some(ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, name: &str, message: &str) -> Event {
        let object = json!({ "apiVersion": "apps/v1", "kind": kind, "namespace": "demo", "name": name, "uid": "u" });
        serde_json::from_value(
            json!({ "metadata": { "name": name }, "involvedObject": object, "reason": "FailedCreate", "message": message }),
        )
        .unwrap()
    }

    #[test]
    fn each_controller_that_was_refused_in_this_mode_is_woken_once() {
        let refusal = "Error creating: pods \"web-x\" is forbidden: ValidatingAdmissionPolicy 'liqo-tethered' with binding 'liqo-tethered' \
             denied request: this cluster is tethered to milan";
        let events = [
            event("ReplicaSet", "web", refusal),
            event("ReplicaSet", "web", refusal),
            event("DaemonSet", "agent", refusal),
            event("ReplicaSet", "big", "Error creating: pods \"big-x\" is forbidden: exceeded quota: liqo-tethered"),
        ];
        let found = objects(&events);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["DaemonSet demo/agent", "ReplicaSet demo/web"]);
        let kind = resource(&found["DaemonSet demo/agent"]).unwrap();
        assert_eq!((kind.plural.as_str(), kind.api_version.as_str()), ("daemonsets", "apps/v1"));
    }
}
