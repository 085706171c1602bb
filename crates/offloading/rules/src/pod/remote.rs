//! The next step for one shadow pod.
//!
//! The controller calls [`decide_shadow_pod`] again after each step with the result, until there is
//! nothing more to do:
//!
//! ```text
//!   no remote pod     --Create-->  the pod exists  --Record-->  ... Record ...  --Record-->  Succeeded or Failed
//!        |   ^                          |                                                        |
//!        |   +--- gone, may run again --+-- gone, must not run again --Record--> Lost      StripFinalizer
//!        v
//!   Pending or Refused, with a reason              deletion wanted: Delete, wait until it is gone, Release
//!
//!   its resources are taken back: Record that, Evict, wait until it ended, Record Failed
//! ```
//!
//! When a provider takes back the resources of a pod, it records that in the status before it
//! evicts the pod. So the pod is not created again here; it ends at home too, and its controller
//! replaces it elsewhere.
//!
//! A pod may stay in deletion because its node does not respond. If it may run again, it counts as
//! lost after a while: at home it fails, and its controller replaces it. The remote pod disappears
//! when the node comes back.
//!
//! Where the tenancy has a contract, the status also says what the pod is charged and since when,
//! and what a pod used is stored before its shadow pod goes: see [`metering`].
//!
//! A pod that may run only once has a finalizer, so that it cannot vanish before its end is
//! recorded. Only a live GET proves that a pod is gone, never a cache.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use liqo_api::pods::{self, REMOTE_POD_LOST};
use liqo_api::{Key, OffloadedReason, ShadowPodPhase};
use liqo_metering::Charges;
use serde_json::Value;

use crate::json::{OFFER_RECLAIMED, set_at};
use crate::namespace::mapped::{Destination, DestinationState};
use crate::pod::admission::AdmissionRefusal;
use crate::pod::carry::resize::{self, PendingResize};
use crate::pod::ephemeral::{self, RefusedContainers};
use crate::pod::local_status::{self, truncate_text};
use crate::pod::metering::{self, Metering};
use crate::pod::reclaim::PodReclaim;
use crate::pod::recreated::RECREATED as REMOTE_POD_DELETED;
use crate::pod::remote_pod::{PodEnd, RemotePod};
use crate::pod::reported_status::{PodStatusText, ReportedStatus};
use crate::pod::shadow_pod::{MAX_GRACE_SECONDS, ProviderShadowPod};
use crate::views::{ContainerList, ContainerStatusView, PodStatusView, WaitingStateView};

/// Delay before details are reported, because a more important change may come and include them.
pub(crate) const DETAIL_DELAY: Duration = Duration::from_secs(1);

/// Maximum time for which the reported message of a refusal may be out of date while its reason
/// stays.
const WORDS_DELAY: Duration = Duration::from_mins(1);

/// Delay before a name that another pod has is tried again.
const NAME_TAKEN_RETRY: Duration = Duration::from_secs(10);

/// Delay before a refused pod is tried again although nothing changed that could be the cause.
pub const REFUSED_RETRY: Duration = Duration::from_mins(5);

/// Delay before a shadow pod is looked at again whose pod was deleted before the watch showed it.
const UNSEEN_RETRY: Duration = Duration::from_secs(10);

/// A pod that waits for nodes which its pool does not have any more is created again when it is
/// this old: another change may come.
const OUTDATED_DELAY: Duration = Duration::from_secs(10);

/// A pod whose grace ended this long ago is on a node that does not respond.
const OVERDUE: Duration = Duration::from_secs(30);

/// Reason: another pod has the name.
pub const NAME_TAKEN: &str = OffloadedReason::NameTaken.as_str();
/// Reason: the namespace does not exist here (yet).
pub const NAMESPACE_NOT_READY: &str = OffloadedReason::NamespaceNotReady.as_str();

/// The API server's answer about the pod with the wanted name.
#[derive(Clone, Debug, PartialEq)]
pub enum LivePod {
    NotAsked,
    Absent,
    /// It does not belong to this shadow pod.
    OtherOwner,
    /// It belongs to this shadow pod.
    Ours(Arc<RemotePod>),
}

