//! Reduces the cluster's objects to the fields that matter here. That saves memory, and other
//! changes cause no new decision.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{self as core, Affinity, Namespace, PodSpec, PodStatus};
use kube::{ResourceExt as _, core::DeserializeGuard};
use liqo_api::conditions::has_true_condition;
use liqo_api::requests::{self, EffectiveAmounts, MAX_RESOURCES, is_bounded};
use liqo_api::{
    ClusterId, Condition, Contract, DEFAULT_POOL, LargestPods, PriceList, RequestedGranularity,
    ResourceList, ResourceRequest, consumer_of_tenant_namespace, is_final_phase, labels,
    peer_namespace::{PeerNamespace, PeerNamespaceKind},
    pods, provider_namespace,
};
use liqo_market::contract::record::{ContractCopy, ContractRecord, IssuedContract};

use super::scheduled_pod::ScheduledPod;

/// A node of this cluster, real or virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalNode {
    /// Whether a consumer's pod could be scheduled here now.
    pub eligible: bool,
    pub allocatable: ResourceList,
    /// Policies select nodes by them. Offers contain those in [`ADVERTISED`].
    pub labels: BTreeMap<String, String>,
    /// The accepted offer behind a virtual node.
    pub upstream: Option<UpstreamPool>,
}

/// The accepted offer behind a virtual node.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamPool {
    pub provider: ClusterId,
    pub pool: String,
    /// Details of the offer. Its Node does not contain them, so `upstream::lendable_nodes` adds
    /// them.
    pub offer: Option<UpstreamOffer>,
}

/// The parts of an accepted offer that matter to who borrows from us.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamOffer {
    /// The provider, and all clusters behind it.
    pub path: BTreeSet<ClusterId>,
    /// Number of clusters that the resources come through, with the provider.
    pub hops: u8,
    pub prices: Option<PriceList>,
    pub largest_pods: LargestPods,
    /// Resources that the provider takes back when its notice is over. The node does not have them
    /// any more, and pods use them until then.
    pub taken_back: ResourceList,
}

/// An offer contains these labels of its nodes if all nodes have the same value.
pub const ADVERTISED: [&str; 4] = [
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Reduces a node; `None` if it is virtual and does not say where it comes from.
///
/// A node with a taint that keeps pods away is not eligible: even if the policy lets a consumer's
/// pods keep their tolerations, not every pod has one. Pods for virtual nodes tolerate the taint
/// that all of these have. While a provider is silent only for a moment, its node counts, as a real
/// node does until its kubelet is missed.
pub fn node(node: core::Node) -> Option<LocalNode> {
    let found = node.metadata.labels.unwrap_or_default();
    let upstream = if found
        .get(labels::TYPE)
        .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
    {
        let provider = found.get(labels::REMOTE_CLUSTER_ID)?.parse().ok()?;
        Some(UpstreamPool {
            provider,
            pool: found.get(labels::POOL)?.clone(),
            offer: None,
        })
    } else {
        None
    };
    let spec = node.spec.unwrap_or_default();
    let mut taints = spec.taints.iter().flatten();
    let has_usual_taints = taints.all(|taint| {
        let is_of_virtual_nodes =
            [pods::VIRTUAL_NODE_TAINT, pods::UNREACHABLE_TAINT].contains(&taint.key.as_str());
        taint.effect == "PreferNoSchedule" || (upstream.is_some() && is_of_virtual_nodes)
    });
    let status = node.status.unwrap_or_default();
    let ready = has_true_condition(status.conditions.iter().flatten(), "Ready");
    let schedulable = !spec.unschedulable.unwrap_or_default()
        && has_usual_taints
        && node.metadata.deletion_timestamp.is_none();
    let allocatable = status
        .allocatable
        .as_ref()
        .map(requests::parse_amounts)
        .unwrap_or_default();
    Some(LocalNode {
        eligible: ready && schedulable,
        allocatable,
        labels: found,
        upstream,
    })
}

/// A pod that has not finished.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUsage {
    pub node: Option<String>,
    /// Effective requests, and limits if the pod claims an owner.
    pub resources: EffectiveAmounts,
    pub owner: Option<ClaimedOwner>,
    /// Whether the scheduler could bind it to a local node: it has no node yet, no scheduling
    /// gates, and accepts nodes that are not virtual.
    pub waits_for_node: bool,
    /// The same for a virtual node.
    pub waits_for_virtual_node: bool,
}

