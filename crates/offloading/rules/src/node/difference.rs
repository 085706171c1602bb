//! Compares a live Node with the one that [`crate::node::object`] computes. Pure.

use std::collections::BTreeSet;

use liqo_api::{ClusterId, annotations, labels};
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::node::object::{NodeSpec, node, node_labels, node_status};
use crate::views::{ConditionView, NodeObjectStatusView, NodeObjectView};

/// Whether this Node is the one of that pool of that cluster. Liqo never touches other Nodes.
pub fn is_node_of_pool(live: &Value, cluster: &ClusterId, pool: &str) -> bool {
    let metadata = NodeObjectView::of(live).metadata();
    metadata.label(labels::TYPE) == Some(labels::TYPE_VIRTUAL_NODE)
        && metadata.label(labels::REMOTE_CLUSTER_ID) == Some(cluster.as_str())
        && metadata.label(labels::POOL) == Some(pool)
}

/// The Node to create, with its status, so it is Ready from the start.
pub fn new_node(spec: &NodeSpec, now: &str) -> Value {
    let mut whole = node(spec);
    let mut annotations = Map::from_iter([(
        annotations::TRAVELLED.to_owned(),
        recorded_labels(spec).into(),
    )]);
    annotations.extend(
        pool_annotations(spec)
            .into_iter()
            .filter_map(|(key, text)| Some((key.to_owned(), text?.into()))),
    );
    set_at(&mut whole, &["metadata", "annotations"], annotations);
    set_at(&mut whole, &["status"], node_status(spec, &json!({}), now));
    whole
}

/// The labels that we set. They are recorded so that those which the peer no longer advertises can
/// be removed.
fn recorded_labels(spec: &NodeSpec) -> String {
    let keys: Vec<String> = node_labels(spec).into_keys().collect();
    keys.join(",")
}

/// The annotations that describe the pool; `None` for one that the Node does not have.
fn pool_annotations(spec: &NodeSpec) -> [(&'static str, Option<String>); 2] {
    let largest = Some(spec.largest_pods).filter(|largest| !largest.is_empty());
    [
        (
            annotations::PRICES,
            spec.prices
                .and_then(|prices| serde_json::to_string(prices).ok()),
        ),
        (
            annotations::LARGEST_PODS,
            largest.and_then(|largest| serde_json::to_string(largest).ok()),
        ),
    ]
}

/// A merge patch for the labels and annotations of a live Node; `None` if they are right. Those of
/// others stay.
pub fn metadata_patch(spec: &NodeSpec, live: &Value) -> Option<Value> {
    let wanted = node_labels(spec);
    let metadata = NodeObjectView::of(live).metadata();
    let record = recorded_labels(spec);
    let before = metadata.annotation(annotations::TRAVELLED);
    let described = pool_annotations(spec)
        .into_iter()
        .filter(|(key, text)| metadata.annotation(key) != text.as_deref());
    let described: Map<String, Value> = described
        .map(|(key, text)| (key.to_owned(), text.map_or(Value::Null, Value::from)))
        .collect();
    let mut changes: Map<String, Value> = wanted
        .iter()
        .filter(|(key, value)| metadata.label(key) != Some(value.as_str()))
        .map(|(key, value)| (key.clone(), value.as_str().into()))
        .collect();
    let gone = before
        .unwrap_or_default()
        .split(',')
        .filter(|key| !wanted.contains_key(*key) && metadata.label(key).is_some());
    changes.extend(gone.map(|key| (key.to_owned(), Value::Null)));
    if changes.is_empty() && before == Some(record.as_str()) && described.is_empty() {
        return None;
    }
    let mut annotations = Map::from_iter([(annotations::TRAVELLED.to_owned(), record.into())]);
    annotations.extend(described);
    Some(json!({ "metadata": { "labels": changes, "annotations": annotations } }))
}

/// A strategic merge patch for the status of a live Node; `None` if it is right.
pub fn status_patch(spec: &NodeSpec, live: &Value, now: &str) -> Option<Value> {
    let wanted = node_status(spec, live, now);
    let (live, whole) = (
        NodeObjectView::of(live).status(),
        NodeObjectStatusView::of(&wanted),
    );
    let mut changes = Map::new();
    for field in ["capacity", "allocatable"] {
        let standing = live.json().get(field);
        if standing != wanted.get(field) {
            changes.insert(field.into(), amount_changes(wanted.get(field), standing));
        }
    }
    for field in ["daemonEndpoints", "nodeInfo"] {
        // The API server adds fields of its own.
        let standing = live.json().get(field).unwrap_or(&Value::Null);
        let wanted = wanted.get(field).unwrap_or(&Value::Null);
        if !contains_fields(standing, wanted) {
            changes.insert(field.into(), wanted.clone());
        }
    }
    let standing: BTreeSet<String> = live.addresses().iter().map(Value::to_string).collect();
    let addresses: BTreeSet<String> = whole.addresses().iter().map(Value::to_string).collect();
    if standing != addresses {
        changes.insert("addresses".into(), whole.addresses().into());
    }
    let conditions: Vec<Value> = whole
        .conditions()
        .map(ConditionView::json)
        .filter(|one| {
            !live
                .conditions()
                .any(|standing| contains_fields(standing.json(), one))
        })
        .cloned()
        .collect();
    if !conditions.is_empty() {
        changes.insert("conditions".into(), conditions.into());
    }
    (!changes.is_empty()).then(|| json!({ "status": changes }))
}

/// The amounts, and null for resources that no longer exist.
fn amount_changes(wanted: Option<&Value>, standing: Option<&Value>) -> Value {
    let mut all = wanted
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    for (resource, _) in standing.and_then(Value::as_object).into_iter().flatten() {
        all.entry(resource.clone()).or_insert(Value::Null);
    }
    all.into()
}

fn contains_fields(standing: &Value, wanted: &Value) -> bool {
    match (standing, wanted) {
        (Value::Object(standing), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            contains_fields(standing.get(key).unwrap_or(&Value::Null), wanted)
        }),
        _ => standing == wanted,
    }
}

