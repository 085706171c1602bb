//! The statuses of the containers in the home spec, in the order of a kubelet: by name, and those
//! of init containers as in the spec.

use jiff::Timestamp;
use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::json::{items_at, name, set_at, text_at};
use crate::pod::local_status::{
    EPHEMERAL_CONTAINERS, INIT_CONTAINERS, is_final, reduce, seconds_timestamp, times,
};

/// The list to write at this time, if it differs.
pub fn merged_statuses(
    home: &Value,
    remote: &Value,
    field: &str,
    list: &str,
    time: Timestamp,
) -> Option<Vec<Value>> {
    let ours = items_at(home, &format!("/status/{field}"));
    let theirs = items_at(remote, &format!("/{field}"));
    let is_final = is_final(home);
    let mut wanted: Vec<Value> = items_at(home, list)
        .iter()
        .filter_map(|container| {
            let now = ours.iter().find(|status| name(status) == name(container));
            let said = theirs.iter().find(|status| name(status) == name(container));
            let said =
                said.map(|said| with_own_mounts(reduce::reduce_container_status(said), container));
            let said = said.map(|said| with_own_amounts(said, container, now));
            let said = said.map(|said| times::without_future_times(said, now, time));
            let said_ended = said.as_ref().is_some_and(has_ended);
            match now {
                // What is recorded of a pod that has ended stays.
                Some(now) if is_final && (has_ended(now) || !said_ended) => Some(now.clone()),
                // A container that ended for good cannot run again, and the API server refuses a
                // status that says so.
                Some(now) if !said_ended && has_ended_for_good(home, list, container, now) => {
                    Some(now.clone())
                }
                None if is_final && !said_ended => None,
                _ => said,
            }
        })
        .collect();
    if list != INIT_CONTAINERS {
        // `kubectl` shows the state of the first one that says something.
        wanted.sort_by(|one, other| name(one).cmp(name(other)));
    }
    let same = wanted.len() == ours.len()
        && wanted
            .iter()
            .zip(ours)
            .all(|(wanted, now)| is_shown_by(wanted, now));
    (!same).then_some(wanted)
}

/// Whether the status that stands says the same as the wanted one.
fn is_shown_by(wanted: &Value, now: &Value) -> bool {
    without_empty_fields(&without_dropped(wanted, now)) == without_empty_fields(now)
}

/// The list in which every container that ran has ended, with this reason and message.
pub fn ended_statuses(
    home: &Value,
    field: &str,
    (reason, message): (&str, &str),
    now: Timestamp,
) -> Option<Vec<Value>> {
    let ours = items_at(home, &format!("/status/{field}"));
    if ours.iter().all(has_ended) {
        return None;
    }
    let ended = ours.iter().map(|status| {
        let mut status = status.clone();
        if !has_ended(&status) {
            let since = status.pointer("/state/running/startedAt").cloned();
            let end =
                json!({"exitCode": 137, "reason": reason, "message": message, "startedAt": since, "finishedAt": seconds_timestamp(now)});
            set_at(&mut status, &["state"], json!({ "terminated": end }));
        }
        set_at(&mut status, &["ready"], false);
        set_at(&mut status, &["started"], false);
        status
    });
    Some(ended.collect())
}

/// Whether the status of a pod has containers whose end it does not say.
pub fn lack_ends(status: &Value) -> bool {
    LISTS
        .iter()
        .flat_map(|list| items_at(status, list))
        .any(|one| !has_ended(one))
}

/// A status with the ends of containers that a later one knows; `None` if it knows none.
pub fn with_ends(shown: &Value, later: &Value) -> Option<Value> {
    let mut status = shown.clone();
    let mut is_news = false;
    for list in LISTS {
        for one in status
            .pointer_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let end = items_at(later, list)
                .iter()
                .find(|end| name(end) == name(one) && has_ended(end));
            if let Some(end) = end.filter(|_| !has_ended(one)) {
                (*one, is_news) = (end.clone(), true);
            }
        }
    }
    is_news.then_some(status)
}

const LISTS: [&str; 3] = [
    "/initContainerStatuses",
    "/containerStatuses",
    "/ephemeralContainerStatuses",
];

fn has_ended(status: &Value) -> bool {
    status.pointer("/state/terminated").is_some()
}