/// The input of a decision.
#[derive(Clone, Debug)]
pub struct ShadowPodSnapshot {
    pub shadow: Arc<ProviderShadowPod>,
    /// Its status, including our own writes that the watch has not shown yet.
    pub reported: ReportedStatus,
    /// UID of the expected pod: the recorded one, or one that was just created.
    pub expected_uid: Option<String>,
    /// Its pods that the watch shows.
    pub seen: Vec<Arc<RemotePod>>,
    /// Whether the watch reported that the expected pod is gone.
    pub observed_deletion: bool,
    /// The expected pod as it was last, if it ended and is gone.
    pub ended_and_gone: Option<Arc<RemotePod>>,
    /// Whether the watch shows another pod of the wanted name.
    pub name_taken: bool,
    pub live: LivePod,
    /// The reason why the creation failed in this pass.
    pub refusal: Option<AdmissionRefusal>,
    /// The namespace for the pod.
    pub destination: Destination,
    /// The generation of the shadow pod that the remote pod was updated to.
    pub applied_generation: Option<i64>,
    /// Time for which a detail has been unreported.
    pub unreported_for: Duration,
    /// Whether the pod's room or node is taken back.
    pub taken_back: Option<PodReclaim>,
    /// The hash of the nodes of its pool now; `None` without an offer.
    pub pool_nodes: Option<String>,
    /// UID of the pod that was evicted for that; the watch may not show it yet.
    pub evicted_uid: Option<String>,
    /// Ephemeral containers that were refused.
    pub refused_containers: RefusedContainers,
    /// The reason why the pod differs from its record of the applied generation.
    pub refused_change: Option<String>,
    /// The reason why the pod is not resized as its shadow pod asks.
    pub pending_resize: Option<PendingResize>,
    /// Time until that is tried again; zero means now, `None` that nothing but a change makes it
    /// possible.
    pub resize_retry: Option<Duration>,
    /// The measurement of the pod's usage, if the tenancy has a contract.
    pub metering: Option<Metering>,
    pub now: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ShadowPodStep {
    /// Nothing, until something changes.
    Wait,
    /// Nothing, until something changes or this time is over.
    WaitFor(Duration),
    /// The same, while something is not reported yet.
    WaitToReport(Duration),
    /// Ask the API server for the pod with the wanted name, not a cache.
    ReadLive,
    /// Create the pod, if the offer has room.
    Create,
    /// Write this status.
    Report(ReportedStatus),
    /// Update labels, annotations, images and amounts of the pod.
    Update(Arc<RemotePod>),
    /// Delete the pod, with this grace or its own.
    Delete(Arc<RemotePod>, Option<i64>),
    /// Delete the pod, unless it has a node by now.
    DeleteUnscheduled(Arc<RemotePod>),
    /// Evict the pod with this grace, as far as disruption budgets allow.
    Evict(Arc<RemotePod>, i64),
    /// Remove our finalizer from the pod.
    StripFinalizer(Arc<RemotePod>),
    /// The pod is gone: store what it used.
    StoreUsage(Charges),
    /// The pod is gone: remove the finalizer of the shadow pod.
    Release,
}

pub fn decide_shadow_pod(snapshot: &ShadowPodSnapshot) -> ShadowPodStep {
    let shadow = &snapshot.shadow;
    if shadow.deleted || shadow.deletion_grace.is_some() {
        decide_ending(snapshot, shadow)
    } else if snapshot.reported.phase.is_final() {
        decide_ended(snapshot)
    } else if let Some(pod) = snapshot.current_pod() {
        decide_running(snapshot, shadow, &pod)
    } else {
        decide_absent(snapshot, shadow)
    }
}

impl ShadowPodSnapshot {
    /// Time until the next decision after a write that lets this pod go. `None` if the watch
    /// reports its end. A pod that the watch never showed may be gone before an interrupted watch
    /// lists the pods again, and then nothing is reported.
    pub fn retry_after_end_of(&self, pod: &RemotePod) -> Option<Duration> {
        let is_seen = self.seen.iter().any(|seen| seen.uid == pod.uid);
        (!is_seen).then_some(UNSEEN_RETRY)
    }

    fn known_pods(&self) -> Vec<Arc<RemotePod>> {
        let mut pods = self.seen.clone();
        if let LivePod::Ours(live) = &self.live {
            // The live answer is newer than the watch.
            pods.retain(|pod| pod.key != live.key);
            pods.push(live.clone());
        }
        pods
    }

