//! The run-time state of one remote: its path, its measurements, its counters.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    counters::DroppedCounters, keys::PublicKey, measure::RemoteProbes,
    path_selection::PathSelection, socket::DatagramPath,
};

pub(super) struct LiveRemote {
    pub(super) public_key: PublicKey,
    paths: Mutex<PathSelection>,
    measure: Mutex<RemoteProbes>,
    has_path: AtomicBool,
    /// Whether packets take the direct path to it, if it has one.
    is_direct: AtomicBool,
    started: Instant,
    /// Milliseconds after `started`, plus one. 0 means never.
    last_received: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) dropped: DroppedCounters,
}

impl LiveRemote {
    pub(super) fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            paths: Mutex::default(),
            measure: Mutex::default(),
            has_path: AtomicBool::new(false),
            is_direct: AtomicBool::new(false),
            started: Instant::now(),
            last_received: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            dropped: DroppedCounters::default(),
        }
    }

    pub(super) fn has_path(&self) -> bool {
        self.has_path.load(Relaxed)
    }

    pub(super) fn path(&self) -> Option<DatagramPath> {
        self.paths.lock().path()
    }

    pub(super) fn with_paths<T>(&self, work: impl FnOnce(&mut PathSelection) -> T) -> T {
        let mut paths = self.paths.lock();
        let done = work(&mut paths);
        self.has_path.store(paths.path().is_some(), Relaxed);
        done
    }

    pub(super) fn with_measure<T>(&self, work: impl FnOnce(&mut RemoteProbes) -> T) -> T {
        work(&mut self.measure.lock())
    }

    pub(super) fn is_direct(&self) -> bool {
        self.is_direct.load(Relaxed)
    }

    /// Returns what was set before.
    pub(super) fn set_direct(&self, is_direct: bool) -> bool {
        self.is_direct.swap(is_direct, Relaxed)
    }

    /// An authenticated packet came from the remote over this path.
    pub(super) fn record_heard(&self, path: DatagramPath) {
        self.with_paths(|paths| paths.record_heard(path, Instant::now()));
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.last_received.store(now + 1, Relaxed);
    }

    pub(super) fn last_received(&self) -> Option<Duration> {
        let at = self.last_received.load(Relaxed).checked_sub(1)?;
        Some(
            self.started
                .elapsed()
                .saturating_sub(Duration::from_millis(at)),
        )
    }
}
