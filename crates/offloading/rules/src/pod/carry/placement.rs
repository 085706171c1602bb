//! Rules for where a pod may run: requirements and preferences about labels that the provider
//! advertised travel. Those about other labels mean nothing outside the home cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Toleration;
use liqo_api::{is_own, pods, short_hash};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::views::{
    AffinityView, PREFERRED_TERMS, REQUIRED_TERMS, RequirementView, TermView, TolerationView,
};

/// The selected labels that the provider advertised.
pub fn travelling_node_selector(selector: &Value, advertised: &BTreeSet<String>) -> Option<Value> {
    let entries = selector
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| advertised.contains(*key));
    let kept: Map<String, Value> = entries
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    (!kept.is_empty()).then_some(kept.into())
}

/// Keeps a pod on the nodes of its pool: combines each of its own terms with each of these.
pub(crate) fn confine_to_nodes(spec: &mut Map<String, Value>, nodes: &[Value]) {
    if nodes.is_empty() {
        return;
    }
    let own = spec
        .get("affinity")
        .map(|affinity| AffinityView::of(affinity).required_terms().to_vec())
        .unwrap_or_default();
    let own = if own.is_empty() { vec![json!({})] } else { own };
    let terms: Vec<Value> = own
        .iter()
        .flat_map(|own| nodes.iter().map(move |node| merged_term(own, node)))
        .collect();
    let affinity = spec.entry("affinity").or_insert(Value::Null);
    set_at(
        affinity,
        &["nodeAffinity", REQUIRED_TERMS],
        json!({ "nodeSelectorTerms": terms }),
    );
}

/// The term that selects the nodes that both terms select.
fn merged_term(one: &Value, other: &Value) -> Value {
    let (one, other) = (TermView::of(one), TermView::of(other));
    let mut term = Map::new();
    for (field, all) in [
        (
            "matchExpressions",
            [one.match_expressions(), other.match_expressions()].concat(),
        ),
        (
            "matchFields",
            [one.match_fields(), other.match_fields()].concat(),
        ),
    ] {
        if !all.is_empty() {
            term.insert(field.to_owned(), all.into());
        }
    }
    term.into()
}

/// A hash of the terms that select the nodes of a pool.
pub fn pool_nodes_hash(nodes: &[Value]) -> String {
    short_hash(&Value::from(nodes).to_string())
}

/// Lets a pod onto virtual nodes, if its affinity does, too.
pub(crate) fn tolerate_virtual_nodes(spec: &mut Map<String, Value>) {
    let toleration =
        json!({ "key": pods::VIRTUAL_NODE_TAINT, "operator": "Exists", "effect": "NoExecute" });
    match spec.get_mut("tolerations").and_then(Value::as_array_mut) {
        Some(others) => others.push(toleration),
        None => drop(spec.insert("tolerations".to_owned(), json!([toleration]))),
    }
}

/// The part of the node affinity that is about advertised labels. Affinity between pods is about
/// the home cluster's pods and namespaces, and is dropped.
pub fn travelling_affinity(affinity: &Value, advertised: &BTreeSet<String>) -> Option<Value> {
    let mut kept = Map::new();
    let affinity = AffinityView::of(affinity);
    let terms = affinity.required_terms();
    // Terms are alternatives: a term without requirements matches every node, and then so does the
    // selector.
    let reduced: Option<Vec<Value>> = terms
        .iter()
        .map(|one| advertised_term(one, advertised))
        .collect();
    if let Some(terms) = reduced.filter(|terms| !terms.is_empty()) {
        kept.insert(REQUIRED_TERMS.into(), json!({"nodeSelectorTerms": terms}));
    }
    let preferred = affinity.node_affinity().preferred().iter();
    let preferred: Vec<Value> = preferred
        .filter_map(|one| Some(json!({"weight": one.get("weight")?, "preference": advertised_term(one.get("preference")?, advertised)?})))
        .collect();
    if !preferred.is_empty() {
        kept.insert(PREFERRED_TERMS.into(), preferred.into());
    }
    (!kept.is_empty()).then(|| json!({"nodeAffinity": kept}))
}

/// A node selector term with only the expressions on advertised labels; `None` if there is none.
fn advertised_term(term: &Value, advertised: &BTreeSet<String>) -> Option<Value> {
    let kept: Vec<Value> = TermView::of(term)
        .match_expressions()
        .iter()
        .filter(|expression| {
            let key = RequirementView::of(expression).key();
            key.is_some_and(|key| advertised.contains(key))
        })
        .cloned()
        .collect();
    (!kept.is_empty()).then(|| json!({"matchExpressions": kept}))
}

/// The tolerations that travel.
pub fn travelling_tolerations(
    tolerations: &Value,
    passes: &dyn Fn(&Value) -> bool,
) -> Option<Value> {
    let kept: Vec<Value> = tolerations
        .as_array()
        .into_iter()
        .flatten()
        .filter(|toleration| passes(toleration))
        .cloned()
        .collect();
    (!kept.is_empty()).then_some(kept.into())
}

/// Whether the user wrote the toleration; Liqo adds those for virtual nodes.
pub(crate) fn is_written_by_user(toleration: &Value) -> bool {
    !is_own(TolerationView::of(toleration).key())
}

/// Whether a toleration tolerates no more than one that the policy names.
///
/// A field that this version does not know may widen it, so a toleration with such a field is never
/// covered.
pub(crate) fn is_allowed_toleration(toleration: &Value, allowed: &[Toleration]) -> bool {
    let has_known_fields = toleration.as_object().is_some_and(|fields| {
        fields.keys().all(|field| {
            ["key", "operator", "value", "effect", "tolerationSeconds"].contains(&field.as_str())
        })
    });
    if !has_known_fields {
        return false;
    }
    let Ok(asked) = Toleration::deserialize(toleration) else {
        return false;
    };
    allowed
        .iter()
        .any(|allowed| covers_toleration(allowed, &asked))
}

/// Whether `allowed` tolerates everything that `asked` tolerates, for as long. Kubernetes' rules:
/// no key with the operator Exists is every key, no effect is every effect, and no time is for
/// ever.
fn covers_toleration(allowed: &Toleration, asked: &Toleration) -> bool {
    let (allowed_operator, asked_operator) = (operator_of(allowed), operator_of(asked));
    let (allowed_key, asked_key) = (
        text_or_empty(allowed.key.as_ref()),
        text_or_empty(asked.key.as_ref()),
    );
    let same_words = allowed_key == asked_key
        && allowed_operator == asked_operator
        && text_or_empty(allowed.value.as_ref()) == text_or_empty(asked.value.as_ref());
    let taints = same_words
        || match allowed_operator {
            "Exists" => allowed_key.is_empty() || allowed_key == asked_key,
            // Other operators compare values: only the same comparison is certainly no wider.
            _ => false,
        };
    let (allowed_effect, asked_effect) = (
        text_or_empty(allowed.effect.as_ref()),
        text_or_empty(asked.effect.as_ref()),
    );
    let effects = allowed_effect.is_empty() || allowed_effect == asked_effect;
    let time = match (allowed.toleration_seconds, asked.toleration_seconds) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(longest), Some(asked)) => asked <= longest,
    };
    taints && effects && time
}

fn operator_of(toleration: &Toleration) -> &str {
    match text_or_empty(toleration.operator.as_ref()) {
        "" => "Equal",
        operator => operator,
    }
}

fn text_or_empty(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}
