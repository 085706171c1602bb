//! Decides what to do about one offloaded pod: a pure function of the local pod, its shadow pod and
//! the peer.
//!
//! The rules, most important first: a pod that has ended never runs again; a pod that may run only
//! once is sent only once; the silence of a peer proves nothing, but for a pod that it ran on our
//! own node and that this cluster ended itself; what is not started there comes home, if it may run
//! here and its controller creates it again.
//!
//! ```text
//!   why it does not start                                replaced
//!   refused, or kept waiting, with a reason              at once if the reason lasts, else after the refusal timeout
//!   an object that it needs does not get there           (the same)
//!   no node there, no image, no sandbox                  after the refusal timeout
//! ```

use std::time::Duration;

use jiff::Timestamp;
use liqo_api::departure::DepartureCause;
use liqo_api::{EvictionDelay, OffloadedReason, ShadowPodPhase};

use crate::json::OFFER_RECLAIMED;
use crate::pod::carry::PodRefusal;
use crate::pod::carry::api_server::ApiServerChoice;
use crate::pod::carry::obstacle::obstacle_of_controller;
use crate::pod::controller;
use crate::pod::local_state::{ConsumerShadowPod, LocalPod};
use crate::pod::refusals::{self, RefusalCause};
use crate::pod::shadow_pod::MAX_GRACE_SECONDS;
use crate::pod::waiting::WaitingStatus;

/// Reason of the condition on a pod that may run only once, or that gets a token: written before
/// the pod is sent, replaced by the provider's answer.
pub const SENDING: &str = OffloadedReason::Sending.as_str();

/// The reasons why the pods of a namespace no longer run at any provider.
const ENDED: [&str; 2] = [
    OffloadedReason::NamespaceNotOffloaded.as_str(),
    OffloadedReason::OffloadingIsLocal.as_str(),
];

/// Maximum delay until the watch shows a shadow pod that we created. After that, the controller
/// asks for it.
pub const VISIBLE_WITHIN: Duration = Duration::from_secs(10);

/// Interval between two checks whether a pod of ours that a silent peer ran here has ended.
const ENDED_HERE_POLL: Duration = Duration::from_secs(5);

/// Whether the peer can be asked and believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerReachability {
    /// It answers, and its caches are complete.
    Answers,
    /// It does not answer, or its caches are incomplete: absence proves nothing.
    Silent,
    /// It has been silent for so long that its pods count as not Ready.
    Down,
}

/// The place where a peer ran a pod of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastRunPlace {
    /// Elsewhere, or nobody said.
    Elsewhere,
    /// On a node of ours, and it is not known to have ended.
    Here,
    /// On a node of ours. This cluster took back what the peer's pods used, and ended it for this
    /// reason. It never runs again.
    EndedHere(String),
}

/// The state of the local pod's namespace at this provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteNamespaceState {
    /// Pods can run in the remote namespace.
    Ready,
    /// It does not exist yet.
    Waiting,
    /// The pods of this namespace do not run at this provider.
    Refused {
        reason: &'static str,
        /// For the pod's owner, with the next step.
        message: String,
    },
}

/// The progress of this process in sending the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendProgress {
    No,
    /// It wrote [`SENDING`] on the pod, and no later call is known to have succeeded.
    Tried,
    /// The provider took the shadow pod this long ago, and the watch has not shown it yet.
    Created(Duration),
}

/// The input of a decision.
#[derive(Debug, Clone)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
pub struct LocalPodFacts<'a> {
    /// `None` if no such pod is bound to a node of this peer.
    pub home: Option<&'a LocalPod>,
    pub shadow: Option<&'a ConsumerShadowPod>,
    pub peer: PeerReachability,
    /// The place where the peer ran the pod when it last said so.
    pub ran: LastRunPlace,
    pub namespace: RemoteNamespaceState,
    /// Identifies our tenancy at the provider: another tenancy does not know what was sent to this
    /// one.
    pub tenancy: Option<&'a str>,
    pub sent: SendProgress,
    /// The API server accepted this process's removal of the pod; the watch may not show that yet.
    pub removed: bool,
    /// Delay until Kubernetes evicts the pod if the peer does not answer; `None` if the namespace
    /// sets none.
    pub eviction_delay: Option<EvictionDelay>,
    /// Whether the namespace is that of a consumer of ours, whose pods this cluster creates.
    pub is_brokered: bool,
    /// Whether new pods of the namespace may run in this cluster, too; `None` if that is not known,
    /// or a matter of a consumer.
    pub may_run_here: Option<bool>,
    /// The obstacle that keeps the pod from starting at the provider which accepted it, and its
    /// duration so far.
    pub stuck: Option<&'a (PodObstacle, Duration)>,
    /// A refused pod that is created again is deleted after this time.
    pub refusal_timeout: Duration,
    pub now: Timestamp,
}

