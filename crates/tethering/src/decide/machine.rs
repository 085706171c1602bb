//! The state machine of the working mode.
//!
//! ```text
//!              asked for, nothing in the way, peer heard
//!   Autonomous ─────────────────────────────────────────▶ Tethering ──▶ Tethered
//!       ▲                                                     │  granted, and  │ not asked for any more,
//!       │  pods are home and the peer's are gone,             │  all is there  │ ended by the peer,
//!       │  or the deadline passed                             ▼                ▼ or the peer is silent for too long
//!       └───────────────────────────────────────────────── Releasing ◀─────────┘
//! ```
//!
//! The machine remembers nothing: the next state follows from the present one, as the status of the
//! `ClusterConfig` has it, from facts and from the time. So it does not matter when the process
//! ends and starts again. What each state means for others is in
//! [`StateEffects`]: they are functions of the state alone, so that all of them change with one write.

use jiff::{SignedDuration, Timestamp};
use liqo_api::{ClusterId, TetheringReason, TetheringState, TetheringStatus, Time};

/// Maximum time of an attempt, from the question to the peer until the peer controls this cluster.
pub const ATTEMPT: SignedDuration = SignedDuration::from_secs(120);
/// Delay before a peer that refused, or that did not get ready, is asked again.
pub const RETRY: SignedDuration = SignedDuration::from_secs(300);
/// Maximum time of the release beyond the notice of the peer's pods.
pub const RELEASE_MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// The peer's answer about tethering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// This cluster does not ask, and no former answer is left.
    NotAsked,
    /// There is no answer to the present question yet.
    Waiting,
    Granted,
    /// The peer's own words.
    Refused(String),
}

/// Whether the peer is heard: as the provider of this cluster, and as its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerContact {
    Heard,
    Silent,
    /// Not known yet, as after a start of the manager.
    Unknown,
}

/// Something in this cluster that is in the way of tethering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalObstacle {
    pub reason: TetheringReason,
    /// The obstacle, and the way to remove it.
    pub message: String,
}

/// The facts that the machine needs. All but the first two fields are about the peer of
/// [`subject_peer`].
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// The peer that is to control this cluster, as the spec says.
    pub wish: Option<ClusterId>,
    /// Maximum time that the peer may be silent.
    pub release_after: SignedDuration,
    /// The name of the peer, for people.
    pub peer: String,
    pub obstacle: Option<LocalObstacle>,
    pub answer: PeerAnswer,
    pub contact: PeerContact,
    /// Whether the peer borrows from this cluster.
    pub borrows_here: bool,
    /// Something that Tethered needs and that is missing.
    pub missing: Option<String>,
    /// The notice that the pods of the peer have.
    pub notice: SignedDuration,
    /// Number of this cluster's pods at the peer that have to come home.
    pub away: usize,
    /// Number of pods of the peer in this cluster.
    pub guests: usize,
}

/// The effects of a state on the other parts of Liqo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateEffects {
    /// Local users decide nothing: new pods go to the peer, and an admission policy refuses changes
    /// of nodes, quotas and the peer's namespaces, pods and workloads.
    pub peer_decides: bool,
    pub offer: PeerOffer,
}

/// The offer to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOffer {
    /// As much as the policy says.
    AsPolicy,
    /// All that is free.
    Everything,
    /// Only what it uses, until its notice is over.
    Nothing,
}

impl StateEffects {
    /// The effects of a state.
    pub fn of_state(state: TetheringState) -> Self {
        match state {
            TetheringState::Autonomous | TetheringState::Tethering => Self {
                peer_decides: false,
                offer: PeerOffer::AsPolicy,
            },
            TetheringState::Tethered => Self {
                peer_decides: true,
                offer: PeerOffer::Everything,
            },
            TetheringState::Releasing => Self {
                peer_decides: false,
                offer: PeerOffer::Nothing,
            },
        }
    }
}

/// The peer that facts have to be about: the one that a state is about, else the one that is asked
/// for.
pub fn subject_peer<'a>(
    status: Option<&'a TetheringStatus>,
    wish: Option<&'a ClusterId>,
) -> Option<&'a ClusterId> {
    let bound = status.filter(|status| status.state != TetheringState::Autonomous);
    bound.and_then(|status| status.cluster_id.as_ref()).or(wish)
}

/// The status to write; `None` if the present one stays.
pub fn next_status(
    status: Option<&TetheringStatus>,
    facts: &MachineFacts,
    now: Timestamp,
) -> Option<TetheringStatus> {
    if status.is_none() && facts.wish.is_none() {
        return None;
    }
    let current = StoredState::of_status(status);
    let step = match &current.peer {
        Some(peer) => match current.state {
            TetheringState::Autonomous => step_when_autonomous(&current, facts, now),
            TetheringState::Tethering => step_when_tethering(&current, peer, facts, now),
            TetheringState::Tethered => step_when_tethered(&current, peer, facts, now),
            TetheringState::Releasing => step_when_releasing(&current, peer, facts, now),
        },
        None => step_when_autonomous(&current, facts, now),
    };
    let wanted = step.into_status(status, now);
    (status != Some(&wanted)).then_some(wanted)
}

