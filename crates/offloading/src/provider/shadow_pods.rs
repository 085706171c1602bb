//! Runs the pods that shadow pods stand for. This is the hot path: plain creates and merge patches, and no write that says
//! nothing new.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodSpec};
use kube::{
    Api, Resource as _,
    api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::{Object, Request},
};
use liqo_api::{ShadowPod, ShadowPodPhase, finalizers};
use liqo_kit::{Key, Next, requests::Effective};
use liqo_quantity::ResourceList;
use serde::{Deserialize as _, de::IgnoredAny};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Error, Provider,
    admission::{Account, Refusal, negative_quantity},
    finalizer,
    ledger::Wish,
    lifecycle::{Live, NAME_TAKEN, Place, REFUSED_RETRY, Snapshot, Step, decide, decide_orphan, pod_key},
    lock,
    remote_pods::{RemotePod, WatchedPod},
    shadows::Shadow,
    told::Told,
    unless_gone, unless_gone_or_replaced,
    usage::{self, Held},
};
use crate::{
    decide::{
        OFFER_RECLAIMED,
        travel::{RemoteIdentity, remote_patch, remote_pod},
    },
    eviction::{self, Outcome},
};

/// More steps than any shadow pod needs at once.
const MOST_STEPS: usize = 12;

/// When an eviction that a disruption budget did not allow is asked for again.
const EVICTION_RETRY: Duration = Duration::from_secs(10);

/// When a shadow pod is let go of that could not be at first.
const LET_GO_RETRY: Duration = Duration::from_secs(5);

/// An object of which only the metadata is looked at in an answer.
type Unread = Object<IgnoredAny, IgnoredAny>;

/// What is remembered of a shadow pod between two looks, because caches are behind. Losing it costs some reads.
#[derive(Default)]
pub struct Memory {
    /// UID of the shadow pod.
    uid: String,
    /// The status that was written last, until the watch shows it.
    told: Option<Told>,
    /// UID of the pod that was created and is not recorded yet.
    created: Option<String>,
    /// UID of the pod that was evicted.
    evicted: Option<String>,
    /// The generation that the pod was made of or brought up to.
    applied: Option<i64>,
    /// Since when there is something to tell that waits for better news.
    untold_since: Option<Instant>,
    /// What the API server refused.
    refused: Option<Refused>,
    /// It was let go, and the watch has not shown it yet.
    let_go: bool,
}

/// What the API server refused, so that the same is not asked again at every change elsewhere.
struct Refused {
    refusal: Refusal,
    generation: i64,
    pod_security: Vec<(String, String)>,
    held: Held,
    overhead: ResourceList,
    at: Instant,
}

/// Looks at one shadow pod, or at the pods that it left behind.
pub async fn reconcile(provider: Arc<Provider>, key: Key) -> Result<Next, Error> {
    let pods = lock(&provider.index).of(&key);
    let seen: Vec<_> = pods.into_iter().filter(|pod| provider.is_mapped_for(&pod.key.namespace, &key.namespace)).collect();
    let Some(shadow) = provider.shadows.get(&key) else {
        forget(&provider, &key);
        return remove_orphans(&provider, &key, seen).await;
    };
    if provider.tenant(&key.namespace).is_none() {
        tracing::debug!(shadow_pod = %key, "not in the namespace of a tenant, left alone");
        return Ok(Next::OnChange);
    }
    let mut memory = lock(&provider.shadow_memory).remove(&key).unwrap_or_default();
    if memory.uid != shadow.uid {
        memory = Memory { uid: shadow.uid.clone(), ..Memory::default() };
    }
    if memory.told.as_ref() == Some(&shadow.told) {
        memory.told = None;
    }
    let mut pass = Pass { provider: &provider, key: &key, memory };
    let outcome = if pass.memory.let_go { Ok(Next::OnChange) } else { pass.run(shadow, seen).await };
    let memory = pass.memory;
    if outcome.is_err() {
        // Nobody knows when its turn comes, so it holds up nobody meanwhile.
        provider.look_for_room(lock(&provider.ledger).leave(&key));
    }
    lock(&provider.shadow_memory).insert(key, memory);
    outcome
}

