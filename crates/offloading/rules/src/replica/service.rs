//! Services and `EndpointSlice`s as they travel. Both sides rebuild each from the fields that mean
//! the same in another cluster: the consumer before it sends, the provider before it writes. They
//! rebuild existing objects in the same way, and write nothing if the results are equal.
//!
//! | field of a Service | what happens |
//! |---|---|
//! | ports, session affinity, `publishNotReadyAddresses`, `clusterIP: None` | travel |
//! | `ipFamilyPolicy` | travels; a cluster with one family is enough even if the Service requires both |
//! | the family of a single-stack Service | travels; a cluster without it uses the family that it has |
//! | which of two families is the first | stays: the Service has addresses of both |
//! | type | `LoadBalancer` travels, and the provider limits it to its policy; all others become `ClusterIP` |
//! | `externalName` of type `ExternalName` | becomes an annotation of a headless Service, which only Liqo's resolver reads. A Service of that type would make any name of the provider the backend of an Ingress there |
//! | `loadBalancerSourceRanges`, `allocateLoadBalancerNodePorts: false` | travel with it: they only close |
//! | `loadBalancerClass` | the one that the annotation names for other clusters, see [`exposure`] |
//! | selector | stays: endpoints come from the consumer's slices |
//! | addresses, node ports, external IPs and names, `loadBalancerIP` | stay: they mean something at home only |
//! | traffic policies | stay: endpoints have no nodes there, so none would be local |
//!
//! Of an `EndpointSlice` the address type and the ports travel, and of each endpoint its address as
//! the other cluster sees it, conditions and hostname. Nodes, zones and pods have other names
//! there.

use std::net::IpAddr;

use ipnet::IpNet;
use liqo_api::annotations::EXTERNAL_NAME;
use serde_json::{Map, Value, json};

use crate::dns_names;
use crate::json::{annotations_mut, select_fields, set_at};
use crate::replica::exposure::{self, ExposureRequest};
use crate::replica::ingress;
use crate::views::{EndpointSliceView, ServiceView};

/// Label by which an `EndpointSlice` belongs to a Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label that names the controller of an `EndpointSlice`, so that no other controller changes it.
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Label of slices that kube-proxy ignores.
const HEADLESS: &str = "service.kubernetes.io/headless";
const EXTERNAL_NAME_TYPE: &str = "ExternalName";
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// Kubernetes' default for session affinity, in seconds.
const AFFINITY_TIMEOUT: u32 = 10_800;
/// Some clouds still read the allowed clients of a load balancer from this annotation, which is
/// older than the field.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// The fields of a Service that leave the consumer's cluster.
pub(crate) fn outgoing_service(object: &Value) -> Map<String, Value> {
    let view = ServiceView::of(object);
    if view.spec().kind() == Some(EXTERNAL_NAME_TYPE) {
        return outgoing_external_service(object);
    }
    let mut whole = object.clone();
    if let Some(annotations) = annotations_mut(&mut whole) {
        annotations.remove(EXTERNAL_NAME);
    }
    let request = match exposure::exposure_request(object) {
        // The cloud here knows the annotation that keeps the load balancer internal; another cloud
        // does not.
        ExposureRequest::Any if is_internal(object) => ExposureRequest::Nothing,
        request => request,
    };
    match request {
        ExposureRequest::Nothing => return travelling_service(&without_load_balancer(whole)),
        ExposureRequest::Class(class) => set_at(&mut whole, &["spec", "loadBalancerClass"], class),
        ExposureRequest::Any => set_at(&mut whole, &["spec", "loadBalancerClass"], Value::Null),
    }
    if let (Some(said), []) = (
        view.metadata().annotation(SOURCE_RANGES),
        view.spec().load_balancer_source_ranges(),
    ) {
        let ranges: Vec<&str> = said
            .split(',')
            .map(str::trim)
            .filter(|range| !range.is_empty())
            .collect();
        set_at(
            &mut whole,
            &["spec", "loadBalancerSourceRanges"],
            json!(ranges),
        );
    }
    travelling_service(&whole)
}

