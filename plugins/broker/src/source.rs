//! Watches the cluster, computes the offers after each change, and answers Liqo from memory.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, Client, core::DeserializeGuard, runtime::watcher::Config};
use liqo_api::{
    ClusterConfig, ClusterId, ForeignCluster, PeeringPolicy, ResourceOffer, ResourceRequest,
    TunnelEndpoint,
    catalog::Entry,
    isolation::Lending,
    labels,
    policies::{PolicyPeer, without_status},
    provider_namespace,
};
use liqo_controller_runtime::{
    Cache,
    cache::without_managed_fields,
    foreign_clusters::{by_peer, of_peer},
};
use liqo_resource_plugin::{
    Announcer, Change, Generation, Pool, ResourceSource, SourceError, async_trait,
};
use liqo_sharing::decide::{
    absence::Silence,
    pods_by_node::PodsByNode,
    reduce::{self, ConsumerRequest, LocalNode, PodUsage, TenancyNamespace},
    scheduled_pod::ScheduledPod,
    snapshot::{ContractFacts, OwnWorkingMode, ProviderSnapshot, Replacements},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{CatalogSource, KnownClusters, entry_of},
    decide::{self, CustomerOffers},
};

/// Changes within this time are handled together: a Deployment that is scaled up changes many pods.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// The source of this plugin: it offers what other clusters offer to this one.
pub struct Broker {
    generation: Generation,
    offers: watch::Receiver<Option<Arc<CustomerOffers>>>,
    announcer: Announcer,
}

/// The watched objects: all that the ledger reads.
pub struct LedgerWatches {
    config: Cache<ClusterId>,
    nodes: Cache<LocalNode>,
    pods: Cache<PodUsage>,
    /// The same pods, summed by node.
    pod_sums: Arc<Mutex<Arc<PodsByNode>>>,
    namespaces: Cache<TenancyNamespace>,
    requests: Cache<ConsumerRequest>,
    policies: Cache<PeeringPolicy>,
    peers: Cache<ForeignCluster>,
    offers: Cache<ResourceOffer>,
    changed: Arc<Notify>,
}

impl Broker {
    /// Offers what `cluster` borrows until `stop`. Policies name this plugin by its Service
    /// `service`.
    pub fn start(
        cluster: LedgerWatches,
        service: String,
        generation: Generation,
        stop: &CancellationToken,
    ) -> Self {
        let announcer = Announcer::new();
        let (sender, offers) = watch::channel(None);
        tokio::spawn({
            let (announcer, stop) = (announcer.clone(), stop.clone());
            async move {
                stop.run_until_cancelled(follow_changes(cluster, &service, sender, announcer))
                    .await;
            }
        });
        Self {
            generation,
            offers,
            announcer,
        }
    }
}

/// Computes the offers once all objects are listed, and then a moment after each change.
async fn follow_changes(
    cluster: LedgerWatches,
    service: &str,
    offers: watch::Sender<Option<Arc<CustomerOffers>>>,
    announcer: Announcer,
) {
    if !cluster.wait_until_synced().await {
        return;
    }
    loop {
        if let Some(snapshot) = cluster.snapshot() {
            let new = Arc::new(CustomerOffers::from_snapshot(
                snapshot,
                service,
                Instant::now(),
            ));
            // Before the first result, subscribers could not read.
            let changes = offers
                .borrow()
                .as_deref()
                .map_or_else(|| vec![Change::All], |old| old.changes_to(&new));
            offers.send_replace(Some(new));
            for change in changes {
                tracing::info!(?change, "the offers have changed");
                announcer.announce(&change);
            }
        } else {
            tracing::info!(
                "this cluster has no ID yet: ClusterConfig liqo will contain it when Liqo is installed"
            );
        }
        cluster.changed.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
    }
}

