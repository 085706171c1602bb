use serde_json::json;

use liqo_api::finalizers;
use liqo_api::record_text::{MAX_POD_LEN, MAX_VALUES};

use super::*;
use crate::fixtures::{consumer, pod};
use crate::pod::shadow_pod::MAX_KEPT_LEN;

mod deletion;
mod model;
mod reclaim;

const NAMESPACE: &str = "demo-rome-aaaaaa";

fn shadow(restart_policy: &str, change: impl FnOnce(&mut Value)) -> Arc<ProviderShadowPod> {
    let mut object = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "name": "home-uid", "namespace": "t", "uid": "shadow-uid", "generation": 1, "finalizers": [finalizers::SHADOW_POD] },
        "spec": { "namespace": "demo", "pool": "default",
            "pod": { "metadata": { "name": "web" }, "spec": { "restartPolicy": restart_policy, "containers": [] } } },
    });
    change(&mut object);
    object["spec"]["pod"] = object["spec"]["pod"].to_string().into();
    Arc::new(ProviderShadowPod::from_shadow_pod(
        serde_json::from_value(object).unwrap(),
    ))
}

fn snapshot(shadow: Arc<ProviderShadowPod>) -> ShadowPodSnapshot {
    ShadowPodSnapshot {
        reported: shadow.reported.clone(),
        expected_uid: shadow.reported.remote_uid.clone(),
        shadow,
        seen: Vec::new(),
        observed_deletion: false,
        ended_and_gone: None,
        name_taken: false,
        live: LivePod::NotAsked,
        refusal: None,
        destination: Destination {
            namespace: NAMESPACE.into(),
            state: DestinationState::Ready,
        },
        applied_generation: Some(1),
        unreported_for: Duration::ZERO,
        taken_back: None,
        pool_nodes: None,
        evicted_uid: None,
        refused_containers: RefusedContainers::new(),
        refused_change: None,
        pending_resize: None,
        resize_retry: None,
        metering: None,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn created(restart_policy: &str, change: impl FnOnce(&mut Value)) -> Arc<ProviderShadowPod> {
    shadow(restart_policy, |object| {
        object["status"] =
            json!({ "phase": "Created", "remoteUID": "u1", "pod": { "phase": "Running" } });
        change(object);
    })
}

fn live(uid: &str, phase: &str) -> Arc<RemotePod> {
    Arc::new(pod("web", uid, |object| {
        object["status"]["phase"] = phase.into();
    }))
}

fn going(phase: &str, has_finalizer: bool, grace: i64) -> Arc<RemotePod> {
    Arc::new(pod("web", "u1", |object| {
        object["status"]["phase"] = phase.into();
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        if has_finalizer {
            object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
        }
    }))
}

fn recorded(step: ShadowPodStep) -> ReportedStatus {
    match step {
        ShadowPodStep::Report(reported) => reported,
        other => panic!("nothing was recorded: {other:?}"),
    }
}

#[test]
fn a_new_shadow_pod_gets_its_pod_at_once() {
    assert_eq!(
        decide_shadow_pod(&snapshot(shadow("Always", |_| {}))),
        ShadowPodStep::Create
    );
}

#[test]
fn a_pod_that_somebody_deletes_there_is_not_ready_at_home_while_its_containers_end() {
    let ready = |deleted: bool| {
        Arc::new(pod("web", "u1", |object| {
            object["status"] = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
            }
        }))
    };
    let reported = |pod: Arc<RemotePod>, shadow: Arc<ProviderShadowPod>| {
        let mut snapshot = snapshot(shadow);
        snapshot.seen = vec![pod];
        snapshot.unreported_for = DETAIL_DELAY;
        recorded(decide_shadow_pod(&snapshot))
            .pod
            .unwrap()
            .to_value()["conditions"][0]
            .clone()
    };
    assert_eq!(
        reported(ready(false), shadow("Always", |_| {}))["status"],
        "True"
    );
    let leaving = reported(ready(true), shadow("Always", |_| {}));
    assert_eq!(
        (&leaving["status"], &leaving["reason"]),
        (&json!("False"), &json!(REMOTE_POD_DELETED))
    );
    assert_eq!(
        reported(ready(true), shadow("Never", |_| {}))["status"],
        "False"
    );
}

#[test]
fn a_pod_that_runs_once_is_recorded_at_once_and_one_that_restarts_with_the_next_news() {
    let mut once = snapshot(shadow("Never", |_| {}));
    once.seen = vec![live("u1", "Pending")];
    assert_eq!(
        recorded(decide_shadow_pod(&once)).remote_uid.as_deref(),
        Some("u1")
    );

    let mut restarting = snapshot(shadow("Always", |_| {}));
    restarting.seen = vec![live("u1", "Pending")];
    assert_eq!(
        decide_shadow_pod(&restarting),
        ShadowPodStep::WaitToReport(DETAIL_DELAY)
    );
    restarting.unreported_for = DETAIL_DELAY;
    assert_eq!(
        recorded(decide_shadow_pod(&restarting))
            .remote_uid
            .as_deref(),
        Some("u1")
    );
    restarting.unreported_for = Duration::ZERO;
    restarting.seen = vec![live("u1", "Running")];
    assert_eq!(
        recorded(decide_shadow_pod(&restarting)).phase,
        ShadowPodPhase::Created
    );
}

#[test]
fn a_pod_that_was_created_before_a_crash_is_found_by_its_label() {
    let mut after_crash = snapshot(shadow("OnFailure", |_| {}));
    after_crash.seen = vec![live("u1", "Running")];
    assert_eq!(
        recorded(decide_shadow_pod(&after_crash))
            .remote_uid
            .as_deref(),
        Some("u1")
    );
    // The same if the watch does not show it yet, but the API server did when creation failed.
    after_crash.seen = Vec::new();
    after_crash.live = LivePod::Ours(live("u1", "Running"));
    assert_eq!(
        recorded(decide_shadow_pod(&after_crash))
            .remote_uid
            .as_deref(),
        Some("u1")
    );
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let mut settled = snapshot(created("Always", |_| {}));
    settled.seen = vec![live("u1", "Running")];
    assert_eq!(decide_shadow_pod(&settled), ShadowPodStep::Wait);
}

#[test]
fn details_wait_for_news_but_not_for_ever() {
    let mut detail = snapshot(created("Always", |_| {}));
    let with_ip = pod("web", "u1", |object| {
        object["status"] = json!({ "phase": "Running", "podIP": "10.0.0.1" });
    });
    detail.seen = vec![Arc::new(with_ip)];
    assert_eq!(
        decide_shadow_pod(&detail),
        ShadowPodStep::WaitToReport(DETAIL_DELAY)
    );
    detail.unreported_for = DETAIL_DELAY;
    assert!(recorded(decide_shadow_pod(&detail)).pod.is_some());
}

#[test]
fn readiness_restarts_and_a_container_that_cannot_start_are_told_at_once() {
    let ready =
        json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
    let restarted = json!({ "phase": "Running", "containerStatuses": [{ "name": "c", "restartCount": 1, "state": { "running": {} } }] });
    let no_image = json!({ "phase": "Running", "containerStatuses": [
        { "name": "c", "restartCount": 0, "state": { "waiting": { "reason": "ImagePullBackOff" } } }] });
    for status in [ready, restarted, no_image] {
        let mut news = snapshot(created("Always", |_| {}));
        news.seen = vec![Arc::new(pod("web", "u1", |object| {
            object["status"] = status.clone();
        }))];
        recorded(decide_shadow_pod(&news));
    }
    let mut starting = snapshot(created("Always", |object| {
        object["status"]["pod"]["phase"] = "Pending".into();
    }));
    starting.seen = vec![Arc::new(pod("web", "u1", |object| {
        object["status"] = json!({ "phase": "Pending", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [
            { "name": "c", "restartCount": 0, "state": { "waiting": { "reason": "ContainerCreating" } } }] });
    }))];
    assert_eq!(
        decide_shadow_pod(&starting),
        ShadowPodStep::WaitToReport(DETAIL_DELAY)
    );
}

#[test]
fn the_final_status_is_recorded_before_the_finalizer_goes() {
    let ended = Arc::new(pod("web", "u1", |object| {
        object["status"]["phase"] = "Succeeded".into();
        object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
    }));
    let mut ending = snapshot(created("Never", |_| {}));
    ending.seen = vec![ended.clone()];
    let reported = recorded(decide_shadow_pod(&ending));
    assert_eq!(reported.phase, ShadowPodPhase::Succeeded);
    ending.reported = reported;
    assert_eq!(
        decide_shadow_pod(&ending),
        ShadowPodStep::StripFinalizer(ended)
    );
    ending.seen = vec![live("u1", "Succeeded")];
    assert_eq!(
        decide_shadow_pod(&ending),
        ShadowPodStep::Wait,
        "its logs stay readable"
    );
}

#[test]
fn a_finished_pod_never_runs_again() {
    for phase in ["Succeeded", "Failed", "Lost"] {
        for policy in ["Always", "OnFailure", "Never"] {
            let mut gone = snapshot(created(policy, |object| {
                object["status"]["phase"] = phase.into();
            }));
            for answer in [LivePod::NotAsked, LivePod::Absent, LivePod::OtherOwner] {
                gone.live = answer;
                assert_eq!(
                    decide_shadow_pod(&gone),
                    ShadowPodStep::Wait,
                    "{phase} {policy}"
                );
            }
        }
    }
}

#[test]
fn whether_a_pod_is_gone_is_asked_of_the_api_server() {
    for policy in ["Always", "Never"] {
        let missing = snapshot(created(policy, |_| {}));
        assert_eq!(
            decide_shadow_pod(&missing),
            ShadowPodStep::ReadLive,
            "{policy}"
        );
    }
    let mut late = snapshot(created("Never", |_| {}));
    late.live = LivePod::Ours(live("u1", "Running"));
    assert_eq!(
        decide_shadow_pod(&late),
        ShadowPodStep::Wait,
        "the watch was late"
    );
}

#[test]
fn a_vanished_pod_is_made_again_only_if_it_restarts_always() {
    for answer in [LivePod::Absent, LivePod::OtherOwner] {
        let mut once = snapshot(created("OnFailure", |_| {}));
        once.live = answer;
        let reported = recorded(decide_shadow_pod(&once));
        assert_eq!(
            (reported.phase, reported.reason.as_deref()),
            (ShadowPodPhase::Lost, Some(REMOTE_POD_LOST))
        );
        assert_eq!(reported.remote_uid.as_deref(), Some("u1"));
    }
    let mut always = snapshot(created("Always", |_| {}));
    always.live = LivePod::Absent;
    assert_eq!(decide_shadow_pod(&always), ShadowPodStep::Create);
}

#[test]
fn a_pod_of_the_same_name_is_never_taken_for_ours() {
    let mut taken = snapshot(shadow("Always", |_| {}));
    taken.name_taken = true;
    let reported = recorded(decide_shadow_pod(&taken));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Pending, Some(NAME_TAKEN))
    );
    taken.reported = reported;
    assert_eq!(
        decide_shadow_pod(&taken),
        ShadowPodStep::ReadLive,
        "it may be gone by now"
    );
    taken.live = LivePod::OtherOwner;
    assert_eq!(
        decide_shadow_pod(&taken),
        ShadowPodStep::WaitFor(NAME_TAKEN_RETRY)
    );
    taken.name_taken = false;
    taken.live = LivePod::Absent;
    assert_eq!(decide_shadow_pod(&taken), ShadowPodStep::Create);
}

