//! A watch that keeps a reduced copy of each object and reports which keys changed.

use std::{collections::BTreeMap, fmt::Debug, io, sync::Arc};

use futures::{StreamExt as _, stream::BoxStream};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use liqo_api::{Claimed, Key, record_text::max_values};
use parking_lot::RwLock;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    peers::PeerConnection,
    provider_limits::{Allowance, LimitExceeded, MAX_VALUES, ProviderLimits, RETRY_DELAY},
    queue::error_chain,
    unread::{UnparsedObject, is_written_by_peers, unparsed_api},
    watch,
};

/// Number of times that a watch may be forbidden before a warning is logged: about five seconds.
const FORBIDDEN_AT_FIRST: u32 = 3;
/// Maximum length in characters of what a peer wrote, in a log line.
const MAX_LOGGED_LEN: usize = 200;
/// Maximum page size for objects that peers wrote. Each may take the 1.5 MiB that etcd allows, so a
/// page takes at most 24 MiB.
const UNREAD_PAGE: u32 = 16;

/// The reduced objects of one watch. Clones share the same content.
pub struct Cache<R> {
    objects: Arc<RwLock<BTreeMap<Key, Arc<R>>>>,
    synced: watch::Receiver<bool>,
}

impl<R> Clone for Cache<R> {
    fn clone(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            synced: self.synced.clone(),
        }
    }
}

