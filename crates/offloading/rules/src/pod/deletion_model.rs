//! A model of how pods end: both sides' rules over three objects, in any order of passes, late
//! watches, restarts and versions.
//!
//! ```text
//!   user --> local pod <-- consumer: local::decide --> shadow pod <-- provider: remote::decide --> remote pod <-- kubelet
//! ```
//! Each side decides by what its watches last showed, and may die after any of its writes, or while
//! the API server removes the local pod, which takes two writes of its own. Each write is applied
//! as an API server would. In the end a side decides again only if something made the pod due: a
//! watch that showed a change, a restart, a request that failed, or a time that the decision named.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use liqo_api::{Charge, Claimed, Key, ShadowPod, finalizers, labels};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixtures::consumer;
use crate::namespace::mapped::{Destination, DestinationState};
use crate::pod::ephemeral::RefusedContainers;
use crate::pod::local::{
    self, LocalPodAction, LocalPodDecision, LocalPodFacts, PeerReachability, RemoteNamespaceState,
    SendProgress,
};
use crate::pod::local_state::{self, LocalPod};
use crate::pod::metering::Metering;
use crate::pod::remote::{self, DETAIL_DELAY, LivePod, ShadowPodSnapshot, ShadowPodStep};
use crate::pod::remote_pod::RemotePod;
use crate::pod::reported_status::ReportedStatus;
use crate::pod::shadow_pod;

const NAMESPACE: &str = "demo-rome-aaaaaa";
/// Passes of everybody after which nothing may be left to do.
const ROUNDS: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The consumer decides, and dies after so many writes.
    Consumer(usize),
    /// The provider decides, and dies after so many writes.
    Provider(usize),
    /// The consumer's watch of pods shows what there is.
    ConsumerSeesLocal,
    /// The consumer's watch of shadow pods shows what there is.
    ConsumerSeesShadow,
    /// The API server does only the first half of the next removal of the local pod. A consumer
    /// learns that, or dies.
    RemovalIsInterrupted {
        dies: bool,
    },
    /// The same at the provider, for a remote pod that has no node.
    RemoteRemovalIsInterrupted {
        dies: bool,
    },
    /// The provider's watch of shadow pods shows what there is.
    ProviderSeesShadow,
    /// The provider's watch of pods shows what there is.
    ProviderSeesRemote,
    /// The remote pod is started or, if it is being deleted, ended.
    Kubelet,
    /// The container of a pod that may run only once exits.
    Exits,
    /// Somebody deletes the local pod with this grace; 0 removes it at once.
    UserDeletes(i64),
    /// The consumer's manager is replaced by one of the version before, or by ours.
    ConsumerChangesVersion,
    ProviderRestarts,
}

/// Both clusters, as far as one pod is concerned.
#[derive(Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
struct World {
    local: Option<Value>,
    shadow: Option<Value>,
    remote: Option<Value>,
    /// The objects that the watches last showed.
    seen_local: Option<Value>,
    consumers_shadow: Option<Value>,
    providers_shadow: Option<Value>,
    seen_remote: Option<Value>,
    /// The last pod that the watch reported as gone, as it was then.
    gone: Option<Value>,
    /// The facts that the processes remember.
    sent: Option<SendProgress>,
    reported: Option<ReportedStatus>,
    created: Option<String>,
    older_consumer: bool,
    removed: bool,
    /// Whether the controllers have to decide again.
    consumer_is_due: bool,
    provider_is_due: bool,
    /// Set if the next removal of the local pod fails; true if the consumer dies of it.
    interruption: Option<bool>,
    /// The same for the remote pod and the provider.
    remote_interruption: Option<bool>,
    /// Whether there is a contract, and whether what the pod used is stored.
    metered: bool,
    stored: bool,
    /// Whether this cluster lends the pod on for a consumer, and so holds the local pod until its
    /// end is known.
    held: bool,
    /// The history of the pod.
    runs_once: bool,
    remotes: usize,
    runs: usize,
    removed_by_force: bool,
    ended_by_itself: bool,
    /// The phase of the local pod when it was removed.
    last_phase: Option<Value>,
    /// Writes of ours since the user deleted the pod.
    writes: usize,
}

