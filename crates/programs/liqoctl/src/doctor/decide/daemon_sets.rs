//! `DaemonSet`s that want a pod on a virtual node. Such a pod stays Pending, whether its namespace
//! is offloaded or not.

use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, NodeSelector, PodSpec, Toleration},
};
use kube::ResourceExt as _;
use liqo_api::pods::VIRTUAL_NODE_TAINT;
use liqo_offloading_rules::namespace::node_selector;

use super::{count_of, first_few, unread_finding};
use crate::{
    cluster::full_name,
    doctor::{Check, CheckFinding},
    inspect::{ClusterFacts, is_virtual},
};

pub fn check_daemon_sets(facts: &ClusterFacts) -> CheckFinding {
    let check = Check::DaemonSets;
    let (nodes, sets) = match (&facts.nodes, &facts.components.daemon_sets) {
        (Ok(nodes), Ok(sets)) => (nodes, sets),
        (Err(why), _) | (_, Err(why)) => return unread_finding(check, why),
    };
    let nodes: Vec<&Node> = nodes.iter().filter(|node| is_virtual(node)).collect();
    if nodes.is_empty() {
        return CheckFinding::skipped(check, "there is no virtual node");
    }
    let waiting: Vec<String> = sets
        .iter()
        .filter(|set| nodes.iter().any(|node| wants_pod_on(set, node)))
        .map(full_name)
        .collect();
    if waiting.is_empty() {
        return CheckFinding::ok(check, "no DaemonSet wants a pod on a virtual node");
    }
    CheckFinding::warn(
        check,
        format!(
            "pods of {} stay Pending on virtual nodes: {}",
            count_of(waiting.len(), "DaemonSet"),
            first_few(&waiting)
        ),
        "add node affinity to the pod template: liqo.io/type NotIn [virtual-node]; docs/how-to/keep-daemonsets-off-virtual-nodes.md shows it",
    )
}

/// Whether the `DaemonSet` has a pod on this virtual node: Kubernetes' rules, without taints that
/// come and go.
fn wants_pod_on(set: &DaemonSet, node: &Node) -> bool {
    let Some(spec) = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref())
    else {
        return false;
    };
    let labels = node.labels();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    selected
        && tolerates_virtual_nodes(spec)
        && node_selector::selects_node(required_node_affinity(spec), &node.name_any(), labels)
}

fn required_node_affinity(spec: &PodSpec) -> Option<&NodeSelector> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
}

fn tolerates_virtual_nodes(spec: &PodSpec) -> bool {
    spec.tolerations
        .iter()
        .flatten()
        .any(covers_virtual_node_taint)
}

fn covers_virtual_node_taint(one: &Toleration) -> bool {
    let key = one.key.as_deref().unwrap_or_default();
    let is_for_key = match one.operator.as_deref() {
        Some("Exists") => key.is_empty() || key == VIRTUAL_NODE_TAINT,
        _ => key == VIRTUAL_NODE_TAINT && one.value.as_deref() == Some("true"),
    };
    is_for_key && matches!(one.effect.as_deref(), None | Some("" | "NoExecute"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        finding::CheckVerdict,
        inspect::fixtures::{facts, of},
    };

    /// The finding for one `DaemonSet` with this pod spec, and a virtual node.
    fn finding(mut spec: Value) -> CheckFinding {
        let mut facts = facts();
        let milan = json!({ "metadata": { "name": "milan", "labels": { "liqo.io/type": "virtual-node", "zone": "a" } } });
        facts.nodes.as_mut().unwrap().push(of(milan));
        spec["containers"] = json!([]);
        facts.components.daemon_sets = Ok(vec![of(json!({
            "metadata": { "name": "agent", "namespace": "monitoring" },
            "spec": { "selector": {}, "template": { "metadata": {}, "spec": spec } },
        }))]);
        check_daemon_sets(&facts)
    }

    fn everything() -> Value {
        json!([{ "operator": "Exists" }])
    }

    #[test]
    fn a_daemon_set_that_tolerates_everything_is_named_with_the_recipe() {
        let finding = finding(json!({ "tolerations": everything() }));
        assert_eq!(finding.verdict, CheckVerdict::Warn);
        assert!(
            finding.what == "pods of 1 DaemonSet stay Pending on virtual nodes: monitoring/agent",
            "{}",
            finding.what
        );
        assert!(
            finding
                .advice
                .unwrap()
                .contains("liqo.io/type NotIn [virtual-node]")
        );
    }

    #[test]
    fn one_that_excludes_virtual_nodes_is_fine() {
        let term = |key: &str, operator: &str, value: &str| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": [value] }] });
        let affinity = |term: Value| {
            json!({ "tolerations": everything(), "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } } } })
        };
        assert_eq!(
            finding(affinity(term("liqo.io/type", "NotIn", "virtual-node"))).verdict,
            CheckVerdict::Ok
        );
        assert_eq!(
            finding(affinity(term("zone", "In", "a"))).verdict,
            CheckVerdict::Warn,
            "it selects the virtual node"
        );
        assert_eq!(
            finding(json!({ "tolerations": everything(), "nodeSelector": { "zone": "b" } }))
                .verdict,
            CheckVerdict::Ok
        );
    }

    #[test]
    fn the_taint_keeps_others_away() {
        assert_eq!(finding(json!({})).verdict, CheckVerdict::Ok);
        let with = |toleration: Value| finding(json!({ "tolerations": [toleration] })).verdict;
        assert_eq!(
            with(json!({ "operator": "Exists", "effect": "NoSchedule" })),
            CheckVerdict::Ok
        );
        assert_eq!(
            with(json!({ "key": "gpu", "operator": "Exists" })),
            CheckVerdict::Ok
        );
        assert_eq!(
            with(json!({ "key": VIRTUAL_NODE_TAINT, "value": "true" })),
            CheckVerdict::Warn
        );
        assert_eq!(
            with(json!({ "operator": "Exists", "effect": "NoExecute" })),
            CheckVerdict::Warn
        );
    }

    #[test]
    fn without_virtual_nodes_or_without_the_right_to_read_nothing_is_judged() {
        let mut facts = facts();
        assert_eq!(check_daemon_sets(&facts).verdict, CheckVerdict::Skipped);
        facts.components.daemon_sets = Err("cannot list daemonsets".to_owned());
        assert_eq!(check_daemon_sets(&facts).verdict, CheckVerdict::Unknown);
    }
}
