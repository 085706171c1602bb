//! Reflected objects as they travel: their content, their names, and when two are equal. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Secret, Service},
        discovery::v1::EndpointSlice,
        networking::v1::Ingress,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt as _};
use liqo_api::record_text::{self, MAX_OBJECT_LEN, MAX_SECRET_LEN, RecordTextError};
use liqo_api::reflection::{is_allowed, is_denied, is_reflected, is_replica};
use liqo_api::{
    Exposure, Key, OffloadedReason, ReflectedObject, ReflectedObjectSpec, annotations, labels,
    short_hash,
};
use liqo_network_model::{Here, PeerMaps};
use serde_json::{Value, json};

use crate::json::{json_fingerprint, key_domain, set_at};
use crate::pod::carry::api_server::{self, ApiServerChoice};
use crate::pod::home_text::replace_word;
use crate::pod::local_state::LocalPod;
use crate::pod::local_status::truncate_text;
use crate::pod::references::{PodReferences, ROOT_CA};
use crate::replica::chunk::Chunk;
use crate::replica::kind::{ReplicaKind, SECRET_TYPES};
use crate::replica::name::replica_name;
use crate::replica::{exposure, ingress, parts, service};
use crate::views::{EndpointSliceView, EndpointView, ObjectView};

/// Secrets of these types never travel: they belong to the home cluster's own controllers.
const NEVER: [&str; 2] = [
    "kubernetes.io/service-account-token",
    "bootstrap.kubernetes.io/token",
];

/// Reason of an object that is too large to travel.
pub const TOO_LARGE: &str = OffloadedReason::TooLarge.as_str();

/// The controller whose `EndpointSlice`s list the pods that a Service selects.
const SELECTING_CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// Maximum number of addresses that one event names.
const NAMED_ADDRESSES: usize = 2;

/// The text of an event about these addresses of a Service, which are none of pods.
pub fn no_pod_message(addresses: &BTreeSet<IpAddr>, cluster: &str) -> String {
    let named: Vec<String> = addresses
        .iter()
        .take(NAMED_ADDRESSES)
        .map(ToString::to_string)
        .collect();
    let more = match addresses.len().saturating_sub(NAMED_ADDRESSES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    format!(
        "pods at {cluster} do not reach {named}{more}: no pod of this namespace has it, so it is closed to other clusters"
    )
}

/// Whether a `ConfigMap` or Secret that a pod names travels with it. In a namespace of one of our
/// consumers whose pods run at a provider of ours, only what that consumer sent does: everything
/// else there belongs to this cluster.
pub fn travels_with_pods(object: &impl Resource, is_brokered: bool) -> bool {
    !is_brokered || is_replica(object)
}

/// An object at home that is reflected.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub kind: ReplicaKind,
    pub namespace: String,
    pub name: String,
}

impl Reference {
    pub fn new(kind: ReplicaKind, key: &Key) -> Self {
        Self {
            kind,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        }
    }

    pub fn key(&self) -> Key {
        Key::new(self.namespace.clone(), self.name.clone())
    }

    /// Every object that travels for a pod: those that it expects, and the CA of this cluster.
    pub fn all_of_pod(pod: &LocalPod) -> Vec<Self> {
        let mut all = Self::expected_by(pod);
        // The pod may also name it.
        if pod.finds_ca && !pod.refs.config_maps.contains(ROOT_CA) {
            all.push(Self {
                kind: ReplicaKind::ConfigMap,
                namespace: pod.key.namespace.clone(),
                name: ROOT_CA.to_owned(),
            });
        }
        all
    }

    /// The objects that a pod names, and its Secret for the API server: its owner is told if one of
    /// them does not travel.
    pub fn expected_by(pod: &LocalPod) -> Vec<Self> {
        let mut expected = Self::named_by(pod, &pod.refs);
        if matches!(pod.api_server, ApiServerChoice::Home { .. }) {
            expected.push(Self::of_api_server(pod));
        }
        expected
    }

    /// The objects without which no container of a pod starts.
    pub fn needed_by(pod: &LocalPod) -> Vec<Self> {
        Self::named_by(pod, &pod.needs)
    }

    fn named_by(pod: &LocalPod, objects: &PodReferences) -> Vec<Self> {
        let config_maps = objects
            .config_maps
            .iter()
            .map(|name| (ReplicaKind::ConfigMap, name));
        let secrets = objects
            .secrets
            .iter()
            .map(|name| (ReplicaKind::Secret, name));
        config_maps
            .chain(secrets)
            .map(|(kind, name)| Self {
                kind,
                namespace: pod.key.namespace.clone(),
                name: name.clone(),
            })
            .collect()
    }

    /// The Secret with which a pod uses our API server; it exists at the provider only.
    pub fn of_api_server(pod: &LocalPod) -> Self {
        Self {
            kind: ReplicaKind::Secret,
            namespace: pod.key.namespace.clone(),
            name: api_server::api_server_secret_name(&pod.uid),
        }
    }

    /// UID of the pod for which this is the Secret of [`Self::of_api_server`].
    pub fn api_server_pod_uid(&self) -> Option<&str> {
        api_server::pod_uid_of_secret(&self.name).filter(|_| self.kind == ReplicaKind::Secret)
    }