    /// The pod; the expected one first.
    fn current_pod(&self) -> Option<Arc<RemotePod>> {
        let pods = self.known_pods();
        pods.iter()
            .find(|pod| Some(&pod.uid) == self.expected_uid.as_ref())
            .or(pods.first())
            .cloned()
    }

    fn is_unwanted(&self, pod: &RemotePod) -> bool {
        self.destination.state == DestinationState::Unwanted
            || pod.key.namespace != self.destination.namespace
    }

    /// The reason why this pod ends or will end, if its resources are taken back. An evicted pod
    /// keeps the reason.
    fn reclaim_reason(&self, pod: &RemotePod) -> Option<String> {
        if pod.deletion_grace.is_none() && !self.is_evicted(pod) {
            return self
                .immediate_end_reason()
                .cloned()
                .filter(|_| pod.end.is_none());
        }
        self.reported_reclaim()
    }

    fn immediate_end_reason(&self) -> Option<&String> {
        self.taken_back
            .as_ref()
            .and_then(|taken_back| match taken_back {
                PodReclaim::Now(why) => Some(why),
                PodReclaim::AfterNotice(_) => None,
            })
    }

    /// The message about when and why this running pod will end.
    fn end_notice(&self, pod: &RemotePod) -> Option<&String> {
        let stays = pod.end.is_none() && pod.deletion_grace.is_none();
        self.taken_back
            .as_ref()
            .filter(|_| stays)
            .and_then(|taken_back| match taken_back {
                PodReclaim::Now(_) => None,
                PodReclaim::AfterNotice(why) => Some(why),
            })
    }

    /// Time until this pod, which is being deleted here and may run again, is given up; zero means
    /// now.
    fn time_until_given_up(&self, pod: &RemotePod) -> Option<Duration> {
        let due = pod
            .deletion_due
            .filter(|_| self.shadow.restarts && pod.end.is_none())?;
        let overdue = Duration::try_from(self.now.duration_since(due)).unwrap_or_default();
        // Before the grace is over, the whole delay remains.
        let left = Duration::try_from(due.duration_since(self.now)).unwrap_or_default();
        Some(left + OVERDUE.saturating_sub(overdue))
    }

    /// The step towards another pod, if this one never gets a node: it is being deleted, or waits
    /// for nodes that its pool does not have any more. It never ran, so another one may, also if
    /// the pod may run only once.
    fn recreation_step(&self, pod: &Arc<RemotePod>) -> Option<ShadowPodStep> {
        let leaves = pod.deletion_grace.is_some() && pod.has_finalizer && ends_unseen(pod);
        let is_outdated = self.time_until_outdated(pod) == Some(Duration::ZERO);
        if !(leaves || is_outdated) || self.reclaim_reason(pod).is_some() {
            return None;
        }
        // Before the pod goes: afterwards it would count as one that vanished.
        let waiting = ReportedStatus {
            charges: self.charges_if_gone(),
            ..ReportedStatus::default()
        };
        let step = if leaves {
            ShadowPodStep::StripFinalizer(pod.clone())
        } else {
            ShadowPodStep::DeleteUnscheduled(pod.clone())
        };
        Some(self.report_step(waiting).unwrap_or(step))
    }

    /// Time until a pod that waits for a node is created again, because its pool has other nodes
    /// than when it was created.
    fn time_until_outdated(&self, pod: &RemotePod) -> Option<Duration> {
        let waits = !pod.is_scheduled()
            && pod.end.is_none()
            && pod.deletion_grace.is_none()
            && self.reclaim_reason(pod).is_none();
        let (then, now) = pod
            .pool_nodes
            .as_ref()
            .zip(self.pool_nodes.as_ref())
            .filter(|_| waits)?;
        let age = Duration::try_from(self.now.duration_since(pod.created)).unwrap_or_default();
        (then != now).then(|| OUTDATED_DELAY.saturating_sub(age))
    }

    /// Whether the consumer, which asked for the deletion of the pod, waits for a report of its
    /// end.
    fn is_end_awaited(&self) -> bool {
        let nobody_reads_it = self.shadow.deleted || self.shadow.deletion_grace == Some(0);
        !nobody_reads_it && !self.reported.phase.is_final()
    }

