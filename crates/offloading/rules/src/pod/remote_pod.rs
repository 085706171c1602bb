//! The reduced form of a remote pod, and an index by shadow pod.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use liqo_api::requests::EffectiveAmounts;
use liqo_api::{
    ClusterId, Key, PartialObject, annotations, finalizers, is_final_phase, labels, pods,
    tenant_namespace,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::pod::admission::PoolAccount;
use crate::pod::local_status::reduce_status;
use crate::pod::recreated::add_earlier_runs;
use crate::pod::reported_status::PodStatusText;
use crate::replica::label_selector::LabelMap;
use crate::views::{AddressView, ConditionView, ContainerList, PodStatusView};

/// A pod whose status is JSON, so that unknown fields survive.
pub type WatchedPod = PartialObject<Pod, PodSpec, Value>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodEnd {
    Succeeded,
    /// A container failed, or the pod was evicted.
    Failed,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RemotePod {
    pub key: Key,
    pub uid: String,
    pub created: Timestamp,
    /// The time of its end, by its status. `None` if it has not ended, or the status does not say
    /// it.
    pub ended_at: Option<Timestamp>,
    pub consumer: ClusterId,
    pub shadow_pod: String,
    pub pool: String,
    pub charge: EffectiveAmounts,
    /// The amounts in its spec, if it is charged others because it is being resized.
    pub asked: Option<EffectiveAmounts>,
    /// The reduced status that the consumer gets.
    pub status: PodStatusText,
    /// `None` if it has not ended.
    pub end: Option<PodEnd>,
    /// The grace in seconds that it has, if it is being deleted.
    pub deletion_grace: Option<i64>,
    pub deletion_due: Option<Timestamp>,
    /// The grace in seconds in its spec, which its consumer chose.
    pub own_grace: i64,
    /// Whether it has the finalizer that keeps it until its final status is recorded.
    pub has_finalizer: bool,
    /// Its node; `None` while it has none.
    pub node: Option<Box<str>>,
    pub labels: LabelMap,
    /// The hash of the nodes of its pool with which it was created, see
    /// [`annotations::POOL_NODES`].
    pub pool_nodes: Option<String>,
    /// Whether it was created for the virtual nodes of this cluster.
    pub is_brokered: bool,
    /// Its addresses, until it ends: then another pod may get them.
    pub addresses: Vec<IpAddr>,
}

impl RemotePod {
    /// Reduces a pod; `None` if it is no remote pod.
    pub fn from_pod(pod: WatchedPod) -> Option<Self> {
        let key = Key::of_object(&pod);
        let meta = pod.metadata;
        let pod_labels = meta.labels.unwrap_or_default();
        let mut status = pod.status.unwrap_or_default();
        if meta.deletion_timestamp.is_none() {
            end_with_the_last_container(&mut status);
        }
        let end = match status.get("phase").and_then(Value::as_str) {
            Some("Succeeded") => Some(PodEnd::Succeeded),
            Some("Failed") => Some(PodEnd::Failed),
            _ => None,
        };
        let ended_at = end.and_then(|_| end_time(&status));
        let is_brokered = tolerates_virtual_nodes(&pod.spec);
        // A brokered pod has the address by which this cluster sees it: its consumer sees that one
        // behind this cluster.
        let addresses = if end.is_none() {
            status_addresses(&status)
        } else {
            Vec::new()
        };
        let mut reduced = reduce_status(&json!({ "status": status }));
        add_earlier_runs(
            &mut reduced,
            meta.annotations.as_ref(),
            meta.creation_timestamp.as_ref().map(|created| created.0),
        );
        let asked = EffectiveAmounts::of_pod(&pod.spec);
        let own_grace = pod.spec.termination_grace_period_seconds.unwrap_or(30);
        let node = pod
            .spec
            .node_name
            .as_deref()
            .filter(|node| !node.is_empty())
            .map(Into::into);
        let charge = EffectiveAmounts::of_bound_pod(
            meta.generation,
            pod.spec,
            &PodStatus::deserialize(&status).unwrap_or_default(),
        );
        Some(Self {
            addresses,
            created: meta
                .creation_timestamp
                .as_ref()
                .map(|created| created.0)
                .unwrap_or_default(),
            ended_at,
            key,
            uid: meta.uid.clone()?,
            consumer: pod_labels.get(labels::CONSUMER_ID)?.parse().ok()?,
            shadow_pod: pod_labels.get(labels::SHADOW_POD)?.clone(),
            pool: pod_labels.get(labels::POOL)?.clone(),
            own_grace,
            node,
            pool_nodes: meta
                .annotations
                .as_ref()
                .and_then(|all| all.get(annotations::POOL_NODES))
                .cloned(),
            is_brokered,
            asked: (asked != charge).then_some(asked),
            charge,
            status: PodStatusText::from_status(&reduced),
            end,
            deletion_due: meta.deletion_timestamp.as_ref().map(|due| due.0),
            deletion_grace: meta
                .deletion_timestamp
                .as_ref()
                .map(|_| meta.deletion_grace_period_seconds.unwrap_or_default()),
            has_finalizer: meta
                .finalizers
                .iter()
                .flatten()
                .any(|name| name == finalizers::FINAL_STATUS),
            labels: pod_labels,
        })
    }

    pub fn is_scheduled(&self) -> bool {
        self.node.is_some()
    }

    pub fn shadow_key(&self) -> Key {
        Key::new(tenant_namespace(&self.consumer), self.shadow_pod.clone())
    }

    pub fn account(&self) -> PoolAccount {
        PoolAccount {
            tenant: tenant_namespace(&self.consumer),
            pool: self.pool.clone(),
        }
    }

    /// The amounts in its spec.
    pub fn asked_amounts(&self) -> &EffectiveAmounts {
        self.asked.as_ref().unwrap_or(&self.charge)
    }

    /// Whether it is charged to its offer.
    pub fn is_charged(&self) -> bool {
        self.end.is_none()
    }
}

/// Whether a pod was created for virtual nodes. No other remote pod keeps this toleration.
fn tolerates_virtual_nodes(spec: &PodSpec) -> bool {
    spec.tolerations
        .iter()
        .flatten()
        .any(|one| one.key.as_deref() == Some(pods::VIRTUAL_NODE_TAINT))
}

/// A kubelet says that a pod failed, for example because its deadline is over, before its
/// containers have ended. What it says next belongs to the end, too, and a recorded end never
/// changes. So such a pod runs on. If its node dies now, it is deleted.
fn end_with_the_last_container(status: &mut Value) {
    let view = PodStatusView::of(status);
    let runs = ContainerList::ALL
        .into_iter()
        .flat_map(|list| view.statuses_in(list))
        .any(|one| one.state().running().is_some());
    if runs
        && view.phase().is_some_and(is_final_phase)
        && let Some(fields) = status.as_object_mut()
    {
        fields.insert("phase".into(), "Running".into());
        fields.remove("reason");
        fields.remove("message");
    }
}

/// The time at which a pod ended: that of its last container. A pod without an ended container was
/// evicted; a condition has the time.
fn end_time(status: &Value) -> Option<Timestamp> {
    let status = PodStatusView::of(status);
    let finished = ContainerList::ALL
        .into_iter()
        .flat_map(|list| status.statuses_in(list))
        .filter_map(|one| {
            let end = one.state().terminated()?.finished_at()?;
            end.parse::<Timestamp>().ok()
        })
        .max();
    let changed = status.conditions().filter_map(ConditionView::changed_at);
    finished.or_else(|| changed.max())
}

pub(crate) fn status_addresses(status: &Value) -> Vec<IpAddr> {
    let status = PodStatusView::of(status);
    let listed = status.pod_ips().filter_map(AddressView::ip);
    let mut all: Vec<IpAddr> = listed
        .chain(status.pod_ip())
        .filter_map(|address| address.parse().ok())
        .collect();
    all.sort();
    all.dedup();
    all
}

#[derive(Default)]
pub struct ProviderPodIndex {
    by_shadow: HashMap<Key, BTreeMap<Key, Arc<RemotePod>>>,
    /// The last pod of a shadow pod that the watch reported as gone, as it was then.
    gone: HashMap<Key, Arc<RemotePod>>,
    /// Shadow pods that wait for the name of a pod.
    waiting_for_name: HashMap<Key, BTreeSet<Key>>,
}

impl ProviderPodIndex {
    /// Records a change that the watch reported; returns the shadow pods that waited for a name
    /// which is free now.
    pub fn pod_changed(
        &mut self,
        old: Option<&Arc<RemotePod>>,
        new: Option<&Arc<RemotePod>>,
    ) -> Vec<Key> {
        let mut freed = Vec::new();
        if let Some(old) = old.filter(|old| {
            new.is_none_or(|new| new.shadow_key() != old.shadow_key() || new.uid != old.uid)
        }) {
            let shadow = old.shadow_key();
            if let Some(pods) = self.by_shadow.get_mut(&shadow) {
                pods.remove(&old.key);
                if pods.is_empty() {
                    self.by_shadow.remove(&shadow);
                }
            }
            self.gone.insert(shadow, old.clone());
            freed.extend(self.waiting_for_name.remove(&old.key).unwrap_or_default());
        }
        if let Some(new) = new {
            self.by_shadow
                .entry(new.shadow_key())
                .or_default()
                .insert(new.key.clone(), new.clone());
        }
        freed
    }

    /// Records that this shadow pod waits for the name that this pod has.
    pub fn wait_for_name(&mut self, pod: Key, shadow: Key) {
        self.waiting_for_name.entry(pod).or_default().insert(shadow);
    }

    pub fn pods_of_shadow(&self, shadow: &Key) -> Vec<Arc<RemotePod>> {
        self.by_shadow
            .get(shadow)
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    /// The shadow pods of a namespace that have pods, whether they exist or not.
    pub fn shadows_in(&self, namespace: &str) -> Vec<Key> {
        self.by_shadow
            .keys()
            .filter(|shadow| shadow.namespace == namespace)
            .cloned()
            .collect()
    }

    pub fn observed_deletion(&self, shadow: &Key, uid: &str) -> bool {
        self.gone.get(shadow).is_some_and(|gone| gone.uid == uid)
    }

    /// The pod that the watch reported as gone, if it had ended by then. A kubelet writes the end
    /// of a pod a moment before it removes it.
    pub fn ended_pod(&self, shadow: &Key, uid: &str) -> Option<Arc<RemotePod>> {
        self.gone
            .get(shadow)
            .filter(|gone| gone.uid == uid && gone.end.is_some())
            .cloned()
    }

    /// Whether the watch ever showed this pod of a shadow pod.
    pub fn has_seen(&self, shadow: &Key, uid: &str) -> bool {
        let exists = self
            .by_shadow
            .get(shadow)
            .is_some_and(|pods| pods.values().any(|pod| pod.uid == uid));
        exists || self.observed_deletion(shadow, uid)
    }

    /// Removes the records that matter only while the shadow pod exists.
    pub fn forget_shadow(&mut self, shadow: &Key) {
        self.gone.remove(shadow);
        self.waiting_for_name.retain(|_, waiting| {
            waiting.remove(shadow);
            !waiting.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{consumer, pod};

    #[test]
    fn a_pod_that_does_not_say_whose_it_is_is_nobodys() {
        for missing in [labels::CONSUMER_ID, labels::SHADOW_POD, labels::POOL] {
            let mut object = json!({
                "metadata": { "name": "web", "namespace": "x", "uid": "u",
                    "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: "s", labels::POOL: "default" } },
                "spec": { "containers": [] },
            });
            object["metadata"]["labels"]
                .as_object_mut()
                .unwrap()
                .remove(missing);
            assert_eq!(
                RemotePod::from_pod(serde_json::from_value(object).unwrap()),
                None,
                "{missing}"
            );
        }
    }

    #[test]
    fn what_matters_of_a_pod_is_kept() {
        let ended = pod("web", "u", |object| {
            object["status"]["phase"] = "Failed".into();
            object["metadata"]["finalizers"] = json!([finalizers::FINAL_STATUS]);
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        });
        assert_eq!(
            (
                ended.end,
                ended.has_finalizer,
                ended.deletion_grace,
                ended.is_scheduled()
            ),
            (Some(PodEnd::Failed), true, Some(30), true)
        );
        assert!(!ended.is_charged());
        assert_eq!(ended.charge.requests.get("cpu").to_string(), "1");
    }

    #[test]
    fn a_pod_ended_when_its_last_container_did() {
        let ended = |status: Value| {
            pod("web", "u", |object| object["status"] = status)
                .ended_at
                .map(|time| time.to_string())
        };
        let container = |at: &str| json!({ "state": { "terminated": { "finishedAt": at } } });
        let (first, last) = (
            container("2026-01-01T00:00:10Z"),
            container("2026-01-01T00:00:20Z"),
        );
        let conditions =
            json!([{ "type": "DisruptionTarget", "lastTransitionTime": "2026-01-01T00:00:30Z" }]);
        let status = json!({ "phase": "Succeeded", "containerStatuses": [last, first], "conditions": conditions });
        assert_eq!(
            ended(status.clone()).as_deref(),
            Some("2026-01-01T00:00:20Z")
        );
        assert_eq!(
            ended(json!({ "phase": "Failed", "conditions": conditions })).as_deref(),
            Some("2026-01-01T00:00:30Z")
        );
        let mut running = status;
        running["phase"] = "Running".into();
        assert_eq!(
            (ended(running), ended(json!({ "phase": "Failed" }))),
            (None, None)
        );
    }

    #[test]
    fn a_pod_that_failed_ends_when_its_containers_have_ended() {
        let failed = |state: Value, deleted: bool| {
            pod("web", "u", |object| {
                object["status"] = json!({ "phase": "Failed", "reason": "DeadlineExceeded", "message": "too late",
                    "containerStatuses": [{ "name": "c", "ready": false, "state": state }] });
                if deleted {
                    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                }
            })
        };
        let (running, terminated) = (
            json!({ "running": {} }),
            json!({ "terminated": { "exitCode": 0, "finishedAt": "2026-01-01T00:00:10Z" } }),
        );
        let early = failed(running.clone(), false);
        let shown = early.status.to_value();
        assert_eq!(
            (early.end, &shown["phase"], &shown["reason"]),
            (None, &json!("Running"), &Value::Null)
        );
        let ended = failed(terminated, false);
        let shown = ended.status.to_value();
        assert_eq!(
            (ended.end, &shown["phase"], &shown["reason"]),
            (
                Some(PodEnd::Failed),
                &json!("Failed"),
                &json!("DeadlineExceeded")
            )
        );
        assert_eq!(
            failed(running, true).end,
            Some(PodEnd::Failed),
            "nobody reports more of a pod that its node lost"
        );
    }

    #[test]
    fn a_pod_has_its_addresses_until_it_ends() {
        let with = |phase: &str| {
            let status = json!({ "phase": phase, "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }, { "ip": "fd00::9" }] });
            let addresses = pod("web", "u", |object| object["status"] = status).addresses;
            addresses
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(with("Running"), ["10.244.0.9", "fd00::9"]);
        assert!(with("Succeeded").is_empty() && with("Failed").is_empty());
    }

    #[test]
    fn a_brokered_pod_has_the_address_by_which_the_broker_sees_it() {
        let brokered = pod("web", "u", |object| {
            object["spec"]["tolerations"] =
                json!([{ "key": "virtual-node.liqo.io/not-allowed", "operator": "Exists" }]);
            object["status"] = json!({ "phase": "Running", "podIP": "10.65.0.9" });
        });
        assert!(brokered.is_brokered && brokered.addresses.len() == 1);
        assert_eq!(
            brokered.status.to_value().get("podIP"),
            Some(&json!("10.65.0.9"))
        );
    }

    #[test]
    fn a_shadow_pod_that_is_gone_waits_for_no_name() {
        let mut index = ProviderPodIndex::default();
        let taken = Arc::new(pod("web", "u1", |_| {}));
        index.pod_changed(None, Some(&taken));
        for shadow in ["gone", "waits"] {
            index.wait_for_name(taken.key.clone(), Key::new("t", shadow));
        }
        index.forget_shadow(&Key::new("t", "gone"));
        assert_eq!(
            index.pod_changed(Some(&taken), None),
            [Key::new("t", "waits")]
        );
    }

    #[test]
    fn a_pod_is_found_by_its_shadow_pod_until_the_watch_reports_it_gone() {
        let mut index = ProviderPodIndex::default();
        let first = Arc::new(pod("web", "u1", |_| {}));
        let shadow = first.shadow_key();
        assert!(index.pod_changed(None, Some(&first)).is_empty());
        index.wait_for_name(first.key.clone(), Key::new("t", "waits"));
        assert_eq!(index.pods_of_shadow(&shadow), std::slice::from_ref(&first));
        assert!(!index.observed_deletion(&shadow, "u1"));
        assert!(index.has_seen(&shadow, "u1") && !index.has_seen(&shadow, "u2"));
        // A list after an interruption may show the successor in place of the one that is gone.
        let second = Arc::new(pod("web", "u2", |_| {}));
        assert_eq!(
            index.pod_changed(Some(&first), Some(&second)),
            [Key::new("t", "waits")]
        );
        assert_eq!(index.pods_of_shadow(&shadow), std::slice::from_ref(&second));
        assert!(index.observed_deletion(&shadow, "u1") && !index.observed_deletion(&shadow, "u2"));
        index.pod_changed(Some(&second), None);
        assert!(index.pods_of_shadow(&shadow).is_empty() && index.observed_deletion(&shadow, "u2"));
        assert!(
            index.has_seen(&shadow, "u2"),
            "until the shadow pod is gone"
        );
    }
}
