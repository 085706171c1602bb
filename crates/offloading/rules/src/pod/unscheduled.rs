//! Pods of offloaded namespaces that have no node yet, and what to do about one that the admission
//! webhook did not see: while no manager answers, the API server creates pods without asking it.
//!
//! Kubernetes lets a toleration be added to an existing pod, but no node affinity. So a pod that
//! lacks only the toleration gets it. A pod that lacks affinity is deleted, if its controller
//! creates it again. So is one that avoids a cluster which was closed when it was created, and is
//! open now; and one that was created for virtual nodes only, while its namespace had the strategy
//! `Remote`, and may run here now. One that the webhook held back, because its namespace had no
//! strategy yet, goes where the strategy says.
//!
//! A pod that got a node of this cluster, although its namespace had the strategy `Remote` when it
//! was created, is evicted, if its controller creates it again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use liqo_api::departure::{DepartureCause, JOB, LeavingPods};
use liqo_api::{NamespaceOffloading, PodOffloadingStrategy, is_final_phase};
use serde_json::{Value, json};

use crate::json::{field_at, set_at};
use crate::pod::controller::{self, OwningController};
use crate::pod::local_state::JsonPod;
use crate::pod::refusals::{RefusedOwner, avoided_message};
use crate::pod::scheduling::{NewPodPlacement, is_held_back, must_leave};
use crate::views::PodView;

/// A pod gets this much time to be scheduled before anything but a toleration is due.
const SETTLING_TIME: Duration = Duration::from_secs(10);

/// For this long after a change of the strategy, a webhook whose watch lags may go by the former
/// one.
const WEBHOOK_LAG: SignedDuration = SignedDuration::from_secs(20);

/// For this long, no pod of a controller is deleted that was created after the first deletion: it
/// shows that the webhook does not see new pods.
pub const RECREATION_INTERVAL: Duration = Duration::from_mins(10);

/// A pod without a node.
#[derive(Debug, Clone, PartialEq)]
pub struct UnscheduledPod {
    pub uid: String,
    pub created: Timestamp,
    pub controller: Option<OwningController>,
    /// Whether the webhook holds it back from the scheduler until its namespace has a strategy.
    pub held_back: bool,
    /// Whether somebody else holds it back.
    pub gated: bool,
    /// Whether it can run on virtual nodes only.
    pub must_leave: bool,
    json: Box<str>,
}

impl UnscheduledPod {
    /// Reduces a pod. `None` if it has a node, has ended or is being deleted.
    pub fn from_pod(pod: JsonPod) -> Option<Self> {
        Self::reduce_with_node(pod)
            .filter(|(_, node)| node.is_none())
            .map(|(pod, _)| pod)
    }

    /// Reduces a pod to what it was before it got its node, and that node. `None` if it has none,
    /// has ended or is being deleted.
    pub fn before_scheduling(pod: JsonPod) -> Option<(Self, String)> {
        Self::reduce_with_node(pod).and_then(|(pod, node)| Some((pod, node?)))
    }

    fn reduce_with_node(pod: JsonPod) -> Option<(Self, Option<String>)> {
        let JsonPod {
            metadata,
            mut spec,
            status,
            ..
        } = pod;
        let phase = status
            .as_ref()
            .and_then(|status| status.get("phase")?.as_str());
        if metadata.deletion_timestamp.is_some() || phase.is_some_and(is_final_phase) {
            return None;
        }
        let node = spec
            .as_object_mut()
            .and_then(|spec| spec.remove("nodeName"));
        let node = node
            .as_ref()
            .and_then(Value::as_str)
            .filter(|node| !node.is_empty())
            .map(str::to_owned);
        let mut whole = json!({
            "metadata": {
                "labels": metadata.labels,
                "annotations": metadata.annotations,
                "ownerReferences": metadata.owner_references,
            },
        });
        // The macro would copy it.
        set_at(&mut whole, &["spec"], spec);
        let held_back = is_held_back(&whole);
        let gates = PodView::of(&whole).spec().scheduling_gates();
        let reduced = Self {
            controller: OwningController::of_pod(&whole),
            uid: metadata.uid?,
            created: metadata
                .creation_timestamp
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            held_back,
            gated: gates.is_some_and(|gates| gates.len() > usize::from(held_back)),
            must_leave: must_leave(&whole),
            json: whole.to_string().into(),
        };
        Some((reduced, node))
    }

