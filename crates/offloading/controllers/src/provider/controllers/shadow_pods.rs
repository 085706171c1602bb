//! Runs the pods of shadow pods. This is the hot path: it creates pods and sends merge patches, and
//! writes nothing that does not change.

mod resize;

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{
    Api, Resource as _,
    api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions},
    core::{NamespaceResourceScope, Request},
};
use liqo_api::record_text::{self, MAX_POD_LEN};
use liqo_api::requests::EffectiveAmounts;
use liqo_api::{
    ClusterId, MetadataOnly, OffloadedReason, ShadowPod, ShadowPodPhase, annotations, finalizers,
};
use liqo_controller_runtime::events::object_ref;
use liqo_controller_runtime::eviction::{self, EvictionOutcome};
use liqo_controller_runtime::writes::{
    StepContext as _, delete_if_present, only_with_uid, remove_finalizer_at, unless_changed,
    unless_gone,
};
use liqo_controller_runtime::{Key, Requeue};
use liqo_offloading_rules::json::OFFER_RECLAIMED;
use liqo_offloading_rules::namespace::mapped::{self, Destination};
use liqo_offloading_rules::pod::admission::{
    AdmissionRefusal, PoolAccount, PoolOffer, negative_quantity, too_many_resources,
};
use liqo_offloading_rules::pod::carry::home_names::{self, use_resolver};
use liqo_offloading_rules::pod::carry::images;
use liqo_offloading_rules::pod::carry::placement::pool_nodes_hash;
use liqo_offloading_rules::pod::carry::{ProviderRules, RemoteIdentity, remote_patch, remote_pod};
use liqo_offloading_rules::pod::consumer_policy::{self, ConsumerPolicy};
use liqo_offloading_rules::pod::ephemeral::{self, MissingContainer, RefusedContainers};
use liqo_offloading_rules::pod::host_name;
use liqo_offloading_rules::pod::ledger::{AdmissionRequest, ResizeRequest};
use liqo_offloading_rules::pod::metering::Metering;
use liqo_offloading_rules::pod::recreated::earlier_runs_annotation;
use liqo_offloading_rules::pod::remote::{
    LivePod, NAME_TAKEN, NAMESPACE_NOT_READY, REFUSED_RETRY, ShadowPodSnapshot, ShadowPodStep,
    decide_orphan, decide_shadow_pod, pod_key,
};
use liqo_offloading_rules::pod::remote_pod::{RemotePod, WatchedPod};
use liqo_offloading_rules::pod::reported_status::{PodStatusText, ReportedStatus};
use liqo_offloading_rules::pod::shadow_pod::ProviderShadowPod;
use liqo_offloading_rules::pod::tenant_pace::TenantPace;
use liqo_offloading_rules::views::{ContainerList, PodView};
use liqo_quantity::ResourceList;
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::resize::{RefusedResize, WantedResize};
use crate::provider::metered_pods::life_key;
use crate::provider::state::{ProviderError, ProviderState};
use crate::provider::triggers;

/// Maximum number of shadow pods that are reconciled at the same time.
const WORKERS: usize = 16;
/// More steps than any shadow pod needs in one pass.
const MAX_STEPS: usize = 12;
/// Delay before an eviction that a disruption budget did not allow is tried again.
const EVICTION_RETRY: Duration = Duration::from_secs(10);
/// Delay before a finalizer is removed again after its list changed meanwhile.
const RELEASE_RETRY: Duration = Duration::from_secs(5);
/// Delay after a pass that took more than [`MAX_STEPS`].
const TOO_MANY_STEPS_RETRY: Duration = Duration::from_secs(10);

/// A generation that no object has.
const NO_GENERATION: i64 = -1;

struct ShadowPodController {
    provider: Arc<ProviderState>,
    memory: Mutex<HashMap<Key, ShadowPodMemory>>,
    pace: Mutex<TenantPace>,
}

/// The status of a shadow pod that the API server has.
#[derive(Default)]
enum StoredStatus {
    /// As the watch shows it.
    #[default]
    Watched,
    /// This was written or read last, and the watch does not show it yet.
    Known(ReportedStatus),
    /// A write failed, which may have been done nevertheless: its answer may be lost.
    Unknown,
}

/// Facts about a shadow pod that are remembered between two passes, because caches lag. Lost at a
/// restart, which costs some reads.
#[derive(Default)]
struct ShadowPodMemory {
    /// UID of the shadow pod.
    uid: String,
    status: StoredStatus,
    /// UID of the pod that was created and is not in the status yet.
    created: Option<String>,
    /// The last deletion of a pod that the API server accepted, by UID and grace in seconds: it is
    /// not repeated until the watch shows it.
    deletion: Option<(String, Option<i64>)>,
    /// UID of the pod that was evicted.
    evicted: Option<String>,
    /// The generation that the pod was created from or updated to.
    applied: Option<i64>,
    /// Begin of the time in which a minor change of the status has not been written.
    unreported_since: Option<Instant>,
    /// The API server's last refusal.
    refused: Option<RefusedPod>,
    /// Ephemeral containers that were refused.
    refused_containers: RefusedContainers,
    /// The refused change: its pod differs from the shadow pod.
    refused_change: Option<RefusedChange>,
    /// The reason why the pod is not resized as the shadow pod asks.
    unresized: Option<RefusedResize>,
    /// The usage of its pod is stored, or need not be.
    has_stored_usage: bool,
    /// Its finalizer was removed, and the watch does not show that yet.
    released: bool,
    /// Earliest time for the creation of the pod: consumers have a pace.
    turn: Option<Instant>,
}

