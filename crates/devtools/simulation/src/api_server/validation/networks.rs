//! Ingresses and network policies.

use super::json::{has, invalid_each, list, one_of, port_number, text};
use super::metadata::label_selector;
use super::{Cause, addresses, names};
use serde_json::Value;
use std::net::IpAddr;

pub fn ingress(causes: &mut Vec<Cause>, object: &Value, is_new: bool) {
    let spec = &object["spec"];
    if list(spec, "rules").len() == 0 && !has(spec, "defaultBackend") {
        causes.push(Cause::invalid("spec", Value::Null, "either `defaultBackend` or `rules` must be specified"));
    }
    if has(spec, "defaultBackend") {
        backend(causes, "spec.defaultBackend", &spec["defaultBackend"]);
    }
    for (index, rule) in list(spec, "rules") {
        let path = format!("spec.rules[{index}]");
        let host = text(rule, "host");
        if !host.is_empty() {
            if addresses::parse(host).is_some() {
                let detail = "must be a DNS name, not an IP address";
                causes.push(Cause::invalid(format!("{path}.host"), host, detail));
            }
            host_name(causes, &format!("{path}.host"), host);
        }
        if has(rule, "http") {
            paths(causes, &format!("{path}.http.paths"), &rule["http"]);
        }
    }
    for (index, tls) in list(spec, "tls") {
        let path = format!("spec.tls[{index}]");
        for (index, host) in list(tls, "hosts") {
            host_name(causes, &format!("{path}.hosts[{index}]"), host.as_str().unwrap_or_default());
        }
        let secret = text(tls, "secretName");
        if !secret.is_empty() {
            invalid_each(causes, &format!("{path}.secretName"), secret, names::subdomain(secret));
        }
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        invalid_each(causes, "spec.ingressClassName", class, names::subdomain(class));
        let annotation = object["metadata"]["annotations"]["kubernetes.io/ingress.class"].as_str();
        if let Some(annotation) = annotation.filter(|annotation| is_new && *annotation != class) {
            let detail = "must match `ingressClassName` when both are specified";
            causes.push(Cause::invalid("annotations.kubernetes.io/ingress.class", annotation, detail));
        }
    }
}

fn host_name(causes: &mut Vec<Cause>, path: &str, host: &str) {
    let problems = if host.contains('*') { names::wildcard_subdomain(host) } else { names::subdomain(host) };
    invalid_each(causes, path, host, problems);
}

fn paths(causes: &mut Vec<Cause>, path: &str, http: &Value) {
    if list(http, "paths").len() == 0 {
        causes.push(Cause::required(path, ""));
    }
    for (index, item) in list(http, "paths") {
        let at = format!("{path}[{index}]");
        let Some(kind) = item["pathType"].as_str() else {
            causes.push(Cause::required(format!("{at}.pathType"), "pathType must be specified"));
            continue;
        };
        one_of(causes, &format!("{at}.pathType"), kind, &["Exact", "ImplementationSpecific", "Prefix"]);
        url_path(causes, &format!("{at}.path"), text(item, "path"), kind);
        backend(causes, &format!("{at}.backend"), &item["backend"]);
    }
}

fn url_path(causes: &mut Vec<Cause>, path: &str, value: &str, kind: &str) {
    let exact = matches!(kind, "Exact" | "Prefix");
    if !value.starts_with('/') && (exact || (kind == "ImplementationSpecific" && !value.is_empty())) {
        causes.push(Cause::invalid(path, value, "must be an absolute path"));
    }
    if exact {
        for part in ["//", "/./", "/../", "%2f", "%2F"].into_iter().filter(|part| value.contains(part)) {
            causes.push(Cause::invalid(path, value, format!("must not contain '{part}'")));
        }
        for end in ["/..", "/."].into_iter().filter(|end| value.ends_with(end)) {
            causes.push(Cause::invalid(path, value, format!("cannot end with '{end}'")));
        }
    }
}

fn backend(causes: &mut Vec<Cause>, path: &str, backend: &Value) {
    match (has(backend, "resource"), has(backend, "service")) {
        (true, true) => causes.push(Cause::invalid(path, "", "cannot set both resource and service backends")),
        (true, false) => resource_backend(causes, &format!("{path}.resource"), &backend["resource"]),
        (false, true) => service_backend(causes, path, &backend["service"]),
        (false, false) => causes.push(Cause::invalid(path, "", "resource or service backend is required")),
    }
}

fn resource_backend(causes: &mut Vec<Cause>, path: &str, resource: &Value) {
    if let Some(group) = resource["apiGroup"].as_str() {
        invalid_each(causes, &format!("{path}.apiGroup"), group, names::subdomain(group));
    }
    for field in ["kind", "name"] {
        let path = format!("{path}.{field}");
        match text(resource, field) {
            "" => causes.push(Cause::required(path, "")),
            value => invalid_each(causes, &path, value, names::path_segment(value)),
        }
    }
}

