//! What to do about one offloaded pod: a pure function of what is known of the home pod and of its shadow pod.
//!
//! The rules, in the order of their weight: a pod that has ended never runs again; a pod that may run only once is sent
//! only once; nothing is concluded from the silence of a peer.

use std::time::Duration;

use jiff::Timestamp;
use liqo_api::ShadowPodPhase;

use super::reduced::{HomePod, Shadow};
use crate::decide::{OFFER_RECLAIMED, travel::api_server::Wish};

/// Reason of the condition that stands on a pod that may run only once, or gets a token, from before it is sent until the provider
/// answers.
pub const SENDING: &str = "Sending";

/// How long a shadow pod that we created may be missing from the watch before it is looked for.
pub const VISIBLE_WITHIN: Duration = Duration::from_secs(10);

/// Whether the peer can be asked and believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// It answers, and what is known of its objects is complete.
    Answers,
    /// It does not, or not everything is known yet: nothing may be concluded.
    Silent,
    /// It has been silent for so long that its pods count as not Ready.
    Down,
}

/// Where the home pod's namespace stands at this provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// Pods can run in its twin.
    Ready,
    /// It is not there yet.
    Waiting,
    /// The pods of this namespace do not run at this provider.
    Refused {
        /// One word.
        reason: &'static str,
        /// For people, with the next step.
        message: String,
    },
}

/// What this process did about sending the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Nothing.
    No,
    /// It wrote [`SENDING`] on the pod, and no later call is known to have succeeded.
    Tried,
    /// The provider took the shadow pod this long ago, and the watch has not shown it yet.
    Created(Duration),
}

/// What is known.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The home pod; absent when no such pod is bound to a node of this peer.
    pub home: Option<&'a HomePod>,
    /// Its shadow pod.
    pub shadow: Option<&'a Shadow>,
    /// The peer.
    pub peer: Peer,
    /// The home pod's namespace.
    pub namespace: Namespace,
    /// What stands for our tenancy at the provider: another one knows nothing of what was sent to this one.
    pub tenancy: Option<&'a str>,
    /// What this process did.
    pub sent: Sent,
    /// After how long a refused pod that has a controller is deleted.
    pub refusal_timeout: Duration,
    /// The time.
    pub now: Timestamp,
}

/// What to do. Each is safe to do twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Create the shadow pod; before that, if `mark`, write [`SENDING`] on the home pod.
    CreateShadow {
        /// Whether the home pod must be marked first.
        mark: bool,
    },
    /// Carry the home pod's labels, annotations, images and deadline again: they changed.
    UpdateShadow {
        /// All of it, because the provider has not made the pod yet.
        whole: bool,
    },
    /// Merge the remote pod's status into the home pod.
    PatchHomeStatus,
    /// Take the home pod out of its Services.
    NotReady,
    /// Ask the provider to end the remote pod, with this grace in seconds.
    AskDeletion(i64),
    /// Remove the home pod: its remote pod is gone.
    RemoveHomePod,
    /// Remove the shadow pod, after a live look that its home pod is really gone.
    DeleteShadow,
    /// Show that the pod does not run there, and why. It stays Pending.
    Refuse {
        /// One word.
        reason: String,
        /// For people, with the next step.
        message: String,
    },
    /// Delete a pod that was refused for long, so that its controller replaces it.
    Replace,
    /// End the home pod: the provider took back what it used. Another one of its controller may run elsewhere.
    Evicted(String),
    /// After a live look that the shadow pod is really gone: the pod ran or may have run, and must not run again.
    Lost(String),
}

/// What to do now, in this order, and when to look again without a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub actions: Vec<Action>,
    /// When to look again.
    pub again: Option<Duration>,
}

impl Decision {
    fn of(actions: impl Into<Vec<Action>>) -> Self {
        Self { actions: actions.into(), again: None }
    }

    fn nothing() -> Self {
        Self::default()
    }