fn set_deletion(object: &mut Value, grace: i64) {
    let before = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
    object["metadata"]["deletionTimestamp"] = "2100-01-01T00:00:00Z".into();
    object["metadata"]["deletionGracePeriodSeconds"] =
        before.map_or(grace, |before| before.min(grace)).into();
}

fn is_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn has_ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|all| !all.is_empty())
}

impl World {
    fn new(runs_once: bool) -> Self {
        let policy = if runs_once { "Never" } else { "Always" };
        let local = json!({
            "metadata": { "namespace": "demo", "name": "web", "uid": "home-uid" },
            "spec": { "restartPolicy": policy, "containers": [{ "name": "c", "image": "i" }] },
            "status": { "phase": "Pending" },
        });
        Self {
            local: Some(local),
            runs_once,
            ..Self::default()
        }
    }

    /// A pod that this cluster created for a consumer, and that runs at a provider.
    fn brokered() -> Self {
        let mut world = Self {
            held: true,
            ..Self::new(true)
        };
        world
            .local
            .iter_mut()
            .for_each(|local| local["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]));
        world
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Consumer(writes) => self.consumer_decides(writes),
            Event::Provider(writes) => self.provider_decides(writes),
            Event::ConsumerSeesLocal => self.consumer_sees_local(),
            Event::ConsumerSeesShadow => self.consumer_sees_shadow(),
            Event::RemovalIsInterrupted { dies } => self.interruption = Some(dies),
            Event::RemoteRemovalIsInterrupted { dies } => self.remote_interruption = Some(dies),
            Event::ProviderSeesShadow => self.provider_sees_shadow(),
            Event::ProviderSeesRemote => self.provider_sees_remote(),
            Event::Kubelet => self.kubelet(),
            Event::Exits => self.exits(),
            Event::UserDeletes(grace) => self.user_deletes(grace),
            Event::ConsumerChangesVersion => {
                self.older_consumer = !self.older_consumer;
                self.consumer_restarts();
            }
            Event::ProviderRestarts => self.provider_restarts(),
        }
        self.holder_lets_go();
        assert!(
            self.local.is_some() || self.removed_by_force || self.remote.is_none(),
            "the name is free while the pod exists"
        );
        assert!(
            !self.runs_once || self.runs <= 1,
            "a pod that may run only once ran again"
        );
    }

    fn consumer_sees_local(&mut self) {
        self.consumer_is_due |= self.seen_local != self.local;
        self.seen_local.clone_from(&self.local);
    }

    fn consumer_sees_shadow(&mut self) {
        self.consumer_is_due |= self.consumers_shadow != self.shadow;
        if self.consumers_shadow.is_some() || self.shadow.is_some() {
            self.sent = self
                .sent
                .filter(|sent| *sent == SendProgress::Tried && self.shadow.is_none());
        }
        self.consumers_shadow.clone_from(&self.shadow);
    }

    /// Another process decides nothing before it has listed the shadow pods. It may list the local
    /// pods after that.
    fn consumer_restarts(&mut self) {
        (self.sent, self.removed, self.seen_local) = (None, false, None);
        self.consumers_shadow.clone_from(&self.shadow);
        self.consumer_is_due = true;
    }

    /// Another process decides nothing before it has listed shadow pods and pods.
    fn provider_restarts(&mut self) {
        (self.reported, self.created, self.gone) = (None, None, None);
        self.providers_shadow.clone_from(&self.shadow);
        self.seen_remote.clone_from(&self.remote);
        self.provider_is_due = true;
    }

    fn provider_sees_shadow(&mut self) {
        let reduced = |shadow: &Value| {
            shadow_pod::ProviderShadowPod::from_shadow_pod(
                serde_json::from_value(shadow.clone()).unwrap(),
            )
        };
        self.provider_is_due |= match (&self.providers_shadow, &self.shadow) {
            (Some(old), Some(new)) => reduced(new).differs_beyond_status(&reduced(old)),
            (old, new) => old.is_some() || new.is_some(),
        };
        self.providers_shadow.clone_from(&self.shadow);
    }

    fn provider_sees_remote(&mut self) {
        let uid = |pod: &Option<Value>| {
            pod.as_ref()
                .map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned())
        };
        if uid(&self.seen_remote) != uid(&self.remote) {
            self.gone.clone_from(&self.seen_remote);
        }
        self.provider_is_due |= self.seen_remote != self.remote;
        self.seen_remote.clone_from(&self.remote);
    }

