//! The reduced forms of local pods and shadow pods: the few fields that decisions read, and the
//! rest as JSON text.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use liqo_api::record_text::{self, MAX_POD_LEN};
use liqo_api::{
    Claimed, EvictionDelay, Key, PartialObject, ShadowPod, ShadowPodPhase, annotations, finalizers,
    pods, requests,
};
use liqo_metering::charges::MAX_CHARGES_LEN;
use liqo_metering::voucher::MAX_VOUCHER_LEN;
use liqo_quantity::ResourceList;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::json::{json_fingerprint, set_at};
use crate::node::priced::default_charge;
use crate::pod::carry::api_server::{
    ApiServerChoice, api_server_secret_name, chosen_api_server, finds_ca, uses_secret,
};
use crate::pod::carry::{OutgoingPart, PodRefusal, outgoing_part, outgoing_pod};
use crate::pod::controller::OwningController;
use crate::pod::ephemeral;
use crate::pod::eviction;
use crate::pod::local_status::{self, is_final, lacks_ends};
use crate::pod::references::{PodReferences, referenced_objects, required_objects};
use crate::pod::remote::default_grace;
use crate::pod::waiting::WaitingStatus;
use crate::replica::label_selector::LabelMap;
use crate::views::{ContainerList, ContainerView, PodView};

/// A pod as JSON, so that unknown fields survive.
pub type JsonPod = PartialObject<Pod, Value, Value>;

/// A pod that is bound to one of our virtual nodes.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
pub struct LocalPod {
    /// Its UID, which is the name of its shadow pod.
    pub uid: String,
    pub key: Key,
    /// The `VirtualNode` of its node.
    pub virtual_node: Key,
    pub created: Timestamp,
    /// The grace in seconds, if it is being deleted.
    pub deletion: Option<i64>,
    /// The amounts that a provider charges for it beyond its requests, if any: for containers
    /// without requests.
    pub surcharge: Option<Box<ResourceList>>,
    /// If no container of it has started yet.
    pub waiting: Option<WaitingStatus>,
    /// Liqo adds none to local pods.
    pub has_finalizers: bool,
    /// Its phase is final.
    pub finished: bool,
    /// Its containers are ready, whatever the readiness gates of this cluster say.
    pub is_ready_there: bool,
    pub labels: LabelMap,
    /// It has ended, and how its containers did is not known of all of them.
    pub lacks_ends: bool,
    /// Its restart policy is Always.
    pub restarts: bool,
    pub offloaded: Option<OffloadedCondition>,
    /// The tenancy in the [`SENDING`](crate::pod::local::SENDING) mark, if it may run only once or
    /// gets tokens.
    pub sent_to: Option<String>,
    pub controller: Option<OwningController>,
    pub refs: PodReferences,
    /// Those of them without which no container starts.
    pub needs: PodReferences,
    pub api_server: ApiServerChoice,
    /// It finds the CA of this cluster also at a provider, in the volume that the API server
    /// injected.
    pub finds_ca: bool,
    /// Delay until Kubernetes evicts it if its node does not answer; `None` if that depends on the
    /// reason.
    pub eviction_delay: Option<EvictionDelay>,
    /// Its changeable fields, see `changeable_fields`; or why it cannot travel.
    pub carried: Result<String, PodRefusal>,
    /// The same for what travels of it in any case if it runs already; and the annotations that
    /// stay as they were there.
    carried_part: Option<(String, BTreeSet<String>)>,
    json: Box<str>,
}

/// The condition `liqo.io/Offloaded` of a local pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadedCondition {
    /// `None` means Unknown.
    pub status: Option<bool>,
    pub reason: String,
    /// Time of the last transition.
    pub since: Timestamp,
}

