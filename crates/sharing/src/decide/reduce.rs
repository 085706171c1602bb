//! What is kept of the cluster's objects: little enough to hold many, and only what a change of is worth counting again.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as core, Affinity, PodSpec};
use kube::core::DeserializeGuard;
use liqo_api::{ClusterId, Condition, DEFAULT_POOL, ResourceList, ResourceRequest, labels, tenant_namespace};
use liqo_kit::requests::{self, Effective};

/// A node that is not virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalNode {
    /// Whether a consumer's pod could be scheduled there now.
    pub eligible: bool,
    /// What its kubelet gives to pods.
    pub allocatable: ResourceList,
    /// Its labels: policies select by them, and those of [`ADVERTISED`] are offered along.
    pub labels: BTreeMap<String, String>,
}

/// Labels of nodes that are offered along when all nodes agree on them.
pub const ADVERTISED: [&str; 4] =
    ["kubernetes.io/arch", "kubernetes.io/os", "topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// Keeps what matters of a node; nothing of a virtual one.
///
/// A node with a taint that keeps pods away is not offered: a policy may let a consumer's pods keep tolerations, but not every
/// pod of the consumer has them.
pub fn node(node: core::Node) -> Option<LocalNode> {
    let found = node.metadata.labels.unwrap_or_default();
    if found.get(labels::TYPE).is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE) {
        return None;
    }
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let ready = status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let open = !spec.unschedulable.unwrap_or_default()
        && spec.taints.iter().flatten().all(|taint| taint.effect == "PreferNoSchedule")
        && node.metadata.deletion_timestamp.is_none();
    let allocatable = status.allocatable.as_ref().map(requests::list).unwrap_or_default();
    Some(LocalNode { eligible: ready && open, allocatable, labels: found })
}

/// A pod that has not finished.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUse {
    /// The node that it is bound to.
    pub node: Option<String>,
    /// What it holds. Of a pod that is nobody's but our own only the requests are known.
    pub held: Effective,
    /// Whose pod it says it is, if it says so.
    pub claim: Option<Claim>,
    /// Whether it waits for a node and could get one here: not held back by gates, not meant for virtual nodes.
    pub waits: bool,
}

/// Whose pod the labels of a pod say it is. To be believed only where that consumer's mapped namespace is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// The namespace that it is in.
    pub namespace: String,
    /// The consumer.
    pub consumer: String,
    /// The pool that it uses.
    pub pool: String,
}

/// Keeps what matters of a pod; nothing of a finished one.
pub fn pod(pod: core::Pod) -> Option<PodUse> {
    let status = pod.status.unwrap_or_default();
    let phase = status.phase.clone().unwrap_or_default();
    if phase == "Succeeded" || phase == "Failed" {
        return None;
    }
    let spec = pod.spec?;
    let mut found = pod.metadata.labels.unwrap_or_default();
    let node = spec.node_name.clone().filter(|name| !name.is_empty());
    let claim = found.remove(labels::CONSUMER_ID).map(|consumer| Claim {
        namespace: pod.metadata.namespace.unwrap_or_default(),
        consumer,
        pool: found.remove(labels::POOL).unwrap_or_else(|| DEFAULT_POOL.to_owned()),
    });
    Some(PodUse {
        waits: node.is_none() && spec.scheduling_gates.iter().flatten().next().is_none() && !wants_virtual_node(&spec),
        held: match claim {
            Some(_) => Effective::of_bound_pod(spec, &status),
            None => requests::of_bound_pod(spec, &status).into(),
        },
        node,
        claim,
    })
}