    /// The recorded end of the pod, with what a later status says of its containers.
    fn with_late_ends(&self) -> Option<ReportedStatus> {
        let (shown, pod) = (self.reported.pod.as_ref()?, self.current_pod()?);
        let status = local_status::with_late_ends(&shown.to_value(), &pod.status.to_value())?;
        Some(ReportedStatus {
            pod: Some(PodStatusText::from_status(&status)),
            ..self.reported.clone()
        })
    }

    fn is_evicted(&self, pod: &RemotePod) -> bool {
        self.evicted_uid.as_ref() == Some(&pod.uid)
    }

    /// The reason, from the recorded status.
    fn reported_reclaim(&self) -> Option<String> {
        let reclaimed = self.reported.reason.as_deref() == Some(OFFER_RECLAIMED);
        reclaimed.then(|| self.reported.message.clone().unwrap_or_default())
    }

    /// The status of an existing pod, with what it is charged.
    fn status_of(&self, pod: &RemotePod) -> ReportedStatus {
        ReportedStatus {
            charges: self.charges_of(pod),
            ..status_of(pod)
        }
    }

    /// The charges for an existing pod.
    fn charges_of(&self, pod: &RemotePod) -> Option<Arc<str>> {
        let now = self.shadow.charged_until(self.now);
        metering::charges_after_seen(
            &self.reported,
            &self.known_pods(),
            pod,
            self.metering.as_ref(),
            now,
        )
    }

    /// The charges for the pod, if it is gone now.
    fn charges_if_gone(&self) -> Option<Arc<str>> {
        self.final_charges().map_or_else(
            || self.reported.charges.clone(),
            |charges| metering::charges_text(&charges),
        )
    }

    /// The recorded status of a pod that is gone.
    fn status_if_gone(&self) -> ReportedStatus {
        ReportedStatus {
            charges: self.charges_if_gone(),
            ..self.reported.clone()
        }
    }

    /// The status to record before the pod is deleted, because afterwards nobody knows since when
    /// it was charged.
    fn status_with_first_charges(&self, pod: &RemotePod) -> Option<ReportedStatus> {
        let charges = self
            .charges_of(pod)
            .filter(|_| self.reported.charges.is_none())?;
        Some(ReportedStatus {
            charges: Some(charges),
            ..self.reported.clone()
        })
    }

    /// The usage of the pod, which is gone, if that is not stored yet.
    fn unstored_usage(&self) -> Option<Charges> {
        let unstored = self
            .metering
            .as_ref()
            .is_some_and(|metering| !metering.is_stored);
        self.final_charges()
            .filter(|charges| unstored && !charges.is_empty())
    }

    /// The charges of a pod that is gone. `None` without a contract.
    fn final_charges(&self) -> Option<Charges> {
        let metering = self.metering.as_ref()?;
        Some(metering::charges_after_gone(
            &self.reported,
            metering,
            self.shadow.charged_until(self.now),
        ))
    }

    /// The reason why the pod differs from its record. The reported reason stays until the present
    /// record is judged.
    fn refused_change(&self, shadow: &ProviderShadowPod) -> Option<&String> {
        let is_judged = self.applied_generation == Some(shadow.generation);
        let told = self
            .reported
            .message
            .as_ref()
            .filter(|_| self.reported.reason.as_deref() == Some(pods::CHANGE_REFUSED));
        if is_judged {
            self.refused_change.as_ref()
        } else {
            told
        }
    }

