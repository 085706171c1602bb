//! Every state of a pod, as sentences.

use liqo_api::{Claimed, Key, ShadowPod};
use serde_json::{Value, json};

use super::*;
use crate::pod::carry::{outgoing_part, outgoing_pod};
use crate::pod::eviction;
use crate::pod::local_state::{with_changed_fields, with_recorded_annotations};

const TIMEOUT: Duration = Duration::from_mins(5);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A local pod with changes (a JSON merge patch) to an ordinary Pending one of a Deployment.
fn home(changes: Value) -> LocalPod {
    let mut pod = json!({
        "metadata": {"namespace": "demo", "name": "web", "uid": "u",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": true}]},
        "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending"}});
    json_patch::merge(&mut pod, &changes);
    LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("liqo-provider-x", "default"),
    )
    .unwrap()
}

fn once(changes: Value) -> LocalPod {
    let mut all = json!({"spec": {"restartPolicy": "Never"}});
    json_patch::merge(&mut all, &changes);
    home(all)
}

fn offloaded(status: &str) -> Value {
    let condition = json!({"type": "liqo.io/Offloaded", "status": status, "reason": "R", "lastTransitionTime": at(0).to_string()});
    json!({"status": {"conditions": [condition]}})
}

fn terminating(grace: i64) -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}})
}

fn shadow(changes: Value) -> ConsumerShadowPod {
    let mut shadow = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": {"name": "u", "finalizers": ["liqo.io/shadow-pod"]},
        "spec": {"namespace": "demo", "pool": "default",
            "pod": {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
        "status": {"phase": "Created", "pod": {"phase": "Running"}}});
    json_patch::merge(&mut shadow, &changes);
    shadow["spec"]["pod"] = shadow["spec"]["pod"].to_string().into();
    ConsumerShadowPod::from_claimed(Claimed::new(
        serde_json::from_value::<ShadowPod>(shadow).unwrap(),
    ))
    .unwrap()
}

fn facts<'a>(
    home: Option<&'a LocalPod>,
    shadow: Option<&'a ConsumerShadowPod>,
) -> LocalPodFacts<'a> {
    LocalPodFacts {
        home,
        shadow,
        peer: PeerReachability::Answers,
        ran: LastRunPlace::Elsewhere,
        namespace: RemoteNamespaceState::Ready,
        tenancy: Some("t"),
        sent: SendProgress::No,
        removed: false,
        eviction_delay: None,
        is_brokered: false,
        may_run_here: Some(false),
        stuck: None,
        refusal_timeout: TIMEOUT,
        now: at(0),
    }
}

fn actions(home: Option<&LocalPod>, shadow: Option<&ConsumerShadowPod>) -> Vec<LocalPodAction> {
    decide_local_pod(&facts(home, shadow)).actions
}

fn not_offloaded() -> RemoteNamespaceState {
    RemoteNamespaceState::Refused {
        reason: "NamespaceNotOffloaded",
        message: "offload it".into(),
    }
}

#[test]
fn a_pod_that_was_never_sent_is_sent() {
    assert_eq!(
        actions(Some(&home(json!({}))), None),
        [LocalPodAction::CreateShadow { mark: false }]
    );
}

#[test]
fn a_pod_that_may_run_only_once_is_marked_before_it_is_sent() {
    for policy in ["Never", "OnFailure"] {
        let pod = home(json!({"spec": {"restartPolicy": policy}}));
        assert_eq!(
            actions(Some(&pod), None),
            [LocalPodAction::CreateShadow { mark: true }]
        );
    }
}