/// The time until the machine may decide something else although no fact changed.
pub fn due_in(status: &TetheringStatus, now: Timestamp) -> Option<SignedDuration> {
    let deadline = status.deadline.as_ref()?;
    Some(deadline.0.duration_since(now).max(SignedDuration::ZERO))
}

/// The state as it was written. A state other than Autonomous without a peer, which only a person
/// can have written, is Autonomous.
struct StoredState<'a> {
    state: TetheringState,
    peer: Option<ClusterId>,
    deadline: Option<Timestamp>,
    reason: Option<TetheringReason>,
    message: &'a str,
}

impl<'a> StoredState<'a> {
    fn of_status(status: Option<&'a TetheringStatus>) -> Self {
        let Some(status) = status else {
            return Self {
                state: TetheringState::Autonomous,
                peer: None,
                deadline: None,
                reason: None,
                message: "",
            };
        };
        Self {
            state: if status.cluster_id.is_some() {
                status.state
            } else {
                TetheringState::Autonomous
            },
            peer: status.cluster_id.clone(),
            deadline: status.deadline.as_ref().map(|time| time.0),
            reason: TetheringReason::parse(&status.reason),
            message: &status.message,
        }
    }

    /// The end of the state, which began with `at_most` left. Whatever happens to the clock, it is
    /// no further away than that.
    fn deadline(&self, at_most: SignedDuration, now: Timestamp) -> Timestamp {
        let latest = time_after(now, at_most);
        self.deadline
            .map_or(latest, |deadline| deadline.min(latest))
    }
}

/// The outcome of one look at the facts.
struct MachineStep {
    state: TetheringState,
    peer: Option<ClusterId>,
    deadline: Option<Timestamp>,
    reason: TetheringReason,
    message: String,
}

impl MachineStep {
    fn new(
        state: TetheringState,
        peer: Option<&ClusterId>,
        reason: TetheringReason,
        message: impl Into<String>,
    ) -> Self {
        Self {
            state,
            peer: peer.cloned(),
            deadline: None,
            reason,
            message: message.into(),
        }
    }