/// Whether the pod accepts virtual nodes only.
fn wants_virtual_node(spec: &PodSpec) -> bool {
    let by_selector = spec.node_selector.iter().flatten().any(|(key, value)| key == labels::TYPE && is_virtual(value));
    let affinity = spec.affinity.as_ref().and_then(|Affinity { node_affinity, .. }| node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    by_selector
        || required.is_some_and(|selector| {
            selector.node_selector_terms.iter().all(|term| {
                term.match_expressions.iter().flatten().any(|wanted| {
                    let values = wanted.values.as_deref().unwrap_or_default();
                    wanted.key == labels::TYPE && wanted.operator == "In" && values.iter().all(is_virtual)
                })
            })
        })
}

#[allow(clippy::ptr_arg)] // So that it can stand where a closure over `&String` would.
fn is_virtual(value: &String) -> bool {
    value == labels::TYPE_VIRTUAL_NODE
}

/// A namespace that Liqo made for a consumer.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerNamespace {
    /// Its UID: another one means that the consumer came anew.
    pub uid: String,
    /// Whose it is.
    pub consumer: ClusterId,
    /// Whether it is the tenant namespace, not a mapped one.
    pub tenant: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
}

/// Keeps what matters of a tenant or mapped namespace; nothing of others.
pub fn namespace(namespace: core::Namespace) -> Option<ConsumerNamespace> {
    let meta = namespace.metadata;
    let found = meta.labels?;
    let consumer: ClusterId = found.get(labels::CONSUMER_ID)?.parse().ok()?;
    let managed = found.get(labels::MANAGED).is_some_and(|value| value == "true");
    let tenant = match found.get(labels::NAMESPACE_KIND)?.as_str() {
        "tenant" => meta.name == Some(tenant_namespace(&consumer)),
        "mapped" => false,
        _ => return None,
    };
    let terminating = meta.deletion_timestamp.is_some();
    managed.then(|| ConsumerNamespace { uid: meta.uid.unwrap_or_default(), consumer, tenant, terminating })
}

/// What a consumer asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// At most this much of each resource named, or why that cannot be read.
    pub resources: Result<ResourceList, String>,
    /// What we answered so far.
    pub conditions: Vec<Condition>,
}

