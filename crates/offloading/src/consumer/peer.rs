//! One provider: the pods on its virtual nodes here and, while there is a connection, what stands in our tenant namespace
//! over there.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, RwLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, runtime::watcher};
use liqo_api::{ClusterId, MappedNamespacePhase, NamespaceMap, ReflectedObject, ShadowPod, labels};
use liqo_kit::{Cache, Health, Key, PeerConnection, Queue};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Consumer, locked, namespaces, pod_decide,
    reduced::{HomePod, Shadow},
    reflected::{Reference, Twin},
    services, virtual_nodes,
};
use crate::decide::{
    node::{DOWN_AFTER, Outage},
    travel::api_server::Wish,
};

/// A watch of a peer's is started again after so many seconds, so that one which died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// When a pod is sent again that the provider's API server did not accept.
const NOT_ACCEPTED_RETRY: Duration = Duration::from_secs(60);

/// A provider may say something new of a record as often as it likes: the pods that name the object are looked at so late.
const PROBLEM_PAUSE: Duration = Duration::from_secs(5);

/// A pod gets at most one event in this time about what the provider has not of what it names.
const BETWEEN_PROBLEM_EVENTS: Duration = Duration::from_secs(600);

/// The providers that something is known of.
#[derive(Default)]
pub struct Peers(Mutex<BTreeMap<ClusterId, Arc<Peer>>>);

impl Peers {
    /// What is known of this provider; made, and given to `start`, when it is asked for first. What `start` starts is to end
    /// with the token, and not to keep the provider from being forgotten.
    pub fn get_or_make(
        &self,
        id: &ClusterId,
        stop: &CancellationToken,
        start: impl FnOnce(&Arc<Peer>, CancellationToken),
    ) -> Arc<Peer> {
        let mut peers = locked(&self.0);
        let make = || {
            let stop = stop.child_token();
            let peer = Arc::new(Peer::new(id.clone(), stop.clone()));
            start(&peer, stop);
            peer
        };
        peers.entry(id.clone()).or_insert_with(make).clone()
    }

