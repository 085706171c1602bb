//! The shadow pods that the watch showed: those that exist, and those that are gone and whose pods
//! are not stored yet.
//!
//! A consumer may remove its finalizer, delete the object, and create another one with the same
//! name at once. What the pods of the first one used must not be lost, so it stays here until its
//! entry is stored. A shadow pod is in one of both lists at every moment, whoever looks: the cache
//! alone would lack it for a moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use liqo_api::Key;
use liqo_offloading_rules::pod::shadow_pod::ProviderShadowPod;

#[derive(Default)]
pub struct ShadowIndex {
    present: BTreeMap<Key, Arc<ProviderShadowPod>>,
    left: BTreeMap<Key, Vec<Arc<ProviderShadowPod>>>,
}

impl ShadowIndex {
    /// Takes over a change that the watch reported.
    pub fn apply_change(&mut self, key: &Key, new: Option<&Arc<ProviderShadowPod>>) {
        let old = match new {
            Some(new) => self.present.insert(key.clone(), new.clone()),
            None => self.present.remove(key),
        };
        if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
            self.left.entry(key.clone()).or_default().push(old);
        }
    }

    /// The shadow pods of this name that are gone.
    pub fn gone_pods(&self, key: &Key) -> Vec<Arc<ProviderShadowPod>> {
        self.left.get(key).cloned().unwrap_or_default()
    }

    /// Forgets the gone shadow pod with this UID: its usage is stored.
    pub fn forget_stored(&mut self, key: &Key, uid: &str) {
        if let Some(left) = self.left.get_mut(key) {
            left.retain(|shadow| shadow.uid != uid);
            if left.is_empty() {
                self.left.remove(key);
            }
        }
    }

    /// All shadow pods of a namespace, also those that are gone.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(Key, Arc<ProviderShadowPod>)> {
        let first = Key::new(namespace, "");
        let present = self
            .present
            .range(first.clone()..)
            .take_while(|(key, _)| key.namespace == namespace);
        let left = self
            .left
            .range(first..)
            .take_while(|(key, _)| key.namespace == namespace);
        let left = left.flat_map(|(key, shadows)| shadows.iter().map(move |shadow| (key, shadow)));
        present
            .chain(left)
            .map(|(key, shadow)| (key.clone(), shadow.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shadow(uid: &str, phase: &str) -> Arc<ProviderShadowPod> {
        let object = json!({ "metadata": { "name": "web", "uid": uid }, "spec": { "namespace": "demo", "pool": "p", "pod": "{}" },
            "status": { "phase": phase } });
        Arc::new(ProviderShadowPod::from_shadow_pod(
            serde_json::from_value(object).unwrap(),
        ))
    }

    #[test]
    fn a_shadow_pod_stays_until_what_its_pods_used_is_stored_also_if_another_one_has_its_name() {
        let (mut index, key) = (ShadowIndex::default(), Key::new("tenant", "web"));
        index.apply_change(&key, Some(&shadow("a", "Pending")));
        index.apply_change(&key, Some(&shadow("a", "Created")));
        assert!(index.gone_pods(&key).is_empty(), "it changed");
        index.apply_change(&key, Some(&shadow("b", "Created")));
        index.apply_change(&key, None);
        index.apply_change(&key, None);
        let left: Vec<String> = index
            .gone_pods(&key)
            .iter()
            .map(|shadow| shadow.uid.clone())
            .collect();
        assert_eq!(left, ["a", "b"]);
        assert_eq!(
            (
                index.in_namespace("tenant").len(),
                index.in_namespace("tenan").len()
            ),
            (2, 0)
        );
        index.forget_stored(&key, "a");
        index.forget_stored(&key, "b");
        assert!(index.left.is_empty() && index.in_namespace("tenant").is_empty());
    }
}
