//! What every object's metadata must be.

use super::cause::quote;
use super::json::{entries, has, immutable, invalid_each, list, not_negative, text};
use super::{Cause, names};

use serde_json::Value;

/// What a kind's names look like.
pub type NameRule = fn(&str) -> names::Problems;

/// Whether a kind is namespaced, and what its names look like.
#[derive(Clone, Copy)]
pub struct Scope {
    pub namespaced: bool,
    pub name: NameRule,
}

/// The metadata of a new object; `core` kinds also know their finalizers.
pub fn check(causes: &mut Vec<Cause>, object: &Value, scope: Scope, core: bool) {
    let meta = &object["metadata"];
    let generate = text(meta, "generateName");
    if !generate.is_empty() {
        let masked = if is_path_rule(scope) { generate.to_owned() } else { names::mask_trailing_dash(generate) };
        invalid_each(causes, "metadata.generateName", generate, (scope.name)(&masked));
    }
    match text(meta, "name") {
        "" => causes.push(Cause::required("metadata.name", "name or generateName is required")),
        name => invalid_each(causes, "metadata.name", name, (scope.name)(name)),
    }
    match (scope.namespaced, text(meta, "namespace")) {
        (true, "") => causes.push(Cause::required("metadata.namespace", "")),
        (true, namespace) => invalid_each(causes, "metadata.namespace", namespace, names::label(namespace)),
        (false, "") => {}
        (false, _) => causes.push(Cause::forbidden("metadata.namespace", "not allowed on this type")),
    }
    not_negative(causes, "metadata.generation", &meta["generation"]);
    labels(causes, "metadata.labels", &meta["labels"]);
    annotations(causes, "metadata.annotations", &meta["annotations"]);
    owners(causes, meta);
    finalizers(causes, meta);
    if core {
        known_finalizers(causes, meta);
    }
}

fn is_path_rule(scope: Scope) -> bool {
    (scope.name)("a/b").first().is_some_and(|problem| problem.starts_with("may not contain"))
}

/// The metadata of a changed object.
pub fn check_update(causes: &mut Vec<Cause>, old: &Value, new: &Value, core: bool) {
    let (old, new) = (&old["metadata"], &new["metadata"]);
    if has(old, "deletionTimestamp") {
        new_finalizers(causes, old, new);
    }
    if text(new, "resourceVersion").is_empty() {
        causes.push(Cause::invalid("metadata.resourceVersion", "", "must be specified for an update"));
    }
    let generation = |meta: &Value| meta["generation"].as_i64().unwrap_or(0);
    if generation(new) < generation(old) {
        causes.push(Cause::invalid("metadata.generation", generation(new), "must not be decremented"));
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        immutable(causes, &format!("metadata.{field}"), old.get(field), new.get(field));
    }
    labels(causes, "metadata.labels", &new["labels"]);
    annotations(causes, "metadata.annotations", &new["annotations"]);
    owners(causes, new);
    if core {
        known_finalizers(causes, new);
    }
}

pub fn labels(causes: &mut Vec<Cause>, path: &str, labels: &Value) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        invalid_each(causes, path, key, names::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        invalid_each(causes, path, value, names::label_value(value));
    }
}

pub fn annotations(causes: &mut Vec<Cause>, path: &str, annotations: &Value) {
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        invalid_each(causes, path, key, names::qualified_name(&key.to_lowercase()));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > 256 * 1024 {
        causes.push(Cause::too_long(path, 256 * 1024));
    }
}

fn owners(causes: &mut Vec<Cause>, meta: &Value) {
    let path = "metadata.ownerReferences";
    let mut controller: Option<String> = None;
    for (_, owner) in list(meta, "ownerReferences") {
        if text(owner, "apiVersion").is_empty() {
            causes.push(Cause::invalid(format!("{path}.apiVersion"), "", "version must not be empty"));
        }
        for field in ["kind", "name", "uid"].into_iter().filter(|field| text(owner, field).is_empty()) {
            causes.push(Cause::invalid(format!("{path}.{field}"), "", "must not be empty"));
        }
        if text(owner, "apiVersion") == "v1" && text(owner, "kind") == "Event" {
            causes.push(Cause::invalid(path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner["controller"] == true {
            let name = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
            if let Some(first) = &controller {
                let detail = "Only one reference can have Controller set to true. Found \"true\" in references for";
                let owners = meta["ownerReferences"].clone();
                causes.push(Cause::invalid(path, owners, format!("{detail} {first} and {name}")));
            } else {
                controller = Some(name);
            }
        }
    }
}

fn finalizer_names(meta: &Value) -> Vec<&str> {
    list(meta, "finalizers").filter_map(|(_, name)| name.as_str()).collect()
}

fn finalizers(causes: &mut Vec<Cause>, meta: &Value) {
    let names = finalizer_names(meta);
    for name in &names {
        invalid_each(causes, "metadata.finalizers", name, names::qualified_name(name));
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid("metadata.finalizers", meta["finalizers"].clone(), detail));
    }
}

fn known_finalizers(causes: &mut Vec<Cause>, meta: &Value) {
    for (index, name) in finalizer_names(meta).iter().enumerate() {
        let path = format!("metadata.finalizers[{index}]");
        known_finalizer(causes, &path, name);
    }
}

/// A finalizer without a domain is one of Kubernetes.
pub fn known_finalizer(causes: &mut Vec<Cause>, path: &str, name: &str) {
    if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name) {
        causes.push(Cause::invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified"));
    }
}

fn new_finalizers(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let known = finalizer_names(old);
    let mut added: Vec<_> = finalizer_names(new).into_iter().filter(|name| !known.contains(name)).collect();
    added.sort_unstable();
    added.dedup();
    if !added.is_empty() {
        let added: Vec<_> = added.into_iter().map(quote).collect();
        let detail = "no new finalizers can be added if the object is being deleted, found new finalizers";
        causes.push(Cause::forbidden("metadata.finalizers", format!("{detail} []string{{{}}}", added.join(", "))));
    }
}

pub fn label_selector(causes: &mut Vec<Cause>, path: &str, selector: &Value) {
    labels(causes, &format!("{path}.matchLabels"), &selector["matchLabels"]);
    for (index, expression) in list(selector, "matchExpressions") {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = list(expression, "values").len();
        match text(expression, "operator") {
            "In" | "NotIn" if values == 0 => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                causes.push(Cause::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                causes.push(Cause::forbidden(format!("{path}.values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => causes.push(Cause::invalid(format!("{path}.operator"), other, "not a valid selector operator")),
        }
        let key = text(expression, "key");
        invalid_each(causes, &format!("{path}.key"), key, names::qualified_name(key));
        for (index, value) in list(expression, "values") {
            let value = value.as_str().unwrap_or_default();
            invalid_each(causes, &format!("{path}.values[{index}]"), value, names::label_value(value));
        }
    }
}

/// Whether a selector picks nothing out: it has neither labels nor expressions.
pub fn selects_all(selector: &Value) -> bool {
    entries(selector, "matchLabels").next().is_none() && list(selector, "matchExpressions").len() == 0
}
