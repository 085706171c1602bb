//! Selectors of labels, node affinity, and tolerations.

use serde_json::Value;

use super::fields::{items, name, text};

/// Whether a label selector of an object selects these labels. A missing selector selects nothing, an empty one everything.
pub fn selects(selector: &Value, labels: &Value) -> bool {
    selector.is_object()
        && has_labels(labels, &selector["matchLabels"])
        && items(&selector["matchExpressions"])
            .iter()
            .all(|expression| matches(expression, labels[text(&expression["key"])].as_str()))
}

/// Whether all of these labels are there. `wanted` may be missing.
pub fn has_labels(labels: &Value, wanted: &Value) -> bool {
    wanted.as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value)
}

fn matches(expression: &Value, value: Option<&str>) -> bool {
    let values = items(&expression["values"]);
    let is_listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let compared = || {
        let bound = values.first().and_then(Value::as_str)?.parse::<i64>().ok()?;
        Some(value?.parse::<i64>().ok()?.cmp(&bound))
    };
    match text(&expression["operator"]) {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

/// Whether a node matches one term of a node affinity. An empty term matches no node.
pub fn term_matches(term: &Value, node: &Value) -> bool {
    let (expressions, fields) = (items(&term["matchExpressions"]), items(&term["matchFields"]));
    let labels = &node["metadata"]["labels"];
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|expression| matches(expression, labels[text(&expression["key"])].as_str()))
        && fields.iter().all(|field| field["key"] == "metadata.name" && matches(field, Some(name(node))))
}

/// Whether a pod's nodeSelector and required node affinity allow a node.
pub fn allows_node(pod: &Value, node: &Value) -> bool {
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    has_labels(&node["metadata"]["labels"], &pod["spec"]["nodeSelector"])
        && (required.is_null() || items(&required["nodeSelectorTerms"]).iter().any(|term| term_matches(term, node)))
}

/// The tolerations of a pod that tolerate a taint.
pub fn tolerations<'a>(pod: &'a Value, taint: &Value) -> impl Iterator<Item = &'a Value> {
    items(&pod["spec"]["tolerations"]).iter().filter(move |toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (effect, key) = (text(&toleration["effect"]), text(&toleration["key"]));
    if !effect.is_empty() && taint["effect"] != effect || !key.is_empty() && taint["key"] != key {
        return false;
    }
    toleration["operator"] == "Exists" || (!key.is_empty() && text(&toleration["value"]) == text(&taint["value"]))
}
