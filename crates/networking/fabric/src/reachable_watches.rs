//! Watches the objects that reachable addresses are computed from. Only gateways do.
//!
//! Pods and endpoints change all the time in a busy cluster, and few of them are reachable for a peer. So this module computes the
//! addresses, and the node controller runs only when they changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, runtime::watcher};
use liqo_api::reflection;
use liqo_api::{ClusterId, NamespaceOffloading, Reflection, labels};
use liqo_controller_runtime::{Cache, Key};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    decide::reachable_addresses::{Exposure, ReachableAddresses, reachable_addresses},
    view::{self, Backends},
};

/// Changes come in groups; after this time they are processed together.
const SETTLE: Duration = Duration::from_millis(70);
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
pub struct ReachableWatches {
    context: watch::Sender<ExposureContext>,
    addresses: watch::Receiver<Option<ReachableAddresses>>,
    _stop: DropGuard,
}

struct ExposureWatches {
    pods: Cache<(ClusterId, BTreeSet<IpAddr>)>,
    offloadings: Cache<(BTreeSet<ClusterId>, Reflection)>,
    services: Cache<bool>,
    backends: Cache<Backends>,
}

impl ReachableWatches {
    /// Starts to watch. `changed` is notified when the addresses of a peer changed.
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
            });
            tokio::select! {
                () = stopped.cancelled() => {}
                () = follow => {}
            }
        });
        Self { context, addresses, _stop: stop.drop_guard() }
    }

    /// The addresses that each peer may reach; `None` until all lists are complete.
    pub fn addresses(&self, context: ExposureContext) -> Option<ReachableAddresses> {
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
        Self {
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
        }
    }

    async fn follow(&self, dirty: &Notify, mut context: watch::Receiver<ExposureContext>, publish: impl Fn(ReachableAddresses)) {
        tokio::join!(self.pods.synced(), self.offloadings.synced(), self.services.synced(), self.backends.synced());
        loop {
            publish(self.addresses(context.borrow_and_update().clone()));
            tokio::select! {
                () = dirty.notified() => {}
                still = context.changed() => if still.is_err() { return },
            }
            tokio::time::sleep(SETTLE).await;
        }
    }

    fn addresses(&self, ExposureContext { nodes, remote }: ExposureContext) -> ReachableAddresses {
        let offloaded: BTreeMap<String, (BTreeSet<ClusterId>, Reflection)> =
            self.offloadings.all().into_iter().map(|(key, offloading)| (key.namespace, (*offloading).clone())).collect();
        let is_known =
            |namespace: &str, allowed: bool| offloaded.get(namespace).is_some_and(|(_, list)| reflection::passes(*list, allowed));
        let services = self.services.all().into_iter().filter(|(key, allowed)| is_known(&key.namespace, **allowed));
        reachable_addresses(&Exposure {
            remote_pods: self.pods.all().into_iter().map(|(_, pod)| (*pod).clone()).collect(),
            services: services.map(|(key, _)| (key.namespace, key.name)).collect(),
            offloaded: offloaded.iter().map(|(namespace, (clusters, _))| (namespace.clone(), clusters.clone())).collect(),
            backends: self.backends.all().into_iter().map(|(_, backends)| (*backends).clone()).collect(),
            nodes,
            remote,
        })
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
