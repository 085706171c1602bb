//! Claims of volumes and their classes; priorities; disruption budgets.

use super::json::{at_most_all, has, immutable, invalid_each, list, not_negative, one_of, share, text};
use super::metadata::{annotations, label_selector, labels};
use super::{Cause, names, resources};
use liqo_quantity::Quantity;
use serde_json::{Value, json};

/// The template of a claim, in a volume of a pod.
pub fn template(causes: &mut Vec<Cause>, path: &str, template: &Value) {
    let meta = &template["metadata"];
    annotations(causes, &format!("{path}.metadata.annotations"), &meta["annotations"]);
    labels(causes, &format!("{path}.metadata.labels"), &meta["labels"]);
    for (field, _) in meta.as_object().into_iter().flatten() {
        if field != "annotations" && field != "labels" {
            causes.push(Cause::forbidden(format!("{path}.metadata.{field}"), "cannot be set"));
        }
    }
    spec(causes, &format!("{path}.spec"), &template["spec"]);
}

pub fn spec(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let modes: Vec<_> = list(spec, "accessModes").filter_map(|(_, mode)| mode.as_str()).collect();
    let at = format!("{path}.accessModes");
    if modes.is_empty() {
        causes.push(Cause::required(&at, "at least 1 access mode is required"));
    }
    label_selector(causes, &format!("{path}.selector"), &spec["selector"]);
    let supported = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in &modes {
        one_of(causes, &at, mode, &supported);
    }
    let shared = modes.iter().any(|mode| supported[..3].contains(mode));
    if modes.contains(&"ReadWriteOncePod") && shared {
        causes.push(Cause::forbidden(at, "may not use ReadWriteOncePod with other access modes"));
    }
    let at = format!("{path}.resources[storage]");
    let size = &spec["resources"]["requests"]["storage"];
    match size.as_str().and_then(|size| size.parse::<Quantity>().ok()) {
        None => causes.push(Cause::required(at, "")),
        Some(amount) if amount.nanos() <= 0 => causes.push(Cause::invalid(at, size.clone(), "must be greater than zero")),
        Some(_) => resources::amount(causes, &at, "storage", size),
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        invalid_each(causes, &format!("{path}.storageClassName"), class, names::subdomain(class));
    }
    if let Some(mode) = spec["volumeMode"].as_str() {
        one_of(causes, &format!("{path}.volumeMode"), mode, &["Block", "Filesystem"]);
    }
    for field in ["dataSource", "dataSourceRef"].into_iter().filter(|field| has(spec, field)) {
        data_source(causes, &format!("{path}.{field}"), &spec[field]);
    }
    let differs = ["apiGroup", "kind", "name"].iter().any(|field| spec["dataSource"][field] != spec["dataSourceRef"][field]);
    if has(spec, "dataSource") && has(spec, "dataSourceRef") && differs {
        // Go prints a path where it means the value.
        causes.push(Cause::invalid(path, json!({}), "must match dataSourceRef"));
    }
}

fn data_source(causes: &mut Vec<Cause>, path: &str, source: &Value) {
    for field in ["name", "kind"].into_iter().filter(|field| text(source, field).is_empty()) {
        causes.push(Cause::required(format!("{path}.{field}"), ""));
    }
    let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
    if group.is_empty() {
        if kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            causes.push(Cause::invalid(path, kind, detail));
        }
    } else {
        invalid_each(causes, &format!("{path}.apiGroup"), group, names::subdomain(group));
    }
}

