//! What is to be done next for one shadow pod.
//!
//! [`decide`] is asked again after each step with what the step brought, until there is nothing more to do:
//!
//! ```text
//!   no remote pod     --Create-->  the pod exists  --Record-->  ... Record ...  --Record-->  Succeeded or Failed
//!        |   ^                          |                                                        |
//!        |   +--- gone, may run again --+-- gone, must not run again --Record--> Lost      StripFinalizer
//!        v
//!   Pending or Refused, with a reason              deletion wanted: Delete, wait until it is gone, Forget
//!
//!   what it uses is taken back: Record that, Evict, wait until it ended, Record Failed
//! ```
//!
//! That a pod ends because its provider took back what it uses stands in the status before the pod is evicted. So it is not
//! made again, but ends at home too, where its controller brings up another one elsewhere.
//!
//! A pod that is being deleted here and stays, because its node is not there to end it, is lost to its owner after a while, if it may
//! run again: at home it fails, and its controller brings up another one. It is gone for good when the node comes back.
//!
//! A pod that may run only once has a finalizer, so that it cannot vanish before its end is recorded. Whether a pod is gone
//! is asked of the API server, never concluded from a cache.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use liqo_api::{ShadowPodPhase, pods::REMOTE_POD_LOST};
use liqo_kit::Key;
use serde_json::Value;

use super::{
    admission::Refusal,
    remote_pods::{End, RemotePod},
    shadows::Shadow,
    told::{PodStatusText, Told},
};
use crate::decide::OFFER_RECLAIMED;

/// How long a detail may stay untold, in the hope that more important news take it along.
pub const DETAIL_DELAY: Duration = Duration::from_secs(1);

/// How long the words of a refusal may be out of date while its reason stays.
const WORDS_DELAY: Duration = Duration::from_secs(60);

/// How often a name that somebody else's pod has is looked at.
const NAME_TAKEN_RETRY: Duration = Duration::from_secs(10);

/// How often a pod that the API server refused is tried again although nothing changed that may have removed the cause.
pub const REFUSED_RETRY: Duration = Duration::from_secs(300);

/// A pod whose grace is over for so long is on a node that is not there to end it.
const OVERDUE: Duration = Duration::from_secs(30);

/// More grace than this a pod does not get when it is not its consumer that ends it.
pub const LONGEST_GRACE: i64 = 30;

/// Reason: the pod's name is taken by somebody else's pod.
pub const NAME_TAKEN: &str = "NameTaken";
/// Reason: the namespace does not exist here (yet).
pub const NAMESPACE_NOT_READY: &str = "NamespaceNotReady";

/// Where the pods of a home namespace run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The mapped namespace.
    pub namespace: String,
    /// Whether pods may be created in it.
    pub state: PlaceState,
}

/// Whether pods may be created in a mapped namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceState {
    /// Yes.
    Ready,
    /// Not (yet), for this reason. Pods that run in it stay.
    NotReady(String),
    /// The consumer does not want it (any more): pods that run in it go.
    Unwanted,
}

/// What the API server said of the pod with the wanted name.
#[derive(Clone, Debug, PartialEq)]
pub enum Live {
    /// It was not asked.
    NotAsked,
    /// There is none.
    Absent,
    /// It is somebody else's.
    Stranger,
    /// It is that of this shadow pod.
    Ours(Arc<RemotePod>),
}

