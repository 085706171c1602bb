//! Pulls of images for one remote pod. Their owner sees only those that take long.

use std::time::{Duration, Instant};

use super::RemoteEvent;

/// A pull that takes longer is shown. A kubelet says only in seconds when it began and ended.
const SLOW: Duration = Duration::from_secs(5);
/// Pulls held for each pod. A kubelet pulls the images of a pod one after another.
const MAX_HELD: usize = 8;

/// The pulls for one pod that have not ended.
#[derive(Debug, Default)]
pub struct PendingPulls(Vec<PendingPull>);

#[derive(Debug)]
struct PendingPull {
    started: RemoteEvent,
    /// This process first saw it then. Clocks of clusters differ.
    seen: Instant,
    is_shown: bool,
}

impl PendingPull {
    /// Time until it is shown.
    fn time_until_shown(&self, now: Instant) -> Duration {
        (self.seen + SLOW).saturating_duration_since(now)
    }
}

impl PendingPulls {
    /// A pull began.
    pub fn pull_started(&mut self, started: RemoteEvent, now: Instant) {
        if self.0.iter().any(|pull| pull.started == started) {
            return;
        }
        self.0
            .retain(|pull| !is_same_container(&pull.started, &started));
        self.0.push(PendingPull {
            started,
            seen: now,
            is_shown: false,
        });
        if self.0.len() > MAX_HELD {
            self.0.remove(0);
        }
    }

    /// A pull ended. Returns what its owner sees of it: nothing if it was short, or began before
    /// this process could see it.
    pub fn pull_ended(&mut self, end: RemoteEvent) -> Vec<RemoteEvent> {
        let Some(PendingPull {
            started, is_shown, ..
        }) = self.take_pull(&end)
        else {
            return Vec::new();
        };
        let is_slow = end.last.duration_since(started.last).unsigned_abs() > SLOW;
        if is_shown || is_slow {
            vec![started, end]
        } else {
            Vec::new()
        }
    }

    /// The pull did not end well, or something later is known, if this event is about the same
    /// container.
    pub fn pull_failed(&mut self, warning: &RemoteEvent) {
        self.take_pull(warning);
    }

    /// The pulls for this remote pod that take long now, each once.
    pub fn take_slow_pulls(&mut self, pod_uid: &str, now: Instant) -> Vec<RemoteEvent> {
        let due = self.0.iter_mut().filter(|pull| {
            !pull.is_shown
                && pull.started.pod_uid == pod_uid
                && pull.time_until_shown(now).is_zero()
        });
        due.map(|pull| {
            pull.is_shown = true;
            pull.started.clone()
        })
        .collect()
    }

    /// Time until the next pull for this remote pod takes long; `None` if there is none.
    pub fn time_until_slow(&self, pod_uid: &str, now: Instant) -> Option<Duration> {
        let held = self
            .0
            .iter()
            .filter(|pull| !pull.is_shown && pull.started.pod_uid == pod_uid);
        held.map(|pull| pull.time_until_shown(now)).min()
    }

    /// Takes out the pull that this event ends.
    fn take_pull(&mut self, end: &RemoteEvent) -> Option<PendingPull> {
        let index = self.0.iter().position(|pull| {
            is_same_container(&pull.started, end) && end.last >= pull.started.last
        })?;
        Some(self.0.remove(index))
    }
}

fn is_same_container(one: &RemoteEvent, other: &RemoteEvent) -> bool {
    one.pod_uid == other.pod_uid && one.field_path == other.field_path
}
