//! Events, as both of their groups write them.

use super::json::{has, immutable, invalid_each, list, text};
use super::metadata::{self, Scope};
use super::{Cause, names};
use serde_json::Value;

/// The group that an event is written in, and the names of its fields there.
fn is_new(object: &Value) -> bool {
    object["apiVersion"] == "events.k8s.io/v1"
}

pub fn create(causes: &mut Vec<Cause>, object: &Value) {
    legacy(causes, object);
    if !is_new(object) {
        return;
    }
    metadata::check(causes, object, Scope { namespaced: true, name: names::subdomain }, true);
    series(causes, object);
    if !has(object, "eventTime") {
        causes.push(Cause::required("eventTime", ""));
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        causes.push(Cause::invalid("type", "", format!("has invalid value: {kind}")));
    }
    let source = &object["deprecatedSource"];
    let set = [
        ("firstTimestamp", has(object, "deprecatedFirstTimestamp")),
        ("lastTimestamp", has(object, "deprecatedLastTimestamp")),
        ("count", has(object, "deprecatedCount")),
        ("source", has(source, "component") || has(source, "host")),
    ];
    causes.extend(set.iter().filter(|(_, set)| *set).map(|(field, _)| Cause::invalid(*field, "", "needs to be unset")));
}

pub fn update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    legacy(causes, new);
    if !is_new(new) {
        return;
    }
    metadata::check_update(causes, old, new, true);
    if old.get("series") != new.get("series") {
        series(causes, new);
    }
    for (path, field) in [("involvedObject", "regarding"), ("source", "deprecatedSource")] {
        if old.get(field) != new.get(field) {
            causes.push(Cause::invalid(path, internal(&new[field]), "field is immutable"));
        }
    }
    let fields = [
        ("reason", "reason"),
        ("message", "note"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("count", "deprecatedCount"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (path, field) in fields {
        let empty = if field == "deprecatedCount" { Value::from(0) } else { Value::from("") };
        let shown = new.get(field).or_else(|| (!field.contains("Time") && field != "related").then_some(&empty));
        immutable(causes, path, old.get(field), shown);
    }
}

/// Go prints the field names of its own types.
fn internal(part: &Value) -> Value {
    let names: &[&str] = if has(part, "component") || has(part, "host") {
        &["Component", "Host"]
    } else {
        &["Kind", "Namespace", "Name", "UID", "APIVersion", "ResourceVersion", "FieldPath"]
    };
    let field = |name: &str| match name {
        "UID" => "uid".to_owned(),
        "APIVersion" => "apiVersion".to_owned(),
        name => name[..1].to_lowercase() + &name[1..],
    };
    Value::Object(names.iter().map(|name| ((*name).to_owned(), text(part, &field(name)).into())).collect())
}

fn series(causes: &mut Vec<Cause>, object: &Value) {
    if has(object, "series") {
        if object["series"]["count"].as_i64().is_none_or(|count| count < 2) {
            causes.push(Cause::invalid("series.count", "", "should be at least 2"));
        }
        if !has(&object["series"], "lastObservedTime") {
            causes.push(Cause::required("series.lastObservedTime", ""));
        }
    }
}

fn legacy(causes: &mut Vec<Cause>, object: &Value) {
    let (involved, note, controller) = if is_new(object) {
        ("regarding", "note", "reportingController")
    } else {
        ("involvedObject", "message", "reportingComponent")
    };
    let namespace = text(&object["metadata"], "namespace");
    let involved = text(&object[involved], "namespace");
    let timed = has(object, "eventTime");
    let agrees = match (involved, timed) {
        ("", false) => matches!(namespace, "" | "default"),
        ("", true) => matches!(namespace, "default" | "kube-system"),
        (involved, false) => involved == namespace,
        (_, true) => true,
    };
    if !agrees {
        causes.push(Cause::invalid("involvedObject.namespace", involved, "does not match event.namespace"));
    }
    if timed {
        let reporter = text(object, controller);
        if reporter.is_empty() {
            causes.push(Cause::required(controller, ""));
        }
        invalid_each(causes, controller, reporter, names::qualified_name(reporter));
        for (field, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
            if text(object, field).is_empty() {
                causes.push(Cause::required(field, ""));
            }
            too_long(causes, field, text(object, field), most);
        }
        too_long(causes, "message", text(object, note), 1024);
    }
    invalid_each(causes, "namespace", namespace, names::subdomain(namespace));
}

fn too_long(causes: &mut Vec<Cause>, path: &str, value: &str, most: usize) {
    if value.len() > most {
        causes.push(Cause::invalid(path, "", format!("can have at most {most} characters")));
    }
}

pub fn lease(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    let limits =
        [("leaseDurationSeconds", 1, "must be greater than 0"), ("leaseTransitions", 0, "must be greater than or equal to 0")];
    for (field, least, detail) in limits {
        if let Some(number) = spec[field].as_i64().filter(|number| *number < least) {
            causes.push(Cause::invalid(format!("spec.{field}"), number, detail));
        }
    }
}

pub fn namespace(causes: &mut Vec<Cause>, object: &Value) {
    for (_, name) in list(&object["spec"], "finalizers") {
        let name = name.as_str().unwrap_or_default();
        invalid_each(causes, "spec.finalizers", name, names::qualified_name(name));
        metadata::known_finalizer(causes, "spec.finalizers", name);
    }
}

pub fn namespace_status(causes: &mut Vec<Cause>, object: &Value) {
    let phase = text(&object["status"], "phase");
    let deleted = has(&object["metadata"], "deletionTimestamp");
    match (deleted, phase) {
        (false, "Active") | (true, "Terminating") => {}
        (false, _) => {
            let detail = "may only be 'Active' if `deletionTimestamp` is empty";
            causes.push(Cause::invalid("status.Phase", phase, detail));
        }
        (true, _) => {
            let detail = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            causes.push(Cause::invalid("status.Phase", phase, detail));
        }
    }
}
