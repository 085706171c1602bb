//! Divides the nodes into pools. Every policy divides them in its own way:
//!
//! ```text
//!              node a          node b          node c (gpu=a100)
//!   default    +----------------- pool default ------------------+
//!   partners                                   +-- pool default --+     (source: nodes with gpu)
//!   by-zone    +- pool east -+ +---------- pool west ------------+     (granularity: NodeLabel)
//!              + partition 1 + +-partition 2 -+ +- partition 3 --+
//! ```
//!
//! Nodes that every policy puts into the same pools form one *partition*. What is free in a
//! partition is split once, between everyone who may use it. So nothing is promised twice, however
//! the policies overlap.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::core::{Selector, SelectorExt as _};
use liqo_api::{
    ClusterId, DEFAULT_POOL, PeeringPolicy, PoolBy, Provide, labels, selectors::label_selector,
    short_hash,
};

use super::{reduce::LocalNode, upstream};

/// Index of a policy in the list of those that lend this cluster's own nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyIndex(pub usize);

impl PolicyIndex {
    /// Finds a policy by its name. Policies that a plugin serves are not in the list.
    pub fn of_policy(lending: &[&Arc<PeeringPolicy>], policy: &PeeringPolicy) -> Option<Self> {
        lending
            .iter()
            .position(|one| one.metadata.name == policy.metadata.name)
            .map(Self)
    }
}

/// Nodes that are in the same pools under every policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePartition<'a> {
    /// The pool of these nodes, for each policy; `None` if the policy does not lend them.
    pub pools: Vec<Option<String>>,
    /// The clusters that these nodes come from or through. They get none of them.
    pub behind: BTreeSet<ClusterId>,
    /// The cluster whose own nodes these are, if it is tethered to this one: its pods may come back
    /// to them.
    pub returns_to: Option<ClusterId>,
    /// In the order of their names.
    pub nodes: Vec<(&'a str, &'a LocalNode)>,
}

impl NodePartition<'_> {
    /// The pool that these nodes are in under a policy.
    pub fn pool_under(&self, policy: PolicyIndex) -> Option<&str> {
        self.pools[policy.0].as_deref()
    }

    /// Whether a consumer may get something of it.
    pub fn is_open_to(&self, consumer: &ClusterId) -> bool {
        !self.behind.contains(consumer) || self.returns_to.as_ref() == Some(consumer)
    }
}

/// One policy, as it divides the nodes.
#[derive(Clone, Copy, Debug)]
pub struct Lender<'a> {
    pub provide: &'a Provide,
    /// The cluster for which the policy is, if it is tethered to this one.
    pub tethered: Option<&'a ClusterId>,
}

impl<'a> From<&'a Provide> for Lender<'a> {
    fn from(provide: &'a Provide) -> Self {
        Self {
            provide,
            tethered: None,
        }
    }
}

/// The partitions, in an order that depends only on the names of pools.
pub fn partition_nodes<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a LocalNode)>,
    policies: &[Lender],
) -> Vec<NodePartition<'a>> {
    let schemes: Vec<PoolScheme> = policies.iter().map(PoolScheme::of_lender).collect();
    let mut partitions: BTreeMap<(Vec<Option<String>>, BTreeSet<ClusterId>), NodePartition> =
        BTreeMap::new();
    for (name, node) in nodes {
        let pools: Vec<Option<String>> = schemes
            .iter()
            .map(|scheme| scheme.pool_of_node(name, node))
            .collect();
        let offer = node
            .upstream
            .as_ref()
            .and_then(|upstream| upstream.offer.as_ref());
        let key = (
            pools,
            offer.map(|offer| offer.path.clone()).unwrap_or_default(),
        );
        if let Some(partition) = partitions.get_mut(&key) {
            partition.nodes.push((name, node));
        } else {
            let (pools, behind) = key.clone();
            let returns_to = policies
                .iter()
                .filter_map(|lender| lender.tethered)
                .find(|consumer| is_own_node_of(consumer, node));
            partitions.insert(
                key,
                NodePartition {
                    pools,
                    behind,
                    returns_to: returns_to.cloned(),
                    nodes: vec![(name, node)],
                },
            );
        }
    }
    let mut partitions: Vec<NodePartition> = partitions.into_values().collect();
    for partition in &mut partitions {
        partition.nodes.sort_unstable_by_key(|(name, _)| *name);
    }
    partitions
}