/// A Service of type `ExternalName` as it leaves. A provider that does not know the type takes it
/// for a headless Service.
fn outgoing_external_service(object: &Value) -> Map<String, Value> {
    let mut spec = json!({ "type": EXTERNAL_NAME_TYPE, "clusterIP": "None" });
    if let Some(target) = external_name(object) {
        set_at(&mut spec, &["externalName"], target);
    }
    Map::from_iter([("spec".to_owned(), spec)])
}

/// The name that a Service of type `ExternalName` stands for, or the replica of one. `None` if DNS
/// cannot answer it, or if it looks like an address, for which a cluster's DNS does not answer
/// either.
pub fn external_name(object: &Value) -> Option<&str> {
    let service = ServiceView::of(object);
    let name = match service.spec().kind() {
        Some(EXTERNAL_NAME_TYPE) => service.spec().external_name(),
        _ => service.metadata().annotation(EXTERNAL_NAME),
    }?;
    let name = name.strip_suffix('.').unwrap_or(name);
    (dns_names::is_dns_name(name) && name.parse::<IpAddr>().is_err()).then_some(name)
}

/// Whether a cloud's annotation says that the load balancer is internal.
fn is_internal(object: &Value) -> bool {
    let annotations = ServiceView::of(object).metadata().annotations();
    annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key, value.as_str()?.trim())))
        .any(|(key, value)| {
            let of_balancer = key.contains("load-balancer") || key.contains("loadbalancer");
            of_balancer && ingress::is_internal(key, value)
        })
}

/// The Service without a load balancer.
pub fn without_load_balancer(mut object: Value) -> Value {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("type".into(), "ClusterIP".into());
    }
    object
}

/// The fields of a Service that mean the same in another cluster.
pub fn travelling_service(object: &Value) -> Map<String, Value> {
    if let Some(target) = external_name(object) {
        let mut spec = Map::from_iter(
            [("type", "ClusterIP"), ("clusterIP", "None")]
                .map(|(key, value)| (key.to_owned(), value.into())),
        );
        insert_families(&mut spec, object);
        let metadata = json!({ "annotations": { EXTERNAL_NAME: target } });
        return Map::from_iter([
            ("metadata".to_owned(), metadata),
            ("spec".to_owned(), spec.into()),
        ]);
    }
    let view = ServiceView::of(object).spec();
    let balanced = view.kind() == Some("LoadBalancer");
    let mut spec = Map::from_iter([(
        "type".to_owned(),
        json!(if balanced {
            "LoadBalancer"
        } else {
            "ClusterIP"
        }),
    )]);
    if balanced {
        spec.extend(select_fields(view.json(), &["loadBalancerClass"]));
        let ranges = view.load_balancer_source_ranges();
        if !ranges.is_empty() {
            spec.insert("loadBalancerSourceRanges".into(), ranges.into());
        }
        if view.allocate_load_balancer_node_ports() == Some(false) {
            spec.insert("allocateLoadBalancerNodePorts".into(), false.into());
        }
    }
    if view.cluster_ip() == Some("None") {
        spec.insert("clusterIP".into(), "None".into());
    }
    insert_families(&mut spec, object);
    let ports: Vec<Value> = view.ports().iter().map(service_port).collect();
    if !ports.is_empty() {
        spec.insert("ports".into(), ports.into());
    }
    if view.session_affinity() == Some("ClientIP") {
        let seconds = view
            .session_affinity_config()
            .client_ip()
            .timeout_seconds()
            .filter(|seconds| seconds.is_u64());
        let seconds = seconds.cloned().unwrap_or_else(|| AFFINITY_TIMEOUT.into());
        spec.insert("sessionAffinity".into(), "ClientIP".into());
        spec.insert(
            "sessionAffinityConfig".into(),
            json!({ "clientIP": { "timeoutSeconds": seconds } }),
        );
    }
    if view.publish_not_ready_addresses() == Some(true) {
        spec.insert("publishNotReadyAddresses".into(), true.into());
    }
    Map::from_iter([("spec".to_owned(), spec.into())])
}