    /// The provider, if something is known of it.
    pub fn get(&self, id: &ClusterId) -> Option<Arc<Peer>> {
        locked(&self.0).get(id).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Peer>> {
        locked(&self.0).values().cloned().collect()
    }

    /// Forgets a provider, unless somebody works with it. Returns whether nothing is known of it now.
    pub fn forget(&self, id: &ClusterId) -> bool {
        let mut peers = locked(&self.0);
        // A connection, and the watch of a virtual node's pods, hold it for as long as they stand.
        if peers.get(id).is_some_and(|peer| Arc::strong_count(peer) == 1) {
            peers.remove(id);
        }
        !peers.contains_key(id)
    }
}

/// One provider.
pub struct Peer {
    /// Its identity.
    pub id: ClusterId,
    /// Pods to look at, by UID.
    pub pods: Queue<String>,
    /// Objects that are or should be reflected, to look at.
    pub references: Queue<Reference>,
    /// The pods on its virtual nodes, by UID.
    home: RwLock<HashMap<String, Arc<HomePod>>>,
    remote: RwLock<Option<Arc<Remote>>>,
    /// What this process did about sending pods, until the watch shows the shadow pod.
    sent: Mutex<HashMap<String, Sent>>,
    /// When the provider's API server last did not accept a pod.
    not_accepted: Mutex<HashMap<String, Instant>>,
    /// When a pod last got an event about what the provider has not of what it names.
    warned: Mutex<HashMap<String, Instant>>,
    /// When this process last asked for a token for a pod.
    tokens: Mutex<HashMap<String, Instant>>,
    /// What this process recorded over the present connection, until the watch shows it.
    reflected: Mutex<HashSet<Reference>>,
    /// Held while a pod waits for what it names to be recorded.
    pub reflecting: tokio::sync::Mutex<()>,
    /// Since when there is no connection; meaningful while there is none.
    disconnected: Mutex<Instant>,
    /// Ends the queues' workers.
    _workers: DropGuard,
}

#[derive(Clone, Copy)]
enum Sent {
    Tried,
    Created(Instant),
}

/// What stands in our tenant namespace at the provider, as seen over one connection.
pub struct Remote {
    /// The connection.
    pub connection: Arc<PeerConnection>,
    /// The shadow pods, by name, which is the UID of the home pod.
    pub shadows: Cache<Shadow>,
    /// The one map of namespaces.
    pub maps: Cache<NamespaceMap>,
    /// The reflected objects but Secrets.
    pub objects: Cache<Twin>,
    /// The reflected Secrets.
    pub secrets: Cache<Twin>,
}

impl Remote {
    fn start(consumer: &Arc<Consumer>, peer: &Arc<Peer>, connection: Arc<PeerConnection>, stop: &CancellationToken) -> Self {
        let (client, namespace) = (connection.client.clone(), connection.tenant_namespace.clone());
        let config = watcher::Config::default().timeout(WATCH_SECONDS);
        let of_us = peer.clone();
        let shadows = Cache::watch(
            Api::<ShadowPod>::namespaced(client.clone(), &namespace),
            config.clone(),
            stop.clone(),
            Shadow::of,
            move |key, _, _| {
                locked(&of_us.sent).remove(&key.name);
                of_us.pods.add(key.name.clone());
            },
        );
        let (queue, of_us, of_all) = (consumer.namespace_queue.clone(), peer.clone(), Arc::downgrade(consumer));
        let maps = Cache::watch(
            Api::<NamespaceMap>::namespaced(client.clone(), &namespace),
            config.clone(),
            stop.clone(),
            liqo_kit::cache::whole,
            move |_, old, new| {
                queue.add(namespaces::Work::Map(of_us.id.clone()));
                for namespace in namespaces::changed(old.map(AsRef::as_ref), new.map(AsRef::as_ref)) {
                    of_us.look_at_pods_of(&namespace);
                    if let Some(consumer) = of_all.upgrade() {
                        services::look_at(&consumer, &of_us, Some(&namespace));
                    }
                    queue.add(namespaces::Work::Namespace(namespace));
                }
            },
        );
        let of_all = Arc::downgrade(consumer);
        let changed = |peer: &Arc<Peer>| {
            let (peer, of_all) = (peer.clone(), of_all.clone());
            move |_: &Key, old: Option<&Arc<Twin>>, new: Option<&Arc<Twin>>| {
                for twin in [old, new].into_iter().flatten() {
                    peer.not_reflected(&twin.reference);
                    if old.zip(new).is_none_or(|(old, new)| new.differs_beyond_problem(old)) {
                        peer.references.add(twin.reference.clone());
                    }
                }
                let exposure = |twin: Option<&Arc<Twin>>| twin.and_then(|twin| twin.exposure.clone());
                if let Some(twin) = old.or(new).filter(|_| exposure(old) != exposure(new))
                    && let Some(consumer) = of_all.upgrade()
                {
                    services::exposure_changed(&consumer, &peer, twin);
                }
                let problem = |twin: Option<&Arc<Twin>>| twin.and_then(|twin| twin.problem.clone());
                if let Some(twin) = old.or(new).filter(|_| problem(old) != problem(new)) {
                    if twin.reference.kind.is_of_namespace() {
                        peer.references.add_after(twin.reference.clone(), PROBLEM_PAUSE);
                    } else {
                        peer.look_at_pods_that_name(&twin.reference);
                        if let Some(consumer) = of_all.upgrade() {
                            services::look_at_ingresses_that_name(&consumer, &peer, &twin.reference);
                        }
                    }
                }
            }
        };
        let objects = Cache::watch(
            Api::<ReflectedObject>::namespaced(client.clone(), &namespace),
            config.clone(),
            stop.clone(),
            Twin::of_object,
            changed(peer),
        );
        let reflected = config.labels(&format!("{}=true", labels::REFLECTED));
        let secrets =
            Cache::watch(Api::<Secret>::namespaced(client, &namespace), reflected, stop.clone(), Twin::of_secret, changed(peer));
        Self { connection, shadows, maps, objects, secrets }
    }

