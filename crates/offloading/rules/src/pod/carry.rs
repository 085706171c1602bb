//! The parts of a pod that travel to the provider. There is one function for each side, and both
//! apply the same rules, because the provider trusts nothing.
//!
//! Only labels and annotations of the metadata travel, and the provider takes few of them, see
//! `metadata`. Only fields of the `PodSpec` that are known to be safe travel. Other fields that
//! mean something at home only are dropped; all remaining ones are refused by name. Fields inside
//! containers pass unchanged, known or not, except for variables from unknown sources: Pod Security
//! Admission in the mapped namespace decides what they may do. The provider then completes what a
//! pod leaves to the node: `amounts`, `images`, `hardening`. It gives the `ConfigMap`s and Secrets
//! that a pod names the names of their replicas, see `references::name_replicas`.
//!
//! What a pod reads about itself through the downward API is what it would read at home, see
//! `downward`. Names of Services, too, see [`home_names`]. `enableServiceLinks` passes unchanged: a
//! mapped namespace contains only services that came from home.

pub(crate) mod amounts;
pub mod api_server;
mod containers;
mod downward;
mod hardening;
pub mod home_names;
pub mod images;
mod metadata;
pub mod obstacle;
pub mod placement;
mod provider_rules;
pub mod resize;
mod shorten;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeSet;

use liqo_api::record_text::{self, MAX_POD_LEN};
use liqo_api::{OffloadedReason, ReflectedKind, annotations, finalizers, labels};
use serde_json::{Map, Value, json};

use crate::json::set_at;
use crate::pod::injected::injected_volumes;
use crate::pod::references;
use crate::views::{ContainerList, PodView, TravelledView};

use crate::pod::carry::api_server::ApiServerChoice;
pub(crate) use crate::pod::carry::metadata::is_label_of_remote_pod;
use crate::pod::carry::metadata::{is_liqo_key, kept_texts, travelling_metadata};
pub(crate) use crate::pod::carry::provider_rules::ALLOWED_VOLUMES;
pub use crate::pod::carry::provider_rules::ProviderRules;

/// Fields of a `PodSpec` that travel unchanged.
const PASSES: &[&str] = &[
    "activeDeadlineSeconds",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "os",
    "resources",
    "restartPolicy",
    "securityContext",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
];

/// Fields of a `PodSpec` that mean something in the home cluster only.
const DROPPED: &[&str] = &[
    "automountServiceAccountToken",
    "nodeName",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "serviceAccountName",
    "topologySpreadConstraints",
];

/// Whether a pod has a token for the API server of the cluster that it runs in.
const AUTOMOUNT: &str = "automountServiceAccountToken";

/// Length in bytes of what [`api_server::point_to_api_server`] adds to a pod of a few containers.
const API_SERVER_LEN: usize = 2048;

/// Maximum length in bytes of a pod that the consumer sends, before the API server is added.
const MAX_OUTGOING_LEN: usize = MAX_POD_LEN - API_SERVER_LEN;

/// Why a pod cannot run at the provider, for its owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PodRefusal {
    /// The reason of a condition.
    pub reason: &'static str,
    /// The obstacle, and what to do about it.
    pub message: String,
}

impl PodRefusal {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// The identity of a remote pod, and where it belongs.
#[derive(Debug, Clone, Copy)]
pub struct RemoteIdentity<'a> {
    pub namespace: &'a str,
    /// The pod's name: the same as at home.
    pub name: &'a str,
    pub consumer: &'a str,
    /// The pool that the pod was scheduled to.
    pub pool: &'a str,
    /// Name of the shadow pod: the local pod's UID.
    pub shadow_pod: &'a str,
    /// Namespace of the local pod.
    pub home_namespace: &'a str,
}

/// The consumer's side: the part of a local pod that travels to the provider. If it is too long,
/// annotations stay here that nobody there reads.
///
/// `advertised` holds the keys of the node labels that the provider's offer names.
pub fn outgoing_pod(local_pod: &Value, advertised: &BTreeSet<String>) -> Result<Value, PodRefusal> {
    let mut carried = reduce_local_pod(
        local_pod,
        advertised,
        api_server::chosen_api_server(local_pod)?,
    )?;
    if pod_record_text(&carried, MAX_OUTGOING_LEN).is_ok() {
        return Ok(carried);
    }
    shorten::shorten_pod(&mut carried, MAX_OUTGOING_LEN, shorten::Omittable::Unread);
    pod_record_text(&carried, MAX_OUTGOING_LEN).map(|_| carried)
}