#[test]
fn a_pod_that_gets_a_token_is_marked_once_before_it_is_sent() {
    let with = |changes: Value| {
        let mut all = json!({"spec": {"serviceAccountName": "reader", "volumes": [{"name": "kube-api-access-x",
            "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]}});
        json_patch::merge(&mut all, &changes);
        home(all)
    };
    assert_eq!(
        actions(Some(&with(json!({}))), None),
        [LocalPodAction::CreateShadow { mark: true }]
    );
    let tried = with(json!({}));
    let tried = LocalPodFacts {
        sent: SendProgress::Tried,
        ..facts(Some(&tried), None)
    };
    assert_eq!(
        decide_local_pod(&tried).actions,
        [LocalPodAction::CreateShadow { mark: false }]
    );
    for tenancy in ["t", "another"] {
        assert_eq!(
            actions(Some(&with(being_sent_to(tenancy))), None),
            [LocalPodAction::CreateShadow { mark: false }]
        );
    }
}

#[test]
fn a_call_that_failed_is_repeated_without_marking_again() {
    let pod = once(offloaded("Unknown"));
    let facts = LocalPodFacts {
        sent: SendProgress::Tried,
        ..facts(Some(&pod), None)
    };
    assert_eq!(
        decide_local_pod(&facts).actions,
        [LocalPodAction::CreateShadow { mark: false }]
    );
}

fn being_sent_to(tenancy: &str) -> Value {
    let mut changes = offloaded("Unknown");
    changes["metadata"] = json!({"annotations": {"liqo.io/sent-to": tenancy}});
    changes
}

#[test]
fn a_pod_that_a_former_process_was_sending_is_sent_again_because_it_did_not_arrive() {
    assert_eq!(
        actions(Some(&once(being_sent_to("t"))), None),
        [LocalPodAction::CreateShadow { mark: false }]
    );
}

#[test]
fn a_pod_that_was_being_sent_in_a_tenancy_that_ended_is_lost_unless_it_may_restart() {
    for changes in [being_sent_to("another"), offloaded("Unknown")] {
        assert!(matches!(
            actions(Some(&once(changes)), None)[..],
            [LocalPodAction::Lost(_)]
        ));
    }
    let pod = once(being_sent_to("t"));
    assert!(matches!(
        decide_local_pod(&LocalPodFacts {
            tenancy: None,
            ..facts(Some(&pod), None)
        })
        .actions[..],
        [LocalPodAction::Lost(_)]
    ));
    assert_eq!(
        actions(Some(&home(offloaded("Unknown"))), None),
        [LocalPodAction::CreateShadow { mark: false }]
    );
}

#[test]
fn a_pod_that_ran_and_may_run_only_once_is_never_sent_again() {
    assert!(matches!(
        actions(Some(&once(offloaded("True"))), None)[..],
        [LocalPodAction::Lost(_)]
    ));
    for sent in [SendProgress::Tried, SendProgress::Created(VISIBLE_WITHIN)] {
        let pod = once(offloaded("True"));
        assert!(matches!(
            decide_local_pod(&LocalPodFacts {
                sent,
                ..facts(Some(&pod), None)
            })
            .actions[..],
            [LocalPodAction::Lost(_)]
        ));
    }
}

#[test]
fn a_pod_that_restarts_is_sent_again_when_the_provider_lost_it() {
    assert_eq!(
        actions(Some(&home(offloaded("True"))), None),
        [LocalPodAction::CreateShadow { mark: false }]
    );
}

#[test]
fn a_refused_pod_did_not_run_and_may_be_sent() {
    assert_eq!(
        actions(Some(&once(offloaded("False"))), None),
        [LocalPodAction::CreateShadow { mark: true }]
    );
}

#[test]
fn a_finished_pod_never_runs_again() {
    for phase in ["Succeeded", "Failed"] {
        for pod in [
            home(json!({"status": {"phase": phase}})),
            once(json!({"status": {"phase": phase}})),
        ] {
            assert_eq!(
                decide_local_pod(&facts(Some(&pod), None)),
                LocalPodDecision::nothing()
            );
            assert_eq!(
                decide_local_pod(&facts(Some(&pod), Some(&shadow(json!({}))))),
                LocalPodDecision::nothing()
            );
        }
    }
}

#[test]
fn a_shadow_pod_that_the_watch_has_not_shown_yet_is_waited_for() {
    let (pod, going) = (once(offloaded("Unknown")), once(terminating(30)));
    for pod in [&pod, &going] {
        let decision = decide_local_pod(&LocalPodFacts {
            sent: SendProgress::Created(Duration::from_secs(1)),
            ..facts(Some(pod), None)
        });
        assert_eq!(
            decision,
            LocalPodDecision::retry_after(Duration::from_secs(9))
        );
    }
    let late = decide_local_pod(&LocalPodFacts {
        sent: SendProgress::Created(VISIBLE_WITHIN),
        ..facts(Some(&pod), None)
    });
    assert!(matches!(late.actions[..], [LocalPodAction::Lost(_)]));
}

#[test]
fn the_remote_status_comes_home() {
    assert_eq!(
        actions(Some(&home(json!({}))), Some(&shadow(json!({})))),
        [LocalPodAction::PatchLocalStatus]
    );
    for phase in ["Succeeded", "Failed"] {
        let ended = shadow(json!({"status": {"phase": phase, "pod": {"phase": phase}}}));
        assert_eq!(
            actions(Some(&home(json!({}))), Some(&ended)),
            [LocalPodAction::PatchLocalStatus]
        );
    }
}

/// A shadow pod after the consumer wrote all that travels of this pod.
fn following(home: &LocalPod) -> ConsumerShadowPod {
    let recorded = json!({"metadata": {"name": "web", "annotations": {"go": "WAIT"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let carried = outgoing_pod(&home.to_json(), &[].into()).unwrap_or_else(|_| {
        let part = outgoing_part(&home.to_json(), &[].into()).unwrap();
        with_recorded_annotations(part, &recorded)
    });
    shadow(json!({"spec": {"pod": with_changed_fields(recorded, &carried)}}))
}

#[test]
fn what_can_travel_of_a_refused_change_is_carried_once_and_the_refusal_is_told() {
    let reads = json!([{"name": "GO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['go']"}}}]);
    let containers = json!([{"name": "c", "image": "i", "env": reads}]);
    let long = "x".repeat(120 * 1024);
    let both = [
        LocalPodAction::PatchLocalStatus,
        LocalPodAction::UpdateShadow { whole: false },
    ];
    for (annotations, told) in [
        (json!({"state": long, "go": "READY"}), None),
        (
            json!({"liqo.io/api-server": "bogus", "go": "READY"}),
            Some("says bogus"),
        ),
        (
            json!({"go": long}),
            Some("former values of the annotations go"),
        ),
    ] {
        let pod = home(
            json!({"metadata": {"labels": {"a": "b"}, "annotations": annotations}, "spec": {"containers": containers}}),
        );
        let before =
            shadow(json!({"spec": {"pod": {"metadata": {"annotations": {"go": "WAIT"}}}}}));
        assert_eq!(actions(Some(&pod), Some(&before)), both, "{told:?}");
        let after = following(&pod);
        assert_eq!(
            actions(Some(&pod), Some(&after)),
            [LocalPodAction::PatchLocalStatus],
            "it is written once: {told:?}"
        );
        let refused = pod.refused_change();
        assert_eq!(refused.is_some(), told.is_some());
        assert!(
            told.is_none_or(|words| refused
                .as_ref()
                .is_some_and(|refused| refused.contains(words))),
            "{refused:?}"
        );
        assert!(
            refused.is_none_or(|refused| refused.len() < 500),
            "a message is for people"
        );
    }
}

#[test]
fn changed_labels_annotations_and_images_are_carried_again() {
    for changes in [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}}),
        json!({"spec": {"activeDeadlineSeconds": 9}}),
        json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}),
    ] {
        let pod = home(changes);
        assert_eq!(
            actions(Some(&pod), Some(&shadow(json!({})))),
            [
                LocalPodAction::PatchLocalStatus,
                LocalPodAction::UpdateShadow { whole: false }
            ]
        );
        let ended = shadow(json!({"status": {"phase": "Failed"}}));
        assert_eq!(
            actions(Some(&pod), Some(&ended)),
            [LocalPodAction::PatchLocalStatus]
        );
    }
}

#[test]
fn what_means_something_at_home_only_is_not_carried_again() {
    let pod = home(
        json!({"metadata": {"annotations": {"liqo.io/remote-pod-ip": "10.0.0.1", "liqo.io/sent-to": "t"}}}),
    );
    assert_eq!(
        actions(Some(&pod), Some(&shadow(json!({})))),
        [LocalPodAction::PatchLocalStatus]
    );
}

#[test]
fn a_shadow_pod_without_an_answer_is_waited_for() {
    let fresh = shadow(json!({"status": null}));
    assert_eq!(actions(Some(&home(json!({}))), Some(&fresh)), []);
}

#[test]
fn what_the_provider_waits_for_is_shown_and_does_not_count_as_a_refusal() {
    let taken = shadow(
        json!({"status": {"phase": "Pending", "reason": "NameTaken", "message": "m", "pod": null}}),
    );
    let pod = home(offloaded("False"));
    let late = decide_local_pod(&LocalPodFacts {
        now: at(9_999),
        ..facts(Some(&pod), Some(&taken))
    });
    assert_eq!(
        late.actions,
        [LocalPodAction::Refuse {
            reason: "NameTaken".into(),
            message: "m".into()
        }]
    );
}

#[test]
fn a_pod_whose_room_was_taken_back_ends_at_home_whatever_the_status_of_the_remote_one_says() {
    let reclaimed = |phase: &str| {
        let status = json!({"phase": phase, "reason": "OfferReclaimed", "message": "pool default became smaller"});
        shadow(json!({"status": status}))
    };
    let evicted = LocalPodAction::Evicted("pool default became smaller".into());
    for pod in [home(json!({})), once(offloaded("True"))] {
        assert_eq!(
            actions(Some(&pod), Some(&reclaimed("Failed"))),
            std::slice::from_ref(&evicted)
        );
    }
    let pod = home(json!({}));
    assert_eq!(
        actions(Some(&pod), Some(&reclaimed("Created"))),
        [LocalPodAction::PatchLocalStatus],
        "it still runs"
    );
    let ended = home(json!({"status": {"phase": "Failed"}}));
    assert_eq!(actions(Some(&ended), Some(&reclaimed("Failed"))), []);
}

#[test]
fn a_pod_that_the_provider_lost_is_lost() {
    let lost = shadow(json!({"status": {"phase": "Lost", "message": "gone"}}));
    assert_eq!(
        actions(Some(&once(json!({}))), Some(&lost)),
        [LocalPodAction::Lost("gone".into())]
    );
}

/// The actions that end the remote pod.
fn ends(home: &LocalPod, shadow: &ConsumerShadowPod) -> Vec<LocalPodAction> {
    let mut actions = actions(Some(home), Some(shadow));
    actions.retain(|action| *action != LocalPodAction::PatchLocalStatus);
    actions
}

fn with_grace(own: i64) -> Value {
    json!({"spec": {"pod": {"spec": {"terminationGracePeriodSeconds": own}}}})
}

fn asked(grace: i64) -> Value {
    json!({"spec": {"deletion": {"gracePeriodSeconds": grace}}})
}

#[test]
fn a_deleted_pod_is_one_write_for_its_provider() {
    let pod = home(terminating(30));
    assert_eq!(
        actions(Some(&pod), Some(&shadow(json!({})))),
        [
            LocalPodAction::PatchLocalStatus,
            LocalPodAction::DeleteShadow
        ]
    );
    let terminating = shadow(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(
        ends(&pod, &terminating),
        [],
        "it stays until the remote pod is gone"
    );
}

#[test]
fn the_grace_period_travels_only_where_the_provider_would_give_another_one() {
    for (own, wanted) in [(10, 10), (30, 30)] {
        assert_eq!(
            ends(&home(terminating(wanted)), &shadow(with_grace(own))),
            [LocalPodAction::DeleteShadow]
        );
    }
    for (own, wanted) in [(30, 10), (10, 25), (3600, 30), (30, 0)] {
        let expected = match own {
            3600 => vec![LocalPodAction::DeleteShadow],
            _ => vec![
                LocalPodAction::AskDeletion(wanted),
                LocalPodAction::DeleteShadow,
            ],
        };
        assert_eq!(
            ends(&home(terminating(wanted)), &shadow(with_grace(own))),
            expected
        );
    }
}

#[test]
fn a_restart_between_the_two_writes_of_a_deletion_repeats_none() {
    let pod = home(terminating(10));
    assert_eq!(
        ends(&pod, &shadow(asked(10))),
        [LocalPodAction::DeleteShadow]
    );
    let mut both = asked(10);
    both["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(ends(&pod, &shadow(both)), []);
}

#[test]
fn the_grace_period_may_be_shortened_while_the_pod_ends_and_never_lengthened() {
    let deleted = |mut changes: Value| {
        changes["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        shadow(changes)
    };
    assert_eq!(
        ends(&home(terminating(5)), &deleted(with_grace(30))),
        [LocalPodAction::AskDeletion(5)]
    );
    assert_eq!(ends(&home(terminating(30)), &deleted(with_grace(5))), []);
    assert_eq!(
        ends(&home(terminating(5)), &deleted(asked(10))),
        [LocalPodAction::AskDeletion(5)]
    );
    assert_eq!(ends(&home(terminating(20)), &deleted(asked(10))), []);
}

/// A provider records no end of a shadow pod that is being deleted, and gives its pod at most 30
/// seconds.
#[test]
fn a_deletion_is_only_asked_for_where_the_provider_would_cut_it_short() {
    let (long, never) = (home(terminating(3600)), once(terminating(30)));
    assert_eq!(
        ends(&long, &shadow(json!({}))),
        [LocalPodAction::AskDeletion(3600)]
    );
    assert_eq!(
        ends(&never, &shadow(json!({}))),
        [LocalPodAction::AskDeletion(30)]
    );
    for pod in [&home(terminating(31)), &never] {
        for (wanted, again) in [
            (10, vec![]),
            (
                3600,
                vec![LocalPodAction::AskDeletion(pod.deletion.unwrap())],
            ),
        ] {
            assert_eq!(ends(pod, &shadow(asked(wanted))), again);
        }
    }
    let ended =
        once(json!({"metadata": terminating(30)["metadata"], "status": {"phase": "Succeeded"}}));
    assert_eq!(
        ends(&ended, &shadow(json!({"status": {"phase": "Succeeded"}}))),
        [LocalPodAction::DeleteShadow],
        "its end is home"
    );
}

#[test]
fn a_shadow_pod_that_would_not_stay_is_not_deleted_before_its_remote_pod_is_gone() {
    let unheld = shadow(json!({"metadata": {"finalizers": null}}));
    assert_eq!(
        ends(&home(terminating(30)), &unheld),
        [LocalPodAction::AskDeletion(30)]
    );
}

#[test]
fn the_last_status_arrives_also_while_the_pod_is_being_deleted() {
    let ending = shadow(
        json!({"spec": {"deletion": {"gracePeriodSeconds": 30}}, "status": {"phase": "Failed"}}),
    );
    assert_eq!(
        actions(Some(&once(terminating(30))), Some(&ending)),
        [LocalPodAction::PatchLocalStatus]
    );
    let deleted = shadow(
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Failed"}}),
    );
    assert_eq!(
        actions(Some(&home(terminating(30))), Some(&deleted)),
        [LocalPodAction::PatchLocalStatus]
    );
}

#[test]
fn the_home_pod_goes_when_its_remote_pod_is_gone() {
    assert_eq!(
        actions(Some(&home(terminating(30))), None),
        [LocalPodAction::RemoveLocalPod]
    );
    let finished =
        once(json!({"metadata": terminating(30)["metadata"], "status": {"phase": "Succeeded"}}));
    assert_eq!(
        actions(Some(&finished), None),
        [LocalPodAction::RemoveLocalPod]
    );
}

#[test]
fn a_home_pod_that_only_a_finalizer_holds_is_not_removed_again() {
    let mut held = terminating(0);
    held["metadata"]["finalizers"] = json!(["example.com/other"]);
    held["status"] = json!({"phase": "Failed"});
    assert_eq!(actions(Some(&home(held)), None), []);
}

#[test]
fn the_end_of_a_pod_that_somebody_holds_is_asked_for_and_shown_also_if_the_pod_restarts() {
    let mut held = terminating(30);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let there = shadow(json!({"status": {"pod": null}}));
    assert_eq!(
        actions(Some(&home(held.clone())), Some(&there)),
        [LocalPodAction::AskDeletion(30)],
        "the provider would tell no end"
    );
    assert_eq!(
        actions(Some(&home(held.clone())), None),
        [LocalPodAction::ShowDeletion]
    );
    held["status"] = json!({"phase": "Failed"});
    assert_eq!(
        actions(Some(&home(held)), None),
        [LocalPodAction::RemoveLocalPod]
    );
}

#[test]
fn the_end_of_a_container_that_comes_after_that_of_its_pod_is_shown() {
    let evicted = |state: Value| {
        let statuses = json!([{"name": "c", "state": state}]);
        once(
            json!({"status": {"phase": "Failed", "containerStatuses": statuses, "conditions": offloaded("True")["status"]["conditions"]}}),
        )
    };
    let failed = shadow(json!({"status": {"phase": "Failed"}}));
    let waiting = evicted(json!({"waiting": {"reason": "ContainerCreating"}}));
    assert_eq!(
        actions(Some(&waiting), Some(&failed)),
        [LocalPodAction::PatchLocalStatus]
    );
    assert_eq!(
        actions(
            Some(&waiting),
            Some(&shadow(json!({"status": {"phase": "Created"}})))
        ),
        []
    );
    assert_eq!(
        actions(
            Some(&evicted(json!({"terminated": {"exitCode": 137}}))),
            Some(&failed)
        ),
        []
    );
}

#[test]
fn a_run_once_pod_that_somebody_holds_fails_before_it_goes_and_no_sooner_than_its_remote_pod_is_gone()
 {
    for grace in [0, 30] {
        let mut held = terminating(grace);
        held["metadata"]["finalizers"] = json!(["liqo.io/final-status"]);
        let pod = once(held.clone());
        assert_eq!(actions(Some(&pod), None), [LocalPodAction::ShowDeletion]);
        assert_eq!(
            decide_local_pod(&LocalPodFacts {
                peer: PeerReachability::Silent,
                ..facts(Some(&pod), None)
            })
            .actions,
            [],
            "silence proves nothing"
        );
        let there = shadow(json!({}));
        assert!(!actions(Some(&pod), Some(&there)).contains(&LocalPodAction::ShowDeletion));
        held["status"] = json!({"phase": "Failed"});
        let expected: &[LocalPodAction] = if grace == 0 {
            &[]
        } else {
            &[LocalPodAction::RemoveLocalPod]
        };
        assert_eq!(actions(Some(&once(held)), None), expected);
    }
}

#[test]
fn a_pod_that_a_silent_peer_ran_here_ends_when_this_cluster_ended_it() {
    let ended = LastRunPlace::EndedHere("tethering ends".into());
    let silent = |ran: &LastRunPlace, pod: &LocalPod, peer| {
        decide_local_pod(&LocalPodFacts {
            peer,
            ran: ran.clone(),
            ..facts(Some(pod), None)
        })
    };
    for peer in [PeerReachability::Silent, PeerReachability::Down] {
        for running in [home(json!({})), home(terminating(30)), once(json!({}))] {
            let decision = silent(&ended, &running, peer);
            assert_eq!(
                decision.actions,
                [LocalPodAction::EndedHere("tethering ends".into())],
                "{peer:?}"
            );
        }
        let failed = json!({"status": {"phase": "Failed"}});
        assert_eq!(
            silent(&ended, &home(failed.clone()), peer).actions,
            [],
            "its controller deletes it"
        );
        let mut held = terminating(30);
        json_patch::merge(&mut held, &failed);
        assert_eq!(
            silent(&ended, &home(held), peer).actions,
            [LocalPodAction::RemoveLocalPod]
        );
        let runs = silent(&LastRunPlace::Here, &home(json!({})), peer);
        assert_eq!(runs.again, Some(ENDED_HERE_POLL), "the peer tells no end");
        assert!(
            !runs
                .actions
                .iter()
                .any(|action| matches!(action, LocalPodAction::EndedHere(_)))
        );
    }
    let decision = silent(&ended, &home(json!({})), PeerReachability::Answers);
    assert!(
        !decision
            .actions
            .iter()
            .any(|action| matches!(action, LocalPodAction::EndedHere(_))),
        "the peer says it itself"
    );
}

#[test]
fn nobody_at_a_broker_forces_the_end_of_a_pod_of_a_consumer() {
    let mut held = terminating(0);
    held["metadata"]["finalizers"] = json!(["liqo.io/final-status"]);
    let (pod, there) = (once(held), shadow(json!({"status": {"pod": null}})));
    assert_eq!(
        decide_local_pod(&LocalPodFacts {
            is_brokered: true,
            ..facts(Some(&pod), Some(&there))
        })
        .actions,
        [LocalPodAction::AskDeletion(1)]
    );
    assert_eq!(
        actions(Some(&pod), Some(&there)),
        [LocalPodAction::AskDeletion(0)]
    );
}

/// The API server writes a grace of zero before it deletes the object, and may be interrupted in
/// between.
#[test]
fn a_home_pod_whose_removal_was_interrupted_is_removed_again_and_not_after_that() {
    let mut held = terminating(30);
    held["metadata"]["finalizers"] = json!(["example.com/other"]);
    held["status"] = json!({"phase": "Failed"});
    for pod in [
        home(terminating(0)),
        once(terminating(0)),
        home(terminating(30)),
        home(held),
    ] {
        assert_eq!(actions(Some(&pod), None), [LocalPodAction::RemoveLocalPod]);
        assert_eq!(
            decide_local_pod(&LocalPodFacts {
                removed: true,
                ..facts(Some(&pod), None)
            })
            .actions,
            []
        );
    }
}

#[test]
fn a_shadow_pod_without_home_pod_is_removed_once() {
    assert_eq!(
        actions(None, Some(&shadow(json!({})))),
        [LocalPodAction::DeleteShadow]
    );
    assert_eq!(
        actions(
            None,
            Some(&shadow(
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
            ))
        ),
        []
    );
    assert_eq!(actions(None, None), []);
}

#[test]
fn nothing_is_concluded_from_silence() {
    let pods = [
        home(json!({})),
        once(offloaded("True")),
        once(offloaded("Unknown")),
        home(terminating(30)),
        home(terminating(0)),
    ];
    for pod in pods.iter().map(Some).chain([None]) {
        for shadow in [None, Some(&shadow(json!({})))] {
            let decision = decide_local_pod(&LocalPodFacts {
                peer: PeerReachability::Silent,
                ..facts(pod, shadow)
            });
            assert_eq!(decision, LocalPodDecision::nothing());
        }
    }
}

#[test]
fn a_peer_that_is_down_makes_pods_not_ready_and_removes_none() {
    let down = |home: Option<&LocalPod>| {
        decide_local_pod(&LocalPodFacts {
            peer: PeerReachability::Down,
            ..facts(home, None)
        })
        .actions
    };
    assert_eq!(
        down(Some(&home(json!({"status": {"phase": "Running"}})))),
        [LocalPodAction::NotReady]
    );
    assert_eq!(
        down(Some(&home(terminating(30)))),
        [LocalPodAction::NotReady]
    );
    assert_eq!(
        down(Some(&once(json!({"status": {"phase": "Succeeded"}})))),
        []
    );
    assert_eq!(down(None), []);
}

#[test]
fn a_pod_of_a_namespace_that_is_not_offloaded_is_refused() {
    let pod = home(json!({}));
    let decision = decide_local_pod(&LocalPodFacts {
        namespace: not_offloaded(),
        ..facts(Some(&pod), None)
    });
    let refusal = LocalPodAction::Refuse {
        reason: "NamespaceNotOffloaded".into(),
        message: "offload it".into(),
    };
    assert_eq!(
        decision,
        LocalPodDecision {
            actions: vec![refusal],
            again: Some(TIMEOUT)
        }
    );
}

#[test]
fn a_pod_that_runs_goes_on_when_its_namespace_is_no_longer_offloaded() {
    let pod = home(json!({}));
    let facts = LocalPodFacts {
        namespace: not_offloaded(),
        ..facts(Some(&pod), None)
    };
    let running = shadow(json!({}));
    assert_eq!(
        decide_local_pod(&LocalPodFacts {
            shadow: Some(&running),
            ..facts
        })
        .actions,
        [LocalPodAction::PatchLocalStatus]
    );
}

fn is_replaced(decision: &LocalPodDecision) -> bool {
    decision
        .actions
        .iter()
        .any(|action| matches!(action, LocalPodAction::Replace { .. }))
}

#[test]
fn a_pod_whose_remote_pod_went_with_its_namespace_comes_home() {
    let (pod, waiting) = (
        home(offloaded("False")),
        shadow(json!({"status": {"phase": "Pending", "reason": "NamespaceNotReady"}})),
    );
    let decision = |namespace, now| {
        decide_local_pod(&LocalPodFacts {
            namespace,
            now,
            ..facts(Some(&pod), Some(&waiting))
        })
    };
    assert!(is_replaced(&decision(not_offloaded(), at(300))));
    assert!(
        !is_replaced(&decision(RemoteNamespaceState::Ready, at(300))),
        "the provider still makes the namespace"
    );
}

#[test]
fn a_pod_that_cannot_travel_is_told_so_and_replaced_in_time() {
    let mut changes = offloaded("False");
    changes["spec"] = json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]});
    let pod = home(changes);
    let decision = |now| {
        decide_local_pod(&LocalPodFacts {
            now,
            namespace: RemoteNamespaceState::Waiting,
            ..facts(Some(&pod), None)
        })
    };
    assert!(
        matches!(&decision(at(0)).actions[..], [LocalPodAction::Refuse { reason, .. }] if reason == "HostPath")
    );
    assert_eq!(decision(at(0)).again, Some(TIMEOUT));
    assert!(is_replaced(&decision(at(300))));
}

#[test]
fn a_namespace_that_is_not_there_yet_is_waited_for() {
    let pod = home(json!({}));
    assert_eq!(
        decide_local_pod(&LocalPodFacts {
            namespace: RemoteNamespaceState::Waiting,
            ..facts(Some(&pod), None)
        }),
        LocalPodDecision::nothing()
    );
}

#[test]
fn a_pod_refused_for_long_is_replaced_if_it_is_created_again() {
    let refused =
        shadow(json!({"status": {"phase": "Refused", "reason": "OfferExceeded", "message": "m"}}));
    let decision = |pod: &LocalPod, now| {
        decide_local_pod(&LocalPodFacts {
            now,
            ..facts(Some(pod), Some(&refused))
        })
    };
    let pod = home(offloaded("False"));
    assert_eq!(
        decision(&pod, at(100)).again,
        Some(Duration::from_secs(200))
    );
    assert!(!is_replaced(&decision(&pod, at(299))));
    assert!(is_replaced(&decision(&pod, at(300))));
    let mut alone = offloaded("False");
    alone["metadata"] = json!({"ownerReferences": null});
    let alone = home(alone);
    assert!(!is_replaced(&decision(&alone, at(9_999))));
    assert!(is_replaced(&decide_local_pod(&LocalPodFacts {
        now: at(9_999),
        is_brokered: true,
        ..facts(Some(&alone), Some(&refused))
    })));
}

#[test]
fn the_eviction_delay_of_the_namespace_reaches_pods_also_while_the_peer_is_silent() {
    let wanted = EvictionDelay::Seconds(30);
    let (web, there) = (home(json!({})), shadow(json!({})));
    let set = |home: &LocalPod, peer: PeerReachability, wanted: Option<EvictionDelay>| {
        let facts = LocalPodFacts {
            peer,
            eviction_delay: wanted,
            ..facts(Some(home), Some(&there))
        };
        decide_local_pod(&facts)
            .actions
            .contains(&LocalPodAction::SetEvictionDelay(EvictionDelay::Seconds(
                30,
            )))
    };
    for peer in [
        PeerReachability::Answers,
        PeerReachability::Silent,
        PeerReachability::Down,
    ] {
        assert!(set(&web, peer, Some(wanted)) && !set(&web, peer, None));
        assert!(!set(&home(terminating(30)), peer, Some(wanted)));
        assert!(!set(
            &home(json!({"status": {"phase": "Failed"}})),
            peer,
            Some(wanted)
        ));
    }
    let tolerations = eviction::tolerations_with_delay(&web.to_json(), wanted);
    assert!(!set(
        &home(json!({"spec": {"tolerations": tolerations}})),
        PeerReachability::Answers,
        Some(wanted)
    ));
}

#[test]
fn the_refusal_timeout_counts_from_the_refusal_not_from_the_birth() {
    let refused = shadow(json!({"status": {"phase": "Refused"}}));
    let pod = home(offloaded("True"));
    let decision = decide_local_pod(&LocalPodFacts {
        now: at(9_999),
        ..facts(Some(&pod), Some(&refused))
    });
    assert_eq!(decision.again, Some(TIMEOUT));
}

#[test]
fn a_pod_of_a_daemon_set_stays_pending() {
    for kind in ["DaemonSet", "Node"] {
        let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": "d", "uid": "o", "controller": true});
        let mut changes = offloaded("False");
        changes["metadata"] = json!({"ownerReferences": [owner]});
        let pod = home(changes);
        let decision = decide_local_pod(&LocalPodFacts {
            now: at(9_999),
            ..facts(Some(&pod), None)
        });
        assert!(
            matches!(&decision.actions[..], [LocalPodAction::Refuse { reason, .. }] if reason == kind)
        );
    }
}

#[test]
fn a_pod_that_the_provider_did_not_make_yet_is_carried_again_as_a_whole() {
    let pod = home(
        json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}),
    );
    for phase in ["Pending", "Refused"] {
        let waits = shadow(
            json!({"status": {"phase": phase, "reason": "OfferExceeded", "message": "m", "pod": null}}),
        );
        let actions = actions(Some(&pod), Some(&waits));
        assert!(
            actions.contains(&LocalPodAction::UpdateShadow { whole: true }),
            "{actions:?}"
        );
    }
}

