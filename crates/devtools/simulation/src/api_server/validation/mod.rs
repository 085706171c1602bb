//! What an API server refuses.
//!
//! The causes of a refusal are in the order of the API server. It reports some twice: its message leaves repetitions out, its
//! list of causes does not.

mod access;
mod addresses;
mod bags;
mod cause;
mod claims;
mod containers;
mod endpoints;
mod events;
mod jobs;
mod json;
mod metadata;
mod names;
mod networks;
mod nodes;
mod pods;
mod resources;
mod scheduling;
mod services;
mod signing;
mod volumes;
mod workloads;

pub use cause::Cause;

use metadata::Scope;
use serde_json::Value;

/// What the names of a kind look like. A kind is namespaced if its object has a namespace.
fn scope_of(kind: &str, object: &Value) -> Scope {
    let name = match kind {
        "Namespace" | "StatefulSet" => names::label,
        "Service" => names::label_1035,
        "Role" | "ClusterRole" | "RoleBinding" | "ClusterRoleBinding" | "CertificateSigningRequest" => names::path_segment,
        _ => names::subdomain,
    };
    Scope { namespaced: json::has(&object["metadata"], "namespace"), name }
}

/// Whether a kind's finalizers without a domain must be known ones: kinds of later groups are checked less.
fn is_core(kind: &str) -> bool {
    !kind.is_empty() && kind != "Lease" && !kind.ends_with("WebhookConfiguration")
}

/// In which order an update of a kind is checked: `u` its metadata as of an update, `m` as of a new object, `c` what is checked
/// of new objects, and `x` what must not change.
fn steps_of_update(kind: &str) -> &'static str {
    match kind {
        "ConfigMap" | "Secret" => "uxmc",
        "Pod" => "umcx",
        "CertificateSigningRequest" => "mcxu",
        "ServiceAccount" | "Endpoints" | "Ingress" => "umc",
        "Service" | "DaemonSet" => "uxc",
        "Namespace" => "mcu",
        "Role" | "ClusterRole" => "mcmcu",
        "RoleBinding" | "ClusterRoleBinding" => "mcmcux",
        "Node" | "StorageClass" | "Job" => "mcux",
        "PersistentVolumeClaim" => "mcumcx",
        "PriorityClass" => "ux",
        "EndpointSlice" | "LimitRange" | "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => "mcx",
        "Event" | "PodDisruptionBudget" => "cx",
        "NetworkPolicy" => "mcuc",
        _ => "ucx",
    }
}

/// Why no addresses can be given to a service, given its spec.
pub fn validate_cluster_ips(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    services::cluster_ips(&mut causes, spec);
    causes
}

/// Why an object cannot be created.
pub fn validate_create(kind: &str, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let scope = scope_of(kind, object);
    if !matches!(kind, "Event" | "PodDisruptionBudget") {
        metadata::check(&mut causes, object, scope, is_core(kind));
    }
    check(&mut causes, kind, object, None);
    if causes.is_empty() {
        metadata::check(&mut causes, object, Scope { name: names::path_segment, ..scope }, false);
    }
    causes
}

/// What is checked of a new object and of a changed one.
fn check(causes: &mut Vec<Cause>, kind: &str, object: &Value, old: Option<&Value>) {
    match kind {
        "ConfigMap" => bags::config_map(causes, object),
        "Secret" => bags::secret(causes, object),
        "Service" => services::service(causes, object, old),
        "EndpointSlice" => endpoints::slice(causes, object, old),
        "Endpoints" => endpoints::endpoints(causes, object, old),
        "Role" => access::role(causes, object, true),
        "ClusterRole" => access::role(causes, object, false),
        "RoleBinding" => access::binding(causes, object, true),
        "ClusterRoleBinding" => access::binding(causes, object, false),
        "Lease" => events::lease(causes, object),
        "ResourceQuota" => resources::quota(causes, object),
        "LimitRange" => resources::limit_range(causes, object),
        "Node" => nodes::create(causes, object),
        "Namespace" => events::namespace(causes, object),
        "Event" if old.is_none() => events::create(causes, object),
        "Pod" => pods::pod(causes, object, old),
        "PodTemplate" => pods::template(causes, "template", &object["template"]),
        "Deployment" => workloads::deployment(causes, object),
        "ReplicaSet" => workloads::replica_set(causes, object),
        "DaemonSet" => workloads::daemon_set(causes, object),
        "StatefulSet" => workloads::stateful_set(causes, object, old),
        _ => check_later_kind(causes, kind, object, old),
    }
}

