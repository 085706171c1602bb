//! The costs of a pod at each virtual node.
//!
//! Amounts in different currencies are not comparable. So the currency that most of the nodes ask
//! for is the one that counts, and what costs something in another one counts as more expensive
//! than everything else. Nodes without prices cost nothing, as this cluster's own.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use liqo_api::{LargestPods, Money, PriceList, ResourceList, annotations, labels, requests};
use liqo_quantity::per_hour;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::pod::consumer_policy::with_default_amounts;
use crate::views::NodeObjectView;

/// The fields of a virtual node by which a pod's placement is decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PricedNode {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub prices: Option<PriceList>,
    pub largest_pods: LargestPods,
}

impl PricedNode {
    /// Reads what Liqo wrote on the Node. Prices that cannot be read count as none, and the room of
    /// nodes as unknown.
    pub fn from_metadata(
        name: &str,
        labels: BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Self {
        let prices = annotations
            .get(annotations::PRICES)
            .and_then(|text| serde_json::from_str(text).ok());
        let largest_pods = annotations
            .get(annotations::LARGEST_PODS)
            .and_then(|text| serde_json::from_str(text).ok());
        Self {
            name: name.to_owned(),
            labels,
            prices,
            largest_pods: largest_pods.unwrap_or_default(),
        }
    }

    /// The same from the Node as JSON.
    pub fn from_json(name: &str, node: &Value) -> Self {
        let metadata = NodeObjectView::of(node).metadata();
        Self::from_metadata(
            name,
            texts_of(metadata.labels()),
            &texts_of(metadata.annotations()),
        )
    }

    /// ID of the cluster behind it.
    pub fn cluster_id(&self) -> &str {
        self.labels
            .get(labels::REMOTE_CLUSTER_ID)
            .map_or("", String::as_str)
    }

    /// Whether a person means it by this: its name, or the name or ID of its cluster.
    pub fn is_called(&self, name: &str) -> bool {
        let pool = self.labels.get(labels::POOL).map_or("", String::as_str);
        // The Node of another pool than `default` is named after its cluster and the pool.
        let cluster = self
            .name
            .strip_suffix(pool)
            .and_then(|start| start.strip_suffix('-'));
        self.name == name
            || self.cluster_id() == name
            || (!pool.is_empty() && cluster == Some(name))
    }

    /// The costs of these amounts here for one hour, and the currency. Without a currency, they
    /// cost nothing.
    pub fn cost_per_hour(&self, amounts: &ResourceList) -> (Money, Option<&str>) {
        let Some(prices) = &self.prices else {
            return (Money::ZERO, None);
        };
        let cost = per_hour(&prices.rates, amounts);
        (cost, (!cost.is_zero()).then_some(prices.currency.as_str()))
    }
}

/// The costs of a pod at a node for one hour. The order is from cheap to expensive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HourlyCost {
    /// In the currency that counts.
    Known(Money),
    /// In another currency.
    NotComparable,
}

impl HourlyCost {
    pub const NOTHING: Self = Self::Known(Money::ZERO);
}

/// The currency that counts: the one in which most nodes ask for something, the first by name among
/// equals.
pub fn main_currency<'a>(currencies: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for currency in currencies {
        *nodes.entry(currency).or_default() += 1;
    }
    // `max_by_key` returns the last of equal elements.
    nodes
        .into_iter()
        .rev()
        .max_by_key(|(_, nodes)| *nodes)
        .map(|(currency, _)| currency)
}

/// The costs of these amounts at each node.
pub fn costs_by_node<'a>(
    amounts: &ResourceList,
    nodes: &[&'a PricedNode],
) -> Vec<(&'a PricedNode, HourlyCost)> {
    let all: Vec<_> = nodes
        .iter()
        .map(|node| (*node, node.cost_per_hour(amounts)))
        .collect();
    let main = main_currency(all.iter().filter_map(|(_, (_, currency))| *currency));
    all.into_iter()
        .map(|(node, (amount, currency))| {
            let cost = if currency.is_none() || currency == main {
                HourlyCost::Known(amount)
            } else {
                HourlyCost::NotComparable
            };
            (node, cost)
        })
        .collect()
}

fn texts_of(entries: Option<&Map<String, Value>>) -> BTreeMap<String, String> {
    entries
        .and_then(|all| BTreeMap::deserialize(all).ok())
        .unwrap_or_default()
}

/// The nodes with equal costs, the cheapest first.
pub fn nodes_by_cost<'a>(
    costs: &[(&'a PricedNode, HourlyCost)],
) -> BTreeMap<HourlyCost, BTreeSet<&'a str>> {
    let mut classes: BTreeMap<HourlyCost, BTreeSet<&str>> = BTreeMap::new();
    for (node, cost) in costs {
        classes.entry(*cost).or_default().insert(&node.name);
    }
    classes
}

/// The amounts that a provider with the default policy charges for a pod: its effective requests,
/// and those that it leaves open.
pub fn default_charge(spec: PodSpec) -> ResourceList {
    requests::of_pod(&with_default_amounts(spec))
}

/// The same for a pod as JSON; `None` if it is no pod.
pub fn default_charge_of_json(pod: &Value) -> Option<ResourceList> {
    serde_json::from_value(pod.get("spec")?.clone())
        .ok()
        .map(default_charge)
}