/// A decision about a pod of a namespace whose pods may run here, too.
fn anywhere(pod: &LocalPod, shadow: &ConsumerShadowPod, now: i64) -> LocalPodDecision {
    decide_local_pod(&LocalPodFacts {
        may_run_here: Some(true),
        now: at(now),
        ..facts(Some(pod), Some(shadow))
    })
}

#[test]
fn a_pod_that_may_run_here_does_not_wait_for_a_refusal_that_lasts() {
    let refused = |reason: &str| {
        shadow(json!({"status": {"phase": "Refused", "reason": reason, "message": "m"}}))
    };
    let (pod, held) = (home(json!({})), home(offloaded("False")));
    assert!(is_replaced(&anywhere(&pod, &refused("NotAllowed"), 0)));
    assert_eq!(
        anywhere(&pod, &refused("OfferExceeded"), 0).again,
        Some(TIMEOUT)
    );
    assert!(is_replaced(&anywhere(
        &held,
        &refused("OfferExceeded"),
        300
    )));
    for elsewhere in [Some(false), None] {
        let refused = refused("NotAllowed");
        let decision = decide_local_pod(&LocalPodFacts {
            may_run_here: elsewhere,
            ..facts(Some(&pod), Some(&refused))
        });
        assert_eq!(
            (is_replaced(&decision), decision.again),
            (false, Some(TIMEOUT)),
            "its pods run in other clusters"
        );
    }
}

