//! What this node counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use liqo_api::ClusterId;
use liqo_datapath::{
    relay::Counts,
    tunnel::{Dropped, RemoteState},
};
use liqo_kit::metrics::register;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::decide::status::Seen;

type ByPeer = [(&'static str, String); 1];
type ByReason = [(&'static str, String); 2];
type ByDirection = [(&'static str, &'static str); 1];

struct Metrics {
    steps: Counter,
    up: Family<ByPeer, Gauge>,
    gateways: Family<ByPeer, Gauge>,
    sent: Family<ByPeer, Counter>,
    received: Family<ByPeer, Counter>,
    dropped: Family<ByReason, Counter>,
    relayed: Family<ByPeer, Gauge>,
    latency: Family<ByPeer, Gauge<f64, AtomicU64>>,
    loss: Family<ByPeer, Gauge<f64, AtomicU64>>,
    relays: Family<ByDirection, Gauge>,
    relays_refused: Counter,
    relays_dropped: Counter,
}

fn metrics() -> &'static Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    METRICS.get_or_init(|| Metrics {
        steps: register("fabric_steps", "How many things were changed in the kernel of this node", Counter::default()),
        up: register("tunnel_up", "Whether the gateway of a peer answers", Family::default()),
        gateways: register(
            "tunnel_gateways",
            "How many gateways of a peer answer; one whose key is being renewed counts twice",
            Family::default(),
        ),
        sent: register("tunnel_sent_bytes", "Bytes of datagrams to a peer's gateways", Family::default()),
        received: register("tunnel_received_bytes", "Bytes of datagrams from a peer's gateways", Family::default()),
        dropped: register("tunnel_dropped", "Packets from or to a peer that were not carried", Family::default()),
        relayed: register(
            "tunnel_relayed",
            "Whether TLS carries packets to a peer, because UDP does not pass",
            Family::default(),
        ),
        relays: register(
            "relay_connections",
            "Connections over TLS that carry datagrams of tunnels, or are to",
            Family::default(),
        ),
        latency: register(
            "tunnel_latency_seconds",
            "How long a question through the tunnel and its answer take, smoothed",
            Family::default(),
        ),
        loss: register("tunnel_loss_ratio", "How much of what is asked through the tunnel is lost", Family::default()),
        relays_refused: register("relay_refused", "Connections over TLS that were one too many", Counter::default()),
        relays_dropped: register("relay_dropped", "Datagrams that a connection over TLS was too slow for", Counter::default()),
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
    metrics.gateways.clear();
    metrics.sent.clear();
    metrics.received.clear();
    metrics.dropped.clear();
    metrics.relayed.clear();
    metrics.latency.clear();
    metrics.loss.clear();
}

/// The relays that were begun here, what the server of those that peers begin counted, and the drops of all.
pub(crate) fn relays(begun: usize, taken: Counts) {
    let metrics = metrics();
    let open = |direction, count| {
        metrics.relays.get_or_create(&[("direction", direction)]).set(i64::try_from(count).unwrap_or(i64::MAX));
    };
    open("begun", begun);
    open("taken", taken.proven);
    open("unproven", taken.unproven);
    metrics.relays_refused.inner().store(taken.refused, Relaxed);
    metrics.relays_dropped.inner().store(taken.dropped, Relaxed);
}

/// How the tunnel to each peer is: whether it answers, and what was counted; and what was dropped that belongs to none.
pub(crate) fn tunnel(peers: &BTreeMap<ClusterId, Seen>, of_nobody: &Dropped) {
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
        metrics.gateways.get_or_create(&of(peer)).set(i64::try_from(seen.answering()).unwrap_or(i64::MAX));
        metrics.relayed.get_or_create(&of(peer)).set(seen.is_relayed().into());
        let measured = seen.measured();
        match measured.and_then(|measured| measured.latency) {
            Some(latency) => _ = metrics.latency.get_or_create(&of(peer)).set(latency.as_secs_f64()),
            None => _ = metrics.latency.remove(&of(peer)),
        }
        match measured {
            Some(measured) => _ = metrics.loss.get_or_create(&of(peer)).set(f64::from(measured.lost_per_thousand) / 1000.0),
            None => _ = metrics.loss.remove(&of(peer)),
        }
        metrics.sent.get_or_create(&of(peer)).inner().store(sum(|remote| remote.sent_bytes), Relaxed);
        metrics.received.get_or_create(&of(peer)).inner().store(sum(|remote| remote.received_bytes), Relaxed);
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in seen.remotes.iter().flat_map(|remote| remote.dropped.by_reason()) {
            *counts.entry(reason).or_default() += count;
        }
        dropped(peer.as_str(), counts);
    }
    // What nobody's were, or was not known whose.
    dropped("", of_nobody.by_reason());
}

fn dropped<'a>(peer: &str, counts: impl IntoIterator<Item = (&'a str, u64)>) {
    for (reason, count) in counts {
        let labels = [("peer", peer.to_owned()), ("reason", reason.to_owned())];
        metrics().dropped.get_or_create(&labels).inner().store(count, Relaxed);
    }
}