/// The part of a changed pod that travels although [`outgoing_pod`] refuses the change.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingPart {
    pub pod: Value,
    /// Annotations that are too long to travel. The pod reads them, so they stay as they were.
    pub unchanged: BTreeSet<String>,
}

/// The consumer's side, for a pod that runs at the provider: it follows every change that can
/// travel, without an annotation for Liqo that says nothing valid, ephemeral containers that cannot
/// run there, and annotations that are too long. `None` if it is too long even so, or if its other
/// fields cannot travel.
pub fn outgoing_part(local_pod: &Value, advertised: &BTreeSet<String>) -> Option<OutgoingPart> {
    let choice = api_server::chosen_api_server(local_pod).unwrap_or(ApiServerChoice::Unclear);
    let mut pod = local_pod.clone();
    containers::leave_out_refused_ephemeral(&mut pod);
    let mut pod = reduce_local_pod(&pod, advertised, choice).ok()?;
    let mut unchanged = shorten::shorten_pod(&mut pod, MAX_OUTGOING_LEN, shorten::Omittable::All);
    unchanged.retain(|key| downward::reads_annotation(PodView::of(&pod).spec(), key));
    pod_record_text(&pod, MAX_OUTGOING_LEN).ok()?;
    Some(OutgoingPart { pod, unchanged })
}

fn reduce_local_pod(
    local_pod: &Value,
    advertised: &BTreeSet<String>,
    choice: ApiServerChoice,
) -> Result<Value, PodRefusal> {
    let mut spec = reduce_spec(local_pod, advertised, &placement::is_written_by_user)?;
    if choice == ApiServerChoice::Remote {
        spec.insert(AUTOMOUNT.into(), true.into());
    } else {
        downward::write_local_values(&mut spec, local_pod);
    }
    let metadata = PodView::of(local_pod).metadata();
    let mut kept_annotations = kept_texts(metadata.annotations(), is_users_key);
    kept_annotations.extend(downward::pass_on_values(&mut spec, local_pod));
    Ok(json!({
        "metadata": {
            "name": metadata.name(),
            "labels": kept_texts(metadata.labels(), is_users_key),
            "annotations": kept_annotations,
        },
        "spec": spec,
    }))
}

fn is_users_key(key: &str) -> bool {
    !is_liqo_key(key) && key != "kubectl.kubernetes.io/last-applied-configuration"
}

/// The list in this field of a spec; empty if it is missing.
fn listed_items<'a>(spec: &'a Map<String, Value>, field: &str) -> &'a [Value] {
    spec.get(field)
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice)
}

/// The text of a carried pod, of at most this length.
pub fn pod_record_text(carried: &Value, max_len: usize) -> Result<String, PodRefusal> {
    record_text::print_object(carried, max_len).map_err(|error| {
        let advice = "move what is long into a ConfigMap, or keep the pod in its own cluster";
        PodRefusal::new(
            OffloadedReason::TooLarge.as_str(),
            format!("the pod is too large to run in another cluster: {error}; {advice}"),
        )
    })
}

