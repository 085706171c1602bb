//! Sends changes from one announcer to many listeners, each at its own pace.
//!
//! A slow listener does not delay the others, and its queue stays short: the queue contains each
//! changed cluster once. If there are too many clusters, one [`Change::All`] replaces them.

use std::{
    collections::{HashSet, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use futures::{Stream, task::AtomicWaker};

use crate::model::Change;

/// Maximum number of clusters in the queue of a listener. Beyond that, [`Change::All`] replaces
/// them.
const MAX_PENDING: usize = 1024;

/// Announces changes to listeners. Clones announce to the same listeners.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    listeners: Arc<Mutex<Vec<Weak<Mailbox>>>>,
}

impl Announcer {
    /// An announcer without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a change to the queue of every listener. It never blocks.
    pub fn announce(&self, change: &Change) {
        self.listeners().retain(|listener| {
            let Some(mailbox) = listener.upgrade() else {
                return false;
            };
            mailbox.pending().add(change.clone());
            mailbox.waker.wake();
            true
        });
    }

    /// A stream of all changes that are announced from now on. It never ends.
    pub fn listen(&self) -> ChangeStream {
        let mailbox = Arc::new(Mailbox::default());
        let mut listeners = self.listeners();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&mailbox));
        ChangeStream { mailbox }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<Mailbox>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream of [`Change`]s of one listener, in the order in which they were first announced.
#[derive(Debug)]
pub struct ChangeStream {
    mailbox: Arc<Mailbox>,
}

impl Stream for ChangeStream {
    type Item = Change;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        // Register first: then a change that is announced between the two calls wakes this task.
        self.mailbox.waker.register(context.waker());
        match self.mailbox.pending().take_next() {
            Some(change) => Poll::Ready(Some(change)),
            None => Poll::Pending,
        }
    }
}

#[derive(Debug, Default)]
struct Mailbox {
    pending: Mutex<PendingChanges>,
    waker: AtomicWaker,
}

impl Mailbox {
    fn pending(&self) -> MutexGuard<'_, PendingChanges> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of one listener. Pure.
#[derive(Debug, Default)]
struct PendingChanges {
    all: bool,
    clusters: HashSet<String>,
    order: VecDeque<String>,
}

impl PendingChanges {
    fn add(&mut self, change: Change) {
        match change {
            _ if self.all => {}
            Change::Cluster(cluster)
                if self.order.len() < MAX_PENDING || self.clusters.contains(&cluster) =>
            {
                if self.clusters.insert(cluster.clone()) {
                    self.order.push_back(cluster);
                }
            }
            Change::All | Change::Cluster(_) => {
                *self = Self {
                    all: true,
                    ..Self::default()
                }
            }
        }
    }

    fn take_next(&mut self) -> Option<Change> {
        if std::mem::take(&mut self.all) {
            return Some(Change::All);
        }
        let cluster = self.order.pop_front()?;
        self.clusters.remove(&cluster);
        Some(Change::Cluster(cluster))
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    fn cluster(name: &str) -> Change {
        Change::Cluster(name.to_owned())
    }

    fn received(changes: &mut ChangeStream) -> Vec<Change> {
        std::iter::from_fn(|| changes.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn a_listener_receives_what_is_announced_after_it_subscribed() {
        let announcer = Announcer::new();
        let mut early = announcer.listen();
        announcer.announce(&cluster("rome"));
        let mut late = announcer.listen();
        announcer.announce(&cluster("milan"));
        assert_eq!(received(&mut early), [cluster("rome"), cluster("milan")]);
        assert_eq!(received(&mut late), [cluster("milan")]);
    }

    #[test]
    fn many_changes_of_a_cluster_become_one() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        for _ in 0..1000 {
            announcer.announce(&cluster("rome"));
            announcer.announce(&cluster("milan"));
        }
        assert_eq!(received(&mut changes), [cluster("rome"), cluster("milan")]);
        announcer.announce(&cluster("rome"));
        assert_eq!(
            received(&mut changes),
            [cluster("rome")],
            "a cluster can change again"
        );
    }

    #[test]
    fn a_change_of_all_clusters_replaces_single_changes() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        for change in [cluster("rome"), Change::All, cluster("milan")] {
            announcer.announce(&change);
        }
        assert_eq!(received(&mut changes), [Change::All]);
    }

    #[test]
    fn too_many_changed_clusters_become_all_clusters() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        for number in 0..MAX_PENDING {
            announcer.announce(&cluster(&number.to_string()));
        }
        assert_eq!(received(&mut changes).len(), MAX_PENDING);
        for number in 0..=MAX_PENDING {
            announcer.announce(&cluster(&number.to_string()));
        }
        assert_eq!(received(&mut changes), [Change::All]);
    }

    #[test]
    fn a_dropped_listener_is_removed() {
        let announcer = Announcer::new();
        drop(announcer.listen());
        announcer.announce(&Change::All);
        assert!(announcer.listeners().is_empty());
    }

    #[tokio::test]
    async fn a_change_wakes_a_waiting_listener() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        let (change, ()) = tokio::join!(changes.next(), async {
            tokio::task::yield_now().await;
            announcer.announce(&Change::All);
        });
        assert_eq!(change, Some(Change::All));
    }
}
