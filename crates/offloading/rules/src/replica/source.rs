//! What a provider keeps of each object that a consumer reflects.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use liqo_api::record_text::{self, MAX_OBJECT_LEN};
use liqo_api::{ClusterId, Exposure, Key, ReflectedObject, annotations, finalizers, labels, short_hash};
use serde_json::{Map, Value, json};

use crate::json::{items, text};
use crate::pod::local_status::cut;
use crate::pod::reported_status::sorted;
use crate::replica::isolation::{self, IsolationPolicy};
use crate::replica::kind::Kind;
use crate::replica::network_policy::NetworkPolicy;
use crate::replica::record::obstacle_of_secret;
use crate::replica::{exposure, ingress, service};
use crate::{dns_names, finalizer};

/// The `ConfigMap` that every cluster's controller manager writes into every namespace, and restores.
pub(super) const ROOT_CA: &str = "kube-root-ca.crt";

/// Maximum stored size of a Service, slice or `NetworkPolicy` in bytes of JSON: twice what Kubernetes' own controllers produce for a
/// hundred pods. All objects of one consumer together take at most 24 MiB.
const MAX_LEN: usize = 16 * 1024;

/// How many `NetworkPolicy`s of one namespace are read after each change.
pub(super) const MAX_POLICIES: usize = 200;

/// How many addresses one message names.
const NAMED_ADDRESSES: usize = 10;

/// What a Service or slice costs each node; 0 for other kinds.
fn weight(kind: Kind, content: &Value) -> usize {
    match kind {
        Kind::Service => items(content, "/spec/ports").len(),
        // A slice without ports may have an endpoint for each port of its Service.
        Kind::EndpointSlice => items(content, "/endpoints").len() * items(content, "/ports").len().max(1),
        _ => 0,
    }
}

/// Why an object has no replica, or one that differs from the object at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One CamelCase word.
    pub reason: String,
    pub message: String,
}

impl Problem {
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// An object that Liqo did not create has the name.
    pub fn name_taken(kind: Kind, name: &str) -> Self {
        let article = if matches!(kind, Kind::EndpointSlice | Kind::Ingress) { "an" } else { "a" };
        Self::new("NameTaken", format!("the provider has {article} {kind:?} {name} of another owner; Liqo does not change it"))
    }

    /// The provider's policy does not allow the kind.
    pub fn not_allowed(kind: Kind, policy: &str) -> Self {
        Self::new("KindNotAllowed", format!("the provider's PeeringPolicy {policy} does not allow {kind:?}s to be reflected"))
    }

    /// No pod of this consumer can have these addresses here.
    fn addresses(refused: &BTreeSet<IpAddr>) -> Self {
        let what = "left out: endpoints that are neither this consumer's pods here nor in its prefixes as the provider sees them";
        Self::left_out(what, refused)
    }

    /// Pods of this consumer may not connect with these ranges.
    fn ranges(refused: &BTreeSet<IpNet>) -> Self {
        let what = "left out: ranges that are neither on the internet nor in this consumer's prefixes as the provider sees them";
        Self::left_out(what, refused)
    }

    fn left_out(what: &str, refused: &BTreeSet<impl ToString>) -> Self {
        let named: Vec<String> = refused.iter().take(NAMED_ADDRESSES).map(ToString::to_string).collect();
        let more = if refused.len() > NAMED_ADDRESSES { ", and others" } else { "" };
        Self::new("AddressRefused", format!("{what}: {}{more}", named.join(", ")))
    }

    /// The consumer has no replica of the Service that a slice belongs to.
    fn no_service(service: &str) -> Self {
        Self::new("NoService", format!("the provider has no replica of Service {service:.253}, to which the endpoints belong"))
    }

    fn of_annotation(text: &str) -> Self {
        let (reason, message) = text.split_once(": ").unwrap_or((text, ""));
        Self::new(reason, message)
    }

    /// The text of a Secret's annotation.
    pub fn to_annotation(&self) -> String {
        format!("{}: {}", self.reason, self.message)
    }

