//! Containers travel without the mounts of the injected volume. Those that ask for something of the
//! node are refused.

use std::collections::BTreeSet;

use liqo_api::OffloadedReason;
use serde_json::{Value, json};

use crate::json::{items_at, name, text_at};
use crate::pod::carry::PodRefusal;
use crate::pod::local_status::{EPHEMERAL_CONTAINERS, EPHEMERAL_STATUSES};

/// Known sources of variables. Another source may name an object, and a remote pod names its
/// replica only if the source is known.
const SOURCES: [&str; 5] = [
    "configMapKeyRef",
    "fieldRef",
    "fileKeyRef",
    "resourceFieldRef",
    "secretKeyRef",
];
/// The same for all variables of an object.
const WHOLE_SOURCES: [&str; 3] = ["configMapRef", "prefix", "secretRef"];

/// The containers without mounts of injected volumes; a refusal for the first that cannot travel.
pub fn reduce_containers(
    containers: &Value,
    injected: &BTreeSet<String>,
) -> Result<Option<Value>, PodRefusal> {
    let Some(containers) = containers.as_array() else {
        return Err(PodRefusal::new(
            OffloadedReason::Malformed.as_str(),
            "the pod's list of containers is not a list",
        ));
    };
    let mut kept = Vec::new();
    for container in containers {
        check_container(container)?;
        let mut container = container.clone();
        if let Some(mounts) = container
            .get_mut("volumeMounts")
            .and_then(Value::as_array_mut)
        {
            mounts.retain(|mount| !injected.contains(name(mount)));
        }
        kept.push(container);
    }
    Ok((!kept.is_empty()).then_some(kept.into()))
}

/// The ephemeral containers that may still run. One that ended never starts again, not even in the
/// next remote pod.
pub fn unfinished_ephemeral(pod: &Value) -> Value {
    let ended: Vec<&str> = items_at(pod, &format!("/status/{EPHEMERAL_STATUSES}"))
        .iter()
        .filter(|status| status.pointer("/state/terminated").is_some())
        .map(name)
        .collect();
    items_at(pod, EPHEMERAL_CONTAINERS)
        .iter()
        .filter(|container| !ended.contains(&name(container)))
        .cloned()
        .collect()
}

/// Leaves out the ephemeral containers of a local pod that cannot run at a provider.
pub fn leave_out_refused_ephemeral(pod: &mut Value) {
    if let Some(containers) = pod
        .pointer_mut(EPHEMERAL_CONTAINERS)
        .and_then(Value::as_array_mut)
    {
        containers.retain(|container| check_container(container).is_ok());
    }
}

fn check_container(container: &Value) -> Result<(), PodRefusal> {
    let title = name(container);
    if items_at(container, "/ports").iter().any(is_host_port) {
        return Err(PodRefusal::new(
            OffloadedReason::HostPort.as_str(),
            format!(
                "container {title} asks for a port of the node by hostPort, which a node of another cluster does not give; use a Service, or keep the pod in its own cluster"
            ),
        ));
    }
    if !items_at(container, "/resources/claims").is_empty() {
        return Err(PodRefusal::new(
            OffloadedReason::ResourceClaims.as_str(),
            format!(
                "container {title} uses a resource claim, and claims do not travel; ask for an extended resource that the offer names, or keep the pod in its own cluster"
            ),
        ));
    }
    if let Some(source) = unknown_source(container) {
        return Err(PodRefusal::new(
            OffloadedReason::UnknownField.as_str(),
            format!(
                "container {title} takes variables from {source:.100}, which is not known to be safe in another cluster; remove it, or keep the pod in its own cluster"
            ),
        ));
    }
    if let Some((field, host)) = named_host(container) {
        return Err(PodRefusal::new(
            OffloadedReason::ProbeHost.as_str(),
            format!(
                "container {title} names the host {host:.253} in {field}, which a node of another cluster would call; leave host out, so that the pod itself is called, or keep the pod in its own cluster"
            ),
        ));
    }
    Ok(())
}

/// A source of variables that is none of the known ones.
fn unknown_source(container: &Value) -> Option<&str> {
    let single = items_at(container, "/env")
        .iter()
        .filter_map(|variable| variable.get("valueFrom"));
    let lists = single.map(|source| (source, &SOURCES[..]));
    let lists = lists.chain(
        items_at(container, "/envFrom")
            .iter()
            .map(|source| (source, &WHOLE_SOURCES[..])),
    );
    let mut fields = lists.flat_map(|(source, known)| {
        source
            .as_object()
            .into_iter()
            .flatten()
            .map(move |field| (field, known))
    });
    fields
        .find(|((name, value), known)| !value.is_null() && !known.contains(&name.as_str()))
        .map(|((name, _), _)| name.as_str())
}

/// A host that a probe or hook names, with its field. The node calls it, so it would tell which
/// ports are open there and around it.
fn named_host(container: &Value) -> Option<(String, &str)> {
    let users = [
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle/postStart",
        "lifecycle/preStop",
    ];
    for user in users {
        for action in ["httpGet", "tcpSocket"] {
            let host = text_at(container, &format!("/{user}/{action}/host"));
            if let Some(host) = host.filter(|host| !host.is_empty()) {
                return Some((format!("{}.{action}.host", user.replace('/', ".")), host));
            }
        }
    }
    None
}

fn is_host_port(port: &Value) -> bool {
    port.get("hostPort")
        .is_some_and(|port| !port.is_null() && port != &json!(0))
}
