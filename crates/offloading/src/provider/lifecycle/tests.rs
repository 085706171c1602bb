use serde_json::json;

use liqo_api::finalizers;

use super::{
    super::{
        remote_pods::tests::{consumer, pod},
        shadows::LARGEST_KEPT,
    },
    *,
};

const NAMESPACE: &str = "demo-rome-aaaaaa";

fn shadow(restart_policy: &str, change: impl FnOnce(&mut Value)) -> Arc<Shadow> {
    let mut object = json!({
        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "name": "home-uid", "namespace": "t", "uid": "shadow-uid", "generation": 1, "finalizers": [finalizers::SHADOW_POD] },
        "spec": { "namespace": "demo", "pool": "default",
            "pod": { "metadata": { "name": "web" }, "spec": { "restartPolicy": restart_policy, "containers": [] } } },
    });
    change(&mut object);
    Arc::new(Shadow::reduce(serde_json::from_value(object).unwrap()))
}

fn snapshot(shadow: Arc<Shadow>) -> Snapshot {
    Snapshot {
        told: shadow.told.clone(),
        expected_uid: shadow.told.remote_uid.clone(),
        shadow,
        seen: Vec::new(),
        saw_gone: false,
        name_taken: false,
        live: Live::NotAsked,
        refusal: None,
        place: Place { namespace: NAMESPACE.into(), state: PlaceState::Ready },
        applied_generation: Some(1),
        untold_for: Duration::ZERO,
        reclaim: None,
        evicted_uid: None,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn created(restart_policy: &str, change: impl FnOnce(&mut Value)) -> Arc<Shadow> {
    shadow(restart_policy, |object| {
        object["status"] = json!({ "phase": "Created", "remoteUID": "u1", "pod": { "phase": "Running" } });
        change(object);
    })
}

fn live(uid: &str, phase: &str) -> Arc<RemotePod> {
    Arc::new(pod("web", uid, |object| object["status"]["phase"] = phase.into()))
}

fn going(phase: &str, held: bool, grace: i64) -> Arc<RemotePod> {
    Arc::new(pod("web", "u1", |object| {
        object["status"]["phase"] = phase.into();
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        if held {
            object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
        }
    }))
}

fn recorded(step: Step) -> Told {
    match step {
        Step::Record(told) => told,
        other => panic!("nothing was recorded: {other:?}"),
    }
}

#[test]
fn a_new_shadow_pod_gets_its_pod_at_once() {
    assert_eq!(decide(&snapshot(shadow("Always", |_| {}))), Step::Create);
}

#[test]
fn a_pod_that_runs_once_is_recorded_at_once_and_one_that_restarts_with_the_next_news() {
    let mut once = snapshot(shadow("Never", |_| {}));
    once.seen = vec![live("u1", "Pending")];
    assert_eq!(recorded(decide(&once)).remote_uid.as_deref(), Some("u1"));

    let mut restarting = snapshot(shadow("Always", |_| {}));
    restarting.seen = vec![live("u1", "Pending")];
    assert_eq!(decide(&restarting), Step::WaitFor(DETAIL_DELAY));
    restarting.untold_for = DETAIL_DELAY;
    assert_eq!(recorded(decide(&restarting)).remote_uid.as_deref(), Some("u1"));
    restarting.untold_for = Duration::ZERO;
    restarting.seen = vec![live("u1", "Running")];
    assert_eq!(recorded(decide(&restarting)).phase, ShadowPodPhase::Created);
}

#[test]
fn a_pod_that_was_created_before_a_crash_is_found_by_its_label() {
    let mut after_crash = snapshot(shadow("OnFailure", |_| {}));
    after_crash.seen = vec![live("u1", "Running")];
    assert_eq!(recorded(decide(&after_crash)).remote_uid.as_deref(), Some("u1"));
    // The same when the watch does not show it yet, but the API server did when creation failed.
    after_crash.seen = Vec::new();
    after_crash.live = Live::Ours(live("u1", "Running"));
    assert_eq!(recorded(decide(&after_crash)).remote_uid.as_deref(), Some("u1"));
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let mut settled = snapshot(created("Always", |_| {}));
    settled.seen = vec![live("u1", "Running")];
    assert_eq!(decide(&settled), Step::Wait);
}

#[test]
fn details_wait_for_news_but_not_for_ever() {
    let mut detail = snapshot(created("Always", |_| {}));
    let with_ip = pod("web", "u1", |object| object["status"] = json!({ "phase": "Running", "podIP": "10.0.0.1" }));
    detail.seen = vec![Arc::new(with_ip)];
    assert_eq!(decide(&detail), Step::WaitFor(DETAIL_DELAY));
    detail.untold_for = DETAIL_DELAY;
    assert!(recorded(decide(&detail)).pod.is_some());
}

#[test]
fn readiness_restarts_and_a_container_that_cannot_start_are_told_at_once() {
    let ready = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
    let restarted =
        json!({ "phase": "Running", "containerStatuses": [{ "name": "c", "restartCount": 1, "state": { "running": {} } }] });
    let no_image = json!({ "phase": "Running", "containerStatuses": [
        { "name": "c", "restartCount": 0, "state": { "waiting": { "reason": "ImagePullBackOff" } } }] });
    for status in [ready, restarted, no_image] {
        let mut news = snapshot(created("Always", |_| {}));
        news.seen = vec![Arc::new(pod("web", "u1", |object| object["status"] = status.clone()))];
        recorded(decide(&news));
    }
    let mut starting = snapshot(created("Always", |object| object["status"]["pod"]["phase"] = "Pending".into()));
    starting.seen = vec![Arc::new(pod("web", "u1", |object| {
        object["status"] = json!({ "phase": "Pending", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [
            { "name": "c", "restartCount": 0, "state": { "waiting": { "reason": "ContainerCreating" } } }] });
    }))];
    assert_eq!(decide(&starting), Step::WaitFor(DETAIL_DELAY));
}

#[test]
fn the_final_status_is_recorded_before_the_finalizer_goes() {
    let ended = Arc::new(pod("web", "u1", |object| {
        object["status"]["phase"] = "Succeeded".into();
        object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
    }));
    let mut ending = snapshot(created("Never", |_| {}));
    ending.seen = vec![ended.clone()];
    let told = recorded(decide(&ending));
    assert_eq!(told.phase, ShadowPodPhase::Succeeded);
    ending.told = told;
    assert_eq!(decide(&ending), Step::StripFinalizer(ended));
    ending.seen = vec![live("u1", "Succeeded")];
    assert_eq!(decide(&ending), Step::Wait, "its logs stay readable");
}

#[test]
fn a_finished_pod_never_runs_again() {
    for phase in ["Succeeded", "Failed", "Lost"] {
        for policy in ["Always", "OnFailure", "Never"] {
            let mut gone = snapshot(created(policy, |object| object["status"]["phase"] = phase.into()));
            for answer in [Live::NotAsked, Live::Absent, Live::Stranger] {
                gone.live = answer;
                assert_eq!(decide(&gone), Step::Wait, "{phase} {policy}");
            }
        }
    }
}

#[test]
fn whether_a_pod_is_gone_is_asked_of_the_api_server() {
    for policy in ["Always", "Never"] {
        let missing = snapshot(created(policy, |_| {}));
        assert_eq!(decide(&missing), Step::Look, "{policy}");
    }
    let mut late = snapshot(created("Never", |_| {}));
    late.live = Live::Ours(live("u1", "Running"));
    assert_eq!(decide(&late), Step::Wait, "the watch was late");
}

#[test]
fn a_vanished_pod_is_made_again_only_if_it_restarts_always() {
    for answer in [Live::Absent, Live::Stranger] {
        let mut once = snapshot(created("OnFailure", |_| {}));
        once.live = answer;
        let told = recorded(decide(&once));
        assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Lost, Some(REMOTE_POD_LOST)));
        assert_eq!(told.remote_uid.as_deref(), Some("u1"));
    }
    let mut always = snapshot(created("Always", |_| {}));
    always.live = Live::Absent;
    assert_eq!(decide(&always), Step::Create);
}