impl LocalPod {
    /// Reduces a pod on the node of this `VirtualNode`.
    pub fn from_pod(pod: JsonPod, virtual_node: &Key) -> Option<Self> {
        let JsonPod {
            metadata,
            spec,
            status,
            ..
        } = pod;
        let uid = metadata.uid.clone()?;
        let key = Key::new(metadata.namespace.clone()?, metadata.name.clone()?);
        let deletion = metadata
            .deletion_timestamp
            .is_some()
            .then(|| metadata.deletion_grace_period_seconds.unwrap_or(0));
        let has_finalizers = metadata
            .finalizers
            .as_ref()
            .is_some_and(|all| !all.is_empty());
        let created = metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let controller = OwningController::among_owners(owners);
        let advertised = BTreeSet::new();
        let sent_to = metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(annotations::SENT_TO))
            .cloned();
        let mut whole = json!({ "metadata": travelling_metadata(metadata) });
        // The macro would copy them.
        set_at(&mut whole, &["spec"], spec);
        set_at(&mut whole, &["status"], status.unwrap_or_default());
        // Neither result depends on the labels that the provider advertises.
        let carried = outgoing_pod(&whole, &advertised).map(|carried| changeable_fields(&carried));
        let part = carried
            .is_err()
            .then(|| outgoing_part(&whole, &advertised))
            .flatten();
        Some(Self {
            uid,
            key,
            virtual_node: virtual_node.clone(),
            created,
            deletion,
            surcharge: default_surcharge(&whole).map(Box::new),
            waiting: WaitingStatus::of_pod(&whole),
            has_finalizers,
            finished: is_final(&whole),
            is_ready_there: is_remote_ready(&whole),
            labels: pod_labels(&whole),
            lacks_ends: lacks_ends(&whole),
            restarts: PodView::of(&whole)
                .spec()
                .restart_policy()
                .is_none_or(|policy| policy == "Always"),
            offloaded: offloaded_condition(&whole),
            sent_to,
            controller,
            refs: referenced_objects(&whole),
            needs: required_objects(&whole),
            api_server: chosen_api_server(&whole).unwrap_or(ApiServerChoice::Unclear),
            finds_ca: finds_ca(&whole),
            eviction_delay: eviction::toleration_delay(&whole),
            carried,
            carried_part: part.map(|part| (changeable_fields(&part.pod), part.unchanged)),
            json: whole.to_string().into(),
        })
    }

    /// Whether it was removed, and exists only until others remove their finalizers.
    ///
    /// A grace of zero alone does not prove that. To remove a pod that is being deleted, the API
    /// server writes a grace of zero first and deletes the object after that. If the caller
    /// disconnects in between, or the storage fails, the pod stays until somebody removes it again.
    pub fn only_finalizers_remain(&self) -> bool {
        self.deletion == Some(0) && self.has_finalizers
    }

    /// Its address at the provider, as the provider sees it, if it told one.
    pub fn remote_address(&self) -> Option<IpAddr> {
        local_status::remote_pod_address(&self.to_json())
    }

    /// Whether the shadow pod lacks a change that travels.
    pub fn differs_from(&self, shadow: &ConsumerShadowPod) -> bool {
        match (&self.carried, &self.carried_part) {
            (Ok(carried), _) => *carried != shadow.carried,
            (Err(_), Some((part, unchanged))) => {
                *part != without_annotations(&shadow.carried, unchanged)
            }
            (Err(_), None) => false,
        }
    }

    /// Whether its provider ends it when a notice is over.
    pub fn ends_soon(&self) -> bool {
        self.offloaded
            .as_ref()
            .is_some_and(|condition| condition.reason == pods::ENDS_SOON)
    }

    /// The reason why changes of a pod that runs do not all travel, for its owner.
    pub fn refused_change(&self) -> Option<String> {
        let refusal = self.carried.as_ref().err()?;
        let unchanged = self
            .carried_part
            .iter()
            .flat_map(|(_, unchanged)| unchanged)
            .map(String::as_str)
            .collect::<Vec<_>>();
        let which = match (&self.carried_part, &unchanged[..]) {
            (None, _) => "changes of the pod do not reach the provider".to_owned(),
            (Some(_), []) => "a change of the pod does not reach the provider".to_owned(),
            (Some(_), names) => format!(
                "the pod there has former values of the annotations {}",
                names.join(", ")
            ),
        };
        Some(format!("{which}: {refusal}"))
    }

    /// Identifies what creates it again after its deletion, by a name that the next pod shares: the
    /// UID of its controller or, in a brokered namespace, its own name. There the provider's side
    /// of this cluster creates a pod again that may restart.
    pub fn recreation_key(&self, is_brokered: bool) -> Option<String> {
        let controller = self
            .controller
            .as_ref()
            .map(|controller| controller.uid.clone());
        controller.or_else(|| (is_brokered && self.restarts).then(|| self.key.to_string()))
    }

    /// The amounts that it takes of its node beyond its requests.
    pub fn extra_charge(&self) -> Option<&ResourceList> {
        self.surcharge.as_deref().filter(|_| !self.finished)
    }

    /// The pod as JSON: metadata (names, UID, labels, annotations), spec and status.
    pub fn to_json(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// The charges of a provider with the default policy for a pod beyond its requests. `None` for most
/// pods, which say what they need.
fn default_surcharge(pod: &Value) -> Option<ResourceList> {
    let view = PodView::of(pod).spec();
    let mut containers = ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(|list| view.containers_in(list));
    if containers
        .all(|container| has_amount_of(container, "cpu") && has_amount_of(container, "memory"))
    {
        return None;
    }
    let spec = PodSpec::deserialize(view.json()).ok()?;
    let requested = requests::of_pod(&spec);
    let more = default_charge(spec).saturating_sub(&requested);
    (!more.is_zero()).then_some(more)
}

fn has_amount_of(container: ContainerView<'_>, resource: &str) -> bool {
    let resources = container.resources();
    [resources.requests(), resources.limits()]
        .into_iter()
        .flatten()
        .any(|amounts| amounts.contains_key(resource))
}

/// The metadata that decisions or the provider need.
fn travelling_metadata(metadata: ObjectMeta) -> Value {
    json!({
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "generation": metadata.generation,
        "labels": metadata.labels.unwrap_or_default(),
        "annotations": metadata.annotations.unwrap_or_default(),
    })
}

fn is_remote_ready(pod: &Value) -> bool {
    let mut conditions = PodView::of(pod).status().conditions();
    conditions.any(|one| one.has_status("ContainersReady", "True"))
}

fn pod_labels(pod: &Value) -> LabelMap {
    PodView::of(pod)
        .metadata()
        .labels()
        .and_then(|labels| LabelMap::deserialize(labels).ok())
        .unwrap_or_default()
}

fn offloaded_condition(pod: &Value) -> Option<OffloadedCondition> {
    let condition = PodView::of(pod).status().condition(pods::OFFLOADED)?;
    let status = match condition.status() {
        Some("True") => Some(true),
        Some("False") => Some(false),
        _ => None,
    };
    Some(OffloadedCondition {
        status,
        reason: condition.reason().unwrap_or_default().to_owned(),
        since: condition.changed_at().unwrap_or(Timestamp::UNIX_EPOCH),
    })
}

/// A shadow pod in our tenant namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerShadowPod {
    /// Namespace and name of the local pod, as far as the shadow pod has them.
    pub home: Key,
    pub pool: String,
    /// The time at which its deletion began, by the provider's clock.
    pub deleted_at: Claimed<Option<Timestamp>>,
    /// The grace in seconds that we asked for in its spec.
    pub wanted_deletion: Option<i64>,
    /// The grace in seconds that the provider uses when the shadow pod is deleted.
    pub default_grace: i64,
    /// Whether it has the finalizer that keeps it until its remote pod is gone.
    pub has_finalizer: bool,
    pub phase: Claimed<ShadowPodPhase>,
    pub reason: String,
    pub message: String,
    /// The changeable fields of the carried pod, see `changeable_fields`.
    pub carried: String,
    /// The pod at the provider finds our API server, as the provider shows it.
    pub uses_api_server: bool,
    /// UID of the remote pod.
    pub remote_uid: Option<String>,
    /// The provider's charges for the pod, see [`liqo_metering::Charges`].
    pub charges: Claimed<Option<Box<str>>>,
    /// The text that this cluster wrote into it to recognize the pod, if the provider left it
    /// unchanged: see [`liqo_metering::voucher`].
    pub voucher: Claimed<Option<Box<str>>>,
    status: Option<Box<str>>,
}

