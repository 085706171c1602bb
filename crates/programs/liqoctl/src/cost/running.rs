//! The costs of pods in other clusters, now and so far. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use liqo_api::{BudgetPeriod, Money, ResourceList};
use liqo_offloading_rules::node::priced::{PricedNode, default_charge_on_node};
use serde::Serialize;

use super::{amount_in_words, in_thirty_days};
use crate::output;

/// A virtual node and its unfinished pods.
#[derive(Clone, Debug)]
pub struct VirtualNodePods {
    pub node: Node,
    pub pods: Vec<Pod>,
}

/// The costs of pods, now and so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CostReport {
    pub lines: Vec<NamespaceCosts>,
    /// One for each currency.
    pub totals: Vec<CurrencyTotal>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetLine>,
    /// Whether this user may not see what was spent: then all amounts of today and this month are
    /// zero, and budgets are left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub spending_is_hidden: bool,
}

impl CostReport {
    /// The same for people who may not see contracts.
    #[must_use]
    pub fn without_spending(self) -> Self {
        Self {
            spending_is_hidden: true,
            ..self
        }
    }
}

/// The money that one namespace spent under one contract, or without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSpending {
    /// ID of the provider.
    pub provider: String,
    /// Name of the contract. Without one, this is what still runs.
    pub contract: Option<String>,
    /// Whether what runs now is charged under it.
    pub in_force: bool,
    /// Empty if it is not known.
    pub namespace: String,
    pub currency: String,
    pub today: Money,
    pub this_month: Money,
}

/// A budget, and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetLine {
    /// `namespace demo` or `PeeringPolicy default`.
    pub of: String,
    pub period: BudgetPeriod,
    pub amount: Money,
    pub currency: String,
    pub spent: Money,
    /// Never below zero.
    pub left: Money,
    /// Whether new pods go to all clusters.
    pub open: bool,
    /// The reason why they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The pods of one namespace at one peer under one contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceCosts {
    pub namespace: String,
    /// Name of the peer; its ID where it is no longer known.
    pub peer: String,
    /// Name of the contract, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    #[serde(flatten)]
    pub sum: CostSum,
    /// Nothing if the pods cost nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// The sum in one currency.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrencyTotal {
    #[serde(flatten)]
    pub sum: CostSum,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// A number of pods, and their costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CostSum {
    pub pods: usize,
    pub per_hour: Money,
    pub per_thirty_days: Money,
    /// Money spent today (UTC).
    pub today: Money,
    /// Money spent in this month (UTC).
    pub this_month: Money,
}

impl CostSum {
    fn of_running_pod(per_hour: Money) -> Self {
        Self {
            pods: 1,
            per_hour,
            per_thirty_days: in_thirty_days(per_hour),
            ..Self::default()
        }
    }

    fn add(&mut self, other: Self) {
        self.pods += other.pods;
        self.per_hour += other.per_hour;
        self.per_thirty_days = in_thirty_days(self.per_hour);
        self.today += other.today;
        self.this_month += other.this_month;
    }
}

/// The pods whose costs are summed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CostKey {
    namespace: String,
    /// Name of the peer.
    peer: String,
    contract: Option<String>,
    currency: Option<String>,
}

/// The costs of the pods on these nodes, and the money spent so far. `names` are the names of peers
/// by their ID.
pub fn compute_costs(
    running: &[VirtualNodePods],
    names: &BTreeMap<String, String>,
    spent: &[NamespaceSpending],
) -> CostReport {
    let mut sums: BTreeMap<CostKey, CostSum> = BTreeMap::new();
    for VirtualNodePods { node, pods } in running {
        let node =
            PricedNode::from_metadata(&node.name_any(), node.labels().clone(), node.annotations());
        let peer = name_of_peer(node.cluster_id(), names);
        let contract = contract_in_force(node.cluster_id(), spent);
        for pod in pods {
            let (per_hour, currency) = node.cost_per_hour(&charged_resources(pod));
            let key = CostKey {
                namespace: pod.namespace().unwrap_or_default(),
                peer: peer.clone(),
                contract: contract.clone(),
                currency: currency.map(str::to_owned),
            };
            sums.entry(key)
                .or_default()
                .add(CostSum::of_running_pod(per_hour));
        }
    }
    for one in spent
        .iter()
        .filter(|one| !one.this_month.is_zero() || !one.today.is_zero())
    {
        let namespace = if one.namespace.is_empty() {
            "(unknown)"
        } else {
            &one.namespace
        };
        let key = CostKey {
            namespace: namespace.to_owned(),
            peer: name_of_peer(&one.provider, names),
            contract: one.contract.clone(),
            currency: Some(one.currency.clone()),
        };
        sums.entry(key).or_default().add(CostSum {
            today: one.today,
            this_month: one.this_month,
            ..CostSum::default()
        });
    }
    let mut totals: BTreeMap<Option<String>, CostSum> = BTreeMap::new();
    for (key, sum) in &sums {
        totals.entry(key.currency.clone()).or_default().add(*sum);
    }
    let lines = sums.into_iter().map(|(key, sum)| NamespaceCosts {
        namespace: key.namespace,
        peer: key.peer,
        contract: key.contract,
        sum,
        currency: key.currency,
    });
    let totals = totals
        .into_iter()
        .map(|(currency, sum)| CurrencyTotal { sum, currency });
    CostReport {
        lines: lines.collect(),
        totals: totals.collect(),
        budgets: Vec::new(),
        spending_is_hidden: false,
    }
}