/// The objects that a pod names and that do not get to its provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingObjects {
    /// All of them, and why.
    pub message: String,
    /// Kind and name, such as `ConfigMap/settings`, of those that get there only if a person
    /// changes something.
    pub lasting: Vec<String>,
}

/// The reason why a pod does not run at its provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodObstacle {
    pub reason: String,
    message: String,
    cause: RefusalCause,
    objects: Vec<String>,
}

/// The actions for a pod that was not sent, because an object that it names will not get to the
/// provider: it would wait there for what never comes. No actions for a pod that may not run in
/// this cluster: the provider keeps it until a person changes the object.
pub fn missing_object_actions(
    home: &LocalPod,
    missing: &MissingObjects,
    may_run_here: bool,
) -> Vec<LocalPodAction> {
    if !may_run_here || missing.lasting.is_empty() {
        return Vec::new();
    }
    let obstacle = PodObstacle::from_missing_objects(missing);
    let refusal = obstacle.refusal_action();
    let is_replaced = DepartureCause::NotStarted
        .takes_pods_of(controller::controller_kind(home.controller.as_ref()));
    std::iter::once(refusal)
        .chain(is_replaced.then(|| obstacle.replacement_action()))
        .collect()
}

/// The decision about a pod that cannot be sent now.
pub fn decide_unsendable(
    facts: &LocalPodFacts,
    home: &LocalPod,
    obstacle: PodObstacle,
) -> LocalPodDecision {
    decide_refusal(facts, home, obstacle)
}

impl PodObstacle {
    /// With a message for the pod's owner.
    pub fn for_reason(reason: &str, message: String) -> Self {
        let cause =
            refusals::remembered_reason(reason).map_or(RefusalCause::Passes, |(_, cause)| cause);
        Self {
            reason: reason.to_owned(),
            message,
            cause,
            objects: Vec::new(),
        }
    }

    /// One that may go by itself, although the reason is one that lasts.
    #[must_use]
    pub fn into_passing(self) -> Self {
        Self {
            cause: RefusalCause::Passes,
            ..self
        }
    }

    fn from_missing_objects(missing: &MissingObjects) -> Self {
        let cause = if missing.lasting.is_empty() {
            RefusalCause::Passes
        } else {
            RefusalCause::Lasts
        };
        let (message, objects) = (missing.message.clone(), missing.lasting.clone());
        Self {
            reason: OffloadedReason::NotReflected.into(),
            message,
            cause,
            objects,
        }
    }

    /// The obstacle that keeps a pod that its provider accepted from starting. `has_all`: the
    /// provider has all objects that the pod needs, so the obstacle is not in this cluster.
    pub fn from_waiting_pod(
        waiting: &WaitingStatus,
        missing: Option<&MissingObjects>,
        has_all: bool,
    ) -> Option<Self> {
        if let Some(missing) = missing {
            return Some(Self::from_missing_objects(missing));
        }
        let (reason, message) = waiting.cause.as_ref()?;
        let counts = has_all || *reason == OffloadedReason::Unschedulable;
        counts.then(|| Self::for_reason(reason.as_str(), message.clone()))
    }

