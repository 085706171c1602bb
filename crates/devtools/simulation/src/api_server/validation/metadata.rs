//! What every object's metadata must be.

use serde_json::Value;

use super::{
    fields::{Causes, entries, items, text},
    names::{ANNOTATION, LABEL_VALUE, NameRule, PATH_SEGMENT, QUALIFIED, generated},
};
use crate::api_server::cause::CauseKind;

/// Maximum length of all annotations in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

pub fn check(causes: &mut Causes, object: &Value, name: NameRule) {
    let metadata = &object["metadata"];
    let prefix = text(&metadata["generateName"]);
    if !prefix.is_empty() {
        causes.check_name("metadata.generateName", &generated(prefix), name);
    }
    causes.require_name("metadata.name", text(&metadata["name"]), name);
    causes.refuse_negative("metadata.generation", &metadata["generation"]);
    labels(causes, "metadata.labels", &metadata["labels"]);
    annotations(causes, "metadata.annotations", &metadata["annotations"]);
    owners(causes, metadata);
    let finalizers: Vec<&str> = items(&metadata["finalizers"]).iter().map(text).collect();
    for finalizer in &finalizers {
        causes.check_name("metadata.finalizers", finalizer, QUALIFIED);
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        causes.invalid(
            "metadata.finalizers",
            "orphan and foregroundDeletion exclude each other",
        );
    }
}

pub fn check_update(causes: &mut Causes, old: &Value, new: &Value) {
    check(causes, new, PATH_SEGMENT);
    let (old, new) = (&old["metadata"], &new["metadata"]);
    let known = items(&old["finalizers"]);
    if !old["deletionTimestamp"].is_null()
        && items(&new["finalizers"])
            .iter()
            .any(|finalizer| !known.contains(finalizer))
    {
        causes.forbidden(
            "metadata.finalizers",
            "an object that is being deleted gets no new finalizers",
        );
    }
    if text(&new["resourceVersion"]).is_empty() {
        causes.invalid(
            "metadata.resourceVersion",
            "must be specified for an update",
        );
    }
    let generation = |metadata: &Value| metadata["generation"].as_i64().unwrap_or(0);
    if generation(new) < generation(old) {
        causes.invalid("metadata.generation", "must not be decremented");
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        causes.refuse_change(&format!("metadata.{field}"), &old[field], &new[field]);
    }
}

/// A finalizer without a domain must be one of Kubernetes.
pub fn known_finalizers(causes: &mut Causes, object: &Value) {
    for (index, finalizer) in items(&object["metadata"]["finalizers"])
        .iter()
        .map(text)
        .enumerate()
    {
        if !finalizer.contains('/')
            && !["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer)
        {
            causes.invalid(
                format!("metadata.finalizers[{index}]"),
                "must have a domain",
            );
        }
    }
}

pub fn labels(causes: &mut Causes, path: &str, labels: &Value) {
    for (key, value) in entries(labels) {
        causes.check_name(path, key, QUALIFIED);
        causes.check_name(path, text(value), LABEL_VALUE);
    }
}

pub fn annotations(causes: &mut Causes, path: &str, annotations: &Value) {
    for (key, _) in entries(annotations) {
        causes.check_name(path, key, ANNOTATION);
    }
    if entries(annotations)
        .map(|(key, value)| key.len() + text(value).len())
        .sum::<usize>()
        > MAX_ANNOTATIONS
    {
        causes.add(CauseKind::TooLong, path, "");
    }
}

fn owners(causes: &mut Causes, metadata: &Value) {
    let path = "metadata.ownerReferences";
    let owners = items(&metadata["ownerReferences"]);
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"]
            .into_iter()
            .filter(|field| text(&owner[*field]).is_empty())
        {
            causes.invalid(format!("{path}.{field}"), "must not be empty");
        }
        if owner["apiVersion"] == "v1" && owner["kind"] == "Event" {
            causes.invalid(path, "an Event owns nothing");
        }
    }
    if owners
        .iter()
        .filter(|owner| owner["controller"] == true)
        .count()
        > 1
    {
        causes.invalid(path, "only one owner can be the controller");
    }
}
