//! Watches what openings follow from; only gateways do.
//!
//! Pods and endpoints come and go all the time in a busy cluster, and nearly none of them is open to a peer. So what follows from all
//! of it is found out here, and the node is looked at only when that differs.

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
use liqo_api::{ClusterId, NamespaceOffloading, Reflection, labels};
use liqo_kit::{Cache, Key, reflection};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    decide::openings::{Backends, Openings, Reachable, openings},
    view,
};

/// Changes come in groups; so much later they are looked at together.
const TOGETHER: Duration = Duration::from_millis(70);

/// What else openings follow from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Around {
    /// Our nodes, without virtual ones.
    pub nodes: BTreeSet<String>,
    /// Where our peers appear.
    pub remote: Vec<IpNet>,
}

/// The watches. They end when this goes.
pub struct OpeningWatches {
    around: watch::Sender<Around>,
    found: watch::Receiver<Option<Openings>>,
    _ends_them: DropGuard,
}

struct Watches {
    pods: Cache<(ClusterId, BTreeSet<IpAddr>)>,
    offloadings: Cache<(BTreeSet<ClusterId>, Reflection)>,
    services: Cache<bool>,
    backends: Cache<Backends>,
}

impl OpeningWatches {
    /// Begins to watch; `changed` is told when a peer may reach something else than before.
    pub fn start(client: &Client, around: Around, changed: &Arc<Notify>) -> Self {
        let stop = CancellationToken::new();
        let dirty = Arc::new(Notify::new());
        let watches = Watches::start(client, &dirty, &stop);
        let (around, of_around) = watch::channel(around);
        let (publish, found) = watch::channel(None);
        let (changed, stopped) = (changed.clone(), stop.clone());
        tokio::spawn(async move {
            let follow = watches.follow(&dirty, of_around, |openings| {
                let is_new = publish.send_if_modified(|before| {
                    let differs = before.as_ref() != Some(&openings);
                    *before = Some(openings);
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
        Self { around, found, _ends_them: stop.drop_guard() }
    }

    /// What each peer may reach; nothing as long as a list is not complete.
    pub fn openings(&self, around: Around) -> Option<Openings> {
        self.around.send_if_modified(|before| {
            let differs = *before != around;
            *before = around;
            differs
        });
        self.found.borrow().clone()
    }

    /// Waits until all lists are complete.
    pub async fn complete(&self) {
        // An error is the end of the watches.
        let _ = self.found.clone().wait_for(Option::is_some).await;
    }
}

impl Watches {
    fn start(client: &Client, dirty: &Arc<Notify>, stop: &CancellationToken) -> Self {
        let all = watcher::Config::default;
        Self {
            pods: Cache::watch(
                Api::<Pod>::all(client.clone()),
                all().labels(labels::SHADOW_POD),
                stop.clone(),
                view::remote_pod,
                tell(dirty),
            ),
            offloadings: Cache::watch(
                Api::<NamespaceOffloading>::all(client.clone()),
                all(),
                stop.clone(),
                view::offloading,
                tell(dirty),
            ),
            services: Cache::watch(
                Api::<Service>::all(client.clone()),
                all(),
                stop.clone(),
                |service| view::service(&service),
                tell(dirty),
            ),
            backends: Cache::watch(Api::<EndpointSlice>::all(client.clone()), all(), stop.clone(), view::backends, tell(dirty)),
        }
    }

    async fn follow(&self, dirty: &Notify, mut around: watch::Receiver<Around>, publish: impl Fn(Openings)) {
        tokio::join!(self.pods.synced(), self.offloadings.synced(), self.services.synced(), self.backends.synced());
        loop {
            publish(self.openings(around.borrow_and_update().clone()));
            tokio::select! {
                () = dirty.notified() => {}
                still = around.changed() => if still.is_err() { return },
            }
            tokio::time::sleep(TOGETHER).await;
        }
    }

    fn openings(&self, Around { nodes, remote }: Around) -> Openings {
        let offloaded: BTreeMap<String, (BTreeSet<ClusterId>, Reflection)> =
            self.offloadings.all().into_iter().map(|(key, offloading)| (key.namespace, (*offloading).clone())).collect();
        let is_known =
            |namespace: &str, allowed: bool| offloaded.get(namespace).is_some_and(|(_, list)| reflection::passes(*list, allowed));
        let services = self.services.all().into_iter().filter(|(key, allowed)| is_known(&key.namespace, **allowed));
        openings(&Reachable {
            remote_pods: self.pods.all().into_iter().map(|(_, pod)| (*pod).clone()).collect(),
            services: services.map(|(key, _)| (key.namespace, key.name)).collect(),
            offloaded: offloaded.iter().map(|(namespace, (clusters, _))| (namespace.clone(), clusters.clone())).collect(),
            backends: self.backends.all().into_iter().map(|(_, backends)| (*backends).clone()).collect(),
            nodes,
            remote,
        })
    }
}

/// Tells of each change of what is kept.
fn tell<T: PartialEq>(dirty: &Arc<Notify>) -> impl FnMut(&Key, Option<&Arc<T>>, Option<&Arc<T>>) + Send + use<T> {
    let dirty = dirty.clone();
    move |_, before, now| {
        if before != now {
            dirty.notify_one();
        }
    }
}
