//! `NamespaceOffloading`s: the map of namespaces at each provider, the status here, and the end of
//! offloading.
//!
//! A map is computed as a whole, for one provider at a time, from everything that exists: so a
//! namespace that was unoffloaded while a provider was away leaves its map when the provider is
//! back.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::rbac::v1::{RoleBinding, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use liqo_api::conditions::DesiredCondition;
use liqo_api::departure::DepartureCause;
use liqo_api::{
    BudgetStatus, CONTROLLER_MANAGER, ClusterId, Exposed, NAMESPACE_MAP, NAMESPACE_OFFLOADING,
    NamespaceMap, NamespaceMapSpec, NamespaceOffloading, RemoteNamespace, WITHIN_BUDGET,
    annotations, finalizers, labels, may_be_offloaded, roles,
};
use liqo_controller_runtime::{
    Key, Requeue,
    departures::{self, Departure},
    peers::{PeerError, call},
    writes::{
        StepContext as _, StepError, add_finalizer, create_missing, delete_if_present,
        only_with_uid, remove_finalizer, unless_gone,
    },
};
use serde_json::json;

use crate::consumer::controllers::unscheduled_pods;
use crate::consumer::state::{ConsumerState, NamespaceKey, RemoteObjects, RemoteProvider};
use crate::consumer::triggers;
use crate::consumer::watches;
use crate::webhook;
use liqo_offloading_rules::namespace::brokered;
use liqo_offloading_rules::namespace::placement;
use liqo_offloading_rules::namespace::placement::OffloadingProvider;
use liqo_offloading_rules::namespace::unoffloaded::is_recreated_here;
use liqo_offloading_rules::node::object::Outage;
use liqo_offloading_rules::pod::local::SendProgress;
use liqo_offloading_rules::pod::local_state::{ConsumerShadowPod, LocalPod};
use liqo_offloading_rules::replica::kind::ReplicaKind;

/// Namespaces and maps that are handled at the same time.
const CONCURRENCY: usize = 4;

/// Time that the pods of a namespace have to end when it is unoffloaded. After that they are
/// removed at once.
const UNOFFLOAD_TIMEOUT: Duration = Duration::from_mins(2);

/// Interval between two checks of an unoffloading, or of caches that are not synced yet.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between two checks for pods that came to a virtual node after their namespace was
/// unoffloaded.
const LATE_PODS_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of Services and Ingresses in the status of a `NamespaceOffloading`, for each
/// provider.
const MAX_EXPOSED: usize = 50;

/// Maximum number of clusters in the status that a budget closes.
const MAX_CLOSED: usize = 256;

/// The name of the manager's own `RoleBinding`.
const ROLE_BINDING: &str = "liqo-manager";

#[derive(Debug, thiserror::Error)]
pub enum OffloadedNamespaceError {
    #[error(transparent)]
    Local(#[from] StepError),
    /// The map at a provider could not be written.
    #[error("at provider {cluster}: {source}")]
    Map {
        cluster: ClusterId,
        source: StepError<PeerError>,
    },
    #[error(
        "RoleBinding {0}/{ROLE_BINDING} exists and is not Liqo's, so Liqo cannot read the namespace; remove it"
    )]
    BindingTaken(String),
}

/// Runs the controller until the context stops.
pub async fn run_controller(consumer: Arc<ConsumerState>) {
    let (queue, stop) = (
        consumer.queues.namespaces.clone(),
        consumer.context.stop.clone(),
    );
    queue
        .run("namespaces", CONCURRENCY, stop, move |key| {
            let consumer = consumer.clone();
            async move {
                if !consumer.placement_known() {
                    return Ok(Requeue::After(POLL_INTERVAL));
                }
                match key {
                    NamespaceKey::Map(id) => return reconcile_map(&consumer, &id).await,
                    NamespaceKey::Namespace(namespace) => {
                        return reconcile_offloading(&consumer, &namespace).await;
                    }
                    NamespaceKey::AllMaps => triggers::enqueue_all_maps(&consumer),
                    NamespaceKey::Pods(namespace) => {
                        triggers::enqueue_pods_of(&consumer, &namespace);
                    }
                    NamespaceKey::AllPods => triggers::enqueue_all_pods(&consumer),
                    NamespaceKey::AllUnscheduled => triggers::enqueue_all_unscheduled(&consumer),
                    NamespaceKey::AllNamespaces => triggers::enqueue_all_namespaces(&consumer),
                }
                Ok::<_, OffloadedNamespaceError>(Requeue::OnChange)
            }
        })
        .await;
}

