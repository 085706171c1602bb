//! Mapped namespaces whose pods run on virtual nodes, because the pools of their consumer are borrowed themselves: such a namespace is
//! offloaded on by itself, to the providers of these pools and to nobody else.
//!
//! ```text
//!   rome: demo ──▶ milan: demo-rome-qqvaqy ──▶ turin: demo-rome-qqvaqy-milan-ke5rfu
//!                  NamespaceOffloading, clusterSelector: the nodes of rome's borrowed pools
//! ```
//!
//! The selector follows from the offers to the consumer. An offer never contains nodes that come from the consumer, or through it, so
//! neither does the selector.

use kube::ResourceExt as _;
use liqo_api::{NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy, labels};
use serde_json::{Value, json};

use crate::json::managed_object;
use crate::namespace::manifests::holds;
use crate::pod::admission::Offer;

/// What to do about the `NamespaceOffloading` of a mapped namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Nothing,
    /// Create it with this content, unless a person created one.
    Create(Value),
    /// Give it this content.
    Update(Value),
    Delete,
}

/// Whether Liqo created this one. That of a person stays as it is.
pub fn is_ours(offloading: &NamespaceOffloading) -> bool {
    offloading.labels().get(labels::MANAGED).is_some_and(|value| value == "true")
}

/// The terms that select the virtual nodes of all borrowed pools of a consumer; none if it has no such pool.
pub fn terms<'a>(offers: impl IntoIterator<Item = &'a Offer>) -> Vec<Value> {
    let mut terms: Vec<Value> = Vec::new();
    for term in offers.into_iter().filter(|offer| offer.borrowed).flat_map(|offer| &offer.nodes) {
        if !terms.contains(term) {
            terms.push(term.clone());
        }
    }
    // The caches have no order.
    terms.sort_by_cached_key(Value::to_string);
    terms
}

/// The change to what a mapped namespace has; `live` is ours. It stays as long as the namespace has pods for virtual nodes: its end ends them.
pub fn change(
    namespace: &str,
    live: Option<&NamespaceOffloading>,
    terms: &[Value],
    has_lent_on_pods: impl FnOnce() -> bool,
) -> Change {
    match live {
        None if terms.is_empty() => Change::Nothing,
        None => Change::Create(offloading(namespace, terms)),
        // Its end is written before another one.
        Some(live) if live.metadata.deletion_timestamp.is_some() => Change::Nothing,
        Some(_) if terms.is_empty() => {
            if has_lent_on_pods() {
                Change::Nothing
            } else {
                Change::Delete
            }
        }
        Some(live) => {
            let wanted = offloading(namespace, terms);
            let is_settled = serde_json::to_value(live).is_ok_and(|live| holds(&live, &wanted));
            if is_settled { Change::Nothing } else { Change::Update(wanted) }
        }
    }
}

/// Pods may also run on this cluster's own nodes: the consumer may have a pool of these, too. Each pod has the nodes of its pool as its
/// requirement, so the webhook has nothing to add.
fn offloading(namespace: &str, terms: &[Value]) -> Value {
    let mut offloading = managed_object("offloading.liqo.io/v1alpha1", "NamespaceOffloading", namespace, NAMESPACE_OFFLOADING);
    offloading["spec"] = json!({
        "podOffloadingStrategy": PodOffloadingStrategy::LocalAndRemote,
        "clusterSelector": { "nodeSelectorTerms": terms },
    });
    offloading
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: &str = "demo-rome-qqvaqy";

    fn offer(borrowed: bool, provider: &str) -> Offer {
        let nodes =
            vec![json!({ "matchExpressions": [{ "key": "liqo.io/remote-cluster-id", "operator": "In", "values": [provider] }] })];
        Offer { nodes, borrowed, ..Offer::default() }
    }

    fn live(terms: &[Value], change: impl FnOnce(&mut Value)) -> NamespaceOffloading {
        let mut object = offloading(NAMESPACE, terms);
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_borrowed_pools_are_selected_and_each_node_once() {
        let all = [offer(true, "turin"), offer(false, "own"), offer(true, "genoa"), offer(true, "turin")];
        let found = terms(&all);
        let values: Vec<_> = found.iter().map(|term| term["matchExpressions"][0]["values"][0].as_str().unwrap()).collect();
        assert_eq!(values, ["genoa", "turin"]);
        assert!(terms(&[offer(false, "own")]).is_empty());
    }

    #[test]
    fn the_namespace_is_offloaded_while_the_consumer_has_borrowed_pools() {
        let terms = terms(&[offer(true, "turin")]);
        let Change::Create(wanted) = change(NAMESPACE, None, &terms, || false) else { panic!("it is created") };
        assert_eq!(wanted["metadata"]["name"], "offloading");
        assert_eq!(wanted["spec"]["podOffloadingStrategy"], "LocalAndRemote");
        assert_eq!(change(NAMESPACE, Some(&live(&terms, |_| {})), &terms, || false), Change::Nothing, "it is settled");
        let others = super::terms(&[offer(true, "genoa")]);
        assert_eq!(change(NAMESPACE, Some(&live(&others, |_| {})), &terms, || true), Change::Update(wanted));
        assert_eq!(change(NAMESPACE, None, &[], || false), Change::Nothing);
    }

    #[test]
    fn the_offloading_ends_after_the_pods() {
        let terms = terms(&[offer(true, "turin")]);
        let ours = live(&terms, |_| {});
        assert_eq!(change(NAMESPACE, Some(&ours), &[], || true), Change::Nothing);
        assert_eq!(change(NAMESPACE, Some(&ours), &[], || false), Change::Delete);
        let leaving = live(&terms, |object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        assert_eq!(change(NAMESPACE, Some(&leaving), &terms, || false), Change::Nothing);
    }

    #[test]
    fn what_a_person_created_is_not_ours() {
        let terms = terms(&[offer(true, "turin")]);
        assert!(is_ours(&live(&terms, |_| {})));
        assert!(!is_ours(&live(&terms, |object| object["metadata"]["labels"] = json!({}))));
    }
}