#[test]
fn a_pod_that_somebody_deletes_here_has_not_ended_for_its_owner_if_it_will_be_made_again() {
    let mut drained = snapshot(created("Always", |_| {}));
    drained.seen = vec![going("Failed", false, 30)];
    assert_eq!(decide(&drained), Step::Wait);
    let mut evicted = snapshot(created("Always", |_| {}));
    evicted.seen = vec![live("u1", "Failed")];
    assert_eq!(recorded(decide(&evicted)).phase, ShadowPodPhase::Failed);
    let mut once = snapshot(created("Never", |_| {}));
    once.seen = vec![going("Failed", true, 30)];
    assert_eq!(recorded(decide(&once)).phase, ShadowPodPhase::Failed);
}

#[test]
fn a_pod_that_never_got_a_node_does_not_wait_for_a_kubelet_to_end_it() {
    let never_placed = Arc::new(pod("web", "u1", |object| {
        object["spec"]["nodeName"] = Value::Null;
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
    }));
    for shadow in
        [created("Never", |_| {}), created("Never", |object| object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 30 }))]
    {
        let mut stuck = snapshot(shadow);
        stuck.seen = vec![never_placed.clone()];
        assert_eq!(decide(&stuck), Step::StripFinalizer(never_placed.clone()));
    }
}