    fn refusal_action(&self) -> LocalPodAction {
        LocalPodAction::Refuse {
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }

    fn replacement_action(self) -> LocalPodAction {
        let Self {
            reason,
            message,
            cause,
            objects,
        } = self;
        LocalPodAction::Replace {
            reason,
            message,
            cause,
            objects,
        }
    }
}

/// Each action is safe to do twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalPodAction {
    /// Create the shadow pod.
    CreateShadow {
        /// Write [`SENDING`] on the local pod first.
        mark: bool,
    },
    /// Update the shadow pod: the local pod's labels, annotations, images, deadline or amounts
    /// changed.
    UpdateShadow {
        /// Update all of the pod, because the provider has not created the remote pod yet.
        whole: bool,
    },
    /// Merge the remote pod's status into the local pod.
    PatchLocalStatus,
    /// Change when Kubernetes evicts the local pod if the peer does not answer.
    SetEvictionDelay(EvictionDelay),
    /// Take the local pod out of its Services.
    NotReady,
    /// Write into the shadow pod that the remote pod should end, with this grace in seconds.
    AskDeletion(i64),
    /// Write that the local pod failed: it is being deleted, its remote pod is gone, and no end was
    /// recorded. Somebody waits for that.
    ShowDeletion,
    /// Remove the local pod: its remote pod is gone.
    RemoveLocalPod,
    /// Delete the shadow pod, which exists until its remote pod is gone. If the local pod is
    /// missing, a live GET must confirm that first.
    DeleteShadow,
    /// Show that the pod does not run there, and why. It stays Pending.
    Refuse {
        reason: String,
        /// For the pod's owner, with the next step.
        message: String,
    },
    /// Evict a pod that does not run there, so that another one replaces it.
    Replace {
        reason: String,
        message: String,
        cause: RefusalCause,
        /// The objects that keep all pods away which name them; if empty, those of the same owner.
        objects: Vec<String>,
    },
    /// Tell that a pod does not start, which stays where it is.
    Tell { reason: String, message: String },
    /// End the local pod, because the provider took back what it used. Its controller may create
    /// another one elsewhere.
    Evicted(String),
    /// End the local pod, because this cluster took back what the provider's pods used here, and
    /// this one was among them.
    EndedHere(String),
    /// End the local pod if a live GET confirms that the shadow pod is gone: the pod may have run,
    /// and must not run again.
    Lost(String),
}

/// The actions to take now, in this order, and the time until the next decision even if nothing
/// changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalPodDecision {
    pub actions: Vec<LocalPodAction>,
    pub again: Option<Duration>,
}

impl LocalPodDecision {
    fn from_actions(actions: impl Into<Vec<LocalPodAction>>) -> Self {
        Self {
            actions: actions.into(),
            again: None,
        }
    }

    fn nothing() -> Self {
        Self::default()
    }

    fn retry_after(again: Duration) -> Self {
        Self {
            actions: Vec::new(),
            again: Some(again),
        }
    }
}

pub fn decide_local_pod(facts: &LocalPodFacts) -> LocalPodDecision {
    let Some(home) = facts.home else {
        return match facts.shadow {
            // If it is being deleted already, the provider finishes that.
            Some(shadow) if facts.peer == PeerReachability::Answers && !shadow.is_terminating() => {
                LocalPodDecision::from_actions([LocalPodAction::DeleteShadow])
            }
            _ => LocalPodDecision::nothing(),
        };
    };
    if facts.peer != PeerReachability::Answers
        && let LastRunPlace::EndedHere(reason) = &facts.ran
    {
        return decide_ended_here(facts, home, reason);
    }
    let mut decision = match (facts.peer, home.deletion, facts.shadow) {
        (PeerReachability::Down, ..) if !home.finished => {
            LocalPodDecision::from_actions([LocalPodAction::NotReady])
        }
        (PeerReachability::Answers, Some(grace), shadow) => {
            decide_deletion(facts, home, grace, shadow)
        }
        (PeerReachability::Answers, None, Some(shadow)) if !home.finished => {
            decide_running(facts, home, shadow)
        }
        (PeerReachability::Answers, None, None) if !home.finished => decide_not_sent(facts, home),
        (PeerReachability::Answers, None, Some(shadow))
            if home.lacks_ends && shadow.phase.unverified().is_final() =>
        {
            LocalPodDecision::from_actions([LocalPodAction::PatchLocalStatus])
        }
        // The shadow pod of a pod that has ended stays: it is the reason why the pod never runs
        // again.
        (PeerReachability::Answers | PeerReachability::Down | PeerReachability::Silent, ..) => {
            LocalPodDecision::nothing()
        }
    };
    if facts.ran == LastRunPlace::Here && facts.peer != PeerReachability::Answers && !home.finished
    {
        decision.again = Some(ENDED_HERE_POLL);
    }
    // Last, so that it delays nothing.
    let may_leave = home.deletion.is_none() && !home.finished && node_bound_refusal(home).is_none();
    if may_leave
        && let Some(wanted) = facts.eviction_delay
        && home.eviction_delay != Some(wanted)
    {
        decision
            .actions
            .push(LocalPodAction::SetEvictionDelay(wanted));
    }
    decision
}

