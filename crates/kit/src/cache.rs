//! A watch that keeps a reduced copy of each object and tells which key changed.

use std::{
    collections::HashMap,
    fmt::{self, Debug},
    sync::{Arc, PoisonError, RwLock},
};

use futures::{StreamExt as _, stream::BoxStream};
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    queue::error_chain,
    unread::{Unread, is_written_by_peers, unread},
};

/// How often a watch may be forbidden before that is worth telling: about five seconds.
const FORBIDDEN_AT_FIRST: u32 = 3;
/// How many objects that peers wrote are listed at a time: each may be as large as the API server lets it be.
const UNREAD_PAGE: u32 = 50;

/// Namespace (empty for cluster-scoped objects) and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// The key of an object in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of this object.
    pub fn of(object: &impl Resource) -> Self {
        let meta = object.meta();
        Self { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reduced objects of one watch. Clones share the same content.
pub struct Cache<R> {
    objects: Arc<RwLock<HashMap<Key, Arc<R>>>>,
    synced: watch::Receiver<bool>,
}

impl<R> Clone for Cache<R> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), synced: self.synced.clone() }
    }
}

impl<R: Send + Sync + PartialEq + 'static> Cache<R> {
    /// Watches `api` until `stop`. `reduce` keeps what is needed of an object, or nothing; `changed` is called after each
    /// change of the reduced form with the key, the form before and the form now (absent: it did not or does not exist).
    /// It runs on the watch's task: it must be quick, usually adding keys to a queue.
    ///
    /// A watch that breaks is started again with growing delays; objects that vanished meanwhile are reported then. An object
    /// of a kind that peers write, and that cannot be read, counts as absent.
    pub fn watch<K>(
        api: Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
        reduce: impl Fn(K) -> Option<R> + Send + 'static,
        mut changed: impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let objects = Arc::new(RwLock::new(HashMap::new()));
        let (synced_sender, synced) = watch::channel(false);
        let content = objects.clone();
        let url = api.resource_url().to_owned();
        let mut events = events(api, config, url.clone());
        tokio::spawn(async move {
            let mut listed: Option<HashMap<Key, Arc<R>>> = None;
            let mut failures = 0;
            loop {
                let event = tokio::select! {
                    // Nothing is told after the stop, however much there is to tell.
                    biased;
                    () = stop.cancelled() => break,
                    event = events.next() => event,
                };
                match event {
                    None => break,
                    Some(Err(error)) => {
                        failures += 1;
                        log_failure(&url, &error, failures);
                        continue;
                    }
                    Some(Ok(watcher::Event::Init)) => {
                        listed = Some(HashMap::new());
                        // It only says that a list will be asked for.
                        continue;
                    }
                    Some(Ok(watcher::Event::InitApply((key, object)))) => {
                        if let (Some(new), Some(reduced)) = (listed.as_mut(), object.and_then(&reduce)) {
                            new.insert(key, Arc::new(reduced));
                        }
                    }
                    Some(Ok(watcher::Event::InitDone)) => {
                        replace(&content, listed.take().unwrap_or_default(), &mut changed);
                        synced_sender.send_replace(true);
                    }
                    Some(Ok(watcher::Event::Apply((key, object)))) => {
                        set(&content, &key, object.and_then(&reduce).map(Arc::new).as_ref(), &mut changed);
                    }
                    Some(Ok(watcher::Event::Delete((key, _)))) => set(&content, &key, None, &mut changed),
                }
                failures = 0;
            }
        });
        Self { objects, synced }
    }

    /// Waits until the first list is complete. Returns `false` if the watch ended before.
    pub async fn synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// The reduced object with this key.
    pub fn get(&self, key: &Key) -> Option<Arc<R>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Every key with its reduced object, in no order.
    pub fn all(&self) -> Vec<(Key, Arc<R>)> {
        self.objects
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }
}

/// What a watch tells: the key, and the object if it can be read.
type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<(Key, Option<K>)>>>;

/// What peers write is read one by one, see [`crate::unread`]; all else that cannot be read interrupts the watch, because
/// taking it for deleted would be worse.
fn events<K>(api: Api<K>, config: watcher::Config, url: String) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    if !is_written_by_peers(&url) {
        let known = |object: K| (Key::of(&object), Some(object));
        return watcher(api, config).default_backoff().map(move |event| event.map(|event| each(event, known))).boxed();
    }
    let read = move |object: Unread<K>| {
        let key = Key::of(&object);
        let read = object.read().inspect_err(|error| {
            let error: String = error.to_string().chars().take(200).collect();
            tracing::warn!(url, %key, error, "an object that cannot be read counts as absent");
        });
        (key, read.ok())
    };
    let pages = config.page_size(UNREAD_PAGE);
    watcher(unread(api), pages).default_backoff().map(move |event| event.map(|event| each(event, &read))).boxed()
}

