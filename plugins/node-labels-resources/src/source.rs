//! Watches the cluster, computes the offers after each change, and answers Liqo from memory.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{Api, Client, runtime::watcher::Config};
use liqo_api::labels;
use liqo_controller_runtime::Cache;
use liqo_resource_plugin::{
    Announcer, Change, Pool, ResourceSource, SourceError, async_trait, selector::Selector,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::decide::{self, BoundPod, Offers, SelectedNode};

/// Changes within this time are handled together: a Deployment that is scaled up changes many pods.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// The source of this plugin: it offers what is free on the selected nodes.
pub struct NodeLabels {
    offers: watch::Receiver<Option<Arc<Offers>>>,
    announcer: Announcer,
}

/// The watched objects.
struct NodeLabelsWatches {
    nodes: Cache<SelectedNode>,
    pods: Cache<BoundPod>,
    namespaces: Cache<String>,
    changed: Arc<Notify>,
}

impl NodeLabels {
    /// Watches the cluster until `stop`.
    pub fn start(client: &Client, selectors: Vec<Selector>, stop: &CancellationToken) -> Self {
        let cluster = NodeLabelsWatches::watch(client, selectors, stop);
        let announcer = Announcer::new();
        let (sender, offers) = watch::channel(None);
        tokio::spawn({
            let (announcer, stop) = (announcer.clone(), stop.clone());
            async move {
                stop.run_until_cancelled(follow_changes(cluster, sender, announcer))
                    .await;
            }
        });
        Self { offers, announcer }
    }
}

/// Computes the offers once all objects are listed, and then a moment after each change.
async fn follow_changes(
    cluster: NodeLabelsWatches,
    offers: watch::Sender<Option<Arc<Offers>>>,
    announcer: Announcer,
) {
    let synced = [
        cluster.nodes.wait_until_synced().await,
        cluster.pods.wait_until_synced().await,
        cluster.namespaces.wait_until_synced().await,
    ];
    if synced.contains(&false) {
        return;
    }
    loop {
        let new = Arc::new(cluster.current_offers());
        // Before the first result, subscribers could not read.
        let changes = offers
            .borrow()
            .as_deref()
            .map_or_else(|| vec![Change::All], |old| old.changes_to(&new));
        offers.send_replace(Some(new.clone()));
        for change in changes {
            tracing::info!(?change, free = %new.offer_to(""), "the offers have changed");
            announcer.announce(&change);
        }
        cluster.changed.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
    }
}

impl NodeLabelsWatches {
    fn watch(client: &Client, selectors: Vec<Selector>, stop: &CancellationToken) -> Self {
        let changed = Arc::new(Notify::new());
        let [by_node, by_pod, by_namespace] = std::array::from_fn(|_| changed.clone());
        // When a pod finishes, it no longer matches, and the API server sends a deletion.
        let bound = Config::default()
            .fields("status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!=");
        let managed = Config::default().labels(&format!("{}=true", labels::MANAGED));
        Self {
            nodes: Cache::watch(
                Api::<Node>::all(client.clone()),
                Config::default(),
                stop.clone(),
                move |node| decide::select_node(node, &selectors),
                move |_, _, _| by_node.notify_one(),
            ),
            pods: Cache::watch(
                Api::<Pod>::all(client.clone()),
                bound,
                stop.clone(),
                decide::bound_pod,
                move |_, _, _| by_pod.notify_one(),
            ),
            namespaces: Cache::watch(
                Api::<Namespace>::all(client.clone()),
                managed,
                stop.clone(),
                decide::consumer_of_namespace,
                move |_, _, _| by_namespace.notify_one(),
            ),
            changed,
        }
    }

    fn current_offers(&self) -> Offers {
        let (nodes, pods) = (self.nodes.all(), self.pods.all());
        let namespaces: HashMap<String, String> = self
            .namespaces
            .all()
            .into_iter()
            .map(|(key, consumer)| (key.name, consumer.as_ref().clone()))
            .collect();
        decide::compute_offers(
            nodes
                .iter()
                .map(|(key, node)| (key.name.as_str(), node.as_ref())),
            pods.iter()
                .map(|(key, pod)| (key.namespace.as_str(), pod.as_ref())),
            &namespaces,
        )
    }
}

#[async_trait]
impl ResourceSource for NodeLabels {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        match self.offers.borrow().as_deref() {
            Some(offers) => Ok(vec![offers.offer_to(cluster).clone().into()]),
            None => Err(SourceError::NotReady(
                "the nodes and pods of this cluster are not listed yet".to_owned(),
            )),
        }
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

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
