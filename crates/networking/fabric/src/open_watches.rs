//! On gateways: computes the addresses that are open to single peers, from watched objects.
//!
//! Pods and endpoints change all the time in a busy cluster, but few of them are open to a peer, or
//! use the API server from there. So this module computes the addresses, and the node controller
//! runs only when they changed.

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
use liqo_api::{ClusterId, NamespaceOffloading, labels};
use liqo_controller_runtime::{Batches, Cache, Key};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    decide::reachable_addresses::{ExposureInput, OpenAddresses, RunningRemotePod, open_addresses},
    view::{
        self, LocalPodView, MappedNamespaceView, MarkedService, OffloadingView, ServiceBackends,
    },
};

/// Changes come in groups; after this time they are processed together.
const SETTLE: Duration = Duration::from_millis(70);
/// The same while addresses go on to change: for each batch, the node lists all of them in its
/// kernel.
const MAX_SETTLE: Duration = Duration::from_secs(1);
/// Page size of lists of pods: each may be as large as a consumer's record.
const POD_PAGE: u32 = 50;
/// Selects pods that may have an address, so that most changes of a pod that starts come as one.
const WITH_ADDRESS: &str = "status.podIP!=,status.phase!=Succeeded,status.phase!=Failed";

/// The input that comes from other watches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExposureContext {
    /// Without virtual nodes.
    pub nodes: BTreeSet<String>,
    /// The prefixes of each peer, in our address space.
    pub remote: BTreeMap<ClusterId, Vec<IpNet>>,
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
    services: Cache<MarkedService>,
    backends: Cache<ServiceBackends>,
    local_pods: LocalPodCaches,
}

/// The pods of offloaded namespaces, in each namespace whose pods matter.
struct LocalPodCaches {
    client: Client,
    dirty: Arc<Notify>,
    stop: CancellationToken,
    namespaces: BTreeMap<String, (Cache<LocalPodView>, DropGuard)>,
}

impl LocalPodCaches {
    /// Watches these namespaces and no others, and waits until the list of each is complete.
    async fn watch_namespaces(&mut self, namespaces: &BTreeSet<String>) {
        self.namespaces.retain(|name, _| namespaces.contains(name));
        for name in namespaces {
            self.namespaces.entry(name.clone()).or_insert_with(|| {
                let (api, stop) = (
                    Api::<Pod>::namespaced(self.client.clone(), name),
                    self.stop.child_token(),
                );
                let config = watcher::Config::default()
                    .fields(WITH_ADDRESS)
                    .page_size(POD_PAGE);
                let pods = Cache::watch(
                    api,
                    config,
                    stop.clone(),
                    |pod| view::local_pod(&pod),
                    notify_of_changes(&self.dirty),
                );
                (pods, stop.drop_guard())
            });
        }
        for (pods, _) in self.namespaces.values() {
            pods.wait_until_synced().await;
        }
    }

