//! Makes a pod leave its node: evicts or deletes it, and can tell its owner in an event.
//! [`liqo_api::departure`] says for each cause which pods leave, and how.
//!
//! Controllers evict pods, or delete local ones, only through this module. One exception: a
//! provider that ends pods of its consumers follows other rules, in `liqo-offloading-rules`.
//!
//! All requests are for a pod of this UID, and for no other one of the same name.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
    core::PartialObjectMeta,
};
use liqo_api::{
    Key,
    departure::{DepartureCause, DepartureManner},
};

use crate::{
    Context,
    events::object_ref,
    eviction::{self, EvictionOutcome},
    writes::{StepContext as _, StepError, delete_if_present},
};

/// A pod that leaves.
#[derive(Debug)]
pub struct Departure<'a> {
    pub cause: DepartureCause,
    pub pod: &'a Key,
    pub uid: &'a str,
    /// For the pod's owner, in an event once the pod leaves.
    pub message: Option<String>,
    /// Grace period in seconds; the pod's own if this is `None`. Only for a deletion.
    pub grace: Option<u32>,
    /// It stays if it has another version by now, as one that the scheduler binds meanwhile.
    pub version: Option<String>,
}

impl<'a> Departure<'a> {
    pub fn new(cause: DepartureCause, pod: &'a Key, uid: &'a str) -> Self {
        Self {
            cause,
            pod,
            uid,
            message: None,
            grace: None,
            version: None,
        }
    }

    #[must_use]
    pub fn with_message(self, message: String) -> Self {
        Self {
            message: Some(message),
            ..self
        }
    }
}

/// Requests that a pod leaves, as its cause says.
pub async fn request_departure(
    context: &Context,
    departure: Departure<'_>,
) -> Result<EvictionOutcome, StepError> {
    let Departure {
        cause,
        pod,
        uid,
        message,
        grace,
        version,
    } = departure;
    let outcome = match cause.manner() {
        DepartureManner::Evicted => request_eviction(&context.client, pod, uid, version).await?,
        DepartureManner::Deleted => {
            let only = Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: version,
            };
            if delete_pod(&context.client, pod, only, grace).await? {
                EvictionOutcome::Accepted
            } else {
                EvictionOutcome::Gone
            }
        }
    };
    match &outcome {
        EvictionOutcome::Accepted => {
            tracing::info!(%pod, ?cause, message, "pod leaves");
            if let (Some(reason), Some(message)) = (cause.event_reason(), message) {
                context
                    .events
                    .record_normal(
                        &object_ref("v1", "Pod", pod, Some(uid.to_owned())),
                        reason,
                        message,
                    )
                    .await;
            }
        }
        EvictionOutcome::NotAllowed(reason) => {
            tracing::debug!(%pod, ?cause, reason, "pod may not leave yet");
        }
        EvictionOutcome::Gone => {}
    }
    Ok(outcome)
}

/// Removes a local pod whose remote pod is gone, as a kubelet does. Returns `false` if it is gone
/// already.
pub async fn remove(client: &Client, pod: &Key, uid: &str) -> Result<bool, StepError> {
    delete_pod(
        client,
        pod,
        Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        },
        Some(0),
    )
    .await
}

async fn request_eviction(
    client: &Client,
    pod: &Key,
    uid: &str,
    version: Option<String>,
) -> Result<EvictionOutcome, StepError> {
    let evicted = match version {
        Some(version) => eviction::evict_version(client, pod, uid, &version).await,
        None => eviction::evict(client, pod, uid, None).await,
    };
    let answer = match evicted {
        // An admission policy protects pods in namespaces of the cluster.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            Ok(EvictionOutcome::NotAllowed(status.message))
        }
        answer => answer,
    };
    answer.step("evict", "Pod", pod)
}

async fn delete_pod(
    client: &Client,
    pod: &Key,
    only: Preconditions,
    grace: Option<u32>,
) -> Result<bool, StepError> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), &pod.namespace);
    let parameters = DeleteParams {
        grace_period_seconds: grace,
        ..DeleteParams::default()
    }
    .preconditions(only);
    delete_if_present(&api, &pod.name, &parameters)
        .await
        .step("delete", "Pod", pod)
}
