//! The effective requests of a pod, as the scheduler computes them.

use std::{collections::BTreeMap, ops::AddAssign};

use crate::Charge;
use crate::conditions::StatusCondition as _;
pub use crate::schema::MAX_RESOURCES;
use k8s_openapi::{
    api::core::v1::{Container, PodSpec, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
pub use liqo_quantity::MAX_RESOURCE_NAME_LEN;
use liqo_quantity::{Quantity, ResourceList};

/// Effective amounts of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EffectiveAmounts {
    /// Effective requests.
    pub requests: ResourceList,
    /// For each resource the larger of effective request and limit; `None` if that equals the
    /// requests.
    limits: Option<ResourceList>,
}

impl EffectiveAmounts {
    /// The amounts of a pod that has no node yet.
    pub fn of_pod(spec: &PodSpec) -> Self {
        let requests = of_pod(spec);
        let limits = requests.max(&effective_amounts(spec, limits_or_requests, |pod_level| {
            container_limits(Some(pod_level))
        }));
        Self {
            limits: (limits != requests).then_some(limits),
            requests,
        }
    }

    /// The amounts of a pod that has a node.
    pub fn of_bound_pod(generation: Option<i64>, spec: PodSpec, status: &PodStatus) -> Self {
        Self::of_pod(&with_actual_amounts(generation, spec, status))
    }

    /// The larger of both, for each resource.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        let limits = self
            .charged_amounts(Charge::Limits)
            .max(other.charged_amounts(Charge::Limits));
        let requests = self.requests.max(&other.requests);
        Self {
            limits: (limits != requests).then_some(limits),
            requests,
        }
    }

    /// Whether it names at most [`MAX_RESOURCES`] resources, so that it can be kept.
    pub fn is_bounded(&self) -> bool {
        [Some(&self.requests), self.limits.as_ref()]
            .into_iter()
            .flatten()
            .all(is_bounded)
    }

    /// The amounts that are charged to an offer.
    pub fn charged_amounts(&self, charge: Charge) -> &ResourceList {
        match charge {
            Charge::Requests => &self.requests,
            Charge::Limits => self.limits.as_ref().unwrap_or(&self.requests),
        }
    }

    /// Adds the overhead that the API server adds to a pod.
    #[must_use]
    pub fn with_overhead(self, overhead: &ResourceList) -> Self {
        Self {
            requests: self.requests + overhead,
            limits: self.limits.map(|limits| limits + overhead),
        }
    }
}

impl AddAssign<&EffectiveAmounts> for EffectiveAmounts {
    fn add_assign(&mut self, other: &EffectiveAmounts) {
        if self.limits.is_some() || other.limits.is_some() {
            self.limits = Some(
                self.charged_amounts(Charge::Limits).clone()
                    + other.charged_amounts(Charge::Limits),
            );
        }
        self.requests += &other.requests;
    }
}

impl From<ResourceList> for EffectiveAmounts {
    fn from(requests: ResourceList) -> Self {
        Self {
            requests,
            limits: None,
        }
    }
}

/// Whether a list names at most [`MAX_RESOURCES`] resources, and none by an overlong name.
pub fn is_bounded(list: &ResourceList) -> bool {
    list.len() <= MAX_RESOURCES && list.names().all(|name| name.len() <= MAX_RESOURCE_NAME_LEN)
}

/// The effective requests of a pod: the larger of the sum of the running containers and each init
/// container (with the sidecars that start before it). Pod-level requests replace this sum for the
/// resources that they name. Then overhead and one pod are added. Invalid quantities count as zero;
/// the API server does not admit them.
///
/// The ledger reads only some fields of pods: whoever reads another one here adds it to
/// `crates/sharing/src/decide/scheduled_pod.rs`.
///
/// Source: KEP-753 (sidecar containers) and KEP-2837 (pod-level resources).
pub fn of_pod(spec: &PodSpec) -> ResourceList {
    effective_amounts(spec, container_requests, container_requests)
}

/// The effective requests of a pod that has a node. While a container is resized in place, the
/// larger of its old and its new amount counts; if the node can never resize it, the old amount.
/// `generation` is that of the pod: the node may have said so of an earlier one.
///
/// Source: KEP-1287 (in-place update of pod resources).
pub fn of_bound_pod(generation: Option<i64>, spec: PodSpec, status: &PodStatus) -> ResourceList {
    of_pod(&with_actual_amounts(generation, spec, status))
}

