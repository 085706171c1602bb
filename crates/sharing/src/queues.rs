//! The queues of this crate's controllers. [`triggers`](crate::triggers) says what they get.

use std::{fmt::Debug, hash::Hash, time::Duration};

use liqo_api::ClusterId;
use liqo_controller_runtime::Queue;

use crate::triggers::{ReceiptSide, SharingTarget, SharingTrigger};

/// One queue for each kind of [`SharingTarget`]. Clones share them.
#[derive(Clone, Default)]
pub struct SharingQueues {
    pub offers: Queue<()>,
    pub providers: Queue<ClusterId>,
    pub conditions: Queue<ClusterId>,
    /// Namespaces of consumers.
    pub issued_receipts: Queue<String>,
    /// Namespaces of providers.
    pub received_receipts: Queue<String>,
}

impl SharingQueues {
    pub fn add(&self, triggers: impl IntoIterator<Item = SharingTrigger>) {
        for SharingTrigger { target, delay } in triggers {
            match target {
                SharingTarget::Offers => add_key(&self.offers, (), delay),
                SharingTarget::Provider(id) => add_key(&self.providers, id, delay),
                SharingTarget::Conditions(id) => add_key(&self.conditions, id, delay),
                SharingTarget::Receipts(ReceiptSide::Issued, namespace) => {
                    add_key(&self.issued_receipts, namespace, delay);
                }
                SharingTarget::Receipts(ReceiptSide::Received, namespace) => {
                    add_key(&self.received_receipts, namespace, delay);
                }
            }
        }
    }
}

fn add_key<K: Clone + Eq + Hash + Ord + Debug + Send + 'static>(
    queue: &Queue<K>,
    key: K,
    delay: Duration,
) {
    if delay.is_zero() {
        queue.add(key);
    } else {
        queue.add_after(key, delay);
    }
}
