//! Endpoints and slices of them.

use super::json::{has, invalid_each, list, port_number, required_one_of, text};
use super::{Cause, addresses, names};
use serde_json::Value;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

pub fn slice(causes: &mut Vec<Cause>, object: &Value, old: Option<&Value>) {
    let kind = text(object, "addressType");
    required_one_of(causes, "addressType", kind, &["FQDN", "IPv4", "IPv6"]);
    slice_ports(causes, object);
    // What was stored once is accepted for ever.
    if old.is_none_or(|old| old["endpoints"] != object["endpoints"]) {
        slice_endpoints(causes, object, kind);
    }
}

fn slice_ports(causes: &mut Vec<Cause>, object: &Value) {
    let mut known = Vec::new();
    for (index, port) in list(object, "ports") {
        let path = format!("ports[{index}]");
        let name = text(port, "name");
        let name_path = format!("{path}.name");
        if !name.is_empty() {
            invalid_each(causes, &name_path, name, names::label(name));
        }
        if known.contains(&name) {
            causes.push(Cause::duplicate(name_path, name));
        }
        known.push(name);
        required_one_of(causes, &format!("{path}.protocol"), text(port, "protocol"), &PROTOCOLS);
        if let Some(protocol) = port["appProtocol"].as_str() {
            invalid_each(causes, &format!("{path}.appProtocol"), protocol, names::qualified_name(protocol));
        }
    }
}

fn slice_endpoints(causes: &mut Vec<Cause>, object: &Value, kind: &str) {
    let all = list(object, "endpoints");
    if all.len() > 1000 {
        causes.push(Cause::too_many("endpoints", all.len(), 1000));
        return;
    }
    for (index, endpoint) in all {
        let path = format!("endpoints[{index}]");
        let addresses_path = format!("{path}.addresses");
        match list(endpoint, "addresses").len() {
            0 => causes.push(Cause::required(&addresses_path, "must contain at least 1 address")),
            count if count > 100 => causes.push(Cause::too_many(&addresses_path, count, 100)),
            _ => {}
        }
        for (index, address) in list(endpoint, "addresses") {
            slice_address(causes, &addresses_path, index, address.as_str().unwrap_or_default(), kind);
        }
        if let Some(node) = endpoint["nodeName"].as_str() {
            invalid_each(causes, &format!("{path}.nodeName"), node, names::subdomain(node));
        }
        super::metadata::labels(causes, &format!("{path}.deprecatedTopology"), &endpoint["deprecatedTopology"]);
        if let Some(host) = endpoint["hostname"].as_str() {
            invalid_each(causes, &format!("{path}.hostname"), host, names::label(host));
        }
        hints(causes, &format!("{path}.hints"), &endpoint["hints"]);
    }
}

fn slice_address(causes: &mut Vec<Cause>, list_path: &str, index: usize, text: &str, kind: &str) {
    let path = format!("{list_path}[{index}]");
    match kind {
        "IPv4" | "IPv6" => {
            if !addresses::address(causes, &path, text) {
                return;
            }
            let parsed = addresses::parse(text);
            if parsed.is_some_and(|address| address.is_ipv4() != (kind == "IPv4")) {
                causes.push(Cause::invalid(list_path, text, format!("must be an {kind} address")));
            }
            let canonical = parsed.map(|address| address.to_string()).unwrap_or_default();
            if kind == "IPv6" && canonical != text {
                causes.push(Cause::invalid(&path, text, format!("must be in canonical form (\"{canonical}\")")));
            }
            addresses::endpoint_address(causes, &path, text);
        }
        "FQDN" => domain_name(causes, &path, text),
        _ => {}
    }
}

/// A name with at least two labels.
fn domain_name(causes: &mut Vec<Cause>, path: &str, name: &str) {
    if name.is_empty() {
        causes.push(Cause::required(path, ""));
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let problems = names::subdomain(name);
    if !problems.is_empty() {
        causes.push(Cause::invalid(path, name, problems.join(",")));
    } else if !name.contains('.') {
        causes.push(Cause::invalid(path, name, "should be a domain with at least two segments separated by dots"));
    } else if let Some(label) = name.split('.').find(|label| !names::label(label).is_empty()) {
        causes.push(Cause::invalid(path, label, names::label(label).join(",")));
    }
}

fn hints(causes: &mut Vec<Cause>, path: &str, hints: &Value) {
    let lists: [(&str, super::metadata::NameRule); 2] = [("forZones", names::label_value), ("forNodes", names::subdomain)];
    for (field, rule) in lists {
        let items = list(hints, field);
        if items.len() > 8 {
            causes.push(Cause::too_many(format!("{path}.{field}"), items.len(), 8));
            return;
        }
        let mut known = Vec::new();
        for (index, item) in items {
            let (path, name) = (format!("{path}.{field}[{index}].name"), text(item, "name"));
            if known.contains(&name) {
                causes.push(Cause::duplicate(&path, name));
            }
            known.push(name);
            invalid_each(causes, &path, name, rule(name));
        }
    }
}

pub fn endpoints(causes: &mut Vec<Cause>, object: &Value, old: Option<&Value>) {
    if old.is_some_and(|old| old["subsets"] == object["subsets"]) {
        return;
    }
    for (index, subset) in list(object, "subsets") {
        let path = format!("subsets[{index}]");
        if !has(subset, "addresses") && !has(subset, "notReadyAddresses") {
            causes.push(Cause::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for field in ["addresses", "notReadyAddresses"] {
            for (index, address) in list(subset, field) {
                endpoint_address(causes, &format!("{path}.{field}[{index}]"), address);
            }
        }
        let several = list(subset, "ports").len() > 1;
        for (index, port) in list(subset, "ports") {
            endpoint_port(causes, &format!("{path}.ports[{index}]"), port, several);
        }
    }
}

fn endpoint_address(causes: &mut Vec<Cause>, path: &str, address: &Value) {
    let ip = text(address, "ip");
    addresses::address(causes, &format!("{path}.ip"), ip);
    let host = text(address, "hostname");
    if !host.is_empty() {
        invalid_each(causes, &format!("{path}.hostname"), host, names::label(host));
    }
    if let Some(node) = address["nodeName"].as_str() {
        invalid_each(causes, &format!("{path}.nodeName"), node, names::subdomain(node));
    }
    addresses::endpoint_address(causes, &format!("{path}.ip"), ip);
}

fn endpoint_port(causes: &mut Vec<Cause>, path: &str, port: &Value, named: bool) {
    let name = text(port, "name");
    if !name.is_empty() {
        invalid_each(causes, &format!("{path}.name"), name, names::label(name));
    } else if named {
        causes.push(Cause::required(format!("{path}.name"), ""));
    }
    port_number(causes, &format!("{path}.port"), &port["port"]);
    required_one_of(causes, &format!("{path}.protocol"), text(port, "protocol"), &PROTOCOLS);
    if let Some(protocol) = port["appProtocol"].as_str() {
        invalid_each(causes, &format!("{path}.appProtocol"), protocol, names::qualified_name(protocol));
    }
}