/// Whether a virtual node stands for nodes that the consumer owns itself, and for no others.
fn is_own_node_of(consumer: &ClusterId, node: &LocalNode) -> bool {
    let upstream = node
        .upstream
        .as_ref()
        .filter(|upstream| upstream.provider == *consumer);
    let offer = upstream.and_then(|upstream| upstream.offer.as_ref());
    offer.is_some_and(|offer| offer.path.len() == 1 && offer.path.contains(consumer))
}

/// The partitions that a consumer may get something of.
pub fn partitions_open_to<'a, 'b>(
    consumer: &'b ClusterId,
    partitions: &'b [NodePartition<'a>],
) -> impl Iterator<Item = &'b NodePartition<'a>> {
    partitions
        .iter()
        .filter(|partition| partition.is_open_to(consumer))
}

/// The pools of a policy for a consumer, including those without free resources. A pool of a broker
/// has nodes: without any, nobody knows through how many clusters it comes. So an offer whose last
/// node goes is withdrawn, with its notice, and stays what it was until then.
pub fn pools_for_consumer(
    policy: PolicyIndex,
    provide: &Provide,
    consumer: &ClusterId,
    partitions: &[NodePartition],
) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = partitions_open_to(consumer, partitions)
        .filter_map(|partition| partition.pool_under(policy).map(str::to_owned))
        .collect();
    if provide.source.plugin.is_none()
        && provide.source.offers.is_none()
        && provide.granularity.by == PoolBy::Cluster
    {
        names.insert(DEFAULT_POOL.to_owned());
    }
    names
}

/// Rules by which one policy divides the nodes into pools.
struct PoolScheme<'a> {
    provide: &'a Provide,
    tethered: Option<&'a ClusterId>,
    /// A node must match one of them; `None` if the policy lends all nodes. An invalid selector
    /// matches no node.
    selectors: Option<Vec<Selector>>,
}

impl<'a> PoolScheme<'a> {
    fn of_lender(lender: &Lender<'a>) -> Self {
        let Lender { provide, tethered } = *lender;
        let selectors = provide
            .source
            .nodes
            .as_ref()
            .map(|nodes| nodes.selectors.iter().filter_map(label_selector).collect());
        Self {
            provide,
            tethered,
            selectors,
        }
    }

    /// The hops of what is in the default pool.
    fn least_hops(&self) -> u8 {
        if self
            .provide
            .source
            .offers
            .as_ref()
            .is_some_and(|offers| !offers.own_nodes)
        {
            2
        } else {
            1
        }
    }

    fn pool_of_node(&self, name: &str, node: &LocalNode) -> Option<String> {
        // One pool with everything else, so that the scheduler of this cluster decides.
        if self
            .tethered
            .is_some_and(|consumer| is_own_node_of(consumer, node))
        {
            return Some(DEFAULT_POOL.to_owned());
        }
        let matches = self
            .selectors
            .as_ref()
            .is_none_or(|all| all.iter().any(|selector| selector.matches(&node.labels)));
        if self.provide.source.plugin.is_some() || !matches {
            return None;
        }
        // Hops from here to the owner of the node.
        let hops = match (&self.provide.source.offers, &node.upstream) {
            (None, None) => 1,
            (None, Some(_)) => return None,
            (Some(offers), None) => offers.own_nodes.then_some(1)?,
            (Some(offers), Some(upstream)) => {
                let offer = upstream.offer.as_ref()?;
                let is_lent = offers
                    .margin
                    .as_ref()
                    .is_none_or(|margin| upstream::has_currency_of(offer, margin));
                upstream::hops_to_owner(node).filter(|_| is_lent)?
            }
        };
        match self.provide.granularity.by {
            PoolBy::Cluster if hops > self.least_hops() => Some(format!("hops-{hops}")),
            PoolBy::Cluster => Some(DEFAULT_POOL.to_owned()),
            PoolBy::Node => Some(pool_name(name)),
            // Nodes with the same label may have different hops.
            PoolBy::NodeLabel if self.provide.source.offers.is_some() => None,
            PoolBy::NodeLabel => {
                let value = node
                    .labels
                    .get(self.provide.granularity.label.as_deref()?)?;
                Some(pool_name(value)).filter(|_| !value.is_empty())
            }
        }
    }
}

