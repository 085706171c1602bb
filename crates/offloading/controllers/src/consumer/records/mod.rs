//! The records of local objects at a provider: what is wanted of each, and the writes that make it
//! so.
//!
//! ```text
//!   ConfigMap, Secret       while a pod at the provider, or an accepted Ingress, names it
//!   Secret with a token     while a pod at the provider uses the API server of this cluster   (tokens)
//!   NetworkPolicy           while its namespace goes to the provider
//!   PodDisruptionBudget     the same, while pods there must stay healthy
//!   Service, EndpointSlice,
//!   Ingress                 the same, where there is a network
//! ```
//!
//! The controllers of records and of pods both write them: a pod is sent only after what it names.

mod hand_written;
mod tokens;
mod wanted;

use std::{collections::BTreeSet, fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject, PostParams},
};
use liqo_api::{ReflectedObject, pods};
use liqo_controller_runtime::{
    Requeue,
    events::object_ref,
    peers::{PeerError, call},
    writes::{RequestError, StepContext as _, StepError, delete_if_present},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;

use super::state::{ConsumerState, RemoteObjects, RemoteProvider};
use liqo_offloading_rules::json::json_fingerprint;
use liqo_offloading_rules::replica::chunks;
use liqo_offloading_rules::replica::held_budgets::NOTICE_OVER;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::record::Reference;
use liqo_offloading_rules::replica::record::ReflectionRecord;
use liqo_offloading_rules::replica::record::TOO_LARGE;
use liqo_offloading_rules::replica::record::fingerprint_of_secret;
use liqo_offloading_rules::replica::record::obstacle_of_type;
use liqo_offloading_rules::replica::record::record_of;
use liqo_offloading_rules::replica::record::travels_with_pods;
use wanted::{WantedObjects, WantedRecords};

pub use tokens::ensure_token;

/// Delay before a record is checked again while its dependencies are not all known.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The reasons that providers give. Any other one counts as the reason "".
const REASONS: [&str; 13] = [
    TOO_LARGE,
    "AnnotationNotAllowed",
    "NameTaken",
    "KindNotAllowed",
    "NoService",
    "AddressRefused",
    "Invalid",
    "ClassNotAllowed",
    "HostNotAllowed",
    "LimitReached",
    "QuotaExceeded",
    "TooManyPorts",
    NOTICE_OVER,
];

/// Key of the events about disruption budgets that select pods by labels which do not travel.
const UNKNOWN_LABELS: &str = "UnknownLabels";

/// Reason of the event about a policy that opens less at a provider than here, and why it may.
const NARROWED: &str = "Narrowed";
const WHY_NARROWED: &str = "the policy is too long, names too many pods that are not there, or labels of Liqo's own, or has a field that Liqo does not know; what \
                            cannot be expressed is denied there";

/// Records these objects, before a pod is sent that needs them, unless the provider has them. The
/// controller of records retries what fails. Returns whether all of them are recorded now: a pod
/// waits for the policies of its namespace; for what it names the provider waits, as a kubelet
/// does.
pub async fn ensure_records(
    consumer: &Arc<ConsumerState>,
    peer: &Arc<RemoteProvider>,
    remote: &RemoteObjects,
    wanted: &[Reference],
) -> bool {
    for reference in wanted {
        if is_recorded(peer, remote, reference) {
            continue;
        }
        let _one_at_a_time = peer.recording.lock().await;
        if is_recorded(peer, remote, reference) {
            continue;
        }
        if let Err(error) = reconcile_record(consumer, peer, reference).await {
            tracing::debug!(peer = %peer.id, ?reference, %error, "not recorded yet");
            peer.record_queue.add(reference.clone());
        }
    }
    wanted
        .iter()
        .all(|reference| is_recorded(peer, remote, reference))
}

fn is_recorded(peer: &RemoteProvider, remote: &RemoteObjects, reference: &Reference) -> bool {
    let record = remote.record(reference);
    record.is_some_and(|record| !record.terminating) || peer.is_recorded(reference)
}

/// Brings the record of an object to what is wanted.
pub async fn reconcile_record(
    consumer: &Arc<ConsumerState>,
    peer: &RemoteProvider,
    reference: &Reference,
) -> Result<Requeue, RequestError> {
    // When the peer answers (again), every record is due.
    let Some(remote) = peer.answering_remote() else {
        return Ok(Requeue::OnChange);
    };
    if let Some(uid) = reference.api_server_pod_uid() {
        return tokens::reconcile_token(consumer, peer, &remote, reference, uid).await;
    }
    if reference.kind.is_of_namespace() {
        return reconcile_namespaced(consumer, peer, &remote, reference).await;
    }
    let records = remote.records(reference);
    match wanted::is_named_object_wanted(consumer, peer, &remote, reference) {
        // The watch brings us back when it is gone.
        _ if remote
            .record(reference)
            .is_some_and(|record| record.terminating) => {}
        Some(false) if records.is_empty() => peer.clear_obstacle(reference),
        None if records.is_empty() => {}
        None => return Ok(Requeue::After(POLL_INTERVAL)),
        Some(false) => remove_all(peer, &remote, &records).await?,
        Some(true) => write_named(consumer, peer, &remote, reference, &records).await?,
    }
    Ok(Requeue::OnChange)
}

/// The records of a `ConfigMap` or Secret that is named: a copy of the object as it is now, in
/// chunks if it is large.
async fn write_named(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
    records: &[Arc<ReflectionRecord>],
) -> Result<(), RequestError> {
    let (client, namespace) = (consumer.context.client.clone(), &reference.namespace);
    let is_brokered = consumer.is_brokered(namespace);
    if reference.kind == ReplicaKind::Secret {
        let local = read_local(reference, Api::<Secret>::namespaced(client, namespace)).await?;
        let Some(local) = local.filter(|secret| travels_with_pods(secret, is_brokered)) else {
            return remove_all(peer, remote, records).await;
        };
        // A Secret of another type is another Secret.
        if let Some((reason, message)) = obstacle_of_type(&local) {
            remove_all(peer, remote, records).await?;
            show_obstacle(consumer, peer, reference, reason, &message).await;
            return Ok(());
        }
        match chunks::chunks_of_secret(reference, &local) {
            Ok(secrets) => {
                peer.clear_obstacle(reference);
                let wanted = secrets.into_iter().map(|(part, secret)| {
                    let fingerprint = fingerprint_of_secret(&secret);
                    (part, Some((secret, fingerprint)))
                });
                return write_parts(peer, remote, records, wanted.collect()).await;
            }
            Err(error) => {
                show_obstacle(consumer, peer, reference, TOO_LARGE, &error.to_string()).await;
            }
        }
    } else {
        let local = read_local(reference, Api::<ConfigMap>::namespaced(client, namespace)).await?;
        let Some(local) = local.filter(|map| travels_with_pods(map, is_brokered)) else {
            return remove_all(peer, remote, records).await;
        };
        match chunks::chunks_of_config_map(&local) {
            Ok(objects) => {
                let wanted = written_objects(consumer, peer, reference, &objects).await;
                return write_parts(peer, remote, records, wanted).await;
            }
            Err(error) => {
                show_obstacle(consumer, peer, reference, TOO_LARGE, &error.to_string()).await;
            }
        }
    }
    Ok(())
}

/// Shows why an object does not travel: on the pods that name it, and by an event. The provider
/// keeps what it has of it.
async fn show_obstacle(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
    reason: &'static str,
    message: &str,
) {
    let obstacle = format!("{reason}: {message}");
    if peer.may_warn_about(reference, reason) {
        let message = not_reflected_message(consumer, peer, &obstacle);
        warn_about_object(consumer, reference, pods::NOT_REFLECTED, message).await;
    }
    peer.set_obstacle(reference, obstacle);
}

fn not_reflected_message(consumer: &ConsumerState, peer: &RemoteProvider, why: &str) -> String {
    let name = consumer.name_of_provider(&peer.id);
    format!("cluster {name} does not have it as it is here: {why}")
}

async fn read_local<K>(reference: &Reference, api: Api<K>) -> Result<Option<K>, StepError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    api.get_opt(&reference.name)
        .await
        .step("read", reference.kind.name(), reference.key())
}

