//! Local pods: sent to the provider, their status brought back, removed when the remote pod is
//! gone.
//!
//! This is the hot path. Each pod is one key in its provider's queue, so its writes never overlap,
//! and changes that arrive during a reconciliation become one further reconciliation. Objects are
//! created and patched without reading more than the metadata of the answer; only a change of a
//! running pod reads its record before.

mod replacement;
mod send;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use liqo_api::departure::DepartureCause;
use liqo_api::{
    EvictionDelay, MetadataOnly, NAMESPACE_OFFLOADING, NamespaceOffloading, OffloadedReason,
    PodOffloadingStrategy, ShadowPod, ShadowPodPhase, VirtualNode, annotations, pods,
    provider_namespace,
};
use liqo_controller_runtime::{
    Key, Requeue,
    departures::{self, Departure},
    eviction::EvictionOutcome,
    peers::call,
    writes::{RequestError, StepContext as _, delete_if_present, unless_changed, unless_gone},
};
use liqo_network_model::{Here, There};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::send::{RecordUpdate, SendingMark};
use crate::consumer::events::{self, BEHIND};
use crate::consumer::records;
use crate::consumer::state::{ConsumerState, RemoteObjects, RemoteProvider};
use crate::consumer::triggers;
use crate::webhook;
use liqo_offloading_rules::json::OFFER_RECLAIMED;
use liqo_offloading_rules::namespace::node_selector;
use liqo_offloading_rules::namespace::placement;
use liqo_offloading_rules::pod::added_limits::{LIMIT_ADDED, describe_new_limits};
use liqo_offloading_rules::pod::ephemeral::newly_refused_message;
use liqo_offloading_rules::pod::eviction::tolerations_with_delay;
use liqo_offloading_rules::pod::home_text::shadow_with_home_names;
use liqo_offloading_rules::pod::local;
use liqo_offloading_rules::pod::local::LastRunPlace;
use liqo_offloading_rules::pod::local::LocalPodAction;
use liqo_offloading_rules::pod::local::LocalPodFacts;
use liqo_offloading_rules::pod::local::RemoteNamespaceState;
use liqo_offloading_rules::pod::local::decide_local_pod;
use liqo_offloading_rules::pod::local::{MissingObjects, PodObstacle};
use liqo_offloading_rules::pod::local_state::ConsumerShadowPod;
use liqo_offloading_rules::pod::local_state::{JsonPod, LocalPod};
use liqo_offloading_rules::pod::local_status::RemotePodView;
use liqo_offloading_rules::pod::local_status::deleted_patch;
use liqo_offloading_rules::pod::local_status::downstream_message;
use liqo_offloading_rules::pod::local_status::evicted_patch;
use liqo_offloading_rules::pod::local_status::is_final;
use liqo_offloading_rules::pod::local_status::local_status_patch;
use liqo_offloading_rules::pod::local_status::lost_patch;
use liqo_offloading_rules::pod::local_status::not_ready_patch;
use liqo_offloading_rules::pod::local_status::refused_patch;
use liqo_offloading_rules::pod::local_status::translate_addresses;
use liqo_offloading_rules::pod::local_status::truncate_text;
use liqo_offloading_rules::pod::recreated::{RECREATED, RECREATED_MESSAGE, is_newly_recreated};
use liqo_offloading_rules::pod::refusals::{self, NewRefusal, RefusalCause};
use liqo_offloading_rules::pod::waiting::has_started;
use liqo_offloading_rules::replica::record::Reference;

/// Pods that are handled at the same time, for each provider.
const CONCURRENCY: usize = 24;

/// Minimum time between two replacements of refused pods of one owner.
const REPLACEMENT_INTERVAL: Duration = Duration::from_mins(1);

/// Delay between the record of a refusal, or the strategy Local, and the deletion of the refused
/// pod: by then, every replica's webhook knows it.
const REMEMBERED_DELAY: Duration = Duration::from_secs(2);

/// Interval between two reconciliations of a waiting pod, in case the configuration changes
/// meanwhile.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Delay before a shadow pod without local pod is reconciled again, if the local pod turned out to
/// exist.
const NO_ORPHAN_RETRY: Duration = Duration::from_secs(5);

/// Runs the controller for one provider.
pub async fn run_controller(
    consumer: Arc<ConsumerState>,
    peer: Weak<RemoteProvider>,
    stop: CancellationToken,
) {
    // The provider can be forgotten while its controllers run.
    let Some(queue) = peer.upgrade().map(|peer| peer.pod_queue.clone()) else {
        return;
    };
    // A pod that goes before the contracts are known would leave no entry.
    if stop.run_until_cancelled(consumer.recorder.synced()).await != Some(true) {
        return;
    }
    queue
        // The name is a label of metrics, so it stays.
        .run("local-pods", CONCURRENCY, stop, move |uid| {
            let (consumer, peer) = (consumer.clone(), peer.upgrade());
            async move {
                match peer {
                    Some(peer) => reconcile_pod(&consumer, &peer, &uid).await,
                    None => Ok(Requeue::OnChange),
                }
            }
        })
        .await;
}

