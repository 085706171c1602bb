//! Containers travel unchanged, without the mounts of the injected volume.

use std::collections::BTreeSet;

use liqo_api::OffloadedReason;
use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::json::{items, name};
use crate::pod::carry::Refusal;
use crate::pod::local_status::{EPHEMERAL_CONTAINERS, EPHEMERAL_STATUSES};

/// The containers without mounts of injected volumes; a refusal for the first that cannot travel.
pub fn reduce(containers: &Value, injected: &BTreeSet<String>) -> Result<Option<Value>, Refusal> {
    let Some(containers) = containers.as_array() else {
        return Err(Refusal::new(OffloadedReason::Malformed.as_str(), "the pod's list of containers is not a list"));
    };
    let mut kept = Vec::new();
    for container in containers {
        check(container)?;
        let mut container = container.clone();
        if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
            mounts.retain(|mount| !injected.contains(name(mount)));
        }
        kept.push(container);
    }
    Ok((!kept.is_empty()).then_some(kept.into()))
}

/// The ephemeral containers that may still run. One that ended never starts again, not even in the next remote pod.
pub fn unfinished_ephemeral(pod: &Value) -> Value {
    let has_ended = |container: &Value| {
        let statuses = items(pod, &format!("/status/{EPHEMERAL_STATUSES}"));
        statuses.iter().any(|status| name(status) == name(container) && status.pointer("/state/terminated").is_some())
    };
    items(pod, EPHEMERAL_CONTAINERS).iter().filter(|container| !has_ended(container)).cloned().collect()
}

fn check(container: &Value) -> Result<(), Refusal> {
    let title = name(container);
    let holds_port = |port: &Value| port.get("hostPort").is_some_and(|port| !port.is_null() && port != &json!(0));
    if items(container, "/ports").iter().any(holds_port) {
        return Err(Refusal::new(
            OffloadedReason::HostPort.as_str(),
            format!(
                "container {title} asks for a port of the node by hostPort, which a node of another cluster does not give; use a Service, or keep the pod in its own cluster"
            ),
        ));
    }
    if !items(container, "/resources/claims").is_empty() {
        return Err(Refusal::new(
            OffloadedReason::ResourceClaims.as_str(),
            format!(
                "container {title} uses a resource claim, and claims do not travel; ask for an extended resource that the offer names, or keep the pod in its own cluster"
            ),
        ));
    }
    Ok(())
}

/// Sets the requests of every container explicitly, so the ledger charges what the provider's scheduler sees, whatever the defaults
/// of the namespace are.
///
/// As in Kubernetes, a limit without a request is also the request. If the pod as a whole has requests, the containers get none:
/// the sum of theirs may not exceed the pod's.
///
/// To a kubelet a limit of zero is no limit, so it is removed here: no request could be valid with it.
pub(crate) fn request_explicitly(spec: &mut Map<String, Value>, defaults: &[(String, String)]) {
    let mut whole_pod = BTreeSet::new();
    if spec.contains_key("resources") {
        edit(spec, "resources", |resources| {
            for (resource, _) in defaults {
                drop_zero_limit(resources, resource);
                if let Some(amount) = amount(resources, "requests", resource).or_else(|| amount(resources, "limits", resource)) {
                    whole_pod.insert(resource.clone());
                    edit(resources, "requests", |requests| _ = requests.insert(resource.clone(), amount));
                }
            }
        });
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
            edit(container, "resources", |resources| {
                for (resource, default) in defaults {
                    drop_zero_limit(resources, resource);
                    let otherwise = if whole_pod.contains(resource) { "0" } else { default };
                    let wanted = amount(resources, "limits", resource).unwrap_or_else(|| otherwise.into());
                    edit(resources, "requests", |requests| _ = requests.entry(resource).or_insert(wanted));
                }
            });
        }
    }
}

/// Removes a limit of zero, and the request of zero that the home API server derives from it: together they mean nothing.
fn drop_zero_limit(resources: &mut Map<String, Value>, resource: &str) {
    let is_zero = |kind: &str| {
        let amount = resources.get(kind).and_then(|amounts| amounts.get(resource));
        amount.and_then(|amount| Quantity::deserialize(amount).ok()) == Some(Quantity::ZERO)
    };
    if !is_zero("limits") {
        return;
    }
    let kinds: &[&str] = if is_zero("requests") { &["limits", "requests"] } else { &["limits"] };
    for kind in kinds {
        if let Some(amounts) = resources.get_mut(*kind).and_then(Value::as_object_mut) {
            amounts.remove(resource);
        }
    }
}

/// The amount of one resource in the requests or limits.
fn amount(resources: &Map<String, Value>, kind: &str, resource: &str) -> Option<Value> {
    resources.get(kind)?.get(resource).filter(|amount| !amount.is_null()).cloned()
}

/// Changes the object at a key; creates it if there is none.
fn edit(map: &mut Map<String, Value>, key: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut object = match map.get_mut(key).map(Value::take) {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    };
    change(&mut object);
    map.insert(key.into(), object.into());
}
