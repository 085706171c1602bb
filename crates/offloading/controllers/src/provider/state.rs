//! The state that the provider's controllers share: caches of what exists, indexes over them, and
//! the queues.
//!
//! Watches update the caches and indexes, and add to the queues what [`triggers`] names.
//! Controllers read here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Secret},
    node::v1::RuntimeClass,
};
use kube::{Api, Resource, runtime::watcher::Config};
use liqo_api::policies::without_status;
use liqo_api::{
    Charge, ClusterId, ForeignCluster, NAMESPACE_MAP, NAMESPACE_OFFLOADING, NamespaceMap,
    NamespaceOffloading, PeeringPolicy, ReflectedObject, ResourceOffer, ShadowPod, annotations,
    labels, requests, tenant_namespace,
};
use liqo_controller_runtime::writes::StepError;
use liqo_controller_runtime::{
    Cache, Context, Key, Queue, cache::without_managed_fields, foreign_clusters,
    informers::InformedKind,
};
use liqo_offloading_rules::namespace::brokered;
use liqo_offloading_rules::namespace::mapped::{
    self, ConsumerNamespace, Destination, DestinationState, NamespaceKind,
};
use liqo_offloading_rules::pod::admission::PoolOffer;
use liqo_offloading_rules::pod::carry::home_names::{ClusterResolver, announced_domain};
use liqo_offloading_rules::pod::consumer_policy::{self, ConsumerPolicy};
use liqo_offloading_rules::pod::ledger::Ledger;
use liqo_offloading_rules::pod::reclaim::PodReclaim;
use liqo_offloading_rules::pod::remote_pod::{ProviderPodIndex, RemotePod, WatchedPod};
use liqo_offloading_rules::pod::shadow_pod::ProviderShadowPod;
use liqo_offloading_rules::replica::isolation::{self, IsolationPolicy};
use liqo_offloading_rules::replica::replica_source::ReplicaSource;
use liqo_quantity::ResourceList;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::resolver::ResolverService;
use super::shadow_index::ShadowIndex;
use super::triggers::{self, ProviderTarget, ProviderTrigger, ReplicaGroup, TenantPods};
use crate::metering::UsageRecorder;
use crate::networks::NetworksToPeers;

/// Page size for remote pods: each may be as large as a record.
const PODS_PAGE: u32 = 50;