    fn later(again: Duration) -> Self {
        Self { actions: Vec::new(), again: Some(again) }
    }
}

/// What to do about the pod.
pub fn decide(facts: &Facts) -> Decision {
    let Some(home) = facts.home else {
        return match facts.shadow {
            // One that is going away already is the provider's to finish.
            Some(shadow) if facts.peer == Peer::Answers && !shadow.terminating => Decision::of([Action::DeleteShadow]),
            _ => Decision::nothing(),
        };
    };
    match facts.peer {
        Peer::Silent => return Decision::nothing(),
        Peer::Down if home.finished => return Decision::nothing(),
        Peer::Down => return Decision::of([Action::NotReady]),
        Peer::Answers => {}
    }
    match (home.deletion, facts.shadow) {
        (Some(grace), shadow) => deletion(facts, home, grace, shadow),
        // The record stays as long as the pod does: it is why the pod never runs again.
        (None, _) if home.finished => Decision::nothing(),
        (None, Some(shadow)) => running(facts, home, shadow),
        (None, None) => not_sent(facts, home),
    }
}

/// The home pod is being deleted.
fn deletion(facts: &Facts, home: &HomePod, grace: i64, shadow: Option<&Shadow>) -> Decision {
    let Some(shadow) = shadow else {
        return match facts.sent {
            Sent::Created(ago) if ago < VISIBLE_WITHIN => Decision::later(VISIBLE_WITHIN.saturating_sub(ago)),
            // Removed already; somebody's finalizer holds it.
            _ if grace == 0 => Decision::nothing(),
            _ => Decision::of([Action::RemoveHomePod]),
        };
    };
    let mut actions = Vec::new();
    if !home.finished && shadow.remote_status().is_some() {
        actions.push(Action::PatchHomeStatus);
    }
    if !shadow.terminating && shadow.wanted_deletion.is_none_or(|wanted| grace < wanted) {
        actions.push(Action::AskDeletion(grace));
    }
    Decision::of(actions)
}

/// The provider has the pod.
fn running(facts: &Facts, home: &HomePod, shadow: &Shadow) -> Decision {
    let mut decision = match shadow.phase {
        ShadowPodPhase::Lost => {
            return Decision::of([Action::Lost(or(&shadow.message, "the remote pod is gone, and its end is not known"))]);
        }
        ShadowPodPhase::Failed if shadow.reason == OFFER_RECLAIMED => {
            return Decision::of([Action::Evicted(or(&shadow.message, "it took back what the pod used"))]);
        }
        ShadowPodPhase::Refused => {
            refuse(facts, home, or(&shadow.reason, "Refused"), or(&shadow.message, "the provider refused the pod"))
        }
        ShadowPodPhase::Pending if !shadow.reason.is_empty() => {
            Decision::of([Action::Refuse { reason: shadow.reason.clone(), message: shadow.message.clone() }])
        }
        ShadowPodPhase::Pending => Decision::nothing(),
        ShadowPodPhase::Created | ShadowPodPhase::Succeeded | ShadowPodPhase::Failed => {
            if shadow.remote_status().is_some() {
                Decision::of([Action::PatchHomeStatus])
            } else {
                Decision::nothing()
            }
        }
    };
    // A pod that was not made yet may still have another size.
    let whole = matches!(shadow.phase, ShadowPodPhase::Pending | ShadowPodPhase::Refused);
    let resized = whole && home.resources != shadow.resources;
    let changed = home.carried.as_ref().is_ok_and(|carried| resized || *carried != shadow.carried);
    if changed && !shadow.terminating && !shadow.phase.is_final() {
        decision.actions.push(Action::UpdateShadow { whole });
    }
    decision
}

