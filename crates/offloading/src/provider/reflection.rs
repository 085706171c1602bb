//! Which twins of a consumer's objects are to be made, changed and deleted in one mapped namespace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt as _, api::DynamicObject};
use liqo_api::{Exposure, ReflectedObject, annotations, finalizers, labels, short_hash};
use liqo_kit::Key;
use serde_json::{Map, Value, json};

use super::{
    dns_names,
    exposed::Leave,
    finalizer,
    told::sorted,
    usage::Held,
    walls::{self, Walls},
};
use crate::decide::{exposure, ingresses, kind::Kind, network_policies::NetworkPolicy, services, text};

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

/// What is kept of a Service, slice or `NetworkPolicy` is at most so long, in bytes of JSON: what Kubernetes' own controllers make of a hundred pods
/// has room twice. All that one consumer may have takes 80 MiB at most.
const LONGEST: usize = 16 * 1024;

/// So many `NetworkPolicy`s of one namespace are looked at, each time that something changes.
const MOST_POLICIES: usize = 200;

/// So many addresses are named in one message.
const NAMED_ADDRESSES: usize = 10;

/// Label that says who keeps an `EndpointSlice`, so that nobody else does.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Why an object has no twin, or one that is not as it is at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One word.
    pub reason: String,
    /// What to do.
    pub message: String,
}

impl Problem {
    /// With this reason and message.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// The name is taken.
    pub fn name_taken(kind: Kind, name: &str) -> Self {
        let article = if matches!(kind, Kind::EndpointSlice | Kind::Ingress) { "an" } else { "a" };
        Self::new(
            "NameTaken",
            format!("{article} {kind:?} {name} that does not come from home exists at the provider; it is left alone"),
        )
    }

    /// The provider's policy does not allow the kind.
    pub fn not_allowed(kind: Kind, policy: &str) -> Self {
        Self::new("KindNotAllowed", format!("the provider's PeeringPolicy {policy} lets no {kind:?} be reflected"))
    }

    /// These addresses are none that pods of this consumer can have here.
    fn addresses(refused: &BTreeSet<IpAddr>) -> Self {
        let named: Vec<String> = refused.iter().take(NAMED_ADDRESSES).map(ToString::to_string).collect();
        let more = if refused.len() > NAMED_ADDRESSES { ", and others" } else { "" };
        let message =
            "left out are endpoints that are neither this consumer's pods here nor in its prefixes as the provider sees them";
        Self::new("AddressRefused", format!("{message}: {}{more}", named.join(", ")))
    }

    /// These ranges are none that pods of this consumer may meet here.
    fn ranges(refused: &BTreeSet<IpNet>) -> Self {
        let named: Vec<String> = refused.iter().take(NAMED_ADDRESSES).map(ToString::to_string).collect();
        let more = if refused.len() > NAMED_ADDRESSES { ", and others" } else { "" };
        let message =
            "left out are ranges that are neither on the internet nor in this consumer's prefixes as the provider sees them";
        Self::new("AddressRefused", format!("{message}: {}{more}", named.join(", ")))
    }