impl LedgerWatches {
    /// Watches the cluster until `stop`.
    pub fn watch(client: &Client, stop: &CancellationToken) -> Self {
        let changed = Arc::new(Notify::new());
        let pod_sums: Arc<Mutex<Arc<PodsByNode>>> = Arc::default();
        let sums = pod_sums.clone();
        let by_pod = changed.clone();
        // When a pod finishes, it no longer matches, and the API server sends a deletion.
        let unfinished = Config::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let of_consumers = Config::default().labels(&format!(
            "{},{}",
            labels::NAMESPACE_KIND,
            labels::CONSUMER_ID
        ));
        let all = Config::default;
        Self {
            config: watch_kind(client, all(), stop, &changed, |config: ClusterConfig| {
                config.status?.cluster_id
            }),
            nodes: watch_kind::<Node, _>(client, all(), stop, &changed, reduce::node),
            pods: Cache::watch(
                Api::<ScheduledPod>::all(client.clone()),
                unfinished,
                stop.clone(),
                reduce::pod,
                move |_, old, new| {
                    Arc::make_mut(&mut sums.lock().unwrap_or_else(PoisonError::into_inner))
                        .update(old, new);
                    by_pod.notify_one();
                },
            ),
            pod_sums,
            namespaces: watch_kind::<Namespace, _>(
                client,
                of_consumers,
                stop,
                &changed,
                reduce::namespace,
            ),
            requests: watch_kind::<DeserializeGuard<ResourceRequest>, _>(
                client,
                all(),
                stop,
                &changed,
                reduce::request,
            ),
            policies: watch_kind(client, all(), stop, &changed, without_status),
            peers: watch_kind(
                client,
                all(),
                stop,
                &changed,
                without_managed_fields::<ForeignCluster>,
            ),
            offers: watch_kind(
                client,
                all(),
                stop,
                &changed,
                without_managed_fields::<ResourceOffer>,
            ),
            changed,
        }
    }

    async fn wait_until_synced(&self) -> bool {
        let all = [
            self.config.wait_until_synced().await,
            self.nodes.wait_until_synced().await,
            self.pods.wait_until_synced().await,
            self.namespaces.wait_until_synced().await,
            self.requests.wait_until_synced().await,
            self.policies.wait_until_synced().await,
            self.peers.wait_until_synced().await,
            self.offers.wait_until_synced().await,
        ];
        !all.contains(&false)
    }

    /// The input of the ledger; `None` while this cluster has no ID. The manager decides whether
    /// and under which contract this cluster lends.
    fn snapshot(&self) -> Option<ProviderSnapshot> {
        let own = own_id(&self.config)?;
        let peers = by_peer(&self.peers);
        // The manager measures silences. One counts here when it has ended an offer.
        let silence = |(id, peer): (&ClusterId, &Arc<ForeignCluster>)| {
            Some((
                id.clone(),
                Silence::of_consumer(peer, Duration::default)
                    .filter(|silence| silence.ended_offers)?,
            ))
        };
        Some(ProviderSnapshot {
            own,
            policies: self
                .policies
                .all()
                .into_iter()
                .map(|(_, policy)| policy)
                .collect(),
            silences: peers.iter().filter_map(silence).collect(),
            peers: peers
                .iter()
                .map(|(id, peer)| (id.clone(), PolicyPeer::new(id, Some(peer))))
                .collect(),
            plugin_answers: HashMap::new(),
            lending: Lending::Isolated,
            cluster_labels: BTreeMap::new(),
            nodes: self.nodes.all(),
            pods: self
                .pod_sums
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            namespaces: self
                .namespaces
                .all()
                .into_iter()
                .map(|(key, namespace)| (key.name, namespace))
                .collect(),
            requests: self.requests.all(),
            offers: self.offers.all(),
            recent_writes: HashMap::new(),
            applied_policies: HashMap::new(),
            contracts: ContractFacts::default(),
            mode: OwnWorkingMode::default(),
            replacements: Replacements::new(),
            wall_time: Timestamp::now(),
        })
    }
}

/// The ID of this cluster, once it has one.
fn own_id(config: &Cache<ClusterId>) -> Option<ClusterId> {
    config
        .all()
        .into_iter()
        .next()
        .map(|(_, id)| id.as_ref().clone())
}