/// The record of an object that travels with its namespace, and the events about it.
async fn reconcile_namespaced(
    consumer: &Arc<ConsumerState>,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
) -> Result<Requeue, RequestError> {
    // No trigger tells when it is known.
    let Some(goes) = consumer.is_offloaded_to(peer, &reference.namespace) else {
        return Ok(Requeue::After(POLL_INTERVAL));
    };
    let is_mapped = remote
        .map()
        .is_some_and(|map| map.spec.mappings.contains_key(&reference.namespace))
        && remote.mapped_namespace(&reference.namespace).is_some();
    let WantedRecords {
        objects: wanted,
        is_narrowed,
        look_again: next,
    } = match reference.kind {
        _ if !(goes && is_mapped) => WantedObjects::NOTHING.into(),
        ReplicaKind::NetworkPolicy => wanted::wanted_policy(consumer, peer, remote, reference),
        ReplicaKind::PodDisruptionBudget => {
            warn_of_unknown_labels(consumer, peer, reference).await;
            wanted::wanted_budget(consumer, peer, reference)
        }
        _ => wanted::service_or_ingress(consumer, peer, reference).into(),
    };
    let records = remote.records(reference);
    if reference.kind == ReplicaKind::EndpointSlice {
        hand_written::warn_of_silent_addresses(consumer, peer, reference, goes && is_mapped).await;
    }
    let wanted = match wanted {
        WantedObjects::Unknown if records.is_empty() => return Ok(Requeue::OnChange),
        WantedObjects::Unknown => return Ok(Requeue::After(POLL_INTERVAL)),
        WantedObjects::Objects(objects) => objects,
    };
    // Events about a budget that lets all pods go are not told again when it does not.
    if wanted.is_empty() && !consumer.has_budget(reference) {
        peer.forget_record(reference);
    }
    let parts = written_objects(consumer, peer, reference, &wanted).await;
    write_parts(peer, remote, &records, parts).await?;
    if wanted.is_empty() {
        return Ok(next);
    }
    let problem = records
        .iter()
        .find_map(|record| provider_problem(consumer, peer, remote, record));
    let reason = problem.as_deref().map(reason_of);
    let passing = reason.filter(|reason| may_pass(reference.kind, reason));
    let remaining = peer.time_until_report(reference, passing, Instant::now());
    if let Some(remaining) = remaining.filter(|remaining| !remaining.is_zero()) {
        return Ok(Requeue::After(remaining));
    }
    if let Some(problem) = problem {
        let reason = reason.unwrap_or_default();
        if peer.may_warn_about(reference, reason) {
            let message = not_reflected_message(consumer, peer, &problem);
            warn_about_object(consumer, reference, pods::NOT_REFLECTED, message).await;
        }
    }
    if is_narrowed && peer.may_warn_about(reference, NARROWED) {
        let message = format!(
            "cluster {} gets a narrower NetworkPolicy: {WHY_NARROWED}",
            consumer.name_of_provider(&peer.id)
        );
        warn_about_object(consumer, reference, NARROWED, message).await;
    }
    Ok(next)
}

