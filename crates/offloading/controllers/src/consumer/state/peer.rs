//! One provider: the pods on its virtual nodes here and, while there is a connection, the objects
//! in our tenant namespace there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use liqo_api::{
    Claimed, ClusterId, MappedNamespacePhase, NamespaceMap,
    token_bucket::{TokenBucket, TokenRate},
};
use liqo_controller_runtime::{Cache, ConnectionHealth, Key, PeerConnection, Queue};
use liqo_metering::Charges;
use parking_lot::{Mutex, RwLock};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::pod_index::LocalPodIndex;
use liqo_offloading_rules::node::object::DOWN_AFTER;
use liqo_offloading_rules::node::object::Outage;
use liqo_offloading_rules::pod::local;
use liqo_offloading_rules::pod::local_state::ConsumerShadowPod;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::remote_events::{EventSelection, RemoteEventJournal};
use liqo_offloading_rules::replica::disruption_budget::{NextMinimum, ReportedMinimum};
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::record::Reference;
use liqo_offloading_rules::replica::record::ReflectionRecord;

/// Delay before a pod is sent again that the provider's API server did not accept.
const NOT_ACCEPTED_RETRY: Duration = Duration::from_mins(1);

/// For this long the owner of a controller's pods is not told again which limits the provider adds.
const LIMITS_REMEMBERED: Duration = Duration::from_hours(1);
/// For so many owners. Others are told when one of them is forgotten.
const MAX_LIMITS_REMEMBERED: usize = 1000;
/// Minimum time between two events of the same reason on one object.
const EVENT_INTERVAL: Duration = Duration::from_mins(10);

/// A problem that may pass by itself is reported if it lasts this long.
const PASSING: Duration = Duration::from_secs(30);

/// Burst size for reads of one provider's events, and the interval after a burst.
const EVENTS_AT_ONCE: u32 = 1000;
const EVENT_PACE: Duration = Duration::from_millis(5);

/// A key of a provider's queue of events.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKey {
    /// The watch of events in the provider's namespace for this one of ours.
    Watch(String),
    /// The events about the remote pod of the local pod with this UID.
    Pod(String),
}

/// A provider that was just added, and the end of the workers of its queues.
pub type NewRemoteProvider = (Weak<RemoteProvider>, CancellationToken);

/// The providers that there is a connection to, or a virtual node of.
pub struct RemoteProviders {
    all: Mutex<BTreeMap<ClusterId, Arc<RemoteProvider>>>,
    added: mpsc::UnboundedSender<NewRemoteProvider>,
}

