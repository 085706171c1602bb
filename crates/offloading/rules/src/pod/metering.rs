//! The charges for the pod of one shadow pod: the facts that the provider records in the status of
//! the shadow pod.
//!
//! They travel with writes of the status that happen anyway. Only a resize, and a pod that is
//! deleted before its first status, cost a write of their own. How the pod ended is stored in a
//! usage record before the shadow pod goes.
//!
//! Two rules limit what a pod is charged whose end nobody saw. After the deletion of its shadow pod
//! it is charged for 30 s at most, see [`ProviderShadowPod::charged_until`]. If it was gone already
//! when this process listed the pods, it is charged until the former process was alive for the last
//! time. The status and the records of a period follow the same rules, so they agree, whichever is
//! written first.

use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::Charge;
use liqo_metering::{Charges, SeenPod, UsageEntry};

use crate::pod::remote_pod::RemotePod;
use crate::pod::reported_status::ReportedStatus;
use crate::pod::shadow_pod::ProviderShadowPod;

/// The facts by which the usage of a tenancy's pods is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Metering {
    /// Whether requests or limits are charged.
    pub charge: Charge,
    /// The end of the last complete period, if its entries say that the pod ran on; otherwise
    /// second 0.
    pub settled: Timestamp,
    /// The pods of former shadow pods of this name are charged until then, and the present one not
    /// before: it may have adopted their pod.
    pub since: Timestamp,
    /// Whether what the pod used is stored.
    pub is_stored: bool,
    /// If this process never saw the recorded pod: when the former process was alive for the last
    /// time.
    pub unwatched_since: Option<Timestamp>,
}