/// Removes pods whose shadow pod is gone, if the API server says so too.
async fn remove_orphans(provider: &Arc<Provider>, key: &Key, pods: Vec<Arc<RemotePod>>) -> Result<Next, Error> {
    if pods.is_empty() {
        return Ok(Next::OnChange);
    }
    let api: Api<ShadowPod> = Api::namespaced(provider.context.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(&key.name).await;
    let found = found.map_err(|source| Error::Read { kind: "ShadowPod", key: key.clone(), source })?;
    if found.is_some() {
        // The watch will show it.
        return Ok(Next::OnChange);
    }
    let pass = Pass { provider, key, memory: Memory::default() };
    for pod in pods {
        match decide_orphan(&pod) {
            Step::Delete(pod, grace) => pass.delete(&pod, grace).await?,
            Step::StripFinalizer(pod) => pass.strip_finalizer(&pod).await?,
            _ => {}
        }
    }
    Ok(Next::OnChange)
}

/// Forgets everything about a shadow pod that is gone.
fn forget(provider: &Provider, key: &Key) {
    lock(&provider.shadow_memory).remove(key);
    lock(&provider.index).forget(key);
    provider.look_for_room(lock(&provider.ledger).forget(key));
}

struct Pass<'a> {
    provider: &'a Arc<Provider>,
    key: &'a Key,
    memory: Memory,
}