    /// Whether it is deleted when its namespace is not offloaded any more: it waits for a virtual
    /// node that it does not get, or for a strategy, and its controller creates it again, in this
    /// cluster.
    pub fn is_recreated_here(&self) -> bool {
        LeavingPods::Recreated.includes(controller::controller_kind(self.controller.as_ref()))
            && (self.must_leave || self.held_back)
    }

    /// The pod as JSON: labels, annotations, owners and spec.
    pub fn to_json(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// The next step for an unscheduled pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    Nothing,
    /// Decide again after this time.
    Later(Duration),
    /// Add the toleration for virtual nodes.
    Tolerate,
    /// Remove the gate of the webhook, and add what the strategy says.
    Release,
    /// Delete the pod, so that its controller creates it again. One that runs is evicted.
    Recreate,
    /// Tell the user what the pod lacks.
    Tell(String),
}

/// The input of [`decide_repair`].
#[derive(Debug, Clone, Copy)]
pub struct UnscheduledPodFacts<'a> {
    pub pod: &'a UnscheduledPod,
    /// The placement that the webhook would choose, if no provider had refused a pod of its owner.
    pub placement: &'a NewPodPlacement,
    /// Providers that refused one.
    pub refusals: &'a [&'a RefusedOwner],
    /// Whether it avoids a cluster that a new pod of its owner would not avoid.
    pub avoids_in_vain: bool,
    /// The reason why a budget lets no cluster have it now.
    pub held: Option<&'a str>,
    /// Pods of its namespace may run in this cluster since then, if they might not before, see
    /// [`strategy_since`]. `None` if they may not, or nobody knows.
    pub home_since: Option<Timestamp>,
    /// Whether its controller is a Job that goes on without it, see
    /// [`survives_eviction`](crate::pod::job::survives_eviction). Whoever does not know it yet asks
    /// only if something follows from that.
    pub is_survived: bool,
    /// The time at which the first pod of its controller was deleted, in the last
    /// [`RECREATION_INTERVAL`].
    pub recreated_since: Option<Timestamp>,
    pub now: Timestamp,
}

const ALONE: &str = "the pod lacks node affinity for other clusters: Liqo's webhook did not see it, or its namespace was offloaded differently. \
     It cannot be added to an existing pod: delete the pod and create it again";

const UNSEEN: &str = "the pod lacks node affinity for other clusters, and so did the one that it replaces: Liqo's webhook does not see new pods. \
     `liqoctl doctor` says why";

const LEFT_BEHIND: &str = "the pod was created for other clusters only, and pods of its namespace may run in this cluster now. That cannot be changed \
     in an existing pod: delete the pod and create it again";

const LEFT_BEHIND_BY_JOB: &str = "the pod was created for other clusters only, and pods of its namespace may run in this cluster now. That cannot be \
     changed in an existing pod, and its Job may fail if it loses the pod: raise its backoffLimit, or create the Job again";

const CLOSED_BEFORE: &str = "the pod avoids a cluster that was closed to it when it was created, and is open now. \
     That cannot be changed in an existing pod: delete the pod and create it again";