/// The recorded charges. Charges that cannot be read count as none.
fn recorded_charges(reported: &ReportedStatus) -> Charges {
    reported
        .charges
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// The charges after the pod was seen now.
pub fn charges_with_pod(
    charges: &Charges,
    pod: &RemotePod,
    metering: &Metering,
    now: Timestamp,
) -> Charges {
    // A pod that ended without saying when ended before now.
    let ended = pod.end.map(|_| pod.ended_at.unwrap_or(now).as_second());
    let seen = SeenPod {
        created: pod.created.max(metering.since).as_second(),
        ended,
        amounts: pod.charge.charged_amounts(metering.charge),
        settled: metering.settled.as_second(),
    };
    charges.after_seen(&seen, now.as_second())
}

/// The text of charges; `None` if there are none.
pub fn charges_text(charges: &Charges) -> Option<Arc<str>> {
    (!charges.is_empty()).then(|| charges.to_string().into())
}

/// The recorded charges. They have ended if the recorded pod is none of these: then it is gone.
fn charges_ended_if_gone(
    reported: &ReportedStatus,
    pods: &[Arc<RemotePod>],
    metering: &Metering,
    now: Timestamp,
) -> Charges {
    let recorded_uid = reported.remote_uid.as_ref();
    if pods
        .iter()
        .any(|pod| recorded_uid.is_none_or(|uid| pod.uid == *uid))
    {
        recorded_charges(reported)
    } else {
        charges_after_gone(reported, metering, now)
    }
}

/// The text of the charges after `pod`, which is one of these pods, was seen. Without a contract
/// nothing changes.
pub(super) fn charges_after_seen(
    reported: &ReportedStatus,
    pods: &[Arc<RemotePod>],
    pod: &RemotePod,
    metering: Option<&Metering>,
    now: Timestamp,
) -> Option<Arc<str>> {
    let Some(metering) = metering else {
        return reported.charges.clone();
    };
    charges_text(&charges_with_pod(
        &charges_ended_if_gone(reported, pods, metering, now),
        pod,
        metering,
        now,
    ))
}

/// The charges after the recorded pod was found gone.
pub(super) fn charges_after_gone(
    reported: &ReportedStatus,
    metering: &Metering,
    now: Timestamp,
) -> Charges {
    recorded_charges(reported).after_gone(
        now.as_second(),
        metering.unwatched_since.map(Timestamp::as_second),
    )
}

/// The entries, at this time, of a shadow pod that has these pods. Its name is the UID of the local
/// pod.
pub fn usage_entries(
    uid: &str,
    shadow: &ProviderShadowPod,
    pods: &[Arc<RemotePod>],
    metering: &Metering,
    now: Timestamp,
) -> Vec<UsageEntry> {
    let now = shadow.charged_until(now);
    let before = charges_ended_if_gone(&shadow.reported, pods, metering, now);
    let charges = pods.iter().fold(before, |charges, pod| {
        charges_with_pod(&charges, pod, metering, now)
    });
    charges.entries(uid, &shadow.pool, now.as_second())
}

/// The entries, at this time, of a pod whose shadow pod is gone and was never seen.
pub fn orphan_usage_entries(
    uid: &str,
    pod: &RemotePod,
    metering: &Metering,
    now: Timestamp,
) -> Vec<UsageEntry> {
    let charges =
        charges_with_pod(&Charges::default(), pod, metering, now).after_gone(now.as_second(), None);
    charges.entries(uid, &pod.pool, now.as_second())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use liqo_api::ShadowPodPhase;
    use serde_json::json;

    use super::*;
    use crate::fixtures::pod;
    use crate::namespace::mapped::{Destination, DestinationState};
    use crate::pod::remote::{LivePod, ShadowPodSnapshot, ShadowPodStep, decide_shadow_pod};
    use crate::pod::shadow_pod::ProviderShadowPod;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn shadow(deleted: Option<i64>) -> Arc<ProviderShadowPod> {
        let template =
            json!({ "metadata": { "name": "web" }, "spec": { "containers": [] } }).to_string();
        let object = json!({ "metadata": { "name": "home-uid", "generation": 1,
            "deletionTimestamp": deleted.map(|at| second(at).to_string()) },
            "spec": { "namespace": "demo", "pool": "default", "pod": template } });
        Arc::new(ProviderShadowPod::from_shadow_pod(
            serde_json::from_value(object).unwrap(),
        ))
    }

    fn snapshot(deleted: Option<i64>, now: i64) -> ShadowPodSnapshot {
        let metering = Metering {
            charge: Charge::Requests,
            settled: second(0),
            since: second(0),
            is_stored: false,
            unwatched_since: None,
        };
        ShadowPodSnapshot {
            shadow: shadow(deleted),
            reported: ReportedStatus::default(),
            expected_uid: None,
            seen: Vec::new(),
            observed_deletion: false,
            ended_and_gone: None,
            name_taken: false,
            live: LivePod::NotAsked,
            refusal: None,
            destination: Destination {
                namespace: "demo-rome-aaaaaa".into(),
                state: DestinationState::Ready,
            },
            applied_generation: Some(1),
            unreported_for: Duration::from_secs(5),
            taken_back: None,
            pool_nodes: None,
            evicted_uid: None,
            refused_containers: crate::pod::ephemeral::RefusedContainers::default(),
            refused_change: None,
            pending_resize: None,
            resize_retry: None,
            metering: Some(metering),
            now: second(now),
        }
    }

    fn remote(created: i64, change: impl FnOnce(&mut serde_json::Value)) -> Arc<RemotePod> {
        Arc::new(pod("web", "u1", |object| {
            object["metadata"]["creationTimestamp"] = second(created).to_string().into();
            change(object);
        }))
    }

    fn reported(step: ShadowPodStep) -> ReportedStatus {
        let ShadowPodStep::Report(status) = step else {
            panic!("{step:?}")
        };
        status
    }

    #[test]
    fn the_first_status_says_since_when_a_pod_is_charged() {
        let running = ShadowPodSnapshot {
            seen: vec![remote(100, |_| {})],
            ..snapshot(None, 102)
        };
        assert_eq!(
            reported(decide_shadow_pod(&running)).charges.as_deref(),
            Some("100- cpu=1,pods=1")
        );
        let without_contract = ShadowPodSnapshot {
            metering: None,
            ..running
        };
        assert_eq!(reported(decide_shadow_pod(&without_contract)).charges, None);
    }

    #[test]
    fn the_end_in_the_status_ends_the_charge() {
        let ended = remote(100, |object| {
            object["status"] = json!({ "phase": "Failed",
                "containerStatuses": [{ "name": "c", "state": { "terminated": { "finishedAt": second(150).to_string() } } }] });
        });
        let before = ReportedStatus {
            phase: ShadowPodPhase::Created,
            remote_uid: Some("u1".into()),
            charges: Some("100- cpu=1,pods=1".into()),
            ..ReportedStatus::default()
        };
        let status = reported(decide_shadow_pod(&ShadowPodSnapshot {
            seen: vec![ended],
            reported: before,
            ..snapshot(None, 400)
        }));
        assert_eq!(
            (status.phase, status.charges.as_deref()),
            (ShadowPodPhase::Failed, Some("100-150 cpu=1,pods=1"))
        );
    }

    #[test]
    fn what_a_pod_used_is_stored_before_its_record_goes() {
        let reported = ReportedStatus {
            charges: Some("100- cpu=1".into()),
            ..ReportedStatus::default()
        };
        let gone = ShadowPodSnapshot {
            reported,
            expected_uid: Some("u1".into()),
            observed_deletion: true,
            ..snapshot(Some(200), 215)
        };
        let ShadowPodStep::StoreUsage(charges) = decide_shadow_pod(&gone) else {
            panic!("released")
        };
        assert_eq!(charges.to_string(), "100-215 cpu=1");
        let later = ShadowPodSnapshot {
            now: second(900),
            ..gone.clone()
        };
        let ShadowPodStep::StoreUsage(charges) = decide_shadow_pod(&later) else {
            panic!("released")
        };
        assert_eq!(
            charges.to_string(),
            "100-230 cpu=1",
            "not longer than its grace"
        );
        let metering = gone.metering.clone().map(|metering| Metering {
            is_stored: true,
            ..metering
        });
        assert_eq!(
            decide_shadow_pod(&ShadowPodSnapshot {
                metering,
                ..gone.clone()
            }),
            ShadowPodStep::Release
        );
        assert_eq!(
            decide_shadow_pod(&ShadowPodSnapshot {
                metering: None,
                ..gone
            }),
            ShadowPodStep::Release
        );
        assert_eq!(
            decide_shadow_pod(&ShadowPodSnapshot {
                observed_deletion: true,
                ..snapshot(Some(200), 215)
            }),
            ShadowPodStep::Release,
            "it never ran"
        );
    }

    #[test]
    fn a_pod_is_not_deleted_before_it_is_known_since_when_it_is_charged() {
        let unreported = ShadowPodSnapshot {
            seen: vec![remote(100, |_| {})],
            ..snapshot(Some(101), 101)
        };
        let status = reported(decide_shadow_pod(&unreported));
        assert_eq!(status.charges.as_deref(), Some("100- cpu=1,pods=1"));
        let step = decide_shadow_pod(&ShadowPodSnapshot {
            reported: status,
            ..unreported
        });
        assert!(matches!(step, ShadowPodStep::Delete(..)), "{step:?}");
    }

    #[test]
    fn a_pod_that_vanished_is_charged_until_that_was_noticed() {
        let before = ReportedStatus {
            remote_uid: Some("u1".into()),
            charges: Some("100- cpu=1".into()),
            ..ReportedStatus::default()
        };
        let state = DestinationState::NotReady("wait".into());
        let destination = Destination {
            namespace: "demo-rome-aaaaaa".into(),
            state,
        };
        let vanished = ShadowPodSnapshot {
            reported: before,
            expected_uid: Some("u1".into()),
            live: LivePod::Absent,
            destination,
            ..snapshot(None, 300)
        };
        let status = reported(decide_shadow_pod(&vanished));
        assert_eq!(
            (status.phase, status.charges.as_deref()),
            (ShadowPodPhase::Pending, Some("100-300 cpu=1"))
        );
        let metering = unwatched(&vanished, 220);
        let status = reported(decide_shadow_pod(&ShadowPodSnapshot {
            metering,
            ..vanished
        }));
        assert_eq!(
            status.charges.as_deref(),
            Some("100-220 cpu=1"),
            "the manager was down from then on"
        );
    }

    /// The same where this process never saw the recorded pod, and the former one was alive until
    /// this second.
    fn unwatched(snapshot: &ShadowPodSnapshot, since: i64) -> Option<Metering> {
        snapshot.metering.clone().map(|metering| Metering {
            unwatched_since: Some(second(since)),
            ..metering
        })
    }

    fn running_before(charges: &str) -> ReportedStatus {
        ReportedStatus {
            phase: ShadowPodPhase::Created,
            remote_uid: Some("u1".into()),
            charges: Some(charges.into()),
            ..ReportedStatus::default()
        }
    }

    #[test]
    fn a_pod_that_was_created_again_is_not_charged_for_the_time_without_it() {
        let again = Arc::new(pod("web", "u2", |object| {
            object["metadata"]["creationTimestamp"] = second(300).to_string().into();
        }));
        let created = ShadowPodSnapshot {
            reported: running_before("100- cpu=1,pods=1"),
            expected_uid: Some("u1".into()),
            live: LivePod::Ours(again),
            ..snapshot(None, 301)
        };
        let metering = unwatched(&created, 220);
        let status = reported(decide_shadow_pod(&ShadowPodSnapshot {
            metering,
            ..created
        }));
        assert_eq!(
            status.charges.as_deref(),
            Some("100-220 cpu=1,pods=1; 300- cpu=1,pods=1")
        );
    }

    /// The entries at a time, with the shadow pod that was deleted at second 200 or not.
    fn entries_at(
        now: i64,
        deleted: Option<i64>,
        pods: &[Arc<RemotePod>],
        unwatched_since: Option<i64>,
    ) -> Vec<String> {
        let shadow = ProviderShadowPod {
            reported: running_before("100- cpu=1,pods=1"),
            ..ProviderShadowPod::clone(&shadow(deleted))
        };
        let unwatched_since = unwatched_since.map(second);
        let metering = Metering {
            charge: Charge::Requests,
            settled: second(0),
            since: second(0),
            is_stored: false,
            unwatched_since,
        };
        usage_entries("home-uid", &shadow, pods, &metering, second(now))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_pod_that_goes_on_counts_until_now_and_one_that_is_gone_until_it_was_there_for_the_last_time()
     {
        let exists = [remote(100, |_| {})];
        assert_eq!(
            entries_at(900, None, &exists, None),
            ["home-uid default 100 900 cpu=1,pods=1"]
        );
        assert_eq!(
            entries_at(900, None, &[], Some(220)),
            ["home-uid default 100 220 cpu=1,pods=1"]
        );
        assert_eq!(
            entries_at(900, None, &[], None),
            ["home-uid default 100 900 cpu=1,pods=1"],
            "it went a moment ago"
        );
        let again = [Arc::new(pod("web", "u2", |object| {
            object["metadata"]["creationTimestamp"] = second(300).to_string().into();
        }))];
        let both = [
            "home-uid default 100 220 cpu=1,pods=1",
            "home-uid default 300 900 cpu=1,pods=1",
        ];
        assert_eq!(entries_at(900, None, &again, Some(220)), both);
    }

    #[test]
    fn nobody_pays_after_the_grace_of_a_deleted_pod_for_a_node_that_does_not_answer_or_a_manager_that_was_down()
     {
        let until_230 = ["home-uid default 100 230 cpu=1,pods=1"];
        let exists = [remote(100, |_| {})];
        assert_eq!(entries_at(900, Some(200), &exists, None), until_230);
        assert_eq!(entries_at(900, Some(200), &[], Some(500)), until_230);
        assert_eq!(
            entries_at(900, Some(200), &[], Some(150)),
            ["home-uid default 100 150 cpu=1,pods=1"]
        );
        assert_eq!(
            entries_at(210, Some(200), &exists, None),
            ["home-uid default 100 210 cpu=1,pods=1"]
        );
        let ended = remote(100, |object| {
            object["status"] = json!({ "phase": "Failed",
                "containerStatuses": [{ "name": "c", "state": { "terminated": { "finishedAt": second(240).to_string() } } }] });
        });
        assert_eq!(entries_at(900, Some(200), &[ended], None), until_230);
    }

    #[test]
    fn a_pod_that_a_later_shadow_pod_adopted_is_charged_there_only_after_the_former_one() {
        let snapshot = ShadowPodSnapshot {
            seen: vec![remote(100, |_| {})],
            ..snapshot(None, 160)
        };
        let metering = snapshot.metering.clone().map(|metering| Metering {
            since: second(150),
            ..metering
        });
        let status = reported(decide_shadow_pod(&ShadowPodSnapshot {
            metering,
            ..snapshot
        }));
        assert_eq!(status.charges.as_deref(), Some("150- cpu=1,pods=1"));
    }
}
