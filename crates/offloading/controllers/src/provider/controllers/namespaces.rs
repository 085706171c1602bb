//! Creates, checks and deletes the mapped namespaces of each consumer.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Resource as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use liqo_api::{
    ClusterId, MappedNamespace, MappedNamespacePhase, NAMESPACE_MAP, NAMESPACE_OFFLOADING,
    NamespaceMap, NamespaceOffloading, OffloadedReason,
};
use liqo_controller_runtime::events::object_ref;
use liqo_controller_runtime::writes::{
    StepContext as _, create_missing, delete_if_present, only_with_uid, unless_changed, unless_gone,
};
use liqo_controller_runtime::{Key, Requeue};
use liqo_offloading_rules::namespace::brokered::{self, OffloadingChange};
use liqo_offloading_rules::namespace::manifests;
use liqo_offloading_rules::namespace::mapped::{ConsumerNamespace, NamespaceKind};
use liqo_offloading_rules::namespace::mapping::{
    MappingPlan, MappingSnapshot, MappingStep, plan_mappings,
};
use liqo_offloading_rules::pod::carry::ProviderRules;
use liqo_offloading_rules::pod::consumer_policy::{self, ConsumerPolicy, ENFORCE};
use liqo_offloading_rules::pod::reported_status::merge_patch;
use liqo_offloading_rules::views::ObjectView;
use parking_lot::Mutex;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::provider::state::{ProviderError, ProviderState};

/// Maximum number of tenants that are reconciled at the same time.
const WORKERS: usize = 4;
/// Interval between two checks of the contents of a namespace.
const CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// Interval between two tries of a refused name.
const REFUSED_RETRY: Duration = Duration::from_mins(1);
/// Rounds of planning and acting. Creating a namespace takes three.
const MAX_ROUNDS: usize = 4;
const FIELD_MANAGER: &str = "liqo-offloading";

/// The state that is kept between two passes. Lost at a restart, which costs some reads.
struct NamespaceController {
    provider: Arc<ProviderState>,
    /// Last time that the contents of a namespace were found or written, by the namespace's UID.
    prepared: Mutex<HashMap<String, Instant>>,
    /// The status written last, by tenant namespace: the cache may not show it yet.
    written: Mutex<HashMap<String, WrittenStatus>>,
    /// UIDs of the `NamespaceOffloading`s of persons that were reported.
    reported: Mutex<HashSet<String>>,
}

struct WrittenStatus {
    map_uid: Option<String>,
    namespaces: BTreeMap<String, MappedNamespace>,
}

/// Runs until the context's `stop`.
pub async fn run_controller(provider: Arc<ProviderState>) {
    let (queue, stop) = (
        provider.queues.namespaces.clone(),
        provider.context.stop.clone(),
    );
    let controller = Arc::new(NamespaceController {
        provider,
        prepared: Mutex::default(),
        written: Mutex::default(),
        reported: Mutex::default(),
    });
    queue
        .run("mapped-namespaces", WORKERS, stop, move |tenant: String| {
            let controller = controller.clone();
            async move { controller.reconcile(&tenant).await }
        })
        .await;
}

impl NamespaceController {
    /// Reconciles all mapped namespaces of one tenant.
    async fn reconcile(&self, tenant_namespace: &str) -> Result<Requeue, ProviderError> {
        let Some(consumer) = liqo_api::consumer_of_tenant_namespace(tenant_namespace) else {
            return Ok(Requeue::OnChange);
        };
        let provider = &self.provider;
        let (tenant, map) = (
            provider.tenant(tenant_namespace),
            provider.map(tenant_namespace),
        );
        let mut namespaces = provider.all_namespaces();
        let policy = provider.policy_of(&consumer);
        let mut taken = HashSet::new();
        let mut last = MappingPlan::default();
        for _ in 0..MAX_ROUNDS {
            last = plan_mappings(
                &consumer,
                &MappingSnapshot {
                    tenant: tenant.as_deref(),
                    map: map.as_deref(),
                    namespaces: &namespaces,
                    policy: policy.as_ref(),
                    prepared: &|uid| {
                        self.prepared
                            .lock()
                            .get(uid)
                            .is_some_and(|at| at.elapsed() < CHECK_INTERVAL)
                    },
                    has_pods: &|name| provider.has_pods(name),
                    taken: &|name| taken.contains(name),
                },
            );
            if last.steps.is_empty() {
                break;
            }
            for step in &last.steps {
                self.perform_step(
                    step,
                    &consumer,
                    policy.as_ref(),
                    &mut namespaces,
                    &mut taken,
                )
                .await?;
            }
        }
        // Before the consumer learns that a namespace is ready.
        let all_offloaded = self
            .offload_brokered_namespaces(tenant_namespace, &consumer, &namespaces)
            .await?;
        if let Some(map) = map
            .as_deref()
            .filter(|_| tenant.is_some_and(|tenant| !tenant.terminating))
        {
            self.write_map_status(tenant_namespace, map, &last.status)
                .await?;
        } else {
            self.written.lock().remove(tenant_namespace);
        }
        let phases: Vec<_> = last.status.values().map(|entry| entry.phase).collect();
        Ok(
            if phases.contains(&MappedNamespacePhase::Refused) || !all_offloaded {
                Requeue::After(REFUSED_RETRY)
            } else if phases.contains(&MappedNamespacePhase::Ready) {
                Requeue::After(CHECK_INTERVAL)
            } else {
                Requeue::OnChange
            },
        )
    }

