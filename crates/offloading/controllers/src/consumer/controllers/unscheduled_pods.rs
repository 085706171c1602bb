//! Pods that have no node yet: gives those that the admission webhook did not see what they lack.
//!
//! A burst of new pods passes through here, too. Those that the webhook handled cost no request.
//!
//! [`at_home`] looks after those that got a node of this cluster meanwhile, although they may run
//! in others only.

mod at_home;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use liqo_api::departure::{DepartureCause, JOB};
use liqo_api::{
    MetadataOnly, NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy, WITHIN_BUDGET,
};
use liqo_controller_runtime::{
    Context, Key, Requeue,
    departures::{self, Departure},
    events::object_ref,
    eviction::EvictionOutcome,
    writes::{StepContext as _, StepError, unless_changed, unless_gone},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::consumer::state::ConsumerState;
use crate::webhook::Offloading;
use liqo_offloading_rules::node::priced::PricedNode;
use liqo_offloading_rules::pod::job::survives_eviction;
use liqo_offloading_rules::pod::local_state::JsonPod;
use liqo_offloading_rules::pod::scheduling::{
    self, NewPodPlacement, avoids_needlessly, tolerations_with_ours,
};
use liqo_offloading_rules::pod::unscheduled::{
    self, RECREATION_INTERVAL, Repair, UnscheduledPod, UnscheduledPodFacts, decide_repair,
};

/// Pods that are handled at the same time.
const CONCURRENCY: usize = 4;

/// Minimum time between two deletions.
const DELETION_INTERVAL: Duration = Duration::from_millis(250);

/// Delay before a change is tried again that the API server refused: it may not know yet that the
/// manager may make it.
const CHANGE_RETRY: Duration = Duration::from_secs(30);

/// Delay before a pod that changed just before its deletion is looked at again.
const DELETION_RETRY: Duration = Duration::from_secs(1);

/// Time for which this process remembers that the user was told about a pod.
const TELLING_INTERVAL: Duration = Duration::from_hours(1);

/// Actions of this process for unscheduled pods. A restart forgets them, which costs one more
/// attempt.
#[derive(Default)]
struct RepairMemory {
    /// Deletion time of the first pod of a controller, by UID of the controller.
    recreated: HashMap<String, (Instant, Timestamp)>,
    last_deletion: Option<Instant>,
    /// Time at which the user was told about a pod, by UID.
    told: HashMap<String, Instant>,
    /// The last known change of the strategy of each namespace.
    strategies: HashMap<String, StrategyChange>,
}

/// The time at which a `NamespaceOffloading` of this UID and generation got its strategy, if that
/// is known.
struct StrategyChange {
    uid: Option<String>,
    generation: Option<i64>,
    at: Option<Timestamp>,
}

impl RepairMemory {
    fn recreated_since(&mut self, controller: &str, now: Instant) -> Option<Timestamp> {
        self.recreated
            .retain(|_, (at, _)| now.duration_since(*at) < RECREATION_INTERVAL);
        self.recreated.get(controller).map(|(_, since)| *since)
    }

    /// Reserves the next deletion. Returns how long to wait if it is too early.
    fn may_delete(&mut self, now: Instant) -> Result<(), Duration> {
        let rest = self.last_deletion.map_or(Duration::ZERO, |at| {
            DELETION_INTERVAL.saturating_sub(now.duration_since(at))
        });
        if !rest.is_zero() {
            return Err(rest);
        }
        self.last_deletion = Some(now);
        Ok(())
    }

    fn record_deletion(&mut self, controller: &str, at: Timestamp, now: Instant) {
        // The API server truncates times to the second.
        let since = Timestamp::from_second(at.as_second()).unwrap_or(at);
        self.recreated
            .entry(controller.to_owned())
            .or_insert((now, since));
    }

    /// The webhook still does not see the pods of this controller, so none is deleted for another
    /// interval.
    fn postpone_deletion(&mut self, controller: &str, now: Instant) {
        if let Some((at, _)) = self.recreated.get_mut(controller) {
            *at = now;
        }
    }

    /// Whether the user is told about this pod for the first time.
    fn is_first_notice(&mut self, uid: &str, now: Instant) -> bool {
        self.told
            .retain(|_, at| now.duration_since(*at) < TELLING_INTERVAL);
        let is_new = !self.told.contains_key(uid);
        if is_new {
            self.told.insert(uid.to_owned(), now);
        }
        is_new
    }
}

/// Runs the controller until the context stops.
pub async fn run_controller(consumer: Arc<ConsumerState>) {
    let (queue, stop) = (
        consumer.queues.unscheduled.clone(),
        consumer.context.stop.clone(),
    );
    let memory: Arc<Mutex<RepairMemory>> = Arc::default();
    let at_home = at_home::run_controller(consumer.clone(), memory.clone());
    // Pods of Jobs leave one at a time: the Job has to count each before it is asked whether it can
    // lose another one.
    let turn = Arc::new(tokio::sync::Mutex::new(()));
    let unscheduled = queue.run("unscheduled-pods", CONCURRENCY, stop, move |key| {
        let (consumer, memory, turn) = (consumer.clone(), memory.clone(), turn.clone());
        async move { reconcile_unscheduled_pod(&consumer, &memory, &turn, &key).await }
    });
    tokio::join!(at_home, unscheduled);
}

async fn reconcile_unscheduled_pod(
    consumer: &ConsumerState,
    memory: &Mutex<RepairMemory>,
    turn: &tokio::sync::Mutex<()>,
    key: &Key,
) -> Result<Requeue, StepError> {
    let object = consumer
        .offloadings
        .get(&Key::new(&key.namespace, NAMESPACE_OFFLOADING));
    let offloading = object
        .as_ref()
        .and_then(|object| Offloading::from_object((**object).clone()));
    let (Some(pod), Some(object), Some(offloading)) =
        (consumer.unscheduled_pod(key), object, offloading)
    else {
        return Ok(Requeue::OnChange);
    };
    let held = held_by_budgets(consumer, &key.namespace, &object, offloading.is_held());
    let now = consumer.context.now();
    let json = pod.to_json();
    let (placement, refusals) = (
        offloading.place_anywhere(&json),
        offloading.refusals_of_pod(&json, now),
    );
    let controller = pod
        .controller
        .as_ref()
        .map(|controller| controller.uid.as_str());
    let recreated_since =
        controller.and_then(|controller| memory.lock().recreated_since(controller, Instant::now()));
    let home_since = if pod.must_leave {
        home_since(consumer, memory, &object).await?
    } else {
        None
    };
    let facts = UnscheduledPodFacts {
        pod: &pod,
        placement: &placement,
        refusals: &refusals,
        avoids_in_vain: avoids_too_much(consumer, &offloading, &json, now),
        held: held.as_deref(),
        home_since,
        is_survived: true,
        recreated_since,
        now,
    };
    let (mut repair_now, mut _turn) = (decide_repair(&facts), None);
    if let Some(job) = pod
        .controller
        .as_ref()
        .filter(|controller| controller.kind == JOB)
        && repair_now == Repair::Recreate
    {
        // The next pod of a Job waits until this one is being deleted.
        let Ok(mine) = turn.try_lock() else {
            return Ok(Requeue::After(DELETION_INTERVAL));
        };
        _turn = Some(mine);
        let is_survived =
            job_survives(consumer, &Key::new(&key.namespace, &job.name), &job.uid).await?;
        repair_now = decide_repair(&UnscheduledPodFacts {
            is_survived,
            ..facts
        });
    }
    match repair_now {
        Repair::Later(rest) => return Ok(Requeue::After(rest)),
        Repair::Tolerate if !add_toleration(&consumer.context.client, key, &pod).await? => {
            return Ok(Requeue::After(CHANGE_RETRY));
        }
        Repair::Release
            if !remove_gate(&consumer.context.client, key, &pod, &placement).await? =>
        {
            return Ok(Requeue::After(CHANGE_RETRY));
        }
        Repair::Nothing | Repair::Tolerate | Repair::Release => {}
        Repair::Recreate => {
            if let Err(rest) = memory.lock().may_delete(Instant::now()) {
                return Ok(Requeue::After(rest));
            }
            match delete_unchanged_pod(&consumer.context, key, &pod).await? {
                Some(EvictionOutcome::Accepted) => {}
                Some(EvictionOutcome::NotAllowed(_)) => return Ok(Requeue::After(CHANGE_RETRY)),
                // Only its status may have changed, which no watch reports here.
                Some(EvictionOutcome::Gone) | None => return Ok(Requeue::After(DELETION_RETRY)),
            }
            memory
                .lock()
                .record_deletion(controller.unwrap_or_default(), now, Instant::now());
        }
        Repair::Tell(message) => {
            tell_owner(consumer, memory, key, &pod, message).await;
            // By then its controller's pods may be deleted again.
            return Ok(Requeue::After(RECREATION_INTERVAL));
        }
    }
    Ok(Requeue::OnChange)
}

/// Whether the Job with this UID goes on without one more of its pods. They are listed first: one
/// that the Job counts meanwhile is found twice, and none is missed.
async fn job_survives(consumer: &ConsumerState, key: &Key, uid: &str) -> Result<bool, StepError> {
    let client = &consumer.context.client;
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let pods = pods
        .list_metadata(&of_job)
        .await
        .step("list the pods of", "Job", key)?;
    let ending = pods
        .items
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        .count();
    let api: Api<Job> = Api::namespaced(client.clone(), &key.namespace);
    let job = unless_gone(api.get(&key.name).await).step("read", "Job", key)?;
    Ok(job.is_some_and(|job| {
        job.metadata.uid.as_deref() == Some(uid) && survives_eviction(&job, ending)
    }))
}

/// Tells the user what the pod lacks.
async fn tell_owner(
    consumer: &ConsumerState,
    memory: &Mutex<RepairMemory>,
    key: &Key,
    pod: &UnscheduledPod,
    message: String,
) {
    let controller = pod
        .controller
        .as_ref()
        .map(|controller| controller.uid.as_str());
    memory
        .lock()
        .postpone_deletion(controller.unwrap_or_default(), Instant::now());
    if memory.lock().is_first_notice(&pod.uid, Instant::now()) {
        let object = object_ref("v1", "Pod", key, Some(pod.uid.clone()));
        consumer
            .context
            .events
            .record_warning(&object, "NotPlaced", message)
            .await;
    }
}

/// Returns the time from which pods of a namespace may run in this cluster, if its strategy has
/// changed. The cache does not tell it, so this asks the API server once for each change.
async fn home_since(
    consumer: &ConsumerState,
    memory: &Mutex<RepairMemory>,
    known: &NamespaceOffloading,
) -> Result<Option<Timestamp>, StepError> {
    let key = Key::of_object(known);
    let (uid, generation) = (known.metadata.uid.clone(), known.metadata.generation);
    if !unscheduled::may_have_changed_to_here(known) {
        return Ok(None);
    }
    if let Some(change) = memory.lock().strategies.get(&key.namespace)
        && (&change.uid, change.generation) == (&uid, generation)
    {
        return Ok(change.at);
    }
    let api: Api<NamespaceOffloading> =
        Api::namespaced(consumer.context.client.clone(), &key.namespace);
    let live = unless_gone(api.get(NAMESPACE_OFFLOADING).await).step(
        "read",
        "NamespaceOffloading",
        &key,
    )?;
    let since = live
        .filter(unscheduled::may_have_changed_to_here)
        .as_ref()
        .and_then(unscheduled::strategy_since);
    let mut memory = memory.lock();
    memory.strategies.retain(|namespace, _| {
        consumer
            .offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
            .is_some()
    });
    memory.strategies.insert(
        key.namespace,
        StrategyChange {
            uid,
            generation,
            at: since,
        },
    );
    Ok(since)
}

/// Whether a pod avoids a cluster that a new one would not avoid.
fn avoids_too_much(
    consumer: &ConsumerState,
    offloading: &Offloading,
    pod: &Value,
    now: Timestamp,
) -> bool {
    // Most pods avoid nothing.
    if !avoids_needlessly(pod, &[]) {
        return false;
    }
    let nodes = consumer.nodes.all();
    let nodes: Vec<_> = nodes
        .iter()
        .map(|(key, node)| Arc::new(PricedNode::from_json(&key.name, node)))
        .collect();
    avoids_needlessly(
        pod,
        &offloading.avoided_clusters(pod, &offloading.room_for_pod(pod, &nodes), now),
    )
}

/// Returns the reason why budgets let no cluster have new pods of a namespace. `by_namespace`: its
/// own budget; otherwise those of the policies for all the clusters that it selects.
fn held_by_budgets(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
    by_namespace: bool,
) -> Option<String> {
    if by_namespace {
        let conditions = offloading
            .status
            .iter()
            .flat_map(|status| &status.conditions);
        return conditions
            .filter(|one| one.type_ == WITHIN_BUDGET)
            .map(|one| one.message.clone())
            .next();
    }
    // Pods that may run here wait for any node.
    if offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Remote {
        return None;
    }
    let standing = consumer.budgets.read().clone()?;
    let selected = consumer.selected_providers(offloading);
    let reasons: Option<Vec<String>> = selected
        .into_iter()
        .map(|(id, _)| {
            standing
                .closed_for(namespace, &id)
                .map(|closed| closed.message.clone())
        })
        .collect();
    reasons?.into_iter().next()
}

/// Adds the toleration to this pod, and to no other one of the same name.
async fn add_toleration(
    client: &Client,
    key: &Key,
    pod: &UnscheduledPod,
) -> Result<bool, StepError> {
    let patch = json!({ "metadata": { "uid": pod.uid }, "spec": { "tolerations": tolerations_with_ours(&pod.to_json()) } });
    patch_pod(
        client,
        key,
        &Patch::Merge(patch),
        "toleration added to a pod that the webhook did not see",
    )
    .await
}

/// Removes the gate of the webhook from this pod, and adds what its placement says.
async fn remove_gate(
    client: &Client,
    key: &Key,
    pod: &UnscheduledPod,
    placement: &NewPodPlacement,
) -> Result<bool, StepError> {
    let operations = json!(scheduling::release_operations(
        &pod.to_json(),
        &pod.uid,
        placement
    ));
    let operations = serde_json::from_value(operations)
        .map_err(kube::Error::SerdeError)
        .step("change", "Pod", key)?;
    patch_pod(
        client,
        key,
        &Patch::Json(operations),
        "pod released that waited for the strategy of its namespace",
    )
    .await
}

/// Returns false if the API server refuses the change.
async fn patch_pod(
    client: &Client,
    key: &Key,
    patch: &Patch<Value>,
    what: &'static str,
) -> Result<bool, StepError> {
    let api: Api<MetadataOnly<Pod>> = Api::namespaced(client.clone(), &key.namespace);
    match api.patch(&key.name, &PatchParams::default(), patch).await {
        // It changed meanwhile, or a policy of this cluster does not allow it, or not yet.
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
            tracing::warn!(pod = %key, error = status.message, "not done: {what}");
            Ok(false)
        }
        answer => {
            if unless_changed(answer).step("change", "Pod", key)?.is_some() {
                tracing::debug!(pod = %key, "{what}");
            }
            Ok(true)
        }
    }
}

