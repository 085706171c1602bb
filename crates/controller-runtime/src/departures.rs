//! Takes pods away from where they are: the only place of the manager that evicts pods or deletes local ones, but for the protection of a
//! provider against its consumers. What leaves, and why, is a matter of `liqo_offloading_rules::pod::departure`.
//!
//! All requests are for a pod of this UID, and for no other one of the same name.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
    core::PartialObjectMeta,
};
use liqo_api::Key;

use crate::{
    Context,
    events::object_ref,
    eviction::{self, Outcome},
    writes::{Step as _, StepError, delete_if_present},
};

/// Requests the eviction of a pod. If it is accepted, the pod gets an event with this reason and message.
pub async fn evict(context: &Context, pod: &Key, uid: &str, event: Option<(&'static str, String)>) -> Result<Outcome, StepError> {
    let answer = match eviction::evict(&context.client, pod, uid, None).await {
        // An admission policy protects pods in namespaces of the cluster.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Outcome::NotAllowed(status.message)),
        answer => answer,
    };
    let outcome = answer.step("evict", "Pod", pod)?;
    match (&outcome, event) {
        (Outcome::Accepted, Some((reason, message))) => {
            tracing::info!(%pod, reason, message, "pod evicted");
            context.events.normal(&object_ref("v1", "Pod", pod, Some(uid.to_owned())), reason, message).await;
        }
        (Outcome::NotAllowed(reason), _) => tracing::debug!(%pod, reason, "eviction not allowed yet"),
        _ => {}
    }
    Ok(outcome)
}

/// Deletes a pod with this grace in seconds, or its own. Returns `false` if it is gone already.
pub async fn delete(client: &Client, pod: &Key, uid: &str, grace: Option<u32>) -> Result<bool, StepError> {
    delete_with(client, pod, Preconditions { uid: Some(uid.to_owned()), resource_version: None }, grace).await
}

/// Deletes a pod unless it has another version by now, as one that the scheduler binds meanwhile. Returns whether it did.
pub async fn delete_version(client: &Client, pod: &Key, uid: &str, version: Option<String>) -> Result<bool, StepError> {
    delete_with(client, pod, Preconditions { uid: Some(uid.to_owned()), resource_version: version }, None).await
}

async fn delete_with(client: &Client, pod: &Key, only: Preconditions, grace: Option<u32>) -> Result<bool, StepError> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &pod.namespace);
    let parameters = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() }.preconditions(only);
    delete_if_present(&api, &pod.name, &parameters).await.step("delete", "Pod", pod)
}