#[test]
fn a_refused_pod_is_told_once_why() {
    let mut refused = snapshot(shadow("Always", |_| {}));
    refused.refusal = Some(AdmissionRefusal {
        reason: "OfferExceeded",
        message: "cpu: 1 short".into(),
    });
    let reported = recorded(decide_shadow_pod(&refused));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Refused, Some("OfferExceeded"))
    );
    refused.reported = reported;
    assert_eq!(decide_shadow_pod(&refused), ShadowPodStep::Wait);
    refused.refusal = Some(AdmissionRefusal {
        reason: "OfferExceeded",
        message: "cpu: 2 short".into(),
    });
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::WaitToReport(WORDS_DELAY)
    );
    refused.unreported_for = WORDS_DELAY;
    assert!(
        recorded(decide_shadow_pod(&refused))
            .message
            .unwrap()
            .contains("2 short")
    );
    refused.refusal = None;
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::Create,
        "it is tried again when something changes"
    );
}

#[test]
fn without_a_namespace_a_pod_waits_and_says_so() {
    for state in [
        DestinationState::NotReady("soon".into()),
        DestinationState::Unwanted,
    ] {
        let mut early = snapshot(shadow("Always", |_| {}));
        early.destination.state = state;
        let reported = recorded(decide_shadow_pod(&early));
        assert_eq!(
            (reported.phase, reported.reason.as_deref()),
            (ShadowPodPhase::Pending, Some(NAMESPACE_NOT_READY))
        );
        early.reported = reported;
        assert_eq!(decide_shadow_pod(&early), ShadowPodStep::Wait);
    }
}

