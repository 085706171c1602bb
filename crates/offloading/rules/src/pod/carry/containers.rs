//! Containers travel without the mounts of the injected volume. Those that ask for something of the
//! node are refused.

use std::collections::BTreeSet;

use liqo_api::OffloadedReason;
use serde_json::{Value, json};

use crate::json::name;
use crate::pod::carry::PodRefusal;
use crate::views::{
    ContainerList, ContainerPortView, ContainerStatusView, ContainerView, PodView, VariableView,
};

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
    let pod = PodView::of(pod);
    let statuses = pod.status().statuses_in(ContainerList::Ephemeral);
    let ended: Vec<&str> = statuses
        .filter(|status| status.state().terminated().is_some())
        .map(ContainerStatusView::name)
        .collect();
    pod.spec()
        .containers_in(ContainerList::Ephemeral)
        .filter(|container| !ended.contains(&container.name()))
        .map(|container| container.json().clone())
        .collect()
}

/// Leaves out the ephemeral containers of a local pod that cannot run at a provider.
pub fn leave_out_refused_ephemeral(pod: &mut Value) {
    if let Some(containers) = ContainerList::Ephemeral.in_pod_mut(pod) {
        containers.retain(|container| check_container(container).is_ok());
    }
}

fn check_container(container: &Value) -> Result<(), PodRefusal> {
    let container = ContainerView::of(container);
    let title = container.name();
    if container.ports().any(is_host_port) {
        return Err(PodRefusal::new(
            OffloadedReason::HostPort.as_str(),
            format!(
                "container {title} asks for a port of the node by hostPort, which a node of another cluster does not give; use a Service, or keep the pod in its own cluster"
            ),
        ));
    }
    if !container.resources().claims().is_empty() {
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
fn unknown_source(container: ContainerView<'_>) -> Option<&str> {
    let single = container.env().filter_map(VariableView::value_from);
    let lists = single.map(|source| (source.json(), &SOURCES[..]));
    let lists = lists.chain(
        container
            .env_from()
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
fn named_host(container: ContainerView<'_>) -> Option<(String, &str)> {
    let lifecycle = container.lifecycle();
    let users = [
        ("livenessProbe", container.liveness_probe()),
        ("readinessProbe", container.readiness_probe()),
        ("startupProbe", container.startup_probe()),
        ("lifecycle.postStart", lifecycle.post_start()),
        ("lifecycle.preStop", lifecycle.pre_stop()),
    ];
    for (user, handler) in users {
        for (action, target) in [
            ("httpGet", handler.http_get()),
            ("tcpSocket", handler.tcp_socket()),
        ] {
            if !target.host().is_empty() {
                return Some((format!("{user}.{action}.host"), target.host()));
            }
        }
    }
    None
}

fn is_host_port(port: ContainerPortView<'_>) -> bool {
    port.host_port()
        .is_some_and(|port| !port.is_null() && port != &json!(0))
}