#[test]
fn a_pod_that_may_run_here_does_not_wait_for_ever_for_a_name_that_is_taken() {
    let taken = shadow(
        json!({"status": {"phase": "Pending", "reason": "NameTaken", "message": "m", "pod": null}}),
    );
    let pod = home(offloaded("False"));
    assert!(
        !is_replaced(&anywhere(&pod, &taken, 299)) && is_replaced(&anywhere(&pod, &taken, 300))
    );
}

fn obstacle(
    cause: Option<(OffloadedReason, &str)>,
    missing: Option<&MissingObjects>,
    has_all: bool,
) -> Option<PodObstacle> {
    let cause = cause.map(|(reason, message)| (reason, message.to_owned()));
    PodObstacle::from_waiting_pod(&WaitingStatus { cause }, missing, has_all)
}

/// A decision about a pod that this has kept from starting for so long.
fn stuck(
    pod: &LocalPod,
    obstacle: PodObstacle,
    seconds: u64,
    may_run_here: Option<bool>,
) -> LocalPodDecision {
    let there = shadow(json!({"status": {"pod": null}}));
    let stuck = (obstacle, Duration::from_secs(seconds));
    decide_local_pod(&LocalPodFacts {
        may_run_here,
        stuck: Some(&stuck),
        ..facts(Some(pod), Some(&there))
    })
}

