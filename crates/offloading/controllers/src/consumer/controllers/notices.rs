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
    NodePods, allowed_by_budgets, evict_pod, known_nodes, waiting_controllers,
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
            .filter(|namespace| !consumer.is_lent_on(namespace))
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

/// Finds the places to which pods of a namespace may go, and the nodes that take new ones.
fn places_of_namespace<'a>(
    consumer: &ConsumerState,
    namespace: &str,
    nodes: &'a [NodePods],
) -> (ReplacementRoom<'a>, Vec<&'a PricedNode>) {
    let offloading = consumer
        .offloadings
        .get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    let here = offloading
        .as_ref()
        .is_none_or(|one| one.spec.pod_offloading_strategy != PodOffloadingStrategy::Remote);
    let selector = offloading
        .as_ref()
        .and_then(|one| one.spec.cluster_selector.as_ref());
    let is_open = |one: &&NodePods| {
        one.open && node_selector::selects_node(selector, &one.node.name, &one.node.labels)
    };
    let open: Vec<&NodePods> = nodes.iter().filter(is_open).collect();
    let targets = open
        .iter()
        .map(|one| TargetNode {
            node: &one.node,
            free: Some(one.free.clone()),
        })
        .collect();
    (
        ReplacementRoom {
            here,
            nodes: targets,
        },
        open.iter().map(|one| &one.node).collect(),
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
    let open = places_of_namespace(consumer, namespace, nodes).1;
    let of_namespace = |one: &NodePods| -> Vec<RunningPod> {
        let pods = one.pods.iter().filter(|pod| pod.key.namespace == namespace);
        pods.filter_map(|pod| RunningPod::on_node(pod, &one.node.name, &open))
            .collect()
    };
    let mut pods: Vec<RunningPod> = nodes.iter().flat_map(of_namespace).collect();
    let next = |pods: &[RunningPod], allowed: &BTreeMap<Key, u32>| -> Vec<NextEviction> {
        let mut places = places_of_namespace(consumer, namespace, nodes).0;
        let leaves = |pod: &RunningPod| pod.ends_soon && places.take_room(pod);
        next_evictions(
            pods,
            leaves,
            allowed,
            &unsettled,
            (MaxMissingPods::Quarter, MAX_AT_ONCE),
        )
    };
    // Without a request, as long as no budget is known.
    if next(&pods, &BTreeMap::new()).is_empty() {
        return Ok(());
    }
    let allowed = allowed_by_budgets(consumer, namespace, &mut pods).await?;
    let next = next(&pods, &allowed);
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