impl ConsumerShadowPod {
    /// Reduces a shadow pod.
    pub fn from_claimed(shadow: Claimed<ShadowPod>) -> Option<Self> {
        let shadow = shadow.into_unverified();
        let status = shadow.status.unwrap_or_default();
        let pod = record_text::parse_object(&shadow.spec.pod, MAX_POD_LEN).unwrap_or_default();
        let view = PodView::of(&pod);
        let own_grace = view.spec().termination_grace_period_seconds();
        let voucher = shadow
            .metadata
            .annotations
            .and_then(|mut all| all.remove(annotations::VOUCHER));
        Some(Self {
            voucher: Claimed::new(
                voucher
                    .filter(|voucher| voucher.len() <= MAX_VOUCHER_LEN)
                    .map(Into::into),
            ),
            home: Key::new(
                shadow.spec.namespace,
                view.metadata().name().unwrap_or_default(),
            ),
            pool: shadow.spec.pool,
            deleted_at: Claimed::new(shadow.metadata.deletion_timestamp.map(|time| time.0)),
            wanted_deletion: shadow
                .spec
                .deletion
                .map(|deletion| deletion.grace_period_seconds),
            default_grace: default_grace(own_grace),
            has_finalizer: shadow
                .metadata
                .finalizers
                .iter()
                .flatten()
                .any(|name| name == finalizers::SHADOW_POD),
            phase: Claimed::new(status.phase),
            reason: status.reason.unwrap_or_default(),
            message: status.message.unwrap_or_default(),
            carried: changeable_fields(&pod),
            uses_api_server: shadow
                .metadata
                .name
                .is_some_and(|uid| uses_secret(&pod, &api_server_secret_name(&uid))),
            remote_uid: status.remote_uid,
            charges: Claimed::new(
                status
                    .charges
                    .filter(|charges| charges.len() <= MAX_CHARGES_LEN)
                    .map(Into::into),
            ),
            status: status.pod.map(|pod| pod.to_string().into()),
        })
    }