/// The local pod is being deleted.
fn decide_deletion(
    facts: &LocalPodFacts,
    home: &LocalPod,
    grace: i64,
    shadow: Option<&ConsumerShadowPod>,
) -> LocalPodDecision {
    let Some(shadow) = shadow else {
        return match facts.sent {
            SendProgress::Created(ago) if ago < VISIBLE_WITHIN => {
                LocalPodDecision::retry_after(VISIBLE_WITHIN.saturating_sub(ago))
            }
            // As a kubelet does, which records an end before a pod goes: whoever holds the pod lets
            // go when it knows the end.
            _ if home.has_finalizers && !home.finished => {
                LocalPodDecision::from_actions([LocalPodAction::ShowDeletion])
            }
            _ if facts.removed || home.only_finalizers_remain() => LocalPodDecision::nothing(),
            _ => LocalPodDecision::from_actions([LocalPodAction::RemoveLocalPod]),
        };
    };
    // Nobody here forces the end of a consumer's pod that must not run twice: its end at the
    // provider is waited for.
    let grace = if facts.is_brokered {
        grace.max(1)
    } else {
        grace
    };
    let mut actions = Vec::new();
    if !home.finished && shadow.remote_status().is_some() {
        actions.push(LocalPodAction::PatchLocalStatus);
    }
    let deletes = !shadow.is_terminating() && may_delete(facts, home, grace, shadow);
    // The provider accepts less grace at any time, but more only before it deleted the remote pod.
    let must_ask = match shadow.wanted_deletion {
        Some(wanted) => grace < wanted,
        None if deletes => grace != shadow.default_grace,
        None if shadow.is_terminating() => grace < shadow.default_grace,
        None => true,
    };
    if must_ask {
        actions.push(LocalPodAction::AskDeletion(grace));
    }
    if deletes {
        actions.push(LocalPodAction::DeleteShadow);
    }
    LocalPodDecision::from_actions(actions)
}

/// The remote pod ran in this cluster, which ended it, and the peer does not answer.
fn decide_ended_here(facts: &LocalPodFacts, home: &LocalPod, reason: &str) -> LocalPodDecision {
    if !home.finished {
        return LocalPodDecision::from_actions([LocalPodAction::EndedHere(reason.to_owned())]);
    }
    let goes = home.deletion.is_some() && !facts.removed && !home.only_finalizers_remain();
    if goes {
        LocalPodDecision::from_actions([LocalPodAction::RemoveLocalPod])
    } else {
        LocalPodDecision::nothing()
    }
}

/// Whether the shadow pod of a pod that is being deleted may be deleted at once. Otherwise the
/// consumer only asks for the deletion, and the provider deletes the shadow pod when the remote pod
/// is gone.
fn may_delete(
    facts: &LocalPodFacts,
    home: &LocalPod,
    grace: i64,
    shadow: &ConsumerShadowPod,
) -> bool {
    // Without the finalizer the shadow pod would be gone before the remote pod.
    let stays = shadow.has_finalizer;
    // A provider records no end for a shadow pod that is being deleted, and limits its grace. A
    // consumer of ours may wait for the end of a brokered pod.
    let end_matters = !home.restarts || home.has_finalizers || facts.is_brokered;
    let end_is_known = home.finished || !end_matters;
    stays && end_is_known && grace <= MAX_GRACE_SECONDS
}