/// A step of a controller failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// A request to the API server.
    #[error(transparent)]
    Request(#[from] StepError),
    /// An object could not be converted to or from JSON.
    #[error(transparent)]
    Json(#[from] StepError<serde_json::Error>),
    /// Creating the pod failed because its name was taken, and then no pod had it.
    #[error("the name of pod {0} was taken a moment ago and is free now")]
    NameFreed(Key),
}

/// The caches, indexes and queues.
pub struct ProviderState {
    pub context: Context,
    pub queues: ProviderQueues,
    pub namespaces: Cache<ConsumerNamespace>,
    maps: Cache<NamespaceMap>,
    pub offers: Cache<PoolOffer>,
    /// The `NamespaceOffloading`s of brokered namespaces, all of which Liqo created.
    pub brokered_offloadings: Cache<NamespaceOffloading>,
    pub shadows: Cache<ProviderShadowPod>,
    pub pods: Cache<RemotePod>,
    /// Everything reflected but Secrets.
    pub records: Cache<ReplicaSource>,
    policies: Cache<PeeringPolicy>,
    /// The providers to which each namespace of this cluster is offloaded, and the namespace's
    /// names there.
    remote_namespaces: Cache<BTreeSet<(ClusterId, String)>>,
    /// The networks to the consumers.
    pub networks: NetworksToPeers,
    /// Without their status, which does not tell which policy selects them.
    foreign_clusters: Cache<ForeignCluster>,
    /// The overhead of each `RuntimeClass`.
    runtime_classes: Cache<ResourceList>,
    pub nodes: Cache<ProviderNode>,
    resolver: ResolverService,
    pub index: Arc<Mutex<ProviderPodIndex>>,
    pub shadow_index: Arc<Mutex<ShadowIndex>>,
    pub ledger: Arc<Mutex<Ledger>>,
    /// Stores what pods used under contracts.
    pub recorder: Arc<UsageRecorder>,
    /// The Secrets of each tenant namespace.
    secrets: Mutex<HashMap<String, TenantSecrets>>,
    /// Held while the pod in a record is parsed and converted.
    pub parsing: Mutex<()>,
    /// Shadow pods whose pods end because their room or their node is taken back, by offer.
    pub taken_back: Mutex<HashMap<Key, BTreeMap<Key, PodReclaim>>>,
}

/// The remote pods here and their records, for the consumer's side: a provider of ours may run our
/// pods here.
#[derive(Clone)]
pub struct RemotePods {
    pods: Cache<RemotePod>,
    shadows: Cache<ProviderShadowPod>,
}

impl RemotePods {
    /// Waits for the initial list. `false` if the context ended before.
    pub async fn synced(&self) -> bool {
        self.pods.wait_until_synced().await && self.shadows.wait_until_synced().await
    }

    /// Whether a pod of this consumer has this address.
    pub fn has_address(&self, consumer: &ClusterId, address: IpAddr) -> bool {
        self.pods
            .all()
            .iter()
            .any(|(_, pod)| pod.consumer == *consumer && pod.addresses.contains(&address))
    }

    /// Returns the reason why this cluster ended a pod of this consumer, if it took back what the
    /// pod used. The pod has this name, and one of these namespaces there or this address. It never
    /// runs again. `None` as long as it is there: its node may not answer, and its containers may
    /// run.
    pub fn taken_back(
        &self,
        consumer: &ClusterId,
        name: &str,
        namespaces: &[&str],
        address: IpAddr,
    ) -> Option<String> {
        let records = self
            .shadows
            .in_namespace(&tenant_namespace(consumer))
            .into_iter();
        let mut of_pod = records
            .filter(|(_, record)| {
                record.pod_name == name
                    && (namespaces.contains(&record.namespace.as_str())
                        || record.had_address(address))
            })
            .peekable();
        let reason = of_pod.peek()?.1.reclaim_reason()?.to_owned();
        of_pod
            .all(|(key, record)| {
                record.reclaim_reason().is_some() && !self.has_pod_of_shadow(consumer, &key.name)
            })
            .then_some(reason)
    }

    fn has_pod_of_shadow(&self, consumer: &ClusterId, shadow: &str) -> bool {
        self.pods
            .all()
            .iter()
            .any(|(_, pod)| pod.consumer == *consumer && pod.shadow_pod == shadow)
    }
}

/// A node of this cluster, real or virtual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderNode {
    pub labels: BTreeMap<String, String>,
    /// The networks of a real node that are not private.
    networks: BTreeSet<IpNet>,
    /// Time at which it was cordoned, from the taint that Kubernetes gives it.
    pub cordoned_since: Option<Timestamp>,
}

/// The watch of one tenant namespace's Secrets. There is no right to read those of other
/// namespaces.
struct TenantSecrets {
    /// UID of the tenant namespace.
    uid: String,
    secrets: Cache<ReplicaSource>,
    stop: CancellationToken,
}

/// One queue for each kind of [`ProviderTarget`]. Tenants take turns where one of them can have many keys.
#[derive(Clone)]
pub struct ProviderQueues {
    pub namespaces: Queue<String>,
    pub tenant_secrets: Queue<String>,
    pub tenant_pods: Queue<TenantPods>,
    pub shadow_pods: Queue<Key>,
    pub replicas: Queue<ReplicaGroup>,
    pub accounts: Queue<Key>,
    pub usage: Queue<()>,
    pub isolation: Queue<()>,
}

impl Default for ProviderQueues {
    fn default() -> Self {
        Self {
            namespaces: Queue::new(),
            tenant_secrets: Queue::new(),
            tenant_pods: Queue::fair(|pods| pods.tenant.clone()),
            shadow_pods: Queue::fair(|key| key.namespace.clone()),
            replicas: Queue::fair(|group| group.tenant.clone()),
            accounts: Queue::fair(|offer| offer.namespace.clone()),
            usage: Queue::new(),
            isolation: Queue::new(),
        }
    }
}