    /// Whether the provider could not create the remote pod yet, and said why.
    pub fn waits(&self) -> bool {
        *self.phase.unverified() == ShadowPodPhase::Pending && !self.reason.is_empty()
    }

    pub const fn is_terminating(&self) -> bool {
        self.deleted_at.unverified().is_some()
    }

    /// Estimated memory in bytes.
    pub fn stored_len(&self) -> usize {
        let texts = [
            &self.home.namespace,
            &self.home.name,
            &self.pool,
            &self.reason,
            &self.message,
            &self.carried,
        ];
        let (charges, voucher) = (
            self.charges.unverified().as_deref(),
            self.voucher.unverified().as_deref(),
        );
        let optional = [
            self.remote_uid.as_deref(),
            charges,
            voucher,
            self.status.as_deref(),
        ];
        size_of::<Self>()
            + texts.into_iter().map(String::len).sum::<usize>()
            + optional.into_iter().flatten().map(str::len).sum::<usize>()
    }

    /// The texts of the provider's programs: a message, and the remote pod's status as JSON text.
    pub(crate) fn provider_texts(&self) -> impl Iterator<Item = &str> {
        [Some(self.message.as_str()), self.status.as_deref()]
            .into_iter()
            .flatten()
    }

    /// The same shadow pod, with other texts.
    pub(crate) fn with_provider_texts(&self, change: impl Fn(&str) -> String) -> Self {
        let status = self.status.as_deref().map(|status| change(status).into());
        Self {
            message: change(&self.message),
            status,
            ..self.clone()
        }
    }

    /// The remote pod's status. If the provider recorded an end without a status, only the end.
    pub fn remote_status(&self) -> Option<Value> {
        let recorded = self
            .status
            .as_deref()
            .and_then(|status| serde_json::from_str::<Value>(status).ok());
        match (recorded, *self.phase.unverified()) {
            (Some(status), _) => Some(status),
            (None, ShadowPodPhase::Succeeded) => Some(json!({ "phase": "Succeeded" })),
            (None, ShadowPodPhase::Failed) => {
                Some(json!({ "phase": "Failed", "reason": self.reason, "message": self.message }))
            }
            (None, _) => None,
        }
    }
}

/// The fields of a carried pod that may change while it runs: labels, annotations, images, the
/// deadline, ephemeral containers, and requests and limits. Two carried pods with equal text need
/// no update.
pub(crate) fn changeable_fields(carried: &Value) -> String {
    let view = PodView::of(carried);
    let images: Map<String, Value> = ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(|list| view.spec().containers_in(list))
        .map(|container| {
            (
                container.name().to_owned(),
                container.image().cloned().unwrap_or_default(),
            )
        })
        .collect();
    json!([
        sorted_entries(view.metadata().labels()),
        sorted_entries(view.metadata().annotations()),
        images,
        view.spec().active_deadline_seconds(),
        ephemeral::container_names(carried),
        resources_hash(carried)
    ])
    .to_string()
}

fn sorted_entries(entries: Option<&Map<String, Value>>) -> BTreeMap<&String, &Value> {
    entries.into_iter().flatten().collect()
}

/// Changeable fields without these annotations.
fn without_annotations(changeable: &str, unwanted: &BTreeSet<String>) -> String {
    let mut fields: Value = serde_json::from_str(changeable).unwrap_or_default();
    if let Some(annotations) = fields.get_mut(1).and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !unwanted.contains(key));
    }
    fields.to_string()
}

