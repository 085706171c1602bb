//! The next step for one shadow pod.
//!
//! The controller calls [`decide`] again after each step with the result, until there is nothing
//! more to do:
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

use crate::json::{OFFER_RECLAIMED, items, set_at, text};
use crate::namespace::mapped::{Destination, DestinationState};
use crate::pod::admission::Refusal;
use crate::pod::carry::resize::{self, PendingResize};
use crate::pod::ephemeral::{self, RefusedContainers};
use crate::pod::local_status::{self, EPHEMERAL_STATUSES, cut};
use crate::pod::metering::{self, Metering};
use crate::pod::reclaim::TakenBack;
use crate::pod::recreated::RECREATED as REMOTE_POD_DELETED;
use crate::pod::remote_pod::{End, RemotePod};
use crate::pod::reported_status::{PodStatusText, ReportedStatus};
use crate::pod::shadow_pod::{MAX_GRACE_SECONDS, Shadow};

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
pub enum Live {
    NotAsked,
    Absent,
    /// It does not belong to this shadow pod.
    OtherOwner,
    /// It belongs to this shadow pod.
    Ours(Arc<RemotePod>),
}

/// The input of a decision.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub shadow: Arc<Shadow>,
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
    pub live: Live,
    /// The reason why the creation failed in this pass.
    pub refusal: Option<Refusal>,
    /// The namespace for the pod.
    pub destination: Destination,
    /// The generation of the shadow pod that the remote pod was updated to.
    pub applied_generation: Option<i64>,
    /// Time for which a detail has been unreported.
    pub unreported_for: Duration,
    /// Whether the pod's room or node is taken back.
    pub taken_back: Option<TakenBack>,
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
pub enum Step {
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

pub fn decide(snapshot: &Snapshot) -> Step {
    let shadow = &snapshot.shadow;
    if shadow.deleted || shadow.deletion_grace.is_some() {
        ending(snapshot, shadow)
    } else if snapshot.reported.phase.is_final() {
        ended(snapshot)
    } else if let Some(pod) = snapshot.pod() {
        running(snapshot, shadow, &pod)
    } else {
        absent(snapshot, shadow)
    }
}

impl Snapshot {
    /// Time until the next decision after a write that lets this pod go. `None` if the watch
    /// reports its end. A pod that the watch never showed may be gone before an interrupted watch
    /// lists the pods again, and then nothing is reported.
    pub fn retry_after_end_of(&self, pod: &RemotePod) -> Option<Duration> {
        let is_seen = self.seen.iter().any(|seen| seen.uid == pod.uid);
        (!is_seen).then_some(UNSEEN_RETRY)
    }

    fn pods(&self) -> Vec<Arc<RemotePod>> {
        let mut pods = self.seen.clone();
        if let Live::Ours(live) = &self.live {
            // The live answer is newer than the watch.
            pods.retain(|pod| pod.key != live.key);
            pods.push(live.clone());
        }
        pods
    }

    /// The pod; the expected one first.
    fn pod(&self) -> Option<Arc<RemotePod>> {
        let pods = self.pods();
        pods.iter()
            .find(|pod| Some(&pod.uid) == self.expected_uid.as_ref())
            .or(pods.first())
            .cloned()
    }

    fn unwanted(&self, pod: &RemotePod) -> bool {
        self.destination.state == DestinationState::Unwanted
            || pod.key.namespace != self.destination.namespace
    }

    /// The reason why this pod ends or will end, if its resources are taken back. An evicted pod
    /// keeps the reason.
    fn reclaimed(&self, pod: &RemotePod) -> Option<String> {
        if pod.deletion_grace.is_none() && !self.is_evicted(pod) {
            return self.ends_now().cloned().filter(|_| pod.end.is_none());
        }
        self.reported_reclaim()
    }

    fn ends_now(&self) -> Option<&String> {
        self.taken_back
            .as_ref()
            .and_then(|taken_back| match taken_back {
                TakenBack::Now(why) => Some(why),
                TakenBack::AfterNotice(_) => None,
            })
    }

