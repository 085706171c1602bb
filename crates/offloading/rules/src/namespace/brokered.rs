//! Brokered namespaces: mapped namespaces whose pods run on virtual nodes, because the pools of
//! their consumer are borrowed themselves. Liqo offloads them to the providers of these pools and
//! to nobody else.
//!
//! ```text
//!   rome: demo ──▶ milan: demo-rome-qqvaqy ──▶ turin: demo-rome-qqvaqy-milan-ke5rfu
//!                  NamespaceOffloading, clusterSelector: the nodes of rome's borrowed pools
//! ```
//!
//! The selector follows from the offers to the consumer. An offer never contains nodes that come
//! from the consumer, or through it, so neither does the selector.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm};
use kube::ResourceExt as _;
use liqo_api::{
    ClusterId, Key, NAMESPACE_OFFLOADING, NamespaceOffloading, PodOffloadingStrategy, labels,
    tenant_namespace,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::json::{managed_object, set_at};
use crate::namespace::manifests::contains_wanted;
use crate::namespace::node_selector;
use crate::namespace::placement::CandidateNode;
use crate::pod::admission::PoolOffer;
use crate::views::PodView;

/// A change of the `NamespaceOffloading` of a mapped namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum OffloadingChange {
    Nothing,
    /// Create it with this content, unless a person created one.
    Create(Value),
    /// Give it this content.
    Update(Value),
    Delete,
}

/// Whether the namespace of this `NamespaceOffloading` is brokered: it is the mapped namespace of a
/// consumer, and Liqo offloaded it. All of its pods are those of the consumer. The
/// `NamespaceOffloading` of a person stays as it is. One that the working mode created is in a
/// namespace of a user.
///
/// This is the only question that tells. Labels of pods do not: whoever creates a pod chooses them.
pub fn is_brokered(offloading: &NamespaceOffloading) -> bool {
    has_true_label(offloading, labels::MANAGED) && !has_true_label(offloading, labels::TETHERED)
}

fn has_true_label(offloading: &NamespaceOffloading, label: &str) -> bool {
    offloading
        .labels()
        .get(label)
        .is_some_and(|value| value == "true")
}

/// Whether new pods of borrowed pools may be created in a mapped namespace with this
/// `NamespaceOffloading`. Without that of Liqo nothing would send them on, and nothing would keep
/// them apart there; while it is being deleted, neither does.
pub fn takes_new_pods(offloading: Option<&NamespaceOffloading>) -> bool {
    offloading.is_some_and(|offloading| {
        is_brokered(offloading) && offloading.metadata.deletion_timestamp.is_none()
    })
}

/// The terms that select the virtual nodes of all borrowed pools of a consumer; none if it has no
/// such pool.
pub fn borrowed_pool_terms<'a>(offers: impl IntoIterator<Item = &'a PoolOffer>) -> Vec<Value> {
    let mut terms: Vec<Value> = Vec::new();
    for term in offers
        .into_iter()
        .filter(|offer| offer.borrowed)
        .flat_map(|offer| &offer.nodes)
    {
        if !terms.contains(term) {
            terms.push(term.clone());
        }
    }
    // The caches have no order.
    terms.sort_by_cached_key(Value::to_string);
    terms
}

/// The offer whose room a pod in a brokered namespace takes.
pub fn offer_of_pod(pod: &Value) -> Option<Key> {
    let metadata = PodView::of(pod).metadata();
    let consumer: ClusterId = metadata.label(labels::CONSUMER_ID)?.parse().ok()?;
    let pool = metadata.label(labels::POOL)?;
    Some(Key::new(tenant_namespace(&consumer), pool))
}

/// Whether a pod of a consumer moves at once from the virtual node `left`, which its provider takes
/// back, to another node of its pool. Otherwise it stays until the end of the notice that its
/// consumer got, at most until the provider ends it: if it may run only once, because nobody here
/// creates it again; if its pool is taken back itself, or became smaller; and if the pool has no
/// other node. Until this cluster has decided what follows for the pool, its `offer` still has the
/// node. `others` are the nodes that take new pods.
pub fn moves_before_notice_ends(
    restarts: bool,
    offer: Option<&PoolOffer>,
    left: &CandidateNode,
    others: &[CandidateNode],
) -> bool {
    let Some(offer) =
        offer.filter(|offer| restarts && offer.withdrawal.is_none() && offer.reclaim.is_none())
    else {
        return false;
    };
    let terms = offer
        .nodes
        .iter()
        .filter_map(|term| NodeSelectorTerm::deserialize(term).ok())
        .collect();
    let selector = NodeSelector {
        node_selector_terms: terms,
    };
    !is_selected(left, &selector) && others.iter().any(|node| is_selected(node, &selector))
}