    /// Whether everything of this connection was listed once.
    pub fn is_complete(&self) -> bool {
        self.shadows.is_synced() && self.maps.is_synced() && self.objects.is_synced() && self.secrets.is_synced()
    }

    /// Waits for that. `false` if the connection ended before.
    async fn complete(&self) -> bool {
        self.shadows.synced().await && self.maps.synced().await && self.objects.synced().await && self.secrets.synced().await
    }

    /// The map of namespaces.
    pub fn map(&self) -> Option<Arc<NamespaceMap>> {
        self.maps.get(&Key::new(&self.connection.tenant_namespace, liqo_api::NAMESPACE_MAP))
    }

    /// What stands for our tenancy: the map is made in it once, and goes with it.
    pub fn tenancy(&self) -> Option<String> {
        self.map()?.metadata.uid.clone()
    }

    /// The mapped namespace of a home namespace, where there is one that is ours.
    pub fn mapped(&self, namespace: &str) -> Option<String> {
        let map = self.map()?;
        let mapped = map.status.as_ref()?.namespaces.get(namespace)?;
        (mapped.phase != MappedNamespacePhase::Refused).then(|| mapped.remote_name.clone())
    }

    /// The shadow pod of the home pod with this UID.
    pub fn shadow(&self, uid: &str) -> Option<Arc<Shadow>> {
        self.shadows.get(&Key::new(&self.connection.tenant_namespace, uid))
    }
}

impl Peer {
    /// A provider of which nothing is known yet. `workers` is cancelled when it is forgotten.
    fn new(id: ClusterId, workers: CancellationToken) -> Self {
        Self {
            id,
            pods: Queue::new(),
            references: Queue::new(),
            home: RwLock::default(),
            remote: RwLock::default(),
            sent: Mutex::default(),
            not_accepted: Mutex::default(),
            warned: Mutex::default(),
            tokens: Mutex::default(),
            reflected: Mutex::default(),
            reflecting: tokio::sync::Mutex::default(),
            disconnected: Mutex::new(Instant::now()),
            _workers: workers.drop_guard(),
        }
    }

    /// What is known over the connection, if there is one.
    pub fn remote(&self) -> Option<Arc<Remote>> {
        self.remote.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn set_remote(&self, remote: Option<Arc<Remote>>) {
        locked(&self.reflected).clear();
        *self.remote.write().unwrap_or_else(std::sync::PoisonError::into_inner) = remote;
    }

    /// The home pod with this UID.
    pub fn home_pod(&self, uid: &str) -> Option<Arc<HomePod>> {
        self.home.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(uid).cloned()
    }

    /// All pods on the virtual nodes of this provider.
    pub fn home_pods(&self) -> Vec<Arc<HomePod>> {
        self.home.read().unwrap_or_else(std::sync::PoisonError::into_inner).values().cloned().collect()
    }

    /// Takes over a change that the watch of a virtual node's pods saw.
    pub fn home_changed(&self, old: Option<&Arc<HomePod>>, new: Option<&Arc<HomePod>>) {
        let mut home = self.home.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(old) = old
            && new.is_none_or(|new| new.uid != old.uid)
        {
            home.remove(&old.uid);
        }
        if let Some(new) = new {
            home.insert(new.uid.clone(), new.clone());
        }
        drop(home);
        // What a new pod names is looked at before it is sent; what one that is gone named, once for many of them.
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            for reference in Reference::all(old) {
                self.references.add_after(reference, Duration::from_secs(1));
            }
        }
        // One that ended, or says so, needs no token any more; one that is sent needs one.
        let uses = |pod: &Arc<HomePod>| (pod.api_server, pod.finished, pod.sent_to.clone());
        if let Some((_, new)) = old.zip(new).filter(|(old, new)| uses(old) != uses(new)) {
            self.references.add(Reference::of_api_server(new));
        }
        for pod in [old, new].into_iter().flatten() {
            self.pods.add(pod.uid.clone());
        }
    }

