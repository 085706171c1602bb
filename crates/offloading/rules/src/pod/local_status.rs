//! The status of a local pod: the remote pod's status is merged into it, not copied.
//!
//! Liqo writes phase, reason, message, start time, the statuses of containers in the home spec, and
//! the conditions Initialized, `PodReadyToStartContainers`, `ContainersReady`, Ready, those of a
//! resize, and, when the pod ends, `DisruptionTarget`. The home cluster writes everything else. All
//! functions return the body of a strategic merge patch for `pods/status`, or `None` if nothing
//! changes.
//!
//! The API server accepts almost any change of a status, so this module makes sure that a terminal
//! phase stays terminal.

mod addresses;
mod containers;
mod reduce;
#[cfg(test)]
mod tests;
mod times;

use std::net::IpAddr;

use jiff::Timestamp;
use liqo_api::{OffloadedReason, is_final_phase, pods};
use serde_json::{Map, Value, json};

use crate::json::{OFFER_RECLAIMED, set_at};
use crate::views::{ConditionView, ContainerList, PodStatusView, PodView, ReadinessGateView};

pub use addresses::{TranslatedAddresses, remote_pod_address, translate_addresses};
pub(crate) use reduce::reduce_status;
pub use reduce::truncate_text;

/// How the consumer sees the remote pod.
#[derive(Debug, Clone, Copy)]
pub struct RemotePodView<'a> {
    /// The addresses at which this cluster reaches the remote pod, see [`translate_addresses`];
    /// empty while the two clusters have no network. A local pod without an address gets none:
    /// Services here would send to another pod.
    pub pod_ips: &'a [IpAddr],
    pub host_ip: Option<IpAddr>,
    /// False if the peer has been silent for too long: then the pod is not Ready, whatever the last
    /// report says.
    pub peer_answers: bool,
    /// A problem although the provider accepted the pod: a reason, and a message for people.
    pub amiss: Option<(&'a str, &'a str)>,
    pub now: Timestamp,
}

/// Merges the remote pod's reduced status (see `reduce_status`) into the local pod.
pub fn local_status_patch(home: &Value, remote: &Value, link: &RemotePodView<'_>) -> Option<Value> {
    if is_final(home) {
        return late_ends_patch(home, remote, link.now);
    }
    let mut status = Map::new();
    let theirs = PodStatusView::of(remote);
    let phase = theirs
        .phase()
        .filter(|phase| PHASES.contains(phase))
        .unwrap_or("Pending");
    set_field(&mut status, home, "phase", Some(phase.into()));
    set_field(
        &mut status,
        home,
        "reason",
        theirs
            .reason()
            .map(|reason| reduce::truncate_text(reason).into()),
    );
    set_field(
        &mut status,
        home,
        "message",
        theirs
            .message()
            .map(|message| reduce::truncate_text(message).into()),
    );
    set_start_time(&mut status, home, remote, link.now);
    container_statuses(&mut status, home, remote, link.now);
    addresses::show_addresses(&mut status, home, link);

    let mut conditions = ConditionChanges::of_pod(home, link.now);
    for kind in [
        "Initialized",
        "PodReadyToStartContainers",
        "ContainersReady",
    ] {
        if let Some(one) = theirs.condition(kind) {
            conditions.set(kind, condition_status(one), one.reason(), one.message());
        }
    }
    if theirs.condition("ContainersReady").is_some() || !link.peer_answers {
        match pod_readiness(home, remote, link) {
            PodReadiness::Ready => conditions.set("Ready", "True", None, None),
            PodReadiness::NotReady { reason, message } => {
                conditions.set("Ready", "False", reason.as_deref(), message.as_deref());
            }
        }
    }
    // Only with the end: what a provider means to do is no news, and it may still let the pod run.
    if let Some(one) = theirs
        .condition(DISRUPTION_TARGET)
        .filter(|one| one.status() == Some("True"))
        && is_final_phase(phase)
    {
        conditions.set(DISRUPTION_TARGET, "True", one.reason(), one.message());
    }
    set_remote_scheduling(&mut conditions, home, remote);
    set_offloaded(&mut conditions, home, link.amiss);
    for kind in RESIZE_CONDITIONS {
        if let Some(one) = theirs.condition(kind) {
            conditions.set(kind, condition_status(one), one.reason(), one.message());
        } else if PodView::of(home).status().condition(kind).is_some() {
            conditions.remove(kind);
        }
    }
    conditions.put_into(&mut status);
    let generation = PodView::of(home).metadata().generation();
    if let Some(generation) = generation.filter(|_| !status.is_empty()) {
        // It changes with a deletion, too, and is not worth a write of its own. Some API servers
        // drop it.
        set_field(
            &mut status,
            home,
            "observedGeneration",
            Some(generation.into()),
        );
    }
    pod_status_patch(addresses::address_annotation(home, remote), status)
}

