//! Decides which pods are evicted now, and why the others wait. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::ResourceExt;
use liqo_api::departure::has_pods_for_nodes;
use liqo_api::{Key, LargestPods, ResourceList, is_final_phase, pods, requests};
use liqo_offloading_rules::node::priced::PricedNode;
use tokio::time::Instant;

/// Delay before an eviction that was not allowed is requested again.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// A text names at most this many pods.
const MAX_PODS_NAMED: usize = 5;

/// A virtual node, as far as evictions depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionNode {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// The cluster behind it answers.
    pub answers: bool,
    pub cordoned: bool,
    pub allocatable: ResourceList,
    /// The free resources of the provider's nodes with the most room.
    pub largest_pods: LargestPods,
}

impl EvictionNode {
    /// A node of which only the name is known.
    pub fn assumed(name: String) -> Self {
        Self {
            name,
            answers: true,
            ..Self::default()
        }
    }

    pub fn from_object(node: &Node) -> Self {
        let allocatable = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref());
        Self {
            name: node.name_any(),
            labels: node.labels().clone(),
            answers: !has_failing_condition(node, pods::PEER_REACHABLE)
                && !has_failing_condition(node, "Ready"),
            cordoned: node
                .spec
                .as_ref()
                .is_some_and(|spec| spec.unschedulable == Some(true)),
            allocatable: allocatable.map(requests::parse_amounts).unwrap_or_default(),
            largest_pods: PricedNode::from_metadata(
                &node.name_any(),
                BTreeMap::new(),
                node.annotations(),
            )
            .largest_pods,
        }
    }
}

fn has_failing_condition(node: &Node, kind: &str) -> bool {
    let status = node.status.iter();
    status
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|one| one.type_ == kind && one.status != "True")
}

/// A pod that should leave its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodToEvict {
    pub key: Key,
    pub uid: String,
    pub node: String,
    /// It is being deleted.
    pub ends: bool,
}

impl PodToEvict {
    /// Returns nothing for a pod that has no node or has ended, that only a finalizer keeps, or
    /// that belongs to its node, as one of a `DaemonSet` does.
    pub fn from_pod(pod: &Pod) -> Option<Self> {
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        if is_finished(pod) {
            None
        } else {
            Self::from_node(pod, node)
        }
    }

    /// The same for an unfinished pod on this node; needs only its metadata.
    pub fn from_node(pod: &impl ResourceExt, node: &str) -> Option<Self> {
        let belongs_to_node =
            controller_of(pod).is_some_and(|owner| has_pods_for_nodes(&owner.kind));
        let is_kept = pod.meta().deletion_grace_period_seconds == Some(0);
        if belongs_to_node || is_kept {
            return None;
        }
        let key = Key::new(pod.namespace().unwrap_or_default(), pod.name_any());
        Some(Self {
            key,
            uid: pod.uid()?,
            node: node.to_owned(),
            ends: pod.meta().deletion_timestamp.is_some(),
        })
    }
}

/// Whether its phase is final.
pub fn is_finished(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(is_final_phase)
}

/// The controller that creates the pod again.
pub fn controller_of(pod: &impl ResourceExt) -> Option<&OwnerReference> {
    pod.owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))
}

/// The evictions that were not allowed, by the UID of the pod.
#[derive(Debug, Default)]
pub struct RefusedEvictions(HashMap<String, RefusedEviction>);

#[derive(Debug)]
struct RefusedEviction {
    at: Instant,
    why: String,
}

impl RefusedEvictions {
    pub fn note_refusal(&mut self, uid: &str, why: String, now: Instant) {
        self.0
            .insert(uid.to_owned(), RefusedEviction { at: now, why });
    }