/// The name of a peer; its ID where it is no longer known.
fn name_of_peer(id: &str, names: &BTreeMap<String, String>) -> String {
    names.get(id).map_or_else(|| id.to_owned(), Clone::clone)
}

fn contract_in_force(provider: &str, spent: &[NamespaceSpending]) -> Option<String> {
    spent
        .iter()
        .find(|one| one.in_force && one.provider == provider)
        .and_then(|one| one.contract.clone())
}

/// The resources charged for a pod.
pub(super) fn charged_resources(pod: &Pod) -> ResourceList {
    let status = pod.status.clone().unwrap_or_default();
    pod.spec
        .clone()
        .map(|spec| default_charge_on_node(pod.metadata.generation, spec, &status))
        .unwrap_or_default()
}

/// The costs as text for people.
pub fn render_costs(costs: &CostReport) -> String {
    if costs.lines.is_empty() && costs.budgets.is_empty() {
        return "No pod runs in another cluster, and nothing was spent in this month.".to_owned();
    }
    let lines = costs.lines.iter().map(|line| {
        let contract = line.contract.as_deref().unwrap_or("-");
        let names = [line.namespace.as_str(), &line.peer, contract];
        cost_row(costs, names, &line.sum, line.currency.as_deref())
    });
    let totals = costs.totals.iter().map(|total| {
        cost_row(
            costs,
            ["(total)", "", ""],
            &total.sum,
            total.currency.as_deref(),
        )
    });
    let header = [
        "NAMESPACE",
        "PEER",
        "CONTRACT",
        "PODS",
        "PER HOUR",
        "PER 30 DAYS",
        "TODAY",
        "THIS MONTH",
    ];
    let mut text = output::format_table(&header, lines.chain(totals));
    if !costs.budgets.is_empty() {
        text.push_str("\n\n");
        text.push_str(&budgets_table(&costs.budgets));
    }
    if costs.spending_is_hidden {
        text.push_str("\n\nYou may not list contracts, so it does not say what was spent.");
    }
    text
}

fn cost_row(
    costs: &CostReport,
    names: [&str; 3],
    sum: &CostSum,
    currency: Option<&str>,
) -> Vec<String> {
    let mut row: Vec<String> = names.map(output::strip_control_characters).to_vec();
    row.push(sum.pods.to_string());
    let prices = [sum.per_hour, sum.per_thirty_days];
    row.extend(prices.map(|amount| amount_in_words(amount, currency)));
    let spent = [sum.today, sum.this_month];
    if costs.spending_is_hidden {
        row.extend(spent.map(|_| "-".to_owned()));
    } else {
        row.extend(spent.map(|amount| amount_in_words(amount, currency)));
    }
    row
}

