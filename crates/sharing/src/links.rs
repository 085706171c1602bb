//! Writes what both sides found out about a peer into the conditions of its `ForeignCluster`. One writer for both, because
//! server-side apply wants all conditions of a manager at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::Client;
use liqo_api::{ClusterId, ForeignCluster};
use liqo_kit::{
    Cache, Next, Queue,
    conditions::{self, Wanted},
    foreign_clusters,
    policies::PolicyPeer,
};
use tokio_util::sync::CancellationToken;

use crate::{Error, FIELD_MANAGER, decide::links};

/// What is known of each peer, and what was said about it.
pub struct Links {
    client: Client,
    foreign_clusters: Cache<ForeignCluster>,
    said: Mutex<BTreeMap<ClusterId, links::Said>>,
    queue: Queue<ClusterId>,
}

impl Links {
    /// Speaks about the peers in this cache.
    pub fn new(client: Client, foreign_clusters: Cache<ForeignCluster>, queue: Queue<ClusterId>) -> Self {
        Self { client, foreign_clusters, said: Mutex::default(), queue }
    }

    /// The peers themselves, once they are known.
    pub fn foreign_clusters(&self) -> &Cache<ForeignCluster> {
        &self.foreign_clusters
    }

    /// The peer with this ID.
    pub fn foreign_cluster(&self, id: &ClusterId) -> Option<Arc<ForeignCluster>> {
        foreign_clusters::of_peer(&self.foreign_clusters, id).into_iter().next()
    }

    /// What policies select peers by.
    pub fn policy_peers(&self) -> HashMap<ClusterId, PolicyPeer> {
        let all = foreign_clusters::by_peer(&self.foreign_clusters).into_iter();
        all.map(|(id, cluster)| (id.clone(), PolicyPeer::new(&id, Some(&cluster)))).collect()
    }

    /// What the consumer side has to say about a provider.
    pub fn say_of_provider(&self, id: &ClusterId, wanted: Vec<Wanted>) {
        let mut said = self.said();
        let said = said.entry(id.clone()).or_default();
        if said.consumer.as_ref() != Some(&wanted) {
            said.consumer = Some(wanted);
            self.queue.add(id.clone());
        }
    }

    /// What the provider side has to say about all consumers that there are.
    pub fn say_of_consumers(&self, mut wanted: BTreeMap<ClusterId, Wanted>) {
        let known = self.foreign_clusters.all().into_iter().map(|(_, peer)| peer.spec.cluster_id.clone());
        let mut said = self.said();
        for id in known {
            let link = Some(wanted.remove(&id));
            let said = said.entry(id.clone()).or_default();
            if said.provider != link {
                said.provider = link;
                self.queue.add(id);
            }
        }
    }

    /// Keeps the conditions as they should be, until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        if !self.foreign_clusters.synced().await {
            return;
        }
        let links = self.clone();
        self.queue
            .run("sharing-links", 4, stop, move |id| {
                let links = links.clone();
                async move { links.reconcile(&id).await }
            })
            .await;
    }

    async fn reconcile(&self, id: &ClusterId) -> Result<Next, Error> {
        let Some(peer) = self.foreign_cluster(id) else {
            self.said().remove(id);
            return Ok(Next::OnChange);
        };
        let said = self.said().get(id).cloned().unwrap_or_default();
        let wanted = links::wanted(&peer, &said);
        conditions::apply_links(&self.client, &peer, FIELD_MANAGER, &wanted)
            .await
            .map_err(|source| Error::WriteLinks { peer: id.clone(), source })?;
        Ok(Next::OnChange)
    }

    fn said(&self) -> MutexGuard<'_, BTreeMap<ClusterId, links::Said>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
