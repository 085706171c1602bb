//! What a user should know about a namespace that was just offloaded. Pure.

use k8s_openapi::api::core::v1::NodeSelector;
use liqo_api::{NamespaceOffloadingSpec, PlacementStrategy, PodOffloadingStrategy};
use liqo_offloading_rules::{namespace::node_selector, node::object::descriptive_labels};

use super::OffloadOptions;
use crate::evict::decide::EvictionNode;

/// A text shows the labels of at most this many nodes.
const MAX_NODES_SHOWN: usize = 5;

/// The reason why no cluster gets a namespace with this selector, if none of these virtual nodes
/// matches it.
pub fn why_no_cluster_is_selected(
    namespace: &str,
    selector: Option<&NodeSelector>,
    nodes: &[EvictionNode],
) -> Option<String> {
    let is_selected =
        |node: &EvictionNode| node_selector::selects_node(selector, &node.name, &node.labels);
    if nodes.iter().any(is_selected) {
        return None;
    }
    let mut shown: Vec<String> = nodes.iter().take(MAX_NODES_SHOWN).map(labels_of).collect();
    if let Some(more @ 1..) = nodes.len().checked_sub(MAX_NODES_SHOWN) {
        shown.push(format!("{more} more have others"));
    }
    let why = format!(
        "no virtual node matches its selector ({})",
        shown.join("; ")
    );
    Some(no_cluster_selected(namespace, &why))
}

/// The same for people who may not list nodes.
pub fn no_visible_cluster_is_selected(namespace: &str) -> String {
    let why = "there is no virtual node, or none matches its selector (you may not list them)";
    no_cluster_selected(namespace, why)
}

fn no_cluster_selected(namespace: &str, why: &str) -> String {
    format!(
        "namespace {namespace} is offloaded, but no cluster gets it now (NoClusterSelected): \
         {why}. A node that matches later gets it then. \
         To change the selector, offload the namespace again with another --selector, \
         or with --all-clusters"
    )
}

/// `milan has region=eu, tier=gold`.
fn labels_of(node: &EvictionNode) -> String {
    let labels: Vec<String> = descriptive_labels(&node.labels)
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if labels.is_empty() {
        format!("{} has no labels of its cluster", node.name)
    } else {
        format!("{} has {}", node.name, labels.join(", "))
    }
}

/// Says that pods prefer this cluster, if the command chose that with a placement by price.
pub fn own_nodes_first_note(
    spec: &NamespaceOffloadingSpec,
    options: &OffloadOptions,
) -> Option<String> {
    let is_chosen = options.placement.is_some() || options.strategy.is_some();
    let is_cheapest = spec
        .placement
        .as_ref()
        .is_some_and(|placement| placement.strategy == PlacementStrategy::Cheapest);
    let may_stay = spec.pod_offloading_strategy == PodOffloadingStrategy::LocalAndRemote;
    (is_chosen && is_cheapest && may_stay).then(|| {
        "nodes of this cluster cost nothing, so new pods prefer them while they have room; \
         `--pod-offloading-strategy Remote` sends all to other clusters, the cheapest first"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{offload::PlacementChange, selector::parse_node_selectors};

    fn node(name: &str, region: &str) -> EvictionNode {
        let labels = [
            ("kubernetes.io/hostname", name),
            ("liqo.io/type", "virtual-node"),
            ("region", region),
        ];
        EvictionNode {
            labels: labels
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            ..EvictionNode::assumed(name.to_owned())
        }
    }

    #[test]
    fn a_selector_that_matches_no_node_is_told_with_the_labels_that_there_are() {
        let nodes = [node("milan", "eu"), node("turin", "")];
        let why = |selector: &str| {
            let selector = parse_node_selectors(&[selector]).unwrap();
            why_no_cluster_is_selected("demo", selector.as_ref(), &nodes)
        };
        let text = why("region=mars").unwrap();
        for part in [
            "namespace demo is offloaded, but no cluster gets it now (NoClusterSelected)",
            "(milan has region=eu; turin has no labels of its cluster)",
            "--all-clusters",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(why("region=eu"), None);
        assert_eq!(why_no_cluster_is_selected("demo", None, &nodes), None);
        let many: Vec<EvictionNode> = (0..7).map(|n| node(&format!("n{n}"), "eu")).collect();
        let mars = parse_node_selectors(&["region=mars"]).unwrap();
        let text = why_no_cluster_is_selected("demo", mars.as_ref(), &many).unwrap();
        assert!(
            text.contains("n4 has region=eu; 2 more have others)"),
            "{text}"
        );
    }

    #[test]
    fn who_chooses_the_cheapest_learns_that_this_cluster_is() {
        let spec = |strategy: &str, placement: &str| -> NamespaceOffloadingSpec {
            serde_json::from_value(json!({ "podOffloadingStrategy": strategy,
                "placement": { "strategy": placement } }))
            .unwrap()
        };
        let chosen = OffloadOptions {
            placement: Some(PlacementChange::Change {
                strategy: Some(PlacementStrategy::Cheapest),
                order: None,
                move_when_cheaper: None,
            }),
            ..OffloadOptions::default()
        };
        let note = |spec: &NamespaceOffloadingSpec| own_nodes_first_note(spec, &chosen);
        let text = note(&spec("LocalAndRemote", "Cheapest")).unwrap();
        assert!(
            text.contains("prefer them") && text.contains("`--pod-offloading-strategy Remote`"),
            "{text}"
        );
        assert_eq!(note(&spec("Remote", "Cheapest")), None);
        assert_eq!(note(&spec("LocalAndRemote", "OwnFirst")), None);
        let other_change = OffloadOptions {
            api_server: Some(true),
            ..OffloadOptions::default()
        };
        assert_eq!(
            own_nodes_first_note(&spec("LocalAndRemote", "Cheapest"), &other_change),
            None
        );
    }
}
