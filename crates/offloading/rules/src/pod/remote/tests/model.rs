//! A provider in miniature, in which requests fail and the controller crashes at random.

use super::*;

/// A provider in miniature: the objects in the API server, and the controller's memory.
struct Model {
    policy: &'static str,
    reported: ReportedStatus,
    pod: Option<RemotePod>,
    watched: Option<Arc<RemotePod>>,
    created_uid: Option<String>,
    made: u32,
    ended: bool,
    /// Whether what the pod uses is taken back, and whether the pod was evicted for that.
    taken_back: Option<PodReclaim>,
    evicted: bool,
    evicted_uid: Option<String>,
    random: u64,
}

impl Model {
    fn chance(&mut self, one_in: u64) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33).is_multiple_of(one_in)
    }

    /// Runs the steps until there is nothing to do, or until we crash, which may come before or
    /// after any write.
    fn pass(&mut self) {
        let (mut live, mut crashed) = (LivePod::NotAsked, false);
        for _ in 0..20 {
            let snapshot = self.snapshot_with(&live);
            if self.chance(10) {
                crashed = true;
            } else {
                match decide_shadow_pod(&snapshot) {
                    ShadowPodStep::ReadLive => {
                        live = self
                            .pod
                            .clone()
                            .map_or(LivePod::Absent, |pod| LivePod::Ours(Arc::new(pod)));
                    }
                    ShadowPodStep::Create if self.pod.is_some() => {
                        live = LivePod::Ours(Arc::new(self.pod.clone().unwrap()));
                    }
                    ShadowPodStep::Create => live = LivePod::Ours(Arc::new(self.create_pod())),
                    ShadowPodStep::Report(reported) => {
                        assert!(
                            !self.reported.phase.is_final()
                                || self.reported.phase == reported.phase,
                            "a final phase changed"
                        );
                        self.created_uid = reported.remote_uid.clone();
                        self.reported = reported;
                    }
                    ShadowPodStep::Evict(pod, grace) => {
                        assert_eq!(
                            self.reported.reason.as_deref(),
                            Some(OFFER_RECLAIMED),
                            "it must be known why the pod goes"
                        );
                        if let Some(here) = self.pod.as_mut().filter(|here| here.uid == pod.uid) {
                            here.deletion_grace = Some(grace);
                            self.evicted = true;
                            self.evicted_uid = Some(pod.uid.clone());
                        }
                        return;
                    }
                    ShadowPodStep::StripFinalizer(pod) => {
                        assert!(
                            self.reported.phase.is_final(),
                            "the finalizer went before the end was recorded"
                        );
                        if let Some(has_finalizer) = self
                            .pod
                            .as_mut()
                            .filter(|has_finalizer| has_finalizer.uid == pod.uid)
                        {
                            has_finalizer.has_finalizer = false;
                        }
                        return;
                    }
                    ShadowPodStep::Delete(..)
                    | ShadowPodStep::DeleteUnscheduled(_)
                    | ShadowPodStep::Update(_)
                    | ShadowPodStep::Release => {
                        panic!("nobody wanted that")
                    }
                    // This model has no contract.
                    ShadowPodStep::Wait
                    | ShadowPodStep::WaitFor(_)
                    | ShadowPodStep::WaitToReport(_)
                    | ShadowPodStep::StoreUsage(_) => {
                        return;
                    }
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

    fn snapshot_with(&self, live: &LivePod) -> ShadowPodSnapshot {
        let mut snapshot = snapshot(shadow(self.policy, |_| {}));
        snapshot.reported = self.reported.clone();
        snapshot.expected_uid = self
            .reported
            .remote_uid
            .clone()
            .or(self.created_uid.clone());
        snapshot.seen = self.watched.clone().into_iter().collect();
        snapshot.live = live.clone();
        snapshot.unreported_for = DETAIL_DELAY;
        snapshot.taken_back.clone_from(&self.taken_back);
        snapshot.evicted_uid = self.evicted_uid.clone();
        snapshot
    }

    fn create_pod(&mut self) -> RemotePod {
        assert!(!self.reported.phase.is_final(), "a finished pod ran again");
        assert!(
            !self.evicted,
            "a pod whose room was taken back was made again"
        );
        assert!(
            !self.ended || self.policy == "Always",
            "a pod that ended ran again"
        );
        self.made += 1;
        let uid = format!("u{}", self.made);
        let pod = RemotePod {
            has_finalizer: self.policy != "Always",
            ..pod("web", &uid, |_| {})
        };
        self.pod = Some(pod.clone());
        self.created_uid = Some(uid);
        pod
    }

    /// Time passes at the provider.
    fn happen(&mut self) {
        if self.chance(8) {
            let now = || PodReclaim::Now("taken back".to_owned());
            let later = || PodReclaim::AfterNotice("the pod ends soon".to_owned());
            let next = if self.chance(2) { now() } else { later() };
            self.taken_back = if self.taken_back.is_some() {
                None
            } else {
                Some(next)
            };
        }
        if self.chance(3) {
            let end = if self.chance(2) {
                PodEnd::Succeeded
            } else {
                PodEnd::Failed
            };
            if let Some(pod) = self.pod.as_mut().filter(|pod| pod.end.is_none()) {
                (pod.end, self.ended) = (Some(end), true);
            }
        }
        let somebody_deletes_it = self.chance(4);
        if let Some(pod) = self.pod.as_mut().filter(|_| somebody_deletes_it) {
            pod.deletion_grace = Some(30);
        }
        let kubelet_ends_it = self.chance(2);
        if let Some(pod) = self
            .pod
            .as_mut()
            .filter(|pod| pod.deletion_grace.is_some() && kubelet_ends_it)
        {
            (pod.end, self.ended) = (pod.end.or(Some(PodEnd::Failed)), true);
        }
        if self.pod.as_ref().is_some_and(|pod| {
            pod.deletion_grace.is_some() && pod.end.is_some() && !pod.has_finalizer
        }) {
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
                reported: ReportedStatus::default(),
                pod: None,
                watched: None,
                created_uid: None,
                made: 0,
                ended: false,
                taken_back: None,
                evicted: false,
                evicted_uid: None,
                random: seed,
            };
            for _ in 0..40 {
                model.pass();
                model.happen();
            }
            assert!(
                policy == "Always" || model.made <= 1,
                "{policy} ran {} times with seed {seed}",
                model.made
            );
        }
    }
    assert_eq!(pod("web", "u", |_| {}).consumer, consumer());
}