#[test]
fn the_wanted_grace_is_given_and_may_be_shortened_but_not_lengthened() {
    let wanted = |grace: i64| created("Always", |object| object["spec"]["deletion"] = json!({ "gracePeriodSeconds": grace }));
    let mut deletion = snapshot(wanted(20));
    let running = live("u1", "Running");
    deletion.seen = vec![running.clone()];
    assert_eq!(decide(&deletion), Step::Delete(running, Some(20)));
    let leaving = going("Running", false, 20);
    deletion.seen = vec![leaving.clone()];
    assert_eq!(decide(&deletion), Step::Wait);
    deletion.shadow = wanted(60);
    assert_eq!(decide(&deletion), Step::Wait);
    deletion.shadow = wanted(5);
    assert_eq!(decide(&deletion), Step::Delete(leaving, Some(5)));
}

#[test]
fn a_shadow_pod_goes_only_after_its_pod_is_known_to_be_gone() {
    let mut deletion = snapshot(created("Always", |object| object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 20 })));
    assert_eq!(decide(&deletion), Step::Look, "the watch may be late");
    deletion.live = Live::Ours(live("u1", "Running"));
    assert!(matches!(decide(&deletion), Step::Delete(_, Some(20))));
    for answer in [Live::Absent, Live::Stranger] {
        deletion.live = answer;
        assert_eq!(decide(&deletion), Step::Forget);
    }
    deletion.live = Live::NotAsked;
    deletion.saw_gone = true;
    assert_eq!(decide(&deletion), Step::Forget);
}

#[test]
fn the_end_of_a_job_that_is_being_deleted_is_recorded_unless_nobody_reads_it() {
    let job = going("Failed", true, 20);
    let mut wanted = snapshot(created("Never", |object| object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 20 })));
    wanted.seen = vec![job.clone()];
    wanted.told = recorded(decide(&wanted));
    assert_eq!(wanted.told.phase, ShadowPodPhase::Failed);
    assert_eq!(decide(&wanted), Step::StripFinalizer(job));

    let still_running = going("Running", true, 0);
    let mut forced = snapshot(created("Never", |object| object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 0 })));
    forced.seen = vec![still_running.clone()];
    assert_eq!(decide(&forced), Step::StripFinalizer(still_running));

    let leaving = going("Running", true, 30);
    let mut deleted =
        snapshot(created("Never", |object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()));
    deleted.seen = vec![live("u1", "Running")];
    assert!(matches!(decide(&deleted), Step::Delete(_, Some(30))));
    deleted.seen = vec![leaving.clone()];
    assert_eq!(decide(&deleted), Step::StripFinalizer(leaving));
}

#[test]
fn a_pod_without_a_shadow_pod_is_deleted_gracefully() {
    assert!(matches!(decide_orphan(&live("u1", "Running")), Step::Delete(_, Some(30))));
    let leaving = going("Running", true, 30);
    assert_eq!(decide_orphan(&leaving), Step::StripFinalizer(leaving));
    assert_eq!(decide_orphan(&going("Running", false, 30)), Step::Wait);
}

