//! Objects, their versions, and the history that watches read.

use std::{
    collections::{BTreeMap, VecDeque},
    iter,
    ops::Bound,
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

/// At each end of this time, kube-apiserver lets etcd forget the changes from before its begin.
const COMPACTION_INTERVAL: Duration = Duration::from_mins(5);

/// Where an object is: plural with group, namespace (empty for a cluster's), name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub resource: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone)]
pub struct Change {
    pub version: u64,
    pub key: Key,
    /// `None` for a creation.
    pub before: Option<Arc<Value>>,
    /// `None` for a deletion.
    pub after: Option<Arc<Value>>,
    /// What a watch says about a deletion: the last state, with the version of the deletion.
    pub last: Arc<Value>,
}

/// The objects of an API server.
pub struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    version: u64,
    history: VecDeque<Change>,
    /// The version of the newest change that is forgotten.
    compacted: u64,
    /// The version of the newest change that may make garbage, see [`concerns_owners`].
    ownership: u64,
    /// By resource, the version of its newest change.
    changed: BTreeMap<String, u64>,
    /// The last end of a [`COMPACTION_INTERVAL`], and the version at that time: the next compaction
    /// goes up to it.
    interval: (Instant, u64),
}

/// The version is not in the history any more.
pub struct Compacted;

impl Default for Store {
    fn default() -> Self {
        let interval = (Instant::now(), 0);
        Self {
            objects: BTreeMap::new(),
            version: 0,
            history: VecDeque::new(),
            compacted: 0,
            ownership: 0,
            changed: BTreeMap::new(),
            interval,
        }
    }
}

impl Store {
    /// The same objects, without their history.
    pub fn copy(&self) -> Self {
        let Self {
            objects, version, ..
        } = self;
        Self {
            objects: objects.clone(),
            version: *version,
            compacted: *version,
            ownership: *version,
            interval: (Instant::now(), *version),
            ..Self::default()
        }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// The version of the newest change after which an object may be garbage.
    pub fn ownership(&self) -> u64 {
        self.ownership
    }

    /// The version of the newest change of a resource, since this store was made.
    pub fn changed(&self, resource: &str) -> u64 {
        self.changed.get(resource).copied().unwrap_or_default()
    }

    /// Forgets all changes: who watches from before now must list again.
    pub fn compact(&mut self) {
        self.compact_to(self.version);
    }

    fn compact_to(&mut self, version: u64) {
        let forgotten = self
            .history
            .partition_point(|change| change.version <= version);
        self.history.drain(..forgotten);
        self.compacted = version;
    }

    /// The version of the newest change that is forgotten, after the compactions until now.
    fn compacted_now(&self) -> u64 {
        let (begin, version) = self.interval;
        let due = match begin.elapsed().as_secs() / COMPACTION_INTERVAL.as_secs() {
            0 => self.compacted,
            1 => version,
            // Nothing has changed in the last interval.
            _ => self.version,
        };
        due.max(self.compacted)
    }

    /// Makes the compactions until now. Before each change, so that the version in between is
    /// known.
    fn catch_up(&mut self) {
        let (begin, _) = self.interval;
        let intervals = u32::try_from(begin.elapsed().as_secs() / COMPACTION_INTERVAL.as_secs())
            .unwrap_or(u32::MAX);
        if intervals > 0 {
            self.compact_to(self.compacted_now());
            self.interval = (begin + COMPACTION_INTERVAL * intervals, self.version);
        }
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects of a resource, in the order of namespace and name. An empty namespace means all.
    pub fn list<'a>(
        &'a self,
        resource: &'a str,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        let first = Key {
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        self.objects
            .range((Bound::Included(first), Bound::Unbounded))
            .take_while(move |(key, _)| {
                key.resource == resource && (namespace.is_empty() || key.namespace == namespace)
            })
    }

    /// The resources that have objects.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        let first = self.objects.keys().next();
        let next = |last: &&Key| {
            // The first key after all of this resource.
            let after = Key {
                resource: format!("{}\0", last.resource),
                namespace: String::new(),
                name: String::new(),
            };
            self.objects.range(after..).map(|(key, _)| key).next()
        };
        iter::successors(first, next).map(|key| key.resource.as_str())
    }

    pub fn all(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter()
    }