    /// Does one step, and notes what came of it for the next plan.
    async fn perform_step(
        &self,
        step: &MappingStep,
        consumer: &ClusterId,
        policy: Option<&ConsumerPolicy>,
        namespaces: &mut BTreeMap<String, Arc<ConsumerNamespace>>,
        taken: &mut HashSet<String>,
    ) -> Result<(), ProviderError> {
        match step {
            MappingStep::Create { home, name } => {
                match self.create_namespace(name, consumer, home, policy).await? {
                    Some(created) => _ = namespaces.insert(name.clone(), Arc::new(created)),
                    None => _ = taken.insert(name.clone()),
                }
            }
            MappingStep::SetPodSecurity { name, uid, level } => {
                self.set_pod_security(name, uid, level).await?;
                if let Some(namespace) = namespaces.get_mut(name) {
                    let labels = &mut Arc::make_mut(namespace).pod_security;
                    labels.retain(|(key, _)| key != ENFORCE);
                    labels.push((ENFORCE.to_owned(), (*level).to_owned()));
                }
            }
            MappingStep::Prepare { name, uid } => {
                let requests = ProviderRules::default().amounts.default_requests;
                for wanted in manifests::namespace_contents(
                    name,
                    consumer,
                    &self.provider.context.namespace,
                    &requests,
                ) {
                    self.ensure_object(&wanted).await?;
                }
                self.prepared.lock().insert(uid.clone(), Instant::now());
            }
            MappingStep::Delete { name, uid } => {
                delete_if_present(&self.namespace_api(), name, &only_with_uid(uid.clone()))
                    .await
                    .step("delete", "Namespace", Key::new("", name))?;
                tracing::info!(
                    namespace = name,
                    "deleted a mapped namespace that is not wanted any more"
                );
                self.prepared.lock().remove(uid);
                if let Some(namespace) = namespaces.get_mut(name) {
                    Arc::make_mut(namespace).terminating = true;
                }
            }
        }
        Ok(())
    }

    /// Offloads the mapped namespaces of a consumer whose pools are borrowed to the providers of
    /// these pools. Returns whether no person's `NamespaceOffloading` is in the way.
    async fn offload_brokered_namespaces(
        &self,
        tenant_namespace: &str,
        consumer: &ClusterId,
        namespaces: &BTreeMap<String, Arc<ConsumerNamespace>>,
    ) -> Result<bool, ProviderError> {
        let provider = &self.provider;
        let mut all_offloaded = true;
        let offers = provider.offers.all();
        let of_consumer = offers
            .iter()
            .filter(|(key, _)| key.namespace == tenant_namespace)
            .map(|(_, offer)| offer.as_ref());
        let terms = brokered::borrowed_pool_terms(of_consumer);
        for (name, namespace) in namespaces {
            let is_mapped = namespace.consumer == *consumer
                && matches!(namespace.kind, NamespaceKind::Mapped { .. })
                && !namespace.terminating;
            if !is_mapped {
                continue;
            }
            // Before that, the manager has no rights there.
            if !self.prepared.lock().contains_key(&namespace.uid) {
                continue;
            }
            let key = Key::new(name, NAMESPACE_OFFLOADING);
            let live = provider.brokered_offloadings.get(&key);
            match brokered::offloading_change(name, live.as_deref(), &terms, || {
                provider.has_brokered_pods(name)
            }) {
                OffloadingChange::Nothing => {}
                OffloadingChange::Create(wanted) => {
                    all_offloaded &= self.create_offloading(&key, &wanted).await?;
                }
                OffloadingChange::Update(wanted) => self.ensure_object(&wanted).await?,
                OffloadingChange::Delete => {
                    let this_one = only_with_uid(
                        live.and_then(|live| live.metadata.uid.clone())
                            .unwrap_or_default(),
                    );
                    let deleted = delete_if_present(
                        &self.offloading_api(name),
                        NAMESPACE_OFFLOADING,
                        &this_one,
                    )
                    .await;
                    deleted.step("delete", "NamespaceOffloading", key)?;
                }
            }
        }
        Ok(all_offloaded)
    }

