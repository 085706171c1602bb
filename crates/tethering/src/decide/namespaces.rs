//! The namespaces of users while the cluster is tethered: their pods go to the peer, and to nobody
//! else.
//!
//! A namespace that nobody offloaded gets a `NamespaceOffloading` of Liqo's own, with the strategy
//! `Remote`. One that a person offloaded keeps that person's object: strategy and selector change,
//! and an annotation remembers what they were. Afterwards each namespace gets back what it had.
//! Everything follows from the objects and from the state, so it does not matter when this cluster
//! was switched off.

use std::collections::BTreeMap;

use liqo_api::{
    ClusterId, NamespaceOffloading, PodOffloadingStrategy, annotations::BEFORE_TETHERING, labels,
    nodes_of_peer, tethered_offloading,
};
use serde_json::{Value, json};

/// The change of the `NamespaceOffloading` of a namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum NamespaceChange {
    Nothing,
    /// Create this object.
    Create(Box<NamespaceOffloading>),
    /// Apply this merge patch.
    Patch(Value),
    Delete,
}

/// Whether Liqo created it because of the working mode.
pub fn is_ours(offloading: &NamespaceOffloading) -> bool {
    let label = offloading
        .metadata
        .labels
        .as_ref()
        .and_then(|all| all.get(labels::TETHERED));
    label.is_some_and(|value| value == "true")
}

/// Whether the working mode has changed it, or created it.
pub fn is_taken_over(offloading: &NamespaceOffloading) -> bool {
    is_ours(offloading) || former_spec(offloading).is_some()
}

/// The change to a namespace of a user. `tethered_to` is the peer that controls this cluster, if
/// one does. `has_pods_away` tells whether pods of the namespace are on virtual nodes: the end of
/// its offloading ends them.
pub fn namespace_change(
    namespace: &str,
    live: Option<&NamespaceOffloading>,
    tethered_to: Option<&ClusterId>,
    has_pods_away: impl FnOnce() -> bool,
) -> NamespaceChange {
    match (live, tethered_to) {
        (Some(live), _) if live.metadata.deletion_timestamp.is_some() => NamespaceChange::Nothing,
        (None, Some(peer)) => {
            NamespaceChange::Create(Box::new(tethered_offloading(namespace, peer)))
        }
        (Some(live), Some(peer)) => take_over(live, peer),
        (None, None) => NamespaceChange::Nothing,
        (Some(live), None) if is_ours(live) => {
            if live.spec.pod_offloading_strategy != PodOffloadingStrategy::Local {
                // New pods stay here; those that are away may come home.
                NamespaceChange::Patch(
                    json!({ "spec": { "podOffloadingStrategy": PodOffloadingStrategy::Local } }),
                )
            } else if has_pods_away() {
                NamespaceChange::Nothing
            } else {
                NamespaceChange::Delete
            }
        }
        (Some(live), None) => former_spec(live).map_or(NamespaceChange::Nothing, |before| {
            let annotations = BTreeMap::from([(BEFORE_TETHERING, Value::Null)]);
            NamespaceChange::Patch(
                json!({ "metadata": { "annotations": annotations }, "spec": before }),
            )
        }),
    }
}

fn take_over(live: &NamespaceOffloading, peer: &ClusterId) -> NamespaceChange {
    let (strategy, selected) = (
        live.spec.pod_offloading_strategy,
        json!(live.spec.cluster_selector),
    );
    let is_remembered = is_ours(live) || former_spec(live).is_some();
    if is_remembered
        && strategy == PodOffloadingStrategy::Remote
        && selected == json!(nodes_of_peer(peer))
    {
        return NamespaceChange::Nothing;
    }
    let spec = json!({ "podOffloadingStrategy": PodOffloadingStrategy::Remote, "clusterSelector": nodes_of_peer(peer) });
    if is_remembered {
        return NamespaceChange::Patch(json!({ "spec": spec }));
    }
    let before =
        json!({ "podOffloadingStrategy": strategy, "clusterSelector": selected }).to_string();
    NamespaceChange::Patch(
        json!({ "metadata": { "annotations": { (BEFORE_TETHERING): before } }, "spec": spec }),
    )
}