/// All that a decision needs.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The shadow pod.
    pub shadow: Arc<Shadow>,
    /// What its status says, counting what we wrote and the watch has not shown yet.
    pub told: Told,
    /// UID of the pod that exists as far as we know: the recorded one, or one that was just created.
    pub expected_uid: Option<String>,
    /// Its pods that the watch shows.
    pub seen: Vec<Arc<RemotePod>>,
    /// Whether the watch reported that the expected pod is gone.
    pub saw_gone: bool,
    /// Whether the watch shows somebody else's pod of the wanted name.
    pub name_taken: bool,
    /// What the API server said of the pod with the wanted name.
    pub live: Live,
    /// Why the pod could not be created in this pass.
    pub refusal: Option<Refusal>,
    /// Where it runs.
    pub place: Place,
    /// The generation whose labels, annotations and images the remote pod has.
    pub applied_generation: Option<i64>,
    /// For how long a detail has not been told.
    pub untold_for: Duration,
    /// Why the pod is to end, if what it uses is taken back.
    pub reclaim: Option<String>,
    /// UID of the pod that was evicted for that, which the watch may not show yet.
    pub evicted_uid: Option<String>,
    /// The time of the day.
    pub now: Timestamp,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing, until something changes.
    Wait,
    /// Nothing, until something changes or this time is over.
    WaitFor(Duration),
    /// Ask the API server for the pod with the wanted name, and for nothing older than now.
    Look,
    /// Create the pod, if the offer has room.
    Create,
    /// Write this status.
    Record(Told),
    /// Bring labels, annotations and images of the pod up to date.
    Update(Arc<RemotePod>),
    /// Delete the pod, with this grace or its own.
    Delete(Arc<RemotePod>, Option<i64>),
    /// End the pod with this grace as far as disruption budgets let it.
    Evict(Arc<RemotePod>, i64),
    /// Remove our finalizer from the pod.
    StripFinalizer(Arc<RemotePod>),
    /// The pod is gone: let the shadow pod go too.
    Forget,
}

/// What is to be done next.
pub fn decide(snapshot: &Snapshot) -> Step {
    let shadow = &snapshot.shadow;
    if shadow.deleted || shadow.deletion_grace.is_some() {
        ending(snapshot, shadow)
    } else if snapshot.told.phase.is_final() {
        ended(snapshot)
    } else if let Some(pod) = snapshot.pod() {
        running(snapshot, shadow, &pod)
    } else {
        absent(snapshot, shadow)
    }
}

impl Snapshot {
    fn pods(&self) -> Vec<Arc<RemotePod>> {
        let mut pods = self.seen.clone();
        if let Live::Ours(live) = &self.live {
            // What the API server said now is newer than what the watch shows.
            pods.retain(|pod| pod.key != live.key);
            pods.push(live.clone());
        }
        pods
    }

    /// The pod, the expected one first.
    fn pod(&self) -> Option<Arc<RemotePod>> {
        let pods = self.pods();
        pods.iter().find(|pod| Some(&pod.uid) == self.expected_uid.as_ref()).or(pods.first()).cloned()
    }

    fn unwanted(&self, pod: &RemotePod) -> bool {
        self.place.state == PlaceState::Unwanted || pod.key.namespace != self.place.namespace
    }

    /// Why this pod ends or will end, if what it uses is taken back. One that was evicted for that stays so.
    fn reclaimed(&self, pod: &RemotePod) -> Option<String> {
        if pod.deletion_grace.is_none() && !self.is_evicted(pod) {
            return self.reclaim.clone().filter(|_| pod.end.is_none());
        }
        self.told_reclaimed()
    }

    /// How long until this pod, which is being deleted here and may run again, is given up; zero: now.
    fn patience(&self, pod: &RemotePod) -> Option<Duration> {
        let due = pod.deletion_due.filter(|_| self.shadow.restarts && pod.end.is_none())?;
        let overdue = Duration::try_from(self.now.duration_since(due)).unwrap_or_default();
        // Before the grace is over, all of it is still to come.
        let left = Duration::try_from(due.duration_since(self.now)).unwrap_or_default();
        Some(left + OVERDUE.saturating_sub(overdue))
    }

    fn is_evicted(&self, pod: &RemotePod) -> bool {
        self.evicted_uid.as_ref() == Some(&pod.uid)
    }