/// The lowest free port from `first` on.
pub fn free_port(first: u16, taken: &BTreeSet<u16>) -> Option<u16> {
    (first..=u16::MAX).find(|port| !taken.contains(port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{provider, with_node_spec as with};
    use crate::json::items_at;
    use crate::node::object::Outage;
    use liqo_api::PriceList;

    fn created(peer_labels: &[(&str, &str)]) -> Value {
        with(peer_labels, Outage::None, |spec| new_node(spec, "t1"))
    }

    fn is_ready(live: &Value) -> bool {
        let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        items_at(live, "/status/conditions").iter().any(ready)
    }

    #[test]
    fn a_new_node_is_ready_and_needs_nothing_more() {
        let live = created(&[("zone", "a")]);
        assert!(is_ready(&live) && is_node_of_pool(&live, &provider(), "default"));
        with(&[("zone", "a")], Outage::None, |spec| {
            assert_eq!(metadata_patch(spec, &live), None);
            assert_eq!(status_patch(spec, &live, "t2"), None);
        });
    }

    #[test]
    fn what_the_api_server_adds_is_no_difference() {
        let mut live = created(&[]);
        live["status"]["nodeInfo"]["swap"] = json!({"capacity": 0});
        live["metadata"]["labels"]["added-by"] = json!("somebody");
        live["status"]["conditions"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "Theirs", "status": "True"}));
        with(&[], Outage::None, |spec| {
            assert_eq!(metadata_patch(spec, &live), None);
            assert_eq!(status_patch(spec, &live, "t2"), None);
        });
    }

    #[test]
    fn labels_that_the_peer_no_longer_advertises_go_and_those_of_others_stay() {
        let mut live = created(&[("zone", "a"), ("gpu", "yes")]);
        live["metadata"]["labels"]["added-by"] = json!("somebody");
        let patch = with(&[("zone", "b")], Outage::None, |spec| {
            metadata_patch(spec, &live)
        })
        .unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"zone": "b", "gpu": null})
        );
        json_patch::merge(&mut live, &patch);
        assert_eq!(
            with(&[("zone", "b")], Outage::None, |spec| metadata_patch(
                spec, &live
            )),
            None
        );
        assert_eq!(live["metadata"]["labels"]["added-by"], "somebody");
    }

    #[test]
    fn prices_are_written_when_they_change_and_removed_with_their_labels() {
        let list = |cpu: &str| {
            let value = json!({"currency": "EUR", "rates": {"cpu": cpu}});
            serde_json::from_value::<PriceList>(value).unwrap()
        };
        let patched = |live: &Value, prices: Option<&PriceList>| {
            with(&[], Outage::None, |spec| {
                metadata_patch(
                    &NodeSpec {
                        prices,
                        ..spec.clone()
                    },
                    live,
                )
            })
        };
        let prices = list("0.04");
        let mut live = with(&[], Outage::None, |spec| {
            new_node(
                &NodeSpec {
                    prices: Some(&prices),
                    ..spec.clone()
                },
                "t1",
            )
        });
        assert_eq!(
            live["metadata"]["annotations"]["liqo.io/prices"],
            r#"{"currency":"EUR","rates":{"cpu":"0.04"}}"#
        );
        assert_eq!(patched(&live, Some(&prices)), None);
        let patch = patched(&live, Some(&list("0.05"))).unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"price.liqo.io/cpu": "0.05"})
        );
        json_patch::merge(&mut live, &patch);
        assert_eq!(
            live["metadata"]["annotations"]["liqo.io/prices"],
            r#"{"currency":"EUR","rates":{"cpu":"0.05"}}"#
        );
        let patch = patched(&live, None).unwrap();
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"price.liqo.io/cpu": null, "price.liqo.io/currency": null})
        );
        assert_eq!(
            patch["metadata"]["annotations"]["liqo.io/prices"],
            Value::Null
        );
        json_patch::merge(&mut live, &patch);
        assert_eq!(patched(&live, None), None);
    }

    #[test]
    fn what_the_largest_nodes_have_is_written_when_it_changes_and_removed_when_it_is_unknown() {
        let patched = |live: &Value, largest: &str| {
            let largest_pods = &serde_json::from_str(largest).unwrap();
            with(&[], Outage::None, |spec| {
                metadata_patch(
                    &NodeSpec {
                        largest_pods,
                        ..spec.clone()
                    },
                    live,
                )
            })
        };
        let (mut live, said) = (created(&[]), r#"[{"cpu":"1719m","pods":"1"}]"#);
        let patch = patched(&live, said).unwrap();
        json_patch::merge(&mut live, &patch);
        assert_eq!(
            (
                &live["metadata"]["annotations"]["liqo.io/largest-pods"],
                patched(&live, said)
            ),
            (&json!(said), None)
        );
        assert_eq!(
            patched(&live, "[]").unwrap()["metadata"]["annotations"]["liqo.io/largest-pods"],
            Value::Null
        );
    }

    #[test]
    fn the_node_follows_the_offer() {
        let mut live = created(&[]);
        live["status"]["capacity"] = json!({"cpu": "3", "memory": "1Gi", "gpus": "1"});
        live["status"]["allocatable"] = json!({"cpu": "3", "memory": "1Gi"});
        let patch = with(&[], Outage::None, |spec| status_patch(spec, &live, "t2")).unwrap();
        assert_eq!(
            patch,
            json!({"status": {"capacity": {"cpu": "2", "memory": "1Gi", "gpus": null}, "allocatable": {"cpu": "2", "memory": "1Gi"}}})
        );
    }

    #[test]
    fn an_outage_changes_only_the_conditions_that_speak_of_it() {
        let kinds = |outage| {
            let patch = with(&[], outage, |spec| status_patch(spec, &created(&[]), "t2")).unwrap();
            let conditions = patch["status"]["conditions"].as_array().cloned().unwrap();
            assert_eq!(patch["status"].as_object().unwrap().len(), 1);
            conditions
                .iter()
                .map(|one| one["type"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(Outage::Suspected), ["PeerReachable"]);
        assert_eq!(kinds(Outage::Down), ["Ready", "PeerReachable"]);
    }

    #[test]
    fn a_node_that_kubernetes_declared_unknown_is_declared_ready_again() {
        let mut live = created(&[]);
        for condition in live["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = json!("Unknown");
            condition["reason"] = json!("NodeStatusUnknown");
        }
        assert!(!is_ready(&live));
        let patch = with(&[], Outage::None, |spec| status_patch(spec, &live, "t2")).unwrap();
        assert_eq!(patch["status"]["conditions"][0]["status"], "True");
    }

    #[test]
    fn a_node_of_somebody_else_is_not_ours() {
        let live = created(&[]);
        assert!(!is_node_of_pool(
            &live,
            &ClusterId::of_public_key(&[3; 32]),
            "default"
        ));
        assert!(!is_node_of_pool(&live, &provider(), "other"));
        assert!(!is_node_of_pool(
            &json!({"metadata": {"name": "milan"}}),
            &provider(),
            "default"
        ));
    }

    #[test]
    fn every_virtual_node_gets_a_port_of_its_own() {
        assert_eq!(free_port(20250, &BTreeSet::new()), Some(20250));
        assert_eq!(free_port(20250, &[20250, 20251, 20253].into()), Some(20252));
        assert_eq!(free_port(u16::MAX, &[u16::MAX].into()), None);
    }
}
