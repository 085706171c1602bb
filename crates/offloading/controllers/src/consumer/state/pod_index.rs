//! The pods on the virtual nodes of one provider, by UID and by name.
//!
//! A pod that is gone stays here until what it used is stored, however it went: the API server
//! removes a pod by itself that has ended, and a person may remove one by force.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use liqo_controller_runtime::Key;
use liqo_offloading_rules::pod::local_state::LocalPod;

#[derive(Default)]
pub struct LocalPodIndex {
    by_uid: BTreeMap<String, Arc<LocalPod>>,
    /// UIDs.
    by_name: HashMap<Key, String>,
    /// Pods that are gone and not forgotten yet, by UID.
    left: BTreeMap<String, Arc<LocalPod>>,
}

impl LocalPodIndex {
    pub fn get(&self, uid: &str) -> Option<&Arc<LocalPod>> {
        self.by_uid.get(uid)
    }

    pub fn pod_named(&self, key: &Key) -> Option<&Arc<LocalPod>> {
        self.get(self.by_name.get(key)?)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<LocalPod>> {
        self.by_uid.values()
    }

    /// Takes over a change that the watch of a virtual node's pods reported.
    pub fn apply_change(&mut self, old: Option<&Arc<LocalPod>>, new: Option<&Arc<LocalPod>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.by_uid.remove(&old.uid);
            self.left.insert(old.uid.clone(), old.clone());
            // A later pod of the same name may be on another virtual node already.
            if self.by_name.get(&old.key) == Some(&old.uid) {
                self.by_name.remove(&old.key);
            }
        }
        if let Some(new) = new {
            self.left.remove(&new.uid);
            self.by_uid.insert(new.uid.clone(), new.clone());
            self.by_name.insert(new.key.clone(), new.uid.clone());
        }
    }

    pub fn retain(&mut self, stays: impl Fn(&LocalPod) -> bool) {
        let (by_uid, gone) = std::mem::take(&mut self.by_uid)
            .into_iter()
            .partition(|(_, pod)| stays(pod));
        (self.by_uid, self.left) = (
            by_uid,
            std::mem::take(&mut self.left)
                .into_iter()
                .chain(gone)
                .collect(),
        );
        self.by_name.retain(|_, uid| self.by_uid.contains_key(uid));
    }

    /// The pod with this UID, if it is gone.
    pub fn gone_pod(&self, uid: &str) -> Option<&Arc<LocalPod>> {
        self.left.get(uid)
    }

    /// All pods that are gone.
    pub fn all_gone(&self) -> impl Iterator<Item = &Arc<LocalPod>> {
        self.left.values()
    }

    /// Nothing is left to store of this pod.
    pub fn forget(&mut self, uid: &str) {
        self.left.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, name: &str) -> Arc<LocalPod> {
        let pod = json!({ "metadata": { "namespace": "demo", "name": name, "uid": uid }, "spec": { "containers": [] } });
        Arc::new(
            LocalPod::from_pod(
                serde_json::from_value(pod).unwrap(),
                &Key::new("p", "default"),
            )
            .unwrap(),
        )
    }

    #[test]
    fn a_pod_is_found_by_its_name_until_it_is_gone_or_another_one_has_the_name() {
        let (mut index, web) = (LocalPodIndex::default(), Key::new("demo", "web"));
        let (first, second) = (pod("a", "web"), pod("b", "web"));
        let found = |index: &LocalPodIndex| index.pod_named(&web).map(|pod| pod.uid.clone());
        index.apply_change(None, Some(&first));
        index.apply_change(Some(&first), Some(&first));
        assert_eq!(found(&index).as_deref(), Some("a"));
        // Another virtual node's watch is faster than that of the first pod's node.
        index.apply_change(None, Some(&second));
        index.apply_change(Some(&first), None);
        assert_eq!(
            (found(&index).as_deref(), index.all().count()),
            (Some("b"), 1)
        );
        index.apply_change(Some(&second), Some(&first));
        assert_eq!(
            (found(&index).as_deref(), index.get("b").is_some()),
            (Some("a"), false)
        );
        index.apply_change(None, Some(&pod("c", "db")));
        index.retain(|pod| pod.uid == "c");
        assert_eq!(
            (found(&index), index.by_name.len(), index.all().count()),
            (None, 1, 1)
        );
        index.apply_change(Some(&pod("c", "db")), None);
        assert!(index.by_name.is_empty() && index.by_uid.is_empty());
    }

    #[test]
    fn a_pod_that_is_gone_is_known_until_it_is_forgotten_or_comes_back() {
        let (mut index, web, db) = (LocalPodIndex::default(), pod("a", "web"), pod("b", "db"));
        index.apply_change(None, Some(&web));
        index.apply_change(None, Some(&db));
        index.apply_change(Some(&web), None);
        index.retain(|_| false);
        assert_eq!(
            (
                index.gone_pod("a"),
                index.all_gone().count(),
                index.all().count()
            ),
            (Some(&web), 2, 0)
        );
        index.apply_change(None, Some(&db));
        assert_eq!((index.gone_pod("b"), index.get("b")), (None, Some(&db)));
        index.forget("a");
        assert_eq!(index.all_gone().count(), 0);
    }
}
