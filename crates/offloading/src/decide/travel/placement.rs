//! Where a pod wants to run: wishes about the home cluster's nodes mean nothing elsewhere, but those about labels that the
//! provider advertised do.

use std::collections::BTreeSet;

use liqo_api::pods;
use serde_json::{Map, Value, json};

use crate::decide::{items, text};

/// The selected labels that the provider advertised.
pub(super) fn node_selector(selector: &Value, advertised: &BTreeSet<String>) -> Option<Value> {
    let entries = selector.as_object().into_iter().flatten().filter(|(key, _)| advertised.contains(*key));
    let kept: Map<String, Value> = entries.map(|(key, value)| (key.clone(), value.clone())).collect();
    (!kept.is_empty()).then_some(kept.into())
}

/// The part of the node affinity that is about advertised labels. Affinity between pods is about the home cluster's pods
/// and namespaces, and is dropped.
pub(super) fn affinity(affinity: &Value, advertised: &BTreeSet<String>) -> Option<Value> {
    let mut kept = Map::new();
    let terms = items(affinity, "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
    // Terms are alternatives: one that asks for nothing any more is met by every node, and so are all together.
    let reduced: Option<Vec<Value>> = terms.iter().map(|one| term(one, advertised)).collect();
    if let Some(terms) = reduced.filter(|terms| !terms.is_empty()) {
        kept.insert("requiredDuringSchedulingIgnoredDuringExecution".into(), json!({"nodeSelectorTerms": terms}));
    }
    let preferred = items(affinity, "/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution").iter();
    let preferred: Vec<Value> = preferred
        .filter_map(|wish| Some(json!({"weight": wish.get("weight")?, "preference": term(wish.get("preference")?, advertised)?})))
        .collect();
    if !preferred.is_empty() {
        kept.insert("preferredDuringSchedulingIgnoredDuringExecution".into(), preferred.into());
    }
    (!kept.is_empty()).then(|| json!({"nodeAffinity": kept}))
}

/// A node selector term with only the expressions on advertised labels; none if there is none.
fn term(term: &Value, advertised: &BTreeSet<String>) -> Option<Value> {
    let known = |expression: &&Value| text(expression, "/key").is_some_and(|key| advertised.contains(key));
    let kept: Vec<Value> = items(term, "/matchExpressions").iter().filter(known).cloned().collect();
    (!kept.is_empty()).then(|| json!({"matchExpressions": kept}))
}

/// The tolerations that pass.
pub(super) fn tolerations(tolerations: &Value, passes: &dyn Fn(&Value) -> bool) -> Option<Value> {
    let kept: Vec<Value> =
        tolerations.as_array().into_iter().flatten().filter(|toleration| passes(toleration)).cloned().collect();
    (!kept.is_empty()).then_some(kept.into())
}

/// Whether a toleration is the user's and not the one for virtual nodes.
pub(super) fn not_ours(toleration: &Value) -> bool {
    text(toleration, "/key") != Some(pods::VIRTUAL_NODE_TAINT)
}

/// Whether a toleration is for one taint key, and that one is in the list. One without key would tolerate everything.
pub(super) fn tolerates_only(toleration: &Value, keys: &BTreeSet<String>) -> bool {
    text(toleration, "/key").is_some_and(|key| !key.is_empty() && keys.contains(key))
}
