//! What makes pods: deployments and the like.

use super::json::{at_most_all, has, immutable, list, not_negative, one_of, share, share_value, text};
use super::metadata::{label_selector, selects_all};
use super::{Cause, claims, names, pods};
use serde_json::{Value, json};

/// Whether a selector matches labels; `None` if the selector is broken.
pub fn matches(selector: &Value, labels: &Value) -> Option<bool> {
    if selector.is_null() {
        return Some(false);
    }
    let mut causes = Vec::new();
    label_selector(&mut causes, "", selector);
    if !causes.is_empty() {
        return None;
    }
    let given = |key: &str| labels.get(key).and_then(Value::as_str);
    let wanted = selector["matchLabels"].as_object();
    let equal = wanted.into_iter().flatten().all(|(key, value)| given(key) == value.as_str());
    let fits = list(selector, "matchExpressions").all(|(_, expression)| {
        let value = given(text(expression, "key"));
        let listed = value.is_some_and(|value| list(expression, "values").any(|(_, item)| item == value));
        match text(expression, "operator") {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    });
    Some(equal && fits)
}

const MISMATCH: &str = "`selector` does not match template `labels`";

fn template_labels(spec: &Value) -> Value {
    spec["template"]["metadata"].get("labels").cloned().unwrap_or_default()
}

/// A selector that must be there and must pick something out. `what` is the kind that its messages name.
fn selector(causes: &mut Vec<Cause>, spec: &Value, what: &str) {
    let selector = &spec["selector"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
        return;
    }
    label_selector(causes, "spec.selector", selector);
    if selects_all(selector) {
        let detail = format!("empty selector is invalid for {what}");
        causes.push(Cause::invalid("spec.selector", selector.clone(), detail));
    }
}

/// The template, which the selector must match.
fn selected_template(causes: &mut Vec<Cause>, spec: &Value, broken: &str) {
    let labels = template_labels(spec);
    match matches(&spec["selector"], &labels) {
        None => causes.push(Cause::invalid("spec.selector", spec["selector"].clone(), broken)),
        Some(matched) => {
            if !matched {
                causes.push(Cause::invalid("spec.template.metadata.labels", labels, MISMATCH));
            }
            pods::template(causes, "spec.template", &spec["template"]);
        }
    }
}

/// Pods that run for ever.
fn always_restarts(causes: &mut Vec<Cause>, spec: &Value, kind: &str) {
    let spec = &spec["template"]["spec"];
    one_of(causes, "spec.template.spec.restartPolicy", text(spec, "restartPolicy"), &["Always"]);
    if has(spec, "activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        causes.push(Cause::forbidden("spec.template.spec.activeDeadlineSeconds", detail));
    }
}

fn counts(causes: &mut Vec<Cause>, object: &Value, part: &str, fields: &[&str]) {
    for field in fields {
        not_negative(causes, &format!("{part}.{field}"), &object[part][*field]);
    }
}

pub fn deployment(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    counts(causes, object, "spec", &["replicas"]);
    selector(causes, spec, "deployment");
    let before = causes.len();
    selected_template(causes, spec, "invalid label selector");
    if causes[before..].iter().all(|cause| cause.field != "spec.selector") {
        always_restarts(causes, spec, "ReplicaSet");
    }
    let strategy = &spec["strategy"];
    match text(strategy, "type") {
        "Recreate" if has(strategy, "rollingUpdate") => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            causes.push(Cause::forbidden("spec.strategy.rollingUpdate", detail));
        }
        "Recreate" => {}
        "RollingUpdate" => rolling_deployment(causes, &strategy["rollingUpdate"]),
        other => {
            let shown = internal_strategy(other, strategy);
            causes.push(Cause::not_supported("spec.strategy", shown, &["Recreate", "RollingUpdate"]));
        }
    }
    counts(causes, object, "spec", &["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"]);
    let deadline = spec["progressDeadlineSeconds"].as_i64();
    if let Some(deadline) = deadline.filter(|deadline| *deadline <= spec["minReadySeconds"].as_i64().unwrap_or(0)) {
        causes.push(Cause::invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"));
    }
}

/// Go prints the field names of its own type.
fn internal_strategy(kind: &str, strategy: &Value) -> Value {
    let update = strategy.get("rollingUpdate").filter(|update| !update.is_null());
    let update = update.map(|update| json!({ "MaxUnavailable": update["maxUnavailable"], "MaxSurge": update["maxSurge"] }));
    json!({ "Type": kind, "RollingUpdate": update })
}

fn rolling_deployment(causes: &mut Vec<Cause>, update: &Value) {
    let path = "spec.strategy.rollingUpdate";
    for field in ["maxUnavailable", "maxSurge"] {
        share(causes, &format!("{path}.{field}"), &update[field]);
    }
    let path = format!("{path}.maxUnavailable");
    if share_value(&update["maxUnavailable"]) == 0 && share_value(&update["maxSurge"]) == 0 {
        causes.push(Cause::invalid(&path, update["maxUnavailable"].clone(), "may not be 0 when `maxSurge` is 0"));
    }
    at_most_all(causes, &path, &update["maxUnavailable"]);
}

pub fn replica_set(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    counts(causes, object, "spec", &["replicas", "minReadySeconds"]);
    selector(causes, spec, "deployment");
    let before = causes.len();
    selected_template(causes, spec, "invalid label selector");
    if causes[before..].iter().all(|cause| cause.field != "spec.selector") {
        always_restarts(causes, spec, "ReplicaSet");
    }
}

pub fn daemon_set(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    label_selector(causes, "spec.selector", &spec["selector"]);
    if matches(&spec["selector"], &template_labels(spec)) == Some(false) {
        causes.push(Cause::invalid("spec.template.metadata.labels", template_labels(spec), MISMATCH));
    }
    if !spec["selector"].is_null() && selects_all(&spec["selector"]) {
        causes.push(Cause::invalid("spec.selector", spec["selector"].clone(), "empty selector is invalid for daemonset"));
    }
    pods::template(causes, "spec.template", &spec["template"]);
    always_restarts(causes, spec, "DaemonSet");
    counts(causes, object, "spec", &["minReadySeconds"]);
    let strategy = &spec["updateStrategy"];
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => rolling_daemon_set(causes, &strategy["rollingUpdate"]),
        other => {
            let shown = internal_strategy(other, strategy);
            causes.push(Cause::not_supported("spec.updateStrategy", shown, &["RollingUpdate", "OnDelete"]));
        }
    }
    counts(causes, object, "spec", &["revisionHistoryLimit"]);
}