async fn reconcile_pod(
    consumer: &Arc<ConsumerState>,
    peer: &Arc<RemoteProvider>,
    uid: &str,
) -> Result<Requeue, RequestError> {
    let seen = SeenPod::of(peer, uid);
    let (local, shadow, remote) = (&seen.local, &seen.shadow, &seen.remote);
    let left = if local.is_none() {
        peer.gone_pod(uid)
    } else {
        None
    };
    if let (Some(pod), Some(shadow)) = (&left, shadow) {
        peer.observe_charges(pod, shadow);
    }
    if local.is_none() && shadow.is_none() {
        // A shadow pod that is not seen may exist, and then tells how long the pod ran.
        if let Some(pod) = &left
            && (!seen.is_peer_answering() || !consumer.store_usage(peer, pod))
        {
            return Ok(Requeue::OnChange);
        }
        forget_pod(consumer, peer, uid);
    }
    if let (Some(pod), Some(shadow)) = (local, shadow) {
        peer.observe_charges(pod, shadow);
    }
    if let Some(pod) = local
        && replacement::is_awaited(consumer, &peer.id, pod).await?
    {
        return Ok(Requeue::After(replacement::POLL_INTERVAL));
    }
    let node = local
        .as_ref()
        .and_then(|pod| consumer.virtual_nodes.get(&pod.virtual_node));
    let tenancy = remote.as_ref().and_then(|remote| remote.tenancy_uid());
    let stuck = seen.lasting_obstacle(peer);
    let facts = LocalPodFacts {
        home: local.as_deref(),
        shadow: shadow.as_deref(),
        peer: seen.reachability,
        ran: seen.last_run(consumer, peer),
        namespace: seen.awaited_namespace(consumer, node.as_deref()),
        tenancy: tenancy.as_deref(),
        sent: peer.send_progress(uid),
        removed: peer.is_removed(uid),
        eviction_delay: local
            .as_ref()
            .and_then(|pod| eviction_delay(consumer, &pod.key.namespace)),
        is_brokered: local
            .as_ref()
            .is_some_and(|pod| consumer.is_brokered(&pod.key.namespace)),
        may_run_here: local
            .as_ref()
            .and_then(|pod| may_run_here(consumer, &pod.key.namespace)),
        stuck: stuck.as_ref(),
        refusal_timeout: refusal_timeout(consumer),
        now: consumer.context.now(),
    };
    if let (None, Some(shadow)) = (local, shadow)
        && shadow.is_terminating()
        && left.is_none()
        && seen.is_peer_answering()
        && consumer.all_pods_known(&peer.id)
    {
        // The provider finishes that, and its charges go with it.
        consumer.store_orphan(peer, uid, shadow);
    }
    let decision = decide_local_pod(&facts);
    let mut next = decision.again.map_or(Requeue::OnChange, |again| {
        Requeue::After(again.min(MAX_WAIT))
    });
    for action in decision.actions {
        let look_again = match (local, remote) {
            (Some(pod), remote) => {
                let pass = LocalPodReconciliation {
                    consumer,
                    peer,
                    remote: remote.as_deref(),
                    node: node.as_deref(),
                    pod,
                    facts: &facts,
                };
                pass.act(action, shadow.as_deref()).await?
            }
            (None, Some(remote)) => remove_orphan(consumer, peer, remote, uid).await?,
            (None, None) => Requeue::OnChange,
        };
        if look_again != Requeue::OnChange {
            next = look_again;
        }
    }
    Ok(next)
}

/// Forgets a pod that is gone here and at its provider.
fn forget_pod(consumer: &Arc<ConsumerState>, peer: &Arc<RemoteProvider>, uid: &str) {
    peer.forget(uid);
    consumer.recorder.forget(&provider_namespace(&peer.id), uid);
    triggers::enqueue_triggers(consumer, peer, [triggers::pod_gone()]);
}

/// A pod as it is seen here and at its provider.
struct SeenPod {
    local: Option<Arc<LocalPod>>,
    shadow: Option<Arc<ConsumerShadowPod>>,
    remote: Option<Arc<RemoteObjects>>,
    reachability: local::PeerReachability,
}

impl SeenPod {
    fn of(peer: &RemoteProvider, uid: &str) -> Self {
        let (local, remote, reachability) = (peer.pod(uid), peer.remote(), peer.reachability());
        let shadow = remote
            .as_ref()
            .and_then(|remote| remote.shadow_pod(uid))
            .map(|shadow| shadow_with_home_names(shadow, local.as_deref()));
        Self {
            local,
            shadow,
            remote,
            reachability,
        }
    }

    fn is_peer_answering(&self) -> bool {
        self.reachability == local::PeerReachability::Answers
    }

    /// The namespace at the provider. Whether it is offloaded matters until the remote pod exists.
    fn awaited_namespace(
        &self,
        consumer: &ConsumerState,
        node: Option<&VirtualNode>,
    ) -> RemoteNamespaceState {
        match (&self.local, &self.remote, node) {
            (Some(pod), Some(remote), Some(node))
                if self.shadow.as_ref().is_none_or(|shadow| shadow.waits()) =>
            {
                namespace_state(consumer, remote, node, &pod.key.namespace)
            }
            _ => RemoteNamespaceState::Waiting,
        }
    }

