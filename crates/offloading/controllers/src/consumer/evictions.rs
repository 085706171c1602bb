//! Evictions of running pods by turns: what the controllers that decide on them ask of the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, ResourceExt as _, api::ListParams, core::SelectorExt as _};
use liqo_api::departure::DepartureCause;
use liqo_api::{Key, selectors::label_selector};
use liqo_controller_runtime::{
    departures::{self, Departure},
    eviction::Outcome,
    writes::{Step as _, StepError},
};
use liqo_offloading_rules::pod::saving::RunningPod;

use super::state::Consumer;

/// UIDs of the controllers with a pod that has no node.
pub fn waiting_controllers(consumer: &Consumer, namespace: &str) -> Vec<String> {
    let unscheduled = consumer.followed.lock().get(namespace).map(|followed| followed.unscheduled.all());
    unscheduled.into_iter().flatten().filter_map(|(_, pod)| Some(pod.controller.as_ref()?.uid.clone())).collect()
}

/// Notes on each pod which disruption budgets select it. Returns how many evictions each allows now.
pub async fn allowed_by_budgets(
    consumer: &Consumer,
    namespace: &str,
    pods: &mut [RunningPod],
) -> Result<BTreeMap<Key, u32>, StepError> {
    let api: Api<PodDisruptionBudget> = Api::namespaced(consumer.context.client.clone(), namespace);
    let found = api.list(&ListParams::default()).await.step("list", "PodDisruptionBudget", Key::new(namespace, ""))?;
    let mut allowed = BTreeMap::new();
    for budget in found {
        let key = Key::new(namespace, budget.name_any());
        // Kubernetes: an empty selector selects all pods, no selector none.
        let selector = budget.spec.and_then(|spec| spec.selector).as_ref().and_then(label_selector);
        for pod in pods.iter_mut().filter(|pod| selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))) {
            pod.budgets.push(key.clone());
        }
        let left = budget.status.map_or(0, |status| status.disruptions_allowed);
        allowed.insert(key, u32::try_from(left).unwrap_or_default());
    }
    Ok(allowed)
}

/// Whether the pod was evicted. The API server checks the budgets again.
pub async fn evict(consumer: &Consumer, key: &Key, uid: &str, cause: DepartureCause, message: String) -> Result<bool, StepError> {
    Ok(departures::leave(&consumer.context, Departure::new(cause, key, uid).telling(message)).await? == Outcome::Accepted)
}
