//! The consumption that this cluster counts for its pods at a provider, by its own clock where it
//! does not know the provider's.
//!
//! This cluster signs what it counts. So that comes from its own objects, or from what it wrote
//! into a shadow pod with a code that nobody else can compute. The provider's charges say only when
//! within that a pod ran.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::{Claimed, ClusterId, Key, ResourceList, provider_namespace};
use liqo_metering::observation::{never_charged, parts_with_witnesses};
use liqo_metering::spending::ContractAccount;
use liqo_metering::{Charges, ConsumerObservation, Period, Seconds, UsageEntry, Voucher};
use liqo_offloading_rules::budget::unmetered::UnmeteredPool;
use liqo_offloading_rules::pod::chargeable::{
    PeriodEndState, chargeable_amounts, running_entry, sent_at, state_at_period_end,
};
use liqo_offloading_rules::pod::local::{PeerReachability as Reachability, SendProgress};
use liqo_offloading_rules::pod::local_state::{ConsumerShadowPod, LocalPod};
use liqo_offloading_rules::pod::shadow_pod::{MAX_GRACE_SECONDS, end_of_charges};

use super::state::{ConsumerState, RemoteProvider};
use crate::metering::{GRACE, MeteredContract, MeteringSide, name_of_key};

/// The consumer's side of metering.
pub struct ConsumerMetering(pub Arc<ConsumerState>);

impl ConsumerState {
    fn clock_tolerance(&self) -> Seconds {
        self.context
            .config()
            .spec
            .metering
            .clock_tolerance_seconds
            .into()
    }

    fn latest_contract(&self, provider: &ClusterId) -> Option<Arc<MeteredContract>> {
        self.recorder.latest_contract(&provider_namespace(provider))
    }

    /// Stores what a local pod used whose shadow pod is gone. Returns whether that is done;
    /// otherwise its key is enqueued again then.
    pub fn store_usage(&self, peer: &RemoteProvider, pod: &LocalPod) -> bool {
        self.store_until(peer, pod, self.context.now().as_second())
    }

    /// Stores what a local pod used that has ended, before its shadow pod goes. The provider
    /// deletes the remote pod within its grace.
    pub fn store_ended(&self, peer: &RemoteProvider, pod: &LocalPod) -> bool {
        self.store_until(
            peer,
            pod,
            self.context.now().as_second() + MAX_GRACE_SECONDS,
        )
    }

    fn store_until(&self, peer: &RemoteProvider, pod: &LocalPod, gone: Seconds) -> bool {
        let Some(contract) = self.latest_contract(&peer.id) else {
            return true;
        };
        if peer.send_progress(&pod.uid) == SendProgress::No
            && peer.seen_charges(&pod.uid).is_none()
            && !peer.may_run(pod)
        {
            // It was refused until it went, and cost nothing.
            return !peer.had_voucher(&pod.uid)
                || self.store_uncharged(peer, &pod.uid, &self.pool_of(peer, pod));
        }
        let entries = self.entries_of_pod(peer, pod, &contract, Some(gone));
        self.recorder
            .store_entries(&provider_namespace(&peer.id), &pod.uid, entries)
    }

    /// Stores that a pod is gone which was never charged: its provider may have kept the voucher.
    fn store_uncharged(&self, peer: &RemoteProvider, uid: &str, pool: &str) -> bool {
        let entry = never_charged(uid, pool, self.context.now().as_second());
        self.recorder.store_entries(
            &provider_namespace(&peer.id),
            uid,
            entry.into_iter().collect(),
        )
    }

    /// Remembers what a pod used under a shadow pod that somebody removed, before it is sent again:
    /// the next one has charges of its own.
    pub fn store_former(&self, peer: &RemoteProvider, pod: &LocalPod) {
        let (Some(contract), Some(charges)) =
            (self.latest_contract(&peer.id), peer.seen_charges(&pod.uid))
        else {
            return;
        };
        let first = charges_of(Some(charges.charges.unverified()))
            .and_then(|charges| charges.charged_from())
            .unwrap_or_default();
        let entries =
            self.entries_of_pod(peer, pod, &contract, Some(self.context.now().as_second()));
        self.recorder.store_entries(
            &provider_namespace(&peer.id),
            &format!("{}/{first}", pod.uid),
            entries,
        );
        peer.forget_charges(&pod.uid);
    }

