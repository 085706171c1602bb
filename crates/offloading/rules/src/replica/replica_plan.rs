//! Decides which replicas of a consumer's objects to create, change and delete in one mapped
//! namespace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use kube::{ResourceExt as _, core::DynamicObject};
use liqo_api::{Exposure, annotations, labels};
use serde_json::{Map, Value, json};

use crate::json::{annotations_mut, set_at};
use crate::pod::consumer_policy::ConsumerPolicy;
use crate::replica::exposure::ReadReplica;
use crate::replica::kind::ReplicaKind;
use crate::replica::replica_source::{
    ReplicaProblem, ReplicaSource, fields_fingerprint, travelling_fields,
};
use crate::replica::{exposure, service};
use crate::views::{EndpointSliceView, ObjectView, ServiceView};

/// The reduced form of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    pub kind: ReplicaKind,
    pub name: String,
    pub uid: String,
    /// Hash of its content.
    pub fingerprint: String,
    /// Its content as JSON text, if it is a Service or an Ingress.
    pub(super) content: Option<Box<str>>,
    /// The part of the content that never changes, see [`immutable_part`].
    type_: String,
    /// The family of a Service's first address. It never changes either.
    family: Option<&'static str>,
    immutable: bool,
    /// Under which addresses clients outside the cluster reach it.
    pub exposure: Option<Exposure>,
    /// The time of its creation.
    pub since: Timestamp,
    /// Whether it is being deleted.
    pub deleted: bool,
}

impl Replica {
    /// Reduces an object of a mapped namespace.
    pub fn from_object(kind: ReplicaKind, object: DynamicObject) -> Option<Self> {
        let (name, uid) = (object.name_any(), object.uid()?);
        let deleted = object.metadata.deletion_timestamp.is_some();
        let since = object
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let ReadReplica {
            mut object,
            exposure,
        } = exposure::as_written_by_liqo(kind, serde_json::to_value(object).ok()?);
        if kind == ReplicaKind::Ingress {
            // Controllers of this cluster keep the annotations that they added.
            let made = annotations_from_home(&object);
            if let Some(all) = annotations_mut(&mut object) {
                all.retain(|key, _| made.contains(key));
            }
        }
        let immutable = object.get("immutable") == Some(&Value::Bool(true));
        let mut fields = travelling_fields(kind, &object);
        let content = matches!(kind, ReplicaKind::Service | ReplicaKind::Ingress)
            .then(|| Value::from(fields.clone()).to_string().into());
        // These fields never travel. They make the fingerprint differ, so the replica is written
        // again without them.
        if kind == ReplicaKind::Service {
            fields.extend(service::provider_fields(&object));
        }
        let (fingerprint, type_) = (
            fields_fingerprint(fields),
            immutable_part(kind, &object).to_owned(),
        );
        let family = service::first_family(&object).filter(|_| kind == ReplicaKind::Service);
        Some(Self {
            kind,
            name,
            uid,
            fingerprint,
            content,
            type_,
            family,
            immutable,
            exposure,
            since,
            deleted,
        })
    }

    /// Whether it must be deleted and created again to become this object. Ingresses may change
    /// between two named classes.
    pub fn must_be_recreated_for(&self, wanted: &Value) -> bool {
        let class = exposure::object_class(self.kind, wanted);
        let other_class = self
            .exposure
            .as_ref()
            .zip(class)
            .is_some_and(|(exposure, class)| {
                let are_named = !exposure.class.is_empty() && !class.is_empty();
                exposure.class != class && !(self.kind == ReplicaKind::Ingress && are_named)
            });
        let other_family = self
            .family
            .zip(service::first_family(wanted))
            .is_some_and(|(family, wanted)| family != wanted);
        self.immutable
            || immutable_part(self.kind, wanted) != self.type_
            || other_class
            || other_family
    }
}

