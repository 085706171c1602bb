//! `ConfigMap`s and `Secret`s as they travel: what of them, under which name, and when two are alike. Pure.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use liqo_api::{ReflectedObject, ReflectedObjectSpec, annotations, labels, short_hash};
use serde_json::{Value, json};

use super::reduced::HomePod;
use crate::decide::{home_status::cut, text};

/// Secrets of these types belong to the home cluster's own machinery.
const NEVER: [&str; 2] = ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];

/// An object at home that pods name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// A Secret, else a `ConfigMap`.
    pub secret: bool,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Reference {
    /// Everything that a pod names.
    pub fn all(pod: &HomePod) -> Vec<Self> {
        let of = |secret: bool| move |name: &String| Self { secret, namespace: pod.key.namespace.clone(), name: name.clone() };
        pod.refs.config_maps.iter().map(of(false)).chain(pod.refs.secrets.iter().map(of(true))).collect()
    }

    /// Whether the pod names this object.
    pub fn is_named_by(&self, pod: &HomePod) -> bool {
        let names = if self.secret { &pod.refs.secrets } else { &pod.refs.config_maps };
        pod.key.namespace == self.namespace && names.contains(&self.name)
    }

    /// Its kind.
    pub fn kind(&self) -> &'static str {
        if self.secret { "Secret" } else { "ConfigMap" }
    }

    /// The name of its record in the tenant namespace.
    pub fn record(&self) -> String {
        let kind = if self.secret { "secret" } else { "configmap" };
        format!("{kind}-{}", short_hash(&format!("{}/{}", self.namespace, self.name)))
    }
}

/// What is kept of a record in the tenant namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Twin {
    /// What it stands for.
    pub reference: Reference,
    /// Alike for alike content.
    pub fingerprint: u64,
    /// It is going away.
    pub terminating: bool,
    /// Why the provider has no twin of it.
    pub problem: Option<String>,
}

impl Twin {
    /// The reduced form of a record; nothing for one that is none of ours.
    pub fn of_object(object: ReflectedObject) -> Option<Self> {
        let name = text(&object.spec.object, "/metadata/name")?.to_owned();
        let reference = Reference { secret: false, namespace: object.spec.namespace, name };
        let ours = text(&object.spec.object, "/kind") == Some("ConfigMap");
        let terminating = object.metadata.deletion_timestamp.is_some();
        let said = object.status.as_ref().and_then(|status| Some((status.reason.clone()?, status.message.clone()?)));
        // Before the namespace is there no pod is, either, and that is said of the pod itself.
        let said = said.filter(|(reason, _)| reason != "NamespaceNotReady");
        let problem = said.map(|(reason, message)| cut(&format!("{reason}: {message}")));
        ours.then(|| Self { reference, fingerprint: fingerprint_of_object(&object.spec.object), terminating, problem })
    }

    /// The reduced form of a Secret that is a record; nothing for any other.
    #[allow(clippy::needless_pass_by_value, reason = "what a watch's reduction takes")]
    pub fn of_secret(secret: Secret) -> Option<Self> {
        let namespace = secret.metadata.labels.as_ref()?.get(labels::HOME_NAMESPACE)?.clone();
        let name = secret.metadata.annotations.as_ref()?.get(annotations::HOME_NAME)?.clone();
        let terminating = secret.metadata.deletion_timestamp.is_some();
        let reference = Reference { secret: true, namespace, name };
        let problem = secret.metadata.annotations.as_ref()?.get(annotations::NOT_REFLECTED).map(|said| cut(said));
        Some(Self { reference, fingerprint: fingerprint_of_secret(&secret), terminating, problem })
    }

    /// Whether a change concerns more than what the provider says of it.
    pub fn differs_beyond_problem(&self, other: &Self) -> bool {
        (&self.reference, self.fingerprint, self.terminating) != (&other.reference, other.fingerprint, other.terminating)
    }
}

