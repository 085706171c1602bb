//! Makes the threads, sockets and sessions match what is wanted.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::Ordering::Relaxed},
    time::Instant,
};

use gotatun::{noise::index_table::IndexTable, packet::WgKind};
use liqo_network::spread;

use super::{
    Endpoint, Remote, RemoteState, State, Tunnel, TunnelError,
    device::{self, Device},
    incoming,
    keys::PublicKey,
    outgoing::{self, send_all},
    prefixes::Prefixes,
    probe::{Probe, Purpose},
    sessions::{Identity, Link},
    shared::{Entry, Live, Shared, Table},
    socket::Socket,
    timers,
    worker::Worker,
};

/// WireGuard in user space, on a TUN device.
#[derive(Default)]
pub struct UserspaceTunnel {
    running: Mutex<Option<Running>>,
    /// What packets of this process are sent by: whoever sends one does not wait while something is applied.
    shared: RwLock<Option<Arc<Shared>>>,
}

/// What runs now.
struct Running {
    /// What was applied last.
    endpoint: Endpoint,
    shared: Arc<Shared>,
    device: (Arc<Device>, Worker),
    sockets: Vec<(Arc<Socket>, Worker)>,
    timers: Worker,
}

impl UserspaceTunnel {
    /// Nothing runs until something is applied.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packets of this process are sent by what runs now.
    fn share(&self, running: Option<&Running>) {
        let shared = running.map(|running| Arc::clone(&running.shared));
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = shared;
    }
}

impl Tunnel for UserspaceTunnel {
    fn apply(&self, wanted: &Endpoint) -> Result<(), TunnelError> {
        check(wanted)?;
        let mut running = self.lock();
        *running = Some(match running.take() {
            None => Running::start(wanted)?,
            Some(mut existing) => match existing.change(wanted) {
                Ok(()) => existing,
                Err(error) => {
                    *running = Some(existing);
                    return Err(error);
                }
            },
        });
        self.share(running.as_ref());
        Ok(())
    }

    fn send(&self, to: PublicKey, packet: &[u8]) {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(shared) = shared {
            outgoing::send_inner(&shared, to, packet);
        }
    }

    fn state(&self) -> State {
        self.lock().as_ref().map(Running::state).unwrap_or_default()
    }

    fn stop(&self) {
        // The lock is not held while the threads end.
        let stopped = self.lock().take();
        self.share(None);
        drop(stopped);
    }

    fn remove_device(&self, name: &str) -> Result<(), TunnelError> {
        let mut running = self.lock();
        if running.as_ref().is_some_and(|running| running.device.0.name() == name) {
            *running = None;
            self.share(None);
        }
        device::remove(name).map_err(|source| TunnelError::Remove { device: name.to_owned(), source })
    }
}

/// What no endpoint may be.
pub(super) fn check(wanted: &Endpoint) -> Result<(), TunnelError> {
    let own = [Some(wanted.private_key.public()), wanted.previous_key.as_ref().map(super::PrivateKey::public)];
    let mut keys = HashSet::new();
    for remote in &wanted.remotes {
        if own.contains(&Some(remote.public_key)) {
            return Err(TunnelError::OwnKey(remote.public_key));
        }
        if !keys.insert(remote.public_key) {
            return Err(TunnelError::DuplicateKey(remote.public_key));
        }
    }
    Ok(())
}

impl Running {
    fn start(wanted: &Endpoint) -> Result<Self, TunnelError> {
        let device = open_device(wanted)?;
        let sockets = open_sockets(wanted, &[])?;
        let listening = sockets.clone();
        let indices = IndexTable::from_os_rng();
        let (table, new) = build(wanted, None, &indices, &device, listening);
        let table = Arc::new(table);
        let shared = Arc::new(Shared::new(Arc::clone(&table), indices));
        let mut running = Self {
            endpoint: wanted.clone(),
            device: start_device(&shared, device)?,
            timers: start_timers(&shared)?,
            sockets: Vec::new(),
            shared,
        };
        running.start_sockets(sockets)?;
        greet(&running.shared, &table, &new);
        Ok(running)
    }

    /// New things are opened before anything that works is changed. What a thread that ended had open is still open.
    fn change(&mut self, wanted: &Endpoint) -> Result<(), TunnelError> {
        let failed = |source| TunnelError::Device { device: wanted.device.clone(), source };
        let same_name = self.device.0.name() == wanted.device;
        let device_ended = self.device.1.is_finished();
        let device = if same_name && !device_ended { Arc::clone(&self.device.0) } else { self.reopen_device(wanted)? };
        device.ensure(wanted.mtu).map_err(failed)?;
        let all_receive =
            self.sockets.len() == wanted.listen.len() && !self.sockets.iter().any(|(_, worker)| worker.is_finished());
        if *wanted == self.endpoint && same_name && !device_ended && all_receive && !self.timers.is_finished() {
            return Ok(());
        }
        let before = self.shared.table();
        let sockets = open_sockets(wanted, &before.sockets)?;
        let (table, new) = build(wanted, Some(&before), &self.shared.indices, &device, sockets.clone());
        let table = Arc::new(table);
        self.shared.set_table(Arc::clone(&table));
        if !same_name || device_ended {
            self.device = start_device(&self.shared, device)?;
        }
        if self.timers.is_finished() {
            self.timers = start_timers(&self.shared)?;
        }
        self.start_sockets(sockets)?;
        self.endpoint = wanted.clone();
        greet(&self.shared, &table, &new);
        Ok(())
    }