impl Pass<'_> {
    async fn run(&mut self, shadow: Arc<Shadow>, seen: Vec<Arc<RemotePod>>) -> Result<Next, Error> {
        let place = self.provider.place_of_pods(&self.key.namespace, &shadow.namespace);
        let mut snapshot = self.snapshot(shadow.clone(), seen, place);
        for _ in 0..MOST_STEPS {
            let next = match decide(&snapshot) {
                Step::Wait => {
                    self.memory.untold_since = None;
                    Some(Next::OnChange)
                }
                Step::WaitFor(delay) => {
                    self.memory.untold_since.get_or_insert_with(Instant::now);
                    Some(Next::After(delay))
                }
                Step::Look => {
                    snapshot.live = self.look(&shadow, &snapshot.place).await?;
                    None
                }
                Step::Create => {
                    match self.create(&shadow, &snapshot.place).await? {
                        Ok(live) => snapshot.live = live,
                        Err(refusal) => snapshot.refusal = Some(refusal),
                    }
                    None
                }
                Step::Record(told) => {
                    if !self.record(&snapshot.told, told).await? {
                        return Ok(Next::OnChange);
                    }
                    None
                }
                Step::Update(pod) => {
                    self.update(&pod, shadow.generation).await?;
                    None
                }
                Step::Delete(pod, grace) => {
                    self.delete(&pod, grace).await?;
                    Some(Next::OnChange)
                }
                Step::Evict(pod, grace) => Some(self.evict(&pod, grace).await?),
                Step::StripFinalizer(pod) => {
                    self.strip_finalizer(&pod).await?;
                    Some(Next::OnChange)
                }
                Step::Forget => {
                    if self.let_go(&shadow).await? {
                        return Ok(Next::OnChange);
                    }
                    Some(Next::After(LET_GO_RETRY))
                }
            };
            if let Some(next) = next {
                self.settle(&shadow, &snapshot);
                return Ok(next);
            }
            let live = std::mem::replace(&mut snapshot.live, Live::NotAsked);
            let refusal = snapshot.refusal.take();
            snapshot = Snapshot { live, refusal, ..self.snapshot(shadow.clone(), snapshot.seen, snapshot.place) };
        }
        tracing::warn!(shadow_pod = %self.key, "the steps do not come to an end");
        Ok(Next::After(std::time::Duration::from_secs(10)))
    }

    fn snapshot(&self, shadow: Arc<Shadow>, seen: Vec<Arc<RemotePod>>, place: Place) -> Snapshot {
        let told = self.memory.told.clone().unwrap_or_else(|| shadow.told.clone());
        let expected_uid = told.remote_uid.clone().or(self.memory.created.clone());
        let name_taken = self.provider.pods.get(&pod_key(&shadow, &place)).is_some_and(|pod| pod.shadow_key() != *self.key);
        Snapshot {
            saw_gone: expected_uid.as_ref().is_some_and(|uid| lock(&self.provider.index).saw_gone(self.key, uid)),
            expected_uid,
            seen,
            name_taken,
            live: Live::NotAsked,
            refusal: None,
            place,
            // What was never changed needs no look.
            applied_generation: self.memory.applied.or((shadow.generation <= 1).then_some(shadow.generation)),
            untold_for: self.memory.untold_since.map(|since| since.elapsed()).unwrap_or_default(),
            reclaim: self.provider.reclaim_of(self.key, &shadow.pool),
            evicted_uid: self.memory.evicted.clone(),
            now: Timestamp::now(),
            told,
            shadow,
        }
    }

    /// Leaves behind only what somebody waits for.
    fn settle(&self, shadow: &Shadow, snapshot: &Snapshot) {
        let exists = !snapshot.seen.is_empty() || matches!(snapshot.live, Live::Ours(_));
        let mut ledger = lock(&self.provider.ledger);
        let mut freed = if exists { Vec::new() } else { ledger.give_back(self.key) };
        if !snapshot.refusal.as_ref().is_some_and(Refusal::is_about_offer) {
            freed.extend(ledger.leave(self.key));
        }
        drop(ledger);
        self.provider.look_for_room(freed);
        if snapshot.told.reason.as_deref() == Some(NAME_TAKEN) {
            lock(&self.provider.index).wait_for_name(pod_key(shadow, &snapshot.place), self.key.clone());
        }
    }

    /// The pod with the wanted name as the API server has it now.
    async fn look(&self, shadow: &Shadow, place: &Place) -> Result<Live, Error> {
        let key = pod_key(shadow, place);
        if key.namespace.is_empty() {
            return Ok(Live::Absent);
        }
        let found = self.pods(&key.namespace).get_opt(&key.name).await;
        let found = found.map_err(|source| Error::Read { kind: "Pod", key, source })?;
        Ok(found.map_or(Live::Absent, |pod| self.whose(pod)))
    }

    fn whose(&self, pod: WatchedPod) -> Live {
        match RemotePod::reduce(pod) {
            Some(pod) if pod.shadow_key() == *self.key => Live::Ours(Arc::new(pod)),
            _ => Live::Stranger,
        }
    }

    /// Creates the pod if it may run and the offer has room.
    async fn create(&mut self, shadow: &Shadow, place: &Place) -> Result<Result<Live, Refusal>, Error> {
        let (carried, generation) = match &shadow.pod {
            Some(pod) => (pod.clone(), shadow.generation),
            // It ran before, so it is not kept any more.
            None => match self.shadow_now().await? {
                Some(now) => (Arc::new(now.spec.pod), now.metadata.generation.unwrap_or_default()),
                None => return Ok(Ok(Live::NotAsked)),
            },
        };
        let key = pod_key(shadow, place);
        let Some(tenant) = self.provider.tenant(&self.key.namespace) else { return Ok(Ok(Live::NotAsked)) };
        let Some(held) = self.provider.held(&tenant.consumer) else { return Ok(Err(usage::not_shared())) };
        let pod_security = self.provider.namespace(&key.namespace).map(|found| found.pod_security.clone()).unwrap_or_default();
        let overhead = self.provider.overhead(&held);
        let same = |refused: &&Refused| {
            (refused.generation, &refused.pod_security, &refused.held, &refused.overhead)
                == (generation, &pod_security, &held, &overhead)
        };
        if let Some(refused) = self.memory.refused.as_ref().filter(same).filter(|refused| refused.at.elapsed() < REFUSED_RETRY) {
            return Ok(Err(refused.refusal.clone()));
        }
        let identity = RemoteIdentity {
            namespace: &key.namespace,
            name: &key.name,
            consumer: tenant.consumer.as_str(),
            pool: &shadow.pool,
            shadow_pod: &self.key.name,
            home_namespace: &shadow.namespace,
        };
        let offer = self.provider.offers.get(&Key::new(self.key.namespace.clone(), shadow.pool.clone()));
        let rules = held.rules(offer.as_deref());
        let pod = match remote_pod(&carried, &identity, &rules) {
            Ok(pod) => pod,
            Err(refusal) => return Ok(Err(Refusal { reason: refusal.reason, message: refusal.message })),
        };
        let spec = match PodSpec::deserialize(&pod["spec"]) {
            Ok(spec) => spec,
            Err(error) => return Ok(Err(Refusal { reason: "Invalid", message: format!("the pod cannot be read: {error}") })),
        };
        if let Some(refusal) = negative_quantity(&spec).or_else(|| held.missing_limit(&spec)) {
            return Ok(Err(refusal));
        }
        let wish = Wish {
            account: Account { tenant: self.key.namespace.clone(), pool: shadow.pool.clone() },
            shadow: self.key.clone(),
            turn: shadow.turn(&self.key.name),
            // The API server adds the overhead of the RuntimeClass.
            charge: Effective::of_pod(&spec).with_overhead(&overhead),
        };
        let ours = |namespace: &str| self.provider.is_mapped_for(namespace, &self.key.namespace);
        let admitted = lock(&self.provider.ledger).admit(wish, offer.as_deref(), held.usage.charge, ours);
        if let Err(refusal) = admitted {
            return Ok(Err(refusal));
        }

        let body = serde_json::to_vec(&pod).map_err(|source| Error::Encode { kind: "Pod", key: key.clone(), source })?;
        let url = Pod::url_path(&(), Some(&key.namespace));
        let request = Request::new(url).create(&PostParams::default(), body);
        let request =
            request.map_err(|error| Error::Create { kind: "Pod", key: key.clone(), source: kube::Error::BuildRequest(error) })?;
        match self.provider.context.client.request::<WatchedPod>(request).await {
            Ok(made) => {
                tracing::debug!(pod = %key, shadow_pod = %self.key, "created a remote pod");
                self.memory.applied = Some(generation);
                let live = self.whose(made);
                if let Live::Ours(pod) = &live {
                    // The provider's admission may have added to it.
                    lock(&self.provider.ledger).created(self.key, &pod.charge);
                    self.memory.created = Some(pod.uid.clone());
                }
                Ok(Ok(live))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => match self.look(shadow, place).await? {
                Live::Absent | Live::NotAsked => Err(Error::NameFreed(key)),
                live => Ok(Ok(live)),
            },
            Err(kube::Error::Api(status)) if Refusal::is_meant_by(&status) => {
                let refusal = Refusal::of(&status);
                self.memory.refused =
                    Some(Refused { refusal: refusal.clone(), generation, pod_security, held, overhead, at: Instant::now() });
                Ok(Err(refusal))
            }
            Err(source) => Err(Error::Create { kind: "Pod", key, source }),
        }
    }

    /// Writes the status. Says whether the shadow pod is still there.
    async fn record(&mut self, before: &Told, told: Told) -> Result<bool, Error> {
        let Some(mut patch) = before.patch_to(&told) else { return Ok(true) };
        patch["metadata"] = json!({ "uid": self.memory.uid });
        // Until the answer is there, nobody knows what the status says.
        let answer = self.shadows().patch_status(&self.key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let answer = unless_gone_or_replaced(answer);
        let answer = answer.map_err(|source| Error::Change { kind: "ShadowPod", key: self.key.clone(), source })?;
        tracing::debug!(shadow_pod = %self.key, phase = ?told.phase, reason = told.reason, "told home");
        let reclaimed = told.reason.as_deref() == Some(OFFER_RECLAIMED);
        if (told.phase == ShadowPodPhase::Refused || reclaimed) && before.reason != told.reason {
            let reference = ObjectReference {
                uid: Some(self.memory.uid.clone()),
                name: Some(self.key.name.clone()),
                namespace: Some(self.key.namespace.clone()),
                api_version: Some(ShadowPod::api_version(&()).into_owned()),
                kind: Some(ShadowPod::kind(&()).into_owned()),
                ..ObjectReference::default()
            };
            let (reason, message) = (told.reason.clone().unwrap_or_default(), told.message.clone().unwrap_or_default());
            self.provider.context.events.warning(&reference, &reason, message).await;
        }
        if told.remote_uid.is_none() {
            self.memory.created = None;
        }
        self.memory.untold_since = None;
        self.memory.told = Some(told);
        Ok(answer.is_some())
    }

    /// Brings labels, annotations and images of the pod to what the shadow pod says now.
    async fn update(&mut self, pod: &RemotePod, generation: i64) -> Result<(), Error> {
        let Some(shadow) = self.shadow_now().await? else { return Ok(()) };
        let request =
            Request::new(Pod::url_path(&(), Some(&pod.key.namespace))).get(&pod.key.name, &kube::api::GetParams::default());
        let request = request.map_err(|error| Error::Read {
            kind: "Pod",
            key: pod.key.clone(),
            source: kube::Error::BuildRequest(error),
        })?;
        let live = unless_gone(self.provider.context.client.request::<Value>(request).await);
        let live = live.map_err(|source| Error::Read { kind: "Pod", key: pod.key.clone(), source })?;
        let rules = Held::default().rules(None);
        let patch = live.as_ref().and_then(|live| remote_patch(&shadow.spec.pod, live, &rules));
        if let Some(mut patch) = patch {
            patch["metadata"]["uid"] = pod.uid.as_str().into();
            let api: Api<Unread> = self.unread_pods(&pod.key.namespace);
            match api.patch(&pod.key.name, &PatchParams::default(), &Patch::Strategic(&patch)).await {
                Ok(_) => tracing::debug!(pod = %pod.key, "brought a remote pod up to date"),
                Err(kube::Error::Api(status))
                    if status.is_not_found() || status.is_conflict() || Refusal::is_meant_by(&status) =>
                {
                    tracing::debug!(pod = %pod.key, error = %status, "a remote pod cannot be changed as its home pod was");
                }
                Err(source) => return Err(Error::Change { kind: "Pod", key: pod.key.clone(), source }),
            }
        }
        // What changed meanwhile is a change that the watch will show.
        self.memory.applied = Some(generation);
        Ok(())
    }

    async fn delete(&self, pod: &RemotePod, grace: Option<i64>) -> Result<(), Error> {
        let params = DeleteParams {
            grace_period_seconds: grace.map(|seconds| u32::try_from(seconds.max(0)).unwrap_or(u32::MAX >> 1)),
            preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        let answer = self.unread_pods(&pod.key.namespace).delete(&pod.key.name, &params).await;
        unless_gone_or_replaced(answer).map_err(|source| Error::Delete { kind: "Pod", key: pod.key.clone(), source })?;
        tracing::debug!(pod = %pod.key, grace, "deleted a remote pod");
        Ok(())
    }

    /// Asks for the end of a pod. Disruption budgets of this cluster hold.
    async fn evict(&mut self, pod: &RemotePod, grace: i64) -> Result<Next, Error> {
        let answer = eviction::evict(&self.provider.context.client, &pod.key, &pod.uid, Some(grace)).await;
        match answer.map_err(|source| Error::Evict { pod: pod.key.clone(), source })? {
            Outcome::NotAllowed(reason) => {
                tracing::info!(pod = %pod.key, reason, "a pod whose room is taken back cannot be evicted yet");
                return Ok(Next::After(EVICTION_RETRY));
            }
            Outcome::Accepted => {
                self.memory.evicted = Some(pod.uid.clone());
                tracing::info!(pod = %pod.key, pool = pod.pool, "evicted a pod whose room is taken back");
            }
            // The watch will show it.
            Outcome::Gone => {}
        }
        Ok(Next::OnChange)
    }

    async fn strip_finalizer(&self, pod: &RemotePod) -> Result<(), Error> {
        let patch = json!({ "metadata": { "uid": pod.uid, "$deleteFromPrimitiveList/finalizers": [finalizers::FINAL_STATUS] } });
        let api = self.unread_pods(&pod.key.namespace);
        let answer = api.patch(&pod.key.name, &PatchParams::default(), &Patch::Strategic(&patch)).await;
        unless_gone_or_replaced(answer).map_err(|source| Error::Change { kind: "Pod", key: pod.key.clone(), source })?;
        Ok(())
    }

    /// The pod is gone: the shadow pod goes too, which tells home. Says whether nothing of ours keeps it any more.
    async fn let_go(&mut self, shadow: &Shadow) -> Result<bool, Error> {
        let api = self.shadows();
        if let Some(position) = shadow.held {
            let patch = finalizer::removal(&shadow.uid, position, finalizers::SHADOW_POD);
            let answer = api.patch(&self.key.name, &PatchParams::default(), &patch).await;
            let change = |source| Error::Change { kind: "ShadowPod", key: self.key.clone(), source };
            if !finalizer::is_off(answer, finalizers::SHADOW_POD).map_err(change)? {
                tracing::debug!(shadow_pod = %self.key, "not let go yet: its finalizers are not what they were taken for");
                return Ok(false);
            }
        }
        if !shadow.deleted {
            let only_this =
                DeleteParams::default().preconditions(Preconditions { uid: Some(shadow.uid.clone()), resource_version: None });
            let answer = api.delete(&self.key.name, &only_this).await;
            unless_gone_or_replaced(answer).map_err(|source| Error::Delete {
                kind: "ShadowPod",
                key: self.key.clone(),
                source,
            })?;
        }
        forget(self.provider, self.key);
        self.memory.let_go = true;
        Ok(true)
    }

    /// The shadow pod with everything, as the API server has it now.
    async fn shadow_now(&self) -> Result<Option<ShadowPod>, Error> {
        let api: Api<ShadowPod> = Api::namespaced(self.provider.context.client.clone(), &self.key.namespace);
        let found = api.get_opt(&self.key.name).await;
        found.map_err(|source| Error::Read { kind: "ShadowPod", key: self.key.clone(), source })
    }

    fn shadows(&self) -> Api<Unread> {
        Api::namespaced_with(self.provider.context.client.clone(), &self.key.namespace, &ApiResource::erase::<ShadowPod>(&()))
    }

    fn pods(&self, namespace: &str) -> Api<WatchedPod> {
        Api::namespaced_with(self.provider.context.client.clone(), namespace, &ApiResource::erase::<Pod>(&()))
    }

    fn unread_pods(&self, namespace: &str) -> Api<Unread> {
        Api::namespaced_with(self.provider.context.client.clone(), namespace, &ApiResource::erase::<Pod>(&()))
    }
}
