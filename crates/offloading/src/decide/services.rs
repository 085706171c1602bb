//! Services and `EndpointSlice`s as they travel. Each is rebuilt from the fields that are known to mean the same in another
//! cluster; what else there is stays behind. Home does that before it sends, the provider before it writes, and both of what
//! stands already, so that alike is what needs no update.
//!
//! | field of a Service | what happens |
//! |---|---|
//! | ports, session affinity, `publishNotReadyAddresses`, `clusterIP: None` | travel |
//! | `ipFamilyPolicy` | travels; a cluster of one family is good enough where home requires both |
//! | type | `ClusterIP`, whatever it is at home |
//! | selector | stays: endpoints come from home's slices |
//! | addresses, node ports, external IPs and names, load balancers, traffic policies | stay: they mean something at home only |
//!
//! Of an `EndpointSlice` travel address type, ports, and of each endpoint its address as the other cluster sees it, conditions
//! and hostname. Nodes, zones and pods have other names there.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{items, text};

/// Label by which an `EndpointSlice` belongs to a Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of slices that kube-proxy need not look at.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// How long a client stays with an endpoint where nothing is said, in seconds.
const AFFINITY_TIMEOUT: u32 = 10_800;

/// What of a Service means the same elsewhere.
pub fn service(object: &Value) -> Map<String, Value> {
    let mut spec = Map::from_iter([("type".to_owned(), json!("ClusterIP"))]);
    if text(object, "/spec/clusterIP") == Some("None") {
        spec.insert("clusterIP".into(), "None".into());
    }
    let both = matches!(text(object, "/spec/ipFamilyPolicy"), Some("PreferDualStack" | "RequireDualStack"));
    spec.insert("ipFamilyPolicy".into(), if both { "PreferDualStack" } else { "SingleStack" }.into());
    let ports: Vec<Value> = items(object, "/spec/ports").iter().map(service_port).collect();
    if !ports.is_empty() {
        spec.insert("ports".into(), ports.into());
    }
    if text(object, "/spec/sessionAffinity") == Some("ClientIP") {
        let seconds = object.pointer("/spec/sessionAffinityConfig/clientIP/timeoutSeconds").filter(|seconds| seconds.is_u64());
        let seconds = seconds.cloned().unwrap_or_else(|| AFFINITY_TIMEOUT.into());
        spec.insert("sessionAffinity".into(), "ClientIP".into());
        spec.insert("sessionAffinityConfig".into(), json!({ "clientIP": { "timeoutSeconds": seconds } }));
    }
    if object.pointer("/spec/publishNotReadyAddresses") == Some(&Value::Bool(true)) {
        spec.insert("publishNotReadyAddresses".into(), true.into());
    }
    Map::from_iter([("spec".to_owned(), spec.into())])
}

/// What of a Service that stands at a provider differs from all that travels: somebody there changed it.
pub fn foreign(object: &Value) -> Map<String, Value> {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    };
    let fields = ["selector", "externalIPs", "externalName", "loadBalancerIP"].into_iter();
    let mut found: Map<String, Value> =
        fields.filter_map(|field| Some((field.to_owned(), object.pointer(&format!("/spec/{field}"))?.clone()))).collect();
    found.retain(|_, value| !empty(value));
    found.extend(text(object, "/spec/type").filter(|kind| *kind != "ClusterIP").map(|kind| ("type".to_owned(), kind.into())));
    found
}

fn service_port(port: &Value) -> Value {
    let mut known = fields(port, &["name", "port", "protocol", "targetPort", "appProtocol"]);
    known.entry("protocol").or_insert_with(|| "TCP".into());
    if let Some(same) = known.get("port").cloned() {
        known.entry("targetPort").or_insert(same);
    }
    known.into()
}

/// What of an `EndpointSlice` means the same elsewhere, with each address as `address` says. One of which it says nothing is
/// left out.
pub fn endpoint_slice(object: &Value, mut address: impl FnMut(IpAddr) -> Option<IpAddr>) -> Map<String, Value> {
    let kind = text(object, "/addressType").unwrap_or_default();
    let of_kind = |ip: &IpAddr| kind == if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let mut endpoints: Vec<(Vec<IpAddr>, Value)> = Vec::new();
    for endpoint in items(object, "/endpoints") {
        let addresses = items(endpoint, "/addresses").iter().filter_map(|one| one.as_str()?.parse::<IpAddr>().ok());
        let addresses: Vec<IpAddr> = addresses.filter(of_kind).filter_map(&mut address).filter(of_kind).collect();
        if addresses.is_empty() {
            continue;
        }
        let mut known = fields(endpoint, &["hostname"]);
        let mut conditions = fields(&endpoint["conditions"], &["ready", "serving", "terminating"]);
        conditions.retain(|_, holds| holds.is_boolean());
        known.insert("addresses".into(), addresses.iter().map(ToString::to_string).collect());
        known.insert("conditions".into(), conditions.into());
        endpoints.push((addresses, known.into()));
    }
    // Their order says nothing.
    endpoints.sort_by(|(one, _), (other, _)| one.cmp(other));
    let endpoints: Vec<Value> = endpoints.into_iter().map(|(_, endpoint)| endpoint).collect();

    let mut labels = Map::new();
    labels.extend(service_of(object).map(|name| (SERVICE_NAME.to_owned(), name.into())));
    labels.extend(label(object, HEADLESS).map(|said| (HEADLESS.to_owned(), said.into())));
    let mut known = Map::new();
    known.insert("metadata".into(), json!({ "labels": labels }));
    known.insert("addressType".into(), kind.into());
    known.insert("endpoints".into(), endpoints.into());
    // None at all means every port.
    if let Some(ports) = object.get("ports").and_then(Value::as_array) {
        known.insert("ports".into(), ports.iter().map(slice_port).collect());
    }
    known
}