    /// The same, as it was told.
    fn told_reclaimed(&self) -> Option<String> {
        let reclaimed = self.told.reason.as_deref() == Some(OFFER_RECLAIMED);
        reclaimed.then(|| self.told.message.clone().unwrap_or_default())
    }

    fn record(&self, told: Told) -> Option<Step> {
        (self.told != told).then_some(Step::Record(told))
    }
}

/// What is to be done with a pod that no shadow pod stands for: nobody wants it, and nobody will read how it ended.
pub fn decide_orphan(pod: &Arc<RemotePod>) -> Step {
    delete(pod, Some(bounded_grace(pod))).or_else(|| pod.held.then(|| Step::StripFinalizer(pod.clone()))).unwrap_or(Step::Wait)
}

/// The deletion to ask for: the first one, or one with less grace.
fn delete(pod: &Arc<RemotePod>, grace: Option<i64>) -> Option<Step> {
    let needed = match pod.deletion_grace {
        None => true,
        Some(given) => grace.is_some_and(|wanted| wanted < given),
    };
    needed.then(|| Step::Delete(pod.clone(), grace))
}

/// The pod's own grace, but no more than a pod gets that nobody waits for.
fn bounded_grace(pod: &RemotePod) -> i64 {
    pod.own_grace.clamp(1, LONGEST_GRACE)
}

/// Home wants the pod to go.
fn ending(snapshot: &Snapshot, shadow: &Shadow) -> Step {
    let pods = snapshot.pods();
    if pods.is_empty() {
        let never_named = shadow.pod_name.is_empty();
        return if snapshot.saw_gone || never_named || snapshot.live != Live::NotAsked { Step::Forget } else { Step::Look };
    }
    for pod in &pods {
        let grace = if shadow.deleted {
            // The end of a tenancy does not wait either for what its consumer asked for before.
            Some(shadow.deletion_grace.map_or_else(|| bounded_grace(pod), |grace| grace.min(LONGEST_GRACE)))
        } else {
            // Nor does what is taken back.
            let bounded = |grace: i64| if snapshot.reclaim.is_some() { grace.min(LONGEST_GRACE) } else { grace };
            shadow.deletion_grace.map(bounded)
        };
        if let Some(step) = delete(pod, grace) {
            return step;
        }
        if !pod.held {
            continue;
        }
        let nobody_reads_the_end = shadow.deleted || shadow.deletion_grace == Some(0);
        let never_ran = !pod.placed && pod.end.is_none();
        if nobody_reads_the_end || never_ran || snapshot.told.phase.is_final() {
            return Step::StripFinalizer(pod.clone());
        }
        if pod.end.is_some() {
            return Step::Record(told_of(pod));
        }
    }
    Step::Wait
}

