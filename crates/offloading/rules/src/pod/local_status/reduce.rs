//! The provider reduces a remote pod's status; the consumer validates it.

use jiff::Timestamp;
use liqo_api::pods;
use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::pod::local_status::{DISRUPTION_TARGET, RESIZE_CONDITIONS, is_final, seconds_timestamp};
use crate::views::{ContainerList, ContainerView, PodView};

/// Maximum length of one text: the kubelet's own limit for a termination message.
const MAX_LEN: usize = 4096;

/// Maximum number of mounts of one container, and of its resources.
const MAX_ITEMS: usize = 64;
/// Maximum length of the name of a resource, with its domain.
const MAX_NAME_LEN: usize = 317;

const TIMES: [&str; 4] = ["startTime", "lastTransitionTime", "startedAt", "finishedAt"];

/// The conditions that the local pod's conditions are derived from; [`DISRUPTION_TARGET`] only at
/// the pod's end. Those of Liqo are on a pod that the provider brokers.
const CONDITIONS: [&str; 7] = [
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodScheduled",
    "Ready",
    pods::OFFLOADED,
    pods::REMOTE_SCHEDULED,
];

/// The part of a remote pod's status that its local pod shows: the `pod` in a shadow pod's status.
pub(crate) fn reduce_status(remote_pod: &Value) -> Value {
    let status = PodView::of(remote_pod).status();
    let mut reduced = Map::new();
    for field in ["phase", "reason", "message", "startTime", "podIP"] {
        if let Some(value) = field_text(status.json(), field) {
            reduced.insert(field.into(), value);
        }
    }
    // `podIP` has the first one.
    let addresses: Vec<Value> = status
        .pod_ips()
        .filter_map(|one| field_text(one.json(), "ip"))
        .take(2)
        .collect();
    if addresses.len() > 1 {
        reduced.insert(
            "podIPs".into(),
            addresses.into_iter().map(|ip| json!({"ip": ip})).collect(),
        );
    }
    let has_ended = is_final(remote_pod);
    let conditions: Vec<Value> = status
        .conditions()
        .filter(|condition| {
            let kind = condition.kind().unwrap_or_default();
            CONDITIONS.contains(&kind)
                || RESIZE_CONDITIONS.contains(&kind)
                || (has_ended && kind == DISRUPTION_TARGET)
        })
        .map(|condition| reduce_condition(condition.json()))
        .collect();
    if !conditions.is_empty() {
        reduced.insert("conditions".into(), conditions.into());
    }
    for list in ContainerList::ALL {
        let statuses: Vec<Value> = status
            .statuses_in(list)
            .map(|status| reduce_container_status(status.json()))
            .collect();
        if !statuses.is_empty() {
            reduced.insert(list.status_field().into(), statuses.into());
        }
    }
    reduced.into()
}

fn reduce_condition(condition: &Value) -> Value {
    let fields = ["type", "status", "reason", "message", "lastTransitionTime"];
    fields
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), field_text(condition, field)?)))
        .collect::<Map<_, _>>()
        .into()
}

/// A container's status with the fields that Kubernetes requires, without those that only matter on
/// its node.
pub(crate) fn reduce_container_status(status: &Value) -> Value {
    let mut reduced = Map::new();
    for field in ["name", "image", "imageID"] {
        reduced.insert(
            field.into(),
            field_text(status, field).unwrap_or_else(|| "".into()),
        );
    }
    reduced.insert(
        "ready".into(),
        status["ready"].as_bool().unwrap_or_default().into(),
    );
    reduced.insert(
        "restartCount".into(),
        bounded_number(&status["restartCount"])
            .filter(|count| *count >= 0)
            .unwrap_or_default()
            .into(),
    );
    if let Some(started) = status["started"].as_bool() {
        reduced.insert("started".into(), started.into());
    }
    for field in ["state", "lastState"] {
        if let Some(state) = reduce_state(&status[field]) {
            reduced.insert(field.into(), state);
        }
    }
    let fields = [
        ("containerID", field_text(status, "containerID")),
        (
            "allocatedResources",
            valid_quantities(&status["allocatedResources"]),
        ),
        ("resources", reduce_requirements(&status["resources"])),
        ("volumeMounts", reduce_volume_mounts(status)),
    ];
    reduced.extend(
        fields
            .into_iter()
            .filter_map(|(field, value)| Some((field.to_owned(), value?))),
    );
    reduced.into()
}