fn slice_port(port: &Value) -> Value {
    let mut known = fields(port, &["name", "port", "protocol", "appProtocol"]);
    known.entry("protocol").or_insert_with(|| "TCP".into());
    known.into()
}

/// The Service that an `EndpointSlice` belongs to.
pub fn service_of(slice: &Value) -> Option<&str> {
    label(slice, SERVICE_NAME).filter(|name| !name.is_empty())
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/labels")?.get(key)?.as_str()
}

/// These fields, as far as they say something.
fn fields(value: &Value, names: &[&str]) -> Map<String, Value> {
    let found = names.iter().filter_map(|&name| Some((name.to_owned(), value.get(name)?.clone())));
    found.filter(|(_, value)| !value.is_null() && value.as_str() != Some("")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_travels_without_what_means_something_at_home_only() {
        let home = json!({ "metadata": { "name": "web" }, "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "RequireDualStack", "selector": { "app": "web" }, "externalIPs": ["192.0.2.1"],
            "loadBalancerIP": "192.0.2.2", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
            "sessionAffinity": "ClientIP", "healthCheckNodePort": 30001, "somethingNew": true,
            "ports": [{ "name": "http", "port": 80, "targetPort": "web", "protocol": "TCP", "nodePort": 30000, "appProtocol": "h2c" },
                { "port": 53, "protocol": "UDP" }] } });
        let expected = json!({ "spec": {
            "type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 10800 } },
            "ports": [{ "name": "http", "port": 80, "targetPort": "web", "protocol": "TCP", "appProtocol": "h2c" },
                { "port": 53, "targetPort": 53, "protocol": "UDP" }] } });
        assert_eq!(Value::from(service(&home)), expected);
        assert_eq!(service(&expected), service(&home), "what travelled is rebuilt the same");
    }

    #[test]
    fn a_headless_service_stays_headless_and_shows_pods_that_are_not_ready_if_it_did() {
        let home = json!({ "spec": { "clusterIP": "None", "publishNotReadyAddresses": true, "ipFamilyPolicy": "SingleStack" } });
        let expected = json!({ "spec": { "type": "ClusterIP", "clusterIP": "None", "publishNotReadyAddresses": true, "ipFamilyPolicy": "SingleStack" } });
        assert_eq!(Value::from(service(&home)), expected);
    }

    #[test]
    fn what_somebody_added_to_a_twin_is_seen() {
        let clean = json!({ "spec": { "type": "ClusterIP", "clusterIP": "10.96.0.1", "selector": {}, "externalIPs": [] } });
        assert!(foreign(&clean).is_empty());
        for (field, value) in
            [("selector", json!({ "a": "b" })), ("externalIPs", json!(["192.0.2.1"])), ("type", json!("LoadBalancer"))]
        {
            let mut changed = clean.clone();
            changed["spec"][field] = value;
            assert!(foreign(&changed).contains_key(field), "{field}");
        }
    }

    fn slice() -> Value {
        json!({ "metadata": { "name": "web-x", "labels": { SERVICE_NAME: "web", HEADLESS: "", "app": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io" } },
            "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.244.0.9"], "conditions": { "ready": true, "serving": true, "terminating": false },
                    "hostname": "web-1", "nodeName": "n1", "zone": "z", "targetRef": { "kind": "Pod", "name": "web-1" },
                    "hints": { "forZones": [{ "name": "z" }] } },
                { "addresses": ["10.244.0.5"], "conditions": { "ready": false, "somethingNew": true } },
                { "addresses": ["192.0.2.5"], "conditions": {} },
                { "addresses": ["fd00::5", "junk"] },
            ],
            "ports": [{ "name": "", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP", "appProtocol": "x" }] })
    }

    #[test]
    fn a_slice_travels_with_its_endpoints_as_the_other_cluster_sees_them() {
        let seen = |ip: IpAddr| ip.to_string().strip_prefix("10.244.").map(|rest| format!("10.245.{rest}").parse().unwrap());
        let known = Value::from(endpoint_slice(&slice(), seen));
        assert_eq!(
            known,
            json!({ "metadata": { "labels": { SERVICE_NAME: "web", HEADLESS: "" } }, "addressType": "IPv4",
                "endpoints": [
                    { "addresses": ["10.245.0.5"], "conditions": { "ready": false } },
                    { "addresses": ["10.245.0.9"], "conditions": { "ready": true, "serving": true, "terminating": false }, "hostname": "web-1" },
                ],
                "ports": [{ "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP", "appProtocol": "x" }] })
        );
        assert_eq!(Value::from(endpoint_slice(&known, Some)), known, "what travelled is rebuilt the same");
    }

    #[test]
    fn an_address_never_becomes_one_of_the_other_family() {
        let known = endpoint_slice(&slice(), |_| Some("fd00::1".parse().unwrap()));
        assert_eq!(known["endpoints"], json!([]));
        let names =
            json!({ "addressType": "FQDN", "endpoints": [{ "addresses": ["10.0.0.1"] }, { "addresses": ["example.com"] }] });
        assert_eq!(endpoint_slice(&names, Some)["endpoints"], json!([]));
    }

    #[test]
    fn the_order_of_endpoints_is_no_difference_and_no_ports_are_not_every_port() {
        let mut other = slice();
        other["endpoints"].as_array_mut().unwrap().reverse();
        assert_eq!(endpoint_slice(&other, Some), endpoint_slice(&slice(), Some));
        other["ports"] = json!(null);
        assert_eq!(endpoint_slice(&other, Some).get("ports"), None);
        other["ports"] = json!([]);
        assert_eq!(endpoint_slice(&other, Some)["ports"], json!([]));
    }
}