    /// The Service that a slice belongs to does not exist here because of the consumer.
    fn no_service(service: &str) -> Self {
        Self::new(
            "NoService",
            format!("there is no Service {service:.253} of home's at the provider that the endpoints belong to"),
        )
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
    /// Of what belongs to its namespace: what of it is known, as text.
    pub content: Option<Box<str>>,
    /// Why there can be none, whatever exists.
    pub problem: Option<Problem>,
    /// Why the twin is not as it is at home.
    pub partial: Option<Problem>,
    /// What its status says.
    pub told: Option<Problem>,
    /// How the world reaches its twin, as its status says.
    pub shown: Option<Exposure>,
    /// Since when it is there.
    pub since: Timestamp,
    /// Whether it is being deleted.
    pub deleted: bool,
    /// Where among its finalizers the one stands by which it stays until its twin is gone.
    pub held: Option<usize>,
}

impl Source {
    /// What is kept of a reflected object.
    pub fn of_object(object: ReflectedObject) -> Self {
        let content = &object.spec.object;
        let name = text(content, "/metadata/name").unwrap_or_default().to_owned();
        let known = Kind::of(content).filter(|kind| *kind != Kind::Secret);
        // What is none of these has no twin, so it does not matter for which it is taken.
        let kind = known.unwrap_or(Kind::ConfigMap);
        let kept = kind.is_of_namespace().then(|| Value::from(held(kind, content)).to_string());
        let problem = if known.is_none() {
            let said = text(content, "/kind").unwrap_or_default();
            Some(Problem::new("KindNotAllowed", format!("objects of kind {said:.60} are not reflected to this cluster")))
        } else if kept.as_ref().is_some_and(|kept| kept.len() > LONGEST) {
            Some(Problem::new("Invalid", format!("what travels of a {kind:?} is at most {LONGEST} bytes long")))
        } else if kind == Kind::ConfigMap && name == ROOT_CA {
            Some(Problem::new("NameTaken", format!("{ROOT_CA} is the cluster's own in every namespace")))
        } else if kind == Kind::NetworkPolicy && walls::is_own(&name) {
            Some(Problem::new(
                "NameTaken",
                "NetworkPolicies whose names begin with liqo are the provider's own; its pods are closed",
            ))
        } else if !dns_names::is_subdomain(&name) {
            Some(Problem::new("Invalid", "the object has no valid name"))
        } else {
            None
        };
        let told = object.status.as_ref().and_then(|status| {
            Some(Problem { reason: status.reason.clone()?, message: status.message.clone().unwrap_or_default() })
        });
        let unknown = kind == Kind::NetworkPolicy && NetworkPolicy::of(content.get("spec").unwrap_or(&Value::Null)).narrowed;
        let partial =
            unknown.then(|| Problem::new("Invalid", "what is not known of the NetworkPolicy was left out: it opens nothing"));
        let fingerprint = fingerprint(kind, content);
        let key = Key::of(&object);
        let shown = object.status.as_ref().and_then(|status| status.exposure.clone());
        Self {
            shown,
            since: object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            key,
            uid: object.metadata.uid.unwrap_or_default(),
            home: object.spec.namespace,
            kind,
            name,
            fingerprint,
            content: kept.filter(|_| problem.is_none()).map(Into::into),
            problem,
            partial,
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
        Some(Self {
            key,
            uid,
            home,
            kind: Kind::Secret,
            name,
            fingerprint,
            content: None,
            problem,
            partial: None,
            told,
            shown: None,
            since: Timestamp::UNIX_EPOCH,
            deleted,
            held: None,
        })
    }

    /// What its twin is to hold, where that is kept.
    pub fn content(&self) -> Option<Value> {
        serde_json::from_str(self.content.as_deref()?).ok()
    }

    /// The `NetworkPolicy` that it is, as far as that is known: else one that closes everything.
    pub fn policy(&self) -> NetworkPolicy {
        self.content().map_or_else(NetworkPolicy::closed, |content| NetworkPolicy::of(&content["spec"]))
    }

    /// A `NetworkPolicy` within these limits.
    fn walled(mut self, walls: &Walls) -> Self {
        if self.problem.is_some() {
            return self;
        }
        let Some(bounded) = walls.bound(&self.policy()) else {
            self.problem = Some(Problem::new("Invalid", "the NetworkPolicy is too long; its pods are closed"));
            return self;
        };
        self.hold(&json!({ "spec": bounded.policy.to_json() }));
        self.partial = self.partial.or((!bounded.refused.is_empty()).then(|| Problem::ranges(&bounded.refused)));
        self
    }

    /// The class that it asks for, empty where it asks for none; nothing of what nobody outside is to reach.
    pub fn asked_class(&self) -> Option<String> {
        exposure::class(self.kind, &self.content()?).map(str::to_owned)
    }

    /// Whether it asks for a load balancer.
    pub fn asks_for_balancer(&self) -> bool {
        // Most do not, and need not be read for that.
        let may = self.kind == Kind::Service
            && !self.deleted
            && self.content.as_ref().is_some_and(|text| text.contains("LoadBalancer"));
        may && self.asked_class().is_some()
    }

    /// A Service or Ingress, as far as it may be shown to the world, with this content and what is to be said of it.
    pub fn exposed(mut self, content: &Value, partial: Option<Problem>) -> Self {
        self.hold(&Value::from(held(self.kind, content)));
        self.partial = partial;
        self
    }

    /// A Service or Ingress as far as the provider's policy gives leave.
    pub fn within(self, leave: &Leave, services: &BTreeSet<String>) -> Self {
        match (self.kind, self.content().filter(|_| self.problem.is_none())) {
            (Kind::Service, Some(content)) => leave.service(self, content),
            (Kind::Ingress, Some(content)) => leave.ingress(self, &content, services),
            _ => self,
        }
    }

    /// A Service in a cluster that has these families for Services.
    pub fn of_families(mut self, families: &[&'static str]) -> Self {
        if let Some(content) = self.content().filter(|_| self.kind == Kind::Service) {
            self.hold(&services::of_families(content, families));
        }
        self
    }

    /// Has this content from now on.
    fn hold(&mut self, content: &Value) {
        self.fingerprint = fingerprint(self.kind, content);
        self.content = Some(content.to_string().into());
    }

    /// A slice, as far as it may have a twin: for a Service that is one of home's, with endpoints that are `allowed`.
    pub fn bounded(mut self, services: &BTreeSet<String>, allowed: impl Fn(IpAddr) -> bool) -> Self {
        let Some(content) = self.content().filter(|_| self.kind == Kind::EndpointSlice) else { return self };
        let service = services::service_of(&content).unwrap_or_default();
        if !services.contains(service) {
            self.problem = Some(Problem::no_service(service));
            return self;
        }
        let mut refused = BTreeSet::new();
        let bounded = services::endpoint_slice(&content, |address| {
            let fits = allowed(address);
            if !fits {
                refused.insert(address);
            }
            fits.then_some(address)
        });
        if !refused.is_empty() {
            self.hold(&bounded.into());
            self.partial = Some(Problem::addresses(&refused));
        }
        self
    }
}

/// The `NetworkPolicy`s of a namespace within these limits. Those that are too many close all pods.
pub fn walled(mut sources: Vec<Source>, walls: &Walls) -> Vec<Source> {
    sources.sort_by(|one, other| one.key.cmp(&other.key));
    let too_many = || {
        Problem::new("Invalid", format!("a namespace has at most {MOST_POLICIES} NetworkPolicies here; all its pods are closed"))
    };
    let walled = sources.into_iter().enumerate().map(|(number, source)| match number {
        ..MOST_POLICIES => source.walled(walls),
        _ => Source { problem: Some(too_many()), content: None, ..source },
    });
    walled.collect()
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
    /// What of it never changes, as [`type_of`] says.
    pub type_: String,
    /// The family of the first address of a Service. It never changes either.
    pub family: Option<&'static str>,
    /// Whether what it holds may not change.
    pub immutable: bool,
    /// How the world reaches it.
    pub exposure: Option<Exposure>,
    /// Since when it is there.
    pub since: Timestamp,
    /// Whether it is being deleted.
    pub deleted: bool,
}

impl Twin {
    /// What is kept of this object.
    pub fn of(kind: Kind, object: DynamicObject) -> Option<Self> {
        let (name, uid) = (object.name_any(), object.uid()?);
        let deleted = object.metadata.deletion_timestamp.is_some();
        let since = object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let (mut object, exposure) = exposure::as_made(kind, serde_json::to_value(object).ok()?);
        if kind == Kind::Ingress {
            // What controllers here write beside is theirs.
            let made = made_annotations(&object);
            if let Some(all) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
                all.retain(|key, _| made.contains(key));
            }
        }
        let immutable = object.get("immutable") == Some(&Value::Bool(true));
        // What somebody here put into it that never travels is taken out again.
        let mut holds = held(kind, &object);
        if kind == Kind::Service {
            holds.extend(services::foreign(&object));
        }
        let (fingerprint, type_) = (fingerprint_of(holds), type_of(kind, &object).to_owned());
        let family = services::first_family(&object).filter(|_| kind == Kind::Service);
        Some(Self { kind, name, uid, fingerprint, type_, family, immutable, exposure, since, deleted })
    }

    /// Whether it cannot become this object, but must be made anew. Whether a class can change depends on who fills it in.
    pub fn must_be_remade_for(&self, wanted: &Value) -> bool {
        let class = exposure::class(self.kind, wanted);
        let other_class = self.exposure.as_ref().zip(class).is_some_and(|(exposure, class)| {
            let are_named = !exposure.class.is_empty() && !class.is_empty();
            exposure.class != class && !(self.kind == Kind::Ingress && are_named)
        });
        let other_family = self.family.zip(services::first_family(wanted)).is_some_and(|(family, wanted)| family != wanted);
        self.immutable || type_of(self.kind, wanted) != self.type_ || other_class || other_family
    }
}

/// The annotations of a twin that it was made with.
fn made_annotations(twin: &Value) -> BTreeSet<String> {
    let said = twin.pointer("/metadata/annotations").and_then(|all| all.get(annotations::TRAVELLED)?.as_str());
    said.and_then(|said| serde_json::from_str(said).ok()).unwrap_or_default()
}

/// The twin to write in place of one that stands: controllers here keep what they wrote beside what travelled, their finalizers above
/// all, by which they take down what they made for it.
pub fn in_place_of(standing: &Value, mut wanted: Value) -> Value {
    let made = made_annotations(standing);
    let old = standing.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    let theirs = old.filter(|(key, _)| !made.contains(*key) && !liqo_api::is_own(key));
    let mut all: Map<String, Value> = theirs.map(|(key, value)| (key.clone(), value.clone())).collect();
    let ours = wanted.pointer("/metadata/annotations").and_then(Value::as_object).cloned();
    all.extend(ours.unwrap_or_default());
    for field in ["finalizers", "resourceVersion", "uid"] {
        wanted["metadata"][field] = standing["metadata"][field].clone();
    }
    wanted["metadata"]["annotations"] = all.into();
    // So does the address that was given to a load balancer.
    let address = standing.pointer("/spec/loadBalancerIP");
    if let Some(address) = address.filter(|_| text(&wanted, "/spec/type") == Some("LoadBalancer")) {
        wanted["spec"]["loadBalancerIP"] = address.clone();
    }
    // The default that the cluster filled in stays.
    if let Some(kind) = Kind::of(&wanted)
        && exposure::class(kind, &wanted) == Some("")
        && let Some(class) = exposure::class(kind, standing).map(str::to_owned)
    {
        exposure::set_class(kind, &mut wanted, &class);
    }
    wanted
}

/// The part of an object that can only be another one's: the type of a Secret, whether a Service is headless, the family of a
/// slice.
fn type_of(kind: Kind, object: &Value) -> &str {
    match kind {
        Kind::ConfigMap | Kind::NetworkPolicy | Kind::Ingress => "",
        Kind::Secret => text(object, "/type").unwrap_or_default(),
        Kind::Service => text(object, "/spec/clusterIP").filter(|address| *address == "None").unwrap_or_default(),
        Kind::EndpointSlice => text(object, "/addressType").unwrap_or_default(),
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
    /// Say how the world reaches its twin.
    Show(Source, Option<Exposure>),
    /// The twin is gone: let the source go, by the finalizer at this place in its list.
    Release(Source, usize),
}

/// What is to be done in one mapped namespace, deletions first. `complete` names the kinds of which all sources are known:
/// nothing of another kind is deleted. A twin that is being deleted already is waited for. Twins of kinds that `held` does not allow (any more) are not made; those that exist
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
                tell(source, source.partial.clone());
            }
        }
    }
    for source in sources.iter().copied().filter(|source| !source.deleted) {
        let slot = (source.kind, source.name.as_str());
        let counts = wanted.get(&slot).is_some_and(|first| first.key == source.key);
        // Also of one that is not yet, or may not be, what it should be: the world reaches it as it is.
        let twin = existing.get(&slot).filter(|twin| counts && !twin.deleted);
        let exposure = twin.and_then(|twin| twin.exposure.clone());
        if source.shown != exposure {
            steps.push(Step::Show(source.clone(), exposure));
        }
    }
    let mut all: Vec<Step> = twins
        .iter()
        .filter(|twin| !twin.deleted && complete.contains(&twin.kind) && !wanted.contains_key(&(twin.kind, twin.name.as_str())))
        .map(|twin| Step::Delete(twin.clone()))
        .collect();
    for (slot, source) in wanted {
        match existing.get(&slot) {
            None => all.push(Step::Create(source.clone())),
            Some(twin) if twin.fingerprint != source.fingerprint && !twin.deleted => {
                all.push(Step::Change(source.clone(), (*twin).clone()));
            }
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
    twin.insert("apiVersion".into(), kind.api_version().into());
    twin.insert("kind".into(), kind.name().into());
    // Those that say which Service a slice belongs to.
    let mut metadata = twin.remove("metadata").unwrap_or_default();
    let mut all = metadata.get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
    for (label, value) in [(labels::MANAGED, "true"), (labels::REFLECTED, "true"), (labels::HOME_NAMESPACE, home)] {
        all.insert(label.into(), value.into());
    }
    if kind == Kind::EndpointSlice {
        all.insert(MANAGED_BY.into(), "liqo".into());
    }
    let class = exposure::class(kind, content).map(str::to_owned);
    twin.insert("metadata".into(), json!({ "name": name, "namespace": namespace, "labels": all }));
    let mut twin = Value::from(twin);
    if let Some(class) = class {
        let mut said = metadata.get_mut("annotations").and_then(Value::as_object_mut).map(std::mem::take).unwrap_or_default();
        let made: BTreeSet<&String> = said.keys().collect();
        let made = (!made.is_empty()).then(|| json!(made).to_string());
        said.extend(made.map(|made| (annotations::TRAVELLED.to_owned(), made.into())));
        said.insert(annotations::REMOTE_CLASS.into(), class.into());
        twin["metadata"]["annotations"] = said.into();
    }
    twin
}

/// What an object holds, apart from its metadata but for what says which Service a slice belongs to and the annotations of an Ingress;
/// what says nothing is left out.
fn held(kind: Kind, content: &Value) -> Map<String, Value> {
    let fields: &[&str] = match kind {
        Kind::ConfigMap => &["data", "binaryData", "immutable"],
        Kind::Secret => &["type", "data", "immutable"],
        Kind::Service => return services::service(content),
        Kind::EndpointSlice => return services::endpoint_slice(content, Some),
        Kind::Ingress => return ingresses::ingress(content),
        Kind::NetworkPolicy => {
            let spec = content.get("spec").unwrap_or(&Value::Null);
            return Map::from_iter([("spec".to_owned(), NetworkPolicy::of(spec).to_json())]);
        }
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
    fingerprint_of(held(kind, content))
}

fn fingerprint_of(held: Map<String, Value>) -> String {
    short_hash(&sorted(&held.into()).to_string())
}

#[cfg(test)]
pub mod tests;
