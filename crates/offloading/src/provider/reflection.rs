//! Which twins of a consumer's `ConfigMap`s and Secrets are to be made, changed and deleted in one mapped namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use liqo_api::{ReflectedKind, ReflectedObject, annotations, finalizers, labels, short_hash};
use liqo_kit::Key;
use serde_json::{Map, Value, json};

use super::{dns_names, finalizer, told::sorted, usage::Held};

/// Types of Secrets that may be reflected. Never the credentials of a `ServiceAccount`.
const SECRET_TYPES: [&str; 6] = [
    "Opaque",
    "kubernetes.io/basic-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/tls",
];

/// The `ConfigMap` that every cluster's controller manager writes into every namespace, and defends.
const ROOT_CA: &str = "kube-root-ca.crt";

/// What a twin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A `ConfigMap`.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl From<ReflectedKind> for Kind {
    fn from(kind: ReflectedKind) -> Self {
        match kind {
            ReflectedKind::ConfigMap => Self::ConfigMap,
            ReflectedKind::Secret => Self::Secret,
        }
    }
}

/// Why an object has no twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One word.
    pub reason: String,
    /// What to do.
    pub message: String,
}

impl Problem {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// The name is taken.
    pub fn name_taken(kind: Kind, name: &str) -> Self {
        Self::new("NameTaken", format!("a {kind:?} {name} that does not come from home exists at the provider; it is left alone"))
    }

    /// The provider's policy does not allow the kind.
    fn not_allowed(kind: Kind, policy: &str) -> Self {
        Self::new("KindNotAllowed", format!("the provider's PeeringPolicy {policy} lets no {kind:?} be reflected"))
    }

    /// As the annotation of a Secret says it.
    fn of_annotation(text: &str) -> Self {
        let (reason, message) = text.split_once(": ").unwrap_or((text, ""));
        Self::new(reason, message)
    }

    /// As it stands in the annotation of a Secret.
    pub fn to_annotation(&self) -> String {
        format!("{}: {}", self.reason, self.message)
    }

    /// The API server of the provider does not take it.
    pub fn invalid(words: &str) -> Self {
        Self::new("Invalid", words.chars().take(1000).collect::<String>())
    }
}

/// What is kept of an object that is to have a twin.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Where it is: in a tenant namespace.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// The namespace at home.
    pub home: String,
    /// What the twin is.
    pub kind: Kind,
    /// The twin's name.
    pub name: String,
    /// What the twin holds.
    pub fingerprint: String,
    /// Why there can be none, whatever exists.
    pub problem: Option<Problem>,
    /// What its status says.
    pub told: Option<Problem>,
    /// Whether it is being deleted.
    pub deleted: bool,
    /// Where among its finalizers the one stands by which it stays until its twin is gone.
    pub held: Option<usize>,
}

impl Source {
    /// What is kept of a reflected object.
    pub fn of_object(object: ReflectedObject) -> Self {
        let content = &object.spec.object;
        let text = |pointer: &str| content.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/kind"), text("/metadata/name").to_owned());
        let problem = if (text("/apiVersion"), kind) != ("v1", "ConfigMap") {
            Some(Problem::new("KindNotAllowed", format!("objects of kind {kind:.60} are not reflected to this cluster")))
        } else if name == ROOT_CA {
            Some(Problem::new("NameTaken", format!("{ROOT_CA} is the cluster's own in every namespace")))
        } else if !dns_names::is_subdomain(&name) {
            Some(Problem::new("Invalid", "the object has no valid name"))
        } else {
            None
        };
        let told = object.status.as_ref().and_then(|status| {
            Some(Problem { reason: status.reason.clone()?, message: status.message.clone().unwrap_or_default() })
        });
        let fingerprint = fingerprint(Kind::ConfigMap, content);
        let key = Key::of(&object);
        Self {
            key,
            uid: object.metadata.uid.unwrap_or_default(),
            home: object.spec.namespace,
            kind: Kind::ConfigMap,
            name,
            fingerprint,
            problem,
            told,
            deleted: object.metadata.deletion_timestamp.is_some(),
            held: finalizer::position(object.metadata.finalizers.as_ref(), finalizers::REFLECTED_OBJECT),
        }
    }

