//! The rules for the objects of a kind, whether Kubernetes or a definition declares it: what is
//! added, what is kept, what is refused.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::{
    User,
    cause::{Cause, CauseKind},
    defaults::{self, needs_cluster_ip, needs_node_ports},
    kinds::Kind,
    state::State,
    validation,
};

/// The first of the addresses that services get: 10.96.0.10, so that the first ones stay free for
/// the API server and the DNS.
const FIRST_SERVICE_ADDRESS: u32 = 0x0a60_000a;
/// Services get addresses from 10.96.0.0/12.
const SERVICE_MASK: u32 = 0xfff0_0000;
const FIRST_NODE_PORT: u64 = 30_000;
const NODE_PORTS: u64 = 2768;

/// Sets the defaults of a decoded object.
pub fn complete(kind: &Kind, object: &mut Value) {
    match &kind.schema {
        Some(schema) => schema.set_defaults(object),
        None => defaults::set_defaults(&kind.kind, object),
    }
}

/// The fields of an object that a request for it, or for a subresource, cannot change.
pub fn untouched(kind: &Kind, subresource: &str) -> &'static [&'static str] {
    match subresource {
        "" if kind.kind == "CertificateSigningRequest" => &["spec", "status"],
        "" if kind.has_status() => &["status"],
        "status" | "approval" => &["spec"],
        _ => &[],
    }
}

/// The parts of an object that a request for it, or for a subresource, can change.
pub fn changeable(kind: &Kind, subresource: &str, object: &Value) -> Value {
    let mut object = object.clone();
    for field in untouched(kind, subresource) {
        put(&mut object, field, Value::Null);
    }
    object
}

/// Makes a completed object one that can be stored, and returns why it cannot be.
pub fn of_creation(state: &mut State, user: &User, kind: &Kind, object: &mut Value) -> Vec<Cause> {
    let uid = state.uid();
    let now = state.now_text();
    let name = kind.kind.as_str();
    if !kind.is_custom() {
        defaults::admit_create(name, object);
        defaults::prepare_for_create(name, object);
    }
    fill_in(object, &uid, &now);
    if let Some(schema) = &kind.schema {
        if kind.has_status()
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        object["metadata"]["generation"] = json!(1);
        let mut causes = validation::validate_create("", object);
        causes.extend(schema.validate(object, None));
        return causes;
    }
    if kind.is("certificates.k8s.io", "CertificateSigningRequest") {
        object["spec"]["username"] = json!(user.name);
        object["spec"]["groups"] = json!(user.groups);
    }
    if kind.is("batch", "Job") {
        defaults::complete_job(object, &uid);
    }
    defaults::complete_condition_times(name, None, object, &now);
    if kind.is("", "Service") {
        let causes = allocate(state, object, None);
        if !causes.is_empty() {
            return causes;
        }
    }
    let causes = validation::validate_create(name, object);
    if kind.is_converted() {
        defaults::convert_event(kind.home_group(), object);
    }
    defaults::canonicalize(name, object);
    causes
}

/// What the server itself writes into every new object.
fn fill_in(object: &mut Value, uid: &str, now: &str) {
    let metadata = &mut object["metadata"];
    metadata["uid"] = json!(uid);
    metadata["creationTimestamp"] = json!(now);
    if let Some(metadata) = metadata.as_object_mut() {
        for field in [
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
        ] {
            metadata.remove(field);
        }
    }
}

/// Gives a service its addresses and ports.
fn allocate(state: &mut State, service: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let old = old.map(|old| &old["spec"]);
    let spec = &mut service["spec"];
    if let Some(old) = old {
        defaults::patch_allocated_values(spec, old);
    }
    defaults::normalize_cluster_ips(spec, old);
    let causes = defaults::init_service_families(spec, old);
    if !causes.is_empty() {
        return causes;
    }
    match spec["clusterIP"].as_str().unwrap_or_default() {
        "" if needs_cluster_ip(spec) => {
            let address = free_address(state);
            spec["clusterIPs"] = json!([address]);
            spec["clusterIP"] = json!(address);
        }
        "" | "None" => {}
        given if old.is_none_or(|old| !needs_cluster_ip(old)) && !can_be_given(state, given) => {
            return vec![Cause::invalid(
                "spec.clusterIPs",
                "the address is used, or not in the range of this cluster",
            )];
        }
        _ => {}
    }
    if needs_node_ports(spec) {
        let ports = spec["ports"].as_array_mut().into_iter().flatten();
        for port in ports.filter(|port| port["nodePort"].as_u64().unwrap_or(0) == 0) {
            port["nodePort"] = json!(free_node_port(state));
        }
    }
    causes
}

fn free_address(state: &State) -> String {
    let mut addresses = (FIRST_SERVICE_ADDRESS..).map(|bits| Ipv4Addr::from_bits(bits).to_string());
    addresses
        .find(|address| !is_used(state, address))
        .unwrap_or_default()
}