/// Maximum length of a DNS label.
const MAX_DNS_LABEL_LEN: usize = 63;

/// Turns a text into a DNS label. A text that is one already stays the same; others get a hash, so
/// that they stay different.
pub fn pool_name(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let clean: String = lower
        .chars()
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .collect();
    let clean = clean.trim_matches('-');
    if clean == text && text.len() <= MAX_DNS_LABEL_LEN {
        return text.to_owned();
    }
    let hash = &short_hash(text)[..8];
    let start: String = clean
        .chars()
        .take(MAX_DNS_LABEL_LEN - hash.len() - 1)
        .collect();
    format!("{}-{hash}", start.trim_end_matches('-'))
        .trim_start_matches('-')
        .to_owned()
}

/// Selects the nodes of a pool, for the scheduler; `None` if the pool has every node. `by` tells
/// how the pool was formed.
pub fn node_selector(
    nodes: &[(&str, &LocalNode)],
    provide: &Provide,
    by: PoolBy,
) -> Option<NodeSelector> {
    if provide.source.offers.is_some() {
        return Some(NodeSelector {
            node_selector_terms: borrowed_nodes(nodes.iter(), by),
        });
    }
    let own = own_nodes(
        &nodes.iter().filter(|(_, node)| node.upstream.is_none()),
        provide,
        by,
    );
    if nodes.iter().all(|(_, node)| node.upstream.is_none()) {
        return own;
    }
    // Nodes of a cluster that is tethered to this one.
    let mut terms = borrowed_nodes(nodes.iter().filter(|(_, node)| node.upstream.is_some()), by);
    terms.extend(own.map_or_else(|| vec![not_virtual()], |own| own.node_selector_terms));
    Some(NodeSelector {
        node_selector_terms: terms,
    })
}

/// Selects the own nodes of a pool; `None` if it has every one.
fn own_nodes<'a>(
    nodes: &(impl Iterator<Item = &'a (&'a str, &'a LocalNode)> + Clone),
    provide: &Provide,
    by: PoolBy,
) -> Option<NodeSelector> {
    let mut narrowed = NodeSelectorTerm::default();
    match (by, provide.granularity.label.as_deref()) {
        (PoolBy::Node, _) => {
            let values = nodes.clone().map(|(name, _)| (*name).to_owned()).collect();
            narrowed.match_fields = Some(vec![node_requirement("metadata.name", "In", values)]);
        }
        (PoolBy::NodeLabel, Some(label)) => {
            let values: BTreeSet<String> = nodes
                .clone()
                .filter_map(|(_, node)| node.labels.get(label).cloned())
                .collect();
            narrowed.match_expressions = Some(vec![node_requirement(
                label,
                "In",
                values.into_iter().collect(),
            )]);
        }
        _ => {}
    }
    let terms: Vec<NodeSelectorTerm> = match &provide.source.nodes {
        None if narrowed == NodeSelectorTerm::default() => return None,
        None => vec![narrowed],
        Some(source) => {
            let valid = source
                .selectors
                .iter()
                .filter(|selector| label_selector(selector).is_some());
            valid
                .map(|selector| with_selector(&narrowed, selector))
                .collect()
        }
    };
    // For the scheduler, an empty term matches no node. Here it is a selector that every node
    // matches.
    if terms.contains(&NodeSelectorTerm::default()) {
        return None;
    }
    Some(NodeSelector {
        node_selector_terms: terms,
    })
}

/// Selects these nodes of a broker, for the scheduler.
pub fn borrowed_selector(nodes: &[(&str, &LocalNode)]) -> NodeSelector {
    NodeSelector {
        node_selector_terms: borrowed_nodes(nodes.iter(), PoolBy::Cluster),
    }
}

/// A term for all own nodes.
fn not_virtual() -> NodeSelectorTerm {
    let own = node_requirement(
        labels::TYPE,
        "NotIn",
        vec![labels::TYPE_VIRTUAL_NODE.to_owned()],
    );
    NodeSelectorTerm {
        match_expressions: Some(vec![own]),
        match_fields: None,
    }
}

