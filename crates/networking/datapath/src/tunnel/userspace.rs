//! Starts and changes threads, sockets and sessions according to the wanted endpoint.
//!
//! **Restarts.** The kernel keeps the device and its routes. A new process starts handshakes with
//! all remotes at known addresses at once, so connections only see a short pause.
//!
//! **Bounds.** At most 64 packets wait for a remote that does not answer. A sender of garbage costs
//! no memory, a sender of handshakes a little for a second. Dropped packets are counted by reason.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use gotatun::{noise::index_table::IndexTable, packet::WgKind};
use liqo_network_model::spread;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{
    device::{self, TunDevice},
    incoming,
    interface::{
        EndpointConfig, RemoteConfig, Tunnel, TunnelError, TunnelRemoteState, TunnelState,
    },
    keys::{PrivateKey, PublicKey},
    live_remote::LiveRemote,
    measure::RemoteProbes,
    outgoing::{self, send_all},
    prefixes::PrefixTable,
    probe::{ProbePurpose, TunnelProbe},
    sessions::{LocalIdentity, RemoteLink},
    shared::{RemoteEntry, RemoteTable, SharedTunnel},
    socket::TunnelSocket,
    timers,
    worker::WorkerThread,
};

/// WireGuard in user space, on a TUN device.
#[derive(Default)]
pub struct UserspaceTunnel {
    running: Mutex<Option<RunningTunnel>>,
    /// A copy for `send`, which must not wait while an endpoint is applied.
    shared: RwLock<Option<Arc<SharedTunnel>>>,
}

struct RunningTunnel {
    /// The last applied endpoint.
    endpoint: EndpointConfig,
    shared: Arc<SharedTunnel>,
    device: (Arc<TunDevice>, WorkerThread),
    sockets: Vec<(Arc<TunnelSocket>, WorkerThread)>,
    timers: WorkerThread,
}

impl UserspaceTunnel {
    /// Nothing runs until an endpoint is applied.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<RunningTunnel>> {
        self.running.lock()
    }

    /// Sets what `send` uses.
    fn publish_shared(&self, running: Option<&RunningTunnel>) {
        let shared = running.map(|running| Arc::clone(&running.shared));
        *self.shared.write() = shared;
    }
}

impl Tunnel for UserspaceTunnel {
    fn apply(&self, wanted: &EndpointConfig) -> Result<(), TunnelError> {
        wanted.check_keys()?;
        let mut running = self.lock();
        *running = Some(match running.take() {
            None => RunningTunnel::start(wanted)?,
            Some(mut existing) => match existing.change(wanted) {
                Ok(()) => existing,
                Err(error) => {
                    *running = Some(existing);
                    return Err(error);
                }
            },
        });
        self.publish_shared(running.as_ref());
        Ok(())
    }

    fn send(&self, to: PublicKey, packet: &[u8]) {
        let shared = self.shared.read().clone();
        if let Some(shared) = shared {
            outgoing::send_inner(&shared, to, packet);
        }
    }

    fn state(&self) -> TunnelState {
        self.lock()
            .as_ref()
            .map(RunningTunnel::state)
            .unwrap_or_default()
    }

    fn stop(&self) {
        // Release the lock before waiting for the threads.
        let stopped = self.lock().take();
        self.publish_shared(None);
        drop(stopped);
    }

    fn remove_device(&self, name: &str) -> Result<(), TunnelError> {
        let mut running = self.lock();
        if running
            .as_ref()
            .is_some_and(|running| running.device.0.name() == name)
        {
            *running = None;
            self.publish_shared(None);
        }
        device::remove(name).map_err(|source| TunnelError::Remove {
            device: name.to_owned(),
            source,
        })
    }
}