    /// The device of this name; the one that we are attached to, where that is why the kernel lets nobody else attach.
    fn reopen_device(&self, wanted: &Endpoint) -> Result<Arc<Device>, TunnelError> {
        match open_device(wanted) {
            Err(TunnelError::Device { source, .. })
                if source.kind() == io::ErrorKind::ResourceBusy && self.device.0.name() == wanted.device =>
            {
                Ok(Arc::clone(&self.device.0))
            }
            outcome => outcome,
        }
    }

    /// Sees to it that a thread reads each of these sockets; those of sockets that are not wanted end.
    fn start_sockets(&mut self, sockets: Vec<Arc<Socket>>) -> Result<(), TunnelError> {
        let mut former = std::mem::take(&mut self.sockets);
        for socket in sockets {
            let reads = |(existing, worker): &(Arc<Socket>, Worker)| Arc::ptr_eq(existing, &socket) && !worker.is_finished();
            let reader = if let Some(index) = former.iter().position(reads) {
                former.swap_remove(index)
            } else {
                let (shared, theirs) = (Arc::clone(&self.shared), Arc::clone(&socket));
                let worker = Worker::start("tunnel-in", move |stop| incoming::run(&shared, &theirs, stop));
                (socket, worker.map_err(TunnelError::Thread)?)
            };
            self.sockets.push(reader);
        }
        Ok(())
    }

    fn state(&self) -> State {
        let table = self.shared.table();
        let workers = [&self.device.1, &self.timers].into_iter().chain(self.sockets.iter().map(|(_, worker)| worker));
        let remote = |entry: &Entry| RemoteState {
            public_key: entry.live.public_key,
            endpoint: entry.live.path().map(|path| path.remote),
            last_handshake: entry.links.iter().filter_map(|link| link.lock().last_handshake()).min(),
            last_received: entry.live.last_received(),
            sent_bytes: entry.live.sent_bytes.load(Relaxed),
            received_bytes: entry.live.received_bytes.load(Relaxed),
            dropped: entry.live.dropped.read(),
            measured: entry.live.with_measure(|measure| measure.measured(Instant::now())).filter(|_| entry.enabled),
            unanswered: entry.live.with_measure(|measure| measure.unanswered()),
        };
        State {
            running: workers.into_iter().all(|worker| !worker.is_finished()),
            remotes: table.entries.iter().map(remote).collect(),
            dropped: self.shared.dropped.read(),
        }
    }
}

fn open_device(wanted: &Endpoint) -> Result<Arc<Device>, TunnelError> {
    let device = Device::open(&wanted.device, wanted.mtu);
    device.map(Arc::new).map_err(|source| TunnelError::Device { device: wanted.device.clone(), source })
}

fn start_device(shared: &Arc<Shared>, device: Arc<Device>) -> Result<(Arc<Device>, Worker), TunnelError> {
    let (shared, theirs) = (Arc::clone(shared), Arc::clone(&device));
    let worker = Worker::start("tunnel-out", move |stop| outgoing::run(&shared, &theirs, stop));
    Ok((device, worker.map_err(TunnelError::Thread)?))
}

fn start_timers(shared: &Arc<Shared>) -> Result<Worker, TunnelError> {
    let shared = Arc::clone(shared);
    Worker::start("tunnel-timers", move |stop| timers::run(&shared, stop)).map_err(TunnelError::Thread)
}

/// The sockets that are wanted, those that exist among them.
fn open_sockets(wanted: &Endpoint, existing: &[Arc<Socket>]) -> Result<Vec<Arc<Socket>>, TunnelError> {
    let open = |address| match existing.iter().find(|socket| socket.listen() == address) {
        Some(socket) => Ok(Arc::clone(socket)),
        None => Socket::open(address).map(Arc::new).map_err(|source| TunnelError::Listen { address, source }),
    };
    wanted.listen.iter().copied().map(open).collect()
}

