//! The data that a provider keeps of each object that a consumer reflects.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use liqo_api::record_text::{self, MAX_OBJECT_LEN, RecordTextError};
use liqo_api::{
    ClusterId, Exposure, Key, ReflectedObject, annotations, finalizers, labels, short_hash,
};
use serde_json::{Map, Value, json};

use crate::pod::local_status::truncate_text;
use crate::pod::reported_status::sorted_json;
use crate::replica::chunk::Chunk;
use crate::replica::isolation::{self, IsolationPolicy};
use crate::replica::kind::{MAX_LEN, ReplicaKind};
use crate::replica::name::replica_name;
use crate::replica::network_policy::NormalizedPolicy;
use crate::replica::parts;
use crate::replica::record::{TOO_LARGE, obstacle_of_secret, travelling_type};
use crate::replica::{disruption_budget, exposure, ingress, service};
use crate::views::{EndpointSliceView, ObjectView, ServicePortView};
use crate::{dns_names, finalizer};

/// Maximum number of ports of one Service: each costs rules on every node, even without endpoints.
const MAX_PORTS: usize = 20;

/// Reason of a Service or slice that has not enough room.
pub(super) const QUOTA_EXCEEDED: &str = "QuotaExceeded";

/// Maximum number of `NetworkPolicy`s of one namespace that are read after each change.
pub(super) const MAX_POLICIES: usize = 200;

/// Maximum number of addresses or ports that one message names.
const MAX_NAMED: usize = 10;

/// The reason why an object has no replica, or one that differs from the object at home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaProblem {
    /// One CamelCase word.
    pub reason: String,
    pub message: String,
}

impl ReplicaProblem {
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    /// An object that Liqo did not create has the name.
    pub fn name_taken(kind: ReplicaKind, name: &str) -> Self {
        let article = if matches!(kind, ReplicaKind::EndpointSlice | ReplicaKind::Ingress) {
            "an"
        } else {
            "a"
        };
        Self::new(
            "NameTaken",
            format!(
                "the provider has {article} {kind:?} {name} of another owner; Liqo does not change it"
            ),
        )
    }

    /// The provider's policy does not allow the kind.
    pub fn not_allowed(kind: ReplicaKind, policy: &str) -> Self {
        Self::new(
            "KindNotAllowed",
            format!(
                "the provider's PeeringPolicy {policy} does not allow {} to be reflected",
                kind.plural()
            ),
        )
    }

    /// No pod of this consumer can have these addresses here.
    fn refused_addresses(refused: &BTreeSet<IpAddr>) -> Self {
        let what = "left out: endpoints that are neither this consumer's pods here nor in its prefixes as the provider sees them";
        Self::left_out(what, refused)
    }

    /// Pods of this consumer may not connect with these ranges.
    fn refused_ranges(refused: &BTreeSet<IpNet>) -> Self {
        let what = "left out: ranges that are neither on the internet nor in this consumer's prefixes as the provider sees them";
        Self::left_out(what, refused)
    }

    fn left_out(what: &str, refused: &BTreeSet<impl ToString>) -> Self {
        let all: Vec<String> = refused.iter().map(ToString::to_string).collect();
        Self::new("AddressRefused", format!("{what}: {}", first_names(&all)))
    }

    /// A Service has more ports than it may have here.
    fn too_many_ports(left_out: &[Value]) -> Self {
        let all: Vec<String> = left_out.iter().map(name_of_port).collect();
        Self::new(
            "TooManyPorts",
            format!(
                "left out: ports beyond the first {MAX_PORTS} of the Service: {}",
                first_names(&all)
            ),
        )
    }

    fn too_long(kind: ReplicaKind) -> Self {
        Self::new(
            TOO_LARGE,
            format!("what travels of a {kind:?} is at most {MAX_LEN} bytes long"),
        )
    }

    /// The consumer has no replica of the Service that a slice belongs to.
    fn no_service(service: &str) -> Self {
        Self::new(
            "NoService",
            format!(
                "the provider has no replica of Service {service:.253}, to which the endpoints belong"
            ),
        )
    }

