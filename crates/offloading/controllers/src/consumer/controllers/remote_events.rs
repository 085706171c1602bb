//! Events of local pods for what the provider's kubelet and scheduler say about their remote pods.

use std::sync::{Arc, Weak};

use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use liqo_controller_runtime::{
    Requeue,
    writes::{ApiError as _, StepContext as _, StepError},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::FIELD_MANAGER;
use crate::consumer::state::{ConsumerState, EventKey, RemoteProvider, WatchedEvents};
use crate::consumer::watches;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::remote_events::DueEvent;
use liqo_offloading_rules::pod::remote_events::RemoteEvent;
use liqo_offloading_rules::pod::remote_events::watched_namespace;

/// Pods that are handled at the same time, for each provider.
const CONCURRENCY: usize = 2;

/// Runs the controller for one provider.
pub async fn run_controller(
    consumer: Arc<ConsumerState>,
    peer: Weak<RemoteProvider>,
    stop: CancellationToken,
) {
    // The provider can be forgotten while its controllers run.
    let Some(queue) = peer.upgrade().map(|peer| peer.event_queue.clone()) else {
        return;
    };
    queue
        .run("remote-events", CONCURRENCY, stop, move |key| {
            let (consumer, peer) = (consumer.clone(), peer.upgrade());
            async move {
                let Some(peer) = peer else {
                    return Ok(Requeue::OnChange);
                };
                match key {
                    EventKey::Watch(namespace) => {
                        set_event_watch(&consumer, &peer, &namespace);
                        Ok(Requeue::OnChange)
                    }
                    EventKey::Pod(uid) => write_due_events(&consumer, &peer, &uid).await,
                }
            }
        })
        .await;
}

/// Starts or ends the watch of events for a namespace: it exists while an unfinished pod of the
/// namespace is on a virtual node of the provider. Another one replaces it if the namespace wants
/// other events.
fn set_event_watch(consumer: &Arc<ConsumerState>, peer: &Arc<RemoteProvider>, namespace: &str) {
    let Some(remote) = peer.remote() else { return };
    // Otherwise the first list could show events of pods that are not known yet.
    if !remote.is_synced() || !consumer.all_pods_known(&peer.id) {
        return;
    }
    let is_needed = peer
        .pods()
        .iter()
        .any(|pod| pod.key.namespace == namespace && !pod.finished);
    let mapped = is_needed
        .then(|| watched_namespace(remote.map().as_deref(), namespace))
        .flatten();
    let wanted = mapped.map(|mapped| WatchedEvents {
        mapped,
        selection: consumer.event_selection(namespace),
    });
    let mut running = remote.event_watches.lock();
    if running.get(namespace).map(|watch| &watch.events) == wanted.as_ref() {
        return;
    }
    running.remove(namespace);
    if let Some(wanted) = wanted {
        let watch = watches::watch_remote_events(consumer, peer, &remote, namespace, wanted);
        running.insert(namespace.to_owned(), watch);
    }
}

/// Writes the events of one pod that are due.
async fn write_due_events(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    uid: &str,
) -> Result<Requeue, StepError> {
    let Some(pod) = peer.pod(uid) else {
        peer.journal.lock().forget_pod(uid);
        return Ok(Requeue::OnChange);
    };
    let Some(remote) = peer.remote() else {
        return Ok(Requeue::OnChange);
    };
    let remote_uid = remote
        .shadow_pod(uid)
        .and_then(|shadow| shadow.remote_uid.clone());
    let mapped = watched_namespace(remote.map().as_deref(), &pod.key.namespace);
    let node = consumer
        .virtual_nodes
        .get(&pod.virtual_node)
        .and_then(|node| node.status.as_ref()?.node_name.clone());
    let (Some(remote_uid), Some(mapped), Some(node)) = (remote_uid, mapped, node) else {
        return Ok(Requeue::OnChange);
    };
    loop {
        let due = peer
            .journal
            .lock()
            .next_due(uid, &remote_uid, Instant::now().into_std());
        match due {
            DueEvent::Nothing => return Ok(Requeue::OnChange),
            DueEvent::After(wait) => return Ok(Requeue::After(wait)),
            DueEvent::Write(event) => {
                write_event(consumer, &pod, &event, &mapped, &node).await?;
                peer.journal
                    .lock()
                    .event_written(uid, *event, Instant::now().into_std());
            }
        }
    }
}

/// Creates or changes one event. If it is as it should be, the API server stores nothing.
async fn write_event(
    consumer: &ConsumerState,
    pod: &LocalPod,
    event: &RemoteEvent,
    mapped: &str,
    node: &str,
) -> Result<(), StepError> {
    let (key, object) =
        event.to_local_event(pod, mapped, node, consumer.is_brokered(&pod.key.namespace));
    let api: Api<PartialObjectMeta<Event>> =
        Api::namespaced(consumer.context.client.clone(), &key.namespace);
    let answer = api
        .patch(
            &key.name,
            &PatchParams::apply(FIELD_MANAGER).force(),
            &Patch::Apply(&object),
        )
        .await;
    match answer {
        // The API server will not take this event later either, for example because the namespace
        // is being deleted.
        Err(error)
            if error
                .status()
                .is_some_and(|status| matches!(status.code, 400 | 403 | 404 | 422)) =>
        {
            tracing::debug!(pod = %pod.key, event = key.name, %error, "event not recorded");
            Ok(())
        }
        answer => answer.map(drop).step("write", "Event", &key),
    }
}

#[cfg(test)]
mod tests;
