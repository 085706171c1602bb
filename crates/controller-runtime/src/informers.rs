//! One watch per kind, which several parts of the manager share.
//!
//! ```text
//!   API server ──▶ Informer<Namespace> ──┬──▶ Cache<LiqoNamespace>   peering
//!                  each object, once     ├──▶ Cache<TenantNamespace> sharing
//!                                        └──▶ Cache<...>             offloading
//! ```
//!
//! Each part still has a [`Cache`] of its own, with what it needs of each object, and its own
//! `changed`. Caches of whole objects share them. A kind whose objects are large, many, or needed
//! by one part only has a watch of its own: [`Cache::watch`].

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    fmt::Debug,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource,
    runtime::watcher::{self, Event},
};
use liqo_api::Key;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, without_managed_fields};

/// A kind that an informer can watch.
pub trait InformedKind:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + PartialEq + Send + Sync + 'static
{
}

impl<K> InformedKind for K where
    K: Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + PartialEq
        + Send
        + Sync
        + 'static
{
}

/// The informers of one run of the leader, or of the webhook. Clones share them. A new leader has
/// new ones: their first lists have all that the former leader wrote.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    stop: CancellationToken,
    /// An `Informer<K>` for each kind `K` that somebody asked for.
    by_kind: Arc<Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>>>,
}

impl Informers {
    /// They watch until `stop`, each from when somebody first asks for it.
    pub fn new(client: Client, stop: CancellationToken) -> Self {
        Self {
            client,
            stop,
            by_kind: Arc::default(),
        }
    }

    /// The informer of a kind, in all namespaces.
    pub fn of_kind<K: InformedKind>(&self) -> Informer<K> {
        let mut by_kind = self.by_kind.lock();
        let known = by_kind
            .entry(TypeId::of::<K>())
            .or_insert_with(|| Box::new(Informer::<K>::start(&self.client, &self.stop)));
        match known.downcast_ref::<Informer<K>>() {
            Some(informer) => informer.clone(),
            None => unreachable!("the key is the type"),
        }
    }
}

/// A watch of all objects of a kind, without their managed fields, and without the images and
/// volumes of nodes, which take most of a Node.
pub struct Informer<K> {
    cache: Cache<K>,
    followers: Arc<Mutex<Followers<K>>>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            followers: self.followers.clone(),
        }
    }
}

type FollowerEvent<K> = Event<(Key, Arc<K>)>;

struct Followers<K> {
    /// Whether the first list is complete.
    is_listed: bool,
    senders: Vec<UnboundedSender<FollowerEvent<K>>>,
}

impl<K> Followers<K> {
    /// Sends an event to each follower that still exists.
    fn send_event(&mut self, event: impl Fn() -> FollowerEvent<K>) {
        self.senders.retain(|sender| sender.send(event()).is_ok());
    }

    fn object_changed(&mut self, key: &Key, old: Option<&Arc<K>>, new: Option<&Arc<K>>) {
        let is_listed = self.is_listed;
        self.send_event(|| match (new, old) {
            (Some(new), _) if is_listed => Event::Apply((key.clone(), new.clone())),
            (Some(new), _) => Event::InitApply((key.clone(), new.clone())),
            (None, Some(old)) => Event::Delete((key.clone(), old.clone())),
            (None, None) => unreachable!("it changed"),
        });
    }

    fn list_completed(&mut self) {
        if !std::mem::replace(&mut self.is_listed, true) {
            self.send_event(|| Event::InitDone);
        }
    }
}

impl<K: InformedKind> Informer<K> {
    fn start(client: &Client, stop: &CancellationToken) -> Self {
        let followers = Arc::new(Mutex::new(Followers {
            is_listed: false,
            senders: Vec::new(),
        }));
        let (of_changes, of_lists) = (followers.clone(), followers.clone());
        let cache = Cache::start_watch(
            Api::<K>::all(client.clone()),
            watcher::Config::default(),
            stop.clone(),
            None,
            stored_form,
            move |key, old, new| of_changes.lock().object_changed(key, old, new),
            move || of_lists.lock().list_completed(),
        );
        Self { cache, followers }
    }

    /// A cache of the whole objects. `changed` is called as by [`Cache::watch`].
    pub fn cache(
        &self,
        stop: CancellationToken,
        changed: impl FnMut(&Key, Option<&Arc<K>>, Option<&Arc<K>>) + Send + 'static,
    ) -> Cache<K> {
        Cache::follow(self.follow(), stop, |object| Some(object.clone()), changed)
    }

    /// A cache of the part of each object that is needed. `reduce` and `changed` are called as by
    /// [`Cache::watch`].
    pub fn reduced_cache<R: PartialEq + Send + Sync + 'static>(
        &self,
        stop: CancellationToken,
        reduce: impl Fn(K) -> Option<R> + Send + 'static,
        changed: impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static,
    ) -> Cache<R> {
        Cache::follow(
            self.follow(),
            stop,
            move |object| reduce(K::clone(object)).map(Arc::new),
            changed,
        )
    }

    /// What exists, and then each change.
    fn follow(&self) -> UnboundedReceiver<FollowerEvent<K>> {
        let (sender, receiver) = unbounded_channel();
        // While this is locked, no change is reported. One that is in the cache already, and is
        // reported afterwards, comes twice, which is no change for the follower.
        let mut followers = self.followers.lock();
        let known = self.cache.all().into_iter().map(Event::InitApply);
        let listed = followers.is_listed.then_some(Event::InitDone);
        let first = std::iter::once(Event::Init).chain(known).chain(listed);
        // The receiver is here, so nothing is refused.
        first.for_each(|event| drop(sender.send(event)));
        followers.senders.push(sender);
        receiver
    }
}

