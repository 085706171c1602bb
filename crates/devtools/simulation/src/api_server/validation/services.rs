//! Services.

use super::super::defaults::{externally_accessible, has_traffic};
use super::json::{has, invalid_each, list, one_of, port_number, port_number_or_name, required_one_of, text};
use super::metadata::labels;
use super::{Cause, addresses, names};
use serde_json::{Value, json};

fn balances(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer"
}

fn is_headless(spec: &Value) -> bool {
    spec["clusterIPs"] == json!(["None"])
}

fn checks_health(spec: &Value) -> bool {
    balances(spec) && spec["externalTrafficPolicy"] == "Local"
}

pub fn service(causes: &mut Vec<Cause>, object: &Value, old: Option<&Value>) {
    let spec = &object["spec"];
    let kind = text(spec, "type");
    if list(spec, "ports").len() == 0 && !is_headless(spec) && kind != "ExternalName" {
        causes.push(Cause::required("spec.ports", ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            causes.push(Cause::invalid("spec.clusterIPs[0]", "None", detail));
        }
        "ExternalName" => external_name(causes, spec),
        _ => {}
    }
    ports(causes, spec);
    labels(causes, "spec.selector", &spec["selector"]);
    session_affinity(causes, spec);
    cluster_ips(causes, spec);
    for (index, address) in list(spec, "externalIPs") {
        let (path, address) = (format!("spec.externalIPs[{index}]"), address.as_str().unwrap_or_default());
        if addresses::address(causes, &path, address) {
            addresses::endpoint_address(causes, &path, address);
        }
    }
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    required_one_of(causes, "spec.type", kind, &types);
    repeated_ports(causes, spec);
    balancer(causes, spec, old.map(|old| &old["spec"]));
    traffic(causes, spec);
}

fn external_name(causes: &mut Vec<Cause>, spec: &Value) {
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"].into_iter().filter(|field| has(spec, field)) {
        causes.push(Cause::forbidden(format!("spec.{field}"), "may not be set for ExternalName services"));
    }
    let name = text(spec, "externalName");
    match name.strip_suffix('.').unwrap_or(name) {
        "" => causes.push(Cause::required("spec.externalName", "")),
        name => invalid_each(causes, "spec.externalName", name, names::subdomain(name)),
    }
}

