//! Takes part in the choice of gateways: holds one of the Leases, and follows them all.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
use liqo_api::{CLUSTER_CONFIG, Unheard, annotations, gateway_lease, labels};
use liqo_datapath::tunnel::PublicKey;
use liqo_kit::Key;
use liqo_network::{
    plan::MOST_GATEWAYS,
    spread::{self, Buckets, gateway_number},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    Options, Watched,
    decide::{
        gateways::{AllInUse, Fitness, Held, LEASE_DURATION, Move, ONE_ROUND, RENEW_PERIOD, Sightings},
        is_one_in_use,
        siblings::Other,
    },
    key::Keys,
    relays::Relays,
    view::{self, LeaseView, lease_number},
};

/// How long a request for a Lease may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The Leases of gateways, and our part in them.
pub struct Gateways {
    api: Api<Lease>,
    node: String,
    state: Mutex<State>,
    changed: Arc<Notify>,
    /// The Lease is to be written now.
    hurry: Notify,
    relays: Arc<Relays>,
    /// Whether others carried what this gateway is to carry, since it last did.
    was_away: AtomicBool,
    /// Whether it was tried once to become a gateway, so that it is known whether this node is one.
    tried: watch::Sender<bool>,
}

struct State {
    sightings: Sightings,
    in_use: AllInUse,
    fitness: Fitness,
    /// Whom this node does not hear any more.
    unheard: Unheard,
    keys: Keys,
}

impl Gateways {
    /// Nothing is known of the Leases yet.
    pub(crate) fn new(client: Client, options: &Options, keys: Keys, relays: Arc<Relays>, changed: Arc<Notify>) -> Self {
        let state = State {
            sightings: Sightings::default(),
            in_use: AllInUse::new(),
            fitness: Fitness::default(),
            unheard: Unheard::default(),
            keys,
        };
        Self {
            api: Api::namespaced(client, &options.namespace),
            node: options.node.clone(),
            state: Mutex::new(state),
            changed,
            hurry: Notify::new(),
            relays,
            was_away: AtomicBool::new(false),
            tried: watch::channel(false).0,
        }
    }

    /// The gateways in use.
    pub fn in_use(&self) -> AllInUse {
        let mut state = self.state();
        let in_use = state.sightings.in_use(&self.node, &state.in_use, Instant::now());
        state.in_use.clone_from(&in_use);
        in_use
    }

    /// Whether this node, which is a gateway, carries packets.
    pub(crate) fn works(&self, works: bool) {
        self.state().fitness.works(works, Instant::now());
    }

    /// What the kernel remembers of connections is not to be relied on.
    pub(crate) fn go_on_anew(&self) {
        self.was_away.store(true, Ordering::Relaxed);
    }

    /// Whether what the kernel remembers of connections may be out of date; asked once, it is not so any more.
    pub(crate) fn was_away(&self) -> bool {
        self.was_away.swap(false, Ordering::Relaxed)
    }

    /// Waits until it was tried to become a gateway.
    pub async fn tried(&self) {
        // The sender lives as long as this.
        let _ = self.tried.subscribe().wait_for(|tried| *tried).await;
    }

    /// A Lease changed, or is gone.
    pub(crate) fn saw(&self, name: &str, lease: Option<&LeaseView>) {
        let Some(number) = lease_number(name) else { return };
        let mut state = self.state();
        let now = Instant::now();
        match lease {
            // What we wrote ourselves was seen then.
            Some(lease) if lease.version.is_some() && state.sightings.version(number) == lease.version.as_deref() => return,
            Some(lease) => {
                let LeaseView { holder, key, first_key, version, unheard } = lease.clone();
                let [key, first_key] = [key, first_key].map(|key| key.and_then(|key| key.parse().ok()));
                state.sightings.saw(number, Held { holder, key, first_key, version, unheard }, now);
            }
            None => state.sightings.gone(number),
        }
        if state.sightings.is_own_unheard(&self.node, now) {
            self.hurry.notify_one();
        }
        drop(state);
        self.tell_if_another();
    }

    /// The other nodes that hold Leases, if this one holds one.
    pub(crate) fn others(&self) -> Vec<Other> {
        self.state().sightings.others(&self.node)
    }

    /// The key that peers know this node by.
    pub(crate) fn key(&self) -> PublicKey {
        self.state().keys.newest.public()
    }