/// The provider has the pod.
fn decide_running(
    facts: &LocalPodFacts,
    home: &LocalPod,
    shadow: &ConsumerShadowPod,
) -> LocalPodDecision {
    let phase = *shadow.phase.unverified();
    let mut decision = match phase {
        ShadowPodPhase::Lost => {
            return LocalPodDecision::from_actions([LocalPodAction::Lost(text_or(
                &shadow.message,
                "the remote pod is gone, and its end is not known",
            ))]);
        }
        ShadowPodPhase::Failed if shadow.reason == OFFER_RECLAIMED => {
            return LocalPodDecision::from_actions([LocalPodAction::Evicted(text_or(
                &shadow.message,
                "the provider took back what the pod used",
            ))]);
        }
        ShadowPodPhase::Refused => {
            let reason = text_or(&shadow.reason, OffloadedReason::Refused.as_str());
            decide_refusal(
                facts,
                home,
                PodObstacle::for_reason(
                    &reason,
                    text_or(&shadow.message, "the provider refused the pod"),
                ),
            )
        }
        // What it waits for never comes if its namespace is not offloaded any more.
        ShadowPodPhase::Pending if shadow.waits() => match &facts.namespace {
            RemoteNamespaceState::Refused { reason, message } if ENDED.contains(reason) => {
                decide_refusal(
                    facts,
                    home,
                    PodObstacle::for_reason(reason, message.clone()),
                )
            }
            _ => {
                let obstacle = PodObstacle::for_reason(&shadow.reason, shadow.message.clone());
                if may_run_here(facts) {
                    decide_refusal(facts, home, obstacle)
                } else {
                    LocalPodDecision::from_actions([obstacle.refusal_action()])
                }
            }
        },
        ShadowPodPhase::Pending => LocalPodDecision::nothing(),
        ShadowPodPhase::Created | ShadowPodPhase::Succeeded | ShadowPodPhase::Failed => {
            let mut decision = LocalPodDecision::nothing();
            if shadow.remote_status().is_some() {
                decision.actions.push(LocalPodAction::PatchLocalStatus);
            }
            if let Some((obstacle, stuck_for)) =
                facts.stuck.filter(|_| phase == ShadowPodPhase::Created)
            {
                add_not_started_actions(facts, home, (obstacle, *stuck_for), &mut decision);
            }
            decision
        }
    };
    // Every field may still change of a remote pod that does not exist yet.
    let whole = matches!(phase, ShadowPodPhase::Pending | ShadowPodPhase::Refused);
    if home.differs_from(shadow) && !shadow.is_terminating() && !phase.is_final() {
        decision
            .actions
            .push(LocalPodAction::UpdateShadow { whole });
    }
    decision
}

/// The provider does not have the pod.
fn decide_not_sent(facts: &LocalPodFacts, home: &LocalPod) -> LocalPodDecision {
    if let SendProgress::Created(ago) = facts.sent
        && ago < VISIBLE_WITHIN
    {
        return LocalPodDecision::retry_after(VISIBLE_WITHIN.saturating_sub(ago));
    }
    if let Some(decision) = decide_possible_run(facts, home) {
        return decision;
    }
    if let Some(refusal) = node_bound_refusal(home) {
        return LocalPodDecision::from_actions([LocalPodAction::Refuse {
            reason: refusal.reason.to_owned(),
            message: refusal.message,
        }]);
    }
    match (&home.carried, &facts.namespace) {
        (_, RemoteNamespaceState::Refused { reason, message }) => decide_refusal(
            facts,
            home,
            PodObstacle::for_reason(reason, message.clone()),
        ),
        (Err(refusal), _) => decide_refusal(
            facts,
            home,
            PodObstacle::for_reason(refusal.reason, refusal.message.clone()),
        ),
        (_, RemoteNamespaceState::Ready) => {
            let marked = if home.restarts {
                // Only a pod that was sent gets tokens. A provider can make us believe anything
                // except that mark.
                home.sent_to.is_some() || !matches!(home.api_server, ApiServerChoice::Home { .. })
            } else {
                offloaded_status(home) == OffloadedStatus::Unknown
                    && was_for_this_tenancy(facts, home)
            };
            LocalPodDecision::from_actions([LocalPodAction::CreateShadow {
                mark: facts.sent != SendProgress::Tried && !marked,
            }])
        }
        (_, RemoteNamespaceState::Waiting) => LocalPodDecision::nothing(),
    }
}

/// The end of a pod that may run only once and that was sent: its shadow pod is gone, so its fate
/// is unknown.
fn decide_possible_run(facts: &LocalPodFacts, home: &LocalPod) -> Option<LocalPodDecision> {
    if home.restarts {
        return None;
    }
    let message = match (offloaded_status(home), facts.sent) {
        (OffloadedStatus::Accepted, _) => {
            "the provider has no record of the pod any more, and it must not run twice"
        }
        // A former process marked it. In the same tenancy only we delete shadow pods, so the call
        // that followed did not reach the provider.
        (OffloadedStatus::Unknown, SendProgress::No) if !was_for_this_tenancy(facts, home) => {
            "the pod was being sent when the peering ended; it may have run, and must not run twice"
        }
        (OffloadedStatus::Unknown, SendProgress::Created(_)) => {
            "the provider's record of the pod vanished, and it must not run twice"
        }
        _ => return None,
    };
    Some(LocalPodDecision::from_actions([LocalPodAction::Lost(
        message.to_owned(),
    )]))
}

