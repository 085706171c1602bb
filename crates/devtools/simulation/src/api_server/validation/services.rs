//! Services.

use serde_json::{Value, json};

use super::{
    fields::{Causes, items, text},
    metadata::labels,
};

fn is_balanced(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer"
}

fn is_headless(spec: &Value) -> bool {
    spec["clusterIPs"] == json!(["None"])
}

fn is_external(spec: &Value) -> bool {
    spec["type"] == "ExternalName"
}

pub fn check(causes: &mut Causes, spec: &Value) {
    if items(&spec["ports"]).is_empty() && !is_headless(spec) && !is_external(spec) {
        causes.required("spec.ports");
    }
    if is_headless(spec) && ["LoadBalancer", "NodePort"].contains(&text(&spec["type"])) {
        causes.invalid("spec.clusterIPs[0]", "must not be None for this type");
    }
    if is_external(spec) {
        for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"]
            .into_iter()
            .filter(|field| !spec[*field].is_null())
        {
            causes.forbidden(
                format!("spec.{field}"),
                "may not be set for ExternalName services",
            );
        }
        if text(&spec["externalName"]).is_empty() {
            causes.required("spec.externalName");
        }
    }
    ports(causes, spec);
    labels(causes, "spec.selector", &spec["selector"]);
    let of_balancers = [
        ("loadBalancerSourceRanges", "LoadBalancerSourceRanges"),
        (
            "allocateLoadBalancerNodePorts",
            "allocateLoadBalancerNodePorts",
        ),
        ("loadBalancerClass", "loadBalancerClass"),
    ];
    for (_, path) in of_balancers
        .iter()
        .filter(|(field, _)| !is_balanced(spec) && !spec[*field].is_null())
    {
        causes.forbidden(
            format!("spec.{path}"),
            "may only be used when the type is LoadBalancer",
        );
    }
}

fn ports(causes: &mut Causes, spec: &Value) {
    let ports = items(&spec["ports"]);
    for (index, port) in ports.iter().enumerate() {
        let (path, before) = (format!("spec.ports[{index}]"), &ports[..index]);
        let name = text(&port["name"]);
        if name.is_empty() && ports.len() > 1 {
            causes.required(format!("{path}.name"));
        } else if !name.is_empty() && before.iter().any(|other| other["name"] == name) {
            causes.duplicate(format!("{path}.name"));
        }
        if !port["port"]
            .as_i64()
            .is_some_and(|number| (1..=65535).contains(&number))
        {
            causes.invalid(format!("{path}.port"), "must be between 1 and 65535");
        }
        if before
            .iter()
            .any(|other| other["port"] == port["port"] && other["protocol"] == port["protocol"])
        {
            causes.duplicate(&path);
        }
        if spec["type"] == "ClusterIP" && port["nodePort"].as_i64().unwrap_or(0) != 0 {
            causes.forbidden(
                format!("{path}.nodePort"),
                "may not be used when the type is ClusterIP",
            );
        }
    }
}

/// What a changed service must keep.
pub fn check_update(causes: &mut Causes, old: &Value, new: &Value) {
    if is_balanced(old) && is_balanced(new) {
        causes.refuse_change(
            "spec.loadBalancerClass",
            &old["loadBalancerClass"],
            &new["loadBalancerClass"],
        );
    }
    if is_external(old) || is_external(new) {
        return;
    }
    addresses(causes, old, new);
    if !is_headless(old) && !is_headless(new) {
        families(causes, &old["ipFamilies"], &new["ipFamilies"]);
    }
}

fn addresses(causes: &mut Causes, old: &Value, new: &Value) {
    let (before, after) = (items(&old["clusterIPs"]), items(&new["clusterIPs"]));
    if before.len() == after.len() {
        for (index, _) in before
            .iter()
            .zip(after)
            .enumerate()
            .filter(|(_, (old, new))| old != new)
        {
            causes.invalid(
                format!("spec.clusterIPs[{index}]"),
                "may not change once set",
            );
        }
        return;
    }
    if after.is_empty() || before.first().is_some_and(|first| *first != after[0]) {
        causes.invalid("spec.clusterIPs[0]", "may not change once set");
    }
    if before.len() > after.len() && after.len() == 1 && new["ipFamilyPolicy"] != "SingleStack" {
        causes.invalid(
            "spec.ipFamilyPolicy",
            "must be SingleStack to release the second address",
        );
    }
}

fn families(causes: &mut Causes, old: &Value, new: &Value) {
    let (old, new) = (items(old), items(new));
    let is_kept = if old.len() == new.len() {
        old == new
    } else {
        old.is_empty() || new.is_empty() || old[0] == new[0]
    };
    if !is_kept {
        causes.invalid("spec.ipFamilies[0]", "may not change once set");
    }
}

pub fn check_status(causes: &mut Causes, object: &Value) {
    let ingress = &object["status"]["loadBalancer"]["ingress"];
    if !is_balanced(&object["spec"]) && !ingress.is_null() {
        causes.forbidden(
            "status.loadBalancer.ingress",
            "may only be used when the type is LoadBalancer",
        );
    }
}