fn stored_form<K: Resource + 'static>(object: K) -> Option<K> {
    let mut object = without_managed_fields(object)?;
    let node = (&mut object as &mut dyn Any).downcast_mut::<Node>();
    if let Some(status) = node.and_then(|node| node.status.as_mut()) {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{ResourceExt as _, api::PostParams};
    use liqo_simulation::{ApiServer, User};
    use serde_json::json;

    use super::*;

    type SeenChanges = Arc<Mutex<Vec<String>>>;

    fn note_changes<R>(
        seen: &SeenChanges,
    ) -> impl FnMut(&Key, Option<&Arc<R>>, Option<&Arc<R>>) + Send + 'static {
        let seen = seen.clone();
        move |key, _, new| {
            let sign = if new.is_some() { '+' } else { '-' };
            seen.lock().push(format!("{sign}{}", key.name));
        }
    }

    async fn create(api: &Api<ConfigMap>, name: &str, team: &str) {
        let object = json!({ "metadata": { "name": name, "labels": { "team": team } } });
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Waits until exactly these changes were seen, and then no other.
    async fn sees(seen: &SeenChanges, wanted: &[&str]) {
        let all_seen = async {
            while seen.lock().len() < wanted.len() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), all_seen).await;
        assert!(in_time.is_ok(), "{:?}", seen.lock());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(std::mem::take(&mut *seen.lock()), wanted);
    }

    #[allow(clippy::needless_pass_by_value)] // A cache calls it with a value.
    fn is_of_red_team(map: ConfigMap) -> Option<String> {
        let uid = map.uid();
        uid.filter(|_| map.labels().get("team").is_some_and(|team| team == "red"))
    }

    #[tokio::test]
    async fn several_caches_share_one_watch_and_each_sees_what_it_needs() {
        let server = ApiServer::new();
        let client = server.client(User::administrator());
        let api = Api::<ConfigMap>::default_namespaced(client.clone());
        create(&api, "first", "red").await;
        let stop = CancellationToken::new();
        let informers = Informers::new(client, stop.clone());
        let before = server.request_count();
        let (of_all, of_red): (SeenChanges, SeenChanges) = Default::default();
        let all = informers
            .of_kind::<ConfigMap>()
            .cache(stop.clone(), note_changes(&of_all));
        let red = informers.of_kind::<ConfigMap>().reduced_cache(
            stop.clone(),
            is_of_red_team,
            note_changes(&of_red),
        );
        assert!(all.wait_until_synced().await && red.wait_until_synced().await);
        sees(&of_red, &["+first"]).await;
        sees(&of_all, &["+first"]).await;
        // One list and one watch.
        assert_eq!(server.request_count() - before, 2);

        create(&api, "second", "blue").await;
        create(&api, "third", "red").await;
        api.delete("first", &kube::api::DeleteParams::default())
            .await
            .unwrap();
        sees(&of_all, &["+second", "+third", "-first"]).await;
        sees(&of_red, &["+third", "-first"]).await;
    }

    #[tokio::test]
    async fn a_cache_that_begins_later_lists_what_exists_and_one_that_stops_sees_nothing_more() {
        let server = ApiServer::new();
        let client = server.client(User::administrator());
        let api = Api::<ConfigMap>::default_namespaced(client.clone());
        create(&api, "first", "red").await;
        let (stop, stop_of_second) = (CancellationToken::new(), CancellationToken::new());
        let informers = Informers::new(client, stop.clone());
        let (of_first, of_second): (SeenChanges, SeenChanges) = Default::default();
        let first = informers
            .of_kind::<ConfigMap>()
            .cache(stop.clone(), note_changes(&of_first));
        assert!(first.wait_until_synced().await);
        let second = informers
            .of_kind::<ConfigMap>()
            .cache(stop_of_second.clone(), note_changes(&of_second));
        assert!(!second.is_synced(), "its task has not run yet");
        assert!(second.wait_until_synced().await);
        sees(&of_second, &["+first"]).await;
        let key = Key::new("default", "first");
        let [one, other] = [&first, &second].map(|cache| cache.get(&key).unwrap());
        assert!(Arc::ptr_eq(&one, &other), "it is there twice");

        stop_of_second.cancel();
        create(&api, "second", "red").await;
        sees(&of_first, &["+first", "+second"]).await;
        assert!(of_second.lock().is_empty());
        stop.cancel();
        let late = informers
            .of_kind::<liqo_api::ForeignCluster>()
            .cache(stop, |_, _, _| ());
        assert!(!late.wait_until_synced().await, "the process ends");
    }
}
