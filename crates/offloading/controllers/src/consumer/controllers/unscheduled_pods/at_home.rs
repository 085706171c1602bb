//! Pods that got a node of this cluster although their namespace had the strategy `Remote`: the API
//! server had not yet read that the webhook is to see them. They are evicted, as disruption budgets
//! allow, if their controller creates them again.
//!
//! The pods of a namespace are listed after its strategy changed, when the manager starts, and
//! after a pod that the webhook did not see got a node.

use std::{sync::Arc, time::Duration};

use kube::{Api, ResourceExt as _, api::ListParams};
use liqo_api::departure::DepartureCause;
use liqo_api::{
    NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy, may_be_offloaded,
};
use liqo_controller_runtime::{
    Key, Requeue,
    departures::{self, Departure},
    eviction::EvictionOutcome,
    writes::{StepContext as _, StepError, unless_gone},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{RepairMemory, held_by_budgets, pod_api, tell_owner};
use crate::consumer::state::ConsumerState;
use crate::webhook::{self, Offloading};
use liqo_offloading_rules::namespace::brokered::is_brokered;
use liqo_offloading_rules::pod::unscheduled::{
    Repair, UnscheduledPod, UnscheduledPodFacts, decide_repair_here, strategy_since,
};

/// Namespaces that are handled at the same time.
const CONCURRENCY: usize = 2;
/// Delay before the pods of a namespace are listed again, if the webhook does not see its new pods
/// yet.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// The same if a disruption budget allows no eviction. Some never do.
const BUDGET_RETRY_DELAY: Duration = Duration::from_mins(2);

/// Runs the controller until the context stops.
pub(super) async fn run_controller(consumer: Arc<ConsumerState>, memory: Arc<Mutex<RepairMemory>>) {
    let (queue, stop) = (
        consumer.queues.at_home.clone(),
        consumer.context.stop.clone(),
    );
    queue
        .run("pods-at-home", CONCURRENCY, stop, move |namespace| {
            let (consumer, memory) = (consumer.clone(), memory.clone());
            async move { reconcile_namespace(&consumer, &memory, &namespace).await }
        })
        .await;
}

async fn reconcile_namespace(
    consumer: &ConsumerState,
    memory: &Mutex<RepairMemory>,
    namespace: &str,
) -> Result<Requeue, StepError> {
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    let may_leave = may_be_offloaded(namespace, &consumer.context.namespace);
    let known = consumer
        .offloadings
        .get(&key)
        .filter(|known| may_leave && sends_all_away(known));
    let Some(known) = known else {
        return Ok(Requeue::OnChange);
    };
    if !consumer.nodes.is_synced()
        || !webhook::selected_namespaces(&consumer.webhook)
            .covers(namespace, PodOffloadingStrategy::Remote)
    {
        return Ok(Requeue::After(RETRY_DELAY));
    }
    // The cache has no managed fields.
    let api: Api<NamespaceOffloading> = Api::namespaced(consumer.context.client.clone(), namespace);
    let live = unless_gone(api.get(NAMESPACE_OFFLOADING).await).step(
        "read",
        "NamespaceOffloading",
        &key,
    )?;
    let Some(live) = live.filter(sends_all_away) else {
        return Ok(Requeue::OnChange);
    };
    let (Some(since), Some(offloading)) = (strategy_since(&live), Offloading::from_object(live))
    else {
        return Ok(Requeue::OnChange);
    };
    let held = held_by_budgets(consumer, namespace, &known, offloading.is_held());

    let with_node = ListParams::default().fields("spec.nodeName!=");
    let list = pod_api(&consumer.context.client, namespace)
        .list(&with_node)
        .await;
    let mut next = Requeue::OnChange;
    for pod in list.step("list", "Pods", Key::new(namespace, ""))? {
        let key = Key::new(namespace, pod.name_any());
        let Some((pod, node)) = UnscheduledPod::before_scheduling(pod) else {
            continue;
        };
        if consumer.nodes.get(&Key::new("", node)).is_some() {
            continue;
        }
        let placement = offloading.place_anywhere(&pod.to_json());
        let controller = pod
            .controller
            .as_ref()
            .map(|controller| controller.uid.as_str());
        let recreated_since = controller
            .and_then(|controller| memory.lock().recreated_since(controller, Instant::now()));
        let now = consumer.context.now();
        let facts = UnscheduledPodFacts {
            pod: &pod,
            placement: &placement,
            refusals: &[],
            avoids_in_vain: false,
            held: held.as_deref(),
            home_since: None,
            is_survived: false,
            recreated_since,
            now,
        };
        match decide_repair_here(&facts, since) {
            Repair::Recreate if evict_in_turn(consumer, memory, &key, &pod).await? => {
                memory
                    .lock()
                    .record_deletion(controller.unwrap_or_default(), now, Instant::now());
            }
            Repair::Recreate => next = Requeue::After(BUDGET_RETRY_DELAY),
            Repair::Tell(message) => tell_owner(consumer, memory, &key, &pod, message).await,
            _ => {}
        }
    }
    Ok(next)
}

/// Whether new pods of the namespace run in other clusters only. The pods of a brokered one are
/// those of a consumer.
fn sends_all_away(offloading: &NamespaceOffloading) -> bool {
    let is_leaving = offloading.metadata.deletion_timestamp.is_some();
    offloading.spec.pod_offloading_strategy == PodOffloadingStrategy::Remote
        && !is_leaving
        && !is_brokered(offloading)
}

/// Evicts a pod when its turn comes. Returns false if a disruption budget does not allow it yet.
async fn evict_in_turn(
    consumer: &ConsumerState,
    memory: &Mutex<RepairMemory>,
    key: &Key,
    pod: &UnscheduledPod,
) -> Result<bool, StepError> {
    while let Err(rest) = { memory.lock().may_delete(Instant::now()) } {
        tokio::time::sleep(rest).await;
    }
    let message = "evicted, because pods of its namespace run in other clusters only: Liqo's webhook did not see it".to_owned();
    let departure = Departure::new(DepartureCause::RunsHere, key, &pod.uid).with_message(message);
    let outcome = departures::request_departure(&consumer.context, departure).await?;
    Ok(!matches!(outcome, EvictionOutcome::NotAllowed(_)))
}
