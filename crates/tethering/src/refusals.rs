//! Wakes controllers whose pods the API server refused while this cluster was tethered, so that
//! they try again at once.

use std::sync::Arc;

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use liqo_controller_runtime::writes::StepError;
use serde_json::json;

use crate::{
    cluster::{COUNT_INTERVAL, ClusterCaches},
    decide::refusals::{
        WakeableWorkload, WokenControllers, controllers_to_wake, refusals_have_ended,
        workload_of_event,
    },
};

/// Annotation on an object that was woken, with the time.
const WOKEN: &str = "liqo.io/woken-at";

/// Runs until the context stops.
pub async fn run_controller(cluster: Arc<ClusterCaches>) {
    let mut woken = WokenControllers::new();
    loop {
        tokio::select! {
            biased;
            () = cluster.context.stop.cancelled() => return,
            () = tokio::time::sleep(COUNT_INTERVAL) => {}
        }
        let config = cluster.context.config();
        if !refusals_have_ended(
            config
                .status
                .as_ref()
                .and_then(|status| status.tethering.as_ref()),
            cluster.context.now(),
        ) {
            woken.clear();
        } else if let Err(error) = wake_refused(&cluster, &mut woken).await {
            tracing::warn!(%error, "controllers whose pods were refused are not woken, trying again");
        }
    }
}

async fn wake_refused(
    cluster: &ClusterCaches,
    woken: &mut WokenControllers,
) -> Result<(), StepError> {
    for (object, refused) in controllers_to_wake(&cluster.refused_creations().await?, woken) {
        if let Some(workload) = workload_of_event(&object) {
            touch_workload(cluster, &workload, object.uid.as_deref()).await;
        }
        woken.extend(object.uid.map(|uid| (uid, refused)));
    }
    Ok(())
}

/// Writes an annotation through the status, because that is all that the manager may change of a
/// workload.
async fn touch_workload(
    cluster: &ClusterCaches,
    workload: &WakeableWorkload<'_>,
    uid: Option<&str>,
) {
    let WakeableWorkload {
        kind,
        group,
        namespace,
        name,
    } = *workload;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.context.client.clone(), namespace, &resource);
    let metadata =
        json!({ "uid": uid, "annotations": { WOKEN: cluster.context.now().to_string() } });
    match api
        .patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({ "metadata": metadata })),
        )
        .await
    {
        Ok(_) => tracing::info!(
            kind,
            namespace,
            name,
            "its pods were refused while this cluster was tethered: it tries again"
        ),
        // It is gone, or somebody else's webhook fails.
        Err(error) => {
            tracing::info!(kind, namespace, name, %error, "it is not woken, and tries again by itself");
        }
    }
}
