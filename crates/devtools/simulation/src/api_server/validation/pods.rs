//! Pods and templates of pods.

use liqo_quantity::Quantity;
use serde_json::Value;

use super::{
    fields::{Causes, entries, items, text},
    metadata::{annotations, labels},
    names::LABEL,
};
use crate::api_server::cause::CauseKind;

pub fn check_new(causes: &mut Causes, pod: &Value) {
    let spec = &pod["spec"];
    check_pod_spec(causes, spec);
    if !text(&spec["nodeName"]).is_empty() && !items(&spec["schedulingGates"]).is_empty() {
        causes.forbidden(
            "spec.nodeName",
            "cannot be set until all schedulingGates have been cleared",
        );
    }
}

fn check_pod_spec(causes: &mut Causes, spec: &Value) {
    check_spec(causes, "spec", spec);
    if !text(&spec["serviceAccountName"]).is_empty() {
        return;
    }
    for (volume, sources) in items(&spec["volumes"])
        .iter()
        .map(|volume| items(&volume["projected"]["sources"]))
        .enumerate()
    {
        for (source, _) in sources
            .iter()
            .enumerate()
            .filter(|(_, source)| !source["serviceAccountToken"].is_null())
        {
            let path =
                format!("spec.volumes[{volume}].projected.sources[{source}].serviceAccountToken");
            causes.forbidden(
                path,
                "must not be specified when serviceAccountName is not set",
            );
        }
    }
}

/// The template in a workload.
pub fn check_template(causes: &mut Causes, template: &Value) {
    labels(
        causes,
        "spec.template.labels",
        &template["metadata"]["labels"],
    );
    annotations(
        causes,
        "spec.template.annotations",
        &template["metadata"]["annotations"],
    );
    check_spec(causes, "spec.template.spec", &template["spec"]);
}

pub fn check_spec(causes: &mut Causes, path: &str, spec: &Value) {
    let volumes = volumes(causes, path, spec);
    if items(&spec["containers"]).is_empty() {
        causes.required(format!("{path}.containers"));
    }
    let mut known = Vec::new();
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for (index, container) in items(&spec[list]).iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            check_container(causes, &path, container, &volumes);
            let name = text(&container["name"]);
            if known.contains(&name) {
                causes.duplicate(format!("{path}.name"));
            }
            known.push(name);
            let target = text(&container["targetContainerName"]);
            if !target.is_empty() && !known.contains(&target) {
                causes.add(
                    CauseKind::NotFound,
                    format!("{path}.targetContainerName"),
                    target,
                );
            }
        }
    }
    labels(
        causes,
        &format!("{path}.nodeSelector"),
        &spec["nodeSelector"],
    );
}

/// Checks the names of volumes, and returns them.
fn volumes<'a>(causes: &mut Causes, path: &str, spec: &'a Value) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (index, volume) in items(&spec["volumes"]).iter().enumerate() {
        let (path, name) = (
            format!("{path}.volumes[{index}].name"),
            text(&volume["name"]),
        );
        causes.require_name(&path, name, LABEL);
        if names.contains(&name) {
            causes.duplicate(path);
        }
        names.push(name);
    }
    names
}

fn check_container(causes: &mut Causes, path: &str, container: &Value, volumes: &[&str]) {
    causes.require_name(&format!("{path}.name"), text(&container["name"]), LABEL);
    check_image(causes, path, container);
    for (index, mount) in items(&container["volumeMounts"]).iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        if !volumes.contains(&text(&mount["name"])) {
            causes.add(
                CauseKind::NotFound,
                format!("{path}.name"),
                text(&mount["name"]),
            );
        }
        if text(&mount["mountPath"]).is_empty() {
            causes.required(format!("{path}.mountPath"));
        }
    }
    check_resources(
        causes,
        &format!("{path}.resources"),
        &container["resources"],
    );
}

fn check_image(causes: &mut Causes, path: &str, container: &Value) {
    let image = text(&container["image"]);
    if image.is_empty() {
        causes.required(format!("{path}.image"));
    } else if image.trim() != image {
        causes.invalid(format!("{path}.image"), "must not begin or end with spaces");
    }
}

fn amount(value: &Value) -> Option<i128> {
    value
        .as_str()?
        .parse::<Quantity>()
        .ok()
        .map(Quantity::nanos)
}