/// The part of a changed pod that travels, with the annotations that stay as they were in the
/// shadow pod.
#[must_use]
pub fn with_recorded_annotations(part: OutgoingPart, recorded: &Value) -> Value {
    let OutgoingPart { mut pod, unchanged } = part;
    for key in unchanged {
        let annotations = PodView::of(recorded).metadata().annotations();
        if let Some(value) = annotations.and_then(|all| all.get(&key)) {
            set_at(&mut pod, &["metadata", "annotations", &key], value.clone());
        }
    }
    pod
}

/// The pod in a shadow pod with only those fields of `carried` that may change while the pod runs.
#[must_use]
pub fn with_changed_fields(recorded: Value, carried: &Value) -> Value {
    let Value::Object(mut pod) = recorded else {
        return carried.clone();
    };
    // The provider may have made anything of it.
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return carried.clone();
    };
    let wanted_spec = PodView::of(carried).spec();
    for list in ContainerList::OF_NEW_POD {
        let containers = spec
            .get_mut(list.spec_field())
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        for (container, wanted) in containers.zip(wanted_spec.containers_in(list)) {
            let Some(container) = container.as_object_mut() else {
                continue;
            };
            if let Some(image) = wanted.image() {
                container.insert("image".to_owned(), image.clone());
            }
            container.insert("resources".to_owned(), container_resources(wanted));
        }
    }
    for field in ["activeDeadlineSeconds", "ephemeralContainers", "resources"] {
        if let Some(value) = wanted_spec.json().get(field) {
            spec.insert(field.to_owned(), value.clone());
        }
    }
    pod.insert("metadata".to_owned(), carried["metadata"].clone());
    pod.into()
}

/// Equal for pods whose containers have equal requests and limits, which a resize in place changes.
fn resources_hash(pod: &Value) -> u64 {
    let spec = PodView::of(pod).spec();
    let whole = spec.resources().cloned().unwrap_or_default();
    let mut asked = Map::from_iter([("/".to_owned(), whole)]);
    for container in ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(|list| spec.containers_in(list))
    {
        asked.insert(container.name().to_owned(), container_resources(container));
    }
    json_fingerprint(&asked.into())
}

