//! How remote pods end: the grace that they get, and who waits for what.

use super::*;

#[test]
fn a_pod_that_somebody_deletes_here_has_not_ended_for_its_owner_if_it_will_be_made_again() {
    let mut drained = snapshot(created("Always", |_| {}));
    drained.seen = vec![going("Failed", false, 30)];
    assert_eq!(decide_shadow_pod(&drained), ShadowPodStep::Wait);
    let mut evicted = snapshot(created("Always", |_| {}));
    evicted.seen = vec![live("u1", "Failed")];
    assert_eq!(
        recorded(decide_shadow_pod(&evicted)).phase,
        ShadowPodPhase::Failed
    );
    let mut once = snapshot(created("Never", |_| {}));
    once.seen = vec![going("Failed", true, 30)];
    assert_eq!(
        recorded(decide_shadow_pod(&once)).phase,
        ShadowPodPhase::Failed
    );
}

#[test]
fn a_pod_that_never_got_a_node_does_not_wait_for_a_kubelet_to_end_it() {
    let never_placed = Arc::new(pod("web", "u1", |object| {
        object["spec"]["nodeName"] = Value::Null;
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
    }));
    for shadow in [
        created("Never", |_| {}),
        created("Never", |object| {
            object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 30 });
        }),
    ] {
        let mut stuck = snapshot(shadow);
        stuck.seen = vec![never_placed.clone()];
        if stuck.shadow.deletion_grace.is_none() {
            // It never ran: its owner waits again, and does not learn that it is lost.
            stuck.reported = recorded(decide_shadow_pod(&stuck));
            assert_eq!(stuck.reported, ReportedStatus::default());
        }
        assert_eq!(
            decide_shadow_pod(&stuck),
            ShadowPodStep::StripFinalizer(never_placed.clone())
        );
    }
}

#[test]
fn a_pod_that_waits_for_nodes_which_its_pool_has_no_longer_is_created_again_also_if_it_may_run_only_once()
 {
    let waiting = |change: &dyn Fn(&mut Value)| {
        Arc::new(pod("web", "u1", |object| {
            object["spec"]["nodeName"] = Value::Null;
            object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["annotations"] =
                json!({ liqo_api::annotations::POOL_NODES: "before" });
            object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
            change(object);
        }))
    };
    let at = |pod: &Arc<RemotePod>, nodes: Option<&str>, second: i64| {
        let mut snapshot = snapshot(created("Never", |_| {}));
        snapshot.reported = snapshot.status_of(pod);
        snapshot.seen = vec![pod.clone()];
        snapshot.pool_nodes = nodes.map(str::to_owned);
        snapshot.now = Timestamp::from_second(snapshot.now.as_second() + second).unwrap();
        snapshot
    };
    let pod = waiting(&|_| {});
    assert_eq!(
        decide_shadow_pod(&at(&pod, Some("before"), 60)),
        ShadowPodStep::Wait
    );
    assert_eq!(
        decide_shadow_pod(&at(&pod, None, 60)),
        ShadowPodStep::Wait,
        "without an offer no other pod could be created"
    );
    assert_eq!(
        decide_shadow_pod(&at(&pod, Some("now"), 3)),
        ShadowPodStep::WaitFor(Duration::from_secs(7))
    );
    let mut outdated = at(&pod, Some("now"), 60);
    outdated.reported = recorded(decide_shadow_pod(&outdated));
    assert_eq!(outdated.reported, ReportedStatus::default());
    assert_eq!(
        decide_shadow_pod(&outdated),
        ShadowPodStep::DeleteUnscheduled(pod.clone())
    );
    let gone = ShadowPodSnapshot {
        seen: Vec::new(),
        expected_uid: None,
        ..outdated
    };
    assert_eq!(
        decide_shadow_pod(&gone),
        ShadowPodStep::Create,
        "not lost: it never ran"
    );

    let placed = waiting(&|object| object["spec"]["nodeName"] = "n1".into());
    assert_eq!(
        decide_shadow_pod(&at(&placed, Some("now"), 60)),
        ShadowPodStep::Wait,
        "a pod that has a node stays there"
    );
    let older = waiting(&|object| object["metadata"]["annotations"] = json!({}));
    assert_eq!(
        decide_shadow_pod(&at(&older, Some("now"), 60)),
        ShadowPodStep::Wait,
        "nobody knows what it waits for"
    );
    let reclaimed = ShadowPodSnapshot {
        taken_back: Some(PodReclaim::Now("too small".into())),
        ..at(&pod, Some("now"), 60)
    };
    assert!(
        matches!(decide_shadow_pod(&reclaimed), ShadowPodStep::Report(status) if status.reason.is_some()),
        "it could not be created again"
    );
}