    /// The eviction was allowed.
    pub fn clear(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// The pods whose eviction is requested now.
    pub fn due_evictions(&self, pods: &[PodToEvict], now: Instant) -> Vec<PodToEvict> {
        pods.iter()
            .filter(|pod| !pod.ends && !self.waits_for_retry(pod, now))
            .cloned()
            .collect()
    }

    fn waits_for_retry(&self, pod: &PodToEvict, now: Instant) -> bool {
        self.0
            .get(&pod.uid)
            .is_some_and(|refused| now.duration_since(refused.at) < RETRY_DELAY)
    }

    /// Describes why the pods that are left are still there:
    /// `1 pod ends; demo/web-2 waits: The disruption budget web needs ...`.
    pub fn describe_remaining(&self, pods: &[PodToEvict]) -> String {
        let mut waiting: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut ending = 0;
        for pod in pods {
            match self.0.get(&pod.uid).filter(|_| !pod.ends) {
                Some(refused) => waiting
                    .entry(&refused.why)
                    .or_default()
                    .push(pod.key.to_string()),
                None => ending += 1,
            }
        }
        let ending = match ending {
            0 => None,
            1 => Some("1 pod ends".to_owned()),
            number => Some(format!("{number} pods end")),
        };
        let waiting = waiting.into_iter().map(|(why, pods)| {
            let verb = if pods.len() == 1 { "waits" } else { "wait" };
            format!("{} {verb}: {why}", first_few_names(&pods))
        });
        ending
            .into_iter()
            .chain(waiting)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// The first few names, and how many more there are.
pub fn first_few_names<S: AsRef<str>>(names: &[S]) -> String {
    let first = names
        .iter()
        .take(MAX_PODS_NAMED)
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(MAX_PODS_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn leaving(name: &str, ends: bool) -> PodToEvict {
        PodToEvict {
            key: Key::new("demo", name),
            uid: name.into(),
            node: "milan".into(),
            ends,
        }
    }

    fn pod(changes: Value) -> Pod {
        let mut pod = json!({ "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
            "spec": { "nodeName": "milan", "containers": [] }, "status": { "phase": "Running" } });
        for (pointer, value) in changes.as_object().unwrap() {
            let (part, field) = pointer.split_once('.').unwrap();
            pod[part][field] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn owned_by(kind: &str) -> Value {
        json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": true }])
    }

    #[test]
    fn pods_that_have_ended_or_belong_to_their_node_stay() {
        let leaves = |changes: Value| PodToEvict::from_pod(&pod(changes)).is_some();
        assert!(
            leaves(json!({}))
                && leaves(json!({ "metadata.ownerReferences": owned_by("ReplicaSet") }))
        );
        assert!(leaves(json!({ "status.phase": "Pending" })));
        for stays in [
            json!({ "metadata.ownerReferences": owned_by("DaemonSet") }),
            json!({ "status.phase": "Succeeded" }),
            json!({ "spec.nodeName": null }),
            json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "metadata.deletionGracePeriodSeconds": 0 }),
        ] {
            assert!(!leaves(stays.clone()), "{stays}");
        }
        let ending = json!({ "metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "metadata.deletionGracePeriodSeconds": 30 });
        assert!(PodToEvict::from_pod(&pod(ending)).unwrap().ends);
    }

    #[test]
    fn an_eviction_that_a_budget_forbids_is_requested_again_later_and_an_ending_pod_is_not_evicted_twice()
     {
        let (mut refused, now) = (RefusedEvictions::default(), Instant::now());
        let pods = [leaving("a", false), leaving("b", false), leaving("c", true)];
        let due = |refused: &RefusedEvictions, now| {
            refused
                .due_evictions(&pods, now)
                .into_iter()
                .map(|pod| pod.uid)
                .collect::<Vec<_>>()
        };
        assert_eq!(due(&refused, now), ["a", "b"]);
        refused.note_refusal("b", "budget".into(), now);
        assert_eq!(due(&refused, now), ["a"]);
        assert_eq!(due(&refused, now + RETRY_DELAY), ["a", "b"]);
    }

    #[test]
    fn the_text_names_the_budget_and_the_pods_that_it_holds() {
        let mut refused = RefusedEvictions::default();
        let why = "The disruption budget web needs 1 healthy pods and has 1 currently";
        for name in ["b", "c", "d"] {
            refused.note_refusal(name, why.into(), Instant::now());
        }
        let pods = [
            leaving("a", true),
            leaving("b", false),
            leaving("c", false),
            leaving("d", true),
        ];
        assert_eq!(
            refused.describe_remaining(&pods),
            format!("2 pods end; demo/b, demo/c wait: {why}")
        );
        assert_eq!(refused.describe_remaining(&pods[..1]), "1 pod ends");
        assert_eq!(
            refused.describe_remaining(&pods[1..2]),
            format!("demo/b waits: {why}")
        );
        assert_eq!(
            first_few_names(&["a", "b", "c", "d", "e", "f", "g"]),
            "a, b, c, d, e and 2 more"
        );
    }

    #[test]
    fn a_node_whose_cluster_is_silent_does_not_answer() {
        let node = |reachable: &str, cordoned: bool| {
            let node = json!({ "metadata": { "name": "milan", "labels": { "region": "eu" } }, "spec": { "unschedulable": cordoned },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "PeerReachable", "status": reachable }] } });
            EvictionNode::from_object(&serde_json::from_value(node).unwrap())
        };
        assert!(node("True", false).answers && !node("False", false).answers);
        assert!(node("True", true).cordoned && !node("True", false).cordoned);
    }
}