async fn reconcile_map(
    consumer: &ConsumerState,
    id: &ClusterId,
) -> Result<Requeue, OffloadedNamespaceError> {
    let Some(peer) = consumer.peers.get(id) else {
        return Ok(Requeue::OnChange);
    };
    if peer.remote().is_none() && consumer.nodes_of_provider(id).is_empty() {
        drop(peer);
        // Those that work with it may not have ended yet.
        return Ok(if consumer.peers.forget(id) {
            Requeue::OnChange
        } else {
            Requeue::After(POLL_INTERVAL)
        });
    }
    // When it answers, or the Node appears, the map is due again.
    let (Some(remote), Some(nodes)) = (peer.answering_remote(), consumer.placement_candidates(id))
    else {
        return Ok(Requeue::OnChange);
    };
    if !consumer.all_pods_known(id) {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    let system = &consumer.context.namespace;
    let mut offloadings = consumer.offloadings.all();
    offloadings.retain(|(key, _)| {
        key.name == NAMESPACE_OFFLOADING && may_be_offloaded(&key.namespace, system)
    });
    let seen = PodsAtProvider {
        peer: &peer,
        pods: peer.pods(),
        shadows: remote.shadows.all(),
    };
    let (cluster_name, us) = (
        consumer.context.config().spec.cluster_name.clone(),
        &consumer.context.cluster_id,
    );
    let wanted = placement::wanted_mappings(
        offloadings
            .iter()
            .map(|(key, offloading)| (key.namespace.as_str(), offloading.as_ref())),
        &nodes,
        (&cluster_name, us),
        |namespace| seen.uses_namespace(namespace),
    );
    let api: Api<NamespaceMap> = Api::namespaced(
        remote.connection.client.clone(),
        &remote.connection.tenant_namespace,
    );
    let key = Key::new(&remote.connection.tenant_namespace, NAMESPACE_MAP);
    let failed = |source| OffloadedNamespaceError::Map {
        cluster: id.clone(),
        source,
    };
    let domain = consumer.context.cluster_domain.as_deref();
    match remote.map() {
        Some(live) => {
            let patch = placement::patch(&live, &wanted, us, |namespace| {
                seen.keeps_name_of(namespace)
            });
            if let Some(patch) = placement::announce_domain(patch, &live, domain) {
                let answer = call(api.patch(
                    NAMESPACE_MAP,
                    &PatchParams::default(),
                    &Patch::Merge(&patch),
                ))
                .await;
                answer.step("change", "NamespaceMap", key).map_err(failed)?;
            }
        }
        None if wanted.is_empty() => {}
        None => {
            let mut map = NamespaceMap::new(NAMESPACE_MAP, NamespaceMapSpec { mappings: wanted });
            map.labels_mut()
                .insert(labels::MANAGED.into(), "true".into());
            map.annotations_mut()
                .extend(domain.map(|domain| (annotations::CLUSTER_DOMAIN.into(), domain.into())));
            match call(api.create(&PostParams::default(), &map)).await {
                // The watch lags; its event triggers us again.
                Err(PeerError::Api(kube::Error::Api(status))) if status.is_already_exists() => {}
                created => drop(
                    created
                        .step("create", "NamespaceMap", key)
                        .map_err(failed)?,
                ),
            }
        }
    }
    Ok(Requeue::OnChange)
}

async fn reconcile_offloading(
    consumer: &Arc<ConsumerState>,
    namespace: &str,
) -> Result<Requeue, OffloadedNamespaceError> {
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    let Some(offloading) = consumer.offloadings.get(&key) else {
        consumer.unfollow_namespace(namespace);
        return bring_late_pods_home(consumer, namespace).await;
    };
    if offloading.metadata.deletion_timestamp.is_some() {
        return unoffload_namespace(consumer, namespace, &offloading).await;
    }
    let system = consumer.context.namespace.as_str();
    if !may_be_offloaded(namespace, system) {
        let condition = placement::not_allowed_condition(
            namespace == system,
            offloading.spec.pod_offloading_strategy,
        );
        let shown = OffloadingStatusContents {
            remote_namespaces: Vec::new(),
            conditions: vec![condition],
            budget: None,
        };
        write_status(consumer, namespace, &offloading, shown).await?;
        return Ok(Requeue::OnChange);
    }
    let api: Api<NamespaceOffloading> = Api::namespaced(consumer.context.client.clone(), namespace);
    let held = add_finalizer(&api, &*offloading, finalizers::NAMESPACE_OFFLOADING).await;
    if !held.step("add the finalizer to", "NamespaceOffloading", key)? {
        return Ok(Requeue::OnChange);
    }
    grant_namespace_access(consumer, namespace, &offloading).await?;
    watches::follow_namespace(consumer, namespace);
    update_status(consumer, namespace, &offloading).await?;
    Ok(Requeue::OnChange)
}

/// Shows where the namespace exists.
async fn update_status(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
) -> Result<(), OffloadedNamespaceError> {
    let cluster_name = consumer.context.config().spec.cluster_name.clone();
    let asked = placement::remote_name(
        namespace,
        offloading,
        (&cluster_name, &consumer.context.cluster_id),
    );
    let status = offloading.status.clone().unwrap_or_default();
    let remote_namespaces: Vec<RemoteNamespace> = consumer
        .selected_providers(offloading)
        .iter()
        .map(|(id, name)| {
            let shown = status
                .remote_namespaces
                .iter()
                .find(|one| one.cluster_id == *id);
            remote_namespace(consumer, namespace, &asked, (id, name), shown)
        })
        .collect();
    let placed = brokered::is_brokered(offloading)
        || webhook::selected_namespaces(&consumer.webhook)
            .covers(namespace, offloading.spec.pod_offloading_strategy);
    let ready = placement::ready_condition(&remote_namespaces, placed);
    let effect = budget_effect(consumer, namespace, offloading);
    let (within, budget) = effect
        .map(|effect| (effect.condition, effect.status))
        .unzip();
    let conditions = [ready].into_iter().chain(within).collect();
    write_status(
        consumer,
        namespace,
        offloading,
        OffloadingStatusContents {
            remote_namespaces,
            conditions,
            budget,
        },
    )
    .await
}

/// The effect of a budget, as the status of the namespace shows it.
struct BudgetEffect {
    condition: DesiredCondition,
    status: BudgetStatus,
}

/// Returns the effect of the budget of a namespace, if it has one. Until that is known, the status
/// keeps the shown one.
fn budget_effect(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
) -> Option<BudgetEffect> {
    let budget = offloading.spec.budget.as_ref()?;
    let standing = consumer.budgets.read().clone();
    let verdict = standing
        .as_ref()
        .and_then(|standing| standing.state_of_namespace(namespace));
    let Some(verdict) = verdict.filter(|verdict| verdict.held.budget == *budget) else {
        let status = offloading.status.clone().unwrap_or_default();
        let shown = status
            .conditions
            .into_iter()
            .find(|one| one.type_ == WITHIN_BUDGET)?;
        let known = match shown.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        };
        let condition = DesiredCondition {
            kind: WITHIN_BUDGET,
            status: known,
            reason: shown.reason,
            message: shown.message,
        };
        return Some(BudgetEffect {
            condition,
            status: status.budget.unwrap_or_default(),
        });
    };
    let selected: Vec<ClusterId> = consumer
        .selected_providers(offloading)
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    let all_closed =
        !selected.is_empty() && selected.iter().all(|id| verdict.closed.contains_key(id));
    let closed_cluster_ids = verdict
        .closed
        .keys()
        .filter(|id| selected.contains(id))
        .take(MAX_CLOSED)
        .cloned()
        .collect();
    Some(BudgetEffect {
        condition: verdict.condition(),
        status: BudgetStatus {
            closed_cluster_ids,
            all_closed,
        },
    })
}

