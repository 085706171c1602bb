//! The controller. It watches what decisions depend on, decides for all peers together, because
//! prefixes must not overlap, and writes `TunnelEndpoint`s and conditions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node},
};
use kube::{Api, api::DeleteParams, runtime::watcher::Config};
use liqo_api::{
    ClusterId, ForeignCluster, NamespaceOffloading, NetworkAnnouncement, PeeringIntent,
    PeeringPolicy, TunnelEndpoint, TunnelEndpointSpec,
    conditions::DesiredCondition,
    labels,
    policies::{PolicyPeer, without_status},
};
use liqo_controller_runtime::{
    Cache, Context, Key, Queue, Requeue,
    cache::without_managed_fields,
    conditions::{self, namespaced_api},
    foreign_clusters, policies,
    put::{create_or_replace, with_peer_labels},
    queue::error_chain,
    writes::{RequestError, StepContext as _, delete_if_present},
};
use liqo_network_model::gateways::{GatewayLease, LeaseObservations, lease_number};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    FIELD_MANAGER,
    announcements::{AnnouncementExchange, TenantOrMappedNamespace},
    decide::{
        announced_gateways::{self, observe_lease},
        exchange::{PeerOutcome, decide_outcomes},
        links,
        ranges::NodeNetwork,
        snapshot::{NetworkSnapshot, OffloadedNamespace, WantedPeer},
    },
    pods_between,
    range_discovery::{self, DiscoveredRanges, REFRESH_PERIOD, RETRY_DELAY, RangesResult},
};

/// Several changes often belong together, so a reconcile waits this long after a change.
const SETTLE: Duration = Duration::from_millis(50);
/// A namespace that is offloaded, and the consumer whose pods run in it, if it is a consumer's.
struct OffloadingHere {
    namespace: String,
    consumer: Option<ClusterId>,
    offloaded: Arc<OffloadedNamespace>,
}

/// The controller's name in metrics and logs.
const CONTROLLER: &str = "network-negotiation";

/// Negotiates networks with all peers until `context.stop`. Only the leader may run it.
pub async fn run(context: Context) -> Result<(), RequestError> {
    let stop = context.stop.child_token();
    let _guard = stop.clone().drop_guard();
    NetworkNegotiation::start(context, &stop).run(stop).await;
    Ok(())
}

/// Whether prefixes of a peer have to appear elsewhere, and pods may depend on where they appear
/// now.
fn is_waiting(outcome: &PeerOutcome) -> bool {
    outcome
        .endpoint
        .as_ref()
        .is_some_and(|endpoint| !endpoint.waiting.is_empty())
}

struct NetworkNegotiation {
    context: Context,
    foreign_clusters: Cache<ForeignCluster>,
    policies: Cache<PeeringPolicy>,
    nodes: Cache<NodeNetwork>,
    leases: Cache<GatewayLease>,
    consumers: Cache<TenantOrMappedNamespace>,
    offloadings: Cache<OffloadedNamespace>,
    endpoints: Cache<TunnelEndpoint>,
    announcements: Arc<AnnouncementExchange>,
    observations: Arc<Mutex<LeaseObservations>>,
    discovered: Mutex<Option<DiscoveredRanges>>,
    /// The last time at which pods were seen to run between us and a peer whose prefixes are to
    /// move.
    runs_pods: Mutex<BTreeMap<ClusterId, Instant>>,
    /// Has one key, because the prefixes of all peers are allocated together.
    queue: Queue<()>,
}