#[test]
fn a_changed_pod_is_brought_up_to_date_once() {
    let mut changed = snapshot(created("Always", |object| {
        object["metadata"]["generation"] = 2.into();
    }));
    let running = live("u1", "Running");
    changed.seen = vec![running.clone()];
    assert_eq!(decide_shadow_pod(&changed), ShadowPodStep::Update(running));
    changed.applied_generation = Some(2);
    assert_eq!(decide_shadow_pod(&changed), ShadowPodStep::Wait);
}

#[test]
fn a_shadow_pod_of_a_strange_shape_is_refused_and_can_be_deleted() {
    let strange = |deleted: bool| {
        shadow("Always", |object| {
            object["spec"]["pod"] = json!({ "metadata": 3, "spec": [] });
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
        })
    };
    assert_eq!(
        recorded(decide_shadow_pod(&snapshot(strange(false))))
            .reason
            .as_deref(),
        Some("Invalid")
    );
    assert_eq!(
        decide_shadow_pod(&snapshot(strange(true))),
        ShadowPodStep::Release
    );
}

#[test]
fn a_record_that_is_too_large_is_refused_with_the_reason_and_not_kept() {
    let refused = |change: &dyn Fn(&mut Value)| {
        let shadow = shadow("Always", |object| change(&mut object["spec"]["pod"]));
        assert_eq!(
            (
                shadow.pod.as_ref(),
                shadow.charge.as_ref(),
                shadow.pod_name.as_str()
            ),
            (None, None, "")
        );
        recorded(decide_shadow_pod(&snapshot(shadow)))
            .message
            .unwrap_or_default()
    };
    let long = refused(&|pod| pod["spec"]["padding"] = "x".repeat(MAX_POD_LEN).into());
    assert!(long.contains("at most 73728 bytes travel"), "{long}");
    let tiny = refused(&|pod| pod["spec"]["containers"] = vec![0; MAX_VALUES].into());
    assert!(tiny.contains("more than 10000 values"), "{tiny}");
}