    /// The provider's API server refuses the object, with this message.
    pub fn invalid(message: &str) -> Self {
        Self::new("Invalid", message.chars().take(1000).collect::<String>())
    }
}

/// What the provider keeps of an object that should have a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The `ReflectedObject` or Secret in the tenant namespace.
    pub key: Key,
    pub uid: String,
    /// The object's namespace in the consumer's cluster.
    pub home: String,
    /// The replica's kind. An object of a kind that is not reflected has none, and a [`problem`](Self::problem).
    pub kind: Option<Kind>,
    /// The replica's name.
    pub name: String,
    /// Hash of the replica's content.
    pub fingerprint: String,
    /// The replica's content as JSON text, if the kind travels with its namespace. Others are read again when they are written.
    pub content: Option<Box<str>>,
    /// Why there can be no replica.
    pub problem: Option<Problem>,
    /// Why the replica differs from the object at home.
    pub partial: Option<Problem>,
    /// The problem in the source's status, or in a Secret's annotation.
    pub reported: Option<Problem>,
    /// The exposure in the source's status.
    pub reported_exposure: Option<Exposure>,
    /// When it was created.
    pub since: Timestamp,
    /// Whether it is being deleted.
    pub deleted: bool,
    /// Position of the finalizer that keeps it until its replica is gone.
    pub finalizer: Option<usize>,
    /// Whether it is a Service of type `LoadBalancer`.
    pub is_balanced: bool,
    /// What it costs each node: the ports of a Service, the endpoints of a slice, each counted for every port. 0 for all others.
    pub weight: usize,
}

impl Source {
    /// Reduces a reflected object.
    pub fn of_object(object: ReflectedObject) -> Self {
        let (content, unreadable) = match record_text::read(&object.spec.object, MAX_OBJECT_LEN) {
            Ok(content) => (content, None),
            Err(error) => (Value::Null, Some(error)),
        };
        let content = &content;
        let name = bounded_name(text(content, "/metadata/name").unwrap_or_default());
        let kind = Kind::of(content).filter(|kind| *kind != Kind::Secret);
        let kept = kind.filter(|kind| kind.is_of_namespace()).map(|kind| Value::from(travelling_fields(kind, content)));
        let is_balanced = kept.as_ref().is_some_and(|kept| exposure::class(Kind::Service, kept).is_some());
        let kept = kept.map(|kept| kept.to_string());
        let problem = match (kind, unreadable) {
            (_, Some(error)) => Some(Problem::new("Invalid", format!("the record is refused: {error}"))),
            (None, _) => {
                let kind = text(content, "/kind").unwrap_or_default();
                Some(Problem::new("KindNotAllowed", format!("objects of kind {kind:.60} are not reflected to this cluster")))
            }
            (Some(kind), _) => problem_of(kind, &name, kept.as_deref()),
        };
        let reported = object.status.as_ref().and_then(|status| {
            Some(Problem { reason: status.reason.clone()?, message: status.message.clone().unwrap_or_default() })
        });
        let is_narrowed =
            kind == Some(Kind::NetworkPolicy) && NetworkPolicy::of(content.get("spec").unwrap_or(&Value::Null)).narrowed;
        let partial =
            is_narrowed.then(|| Problem::new("Invalid", "what is not known of the NetworkPolicy was left out: it opens nothing"));
        Self {
            key: Key::of(&object),
            fingerprint: kind.map(|kind| fingerprint(kind, content)).unwrap_or_default(),
            is_balanced: is_balanced && kind == Some(Kind::Service),
            reported_exposure: object.status.as_ref().and_then(|status| status.exposure.clone()),
            since: object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleted: object.metadata.deletion_timestamp.is_some(),
            finalizer: finalizer::position(object.metadata.finalizers.as_ref(), finalizers::REFLECTED_OBJECT),
            uid: object.metadata.uid.unwrap_or_default(),
            home: object.spec.namespace,
            kind,
            name,
            weight: kind.map_or(0, |kind| weight(kind, content)),
            content: kept.filter(|_| problem.is_none()).map(Into::into),
            problem,
            partial,
            reported,
        }
    }