    /// Stores what a pod used that is gone here, before its shadow pod goes. The provider deletes
    /// the remote pod within its grace.
    pub fn store_orphan(
        &self,
        peer: &RemoteProvider,
        uid: &str,
        shadow: &ConsumerShadowPod,
    ) -> bool {
        if self.latest_contract(&peer.id).is_none() {
            return true;
        }
        if !shows_charges(shadow) {
            let voucher = self.read_voucher(peer, uid, &shadow.voucher);
            return voucher.is_none_or(|voucher| self.store_uncharged(peer, uid, &voucher.pool));
        }
        if let Some(pod) = peer.gone_pod(uid) {
            return self.store_ended(peer, &pod);
        }
        let now = self.context.now().as_second();
        let entries = self.entries_of_orphan(peer, uid, shadow, Some(now + MAX_GRACE_SECONDS), now);
        self.recorder
            .store_entries(&provider_namespace(&peer.id), uid, entries)
    }

    /// Remembers what a pod was charged before it is resized. Its voucher will have the amounts, if
    /// it has one.
    pub fn store_before_resize(
        &self,
        peer: &RemoteProvider,
        pod: &LocalPod,
        shadow: &ConsumerShadowPod,
    ) {
        let Some(contract) = self.latest_contract(&peer.id) else {
            return;
        };
        if !shows_charges(shadow) {
            return;
        }
        let now = self.context.now().as_second();
        let entries = self.entries_of_pod(peer, pod, &contract, Some(now));
        self.recorder.store_entries(
            &provider_namespace(&peer.id),
            &format!("{}/{now}", pod.uid),
            entries,
        );
    }

    /// Returns the text that this cluster writes into the shadow pod of a pod, to know the pod
    /// again when it is gone here. `former`: the text that the shadow pod has already. `None`
    /// without a contract.
    pub fn pod_voucher(
        &self,
        provider: &ClusterId,
        pod: &LocalPod,
        pool: &str,
        former: Claimed<Option<&str>>,
    ) -> Option<String> {
        let contract = self.latest_contract(provider)?;
        let former = self
            .voucher_key
            .read_voucher(provider.as_str(), &pod.uid, former);
        let sent = former
            .as_ref()
            .map_or_else(|| sent_at(pod).as_second(), |former| former.sent);
        let former = former.map(|former| former.amounts).unwrap_or_default();
        let amounts = chargeable_amounts(pod, contract.charge, contract.limit_percentage, &former);
        let (namespace, pool) = (pod.key.namespace.clone(), pool.to_owned());
        self.voucher_key.write_voucher(
            provider.as_str(),
            &pod.uid,
            &Voucher {
                namespace,
                pool,
                sent,
                amounts,
            },
        )
    }

    /// Computes the cost of each contract with a provider so far, and the cost of its pods now. If
    /// the provider does not answer, or has not said when it began to charge a pod, the pod counts
    /// as if it had run since it was bound.
    pub fn accounts_with_provider(&self, id: &ClusterId) -> Vec<ContractAccount> {
        let namespace = provider_namespace(id);
        let mut accounts = self.recorder.accounts(&namespace);
        let (Some(peer), Some(contract)) = (self.peers.get(id), self.latest_contract(id)) else {
            return accounts;
        };
        let (remote, now) = (peer.answering_remote(), self.context.now().as_second());
        let (mut running, mut entries) = (Vec::new(), Vec::new());
        for pod in peer.pods_and_gone() {
            let shadow = remote
                .as_ref()
                .and_then(|remote| remote.shadow_pod(&pod.uid));
            let is_charged = shadow.is_some() || peer.seen_charges(&pod.uid).is_some();
            let is_sent = shadow.is_some()
                || peer.send_progress(&pod.uid) != SendProgress::No
                || (remote.is_none() && peer.may_run(&pod));
            if (is_charged || is_sent) && !self.recorder.is_stored(&namespace, &pod.uid) {
                if let Some(shadow) = &shadow {
                    peer.observe_charges(&pod, shadow);
                }
                let gone = shadow.is_none().then_some(now);
                entries.push(self.entries_of_pod(&peer, &pod, &contract, gone));
                running.extend((is_sent && !pod.finished).then_some(pod));
            }
        }
        for (Key { name: uid, .. }, shadow) in remote.iter().flat_map(|remote| remote.shadows.all())
        {
            if peer.pod(&uid).is_none()
                && peer.gone_pod(&uid).is_none()
                && !self.recorder.is_stored(&namespace, &uid)
            {
                entries.push(self.entries_of_orphan(&peer, &uid, &shadow, None, now));
            }
        }
        for account in &mut accounts {
            for of_pod in &entries {
                account.add_running(of_pod);
            }
        }
        for pod in running {
            let amounts = chargeable_amounts(&pod, contract.charge, contract.limit_percentage, &[]);
            let most = amounts
                .iter()
                .fold(ResourceList::new(), |all, one| all.max(one));
            let pool = self.pool_of(&peer, &pod);
            for account in &mut accounts {
                account.add_rate(&pod.key.namespace, &pool, &most, now);
            }
        }
        accounts
    }