#[test]
fn a_pod_that_names_many_resources_waits_for_no_room() {
    let many: serde_json::Map<String, Value> = (0..1000)
        .map(|n| (format!("example.com/r{n}"), "1".into()))
        .collect();
    let shadow = shadow("Always", |object| {
        object["spec"]["pod"]["spec"]["containers"] =
            json!([{ "name": "c", "resources": { "limits": many } }]);
    });
    assert_eq!(shadow.charge, None);
}

#[test]
fn a_name_that_is_none_never_becomes_part_of_a_request() {
    for name in ["../../secrets/x", "a/b", "..", "Web"] {
        let strange = shadow("Always", |object| {
            object["spec"]["pod"]["metadata"]["name"] = name.into();
        });
        assert_eq!(strange.pod_name, "");
        assert_eq!(
            recorded(decide_shadow_pod(&snapshot(strange)))
                .reason
                .as_deref(),
            Some("Invalid"),
            "{name}"
        );
    }
}

#[test]
fn what_a_waiting_pod_asks_for_is_known_before_it_is_looked_at() {
    let asks = |cpu: &str| {
        shadow("Always", |object| {
            object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["spec"]["pod"]["spec"]["containers"] =
                json!([{ "name": "c", "resources": { "requests": { "cpu": cpu } } }]);
        })
    };
    let request = asks("2")
        .admission_request(&Key::new("t", "home-uid"))
        .unwrap();
    assert_eq!(
        (
            request.charge.requests.get("cpu").to_string(),
            request.turn.uid.as_str()
        ),
        ("2".into(), "home-uid")
    );
    assert_eq!(request.turn.created.to_string(), "2026-01-01T00:00:00Z");
    assert_eq!(
        asks("-2").admission_request(&Key::new("t", "home-uid")),
        None,
        "it would make room for others"
    );
    assert_eq!(
        created("Always", |_| {}).admission_request(&Key::new("t", "home-uid")),
        None
    );
}