    /// Reduces a Secret of a tenant namespace. `None` if it does not name its namespace and name at home.
    pub fn of_secret(secret: Secret) -> Option<Self> {
        let key = Key::of(&secret);
        let home = secret.labels().get(labels::HOME_NAMESPACE)?.clone();
        let name = bounded_name(secret.annotations().get(annotations::HOME_NAME)?);
        let problem = obstacle_of_secret(&secret).map(|(reason, message)| Problem::new(reason, message));
        let problem = problem.or_else(|| {
            let is_valid = dns_names::is_subdomain(&name);
            (!is_valid).then(|| Problem::new("Invalid", "the Secret has no valid name"))
        });
        let reported = secret.annotations().get(annotations::NOT_REFLECTED).map(|text| Problem::of_annotation(&cut(text)));
        let (uid, deleted) = (secret.metadata.uid.clone().unwrap_or_default(), secret.metadata.deletion_timestamp.is_some());
        let fingerprint = fingerprint(Kind::Secret, &serde_json::to_value(secret).ok()?);
        Some(Self {
            key,
            uid,
            home,
            kind: Some(Kind::Secret),
            name,
            fingerprint,
            content: None,
            problem,
            partial: None,
            reported,
            reported_exposure: None,
            since: Timestamp::UNIX_EPOCH,
            deleted,
            finalizer: None,
            is_balanced: false,
            weight: 0,
        })
    }

    /// The replica's content, if it is kept.
    pub fn content(&self) -> Option<Value> {
        serde_json::from_str(self.content.as_deref()?).ok()
    }

    /// The object as a `NetworkPolicy`. One that closes everything if the content is not kept.
    pub fn policy(&self) -> NetworkPolicy {
        self.content().map_or_else(NetworkPolicy::closed, |content| NetworkPolicy::of(&content["spec"]))
    }

    /// Cuts a `NetworkPolicy` down to these limits.
    pub(super) fn clamp_policy(mut self, isolation: &IsolationPolicy) -> Self {
        if self.problem.is_some() {
            return self;
        }
        let Some(clamped) = isolation.clamp(&self.policy()) else {
            self.problem = Some(Problem::new("Invalid", "the NetworkPolicy is too long; no traffic reaches or leaves its pods"));
            return self;
        };
        self.set_content(&json!({ "spec": clamped.policy.to_json() }));
        self.partial = self.partial.or((!clamped.refused.is_empty()).then(|| Problem::ranges(&clamped.refused)));
        self
    }

    /// The class that an Ingress or Service of type `LoadBalancer` asks for. Empty if it names none; `None` for all others.
    pub(crate) fn asked_class(&self) -> Option<String> {
        exposure::class(self.kind?, &self.content()?).map(str::to_owned)
    }

    /// Whether it asks for a load balancer.
    pub fn asks_for_balancer(&self) -> bool {
        self.is_balanced && !self.deleted && self.content.is_some()
    }

    /// Gives a Service or Ingress this content, and the problem to report with it.
    pub(super) fn with_content(mut self, kind: Kind, content: &Value, partial: Option<Problem>) -> Self {
        self.set_content(&Value::from(travelling_fields(kind, content)));
        self.partial = partial;
        self
    }