impl NetworkNegotiation {
    fn start(context: Context, stop: &CancellationToken) -> Arc<Self> {
        let queue = Queue::new();
        let informers = &context.informers;
        let on_cluster = enqueue_later(&queue);
        let on_policy = enqueue_later(&queue);
        let on_node = enqueue_later(&queue);
        let on_consumer = enqueue_later(&queue);
        let observations: Arc<Mutex<LeaseObservations>> = Arc::default();
        Arc::new(Self {
            foreign_clusters: informers
                .of_kind::<ForeignCluster>()
                .cache(stop.clone(), move |_, _, _| on_cluster()),
            policies: informers.of_kind::<PeeringPolicy>().cache(
                stop.clone(),
                move |_, old, new| {
                    if rules_of_policy(old) != rules_of_policy(new) {
                        on_policy();
                    }
                },
            ),
            nodes: informers.of_kind::<Node>().reduced_cache(
                stop.clone(),
                NodeNetwork::from_node,
                move |_, _, _| {
                    on_node();
                },
            ),
            leases: watch_leases(&context, stop, observations.clone(), enqueue_later(&queue)),
            consumers: informers.of_kind::<Namespace>().reduced_cache(
                stop.clone(),
                TenantOrMappedNamespace::from_namespace,
                move |_, old, new| {
                    if old != new {
                        on_consumer();
                    }
                },
            ),
            offloadings: watch_offloadings(&context, stop, enqueue_later(&queue)),
            endpoints: watch_endpoints(&context, stop, enqueue_later(&queue)),
            announcements: AnnouncementExchange::start(&context, stop, queue.clone()),
            observations,
            discovered: Mutex::default(),
            runs_pods: Mutex::default(),
            context,
            queue,
        })
    }

    async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let synced = [
            self.foreign_clusters.wait_until_synced().await,
            self.policies.wait_until_synced().await,
            self.nodes.wait_until_synced().await,
            self.leases.wait_until_synced().await,
            self.consumers.wait_until_synced().await,
            self.offloadings.wait_until_synced().await,
            self.endpoints.wait_until_synced().await,
            self.announcements.wait_until_synced().await,
        ];
        if synced.contains(&false) {
            return;
        }
        self.queue.add(());
        let this = self.clone();
        let work = self.queue.run(CONTROLLER, 1, stop.clone(), move |()| {
            let this = this.clone();
            async move { this.reconcile().await }
        });
        let mut config = self.context.config.clone();
        let follow_config = async {
            while config.changed().await.is_ok() {
                self.queue.add(());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = work => {}
            () = self.announcements.follow_providers(&self.context.peers, stop) => {}
            () = follow_config => {}
        }
    }

    async fn reconcile(&self) -> Result<Requeue, RequestError> {
        let config = self.context.config();
        let ranges = self.current_ranges().await?;
        let clusters = foreign_clusters::by_peer(&self.foreign_clusters);
        self.announcements
            .keep_providers(|id| self.borrows_from(&clusters, id));
        let peers = self.wanted_peers(&clusters);
        let nodes: BTreeMap<String, Arc<NodeNetwork>> = self
            .nodes
            .all()
            .into_iter()
            .map(|(key, node)| (key.name, node))
            .collect();
        let settings = &config.spec.network.gateways;
        let (gateways, gateways_change_in) = {
            let mut observations = self.observations.lock();
            observations.set_replicas(settings.replicas);
            announced_gateways::gateways_to_announce(
                settings,
                &observations,
                &nodes,
                Instant::now().into_std(),
            )
        };
        let has_gateway = !gateways.is_empty();
        let current: BTreeMap<ClusterId, TunnelEndpointSpec> = self
            .current_endpoints()
            .into_iter()
            .map(|(id, endpoint)| (id, endpoint.spec.clone()))
            .collect();
        let snapshot = ranges.as_ref().ok().map(|ranges| NetworkSnapshot {
            own: self.context.cluster_id.clone(),
            settings: config.spec.network.clone(),
            ranges: ranges.clone(),
            nodes: nodes
                .values()
                .map(|node| NodeNetwork::clone(node))
                .collect(),
            gateways,
            peers: peers.clone(),
            current: current.clone(),
        });
        let outcomes = match snapshot {
            Some(snapshot) => Some(self.decide_peers(snapshot).await),
            None => None,
        };
        let is_waiting = outcomes
            .iter()
            .flatten()
            .any(|(_, outcome)| is_waiting(outcome));
        let mut failures = Vec::new();
        // Without our ranges nothing new is agreed. Endpoints of peers that we no longer want a
        // network with are deleted all the same.
        let endpoints: BTreeMap<ClusterId, TunnelEndpointSpec> = match &outcomes {
            Some(outcomes) => peers
                .keys()
                .filter_map(|id| Some((id.clone(), outcomes.get(id)?.endpoint.clone()?)))
                .collect(),
            None => current
                .into_iter()
                .filter(|(id, _)| peers.contains_key(id))
                .collect(),
        };
        failures.extend(self.write_endpoints(&endpoints).await);
        failures.extend(
            self.write_conditions(outcomes.as_ref(), ranges.as_ref().err(), has_gateway)
                .await,
        );
        let unknown = if ranges.is_ok() {
            Vec::new()
        } else {
            peers.keys().cloned().collect()
        };
        failures.extend(
            self.announcements
                .send_announcements(&self.context, &outcomes.unwrap_or_default(), &unknown)
                .await,
        );
        let next = if failures.is_empty() && ranges.is_ok() && !is_waiting {
            REFRESH_PERIOD
        } else {
            RETRY_DELAY
        };
        // A failure for one peer must not hold up the others, so it is only logged.
        for error in failures {
            tracing::warn!(error = error_chain(&error), "trying again");
        }
        Ok(Requeue::After(
            gateways_change_in.map_or(next, |change| change.min(next)),
        ))
    }

