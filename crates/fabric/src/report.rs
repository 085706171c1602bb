//! Says how the tunnel to each peer is: in the status of its `TunnelEndpoint`, and as metrics.

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
use liqo_api::{ClusterId, TunnelEndpoint};
use liqo_datapath::tunnel::{RemoteState, Tunnel as _, UserspaceTunnel};
use liqo_kit::Cache;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{
        Wanted, speaking,
        status::{Seen, status},
    },
    metrics,
    node::Held,
    relays::Relays,
    view::PeerView,
};

/// Time between two looks at who speaks.
const LOOK: Duration = Duration::from_millis(250);
/// And at everything: every eighth.
const LOOKS: usize = 8;
/// How long one write may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What it takes to report.
pub(crate) struct Reporter {
    pub api: Api<TunnelEndpoint>,
    pub node: String,
    pub peers: Cache<PeerView>,
    pub tunnel: Arc<UserspaceTunnel>,
    pub relays: Arc<Relays>,
    pub held: watch::Receiver<Held>,
    pub changed: Arc<Notify>,
    pub stop: CancellationToken,
}

/// Until it is asked to stop.
pub(crate) async fn keep(reporter: Reporter) {
    let mut written_at: BTreeMap<ClusterId, Instant> = BTreeMap::new();
    for look in (0..LOOKS).cycle() {
        tokio::select! {
            () = reporter.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let held = reporter.held.borrow().clone();
        let Some(held) = held else {
            metrics::no_tunnel();
            continue;
        };
        let state = reporter.tunnel.state();
        if held.tunnel.as_ref().is_some_and(|end| end.is_outdated(&speaking(&state.remotes))) {
            reporter.changed.notify_one();
        }
        if look + 1 < LOOKS {
            continue;
        }
        let mut remotes = by_peer(&held, state.remotes);
        let peers = reporter.peers.all();
        let seen: BTreeMap<ClusterId, Seen> = peers
            .iter()
            .map(|(_, peer)| {
                let id = &peer.spec.cluster_id;
                let remotes = remotes.remove(id).unwrap_or_default();
                let relayed = remotes.iter().filter_map(|remote| {
                    let behind = reporter.relays.behind(remote.endpoint.filter(|_| remote.is_relayed())?)?;
                    Some((remote.public_key, behind))
                });
                let relayed = relayed.collect();
                (id.clone(), Seen { remotes, relayed, left_out: held.left_out.get(id).cloned() })
            })
            .collect();
        metrics::tunnel(&seen, &state.dropped);
        for (key, peer) in &peers {
            let id = &peer.spec.cluster_id;
            let Some(seen) = seen.get(id) else { continue };
            let since_written = written_at.get(id).map_or(Duration::MAX, Instant::elapsed);
            let now = Timestamp::now();
            let new = status(&reporter.node, &held.gateways, &peer.spec, &peer.status, seen, now, since_written);
            let Some(new) = new else { continue };
            // What is absent is to go, which takes a null. The other gateways write here, too: what was read before one of them wrote is
            // not written over it.
            let patch = json!({
                "metadata": { "resourceVersion": peer.version },
                "status": {
                    "gateway": new.gateway,
                    "transport": new.transport,
                    "gateways": new.gateways,
                    "conditions": new.conditions,
                },
            });
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let written = tokio::time::timeout(PATIENCE, reporter.api.patch_status(&key.name, &parameters, &patch));
            let Ok(written) = written.await else {
                tracing::warn!(peer = %id, "the API server does not answer; the state of tunnels is written later");
                break;
            };
            match written {
                Ok(_) => {
                    written_at.insert(id.clone(), Instant::now());
                    let reason = new.conditions.first().map(|one| &one.reason);
                    tracing::info!(peer = %id, reason, "the state of a tunnel changed");
                }
                // At the next look it is gone, or another.
                Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => {}
                Err(error) => tracing::warn!(%error, peer = %id, "the state of a tunnel cannot be written, trying again"),
            }
        }
    }
}

fn by_peer(held: &Wanted, remotes: Vec<RemoteState>) -> BTreeMap<ClusterId, Vec<RemoteState>> {
    let mut sorted: BTreeMap<ClusterId, Vec<RemoteState>> = BTreeMap::new();
    for remote in remotes {
        let owner = held.tunnel.as_ref().and_then(|end| end.owners.get(&remote.public_key));
        if let Some(owner) = owner {
            sorted.entry(owner.clone()).or_default().push(remote);
        }
    }
    sorted
}
