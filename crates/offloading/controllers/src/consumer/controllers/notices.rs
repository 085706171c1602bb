//! Evicts pods that their provider will end because a pool has other nodes or becomes smaller: a
//! few of each controller at a time, as the disruption budgets of this cluster allow. When the
//! notice is over, the provider ends all others at once.
//!
//! ```text
//!   ShadowPod there: EndsSoon --> condition here --> every 2 s: rules: pod::turns --> Eviction API --> another pod, where there is room
//! ```
//!
//! A pool that ends as a whole is another matter: its Node is drained, see
//! `virtual_nodes::withdrawal`. Pods of our own consumers stay: their consumers read the same
//! notice, and move them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use liqo_api::departure::DepartureCause;
use liqo_api::{Key, NAMESPACE_OFFLOADING, PodOffloadingStrategy};
use liqo_controller_runtime::writes::StepError;
use liqo_offloading_rules::namespace::node_selector;
use liqo_offloading_rules::node::priced::PricedNode;
use liqo_offloading_rules::pod::running_pod::{RunningPod, TargetNode};
use liqo_offloading_rules::pod::turns::{
    MaxMissingPods, NextEviction, ReplacementRoom, next_evictions,
};
use tokio::time::Instant;

use crate::consumer::evictions::{
    NodePods, allowed_by_budgets, evict_pod, known_nodes, running_pods, waiting_controllers,
};
use crate::consumer::state::ConsumerState;

/// Interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(2);
/// For this long no other pod of a controller is evicted, if no budget knows when the new one is
/// Ready: it may be on a node of this cluster, whose pods are not watched. Budgets that allow
/// nothing are not read again before.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of pods of one namespace that are evicted in one round.
const MAX_AT_ONCE: usize = 50;

/// Begin of each pause: of controllers by UID, of namespaces by name. A restart forgets them.
type PauseStarts = HashMap<String, Instant>;

/// Runs until the context stops.
pub async fn run_controller(consumer: Arc<ConsumerState>) {
    let mut resting = PauseStarts::new();
    loop {
        tokio::select! {
            biased;
            () = consumer.context.stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        resting.retain(|_, since| since.elapsed() < PAUSE);
        let leaving = leaving_namespaces(&consumer);
        if leaving.is_empty() {
            continue;
        }
        let nodes = known_nodes(&consumer);
        for namespace in leaving
            .iter()
            .filter(|namespace| !consumer.is_brokered(namespace))
        {
            if resting.contains_key(namespace) {
                continue;
            }
            if let Err(error) = evict_next_pods(&consumer, namespace, &nodes, &mut resting).await {
                tracing::warn!(namespace, %error, "pods not moved that their provider will end, trying again");
            }
        }
    }
}

/// The namespaces with pods that end soon.
fn leaving_namespaces(consumer: &ConsumerState) -> BTreeSet<String> {
    let tasks = consumer.node_tasks.lock();
    let pods = tasks.values().flat_map(|tasks| tasks.pods.all());
    pods.filter(|(_, pod)| pod.ends_soon() && !pod.finished)
        .map(|(_, pod)| pod.key.namespace.clone())
        .collect()
}

/// The places to which pods of a namespace may go.
struct NamespacePlaces<'a> {
    /// Whether pods may run in this cluster, too.
    here: bool,
    /// The virtual nodes that take new pods.
    open: Vec<&'a NodePods>,
}

impl<'a> NamespacePlaces<'a> {
    fn nodes(&self) -> Vec<&'a PricedNode> {
        self.open.iter().map(|one| &one.node).collect()
    }

    fn free_room(&self) -> ReplacementRoom<'a> {
        let nodes = self.open.iter().map(|one| TargetNode {
            node: &one.node,
            free: Some(one.free.clone()),
        });
        ReplacementRoom {
            here: self.here,
            nodes: nodes.collect(),
        }
    }
}

fn places_of_namespace<'a>(
    consumer: &ConsumerState,
    namespace: &str,
    nodes: &'a [NodePods],
) -> NamespacePlaces<'a> {
    let offloading = consumer
        .offloadings
        .get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    let here = offloading
        .as_ref()
        .is_none_or(|one| one.spec.pod_offloading_strategy != PodOffloadingStrategy::Remote);
    let selector = offloading
        .as_ref()
        .and_then(|one| one.spec.cluster_selector.as_ref());
    let open = nodes
        .iter()
        .filter(|one| {
            one.open && node_selector::selects_node(selector, &one.node.name, &one.node.labels)
        })
        .collect();
    NamespacePlaces { here, open }
}

/// The pods that end soon, as many as may leave now and find room.
fn next_to_leave(
    pods: &[RunningPod],
    places: &NamespacePlaces,
    allowed: &BTreeMap<Key, u32>,
    unsettled: &BTreeSet<String>,
) -> Vec<NextEviction> {
    let mut room = places.free_room();
    next_evictions(
        pods,
        |pod| pod.ends_soon && room.take_room(pod),
        allowed,
        unsettled,
        (MaxMissingPods::Quarter, MAX_AT_ONCE),
    )
}

/// Evicts the next pods of one namespace.
async fn evict_next_pods(
    consumer: &ConsumerState,
    namespace: &str,
    nodes: &[NodePods],
    resting: &mut PauseStarts,
) -> Result<(), StepError> {
    let unsettled: BTreeSet<String> = resting
        .keys()
        .cloned()
        .chain(waiting_controllers(consumer, namespace))
        .collect();
    let places = places_of_namespace(consumer, namespace, nodes);
    let mut pods = running_pods(nodes, namespace, &places.nodes());
    // Without a request, as long as no budget is known.
    if next_to_leave(&pods, &places, &BTreeMap::new(), &unsettled).is_empty() {
        return Ok(());
    }
    let allowed = allowed_by_budgets(consumer, namespace, &mut pods).await?;
    let places = places_of_namespace(consumer, namespace, nodes);
    let next = next_to_leave(&pods, &places, &allowed, &unsettled);
    if next.is_empty() {
        resting.insert(namespace.to_owned(), Instant::now());
    }
    let mut failure = None;
    for one in next {
        let message = format!(
            "evicted from node {}, whose provider would end the pod soon: another one replaces it",
            one.from
        );
        match evict_pod(
            consumer,
            &one.key,
            &one.uid,
            DepartureCause::PlaceEnds,
            message,
        )
        .await
        {
            Ok(true) if !one.has_budget => drop(resting.insert(one.controller, Instant::now())),
            Ok(_) => {}
            // One pod that cannot be evicted holds up no other.
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(()), Err)
}
