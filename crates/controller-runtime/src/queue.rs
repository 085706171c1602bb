//! A queue of keys to reconcile: deduplicated, delayed, backed off, and never handled twice at the
//! same time.

mod lanes;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt::Debug,
    future::Future,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use lanes::Lanes;

/// First delay after a failure; each further failure doubles it.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The same, if something changed during the failed reconcile: it may have been what was missing.
const MAX_BACKOFF_AFTER_CHANGE: Duration = Duration::from_secs(1);

/// The trigger of the next reconcile of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    OnChange,
    /// On a change, or after this time at the latest.
    After(Duration),
}

/// A queue of keys. Clones share the same queue.
pub struct Queue<K> {
    shared: Arc<SharedQueue<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord + Debug + Send + 'static> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

struct SharedQueue<K> {
    state: Mutex<QueueState<K>>,
    changed: Notify,
}

struct QueueState<K> {
    ready: Lanes<K>,
    waiting: HashSet<K>,
    running: HashSet<K>,
    again: HashSet<K>,
    delayed: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
}

impl<K: Clone + Eq + Hash + Ord + Debug + Send + 'static> Queue<K> {
    pub fn new() -> Self {
        Self::fair(|_| String::new())
    }

    /// A queue in which keys of different lanes, such as tenants, take turns.
    pub fn fair(lane_of: fn(&K) -> String) -> Self {
        let state = QueueState {
            ready: Lanes::new(lane_of),
            waiting: HashSet::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            delayed: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
        };
        Self {
            shared: Arc::new(SharedQueue {
                state: Mutex::new(state),
                changed: Notify::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState<K>> {
        self.shared.state.lock()
    }

    /// Adds a key, unless it waits already. A key that is being handled will be handled again.
    pub fn add(&self, key: K) {
        self.state().add(key);
        self.shared.changed.notify_one();
    }

    /// Adds a key after `delay`, unless it is added sooner. The earliest of several delays counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.state().add_at(key, Instant::now() + delay);
        self.shared.changed.notify_one();
    }

    /// Number of keys that wait or are being handled, without delayed ones.
    pub fn len(&self) -> usize {
        let state = self.state();
        state.ready.len() + state.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Handles keys until `stop`, at most `concurrency` at a time. Retries failed keys with growing
    /// delays, and logs each error with the key and with `what`, the name of the controller.
    pub async fn run<F, Fut, E>(
        &self,
        what: &'static str,
        concurrency: usize,
        stop: CancellationToken,
        reconcile: F,
    ) where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Requeue, E>> + Send + 'static,
        E: std::error::Error + Send + 'static,
    {
        let reconcile = Arc::new(reconcile);
        let mut tasks = JoinSet::new();
        loop {
            while tasks.try_join_next().is_some() {}
            let (key, next_due) = if tasks.len() < concurrency {
                self.state().take_ready(Instant::now())
            } else {
                (None, None)
            };
            if let Some(key) = key {
                let (queue, reconcile) = (self.clone(), reconcile.clone());
                tasks.spawn(async move {
                    let mut guard = RunningKey {
                        queue: &queue,
                        key: Some(key.clone()),
                    };
                    let started = Instant::now();
                    let outcome = reconcile(key.clone()).await;
                    crate::metrics::count_reconcile(what, outcome.is_ok(), started.elapsed());
                    guard.key = None;
                    queue.finish(what, key, outcome);
                });
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.shared.changed.notified() => {}
                Some(_) = tasks.join_next() => {}
                () = sleep_until(next_due) => {}
            }
        }
        tasks.shutdown().await;
    }

    fn finish<E: std::error::Error>(
        &self,
        what: &'static str,
        key: K,
        outcome: Result<Requeue, E>,
    ) {
        let mut state = self.state();
        state.running.remove(&key);
        let changed_meanwhile = state.again.remove(&key);
        match outcome {
            Ok(next) => {
                state.failures.remove(&key);
                if changed_meanwhile {
                    state.add(key);
                } else if let Requeue::After(delay) = next {
                    state.add_at(key, Instant::now() + delay);
                }
            }
            Err(error) => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                let max_backoff = if changed_meanwhile {
                    MAX_BACKOFF_AFTER_CHANGE
                } else {
                    MAX_BACKOFF
                };
                let delay = FIRST_BACKOFF
                    .saturating_mul(1 << (*failures).min(10))
                    .min(max_backoff);
                *failures = failures.saturating_add(1);
                let attempts = *failures;
                let chain = error_chain(&error);
                tracing::warn!(
                    controller = what,
                    ?key,
                    attempts,
                    error = chain,
                    "reconcile failed, trying again"
                );
                state.add_at(key, Instant::now() + delay);
            }
        }
        drop(state);
        self.shared.changed.notify_one();
    }
}

/// The error and its causes, in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Puts the key back if its task was aborted or panicked.
struct RunningKey<'a, K: Clone + Eq + Hash + Ord + Debug + Send + 'static> {
    queue: &'a Queue<K>,
    key: Option<K>,
}

impl<K: Clone + Eq + Hash + Ord + Debug + Send + 'static> Drop for RunningKey<'_, K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let mut state = self.queue.state();
            state.running.remove(&key);
            state.again.remove(&key);
            state.add_at(key, Instant::now() + MAX_BACKOFF);
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> QueueState<K> {
    fn add(&mut self, key: K) {
        if let Some(at) = self.due.remove(&key) {
            self.delayed.remove(&(at, key.clone()));
        }
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.ready.push(key);
        }
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if self.waiting.contains(&key) {
            return;
        }
        if let Some(earlier) = self.due.get(&key).copied() {
            if earlier <= at {
                return;
            }
            self.delayed.remove(&(earlier, key.clone()));
        }
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    /// Takes the next ready key; if there is none, returns when the next delayed one is due.
    fn take_ready(&mut self, now: Instant) -> (Option<K>, Option<Instant>) {
        while let Some((at, _)) = self.delayed.first() {
            if *at > now {
                break;
            }
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
        let Some(key) = self.ready.pop() else {
            return (None, self.delayed.first().map(|(at, _)| *at));
        };
        self.waiting.remove(&key);
        self.running.insert(key.clone());
        (Some(key), None)
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    fn drain(state: &mut QueueState<u32>, now: Instant) -> Vec<u32> {
        let mut keys = Vec::new();
        while let (Some(key), _) = state.take_ready(now) {
            state.running.remove(&key);
            keys.push(key);
        }
        keys
    }

    #[test]
    fn a_key_waits_only_once() {
        let queue = Queue::new();
        queue.add(1);
        queue.add(2);
        queue.add(1);
        assert_eq!(drain(&mut queue.state(), Instant::now()), [1, 2]);
    }

    #[test]
    fn the_earliest_delay_counts_and_adding_overtakes_it() {
        let queue = Queue::new();
        let now = Instant::now();
        queue.state().add_at(1, now + Duration::from_secs(10));
        queue.state().add_at(1, now + Duration::from_secs(5));
        queue.state().add_at(1, now + Duration::from_secs(20));
        assert_eq!(
            queue.state().take_ready(now),
            (None, Some(now + Duration::from_secs(5)))
        );
        assert_eq!(drain(&mut queue.state(), now + Duration::from_secs(5)), [1]);
        queue.state().add_at(2, now + Duration::from_secs(10));
        queue.add(2);
        assert_eq!(drain(&mut queue.state(), now), [2]);
        assert_eq!(
            drain(&mut queue.state(), now + Duration::from_mins(1)),
            Vec::<u32>::new()
        );
    }

    #[test]
    fn a_key_that_changes_while_it_is_handled_is_handled_again_but_not_at_the_same_time() {
        let queue = Queue::new();
        queue.add(1);
        assert_eq!(queue.state().take_ready(Instant::now()).0, Some(1));
        queue.add(1);
        assert_eq!(queue.state().take_ready(Instant::now()).0, None);
        queue.finish("test", 1, Ok::<_, Infallible>(Requeue::OnChange));
        assert_eq!(queue.state().take_ready(Instant::now()).0, Some(1));
    }

    #[test]
    fn a_change_during_a_failure_is_not_made_to_wait_for_long() {
        let queue = Queue::new();
        for changes in [false, true] {
            for _ in 0..12 {
                queue.add(1);
                assert_eq!(queue.state().take_ready(Instant::now()).0, Some(1));
                if changes {
                    queue.add(1);
                }
                queue.finish("test", 1, Err(std::io::Error::other("not yet")));
            }
            let (_, due) = queue.state().take_ready(Instant::now());
            assert_eq!(
                due.unwrap() > Instant::now() + Duration::from_secs(2),
                !changes
            );
        }
    }

    #[tokio::test]
    async fn a_failed_key_is_tried_again_until_it_succeeds() {
        let queue = Queue::new();
        queue.add(1);
        let (stop, tries) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let (done, counter) = (stop.clone(), tries.clone());
        let handle = move |_| {
            let (done, counter) = (done.clone(), counter.clone());
            async move {
                if counter.fetch_add(1, Ordering::SeqCst) < 3 {
                    return Err(std::io::Error::other("not yet"));
                }
                done.cancel();
                Ok(Requeue::OnChange)
            }
        };
        queue.run("test", 2, stop, handle).await;
        assert_eq!(tries.load(Ordering::SeqCst), 4);
    }
}