/// The namespace at one provider; `shown` is what the status says of it so far.
fn remote_namespace(
    consumer: &ConsumerState,
    namespace: &str,
    asked: &str,
    (id, name): (&ClusterId, &str),
    shown: Option<&RemoteNamespace>,
) -> RemoteNamespace {
    let peer = consumer.remote_provider(id);
    let (answers, answering) = (peer.outage() == Outage::None, peer.answering_remote());
    // A connection that is being established proves nothing yet.
    if let (Some(shown), true, None) = (shown, answers, &answering) {
        return shown.clone();
    }
    let map = peer.remote().and_then(|remote| remote.map());
    let provider = OffloadingProvider {
        cluster_id: id,
        cluster_name: name,
        map: map.as_deref(),
        answers,
    };
    let mut remote_namespace =
        placement::remote_namespace(namespace, asked, &consumer.context.cluster_id, &provider);
    // A provider that does not answer keeps what it showed last.
    remote_namespace.exposed = match answering {
        Some(remote) => exposed_objects(consumer, &remote, namespace),
        None => shown.map(|shown| shown.exposed.clone()).unwrap_or_default(),
    };
    remote_namespace
}

/// The pods on the virtual nodes of a provider, and its shadow pods.
struct PodsAtProvider<'a> {
    peer: &'a RemoteProvider,
    pods: Vec<Arc<LocalPod>>,
    shadows: Vec<(Key, Arc<ConsumerShadowPod>)>,
}