impl<R: Send + Sync + PartialEq + 'static> Cache<R> {
    /// Watches `api` until `stop`. `reduce` returns the part of an object that is needed, or
    /// nothing. Each change of that part calls `changed` with the key, the old part and the new
    /// part (none: the object did not or does not exist). It runs on the watch's task, so it must
    /// be quick: usually it adds keys to a queue.
    ///
    /// A broken watch is restarted with growing delays, and then reports objects that vanished
    /// meanwhile. If the kind is one that peers write, an object that cannot be parsed counts as
    /// absent.
    pub fn watch<K>(
        api: Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
        reduce: impl Fn(K) -> Option<R> + Send + 'static,
        changed: impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        Self::start_watch(api, config, stop, None, reduce, changed, || ())
    }

    /// Follows `events` until `stop`, or until they end. `reduce` and `changed` are as for a watch.
    pub(crate) fn follow<K: Send + Sync + 'static>(
        mut events: mpsc::UnboundedReceiver<watcher::Event<(Key, Arc<K>)>>,
        stop: CancellationToken,
        reduce: impl Fn(&Arc<K>) -> Option<Arc<R>> + Send + 'static,
        mut changed: impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static,
    ) -> Self {
        let objects = Arc::new(RwLock::new(BTreeMap::new()));
        let (synced_sender, synced) = watch::channel(false);
        let mut watched = WatchContent {
            content: objects.clone(),
            listed: None,
            allowance: None,
        };
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    // After the stop, report nothing, even if there are events.
                    biased;
                    () = stop.cancelled() => break,
                    event = events.recv() => event,
                };
                let Some(event) = event else { break };
                let reduced = match event {
                    watcher::Event::Delete((key, _)) => watcher::Event::Delete((key, None)),
                    event => map_event(event, |(key, object)| {
                        let reduced = reduce(&object);
                        (key, reduced)
                    }),
                };
                // Nothing is limited here, so this is no error.
                if watched.apply_event(reduced, &mut changed) == Ok(true) {
                    synced_sender.send_replace(true);
                }
            }
        });
        Self { objects, synced }
    }

    /// The same for our tenant namespace at a provider, within the [`crate::provider_limits`];
    /// `len` estimates the memory of a reduced object in bytes. If the provider exceeds a limit,
    /// the objects that were read before stay, and the watch starts again later.
    ///
    /// An object at the provider is a claim: `reduce` verifies it, keeps it closed, or gives the
    /// reason in `docs/reference/trusted-fields.md`.
    pub fn watch_provider<K>(
        connection: &PeerConnection,
        config: watcher::Config,
        stop: CancellationToken,
        len: fn(&R) -> usize,
        reduce: impl Fn(Claimed<K>) -> Option<R> + Send + 'static,
        changed: impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static,
    ) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let api = Api::namespaced(connection.client.clone(), &connection.tenant_namespace);
        Self::start_watch(
            api,
            config,
            stop,
            Some(Allowance::new(connection.limits.clone(), len)),
            move |object: K| reduce(Claimed::new(object)),
            changed,
            || (),
        )
    }

    /// Calls `listed` whenever a list is complete, after `changed`.
    pub(crate) fn start_watch<K>(
        api: Api<K>,
        config: watcher::Config,
        stop: CancellationToken,
        allowance: Option<Allowance<R>>,
        reduce: impl Fn(K) -> Option<R> + Send + 'static,
        mut changed: impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static,
        mut listed: impl FnMut() + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let objects = Arc::new(RwLock::new(BTreeMap::new()));
        let (synced_sender, synced) = watch::channel(false);
        let url = api.resource_url().to_owned();
        let limits = allowance.as_ref().map(|allowance| allowance.limits.clone());
        let mut watched = WatchContent {
            content: objects.clone(),
            listed: None,
            allowance,
        };
        let start_events = move || {
            (
                watch_events(api.clone(), config.clone(), limits.clone()),
                Instant::now(),
            )
        };
        let (mut events, mut begun) = start_events();
        tokio::spawn(async move {
            let mut failures = 0;
            loop {
                let event = tokio::select! {
                    // After the stop, report nothing, even if there are events.
                    biased;
                    () = stop.cancelled() => break,
                    event = events.next() => event,
                };
                let exceeded = match event {
                    None => break,
                    Some(Err(error)) => {
                        failures += 1;
                        log_failure(&url, &error, failures);
                        watched.exceeded_since(begun)
                    }
                    Some(Ok(event)) => {
                        // It only announces a list request, so it does not prove that the watch
                        // works.
                        failures = if matches!(event, watcher::Event::Init) {
                            failures
                        } else {
                            0
                        };
                        let reduced = within_limits(event, &reduce);
                        let taken =
                            reduced.and_then(|event| watched.apply_event(event, &mut changed));
                        if taken == Ok(true) {
                            synced_sender.send_replace(true);
                            listed();
                        }
                        taken.is_err()
                    }
                };
                if exceeded {
                    watched.abort_list();
                    let _ = tokio::time::timeout(RETRY_DELAY, stop.cancelled()).await;
                    (events, begun) = start_events();
                }
            }
        });
        Self { objects, synced }
    }

    /// Waits until the first list is complete. Returns `false` if the watch ended before.
    pub async fn wait_until_synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub fn get(&self, key: &Key) -> Option<Arc<R>> {
        self.objects.read().get(key).cloned()
    }

    /// The objects of one namespace by key. It costs as much as the namespace has, however many
    /// objects there are.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(Key, Arc<R>)> {
        in_namespace(&self.objects.read(), namespace)
    }

    /// Every key with its reduced object.
    pub fn all(&self) -> Vec<(Key, Arc<R>)> {
        self.objects
            .read()
            .iter()
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }
}

fn in_namespace<R>(objects: &BTreeMap<Key, Arc<R>>, namespace: &str) -> Vec<(Key, Arc<R>)> {
    let from_first = objects.range(Key::new(namespace, "")..);
    let of_namespace = from_first.take_while(|(key, _)| key.namespace == namespace);
    of_namespace
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect()
}

/// The content of a watch, and the list that it is reading.
struct WatchContent<R> {
    content: Arc<RwLock<BTreeMap<Key, Arc<R>>>>,
    listed: Option<BTreeMap<Key, Arc<R>>>,
    /// Only for watches of providers.
    allowance: Option<Allowance<R>>,
}