impl ProviderQueues {
    pub fn add(&self, triggers: impl IntoIterator<Item = ProviderTrigger>) {
        for ProviderTrigger { target, delay } in triggers {
            match target {
                ProviderTarget::Namespaces(tenant) => self.namespaces.add_after(tenant, delay),
                ProviderTarget::TenantSecrets(tenant) => {
                    self.tenant_secrets.add_after(tenant, delay);
                }
                ProviderTarget::TenantPods(pods) => self.tenant_pods.add_after(pods, delay),
                ProviderTarget::ShadowPod(key) => self.shadow_pods.add_after(key, delay),
                ProviderTarget::Replicas(group) => self.replicas.add_after(group, delay),
                ProviderTarget::Account(offer) => self.accounts.add_after(offer, delay),
                ProviderTarget::Usage => self.usage.add_after((), delay),
                ProviderTarget::Isolation => self.isolation.add_after((), delay),
            }
        }
    }
}

/// The inputs and outputs of the watches.
struct WatchBuilder<'a> {
    context: &'a Context,
    queues: ProviderQueues,
    index: Arc<Mutex<ProviderPodIndex>>,
    shadow_index: Arc<Mutex<ShadowIndex>>,
    ledger: Arc<Mutex<Ledger>>,
}

impl WatchBuilder<'_> {
    /// Watches all objects of a kind. `triggers` names what to enqueue after a change.
    fn watch_kind<K, R>(
        &self,
        config: Config,
        reduce: impl Fn(K) -> Option<R> + Send + 'static,
        triggers: impl FnMut(&Key, Option<&R>, Option<&R>) -> Vec<ProviderTrigger> + Send + 'static,
    ) -> Cache<R>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        R: Send + Sync + PartialEq + 'static,
    {
        Cache::watch(
            Api::all(self.context.client.clone()),
            config,
            self.context.stop.clone(),
            reduce,
            self.enqueue(triggers),
        )
    }

    /// The same for a kind that other parts watch, too.
    fn follow_kind<K, R>(
        &self,
        reduce: impl Fn(K) -> Option<R> + Send + 'static,
        triggers: impl FnMut(&Key, Option<&R>, Option<&R>) -> Vec<ProviderTrigger> + Send + 'static,
    ) -> Cache<R>
    where
        K: InformedKind,
        R: Send + Sync + PartialEq + 'static,
    {
        self.context.informers.of_kind::<K>().reduced_cache(
            self.context.stop.clone(),
            reduce,
            self.enqueue(triggers),
        )
    }

    /// A function for a watch, which enqueues what is due after a change.
    fn enqueue<R>(
        &self,
        mut triggers: impl FnMut(&Key, Option<&R>, Option<&R>) -> Vec<ProviderTrigger> + Send + 'static,
    ) -> impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static {
        let queues = self.queues.clone();
        move |key, old, new| {
            queues.add(triggers(
                key,
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        }
    }

    fn namespaces(&self) -> Cache<ConsumerNamespace> {
        let ledger = self.ledger.clone();
        self.follow_kind(ConsumerNamespace::from_namespace, move |_, old, new| {
            ledger.lock().discard_sums();
            triggers::namespace_changed(old, new)
        })
    }

    fn maps(&self) -> Cache<NamespaceMap> {
        self.watch_kind(Config::default(), reduce_map, |key, old, new| {
            triggers::map_changed(&key.namespace, old, new)
        })
    }

    fn shadows(&self) -> Cache<ProviderShadowPod> {
        let (api, stop) = (
            Api::<ShadowPod>::all(self.context.client.clone()),
            self.context.stop.clone(),
        );
        let (queues, index, ledger) = (
            self.queues.clone(),
            self.shadow_index.clone(),
            self.ledger.clone(),
        );
        Cache::watch(
            api,
            Config::default(),
            stop,
            |shadow| Some(ProviderShadowPod::from_shadow_pod(shadow)),
            move |key, old, new| {
                index.lock().apply_change(key, new);
                let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
                let triggers = triggers::shadow_pod_changed(key, old, new);
                // A pod that does not wait for room leaves the ledger again when it is reconciled.
                if let Some(request) = new
                    .filter(|_| !triggers.is_empty())
                    .and_then(|new| new.admission_request(key))
                {
                    ledger.lock().add_waiting_pod(request);
                }
                queues.add(triggers);
            },
        )
    }

    fn pods(&self, namespaces: &Cache<ConsumerNamespace>) -> Cache<RemotePod> {
        let api: Api<WatchedPod> = Api::all(self.context.client.clone());
        let config = Config::default()
            .labels(labels::SHADOW_POD)
            .page_size(PODS_PAGE);
        let (queues, index, ledger) =
            (self.queues.clone(), self.index.clone(), self.ledger.clone());
        let namespaces = namespaces.clone();
        Cache::watch(
            api,
            config,
            self.context.stop.clone(),
            RemotePod::from_pod,
            move |_, old, new| {
                queues.add(triggers::shadow_pods_due(
                    index.lock().pod_changed(old, new),
                ));
                let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
                queues.add(triggers::room_freed(ledger.lock().pod_changed(old, new)));
                queues.add(triggers::remote_pod_changed(
                    old,
                    new,
                    |namespace| match &namespaces.get(&Key::new("", namespace))?.kind {
                        NamespaceKind::Mapped { home } => Some(home.clone()),
                        NamespaceKind::Tenant { .. } => None,
                    },
                ));
            },
        )
    }

    fn records(&self, maps: &Cache<NamespaceMap>) -> Cache<ReplicaSource> {
        let maps = maps.clone();
        self.watch_kind(
            Config::default(),
            |object: ReflectedObject| Some(ReplicaSource::from_object(object)),
            move |key, old, new| {
                triggers::record_changed(&key.namespace, old, new, || {
                    maps.get(&Key::new(&key.namespace, NAMESPACE_MAP))
                })
            },
        )
    }

    fn brokered_offloadings(
        &self,
        namespaces: &Cache<ConsumerNamespace>,
    ) -> Cache<NamespaceOffloading> {
        let namespaces = namespaces.clone();
        self.follow_kind(reduce_brokered, move |key, _, _| {
            let namespace = namespaces.get(&Key::new("", key.namespace.as_str()));
            namespace
                .map(|namespace| triggers::brokered_offloading_changed(&namespace))
                .unwrap_or_default()
        })
    }

    fn nodes(&self, records: &Cache<ReplicaSource>) -> Cache<ProviderNode> {
        let records = records.clone();
        self.follow_kind(ProviderNode::reduce, move |_, old, new| {
            let mut triggers = Vec::new();
            if old.map(|node| &node.networks) != new.map(|node| &node.networks) {
                triggers.extend(triggers::node_changed());
            }
            if old.and_then(|node| node.cordoned_since) != new.and_then(|node| node.cordoned_since)
            {
                triggers.extend(triggers::cordoned_changed(
                    records.all().iter().map(|(_, source)| source.as_ref()),
                ));
            }
            triggers
        })
    }

    fn resolver(&self) -> ResolverService {
        let queues = self.queues.clone();
        ResolverService::follow(self.context, move || {
            queues.add(triggers::resolver_changed());
        })
    }

    fn networks(&self, namespaces: &Cache<ConsumerNamespace>) -> NetworksToPeers {
        let (queues, namespaces) = (self.queues.clone(), namespaces.clone());
        NetworksToPeers::follow(self.context, move |peer, old, new| {
            queues.add(triggers::network_changed(
                &peer,
                old,
                new,
                &namespaces_by_name(&namespaces),
            ));
        })
    }
}

impl ProviderState {
    /// Starts all watches.
    pub fn start(context: Context) -> Self {
        let (index, shadow_index, ledger) = Default::default();
        let watches = WatchBuilder {
            context: &context,
            queues: ProviderQueues::default(),
            index,
            shadow_index,
            ledger,
        };
        let namespaces = watches.namespaces();
        let maps = watches.maps();
        let offers = watches.follow_kind(
            |offer: ResourceOffer| PoolOffer::from_resource_offer(offer),
            triggers::offer_changed,
        );
        let policies = watches.follow_kind(without_status, |_, _, _| triggers::policy_changed());
        let foreign_clusters = watches.follow_kind(
            |cluster| Some(without_volatile(cluster)),
            |_, _, _| triggers::policy_changed(),
        );
        let runtime_classes = watches.watch_kind(
            Config::default(),
            |class| Some(overhead_of_class(class)),
            |_, _, _| triggers::policy_changed(),
        );
        let records = watches.records(&maps);
        Self {
            shadows: watches.shadows(),
            pods: watches.pods(&namespaces),
            nodes: watches.nodes(&records),
            records,
            brokered_offloadings: watches.brokered_offloadings(&namespaces),
            remote_namespaces: watches.follow_kind(remote_namespaces, |_, _, _| {
                triggers::remote_namespaces_changed()
            }),
            networks: watches.networks(&namespaces),
            resolver: watches.resolver(),
            recorder: UsageRecorder::start(&context, labels::CONSUMER_ID, "provider"),
            queues: watches.queues,
            index: watches.index,
            shadow_index: watches.shadow_index,
            ledger: watches.ledger,
            namespaces,
            maps,
            offers,
            policies,
            foreign_clusters,
            runtime_classes,
            secrets: Mutex::default(),
            parsing: Mutex::default(),
            taken_back: Mutex::default(),
            context,
        }
    }

    /// Waits for all initial lists: until then, absence proves nothing. `false` if a watch ended
    /// before.
    pub async fn synced(&self) -> bool {
        self.namespaces.wait_until_synced().await
            && self.maps.wait_until_synced().await
            && self.offers.wait_until_synced().await
            && self.brokered_offloadings.wait_until_synced().await
            && self.shadows.wait_until_synced().await
            && self.pods.wait_until_synced().await
            && self.records.wait_until_synced().await
            && self.policies.wait_until_synced().await
            && self.foreign_clusters.wait_until_synced().await
            && self.runtime_classes.wait_until_synced().await
            && self.networks.synced().await
            && self.nodes.wait_until_synced().await
            && self.remote_namespaces.wait_until_synced().await
            && self.resolver.synced().await
            && self.recorder.synced().await
    }

    pub fn remote_pods(&self) -> RemotePods {
        RemotePods {
            pods: self.pods.clone(),
            shadows: self.shadows.clone(),
        }
    }

    /// The tenant that this namespace belongs to, if it is a tenant namespace.
    pub fn tenant(&self, namespace: &str) -> Option<Arc<ConsumerNamespace>> {
        self.namespace(namespace)
            .filter(|found| matches!(found.kind, NamespaceKind::Tenant { .. }))
    }

    /// The tenant or mapped namespace with this name.
    pub fn namespace(&self, name: &str) -> Option<Arc<ConsumerNamespace>> {
        self.namespaces.get(&Key::new("", name))
    }

    /// Every tenant and mapped namespace, by name.
    pub fn all_namespaces(&self) -> BTreeMap<String, Arc<ConsumerNamespace>> {
        namespaces_by_name(&self.namespaces)
    }

    pub fn map(&self, tenant: &str) -> Option<Arc<NamespaceMap>> {
        self.maps.get(&Key::new(tenant, NAMESPACE_MAP))
    }

    /// Returns the destination of objects of a consumer's namespace.
    pub fn destination(&self, tenant: &str, home: &str) -> Destination {
        mapped::find_destination(
            self.tenant(tenant).as_deref(),
            self.map(tenant).as_deref(),
            home,
            |name| self.namespace(name),
        )
    }

    /// Returns the destination of pods of a consumer's namespace and pool. They wait until the
    /// namespace enforces the Pod Security standard of the policy and, if the pool is borrowed,
    /// until the namespace is brokered: otherwise nothing would keep them apart at its providers.
    pub fn destination_of_pods(&self, tenant: &str, home: &str, pool: &str) -> Destination {
        let mut destination = self.destination(tenant, home);
        if destination.state == DestinationState::Ready
            && let Some(found) = self.namespace(&destination.namespace)
            && let Some(level) = consumer_policy::pod_security_to_set(
                &found,
                self.policy_of(&found.consumer).as_ref(),
            )
        {
            destination.state = DestinationState::NotReady(format!(
                "namespace {} is being set to Pod Security level {level}",
                destination.namespace
            ));
        }
        if destination.state == DestinationState::Ready
            && !self.takes_brokered_pods(&destination.namespace)
            && self.is_borrowed_pool(tenant, pool)
        {
            destination.state =
                DestinationState::NotReady(mapped::not_brokered_message(&destination.namespace));
        }
        destination
    }

    fn is_borrowed_pool(&self, tenant: &str, pool: &str) -> bool {
        self.offers
            .get(&Key::new(tenant, pool))
            .is_some_and(|offer| offer.borrowed)
    }

    /// Whether this namespace is a mapped namespace of this tenant.
    pub fn is_mapped_for(&self, namespace: &str, tenant: &str) -> bool {
        self.namespace(namespace).is_some_and(|found| {
            matches!(found.kind, NamespaceKind::Mapped { .. })
                && tenant_namespace(&found.consumer) == tenant
        })
    }

    /// Whether pods of this mapped namespace may run at other clusters: also after the offers that
    /// they came with, until the last of them is gone.
    pub fn is_brokered(&self, namespace: &str) -> bool {
        self.brokered_offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
            .is_some()
    }

    /// Whether new pods of this mapped namespace may be created for other clusters.
    pub fn takes_brokered_pods(&self, namespace: &str) -> bool {
        brokered::takes_new_pods(
            self.brokered_offloadings
                .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
                .as_deref(),
        )
    }

    /// Whether a namespace has remote pods.
    pub fn has_pods(&self, namespace: &str) -> bool {
        !self.pods.in_namespace(namespace).is_empty()
    }

    /// Whether a namespace has remote pods that were created for virtual nodes.
    pub fn has_brokered_pods(&self, namespace: &str) -> bool {
        self.pods
            .in_namespace(namespace)
            .iter()
            .any(|(_, pod)| pod.is_brokered)
    }

    /// The DNS domain of this cluster, if it is known.
    pub fn domain(&self) -> Option<&str> {
        self.resolver.domain()
    }

    /// The resolver that new pods of this tenant ask. `None` if there is none.
    pub fn resolver_for(&self, tenant: &str) -> Option<ClusterResolver> {
        self.resolver
            .resolver_for_pods(self.map(tenant).as_deref().and_then(announced_domain))
    }

    /// Returns the policy for this consumer now. `None` if no policy selects it.
    pub fn policy_of(&self, consumer: &ClusterId) -> Option<ConsumerPolicy> {
        let policies: Vec<Arc<PeeringPolicy>> = self
            .policies
            .all()
            .into_iter()
            .map(|(_, policy)| policy)
            .collect();
        let cluster = foreign_clusters::of_peer(&self.foreign_clusters, consumer);
        consumer_policy::policy_of_consumer(&policies, consumer, cluster.first().map(AsRef::as_ref))
    }

    /// Whether this tenant's pods are charged by requests or by limits.
    pub fn charge_basis(&self, tenant: &str) -> Charge {
        let policy = self
            .tenant(tenant)
            .and_then(|tenant| self.policy_of(&tenant.consumer));
        policy.map(|policy| policy.usage.charge).unwrap_or_default()
    }

    /// Returns the amounts that the policy's `RuntimeClass` adds to the requests of each pod.
    pub fn overhead(&self, policy: &ConsumerPolicy) -> ResourceList {
        let class = policy.usage.runtime_class_name.as_ref();
        class
            .and_then(|name| self.runtime_classes.get(&Key::new("", name.clone())))
            .map(Arc::unwrap_or_clone)
            .unwrap_or_default()
    }

    /// Returns the withdrawal that affects the pod of this shadow pod.
    pub fn resources_taken_back(&self, shadow: &Key, pool: &str) -> Option<PodReclaim> {
        let offer = Key::new(shadow.namespace.clone(), pool);
        self.taken_back.lock().get(&offer)?.get(shadow).cloned()
    }

    /// Networks with public addresses that are not the internet for the pods of any consumer.
    pub fn internal_networks(&self) -> BTreeSet<IpNet> {
        let networks = self.networks.all();
        let prefixes = networks.iter().flat_map(|network| network.prefixes());
        let nodes = self
            .nodes
            .all()
            .into_iter()
            .flat_map(|(_, node)| node.networks.clone());
        isolation::internal_networks(&self.context.config(), nodes.chain(prefixes))
    }

    /// Whether what runs in this namespace of a consumer is ours: the consumer is our provider, and
    /// `home` is where pods of ours are there.
    fn is_ours(&self, consumer: &ClusterId, home: &str) -> bool {
        let there = (consumer.clone(), home.to_owned());
        self.remote_namespaces
            .all()
            .iter()
            .any(|(_, namespaces)| namespaces.contains(&there))
    }

    /// The limits for the pods of this consumer's namespace.
    pub fn isolation_of(
        &self,
        consumer: &ClusterId,
        home: &str,
        policy: Option<&ConsumerPolicy>,
    ) -> IsolationPolicy {
        let config = self.context.config();
        let prefixes = self
            .networks
            .network_of_peer(consumer)
            .iter()
            .flat_map(|network| network.prefixes().collect::<Vec<_>>())
            .collect();
        let ranges = config
            .status
            .as_ref()
            .and_then(|status| status.network.as_ref());
        let own_pods = ranges
            .filter(|_| self.is_ours(consumer, home))
            .map(|ranges| ranges.pods.clone())
            .unwrap_or_default();
        let ranges = ranges.filter(|_| policy.is_some_and(|policy| policy.usage.api_server));
        let api_servers = ranges.iter().flat_map(|ranges| &ranges.api_servers);
        let api_servers = api_servers
            .map(|one| SocketAddr::new(one.address, one.port))
            .collect();
        let sources = policy
            .iter()
            .flat_map(|policy| &policy.usage.allowed_ingress_sources);
        let ingress_sources = sources
            .filter_map(|one| isolation::allowed_ingress_source(one))
            .collect();
        let internal = self.internal_networks();
        let cluster_dns = self.resolver.resolver_for_pods(None).is_none();
        let consumer = consumer.clone();
        IsolationPolicy {
            consumer,
            internal,
            prefixes,
            own_pods,
            api_servers,
            cluster_dns,
            ingress_sources,
        }
    }

    /// The sources in the Secrets of a tenant namespace. `None` while not all of them are known.
    pub fn secrets_of_tenant(&self, tenant: &str) -> Option<Vec<Arc<ReplicaSource>>> {
        let secrets = self.secrets.lock();
        let known = secrets
            .get(tenant)
            .filter(|known| known.secrets.is_synced())?;
        Some(
            known
                .secrets
                .all()
                .into_iter()
                .map(|(_, source)| source)
                .collect(),
        )
    }

    /// Starts the watch of a tenant namespace's Secrets, or ends it after the namespace is gone.
    pub fn follow_secrets(&self, tenant: String) {
        let uid = self.tenant(&tenant).map(|found| found.uid.clone());
        let mut watched = self.secrets.lock();
        if watched.get(&tenant).map(|known| &known.uid) == uid.as_ref() {
            return;
        }
        if let Some(old) = watched.remove(&tenant) {
            old.stop.cancel();
        }
        let Some(uid) = uid else { return };
        let stop = self.context.stop.child_token();
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), &tenant);
        let only_reflected = Config::default().labels(&format!("{}=true", labels::REFLECTED));
        let queues = self.queues.clone();
        let secrets = Cache::watch(
            api,
            only_reflected,
            stop.clone(),
            ReplicaSource::from_secret,
            move |_, old, new| {
                queues.add(triggers::secret_changed(
                    old.map(AsRef::as_ref),
                    new.map(AsRef::as_ref),
                ));
            },
        );
        let (queues, listed) = (self.queues.clone(), secrets.clone());
        let all = triggers::secrets_listed(&tenant, self.map(&tenant).as_deref());
        tokio::spawn(async move {
            if listed.wait_until_synced().await {
                queues.add(all);
            }
        });
        watched.insert(tenant, TenantSecrets { uid, secrets, stop });
    }
}

