//! Interconnect: two clusters come to terms about their networks.
//!
//! Each cluster finds out its own ranges and its gateways, and tells each peer what it may reach, where it sees what the peer
//! shows, and where its tunnel ends. What follows from both halves becomes a `TunnelEndpoint`, which the nodes of this cluster make
//! true (the fabric) and addresses of pods are translated by (offloading).
//!
//! ```text
//!   consumer                                                     provider
//!
//!   ranges, Leases of gateways                                   ranges, Leases of gateways
//!        |                                                             |
//!     decide --------> spec.announcement of NetworkConfig ---------> decide
//!        |  <--------- status.announcement, in the tenant namespace -- |
//!        v                                                             v
//!   TunnelEndpoint, conditions of the ForeignCluster             the same
//! ```
//!
//! Nothing is agreed upon by rounds: each side writes down its own half, and looks at the other's. A peer that is silent changes
//! nothing; one that takes its half back, or ends the peering, loses the `TunnelEndpoint`. The decisions are in [`mod@decide`]; places
//! that were given to a peer's prefixes are remembered by its `TunnelEndpoint`, and are the same after a restart.

pub mod decide;

mod peers;
mod surroundings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node},
};
use kube::{Api, api::DeleteParams, runtime::watcher::Config};
use liqo_api::{
    ClusterId, ForeignCluster, NamespaceOffloading, NetworkAnnouncement, NetworkConfig, PeeringPolicy, TunnelEndpoint,
    TunnelEndpointSpec, Wish, labels,
};
use liqo_kit::{
    Cache, Context, Key, Next, Queue,
    cache::whole,
    conditions::{self, Wanted, namespaced},
    foreign_clusters,
    peers::PeerError,
    policies::{self, PolicyPeer, without_status},
    put::{marked, put},
};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::{
        exchange::{Outcome, Peer, Picture, decide},
        gateways::{self, Held, Observed},
        links,
        ranges::NodeAddresses,
    },
    peers::{Announcements, Tenant},
    surroundings::Found,
};

/// Field manager of all that this slice writes.
const FIELD_MANAGER: &str = "liqo-interconnect";

/// Changes come in several pieces; looking at them waits until they are likely complete.
const SETTLE: Duration = Duration::from_millis(50);

/// A step that failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster could not be asked for its ranges.
    #[error("finding out the ranges of this cluster: {what}: {source}")]
    Look {
        /// What was asked.
        what: &'static str,
        /// Why.
        source: kube::Error,
    },
    /// The ranges could not be written down.
    #[error("writing the ranges of this cluster into the status of ClusterConfig liqo: {0}")]
    WriteRanges(#[source] kube::Error),
    /// A provider could not be told.
    #[error("telling provider {provider} about our network: {source}")]
    TellProvider {
        /// The provider.
        provider: ClusterId,
        /// Why.
        source: PeerError,
    },
    /// A consumer could not be told.
    #[error("telling consumer {consumer} about our network: {source}")]
    TellConsumer {
        /// The consumer.
        consumer: ClusterId,
        /// Why.
        source: kube::Error,
    },
    /// What the nodes go by could not be written.
    #[error("writing the tunnel endpoint of {peer}: {source}")]
    WriteEndpoint {
        /// The peer.
        peer: ClusterId,
        /// Why.
        source: kube::Error,
    },
    /// The conditions of a foreign cluster could not be written.
    #[error("writing conditions of the foreign cluster with ID {peer}: {source}")]
    WriteLinks {
        /// The peer.
        peer: ClusterId,
        /// Why.
        source: kube::Error,
    },
}

/// Interconnects this cluster with its peers until `context.stop`. To be run by the leader only.
pub async fn run(context: Context) -> Result<(), Error> {
    let stop = context.stop.child_token();
    let _guard = stop.clone().drop_guard();
    let interconnect = Interconnect::start(context, &stop);
    interconnect.run(stop).await;
    Ok(())
}