    fn user_deletes(&mut self, grace: i64) {
        let Some(local) = &mut self.local else { return };
        if !is_deleted(local) {
            self.writes = 0;
        }
        if grace == 0 && (self.held || self.interruption.take().is_none()) {
            self.removed_by_force = true;
            if has_finalizers(local) {
                set_deletion(local, 0);
            } else {
                self.local = None;
            }
        } else {
            set_deletion(local, grace);
        }
    }

    /// The provider's side of this cluster, for a pod that is being deleted and whose end is known.
    fn holder_lets_go(&mut self) {
        let Some(local) = self
            .local
            .as_mut()
            .filter(|local| self.held && is_deleted(local) && has_ended(local))
        else {
            return;
        };
        assert!(
            self.remote.as_ref().is_none_or(has_ended),
            "the consumer of the pod would run another one"
        );
        local["metadata"]["finalizers"] = json!([]);
        self.local
            .take_if(|local| local["metadata"]["deletionGracePeriodSeconds"] == 0);
    }

    fn kubelet(&mut self) {
        let Some(pod) = &mut self.remote else { return };
        if pod["spec"]["nodeName"].is_null() {
            if !is_deleted(pod) {
                pod["spec"]["nodeName"] = "n1".into();
                pod["status"] = json!({ "phase": "Running" });
                self.runs += 1;
            }
        } else if is_deleted(pod) && pod["metadata"]["deletionGracePeriodSeconds"] != 0 {
            if pod["status"]["phase"] == "Running" {
                pod["status"] = json!({ "phase": "Failed" });
            }
            pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            self.remove_remote_if_free();
        }
    }

    fn exits(&mut self) {
        if let Some(pod) = self
            .remote
            .as_mut()
            .filter(|pod| self.runs_once && pod["status"]["phase"] == "Running")
        {
            pod["status"] = json!({ "phase": "Succeeded" });
            self.ended_by_itself = true;
        }
    }

    /// Removes a deleted remote pod once nothing holds it and its kubelet is done with it.
    fn remove_remote_if_free(&mut self) {
        self.remote.take_if(|pod| {
            let is_due = pod["spec"]["nodeName"].is_null()
                || pod["metadata"]["deletionGracePeriodSeconds"] == 0;
            is_deleted(pod) && is_due && !has_finalizers(pod)
        });
    }

    fn delete_remote(&mut self, uid: &str, grace: i64) {
        let Some(pod) = self
            .remote
            .as_mut()
            .filter(|pod| pod["metadata"]["uid"] == uid)
        else {
            return;
        };
        let has_node = !pod["spec"]["nodeName"].is_null();
        set_deletion(pod, if has_node { grace } else { 0 });
        if !has_node && let Some(dies) = self.remote_interruption.take() {
            self.provider_is_due = true;
            if dies {
                self.provider_restarts();
            }
            return;
        }
        self.remove_remote_if_free();
    }

