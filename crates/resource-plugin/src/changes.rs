//! News, from one who knows to many who listen, each at its own pace.
//!
//! A listener that is slow does not hold up the others, and does not make news pile up either: what it has not heard yet is
//! kept once for each cluster, and as one piece of news for all of them where there are too many.

use std::{
    collections::{HashSet, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use futures::{Stream, task::AtomicWaker};

use crate::model::Change;

/// How many clusters a listener may be behind before it is told that all have changed.
const MOST_PENDING: usize = 1024;

/// Where changes are announced. Clones announce to the same listeners.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    listeners: Arc<Mutex<Vec<Weak<Mailbox>>>>,
}

impl Announcer {
    /// One that nobody listens to yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells every listener. Never waits for one.
    pub fn announce(&self, change: &Change) {
        self.listeners().retain(|listener| {
            let Some(mailbox) = listener.upgrade() else { return false };
            mailbox.pending().add(change.clone());
            mailbox.waker.wake();
            true
        });
    }

    /// Every change that is announced from now on. The stream has no end.
    pub fn listen(&self) -> Changes {
        let mailbox = Arc::new(Mailbox::default());
        let mut listeners = self.listeners();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&mailbox));
        Changes { mailbox }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<Mailbox>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one listener hears: a stream of [`Change`]s, in the order in which they were first announced.
#[derive(Debug)]
pub struct Changes {
    mailbox: Arc<Mailbox>,
}

impl Stream for Changes {
    type Item = Change;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        // In this order: what is announced between the two wakes us.
        self.mailbox.waker.register(context.waker());
        match self.mailbox.pending().take() {
            Some(change) => Poll::Ready(Some(change)),
            None => Poll::Pending,
        }
    }
}

#[derive(Debug, Default)]
struct Mailbox {
    pending: Mutex<Pending>,
    waker: AtomicWaker,
}

impl Mailbox {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was announced and not heard. Pure.
#[derive(Debug, Default)]
struct Pending {
    all: bool,
    clusters: HashSet<String>,
    order: VecDeque<String>,
}

impl Pending {
    fn add(&mut self, change: Change) {
        match change {
            _ if self.all => {}
            Change::Cluster(cluster) if self.order.len() < MOST_PENDING || self.clusters.contains(&cluster) => {
                if self.clusters.insert(cluster.clone()) {
                    self.order.push_back(cluster);
                }
            }
            Change::All | Change::Cluster(_) => *self = Self { all: true, ..Self::default() },
        }
    }

    fn take(&mut self) -> Option<Change> {
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

    fn heard(changes: &mut Changes) -> Vec<Change> {
        std::iter::from_fn(|| changes.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn every_listener_hears_what_is_announced_after_it_came() {
        let announcer = Announcer::new();
        let mut early = announcer.listen();
        announcer.announce(&cluster("rome"));
        let mut late = announcer.listen();
        announcer.announce(&cluster("milan"));
        assert_eq!(heard(&mut early), [cluster("rome"), cluster("milan")]);
        assert_eq!(heard(&mut late), [cluster("milan")]);
    }

    #[test]
    fn a_flood_is_one_change_for_each_cluster() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        for _ in 0..1000 {
            announcer.announce(&cluster("rome"));
            announcer.announce(&cluster("milan"));
        }
        assert_eq!(heard(&mut changes), [cluster("rome"), cluster("milan")]);
        announcer.announce(&cluster("rome"));
        assert_eq!(heard(&mut changes), [cluster("rome")], "what was heard may change again");
    }

    #[test]
    fn a_change_for_all_stands_for_every_single_one() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        for change in [cluster("rome"), Change::All, cluster("milan")] {
            announcer.announce(&change);
        }
        assert_eq!(heard(&mut changes), [Change::All]);
    }

    #[test]
    fn too_many_clusters_become_all_clusters() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        for number in 0..MOST_PENDING {
            announcer.announce(&cluster(&number.to_string()));
        }
        assert_eq!(heard(&mut changes).len(), MOST_PENDING);
        for number in 0..=MOST_PENDING {
            announcer.announce(&cluster(&number.to_string()));
        }
        assert_eq!(heard(&mut changes), [Change::All]);
    }

    #[test]
    fn who_went_away_is_forgotten() {
        let announcer = Announcer::new();
        drop(announcer.listen());
        announcer.announce(&Change::All);
        assert!(announcer.listeners().is_empty());
    }

    #[tokio::test]
    async fn a_listener_that_waits_is_woken() {
        let announcer = Announcer::new();
        let mut changes = announcer.listen();
        let (change, ()) = tokio::join!(changes.next(), async {
            tokio::task::yield_now().await;
            announcer.announce(&Change::All);
        });
        assert_eq!(change, Some(Change::All));
    }
}