fn service_backend(causes: &mut Vec<Cause>, path: &str, service: &Value) {
    let at = format!("{path}.service");
    match text(service, "name") {
        "" => causes.push(Cause::required(format!("{at}.name"), "")),
        name => invalid_each(causes, &format!("{at}.name"), name, names::label_1035(name)),
    }
    let port = &service["port"];
    let name = text(port, "name");
    match (name.is_empty(), has(port, "number")) {
        (false, true) => causes.push(Cause::invalid(path, "", "cannot set both port name & port number")),
        (false, false) => invalid_each(causes, &format!("{at}.port.name"), name, names::port_name(name)),
        (true, true) => port_number(causes, &format!("{at}.port.number"), &port["number"]),
        (true, false) => causes.push(Cause::required(path, "port name or number is required")),
    }
}

pub fn policy(causes: &mut Vec<Cause>, object: &Value) {
    let spec = &object["spec"];
    label_selector(causes, "spec.podSelector", &spec["podSelector"]);
    for (direction, side) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in list(spec, direction) {
            let path = format!("spec.{direction}[{index}]");
            for (index, port) in list(rule, "ports") {
                policy_port(causes, &format!("{path}.ports[{index}]"), port);
            }
            for (index, peer) in list(rule, side) {
                policy_peer(causes, &format!("{path}.{side}[{index}]"), peer);
            }
        }
    }
    if list(spec, "policyTypes").len() > 2 {
        let detail = "may not specify more than two policyTypes";
        causes.push(Cause::invalid("spec.policyTypes", spec["policyTypes"].clone(), detail));
        return;
    }
    for (index, kind) in list(spec, "policyTypes") {
        one_of(causes, &format!("spec.policyTypes[{index}]"), kind.as_str().unwrap_or_default(), &["Ingress", "Egress"]);
    }
}

fn policy_port(causes: &mut Vec<Cause>, path: &str, port: &Value) {
    if let Some(protocol) = port["protocol"].as_str() {
        one_of(causes, &format!("{path}.protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    }
    let end_path = format!("{path}.endPort");
    let end = port["endPort"].as_i64();
    let mut forbid_end = |detail: &str| causes.extend(end.map(|end| Cause::invalid(&end_path, end, detail)));
    match port.get("port").filter(|port| !port.is_null()) {
        None => forbid_end("may not be specified when `port` is not specified"),
        Some(Value::String(name)) => {
            forbid_end("may not be specified when `port` is non-numeric");
            invalid_each(causes, &format!("{path}.port"), name, names::port_name(name));
        }
        Some(number) => {
            port_number(causes, &format!("{path}.port"), number);
            if let Some(end) = end {
                if number.as_i64().is_some_and(|number| end < number) {
                    causes.push(Cause::invalid(&end_path, number.clone(), "must be greater than or equal to `port`"));
                }
                port_number(causes, &end_path, &port["endPort"]);
            }
        }
    }
}

fn policy_peer(causes: &mut Vec<Cause>, path: &str, peer: &Value) {
    for field in ["podSelector", "namespaceSelector"] {
        label_selector(causes, &format!("{path}.{field}"), &peer[field]);
    }
    if has(peer, "ipBlock") {
        block(causes, &format!("{path}.ipBlock"), &peer["ipBlock"]);
    }
    let given = ["podSelector", "namespaceSelector", "ipBlock"].iter().filter(|field| has(peer, field)).count();
    if given == 0 {
        causes.push(Cause::required(path, "must specify a peer"));
    } else if given > 1 && has(peer, "ipBlock") {
        causes.push(Cause::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}

fn block(causes: &mut Vec<Cause>, path: &str, block: &Value) {
    let range = text(block, "cidr");
    if range.is_empty() {
        causes.push(Cause::required(format!("{path}.cidr"), ""));
        return;
    }
    if !addresses::range(causes, &format!("{path}.cidr"), range) {
        return;
    }
    for (index, except) in list(block, "except") {
        let (path, except) = (format!("{path}.except[{index}]"), except.as_str().unwrap_or_default());
        if addresses::range(causes, &path, except) && !is_within(except, range) {
            causes.push(Cause::invalid(path, except, "must be a strict subset of `cidr`"));
        }
    }
}

/// Whether a range is a part of another, and smaller.
fn is_within(inner: &str, outer: &str) -> bool {
    let (Some((inner, inner_bits)), Some((outer, outer_bits))) = (addresses::parse_range(inner), addresses::parse_range(outer))
    else {
        return false;
    };
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let prefix = |address: IpAddr| bits(address).checked_shr(128 - u32::from(outer_bits)).unwrap_or(0);
    inner.is_ipv4() == outer.is_ipv4() && outer_bits < inner_bits && prefix(inner) == prefix(outer)
}
