//! Nodes.

use super::json::{entries, invalid_each, list, required_one_of, text};
use super::resources::amount;
use super::{Cause, addresses, names};
use serde_json::Value;

pub fn create(causes: &mut Vec<Cause>, object: &Value) {
    taints(causes, &object["spec"]);
    amounts(causes, object);
    let path = "spec.podCIDRs";
    for (index, range) in list(&object["spec"], "podCIDRs") {
        addresses::range(causes, &format!("{path}[{index}]"), range.as_str().unwrap_or_default());
    }
    let families: Vec<_> = list(&object["spec"], "podCIDRs")
        .filter_map(|(_, range)| addresses::parse_range(range.as_str()?).map(|(address, _)| address.is_ipv4()))
        .collect();
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        let detail = "may specify no more than one CIDR for each IP family";
        causes.push(Cause::invalid(path, object["spec"]["podCIDRs"].clone(), detail));
    }
}

pub fn update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    amounts(causes, new);
    let mut seen: Vec<&Value> = Vec::new();
    for (index, address) in list(&new["status"], "addresses") {
        if seen.contains(&address) {
            causes.push(Cause::duplicate(format!("status.addresses[{index}]"), internal_address(address)));
        }
        seen.push(address);
    }
    let (old_spec, spec) = (&old["spec"], &new["spec"]);
    let (before, after) = (list(old_spec, "podCIDRs"), list(spec, "podCIDRs"));
    let changes = match before.len() {
        0 => 0,
        length if length != after.len() => 1,
        _ => before.zip(after).filter(|((_, old), (_, new))| old != new).count(),
    };
    for _ in 0..changes {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        causes.push(Cause::forbidden("spec.podCIDRs", detail));
    }
    let provider = text(old_spec, "providerID");
    if !provider.is_empty() && provider != text(spec, "providerID") {
        let detail = "node updates may not change providerID except from \"\" to valid";
        causes.push(Cause::forbidden("spec.providerID", detail));
    }
    taints(causes, spec);
    if text(old_spec, "externalID") != text(spec, "externalID") {
        causes.push(Cause::forbidden("spec.externalID", "may not be updated"));
    }
}

fn internal_address(address: &Value) -> Value {
    serde_json::json!({ "Type": address["type"], "Address": address["address"] })
}

fn amounts(causes: &mut Vec<Cause>, object: &Value) {
    for field in ["capacity", "allocatable"] {
        for (name, value) in entries(&object["status"], field) {
            amount(causes, &format!("status.{field}.{name}"), name, value);
        }
    }
}

fn taints(causes: &mut Vec<Cause>, spec: &Value) {
    let mut seen = Vec::new();
    for (index, taint) in list(spec, "taints") {
        // Kubernetes reports them here, although they stand in the spec.
        let path = format!("metadata.taints[{index}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        invalid_each(causes, &format!("{path}.key"), key, names::qualified_name(key));
        let problems = names::label_value(value);
        if !problems.is_empty() {
            causes.push(Cause::invalid(format!("{path}.value"), value, problems.join(";")));
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        required_one_of(causes, &format!("{path}.effect"), effect, &effects);
        if seen.contains(&(key, effect)) {
            let mut cause = Cause::duplicate(&path, internal_taint(taint));
            cause.message.push_str(": taints must be unique by key and effect pair");
            causes.push(cause);
        }
        seen.push((key, effect));
    }
}

fn internal_taint(taint: &Value) -> Value {
    let field = |name: &str| text(taint, name).to_owned();
    let (key, value, effect) = (field("key"), field("value"), field("effect"));
    serde_json::json!({ "Key": key, "Value": value, "Effect": effect, "TimeAdded": taint["timeAdded"] })
}