/// What an update of a claim must leave as it is.
pub fn update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let bound = new["status"]["phase"] == "Bound";
    let fixed = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        if let Some(fields) = spec.as_object_mut() {
            if text(&old["spec"], "volumeName").is_empty() {
                fields.shift_remove("volumeName");
            }
            if bound {
                fields.shift_remove("volumeAttributesClassName");
            }
        }
        if let Some(requests) = spec["resources"]["requests"].as_object_mut().filter(|_| bound) {
            requests.shift_remove("storage");
        }
        spec
    };
    if fixed(old) != fixed(new) {
        let detail =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
        causes.push(Cause::forbidden("spec", detail));
    }
    let amount = |value: &Value| value.as_str().and_then(|text| text.parse::<Quantity>().ok()).map_or(0, Quantity::nanos);
    let size = |claim: &Value| amount(&claim["spec"]["resources"]["requests"]["storage"]);
    if size(new) < size(old) && size(new) <= amount(&old["status"]["capacity"]["storage"]) {
        let detail = "field can not be less than status.capacity";
        causes.push(Cause::forbidden("spec.resources.requests.storage", detail));
    }
    immutable(causes, "volumeMode", old["spec"].get("volumeMode"), new["spec"].get("volumeMode"));
}

pub fn storage_class(causes: &mut Vec<Cause>, object: &Value) {
    match text(object, "provisioner") {
        "" => causes.push(Cause::required("provisioner", "")),
        name => {
            let lower = name.to_lowercase();
            invalid_each(causes, "provisioner", &lower, names::qualified_name(&lower));
        }
    }
    one_of(causes, "reclaimPolicy", text(object, "reclaimPolicy"), &["Delete", "Retain"]);
    one_of(causes, "volumeBindingMode", text(object, "volumeBindingMode"), &["Immediate", "WaitForFirstConsumer"]);
}

pub fn storage_class_update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    for field in ["parameters", "provisioner", "reclaimPolicy"].into_iter().filter(|field| old.get(field) != new.get(field)) {
        causes.push(Cause::forbidden(field, format!("updates to {field} are forbidden.")));
    }
    immutable(causes, "volumeBindingMode", old.get("volumeBindingMode"), new.get("volumeBindingMode"));
}

pub fn priority_class(causes: &mut Vec<Cause>, object: &Value) {
    const SYSTEM: [(&str, i64); 2] = [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
    let name = text(&object["metadata"], "name");
    let value = object["value"].as_i64().unwrap_or(0);
    if name.starts_with("system-") {
        if !SYSTEM.contains(&(name, value)) {
            let why = if SYSTEM.iter().any(|(known, _)| *known == name) {
                let known = SYSTEM.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
                format!("value of {name} PriorityClass must be {known}")
            } else {
                format!("{name} is not a known system priority class")
            };
            let detail = "priority class names with 'system-' prefix are reserved for system use only. error:";
            causes.push(Cause::forbidden("metadata.name", format!("{detail} {why}")));
        }
    } else if value > 1_000_000_000 {
        causes.push(Cause::forbidden("value", "maximum allowed value of a user defined priority is 1000000000"));
    }
    if let Some(policy) = object["preemptionPolicy"].as_str() {
        super::json::required_one_of(causes, "preemptionPolicy", policy, &["PreemptLowerPriority", "Never"]);
    }
}

pub fn priority_class_update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    if old["value"] != new["value"] {
        causes.push(Cause::forbidden("value", "may not be changed in an update."));
    }
    immutable(causes, "preemptionPolicy", old.get("preemptionPolicy"), new.get("preemptionPolicy"));
}

pub fn budget(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        let shown = json!({
            "MinAvailable": spec["minAvailable"],
            "Selector": spec["selector"],
            "MaxUnavailable": spec["maxUnavailable"],
            "UnhealthyPodEvictionPolicy": spec["unhealthyPodEvictionPolicy"],
        });
        causes.push(Cause::invalid("spec", shown, "minAvailable and maxUnavailable cannot be both set"));
    }
    for field in ["minAvailable", "maxUnavailable"].into_iter().filter(|field| has(spec, field)) {
        share(causes, &format!("spec.{field}"), &spec[field]);
        at_most_all(causes, &format!("spec.{field}"), &spec[field]);
    }
    label_selector(causes, "spec.selector", &spec["selector"]);
    if let Some(policy) = spec["unhealthyPodEvictionPolicy"].as_str() {
        one_of(causes, "spec.unhealthyPodEvictionPolicy", policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }
}

pub fn budget_status(causes: &mut Vec<Cause>, object: &Value) {
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        not_negative(causes, &format!("status.{field}"), &object["status"][field]);
    }
}