impl<R: PartialEq> WatchContent<R> {
    /// Takes over one event. Returns whether it completed a list.
    fn apply_event(
        &mut self,
        event: ReducedEvent<R>,
        changed: &mut impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>),
    ) -> Result<bool, LimitExceeded> {
        match event {
            watcher::Event::Init => {
                self.listed = Some(BTreeMap::new());
                self.allowance.iter_mut().for_each(Allowance::begin_list);
            }
            watcher::Event::InitApply((key, Some(object))) => {
                let mut listed = self.listed.take().unwrap_or_default();
                self.charge_limits(&key, listed.get(&key).map(AsRef::as_ref), Some(&object))?;
                listed.insert(key, object);
                self.listed = Some(listed);
            }
            watcher::Event::InitApply((_, None)) => {}
            watcher::Event::InitDone => {
                replace_content(
                    &self.content,
                    self.listed.take().unwrap_or_default(),
                    changed,
                );
                self.allowance.iter_mut().for_each(Allowance::end_list);
                return Ok(true);
            }
            watcher::Event::Apply((key, object)) => {
                self.set_object(&key, object.as_ref(), changed)?;
            }
            watcher::Event::Delete((key, _)) => self.set_object(&key, None, changed)?,
        }
        Ok(false)
    }

    fn set_object(
        &mut self,
        key: &Key,
        new: Option<&Arc<R>>,
        changed: &mut impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>),
    ) -> Result<(), LimitExceeded> {
        if self.allowance.is_some() {
            let old = self.content.read().get(key).cloned();
            self.charge_limits(key, old.as_deref(), new.map(AsRef::as_ref))?;
        }
        store_object(&self.content, key, new, changed);
        Ok(())
    }

    fn charge_limits(
        &mut self,
        key: &Key,
        old: Option<&R>,
        new: Option<&R>,
    ) -> Result<(), LimitExceeded> {
        let Some(allowance) = &mut self.allowance else {
            return Ok(());
        };
        allowance
            .replace_object(key, old, new)
            .inspect_err(|limit| allowance.limits.record_exceeded(*limit, Instant::now()))
    }

    /// Whether the provider exceeded a limit a moment ago, whichever of its watches read that, and
    /// since this one `begun`.
    fn exceeded_since(&self, begun: Instant) -> bool {
        let last = self
            .allowance
            .as_ref()
            .and_then(|allowance| allowance.limits.last_exceeded());
        last.is_some_and(|last| last >= begun && last.elapsed() < RETRY_DELAY)
    }

    fn abort_list(&mut self) {
        self.listed = None;
        self.allowance.iter_mut().for_each(Allowance::abort_list);
    }
}

/// The key of an object, and the object if it can be parsed; or the limit that it exceeds.
type ParsedObject<K> = (Key, Result<Option<K>, LimitExceeded>);
/// An event with the part of an object that is needed.
type ReducedEvent<R> = watcher::Event<(Key, Option<Arc<R>>)>;
type WatchEvents<K> = BoxStream<'static, watcher::Result<watcher::Event<ParsedObject<K>>>>;

/// Objects that peers write are parsed one by one, see [`crate::unread`]. Any other object that
/// cannot be parsed interrupts the watch, because to treat it as deleted would be worse. With
/// `limits`, the objects are at a provider, which may have written all of them.
fn watch_events<K>(
    api: Api<K>,
    config: watcher::Config,
    limits: Option<Arc<ProviderLimits>>,
) -> WatchEvents<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let url = api.resource_url().to_owned();
    if limits.is_none() && !is_written_by_peers(&url) {
        return watcher(api, config)
            .default_backoff()
            .map(|event| {
                event.map(|event| {
                    map_event(event, |object| (Key::of_object(&object), Ok(Some(object))))
                })
            })
            .boxed();
    }
    let read = move |object: UnparsedObject<K>| {
        let key = Key::of_object(&object);
        let read = match &limits {
            Some(limits) if max_values(object.json_text()) > MAX_VALUES => {
                limits.record_exceeded(LimitExceeded::Values, Instant::now());
                Err(LimitExceeded::Values)
            }
            limits => Ok(object
                .parse_object()
                .inspect_err(|error| log_unreadable(&url, &key, error, limits.as_deref()))
                .ok()),
        };
        (key, read)
    };
    watcher(unparsed_api(api), small_pages(config))
        .default_backoff()
        .map(move |event| event.map(|event| map_event(event, &read)))
        .boxed()
}

pub(crate) fn log_unreadable(
    url: &str,
    key: &Key,
    error: &serde_json::Error,
    limits: Option<&ProviderLimits>,
) {
    if limits.is_none_or(|limits| limits.may_log(Instant::now())) {
        let [key, error] = [key.to_string(), error.to_string()]
            .map(|text| text.chars().take(MAX_LOGGED_LEN).collect::<String>());
        tracing::warn!(
            url,
            key,
            error,
            "an object that cannot be parsed counts as absent"
        );
    }
}

