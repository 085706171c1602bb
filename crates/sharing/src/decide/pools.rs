//! Which pools there are: every policy divides the nodes in its own way.
//!
//! ```text
//!              node a          node b          node c (gpu=a100)
//!   default    +----------------- pool default ------------------+
//!   partners                                   +-- pool default --+     (source: nodes with gpu)
//!   by-zone    +- pool east -+ +---------- pool west ------------+     (granularity: NodeLabel)
//!              +-- ground 1 -+ +-- ground 2 --+ +--- ground 3 ---+
//! ```
//!
//! Nodes that every policy puts into the same pools are one *ground*: what is free there is split once, between all who may
//! have of it. So nothing is promised twice, however the policies overlap.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::core::{Selector, SelectorExt as _};
use liqo_api::{DEFAULT_POOL, PoolBy, Provide, short_hash};

use super::reduce::LocalNode;

/// Nodes that belong together under every policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ground<'a> {
    /// The pool that they are in, for each policy; none where the policy does not lend them.
    pub pools: Vec<Option<String>>,
    /// The nodes, in the order of their names.
    pub nodes: Vec<(&'a str, &'a LocalNode)>,
}

/// The grounds, in a fixed order.
pub fn grounds<'a>(nodes: impl IntoIterator<Item = (&'a str, &'a LocalNode)>, policies: &[&Provide]) -> Vec<Ground<'a>> {
    let schemes: Vec<Scheme> = policies.iter().map(|provide| Scheme::of(provide)).collect();
    let mut grounds: BTreeMap<Vec<Option<String>>, Ground> = BTreeMap::new();
    for (name, node) in nodes {
        let pools: Vec<Option<String>> = schemes.iter().map(|scheme| scheme.pool(name, node)).collect();
        if let Some(ground) = grounds.get_mut(&pools) {
            ground.nodes.push((name, node));
        } else {
            grounds.insert(pools.clone(), Ground { pools, nodes: vec![(name, node)] });
        }
    }
    let mut grounds: Vec<Ground> = grounds.into_values().collect();
    for ground in &mut grounds {
        ground.nodes.sort_unstable_by_key(|(name, _)| *name);
    }
    grounds
}

/// The pools that a policy has, whether anything is free in them or not.
pub fn names(policy: usize, provide: &Provide, grounds: &[Ground]) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = grounds.iter().filter_map(|ground| ground.pools[policy].clone()).collect();
    if provide.source.plugin.is_none() && provide.granularity.by == PoolBy::Cluster {
        names.insert(DEFAULT_POOL.to_owned());
    }
    names
}

/// How one policy divides the nodes.
struct Scheme<'a> {
    provide: &'a Provide,
    /// One of these must fit, where the source is some of the nodes. One that cannot be understood fits no node.
    selectors: Option<Vec<Selector>>,
}

impl<'a> Scheme<'a> {
    fn of(provide: &'a Provide) -> Self {
        let selectors = provide
            .source
            .nodes
            .as_ref()
            .map(|nodes| nodes.selectors.iter().filter_map(|selector| Selector::try_from(selector.clone()).ok()).collect());
        Self { provide, selectors }
    }

    fn pool(&self, name: &str, node: &LocalNode) -> Option<String> {
        let fits = self.selectors.as_ref().is_none_or(|all| all.iter().any(|selector| selector.matches(&node.labels)));
        if self.provide.source.plugin.is_some() || !fits {
            return None;
        }
        match self.provide.granularity.by {
            PoolBy::Cluster => Some(DEFAULT_POOL.to_owned()),
            PoolBy::Node => Some(pool_name(name)),
            PoolBy::NodeLabel => {
                let value = node.labels.get(self.provide.granularity.label.as_deref()?)?;
                Some(pool_name(value)).filter(|_| !value.is_empty())
            }
        }
    }
}

/// A DNS label has at most so many characters.
const LONGEST: usize = 63;