/// The annotations that came with the object from home.
fn annotations_from_home(replica: &Value) -> BTreeSet<String> {
    let metadata = ObjectView::of(replica).metadata();
    let said = metadata.annotation(annotations::TRAVELLED);
    said.and_then(|said| serde_json::from_str(said).ok())
        .unwrap_or_default()
}

/// The object that replaces the live one. Controllers of this cluster keep what they added:
/// annotations, and finalizers, with which they clean up what they created for it.
pub fn replacement_object(standing: &Value, mut wanted: Value) -> Value {
    let made = annotations_from_home(standing);
    let view = ServiceView::of(standing);
    let old = view.metadata().annotations().into_iter().flatten();
    let theirs = old.filter(|(key, _)| !made.contains(*key) && !liqo_api::is_own(key));
    let mut all: Map<String, Value> = theirs
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let ours = ObjectView::of(&wanted).metadata().annotations().cloned();
    all.extend(ours.unwrap_or_default());
    for field in ["finalizers", "resourceVersion", "uid"] {
        let value = view.metadata().json().get(field).cloned();
        set_at(&mut wanted, &["metadata", field], value.unwrap_or_default());
    }
    set_at(&mut wanted, &["metadata", "annotations"], all);
    // So does the address that was given to a load balancer.
    let address = view.spec().load_balancer_ip();
    if let Some(address) =
        address.filter(|_| ServiceView::of(&wanted).spec().kind() == Some("LoadBalancer"))
    {
        set_at(&mut wanted, &["spec", "loadBalancerIP"], address.clone());
    }
    // The default that the cluster filled in stays.
    if let Some(kind) = ReplicaKind::of_object(&wanted)
        && exposure::object_class(kind, &wanted) == Some("")
        && let Some(class) = exposure::object_class(kind, standing).map(str::to_owned)
    {
        exposure::set_class(kind, &mut wanted, &class);
    }
    wanted
}

/// The part of an object that can only be another one's: the type of a Secret, whether a Service is
/// headless, the family of a slice.
fn immutable_part(kind: ReplicaKind, object: &Value) -> &str {
    match kind {
        ReplicaKind::ConfigMap
        | ReplicaKind::NetworkPolicy
        | ReplicaKind::PodDisruptionBudget
        | ReplicaKind::Ingress => "",
        ReplicaKind::Secret => ObjectView::of(object).type_text().unwrap_or_default(),
        ReplicaKind::Service => ServiceView::of(object)
            .spec()
            .cluster_ip()
            .filter(|address| *address == "None")
            .unwrap_or_default(),
        ReplicaKind::EndpointSlice => EndpointSliceView::of(object).address_type(),
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicaStep {
    Delete(Replica),
    /// Create the replica of this source.
    Create(ReplicaKind, ReplicaSource),
    /// Change the replica of this source, or create it again if it may not be changed.
    Change(ReplicaSource, Replica),
    /// Report why the source has no replica, or `None` if it has one.
    ReportProblem(ReplicaSource, Option<ReplicaProblem>),
    /// Report under which addresses its replica is reached.
    ReportExposure(ReplicaSource, Option<Exposure>),
    /// Report whether a node is being drained that has a pod which it selects.
    ReportDraining(ReplicaSource),
    /// The replica is gone: remove the source's finalizer, which is at this position.
    Release(ReplicaSource, usize),
}

/// Gives each source whose content is not taken that of its replica, and applies the provider's
/// limits to it. They may refuse the content of an Ingress, too.
pub fn limit_sources(
    sources: Vec<ReplicaSource>,
    replicas: &[Replica],
    limits: impl Fn(ReplicaSource) -> ReplicaSource,
) -> Vec<ReplicaSource> {
    sources
        .into_iter()
        .map(|source| {
            let limited = limits(source);
            match former_content(&limited, replicas) {
                Some(content) => limits(limited.with_former_content(content)),
                None => limited,
            }
        })
        .collect()
}

/// The content of the replica of a source whose change is refused.
fn former_content<'a>(source: &ReplicaSource, replicas: &'a [Replica]) -> Option<&'a str> {
    source.refused.as_ref()?;
    replicas
        .iter()
        .find(|one| Some(one.kind) == source.kind && one.name == source.name && !one.deleted)?
        .content
        .as_deref()
}

