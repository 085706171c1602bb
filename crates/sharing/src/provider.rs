//! The provider side's controller: takes a snapshot of the cluster, calls the rules, and writes the
//! offers that they compute.

pub mod contracts;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, api::DeleteParams, core::DeserializeGuard, runtime::watcher::Config};
use liqo_api::isolation::Lending;
use liqo_api::{
    ClusterId, PeeringPolicy, RESOURCE_REQUEST, ResourceList, ResourceOffer, ResourceRequest,
    labels,
};
use liqo_controller_runtime::{
    Cache, Context, Key, Requeue,
    conditions::{self, namespaced_api},
    put::{create_or_replace, replace_status, with_peer_labels},
    writes::{StepContext as _, delete_if_present},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::contracts::ProviderContracts;
use crate::{
    FIELD_MANAGER, SharedCaches, SharingError,
    decide::{
        pods_by_node::PodsByNode,
        provider::decide_offers,
        publish::MIN_REWRITE_INTERVAL,
        reduce::{self, ConsumerRequest, LocalNode, PodUsage, TenancyNamespace},
        scheduled_pod::ScheduledPod,
        snapshot::{
            OfferId, OfferWrite, OwnWorkingMode, PolicyVersion, ProviderPlan, ProviderSnapshot,
            RecentWrite, Replacements,
        },
        tethering,
    },
    peer_conditions::PeerConditions,
    plugins::Plugins,
    queues::SharingQueues,
    triggers,
};

/// Page size for pods: consumers' pods may be as large as what they may send.
const PODS_PAGE: u32 = 100;
/// HTTP status of an object that violates its schema.
const INVALID: u16 = 422;

pub struct ProviderController {
    context: Context,
    stop: CancellationToken,
    nodes: Cache<LocalNode>,
    /// Watched from the first tenant namespace on, until this replica leads no more. A cluster that
    /// only borrows keeps none.
    pods: OnceLock<Cache<PodUsage>>,
    /// The same pods, summed by node. A snapshot holds a reference to one version of it.
    pod_sums: Arc<Mutex<Arc<PodsByNode>>>,
    namespaces: Cache<TenancyNamespace>,
    requests: Cache<ConsumerRequest>,
    policies: Cache<PeeringPolicy>,
    plugins: Arc<Plugins>,
    offers: Cache<ResourceOffer>,
    contracts: ProviderContracts,
    conditions: Arc<PeerConditions>,
    queues: SharingQueues,
    recent_writes: Mutex<HashMap<OfferId, RecentWrite>>,
    applied_policies: Mutex<HashMap<ClusterId, PolicyVersion>>,
}

impl ProviderController {
    /// Starts the watches.
    pub fn start(
        context: &Context,
        stop: &CancellationToken,
        shared: &SharedCaches,
        contracts: ProviderContracts,
        queues: SharingQueues,
    ) -> Arc<Self> {
        let (nodes, namespaces, requests) = (queues.clone(), queues.clone(), queues.clone());
        Arc::new(Self {
            context: context.clone(),
            stop: stop.clone(),
            nodes: context.informers.of_kind::<Node>().reduced_cache(
                stop.clone(),
                reduce::node,
                move |_, _, _| nodes.add(triggers::node_changed()),
            ),
            pods: OnceLock::new(),
            namespaces: context.informers.of_kind::<Namespace>().reduced_cache(
                stop.clone(),
                reduce::namespace,
                move |_, _, _| namespaces.add(triggers::consumer_namespace_changed()),
            ),
            requests: Cache::watch(
                Api::<DeserializeGuard<ResourceRequest>>::all(context.client.clone()),
                Config::default(),
                stop.clone(),
                reduce::request,
                move |_, _, _| requests.add(triggers::request_changed()),
            ),
            pod_sums: Arc::default(),
            policies: shared.policies.clone(),
            plugins: Plugins::new(context.clone(), queues.offers.clone()),
            offers: shared.offers.clone(),
            contracts,
            conditions: shared.conditions.clone(),
            queues,
            recent_writes: Mutex::default(),
            applied_policies: Mutex::default(),
        })
    }

    /// Writes offers until `stop`.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let synced = [
            self.nodes.wait_until_synced().await,
            self.namespaces.wait_until_synced().await,
            self.requests.wait_until_synced().await,
            self.policies.wait_until_synced().await,
            self.offers.wait_until_synced().await,
            self.contracts.synced().await,
            self.conditions.foreign_clusters().wait_until_synced().await,
        ];
        if synced.contains(&false) {
            return;
        }
        self.queues.offers.add(());
        let controller = self.clone();
        let work = self
            .queues
            .offers
            .run("offers", 1, stop.clone(), move |()| {
                let controller = controller.clone();
                async move { controller.reconcile().await }
            });
        let mut config = self.context.config.clone();
        let follow_config = async {
            while config.changed().await.is_ok() {
                self.queues.add(triggers::config_changed());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = work => {}
            () = self.plugins.run(stop.clone()) => {}
            () = follow_config => {}
        }
    }

    fn watch_pods(&self) -> Cache<PodUsage> {
        // Finished pods use nothing, so the API server does not send them.
        let unfinished = Config::default()
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .page_size(PODS_PAGE);
        let (sums, queues) = (self.pod_sums.clone(), self.queues.clone());
        Cache::watch(
            Api::<ScheduledPod>::all(self.context.client.clone()),
            unfinished,
            self.stop.clone(),
            reduce::pod,
            move |_, old, new| {
                Arc::make_mut(&mut lock(&sums)).update(old, new);
                queues.add(triggers::pod_changed());
            },
        )
    }

    async fn reconcile(&self) -> Result<Requeue, SharingError> {
        let Some((now, snapshot)) = self.snapshot_with_pods().await else {
            return Ok(Requeue::OnChange);
        };
        let sources = snapshot
            .policies
            .iter()
            .filter_map(|policy| policy.spec.provide.source.plugin.clone());
        self.plugins
            .set_wanted(&snapshot.consumers_with_plugins(), sources.collect());
        let mut plan = decide_offers(&snapshot, now);
        let requeue_after = plan.requeue_after;
        let applied = std::mem::take(&mut plan.applied_policies);
        let (unconfirmed, problems) = (
            std::mem::take(&mut plan.unconfirmed_breaches),
            std::mem::take(&mut plan.contract_problems),
        );
        self.contracts.note_findings(unconfirmed, problems).await;
        let mut failed = BTreeSet::new();
        let outcome = self.carry_out(plan, &mut failed).await;
        let mut applied_policies = lock(&self.applied_policies);
        // An offer that could not be written does not follow the new policy yet.
        applied_policies.retain(|consumer, _| failed.contains(consumer));
        applied_policies.extend(
            applied
                .into_iter()
                .filter(|(consumer, _)| !failed.contains(consumer)),
        );
        drop(applied_policies);
        outcome?;
        Ok(requeue_after.map_or(Requeue::OnChange, Requeue::After))
    }

    /// Takes a snapshot in which the pods are known if there is a tenant namespace: no decision reads
    /// them otherwise. Returns `None` if the watch of pods ended before it knew them.
    async fn snapshot_with_pods(&self) -> Option<(Instant, ProviderSnapshot)> {
        let knew_pods = self.pods.get().is_some_and(Cache::is_synced);
        let now = Instant::now();
        let snapshot = self.snapshot(now);
        if knew_pods || snapshot.tenants().next().is_none() {
            return Some((now, snapshot));
        }
        let pods = self.pods.get_or_init(|| self.watch_pods());
        if !pods.wait_until_synced().await {
            return None;
        }
        let now = Instant::now();
        Some((now, self.snapshot(now)))
    }

    fn snapshot(&self, now: Instant) -> ProviderSnapshot {
        let config = self.context.config();
        let mut recent_writes = lock(&self.recent_writes);
        recent_writes
            .retain(|_, write| now.saturating_duration_since(write.at) < MIN_REWRITE_INTERVAL);
        let mut snapshot = ProviderSnapshot {
            own: self.context.cluster_id.clone(),
            policies: self
                .policies
                .all()
                .into_iter()
                .map(|(_, policy)| policy)
                .collect(),
            peers: self.conditions.policy_peers(),
            silences: self.conditions.silences(),
            plugin_answers: self.plugins.answers(),
            lending: Lending::of_config(&config),
            cluster_labels: config.spec.cluster_labels.clone(),
            nodes: self.nodes.all(),
            pods: lock(&self.pod_sums).clone(),
            namespaces: self
                .namespaces
                .all()
                .into_iter()
                .map(|(key, namespace)| (key.name, namespace))
                .collect(),
            requests: self.requests.all(),
            offers: self.offers.all(),
            recent_writes: recent_writes.clone(),
            applied_policies: lock(&self.applied_policies).clone(),
            contracts: self
                .contracts
                .contract_facts(self.conditions.contract_decisions()),
            mode: OwnWorkingMode::of_config(&config),
            replacements: Replacements::new(),
            wall_time: self.context.now(),
        };
        snapshot.replacements = tethering::policy_replacements(&snapshot);
        snapshot
    }

    /// Writes as much as possible: a failure for one tenant does not stop the others. Adds the
    /// consumers whose offers could not be written to `failed`.
    async fn carry_out(
        &self,
        plan: ProviderPlan,
        failed: &mut BTreeSet<ClusterId>,
    ) -> Result<(), SharingError> {
        // Offers name contracts, so these come first.
        let mut failures = self
            .contracts
            .carry_out(plan.contract_writes, plan.contract_deletions)
            .await;
        for key in plan.deletions {
            failures.extend(self.delete_offer(key).await.err());
        }
        let mut all_shrunk = true;
        for write in plan.writes {
            // Resources that one offer did not give up are not there for another one.
            if write.grows && !all_shrunk {
                continue;
            }
            let (grows, consumer) = (write.grows, write.consumer.clone());
            let newcomer =
                (!write.exists).then(|| (write.namespace_uid.clone(), write.spec.pool.clone()));
            if let Err(failure) = self.write_offer(write).await {
                all_shrunk &= grows;
                failed.insert(consumer);
                // The other offers wait before they make room for this one again.
                if let Some(offer) = newcomer {
                    lock(&self.recent_writes).insert(
                        offer,
                        RecentWrite {
                            at: Instant::now(),
                            hard: ResourceList::new(),
                            prices: None,
                            is_early: false,
                        },
                    );
                }
                failures.push(failure);
            }
        }
        for condition in plan.request_conditions {
            let api: Api<ResourceRequest> =
                namespaced_api(&self.context.client, &condition.namespace);
            let (generation, now) = (condition.generation, self.context.now());
            let written = conditions::merge_for(
                generation,
                &api,
                RESOURCE_REQUEST,
                &condition.current,
                &condition.wanted,
                now,
            )
            .await;
            let key = Key::new(condition.namespace, RESOURCE_REQUEST);
            failures.extend(
                written
                    .step("write the condition of", "ResourceRequest", key)
                    .err()
                    .map(SharingError::from),
            );
        }
        for write in plan.policy_statuses {
            let api: Api<PeeringPolicy> = Api::all(self.context.client.clone());
            match replace_status(&api, FIELD_MANAGER, &write.name, &write.status).await {
                // An older policy may violate the present schema. Kubernetes may then refuse its
                // status, too.
                Err(kube::Error::Api(refused)) if refused.code == INVALID => {
                    tracing::warn!(
                        policy = write.name,
                        error = refused.message,
                        "the API server refuses the status of a policy"
                    );
                }
                written => {
                    let written = written.step(
                        "write the status of",
                        "PeeringPolicy",
                        Key::new("", write.name),
                    );
                    failures.extend(written.err().map(SharingError::from));
                }
            }
        }
        self.conditions.report_consumers(plan.peer_conditions);
        crate::first_failure(failures)
    }

    async fn write_offer(&self, write: OfferWrite) -> Result<(), SharingError> {
        let OfferWrite {
            namespace,
            namespace_uid,
            consumer,
            spec,
            exists,
            ..
        } = write;
        let api: Api<ResourceOffer> = namespaced_api(&self.context.client, &namespace);
        let pool = spec.pool.clone();
        let offer = with_peer_labels(
            ResourceOffer::new(&pool, spec),
            labels::CONSUMER_ID,
            &consumer,
        );
        create_or_replace(&api, FIELD_MANAGER, &offer, exists)
            .await
            .step("write", "ResourceOffer", Key::new(namespace, pool.clone()))?;
        let (hard, prices) = (offer.spec.resource_quota.hard, offer.spec.prices);
        let per_hour = prices.as_ref().map(ToString::to_string);
        tracing::info!(%consumer, pool, offered = %hard, per_hour, "offer written");
        let (mut recent, offer) = (lock(&self.recent_writes), (namespace_uid, pool));
        let is_early = recent
            .get(&offer)
            .is_some_and(|before| before.at.elapsed() < MIN_REWRITE_INTERVAL);
        recent.insert(
            offer,
            RecentWrite {
                at: Instant::now(),
                hard,
                prices,
                is_early,
            },
        );
        Ok(())
    }

    async fn delete_offer(&self, key: Key) -> Result<(), SharingError> {
        let api: Api<ResourceOffer> = namespaced_api(&self.context.client, &key.namespace);
        if delete_if_present(&api, &key.name, &DeleteParams::default())
            .await
            .step("delete", "ResourceOffer", &key)?
        {
            tracing::info!(offer = %key, "offer deleted");
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