/// The owner that the labels of a pod claim. Trust it only in a mapped namespace of that consumer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimedOwner {
    /// The pod's namespace.
    pub namespace: String,
    pub consumer: String,
    pub pool: String,
    /// Whether the pod is being deleted.
    pub is_ending: bool,
}

/// Reduces a pod; `None` if it is finished.
pub fn pod(pod: ScheduledPod) -> Option<PodUsage> {
    let status: PodStatus = pod.status.unwrap_or_default().into();
    if status.phase.as_deref().is_some_and(is_final_phase) {
        return None;
    }
    let spec: PodSpec = pod.spec.into();
    let mut found = pod.metadata.labels.unwrap_or_default();
    let node = spec.node_name.clone().filter(|name| !name.is_empty());
    let owner = found
        .remove(labels::CONSUMER_ID)
        .map(|consumer| ClaimedOwner {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            consumer,
            pool: found
                .remove(labels::POOL)
                .unwrap_or_else(|| DEFAULT_POOL.to_owned()),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
        });
    let waits = node.is_none() && spec.scheduling_gates.iter().flatten().next().is_none();
    Some(PodUsage {
        waits_for_node: waits && !wants_virtual_node(&spec),
        waits_for_virtual_node: waits && tolerates_virtual_nodes(&spec),
        resources: match owner {
            Some(_) => EffectiveAmounts::of_bound_pod(pod.metadata.generation, spec, &status),
            None => requests::of_bound_pod(pod.metadata.generation, spec, &status).into(),
        },
        node,
        owner,
    })
}

/// Whether the pod tolerates the taint of virtual nodes.
fn tolerates_virtual_nodes(spec: &PodSpec) -> bool {
    spec.tolerations.iter().flatten().any(|one| {
        one.key
            .as_deref()
            .is_none_or(|key| key.is_empty() || key == pods::VIRTUAL_NODE_TAINT)
            && one
                .effect
                .as_deref()
                .is_none_or(|effect| effect.is_empty() || effect == "NoExecute")
    })
}

/// Whether the pod accepts virtual nodes only.
fn wants_virtual_node(spec: &PodSpec) -> bool {
    let by_selector = spec
        .node_selector
        .iter()
        .flatten()
        .any(|(key, value)| key == labels::TYPE && is_virtual(value));
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|Affinity { node_affinity, .. }| node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    by_selector
        || required.is_some_and(|selector| {
            selector.node_selector_terms.iter().all(|term| {
                term.match_expressions.iter().flatten().any(|wanted| {
                    let values = wanted.values.as_deref().unwrap_or_default();
                    wanted.key == labels::TYPE
                        && wanted.operator == "In"
                        && values.iter().all(is_virtual)
                })
            })
        })
}

#[allow(clippy::ptr_arg)] // `Iterator::all` over `&String` needs this type.
fn is_virtual(value: &String) -> bool {
    value == labels::TYPE_VIRTUAL_NODE
}

/// A tenant namespace or a mapped namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct TenancyNamespace {
    /// A new UID means a new tenancy.
    pub uid: String,
    pub consumer: ClusterId,
    /// Whether it is the tenant namespace, and not a mapped one.
    pub tenant: bool,
    pub terminating: bool,
}

/// Reduces a namespace; `None` if it is neither a tenant namespace nor a mapped one.
pub fn namespace(namespace: core::Namespace) -> Option<TenancyNamespace> {
    let meta = namespace.metadata;
    let PeerNamespace { peer, kind } = PeerNamespace::from_metadata(&meta)?;
    let tenant = match kind {
        PeerNamespaceKind::Tenant => true,
        PeerNamespaceKind::Mapped { .. } => false,
        PeerNamespaceKind::Provider => return None,
    };
    Some(TenancyNamespace {
        uid: meta.uid.unwrap_or_default(),
        consumer: peer,
        tenant,
        terminating: meta.deletion_timestamp.is_some(),
    })
}

