//! Offloads the namespaces of users while a peer decides, and afterwards restores what they had.

use std::sync::Arc;

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use liqo_api::{ClusterId, Key, NAMESPACE_OFFLOADING, NamespaceOffloading};
use liqo_controller_runtime::{
    Next,
    writes::{Step as _, StepError, create_missing, delete_if_present, unless_gone},
};

use crate::{
    Error,
    cluster::{COUNT_INTERVAL, Cluster},
    decide::{
        homecoming::Pod,
        machine::Effects,
        namespaces::{Change, change, is_taken_over},
    },
};

/// Number of namespaces that are looked at at the same time.
const CONCURRENCY: usize = 8;

/// Runs until the context stops.
pub async fn run(cluster: Arc<Cluster>) {
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
            async move { reconcile(&cluster, &namespace).await }
        },
    );
    tokio::select! {
        biased;
        () = work => {}
        () = follow_config => {}
    }
}

fn enqueue_all(cluster: &Cluster) {
    for (key, _) in cluster.namespaces.all() {
        cluster.namespaces_queue.add(key.name);
    }
}

/// The peer that decides about the pods of a namespace.
fn tethered_to(cluster: &Cluster, namespace: &str) -> Option<ClusterId> {
    let config = cluster.context.config();
    let (state, peer) = config.tethering();
    let is_sent = config
        .spec
        .tethering
        .sends_pods_of(namespace, &cluster.context.namespace);
    peer.filter(|_| Effects::of(state).peer_decides && is_sent)
        .cloned()
}

async fn reconcile(cluster: &Cluster, namespace: &str) -> Result<Next, Error> {
    let Some(state) = cluster.namespaces.get(&Key::new("", namespace)) else {
        return Ok(Next::OnChange);
    };
    if state.managed || state.terminating {
        return Ok(Next::OnChange);
    }
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    let live = cluster.offloadings.get(&key);
    let to = tethered_to(cluster, namespace);
    // Most namespaces are none of the mode's.
    if to.is_none() && live.as_deref().is_none_or(|live| !is_taken_over(live)) {
        return Ok(Next::OnChange);
    }
    let pods = if to.is_none() {
        cluster.pods(namespace).await?
    } else {
        Vec::new()
    };
    let wanted = change(namespace, live.as_deref(), to.as_ref(), || {
        pods.iter().any(Pod::is_away)
    });
    apply(cluster, &key, wanted).await?;
    // A pod that ends changes no object that is watched here.
    let waits = to.is_none() && pods.iter().any(Pod::is_away);
    Ok(if waits {
        Next::After(COUNT_INTERVAL)
    } else {
        Next::OnChange
    })
}

async fn apply(cluster: &Cluster, key: &Key, wanted: Change) -> Result<(), StepError> {
    let api: Api<NamespaceOffloading> =
        Api::namespaced(cluster.context.client.clone(), &key.namespace);
    match wanted {
        Change::Nothing => {}
        Change::Create(object) => {
            create_missing(&api, &object)
                .await
                .step("create", "NamespaceOffloading", key)?;
            tracing::info!(
                namespace = key.namespace,
                "namespace offloaded, because this cluster is tethered"
            );
        }
        Change::Patch(patch) => {
            let written = api
                .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            unless_gone(written).step("change", "NamespaceOffloading", key)?;
            tracing::info!(namespace = key.namespace, change = %patch, "offloading of a namespace follows the working mode");
        }
        Change::Delete => {
            delete_if_present(&api, &key.name, &DeleteParams::default())
                .await
                .step("delete", "NamespaceOffloading", key)?;
        }
    }
    Ok(())
}