fn budgets_table(budgets: &[BudgetLine]) -> String {
    let rows = budgets.iter().map(|one| {
        let amount = format!("{} {}", one.amount, one.currency);
        let [spent, left] =
            [one.spent, one.left].map(|amount| amount_in_words(amount, Some(&one.currency)));
        let state = if one.open {
            "open".to_owned()
        } else {
            one.message
                .as_deref()
                .map_or_else(|| "closed".to_owned(), output::strip_control_characters)
        };
        let period = format!("{:?}", one.period).to_lowercase();
        vec![
            output::strip_control_characters(&one.of),
            period,
            amount,
            spent,
            left,
            state,
        ]
    });
    output::format_table(
        &["BUDGET OF", "FOR EACH", "AMOUNT", "SPENT", "LEFT", "STATE"],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn running(name: &str, prices: Option<&str>, pods: &[(&str, &str)]) -> VirtualNodePods {
        let annotations =
            prices.map_or_else(|| json!({}), |prices| json!({ "liqo.io/prices": prices }));
        let labels = json!({ "liqo.io/remote-cluster-id": format!("id-of-{name}") });
        let node =
            json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations } });
        let pod = |(namespace, cpu): &(&str, &str)| -> Value {
            let container = json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": "1Gi" } } });
            json!({ "metadata": { "namespace": namespace, "name": "p" }, "spec": { "containers": [container] } })
        };
        let pods = pods
            .iter()
            .map(|one| serde_json::from_value(pod(one)).unwrap())
            .collect();
        VirtualNodePods {
            node: serde_json::from_value(node).unwrap(),
            pods,
        }
    }

    #[test]
    fn costs_are_summed_by_namespace_peer_and_currency() {
        let eur = r#"{"currency":"EUR","rates":{"cpu":"0.04","memory":"0.005"}}"#;
        let all = [
            running(
                "milan",
                Some(eur),
                &[("demo", "2"), ("demo", "500m"), ("shop", "1")],
            ),
            running(
                "milan-gpu",
                Some(r#"{"currency":"EUR","rates":{"cpu":"1"}}"#),
                &[("demo", "1")],
            ),
            running(
                "turin",
                Some(r#"{"currency":"credits","rates":{"cpu":"3"}}"#),
                &[("demo", "1")],
            ),
            running("free", None, &[("demo", "1")]),
        ];
        let names = [
            ("milan", "milan"),
            ("milan-gpu", "milan"),
            ("turin", "turin"),
        ];
        let names = names
            .map(|(node, peer)| (format!("id-of-{node}"), peer.to_owned()))
            .into();
        let mut costs = compute_costs(&all, &names, &[]);
        let shown = "\
NAMESPACE   PEER         CONTRACT   PODS   PER HOUR    PER 30 DAYS    TODAY       THIS MONTH
demo        id-of-free   -          1      0           0              0           0
demo        milan        -          3      1.11 EUR    799.2 EUR      0 EUR       0 EUR
demo        turin        -          1      3 credits   2160 credits   0 credits   0 credits
shop        milan        -          1      0.045 EUR   32.4 EUR       0 EUR       0 EUR
(total)                             1      0           0              0           0
(total)                             4      1.16 EUR    831.6 EUR      0 EUR       0 EUR
(total)                             1      3 credits   2160 credits   0 credits   0 credits";
        assert_eq!(render_costs(&costs), shown);
        costs.budgets = vec![budget(true), budget(false)];
        let shown = "\
BUDGET OF        FOR EACH   AMOUNT      SPENT     LEFT         STATE
namespace demo   day        1.001 EUR   0.4 EUR   0.6006 EUR   open
namespace demo   day        1.001 EUR   0.4 EUR   0.6006 EUR   it is spent";
        assert!(
            render_costs(&costs).ends_with(shown),
            "{}",
            render_costs(&costs)
        );
        let json = serde_json::to_value(&costs).unwrap();
        assert_eq!(
            json["lines"][1],
            json!({ "namespace": "demo", "peer": "milan", "pods": 3, "perHour": "1.11", "perThirtyDays": "799.2", "today": "0",
                "thisMonth": "0", "currency": "EUR" })
        );
        assert_eq!(
            json["totals"][0],
            json!({ "pods": 1, "perHour": "0", "perThirtyDays": "0", "today": "0", "thisMonth": "0" })
        );
        assert_eq!(
            (&json["budgets"][0]["left"], &json["budgets"][0]["open"]),
            (&json!("0.600596"), &json!(true))
        );
        assert!(render_costs(&CostReport::default()).starts_with("No pod runs in another cluster"));
    }

    fn budget(open: bool) -> BudgetLine {
        let money = |text: &str| text.parse().unwrap();
        BudgetLine {
            of: "namespace demo".to_owned(),
            period: BudgetPeriod::Day,
            amount: money("1.001"),
            currency: "EUR".to_owned(),
            spent: money("0.400004"),
            left: money("0.600596"),
            open,
            message: (!open).then(|| "it is spent".to_owned()),
        }
    }

    #[test]
    fn what_was_spent_is_next_to_what_runs_under_the_same_contract() {
        let eur = r#"{"currency":"EUR","rates":{"cpu":"0.04"}}"#;
        let all = [running("milan", Some(eur), &[("demo", "2")])];
        let spent = |contract: &str, in_force, namespace: &str, today: &str| NamespaceSpending {
            provider: "id-of-milan".to_owned(),
            contract: Some(contract.to_owned()),
            in_force,
            namespace: namespace.to_owned(),
            currency: "EUR".to_owned(),
            today: today.parse().unwrap(),
            this_month: "5".parse().unwrap(),
        };
        let spent = [
            spent("old", false, "demo", "0"),
            spent("new", true, "demo", "1"),
            spent("new", true, "", "0.5"),
        ];
        let costs = compute_costs(
            &all,
            &BTreeMap::from([("id-of-milan".to_owned(), "milan".to_owned())]),
            &spent,
        );
        let shown = "\
NAMESPACE   PEER    CONTRACT   PODS   PER HOUR   PER 30 DAYS   TODAY     THIS MONTH
(unknown)   milan   new        0      0 EUR      0 EUR         0.5 EUR   5 EUR
demo        milan   new        1      0.08 EUR   57.6 EUR      1 EUR     5 EUR
demo        milan   old        0      0 EUR      0 EUR         0 EUR     5 EUR
(total)                        1      0.08 EUR   57.6 EUR      1.5 EUR   15 EUR";
        assert_eq!(render_costs(&costs), shown);
    }
}