fn check_resources(causes: &mut Causes, path: &str, resources: &Value) {
    for list in ["limits", "requests"] {
        for (name, value) in entries(&resources[list]) {
            if amount(value).is_some_and(|amount| amount < 0) {
                causes.invalid(format!("{path}.{list}[{name}]"), "must not be negative");
            }
        }
    }
    for (name, request) in entries(&resources["requests"]) {
        if let (Some(request), Some(limit)) = (amount(request), amount(&resources["limits"][name]))
            && request > limit
        {
            causes.invalid(
                format!("{path}.requests"),
                "must not be greater than the limit",
            );
        }
    }
}

/// What must not change of a pod.
pub fn check_update(causes: &mut Causes, old: &Value, new: &Value) {
    let (old, new) = (&old["spec"], &new["spec"]);
    check_pod_spec(causes, new);
    for list in ["containers", "initContainers"] {
        if items(&old[list]).len() != items(&new[list]).len() {
            return causes.forbidden(
                format!("spec.{list}"),
                "pod updates may not add or remove containers",
            );
        }
    }
    let deadline = "spec.activeDeadlineSeconds";
    match (
        old["activeDeadlineSeconds"].as_i64(),
        new["activeDeadlineSeconds"].as_i64(),
    ) {
        (Some(before), Some(after)) if before < after => {
            return causes.invalid(deadline, "must not become later");
        }
        (Some(_), None) => causes.invalid(deadline, "must not be removed"),
        _ => {}
    }
    check_tolerations(causes, &old["tolerations"], &new["tolerations"]);
    let gates = |spec: &Value| -> Vec<String> {
        items(&spec["schedulingGates"])
            .iter()
            .map(|gate| text(&gate["name"]).to_owned())
            .collect()
    };
    let known = gates(old);
    for (index, _) in gates(new)
        .iter()
        .enumerate()
        .filter(|(_, gate)| !known.contains(gate))
    {
        causes.forbidden(
            format!("spec.schedulingGates[{index}].name"),
            "gates can only be removed",
        );
    }
    check_rest(causes, old, new);
}

/// Tolerations are only added, or get other times.
fn check_tolerations(causes: &mut Causes, old: &Value, new: &Value) {
    let timeless = |toleration: &Value| {
        let mut fields = toleration.as_object().cloned().unwrap_or_default();
        fields.remove("tolerationSeconds");
        fields
    };
    let after: Vec<_> = items(new).iter().map(timeless).collect();
    if items(old)
        .iter()
        .any(|toleration| !after.contains(&timeless(toleration)))
    {
        causes.forbidden("spec.tolerations", "existing tolerations cannot change");
    }
}

/// Whether each required term has the requirements that it had, and none is new. The others of the
/// affinity are not compared.
fn affinity_grows(old: &Value, new: &Value) -> bool {
    let terms = |affinity: &Value| {
        items(&affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"])
            .to_vec()
    };
    let (before, after) = (terms(old), terms(new));
    let keeps = |old: &Value, new: &Value| {
        ["matchExpressions", "matchFields"]
            .iter()
            .all(|part| items(&new[part]).starts_with(items(&old[part])))
    };
    before.is_empty()
        || (before.len() == after.len()
            && before.iter().zip(&after).all(|(old, new)| keeps(old, new)))
}

/// Everything else stays, but for images.
fn check_rest(causes: &mut Causes, old: &Value, new: &Value) {
    let mut changeable = vec!["activeDeadlineSeconds", "schedulingGates", "tolerations"];
    if !items(&old["schedulingGates"]).is_empty() {
        let grows =
            entries(&old["nodeSelector"]).all(|(key, value)| new["nodeSelector"][key] == *value);
        if !grows {
            causes.invalid("spec.nodeSelector", "entries can only be added");
        }
        if !affinity_grows(
            &old["affinity"]["nodeAffinity"],
            &new["affinity"]["nodeAffinity"],
        ) {
            causes.invalid(
                "spec.affinity.nodeAffinity",
                "requirements can only be added",
            );
        }
        changeable.push("nodeSelector");
        if ["podAffinity", "podAntiAffinity"]
            .iter()
            .all(|part| old["affinity"][part] == new["affinity"][part])
        {
            changeable.push("affinity");
        }
    }
    let fixed = |spec: &Value| {
        let mut fields = spec.as_object().cloned().unwrap_or_default();
        fields.retain(|field, _| !changeable.contains(&field.as_str()));
        for list in ["containers", "initContainers"] {
            for container in fields
                .get_mut(list)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                container["image"] = Value::Null;
            }
        }
        fields
    };
    if fixed(old) != fixed(new) {
        causes.forbidden(
            "spec",
            "pod updates may change only images, tolerations, the deadline and scheduling gates",
        );
    }
}