/// A kubelet says that it evicted a pod before it says how the containers ended: adds ends to a pod
/// that has ended already.
fn late_ends_patch(home: &Value, remote: &Value, now: Timestamp) -> Option<Value> {
    if PodView::of(home).status().phase() != PodStatusView::of(remote).phase() {
        return None;
    }
    let mut status = Map::new();
    container_statuses(&mut status, home, remote, now);
    pod_status_patch(Map::new(), status)
}

/// Adds the statuses of containers that changed.
fn container_statuses(
    status: &mut Map<String, Value>,
    home: &Value,
    remote: &Value,
    now: Timestamp,
) {
    for list in ContainerList::ALL {
        if let Some(statuses) = containers::merged_statuses(home, remote, list, now) {
            status.insert(list.status_field().into(), statuses.into());
        }
    }
}

/// Shows that the provider refuses the pod, why, and what to do. The pod stays Pending.
pub fn refused_patch(home: &Value, reason: &str, message: &str, now: Timestamp) -> Option<Value> {
    if is_final(home) {
        return None;
    }
    let mut conditions = ConditionChanges::of_pod(home, now);
    conditions.set(
        pods::OFFLOADED,
        "False",
        Some(reason),
        Some(&reduce::truncate_text(message)),
    );
    let mut status = Map::new();
    conditions.put_into(&mut status);
    pod_status_patch(Map::new(), status)
}

/// Ends a local pod whose remote pod is gone and must not run again: its own controller decides
/// what to do. As for a pod whose node is gone, a Job can distinguish this from the pod's own
/// failure by the condition `DisruptionTarget`.
pub fn lost_patch(home: &Value, message: &str, now: Timestamp) -> Option<Value> {
    failed_patch(
        home,
        pods::REMOTE_POD_LOST,
        message,
        LOST_CONTAINER,
        now,
        Some(pods::REMOTE_POD_LOST),
    )
}

/// Ends a local pod that was deleted before an end was recorded. Its remote pod is gone, or never
/// existed.
pub fn deleted_patch(home: &Value, now: Timestamp) -> Option<Value> {
    failed_patch(
        home,
        "Deleted",
        "the pod was deleted before it ended",
        DELETED_CONTAINER,
        now,
        None,
    )
}

/// Ends a local pod because the provider took back its resources. Its controller replaces it, as
/// after a node evicted it. A Job can distinguish this from the pod's own failure by the condition
/// `DisruptionTarget`.
pub fn evicted_patch(home: &Value, message: &str, now: Timestamp) -> Option<Value> {
    failed_patch(
        home,
        "Evicted",
        message,
        EVICTED_CONTAINER,
        now,
        Some(OFFER_RECLAIMED),
    )
}

