//! Takes part in the election of gateways: holds one of the Leases if this node fits, and follows
//! them all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, ObjectMeta, PostParams},
};
use liqo_api::{CLUSTER_CONFIG, Key, SuspectedGateways, annotations, gateway_lease, labels};
use liqo_datapath::tunnel::PublicKey;
use liqo_network_model::{
    gateways::{
        GatewayLease, LEASE_DURATION, LeaseObservations, MAX_GATEWAYS, RENEW_PERIOD, RENEWAL_ROUND,
        lease_number, time_between,
    },
    spread::{self, Buckets, gateway_number},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{
        election::{self, ActiveGateways, ElectionCandidate, ElectionMove, GatewayFitness},
        has_one_address,
        probe_results::OtherGateway,
    },
    key::NodeGatewayKeys,
    options::AgentOptions,
    relays::Relays,
    watches::NodeWatches,
};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The state in which this node leaves a Lease that it writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeaseHolding {
    Held,
    GivenUp,
}

/// The Leases of gateways, and this node's part in the election.
pub struct GatewayLeases {
    api: Api<Lease>,
    node: String,
    state: Mutex<ElectionState>,
    changed: Arc<Notify>,
    /// Our Lease has to be written now.
    renew_now: Notify,
    relays: Arc<Relays>,
    /// Whether other gateways carried this gateway's buckets since it last did.
    was_away: AtomicBool,
    /// Whether this node tried once to become a gateway. Only then does it know whether it is one.
    tried: watch::Sender<bool>,
}

struct ElectionState {
    observations: LeaseObservations,
    in_use: ActiveGateways,
    fitness: GatewayFitness,
    /// The gateways that this node suspects.
    suspects: SuspectedGateways,
    keys: NodeGatewayKeys,
}

impl GatewayLeases {
    pub fn new(
        client: Client,
        options: &AgentOptions,
        keys: NodeGatewayKeys,
        relays: Arc<Relays>,
        changed: Arc<Notify>,
    ) -> Self {
        let state = ElectionState {
            observations: LeaseObservations::default(),
            in_use: ActiveGateways::new(),
            fitness: GatewayFitness::default(),
            suspects: SuspectedGateways::default(),
            keys,
        };
        Self {
            api: Api::namespaced(client, &options.namespace),
            node: options.node.clone(),
            state: Mutex::new(state),
            changed,
            renew_now: Notify::new(),
            relays,
            was_away: AtomicBool::new(false),
            tried: watch::channel(false).0,
        }
    }

    pub fn in_use(&self) -> ActiveGateways {
        let mut state = self.state.lock();
        let in_use = election::in_use(
            &state.observations,
            &self.node,
            &state.in_use,
            Instant::now(),
        );
        state.in_use.clone_from(&in_use);
        in_use
    }

    /// Records whether this node, which is a gateway, carries packets.
    pub fn record_fitness(&self, works: bool) {
        self.state
            .lock()
            .fitness
            .record_health(works, Instant::now());
    }

    /// Records that the kernel's connection tracking may be out of date.
    pub fn record_away(&self) {
        self.was_away.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel's connection tracking may be out of date. Resets it.
    pub fn take_was_away(&self) -> bool {
        self.was_away.swap(false, Ordering::Relaxed)
    }

    /// Waits until this node tried to become a gateway.
    pub async fn wait_until_tried(&self) {
        // The sender lives as long as this.
        let _ = self.tried.subscribe().wait_for(|tried| *tried).await;
    }

    /// Records that a Lease changed, or is gone.
    pub fn observe_lease(&self, name: &str, lease: Option<&GatewayLease>) {
        let Some(number) = lease_number(name) else {
            return;
        };
        let mut state = self.state.lock();
        let now = Instant::now();
        match lease {
            // We recorded our own write at once.
            Some(lease)
                if lease.version.is_some()
                    && observed_version(&state.observations, number) == lease.version =>
            {
                return;
            }
            Some(lease) => state.observations.observe(lease.clone(), now),
            None => _ = state.observations.forget(number),
        }
        if election::is_suspected(&state.observations, &self.node, now) {
            self.renew_now.notify_one();
        }
        drop(state);
        self.notify_if_changed();
    }

    /// The other nodes that hold Leases, if this one holds one.
    pub fn other_gateways(&self) -> Vec<OtherGateway> {
        election::other_gateways(&self.state.lock().observations, &self.node)
    }

    /// The key by which peers know this node.
    pub fn key(&self) -> PublicKey {
        self.state.lock().keys.newest.public_key()
    }

    /// Publishes the keys of this node in its Lease.
    pub fn publish_keys(&self, keys: &NodeGatewayKeys) {
        let mut state = self.state.lock();
        if state.keys != *keys {
            state.keys.clone_from(keys);
            self.renew_now.notify_one();
        }
    }

    /// Publishes in the Lease which gateways this node suspects.
    pub fn publish_suspects(&self, suspects: SuspectedGateways) {
        self.state.lock().suspects = suspects;
        self.renew_now.notify_one();
    }

    /// Takes part until `stop`. It does not give the Lease up then: a process that is back before
    /// the Lease expires goes on as the gateway, and connections only see a pause. A change of
    /// gateways would cost them more.
    pub async fn run(self: Arc<Self>, watches: NodeWatches, stop: CancellationToken) {
        loop {
            let candidate = self.candidate(&watches);
            // After this node took a Lease, it gives up a former one at once.
            for _ in 0..3 {
                let next = candidate.next_move(&self.state.lock().observations, Instant::now());
                match self.carry_out(next).await {
                    Ok(()) if matches!(next, ElectionMove::Take(_) | ElectionMove::GiveUp(_)) => {}
                    Ok(()) => break,
                    Err(error) => {
                        tracing::warn!(%error, ?next, "the Lease of a gateway cannot be written, trying again");
                        // Silent gateways may be heard again when the API server answers.
                        self.state
                            .lock()
                            .observations
                            .restart_silence_times(Instant::now());
                        break;
                    }
                }
            }
            self.tried.send_replace(true);
            self.notify_if_changed();
            // A silent gateway is replaced as soon as its Lease expires.
            let expiry = election::next_expiry(&self.state.lock().observations, Instant::now())
                .unwrap_or(RENEW_PERIOD);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.renew_now.notified() => {}
                () = tokio::time::sleep(RENEW_PERIOD.min(expiry)) => {}
            }
        }
    }

