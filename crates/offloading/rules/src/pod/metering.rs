//! What the pod of one shadow pod is charged: the facts that the provider records in the status of the shadow pod.
//!
//! They travel with writes of the status that happen anyway. Only a resize, and a pod that is deleted before its first status, cost a
//! write of their own. How the pod ended is stored in a usage record before the shadow pod goes.

use std::sync::Arc;

use jiff::Timestamp;
use liqo_api::Charge;
use liqo_metering::{Charges, SeenPod};

use crate::pod::remote_pod::RemotePod;
use crate::pod::reported_status::ReportedStatus;

/// How what the pods of a tenancy use is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Metering {
    /// Whether requests or limits are charged.
    pub charge: Charge,
    /// The end of the last period whose entries are complete.
    pub settled: Timestamp,
    /// Whether what the pod used is stored.
    pub is_stored: bool,
}

/// The recorded charges. Charges that cannot be read count as none.
pub fn charges(reported: &ReportedStatus) -> Charges {
    reported.charges.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The charges after the pod was seen now.
pub fn with_pod(charges: &Charges, pod: &RemotePod, metering: &Metering, now: Timestamp) -> Charges {
    // A pod that ended without saying when ended before now.
    let ended = pod.end.map(|_| pod.ended_at.unwrap_or(now).as_second());
    let seen = SeenPod {
        created: pod.created.as_second(),
        ended,
        amounts: pod.charge.charged(metering.charge),
        settled: metering.settled.as_second(),
    };
    charges.seen(&seen, now.as_second())
}

/// The text of charges; `None` if there are none.
pub fn text(charges: &Charges) -> Option<Arc<str>> {
    (!charges.is_empty()).then(|| charges.to_string().into())
}

/// The text of the charges after the pod was seen. Without a contract nothing changes.
pub(super) fn seen(reported: &ReportedStatus, pod: &RemotePod, metering: Option<&Metering>, now: Timestamp) -> Option<Arc<str>> {
    let Some(metering) = metering else { return reported.charges.clone() };
    text(&with_pod(&charges(reported), pod, metering, now))
}

/// The charges after the pod was found gone, whose grace was over at the time `due`.
pub(super) fn gone(reported: &ReportedStatus, metering: &Metering, due: Option<Timestamp>, now: Timestamp) -> Charges {
    charges(reported).gone(now.as_second(), due.map(Timestamp::as_second), metering.settled.as_second())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use liqo_api::ShadowPodPhase;
    use serde_json::json;

    use super::*;
    use crate::fixtures::pod;
    use crate::namespace::mapped::{Destination, DestinationState};
    use crate::pod::remote::{Live, Snapshot, Step, decide};
    use crate::pod::shadow_pod::Shadow;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn shadow(deleted: Option<i64>) -> Arc<Shadow> {
        let template = json!({ "metadata": { "name": "web" }, "spec": { "containers": [] } }).to_string();
        let object = json!({ "metadata": { "name": "home-uid", "generation": 1,
            "deletionTimestamp": deleted.map(|at| second(at).to_string()) },
            "spec": { "namespace": "demo", "pool": "default", "pod": template } });
        Arc::new(Shadow::reduce(serde_json::from_value(object).unwrap()))
    }

    fn snapshot(deleted: Option<i64>, now: i64) -> Snapshot {
        let metering = Metering { charge: Charge::Requests, settled: second(0), is_stored: false };
        Snapshot {
            shadow: shadow(deleted),
            reported: ReportedStatus::default(),
            expected_uid: None,
            seen: Vec::new(),
            observed_deletion: false,
            name_taken: false,
            live: Live::NotAsked,
            refusal: None,
            destination: Destination { namespace: "demo-rome-aaaaaa".into(), state: DestinationState::Ready },
            applied_generation: Some(1),
            unreported_for: Duration::from_secs(5),
            reclaim: None,
            pool_nodes: None,
            evicted_uid: None,
            refused_containers: crate::pod::ephemeral::RefusedContainers::default(),
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

    fn reported(step: Step) -> ReportedStatus {
        let Step::Report(status) = step else { panic!("{step:?}") };
        status
    }

    #[test]
    fn the_first_status_says_since_when_a_pod_is_charged() {
        let running = Snapshot { seen: vec![remote(100, |_| {})], ..snapshot(None, 102) };
        assert_eq!(reported(decide(&running)).charges.as_deref(), Some("100- cpu=1,pods=1"));
        let without_contract = Snapshot { metering: None, ..running };
        assert_eq!(reported(decide(&without_contract)).charges, None);
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
        let status = reported(decide(&Snapshot { seen: vec![ended], reported: before, ..snapshot(None, 400) }));
        assert_eq!((status.phase, status.charges.as_deref()), (ShadowPodPhase::Failed, Some("100-150 cpu=1,pods=1")));
    }

    #[test]
    fn what_a_pod_used_is_stored_before_its_record_goes() {
        let reported = ReportedStatus { charges: Some("100- cpu=1".into()), ..ReportedStatus::default() };
        let gone = Snapshot { reported, expected_uid: Some("u1".into()), observed_deletion: true, ..snapshot(Some(200), 215) };
        let Step::StoreUsage(charges) = decide(&gone) else { panic!("released") };
        assert_eq!(charges.to_string(), "100-215 cpu=1");
        let later = Snapshot { now: second(900), ..gone.clone() };
        let Step::StoreUsage(charges) = decide(&later) else { panic!("released") };
        assert_eq!(charges.to_string(), "100-230 cpu=1", "not longer than its grace");
        let metering = gone.metering.clone().map(|metering| Metering { is_stored: true, ..metering });
        assert_eq!(decide(&Snapshot { metering, ..gone.clone() }), Step::Release);
        assert_eq!(decide(&Snapshot { metering: None, ..gone }), Step::Release);
        assert_eq!(decide(&Snapshot { observed_deletion: true, ..snapshot(Some(200), 215) }), Step::Release, "it never ran");
    }

    #[test]
    fn a_pod_is_not_deleted_before_it_is_known_since_when_it_is_charged() {
        let unreported = Snapshot { seen: vec![remote(100, |_| {})], ..snapshot(Some(101), 101) };
        let status = reported(decide(&unreported));
        assert_eq!(status.charges.as_deref(), Some("100- cpu=1,pods=1"));
        let step = decide(&Snapshot { reported: status, ..unreported });
        assert!(matches!(step, Step::Delete(..)), "{step:?}");
    }

    #[test]
    fn a_pod_that_vanished_is_charged_until_that_was_noticed() {
        let before =
            ReportedStatus { remote_uid: Some("u1".into()), charges: Some("100- cpu=1".into()), ..ReportedStatus::default() };
        let state = DestinationState::NotReady("wait".into());
        let destination = Destination { namespace: "demo-rome-aaaaaa".into(), state };
        let vanished = Snapshot {
            reported: before,
            expected_uid: Some("u1".into()),
            live: Live::Absent,
            destination,
            ..snapshot(None, 300)
        };
        let status = reported(decide(&vanished));
        assert_eq!((status.phase, status.charges.as_deref()), (ShadowPodPhase::Pending, Some("100-300 cpu=1")));
    }
}