fn rolling_daemon_set(causes: &mut Vec<Cause>, update: &Value) {
    let path = "spec.updateStrategy.rollingUpdate";
    for check in [share, at_most_all] {
        for field in ["maxUnavailable", "maxSurge"] {
            check(causes, &format!("{path}.{field}"), &update[field]);
        }
    }
    match (share_value(&update["maxUnavailable"]) != 0, share_value(&update["maxSurge"]) != 0) {
        (true, true) => {
            let detail = "may not be set when maxUnavailable is non-zero";
            causes.push(Cause::invalid(format!("{path}.maxSurge"), update["maxSurge"].clone(), detail));
        }
        (false, false) => {
            causes.push(Cause::required(format!("{path}.maxUnavailable"), "cannot be 0 when maxSurge is 0"));
        }
        _ => {}
    }
}

pub fn stateful_set(causes: &mut Vec<Cause>, object: &Value, old: Option<&Value>) {
    let spec = &object["spec"];
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        causes.push(Cause::invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"));
    }
    stateful_strategy(causes, &spec["updateStrategy"]);
    let retention = &spec["persistentVolumeClaimRetentionPolicy"];
    for field in ["whenDeleted", "whenScaled"] {
        let path = format!("spec.persistentVolumeClaimRetentionPolicy.{field}");
        one_of(causes, &path, text(retention, field), &["Retain", "Delete"]);
    }
    if old.is_none() {
        for (index, template) in list(spec, "volumeClaimTemplates") {
            claims::spec(causes, &format!("spec.volumeClaimTemplates[{index}].spec"), &template["spec"]);
        }
    }
    counts(causes, object, "spec", &["replicas", "minReadySeconds"]);
    not_negative(causes, "spec.ordinals.start", &spec["ordinals"]["start"]);
    let service = text(spec, "serviceName");
    if old.is_none() && !service.is_empty() {
        super::json::invalid_each(causes, "spec.serviceName", service, names::label(service));
    }
    selector(causes, spec, "statefulset");
    stateful_template(causes, spec);
    always_restarts(causes, spec, "StatefulSet");
}

