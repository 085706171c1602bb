//! Resizing in place: the requests and limits of a pod change while it runs (KEP-1287,
//! `kubectl patch pod --subresource resize`).
//!
//! The new amounts travel with the other changes of a pod. The provider charges what is added
//! before it asks its API server, which accepts other amounts only through a subresource; the
//! kubelet there does the rest and reports it in the pod's status. If the provider refuses, it adds
//! the condition that a kubelet would write.

use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use liqo_api::requests::EffectiveAmounts;
use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::json::{entry_at, name, set_at};
use crate::pod::admission::negative_quantity;
use crate::pod::carry::{ProviderRules, amounts, last_travelled_record};
use crate::pod::consumer_policy::ConsumerPolicy;
use crate::pod::local_status::{RESIZE_PENDING, truncate_text};
use crate::pod::reported_status::PodStatusText;
use crate::views::{ConditionView, ContainerList, PodSpecView, PodStatusView, PodView};

/// The resources that Kubernetes changes in place.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The lists of containers that can be resized.
const LISTS: [ContainerList; 2] = [ContainerList::Main, ContainerList::Init];

/// The key of the amounts of the pod as a whole. No container has this name.
const WHOLE_POD: &str = "/";

/// The reason why a pod is not resized, as a kubelet reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingResize {
    pub reason: &'static str,
    /// The obstacle, and what to do about it.
    pub message: String,
}

impl PendingResize {
    /// The pod can be resized later.
    pub fn deferred(message: impl Into<String>) -> Self {
        Self {
            reason: "Deferred",
            message: message.into(),
        }
    }

    /// The pod cannot be resized to these amounts.
    pub fn infeasible(message: impl Into<String>) -> Self {
        Self {
            reason: "Infeasible",
            message: message.into(),
        }
    }

    /// The reason of an event about it; a kubelet's own word.
    pub fn event_reason(&self) -> String {
        format!("Resize{}", self.reason)
    }
}

/// A remote pod with other amounts than it has.
#[derive(Debug, PartialEq)]
pub struct Resize {
    /// The strategic merge patch of the pod's subresource `resize`.
    pub patch: Value,
    /// The pod's spec with the new amounts.
    spec: Value,
    /// The pod's status, without what its kubelet said about other amounts.
    status: Value,
}

/// The amounts that a pod is charged for a resize.
#[derive(Clone, Debug, PartialEq)]
pub struct ResizeCharge {
    /// The amounts in its spec.
    pub asked: EffectiveAmounts,
    /// The larger ones of these and of those that its kubelet has not released.
    pub held: EffectiveAmounts,
}

impl ResizeCharge {
    #[must_use]
    pub(crate) fn max(&self, other: &Self) -> Self {
        Self {
            asked: self.asked.max(&other.asked),
            held: self.held.max(&other.held),
        }
    }
}