/// The provider's side: the pod to create in the mapped namespace.
pub fn remote_pod(
    carried: &Value,
    identity: &RemoteIdentity,
    rules: &ProviderRules,
) -> Result<Value, PodRefusal> {
    let mut spec = reduce_spec(carried, &rules.advertised, &|toleration| {
        placement::is_written_by_user(toleration)
            && placement::is_allowed_toleration(toleration, &rules.tolerations)
    })?;
    references::name_replicas(&mut spec);
    volumes::check_volume_types(spec.get("volumes"), &rules.volume_types, &rules.policy)?;
    check_reflected_kinds(carried, &rules.reflected_kinds, &rules.policy)?;
    // They can only be added to a pod that exists.
    spec.remove(ContainerList::Ephemeral.spec_field());
    images::check_images(&spec, rules)?;
    placement::confine_to_nodes(&mut spec, &rules.nodes);
    if rules.borrowed {
        refuse_brokered_token(carried, identity)?;
        placement::tolerate_virtual_nodes(&mut spec);
    }
    amounts::complete_amounts(&mut spec, &rules.amounts);
    if rules.always_pull_images {
        images::always_pull(&mut spec);
    }
    if rules.hardened {
        hardening::harden_pod(&mut spec);
    }
    // Only a pod that asks for a token has one.
    let wants_token = wants_token(carried);
    if wants_token && !rules.api_server {
        return Err(PodRefusal::new(
            OffloadedReason::ApiServerNotAllowed.as_str(),
            format!(
                "the pod wants to use the provider's API server, which its PeeringPolicy {} does not allow (provide.usage.apiServer); use that of its own cluster, or none",
                rules.policy
            ),
        ));
    }
    spec.insert(AUTOMOUNT.into(), wants_token.into());
    if !wants_token {
        downward::refer_to_local_values(&mut spec, rules);
    }
    for (field, value) in [
        ("priorityClassName", &rules.priority_class),
        ("runtimeClassName", &rules.runtime_class),
        ("serviceAccountName", &rules.service_account),
    ] {
        if let Some(value) = value {
            spec.insert(field.into(), value.as_str().into());
        }
    }

    let (mut pod_labels, mut pod_annotations) = travelling_metadata(carried, rules);
    pod_annotations.insert(
        annotations::TRAVELLED.into(),
        travelled_record(
            &Value::Null,
            carried,
            &pod_labels,
            &pod_annotations,
            Some(&resize::resizable_amounts(carried)),
            rules,
        )
        .into(),
    );
    pod_annotations.insert(
        annotations::POOL_NODES.into(),
        placement::pool_nodes_hash(&rules.nodes).into(),
    );
    pod_annotations.extend(downward::local_values(&spec, carried));
    for (key, value) in [
        (labels::MANAGED, "true"),
        (labels::CONSUMER_ID, identity.consumer),
        (labels::POOL, identity.pool),
        (labels::SHADOW_POD, identity.shadow_pod),
        (labels::HOME_NAMESPACE, identity.home_namespace),
    ] {
        pod_labels.insert(key.into(), value.into());
    }
    let mut metadata = json!({
        "name": identity.name,
        "namespace": identity.namespace,
        "labels": pod_labels,
        "annotations": pod_annotations,
    });
    if spec
        .get("restartPolicy")
        .and_then(Value::as_str)
        .is_some_and(|policy| policy != "Always")
    {
        set_at(
            &mut metadata,
            &["finalizers"],
            json!([finalizers::FINAL_STATUS]),
        );
    }
    Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
}

/// Refuses a pod that runs two clusters away and wants an API server: tokens and addresses reach
/// only the next cluster.
fn refuse_brokered_token(carried: &Value, identity: &RemoteIdentity) -> Result<(), PodRefusal> {
    if wants_token(carried)
        || api_server::uses_secret(
            carried,
            &api_server::api_server_secret_name(identity.shadow_pod),
        )
    {
        return Err(PodRefusal::new(
            OffloadedReason::NoApiServer.as_str(),
            format!(
                "the provider borrows what it lends, and a pod reaches no API server from there; annotate the pod with {}: none, or keep it in its own cluster",
                annotations::API_SERVER
            ),
        ));
    }
    Ok(())
}

/// The provider's side: an ephemeral container to add to the pod. The same rules apply to it as to
/// the other containers.
pub(crate) fn ephemeral_container(
    carried: &Value,
    container: &Value,
    rules: &ProviderRules,
) -> Result<Value, PodRefusal> {
    let reduced = containers::reduce_containers(&json!([container]), &injected_volumes(carried))?
        .unwrap_or_default();
    check_reflected_kinds(
        &json!({ "spec": { "containers": reduced } }),
        &rules.reflected_kinds,
        &rules.policy,
    )?;
    let list = ContainerList::Ephemeral.spec_field();
    let mut spec = Map::from_iter([(list.to_owned(), reduced)]);
    references::name_replicas(&mut spec);
    images::check_images(&spec, rules)?;
    if rules.always_pull_images {
        images::always_pull(&mut spec);
    }
    if rules.hardened {
        hardening::harden_containers(&mut spec);
    }
    if !wants_token(carried) {
        downward::refer_to_local_values(&mut spec, rules);
    }
    let container = spec
        .get_mut(ContainerList::Ephemeral.spec_field())
        .and_then(|all| all.get_mut(0))
        .map(Value::take);
    container.ok_or_else(|| {
        PodRefusal::new(
            OffloadedReason::Malformed.as_str(),
            "the pod's ephemeral container cannot be read",
        )
    })
}

fn wants_token(carried: &Value) -> bool {
    PodView::of(carried)
        .spec()
        .automount_service_account_token()
        == Some(true)
}

