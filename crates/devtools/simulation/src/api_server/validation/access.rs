//! Roles and who has them.

use super::json::{has, invalid_each, list, one_of, text};
use super::metadata::label_selector;
use super::workloads::matches;
use super::{Cause, names};
use serde_json::Value;

const GROUP: &str = "rbac.authorization.k8s.io";

pub fn role(causes: &mut Vec<Cause>, object: &Value, namespaced: bool) {
    for (index, rule) in list(object, "rules") {
        rule_of_role(causes, &format!("rules[{index}]"), rule, namespaced);
    }
    if let Some(aggregation) = object.get("aggregationRule").filter(|rule| !rule.is_null()) {
        let path = "aggregationRule.clusterRoleSelectors";
        if list(aggregation, "clusterRoleSelectors").len() == 0 {
            causes.push(Cause::required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"));
        }
        for (index, selector) in list(aggregation, "clusterRoleSelectors") {
            let path = format!("{path}[{index}]");
            label_selector(causes, &path, selector);
            if matches(selector, &Value::Null).is_none() {
                causes.push(Cause::invalid(path, Value::Null, "invalid label selector."));
            }
        }
    }
}

fn rule_of_role(causes: &mut Vec<Cause>, path: &str, rule: &Value, namespaced: bool) {
    if list(rule, "verbs").len() == 0 {
        causes.push(Cause::required(format!("{path}.verbs"), "verbs must contain at least one value"));
    }
    if has(rule, "nonResourceURLs") {
        let path = format!("{path}.nonResourceURLs");
        let urls = &rule["nonResourceURLs"];
        if namespaced {
            causes.push(Cause::invalid(&path, urls.clone(), "namespaced rules cannot apply to non-resource URLs"));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| has(rule, field)) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            causes.push(Cause::invalid(&path, urls.clone(), detail));
        }
        return;
    }
    for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
        if list(rule, field).len() == 0 {
            causes.push(Cause::required(format!("{path}.{field}"), &format!("resource rules must supply at least one {what}")));
        }
    }
}

pub fn binding(causes: &mut Vec<Cause>, object: &Value, namespaced: bool) {
    let role = &object["roleRef"];
    one_of(causes, "roleRef.apiGroup", text(role, "apiGroup"), &[GROUP]);
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    one_of(causes, "roleRef.kind", text(role, "kind"), kinds);
    match text(role, "name") {
        "" => causes.push(Cause::required("roleRef.name", "")),
        name => invalid_each(causes, "roleRef.name", name, names::path_segment(name)),
    }
    for (index, subject) in list(object, "subjects") {
        subject_of_binding(causes, &format!("subjects[{index}]"), subject, namespaced);
    }
}

fn subject_of_binding(causes: &mut Vec<Cause>, path: &str, subject: &Value, namespaced: bool) {
    let name = text(subject, "name");
    if name.is_empty() {
        causes.push(Cause::required(format!("{path}.name"), ""));
    }
    let group = format!("{path}.apiGroup");
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                invalid_each(causes, &format!("{path}.name"), name, names::subdomain(name));
            }
            one_of(causes, &group, text(subject, "apiGroup"), &[""]);
            if !namespaced && text(subject, "namespace").is_empty() {
                causes.push(Cause::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" => one_of(causes, &group, text(subject, "apiGroup"), &[GROUP]),
        other => one_of(causes, &format!("{path}.kind"), other, &["ServiceAccount", "User", "Group"]),
    }
}

pub fn binding_update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    if old["roleRef"] != new["roleRef"] {
        causes.push(Cause::invalid("roleRef", internal_role(&new["roleRef"]), "cannot change roleRef"));
    }
}

/// Go prints the field names of its own type.
fn internal_role(role: &Value) -> Value {
    serde_json::json!({ "APIGroup": role["apiGroup"], "Kind": role["kind"], "Name": role["name"] })
}

/// Which containers run how.
pub fn runtime_class(causes: &mut Vec<Cause>, class: &Value) {
    let handler = text(class, "handler");
    invalid_each(causes, "handler", handler, names::label(handler));
}
