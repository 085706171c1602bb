//! Wakes controllers whose pods were refused while this cluster was tethered.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use liqo_api::Key;
use liqo_controller_runtime::writes::{Step as _, StepError};
use serde_json::json;

use crate::{
    cluster::{COUNT_INTERVAL, Cluster},
    decide::refusals::{Woken, have_ended, to_wake},
};

/// Annotation on an object that was woken, with the time.
const WOKEN: &str = "liqo.io/woken-at";

/// Runs until the context stops.
pub async fn run(cluster: Arc<Cluster>) {
    let mut woken = Woken::new();
    loop {
        tokio::select! {
            biased;
            () = cluster.context.stop.cancelled() => return,
            () = tokio::time::sleep(COUNT_INTERVAL) => {}
        }
        let config = cluster.context.config();
        if !have_ended(config.status.as_ref().and_then(|status| status.tethering.as_ref()), cluster.context.now()) {
            woken.clear();
        } else if let Err(error) = wake(&cluster, &mut woken).await {
            tracing::warn!(%error, "controllers whose pods were refused are not woken, trying again");
        }
    }
}

async fn wake(cluster: &Cluster, woken: &mut Woken) -> Result<(), StepError> {
    for (object, refused) in to_wake(&cluster.failed_creations().await?, woken) {
        touch(cluster, &object).await?;
        woken.extend(object.uid.map(|uid| (uid, refused)));
    }
    Ok(())
}

/// Writes an annotation through the status, because that is all that the manager may change of a workload. One that it may not change,
/// such as an object of a kind that Kubernetes does not have, tries again by itself.
async fn touch(cluster: &Cluster, object: &ObjectReference) -> Result<(), StepError> {
    let ObjectReference { api_version: Some(version), kind: Some(kind), namespace: Some(namespace), name: Some(name), .. } =
        object
    else {
        return Ok(());
    };
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.context.client.clone(), namespace, &resource);
    let metadata = json!({ "uid": object.uid, "annotations": { WOKEN: cluster.context.now().to_string() } });
    let change = Patch::Merge(json!({ "metadata": metadata }));
    match api.patch_status(name, &PatchParams::default(), &change).await {
        Ok(_) => tracing::info!(kind, namespace, name, "its pods were refused while this cluster was tethered: it tries again"),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() || status.is_forbidden() => {
            tracing::info!(kind, namespace, name, %status, "it is not woken, and tries again by itself");
        }
        Err(error) => return Err(error).step("wake", kind.clone(), Key::new(namespace, name)),
    }
    Ok(())
}