    fn report_step(&self, reported: ReportedStatus) -> Option<ShadowPodStep> {
        (self.reported != reported).then_some(ShadowPodStep::Report(reported))
    }
}

/// The step for a pod without a shadow pod: nobody wants it, and nobody will read how it ended.
pub fn decide_orphan(pod: &Arc<RemotePod>) -> ShadowPodStep {
    deletion_step(pod, Some(bounded_grace(pod)))
        .or_else(|| {
            pod.has_finalizer
                .then(|| ShadowPodStep::StripFinalizer(pod.clone()))
        })
        .unwrap_or(ShadowPodStep::Wait)
}

/// The deletion to request: the first one, one with less grace, or one that was interrupted.
fn deletion_step(pod: &Arc<RemotePod>, grace: Option<i64>) -> Option<ShadowPodStep> {
    let needed = match pod.deletion_grace {
        None => true,
        // The API server writes a grace of zero before it deletes the object. The kubelet repeats
        // that for a pod that has a node.
        Some(0) if !pod.is_scheduled() && !pod.has_finalizer => true,
        Some(given) => grace.is_some_and(|wanted| wanted < given),
    };
    needed.then(|| ShadowPodStep::Delete(pod.clone(), grace))
}

/// Whether nobody will ever report how this pod, which is being deleted, ended: it has no node, and
/// gets none any more. A virtual node reports an end as a kubelet does, before the pod goes.
fn ends_unseen(pod: &RemotePod) -> bool {
    pod.end.is_none() && !pod.is_scheduled()
}

/// The pod's own grace, limited to that of a pod whose end its consumer did not ask for.
fn bounded_grace(pod: &RemotePod) -> i64 {
    default_grace(Some(pod.own_grace))
}

/// The grace in seconds of a pod whose shadow pod is deleted without one; 30 is Kubernetes'
/// default.
pub(crate) fn default_grace(own: Option<i64>) -> i64 {
    own.unwrap_or(30).clamp(1, MAX_GRACE_SECONDS)
}

/// The consumer wants the pod to end.
fn decide_ending(snapshot: &ShadowPodSnapshot, shadow: &ProviderShadowPod) -> ShadowPodStep {
    let pods = snapshot.known_pods();
    if pods.is_empty() {
        let never_named = shadow.pod_name.is_empty();
        if !snapshot.observed_deletion && !never_named && snapshot.live == LivePod::NotAsked {
            return ShadowPodStep::ReadLive;
        }
        if let Some(pod) = snapshot
            .ended_and_gone
            .as_ref()
            .filter(|_| snapshot.is_end_awaited())
        {
            return ShadowPodStep::Report(ReportedStatus {
                charges: snapshot.charges_if_gone(),
                ..status_of(pod)
            });
        }
        return snapshot
            .unstored_usage()
            .map_or(ShadowPodStep::Release, ShadowPodStep::StoreUsage);
    }
    for pod in &pods {
        if let Some(status) = snapshot.status_with_first_charges(pod) {
            return ShadowPodStep::Report(status);
        }
        let grace = if shadow.deleted {
            // The end of a tenancy does not wait for the grace that its consumer asked for before.
            Some(
                shadow
                    .deletion_grace
                    .map_or_else(|| bounded_grace(pod), |grace| grace.min(MAX_GRACE_SECONDS)),
            )
        } else {
            // Nor do resources that are taken back.
            shadow.deletion_grace.map(|grace| {
                if snapshot.immediate_end_reason().is_some() {
                    grace.min(MAX_GRACE_SECONDS)
                } else {
                    grace
                }
            })
        };
        if let Some(step) = deletion_step(pod, grace) {
            return step;
        }
        if pod.has_finalizer && (!snapshot.is_end_awaited() || ends_unseen(pod)) {
            return ShadowPodStep::StripFinalizer(pod.clone());
        }
        if pod.end.is_some() && snapshot.is_end_awaited() {
            return ShadowPodStep::Report(snapshot.status_of(pod));
        }
    }
    pods.iter()
        .find_map(|pod| snapshot.retry_after_end_of(pod))
        .map_or(ShadowPodStep::Wait, ShadowPodStep::WaitFor)
}

/// The end of the pod is recorded. The pod stays, with its logs, as long as the local pod.
fn decide_ended(snapshot: &ShadowPodSnapshot) -> ShadowPodStep {
    if let Some(status) = snapshot.with_late_ends() {
        return ShadowPodStep::Report(status);
    }
    for pod in snapshot.known_pods() {
        if (snapshot.reported.phase == ShadowPodPhase::Lost || snapshot.is_unwanted(&pod))
            && let Some(step) = deletion_step(&pod, Some(bounded_grace(&pod)))
        {
            return step;
        }
        if pod.has_finalizer {
            return ShadowPodStep::StripFinalizer(pod);
        }
    }
    ShadowPodStep::Wait
}

/// The pod exists.
fn decide_running(
    snapshot: &ShadowPodSnapshot,
    shadow: &ProviderShadowPod,
    pod: &Arc<RemotePod>,
) -> ShadowPodStep {
    if snapshot.is_unwanted(pod)
        && let Some(step) = deletion_step(pod, Some(bounded_grace(pod)))
    {
        return step;
    }
    if let Some(step) = snapshot.recreation_step(pod) {
        return step;
    }
    let leaving = pod.deletion_grace.is_some();
    let time_until_given_up = snapshot.time_until_given_up(pod);
    let given_up = time_until_given_up == Some(Duration::ZERO);
    let reclaimed = snapshot.reclaim_reason(pod);
    let mut wanted = snapshot.status_of(pod);
    if given_up {
        wanted.charges = snapshot.charges_if_gone();
    }
    wanted.pod = ephemeral::with_refused_containers(wanted.pod, &snapshot.refused_containers);
    if let Some(message) = snapshot
        .refused_change(shadow)
        .filter(|_| pod.end.is_none())
    {
        wanted.reason = Some(pods::CHANGE_REFUSED.to_owned());
        wanted.message = Some(truncate_text(message));
    }
    if let Some(notice) = snapshot.end_notice(pod) {
        wanted.reason = Some(pods::ENDS_SOON.to_owned());
        wanted.message = Some(notice.clone());
    }
    let resize_retry = snapshot.resize_retry.filter(|_| pod.end.is_none());
    wanted.pod = resize::with_pending_resize(
        wanted.pod,
        snapshot
            .pending_resize
            .as_ref()
            .filter(|_| pod.end.is_none()),
    );
    if leaving && pod.end.is_none() {
        wanted.pod = wanted.pod.map(|status| leaving_status(&status));
    }
    let succeeded = pod.end == Some(PodEnd::Succeeded) && !shadow.restarts;
    if let Some(reason) = reclaimed.as_ref().filter(|_| !succeeded) {
        wanted = if pod.end.is_some() || given_up {
            evicted_status(wanted, reason)
        } else {
            ReportedStatus {
                reason: Some(OFFER_RECLAIMED.to_owned()),
                message: Some(reason.clone()),
                ..wanted
            }
        };
    } else if given_up {
        wanted = lost_status(
            wanted,
            "the pod was deleted at the provider, and its node there does not answer to end it",
        );
    } else if leaving && shadow.restarts && pod.end.is_some() {
        // It ends only because somebody here deletes it, and is created again: its owner sees no
        // end.
        wanted.phase = ShadowPodPhase::Created;
        wanted.pod.clone_from(&snapshot.reported.pod);
    } else if leaving && pod.end == Some(PodEnd::Failed) {
        wanted.pod = wanted.pod.map(|status| deleted_status(&status));
    }
    if leaving && pod.has_finalizer && ends_unseen(pod) {
        return ShadowPodStep::StripFinalizer(pod.clone());
    }
    let news = report_urgency(&snapshot.reported, &wanted, shadow.restarts);
    if news == ReportUrgency::Headline
        || (news == ReportUrgency::Detail && snapshot.unreported_for >= DETAIL_DELAY)
    {
        return ShadowPodStep::Report(wanted);
    }
    if !leaving
        && !snapshot.is_evicted(pod)
        && reclaimed.is_some()
        && reclaimed == snapshot.reported_reclaim()
    {
        return ShadowPodStep::Evict(pod.clone(), bounded_grace(pod));
    }
    if !leaving
        && (snapshot.applied_generation != Some(shadow.generation)
            || resize_retry == Some(Duration::ZERO))
    {
        return ShadowPodStep::Update(pod.clone());
    }
    let untold = (news == ReportUrgency::Detail)
        .then(|| DETAIL_DELAY.saturating_sub(snapshot.unreported_for));
    let wait = if untold.is_some() {
        ShadowPodStep::WaitToReport
    } else {
        ShadowPodStep::WaitFor
    };
    let waits = time_until_given_up
        .into_iter()
        .chain(snapshot.time_until_outdated(pod))
        .chain(resize_retry.filter(|_| !leaving));
    untold
        .into_iter()
        .chain(waits)
        .min()
        .map_or(ShadowPodStep::Wait, wait)
}

/// No pod is known.
fn decide_absent(snapshot: &ShadowPodSnapshot, shadow: &ProviderShadowPod) -> ShadowPodStep {
    let name_was_taken = snapshot.reported.reason.as_deref() == Some(NAME_TAKEN);
    if snapshot.live == LivePod::NotAsked
        && (snapshot.expected_uid.is_some() || name_was_taken)
        && !shadow.pod_name.is_empty()
    {
        return ShadowPodStep::ReadLive;
    }
    if let Some(reason) = snapshot
        .reported_reclaim()
        .filter(|_| snapshot.expected_uid.is_some())
    {
        return ShadowPodStep::Report(evicted_status(snapshot.status_if_gone(), &reason));
    }
    if snapshot.expected_uid.is_some()
        && snapshot
            .refusal
            .as_ref()
            .is_some_and(AdmissionRefusal::is_about_offer)
    {
        // It ran, so the local pod shows that it runs: it cannot wait for room again.
        let reason = format!(
            "the pod disappeared at the provider, and pool {} is too small for it now",
            shadow.pool
        );
        return ShadowPodStep::Report(evicted_status(snapshot.status_if_gone(), &reason));
    }
    if snapshot.expected_uid.is_some() && !shadow.restarts {
        let why = "the pod vanished at the provider before it ended, and its restartPolicy forbids to run it again";
        return ShadowPodStep::Report(lost_status(snapshot.status_if_gone(), why));
    }
    let (mut reported, otherwise) = if shadow.pod_name.is_empty() {
        let message = match &shadow.unreadable {
            Some(why) => format!("the record of the pod is refused: {why}"),
            None => "the pod has no valid name".to_owned(),
        };
        (
            refused_status(OffloadedReason::Invalid.as_str(), message),
            ShadowPodStep::Wait,
        )
    } else if let Some(refusal) = &snapshot.refusal {
        let again = if refusal.is_about_offer() {
            ShadowPodStep::Wait
        } else {
            ShadowPodStep::WaitFor(REFUSED_RETRY)
        };
        (
            refused_status(refusal.reason, refusal.message.clone()),
            again,
        )
    } else {
        match &snapshot.destination.state {
            DestinationState::Unwanted => {
                let message = format!(
                    "namespace {} is not offloaded to this cluster",
                    shadow.namespace
                );
                (
                    pending_status(NAMESPACE_NOT_READY, message),
                    ShadowPodStep::Wait,
                )
            }
            DestinationState::NotReady(message) => (
                pending_status(NAMESPACE_NOT_READY, message.clone()),
                ShadowPodStep::Wait,
            ),
            DestinationState::Ready
                if snapshot.name_taken || snapshot.live == LivePod::OtherOwner =>
            {
                let message = format!(
                    "another pod named {} exists in namespace {} of this cluster; this one starts when that one is gone",
                    shadow.pod_name, snapshot.destination.namespace
                );
                (
                    pending_status(NAME_TAKEN, message),
                    ShadowPodStep::WaitFor(NAME_TAKEN_RETRY),
                )
            }
            DestinationState::Ready => return ShadowPodStep::Create,
        }
    };
    reported.charges = snapshot.charges_if_gone();
    let same_word =
        reported.phase == snapshot.reported.phase && reported.reason == snapshot.reported.reason;
    let other_words_only = same_word
        && reported.message != snapshot.reported.message
        && snapshot.expected_uid.is_none();
    if other_words_only && snapshot.unreported_for < WORDS_DELAY {
        // The missing amount changes with every other pod; that is not worth a write each time.
        return ShadowPodStep::WaitToReport(WORDS_DELAY.saturating_sub(snapshot.unreported_for));
    }
    snapshot.report_step(reported).unwrap_or(otherwise)
}

fn refused_status(reason: &str, message: String) -> ReportedStatus {
    ReportedStatus {
        phase: ShadowPodPhase::Refused,
        reason: Some(reason.to_owned()),
        message: Some(message),
        ..ReportedStatus::default()
    }
}

fn pending_status(reason: &str, message: String) -> ReportedStatus {
    ReportedStatus {
        phase: ShadowPodPhase::Pending,
        ..refused_status(reason, message)
    }
}

/// The end of a pod whose resources were taken back, like that of a pod evicted under node
/// pressure.
fn evicted_status(reported: ReportedStatus, reason: &str) -> ReportedStatus {
    let mut status = reported
        .pod
        .as_ref()
        .map(PodStatusText::to_value)
        .unwrap_or_default();
    for (field, said) in [
        ("phase", "Failed"),
        ("reason", "Evicted"),
        ("message", reason),
    ] {
        set_at(&mut status, &[field], said);
    }
    ReportedStatus {
        phase: ShadowPodPhase::Failed,
        reason: Some(OFFER_RECLAIMED.to_owned()),
        message: Some(reason.to_owned()),
        pod: Some(PodStatusText::from_status(&status)),
        ..reported
    }
}

/// The status of a pod that somebody here deletes, and whose owner wants it. Its kubelet lets it be
/// Ready until its containers have ended; at home it would count as healthy meanwhile.
fn leaving_status(status: &PodStatusText) -> PodStatusText {
    PodStatusText::from_status(&local_status::with_not_ready(
        status.to_value(),
        (
            REMOTE_POD_DELETED,
            "the pod is being deleted in the other cluster",
        ),
    ))
}

/// The status of a pod that failed because somebody here deleted it: not by itself, whatever its
/// exit code says.
fn deleted_status(status: &PodStatusText) -> PodStatusText {
    let message = "the pod was deleted in the other cluster";
    PodStatusText::from_status(&local_status::with_disruption(
        status.to_value(),
        (REMOTE_POD_DELETED, message),
    ))
}

/// The end of a pod whose fate is unknown.
fn lost_status(reported: ReportedStatus, why: &str) -> ReportedStatus {
    ReportedStatus {
        phase: ShadowPodPhase::Lost,
        reason: Some(REMOTE_POD_LOST.to_owned()),
        message: Some(why.to_owned()),
        ..reported
    }
}

/// The status of an existing pod.
fn status_of(pod: &RemotePod) -> ReportedStatus {
    let phase = match pod.end {
        Some(PodEnd::Succeeded) => ShadowPodPhase::Succeeded,
        Some(PodEnd::Failed) => ShadowPodPhase::Failed,
        None => ShadowPodPhase::Created,
    };
    let (remote_uid, status) = (Some(pod.uid.clone()), Some(pod.status.clone()));
    ReportedStatus {
        phase,
        remote_uid,
        pod: status,
        ..ReportedStatus::default()
    }
}

/// The importance of an unreported change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportUrgency {
    Nothing,
    /// Not worth a write of its own if more important changes come soon.
    Detail,
    /// Worth a write at once.
    Headline,
}