/// A pod that the API server refused, with everything that went into it: the same pod is not tried
/// again after every change elsewhere.
struct RefusedPod {
    refusal: AdmissionRefusal,
    generation: i64,
    pod_security: Vec<(String, String)>,
    policy: ConsumerPolicy,
    overhead: ResourceList,
    at: Instant,
}

/// A change of a pod that the rules or the API server refused.
struct RefusedChange {
    message: String,
    /// The policy that it was judged by. After a change of it, the change is tried again.
    policy: Option<ConsumerPolicy>,
}

/// The input from which the pod of a shadow pod is created.
struct PodInput {
    /// JSON text.
    pod: Arc<str>,
    generation: i64,
    consumer: ClusterId,
    policy: ConsumerPolicy,
    overhead: ResourceList,
    pod_security: Vec<(String, String)>,
}

/// A pod that the rules allow.
struct AdmittedPod {
    /// The JSON text of the pod to create.
    body: Vec<u8>,
    /// Whether it has no ephemeral containers to be added.
    is_complete: bool,
    /// Whether it asks the name servers of its cluster.
    asks_cluster: bool,
}

/// The changes of a remote pod, so that it becomes what its record says.
#[derive(Default)]
struct RemotePodChanges {
    /// The amounts that the pod asks for, as the API server says.
    asked: Option<ResizeRequest>,
    resize: Option<WantedResize>,
    /// The patch of a pod that has the amounts of its record.
    if_resized: Option<Value>,
    /// The patch of one that keeps those that it has.
    if_not_resized: Option<Value>,
    /// The ephemeral containers to add.
    missing: Vec<MissingContainer>,
    /// The number of them that the pod can get.
    room: usize,
    /// Reason why a container keeps its image.
    refused: Option<String>,
}

fn invalid_record(message: String) -> AdmissionRefusal {
    AdmissionRefusal {
        reason: OffloadedReason::Invalid.as_str(),
        message,
    }
}

impl RefusedPod {
    fn is_still_refused(&self, input: &PodInput) -> bool {
        (
            self.generation,
            &self.pod_security,
            &self.policy,
            &self.overhead,
        ) == (
            input.generation,
            &input.pod_security,
            &input.policy,
            &input.overhead,
        ) && self.at.elapsed() < REFUSED_RETRY
    }
}

/// Runs until the context's `stop`.
pub async fn run_controller(provider: Arc<ProviderState>) {
    let (queue, stop) = (
        provider.queues.shadow_pods.clone(),
        provider.context.stop.clone(),
    );
    let controller = Arc::new(ShadowPodController {
        provider,
        memory: Mutex::default(),
        pace: Mutex::new(TenantPace::for_pods()),
    });
    queue
        .run("shadow-pods", WORKERS, stop, move |key| {
            let controller = controller.clone();
            async move { controller.reconcile(key).await }
        })
        .await;
}

impl ShadowPodController {
    /// Reconciles one shadow pod, or the pods that it left behind.
    async fn reconcile(&self, key: Key) -> Result<Requeue, ProviderError> {
        let provider = &self.provider;
        let pods = provider.index.lock().pods_of_shadow(&key);
        let seen: Vec<_> = pods
            .into_iter()
            .filter(|pod| provider.is_mapped_for(&pod.key.namespace, &key.namespace))
            .collect();
        let Some(shadow) = provider.shadows.get(&key) else {
            self.memory.lock().remove(&key);
            forget_shadow_pod(provider, &key);
            return self.remove_orphans(&key, seen).await;
        };
        if provider.tenant(&key.namespace).is_none() {
            tracing::debug!(shadow_pod = %key, "not in the namespace of a tenant, left alone");
            return Ok(Requeue::OnChange);
        }
        // What pods of a former shadow pod of this name used is stored in the meantime.
        provider.store_left(&key, &seen);
        let mut memory = self.memory.lock().remove(&key).unwrap_or_default();
        if memory.uid != shadow.uid {
            memory = ShadowPodMemory {
                uid: shadow.uid.clone(),
                ..ShadowPodMemory::default()
            };
        }
        if matches!(&memory.status, StoredStatus::Known(status) if *status == shadow.reported) {
            memory.status = StoredStatus::Watched;
        }
        let mut pass = ShadowPodReconciliation {
            provider,
            key: &key,
            memory,
            pace: &self.pace,
        };
        let outcome = if pass.memory.released {
            Ok(Requeue::OnChange)
        } else {
            pass.run_steps(shadow, seen).await
        };
        let memory = pass.memory;
        if outcome.is_err() {
            // It is not known when the next try succeeds, so it must not hold up the pods behind
            // it.
            provider.queues.add(triggers::shadow_pods_due(
                provider.ledger.lock().stop_waiting(&key),
            ));
        }
        self.memory.lock().insert(key, memory);
        outcome
    }

    /// Removes pods whose shadow pod is gone, if the API server confirms that it is.
    async fn remove_orphans(
        &self,
        key: &Key,
        pods: Vec<Arc<RemotePod>>,
    ) -> Result<Requeue, ProviderError> {
        if pods.is_empty() && !self.provider.has_left(key) {
            // Nothing is left to store.
            if self.provider.store_left(key, &pods) {
                self.provider.recorder.forget(&key.namespace, &key.name);
            }
            return Ok(Requeue::OnChange);
        }
        let api: Api<ShadowPod> =
            Api::namespaced(self.provider.context.client.clone(), &key.namespace);
        if api
            .get_metadata_opt(&key.name)
            .await
            .step("read", "ShadowPod", key)?
            .is_some()
        {
            // The watch will show it.
            return Ok(Requeue::OnChange);
        }
        let is_stored = if self.provider.shadow_index.lock().gone_pods(key).is_empty() {
            self.provider.store_orphans(key, &pods)
        } else {
            self.provider.store_left(key, &pods)
        };
        if !is_stored {
            return Ok(Requeue::OnChange);
        }
        let mut pass = ShadowPodReconciliation {
            provider: &self.provider,
            key,
            memory: ShadowPodMemory::default(),
            pace: &self.pace,
        };
        for pod in pods {
            match decide_orphan(&pod) {
                ShadowPodStep::Delete(pod, grace) => pass.delete_pod(&pod, grace).await?,
                ShadowPodStep::StripFinalizer(pod) => pass.strip_finalizer(&pod).await?,
                _ => {}
            }
        }
        Ok(Requeue::OnChange)
    }
}