    /// Whether this object travels for the pod.
    pub fn is_named_by(&self, pod: &LocalPod) -> bool {
        let names = match self.kind {
            ReplicaKind::ConfigMap => &pod.refs.config_maps,
            ReplicaKind::Secret => &pod.refs.secrets,
            ReplicaKind::Service
            | ReplicaKind::EndpointSlice
            | ReplicaKind::Ingress
            | ReplicaKind::NetworkPolicy
            | ReplicaKind::PodDisruptionBudget => {
                return false;
            }
        };
        let is_root_ca =
            pod.finds_ca && self.kind == ReplicaKind::ConfigMap && self.name == ROOT_CA;
        let names_it =
            names.contains(&self.name) || self.api_server_pod_uid() == Some(&pod.uid) || is_root_ca;
        pod.key.namespace == self.namespace && names_it
    }

    /// The same for this object inside a record, which may be a part of the object at home.
    #[must_use]
    pub fn for_part(&self, object: &Value) -> Self {
        let name = ObjectView::of(object).metadata().name();
        let name = name.unwrap_or(&self.name);
        let chunk = Chunk::from_object(object).and_then(|chunk| chunk.own_name(name));
        Self {
            name: chunk.unwrap_or_else(|| name.to_owned()),
            ..self.clone()
        }
    }

    /// The name of its record in the tenant namespace.
    pub fn record_name(&self) -> String {
        let kind = self.kind.name().to_lowercase();
        format!(
            "{kind}-{}",
            short_hash(&format!("{}/{}", self.namespace, self.name))
        )
    }
}

/// The reduced form of a record in the tenant namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReflectionRecord {
    /// The object at home.
    pub reference: Reference,
    /// The text that identifies the record, if that is not the object's name: it is a part of a
    /// large slice, or a chunk but the first.
    pub part: Option<String>,
    /// Equal for equal content.
    pub fingerprint: u64,
    pub terminating: bool,
    /// The reason why the provider has no replica of it.
    pub problem: Option<String>,
    /// The way in which clients outside the provider's cluster reach its replica.
    pub exposure: Option<Exposure>,
    /// Only for a `PodDisruptionBudget`: whether the provider drains a node with a pod that it
    /// selects.
    pub is_draining: bool,
    /// Only for a token: the time at which to renew it, unless the provider changed that.
    pub renew_at: Option<Timestamp>,
}

impl ReflectionRecord {
    /// Reduces a record; `None` if it is not one of ours.
    pub fn from_object(object: ReflectedObject) -> Option<Self> {
        let content = record_text::parse_object(&object.spec.object, MAX_OBJECT_LEN).ok()?;
        let name = ObjectView::of(&content).metadata().name()?.to_owned();
        let kind = ReplicaKind::of_object(&content).filter(|kind| *kind != ReplicaKind::Secret)?;
        let home_name = object
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(annotations::HOME_NAME));
        let slice = home_name
            .filter(|slice| kind == ReplicaKind::EndpointSlice && **slice != name)
            .cloned();
        let part = slice
            .as_ref()
            .map(|_| name.clone())
            .or_else(|| Chunk::from_object(&content)?.own_name(&name));
        let name = slice.unwrap_or(name);
        let reference = Reference {
            kind,
            namespace: object.spec.namespace,
            name,
        };
        let terminating = object.metadata.deletion_timestamp.is_some();
        let said = object
            .status
            .as_ref()
            .and_then(|status| Some((status.reason.clone()?, status.message.clone()?)));
        // Before the namespace exists no pod can run there, and the pod itself reports that.
        let said = said.filter(|(reason, _)| reason != "NamespaceNotReady");
        let problem = said.map(|(reason, message)| {
            problem_message(&format!("{reason}: {message}"), kind, &reference.name)
        });
        let is_draining = object.status.as_ref().is_some_and(|status| status.draining);
        let exposure = object
            .status
            .and_then(|status| exposure::valid_exposure(status.exposure?));
        let fingerprint = json_fingerprint(&content);
        Some(Self {
            reference,
            part,
            fingerprint,
            terminating,
            problem,
            exposure,
            is_draining,
            renew_at: None,
        })
    }

    /// The reference that identifies the record.
    pub fn own_reference(&self) -> Reference {
        let name = self.part.as_ref().unwrap_or(&self.reference.name).clone();
        Reference {
            name,
            ..self.reference.clone()
        }
    }

    /// Reduces a Secret that is a record; `None` for any other.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what a watch's reduction takes"
    )]
    pub fn from_secret(secret: Secret) -> Option<Self> {
        let namespace = secret
            .metadata
            .labels
            .as_ref()?
            .get(labels::HOME_NAMESPACE)?
            .clone();
        let name = secret
            .metadata
            .annotations
            .as_ref()?
            .get(annotations::HOME_NAME)?
            .clone();
        let terminating = secret.metadata.deletion_timestamp.is_some();
        let said = secret
            .metadata
            .annotations
            .as_ref()?
            .get(annotations::NOT_REFLECTED);
        let problem = said.map(|said| problem_message(said, ReplicaKind::Secret, &name));
        let reference = Reference {
            kind: ReplicaKind::Secret,
            namespace,
            name,
        };
        let renew_at = secret
            .metadata
            .annotations
            .as_ref()?
            .get(annotations::RENEW_AT)
            .and_then(|at| at.parse().ok());
        let fingerprint = fingerprint_of_secret(&secret);
        let (exposure, is_draining) = (None, false);
        let part = Chunk::from_secret(&secret).and_then(|chunk| chunk.own_name(&reference.name));
        Some(Self {
            reference,
            part,
            fingerprint,
            terminating,
            problem,
            exposure,
            is_draining,
            renew_at,
        })
    }

    /// Estimated memory in bytes.
    pub fn stored_len(&self) -> usize {
        let addresses = self
            .exposure
            .iter()
            .flat_map(|exposure| exposure.addresses.iter().chain([&exposure.class]));
        let texts = [&self.reference.namespace, &self.reference.name]
            .into_iter()
            .chain(&self.part)
            .chain(&self.problem)
            .chain(addresses);
        size_of::<Self>()
            + texts
                .map(|text| size_of::<String>() + text.len())
                .sum::<usize>()
    }

    /// Whether a change concerns more than the problem and exposure that the provider reports.
    pub fn differs_beyond_problem(&self, other: &Self) -> bool {
        self.own_reference() != other.own_reference()
            || self.fingerprint != other.fingerprint
            || self.terminating != other.terminating
            || self.renew_at != other.renew_at
    }
}