    fn from_annotation(text: &str) -> Self {
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

/// The data that the provider keeps of an object that should have a replica.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
pub struct ReplicaSource {
    /// The `ReflectedObject` or Secret in the tenant namespace.
    pub key: Key,
    pub uid: String,
    /// The object's namespace in the consumer's cluster.
    pub home: String,
    /// The replica's kind. An object of a kind that is not reflected has none, and a
    /// [`problem`](Self::problem); nor has a chunk but the first.
    pub kind: Option<ReplicaKind>,
    /// The replica's name, see [`replica_name`].
    pub name: String,
    /// Hash of the replica's content.
    pub fingerprint: String,
    /// The replica's content as JSON text, if the kind travels with its namespace. Others are read
    /// again when they are written.
    pub content: Option<Box<str>>,
    /// The reason why there must be no replica.
    pub problem: Option<ReplicaProblem>,
    /// The reason why its content is not taken. If there is a replica, it stays as it is.
    pub refused: Option<ReplicaProblem>,
    /// The reason why the replica differs from the object at home.
    pub partial: Option<ReplicaProblem>,
    /// The problem in the source's status, or in a Secret's annotation.
    pub reported: Option<ReplicaProblem>,
    /// Only for a `PodDisruptionBudget`: whether a node with a pod that it selects is being
    /// drained, and whether its status says so.
    pub is_draining: bool,
    pub reported_draining: bool,
    /// The exposure in the source's status.
    pub reported_exposure: Option<Exposure>,
    /// The time of its creation.
    pub since: Timestamp,
    /// Whether it is being deleted.
    pub deleted: bool,
    /// Position of the finalizer that keeps it until its replica is gone.
    pub finalizer: Option<usize>,
    /// Whether it is a Service of type `LoadBalancer`.
    pub is_balanced: bool,
    /// The part of an object that it is. Chunk 0 represents the whole, see
    /// [`chunks::join_sources`](super::chunks::join_sources).
    pub chunk: Option<Chunk>,
    /// The records of the other chunks, in their order, with their UIDs.
    pub other_chunks: Vec<(Key, String)>,
    /// Whether some of them are missing.
    pub is_incomplete: bool,
    /// The endpoints of a slice, and its ports, for each of which every endpoint costs rules on
    /// every node. 0 for other kinds.
    pub endpoints: usize,
    pub ports: usize,
}

impl ReplicaSource {
    /// Reduces a reflected object.
    pub fn from_object(object: ReflectedObject) -> Self {
        let (content, unreadable) =
            match record_text::parse_object(&object.spec.object, MAX_OBJECT_LEN) {
                Ok(content) => (content, None),
                Err(error) => (Value::Null, Some(error)),
            };
        let content = &content;
        let home_name = bounded_name(
            ObjectView::of(content)
                .metadata()
                .name()
                .unwrap_or_default(),
        );
        let kind = ReplicaKind::of_object(content).filter(|kind| *kind != ReplicaKind::Secret);
        let kept = kind
            .filter(|kind| kind.is_of_namespace())
            .map(|kind| within_limits(kind, travelling_fields(kind, content)));
        let (kept, left_out) = kept.unzip();
        let is_balanced = kept
            .as_ref()
            .is_some_and(|kept| exposure::object_class(ReplicaKind::Service, kept).is_some());
        let (endpoints, ports) = kept
            .as_ref()
            .filter(|_| kind == Some(ReplicaKind::EndpointSlice))
            .map_or((0, 0), |slice| {
                let slice = EndpointSliceView::of(slice);
                // A slice without ports may have an endpoint for each port of its Service.
                (
                    slice.endpoints().len(),
                    slice.ports().unwrap_or_default().len().max(1),
                )
            });
        let fingerprint = kind
            .map(|kind| travelling_fingerprint(kind, kept.as_ref().unwrap_or(content)))
            .unwrap_or_default();
        let kept = kept.map(|kept| kept.to_string());
        let too_long = kind
            .filter(|_| kept.as_ref().is_some_and(|kept| kept.len() > MAX_LEN))
            .map(ReplicaProblem::too_long);
        let problem = problem_of_object(kind, content, &home_name, unreadable.as_ref());
        let (problem, refused) = match (problem, too_long) {
            (None, Some(too_long)) if kind.is_some_and(may_keep_former_content) => {
                (None, Some(too_long))
            }
            (problem, too_long) => (problem.or(too_long), None),
        };
        let reported = object.status.as_ref().and_then(|status| {
            Some(ReplicaProblem {
                reason: status.reason.clone()?,
                message: status.message.clone().unwrap_or_default(),
            })
        });
        let partial = left_out
            .flatten()
            .or_else(|| problem_of_narrowed_policy(kind, content));
        Self {
            key: Key::of_object(&object),
            fingerprint,
            is_balanced: is_balanced && kind == Some(ReplicaKind::Service),
            is_draining: false,
            reported_draining: object.status.as_ref().is_some_and(|status| status.draining),
            reported_exposure: object
                .status
                .as_ref()
                .and_then(|status| status.exposure.clone()),
            since: object
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleted: object.metadata.deletion_timestamp.is_some(),
            finalizer: finalizer::position(
                object.metadata.finalizers.as_ref(),
                finalizers::REFLECTED_OBJECT,
            ),
            uid: object.metadata.uid.unwrap_or_default(),
            home: object.spec.namespace,
            kind,
            name: kind.map_or_else(String::new, |kind| replica_name(kind, &home_name)),
            chunk: Chunk::from_object(content).filter(|_| kind == Some(ReplicaKind::ConfigMap)),
            other_chunks: Vec::new(),
            is_incomplete: false,
            endpoints,
            ports,
            content: kept
                .filter(|_| problem.is_none() && refused.is_none())
                .map(Into::into),
            problem,
            refused,
            partial,
            reported,
        }
    }

    /// Reduces a Secret of a tenant namespace. `None` if it does not name its namespace and name at
    /// home.
    pub fn from_secret(secret: Secret) -> Option<Self> {
        let key = Key::of_object(&secret);
        let home = secret.labels().get(labels::HOME_NAMESPACE)?.clone();
        let home_name = bounded_name(secret.annotations().get(annotations::HOME_NAME)?);
        let obstacle = obstacle_of_secret(&secret)
            .map(|(reason, message)| ReplicaProblem::new(reason, message));
        // A Secret of a type that never travels is another Secret.
        let (refused, problem) = obstacle.map_or((None, None), |obstacle| {
            if obstacle.reason == TOO_LARGE {
                (Some(obstacle), None)
            } else {
                (None, Some(obstacle))
            }
        });
        let problem = problem.or_else(|| {
            let is_valid = dns_names::is_subdomain(&home_name);
            (!is_valid).then(|| ReplicaProblem::new("Invalid", "the Secret has no valid name"))
        });
        let reported = secret
            .annotations()
            .get(annotations::NOT_REFLECTED)
            .map(|text| ReplicaProblem::from_annotation(&truncate_text(text)));
        let (uid, deleted) = (
            secret.metadata.uid.clone().unwrap_or_default(),
            secret.metadata.deletion_timestamp.is_some(),
        );
        let chunk = Chunk::from_secret(&secret);
        let fingerprint =
            travelling_fingerprint(ReplicaKind::Secret, &serde_json::to_value(secret).ok()?);
        Some(Self {
            chunk,
            other_chunks: Vec::new(),
            is_incomplete: false,
            key,
            uid,
            home,
            kind: Some(ReplicaKind::Secret),
            name: replica_name(ReplicaKind::Secret, &home_name),
            fingerprint,
            content: None,
            problem,
            refused,
            partial: None,
            reported,
            is_draining: false,
            reported_draining: false,
            reported_exposure: None,
            since: Timestamp::UNIX_EPOCH,
            deleted,
            finalizer: None,
            is_balanced: false,
            endpoints: 0,
            ports: 0,
        })
    }

    /// The replica's content, if it is kept.
    pub fn content(&self) -> Option<Value> {
        serde_json::from_str(self.content.as_deref()?).ok()
    }

    /// The object as a `NetworkPolicy`. One that closes everything if the content is not kept.
    pub fn network_policy(&self) -> NormalizedPolicy {
        self.content()
            .map_or_else(NormalizedPolicy::closed, |content| {
                NormalizedPolicy::from_spec(content.get("spec").unwrap_or(&Value::Null))
            })
    }

    /// Cuts a `NetworkPolicy` down to these limits.
    pub(super) fn clamp_policy(mut self, isolation: &IsolationPolicy) -> Self {
        if self.problem.is_some() {
            return self;
        }
        let Some(clamped) = isolation.clamp_policy(&self.network_policy()) else {
            self.problem = Some(ReplicaProblem::new(
                "Invalid",
                "the NetworkPolicy is too long; no traffic reaches or leaves its pods",
            ));
            return self;
        };
        self.set_content(&json!({ "spec": clamped.policy.to_json() }));
        self.partial =
            self.partial.or((!clamped.refused.is_empty())
                .then(|| ReplicaProblem::refused_ranges(&clamped.refused)));
        self
    }

    /// The class that an Ingress or Service of type `LoadBalancer` asks for. Empty if it names
    /// none; `None` for all others.
    pub(crate) fn asked_class(&self) -> Option<String> {
        exposure::object_class(self.kind?, &self.content()?).map(str::to_owned)
    }

    /// Whether it asks for a load balancer.
    pub fn asks_for_balancer(&self) -> bool {
        self.is_balanced && !self.deleted && self.problem.is_none()
    }

    /// A source whose content is not taken, with that of its replica (JSON text): the limits of
    /// today apply to it as if it had been sent.
    #[must_use]
    pub(super) fn with_former_content(mut self, content: &str) -> Self {
        if let (Some(refused), Ok(content)) = (self.refused.clone(), serde_json::from_str(content))
        {
            self.set_content(&content);
            (self.refused, self.partial) = (None, Some(refused));
        }
        self
    }

    /// Gives a Service or Ingress this content, and the problem to report with it.
    pub(super) fn with_content(
        mut self,
        kind: ReplicaKind,
        content: &Value,
        partial: Option<ReplicaProblem>,
    ) -> Self {
        self.set_content(&Value::from(travelling_fields(kind, content)));
        self.partial = self.partial.or(partial);
        self
    }

    /// Cuts a slice down to its first endpoints.
    pub(super) fn with_endpoints(mut self, count: usize, partial: ReplicaProblem) -> Self {
        if let Some(mut slice) = self.content() {
            if let Some(endpoints) = slice.get_mut("endpoints").and_then(Value::as_array_mut) {
                endpoints.truncate(count);
            }
            self.set_content(&slice);
        }
        self.partial = Some(partial);
        self
    }

    /// Adapts a Service to a cluster whose Services have these address families.
    #[must_use]
    pub fn with_families(mut self, families: &[&'static str]) -> Self {
        if let Some(content) = self
            .content()
            .filter(|_| self.kind == Some(ReplicaKind::Service))
        {
            self.set_content(&service::with_families(content, families));
        }
        self
    }

    pub(super) fn set_content(&mut self, content: &Value) {
        self.fingerprint = self
            .kind
            .map(|kind| travelling_fingerprint(kind, content))
            .unwrap_or_default();
        self.content = Some(content.to_string().into());
    }

    /// Cuts a slice down to endpoints that are `allowed`. It gets a problem if its Service is not
    /// one of `services`.
    #[must_use]
    pub fn clamp_slice(
        mut self,
        services: &BTreeSet<String>,
        allowed: impl Fn(IpAddr) -> bool,
    ) -> Self {
        let is_wanted = self.kind == Some(ReplicaKind::EndpointSlice) && self.problem.is_none();
        let Some(content) = self.content().filter(|_| is_wanted) else {
            return self;
        };
        let service = service::service_of(&content).unwrap_or_default();
        if !services.contains(service) {
            // A slice that has not enough room says so in any case: its namespace is looked at
            // again until then.
            let over = self
                .partial
                .take()
                .filter(|partial| partial.reason == QUOTA_EXCEEDED);
            self.problem = Some(over.unwrap_or_else(|| ReplicaProblem::no_service(service)));
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
            self.partial = self
                .partial
                .or(Some(ReplicaProblem::refused_addresses(&refused)));
        }
        self
    }
}

/// A name as it is kept: an overlong one stays invalid.
fn bounded_name(name: &str) -> String {
    name.chars()
        .take(dns_names::MAX_SUBDOMAIN_LEN + 1)
        .collect()
}

/// The first of these names, for a message.
fn first_names(names: &[String]) -> String {
    let more = if names.len() > MAX_NAMED {
        ", and others"
    } else {
        ""
    };
    format!(
        "{}{more}",
        names
            .iter()
            .take(MAX_NAMED)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ")
    )
}

fn name_of_port(port: &Value) -> String {
    let port = ServicePortView::of(port);
    let number = port.port().and_then(Value::as_u64).unwrap_or_default();
    port.name().map_or_else(
        || number.to_string(),
        |name| format!("{name:.63} ({number})"),
    )
}

/// The first ports of a Service and the first endpoints of a slice, as many as there may be; and
/// what is left out. An object that grows keeps what worked. An Ingress names the replicas of its
/// Secrets.
fn within_limits(
    kind: ReplicaKind,
    mut content: Map<String, Value>,
) -> (Value, Option<ReplicaProblem>) {
    let mut left_out = None;
    match kind {
        ReplicaKind::Service => {
            let ports = content
                .get_mut("spec")
                .and_then(|spec| spec.get_mut("ports"))
                .and_then(Value::as_array_mut);
            if let Some(ports) = ports.filter(|ports| ports.len() > MAX_PORTS) {
                left_out = Some(ReplicaProblem::too_many_ports(&ports.split_off(MAX_PORTS)));
            }
        }
        ReplicaKind::EndpointSlice => {
            let endpoints = parts::endpoints_that_fit(&content);
            if let Some(all) = content
                .get_mut("endpoints")
                .and_then(Value::as_array_mut)
                .filter(|all| all.len() > endpoints)
            {
                all.truncate(endpoints);
                left_out = Some(ReplicaProblem {
                    message: format!(
                        "left out: all but {endpoints} endpoints, because {}",
                        ReplicaProblem::too_long(kind).message
                    ),
                    ..ReplicaProblem::too_long(kind)
                });
            }
        }
        ReplicaKind::Ingress => ingress::name_replicas(&mut content),
        _ => {}
    }
    (content.into(), left_out)
}

/// Whether the replica of an object of this kind keeps its content while that of the object is
/// refused. A `NetworkPolicy` does not, because it could keep open what home closed; the endpoints
/// of a slice do not, because others may have their addresses by now.
const fn may_keep_former_content(kind: ReplicaKind) -> bool {
    match kind {
        ReplicaKind::ConfigMap
        | ReplicaKind::Secret
        | ReplicaKind::Service
        | ReplicaKind::Ingress
        | ReplicaKind::PodDisruptionBudget => true,
        ReplicaKind::NetworkPolicy | ReplicaKind::EndpointSlice => false,
    }
}

/// The reason why an object with this content can have no replica.
fn problem_of_object(
    kind: Option<ReplicaKind>,
    content: &Value,
    home_name: &str,
    unreadable: Option<&RecordTextError>,
) -> Option<ReplicaProblem> {
    if let Some(error) = unreadable {
        let message = format!("the record is refused: {error}");
        return Some(ReplicaProblem::new("Invalid", message));
    }
    let Some(kind) = kind else {
        let kind = ObjectView::of(content).kind().unwrap_or_default();
        let message = format!("objects of kind {kind:.60} are not reflected to this cluster");
        return Some(ReplicaProblem::new("KindNotAllowed", message));
    };
    name_problem(kind, home_name).or_else(|| {
        let is_empty = kind == ReplicaKind::PodDisruptionBudget
            && disruption_budget::travelling_budget(content).is_empty();
        is_empty.then(|| {
            ReplicaProblem::new(
                "Invalid",
                "the PodDisruptionBudget has no selector, or no number for minAvailable",
            )
        })
    })
}

/// Says of a `NetworkPolicy` that it has parts that are not known here.
fn problem_of_narrowed_policy(
    kind: Option<ReplicaKind>,
    content: &Value,
) -> Option<ReplicaProblem> {
    let is_narrowed = kind == Some(ReplicaKind::NetworkPolicy)
        && NormalizedPolicy::from_spec(content.get("spec").unwrap_or(&Value::Null)).narrowed;
    is_narrowed.then(|| {
        ReplicaProblem::new(
            "Invalid",
            "what is not known of the NetworkPolicy was left out: it opens nothing",
        )
    })
}

/// The reason why an object of this kind and name at home can have no replica.
fn name_problem(kind: ReplicaKind, name: &str) -> Option<ReplicaProblem> {
    if kind == ReplicaKind::NetworkPolicy && isolation::is_own(name) {
        let message = "NetworkPolicies whose names begin with liqo are the provider's own; no traffic reaches or leaves its pods";
        Some(ReplicaProblem::new("NameTaken", message))
    } else if !dns_names::is_subdomain(name) {
        Some(ReplicaProblem::new(
            "Invalid",
            "the object has no valid name",
        ))
    } else {
        None
    }
}

/// Cuts the `NetworkPolicy`s of a namespace down to these limits. Policies beyond the maximum close
/// all pods, and so do those that have a name which this cluster, `own`, keeps for its own ones.
pub fn clamp_policies(
    mut sources: Vec<ReplicaSource>,
    isolation: &IsolationPolicy,
    own: &ClusterId,
) -> Vec<ReplicaSource> {
    sources.sort_by(|one, other| one.key.cmp(&other.key));
    let prefix = isolation::brokered_copy_prefix(own);
    let mut clamped = Vec::with_capacity(sources.len());
    for (number, source) in sources.into_iter().enumerate() {
        let problem = if number >= MAX_POLICIES {
            let message = format!(
                "a namespace has at most {MAX_POLICIES} NetworkPolicies here; no traffic reaches or leaves its pods"
            );
            Some(ReplicaProblem::new("Invalid", message))
        } else if source.name.starts_with(&prefix) {
            let message = format!(
                "NetworkPolicies whose names begin with {prefix} are the provider's own; no traffic reaches or leaves its pods"
            );
            Some(ReplicaProblem::new("NameTaken", message))
        } else {
            None
        };
        clamped.push(match problem {
            None => source.clamp_policy(isolation),
            problem => ReplicaSource {
                problem,
                content: None,
                ..source
            },
        });
    }
    clamped
}

/// The fields of an object that travel, without empty ones. Of the metadata only the label that
/// names a slice's Service and the annotations of an Ingress are among them.
pub(super) fn travelling_fields(kind: ReplicaKind, content: &Value) -> Map<String, Value> {
    let fields: &[&str] = match kind {
        ReplicaKind::ConfigMap => &["data", "binaryData", "immutable"],
        ReplicaKind::Secret => &["data", "immutable"],
        ReplicaKind::Service => return service::travelling_service(content),
        ReplicaKind::EndpointSlice => return service::endpoint_slice(content, Some),
        ReplicaKind::Ingress => return ingress::travelling_ingress(content),
        ReplicaKind::PodDisruptionBudget => return disruption_budget::travelling_budget(content),
        ReplicaKind::NetworkPolicy => {
            let spec = content.get("spec").unwrap_or(&Value::Null);
            return Map::from_iter([(
                "spec".to_owned(),
                NormalizedPolicy::from_spec(spec).to_json(),
            )]);
        }
    };
    let mut found: Map<String, Value> = fields
        .iter()
        .filter_map(|&field| Some((field.to_owned(), content.get(field)?.clone())))
        .filter(|(_, value)| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Object(map) => !map.is_empty(),
            _ => true,
        })
        .collect();
    if kind == ReplicaKind::Secret {
        found.insert(
            "type".into(),
            travelling_type(ObjectView::of(content).type_text()).into(),
        );
    }
    found
}

pub(super) fn travelling_fingerprint(kind: ReplicaKind, content: &Value) -> String {
    fields_fingerprint(travelling_fields(kind, content))
}

pub(super) fn fields_fingerprint(fields: Map<String, Value>) -> String {
    short_hash(&sorted_json(&fields.into()).to_string())
}
