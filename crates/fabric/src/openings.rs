//! Watches what openings follow from; only gateways do.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, runtime::watcher};
use liqo_api::{ClusterId, NamespaceOffloading, labels};
use liqo_kit::Cache;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    decide::openings::{Backends, Openings, Reachable, openings},
    view,
};

/// The watches. They end when this goes.
pub struct OpeningWatches {
    pods: Cache<(ClusterId, BTreeSet<IpAddr>)>,
    offloadings: Cache<BTreeSet<ClusterId>>,
    services: Cache<()>,
    backends: Cache<Backends>,
    _ends_them: DropGuard,
}

impl OpeningWatches {
    /// Begins to watch; `changed` is told of each change.
    pub fn start(client: &Client, changed: &Arc<Notify>) -> Self {
        let stop = CancellationToken::new();
        let all = watcher::Config::default;
        let tell = || {
            let changed = changed.clone();
            move || changed.notify_one()
        };
        let (of_pods, of_offloadings, of_services, of_backends) = (tell(), tell(), tell(), tell());
        Self {
            pods: Cache::watch(
                Api::<Pod>::all(client.clone()),
                all().labels(labels::SHADOW_POD),
                stop.clone(),
                view::remote_pod,
                move |_, _, _| of_pods(),
            ),
            offloadings: Cache::watch(
                Api::<NamespaceOffloading>::all(client.clone()),
                all(),
                stop.clone(),
                view::offloading,
                move |_, _, _| of_offloadings(),
            ),
            services: Cache::watch(
                Api::<Service>::all(client.clone()),
                all(),
                stop.clone(),
                |service| view::service(&service),
                move |_, _, _| {
                    of_services();
                },
            ),
            backends: Cache::watch(
                Api::<EndpointSlice>::all(client.clone()),
                all(),
                stop.clone(),
                view::backends,
                move |_, _, _| of_backends(),
            ),
            _ends_them: stop.drop_guard(),
        }
    }

    /// What each peer may reach, where these are our nodes; nothing as long as a list is not complete.
    pub fn openings(&self, nodes: BTreeSet<String>) -> Option<Openings> {
        let complete =
            self.pods.is_synced() && self.offloadings.is_synced() && self.services.is_synced() && self.backends.is_synced();
        if !complete {
            return None;
        }
        Some(openings(&Reachable {
            remote_pods: self.pods.all().into_iter().map(|(_, pod)| (*pod).clone()).collect(),
            offloaded: self.offloadings.all().into_iter().map(|(key, clusters)| (key.namespace, (*clusters).clone())).collect(),
            services: self.services.all().into_iter().map(|(key, _)| (key.namespace, key.name)).collect(),
            backends: self.backends.all().into_iter().map(|(_, backends)| (*backends).clone()).collect(),
            nodes,
        }))
    }

    /// Waits until all lists are complete.
    pub async fn complete(&self) {
        tokio::join!(self.pods.synced(), self.offloadings.synced(), self.services.synced(), self.backends.synced());
    }
}