fn each<T, U>(event: watcher::Event<T>, convert: impl FnOnce(T) -> U) -> watcher::Event<U> {
    match event {
        watcher::Event::Apply(object) => watcher::Event::Apply(convert(object)),
        watcher::Event::Delete(object) => watcher::Event::Delete(convert(object)),
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(convert(object)),
        watcher::Event::InitDone => watcher::Event::InitDone,
    }
}

/// The watcher tries on by itself, so only what lasts is worth a warning. A right that was given a moment ago takes another
/// to hold, and a version that is too old is asked for anew.
fn log_failure(url: &str, error: &watcher::Error, failures: u32) {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let (code, text) = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => (status.code, status.message.clone()),
        other => (0, error_chain(other)),
    };
    let worth_telling = match code {
        403 => FORBIDDEN_AT_FIRST + 1,
        410 => 2,
        _ => 1,
    };
    if failures == worth_telling {
        tracing::warn!(url, error = text, "watch interrupted, trying again");
    } else {
        tracing::debug!(url, error = text, failures, "watch interrupted, trying again");
    }
}

fn set<R: PartialEq>(
    content: &RwLock<HashMap<Key, Arc<R>>>,
    key: &Key,
    new: Option<&Arc<R>>,
    changed: &mut impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>),
) {
    let old = {
        let mut objects = content.write().unwrap_or_else(PoisonError::into_inner);
        if objects.get(key) == new {
            // What others keep of it is not to be there twice.
            return;
        }
        match new {
            Some(object) => objects.insert(key.clone(), object.clone()),
            None => objects.remove(key),
        }
    };
    changed(key, old.as_ref(), new);
}

fn replace<R: PartialEq>(
    content: &RwLock<HashMap<Key, Arc<R>>>,
    mut new: HashMap<Key, Arc<R>>,
    changed: &mut impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>),
) {
    {
        // What others keep of it is not to be there twice.
        let known = content.read().unwrap_or_else(PoisonError::into_inner);
        for (key, object) in &mut new {
            if let Some(same) = known.get(key).filter(|known| *known == object) {
                *object = same.clone();
            }
        }
    }
    let old = std::mem::replace(&mut *content.write().unwrap_or_else(PoisonError::into_inner), new.clone());
    for (key, object) in &new {
        let before = old.get(key);
        if before != Some(object) {
            changed(key, before, Some(object));
        }
    }
    for (key, object) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
        changed(key, Some(object), None);
    }
}

/// Keeps an object as it is, without managed fields. For kinds of which there are few.
pub fn whole<K: Resource>(mut object: K) -> Option<K> {
    object.managed_fields_mut().clear();
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Seen = Vec<(String, Option<u32>, Option<u32>)>;

    fn record(seen: &mut Seen) -> impl FnMut(&Key, Option<&Arc<u32>>, Option<&Arc<u32>>) {
        |key, old, new| seen.push((key.to_string(), old.map(|v| **v), new.map(|v| **v)))
    }

    #[test]
    fn only_real_changes_are_told() {
        let content = RwLock::new(HashMap::new());
        let mut seen = Seen::new();
        for value in [Some(1), Some(1), Some(2), None, None] {
            set(&content, &Key::new("a", "b"), value.map(Arc::new).as_ref(), &mut record(&mut seen));
        }
        let key = "a/b".to_owned();
        assert_eq!(seen, [(key.clone(), None, Some(1)), (key.clone(), Some(1), Some(2)), (key, Some(2), None)]);
    }

    #[test]
    fn what_vanished_during_an_interruption_is_told_after_it() {
        let same = Arc::new(2);
        let content = RwLock::new(HashMap::from([(Key::new("", "gone"), Arc::new(1)), (Key::new("", "same"), same.clone())]));
        let mut seen = Seen::new();
        replace(
            &content,
            HashMap::from([(Key::new("", "same"), Arc::new(2)), (Key::new("", "new"), Arc::new(3))]),
            &mut record(&mut seen),
        );
        seen.sort();
        assert_eq!(seen, [("gone".to_owned(), Some(1), None), ("new".to_owned(), None, Some(3))]);
        assert!(Arc::ptr_eq(&content.read().unwrap()[&Key::new("", "same")], &same), "it is there twice");
        set(&content, &Key::new("", "same"), Some(&Arc::new(2)), &mut |_, _, _| panic!("nothing changed"));
        assert!(Arc::ptr_eq(&content.read().unwrap()[&Key::new("", "same")], &same), "it is there twice");
    }
}
