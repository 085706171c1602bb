//! Applies the desired state to this node, again and again: collects a snapshot, decides, and lets
//! the agent act.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use liqo_api::{CLUSTER_CONFIG, ClusterId, Key, TUNNEL_CLIENTS};
use liqo_controller_runtime::process::Readiness;
use liqo_datapath::tunnel::{PublicKey, Tunnel as _, UserspaceTunnel};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::{AgentError, Kernel, NodeAgent},
    decide::{
        self, AppliedState, DesiredState, NodeAction, NodeSnapshot,
        reachable_addresses::OpenAddresses,
    },
    gateway_leases::GatewayLeases,
    key::{self, NodeGatewayKeys},
    metrics,
    open_watches::{ExposureContext, OpenWatches},
    options::AgentOptions,
    relays::Relays,
    resolve::GatewayNameResolver,
    tunnel_clients::ClientRegistry,
    watches::NodeWatches,
};

/// Changes come in groups; after this time they are processed together.
const SETTLE: Duration = Duration::from_millis(70);
/// The node is checked after this time even if nothing changed.
const PERIOD: Duration = Duration::from_secs(30);
/// The same while the node waits: a list that stays empty notifies nobody.
const WAITING_PERIOD: Duration = Duration::from_secs(5);
/// Delay after a first error. It doubles with each further error.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
/// For the lists that open addresses depend on: missing rights must not hold up everything else.
const LISTS_TIMEOUT: Duration = Duration::from_secs(5);

pub struct NodeController<'a, K> {
    pub agent: NodeAgent<'a, UserspaceTunnel, K>,
    pub tunnel_clients: ClientRegistry<UserspaceTunnel>,
    pub client: Client,
    pub options: &'a AgentOptions,
    pub watches: NodeWatches,
    pub gateways: Arc<GatewayLeases>,
    pub relays: Arc<Relays>,
    pub changed: Arc<Notify>,
    pub publish: watch::Sender<AppliedState>,
    pub readiness: Readiness,
    pub stop: CancellationToken,
}

/// The state that a pass keeps for the next one.
struct ReconcileMemory {
    open: Option<OpenWatches>,
    resolver: GatewayNameResolver,
    /// The peer that each gateway's key belongs to.
    owners: BTreeMap<PublicKey, ClusterId>,
    keys: NodeGatewayKeys,
}