    /// The message about when and why this running pod will end.
    fn notice(&self, pod: &RemotePod) -> Option<&String> {
        let stays = pod.end.is_none() && pod.deletion_grace.is_none();
        self.taken_back
            .as_ref()
            .filter(|_| stays)
            .and_then(|taken_back| match taken_back {
                TakenBack::Now(_) => None,
                TakenBack::AfterNotice(why) => Some(why),
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
    fn created_again(&self, pod: &Arc<RemotePod>) -> Option<Step> {
        let leaves = pod.deletion_grace.is_some() && pod.has_finalizer && ends_unseen(pod);
        let is_outdated = self.time_until_outdated(pod) == Some(Duration::ZERO);
        if !(leaves || is_outdated) || self.reclaimed(pod).is_some() {
            return None;
        }
        // Before the pod goes: afterwards it would count as one that vanished.
        let waiting = ReportedStatus {
            charges: self.charges_if_gone(),
            ..ReportedStatus::default()
        };
        let step = if leaves {
            Step::StripFinalizer(pod.clone())
        } else {
            Step::DeleteUnscheduled(pod.clone())
        };
        Some(self.record(waiting).unwrap_or(step))
    }

    /// Time until a pod that waits for a node is created again, because its pool has other nodes
    /// than when it was created.
    fn time_until_outdated(&self, pod: &RemotePod) -> Option<Duration> {
        let waits = !pod.is_scheduled()
            && pod.end.is_none()
            && pod.deletion_grace.is_none()
            && self.reclaimed(pod).is_none();
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
    fn end_is_awaited(&self) -> bool {
        let nobody_reads_it = self.shadow.deleted || self.shadow.deletion_grace == Some(0);
        !nobody_reads_it && !self.reported.phase.is_final()
    }

    /// The recorded end of the pod, with what a later status says of its containers.
    fn with_late_ends(&self) -> Option<ReportedStatus> {
        let (shown, pod) = (self.reported.pod.as_ref()?, self.pod()?);
        let status = local_status::with_late_ends(&shown.value(), &pod.status.value())?;
        Some(ReportedStatus {
            pod: Some(PodStatusText::of(&status)),
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
        metering::seen(
            &self.reported,
            &self.pods(),
            pod,
            self.metering.as_ref(),
            now,
        )
    }

    /// The charges for the pod, if it is gone now.
    fn charges_if_gone(&self) -> Option<Arc<str>> {
        self.gone().map_or_else(
            || self.reported.charges.clone(),
            |charges| metering::text(&charges),
        )
    }

    /// The recorded status of a pod that is gone.
    fn reported_gone(&self) -> ReportedStatus {
        ReportedStatus {
            charges: self.charges_if_gone(),
            ..self.reported.clone()
        }
    }

    /// The status to record before the pod is deleted, because afterwards nobody knows since when
    /// it was charged.
    fn first_charges(&self, pod: &RemotePod) -> Option<ReportedStatus> {
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
        self.gone()
            .filter(|charges| unstored && !charges.is_empty())
    }

    /// The charges of a pod that is gone. `None` without a contract.
    fn gone(&self) -> Option<Charges> {
        let metering = self.metering.as_ref()?;
        Some(metering::gone(
            &self.reported,
            metering,
            self.shadow.charged_until(self.now),
        ))
    }

    /// The reason why the pod differs from its record. The reported reason stays until the present
    /// record is judged.
    fn refused_change(&self, shadow: &Shadow) -> Option<&String> {
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

    fn record(&self, reported: ReportedStatus) -> Option<Step> {
        (self.reported != reported).then_some(Step::Report(reported))
    }
}

/// The step for a pod without a shadow pod: nobody wants it, and nobody will read how it ended.
pub fn decide_orphan(pod: &Arc<RemotePod>) -> Step {
    delete(pod, Some(bounded_grace(pod)))
        .or_else(|| pod.has_finalizer.then(|| Step::StripFinalizer(pod.clone())))
        .unwrap_or(Step::Wait)
}

/// The deletion to request: the first one, one with less grace, or one that was interrupted.
fn delete(pod: &Arc<RemotePod>, grace: Option<i64>) -> Option<Step> {
    let needed = match pod.deletion_grace {
        None => true,
        // The API server writes a grace of zero before it deletes the object. The kubelet repeats
        // that for a pod that has a node.
        Some(0) if !pod.is_scheduled() && !pod.has_finalizer => true,
        Some(given) => grace.is_some_and(|wanted| wanted < given),
    };
    needed.then(|| Step::Delete(pod.clone(), grace))
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
fn ending(snapshot: &Snapshot, shadow: &Shadow) -> Step {
    let pods = snapshot.pods();
    if pods.is_empty() {
        let never_named = shadow.pod_name.is_empty();
        if !snapshot.observed_deletion && !never_named && snapshot.live == Live::NotAsked {
            return Step::ReadLive;
        }
        if let Some(pod) = snapshot
            .ended_and_gone
            .as_ref()
            .filter(|_| snapshot.end_is_awaited())
        {
            return Step::Report(ReportedStatus {
                charges: snapshot.charges_if_gone(),
                ..status_of(pod)
            });
        }
        return snapshot
            .unstored_usage()
            .map_or(Step::Release, Step::StoreUsage);
    }
    for pod in &pods {
        if let Some(status) = snapshot.first_charges(pod) {
            return Step::Report(status);
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
            let clamped = |grace: i64| {
                if snapshot.ends_now().is_some() {
                    grace.min(MAX_GRACE_SECONDS)
                } else {
                    grace
                }
            };
            shadow.deletion_grace.map(clamped)
        };
        if let Some(step) = delete(pod, grace) {
            return step;
        }
        if pod.has_finalizer && (!snapshot.end_is_awaited() || ends_unseen(pod)) {
            return Step::StripFinalizer(pod.clone());
        }
        if pod.end.is_some() && snapshot.end_is_awaited() {
            return Step::Report(snapshot.status_of(pod));
        }
    }
    pods.iter()
        .find_map(|pod| snapshot.retry_after_end_of(pod))
        .map_or(Step::Wait, Step::WaitFor)
}

/// The end of the pod is recorded. The pod stays, with its logs, as long as the local pod.
fn ended(snapshot: &Snapshot) -> Step {
    if let Some(status) = snapshot.with_late_ends() {
        return Step::Report(status);
    }
    for pod in snapshot.pods() {
        if (snapshot.reported.phase == ShadowPodPhase::Lost || snapshot.unwanted(&pod))
            && let Some(step) = delete(&pod, Some(bounded_grace(&pod)))
        {
            return step;
        }
        if pod.has_finalizer {
            return Step::StripFinalizer(pod);
        }
    }
    Step::Wait
}

/// The pod exists.
fn running(snapshot: &Snapshot, shadow: &Shadow, pod: &Arc<RemotePod>) -> Step {
    if snapshot.unwanted(pod)
        && let Some(step) = delete(pod, Some(bounded_grace(pod)))
    {
        return step;
    }
    if let Some(step) = snapshot.created_again(pod) {
        return step;
    }
    let leaving = pod.deletion_grace.is_some();
    let time_until_given_up = snapshot.time_until_given_up(pod);
    let given_up = time_until_given_up == Some(Duration::ZERO);
    let reclaimed = snapshot.reclaimed(pod);
    let mut wanted = snapshot.status_of(pod);
    if given_up {
        wanted.charges = snapshot.charges_if_gone();
    }
    wanted.pod = ephemeral::with_refused(wanted.pod, &snapshot.refused_containers);
    if let Some(message) = snapshot
        .refused_change(shadow)
        .filter(|_| pod.end.is_none())
    {
        wanted.reason = Some(pods::CHANGE_REFUSED.to_owned());
        wanted.message = Some(cut(message));
    }
    if let Some(notice) = snapshot.notice(pod) {
        wanted.reason = Some(pods::ENDS_SOON.to_owned());
        wanted.message = Some(notice.clone());
    }
    let resize_retry = snapshot.resize_retry.filter(|_| pod.end.is_none());
    wanted.pod = resize::with_pending(
        wanted.pod,
        snapshot
            .pending_resize
            .as_ref()
            .filter(|_| pod.end.is_none()),
    );
    if leaving && pod.end.is_none() {
        wanted.pod = wanted.pod.map(|status| leaves_here(&status));
    }
    let succeeded = pod.end == Some(End::Succeeded) && !shadow.restarts;
    if let Some(reason) = reclaimed.as_ref().filter(|_| !succeeded) {
        wanted = if pod.end.is_some() || given_up {
            evicted(wanted, reason)
        } else {
            ReportedStatus {
                reason: Some(OFFER_RECLAIMED.to_owned()),
                message: Some(reason.clone()),
                ..wanted
            }
        };
    } else if given_up {
        wanted = lost(
            wanted,
            "the pod was deleted at the provider, and its node there does not answer to end it",
        );
    } else if leaving && shadow.restarts && pod.end.is_some() {
        // It ends only because somebody here deletes it, and is created again: its owner sees no
        // end.
        wanted.phase = ShadowPodPhase::Created;
        wanted.pod.clone_from(&snapshot.reported.pod);
    } else if leaving && pod.end == Some(End::Failed) {
        wanted.pod = wanted.pod.map(|status| deleted_here(&status));
    }
    if leaving && pod.has_finalizer && ends_unseen(pod) {
        return Step::StripFinalizer(pod.clone());
    }
    let news = news(&snapshot.reported, &wanted, shadow.restarts);
    if news == News::Headline || (news == News::Detail && snapshot.unreported_for >= DETAIL_DELAY) {
        return Step::Report(wanted);
    }
    if !leaving
        && !snapshot.is_evicted(pod)
        && reclaimed.is_some()
        && reclaimed == snapshot.reported_reclaim()
    {
        return Step::Evict(pod.clone(), bounded_grace(pod));
    }
    if !leaving
        && (snapshot.applied_generation != Some(shadow.generation)
            || resize_retry == Some(Duration::ZERO))
    {
        return Step::Update(pod.clone());
    }
    let untold =
        (news == News::Detail).then(|| DETAIL_DELAY.saturating_sub(snapshot.unreported_for));
    let wait = if untold.is_some() {
        Step::WaitToReport
    } else {
        Step::WaitFor
    };
    let waits = time_until_given_up
        .into_iter()
        .chain(snapshot.time_until_outdated(pod))
        .chain(resize_retry.filter(|_| !leaving));
    untold
        .into_iter()
        .chain(waits)
        .min()
        .map_or(Step::Wait, wait)
}

/// No pod is known.
fn absent(snapshot: &Snapshot, shadow: &Shadow) -> Step {
    let name_was_taken = snapshot.reported.reason.as_deref() == Some(NAME_TAKEN);
    if snapshot.live == Live::NotAsked
        && (snapshot.expected_uid.is_some() || name_was_taken)
        && !shadow.pod_name.is_empty()
    {
        return Step::ReadLive;
    }
    if let Some(reason) = snapshot
        .reported_reclaim()
        .filter(|_| snapshot.expected_uid.is_some())
    {
        return Step::Report(evicted(snapshot.reported_gone(), &reason));
    }
    if snapshot.expected_uid.is_some()
        && snapshot
            .refusal
            .as_ref()
            .is_some_and(Refusal::is_about_offer)
    {
        // It ran, so the local pod shows that it runs: it cannot wait for room again.
        let reason = format!(
            "the pod disappeared at the provider, and pool {} is too small for it now",
            shadow.pool
        );
        return Step::Report(evicted(snapshot.reported_gone(), &reason));
    }
    if snapshot.expected_uid.is_some() && !shadow.restarts {
        let why = "the pod vanished at the provider before it ended, and its restartPolicy forbids to run it again";
        return Step::Report(lost(snapshot.reported_gone(), why));
    }
    let (mut reported, otherwise) = if shadow.pod_name.is_empty() {
        let message = match &shadow.unreadable {
            Some(why) => format!("the record of the pod is refused: {why}"),
            None => "the pod has no valid name".to_owned(),
        };
        (
            refused(OffloadedReason::Invalid.as_str(), message),
            Step::Wait,
        )
    } else if let Some(refusal) = &snapshot.refusal {
        let again = if refusal.is_about_offer() {
            Step::Wait
        } else {
            Step::WaitFor(REFUSED_RETRY)
        };
        (refused(refusal.reason, refusal.message.clone()), again)
    } else {
        match &snapshot.destination.state {
            DestinationState::Unwanted => {
                let message = format!(
                    "namespace {} is not offloaded to this cluster",
                    shadow.namespace
                );
                (pending(NAMESPACE_NOT_READY, message), Step::Wait)
            }
            DestinationState::NotReady(message) => {
                (pending(NAMESPACE_NOT_READY, message.clone()), Step::Wait)
            }
            DestinationState::Ready if snapshot.name_taken || snapshot.live == Live::OtherOwner => {
                let message = format!(
                    "another pod named {} exists in namespace {} of this cluster; this one starts when that one is gone",
                    shadow.pod_name, snapshot.destination.namespace
                );
                (
                    pending(NAME_TAKEN, message),
                    Step::WaitFor(NAME_TAKEN_RETRY),
                )
            }
            DestinationState::Ready => return Step::Create,
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
        return Step::WaitToReport(WORDS_DELAY.saturating_sub(snapshot.unreported_for));
    }
    snapshot.record(reported).unwrap_or(otherwise)
}

fn refused(reason: &str, message: String) -> ReportedStatus {
    ReportedStatus {
        phase: ShadowPodPhase::Refused,
        reason: Some(reason.to_owned()),
        message: Some(message),
        ..ReportedStatus::default()
    }
}

fn pending(reason: &str, message: String) -> ReportedStatus {
    ReportedStatus {
        phase: ShadowPodPhase::Pending,
        ..refused(reason, message)
    }
}

/// The end of a pod whose resources were taken back, like that of a pod evicted under node
/// pressure.
fn evicted(reported: ReportedStatus, reason: &str) -> ReportedStatus {
    let mut status = reported
        .pod
        .as_ref()
        .map(PodStatusText::value)
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
        pod: Some(PodStatusText::of(&status)),
        ..reported
    }
}

/// The status of a pod that somebody here deletes, and whose owner wants it. Its kubelet lets it be
/// Ready until its containers have ended; at home it would count as healthy meanwhile.
fn leaves_here(status: &PodStatusText) -> PodStatusText {
    PodStatusText::of(&local_status::not_ready(
        status.value(),
        (
            REMOTE_POD_DELETED,
            "the pod is being deleted in the other cluster",
        ),
    ))
}

/// The status of a pod that failed because somebody here deleted it: not by itself, whatever its
/// exit code says.
fn deleted_here(status: &PodStatusText) -> PodStatusText {
    let message = "the pod was deleted in the other cluster";
    PodStatusText::of(&local_status::with_disruption(
        status.value(),
        (REMOTE_POD_DELETED, message),
    ))
}

/// The end of a pod whose fate is unknown.
fn lost(reported: ReportedStatus, why: &str) -> ReportedStatus {
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
        Some(End::Succeeded) => ShadowPodPhase::Succeeded,
        Some(End::Failed) => ShadowPodPhase::Failed,
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
enum News {
    Nothing,
    /// Not worth a write of its own if more important changes come soon.
    Detail,
    /// Worth a write at once.
    Headline,
}

fn news(reported: &ReportedStatus, wanted: &ReportedStatus, restarts: bool) -> News {
    if reported == wanted {
        return News::Nothing;
    }
    // A pod that may run again need not be recorded at once: if it vanishes, it is created again.
    let new_pod = reported.remote_uid != wanted.remote_uid;
    let first = reported.remote_uid.is_none() && reported.reason.is_none() && restarts;
    if reported.phase.is_final() != wanted.phase.is_final()
        || reported.reason != wanted.reason
        || (new_pod && !first)
    {
        return News::Headline;
    }
    if headline(reported.pod.as_ref()) == headline(wanted.pod.as_ref()) {
        News::Detail
    } else {
        News::Headline
    }
}

/// The parts of a pod's status that its owner waits for: phase, readiness, and the states of its
/// containers.
fn headline(status: Option<&PodStatusText>) -> (String, bool, Vec<Value>) {
    let status = status.map(PodStatusText::value).unwrap_or_default();
    let phase = text(&status, "/phase").unwrap_or("Pending").to_owned();
    let conditions = items(&status, "/conditions");
    let ready = conditions
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let containers = [
        "initContainerStatuses",
        "containerStatuses",
        EPHEMERAL_STATUSES,
    ]
    .iter()
    .flat_map(|list| items(&status, &format!("/{list}")));
    let doing = containers.filter_map(container_headline).collect();
    (phase, ready, doing)
}

fn container_headline(status: &Value) -> Option<Value> {
    let reason = text(status, "/state/waiting/reason");
    let just_starting = matches!(reason, Some("ContainerCreating" | "PodInitializing"));
    let before_any_start = just_starting && status["restartCount"] == 0;
    let state = status["state"]
        .as_object()
        .and_then(|state| state.keys().next());
    let reported = serde_json::json!([
        status["name"],
        status["ready"],
        status["started"],
        status["restartCount"],
        state,
        reason
    ]);
    (!before_any_start).then_some(reported)
}

/// The key of a shadow pod's remote pod.
pub fn pod_key(shadow: &Shadow, destination: &Destination) -> Key {
    Key::new(destination.namespace.clone(), shadow.pod_name.clone())
}

#[cfg(test)]
mod tests;