#[test]
fn a_run_once_pod_behind_this_cluster_is_held_until_its_end_is_known_however_it_is_deleted() {
    let with = |phase: &str, grace: i64| {
        Arc::new(pod("web", "u1", |object| {
            object["spec"]["nodeName"] = "turin".into();
            object["spec"]["tolerations"] =
                json!([{ "key": liqo_api::pods::VIRTUAL_NODE_TAINT, "operator": "Exists" }]);
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
            object["status"] = json!({ "phase": phase });
        }))
    };
    for shadow in [
        created("Never", |_| {}),
        created("Never", |object| {
            object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 30 });
        }),
    ] {
        let mut deleted = snapshot(shadow);
        for (phase, grace) in [("Pending", 0), ("Running", 0), ("Running", 30)] {
            deleted.seen = vec![with(phase, grace)];
            assert!(
                !matches!(
                    decide_shadow_pod(&deleted),
                    ShadowPodStep::StripFinalizer(_)
                ),
                "it may still run at turin: {phase} {grace}"
            );
        }
        // The virtual node shows that the pod there is gone.
        let failed = with("Failed", 0);
        deleted.seen = vec![failed.clone()];
        let ShadowPodStep::Report(status) = decide_shadow_pod(&deleted) else {
            panic!("its end is recorded")
        };
        assert_eq!(status.phase, ShadowPodPhase::Failed);
        deleted.reported = status;
        assert_eq!(
            decide_shadow_pod(&deleted),
            ShadowPodStep::StripFinalizer(failed)
        );
    }
}

#[test]
fn a_deletion_that_was_interrupted_is_repeated_unless_a_kubelet_does_that() {
    let with = |node: Value, held: bool| {
        Arc::new(pod("web", "u1", |object| {
            object["spec"]["nodeName"] = node;
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            object["metadata"]["finalizers"] = if held {
                json!([finalizers::FINAL_STATUS])
            } else {
                Value::Null
            };
        }))
    };
    let mut ending = snapshot(created("Always", |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }));
    let (half_deleted, held) = (with(Value::Null, false), with(Value::Null, true));
    ending.seen = vec![half_deleted.clone()];
    assert_eq!(
        decide_shadow_pod(&ending),
        ShadowPodStep::Delete(half_deleted.clone(), Some(30))
    );
    assert_eq!(
        decide_orphan(&half_deleted),
        ShadowPodStep::Delete(half_deleted, Some(30))
    );
    ending.seen = vec![held.clone()];
    assert_eq!(
        decide_shadow_pod(&ending),
        ShadowPodStep::StripFinalizer(held)
    );
    ending.seen = vec![with("n1".into(), false)];
    assert_eq!(decide_shadow_pod(&ending), ShadowPodStep::Wait);
}

#[test]
fn the_wanted_grace_is_given_and_may_be_shortened_but_not_lengthened() {
    let wanted = |grace: i64| {
        created("Always", |object| {
            object["spec"]["deletion"] = json!({ "gracePeriodSeconds": grace });
        })
    };
    let mut deletion = snapshot(wanted(20));
    let running = live("u1", "Running");
    deletion.seen = vec![running.clone()];
    assert_eq!(
        decide_shadow_pod(&deletion),
        ShadowPodStep::Delete(running, Some(20))
    );
    let leaving = going("Running", false, 20);
    deletion.seen = vec![leaving.clone()];
    assert_eq!(decide_shadow_pod(&deletion), ShadowPodStep::Wait);
    deletion.shadow = wanted(60);
    assert_eq!(decide_shadow_pod(&deletion), ShadowPodStep::Wait);
    deletion.shadow = wanted(5);
    assert_eq!(
        decide_shadow_pod(&deletion),
        ShadowPodStep::Delete(leaving, Some(5))
    );
}