impl Resize {
    /// The provider's side: the resize that makes the pod follow what travels now; `None` if
    /// nothing is to change.
    ///
    /// A resized pod gets the amounts that a new pod of its size would get. They are compared with
    /// those of the size that travelled last, not with the live ones, which the provider's own
    /// admission may have changed. The amounts of a pod without a record, which an earlier version
    /// created, are only recorded.
    pub fn needed_for(carried: &Value, live: &Value, rules: &ProviderRules) -> Option<Self> {
        let before = completed_amounts(&recorded_amounts(live)?, carried, rules);
        let now = completed_amounts(&resizable_amounts(carried), carried, rules);

        let live = PodView::of(live);
        let (mut spec, mut patch) = (live.spec().json().clone(), Map::new());
        for list in LISTS {
            let mut changes = Vec::new();
            for container in spec
                .get_mut(list.spec_field())
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                let key = name(container);
                let resources = &container["resources"];
                if let Some(size) = missing_amounts(now.get(key), before.get(key), resources) {
                    changes.push(json!({ "name": name(container), "resources": size }));
                    set_amounts(entry_at(container, &["resources"]), &size);
                }
            }
            if !changes.is_empty() {
                patch.insert(list.spec_field().into(), changes.into());
            }
        }
        let resources = PodSpecView::of(&spec).resources();
        let resources = resources.unwrap_or(&Value::Null);
        if let Some(size) = missing_amounts(now.get(WHOLE_POD), before.get(WHOLE_POD), resources) {
            set_amounts(entry_at(&mut spec, &["resources"]), &size);
            patch.insert("resources".into(), size);
        }
        let mut status = live.status().json().clone();
        if let Some(fields) = status.as_object_mut() {
            fields.remove("conditions");
        }
        (!patch.is_empty()).then(|| Self {
            patch: json!({ "spec": patch }),
            spec,
            status,
        })
    }

    /// The amounts that the pod will be charged, or the reason why it may not have them.
    pub fn charge(&self, policy: &ConsumerPolicy) -> Result<ResizeCharge, PendingResize> {
        let spec = PodSpec::deserialize(&self.spec).map_err(|error| {
            PendingResize::infeasible(format!(
                "the new size of the pod cannot be read: {:.200}",
                error.to_string()
            ))
        })?;
        if let Some(refusal) = negative_quantity(&spec).or_else(|| policy.missing_limit(&spec)) {
            return Err(PendingResize::infeasible(refusal.message));
        }
        let (asked, status) = (
            EffectiveAmounts::of_pod(&spec),
            PodStatus::deserialize(&self.status).unwrap_or_default(),
        );
        Ok(ResizeCharge {
            asked,
            held: EffectiveAmounts::of_bound_pod(None, spec, &status),
        })
    }
}

/// The amounts of a carried pod that can change in place, by container.
pub(crate) fn resizable_amounts(carried: &Value) -> Value {
    let spec = PodView::of(carried).spec();
    let containers = LISTS.into_iter().flat_map(|list| spec.containers_in(list));
    let sizes = containers.map(|container| {
        (
            container.name().to_owned(),
            resizable_part(container.resources().json()),
        )
    });
    let whole = spec
        .resources()
        .map(|whole| (WHOLE_POD.to_owned(), resizable_part(whole)));
    sizes.chain(whole).collect::<Map<_, _>>().into()
}

/// The sizes that a new pod with these containers and sizes would get.
fn completed_amounts(asked: &Value, carried: &Value, rules: &ProviderRules) -> Value {
    let mut spec = Map::new();
    for list in LISTS {
        let containers = PodView::of(carried).spec().containers_in(list);
        let containers = containers.map(|container| {
            let name = container.name();
            json!({ "name": name, "resources": asked.get(name) })
        });
        spec.insert(list.spec_field().to_owned(), containers.collect());
    }
    spec.extend(
        asked
            .get(WHOLE_POD)
            .map(|whole| ("resources".to_owned(), whole.clone())),
    );
    amounts::complete_amounts(&mut spec, &rules.amounts);
    resizable_amounts(&json!({ "spec": spec }))
}

/// The amounts that travelled last; `None` for a pod of an earlier version.
pub(crate) fn recorded_amounts(live: &Value) -> Option<Value> {
    let mut record = last_travelled_record(live);
    record
        .get_mut("resources")
        .map(Value::take)
        .filter(Value::is_object)
}

/// The reported status with the condition of a resize that was refused.
pub(crate) fn with_pending_resize(
    status: Option<PodStatusText>,
    pending: Option<&PendingResize>,
) -> Option<PodStatusText> {
    let Some(pending) = pending else {
        return status;
    };
    let mut status = status.map(|status| status.to_value()).unwrap_or_default();
    let others = PodStatusView::of(&status)
        .conditions()
        .filter(|condition| condition.kind() != Some(RESIZE_PENDING))
        .map(ConditionView::json);
    let shown = json!({ "type": RESIZE_PENDING, "status": "True", "reason": pending.reason, "message": truncate_text(&pending.message) });
    let conditions: Value = others.cloned().chain([shown]).collect();
    set_at(&mut status, &["conditions"], conditions);
    Some(PodStatusText::from_status(&status))
}