/// Plans the steps for one mapped namespace, deletions first. A replica whose source is refused
/// stays as it is.
///
/// Deletes only replicas of the kinds in `complete`: all sources of these kinds are known. Waits
/// for a replica that is being deleted already. Creates no replica of a kind that `policy` does not
/// allow, but keeps an existing one current, because running pods may read it.
pub fn plan_replicas(
    sources: &[ReplicaSource],
    replicas: &[Replica],
    complete: &BTreeSet<ReplicaKind>,
    policy: Option<&ConsumerPolicy>,
) -> Vec<ReplicaStep> {
    // Several sources may name the same replica: the first one counts.
    let mut sources: Vec<&ReplicaSource> = sources.iter().collect();
    sources.sort_by(|one, other| one.key.cmp(&other.key));
    let existing: HashMap<(ReplicaKind, &str), &Replica> = replicas
        .iter()
        .map(|replica| ((replica.kind, replica.name.as_str()), replica))
        .collect();
    let mut wanted: BTreeMap<(ReplicaKind, &str), &ReplicaSource> = BTreeMap::new();
    let mut reports = Vec::new();
    for source in sources.iter().copied().filter(|source| !source.deleted) {
        let slot = source.kind.map(|kind| (kind, source.name.as_str()));
        let replica = slot.and_then(|slot| existing.get(&slot));
        let problem = source.problem.clone().or_else(|| {
            let slot = slot?;
            source_refusal(
                wanted.get(&slot).copied(),
                slot.0,
                policy.filter(|_| replica.is_none() || !is_read_by_pods(slot.0)),
            )
        });
        if let Some(problem) = problem {
            reports.extend(report_step(source, Some(problem)));
        } else if let Some(slot) = slot {
            wanted.insert(slot, source);
            if source.is_incomplete {
                // Until it is whole, what is there stays.
            } else if source.refused.is_some() {
                reports.extend(report_step(source, source.refused.clone()));
            } else if replica.is_some_and(|replica| replica.fingerprint == source.fingerprint) {
                reports.extend(report_step(source, source.partial.clone()));
            }
        }
    }
    for source in sources.iter().copied().filter(|source| !source.deleted) {
        let slot = source.kind.map(|kind| (kind, source.name.as_str()));
        let slot = slot.filter(|slot| {
            wanted
                .get(slot)
                .is_some_and(|first| first.key == source.key)
        });
        // Clients reach a replica even if its content is not yet, or must not become, that of the
        // source.
        let replica = slot
            .and_then(|slot| existing.get(&slot))
            .filter(|replica| !replica.deleted);
        let exposure = replica.and_then(|replica| replica.exposure.clone());
        if source.reported_exposure != exposure {
            reports.push(ReplicaStep::ReportExposure(source.clone(), exposure));
        }
    }
    let draining = sources
        .iter()
        .filter(|source| !source.deleted && source.is_draining != source.reported_draining);
    reports.extend(draining.map(|source| ReplicaStep::ReportDraining((*source).clone())));
    let mut steps: Vec<ReplicaStep> = replicas
        .iter()
        .filter(|replica| {
            !replica.deleted
                && complete.contains(&replica.kind)
                && !wanted.contains_key(&(replica.kind, replica.name.as_str()))
        })
        .map(|replica| ReplicaStep::Delete(replica.clone()))
        .collect();
    for (slot, source) in wanted
        .iter()
        .filter(|(_, source)| source.refused.is_none() && !source.is_incomplete)
    {
        match existing.get(slot) {
            None => steps.push(ReplicaStep::Create(slot.0, (*source).clone())),
            Some(replica) if replica.fingerprint != source.fingerprint && !replica.deleted => {
                steps.push(ReplicaStep::Change((*source).clone(), (*replica).clone()));
            }
            Some(_) => {}
        }
    }
    steps.extend(reports);
    steps.extend(sources.iter().filter_map(|source| release_step(source)));
    steps
}