/// Decides the next step for the pod.
pub fn decide_repair(facts: &UnscheduledPodFacts) -> Repair {
    let UnscheduledPodFacts {
        pod,
        placement,
        refusals,
        avoids_in_vain,
        held,
        home_since,
        recreated_since,
        now,
        ..
    } = *facts;
    if pod.held_back && placement.fits_held_back(&pod.to_json()) {
        return Repair::Release;
    }
    if pod.must_leave
        && home_since
            .is_some_and(|since| pod.created < since.saturating_add(WEBHOOK_LAG).unwrap_or(since))
    {
        return repair_left_behind(facts);
    }
    let is_handled = placement.patch.is_empty();
    if placement.obstacle.is_some()
        || (is_handled && refusals.is_empty() && held.is_none() && !avoids_in_vain)
    {
        return Repair::Nothing;
    }
    if !is_handled && held.is_none() && refusals.is_empty() && placement.adds_only_a_toleration() {
        return Repair::Tolerate;
    }
    // Whoever holds it back may change it, too. When the gates are gone, it is due again.
    if pod.gated {
        return Repair::Nothing;
    }
    let age = Duration::try_from(now.duration_since(pod.created)).unwrap_or_default();
    if let Some(rest) = SETTLING_TIME
        .checked_sub(age)
        .filter(|rest| !rest.is_zero())
    {
        return Repair::Later(rest);
    }
    if let Some(why) = held {
        return Repair::Tell(format!("the pod is not sent to another cluster: {why}"));
    }
    if is_handled && !avoids_in_vain {
        return Repair::Tell(avoided_message(refusals));
    }
    let is_created_again = pod
        .controller
        .as_ref()
        .is_some_and(OwningController::recreates_pods);
    match recreated_since {
        _ if !is_created_again => {
            Repair::Tell(if is_handled { CLOSED_BEFORE } else { ALONE }.to_owned())
        }
        Some(since) if is_handled && pod.created >= since => Repair::Later(RECREATION_INTERVAL),
        Some(since) if pod.created >= since => Repair::Tell(UNSEEN.to_owned()),
        _ => Repair::Recreate,
    }
}

/// Decides what to do about a pod that waits for a virtual node, and may run here by now.
fn repair_left_behind(facts: &UnscheduledPodFacts) -> Repair {
    let UnscheduledPodFacts {
        pod,
        recreated_since,
        now,
        ..
    } = *facts;
    if pod.gated {
        return Repair::Nothing;
    }
    let age = Duration::try_from(now.duration_since(pod.created)).unwrap_or_default();
    if let Some(rest) = SETTLING_TIME
        .checked_sub(age)
        .filter(|rest| !rest.is_zero())
    {
        return Repair::Later(rest);
    }
    let kind = controller::controller_kind(pod.controller.as_ref());
    let is_of_job = kind == Some(JOB);
    let is_created_again =
        DepartureCause::Unplaced.takes_pods_of(kind) && (!is_of_job || facts.is_survived);
    if is_created_again && recreated_since.is_none_or(|since| pod.created < since) {
        return Repair::Recreate;
    }
    Repair::Tell(
        if is_of_job {
            LEFT_BEHIND_BY_JOB
        } else {
            LEFT_BEHIND
        }
        .to_owned(),
    )
}

const ALONE_HERE: &str = "the pod runs in this cluster, although pods of its namespace are to run in other clusters only: Liqo's webhook did not see \
     it. A running pod cannot be moved: delete it and create it again";

const UNSEEN_HERE: &str = "the pod runs in this cluster, although pods of its namespace are to run in other clusters only, and so did the one that it \
     replaces: it names its node, or Liqo's webhook does not see new pods. `liqoctl doctor` says whether it does";

/// Decides what to do about a pod that has a node of this cluster, in a namespace whose strategy
/// has been `Remote` since this time. An older pod was there before.
pub fn decide_repair_here(facts: &UnscheduledPodFacts, since: Timestamp) -> Repair {
    let UnscheduledPodFacts {
        pod,
        placement,
        held,
        recreated_since,
        ..
    } = *facts;
    // No other cluster can have it, or none may now.
    let stays = placement.obstacle.is_some() || held.is_some();
    if stays || pod.must_leave || pod.created < since {
        return Repair::Nothing;
    }
    match recreated_since {
        _ if !DepartureCause::RunsHere
            .takes_pods_of(controller::controller_kind(pod.controller.as_ref())) =>
        {
            Repair::Tell(ALONE_HERE.to_owned())
        }
        Some(since) if pod.created >= since => Repair::Tell(UNSEEN_HERE.to_owned()),
        _ => Repair::Recreate,
    }
}

/// Whether pods of a namespace may run in this cluster, and perhaps might not before: see
/// [`strategy_since`].
pub fn may_have_changed_to_here(offloading: &NamespaceOffloading) -> bool {
    offloading.metadata.generation != Some(1)
        && offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Remote
}