    /// Forgets the pods on this virtual node.
    pub fn forget_home_pods(&self, virtual_node: &Key) {
        let mut home = self.home.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        home.retain(|_, pod| pod.virtual_node != *virtual_node);
    }

    /// Whether this pod runs at the provider, or may: it was not told that it does not, or there is a record of it.
    pub fn may_run(&self, pod: &HomePod) -> bool {
        pod.told.as_ref().is_none_or(|told| told.status != Some(false))
            || self.remote().is_some_and(|remote| remote.shadow(&pod.uid).is_some())
    }

    /// Looks at every pod again, those that are gone here included.
    pub fn look_at_all_pods(&self) {
        for pod in self.home_pods() {
            self.pods.add(pod.uid.clone());
        }
        for (key, _) in self.remote().iter().flat_map(|remote| remote.shadows.all()) {
            self.pods.add(key.name);
        }
    }

    /// Looks at every pod of a namespace again.
    pub fn look_at_pods_of(&self, namespace: &str) {
        for pod in self.home_pods().iter().filter(|pod| pod.key.namespace == namespace) {
            self.pods.add(pod.uid.clone());
        }
    }

    /// Looks at every pod again that names this object, once for all that the provider says of it meanwhile.
    fn look_at_pods_that_name(&self, reference: &Reference) {
        for pod in self.home_pods().iter().filter(|pod| reference.is_named_by(pod)) {
            self.pods.add_after(pod.uid.clone(), PROBLEM_PAUSE);
        }
    }

    /// Looks at every object again that is reflected, or that a pod names.
    pub fn look_at_all_references(&self) {
        for pod in self.home_pods() {
            for reference in Reference::all(&pod) {
                self.references.add(reference);
            }
        }
        if let Some(remote) = self.remote() {
            for (_, twin) in remote.objects.all().into_iter().chain(remote.secrets.all()) {
                self.references.add(twin.reference.clone());
            }
        }
    }

    /// Looks at every token again that there is, or should be.
    pub fn look_at_all_tokens(&self) {
        for pod in self.home_pods().iter().filter(|pod| matches!(pod.api_server, Wish::Home { .. })) {
            self.references.add(Reference::of_api_server(pod));
        }
        for (_, twin) in self.remote().iter().flat_map(|remote| remote.secrets.all()) {
            if twin.reference.is_for_api_server().is_some() {
                self.references.add(twin.reference.clone());
            }
        }
    }

    /// What this process did about sending this pod.
    pub fn sent(&self, uid: &str) -> pod_decide::Sent {
        match locked(&self.sent).get(uid) {
            None => pod_decide::Sent::No,
            Some(Sent::Tried) => pod_decide::Sent::Tried,
            Some(Sent::Created(at)) => pod_decide::Sent::Created(at.elapsed()),
        }
    }

    /// The pod is about to be sent.
    pub fn sending(&self, uid: &str) {
        locked(&self.sent).insert(uid.to_owned(), Sent::Tried);
    }

    /// The provider took the pod.
    pub fn created(&self, uid: &str, remote: &Remote) {
        let mut sent = locked(&self.sent);
        // The watch may have been faster than the answer.
        if remote.shadow(uid).is_none() {
            sent.insert(uid.to_owned(), Sent::Created(Instant::now()));
        } else {
            sent.remove(uid);
        }
    }