/// The object inside the record of a `ConfigMap`; nothing for one that does not travel.
pub fn object_of(map: &ConfigMap) -> Value {
    let own = |key: &str| key.split_once('/').is_some_and(|(domain, _)| domain.ends_with(labels::DOMAIN));
    let kept = |entries: &Option<BTreeMap<String, String>>| {
        let mut entries = entries.clone().unwrap_or_default();
        entries.retain(|key, _| !own(key) && key != "kubectl.kubernetes.io/last-applied-configuration");
        entries
    };
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": map.metadata.name,
            "labels": kept(&map.metadata.labels),
            "annotations": kept(&map.metadata.annotations),
        },
        "data": map.data.clone().unwrap_or_default(),
    });
    if let Some(binary) = map.binary_data.as_ref().filter(|binary| !binary.is_empty()) {
        object["binaryData"] = json!(binary);
    }
    object
}

/// The record of a `ConfigMap`.
pub fn record_of_config_map(reference: &Reference, map: &ConfigMap) -> ReflectedObject {
    ReflectedObject {
        metadata: metadata(reference),
        spec: ReflectedObjectSpec { namespace: reference.namespace.clone(), object: object_of(map) },
        status: None,
    }
}

/// The record of a Secret: a Secret, so that encryption at rest holds for it; nothing for one that does not travel.
pub fn record_of_secret(reference: &Reference, secret: &Secret) -> Option<Secret> {
    if secret.type_.as_deref().is_some_and(|kind| NEVER.contains(&kind)) {
        return None;
    }
    Some(Secret {
        metadata: metadata(reference),
        type_: Some(secret.type_.clone().unwrap_or_else(|| "Opaque".into())),
        data: secret.data.clone(),
        ..Secret::default()
    })
}

fn metadata(reference: &Reference) -> ObjectMeta {
    let text = str::to_owned;
    ObjectMeta {
        name: Some(reference.record()),
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

/// Alike for objects that need no update of each other.
pub fn fingerprint_of_object(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    // The order of keys may change on the way through the API server.
    sorted(object).hash(&mut hasher);
    hasher.finish()
}

fn sorted(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let ordered: BTreeMap<&String, String> = entries.iter().map(|(key, value)| (key, sorted(value))).collect();
            format!("{ordered:?}")
        }
        other => other.to_string(),
    }
}