/// The rule for requests and for limits. `of_container` and `of_pod` choose which of the two it
/// reads.
fn effective_amounts(
    spec: &PodSpec,
    of_container: impl Fn(&ResourceRequirements) -> ResourceList,
    of_pod: impl Fn(&ResourceRequirements) -> ResourceList,
) -> ResourceList {
    let of = |container: &Container| {
        container
            .resources
            .as_ref()
            .map(&of_container)
            .unwrap_or_default()
    };
    let running = sum_amounts(spec.containers.iter().map(of));
    let mut sidecars = ResourceList::default();
    let mut steps = ResourceList::default();
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars += &of(container);
            steps = steps.max(&sidecars);
        } else {
            steps = steps.max(&(sidecars.clone() + &of(container)));
        }
    }
    let mut total = (running + &sidecars).max(&steps);
    if let Some(pod_level) = &spec.resources {
        for (name, quantity) in &of_pod(pod_level) {
            total.insert(name, quantity);
        }
    }
    if let Some(overhead) = &spec.overhead {
        total += &parse_amounts(overhead);
    }
    total.insert("pods", Quantity::from_units(1));
    total
}

/// The pod with the amounts that its containers have now instead of those in their specs.
fn with_actual_amounts(generation: Option<i64>, mut spec: PodSpec, status: &PodStatus) -> PodSpec {
    let infeasible = status.conditions.iter().flatten().any(|condition| {
        let is_current =
            condition.observed_generation.is_none() || condition.observed_generation == generation;
        condition.type_ == "PodResizePending"
            && condition.is_true()
            && condition.reason.as_deref() == Some("Infeasible")
            && is_current
    });
    let statuses = [&status.container_statuses, &status.init_container_statuses];
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        let known = statuses
            .iter()
            .flat_map(|statuses| statuses.iter().flatten())
            .find(|status| status.name == container.name);
        let Some(known) = known else { continue };
        let actual = known.resources.as_ref();
        let allocated = known
            .allocated_resources
            .as_ref()
            .map(parse_amounts)
            .unwrap_or_default();
        let given = actual
            .and_then(|actual| actual.requests.as_ref())
            .map(parse_amounts)
            .unwrap_or_default()
            .max(&allocated);
        if given.is_empty() {
            continue;
        }
        let wanted = container.resources.take().unwrap_or_default();
        let (mut requests, mut limits) = (given, container_limits(actual));
        if !infeasible {
            requests = requests.max(&container_requests(&wanted));
            limits = limits.max(&container_limits(Some(&wanted)));
        }
        container.resources = Some(ResourceRequirements {
            requests: Some(api_list(&requests)),
            limits: Some(api_list(&limits)),
            ..ResourceRequirements::default()
        });
    }
    spec
}

fn api_list(resources: &ResourceList) -> BTreeMap<String, ApiQuantity> {
    resources
        .iter()
        .map(|(name, quantity)| (name.to_owned(), ApiQuantity(quantity.to_string())))
        .collect()
}

/// Parses a resource list of the Kubernetes API. Skips invalid quantities.
pub fn parse_amounts(resources: &BTreeMap<String, ApiQuantity>) -> ResourceList {
    resources
        .iter()
        .filter_map(|(name, quantity)| Some((name.clone(), quantity.0.parse::<Quantity>().ok()?)))
        .collect()
}

/// Requests. A limit without a request counts as the request, because the API server sets it.
fn container_requests(resources: &ResourceRequirements) -> ResourceList {
    let mut wanted = resources
        .limits
        .as_ref()
        .map(parse_amounts)
        .unwrap_or_default();
    for (name, quantity) in &resources
        .requests
        .as_ref()
        .map(parse_amounts)
        .unwrap_or_default()
    {
        wanted.insert(name, quantity);
    }
    wanted
}

/// Limits. A resource without a limit counts with its request.
fn limits_or_requests(resources: &ResourceRequirements) -> ResourceList {
    let mut most = container_requests(resources);
    for (name, quantity) in &container_limits(Some(resources)) {
        most.insert(name, quantity);
    }
    most
}

fn container_limits(resources: Option<&ResourceRequirements>) -> ResourceList {
    resources
        .and_then(|resources| resources.limits.as_ref())
        .map(parse_amounts)
        .unwrap_or_default()
}