impl PodsAtProvider<'_> {
    /// Whether a pod of this namespace may run there, or has a shadow pod.
    fn uses_namespace(&self, namespace: &str) -> bool {
        self.has_shadow_of(namespace)
            || self
                .pods
                .iter()
                .any(|pod| pod.key.namespace == namespace && self.peer.may_run(pod))
    }

    /// Whether the namespace keeps its name there. A pod that waits for the namespace may start
    /// under another name.
    fn keeps_name_of(&self, namespace: &str) -> bool {
        self.has_shadow_of(namespace)
            || self.pods.iter().any(|pod| {
                pod.key.namespace == namespace
                    && self.peer.send_progress(&pod.uid) != SendProgress::No
            })
    }

    fn has_shadow_of(&self, namespace: &str) -> bool {
        self.shadows
            .iter()
            .any(|(_, shadow)| shadow.home.namespace == namespace)
    }
}

/// The objects of a namespace that clients outside the provider's cluster reach.
fn exposed_objects(
    consumer: &ConsumerState,
    remote: &RemoteObjects,
    namespace: &str,
) -> Vec<Exposed> {
    let Some(objects) = consumer.local_objects(namespace) else {
        return Vec::new();
    };
    // Only objects that exist here: the provider could write any other name.
    let records = remote.objects.all();
    let mut all: Vec<Exposed> = records
        .iter()
        .filter(|(_, record)| {
            let reference = &record.reference;
            reference.namespace == namespace
                && match reference.kind {
                    ReplicaKind::Service => objects.services.get(&reference.key()).is_some(),
                    ReplicaKind::Ingress => objects.ingresses.get(&reference.key()).is_some(),
                    _ => false,
                }
        })
        .filter_map(|(_, record)| {
            let (kind, name) = (
                record.reference.kind.name().to_owned(),
                record.reference.name.clone(),
            );
            Some(Exposed {
                kind,
                name,
                exposure: record.exposure.clone()?,
            })
        })
        .collect();
    all.sort_by(|one, other| (&one.kind, &one.name).cmp(&(&other.kind, &other.name)));
    all.truncate(MAX_EXPOSED);
    all
}