/// The same for a pod that has a node: while it is resized, the larger amounts count.
pub fn default_charge_on_node(
    generation: Option<i64>,
    spec: PodSpec,
    status: &PodStatus,
) -> ResourceList {
    requests::of_bound_pod(generation, with_default_amounts(spec), status)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::{collection::vec, option, prelude::*, sample::select};
    use serde_json::json;

    use super::*;

    /// A virtual node where a core costs so much.
    pub(crate) fn node(name: &str, prices: Option<(&str, &str)>) -> PricedNode {
        let labels = [
            (labels::TYPE, labels::TYPE_VIRTUAL_NODE),
            (labels::POOL, "default"),
            ("kubernetes.io/hostname", name),
        ];
        let mut labels: BTreeMap<String, String> = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        labels.insert(
            labels::REMOTE_CLUSTER_ID.to_owned(),
            format!("id-of-{name}"),
        );
        let list =
            prices.map(|(cpu, currency)| json!({ "currency": currency, "rates": { "cpu": cpu } }));
        let prices = list.map(|list| serde_json::from_value(list).unwrap());
        PricedNode {
            name: name.to_owned(),
            labels,
            prices,
            ..PricedNode::default()
        }
    }

    pub(crate) fn cores(number: i64) -> ResourceList {
        [(
            "cpu".to_owned(),
            liqo_quantity::Quantity::from_units(number),
        )]
        .into_iter()
        .collect()
    }

    fn known(amount: &str) -> HourlyCost {
        HourlyCost::Known(amount.parse().unwrap())
    }

    #[test]
    fn another_currency_than_that_of_most_nodes_is_more_expensive_than_all() {
        let nodes = [
            node("a", Some(("0.04", "EUR"))),
            node("b", Some(("0.05", "EUR"))),
            node("c", Some(("0.001", "USD"))),
            node("d", None),
            node("e", Some(("0", "USD"))),
        ];
        let nodes: Vec<&PricedNode> = nodes.iter().collect();
        let found: Vec<HourlyCost> = costs_by_node(&cores(2), &nodes)
            .into_iter()
            .map(|(_, cost)| cost)
            .collect();
        assert_eq!(
            found,
            [
                known("0.08"),
                known("0.1"),
                HourlyCost::NotComparable,
                HourlyCost::NOTHING,
                HourlyCost::NOTHING
            ]
        );
        assert!(known("999999999999999999") < HourlyCost::NotComparable);
        assert_eq!(
            main_currency(["b", "a", "c", "c", "a"]),
            Some("a"),
            "the first by name among equals"
        );
        assert_eq!(main_currency([]), None);
    }

    #[test]
    fn people_call_a_node_by_its_name_or_that_of_its_cluster() {
        let mut gpu = node("milan-gpu", None);
        gpu.labels.insert(labels::POOL.to_owned(), "gpu".to_owned());
        for (node, name, expected) in [
            (&gpu, "milan", true),
            (&gpu, "milan-gpu", true),
            (&gpu, "id-of-milan-gpu", true),
            (&gpu, "mila", false),
            (&gpu, "", false),
            (&node("milan", None), "milan", true),
            (&node("milan-default", None), "milan", true),
            (&node("turin", None), "milan", false),
        ] {
            assert_eq!(node.is_called(name), expected, "{} {name}", node.name);
        }
        assert!(!PricedNode::default().is_called("milan"));
    }

    #[test]
    fn prices_that_cannot_be_read_count_as_none() {
        let of = |text: &str| {
            PricedNode::from_metadata(
                "milan",
                BTreeMap::new(),
                &BTreeMap::from([(annotations::PRICES.to_owned(), text.to_owned())]),
            )
            .prices
        };
        assert_eq!(of("nonsense"), None);
        assert_eq!(
            of(r#"{"currency":"EUR","rates":{"cpu":"0.04"}}"#),
            node("milan", Some(("0.04", "EUR"))).prices
        );
    }

    #[test]
    fn a_pod_that_requests_nothing_costs_what_a_provider_charges() {
        let amounts =
            default_charge_of_json(&json!({ "spec": { "containers": [{ "name": "c" }] } }))
                .unwrap();
        assert_eq!(
            ["cpu", "memory", "pods"].map(|name| amounts.get(name).to_string()),
            ["10m", "32Mi", "1"]
        );
        assert_eq!(
            default_charge_of_json(&json!({ "spec": { "containers": 1 } })),
            None
        );
    }

    pub(crate) fn any_nodes() -> impl Strategy<Value = Vec<PricedNode>> {
        let prices = option::weighted(0.8, (0_u32..6, select(vec!["EUR", "USD"])));
        vec(prices, 0..8).prop_map(|all| {
            let named = all.into_iter().enumerate();
            named
                .map(|(index, prices)| {
                    let prices = prices.map(|(cpu, currency)| (format!("0.0{cpu}"), currency));
                    node(
                        &format!("n{index}"),
                        prices
                            .as_ref()
                            .map(|(cpu, currency)| (cpu.as_str(), *currency)),
                    )
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_node_is_in_one_class_and_comparable_classes_cost_what_they_say(nodes in any_nodes(), number in 1_i64..9) {
            let all: Vec<&PricedNode> = nodes.iter().collect();
            let costs = costs_by_node(&cores(number), &all);
            let classes = nodes_by_cost(&costs);
            prop_assert_eq!(classes.values().map(BTreeSet::len).sum::<usize>(), nodes.len());
            for (node, cost) in costs {
                let (amount, currency) = node.cost_per_hour(&cores(number));
                match cost {
                    HourlyCost::Known(known) => prop_assert_eq!(known, amount),
                    HourlyCost::NotComparable => prop_assert!(currency.is_some()),
                }
                prop_assert!(classes[&cost].contains(node.name.as_str()));
            }
        }
    }
}