#[test]
fn a_pod_that_is_large_is_not_kept() {
    let padded = |bytes: usize| {
        shadow("Always", |object| {
            object["spec"]["pod"]["metadata"]["padding"] = "x".repeat(bytes).into();
        })
    };
    assert!(padded(1000).pod.is_some());
    assert!(padded(MAX_KEPT_LEN).pod.is_none());
}

#[test]
fn a_refused_ephemeral_container_is_reported_at_once() {
    let mut refused = snapshot(created("Always", |_| {}));
    refused.seen = vec![live("u1", "Running")];
    refused
        .refused_containers
        .insert("debug".into(), "violates PodSecurity".into());
    let status = recorded(decide_shadow_pod(&refused))
        .pod
        .unwrap()
        .to_value();
    assert_eq!(
        status["ephemeralContainerStatuses"][0]["state"]["terminated"]["reason"],
        "NotAllowed"
    );
    refused.reported.pod = Some(PodStatusText::from_status(&status));
    assert_eq!(decide_shadow_pod(&refused), ShadowPodStep::Wait);
}

#[test]
fn a_refused_change_is_told_until_the_next_record_is_judged() {
    let mut refused = snapshot(created("Always", |_| {}));
    refused.seen = vec![live("u1", "Running")];
    refused.refused_change = Some("the image is not allowed".into());
    let told = recorded(decide_shadow_pod(&refused));
    assert_eq!(
        told.reason.as_deref().zip(told.message.as_deref()),
        Some(("ChangeRefused", "the image is not allowed"))
    );
    refused.reported = told;
    assert_eq!(decide_shadow_pod(&refused), ShadowPodStep::Wait);
    // The manager was started again, or the pod or the policy changed: nobody has judged it yet.
    refused.refused_change = None;
    refused.applied_generation = None;
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::Update(live("u1", "Running"))
    );
    refused.applied_generation = Some(1);
    assert_eq!(recorded(decide_shadow_pod(&refused)).reason, None);
}

#[test]
fn a_resize_that_was_refused_is_reported_and_tried_again_when_it_is_due() {
    let mut refused = snapshot(created("Always", |_| {}));
    refused.seen = vec![live("u1", "Running")];
    refused.resize_retry = Some(REFUSED_RETRY);
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::WaitFor(REFUSED_RETRY),
        "there is nothing to report"
    );
    refused.pending_resize = Some(PendingResize::deferred("pool default is too small"));
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::WaitToReport(DETAIL_DELAY)
    );
    refused.resize_retry = None;
    refused.unreported_for = DETAIL_DELAY;
    let status = recorded(decide_shadow_pod(&refused)).pod.unwrap();
    assert_eq!(status.to_value()["conditions"][0]["reason"], "Deferred");
    refused.reported.pod = Some(status);
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::Wait,
        "only room makes it possible"
    );
    refused.resize_retry = Some(REFUSED_RETRY);
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::WaitFor(REFUSED_RETRY)
    );
    refused.resize_retry = Some(Duration::ZERO);
    assert_eq!(
        decide_shadow_pod(&refused),
        ShadowPodStep::Update(live("u1", "Running"))
    );
    // A pod that has ended or is going is not resized.
    refused.seen = vec![going("Running", false, 30)];
    assert!(
        matches!(decide_shadow_pod(&refused), ShadowPodStep::WaitFor(_)),
        "until it is given up"
    );
    refused.seen = vec![live("u1", "Failed")];
    assert_eq!(
        recorded(decide_shadow_pod(&refused))
            .pod
            .unwrap()
            .to_value()
            .get("conditions"),
        None
    );
}