fn is_selected(node: &CandidateNode, selector: &NodeSelector) -> bool {
    node_selector::selects_node(Some(selector), &node.node, &node.labels)
}

/// The change to what a mapped namespace has; `live` is ours. It stays as long as the namespace has
/// pods for virtual nodes: its end ends them.
pub fn offloading_change(
    namespace: &str,
    live: Option<&NamespaceOffloading>,
    terms: &[Value],
    has_brokered_pods: impl FnOnce() -> bool,
) -> OffloadingChange {
    match live {
        None if terms.is_empty() => OffloadingChange::Nothing,
        None => OffloadingChange::Create(new_offloading(namespace, terms)),
        // Its end is written before another one.
        Some(live) if live.metadata.deletion_timestamp.is_some() => OffloadingChange::Nothing,
        Some(_) if terms.is_empty() => {
            if has_brokered_pods() {
                OffloadingChange::Nothing
            } else {
                OffloadingChange::Delete
            }
        }
        Some(live) => {
            let wanted = new_offloading(namespace, terms);
            let is_settled =
                serde_json::to_value(live).is_ok_and(|live| contains_wanted(&live, &wanted));
            if is_settled {
                OffloadingChange::Nothing
            } else {
                OffloadingChange::Update(wanted)
            }
        }
    }
}