/// The provider's message about an object, by the name that it has here. Only `NameTaken` keeps the
/// name there: its reader has to find that object.
fn problem_message(said: &str, kind: ReplicaKind, name: &str) -> String {
    let said = truncate_text(said);
    if said.starts_with(OffloadedReason::NameTaken.as_str()) {
        said
    } else {
        replace_word(&said, &replica_name(kind, name), name)
    }
}

/// The object inside the record of a `ConfigMap`; `None` if it does not travel.
pub fn config_map_object(map: &ConfigMap) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": map.metadata.name },
        "data": map.data.clone().unwrap_or_default(),
    });
    if let Some(binary) = map.binary_data.as_ref().filter(|binary| !binary.is_empty()) {
        set_at(&mut object, &["binaryData"], json!(binary));
    }
    object
}

/// The name, labels and annotations that travel.
fn travelling_metadata(meta: &ObjectMeta) -> Value {
    json!({
        "name": meta.name,
        "labels": users_entries(meta.labels.as_ref()),
        "annotations": users_entries(meta.annotations.as_ref()),
    })
}

/// The labels or annotations that are neither Liqo's nor `kubectl`'s.
fn users_entries(entries: Option<&BTreeMap<String, String>>) -> BTreeMap<&str, &str> {
    entries
        .into_iter()
        .flatten()
        .filter(|(key, _)| {
            !key_domain(key).ends_with(labels::DOMAIN)
                && *key != "kubectl.kubernetes.io/last-applied-configuration"
        })
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}

/// The reduced form of a Service at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalService {
    /// Whether it travels wherever its namespace is offloaded.
    pub is_allowed: bool,
    /// The object inside its record.
    text: Box<str>,
}

impl LocalService {
    /// Reduces a Service; `None` if it does not travel.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what a watch's reduction takes"
    )]
    pub fn from_service(service: Service) -> Option<Self> {
        let whole = serde_json::to_value(&service)
            .ok()
            .filter(|_| is_reflected(&service))?;
        let mut object = service::outgoing_service(&whole);
        object.insert(
            "apiVersion".into(),
            ReplicaKind::Service.api_version().into(),
        );
        object.insert("kind".into(), ReplicaKind::Service.name().into());
        object.insert("metadata".into(), travelling_metadata(&service.metadata));
        Some(Self {
            is_allowed: is_allowed(&service),
            text: Value::from(object).to_string().into(),
        })
    }

    pub fn to_object(&self) -> Option<Value> {
        serde_json::from_str(&self.text).ok()
    }
}

/// The reduced form of an Ingress at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalIngress {
    /// Whether it travels wherever its namespace is offloaded.
    pub is_allowed: bool,
    pub secrets: BTreeSet<String>,
    /// The object inside its record.
    text: Box<str>,
}

impl LocalIngress {
    /// Reduces an Ingress; `None` if it does not travel.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what a watch's reduction takes"
    )]
    pub fn from_ingress(ingress: Ingress) -> Option<Self> {
        let mut whole = serde_json::to_value(&ingress)
            .ok()
            .filter(|_| !is_denied(&ingress))?;
        match exposure::exposure_request(&whole) {
            exposure::ExposureRequest::Nothing => return None,
            // An annotation that restricts access here may mean nothing there.
            exposure::ExposureRequest::Any if ingress::is_guarded(&whole) => return None,
            exposure::ExposureRequest::Class(class) => {
                exposure::set_class(ReplicaKind::Ingress, &mut whole, &class);
            }
            exposure::ExposureRequest::Any => {
                exposure::set_class(ReplicaKind::Ingress, &mut whole, "");
            }
        }
        let mut object = ingress::travelling_ingress(&whole);
        object.insert(
            "apiVersion".into(),
            ReplicaKind::Ingress.api_version().into(),
        );
        object.insert("kind".into(), ReplicaKind::Ingress.name().into());
        object.insert("metadata".into(), travelling_metadata(&ingress.metadata));
        let object = Value::from(object);
        let secrets = ingress::secret_names(&object);
        Some(Self {
            is_allowed: is_allowed(&ingress),
            secrets,
            text: object.to_string().into(),
        })
    }

    pub fn to_object(&self) -> Option<Value> {
        serde_json::from_str(&self.text).ok()
    }
}

