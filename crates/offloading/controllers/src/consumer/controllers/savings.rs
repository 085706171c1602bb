//! Running pods that cost too much: evicts those of namespaces with `moveWhenCheaper` that another
//! virtual node would serve for clearly less, and those that go home because a budget with
//! `MoveHome` is spent.
//!
//! ```text
//!   every 30 s: pods and free amounts of virtual nodes (caches) --> rules: pod::saving, pod::turns --> Eviction API, as budgets allow
//! ```
//! The new pod of an evicted one prefers the cheapest node by itself. Where it does not get there,
//! for a reason that the rule does not know, the pods of its controller stay for an hour.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use liqo_api::departure::DepartureCause;
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy};
use liqo_controller_runtime::writes::StepError;
use tokio::time::Instant;

use crate::consumer::evictions::{
    NodePods, allowed_by_budgets, evict_pod, known_nodes, running_pods, waiting_controllers,
};
use crate::consumer::state::ConsumerState;
use liqo_offloading_rules::budget::BudgetEvaluation;
use liqo_offloading_rules::namespace::node_selector;
use liqo_offloading_rules::node::priced::PricedNode;
use liqo_offloading_rules::pod::running_pod::{RunningPod, TargetNode};
use liqo_offloading_rules::pod::saving::{Saving, SavingFacts, find_savings, moves_pods};
use liqo_offloading_rules::pod::turns::{MaxMissingPods, next_evictions};

/// Interval between two rounds.
const INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of pods of one namespace that are evicted in one round.
const MAX_AT_ONCE: usize = 10;
/// For this long no other pod of a controller is evicted.
const PAUSE: Duration = Duration::from_mins(1);
/// The same, if the new pod is at another provider than the eviction was for.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_hours(1);

/// The place of pods that come home: no virtual node has this name.
const HOME: &str = "";

/// The last evictions of this process, by the UID of the controller. A restart forgets them, which
/// costs at most one eviction of each.
#[derive(Default)]
struct SavingsMemory(HashMap<String, LastEviction>);

struct LastEviction {
    at: Instant,
    /// The node to which the pod should go, and how many pods of the controller were on other
    /// virtual nodes.
    to: String,
    elsewhere: usize,
}

impl SavingsMemory {
    /// The controllers whose pods stay for now. `elsewhere` counts the pods of a controller on
    /// other virtual nodes than one.
    fn paused_controllers(
        &mut self,
        elsewhere: impl Fn(&str, &str) -> usize,
        now: Instant,
    ) -> BTreeSet<String> {
        self.0
            .retain(|_, evicted| now.duration_since(evicted.at) < PAUSE_AFTER_FAILURE);
        self.0
            .iter()
            .filter(|(controller, evicted)| {
                let failed = elsewhere(controller, &evicted.to) >= evicted.elsewhere;
                failed || now.duration_since(evicted.at) < PAUSE
            })
            .map(|(controller, _)| controller.clone())
            .collect()
    }

    /// `to` is the node to which the pod should go.
    fn record_eviction(&mut self, controller: &str, to: &str, elsewhere: usize, now: Instant) {
        self.0.insert(
            controller.to_owned(),
            LastEviction {
                at: now,
                to: to.to_owned(),
                elsewhere,
            },
        );
    }
}

