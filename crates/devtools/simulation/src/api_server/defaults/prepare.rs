//! What the registry of a kind does to an object before it is checked and stored.

use super::super::kinds::has_status;
use super::json::{each, keep, or, remove};
use super::quality::quality_of_service;
use super::services;
use serde_json::{Map, Value, json};

/// The kinds whose objects begin with generation 1.
const WITH_GENERATION: [&str; 14] = [
    "Pod",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "EndpointSlice",
    "Ingress",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PriorityClass",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
];

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The status that an object has which has none.
fn empty_status(kind: &str) -> Value {
    match kind {
        "Service" | "Ingress" => json!({ "loadBalancer": {} }),
        "Namespace" => json!({ "phase": "Active" }),
        "PersistentVolumeClaim" => json!({ "phase": "Pending" }),
        "ReplicaSet" => json!({ "replicas": 0 }),
        "StatefulSet" => json!({ "replicas": 0, "availableReplicas": 0 }),
        "DaemonSet" => json!({
            "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
        }),
        "PodDisruptionBudget" => {
            json!({ "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0 })
        }
        _ => json!({}),
    }
}

/// Makes a given object one that can be created. A [`complete_job`] comes after it, with the uid.
pub fn prepare_for_create(kind: &str, object: &mut Value) {
    super::pods::drop_disabled(kind, object);
    if kind == "Pod" {
        let quality = object
            .pointer("/status/qosClass")
            .cloned()
            .unwrap_or_else(|| quality_of_service(object).into());
        object["status"] = json!({ "phase": "Pending", "qosClass": quality });
        if object.pointer("/spec/schedulingGates").is_some() {
            object["status"]["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": null,
                "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
        }
    } else if has_status(kind) && kind != "Node" {
        object["status"] = empty_status(kind);
    }
    if WITH_GENERATION.contains(&kind) {
        object["metadata"]["generation"] = 1.into();
    }
    match kind {
        "Namespace" => {
            or(&mut object["spec"], "finalizers", json!([]));
            if let Some(finalizers) = object["spec"]["finalizers"].as_array_mut()
                && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
            {
                finalizers.push("kubernetes".into());
            }
        }
        "Node" => {
            remove(&mut object["spec"], "configSource");
            remove(&mut object["status"], "config");
        }
        "ServiceAccount" => clean_secrets(object),
        "DaemonSet" => {
            let given = template_generation(object).max(1);
            object["metadata"]["annotations"][TEMPLATE_GENERATION] = given.to_string().into();
        }
        "CertificateSigningRequest" => {
            for field in ["username", "uid", "groups", "extra"] {
                remove(&mut object["spec"], field);
            }
        }
        "PersistentVolumeClaim" => data_sources(object),
        _ => {}
    }
}

/// The part of a job that needs its uid, unless the job brings its own selector.
pub fn complete_job(job: &mut Value, uid: &str) {
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let name: Value = job["metadata"]["name"].as_str().unwrap_or_default().into();
    let spec = &mut job["spec"];
    let labels = &mut spec["template"]["metadata"]["labels"];
    if labels.is_null() {
        *labels = json!({});
    }
    for prefix in ["", "batch.kubernetes.io/"] {
        or(labels, &format!("{prefix}job-name"), name.clone());
        or(labels, &format!("{prefix}controller-uid"), uid);
    }
    let selected = &mut spec["selector"]["matchLabels"];
    if selected.is_null() {
        *selected = json!({});
    }
    or(selected, "batch.kubernetes.io/controller-uid", uid);
    super::workloads::label_job(job);
}

/// A service account names its secrets and nothing more of them.
fn clean_secrets(account: &mut Value) {
    each(account, "secrets", |secret| {
        let name = secret.get("name").cloned();
        *secret = name.map_or_else(|| json!({}), |name| json!({ "name": name }));
    });
}

fn template_generation(object: &Value) -> i64 {
    let text = object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A claim names its source in two fields.
fn data_sources(claim: &mut Value) {
    let spec = &mut claim["spec"];
    let source = (
        spec["dataSource"]["apiGroup"].as_str().unwrap_or_default(),
        spec["dataSource"]["kind"].as_str(),
    );
    let known = [
        ("", Some("PersistentVolumeClaim")),
        ("snapshot.storage.k8s.io", Some("VolumeSnapshot")),
    ]
    .contains(&source);
    if !known && spec.get("dataSourceRef").is_none() {
        remove(spec, "dataSource");
    }
    if let Some(source) = spec.get("dataSource").cloned() {
        or(spec, "dataSourceRef", source);
    } else if let Some(source) = spec
        .get("dataSourceRef")
        .filter(|source| source.get("namespace").is_none())
        .cloned()
    {
        spec["dataSource"] = source;
    }
}

/// Keeps what an update must not change, and counts its generation.
pub fn prepare_for_update(kind: &str, old: &Value, new: &mut Value) {
    super::pods::drop_disabled(kind, new);
    keep(&old["metadata"], &mut new["metadata"], "generation");
    if has_status(kind) {
        keep(old, new, "status");
    }
    match kind {
        "Service" => {
            services::drop_dependent_fields(&mut new["spec"], &old["spec"]);
            if new["spec"]["type"] != "LoadBalancer" {
                new["status"]["loadBalancer"] = json!({});
            }
        }
        "Namespace" => keep_in(old, new, "spec", "finalizers"),
        "CertificateSigningRequest" => keep(old, new, "spec"),
        "Node" if old.pointer("/spec/configSource").is_none() => {
            remove(&mut new["spec"], "configSource");
        }
        "Secret" if new["type"] == "" => keep(old, new, "type"),
        "ServiceAccount" => clean_secrets(new),
        "PersistentVolumeClaim" => data_sources(new),
        "DaemonSet" => {
            let changed = old["spec"]["template"] != new["spec"]["template"];
            let generation = template_generation(old) + i64::from(changed);
            new["metadata"]["annotations"][TEMPLATE_GENERATION] = generation.to_string().into();
        }
        _ => {}
    }
    if counts(kind, old, new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        new["metadata"]["generation"] = generation.into();
    }
    keep_system_metadata(old, new);
}

/// Whether a change is one that the generation counts.
fn counts(kind: &str, old: &Value, new: &Value) -> bool {
    let differs = |pointer: &str| old.pointer(pointer) != new.pointer(pointer);
    match kind {
        "Deployment" => differs("/spec") || differs("/metadata/annotations"),
        "EndpointSlice" => {
            differs("/metadata/labels")
                || ["/addressType", "/endpoints", "/ports"]
                    .into_iter()
                    .any(differs)
        }
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => differs("/webhooks"),
        "PriorityClass" => false,
        _ => WITH_GENERATION.contains(&kind) && differs("/spec"),
    }
}

/// What an update of any kind keeps: when and as what an object was made, and that it is being
/// deleted.
fn keep_system_metadata(old: &Value, new: &mut Value) {
    let (old, new) = (&old["metadata"], &mut new["metadata"]);
    if new["uid"].as_str().unwrap_or_default().is_empty() {
        keep(old, new, "uid");
    }
    keep(old, new, "creationTimestamp");
    if old.get("deletionTimestamp").is_some() {
        keep(old, new, "deletionTimestamp");
    }
    if new["deletionGracePeriodSeconds"].is_null() {
        keep(old, new, "deletionGracePeriodSeconds");
    }
}

fn keep_in(old: &Value, new: &mut Value, part: &str, field: &str) {
    keep(&old[part], &mut new[part], field);
}

/// Keeps what an update by way of a subresource must not change: `status`, `approval` of requests
/// for certificates, `finalize` of namespaces, or `ephemeralcontainers` of pods.
pub fn prepare_for_subresource(kind: &str, subresource: &str, old: &Value, new: &mut Value) {
    keep_in(old, new, "metadata", "generation");
    match (kind, subresource) {
        ("Namespace", "finalize") => keep(old, new, "status"),
        ("Pod", "ephemeralcontainers") => {
            let containers = new["spec"].get("ephemeralContainers").cloned();
            for field in [
                "deletionTimestamp",
                "labels",
                "annotations",
                "finalizers",
                "ownerReferences",
            ] {
                keep_in(old, new, "metadata", field);
            }
            keep(old, new, "spec");
            keep(old, new, "status");
            if let Some(containers) = containers {
                new["spec"]["ephemeralContainers"] = containers;
            }
            if new["spec"] != old["spec"] {
                new["metadata"]["generation"] =
                    (old["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
            }
        }
        (_, "approval") => {
            let conditions = new["status"].get("conditions").cloned();
            keep(old, new, "spec");
            keep(old, new, "status");
            match conditions {
                Some(conditions) => new["status"]["conditions"] = conditions,
                None => remove(&mut new["status"], "conditions"),
            }
        }
        _ => keep_for_status(kind, old, new),
    }
    keep_system_metadata(old, new);
}

fn keep_for_status(kind: &str, old: &Value, new: &mut Value) {
    keep(old, new, "spec");
    match kind {
        "Deployment" => keep_in(old, new, "metadata", "labels"),
        "DaemonSet" => {
            let generation = template_generation(old);
            new["metadata"]["annotations"][TEMPLATE_GENERATION] = generation.to_string().into();
        }
        "Pod" => {
            remove(&mut new["metadata"], "deletionTimestamp");
            keep_in(old, new, "metadata", "ownerReferences");
            if new.pointer("/status/qosClass").is_none() {
                keep_in(old, new, "status", "qosClass");
            }
            keep_observed_generations(&old["status"], &mut new["status"]);
        }
        "Node" if old.pointer("/status/config").is_none() => remove(&mut new["status"], "config"),
        "CertificateSigningRequest" => {
            keep_approval(old, new, "Approved");
            keep_approval(old, new, "Denied");
        }
        _ => {}
    }
}

/// The approval of a request does not change with its status, unless a condition is added or
/// removed, which is refused.
fn keep_approval(old: &Value, new: &mut Value, kind: &str) {
    let is_kind = |condition: &&Value| condition["type"] == kind;
    let known: Vec<_> = old["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_kind)
        .cloned()
        .collect();
    let given = new["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(is_kind)
        .count();
    if known.len() == given {
        let mut known = known.into_iter();
        each(&mut new["status"], "conditions", |condition| {
            if condition["type"] == kind
                && let Some(known) = known.next()
            {
                *condition = known;
            }
        });
    }
}

/// Gives conditions the time of a change, where a client left it to the server: those of a request
/// for a certificate, and of a new pod that waits at a gate. `now` is in seconds.
pub fn complete_condition_times(kind: &str, old: Option<&Value>, object: &mut Value, now: &str) {
    let known = old
        .and_then(|old| old["status"]["conditions"].as_array())
        .cloned()
        .unwrap_or_default();
    if !(kind == "CertificateSigningRequest" || (kind == "Pod" && old.is_none())) {
        return;
    }
    each(&mut object["status"], "conditions", |condition| {
        if kind == "CertificateSigningRequest" {
            or(condition, "lastUpdateTime", now);
        }
        let same =
            |old: &&Value| old["type"] == condition["type"] && old["status"] == condition["status"];
        let since = known
            .iter()
            .find(same)
            .and_then(|old| old["lastTransitionTime"].as_str())
            .unwrap_or(now)
            .to_owned();
        or(condition, "lastTransitionTime", since);
    });
}

fn keep_observed_generations(old: &Value, new: &mut Value) {
    if new.get("observedGeneration").is_none() {
        keep(old, new, "observedGeneration");
    }
    let mut known = old["conditions"].as_array().cloned().unwrap_or_default();
    each(new, "conditions", |condition| {
        if let Some(at) = known
            .iter()
            .position(|old| old["type"] == condition["type"])
        {
            let old = known.remove(at);
            if condition.get("observedGeneration").is_none() {
                keep(&old, condition, "observedGeneration");
            }
        }
    });
}

/// The last change after an object passed its checks: the label of a namespace's name, and what a
/// service shows that has no address.
pub fn canonicalize(kind: &str, object: &mut Value) {
    match kind {
        "Namespace" => {
            let name = object["metadata"]["name"].clone();
            or(&mut object["metadata"], "labels", Map::new());
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
        }
        "Service" if object["spec"]["type"] == "ExternalName" => {
            remove(&mut object["spec"], "internalTrafficPolicy");
        }
        _ => {}
    }
}

/// Both groups of events show the same objects: writes one as the given group does. The result is
/// to be pruned.
pub fn convert_event(to_group: &str, event: &mut Value) {
    const NAMES: [(&str, &str); 7] = [
        ("involvedObject", "regarding"),
        ("message", "note"),
        ("source", "deprecatedSource"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("count", "deprecatedCount"),
        ("reportingComponent", "reportingController"),
    ];
    let Some(fields) = event.as_object_mut() else {
        return;
    };
    for (core, new) in NAMES {
        let (from, to) = if to_group.is_empty() {
            (new, core)
        } else {
            (core, new)
        };
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
    let version = if to_group.is_empty() {
        "v1".to_owned()
    } else {
        format!("{to_group}/v1")
    };
    fields.insert("apiVersion".to_owned(), version.into());
}