    /// Creates the `NamespaceOffloading` of a mapped namespace. Returns `false` if that of a person
    /// is there.
    async fn create_offloading(&self, key: &Key, wanted: &Value) -> Result<bool, ProviderError> {
        const KIND: &str = "NamespaceOffloading";
        let wanted =
            NamespaceOffloading::deserialize(wanted).step("read the manifest of", KIND, key)?;
        let (found, is_new) = create_missing(&self.offloading_api(&key.namespace), &wanted)
            .await
            .step("create", KIND, key)?;
        if is_new {
            tracing::info!(
                namespace = key.namespace,
                "the pods of a mapped namespace run at other clusters"
            );
        }
        if is_new || brokered::is_brokered(&found) {
            return Ok(true);
        }
        if self
            .reported
            .lock()
            .insert(found.metadata.uid.clone().unwrap_or_default())
        {
            let message = "Liqo did not create this NamespaceOffloading and leaves it as it is. New pods of the consumer for other clusters wait \
                           until you delete it";
            tracing::warn!(
                namespace = key.namespace,
                "a mapped namespace has the NamespaceOffloading of a person"
            );
            let object = object_ref(
                &NamespaceOffloading::api_version(&()),
                KIND,
                key,
                found.metadata.uid,
            );
            self.provider
                .context
                .events
                .record_warning(&object, OffloadedReason::NameTaken.as_str(), message)
                .await;
        }
        Ok(false)
    }

    fn offloading_api(&self, namespace: &str) -> Api<NamespaceOffloading> {
        Api::namespaced(self.provider.context.client.clone(), namespace)
    }

    /// Creates a namespace, unless it exists. `None` if the name belongs to somebody else.
    async fn create_namespace(
        &self,
        name: &str,
        consumer: &ClusterId,
        home: &str,
        policy: Option<&ConsumerPolicy>,
    ) -> Result<Option<ConsumerNamespace>, ProviderError> {
        let key = Key::new("", name);
        let level = consumer_policy::pod_security_level(
            policy
                .map(|policy| policy.usage.pod_security)
                .unwrap_or_default(),
        );
        let wanted = manifests::namespace_object(name, consumer, home, level);
        let wanted: Namespace =
            serde_json::from_value(wanted).step("read the manifest of", "Namespace", &key)?;
        let (found, is_new) = create_missing(&self.namespace_api(), &wanted).await.step(
            "create",
            "Namespace",
            key,
        )?;
        let ours = ConsumerNamespace::from_namespace(found)
            .filter(|found| found.is_mapped_from(consumer, home));
        if is_new {
            tracing::info!(namespace = name, %consumer, home, "created a mapped namespace");
        }
        Ok(ours)
    }

    /// Lets a namespace enforce another Pod Security standard. Pods that run in it stay.
    async fn set_pod_security(
        &self,
        name: &str,
        uid: &str,
        level: &str,
    ) -> Result<(), ProviderError> {
        let patch = json!({ "metadata": { "uid": uid, "labels": { ENFORCE: level } } });
        let answer = unless_changed(
            self.namespace_api()
                .patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await,
        );
        answer.step("change", "Namespace", Key::new("", name))?;
        tracing::info!(
            namespace = name,
            level,
            "changed the Pod Security standard as the policy says"
        );
        Ok(())
    }

    /// Writes an object, unless it has everything that is wanted.
    async fn ensure_object(&self, wanted: &Value) -> Result<(), ProviderError> {
        let view = ObjectView::of(wanted);
        let (api_version, kind) = (
            view.api_version().unwrap_or_default(),
            view.kind().unwrap_or_default(),
        );
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let key = Key::new(
            view.metadata().namespace().unwrap_or_default(),
            view.metadata().name().unwrap_or_default(),
        );
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.provider.context.client.clone(),
            &key.namespace,
            &resource,
        );
        let kind = || kind.to_owned();
        if let Some(found) = api.get_opt(&key.name).await.step("read", kind(), &key)? {
            let found = serde_json::to_value(found).step("read", kind(), &key)?;
            if manifests::contains_wanted(&found, wanted) {
                return Ok(());
            }
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch(&key.name, &params, &Patch::Apply(wanted))
            .await
            .step("change", kind(), &key)?;
        Ok(())
    }

    /// Writes the status of the map, if it changed.
    async fn write_map_status(
        &self,
        tenant: &str,
        map: &NamespaceMap,
        status: &BTreeMap<String, MappedNamespace>,
    ) -> Result<(), ProviderError> {
        let shown = map
            .status
            .as_ref()
            .map(|status| status.namespaces.clone())
            .unwrap_or_default();
        let last = self
            .written
            .lock()
            .get(tenant)
            .filter(|last| last.map_uid == map.metadata.uid)
            .map(|last| last.namespaces.clone());
        let before = json!({ "namespaces": last.unwrap_or(shown) });
        let Some(change) = merge_patch(&before, &json!({ "namespaces": status })) else {
            return Ok(());
        };
        let patch = json!({ "metadata": { "uid": map.metadata.uid }, "status": change });
        let api: Api<NamespaceMap> = Api::namespaced(self.provider.context.client.clone(), tenant);
        let answer = unless_gone(
            api.patch_status(
                NAMESPACE_MAP,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await,
        );
        answer.step("change", "NamespaceMap", Key::new(tenant, NAMESPACE_MAP))?;
        let written = WrittenStatus {
            map_uid: map.metadata.uid.clone(),
            namespaces: status.clone(),
        };
        self.written.lock().insert(tenant.to_owned(), written);
        Ok(())
    }

    fn namespace_api(&self) -> Api<Namespace> {
        Api::all(self.provider.context.client.clone())
    }
}