/// The data and the readers of the catalog: the offers that this cluster received, from whom, how
/// far away these are, and its customers.
pub struct CatalogOffers {
    config: Cache<ClusterId>,
    offers: Cache<ResourceOffer>,
    peers: Cache<ForeignCluster>,
    tunnels: Cache<TunnelEndpoint>,
}

impl CatalogOffers {
    /// Shares the watches of `cluster`, and watches the tunnels until `stop`.
    pub fn watch(client: &Client, cluster: &LedgerWatches, stop: &CancellationToken) -> Self {
        let tunnels = Api::<TunnelEndpoint>::all(client.clone());
        Self {
            config: cluster.config.clone(),
            offers: cluster.offers.clone(),
            peers: cluster.peers.clone(),
            tunnels: Cache::watch(
                tunnels,
                Config::default(),
                stop.clone(),
                without_managed_fields,
                |_, _, _| {},
            ),
        }
    }

    /// Waits until all objects are listed: `false` if a watch ended before.
    pub fn wait_until_listed(&self) -> impl Future<Output = bool> + use<> {
        let (config, offers, peers, tunnels) = (
            self.config.clone(),
            self.offers.clone(),
            self.peers.clone(),
            self.tunnels.clone(),
        );
        async move {
            let all = [
                config.wait_until_synced().await,
                offers.wait_until_synced().await,
                peers.wait_until_synced().await,
                tunnels.wait_until_synced().await,
            ];
            !all.contains(&false)
        }
    }
}

impl KnownClusters for CatalogOffers {
    fn own_id(&self) -> Option<ClusterId> {
        own_id(&self.config)
    }

    fn record(&self, id: &ClusterId) -> Option<Arc<ForeignCluster>> {
        of_peer(&self.peers, id).into_iter().next()
    }
}

impl CatalogSource for CatalogOffers {
    fn entries(&self) -> Vec<Entry> {
        let peers = by_peer(&self.peers);
        let tunnels: HashMap<ClusterId, Arc<TunnelEndpoint>> = self
            .tunnels
            .all()
            .into_iter()
            .map(|(_, tunnel)| (tunnel.spec.cluster_id.clone(), tunnel))
            .collect();
        let entry = |offer: &ResourceOffer| {
            let provider = &offer.spec.cluster_id;
            entry_of(
                offer,
                peers.get(provider).map(AsRef::as_ref),
                tunnels.get(provider).map(AsRef::as_ref),
            )
        };
        // The other offers are those that this cluster made.
        let all = self.offers.all().into_iter();
        let received =
            all.filter(|(key, offer)| key.namespace == provider_namespace(&offer.spec.cluster_id));
        received.filter_map(|(_, offer)| entry(&offer)).collect()
    }
}

/// Watches all objects of a kind that match, and notifies of changes of the reduced form.
fn watch_kind<K, R>(
    client: &Client,
    config: Config,
    stop: &CancellationToken,
    changed: &Arc<Notify>,
    reduce: impl Fn(K) -> Option<R> + Send + 'static,
) -> Cache<R>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
    R: Send + Sync + PartialEq + 'static,
{
    let changed = changed.clone();
    Cache::watch(
        Api::all(client.clone()),
        config,
        stop.clone(),
        reduce,
        move |_, _, _| changed.notify_one(),
    )
}

#[async_trait]
impl ResourceSource for Broker {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        let offers = self.offers.borrow().clone();
        let offers = offers.ok_or_else(|| {
            SourceError::NotReady("the objects of this cluster are not listed yet".to_owned())
        })?;
        Ok(decide::answer_in_generation(
            self.generation,
            &offers.offer_of_cluster(cluster, Instant::now()),
        ))
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        self.announcer.listen().boxed()
    }

    async fn ready(&self) {
        if self.offers.clone().wait_for(Option::is_some).await.is_err() {
            // The watches have ended, so there will never be an answer.
            std::future::pending::<()>().await;
        }
    }
}