/// A DNS label for what a pool is made of: the same, if it is one.
pub fn pool_name(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let clean: String = lower.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let clean = clean.trim_matches('-');
    if clean == text && text.len() <= LONGEST {
        return text.to_owned();
    }
    let hash = &short_hash(text)[..8];
    let start: String = clean.chars().take(LONGEST - hash.len() - 1).collect();
    format!("{}-{hash}", start.trim_end_matches('-')).trim_start_matches('-').to_owned()
}

/// The nodes of a pool, for the scheduler; none where every node is meant.
pub fn node_selector(policy: usize, provide: &Provide, pool: &str, grounds: &[Ground]) -> Option<NodeSelector> {
    let of_pool = || grounds.iter().filter(|ground| ground.pools[policy].as_deref() == Some(pool));
    let nodes = || of_pool().flat_map(|ground| ground.nodes.iter());
    let mut narrowed = NodeSelectorTerm::default();
    match (provide.granularity.by, provide.granularity.label.as_deref()) {
        (PoolBy::Node, _) => {
            let values = nodes().map(|(name, _)| (*name).to_owned()).collect();
            narrowed.match_fields = Some(vec![requirement("metadata.name", "In", values)]);
        }
        (PoolBy::NodeLabel, Some(label)) => {
            let values: BTreeSet<String> = nodes().filter_map(|(_, node)| node.labels.get(label).cloned()).collect();
            narrowed.match_expressions = Some(vec![requirement(label, "In", values.into_iter().collect())]);
        }
        _ => {}
    }
    let terms: Vec<NodeSelectorTerm> = match &provide.source.nodes {
        None if narrowed == NodeSelectorTerm::default() => return None,
        None => vec![narrowed],
        Some(source) => {
            let understood = source.selectors.iter().filter(|selector| Selector::try_from((*selector).clone()).is_ok());
            understood.map(|selector| with(&narrowed, selector)).collect()
        }
    };
    // An empty term would mean no node to the scheduler; here it stands for a selector that every node fits.
    if terms.contains(&NodeSelectorTerm::default()) {
        return None;
    }
    Some(NodeSelector { node_selector_terms: terms })
}

/// The term, and the selector as well.
fn with(term: &NodeSelectorTerm, selector: &LabelSelector) -> NodeSelectorTerm {
    let mut all = term.match_expressions.clone().unwrap_or_default();
    all.extend(selector.match_labels.iter().flatten().map(|(key, value)| requirement(key, "In", vec![value.clone()])));
    all.extend(
        selector
            .match_expressions
            .iter()
            .flatten()
            .map(|one| requirement(&one.key, &one.operator, one.values.clone().unwrap_or_default())),
    );
    NodeSelectorTerm { match_expressions: (!all.is_empty()).then_some(all), match_fields: term.match_fields.clone() }
}

