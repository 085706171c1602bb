//! Keeps the node as it is to be: collects what is known, decides, makes it so, again and again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use liqo_api::{CLUSTER_CONFIG, ClusterId, TUNNEL_GUESTS};
use liqo_datapath::{
    node::{NetlinkLinks, NetlinkRoutes, Nft},
    tunnel::{PublicKey, Tunnel as _, UserspaceTunnel},
};
use liqo_kit::Key;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    Options, Watched,
    agent::{Agent, AgentError},
    decide::{self, Snapshot, Wanted, Work},
    gateways::Gateways,
    guests::House,
    health::Health,
    key::{self, Keys},
    metrics,
    openings::{Around, OpeningWatches},
    relays::Relays,
    resolve::Resolver,
};

/// Changes come in groups; so much later they are looked at together.
const TOGETHER: Duration = Duration::from_millis(70);
/// The node is looked at after this time, whether or not something changed.
const PERIOD: Duration = Duration::from_secs(30);
/// The same, while something is not known that tells of itself only when it is not empty.
const WAITING: Duration = Duration::from_secs(5);
/// After an error it is tried again after this time, and then after twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// What is held now, where the tunnel is here.
pub(crate) type Held = Option<Arc<Wanted>>;

pub(crate) struct Keeper<'a> {
    pub agent: Agent<'a, UserspaceTunnel, NetlinkLinks, NetlinkRoutes, Nft>,
    pub guests: House<UserspaceTunnel>,
    pub client: Client,
    pub options: &'a Options,
    pub watched: Watched,
    pub gateways: Arc<Gateways>,
    pub relays: Arc<Relays>,
    pub changed: Arc<Notify>,
    pub ends: watch::Sender<Held>,
    pub health: Health,
    pub stop: CancellationToken,
}

/// What is remembered from one look to the next.
struct Memory {
    openings: Option<OpeningWatches>,
    resolver: Resolver,
    /// Whose each key of a peer's gateway is.
    owners: BTreeMap<PublicKey, ClusterId>,
    /// Our own keys.
    keys: Keys,
}

impl Keeper<'_> {
    /// Until `stop`. What the node holds then, stays.
    pub(crate) async fn keep(mut self, keys: Keys) {
        self.gateways.tried().await;
        let mut memory = Memory { openings: None, resolver: Resolver::default(), owners: BTreeMap::new(), keys };
        let mut retry = FIRST_RETRY;
        loop {
            let wait = match self.once(&mut memory).await {
                Ok(wait) => {
                    retry = FIRST_RETRY;
                    wait
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "this node is not as it should be, trying again");
                    self.health.failing(error);
                    let wait = retry;
                    retry = (retry * 2).min(PERIOD);
                    wait
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.changed.notified() => tokio::time::sleep(TOGETHER).await,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Looks once, and says after which time to look again.
    async fn once(&mut self, memory: &mut Memory) -> anyhow::Result<Duration> {
        let (this, now) = (&self.options.node, Timestamp::now());
        let mut snapshot = self.snapshot(&memory.owners);
        let not_before = snapshot.settings.gateways.keys_not_before.as_ref().map(|moment| moment.0);
        let renewed = memory.keys.renewed(not_before, now);
        if let Some(renewed) = renewed {
            key::save(&self.options.key_directory, this, &renewed)?;
            tracing::info!(key = %renewed.newest.public(), "the key of this node is renewed");
            memory.keys = renewed;
        }
        if decide::needs_openings(&snapshot, this) && snapshot.settings.enabled {
            let around = Around {
                nodes: snapshot.nodes.keys().cloned().collect(),
                remote: snapshot.peers.values().flat_map(|peer| peer.imported.values().copied()).collect(),
            };
            let watches =
                memory.openings.get_or_insert_with(|| OpeningWatches::start(&self.client, around.clone(), &self.changed));
            // They take a moment, and rights that are missing must not hold up the rest of the loop for ever.
            let _ = tokio::time::timeout(Duration::from_secs(5), watches.complete()).await;
            snapshot.openings = watches.openings(around);
        } else {
            memory.openings = None;
        }
        let list = self.watched.guests.get(&Key::new(&self.options.namespace, TUNNEL_GUESTS));
        let list = list.filter(|_| snapshot.takes_guests(this));
        snapshot.guests = self.guests.keep(list.as_deref(), &self.client, &self.options.namespace);
        if snapshot.is_gateway(this) {
            snapshot.resolved = memory.resolver.look_up(decide::names(&snapshot.peers)).await;
        }
        let work = decide::decide(&snapshot, this, &memory.keys.all());
        let made = self.agent.make(&work, &memory.keys, now).await;
        if snapshot.is_gateway(this) {
            let is_made = made.as_ref().map_or_else(AgentError::is_partial, |_| true);
            self.gateways.works(decide::works(&snapshot, &work, is_made, self.agent.tunnel.state().running));
        }
        if made.as_ref().is_err_and(|error| !error.is_partial()) {
            // It may have broken off between a change and what follows from it.
            self.gateways.go_on_anew();
        }
        let steps = made?;
        metrics::steps(steps);
        if steps > 0 {
            tracing::info!(steps, gateways = snapshot.gateways.len(), peers = snapshot.peers.len(), "this node was changed");
        }
        let held = match work {
            Work::Wait(what) => {
                self.health.good(format!("waiting: {what}"));
                return Ok(WAITING);
            }
            Work::Clear => {
                self.health.good("the network is switched off, and nothing of it is on this node".to_owned());
                None
            }
            Work::Hold(wanted) => {
                // Only now: who is told of a key finds it in use.
                self.gateways.has(&memory.keys);
                for (peer, reason) in &wanted.left_out {
                    tracing::warn!(%peer, reason, "nothing is held for a peer");
                }
                for (node, reason) in &wanted.doubtful {
                    tracing::warn!(node, reason, "an address of a node is left out; if it is right, set network.reservedCIDRs");
                }
                let but = self.relays.problem().map(|problem| format!(", but {problem}")).unwrap_or_default();
                self.health.good(format!("this node is as it should be{but}"));
                if wanted.tunnel.is_some() && self.gateways.was_away() {
                    self.agent.node.forget(&wanted.plan).await;
                }
                memory.owners = wanted.tunnel.as_ref().map(|end| end.owners.clone()).unwrap_or_default();
                wanted.tunnel.is_some().then(|| Arc::new(*wanted))
            }
        };
        self.ends.send_if_modified(|before| {
            let differs = *before != held;
            *before = held;
            differs
        });
        Ok(memory.keys.changes_after(now).map_or(PERIOD, |left| left.min(PERIOD)))
    }

    fn snapshot(&self, owners: &BTreeMap<PublicKey, ClusterId>) -> Snapshot {
        let config = self.watched.config.get(&Key::new("", CLUSTER_CONFIG));
        let nodes = self.watched.nodes.all().into_iter().map(|(key, node)| (key.name, (*node).clone())).collect();
        let peers = self.watched.peers.all().into_iter();
        Snapshot {
            settings: config.as_ref().map(|config| config.settings.clone()).unwrap_or_default(),
            // Without a configuration nothing is known, and what there is, stays.
            ranges: config.and_then(|config| config.ranges.clone()),
            nodes,
            peers: peers.map(|(_, peer)| (peer.spec.cluster_id.clone(), peer.spec.clone())).collect(),
            gateways: self.gateways.in_use(),
            openings: None,
            resolved: BTreeMap::new(),
            keys: owners.clone(),
            guests: BTreeMap::new(),
            speaking: decide::speaking(&self.agent.tunnel.state().remotes),
            relays: self.relays.connected(),
        }
    }
}