#[test]
fn a_pod_that_no_node_there_can_take_comes_home_in_time_if_it_may_and_is_created_again() {
    let pod = home(json!({}));
    let unscheduled = || {
        obstacle(
            Some((OffloadedReason::Unschedulable, "0/2 nodes")),
            None,
            false,
        )
        .unwrap()
    };
    assert_eq!(
        stuck(&pod, unscheduled(), 100, Some(true)).again,
        Some(Duration::from_secs(200))
    );
    let due = stuck(&pod, unscheduled(), 300, Some(true));
    assert!(
        matches!(&due.actions[..], [LocalPodAction::Replace { reason, message, cause: RefusalCause::Passes, .. }]
        if reason == "Unschedulable" && message == "0/2 nodes")
    );
    let told = |decision: &LocalPodDecision| match &decision.actions[..] {
        [LocalPodAction::Tell { message, .. }] => message.clone(),
        other => panic!("{other:?}"),
    };
    let alone = home(json!({"metadata": {"ownerReferences": null}}));
    assert!(
        told(&stuck(&alone, unscheduled(), 300, Some(true)))
            .contains("0/2 nodes; nothing creates it again")
    );
    assert!(
        told(&stuck(&pod, unscheduled(), 300, Some(false)))
            .contains("podOffloadingStrategy Remote")
    );
    let long = obstacle(
        Some((OffloadedReason::Unschedulable, &"0/9 nodes ".repeat(400))),
        None,
        false,
    )
    .unwrap();
    let message = told(&stuck(&alone, long, 300, Some(true)));
    assert!(
        message.len() < 1024 && message.contains("nothing creates it again"),
        "an event takes no more"
    );
    assert_eq!(
        stuck(&pod, unscheduled(), 9_999, None).actions,
        [],
        "its consumer decides"
    );
}