    fn candidate(&self, watches: &NodeWatches) -> ElectionCandidate<'_> {
        let unfit = ElectionCandidate {
            node: &self.node,
            is_fit: false,
            replicas: 0,
            moves_up: false,
        };
        let Some(config) = watches.config.get(&Key::new("", CLUSTER_CONFIG)) else {
            return unfit;
        };
        let Some(node) = watches.nodes.get(&Key::new("", &self.node)) else {
            return unfit;
        };
        let settings = &config.settings.gateways;
        let mut state = self.state.lock();
        let now = Instant::now();
        let replicas = settings.replicas.min(MAX_GATEWAYS);
        state.observations.set_replicas(replicas);
        let is_another_alive = election::is_another_alive(&state.observations, &self.node, now);
        let may_serve = state.fitness.may_serve(is_another_alive, now);
        ElectionCandidate {
            is_fit: config.settings.enabled && settings.selects_node(&node.labels) && may_serve,
            replicas,
            moves_up: has_one_address(settings),
            ..unfit
        }
    }

    async fn carry_out(&self, next: ElectionMove) -> Result<(), kube::Error> {
        let outcome = match next {
            ElectionMove::Nothing => return Ok(()),
            ElectionMove::Renew(number) | ElectionMove::Take(number) => {
                self.write_lease(number, LeaseHolding::Held).await
            }
            ElectionMove::GiveUp(number) => self.write_lease(number, LeaseHolding::GivenUp).await,
        };
        match outcome {
            // Another node was faster: the watch says which.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => {
                if !matches!(next, ElectionMove::Renew(_)) {
                    tracing::info!(
                        node = self.node,
                        ?next,
                        "the Lease of a gateway changed hands"
                    );
                }
                Ok(())
            }
        }
    }

    /// Writes a Lease, if it is as it was last observed.
    async fn write_lease(&self, number: u8, holding: LeaseHolding) -> Result<(), kube::Error> {
        let name = gateway_lease(number);
        let request = async {
            let Some(mut lease) = self.api.get_opt(&name).await? else {
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    ..ObjectMeta::default()
                };
                let mut lease = Lease {
                    metadata,
                    spec: None,
                };
                self.fill_lease(&mut lease, holding);
                return self.api.create(&PostParams::default(), &lease).await;
            };
            let known = observed_version(&self.state.lock().observations, number);
            if known.is_some() && known != lease.resource_version() {
                let Some(found) = GatewayLease::parse(&lease) else {
                    return Ok(lease);
                };
                self.observe_lease(&name, Some(&found));
                if found.node.is_some_and(|node| node != self.node) {
                    return Ok(lease);
                }
            }
            // This has to be asked before the renewal, which voids suspicions.
            let was_suspected =
                election::is_suspected(&self.state.lock().observations, &self.node, Instant::now());
            let was_away = holding == LeaseHolding::Held
                && (was_suspected
                    || (!self.is_renewed_in_time(&lease) && self.is_carried_by_others().await?));
            self.fill_lease(&mut lease, holding);
            let written = self
                .api
                .replace(&name, &PostParams::default(), &lease)
                .await?;
            if was_away {
                tracing::info!(
                    node = self.node,
                    "other gateways carried this gateway's flows meanwhile"
                );
                self.record_away();
                self.changed.notify_one();
            }
            Ok(written)
        };
        let written = tokio::time::timeout(REQUEST_TIMEOUT, request)
            .await
            .map_err(|_| kube::Error::Service("the API server did not answer in time".into()))??;
        self.observe_lease(&name, GatewayLease::parse(&written).as_ref());
        Ok(())
    }

    /// Whether other gateways say that they carry buckets that belong to this gateway once it is in
    /// use.
    async fn is_carried_by_others(&self) -> Result<bool, kube::Error> {
        let all = self
            .api
            .list(&ListParams::default().labels(&format!("{}=true", labels::GATEWAY)))
            .await?
            .items;
        let (mut numbers, mut carried) = (vec![self.own_gateway_number()], 0);
        for lease in all.iter().filter_map(GatewayLease::parse) {
            let first_key = lease
                .first_key
                .or(lease.public_key)
                .and_then(|key| key.parse::<PublicKey>().ok());
            if let (Some(key), true) = (first_key, lease.node.is_some_and(|node| node != self.node))
            {
                numbers.push(gateway_number(&key.0));
                carried |= lease.buckets;
            }
        }
        Ok(spread::carried_buckets(numbers[0], &numbers) & carried != 0)
    }

    /// The buckets that this node carries as a gateway.
    fn buckets_carried_here(&self) -> Buckets {
        let in_use = self.in_use();
        let others = in_use
            .values()
            .filter(|one| one.node != self.node)
            .map(|one| gateway_number(&one.first_key.0));
        let own = self.own_gateway_number();
        spread::carried_buckets(own, &others.chain([own]).collect::<Vec<_>>())
    }

    fn own_gateway_number(&self) -> u64 {
        gateway_number(&self.state.lock().keys.first.0)
    }

    /// Whether this node holds the Lease, and renewed it so recently that nobody takes it for lost.
    /// The time is by this node's own clock.
    fn is_renewed_in_time(&self, lease: &Lease) -> bool {
        GatewayLease::parse(lease).is_some_and(|lease| {
            lease.is_held_by(&self.node)
                && lease
                    .renewed_at
                    .is_some_and(|renewed| time_between(renewed, Timestamp::now()) < RENEWAL_ROUND)
        })
    }

    fn fill_lease(&self, lease: &mut Lease, holding: LeaseHolding) {
        let is_held = holding == LeaseHolding::Held;
        let old = lease.spec.take().unwrap_or_default();
        let is_own = old.holder_identity.as_deref() == Some(&self.node);
        let now = MicroTime(Timestamp::now());
        lease.metadata.managed_fields = None;
        lease
            .labels_mut()
            .insert(labels::GATEWAY.to_owned(), "true".to_owned());
        let (keys, suspects) = {
            let state = self.state.lock();
            (state.keys.clone(), state.suspects.to_string())
        };
        let newest = keys.newest.public_key();
        let published = [
            (annotations::GATEWAY_KEY, Some(newest.to_string())),
            (
                annotations::GATEWAY_FIRST_KEY,
                Some(keys.first)
                    .filter(|first| *first != newest)
                    .map(|first| first.to_string()),
            ),
            (
                annotations::GATEWAY_FORMER_KEY,
                keys.announced_former(now.0)
                    .map(|former| former.to_string()),
            ),
            (
                annotations::GATEWAY_TLS,
                self.relays.port().map(|port| port.to_string()),
            ),
            (
                annotations::GATEWAY_BUCKETS,
                Some(format!("{:04x}", self.buckets_carried_here())),
            ),
            (
                annotations::SUSPECTED_GATEWAYS,
                Some(suspects).filter(|text| !text.is_empty()),
            ),
        ];
        for (name, value) in published {
            match value.filter(|_| is_held) {
                Some(value) => lease.annotations_mut().insert(name.to_owned(), value),
                None => lease.annotations_mut().remove(name),
            };
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: is_held.then(|| self.node.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if is_own {
                old.acquire_time
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(
                old.lease_transitions.unwrap_or(0) + i32::from(is_held && !is_own),
            ),
            ..LeaseSpec::default()
        });
    }

    /// Notifies the node controller when other gateways are in use than before.
    fn notify_if_changed(&self) {
        let before = self.state.lock().in_use.clone();
        let now = self.in_use();
        if now != before {
            tracing::info!(
                before = node_names(&before),
                now = node_names(&now),
                "other gateways are in use"
            );
            self.changed.notify_one();
        }
    }
}

fn node_names(gateways: &ActiveGateways) -> String {
    let names: Vec<&str> = gateways.values().map(|one| one.node.as_str()).collect();
    names.join(", ")
}

fn observed_version(observations: &LeaseObservations, number: u8) -> Option<String> {
    observations.lease(number)?.version.clone()
}
