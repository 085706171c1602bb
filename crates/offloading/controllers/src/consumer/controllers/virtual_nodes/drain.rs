//! The end of a virtual node: its pods first, then the Node and its lease, then the finalizer.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::departure::DepartureCause;
use liqo_api::{VirtualNode, finalizers};
use liqo_controller_runtime::{
    Cache, Key, Requeue,
    departures::{self, Departure},
    writes::{StepContext as _, StepError},
};
use tokio::time::Instant;

use super::{POLL_INTERVAL, VirtualNodeError, remove_node_finalizer};
use crate::consumer::events;
use crate::consumer::node_objects;
use crate::consumer::node_tasks;
use crate::consumer::state::{ConsumerState, RecordedNode, recorded_node};
use liqo_offloading_rules::node::object::Outage;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::views::PodView;

/// Time that the pods of a drained node have to end. After that they are removed at once.
const PODS_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum duration of a drain. A pod that is created again and again is left to Kubernetes, which
/// collects the pods of nodes that are gone. A peer that does not answer tells nothing about its
/// pods, however long we wait.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(18);
const DRAIN_TIMEOUT_WITHOUT_PEER: Duration = Duration::from_secs(5);

/// Maximum grace of a pod on a drained node, in seconds: shorter than [`PODS_TIMEOUT`], so that
/// containers end by themselves.
const MAX_GRACE: i64 = 10;

/// Maximum number of pods of one node that get an event before they are deleted.
const MAX_EVENTS: usize = 100;

/// Pods that are deleted at the same time.
const CONCURRENCY: usize = 16;