/// An event about a disruption budget that selects pods by labels which they do not have at a
/// provider.
async fn warn_of_unknown_labels(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
) {
    let budgets = consumer.disruption_budgets(&reference.namespace);
    let Some((_, budget)) = budgets.into_iter().find(|(key, _)| *key == reference.key()) else {
        return;
    };
    if !budget.unknown_labels.is_empty() && peer.may_warn_about(reference, UNKNOWN_LABELS) {
        let labels = budget
            .unknown_labels
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        let message = format!(
            "drains at cluster {} do not wait for it: pods there may not have the labels {labels}",
            consumer.name_of_provider(&peer.id)
        );
        warn_about_object(consumer, reference, pods::NOT_REFLECTED, message).await;
    }
}

/// The name of a record, and the record with its fingerprint. Without a record, the part is too
/// large.
type WantedPart<K> = (Reference, Option<(K, u64)>);

/// The records of these objects, or parts of one.
async fn written_objects(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
    objects: &[Value],
) -> Vec<WantedPart<ReflectedObject>> {
    let mut wanted = Vec::new();
    for object in objects {
        let record = match record_of(reference, object) {
            Ok(record) => {
                peer.clear_obstacle(reference);
                Some((record, json_fingerprint(object)))
            }
            Err(error) => {
                show_obstacle(consumer, peer, reference, TOO_LARGE, &error.to_string()).await;
                None
            }
        };
        wanted.push((reference.for_part(object), record));
    }
    wanted
}