    /// Nothing needs to be remembered of this pod any more.
    pub fn forget(&self, uid: &str) {
        locked(&self.sent).remove(uid);
        locked(&self.not_accepted).remove(uid);
        locked(&self.warned).remove(uid);
        locked(&self.tokens).remove(uid);
    }

    /// How long ago this process asked for a token for this pod.
    pub fn asked_for_token(&self, uid: &str) -> Option<Duration> {
        locked(&self.tokens).get(uid).map(Instant::elapsed)
    }

    /// It asks now.
    pub fn asks_for_token(&self, uid: &str) {
        locked(&self.tokens).insert(uid.to_owned(), Instant::now());
    }

    /// Whether this pod gets an event now about what the provider has not of what it names; if so, none for a while.
    pub fn may_warn(&self, uid: &str) -> bool {
        let mut warned = locked(&self.warned);
        let may = warned.get(uid).is_none_or(|at| at.elapsed() >= BETWEEN_PROBLEM_EVENTS);
        if may {
            warned.insert(uid.to_owned(), Instant::now());
        }
        may
    }

    /// The provider's API server did not accept this pod. Returns how long to wait before it is asked again.
    pub fn rest(&self, uid: &str) -> Duration {
        locked(&self.sent).remove(uid);
        locked(&self.not_accepted).insert(uid.to_owned(), Instant::now());
        NOT_ACCEPTED_RETRY
    }

    /// How long this pod still waits after it was not accepted.
    pub fn resting(&self, uid: &str) -> Option<Duration> {
        let since = locked(&self.not_accepted).get(uid).map(Instant::elapsed)?;
        NOT_ACCEPTED_RETRY.checked_sub(since).filter(|rest| !rest.is_zero())
    }

    /// Whether this process recorded this object over the present connection.
    pub fn is_reflected(&self, reference: &Reference) -> bool {
        locked(&self.reflected).contains(reference)
    }

    /// This object was recorded.
    pub fn reflected(&self, reference: &Reference) {
        locked(&self.reflected).insert(reference.clone());
    }

    /// The record of this object is gone, or in the watch's care.
    pub fn not_reflected(&self, reference: &Reference) {
        locked(&self.reflected).remove(reference);
    }

    /// How bad the silence is.
    pub fn outage(&self) -> Outage {
        match self.remote().map(|remote| *remote.connection.health.borrow()) {
            Some(Health::Reachable) => Outage::None,
            // Who says Unreachable has waited already.
            Some(Health::Unreachable { since }) if since.elapsed() < DOWN_AFTER => Outage::Suspected,
            Some(Health::Unreachable { .. }) => Outage::Down,
            None => Outage::after(locked(&self.disconnected).elapsed()),
        }
    }

    /// When the silence will mean more than now.
    pub fn next_look(&self) -> Option<Duration> {
        match self.remote().map(|remote| *remote.connection.health.borrow()) {
            Some(Health::Reachable) => None,
            Some(Health::Unreachable { since }) => DOWN_AFTER.checked_sub(since.elapsed()),
            None => Outage::next_look(locked(&self.disconnected).elapsed()),
        }
    }

    /// Whether the peer can be asked and believed.
    pub fn state(&self) -> pod_decide::Peer {
        match (self.outage(), self.remote()) {
            (Outage::Down, _) => pod_decide::Peer::Down,
            (Outage::None, Some(remote)) if remote.is_complete() => pod_decide::Peer::Answers,
            _ => pod_decide::Peer::Silent,
        }
    }