/// The end of the pod is recorded. It stays, with its logs, as long as the home pod.
fn ended(snapshot: &Snapshot) -> Step {
    for pod in snapshot.pods() {
        if (snapshot.told.phase == ShadowPodPhase::Lost || snapshot.unwanted(&pod))
            && let Some(step) = delete(&pod, Some(bounded_grace(&pod)))
        {
            return step;
        }
        if pod.held {
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
    let leaving = pod.deletion_grace.is_some();
    let patience = snapshot.patience(pod);
    let given_up = patience == Some(Duration::ZERO);
    let reclaimed = snapshot.reclaimed(pod);
    let mut wanted = told_of(pod);
    let succeeded = pod.end == Some(End::Succeeded) && !shadow.restarts;
    if let Some(reason) = reclaimed.as_ref().filter(|_| !succeeded) {
        wanted = if pod.end.is_some() || given_up {
            evicted(wanted, reason)
        } else {
            Told { reason: Some(OFFER_RECLAIMED.to_owned()), message: Some(reason.clone()), ..wanted }
        };
    } else if given_up {
        wanted = lost(wanted, "the pod was deleted at the provider, and its node there does not answer to end it");
    } else if leaving && shadow.restarts && pod.end.is_some() {
        // It ends only because somebody here deletes it, and will be made again: that is no end for its owner.
        wanted.phase = ShadowPodPhase::Created;
        wanted.pod.clone_from(&snapshot.told.pod);
    }
    if leaving && pod.held && !pod.placed && pod.end.is_none() {
        // It never ran, so no kubelet will ever say how it ended.
        return Step::StripFinalizer(pod.clone());
    }
    let news = news(&snapshot.told, &wanted, shadow.restarts);
    if news == News::Headline || (news == News::Detail && snapshot.untold_for >= DETAIL_DELAY) {
        return Step::Record(wanted);
    }
    if !leaving && !snapshot.is_evicted(pod) && reclaimed.is_some() && reclaimed == snapshot.told_reclaimed() {
        return Step::Evict(pod.clone(), bounded_grace(pod));
    }
    if !leaving && snapshot.applied_generation != Some(shadow.generation) {
        return Step::Update(pod.clone());
    }
    let untold = (news == News::Detail).then(|| DETAIL_DELAY.saturating_sub(snapshot.untold_for));
    untold.into_iter().chain(patience).min().map_or(Step::Wait, Step::WaitFor)
}

/// No pod is known of.
fn absent(snapshot: &Snapshot, shadow: &Shadow) -> Step {
    let name_was_taken = snapshot.told.reason.as_deref() == Some(NAME_TAKEN);
    if snapshot.live == Live::NotAsked && (snapshot.expected_uid.is_some() || name_was_taken) && !shadow.pod_name.is_empty() {
        return Step::Look;
    }
    if let Some(reason) = snapshot.told_reclaimed().filter(|_| snapshot.expected_uid.is_some()) {
        return Step::Record(evicted(snapshot.told.clone(), &reason));
    }
    if snapshot.expected_uid.is_some() && snapshot.refusal.as_ref().is_some_and(Refusal::is_about_offer) {
        // It ran, so home shows that it runs: it cannot go back to waiting for room.
        let reason = format!("the pod vanished there, and pool {} has no room for it any more", shadow.pool);
        return Step::Record(evicted(snapshot.told.clone(), &reason));
    }
    if snapshot.expected_uid.is_some() && !shadow.restarts {
        let why = "the pod vanished at the provider before it ended, and its restartPolicy forbids to run it again";
        return Step::Record(lost(snapshot.told.clone(), why));
    }
    let (told, otherwise) = if shadow.pod_name.is_empty() {
        (refused("Invalid", "the pod has no valid name".to_owned()), Step::Wait)
    } else if let Some(refusal) = &snapshot.refusal {
        let again = if refusal.is_about_offer() { Step::Wait } else { Step::WaitFor(REFUSED_RETRY) };
        (refused(refusal.reason, refusal.message.clone()), again)
    } else {
        match &snapshot.place.state {
            PlaceState::Unwanted => {
                let message = format!("namespace {} is not offloaded to this cluster", shadow.namespace);
                (pending(NAMESPACE_NOT_READY, message), Step::Wait)
            }
            PlaceState::NotReady(message) => (pending(NAMESPACE_NOT_READY, message.clone()), Step::Wait),
            PlaceState::Ready if snapshot.name_taken || snapshot.live == Live::Stranger => {
                let message = format!(
                    "another pod named {} exists in namespace {} of this cluster; this one starts when that one is gone",
                    shadow.pod_name, snapshot.place.namespace
                );
                (pending(NAME_TAKEN, message), Step::WaitFor(NAME_TAKEN_RETRY))
            }
            PlaceState::Ready => return Step::Create,
        }
    };
    let same_word = told.phase == snapshot.told.phase && told.reason == snapshot.told.reason;
    let other_words_only = same_word && told.message != snapshot.told.message && snapshot.expected_uid.is_none();
    if other_words_only && snapshot.untold_for < WORDS_DELAY {
        // How much is short changes with every other pod; that is not worth a write each time.
        return Step::WaitFor(WORDS_DELAY.saturating_sub(snapshot.untold_for));
    }
    snapshot.record(told).unwrap_or(otherwise)
}

fn refused(reason: &str, message: String) -> Told {
    Told { phase: ShadowPodPhase::Refused, reason: Some(reason.to_owned()), message: Some(message), ..Told::default() }
}

fn pending(reason: &str, message: String) -> Told {
    Told { phase: ShadowPodPhase::Pending, ..refused(reason, message) }
}

/// The end of a pod whose room was taken back: as when a node ends a pod because it has too little of something.
fn evicted(told: Told, reason: &str) -> Told {
    let mut status = told.pod.as_ref().map(PodStatusText::value).unwrap_or_default();
    status["phase"] = "Failed".into();
    status["reason"] = "Evicted".into();
    status["message"] = reason.into();
    Told {
        phase: ShadowPodPhase::Failed,
        reason: Some(OFFER_RECLAIMED.to_owned()),
        message: Some(reason.to_owned()),
        pod: Some(PodStatusText::of(&status)),
        ..told
    }
}

/// The end of a pod of which nobody will ever say how it ended.
fn lost(told: Told, why: &str) -> Told {
    Told { phase: ShadowPodPhase::Lost, reason: Some(REMOTE_POD_LOST.to_owned()), message: Some(why.to_owned()), ..told }
}

/// What the status says of an existing pod.
fn told_of(pod: &RemotePod) -> Told {
    let phase = match pod.end {
        Some(End::Succeeded) => ShadowPodPhase::Succeeded,
        Some(End::Failed) => ShadowPodPhase::Failed,
        None => ShadowPodPhase::Created,
    };
    Told { phase, reason: None, message: None, remote_uid: Some(pod.uid.clone()), pod: Some(pod.status.clone()) }
}

/// How much a status says that was not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    /// Worth a write of its own only if nothing better comes along.
    Detail,
    /// Worth a write at once.
    Headline,
}

fn news(told: &Told, wanted: &Told, restarts: bool) -> News {
    if told == wanted {
        return News::Nothing;
    }
    // A pod that may run again need not be recorded at once: should it vanish, it is made again.
    let new_pod = told.remote_uid != wanted.remote_uid;
    let first = told.remote_uid.is_none() && told.reason.is_none() && restarts;
    if told.phase.is_final() != wanted.phase.is_final() || told.reason != wanted.reason || (new_pod && !first) {
        return News::Headline;
    }
    if headline(told.pod.as_ref()) == headline(wanted.pod.as_ref()) { News::Detail } else { News::Headline }
}

/// What of a pod's status its owner waits for: phase, readiness, and what its containers do.
fn headline(status: Option<&PodStatusText>) -> (String, bool, Vec<Value>) {
    let status = status.map(PodStatusText::value).unwrap_or_default();
    let phase = status["phase"].as_str().unwrap_or("Pending").to_owned();
    let conditions = status["conditions"].as_array();
    let ready = conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let containers =
        ["initContainerStatuses", "containerStatuses"].iter().flat_map(|list| status[list].as_array().into_iter().flatten());
    let doing = containers.filter_map(container_headline).collect();
    (phase, ready, doing)
}

fn container_headline(status: &Value) -> Option<Value> {
    let reason = status["state"]["waiting"]["reason"].as_str();
    let just_starting = matches!(reason, Some("ContainerCreating" | "PodInitializing"));
    let before_any_start = just_starting && status["restartCount"] == 0;
    let state = status["state"].as_object().and_then(|state| state.keys().next());
    let told = serde_json::json!([status["name"], status["ready"], status["started"], status["restartCount"], state, reason]);
    (!before_any_start).then_some(told)
}

/// Where the pod of a shadow pod is or would be.
pub fn pod_key(shadow: &Shadow, place: &Place) -> Key {
    Key::new(place.namespace.clone(), shadow.pod_name.clone())
}

#[cfg(test)]
mod tests;