    /// Adapts a Service to a cluster whose Services have these address families.
    #[must_use]
    pub fn of_families(mut self, families: &[&'static str]) -> Self {
        if let Some(content) = self.content().filter(|_| self.kind == Some(Kind::Service)) {
            self.set_content(&service::of_families(content, families));
        }
        self
    }

    pub(super) fn set_content(&mut self, content: &Value) {
        self.fingerprint = self.kind.map(|kind| fingerprint(kind, content)).unwrap_or_default();
        self.content = Some(content.to_string().into());
    }

    /// Cuts a slice down to endpoints that are `allowed`. It gets a problem if its Service is not one of `services`.
    #[must_use]
    pub fn clamp_slice(mut self, services: &BTreeSet<String>, allowed: impl Fn(IpAddr) -> bool) -> Self {
        let is_wanted = self.kind == Some(Kind::EndpointSlice) && self.problem.is_none();
        let Some(content) = self.content().filter(|_| is_wanted) else { return self };
        let service = service::service_of(&content).unwrap_or_default();
        if !services.contains(service) {
            self.problem = Some(Problem::no_service(service));
            return self;
        }
        let mut refused = BTreeSet::new();
        let clamped = service::endpoint_slice(&content, |address| {
            let fits = allowed(address);
            if !fits {
                refused.insert(address);
            }
            fits.then_some(address)
        });
        if !refused.is_empty() {
            self.set_content(&clamped.into());
            self.partial = Some(Problem::addresses(&refused));
        }
        self
    }
}

/// A name as it is kept: an overlong one stays invalid.
fn bounded_name(name: &str) -> String {
    name.chars().take(dns_names::MAX_SUBDOMAIN_LEN + 1).collect()
}

/// Why an object of this kind and name can have no replica. `kept` is the text of its content, if that is kept.
fn problem_of(kind: Kind, name: &str, kept: Option<&str>) -> Option<Problem> {
    if kept.is_some_and(|kept| kept.len() > MAX_LEN) {
        Some(Problem::new("Invalid", format!("what travels of a {kind:?} is at most {MAX_LEN} bytes long")))
    } else if kind == Kind::ConfigMap && name == ROOT_CA {
        Some(Problem::new("NameTaken", format!("{ROOT_CA} is the cluster's own in every namespace")))
    } else if kind == Kind::NetworkPolicy && isolation::is_own(name) {
        let message = "NetworkPolicies whose names begin with liqo are the provider's own; no traffic reaches or leaves its pods";
        Some(Problem::new("NameTaken", message))
    } else if !dns_names::is_subdomain(name) {
        Some(Problem::new("Invalid", "the object has no valid name"))
    } else {
        None
    }
}

/// Cuts the `NetworkPolicy`s of a namespace down to these limits. Policies beyond the maximum close all pods, and so do those that
/// have a name which this cluster, `own`, keeps for its own ones.
pub fn clamp_policies(mut sources: Vec<Source>, isolation: &IsolationPolicy, own: &ClusterId) -> Vec<Source> {
    sources.sort_by(|one, other| one.key.cmp(&other.key));
    let too_many = || {
        Problem::new(
            "Invalid",
            format!("a namespace has at most {MAX_POLICIES} NetworkPolicies here; no traffic reaches or leaves its pods"),
        )
    };
    let prefix = isolation::lent_on_prefix(own);
    let reserved = || {
        let message = format!(
            "NetworkPolicies whose names begin with {prefix} are the provider's own; no traffic reaches or leaves its pods"
        );
        Problem::new("NameTaken", message)
    };
    let clamped = sources.into_iter().enumerate().map(|(number, source)| match number {
        ..MAX_POLICIES if source.name.starts_with(&prefix) => Source { problem: Some(reserved()), content: None, ..source },
        ..MAX_POLICIES => source.clamp_policy(isolation),
        _ => Source { problem: Some(too_many()), content: None, ..source },
    });
    clamped.collect()
}

/// The fields of an object that travel, without empty ones. Of the metadata only the label that names a slice's Service and the
/// annotations of an Ingress are among them.
pub(super) fn travelling_fields(kind: Kind, content: &Value) -> Map<String, Value> {
    let fields: &[&str] = match kind {
        Kind::ConfigMap => &["data", "binaryData", "immutable"],
        Kind::Secret => &["type", "data", "immutable"],
        Kind::Service => return service::service(content),
        Kind::EndpointSlice => return service::endpoint_slice(content, Some),
        Kind::Ingress => return ingress::ingress(content),
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

pub(super) fn fingerprint(kind: Kind, content: &Value) -> String {
    fingerprint_of(travelling_fields(kind, content))
}

pub(super) fn fingerprint_of(fields: Map<String, Value>) -> String {
    short_hash(&sorted(&fields.into()).to_string())
}