fn record_of_part<'a>(
    records: &'a [Arc<ReflectionRecord>],
    part: &Reference,
) -> Option<&'a ReflectionRecord> {
    records
        .iter()
        .map(AsRef::as_ref)
        .find(|record| record.own_reference() == *part)
}

/// Writes the records of an object, and removes those that are wanted no more. New parts come
/// first, and parts that go come last: an endpoint that moves to another part is never missing in
/// between. What is too large stays as it is.
async fn write_parts<K: RecordKind>(
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    records: &[Arc<ReflectionRecord>],
    wanted: Vec<WantedPart<K>>,
) -> Result<(), RequestError> {
    let kept: BTreeSet<Reference> = wanted.iter().map(|(part, _)| part.clone()).collect();
    let (existing, new): (Vec<_>, Vec<_>) = wanted
        .into_iter()
        .partition(|(part, _)| record_of_part(records, part).is_some());
    for (part, wanted) in new.into_iter().chain(existing) {
        let record = record_of_part(records, &part);
        // The watch brings us back when it is gone.
        let is_ending = record.is_some_and(|record| record.terminating);
        if let Some(wanted) = wanted.filter(|_| !is_ending) {
            write_record(peer, remote, &part, record, wanted).await?;
        }
    }
    for record in records
        .iter()
        .filter(|record| !record.terminating && !kept.contains(&record.own_reference()))
    {
        remove_record(peer, remote, &record.own_reference()).await?;
    }
    Ok(())
}

async fn remove_all(
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    records: &[Arc<ReflectionRecord>],
) -> Result<(), RequestError> {
    for record in records.iter().filter(|record| !record.terminating) {
        remove_record(peer, remote, &record.own_reference()).await?;
    }
    Ok(())
}

/// Whether the provider's problem may pass by itself: a pod ends there a moment before its endpoint
/// is taken back here.
fn may_pass(kind: ReplicaKind, reason: &str) -> bool {
    kind == ReplicaKind::EndpointSlice && reason == pods::ADDRESS_REFUSED
}

/// Whether an object with this problem gets to the provider only if a person changes it, or the
/// provider's policy.
pub fn is_lasting_problem(problem: &str) -> bool {
    [TOO_LARGE, "Invalid", "KindNotAllowed"].contains(&reason_of(problem))
}

/// The known reason that a problem begins with, whatever its words are.
fn reason_of(problem: &str) -> &'static str {
    REASONS
        .into_iter()
        .find(|reason| problem.starts_with(reason))
        .unwrap_or_default()
}