    /// Returns the usage so far of the pods that run in these pools of a provider, where nothing
    /// meters them.
    pub fn running_entries(
        &self,
        id: &ClusterId,
        pools: &BTreeMap<String, UnmeteredPool>,
    ) -> Vec<UsageEntry> {
        let Some(peer) = self.peers.get(id).filter(|_| !pools.is_empty()) else {
            return Vec::new();
        };
        let now = self.context.now().as_second();
        let with_pool = peer
            .pods()
            .into_iter()
            .map(|pod| (self.pool_of(&peer, &pod), pod));
        with_pool
            .filter(|(pool, _)| pools.contains_key(pool))
            .filter_map(|(pool, pod)| running_entry(&pod, &pool, now))
            .collect()
    }

    /// The entries of a pod that is gone here, as far as this cluster vouched for it when it was
    /// sent. None of a pod that the provider may have invented, or that ended long ago and whose
    /// shadow pod the provider created again: its receipt is disputed.
    pub fn entries_of_orphan(
        &self,
        peer: &RemoteProvider,
        uid: &str,
        shadow: &ConsumerShadowPod,
        gone: Option<Seconds>,
        now: Seconds,
    ) -> Vec<UsageEntry> {
        let Some(voucher) = self.read_voucher(peer, uid, &shadow.voucher) else {
            return Vec::new();
        };
        if !self
            .recorder
            .may_have_run_on(&provider_namespace(&peer.id), uid, voucher.sent)
        {
            return Vec::new();
        }
        let Voucher {
            namespace,
            pool,
            sent,
            amounts,
        } = voucher;
        let charges = shadow
            .charges
            .by_ref()
            .map(|text| charges_of(text.as_deref()).unwrap_or_default());
        let charged_until = shadow.deleted_at.map(end_of_charges_at);
        let (namespace, pool, asked, charges) = (&namespace, &pool, &amounts, charges.by_ref());
        ConsumerObservation {
            uid,
            namespace,
            pool,
            sent,
            gone,
            charged_until,
            asked,
            charges,
        }
        .entries(now, self.clock_tolerance())
    }

    /// Reads a voucher, if it is ours.
    fn read_voucher(
        &self,
        peer: &RemoteProvider,
        uid: &str,
        voucher: &Claimed<Option<Box<str>>>,
    ) -> Option<Voucher> {
        self.voucher_key.read_voucher(
            peer.id.as_str(),
            uid,
            voucher.by_ref().map(|text| text.as_deref()),
        )
    }

    /// The pool that a local pod uses: that of its virtual node or, when that is gone, the one that
    /// this cluster vouched for.
    fn pool_of(&self, peer: &RemoteProvider, pod: &LocalPod) -> String {
        if let Some(node) = self.virtual_nodes.get(&pod.virtual_node) {
            return node.spec.pool.clone();
        }
        let voucher = peer
            .seen_charges(&pod.uid)
            .and_then(|seen| self.read_voucher(peer, &pod.uid, &seen.voucher));
        voucher.map_or_else(|| pod.virtual_node.name.clone(), |voucher| voucher.pool)
    }