fn requirement(key: &str, operator: &str, values: Vec<String>) -> NodeSelectorRequirement {
    let values = (!values.is_empty()).then_some(values);
    NodeSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn provide(value: Value) -> Provide {
        serde_json::from_value(value).unwrap()
    }

    fn node(labels: &[(&str, &str)]) -> LocalNode {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        LocalNode { eligible: true, labels, ..LocalNode::default() }
    }

    fn pools(provide: &Provide, nodes: &[(&str, LocalNode)]) -> Vec<(String, Vec<String>)> {
        let grounds = grounds(nodes.iter().map(|(name, node)| (*name, node)), &[provide]);
        let of =
            |ground: &Ground| Some((ground.pools[0].clone()?, ground.nodes.iter().map(|(name, _)| (*name).to_owned()).collect()));
        grounds.iter().filter_map(of).collect()
    }

    fn pool(name: &str, nodes: &[&str]) -> (String, Vec<String>) {
        (name.to_owned(), nodes.iter().map(|&node| node.to_owned()).collect())
    }

    fn three() -> Vec<(&'static str, LocalNode)> {
        vec![
            ("a", node(&[("zone", "East")])),
            ("b", node(&[("zone", "west"), ("gpu", "a100")])),
            ("c.example", node(&[("gpu", "h100")])),
        ]
    }

    #[test]
    fn all_nodes_are_one_pool_unless_the_policy_says_otherwise() {
        assert_eq!(pools(&provide(json!({})), &three()), [pool("default", &["a", "b", "c.example"])]);
    }

    #[test]
    fn nodes_are_divided_by_a_label_and_those_without_it_are_not_lent() {
        let by_zone = provide(json!({ "granularity": { "by": "NodeLabel", "label": "zone" } }));
        let east = pool_name("East");
        assert!(east.starts_with("east-"), "{east}");
        assert_eq!(pools(&by_zone, &three()), [pool(&east, &["a"]), pool("west", &["b"])]);
    }

    #[test]
    fn each_node_can_be_a_pool_under_a_name_that_a_pool_may_have() {
        let found = pools(&provide(json!({ "granularity": { "by": "Node" } })), &three());
        assert_eq!((found[0].0.as_str(), found[1].0.as_str()), ("a", "b"));
        assert!(found[2].0.starts_with("c-example-"), "{found:?}");
        assert!(pool_name(&"x.".repeat(200)).len() <= 63 && pool_name("...").len() <= 63);
        assert_ne!(pool_name("a.b"), pool_name("a_b"));
    }

    #[test]
    fn a_source_of_nodes_lends_those_that_fit_one_of_its_selectors() {
        let gpus = json!({ "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "h100" } },
            { "matchLabels": { "gpu": "a100" }, "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }] } } });
        assert_eq!(pools(&provide(gpus.clone()), &three()), [pool("default", &["b", "c.example"])]);
        let selector = node_selector(0, &provide(gpus), "default", &[]).unwrap();
        assert_eq!(
            serde_json::to_value(selector).unwrap(),
            json!({ "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "gpu", "operator": "In", "values": ["h100"] }] },
            { "matchExpressions": [{ "key": "gpu", "operator": "In", "values": ["a100"] }, { "key": "zone", "operator": "Exists" }] }] })
        );
    }

    #[test]
    fn policies_that_overlap_cut_the_nodes_into_grounds() {
        let (all, gpus) = (
            provide(json!({})),
            provide(json!({ "source": { "nodes": { "selectors": [{ "matchExpressions": [
            { "key": "gpu", "operator": "Exists" }] }] } } })),
        );
        let plugin = provide(json!({ "source": { "plugin": { "address": "p:1" } } }));
        let nodes = three();
        let grounds = grounds(nodes.iter().map(|(name, node)| (*name, node)), &[&all, &gpus, &plugin]);
        let found: Vec<_> = grounds.iter().map(|ground| (ground.nodes.len(), ground.pools.iter().flatten().count())).collect();
        assert_eq!(found, [(1, 1), (2, 2)]);
        assert!(names(2, &plugin, &grounds).is_empty());
        assert_eq!(names(1, &gpus, &[]), BTreeSet::from(["default".to_owned()]));
    }

    #[test]
    fn the_scheduler_is_told_the_nodes_of_a_pool() {
        let nodes = three();
        let of = |policy: &Provide, pool: &str| {
            let grounds = grounds(nodes.iter().map(|(name, node)| (*name, node)), &[policy]);
            serde_json::to_value(node_selector(0, policy, pool, &grounds)).unwrap()
        };
        assert_eq!(of(&provide(json!({})), "default"), Value::Null);
        let by_zone = provide(json!({ "granularity": { "by": "NodeLabel", "label": "zone" } }));
        assert_eq!(of(&by_zone, &pool_name("East"))["nodeSelectorTerms"][0]["matchExpressions"][0]["values"], json!(["East"]));
        let by_node = provide(json!({ "granularity": { "by": "Node" } }));
        assert_eq!(of(&by_node, "a")["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["a"]));
    }
}