fn report_urgency(
    reported: &ReportedStatus,
    wanted: &ReportedStatus,
    restarts: bool,
) -> ReportUrgency {
    if reported == wanted {
        return ReportUrgency::Nothing;
    }
    // A pod that may run again need not be recorded at once: if it vanishes, it is created again.
    let new_pod = reported.remote_uid != wanted.remote_uid;
    let first = reported.remote_uid.is_none() && reported.reason.is_none() && restarts;
    if reported.phase.is_final() != wanted.phase.is_final()
        || reported.reason != wanted.reason
        || (new_pod && !first)
    {
        return ReportUrgency::Headline;
    }
    if status_headline(reported.pod.as_ref()) == status_headline(wanted.pod.as_ref()) {
        ReportUrgency::Detail
    } else {
        ReportUrgency::Headline
    }
}

/// The parts of a pod's status that its owner waits for.
#[derive(PartialEq)]
struct StatusHeadline {
    phase: String,
    is_ready: bool,
    /// The states of its containers.
    containers: Vec<Value>,
}

fn status_headline(status: Option<&PodStatusText>) -> StatusHeadline {
    let status = status.map(PodStatusText::to_value).unwrap_or_default();
    let status = PodStatusView::of(&status);
    let mut conditions = status.conditions();
    let containers = ContainerList::ALL
        .into_iter()
        .flat_map(|list| status.statuses_in(list));
    StatusHeadline {
        phase: status.phase().unwrap_or("Pending").to_owned(),
        is_ready: conditions.any(|condition| condition.has_status("Ready", "True")),
        containers: containers.filter_map(container_headline).collect(),
    }
}

fn container_headline(status: ContainerStatusView<'_>) -> Option<Value> {
    let waiting = status.state().waiting();
    let reason = waiting.and_then(WaitingStateView::reason);
    let just_starting = matches!(reason, Some("ContainerCreating" | "PodInitializing"));
    let before_any_start = just_starting && status.restart_count() == Some(0);
    let state = status.state().json();
    let state = state.as_object().and_then(|state| state.keys().next());
    let reported = serde_json::json!([
        status.name(),
        status.ready(),
        status.started(),
        status.restart_count(),
        state,
        reason
    ]);
    (!before_any_start).then_some(reported)
}

/// The key of a shadow pod's remote pod.
pub fn pod_key(shadow: &ProviderShadowPod, destination: &Destination) -> Key {
    Key::new(destination.namespace.clone(), shadow.pod_name.clone())
}

#[cfg(test)]
mod tests;