/// Terms for the nodes of a pool of a broker: one for each provider, and one for the own nodes. If
/// there is no node, a term that no node matches, because no term at all would mean every node.
fn borrowed_nodes<'a>(
    nodes: impl Iterator<Item = &'a (&'a str, &'a LocalNode)>,
    by: PoolBy,
) -> Vec<NodeSelectorTerm> {
    let mut providers: BTreeMap<&ClusterId, BTreeSet<&str>> = BTreeMap::new();
    let mut own = Vec::new();
    for (name, node) in nodes {
        match &node.upstream {
            Some(upstream) => drop(
                providers
                    .entry(&upstream.provider)
                    .or_default()
                    .insert(&upstream.pool),
            ),
            None => own.push((*name).to_owned()),
        }
    }
    let mut terms: Vec<NodeSelectorTerm> = providers
        .into_iter()
        .map(|(provider, pools)| {
            let pools = pools.into_iter().map(str::to_owned).collect();
            let provider = vec![provider.to_string()];
            matching_labels(vec![
                is_virtual_node("In"),
                node_requirement(labels::REMOTE_CLUSTER_ID, "In", provider),
                node_requirement(labels::POOL, "In", pools),
            ])
        })
        .collect();
    if !own.is_empty() {
        let single =
            (by == PoolBy::Node).then(|| vec![node_requirement("metadata.name", "In", own)]);
        terms.push(NodeSelectorTerm {
            match_fields: single,
            ..matching_labels(vec![is_virtual_node("NotIn")])
        });
    }
    if terms.is_empty() {
        terms.push(matching_labels(vec![
            is_virtual_node("In"),
            is_virtual_node("NotIn"),
        ]));
    }
    terms
}

fn is_virtual_node(operator: &str) -> NodeSelectorRequirement {
    let values = vec![labels::TYPE_VIRTUAL_NODE.to_owned()];
    node_requirement(labels::TYPE, operator, values)
}

fn matching_labels(expressions: Vec<NodeSelectorRequirement>) -> NodeSelectorTerm {
    NodeSelectorTerm {
        match_expressions: Some(expressions),
        match_fields: None,
    }
}

/// Adds the requirements of a selector to a term.
fn with_selector(term: &NodeSelectorTerm, selector: &LabelSelector) -> NodeSelectorTerm {
    let mut all = term.match_expressions.clone().unwrap_or_default();
    all.extend(
        selector
            .match_labels
            .iter()
            .flatten()
            .map(|(key, value)| node_requirement(key, "In", vec![value.clone()])),
    );
    all.extend(selector.match_expressions.iter().flatten().map(|one| {
        node_requirement(
            &one.key,
            &one.operator,
            one.values.clone().unwrap_or_default(),
        )
    }));
    NodeSelectorTerm {
        match_expressions: (!all.is_empty()).then_some(all),
        match_fields: term.match_fields.clone(),
    }
}

