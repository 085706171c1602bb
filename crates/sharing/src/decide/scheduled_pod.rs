//! A pod as a scheduler needs it: its amounts, and which nodes it accepts.
//!
//! A provider's manager gets every change of every pod. To build a whole pod each time costs more
//! than all that is computed of it here. So these types have the fields that `reduce::pod` and the
//! functions of [`liqo_api::requests`] read, and no others.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerStatus, NodeAffinity, Pod, PodCondition, PodSchedulingGate,
    PodSpec, PodStatus, ResourceRequirements, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use liqo_api::PartialObject;
use serde::Deserialize;

pub type ScheduledPod = PartialObject<Pod, SchedulingSpec, SchedulingStatus>;

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SchedulingSpec {
    affinity: Option<NodeAffinityOnly>,
    containers: Option<Vec<ContainerAmounts>>,
    init_containers: Option<Vec<ContainerAmounts>>,
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    overhead: Option<BTreeMap<String, Quantity>>,
    resources: Option<ResourceRequirements>,
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
    tolerations: Option<Vec<Toleration>>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeAffinityOnly {
    node_affinity: Option<NodeAffinity>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerAmounts {
    name: String,
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SchedulingStatus {
    conditions: Option<Vec<ResizeCondition>>,
    container_statuses: Option<Vec<GivenAmounts>>,
    init_container_statuses: Option<Vec<GivenAmounts>>,
    phase: Option<String>,
}

/// A condition of a pod, as far as it can say that a container cannot be resized.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResizeCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: Option<String>,
    observed_generation: Option<i64>,
}

/// The amounts that a node gave a container.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GivenAmounts {
    name: String,
    allocated_resources: Option<BTreeMap<String, Quantity>>,
    resources: Option<ResourceRequirements>,
}

/// All other fields are as if the pod did not have them: for `reduce::pod` and
/// [`liqo_api::requests`] only.
impl From<SchedulingSpec> for PodSpec {
    fn from(read: SchedulingSpec) -> Self {
        Self {
            affinity: read.affinity.map(|affinity| Affinity {
                node_affinity: affinity.node_affinity,
                ..Affinity::default()
            }),
            containers: read
                .containers
                .into_iter()
                .flatten()
                .map(Container::from)
                .collect(),
            init_containers: read
                .init_containers
                .map(|all| all.into_iter().map(Container::from).collect()),
            node_name: read.node_name,
            node_selector: read.node_selector,
            overhead: read.overhead,
            resources: read.resources,
            scheduling_gates: read.scheduling_gates,
            tolerations: read.tolerations,
            ..Self::default()
        }
    }
}

impl From<ContainerAmounts> for Container {
    fn from(read: ContainerAmounts) -> Self {
        Self {
            name: read.name,
            resources: read.resources,
            restart_policy: read.restart_policy,
            ..Self::default()
        }
    }
}

/// As for the spec.
impl From<SchedulingStatus> for PodStatus {
    fn from(read: SchedulingStatus) -> Self {
        let statuses = |all: Vec<GivenAmounts>| all.into_iter().map(ContainerStatus::from);
        Self {
            conditions: read
                .conditions
                .map(|all| all.into_iter().map(PodCondition::from).collect()),
            container_statuses: read.container_statuses.map(|all| statuses(all).collect()),
            init_container_statuses: read
                .init_container_statuses
                .map(|all| statuses(all).collect()),
            phase: read.phase,
            ..Self::default()
        }
    }
}

impl From<ResizeCondition> for PodCondition {
    fn from(read: ResizeCondition) -> Self {
        Self {
            type_: read.type_,
            status: read.status,
            reason: read.reason,
            observed_generation: read.observed_generation,
            ..Self::default()
        }
    }
}

impl From<GivenAmounts> for ContainerStatus {
    fn from(read: GivenAmounts) -> Self {
        Self {
            name: read.name,
            allocated_resources: read.allocated_resources,
            resources: read.resources,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1 as core;
    use liqo_api::{Charge, requests::EffectiveAmounts};
    use serde_json::json;

    use super::*;

    /// The same rules read both, so it is enough that the fields which they read are the same.
    #[test]
    fn what_is_read_of_a_pod_has_the_amounts_of_the_whole_one() {
        let amounts = |cpu: &str| json!({ "requests": { "cpu": cpu }, "limits": { "cpu": cpu } });
        let object = json!({
            "metadata": { "name": "p", "generation": 2 },
            "spec": {
                "nodeName": "n",
                "affinity": {
                    "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                        { "matchExpressions": [{ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] }] }
                    ] } },
                    "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "zone" }] }
                },
                "nodeSelector": { "a": "b" },
                "overhead": { "cpu": "250m" },
                "resources": { "requests": { "memory": "2Gi" }, "limits": { "memory": "3Gi" } },
                "schedulingGates": [{ "name": "g" }],
                "tolerations": [{ "key": "k", "operator": "Exists" }],
                "containers": [{ "name": "c", "image": "i", "resources": amounts("2"), "env": [{ "name": "E" }] }],
                "initContainers": [{ "name": "s", "image": "i", "restartPolicy": "Always", "resources": amounts("1") }],
            },
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "PodResizePending", "status": "True", "reason": "Infeasible", "observedGeneration": 2 }],
                "containerStatuses": [{ "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": "1" }, "resources": amounts("1") }],
                "initContainerStatuses": [{ "name": "s", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "allocatedResources": { "cpu": "3" } }],
            },
        });
        let whole: core::Pod = serde_json::from_value(object.clone()).unwrap();
        let read: ScheduledPod = serde_json::from_value(object).unwrap();
        let (spec, status): (PodSpec, PodStatus) = (read.spec.into(), read.status.unwrap().into());
        let (whole_spec, whole_status) = (whole.spec.unwrap(), whole.status.unwrap());
        assert_eq!(spec.node_name, whole_spec.node_name);
        assert_eq!(spec.node_selector, whole_spec.node_selector);
        assert_eq!(spec.scheduling_gates, whole_spec.scheduling_gates);
        assert_eq!(spec.tolerations, whole_spec.tolerations);
        assert_eq!(
            spec.affinity.as_ref().unwrap().node_affinity,
            whole_spec.affinity.as_ref().unwrap().node_affinity
        );
        assert_eq!(status.phase, whole_status.phase);
        let amounts = |spec, status| EffectiveAmounts::of_bound_pod(Some(2), spec, status);
        let read = amounts(spec, &status);
        let charged = |charge| {
            let charged = read.charged_amounts(charge);
            ["cpu", "memory"].map(|name| charged.get(name).to_string())
        };
        assert_eq!(charged(Charge::Requests), ["4250m", "2Gi"]);
        assert_eq!(charged(Charge::Limits), ["4250m", "3Gi"]);
        assert_eq!(read, amounts(whole_spec, &whole_status));
    }
}