fn was_for_this_tenancy(facts: &LocalPodFacts, home: &LocalPod) -> bool {
    home.sent_to.is_some() && home.sent_to.as_deref() == facts.tenancy
}

/// The status of the condition `liqo.io/Offloaded`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OffloadedStatus {
    NotReported,
    /// It was marked before it was sent.
    Unknown,
    Refused,
    Accepted,
}

fn offloaded_status(home: &LocalPod) -> OffloadedStatus {
    match &home.offloaded {
        None => OffloadedStatus::NotReported,
        Some(condition) => match condition.status {
            None => OffloadedStatus::Unknown,
            Some(false) => OffloadedStatus::Refused,
            Some(true) => OffloadedStatus::Accepted,
        },
    }
}

/// The refusal of a pod whose controller has one for each node.
fn node_bound_refusal(home: &LocalPod) -> Option<PodRefusal> {
    obstacle_of_controller(&home.controller.as_ref()?.kind)
}

/// A refusal that may end. If it does not and the pod is created again, the next one may run
/// elsewhere.
fn decide_refusal(
    facts: &LocalPodFacts,
    home: &LocalPod,
    obstacle: PodObstacle,
) -> LocalPodDecision {
    let refusal = obstacle.refusal_action();
    if home.recreation_key(facts.is_brokered).is_none() || node_bound_refusal(home).is_some() {
        return LocalPodDecision::from_actions([refusal]);
    }
    let refused = home
        .offloaded
        .as_ref()
        .filter(|offloaded| offloaded.status == Some(false));
    let refused_for = refused.map_or(Duration::ZERO, |offloaded| {
        Duration::try_from(facts.now.duration_since(offloaded.since)).unwrap_or_default()
    });
    match remaining_wait(facts, &obstacle, refused_for) {
        Some(rest) => LocalPodDecision {
            actions: vec![refusal],
            again: Some(rest),
        },
        None => LocalPodDecision::from_actions([refusal, obstacle.replacement_action()]),
    }
}

/// The provider accepted the pod, and none of its containers has started: adds what follows. A pod
/// that may run in this cluster, too, is replaced; about another one its owner is told.
fn add_not_started_actions(
    facts: &LocalPodFacts,
    home: &LocalPod,
    (obstacle, stuck_for): (&PodObstacle, Duration),
    decision: &mut LocalPodDecision,
) {
    if let Some(rest) = remaining_wait(facts, obstacle, stuck_for) {
        decision.again = Some(rest);
        return;
    }
    if node_bound_refusal(home).is_some() {
        return;
    }
    let stays = match (facts.may_run_here, &home.controller) {
        (None, _) => return,
        (Some(true), Some(_)) => {
            return decision.actions.push(obstacle.clone().replacement_action());
        }
        (Some(true), None) => {
            "nothing creates it again: delete it, and create it anew for another cluster"
        }
        (Some(false), _) => {
            "it stays there, because the pods of its namespace run in other clusters only (podOffloadingStrategy Remote)"
        }
    };
    // What it says at its end must fit into an event.
    let message = format!("{:.700}; {stays}", obstacle.message);
    decision.actions.push(LocalPodAction::Tell {
        reason: obstacle.reason.clone(),
        message,
    });
}

/// Remaining time that a pod waits for an obstacle to go, which it has had for the time `waited`. A
/// pod that may run in this cluster does not wait for an obstacle that lasts.
fn remaining_wait(
    facts: &LocalPodFacts,
    obstacle: &PodObstacle,
    waited: Duration,
) -> Option<Duration> {
    if may_run_here(facts) && obstacle.cause == RefusalCause::Lasts {
        return None;
    }
    facts
        .refusal_timeout
        .checked_sub(waited)
        .filter(|rest| !rest.is_zero())
}

fn may_run_here(facts: &LocalPodFacts) -> bool {
    facts.may_run_here == Some(true)
}

fn text_or(text: &str, otherwise: &str) -> String {
    if text.is_empty() {
        otherwise.to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests;
