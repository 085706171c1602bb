//! Reports each object in a namespace of a provider, and each change of it, but stores none.
//! Offloading follows Kubernetes events with it, and copies some of them to local pods.
//!
//! ```text
//! everything that exists, and each change ──▶ a limit is exceeded ──▶ only changes from now on
//! ```
//!
//! A provider may have more events than the [`crate::provider_limits`] allow, without any fault.
//! Then only events are lost: the peering goes on, and the caches of other objects are not
//! affected.

use std::{error::Error, fmt::Debug, io, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use liqo_api::{Key, record_text::max_values};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    cache::{log_failure, log_unreadable, small_pages},
    provider_limits::{LimitExceeded, MAX_VALUES, ProviderLimits, RETRY_DELAY},
    unread::{UnparsedObject, unparsed_api},
};

/// A watch that is still open and silent this long after its timeout counts as broken.
const IDLE_MARGIN: Duration = Duration::from_secs(5);
/// Duration of a watch in seconds if its configuration does not say it.
const DEFAULT_WATCH_SECONDS: u32 = 290;
/// Minimum time between two watches.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of the version of an object, in bytes.
const MAX_VERSION_LEN: usize = 64;

/// An object of a provider, or the news that some are left out.
#[derive(Debug)]
pub enum FollowedObject<K> {
    /// An object that exists, is new or has changed.
    Object(K),
    /// The provider has more than this cluster reads: what exists now is not shown, only what
    /// changes later.
    Skipped(LimitExceeded),
}

/// Follows the objects of a provider with these `limits`. A broken watch is restarted with growing
/// delays. Reads no faster than its consumer.
pub fn follow_objects<K>(
    api: Api<K>,
    config: watcher::Config,
    limits: Arc<ProviderLimits>,
) -> impl Stream<Item = FollowedObject<K>> + Send + Unpin + 'static
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (url, api) = (api.resource_url().to_owned(), unparsed_api(api));
    let everything = watcher(api.clone(), small_pages(config.clone()))
        .default_backoff()
        .boxed();
    let source = FollowSource::Everything(everything);
    let follower = Follower {
        api,
        config,
        limits,
        url,
        source,
        failures: 0,
        pause: Duration::ZERO,
    };
    stream::unfold(follower, |mut follower| async {
        let next = follower.next().await;
        Some((next, follower))
    })
    .boxed()
}

struct Follower<K> {
    api: Api<UnparsedObject<K>>,
    config: watcher::Config,
    limits: Arc<ProviderLimits>,
    url: String,
    source: FollowSource<K>,
    /// Consecutive errors.
    failures: u32,
    /// Time to wait before the next request.
    pause: Duration,
}

enum FollowSource<K> {
    Everything(BoxStream<'static, watcher::Result<watcher::Event<UnparsedObject<K>>>>),
    Changes(ChangesOnly<K>),
}

impl<K> Follower<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn next(&mut self) -> FollowedObject<K> {
        loop {
            sleep(std::mem::take(&mut self.pause)).await;
            let shown = match &mut self.source {
                FollowSource::Everything(events) => match events.next().await {
                    // It only announces a list request, so it does not prove that the watch works.
                    Some(Ok(watcher::Event::Init)) => continue,
                    // It never ends.
                    event => event.map_or(Ok(None), |event| event.map(existing_object)),
                },
                FollowSource::Changes(changes) => changes.next(&self.api, &self.config).await,
            };
            if shown.is_ok() {
                self.failures = 0;
            }
            match shown {
                Ok(Some(object)) => {
                    if let Some(object) = self.parse_object(&object) {
                        return FollowedObject::Object(object);
                    }
                }
                Ok(None) => {
                    if let FollowSource::Changes(ChangesOnly { watch: None, .. }) = self.source {
                        self.pause = PAUSE;
                    }
                }
                Err(error) => {
                    if let Some(limit) = self.handle_error(&error) {
                        return FollowedObject::Skipped(limit);
                    }
                }
            }
        }
    }

    /// Decides how to go on after an error. Returns the limit that the provider exceeded.
    fn handle_error(&mut self, error: &watcher::Error) -> Option<LimitExceeded> {
        self.failures += 1;
        let exceeded = exceeded_limit(error);
        let limit = exceeded.filter(is_too_much);
        let only_changes = matches!(self.source, FollowSource::Changes(_));
        if limit.is_some() {
            self.source = FollowSource::Changes(ChangesOnly::default());
        } else {
            log_failure(&self.url, error, self.failures);
        }
        self.pause = match (only_changes, limit) {
            (false, None) if exceeded.is_some() => RETRY_DELAY,
            // A stream of everything waits by itself, and the first look at changes must not miss
            // any.
            (false, _) => Duration::ZERO,
            (true, Some(_)) => RETRY_DELAY,
            (true, None) => RETRY_DELAY.min(PAUSE * 2_u32.saturating_pow(self.failures)),
        };
        limit
    }

    fn parse_object(&self, object: &UnparsedObject<K>) -> Option<K> {
        if max_values(object.json_text()) > MAX_VALUES {
            self.limits
                .skipped_events(LimitExceeded::Values, Instant::now());
            return None;
        }
        object
            .parse_object()
            .inspect_err(|error| {
                log_unreadable(
                    &self.url,
                    &Key::of_object(object),
                    error,
                    Some(&self.limits),
                );
            })
            .ok()
    }
}