fn node_requirement(key: &str, operator: &str, values: Vec<String>) -> NodeSelectorRequirement {
    let values = (!values.is_empty()).then_some(values);
    NodeSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::cluster;

    fn provide(value: Value) -> Provide {
        serde_json::from_value(value).unwrap()
    }

    fn node(labels: &[(&str, &str)]) -> LocalNode {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        LocalNode {
            eligible: true,
            labels,
            ..LocalNode::default()
        }
    }

    fn pools(provide: &Provide, nodes: &[(&str, LocalNode)]) -> Vec<(String, Vec<String>)> {
        let partitions = partition_nodes(
            nodes.iter().map(|(name, node)| (*name, node)),
            &[provide.into()],
        );
        let of = |partition: &NodePartition| {
            Some((
                partition.pools[0].clone()?,
                partition
                    .nodes
                    .iter()
                    .map(|(name, _)| (*name).to_owned())
                    .collect(),
            ))
        };
        partitions.iter().filter_map(of).collect()
    }

    fn pool(name: &str, nodes: &[&str]) -> (String, Vec<String>) {
        (
            name.to_owned(),
            nodes.iter().map(|&node| node.to_owned()).collect(),
        )
    }

    fn three() -> Vec<(&'static str, LocalNode)> {
        vec![
            ("a", node(&[("zone", "East")])),
            ("b", node(&[("zone", "west"), ("gpu", "a100")])),
            ("c.example", node(&[("gpu", "h100")])),
        ]
    }

    #[test]
    fn by_default_all_nodes_are_one_pool() {
        assert_eq!(
            pools(&provide(json!({})), &three()),
            [pool("default", &["a", "b", "c.example"])]
        );
    }

    #[test]
    fn nodes_are_divided_by_a_label_and_nodes_without_it_are_not_lent() {
        let by_zone = provide(json!({ "granularity": { "by": "NodeLabel", "label": "zone" } }));
        let east = pool_name("East");
        assert!(east.starts_with("east-"), "{east}");
        assert_eq!(
            pools(&by_zone, &three()),
            [pool(&east, &["a"]), pool("west", &["b"])]
        );
    }

    #[test]
    fn each_node_can_be_a_pool_with_a_valid_name() {
        let found = pools(
            &provide(json!({ "granularity": { "by": "Node" } })),
            &three(),
        );
        assert_eq!((found[0].0.as_str(), found[1].0.as_str()), ("a", "b"));
        assert!(found[2].0.starts_with("c-example-"), "{found:?}");
        assert!(pool_name(&"x.".repeat(200)).len() <= 63 && pool_name("...").len() <= 63);
        assert_ne!(pool_name("a.b"), pool_name("a_b"));
    }

    #[test]
    fn a_source_of_nodes_lends_nodes_that_match_one_of_its_selectors() {
        let gpus = json!({ "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "h100" } },
            { "matchLabels": { "gpu": "a100" }, "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }] } } });
        assert_eq!(
            pools(&provide(gpus.clone()), &three()),
            [pool("default", &["b", "c.example"])]
        );
        let selector = node_selector(&[], &provide(gpus), PoolBy::Cluster).unwrap();
        assert_eq!(
            serde_json::to_value(selector).unwrap(),
            json!({ "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "gpu", "operator": "In", "values": ["h100"] }] },
            { "matchExpressions": [{ "key": "gpu", "operator": "In", "values": ["a100"] }, { "key": "zone", "operator": "Exists" }] }] })
        );
    }

    #[test]
    fn overlapping_policies_divide_the_nodes_into_partitions() {
        let (all, gpus) = (
            provide(json!({})),
            provide(
                json!({ "source": { "nodes": { "selectors": [{ "matchExpressions": [
            { "key": "gpu", "operator": "Exists" }] }] } } }),
            ),
        );
        let plugin = provide(json!({ "source": { "plugin": { "address": "p:1" } } }));
        let nodes = three();
        let partitions = partition_nodes(
            nodes.iter().map(|(name, node)| (*name, node)),
            &[(&all).into(), (&gpus).into(), (&plugin).into()],
        );
        let found: Vec<_> = partitions
            .iter()
            .map(|partition| {
                (
                    partition.nodes.len(),
                    partition.pools.iter().flatten().count(),
                )
            })
            .collect();
        assert_eq!(found, [(1, 1), (2, 2)]);
        assert!(pools_for_consumer(PolicyIndex(2), &plugin, &cluster(1), &partitions).is_empty());
        assert_eq!(
            pools_for_consumer(PolicyIndex(1), &gpus, &cluster(1), &[]),
            BTreeSet::from(["default".to_owned()])
        );
    }

    #[test]
    fn the_node_selector_names_the_nodes_of_a_pool() {
        let nodes = three();
        let of = |policy: &Provide, pool: &str| {
            let partitions = partition_nodes(
                nodes.iter().map(|(name, node)| (*name, node)),
                &[policy.into()],
            );
            let of_pool = partitions
                .iter()
                .filter(|partition| partition.pools[0].as_deref() == Some(pool));
            let nodes: Vec<_> = of_pool
                .flat_map(|partition| partition.nodes.clone())
                .collect();
            serde_json::to_value(node_selector(&nodes, policy, policy.granularity.by)).unwrap()
        };
        assert_eq!(of(&provide(json!({})), "default"), Value::Null);
        let by_zone = provide(json!({ "granularity": { "by": "NodeLabel", "label": "zone" } }));
        assert_eq!(
            of(&by_zone, &pool_name("East"))["nodeSelectorTerms"][0]["matchExpressions"][0]["values"],
            json!(["East"])
        );
        let by_node = provide(json!({ "granularity": { "by": "Node" } }));
        assert_eq!(
            of(&by_node, "a")["nodeSelectorTerms"][0]["matchFields"][0]["values"],
            json!(["a"])
        );
    }
}