/// Returns the former spec of a person's object, as a merge patch. An annotation that nobody can
/// read, because somebody changed it, means the defaults: then pods may run here.
fn former_spec(live: &NamespaceOffloading) -> Option<Value> {
    let text = live.metadata.annotations.as_ref()?.get(BEFORE_TETHERING)?;
    let read: Value = serde_json::from_str(text).unwrap_or_default();
    let strategy =
        serde_json::from_value::<PodOffloadingStrategy>(read["podOffloadingStrategy"].clone())
            .unwrap_or_default();
    Some(json!({ "podOffloadingStrategy": strategy, "clusterSelector": read["clusterSelector"] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(number: u8) -> ClusterId {
        ClusterId::of_public_key(&[number; 32])
    }

    fn offloading(value: Value) -> NamespaceOffloading {
        serde_json::from_value(value).unwrap()
    }

    fn of_a_person(spec: &Value) -> Value {
        json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": "demo" }, "spec": spec })
    }

    /// The object after the change.
    fn apply(live: &Value, change: NamespaceChange) -> Value {
        let mut object = live.clone();
        match change {
            NamespaceChange::Patch(patch) => json_patch::merge(&mut object, &patch),
            other => panic!("a patch, not {other:?}"),
        }
        object
    }

    #[test]
    fn a_namespace_of_nobodys_is_offloaded_and_gets_back_to_what_it_was() {
        let milan = cluster(1);
        let NamespaceChange::Create(created) =
            namespace_change("demo", None, Some(&milan), || false)
        else {
            panic!("it is created")
        };
        assert_eq!(
            created.spec.pod_offloading_strategy,
            PodOffloadingStrategy::Remote
        );
        let (ours, created) = (*created.clone(), serde_json::to_value(created).unwrap());
        assert_eq!(
            namespace_change("demo", Some(&ours), Some(&milan), || true),
            NamespaceChange::Nothing,
            "it is settled"
        );
        let local = apply(
            &created,
            namespace_change("demo", Some(&ours), None, || true),
        );
        assert_eq!(
            local["spec"]["podOffloadingStrategy"], "Local",
            "new pods run here at once"
        );
        let local = offloading(local);
        assert_eq!(
            namespace_change("demo", Some(&local), None, || true),
            NamespaceChange::Nothing,
            "its end would end pods"
        );
        assert_eq!(
            namespace_change("demo", Some(&local), None, || false),
            NamespaceChange::Delete
        );
        assert_eq!(
            namespace_change("demo", None, None, || false),
            NamespaceChange::Nothing
        );
        // Tethered again before all pods were home, to somebody else.
        let turin = cluster(2);
        let again = apply(
            &serde_json::to_value(&local).unwrap(),
            namespace_change("demo", Some(&local), Some(&turin), || true),
        );
        assert_eq!(
            again["spec"]["clusterSelector"],
            json!(nodes_of_peer(&turin))
        );
    }

    #[test]
    fn what_a_person_offloaded_gets_back_its_strategy_and_its_selector() {
        let zone = json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] }] });
        for spec in [
            json!({}),
            json!({ "podOffloadingStrategy": "Local", "clusterSelector": zone }),
        ] {
            let before = serde_json::to_value(offloading(of_a_person(&spec))).unwrap();
            let live = offloading(before.clone());
            assert!(!is_taken_over(&live));
            let tethered = apply(
                &before,
                namespace_change("demo", Some(&live), Some(&cluster(1)), || false),
            );
            assert_eq!(tethered["spec"]["podOffloadingStrategy"], "Remote");
            let taken = offloading(tethered.clone());
            assert!(is_taken_over(&taken) && !is_ours(&taken));
            assert_eq!(
                namespace_change("demo", Some(&taken), Some(&cluster(1)), || true),
                NamespaceChange::Nothing,
                "it is settled"
            );
            let released = apply(
                &tethered,
                namespace_change("demo", Some(&taken), None, || true),
            );
            assert_eq!(offloading(released.clone()).spec, live.spec);
            assert!(!is_taken_over(&offloading(released)));
        }
    }

    #[test]
    fn only_an_object_with_the_label_of_the_mode_was_created_by_it() {
        let labelled = |labels: &Value| {
            let mut object = of_a_person(&json!({}));
            object["metadata"]["labels"] = labels.clone();
            offloading(object)
        };
        let created = labelled(&json!(
            tethered_offloading("demo", &cluster(1)).metadata.labels
        ));
        assert!(is_ours(&created));
        for other in [
            json!({}),
            json!({ "liqo.io/managed": "true" }),
            json!({ "liqo.io/tethered": "" }),
        ] {
            let live = labelled(&other);
            assert!(!is_ours(&live), "{other}");
            assert_eq!(
                namespace_change("demo", Some(&live), None, || false),
                NamespaceChange::Nothing,
                "it is not deleted: {other}"
            );
        }
    }

    #[test]
    fn a_change_by_a_person_does_not_last_and_is_not_remembered() {
        let live = offloading(of_a_person(
            &json!({ "podOffloadingStrategy": "LocalAndRemote" }),
        ));
        let before = serde_json::to_value(&live).unwrap();
        let mut tethered = apply(
            &before,
            namespace_change("demo", Some(&live), Some(&cluster(1)), || false),
        );
        tethered["spec"]["podOffloadingStrategy"] = json!("Local");
        let again = apply(
            &tethered,
            namespace_change(
                "demo",
                Some(&offloading(tethered.clone())),
                Some(&cluster(1)),
                || false,
            ),
        );
        assert_eq!(again["spec"]["podOffloadingStrategy"], "Remote");
        let released = apply(
            &again,
            namespace_change("demo", Some(&offloading(again.clone())), None, || false),
        );
        assert_eq!(released["spec"]["podOffloadingStrategy"], "LocalAndRemote");
    }

    #[test]
    fn an_annotation_that_nobody_can_read_means_the_defaults() {
        let mut spoilt = of_a_person(&json!({ "podOffloadingStrategy": "Remote" }));
        spoilt["metadata"]["annotations"] = json!({ (BEFORE_TETHERING): "{" });
        let released = apply(
            &spoilt,
            namespace_change("demo", Some(&offloading(spoilt.clone())), None, || false),
        );
        assert_eq!(
            released["spec"],
            json!({ "podOffloadingStrategy": "LocalAndRemote" })
        );
    }

    #[test]
    fn an_object_that_is_being_deleted_is_left_alone() {
        let mut leaving = of_a_person(&json!({}));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let leaving = offloading(leaving);
        for to in [None, Some(cluster(1))] {
            assert_eq!(
                namespace_change("demo", Some(&leaving), to.as_ref(), || false),
                NamespaceChange::Nothing
            );
        }
    }
}
