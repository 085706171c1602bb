//! What an API server refuses.
//!
//! These are the checks that clients of ours can fail: names and labels, what is missing, what must
//! not change. A real API server has many more. Refusals have its causes (reason and field), with
//! messages of our own, in any order.

mod fields;
mod metadata;
mod names;
mod pods;
mod services;
#[cfg(test)]
mod tests;
mod workloads;

use std::net::IpAddr;

use serde_json::Value;

use super::cause::{Cause, CauseKind};
use fields::{Causes, at, entries, items, text};
use names::NameRule;

/// Fields that an update must leave as they are.
const IMMUTABLE: &[(&str, &[&str])] = &[
    ("ClusterRoleBinding", &["roleRef"]),
    ("DaemonSet", &["spec.selector"]),
    ("Deployment", &["spec.selector"]),
    ("EndpointSlice", &["addressType"]),
    (
        "Job",
        &[
            "spec.selector",
            "spec.completionMode",
            "spec.podFailurePolicy",
            "spec.successPolicy",
        ],
    ),
    ("ReplicaSet", &["spec.selector"]),
    ("RoleBinding", &["roleRef"]),
    ("RuntimeClass", &["handler"]),
    ("Secret", &["type"]),
];

/// The name that causes have for a field of an event of the newer group, and its name there.
const IMMUTABLE_OF_EVENTS: [(&str, &str); 13] = [
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("reason", "reason"),
    ("message", "note"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

fn is_new_event(object: &Value) -> bool {
    object["apiVersion"] == "events.k8s.io/v1"
}

/// What the names of a kind look like.
fn name_rule(kind: &str, object: &Value) -> NameRule {
    match kind {
        "Namespace" | "StatefulSet" => names::LABEL,
        "Service" => names::SERVICE,
        "Event" if is_new_event(object) => names::SUBDOMAIN,
        "Role"
        | "ClusterRole"
        | "RoleBinding"
        | "ClusterRoleBinding"
        | "CertificateSigningRequest"
        | "Event"
        | "PodDisruptionBudget" => names::PATH_SEGMENT,
        _ => names::SUBDOMAIN,
    }
}

/// Whether finalizers without a domain must be those of Kubernetes: kinds of later groups are
/// checked less.
fn knows_finalizers(kind: &str, object: &Value) -> bool {
    match kind {
        "" | "Lease" | "PodDisruptionBudget" => false,
        "Event" => is_new_event(object),
        kind => !kind.ends_with("WebhookConfiguration"),
    }
}

/// Why an object cannot be created. `kind` is empty for those that a definition declares.
pub fn validate_create(kind: &str, object: &Value) -> Vec<Cause> {
    let mut causes = Causes::default();
    metadata::check(&mut causes, object, name_rule(kind, object));
    if knows_finalizers(kind, object) {
        metadata::known_finalizers(&mut causes, object);
    }
    match kind {
        "Pod" => pods::check_new(&mut causes, object),
        "Event" => check_place_of_event(&mut causes, object),
        "EndpointSlice" => check_slice(&mut causes, object),
        _ => check(&mut causes, kind, object),
    }
    causes.into_vec()
}

/// Why an object cannot be changed.
pub fn validate_update(kind: &str, old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = metadata_of_update(kind, old, new);
    check(&mut causes, kind, new);
    for path in IMMUTABLE
        .iter()
        .filter(|(of, _)| *of == kind)
        .flat_map(|(_, paths)| *paths)
    {
        causes.refuse_change(path, at(old, path), at(new, path));
    }
    match kind {
        "ConfigMap" | "Secret" => check_immutable_data(&mut causes, old, new),
        "Service" => services::check_update(&mut causes, &old["spec"], &new["spec"]),
        // What was stored once is accepted for ever.
        "EndpointSlice" if old["endpoints"] != new["endpoints"] => check_slice(&mut causes, new),
        "Node" => check_node_update(&mut causes, &old["spec"], &new["spec"]),
        "Event" => check_event_update(&mut causes, old, new),
        "Pod" => pods::check_update(&mut causes, old, new),
        "StatefulSet" => workloads::check_stateful_set_update(&mut causes, old, new),
        "Job" => workloads::check_job_update(&mut causes, old, new),
        "PersistentVolumeClaim" => workloads::check_claim_update(&mut causes, old, new),
        _ => {}
    }
    causes.into_vec()
}

/// Why an object cannot be changed by way of a subresource.
pub fn validate_subresource(kind: &str, subresource: &str, old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = metadata_of_update(kind, old, new);
    match (kind, subresource) {
        ("Pod", "ephemeralcontainers") => pods::check_spec(&mut causes, "spec", &new["spec"]),
        ("Pod", _) => causes.refuse_change(
            "status.qosClass",
            &old["status"]["qosClass"],
            &new["status"]["qosClass"],
        ),
        ("Node", _) => check_node_update(&mut causes, &old["spec"], &new["spec"]),
        ("Service", _) => services::check_status(&mut causes, new),
        ("CertificateSigningRequest", _) => {
            check_conditions_of_request(&mut causes, subresource, old, new);
        }
        _ => {}
    }
    causes.into_vec()
}

fn metadata_of_update(kind: &str, old: &Value, new: &Value) -> Causes {
    let mut causes = Causes::default();
    metadata::check_update(&mut causes, old, new);
    if knows_finalizers(kind, new) {
        metadata::known_finalizers(&mut causes, new);
    }
    causes
}

/// What holds for new objects and for changed ones.
fn check(causes: &mut Causes, kind: &str, object: &Value) {
    match kind {
        "ConfigMap" | "Secret" => check_data(causes, object),
        "Service" => services::check(causes, &object["spec"]),
        "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" => {
            workloads::check(causes, &object["spec"]);
        }
        "Job" => workloads::check_job(causes, object),
        "PodDisruptionBudget" => check_budget(causes, &object["spec"]),
        "RoleBinding" => check_role_ref(causes, &object["roleRef"], &["Role", "ClusterRole"]),
        "ClusterRoleBinding" => check_role_ref(causes, &object["roleRef"], &["ClusterRole"]),
        _ => {}
    }
}

fn check_data(causes: &mut Causes, object: &Value) {
    for field in ["data", "binaryData"] {
        for (key, _) in entries(&object[field]) {
            causes.check_name(format!("{field}[{key}]"), key, names::CONFIG_KEY);
        }
    }
    if object["type"] == "kubernetes.io/tls" {
        for key in ["tls.crt", "tls.key"]
            .into_iter()
            .filter(|key| object["data"][*key].is_null())
        {
            causes.required(format!("data[{key}]"));
        }
    }
}

fn check_immutable_data(causes: &mut Causes, old: &Value, new: &Value) {
    if old["immutable"] != true {
        return;
    }
    for field in ["immutable", "data", "binaryData"]
        .into_iter()
        .filter(|field| old[*field] != new[*field])
    {
        causes.forbidden(field, "field is immutable when `immutable` is set");
    }
}

fn check_role_ref(causes: &mut Causes, role: &Value, kinds: &[&str]) {
    if !kinds.contains(&text(&role["kind"])) {
        causes.add(
            CauseKind::NotSupported,
            "roleRef.kind",
            &format!("must be one of {}", kinds.join(", ")),
        );
    }
    if text(&role["name"]).is_empty() {
        causes.required("roleRef.name");
    }
}

/// Both kinds of a budget exclude each other.
fn check_budget(causes: &mut Causes, spec: &Value) {
    if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
        causes.invalid("spec", "minAvailable and maxUnavailable cannot be both set");
    }
    metadata::labels(
        causes,
        "spec.selector.matchLabels",
        &spec["selector"]["matchLabels"],
    );
}

/// A slice has addresses of one family.
fn check_slice(causes: &mut Causes, slice: &Value) {
    let is_right =
        |address: &Value| match (text(&slice["addressType"]), text(address).parse::<IpAddr>()) {
            ("IPv4", Ok(address)) => address.is_ipv4(),
            ("IPv6", Ok(address)) => address.is_ipv6(),
            ("FQDN", _) => true,
            _ => false,
        };
    for (index, endpoint) in items(&slice["endpoints"]).iter().enumerate() {
        if !items(&endpoint["addresses"]).iter().all(is_right) {
            causes.invalid(
                format!("endpoints[{index}].addresses"),
                "must be addresses of the slice's type",
            );
        }
    }
}

fn check_node_update(causes: &mut Causes, old: &Value, new: &Value) {
    for field in ["podCIDRs", "providerID"]
        .into_iter()
        .filter(|field| !old[*field].is_null() && old[*field] != new[*field])
    {
        causes.forbidden(format!("spec.{field}"), "may not change once set");
    }
}

/// An event is in the namespace of its object. Those of cluster-scoped objects have places of their
/// own.
fn check_place_of_event(causes: &mut Causes, event: &Value) {
    let object = if is_new_event(event) {
        &event["regarding"]
    } else {
        &event["involvedObject"]
    };
    let namespace = text(&event["metadata"]["namespace"]);
    let agrees = match (text(&object["namespace"]), event["eventTime"].is_null()) {
        ("", true) => namespace == "default",
        ("", false) => matches!(namespace, "default" | "kube-system"),
        (involved, true) => involved == namespace,
        (_, false) => true,
    };
    if !agrees {
        causes.invalid("involvedObject.namespace", "must be the event's");
    }
}

fn check_event_update(causes: &mut Causes, old: &Value, new: &Value) {
    check_place_of_event(causes, new);
    if is_new_event(new) {
        for (path, field) in IMMUTABLE_OF_EVENTS {
            causes.refuse_change(path, &old[field], &new[field]);
        }
    }
}

/// Only the approval of a request for a certificate changes whether it is approved.
fn check_conditions_of_request(causes: &mut Causes, subresource: &str, old: &Value, new: &Value) {
    let of_kind = |object: &Value, kind: &str| -> Vec<Value> {
        items(&object["status"]["conditions"])
            .iter()
            .filter(|condition| condition["type"] == kind)
            .cloned()
            .collect()
    };
    let path = "status.conditions";
    for kind in ["Approved", "Denied", "Failed"] {
        let (before, after) = (of_kind(old, kind), of_kind(new, kind));
        let is_added = after.len() > before.len() || after.len() == before.len() && after != before;
        if after.len() < before.len() || (kind != "Failed" && subresource != "approval" && is_added)
        {
            causes.forbidden(path, &format!("the condition {kind} may not change"));
        }
    }
    if !of_kind(new, "Approved").is_empty() && !of_kind(new, "Denied").is_empty() {
        causes.invalid(path, "Approved and Denied exclude each other");
    }
}