fn insert_families(spec: &mut Map<String, Value>, object: &Value) {
    let both = matches!(
        ServiceView::of(object).spec().ip_family_policy(),
        Some("PreferDualStack" | "RequireDualStack")
    );
    spec.insert(
        "ipFamilyPolicy".into(),
        if both {
            "PreferDualStack"
        } else {
            "SingleStack"
        }
        .into(),
    );
    if let (false, Some(family)) = (both, first_family(object)) {
        spec.insert("ipFamilies".into(), json!([family]));
    }
}

/// The family of the first address of a Service.
pub(crate) fn first_family(service: &Value) -> Option<&'static str> {
    let families = ServiceView::of(service).spec().ip_families();
    let said = families.first()?.as_str()?;
    FAMILIES.into_iter().find(|family| *family == said)
}

/// Adapts a Service to a cluster whose Services have these families: a Service of one family gets
/// one that exists. An empty list means unknown.
pub fn with_families(mut object: Value, families: &[&'static str]) -> Value {
    let has_one = ServiceView::of(&object).spec().ip_family_policy() == Some("SingleStack");
    let wanted =
        first_family(&object).filter(|wanted| families.is_empty() || families.contains(wanted));
    if let (true, Some(family)) = (has_one, wanted.or(families.first().copied())) {
        set_at(&mut object, &["spec", "ipFamilies"], json!([family]));
    }
    object
}

pub fn ip_families(ranges: &[IpNet]) -> Vec<&'static str> {
    FAMILIES
        .into_iter()
        .filter(|one| ranges.iter().any(|range| ip_family(range.addr()) == *one))
        .collect()
}

fn ip_family(ip: IpAddr) -> &'static str {
    let [four, six] = FAMILIES;
    if ip.is_ipv6() { six } else { four }
}

/// The fields of a replica that never travel: somebody at the provider set them.
pub(crate) fn provider_fields(object: &Value) -> Map<String, Value> {
    let fields = ["selector", "externalIPs", "externalName", "loadBalancerIP"].into_iter();
    let spec = ServiceView::of(object).spec();
    let mut found: Map<String, Value> = fields
        .filter_map(|field| Some((field.to_owned(), spec.json().get(field)?.clone())))
        .collect();
    found.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        _ => true,
    });
    if spec.kind() == Some("LoadBalancer") {
        // Some controllers that allocate the address write it there.
        found.remove("loadBalancerIP");
    }
    let known = ["ClusterIP", "LoadBalancer"];
    found.extend(
        spec.kind()
            .filter(|kind| !known.contains(kind))
            .map(|kind| ("type".to_owned(), kind.into())),
    );
    found
}

fn service_port(port: &Value) -> Value {
    let mut known = select_fields(
        port,
        &["name", "port", "protocol", "targetPort", "appProtocol"],
    );
    known.entry("protocol").or_insert_with(|| "TCP".into());
    if let Some(same) = known.get("port").cloned() {
        known.entry("targetPort").or_insert(same);
    }
    known.into()
}