    fn consumer_decides(&mut self, writes: usize) {
        let object = |pod: &Value| {
            LocalPod::from_pod(
                serde_json::from_value(pod.clone()).unwrap(),
                &Key::new("t", "default"),
            )
        };
        let home = self.seen_local.as_ref().and_then(object);
        let parsed = |shadow: &Value| serde_json::from_value::<ShadowPod>(shadow.clone()).unwrap();
        let shadow = self.consumers_shadow.as_ref().and_then(|shadow| {
            local_state::ConsumerShadowPod::from_claimed(Claimed::new(parsed(shadow)))
        });
        let facts = LocalPodFacts {
            home: home.as_ref(),
            shadow: shadow.as_ref(),
            ran: local::LastRunPlace::Elsewhere,
            peer: PeerReachability::Answers,
            namespace: RemoteNamespaceState::Ready,
            tenancy: Some("t"),
            sent: self.sent.unwrap_or(SendProgress::No),
            removed: self.removed,
            eviction_delay: None,
            is_brokered: self.held,
            may_run_here: Some(false),
            stuck: None,
            refusal_timeout: Duration::from_mins(5),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        let decision = match (&home, &shadow) {
            (Some(home), Some(shadow)) if self.older_consumer && home.deletion.is_some() => {
                LocalPodDecision {
                    actions: older_deletion(home, shadow),
                    again: None,
                }
            }
            _ => local::decide_local_pod(&facts),
        };
        self.consumer_is_due = decision.again.is_some();
        for (done, action) in decision.actions.into_iter().enumerate() {
            if done == writes {
                return self.consumer_restarts();
            }
            if action == LocalPodAction::RemoveLocalPod
                && let Some(dies) = self.interruption.take()
            {
                return self.half_remove(dies);
            }
            let before = (self.local.clone(), self.shadow.clone());
            self.consumer_acts(action, shadow.as_ref());
            self.writes += usize::from(before != (self.local.clone(), self.shadow.clone()));
        }
    }

    /// The API server writes the grace of zero, and deletes nothing.
    fn half_remove(&mut self, dies: bool) {
        self.local
            .iter_mut()
            .for_each(|local| set_deletion(local, 0));
        self.consumer_is_due = true;
        if dies {
            self.consumer_restarts();
        }
    }

    fn consumer_acts(
        &mut self,
        action: LocalPodAction,
        seen: Option<&local_state::ConsumerShadowPod>,
    ) {
        match action {
            LocalPodAction::CreateShadow { mark } => {
                if mark {
                    let Some(local) = &mut self.local else { return };
                    local["metadata"]["annotations"][liqo_api::annotations::SENT_TO] = "t".into();
                    local["status"]["conditions"] =
                        json!([{ "type": liqo_api::pods::OFFLOADED, "status": "Unknown" }]);
                }
                self.sent = Some(SendProgress::Created(Duration::ZERO));
                self.shadow.get_or_insert_with(|| {
                    json!({
                        "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
                        "metadata": { "name": "home-uid", "namespace": "t", "uid": "s", "generation": 1, "finalizers": [finalizers::SHADOW_POD] },
                        "spec": { "namespace": "demo", "pool": "default", "pod": json!({
                            "metadata": { "name": "web" },
                            "spec": { "restartPolicy": if self.runs_once { "Never" } else { "Always" }, "containers": [{ "name": "c", "image": "i" }] },
                        }).to_string() },
                    })
                });
            }
            LocalPodAction::PatchLocalStatus => {
                let status = seen
                    .and_then(local_state::ConsumerShadowPod::remote_status)
                    .unwrap();
                if let Some(local) = &mut self.local {
                    local["status"]["phase"] = status["phase"].clone();
                    local["status"]["conditions"] =
                        json!([{ "type": liqo_api::pods::OFFLOADED, "status": "True" }]);
                }
            }
            LocalPodAction::AskDeletion(grace) => {
                if let Some(shadow) = &mut self.shadow {
                    shadow["spec"]["deletion"] = json!({ "gracePeriodSeconds": grace });
                    shadow["metadata"]["generation"] =
                        (shadow["metadata"]["generation"].as_i64().unwrap() + 1).into();
                }
            }
            // The live pod may show an end that the watch does not show yet.
            LocalPodAction::ShowDeletion => {
                assert!(self.remote.is_none(), "it may still run");
                if let Some(live) = self.local.as_mut().filter(|local| !has_ended(local)) {
                    live["status"]["phase"] = "Failed".into();
                }
            }
            LocalPodAction::RemoveLocalPod if self.local.as_ref().is_some_and(has_finalizers) => {
                self.local
                    .iter_mut()
                    .for_each(|local| set_deletion(local, 0));
                self.removed = true;
            }
            LocalPodAction::RemoveLocalPod => {
                if let Some(local) = self.local.take() {
                    (self.last_phase, self.removed) =
                        (Some(local["status"]["phase"].clone()), true);
                }
            }
            // The API server shows the local pod, so it is looked at again later.
            LocalPodAction::DeleteShadow if self.seen_local.is_none() && self.local.is_some() => {
                self.consumer_is_due = true;
            }
            LocalPodAction::DeleteShadow => self.delete_shadow(),
            LocalPodAction::UpdateShadow { .. } | LocalPodAction::SetEvictionDelay(_) => {}
            LocalPodAction::Lost(_) => {
                if let Some(local) = self
                    .local
                    .as_mut()
                    .filter(|_| self.shadow.is_none() || seen.is_some())
                {
                    local["status"]["phase"] = "Failed".into();
                }
            }
            other => panic!("nothing in this model is a reason for {other:?}"),
        }
    }

    fn delete_shadow(&mut self) {
        if let Some(shadow) = &mut self.shadow {
            set_deletion(shadow, 0);
        }
        self.shadow.take_if(|shadow| !has_finalizers(shadow));
    }

    fn provider_decides(&mut self, writes: usize) {
        let reduced = |pod: &Value| {
            Arc::new(RemotePod::from_pod(serde_json::from_value(pod.clone()).unwrap()).unwrap())
        };
        self.provider_is_due = false;
        let Some(shadow) = &self.providers_shadow else {
            return self.remove_orphan();
        };
        let shadow = Arc::new(shadow_pod::ProviderShadowPod::from_shadow_pod(
            serde_json::from_value(shadow.clone()).unwrap(),
        ));
        let mut live = LivePod::NotAsked;
        for _ in 0..writes {
            let reported = self
                .reported
                .clone()
                .unwrap_or_else(|| shadow.reported.clone());
            let expected_uid = reported.remote_uid.clone().or(self.created.clone());
            let gone = self
                .gone
                .as_ref()
                .map(reduced)
                .filter(|pod| Some(&pod.uid) == expected_uid.as_ref());
            let snapshot = ShadowPodSnapshot {
                observed_deletion: gone.is_some(),
                ended_and_gone: gone.filter(|pod| pod.end.is_some()),
                reported,
                expected_uid,
                seen: self.seen_remote.iter().map(reduced).collect(),
                shadow: shadow.clone(),
                name_taken: false,
                live: std::mem::replace(&mut live, LivePod::NotAsked),
                refusal: None,
                destination: Destination {
                    namespace: NAMESPACE.into(),
                    state: DestinationState::Ready,
                },
                applied_generation: Some(shadow.generation),
                unreported_for: DETAIL_DELAY,
                taken_back: None,
                pool_nodes: None,
                evicted_uid: None,
                refused_containers: RefusedContainers::new(),
                refused_change: None,
                pending_resize: None,
                resize_retry: None,
                metering: self.metered.then_some(Metering {
                    charge: Charge::Requests,
                    settled: Timestamp::UNIX_EPOCH,
                    since: Timestamp::UNIX_EPOCH,
                    is_stored: self.stored,
                    unwatched_since: None,
                }),
                now: "2026-01-01T00:00:00Z".parse().unwrap(),
            };
            match remote::decide_shadow_pod(&snapshot) {
                ShadowPodStep::Wait => return,
                ShadowPodStep::WaitFor(_) | ShadowPodStep::WaitToReport(_) => {
                    self.provider_is_due = true;
                    return;
                }
                ShadowPodStep::ReadLive => {
                    live = self
                        .remote
                        .as_ref()
                        .map_or(LivePod::Absent, |pod| LivePod::Ours(reduced(pod)));
                }
                ShadowPodStep::Create => {
                    self.create_remote();
                    live = LivePod::Ours(reduced(self.remote.as_ref().unwrap()));
                }
                ShadowPodStep::Report(status) => {
                    if let (Some(shadow), Some(patch)) =
                        (&mut self.shadow, snapshot.reported.patch_to(&status))
                    {
                        json_patch::merge(shadow, &patch);
                        self.writes += 1;
                    }
                    self.reported = Some(status);
                }
                ShadowPodStep::Delete(pod, grace) => {
                    self.writes += 1;
                    self.provider_is_due = snapshot.retry_after_end_of(&pod).is_some();
                    return self.delete_remote(&pod.uid, grace.unwrap_or(pod.own_grace));
                }
                ShadowPodStep::StripFinalizer(pod) => {
                    self.provider_is_due = snapshot.retry_after_end_of(&pod).is_some();
                    return self.strip_finalizer(&pod.uid);
                }
                ShadowPodStep::StoreUsage(_) => self.stored = true,
                ShadowPodStep::Release => return self.release(&shadow),
                other => panic!("nothing in this model is a reason for {other:?}"),
            }
        }
        self.provider_restarts();
    }

    fn create_remote(&mut self) {
        self.remotes += 1;
        let uid = format!("u{}", self.remotes);
        self.created = Some(uid.clone());
        let held: &[&str] = if self.runs_once {
            &[finalizers::FINAL_STATUS]
        } else {
            &[]
        };
        self.remote.get_or_insert_with(|| {
            json!({
                "metadata": { "name": "web", "namespace": NAMESPACE, "uid": uid, "finalizers": held,
                    "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: "home-uid", labels::POOL: "default" } },
                "spec": { "containers": [] }, "status": { "phase": "Pending" },
            })
        });
    }

    fn strip_finalizer(&mut self, uid: &str) {
        self.writes += 1;
        if let Some(pod) = self
            .remote
            .as_mut()
            .filter(|pod| pod["metadata"]["uid"] == uid)
        {
            pod["metadata"]["finalizers"] = json!([]);
            self.remove_remote_if_free();
        }
    }

    fn release(&mut self, seen: &shadow_pod::ProviderShadowPod) {
        assert!(
            !self.metered || self.remotes == 0 || self.stored,
            "what a pod used is lost"
        );
        if let Some(shadow) = &mut self.shadow {
            shadow["metadata"]["finalizers"] = json!([]);
            self.writes += if seen.deleted { 1 } else { 2 };
            if !seen.deleted || is_deleted(shadow) {
                self.shadow = None;
            }
        }
        (self.reported, self.created, self.gone) = (None, None, None);
    }

    /// A pod whose shadow pod is gone ends.
    fn remove_orphan(&mut self) {
        let Some(pod) = self.seen_remote.clone().filter(|_| self.shadow.is_none()) else {
            return;
        };
        let pod = Arc::new(RemotePod::from_pod(serde_json::from_value(pod).unwrap()).unwrap());
        match remote::decide_orphan(&pod) {
            ShadowPodStep::Delete(pod, grace) => self.delete_remote(&pod.uid, grace.unwrap()),
            ShadowPodStep::StripFinalizer(pod) => self.strip_finalizer(&pod.uid),
            _ => {}
        }
    }

    /// Everybody does what is due.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            self.happens(Event::ConsumerSeesLocal);
            self.happens(Event::ConsumerSeesShadow);
            if self.consumer_is_due {
                self.happens(Event::Consumer(usize::MAX));
            }
            self.happens(Event::ProviderSeesShadow);
            self.happens(Event::ProviderSeesRemote);
            if self.provider_is_due {
                self.happens(Event::Provider(16));
            }
            self.happens(Event::Kubelet);
        }
    }