/// Everything that is wanted, with what is there already taken over; and the links that are new or go another way.
fn build(
    wanted: &Endpoint,
    table: Option<&Table>,
    indices: &IndexTable,
    device: &Arc<Device>,
    sockets: Vec<Arc<Socket>>,
) -> (Table, Vec<Greeted>) {
    let identity = |key: &super::PrivateKey| {
        let known = table.and_then(|table| table.identities.iter().find(|identity| identity.key == *key));
        known.map_or_else(|| Arc::new(Identity::new(key)), Arc::clone)
    };
    let keys = [Some(&wanted.private_key), wanted.previous_key.as_ref()];
    let mut identities: Vec<_> = keys.into_iter().flatten().map(identity).collect();
    identities.dedup_by(|one, other| one.key == other.key);
    let mut to_greet = Vec::new();
    let entry = |remote: &Remote| {
        let known = table.and_then(|table| table.entries.get(*table.by_key.get(&remote.public_key)?));
        let live = known.map_or_else(|| Arc::new(Live::new(remote.public_key)), |entry| Arc::clone(&entry.live));
        let is_moved = live.with_way(|way| way.set(remote.endpoint, remote.relay, Instant::now()));
        let link = |(number, identity): (usize, &Arc<Identity>)| {
            // Only the newest key is worth a word that nobody asked for.
            let keepalive = remote.keepalive.filter(|_| number == 0);
            let known = known.and_then(|entry| entry.links.iter().find(|link| link.own == identity.key.public()));
            if let Some(link) = known {
                link.lock().set(keepalive);
                if is_moved && number == 0 {
                    to_greet.push(Greeted { link: Arc::clone(link), is_moved });
                }
                return Arc::clone(link);
            }
            let link = Arc::new(Link::new(identity, &live, keepalive, indices));
            if number == 0 {
                to_greet.push(Greeted { link: Arc::clone(&link), is_moved: false });
            }
            link
        };
        let links = identities.iter().enumerate().map(link).collect();
        // Who comes as a guest answers no questions.
        let asked = remote.inward.is_none() && (remote.enabled || remote.keepalive.is_some());
        let number = spread::gateway_number(&remote.first_key.unwrap_or(remote.public_key).0);
        Entry { links, live, enabled: remote.enabled, inward: remote.inward.clone(), asked, number }
    };
    let entries: Vec<_> = wanted.remotes.iter().map(entry).collect();
    let by_key = entries.iter().enumerate().map(|(index, entry)| (entry.live.public_key, index)).collect();
    let prefixes = wanted.remotes.iter().enumerate();
    let prefixes = prefixes.flat_map(|(index, remote)| remote.prefixes.iter().map(move |prefix| (*prefix, index)));
    let prefixes = Prefixes::new(prefixes);
    (Table { identities, entries, by_key, prefixes, sockets, device: Arc::clone(device) }, to_greet)
}

/// A link that is new, or was and goes another way now.
struct Greeted {
    link: Arc<Link>,
    is_moved: bool,
}

/// Begins a handshake, so that the session stands before the first packet needs it. Where there is one, the remote learns by a question
/// where we are.
fn greet(shared: &Shared, table: &Table, greeted: &[Greeted]) {
    for Greeted { link, is_moved } in greeted.iter().filter(|greeted| greeted.link.live.path().is_some()) {
        let mut messages = Vec::new();
        let mut sessions = link.lock();
        if *is_moved {
            sessions.begin_again(&mut messages);
        } else {
            // The timers may have begun already. Of our handshakes only the newest survives one that the remote began: two at once from
            // each end are all lost, and nobody would begin anew for 15 s.
            sessions.begin(&mut messages);
        }
        messages.extend(sessions.probe(Probe { purpose: Purpose::Question, token: rand::random() }).map(WgKind::Data));
        drop(sessions);
        send_all(shared, table, link, &mut messages);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::PrivateKey, *};

    fn endpoint(keys: &[&PrivateKey]) -> Endpoint {
        let remote = |key: &&PrivateKey| Remote {
            public_key: key.public(),
            first_key: None,
            endpoint: None,
            relay: None,
            keepalive: None,
            prefixes: Vec::new(),
            enabled: true,
            inward: None,
        };
        Endpoint {
            private_key: PrivateKey::generate(),
            previous_key: None,
            listen: Vec::new(),
            device: "none".into(),
            mtu: 1420,
            remotes: keys.iter().map(remote).collect(),
        }
    }

    #[test]
    fn each_remote_has_a_key_of_its_own() {
        let (one, two) = (PrivateKey::generate(), PrivateKey::generate());
        assert!(check(&endpoint(&[&one, &two])).is_ok());
        assert!(matches!(check(&endpoint(&[&one, &two, &one])), Err(TunnelError::DuplicateKey(key)) if key == one.public()));
    }

    #[test]
    fn no_remote_has_our_key_or_our_previous_one() {
        let key = PrivateKey::generate();
        for own in [
            Endpoint { private_key: key.clone(), ..endpoint(&[&key]) },
            Endpoint { previous_key: Some(key.clone()), ..endpoint(&[&key]) },
        ] {
            assert!(matches!(check(&own), Err(TunnelError::OwnKey(_))));
        }
    }

    #[test]
    fn who_sends_does_not_wait_while_something_is_applied() {
        let tunnel = UserspaceTunnel::new();
        let applying = tunnel.lock();
        std::thread::scope(|scope| {
            let (sent, is_sent) = std::sync::mpsc::channel();
            let tunnel = &tunnel;
            scope.spawn(move || {
                tunnel.send(PrivateKey::generate().public(), &[0]);
                sent.send(()).unwrap();
            });
            let outcome = is_sent.recv_timeout(std::time::Duration::from_secs(5));
            drop(applying);
            outcome.unwrap();
        });
    }

    #[test]
    fn before_it_is_applied_a_tunnel_is_nothing() {
        assert_eq!(UserspaceTunnel::new().state(), State::default());
    }
}