impl RemoteProviders {
    /// No providers. Each one that is added is sent to the receiver, so that workers start for its
    /// queues. They must end with the token, and must not keep the provider from being forgotten.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<NewRemoteProvider>) {
        let (added, new_peers) = mpsc::unbounded_channel();
        (
            Self {
                all: Mutex::default(),
                added,
            },
            new_peers,
        )
    }

    pub fn get_or_create(&self, id: &ClusterId, stop: &CancellationToken) -> Arc<RemoteProvider> {
        self.all
            .lock()
            .entry(id.clone())
            .or_insert_with(|| {
                let stop = stop.child_token();
                let peer = Arc::new(RemoteProvider::new(id.clone(), stop.clone()));
                // Nobody receives any more when the process stops.
                let _ = self.added.send((Arc::downgrade(&peer), stop));
                peer
            })
            .clone()
    }

    pub fn get(&self, id: &ClusterId) -> Option<Arc<RemoteProvider>> {
        self.all.lock().get(id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<RemoteProvider>> {
        self.all.lock().values().cloned().collect()
    }

    /// Forgets a provider, unless somebody works with it. Returns whether it is forgotten now.
    pub fn forget(&self, id: &ClusterId) -> bool {
        let mut peers = self.all.lock();
        // A connection, and the watch of a virtual node's pods, hold it as long as they exist.
        if peers
            .get(id)
            .is_some_and(|peer| Arc::strong_count(peer) == 1)
        {
            peers.remove(id);
        }
        !peers.contains_key(id)
    }
}

/// One provider.
pub struct RemoteProvider {
    pub id: ClusterId,
    /// UIDs of pods.
    pub pod_queue: Queue<String>,
    /// Objects that are or should be recorded at the provider.
    pub record_queue: Queue<Reference>,
    pub event_queue: Queue<EventKey>,
    /// The last events about remote pods.
    pub journal: Mutex<RemoteEventJournal>,
    /// Limits reads of events of its namespaces.
    event_pace: Mutex<TokenBucket<Instant>>,
    /// The pods on its virtual nodes.
    pods: RwLock<LocalPodIndex>,
    remote: RwLock<Option<Arc<RemoteObjects>>>,
    /// By the UID of the pod.
    memory: Mutex<HashMap<String, PodMemory>>,
    /// Problems of the provider that may pass by themselves: reason and begin.
    passing_problems: Mutex<HashMap<Reference, (&'static str, Instant)>>,
    /// Time of the last event of an object, by the reason of the event.
    record_events: Mutex<HashMap<(Reference, &'static str), Instant>>,
    /// The addresses of hand-written endpoints that were compared with the pods of their namespace.
    compared_addresses: Mutex<HashMap<Reference, BTreeSet<IpAddr>>>,
    /// Number of healthy pods that the provider was told to keep, by disruption budget.
    budgets: Mutex<HashMap<Reference, ReportedMinimum>>,
    /// Objects that this process recorded over the present connection, until the watch shows them.
    recorded: Mutex<HashSet<Reference>>,
    /// Time at which the owner of a controller, or of a pod without one, was told which limits the
    /// provider adds. By UID.
    told_limits: Mutex<HashMap<String, Instant>>,
    /// The reasons why objects that should be recorded are not sent.
    obstacles: Mutex<HashMap<Reference, String>>,
    /// Held while a pod waits for what it names to be recorded.
    pub recording: tokio::sync::Mutex<()>,
    /// Begin of the time without a connection; meaningful while there is none.
    disconnected: Mutex<Instant>,
    /// Ends the queues' workers.
    _workers: DropGuard,
}

/// Facts that this process remembers about one pod.
#[derive(Default, PartialEq)]
struct PodMemory {
    /// Until the watch shows the shadow pod.
    sent: Option<SendState>,
    /// Last time that the provider's API server did not accept the pod.
    not_accepted: Option<Instant>,
    /// Time of the pod's last event about objects that the provider lacks.
    warned: Option<Instant>,
    /// Last time that its owner was told that it does not start, and stays.
    advised: Option<Instant>,
    /// The reason why it does not start, and since when.
    stuck: Option<(String, Instant)>,
    /// Time of the last request of this process for a token for the pod.
    asked_for_token: Option<Instant>,
    /// The API server accepted its removal.
    removed: bool,
    /// Its shadow pod, which is gone, if it told an end.
    end: Option<Arc<ConsumerShadowPod>>,
    /// The provider's charges that were seen last.
    charges: Option<SeenCharges>,
    /// Its shadow pod had a voucher.
    vouched: bool,
}

/// The provider's charges for a pod that was on one of its virtual nodes.
#[derive(Clone, Default, PartialEq)]
pub struct SeenCharges {
    pub charges: Claimed<Arc<str>>,
    /// The text that this cluster wrote into the shadow pod, if the provider left it as it was.
    pub voucher: Claimed<Option<Box<str>>>,
    /// Deletion time of its shadow pod.
    pub deleted_at: Claimed<Option<Timestamp>>,
}

#[derive(Clone, Copy, PartialEq)]
enum SendState {
    Tried,
    Created(Instant),
}

/// The objects in our tenant namespace at the provider, as seen over one connection.
pub struct RemoteObjects {
    pub connection: Arc<PeerConnection>,
    /// The shadow pods, by name, which is the UID of the local pod.
    pub shadows: Cache<ConsumerShadowPod>,
    pub maps: Cache<NamespaceMap>,
    /// The records, except those of Secrets.
    pub objects: Cache<ReflectionRecord>,
    pub secrets: Cache<ReflectionRecord>,
    /// The watches of events about remote pods, by our namespace.
    pub event_watches: Mutex<HashMap<String, EventWatch>>,
    /// Ends all watches of this connection.
    pub stop: CancellationToken,
}

/// A watch of events in one namespace of the provider.
pub struct EventWatch {
    pub events: WatchedEvents,
    pub _stop: DropGuard,
}

/// The events that a watch shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedEvents {
    /// The namespace of the provider.
    pub mapped: String,
    pub selection: EventSelection,
}

/// Whether these may be the charges of a pod that had `known` before.
fn may_continue(charges: &str, known: &str) -> bool {
    let [charges, known] = [charges, known].map(|text| text.parse::<Charges>().unwrap_or_default());
    charges.continues(&known)
}

impl RemoteObjects {
    /// Whether everything of this connection was listed once.
    pub fn is_synced(&self) -> bool {
        self.shadows.is_synced()
            && self.maps.is_synced()
            && self.objects.is_synced()
            && self.secrets.is_synced()
    }

    /// Waits for that. `false` if the connection ended before.
    pub async fn synced(&self) -> bool {
        self.shadows.wait_until_synced().await
            && self.maps.wait_until_synced().await
            && self.objects.wait_until_synced().await
            && self.secrets.wait_until_synced().await
    }

    pub fn map(&self) -> Option<Arc<NamespaceMap>> {
        self.maps.get(&Key::new(
            &self.connection.tenant_namespace,
            liqo_api::NAMESPACE_MAP,
        ))
    }

    /// The UID of the map, which identifies our tenancy: the map is created once in it, and goes
    /// with it.
    pub fn tenancy_uid(&self) -> Option<String> {
        self.map()?.metadata.uid.clone()
    }

    /// The namespace at the provider for a local one, where it exists and is ours.
    pub fn mapped_namespace(&self, namespace: &str) -> Option<String> {
        let map = self.map()?;
        let mapped = map.status.as_ref()?.namespaces.get(namespace)?;
        (mapped.phase != MappedNamespacePhase::Refused).then(|| mapped.remote_name.clone())
    }

    /// The shadow pod of the local pod with this UID.
    pub fn shadow_pod(&self, uid: &str) -> Option<Arc<ConsumerShadowPod>> {
        self.shadows
            .get(&Key::new(&self.connection.tenant_namespace, uid))
    }

    /// The record of an object.
    pub fn record(&self, reference: &Reference) -> Option<Arc<ReflectionRecord>> {
        let key = Key::new(&self.connection.tenant_namespace, reference.record_name());
        if reference.kind == ReplicaKind::Secret {
            self.secrets.get(&key)
        } else {
            self.objects.get(&key)
        }
    }

    /// The records of an object: more than one if it travels in parts.
    pub fn records(&self, reference: &Reference) -> Vec<Arc<ReflectionRecord>> {
        let all = match reference.kind {
            ReplicaKind::Secret => self.secrets.all(),
            ReplicaKind::ConfigMap | ReplicaKind::EndpointSlice => self.objects.all(),
            ReplicaKind::Service
            | ReplicaKind::Ingress
            | ReplicaKind::NetworkPolicy
            | ReplicaKind::PodDisruptionBudget => {
                return self.record(reference).into_iter().collect();
            }
        };
        all.into_iter()
            .map(|(_, record)| record)
            .filter(|record| record.reference == *reference)
            .collect()
    }
}

impl RemoteProvider {
    /// `workers` is cancelled when the provider is forgotten.
    pub fn new(id: ClusterId, workers: CancellationToken) -> Self {
        Self {
            id,
            pod_queue: Queue::new(),
            record_queue: Queue::new(),
            event_queue: Queue::new(),
            journal: Mutex::default(),
            event_pace: Mutex::new(TokenBucket::full(TokenRate::one_each(
                EVENT_PACE,
                EVENTS_AT_ONCE,
            ))),
            pods: RwLock::default(),
            remote: RwLock::default(),
            memory: Mutex::default(),
            passing_problems: Mutex::default(),
            record_events: Mutex::default(),
            compared_addresses: Mutex::default(),
            budgets: Mutex::default(),
            recorded: Mutex::default(),
            told_limits: Mutex::default(),
            obstacles: Mutex::default(),
            recording: tokio::sync::Mutex::default(),
            disconnected: Mutex::new(Instant::now()),
            _workers: workers.drop_guard(),
        }
    }

    /// The objects at the provider, if there is a connection.
    pub fn remote(&self) -> Option<Arc<RemoteObjects>> {
        self.remote.read().clone()
    }

    pub fn set_remote(&self, remote: Arc<RemoteObjects>) {
        self.recorded.lock().clear();
        *self.remote.write() = Some(remote);
    }

    /// Takes note that a connection ended. Returns whether there is none now: one that follows it
    /// may exist already.
    pub fn clear_remote(&self, ended: &Arc<RemoteObjects>) -> bool {
        let mut remote = self.remote.write();
        if remote
            .as_ref()
            .is_none_or(|current| !Arc::ptr_eq(current, ended))
        {
            return false;
        }
        *self.disconnected.lock() = Instant::now();
        self.recorded.lock().clear();
        *remote = None;
        true
    }

    pub fn pod(&self, uid: &str) -> Option<Arc<LocalPod>> {
        self.pods.read().get(uid).cloned()
    }

    /// The pod with this name.
    pub fn pod_named(&self, key: &Key) -> Option<Arc<LocalPod>> {
        self.pods.read().pod_named(key).cloned()
    }

    /// All pods on the virtual nodes of this provider.
    pub fn pods(&self) -> Vec<Arc<LocalPod>> {
        self.pods.read().all().cloned().collect()
    }

    /// The pod with this UID, if it is gone and what it used is not stored.
    pub fn gone_pod(&self, uid: &str) -> Option<Arc<LocalPod>> {
        self.pods.read().gone_pod(uid).cloned()
    }

    /// The UIDs of the pods that are gone and whose usage is not stored.
    pub fn gone_pods(&self) -> Vec<String> {
        self.pods
            .read()
            .all_gone()
            .map(|pod| pod.uid.clone())
            .collect()
    }

    /// All pods, also those that are gone and whose usage is not stored.
    pub fn pods_and_gone(&self) -> Vec<Arc<LocalPod>> {
        let pods = self.pods.read();
        pods.all().chain(pods.all_gone()).cloned().collect()
    }

    /// Takes over a change that the watch of a virtual node's pods reported.
    pub fn pod_changed(&self, old: Option<&Arc<LocalPod>>, new: Option<&Arc<LocalPod>>) {
        self.pods.write().apply_change(old, new);
    }

    /// Forgets the pods on this virtual node.
    pub fn forget_pods_on(&self, virtual_node: &Key) {
        self.pods
            .write()
            .retain(|pod| pod.virtual_node != *virtual_node);
    }

    /// Returns the delay before the next event of this provider is read. All watches of its
    /// namespaces share one pace.
    pub fn event_delay(&self, now: Instant) -> Duration {
        let mut pace = self.event_pace.lock();
        pace.take_tokens(1, now);
        pace.time_until_token(now)
    }

    /// Whether this pod runs at the provider, or may: its condition does not deny it, or there is a
    /// record of it.
    pub fn may_run(&self, pod: &LocalPod) -> bool {
        pod.offloaded
            .as_ref()
            .is_none_or(|condition| condition.status != Some(false))
            || self
                .remote()
                .is_some_and(|remote| remote.shadow_pod(&pod.uid).is_some())
    }

    fn change_memory<T>(&self, uid: &str, change: impl FnOnce(&mut PodMemory) -> T) -> T {
        let mut memory = self.memory.lock();
        let pod = memory.entry(uid.to_owned()).or_default();
        let result = change(pod);
        if *pod == PodMemory::default() {
            memory.remove(uid);
        }
        result
    }

    fn read_memory<T>(&self, uid: &str, read: impl FnOnce(&PodMemory) -> Option<T>) -> Option<T> {
        self.memory.lock().get(uid).and_then(read)
    }

    /// The progress of this process in sending this pod.
    pub fn send_progress(&self, uid: &str) -> local::SendProgress {
        match self.read_memory(uid, |pod| pod.sent) {
            None => local::SendProgress::No,
            Some(SendState::Tried) => local::SendProgress::Tried,
            Some(SendState::Created(at)) => local::SendProgress::Created(at.elapsed()),
        }
    }

    /// The pod is about to be sent.
    pub fn mark_sending(&self, uid: &str) {
        self.change_memory(uid, |pod| pod.sent = Some(SendState::Tried));
    }

    /// The provider took the pod.
    pub fn mark_created(&self, uid: &str, remote: &RemoteObjects) {
        self.change_memory(uid, |pod| {
            // The watch may have been faster than the answer.
            pod.sent = remote
                .shadow_pod(uid)
                .is_none()
                .then(|| SendState::Created(Instant::now()));
        });
    }

    /// The watch shows the shadow pod of this pod, or that it is gone. The end that it told then is
    /// kept while somebody waits for it.
    pub fn observe_shadow(&self, uid: &str, gone: Option<&Arc<ConsumerShadowPod>>) {
        let end = gone.filter(|shadow| {
            let pod = self.pod(uid);
            shadow.phase.unverified().is_final()
                && pod.is_some_and(|pod| pod.has_finalizers && !pod.finished)
        });
        self.change_memory(uid, |pod| {
            pod.sent = None;
            pod.end = end.cloned();
        });
    }

    /// The shadow pod of this pod as it was last, if it is gone and told an end that somebody waits
    /// for.
    pub fn reported_end(&self, uid: &str) -> Option<Arc<ConsumerShadowPod>> {
        self.read_memory(uid, |pod| pod.end.clone())
    }

    /// The API server accepted the removal of this pod.
    pub fn mark_removed(&self, uid: &str) {
        self.change_memory(uid, |pod| pod.removed = true);
    }

    pub fn is_removed(&self, uid: &str) -> bool {
        self.read_memory(uid, |pod| pod.removed.then_some(()))
            .is_some()
    }

    /// The watch shows what the provider charges for a pod.
    pub fn observe_charges(&self, pod: &LocalPod, shadow: &ConsumerShadowPod) {
        if shadow.voucher.unverified().is_some() && !self.had_voucher(&pod.uid) {
            self.change_memory(&pod.uid, |pod| pod.vouched = true);
        }
        let Some(charges) = shadow.charges.unverified() else {
            return;
        };
        let is_known = self.read_memory(&pod.uid, |pod| {
            let known = pod.charges.as_ref()?;
            Some(
                **known.charges.unverified() == **charges
                    && known.deleted_at == shadow.deleted_at
                    && known.voucher == shadow.voucher,
            )
        });
        if is_known != Some(true) {
            let known = self.seen_charges(&pod.uid).map(|known| known.charges);
            // What was signed already cannot change.
            let known = known.filter(|known| !may_continue(charges, known.unverified()));
            let charges = known.unwrap_or_else(|| Claimed::new(Arc::from(charges.as_ref())));
            let seen = SeenCharges {
                charges,
                voucher: shadow.voucher.clone(),
                deleted_at: shadow.deleted_at,
            };
            self.change_memory(&pod.uid, |memory| memory.charges = Some(seen));
        }
    }

    /// Whether its shadow pod had a voucher, which its provider may have kept.
    pub fn had_voucher(&self, uid: &str) -> bool {
        self.read_memory(uid, |pod| pod.vouched.then_some(()))
            .is_some()
    }

    /// The provider's charges that were seen last.
    pub fn seen_charges(&self, uid: &str) -> Option<SeenCharges> {
        self.read_memory(uid, |pod| pod.charges.clone())
    }

    /// The provider's charges so far are those of a shadow pod that is gone, and stored.
    pub fn forget_charges(&self, uid: &str) {
        self.change_memory(uid, |pod| pod.charges = None);
    }

    /// Nothing needs to be remembered of this pod any more.
    pub fn forget(&self, uid: &str) {
        self.pods.write().forget(uid);
        self.memory.lock().remove(uid);
        self.journal.lock().forget_pod(uid);
    }

    /// Returns the time since this process last asked for a token for this pod.
    pub fn time_since_token_request(&self, uid: &str) -> Option<Duration> {
        self.read_memory(uid, |pod| pod.asked_for_token)
            .map(|at| at.elapsed())
    }

    pub fn note_token_request(&self, uid: &str) {
        self.change_memory(uid, |pod| pod.asked_for_token = Some(Instant::now()));
    }

    /// Whether this pod gets an event now about objects that the provider lacks; if so, none for a
    /// while.
    pub fn may_warn(&self, uid: &str) -> bool {
        self.change_memory(uid, |pod| is_due(&mut pod.warned))
    }

    /// Whether the owner of this pod is told now that it does not start, and stays; if so, not for
    /// a while.
    pub fn may_advise(&self, uid: &str) -> bool {
        self.change_memory(uid, |pod| is_due(&mut pod.advised))
    }

    /// Whether the owner of this pod is told now which limits the provider adds: once for all pods
    /// of a controller.
    pub fn may_tell_limits(&self, pod: &LocalPod) -> bool {
        let owner = pod
            .controller
            .as_ref()
            .map_or(&pod.uid, |controller| &controller.uid);
        let mut told = self.told_limits.lock();
        told.retain(|_, at| at.elapsed() < LIMITS_REMEMBERED);
        let is_new = !told.contains_key(owner) && told.len() < MAX_LIMITS_REMEMBERED;
        if is_new {
            told.insert(owner.clone(), Instant::now());
        }
        is_new
    }

    /// Returns the time for which this reason has kept a pod from starting. `reason` is `None` if
    /// nothing keeps it.
    pub fn stuck_for(&self, uid: &str, reason: Option<&str>) -> Duration {
        self.change_memory(uid, |pod| {
            if pod.stuck.as_ref().map(|(known, _)| known.as_str()) != reason {
                pod.stuck = reason.map(|reason| (reason.to_owned(), Instant::now()));
            }
            pod.stuck
                .as_ref()
                .map(|(_, since)| since.elapsed())
                .unwrap_or_default()
        })
    }

    /// Whether an object gets an event of this reason now; if so, none for a while.
    pub fn may_warn_about(&self, reference: &Reference, reason: &'static str) -> bool {
        let mut events = self.record_events.lock();
        let mut last = events.get(&(reference.clone(), reason)).copied();
        let is_due = is_due(&mut last);
        events.extend(last.map(|at| ((reference.clone(), reason), at)));
        is_due
    }

    /// Returns the remaining time until a problem of this object that may pass by itself is
    /// reported; `None` if it has none. It lasts as long as its reason does: its words may change
    /// with each pod that ends.
    pub fn time_until_report(
        &self,
        reference: &Reference,
        reason: Option<&'static str>,
        now: Instant,
    ) -> Option<Duration> {
        let mut problems = self.passing_problems.lock();
        let Some(reason) = reason else {
            problems.remove(reference);
            return None;
        };
        let (known, since) = problems.entry(reference.clone()).or_insert((reason, now));
        if *known != reason {
            (*known, *since) = (reason, now);
        }
        Some(PASSING.saturating_sub(now.duration_since(*since)))
    }

    /// The record of this object is no longer wanted.
    pub fn forget_record(&self, reference: &Reference) {
        self.passing_problems.lock().remove(reference);
        self.budgets.lock().remove(reference);
        self.record_events
            .lock()
            .retain(|(about, _), _| about != reference);
    }

    /// Whether these addresses of a slice were not compared with pods yet; if so, they are now. An
    /// empty set is forgotten.
    pub fn are_new_addresses(&self, reference: &Reference, addresses: &BTreeSet<IpAddr>) -> bool {
        let mut compared = self.compared_addresses.lock();
        if addresses.is_empty() {
            compared.remove(reference);
            return false;
        }
        compared
            .insert(reference.clone(), addresses.clone())
            .as_ref()
            != Some(addresses)
    }

    /// Returns the number of healthy pods that the provider is told to keep, now that `right` is
    /// the right number. `before`: the number that it was told if this process has not told it
    /// anything.
    pub fn next_budget_report(
        &self,
        reference: &Reference,
        before: usize,
        right: usize,
        now: Timestamp,
    ) -> NextMinimum {
        self.budgets
            .lock()
            .entry(reference.clone())
            .or_insert(ReportedMinimum::new(before))
            .next_minimum(right, now)
    }

    /// The provider's API server did not accept this pod. Returns how long to wait before it is
    /// asked again.
    pub fn note_rejection(&self, uid: &str) -> Duration {
        self.change_memory(uid, |pod| {
            pod.sent = None;
            pod.not_accepted = Some(Instant::now());
        });
        NOT_ACCEPTED_RETRY
    }

    /// Returns the remaining delay of this pod after it was not accepted.
    pub fn remaining_delay(&self, uid: &str) -> Option<Duration> {
        let since = self.read_memory(uid, |pod| pod.not_accepted)?.elapsed();
        NOT_ACCEPTED_RETRY
            .checked_sub(since)
            .filter(|rest| !rest.is_zero())
    }

    /// Whether this process recorded this object over the present connection, and the watch does
    /// not show it yet.
    pub fn is_recorded(&self, reference: &Reference) -> bool {
        self.recorded.lock().contains(reference)
    }

    pub fn mark_recorded(&self, reference: &Reference) {
        self.recorded.lock().insert(reference.clone());
    }

    /// The watch shows the record of this object, or the record is removed.
    pub fn observe_record(&self, reference: &Reference) {
        self.recorded.lock().remove(reference);
    }

    /// The obstacle that keeps this object from being sent.
    pub fn obstacle(&self, reference: &Reference) -> Option<String> {
        self.obstacles.lock().get(reference).cloned()
    }

    pub fn set_obstacle(&self, reference: &Reference, obstacle: String) {
        self.obstacles.lock().insert(reference.clone(), obstacle);
    }

    /// The object can travel, or is not wanted any more.
    pub fn clear_obstacle(&self, reference: &Reference) {
        self.obstacles.lock().remove(reference);
    }

    /// The severity of the silence.
    pub fn outage(&self) -> Outage {
        match self
            .remote()
            .map(|remote| *remote.connection.health.borrow())
        {
            Some(ConnectionHealth::Reachable) => Outage::None,
            // A connection that says Unreachable has waited already.
            Some(ConnectionHealth::Unreachable { since }) if since.elapsed() < DOWN_AFTER => {
                Outage::Suspected
            }
            Some(ConnectionHealth::Unreachable { .. }) => Outage::Down,
            None => Outage::after(self.disconnected.lock().elapsed()),
        }
    }

    /// Returns the time until a longer silence counts as a worse outage.
    pub fn next_outage(&self) -> Option<Duration> {
        match self
            .remote()
            .map(|remote| *remote.connection.health.borrow())
        {
            Some(ConnectionHealth::Reachable) => None,
            Some(ConnectionHealth::Unreachable { since }) => DOWN_AFTER
                .checked_sub(since.elapsed())
                .filter(|rest| !rest.is_zero()),
            None => Outage::time_until_change(self.disconnected.lock().elapsed()),
        }
    }

    /// Whether the peer can be asked and believed.
    pub fn reachability(&self) -> local::PeerReachability {
        match (self.outage(), self.remote()) {
            (Outage::Down, _) => local::PeerReachability::Down,
            (Outage::None, Some(remote)) if remote.is_synced() => local::PeerReachability::Answers,
            _ => local::PeerReachability::Silent,
        }
    }

    /// The objects at the provider, if it can be asked and believed.
    pub fn answering_remote(&self) -> Option<Arc<RemoteObjects>> {
        (self.reachability() == local::PeerReachability::Answers)
            .then(|| self.remote())
            .flatten()
    }
}

/// Whether the last event is long enough ago; if so, it is now.
fn is_due(last: &mut Option<Instant>) -> bool {
    let is_due = last.is_none_or(|at| at.elapsed() >= EVENT_INTERVAL);
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_that_changes_its_words_again_and_again_makes_one_event() {
        let peer =
            RemoteProvider::new(ClusterId::of_public_key(&[1; 32]), CancellationToken::new());
        assert!(peer.may_warn("u"));
        assert!(!peer.may_warn("u"));
        assert!(peer.may_warn("another"));
        peer.forget("u");
        assert!(peer.may_warn("u"));
    }

    #[test]
    fn all_watches_of_a_provider_read_events_at_one_pace() {
        let peer =
            RemoteProvider::new(ClusterId::of_public_key(&[1; 32]), CancellationToken::new());
        let now = Instant::now();
        let delays: Vec<Duration> = (0..2 * EVENTS_AT_ONCE)
            .map(|_| peer.event_delay(now))
            .collect();
        let burst = usize::try_from(EVENTS_AT_ONCE).unwrap();
        assert_eq!(
            delays[burst - 2..][..3],
            [0, 1, 2].map(|waiting| waiting * EVENT_PACE)
        );
        assert_eq!(delays.last(), Some(&((EVENTS_AT_ONCE + 1) * EVENT_PACE)));
    }

    #[test]
    fn an_object_gets_one_event_for_each_reason_until_its_record_is_removed() {
        let peer =
            RemoteProvider::new(ClusterId::of_public_key(&[1; 32]), CancellationToken::new());
        let reference = |name: &str| Reference {
            kind: ReplicaKind::Service,
            namespace: "demo".into(),
            name: name.into(),
        };
        assert!(peer.may_warn_about(&reference("web"), "NameTaken"));
        assert!(!peer.may_warn_about(&reference("web"), "NameTaken"));
        assert!(
            peer.may_warn_about(&reference("web"), "Invalid")
                && peer.may_warn_about(&reference("db"), "NameTaken")
        );
        peer.forget_record(&reference("web"));
        assert!(
            peer.may_warn_about(&reference("web"), "NameTaken")
                && !peer.may_warn_about(&reference("db"), "NameTaken")
        );
    }

    #[test]
    fn the_addresses_of_a_slice_are_compared_with_pods_once_until_they_change() {
        let peer =
            RemoteProvider::new(ClusterId::of_public_key(&[1; 32]), CancellationToken::new());
        let slice = Reference {
            kind: ReplicaKind::EndpointSlice,
            namespace: "demo".into(),
            name: "db-x".into(),
        };
        let is_new = |last: &[u8]| {
            peer.are_new_addresses(
                &slice,
                &last.iter().map(|last| [10, 244, 0, *last].into()).collect(),
            )
        };
        let changes: [(&[u8], bool); 7] = [
            (&[1], true),
            (&[1], false),
            (&[1, 2], true),
            (&[1], true),
            (&[], false),
            (&[], false),
            (&[1], true),
        ];
        for (addresses, expected) in changes {
            assert_eq!(is_new(addresses), expected, "{addresses:?}");
        }
    }

    #[test]
    fn a_problem_that_may_pass_is_reported_when_it_lasts() {
        let peer =
            RemoteProvider::new(ClusterId::of_public_key(&[1; 32]), CancellationToken::new());
        let slice = Reference {
            kind: ReplicaKind::EndpointSlice,
            namespace: "demo".into(),
            name: "web-x".into(),
        };
        let start = Instant::now();
        let rest = |reason, after| peer.time_until_report(&slice, reason, start + after);
        let (one, other) = (Some("AddressRefused"), Some("NoService"));
        assert_eq!(rest(one, Duration::ZERO), Some(PASSING));
        assert_eq!(rest(one, PASSING / 2), Some(PASSING / 2));
        assert_eq!(rest(other, PASSING / 2), Some(PASSING), "another reason");
        assert_eq!(rest(None, PASSING), None);
        assert_eq!(rest(other, PASSING), Some(PASSING), "it had passed");
        assert_eq!(rest(other, 2 * PASSING), Some(Duration::ZERO));
    }

    #[test]
    fn a_provider_is_forgotten_when_nobody_works_with_it_and_its_workers_end() {
        let ((peers, mut added), id, stop) = (
            RemoteProviders::new(),
            ClusterId::of_public_key(&[1; 32]),
            CancellationToken::new(),
        );
        let peer = peers.get_or_create(&id, &stop);
        let (_, workers) = added.try_recv().unwrap();
        assert!(Arc::ptr_eq(&peer, &peers.get_or_create(&id, &stop)));
        assert!(added.try_recv().is_err(), "it is added once");
        assert!(!peers.forget(&id), "somebody works with it");
        assert!(!workers.is_cancelled());
        drop(peer);
        assert!(peers.forget(&id) && peers.all().is_empty());
        assert!(workers.is_cancelled() && !stop.is_cancelled());
        peers.get_or_create(&id, &stop);
        assert!(added.try_recv().is_ok());
    }
}