#[test]
fn a_pod_comes_home_at_once_if_an_object_that_it_needs_never_gets_there() {
    let pod = home(json!({}));
    let missing = |lasting: &[&str]| MissingObjects {
        message: "m".into(),
        lasting: lasting.iter().map(|&one| one.to_owned()).collect(),
    };
    let (never, later) = (missing(&["ConfigMap/bundle"]), missing(&[]));
    let decision = |missing: &MissingObjects| {
        stuck(
            &pod,
            obstacle(None, Some(missing), false).unwrap(),
            0,
            Some(true),
        )
    };
    let expected = LocalPodAction::Replace {
        reason: "NotReflected".into(),
        message: "m".into(),
        cause: RefusalCause::Lasts,
        objects: vec!["ConfigMap/bundle".into()],
    };
    assert_eq!(decision(&never).actions, std::slice::from_ref(&expected));
    assert_eq!(
        (is_replaced(&decision(&later)), decision(&later).again),
        (false, Some(TIMEOUT))
    );
    // Known before the pod is sent.
    let kept = missing_object_actions(&pod, &never, true);
    assert!(
        matches!(&kept[..], [LocalPodAction::Refuse { reason, .. }, replacement] if reason == "NotReflected" && *replacement == expected)
    );
    assert_eq!(
        (
            missing_object_actions(&pod, &later, true),
            missing_object_actions(&pod, &never, false)
        ),
        (Vec::new(), Vec::new())
    );
}

