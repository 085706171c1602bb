//! The last warnings about each pod at one provider, and which of them is to be written when.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{Rate, RemoteEvent};

/// Events held for each pod. Writing is idempotent, so forgetting one costs a request at most.
const MAX_HELD: usize = 8;
/// Minimum time between the first and the second write of an event. It doubles with each further write.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Writes for one pod: as many as the kubelet's own limit for one object allows.
const POD_BURST: u32 = 25;
const POD_INTERVAL: Duration = Duration::from_secs(300);
/// Writes for all pods at the provider.
const TOTAL_BURST: u32 = 200;
const TOTAL_INTERVAL: Duration = Duration::from_millis(100);
/// Delay before a pod is tried again that waits for the others.
const TOTAL_RETRY: Duration = Duration::from_secs(1);

/// The last warnings about the remote pods at one provider, by the UIDs of their local pods. Bounded by the number of pods that this
/// cluster sent there.
#[derive(Debug)]
pub struct Journal {
    pods: HashMap<String, PodEvents>,
    rate: Rate,
}

#[derive(Debug)]
struct PodEvents {
    /// In the order in which they arrived.
    entries: Vec<Entry>,
    rate: Rate,
}

#[derive(Debug)]
struct Entry {
    event: RemoteEvent,
    written: Option<Written>,
}

#[derive(Debug)]
struct Written {
    event: RemoteEvent,
    at: Instant,
    /// Minimum time until the next write.
    pause: Duration,
}

impl Entry {
    /// How long until it may be written; nothing if it is written.
    fn wait(&self, now: Instant) -> Option<Duration> {
        match &self.written {
            None => Some(Duration::ZERO),
            Some(written) if written.event == self.event => None,
            Some(written) => Some((written.at + written.pause).saturating_duration_since(now)),
        }
    }
}

/// What is to be done for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    Nothing,
    /// Look again after this time.
    After(Duration),
    Write(Box<RemoteEvent>),
}

impl Default for Journal {
    fn default() -> Self {
        Self { pods: HashMap::new(), rate: Rate::new(TOTAL_BURST, TOTAL_INTERVAL) }
    }
}

impl Journal {
    /// Takes over what a watch showed. `remote_uid` is that of the remote pod, if it is known. Returns whether it is not written yet.
    pub fn arrived(&mut self, uid: &str, remote_uid: Option<&str>, event: RemoteEvent) -> bool {
        let new = || PodEvents { entries: Vec::new(), rate: Rate::new(POD_BURST, POD_INTERVAL) };
        let entries = &mut self.pods.entry(uid.to_owned()).or_insert_with(new).entries;
        if let Some(known) = entries.iter_mut().find(|known| known.event.uid == event.uid) {
            known.event = event;
            return known.written.as_ref().is_none_or(|written| written.event != known.event);
        }
        entries.push(Entry { event, written: None });
        if entries.len() > MAX_HELD {
            let is_other = |entry: &Entry| remote_uid.is_some_and(|uid| entry.event.pod_uid != uid);
            // An earlier pod of the same name has events, too.
            entries.remove(entries.iter().position(is_other).unwrap_or(0));
        }
        true
    }

    /// Whether there are events about this pod.
    pub fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The pod is gone.
    pub fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// What is to be done for this pod, whose remote pod has `remote_uid`. Events about other pods of the same name never count.
    /// Those that are due at the same time are written in the order in which they last happened.
    pub fn due(&mut self, uid: &str, remote_uid: &str, now: Instant) -> Due {
        let Some(pod) = self.pods.get_mut(uid) else { return Due::Nothing };
        let own = pod.entries.iter().filter(|entry| entry.event.pod_uid == remote_uid);
        let waiting = own.filter_map(|entry| Some((entry.wait(now)?, &entry.event)));
        let soonest = waiting.min_by_key(|(wait, event)| (*wait, event.last, event.order));
        let Some((wait, event)) = soonest else { return Due::Nothing };
        let wait = wait.max(pod.rate.wait(now));
        if !wait.is_zero() {
            return Due::After(wait);
        }
        if !self.rate.wait(now).is_zero() {
            return Due::After(TOTAL_RETRY);
        }
        // A failed write counts, too.
        pod.rate.take(now);
        self.rate.take(now);
        Due::Write(Box::new(event.clone()))
    }

    /// This event was written.
    pub fn written(&mut self, uid: &str, event: RemoteEvent, now: Instant) {
        let entries = self.pods.get_mut(uid).map(|pod| pod.entries.iter_mut());
        if let Some(entry) = entries.and_then(|mut all| all.find(|entry| entry.event.uid == event.uid)) {
            let pause = entry.written.as_ref().map_or(FIRST_PAUSE, |before| (before.pause * 2).min(MAX_PAUSE));
            entry.written = Some(Written { event, at: now, pause });
        }
    }
}