/// The changes to a running remote pod after its local pod changed: labels, annotations, images and
/// the deadline, which may change at home. A strategic merge patch; `None` if nothing changed.
///
/// Labels and annotations of others on the remote pod stay. Images are compared with the last ones
/// that travelled, not with the live ones, which the provider's own admission may have changed. An
/// image that the policy does not allow is left out: the container keeps the one that it has.
/// Amounts are changed before, see [`resize`]; `is_resized` tells whether the pod has those that
/// travel.
pub fn remote_patch(
    carried: &Value,
    live: &Value,
    rules: &ProviderRules,
    is_resized: bool,
) -> Option<Value> {
    let before = last_travelled_record(live);
    let (pod_labels, mut pod_annotations) = travelling_metadata(carried, rules);
    let sizes = if is_resized {
        Some(resize::resizable_amounts(carried))
    } else {
        resize::recorded_amounts(live)
    };
    let now = travelled_record(
        &before,
        carried,
        &pod_labels,
        &pod_annotations,
        sizes.as_ref(),
        rules,
    );
    pod_annotations.insert(annotations::TRAVELLED.into(), now.into());
    if let Some(spec) = live.get("spec").and_then(Value::as_object) {
        pod_annotations.extend(downward::local_values(spec, carried));
    }
    if !wants_token(carried) {
        // They are added when this patch is applied.
        let list = ContainerList::Ephemeral.spec_field();
        let ephemeral = PodView::of(carried).spec().json().get(list).cloned();
        let mut added = Map::from_iter([(list.to_owned(), ephemeral.unwrap_or_default())]);
        downward::refer_to_local_values(&mut added, rules);
        pod_annotations.extend(downward::local_values(&added, carried));
    }

    let mut metadata = Map::new();
    let (live_metadata, recorded) = (PodView::of(live).metadata(), TravelledView::of(&before));
    for (field, wanted, live, recorded) in [
        (
            "labels",
            pod_labels,
            live_metadata.labels(),
            recorded.labels(),
        ),
        (
            "annotations",
            pod_annotations,
            live_metadata.annotations(),
            recorded.annotations(),
        ),
    ] {
        let mut changes: Map<String, Value> = wanted
            .iter()
            .filter(|&(key, value)| live.and_then(|live| live.get(key)) != Some(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let gone = recorded.iter().filter_map(Value::as_str);
        let gone = gone.filter(|key| {
            !is_liqo_key(key)
                && !wanted.contains_key(*key)
                && live.is_some_and(|live| live.contains_key(*key))
        });
        changes.extend(gone.map(|key| (key.to_owned(), Value::Null)));
        let outdated = live
            .into_iter()
            .flat_map(Map::keys)
            .filter(|key| downward::is_local_value(key) && !wanted.contains_key(*key));
        changes.extend(outdated.map(|key| (key.clone(), Value::Null)));
        if !changes.is_empty() {
            metadata.insert(field.into(), changes.into());
        }
    }

    let mut spec = Map::new();
    for list in ContainerList::OF_NEW_POD {
        let changed: Vec<Value> = images::containers_with_new_image(carried, live, list)
            .filter(|container| {
                container
                    .image_text()
                    .is_some_and(|image| images::is_allowed(image, rules))
            })
            .map(|container| json!({"name": container.name(), "image": container.image()}))
            .collect();
        if !changed.is_empty() {
            spec.insert(list.spec_field().into(), changed.into());
        }
    }
    let deadline = PodView::of(carried).spec().active_deadline_seconds();
    if deadline.is_some() && deadline != PodView::of(live).spec().active_deadline_seconds() {
        spec.insert(
            "activeDeadlineSeconds".into(),
            deadline.cloned().unwrap_or_default(),
        );
    }

    let parts = [("metadata", metadata), ("spec", spec)]
        .into_iter()
        .filter(|(_, part)| !part.is_empty());
    let patch: Map<String, Value> = parts
        .map(|(field, part)| (field.to_owned(), part.into()))
        .collect();
    (!patch.is_empty()).then_some(patch.into())
}

/// The rules that both sides apply to a `PodSpec`.
fn reduce_spec(
    pod: &Value,
    advertised: &BTreeSet<String>,
    toleration: &dyn Fn(&Value) -> bool,
) -> Result<Map<String, Value>, PodRefusal> {
    let Some(spec) = pod.get("spec").and_then(Value::as_object) else {
        return Err(PodRefusal::new(
            OffloadedReason::Malformed.as_str(),
            "the pod has no spec",
        ));
    };
    let injected = injected_volumes(pod);
    let mut kept = Map::new();
    for (field, value) in spec.iter().filter(|(_, value)| !value.is_null()) {
        let value = match field.as_str() {
            field if PASSES.contains(&field) => Some(value.clone()),
            field if DROPPED.contains(&field) => None,
            "hostNetwork" | "hostPID" | "hostIPC" => refuse_host_namespace(field, value)?,
            // A user namespace of its own isolates more; a pod without the field shares the host's.
            "hostUsers" => (value == &Value::Bool(false)).then(|| value.clone()),
            "resourceClaims" => refuse_claims(value)?,
            "volumes" => volumes::reduce_volumes(value, &injected)?,
            "containers" | "initContainers" => containers::reduce_containers(value, &injected)?,
            // An empty list says that all have ended.
            "ephemeralContainers" => Some(
                containers::reduce_containers(&containers::unfinished_ephemeral(pod), &injected)?
                    .unwrap_or_else(|| json!([])),
            ),
            "nodeSelector" => placement::travelling_node_selector(value, advertised),
            "affinity" => placement::travelling_affinity(value, advertised),
            "tolerations" => placement::travelling_tolerations(value, toleration),
            unknown => {
                let message = format!(
                    "the pod's field spec.{unknown} is not known to be safe in another cluster; remove it, or keep the pod in its own cluster"
                );
                return Err(PodRefusal::new(
                    OffloadedReason::UnknownField.as_str(),
                    message,
                ));
            }
        };
        if let Some(value) = value {
            kept.insert(field.clone(), value);
        }
    }
    Ok(kept)
}

fn refuse_host_namespace(field: &str, value: &Value) -> Result<Option<Value>, PodRefusal> {
    if value == &Value::Bool(false) {
        return Ok(None);
    }
    Err(PodRefusal::new(
        OffloadedReason::HostNamespace.as_str(),
        format!(
            "the pod asks for the node's own namespace by spec.{field}, which a node of another cluster does not give; remove it, or keep the pod in its own cluster"
        ),
    ))
}

fn refuse_claims(value: &Value) -> Result<Option<Value>, PodRefusal> {
    if value.as_array().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    Err(PodRefusal::new(
        OffloadedReason::ResourceClaims.as_str(),
        "the pod claims devices by spec.resourceClaims, and claims do not travel; ask for an extended resource that the offer names, or keep the pod in its own cluster",
    ))
}

/// Refuses containers that need an object to start which the provider's policy does not let
/// consumers reflect.
fn check_reflected_kinds(
    pod: &Value,
    kinds: &[ReflectedKind],
    policy: &str,
) -> Result<(), PodRefusal> {
    let needed = references::required_objects(pod);
    for (kind, names) in [
        (ReflectedKind::ConfigMap, &needed.config_maps),
        (ReflectedKind::Secret, &needed.secrets),
    ] {
        if let Some(name) = names.first().filter(|_| !kinds.contains(&kind)) {
            return Err(PodRefusal::new(
                OffloadedReason::KindNotAllowed.as_str(),
                format!(
                    "the pod needs the {kind:?} {name:.253}, and the provider's PeeringPolicy {policy} does not allow {kind:?}s to be reflected; do without it, or keep the pod in its own cluster"
                ),
            ));
        }
    }
    Ok(())
}

/// The record of what travelled last, in a remote pod.
fn last_travelled_record(live: &Value) -> Value {
    PodView::of(live)
        .metadata()
        .annotation(annotations::TRAVELLED)
        .and_then(|recorded| serde_json::from_str(recorded).ok())
        .unwrap_or_default()
}

/// The record of what travelled. It shows which labels and annotations were removed later, and
/// which images and amounts changed. `before` is the former record: an image of it that a stricter
/// policy forbids by now has travelled all the same.
fn travelled_record(
    before: &Value,
    carried: &Value,
    pod_labels: &Map<String, Value>,
    pod_annotations: &Map<String, Value>,
    sizes: Option<&Value>,
    rules: &ProviderRules,
) -> String {
    let spec = PodView::of(carried).spec();
    let containers = spec
        .containers()
        .chain(spec.containers_in(ContainerList::Init));
    let before = TravelledView::of(before);
    let mut images = Map::new();
    for container in containers {
        let has_travelled = before.image(container.name()) == container.image();
        if let Some(image) = container.image_text()
            && (has_travelled || images::is_allowed(image, rules))
        {
            images.insert(container.name().to_owned(), image.into());
        }
    }
    let label_keys: BTreeSet<&String> = pod_labels.keys().collect();
    let annotation_keys: BTreeSet<&String> = pod_annotations.keys().collect();
    json!({"labels": label_keys, "annotations": annotation_keys, "images": images, "resources": sizes}).to_string()
}
