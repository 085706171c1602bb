//! What is kept of each remote pod, and the index that finds them by their shadow pod.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
use kube::core::Object;
use liqo_api::{ClusterId, finalizers, labels, tenant_namespace};
use liqo_kit::{Key, requests::Effective};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{admission::Account, told::PodStatusText};
use crate::decide::{home_status::reduce_status, items, text};

/// A pod whose status travels as JSON, so that what this version does not know is not lost.
pub type WatchedPod = Object<PodSpec, Value>;

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All containers succeeded.
    Succeeded,
    /// One did not, or the pod was evicted.
    Failed,
}

/// What is kept of a remote pod.
#[derive(Clone, Debug, PartialEq)]
pub struct RemotePod {
    /// Where it is.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// Whose it is.
    pub consumer: ClusterId,
    /// Name of its shadow pod.
    pub shadow_pod: String,
    /// The pool that it uses.
    pub pool: String,
    /// What it is charged.
    pub charge: Effective,
    /// The reduced status that home is told.
    pub status: PodStatusText,
    /// How it ended, if it did.
    pub end: Option<End>,
    /// The grace that it was given, if it is being deleted.
    pub deletion_grace: Option<i64>,
    /// When that grace is over.
    pub deletion_due: Option<Timestamp>,
    /// The grace that it asks for itself, which its consumer chose.
    pub own_grace: i64,
    /// Whether it stays until its final status is recorded.
    pub held: bool,
    /// Whether it has a node.
    pub placed: bool,
    /// Its addresses, until it ends: then they may be another one's.
    pub addresses: Vec<IpAddr>,
}

impl RemotePod {
    /// What is kept of this pod; nothing when it does not say whose it is.
    pub fn reduce(pod: WatchedPod) -> Option<Self> {
        let key = Key::of(&pod);
        let meta = pod.metadata;
        let label = |name: &str| meta.labels.as_ref().and_then(|all| all.get(name)).cloned();
        let status = pod.status.unwrap_or_default();
        let end = match status.get("phase").and_then(Value::as_str) {
            Some("Succeeded") => Some(End::Succeeded),
            Some("Failed") => Some(End::Failed),
            _ => None,
        };
        let addresses = if end.is_none() { addresses(&status) } else { Vec::new() };
        Some(Self {
            addresses,
            key,
            uid: meta.uid.clone()?,
            consumer: label(labels::CONSUMER_ID)?.parse().ok()?,
            shadow_pod: label(labels::SHADOW_POD)?,
            pool: label(labels::POOL)?,
            own_grace: pod.spec.termination_grace_period_seconds.unwrap_or(30),
            placed: pod.spec.node_name.as_ref().is_some_and(|node| !node.is_empty()),
            charge: Effective::of_bound_pod(pod.spec, &PodStatus::deserialize(&status).unwrap_or_default()),
            status: PodStatusText::of(&reduce_status(&json!({ "status": status }))),
            end,
            deletion_due: meta.deletion_timestamp.as_ref().map(|due| due.0),
            deletion_grace: meta.deletion_timestamp.as_ref().map(|_| meta.deletion_grace_period_seconds.unwrap_or_default()),
            held: meta.finalizers.iter().flatten().any(|name| name == finalizers::FINAL_STATUS),
        })
    }

    /// The key of its shadow pod.
    pub fn shadow_key(&self) -> Key {
        Key::new(tenant_namespace(&self.consumer), self.shadow_pod.clone())
    }

    /// The account that it is charged to.
    pub fn account(&self) -> Account {
        Account { tenant: tenant_namespace(&self.consumer), pool: self.pool.clone() }
    }

    /// Whether it uses what was offered.
    pub fn counts(&self) -> bool {
        self.end.is_none()
    }
}

fn addresses(status: &Value) -> Vec<IpAddr> {
    let listed = items(status, "/podIPs").iter().filter_map(|one| text(one, "/ip"));
    let mut all: Vec<IpAddr> = listed.chain(text(status, "/podIP")).filter_map(|address| address.parse().ok()).collect();
    all.sort();
    all.dedup();
    all
}

/// The remote pods by their shadow pods.
#[derive(Default)]
pub struct PodIndex {
    by_shadow: HashMap<Key, BTreeMap<Key, Arc<RemotePod>>>,
    /// UID of the last pod of a shadow pod that the watch reported as gone.
    gone: HashMap<Key, String>,
    /// Shadow pods that wait for the name of a pod.
    waiting_for_name: HashMap<Key, HashSet<Key>>,
}