/// The provider does not have the pod.
fn not_sent(facts: &Facts, home: &HomePod) -> Decision {
    if let Sent::Created(ago) = facts.sent
        && ago < VISIBLE_WITHIN
    {
        return Decision::later(VISIBLE_WITHIN.saturating_sub(ago));
    }
    if let Some(decision) = may_have_run(facts, home) {
        return decision;
    }
    if let Some(kind) = belongs_to_node(home) {
        let message = format!(
            "pods of a {kind} belong to their node, and a virtual node has no machine of its own; keep them off nodes with the label liqo.io/type=virtual-node"
        );
        return Decision::of([Action::Refuse { reason: kind.to_owned(), message }]);
    }
    match (&home.carried, &facts.namespace) {
        (_, Namespace::Refused { reason, message }) => refuse(facts, home, (*reason).to_owned(), message.clone()),
        (Err(refusal), _) => refuse(facts, home, refusal.reason.to_owned(), refusal.message.clone()),
        (_, Namespace::Ready) => {
            let marked = if home.restarts {
                // Only a pod that was sent gets tokens, and a provider can make us believe anything but that mark.
                home.sent_to.is_some() || !matches!(home.api_server, Wish::Home { .. })
            } else {
                told(home) == Some(None) && was_for_this_tenancy(facts, home)
            };
            Decision::of([Action::CreateShadow { mark: facts.sent != Sent::Tried && !marked }])
        }
        (_, Namespace::Waiting) => Decision::nothing(),
    }
}

/// The end of a pod that may run only once and that was sent: its shadow pod is gone, so nothing is known of it.
fn may_have_run(facts: &Facts, home: &HomePod) -> Option<Decision> {
    if home.restarts {
        return None;
    }
    let message = match (told(home), facts.sent) {
        (Some(Some(true)), _) => "the provider has no record of the pod any more, and it must not run twice",
        // Marked by a process before this one. In the same tenancy nobody but us deletes shadow pods, so the call that
        // followed did not reach the provider.
        (Some(None), Sent::No) if !was_for_this_tenancy(facts, home) => {
            "the pod was being sent when the peering ended; it may have run, and must not run twice"
        }
        (Some(None), Sent::Created(_)) => "the provider's record of the pod vanished, and it must not run twice",
        _ => return None,
    };
    Some(Decision::of([Action::Lost(message.to_owned())]))
}

fn was_for_this_tenancy(facts: &Facts, home: &HomePod) -> bool {
    home.sent_to.is_some() && home.sent_to.as_deref() == facts.tenancy
}

#[allow(clippy::option_option, reason = "not told, and told that nothing is known, are different")]
fn told(home: &HomePod) -> Option<Option<bool>> {
    home.told.as_ref().map(|told| told.status)
}

/// The kind of the controller, where its pods belong to one node each.
fn belongs_to_node(home: &HomePod) -> Option<&str> {
    let kind = home.controller.as_ref().map(|controller| controller.kind.as_str());
    kind.filter(|kind| ["DaemonSet", "Node"].contains(kind))
}

/// A refusal that may end; where it lasts and the pod has a controller, another pod may have more luck elsewhere.
fn refuse(facts: &Facts, home: &HomePod, reason: String, message: String) -> Decision {
    let refusal = Action::Refuse { reason, message };
    if home.controller.is_none() || belongs_to_node(home).is_some() {
        return Decision::of([refusal]);
    }
    let refused_for = home
        .told
        .as_ref()
        .filter(|told| told.status == Some(false))
        .map_or(Duration::ZERO, |told| Duration::try_from(facts.now.duration_since(told.since)).unwrap_or_default());
    match facts.refusal_timeout.checked_sub(refused_for).filter(|rest| !rest.is_zero()) {
        Some(rest) => Decision { actions: vec![refusal], again: Some(rest) },
        None => Decision::of([refusal, Action::Replace]),
    }
}

fn or(text: &str, otherwise: &str) -> String {
    if text.is_empty() { otherwise.to_owned() } else { text.to_owned() }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "JSON literals are written in place")]
#[path = "pod_decide_tests.rs"]
mod tests;