fn existing_object<K>(event: watcher::Event<K>) -> Option<K> {
    match event {
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) => Some(object),
        watcher::Event::Init | watcher::Event::InitDone | watcher::Event::Delete(_) => None,
    }
}

/// The changes from the first look on. Only the version of the list is read, not what is in it.
struct ChangesOnly<K> {
    /// The version after which changes are shown; none before the first look.
    after: Option<String>,
    watch: Option<BoxStream<'static, kube::Result<WatchEvent<UnparsedObject<K>>>>>,
}

impl<K> Default for ChangesOnly<K> {
    fn default() -> Self {
        Self {
            after: None,
            watch: None,
        }
    }
}

impl<K> ChangesOnly<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// The next object that changed, if there is one before the watch ends.
    async fn next(
        &mut self,
        api: &Api<UnparsedObject<K>>,
        config: &watcher::Config,
    ) -> watcher::Result<Option<UnparsedObject<K>>> {
        let shown = self.next_or_error(api, config).await;
        if let Err(error) = &shown {
            self.watch = None;
            if is_too_old(error) {
                self.after = None;
            }
        }
        shown
    }

    async fn next_or_error(
        &mut self,
        api: &Api<UnparsedObject<K>>,
        config: &watcher::Config,
    ) -> watcher::Result<Option<UnparsedObject<K>>> {
        let after = match &self.after {
            Some(after) => after,
            None => self.after.insert(newest_version(api, config).await?),
        };
        let watch = if let Some(watch) = &mut self.watch {
            watch
        } else {
            let begun = api
                .watch(&watch_params(config), after)
                .await
                .map_err(watcher::Error::WatchStartFailed)?;
            self.watch.insert(begun.boxed())
        };
        let seconds = config.timeout.unwrap_or(DEFAULT_WATCH_SECONDS);
        let event = timeout(
            Duration::from_secs(seconds.into()) + IDLE_MARGIN,
            watch.next(),
        )
        .await
        .ok()
        .flatten();
        match event.transpose().map_err(watcher::Error::WatchFailed)? {
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                self.advance_to(object.resource_version());
                Ok(Some(object))
            }
            Some(WatchEvent::Deleted(object)) => {
                self.advance_to(object.resource_version());
                Ok(None)
            }
            Some(WatchEvent::Bookmark(bookmark)) => {
                self.advance_to(Some(bookmark.metadata.resource_version));
                Ok(None)
            }
            Some(WatchEvent::Error(status)) => Err(watcher::Error::WatchError(status.boxed())),
            None => {
                self.watch = None;
                Ok(None)
            }
        }
    }
}

impl<K> ChangesOnly<K> {
    /// Goes on after this version, if it is one.
    fn advance_to(&mut self, version: Option<String>) {
        if let Some(version) = version.filter(|version| is_version(version)) {
            self.after = Some(version);
        }
    }
}

/// Whether a provider may mean this as the version of an object. Kubernetes' versions are numbers.
fn is_version(version: &str) -> bool {
    (1..=MAX_VERSION_LEN).contains(&version.len())
}

fn watch_params(config: &watcher::Config) -> WatchParams {
    WatchParams {
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        timeout: config.timeout,
        bookmarks: config.bookmarks,
        send_initial_events: false,
    }
}

/// The present version of a list, of which only one object is read.
async fn newest_version<K>(
    api: &Api<UnparsedObject<K>>,
    config: &watcher::Config,
) -> watcher::Result<String>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = ListParams {
        label_selector: config.label_selector.clone(),
        field_selector: config.field_selector.clone(),
        limit: Some(1),
        ..ListParams::default()
    };
    let list = api
        .list(&params)
        .await
        .map_err(watcher::Error::InitialListFailed)?;
    list.metadata
        .resource_version
        .filter(|version| is_version(version))
        .ok_or(watcher::Error::NoResourceVersion)
}

/// Whether the provider does not know changes after that version any more.
fn is_too_old(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 410,
        _ => false,
    }
}

/// The limit because of which a request failed. The client reports it as an I/O error within
/// others.
fn exceeded_limit(error: &watcher::Error) -> Option<LimitExceeded> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(limit) = error.downcast_ref() {
            return Some(*limit);
        }
        // An I/O error names as its source that of the error in it.
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Whether the provider has more than is read. One that is slow, or cannot be reached, does not.
fn is_too_much(limit: &LimitExceeded) -> bool {
    *limit != LimitExceeded::PageTime
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_in_the_error_of_a_client_and_slowness_skips_nothing() {
        let io = |limit| io::Error::other(io::Error::other(limit));
        let list = watcher::Error::InitialListFailed(kube::Error::Service(Box::new(io(
            LimitExceeded::Pages,
        ))));
        assert_eq!(exceeded_limit(&list), Some(LimitExceeded::Pages));
        let watch = watcher::Error::WatchFailed(kube::Error::ReadEvents(io(LimitExceeded::Values)));
        assert_eq!(exceeded_limit(&watch), Some(LimitExceeded::Values));
        let other = watcher::Error::WatchFailed(kube::Error::ReadEvents(
            io::ErrorKind::ConnectionReset.into(),
        ));
        assert_eq!(exceeded_limit(&other), None);
        assert!(is_too_much(&LimitExceeded::Pages) && !is_too_much(&LimitExceeded::PageTime));
    }
}