    /// Decides about each peer. Pods are only asked for where something depends on them.
    async fn decide_peers(
        &self,
        mut snapshot: NetworkSnapshot,
    ) -> BTreeMap<ClusterId, PeerOutcome> {
        let outcomes = decide_outcomes(&snapshot);
        let mut is_changed = false;
        for (id, _) in outcomes.iter().filter(|(_, outcome)| is_waiting(outcome)) {
            if self.knows_addresses(id).await {
                continue;
            }
            if let Some(peer) = snapshot.peers.get_mut(id) {
                (peer.runs_pods, is_changed) = (false, true);
            }
        }
        if is_changed {
            decide_outcomes(&snapshot)
        } else {
            outcomes
        }
    }

    /// Whether pods run between us and a peer. A yes counts for a while, because the peer decides
    /// how often this is asked.
    async fn knows_addresses(&self, id: &ClusterId) -> bool {
        let seen = self.runs_pods.lock().get(id).copied();
        if seen.is_some_and(|seen| seen.elapsed() < RETRY_DELAY) {
            return true;
        }
        let guests = self
            .consumers
            .all()
            .into_iter()
            .filter(|(_, namespace)| !namespace.is_tenant && namespace.consumer == *id);
        let guests: Vec<String> = guests.map(|(key, _)| key.name).collect();
        let run = pods_between::run_between(&self.context, id, &guests).await.unwrap_or_else(|error| {
            tracing::warn!(peer = %id, error = error_chain(&error), "not known whether pods run there, so prefixes stay");
            true
        });
        if run {
            self.runs_pods.lock().insert(id.clone(), Instant::now());
        }
        run
    }

    /// Our ranges; discovered again when they are old.
    async fn current_ranges(&self) -> Result<RangesResult, RequestError> {
        let previous = self.discovered.lock().clone();
        let mut nodes = self.nodes.all();
        nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
        let nodes = nodes
            .into_iter()
            .map(|(_, node)| NodeNetwork::clone(&node))
            .collect();
        let discovered = range_discovery::discover_ranges(&self.context, nodes, previous).await?;
        let ranges = discovered.ranges.clone();
        *self.discovered.lock() = Some(discovered);
        Ok(ranges)
    }

