//! The metrics of this program.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use liqo_api::ClusterId;
use liqo_controller_runtime::metrics::register;
use liqo_datapath::{
    relay::RelayCounts,
    tunnel::{Dropped, TunnelRemoteState},
};
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::decide::status::ObservedTunnel;

type ByPeer = [(&'static str, String); 1];
type ByReason = [(&'static str, String); 2];
type ByDirection = [(&'static str, &'static str); 1];

struct AgentMetrics {
    steps: Counter,
    up: Family<ByPeer, Gauge>,
    gateways: Family<ByPeer, Gauge>,
    sent: Family<ByPeer, Counter>,
    received: Family<ByPeer, Counter>,
    dropped: Family<ByReason, Counter>,
    relayed: Family<ByPeer, Gauge>,
    direct: Family<ByPeer, Gauge>,
    latency: Family<ByPeer, Gauge<f64, AtomicU64>>,
    loss: Family<ByPeer, Gauge<f64, AtomicU64>>,
    relays: Family<ByDirection, Gauge>,
    relays_refused: Counter,
    relays_dropped: Counter,
}

fn metrics() -> &'static AgentMetrics {
    static METRICS: OnceLock<AgentMetrics> = OnceLock::new();
    METRICS.get_or_init(|| AgentMetrics {
        steps: register(
            "fabric_steps",
            "Changes of the kernel of this node",
            Counter::default(),
        ),
        up: register(
            "tunnel_up",
            "Whether the gateway of a peer answers",
            Family::default(),
        ),
        gateways: register(
            "tunnel_gateways",
            "Gateways of a peer that answer; a gateway counts twice while its key is renewed",
            Family::default(),
        ),
        sent: register(
            "tunnel_sent_bytes",
            "Bytes of datagrams to a peer's gateways",
            Family::default(),
        ),
        received: register(
            "tunnel_received_bytes",
            "Bytes of datagrams from a peer's gateways",
            Family::default(),
        ),
        dropped: register(
            "tunnel_dropped",
            "Packets from or to a peer that were not carried",
            Family::default(),
        ),
        relayed: register(
            "tunnel_relayed",
            "Whether TLS carries packets to a peer, because UDP does not pass",
            Family::default(),
        ),
        direct: register(
            "tunnel_direct_gateways",
            "Gateways of clusters behind a peer to which packets go directly",
            Family::default(),
        ),
        relays: register(
            "relay_connections",
            "Connections over TLS for datagrams of tunnels",
            Family::default(),
        ),
        latency: register(
            "tunnel_latency_seconds",
            "Smoothed round-trip time of probes through the tunnel",
            Family::default(),
        ),
        loss: register(
            "tunnel_loss_ratio",
            "Share of the probes through the tunnel that are lost",
            Family::default(),
        ),
        relays_refused: register(
            "relay_refused",
            "Connections over TLS that exceeded a limit",
            Counter::default(),
        ),
        relays_dropped: register(
            "relay_dropped",
            "Datagrams that were dropped because a connection over TLS was too slow",
            Counter::default(),
        ),
    })
}

fn peer_label(peer: &ClusterId) -> ByPeer {
    [("peer", peer.to_string())]
}

/// Counts changes of the kernel.
pub fn count_steps(count: usize) {
    metrics().steps.inc_by(count as u64);
}

/// Removes all values about tunnels.
pub fn record_no_tunnel() {
    let metrics = metrics();
    metrics.up.clear();
    metrics.gateways.clear();
    metrics.sent.clear();
    metrics.received.clear();
    metrics.dropped.clear();
    metrics.relayed.clear();
    metrics.direct.clear();
    metrics.latency.clear();
    metrics.loss.clear();
}

/// Records the number of relays that this gateway opened, and the counts of the server that accepts
/// those of peers. The drops include both.
pub fn record_relays(opened: usize, accepted: RelayCounts) {
    let metrics = metrics();
    for (direction, count) in [
        ("begun", opened),
        ("taken", accepted.proven),
        ("unproven", accepted.unproven),
    ] {
        metrics
            .relays
            .get_or_create(&[("direction", direction)])
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    metrics
        .relays_refused
        .inner()
        .store(accepted.refused, Relaxed);
    metrics
        .relays_dropped
        .inner()
        .store(accepted.dropped, Relaxed);
}

/// Records the tunnel to each peer, and dropped packets that belong to no peer.
pub fn record_tunnels(peers: &BTreeMap<ClusterId, ObservedTunnel>, without_peer: &Dropped) {
    static KNOWN: Mutex<BTreeSet<ClusterId>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock();
    if known.iter().any(|peer| !peers.contains_key(peer)) {
        record_no_tunnel();
    }
    known.clone_from(&peers.keys().cloned().collect());
    let metrics = metrics();
    for (peer, tunnel) in peers {
        let sent = all_remotes(tunnel).map(|remote| remote.sent_bytes).sum();
        let received = all_remotes(tunnel)
            .map(|remote| remote.received_bytes)
            .sum();
        metrics
            .up
            .get_or_create(&peer_label(peer))
            .set(tunnel.is_connected().into());
        metrics
            .gateways
            .get_or_create(&peer_label(peer))
            .set(i64::try_from(tunnel.answering_gateways()).unwrap_or(i64::MAX));
        metrics
            .relayed
            .get_or_create(&peer_label(peer))
            .set(tunnel.is_relayed().into());
        let direct = tunnel
            .direct
            .iter()
            .filter(|(_, remote)| remote.is_direct)
            .count();
        metrics
            .direct
            .get_or_create(&peer_label(peer))
            .set(i64::try_from(direct).unwrap_or(i64::MAX));
        let measured = tunnel.worst_measurement();
        match measured.and_then(|measured| measured.latency) {
            Some(latency) => {
                _ = metrics
                    .latency
                    .get_or_create(&peer_label(peer))
                    .set(latency.as_secs_f64());
            }
            None => _ = metrics.latency.remove(&peer_label(peer)),
        }
        match measured {
            Some(measured) => {
                _ = metrics
                    .loss
                    .get_or_create(&peer_label(peer))
                    .set(f64::from(measured.lost_per_thousand) / 1000.0);
            }
            None => _ = metrics.loss.remove(&peer_label(peer)),
        }
        metrics
            .sent
            .get_or_create(&peer_label(peer))
            .inner()
            .store(sent, Relaxed);
        metrics
            .received
            .get_or_create(&peer_label(peer))
            .inner()
            .store(received, Relaxed);
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, count) in all_remotes(tunnel).flat_map(|remote| remote.dropped.by_reason()) {
            *counts.entry(reason).or_default() += count;
        }
        record_dropped(peer.as_str(), counts);
    }
    record_dropped("", without_peer.by_reason());
}

/// The peer's gateways, and those on direct paths to clusters behind it.
fn all_remotes(tunnel: &ObservedTunnel) -> impl Iterator<Item = &TunnelRemoteState> {
    let direct = tunnel.direct.iter().map(|(_, remote)| remote);
    tunnel.remotes.iter().chain(direct)
}

fn record_dropped<'a>(peer: &str, counts: impl IntoIterator<Item = (&'a str, u64)>) {
    for (reason, count) in counts {
        let labels = [("peer", peer.to_owned()), ("reason", reason.to_owned())];
        metrics()
            .dropped
            .get_or_create(&labels)
            .inner()
            .store(count, Relaxed);
    }
}
