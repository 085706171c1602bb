//! Which pods of consumers are charged: what the recorder needs to know of them at the end of a period.

use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::Key;
use liqo_metering::{Charges, Entry, Period, Seconds};
use liqo_offloading_rules::pod::metering::{Metering, charges, with_pod};
use liqo_offloading_rules::pod::remote_pod::RemotePod;

use crate::metering::{GRACE, Side};
use crate::provider::state::Provider;
use crate::provider::triggers;

/// The provider's side of metering.
pub struct ProviderSide(pub Arc<Provider>);

impl Provider {
    /// How the pod of this shadow pod is measured; `None` if its tenancy has no contract.
    pub fn metering(&self, shadow: &Key) -> Option<Metering> {
        let charge = self.recorder.contract(&shadow.namespace)?.charge;
        let settled = self.recorder.settled(&shadow.namespace);
        Some(Metering { charge, settled, is_stored: self.recorder.is_stored(&shadow.namespace, &shadow.name) })
    }

    /// Stores what the pods used that a shadow pod left behind, because somebody removed it by force. Returns whether that is done.
    pub fn store_orphans(&self, shadow: &Key, pods: &[Arc<RemotePod>]) -> bool {
        let (Some(metering), now) = (self.metering(shadow), Timestamp::now()) else { return true };
        let gone = |pod: &Arc<RemotePod>| {
            let charges = with_pod(&Charges::default(), pod, &metering, now);
            charges.gone(now.as_second(), None, metering.settled.as_second()).entries(&shadow.name, &pod.pool, now.as_second())
        };
        metering.is_stored || self.recorder.store(&shadow.namespace, &shadow.name, pods.iter().flat_map(gone).collect())
    }
}

impl Side for ProviderSide {
    fn open(&self, namespace: &str, now: Seconds) -> Option<Vec<Entry>> {
        let provider = &self.0;
        let time = Timestamp::from_second(now).ok()?;
        let mut entries = Vec::new();
        for (key, shadow) in provider.shadows.in_namespace(namespace) {
            let metering = provider.metering(&key)?;
            let pods = provider.index.lock().of(&key);
            let ours = pods.iter().filter(|pod| provider.is_mapped_for(&pod.key.namespace, namespace));
            // A status that is about to be written says the same.
            let charges = ours.fold(charges(&shadow.reported), |charges, pod| with_pod(&charges, pod, &metering, time));
            entries.extend(charges.entries(&key.name, &shadow.pool, now));
        }
        Some(entries)
    }

    fn parts(&self, entry: &Entry, period_seconds: u32) -> Vec<(Period, Entry)> {
        Period::parts(entry, period_seconds)
    }

    fn stored(&self, namespace: &str, pods: Vec<String>) {
        let keys = pods.into_iter().map(|pod| Key::new(namespace, pod));
        self.0.queues.add(triggers::shadow_pods(keys));
    }

    fn grace(&self) -> Seconds {
        GRACE
    }
}
