//! Providers none of whose nodes has room for a new pod, as their offers say: the admission webhook
//! keeps the pod off them.

use std::collections::BTreeMap;

use liqo_api::{PodOffloadingStrategy, labels, short_on_largest_node};
use liqo_quantity::{ResourceList, Shortage};
use serde_json::Value;

use crate::node::priced::{PricedNode, default_charge_of_json};
use crate::pod::controller::OwningController;
use crate::pod::preference::marker_requirement;
use crate::pod::scheduling::{must_leave, named_node};
use crate::views::{PodView, TermView};

/// A warning names at most this many clusters.
const MAX_NAMED: usize = 3;

/// A provider none of whose nodes has room for the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct FullCluster<'a> {
    pub cluster_id: &'a str,
    /// Name of its first virtual node.
    node: &'a str,
    /// Resources that are short on its largest node.
    short: Vec<Shortage>,
}

/// The clusters without room for a new pod now.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterRoom<'a> {
    full: Vec<FullCluster<'a>>,
    /// Whether the pod is not kept off these: it can run in no other cluster, or could not be
    /// brought back.
    waits: bool,
}

impl<'a> ClusterRoom<'a> {
    /// `nodes` are the virtual nodes that the pod's namespace selects. A cluster has room if one of
    /// its nodes does, or does not say what its nodes have.
    pub fn for_pod(pod: &Value, strategy: PodOffloadingStrategy, nodes: &[&'a PricedNode]) -> Self {
        let is_known = nodes.iter().any(|node| !node.largest_pods.is_empty());
        let Some(amounts) = default_charge_of_json(pod)
            .filter(|_| is_known && strategy != PodOffloadingStrategy::Local)
        else {
            return Self::default();
        };
        let wanted: Vec<&PricedNode> = nodes
            .iter()
            .copied()
            .filter(|node| matches_selector(pod, node))
            .collect();
        // A host name may be that of a virtual node.
        let selects_virtual_node = own_node_selector(pod)
            .any(|(key, _)| OF_VIRTUAL_NODES.contains(&key.as_str()) || key == HOSTNAME);
        let must_leave = must_leave(pod) || (!wanted.is_empty() && selects_virtual_node);
        let may_stay =
            strategy == PodOffloadingStrategy::LocalAndRemote && !must_leave && !has_own_terms(pod);
        let room = Self::for_amounts(&amounts, &wanted, may_stay);
        // What keeps a pod off a cluster cannot be taken back. Only a pod that is created again at
        // no cost gets it.
        let is_bound =
            !OwningController::of_pod(pod).is_some_and(|controller| controller.recreates_pods());
        Self {
            waits: room.waits || (is_bound && !room.full.is_empty()),
            ..room
        }
    }

    /// The same for a pod that wants all of these nodes.
    fn for_amounts(amounts: &ResourceList, nodes: &[&'a PricedNode], may_stay: bool) -> Self {
        let mut clusters: BTreeMap<&str, Option<FullCluster>> = BTreeMap::new();
        for node in nodes {
            let cluster_id = node.cluster_id();
            let full = node
                .largest_pods
                .may_have_room(amounts)
                .err()
                .map(|short| FullCluster {
                    cluster_id,
                    node: &node.name,
                    short,
                });
            let known = clusters.entry(cluster_id).or_insert_with(|| full.clone());
            if full.is_none() {
                *known = None;
            }
        }
        let waits = !may_stay && clusters.values().all(Option::is_some);
        Self {
            full: clusters.into_values().flatten().collect(),
            waits,
        }
    }

    /// The clusters (IDs) to keep the pod off. Otherwise it waits where the scheduler sends it: it
    /// is admitted as soon as a node there has room.
    pub fn avoided_clusters(&self) -> impl Iterator<Item = &'a str> {
        self.full
            .iter()
            .filter(|_| !self.waits)
            .map(|one| one.cluster_id)
    }

    /// For the person who creates the pod.
    pub fn warning(&self) -> Option<String> {
        if self.full.is_empty() {
            return None;
        }
        let named: Vec<String> = self
            .full
            .iter()
            .take(MAX_NAMED)
            .map(|one| format!("{} ({})", one.node, short_on_largest_node(&one.short)))
            .collect();
        let more = self.full.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let named = named.join(", ");
        Some(if self.waits {
            format!("the pod waits for room: no node has enough at {named}{more}")
        } else {
            format!("the pod is kept off clusters where no node has room for it now: {named}{more}")
        })
    }
}

/// Whether the user says which nodes the pod needs, by terms that we do not understand: they may
/// select virtual nodes only. What we added has our mark.
fn has_own_terms(pod: &Value) -> bool {
    let terms = PodView::of(pod).spec().affinity().required_terms();
    !terms.is_empty()
        && !terms.iter().any(|term| {
            TermView::of(term)
                .match_expressions()
                .contains(&marker_requirement())
        })
}

const HOSTNAME: &str = "kubernetes.io/hostname";
/// Labels that only virtual nodes have.
const OF_VIRTUAL_NODES: [&str; 3] = [labels::TYPE, labels::REMOTE_CLUSTER_ID, labels::POOL];

/// The pod's own node selector. Its affinity is not looked at: it may contain what we added because
/// of the room that there was.
fn own_node_selector(pod: &Value) -> impl Iterator<Item = (&String, &str)> {
    let selector = PodView::of(pod).spec().node_selector();
    selector
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
}

fn matches_selector(pod: &Value, node: &PricedNode) -> bool {
    named_node(pod).is_none()
        && own_node_selector(pod)
            .all(|(key, value)| node.labels.get(key).is_some_and(|own| own == value))
}

#[cfg(test)]
mod burst;

#[cfg(test)]
mod tests {
    use PodOffloadingStrategy::{Local, LocalAndRemote, Remote};
    use serde_json::json;