    /// Where the provider ran the pod. Only matters while it does not answer.
    fn last_run(&self, consumer: &ConsumerState, peer: &RemoteProvider) -> LastRunPlace {
        match &self.local {
            Some(pod) if !self.is_peer_answering() => where_it_ran(consumer, peer, pod),
            _ => LastRunPlace::Elsewhere,
        }
    }

    /// The obstacle of a pod that both sides have.
    fn lasting_obstacle(&self, peer: &RemoteProvider) -> Option<(PodObstacle, Duration)> {
        match (&self.local, &self.remote, &self.shadow) {
            (Some(pod), Some(remote), Some(shadow)) => start_obstacle(peer, remote, pod, shadow),
            _ => None,
        }
    }
}

/// Returns the setting of the namespace's user for pods at providers that do not answer.
fn eviction_delay(consumer: &ConsumerState, namespace: &str) -> Option<EvictionDelay> {
    consumer
        .offloadings
        .get(&Key::new(namespace, NAMESPACE_OFFLOADING))?
        .spec
        .eviction_delay
}

/// Finds where a provider ran a pod, from the last address that it told. Its record here has the
/// name of its namespace there, which may have changed since in the status of the offloading, or
/// the address.
fn where_it_ran(consumer: &ConsumerState, peer: &RemoteProvider, pod: &LocalPod) -> LastRunPlace {
    let network = consumer.networks.network_of_peer(&peer.id);
    let address = pod
        .remote_address()
        .zip(network)
        .and_then(|(there, network)| network.maps.exported.to_here(There(there)));
    let Some(Here(address)) = address else {
        return LastRunPlace::Elsewhere;
    };
    let offloading = consumer
        .offloadings
        .get(&Key::new(&pod.key.namespace, NAMESPACE_OFFLOADING));
    let there = offloading
        .iter()
        .flat_map(|offloading| &offloading.status)
        .flat_map(|status| &status.remote_namespaces);
    let namespaces: Vec<&str> = there
        .filter(|one| one.cluster_id == peer.id)
        .map(|one| one.namespace.as_str())
        .collect();
    let reason = consumer
        .remote_pods
        .taken_back(&peer.id, &pod.key.name, &namespaces, address);
    reason.map_or(LastRunPlace::Here, LastRunPlace::EndedHere)
}

/// Maximum time that a pod waits for an obstacle to go.
fn refusal_timeout(consumer: &ConsumerState) -> Duration {
    Duration::from_secs(
        consumer
            .context
            .config()
            .spec
            .offloading
            .refusal_timeout_seconds
            .into(),
    )
}

/// Whether new pods of a namespace may run in this cluster, too. `None` if that is not known yet,
/// or where pods of a consumer are.
fn may_run_here(consumer: &ConsumerState, namespace: &str) -> Option<bool> {
    if !consumer.offloadings.is_synced() || consumer.is_brokered(namespace) {
        return None;
    }
    let offloading = consumer
        .offloadings
        .get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    let strategy = offloading.map(|offloading| offloading.spec.pod_offloading_strategy);
    Some(strategy != Some(PodOffloadingStrategy::Remote))
}

/// Returns the obstacle that keeps a pod, which its provider accepted, from starting, and for how
/// long it has done so.
fn start_obstacle(
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    pod: &LocalPod,
    shadow: &ConsumerShadowPod,
) -> Option<(PodObstacle, Duration)> {
    let waiting = pod.waiting.as_ref().filter(|_| {
        // The report of a start may not be written here yet.
        *shadow.phase.unverified() == ShadowPodPhase::Created
            && !shadow
                .remote_status()
                .is_some_and(|status| has_started(&status))
    });
    let obstacle = waiting.and_then(|waiting| {
        let missing = missing_objects(peer, remote, &Reference::needed_by(pod));
        PodObstacle::from_waiting_pod(waiting, missing.as_ref(), has_needed(remote, pod))
    });
    let stuck_for = peer.stuck_for(
        &pod.uid,
        obstacle.as_ref().map(|obstacle| obstacle.reason.as_str()),
    );
    obstacle.map(|obstacle| (obstacle, stuck_for))
}