    /// The peers that get a network: there is a peering in either direction, and nobody in this
    /// cluster forbids the network.
    fn wanted_peers(
        &self,
        clusters: &BTreeMap<ClusterId, Arc<ForeignCluster>>,
    ) -> BTreeMap<ClusterId, WantedPeer> {
        if !self.context.config().spec.network.enabled {
            return BTreeMap::new();
        }
        let offloadings: Vec<OffloadingHere> = self
            .offloadings
            .all()
            .into_iter()
            .map(|(key, offloaded)| OffloadingHere {
                consumer: self.consumer_of(&key.namespace),
                namespace: key.namespace,
                offloaded,
            })
            .collect();
        let mut wanted = BTreeMap::new();
        for (id, cluster) in clusters {
            let borrows = self.borrows_from(clusters, id);
            if !borrows && !self.lends_to(id) {
                continue;
            }
            let held =
                policies::effective_policy(&self.policies, &PolicyPeer::new(id, Some(cluster)));
            let policy = held.map(|policy| policy.spec.network.clone());
            let is_wanted = match cluster.spec.network {
                PeeringIntent::Yes => true,
                PeeringIntent::No => false,
                PeeringIntent::Auto => policy.as_ref().is_some_and(|policy| policy.enabled),
            };
            if !is_wanted {
                continue;
            }
            let announcement = self
                .announcements
                .last_announcement(&self.context.peers, id)
                // A consumer's announcement is stored here, so its absence is known. A provider's
                // may only be out of sight.
                .or_else(|| (!borrows).then(|| Ok(NetworkAnnouncement::default())));
            let mut peer = WantedPeer {
                name: cluster.display_name(),
                policy: policy.unwrap_or_default(),
                runs_api_clients: false,
                customers: BTreeMap::new(),
                runs_pods: true,
                announcement,
            };
            let there = offloadings
                .iter()
                .filter(|one| one.offloaded.clusters.contains(id));
            for offloading in there {
                peer.runs_api_clients |= offloading.offloaded.api_server;
                if let Some(consumer) = &offloading.consumer {
                    let namespaces = peer.customers.entry(consumer.clone()).or_default();
                    namespaces.insert(offloading.namespace.clone());
                }
            }
            wanted.insert(id.clone(), peer);
        }
        wanted
    }

    /// Whether a cluster is our consumer.
    fn lends_to(&self, id: &ClusterId) -> bool {
        let consumers = self.consumers.all();
        consumers
            .iter()
            .any(|(_, namespace)| namespace.is_tenant && namespace.consumer == *id)
    }

    /// Whether a cluster is our provider. While a peering is being ended its pods still need their
    /// network.
    fn borrows_from(
        &self,
        clusters: &BTreeMap<ClusterId, Arc<ForeignCluster>>,
        id: &ClusterId,
    ) -> bool {
        clusters
            .get(id)
            .is_some_and(|cluster| cluster.wants_outgoing())
            || self.context.peers.get(id).is_some()
    }

    /// The consumer whose pods run in a namespace.
    fn consumer_of(&self, namespace: &str) -> Option<ClusterId> {
        let found = self.consumers.get(&Key::new("", namespace))?;
        (!found.is_tenant).then(|| found.consumer.clone())
    }

    fn current_endpoints(&self) -> BTreeMap<ClusterId, Arc<TunnelEndpoint>> {
        let all = self.endpoints.all().into_iter();
        all.map(|(_, endpoint)| (endpoint.spec.cluster_id.clone(), endpoint))
            .collect()
    }

    async fn write_endpoints(
        &self,
        wanted: &BTreeMap<ClusterId, TunnelEndpointSpec>,
    ) -> Vec<RequestError> {
        let api: Api<TunnelEndpoint> =
            namespaced_api(&self.context.client, &self.context.namespace);
        let current = self.current_endpoints();
        let mut failures = Vec::new();
        for (id, spec) in wanted {
            let before = current.get(id);
            if before.is_some_and(|before| before.spec == *spec) {
                continue;
            }
            tracing::info!(peer = %id, imported = ?spec.imported, exported = ?spec.exported, "writing the network towards a peer");
            let object = with_peer_labels(
                TunnelEndpoint::new(id.as_str(), spec.clone()),
                labels::REMOTE_CLUSTER_ID,
                id,
            );
            let written = create_or_replace(&api, FIELD_MANAGER, &object, before.is_some()).await;
            failures.extend(
                written
                    .step("write", "TunnelEndpoint", Key::of_object(&object))
                    .err()
                    .map(RequestError::from),
            );
        }
        for (id, endpoint) in current.iter().filter(|(id, _)| !wanted.contains_key(*id)) {
            tracing::info!(peer = %id, "removing the network towards a peer");
            let name = endpoint.metadata.name.clone().unwrap_or_default();
            let deleted = delete_if_present(&api, &name, &DeleteParams::default()).await;
            failures.extend(
                deleted
                    .step("delete", "TunnelEndpoint", Key::of_object(&**endpoint))
                    .err()
                    .map(RequestError::from),
            );
        }
        failures
    }

