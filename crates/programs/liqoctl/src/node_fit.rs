//! The reasons why the scheduler would not choose a node for a pod, apart from room. For
//! `cost plan` and `explain pod`. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, PodSpec, Taint, Toleration};
use kube::ResourceExt as _;
use liqo_api::pods;
use liqo_offloading_rules::namespace::node_selector;

/// The reason why the scheduler would not choose a node, apart from room.
pub fn why_not_on_node(spec: &PodSpec, node: &Node) -> Option<String> {
    why_closed(node).or_else(|| why_not_for_pod(spec, node))
}

/// The reason why a node takes no new pod at all.
fn why_closed(node: &Node) -> Option<String> {
    if let Some(closed) = find_condition(node, pods::NO_NEW_PODS, "True") {
        return Some(
            closed
                .message
                .clone()
                .unwrap_or_else(|| "it takes no new pods".to_owned()),
        );
    }
    if find_condition(node, "Ready", "True").is_none() {
        return Some("the node is not Ready".to_owned());
    }
    let is_cordoned = node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.unschedulable == Some(true));
    is_cordoned.then(|| "the node is cordoned".to_owned())
}

fn find_condition<'a>(node: &'a Node, kind: &str, status: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|one| one.type_ == kind && one.status == status)
}

/// The reason why a node that takes pods does not take this one.
fn why_not_for_pod(spec: &PodSpec, node: &Node) -> Option<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let repelling = taints
        .unwrap_or_default()
        .iter()
        .find(|taint| repels_pods(taint, tolerations));
    if let Some(taint) = repelling {
        let taint = taint_in_words(taint);
        return Some(format!("the pod does not tolerate the taint {taint}"));
    }
    let missing = missing_labels(spec, node.labels());
    if !missing.is_empty() {
        return Some(format!(
            "the pod's nodeSelector wants {}, which the node does not have",
            missing.join(", ")
        ));
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    (!node_selector::selects_node(Some(required), &node.name_any(), node.labels()))
        .then(|| "the pod's required node affinity does not match the node".to_owned())
}

/// `key=value:NoSchedule`, as `kubectl describe node` shows it.
fn taint_in_words(taint: &Taint) -> String {
    match taint.value.as_deref() {
        Some(value) if !value.is_empty() => format!("{}={value}:{}", taint.key, taint.effect),
        _ => format!("{}:{}", taint.key, taint.effect),
    }
}

/// The labels of the pod's `nodeSelector` that a node with these labels does not have.
fn missing_labels(spec: &PodSpec, labels: &BTreeMap<String, String>) -> Vec<String> {
    spec.node_selector
        .iter()
        .flatten()
        .filter(|(key, value)| labels.get(*key) != Some(*value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

/// The webhook adds the toleration for virtual nodes.
fn repels_pods(taint: &Taint, tolerations: &[Toleration]) -> bool {
    taint.effect != "PreferNoSchedule"
        && taint.key != pods::VIRTUAL_NODE_TAINT
        && !tolerations.iter().any(|one| tolerates(one, taint))
}

/// Kubernetes' rules.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let same_value = toleration.value.as_deref().unwrap_or_default()
        == taint.value.as_deref().unwrap_or_default();
    (key == taint.key || key.is_empty() && exists)
        && (exists || same_value)
        && (effect.is_empty() || effect == taint.effect)
}