impl PodIndex {
    /// Takes over a change that the watch reported; gives the shadow pods that waited for a name which is free now.
    pub fn changed(&mut self, old: Option<&Arc<RemotePod>>, new: Option<&Arc<RemotePod>>) -> Vec<Key> {
        let mut freed = Vec::new();
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.shadow_key() != old.shadow_key() || new.uid != old.uid)) {
            let shadow = old.shadow_key();
            if let Some(pods) = self.by_shadow.get_mut(&shadow) {
                pods.remove(&old.key);
                if pods.is_empty() {
                    self.by_shadow.remove(&shadow);
                }
            }
            self.gone.insert(shadow, old.uid.clone());
            freed.extend(self.waiting_for_name.remove(&old.key).unwrap_or_default());
        }
        if let Some(new) = new {
            self.by_shadow.entry(new.shadow_key()).or_default().insert(new.key.clone(), new.clone());
        }
        freed
    }

    /// Notes that this shadow pod waits for the name that this pod has.
    pub fn wait_for_name(&mut self, pod: Key, shadow: Key) {
        self.waiting_for_name.entry(pod).or_default().insert(shadow);
    }

    /// The pods of this shadow pod.
    pub fn of(&self, shadow: &Key) -> Vec<Arc<RemotePod>> {
        self.by_shadow.get(shadow).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Whether the watch reported that the pod with this UID is gone.
    pub fn saw_gone(&self, shadow: &Key, uid: &str) -> bool {
        self.gone.get(shadow).is_some_and(|gone| gone == uid)
    }

    /// Forgets what is only of interest while the shadow pod exists.
    pub fn forget(&mut self, shadow: &Key) {
        self.gone.remove(shadow);
        self.waiting_for_name.retain(|_, waiting| {
            waiting.remove(shadow);
            !waiting.is_empty()
        });
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A remote pod of shadow pod `home-uid`.
    pub fn pod(name: &str, uid: &str, change: impl FnOnce(&mut Value)) -> RemotePod {
        let mut object = json!({
            "metadata": {
                "name": name, "namespace": "demo-rome-aaaaaa", "uid": uid,
                "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: "home-uid", labels::POOL: "default" },
            },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }], "nodeName": "n1" },
            "status": { "phase": "Pending" },
        });
        change(&mut object);
        RemotePod::reduce(serde_json::from_value(object).unwrap()).unwrap()
    }

    pub fn consumer() -> ClusterId {
        ClusterId::of_public_key(&[7; 32])
    }

    #[test]
    fn a_pod_that_does_not_say_whose_it_is_is_nobodys() {
        for missing in [labels::CONSUMER_ID, labels::SHADOW_POD, labels::POOL] {
            let mut object = json!({
                "metadata": { "name": "web", "namespace": "x", "uid": "u",
                    "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: "s", labels::POOL: "default" } },
                "spec": { "containers": [] },
            });
            object["metadata"]["labels"].as_object_mut().unwrap().remove(missing);
            assert_eq!(RemotePod::reduce(serde_json::from_value(object).unwrap()), None, "{missing}");
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
        assert_eq!((ended.end, ended.held, ended.deletion_grace, ended.placed), (Some(End::Failed), true, Some(30), true));
        assert!(!ended.counts());
        assert_eq!(ended.charge.requests.get("cpu").to_string(), "1");
    }

    #[test]
    fn a_pod_has_its_addresses_until_it_ends() {
        let with = |phase: &str| {
            let status =
                json!({ "phase": phase, "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }, { "ip": "fd00::9" }] });
            let addresses = pod("web", "u", |object| object["status"] = status).addresses;
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(with("Running"), ["10.244.0.9", "fd00::9"]);
        assert!(with("Succeeded").is_empty() && with("Failed").is_empty());
    }

    #[test]
    fn a_shadow_pod_that_is_gone_waits_for_no_name() {
        let mut index = PodIndex::default();
        let taken = Arc::new(pod("web", "u1", |_| {}));
        index.changed(None, Some(&taken));
        for shadow in ["gone", "waits"] {
            index.wait_for_name(taken.key.clone(), Key::new("t", shadow));
        }
        index.forget(&Key::new("t", "gone"));
        assert_eq!(index.changed(Some(&taken), None), [Key::new("t", "waits")]);
    }

    #[test]
    fn a_pod_is_found_by_its_shadow_pod_until_the_watch_reports_it_gone() {
        let mut index = PodIndex::default();
        let first = Arc::new(pod("web", "u1", |_| {}));
        let shadow = first.shadow_key();
        assert!(index.changed(None, Some(&first)).is_empty());
        index.wait_for_name(first.key.clone(), Key::new("t", "waits"));
        assert_eq!(index.of(&shadow), std::slice::from_ref(&first));
        assert!(!index.saw_gone(&shadow, "u1"));
        // A list after an interruption may show the successor in place of the one that is gone.
        let second = Arc::new(pod("web", "u2", |_| {}));
        assert_eq!(index.changed(Some(&first), Some(&second)), [Key::new("t", "waits")]);
        assert_eq!(index.of(&shadow), std::slice::from_ref(&second));
        assert!(index.saw_gone(&shadow, "u1") && !index.saw_gone(&shadow, "u2"));
        index.changed(Some(&second), None);
        assert!(index.of(&shadow).is_empty() && index.saw_gone(&shadow, "u2"));
    }
}
