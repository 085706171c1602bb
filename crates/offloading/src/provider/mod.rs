//! The provider's side: what consumers asked for in their tenant namespaces becomes namespaces, pods and objects here.
//!
//! ```text
//!   tenant namespace of a consumer             mapped namespaces of that consumer
//!
//!   NamespaceMap    ----- mapping ---------->  Namespace, with walls around it
//!   ShadowPod       ----- lifecycle -------->  Pod        (after admission against the ResourceOffer)
//!   ShadowPod.status <---- told -------------  Pod.status
//!   ReflectedObject, Secret --- reflection ->  ConfigMap, Secret, Service, EndpointSlice
//!   ReflectedObject ----- walls ------------>  NetworkPolicy
//!
//!   PeeringPolicy ------- usage: what all of these may be and use
//!   ResourceOffer ------- ledger: who gets room; reclaim: who must give it back
//! ```
//!
//! Whose an object is follows from the namespace that it is in, never from what it says. Nothing that a consumer writes is
//! trusted: names, pods and objects are checked here whatever the consumer checked before.
//!
//! Pure: [`mapping`], [`manifests`], [`namespaces`], [`lifecycle`], [`admission`], [`ledger`], [`reclaim`], [`reflection`],
//! [`told`], [`usage`], [`walls`].
//! Acting: [`mapped_namespaces`], [`shadow_pods`], [`twins`], [`accounts`], [`policies`].

mod accounts;
mod admission;
mod dns_names;
mod exposed;
mod finalizer;
mod ledger;
mod lifecycle;
mod manifests;
mod mapped_namespaces;
mod mapping;
mod namespaces;
mod policies;
mod reclaim;
mod reflection;
mod remote_pods;
mod shadow_pods;
mod shadows;
mod told;
mod twins;
mod usage;
mod walls;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    node::v1::RuntimeClass,
};
use kube::{Api, api::ApiResource, runtime::watcher::Config};
use liqo_api::{ForeignCluster, NAMESPACE_MAP, NamespaceMap, PeeringPolicy, labels, tenant_namespace};
use liqo_kit::{Cache, Context, Key, Next, Queue, cache::whole, policies::without_status};

use admission::Offer;
use ledger::Ledger;
use lifecycle::{Place, PlaceState};
use liqo_quantity::ResourceList;
use namespaces::{OurKind, OurNamespace};
use reflection::Source;
use remote_pods::{PodIndex, RemotePod, WatchedPod};
use shadows::Shadow;
use twins::{Group, Work};

use crate::networks::{Network, Networks};

/// How many shadow pods are looked at at the same time.
const SHADOW_POD_WORKERS: usize = 16;
/// How many namespace maps and mapped namespaces are looked at at the same time.
const NAMESPACE_WORKERS: usize = 4;
/// How long home has to take back an endpoint whose pod is gone here.
const ADDRESS_DELAY: Duration = Duration::from_secs(2);
/// How long those who wait for room are left waiting after some became free, so that they are looked at once for many.
const ROOM_DELAY: Duration = Duration::from_millis(200);

/// How long the walls wait after something changed that they go by: nodes and peers come by the dozen.
const WALLS_DELAY: Duration = Duration::from_millis(300);

