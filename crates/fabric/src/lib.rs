//! The program on each node that carries packets between clusters.
//!
//! It runs on every node, in the node's own network. What is to be in the kernel of a node follows from objects that it watches: the
//! nodes, the ranges of this cluster, and one `TunnelEndpoint` for each peer, which the controller manager writes. Each change leads to
//! one pure decision ([`decide`]), and the difference between that and what there is, is made ([`agent`]). Every half minute it is looked
//! at all the same, because others change kernels, too.
//!
//! ```text
//!   TunnelEndpoints --+                    +--> overlay, routes, nftables    every node
//!   Nodes ------------+--> decide --> make-+
//!   ClusterConfig ----+        ^           +--> tunnel                       gateways
//!                              |                   |
//!   gateway Leases --> who are in use              +--> TunnelEndpoint.status, metrics
//! ```
//!
//! **Gateways.** Nodes that fit compete for a few numbered Leases ([`gateways`]). Whoever holds one and is alive is in use: it has tunnels
//! to all peers, looks up what single peers may reach ([`openings`]) and says how its tunnels are ([`report`]). They share the flows
//! ([`liqo_network::spread`]). They also ask each other's nodes whether they are there (`siblings`), so that what one carried whose node
//! dies, the others carry within two seconds.
//!
//! **Where UDP does not pass** between two gateways, a relay over TLS carries the tunnel's datagrams (`relays`) until it does.
//!
//! **Guests.** Where the tunnel's port is all that is exposed, other clusters' managers come through it to our auth endpoint and our API
//! server, and to nothing else ([`guests`]).
//!
//! **What stays.** The kernel's state outlives the process, so a restart is a pause and not an end of connections. While the API server
//! is away everything stays as it is. Only a network that is switched off, or `--clear`, removes all.

pub mod agent;
pub mod decide;
pub mod gateways;
pub mod guests;
pub mod health;
pub mod key;
mod metrics;
mod node;
pub mod openings;
mod relays;
pub mod report;
mod resolve;
mod siblings;
pub mod view;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node as ClusterNode},
};
use kube::{Api, Client, runtime::watcher};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, TUNNEL_GUESTS, TunnelEndpoint, labels};
use liqo_datapath::{
    node::Node,
    tunnel::{Tunnel as _, UserspaceTunnel},
};
use liqo_kit::Cache;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::Agent,
    decide::Work,
    gateways::Gateways,
    health::Health,
    key::Keys,
    relays::Relays,
    view::{ConfigView, LeaseView, NodeView, PeerView},
};

/// How long a start waits for the list of guests, whose sessions end where it is not known yet.
const FOR_GUESTS: Duration = Duration::from_secs(5);

/// What the program is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Namespace of Liqo's objects.
    pub namespace: String,
    /// The node that it runs on.
    pub node: String,
    /// Where the keys of this node's gateway are kept.
    pub key_directory: PathBuf,
    /// Port of health checks, on each node.
    pub health_port: u16,
}

/// What is watched by every node.
#[derive(Clone)]
struct Watched {
    nodes: Cache<NodeView>,
    peers: Cache<PeerView>,
    config: Cache<ConfigView>,
    leases: Cache<LeaseView>,
    guests: Cache<BTreeMap<String, String>>,
}

