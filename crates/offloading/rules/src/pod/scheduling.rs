//! Decides where the pods of an offloaded namespace may be scheduled: the patch that the admission
//! webhook applies to a new pod.
//!
//! Virtual nodes have a taint, so unchanged pods stay at home. A pod that may leave gets the
//! toleration, and a node affinity if the namespace's strategy or selector restricts it. A pod that
//! can run in no other cluster is kept off virtual nodes, whatever it tolerates. Our terms add to
//! the user's: the terms of a node selector are alternatives, so every term of the user's is
//! combined with every term of ours.

use liqo_api::{PodOffloadingStrategy, labels, pods};
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::pod::carry::PodRefusal;
use crate::pod::carry::obstacle::pod_obstacle;
use crate::pod::preference::marker_requirement;
use crate::views::{
    AffinityView, NamedView, PatchView, PodView, REQUIRED_TERMS, RequirementView, TermView,
    TolerationView,
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct NewPodPlacement {
    /// JSON patch operations; empty if the pod needs no change.
    pub patch: Vec<Value>,
    /// The reason why the pod stays in this cluster, whatever its namespace says; `None` if it may
    /// leave.
    pub obstacle: Option<PodRefusal>,
    /// Whether the pod may run at a provider.
    pub may_leave: bool,
    /// Another warning for the person who creates the pod: about room at providers, or about the
    /// node that the pod names.
    pub caution: Option<String>,
}

impl NewPodPlacement {
    /// For the person who creates the pod.
    pub fn warning(&self) -> Option<String> {
        let obstacle = self
            .obstacle
            .as_ref()
            .map(|obstacle| format!("the pod runs in this cluster only: {obstacle}"));
        obstacle.or_else(|| self.caution.clone())
    }

    /// Whether Kubernetes lets the patch be applied to a pod while the scheduler waits for a gate:
    /// a required term may grow, and none may be added to those that the pod has.
    pub fn fits_held_back(&self, pod: &Value) -> bool {
        let before = required_terms(pod).len();
        let affinity = self
            .patch
            .iter()
            .map(PatchView::of)
            .find(|operation| operation.path() == Some(AFFINITY))
            .and_then(PatchView::value);
        let after = affinity.map(|affinity| AffinityView::of(affinity).required_terms().len());
        before == 0 || after.is_none_or(|after| after == before)
    }

    /// Whether Kubernetes would let the patch be applied to a pod that exists.
    pub fn adds_only_a_toleration(&self) -> bool {
        self.patch.iter().all(adds_toleration)
    }
}

const TOLERATIONS: &str = "/spec/tolerations";
const AFFINITY: &str = "/spec/affinity";

/// Whether an operation of a JSON patch is about tolerations.
fn adds_toleration(operation: &Value) -> bool {
    let path = PatchView::of(operation).path();
    path.is_some_and(|path| path.starts_with(TOLERATIONS))
}

/// The terms one of which the node of a pod must match.
fn required_terms(pod: &Value) -> &[Value] {
    PodView::of(pod).spec().affinity().required_terms()
}

fn pod_tolerations(pod: &Value) -> &[Value] {
    PodView::of(pod).spec().tolerations().unwrap_or_default()
}

/// Computes the change to a new pod of a namespace with this strategy and these selected clusters
/// (the `nodeSelectorTerms` of its `clusterSelector`; `None` means all clusters). It must not be
/// sent to the `avoided` clusters (IDs).
///
/// A second run changes nothing.
pub fn place_pod(
    pod: &Value,
    strategy: PodOffloadingStrategy,
    selector: Option<&[Value]>,
    avoided: &[&str],
) -> NewPodPlacement {
    if strategy == PodOffloadingStrategy::Local || named_node(pod).is_some() {
        return NewPodPlacement::default();
    }
    if let Some(obstacle) = pod_obstacle(pod) {
        let patch = require_terms(pod, &[local_nodes_term()])
            .into_iter()
            .collect();
        return NewPodPlacement {
            patch,
            obstacle: Some(obstacle),
            ..NewPodPlacement::default()
        };
    }
    let remote = remote_terms(selector, avoided);
    let wanted = match strategy {
        PodOffloadingStrategy::Remote if remote.is_empty() => vec![no_node_term()],
        PodOffloadingStrategy::Remote => remote,
        _ if selector.is_none_or(<[Value]>::is_empty) && avoided.is_empty() => Vec::new(),
        _ => [vec![local_nodes_term()], remote].concat(),
    };
    let patch = toleration_patch(pod)
        .into_iter()
        .chain(require_terms(pod, &wanted))
        .collect();
    NewPodPlacement {
        patch,
        may_leave: true,
        ..NewPodPlacement::default()
    }
}

/// The change to a new pod that names this virtual node itself, so that no scheduler looks at it:
/// without a toleration, Kubernetes deletes it at once. `closed` says why no new pod of its
/// namespace may go there, if so.
pub fn place_on_named_node(pod: &Value, node: &str, closed: Option<&str>) -> NewPodPlacement {
    if pod_tolerations(pod).iter().any(tolerates_virtual_nodes) {
        return NewPodPlacement::default();
    }
    let refusal = pod_obstacle(pod).map(|obstacle| obstacle.message);
    let Some(why) = closed.or(refusal.as_deref()) else {
        return NewPodPlacement {
            patch: toleration_patch(pod).into_iter().collect(),
            may_leave: true,
            ..NewPodPlacement::default()
        };
    };
    let caution = format!("the pod names the node {node}, so Kubernetes deletes it at once: {why}");
    NewPodPlacement {
        caution: Some(caution),
        ..NewPodPlacement::default()
    }
}

/// The node that a pod names itself.
pub fn named_node(pod: &Value) -> Option<&str> {
    let node = PodView::of(pod).spec().node_name();
    node.filter(|node| !node.is_empty())
}

/// The same for a pod that no other cluster gets now: it lacks the toleration for virtual nodes,
/// which Kubernetes lets us add later. A pod that has it by itself stays at home if it may run
/// there; otherwise the virtual node does not send it.
pub fn place_without_toleration(
    pod: &Value,
    strategy: PodOffloadingStrategy,
    mut placed: NewPodPlacement,
) -> NewPodPlacement {
    if !placed.may_leave {
        return placed;
    }
    placed.patch.retain(|operation| !adds_toleration(operation));
    if strategy == PodOffloadingStrategy::LocalAndRemote
        && pod_tolerations(pod).iter().any(tolerates_virtual_nodes)
    {
        placed.patch = require_terms(pod, &[local_nodes_term()])
            .into_iter()
            .collect();
    }
    placed
}

const GATES: &str = "/spec/schedulingGates";

/// The change to a new pod whose namespace has no strategy yet, and will have one: the scheduler
/// waits until the manager removes the gate. A pod that can run in no other cluster need not wait.
pub fn hold_back(pod: &Value) -> NewPodPlacement {
    if named_node(pod).is_some() || is_held_back(pod) {
        return NewPodPlacement::default();
    }
    if let Some(obstacle) = pod_obstacle(pod) {
        let patch = require_terms(pod, &[local_nodes_term()])
            .into_iter()
            .collect();
        return NewPodPlacement {
            patch,
            obstacle: Some(obstacle),
            ..NewPodPlacement::default()
        };
    }
    let gate = json!({"name": pods::OFFLOADING_GATE});
    let gates = PodView::of(pod).spec().scheduling_gates();
    let (path, value) = if gates.is_some() {
        (format!("{GATES}/-"), gate)
    } else {
        (GATES.to_owned(), json!([gate]))
    };
    NewPodPlacement {
        patch: vec![json!({"op": "add", "path": path, "value": value})],
        ..NewPodPlacement::default()
    }
}

/// Whether the pod waits for the strategy of its namespace.
pub fn is_held_back(pod: &Value) -> bool {
    gate_position(pod).is_some()
}

fn gate_position(pod: &Value) -> Option<usize> {
    let gates = PodView::of(pod).spec().scheduling_gates()?;
    gates
        .iter()
        .position(|gate| NamedView::of(gate).name() == Some(pods::OFFLOADING_GATE))
}

/// The change to a pod that was held back, and now goes where `placement` says: JSON patch
/// operations, which fail if another pod has its name by now, or if its gates changed. Kubernetes
/// lets requirements be added until the gate is gone.
pub fn release_operations(pod: &Value, uid: &str, placement: &NewPodPlacement) -> Vec<Value> {
    let Some(position) = gate_position(pod) else {
        return Vec::new();
    };
    let gate = format!("{GATES}/{position}");
    let checks = [
        json!({"op": "test", "path": "/metadata/uid", "value": uid}),
        json!({"op": "test", "path": format!("{gate}/name"), "value": pods::OFFLOADING_GATE}),
    ];
    let removal = json!({"op": "remove", "path": gate});
    checks
        .into_iter()
        .chain(placement.patch.iter().cloned())
        .chain([removal])
        .collect()
}

/// As Kubernetes compares a toleration with the taint of virtual nodes.
fn tolerates_virtual_nodes(toleration: &Value) -> bool {
    let toleration = TolerationView::of(toleration);
    let key = toleration.key();
    let is_meant =
        key == pods::VIRTUAL_NODE_TAINT || (key.is_empty() && toleration.operator() == "Exists");
    is_meant && ["", "NoExecute"].contains(&toleration.effect())
}

fn node_requirement(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn local_nodes_term() -> Value {
    json!({"matchExpressions": [node_requirement(labels::TYPE, "NotIn", &[labels::TYPE_VIRTUAL_NODE])]})
}

/// A term that matches no node, for a selector that selects no cluster.
fn no_node_term() -> Value {
    let contradiction = ["In", "NotIn"]
        .map(|operator| node_requirement(labels::TYPE, operator, &[labels::TYPE_VIRTUAL_NODE]));
    json!({"matchExpressions": contradiction})
}

fn remote_terms(selector: Option<&[Value]>, avoided: &[&str]) -> Vec<Value> {
    let virtual_node = node_requirement(labels::TYPE, "In", &[labels::TYPE_VIRTUAL_NODE]);
    let elsewhere = (!avoided.is_empty()).then(|| {
        [
            marker_requirement(),
            node_requirement(labels::REMOTE_CLUSTER_ID, "NotIn", avoided),
        ]
    });
    let expressions: Vec<Value> = [virtual_node]
        .into_iter()
        .chain(elsewhere.into_iter().flatten())
        .collect();
    let any = json!({"matchExpressions": expressions});
    match selector {
        None | Some([]) => vec![any],
        Some(terms) => terms
            .iter()
            .filter(|term| has_requirements(term))
            .map(|term| combined_term(&any, term))
            .collect(),
    }
}

/// Whether a pod must not run at a cluster only because [`place_pod`] kept it off when it was new:
/// the `avoided` clusters (IDs) are those that it would keep a new pod off.
pub fn avoids_needlessly(pod: &Value, avoided: &[&str]) -> bool {
    let expressions = required_terms(pod)
        .iter()
        .map(|term| TermView::of(term).match_expressions());
    // What the user wrote does not follow our mark: it would be in the next pod, too.
    let ours = expressions
        .flat_map(|all| all.iter().zip(all.iter().skip(1).map(RequirementView::of)))
        .filter(|(before, one)| {
            **before == marker_requirement()
                && one.key() == Some(labels::REMOTE_CLUSTER_ID)
                && one.operator() == Some("NotIn")
        });
    let mut named = ours.flat_map(|(_, one)| one.values());
    named.any(|id| id.as_str().is_some_and(|id| !avoided.contains(&id)))
}

/// Whether a pod can run on virtual nodes only.
pub fn must_leave(pod: &Value) -> bool {
    let virtual_node = node_requirement(labels::TYPE, "In", &[labels::TYPE_VIRTUAL_NODE]);
    let terms = required_terms(pod);
    !terms.is_empty()
        && terms.iter().all(|term| {
            TermView::of(term)
                .match_expressions()
                .contains(&virtual_node)
        })
}

/// In Kubernetes a term without requirements matches no node.
fn has_requirements(term: &Value) -> bool {
    PARTS
        .iter()
        .any(|part| !term_requirements(term, part).is_empty())
}

const PARTS: [&str; 2] = ["matchExpressions", "matchFields"];

fn term_requirements<'a>(term: &'a Value, part: &str) -> &'a [Value] {
    term.get(part)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn combined_term(one: &Value, other: &Value) -> Value {
    let mut term = Map::new();
    for part in PARTS {
        let joined = [term_requirements(one, part), term_requirements(other, part)].concat();
        if !joined.is_empty() {
            term.insert(part.to_owned(), joined.into());
        }
    }
    term.into()
}

fn implies_term(term: &Value, wanted: &Value) -> bool {
    PARTS.iter().all(|part| {
        term_requirements(wanted, part)
            .iter()
            .all(|wanted| term_requirements(term, part).contains(wanted))
    })
}

/// The operation that makes the pod require one of the wanted terms, in addition to its own
/// requirements.
fn require_terms(pod: &Value, wanted: &[Value]) -> Option<Value> {
    if wanted.is_empty() {
        return None;
    }
    let theirs = required_terms(pod);
    let terms = if theirs.is_empty() {
        wanted.to_vec()
    } else {
        // Drop terms that match no node: combined with ours they would match.
        let theirs: Vec<&Value> = theirs
            .iter()
            .filter(|term| has_requirements(term))
            .collect();
        if theirs
            .iter()
            .all(|term| wanted.iter().any(|wanted| implies_term(term, wanted)))
        {
            return None;
        }
        theirs
            .iter()
            .flat_map(|term| wanted.iter().map(|wanted| combined_term(term, wanted)))
            .collect()
    };
    let mut affinity = PodView::of(pod).spec().affinity().json().clone();
    set_at(
        &mut affinity,
        &["nodeAffinity", REQUIRED_TERMS],
        json!({"nodeSelectorTerms": terms}),
    );
    Some(json!({"op": "add", "path": AFFINITY, "value": affinity}))
}

/// The tolerations of a pod, with the one for virtual nodes.
pub fn tolerations_with_ours(pod: &Value) -> Vec<Value> {
    let theirs = pod_tolerations(pod);
    let ours = Some(virtual_node_toleration()).filter(|ours| !theirs.contains(ours));
    theirs.iter().cloned().chain(ours).collect()
}

fn virtual_node_toleration() -> Value {
    json!({"key": pods::VIRTUAL_NODE_TAINT, "operator": "Exists", "effect": "NoExecute"})
}

fn toleration_patch(pod: &Value) -> Option<Value> {
    let toleration = virtual_node_toleration();
    let theirs = PodView::of(pod).spec().tolerations();
    if theirs.is_some_and(|theirs| theirs.contains(&toleration)) {
        return None;
    }
    let (path, value) = if theirs.is_some() {
        (format!("{TOLERATIONS}/-"), toleration)
    } else {
        (TOLERATIONS.to_owned(), json!([toleration]))
    };
    Some(json!({"op": "add", "path": path, "value": value}))
}

#[cfg(test)]
mod tests {
    use PodOffloadingStrategy::{Local, LocalAndRemote, Remote};

    use super::*;
    use crate::json::text_at;

    fn pod(spec: &Value) -> Value {
        json!({"metadata": {"name": "web"}, "spec": spec})
    }

    /// The pod after the webhook; also checks that a second run changes nothing.
    fn placed(spec: &Value, strategy: PodOffloadingStrategy, selector: Option<&[Value]>) -> Value {
        let apply = |pod: &mut Value, placement: NewPodPlacement| {
            let patch: json_patch::Patch = serde_json::from_value(placement.patch.into()).unwrap();
            json_patch::patch(pod, &patch).unwrap();
        };
        let mut pod = pod(spec);
        let placement = place_pod(&pod, strategy, selector, &[]);
        apply(&mut pod, placement);
        assert_eq!(
            place_pod(&pod, strategy, selector, &[]).patch,
            Vec::<Value>::new(),
            "the second time"
        );
        pod["spec"].clone()
    }

    fn terms(spec: &Value) -> &Value {
        spec.pointer("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms")
            .unwrap_or(&Value::Null)
    }

    fn zone(value: &str) -> Value {
        json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]})
    }

    fn virtual_node() -> Value {
        json!({"key": "liqo.io/type", "operator": "In", "values": ["virtual-node"]})
    }

    fn not_virtual_node() -> Value {
        json!({"key": "liqo.io/type", "operator": "NotIn", "values": ["virtual-node"]})
    }

    #[test]
    fn a_pod_that_names_a_virtual_node_gets_the_toleration_or_a_warning() {
        let placed = |spec: Value, closed| place_on_named_node(&pod(&spec), "milan", closed);
        let may_go = placed(json!({ "nodeName": "milan" }), None);
        assert!(
            may_go.may_leave && may_go.adds_only_a_toleration() && may_go.patch.len() == 1,
            "{may_go:?}"
        );
        assert_eq!(may_go.warning(), None);
        let closed = placed(json!({ "nodeName": "milan" }), Some("no"));
        assert_eq!((closed.patch.len(), closed.may_leave), (0, false));
        assert_eq!(
            closed.warning().unwrap(),
            "the pod names the node milan, so Kubernetes deletes it at once: no"
        );
        let host = placed(json!({ "nodeName": "milan", "hostNetwork": true }), None)
            .warning()
            .unwrap();
        assert!(
            host.contains("deletes it at once") && host.contains("hostNetwork"),
            "{host}"
        );
        for closed in [None, Some("no")] {
            let own = placed(
                json!({ "nodeName": "milan", "tolerations": [{ "operator": "Exists" }] }),
                closed,
            );
            assert_eq!(
                own,
                NewPodPlacement::default(),
                "its owner knows what it does"
            );
        }
    }

    #[test]
    fn a_pod_that_is_held_lacks_only_the_toleration() {
        let hold = |spec: &Value, strategy, selector| {
            let pod = pod(spec);
            place_without_toleration(&pod, strategy, place_pod(&pod, strategy, selector, &[])).patch
        };
        assert_eq!(hold(&json!({}), LocalAndRemote, None), Vec::<Value>::new());
        let remote = hold(&json!({}), Remote, None);
        assert_eq!(
            (remote.len(), text_at(&remote[0], "/path")),
            (1, Some("/spec/affinity")),
            "it can run nowhere until it tolerates"
        );
        // As soon as it is not held any more, only the toleration is missing.
        let mut pod = pod(&json!({ "tolerations": [{ "key": "other", "operator": "Exists" }] }));
        let selector = [zone("a")];
        let patch =
            place_without_toleration(&pod, Remote, place_pod(&pod, Remote, Some(&selector), &[]))
                .patch;
        json_patch::patch(
            &mut pod,
            &serde_json::from_value::<json_patch::Patch>(patch.into()).unwrap(),
        )
        .unwrap();
        let later = place_pod(&pod, Remote, Some(&selector), &[]);
        assert!(!later.patch.is_empty() && later.adds_only_a_toleration());
    }

    #[test]
    fn a_pod_that_tolerates_everything_and_is_held_stays_at_home() {
        for toleration in [json!({ "operator": "Exists" }), virtual_node_toleration()] {
            let pod = pod(&json!({ "tolerations": [toleration] }));
            let patch = place_without_toleration(
                &pod,
                LocalAndRemote,
                place_pod(&pod, LocalAndRemote, None, &[]),
            )
            .patch;
            assert_eq!(patch.len(), 1);
            let required = "/value/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0";
            assert_eq!(patch[0].pointer(required), Some(&not_virtual_node()));
        }
        let pod =
            pod(&json!({ "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }] }));
        assert!(
            place_without_toleration(
                &pod,
                LocalAndRemote,
                place_pod(&pod, LocalAndRemote, None, &[])
            )
            .patch
            .is_empty()
        );
    }

    fn apply(pod: &Value, patch: Vec<Value>) -> Value {
        let mut pod = pod.clone();
        json_patch::patch(
            &mut pod,
            &serde_json::from_value::<json_patch::Patch>(patch.into()).unwrap(),
        )
        .unwrap();
        pod
    }

    #[test]
    fn a_pod_that_waited_for_the_strategy_of_its_namespace_is_what_a_later_one_is() {
        let node = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone("a")]}});
        let theirs = [
            json!({"containers": []}),
            json!({"containers": [], "schedulingGates": [{"name": "quota"}], "tolerations": [{"key": "gpu"}]}),
            json!({"containers": [], "affinity": {"nodeAffinity": node}}),
        ];
        for (spec, strategy) in theirs
            .iter()
            .flat_map(|spec| [Local, LocalAndRemote, Remote].map(|strategy| (spec, strategy)))
        {
            let mut new = pod(spec);
            new["metadata"]["uid"] = json!("u");
            let waits = apply(&new, hold_back(&new).patch);
            assert!(is_held_back(&waits) && hold_back(&waits).patch.is_empty());
            let placement = place_pod(&waits, strategy, None, &[]);
            assert!(placement.fits_held_back(&waits));
            let mut released = apply(&waits, release_operations(&waits, "u", &placement));
            if released["spec"]["schedulingGates"] == json!([]) {
                released["spec"]
                    .as_object_mut()
                    .unwrap()
                    .remove("schedulingGates");
            }
            assert_eq!(
                released,
                apply(&new, place_pod(&new, strategy, None, &[]).patch),
                "{strategy:?}"
            );
        }
    }

    #[test]
    fn a_pod_that_stays_here_whatever_the_strategy_does_not_wait_for_one() {
        let host = json!({"containers": [], "hostNetwork": true});
        let placement = hold_back(&pod(&host));
        assert_eq!(
            (placement.patch, placement.obstacle.is_some()),
            (place_pod(&pod(&host), Remote, None, &[]).patch, true)
        );
        assert_eq!(
            hold_back(&pod(&json!({"nodeName": "n1"}))),
            NewPodPlacement::default()
        );
    }

    #[test]
    fn alternatives_cannot_be_added_to_the_terms_of_a_pod_that_was_held_back() {
        let node = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone("a")]}});
        let with_terms = pod(&json!({"containers": [], "affinity": {"nodeAffinity": node}}));
        let plain = pod(&json!({"containers": []}));
        let one = [zone("b")];
        for (strategy, expected) in [(Remote, true), (LocalAndRemote, false)] {
            assert_eq!(
                place_pod(&with_terms, strategy, Some(&one), &[]).fits_held_back(&with_terms),
                expected,
                "{strategy:?}"
            );
            assert!(place_pod(&plain, strategy, Some(&one), &[]).fits_held_back(&plain));
        }
    }

    #[test]
    fn a_local_namespace_changes_no_pod() {
        assert_eq!(
            place_pod(&pod(&json!({})), Local, None, &[]),
            NewPodPlacement::default()
        );
    }

    #[test]
    fn a_pod_that_has_a_node_is_left_alone() {
        assert_eq!(
            place_pod(&pod(&json!({"nodeName": "n1"})), Remote, None, &[]),
            NewPodPlacement::default()
        );
    }

    #[test]
    fn no_label_of_a_pod_changes_where_it_may_run() {
        let mut labelled = pod(&json!({}));
        labelled["metadata"]["labels"] = json!({"liqo.io/shadow-pod": "uid"});
        assert_eq!(
            place_pod(&labelled, Remote, None, &["turin"]),
            place_pod(&pod(&json!({})), Remote, None, &["turin"])
        );
    }

    #[test]
    fn a_remote_pod_tolerates_and_requires_a_virtual_node() {
        let spec = placed(&json!({}), Remote, None);
        assert_eq!(spec["tolerations"], json!([virtual_node_toleration()]));
        assert_eq!(
            terms(&spec),
            &json!([{"matchExpressions": [virtual_node()]}])
        );
    }

    #[test]
    fn a_pod_that_may_run_anywhere_only_tolerates() {
        let spec = placed(
            &json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
            LocalAndRemote,
            Some(&[]),
        );
        let ours = json!({"key": "virtual-node.liqo.io/not-allowed", "operator": "Exists", "effect": "NoExecute"});
        assert_eq!(
            spec["tolerations"],
            json!([{"key": "gpu", "operator": "Exists"}, ours])
        );
        assert_eq!(terms(&spec), &Value::Null);
        assert_eq!(
            json!(tolerations_with_ours(&pod(&spec))),
            spec["tolerations"],
            "it is there already"
        );
        let before = pod(&json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}));
        assert_eq!(json!(tolerations_with_ours(&before)), spec["tolerations"]);
    }

    #[test]
    fn selected_clusters_are_an_alternative_to_home() {
        let spec = placed(&json!({}), LocalAndRemote, Some(&[zone("a")]));
        assert_eq!(
            terms(&spec),
            &json!([
            {"matchExpressions": [not_virtual_node()]},
            {"matchExpressions": [virtual_node(), zone("a")["matchExpressions"][0]]}])
        );
    }

    #[test]
    fn our_terms_are_joined_with_each_of_the_users() {
        let node =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]});
        let user = json!({"affinity": {"podAffinity": {"kept": true}, "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone("a"), node]}}}});
        let spec = placed(&user, LocalAndRemote, Some(&[zone("b")]));
        let zones = |value: &str| zone(value)["matchExpressions"][0].clone();
        assert_eq!(
            terms(&spec),
            &json!([
            {"matchExpressions": [zones("a"), not_virtual_node()]},
            {"matchExpressions": [zones("a"), virtual_node(), zones("b")]},
            {"matchExpressions": [not_virtual_node()], "matchFields": node["matchFields"]},
            {"matchExpressions": [virtual_node(), zones("b")], "matchFields": node["matchFields"]}])
        );
        assert_eq!(spec["affinity"]["podAffinity"], json!({"kept": true}));
        assert_eq!(
            spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"],
            json!([{"weight": 1}])
        );
    }

    #[test]
    fn a_term_that_no_node_meets_is_not_made_meetable() {
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        assert_eq!(
            terms(&placed(&affinity(json!([{}])), Remote, None)),
            &json!([{}])
        );
        let spec = placed(&affinity(json!([{}, zone("a")])), Remote, None);
        assert_eq!(
            terms(&spec),
            &json!([{"matchExpressions": [zone("a")["matchExpressions"][0], virtual_node()]}])
        );
    }

    #[test]
    fn a_selector_that_selects_nothing_leaves_only_home() {
        assert_eq!(
            terms(&placed(&json!({}), LocalAndRemote, Some(&[json!({})]))),
            &json!([{"matchExpressions": [not_virtual_node()]}])
        );
        assert_eq!(
            terms(&placed(&json!({}), Remote, Some(&[json!({})]))),
            &json!([{"matchExpressions": [virtual_node(), not_virtual_node()]}])
        );
    }

    #[test]
    fn a_pod_avoids_the_clusters_that_refused_one_of_its_owner() {
        let avoid = json!({"key": "liqo.io/remote-cluster-id", "operator": "NotIn", "values": ["milan", "turin"]});
        for (strategy, selector, expected) in [
            (
                Remote,
                None,
                json!([{"matchExpressions": [virtual_node(), marker_requirement(), avoid]}]),
            ),
            (
                LocalAndRemote,
                None,
                json!([{"matchExpressions": [not_virtual_node()]}, {"matchExpressions": [virtual_node(), marker_requirement(), avoid]}]),
            ),
            (
                Remote,
                Some(&[zone("a")][..]),
                json!([{"matchExpressions": [virtual_node(), marker_requirement(), avoid, zone("a")["matchExpressions"][0]]}]),
            ),
        ] {
            let mut placed = pod(&json!({}));
            let placement = place_pod(&placed, strategy, selector, &["milan", "turin"]);
            let patch: json_patch::Patch = serde_json::from_value(placement.patch.into()).unwrap();
            json_patch::patch(&mut placed, &patch).unwrap();
            assert_eq!(terms(&placed["spec"]), &expected);
            assert!(
                place_pod(&placed, strategy, selector, &["milan", "turin"])
                    .patch
                    .is_empty(),
                "the second time"
            );
            assert!(
                place_pod(&placed, strategy, selector, &[]).patch.is_empty(),
                "it may keep what it does not need"
            );
        }
    }

    #[test]
    fn a_pod_avoids_a_cluster_in_vain_when_a_new_one_would_not_unless_the_user_wrote_so() {
        let not_in =
            json!({"key": "liqo.io/remote-cluster-id", "operator": "NotIn", "values": ["boston"]});
        let required =
            json!({"nodeSelectorTerms": [{"matchExpressions": [virtual_node(), not_in]}]});
        let users = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
        for (spec, strategy) in [
            (json!({}), Remote),
            (json!({}), LocalAndRemote),
            (users.clone(), Remote),
        ] {
            let mut placed = pod(&spec);
            let placement = place_pod(&placed, strategy, None, &["milan", "turin"]);
            json_patch::patch(
                &mut placed,
                &serde_json::from_value::<json_patch::Patch>(placement.patch.into()).unwrap(),
            )
            .unwrap();
            assert!(!avoids_needlessly(&placed, &["milan", "turin"]));
            assert!(avoids_needlessly(&placed, &["turin"]) && avoids_needlessly(&placed, &[]));
        }
        assert!(!avoids_needlessly(
            &json!({"spec": placed(&users, Remote, None)}),
            &[]
        ));
        assert!(!avoids_needlessly(
            &json!({"spec": placed(&json!({}), Remote, None)}),
            &[]
        ));
    }

    #[test]
    fn a_pod_that_can_never_travel_is_kept_off_virtual_nodes_whatever_it_tolerates() {
        let volume = |source: Value| json!({"volumes": [source]});
        for mut spec in [
            volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "d"}})),
            volume(json!({"name": "v", "ephemeral": {}})),
            volume(json!({"name": "v", "hostPath": {"path": "/"}})),
            json!({"hostNetwork": true}),
            json!({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}),
        ] {
            spec["tolerations"] = json!([{"operator": "Exists"}]);
            for strategy in [Remote, LocalAndRemote] {
                let warning = place_pod(&pod(&spec), strategy, None, &[])
                    .warning()
                    .unwrap();
                assert!(
                    warning.starts_with("the pod runs in this cluster only: "),
                    "{warning}"
                );
                assert!(!place_pod(&pod(&spec), strategy, None, &[]).may_leave);
                let spec = placed(&spec, strategy, None);
                assert_eq!(
                    terms(&spec),
                    &json!([{"matchExpressions": [not_virtual_node()]}])
                );
                assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
            }
        }
    }
}