fn container_resources(container: ContainerView<'_>) -> Value {
    let resources = container.resources().json();
    if resources.is_object() {
        resources.clone()
    } else {
        json!({})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(pod: Value) -> LocalPod {
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("liqo-provider-x", "default"),
        )
        .unwrap()
    }

    #[test]
    fn fields_of_a_later_kubernetes_survive_the_reduction() {
        let reduced = home(json!({
            "metadata": {"namespace": "demo", "name": "web", "uid": "u", "managedFields": [{"manager": "kubectl"}]},
            "spec": {"containers": [{"name": "c", "image": "i", "brandNew": {"x": [1]}}], "alsoNew": true},
            "status": {"phase": "Running", "resize": "Proposed"}}));
        assert_eq!(
            reduced.to_json().pointer("/spec/containers/0/brandNew/x/0"),
            Some(&json!(1))
        );
        assert_eq!(
            reduced.to_json().pointer("/spec/alsoNew"),
            Some(&json!(true))
        );
        assert_eq!(
            reduced.to_json().pointer("/status/resize"),
            Some(&json!("Proposed"))
        );
        assert_eq!(reduced.to_json().pointer("/metadata/managedFields"), None);
    }

    #[test]
    fn what_decisions_look_at_is_read_from_the_pod() {
        let reduced = home(json!({
            "metadata": {"namespace": "demo", "name": "job", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": 7,
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "o", "controller": true}]},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]},
            "status": {"phase": "Failed", "conditions": [{"type": "liqo.io/Offloaded", "status": "Unknown",
                "reason": "Sending", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}));
        assert_eq!(
            (reduced.deletion, reduced.finished, reduced.restarts),
            (Some(7), true, false)
        );
        assert_eq!(
            reduced.controller,
            Some(OwningController {
                kind: "Job".into(),
                name: "j".into(),
                uid: "o".into()
            })
        );
        assert_eq!(
            reduced
                .offloaded
                .as_ref()
                .map(|offloaded| (offloaded.status, offloaded.reason.as_str())),
            Some((None, "Sending"))
        );
        assert!(reduced.refs.secrets.contains("s"));
    }

    #[test]
    fn a_pod_without_requests_takes_more_of_its_node_than_it_requests_until_it_ends() {
        let pod = |containers: Value, phase: &str| {
            home(
                json!({"metadata": {"namespace": "demo", "name": "web", "uid": "u"},
                "spec": {"containers": containers}, "status": {"phase": phase}}),
            )
        };
        let full = json!({"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}});
        let plain = json!({"name": "b"});
        assert_eq!(pod(json!([full]), "Running").extra_charge(), None);
        let more = pod(json!([full, plain]), "Running");
        let more = more.extra_charge().unwrap();
        assert_eq!(
            (more.get("cpu").to_string(), more.get("memory").to_string()),
            ("10m".into(), "32Mi".into())
        );
        assert_eq!(pod(json!([plain]), "Succeeded").extra_charge(), None);
    }

    #[test]
    fn a_pod_of_a_consumer_is_created_again_if_it_may_restart() {
        let pod = |policy: &str, owners: Value| {
            let labels = json!({"liqo.io/shadow-pod": "first-uid"});
            home(
                json!({"metadata": {"namespace": "demo", "name": "web", "uid": "u", "labels": labels, "ownerReferences": owners},
                "spec": {"restartPolicy": policy, "containers": []}}),
            )
        };
        let bare = pod("Always", json!([]));
        assert_eq!(
            (bare.recreation_key(true), bare.recreation_key(false)),
            (Some("demo/web".into()), None),
            "whatever its labels say"
        );
        assert_eq!(pod("Never", json!([])).recreation_key(true), None);
        let owned = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": true}]);
        assert_eq!(pod("Always", owned).recreation_key(false), Some("o".into()));
    }

    #[test]
    fn only_what_may_change_tells_two_carried_pods_apart() {
        let carried = |image: &str, label: &str, cpu: &str| {
            changeable_fields(&json!({"metadata": {"labels": {"a": label}},
                "spec": {"containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}]}}))
        };
        assert_eq!(carried("i:1", "x", "1"), carried("i:1", "x", "1"));
        assert_ne!(carried("i:1", "x", "1"), carried("i:1", "x", "2"));
        assert_ne!(carried("i:1", "x", "1"), carried("i:2", "x", "1"));
        assert_ne!(carried("i:1", "x", "1"), carried("i:1", "y", "1"));
    }

    #[test]
    fn what_changes_while_a_pod_runs_is_carried_and_then_nothing_is_left_to_carry() {
        let pod = |image: &str, label: &str, cpu: &str| {
            json!({"metadata": {"name": "web", "labels": {"a": label}}, "spec": {"activeDeadlineSeconds": cpu.len(),
                "initContainers": [{"name": "i", "image": image}],
                "containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}]}})
        };
        let recorded = pod("i:1", "x", "1");
        let mut wanted = pod("i:2", "y", "100m");
        wanted["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "busybox"}]);
        wanted["spec"]["resources"] = json!({"limits": {"cpu": "2"}});
        assert_ne!(
            changeable_fields(&wanted),
            changeable_fields(&pod("i:2", "y", "100m"))
        );
        let now = with_changed_fields(recorded, &wanted);
        let mut expected = wanted.clone();
        expected["spec"]["initContainers"][0]["resources"] = json!({});
        assert_eq!(now, expected);
        assert_eq!(
            changeable_fields(&now),
            changeable_fields(&wanted),
            "a container without amounts is not sent again"
        );
        // Whatever a provider made of the record.
        for strange in [
            Value::Null,
            json!([]),
            json!({"spec": 3}),
            json!({"spec": {"containers": [3]}}),
        ] {
            assert_eq!(
                with_changed_fields(strange, &wanted)["metadata"]["name"],
                "web"
            );
        }
    }

    #[test]
    fn an_end_without_a_status_is_still_an_end() {
        let shadow: ShadowPod = serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod", "metadata": {"name": "u"},
            "spec": {"namespace": "demo", "pool": "default", "pod": r#"{"metadata": {"name": "web"}}"#},
            "status": {"phase": "Failed", "reason": "DeadlineExceeded"}}))
        .unwrap();
        let shadow = ConsumerShadowPod::from_claimed(Claimed::new(shadow)).unwrap();
        assert_eq!(shadow.home, Key::new("demo", "web"));
        assert_eq!(shadow.remote_status().unwrap()["phase"], "Failed");
    }
}
