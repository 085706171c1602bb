//! What pods in other clusters cost now. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use liqo_api::Money;
use liqo_offloading_rules::node::priced::{PricedNode, charged_on_node};
use serde::Serialize;

use super::{in_thirty_days, in_words};
use crate::output;

/// A virtual node and its unfinished pods.
#[derive(Clone, Debug)]
pub struct Running {
    pub node: Node,
    pub pods: Vec<Pod>,
}

/// What pods cost now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Costs {
    pub lines: Vec<Line>,
    /// One for each currency.
    pub totals: Vec<Total>,
}

/// The pods of one namespace at one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    pub namespace: String,
    /// Name of the peer; its ID where it is no longer known.
    pub peer: String,
    pub pods: usize,
    pub per_hour: Money,
    pub per_thirty_days: Money,
    /// Nothing if the pods cost nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// The sum in one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Total {
    pub pods: usize,
    pub per_hour: Money,
    pub per_thirty_days: Money,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// What the pods on these nodes cost. `names` are the names of peers by their ID.
pub fn costs(running: &[Running], names: &BTreeMap<String, String>) -> Costs {
    let mut sums: BTreeMap<(String, String, Option<String>), (usize, Money)> = BTreeMap::new();
    let mut totals: BTreeMap<Option<String>, (usize, Money)> = BTreeMap::new();
    for Running { node, pods } in running {
        let node = PricedNode::of(&node.name_any(), node.labels().clone(), node.annotations());
        let peer = names.get(node.cluster_id()).map_or_else(|| node.cluster_id(), String::as_str);
        for pod in pods {
            let amounts = pod
                .spec
                .clone()
                .map(|spec| charged_on_node(pod.metadata.generation, spec, &pod.status.clone().unwrap_or_default()));
            let (amount, currency) = node.per_hour(&amounts.unwrap_or_default());
            let currency = currency.map(str::to_owned);
            let key = (pod.namespace().unwrap_or_default(), peer.to_owned(), currency.clone());
            for sum in [sums.entry(key).or_default(), totals.entry(currency).or_default()] {
                sum.0 += 1;
                sum.1 += amount;
            }
        }
    }
    let line = |((namespace, peer, currency), (pods, per_hour))| Line {
        namespace,
        peer,
        pods,
        per_hour,
        per_thirty_days: in_thirty_days(per_hour),
        currency,
    };
    let total = |(currency, (pods, per_hour))| Total { pods, per_hour, per_thirty_days: in_thirty_days(per_hour), currency };
    Costs { lines: sums.into_iter().map(line).collect(), totals: totals.into_iter().map(total).collect() }
}

/// The costs as text for people.
pub fn table(costs: &Costs) -> String {
    if costs.lines.is_empty() {
        return "No pod runs in another cluster.".to_owned();
    }
    let row = |namespace: &str, peer: &str, pods: usize, amounts: [Money; 2], currency: Option<&str>| {
        let [per_hour, per_month] = amounts.map(|amount| in_words(amount, currency));
        vec![namespace.to_owned(), output::plain(peer), pods.to_string(), per_hour, per_month]
    };
    let lines = costs
        .lines
        .iter()
        .map(|line| row(&line.namespace, &line.peer, line.pods, [line.per_hour, line.per_thirty_days], line.currency.as_deref()));
    let totals = costs
        .totals
        .iter()
        .map(|total| row("(total)", "", total.pods, [total.per_hour, total.per_thirty_days], total.currency.as_deref()));
    output::table(&["NAMESPACE", "PEER", "PODS", "PER HOUR", "PER 30 DAYS"], lines.chain(totals))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn running(name: &str, prices: Option<&str>, pods: &[(&str, &str)]) -> Running {
        let annotations = prices.map_or_else(|| json!({}), |prices| json!({ "liqo.io/prices": prices }));
        let labels = json!({ "liqo.io/remote-cluster-id": format!("id-of-{name}") });
        let node = json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations } });
        let pod = |(namespace, cpu): &(&str, &str)| -> Value {
            let container = json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": "1Gi" } } });
            json!({ "metadata": { "namespace": namespace, "name": "p" }, "spec": { "containers": [container] } })
        };
        let pods = pods.iter().map(|one| serde_json::from_value(pod(one)).unwrap()).collect();
        Running { node: serde_json::from_value(node).unwrap(), pods }
    }

    #[test]
    fn costs_are_summed_by_namespace_peer_and_currency() {
        let eur = r#"{"currency":"EUR","rates":{"cpu":"0.04","memory":"0.005"}}"#;
        let all = [
            running("milan", Some(eur), &[("demo", "2"), ("demo", "500m"), ("shop", "1")]),
            running("milan-gpu", Some(r#"{"currency":"EUR","rates":{"cpu":"1"}}"#), &[("demo", "1")]),
            running("turin", Some(r#"{"currency":"credits","rates":{"cpu":"3"}}"#), &[("demo", "1")]),
            running("free", None, &[("demo", "1")]),
        ];
        let names = [("milan", "milan"), ("milan-gpu", "milan"), ("turin", "turin")];
        let names = names.map(|(node, peer)| (format!("id-of-{node}"), peer.to_owned())).into();
        let costs = costs(&all, &names);
        let shown = "\
NAMESPACE   PEER         PODS   PER HOUR    PER 30 DAYS
demo        id-of-free   1      0           0
demo        milan        3      1.11 EUR    799.2 EUR
demo        turin        1      3 credits   2160 credits
shop        milan        1      0.045 EUR   32.4 EUR
(total)                  1      0           0
(total)                  4      1.155 EUR   831.6 EUR
(total)                  1      3 credits   2160 credits";
        assert_eq!(table(&costs), shown);
        let json = serde_json::to_value(&costs).unwrap();
        assert_eq!(
            json["lines"][1],
            json!({ "namespace": "demo", "peer": "milan", "pods": 3, "perHour": "1.11", "perThirtyDays": "799.2", "currency": "EUR" })
        );
        assert_eq!(json["totals"][0], json!({ "pods": 1, "perHour": "0", "perThirtyDays": "0" }));
        assert_eq!(table(&Costs::default()), "No pod runs in another cluster.");
    }
}
