//! Finds the nodes that a `NamespaceOffloading` selects: Kubernetes' rules for node selectors, on
//! the labels of virtual nodes. Pure.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use kube::core::SelectorExt as _;
use liqo_api::selectors;

/// Whether a node is selected. No selector, or one without terms, selects every node.
pub fn selects_node(
    selector: Option<&NodeSelector>,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    match selector.map(|selector| selector.node_selector_terms.as_slice()) {
        None | Some([]) => true,
        Some(terms) => terms.iter().any(|term| meets_term(term, node, labels)),
    }
}

/// Terms are alternatives; all requirements of a term must match. A term without requirements
/// selects nothing.
fn meets_term(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let by_field = term.match_fields.as_deref().unwrap_or_default();
    // Kubernetes knows no other field.
    let fields = BTreeMap::from([("metadata.name".to_owned(), node.to_owned())]);
    !(expressions.is_empty() && by_field.is_empty())
        && expressions.iter().all(|one| meets_requirement(one, labels))
        && by_field
            .iter()
            .all(|one| fields.contains_key(&one.key) && meets_requirement(one, &fields))
}

fn meets_requirement(
    requirement: &NodeSelectorRequirement,
    labels: &BTreeMap<String, String>,
) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let label = labels.get(&requirement.key);
    match requirement.operator.as_str() {
        "Gt" => order_of_numbers(label, values) == Some(Ordering::Greater),
        "Lt" => order_of_numbers(label, values) == Some(Ordering::Less),
        operator => selectors::parse_requirement(&requirement.key, operator, values)
            .is_some_and(|one| one.matches(labels)),
    }
}

/// The order of a label's number and a requirement's; `None` unless both are one number.
fn order_of_numbers(label: Option<&String>, values: &[String]) -> Option<Ordering> {
    let [limit] = values else { return None };
    let limit: i64 = limit.parse().ok()?;
    Some(label?.parse::<i64>().ok()?.cmp(&limit))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selects(selector: Value) -> bool {
        let labels = [("region", "eu"), ("gpus", "4"), ("empty", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let selector: Option<NodeSelector> = serde_json::from_value(selector).unwrap();
        selects_node(selector.as_ref(), "milan", &labels.into())
    }

    fn by(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]})
    }

    #[test]
    fn no_selector_selects_everything_and_an_empty_term_nothing() {
        assert!(selects(json!(null)));
        assert!(selects(json!({"nodeSelectorTerms": []})));
        assert!(!selects(json!({"nodeSelectorTerms": [{}]})));
        assert!(!selects(
            json!({"nodeSelectorTerms": [{"matchExpressions": []}]})
        ));
    }

    #[test]
    fn requirements_are_those_of_label_selectors() {
        assert!(
            selects(by("region", "In", &["eu", "us"])) && selects(by("nothing", "NotIn", &["eu"]))
        );
        assert!(!selects(by("region", "Unknown", &["eu"])) && !selects(by("region", "NotIn", &[])));
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        assert!(selects(by("gpus", "Gt", &["3"])) && selects(by("gpus", "Lt", &["10"])));
        assert!(
            !selects(by("gpus", "Gt", &["4"]))
                && !selects(by("region", "Gt", &["3"]))
                && !selects(by("nothing", "Lt", &["3"]))
        );
        assert!(!selects(by("gpus", "Gt", &["1", "2"])) && !selects(by("gpus", "Gt", &["x"])));
    }

    #[test]
    fn terms_are_alternatives_and_requirements_hold_together() {
        let eu = json!({"key": "region", "operator": "In", "values": ["eu"]});
        let none = json!({"key": "nothing", "operator": "Exists"});
        assert!(selects(
            json!({"nodeSelectorTerms": [{"matchExpressions": [none]}, {"matchExpressions": [eu]}]})
        ));
        assert!(!selects(
            json!({"nodeSelectorTerms": [{"matchExpressions": [none, eu]}]})
        ));
    }

    #[test]
    fn a_node_can_be_selected_by_its_name() {
        let term = |name: &str, key: &str| json!({"nodeSelectorTerms": [{"matchFields": [{"key": key, "operator": "In", "values": [name]}]}]});
        assert!(selects(term("milan", "metadata.name")));
        assert!(!selects(term("turin", "metadata.name")) && !selects(term("milan", "spec.x")));
    }
}