impl<K: Kernel> NodeController<'_, K> {
    /// Runs until `stop`. The node's state stays then.
    pub async fn run(mut self, keys: NodeGatewayKeys) {
        self.gateways.wait_until_tried().await;
        let mut memory = ReconcileMemory {
            open: None,
            resolver: GatewayNameResolver::default(),
            owners: BTreeMap::new(),
            keys,
        };
        let mut retry = MIN_RETRY_DELAY;
        loop {
            let wait = match self.reconcile(&mut memory).await {
                Ok(wait) => {
                    retry = MIN_RETRY_DELAY;
                    wait
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "this node is not in its desired state, trying again");
                    self.readiness.set_not_ready(error);
                    let wait = retry;
                    retry = (retry * 2).min(PERIOD);
                    wait
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.changed.notified() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Makes one pass, and returns the time until the next one.
    async fn reconcile(&mut self, memory: &mut ReconcileMemory) -> anyhow::Result<Duration> {
        let (this, now) = (&self.options.node, Timestamp::now());
        let mut snapshot = self.take_snapshot(&memory.owners);
        self.renew_keys(&snapshot, memory, now)?;
        snapshot.open = self.open_addresses(&snapshot, memory).await;
        let list = self
            .watches
            .tunnel_clients
            .get(&Key::new(&self.options.namespace, TUNNEL_CLIENTS));
        let list = list.filter(|_| snapshot.accepts_tunnel_clients(this));
        snapshot.tunnel_clients = self.tunnel_clients.admit_listed(
            list.as_deref(),
            &self.client,
            &self.options.namespace,
        );
        if snapshot.is_gateway(this) {
            snapshot.resolved = memory
                .resolver
                .look_up(decide::gateway_names(&snapshot.peers))
                .await;
        }
        let action = decide::decide_action(&snapshot, this, &memory.keys.public_keys());
        let applied = self.agent.apply_action(&action, &memory.keys, now).await;
        if snapshot.is_gateway(this) {
            let is_applied = applied
                .as_ref()
                .map_or_else(AgentError::is_partial, |_| true);
            let is_running = self.agent.tunnel.state().running;
            self.gateways.record_fitness(decide::is_gateway_working(
                &snapshot, &action, is_applied, is_running,
            ));
        }
        if applied.as_ref().is_err_and(|error| !error.is_partial()) {
            // A change may be done without the changes that follow from it.
            self.gateways.record_away();
        }
        let steps = applied?;
        metrics::count_steps(steps);
        if steps > 0 {
            tracing::info!(
                steps,
                gateways = snapshot.gateways.len(),
                peers = snapshot.peers.len(),
                "this node was changed"
            );
        }
        let state = match action {
            NodeAction::Wait(reason) => {
                self.readiness.set_ready(format!("waiting: {reason}"));
                return Ok(WAITING_PERIOD);
            }
            NodeAction::Clear => {
                self.readiness.set_ready(
                    "the network is switched off, and this node has no part of it left".to_owned(),
                );
                None
            }
            NodeAction::Apply(desired) => self.publish_applied(*desired, memory).await,
        };
        self.publish.send_if_modified(|before| {
            let differs = *before != state;
            *before = state;
            differs
        });
        Ok(memory
            .keys
            .changes_after(now)
            .map_or(PERIOD, |left| left.min(PERIOD)))
    }

    /// Gives the gateway a new key if the settings ask for one.
    fn renew_keys(
        &self,
        snapshot: &NodeSnapshot,
        memory: &mut ReconcileMemory,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let not_before = snapshot
            .settings
            .gateways
            .keys_not_before
            .as_ref()
            .map(|moment| moment.0);
        if let Some(renewed) = memory.keys.with_new_key(not_before, now) {
            key::save_keys(&self.options.key_directory, &self.options.node, &renewed)?;
            tracing::info!(key = %renewed.newest.public_key(), "the key of this node is renewed");
            memory.keys = renewed;
        }
        Ok(())
    }

    /// The single addresses that are open, if this node needs them.
    async fn open_addresses(
        &self,
        snapshot: &NodeSnapshot,
        memory: &mut ReconcileMemory,
    ) -> Option<OpenAddresses> {
        if !(decide::needs_open_addresses(snapshot, &self.options.node)
            && snapshot.settings.enabled)
        {
            memory.open = None;
            return None;
        }
        let context = ExposureContext {
            nodes: snapshot.nodes.keys().cloned().collect(),
            remote: snapshot
                .peers
                .iter()
                .map(|(id, peer)| (id.clone(), peer.imported.values().copied().collect()))
                .collect(),
        };
        let watches = memory.open.get_or_insert_with(|| {
            OpenWatches::start(&self.client, context.clone(), &self.changed)
        });
        let _ = tokio::time::timeout(LISTS_TIMEOUT, watches.wait_until_complete()).await;
        watches.addresses(context)
    }

    /// Publishes what was applied, and logs what was left out.
    async fn publish_applied(
        &self,
        desired: DesiredState,
        memory: &mut ReconcileMemory,
    ) -> AppliedState {
        // Only now: peers that learn of a key must find it in use.
        self.gateways.publish_keys(&memory.keys);
        for (peer, reason) in &desired.left_out {
            tracing::warn!(%peer, reason, "a peer gets no network");
        }
        for (node, reason) in &desired.doubtful {
            tracing::warn!(
                node,
                reason,
                "an address of a node is left out; if it is right, set network.reservedCIDRs"
            );
        }
        let but = self
            .relays
            .problem()
            .map(|problem| format!(", but {problem}"))
            .unwrap_or_default();
        self.readiness
            .set_ready(format!("this node is in its desired state{but}"));
        if desired.tunnel.is_some() && self.gateways.take_was_away() {
            self.agent.kernel.forget_translations(&desired.plan).await;
        }
        memory.owners = desired
            .tunnel
            .as_ref()
            .map(|end| end.owners.clone())
            .unwrap_or_default();
        desired.tunnel.is_some().then(|| Arc::new(desired))
    }

    fn take_snapshot(&self, owners: &BTreeMap<PublicKey, ClusterId>) -> NodeSnapshot {
        let config = self.watches.config.get(&Key::new("", CLUSTER_CONFIG));
        let nodes = self
            .watches
            .nodes
            .all()
            .into_iter()
            .map(|(key, node)| (key.name, (*node).clone()))
            .collect();
        let peers = self.watches.peers.all().into_iter();
        NodeSnapshot {
            settings: config
                .as_ref()
                .map(|config| config.settings.clone())
                .unwrap_or_default(),
            // Without a configuration nothing changes.
            ranges: config.and_then(|config| config.ranges.clone()),
            nodes,
            peers: peers
                .map(|(_, peer)| (peer.spec.cluster_id.clone(), peer.spec.clone()))
                .collect(),
            gateways: self.gateways.in_use(),
            open: None,
            resolved: BTreeMap::new(),
            keys: owners.clone(),
            tunnel_clients: BTreeMap::new(),
            responsive: decide::responsive_gateways(&self.agent.tunnel.state().remotes),
            relays: self.relays.connected_addresses(),
        }
    }
}
