//! Node affinity and tolerations.

use serde_json::Value;

use super::fields::{items, name, text};
pub use crate::api_server::selectors::{has_labels, matches, selects};

/// Whether a node matches one term of a node affinity. An empty term matches no node.
pub fn term_matches(term: &Value, node: &Value) -> bool {
    let (expressions, fields) = (
        items(&term["matchExpressions"]),
        items(&term["matchFields"]),
    );
    let labels = &node["metadata"]["labels"];
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|expression| matches(expression, labels[text(&expression["key"])].as_str()))
        && fields
            .iter()
            .all(|field| field["key"] == "metadata.name" && matches(field, Some(name(node))))
}

/// Whether a pod's nodeSelector and required node affinity allow a node.
pub fn allows_node(pod: &Value, node: &Value) -> bool {
    let required =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    has_labels(&node["metadata"]["labels"], &pod["spec"]["nodeSelector"])
        && (required.is_null()
            || items(&required["nodeSelectorTerms"])
                .iter()
                .any(|term| term_matches(term, node)))
}

/// The tolerations of a pod that tolerate a taint.
pub fn tolerations<'a>(pod: &'a Value, taint: &Value) -> impl Iterator<Item = &'a Value> {
    items(&pod["spec"]["tolerations"])
        .iter()
        .filter(move |toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (effect, key) = (text(&toleration["effect"]), text(&toleration["key"]));
    if !effect.is_empty() && taint["effect"] != effect || !key.is_empty() && taint["key"] != key {
        return false;
    }
    toleration["operator"] == "Exists"
        || (!key.is_empty() && text(&toleration["value"]) == text(&taint["value"]))
}