#[test]
fn a_pod_of_the_same_name_is_never_taken_for_ours() {
    let mut taken = snapshot(shadow("Always", |_| {}));
    taken.name_taken = true;
    let told = recorded(decide(&taken));
    assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Pending, Some(NAME_TAKEN)));
    taken.told = told;
    assert_eq!(decide(&taken), Step::Look, "it may be gone by now");
    taken.live = Live::Stranger;
    assert_eq!(decide(&taken), Step::WaitFor(NAME_TAKEN_RETRY));
    taken.name_taken = false;
    taken.live = Live::Absent;
    assert_eq!(decide(&taken), Step::Create);
}

#[test]
fn a_refused_pod_is_told_once_why() {
    let mut refused = snapshot(shadow("Always", |_| {}));
    refused.refusal = Some(Refusal { reason: "OfferExceeded", message: "cpu: 1 short".into() });
    let told = recorded(decide(&refused));
    assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Refused, Some("OfferExceeded")));
    refused.told = told;
    assert_eq!(decide(&refused), Step::Wait);
    refused.refusal = Some(Refusal { reason: "OfferExceeded", message: "cpu: 2 short".into() });
    assert_eq!(decide(&refused), Step::WaitFor(WORDS_DELAY));
    refused.untold_for = WORDS_DELAY;
    assert!(recorded(decide(&refused)).message.unwrap().contains("2 short"));
    refused.refusal = None;
    assert_eq!(decide(&refused), Step::Create, "it is tried again when something changes");
}

#[test]
fn without_a_namespace_a_pod_waits_and_says_so() {
    for state in [PlaceState::NotReady("soon".into()), PlaceState::Unwanted] {
        let mut early = snapshot(shadow("Always", |_| {}));
        early.place.state = state;
        let told = recorded(decide(&early));
        assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Pending, Some(NAMESPACE_NOT_READY)));
        early.told = told;
        assert_eq!(decide(&early), Step::Wait);
    }
}

#[test]
fn a_pod_leaves_a_namespace_that_is_no_longer_wanted_but_not_one_that_is_only_not_ready() {
    let mut unoffloaded = snapshot(created("Always", |_| {}));
    unoffloaded.seen = vec![live("u1", "Running")];
    unoffloaded.place.state = PlaceState::NotReady("checking".into());
    assert_eq!(decide(&unoffloaded), Step::Wait);
    unoffloaded.place.state = PlaceState::Unwanted;
    assert!(matches!(decide(&unoffloaded), Step::Delete(_, Some(30))));
    unoffloaded.place = Place { namespace: "another".into(), state: PlaceState::Ready };
    assert!(matches!(decide(&unoffloaded), Step::Delete(_, Some(30))));
}

#[test]
fn a_changed_pod_is_brought_up_to_date_once() {
    let mut changed = snapshot(created("Always", |object| object["metadata"]["generation"] = 2.into()));
    let running = live("u1", "Running");
    changed.seen = vec![running.clone()];
    assert_eq!(decide(&changed), Step::Update(running));
    changed.applied_generation = Some(2);
    assert_eq!(decide(&changed), Step::Wait);
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
    assert_eq!(recorded(decide(&snapshot(strange(false)))).reason.as_deref(), Some("Invalid"));
    assert_eq!(decide(&snapshot(strange(true))), Step::Forget);
}

#[test]
fn a_name_that_is_none_never_becomes_part_of_a_request() {
    for name in ["../../secrets/x", "a/b", "..", "Web"] {
        let strange = shadow("Always", |object| object["spec"]["pod"]["metadata"]["name"] = name.into());
        assert_eq!(strange.pod_name, "");
        assert_eq!(recorded(decide(&snapshot(strange))).reason.as_deref(), Some("Invalid"), "{name}");
    }
}

/// A provider in miniature: what the API server holds, and what we remember.
struct Model {
    policy: &'static str,
    told: Told,
    pod: Option<RemotePod>,
    watched: Option<Arc<RemotePod>>,
    created_uid: Option<String>,
    made: u32,
    ended: bool,
    /// Whether what the pod uses is taken back, and whether the pod was evicted for that.
    reclaim: bool,
    evicted: bool,
    evicted_uid: Option<String>,
    random: u64,
}