/// Ends a local pod. `disruption` is the reason of [`DISRUPTION_TARGET`], if something else than
/// the pod ended it.
fn failed_patch(
    home: &Value,
    reason: &str,
    message: &str,
    container: (&str, &str),
    now: Timestamp,
    disruption: Option<&str>,
) -> Option<Value> {
    if is_final(home) {
        return None;
    }
    let mut status = Map::new();
    set_field(&mut status, home, "phase", Some("Failed".into()));
    set_field(&mut status, home, "reason", Some(reason.into()));
    set_field(
        &mut status,
        home,
        "message",
        Some(reduce::truncate_text(message).into()),
    );
    for list in ContainerList::ALL {
        if let Some(statuses) = containers::ended_statuses(home, list, container, now) {
            status.insert(list.status_field().into(), statuses.into());
        }
    }
    let mut conditions = ConditionChanges::of_pod(home, now);
    for kind in ["Ready", "ContainersReady"] {
        conditions.set(kind, "False", Some("PodFailed"), None);
    }
    if let Some(reason) = disruption {
        conditions.set(DISRUPTION_TARGET, "True", Some(reason), Some(message));
    }
    conditions.put_into(&mut status);
    pod_status_patch(Map::new(), status)
}

/// Makes a local pod not Ready while its peer is down. [`local_status_patch`] restores the
/// conditions when the peer answers: nobody else does.
pub fn not_ready_patch(home: &Value, now: Timestamp) -> Option<Value> {
    if is_final(home)
        || PodView::of(home)
            .status()
            .condition("Ready")
            .is_none_or(|ready| ready.status() != Some("True"))
    {
        return None;
    }
    let mut conditions = ConditionChanges::of_pod(home, now);
    conditions.set(
        "Ready",
        "False",
        Some(PEER_UNREACHABLE.0),
        Some(PEER_UNREACHABLE.1),
    );
    let mut status = Map::new();
    conditions.put_into(&mut status);
    pod_status_patch(Map::new(), status)
}

/// Whether a pod has ended for good.
pub fn is_final(pod: &Value) -> bool {
    PodView::of(pod)
        .status()
        .phase()
        .is_some_and(is_final_phase)
}

/// Whether a pod that has ended has containers whose end is not known.
pub fn lacks_ends(pod: &Value) -> bool {
    is_final(pod) && containers::lack_ends(PodView::of(pod).status())
}

/// The reduced status of an ended pod, with the ends of containers that a later status knows;
/// `None` if it knows none.
pub fn with_late_ends(shown: &Value, later: &Value) -> Option<Value> {
    let (ours, theirs) = (PodStatusView::of(shown), PodStatusView::of(later));
    let is_same_end = ours.phase() == theirs.phase();
    (is_same_end && containers::lack_ends(ours))
        .then(|| containers::with_ends(shown, later))
        .flatten()
}