/// Pods may also run on this cluster's own nodes: the consumer may have a pool of these, too. Each
/// pod has the nodes of its pool as its requirement, so the webhook has nothing to add.
fn new_offloading(namespace: &str, terms: &[Value]) -> Value {
    let mut offloading = managed_object(
        "offloading.liqo.io/v1alpha1",
        "NamespaceOffloading",
        namespace,
        NAMESPACE_OFFLOADING,
    );
    let spec = json!({
        "podOffloadingStrategy": PodOffloadingStrategy::LocalAndRemote,
        "clusterSelector": { "nodeSelectorTerms": terms },
    });
    set_at(&mut offloading, &["spec"], spec);
    offloading
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: &str = "demo-rome-qqvaqy";

    fn offer(borrowed: bool, provider: &str) -> PoolOffer {
        let nodes = vec![
            json!({ "matchExpressions": [{ "key": "liqo.io/remote-cluster-id", "operator": "In", "values": [provider] }] }),
        ];
        PoolOffer {
            nodes,
            borrowed,
            ..PoolOffer::default()
        }
    }

    fn live(terms: &[Value], change: impl FnOnce(&mut Value)) -> NamespaceOffloading {
        let mut object = new_offloading(NAMESPACE, terms);
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_borrowed_pools_are_selected_and_each_node_once() {
        let all = [
            offer(true, "turin"),
            offer(false, "own"),
            offer(true, "genoa"),
            offer(true, "turin"),
        ];
        let found = borrowed_pool_terms(&all);
        let values: Vec<_> = found
            .iter()
            .map(|term| term["matchExpressions"][0]["values"][0].as_str().unwrap())
            .collect();
        assert_eq!(values, ["genoa", "turin"]);
        assert!(borrowed_pool_terms(&[offer(false, "own")]).is_empty());
    }

    #[test]
    fn the_namespace_is_offloaded_while_the_consumer_has_borrowed_pools() {
        let terms = borrowed_pool_terms(&[offer(true, "turin")]);
        let OffloadingChange::Create(wanted) = offloading_change(NAMESPACE, None, &terms, || false)
        else {
            panic!("it is created")
        };
        assert_eq!(wanted["metadata"]["name"], "offloading");
        assert_eq!(wanted["spec"]["podOffloadingStrategy"], "LocalAndRemote");
        assert_eq!(
            offloading_change(NAMESPACE, Some(&live(&terms, |_| {})), &terms, || false),
            OffloadingChange::Nothing,
            "it is settled"
        );
        let others = super::borrowed_pool_terms(&[offer(true, "genoa")]);
        assert_eq!(
            offloading_change(NAMESPACE, Some(&live(&others, |_| {})), &terms, || true),
            OffloadingChange::Update(wanted)
        );
        assert_eq!(
            offloading_change(NAMESPACE, None, &[], || false),
            OffloadingChange::Nothing
        );
    }

    #[test]
    fn no_pod_of_a_borrowed_pool_is_created_without_an_offloading_of_ours_that_stays() {
        let terms = borrowed_pool_terms(&[offer(true, "turin")]);
        assert!(takes_new_pods(Some(&live(&terms, |_| {}))) && !takes_new_pods(None));
        let leaving = live(&terms, |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        let of_a_person = live(&terms, |object| object["metadata"]["labels"] = json!({}));
        assert!(!takes_new_pods(Some(&leaving)) && !takes_new_pods(Some(&of_a_person)));
        assert!(
            is_brokered(&leaving),
            "its pods stay apart until they are gone"
        );
    }

    #[test]
    fn the_offer_of_a_pod_is_that_of_its_consumer_and_pool() {
        let consumer = crate::fixtures::consumer();
        let pod = json!({ "metadata": { "labels": { labels::CONSUMER_ID: consumer, labels::POOL: "default" } } });
        assert_eq!(
            offer_of_pod(&pod),
            Some(Key::new(tenant_namespace(&consumer), "default"))
        );
        assert_eq!(
            offer_of_pod(
                &json!({ "metadata": { "labels": { labels::CONSUMER_ID: "x", labels::POOL: "default" } } })
            ),
            None
        );
    }

    #[test]
    fn a_pod_of_a_consumer_leaves_a_node_at_once_only_if_it_can_move() {
        let node = |provider: &str| CandidateNode {
            node: provider.to_owned(),
            labels: [("liqo.io/remote-cluster-id".to_owned(), provider.to_owned())].into(),
        };
        let (turin, genoa) = (node("turin"), node("genoa"));
        let moves = |offer: &PoolOffer, others: &[CandidateNode]| {
            moves_before_notice_ends(true, Some(offer), &turin, others)
        };
        let (rest, others) = (offer(true, "genoa"), [genoa]);
        assert!(moves(&rest, &others));
        assert!(
            !moves_before_notice_ends(false, Some(&rest), &turin, &others),
            "it may run only once"
        );
        assert!(!moves(&rest, &[]), "genoa takes no new pods");
        assert!(
            !moves(&offer(true, "turin"), &others),
            "genoa is not of its pool, or nothing is decided yet"
        );
        assert!(!moves_before_notice_ends(true, None, &turin, &others));
        // The consumer has its own notice.
        let end = "2026-01-01T00:00:00Z".parse().ok();
        for leaving in [
            PoolOffer {
                withdrawal: end,
                ..rest.clone()
            },
            PoolOffer {
                reclaim: end,
                ..rest.clone()
            },
        ] {
            assert!(!moves(&leaving, &others));
        }
    }

    #[test]
    fn the_offloading_ends_after_the_pods() {
        let terms = borrowed_pool_terms(&[offer(true, "turin")]);
        let ours = live(&terms, |_| {});
        assert_eq!(
            offloading_change(NAMESPACE, Some(&ours), &[], || true),
            OffloadingChange::Nothing
        );
        assert_eq!(
            offloading_change(NAMESPACE, Some(&ours), &[], || false),
            OffloadingChange::Delete
        );
        let leaving = live(&terms, |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        assert_eq!(
            offloading_change(NAMESPACE, Some(&leaving), &terms, || false),
            OffloadingChange::Nothing
        );
    }

    #[test]
    fn a_namespace_that_a_person_offloaded_is_not_brokered() {
        let terms = borrowed_pool_terms(&[offer(true, "turin")]);
        assert!(is_brokered(&live(&terms, |_| {})));
        assert!(!is_brokered(&live(
            &terms,
            |object| object["metadata"]["labels"] = json!({})
        )));
    }

    #[test]
    fn a_namespace_of_a_user_that_the_working_mode_offloaded_is_not_brokered() {
        let tethered = json!({ "liqo.io/managed": "true", "liqo.io/tethered": "true" });
        assert!(!is_brokered(&live(
            &[],
            |object| object["metadata"]["labels"] = tethered
        )));
        let other = json!({ "liqo.io/managed": "true", "liqo.io/tethered": "" });
        assert!(is_brokered(&live(
            &[],
            |object| object["metadata"]["labels"] = other
        )));
    }
}
