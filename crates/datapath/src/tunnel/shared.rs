//! What the threads of a tunnel share.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use gotatun::{noise::index_table::IndexTable, packet::WgKind};
use liqo_network::spread;

use super::{
    Inward,
    counters::DroppedCounters,
    device::Device,
    keys::PublicKey,
    measure::Measure,
    packet::Flow,
    prefixes::Prefixes,
    sessions::{Identity, Link},
    socket::{Path, Socket},
    way::Way,
};

/// A remote, as long as it is wanted: where it is, and what was carried.
pub(super) struct Live {
    pub(super) public_key: PublicKey,
    way: Mutex<Way>,
    measure: Mutex<Measure>,
    has_path: AtomicBool,
    started: Instant,
    /// Milliseconds after the start, and one; 0 is never.
    last_received: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) dropped: DroppedCounters,
}

impl Live {
    pub(super) fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            way: Mutex::default(),
            measure: Mutex::default(),
            has_path: AtomicBool::new(false),
            started: Instant::now(),
            last_received: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            dropped: DroppedCounters::default(),
        }
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self) -> Option<Path> {
        self.way().path()
    }

    /// Does something with the ways to it.
    pub(super) fn with_way<T>(&self, work: impl FnOnce(&mut Way) -> T) -> T {
        let mut way = self.way();
        let done = work(&mut way);
        self.has_path.store(way.path().is_some(), Relaxed);
        done
    }

    /// Does something with what is measured.
    pub(super) fn with_measure<T>(&self, work: impl FnOnce(&mut Measure) -> T) -> T {
        work(&mut self.measure.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Something came from it for certain, this way.
    pub(super) fn heard(&self, path: Path) {
        self.with_way(|way| way.heard(path, Instant::now()));
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.last_received.store(now + 1, Relaxed);
    }

    pub(super) fn last_received(&self) -> Option<Duration> {
        let at = self.last_received.load(Relaxed).checked_sub(1)?;
        Some(self.started.elapsed().saturating_sub(Duration::from_millis(at)))
    }
}

/// A remote as it is wanted now.
pub(super) struct Entry {
    pub(super) live: Arc<Live>,
    /// One for each of our keys, in the same order: the newest first.
    pub(super) links: Vec<Arc<Link>>,
    pub(super) enabled: bool,
    pub(super) inward: Option<Inward>,
    /// Whether it is asked how the way to it is, which tells that it is there again, too.
    pub(super) asked: bool,
    /// For the choice among the gateways of one cluster.
    pub(super) number: u64,
}

/// Everything that is wanted now. It is replaced as a whole, never changed.
pub(super) struct Table {
    pub(super) identities: Vec<Arc<Identity>>,
    pub(super) entries: Vec<Entry>,
    pub(super) by_key: HashMap<PublicKey, usize>,
    pub(super) prefixes: Prefixes<usize>,
    pub(super) sockets: Vec<Arc<Socket>>,
    pub(super) device: Arc<Device>,
}

impl Table {
    /// The remote with this key.
    pub(super) fn entry(&self, key: &PublicKey) -> Option<&Entry> {
        self.entries.get(*self.by_key.get(key)?)
    }

    /// The remote that carries a flow.
    pub(super) fn remote_for(&self, flow: &Flow) -> Option<&Entry> {
        let candidates = self.prefixes.of(flow.destination).iter().filter_map(|index| self.entries.get(*index));
        let candidates = candidates.filter(|entry| entry.enabled && entry.live.has_path.load(Relaxed));
        spread::choose(spread::bucket(flow.source, flow.destination), candidates.map(|entry| (entry.number, entry)))
    }

    /// Whether a remote may send from an address.
    pub(super) fn may_send(&self, live: &Arc<Live>, source: IpAddr) -> bool {
        let owners = self.prefixes.of(source).iter().filter_map(|index| self.entries.get(*index));
        owners.into_iter().any(|entry| Arc::ptr_eq(&entry.live, live))
    }

    /// The socket that reaches a remote. With several of one family, the one that the remote spoke to.
    pub(super) fn socket_for(&self, path: Path) -> Option<&Arc<Socket>> {
        let mut sockets = self.sockets.iter().filter(|socket| socket.reaches(path.remote));
        let first = sockets.next()?;
        let spoken_to = sockets.find(|socket| Some(socket.listen().ip()) == path.local);
        Some(spoken_to.unwrap_or(first))
    }
}

/// What lives as long as the tunnel runs.
pub(super) struct Shared {
    table: RwLock<Arc<Table>>,
    /// Who is meant by the number in a message: each handshake of ours has one.
    by_index: RwLock<HashMap<u32, Arc<Link>>>,
    pub(super) indices: IndexTable,
    pub(super) dropped: DroppedCounters,
}

impl Shared {
    pub(super) fn new(table: Arc<Table>, indices: IndexTable) -> Self {
        Self { table: RwLock::new(table), by_index: RwLock::default(), indices, dropped: DroppedCounters::default() }
    }

    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_table(&self, table: Arc<Table>) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        self.forget_indices();
    }

    pub(super) fn link(&self, index: u32) -> Option<Arc<Link>> {
        self.by_index.read().unwrap_or_else(PoisonError::into_inner).get(&index).cloned()
    }

    /// Remembers whom the answers to our handshake messages are for. To be called before they are sent.
    pub(super) fn remember(&self, link: &Arc<Link>, message: &WgKind) {
        let index = match message {
            WgKind::HandshakeInit(message) => message.sender_idx.get(),
            WgKind::HandshakeResp(message) => message.sender_idx.get(),
            WgKind::CookieReply(_) | WgKind::Data(_) => return,
        };
        self.by_index.write().unwrap_or_else(PoisonError::into_inner).insert(index, Arc::clone(link));
    }

    /// Forgets sessions that ended and links that are not wanted.
    pub(super) fn forget_indices(&self) {
        let table = self.table();
        let wanted = |link: &Arc<Link>| {
            let entry = table.by_key.get(&link.live.public_key).and_then(|index| table.entries.get(*index));
            entry.is_some_and(|entry| entry.links.iter().any(|wanted| Arc::ptr_eq(wanted, link)))
        };
        let mut by_index = self.by_index.write().unwrap_or_else(PoisonError::into_inner);
        by_index.retain(|index, link| self.indices.in_use(*index) && wanted(link));
    }
}
