//! Brings pods home when control is back.

use std::sync::Arc;

use liqo_controller_runtime::{
    events::object_ref,
    eviction::{self, Outcome},
    writes::{Step as _, StepError},
};

use crate::{
    cluster::{COUNT_INTERVAL, Cluster},
    decide::homecoming::{Pod, next},
};

/// Runs until the context stops.
pub async fn run(cluster: Arc<Cluster>) {
    loop {
        tokio::select! {
            biased;
            () = cluster.context.stop.cancelled() => return,
            () = tokio::time::sleep(COUNT_INTERVAL) => {}
        }
        for namespace in cluster.namespaces_to_bring_home() {
            if let Err(error) = bring_home(&cluster, &namespace).await {
                tracing::warn!(namespace, %error, "pods not brought home, trying again");
            }
        }
    }
}

async fn bring_home(cluster: &Cluster, namespace: &str) -> Result<(), StepError> {
    let pods = cluster.pods(namespace).await?;
    for pod in next(&pods) {
        evict(cluster, pod).await?;
    }
    Ok(())
}

async fn evict(cluster: &Cluster, pod: &Pod) -> Result<(), StepError> {
    match eviction::evict(&cluster.context.client, &pod.key, &pod.uid, None).await.step("evict", "Pod", &pod.key)? {
        Outcome::Accepted => {
            tracing::info!(pod = %pod.key, "pod evicted: the next one runs in this cluster, which is not tethered any more");
            let message = "evicted, because this cluster is not tethered any more: the next pod runs here".to_owned();
            let pod = object_ref("v1", "Pod", &pod.key, Some(pod.uid.clone()));
            cluster.context.events.normal(&pod, "MovedHome", message).await;
        }
        Outcome::Gone => {}
        Outcome::NotAllowed(reason) => tracing::debug!(pod = %pod.key, reason, "eviction not allowed yet"),
    }
    Ok(())
}
