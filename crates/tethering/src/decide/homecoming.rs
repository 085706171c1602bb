//! Selects the pods that come home next when control is back.
//!
//! Kubernetes cannot move a running pod, and a running container cannot get another pod:
//! `spec.nodeName` never changes, and a kubelet knows containers by the UID of their pod. So what
//! runs on a node of this cluster as a pod of this cluster stays as it is, and a pod on a virtual
//! node of the peer comes home by a new pod. Only pods whose controller creates another one are
//! asked to come: a pod that may run only once, or that nobody would create again, ends where it
//! is.

use std::collections::BTreeMap;

use jiff::Timestamp;
use liqo_api::Key;
use liqo_api::departure::DepartureCause;

/// The one whose next pod waits until the former one is gone.
const ONE_AFTER_THE_OTHER: &str = "StatefulSet";

/// A pod of a namespace of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserPod {
    pub key: Key,
    pub uid: String,
    /// Kind and UID of its controller.
    pub controller: Option<(String, String)>,
    pub place: UserPodPlace,
    pub ready: bool,
    pub terminating: bool,
    pub created: Option<Timestamp>,
}

/// The place of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserPodPlace {
    /// On a node of this cluster, or on none yet.
    Here,
    /// On a virtual node. If its provider answers, it says when the pod is gone.
    Away { is_heard_of: bool },
}

impl UserPod {
    pub fn is_away(&self) -> bool {
        self.place != UserPodPlace::Here
    }

    /// Whether it is away, and its controller creates another one.
    pub fn must_return(&self) -> bool {
        self.is_away()
            && DepartureCause::ControlIsBack
                .takes_pods_of(self.controller.as_ref().map(|(kind, _)| kind.as_str()))
    }
}

/// The pods to evict now: of each controller at most one, the oldest. The next one follows when the
/// new pod is ready, and the former one is gone; a silent peer does not say that it is, so then
/// only the new pod counts where it does not wait for the former one itself.
pub fn next_to_evict(pods: &[UserPod]) -> Vec<&UserPod> {
    let mut of_controllers: BTreeMap<(&str, &str), Vec<&UserPod>> = BTreeMap::new();
    for pod in pods {
        if let Some((kind, uid)) = &pod.controller {
            of_controllers.entry((kind, uid)).or_default().push(pod);
        }
    }
    of_controllers
        .into_iter()
        .filter_map(|((kind, _), pods)| next_of_controller(kind, &pods))
        .collect()
}

fn is_pod_unsettled(kind: &str, pod: &UserPod) -> bool {
    match (pod.terminating, pod.place) {
        (true, UserPodPlace::Away { is_heard_of }) => is_heard_of || kind == ONE_AFTER_THE_OTHER,
        (true, UserPodPlace::Here) => true,
        (false, place) => place == UserPodPlace::Here && !pod.ready,
    }
}

fn next_of_controller<'a>(kind: &str, pods: &[&'a UserPod]) -> Option<&'a UserPod> {
    if pods.iter().any(|pod| is_pod_unsettled(kind, pod)) {
        return None;
    }
    let staying = pods
        .iter()
        .filter(|pod| pod.must_return() && !pod.terminating);
    staying.min_by_key(|pod| (pod.created, &pod.uid)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, kind: &str, away: bool, created: i64) -> UserPod {
        UserPod {
            key: Key::new("demo", name),
            uid: name.into(),
            controller: (!kind.is_empty()).then(|| (kind.to_owned(), format!("{kind}-uid"))),
            place: if away {
                UserPodPlace::Away { is_heard_of: true }
            } else {
                UserPodPlace::Here
            },
            ready: true,
            terminating: false,
            created: Timestamp::from_second(created).ok(),
        }
    }

    fn names(pods: &[UserPod]) -> Vec<&str> {
        next_to_evict(pods)
            .iter()
            .map(|pod| pod.uid.as_str())
            .collect()
    }

    #[test]
    fn of_each_controller_the_oldest_comes_first_and_alone() {
        let pods = [
            pod("web-2", "ReplicaSet", true, 2),
            pod("web-1", "ReplicaSet", true, 1),
            pod("db-0", "StatefulSet", true, 3),
        ];
        assert_eq!(names(&pods), ["web-1", "db-0"]);
    }

    #[test]
    fn the_next_one_waits_until_the_new_pod_is_ready_and_the_former_one_is_gone() {
        let mut pods = vec![
            pod("web-1", "ReplicaSet", true, 1),
            pod("web-2", "ReplicaSet", true, 2),
        ];
        pods[0].terminating = true;
        pods.push(UserPod {
            ready: false,
            ..pod("web-3", "ReplicaSet", false, 9)
        });
        assert!(names(&pods).is_empty());
        pods[2].ready = true;
        assert!(names(&pods).is_empty(), "the former one still ends");
        pods.remove(0);
        assert_eq!(names(&pods), ["web-2"]);
    }

    #[test]
    fn a_silent_peer_does_not_hold_up_pods_that_do_not_wait_for_the_former_one() {
        for (kind, expected) in [("ReplicaSet", vec!["two"]), ("StatefulSet", vec![])] {
            let mut pods = vec![
                pod("one", kind, true, 1),
                pod("two", kind, true, 2),
                pod("three", kind, false, 3),
            ];
            pods[0].terminating = true;
            pods[0].place = UserPodPlace::Away { is_heard_of: false };
            assert_eq!(names(&pods), expected, "{kind}");
            pods[2].ready = false;
            assert!(names(&pods).is_empty(), "the new pod is not ready");
        }
    }

    #[test]
    fn what_nobody_would_create_again_or_may_run_only_once_stays() {
        let pods = [
            pod("alone", "", true, 1),
            pod("task", "Job", true, 1),
            pod("agent", "DaemonSet", true, 1),
        ];
        assert!(names(&pods).is_empty());
        assert!(pods.iter().all(|pod| !pod.must_return()));
    }

    #[test]
    fn what_is_at_home_stays() {
        assert!(names(&[pod("web-1", "ReplicaSet", false, 1)]).is_empty());
    }
}