/// The contents of the status.
struct OffloadingStatusContents {
    remote_namespaces: Vec<RemoteNamespace>,
    conditions: Vec<DesiredCondition>,
    budget: Option<BudgetStatus>,
}

/// Writes the status, if it changed.
async fn write_status(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
    shown: OffloadingStatusContents,
) -> Result<(), OffloadedNamespaceError> {
    let OffloadingStatusContents {
        remote_namespaces,
        conditions: wanted,
        budget,
    } = shown;
    let status = offloading.status.clone().unwrap_or_default();
    let generation = offloading.metadata.generation;
    let conditions = liqo_api::conditions::updated_conditions_for(
        generation,
        &status.conditions,
        &wanted,
        consumer.context.now(),
    );
    let conditions = conditions.or_else(|| {
        (status.conditions.len() != wanted.len()).then(|| {
            status
                .conditions
                .iter()
                .filter(|one| wanted.iter().any(|want| want.kind == one.type_))
                .cloned()
                .collect()
        })
    });
    if conditions.is_none()
        && status.budget == budget
        && status.remote_namespaces == remote_namespaces
    {
        return Ok(());
    }
    let patch = json!({ "status": {
        "conditions": conditions.unwrap_or(status.conditions),
        "remoteNamespaces": remote_namespaces,
        "budget": budget,
    } });
    let api: Api<NamespaceOffloading> = Api::namespaced(consumer.context.client.clone(), namespace);
    let answer = api
        .patch_status(
            NAMESPACE_OFFLOADING,
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await;
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    unless_gone(answer).step("write the status of", "NamespaceOffloading", key)?;
    Ok(())
}

/// Ends the offloading of a namespace: pods first, then the mapping, then our right to look into
/// the namespace.
async fn unoffload_namespace(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
) -> Result<Requeue, OffloadedNamespaceError> {
    let now = consumer.context.now();
    let asked = offloading
        .metadata
        .deletion_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    let late = Duration::try_from(now.duration_since(asked))
        .is_ok_and(|waited| waited > UNOFFLOAD_TIMEOUT);
    let mut is_empty = consumer
        .providers()
        .iter()
        .all(|(id, _)| consumer.all_pods_known(id));
    for peer in consumer.peers.all() {
        let deletion = if late || peer.outage() != Outage::None {
            PodDeletion::AtOnce
        } else {
            PodDeletion::Graceful
        };
        is_empty &= !delete_pods(consumer, &peer, namespace, deletion).await?;
        let map = peer.answering_remote().and_then(|remote| remote.map());
        if map.is_some_and(|map| map.spec.mappings.contains_key(namespace)) {
            triggers::enqueue_map(consumer, &peer.id);
            is_empty = false;
        }
    }
    if !is_empty && !late {
        return Ok(Requeue::After(POLL_INTERVAL));
    }
    match unscheduled_pods::bring_home(&consumer.context, namespace).await {
        Ok(true) => {}
        Ok(false) if !late => return Ok(Requeue::After(POLL_INTERVAL)),
        Err(error) if !late => return Err(error.into()),
        // They do not hold up the end.
        rest => tracing::warn!(
            namespace,
            ?rest,
            "pods that wait for a virtual node stay: delete them"
        ),
    }
    consumer.unfollow_namespace(namespace);
    let client = &consumer.context.client;
    let (bindings, key): (Api<RoleBinding>, _) = (
        Api::namespaced(client.clone(), namespace),
        Key::new(namespace, ROLE_BINDING),
    );
    let live = bindings
        .get_opt(ROLE_BINDING)
        .await
        .step("read", "RoleBinding", &key)?;
    if let Some(ours) = live.filter(is_our_binding) {
        let only_this = only_with_uid(ours.uid().unwrap_or_default());
        delete_if_present(&bindings, ROLE_BINDING, &only_this)
            .await
            .step("delete", "RoleBinding", key)?;
    }
    consumer
        .unoffloaded
        .lock()
        .add(namespace, consumer.context.now());
    let api: Api<NamespaceOffloading> = Api::namespaced(client.clone(), namespace);
    // If the object changed meanwhile, the watch triggers us again.
    let removed = remove_finalizer(&api, offloading, finalizers::NAMESPACE_OFFLOADING).await;
    removed.step(
        "remove the finalizer of",
        "NamespaceOffloading",
        Key::new(namespace, NAMESPACE_OFFLOADING),
    )?;
    Ok(Requeue::OnChange)
}

/// The way in which the pods of an unoffloaded namespace go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodDeletion {
    /// Each has the time to end that its spec gives it.
    Graceful,
    AtOnce,
}