    /// What is kept of a Secret in a tenant namespace; nothing when it does not say what it stands for.
    pub fn of_secret(secret: Secret) -> Option<Self> {
        let key = Key::of(&secret);
        let home = secret.labels().get(labels::HOME_NAMESPACE)?.clone();
        let name = secret.annotations().get(annotations::HOME_NAME)?.clone();
        let type_ = secret.type_.as_deref().unwrap_or("Opaque");
        let problem = if !SECRET_TYPES.contains(&type_) {
            Some(Problem::new("KindNotAllowed", format!("Secrets of type {type_:.100} are not reflected to this cluster")))
        } else if !dns_names::is_subdomain(&name) {
            Some(Problem::new("Invalid", "the Secret has no valid name"))
        } else {
            None
        };
        let told = secret.annotations().get(annotations::NOT_REFLECTED).map(|text| Problem::of_annotation(text));
        let (uid, deleted) = (secret.metadata.uid.clone().unwrap_or_default(), secret.metadata.deletion_timestamp.is_some());
        let fingerprint = fingerprint(Kind::Secret, &serde_json::to_value(secret).ok()?);
        Some(Self { key, uid, home, kind: Kind::Secret, name, fingerprint, problem, told, deleted, held: None })
    }

    /// The key under which the twins of its home namespace are looked at.
    pub fn twins_key(&self) -> Key {
        Key::new(self.key.namespace.clone(), self.home.clone())
    }
}

/// What is kept of a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// What it holds.
    pub fingerprint: String,
    /// The type of a Secret, which never changes.
    pub type_: String,
    /// Whether what it holds may not change.
    pub immutable: bool,
}

impl Twin {
    /// What is kept of this `ConfigMap`.
    pub fn of_config_map(object: ConfigMap) -> Option<Self> {
        let (name, uid, immutable) = (object.name_any(), object.uid()?, object.immutable == Some(true));
        let fingerprint = fingerprint(Kind::ConfigMap, &serde_json::to_value(object).ok()?);
        Some(Self { kind: Kind::ConfigMap, name, uid, fingerprint, type_: String::new(), immutable })
    }

