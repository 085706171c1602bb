//! The statuses of the containers in the home spec, in the order of a kubelet: by name, and those
//! of init containers as in the spec.

use jiff::Timestamp;
use liqo_quantity::Quantity;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::json::{name, set_at};
use crate::pod::local_status::{is_final, reduce, seconds_timestamp, times};
use crate::views::{
    ContainerList, ContainerStatusView, ContainerView, PodStatusView, PodView, RunningStateView,
    TerminatedStateView, VolumeMountView,
};

/// The list to write at this time, if it differs.
pub fn merged_statuses(
    home: &Value,
    remote: &Value,
    list: ContainerList,
    time: Timestamp,
) -> Option<Vec<Value>> {
    let pod = PodView::of(home);
    let ours = pod.status().statuses_in(list);
    let theirs = PodStatusView::of(remote).statuses_in(list);
    let is_final = is_final(home);
    let mut wanted: Vec<Value> = pod
        .spec()
        .containers_in(list)
        .filter_map(|container| {
            let now = ours
                .clone()
                .find(|status| status.name() == container.name());
            let said = theirs
                .clone()
                .find(|status| status.name() == container.name());
            let said = said.map(|said| {
                with_own_mounts(reduce::reduce_container_status(said.json()), container)
            });
            let said = said.map(|said| with_own_amounts(said, container, now));
            let said = said.map(|said| {
                times::without_future_times(said, now.map(ContainerStatusView::json), time)
            });
            let said_ended = said
                .as_ref()
                .is_some_and(|said| has_ended(ContainerStatusView::of(said)));
            match now {
                // What is recorded of a pod that has ended stays.
                Some(now) if is_final && (has_ended(now) || !said_ended) => {
                    Some(now.json().clone())
                }
                // A container that ended for good cannot run again, and the API server refuses a
                // status that says so.
                Some(now) if !said_ended && has_ended_for_good(pod, list, container, now) => {
                    Some(now.json().clone())
                }
                None if is_final && !said_ended => None,
                _ => said,
            }
        })
        .collect();
    if list != ContainerList::Init {
        // `kubectl` shows the state of the first one that says something.
        wanted.sort_by(|one, other| name(one).cmp(name(other)));
    }
    let same = wanted.len() == ours.len()
        && wanted
            .iter()
            .zip(ours)
            .all(|(wanted, now)| is_shown_by(wanted, now.json()));
    (!same).then_some(wanted)
}

/// Whether the status that stands says the same as the wanted one.
fn is_shown_by(wanted: &Value, now: &Value) -> bool {
    without_empty_fields(&without_dropped(wanted, now)) == without_empty_fields(now)
}

/// The list in which every container that ran has ended, with this reason and message.
pub fn ended_statuses(
    home: &Value,
    list: ContainerList,
    (reason, message): (&str, &str),
    now: Timestamp,
) -> Option<Vec<Value>> {
    let ours = PodView::of(home).status().statuses_in(list);
    if ours.clone().all(has_ended) {
        return None;
    }
    let ended = ours.map(|shown| {
        let mut status = shown.json().clone();
        if !has_ended(shown) {
            let since = shown.state().running().and_then(RunningStateView::started_at);
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
pub fn lack_ends(status: PodStatusView<'_>) -> bool {
    ContainerList::ALL
        .into_iter()
        .flat_map(|list| status.statuses_in(list))
        .any(|one| !has_ended(one))
}

/// A status with the ends of containers that a later one knows; `None` if it knows none.
pub fn with_ends(shown: &Value, later: &Value) -> Option<Value> {
    let mut status = shown.clone();
    let mut is_news = false;
    for list in ContainerList::ALL {
        for one in list.in_status_mut(&mut status) {
            let known = ContainerStatusView::of(one);
            let end = PodStatusView::of(later)
                .statuses_in(list)
                .find(|end| end.name() == known.name() && has_ended(*end));
            if let Some(end) = end.filter(|_| !has_ended(known)) {
                (*one, is_news) = (end.json().clone(), true);
            }
        }
    }
    is_news.then_some(status)
}

fn has_ended(status: ContainerStatusView<'_>) -> bool {
    status.state().terminated().is_some()
}

/// Some mounts of the remote container are not the local one's, such as that of the token which the
/// API server adds.
fn with_own_mounts(mut status: Value, container: ContainerView<'_>) -> Value {
    let Some(fields) = status.as_object_mut() else {
        return status;
    };
    if let Some(Value::Array(mut mounts)) = fields.remove("volumeMounts") {
        mounts.retain(|mount| {
            let mount = VolumeMountView::of(mount);
            container
                .volume_mounts()
                .any(|ours| ours.name() == mount.name() && ours.mount_path() == mount.mount_path())
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
fn with_own_amounts(
    mut status: Value,
    container: ContainerView<'_>,
    now: Option<ContainerStatusView<'_>>,
) -> Value {
    let asked = Some(container.resources().json());
    if let Some(Value::Object(resources)) = status.get_mut("resources") {
        let shown = now.map(|now| now.resources().json());
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
                amount_of(
                    now.map(ContainerStatusView::json),
                    "allocatedResources",
                    resource,
                ),
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

fn has_ended_for_good(
    home: PodView<'_>,
    list: ContainerList,
    container: ContainerView<'_>,
    status: ContainerStatusView<'_>,
) -> bool {
    let ended = status.state().terminated();
    let Some(exit_code) = ended.and_then(TerminatedStateView::exit_code) else {
        return false;
    };
    if list == ContainerList::Ephemeral {
        return true;
    }
    if container.restart_policy() == Some("Always") {
        return false;
    }
    match home.spec().restart_policy() {
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