/// A step towards the wanted state failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading an object.
    #[error("cannot read {kind} {key}")]
    Read {
        /// Its kind.
        kind: &'static str,
        /// Which one.
        key: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// Creating an object.
    #[error("cannot create {kind} {key}")]
    Create {
        /// Its kind.
        kind: &'static str,
        /// Which one.
        key: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// Changing an object.
    #[error("cannot change {kind} {key}")]
    Change {
        /// Its kind.
        kind: &'static str,
        /// Which one.
        key: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// Deleting an object.
    #[error("cannot delete {kind} {key}")]
    Delete {
        /// Its kind.
        kind: &'static str,
        /// Which one.
        key: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// Evicting a pod whose room is taken back.
    #[error("cannot evict pod {pod}, whose room is taken back")]
    Evict {
        /// The pod.
        pod: Key,
        /// What the API server said.
        source: kube::Error,
    },
    /// Writing an object as JSON.
    #[error("cannot write {kind} {key} as JSON")]
    Encode {
        /// Its kind.
        kind: &'static str,
        /// Which one.
        key: Key,
        /// Why.
        source: serde_json::Error,
    },
    /// Another pod of the name was there a moment ago, and is not any more.
    #[error("the name of pod {0} was taken a moment ago and is free now")]
    NameFreed(Key),
}

/// Everything that the provider's controllers share.
struct Provider {
    context: Context,
    queues: Queues,
    namespaces: Cache<OurNamespace>,
    maps: Cache<NamespaceMap>,
    offers: Cache<Offer>,
    shadows: Cache<Shadow>,
    pods: Cache<RemotePod>,
    objects: Cache<Source>,
    policies: Cache<PeeringPolicy>,
    /// How consumers and we see each other's addresses.
    networks: Networks,
    /// Without their status, which says nothing of who they are.
    foreign_clusters: Cache<ForeignCluster>,
    /// The overhead of each `RuntimeClass`.
    runtime_classes: Cache<ResourceList>,
    /// The networks of each real node that are not private.
    nodes: Cache<BTreeSet<IpNet>>,
    index: Arc<Mutex<PodIndex>>,
    ledger: Arc<Mutex<Ledger>>,
    secrets: Mutex<HashMap<String, twins::TenantSecrets>>,
    mapped: mapped_namespaces::Memory,
    shadow_memory: Mutex<HashMap<Key, shadow_pods::Memory>>,
    accounts: accounts::Memory,
    held: policies::Memory,
}

#[derive(Clone, Default)]
struct Queues {
    /// Tenant namespaces whose mapped namespaces are to be looked at.
    maps: Queue<String>,
    /// Tenant namespaces whose Secrets are to be watched, or no longer.
    tenants: Queue<String>,
    /// Tenant namespaces whose shadow pods are to be looked at: all of them, or only those that wait.
    wake: Queue<(String, bool)>,
    /// Shadow pods.
    shadows: Queue<Key>,
    /// Reflected objects to be looked at.
    twins: Queue<Work>,
    /// Offers (tenant namespace and pool) and what is charged to them.
    accounts: Queue<Key>,
    /// What consumers may use may have changed.
    policies: Queue<()>,
    /// What is not the internet here, or where our API servers are, may have changed.
    walls: Queue<()>,
}

/// Runs the provider's side until the context's `stop`.
pub async fn run(context: Context) {
    let provider = Arc::new(Provider::start(context));
    let stop = provider.context.stop.clone();
    let synced = async {
        provider.namespaces.synced().await
            && provider.maps.synced().await
            && provider.offers.synced().await
            && provider.shadows.synced().await
            && provider.pods.synced().await
            && provider.objects.synced().await
            && provider.policies.synced().await
            && provider.foreign_clusters.synced().await
            && provider.runtime_classes.synced().await
            && provider.networks.synced().await
            && provider.nodes.synced().await
    };
    // Nothing is concluded from what is not there before everything that is there was listed.
    tokio::select! {
        all = synced => if !all { return },
        () = stop.cancelled() => return,
    }
    // Pods that are being taken back are known before they are looked at.
    accounts::settle_all(&provider);
    let queues = &provider.queues;
    let with = |provider: &Arc<Provider>| provider.clone();
    let (maps, tenants, wake, shadows) = (with(&provider), with(&provider), with(&provider), with(&provider));
    let (twins, accounts, policies, walls) = (with(&provider), with(&provider), with(&provider), with(&provider));
    let mut config = provider.context.config.clone();
    let follow_config = async {
        while let Some(Ok(())) = stop.run_until_cancelled(config.changed()).await {
            queues.walls.add(());
        }
    };
    tokio::join!(
        queues.maps.run("mapped-namespaces", NAMESPACE_WORKERS, stop.clone(), move |tenant| {
            mapped_namespaces::reconcile(maps.clone(), tenant)
        }),
        queues.tenants.run("tenant-secrets", 1, stop.clone(), move |tenant| {
            twins::follow_tenant(&tenants, tenant);
            std::future::ready(Ok::<_, Error>(Next::OnChange))
        }),
        queues.wake.run("wake", 1, stop.clone(), move |(tenant, all)| {
            wake.wake(&tenant, all);
            std::future::ready(Ok::<_, Error>(Next::OnChange))
        }),
        queues
            .shadows
            .run("shadow-pods", SHADOW_POD_WORKERS, stop.clone(), move |key| { shadow_pods::reconcile(shadows.clone(), key) }),
        queues.twins.run("twins", NAMESPACE_WORKERS, stop.clone(), move |key| twins::reconcile(twins.clone(), key)),
        queues.accounts.run("accounts", 1, stop.clone(), move |key| {
            std::future::ready(Ok::<_, Error>(accounts::settle(&accounts, &key)))
        }),
        queues.policies.run("usage", 1, stop.clone(), move |()| {
            policies::changed(&policies);
            std::future::ready(Ok::<_, Error>(Next::OnChange))
        }),
        queues.walls.run("walls", 1, stop.clone(), move |()| {
            walls.look_at_walls();
            std::future::ready(Ok::<_, Error>(Next::OnChange))
        }),
        follow_config,
    );
}

impl Provider {
    fn start(context: Context) -> Self {
        let queues = Queues::default();
        let index: Arc<Mutex<PodIndex>> = Arc::default();
        let ledger: Arc<Mutex<Ledger>> = Arc::default();
        let (client, stop) = (context.client.clone(), context.stop.clone());

        let ours = format!("{} in ({},{})", labels::NAMESPACE_KIND, namespaces::TENANT, namespaces::MAPPED);
        let (to, count) = (queues.clone(), ledger.clone());
        let namespaces = Cache::watch(
            Api::all(client.clone()),
            Config::default().labels(&ours),
            stop.clone(),
            OurNamespace::reduce,
            move |_, old, new| {
                lock(&count).recount();
                for namespace in [old, new].into_iter().flatten() {
                    to.namespace_changed(namespace);
                }
            },
        );

        let to = queues.clone();
        let only_the_map =
            |map: NamespaceMap| if map.metadata.name.as_deref() == Some(NAMESPACE_MAP) { whole(map) } else { None };
        let maps = Cache::watch(Api::all(client.clone()), Config::default(), stop.clone(), only_the_map, move |key, old, new| {
            to.maps.add(key.namespace.clone());
            to.wake.add((key.namespace.clone(), true));
            for map in [old, new].into_iter().flatten() {
                for home in map.spec.mappings.keys() {
                    for work in Work::all(&key.namespace, home) {
                        to.twins.add(work);
                    }
                }
            }
        });

        let to = queues.clone();
        let offers = Cache::watch(Api::all(client.clone()), Config::default(), stop.clone(), Offer::reduce, move |key, _, _| {
            to.wake.add((key.namespace.clone(), false));
            to.accounts.add(key.clone());
        });

        let (to, count) = (queues.clone(), ledger.clone());
        let reduce = |shadow| Some(Shadow::reduce(shadow));
        let shadows = Cache::watch(Api::all(client.clone()), Config::default(), stop.clone(), reduce, move |key, old, new| {
            // The status is ours: what we wrote is no news.
            if old.zip(new).is_none_or(|(old, new)| new.differs_beyond_status(old)) {
                // The look that follows ends its wait if it is not for room.
                if let Some(wish) = new.and_then(|new| new.wish(key)) {
                    lock(&count).arrived(wish);
                }
                to.shadows.add(key.clone());
            }
        });

        let (to, find, count, places) = (queues.clone(), index.clone(), ledger.clone(), namespaces.clone());
        let pods: Api<WatchedPod> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
        let pods = Cache::watch(
            pods,
            Config::default().labels(labels::SHADOW_POD),
            stop.clone(),
            RemotePod::reduce,
            move |_, old, new| {
                for waiting in lock(&find).changed(old, new) {
                    to.shadows.add(waiting);
                }
                for waiting in lock(&count).pod_changed(old.map(AsRef::as_ref), new.map(AsRef::as_ref)) {
                    to.shadows.add_after(waiting, ROOM_DELAY);
                }
                for pod in [old, new].into_iter().flatten() {
                    to.shadows.add(pod.shadow_key());
                    to.accounts.add_after(pod.account().offer(), ROOM_DELAY);
                }
                if let (Some(gone), None) = (old, new) {
                    to.maps.add_after(tenant_namespace(&gone.consumer), ROOM_DELAY);
                }
                // Home takes the endpoint back by itself, as a rule.
                if let Some(old) =
                    old.filter(|old| new.is_none_or(|new| new.addresses != old.addresses) && !old.addresses.is_empty())
                    && let Some(OurKind::Mapped { home }) =
                        places.get(&Key::new("", &old.key.namespace)).map(|place| place.kind.clone())
                {
                    to.twins
                        .add_after(Work { tenant: tenant_namespace(&old.consumer), home, group: Group::Services }, ADDRESS_DELAY);
                }
            },
        );

        let (to, homes) = (queues.clone(), maps.clone());
        let objects = Cache::watch(
            Api::all(client.clone()),
            Config::default(),
            stop.clone(),
            |object| Some(Source::of_object(object)),
            move |key, old, new| {
                for source in [old, new].into_iter().flatten() {
                    to.twins.add(Work::of(source));
                }
                // Which of a consumer's Services have load balancers depends on all that ask for one.
                let has = |source: Option<&Arc<Source>>| source.is_some_and(|source| source.asks_for_balancer());
                if has(old) != has(new) {
                    let map = homes.get(&Key::new(&key.namespace, NAMESPACE_MAP));
                    for home in map.iter().flat_map(|map| map.spec.mappings.keys()) {
                        to.twins.add(Work { tenant: key.namespace.clone(), home: home.clone(), group: Group::Services });
                    }
                }
            },
        );

        let to = queues.policies.clone();
        let policies =
            Cache::watch(Api::all(client.clone()), Config::default(), stop.clone(), without_status, move |_, _, _| to.add(()));
        let to = queues.policies.clone();
        let identity = |cluster: ForeignCluster| Some(policies::identity(cluster));
        let foreign_clusters =
            Cache::watch(Api::all(client.clone()), Config::default(), stop.clone(), identity, move |_, _, _| to.add(()));
        let to = queues.policies.clone();
        let overhead = |class: RuntimeClass| Some(policies::overhead(class));
        let runtime_classes =
            Cache::watch(Api::all(client.clone()), Config::default(), stop.clone(), overhead, move |_, _, _| to.add(()));
        let to = queues.walls.clone();
        let real = Config::default().labels(&format!("{}!={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE));
        let networks_of_node = |node: Node| Some(walls::networks_of_node(&node)).filter(|networks| !networks.is_empty());
        let nodes = Cache::watch(Api::all(client), real, stop, networks_of_node, move |_, _, _| to.add_after((), WALLS_DELAY));
        let (to, places) = (queues.clone(), namespaces.clone());
        let networks = Networks::follow(&context, move |consumer, old, new| {
            // Where one peer is, is not the internet for any consumer.
            let taken = |network: Option<&Network>| walls::not_private(network.iter().flat_map(|network| network.places()));
            if taken(old) != taken(new) {
                to.walls.add_after((), WALLS_DELAY);
            }
            let tenant = tenant_namespace(&consumer);
            for (_, place) in places.all().iter().filter(|(_, place)| place.consumer == consumer) {
                if let OurKind::Mapped { home } = &place.kind {
                    for group in [Group::Services, Group::Policies] {
                        to.twins.add(Work { tenant: tenant.clone(), home: home.clone(), group });
                    }
                }
            }
        });

        Self {
            context,
            queues,
            namespaces,
            maps,
            offers,
            shadows,
            pods,
            objects,
            policies,
            networks,
            foreign_clusters,
            runtime_classes,
            nodes,
            index,
            ledger,
            secrets: Mutex::default(),
            mapped: mapped_namespaces::Memory::default(),
            shadow_memory: Mutex::default(),
            accounts: accounts::Memory::default(),
            held: policies::Memory::default(),
        }
    }

    /// Looks at the shadow pods of a tenant again: at all of them, or only at those that wait for something.
    fn wake(&self, tenant: &str, all: bool) {
        for (key, shadow) in self.shadows.all() {
            if key.namespace == tenant && (all || shadow.told.remote_uid.is_none()) {
                self.queues.shadows.add(key);
            }
        }
    }

    /// Looks at the policies of all mapped namespaces again.
    fn look_at_walls(&self) {
        if walls::are_everywhere(&mapped_namespaces::inside(self)) {
            tracing::warn!(
                "nodes, peers and this cluster have more than a thousand networks with public addresses, and policies have no room for \
                 more: pods of consumers do not reach the internet"
            );
        }
        for (_, place) in self.namespaces.all() {
            if let OurKind::Mapped { home } = &place.kind {
                let (tenant, home) = (tenant_namespace(&place.consumer), home.clone());
                self.queues.twins.add(Work { tenant, home, group: Group::Policies });
            }
        }
    }

    /// Looks at shadow pods that may find room now.
    fn look_for_room(&self, waiting: Vec<Key>) {
        for key in waiting {
            self.queues.shadows.add(key);
        }
    }

    /// The tenant whose namespace this is, if it is one.
    fn tenant(&self, namespace: &str) -> Option<Arc<OurNamespace>> {
        self.namespace(namespace).filter(|found| matches!(found.kind, OurKind::Tenant { .. }))
    }

    /// The namespace of ours with this name.
    fn namespace(&self, name: &str) -> Option<Arc<OurNamespace>> {
        self.namespaces.get(&Key::new("", name))
    }

    /// The map of a tenant.
    fn map(&self, tenant: &str) -> Option<Arc<NamespaceMap>> {
        self.maps.get(&Key::new(tenant, NAMESPACE_MAP))
    }

    /// Every namespace of ours, by name.
    fn all_namespaces(&self) -> BTreeMap<String, Arc<OurNamespace>> {
        self.namespaces.all().into_iter().map(|(key, namespace)| (key.name, namespace)).collect()
    }

    /// Where pods and objects of a consumer's namespace belong.
    fn place(&self, tenant: &str, home: &str) -> Place {
        namespaces::place(self.tenant(tenant).as_deref(), self.map(tenant).as_deref(), home, |name| self.namespace(name))
    }

    /// The same for pods, which wait until the namespace enforces the Pod Security standard that the policy names.
    fn place_of_pods(&self, tenant: &str, home: &str) -> Place {
        let mut place = self.place(tenant, home);
        if place.state == PlaceState::Ready
            && let Some(found) = self.namespace(&place.namespace)
            && let Some(level) = usage::missing_level(&found, self.held(&found.consumer).as_ref())
        {
            place.state =
                PlaceState::NotReady(format!("namespace {} is being set to Pod Security level {level}", place.namespace));
        }
        place
    }

    /// Whether this namespace was made for this tenant.
    fn is_mapped_for(&self, namespace: &str, tenant: &str) -> bool {
        self.namespace(namespace)
            .is_some_and(|found| matches!(found.kind, OurKind::Mapped { .. }) && tenant_namespace(&found.consumer) == tenant)
    }
}

impl Queues {
    fn namespace_changed(&self, namespace: &OurNamespace) {
        let tenant = tenant_namespace(&namespace.consumer);
        self.maps.add(tenant.clone());
        self.wake.add((tenant.clone(), true));
        match &namespace.kind {
            OurKind::Tenant { .. } => self.tenants.add(tenant),
            OurKind::Mapped { home } => {
                for work in Work::all(&tenant, home) {
                    self.twins.add(work);
                }
            }
        }
    }
}

/// The content of a lock; a panic elsewhere does not make it unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes nothing of an answer that says the object is gone.
fn unless_gone<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes nothing of an answer that says the object is gone or another one of the same name took its place.
fn unless_gone_or_replaced<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
        answer => unless_gone(answer),
    }
}