fn namespaces_by_name(
    namespaces: &Cache<ConsumerNamespace>,
) -> BTreeMap<String, Arc<ConsumerNamespace>> {
    namespaces
        .all()
        .into_iter()
        .map(|(key, namespace)| (key.name, namespace))
        .collect()
}

/// The `NamespaceOffloading` of a brokered namespace, without what its controller reports.
fn reduce_brokered(mut offloading: NamespaceOffloading) -> Option<NamespaceOffloading> {
    if !brokered::is_brokered(&offloading) {
        return None;
    }
    offloading.status = None;
    offloading.metadata.managed_fields = None;
    offloading.metadata.resource_version = None;
    Some(offloading)
}

/// The providers of a namespace of ours, and its names there.
fn remote_namespaces(offloading: NamespaceOffloading) -> Option<BTreeSet<(ClusterId, String)>> {
    let remote = offloading.status?.remote_namespaces;
    Some(
        remote
            .into_iter()
            .map(|one| (one.cluster_id, one.namespace))
            .collect(),
    )
}

/// The map of a consumer. Its metadata holds only what is read of it, because the consumer writes
/// that.
fn reduce_map(mut map: NamespaceMap) -> Option<NamespaceMap> {
    let domain = announced_domain(&map)
        .map(|domain| (annotations::CLUSTER_DOMAIN.to_owned(), domain.to_owned()));
    map.metadata.labels = None;
    map.metadata.annotations = domain.map(|domain| [domain].into());
    if map.metadata.name.as_deref() == Some(NAMESPACE_MAP) {
        without_managed_fields(map)
    } else {
        None
    }
}