impl Model {
    fn chance(&mut self, one_in: u64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33).is_multiple_of(one_in)
    }

    /// Runs the steps until there is nothing to do, or until we crash, which may come before or after any write.
    fn pass(&mut self) {
        let (mut live, mut crashed) = (Live::NotAsked, false);
        for _ in 0..20 {
            let mut snapshot = snapshot(shadow(self.policy, |_| {}));
            snapshot.told = self.told.clone();
            snapshot.expected_uid = self.told.remote_uid.clone().or(self.created_uid.clone());
            snapshot.seen = self.watched.clone().into_iter().collect();
            snapshot.live = live.clone();
            snapshot.untold_for = DETAIL_DELAY;
            snapshot.reclaim = self.reclaim.then(|| "taken back".to_owned());
            snapshot.evicted_uid = self.evicted_uid.clone();
            if self.chance(10) {
                crashed = true;
            } else {
                match decide(&snapshot) {
                    Step::Look => live = self.pod.clone().map_or(Live::Absent, |pod| Live::Ours(Arc::new(pod))),
                    Step::Create if self.pod.is_some() => live = Live::Ours(Arc::new(self.pod.clone().unwrap())),
                    Step::Create => {
                        assert!(!self.told.phase.is_final(), "a finished pod ran again");
                        assert!(!self.evicted, "a pod whose room was taken back was made again");
                        assert!(!self.ended || self.policy == "Always", "a pod that ended ran again");
                        self.made += 1;
                        let uid = format!("u{}", self.made);
                        let held = self.policy != "Always";
                        let pod = RemotePod { held, ..pod("web", &uid, |_| {}) };
                        self.pod = Some(pod.clone());
                        self.created_uid = Some(uid);
                        live = Live::Ours(Arc::new(pod));
                    }
                    Step::Record(told) => {
                        assert!(!self.told.phase.is_final() || self.told.phase == told.phase, "a final phase changed");
                        self.created_uid = told.remote_uid.clone();
                        self.told = told;
                    }
                    Step::Evict(pod, grace) => {
                        assert_eq!(self.told.reason.as_deref(), Some(OFFER_RECLAIMED), "it must be known why the pod goes");
                        if let Some(here) = self.pod.as_mut().filter(|here| here.uid == pod.uid) {
                            here.deletion_grace = Some(grace);
                            self.evicted = true;
                            self.evicted_uid = Some(pod.uid.clone());
                        }
                        return;
                    }
                    Step::StripFinalizer(pod) => {
                        assert!(self.told.phase.is_final(), "the finalizer went before the end was recorded");
                        if let Some(held) = self.pod.as_mut().filter(|held| held.uid == pod.uid) {
                            held.held = false;
                        }
                        return;
                    }
                    Step::Delete(..) | Step::Update(_) | Step::Forget => panic!("nobody wanted that"),
                    Step::Wait | Step::WaitFor(_) => return,
                }
                crashed |= self.chance(10);
            }
            if crashed {
                (self.created_uid, self.evicted_uid) = (None, None);
                // The next leader starts with a list, not with what a late watch shows.
                self.watched = self.pod.clone().map(Arc::new);
                return;
            }
        }
        panic!("the steps do not come to an end");
    }

    /// Time passes at the provider.
    fn happen(&mut self) {
        if self.chance(8) {
            self.reclaim = !self.reclaim;
        }
        if self.chance(3) {
            let end = if self.chance(2) { End::Succeeded } else { End::Failed };
            if let Some(pod) = self.pod.as_mut().filter(|pod| pod.end.is_none()) {
                (pod.end, self.ended) = (Some(end), true);
            }
        }
        let somebody_deletes_it = self.chance(4);
        if let Some(pod) = self.pod.as_mut().filter(|_| somebody_deletes_it) {
            pod.deletion_grace = Some(30);
        }
        let kubelet_ends_it = self.chance(2);
        if let Some(pod) = self.pod.as_mut().filter(|pod| pod.deletion_grace.is_some() && kubelet_ends_it) {
            (pod.end, self.ended) = (pod.end.or(Some(End::Failed)), true);
        }
        if self.pod.as_ref().is_some_and(|pod| pod.deletion_grace.is_some() && pod.end.is_some() && !pod.held) {
            self.pod = None;
        }
        if self.chance(2) {
            self.watched = self.pod.clone().map(Arc::new);
        }
    }
}