/// Keeps what matters of a request; nothing of one that is being deleted. A consumer may write what the schema admits and
/// we cannot read: that must not hurt the others, so it is kept as an error.
pub fn request(request: DeserializeGuard<ResourceRequest>) -> Option<Request> {
    match request.0 {
        Ok(request) => {
            let conditions = request.status.map(|status| status.conditions).unwrap_or_default();
            let deleted = request.metadata.deletion_timestamp.is_some();
            (!deleted).then_some(Request { resources: Ok(request.spec.resources), conditions })
        }
        Err(invalid) => {
            let deleted = invalid.metadata.deletion_timestamp.is_some();
            (!deleted).then_some(Request { resources: Err(invalid.error), conditions: Vec::new() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, list};
    use serde_json::{Value, from_value, json};

    fn reduced_node(change: impl FnOnce(&mut Value)) -> Option<LocalNode> {
        let mut value = json!({
            "metadata": { "name": "a", "labels": { "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "a" } },
            "spec": {},
            "status": {
                "allocatable": { "cpu": "4", "nvidia.com/gpu": "1" },
                "conditions": [{ "type": "Ready", "status": "True" }, { "type": "DiskPressure", "status": "False" }]
            }
        });
        change(&mut value);
        node(from_value(value).unwrap())
    }

    fn eligible(change: impl FnOnce(&mut Value)) -> bool {
        reduced_node(change).unwrap().eligible
    }

    #[test]
    fn a_ready_node_counts_with_its_allocatable_and_its_labels() {
        let node = reduced_node(|_| ()).unwrap();
        assert!(node.eligible);
        assert_eq!(node.allocatable, list("cpu=4, nvidia.com/gpu=1"));
        assert_eq!(node.labels["kubernetes.io/arch"], "amd64");
    }

    #[test]
    fn nodes_that_are_not_ready_cordoned_tainted_or_going_do_not_count() {
        assert!(!eligible(|node| node["status"]["conditions"][0]["status"] = json!("Unknown")));
        assert!(!eligible(|node| node["status"] = json!({})));
        assert!(!eligible(|node| node["spec"]["unschedulable"] = json!(true)));
        assert!(!eligible(|node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "NoSchedule" }])));
        assert!(!eligible(|node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "NoExecute" }])));
        assert!(!eligible(|node| node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
        assert!(eligible(|node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "PreferNoSchedule" }])));
    }

    #[test]
    fn what_we_borrow_ourselves_is_not_lent_on() {
        assert_eq!(reduced_node(|node| node["metadata"]["labels"]["liqo.io/type"] = json!("virtual-node")), None);
    }

    fn reduced_pod(change: impl FnOnce(&mut Value)) -> Option<PodUse> {
        let mut value = json!({
            "metadata": { "name": "p" },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "phase": "Pending" }
        });
        change(&mut value);
        pod(from_value(value).unwrap())
    }

    #[test]
    fn a_finished_pod_uses_nothing() {
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(reduced_pod(|pod| pod["status"]["phase"] = json!(phase)), None);
        }
    }

    #[test]
    fn every_unfinished_pod_counts_as_one_pod_with_its_requests() {
        let pod = reduced_pod(|pod| pod["spec"]["nodeName"] = json!("a")).unwrap();
        assert_eq!(pod.held.requests, list("cpu=1, pods=1"));
        assert_eq!((pod.node.as_deref(), pod.waits, pod.claim), (Some("a"), false, None));
    }

    #[test]
    fn a_pod_waits_for_a_node_here_unless_it_is_gated_or_meant_for_virtual_nodes() {
        let virtual_only = json!({ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] });
        let terms = |terms: Value| json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
        let waits = |change: fn(&mut Value)| reduced_pod(change).unwrap().waits;
        assert!(waits(|_| ()));
        assert!(!waits(|pod| pod["spec"]["schedulingGates"] = json!([{ "name": "g" }])));
        assert!(!waits(|pod| pod["spec"]["nodeSelector"] = json!({ "liqo.io/type": "virtual-node" })));
        let with_terms = |value: Value| reduced_pod(|pod| pod["spec"]["affinity"] = terms(value)).unwrap().waits;
        assert!(!with_terms(json!([{ "matchExpressions": [virtual_only] }])));
        let elsewhere = json!({ "key": "zone", "operator": "In", "values": ["a"] });
        assert!(with_terms(json!([{ "matchExpressions": [virtual_only] }, { "matchExpressions": [elsewhere] }])));
    }

    #[test]
    fn only_namespaces_that_liqo_made_for_a_consumer_are_known() {
        let id = cluster(1);
        let kept = |name: &str, kind: &str, managed: &str| {
            let labels = json!({ "liqo.io/managed": managed, "liqo.io/namespace-kind": kind, "liqo.io/consumer-id": id });
            namespace(from_value(json!({ "metadata": { "name": name, "uid": "u", "labels": labels } })).unwrap())
        };
        let tenant = kept(&tenant_namespace(&id), "tenant", "true").unwrap();
        assert!(tenant.tenant && tenant.consumer == id && !tenant.terminating);
        assert!(!kept("demo-rome", "mapped", "true").unwrap().tenant);
        assert!(!kept("another-name", "tenant", "true").unwrap().tenant);
        assert_eq!(kept("demo-rome", "provider", "true"), None);
        assert_eq!(kept("demo-rome", "mapped", "false"), None);
        assert_eq!(namespace(from_value(json!({ "metadata": { "name": "default" } })).unwrap()), None);
    }

    #[test]
    fn a_request_that_cannot_be_read_is_kept_as_an_error() {
        let read = |cpu: &str| {
            let value = json!({
                "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
                "metadata": { "name": "request" }, "spec": { "resources": { "cpu": cpu } }
            });
            request(from_value(value).unwrap()).unwrap().resources
        };
        assert_eq!(read("2"), Ok(list("cpu=2")));
        assert!(read("1e99999999999999999999").is_err());
    }
}
