//! Label selectors as Kubernetes validates them. All parts of Liqo read selectors here, so they
//! agree.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Expression, Selector};

/// Reads a label selector. `None` if Kubernetes refuses it; then it must select nothing.
pub fn label_selector(selector: &LabelSelector) -> Option<Selector> {
    let labels = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, value)| Expression::Equal(key.clone(), value.clone()));
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|one| {
        parse_requirement(
            &one.key,
            &one.operator,
            one.values.as_deref().unwrap_or_default(),
        )
    });
    labels.map(Some).chain(expressions).collect()
}

/// Reads one requirement of a label selector, or one of a node selector that compares no numbers.
/// `None` if Kubernetes refuses it: `In` and `NotIn` need values, the other operators must have
/// none, and no key is empty.
pub fn parse_requirement(key: &str, operator: &str, values: &[String]) -> Option<Expression> {
    if key.is_empty() || values.is_empty() == matches!(operator, "In" | "NotIn") {
        return None;
    }
    let values = Some(values.to_vec());
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values,
    }
    .try_into()
    .ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt as _;
    use serde_json::{Value, json};

    use super::*;

    fn selects(selector: Value, labels: &[(&str, &str)]) -> Option<bool> {
        let labels: BTreeMap<String, String> = labels
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        label_selector(&serde_json::from_value(selector).unwrap())
            .map(|selector| selector.matches(&labels))
    }

    #[test]
    fn every_operator_means_what_it_means_in_kubernetes() {
        let pod = [("app", "web"), ("empty", "")];
        for (operator, values, present, absent) in [
            ("In", &["web", "db"][..], true, false),
            ("In", &["db"], false, false),
            ("NotIn", &["web"], false, true),
            ("NotIn", &["db"], true, true),
            ("Exists", &[], true, false),
            ("DoesNotExist", &[], false, true),
        ] {
            let with = |key| {
                selects(
                    json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }),
                    &pod,
                )
            };
            assert_eq!(
                (with("app"), with("other")),
                (Some(present), Some(absent)),
                "{operator} {values:?}"
            );
        }
        assert_eq!(
            selects(json!({ "matchLabels": { "empty": "" } }), &pod),
            Some(true)
        );
        assert_eq!(
            selects(json!({}), &[]),
            Some(true),
            "an empty selector selects everything"
        );
        let both = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "empty", "operator": "DoesNotExist" }] });
        assert_eq!(
            selects(both, &pod),
            Some(false),
            "all requirements must match"
        );
    }

    #[test]
    fn what_kubernetes_refuses_is_no_selector() {
        for (operator, values) in [
            ("In", json!([])),
            ("NotIn", json!(null)),
            ("Exists", json!(["x"])),
            ("DoesNotExist", json!(["x"])),
            ("Gt", json!(["1"])),
        ] {
            let selector = json!({ "matchExpressions": [{ "key": "a", "operator": operator, "values": values }] });
            assert_eq!(selects(selector, &[]), None, "{operator}");
        }
        assert_eq!(
            selects(
                json!({ "matchExpressions": [{ "operator": "DoesNotExist" }] }),
                &[]
            ),
            None,
            "without a key"
        );
    }
}
