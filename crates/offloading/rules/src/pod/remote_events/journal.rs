//! The last events about each pod at one provider, and which of them is to be written when.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use liqo_api::token_bucket::{TokenBucket, TokenRate};

use super::pulls::PendingPulls;
use super::{PullStep, RemoteEvent};

/// Events held for each pod. Writing is idempotent, so forgetting one that is written costs a
/// request at most.
const MAX_HELD: usize = 16;
/// Minimum time between the first and the second write of an event. It doubles with each further
/// write.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Writes for one pod: as many as the kubelet's own limit for one object allows.
const RATE_OF_A_POD: TokenRate = TokenRate::one_each(Duration::from_mins(5), 25);
/// Writes for all pods at the provider.
const TOTAL_RATE: TokenRate = TokenRate::each_second(10, 200);
/// Delay before a pod is tried again that waits for the others.
const TOTAL_RETRY: Duration = Duration::from_secs(1);

/// The last events about the remote pods at one provider, by the UIDs of their local pods. Bounded
/// by the number of pods that this cluster sent there.
#[derive(Debug)]
pub struct RemoteEventJournal {
    pods: HashMap<String, PodEvents>,
    rate: TokenBucket<Instant>,
}

#[derive(Debug)]
struct PodEvents {
    /// In the order in which they arrived.
    entries: Vec<JournalEntry>,
    pulls: PendingPulls,
    rate: TokenBucket<Instant>,
}

impl Default for PodEvents {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            pulls: PendingPulls::default(),
            rate: TokenBucket::full(RATE_OF_A_POD),
        }
    }
}

impl PodEvents {
    /// Holds an event that is to be written. Returns whether it is not written yet.
    fn hold_event(&mut self, event: RemoteEvent, remote_uid: Option<&str>) -> bool {
        // Whether it was a pull does not matter any more.
        let event = RemoteEvent {
            pull: None,
            ..event
        };
        if let Some(known) = self
            .entries
            .iter_mut()
            .find(|known| known.event.uid == event.uid)
        {
            known.event = event;
            return known
                .written
                .as_ref()
                .is_none_or(|written| written.event != known.event);
        }
        self.entries.push(JournalEntry {
            event,
            written: None,
        });
        if self.entries.len() > MAX_HELD {
            // An earlier pod of the same name has events, too.
            let other = self
                .entries
                .iter()
                .position(|entry| remote_uid.is_some_and(|uid| entry.event.pod_uid != uid));
            let written = self
                .entries
                .iter()
                .position(|entry| entry.written.is_some());
            self.entries.remove(other.or(written).unwrap_or(0));
        }
        true
    }

    /// Returns whether one of them is not written yet.
    fn hold_events(&mut self, events: Vec<RemoteEvent>, remote_uid: Option<&str>) -> bool {
        let mut is_due = false;
        for event in events {
            is_due |= self.hold_event(event, remote_uid);
        }
        is_due
    }
}

#[derive(Debug)]
struct JournalEntry {
    event: RemoteEvent,
    written: Option<WrittenEvent>,
}

#[derive(Debug)]
struct WrittenEvent {
    event: RemoteEvent,
    at: Instant,
    /// Minimum time until the next write.
    pause: Duration,
}

impl JournalEntry {
    /// Time until it may be written; `None` if it is written.
    fn time_until_due(&self, now: Instant) -> Option<Duration> {
        match &self.written {
            None => Some(Duration::ZERO),
            Some(written) if written.event == self.event => None,
            Some(written) => Some((written.at + written.pause).saturating_duration_since(now)),
        }
    }
}

/// The next step for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DueEvent {
    Nothing,
    /// Look again after this time.
    After(Duration),
    Write(Box<RemoteEvent>),
}

impl Default for RemoteEventJournal {
    fn default() -> Self {
        Self {
            pods: HashMap::new(),
            rate: TokenBucket::full(TOTAL_RATE),
        }
    }
}

impl RemoteEventJournal {
    /// Takes over what a watch showed. `remote_uid` is that of the remote pod, if it is known.
    /// Returns whether something is due.
    pub fn event_arrived(
        &mut self,
        uid: &str,
        remote_uid: Option<&str>,
        event: RemoteEvent,
        now: Instant,
    ) -> bool {
        if event.pull == Some(PullStep::Ended) && !self.has_events(uid) {
            return false;
        }
        let pod = self.pods.entry(uid.to_owned()).or_default();
        match event.pull {
            Some(PullStep::Started) => {
                pod.pulls.pull_started(event, now);
                true
            }
            Some(PullStep::Ended) => {
                let shown = pod.pulls.pull_ended(event);
                pod.hold_events(shown, remote_uid)
            }
            None => {
                pod.pulls.pull_failed(&event);
                pod.hold_event(event, remote_uid)
            }
        }
    }

    /// Whether there are events about this pod.
    pub fn has_events(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The pod is gone.
    pub fn forget_pod(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// The next step for this pod, whose remote pod has `remote_uid`. Events about other pods of
    /// the same name never count. Events that are due at the same time are written in the order in
    /// which they last happened.
    pub fn next_due(&mut self, uid: &str, remote_uid: &str, now: Instant) -> DueEvent {
        let Some(pod) = self.pods.get_mut(uid) else {
            return DueEvent::Nothing;
        };
        let slow = pod.pulls.take_slow_pulls(remote_uid, now);
        pod.hold_events(slow, Some(remote_uid));
        let until_slow = pod.pulls.time_until_slow(remote_uid, now);
        let own = pod
            .entries
            .iter()
            .filter(|entry| entry.event.pod_uid == remote_uid);
        let waiting = own.filter_map(|entry| Some((entry.time_until_due(now)?, &entry.event)));
        let soonest = waiting.min_by_key(|(wait, event)| (*wait, event.last, event.order));
        let Some((wait, event)) = soonest else {
            return until_slow.map_or(DueEvent::Nothing, DueEvent::After);
        };
        let wait = wait.max(pod.rate.time_until_token(now));
        if !wait.is_zero() {
            return DueEvent::After(until_slow.map_or(wait, |other| wait.min(other)));
        }
        if !self.rate.time_until_token(now).is_zero() {
            return DueEvent::After(TOTAL_RETRY);
        }
        // A failed write counts, too.
        pod.rate.take_tokens(1, now);
        self.rate.take_tokens(1, now);
        DueEvent::Write(Box::new(event.clone()))
    }

    /// This event was written.
    pub fn event_written(&mut self, uid: &str, event: RemoteEvent, now: Instant) {
        let entries = self.pods.get_mut(uid).map(|pod| pod.entries.iter_mut());
        if let Some(entry) =
            entries.and_then(|mut all| all.find(|entry| entry.event.uid == event.uid))
        {
            let pause = entry
                .written
                .as_ref()
                .map_or(FIRST_PAUSE, |before| (before.pause * 2).min(MAX_PAUSE));
            entry.written = Some(WrittenEvent {
                event,
                at: now,
                pause,
            });
        }
    }
}