/// Whether pods of a namespace can run at the provider of this virtual node.
fn namespace_state(
    consumer: &ConsumerState,
    remote: &RemoteObjects,
    node: &VirtualNode,
    namespace: &str,
) -> RemoteNamespaceState {
    if !consumer.offloadings.is_synced() || !consumer.nodes.is_synced() {
        return RemoteNamespaceState::Waiting;
    }
    if node.metadata.deletion_timestamp.is_some() {
        let message =
            "the peering ends, and the virtual node with it; keep the pod off it".to_owned();
        return RemoteNamespaceState::Refused {
            reason: OffloadedReason::NodeLeaving.as_str(),
            message,
        };
    }
    let offloading = consumer
        .offloadings
        .get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    let Some(offloading) =
        offloading.filter(|offloading| offloading.metadata.deletion_timestamp.is_none())
    else {
        let message = format!(
            "namespace {namespace} is not offloaded; run `liqoctl offload namespace {namespace}`, or keep the pod off virtual nodes"
        );
        return RemoteNamespaceState::Refused {
            reason: OffloadedReason::NamespaceNotOffloaded.as_str(),
            message,
        };
    };
    if offloading.spec.pod_offloading_strategy == PodOffloadingStrategy::Local {
        let message = format!(
            "the pods of namespace {namespace} stay in this cluster, because podOffloadingStrategy of its NamespaceOffloading is Local"
        );
        return RemoteNamespaceState::Refused {
            reason: OffloadedReason::OffloadingIsLocal.as_str(),
            message,
        };
    }
    let Some(labels) = consumer.node_labels(node) else {
        return RemoteNamespaceState::Waiting;
    };
    let name = node
        .status
        .as_ref()
        .and_then(|status| status.node_name.as_deref())
        .unwrap_or_default();
    if !node_selector::selects_node(offloading.spec.cluster_selector.as_ref(), name, &labels) {
        let message = format!(
            "the clusterSelector of the NamespaceOffloading of {namespace} does not select the node of the pod"
        );
        return RemoteNamespaceState::Refused {
            reason: OffloadedReason::ClusterNotSelected.as_str(),
            message,
        };
    }
    match consumer.closed_by_budget(&offloading, namespace, &node.spec.cluster_id) {
        Ok(None) => {}
        Ok(Some(closed)) => {
            return RemoteNamespaceState::Refused {
                reason: closed.reason.as_str(),
                message: closed.message,
            };
        }
        Err(()) => return RemoteNamespaceState::Waiting,
    }
    let (map, cluster_name) = (
        remote.map(),
        consumer.context.config().spec.cluster_name.clone(),
    );
    let wanted = placement::remote_name(
        namespace,
        &offloading,
        (&cluster_name, &consumer.context.cluster_id),
    );
    if map.as_ref().is_some_and(|map| {
        placement::has_outdated_name(map, namespace, &wanted, &consumer.context.cluster_id)
    }) {
        return RemoteNamespaceState::Waiting;
    }
    placement::namespace_state(map.as_deref(), namespace)
}

/// Removes a shadow pod without local pod, once the API server itself says that the pod is gone: a
/// pod that is missing in the cache may merely not be listed yet.
async fn remove_orphan(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    uid: &str,
) -> Result<Requeue, RequestError> {
    let Some(shadow) = remote.shadow_pod(uid) else {
        return Ok(Requeue::OnChange);
    };
    let pod = &shadow.home;
    if !pod.name.is_empty() {
        let api: Api<Pod> = Api::namespaced(consumer.context.client.clone(), &pod.namespace);
        let live = api
            .get_metadata_opt(&pod.name)
            .await
            .step("look for", "Pod", pod)?;
        if live.is_some_and(|live| live.metadata.uid.as_deref() == Some(uid)) {
            return Ok(Requeue::After(NO_ORPHAN_RETRY));
        }
    }
    if consumer.store_orphan(peer, uid, &shadow) {
        delete_shadow(remote, uid, pod).await?;
    }
    Ok(Requeue::OnChange)
}

async fn delete_shadow(remote: &RemoteObjects, uid: &str, pod: &Key) -> Result<(), RequestError> {
    let api: Api<ShadowPod> = Api::namespaced(
        remote.connection.client.clone(),
        &remote.connection.tenant_namespace,
    );
    let deleted = call(delete_if_present(&api, uid, &DeleteParams::default())).await;
    deleted.step("delete the ShadowPod of", "Pod", pod)?;
    tracing::debug!(peer = %remote.connection.cluster_id, %pod, uid, "deleted a shadow pod");
    Ok(())
}

/// Those of these objects of a pod that the provider does not get, and why.
fn missing_objects(
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    references: &[Reference],
) -> Option<MissingObjects> {
    let problems: Vec<(String, String)> = references
        .iter()
        .filter_map(|one| {
            let problem = peer
                .obstacle(one)
                .or_else(|| remote.record(one)?.problem.clone())?;
            Some((format!("{}/{}", one.kind.name(), one.name), problem))
        })
        .collect();
    let all: Vec<String> = problems
        .iter()
        .map(|(object, problem)| format!("{}: {problem}", object.replacen('/', " ", 1)))
        .collect();
    let message = truncate_text(&format!(
        "not all objects that the pod refers to get to the provider: {}",
        all.join("; ")
    ));
    let lasting = problems
        .iter()
        .filter(|(_, problem)| records::is_lasting_problem(problem))
        .map(|(object, _)| object.clone())
        .collect();
    (!problems.is_empty()).then_some(MissingObjects { message, lasting })
}

/// Whether the provider has all objects without which no container of the pod starts.
fn has_needed(remote: &RemoteObjects, pod: &LocalPod) -> bool {
    Reference::needed_by(pod).iter().all(|one| {
        remote
            .record(one)
            .is_some_and(|record| record.problem.is_none())
    })
}

/// Whether pods of an owner are kept from a provider.
enum ExclusionOutcome {
    /// Since a moment ago: the webhooks learn it now.
    Now,
    Since(Timestamp),
    /// There are too many entries, or the namespace is not offloaded.
    No,
}