    /// What is kept of this Secret.
    pub fn of_secret(object: Secret) -> Option<Self> {
        let (name, uid, immutable) = (object.name_any(), object.uid()?, object.immutable == Some(true));
        let type_ = object.type_.clone().unwrap_or_default();
        let fingerprint = fingerprint(Kind::Secret, &serde_json::to_value(object).ok()?);
        Some(Self { kind: Kind::Secret, name, uid, fingerprint, type_, immutable })
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete this twin.
    Delete(Twin),
    /// Make the twin of this source.
    Create(Source),
    /// Change the twin of this source, or make it anew where it may not be changed.
    Change(Source, Twin),
    /// Say why the source has no twin, or that it has one.
    Tell(Source, Option<Problem>),
    /// The twin is gone: let the source go, by the finalizer at this place in its list.
    Release(Source, usize),
}

/// What is to be done in one mapped namespace, deletions first. `complete` names the kinds of which all sources are known:
/// nothing of another kind is deleted. Twins of kinds that `held` does not allow (any more) are not made; those that exist
/// are kept current, because pods may run that read them.
pub fn plan(sources: &[Source], twins: &[Twin], complete: &BTreeSet<Kind>, held: Option<&Held>) -> Vec<Step> {
    // The first source of a name is the one that counts.
    let mut sources: Vec<&Source> = sources.iter().collect();
    sources.sort_by(|one, other| one.key.cmp(&other.key));
    let existing: HashMap<(Kind, &str), &Twin> = twins.iter().map(|twin| ((twin.kind, twin.name.as_str()), twin)).collect();
    let mut wanted: BTreeMap<(Kind, &str), &Source> = BTreeMap::new();
    let mut steps = Vec::new();
    let mut tell = |source: &Source, problem: Option<Problem>| {
        if source.told != problem {
            steps.push(Step::Tell(source.clone(), problem));
        }
    };
    for source in sources.iter().copied().filter(|source| !source.deleted) {
        let slot = (source.kind, source.name.as_str());
        if let Some(problem) = &source.problem {
            tell(source, Some(problem.clone()));
        } else if let Some(first) = wanted.get(&slot) {
            let message = format!("{} stands for the same object", first.key.name);
            tell(source, Some(Problem::new("NameTaken", message)));
        } else if let Some(held) = held.filter(|held| !held.reflects(source.kind) && !existing.contains_key(&slot)) {
            tell(source, Some(Problem::not_allowed(source.kind, &held.policy)));
        } else {
            wanted.insert(slot, source);
            if existing.get(&slot).is_some_and(|twin| twin.fingerprint == source.fingerprint) {
                tell(source, None);
            }
        }
    }
    let mut all: Vec<Step> = twins
        .iter()
        .filter(|twin| complete.contains(&twin.kind) && !wanted.contains_key(&(twin.kind, twin.name.as_str())))
        .map(|twin| Step::Delete(twin.clone()))
        .collect();
    for (slot, source) in wanted {
        match existing.get(&slot) {
            None => all.push(Step::Create(source.clone())),
            Some(twin) if twin.fingerprint != source.fingerprint => all.push(Step::Change(source.clone(), (*twin).clone())),
            Some(_) => {}
        }
    }
    all.extend(steps);
    all.extend(sources.iter().filter_map(|source| release(source)));
    all
}

/// What is to be said and done while the mapped namespace is not there.
pub fn plan_without_namespace(sources: &[Source], why: &str) -> Vec<Step> {
    let waiting = sources.iter().filter(|source| !source.deleted && source.kind == Kind::ConfigMap).filter_map(|source| {
        let problem = source.problem.clone().unwrap_or_else(|| Problem::new("NamespaceNotReady", why));
        (source.told.as_ref() != Some(&problem)).then(|| Step::Tell(source.clone(), Some(problem)))
    });
    waiting.chain(sources.iter().filter_map(release)).collect()
}

fn release(source: &Source) -> Option<Step> {
    Some(Step::Release(source.clone(), source.held.filter(|_| source.deleted)?))
}

/// The twin to make of this content. It has no label of the consumer's: what acts on labelled objects here is not for it.
pub fn twin(kind: Kind, content: &Value, name: &str, namespace: &str, home: &str) -> Value {
    let mut twin = held(kind, content);
    twin.insert("apiVersion".into(), "v1".into());
    twin.insert("kind".into(), format!("{kind:?}").into());
    let labels = json!({ labels::MANAGED: "true", labels::REFLECTED: "true", labels::HOME_NAMESPACE: home });
    twin.insert("metadata".into(), json!({ "name": name, "namespace": namespace, "labels": labels }));
    twin.into()
}

/// What an object holds, apart from its metadata; what says nothing is left out.
fn held(kind: Kind, content: &Value) -> Map<String, Value> {
    let fields: &[&str] = match kind {
        Kind::ConfigMap => &["data", "binaryData", "immutable"],
        Kind::Secret => &["type", "data", "immutable"],
    };
    let says_something = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    let found = fields.iter().filter_map(|&field| Some((field.to_owned(), content.get(field)?.clone())));
    found.filter(|(_, value)| says_something(value)).collect()
}

fn fingerprint(kind: Kind, content: &Value) -> String {
    short_hash(&sorted(&held(kind, content).into()).to_string())
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref as one;

    use super::{super::usage::tests::held, *};

    fn both() -> BTreeSet<Kind> {
        BTreeSet::from([Kind::ConfigMap, Kind::Secret])
    }

    fn object(object_name: &str, content: &Value, change: impl FnOnce(&mut Value)) -> Source {
        let mut object = json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
            "metadata": { "name": object_name, "namespace": "t", "uid": "o" }, "spec": { "namespace": "demo", "object": content },
        });
        change(&mut object);
        Source::of_object(serde_json::from_value(object).unwrap())
    }

    fn config(name: &str, value: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "key": value } })
    }

    fn source(name: &str, value: &str) -> Source {
        object(name, &config(name, value), |_| {})
    }

    fn existing(name: &str, value: &str) -> Twin {
        let mut content = config(name, value);
        content["metadata"]["uid"] = "twin".into();
        Twin::of_config_map(serde_json::from_value(content).unwrap()).unwrap()
    }

    fn secret(type_: &str) -> Option<Source> {
        Source::of_secret(
            serde_json::from_value(json!({
                "metadata": { "name": "s1", "namespace": "t", "uid": "s", "labels": { labels::HOME_NAMESPACE: "demo" },
                    "annotations": { annotations::HOME_NAME: "login" } },
                "type": type_, "data": { "password": "c2VjcmV0" },
            }))
            .unwrap(),
        )
    }

    #[test]
    fn a_twin_is_made_changed_and_deleted_as_its_source_is() {
        let new = source("settings", "1");
        assert_eq!(plan(one(&new), &[], &both(), None), [Step::Create(new.clone())]);
        assert_eq!(plan(one(&new), &[existing("settings", "1")], &both(), None), [], "nothing is written when nothing changed");
        let old = existing("settings", "0");
        assert_eq!(plan(one(&new), one(&old), &both(), None), [Step::Change(new, old.clone())]);
        assert_eq!(plan(&[], one(&old), &both(), None), [Step::Delete(old)]);
    }

    #[test]
    fn a_twin_is_not_deleted_before_all_sources_of_its_kind_are_known() {
        let twin = Twin { kind: Kind::Secret, ..existing("login", "x") };
        assert_eq!(plan(&[], one(&twin), &BTreeSet::from([Kind::ConfigMap]), None), []);
        assert_eq!(plan(&[], one(&twin), &both(), None), [Step::Delete(twin)]);
    }

    #[test]
    fn what_is_said_of_a_secret_stands_in_an_annotation_and_is_said_once() {
        let secret = |said: Option<&Problem>| {
            let mut secret = json!({ "metadata": { "name": "s", "namespace": "t", "uid": "u", "labels": { labels::HOME_NAMESPACE: "demo" },
                "annotations": { annotations::HOME_NAME: "login" } }, "type": "example.com/own" });
            if let Some(said) = said {
                secret["metadata"]["annotations"][annotations::NOT_REFLECTED] = said.to_annotation().into();
            }
            Source::of_secret(serde_json::from_value(secret).unwrap()).unwrap()
        };
        let [Step::Tell(_, Some(problem))] = &plan(one(&secret(None)), &[], &both(), None)[..] else { panic!("nothing is told") };
        assert_eq!(problem.reason, "KindNotAllowed");
        assert_eq!(plan(one(&secret(Some(problem))), &[], &both(), None), []);
    }

    #[test]
    fn a_source_that_is_being_deleted_goes_after_its_twin() {
        let leaving = object("settings", &config("settings", "1"), |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["finalizers"] = json!(["other", finalizers::REFLECTED_OBJECT]);
        });
        let twin = existing("settings", "1");
        assert_eq!(plan(one(&leaving), one(&twin), &both(), None), [Step::Delete(twin), Step::Release(leaving.clone(), 1)]);
        assert_eq!(plan_without_namespace(one(&leaving), "gone"), [Step::Release(leaving.clone(), 1)]);
    }

    #[test]
    fn only_what_is_allowed_is_reflected_and_the_refusal_is_told_once() {
        let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "root" } });
        let root_ca = config(ROOT_CA, "fake");
        let other_group = json!({ "apiVersion": "evil/v1", "kind": "ConfigMap", "metadata": { "name": "x" } });
        for (content, reason) in [
            (role, "KindNotAllowed"),
            (root_ca, "NameTaken"),
            (other_group, "KindNotAllowed"),
            (json!({}), "KindNotAllowed"),
            (config("../secrets/x", "1"), "Invalid"),
        ] {
            let refused = object("o", &content, |_| {});
            let problem = refused.problem.clone().unwrap();
            assert_eq!(problem.reason, reason);
            assert_eq!(plan(&[refused], &[], &both(), None).len(), 1);
            let told = object("o", &content, |object| {
                object["status"] = json!({ "reason": problem.reason, "message": problem.message });
            });
            assert_eq!(plan(&[told], &[], &both(), None), []);
        }
    }

    #[test]
    fn a_kind_that_the_policy_does_not_allow_gets_no_twin_and_one_that_exists_stays_current() {
        let held = held(json!({ "reflectedKinds": ["Secret"] }));
        let new = source("settings", "1");
        let steps = plan(one(&new), &[], &both(), Some(&held));
        assert!(
            matches!(&steps[..], [Step::Tell(_, Some(problem))] if problem.reason == "KindNotAllowed" && problem.message.contains("partners")),
            "{steps:?}"
        );
        let login = secret("Opaque").unwrap();
        assert_eq!(plan(one(&login), &[], &both(), Some(&held)), [Step::Create(login.clone())]);
        let old = existing("settings", "0");
        assert_eq!(plan(one(&new), one(&old), &both(), Some(&held)), [Step::Change(new, old)]);
    }

    #[test]
    fn credentials_of_service_accounts_are_never_reflected() {
        assert_eq!(secret("kubernetes.io/tls").unwrap().problem, None);
        for type_ in ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release.v1", ""] {
            let refused = secret(type_).unwrap();
            assert_eq!(refused.problem.clone().unwrap().reason, "KindNotAllowed", "{type_}");
            assert!(matches!(&plan(&[refused], &[], &both(), None)[..], [Step::Tell(..)]), "{type_}");
        }
    }

    #[test]
    fn a_problem_that_is_over_is_no_longer_told() {
        let recovered =
            object("settings", &config("settings", "1"), |object| object["status"] = json!({ "reason": "NameTaken" }));
        assert_eq!(plan(one(&recovered), &[existing("settings", "1")], &both(), None), [Step::Tell(recovered, None)]);
    }

    #[test]
    fn of_two_sources_of_one_twin_the_first_counts() {
        let (first, second) = (object("a", &config("settings", "1"), |_| {}), object("b", &config("settings", "2"), |_| {}));
        let steps = plan(&[second, first.clone()], &[existing("settings", "1")], &both(), None);
        assert!(
            matches!(&steps[..], [Step::Tell(source, Some(problem))] if source.key.name == "b" && problem.reason == "NameTaken")
        );
    }

    #[test]
    fn a_twin_holds_the_content_and_nothing_else_of_its_source() {
        let mut content = config("settings", "1");
        content["metadata"]["labels"] = json!({ "grafana_dashboard": "1" });
        content["metadata"]["ownerReferences"] = json!([{ "name": "x" }]);
        content["immutable"] = true.into();
        let twin = twin(Kind::ConfigMap, &content, "settings", "demo-rome-aaaaaa", "demo");
        assert_eq!(
            twin["metadata"],
            json!({ "name": "settings", "namespace": "demo-rome-aaaaaa",
            "labels": { labels::MANAGED: "true", labels::REFLECTED: "true", labels::HOME_NAMESPACE: "demo" } })
        );
        assert_eq!((&twin["data"]["key"], &twin["immutable"], &twin["kind"]), (&json!("1"), &json!(true), &json!("ConfigMap")));
    }

    #[test]
    fn absent_and_empty_content_are_the_same() {
        let empty = json!({ "data": {}, "binaryData": null, "immutable": false });
        assert_eq!(fingerprint(Kind::ConfigMap, &empty), fingerprint(Kind::ConfigMap, &json!({})));
        assert_ne!(fingerprint(Kind::ConfigMap, &json!({ "immutable": true })), fingerprint(Kind::ConfigMap, &json!({})));
    }

    #[test]
    fn without_a_namespace_the_source_says_what_it_waits_for() {
        let waiting = source("settings", "1");
        let steps = plan_without_namespace(&[waiting], "soon");
        assert!(matches!(&steps[..], [Step::Tell(_, Some(problem))] if problem.reason == "NamespaceNotReady"));
    }
}