fn sum_amounts(lists: impl Iterator<Item = ResourceList>) -> ResourceList {
    lists.fold(ResourceList::default(), |total, one| total + &one)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cpu(spec: serde_json::Value) -> String {
        of_pod(&serde_json::from_value(spec).unwrap())
            .get("cpu")
            .to_string()
    }

    fn container(cpu: &str) -> serde_json::Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } })
    }

    #[test]
    fn containers_add_up_and_init_containers_count_only_if_larger() {
        assert_eq!(
            cpu(json!({ "containers": [container("1"), container("500m")] })),
            "1500m"
        );
        assert_eq!(
            cpu(
                json!({ "containers": [container("1")], "initContainers": [container("3"), container("2")] })
            ),
            "3"
        );
    }

    #[test]
    fn a_sidecar_counts_with_the_containers_and_with_later_init_containers() {
        let sidecar = json!({ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "1" } } });
        assert_eq!(
            cpu(
                json!({ "containers": [container("1")], "initContainers": [sidecar, container("2")] })
            ),
            "3"
        );
        let sidecar = json!({ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "1" } } });
        assert_eq!(
            cpu(
                json!({ "containers": [container("3")], "initContainers": [container("2"), sidecar] })
            ),
            "4"
        );
    }

    #[test]
    fn pod_level_requests_replace_the_sum_and_overhead_is_added() {
        let spec = json!({ "containers": [container("1")], "resources": { "requests": { "cpu": "2" } }, "overhead": { "cpu": "250m" } });
        assert_eq!(cpu(spec), "2250m");
    }

    #[test]
    fn a_container_counts_with_the_larger_amount_while_it_is_resized() {
        let holds = |wanted: &str, given: &str, reason: &str| {
            let spec = json!({ "containers": [container(wanted)] });
            let status = json!({
                "conditions": [{ "type": "PodResizePending", "status": "True", "reason": reason }],
                "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": given }, "resources": { "requests": { "cpu": given } }
                }]
            });
            let (spec, status) = (
                serde_json::from_value(spec).unwrap(),
                serde_json::from_value(status).unwrap(),
            );
            of_bound_pod(Some(2), spec, &status).get("cpu").to_string()
        };
        assert_eq!(holds("2", "1", "Deferred"), "2", "it grows");
        assert_eq!(holds("1", "2", "Deferred"), "2", "it shrinks");
        assert_eq!(
            holds("9", "1", "Infeasible"),
            "1",
            "it will never grow so much here"
        );
    }

    #[test]
    fn what_the_node_said_of_an_earlier_generation_makes_nothing_free() {
        let holds = |observed: Option<i64>, generation: Option<i64>| {
            let spec = json!({ "containers": [container("3")] });
            let status = json!({
                "conditions": [{ "type": "PodResizePending", "status": "True", "reason": "Infeasible", "observedGeneration": observed }],
                "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "allocatedResources": { "cpu": "1" }
                }]
            });
            let (spec, status) = (
                serde_json::from_value(spec).unwrap(),
                serde_json::from_value(status).unwrap(),
            );
            of_bound_pod(generation, spec, &status)
                .get("cpu")
                .to_string()
        };
        assert_eq!(holds(Some(2), Some(3)), "3");
        assert_eq!(holds(Some(2), None), "3");
        assert_eq!(holds(Some(3), Some(3)), "1");
        assert_eq!(
            holds(None, Some(3)),
            "1",
            "a kubelet that does not say of which generation"
        );
    }

    #[test]
    fn a_pod_without_statuses_counts_with_its_requests() {
        let spec = serde_json::from_value(json!({ "containers": [container("2")] })).unwrap();
        assert_eq!(
            of_bound_pod(None, spec, &PodStatus::default())
                .get("cpu")
                .to_string(),
            "2"
        );
    }

    fn limited(cpu: &str, limit: &str) -> serde_json::Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu }, "limits": { "cpu": limit } } })
    }

    /// The cpu that is charged by requests, and by limits.
    fn charged(spec: serde_json::Value) -> [String; 2] {
        let held = EffectiveAmounts::of_pod(&serde_json::from_value(spec).unwrap());
        [Charge::Requests, Charge::Limits]
            .map(|charge| held.charged_amounts(charge).get("cpu").to_string())
    }

    #[test]
    fn limits_are_charged_by_the_rules_for_requests() {
        assert_eq!(
            charged(json!({ "containers": [limited("1", "2"), limited("1", "3")] })),
            ["2", "5"]
        );
        let sidecar = json!({ "name": "s", "restartPolicy": "Always", "resources": limited("1", "2")["resources"] });
        let steps = json!({ "containers": [limited("1", "1")], "initContainers": [sidecar, limited("1", "4")] });
        assert_eq!(charged(steps), ["2", "6"]);
        let overhead = json!({ "containers": [limited("1", "2")], "overhead": { "cpu": "250m" } });
        assert_eq!(charged(overhead), ["1250m", "2250m"]);
    }

    #[test]
    fn pod_level_limits_replace_those_of_containers_and_pod_level_requests_do_not() {
        let of_pod = |resources: serde_json::Value| json!({ "containers": [limited("1", "5")], "resources": resources });
        assert_eq!(
            charged(of_pod(json!({ "limits": { "cpu": "3" } }))),
            ["3", "3"]
        );
        assert_eq!(
            charged(of_pod(
                json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "3" } })
            )),
            ["2", "3"]
        );
        assert_eq!(
            charged(of_pod(json!({ "requests": { "cpu": "2" } }))),
            ["2", "5"]
        );
    }

    #[test]
    fn a_container_without_a_limit_is_charged_its_request() {
        assert_eq!(
            charged(json!({ "containers": [limited("1", "2"), container("3")] })),
            ["4", "5"]
        );
        assert_eq!(
            charged(json!({ "containers": [container("3")] })),
            ["3", "3"]
        );
    }

    #[test]
    fn several_pods_add_up_by_requests_and_by_limits() {
        let of = |container: serde_json::Value| {
            EffectiveAmounts::of_pod(
                &serde_json::from_value(json!({ "containers": [container] })).unwrap(),
            )
        };
        for (first, second) in [
            (limited("1", "2"), container("3")),
            (container("3"), limited("1", "2")),
        ] {
            let mut sum = of(first);
            sum += &of(second);
            assert_eq!(
                sum.charged_amounts(Charge::Requests).get("cpu").to_string(),
                "4"
            );
            assert_eq!(
                sum.charged_amounts(Charge::Limits).get("cpu").to_string(),
                "5"
            );
        }
    }

    #[test]
    fn the_larger_amounts_of_two_are_the_larger_requests_and_the_larger_limits() {
        let of = |container: serde_json::Value| {
            EffectiveAmounts::of_pod(
                &serde_json::from_value(json!({ "containers": [container] })).unwrap(),
            )
        };
        for (first, second) in [
            (limited("1", "2"), container("3")),
            (limited("3", "3"), limited("1", "2")),
        ] {
            assert_eq!(of(first).max(&of(second)), of(container("3")));
        }
        assert_eq!(
            of(limited("1", "4")).max(&of(container("2"))),
            of(limited("2", "4"))
        );
    }

    #[test]
    fn overhead_is_added_to_both() {
        let spec = serde_json::from_value(json!({ "containers": [limited("1", "2")] })).unwrap();
        let held = EffectiveAmounts::of_pod(&spec)
            .with_overhead(&[("cpu", "250m".parse().unwrap())].into());
        assert_eq!(
            held.charged_amounts(Charge::Requests)
                .get("cpu")
                .to_string(),
            "1250m"
        );
        assert_eq!(
            held.charged_amounts(Charge::Limits).get("cpu").to_string(),
            "2250m"
        );
    }

    #[test]
    fn limits_that_are_resized_count_like_requests() {
        let spec = json!({ "containers": [limited("1", "2")] });
        let status = json!({ "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "4" } }
        }] });
        let (spec, status) = (
            serde_json::from_value(spec).unwrap(),
            serde_json::from_value(status).unwrap(),
        );
        assert_eq!(
            EffectiveAmounts::of_bound_pod(None, spec, &status)
                .charged_amounts(Charge::Limits)
                .get("cpu")
                .to_string(),
            "4"
        );
    }

    #[test]
    fn a_pod_names_at_most_64_resources() {
        let pod = |names: Vec<String>| {
            let amounts: serde_json::Map<String, serde_json::Value> =
                names.into_iter().map(|name| (name, "1".into())).collect();
            let spec =
                json!({ "containers": [{ "name": "c", "resources": { "limits": amounts } }] });
            EffectiveAmounts::of_pod(&serde_json::from_value(spec).unwrap()).is_bounded()
        };
        let names = |number: usize| (0..number).map(|n| format!("example.com/r{n}")).collect();
        // `pods` is one of them.
        assert!(pod(names(MAX_RESOURCES - 1)) && !pod(names(MAX_RESOURCES)));
        assert!(
            pod(vec!["x".repeat(MAX_RESOURCE_NAME_LEN)])
                && !pod(vec!["x".repeat(MAX_RESOURCE_NAME_LEN + 1)])
        );
    }

    #[test]
    fn every_pod_counts_as_one_and_a_limit_replaces_a_missing_request() {
        let spec =
            json!({ "containers": [{ "name": "c", "resources": { "limits": { "cpu": "2" } } }] });
        let requests = of_pod(&serde_json::from_value(spec).unwrap());
        assert_eq!(
            (
                requests.get("pods").to_string(),
                requests.get("cpu").to_string()
            ),
            ("1".to_owned(), "2".to_owned())
        );
    }
}
