//! Evictions of running pods by turns: what the controllers that decide on them have to know, and
//! the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, ResourceExt as _, api::ListParams, core::SelectorExt as _};
use liqo_api::departure::DepartureCause;
use liqo_api::{Key, ResourceList, selectors::label_selector};
use liqo_controller_runtime::{
    Cache,
    departures::{self, Departure},
    eviction::EvictionOutcome,
    writes::{StepContext as _, StepError},
};
use liqo_offloading_rules::node::priced::PricedNode;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::running_pod::{RunningPod, charged_amounts};
use liqo_offloading_rules::pod::saving::takes_new_pods;

use super::state::{ConsumerState, recorded_node};

/// A virtual node with its pods.
pub struct NodePods {
    pub node: PricedNode,
    pub pods: Vec<Arc<LocalPod>>,
    /// Whether it takes new pods, and how much is free.
    pub open: bool,
    pub free: ResourceList,
}

/// The virtual nodes whose pods are all known.
pub fn known_nodes(consumer: &ConsumerState) -> Vec<NodePods> {
    let tasks = consumer.node_tasks.lock();
    let known = consumer
        .virtual_nodes
        .all()
        .into_iter()
        .filter_map(|(key, node)| {
            let name = recorded_node(&node)?.name;
            let live = consumer.nodes.get(&Key::new("", &name))?;
            let pods = tasks
                .get(&key)
                .map(|tasks| tasks.pods.clone())
                .filter(Cache::is_synced)?;
            let open = takes_new_pods(&live)
                && node.spec.withdrawal_timestamp.is_none()
                && node.metadata.deletion_timestamp.is_none();
            let pods = pods.all().into_iter().map(|(_, pod)| pod).collect();
            Some(NodePods {
                node: PricedNode::from_json(&name, &live),
                pods,
                open,
                free: node.spec.resources.clone(),
            })
        });
    let mut known: Vec<NodePods> = known.collect();
    drop(tasks);
    for one in &mut known {
        let used = one
            .pods
            .iter()
            .filter_map(|pod| charged_amounts(pod))
            .fold(ResourceList::new(), |sum, amounts| sum + &amounts);
        one.free = one.free.saturating_sub(&used);
    }
    known
}

/// The running pods of a namespace on these virtual nodes. `open`: the nodes to which they may go.
pub fn running_pods(nodes: &[NodePods], namespace: &str, open: &[&PricedNode]) -> Vec<RunningPod> {
    let mut running = Vec::new();
    for one in nodes {
        let pods = one.pods.iter().filter(|pod| pod.key.namespace == namespace);
        running.extend(pods.filter_map(|pod| RunningPod::on_node(pod, &one.node.name, open)));
    }
    running
}

/// UIDs of the controllers with a pod that has no node.
pub fn waiting_controllers(consumer: &ConsumerState, namespace: &str) -> Vec<String> {
    let unscheduled = consumer
        .followed
        .lock()
        .get(namespace)
        .map(|followed| followed.unscheduled.all());
    unscheduled
        .into_iter()
        .flatten()
        .filter_map(|(_, pod)| Some(pod.controller.as_ref()?.uid.clone()))
        .collect()
}

/// Notes on each pod which disruption budgets select it. Returns how many evictions each allows
/// now.
pub async fn allowed_by_budgets(
    consumer: &ConsumerState,
    namespace: &str,
    pods: &mut [RunningPod],
) -> Result<BTreeMap<Key, u32>, StepError> {
    let api: Api<PodDisruptionBudget> = Api::namespaced(consumer.context.client.clone(), namespace);
    let found = api.list(&ListParams::default()).await.step(
        "list",
        "PodDisruptionBudget",
        Key::new(namespace, ""),
    )?;
    let mut allowed = BTreeMap::new();
    for budget in found {
        let key = Key::new(namespace, budget.name_any());
        // Kubernetes: an empty selector selects all pods, no selector none.
        let selector = budget
            .spec
            .and_then(|spec| spec.selector)
            .as_ref()
            .and_then(label_selector);
        for pod in pods.iter_mut().filter(|pod| {
            selector
                .as_ref()
                .is_some_and(|selector| selector.matches(&pod.labels))
        }) {
            pod.budgets.push(key.clone());
        }
        let left = budget.status.map_or(0, |status| status.disruptions_allowed);
        allowed.insert(key, u32::try_from(left).unwrap_or_default());
    }
    Ok(allowed)
}

/// Whether the pod was evicted. The API server checks the budgets again.
pub async fn evict_pod(
    consumer: &ConsumerState,
    key: &Key,
    uid: &str,
    cause: DepartureCause,
    message: String,
) -> Result<bool, StepError> {
    Ok(departures::request_departure(
        &consumer.context,
        Departure::new(cause, key, uid).with_message(message),
    )
    .await?
        == EvictionOutcome::Accepted)
}
