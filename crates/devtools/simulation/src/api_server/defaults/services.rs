//! Defaults of services, and what belongs to their addresses and ports.

use super::super::cause::Cause;
use super::json::{each, in_field, keep, or, remove};
use serde_json::{Value, json};

pub fn defaults(service: &mut Value) {
    let mut exposed = false;
    or(service, "spec", json!({}));
    in_field(service, "spec", |spec| {
        or(spec, "sessionAffinity", "None");
        or(spec, "type", "ClusterIP");
        match spec["sessionAffinity"].as_str() {
            Some("None") => remove(spec, "sessionAffinityConfig"),
            Some("ClientIP")
                if spec
                    .pointer("/sessionAffinityConfig/clientIP/timeoutSeconds")
                    .is_none() =>
            {
                spec["sessionAffinityConfig"] = json!({ "clientIP": { "timeoutSeconds": 10800 } });
            }
            _ => {}
        }
        each(spec, "ports", |port| {
            or(port, "protocol", "TCP");
            if port["targetPort"] == 0 || port["targetPort"] == "" {
                port["targetPort"] = port["port"].clone();
            }
        });
        if externally_accessible(spec) {
            or(spec, "externalTrafficPolicy", "Cluster");
        }
        if has_traffic(spec) {
            or(spec, "internalTrafficPolicy", "Cluster");
        }
        exposed = spec["type"] == "LoadBalancer";
        if exposed {
            or(spec, "allocateLoadBalancerNodePorts", true);
        }
    });
    if exposed && let Some(balancer) = service.pointer_mut("/status/loadBalancer") {
        each(balancer, "ingress", |ingress| {
            if ingress.get("ip").is_some() {
                or(ingress, "ipMode", "VIP");
            }
        });
    }
}

fn has_type(spec: &Value, types: &[&str]) -> bool {
    spec["type"]
        .as_str()
        .is_some_and(|name| types.contains(&name))
}

fn externally_accessible(spec: &Value) -> bool {
    has_type(spec, &["LoadBalancer", "NodePort"])
        || (spec["type"] == "ClusterIP" && spec.get("externalIPs").is_some())
}

/// Whether a service, given its spec, passes traffic on: it is of a known type, and no mere name.
fn has_traffic(spec: &Value) -> bool {
    has_type(spec, &["ClusterIP", "NodePort", "LoadBalancer"])
}

/// Whether a service, given its spec, has an address in its cluster, or `None` in its place.
pub fn needs_cluster_ip(spec: &Value) -> bool {
    spec["type"] != "ExternalName"
}