    fn pods_by_namespace(&self) -> BTreeMap<String, Vec<Arc<LocalPodView>>> {
        let mut pods = BTreeMap::new();
        for (namespace, (cache, _)) in &self.namespaces {
            let all = cache.all().into_iter();
            pods.insert(namespace.clone(), all.map(|(_, pod)| pod).collect());
        }
        pods
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
            let follow = watches.follow_changes(&dirty, context_receiver, |addresses| {
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
        Self {
            context,
            addresses,
            _stop: stop.drop_guard(),
        }
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
    pub async fn wait_until_complete(&self) {
        // An error means that the watches have ended.
        let _ = self.addresses.clone().wait_for(Option::is_some).await;
    }
}

impl ExposureWatches {
    fn start(client: &Client, dirty: &Arc<Notify>, stop: &CancellationToken) -> Self {
        let all = watcher::Config::default;
        let of_consumers = all().labels(&format!(
            "{}={}",
            labels::NAMESPACE_KIND,
            labels::KIND_MAPPED
        ));
        Self {
            mapped: Cache::watch(
                Api::<Namespace>::all(client.clone()),
                of_consumers,
                stop.clone(),
                |namespace| view::mapped_namespace(&namespace),
                notify_of_changes(dirty),
            ),
            pods: Cache::watch(
                Api::<Pod>::all(client.clone()),
                all()
                    .labels(labels::SHADOW_POD)
                    .fields(WITH_ADDRESS)
                    .page_size(POD_PAGE),
                stop.clone(),
                |pod| view::remote_pod(&pod),
                notify_of_changes(dirty),
            ),
            offloadings: Cache::watch(
                Api::<NamespaceOffloading>::all(client.clone()),
                all(),
                stop.clone(),
                view::offloading_view,
                notify_of_changes(dirty),
            ),
            services: Cache::watch(
                Api::<Service>::all(client.clone()),
                all(),
                stop.clone(),
                |service| view::marked_service(&service),
                notify_of_changes(dirty),
            ),
            backends: Cache::watch(
                Api::<EndpointSlice>::all(client.clone()),
                all(),
                stop.clone(),
                |slice| view::service_backends(&slice),
                notify_of_changes(dirty),
            ),
            local_pods: LocalPodCaches {
                client: client.clone(),
                dirty: dirty.clone(),
                stop: stop.clone(),
                namespaces: BTreeMap::new(),
            },
        }
    }

    /// `publish` returns whether the addresses changed.
    async fn follow_changes(
        mut self,
        dirty: &Notify,
        mut context: watch::Receiver<ExposureContext>,
        publish: impl Fn(OpenAddresses) -> bool,
    ) {
        tokio::join!(
            self.mapped.wait_until_synced(),
            self.pods.wait_until_synced(),
            self.offloadings.wait_until_synced(),
            self.services.wait_until_synced(),
            self.backends.wait_until_synced()
        );
        let mut batches = Batches::default();
        loop {
            // Otherwise a gateway that starts would close connections that exist.
            self.local_pods
                .watch_namespaces(&self.namespaces_whose_pods_matter())
                .await;
            if publish(self.addresses(context.borrow_and_update().clone())) {
                batches.record_batch(Instant::now(), SETTLE, MAX_SETTLE);
            }
            tokio::select! {
                () = dirty.notified() => {}
                still = context.changed() => if still.is_err() { return },
            }
            tokio::time::sleep(batches.time_to_wait(Instant::now()).max(SETTLE)).await;
        }
    }

    fn remote_pods(&self) -> Vec<RunningRemotePod> {
        let mut pods = Vec::new();
        for (key, pod) in self.pods.all() {
            // Whoever creates a pod chooses its labels, but not its namespace's.
            let Some(namespace) = self.mapped.get(&Key::new("", key.namespace.as_str())) else {
                continue;
            };
            let (consumer, addresses) = (*pod).clone();
            if namespace.consumer == consumer {
                pods.push(RunningRemotePod {
                    consumer,
                    home_namespace: namespace.home.clone(),
                    addresses,
                });
            }
        }
        pods
    }

    fn offloaded_namespaces(&self) -> BTreeMap<String, Arc<OffloadingView>> {
        self.offloadings
            .all()
            .into_iter()
            .map(|(key, offloading)| (key.namespace, offloading))
            .collect()
    }

    /// The Services of offloaded namespaces, and whether each is reflected.
    fn offloaded_services(
        &self,
        offloaded: &BTreeMap<String, Arc<OffloadingView>>,
    ) -> BTreeMap<(String, String), bool> {
        let mut services = BTreeMap::new();
        for (key, marked) in self.services.all() {
            if let Some(offloading) = offloaded.get(&key.namespace) {
                let is_reflected = marked.is_reflected(offloading.reflection);
                services.insert((key.namespace, key.name), is_reflected);
            }
        }
        services
    }

    fn namespaces_whose_pods_matter(&self) -> BTreeSet<String> {
        let offloaded = self.offloaded_namespaces();
        namespaces_whose_pods_matter(&offloaded, &self.offloaded_services(&offloaded))
    }

    fn addresses(&self, ExposureContext { nodes, remote }: ExposureContext) -> OpenAddresses {
        let offloaded = self.offloaded_namespaces();
        open_addresses(&ExposureInput {
            remote_pods: self.remote_pods(),
            services: self.offloaded_services(&offloaded),
            offloaded: offloaded
                .iter()
                .map(|(namespace, one)| (namespace.clone(), one.clusters.clone()))
                .collect(),
            backends: self
                .backends
                .all()
                .into_iter()
                .map(|(_, backends)| backends)
                .collect(),
            local_pods: self.local_pods.pods_by_namespace(),
            nodes,
            remote,
        })
    }
}

/// The namespaces that other clusters have, and that show them a Service or let their pods use the
/// API server here.
fn namespaces_whose_pods_matter(
    offloaded: &BTreeMap<String, Arc<OffloadingView>>,
    services: &BTreeMap<(String, String), bool>,
) -> BTreeSet<String> {
    let shown: BTreeSet<&String> = services
        .iter()
        .filter(|(_, is_reflected)| **is_reflected)
        .map(|((namespace, _), _)| namespace)
        .collect();
    let mattering = offloaded.iter().filter(|(namespace, offloading)| {
        !offloading.clusters.is_empty() && (offloading.api_server || shown.contains(namespace))
    });
    mattering.map(|(namespace, _)| namespace.clone()).collect()
}

/// Notifies of each change of the kept values.
fn notify_of_changes<T: PartialEq>(
    dirty: &Arc<Notify>,
) -> impl FnMut(&Key, Option<&Arc<T>>, Option<&Arc<T>>) + Send + use<T> {
    let dirty = dirty.clone();
    move |_, before, now| {
        if before != now {
            dirty.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::Reflection;

    use super::*;
    use crate::decide::fixtures::id;

    #[test]
    fn the_pods_of_a_namespace_matter_if_another_cluster_has_it_and_can_reach_one_of_them_or_be_reached()
     {
        let offloading = |clusters: &[char], api_server| {
            let clusters = clusters.iter().map(|letter| id(*letter)).collect();
            Arc::new(OffloadingView {
                clusters,
                reflection: Reflection::DenyList,
                api_server,
            })
        };
        let offloaded = [
            ("shop", offloading(&['a'], false)),
            ("nowhere", offloading(&[], true)),
            ("jobs", offloading(&['a'], false)),
            ("clients", offloading(&['a'], true)),
            ("hidden", offloading(&['a'], false)),
        ];
        let offloaded = offloaded
            .map(|(namespace, view)| (namespace.to_owned(), view))
            .into();
        let service = |namespace: &str| (namespace.to_owned(), "web".to_owned());
        let services = [
            (service("shop"), true),
            (service("nowhere"), true),
            (service("hidden"), false),
        ]
        .into();
        let expected = ["clients", "shop"].map(str::to_owned).into();
        assert_eq!(
            namespaces_whose_pods_matter(&offloaded, &services),
            expected
        );
    }
}