#[test]
fn a_shadow_pod_goes_only_after_its_pod_is_known_to_be_gone() {
    let mut deletion = snapshot(created("Always", |object| {
        object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 20 });
    }));
    assert_eq!(
        decide_shadow_pod(&deletion),
        ShadowPodStep::ReadLive,
        "the watch may be late"
    );
    deletion.live = LivePod::Ours(live("u1", "Running"));
    assert!(matches!(
        decide_shadow_pod(&deletion),
        ShadowPodStep::Delete(_, Some(20))
    ));
    deletion.live = LivePod::Ours(going("Running", false, 20));
    assert_eq!(
        decide_shadow_pod(&deletion),
        ShadowPodStep::WaitFor(UNSEEN_RETRY),
        "an interrupted watch may never show it"
    );
    for answer in [LivePod::Absent, LivePod::OtherOwner] {
        deletion.live = answer;
        assert_eq!(decide_shadow_pod(&deletion), ShadowPodStep::Release);
    }
    deletion.live = LivePod::NotAsked;
    deletion.observed_deletion = true;
    assert_eq!(decide_shadow_pod(&deletion), ShadowPodStep::Release);
}

#[test]
fn the_end_of_a_job_that_is_being_deleted_is_recorded_unless_nobody_reads_it() {
    let job = going("Failed", true, 20);
    let mut wanted = snapshot(created("Never", |object| {
        object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 20 });
    }));
    wanted.seen = vec![job.clone()];
    wanted.reported = recorded(decide_shadow_pod(&wanted));
    assert_eq!(wanted.reported.phase, ShadowPodPhase::Failed);
    assert_eq!(
        decide_shadow_pod(&wanted),
        ShadowPodStep::StripFinalizer(job)
    );

    let still_running = going("Running", true, 0);
    let mut forced = snapshot(created("Never", |object| {
        object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 0 });
    }));
    forced.seen = vec![still_running.clone()];
    assert_eq!(
        decide_shadow_pod(&forced),
        ShadowPodStep::StripFinalizer(still_running)
    );

    let leaving = going("Running", true, 30);
    let mut deleted = snapshot(created("Never", |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }));
    deleted.seen = vec![live("u1", "Running")];
    assert!(matches!(
        decide_shadow_pod(&deleted),
        ShadowPodStep::Delete(_, Some(30))
    ));
    deleted.seen = vec![leaving.clone()];
    assert_eq!(
        decide_shadow_pod(&deleted),
        ShadowPodStep::StripFinalizer(leaving)
    );
}

#[test]
fn the_end_of_a_pod_that_restarts_is_recorded_if_its_consumer_asked_for_the_deletion() {
    let mut wanted = snapshot(created("Always", |object| {
        object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 20 });
    }));
    let ended = going("Failed", false, 20);
    wanted.seen = vec![ended.clone()];
    let recorded_end = recorded(decide_shadow_pod(&wanted));
    assert_eq!(recorded_end.phase, ShadowPodPhase::Failed);
    // A kubelet removes it a moment later.
    wanted.seen = Vec::new();
    wanted.observed_deletion = true;
    wanted.ended_and_gone = Some(ended);
    assert_eq!(recorded(decide_shadow_pod(&wanted)), recorded_end);
    wanted.reported = recorded_end;
    assert_eq!(decide_shadow_pod(&wanted), ShadowPodStep::Release);
    wanted.reported = wanted.shadow.reported.clone();
    wanted.ended_and_gone = None;
    assert_eq!(
        decide_shadow_pod(&wanted),
        ShadowPodStep::Release,
        "nobody knows its end"
    );
}