fn is_used(state: &State, address: &str) -> bool {
    state
        .store
        .list("services", "")
        .any(|(_, service)| service["spec"]["clusterIP"] == address)
}

fn can_be_given(state: &State, address: &str) -> bool {
    let is_in_range = |address: Ipv4Addr| {
        address.to_bits() & SERVICE_MASK == FIRST_SERVICE_ADDRESS & SERVICE_MASK
    };
    address.parse().is_ok_and(is_in_range) && !is_used(state, address)
}

fn free_node_port(state: &mut State) -> u64 {
    let ports = |service: &Value| -> Vec<u64> {
        service["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| port["nodePort"].as_u64())
            .collect()
    };
    let used: Vec<u64> = state
        .store
        .list("services", "")
        .flat_map(|(_, service)| ports(service))
        .collect();
    loop {
        let port = FIRST_NODE_PORT + state.draw() % NODE_PORTS;
        if !used.contains(&port) {
            return port;
        }
    }
}

/// Makes a completed object the new state of `old`, and returns why it cannot be.
pub fn of_update(state: &mut State, kind: &Kind, old: &Value, new: &mut Value) -> Vec<Cause> {
    let name = kind.kind.as_str();
    if let Some(schema) = &kind.schema {
        keep_metadata(old, new);
        if kind.has_status() {
            keep(old, new, "status");
        }
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
        let is_same =
            without_metadata(old, kind.has_status()) == without_metadata(new, kind.has_status());
        new["metadata"]["generation"] = json!(if is_same { generation } else { generation + 1 });
        let mut causes = validation::validate_update("", old, new);
        causes.extend(schema.validate(new, Some(old)));
        return causes;
    }
    defaults::admit_update(name, old, new);
    defaults::prepare_for_update(name, old, new);
    if kind.is("", "Service") {
        let causes = allocate(state, new, Some(old));
        if !causes.is_empty() {
            return causes;
        }
    }
    let causes = validation::validate_update(name, old, new);
    defaults::canonicalize(name, new);
    causes
}

/// As [`of_update`], for a subresource that changes an object.
pub fn of_subresource(
    kind: &Kind,
    subresource: &str,
    old: &Value,
    new: &mut Value,
    now: &str,
) -> Vec<Cause> {
    let name = kind.kind.as_str();
    if let Some(schema) = &kind.schema {
        // A status update changes nothing else, not even metadata but the managers of fields.
        let (status, managed) = (
            new["status"].take(),
            new["metadata"]["managedFields"].take(),
        );
        *new = old.clone();
        put(new, "status", status);
        put(&mut new["metadata"], "managedFields", managed);
        return schema.validate_status(new, old);
    }
    if subresource == "resize" {
        return resize(old, new);
    }
    defaults::prepare_for_subresource(name, subresource, old, new);
    defaults::complete_condition_times(name, Some(old), new, now);
    validation::validate_subresource(name, subresource, old, new)
}

/// Only the resources of containers change.
fn resize(old: &Value, new: &mut Value) -> Vec<Cause> {
    let mut resized = old.clone();
    for list in ["containers", "initContainers"] {
        let count = |pod: &Value| pod["spec"][list].as_array().map_or(0, Vec::len);
        if count(old) != count(new) {
            return vec![Cause::plain(
                CauseKind::Forbidden,
                format!("spec.{list}"),
                "a resize adds and removes no containers",
            )];
        }
        let containers = resized["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let given = new["spec"][list]
                .as_array()
                .into_iter()
                .flatten()
                .find(|given| given["name"] == container["name"]);
            if let Some(given) = given {
                put(container, "resources", given["resources"].clone());
                put(container, "resizePolicy", given["resizePolicy"].clone());
            }
        }
    }
    put(
        &mut resized["metadata"],
        "managedFields",
        new["metadata"]["managedFields"].take(),
    );
    if resized["spec"] != old["spec"] {
        resized["metadata"]["generation"] =
            json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
    }
    *new = resized;
    let (before, after) = (
        defaults::quality_of_service(old),
        defaults::quality_of_service(new),
    );
    let why = "Pod QOS Class may not change as a result of resizing";
    if before == after {
        Vec::new()
    } else {
        vec![Cause::invalid("spec", why)]
    }
}

fn keep_metadata(old: &Value, new: &mut Value) {
    let has_uid = new["metadata"]["uid"]
        .as_str()
        .is_some_and(|uid| !uid.is_empty());
    let kept = [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "uid",
    ];
    for field in kept.into_iter().take(if has_uid { 3 } else { 4 }) {
        let value = old["metadata"][field].clone();
        put(&mut new["metadata"], field, value);
    }
}

fn keep(old: &Value, new: &mut Value, field: &str) {
    put(new, field, old[field].clone());
}

/// Sets a field; null removes it.
pub fn put(object: &mut Value, field: &str, value: Value) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    if value.is_null() {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), value);
    }
}

fn without_metadata(object: &Value, without_status: bool) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("metadata");
        if without_status {
            fields.remove("status");
        }
    }
    object
}