    fn is_gone(&self) -> bool {
        self.local.is_none() && self.shadow.is_none() && self.remote.is_none()
    }
}

/// The decision of the version before ours: it wrote the deletion into the shadow pod, which its
/// provider deletes at the end.
fn older_deletion(home: &LocalPod, shadow: &local_state::ConsumerShadowPod) -> Vec<LocalPodAction> {
    let grace = home.deletion.unwrap();
    let status = (!home.finished && shadow.remote_status().is_some())
        .then_some(LocalPodAction::PatchLocalStatus);
    let ask = shadow
        .wanted_deletion
        .is_none_or(|wanted| grace < wanted)
        .then_some(LocalPodAction::AskDeletion(grace));
    status.into_iter().chain(ask).collect()
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => prop_oneof![Just(usize::MAX), 0..3_usize].prop_map(Event::Consumer),
        6 => prop_oneof![Just(16), 0..4_usize].prop_map(Event::Provider),
        5 => Just(Event::ConsumerSeesLocal),
        5 => Just(Event::ConsumerSeesShadow),
        1 => any::<bool>().prop_map(|dies| Event::RemovalIsInterrupted { dies }),
        1 => any::<bool>().prop_map(|dies| Event::RemoteRemovalIsInterrupted { dies }),
        5 => Just(Event::ProviderSeesShadow),
        5 => Just(Event::ProviderSeesRemote),
        5 => Just(Event::Kubelet),
        1 => Just(Event::Exits),
        2 => prop_oneof![8 => Just(30), 2 => 1..120_i64, 1 => Just(0)].prop_map(Event::UserDeletes),
        1 => Just(Event::ConsumerChangesVersion),
        1 => Just(Event::ProviderRestarts),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_happens_a_deleted_pod_goes_everywhere_and_its_name_is_free_last(
        runs_once: bool,
        metered: bool,
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut world = World { metered, ..World::new(runs_once) };
        for event in events {
            world.happens(event);
        }
        world.user_deletes(30);
        world.settle();
        prop_assert!(world.is_gone(), "left: {:?} {:?} {:?}", world.local, world.shadow, world.remote);
    }

    #[test]
    fn a_brokered_pod_is_held_until_its_end_is_known_and_goes_then(
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut world = World::brokered();
        for event in events {
            world.happens(event);
        }
        world.user_deletes(30);
        world.settle();
        prop_assert!(world.is_gone(), "left: {:?} {:?} {:?}", world.local, world.shadow, world.remote);
    }

    #[test]
    fn a_pod_that_ended_by_itself_is_finished_at_home_whatever_restarts(
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut world = World::new(true);
        for event in events.into_iter().filter(|event| !matches!(event, Event::UserDeletes(_))) {
            world.happens(event);
        }
        world.settle();
        let phase = world.local.as_ref().unwrap()["status"]["phase"].clone();
        prop_assert_eq!(phase, if world.ended_by_itself { "Succeeded" } else { "Running" });
    }
}