/// Empties the Node and removes it.
pub async fn drain(
    consumer: &Arc<ConsumerState>,
    key: &Key,
    node: &VirtualNode,
) -> Result<Requeue, VirtualNodeError> {
    let Some(RecordedNode { name, port }) = recorded_node(node) else {
        remove_node_finalizer(consumer, key, node).await?;
        return Ok(Requeue::OnChange);
    };
    if !node
        .finalizers()
        .iter()
        .any(|one| one == finalizers::VIRTUAL_NODE)
    {
        return Ok(Requeue::OnChange);
    }
    node_tasks::start(consumer, key, node, &name, port);
    let (pods, started) = {
        let mut tasks = consumer.node_tasks.lock();
        let Some(tasks) = tasks.get_mut(key) else {
            return Ok(Requeue::After(POLL_INTERVAL));
        };
        (
            tasks.pods.clone(),
            *tasks.draining.get_or_insert_with(Instant::now),
        )
    };
    let client = &consumer.context.client;
    if let Some(known) = consumer.nodes.get(&Key::new("", &name)) {
        node_objects::cordon_node(client, &name, &known).await?;
    }
    if !pods.is_synced() {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    let peer = consumer.remote_provider(&node.spec.cluster_id);
    let at_once = peer.outage() != Outage::None || started.elapsed() > PODS_TIMEOUT;
    let due = consumer
        .node_tasks
        .lock()
        .get_mut(key)
        .map(|tasks| due_events(&pods.all(), &mut tasks.told_removal));
    let (peer, due) = (&peer, &due.unwrap_or_default());
    let messages = &[
        removal_message(&name, &node.spec.cluster_name),
        REMOVED_BEHIND.to_owned(),
    ];
    let mut deletions = futures::stream::iter(pods.all().into_iter().map(|(_, pod)| async move {
        if due.contains(&pod.uid) {
            let message = &messages[usize::from(consumer.is_brokered(&pod.key.namespace))];
            events::warn(
                consumer,
                &pod,
                DepartureCause::NodeRemoved
                    .event_reason()
                    .unwrap_or_default(),
                message,
            )
            .await;
        }
        // When the node is gone, nobody says of a pod that does not run at the peer that it has
        // ended.
        match deletion_grace(&pod, at_once || !peer.may_run(&pod)) {
            Some(grace) => {
                let departure = Departure::new(DepartureCause::NodeRemoved, &pod.key, &pod.uid);
                departures::request_departure(
                    &consumer.context,
                    Departure {
                        grace: Some(grace),
                        ..departure
                    },
                )
                .await
                .map(drop)
            }
            None => Ok(()),
        }
    }))
    .buffer_unordered(CONCURRENCY);
    while let Some(deleted) = deletions.next().await {
        deleted?;
    }
    let timeout = if peer.outage() == Outage::None {
        DRAIN_TIMEOUT
    } else {
        DRAIN_TIMEOUT_WITHOUT_PEER
    };
    let some_are_left = pods
        .all()
        .iter()
        .any(|(_, pod)| is_waited_for(pod) && peer.may_run(pod));
    let settled = !some_are_left && are_all_pods_cached(consumer, &name, &pods).await?;
    if !settled && started.elapsed() < timeout {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    node_objects::remove(client, &name, &node.spec.cluster_id, &node.spec.pool).await?;
    if remove_node_finalizer(consumer, key, node).await? {
        node_tasks::stop(consumer, key);
    }
    Ok(Requeue::OnChange)
}

/// With which grace in seconds to delete a pod of a drained node; nothing if it is being deleted so
/// already.
fn deletion_grace(pod: &LocalPod, at_once: bool) -> Option<u32> {
    match pod.deletion {
        _ if pod.only_finalizers_remain() => None,
        _ if at_once => Some(0),
        Some(grace) if grace <= MAX_GRACE => None,
        _ => {
            let own = PodView::of(&pod.to_json())
                .spec()
                .termination_grace_period_seconds();
            u32::try_from(own.unwrap_or(MAX_GRACE).clamp(1, MAX_GRACE)).ok()
        }
    }
}

/// The UIDs of the pods that get an event before they are deleted; `told` are those that got one.
/// Pods without a controller are first: nothing else remains of them.
fn due_events(pods: &[(Key, Arc<LocalPod>)], told: &mut HashSet<String>) -> HashSet<String> {
    let mut due: Vec<&LocalPod> = pods.iter().map(|(_, pod)| &**pod).collect();
    due.retain(|pod| pod.deletion.is_none() && is_waited_for(pod) && !told.contains(&pod.uid));
    due.sort_by_key(|pod| (pod.controller.is_some(), pod.finished));
    let room = MAX_EVENTS.saturating_sub(told.len());
    let due: HashSet<String> = due
        .into_iter()
        .take(room)
        .map(|pod| pod.uid.clone())
        .collect();
    told.extend(due.iter().cloned());
    due
}

/// Message for the owner of a brokered pod, when its node goes: the owner knows no names for
/// clusters behind this one.
const REMOVED_BEHIND: &str = "a cluster behind the provider lends to it no longer, or is not wanted there any more, and its pods end: \
     one that may run again is created again at the provider, if there is room";

fn removal_message(node: &str, cluster: &str) -> String {
    format!(
        "node {node} is removed with its pods: cluster {cluster} lends it no longer, or it is not wanted here any more"
    )
}

/// A pod of a `DaemonSet` is created again as long as the Node exists, and one that only a
/// finalizer holds is not ours to wait for. Kubernetes collects both when the Node is gone.
fn is_waited_for(pod: &LocalPod) -> bool {
    !pod.only_finalizers_remain()
        && pod
            .controller
            .as_ref()
            .is_none_or(|controller| controller.kind != "DaemonSet")
}

/// Whether the watch shows every pod that the API server has on the Node: one may have been bound a
/// moment ago.
async fn are_all_pods_cached(
    consumer: &ConsumerState,
    node: &str,
    pods: &Cache<LocalPod>,
) -> Result<bool, StepError> {
    let api = Api::<Pod>::all(consumer.context.client.clone());
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let live =
        api.list_metadata(&bound)
            .await
            .step("list the pods of", "Node", Key::new("", node))?;
    let shown: HashSet<String> = pods.all().iter().map(|(_, pod)| pod.uid.clone()).collect();
    Ok(live.iter().all(|pod| {
        let uid = pod.metadata.uid.as_ref();
        uid.is_some_and(|uid| shown.contains(uid))
    }))
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(changes: Value) -> LocalPod {
        let mut pod = json!({"metadata": {"namespace": "demo", "name": "web", "uid": "u"},
            "spec": {"terminationGracePeriodSeconds": 30, "containers": []}});
        json_patch::merge(&mut pod, &changes);
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("p", "default"),
        )
        .unwrap()
    }

    fn terminating(grace: i64) -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}})
    }

    fn held() -> Value {
        let mut changes = terminating(0);
        changes["metadata"]["finalizers"] = json!(["example.com/other"]);
        changes
    }

    #[test]
    fn a_drained_pod_gets_its_grace_but_not_all_day() {
        assert_eq!(deletion_grace(&pod(json!({})), false), Some(10));
        assert_eq!(
            deletion_grace(
                &pod(json!({"spec": {"terminationGracePeriodSeconds": 3}})),
                false
            ),
            Some(3)
        );
        assert_eq!(deletion_grace(&pod(terminating(60)), false), Some(10));
        assert_eq!(deletion_grace(&pod(terminating(5)), false), None);
    }

    #[test]
    fn a_pod_of_a_dead_peer_goes_at_once_and_only_once() {
        assert_eq!(deletion_grace(&pod(json!({})), true), Some(0));
        assert_eq!(deletion_grace(&pod(terminating(30)), true), Some(0));
        assert_eq!(deletion_grace(&pod(held()), true), None);
        assert_eq!(
            deletion_grace(&pod(terminating(0)), true),
            Some(0),
            "its removal was interrupted"
        );
    }

    #[test]
    fn pods_that_go_with_their_node_are_told_so_once_and_those_without_a_controller_first() {
        let owned = |kind: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": true}]);
        let pods = |changes: Vec<(String, Value)>| -> Vec<(Key, Arc<LocalPod>)> {
            let all = changes.into_iter().map(|(uid, mut changes)| {
                json_patch::merge(&mut changes, &json!({"metadata": {"uid": uid}}));
                (Key::new("demo", uid.as_str()), Arc::new(pod(changes)))
            });
            all.collect()
        };
        let mut told = HashSet::new();
        let mut many: Vec<_> = (0..2 * MAX_EVENTS)
            .map(|number| {
                (
                    format!("owned{number}"),
                    json!({"metadata": {"ownerReferences": owned("ReplicaSet")}}),
                )
            })
            .collect();
        many.push(("bare".to_owned(), json!({})));
        let many = pods(many);
        let found = due_events(&many, &mut told);
        assert!(found.contains("bare") && found.len() == MAX_EVENTS && found == told);
        assert!(
            due_events(&many, &mut told).is_empty(),
            "the bound is for the whole drain"
        );

        let quiet = [
            terminating(5),
            json!({"metadata": {"ownerReferences": owned("DaemonSet")}}),
        ];
        let quiet = quiet
            .into_iter()
            .enumerate()
            .map(|(number, changes)| (format!("q{number}"), changes))
            .collect();
        assert!(
            due_events(&pods(quiet), &mut HashSet::new()).is_empty(),
            "they end anyway, or are created again at once"
        );
        let few = pods(vec![("a".to_owned(), json!({}))]);
        let mut told = HashSet::new();
        assert_eq!(
            (
                due_events(&few, &mut told).len(),
                due_events(&few, &mut told).len()
            ),
            (1, 0)
        );
    }

    #[test]
    fn the_drain_does_not_wait_for_what_never_ends() {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "o", "controller": true}]);
        assert!(is_waited_for(&pod(json!({}))));
        assert!(!is_waited_for(&pod(
            json!({"metadata": {"ownerReferences": owner}})
        )));
        assert!(!is_waited_for(&pod(held())) && is_waited_for(&pod(terminating(0))));
    }
}