#[test]
fn a_pod_that_failed_because_somebody_here_deleted_it_says_so() {
    let reason = |pod: Arc<RemotePod>| {
        let mut failed = snapshot(created("Never", |_| {}));
        failed.seen = vec![pod];
        let status = recorded(decide_shadow_pod(&failed)).pod.unwrap().to_value();
        status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|one| one["type"] == "DisruptionTarget")
            .map(|one| one["reason"].clone())
    };
    assert_eq!(
        reason(going("Failed", true, 30)),
        Some("RemotePodDeleted".into())
    );
    assert_eq!(reason(live("u1", "Failed")), None, "it failed by itself");
    assert_eq!(reason(going("Succeeded", true, 30)), None);
    let drained = pod("web", "u1", |object| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["status"] = json!({ "phase": "Failed",
            "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }] });
    });
    assert_eq!(
        reason(Arc::new(drained)),
        Some("EvictionByEvictionAPI".into())
    );
}

#[test]
fn ends_of_containers_that_come_late_are_recorded_once() {
    let evicted = |state: Value| {
        Arc::new(pod("web", "u1", |object| {
            object["status"] = json!({ "phase": "Failed", "reason": "Evicted", "containerStatuses": [{ "name": "c", "state": state }] });
        }))
    };
    let mut late = snapshot(created("Never", |_| {}));
    late.seen = vec![evicted(
        json!({ "waiting": { "reason": "ContainerCreating" } }),
    )];
    late.reported = recorded(decide_shadow_pod(&late));
    assert_eq!(decide_shadow_pod(&late), ShadowPodStep::Wait);
    late.seen = vec![evicted(json!({ "terminated": { "exitCode": 137 } }))];
    late.reported = recorded(decide_shadow_pod(&late));
    assert_eq!(
        late.reported.pod.as_ref().unwrap().to_value()["containerStatuses"][0]["state"]["terminated"]
            ["exitCode"],
        137
    );
    assert_eq!(decide_shadow_pod(&late), ShadowPodStep::Wait);
}

#[test]
fn a_shadow_pod_that_its_consumer_deletes_ends_its_pod_and_goes_after_it() {
    let deleted = |grace: Option<i64>| {
        created("Always", |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["spec"]["deletion"] =
                grace.map_or(Value::Null, |grace| json!({ "gracePeriodSeconds": grace }));
        })
    };
    let running = |own: i64| {
        Arc::new(pod("web", "u1", |object| {
            object["status"]["phase"] = "Running".into();
            object["spec"]["terminationGracePeriodSeconds"] = own.into();
        }))
    };
    for (own, asked, given) in [
        (20, None, 20),
        (3600, None, 30),
        (20, Some(5), 5),
        (5, Some(25), 25),
        (20, Some(0), 0),
    ] {
        let mut ending = snapshot(deleted(asked));
        ending.seen = vec![running(own)];
        assert_eq!(
            decide_shadow_pod(&ending),
            ShadowPodStep::Delete(running(own), Some(given))
        );
        if asked.is_none() {
            assert_eq!(default_grace(Some(own)), given, "the consumer knows it");
        }
        ending.seen = vec![going("Running", false, given)];
        assert_eq!(
            decide_shadow_pod(&ending),
            ShadowPodStep::Wait,
            "it stays as long as the pod"
        );
        ending.seen = Vec::new();
        assert_eq!(
            decide_shadow_pod(&ending),
            ShadowPodStep::ReadLive,
            "after a restart nobody saw the pod go"
        );
        ending.live = LivePod::Absent;
        assert_eq!(decide_shadow_pod(&ending), ShadowPodStep::Release);
    }
    let mut shortened = snapshot(deleted(Some(5)));
    shortened.seen = vec![going("Running", false, 20)];
    assert!(matches!(
        decide_shadow_pod(&shortened),
        ShadowPodStep::Delete(_, Some(5))
    ));
}

#[test]
fn a_pod_without_a_shadow_pod_is_deleted_gracefully() {
    assert!(matches!(
        decide_orphan(&live("u1", "Running")),
        ShadowPodStep::Delete(_, Some(30))
    ));
    let leaving = going("Running", true, 30);
    assert_eq!(
        decide_orphan(&leaving),
        ShadowPodStep::StripFinalizer(leaving)
    );
    assert_eq!(
        decide_orphan(&going("Running", false, 30)),
        ShadowPodStep::Wait
    );
}