impl RunningTunnel {
    fn start(wanted: &EndpointConfig) -> Result<Self, TunnelError> {
        let device = open_device(wanted)?;
        let sockets = open_sockets(wanted, &[])?;
        let listening = sockets.clone();
        let indices = IndexTable::from_os_rng();
        let (table, new) = build_table(wanted, None, &indices, &device, listening);
        let table = Arc::new(table);
        let shared = Arc::new(SharedTunnel::new(Arc::clone(&table), indices));
        let mut running = Self {
            endpoint: wanted.clone(),
            device: start_device(&shared, device)?,
            timers: start_timers(&shared)?,
            sockets: Vec::new(),
            shared,
        };
        running.start_sockets(sockets)?;
        start_handshakes(&running.shared, &table, &new);
        Ok(running)
    }

    /// Opens everything new before it changes anything that works. Devices and sockets of ended
    /// threads are still open.
    fn change(&mut self, wanted: &EndpointConfig) -> Result<(), TunnelError> {
        let same_name = self.device.0.name() == wanted.device;
        let device_ended = self.device.1.is_finished();
        let device = if same_name && !device_ended {
            Arc::clone(&self.device.0)
        } else {
            self.reopen_device(wanted)?
        };
        device
            .ensure_up(wanted.mtu)
            .map_err(|source| TunnelError::Device {
                device: wanted.device.clone(),
                source,
            })?;
        let all_receive = self.sockets.len() == wanted.listen.len()
            && !self.sockets.iter().any(|(_, worker)| worker.is_finished());
        if *wanted == self.endpoint
            && same_name
            && !device_ended
            && all_receive
            && !self.timers.is_finished()
        {
            return Ok(());
        }
        let before = self.shared.table();
        let sockets = open_sockets(wanted, &before.sockets)?;
        let (table, new) = build_table(
            wanted,
            Some(&before),
            &self.shared.indices,
            &device,
            sockets.clone(),
        );
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
        start_handshakes(&self.shared, &table, &new);
        Ok(())
    }

    /// Opens the device again. If the kernel refuses because we are attached to it already, returns
    /// that one.
    fn reopen_device(&self, wanted: &EndpointConfig) -> Result<Arc<TunDevice>, TunnelError> {
        match open_device(wanted) {
            Err(TunnelError::Device { source, .. })
                if source.kind() == io::ErrorKind::ResourceBusy
                    && self.device.0.name() == wanted.device =>
            {
                Ok(Arc::clone(&self.device.0))
            }
            outcome => outcome,
        }
    }

    /// Starts a thread for each of these sockets that has none, and ends the threads of other
    /// sockets.
    fn start_sockets(&mut self, sockets: Vec<Arc<TunnelSocket>>) -> Result<(), TunnelError> {
        let mut former = std::mem::take(&mut self.sockets);
        for socket in sockets {
            let reader = former.iter().position(|(existing, worker)| {
                Arc::ptr_eq(existing, &socket) && !worker.is_finished()
            });
            let reader = if let Some(index) = reader {
                former.swap_remove(index)
            } else {
                let (shared, theirs) = (Arc::clone(&self.shared), Arc::clone(&socket));
                let worker = WorkerThread::start("tunnel-in", move |stop| {
                    incoming::carry_incoming(&shared, &theirs, stop)
                });
                (socket, worker.map_err(TunnelError::Thread)?)
            };
            self.sockets.push(reader);
        }
        Ok(())
    }

    fn state(&self) -> TunnelState {
        let table = self.shared.table();
        let workers = [&self.device.1, &self.timers]
            .into_iter()
            .chain(self.sockets.iter().map(|(_, worker)| worker));
        TunnelState {
            running: workers.into_iter().all(|worker| !worker.is_finished()),
            remotes: table.entries.iter().map(remote_state).collect(),
            dropped: self.shared.dropped.read(),
        }
    }
}

fn open_device(wanted: &EndpointConfig) -> Result<Arc<TunDevice>, TunnelError> {
    let device = TunDevice::open(&wanted.device, wanted.mtu);
    device.map(Arc::new).map_err(|source| TunnelError::Device {
        device: wanted.device.clone(),
        source,
    })
}

fn start_device(
    shared: &Arc<SharedTunnel>,
    device: Arc<TunDevice>,
) -> Result<(Arc<TunDevice>, WorkerThread), TunnelError> {
    let (shared, theirs) = (Arc::clone(shared), Arc::clone(&device));
    let worker = WorkerThread::start("tunnel-out", move |stop| {
        outgoing::carry_outgoing(&shared, &theirs, stop)
    });
    Ok((device, worker.map_err(TunnelError::Thread)?))
}