#[test]
fn deleting_a_pod_that_may_run_again_takes_four_writes() {
    for metered in [false, true] {
        let mut world = World {
            metered,
            ..World::new(false)
        };
        world.settle();
        assert_eq!(world.runs, 1);
        world.user_deletes(30);
        world.settle();
        assert!(world.is_gone());
        // What many pods used is one write.
        assert_eq!((world.writes, world.stored), (4, metered));
    }
}

#[test]
fn the_end_of_a_pod_that_is_deleted_after_it_succeeded_arrives_at_home_first() {
    let mut world = World::new(true);
    world.settle();
    world.happens(Event::Exits);
    world.user_deletes(30);
    world.settle();
    assert!(world.is_gone());
    assert_eq!(world.last_phase, Some("Succeeded".into()));
}

#[test]
fn a_local_pod_whose_removal_was_interrupted_goes_all_the_same() {
    for dies in [false, true] {
        let mut world = World::new(false);
        world.settle();
        world.happens(Event::RemovalIsInterrupted { dies });
        world.user_deletes(30);
        world.settle();
        assert!(world.is_gone(), "left: {:?}", world.local);
    }
}

#[test]
fn a_remote_pod_that_the_watch_never_showed_does_not_hold_its_shadow_pod() {
    let mut world = World::new(false);
    for event in [
        Event::ConsumerSeesLocal,
        Event::Consumer(1),
        Event::ProviderSeesShadow,
        Event::Provider(16),
    ] {
        world.happens(event);
    }
    assert!(world.remote.is_some() && world.seen_remote.is_none());
    world.user_deletes(30);
    for event in [
        Event::ConsumerSeesLocal,
        Event::ConsumerSeesShadow,
        Event::Consumer(2),
        Event::ProviderSeesShadow,
    ] {
        world.happens(event);
    }
    world.happens(Event::Provider(16));
    assert!(
        world.remote.is_none() && world.shadow.is_some(),
        "it had no node, so it is gone at once"
    );
    world.settle();
    assert!(world.is_gone(), "left: {:?}", world.shadow);
}