/// One reconciliation of one local pod.
struct LocalPodReconciliation<'a> {
    consumer: &'a Arc<ConsumerState>,
    peer: &'a Arc<RemoteProvider>,
    remote: Option<&'a RemoteObjects>,
    node: Option<&'a VirtualNode>,
    pod: &'a LocalPod,
    facts: &'a LocalPodFacts<'a>,
}

impl LocalPodReconciliation<'_> {
    /// Takes an action. Returns when to look again, if that is not when something changes.
    async fn act(
        &self,
        action: LocalPodAction,
        shadow: Option<&ConsumerShadowPod>,
    ) -> Result<Requeue, RequestError> {
        let now = self.consumer.context.now();
        match action {
            LocalPodAction::CreateShadow { mark } => {
                self.consumer.store_former(self.peer, self.pod);
                let mark = if mark {
                    SendingMark::Write
                } else {
                    SendingMark::LeaveAsIs
                };
                return self.send_pod(mark).await;
            }
            LocalPodAction::UpdateShadow { whole } => {
                if let Some(shadow) = shadow {
                    self.consumer
                        .store_before_resize(self.peer, self.pod, shadow);
                }
                let update = if whole {
                    RecordUpdate::WholePod
                } else {
                    RecordUpdate::ChangedFields
                };
                self.update_shadow_pod(update, shadow).await?;
            }
            LocalPodAction::PatchLocalStatus => {
                if let Some(shadow) = shadow {
                    self.show_remote_status(shadow, now).await?;
                }
            }
            LocalPodAction::SetEvictionDelay(delay) => self.set_eviction_delay(delay).await?,
            LocalPodAction::NotReady => drop(
                self.patch_status(not_ready_patch(&self.pod.to_json(), now))
                    .await?,
            ),
            LocalPodAction::AskDeletion(grace) => self.ask_deletion(grace).await?,
            LocalPodAction::ShowDeletion => return self.show_remote_deletion(now).await,
            LocalPodAction::RemoveLocalPod => {
                if !self.consumer.store_usage(self.peer, self.pod) {
                    return Ok(Requeue::OnChange);
                }
                if departures::remove(&self.consumer.context.client, &self.pod.key, &self.pod.uid)
                    .await?
                {
                    self.peer.mark_removed(&self.pod.uid);
                }
                tracing::debug!(peer = %self.peer.id, pod = %self.pod.key, "removed a local pod whose remote pod is gone");
            }
            LocalPodAction::DeleteShadow => {
                // The API server removes a pod that has ended at any time, and its shadow pod takes
                // the charges with it.
                if self.pod.finished && !self.consumer.store_ended(self.peer, self.pod) {
                    return Ok(Requeue::OnChange);
                }
                if let Some(remote) = self.remote {
                    delete_shadow(remote, &self.pod.uid, &self.pod.key).await?;
                }
            }
            LocalPodAction::Refuse { reason, message } => {
                self.show_refusal(&reason, &message, now).await?;
            }
            LocalPodAction::Replace {
                reason,
                message,
                cause,
                objects,
            } => {
                return self
                    .evict_unstarted_pod(&reason, &message, cause, &objects)
                    .await;
            }
            LocalPodAction::Tell { reason, message } => {
                if self.peer.may_advise(&self.pod.uid) {
                    self.warn_owner(&reason, &message).await;
                }
            }
            LocalPodAction::Evicted(reason) => {
                self.mark_evicted(
                    &format!(
                        "{} took back resources: {reason}",
                        self.provider_description()
                    ),
                    now,
                )
                .await?;
            }
            LocalPodAction::EndedHere(reason) => {
                let lent = format!(
                    "the pod ran in this cluster, which took back what it had lent to {}: {reason}",
                    self.provider_description()
                );
                self.mark_evicted(&lent, now).await?;
            }
            LocalPodAction::Lost(message) => return self.end_lost_pod(&message, now).await,
        }
        Ok(Requeue::OnChange)
    }

    async fn ask_deletion(&self, grace: i64) -> Result<(), RequestError> {
        let patch = json!({ "spec": { "deletion": { "gracePeriodSeconds": grace } } });
        self.patch_shadow(
            "request the deletion of the ShadowPod of",
            &Patch::Merge(&patch),
        )
        .await
    }

    /// Merges the remote pod's status into the local pod. Also shows differences from a pod that
    /// runs here, with an event for each.
    async fn show_remote_status(
        &self,
        shadow: &ConsumerShadowPod,
        now: Timestamp,
    ) -> Result<(), RequestError> {
        let Some(status) = shadow.remote_status() else {
            return Ok(());
        };
        // Otherwise the pod would lose its addresses. Every pod is due when the networks are known.
        if !self.consumer.networks.is_synced() {
            return Ok(());
        }
        let network = self.consumer.networks.network_of_peer(&self.peer.id);
        let network = network.filter(|network| network.works);
        let addresses = network
            .map(|network| {
                translate_addresses(&status, &network.maps, |address| {
                    self.consumer
                        .remote_pods
                        .has_address(&self.peer.id, address)
                })
            })
            .unwrap_or_default();
        let missing = self.remote.and_then(|remote| {
            missing_objects(self.peer, remote, &Reference::expected_by(self.pod))
        });
        let missing = missing.map(|missing| (pods::NOT_REFLECTED, missing.message));
        let problem = missing.or(addresses
            .refused
            .map(|message| (pods::ADDRESS_REFUSED, message)));
        let problem = problem.or_else(|| {
            let there = (shadow.reason == pods::CHANGE_REFUSED).then(|| shadow.message.clone());
            let refused = self
                .pod
                .refused_change()
                .or(there)
                .or_else(|| downstream_message(&status, pods::CHANGE_REFUSED));
            refused.map(|message| (pods::CHANGE_REFUSED, message))
        });
        let notice = (shadow.reason == pods::ENDS_SOON).then(|| shadow.message.clone());
        // Both begin with the time, and the earlier one counts.
        let notice = notice
            .into_iter()
            .chain(downstream_message(&status, pods::ENDS_SOON))
            .min();
        let problem = notice.map(|message| (pods::ENDS_SOON, message)).or(problem);
        let link = RemotePodView {
            pod_ips: &addresses.here,
            host_ip: Some(self.consumer.context.pod_ip),
            peer_answers: true,
            amiss: problem
                .as_ref()
                .map(|(reason, message)| (*reason, message.as_str())),
            now,
        };
        let local = self.pod.to_json();
        self.patch_status(local_status_patch(&local, &status, &link))
            .await?;
        if let Some((reason, message)) = problem {
            let shown_before = self
                .pod
                .offloaded
                .as_ref()
                .is_some_and(|condition| condition.reason == reason);
            if !shown_before && self.peer.may_warn(&self.pod.uid) {
                tracing::warn!(peer = %self.peer.id, pod = %self.pod.key, reason, message, "not all of the pod is as it should be");
                self.warn_owner(reason, &message).await;
            }
        }
        if is_newly_recreated(&local, &status) {
            self.warn_owner(RECREATED, RECREATED_MESSAGE).await;
        }
        if let Some(message) = newly_refused_message(&local, &status) {
            self.warn_owner("EphemeralContainerRefused", &message).await;
        }
        if let Some(message) = describe_new_limits(&local, &status)
            && self.peer.may_tell_limits(self.pod)
        {
            events::note(self.consumer, self.pod, LIMIT_ADDED, &message).await;
        }
        Ok(())
    }

    /// Writes the end of a local pod that was deleted: the one that the provider told last, or else
    /// that it failed. Not if the API server shows an end that the watch does not show yet, or that
    /// of the provider shows a record of the pod after all.
    async fn show_remote_deletion(&self, now: Timestamp) -> Result<Requeue, RequestError> {
        let Some(remote) = self
            .remote
            .filter(|remote| remote.shadow_pod(&self.pod.uid).is_none())
        else {
            return Ok(Requeue::OnChange);
        };
        if self.has_unseen_record(remote).await? {
            return Ok(Requeue::After(local::VISIBLE_WITHIN));
        }
        let (client, key) = (self.consumer.context.client.clone(), &self.pod.key);
        let api: Api<JsonPod> = Api::namespaced(client, &key.namespace);
        let live = api.get_opt(&key.name).await.step("read", "Pod", key)?;
        let live = live
            .and_then(|live| LocalPod::from_pod(live, &self.pod.virtual_node))
            .filter(|live| live.uid == self.pod.uid);
        // A provider that does not know an end says what it saw last.
        let told = self.peer.reported_end(&self.pod.uid);
        let told =
            told.and_then(|shadow| shadow_with_home_names(shadow, Some(self.pod)).remote_status());
        let told = told.filter(|status| is_final(&json!({ "status": status })));
        let link = RemotePodView {
            pod_ips: &[],
            host_ip: None,
            peer_answers: true,
            amiss: None,
            now,
        };
        let patch = live.and_then(|live| match &told {
            Some(status) => local_status_patch(&live.to_json(), status, &link),
            None => deleted_patch(&live.to_json(), now),
        });
        self.patch_status(patch).await?;
        Ok(Requeue::OnChange)
    }

    /// Changes the tolerations of the local pod. If somebody added one meanwhile, the API server
    /// refuses that: none can be removed.
    async fn set_eviction_delay(&self, delay: EvictionDelay) -> Result<(), RequestError> {
        let tolerations = tolerations_with_delay(&self.pod.to_json(), delay);
        let patch =
            json!({ "metadata": { "uid": self.pod.uid }, "spec": { "tolerations": tolerations } });
        let api: Api<MetadataOnly<Pod>> = Api::namespaced(
            self.consumer.context.client.clone(),
            &self.pod.key.namespace,
        );
        match api
            .patch(
                &self.pod.key.name,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
        {
            // A change of the pod meanwhile, after which the watch brings us back; or a policy of
            // this cluster.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => {
                tracing::warn!(pod = %self.pod.key, error = status.message, "the tolerations of a pod cannot be changed");
            }
            answer => drop(unless_changed(answer).step(
                "change the tolerations of",
                "Pod",
                &self.pod.key,
            )?),
        }
        Ok(())
    }

    async fn patch_shadow<P: serde::Serialize + std::fmt::Debug>(
        &self,
        verb: &'static str,
        patch: &Patch<P>,
    ) -> Result<(), RequestError> {
        let Some(remote) = self.remote else {
            return Ok(());
        };
        let (client, namespace) = (
            remote.connection.client.clone(),
            &remote.connection.tenant_namespace,
        );
        let api: Api<MetadataOnly<ShadowPod>> = Api::namespaced(client, namespace);
        let answer = call(api.patch(&self.pod.uid, &PatchParams::default(), patch)).await;
        // If it is gone, the watch triggers us again.
        unless_gone(answer).step(verb, "Pod", &self.pod.key)?;
        Ok(())
    }

    /// Patches the local pod's status, and no other pod's of the same name. Returns whether the pod
    /// still exists.
    async fn patch_status(&self, patch: Option<Value>) -> Result<bool, RequestError> {
        let Some(mut patch) = patch else {
            return Ok(true);
        };
        if !patch["metadata"].is_object() {
            patch["metadata"] = json!({});
        }
        patch["metadata"]["uid"] = self.pod.uid.as_str().into();
        let api: Api<MetadataOnly<Pod>> = Api::namespaced(
            self.consumer.context.client.clone(),
            &self.pod.key.namespace,
        );
        let answer = api
            .patch_status(
                &self.pod.key.name,
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await;
        // Also after a conflict it is tried again: what somebody else changed may be nothing that
        // is looked at here, so no change would come.
        Ok(unless_gone(answer)
            .step("write the status of", "Pod", &self.pod.key)?
            .is_some())
    }

    /// Shows a refusal, with one event for each new reason.
    async fn show_refusal(
        &self,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> Result<(), RequestError> {
        let Some(patch) = refused_patch(&self.pod.to_json(), reason, message, now) else {
            return Ok(());
        };
        self.patch_status(Some(patch)).await?;
        let shown_before =
            self.pod.offloaded.as_ref().is_some_and(|condition| {
                condition.status == Some(false) && condition.reason == reason
            });
        if !shown_before {
            self.warn_owner("NotOffloaded", message).await;
        }
        Ok(())
    }

    async fn warn_owner(&self, reason: &str, message: &str) {
        events::warn(self.consumer, self.pod, reason, message).await;
    }

    /// Ends the local pod, so that its controller replaces it.
    async fn mark_evicted(&self, message: &str, now: Timestamp) -> Result<(), RequestError> {
        let Some(patch) = evicted_patch(&self.pod.to_json(), message, now) else {
            return Ok(());
        };
        if self.patch_status(Some(patch)).await? {
            tracing::info!(peer = %self.peer.id, pod = %self.pod.key, message, "pod ended");
            self.warn_owner(OFFER_RECLAIMED, message).await;
        }
        Ok(())
    }

    /// The provider, for the pod's owner. To a consumer of ours the clusters behind this one have
    /// no names.
    fn provider_description(&self) -> String {
        if self.facts.is_brokered {
            return BEHIND.to_owned();
        }
        let name = self.node.map_or_else(
            || self.peer.id.to_string(),
            |node| node.spec.cluster_name.clone(),
        );
        format!("cluster {name}")
    }

    /// Evicts a pod that does not run at this provider, so that its controller creates another one.
    /// The provider is remembered first, so that the webhook keeps the next one away from it. A pod
    /// that came here nevertheless is replaced like one of a provider that cannot be remembered:
    /// one for each owner in a while. Pods that are older than the strategy Local of their
    /// namespace go together: the next ones do not tolerate virtual nodes.
    async fn evict_unstarted_pod(
        &self,
        reason: &str,
        message: &str,
        cause: RefusalCause,
        objects: &[String],
    ) -> Result<Requeue, RequestError> {
        let now = self.consumer.context.now();
        let Some(owner) = self
            .pod
            .recreation_key(self.consumer.is_brokered(&self.pod.key.namespace))
        else {
            return Ok(Requeue::OnChange);
        };
        // Where pods run in other clusters only, the webhook keeps none away.
        let is_avoidable = may_run_here(self.consumer, &self.pod.key.namespace) == Some(true);
        let is_avoided = match (
            refusals::remembered_reason(reason).filter(|_| is_avoidable),
            &self.pod.controller,
        ) {
            (Some((reason, _)), Some(controller)) => {
                let keys = if objects.is_empty() {
                    vec![refusals::owner_identity(
                        &controller.uid,
                        &self.pod.to_json(),
                    )]
                } else {
                    objects.to_vec()
                };
                match self.record_exclusion(&keys, reason, cause).await? {
                    ExclusionOutcome::Now => return Ok(Requeue::After(REMEMBERED_DELAY)),
                    // Its times have whole seconds.
                    ExclusionOutcome::Since(since) => self.pod.created <= since,
                    ExclusionOutcome::No => false,
                }
            }
            _ => match self.local_since(now) {
                Some(since) if now.duration_since(since).unsigned_abs() < REMEMBERED_DELAY => {
                    return Ok(Requeue::After(REMEMBERED_DELAY));
                }
                since => since.is_some_and(|since| self.pod.created <= since),
            },
        };
        if !is_avoided {
            let mut replaced = self.consumer.replaced.lock();
            replaced.retain(|_, at| at.elapsed() < REPLACEMENT_INTERVAL);
            if let Some(at) = replaced.get(&owner) {
                let rest = REPLACEMENT_INTERVAL.saturating_sub(at.elapsed());
                return Ok(Requeue::After(rest));
            }
            replaced.insert(owner, Instant::now());
        }
        // A Job that ignores disruptions does not count it. No budget protects a pod that is
        // Pending.
        let departure = Departure::new(DepartureCause::NotStarted, &self.pod.key, &self.pod.uid);
        match departures::request_departure(&self.consumer.context, departure).await? {
            EvictionOutcome::NotAllowed(_) => Ok(Requeue::After(REPLACEMENT_INTERVAL)),
            EvictionOutcome::Accepted | EvictionOutcome::Gone => {
                tracing::info!(pod = %self.pod.key, peer = %self.peer.id, reason, message, "pod does not run there; evicted, so that another one replaces it");
                Ok(Requeue::OnChange)
            }
        }
    }

    /// Returns the time at which this process first saw that the strategy of the namespace is
    /// Local, if it is. A younger pod came to a virtual node although its namespace stays here, by
    /// a toleration of its own.
    fn local_since(&self, now: Timestamp) -> Option<Timestamp> {
        let namespace = &self.pod.key.namespace;
        let offloading = self
            .consumer
            .offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))?;
        if offloading.spec.pod_offloading_strategy != PodOffloadingStrategy::Local {
            return None;
        }
        let generation = offloading.metadata.generation;
        let mut known = self.consumer.local_since.lock();
        let (of, since) = known.entry(namespace.clone()).or_insert((generation, now));
        if *of != generation {
            (*of, *since) = (generation, now);
        }
        Some(*since)
    }

    /// Records that pods of this owner, or that name these objects, are not sent to this provider
    /// for a while.
    async fn record_exclusion(
        &self,
        owners: &[String],
        reason: OffloadedReason,
        cause: RefusalCause,
    ) -> Result<ExclusionOutcome, RequestError> {
        let key = Key::new(&self.pod.key.namespace, NAMESPACE_OFFLOADING);
        let Some(offloading) = self.consumer.offloadings.get(&key) else {
            return Ok(ExclusionOutcome::No);
        };
        let (now, known) = (
            self.consumer.context.now(),
            webhook::namespace_refusals(&offloading),
        );
        if let Some(entry) = owners
            .iter()
            .find_map(|owner| known.valid_entry(owner, &self.peer.id, now))
        {
            return Ok(ExclusionOutcome::Since(entry.since));
        }
        let name = self.node.map_or("", |node| node.spec.cluster_name.as_str());
        let refusal_timeout = refusal_timeout(self.consumer);
        let all = owners.iter().try_fold(known, |all, owner| {
            let refusal = NewRefusal {
                owner,
                cluster: (&self.peer.id, name),
                reason,
                cause,
                refusal_timeout,
            };
            all.with_refusal(refusal, now)
        });
        let Some(all) = all else {
            return Ok(ExclusionOutcome::No);
        };
        // Other pods may be refused at the same time: nobody's entry is overwritten.
        let patch = json!({ "metadata": {
            "resourceVersion": offloading.metadata.resource_version,
            "annotations": { annotations::REFUSED_PODS: all.to_annotation() },
        } });
        let api: Api<NamespaceOffloading> =
            Api::namespaced(self.consumer.context.client.clone(), &key.namespace);
        let answer = api
            .patch(
                NAMESPACE_OFFLOADING,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        unless_changed(answer).step("record the refusal in", "NamespaceOffloading", key)?;
        Ok(ExclusionOutcome::Now)
    }

    /// Ends the local pod, unless the API server of the provider shows a record of it after all.
    async fn end_lost_pod(&self, message: &str, now: Timestamp) -> Result<Requeue, RequestError> {
        let Some(remote) = self.remote else {
            return Ok(Requeue::OnChange);
        };
        if remote.shadow_pod(&self.pod.uid).is_none() && self.has_unseen_record(remote).await? {
            return Ok(Requeue::After(local::VISIBLE_WITHIN));
        }
        tracing::warn!(peer = %self.peer.id, pod = %self.pod.key, message, "remote pod lost");
        self.patch_status(lost_patch(&self.pod.to_json(), message, now))
            .await?;
        Ok(Requeue::OnChange)
    }

    /// Whether the API server of the provider has a record of the pod, which the watch does not
    /// show.
    async fn has_unseen_record(&self, remote: &RemoteObjects) -> Result<bool, RequestError> {
        let (client, namespace) = (
            remote.connection.client.clone(),
            &remote.connection.tenant_namespace,
        );
        let api: Api<ShadowPod> = Api::namespaced(client, namespace);
        let live = call(api.get_metadata_opt(&self.pod.uid)).await;
        let is_recorded = live
            .step("look for the ShadowPod of", "Pod", &self.pod.key)?
            .is_some();
        if is_recorded {
            self.peer.mark_created(&self.pod.uid, remote);
        }
        Ok(is_recorded)
    }
}

#[cfg(test)]
pub(in crate::consumer) mod tests;
