//! The queues of this crate's controllers. [`triggers`](crate::triggers) says what they get.

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
                SharingTarget::Offers => self.offers.add_after((), delay),
                SharingTarget::Provider(id) => self.providers.add_after(id, delay),
                SharingTarget::Conditions(id) => self.conditions.add_after(id, delay),
                SharingTarget::Receipts(ReceiptSide::Issued, namespace) => {
                    self.issued_receipts.add_after(namespace, delay);
                }
                SharingTarget::Receipts(ReceiptSide::Received, namespace) => {
                    self.received_receipts.add_after(namespace, delay);
                }
            }
        }
    }
}