/// Removes a shadow pod that is gone from index and ledger.
fn forget_shadow_pod(provider: &ProviderState, key: &Key) {
    provider.index.lock().forget_shadow(key);
    provider.queues.add(triggers::shadow_pods_due(
        provider.ledger.lock().forget_shadow(key),
    ));
}

/// The result of a step.
enum ReconcileProgress {
    DecideAgain,
    Finished(Requeue),
    /// The shadow pod is gone.
    Gone,
}

/// One pass over one shadow pod.
struct ShadowPodReconciliation<'a> {
    provider: &'a Arc<ProviderState>,
    key: &'a Key,
    memory: ShadowPodMemory,
    pace: &'a Mutex<TenantPace>,
}

impl ShadowPodReconciliation<'_> {
    async fn run_steps(
        &mut self,
        shadow: Arc<ProviderShadowPod>,
        seen: Vec<Arc<RemotePod>>,
    ) -> Result<Requeue, ProviderError> {
        if matches!(self.memory.status, StoredStatus::Unknown) {
            // The watch will show that it is gone.
            let Some(now) = self.read_shadow_pod().await? else {
                return Ok(Requeue::OnChange);
            };
            self.memory.status =
                StoredStatus::Known(ReportedStatus::from_shadow_status(now.status.as_ref()));
        }
        let destination =
            self.provider
                .destination_of_pods(&self.key.namespace, &shadow.namespace, &shadow.pool);
        let mut snapshot = self.snapshot(shadow.clone(), seen, destination);
        for _ in 0..MAX_STEPS {
            match self
                .perform_step(decide_shadow_pod(&snapshot), &mut snapshot)
                .await?
            {
                ReconcileProgress::DecideAgain => {}
                ReconcileProgress::Finished(next) => {
                    self.release_unneeded(&snapshot);
                    return Ok(next);
                }
                ReconcileProgress::Gone => return Ok(Requeue::OnChange),
            }
            let live = std::mem::replace(&mut snapshot.live, LivePod::NotAsked);
            let refusal = snapshot.refusal.take();
            snapshot = ShadowPodSnapshot {
                live,
                refusal,
                ..self.snapshot(shadow.clone(), snapshot.seen, snapshot.destination)
            };
        }
        tracing::warn!(shadow_pod = %self.key, "the steps do not come to an end");
        Ok(Requeue::After(TOO_MANY_STEPS_RETRY))
    }

    /// Does one step, and adds its outcome to the snapshot.
    async fn perform_step(
        &mut self,
        step: ShadowPodStep,
        snapshot: &mut ShadowPodSnapshot,
    ) -> Result<ReconcileProgress, ProviderError> {
        let shadow = snapshot.shadow.clone();
        Ok(match step {
            ShadowPodStep::Wait => {
                self.memory.unreported_since = None;
                ReconcileProgress::Finished(Requeue::OnChange)
            }
            ShadowPodStep::WaitFor(delay) => {
                self.memory.unreported_since = None;
                ReconcileProgress::Finished(Requeue::After(delay))
            }
            ShadowPodStep::WaitToReport(delay) => {
                self.memory
                    .unreported_since
                    .get_or_insert_with(Instant::now);
                ReconcileProgress::Finished(Requeue::After(delay))
            }
            ShadowPodStep::ReadLive => {
                snapshot.live = self.read_live(&shadow, &snapshot.destination).await?;
                ReconcileProgress::DecideAgain
            }
            ShadowPodStep::Create => {
                if let Some(delay) = self.creation_delay() {
                    return Ok(ReconcileProgress::Finished(Requeue::After(delay)));
                }
                let former = snapshot
                    .expected_uid
                    .as_ref()
                    .and(snapshot.reported.pod.as_ref());
                match self
                    .create_pod(&shadow, &snapshot.destination, former)
                    .await?
                {
                    Ok(live) => snapshot.live = live,
                    Err(refusal) => snapshot.refusal = Some(refusal),
                }
                ReconcileProgress::DecideAgain
            }
            ShadowPodStep::Report(status) => {
                if self.write_status(&snapshot.reported, status).await? {
                    ReconcileProgress::DecideAgain
                } else {
                    ReconcileProgress::Gone
                }
            }
            ShadowPodStep::Update(pod) => {
                self.update_pod(&pod, shadow.generation).await?;
                ReconcileProgress::DecideAgain
            }
            ShadowPodStep::Delete(pod, grace) => {
                self.delete_pod(&pod, grace).await?;
                ReconcileProgress::Finished(
                    snapshot
                        .retry_after_end_of(&pod)
                        .map_or(Requeue::OnChange, Requeue::After),
                )
            }
            ShadowPodStep::DeleteUnscheduled(pod) => {
                self.delete_unscheduled(&pod).await?;
                ReconcileProgress::Finished(
                    snapshot
                        .retry_after_end_of(&pod)
                        .map_or(Requeue::OnChange, Requeue::After),
                )
            }
            ShadowPodStep::Evict(pod, grace) => {
                ReconcileProgress::Finished(self.evict_pod(&pod, grace).await?)
            }
            ShadowPodStep::StripFinalizer(pod) => {
                self.strip_finalizer(&pod).await?;
                ReconcileProgress::Finished(
                    snapshot
                        .retry_after_end_of(&pod)
                        .map_or(Requeue::OnChange, Requeue::After),
                )
            }
            ShadowPodStep::StoreUsage(charges) => {
                let entries =
                    charges.entries(&self.key.name, &shadow.pool, snapshot.now.as_second());
                let life = life_key(&self.key.name, &shadow.uid);
                self.memory.has_stored_usage =
                    self.provider
                        .recorder
                        .store_entries(&self.key.namespace, &life, entries);
                // Otherwise the recorder adds the shadow pod to the queue again.
                if self.memory.has_stored_usage {
                    ReconcileProgress::DecideAgain
                } else {
                    ReconcileProgress::Finished(Requeue::OnChange)
                }
            }
            ShadowPodStep::Release => {
                if self.release_shadow_pod(&shadow).await? {
                    ReconcileProgress::Gone
                } else {
                    ReconcileProgress::Finished(Requeue::After(RELEASE_RETRY))
                }
            }
        })
    }

    /// Returns the delay before the pod may be created, because its consumer creates many.
    fn creation_delay(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let turn = *self.memory.turn.get_or_insert_with(|| {
            Instant::from_std(
                self.pace
                    .lock()
                    .take_turn(&self.key.namespace, now.into_std()),
            )
        });
        let delay = turn.saturating_duration_since(now);
        (!delay.is_zero()).then_some(delay)
    }

    /// The generation that the pod was created from or updated to. `None` if the policy has changed
    /// that refused an update.
    fn applied_generation(&self, shadow: &ProviderShadowPod) -> Option<i64> {
        let judged = self
            .memory
            .refused_change
            .as_ref()
            .map(|refused| &refused.policy);
        if judged.is_some_and(|judged| *judged != self.consumer_policy()) {
            return None;
        }
        // A shadow pod of the first generation was never changed.
        self.memory
            .applied
            .or((shadow.generation <= 1).then_some(shadow.generation))
    }

    /// The policy that selects the consumer.
    fn consumer_policy(&self) -> Option<ConsumerPolicy> {
        self.provider
            .policy_of(&self.provider.tenant(&self.key.namespace)?.consumer)
    }

    fn snapshot(
        &self,
        shadow: Arc<ProviderShadowPod>,
        seen: Vec<Arc<RemotePod>>,
        destination: Destination,
    ) -> ShadowPodSnapshot {
        let reported = match &self.memory.status {
            StoredStatus::Known(status) => status.clone(),
            StoredStatus::Watched | StoredStatus::Unknown => shadow.reported.clone(),
        };
        let expected_uid = reported.remote_uid.clone().or(self.memory.created.clone());
        let name_taken = self
            .provider
            .pods
            .get(&pod_key(&shadow, &destination))
            .is_some_and(|pod| pod.shadow_key() != *self.key);
        let index = &self.provider.index;
        ShadowPodSnapshot {
            observed_deletion: expected_uid
                .as_ref()
                .is_some_and(|uid| index.lock().observed_deletion(self.key, uid)),
            ended_and_gone: expected_uid
                .as_ref()
                .and_then(|uid| index.lock().ended_pod(self.key, uid)),
            expected_uid,
            seen,
            name_taken,
            live: LivePod::NotAsked,
            refusal: None,
            destination,
            applied_generation: self.applied_generation(&shadow),
            unreported_for: self
                .memory
                .unreported_since
                .map(|since| since.elapsed())
                .unwrap_or_default(),
            taken_back: self.provider.resources_taken_back(self.key, &shadow.pool),
            pool_nodes: self
                .offer(&shadow.pool)
                .map(|offer| pool_nodes_hash(&offer.nodes)),
            evicted_uid: self.memory.evicted.clone(),
            refused_containers: self.memory.refused_containers.clone(),
            refused_change: self
                .memory
                .refused_change
                .as_ref()
                .map(|refused| refused.message.clone()),
            pending_resize: self
                .memory
                .unresized
                .as_ref()
                .map(|unresized| unresized.pending.clone()),
            resize_retry: self.resize_retry(&shadow.pool),
            metering: self.metering(&reported),
            now: self.provider.context.now(),
            reported,
            shadow,
        }
    }

    fn metering(&self, reported: &ReportedStatus) -> Option<Metering> {
        let metering =
            self.provider
                .metering(self.key, &self.memory.uid, reported.remote_uid.as_deref())?;
        Some(Metering {
            is_stored: metering.is_stored || self.memory.has_stored_usage,
            ..metering
        })
    }

    /// Keeps room and a place in the queues only for a pod that needs them.
    fn release_unneeded(&self, snapshot: &ShadowPodSnapshot) {
        let exists = !snapshot.seen.is_empty() || matches!(snapshot.live, LivePod::Ours(_));
        let mut ledger = self.provider.ledger.lock();
        let mut freed = if exists {
            Vec::new()
        } else {
            ledger.release_reservation(self.key)
        };
        if !snapshot
            .refusal
            .as_ref()
            .is_some_and(AdmissionRefusal::is_about_offer)
        {
            freed.extend(ledger.stop_waiting(self.key));
        }
        drop(ledger);
        self.provider.queues.add(triggers::shadow_pods_due(freed));
        if snapshot.reported.reason.as_deref() == Some(NAME_TAKEN) {
            let pod = pod_key(&snapshot.shadow, &snapshot.destination);
            self.provider
                .index
                .lock()
                .wait_for_name(pod, self.key.clone());
        }
    }

    /// Reads the pod with the wanted name from the API server.
    async fn read_live(
        &self,
        shadow: &ProviderShadowPod,
        destination: &Destination,
    ) -> Result<LivePod, ProviderError> {
        let key = pod_key(shadow, destination);
        if key.namespace.is_empty() {
            return Ok(LivePod::Absent);
        }
        let api: Api<WatchedPod> = self.pod_api(&key.namespace);
        let found = api.get_opt(&key.name).await.step("read", "Pod", key)?;
        Ok(found.map_or(LivePod::Absent, |pod| self.live_pod(pod)))
    }

    fn live_pod(&self, pod: WatchedPod) -> LivePod {
        match RemotePod::from_pod(pod) {
            Some(pod) if pod.shadow_key() == *self.key => LivePod::Ours(Arc::new(pod)),
            _ => LivePod::OtherOwner,
        }
    }

    /// Creates the pod if it may run and the offer has room. `former` is the last status of the pod
    /// that it replaces.
    async fn create_pod(
        &mut self,
        shadow: &ProviderShadowPod,
        destination: &Destination,
        former: Option<&PodStatusText>,
    ) -> Result<Result<LivePod, AdmissionRefusal>, ProviderError> {
        let key = pod_key(shadow, destination);
        let input = match self.collect_input(shadow, &key).await? {
            Some(Ok(input)) => input,
            Some(Err(refusal)) => return Ok(Err(refusal)),
            None => return Ok(Ok(LivePod::NotAsked)),
        };
        if let Some(refused) = self
            .memory
            .refused
            .as_ref()
            .filter(|refused| refused.is_still_refused(&input))
        {
            return Ok(Err(refused.refusal.clone()));
        }
        // The new pod gets the size that is wanted now.
        self.memory.unresized = None;
        let AdmittedPod {
            body,
            is_complete,
            asks_cluster,
        } = match self.admit_pod(shadow, &key, &input, former) {
            Ok(pod) => pod,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let request = Request::new(Pod::url_path(&(), Some(&key.namespace)))
            .create(&PostParams::default(), body);
        let request = request
            .map_err(kube::Error::BuildRequest)
            .step("create", "Pod", &key)?;
        match self
            .provider
            .context
            .client
            .request::<WatchedPod>(request)
            .await
        {
            Ok(created) => {
                tracing::debug!(pod = %key, shadow_pod = %self.key, "created a remote pod");
                self.memory.applied = Some(if is_complete {
                    input.generation
                } else {
                    NO_GENERATION
                });
                self.memory.refused_change = None;
                let live = self.live_pod(created);
                if let LivePod::Ours(pod) = &live {
                    // Admission plugins of this cluster may have raised what it requests.
                    self.provider
                        .ledger
                        .lock()
                        .record_created(self.key, &pod.charge);
                    self.memory.created = Some(pod.uid.clone());
                    // Another one takes its own turn.
                    self.memory.turn = None;
                    if asks_cluster {
                        self.warn_about_names(pod).await;
                    }
                }
                Ok(Ok(live))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                match self.read_live(shadow, destination).await? {
                    LivePod::Absent | LivePod::NotAsked => Err(ProviderError::NameFreed(key)),
                    live => Ok(Ok(live)),
                }
            }
            Err(kube::Error::Api(status)) if AdmissionRefusal::matches_status(&status) => {
                let refusal = AdmissionRefusal::from_status(&status);
                let PodInput {
                    generation,
                    pod_security,
                    policy,
                    overhead,
                    ..
                } = input;
                let at = Instant::now();
                self.memory.refused = Some(RefusedPod {
                    refusal: refusal.clone(),
                    generation,
                    pod_security,
                    policy,
                    overhead,
                    at,
                });
                Ok(Err(refusal))
            }
            Err(error) => Ok(Err(error).step("create", "Pod", key)?),
        }
    }

    /// Tells with an event that a new pod does not resolve names as at home. The consumer shows it
    /// on the local pod.
    async fn warn_about_names(&self, pod: &RemotePod) {
        let resolver = self.provider.resolver_for(&self.key.namespace);
        if let Some((reason, message)) = home_names::resolver_warning(resolver.as_ref()) {
            let reference = object_ref("v1", "Pod", &pod.key, Some(pod.uid.clone()));
            self.provider
                .context
                .events
                .record_warning(&reference, reason, message)
                .await;
        }
    }

    /// Collects what the pod is created from. `None` if the shadow pod or the tenant is gone; a
    /// refusal if no policy selects the consumer.
    async fn collect_input(
        &self,
        shadow: &ProviderShadowPod,
        key: &Key,
    ) -> Result<Option<Result<PodInput, AdmissionRefusal>>, ProviderError> {
        let (pod, generation) = match &shadow.pod {
            Some(pod) => (pod.clone(), shadow.generation),
            // The cache does not keep pods that ran before, or are large.
            None => match self.read_shadow_pod().await? {
                Some(now) => (
                    now.spec.pod.into(),
                    now.metadata.generation.unwrap_or_default(),
                ),
                None => return Ok(None),
            },
        };
        let Some(tenant) = self.provider.tenant(&self.key.namespace) else {
            return Ok(None);
        };
        let Some(policy) = self.provider.policy_of(&tenant.consumer) else {
            return Ok(Some(Err(consumer_policy::not_shared_refusal())));
        };
        let pod_security = self
            .provider
            .namespace(&key.namespace)
            .map(|found| found.pod_security.clone())
            .unwrap_or_default();
        let overhead = self.provider.overhead(&policy);
        Ok(Some(Ok(PodInput {
            pod,
            generation,
            consumer: tenant.consumer.clone(),
            policy,
            overhead,
            pod_security,
        })))
    }

    /// The pod to create, if the rules allow it. Its room is reserved then. `former` is the last
    /// status of the pod that it replaces.
    fn admit_pod(
        &self,
        shadow: &ProviderShadowPod,
        key: &Key,
        input: &PodInput,
        former: Option<&PodStatusText>,
    ) -> Result<AdmittedPod, AdmissionRefusal> {
        // Parsed pods take a hundred times their length: there is one at a time, and none during a
        // request.
        let _one_at_a_time = self.provider.parsing.lock();
        let carried = record_text::parse_object(&input.pod, MAX_POD_LEN)
            .map_err(|error| invalid_record(format!("its record is refused: {error}")))?;
        let identity = RemoteIdentity {
            namespace: &key.namespace,
            name: &key.name,
            consumer: input.consumer.as_str(),
            pool: &shadow.pool,
            shadow_pod: &self.key.name,
            home_namespace: &shadow.namespace,
        };
        let offer = self.offer(&shadow.pool);
        // The offer may have changed since the destination was looked up.
        let is_brokered = offer.as_ref().is_some_and(|offer| offer.borrowed);
        if is_brokered && !self.provider.takes_brokered_pods(&key.namespace) {
            return Err(AdmissionRefusal {
                reason: NAMESPACE_NOT_READY,
                message: mapped::not_brokered_message(&key.namespace),
            });
        }
        let mut pod = remote_pod(
            &carried,
            &identity,
            &input.policy.provider_rules(offer.as_deref()),
        )
        .map_err(|refusal| AdmissionRefusal {
            reason: refusal.reason,
            message: refusal.message,
        })?;
        // The cluster that runs a brokered pod sets up its name resolution.
        if let Some(resolver) = self
            .provider
            .resolver_for(&self.key.namespace)
            .filter(|_| !is_brokered)
        {
            use_resolver(&mut pod["spec"], &shadow.namespace, &resolver);
        }
        let spec = PodSpec::deserialize(&pod["spec"]).map_err(|error| {
            invalid_record(format!(
                "the pod cannot be read: {:.200}",
                error.to_string()
            ))
        })?;
        // The API server adds the overhead of the RuntimeClass.
        let charge = EffectiveAmounts::of_pod(&spec).with_overhead(&input.overhead);
        // The cluster that runs a brokered pod checks its host name.
        let domain = self.provider.domain().filter(|_| !is_brokered);
        let host_name = domain.and_then(|domain| {
            host_name::long_name_refusal(&carried, (&key.name, &key.namespace), domain)
        });
        let refusal = host_name
            .or_else(|| negative_quantity(&spec))
            .or_else(|| too_many_resources(&charge));
        if let Some(refusal) = refusal.or_else(|| input.policy.missing_limit(&spec)) {
            return Err(refusal);
        }
        if let Some(runs) = former.and_then(earlier_runs_annotation) {
            pod["metadata"]["annotations"][annotations::EARLIER_RUNS] = runs.into();
        }
        let request = AdmissionRequest {
            account: PoolAccount {
                tenant: self.key.namespace.clone(),
                pool: shadow.pool.clone(),
            },
            shadow: self.key.clone(),
            turn: shadow.admission_position(&self.key.name),
            charge,
            had_a_pod: shadow.reported.remote_uid.is_some(),
        };
        self.provider.ledger.lock().admit(
            request,
            offer.as_deref(),
            input.policy.usage.charge,
            |namespace| self.provider.is_mapped_for(namespace, &self.key.namespace),
        )?;
        // Ephemeral containers are added to a pod that exists, so it needs an update.
        let spec = PodView::of(&carried).spec();
        let is_complete = spec.containers_in(ContainerList::Ephemeral).len() == 0;
        let asks_cluster = !is_brokered && home_names::uses_cluster_dns(spec.json());
        Ok(AdmittedPod {
            body: pod.to_string().into_bytes(),
            is_complete,
            asks_cluster,
        })
    }

    /// Writes the status. Returns whether the shadow pod still exists.
    async fn write_status(
        &mut self,
        before: &ReportedStatus,
        status: ReportedStatus,
    ) -> Result<bool, ProviderError> {
        let Some(mut patch) = before.patch_to(&status) else {
            return Ok(true);
        };
        patch["metadata"] = json!({ "uid": self.memory.uid });
        self.memory.status = StoredStatus::Unknown;
        let answer = self
            .shadow_pod_api()
            .patch_status(
                &self.key.name,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        // A conflict is an error, so that the queue tries again: what was not written must not be
        // remembered as told.
        let exists = unless_gone(answer)
            .step("change", "ShadowPod", self.key)?
            .is_some();
        tracing::debug!(shadow_pod = %self.key, phase = ?status.phase, reason = status.reason, "reported a status");
        let reclaimed = status.reason.as_deref() == Some(OFFER_RECLAIMED);
        if (status.phase == ShadowPodPhase::Refused || reclaimed) && before.reason != status.reason
        {
            let uid = Some(self.memory.uid.clone());
            let reference = object_ref(
                &ShadowPod::api_version(&()),
                &ShadowPod::kind(&()),
                self.key,
                uid,
            );
            let (reason, message) = (
                status.reason.clone().unwrap_or_default(),
                status.message.clone().unwrap_or_default(),
            );
            self.provider
                .context
                .events
                .record_warning(&reference, &reason, message)
                .await;
        }
        if status.remote_uid.is_none() {
            self.memory.created = None;
        }
        self.memory.unreported_since = None;
        self.memory.status = StoredStatus::Known(status);
        Ok(exists)
    }

    /// Updates amounts, labels, annotations, images, deadline and ephemeral containers of the pod
    /// to those of the shadow pod.
    async fn update_pod(&mut self, pod: &RemotePod, generation: i64) -> Result<(), ProviderError> {
        // After an error the queue tries all of it again.
        self.memory.applied = Some(NO_GENERATION);
        let Some(shadow) = self.read_shadow_pod().await? else {
            return Ok(());
        };
        let request = Request::new(Pod::url_path(&(), Some(&pod.key.namespace)))
            .get(&pod.key.name, &GetParams::default());
        let request = request
            .map_err(kube::Error::BuildRequest)
            .step("read", "Pod", &pod.key)?;
        let live = unless_gone(self.provider.context.client.request::<Value>(request).await)
            .step("read", "Pod", &pod.key)?;
        let policy = self.consumer_policy();
        let RemotePodChanges {
            asked,
            resize,
            if_resized,
            if_not_resized,
            missing,
            room,
            mut refused,
        } = live
            .map(|live| self.pod_changes(pod, &shadow.spec.pod, &live))
            .unwrap_or_default();
        // Before the patch that records what travelled.
        let is_resized = self.resize_pod(pod, asked, resize).await?;
        if let Some(mut patch) = if is_resized {
            if_resized
        } else {
            if_not_resized
        } {
            patch["metadata"]["uid"] = pod.uid.as_str().into();
            let api: Api<MetadataOnly<Pod>> = self.pod_api(&pod.key.namespace);
            match api
                .patch(
                    &pod.key.name,
                    &PatchParams::default(),
                    &Patch::Strategic(&patch),
                )
                .await
            {
                Err(kube::Error::Api(status))
                    if status.is_not_found()
                        || status.is_conflict()
                        || AdmissionRefusal::matches_status(&status) =>
                {
                    tracing::debug!(pod = %pod.key, error = %status, "a remote pod cannot be changed as its local pod was");
                    if AdmissionRefusal::matches_status(&status) {
                        refused = Some(AdmissionRefusal::from_status(&status).message);
                    }
                }
                answer => {
                    answer.step("change", "Pod", &pod.key)?;
                    tracing::debug!(pod = %pod.key, "updated a remote pod");
                }
            }
        }
        self.memory.refused_change = refused.map(|message| RefusedChange { message, policy });
        self.add_ephemeral_containers(pod, missing, room).await?;
        // The watch shows what changed in the meantime.
        self.memory.applied = Some(generation);
        Ok(())
    }

    /// Computes the changes of a remote pod. No changes if its record cannot be read: the pod runs
    /// on as it is.
    fn pod_changes(&self, pod: &RemotePod, record: &str, live: &Value) -> RemotePodChanges {
        let _one_at_a_time = self.provider.parsing.lock();
        let asked = WatchedPod::deserialize(live)
            .ok()
            .and_then(|live| resize::asked_resize(pod, live));
        let carried = match record_text::parse_object(record, MAX_POD_LEN) {
            Ok(carried) => carried,
            Err(error) => {
                tracing::info!(shadow_pod = %self.key, %error, "a changed record is refused");
                return RemotePodChanges {
                    asked,
                    ..RemotePodChanges::default()
                };
            }
        };
        let policy = self.provider.policy_of(&pod.consumer);
        let rules = policy.as_ref().map(|policy| policy.provider_rules(None));
        // A consumer that no policy selects any more gets no other image.
        let of_patch = rules.clone().unwrap_or_else(|| ProviderRules {
            images: Some(Vec::new()),
            ..ProviderRules::default()
        });
        RemotePodChanges {
            asked,
            resize: WantedResize::from_record(pod, &carried, live, policy.as_ref()),
            if_resized: remote_patch(&carried, live, &of_patch, true),
            if_not_resized: remote_patch(&carried, live, &of_patch, false),
            missing: ephemeral::missing_containers(&carried, live, rules.as_ref()),
            room: ephemeral::remaining_containers(live),
            refused: images::refused_image_change(&carried, live, &of_patch).map(|refusal| {
                if policy.is_some() {
                    refusal.message
                } else {
                    consumer_policy::not_shared_refusal().message
                }
            }),
        }
    }

    /// Adds the ephemeral containers that the pod lacks. Remembers those that the rules or the API
    /// server refuse.
    async fn add_ephemeral_containers(
        &mut self,
        pod: &RemotePod,
        missing: Vec<MissingContainer>,
        mut room: usize,
    ) -> Result<(), ProviderError> {
        self.memory
            .refused_containers
            .retain(|refused, _| missing.iter().any(|(name, _)| name == refused));
        let api: Api<MetadataOnly<Pod>> = self.pod_api(&pod.key.namespace);
        for (added, container) in missing {
            if self.memory.refused_containers.contains_key(&added) {
                continue;
            }
            let container = match ephemeral::unless_full(room, container) {
                Ok(container) => container,
                Err(message) => {
                    tracing::info!(pod = %pod.key, container = added, reason = message, "an ephemeral container was refused");
                    self.memory.refused_containers.insert(added, message);
                    continue;
                }
            };
            let patch = json!({ "metadata": { "uid": pod.uid }, "spec": { "ephemeralContainers": [container] } });
            let params = PatchParams::default();
            let answer = api
                .patch_subresource(
                    "ephemeralcontainers",
                    &pod.key.name,
                    &params,
                    &Patch::Strategic(&patch),
                )
                .await;
            match answer {
                Err(kube::Error::Api(status)) if AdmissionRefusal::matches_status(&status) => {
                    tracing::info!(pod = %pod.key, container = added, error = %status, "an ephemeral container was refused");
                    self.memory
                        .refused_containers
                        .insert(added, AdmissionRefusal::from_status(&status).message);
                }
                // A conflict is an error, so that the queue tries again.
                answer => {
                    if unless_gone(answer)
                        .step("change", "Pod", &pod.key)?
                        .is_none()
                    {
                        return Ok(());
                    }
                    room -= 1;
                }
            }
        }
        Ok(())
    }

    async fn delete_pod(
        &mut self,
        pod: &RemotePod,
        grace: Option<i64>,
    ) -> Result<(), ProviderError> {
        let deletion = Some((pod.uid.clone(), grace));
        if self.memory.deletion == deletion {
            return Ok(());
        }
        let grace_period_seconds =
            grace.map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX >> 1));
        let params = DeleteParams {
            grace_period_seconds,
            ..only_with_uid(pod.uid.clone())
        };
        let api: Api<MetadataOnly<Pod>> = self.pod_api(&pod.key.namespace);
        delete_if_present(&api, &pod.key.name, &params)
            .await
            .step("delete", "Pod", &pod.key)?;
        self.memory.deletion = deletion;
        tracing::debug!(pod = %pod.key, grace, "deleted a remote pod");
        Ok(())
    }

    /// Deletes a pod that the scheduler has given no node: another one is created for the nodes of
    /// its pool.
    async fn delete_unscheduled(&self, pod: &RemotePod) -> Result<(), ProviderError> {
        let api: Api<WatchedPod> = self.pod_api(&pod.key.namespace);
        let Some(live) = api
            .get_opt(&pod.key.name)
            .await
            .step("read", "Pod", &pod.key)?
        else {
            return Ok(());
        };
        let version = live.metadata.resource_version.clone();
        if RemotePod::from_pod(live).is_none_or(|live| live.is_scheduled() || live.uid != pod.uid) {
            return Ok(());
        }
        // A pod that the scheduler binds meanwhile has another version.
        let unchanged = Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: version,
        };
        let api: Api<MetadataOnly<Pod>> = self.pod_api(&pod.key.namespace);
        let params = DeleteParams::default().preconditions(unchanged);
        let deleted = delete_if_present(&api, &pod.key.name, &params)
            .await
            .step("delete", "Pod", &pod.key)?;
        tracing::info!(pod = %pod.key, deleted, "a pod waits for nodes that its pool does not have any more, and is created again");
        Ok(())
    }

    /// The offer of a pool of this consumer.
    fn offer(&self, pool: &str) -> Option<Arc<PoolOffer>> {
        self.provider
            .offers
            .get(&Key::new(self.key.namespace.clone(), pool))
    }

    /// Evicts a pod, which respects the disruption budgets of this cluster.
    async fn evict_pod(&mut self, pod: &RemotePod, grace: i64) -> Result<Requeue, ProviderError> {
        let answer = eviction::evict(
            &self.provider.context.client,
            &pod.key,
            &pod.uid,
            Some(grace),
        )
        .await;
        match answer.step("evict", "Pod", &pod.key)? {
            EvictionOutcome::NotAllowed(reason) => {
                tracing::info!(pod = %pod.key, reason, "a pod whose room is taken back cannot be evicted yet");
                return Ok(Requeue::After(EVICTION_RETRY));
            }
            EvictionOutcome::Accepted => {
                self.memory.evicted = Some(pod.uid.clone());
                tracing::info!(pod = %pod.key, pool = pod.pool, "evicted a pod whose room is taken back");
            }
            // The watch will show it.
            EvictionOutcome::Gone => {}
        }
        Ok(Requeue::OnChange)
    }

    async fn strip_finalizer(&self, pod: &RemotePod) -> Result<(), ProviderError> {
        let patch = json!({ "metadata": { "uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [finalizers::FINAL_STATUS] } });
        let api: Api<MetadataOnly<Pod>> = self.pod_api(&pod.key.namespace);
        let answer = api
            .patch(
                &pod.key.name,
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await;
        unless_changed(answer).step("change", "Pod", &pod.key)?;
        Ok(())
    }

    /// Removes our finalizer from the shadow pod, and deletes it: its pod is gone. Returns `false`
    /// if its finalizers changed meanwhile.
    async fn release_shadow_pod(
        &mut self,
        shadow: &ProviderShadowPod,
    ) -> Result<bool, ProviderError> {
        let api = self.shadow_pod_api();
        if let Some(position) = shadow.finalizer {
            let removed = remove_finalizer_at(
                &api,
                &self.key.name,
                &shadow.uid,
                position,
                finalizers::SHADOW_POD,
            )
            .await;
            if !removed.step("change", "ShadowPod", self.key)? {
                tracing::debug!(shadow_pod = %self.key, "not released yet: its finalizers changed");
                return Ok(false);
            }
        }
        if !shadow.deleted {
            delete_if_present(&api, &self.key.name, &only_with_uid(shadow.uid.clone()))
                .await
                .step("delete", "ShadowPod", self.key)?;
        }
        forget_shadow_pod(self.provider, self.key);
        self.memory.released = true;
        Ok(true)
    }

    /// The whole shadow pod, read from the API server.
    async fn read_shadow_pod(&self) -> Result<Option<ShadowPod>, ProviderError> {
        let api: Api<ShadowPod> =
            Api::namespaced(self.provider.context.client.clone(), &self.key.namespace);
        Ok(api
            .get_opt(&self.key.name)
            .await
            .step("read", "ShadowPod", self.key)?)
    }

    fn shadow_pod_api(&self) -> Api<MetadataOnly<ShadowPod>> {
        Api::namespaced(self.provider.context.client.clone(), &self.key.namespace)
    }

    fn pod_api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.provider.context.client.clone(), namespace)
    }
}