#[test]
fn whatever_fails_and_whenever_we_crash_a_pod_that_runs_once_runs_once() {
    for policy in ["Never", "OnFailure", "Always"] {
        for seed in 0..200 {
            let mut model = Model {
                policy,
                told: Told::default(),
                pod: None,
                watched: None,
                created_uid: None,
                made: 0,
                ended: false,
                reclaim: false,
                evicted: false,
                evicted_uid: None,
                random: seed,
            };
            for _ in 0..40 {
                model.pass();
                model.happen();
            }
            assert!(policy == "Always" || model.made <= 1, "{policy} ran {} times with seed {seed}", model.made);
        }
    }
    assert_eq!(pod("web", "u", |_| {}).consumer, consumer());
}

/// What the status says of a pod whose room is taken back.
fn marked(restart_policy: &str) -> Snapshot {
    snapshot(created(restart_policy, |object| {
        object["status"]["reason"] = OFFER_RECLAIMED.into();
        object["status"]["message"] = "pool default became smaller".into();
    }))
}

#[test]
fn a_pod_whose_room_is_taken_back_is_marked_then_evicted() {
    let mut reclaimed = snapshot(created("Always", |_| {}));
    let running = Arc::new(RemotePod { own_grace: 3600, ..(*live("u1", "Running")).clone() });
    reclaimed.seen = vec![running.clone()];
    reclaimed.reclaim = Some("pool default became smaller".into());
    let told = recorded(decide(&reclaimed));
    assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Created, Some(OFFER_RECLAIMED)));
    reclaimed.told = told;
    assert_eq!(decide(&reclaimed), Step::Evict(running, 30), "no longer than the provider waits for a pod that it ends");
    reclaimed.evicted_uid = Some("u1".into());
    assert_eq!(decide(&reclaimed), Step::Wait, "once is enough, though the watch does not show it yet");
}

#[test]
fn a_pod_whose_room_was_given_back_in_time_stays() {
    let mut kept = marked("Always");
    kept.seen = vec![live("u1", "Running")];
    let told = recorded(decide(&kept));
    assert_eq!((told.phase, told.reason), (ShadowPodPhase::Created, None));
}

#[test]
fn a_pod_that_ended_because_its_room_was_taken_back_is_not_made_again_but_failed() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut gone = marked(policy);
        assert_eq!(decide(&gone), Step::Look);
        gone.live = Live::Absent;
        let mut ended = marked(policy);
        ended.seen = vec![going("Failed", policy != "Always", 30)];
        for ending in [gone, ended] {
            let told = recorded(decide(&ending));
            assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Failed, Some(OFFER_RECLAIMED)), "{policy}");
            let status = told.pod.unwrap().value();
            assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
        }
    }
}

#[test]
fn a_pod_that_ran_and_finds_no_room_any_more_has_failed_but_one_that_never_ran_waits() {
    let refusal = || Some(Refusal { reason: "OfferExceeded", message: "cpu: 1 short".into() });
    let mut vanished = snapshot(created("Always", |_| {}));
    vanished.live = Live::Absent;
    assert_eq!(decide(&vanished), Step::Create, "there may be room");
    vanished.refusal = refusal();
    let told = recorded(decide(&vanished));
    assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Failed, Some(OFFER_RECLAIMED)));
    assert!(told.message.unwrap().contains("pool default"));
    let mut new = snapshot(shadow("Always", |_| {}));
    new.refusal = refusal();
    assert_eq!(recorded(decide(&new)).phase, ShadowPodPhase::Refused);
}

#[test]
fn a_job_that_succeeds_while_it_is_evicted_has_succeeded() {
    let mut evicted = marked("Never");
    evicted.seen = vec![going("Succeeded", true, 30)];
    assert_eq!(recorded(decide(&evicted)).phase, ShadowPodPhase::Succeeded);
}

#[test]
fn a_pod_that_somebody_else_deletes_is_made_again_although_pools_shrink() {
    let mut drained = snapshot(created("Always", |_| {}));
    drained.seen = vec![going("Failed", false, 30)];
    drained.reclaim = Some("pool default became smaller".into());
    assert_eq!(decide(&drained), Step::Wait, "its end is not told");
}