/// Returns the problem that the provider has with this object or, for an Ingress, with the Secrets
/// that it names.
fn provider_problem(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    record: &ReflectionRecord,
) -> Option<String> {
    if record.problem.is_some() {
        return record.problem.clone();
    }
    let Reference {
        kind, namespace, ..
    } = &record.reference;
    let ingress = (*kind == ReplicaKind::Ingress)
        .then(|| consumer.ingress(&record.reference.key()))
        .flatten()?;
    ingress.secrets.iter().find_map(|name| {
        let secret = Reference {
            kind: ReplicaKind::Secret,
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let problem = peer
            .obstacle(&secret)
            .or_else(|| remote.record(&secret)?.problem.clone())?;
        Some(format!("{problem} (Secret {name})"))
    })
}

/// An event on the local object.
async fn warn_about_object(
    consumer: &ConsumerState,
    reference: &Reference,
    reason: &str,
    message: String,
) {
    let Reference {
        kind,
        namespace,
        name,
    } = reference;
    let api: Api<DynamicObject> = Api::namespaced_with(
        consumer.context.client.clone(),
        namespace,
        &kind.api_resource(),
    );
    let Ok(Some(local)) = api.get_metadata_opt(name).await else {
        return;
    };
    let object = object_ref(
        kind.api_version(),
        kind.name(),
        &reference.key(),
        local.metadata.uid,
    );
    consumer
        .context
        .events
        .record_warning(&object, reason, message)
        .await;
}

/// A kind of records.
trait RecordKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + Clone
    + DeserializeOwned
    + Debug
{
}

impl RecordKind for ReflectedObject {}
impl RecordKind for Secret {}

/// Creates or replaces a record, unless it is as wanted.
async fn write_record<K: RecordKind>(
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
    record: Option<&ReflectionRecord>,
    (mut wanted, fingerprint): (K, u64),
) -> Result<(), RequestError> {
    let api: Api<K> = Api::namespaced(
        remote.connection.client.clone(),
        &remote.connection.tenant_namespace,
    );
    let (kind, key) = (reference.kind.name(), reference.key());
    match record {
        Some(record) if record.fingerprint == fingerprint => Ok(()),
        None => match call(api.create(&PostParams::default(), &wanted)).await {
            // Another worker was faster, or the watch lags: its event triggers us again.
            Err(PeerError::Api(kube::Error::Api(status))) if status.is_already_exists() => Ok(()),
            created => {
                created.step("create the record of", kind, key)?;
                peer.mark_recorded(reference);
                Ok(())
            }
        },
        Some(_) => {
            // Replaced as a whole, so that removed keys go; with the version that it replaces.
            let live = call(api.get_metadata(&reference.record_name()))
                .await
                .step("read the record of", kind, &key)?;
            wanted.meta_mut().resource_version = live.resource_version();
            match call(api.replace(&reference.record_name(), &PostParams::default(), &wanted)).await
            {
                // The type of a Secret cannot be changed: it is created again when the old one is
                // gone.
                Err(PeerError::Api(kube::Error::Api(status)))
                    if status.is_invalid() && reference.kind == ReplicaKind::Secret =>
                {
                    remove_record(peer, remote, reference).await
                }
                replaced => Ok(replaced
                    .step("replace the record of", kind, key)
                    .map(drop)?),
            }
        }
    }
}

async fn remove_record(
    peer: &RemoteProvider,
    remote: &RemoteObjects,
    reference: &Reference,
) -> Result<(), RequestError> {
    let (client, namespace, name) = (
        remote.connection.client.clone(),
        &remote.connection.tenant_namespace,
        reference.record_name(),
    );
    let parameters = DeleteParams::default();
    peer.observe_record(reference);
    peer.clear_obstacle(reference);
    let deleted = if reference.kind == ReplicaKind::Secret {
        call(delete_if_present(
            &Api::<Secret>::namespaced(client, namespace),
            &name,
            &parameters,
        ))
        .await
    } else {
        call(delete_if_present(
            &Api::<ReflectedObject>::namespaced(client, namespace),
            &name,
            &parameters,
        ))
        .await
    };
    deleted.step(
        "delete the record of",
        reference.kind.name(),
        reference.key(),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use liqo_api::ClusterId;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::consumer::controllers::pods::tests::{api_server, here, started, until};

    #[tokio::test]
    async fn an_event_names_the_provider_as_its_virtual_node_does() {
        let objects = here(&json!({}));
        let consumer = started(api_server(objects, |_, _| std::future::ready(true)));
        until(|| consumer.virtual_nodes.all().first().cloned()).await;
        let message = |id: ClusterId| {
            let peer = RemoteProvider::new(id, CancellationToken::new());
            not_reflected_message(&consumer, &peer, "Invalid: a name")
        };
        assert_eq!(
            message(ClusterId::of_public_key(&[2; 32])),
            "cluster milan does not have it as it is here: Invalid: a name"
        );
        let unknown = ClusterId::of_public_key(&[9; 32]);
        assert!(message(unknown.clone()).starts_with(&format!("cluster {unknown} ")));
    }

    #[test]
    fn what_only_a_person_can_change_lasts() {
        // For example a Secret of an operator's type, which the provider's policy does not take.
        for problem in [
            "KindNotAllowed: the policy takes no Secrets of this type",
            "TooLarge: 1200000 bytes",
            "Invalid: a name",
        ] {
            assert!(is_lasting_problem(problem), "{problem}");
        }
        for problem in [
            "NameTaken: another object has this name",
            "AddressRefused: nobody has it",
            "",
            "SomethingNew: later",
        ] {
            assert!(!is_lasting_problem(problem), "{problem}");
        }
    }
}