/// The time at which the namespace got its present strategy, or a later time. If the spec has
/// changed, the API server notes who wrote the strategy, and when this writer last changed
/// anything. `None` if nobody knows.
pub fn strategy_since(offloading: &NamespaceOffloading) -> Option<Timestamp> {
    let metadata = &offloading.metadata;
    if metadata.generation == Some(1) {
        return metadata.creation_timestamp.as_ref().map(|time| time.0);
    }
    let writers = metadata.managed_fields.iter().flatten().filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| {
            field_at(&fields.0, &["f:spec", "f:podOffloadingStrategy"]).is_some()
        })
    });
    writers
        .filter_map(|entry| entry.time.as_ref())
        .map(|time| time.0)
        .max()
}

#[cfg(test)]
mod tests {
    use liqo_api::PodOffloadingStrategy::{self, Local, LocalAndRemote, Remote};

    use super::*;
    use crate::pod::scheduling::place_pod;

    fn whole(changes: &Value) -> JsonPod {
        let mut pod = json!({
            "metadata": { "namespace": "demo", "name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true }] },
            "spec": { "containers": [{ "name": "c" }], "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists" }] },
            "status": { "phase": "Pending" },
        });
        json_patch::merge(&mut pod, changes);
        serde_json::from_value(pod).unwrap()
    }

    fn pod(changes: &Value) -> Option<UnscheduledPod> {
        UnscheduledPod::from_pod(whole(changes))
    }

    fn before_node(changes: &Value) -> Option<(UnscheduledPod, String)> {
        UnscheduledPod::before_scheduling(whole(changes))
    }

    fn at(second: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap()
            + jiff::SignedDuration::from_secs(second)
    }

    fn facts<'a>(
        pod: &'a UnscheduledPod,
        placement: &'a NewPodPlacement,
        second: i64,
    ) -> UnscheduledPodFacts<'a> {
        let now = at(second);
        UnscheduledPodFacts {
            pod,
            placement,
            refusals: &[],
            avoids_in_vain: false,
            held: None,
            home_since: None,
            is_survived: false,
            recreated_since: None,
            now,
        }
    }

    #[test]
    fn a_pod_that_was_to_leave_and_may_run_here_now_is_created_again_unless_that_costs_something() {
        let left_behind = |changes: &Value, since: i64, recreated: Option<i64>| {
            let whole = pod(changes).unwrap();
            let mut placed = whole.to_json();
            let patch: json_patch::Patch =
                serde_json::from_value(place_pod(&placed, Remote, None, &[]).patch.into()).unwrap();
            json_patch::patch(&mut placed, &patch).unwrap();
            let merged = json!({ "spec": placed["spec"] });
            let mut changes = changes.clone();
            json_patch::merge(&mut changes, &merged);
            let pod = pod(&changes).unwrap();
            assert!(pod.must_leave);
            let placement = place_pod(&pod.to_json(), Local, None, &[]);
            let facts = facts(&pod, &placement, 100);
            let repaired = |is_survived: bool| {
                decide_repair(&UnscheduledPodFacts {
                    home_since: Some(at(since)),
                    is_survived,
                    recreated_since: recreated.map(at),
                    ..facts
                })
            };
            [repaired(false), repaired(true)]
        };
        let job = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "o", "controller": true }] } });
        for (since, expected, why) in [
            (50, Repair::Recreate, ""),
            (-30, Repair::Nothing, "its template asks for virtual nodes"),
            (-10, Repair::Recreate, "a webhook may have lagged"),
        ] {
            assert_eq!(
                left_behind(&json!({}), since, None),
                [expected.clone(), expected],
                "{why}"
            );
        }
        let is_told = |repair: &Repair| matches!(repair, Repair::Tell(why) if why.contains("may run in this cluster now"));
        let alone = json!({ "metadata": { "ownerReferences": null } });
        for (changes, recreated) in [(alone, None), (json!({}), Some(0))] {
            assert!(
                left_behind(&changes, 50, recreated).iter().all(is_told),
                "{changes}"
            );
        }
        let [fails, goes_on] = left_behind(&job, 50, None);
        assert!(is_told(&fails));
        assert_eq!(goes_on, Repair::Recreate);
    }

    #[test]
    fn a_strategy_that_never_changed_leaves_nobody_behind() {
        let changed = |generation: i64, strategy: &str| {
            let offloading = json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
                "metadata": { "name": "offloading", "generation": generation }, "spec": { "podOffloadingStrategy": strategy } });
            may_have_changed_to_here(&serde_json::from_value(offloading).unwrap())
        };
        assert!(changed(2, "Local") && changed(2, "LocalAndRemote"));
        assert!(!changed(2, "Remote") && !changed(1, "Local"));
    }

    fn repaired(
        changes: &Value,
        strategy: PodOffloadingStrategy,
        recreated_since: Option<Timestamp>,
    ) -> Repair {
        let pod = pod(changes).unwrap();
        let placement = place_pod(&pod.to_json(), strategy, None, &[]);
        decide_repair(&UnscheduledPodFacts {
            recreated_since,
            ..facts(&pod, &placement, 10)
        })
    }

    #[test]
    fn a_pod_that_waits_for_a_virtual_node_comes_home_if_it_is_created_again() {
        let placed = |strategy| {
            let mut whole = pod(&json!({})).unwrap().to_json();
            let patch = place_pod(&whole, strategy, None, &[]).patch;
            json_patch::patch(
                &mut whole,
                &serde_json::from_value::<json_patch::Patch>(patch.into()).unwrap(),
            )
            .unwrap();
            json!({ "spec": whole["spec"] })
        };
        let alone =
            json!({ "metadata": { "ownerReferences": [] }, "spec": placed(Remote)["spec"] });
        for (changes, expected) in [
            (placed(Remote), true),
            (placed(LocalAndRemote), false),
            (placed(Local), false),
            (alone, false),
        ] {
            assert_eq!(
                pod(&changes).unwrap().is_recreated_here(),
                expected,
                "{changes}"
            );
        }
    }

    #[test]
    fn only_a_pod_that_the_scheduler_may_still_place_counts() {
        assert!(pod(&json!({})).is_some());
        for changes in [
            json!({ "spec": { "nodeName": "n" } }),
            json!({ "status": { "phase": "Failed" } }),
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
        ] {
            assert_eq!(pod(&changes), None, "{changes}");
        }
    }

    #[test]
    fn a_pod_that_was_held_back_goes_where_the_strategy_says_at_once() {
        let gates = |names: &[&str]| json!({ "spec": { "schedulingGates": names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() } });
        for strategy in [Local, LocalAndRemote, Remote] {
            assert_eq!(
                repaired(&gates(&["liqo.io/offloading"]), strategy, None),
                Repair::Release,
                "{strategy:?}"
            );
            assert_eq!(
                repaired(&gates(&["quota", "liqo.io/offloading"]), strategy, None),
                Repair::Release,
                "{strategy:?}"
            );
        }
        assert!(
            pod(&gates(&["liqo.io/offloading"]))
                .unwrap()
                .is_recreated_here(),
            "its controller creates it again"
        );
        // Kubernetes lets no alternative be added to terms.
        let mut with_terms = gates(&["liqo.io/offloading"]);
        with_terms["spec"]["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["a"] }] }] } } });
        let held_back = pod(&with_terms).unwrap();
        let placement = place_pod(&held_back.to_json(), LocalAndRemote, None, &["x"]);
        assert_eq!(
            decide_repair(&facts(&held_back, &placement, 10)),
            Repair::Recreate
        );
    }

    #[test]
    fn a_pod_that_got_a_node_here_since_the_strategy_is_remote_is_created_again() {
        let here = |changes: &Value, since: i64, recreated_since| {
            let mut running = changes.clone();
            running["spec"]["nodeName"] = json!("n");
            let (pod, node) = before_node(&running).unwrap();
            assert_eq!(node, "n");
            let placement = place_pod(&pod.to_json(), Remote, None, &[]);
            decide_repair_here(
                &UnscheduledPodFacts {
                    recreated_since,
                    ..facts(&pod, &placement, 0)
                },
                at(since),
            )
        };
        let owned_by = |kind| json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": "x", "uid": "o", "controller": true }] } });
        assert_eq!(here(&json!({}), 0, None), Repair::Recreate);
        assert_eq!(
            here(&json!({}), 1, None),
            Repair::Nothing,
            "it was there before"
        );
        assert_eq!(
            here(&json!({}), 0, Some(at(5))),
            Repair::Recreate,
            "it is older than the first eviction"
        );
        assert_eq!(
            here(&json!({}), 0, Some(at(0))),
            Repair::Tell(UNSEEN_HERE.into())
        );
        assert_eq!(
            here(&owned_by("DaemonSet"), 0, None),
            Repair::Nothing,
            "it belongs to its node"
        );
        assert_eq!(
            here(&json!({ "spec": { "hostNetwork": true } }), 0, None),
            Repair::Nothing,
            "it can run nowhere else"
        );
        for alone in [
            owned_by("Job"),
            json!({ "metadata": { "ownerReferences": null } }),
        ] {
            assert_eq!(here(&alone, 0, None), Repair::Tell(ALONE_HERE.into()));
        }
    }

    #[test]
    fn a_running_pod_stays_here_while_no_other_cluster_may_have_it() {
        let (pod, _) = before_node(&json!({ "spec": { "nodeName": "n" } })).unwrap();
        let placement = place_pod(&pod.to_json(), Remote, None, &[]);
        assert_eq!(
            decide_repair_here(
                &UnscheduledPodFacts {
                    held: Some("spent"),
                    ..facts(&pod, &placement, 0)
                },
                at(0)
            ),
            Repair::Nothing
        );
    }

    #[test]
    fn the_last_change_by_a_writer_of_the_strategy_counts_if_the_spec_has_changed() {
        let since = |generation: i64, entries: Value| {
            strategy_since(
                &serde_json::from_value(json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
                "metadata": { "name": "offloading", "generation": generation, "creationTimestamp": at(0), "managedFields": entries },
                "spec": {} }))
                .unwrap(),
            )
        };
        let entry = |fields: Value, second: i64| {
            json!({ "manager": "x", "operation": "Update", "apiVersion": "offloading.liqo.io/v1alpha1",
            "fieldsType": "FieldsV1", "fieldsV1": fields, "time": at(second) })
        };
        let strategy = json!({ "f:spec": { "f:podOffloadingStrategy": {} } });
        let other = json!({ "f:spec": { "f:clusterSelector": {} }, "f:status": {} });
        let entries = json!([
            entry(strategy.clone(), 3),
            entry(strategy, 2),
            entry(other.clone(), 9)
        ]);
        assert_eq!(
            (since(1, entries.clone()), since(2, entries)),
            (Some(at(0)), Some(at(3)))
        );
        assert_eq!(
            (since(2, json!([entry(other, 9)])), since(2, json!([]))),
            (None, None)
        );
    }

    #[test]
    fn a_change_of_the_status_is_no_change() {
        let condition =
            json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "False" }] } });
        assert_eq!(pod(&json!({})), pod(&condition));
    }

    #[test]
    fn a_pod_that_the_webhook_handled_needs_nothing() {
        for strategy in [Local, LocalAndRemote, Remote] {
            let plain = pod(&json!({})).unwrap().to_json();
            let mut placed = plain.clone();
            let patch: json_patch::Patch =
                serde_json::from_value(place_pod(&plain, strategy, None, &[]).patch.into())
                    .unwrap();
            json_patch::patch(&mut placed, &patch).unwrap();
            assert_eq!(
                repaired(&json!({ "spec": placed["spec"] }), strategy, None),
                Repair::Nothing,
                "{strategy:?}"
            );
        }
    }

    #[test]
    fn a_pod_that_lacks_only_the_toleration_gets_it_at_once() {
        assert_eq!(repaired(&json!({}), LocalAndRemote, None), Repair::Tolerate);
        assert_eq!(
            repaired(
                &json!({ "metadata": { "ownerReferences": null } }),
                LocalAndRemote,
                None
            ),
            Repair::Tolerate
        );
        assert_eq!(
            repaired(
                &json!({ "spec": { "hostNetwork": true } }),
                LocalAndRemote,
                None
            ),
            Repair::Nothing,
            "it stays here"
        );
    }

    #[test]
    fn a_pod_that_lacks_affinity_is_created_again_by_its_controller() {
        assert_eq!(repaired(&json!({}), Remote, None), Repair::Recreate);
        let young = json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:07Z" } });
        assert_eq!(
            repaired(&young, Remote, None),
            Repair::Later(Duration::from_secs(7))
        );
        let gated = json!({ "spec": { "schedulingGates": [{ "name": "quota" }] } });
        assert_eq!(repaired(&gated, Remote, None), Repair::Nothing);
        let owned_by = |kind| json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": kind, "name": "x", "uid": "o", "controller": true }] } });
        assert_eq!(
            repaired(&owned_by("StatefulSet"), Remote, None),
            Repair::Recreate
        );
        assert_eq!(
            repaired(&owned_by("Job"), Remote, None),
            Repair::Tell(ALONE.into())
        );
        assert_eq!(
            repaired(
                &json!({ "metadata": { "ownerReferences": null } }),
                Remote,
                None
            ),
            Repair::Tell(ALONE.into())
        );
    }

    #[test]
    fn a_pod_that_replaced_a_deleted_one_is_not_deleted_too() {
        assert_eq!(
            repaired(&json!({}), Remote, Some(at(5))),
            Repair::Recreate,
            "it is older than the first deletion"
        );
        assert_eq!(
            repaired(&json!({}), Remote, Some(at(0))),
            Repair::Tell(UNSEEN.into())
        );
    }

    #[test]
    fn a_pod_that_a_budget_holds_says_so_and_leaves_when_it_may() {
        let pod = pod(&json!({})).unwrap();
        let placement = place_pod(&pod.to_json(), LocalAndRemote, None, &[]);
        let repaired = |held, second| {
            decide_repair(&UnscheduledPodFacts {
                held,
                ..facts(&pod, &placement, second)
            })
        };
        assert_eq!(
            repaired(Some("the budget is spent"), 3),
            Repair::Later(Duration::from_secs(7))
        );
        assert_eq!(
            repaired(Some("the budget is spent"), 10),
            Repair::Tell("the pod is not sent to another cluster: the budget is spent".into())
        );
        assert_eq!(repaired(None, 3), Repair::Tolerate);
    }

    #[test]
    fn a_pod_that_avoids_a_cluster_which_is_open_again_is_created_again_once() {
        let handled = NewPodPlacement::default();
        let repaired = |changes: &Value, held, recreated_since| {
            let pod = pod(changes).unwrap();
            decide_repair(&UnscheduledPodFacts {
                avoids_in_vain: true,
                held,
                recreated_since,
                ..facts(&pod, &handled, 10)
            })
        };
        let alone = json!({ "metadata": { "ownerReferences": null } });
        assert_eq!(repaired(&json!({}), None, None), Repair::Recreate);
        assert_eq!(
            repaired(&json!({}), None, Some(at(5))),
            Repair::Recreate,
            "it is older than the first deletion"
        );
        assert_eq!(
            repaired(&json!({}), None, Some(at(0))),
            Repair::Later(RECREATION_INTERVAL)
        );
        assert_eq!(
            repaired(&alone, None, None),
            Repair::Tell(CLOSED_BEFORE.into())
        );
        assert!(matches!(
            repaired(&json!({}), Some("the budget is spent"), None),
            Repair::Tell(_)
        ));
    }

    #[test]
    fn a_pod_that_a_provider_would_refuse_is_not_opened_to_it() {
        let cluster_id = liqo_api::ClusterId::of_public_key(&[2; 32]);
        let refusal = RefusedOwner {
            owner: "o".into(),
            cluster_id,
            cluster_name: "milan".into(),
            reason: "NotAllowed".into(),
            since: at(0),
            until: at(3600),
        };
        let repaired = |placement: &NewPodPlacement, second| {
            let pod = pod(&json!({})).unwrap();
            decide_repair(&UnscheduledPodFacts {
                refusals: &[&refusal],
                ..facts(&pod, placement, second)
            })
        };
        let unseen = place_pod(
            &pod(&json!({})).unwrap().to_json(),
            LocalAndRemote,
            None,
            &[],
        );
        assert_eq!(
            repaired(&unseen, 10),
            Repair::Recreate,
            "a toleration alone would open it"
        );
        let handled = NewPodPlacement::default();
        assert_eq!(repaired(&handled, 9), Repair::Later(Duration::from_secs(1)));
        let Repair::Tell(message) = repaired(&handled, 10) else {
            panic!("the user is told")
        };
        assert!(
            message.contains(
                "not sent to milan (it refused one for NotAllowed) before 2026-01-01T01:00:00Z"
            ),
            "{message}"
        );
    }
}