    /// The entries of a local pod, which is gone at the provider or not.
    fn entries_of_pod(
        &self,
        peer: &RemoteProvider,
        pod: &LocalPod,
        contract: &MeteredContract,
        gone: Option<Seconds>,
    ) -> Vec<UsageEntry> {
        let seen = peer.seen_charges(&pod.uid).unwrap_or_default();
        let charges = seen
            .charges
            .map(|text| charges_of(Some(&text)).unwrap_or_default());
        let voucher = self.read_voucher(peer, &pod.uid, &seen.voucher);
        let former = voucher.map(|voucher| voucher.amounts).unwrap_or_default();
        let (pool, asked) = (
            self.pool_of(peer, pod),
            chargeable_amounts(pod, contract.charge, contract.limit_percentage, &former),
        );
        let (sent, now) = (sent_at(pod).as_second(), self.context.now().as_second());
        let charged_until = seen.deleted_at.map(end_of_charges_at);
        let observation = ConsumerObservation {
            uid: &pod.uid,
            namespace: &pod.key.namespace,
            pool: &pool,
            sent,
            gone,
            charged_until,
            asked: &asked,
            charges: charges.by_ref(),
        };
        observation.entries(now, self.clock_tolerance())
    }
}

/// A provider charges nothing when the grace is over after the deletion of the shadow pod. It may
/// be a while until its manager says so.
fn end_of_charges_at(deleted: Option<Timestamp>) -> Option<Seconds> {
    deleted.map(|deleted| end_of_charges(deleted).as_second())
}

/// Whether the provider shows charges that can be read.
fn shows_charges(shadow: &ConsumerShadowPod) -> bool {
    charges_of(shadow.charges.unverified().as_deref()).is_some()
}

/// Charges that cannot be read count as none.
fn charges_of(text: Option<&str>) -> Option<Charges> {
    text?.parse().ok()
}

impl MeteringSide for ConsumerMetering {
    fn open_entries(&self, namespace: &str, now: Seconds) -> Option<Vec<UsageEntry>> {
        let consumer = &self.0;
        let id: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
        let peer = consumer.peers.get(&id)?;
        // What is not seen now may be there.
        if peer.reachability() != Reachability::Answers || !consumer.all_pods_known(&id) {
            return None;
        }
        let remote = peer.remote()?;
        let contract = consumer.latest_contract(&id)?;
        let mut entries = Vec::new();
        // One look at both: a pod that goes meanwhile is in one of them.
        let pods = peer.pods_and_gone();
        let known: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        for pod in &pods {
            let pod: &LocalPod = pod;
            let shadow = remote.shadow_pod(&pod.uid);
            if let Some(shadow) = &shadow {
                peer.observe_charges(pod, shadow);
            }
            let is_charged = peer.seen_charges(&pod.uid).is_some();
            let is_stored = consumer.recorder.is_stored(namespace, &pod.uid);
            match state_at_period_end(pod, shadow.as_deref(), is_charged, is_stored) {
                PeriodEndState::Nothing => {}
                PeriodEndState::Charged => {
                    entries.extend(consumer.entries_of_pod(&peer, pod, &contract, None));
                }
                PeriodEndState::Unseen => {
                    entries.extend(consumer.entries_of_pod(&peer, pod, &contract, Some(now)));
                }
            }
        }
        for (Key { name: uid, .. }, shadow) in remote.shadows.all() {
            if known.contains(uid.as_str()) || consumer.recorder.is_stored(namespace, &uid) {
                continue;
            }
            entries.extend(consumer.entries_of_orphan(&peer, &uid, &shadow, None, now));
        }
        Some(entries)
    }

    fn entry_parts(&self, entry: &UsageEntry, period_seconds: u32) -> Vec<(Period, UsageEntry)> {
        parts_with_witnesses(entry, period_seconds, self.0.clock_tolerance())
    }

    fn entries_stored(&self, namespace: &str, pods: Vec<String>) {
        let id = namespace.rsplit('-').next().and_then(|id| id.parse().ok());
        let Some(peer) = id.and_then(|id: ClusterId| self.0.peers.get(&id)) else {
            return;
        };
        for pod in pods {
            let uid = name_of_key(&pod);
            // A pod that exists does not wait for what was stored before a resize.
            if uid == pod || peer.pod(uid).is_none() {
                peer.pod_queue.add(uid.to_owned());
            }
        }
    }

    fn completion_grace(&self) -> Seconds {
        GRACE + self.0.clock_tolerance()
    }
}
