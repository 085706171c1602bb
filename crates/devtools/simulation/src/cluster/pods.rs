//! What several controllers ask about pods, and pods made from templates.

use jiff::Timestamp;
use liqo_quantity::{Quantity, ResourceList};
use serde_json::{Value, json};

use super::{
    fields::{
        after, condition, is_ending, is_true, items, name, namespace, new_condition, set_condition,
        text, time, uid,
    },
    plan::Plan,
};

pub fn is_finished(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// Whether a pod counts as a replica: it neither finished nor ends.
pub fn is_active(pod: &Value) -> bool {
    !is_finished(pod) && !is_ending(pod)
}

pub fn is_ready(pod: &Value) -> bool {
    is_true(pod, "Ready")
}

/// Whether a pod has been ready for long enough. Asks for a look at the time when it will.
pub fn is_available(pod: &Value, min_ready_seconds: i64, plan: &mut Plan) -> bool {
    let ready = condition(pod, "Ready");
    let mut is_due = || {
        time(&ready["lastTransitionTime"])
            .is_none_or(|since| plan.is_due(after(since, min_ready_seconds)))
    };
    ready["status"] == "True" && (min_ready_seconds == 0 || is_due())
}

pub fn min_ready_seconds(object: &Value) -> i64 {
    object["spec"]["minReadySeconds"].as_i64().unwrap_or(0)
}

/// When the last container of a pod ended, or else when its deletion began.
pub fn finished_at(pod: &Value) -> Option<Timestamp> {
    let ends = items(&pod["status"]["containerStatuses"]).iter();
    let last = ends
        .filter_map(|status| time(&status["state"]["terminated"]["finishedAt"]))
        .max();
    let grace = pod["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0);
    let deleted = time(&pod["metadata"]["deletionTimestamp"]).map(|end| after(end, -grace));
    last.or(deleted)
        .or_else(|| time(&condition(pod, "Ready")["lastTransitionTime"]))
}

/// What a list of resources in an object amounts to.
pub fn amounts(list: &Value) -> ResourceList {
    let parsed = list.as_object().into_iter().flatten();
    parsed
        .filter_map(|(name, amount)| {
            Some((name.as_str(), amount.as_str()?.parse::<Quantity>().ok()?))
        })
        .collect()
}

/// What a pod needs of a node. `which` is `requests` or `limits`.
pub fn needs(pod: &Value, which: &str) -> ResourceList {
    let mut sum: ResourceList = items(&pod["spec"]["containers"])
        .iter()
        .fold(ResourceList::new(), |sum, one| {
            sum + &amounts(&one["resources"][which])
        });
    let (mut sidecars, mut peak) = (ResourceList::new(), ResourceList::new());
    for container in items(&pod["spec"]["initContainers"]) {
        let own = amounts(&container["resources"][which]);
        if container["restartPolicy"] == "Always" {
            sidecars += &own;
            peak = peak.max(&sidecars);
        } else {
            peak = peak.max(&(own + &sidecars));
        }
    }
    sum += &sidecars;
    sum.max(&peak) + &amounts(&pod["spec"]["overhead"])
}

/// A reference to the owner that controls an object.
pub fn owner_reference(owner: &Value, api_version: &str, kind: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": name(owner), "uid": uid(owner),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A pod as the owner's template describes it, with more labels, and with a generated name.
pub fn from_template(
    owner: &Value,
    api_version: &str,
    kind: &str,
    labels: &[(&str, &str)],
) -> Value {
    let template = &owner["spec"]["template"];
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-", name(owner)), "namespace": namespace(owner),
            "ownerReferences": [owner_reference(owner, api_version, kind)],
        },
        "spec": template["spec"],
    });
    for field in ["labels", "annotations", "finalizers"] {
        if !template["metadata"][field].is_null() {
            pod["metadata"][field] = template["metadata"][field].clone();
        }
    }
    for (key, value) in labels {
        pod["metadata"]["labels"][*key] = json!(value);
    }
    pod
}

/// Gives a pod its own name instead of a generated one.
pub fn set_name(pod: &mut Value, name: &str) {
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("generateName");
        metadata.insert("name".to_owned(), json!(name));
    }
}

/// The status of a pod with the condition that tells who ended it.
pub fn disruption(pod: &Value, reason: &str, message: &str, now: Timestamp) -> Value {
    let mut status = pod["status"].clone();
    set_condition(
        &mut status,
        &new_condition("DisruptionTarget", true, reason, message),
        now,
    );
    status
}

pub fn node_of(pod: &Value) -> &str {
    text(&pod["spec"]["nodeName"])
}