#[test]
fn a_pod_that_cannot_be_sent_comes_home_at_once_or_in_time_as_its_obstacle_lasts_or_passes() {
    let (fresh, shown) = (home(json!({})), home(offloaded("False")));
    let kept = |pod: &LocalPod, obstacle: PodObstacle, second: i64, may_run_here: Option<bool>| {
        decide_unsendable(
            &LocalPodFacts {
                now: at(second),
                may_run_here,
                ..facts(Some(pod), None)
            },
            pod,
            obstacle,
        )
    };
    let [lasts, passes] =
        ["NotAccepted", "NotReflected"].map(|reason| PodObstacle::for_reason(reason, "m".into()));
    assert!(is_replaced(&kept(&fresh, lasts.clone(), 0, Some(true))));
    let waits = kept(&fresh, lasts.clone(), 0, Some(false));
    assert_eq!(
        (is_replaced(&waits), waits.again),
        (false, Some(TIMEOUT)),
        "it may not run here"
    );
    for obstacle in [passes, lasts.into_passing()] {
        let waits = kept(&shown, obstacle.clone(), 1, Some(true));
        assert_eq!(
            (is_replaced(&waits), waits.again),
            (false, Some(TIMEOUT.saturating_sub(Duration::from_secs(1))))
        );
        assert!(is_replaced(&kept(
            &shown,
            obstacle,
            TIMEOUT.as_secs().cast_signed(),
            Some(true)
        )));
    }
}

#[test]
fn a_pod_that_a_kubelet_cannot_start_comes_home_unless_something_of_home_is_missing() {
    let pod = home(json!({}));
    let not_started = |has_all| {
        obstacle(
            Some((OffloadedReason::NotStarted, "ImagePullBackOff")),
            None,
            has_all,
        )
    };
    let decision = |seconds| stuck(&pod, not_started(true).unwrap(), seconds, Some(true));
    assert!(!is_replaced(&decision(299)) && is_replaced(&decision(300)));
    assert_eq!(not_started(false), None, "its ConfigMap may still come");
    assert_eq!(obstacle(None, None, true), None, "an image is being pulled");
}