fn start_timers(shared: &Arc<SharedTunnel>) -> Result<WorkerThread, TunnelError> {
    let shared = Arc::clone(shared);
    WorkerThread::start("tunnel-timers", move |stop| {
        timers::run_timers(&shared, stop)
    })
    .map_err(TunnelError::Thread)
}

fn remote_state(entry: &RemoteEntry) -> TunnelRemoteState {
    let handshakes = entry.links.iter();
    TunnelRemoteState {
        public_key: entry.live.public_key,
        endpoint: entry.live.path().map(|path| path.remote),
        last_handshake: handshakes
            .filter_map(|link| link.lock().last_handshake())
            .min(),
        last_received: entry.live.last_received(),
        sent_bytes: entry.live.sent_bytes.load(Relaxed),
        received_bytes: entry.live.received_bytes.load(Relaxed),
        dropped: entry.live.dropped.read(),
        measured: entry
            .live
            .with_measure(|measure| measure.measurement(Instant::now()))
            .filter(|_| entry.enabled),
        unanswered: entry.live.with_measure(|measure| measure.unanswered()),
        is_direct: entry.live.is_direct(),
    }
}

/// The wanted sockets; existing ones are reused.
fn open_sockets(
    wanted: &EndpointConfig,
    existing: &[Arc<TunnelSocket>],
) -> Result<Vec<Arc<TunnelSocket>>, TunnelError> {
    let mut sockets = Vec::new();
    for &address in &wanted.listen {
        let mut existing = existing.iter();
        let socket = match existing.find(|socket| socket.listen_address() == address) {
            Some(socket) => Arc::clone(socket),
            None => TunnelSocket::open(address)
                .map(Arc::new)
                .map_err(|source| TunnelError::Listen { address, source })?,
        };
        sockets.push(socket);
    }
    Ok(sockets)
}

/// Builds the table for the wanted endpoint from what exists already. Also returns the links that
/// need a handshake: new and moved ones.
fn build_table(
    wanted: &EndpointConfig,
    table: Option<&RemoteTable>,
    indices: &IndexTable,
    device: &Arc<TunDevice>,
    sockets: Vec<Arc<TunnelSocket>>,
) -> (RemoteTable, Vec<LinkToGreet>) {
    let keys = [Some(&wanted.private_key), wanted.previous_key.as_ref()];
    let mut identities: Vec<_> = keys
        .into_iter()
        .flatten()
        .map(|key| local_identity(key, table))
        .collect();
    identities.dedup_by(|one, other| one.key == other.key);
    let mut builder = EntryBuilder {
        table,
        identities: &identities,
        indices,
        to_greet: Vec::new(),
    };
    let entries: Vec<_> = wanted
        .remotes
        .iter()
        .map(|remote| builder.build_entry(remote))
        .collect();
    let to_greet = builder.to_greet;
    let by_key = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| (entry.live.public_key, index))
        .collect();
    let prefixes = wanted.remotes.iter().enumerate();
    let prefixes = prefixes
        .flat_map(|(index, remote)| remote.prefixes.iter().map(move |prefix| (*prefix, index)));
    let prefixes = PrefixTable::new(prefixes);
    (
        RemoteTable {
            identities,
            entries,
            by_key,
            prefixes,
            sockets,
            device: Arc::clone(device),
        },
        to_greet,
    )
}

/// The identity with this key; the existing one if there is one.
fn local_identity(key: &PrivateKey, table: Option<&RemoteTable>) -> Arc<LocalIdentity> {
    let known = table.and_then(|table| {
        let mut identities = table.identities.iter();
        identities.find(|identity| identity.key == *key)
    });
    known.map_or_else(|| Arc::new(LocalIdentity::new(key)), Arc::clone)
}

/// Builds the entries of a table from those of the former one.
struct EntryBuilder<'a> {
    table: Option<&'a RemoteTable>,
    identities: &'a [Arc<LocalIdentity>],
    indices: &'a IndexTable,
    to_greet: Vec<LinkToGreet>,
}

