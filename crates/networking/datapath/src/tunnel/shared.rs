//! State that the threads of a tunnel share.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use gotatun::{noise::index_table::IndexTable, packet::WgKind};
use liqo_network_model::spread;
use parking_lot::RwLock;

use super::{
    counters::DroppedCounters,
    device::TunDevice,
    direct::DirectPathConfig,
    interface::InwardChannel,
    keys::PublicKey,
    live_remote::LiveRemote,
    packet::Flow,
    prefixes::PrefixTable,
    sessions::{LocalIdentity, RemoteLink},
    socket::{DatagramPath, TunnelSocket},
};

/// A remote and its wanted state.
pub(super) struct RemoteEntry {
    pub(super) live: Arc<LiveRemote>,
    /// One for each of our keys, newest key first.
    pub(super) links: Vec<Arc<RemoteLink>>,
    pub(super) enabled: bool,
    pub(super) inward: Option<InwardChannel>,
    pub(super) direct: Option<DirectPathConfig>,
    /// Whether the timers probe it, which also shows when it comes back.
    pub(super) probed: bool,
    /// Decides its share of the flows among the gateways of its cluster.
    pub(super) number: u64,
}

impl RemoteEntry {
    /// Whether it is on a direct path that the flow may use.
    fn admits_directly(&self, flow: &Flow) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| direct.admits(flow.source))
    }
}

/// Everything that is wanted now. It is replaced as a whole and never changed in place.
pub(super) struct RemoteTable {
    pub(super) identities: Vec<Arc<LocalIdentity>>,
    pub(super) entries: Vec<RemoteEntry>,
    pub(super) by_key: HashMap<PublicKey, usize>,
    pub(super) prefixes: PrefixTable<usize>,
    pub(super) sockets: Vec<Arc<TunnelSocket>>,
    pub(super) device: Arc<TunDevice>,
}

impl RemoteTable {
    pub(super) fn entry(&self, key: &PublicKey) -> Option<&RemoteEntry> {
        self.entries.get(*self.by_key.get(key)?)
    }

    fn has_link(&self, link: &Arc<RemoteLink>) -> bool {
        let entry = self.entry(&link.live.public_key);
        entry.is_some_and(|entry| entry.links.iter().any(|wanted| Arc::ptr_eq(wanted, link)))
    }

    /// The remote that carries this flow: on a direct path, if the gateway there that the flow
    /// belongs to answers.
    pub(super) fn remote_for(&self, flow: &Flow) -> Option<&RemoteEntry> {
        let bucket = spread::bucket_between(flow.source, flow.destination);
        let indices = self.prefixes.longest_match(flow.destination);
        let all = || indices.iter().filter_map(|index| self.entries.get(*index));
        if all().any(|entry| entry.live.is_direct()) {
            let admitting = || all().filter(|entry| entry.admits_directly(flow));
            let numbers = admitting().map(|entry| (entry.number, entry.number));
            let carries = spread::choose_gateway(bucket, numbers);
            // While it changes its key, the gateway is there twice.
            let chosen = admitting().rfind(|entry| {
                Some(entry.number) == carries && entry.live.is_direct() && entry.live.has_path()
            });
            if let Some(entry) = chosen {
                return Some(entry);
            }
        }
        let others =
            all().filter(|entry| entry.direct.is_none() && entry.enabled && entry.live.has_path());
        spread::choose_gateway(bucket, others.map(|entry| (entry.number, entry)))
    }

    /// Whether a remote may send from an address.
    pub(super) fn may_send(&self, live: &Arc<LiveRemote>, source: IpAddr) -> bool {
        let owners = self
            .prefixes
            .longest_match(source)
            .iter()
            .filter_map(|index| self.entries.get(*index));
        owners
            .into_iter()
            .any(|entry| Arc::ptr_eq(&entry.live, live))
    }

    /// The socket for a path. If several have the right family, the one that the remote sent to.
    pub(super) fn socket_for(&self, path: DatagramPath) -> Option<&Arc<TunnelSocket>> {
        let mut sockets = self
            .sockets
            .iter()
            .filter(|socket| socket.reaches(path.remote));
        let first = sockets.next()?;
        let used_by_remote =
            sockets.find(|socket| Some(socket.listen_address().ip()) == path.local);
        Some(used_by_remote.unwrap_or(first))
    }
}

pub(super) struct SharedTunnel {
    table: RwLock<Arc<RemoteTable>>,
    /// Maps receiver indices to links: each of our handshakes has its own index.
    by_index: RwLock<HashMap<u32, Arc<RemoteLink>>>,
    pub(super) indices: IndexTable,
    pub(super) dropped: DroppedCounters,
}

impl SharedTunnel {
    pub(super) fn new(table: Arc<RemoteTable>, indices: IndexTable) -> Self {
        Self {
            table: RwLock::new(table),
            by_index: RwLock::default(),
            indices,
            dropped: DroppedCounters::default(),
        }
    }

    pub(super) fn table(&self) -> Arc<RemoteTable> {
        Arc::clone(&self.table.read())
    }

    pub(super) fn set_table(&self, table: Arc<RemoteTable>) {
        *self.table.write() = table;
        self.forget_indices();
    }

    pub(super) fn link_by_index(&self, index: u32) -> Option<Arc<RemoteLink>> {
        self.by_index.read().get(&index).cloned()
    }

    /// Remembers which link the answer to a handshake message belongs to. Call this before sending
    /// the message.
    pub(super) fn remember(&self, link: &Arc<RemoteLink>, message: &WgKind) {
        let index = match message {
            WgKind::HandshakeInit(message) => message.sender_idx.get(),
            WgKind::HandshakeResp(message) => message.sender_idx.get(),
            WgKind::CookieReply(_) | WgKind::Data(_) => return,
        };
        self.by_index.write().insert(index, Arc::clone(link));
    }

    /// Forgets the indices of ended sessions and of unwanted links.
    pub(super) fn forget_indices(&self) {
        let table = self.table();
        let mut by_index = self.by_index.write();
        by_index.retain(|index, link| self.indices.in_use(*index) && table.has_link(link));
    }
}
