//! Where pods may run: tolerations, affinities and how they spread.

use super::json::{has, invalid_each, list, one_of, text};
use super::metadata::label_selector;
use super::{Cause, names};
use serde_json::Value;

pub fn tolerations(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    for (index, toleration) in list(spec, "tolerations") {
        let path = format!("{path}[{index}]");
        let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
        let (value, effect) = (text(toleration, "value"), text(toleration, "effect"));
        let at_operator = format!("{path}.operator");
        if key.is_empty() {
            if operator != "Exists" {
                let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
                causes.push(Cause::invalid(&at_operator, operator, detail));
            }
        } else {
            invalid_each(causes, &format!("{path}.key"), key, names::qualified_name(key));
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            causes.push(Cause::invalid(format!("{path}.effect"), effect, detail));
        }
        match operator {
            "Equal" | "" => {
                let problems = names::label_value(value);
                if !problems.is_empty() {
                    causes.push(Cause::invalid(&at_operator, value, problems.join(";")));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => causes.push(Cause::invalid(&at_operator, value, "value must be empty when `operator` is 'Exists'")),
            other => causes.push(Cause::not_supported(&at_operator, other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            one_of(causes, &format!("{path}.effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub fn affinity(causes: &mut Vec<Cause>, path: &str, affinity: &Value) {
    let node = &affinity["nodeAffinity"];
    if has(node, REQUIRED) {
        node_selector(causes, &format!("{path}.nodeAffinity.{REQUIRED}"), &node[REQUIRED]);
    }
    for (index, term) in list(node, PREFERRED) {
        let path = format!("{path}.nodeAffinity.{PREFERRED}[{index}]");
        weight(causes, &path, term);
        node_term(causes, &format!("{path}.preference"), &term["preference"], true);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (index, term) in list(&affinity[kind], REQUIRED) {
            pod_term(causes, &format!("{path}.{kind}.{REQUIRED}[{index}]"), term);
        }
        for (index, term) in list(&affinity[kind], PREFERRED) {
            let path = format!("{path}.{kind}.{PREFERRED}[{index}]");
            weight(causes, &path, term);
            pod_term(causes, &format!("{path}.podAffinityTerm"), &term["podAffinityTerm"]);
        }
    }
}

fn weight(causes: &mut Vec<Cause>, path: &str, term: &Value) {
    let weight = term["weight"].as_i64().unwrap_or(0);
    if !(1..=100).contains(&weight) {
        causes.push(Cause::invalid(format!("{path}.weight"), weight, "must be in the range 1-100"));
    }
}

fn node_selector(causes: &mut Vec<Cause>, path: &str, selector: &Value) {
    let path = format!("{path}.nodeSelectorTerms");
    if list(selector, "nodeSelectorTerms").len() == 0 {
        causes.push(Cause::required(&path, "must have at least one node selector term"));
    }
    for (index, term) in list(selector, "nodeSelectorTerms") {
        node_term(causes, &format!("{path}[{index}]"), term, false);
    }
}

fn node_term(causes: &mut Vec<Cause>, path: &str, term: &Value, any_value: bool) {
    for (index, requirement) in list(term, "matchExpressions") {
        node_requirement(causes, &format!("{path}.matchExpressions[{index}]"), requirement, any_value);
    }
    for (index, requirement) in list(term, "matchFields") {
        node_field(causes, &format!("{path}.matchFields[{index}]"), requirement);
    }
}

fn node_requirement(causes: &mut Vec<Cause>, path: &str, requirement: &Value, any_value: bool) {
    let values = format!("{path}.values");
    match (text(requirement, "operator"), list(requirement, "values").len()) {
        ("In" | "NotIn", 0) => causes.push(Cause::required(&values, "must be specified when `operator` is 'In' or 'NotIn'")),
        ("In" | "NotIn", _) | ("Exists" | "DoesNotExist", 0) | ("Gt" | "Lt", 1) => {}
        ("Exists" | "DoesNotExist", _) => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            causes.push(Cause::forbidden(&values, detail));
        }
        ("Gt" | "Lt", _) => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            causes.push(Cause::required(&values, detail));
        }
        (other, _) => causes.push(Cause::invalid(format!("{path}.operator"), other, "not a valid selector operator")),
    }
    let key = text(requirement, "key");
    invalid_each(causes, &format!("{path}.key"), key, names::qualified_name(key));
    for (index, value) in list(requirement, "values").filter(|_| !any_value) {
        let value = value.as_str().unwrap_or_default();
        invalid_each(causes, &format!("{values}[{index}]"), value, names::label_value(value));
    }
}

fn node_field(causes: &mut Vec<Cause>, path: &str, requirement: &Value) {
    match (text(requirement, "operator"), list(requirement, "values").len()) {
        ("In" | "NotIn", 1) => {}
        ("In" | "NotIn", _) => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            causes.push(Cause::required(format!("{path}.values"), detail));
        }
        (other, _) => causes.push(Cause::invalid(format!("{path}.operator"), other, "not a valid selector operator")),
    }
    let key = text(requirement, "key");
    if key != "metadata.name" {
        causes.push(Cause::invalid(format!("{path}.key"), key, "not a valid field selector key"));
        return;
    }
    for (index, name) in list(requirement, "values") {
        let name = name.as_str().unwrap_or_default();
        invalid_each(causes, &format!("{path}.values[{index}]"), name, names::subdomain(name));
    }
}

fn pod_term(causes: &mut Vec<Cause>, path: &str, term: &Value) {
    for field in ["labelSelector", "namespaceSelector"] {
        label_selector(causes, &format!("{path}.{field}"), &term[field]);
    }
    for (_, namespace) in list(term, "namespaces") {
        let namespace = namespace.as_str().unwrap_or_default();
        invalid_each(causes, &format!("{path}.namespace"), namespace, names::label(namespace));
    }
    let key = text(term, "topologyKey");
    let path = format!("{path}.topologyKey");
    if key.is_empty() {
        causes.push(Cause::required(&path, "can not be empty"));
    }
    invalid_each(causes, &path, key, names::qualified_name(key));
}

pub fn spread(causes: &mut Vec<Cause>, path: &str, spec: &Value) {
    let all: Vec<_> = list(spec, "topologySpreadConstraints").collect();
    for (index, constraint) in &all {
        let path = format!("{path}[{index}]");
        let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
        if skew <= 0 {
            causes.push(Cause::invalid(format!("{path}.maxSkew"), skew, "must be greater than zero"));
        }
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            causes.push(Cause::required(format!("{path}.topologyKey"), "can not be empty"));
        }
        one_of(causes, &format!("{path}.whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        let repeats = |other: &Value| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == action;
        if all[index + 1..].iter().any(|(_, other)| repeats(other)) {
            let pair = format!("{{{key}, {action}}}");
            causes.push(Cause::duplicate(format!("{path}.{{topologyKey, whenUnsatisfiable}}"), pair));
        }
        min_domains(causes, &format!("{path}.minDomains"), &constraint["minDomains"], action);
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = constraint[field].as_str() {
                one_of(causes, &format!("{path}.{field}"), policy, &["Honor", "Ignore"]);
            }
        }
        label_selector(causes, &format!("{path}.labelSelector"), &constraint["labelSelector"]);
    }
}

fn min_domains(causes: &mut Vec<Cause>, path: &str, domains: &Value, action: &str) {
    let Some(domains) = domains.as_i64() else { return };
    if domains <= 0 {
        causes.push(Cause::invalid(path, domains, "must be greater than zero"));
    }
    if action != "DoNotSchedule" {
        let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        causes.push(Cause::invalid(path, domains, detail));
    }
}