#[test]
fn a_pod_leaves_a_namespace_that_is_no_longer_wanted_but_not_one_that_is_only_not_ready() {
    let mut unoffloaded = snapshot(created("Always", |_| {}));
    unoffloaded.seen = vec![live("u1", "Running")];
    unoffloaded.destination.state = DestinationState::NotReady("checking".into());
    assert_eq!(decide_shadow_pod(&unoffloaded), ShadowPodStep::Wait);
    unoffloaded.destination.state = DestinationState::Unwanted;
    assert!(matches!(
        decide_shadow_pod(&unoffloaded),
        ShadowPodStep::Delete(_, Some(30))
    ));
    unoffloaded.destination = Destination {
        namespace: "another".into(),
        state: DestinationState::Ready,
    };
    assert!(matches!(
        decide_shadow_pod(&unoffloaded),
        ShadowPodStep::Delete(_, Some(30))
    ));
}

#[test]
fn a_consumer_cannot_make_its_pod_outlast_what_the_provider_ends() {
    let patient = |seconds: i64| {
        Arc::new(RemotePod {
            own_grace: seconds,
            ..(*live("u1", "Running")).clone()
        })
    };
    for (own, given) in [(1_000_000_000, 30), (5, 5), (-1, 1)] {
        assert!(
            matches!(decide_orphan(&patient(own)), ShadowPodStep::Delete(_, Some(grace)) if grace == given),
            "{own}"
        );
        let mut unoffloaded = snapshot(created("Always", |_| {}));
        unoffloaded.seen = vec![patient(own)];
        unoffloaded.destination.state = DestinationState::Unwanted;
        assert!(
            matches!(decide_shadow_pod(&unoffloaded), ShadowPodStep::Delete(_, Some(grace)) if grace == given),
            "{own}"
        );
    }
    assert!(matches!(
        decide_orphan(&going("Running", true, 1_000_000_000)),
        ShadowPodStep::Delete(_, Some(30))
    ));
    let mut asked = snapshot(created("Always", |object| {
        object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 3600 });
    }));
    asked.seen = vec![patient(5)];
    assert!(
        matches!(
            decide_shadow_pod(&asked),
            ShadowPodStep::Delete(_, Some(3600))
        ),
        "that is the consumer's own choice"
    );
}

#[test]
fn a_pod_that_may_run_again_is_given_up_when_its_node_does_not_end_it() {
    let mut deleted = snapshot(created("Always", |_| {}));
    deleted.seen = vec![going("Running", false, 30)];
    deleted.reported.pod = Some(going("Running", false, 30).status.clone());
    let at = |text: &str| ShadowPodSnapshot {
        now: text.parse().unwrap(),
        ..deleted.clone()
    };
    assert_eq!(
        decide_shadow_pod(&at("2025-12-31T23:59:40Z")),
        ShadowPodStep::WaitFor(Duration::from_secs(50)),
        "grace is given until midnight"
    );
    assert_eq!(
        decide_shadow_pod(&at("2026-01-01T00:00:29Z")),
        ShadowPodStep::WaitFor(Duration::from_secs(1))
    );
    let reported = recorded(decide_shadow_pod(&at("2026-01-01T00:00:30Z")));
    assert_eq!(
        (reported.phase, reported.reason.as_deref()),
        (ShadowPodPhase::Lost, Some(REMOTE_POD_LOST))
    );
    // The pod stays until its node is back; no further step follows.
    let given_up = ShadowPodSnapshot {
        reported: ReportedStatus { ..reported },
        ..at("2026-01-01T00:00:30Z")
    };
    assert_eq!(decide_shadow_pod(&given_up), ShadowPodStep::Wait);
}

#[test]
fn a_pod_that_may_run_only_once_is_never_given_up() {
    for policy in ["Never", "OnFailure"] {
        let mut deleted = snapshot(created(policy, |_| {}));
        deleted.seen = vec![going("Running", true, 30)];
        deleted.reported.pod = Some(going("Running", true, 30).status.clone());
        deleted.now = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(decide_shadow_pod(&deleted), ShadowPodStep::Wait, "{policy}");
    }
}