/// The same, with pages of at most [`UNREAD_PAGE`] objects.
pub(crate) fn small_pages(config: watcher::Config) -> watcher::Config {
    let pages = config.page_size.unwrap_or(UNREAD_PAGE).min(UNREAD_PAGE);
    config.page_size(pages)
}

/// The event with the part of the object that is needed. Nothing is known about an object that
/// exceeds a limit, except that it is deleted.
fn within_limits<K, R>(
    event: watcher::Event<ParsedObject<K>>,
    reduce: impl Fn(K) -> Option<R>,
) -> Result<ReducedEvent<R>, LimitExceeded> {
    let exceeded = match &event {
        watcher::Event::Apply((_, object)) | watcher::Event::InitApply((_, object)) => {
            object.as_ref().err().copied()
        }
        watcher::Event::Init | watcher::Event::InitDone | watcher::Event::Delete(_) => None,
    };
    match exceeded {
        Some(exceeded) => Err(exceeded),
        None => Ok(map_event(event, |(key, object)| {
            (key, object.ok().flatten().and_then(&reduce).map(Arc::new))
        })),
    }
}

fn map_event<T, U>(event: watcher::Event<T>, convert: impl FnOnce(T) -> U) -> watcher::Event<U> {
    match event {
        watcher::Event::Apply(object) => watcher::Event::Apply(convert(object)),
        watcher::Event::Delete(object) => watcher::Event::Delete(convert(object)),
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(convert(object)),
        watcher::Event::InitDone => watcher::Event::InitDone,
    }
}

/// The watcher retries by itself, so only a lasting failure is worth a warning. A new right takes a
/// moment to have an effect, and a version that is too old leads to a new list.
pub(crate) fn log_failure(url: &str, error: &watcher::Error, failures: u32) {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let (code, text) = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => (status.code, status.message.clone()),
        other => (0, error_chain(other)),
    };
    let worth_a_warning = match code {
        403 => FORBIDDEN_AT_FIRST + 1,
        410 => 2,
        _ => 1,
    };
    if failures == worth_a_warning {
        tracing::warn!(url, error = text, "watch interrupted, trying again");
    } else {
        tracing::debug!(
            url,
            error = text,
            failures,
            "watch interrupted, trying again"
        );
    }
}

fn store_object<R: PartialEq>(
    content: &RwLock<BTreeMap<Key, Arc<R>>>,
    key: &Key,
    new: Option<&Arc<R>>,
    changed: &mut impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>),
) {
    let old = {
        let mut objects = content.write();
        if objects.get(key) == new {
            // Keep the old copy, which others may share.
            return;
        }
        match new {
            Some(object) => objects.insert(key.clone(), object.clone()),
            None => objects.remove(key),
        }
    };
    changed(key, old.as_ref(), new);
}