/// The fields of an `EndpointSlice` that mean the same in another cluster, with addresses
/// translated by `address`. Endpoints without a translation are left out.
pub(crate) fn endpoint_slice(
    object: &Value,
    mut address: impl FnMut(IpAddr) -> Option<IpAddr>,
) -> Map<String, Value> {
    let slice = EndpointSliceView::of(object);
    let kind = slice.address_type();
    let mut endpoints: Vec<(Vec<IpAddr>, Value)> = Vec::new();
    for endpoint in slice.endpoints() {
        let addresses = endpoint
            .address_texts()
            .filter_map(|one| one.parse::<IpAddr>().ok());
        let addresses: Vec<IpAddr> = addresses
            .filter(|ip| kind == ip_family(*ip))
            .filter_map(&mut address)
            .filter(|ip| kind == ip_family(*ip))
            .collect();
        if addresses.is_empty() {
            continue;
        }
        let mut known = select_fields(endpoint.json(), &["hostname"]);
        let mut conditions = select_fields(
            endpoint.conditions().unwrap_or(&Value::Null),
            &["ready", "serving", "terminating"],
        );
        conditions.retain(|_, holds| holds.is_boolean());
        known.insert(
            "addresses".into(),
            addresses.iter().map(ToString::to_string).collect(),
        );
        known.insert("conditions".into(), conditions.into());
        endpoints.push((addresses, known.into()));
    }
    // Their order has no meaning.
    endpoints.sort_by(|(one, _), (other, _)| one.cmp(other));
    let endpoints: Vec<Value> = endpoints
        .into_iter()
        .map(|(_, endpoint)| endpoint)
        .collect();

    let mut labels = Map::new();
    labels.extend(service_of(object).map(|name| (SERVICE_NAME.to_owned(), name.into())));
    let headless = slice.metadata().label(HEADLESS);
    labels.extend(headless.map(|said| (HEADLESS.to_owned(), said.into())));
    let mut known = Map::new();
    known.insert("metadata".into(), json!({ "labels": labels }));
    known.insert("addressType".into(), kind.into());
    known.insert("endpoints".into(), endpoints.into());
    // A slice without the list means every port, a slice with an empty list means none.
    if let Some(ports) = slice.ports() {
        known.insert("ports".into(), ports.iter().map(slice_port).collect());
    }
    known
}

fn slice_port(port: &Value) -> Value {
    let mut known = select_fields(port, &["name", "port", "protocol", "appProtocol"]);
    known.entry("protocol").or_insert_with(|| "TCP".into());
    known.into()
}