/// The reduced status of a pod that failed, with [`DISRUPTION_TARGET`] for this reason, unless it
/// has one.
pub(crate) fn with_disruption(mut status: Value, (reason, message): (&str, &str)) -> Value {
    let known = PodStatusView::of(&status);
    if known
        .condition(DISRUPTION_TARGET)
        .is_some_and(|known| known.status() == Some("True"))
    {
        return status;
    }
    let others = known
        .conditions()
        .filter(|one| one.kind() != Some(DISRUPTION_TARGET));
    let mut conditions: Vec<Value> = others.map(|one| one.json().clone()).collect();
    conditions.push(
        json!({"type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message}),
    );
    set_at(&mut status, &["conditions"], conditions);
    status
}

/// The status of a pod, which is not Ready for this reason if it was Ready.
pub(crate) fn with_not_ready(mut status: Value, (reason, message): (&str, &str)) -> Value {
    for condition in status
        .get_mut("conditions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if ConditionView::of(condition).has_status("Ready", "True") {
            for (field, said) in [
                ("status", "False"),
                ("reason", reason),
                ("message", message),
            ] {
                set_at(condition, &[field], said);
            }
        }
    }
    status
}

/// The condition of a pod that something else ends than the pod itself: an eviction, a preemption,
/// its node. Jobs read it.
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The condition of a resize that was not begun. Source: KEP-1287 (in-place update of pod
/// resources).
pub(crate) const RESIZE_PENDING: &str = "PodResizePending";

/// The conditions of a pod that is being resized. They exist only until it has its new size.
pub(crate) const RESIZE_CONDITIONS: [&str; 2] = [RESIZE_PENDING, "PodResizeInProgress"];

const PHASES: [&str; 5] = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];

/// The reason of a container's end in a kubelet's words, for containers that the kubelet cannot
/// find.
const LOST_CONTAINER: (&str, &str) = (
    "ContainerStatusUnknown",
    "the container could not be found when the pod was given up",
);
const DELETED_CONTAINER: (&str, &str) = ("Deleted", "the container ended when the pod was deleted");
/// The reason of a container's end in an evicted pod. `kubectl` shows it as that of the pod.
const EVICTED_CONTAINER: (&str, &str) = (
    "Evicted",
    "the container ended when what the pod used was taken back",
);

const PEER_UNREACHABLE: (&str, &str) = (
    "PeerUnreachable",
    "the cluster in which the pod runs does not answer",
);

/// Whether a local pod is ready, and why not.
enum PodReadiness {
    Ready,
    NotReady {
        reason: Option<String>,
        message: Option<String>,
    },
}

/// Ready depends on the remote containers and node, and on the readiness gates, which are the home
/// cluster's.
fn pod_readiness(home: &Value, remote: &Value, link: &RemotePodView<'_>) -> PodReadiness {
    if !link.peer_answers {
        return PodReadiness::NotReady {
            reason: Some(PEER_UNREACHABLE.0.into()),
            message: Some(PEER_UNREACHABLE.1.into()),
        };
    }
    // The remote pod has no gates: if its Ready differs from ContainersReady, its node is dead.
    for kind in ["ContainersReady", "Ready"] {
        if let Some(theirs) = PodStatusView::of(remote)
            .condition(kind)
            .filter(|theirs| theirs.status() != Some("True"))
        {
            return PodReadiness::NotReady {
                reason: theirs.reason().map(str::to_owned),
                message: theirs.message().map(str::to_owned),
            };
        }
    }
    let pod = PodView::of(home);
    for gate in pod
        .spec()
        .readiness_gates()
        .filter_map(ReadinessGateView::condition_type)
    {
        let holds = pod
            .status()
            .condition(gate)
            .is_some_and(|condition| condition.status() == Some("True"));
        if !holds {
            return PodReadiness::NotReady {
                reason: Some("ReadinessGatesNotReady".into()),
                message: Some(format!("the readiness gate {gate} is not True")),
            };
        }
    }
    PodReadiness::Ready
}

/// The provider's scheduler finds no node. The message is our own, because `PodScheduled` is true
/// at home.
fn set_remote_scheduling(conditions: &mut ConditionChanges, home: &Value, remote: &Value) {
    let remote = PodStatusView::of(remote);
    let Some(theirs) = remote.condition("PodScheduled") else {
        return;
    };
    // A provider that borrows what it lends: the cluster behind it refuses the pod, or finds no
    // node for it.
    let behind = [pods::OFFLOADED, pods::REMOTE_SCHEDULED];
    let mut behind = behind.into_iter().filter_map(|kind| remote.condition(kind));
    let theirs = behind
        .find(|one| one.status() == Some("False"))
        .unwrap_or(theirs);
    if theirs.status() != Some("True") {
        conditions.set(
            pods::REMOTE_SCHEDULED,
            "False",
            theirs.reason(),
            theirs.message(),
        );
    } else if PodView::of(home)
        .status()
        .condition(pods::REMOTE_SCHEDULED)
        .is_some()
    {
        conditions.set(pods::REMOTE_SCHEDULED, "True", Some("Scheduled"), None);
    }
}

/// What a cluster behind the provider says of a pod that runs there, for this reason.
pub fn downstream_message(remote: &Value, reason: &str) -> Option<String> {
    let shown = PodStatusView::of(remote).condition(pods::OFFLOADED)?;
    (shown.reason() == Some(reason)).then(|| shown.message().unwrap_or_default().to_owned())
}

/// The provider accepted the pod. Written only to replace another statement, or to add a problem.
fn set_offloaded(conditions: &mut ConditionChanges, home: &Value, amiss: Option<(&str, &str)>) {
    let shown = PodView::of(home).status().condition(pods::OFFLOADED);
    let is_outdated = shown.is_some_and(|shown| {
        shown.status() != Some("True")
            || shown
                .reason()
                .is_some_and(|reason| pods::INCOMPLETE.contains(&reason))
    });
    if let Some((reason, message)) = amiss {
        conditions.set(pods::OFFLOADED, "True", Some(reason), Some(message));
    } else if is_outdated {
        conditions.set(
            pods::OFFLOADED,
            "True",
            Some(OffloadedReason::Offloaded.as_str()),
            Some("the provider accepted the pod"),
        );
    }
}

/// The start time is written once. A provider's time in the future is not believed.
fn set_start_time(status: &mut Map<String, Value>, home: &Value, remote: &Value, now: Timestamp) {
    if let (None, Some(theirs)) = (
        PodView::of(home).status().start_time(),
        PodStatusView::of(remote).start_time(),
    ) {
        let theirs = theirs.parse::<Timestamp>().ok().filter(|time| *time <= now);
        status.insert("startTime".into(), seconds_timestamp(theirs.unwrap_or(now)));
    }
}

/// Sets or removes a field of the status, if that changes it.
fn set_field(status: &mut Map<String, Value>, home: &Value, field: &str, wanted: Option<Value>) {
    let shown = PodView::of(home).status().json();
    let now = shown.get(field).filter(|now| !now.is_null());
    if now != wanted.as_ref() {
        status.insert(field.into(), wanted.unwrap_or_default());
    }
}

fn condition_status(condition: ConditionView<'_>) -> &str {
    condition
        .status()
        .filter(|status| ["True", "False"].contains(status))
        .unwrap_or("Unknown")
}

/// Times in a status have whole seconds.
pub(crate) fn seconds_timestamp(time: Timestamp) -> Value {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}

fn pod_status_patch(annotations: Map<String, Value>, status: Map<String, Value>) -> Option<Value> {
    let mut body = Map::new();
    if !annotations.is_empty() {
        body.insert(
            "metadata".into(),
            Map::from_iter([("annotations".to_owned(), annotations.into())]).into(),
        );
    }
    if !status.is_empty() {
        body.insert("status".into(), status.into());
    }
    (!body.is_empty()).then_some(body.into())
}

/// The conditions to write: only changed ones. The API server merges them by type, so others stay.
struct ConditionChanges<'a> {
    home: &'a Value,
    now: Timestamp,
    changed: Vec<Value>,
}