struct Interconnect {
    context: Context,
    foreign_clusters: Cache<ForeignCluster>,
    policies: Cache<PeeringPolicy>,
    nodes: Cache<NodeAddresses>,
    leases: Cache<Held>,
    tenants: Cache<Tenant>,
    /// Which clusters have twins of each offloaded namespace.
    offloadings: Cache<BTreeSet<ClusterId>>,
    endpoints: Cache<TunnelEndpoint>,
    announcements: Arc<Announcements>,
    observed: Arc<Mutex<Observed>>,
    found: Mutex<Option<Found>>,
    queue: Queue<()>,
}

impl Interconnect {
    fn start(context: Context, stop: &CancellationToken) -> Arc<Self> {
        let queue = Queue::new();
        let wake = || {
            let queue = queue.clone();
            move || queue.add_after((), SETTLE)
        };
        let client = || context.client.clone();
        let all = Config::default;
        let real_nodes = all().labels(&format!("{}!={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE));
        let (of_clusters, of_policies, of_nodes, of_leases) = (wake(), wake(), wake(), wake());
        let (of_tenants, of_endpoints, of_offloadings) = (wake(), wake(), wake());
        let tenants = all().labels(&format!("{}={}", labels::NAMESPACE_KIND, peers::TENANT));
        let gateways = all().labels(&format!("{}=true", labels::GATEWAY));
        // The status of policies is none of ours.
        let rules =
            |policy: Option<&Arc<PeeringPolicy>>| policy.map(|policy| PeeringPolicy::clone(policy)).and_then(without_status);
        let observed: Arc<Mutex<Observed>> = Arc::default();
        let seen = observed.clone();
        Arc::new(Self {
            foreign_clusters: Cache::watch(Api::all(client()), all(), stop.clone(), whole, move |_, _, _| of_clusters()),
            policies: Cache::watch(Api::all(client()), all(), stop.clone(), whole, move |_, old, new| {
                if rules(old) != rules(new) {
                    of_policies();
                }
            }),
            nodes: Cache::watch(Api::<Node>::all(client()), real_nodes, stop.clone(), NodeAddresses::of, move |_, _, _| {
                of_nodes();
            }),
            leases: Cache::watch(
                Api::<Lease>::namespaced(client(), &context.namespace),
                gateways,
                stop.clone(),
                Held::of,
                move |key, old, new| {
                    let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
                    if lock(&seen).see(&key.name, old, new, Instant::now()) {
                        of_leases();
                    }
                },
            ),
            tenants: Cache::watch(Api::<Namespace>::all(client()), tenants, stop.clone(), Tenant::of, move |_, _, _| {
                of_tenants();
            }),
            offloadings: Cache::watch(
                Api::<NamespaceOffloading>::all(client()),
                all(),
                stop.clone(),
                |offloading| Some(offloading.status?.remote_namespaces.into_iter().map(|remote| remote.cluster_id).collect()),
                move |_, old, new| {
                    if old != new {
                        of_offloadings();
                    }
                },
            ),
            endpoints: Cache::watch(
                Api::namespaced(client(), &context.namespace),
                all(),
                stop.clone(),
                whole,
                // How the way to a peer is matters to nobody here.
                move |_, old: Option<&Arc<TunnelEndpoint>>, new: Option<&Arc<TunnelEndpoint>>| {
                    let matters = |one: &Arc<TunnelEndpoint>| {
                        (one.metadata.deletion_timestamp.clone(), one.spec.clone(), one.connected().cloned())
                    };
                    if old.map(matters) != new.map(matters) {
                        of_endpoints();
                    }
                },
            ),
            announcements: Announcements::start(&context, stop, queue.clone()),
            observed,
            found: Mutex::default(),
            context,
            queue,
        })
    }

    async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let synced = [
            self.foreign_clusters.synced().await,
            self.policies.synced().await,
            self.nodes.synced().await,
            self.leases.synced().await,
            self.tenants.synced().await,
            self.offloadings.synced().await,
            self.endpoints.synced().await,
            self.announcements.synced().await,
        ];
        if synced.contains(&false) {
            return;
        }
        self.queue.add(());
        let interconnect = self.clone();
        let work = self.queue.run("interconnect", 1, stop.clone(), move |()| {
            let interconnect = interconnect.clone();
            async move { interconnect.reconcile().await }
        });
        let mut config = self.context.config.clone();
        let follow_config = async {
            while config.changed().await.is_ok() {
                self.queue.add(());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            () = self.announcements.follow(&self.context.peers, stop) => {}
            () = follow_config => {}
        }
    }

    async fn reconcile(&self) -> Result<Next, Error> {
        let config = self.context.config();
        let found = self.ranges().await?;
        let wanted = self.wanted_peers();
        let now = Instant::now();
        let leases: BTreeMap<String, Arc<Held>> = self.leases.all().into_iter().map(|(key, held)| (key.name, held)).collect();
        let nodes: BTreeMap<String, Arc<NodeAddresses>> =
            self.nodes.all().into_iter().map(|(key, node)| (key.name, node)).collect();
        let (gateways, again) = gateways::ours(&config.spec.network.gateways, &leases, &lock(&self.observed), &nodes, now);
        let has_gateway = !gateways.is_empty();
        let standing: BTreeMap<ClusterId, TunnelEndpointSpec> =
            self.standing().into_iter().map(|(id, endpoint)| (id, endpoint.spec.clone())).collect();
        let outcomes = found.as_ref().ok().map(|ranges| {
            decide(&Picture {
                own: self.context.cluster_id.clone(),
                settings: config.spec.network.clone(),
                ranges: ranges.clone(),
                nodes: nodes.values().map(|node| NodeAddresses::clone(node)).collect(),
                gateways,
                peers: wanted.clone(),
                standing: standing.clone(),
            })
        });
        let mut failures = Vec::new();
        // While our ranges are not known, nothing new is agreed upon; what is not wanted any more goes all the same.
        let kept = |id: &ClusterId| match &outcomes {
            Some(outcomes) => outcomes.get(id).and_then(|outcome| outcome.endpoint.clone()),
            None => standing.get(id).filter(|_| wanted.contains_key(id)).cloned(),
        };
        let endpoints = wanted.keys().filter_map(|id| Some((id.clone(), kept(id)?))).collect();
        failures.extend(self.write_endpoints(&endpoints).await);
        failures.extend(self.write_links(outcomes.as_ref(), found.as_ref().err(), has_gateway).await);
        let told = outcomes.unwrap_or_default();
        let unknown = if found.is_ok() { Vec::new() } else { wanted.keys().cloned().collect() };
        failures.extend(self.announcements.tell(&self.context, &told, &unknown).await);
        // What failed for one peer is tried again, but nobody else waits for it.
        let next = if failures.is_empty() { surroundings::LATER } else { surroundings::SOON };
        for error in failures {
            tracing::warn!(error = liqo_kit::queue::error_chain(&error), "will be tried again");
        }
        let next = if found.is_ok() { next } else { surroundings::SOON };
        Ok(Next::After(again.map_or(next, |again| again.min(next))))
    }

    /// Our ranges; looked up again when they are old.
    async fn ranges(&self) -> Result<surroundings::Ranges, Error> {
        let known = lock(&self.found).clone();
        let mut nodes = self.nodes.all();
        nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
        let nodes = nodes.into_iter().map(|(_, node)| NodeAddresses::clone(&node)).collect();
        let found = surroundings::find(&self.context, nodes, known).await?;
        let ranges = found.ranges.clone();
        *lock(&self.found) = Some(found);
        Ok(ranges)
    }

    /// The peers that there is to be a network with: there is a peering in either direction, and nobody here is against it.
    fn wanted_peers(&self) -> BTreeMap<ClusterId, Peer> {
        if !self.context.config().spec.network.enabled {
            return BTreeMap::new();
        }
        let wanted = foreign_clusters::by_peer(&self.foreign_clusters).into_iter().filter_map(|(id, cluster)| {
            // While a peering is being ended its pods still want their network.
            let borrows = cluster.wants_outgoing() || self.context.peers.get(&id).is_some();
            let peers = borrows || self.tenants.all().iter().any(|(_, tenant)| tenant.consumer == id);
            let held = policies::held(&self.policies, &PolicyPeer::new(&id, Some(&cluster)));
            let policy = held.map(|policy| policy.spec.network.clone());
            let is_wanted = match cluster.spec.network {
                Wish::Yes => true,
                Wish::No => false,
                Wish::Auto => policy.as_ref().is_some_and(|policy| policy.enabled),
            };
            (peers && is_wanted).then(|| {
                // What a consumer says stands here: when there is nothing, it says nothing. What a provider says may only be out of sight.
                let nothing = || (!borrows).then(|| Ok(NetworkAnnouncement::default()));
                let said = self.announcements.of(&self.context.peers, &id).or_else(nothing);
                let runs_our_pods = self.offloadings.all().iter().any(|(_, clusters)| clusters.contains(&id));
                let peer = Peer { name: cluster.display_name(), policy: policy.unwrap_or_default(), runs_our_pods, said };
                (id, peer)
            })
        });
        wanted.collect()
    }

    fn standing(&self) -> BTreeMap<ClusterId, Arc<TunnelEndpoint>> {
        let all = self.endpoints.all().into_iter();
        all.map(|(_, endpoint)| (endpoint.spec.cluster_id.clone(), endpoint)).collect()
    }

    async fn write_endpoints(&self, wanted: &BTreeMap<ClusterId, TunnelEndpointSpec>) -> Vec<Error> {
        let api: Api<TunnelEndpoint> = namespaced(&self.context.client, &self.context.namespace);
        let standing = self.standing();
        let mut failures = Vec::new();
        for (id, spec) in wanted {
            let before = standing.get(id);
            if before.is_some_and(|before| before.spec == *spec) {
                continue;
            }
            tracing::info!(peer = %id, imported = ?spec.imported, exported = ?spec.exported, "network towards a peer");
            let written = put(&api, FIELD_MANAGER, &object(id, spec), before.is_some()).await;
            failures.extend(written.err().map(|source| Error::WriteEndpoint { peer: id.clone(), source }));
        }
        for (id, endpoint) in standing.iter().filter(|(id, _)| !wanted.contains_key(*id)) {
            tracing::info!(peer = %id, "no network towards a peer any more");
            let name = endpoint.metadata.name.clone().unwrap_or_default();
            match api.delete(&name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                deleted => failures.extend(deleted.err().map(|source| Error::WriteEndpoint { peer: id.clone(), source })),
            }
        }
        failures
    }

    async fn write_links(
        &self,
        outcomes: Option<&BTreeMap<ClusterId, Outcome>>,
        ranges_unknown: Option<&String>,
        has_gateway: bool,
    ) -> Vec<Error> {
        let standing = self.standing();
        let mut failures = Vec::new();
        for (id, cluster) in foreign_clusters::by_peer(&self.foreign_clusters) {
            let outcome = outcomes.and_then(|outcomes| outcomes.get(&id));
            let wanted: Vec<Wanted> = match (outcome, ranges_unknown) {
                (Some(outcome), _) => links::wanted(outcome, has_gateway, standing.get(&id).map(AsRef::as_ref)),
                (None, Some(why)) if self.context.config().spec.network.enabled => links::without_ranges(why),
                _ => Vec::new(),
            };
            let written = conditions::apply_links(&self.context.client, &cluster, FIELD_MANAGER, &wanted).await;
            failures.extend(written.err().map(|source| Error::WriteLinks { peer: id.clone(), source }));
        }
        failures
    }
}

fn object(id: &ClusterId, spec: &TunnelEndpointSpec) -> TunnelEndpoint {
    marked(TunnelEndpoint::new(id.as_str(), spec.clone()), labels::REMOTE_CLUSTER_ID, id)
}

/// The one network configuration of a tenant namespace.
fn is_network_config(key: &Key) -> bool {
    key.name == liqo_api::NETWORK_CONFIG
}

/// What can be read of a half that a peer wrote, or why it cannot.
type Said = Result<NetworkConfig, String>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