    /// What is known over the connection, if the peer can be asked and believed.
    pub fn answering(&self) -> Option<Arc<Remote>> {
        (self.state() == pod_decide::Peer::Answers).then(|| self.remote()).flatten()
    }
}

/// Follows one connection until it ends.
pub async fn follow(consumer: Arc<Consumer>, connection: Arc<PeerConnection>) {
    let peer = consumer.peer(&connection.cluster_id);
    let stop = consumer.context.stop.child_token();
    let _ends_watches = stop.clone().drop_guard();
    let remote = Arc::new(Remote::start(&consumer, &peer, connection.clone(), &stop));
    peer.set_remote(Some(remote.clone()));
    let mut health = connection.health.clone();
    let mut listed = false;
    let complete = async {
        remote.complete().await
            && consumer.offloadings.synced().await
            && consumer.nodes.synced().await
            && consumer.virtual_nodes.synced().await
            && consumer.networks.synced().await
    };
    tokio::pin!(complete);
    loop {
        look_at_everything(&consumer, &peer);
        let silence_means_more = peer.next_look();
        tokio::select! {
            () = connection.ended.cancelled() => break,
            () = stop.cancelled() => break,
            complete = &mut complete, if !listed => {
                listed = true;
                if !complete { break }
            }
            changed = health.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(silence_means_more.unwrap_or(Duration::MAX)), if silence_means_more.is_some() => {}
        }
    }
    // A connection that follows this one may stand already.
    let current = peer.remote().is_some_and(|current| Arc::ptr_eq(&current, &remote));
    if current {
        *locked(&peer.disconnected) = Instant::now();
        peer.set_remote(None);
        look_at_everything(&consumer, &peer);
    }
}

fn look_at_everything(consumer: &Consumer, peer: &Peer) {
    peer.look_at_all_pods();
    peer.look_at_all_references();
    services::look_at(consumer, peer, None);
    consumer.namespace_queue.add(namespaces::Work::Map(peer.id.clone()));
    consumer.namespace_queue.add(namespaces::Work::AllNamespaces);
    for (key, _) in consumer.nodes_of(&peer.id) {
        consumer.node_queue.add(virtual_nodes::Work::Node(key));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn peer() -> Peer {
        Peer::new(ClusterId::of_public_key(&[1; 32]), CancellationToken::new())
    }

    #[test]
    fn what_a_provider_says_of_a_record_is_no_reason_to_look_at_pods_at_once() {
        let peer = peer();
        let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "envFrom": [{ "configMapRef": { "name": "m" } }] }] } });
        let pod = Arc::new(HomePod::of(serde_json::from_value(pod).unwrap(), &Key::new("p", "default")).unwrap());
        let reference = Reference { kind: crate::decide::kind::Kind::ConfigMap, namespace: "demo".into(), name: "m".into() };
        assert!(reference.is_named_by(&pod));
        peer.home.write().unwrap().insert("u".into(), pod);
        for _ in 0..3 {
            peer.look_at_pods_that_name(&reference);
        }
        assert!(peer.pods.is_empty(), "it waits");
        peer.look_at_pods_of("demo");
        assert_eq!(peer.pods.len(), 1);
    }

    #[test]
    fn a_provider_that_changes_its_words_again_and_again_makes_one_event() {
        let peer = peer();
        assert!(peer.may_warn("u"));
        assert!(!peer.may_warn("u"));
        assert!(peer.may_warn("another"));
        peer.forget("u");
        assert!(peer.may_warn("u"));
    }

    #[test]
    fn a_provider_is_forgotten_when_nobody_works_with_it_and_its_workers_end() {
        let (peers, id, stop) = (Peers::default(), ClusterId::of_public_key(&[1; 32]), CancellationToken::new());
        let mut started = Vec::new();
        let peer = peers.get_or_make(&id, &stop, |_, stop| started.push(stop));
        assert!(Arc::ptr_eq(&peer, &peers.get_or_make(&id, &stop, |_, _| unreachable!())));
        assert!(!peers.forget(&id), "somebody works with it");
        assert!(!started[0].is_cancelled());
        drop(peer);
        assert!(peers.forget(&id) && peers.all().is_empty());
        assert!(started[0].is_cancelled() && !stop.is_cancelled());
        peers.get_or_make(&id, &stop, |_, stop| started.push(stop));
        assert_eq!(started.len(), 2);
    }
}
