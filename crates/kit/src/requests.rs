//! What a pod asks of a node, as the scheduler counts it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use liqo_quantity::{Quantity, ResourceList};

/// The effective requests of a pod: the larger of the running containers together and each step of the initialisation
/// (sidecars that started before it included), then pod-level requests in place of those for the resources that they name,
/// plus overhead, plus one pod. Quantities that cannot be read count as zero; the API server admits none.
///
/// Source: KEP-753 (sidecar containers) and KEP-2837 (pod-level resources).
pub fn of_pod(spec: &PodSpec) -> ResourceList {
    let running = sum(spec.containers.iter().map(requests));
    let mut sidecars = ResourceList::default();
    let mut steps = ResourceList::default();
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += &requests(container);
            steps = steps.max(&sidecars);
        } else {
            steps = steps.max(&(sidecars.clone() + &requests(container)));
        }
    }
    let mut total = (running + &sidecars).max(&steps);
    if let Some(pod_level) = &spec.resources {
        for (name, quantity) in &requirements(pod_level) {
            total.insert(name, quantity);
        }
    }
    if let Some(overhead) = &spec.overhead {
        total += &list(overhead);
    }
    total.insert("pods", Quantity::from_units(1));
    total
}

/// The effective requests of a pod that has a node: while a container is resized in place it holds what it asks for or what it
/// was given, whichever is larger; if the resize can never be done there, what it was given.
///
/// Source: KEP-1287 (in-place update of pod resources).
pub fn of_bound_pod(mut spec: PodSpec, status: &PodStatus) -> ResourceList {
    let infeasible = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodResizePending" && condition.status == "True" && condition.reason.as_deref() == Some("Infeasible")
    });
    let statuses = [&status.container_statuses, &status.init_container_statuses];
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let known = statuses.iter().flat_map(|statuses| statuses.iter().flatten()).find(|status| status.name == container.name);
        let Some(known) = known else { continue };
        let actual = known.resources.as_ref().and_then(|resources| resources.requests.as_ref()).map(list).unwrap_or_default();
        let given = actual.max(&known.allocated_resources.as_ref().map(list).unwrap_or_default());
        if given.is_empty() {
            continue;
        }
        let holds = if infeasible { given } else { given.max(&requests(container)) };
        let holds = holds.iter().map(|(name, quantity)| (name.to_owned(), ApiQuantity(quantity.to_string()))).collect();
        container.resources = Some(ResourceRequirements { requests: Some(holds), ..ResourceRequirements::default() });
    }
    of_pod(&spec)
}

/// A resource list of the Kubernetes API. What cannot be read is left out.
pub fn list(resources: &BTreeMap<String, ApiQuantity>) -> ResourceList {
    resources.iter().filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse::<Quantity>().ok()?))).collect()
}

fn requests(container: &Container) -> ResourceList {
    container.resources.as_ref().map(requirements).unwrap_or_default()
}

/// Requests; a limit without a request counts as one, as the API server sets it.
fn requirements(resources: &ResourceRequirements) -> ResourceList {
    let mut wanted = resources.limits.as_ref().map(list).unwrap_or_default();
    for (name, quantity) in &resources.requests.as_ref().map(list).unwrap_or_default() {
        wanted.insert(name, quantity);
    }
    wanted
}

fn sum(lists: impl Iterator<Item = ResourceList>) -> ResourceList {
    lists.fold(ResourceList::default(), |total, one| total + &one)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cpu(spec: serde_json::Value) -> String {
        of_pod(&serde_json::from_value(spec).unwrap()).get("cpu").to_string()
    }

    fn container(cpu: &str) -> serde_json::Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } })
    }

    #[test]
    fn containers_add_up_and_init_containers_only_count_when_larger() {
        assert_eq!(cpu(json!({ "containers": [container("1"), container("500m")] })), "1500m");
        assert_eq!(cpu(json!({ "containers": [container("1")], "initContainers": [container("3"), container("2")] })), "3");
    }

    #[test]
    fn a_sidecar_counts_with_the_containers_and_with_later_init_containers() {
        let sidecar = json!({ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "1" } } });
        assert_eq!(cpu(json!({ "containers": [container("1")], "initContainers": [sidecar, container("2")] })), "3");
        let sidecar = json!({ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "1" } } });
        assert_eq!(cpu(json!({ "containers": [container("3")], "initContainers": [container("2"), sidecar] })), "4");
    }

    #[test]
    fn pod_level_requests_stand_for_the_sum_and_overhead_comes_on_top() {
        let spec =
            json!({ "containers": [container("1")], "resources": { "requests": { "cpu": "2" } }, "overhead": { "cpu": "250m" } });
        assert_eq!(cpu(spec), "2250m");
    }

    #[test]
    fn a_container_that_is_resized_holds_the_larger_amount_until_that_is_done() {
        let holds = |wanted: &str, given: &str, reason: &str| {
            let spec = json!({ "containers": [container(wanted)] });
            let status = json!({
                "conditions": [{ "type": "PodResizePending", "status": "True", "reason": reason }],
                "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": given }, "resources": { "requests": { "cpu": given } }
                }]
            });
            let (spec, status) = (serde_json::from_value(spec).unwrap(), serde_json::from_value(status).unwrap());
            of_bound_pod(spec, &status).get("cpu").to_string()
        };
        assert_eq!(holds("2", "1", "Deferred"), "2", "it grows");
        assert_eq!(holds("1", "2", "Deferred"), "2", "it shrinks");
        assert_eq!(holds("9", "1", "Infeasible"), "1", "it will never grow so much here");
    }

    #[test]
    fn a_pod_without_statuses_holds_what_it_asks_for() {
        let spec = serde_json::from_value(json!({ "containers": [container("2")] })).unwrap();
        assert_eq!(of_bound_pod(spec, &PodStatus::default()).get("cpu").to_string(), "2");
    }

    #[test]
    fn every_pod_counts_as_one_and_a_limit_stands_for_a_missing_request() {
        let spec = json!({ "containers": [{ "name": "c", "resources": { "limits": { "cpu": "2" } } }] });
        let requests = of_pod(&serde_json::from_value(spec).unwrap());
        assert_eq!((requests.get("pods").to_string(), requests.get("cpu").to_string()), ("1".to_owned(), "2".to_owned()));
    }
}