fn stateful_strategy(causes: &mut Vec<Cause>, strategy: &Value) {
    let path = "spec.updateStrategy";
    let update = strategy.get("rollingUpdate").filter(|update| !update.is_null());
    let partition = |update: &Value| update["partition"].as_i64().unwrap_or(0);
    let internal = update.map(|update| json!({ "Partition": partition(update), "MaxUnavailable": null }));
    match (text(strategy, "type"), update) {
        ("OnDelete", Some(_)) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            causes.push(Cause::invalid(format!("{path}.rollingUpdate"), internal.unwrap_or_default(), detail));
        }
        ("RollingUpdate", Some(update)) => {
            not_negative(causes, &format!("{path}.rollingUpdate.partition"), &update["partition"]);
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        (other, _) => {
            let shown = json!({ "Type": other, "RollingUpdate": internal });
            causes.push(Cause::invalid(path, shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
}

/// The template with the volumes of its claims, whose labels and annotations are checked twice.
fn stateful_template(causes: &mut Vec<Cause>, spec: &Value) {
    let mut spec = spec.clone();
    let templates: Vec<_> =
        list(&spec, "volumeClaimTemplates").map(|(_, template)| text(&template["metadata"], "name").to_owned()).collect();
    let pod = &mut spec["template"]["spec"];
    if let Some(fields) = pod.as_object_mut() {
        fields.shift_remove("subdomain");
        fields.shift_remove("hostname");
    }
    if !templates.is_empty() {
        let claim = |name: &String| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        let own = list(pod, "volumes").map(|(_, volume)| volume.clone());
        let own = own.filter(|volume| !templates.iter().any(|name| name == text(volume, "name")));
        pod["volumes"] = templates.iter().map(claim).chain(own).collect();
    }
    let before = causes.len();
    selected_template(causes, &spec, "");
    if causes[before..].iter().all(|cause| cause.field != "spec.selector") {
        let meta = &spec["template"]["metadata"];
        super::metadata::labels(causes, "spec.template.labels", &meta["labels"]);
        super::metadata::annotations(causes, "spec.template.annotations", &meta["annotations"]);
    }
}

/// What an update of a workload must leave as it is.
pub fn update(causes: &mut Vec<Cause>, kind: &str, old: &Value, new: &Value) {
    let (old, new) = (&old["spec"], &new["spec"]);
    if kind != "StatefulSet" {
        immutable(causes, "spec.selector", old.get("selector"), new.get("selector"));
        return;
    }
    let changing = [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ];
    let fixed = |spec: &Value| {
        let mut fields = spec.as_object().cloned().unwrap_or_default();
        fields.retain(|field, _| !changing.contains(&field.as_str()));
        fields
    };
    if fixed(old) != fixed(new) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
                      'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        causes.push(Cause::forbidden("spec", detail));
    }
}

pub fn status(causes: &mut Vec<Cause>, kind: &str, old: &Value, new: &Value) {
    let status = &new["status"];
    let mut fields = match kind {
        "Deployment" => vec![
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
        ],
        "ReplicaSet" => vec!["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
        "StatefulSet" => {
            vec!["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas", "observedGeneration"]
        }
        _ => vec![
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
        ],
    };
    fields.push("collisionCount");
    counts(causes, new, "status", &fields);
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let parts: &[&str] = match kind {
        "Deployment" => &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "ReplicaSet" => &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
        "StatefulSet" => &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        _ => &[],
    };
    for field in parts.iter().filter(|field| count(field) > count("replicas")) {
        let detail = "cannot be greater than status.replicas";
        causes.push(Cause::invalid(format!("status.{field}"), count(field), detail));
    }
    if !parts.is_empty() && count("availableReplicas") > count("readyReplicas") {
        let whole = if kind == "StatefulSet" { "status.readyReplicas" } else { "readyReplicas" };
        let detail = format!("cannot be greater than {whole}");
        causes.push(Cause::invalid("status.availableReplicas", count("availableReplicas"), detail));
    }
    let before = old["status"]["collisionCount"].as_i64();
    if kind != "ReplicaSet" && before.is_some_and(|before| count("collisionCount") < before) {
        causes.push(Cause::invalid("status.collisionCount", count("collisionCount"), "cannot be decremented"));
    }
}