/// Runs until the context stops.
pub async fn run_controller(consumer: Arc<ConsumerState>) {
    let mut memory = SavingsMemory::default();
    loop {
        tokio::select! {
            biased;
            () = consumer.context.stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let standing = consumer.budgets.read().clone().unwrap_or_default();
        let offloadings = consumer.offloadings.all();
        let some_come_home = standing.moves_any_home();
        let asking: Vec<_> = offloadings
            .iter()
            .filter(|(key, one)| {
                key.name == NAMESPACE_OFFLOADING
                    && (moves_pods(one) || (some_come_home && may_come_home(one)))
            })
            .collect();
        if asking.is_empty() {
            continue;
        }
        let nodes = known_nodes(&consumer);
        for (key, offloading) in asking {
            let namespace = key.namespace.as_str();
            if some_come_home
                && may_come_home(offloading)
                && let Err(error) =
                    bring_home(&consumer, namespace, &standing, &nodes, &mut memory).await
            {
                tracing::warn!(namespace, %error, "pods not brought home although a budget is spent, trying again");
            }
            if moves_pods(offloading)
                && let Err(error) = evict_for_savings(
                    &consumer,
                    namespace,
                    offloading,
                    (&standing, &nodes),
                    &mut memory,
                )
                .await
            {
                tracing::warn!(namespace, %error, "pods not moved to cheaper nodes, trying again");
            }
        }
    }
}

/// Whether the pods of a namespace may run in this cluster, too.
fn may_come_home(offloading: &NamespaceOffloading) -> bool {
    offloading.metadata.deletion_timestamp.is_none()
        && offloading.spec.pod_offloading_strategy == PodOffloadingStrategy::LocalAndRemote
}

/// A running pod of a controller.
struct ControlledPodPlace {
    controller: Option<String>,
    node: String,
}

fn places_of_pods(pods: &[RunningPod]) -> Vec<ControlledPodPlace> {
    pods.iter()
        .map(|pod| ControlledPodPlace {
            controller: pod.controller.clone(),
            node: pod.node.clone(),
        })
        .collect()
}

/// Counts the pods of a controller on other virtual nodes than this one.
fn pods_elsewhere(places: &[ControlledPodPlace], controller: &str, node: &str) -> usize {
    places
        .iter()
        .filter(|place| place.controller.as_deref() == Some(controller) && place.node != node)
        .count()
}

/// Whether a node takes more pods of a namespace: no budget closes it for them.
fn takes_pods_of(
    node: &NodePods,
    namespace: &str,
    offloading: &NamespaceOffloading,
    standing: &BudgetEvaluation,
) -> bool {
    let is_closed = node
        .node
        .cluster_id()
        .parse()
        .is_ok_and(|id| standing.closed_for(namespace, &id).is_some());
    let selector = offloading.spec.cluster_selector.as_ref();
    node.open
        && !is_closed
        && node_selector::selects_node(selector, &node.node.name, &node.node.labels)
}

/// Evicts the pods of one namespace that save the most.
async fn evict_for_savings(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
    (standing, nodes): (&BudgetEvaluation, &[NodePods]),
    memory: &mut SavingsMemory,
) -> Result<(), StepError> {
    let (mut open, mut targets) = (Vec::<&PricedNode>::new(), Vec::new());
    for one in nodes {
        let takes_pods = takes_pods_of(one, namespace, offloading, standing);
        if takes_pods {
            open.push(&one.node);
        }
        targets.push(TargetNode {
            node: &one.node,
            free: takes_pods.then(|| one.free.clone()),
        });
    }
    let mut pods = running_pods(nodes, namespace, &open);
    let places = places_of_pods(&pods);
    let mut unsettled = memory.paused_controllers(
        |controller, node| pods_elsewhere(&places, controller, node),
        Instant::now(),
    );
    unsettled.extend(waiting_controllers(consumer, namespace));
    // Most rounds end here, without a request.
    let free_of_budgets = SavingFacts {
        pods: &pods,
        targets: &targets,
        allowed: &BTreeMap::new(),
        unsettled: &unsettled,
        max: 1,
    };
    if find_savings(&free_of_budgets).is_empty() {
        return Ok(());
    }
    let allowed = allowed_by_budgets(consumer, namespace, &mut pods).await?;
    let facts = SavingFacts {
        pods: &pods,
        targets: &targets,
        allowed: &allowed,
        unsettled: &unsettled,
        max: MAX_AT_ONCE,
    };
    for saving in find_savings(&facts) {
        let Saving {
            key,
            uid,
            controller,
            from,
            to,
            per_hour,
        } = &saving;
        let message =
            format!("evicted from node {from}, because node {to} costs {per_hour} less per hour");
        if evict_pod(consumer, key, uid, DepartureCause::Cheaper, message).await? {
            let elsewhere = pods_elsewhere(&places, controller, to);
            memory.record_eviction(controller, to, elsewhere, Instant::now());
        }
    }
    Ok(())
}

/// Evicts pods of one namespace from the virtual nodes that a spent budget closes.
async fn bring_home(
    consumer: &ConsumerState,
    namespace: &str,
    standing: &BudgetEvaluation,
    nodes: &[NodePods],
    memory: &mut SavingsMemory,
) -> Result<(), StepError> {
    let closed: BTreeSet<String> = nodes
        .iter()
        .filter(|one| {
            one.node
                .cluster_id()
                .parse()
                .is_ok_and(|id| standing.moves_home(namespace, &id))
        })
        .map(|one| one.node.name.clone())
        .collect();
    let mut pods = running_pods(nodes, namespace, &[]);
    if !pods.iter().any(|pod| closed.contains(&pod.node)) {
        return Ok(());
    }
    let places = places_of_pods(&pods);
    let mut unsettled = memory.paused_controllers(
        |controller, _| pods_elsewhere(&places, controller, HOME),
        Instant::now(),
    );
    unsettled.extend(waiting_controllers(consumer, namespace));
    let allowed = allowed_by_budgets(consumer, namespace, &mut pods).await?;
    for one in next_evictions(
        &pods,
        |pod| pod.may_run_at_home && closed.contains(&pod.node),
        &allowed,
        &unsettled,
        (MaxMissingPods::One, MAX_AT_ONCE),
    ) {
        let message = format!(
            "evicted from node {}, because a budget is spent: the next pod runs in this cluster",
            one.from
        );
        if evict_pod(
            consumer,
            &one.key,
            &one.uid,
            DepartureCause::BudgetSpent,
            message,
        )
        .await?
        {
            let elsewhere = pods_elsewhere(&places, &one.controller, HOME);
            memory.record_eviction(&one.controller, HOME, elsewhere, Instant::now());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_pauses_for_a_minute_and_for_an_hour_if_the_eviction_did_not_help() {
        let (mut memory, start) = (SavingsMemory::default(), Instant::now());
        memory.record_eviction("web", "turin", 2, start);
        let mut paused = |elsewhere: usize, after: Duration| {
            let count = move |controller: &str, node: &str| {
                if (controller, node) == ("web", "turin") {
                    elsewhere
                } else {
                    0
                }
            };
            !memory.paused_controllers(count, start + after).is_empty()
        };
        assert!(paused(1, Duration::ZERO) && !paused(1, PAUSE));
        assert!(paused(2, PAUSE) && paused(3, PAUSE_AFTER_FAILURE / 2));
        assert!(!paused(2, PAUSE_AFTER_FAILURE));
    }

    #[test]
    fn a_node_as_json_has_its_prices() {
        let prices = r#"{"currency":"EUR","rates":{"cpu":"0.04"}}"#;
        let node = serde_json::json!({ "metadata": { "labels": { "liqo.io/pool": "default" }, "annotations": { "liqo.io/prices": prices } } });
        let found = PricedNode::from_json("milan", &node);
        assert_eq!(
            (found.labels.len(), found.prices.unwrap().currency.as_str()),
            (1, "EUR")
        );
        assert_eq!(
            PricedNode::from_json("milan", &serde_json::json!({})).prices,
            None
        );
    }
}