/// Whether running pods may read an object of this kind, so that it stays when the policy does not
/// allow its kind any more.
fn is_read_by_pods(kind: ReplicaKind) -> bool {
    kind != ReplicaKind::PodDisruptionBudget
}

/// The reason why a source without a problem of its own gets no replica: `first` has the name, or
/// the policy does not allow the kind.
fn source_refusal(
    first: Option<&ReplicaSource>,
    kind: ReplicaKind,
    policy: Option<&ConsumerPolicy>,
) -> Option<ReplicaProblem> {
    if let Some(first) = first {
        return Some(ReplicaProblem::new(
            "NameTaken",
            format!("{} names the same object", first.key.name),
        ));
    }
    policy
        .filter(|policy| !policy.allows_kind(kind))
        .map(|policy| ReplicaProblem::not_allowed(kind, &policy.name))
}

fn report_step(source: &ReplicaSource, problem: Option<ReplicaProblem>) -> Option<ReplicaStep> {
    (source.reported != problem).then(|| ReplicaStep::ReportProblem(source.clone(), problem))
}

/// The steps while the mapped namespace does not exist.
pub fn plan_without_namespace(sources: &[ReplicaSource], why: &str) -> Vec<ReplicaStep> {
    let waiting = sources.iter().filter(|source| {
        !source.deleted && matches!(source.kind, None | Some(ReplicaKind::ConfigMap))
    });
    let reports = waiting.filter_map(|source| {
        let problem = source.problem.clone().or(source.refused.clone());
        let problem = problem.unwrap_or_else(|| ReplicaProblem::new("NamespaceNotReady", why));
        report_step(source, Some(problem))
    });
    reports
        .chain(sources.iter().filter_map(release_step))
        .collect()
}

fn release_step(source: &ReplicaSource) -> Option<ReplicaStep> {
    Some(ReplicaStep::Release(
        source.clone(),
        source.finalizer.filter(|_| source.deleted)?,
    ))
}

/// The replica with this content. It gets none of the consumer's labels, because programs of this
/// cluster may act on labelled objects.
pub fn replica_object(
    kind: ReplicaKind,
    content: &Value,
    name: &str,
    namespace: &str,
    home: &str,
) -> Value {
    let mut replica = travelling_fields(kind, content);
    replica.insert("apiVersion".into(), kind.api_version().into());
    replica.insert("kind".into(), kind.name().into());
    // These labels name the Service of a slice.
    let mut metadata = replica.remove("metadata").unwrap_or_default();
    let mut all = metadata
        .get("labels")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    for (label, value) in [
        (labels::MANAGED, "true"),
        (labels::REFLECTED, "true"),
        (labels::HOME_NAMESPACE, home),
    ] {
        all.insert(label.into(), value.into());
    }
    if kind == ReplicaKind::EndpointSlice {
        all.insert(service::MANAGED_BY.into(), "liqo".into());
    }
    let class = exposure::object_class(kind, content).map(str::to_owned);
    replica.insert(
        "metadata".into(),
        json!({ "name": name, "namespace": namespace, "labels": all }),
    );
    let mut replica = Value::from(replica);
    if let Some(target) = service::external_name(content).filter(|_| kind == ReplicaKind::Service) {
        set_at(
            &mut replica,
            &["metadata", "annotations"],
            json!({ annotations::EXTERNAL_NAME: target }),
        );
    }
    if let Some(class) = class {
        let mut said = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
            .map(std::mem::take)
            .unwrap_or_default();
        let made: BTreeSet<&String> = said.keys().collect();
        let made = (!made.is_empty()).then(|| json!(made).to_string());
        said.extend(made.map(|made| (annotations::TRAVELLED.to_owned(), made.into())));
        said.insert(annotations::REMOTE_CLASS.into(), class.into());
        set_at(&mut replica, &["metadata", "annotations"], said);
    }
    replica
}

#[cfg(test)]
mod tests;