#[test]
fn what_a_waiting_pod_asks_for_is_known_before_it_is_looked_at() {
    let asks = |cpu: &str| {
        shadow("Always", |object| {
            object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["spec"]["pod"]["spec"]["containers"] = json!([{ "name": "c", "resources": { "requests": { "cpu": cpu } } }]);
        })
    };
    let wish = asks("2").wish(&Key::new("t", "home-uid")).unwrap();
    assert_eq!((wish.charge.requests.get("cpu").to_string(), wish.turn.uid.as_str()), ("2".into(), "home-uid"));
    assert_eq!(wish.turn.created.to_string(), "2026-01-01T00:00:00Z");
    assert_eq!(asks("-2").wish(&Key::new("t", "home-uid")), None, "it would make room for others");
    assert_eq!(created("Always", |_| {}).wish(&Key::new("t", "home-uid")), None);
}

#[test]
fn a_consumer_cannot_make_its_pod_outlast_what_the_provider_ends() {
    let patient = |seconds: i64| Arc::new(RemotePod { own_grace: seconds, ..(*live("u1", "Running")).clone() });
    for (own, given) in [(1_000_000_000, 30), (5, 5), (-1, 1)] {
        assert!(matches!(decide_orphan(&patient(own)), Step::Delete(_, Some(grace)) if grace == given), "{own}");
        let mut unoffloaded = snapshot(created("Always", |_| {}));
        unoffloaded.seen = vec![patient(own)];
        unoffloaded.place.state = PlaceState::Unwanted;
        assert!(matches!(decide(&unoffloaded), Step::Delete(_, Some(grace)) if grace == given), "{own}");
    }
    assert!(matches!(decide_orphan(&going("Running", true, 1_000_000_000)), Step::Delete(_, Some(30))));
    let mut asked = snapshot(created("Always", |object| object["spec"]["deletion"] = json!({ "gracePeriodSeconds": 3600 })));
    asked.seen = vec![patient(5)];
    assert!(matches!(decide(&asked), Step::Delete(_, Some(3600))), "that is the consumer's own choice");
}

#[test]
fn a_pod_that_is_large_is_not_kept() {
    let padded =
        |bytes: usize| shadow("Always", |object| object["spec"]["pod"]["metadata"]["padding"] = "x".repeat(bytes).into());
    assert!(padded(1000).pod.is_some());
    assert!(padded(LARGEST_KEPT).pod.is_none());
}

#[test]
fn a_pod_that_may_run_again_is_given_up_when_its_node_does_not_end_it() {
    let mut deleted = snapshot(created("Always", |_| {}));
    deleted.seen = vec![going("Running", false, 30)];
    deleted.told.pod = Some(going("Running", false, 30).status.clone());
    let at = |text: &str| Snapshot { now: text.parse().unwrap(), ..deleted.clone() };
    assert_eq!(decide(&at("2025-12-31T23:59:40Z")), Step::WaitFor(Duration::from_secs(50)), "grace is given until midnight");
    assert_eq!(decide(&at("2026-01-01T00:00:29Z")), Step::WaitFor(Duration::from_secs(1)));
    let told = recorded(decide(&at("2026-01-01T00:00:30Z")));
    assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Lost, Some(REMOTE_POD_LOST)));
    // The pod stays until its node is back; nothing more is asked for.
    let given_up = Snapshot { told: Told { ..told }, ..at("2026-01-01T00:00:30Z") };
    assert_eq!(decide(&given_up), Step::Wait);
}

#[test]
fn a_pod_that_may_run_only_once_is_never_given_up() {
    for policy in ["Never", "OnFailure"] {
        let mut deleted = snapshot(created(policy, |_| {}));
        deleted.seen = vec![going("Running", true, 30)];
        deleted.told.pod = Some(going("Running", true, 30).status.clone());
        deleted.now = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(decide(&deleted), Step::Wait, "{policy}");
    }
}

#[test]
fn what_is_taken_back_on_a_node_that_is_gone_ends_at_home() {
    let mut evicted = snapshot(created("Always", |_| {}));
    evicted.seen = vec![going("Running", false, 30)];
    evicted.told.reason = Some(OFFER_RECLAIMED.to_owned());
    evicted.told.message = Some("pool default became smaller".to_owned());
    evicted.evicted_uid = Some("u1".to_owned());
    evicted.now = "2026-01-01T00:02:00Z".parse().unwrap();
    let told = recorded(decide(&evicted));
    assert_eq!((told.phase, told.reason.as_deref()), (ShadowPodPhase::Failed, Some(OFFER_RECLAIMED)));
}