    /// Says in the Lease by which keys peers know this node.
    pub(crate) fn has(&self, keys: &Keys) {
        let mut state = self.state();
        if state.keys != *keys {
            state.keys.clone_from(keys);
            self.hurry.notify_one();
        }
    }

    /// Says in the Lease whom this node does not hear any more.
    pub(crate) fn do_not_hear(&self, unheard: Unheard) {
        self.state().unheard = unheard;
        self.hurry.notify_one();
    }

    /// Takes part until `stop`. What is held then, stays: a process that is back before the Lease runs out goes on as the gateway, and
    /// connections see a pause. A change of gateways would cost them more.
    pub(crate) async fn keep(self: Arc<Self>, watched: Watched, stop: CancellationToken) {
        loop {
            let (may, replicas, move_up) = self.fitness(&watched);
            // After a Lease was taken, a former one is given up at once.
            for _ in 0..3 {
                let next = self.state().sightings.next(&self.node, may, replicas, move_up, Instant::now());
                match self.make(next).await {
                    Ok(()) if matches!(next, Move::Take(_) | Move::GiveUp(_)) => {}
                    Ok(()) => break,
                    Err(error) => {
                        tracing::warn!(%error, ?next, "the Lease of a gateway cannot be written, trying again");
                        // Whoever is silent may be heard again when we hear at all.
                        self.state().sightings.interrupted(Instant::now());
                        break;
                    }
                }
            }
            self.tried.send_replace(true);
            self.tell_if_another();
            // A gateway that is silent is replaced as soon as its Lease runs out.
            let silence = self.state().sightings.next_silence(Instant::now()).unwrap_or(RENEW_PERIOD);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.hurry.notified() => {}
                () = tokio::time::sleep(RENEW_PERIOD.min(silence)) => {}
            }
        }
    }

    /// Whether this node fits to be a gateway, how many there are to be, and whether the first alone is in use.
    fn fitness(&self, watched: &Watched) -> (bool, u8, bool) {
        let Some(config) = watched.config.get(&Key::new("", CLUSTER_CONFIG)) else { return (false, 0, false) };
        let Some(node) = watched.nodes.get(&Key::new("", &self.node)) else { return (false, 0, false) };
        let fits = node.is_selected(&config.settings.gateways.node_selector);
        let mut state = self.state();
        let now = Instant::now();
        let is_another_alive = state.sightings.is_another_alive(&self.node, now);
        let can = state.fitness.may(is_another_alive, now);
        let set = &config.settings.gateways;
        (config.settings.enabled && fits && can, set.replicas.min(MOST_GATEWAYS), is_one_in_use(set))
    }

    async fn make(&self, next: Move) -> Result<(), kube::Error> {
        let outcome = match next {
            Move::Nothing => return Ok(()),
            Move::Renew(number) | Move::Take(number) => self.write(number, true).await,
            Move::GiveUp(number) => self.write(number, false).await,
        };
        match outcome {
            // Somebody else was faster: the watch tells who.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                if !matches!(next, Move::Renew(_)) {
                    tracing::info!(node = self.node, ?next, "the Lease of a gateway changed hands");
                }
                Ok(())
            }
        }
    }

    /// Writes a Lease as it was seen last; a conflict says that it is not any more.
    async fn write(&self, number: u8, hold: bool) -> Result<(), kube::Error> {
        let name = gateway_lease(number);
        let request = async {
            let Some(mut lease) = self.api.get_opt(&name).await? else {
                let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
                let mut lease = Lease { metadata, spec: None };
                self.fill(&mut lease, hold);
                return self.api.create(&PostParams::default(), &lease).await;
            };
            let known = self.state().sightings.version(number).map(str::to_owned);
            if known.is_some() && known != lease.resource_version() {
                let Some(seen) = view::lease(lease.clone()) else { return Ok(lease) };
                let by_another = seen.holder.as_ref().is_some_and(|holder| !holder.is_empty() && *holder != self.node);
                self.saw(&name, Some(&seen));
                if by_another {
                    return Ok(lease);
                }
            }
            // Asked before: once it is renewed nobody can tell.
            let was_unheard = self.state().sightings.is_own_unheard(&self.node, Instant::now());
            let was_away = hold && (was_unheard || (!self.is_renewed_in_time(&lease) && self.is_carried_by_others().await?));
            self.fill(&mut lease, hold);
            let written = self.api.replace(&name, &PostParams::default(), &lease).await?;
            if was_away {
                tracing::info!(node = self.node, "others carried what this gateway carries");
                self.go_on_anew();
                self.changed.notify_one();
            }
            Ok(written)
        };
        let late = |_| kube::Error::Service("the API server did not answer in time".into());
        let written = tokio::time::timeout(PATIENCE, request).await.map_err(late)??;
        self.saw(&name, view::lease(written).as_ref());
        Ok(())
    }

    /// Whether other gateways say that they carry buckets which are this one's when it is among them.
    async fn is_carried_by_others(&self) -> Result<bool, kube::Error> {
        let all = self.api.list(&ListParams::default().labels(&format!("{}=true", labels::GATEWAY))).await?.items;
        let (mut numbers, mut carried) = (vec![self.number()], 0);
        for lease in all {
            let said = |name| lease.annotations().get(name);
            let first = said(annotations::GATEWAY_FIRST_KEY).or_else(|| said(annotations::GATEWAY_KEY));
            let Some(key) = first.and_then(|key| key.parse::<PublicKey>().ok()) else { continue };
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
            if !holder.is_empty() && holder != self.node {
                numbers.push(gateway_number(&key.0));
                let buckets = said(annotations::GATEWAY_BUCKETS).and_then(|text| Buckets::from_str_radix(text, 16).ok());
                carried |= buckets.unwrap_or_default();
            }
        }
        Ok(spread::carried(numbers[0], &numbers) & carried != 0)
    }

    /// What this gateway carries, now that it is one.
    fn carried(&self) -> Buckets {
        let in_use = self.in_use();
        let others = in_use.values().filter(|one| one.node != self.node).map(|one| gateway_number(&one.first_key.0));
        let own = self.number();
        spread::carried(own, &others.chain([own]).collect::<Vec<_>>())
    }

    fn number(&self) -> u64 {
        gateway_number(&self.state().keys.first.0)
    }

    /// Whether this node holds the Lease, and wrote it so lately that nobody thinks it gone. It wrote the time by its own clock.
    fn is_renewed_in_time(&self, lease: &Lease) -> bool {
        let Some(spec) = &lease.spec else { return false };
        let is_own = spec.holder_identity.as_deref() == Some(&self.node);
        let since = |renewed: &MicroTime| Duration::try_from(Timestamp::now().duration_since(renewed.0)).unwrap_or_default();
        is_own && spec.renew_time.as_ref().is_some_and(|renewed| since(renewed) < ONE_ROUND)
    }

    fn fill(&self, lease: &mut Lease, hold: bool) {
        let old = lease.spec.take().unwrap_or_default();
        let is_own = old.holder_identity.as_deref() == Some(&self.node);
        let now = MicroTime(Timestamp::now());
        lease.metadata.managed_fields = None;
        lease.labels_mut().insert(labels::GATEWAY.to_owned(), "true".to_owned());
        let (keys, unheard) = {
            let state = self.state();
            (state.keys.clone(), state.unheard.to_string())
        };
        let newest = keys.newest.public();
        let said = [
            (annotations::GATEWAY_KEY, Some(newest.to_string())),
            (annotations::GATEWAY_FIRST_KEY, Some(keys.first).filter(|first| *first != newest).map(|first| first.to_string())),
            (annotations::GATEWAY_FORMER_KEY, keys.told(now.0).map(|former| former.to_string())),
            (annotations::GATEWAY_TLS, self.relays.port().map(|port| port.to_string())),
            (annotations::GATEWAY_BUCKETS, Some(format!("{:04x}", self.carried()))),
            (annotations::GATEWAY_UNHEARD, Some(unheard).filter(|text| !text.is_empty())),
        ];
        for (name, value) in said {
            match value.filter(|_| hold) {
                Some(value) => lease.annotations_mut().insert(name.to_owned(), value),
                None => lease.annotations_mut().remove(name),
            };
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: hold.then(|| self.node.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if is_own { old.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(old.lease_transitions.unwrap_or(0) + i32::from(hold && !is_own)),
            ..LeaseSpec::default()
        });
    }

    /// Tells when another gateway is in use than before.
    fn tell_if_another(&self) {
        let before = self.state().in_use.clone();
        let now = self.in_use();
        if now != before {
            let names = |all: &AllInUse| all.values().map(|one| one.node.clone()).collect::<Vec<_>>().join(", ");
            tracing::info!(before = names(&before), now = names(&now), "other gateways are in use");
            self.changed.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
