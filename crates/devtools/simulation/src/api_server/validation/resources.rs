//! Names and amounts of resources; quotas and ranges of limits.

use super::json::{entries, has, invalid_each, list, text};
use super::{Cause, names};
use liqo_quantity::Quantity;
use serde_json::{Value, json};

const COMPUTE: [&str; 6] = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const STORAGE: [&str; 3] = ["ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage"];
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether more of a resource may be promised than there is.
fn is_shared(name: &str) -> bool {
    is_native(name) && !is_huge(name)
}

fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified_name(&format!("requests.{name}")).is_empty()
}

fn is_quota(name: &str) -> bool {
    COMPUTE.contains(&name)
        || STORAGE.contains(&name)
        || COUNTED.contains(&name)
        || name == "requests.storage"
        || is_huge(name)
        || name.starts_with("requests.hugepages-")
}

/// The name of any resource. Tells whether it is well formed.
fn resource_name(causes: &mut Vec<Cause>, path: &str, name: &str) {
    let problems = names::qualified_name(name);
    if problems.is_empty() && !name.contains('/') && !is_quota(name) && name != "storage" {
        causes.push(Cause::invalid(path, name, "must be a standard resource type or fully qualified"));
    }
    invalid_each(causes, path, name, problems);
}

/// The name of a resource that a container can have.
pub fn container_resource(causes: &mut Vec<Cause>, path: &str, name: &str) {
    resource_name(causes, path, name);
    if !name.contains('/') {
        if !["cpu", "memory", "ephemeral-storage"].contains(&name) && !is_huge(name) {
            causes.push(Cause::invalid(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        causes.push(Cause::invalid(path, name, "doesn't follow extended resource name standard"));
    }
}

fn quota_resource(causes: &mut Vec<Cause>, path: &str, name: &str) {
    resource_name(causes, path, name);
    if !name.contains('/') && !is_quota(name) {
        causes.push(Cause::invalid(path, name, "must be a standard resource for quota"));
    }
}

fn parse(value: &Value) -> Option<Quantity> {
    value.as_str()?.parse().ok()
}

/// An amount of a resource: not negative, and whole where the resource is counted.
pub fn amount(causes: &mut Vec<Cause>, path: &str, name: &str, value: &Value) {
    let Some(quantity) = parse(value) else { return };
    if quantity.is_negative() {
        causes.push(Cause::invalid(path, value.clone(), "must be greater than or equal to 0"));
    }
    if (COUNTED.contains(&name) || is_extended(name)) && quantity.nanos() % 1_000_000_000 != 0 {
        causes.push(Cause::invalid(path, value.clone(), "must be an integer"));
    }
}

/// The limits and requests of a container or a pod.
pub fn requirements(causes: &mut Vec<Cause>, path: &str, given: &Value, name_rule: fn(&mut Vec<Cause>, &str, &str)) {
    for (name, value) in entries(given, "limits") {
        let path = format!("{path}.limits[{name}]");
        name_rule(causes, &path, name);
        amount(causes, &path, name, value);
    }
    for (name, value) in entries(given, "requests") {
        let item = format!("{path}.requests[{name}]");
        name_rule(causes, &item, name);
        amount(causes, &item, name, value);
        let (request, limit) = (parse(value), given["limits"].get(name).and_then(parse));
        let (Some(request), limit_text) = (request, text(&given["limits"], name)) else { continue };
        match limit {
            Some(limit) if request.nanos() != limit.nanos() && !is_shared(name) => {
                let detail = format!("must be equal to {name} limit of {limit_text}");
                causes.push(Cause::invalid(format!("{path}.requests"), value.clone(), detail));
            }
            Some(limit) if request.nanos() > limit.nanos() => {
                let detail = format!("must be less than or equal to {name} limit of {limit_text}");
                causes.push(Cause::invalid(format!("{path}.requests"), value.clone(), detail));
            }
            None if !is_shared(name) => {
                causes.push(Cause::required(format!("{path}.limits"), "Limit must be set for non overcommitable resources"));
            }
            _ => {}
        }
    }
    let uses =
        |wanted: fn(&str) -> bool| ["limits", "requests"].iter().any(|of| entries(given, of).any(|(name, _)| wanted(name)));
    if uses(is_huge) && !uses(|name| matches!(name, "cpu" | "memory")) {
        causes.push(Cause::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// What a pod as a whole may ask for.
pub fn pod_resource(causes: &mut Vec<Cause>, path: &str, name: &str) {
    let before = causes.len();
    resource_name(causes, path, name);
    if before == causes.len() && !matches!(name, "cpu" | "memory") && !is_huge(name) {
        causes.push(Cause::not_supported(path, name, &["cpu", "hugepages-", "memory"]));
    }
}

fn quota_amounts(causes: &mut Vec<Cause>, path: &str, amounts: &Value) {
    for (name, value) in amounts.as_object().into_iter().flatten() {
        let path = format!("{path}[{name}]");
        quota_resource(causes, &path, name);
        amount(causes, &path, name, value);
    }
}

pub fn quota(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    quota_amounts(causes, "spec.hard", &spec["hard"]);
    let scopes: Vec<_> = list(spec, "scopes").filter_map(|(_, scope)| scope.as_str()).collect();
    let all = spec["scopes"].clone();
    for scope in &scopes {
        if !is_scope(scope) {
            causes.push(Cause::invalid("spec.scopes", all.clone(), "unsupported scope"));
        }
        for _ in unsupported(spec, scope) {
            causes.push(Cause::invalid("spec.scopes", all.clone(), "unsupported scope applied to resource"));
        }
    }
    conflicts(causes, "spec.scopes", &scopes, &all);
    scope_selector(causes, spec);
}

fn is_scope(scope: &str) -> bool {
    let scopes = ["Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "VolumeAttributesClass"];
    scopes.contains(&scope) || scope == "CrossNamespacePodAffinity"
}

/// The limited resources that a scope does not apply to.
fn unsupported<'a>(spec: &'a Value, scope: &'a str) -> impl Iterator<Item = &'a String> {
    entries(spec, "hard").map(|(name, _)| name).filter(move |name| {
        let name = name.as_str();
        is_quota(name)
            && match scope {
                "BestEffort" => name != "pods",
                "VolumeAttributesClass" => !["persistentvolumeclaims", "requests.storage"].contains(&name),
                _ => is_scope(scope) && name != "pods" && !COMPUTE.contains(&name),
            }
    })
}

fn conflicts(causes: &mut Vec<Cause>, path: &str, scopes: &[&str], all: &Value) {
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            causes.push(Cause::invalid(path, all.clone(), "conflicting scopes"));
        }
    }
}

fn scope_selector(causes: &mut Vec<Cause>, spec: &Value) {
    let path = "spec.scopeSelector.matchExpressions";
    let selector = &spec["scopeSelector"];
    let mut scopes = Vec::new();
    for (_, requirement) in list(selector, "matchExpressions") {
        let (scope, operator) = (text(requirement, "scopeName"), text(requirement, "operator"));
        if !is_scope(scope) {
            causes.push(Cause::invalid(format!("{path}.scopeName"), scope, "unsupported scope"));
        }
        for _ in unsupported(spec, scope) {
            causes.push(Cause::invalid(path, selector.clone(), "unsupported scope applied to resource"));
        }
        if is_scope(scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass") && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort \
                          or ResourceQuotaScopeCrossNamespacePodAffinity";
            causes.push(Cause::invalid(format!("{path}.operator"), operator, detail));
        }
        let values = has(requirement, "values");
        match operator {
            "In" | "NotIn" if !values => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                causes.push(Cause::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if values => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                causes.push(Cause::invalid(format!("{path}.values"), requirement["values"].clone(), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => causes.push(Cause::invalid(format!("{path}.operator"), other, "not a valid selector operator")),
        }
        scopes.push(scope);
    }
    conflicts(causes, path, &scopes, &spec["scopes"]);
}

pub fn quota_update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let scopes = |quota: &Value| {
        let mut scopes: Vec<_> =
            list(&quota["spec"], "scopes").map(|(_, scope)| scope.as_str().unwrap_or_default().to_owned()).collect();
        scopes.sort();
        scopes.dedup();
        scopes
    };
    if scopes(old) != scopes(new) {
        causes.push(Cause::invalid("spec.scopes", new["spec"]["scopes"].clone(), "field is immutable"));
    }
}

pub fn quota_status(causes: &mut Vec<Cause>, object: &Value) {
    for field in ["hard", "used"] {
        quota_amounts(causes, &format!("status.{field}"), &object["status"][field]);
    }
}

pub fn limit_range(causes: &mut Vec<Cause>, object: &Value) {
    let mut types = Vec::new();
    for (index, limit) in list(&object["spec"], "limits") {
        let path = format!("spec.limits[{index}]");
        let kind = text(limit, "type");
        let problems = names::qualified_name(kind);
        if problems.is_empty() && !kind.contains('/') && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind) {
            let detail = "must be a standard limit type or fully qualified";
            causes.push(Cause::invalid(format!("{path}.type"), kind, detail));
        }
        invalid_each(causes, &format!("{path}.type"), kind, problems);
        if types.contains(&kind) {
            causes.push(Cause::duplicate(format!("{path}.type"), kind));
        }
        types.push(kind);
        limited_names(causes, &path, limit, kind);
        if kind == "PersistentVolumeClaim" && !has(&limit["min"], "storage") && !has(&limit["max"], "storage") {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            causes.push(Cause::required(format!("{path}.limits"), detail));
        }
        limited_amounts(causes, &path, limit);
    }
}

fn limited_names(causes: &mut Vec<Cause>, path: &str, limit: &Value, kind: &str) {
    let rule = if matches!(kind, "Pod" | "Container") { container_resource } else { resource_name };
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        if kind == "Pod" && field.starts_with("default") {
            if has(limit, field) {
                causes.push(Cause::forbidden(format!("{path}.{field}"), "may not be specified when `type` is 'Pod'"));
            }
            continue;
        }
        for (name, _) in entries(limit, field) {
            rule(causes, &format!("{path}.{field}[{name}]"), name);
        }
    }
}

fn limited_amounts(causes: &mut Vec<Cause>, path: &str, limit: &Value) {
    // Which amount must not exceed which, in which field that is reported, and with which of both.
    let orders = [
        ("min", "min value", "max", "max value", "min", "min"),
        ("min", "min value", "defaultRequest", "default request value", "defaultRequest", "defaultRequest"),
        ("defaultRequest", "default request value", "max", "max value", "defaultRequest", "defaultRequest"),
        ("defaultRequest", "default request value", "default", "default limit value", "defaultRequest", "defaultRequest"),
        ("min", "min value", "default", "default value", "default", "min"),
        ("default", "default value", "max", "max value", "default", "max"),
    ];
    let of_pod = limit["type"] == "Pod";
    let fields = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let mut all: Vec<_> = fields.iter().flat_map(|field| entries(limit, field).map(|(name, _)| name)).collect();
    all.sort_unstable();
    all.dedup();
    for name in all {
        let counts = |field: &str| !(of_pod && field.starts_with("default"));
        let of = |field: &str| limit[field].get(name).filter(|_| counts(field)).and_then(parse);
        for (low, low_name, high, high_name, field, shown) in orders {
            let (Some(low), Some(high)) = (of(low), of(high)) else { continue };
            if low.nanos() > high.nanos() {
                let shown = if shown == "max" { high } else { of(shown).unwrap_or(low) };
                let detail = format!("{low_name} {low} is greater than {high_name} {high}");
                causes.push(Cause::invalid(format!("{path}.{field}[{name}]"), json!(shown.to_string()), detail));
            }
        }
        if let Some(ratio) = of("maxLimitRequestRatio") {
            limited_ratio(causes, &format!("{path}.maxLimitRequestRatio[{name}]"), ratio, of("min"), of("max"));
        }
        if let (Some(default), Some(request)) = (of("default"), of("defaultRequest"))
            && !is_shared(name)
            && default.nanos() != request.nanos()
        {
            let detail = format!("default value {default} must equal to defaultRequest value {request} in {name}");
            causes.push(Cause::invalid(format!("{path}.defaultRequest[{name}]"), request.to_string(), detail));
        }
    }
}

#[allow(clippy::cast_precision_loss)] // Go compares and prints floating point, too.
fn limited_ratio(causes: &mut Vec<Cause>, path: &str, ratio: Quantity, min: Option<Quantity>, max: Option<Quantity>) {
    if ratio.nanos() < 1_000_000_000 {
        causes.push(Cause::invalid(path, ratio.to_string(), format!("ratio {ratio} is less than 1")));
    }
    if let (Some(min), Some(max)) = (min, max) {
        let most = max.nanos() as f64 / min.nanos() as f64;
        if ratio.nanos() as f64 / 1e9 > most {
            let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
            causes.push(Cause::invalid(path, ratio.to_string(), detail));
        }
    }
}
