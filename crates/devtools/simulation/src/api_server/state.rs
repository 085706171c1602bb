//! What an API server keeps, and what every write does.

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::random::Draws;

use super::{
    kinds::{Kind, Kinds},
    selectors::Selector,
    store::{Change, Key, Store},
    webhook_call::Webhooks,
};

/// Resources whose changes need no look at the cluster, unless they come or go: a lease counts when
/// it runs out, an event never.
const UNWATCHED: [&str; 2] = ["leases.coordination.k8s.io", "events"];
/// Random characters of generated names: no vowels, so that no words appear.
const NAME_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub struct State {
    pub kinds: Kinds,
    pub store: Store,
    watchers: Vec<Watcher>,
    pub changed: Arc<Notify>,
    pub requests: u64,
    pub webhooks: Option<Webhooks>,
    observer: Option<Observer>,
    clock: Box<dyn Fn() -> Timestamp + Send>,
    draws: Draws,
}

/// Sees each change when it is made: the object before it and after it.
pub type Observer = Box<dyn FnMut(&Key, Option<&Value>, Option<&Value>) + Send>;

/// Who is told about changes.
pub struct Watcher {
    pub resource: String,
    pub namespace: String,
    pub selector: Selector,
    pub events: mpsc::UnboundedSender<WatchEvent>,
}

pub struct WatchEvent {
    /// `ADDED`, `MODIFIED`, `DELETED` or `ERROR`.
    pub kind: &'static str,
    pub object: Arc<Value>,
    /// The object as JSON, once somebody needed it: all watchers of a change share it.
    pub text: Arc<OnceLock<String>>,
}

impl WatchEvent {
    pub fn new(kind: &'static str, object: Arc<Value>) -> Self {
        Self {
            kind,
            object,
            text: Arc::default(),
        }
    }
}

impl Watcher {
    /// Whether it watches this resource in this namespace.
    fn includes(&self, resource: &str, namespace: &str) -> bool {
        self.resource == resource && (self.namespace.is_empty() || self.namespace == namespace)
    }

    /// The event of this watch for a change; `None` if it does not select the object. All watches
    /// of the change share `text`.
    pub fn event(&self, change: &Change, text: &Arc<OnceLock<String>>) -> Option<WatchEvent> {
        if !self.includes(&change.key.resource, &change.key.namespace) {
            return None;
        }
        let selects = |object: &Option<Arc<Value>>| {
            object
                .as_ref()
                .is_some_and(|object| self.selector.matches(object))
        };
        let shared = |kind: &'static str, object: &Arc<Value>| {
            Some(WatchEvent {
                kind,
                object: object.clone(),
                text: text.clone(),
            })
        };
        match (selects(&change.before), &change.after) {
            (false, Some(after)) if self.selector.matches(after) => shared("ADDED", after),
            (true, Some(after)) if self.selector.matches(after) => shared("MODIFIED", after),
            (true, Some(after)) => {
                // It left the selection: the watcher gets its last selected state, with the version
                // of the change.
                let mut last = change.before.as_deref().cloned().unwrap_or_default();
                last["metadata"]["resourceVersion"] = after["metadata"]["resourceVersion"].clone();
                Some(WatchEvent::new("DELETED", Arc::new(last)))
            }
            (true, None) => shared("DELETED", &change.last),
            _ => None,
        }
    }
}

impl State {
    pub fn new(seed: u64, clock: Box<dyn Fn() -> Timestamp + Send>) -> Self {
        let mut state = Self::with(Kinds::built_in(), Store::default(), seed, clock);
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            state.create_namespace(name);
        }
        state
    }

    /// Another API server with the same objects, whose watchers see only what happens from now on.
    pub fn copy(&self, seed: u64, clock: Box<dyn Fn() -> Timestamp + Send>) -> Self {
        Self::with(self.kinds.clone(), self.store.copy(), seed, clock)
    }

    fn with(
        kinds: Kinds,
        store: Store,
        seed: u64,
        clock: Box<dyn Fn() -> Timestamp + Send>,
    ) -> Self {
        Self {
            kinds,
            store,
            watchers: Vec::new(),
            changed: Arc::default(),
            requests: 0,
            webhooks: None,
            observer: None,
            clock,
            draws: Draws::new(seed),
        }
    }

    fn create_namespace(&mut self, name: &str) {
        let namespace = json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {
                "name": name, "uid": self.uid(), "creationTimestamp": self.now_text(),
                "labels": { "kubernetes.io/metadata.name": name },
            },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        let key = Key {
            resource: "namespaces".to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
        };
        self.put(key, namespace);
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The time as objects have it, in seconds.
    pub fn now_text(&self) -> String {
        self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// The next number of the sequence that the seed began.
    pub fn draw(&mut self) -> u64 {
        self.draws.number()
    }

    pub fn uid(&mut self) -> String {
        let (high, low) = (self.draw(), self.draw());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }

    /// Five random characters.
    pub fn suffix(&mut self) -> String {
        let mut number = self.draw();
        let mut next = || {
            let index = usize::try_from(number % NAME_CHARACTERS.len() as u64).unwrap_or_default();
            number /= NAME_CHARACTERS.len() as u64;
            char::from(NAME_CHARACTERS[index])
        };
        (0..5).map(|_| next()).collect()
    }

    pub fn set_observer(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    pub fn watch(&mut self, watcher: Watcher) {
        self.watchers.push(watcher);
    }

    pub fn watch_count(&self, resource: &str, object: &Value) -> usize {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        self.watchers
            .iter()
            .filter(|watcher| !watcher.events.is_closed())
            .filter(|watcher| watcher.includes(resource, namespace))
            .filter(|watcher| watcher.selector.matches(object))
            .count()
    }

    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.store.get(&key(kind, namespace, name)).cloned()
    }

    /// Stores an object, and tells the watchers.
    pub fn put(&mut self, key: Key, object: Value) -> Arc<Value> {
        if key.resource == "customresourcedefinitions.apiextensions.k8s.io" {
            self.kinds.define(&object);
        }
        let change = self.store.put(key, object);
        self.tell(&change);
        change.last
    }

    /// Removes an object, and tells the watchers.
    pub fn remove(&mut self, key: Key, last: Value) -> Arc<Value> {
        if key.resource == "customresourcedefinitions.apiextensions.k8s.io" {
            self.kinds.remove(&last);
        }
        let change = self.store.remove(key, last);
        self.tell(&change);
        change.last
    }

    fn tell(&mut self, change: &Change) {
        if let Some(observer) = &mut self.observer {
            observer(
                &change.key,
                change.before.as_deref(),
                change.after.as_deref(),
            );
        }
        let is_renewed = change.before.is_some() && change.after.is_some();
        if !is_renewed || !UNWATCHED.contains(&change.key.resource.as_str()) {
            self.changed.notify_one();
        }
        let text = Arc::default();
        self.watchers
            .retain(|watcher| match watcher.event(change, &text) {
                Some(event) => watcher.events.send(event).is_ok(),
                None => !watcher.events.is_closed(),
            });
    }
}

pub fn key(kind: &Kind, namespace: &str, name: &str) -> Key {
    Key {
        resource: kind.resource(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
