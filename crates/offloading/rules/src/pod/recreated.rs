//! Remote pods that were deleted at the provider and created again: at home, their containers
//! restarted.
//!
//! The provider writes into an annotation of the new pod what ran before, and adds it to each
//! status that it reports.

use std::collections::BTreeMap;

use jiff::Timestamp;
use liqo_api::annotations;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::json::set_at;
use crate::pod::local_status::seconds_timestamp;
use crate::pod::reported_status::PodStatusText;
use crate::views::{
    ContainerList, ContainerStatusView, PodStatusView, PodView, RunningStateView,
    TerminatedStateView,
};

/// The reason with which the former containers ended.
pub const RECREATED: &str = "RemotePodDeleted";

/// The event's message on the local pod.
pub const RECREATED_MESSAGE: &str =
    "the pod was deleted in the other cluster, which created it again";

/// The exit code of a container that was killed, as a kubelet reports it where it does not know
/// better.
const KILLED: i32 = 137;

/// The history of a container in former pods.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EarlierRuns {
    /// Number of its restarts, including its start in the new pod.
    restart_count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    container_id: Option<String>,
}

/// The annotation of a pod that replaces one with this last status; `None` if no container ran.
pub fn earlier_runs_annotation(last: &PodStatusText) -> Option<String> {
    let last = last.to_value();
    let statuses = ContainerList::OF_NEW_POD
        .into_iter()
        .flat_map(|list| PodStatusView::of(&last).statuses_in(list));
    let ran = statuses.filter_map(|status| {
        let restarts = restart_count(status);
        let (running, ended) = (status.state().running(), status.state().terminated());
        let started_at = running
            .and_then(RunningStateView::started_at)
            .or_else(|| ended.and_then(TerminatedStateView::started_at));
        let runs = EarlierRuns {
            restart_count: restarts.saturating_add(1),
            started_at: started_at.map(str::to_owned),
            container_id: status.container_id().map(str::to_owned),
        };
        let started = restarts > 0 || running.is_some() || ended.is_some();
        started.then(|| (status.name().to_owned(), runs))
    });
    let ran: BTreeMap<String, EarlierRuns> = ran.collect();
    (!ran.is_empty()).then(|| json!(ran).to_string())
}

/// Adds to the reduced status of a pod what its annotation says about former pods.
pub(crate) fn add_earlier_runs(
    status: &mut Value,
    all: Option<&BTreeMap<String, String>>,
    created: Option<Timestamp>,
) {
    let recorded = all.and_then(|all| all.get(annotations::EARLIER_RUNS));
    let Some(earlier) =
        recorded.and_then(|text| serde_json::from_str::<BTreeMap<String, EarlierRuns>>(text).ok())
    else {
        return;
    };
    for list in ContainerList::OF_NEW_POD {
        for status in list.in_status_mut(status) {
            let known = ContainerStatusView::of(status);
            let Some(runs) = earlier.get(known.name()) else {
                continue;
            };
            let restarts = restart_count(known).saturating_add(runs.restart_count.max(0));
            set_at(status, &["restartCount"], restarts);
            if status.get("lastState").is_none() {
                let end = json!({
                    "exitCode": KILLED, "reason": RECREATED, "message": RECREATED_MESSAGE, "containerID": runs.container_id,
                    "startedAt": runs.started_at, "finishedAt": created.map(seconds_timestamp),
                });
                set_at(status, &["lastState"], json!({ "terminated": end }));
            }
        }
    }
}

/// Whether the remote pod was created again, and the local pod does not show it yet.
pub fn is_newly_recreated(home: &Value, remote: &Value) -> bool {
    PodStatusView::of(remote)
        .statuses_in(ContainerList::Main)
        .filter(|status| {
            let end = status.last_state().terminated();
            end.and_then(TerminatedStateView::reason) == Some(RECREATED)
        })
        .any(|status| !shows_last_end(home, status))
}

/// Whether the status at home shows how this container ended last.
fn shows_last_end(home: &Value, status: ContainerStatusView<'_>) -> bool {
    PodView::of(home)
        .status()
        .statuses_in(ContainerList::Main)
        .find(|ours| ours.name() == status.name())
        .is_some_and(|ours| {
            restart_count(ours) >= restart_count(status)
                || last_end_time(ours) == last_end_time(status)
        })
}

fn last_end_time(status: ContainerStatusView<'_>) -> Option<&str> {
    status.last_state().terminated()?.finished_at()
}

fn restart_count(status: ContainerStatusView<'_>) -> i32 {
    status
        .restart_count()
        .and_then(|count| i32::try_from(count).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::pod;

    const THEN: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-01-01T01:00:00Z";

    fn running(restarts: i32) -> Value {
        json!({ "phase": "Running", "containerStatuses": [{ "name": "c", "image": "i", "imageID": "", "containerID": "containerd://a",
            "ready": true, "restartCount": restarts, "state": { "running": { "startedAt": THEN } } }] })
    }

    /// The status of a pod with this own status that replaces one with the last status.
    fn replacement(last: &Value, own: &Value) -> Value {
        let annotation = earlier_runs_annotation(&PodStatusText::from_status(last));
        let pod = pod("web", "u2", |object| {
            object["metadata"]["creationTimestamp"] = NOW.into();
            object["metadata"]["annotations"] =
                annotation.map_or(json!({}), |runs| json!({ annotations::EARLIER_RUNS: runs }));
            object["status"] = own.clone();
        });
        pod.status.to_value()
    }

    #[test]
    fn restarts_count_on_in_a_pod_that_was_created_again() {
        let first = replacement(&running(3), &running(0));
        let status = &first["containerStatuses"][0];
        assert_eq!(status["restartCount"], 4);
        assert_eq!(
            status["lastState"]["terminated"],
            json!({ "exitCode": 137, "reason": RECREATED, "message": RECREATED_MESSAGE, "containerID": "containerd://a",
                "startedAt": THEN, "finishedAt": NOW })
        );
        let again = replacement(&first, &running(0));
        assert_eq!(again["containerStatuses"][0]["restartCount"], 5);
    }

    #[test]
    fn a_later_restart_has_its_own_last_state() {
        let mut own = running(1);
        own["containerStatuses"][0]["lastState"] =
            json!({ "terminated": { "exitCode": 1, "reason": "Error" } });
        let status = replacement(&running(0), &own);
        assert_eq!(status["containerStatuses"][0]["restartCount"], 2);
        assert_eq!(
            status["containerStatuses"][0]["lastState"]["terminated"]["reason"],
            "Error"
        );
    }

    #[test]
    fn a_container_that_never_ran_did_not_restart() {
        let mut waiting = running(0);
        waiting["containerStatuses"][0]["state"] =
            json!({ "waiting": { "reason": "ImagePullBackOff" } });
        assert_eq!(
            earlier_runs_annotation(&PodStatusText::from_status(&waiting)),
            None
        );
        assert_eq!(
            replacement(&waiting, &running(0)),
            replacement(&json!({}), &running(0))
        );
    }

    #[test]
    fn the_owner_is_told_once() {
        let remote = replacement(&running(0), &running(0));
        assert!(is_newly_recreated(
            &json!({ "status": running(0) }),
            &remote
        ));
        assert!(!is_newly_recreated(&json!({ "status": remote }), &remote));
        assert!(
            !is_newly_recreated(&json!({ "status": running(0) }), &running(1)),
            "an ordinary restart"
        );
    }
}