/// Deletes the pods of a namespace that wait for a virtual node, although the namespace is not
/// offloaded any more. Returns false if one changed meanwhile: look again.
pub async fn bring_home(context: &Context, namespace: &str) -> Result<bool, StepError> {
    let mut all = true;
    let without_node = ListParams::default().fields("spec.nodeName=");
    for pod in pod_api(&context.client, namespace)
        .list(&without_node)
        .await
        .step("list", "Pods", Key::new(namespace, ""))?
    {
        let (key, version) = (Key::new(namespace, pod.name_any()), pod.resource_version());
        if let Some(pod) = UnscheduledPod::from_pod(pod).filter(UnscheduledPod::is_recreated_here) {
            let departure = Departure {
                version,
                ..Departure::new(DepartureCause::Unoffloaded, &key, &pod.uid)
            };
            all &= departures::request_departure(context, departure).await?
                == EvictionOutcome::Accepted;
        }
    }
    Ok(all)
}

fn pod_api(client: &Client, namespace: &str) -> Api<JsonPod> {
    Api::namespaced(client.clone(), namespace)
}

/// Takes this pod away, unless it changed since the watch showed it.
async fn delete_unchanged_pod(
    context: &Context,
    key: &Key,
    pod: &UnscheduledPod,
) -> Result<Option<EvictionOutcome>, StepError> {
    let live = pod_api(&context.client, &key.namespace)
        .get(&key.name)
        .await;
    let Some(live) = unless_gone(live).step("read", "Pod", key)? else {
        return Ok(None);
    };
    let version = live.metadata.resource_version.clone();
    if UnscheduledPod::from_pod(live).as_ref() != Some(pod) {
        return Ok(None);
    }
    let departure = Departure {
        version,
        ..Departure::new(DepartureCause::Unplaced, key, &pod.uid)
    };
    departures::request_departure(context, departure)
        .await
        .map(Some)
}