pub fn service_of(slice: &Value) -> Option<&str> {
    let name = EndpointSliceView::of(slice).metadata().label(SERVICE_NAME);
    name.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_travels_without_what_means_something_at_home_only() {
        let home = json!({ "metadata": { "name": "web" }, "spec": {
            "type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ipFamilies": ["IPv4"],
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
        assert_eq!(Value::from(travelling_service(&home)), expected);
        assert_eq!(
            travelling_service(&expected),
            travelling_service(&home),
            "what travelled is rebuilt the same"
        );
    }

    #[test]
    fn a_service_of_one_family_is_of_that_one_wherever_that_is_there() {
        let home = |policy: &str, families: Value| {
            let home = json!({ "spec": { "ipFamilyPolicy": policy, "ipFamilies": families, "ports": [{ "port": 80 }] } });
            Value::from(travelling_service(&home))
        };
        let (six, both) = (
            home("SingleStack", json!(["IPv6"])),
            home("PreferDualStack", json!(["IPv6", "IPv4"])),
        );
        assert_eq!(
            (first_family(&six), first_family(&both)),
            (Some("IPv6"), None)
        );
        assert_eq!(
            first_family(&home("SingleStack", json!(["IPv5"]))),
            None,
            "what is no family does not travel"
        );
        let at = |object: &Value, ranges: &[&str]| {
            let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
            first_family(&with_families(object.clone(), &ip_families(&ranges)))
        };
        assert_eq!(
            at(&six, &["10.96.0.0/12", "fd00:10:96::/112"]),
            Some("IPv6")
        );
        assert_eq!(
            at(&six, &["10.96.0.0/12"]),
            Some("IPv4"),
            "it could not be made otherwise"
        );
        assert_eq!(at(&six, &[]), Some("IPv6"));
        assert_eq!(at(&both, &["10.96.0.0/12", "fd00:10:96::/112"]), None);
        let unsaid = home("SingleStack", json!([]));
        assert_eq!(
            (at(&unsaid, &["fd00:10:96::/112"]), at(&unsaid, &[])),
            (Some("IPv6"), None)
        );
    }

    #[test]
    fn an_external_name_is_an_annotation_of_a_headless_service() {
        let home = |name: &str| {
            json!({ "metadata": { "name": "db" }, "spec": { "type": "ExternalName", "externalName": name, "externalIPs": ["192.0.2.1"],
                "ports": [{ "port": 80 }], "selector": { "app": "web" }, "clusterIP": "10.96.0.7" } })
        };
        let made = json!({ "metadata": { "annotations": { EXTERNAL_NAME: "db.example.org" } },
            "spec": { "type": "ClusterIP", "clusterIP": "None", "ipFamilyPolicy": "SingleStack" } });
        for name in ["db.example.org", "db.example.org."] {
            let sent = Value::from(outgoing_service(&home(name)));
            assert_eq!(
                sent["spec"],
                json!({ "type": "ExternalName", "clusterIP": "None", "externalName": "db.example.org" })
            );
            assert_eq!(Value::from(travelling_service(&sent)), made);
        }
        assert_eq!(
            Value::from(travelling_service(&made)),
            made,
            "what the provider made is rebuilt the same"
        );
        let mut at_provider = made.clone();
        at_provider["spec"]["ipFamilies"] = json!(["IPv4"]);
        assert_eq!(
            Value::from(travelling_service(&at_provider)),
            with_families(made, &["IPv4"])
        );
    }

    #[test]
    fn an_external_name_that_dns_cannot_answer_stands_for_nothing() {
        let long = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(62));
        for name in [
            "192.0.2.1",
            "",
            "..",
            "a_b",
            "A.example.org",
            "a b",
            &"a".repeat(64),
            &long,
            "a\n",
            "fd00::1",
        ] {
            let sent = Value::from(outgoing_service(
                &json!({ "spec": { "type": "ExternalName", "externalName": name } }),
            ));
            assert_eq!(
                sent["spec"],
                json!({ "type": "ExternalName", "clusterIP": "None" }),
                "{name}"
            );
            let hostile = json!({ "spec": { "type": "ExternalName", "externalName": name, "clusterIP": "None" } });
            for object in [sent, hostile] {
                let made = json!({ "spec": { "type": "ClusterIP", "clusterIP": "None", "ipFamilyPolicy": "SingleStack" } });
                assert_eq!(Value::from(travelling_service(&object)), made, "{name}");
            }
        }
    }

    #[test]
    fn an_annotation_at_home_makes_no_external_name() {
        let home = json!({ "metadata": { "annotations": { EXTERNAL_NAME: "db.example.org" } }, "spec": { "ports": [{ "port": 80 }] } });
        assert_eq!(
            outgoing_service(&home),
            travelling_service(&json!({ "spec": { "ports": [{ "port": 80 }] } }))
        );
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn balanced(annotations: &Value, more: Value) -> Value {
        let mut home = json!({ "metadata": { "name": "web", "annotations": annotations },
            "spec": { "type": "LoadBalancer", "loadBalancerClass": "at-home", "loadBalancerIP": "192.0.2.2",
                "externalIPs": ["192.0.2.1"], "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": false } });
        home["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        Value::from(outgoing_service(&home))["spec"].clone()
    }

    #[test]
    fn a_load_balancer_travels_with_the_class_that_is_named_for_other_clusters_and_with_whom_it_is_for()
     {
        let asked = |spec: Value| {
            (
                spec["type"].clone(),
                spec["loadBalancerClass"].clone(),
                spec["loadBalancerSourceRanges"].clone(),
            )
        };
        let open = balanced(&json!({}), json!({}));
        let closing = json!({ "type": "LoadBalancer", "ipFamilyPolicy": "SingleStack", "allocateLoadBalancerNodePorts": false });
        assert_eq!(open, closing);
        let named = balanced(
            &json!({ "liqo.io/remote-class": "edge" }),
            json!({ "loadBalancerSourceRanges": ["198.51.100.0/24"] }),
        );
        assert_eq!(
            asked(named),
            (
                json!("LoadBalancer"),
                json!("edge"),
                json!(["198.51.100.0/24"])
            )
        );
        let old = balanced(
            &json!({ SOURCE_RANGES: "198.51.100.0/24, 203.0.113.0/24" }),
            json!({}),
        );
        assert_eq!(
            asked(old),
            (
                json!("LoadBalancer"),
                json!(null),
                json!(["198.51.100.0/24", "203.0.113.0/24"])
            )
        );
    }

    #[test]
    fn a_load_balancer_that_is_not_for_the_world_stays_inside_elsewhere() {
        let kind = |annotations: Value| balanced(&annotations, json!({}))["type"].clone();
        for annotations in [
            json!({ "liqo.io/remote-class": "none" }),
            json!({ "service.beta.kubernetes.io/aws-load-balancer-internal": "true" }),
            json!({ "service.beta.kubernetes.io/aws-load-balancer-scheme": "internal" }),
            json!({ "networking.gke.io/load-balancer-type": "Internal" }),
            json!({ "service.beta.kubernetes.io/azure-load-balancer-internal": "true" }),
            json!({ "service.beta.kubernetes.io/scw-loadbalancer-private": "true" }),
            json!({ "load-balancer.hetzner.cloud/disable-public-network": "true" }),
        ] {
            assert_eq!(kind(annotations.clone()), "ClusterIP", "{annotations}");
        }
        assert_eq!(
            kind(json!({ "service.beta.kubernetes.io/azure-load-balancer-internal": "false" })),
            "LoadBalancer"
        );
        let named = json!({ "networking.gke.io/load-balancer-type": "Internal", "liqo.io/remote-class": "inside" });
        assert_eq!(
            kind(named),
            "LoadBalancer",
            "its users know what they ask for"
        );
    }

    #[test]
    fn a_headless_service_stays_headless_and_shows_pods_that_are_not_ready_if_it_did() {
        let home = json!({ "spec": { "clusterIP": "None", "publishNotReadyAddresses": true, "ipFamilyPolicy": "SingleStack" } });
        let expected = json!({ "spec": { "type": "ClusterIP", "clusterIP": "None", "publishNotReadyAddresses": true, "ipFamilyPolicy": "SingleStack" } });
        assert_eq!(Value::from(travelling_service(&home)), expected);
    }

    #[test]
    fn what_somebody_added_to_a_replica_is_seen() {
        let clean = json!({ "spec": { "type": "ClusterIP", "clusterIP": "10.96.0.1", "selector": {}, "externalIPs": [] } });
        assert!(provider_fields(&clean).is_empty());
        let given =
            |kind: &str| json!({ "spec": { "type": kind, "loadBalancerIP": "203.0.113.7" } });
        assert!(
            provider_fields(&given("LoadBalancer")).is_empty()
                && !provider_fields(&given("ClusterIP")).is_empty()
        );
        for (field, value) in [
            ("selector", json!({ "a": "b" })),
            ("externalIPs", json!(["192.0.2.1"])),
            ("type", json!("NodePort")),
        ] {
            let mut changed = clean.clone();
            changed["spec"][field] = value;
            assert!(provider_fields(&changed).contains_key(field), "{field}");
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
        let seen = |ip: IpAddr| {
            ip.to_string()
                .strip_prefix("10.244.")
                .map(|rest| format!("10.245.{rest}").parse().unwrap())
        };
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
        assert_eq!(
            Value::from(endpoint_slice(&known, Some)),
            known,
            "what travelled is rebuilt the same"
        );
    }

    #[test]
    fn an_address_never_becomes_one_of_the_other_family() {
        let known = endpoint_slice(&slice(), |_| Some("fd00::1".parse().unwrap()));
        assert_eq!(known["endpoints"], json!([]));
        let names = json!({ "addressType": "FQDN", "endpoints": [{ "addresses": ["10.0.0.1"] }, { "addresses": ["example.com"] }] });
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