/// A `ForeignCluster` without the fields that change often and do not tell which policy selects it.
fn without_volatile(mut cluster: ForeignCluster) -> ForeignCluster {
    cluster.status = None;
    cluster.metadata.managed_fields = None;
    cluster.metadata.resource_version = None;
    cluster
}

/// The taint that Kubernetes gives a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

impl ProviderNode {
    #[allow(clippy::unnecessary_wraps, reason = "the cache keeps every node")]
    fn reduce(node: Node) -> Option<Self> {
        let (mut networks, cordoned_since) =
            (isolation::networks_of_node(&node), cordoned_since(&node));
        let labels = node.metadata.labels.unwrap_or_default();
        if labels
            .get(labels::TYPE)
            .is_some_and(|kind| kind == labels::TYPE_VIRTUAL_NODE)
        {
            networks.clear();
        }
        Some(Self {
            labels,
            networks,
            cordoned_since,
        })
    }
}

/// Returns the time at which a node was cordoned; `None` without the taint. If the taint has no
/// time, the node was created with it.
fn cordoned_since(node: &Node) -> Option<Timestamp> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    let taint = taints.iter().find(|taint| taint.key == UNSCHEDULABLE)?;
    taint
        .time_added
        .as_ref()
        .or(node.metadata.creation_timestamp.as_ref())
        .map(|time| time.0)
}