/// Maximum length of the name of a peering, from the schema.
const MAX_PEERING_LEN: usize = 64;
/// Maximum length of the error about a request that cannot be read.
const MAX_ERROR_LEN: usize = 500;

/// A consumer's `ResourceRequest`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerRequest {
    /// The maximum of each named resource, or why the request is unreadable.
    pub resources: Result<ResourceList, String>,
    /// The division into pools that the consumer asks for.
    pub granularity: Option<RequestedGranularity>,
    /// Whether the consumer asks to be tethered to this cluster.
    pub tethering: bool,
    /// The consumer's name of the present peering.
    pub peering: Option<String>,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// Our answer so far.
    pub conditions: Vec<Condition>,
}

impl Default for ConsumerRequest {
    fn default() -> Self {
        let resources = Ok(ResourceList::new());
        Self {
            resources,
            granularity: None,
            tethering: false,
            peering: None,
            generation: None,
            conditions: Vec::new(),
        }
    }
}

/// Reduces a request; `None` if it is being deleted. A consumer can write a request that the schema
/// admits and Liqo cannot read. It becomes an error value, so that it does not hurt other
/// consumers.
pub fn request(request: DeserializeGuard<ResourceRequest>) -> Option<ConsumerRequest> {
    match request.0 {
        Ok(request) => {
            let conditions = request
                .status
                .map(|status| status.conditions)
                .unwrap_or_default();
            let deleted = request.metadata.deletion_timestamp.is_some();
            let (granularity, tethering) = (request.spec.granularity, request.spec.tethering);
            let generation = request.metadata.generation;
            let resources = Some(request.spec.resources).filter(is_bounded);
            let resources = resources.ok_or_else(|| {
                format!("it names more than {MAX_RESOURCES} resources, or one by an overlong name")
            });
            let peering = request
                .spec
                .peering
                .filter(|name| name.len() <= MAX_PEERING_LEN);
            (!deleted).then_some(ConsumerRequest {
                resources,
                granularity,
                tethering,
                peering,
                generation,
                conditions,
            })
        }
        Err(invalid) => {
            let deleted = invalid.metadata.deletion_timestamp.is_some();
            // The error repeats what the consumer wrote.
            let error = invalid.error.chars().take(MAX_ERROR_LEN).collect();
            let generation = invalid.metadata.generation;
            (!deleted).then_some(ConsumerRequest {
                resources: Err(error),
                generation,
                ..ConsumerRequest::default()
            })
        }
    }
}

/// A contract of a present peering in this cluster. Its namespace says which side this cluster is.
#[derive(Debug, PartialEq)]
pub enum ContractOfPeering {
    Issued(Arc<IssuedContract>),
    Copy(Arc<ContractCopy>),
}

impl ContractOfPeering {
    /// Returns none for one of a former peering.
    pub fn from_contract(contract: Contract) -> Option<Self> {
        if contract.labels().contains_key(labels::FORMER_PEER_ID) {
            return None;
        }
        let namespace = contract.metadata.namespace.as_deref()?;
        if consumer_of_tenant_namespace(namespace).is_some() {
            return Some(Self::Issued(Arc::new(ContractRecord::from_issued(
                contract,
            ))));
        }
        provider_of(namespace)?;
        Some(Self::Copy(Arc::new(ContractRecord::from_own_copy(
            contract,
        ))))
    }
}

/// The UID of a provider namespace that is not being deleted.
pub fn uid_of_provider_namespace(namespace: Namespace) -> Option<String> {
    let is_of_provider = namespace.labels().contains_key(labels::PROVIDER_ID);
    let exists = namespace.metadata.deletion_timestamp.is_none();
    namespace.metadata.uid.filter(|_| is_of_provider && exists)
}