    fn until(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    fn into_status(self, before: Option<&TetheringStatus>, now: Timestamp) -> TetheringStatus {
        let same =
            before.filter(|before| before.state == self.state && before.cluster_id == self.peer);
        TetheringStatus {
            state: self.state,
            cluster_id: self.peer,
            since: same.map_or(Time(now), |before| before.since.clone()),
            deadline: self.deadline.map(Time),
            reason: self.reason.into(),
            message: bounded_message(&self.message),
        }
    }
}

fn step_when_autonomous(
    current: &StoredState,
    facts: &MachineFacts,
    now: Timestamp,
) -> MachineStep {
    use TetheringState::{Autonomous, Tethering};
    let Some(wish) = &facts.wish else {
        return MachineStep::new(Autonomous, None, TetheringReason::NotWanted, "");
    };
    let peer = Some(wish);
    if let Some(obstacle) = &facts.obstacle {
        return MachineStep::new(Autonomous, peer, obstacle.reason, obstacle.message.clone());
    }
    if current.peer.as_ref() == peer && current.deadline.is_some() {
        let retry = current.deadline(RETRY, now);
        if retry > now {
            return MachineStep::new(
                Autonomous,
                peer,
                current.reason.unwrap_or(TetheringReason::NotReady),
                current.message,
            )
            .until(retry);
        }
    }
    if facts.contact != PeerContact::Heard {
        let message = format!(
            "{} does not answer; it is asked as soon as it does",
            facts.peer
        );
        return MachineStep::new(Autonomous, peer, TetheringReason::PeerSilent, message);
    }
    if facts.answer != PeerAnswer::NotAsked {
        let message = format!("the former answer of {} is taken back first", facts.peer);
        return MachineStep::new(Autonomous, peer, TetheringReason::Waiting, message);
    }
    let message = format!("waiting for the answer of {}", facts.peer);
    MachineStep::new(Tethering, peer, TetheringReason::Waiting, message)
        .until(time_after(now, ATTEMPT))
}

fn step_when_tethering(
    current: &StoredState,
    peer: &ClusterId,
    facts: &MachineFacts,
    now: Timestamp,
) -> MachineStep {
    use TetheringState::{Tethered, Tethering};
    if let Some(end) = end_if_unwanted(peer, facts, now) {
        return end;
    }
    if let Some(obstacle) = &facts.obstacle {
        return begin_release(peer, facts, now, obstacle.reason, obstacle.message.clone());
    }
    let name = &facts.peer;
    let missing = match &facts.answer {
        PeerAnswer::Refused(why) => {
            return begin_release(
                peer,
                facts,
                now,
                TetheringReason::RefusedByPeer,
                format!("{name} refuses: {why}"),
            );
        }
        PeerAnswer::NotAsked | PeerAnswer::Waiting => Some(format!("the answer of {name}")),
        PeerAnswer::Granted if facts.contact != PeerContact::Heard => {
            Some(format!("{name}, which does not answer"))
        }
        PeerAnswer::Granted => facts.missing.clone(),
    };
    let Some(missing) = missing else {
        return MachineStep::new(
            Tethered,
            Some(peer),
            TetheringReason::Granted,
            format!("{name} controls this cluster"),
        );
    };
    let deadline = current.deadline(ATTEMPT, now);
    if deadline <= now {
        let message = format!(
            "given up after {} s of waiting for {missing}",
            ATTEMPT.as_secs()
        );
        return begin_release(peer, facts, now, TetheringReason::NotReady, message);
    }
    MachineStep::new(
        Tethering,
        Some(peer),
        TetheringReason::Waiting,
        format!("waiting for {missing}"),
    )
    .until(deadline)
}

fn step_when_tethered(
    current: &StoredState,
    peer: &ClusterId,
    facts: &MachineFacts,
    now: Timestamp,
) -> MachineStep {
    use TetheringState::Tethered;
    if let Some(end) = end_if_unwanted(peer, facts, now) {
        return end;
    }
    let name = &facts.peer;
    if let PeerAnswer::Refused(why) = &facts.answer {
        return begin_release(
            peer,
            facts,
            now,
            TetheringReason::EndedByPeer,
            format!("{name} ended it: {why}"),
        );
    }
    // After a silence, it is the silence that ends it.
    if facts.contact == PeerContact::Heard && !facts.borrows_here {
        let message = format!("{name} borrows nothing from this cluster any more");
        return begin_release(peer, facts, now, TetheringReason::EndedByPeer, message);
    }
    if facts.contact == PeerContact::Heard {
        return MachineStep::new(
            Tethered,
            Some(peer),
            TetheringReason::Granted,
            format!("{name} controls this cluster"),
        );
    }
    let deadline = current.deadline(facts.release_after, now);
    if deadline <= now {
        let message = format!("{name} was silent for {} s", facts.release_after.as_secs());
        return begin_release(peer, facts, now, TetheringReason::PeerSilent, message);
    }
    let message =
        format!("{name} does not answer; if it stays silent, control comes back at the deadline");
    MachineStep::new(Tethered, Some(peer), TetheringReason::PeerSilent, message).until(deadline)
}

fn step_when_releasing(
    current: &StoredState,
    peer: &ClusterId,
    facts: &MachineFacts,
    now: Timestamp,
) -> MachineStep {
    use TetheringState::{Autonomous, Releasing};
    let reason = current.reason.unwrap_or(TetheringReason::Untethered);
    let deadline = current.deadline(release_time(facts), now);
    let is_over = (facts.away == 0 && facts.guests == 0) || deadline <= now;
    if !is_over {
        return MachineStep::new(Releasing, Some(peer), reason, current.message).until(deadline);
    }
    let step = MachineStep::new(Autonomous, facts.wish.as_ref(), reason, current.message);
    // A silent peer is asked when it is heard; a peer that ended it, or was not ready, gets a
    // pause.
    let pauses = facts.wish.as_ref() == Some(peer) && reason != TetheringReason::PeerSilent;
    if pauses {
        step.until(time_after(now, RETRY))
    } else {
        step
    }
}

/// The end, if the user does not want this peer any more.
fn end_if_unwanted(peer: &ClusterId, facts: &MachineFacts, now: Timestamp) -> Option<MachineStep> {
    let message = format!(
        "this cluster is not to be tethered to {} any more",
        facts.peer
    );
    (facts.wish.as_ref() != Some(peer))
        .then(|| begin_release(peer, facts, now, TetheringReason::Untethered, message))
}

fn begin_release(
    peer: &ClusterId,
    facts: &MachineFacts,
    now: Timestamp,
    reason: TetheringReason,
    message: String,
) -> MachineStep {
    MachineStep::new(TetheringState::Releasing, Some(peer), reason, message)
        .until(time_after(now, release_time(facts)))
}

fn release_time(facts: &MachineFacts) -> SignedDuration {
    facts.notice.saturating_add(RELEASE_MARGIN)
}

fn time_after(now: Timestamp, duration: SignedDuration) -> Timestamp {
    now.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

/// The schema's maximum length of a message in characters.
const MAX_MESSAGE_LEN: usize = 2048;

/// Peers write parts of some messages, and terminals show them.
fn bounded_message(message: &str) -> String {
    message
        .chars()
        .filter(|character| !character.is_control())
        .take(MAX_MESSAGE_LEN)
        .collect()
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
