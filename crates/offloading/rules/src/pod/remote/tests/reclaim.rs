//! Pods whose resources the provider takes back.

use super::*;

/// A pod whose status says that its room is taken back.
fn marked(restart_policy: &str) -> ShadowPodSnapshot {
    snapshot(created(restart_policy, |object| {
        object["status"]["reason"] = OFFER_RECLAIMED.into();
        object["status"]["message"] = "pool default became smaller".into();
    }))
}

fn taken_now() -> PodReclaim {
    PodReclaim::Now("pool default became smaller".into())
}

#[test]
fn a_pod_that_will_end_says_so_until_it_moved_or_may_stay() {
    let mut noticed = snapshot(created("Always", |_| {}));
    noticed.seen = vec![live("u1", "Running")];
    noticed.taken_back = Some(PodReclaim::AfterNotice("the pod ends at noon".into()));
    noticed.refused_change = Some("the image is not allowed".into());
    noticed.applied_generation = Some(noticed.shadow.generation);
    let reported = recorded(decide_shadow_pod(&noticed));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Created, Some(pods::ENDS_SOON))
    );
    assert_eq!(reported.message.as_deref(), Some("the pod ends at noon"));
    let noticed = ShadowPodSnapshot {
        reported,
        ..noticed
    };
    assert_eq!(
        decide_shadow_pod(&noticed),
        ShadowPodStep::Wait,
        "it runs on"
    );
    let leaving = ShadowPodSnapshot {
        seen: vec![going("Running", true, 30)],
        ..noticed.clone()
    };
    assert_ne!(
        recorded(decide_shadow_pod(&leaving)).reason.as_deref(),
        Some(pods::ENDS_SOON),
        "it ends already"
    );
    let kept = ShadowPodSnapshot {
        taken_back: None,
        refused_change: None,
        ..noticed
    };
    assert_eq!(recorded(decide_shadow_pod(&kept)).reason, None);
}

#[test]
fn a_pod_whose_room_is_taken_back_is_marked_then_evicted() {
    let mut reclaimed = snapshot(created("Always", |_| {}));
    let running = Arc::new(RemotePod {
        own_grace: 3600,
        ..(*live("u1", "Running")).clone()
    });
    reclaimed.seen = vec![running.clone()];
    reclaimed.taken_back = Some(taken_now());
    let reported = recorded(decide_shadow_pod(&reclaimed));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Created, Some(OFFER_RECLAIMED))
    );
    reclaimed.reported = reported;
    assert_eq!(
        decide_shadow_pod(&reclaimed),
        ShadowPodStep::Evict(running, 30),
        "no longer than the provider waits for a pod that it ends"
    );
    reclaimed.evicted_uid = Some("u1".into());
    assert_eq!(
        decide_shadow_pod(&reclaimed),
        ShadowPodStep::Wait,
        "once is enough, though the watch does not show it yet"
    );
}

#[test]
fn a_pod_whose_room_was_given_back_in_time_stays() {
    let mut kept = marked("Always");
    kept.seen = vec![live("u1", "Running")];
    let reported = recorded(decide_shadow_pod(&kept));
    assert_eq!(
        (reported.phase, reported.reason),
        (ShadowPodPhase::Created, None)
    );
}

#[test]
fn a_pod_that_ended_because_its_room_was_taken_back_is_not_made_again_but_failed() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut gone = marked(policy);
        assert_eq!(decide_shadow_pod(&gone), ShadowPodStep::ReadLive);
        gone.live = LivePod::Absent;
        let mut ended = marked(policy);
        ended.seen = vec![going("Failed", policy != "Always", 30)];
        for ending in [gone, ended] {
            let reported = recorded(decide_shadow_pod(&ending));
            assert_eq!(
                (reported.phase, reported.reason.as_deref()),
                (ShadowPodPhase::Failed, Some(OFFER_RECLAIMED)),
                "{policy}"
            );
            let status = reported.pod.unwrap().to_value();
            assert_eq!(
                (&status["phase"], &status["reason"]),
                (&json!("Failed"), &json!("Evicted"))
            );
        }
    }
}

#[test]
fn a_pod_that_ran_and_finds_no_room_any_more_has_failed_but_one_that_never_ran_waits() {
    let refusal = || {
        Some(AdmissionRefusal {
            reason: "OfferExceeded",
            message: "cpu: 1 short".into(),
        })
    };
    let mut vanished = snapshot(created("Always", |_| {}));
    vanished.live = LivePod::Absent;
    assert_eq!(
        decide_shadow_pod(&vanished),
        ShadowPodStep::Create,
        "there may be room"
    );
    vanished.refusal = refusal();
    let reported = recorded(decide_shadow_pod(&vanished));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Failed, Some(OFFER_RECLAIMED))
    );
    assert!(reported.message.unwrap().contains("pool default"));
    let mut new = snapshot(shadow("Always", |_| {}));
    new.refusal = refusal();
    assert_eq!(
        recorded(decide_shadow_pod(&new)).phase,
        ShadowPodPhase::Refused
    );
}

#[test]
fn a_job_that_succeeds_while_it_is_evicted_has_succeeded() {
    let mut evicted = marked("Never");
    evicted.seen = vec![going("Succeeded", true, 30)];
    assert_eq!(
        recorded(decide_shadow_pod(&evicted)).phase,
        ShadowPodPhase::Succeeded
    );
}

#[test]
fn a_pod_that_somebody_else_deletes_is_made_again_although_pools_shrink() {
    let mut drained = snapshot(created("Always", |_| {}));
    drained.seen = vec![going("Failed", false, 30)];
    drained.taken_back = Some(taken_now());
    assert_eq!(
        decide_shadow_pod(&drained),
        ShadowPodStep::Wait,
        "its end is not reported"
    );
}

#[test]
fn what_is_taken_back_on_a_node_that_is_gone_ends_at_home() {
    let mut evicted = snapshot(created("Always", |_| {}));
    evicted.seen = vec![going("Running", false, 30)];
    evicted.reported.reason = Some(OFFER_RECLAIMED.to_owned());
    evicted.reported.message = Some("pool default became smaller".to_owned());
    evicted.evicted_uid = Some("u1".to_owned());
    evicted.now = "2026-01-01T00:02:00Z".parse().unwrap();
    let reported = recorded(decide_shadow_pod(&evicted));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Failed, Some(OFFER_RECLAIMED))
    );
}
