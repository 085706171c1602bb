//! Starts the tasks of the program, and clears a node.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use jiff::Timestamp;
use kube::{Api, Client};
use liqo_controller_runtime::process::Readiness;
use liqo_datapath::{
    node::NodeKernel,
    tunnel::{Tunnel as _, UserspaceTunnel},
};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::NodeAgent,
    decide::NodeAction,
    gateway_leases::GatewayLeases,
    gateway_probes::GatewayProber,
    key::{self, NodeGatewayKeys},
    lan::LanDiscoverer,
    node_controller::NodeController,
    options::AgentOptions,
    passed_by,
    relays::{Relays, controller::RelayController},
    report::Reporter,
    tunnel_clients::ClientRegistry,
    watches::NodeWatches,
};

/// A start waits at most this long for the list of tunnel clients: sessions of unlisted clients
/// end.
const CLIENT_LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps this node in its desired state until `stop`.
pub async fn run(
    client: Client,
    options: AgentOptions,
    readiness: Readiness,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let keys = key::load_or_create(&options.key_directory, &options.node, Timestamp::now());
    let keys = keys.context("the keys of this node's gateway")?;
    let kernel = NodeKernel::of_this_namespace().context("the kernel of this node")?;
    let changed = Arc::new(Notify::new());
    let relays = Arc::new(Relays::default());
    let gateways = Arc::new(GatewayLeases::new(
        client.clone(),
        &options,
        keys.clone(),
        relays.clone(),
        changed.clone(),
    ));
    let observer = gateways.clone();
    let watches = NodeWatches::start(
        &client,
        &options.namespace,
        &changed,
        move |name, lease| observer.observe_lease(name, lease),
        &stop,
    );
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = wait_for_lists(&watches) => {}
    }
    tracing::info!(node = options.node, key = %keys.newest.public_key(), "this node");
    let tunnel = Arc::new(UserspaceTunnel::new());
    let (publish, applied) = watch::channel(None);
    let election = gateways.clone().run(watches.clone(), stop.clone());
    let reporter = Reporter {
        api: Api::namespaced(client.clone(), &options.namespace),
        node: options.node.clone(),
        peers: watches.peers.clone(),
        tunnel: tunnel.clone(),
        relays: relays.clone(),
        applied: applied.clone(),
        changed: changed.clone(),
        stop: stop.clone(),
    };
    let gaps = passed_by::keep_gaps_allowed(applied.clone(), stop.clone());
    let relay_controller = RelayController {
        relays: relays.clone(),
        tunnel: tunnel.clone(),
        gateways: gateways.clone(),
        applied,
        changed: changed.clone(),
        stop: stop.clone(),
    };
    let prober = GatewayProber {
        gateways: gateways.clone(),
        nodes: watches.nodes.clone(),
        port: options.health_port,
        stop: stop.clone(),
    };
    let lan = LanDiscoverer {
        api: Api::namespaced(client.clone(), &options.namespace),
        node: options.node.clone(),
        watches: watches.clone(),
        gateways: gateways.clone(),
        stop: stop.clone(),
    };
    let tunnel_clients = ClientRegistry::new(tunnel.clone());
    let agent = NodeAgent {
        tunnel: &*tunnel,
        kernel,
    };
    let options = &options;
    let node_controller = NodeController {
        agent,
        tunnel_clients,
        client,
        options,
        watches,
        gateways,
        relays,
        changed,
        publish,
        readiness,
        stop,
    };
    // Each ends only when it is asked to.
    tokio::join!(
        election,
        prober.run(),
        reporter.run(),
        Box::pin(lan.run()),
        relay_controller.run(),
        gaps,
        node_controller.run(keys)
    );
    tunnel.stop();
    Ok(())
}

async fn wait_for_lists(watches: &NodeWatches) {
    tokio::join!(
        watches.nodes.wait_until_synced(),
        watches.peers.wait_until_synced(),
        watches.config.wait_until_synced(),
        watches.leases.wait_until_synced()
    );
    // Packets must flow even if the right to read the list of tunnel clients is missing.
    let clients = watches.tunnel_clients.wait_until_synced();
    let _ = timeout(CLIENT_LIST_TIMEOUT, clients).await;
}

/// Removes everything that is ours from this node.
pub async fn clear(options: &AgentOptions) -> anyhow::Result<()> {
    let tunnel = UserspaceTunnel::new();
    let kernel = NodeKernel::of_this_namespace().context("the kernel of this node")?;
    let (agent, now) = (
        NodeAgent {
            tunnel: &tunnel,
            kernel,
        },
        Timestamp::now(),
    );
    let steps = agent
        .apply_action(
            &NodeAction::Clear,
            &NodeGatewayKeys::generate_first(now),
            now,
        )
        .await
        .context("removing what is in the kernel")?;
    key::remove(&options.key_directory, &options.node).context("removing the gateway's keys")?;
    tracing::info!(steps, "nothing of Liqo's network is left on this node");
    Ok(())
}