#[cfg(test)]
mod tests {
    use crate::consumer::controllers::pods::tests::{api_server, here, started, until};
    use crate::consumer::watches;

    use super::*;

    #[tokio::test]
    async fn a_thousand_pods_that_the_webhook_handled_cost_no_request_and_one_that_it_missed_costs_one()
     {
        let pod = |name: &str, tolerations: serde_json::Value| {
            json!({ "metadata": { "namespace": "demo", "name": name, "uid": name, "resourceVersion": "1" },
                "spec": { "containers": [{ "name": "c", "image": "i" }], "tolerations": tolerations } })
        };
        let ours = json!([{ "key": liqo_api::pods::VIRTUAL_NODE_TAINT, "operator": "Exists", "effect": "NoExecute" }]);
        let handled = (0..1000).map(|number| pod(&format!("handled-{number}"), ours.clone()));
        let mut objects = here(&json!({ "podOffloadingStrategy": "LocalAndRemote" }));
        objects["pods"] = handled.chain([pod("missed", json!([]))]).collect();
        let written: Arc<Mutex<Vec<String>>> = Arc::default();
        let writing = written.clone();
        let consumer = started(api_server(objects, move |method, kind| {
            if method != http::Method::GET {
                writing.lock().push(format!("{method} {kind}"));
            }
            std::future::ready(true)
        }));
        assert!(consumer.offloadings.wait_until_synced().await);
        tokio::spawn(run_controller(consumer.clone()));
        watches::follow_namespace(&consumer, "demo");
        until(|| consumer.unscheduled_pod(&Key::new("demo", "missed"))).await;
        until(|| (!written.lock().is_empty()).then_some(())).await;
        until(|| consumer.queues.unscheduled.is_empty().then_some(())).await;
        assert_eq!(*written.lock(), ["PATCH missed"]);
        consumer.context.stop.cancel();
    }