/// Whether the ports of a service, given its spec, get a port on every node.
pub fn needs_node_ports(spec: &Value) -> bool {
    spec["type"] == "NodePort"
        || (spec["type"] == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"] != false)
}

/// Whether a service, given its spec, needs `healthCheckNodePort`.
fn needs_health_port(spec: &Value) -> bool {
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

fn same(old: &Value, new: &Value, field: &str) -> bool {
    old.get(field) == new.get(field)
}

/// Makes `clusterIP` and `clusterIPs` of a spec agree where a client changed only one of them.
pub fn normalize_cluster_ips(spec: &mut Value, old: Option<&Value>) {
    let text = |spec: &Value| spec["clusterIP"].as_str().unwrap_or_default().to_owned();
    let single = text(spec);
    let Some(old) = old else {
        if !single.is_empty() && spec.get("clusterIPs").is_none() {
            spec["clusterIPs"] = json!([single]);
        }
        return;
    };
    let before = text(old);
    if before == single {
        if spec.get("clusterIPs").is_none() {
            keep(old, spec, "clusterIPs");
        }
    } else if same(old, spec, "clusterIPs") {
        if single.is_empty() {
            remove(spec, "clusterIPs");
        } else {
            spec["clusterIPs"] = json!([single]);
        }
    }
}

/// Gives a changed spec what was allocated to the old one, where the client left it out.
pub fn patch_allocated_values(spec: &mut Value, old: &Value) {
    if needs_cluster_ip(old) && needs_cluster_ip(spec) {
        for field in ["clusterIP", "clusterIPs"] {
            if spec.get(field).is_none_or(|value| value == "") {
                keep(old, spec, field);
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(spec) {
        patch_node_ports(spec, old);
    }
    if needs_health_port(old)
        && needs_health_port(spec)
        && spec.get("healthCheckNodePort").is_none()
    {
        keep(old, spec, "healthCheckNodePort");
    }
}

fn node_ports(spec: &Value) -> Vec<i64> {
    spec["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|port| port["nodePort"].as_i64())
        .collect()
}

fn patch_node_ports(spec: &mut Value, old: &Value) {
    let given = node_ports(spec);
    let used: Vec<_> = node_ports(old)
        .into_iter()
        .filter(|port| given.contains(port))
        .collect();
    let old_ports = old["ports"].as_array().cloned().unwrap_or_default();
    each(spec, "ports", |port| {
        let same_name = old_ports
            .iter()
            .rfind(|old| old["name"].as_str() == port["name"].as_str());
        if let Some(number) = same_name
            .and_then(|old| old["nodePort"].as_i64())
            .filter(|number| !used.contains(number))
        {
            or(port, "nodePort", number);
        }
    });
}

/// Completes `ipFamilies` and `ipFamilyPolicy` of a spec, in a cluster that has only IPv4. Returns
/// why it is refused.
pub fn init_service_families(spec: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    if !needs_cluster_ip(spec) {
        return Vec::new();
    }
    let headless = spec["clusterIP"] == "None" && spec.get("selector").is_none();
    let old_policy = old.and_then(|old| old["ipFamilyPolicy"].as_str());
    or(
        spec,
        "ipFamilyPolicy",
        old_policy.unwrap_or(if headless {
            "RequireDualStack"
        } else {
            "SingleStack"
        }),
    );
    let mut causes = Vec::new();
    let single = spec["ipFamilyPolicy"] == "SingleStack";
    if single && let Some(old) = old {
        for field in ["clusterIPs", "ipFamilies"] {
            if same(old, spec, field) && spec[field].as_array().is_some_and(|items| items.len() > 1)
            {
                spec[field] = json!([spec[field][0]]);
            }
        }
    }
    if single {
        refuse_second(&mut causes, spec);
        if !causes.is_empty() {
            return causes;
        }
    }
    if headless {
        or(spec, "ipFamilies", json!(["IPv4"]));
        let both = if spec["ipFamilies"][0] == "IPv4" {
            ["IPv4", "IPv6"]
        } else {
            ["IPv6", "IPv4"]
        };
        if !single
            && spec["ipFamilies"]
                .as_array()
                .is_some_and(|families| families.len() < 2)
        {
            spec["ipFamilies"] = json!(both);
        }
        return causes;
    }
    if spec["ipFamilyPolicy"] == "RequireDualStack" {
        let detail = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid("spec.ipFamilyPolicy", detail));
    }
    let families = spec["ipFamilies"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate();
    for (index, _) in families.filter(|(_, family)| *family != "IPv4") {
        causes.push(Cause::invalid(
            format!("spec.ipFamilies[{index}]"),
            "not configured on this cluster",
        ));
    }
    or(spec, "ipFamilies", json!(["IPv4"]));
    causes
}

/// One address and one family are all that a policy of a single stack allows.
fn refuse_second(causes: &mut Vec<Cause>, spec: &Value) {
    let has_two = |field: &str| spec[field].as_array().is_some_and(|items| items.len() == 2);
    if has_two("clusterIPs") || has_two("ipFamilies") {
        causes.push(Cause::invalid(
            "spec.ipFamilyPolicy",
            "must not be SingleStack for two addresses",
        ));
    }
}

/// Whether a spec needs a field.
type Needed = fn(&Value) -> bool;

/// Forgets what a service of the new type does not have, if the client did not set it, either.
pub fn drop_dependent_fields(spec: &mut Value, old: &Value) {
    if needs_cluster_ip(old) && !needs_cluster_ip(spec) {
        if same(old, spec, "clusterIP") && same(old, spec, "clusterIPs") {
            remove(spec, "clusterIP");
            remove(spec, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if same(old, spec, field) {
                remove(spec, field);
            }
        }
    }
    if needs_node_ports(old) && !needs_node_ports(spec) && node_ports(old) == node_ports(spec) {
        each(spec, "ports", |port| remove(port, "nodePort"));
    }
    let balances = |spec: &Value| spec["type"] == "LoadBalancer";
    let conditional: [(&str, Needed); 4] = [
        ("healthCheckNodePort", needs_health_port),
        ("allocateLoadBalancerNodePorts", balances),
        ("loadBalancerClass", balances),
        ("externalTrafficPolicy", externally_accessible),
    ];
    for (field, needed) in conditional {
        if needed(old) && !needed(spec) && same(old, spec, field) {
            remove(spec, field);
        }
    }
}