/// The provider that a provider namespace belongs to.
pub fn provider_of(namespace: &str) -> Option<ClusterId> {
    let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
    (provider_namespace(&id) == namespace).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, list};
    use liqo_api::tenant_namespace;
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
    fn unready_cordoned_tainted_and_deleted_nodes_are_not_eligible() {
        assert!(!eligible(
            |node| node["status"]["conditions"][0]["status"] = json!("Unknown")
        ));
        assert!(!eligible(|node| node["status"] = json!({})));
        assert!(!eligible(|node| node["spec"]["unschedulable"] = json!(true)));
        assert!(!eligible(
            |node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "NoSchedule" }])
        ));
        assert!(!eligible(
            |node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "NoExecute" }])
        ));
        assert!(!eligible(
            |node| node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
        ));
        assert!(eligible(
            |node| node["spec"]["taints"] = json!([{ "key": "a", "effect": "PreferNoSchedule" }])
        ));
    }

    #[test]
    fn a_virtual_node_says_where_it_comes_from_and_its_own_taint_does_not_close_it() {
        let id = cluster(1);
        let reduced = |taints: Value| {
            reduced_node(|node| {
                for (key, value) in [
                    ("type", "virtual-node"),
                    ("remote-cluster-id", id.as_str()),
                    ("pool", "gpu"),
                ] {
                    node["metadata"]["labels"][format!("liqo.io/{key}")] = json!(value);
                }
                node["spec"]["taints"] = taints;
            })
        };
        let own = json!({ "key": "virtual-node.liqo.io/not-allowed", "value": "true", "effect": "NoExecute" });
        let silent =
            json!({ "key": "virtual-node.liqo.io/peer-unreachable", "effect": "NoSchedule" });
        let dear = json!({ "key": "virtual-node.liqo.io/no-new-pods", "effect": "NoSchedule" });
        let node = reduced(json!([own, silent])).unwrap();
        assert_eq!(
            node.upstream,
            Some(UpstreamPool {
                provider: id.clone(),
                pool: "gpu".into(),
                offer: None
            })
        );
        assert!(node.eligible && !reduced(json!([own, dear])).unwrap().eligible);
        assert!(
            !eligible(|node| node["spec"]["taints"] = json!([own])),
            "only a virtual node has it as usual"
        );
        assert_eq!(
            reduced_node(|node| node["metadata"]["labels"]["liqo.io/type"] = json!("virtual-node")),
            None
        );
    }

    fn reduced_pod(change: impl FnOnce(&mut Value)) -> Option<PodUsage> {
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
            assert_eq!(
                reduced_pod(|pod| pod["status"]["phase"] = json!(phase)),
                None
            );
        }
    }

    #[test]
    fn every_unfinished_pod_counts_as_one_pod_with_its_requests() {
        let pod = reduced_pod(|pod| pod["spec"]["nodeName"] = json!("a")).unwrap();
        assert_eq!(pod.resources.requests, list("cpu=1, pods=1"));
        assert_eq!(
            (pod.node.as_deref(), pod.waits_for_node, pod.owner),
            (Some("a"), false, None)
        );
    }

    #[test]
    fn a_pod_waits_for_a_local_node_unless_it_has_gates_or_accepts_virtual_nodes_only() {
        let virtual_only =
            json!({ "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] });
        let terms = |terms: Value| json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
        let waits = |change: fn(&mut Value)| reduced_pod(change).unwrap().waits_for_node;
        assert!(waits(|_| ()));
        assert!(!waits(
            |pod| pod["spec"]["schedulingGates"] = json!([{ "name": "g" }])
        ));
        assert!(!waits(
            |pod| pod["spec"]["nodeSelector"] = json!({ "liqo.io/type": "virtual-node" })
        ));
        let with_terms = |value: Value| {
            reduced_pod(|pod| pod["spec"]["affinity"] = terms(value))
                .unwrap()
                .waits_for_node
        };
        assert!(!with_terms(json!([{ "matchExpressions": [virtual_only] }])));
        let elsewhere = json!({ "key": "zone", "operator": "In", "values": ["a"] });
        assert!(with_terms(
            json!([{ "matchExpressions": [virtual_only] }, { "matchExpressions": [elsewhere] }])
        ));
        let tolerates = |toleration: Value| {
            reduced_pod(|pod| pod["spec"]["tolerations"] = json!([toleration]))
                .unwrap()
                .waits_for_virtual_node
        };
        assert!(tolerates(
            json!({ "key": "virtual-node.liqo.io/not-allowed", "operator": "Exists", "effect": "NoExecute" })
        ));
        assert!(
            tolerates(json!({ "operator": "Exists" }))
                && !tolerates(json!({ "key": "gpu", "operator": "Exists" }))
        );
    }

    #[test]
    fn only_a_provider_namespace_that_stays_has_a_uid() {
        let uid = |label: &str, deleted: Option<&str>| {
            let labels = json!({ label: cluster(1) });
            let meta =
                json!({ "name": "n", "uid": "u", "labels": labels, "deletionTimestamp": deleted });
            uid_of_provider_namespace(from_value(json!({ "metadata": meta })).unwrap())
        };
        assert_eq!(uid(labels::PROVIDER_ID, None).as_deref(), Some("u"));
        assert_eq!(uid(labels::PROVIDER_ID, Some("2026-01-01T00:00:00Z")), None);
        assert_eq!(uid(labels::CONSUMER_ID, None), None);
    }

    #[test]
    fn only_tenant_and_mapped_namespaces_are_known() {
        let id = cluster(1);
        let kept = |name: &str, kind: &str, managed: &str| {
            let labels = json!({ "liqo.io/managed": managed, "liqo.io/namespace-kind": kind, "liqo.io/consumer-id": id, "liqo.io/home-namespace": "demo" });
            namespace(
                from_value(json!({ "metadata": { "name": name, "uid": "u", "labels": labels } }))
                    .unwrap(),
            )
        };
        let tenant = kept(&tenant_namespace(&id), "tenant", "true").unwrap();
        assert!(tenant.tenant && tenant.consumer == id && !tenant.terminating);
        assert!(!kept("demo-rome", "mapped", "true").unwrap().tenant);
        assert_eq!(kept("another-name", "tenant", "true"), None);
        assert_eq!(kept("demo-rome", "provider", "true"), None);
        assert_eq!(kept("demo-rome", "mapped", "false"), None);
        assert_eq!(
            namespace(from_value(json!({ "metadata": { "name": "default" } })).unwrap()),
            None
        );
    }

    #[test]
    fn an_unreadable_request_becomes_an_error_value() {
        let read = |cpu: &str| {
            let value = json!({
                "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
                "metadata": { "name": "request" }, "spec": { "resources": { "cpu": cpu } }
            });
            request(from_value(value).unwrap()).unwrap().resources
        };
        assert_eq!(read("2"), Ok(list("cpu=2")));
        assert!(read("1e99999999999999999999").is_err());
        assert!(read(&"x".repeat(100_000)).unwrap_err().len() <= MAX_ERROR_LEN);
    }

    #[test]
    fn a_request_that_names_many_resources_is_unreadable_and_not_kept() {
        let read = |number: usize| {
            let resources: serde_json::Map<String, Value> = (0..number)
                .map(|n| (format!("example.com/r{n}"), json!("1")))
                .collect();
            let value = json!({
                "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
                "metadata": { "name": "request" }, "spec": { "resources": resources }
            });
            request(from_value(value).unwrap())
                .unwrap()
                .resources
                .map(|resources| resources.len())
        };
        assert_eq!(read(MAX_RESOURCES), Ok(MAX_RESOURCES));
        assert!(
            read(100_000)
                .unwrap_err()
                .contains("more than 64 resources")
        );
    }

    #[test]
    fn only_a_provider_namespace_names_a_provider() {
        assert_eq!(
            provider_of(&provider_namespace(&cluster(1))),
            Some(cluster(1))
        );
        assert_eq!(provider_of(&liqo_api::tenant_namespace(&cluster(1))), None);
        assert_eq!(provider_of("liqo-provider-rome"), None);
        assert_eq!(provider_of(cluster(1).as_str()), None);
    }
}