/// The requests and limits that a container has. A kubelet that can resize reports them, even if
/// they are empty.
fn reduce_requirements(resources: &Value) -> Option<Value> {
    resources.is_object().then(|| {
        let kinds = ["requests", "limits"].into_iter();
        kinds
            .filter_map(|kind| Some((kind.to_owned(), valid_quantities(&resources[kind])?)))
            .collect::<Map<_, _>>()
            .into()
    })
}

/// Amounts of resources. An invalid one is left out, as an invalid time is.
fn valid_quantities(amounts: &Value) -> Option<Value> {
    let amounts: Map<String, Value> = amounts
        .as_object()?
        .iter()
        .filter(|(name, amount)| {
            name.len() <= MAX_NAME_LEN && Quantity::deserialize(*amount).is_ok()
        })
        .take(MAX_ITEMS)
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    (!amounts.is_empty()).then(|| amounts.into())
}

fn reduce_volume_mounts(status: &Value) -> Option<Value> {
    // Its mounts are in the same field as those of the container.
    let mounts = ContainerView::of(status)
        .volume_mounts()
        .take(MAX_ITEMS)
        .map(|mount| {
            let mount = mount.json();
            let mut reduced: Map<String, Value> = ["name", "mountPath", "recursiveReadOnly"]
                .into_iter()
                .filter_map(|field| Some((field.to_owned(), field_text(mount, field)?)))
                .collect();
            if mount["readOnly"] == true {
                reduced.insert("readOnly".into(), true.into());
            }
            reduced.into()
        });
    let mounts: Vec<Value> = mounts.collect();
    (!mounts.is_empty()).then(|| mounts.into())
}

/// The state of a container: one of waiting, running and terminated.
fn reduce_state(state: &Value) -> Option<Value> {
    let (kind, inner) = ["terminated", "running", "waiting"]
        .into_iter()
        .find_map(|kind| Some((kind, state.get(kind)?.as_object()?)))?;
    let mut reduced: Map<String, Value> = [
        "reason",
        "message",
        "startedAt",
        "finishedAt",
        "containerID",
    ]
    .into_iter()
    .filter_map(|field| Some((field.to_owned(), field_text(&state[kind], field)?)))
    .collect();
    for field in ["exitCode", "signal"] {
        if let Some(number) = inner.get(field).and_then(bounded_number) {
            reduced.insert(field.into(), number.into());
        }
    }
    if kind == "terminated" {
        reduced.entry("exitCode").or_insert(json!(0));
    }
    Some(json!({kind: reduced}))
}

/// The text of a field. An invalid time is left out: an API server would refuse the whole write.
fn field_text(value: &Value, field: &str) -> Option<Value> {
    let text = value
        .get(field)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())?;
    if TIMES.contains(&field) && !is_time(text) {
        return None;
    }
    Some(truncate_text(text).into())
}

/// Whether this is a time as Kubernetes writes it: to the second, in UTC.
fn is_time(text: &str) -> bool {
    text.parse::<Timestamp>()
        .is_ok_and(|time| seconds_timestamp(time) == text)
}

/// A number within the range of Kubernetes' type.
fn bounded_number(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|number| i32::try_from(number).ok())
}

/// A text cut to the maximum length.
pub fn truncate_text(text: &str) -> String {
    text.char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= MAX_LEN)
        .map(|(_, c)| c)
        .collect()
}