    async fn write_conditions(
        &self,
        outcomes: Option<&BTreeMap<ClusterId, PeerOutcome>>,
        ranges_unknown: Option<&String>,
        has_gateway: bool,
    ) -> Vec<RequestError> {
        let current = self.current_endpoints();
        let mut failures = Vec::new();
        for (id, cluster) in foreign_clusters::by_peer(&self.foreign_clusters) {
            let outcome = outcomes.and_then(|outcomes| outcomes.get(&id));
            let wanted: Vec<DesiredCondition> = match (outcome, ranges_unknown) {
                (Some(outcome), _) => links::wanted_conditions(
                    outcome,
                    has_gateway,
                    current.get(&id).map(AsRef::as_ref),
                ),
                (None, Some(why)) if self.context.config().spec.network.enabled => {
                    links::without_ranges(why)
                }
                _ => Vec::new(),
            };
            let written = conditions::apply_links(
                &self.context,
                &cluster,
                liqo_api::conditions::owners::NETWORK,
                &wanted,
            )
            .await;
            failures.extend(
                written
                    .step(
                        "write conditions of",
                        "ForeignCluster",
                        Key::of_object(&*cluster),
                    )
                    .err()
                    .map(RequestError::from),
            );
        }
        failures
    }
}

/// Returns a function that asks for a reconcile once changes have settled.
fn enqueue_later(queue: &Queue<()>) -> impl Fn() + Send + 'static {
    let queue = queue.clone();
    move || queue.add_after((), SETTLE)
}

/// Others write the status of policies.
fn rules_of_policy(policy: Option<&Arc<PeeringPolicy>>) -> Option<PeeringPolicy> {
    without_status(PeeringPolicy::clone(policy?))
}

fn watch_leases(
    context: &Context,
    stop: &CancellationToken,
    observations: Arc<Mutex<LeaseObservations>>,
    enqueue: impl Fn() + Send + 'static,
) -> Cache<GatewayLease> {
    let api = Api::<Lease>::namespaced(context.client.clone(), &context.namespace);
    let gateways = Config::default().labels(&format!("{}=true", labels::GATEWAY));
    Cache::watch(
        api,
        gateways,
        stop.clone(),
        |lease| GatewayLease::parse(&lease),
        move |key, _, new| {
            let Some(number) = lease_number(&key.name) else {
                return;
            };
            if observe_lease(
                &mut observations.lock(),
                number,
                new.map(AsRef::as_ref),
                Instant::now().into_std(),
            ) {
                enqueue();
            }
        },
    )
}

fn watch_offloadings(
    context: &Context,
    stop: &CancellationToken,
    enqueue: impl Fn() + Send + 'static,
) -> Cache<OffloadedNamespace> {
    let offloadings = context.informers.of_kind::<NamespaceOffloading>();
    offloadings.reduced_cache(
        stop.clone(),
        OffloadedNamespace::from_offloading,
        move |_, old, new| {
            if old != new {
                enqueue();
            }
        },
    )
}

fn watch_endpoints(
    context: &Context,
    stop: &CancellationToken,
    enqueue: impl Fn() + Send + 'static,
) -> Cache<TunnelEndpoint> {
    let api = Api::namespaced(context.client.clone(), &context.namespace);
    Cache::watch(
        api,
        Config::default(),
        stop.clone(),
        without_managed_fields,
        move |_, old: Option<&Arc<TunnelEndpoint>>, new| {
            // Measurements in the status do not matter here.
            if old.map(|one| relevant_part(one)) != new.map(|one| relevant_part(one)) {
                enqueue();
            }
        },
    )
}

fn relevant_part(endpoint: &TunnelEndpoint) -> impl PartialEq + use<> {
    (
        endpoint.metadata.deletion_timestamp.clone(),
        endpoint.spec.clone(),
        endpoint.connected_condition().cloned(),
    )
}