fn replace_content<R: PartialEq>(
    content: &RwLock<BTreeMap<Key, Arc<R>>>,
    mut new: BTreeMap<Key, Arc<R>>,
    changed: &mut impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>),
) {
    {
        // Keep old copies of equal objects, which others may share.
        let known = content.read();
        for (key, object) in &mut new {
            if let Some(same) = known.get(key).filter(|known| *known == object) {
                *object = same.clone();
            }
        }
    }
    let old = std::mem::replace(&mut *content.write(), new.clone());
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

/// Keeps the whole object except managed fields: for kinds with few objects.
pub fn without_managed_fields<K: Resource>(mut object: K) -> Option<K> {
    object.managed_fields_mut().clear();
    Some(object)
}

/// Estimated memory of a value in bytes: its lists and maps of short texts take several times as
/// much as their JSON.
pub fn parsed_len<T: Serialize>(value: &T) -> usize {
    const MEMORY_OF_JSON: usize = 8;
    struct Len(usize);
    impl io::Write for Len {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut len = Len(0);
    // What the API server sent as JSON can be written as JSON.
    let _ = serde_json::to_writer(&mut len, value);
    len.0 * MEMORY_OF_JSON
}

#[cfg(test)]
mod tests {
    use super::*;

    type Seen = Vec<(String, Option<u32>, Option<u32>)>;

    fn record(seen: &mut Seen) -> impl FnMut(&Key, Option<&Arc<u32>>, Option<&Arc<u32>>) {
        |key, old, new| seen.push((key.to_string(), old.map(|v| **v), new.map(|v| **v)))
    }

    #[test]
    fn pages_of_what_peers_write_are_as_small_as_the_watch_wants_or_smaller() {
        let page = |config| small_pages(config).page_size;
        let wanted = |size| page(watcher::Config::default().page_size(size));
        assert_eq!(
            (wanted(10), wanted(51), page(watcher::Config::default())),
            (Some(10), Some(UNREAD_PAGE), Some(UNREAD_PAGE))
        );
        assert_eq!(
            page(watcher::Config {
                page_size: None,
                ..watcher::Config::default()
            }),
            Some(UNREAD_PAGE)
        );
    }

    #[test]
    fn the_objects_of_a_namespace_are_found_among_those_of_others() {
        let keys = [
            ("a", "x"),
            ("a-b", "x"),
            ("b", "x"),
            ("b", "y"),
            ("ba", "x"),
            ("", "b"),
        ]
        .map(|(namespace, name)| Key::new(namespace, name));
        let objects: BTreeMap<Key, Arc<u32>> =
            keys.into_iter().map(|key| (key, Arc::new(1))).collect();
        let found = |namespace| {
            in_namespace(&objects, namespace)
                .into_iter()
                .map(|(key, _)| key.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (found("b"), found("a")),
            (
                vec!["b/x".to_owned(), "b/y".to_owned()],
                vec!["a/x".to_owned()]
            )
        );
        assert!(found("c").is_empty());
    }

    #[test]
    fn only_real_changes_are_told() {
        let content = RwLock::new(BTreeMap::new());
        let mut seen = Seen::new();
        for value in [Some(1), Some(1), Some(2), None, None] {
            store_object(
                &content,
                &Key::new("a", "b"),
                value.map(Arc::new).as_ref(),
                &mut record(&mut seen),
            );
        }
        let key = "a/b".to_owned();
        assert_eq!(
            seen,
            [
                (key.clone(), None, Some(1)),
                (key.clone(), Some(1), Some(2)),
                (key, Some(2), None)
            ]
        );
    }

    #[test]
    fn nothing_is_known_about_an_object_that_exceeds_a_limit() {
        use watcher::Event::{Apply, Delete, InitApply};
        let object = || -> ParsedObject<u32> { (Key::new("a", "b"), Err(LimitExceeded::Values)) };
        let is_refused = |event| within_limits(event, Some).is_err();
        assert!(is_refused(Apply(object())) && is_refused(InitApply(object())));
        assert!(matches!(
            within_limits(Delete(object()), Some),
            Ok(Delete((_, None)))
        ));
        let unreadable = (Key::new("a", "b"), Ok(None::<u32>));
        assert!(
            matches!(within_limits(Apply(unreadable), Some), Ok(Apply((_, None)))),
            "one that cannot be parsed counts as absent"
        );
    }

    #[test]
    fn what_vanished_during_an_interruption_is_told_after_it() {
        let same = Arc::new(2);
        let content = RwLock::new(BTreeMap::from([
            (Key::new("", "gone"), Arc::new(1)),
            (Key::new("", "same"), same.clone()),
        ]));
        let mut seen = Seen::new();
        replace_content(
            &content,
            BTreeMap::from([
                (Key::new("", "same"), Arc::new(2)),
                (Key::new("", "new"), Arc::new(3)),
            ]),
            &mut record(&mut seen),
        );
        seen.sort();
        assert_eq!(
            seen,
            [
                ("gone".to_owned(), Some(1), None),
                ("new".to_owned(), None, Some(3))
            ]
        );
        assert!(
            Arc::ptr_eq(&content.read()[&Key::new("", "same")], &same),
            "it is there twice"
        );
        store_object(
            &content,
            &Key::new("", "same"),
            Some(&Arc::new(2)),
            &mut |_, _, _| panic!("nothing changed"),
        );
        assert!(
            Arc::ptr_eq(&content.read()[&Key::new("", "same")], &same),
            "it is there twice"
        );
    }
}