fn check_later_kind(causes: &mut Vec<Cause>, kind: &str, object: &Value, old: Option<&Value>) {
    match kind {
        "Job" => jobs::job(causes, object),
        "CronJob" => jobs::cron_job(causes, object, old.is_none()),
        "Ingress" => networks::ingress(causes, object, old.is_none()),
        "NetworkPolicy" => networks::policy(causes, object),
        "RuntimeClass" => access::runtime_class(causes, object),
        "PersistentVolumeClaim" => claims::spec(causes, "spec", &object["spec"]),
        "StorageClass" => claims::storage_class(causes, object),
        "PriorityClass" => claims::priority_class(causes, object),
        "PodDisruptionBudget" => claims::budget(causes, object),
        "CertificateSigningRequest" => signing::request(causes, object),
        "ValidatingWebhookConfiguration" => signing::webhooks(causes, object, false),
        "MutatingWebhookConfiguration" => signing::webhooks(causes, object, true),
        _ => {}
    }
}

/// What is checked of every update, whatever its kind.
fn common_of_update(old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata::check(&mut causes, new, Scope { name: names::path_segment, ..scope_of("", new) }, false);
    metadata::check_update(&mut causes, old, new, false);
    causes
}

/// Why an object cannot be changed.
pub fn validate_update(kind: &str, old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = common_of_update(old, new);
    for step in steps_of_update(kind).chars() {
        match step {
            'u' => metadata::check_update(&mut causes, old, new, is_core(kind)),
            'm' => metadata::check(&mut causes, new, scope_of(kind, new), is_core(kind)),
            'c' => check(&mut causes, kind, new, Some(old)),
            _ => check_change(&mut causes, kind, old, new),
        }
    }
    causes
}

/// What an update must leave as it is.
fn check_change(causes: &mut Vec<Cause>, kind: &str, old: &Value, new: &Value) {
    match kind {
        "ConfigMap" | "Secret" => bags::update(causes, kind, old, new),
        "Service" => services::update(causes, old, new),
        "Node" => nodes::update(causes, old, new),
        "Event" => events::update(causes, old, new),
        "RoleBinding" | "ClusterRoleBinding" => access::binding_update(causes, old, new),
        "EndpointSlice" => json::immutable(causes, "addressType", old.get("addressType"), new.get("addressType")),
        "ResourceQuota" => resources::quota_update(causes, old, new),
        "Pod" => pods::update(causes, old, new),
        "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" => workloads::update(causes, kind, old, new),
        "Job" => jobs::update(causes, old, new),
        "PersistentVolumeClaim" => claims::update(causes, old, new),
        "StorageClass" => claims::storage_class_update(causes, old, new),
        "PriorityClass" => claims::priority_class_update(causes, old, new),
        "RuntimeClass" => json::immutable(causes, "handler", old.get("handler"), new.get("handler")),
        "CertificateSigningRequest" => signing::request_update(causes, old, new, ""),
        _ => {}
    }
}

/// Why an object cannot be changed by way of a subresource: `status`, `approval` of requests for certificates, `finalize`
/// of namespaces, or `ephemeralcontainers` of pods.
pub fn validate_subresource(kind: &str, subresource: &str, old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = common_of_update(old, new);
    if kind == "CertificateSigningRequest" {
        metadata::check(&mut causes, new, scope_of(kind, new), true);
        signing::request(&mut causes, new);
        signing::request_update(&mut causes, old, new, subresource);
    }
    if !matches!(kind, "CronJob" | "PodDisruptionBudget") {
        metadata::check_update(&mut causes, old, new, is_core(kind));
    }
    match (kind, subresource) {
        ("Namespace", "finalize") => events::namespace(&mut causes, new),
        ("Pod", "ephemeralcontainers") => pods::pod(&mut causes, new, Some(old)),
        ("Namespace", _) => events::namespace_status(&mut causes, new),
        ("Node", _) => nodes::update(&mut causes, old, new),
        ("Service", _) => services::balancer_status(&mut causes, new, true),
        ("Ingress", _) => services::balancer_status(&mut causes, new, false),
        ("ResourceQuota", _) => resources::quota_status(&mut causes, new),
        ("Pod", _) => pods::status(&mut causes, old, new),
        ("Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet", _) => workloads::status(&mut causes, kind, old, new),
        ("Job", _) => jobs::status(&mut causes, old, new),
        ("PodDisruptionBudget", _) => claims::budget_status(&mut causes, new),
        _ => {}
    }
    causes
}

#[cfg(test)]
mod tests;