    /// The objects of a resource as they were, in the order of namespace and name.
    pub fn list_at<'a>(
        &'a self,
        resource: &'a str,
        namespace: &'a str,
        version: u64,
    ) -> Result<Vec<(&'a Key, &'a Arc<Value>)>, Compacted> {
        if version < self.compacted_now() {
            return Err(Compacted);
        }
        if self.changed(resource) <= version {
            return Ok(self.list(resource, namespace).collect());
        }
        let mut objects: BTreeMap<&Key, &Arc<Value>> = self.list(resource, namespace).collect();
        for change in self
            .history
            .iter()
            .rev()
            .take_while(|change| change.version > version)
        {
            if change.key.resource != resource
                || !(namespace.is_empty() || change.key.namespace == namespace)
            {
                continue;
            }
            match &change.before {
                Some(before) => objects.insert(&change.key, before),
                None => objects.remove(&change.key),
            };
        }
        Ok(objects.into_iter().collect())
    }

    /// The changes after a version.
    pub fn since(&self, version: u64) -> Result<impl Iterator<Item = &Change>, Compacted> {
        if version < self.compacted_now() {
            return Err(Compacted);
        }
        Ok(self
            .history
            .iter()
            .skip_while(move |change| change.version <= version))
    }

    /// Stores an object, and gives it the next version.
    pub fn put(&mut self, key: Key, mut object: Value) -> Change {
        self.catch_up();
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), object.clone());
        self.record(Change {
            version: self.version,
            key,
            before,
            after: Some(object.clone()),
            last: object,
        })
    }

    /// Removes an object. `last` is its last state.
    pub fn remove(&mut self, key: Key, mut last: Value) -> Change {
        self.catch_up();
        self.version += 1;
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.remove(&key);
        self.record(Change {
            version: self.version,
            key,
            before,
            after: None,
            last: Arc::new(last),
        })
    }

    fn record(&mut self, change: Change) -> Change {
        if concerns_owners(&change) {
            self.ownership = change.version;
        }
        match self.changed.get_mut(&change.key.resource) {
            Some(version) => *version = change.version,
            None => drop(
                self.changed
                    .insert(change.key.resource.clone(), change.version),
            ),
        }
        self.history.push_back(change.clone());
        change
    }
}

/// Whether an object went, begins to end, or has other owners or finalizers.
fn concerns_owners(change: &Change) -> bool {
    let Some(after) = &change.after else {
        return true;
    };
    let fields = ["ownerReferences", "finalizers", "deletionTimestamp"];
    let before = change
        .before
        .as_ref()
        .map_or(&Value::Null, |before| &before["metadata"]);
    fields
        .iter()
        .any(|field| before[*field] != after["metadata"][*field])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key {
            resource: "configmaps".into(),
            namespace: "n".into(),
            name: name.into(),
        }
    }

    fn names<'a>(objects: &[(&'a Key, &Arc<Value>)]) -> Vec<&'a str> {
        objects.iter().map(|(key, _)| key.name.as_str()).collect()
    }

    #[test]
    fn the_past_can_be_listed() {
        let mut store = Store::default();
        store.put(key("a"), json!({ "metadata": {} }));
        store.put(key("b"), json!({ "metadata": {} }));
        store.remove(key("a"), json!({ "metadata": {} }));
        let list = |version| store.list_at("configmaps", "n", version).ok().unwrap();
        assert_eq!(names(&list(1)), ["a"]);
        assert_eq!(names(&list(2)), ["a", "b"]);
        assert_eq!(names(&list(3)), ["b"]);
    }

    #[test]
    fn resources_are_told_once() {
        let mut store = Store::default();
        for (resource, name) in [
            ("pods", "a"),
            ("pods", "b"),
            ("jobs.batch", "a"),
            ("pods.example.com", "a"),
        ] {
            store.put(
                Key {
                    resource: resource.into(),
                    ..key(name)
                },
                json!({ "metadata": {} }),
            );
        }
        assert_eq!(
            store.resources().collect::<Vec<_>>(),
            ["jobs.batch", "pods", "pods.example.com"]
        );
    }

    #[test]
    fn there_may_be_garbage_after_a_change_of_owners_finalizers_or_an_end_and_after_a_removal() {
        let mut store = Store::default();
        let mut may_make_garbage = |metadata: Value| {
            let before = store.ownership();
            store.put(
                key("a"),
                json!({ "metadata": metadata, "status": { "changed": before } }),
            );
            store.ownership() > before
        };
        assert!(!may_make_garbage(json!({})));
        assert!(may_make_garbage(
            json!({ "ownerReferences": [{ "uid": "u" }] })
        ));
        assert!(!may_make_garbage(
            json!({ "ownerReferences": [{ "uid": "u" }], "labels": { "a": "b" } })
        ));
        assert!(may_make_garbage(
            json!({ "finalizers": ["foregroundDeletion"] })
        ));
        assert!(may_make_garbage(
            json!({ "finalizers": ["foregroundDeletion"], "deletionTimestamp": "now" })
        ));
        assert!(may_make_garbage(json!({ "deletionTimestamp": "now" })));
        let before = store.ownership();
        store.remove(key("a"), json!({ "metadata": {} }));
        assert!(store.ownership() > before);
    }

    #[test]
    fn what_was_forgotten_cannot_be_listed() {
        let mut store = Store::default();
        store.put(key("a"), json!({ "metadata": {} }));
        store.put(key("b"), json!({ "metadata": {} }));
        store.compact();
        assert!(store.list_at("configmaps", "n", 1).is_err());
        assert!(store.since(1).is_err());
        assert_eq!(store.since(2).ok().unwrap().count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_forgotten_after_five_to_ten_minutes() {
        let mut store = Store::default();
        store.put(key("a"), json!({ "metadata": {} }));
        store.put(key("b"), json!({ "metadata": {} }));
        tokio::time::sleep(Duration::from_secs(299)).await;
        assert!(store.since(1).is_ok());
        tokio::time::sleep(Duration::from_secs(2)).await;
        store.put(key("c"), json!({ "metadata": {} }));
        assert!(
            store.since(0).is_ok(),
            "the first compaction has nothing to forget"
        );
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(store.since(1).is_err() && store.list_at("configmaps", "n", 1).is_err());
        assert_eq!(store.since(2).ok().unwrap().count(), 1);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert!(store.since(2).is_err());
        assert_eq!(store.since(3).ok().unwrap().count(), 0);
    }
}
