//! Watches the objects that open addresses are computed from. Only gateways do.
//!
//! Pods and endpoints change all the time in a busy cluster, and few of them are open to a peer, or use the API server from there. So this
//! module computes the addresses, and the node controller runs only when they changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, runtime::watcher};
use liqo_api::reflection;
use liqo_api::{ClusterId, NamespaceOffloading, labels};
use liqo_controller_runtime::{Batches, Cache, Key};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    decide::reachable_addresses::{
        Exposure, OpenAddresses, RemotePod, addresses_of_home_namespaces, offloaded_addresses, reachable_addresses,
    },
    view::{self, Backends, MappedNamespaceView, OffloadingView},
};

/// Changes come in groups; after this time they are processed together.
const SETTLE: Duration = Duration::from_millis(70);
/// The same while addresses go on to change: for each batch, the node lists all of them in its kernel.
const MAX_SETTLE: Duration = Duration::from_secs(1);
/// Page size of lists of remote pods: each may be as large as a consumer's record.
const POD_PAGE: u32 = 50;

/// The input that comes from other watches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExposureContext {
    /// Without virtual nodes.
    pub nodes: BTreeSet<String>,
    /// The prefixes of our peers, in our address space.
    pub remote: Vec<IpNet>,
}

/// The watches. They end when this is dropped.
pub struct OpenWatches {
    context: watch::Sender<ExposureContext>,
    addresses: watch::Receiver<Option<OpenAddresses>>,
    _stop: DropGuard,
}

struct ExposureWatches {
    mapped: Cache<MappedNamespaceView>,
    pods: Cache<(ClusterId, BTreeSet<IpAddr>)>,
    offloadings: Cache<OffloadingView>,
    services: Cache<bool>,
    backends: Cache<Backends>,
    api_clients: ApiClients,
}

/// The pods that use the API server from elsewhere, in each namespace that allows it.
struct ApiClients {
    client: Client,
    dirty: Arc<Notify>,
    stop: CancellationToken,
    namespaces: BTreeMap<String, (Cache<BTreeSet<IpAddr>>, DropGuard)>,
}

impl ApiClients {
    /// Watches these namespaces and no others.
    fn watch(&mut self, namespaces: &BTreeSet<String>) {
        self.namespaces.retain(|name, _| namespaces.contains(name));
        for name in namespaces {
            self.namespaces.entry(name.clone()).or_insert_with(|| {
                let (api, stop) = (Api::<Pod>::namespaced(self.client.clone(), name), self.stop.child_token());
                let config = watcher::Config::default();
                (Cache::watch(api, config, stop.clone(), view::api_client, notify(&self.dirty)), stop.drop_guard())
            });
        }
    }

    async fn synced(&self) {
        for (pods, _) in self.namespaces.values() {
            pods.synced().await;
        }
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        let all = self.namespaces.values().flat_map(|(pods, _)| pods.all());
        all.flat_map(|(_, addresses)| (*addresses).clone()).collect()
    }
}

impl OpenWatches {
    /// Starts to watch. `changed` is notified when the addresses changed.
    pub fn start(client: &Client, context: ExposureContext, changed: &Arc<Notify>) -> Self {
        let stop = CancellationToken::new();
        let dirty = Arc::new(Notify::new());
        let watches = ExposureWatches::start(client, &dirty, &stop);
        let (context, context_receiver) = watch::channel(context);
        let (publish, addresses) = watch::channel(None);
        let (changed, stopped) = (changed.clone(), stop.clone());
        tokio::spawn(async move {
            let follow = watches.follow(&dirty, context_receiver, |addresses| {
                let is_new = publish.send_if_modified(|before| {
                    let differs = before.as_ref() != Some(&addresses);
                    *before = Some(addresses);
                    differs
                });
                if is_new {
                    changed.notify_one();
                }
                is_new
            });
            tokio::select! {
                () = stopped.cancelled() => {}
                () = follow => {}
            }
        });
        Self { context, addresses, _stop: stop.drop_guard() }
    }

    /// The addresses that are open; `None` until all lists are complete.
    pub fn addresses(&self, context: ExposureContext) -> Option<OpenAddresses> {
        self.context.send_if_modified(|before| {
            let differs = *before != context;
            *before = context;
            differs
        });
        self.addresses.borrow().clone()
    }

    /// Waits until all lists are complete.
    pub async fn complete(&self) {
        // An error means that the watches have ended.
        let _ = self.addresses.clone().wait_for(Option::is_some).await;
    }
}

