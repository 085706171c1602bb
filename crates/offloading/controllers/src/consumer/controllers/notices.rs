//! Pods that their provider will end, because a pool has other nodes or became smaller: evicted before, a few of each controller at a time, as
//! the disruption budgets of this cluster allow. When the notice is over, the provider ends the others all at once.
//!
//! ```text
//!   ShadowPod there: EndsSoon --> condition here --> every 2 s: rules: pod::turns --> Eviction API --> another pod, where there is room
//! ```
//!
//! A pool that ends as a whole is another matter: its Node is drained, see `virtual_nodes::withdrawal`. Pods of our own consumers stay: their
//! consumers read the same notice, and move them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use liqo_api::Key;
use liqo_api::departure::DepartureCause;
use liqo_controller_runtime::{Cache, writes::StepError};
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::saving::RunningPod;
use liqo_offloading_rules::pod::turns::{AtOnce, next_pods};
use tokio::time::Instant;

use crate::consumer::evictions::{allowed_by_budgets, evict, waiting_controllers};
use crate::consumer::state::{Consumer, recorded_node};

/// Interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(2);
/// For this long no other pod of a controller is evicted, if no budget knows when the new one is Ready: it may be on a node of this cluster,
/// whose pods are not watched.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of pods of one namespace that are evicted in one round.
const MAX_AT_ONCE: usize = 50;

/// The last evictions of pods without a budget, by the UID of their controller. A restart forgets them.
type Evicted = HashMap<String, Instant>;

/// Runs until the context stops.
pub async fn run(consumer: Arc<Consumer>) {
    let mut evicted = Evicted::new();
    loop {
        tokio::select! {
            biased;
            () = consumer.context.stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        evicted.retain(|_, at| at.elapsed() < PAUSE);
        for (namespace, pods) in leaving_namespaces(&consumer) {
            if let Err(error) = move_next(&consumer, &namespace, pods, &mut evicted).await {
                tracing::warn!(namespace, %error, "pods not moved that their provider will end, trying again");
            }
        }
    }
}

/// The pods on virtual nodes, of the namespaces in which some of them end soon.
fn leaving_namespaces(consumer: &Consumer) -> BTreeMap<String, Vec<RunningPod>> {
    let pods = pods_on_virtual_nodes(consumer);
    let leaving = pods.iter().filter(|(_, pod)| pod.ends_soon()).map(|(_, pod)| pod.key.namespace.as_str());
    let namespaces: BTreeSet<&str> = leaving.filter(|namespace| !consumer.is_lent_on(namespace)).collect();
    let mut found: BTreeMap<String, Vec<RunningPod>> = BTreeMap::new();
    for (node, pod) in pods.iter().filter(|(_, pod)| namespaces.contains(pod.key.namespace.as_str())) {
        found.entry(pod.key.namespace.clone()).or_default().extend(RunningPod::of(pod, node, &[]));
    }
    found
}

/// With the names of their nodes.
fn pods_on_virtual_nodes(consumer: &Consumer) -> Vec<(String, Arc<LocalPod>)> {
    let tasks = consumer.node_tasks.lock();
    let nodes = consumer.virtual_nodes.all().into_iter().filter_map(|(key, node)| {
        let (name, _) = recorded_node(&node)?;
        Some((name, tasks.get(&key).map(|tasks| tasks.pods.clone()).filter(Cache::is_synced)?))
    });
    nodes.flat_map(|(name, pods)| pods.all().into_iter().map(move |(_, pod)| (name.clone(), pod))).collect()
}

/// Evicts the next pods of one namespace.
async fn move_next(
    consumer: &Consumer,
    namespace: &str,
    mut pods: Vec<RunningPod>,
    evicted: &mut Evicted,
) -> Result<(), StepError> {
    let unsettled: BTreeSet<String> = evicted.keys().cloned().chain(waiting_controllers(consumer, namespace)).collect();
    let leaves = |pod: &RunningPod| pod.ends_soon;
    // Most rounds end here, without a request.
    if next_pods(&pods, leaves, &BTreeMap::<Key, u32>::new(), &unsettled, (AtOnce::Quarter, 1)).is_empty() {
        return Ok(());
    }
    let allowed = allowed_by_budgets(consumer, namespace, &mut pods).await?;
    for one in next_pods(&pods, leaves, &allowed, &unsettled, (AtOnce::Quarter, MAX_AT_ONCE)) {
        let message = format!("evicted from node {}, whose provider would end the pod soon: another one replaces it", one.from);
        if evict(consumer, &one.key, &one.uid, DepartureCause::PlaceEnds, message).await? {
            tracing::info!(pod = %one.key, node = one.from, "pod evicted, its provider would end it soon");
            if !one.has_budget {
                evicted.insert(one.controller, Instant::now());
            }
        }
    }
    Ok(())
}
