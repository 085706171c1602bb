//! Writes the conditions of each `ForeignCluster` that the provider's and the consumer's side
//! report. They share one writer, because server-side apply replaces all conditions of a field
//! manager at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use liqo_api::{ClusterId, ContractDecision, ForeignCluster};
use liqo_api::{
    conditions::{DesiredCondition, owners},
    policies::PolicyPeer,
};
use liqo_controller_runtime::{
    Cache, Context, Key, Queue, Requeue, conditions, foreign_clusters, writes::StepContext as _,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    SharingError,
    decide::{
        absence::{Silence, is_silent},
        peer_conditions::{ReportedConditions, wanted_conditions},
    },
};

/// The controller of these conditions, with the cache of peers.
pub struct PeerConditions {
    context: Context,
    foreign_clusters: Cache<ForeignCluster>,
    reported: Mutex<BTreeMap<ClusterId, ReportedConditions>>,
    queue: Queue<ClusterId>,
    /// Time since which this process has seen that consumers are silent. What an earlier leader
    /// wrote may be old, and clocks may be set.
    silent_since: Mutex<HashMap<ClusterId, Instant>>,
}

impl PeerConditions {
    pub fn new(
        context: Context,
        foreign_clusters: Cache<ForeignCluster>,
        queue: Queue<ClusterId>,
    ) -> Self {
        Self {
            context,
            foreign_clusters,
            reported: Mutex::default(),
            queue,
            silent_since: Mutex::default(),
        }
    }

    pub fn foreign_clusters(&self) -> &Cache<ForeignCluster> {
        &self.foreign_clusters
    }

    pub fn foreign_cluster(&self, id: &ClusterId) -> Option<Arc<ForeignCluster>> {
        foreign_clusters::of_peer(&self.foreign_clusters, id)
            .into_iter()
            .next()
    }

    /// The attributes by which policies select peers.
    pub fn policy_peers(&self) -> HashMap<ClusterId, PolicyPeer> {
        let all = foreign_clusters::by_peer(&self.foreign_clusters).into_iter();
        all.map(|(id, cluster)| (id.clone(), PolicyPeer::new(&id, Some(&cluster))))
            .collect()
    }

    /// Decisions of persons on contracts, for each peer with some.
    pub fn contract_decisions(&self) -> HashMap<ClusterId, BTreeMap<String, ContractDecision>> {
        let all = foreign_clusters::by_peer(&self.foreign_clusters).into_iter();
        let decided = all.filter(|(_, peer)| !peer.spec.contracts.is_empty());
        decided
            .map(|(id, peer)| (id, peer.spec.contracts.clone()))
            .collect()
    }

    /// The consumers that are silent.
    pub fn silences(&self) -> HashMap<ClusterId, Silence> {
        let all = foreign_clusters::by_peer(&self.foreign_clusters);
        let mut since = self
            .silent_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        since.retain(|id, _| {
            all.get(id)
                .is_some_and(|peer| is_silent(peer) == Some(true))
        });
        let mut silences = HashMap::new();
        for (id, peer) in all {
            let silence = Silence::of_consumer(&peer, || {
                since
                    .entry(id.clone())
                    .or_insert_with(Instant::now)
                    .elapsed()
            });
            silences.extend(silence.map(|silence| (id, silence)));
        }
        silences
    }

    /// Takes the consumer side's conditions of one provider.
    pub fn report_provider(&self, id: &ClusterId, wanted: Vec<DesiredCondition>) {
        let mut reported = self.lock_reported();
        let reported = reported.entry(id.clone()).or_default();
        if reported.consumer.as_ref() != Some(&wanted) {
            reported.consumer = Some(wanted);
            self.queue.add(id.clone());
        }
    }

    /// Takes the provider side's condition of every consumer; peers that are absent in `wanted` are
    /// no consumers.
    pub fn report_consumers(&self, mut wanted: BTreeMap<ClusterId, DesiredCondition>) {
        let peers = self
            .foreign_clusters
            .all()
            .into_iter()
            .map(|(_, peer)| peer.spec.cluster_id.clone());
        let mut all = self.lock_reported();
        for id in peers {
            let conditions = Some(Vec::from_iter(wanted.remove(&id)));
            let reported = all.entry(id.clone()).or_default();
            if reported.provider != conditions {
                reported.provider = conditions;
                self.queue.add(id);
            }
        }
    }

    /// Writes conditions until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        if !self.foreign_clusters.wait_until_synced().await {
            return;
        }
        let controller = self.clone();
        self.queue
            // The name is a label of metrics, so it stays.
            .run("sharing-links", 4, stop, move |id| {
                let controller = controller.clone();
                async move { controller.reconcile(&id).await }
            })
            .await;
    }

    async fn reconcile(&self, id: &ClusterId) -> Result<Requeue, SharingError> {
        let Some(peer) = self.foreign_cluster(id) else {
            self.lock_reported().remove(id);
            return Ok(Requeue::OnChange);
        };
        let reported = self.lock_reported().get(id).cloned().unwrap_or_default();
        conditions::apply_links(
            &self.context,
            &peer,
            owners::SHARING,
            &wanted_conditions(&peer, &reported),
        )
        .await
        .step(
            "write the conditions of",
            "ForeignCluster",
            Key::of_object(&*peer),
        )?;
        Ok(Requeue::OnChange)
    }

    fn lock_reported(&self) -> MutexGuard<'_, BTreeMap<ClusterId, ReportedConditions>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