/// The amounts that a `RuntimeClass` adds to the requests of each pod.
fn overhead_of_class(class: RuntimeClass) -> ResourceList {
    class
        .overhead
        .and_then(|overhead| overhead.pod_fixed)
        .map(|fixed| requests::parse_amounts(&fixed))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_overhead_of_a_runtime_class_is_what_it_fixes_for_each_pod() {
        let class = |overhead: serde_json::Value| {
            let class = json!({ "metadata": { "name": "sandbox" }, "handler": "sandbox", "overhead": overhead });
            overhead_of(serde_json::from_value(class).unwrap())
        };
        assert_eq!(
            class(json!({ "podFixed": { "cpu": "250m", "memory": "120Mi" } })),
            "cpu=250m,memory=120Mi"
        );
        assert_eq!(class(json!(null)), "");
    }

    fn overhead_of(class: RuntimeClass) -> String {
        overhead_of_class(class)
            .iter()
            .map(|(name, quantity)| format!("{name}={quantity}"))
            .collect::<Vec<_>>()
            .join(",")
    }

    #[test]
    fn of_the_metadata_that_a_consumer_writes_only_the_domain_of_its_cluster_is_kept() {
        let reduced = |name: &str, domain: &str| {
            let map = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
                "metadata": { "name": name, "labels": { "a": "b" },
                    "annotations": { "a": "b", annotations::CLUSTER_DOMAIN: domain } },
                "spec": {} });
            reduce_map(serde_json::from_value(map).unwrap())
        };
        let map = reduced(NAMESPACE_MAP, "rome.example").unwrap();
        assert_eq!(
            (announced_domain(&map), map.metadata.labels.as_ref()),
            (Some("rome.example"), None)
        );
        assert_eq!(map.metadata.annotations.map(|all| all.len()), Some(1));
        assert_eq!(
            reduced(NAMESPACE_MAP, "rome..example")
                .unwrap()
                .metadata
                .annotations,
            None
        );
        assert_eq!(reduced("other", "rome.example"), None);
    }

    #[test]
    fn a_condition_of_a_foreign_cluster_is_no_news_and_a_label_is() {
        let cluster = |label: &str, version: &str, tenant: &str| {
            let object = json!({ "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
                "metadata": { "name": "rome", "labels": { "tier": label }, "resourceVersion": version },
                "spec": { "clusterID": ClusterId::of_public_key(&[1; 32]) }, "status": { "tenantNamespace": tenant } });
            without_volatile(serde_json::from_value(object).unwrap())
        };
        assert_eq!(cluster("a", "1", "x"), cluster("a", "2", "y"));
        assert_ne!(cluster("a", "1", "x"), cluster("b", "1", "x"));
    }
}
