//! Offloads the namespaces of users while a peer decides, and afterwards restores what they had.

use std::sync::Arc;

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use liqo_api::{ClusterId, Key, NAMESPACE_OFFLOADING, NamespaceOffloading};
use liqo_controller_runtime::{
    Requeue,
    writes::{StepContext as _, StepError, create_missing, delete_if_present, unless_gone},
};

use crate::{
    Error,
    cluster::{COUNT_INTERVAL, ClusterCaches},
    decide::{
        homecoming::UserPod,
        machine::StateEffects,
        namespaces::{NamespaceChange, is_taken_over, namespace_change},
    },
};

/// Number of namespaces that are looked at at the same time.
const CONCURRENCY: usize = 8;

/// Runs until the context stops.
pub async fn run_controller(cluster: Arc<ClusterCaches>) {
    let (stop, queue) = (
        cluster.context.stop.clone(),
        cluster.namespaces_queue.clone(),
    );
    let mut config = cluster.context.config.clone();
    enqueue_all(&cluster);
    let follow_config = async {
        while config.changed().await.is_ok() {
            enqueue_all(&cluster);
        }
        std::future::pending::<()>().await;
    };
    let controller = cluster.clone();
    let work = queue.run(
        "tethered-namespaces",
        CONCURRENCY,
        stop,
        move |namespace: String| {
            let cluster = controller.clone();
            async move { reconcile_namespace(&cluster, &namespace).await }
        },
    );
    tokio::select! {
        biased;
        () = work => {}
        () = follow_config => {}
    }
}

fn enqueue_all(cluster: &ClusterCaches) {
    for (key, _) in cluster.namespaces.all() {
        cluster.namespaces_queue.add(key.name);
    }
}

/// The peer that decides about the pods of a namespace.
fn tethered_to(cluster: &ClusterCaches, namespace: &str) -> Option<ClusterId> {
    let config = cluster.context.config();
    let (state, peer) = config.tethering();
    let is_sent = config
        .spec
        .tethering
        .sends_pods_of(namespace, &cluster.context.namespace);
    peer.filter(|_| StateEffects::of_state(state).peer_decides && is_sent)
        .cloned()
}

async fn reconcile_namespace(cluster: &ClusterCaches, namespace: &str) -> Result<Requeue, Error> {
    let Some(state) = cluster.namespaces.get(&Key::new("", namespace)) else {
        return Ok(Requeue::OnChange);
    };
    if state.managed || state.terminating {
        return Ok(Requeue::OnChange);
    }
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    let live = cluster.offloadings.get(&key);
    let to = tethered_to(cluster, namespace);
    // Most namespaces are none of the mode's.
    if to.is_none() && live.as_deref().is_none_or(|live| !is_taken_over(live)) {
        return Ok(Requeue::OnChange);
    }
    let pods = if to.is_none() {
        cluster.pods(namespace).await?
    } else {
        Vec::new()
    };
    let wanted = namespace_change(namespace, live.as_deref(), to.as_ref(), || {
        pods.iter().any(UserPod::is_away)
    });
    apply_change(cluster, &key, wanted).await?;
    // A pod that ends changes no object that is watched here.
    let waits = to.is_none() && pods.iter().any(UserPod::is_away);
    Ok(if waits {
        Requeue::After(COUNT_INTERVAL)
    } else {
        Requeue::OnChange
    })
}

async fn apply_change(
    cluster: &ClusterCaches,
    key: &Key,
    wanted: NamespaceChange,
) -> Result<(), StepError> {
    let api: Api<NamespaceOffloading> =
        Api::namespaced(cluster.context.client.clone(), &key.namespace);
    match wanted {
        NamespaceChange::Nothing => {}
        NamespaceChange::Create(object) => {
            create_missing(&api, &object)
                .await
                .step("create", "NamespaceOffloading", key)?;
            tracing::info!(
                namespace = key.namespace,
                "namespace offloaded, because this cluster is tethered"
            );
        }
        NamespaceChange::Patch(patch) => {
            let written = api
                .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            unless_gone(written).step("change", "NamespaceOffloading", key)?;
            tracing::info!(namespace = key.namespace, change = %patch, "offloading of a namespace follows the working mode");
        }
        NamespaceChange::Delete => {
            delete_if_present(&api, &key.name, &DeleteParams::default())
                .await
                .step("delete", "NamespaceOffloading", key)?;
        }
    }
    Ok(())
}