impl EntryBuilder<'_> {
    fn build_entry(&mut self, remote: &RemoteConfig) -> RemoteEntry {
        let known = self
            .table
            .and_then(|table| table.entries.get(*table.by_key.get(&remote.public_key)?));
        let live = known.map_or_else(
            || Arc::new(LiveRemote::new(remote.public_key)),
            |entry| Arc::clone(&entry.live),
        );
        let is_moved = live
            .with_paths(|paths| paths.set_addresses(remote.endpoint, remote.relay, Instant::now()));
        let mut links = Vec::new();
        for (number, identity) in self.identities.iter().enumerate() {
            let former = known.and_then(|entry| {
                let mut links = entry.links.iter();
                links.find(|link| link.own == identity.key.public_key())
            });
            // Keepalives and greetings only for the newest key.
            let is_newest = number == 0;
            let keepalive = remote.keepalive.filter(|_| is_newest);
            let link = if let Some(link) = former {
                link.lock().set_keepalive(keepalive);
                Arc::clone(link)
            } else {
                Arc::new(RemoteLink::new(identity, &live, keepalive, self.indices))
            };
            if is_newest && (is_moved || former.is_none()) {
                self.to_greet.push(LinkToGreet {
                    link: Arc::clone(&link),
                    is_moved: is_moved && former.is_some(),
                });
            }
            links.push(link);
        }
        // Tunnel clients do not answer probes.
        let probed = remote.inward.is_none() && (remote.enabled || remote.keepalive.is_some());
        let number = spread::gateway_number(&remote.first_key.unwrap_or(remote.public_key).0);
        let former = known.and_then(|entry| entry.direct.as_ref());
        if remote.direct.as_ref().map(|path| path.number) != former.map(|path| path.number) {
            live.set_direct(false);
            live.with_measure(RemoteProbes::forget_probes);
        }
        RemoteEntry {
            links,
            live,
            enabled: remote.enabled,
            inward: remote.inward.clone(),
            direct: remote.direct.clone(),
            probed,
            number,
        }
    }
}

/// A link that needs a handshake, because it is new or because its remote is reached over another
/// path now.
struct LinkToGreet {
    link: Arc<RemoteLink>,
    is_moved: bool,
}

/// Starts handshakes, so that sessions are established before the first packet needs them. Where
/// there is a session already, a probe tells the remote our address.
fn start_handshakes(shared: &SharedTunnel, table: &RemoteTable, greeted: &[LinkToGreet]) {
    for LinkToGreet { link, is_moved } in greeted
        .iter()
        .filter(|greeted| greeted.link.live.path().is_some())
    {
        let mut messages = Vec::new();
        let mut sessions = link.lock();
        if *is_moved {
            sessions.restart_handshake(&mut messages);
        } else {
            // The timers may have started a handshake already. If each end starts two at once, all
            // four are lost, and neither end starts another one for 15 s.
            sessions.begin_handshake(&mut messages);
        }
        messages.extend(
            sessions
                .encrypt_probe(TunnelProbe {
                    purpose: ProbePurpose::Question,
                    token: rand::random(),
                })
                .map(WgKind::Data),
        );
        drop(sessions);
        send_all(shared, table, link, &mut messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sending_does_not_wait_while_an_endpoint_is_applied() {
        let tunnel = UserspaceTunnel::new();
        let applying = tunnel.lock();
        std::thread::scope(|scope| {
            let (sent, is_sent) = std::sync::mpsc::channel();
            let tunnel = &tunnel;
            scope.spawn(move || {
                tunnel.send(PrivateKey::generate().public_key(), &[0]);
                sent.send(()).unwrap();
            });
            let outcome = is_sent.recv_timeout(std::time::Duration::from_secs(5));
            drop(applying);
            outcome.unwrap();
        });
    }

    #[test]
    fn a_tunnel_has_no_state_before_it_is_applied() {
        assert_eq!(UserspaceTunnel::new().state(), TunnelState::default());
    }
}