/// Keeps this node as it is to be, until `stop`.
pub async fn run(client: Client, options: Options, health: Health, stop: CancellationToken) -> anyhow::Result<()> {
    let keys = key::load_or_create(&options.key_directory, &options.node, Timestamp::now());
    let keys = keys.context("the keys of this node's gateway")?;
    let kernel = Node::of_this_namespace().context("the kernel of this node")?;
    let changed = Arc::new(Notify::new());
    let relays = Arc::new(Relays::default());
    let gateways = Arc::new(Gateways::new(client.clone(), &options, keys.clone(), relays.clone(), changed.clone()));
    let watched = watch_all(&client, &options.namespace, &gateways, &changed, &stop);
    // A right to the list of guests that is missing is no reason to carry nothing.
    let all_known = async {
        tokio::join!(watched.nodes.synced(), watched.peers.synced(), watched.config.synced(), watched.leases.synced());
        timeout(FOR_GUESTS, watched.guests.synced()).await
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        _ = all_known => {}
    }
    tracing::info!(node = options.node, key = %keys.newest.public(), "this node");
    let tunnel = Arc::new(UserspaceTunnel::new());
    let (ends, held) = watch::channel(None);
    let electing = gateways.clone().keep(watched.clone(), stop.clone());
    let reporting = report::keep(report::Reporter {
        api: Api::namespaced(client.clone(), &options.namespace),
        node: options.node.clone(),
        peers: watched.peers.clone(),
        tunnel: tunnel.clone(),
        relays: relays.clone(),
        held: held.clone(),
        changed: changed.clone(),
        stop: stop.clone(),
    });
    let relaying = relays::Keeper {
        relays: relays.clone(),
        tunnel: tunnel.clone(),
        gateways: gateways.clone(),
        held,
        changed: changed.clone(),
        stop: stop.clone(),
    };
    let listening = siblings::Listener {
        gateways: gateways.clone(),
        nodes: watched.nodes.clone(),
        port: options.health_port,
        stop: stop.clone(),
    };
    let guests = guests::House::new(tunnel.clone());
    let agent = Agent { tunnel: &*tunnel, node: kernel };
    let holding =
        node::Keeper { agent, guests, client, options: &options, watched, gateways, relays, changed, ends, health, stop }
            .keep(keys);
    // Each ends when it is asked to, and not before.
    let ((), (), (), (), ()) = tokio::join!(electing, listening.keep(), reporting, relaying.keep(), holding);
    tunnel.stop();
    Ok(())
}

/// Removes everything that is ours from this node.
pub async fn clear(options: &Options) -> anyhow::Result<()> {
    let tunnel = UserspaceTunnel::new();
    let kernel = Node::of_this_namespace().context("the kernel of this node")?;
    let (agent, now) = (Agent { tunnel: &tunnel, node: kernel }, Timestamp::now());
    let steps = agent.make(&Work::Clear, &Keys::first(now), now).await.context("removing what is in the kernel")?;
    key::remove(&options.key_directory, &options.node).context("removing the gateway's keys")?;
    tracing::info!(steps, "nothing of Liqo's network is left on this node");
    Ok(())
}

fn watch_all(
    client: &Client,
    namespace: &str,
    gateways: &Arc<Gateways>,
    changed: &Arc<Notify>,
    stop: &CancellationToken,
) -> Watched {
    let tell = || {
        let changed = changed.clone();
        move || changed.notify_one()
    };
    let (of_nodes, of_peers, of_config, of_guests) = (tell(), tell(), tell(), tell());
    let all = watcher::Config::default;
    let seen = gateways.clone();
    Watched {
        nodes: Cache::watch(Api::<ClusterNode>::all(client.clone()), all(), stop.clone(), view::node, move |_, _, _| of_nodes()),
        peers: Cache::watch(
            Api::<TunnelEndpoint>::namespaced(client.clone(), namespace),
            all(),
            stop.clone(),
            view::peer,
            // A new status is nothing to act upon: it is our own.
            move |_, before, now| {
                if before.map(|peer| &peer.spec) != now.map(|peer| &peer.spec) {
                    of_peers();
                }
            },
        ),
        config: Cache::watch(
            Api::<ClusterConfig>::all(client.clone()),
            all().fields(&format!("metadata.name={CLUSTER_CONFIG}")),
            stop.clone(),
            view::config,
            move |_, _, _| of_config(),
        ),
        guests: Cache::watch(
            Api::<ConfigMap>::namespaced(client.clone(), namespace),
            all().fields(&format!("metadata.name={TUNNEL_GUESTS}")),
            stop.clone(),
            view::list,
            move |_, _, _| of_guests(),
        ),
        leases: Cache::watch(
            Api::<Lease>::namespaced(client.clone(), namespace),
            all().labels(&format!("{}=true", labels::GATEWAY)),
            stop.clone(),
            view::lease,
            move |key, _, now| seen.saw(&key.name, now.map(|lease| &**lease)),
        ),
    }
}