/// The reduced form of an `EndpointSlice` at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSlice {
    pub service: String,
    /// Whether its addresses come from somebody else than Kubernetes, which takes them from the
    /// pods that a Service selects. Those of `Endpoints` are such ones, too.
    pub is_hand_written: bool,
    /// The fields that travel, with the addresses here.
    text: Box<str>,
}

impl LocalSlice {
    /// Reduces a slice; `None` if it belongs to no Service, or if its users keep it here.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "what a watch's reduction takes"
    )]
    pub fn from_endpoint_slice(slice: EndpointSlice) -> Option<Self> {
        let whole = serde_json::to_value(&slice)
            .ok()
            .filter(|_| !is_denied(&slice))?;
        let service = service::service_of(&whole)?.to_owned();
        let is_hand_written = slice
            .labels()
            .get(service::MANAGED_BY)
            .is_none_or(|controller| controller != SELECTING_CONTROLLER);
        Some(Self {
            service,
            is_hand_written,
            text: Value::from(service::endpoint_slice(&whole, Some))
                .to_string()
                .into(),
        })
    }

    /// The addresses of its endpoints, as this cluster sees them.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        let whole: Value = serde_json::from_str(&self.text).unwrap_or_default();
        EndpointSliceView::of(&whole)
            .endpoints()
            .flat_map(EndpointView::address_texts)
            .filter_map(|address| address.parse().ok())
            .collect()
    }

    /// The objects inside its records, with the addresses as the peer sees them: usually one, more
    /// if that would be too long, none if the peer sees no address.
    pub fn objects_for_peer(&self, name: &str, maps: &PeerMaps) -> Vec<Value> {
        let whole: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let seen = service::endpoint_slice(&whole, |address| {
            maps.seen_there(Here(address)).map(|there| there.0)
        });
        let mut objects = Vec::new();
        for (name, part) in parts::divide_slice(name, &seen) {
            let mut object = Value::from(part);
            set_at(
                &mut object,
                &["apiVersion"],
                ReplicaKind::EndpointSlice.api_version(),
            );
            set_at(&mut object, &["kind"], ReplicaKind::EndpointSlice.name());
            set_at(&mut object, &["metadata", "name"], name);
            objects.push(object);
        }
        objects
    }
}

/// The record of an object, or of a part of it, if that is not too large to travel.
pub fn record_of(
    reference: &Reference,
    object: &Value,
) -> Result<ReflectedObject, RecordTextError> {
    let part = reference.for_part(object);
    let object = record_text::print_object(object, MAX_OBJECT_LEN)?;
    Ok(ReflectedObject {
        metadata: ObjectMeta {
            name: Some(part.record_name()),
            ..record_metadata(reference)
        },
        spec: ReflectedObjectSpec {
            namespace: reference.namespace.clone(),
            object,
        },
        status: None,
    })
}

/// The type of the record and of the replica of a Secret with this type. Both sides ask this.
pub(super) fn travelling_type(type_: Option<&str>) -> &'static str {
    let [opaque, ..] = SECRET_TYPES;
    SECRET_TYPES
        .into_iter()
        .find(|known| type_ == Some(*known))
        .unwrap_or(opaque)
}

/// Reason and message if a Secret can have a replica nowhere. Both sides ask this.
pub fn obstacle_of_type(secret: &Secret) -> Option<(&'static str, String)> {
    let type_ = secret
        .type_
        .as_deref()
        .filter(|type_| NEVER.contains(type_))?;
    Some((
        "KindNotAllowed",
        format!("Secrets of type {type_} are not reflected to other clusters"),
    ))
}

/// Reason and message if the record of a Secret, or of a chunk of it, is not taken. The provider's
/// admission policy refuses this record.
pub fn obstacle_of_secret(secret: &Secret) -> Option<(&'static str, String)> {
    if let Some(obstacle) = obstacle_of_type(secret) {
        return Some(obstacle);
    }
    let len: usize = secret
        .data
        .iter()
        .flatten()
        .map(|(key, ByteString(value))| key.len() + value.len())
        .sum();
    (len > MAX_SECRET_LEN).then(|| {
        (
            TOO_LARGE,
            RecordTextError::TooLong(len, MAX_SECRET_LEN).to_string(),
        )
    })
}

/// The record of a Secret is a Secret, so that encryption at rest covers it; `None` if it does not
/// travel.
pub fn record_of_secret(reference: &Reference, secret: &Secret) -> Option<Secret> {
    if secret
        .type_
        .as_deref()
        .is_some_and(|kind| NEVER.contains(&kind))
    {
        return None;
    }
    Some(Secret {
        metadata: record_metadata(reference),
        type_: Some(travelling_type(secret.type_.as_deref()).to_owned()),
        data: secret.data.clone(),
        ..Secret::default()
    })
}

fn record_metadata(reference: &Reference) -> ObjectMeta {
    let text = str::to_owned;
    ObjectMeta {
        name: Some(reference.record_name()),
        labels: Some(
            [
                (text(labels::MANAGED), text("true")),
                (text(labels::REFLECTED), text("true")),
                (text(labels::HOME_NAMESPACE), reference.namespace.clone()),
            ]
            .into(),
        ),
        annotations: Some([(text(annotations::HOME_NAME), reference.name.clone())].into()),
        ..ObjectMeta::default()
    }
}