fn ports(causes: &mut Vec<Cause>, spec: &Value) {
    let several = list(spec, "ports").len() > 1;
    let mut known = Vec::new();
    for (index, port) in list(spec, "ports") {
        let path = format!("spec.ports[{index}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let path = format!("{path}.name");
            invalid_each(causes, &path, name, names::label(name));
            if known.contains(&name) {
                causes.push(Cause::duplicate(path, name));
            }
            known.push(name);
        } else if several {
            causes.push(Cause::required(format!("{path}.name"), ""));
        }
        port_number(causes, &format!("{path}.port"), &port["port"]);
        required_one_of(causes, &format!("{path}.protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
        port_number_or_name(causes, &format!("{path}.targetPort"), &port["targetPort"]);
        if let Some(protocol) = port["appProtocol"].as_str() {
            invalid_each(causes, &format!("{path}.appProtocol"), protocol, names::qualified_name(protocol));
        }
    }
}

fn session_affinity(causes: &mut Vec<Cause>, spec: &Value) {
    let affinity = text(spec, "sessionAffinity");
    required_one_of(causes, "spec.sessionAffinity", affinity, &["ClientIP", "None"]);
    let path = "spec.sessionAffinityConfig";
    if affinity == "None" && has(spec, "sessionAffinityConfig") {
        causes.push(Cause::forbidden(path, "must not be set when session affinity is None"));
    }
    if affinity == "ClientIP" {
        let timeout = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        if !timeout.as_i64().is_some_and(|seconds| (1..=86400).contains(&seconds)) {
            let detail = "must be greater than 0 and less than 86400";
            causes.push(Cause::invalid(format!("{path}.clientIP.timeoutSeconds"), timeout.clone(), detail));
        }
    }
}

/// The addresses and families of a service that has any.
pub fn cluster_ips(causes: &mut Vec<Cause>, spec: &Value) {
    if spec["type"] == "ExternalName" {
        return;
    }
    let path = "spec.clusterIPs";
    let all: Vec<_> = list(spec, "clusterIPs").map(|(_, address)| address.as_str().unwrap_or_default()).collect();
    match (text(spec, "clusterIP"), all.first()) {
        ("", None) => {}
        ("", Some(_)) => causes.push(Cause::invalid(path, all.clone(), "must be empty when `clusterIP` is not specified")),
        (_, None) => causes.push(Cause::required(path, "")),
        (one, Some(first)) if one != *first => {
            causes.push(Cause::invalid(path, all.clone(), "first value must match `clusterIP`"));
        }
        _ => {}
    }
    families(causes, spec);
    let mut broken = false;
    for (index, address) in all.iter().enumerate() {
        if index == 0 && *address == "None" {
            if all.len() > 1 {
                broken = true;
                causes.push(Cause::invalid(path, all.clone(), "'None' must be the first and only value"));
            }
        } else {
            broken |= !addresses::address(causes, &format!("{path}[{index}]"), address);
        }
    }
    if all.len() > 2 {
        causes.push(Cause::invalid(path, all.clone(), "may only hold up to 2 values"));
    }
    if broken {
        return;
    }
    let is_v6 = |address: &str| addresses::parse(address).is_some_and(|address| address.is_ipv6());
    if all.len() > 1 && all.iter().all(|address| is_v6(address) == is_v6(all[0])) {
        causes.push(Cause::invalid(path, all.clone(), "may specify no more than one IP for each IP family"));
    }
    if is_headless(spec) {
        return;
    }
    for ((index, address), (_, family)) in all.iter().enumerate().zip(list(spec, "ipFamilies")) {
        let family = family.as_str().unwrap_or_default();
        if (family == "IPv4" && is_v6(address)) || (family == "IPv6" && !is_v6(address)) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            causes.push(Cause::invalid(format!("{path}[{index}]"), *address, detail));
        }
    }
}

fn families(causes: &mut Vec<Cause>, spec: &Value) {
    let mut seen = Vec::new();
    for (index, family) in list(spec, "ipFamilies") {
        let (path, family) = (format!("spec.ipFamilies[{index}]"), family.as_str().unwrap_or_default());
        one_of(causes, &path, family, &["IPv4", "IPv6"]);
        if seen.contains(&family) {
            causes.push(Cause::duplicate(path, family));
        }
        seen.push(family);
    }
    if let Some(policy) = spec["ipFamilyPolicy"].as_str() {
        let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        one_of(causes, "spec.ipFamilyPolicy", policy, &policies);
    }
}

fn repeated_ports(causes: &mut Vec<Cause>, spec: &Value) {
    let node_port = |port: &Value| port["nodePort"].as_i64().filter(|number| *number != 0);
    if spec["type"] == "ClusterIP" {
        for (index, _) in list(spec, "ports").filter(|(_, port)| node_port(port).is_some()) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            causes.push(Cause::forbidden(format!("spec.ports[{index}].nodePort"), detail));
        }
    }
    let mut seen = Vec::new();
    for (index, port) in list(spec, "ports") {
        if let Some(number) = node_port(port) {
            let key = (text(port, "protocol"), number);
            if seen.contains(&key) {
                causes.push(Cause::duplicate(format!("spec.ports[{index}].nodePort"), number));
            }
            seen.push(key);
        }
    }
    let mut seen = Vec::new();
    for (index, port) in list(spec, "ports") {
        let key = (text(port, "protocol"), port["port"].as_i64());
        if seen.contains(&key) {
            // Go prints its own type, with what it compares.
            let value = json!({
                "Name": "", "Protocol": key.0, "AppProtocol": null, "Port": key.1, "TargetPort": 0, "NodePort": 0,
            });
            causes.push(Cause::duplicate(format!("spec.ports[{index}]"), value));
        }
        seen.push(key);
    }
}

fn balancer(causes: &mut Vec<Cause>, spec: &Value, old: Option<&Value>) {
    let only = "may only be used when `type` is 'LoadBalancer'";
    let path = "spec.LoadBalancerSourceRanges";
    if has(spec, "loadBalancerSourceRanges") && !balances(spec) {
        causes.push(Cause::forbidden(path, only));
    }
    for (index, range) in list(spec, "loadBalancerSourceRanges") {
        let known = old.is_some_and(|old| list(old, "loadBalancerSourceRanges").any(|(_, old)| old == range));
        if !known {
            addresses::range(causes, &format!("{path}[{index}]"), range.as_str().unwrap_or_default().trim());
        }
    }
    if has(spec, "allocateLoadBalancerNodePorts") && !balances(spec) {
        causes.push(Cause::forbidden("spec.allocateLoadBalancerNodePorts", only));
    }
    balancer_class(causes, spec);
}

fn balancer_class(causes: &mut Vec<Cause>, spec: &Value) {
    let path = "spec.loadBalancerClass";
    match spec["loadBalancerClass"].as_str() {
        Some(class) if balances(spec) => invalid_each(causes, path, class, names::qualified_name(class)),
        Some(_) => causes.push(Cause::forbidden(path, "may only be used when `type` is 'LoadBalancer'")),
        None => {}
    }
}