    use super::*;
    use crate::node::priced::tests::node;

    fn with_room(name: &str, largest: &str) -> PricedNode {
        PricedNode {
            largest_pods: serde_json::from_str(largest).unwrap(),
            ..node(name, None)
        }
    }

    fn pod(cpu: &str, selector: &Value) -> Value {
        let container =
            json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": "64Mi" } } });
        json!({ "metadata": { "ownerReferences": [{ "kind": "ReplicaSet", "uid": "o", "controller": true }] },
            "spec": { "containers": [container], "nodeSelector": selector } })
    }

    fn avoided(room: &ClusterRoom) -> Vec<String> {
        room.avoided_clusters().map(str::to_owned).collect()
    }

    const SMALL: &str = r#"[{"cpu":"1143m","memory":"1Gi","pods":"1"}]"#;
    const LARGE: &str =
        r#"[{"cpu":"8","memory":"1Gi","pods":"1"},{"cpu":"1","memory":"9Gi","pods":"1"}]"#;

    #[test]
    fn a_pod_is_kept_off_a_cluster_none_of_whose_nodes_has_room_and_its_creator_learns_why() {
        let (milan, turin, old) = (
            with_room("milan", SMALL),
            with_room("turin", LARGE),
            with_room("old", "[]"),
        );
        let pod = pod("2300m", &json!({}));
        for strategy in [LocalAndRemote, Remote] {
            let room = ClusterRoom::for_pod(&pod, strategy, &[&milan, &turin, &old]);
            assert_eq!(
                avoided(&room),
                ["id-of-milan"],
                "a provider of an earlier version says nothing"
            );
            assert_eq!(
                room.warning().unwrap(),
                "the pod is kept off clusters where no node has room for it now: milan (cpu: 1157m short (2300m requested, \
                 1143m available) on the largest node)"
            );
        }
        assert_eq!(
            ClusterRoom::for_pod(&pod, Local, &[&milan]),
            ClusterRoom::default()
        );
    }

    #[test]
    fn a_cluster_has_room_if_one_of_its_pools_has() {
        let (small, mut large) = (with_room("milan", SMALL), with_room("milan-large", LARGE));
        large.labels.insert(
            labels::REMOTE_CLUSTER_ID.to_owned(),
            "id-of-milan".to_owned(),
        );
        for nodes in [[&small, &large], [&large, &small]] {
            assert_eq!(
                ClusterRoom::for_pod(&pod("2300m", &json!({})), LocalAndRemote, &nodes),
                ClusterRoom::default()
            );
        }
    }

    #[test]
    fn a_pod_that_can_run_nowhere_else_waits_and_says_so() {
        let (milan, turin) = (with_room("milan", SMALL), with_room("turin", SMALL));
        let pinned = json!({ "kubernetes.io/hostname": "milan" });
        let virtual_node = json!({ "liqo.io/type": "virtual-node" });
        for (strategy, selector) in [
            (Remote, json!({})),
            (LocalAndRemote, pinned),
            (LocalAndRemote, virtual_node),
        ] {
            let room = ClusterRoom::for_pod(&pod("2300m", &selector), strategy, &[&milan, &turin]);
            assert_eq!(avoided(&room), Vec::<String>::new(), "{selector}");
            let warning = room.warning().unwrap();
            assert!(
                warning.starts_with(
                    "the pod waits for room: no node has enough at milan (cpu: 1157m short"
                ),
                "{warning}"
            );
        }
        assert_eq!(
            avoided(&ClusterRoom::for_pod(
                &pod("2300m", &json!({})),
                LocalAndRemote,
                &[&milan, &turin]
            ))
            .len(),
            2
        );
    }

    #[test]
    fn only_a_pod_that_is_created_again_and_says_nothing_of_nodes_itself_is_kept_off_for_good() {
        let (milan, turin) = (with_room("milan", SMALL), with_room("turin", SMALL));
        let avoids = |change: Value| {
            let mut pod = pod("2300m", &json!({}));
            json_patch::merge(&mut pod, &change);
            avoided(&ClusterRoom::for_pod(
                &pod,
                LocalAndRemote,
                &[&milan, &turin],
            ))
            .len()
        };
        let required = |expressions: Value| {
            let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": expressions }] });
            json!({ "spec": { "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } } } })
        };
        let region = json!({ "key": "region", "operator": "In", "values": ["eu"] });
        assert_eq!(avoids(json!({})), 2);
        assert_eq!(
            avoids(required(json!([marker_requirement(), region]))),
            2,
            "that is our own"
        );
        assert_eq!(
            avoids(required(json!([region]))),
            0,
            "maybe only virtual nodes are there"
        );
        for owner in [
            json!(null),
            json!([{ "kind": "Job", "uid": "o", "controller": true }]),
        ] {
            assert_eq!(
                avoids(json!({ "metadata": { "ownerReferences": owner } })),
                0
            );
        }
    }

    #[test]
    fn a_node_that_the_pod_does_not_want_does_not_matter() {
        let (milan, turin) = (with_room("milan", SMALL), with_room("turin", LARGE));
        let room = ClusterRoom::for_pod(
            &pod("2300m", &json!({ "kubernetes.io/hostname": "turin" })),
            Remote,
            &[&milan, &turin],
        );
        assert_eq!(room, ClusterRoom::default());
    }
}