/// Equal for Secrets with equal content.
pub fn fingerprint_of_secret(secret: &Secret) -> u64 {
    let mut hasher = DefaultHasher::new();
    secret
        .type_
        .as_deref()
        .unwrap_or("Opaque")
        .hash(&mut hasher);
    for (key, ByteString(value)) in secret.data.iter().flatten() {
        (key, value).hash(&mut hasher);
    }
    secret
        .annotations()
        .get(annotations::CHUNK)
        .hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::replica_source::ReplicaSource;

    fn reference(kind: ReplicaKind, name: &str) -> Reference {
        Reference {
            kind,
            namespace: "demo".into(),
            name: name.into(),
        }
    }

    fn record_of_config_map(reference: &Reference, map: &ConfigMap) -> ReflectedObject {
        record_of(reference, &config_map_object(map)).unwrap()
    }

    fn config_map(value: Value) -> ConfigMap {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn only_what_a_consumer_sent_travels_on_from_its_namespace() {
        let secret = |labels: Value| -> Secret {
            serde_json::from_value(json!({ "metadata": { "name": "registry", "labels": labels } }))
                .unwrap()
        };
        let (own, replica) = (
            secret(json!({})),
            secret(json!({ labels::REFLECTED: "true" })),
        );
        assert!(travels_with_pods(&own, false) && !travels_with_pods(&own, true));
        assert!(travels_with_pods(&replica, true));
    }

    #[test]
    fn records_of_different_objects_have_different_names() {
        let names: std::collections::BTreeSet<String> = [
            reference(ReplicaKind::ConfigMap, "a"),
            reference(ReplicaKind::Secret, "a"),
            reference(ReplicaKind::ConfigMap, "b"),
        ]
        .iter()
        .chain([
            &Reference {
                namespace: "other".into(),
                ..reference(ReplicaKind::ConfigMap, "a")
            },
            &reference(ReplicaKind::Service, "a"),
            &reference(ReplicaKind::EndpointSlice, "a"),
        ])
        .map(Reference::record_name)
        .collect();
        assert_eq!(names.len(), 6);
        assert!(names.iter().all(|name| name.len() <= 63));
    }

    #[test]
    fn the_ca_travels_for_a_pod_that_finds_it_in_the_injected_volume_and_once() {
        let of = |more: Value| {
            let injected = json!({ "name": "kube-api-access-x", "projected": { "sources": [{ "serviceAccountToken": {} }] } });
            let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" },
                "spec": { "containers": [], "volumes": [injected, more] } });
            LocalPod::from_pod(
                serde_json::from_value(pod).unwrap(),
                &Key::new("provider", "node"),
            )
            .unwrap()
        };
        let (pod, naming) = (
            of(json!({ "name": "v" })),
            of(json!({ "name": "v", "configMap": { "name": ROOT_CA } })),
        );
        let ca = reference(ReplicaKind::ConfigMap, ROOT_CA);
        assert!(
            ca.is_named_by(&pod)
                && !Reference {
                    namespace: "other".into(),
                    ..ca.clone()
                }
                .is_named_by(&pod)
        );
        assert_eq!(
            (Reference::all_of_pod(&pod), Reference::expected_by(&pod)),
            (vec![ca.clone()], vec![])
        );
        assert_eq!(
            (
                Reference::all_of_pod(&naming),
                Reference::expected_by(&naming)
            ),
            (vec![ca.clone()], vec![ca])
        );
        assert!(Reference::needed_by(&pod).is_empty());
    }

    #[test]
    fn a_pod_names_what_it_reads_and_only_in_its_namespace() {
        let pod = json!({"metadata": {"namespace": "demo", "name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "m"}}]}]}});
        let pod = LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("p", "default"),
        )
        .unwrap();
        assert_eq!(
            Reference::all_of_pod(&pod),
            [
                reference(ReplicaKind::ConfigMap, "m"),
                reference(ReplicaKind::Secret, "s")
            ]
        );
        assert!(reference(ReplicaKind::Secret, "s").is_named_by(&pod));
        assert!(!reference(ReplicaKind::ConfigMap, "s").is_named_by(&pod));
        assert!(
            !Reference {
                namespace: "other".into(),
                ..reference(ReplicaKind::Secret, "s")
            }
            .is_named_by(&pod)
        );
    }

    #[test]
    fn a_record_read_back_is_like_the_one_written() {
        let map = config_map(
            json!({"metadata": {"name": "m", "labels": {"z": "1", "a": "2"}}, "data": {"y": "1", "b": "2"},
            "binaryData": {"x": "AAEC"}}),
        );
        let record = record_of_config_map(&reference(ReplicaKind::ConfigMap, "m"), &map);
        let read = ReflectionRecord::from_object(
            serde_json::from_value(serde_json::to_value(&record).unwrap()).unwrap(),
        )
        .unwrap();
        assert_eq!(read.reference, reference(ReplicaKind::ConfigMap, "m"));
        assert_eq!(read.fingerprint, json_fingerprint(&config_map_object(&map)));
        assert!(
            record.spec.object.contains(r#""binaryData":{"x":"AAEC"}"#),
            "{}",
            record.spec.object
        );
    }

    #[test]
    fn order_does_not_matter_and_content_does() {
        let one = json!({"data": {"a": "1", "b": "2"}});
        assert_eq!(
            json_fingerprint(&one),
            json_fingerprint(&json!({"data": {"b": "2", "a": "1"}}))
        );
        assert_ne!(
            json_fingerprint(&one),
            json_fingerprint(&json!({"data": {"a": "1", "b": "3"}}))
        );
        assert_ne!(
            json_fingerprint(&one),
            json_fingerprint(&json!({"data": {"a": "1"}}))
        );
    }

    #[test]
    fn the_labels_and_annotations_of_a_config_map_stay_at_home_because_its_replica_has_none() {
        let map = config_map(
            json!({"metadata": {"name": "m", "uid": "u", "labels": {"app": "x", "liqo.io/managed": "true"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "immutable": true}),
        );
        assert_eq!(
            config_map_object(&map),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {}})
        );
    }

    #[test]
    fn a_secret_keeps_its_type_and_says_where_it_comes_from() {
        let secret = Secret {
            type_: Some("kubernetes.io/tls".into()),
            data: Some([("tls.key".to_owned(), ByteString(vec![1, 2]))].into()),
            immutable: Some(true),
            ..Secret::default()
        };
        let record = record_of_secret(&reference(ReplicaKind::Secret, "s"), &secret).unwrap();
        assert_eq!(
            (record.type_.as_deref(), record.immutable),
            (Some("kubernetes.io/tls"), None)
        );
        let record = ReflectionRecord::from_secret(record).unwrap();
        assert_eq!(
            record,
            ReflectionRecord {
                reference: reference(ReplicaKind::Secret, "s"),
                part: None,
                fingerprint: fingerprint_of_secret(&secret),
                terminating: false,
                problem: None,
                exposure: None,
                is_draining: false,
                renew_at: None
            }
        );
    }

    #[test]
    fn what_the_provider_says_of_a_record_is_read_wherever_it_stands() {
        let (name, said) = (
            "NameTaken",
            "the provider has a ConfigMap m of another owner",
        );
        let map = |reason: &str| {
            let mut record = record_of_config_map(
                &reference(ReplicaKind::ConfigMap, "m"),
                &config_map(json!({"metadata": {"name": "m"}})),
            );
            record.status =
                serde_json::from_value(json!({"reason": reason, "message": said})).unwrap();
            ReflectionRecord::from_object(record).unwrap().problem
        };
        assert_eq!(map(name), Some(format!("{name}: {said}")));
        assert_eq!(map("NamespaceNotReady"), None);
        let there = replica_name(ReplicaKind::Secret, "s");
        let mut record =
            record_of_secret(&reference(ReplicaKind::Secret, "s"), &Secret::default()).unwrap();
        let mut says = |said: &str| {
            record
                .metadata
                .annotations
                .as_mut()
                .unwrap()
                .insert(annotations::NOT_REFLECTED.into(), said.into());
            ReflectionRecord::from_secret(record.clone())
                .unwrap()
                .problem
                .unwrap()
        };
        assert_eq!(
            says(&format!("Invalid: Secret \"{there}\" is invalid")),
            "Invalid: Secret \"s\" is invalid"
        );
        let taken = format!("NameTaken: the provider has a Secret {there} of another owner");
        assert_eq!(says(&taken), taken, "whoever removes it has to find it");
        let mut record =
            record_of_secret(&reference(ReplicaKind::Secret, "s"), &Secret::default()).unwrap();
        assert_eq!(
            ReflectionRecord::from_secret(record.clone())
                .unwrap()
                .problem,
            None
        );
        record.metadata.annotations.as_mut().unwrap().insert(
            annotations::NOT_REFLECTED.into(),
            "Invalid: too long".into(),
        );
        assert_eq!(
            ReflectionRecord::from_secret(record)
                .unwrap()
                .problem
                .as_deref(),
            Some("Invalid: too long")
        );
    }

    #[test]
    fn a_provider_that_says_much_of_a_record_is_not_remembered_in_full() {
        let much = "x".repeat(256 * 1024);
        let mut map = record_of_config_map(
            &reference(ReplicaKind::ConfigMap, "m"),
            &config_map(json!({"metadata": {"name": "m"}})),
        );
        map.status = serde_json::from_value(json!({"reason": "Invalid", "message": much})).unwrap();
        let mut secret =
            record_of_secret(&reference(ReplicaKind::Secret, "s"), &Secret::default()).unwrap();
        secret
            .metadata
            .annotations
            .as_mut()
            .unwrap()
            .insert(annotations::NOT_REFLECTED.into(), much);
        for record in [
            ReflectionRecord::from_object(map),
            ReflectionRecord::from_secret(secret),
        ] {
            assert_eq!(
                record.unwrap().problem.map(|problem| problem.len()),
                Some(4096)
            );
        }
    }

    #[test]
    fn what_a_provider_says_of_a_record_changes_nothing_of_what_it_holds() {
        let said = |problem: Option<&str>, fingerprint| ReflectionRecord {
            reference: reference(ReplicaKind::ConfigMap, "m"),
            part: None,
            fingerprint,
            terminating: false,
            problem: problem.map(str::to_owned),
            exposure: problem.map(|_| Exposure::default()),
            is_draining: false,
            renew_at: None,
        };
        assert!(!said(Some("Invalid: a"), 1).differs_beyond_problem(&said(Some("Invalid: b"), 1)));
        assert!(!said(None, 1).differs_beyond_problem(&said(Some("Invalid: b"), 1)));
        assert!(said(None, 1).differs_beyond_problem(&said(None, 2)));
        assert!(said(None, 1).differs_beyond_problem(&ReflectionRecord {
            terminating: true,
            ..said(None, 1)
        }));
    }

    #[test]
    fn an_object_that_is_too_large_does_not_travel_and_says_how_large_it_is() {
        let map = |bytes: usize| {
            let map =
                config_map(json!({"metadata": {"name": "m"}, "data": {"x": "x".repeat(bytes)}}));
            record_of(
                &reference(ReplicaKind::ConfigMap, "m"),
                &config_map_object(&map),
            )
            .map(drop)
            .map_err(|error| error.to_string())
        };
        assert_eq!(map(MAX_OBJECT_LEN - 200), Ok(()));
        assert!(
            map(MAX_OBJECT_LEN)
                .unwrap_err()
                .ends_with("at most 65536 bytes travel")
        );
        let secret = |bytes: usize| {
            let data = Some([("x".to_owned(), ByteString(vec![0; bytes]))].into());
            obstacle_of_secret(&Secret {
                data,
                ..Secret::default()
            })
        };
        assert_eq!(secret(MAX_SECRET_LEN - 1), None);
        let (reason, message) = secret(MAX_SECRET_LEN).unwrap();
        assert_eq!(
            (reason, message.as_str()),
            (
                "TooLarge",
                "it takes 32769 bytes, and at most 32768 bytes travel"
            )
        );
    }

    #[test]
    fn a_secret_of_an_operators_own_type_travels_as_opaque_and_known_types_stay() {
        let secret = |type_: Option<&str>| Secret {
            type_: type_.map(str::to_owned),
            ..Secret::default()
        };
        let record = |type_: Option<&str>| {
            record_of_secret(&reference(ReplicaKind::Secret, "s"), &secret(type_)).unwrap()
        };
        for (type_, travels) in [
            (None, "Opaque"),
            (Some("example.com/own"), "Opaque"),
            (Some("helm.sh/release.v1"), "Opaque"),
            (Some("kubernetes.io/tls"), "kubernetes.io/tls"),
            (
                Some("kubernetes.io/dockerconfigjson"),
                "kubernetes.io/dockerconfigjson",
            ),
        ] {
            assert_eq!(obstacle_of_secret(&secret(type_)), None);
            assert_eq!(record(type_).type_.as_deref(), Some(travels));
        }
        assert_eq!(
            fingerprint_of_secret(&record(Some("example.com/own"))),
            fingerprint_of_secret(&record(None))
        );
    }

    #[test]
    fn tokens_of_the_home_cluster_never_travel() {
        for kind in NEVER {
            let secret = Secret {
                type_: Some(kind.into()),
                ..Secret::default()
            };
            assert_eq!(
                record_of_secret(&reference(ReplicaKind::Secret, "s"), &secret),
                None
            );
            assert_eq!(obstacle_of_secret(&secret).unwrap().0, "KindNotAllowed");
        }
    }

    #[test]
    fn a_secret_of_somebody_else_is_no_record() {
        assert_eq!(ReflectionRecord::from_secret(Secret::default()), None);
    }

    #[test]
    fn a_service_travels_unless_it_is_denied_and_is_read_back_as_it_was_written() {
        let service = |annotations: Value| -> Service {
            serde_json::from_value(json!({ "metadata": { "namespace": "demo", "name": "web", "annotations": annotations, "labels": { "app": "web" } },
                "spec": { "clusterIP": "10.96.0.7", "selector": { "app": "web" }, "ports": [{ "port": 80 }] } }))
            .unwrap()
        };
        assert_eq!(
            LocalService::from_service(service(json!({ "liqo.io/reflection": "deny" }))),
            None
        );
        let object = LocalService::from_service(service(json!({})))
            .unwrap()
            .to_object()
            .unwrap();
        assert_eq!(
            object["metadata"],
            json!({ "name": "web", "labels": { "app": "web" }, "annotations": {} })
        );
        assert_eq!(
            (
                object["spec"].get("selector"),
                &object["spec"]["ports"][0]["targetPort"]
            ),
            (None, &json!(80))
        );
        let web = reference(ReplicaKind::Service, "web");
        let record = ReflectionRecord::from_object(record_of(&web, &object).unwrap()).unwrap();
        assert_eq!(
            (record.reference, record.fingerprint),
            (web, json_fingerprint(&object))
        );
    }

    /// The network with a provider that sees 10.244.0.0/16 here as 10.245.0.0/16.
    fn maps() -> PeerMaps {
        PeerMaps::try_from(&liqo_api::TunnelEndpointSpec {
            cluster_id: liqo_api::ClusterId::of_public_key(&[1; 32]),
            cluster_name: "milan".into(),
            exported: [(
                "10.244.0.0/16".parse().unwrap(),
                "10.245.0.0/16".parse().unwrap(),
            )]
            .into(),
            imported: [(
                "10.244.0.0/16".parse().unwrap(),
                "10.71.0.0/16".parse().unwrap(),
            )]
            .into(),
            behind: [].into(),
            customers: [].into(),
            transit: false,
            gateways: Vec::new(),
            mtu: 1420,
            path_mtus: [].into(),
            could_keep: [].into(),
            waiting: [].into(),
            reach: liqo_api::Reach::default(),
            api_server: false,
            accepts_direct: false,
            direct: [].into(),
        })
        .unwrap()
    }

    #[test]
    fn a_slice_shows_each_pod_where_the_peer_sees_it_and_leaves_out_what_it_cannot_see() {
        let maps = maps();
        let slice = |addresses: &[&str], service: &str| {
            let endpoints: Vec<Value> = addresses
                .iter()
                .map(|address| json!({ "addresses": [address], "nodeName": "n" }))
                .collect();
            let slice = json!({ "metadata": { "name": "web-x", "labels": { service::SERVICE_NAME: service } }, "addressType": "IPv4",
                "endpoints": endpoints, "ports": [{ "port": 80 }] });
            LocalSlice::from_endpoint_slice(serde_json::from_value(slice).unwrap())
        };
        // One at home, one at that provider, one at another provider.
        let seen = slice(&["10.244.0.5", "10.71.0.9", "10.72.0.9"], "web")
            .unwrap()
            .objects_for_peer("web-x", &maps)
            .remove(0);
        let addresses: Vec<&Value> = seen["endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| &one["addresses"][0])
            .collect();
        assert_eq!(addresses, [&json!("10.244.0.9"), &json!("10.245.0.5")]);
        assert_eq!(
            (&seen["kind"], &seen["metadata"]["name"]),
            (&json!("EndpointSlice"), &json!("web-x"))
        );
        assert!(seen["endpoints"][0].get("nodeName").is_none());
        assert!(
            slice(&["10.72.0.9"], "web")
                .unwrap()
                .objects_for_peer("web-x", &maps)
                .is_empty()
        );
        assert!(
            slice(&["10.244.0.5"], "web")
                .unwrap()
                .objects_for_peer("web-x", &PeerMaps::default())
                .is_empty()
        );
        assert_eq!(slice(&["10.244.0.5"], ""), None);
    }

    #[test]
    fn a_slice_of_any_size_travels_in_records_that_the_provider_takes() {
        let slice = |count: u32| {
            let endpoint = |number: u32| {
                json!({ "addresses": [format!("10.244.{}.{}", number / 250, number % 250)], "hostname": format!("{number:063}"),
                    "conditions": { "ready": true, "serving": true, "terminating": false } })
            };
            let endpoints: Vec<Value> = (0..count).map(endpoint).collect();
            let slice = json!({ "metadata": { "name": "web-x", "labels": { service::SERVICE_NAME: "web" } }, "addressType": "IPv4",
                "endpoints": endpoints, "ports": [{ "port": 8080 }] });
            LocalSlice::from_endpoint_slice(serde_json::from_value(slice).unwrap()).unwrap()
        };
        let home = reference(ReplicaKind::EndpointSlice, "web-x");
        for count in [50, 100, 1000] {
            let objects = slice(count).objects_for_peer("web-x", &maps());
            assert_eq!(objects.len() == 1, count == 50, "{count}");
            let records: Vec<ReflectedObject> = objects
                .iter()
                .map(|object| record_of(&home, object).unwrap())
                .collect();
            let read =
                |record: &ReflectedObject| ReflectionRecord::from_object(record.clone()).unwrap();
            let names: BTreeSet<String> = records
                .iter()
                .map(|record| read(record).own_reference().record_name())
                .collect();
            assert_eq!(
                names,
                records
                    .iter()
                    .map(|record| record.metadata.name.clone().unwrap())
                    .collect()
            );
            assert!(
                records.iter().all(|record| read(record).reference == home),
                "all are about the slice at home"
            );
            let taken: Vec<ReplicaSource> = records
                .into_iter()
                .map(ReplicaSource::from_object)
                .collect();
            assert!(
                taken
                    .iter()
                    .all(|source| source.problem.is_none() && source.partial.is_none())
            );
            let endpoints: usize = taken.iter().map(|source| source.endpoints).sum();
            assert_eq!(endpoints, usize::try_from(count).unwrap());
        }
    }

    #[test]
    fn addresses_are_written_by_hand_unless_kubernetes_takes_them_from_the_pods_that_a_service_selects()
     {
        let slice = |labels: Value| {
            let mut slice = json!({ "metadata": { "name": "db-x", "labels": { service::SERVICE_NAME: "db" } }, "addressType": "IPv4",
                "endpoints": [{ "addresses": ["10.244.0.5"], "conditions": { "ready": false } }, { "addresses": ["192.0.2.9"] }] });
            json_patch::merge(&mut slice["metadata"]["labels"], &labels);
            LocalSlice::from_endpoint_slice(serde_json::from_value(slice).unwrap()).unwrap()
        };
        let managed = |by: &str| slice(json!({ service::MANAGED_BY: by }));
        assert!(!managed("endpointslice-controller.k8s.io").is_hand_written);
        for slice in [
            managed("endpointslicemirroring-controller.k8s.io"),
            managed("operator"),
            slice(json!({})),
        ] {
            assert!(slice.is_hand_written);
            assert_eq!(
                slice.addresses(),
                ["10.244.0.5", "192.0.2.9"]
                    .map(|address| address.parse().unwrap())
                    .into()
            );
        }
    }

    #[test]
    fn an_event_names_some_of_the_addresses_and_fits_whatever_they_are() {
        let addresses = |count: u16| {
            (0..count).map(|last| {
                IpAddr::from([
                    0xfd00,
                    0x1111,
                    0x2222,
                    0x3333,
                    0x4444,
                    0x5555,
                    0x6666,
                    0x1000 + last,
                ])
            })
        };
        let said = no_pod_message(&addresses(1000).collect(), &"m".repeat(63));
        assert!(
            said.contains(" and 998 more: ") && said.len() <= 250,
            "{} {said}",
            said.len()
        );
        assert!(!no_pod_message(&addresses(2).collect(), "milan").contains(" more"));
    }
}