/// The requests and limits that can change in place.
fn resizable_part(resources: &Value) -> Value {
    let mut part = Map::new();
    for kind in ["requests", "limits"] {
        let amounts: Map<String, Value> = RESIZABLE
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), resources.get(kind)?.get(name)?.clone())))
            .collect();
        if !amounts.is_empty() {
            part.insert(kind.to_owned(), amounts.into());
        }
    }
    part.into()
}

/// The amounts that changed and that these resources do not have yet.
fn missing_amounts(
    now: Option<&Value>,
    before: Option<&Value>,
    resources: &Value,
) -> Option<Value> {
    let changed = changed_amounts(now?, before);
    (!has_amounts(resources, &changed)).then_some(changed)
}

/// The amounts that are new or were different before.
fn changed_amounts(size: &Value, before: Option<&Value>) -> Value {
    let mut changed = json!({});
    for (kind, name, amount) in amount_entries(size) {
        if before.and_then(|before| before.get(kind)?.get(name)) != Some(amount) {
            set_at(&mut changed, &[kind, name], amount.clone());
        }
    }
    changed
}

/// Whether all these amounts are there.
fn has_amounts(resources: &Value, size: &Value) -> bool {
    amount_entries(size).all(|(kind, name, amount)| {
        let found = resources.get(kind).and_then(|amounts| amounts.get(name));
        found.is_some_and(|found| is_same_amount(found, amount))
    })
}

/// Whether both are the same text, or the same quantity in other words.
fn is_same_amount(one: &Value, other: &Value) -> bool {
    one == other
        || Quantity::deserialize(one)
            .is_ok_and(|quantity| Quantity::deserialize(other).is_ok_and(|other| quantity == other))
}

/// Sets these amounts; others stay, as with the patch.
fn set_amounts(resources: &mut Value, size: &Value) {
    for (kind, name, amount) in amount_entries(size) {
        set_at(resources, &[kind, name], amount.clone());
    }
}

