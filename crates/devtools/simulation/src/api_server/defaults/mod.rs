//! What an API server adds to an object that is created or changed.
//!
//! Every function wants an object as [`super::known_fields::prune`] leaves it: no unknown fields,
//! no empty ones.
//!
//! ```text
//! create: prune, set_defaults, admit_create, prepare_for_create, validate_create
//! update: prune, set_defaults, admit_update, prepare_for_update, validate_update
//! status: prune, set_defaults,               prepare_for_subresource,   validate_subresource
//! ```

mod admission;
mod json;
mod pods;
mod prepare;
mod quality;
mod services;
mod workloads;

pub use admission::{admit_create, admit_update, mount_service_account};
pub use prepare::{
    canonicalize, complete_condition_times, complete_job, convert_event, prepare_for_create,
    prepare_for_subresource, prepare_for_update,
};
pub use quality::quality_of_service;
pub use services::{
    init_service_families, needs_cluster_ip, needs_node_ports, normalize_cluster_ips,
    patch_allocated_values,
};

use json::{copy_missing, each, in_field, or, or_text, round_up};
use serde_json::{Value, json};

/// Sets what a version of a kind defaults, on create, update and read alike.
pub fn set_defaults(kind: &str, object: &mut Value) {
    match kind {
        "Pod" => pods::pod(object),
        "PodTemplate" => in_field(object, "template", pods::template),
        "Service" => services::defaults(object),
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" | "CronJob" => {
            workloads::defaults(kind, object);
        }
        "ClusterRoleBinding" | "RoleBinding" => binding(object),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            each(object, "webhooks", |webhook| {
                self::webhook(kind == "MutatingWebhookConfiguration", webhook);
            });
        }
        _ => small_kind(kind, object),
    }
}

fn small_kind(kind: &str, object: &mut Value) {
    match kind {
        "Namespace" => namespace(object),
        "Node" => node(object),
        "Secret" => secret(object),
        "LimitRange" => in_field(object, "spec", |spec| each(spec, "limits", limit)),
        "PersistentVolumeClaim" => claim(object),
        "PersistentVolume" => persistent_volume(object),
        "ResourceQuota" => {
            in_field(object, "spec", |spec| in_field(spec, "hard", round_up));
            in_field(object, "status", |status| {
                in_field(status, "hard", round_up);
            });
            in_field(object, "status", |status| {
                in_field(status, "used", round_up);
            });
        }
        "Endpoints" => each(object, "subsets", |subset| {
            each(subset, "ports", |port| or(port, "protocol", "TCP"));
        }),
        "EndpointSlice" => each(object, "ports", |port| {
            or(port, "name", "");
            or(port, "protocol", "TCP");
        }),
        "NetworkPolicy" => in_field(object, "spec", network_policy),
        "IngressClass" => in_field(object, "spec", |spec| {
            in_field(spec, "parameters", |parameters| {
                or(parameters, "scope", "Cluster");
            });
        }),
        "PriorityClass" => or(object, "preemptionPolicy", "PreemptLowerPriority"),
        "StorageClass" => {
            or(object, "reclaimPolicy", "Delete");
            or(object, "volumeBindingMode", "Immediate");
        }
        _ => {}
    }
}

fn namespace(namespace: &mut Value) {
    or(namespace, "status", json!({}));
    in_field(namespace, "status", |status| or(status, "phase", "Active"));
    let name = namespace["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if !name.is_empty() {
        canonicalize("Namespace", namespace);
    }
}

fn node(node: &mut Value) {
    in_field(node, "status", |status| {
        if let Some(capacity) = status.get("capacity").cloned() {
            or(status, "allocatable", capacity);
        }
        in_field(status, "capacity", round_up);
        in_field(status, "allocatable", round_up);
    });
    // The first of many addresses has a field of its own.
    in_field(node, "spec", |spec| {
        json::first_of_many(spec, "podCIDR", "podCIDRs", Value::clone, |one| {
            Some(one.clone())
        });
    });
}

/// Texts join the encoded data.
fn secret(secret: &mut Value) {
    or(secret, "type", "Opaque");
    let texts = secret
        .as_object_mut()
        .and_then(|fields| fields.remove("stringData"));
    let Some(Value::Object(texts)) = texts else {
        return;
    };
    or(secret, "data", json!({}));
    for (key, text) in texts {
        secret["data"][key] = data_encoding::BASE64
            .encode(text.as_str().unwrap_or_default().as_bytes())
            .into();
    }
}

fn limit(limit: &mut Value) {
    if limit["type"] == "Container" {
        copy_missing(limit, "max", "default");
        copy_missing(limit, "default", "defaultRequest");
        copy_missing(limit, "min", "defaultRequest");
    }
    for field in [
        "max",
        "min",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
    ] {
        in_field(limit, field, round_up);
    }
}

fn claim(claim: &mut Value) {
    or(claim, "status", json!({}));
    in_field(claim, "status", |status| {
        or(status, "phase", "Pending");
        in_field(status, "capacity", round_up);
    });
    in_field(claim, "spec", claim_spec);
}

fn claim_spec(spec: &mut Value) {
    or(spec, "volumeMode", "Filesystem");
    in_field(spec, "resources", pods::round_up_resources);
}

fn persistent_volume(volume: &mut Value) {
    in_field(volume, "status", |status| or(status, "phase", "Pending"));
    in_field(volume, "spec", |spec| {
        or(spec, "persistentVolumeReclaimPolicy", "Retain");
        or(spec, "volumeMode", "Filesystem");
        in_field(spec, "capacity", round_up);
        in_field(spec, "hostPath", |path| or(path, "type", ""));
    });
}

fn network_policy(spec: &mut Value) {
    for rules in ["ingress", "egress"] {
        each(spec, rules, |rule| {
            each(rule, "ports", |port| or(port, "protocol", "TCP"));
        });
    }
    let egress = spec["egress"]
        .as_array()
        .is_some_and(|rules| !rules.is_empty());
    or(
        spec,
        "policyTypes",
        if egress {
            json!(["Ingress", "Egress"])
        } else {
            json!(["Ingress"])
        },
    );
}

fn binding(binding: &mut Value) {
    let group = "rbac.authorization.k8s.io";
    in_field(binding, "roleRef", |role| or_text(role, "apiGroup", group));
    each(binding, "subjects", |subject| {
        if subject["kind"] == "User" || subject["kind"] == "Group" {
            or_text(subject, "apiGroup", group);
        }
    });
}

fn webhook(mutating: bool, webhook: &mut Value) {
    or(webhook, "failurePolicy", "Fail");
    or(webhook, "matchPolicy", "Equivalent");
    or(webhook, "namespaceSelector", json!({}));
    or(webhook, "objectSelector", json!({}));
    or(webhook, "timeoutSeconds", 10);
    if mutating {
        or(webhook, "reinvocationPolicy", "Never");
    }
    each(webhook, "rules", |rule| or(rule, "scope", "*"));
    in_field(webhook, "clientConfig", |config| {
        in_field(config, "service", |service| or(service, "port", 443));
    });
}

#[cfg(test)]
mod tests;