    #[test]
    fn pods_are_deleted_one_after_another_and_told_of_once() {
        let (mut memory, start) = (RepairMemory::default(), Instant::now());
        assert_eq!(
            (memory.may_delete(start), memory.may_delete(start)),
            (Ok(()), Err(DELETION_INTERVAL))
        );
        assert_eq!(memory.may_delete(start + DELETION_INTERVAL), Ok(()));
        let mut may_tell = |uid, after| memory.is_first_notice(uid, start + after);
        assert_eq!(
            [
                may_tell("u", Duration::ZERO),
                may_tell("u", TELLING_INTERVAL / 2),
                may_tell("v", TELLING_INTERVAL / 2)
            ],
            [true, false, true]
        );
        assert!(may_tell("u", TELLING_INTERVAL));
    }

    #[test]
    fn the_first_deletion_counts_until_it_is_forgotten() {
        let (mut memory, start) = (RepairMemory::default(), Instant::now());
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        memory.record_deletion("o", at("2026-01-01T00:00:05.9Z"), start);
        memory.record_deletion("o", at("2026-01-01T00:00:09Z"), start);
        assert_eq!(
            memory.recreated_since("o", start),
            Some(at("2026-01-01T00:00:05Z"))
        );
        assert_eq!(memory.recreated_since("p", start), None);
        assert_eq!(
            memory.recreated_since("o", start + RECREATION_INTERVAL),
            None
        );
    }
}