impl ExposureWatches {
    fn start(client: &Client, dirty: &Arc<Notify>, stop: &CancellationToken) -> Self {
        let all = watcher::Config::default;
        let of_consumers = all().labels(&format!("{}={}", labels::NAMESPACE_KIND, labels::KIND_MAPPED));
        Self {
            mapped: Cache::watch(
                Api::<Namespace>::all(client.clone()),
                of_consumers,
                stop.clone(),
                |namespace| view::mapped_namespace(&namespace),
                notify(dirty),
            ),
            pods: Cache::watch(
                Api::<Pod>::all(client.clone()),
                all().labels(labels::SHADOW_POD).page_size(POD_PAGE),
                stop.clone(),
                view::remote_pod,
                notify(dirty),
            ),
            offloadings: Cache::watch(
                Api::<NamespaceOffloading>::all(client.clone()),
                all(),
                stop.clone(),
                view::offloading,
                notify(dirty),
            ),
            services: Cache::watch(
                Api::<Service>::all(client.clone()),
                all(),
                stop.clone(),
                |service| view::service(&service),
                notify(dirty),
            ),
            backends: Cache::watch(Api::<EndpointSlice>::all(client.clone()), all(), stop.clone(), view::backends, notify(dirty)),
            api_clients: ApiClients {
                client: client.clone(),
                dirty: dirty.clone(),
                stop: stop.clone(),
                namespaces: BTreeMap::new(),
            },
        }
    }

    /// `publish` returns whether the addresses changed.
    async fn follow(
        mut self,
        dirty: &Notify,
        mut context: watch::Receiver<ExposureContext>,
        publish: impl Fn(OpenAddresses) -> bool,
    ) {
        tokio::join!(
            self.mapped.synced(),
            self.pods.synced(),
            self.offloadings.synced(),
            self.services.synced(),
            self.backends.synced()
        );
        self.api_clients.watch(&self.namespaces_of_api_clients());
        // Otherwise a gateway that starts would close connections that exist.
        self.api_clients.synced().await;
        let mut batches = Batches::default();
        loop {
            self.api_clients.watch(&self.namespaces_of_api_clients());
            if publish(self.addresses(context.borrow_and_update().clone())) {
                batches.processed(Instant::now(), SETTLE, MAX_SETTLE);
            }
            tokio::select! {
                () = dirty.notified() => {}
                still = context.changed() => if still.is_err() { return },
            }
            tokio::time::sleep(batches.wait(Instant::now()).max(SETTLE)).await;
        }
    }

    fn namespaces_of_api_clients(&self) -> BTreeSet<String> {
        let allowing = |offloading: &OffloadingView| offloading.api_server && !offloading.clusters.is_empty();
        self.offloadings.all().into_iter().filter(|(_, offloading)| allowing(offloading)).map(|(key, _)| key.namespace).collect()
    }

    fn addresses(&self, ExposureContext { nodes, remote }: ExposureContext) -> OpenAddresses {
        let offloaded: BTreeMap<String, OffloadingView> =
            self.offloadings.all().into_iter().map(|(key, offloading)| (key.namespace, (*offloading).clone())).collect();
        let is_known = |namespace: &str, allowed: bool| {
            offloaded.get(namespace).is_some_and(|one| reflection::passes(one.reflection, allowed))
        };
        let services = self.services.all().into_iter().filter(|(key, allowed)| is_known(&key.namespace, **allowed));
        // Whoever creates a pod chooses its labels, but not its namespace's.
        let remote_pod = |(key, pod): (Key, Arc<(ClusterId, BTreeSet<IpAddr>)>)| {
            let namespace = self.mapped.get(&Key::new("", key.namespace.as_str()))?;
            let (consumer, addresses) = (*pod).clone();
            let home_namespace = namespace.home.clone();
            (namespace.consumer == consumer).then_some(RemotePod { consumer, home_namespace, addresses })
        };
        let exposure = Exposure {
            remote_pods: self.pods.all().into_iter().filter_map(remote_pod).collect(),
            services: services.map(|(key, _)| (key.namespace, key.name)).collect(),
            offloaded: offloaded.iter().map(|(namespace, one)| (namespace.clone(), one.clusters.clone())).collect(),
            backends: self.backends.all().into_iter().map(|(_, backends)| (*backends).clone()).collect(),
            nodes,
            remote,
        };
        OpenAddresses {
            reachable: reachable_addresses(&exposure),
            offloaded: offloaded_addresses(&exposure),
            of_home_namespaces: addresses_of_home_namespaces(&exposure),
            api_clients: self.api_clients.addresses(),
        }
    }
}

/// Notifies of each change of the kept values.
fn notify<T: PartialEq>(dirty: &Arc<Notify>) -> impl FnMut(&Key, Option<&Arc<T>>, Option<&Arc<T>>) + Send + use<T> {
    let dirty = dirty.clone();
    move |_, before, now| {
        if before != now {
            dirty.notify_one();
        }
    }
}