/// Alike for Secrets that need no update of each other.
pub fn fingerprint_of_secret(secret: &Secret) -> u64 {
    let mut hasher = DefaultHasher::new();
    secret.type_.as_deref().unwrap_or("Opaque").hash(&mut hasher);
    for (key, ByteString(value)) in secret.data.iter().flatten() {
        (key, value).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use liqo_kit::Key;

    use super::*;

    fn reference(secret: bool, name: &str) -> Reference {
        Reference { secret, namespace: "demo".into(), name: name.into() }
    }

    fn config_map(value: Value) -> ConfigMap {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn records_of_different_objects_have_different_names() {
        let names: std::collections::BTreeSet<String> = [reference(false, "a"), reference(true, "a"), reference(false, "b")]
            .iter()
            .chain([&Reference { secret: false, namespace: "other".into(), name: "a".into() }])
            .map(Reference::record)
            .collect();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|name| name.len() <= 63));
    }

    #[test]
    fn a_pod_names_what_it_reads_and_only_in_its_namespace() {
        let pod = json!({"metadata": {"namespace": "demo", "name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "m"}}]}]}});
        let pod = HomePod::of(serde_json::from_value(pod).unwrap(), &Key::new("p", "default")).unwrap();
        assert_eq!(Reference::all(&pod), [reference(false, "m"), reference(true, "s")]);
        assert!(reference(true, "s").is_named_by(&pod));
        assert!(!reference(false, "s").is_named_by(&pod));
        assert!(!Reference { namespace: "other".into(), ..reference(true, "s") }.is_named_by(&pod));
    }

    #[test]
    fn a_record_read_back_is_like_the_one_written() {
        let map = config_map(json!({"metadata": {"name": "m", "labels": {"z": "1", "a": "2"}}, "data": {"y": "1", "b": "2"},
            "binaryData": {"x": "AAEC"}}));
        let record = record_of_config_map(&reference(false, "m"), &map);
        let read = Twin::of_object(serde_json::from_value(serde_json::to_value(&record).unwrap()).unwrap()).unwrap();
        assert_eq!(read.reference, reference(false, "m"));
        assert_eq!(read.fingerprint, fingerprint_of_object(&object_of(&map)));
        assert_eq!(record.spec.object["binaryData"]["x"], "AAEC");
    }

    #[test]
    fn order_does_not_matter_and_content_does() {
        let one = json!({"data": {"a": "1", "b": "2"}});
        assert_eq!(fingerprint_of_object(&one), fingerprint_of_object(&json!({"data": {"b": "2", "a": "1"}})));
        assert_ne!(fingerprint_of_object(&one), fingerprint_of_object(&json!({"data": {"a": "1", "b": "3"}})));
        assert_ne!(fingerprint_of_object(&one), fingerprint_of_object(&json!({"data": {"a": "1"}})));
    }

    #[test]
    fn what_is_liqos_own_and_what_kubectl_remembers_stay_at_home() {
        let map = config_map(json!({"metadata": {"name": "m", "uid": "u", "labels": {"app": "x", "liqo.io/managed": "true"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "immutable": true}));
        assert_eq!(
            object_of(&map),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"app": "x"}, "annotations": {}}, "data": {}})
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
        let record = record_of_secret(&reference(true, "s"), &secret).unwrap();
        assert_eq!((record.type_.as_deref(), record.immutable), (Some("kubernetes.io/tls"), None));
        let twin = Twin::of_secret(record).unwrap();
        assert_eq!(
            twin,
            Twin {
                reference: reference(true, "s"),
                fingerprint: fingerprint_of_secret(&secret),
                terminating: false,
                problem: None
            }
        );
    }

    #[test]
    fn what_the_provider_says_of_a_record_is_read_wherever_it_stands() {
        let (name, said) = ("NameTaken", "a ConfigMap m that does not come from home exists");
        let map = |reason: &str| {
            let mut record = record_of_config_map(&reference(false, "m"), &config_map(json!({"metadata": {"name": "m"}})));
            record.status = serde_json::from_value(json!({"reason": reason, "message": said})).unwrap();
            Twin::of_object(record).unwrap().problem
        };
        assert_eq!(map(name), Some(format!("{name}: {said}")));
        assert_eq!(map("NamespaceNotReady"), None);
        let mut record = record_of_secret(&reference(true, "s"), &Secret::default()).unwrap();
        assert_eq!(Twin::of_secret(record.clone()).unwrap().problem, None);
        record.metadata.annotations.as_mut().unwrap().insert(annotations::NOT_REFLECTED.into(), "Invalid: too long".into());
        assert_eq!(Twin::of_secret(record).unwrap().problem.as_deref(), Some("Invalid: too long"));
    }

    #[test]
    fn a_provider_that_says_much_of_a_record_is_not_remembered_in_full() {
        let much = "x".repeat(256 * 1024);
        let mut map = record_of_config_map(&reference(false, "m"), &config_map(json!({"metadata": {"name": "m"}})));
        map.status = serde_json::from_value(json!({"reason": "Invalid", "message": much})).unwrap();
        let mut secret = record_of_secret(&reference(true, "s"), &Secret::default()).unwrap();
        secret.metadata.annotations.as_mut().unwrap().insert(annotations::NOT_REFLECTED.into(), much);
        for twin in [Twin::of_object(map), Twin::of_secret(secret)] {
            assert_eq!(twin.unwrap().problem.map(|problem| problem.len()), Some(4096));
        }
    }

    #[test]
    fn what_a_provider_says_of_a_record_changes_nothing_of_what_it_holds() {
        let said = |problem: Option<&str>, fingerprint| Twin {
            reference: reference(false, "m"),
            fingerprint,
            terminating: false,
            problem: problem.map(str::to_owned),
        };
        assert!(!said(Some("Invalid: a"), 1).differs_beyond_problem(&said(Some("Invalid: b"), 1)));
        assert!(!said(None, 1).differs_beyond_problem(&said(Some("Invalid: b"), 1)));
        assert!(said(None, 1).differs_beyond_problem(&said(None, 2)));
        assert!(said(None, 1).differs_beyond_problem(&Twin { terminating: true, ..said(None, 1) }));
    }

    #[test]
    fn tokens_of_the_home_cluster_never_travel() {
        for kind in NEVER {
            let secret = Secret { type_: Some(kind.into()), ..Secret::default() };
            assert_eq!(record_of_secret(&reference(true, "s"), &secret), None);
        }
    }

    #[test]
    fn a_secret_of_somebody_else_is_no_record() {
        assert_eq!(Twin::of_secret(Secret::default()), None);
    }
}
