//! Which nodes a `NamespaceOffloading` selects: Kubernetes' rules for node selectors, on the labels of virtual nodes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// Whether a node is selected. No selector, or one without terms, selects every node.
pub fn matches(selector: Option<&NodeSelector>, node: &str, labels: &BTreeMap<String, String>) -> bool {
    match selector.map(|selector| selector.node_selector_terms.as_slice()) {
        None | Some([]) => true,
        Some(terms) => terms.iter().any(|term| meets(term, node, labels)),
    }
}

/// Terms are alternatives, and a term's requirements all hold. A term without any selects nothing.
fn meets(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let by_label = |one: &NodeSelectorRequirement| holds(one, labels.get(&one.key).map(String::as_str));
    // The name is the only field that Kubernetes knows here.
    let by_field = |one: &NodeSelectorRequirement| one.key == "metadata.name" && holds(one, Some(node));
    expressions.iter().all(by_label) && fields.iter().all(by_field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|one| one == value);
    let compared = |right: fn(i64, i64) -> bool| match (value.map(str::parse), values) {
        (Some(Ok(value)), [bound]) => bound.parse().is_ok_and(|bound| right(value, bound)),
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|value, bound| value > bound),
        "Lt" => compared(|value, bound| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selects(selector: Value) -> bool {
        let labels = [("region", "eu"), ("gpus", "4"), ("empty", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let selector: Option<NodeSelector> = serde_json::from_value(selector).unwrap();
        matches(selector.as_ref(), "milan", &labels.into())
    }

    fn by(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]})
    }

    #[test]
    fn no_selector_selects_everything_and_an_empty_term_nothing() {
        assert!(selects(json!(null)));
        assert!(selects(json!({"nodeSelectorTerms": []})));
        assert!(!selects(json!({"nodeSelectorTerms": [{}]})));
        assert!(!selects(json!({"nodeSelectorTerms": [{"matchExpressions": []}]})));
    }

    #[test]
    fn every_operator_means_what_it_means_in_kubernetes() {
        for (operator, values, there, absent) in [
            ("In", &["eu", "us"][..], true, false),
            ("In", &["us"], false, false),
            ("NotIn", &["eu"], false, true),
            ("NotIn", &["us"], true, true),
            ("Exists", &[], true, false),
            ("DoesNotExist", &[], false, true),
            ("Unheard", &["eu"], false, false),
        ] {
            assert_eq!(selects(by("region", operator, values)), there, "{operator} {values:?}");
            assert_eq!(selects(by("nothing", operator, values)), absent, "{operator} {values:?} on an absent label");
        }
        assert!(selects(by("empty", "Exists", &[])) && selects(by("empty", "In", &[""])));
    }

    #[test]
    fn numbers_are_compared_as_numbers() {
        assert!(selects(by("gpus", "Gt", &["3"])) && selects(by("gpus", "Lt", &["10"])));
        assert!(
            !selects(by("gpus", "Gt", &["4"])) && !selects(by("region", "Gt", &["3"])) && !selects(by("nothing", "Lt", &["3"]))
        );
        assert!(!selects(by("gpus", "Gt", &["1", "2"])) && !selects(by("gpus", "Gt", &["x"])));
    }

    #[test]
    fn terms_are_alternatives_and_requirements_hold_together() {
        let eu = json!({"key": "region", "operator": "In", "values": ["eu"]});
        let none = json!({"key": "nothing", "operator": "Exists"});
        assert!(selects(json!({"nodeSelectorTerms": [{"matchExpressions": [none]}, {"matchExpressions": [eu]}]})));
        assert!(!selects(json!({"nodeSelectorTerms": [{"matchExpressions": [none, eu]}]})));
    }

    #[test]
    fn a_node_can_be_selected_by_its_name() {
        let term = |name: &str, key: &str| json!({"nodeSelectorTerms": [{"matchFields": [{"key": key, "operator": "In", "values": [name]}]}]});
        assert!(selects(term("milan", "metadata.name")));
        assert!(!selects(term("turin", "metadata.name")) && !selects(term("milan", "spec.x")));
    }
}
