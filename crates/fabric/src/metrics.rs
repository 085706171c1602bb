//! What this node counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, OnceLock, PoisonError, atomic::Ordering::Relaxed},
};

use liqo_api::ClusterId;
use liqo_datapath::tunnel::RemoteState;
use liqo_kit::metrics::register;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::decide::status::Seen;

type ByPeer = [(&'static str, String); 1];
type ByReason = [(&'static str, String); 2];

struct Metrics {
    steps: Counter,
    up: Family<ByPeer, Gauge>,
    sent: Family<ByPeer, Counter>,
    received: Family<ByPeer, Counter>,
    dropped: Family<ByReason, Counter>,
}

fn metrics() -> &'static Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    METRICS.get_or_init(|| Metrics {
        steps: register("fabric_steps", "How many things were changed in the kernel of this node", Counter::default()),
        up: register("tunnel_up", "Whether the gateway of a peer answers", Family::default()),
        sent: register("tunnel_sent_bytes", "Bytes of datagrams to a peer's gateways", Family::default()),
        received: register("tunnel_received_bytes", "Bytes of datagrams from a peer's gateways", Family::default()),
        dropped: register("tunnel_dropped", "Packets from or to a peer that were not carried", Family::default()),
    })
}

fn of(peer: &ClusterId) -> ByPeer {
    [("peer", peer.to_string())]
}

/// So much was changed.
pub(crate) fn steps(count: usize) {
    metrics().steps.inc_by(count as u64);
}

/// The tunnel is not here.
pub(crate) fn no_tunnel() {
    let metrics = metrics();
    metrics.up.clear();
    metrics.sent.clear();
    metrics.received.clear();
    metrics.dropped.clear();
}

/// How the tunnel to each peer is: whether it answers, and what was counted.
pub(crate) fn tunnel(peers: &BTreeMap<ClusterId, Seen>) {
    static KNOWN: Mutex<BTreeSet<ClusterId>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.iter().any(|peer| !peers.contains_key(peer)) {
        no_tunnel();
    }
    known.clone_from(&peers.keys().cloned().collect());
    let metrics = metrics();
    for (peer, seen) in peers {
        let sum = |of: fn(&RemoteState) -> u64| seen.remotes.iter().map(of).sum::<u64>();
        metrics.up.get_or_create(&of(peer)).set(seen.is_connected().into());
        metrics.sent.get_or_create(&of(peer)).inner().store(sum(|remote| remote.sent_bytes), Relaxed);
        metrics.received.get_or_create(&of(peer)).inner().store(sum(|remote| remote.received_bytes), Relaxed);
        let mut dropped: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in seen.remotes.iter().flat_map(|remote| remote.dropped.by_reason()) {
            *dropped.entry(reason).or_default() += count;
        }
        for (reason, count) in dropped {
            let labels = [("peer", peer.to_string()), ("reason", reason.to_owned())];
            metrics.dropped.get_or_create(&labels).inner().store(count, Relaxed);
        }
    }
}