impl<'a> ConditionChanges<'a> {
    fn of_pod(home: &'a Value, now: Timestamp) -> Self {
        Self {
            home,
            now,
            changed: Vec::new(),
        }
    }

    /// The time of the last transition is by the home cluster's clock, and changes only with the
    /// status.
    fn set(&mut self, kind: &str, status: &str, reason: Option<&str>, message: Option<&str>) {
        let (reason, message) = (
            reason.map(reduce::truncate_text),
            message.map(reduce::truncate_text),
        );
        let before = PodView::of(self.home).status().condition(kind);
        let status_before = before.and_then(ConditionView::status);
        if status_before == Some(status)
            && before.and_then(ConditionView::reason) == reason.as_deref()
            && before.and_then(ConditionView::message) == message.as_deref()
        {
            return;
        }
        let since = before
            .filter(|_| status_before == Some(status))
            .and_then(ConditionView::last_transition_time);
        let since = since
            .cloned()
            .unwrap_or_else(|| seconds_timestamp(self.now));
        self.changed
            .push(json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}));
    }

    /// Removes a condition, if it exists.
    fn remove(&mut self, kind: &str) {
        self.changed.push(json!({"$patch": "delete", "type": kind}));
    }

    fn put_into(self, status: &mut Map<String, Value>) {
        if !self.changed.is_empty() {
            status.insert("conditions".into(), self.changed.into());
        }
    }
}
