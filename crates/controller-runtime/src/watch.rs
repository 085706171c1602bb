//! A channel for one value, for receivers that need only the latest one. It works like tokio's
//! `watch`, except for the order in which receivers wake.
//!
//! Tokio wakes the receivers of its channel in a random order. These wake in the order in which
//! they began to wait, so a test can repeat a run of the manager exactly
//! (`crates/devtools/simulation`).
//!
//! As with tokio's, a task must not hold what `borrow` returns while it sends, or borrows again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Notify;

struct SharedValue<T> {
    value: RwLock<T>,
    version: AtomicU64,
    changed: Notify,
    is_closed: AtomicBool,
}

/// Changes the value. When it is dropped, the value stays as it is.
pub struct Sender<T>(Arc<SharedValue<T>>);

/// Sees the latest value.
pub struct Receiver<T> {
    shared: Arc<SharedValue<T>>,
    /// The version that this receiver saw last.
    seen: u64,
}

/// The sender is gone, so the value does not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value does not change any more")]
pub struct Closed;

pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender(Arc::new(SharedValue {
        value: RwLock::new(value),
        version: AtomicU64::new(0),
        changed: Notify::new(),
        is_closed: AtomicBool::new(false),
    }));
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A receiver that has seen the present value.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            shared: self.0.clone(),
            seen: self.0.version.load(Ordering::Acquire),
        }
    }

    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.value.read()
    }

    pub fn send_replace(&self, value: T) {
        self.send_modify(|old| *old = value);
    }

    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Tells the receivers if `modify` says that it changed the value. Returns what it says.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let mut value = self.0.value.write();
        let is_modified = modify(&mut value);
        if is_modified {
            self.0.version.fetch_add(1, Ordering::Release);
        }
        drop(value);
        if is_modified {
            self.0.changed.notify_waiters();
        }
        is_modified
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Receiver<T> {
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.shared.value.read()
    }

    /// The value, which counts as seen.
    pub fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.shared.value.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }

    /// Waits for a value that this receiver has not seen, which counts as seen then.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // From now on nothing is missed.
            changed.as_mut().enable();
            // First, because the sender may change the value and go in between.
            let is_closed = self.shared.is_closed.load(Ordering::Acquire);
            let version = self.shared.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if is_closed {
                return Err(Closed);
            }
            changed.await;
        }
    }

    fn meets(&mut self, meets: &mut impl FnMut(&T) -> bool) -> bool {
        meets(&self.borrow_and_update())
    }

    /// Waits until the value meets a condition. It may not meet it any more when the caller looks.
    pub async fn wait_for(&mut self, mut meets: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        while !self.meets(&mut meets) {
            self.changed().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test]
    async fn a_receiver_sees_the_latest_value_once() {
        let (sender, mut receiver) = channel(1);
        let soon = Duration::from_millis(20);
        assert!(
            timeout(soon, receiver.changed()).await.is_err(),
            "it has seen the first value"
        );
        sender.send_replace(2);
        sender.send_modify(|value| *value += 1);
        assert!(!sender.send_if_modified(|_| false));
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow_and_update(), 3);
        assert!(timeout(soon, receiver.changed()).await.is_err());
        let (mut other, mut waiting) = (receiver.clone(), sender.subscribe());
        let waits = tokio::spawn(async move { waiting.wait_for(|value| *value == 5).await });
        sender.send_replace(4);
        tokio::task::yield_now().await;
        sender.send_replace(5);
        assert_eq!(waits.await.unwrap(), Ok(()));
        drop(sender);
        assert_eq!(
            (other.changed().await, other.changed().await),
            (Ok(()), Err(Closed))
        );
        assert_eq!(other.wait_for(|value| *value == 6).await, Err(Closed));
        assert_eq!(*other.borrow(), 5);
    }

    #[tokio::test]
    async fn receivers_wake_in_the_order_in_which_they_began_to_wait() {
        let (sender, receiver) = channel(());
        let woken: Arc<Mutex<Vec<u32>>> = Arc::default();
        for number in 0..50 {
            let (mut receiver, woken) = (receiver.clone(), woken.clone());
            tokio::spawn(async move {
                receiver.changed().await.unwrap();
                woken.lock().push(number);
            });
        }
        sleep(Duration::from_millis(1)).await;
        sender.send_replace(());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(*woken.lock(), (0..50).collect::<Vec<_>>());
    }
}