/// Deletes the pods of a namespace on the virtual nodes of a provider. Returns whether some of them
/// have to be waited for.
async fn delete_pods(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    namespace: &str,
    deletion: PodDeletion,
) -> Result<bool, OffloadedNamespaceError> {
    let mut some_are_left = false;
    for pod in peer
        .pods()
        .iter()
        .filter(|pod| pod.key.namespace == namespace)
    {
        if deletion == PodDeletion::AtOnce {
            // They are gone with the call, so there is nothing to wait for.
            if !pod.only_finalizers_remain() {
                delete_pod(consumer, pod, Some(0)).await?;
            }
        } else {
            let may_run = peer.may_run(pod);
            if pod.deletion.is_none() && (may_run || is_recreated_here(pod)) {
                delete_pod(consumer, pod, None).await?;
            }
            // A pod that only somebody's finalizer holds, or that no provider has, is not ours to
            // wait for.
            some_are_left |= may_run && !pod.only_finalizers_remain();
        }
    }
    Ok(some_are_left)
}

async fn delete_pod(
    consumer: &ConsumerState,
    pod: &LocalPod,
    grace: Option<u32>,
) -> Result<(), OffloadedNamespaceError> {
    let departure = Departure {
        grace,
        ..Departure::new(DepartureCause::Unoffloaded, &pod.key, &pod.uid)
    };
    departures::request_departure(&consumer.context, departure).await?;
    Ok(())
}

/// Deletes the pods of a namespace that was just unoffloaded which came to a virtual node all the
/// same, or wait for one. Looks again until no such pod is expected any more.
async fn bring_late_pods_home(
    consumer: &ConsumerState,
    namespace: &str,
) -> Result<Requeue, OffloadedNamespaceError> {
    if !consumer
        .unoffloaded
        .lock()
        .is_recent(namespace, consumer.context.now())
    {
        return Ok(Requeue::OnChange);
    }
    for peer in consumer.peers.all() {
        for pod in peer
            .pods()
            .iter()
            .filter(|pod| pod.key.namespace == namespace && is_recreated_here(pod))
        {
            tracing::info!(pod = %pod.key, "pod came to a virtual node after its namespace was unoffloaded; deleted");
            delete_pod(consumer, pod, None).await?;
        }
    }
    unscheduled_pods::bring_home(&consumer.context, namespace).await?;
    Ok(Requeue::After(LATE_PODS_INTERVAL))
}

