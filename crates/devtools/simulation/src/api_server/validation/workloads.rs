//! What makes pods: deployments, jobs and the like.

use serde_json::{Value, json};

use super::{
    fields::{Causes, text},
    metadata::labels,
    pods,
};
use crate::api_server::{cause::CauseKind, selectors};

/// Deployments, and sets of replicas, daemons or stateful pods.
pub fn check(causes: &mut Causes, spec: &Value) {
    causes.refuse_negative("spec.replicas", &spec["replicas"]);
    let selector = &spec["selector"];
    if selector.is_null() {
        causes.required("spec.selector");
    } else if selectors::selects_all(selector) {
        causes.invalid("spec.selector", "must not be empty");
    }
    check_selected_template(causes, spec);
    if spec["template"]["spec"]["restartPolicy"] != "Always" {
        causes.add(
            CauseKind::NotSupported,
            "spec.template.spec.restartPolicy",
            "must be Always",
        );
    }
    let strategy = &spec["strategy"];
    if strategy["type"] == "Recreate" && !strategy["rollingUpdate"].is_null() {
        causes.forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when the type is Recreate",
        );
    }
}

/// The template, which the selector must match.
fn check_selected_template(causes: &mut Causes, spec: &Value) {
    labels(
        causes,
        "spec.selector.matchLabels",
        &spec["selector"]["matchLabels"],
    );
    if !selectors::selects(&spec["selector"], &spec["template"]["metadata"]["labels"]) {
        causes.invalid(
            "spec.template.metadata.labels",
            "must be what the selector selects",
        );
    }
    pods::check_template(causes, &spec["template"]);
}

pub fn check_job(causes: &mut Causes, job: &Value) {
    let spec = &job["spec"];
    causes.refuse_negative("spec.parallelism", &spec["parallelism"]);
    check_selected_template(causes, spec);
    if matches!(
        text(&spec["template"]["spec"]["restartPolicy"]),
        "Always" | ""
    ) {
        causes.required("spec.template.spec.restartPolicy");
    }
    if spec["selector"].is_null() {
        causes.required("spec.selector");
    } else if spec["manualSelector"] != true {
        check_generated_labels(causes, job);
    }
}

/// Pods have labels by which only this job selects them.
fn check_generated_labels(causes: &mut Causes, job: &Value) {
    let spec = &job["spec"];
    let (uid, name) = (&job["metadata"]["uid"], &job["metadata"]["name"]);
    let generated = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    for (key, expected) in generated {
        let path = format!("spec.template.metadata.labels[{key}]");
        match &spec["template"]["metadata"]["labels"][key] {
            Value::Null => causes.required(path),
            given if given != expected => causes.invalid(path, "must be the generated one"),
            _ => {}
        }
    }
    let generated: serde_json::Map<_, _> = generated
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    if !selectors::selects(&spec["selector"], &Value::Object(generated)) {
        causes.invalid("spec.selector", "must be the generated one");
    }
}

pub fn check_job_update(causes: &mut Causes, old: &Value, new: &Value) {
    let waits = old["spec"]["suspend"] == true && old["status"]["startTime"].is_null();
    let (old, new) = (&old["spec"], &new["spec"]);
    if new["completionMode"] != "Indexed" {
        causes.refuse_change("spec.completions", &old["completions"], &new["completions"]);
    } else if old["completions"] != new["completions"] && new["parallelism"] != new["completions"] {
        causes.invalid(
            "spec.completions",
            "can only be changed together with spec.parallelism",
        );
    }
    causes.refuse_change(
        "spec.template",
        &fixed_template(old, waits),
        &fixed_template(new, waits),
    );
}

/// What must stay of a job's template. The place where pods run may change while the job waits.
fn fixed_template(spec: &Value, waits: bool) -> Value {
    let mut template = spec["template"].clone();
    if !waits {
        return template;
    }
    let changeable = [
        ("metadata", &["labels", "annotations"][..]),
        ("spec", &["nodeSelector", "tolerations", "schedulingGates"]),
    ];
    for (part, fields) in changeable {
        if let Some(part) = template[part].as_object_mut() {
            part.retain(|field, _| !fields.contains(&field.as_str()));
        }
    }
    if let Some(affinity) = template["spec"]["affinity"].as_object_mut() {
        affinity.remove("nodeAffinity");
    }
    template
}

pub fn check_stateful_set_update(causes: &mut Causes, old: &Value, new: &Value) {
    let changeable = [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ];
    refuse_other_changes(causes, &old["spec"], &new["spec"], &changeable);
}

/// A claim gets its volume once. The size of a bound one may change.
pub fn check_claim_update(causes: &mut Causes, old: &Value, new: &Value) {
    let mut changeable = Vec::new();
    if text(&old["spec"]["volumeName"]).is_empty() {
        changeable.push("volumeName");
    }
    if new["status"]["phase"] == "Bound" {
        changeable.extend(["resources", "volumeAttributesClassName"]);
    }
    refuse_other_changes(causes, &old["spec"], &new["spec"], &changeable);
}

fn refuse_other_changes(causes: &mut Causes, old: &Value, new: &Value, changeable: &[&str]) {
    let fixed = |spec: &Value| {
        let mut fields = spec.as_object().cloned().unwrap_or_default();
        fields.retain(|field, _| !changeable.contains(&field.as_str()));
        fields
    };
    if fixed(old) != fixed(new) {
        causes.forbidden(
            "spec",
            &format!("only these fields can change: {}", changeable.join(", ")),
        );
    }
}