fn traffic(causes: &mut Vec<Cause>, spec: &Value) {
    let (path, policy) = ("spec.externalTrafficPolicy", text(spec, "externalTrafficPolicy"));
    if externally_accessible(spec) {
        required_one_of(causes, path, policy, &["Cluster", "Local"]);
    } else if !policy.is_empty() {
        causes.push(Cause::invalid(path, policy, "may only be set for externally-accessible services"));
    }
    let path = "spec.healthCheckNodePort";
    match (checks_health(spec), spec["healthCheckNodePort"].as_i64().unwrap_or(0)) {
        (true, 0) => causes.push(Cause::required(path, "")),
        (true, _) => port_number(causes, path, &spec["healthCheckNodePort"]),
        (false, 0) => {}
        (false, port) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            causes.push(Cause::invalid(path, port, detail));
        }
    }
    match spec["internalTrafficPolicy"].as_str() {
        Some(policy) => one_of(causes, "spec.internalTrafficPolicy", policy, &["Cluster", "Local"]),
        None if has_traffic(spec) => causes.push(Cause::required("spec.internalTrafficPolicy", "")),
        None => {}
    }
    if let Some(distribution) = spec["trafficDistribution"].as_str() {
        one_of(causes, "spec.trafficDistribution", distribution, &["PreferClose", "PreferSameZone", "PreferSameNode"]);
    }
}

/// What a changed service must keep.
pub fn update(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let (old, new) = (&old["spec"], &new["spec"]);
    let named = |spec: &Value| spec["type"] == "ExternalName";
    if !named(old) && !named(new) {
        if !(is_headless(old) && is_headless(new)) {
            kept_addresses(causes, old, new);
        }
        if !is_headless(old) && !is_headless(new) {
            kept_families(causes, old, new);
        }
    }
    if balances(old) && balances(new) && old.get("loadBalancerClass") != new.get("loadBalancerClass") {
        let class = new.get("loadBalancerClass").cloned().unwrap_or_default();
        causes.push(Cause::invalid("spec.loadBalancerClass", class, "may not change once set"));
    }
    balancer_class(causes, new);
    if checks_health(old) && checks_health(new) && old["healthCheckNodePort"] != new["healthCheckNodePort"] {
        causes.push(Cause::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
}

fn kept_addresses(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let (before, after) = (list(old, "clusterIPs").len(), list(new, "clusterIPs").len());
    let all = new.get("clusterIPs").cloned().unwrap_or_default();
    if before == after {
        for (index, _) in list(old, "clusterIPs").filter(|(index, address)| all[*index] != **address) {
            causes.push(Cause::invalid(format!("spec.clusterIPs[{index}]"), all.clone(), "may not change once set"));
        }
        return;
    }
    if after == 0 {
        causes.push(Cause::invalid("spec.clusterIPs[0]", all.clone(), "primary clusterIP can not be unset"));
    } else if before > 0 && all[0] != old["clusterIPs"][0] {
        causes.push(Cause::invalid("spec.clusterIPs[0]", all, "may not change once set"));
    }
    if before > after && after == 1 && new["ipFamilyPolicy"] != "SingleStack" {
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        causes.push(Cause::invalid("spec.ipFamilyPolicy", new["ipFamilyPolicy"].clone(), detail));
    }
}

fn kept_families(causes: &mut Vec<Cause>, old: &Value, new: &Value) {
    let (before, after) = (list(old, "ipFamilies").len(), list(new, "ipFamilies").len());
    let differs = |index: usize| old["ipFamilies"][index] != new["ipFamilies"][index];
    if before == after {
        for _ in (0..before).filter(|index| differs(*index)) {
            let all = new["ipFamilies"].clone();
            causes.push(Cause::invalid("spec.ipFamilies[0]", all, "may not change once set"));
        }
    } else if before > 0 && after > 0 && differs(0) {
        let all = new.get("clusterIPs").cloned().unwrap_or_default();
        causes.push(Cause::invalid("spec.ipFamilies[0]", all, "may not change once set"));
    }
}

/// What a load balancer reports of a service or ingress.
pub fn balancer_status(causes: &mut Vec<Cause>, object: &Value, of_service: bool) {
    let path = "status.loadBalancer.ingress";
    let ingress = &object["status"]["loadBalancer"];
    if of_service && !balances(&object["spec"]) && has(ingress, "ingress") {
        causes.push(Cause::forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'"));
        return;
    }
    for (index, ingress) in list(ingress, "ingress") {
        let path = format!("{path}[{index}]");
        let address = text(ingress, "ip");
        if !address.is_empty() {
            addresses::address(causes, &format!("{path}.ip"), address);
        }
        if of_service {
            let path = format!("{path}.ipMode");
            match (address, ingress["ipMode"].as_str()) {
                ("", Some(_)) => causes.push(Cause::forbidden(path, "may not be specified when `ip` is not set")),
                (_, Some(mode)) => one_of(causes, &path, mode, &["Proxy", "VIP"]),
                ("", None) => {}
                (_, None) => causes.push(Cause::required(path, "must be specified when `ip` is set")),
            }
        }
        let name = text(ingress, "hostname");
        if !name.is_empty() {
            let path = format!("{path}.hostname");
            invalid_each(causes, &path, name, names::subdomain(name));
            if addresses::parse(name).is_some() {
                causes.push(Cause::invalid(path, name, "must be a DNS name, not an IP address"));
            }
        }
    }
}