fn amount_entries(size: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let kinds = size.as_object().into_iter().flatten();
    kinds.flat_map(|(kind, amounts)| {
        amounts
            .as_object()
            .into_iter()
            .flatten()
            .map(move |(name, amount)| (kind, name, amount))
    })
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
mod tests {
    use liqo_api::{Charge, annotations};

    use super::*;
    use crate::fixtures::policy;

    fn carried(resources: Value) -> Value {
        json!({ "metadata": { "name": "web" }, "spec": { "containers": [
            { "name": "c", "image": "i", "resources": resources }, { "name": "other", "image": "i" }] } })
    }

    /// The pod that the provider created from these amounts.
    fn live(resources: Value) -> Value {
        let mut pod = carried(resources);
        let record =
            json!({ "labels": [], "annotations": [], "images": {}, "resources": resizable_amounts(&pod) })
                .to_string();
        amounts::complete_amounts(
            pod["spec"].as_object_mut().unwrap(),
            &ProviderRules::default().amounts,
        );
        pod["metadata"]["annotations"] = json!({ annotations::TRAVELLED: record });
        pod
    }

    fn cpu(amount: &str) -> Value {
        json!({ "requests": { "cpu": amount } })
    }

    fn resize_of(carried: &Value, live: &Value) -> Option<Resize> {
        Resize::needed_for(carried, live, &ProviderRules::default())
    }

    #[test]
    fn only_the_container_whose_amounts_changed_is_resized_and_charged_its_new_amounts() {
        let found = resize_of(&carried(cpu("2")), &live(cpu("1"))).unwrap();
        let new = json!({ "requests": { "cpu": "2" } });
        assert_eq!(
            found.patch,
            json!({ "spec": { "containers": [{ "name": "c", "resources": new }] } })
        );
        let charge = found.charge(&policy(json!({}))).unwrap();
        assert_eq!(charge.asked, charge.held);
        assert_eq!(
            charge
                .asked
                .charged_amounts(Charge::Requests)
                .get("cpu")
                .to_string(),
            "2010m"
        );
        assert_eq!(resize_of(&carried(cpu("1")), &live(cpu("1"))), None);
    }

    #[test]
    fn sidecars_and_the_pod_as_a_whole_are_resized_too() {
        let with = |amount: &str| {
            let mut pod = live(cpu("1"));
            pod["spec"]["initContainers"] =
                json!([{ "name": "s", "restartPolicy": "Always", "resources": cpu(amount) }]);
            pod["spec"]["resources"] = json!({ "limits": { "cpu": amount } });
            let record = json!({ "resources": resizable_amounts(&pod) }).to_string();
            pod["metadata"]["annotations"] = json!({ annotations::TRAVELLED: record });
            pod
        };
        let patch = resize_of(&with("3"), &with("2")).unwrap().patch;
        assert_eq!(
            patch["spec"]["initContainers"][0]["resources"]["requests"]["cpu"],
            "3"
        );
        assert_eq!(
            patch["spec"]["resources"],
            json!({ "requests": { "cpu": "3" }, "limits": { "cpu": "3" } })
        );
        assert_eq!(patch["spec"].get("containers"), None);
    }

    #[test]
    fn what_the_providers_admission_set_stays_until_the_consumer_asks_for_another_size() {
        let mut raised = live(cpu("1"));
        raised["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("1500m");
        raised["spec"]["containers"][0]["resources"]["limits"] =
            json!({ "ephemeral-storage": "1Gi" });
        assert_eq!(resize_of(&carried(cpu("1")), &raised), None);
        let found = resize_of(&carried(cpu("2")), &raised).unwrap();
        assert_eq!(
            found.spec["containers"][0]["resources"]["limits"],
            json!({ "ephemeral-storage": "1Gi" })
        );
        assert_eq!(
            resize_of(&carried(cpu("1.5")), &raised),
            None,
            "the same amount in other words"
        );
        // A pod of an earlier version has no record of its amounts, so nobody knows who chose them.
        raised["metadata"]["annotations"] = json!({ annotations::TRAVELLED: "{}" });
        assert_eq!(resize_of(&carried(cpu("2")), &raised), None);
    }

    #[test]
    fn a_pod_holds_what_its_kubelet_has_not_released_whatever_else_grows() {
        let with = |one: &str, other: &str| {
            let mut pod = live(cpu(one));
            pod["spec"]["containers"][1]["resources"] = cpu(other);
            pod["metadata"]["annotations"] = json!({ annotations::TRAVELLED: json!({ "resources": resizable_amounts(&pod) }).to_string() });
            let has = json!({ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": { "cpu": "2" } });
            // What the kubelet said about the amounts before.
            let condition =
                json!({ "type": RESIZE_PENDING, "status": "True", "reason": "Infeasible" });
            pod["status"] = json!({ "conditions": [condition], "containerStatuses": [has] });
            pod
        };
        let charge = resize_of(&with("1", "3"), &with("1", "1"))
            .unwrap()
            .charge(&policy(json!({})))
            .unwrap();
        let cpu = |charge: &EffectiveAmounts| {
            charge
                .charged_amounts(Charge::Requests)
                .get("cpu")
                .to_string()
        };
        assert_eq!(
            (cpu(&charge.asked), cpu(&charge.held)),
            ("4".to_owned(), "5".to_owned())
        );
    }

    #[test]
    fn a_resized_pod_has_the_amounts_of_a_new_one_of_its_size() {
        let memory = |request: &str| json!({ "requests": { "memory": request } });
        let limited = |limit: &str| json!({ "requests": { "memory": "16Mi" }, "limits": { "memory": limit } });
        for (before, now) in [
            (memory("1Gi"), memory("2Gi")),
            (memory("1Gi"), memory("0")),
            (memory("1Gi"), memory("1")),
            (cpu("1"), cpu("1m")),
            (memory("16Mi"), limited("1Ti")),
            (limited("1Ti"), memory("16Mi")),
            (limited("64Mi"), limited("32Mi")),
        ] {
            let found = resize_of(&carried(now.clone()), &live(before.clone())).unwrap();
            assert_eq!(
                found.spec["containers"],
                live(now.clone())["spec"]["containers"],
                "from {before} to {now}"
            );
        }
        let smallest = resize_of(&carried(memory("0")), &live(memory("1Gi"))).unwrap();
        let size = json!({ "requests": { "memory": "16Mi" }, "limits": { "memory": "128Mi" } });
        assert_eq!(smallest.patch["spec"]["containers"][0]["resources"], size);
        assert_eq!(
            resize_of(&carried(memory("1")), &live(memory("0"))),
            None,
            "both are raised to the least"
        );
    }

    #[test]
    fn a_pod_without_the_limits_of_today_runs_on_without_them_until_its_memory_is_resized() {
        let mut old = live(cpu("1"));
        for container in old["spec"]["containers"].as_array_mut().unwrap() {
            container["resources"]["limits"].take();
        }
        assert_eq!(resize_of(&carried(cpu("1")), &old), None);
        let patch = resize_of(&carried(cpu("2")), &old).unwrap().patch;
        assert_eq!(
            patch["spec"]["containers"],
            json!([{ "name": "c", "resources": { "requests": { "cpu": "2" } } }])
        );
    }

    #[test]
    fn only_processors_and_memory_are_resized() {
        let more = json!({ "requests": { "cpu": "1", "example.com/gpu": "8" }, "claims": [{ "name": "device" }] });
        assert_eq!(resize_of(&carried(more), &live(cpu("1"))), None);
    }

    #[test]
    fn a_size_that_is_none_and_one_without_the_limits_of_the_policy_are_infeasible() {
        let charge = |size: Value, usage: Value| {
            resize_of(&carried(size), &live(cpu("1")))
                .unwrap()
                .charge(&policy(usage))
        };
        let reason = |size: Value, usage: Value| charge(size, usage).unwrap_err().reason;
        assert_eq!(reason(cpu("-1"), json!({})), "Infeasible");
        assert_eq!(
            reason(json!({ "requests": { "cpu": { "a": 1 } } }), json!({})),
            "Infeasible"
        );
        assert_eq!(
            reason(cpu("2"), json!({ "charge": "Limits" })),
            "Infeasible"
        );
        let unreadable = json!({ "requests": { "cpu": ["x".repeat(2000)], "x".repeat(2000): 1 } });
        assert!(
            charge(unreadable, json!({})).unwrap_err().message.len() < 300,
            "its message is bounded"
        );
        assert!(charge(cpu("2"), json!({})).is_ok());
    }

    #[test]
    fn a_refused_resize_shows_in_place_of_what_the_kubelet_said_before() {
        let said = json!({ "conditions": [{ "type": "Ready", "status": "True" },
            { "type": RESIZE_PENDING, "status": "True", "reason": "Deferred" }] });
        let pending = PendingResize::infeasible("too much");
        let shown = with_pending_resize(Some(PodStatusText::from_status(&said)), Some(&pending))
            .unwrap()
            .to_value();
        let refused = json!({ "type": RESIZE_PENDING, "status": "True", "reason": "Infeasible", "message": "too much" });
        assert_eq!(
            shown["conditions"],
            json!([{ "type": "Ready", "status": "True" }, refused])
        );
        assert_eq!(pending.event_reason(), "ResizeInfeasible");
        assert_eq!(
            with_pending_resize(Some(PodStatusText::from_status(&said)), None),
            Some(PodStatusText::from_status(&said))
        );
    }
}