/// Some mounts of the remote container are not the local one's, such as that of the token which the
/// API server adds.
fn with_own_mounts(mut status: Value, container: &Value) -> Value {
    let Some(fields) = status.as_object_mut() else {
        return status;
    };
    if let Some(Value::Array(mut mounts)) = fields.remove("volumeMounts") {
        mounts.retain(|mount| {
            items_at(container, "/volumeMounts").iter().any(|ours| {
                ours["name"] == mount["name"] && ours["mountPath"] == mount["mountPath"]
            })
        });
        if !mounts.is_empty() {
            fields.insert("volumeMounts".into(), mounts.into());
        }
    }
    status
}

/// Only the amounts that the local container names; its remote one may have others, because every
/// remote container requests something. The home cluster adds them up, so an amount of more than
/// twice what the pod asks for, or asked for before a resize, is not believed: kernels round.
fn with_own_amounts(mut status: Value, container: &Value, now: Option<&Value>) -> Value {
    let asked = container.get("resources");
    if let Some(Value::Object(resources)) = status.get_mut("resources") {
        let shown = now.and_then(|now| now.get("resources"));
        for (kind, amounts) in resources.iter_mut() {
            if let Value::Object(amounts) = amounts {
                amounts.retain(|resource, amount| {
                    let asked = amount_of(asked, kind, resource);
                    is_credible(amount, asked, amount_of(shown, kind, resource))
                });
            }
        }
        resources.retain(|_, amounts| {
            amounts
                .as_object()
                .is_some_and(|amounts| !amounts.is_empty())
        });
    }
    // The kubelet allocates requests.
    if let Some(Value::Object(allocated)) = status.get_mut("allocatedResources") {
        allocated.retain(|resource, amount| {
            let asked = amount_of(asked, "requests", resource);
            is_credible(
                amount,
                asked,
                amount_of(now, "allocatedResources", resource),
            )
        });
        if allocated.is_empty()
            && let Some(fields) = status.as_object_mut()
        {
            fields.remove("allocatedResources");
        }
    }
    status
}

fn amount_of(resources: Option<&Value>, kind: &str, resource: &str) -> Option<Quantity> {
    Quantity::deserialize(resources?.get(kind)?.get(resource)?).ok()
}

/// Whether a container that asked for an amount may have this one. It may keep what its status
/// shows already.
fn is_credible(amount: &Value, asked: Option<Quantity>, shown: Option<Quantity>) -> bool {
    let amount = Quantity::deserialize(amount).unwrap_or_default();
    !amount.is_negative()
        && asked.is_some_and(|asked| amount <= (asked + asked).max(shown.unwrap_or_default()))
}

/// The wanted status without fields that an API server drops where it does not know them, or where
/// their feature is off. They are sent with other changes, but never for themselves: that would be
/// a write for each look.
fn without_dropped(wanted: &Value, now: &Value) -> Value {
    let mut wanted = wanted.clone();
    if let Some(fields) = wanted.as_object_mut() {
        fields.retain(|field, _| {
            !["allocatedResources", "resources", "volumeMounts"].contains(&field.as_str())
                || now.get(field).is_some()
        });
    }
    wanted
}

fn has_ended_for_good(home: &Value, list: &str, container: &Value, status: &Value) -> bool {
    let Some(exit_code) = status
        .pointer("/state/terminated/exitCode")
        .and_then(Value::as_i64)
    else {
        return false;
    };
    if list == EPHEMERAL_CONTAINERS {
        return true;
    }
    if text_at(container, "/restartPolicy") == Some("Always") {
        return false;
    }
    match text_at(home, "/spec/restartPolicy") {
        Some("Never") => true,
        Some("OnFailure") => exit_code == 0,
        _ => false,
    }
}

/// A status without what the API server adds: nulls, empty texts and empty objects.
fn without_empty_fields(value: &Value) -> Value {
    let Value::Object(map) = value else {
        return value.clone();
    };
    let entries = map
        .iter()
        .map(|(key, value)| (key.clone(), without_empty_fields(value)));
    let says_something =
        entries.filter(|(_, value)| !(value.is_null() || value == "" || value == &json!({})));
    Value::Object(says_something.collect())
}
