//! Reports how the tunnel to each peer is: in the status of its `TunnelEndpoint`, and as metrics.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use liqo_api::{ClusterId, Key, TunnelEndpoint, TunnelEndpointStatus};
use liqo_controller_runtime::{Cache, writes::unless_changed};
use liqo_datapath::tunnel::{Tunnel as _, TunnelRemoteState, UserspaceTunnel};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{
        AppliedState, DesiredState, responsive_gateways,
        status::{ObservedTunnel, tunnel_status},
    },
    metrics,
    relays::Relays,
    view::PeerView,
};

/// Interval between two checks which gateways of peers are responsive.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// It reports at every eighth check.
const POLLS_PER_REPORT: usize = 8;
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Reporter {
    pub api: Api<TunnelEndpoint>,
    pub node: String,
    pub peers: Cache<PeerView>,
    pub tunnel: Arc<UserspaceTunnel>,
    pub relays: Arc<Relays>,
    pub applied: watch::Receiver<AppliedState>,
    pub changed: Arc<Notify>,
    pub stop: CancellationToken,
}

impl Reporter {
    /// Reports until it is asked to stop.
    pub async fn run(self) {
        let mut written_at: BTreeMap<ClusterId, Instant> = BTreeMap::new();
        for poll in (0..POLLS_PER_REPORT).cycle() {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            let applied = self.applied.borrow().clone();
            let Some(applied) = applied else {
                metrics::record_no_tunnel();
                continue;
            };
            let state = self.tunnel.state();
            if applied
                .tunnel
                .as_ref()
                .is_some_and(|end| end.is_outdated(&responsive_gateways(&state.remotes)))
            {
                self.changed.notify_one();
            }
            if poll + 1 < POLLS_PER_REPORT {
                continue;
            }
            let peers = self.peers.all();
            let tunnels = self.observe_tunnels(&applied, &peers, state.remotes);
            metrics::record_tunnels(&tunnels, &state.dropped);
            self.write_all(&applied, &peers, &tunnels, &mut written_at)
                .await;
        }
    }

    fn observe_tunnels(
        &self,
        applied: &DesiredState,
        peers: &[(Key, Arc<PeerView>)],
        remotes: Vec<TunnelRemoteState>,
    ) -> BTreeMap<ClusterId, ObservedTunnel> {
        let mut direct = remotes_by_broker(applied, &remotes);
        let mut remotes = remotes_by_peer(applied, remotes);
        let mut tunnels = BTreeMap::new();
        for (_, peer) in peers {
            let id = &peer.spec.cluster_id;
            let remotes = remotes.remove(id).unwrap_or_default();
            let relayed = remotes.iter().filter_map(|remote| {
                let address = self
                    .relays
                    .remote_end(remote.endpoint.filter(|_| remote.is_relayed())?)?;
                Some((remote.public_key, address))
            });
            let tunnel = ObservedTunnel {
                relayed: relayed.collect(),
                remotes,
                left_out: applied.left_out.get(id).cloned(),
                direct: direct.remove(id).unwrap_or_default(),
            };
            tunnels.insert(id.clone(), tunnel);
        }
        tunnels
    }

    async fn write_all(
        &self,
        applied: &DesiredState,
        peers: &[(Key, Arc<PeerView>)],
        tunnels: &BTreeMap<ClusterId, ObservedTunnel>,
        written_at: &mut BTreeMap<ClusterId, Instant>,
    ) {
        for (key, peer) in peers {
            let id = &peer.spec.cluster_id;
            let Some(tunnel) = tunnels.get(id) else {
                continue;
            };
            let since_written = written_at.get(id).map_or(Duration::MAX, Instant::elapsed);
            let now = Timestamp::now();
            let new = tunnel_status(
                &self.node,
                &applied.gateways,
                &peer.spec,
                &peer.status,
                tunnel,
                now,
                since_written,
            );
            let Some(new) = new else { continue };
            let Ok(written) =
                tokio::time::timeout(WRITE_TIMEOUT, self.write_status(&key.name, peer, &new)).await
            else {
                tracing::warn!(peer = %id, "the API server does not answer; the state of tunnels is written later");
                return;
            };
            match unless_changed(written) {
                Ok(Some(())) => {
                    written_at.insert(id.clone(), Instant::now());
                    let reason = new.conditions.first().map(|one| &one.reason);
                    tracing::info!(peer = %id, reason, "the state of a tunnel changed");
                }
                // It is gone, or another gateway wrote it. The next report uses the new version.
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, peer = %id, "the state of a tunnel cannot be written, trying again");
                }
            }
        }
    }

    /// The version makes sure that nothing is overwritten that another gateway wrote meanwhile.
    /// Fields without a value are written as null, because a merge patch would keep them otherwise.
    async fn write_status(
        &self,
        name: &str,
        peer: &PeerView,
        new: &TunnelEndpointStatus,
    ) -> kube::Result<()> {
        let patch = json!({
            "metadata": { "resourceVersion": peer.version },
            "status": {
                "gateway": new.gateway,
                "transport": new.transport,
                "gateways": new.gateways,
                "conditions": new.conditions,
            },
        });
        self.api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(drop)
    }
}

/// The gateways on direct paths, by the peer that forwards packets else.
fn remotes_by_broker(
    applied: &DesiredState,
    remotes: &[TunnelRemoteState],
) -> BTreeMap<ClusterId, Vec<(ClusterId, TunnelRemoteState)>> {
    let mut sorted: BTreeMap<ClusterId, Vec<(ClusterId, TunnelRemoteState)>> = BTreeMap::new();
    for remote in remotes {
        let ends = applied
            .tunnel
            .as_ref()
            .and_then(|end| end.direct.get(&remote.public_key));
        if let Some(ends) = ends {
            sorted
                .entry(ends.through.clone())
                .or_default()
                .push((ends.cluster.clone(), remote.clone()));
        }
    }
    sorted
}

fn remotes_by_peer(
    applied: &DesiredState,
    remotes: Vec<TunnelRemoteState>,
) -> BTreeMap<ClusterId, Vec<TunnelRemoteState>> {
    let mut sorted: BTreeMap<ClusterId, Vec<TunnelRemoteState>> = BTreeMap::new();
    for remote in remotes {
        let owner = applied
            .tunnel
            .as_ref()
            .and_then(|end| end.owners.get(&remote.public_key));
        if let Some(owner) = owner {
            sorted.entry(owner.clone()).or_default().push(remote);
        }
    }
    sorted
}