/// Lets the manager read the `ConfigMap`s and Secrets of the namespace. In the mapped namespace of
/// a consumer it has that right already; such a namespace is offloaded by Liqo only, because its
/// pods are the consumer's.
async fn grant_namespace_access(
    consumer: &ConsumerState,
    namespace: &str,
    offloading: &NamespaceOffloading,
) -> Result<(), OffloadedNamespaceError> {
    let binding = RoleBinding {
        metadata: ObjectMeta {
            name: Some(ROLE_BINDING.into()),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "ClusterRole".into(),
            name: roles::OFFLOADED_NAMESPACE.into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: CONTROLLER_MANAGER.into(),
            namespace: Some(consumer.context.namespace.clone()),
            ..Subject::default()
        }]),
    };
    let api: Api<RoleBinding> = Api::namespaced(consumer.context.client.clone(), namespace);
    let (live, _) = create_missing(&api, &binding).await.step(
        "create",
        "RoleBinding",
        Key::new(namespace, ROLE_BINDING),
    )?;
    if is_our_binding(&live)
        || (refers_to(&live, roles::OWN_NAMESPACE) && brokered::is_brokered(offloading))
    {
        return Ok(());
    }
    Err(OffloadedNamespaceError::BindingTaken(namespace.to_owned()))
}

/// Whether this is the binding that we created, and not one of the same name.
fn is_our_binding(binding: &RoleBinding) -> bool {
    refers_to(binding, roles::OFFLOADED_NAMESPACE)
}

fn refers_to(binding: &RoleBinding, role: &str) -> bool {
    binding.role_ref.kind == "ClusterRole" && binding.role_ref.name == role
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::consumer::controllers::pods::tests::{api_server, started};

    /// A consumer with two pods on a virtual node, which the controller of pods has refused: `web`
    /// has a controller, `alone` has none. Also the names of the pods whose deletion was requested;
    /// each such request fails.
    fn with_refused_pods() -> (
        Arc<ConsumerState>,
        Arc<RemoteProvider>,
        Arc<Mutex<Vec<String>>>,
    ) {
        let deleted: Arc<Mutex<Vec<String>>> = Arc::default();
        let deleting = deleted.clone();
        let here = api_server(json!({}), move |method, name| {
            let is_deletion = *method == http::Method::DELETE;
            if is_deletion {
                deleting.lock().push(name.to_owned());
            }
            std::future::ready(!is_deletion)
        });
        let consumer = started(here);
        let peer = consumer.remote_provider(&ClusterId::of_public_key(&[2; 32]));
        let pod = |name: &str, owners: Value| {
            let refused = json!({ "type": "liqo.io/Offloaded", "status": "False", "reason": "NamespaceNotOffloaded",
                "lastTransitionTime": "2026-01-01T00:00:00Z" });
            let pod = json!({ "metadata": { "namespace": "demo", "name": name, "uid": name, "ownerReferences": owners },
                "spec": { "containers": [] }, "status": { "conditions": [refused] } });
            Arc::new(
                LocalPod::from_pod(
                    serde_json::from_value(pod).unwrap(),
                    &Key::new("tenant", "milan"),
                )
                .unwrap(),
            )
        };
        let replica_set = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true }]);
        peer.pod_changed(None, Some(&pod("web", replica_set)));
        peer.pod_changed(None, Some(&pod("alone", json!([]))));
        (consumer, peer, deleted)
    }

    #[tokio::test]
    async fn a_refused_pod_comes_home_when_its_namespace_is_unoffloaded() {
        let (consumer, peer, deleted) = with_refused_pods();
        let outcome = delete_pods(&consumer, &peer, "demo", PodDeletion::Graceful).await;
        assert!(outcome.is_err());
        assert_eq!(*deleted.lock(), ["web"]);
        consumer.context.stop.cancel();
    }

    #[tokio::test]
    async fn a_pod_that_a_lagging_webhook_placed_comes_home_after_the_end_of_the_offloading() {
        let (consumer, _peer, deleted) = with_refused_pods();
        assert_eq!(
            bring_late_pods_home(&consumer, "demo").await.unwrap(),
            Requeue::OnChange,
            "it was not offloaded before"
        );
        consumer
            .unoffloaded
            .lock()
            .add("demo", consumer.context.now());
        assert!(bring_late_pods_home(&consumer, "demo").await.is_err());
        assert_eq!(*deleted.lock(), ["web"]);
        consumer.context.stop.cancel();
    }
}
