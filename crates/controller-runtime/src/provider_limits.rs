//! Limits on what one provider can make this process read and keep.
//!
//! A provider's API server may be hostile: it answers with whatever it wants, as much and as slowly
//! as it wants. Each session has one [`ProviderLimits`], which the HTTP client and all watches of
//! that provider share, so that no provider takes the memory or the time that the others need.
//! Nothing here waits for a provider, so that a peering with a hostile one can always be ended.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use liqo_api::{
    ClusterId, Key,
    token_bucket::{TokenBucket, TokenRate},
};
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, family::Family};
use tokio::{sync::Semaphore, time::Instant};

use crate::metrics;

/// Maximum length in bytes of one page of a list. Pages have at most 16 objects, of which the
/// largest take some 100 KiB.
pub const MAX_PAGE_LEN: usize = 8 << 20;
/// Maximum length in bytes of any other answer, and of one event of a watch: more than the 1.5 MiB
/// that etcd allows.
pub const MAX_ANSWER_LEN: usize = 2 << 20;
/// The same for Kubernetes events, also for a page of them: there is one watch of events for each
/// offloaded namespace.
pub const MAX_EVENT_ANSWER_LEN: usize = 512 << 10;
/// Maximum number of values in a single object: parsed, each takes up to a hundred bytes.
pub const MAX_VALUES: usize = 40_000;
/// The same for a page of a list, and for the metrics of many pods.
pub const MAX_PAGE_VALUES: usize = 16 * MAX_VALUES;
/// Maximum number of objects in a page. We ask for 16, but the provider may ignore that, and each
/// takes memory before it is read.
pub const MAX_PAGE_OBJECTS: usize = 1_000;
/// Maximum number of pages of one list.
pub const MAX_PAGES: usize = 1_000;
/// Maximum time to read one page.
pub const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of objects that all watches of a provider keep. The quota of a tenant namespace
/// allows 6,530.
pub const MAX_OBJECTS: usize = 10_000;
/// The same in bytes.
pub const MAX_BYTES: usize = 64 << 20;
/// Maximum number of bytes that the watches of all providers keep.
const MAX_TOTAL_BYTES: usize = 192 << 20;
/// The watches of each provider may keep this number of bytes even if the others use up the total.
const GUARANTEED_BYTES: usize = 16 << 20;
/// Estimated memory for each object besides its content, in bytes.
const OBJECT_OVERHEAD: usize = 256;

/// Bytes that lists and watches of a provider may send: 4 MiB each second on average, and 64 MiB as
/// fast as it can after a pause.
const BYTE_RATE: TokenRate = TokenRate::each_second(4 << 20, 64 << 20);
/// Cost of each request of a list or a watch in bytes, so that answers without content are limited
/// too.
pub const REQUEST_COST: usize = 32 << 10;
/// The same for each event of a watch.
pub const EVENT_COST: usize = 512;

/// Delay before a watch tries again after a limit was exceeded.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(30);
/// An exceeded limit is shown for this time. Longer than it takes to exceed it again.
const SHOWN_FOR: Duration = Duration::from_secs(150);
/// Minimum time between two log lines about one provider.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The limit that a provider exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    #[error("an answer of more than {} KiB", .0 / 1024)]
    AnswerLen(usize),
    #[error("a page of a list that was not complete after {} s", PAGE_TIMEOUT.as_secs())]
    PageTime,
    #[error("a list of more than {MAX_PAGES} pages")]
    Pages,
    #[error("a page of more than {MAX_PAGE_OBJECTS} objects")]
    PageObjects,
    #[error("an object of more than {MAX_VALUES} values")]
    Values,
    #[error("more than {MAX_OBJECTS} objects")]
    Objects,
    #[error("objects that take more than {} MiB", MAX_BYTES >> 20)]
    Bytes,
    #[error("objects that take more than {} MiB, while all providers together take {} MiB", GUARANTEED_BYTES >> 20, MAX_TOTAL_BYTES >> 20)]
    TotalBytes,
}

impl LimitExceeded {
    fn label(self) -> &'static str {
        match self {
            Self::AnswerLen(_) => "answer",
            Self::PageTime => "page-time",
            Self::Pages => "pages",
            Self::PageObjects => "page-objects",
            Self::Values => "values",
            Self::Objects => "objects",
            Self::Bytes => "bytes",
            Self::TotalBytes => "total-bytes",
        }
    }
}

/// Number and size of the kept objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptAmount {
    pub objects: usize,
    /// Estimated memory.
    pub bytes: usize,
}

impl KeptAmount {
    fn replaced(self, old: Self, new: Self) -> Self {
        Self {
            objects: self.objects.saturating_sub(old.objects) + new.objects,
            bytes: self.bytes.saturating_sub(old.bytes) + new.bytes,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            objects: self.objects.max(other.objects),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// Decides whether a provider that keeps `kept` may keep `new` instead of `old`, while all
/// providers keep `total` bytes. Less than before is always allowed.
fn check_limits(
    kept: KeptAmount,
    total: usize,
    old: KeptAmount,
    new: KeptAmount,
) -> Result<(), LimitExceeded> {
    let next = kept.replaced(old, new);
    if new.objects > old.objects && next.objects > MAX_OBJECTS {
        return Err(LimitExceeded::Objects);
    }
    if new.bytes <= old.bytes {
        return Ok(());
    }
    if next.bytes > MAX_BYTES {
        return Err(LimitExceeded::Bytes);
    }
    let total = total.saturating_sub(old.bytes) + new.bytes;
    if next.bytes > GUARANTEED_BYTES && total > MAX_TOTAL_BYTES {
        Err(LimitExceeded::TotalBytes)
    } else {
        Ok(())
    }
}

/// The bytes that the watches of all providers keep together. Clones share the same number.
#[derive(Clone, Debug, Default)]
pub struct TotalBytes(Arc<Mutex<usize>>);

#[derive(Debug, Default)]
struct ExceededLimits {
    /// The first exceeded limit, and when one was exceeded last.
    exceeded: Option<(LimitExceeded, Instant)>,
    logged: Option<Instant>,
}

/// The limits of one provider, see the module.
#[derive(Debug)]
pub struct ProviderLimits {
    provider: ClusterId,
    /// One permit: one page is read at a time.
    pub pages: Arc<Semaphore>,
    /// Pages so far of each list that is being read. The key is the request, so only we add keys.
    page_counts: Mutex<HashMap<String, usize>>,
    pace: Mutex<TokenBucket<Instant>>,
    kept: Mutex<KeptAmount>,
    total: TotalBytes,
    shown: Mutex<ExceededLimits>,
}

impl ProviderLimits {
    pub fn new(provider: ClusterId, total: TotalBytes) -> Self {
        Self {
            provider,
            pages: Arc::new(Semaphore::new(1)),
            page_counts: Mutex::default(),
            pace: Mutex::new(TokenBucket::full(BYTE_RATE)),
            kept: Mutex::default(),
            total,
            shown: Mutex::default(),
        }
    }

    /// Counts bytes of lists and watches. Returns how long to wait before reading more.
    pub fn count_bytes(&self, bytes: usize) -> Duration {
        let count = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.pace.lock().take_tokens(count, Instant::now())
    }

    /// Counts a page of a list; `first` if the request does not continue a list.
    pub fn count_page(&self, list: &str, first: bool) -> Result<(), LimitExceeded> {
        let mut counts = self.page_counts.lock();
        let count = counts.entry(list.to_owned()).or_default();
        *count = if first { 1 } else { *count + 1 };
        if *count > MAX_PAGES {
            Err(LimitExceeded::Pages)
        } else {
            Ok(())
        }
    }

    /// The amount that the watches of this provider keep now.
    pub fn kept_amount(&self) -> KeptAmount {
        *self.kept.lock()
    }

    /// Records that the provider exceeded a limit.
    pub fn record_exceeded(&self, limit: LimitExceeded, now: Instant) {
        count_exceeded(limit.label());
        let mut shown = self.shown.lock();
        let first = shown
            .exceeded
            .filter(|(_, last)| now < *last + SHOWN_FOR)
            .map_or(limit, |(first, _)| first);
        shown.exceeded = Some((first, now));
        drop(shown);
        if self.may_log(now) {
            tracing::warn!(provider = %self.provider, %limit, "the provider sends more than this cluster reads");
        }
    }

    /// Records that Kubernetes events of the provider exceeded a limit. It does not show in
    /// [`Self::exceeded_lately`]: an honest provider may have that many events, and only some of
    /// them are missed.
    pub fn skipped_events(&self, limit: LimitExceeded, now: Instant) {
        count_exceeded("events");
        if self.may_log(now) {
            tracing::warn!(provider = %self.provider, %limit, "the provider has more Kubernetes events than this cluster reads: skipping some");
        }
    }

    /// The limit that the provider exceeded lately: the first one, so that the text does not change
    /// all the time.
    pub fn exceeded_lately(&self, now: Instant) -> Option<LimitExceeded> {
        self.shown
            .lock()
            .exceeded
            .filter(|(_, last)| now < *last + SHOWN_FOR)
            .map(|(first, _)| first)
    }

    /// The last time at which a limit was exceeded.
    pub(crate) fn last_exceeded(&self) -> Option<Instant> {
        self.shown.lock().exceeded.map(|(_, last)| last)
    }

    /// Whether a line about this provider may be logged now: one a minute.
    pub(crate) fn may_log(&self, now: Instant) -> bool {
        let mut shown = self.shown.lock();
        let due = shown.logged.is_none_or(|last| now >= last + LOG_INTERVAL);
        if due {
            shown.logged = Some(now);
        }
        due
    }

    fn exchange_amounts(&self, old: KeptAmount, new: KeptAmount) -> Result<(), LimitExceeded> {
        let mut kept = self.kept.lock();
        let mut total = self.total.0.lock();
        check_limits(*kept, *total, old, new)?;
        *kept = kept.replaced(old, new);
        *total = total.saturating_sub(old.bytes) + new.bytes;
        Ok(())
    }
}

fn count_exceeded(limit: &'static str) {
    static COUNTS: OnceLock<Family<[(&'static str, &'static str); 1], Counter>> = OnceLock::new();
    let help = "How often providers exceeded a limit on what this cluster reads of them";
    let counts = COUNTS
        .get_or_init(|| metrics::register("provider_limits_exceeded", help, Family::default()));
    counts.get_or_create(&[("limit", limit)]).inc();
}

/// The amount that one watch of a provider keeps. Gives it back when it is dropped.
pub(crate) struct Allowance<R> {
    pub limits: Arc<ProviderLimits>,
    /// Estimates the memory of a reduced object in bytes.
    len: fn(&R) -> usize,
    current: KeptAmount,
    /// During a list: what the list contains so far.
    listing: Option<KeptAmount>,
    charged: KeptAmount,
}

impl<R> Allowance<R> {
    pub fn new(limits: Arc<ProviderLimits>, len: fn(&R) -> usize) -> Self {
        Self {
            limits,
            len,
            current: KeptAmount::default(),
            listing: None,
            charged: KeptAmount::default(),
        }
    }

    pub fn begin_list(&mut self) {
        self.listing = Some(KeptAmount::default());
    }

    /// The list replaces what was kept so far.
    pub fn end_list(&mut self) {
        self.current = self.listing.take().unwrap_or_default();
        self.shrink();
    }

    pub fn abort_list(&mut self) {
        self.listing = None;
        self.shrink();
    }

    /// Replaces an object by another one, in the list if there is one. Changes nothing if a limit
    /// would be exceeded.
    pub fn replace_object(
        &mut self,
        key: &Key,
        old: Option<&R>,
        new: Option<&R>,
    ) -> Result<(), LimitExceeded> {
        let [old, new] = [old, new].map(|object| {
            object.map_or(KeptAmount::default(), |object| KeptAmount {
                objects: 1,
                bytes: OBJECT_OVERHEAD + key.namespace.len() + key.name.len() + (self.len)(object),
            })
        });
        let (mut current, mut listing) = (self.current, self.listing);
        match &mut listing {
            Some(listing) => *listing = listing.replaced(old, new),
            None => current = current.replaced(old, new),
        }
        let wanted = current.max(listing.unwrap_or_default());
        self.limits.exchange_amounts(self.charged, wanted)?;
        (self.current, self.listing, self.charged) = (current, listing, wanted);
        Ok(())
    }

    fn shrink(&mut self) {
        let wanted = self.current.max(self.listing.unwrap_or_default());
        // Not more than what is charged already, so it cannot fail.
        if self.limits.exchange_amounts(self.charged, wanted).is_ok() {
            self.charged = wanted;
        }
    }
}

impl<R> Drop for Allowance<R> {
    fn drop(&mut self) {
        let _ = self
            .limits
            .exchange_amounts(self.charged, KeptAmount::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(seed: u8, total: &TotalBytes) -> Arc<ProviderLimits> {
        Arc::new(ProviderLimits::new(
            ClusterId::of_public_key(&[seed; 32]),
            total.clone(),
        ))
    }

    fn amount(objects: usize, bytes: usize) -> KeptAmount {
        KeptAmount { objects, bytes }
    }

    #[test]
    fn a_provider_keeps_so_many_objects_and_bytes_and_may_always_keep_less() {
        let none = KeptAmount::default();
        assert_eq!(
            check_limits(none, 0, none, amount(MAX_OBJECTS, MAX_BYTES)),
            Ok(())
        );
        let full = amount(MAX_OBJECTS, MAX_BYTES);
        assert_eq!(
            check_limits(full, MAX_BYTES, none, amount(1, 0)),
            Err(LimitExceeded::Objects)
        );
        assert_eq!(
            check_limits(amount(1, MAX_BYTES), MAX_BYTES, none, amount(1, 1)),
            Err(LimitExceeded::Bytes)
        );
        let above = amount(MAX_OBJECTS + 9, MAX_BYTES + 9);
        assert_eq!(
            check_limits(above, MAX_TOTAL_BYTES + 9, amount(5, 100), amount(4, 99)),
            Ok(())
        );
    }

    #[test]
    fn providers_that_use_up_the_total_leave_the_others_their_share() {
        let none = KeptAmount::default();
        assert_eq!(
            check_limits(none, MAX_TOTAL_BYTES, none, amount(1, GUARANTEED_BYTES)),
            Ok(())
        );
        assert_eq!(
            check_limits(none, MAX_TOTAL_BYTES, none, amount(1, GUARANTEED_BYTES + 1)),
            Err(LimitExceeded::TotalBytes)
        );
    }

    #[tokio::test]
    async fn what_a_watch_kept_is_given_back_when_it_ends() {
        let total = TotalBytes::default();
        let limits = limits(1, &total);
        let mut one = Allowance::<usize>::new(limits.clone(), |len| *len);
        let mut other = Allowance::<usize>::new(limits.clone(), |len| *len);
        let key = Key::new("t", "a");
        let len = MAX_BYTES / 2;
        one.replace_object(&key, None, Some(&len)).unwrap();
        assert_eq!(
            other.replace_object(&key, None, Some(&len)),
            Err(LimitExceeded::Bytes),
            "the watches of a provider share its limits"
        );
        // A list that shows the same again costs nothing more; a longer one does.
        one.begin_list();
        one.replace_object(&key, None, Some(&len)).unwrap();
        assert_eq!(limits.kept_amount().objects, 1);
        assert_eq!(
            one.replace_object(&Key::new("t", "b"), None, Some(&len)),
            Err(LimitExceeded::Bytes)
        );
        one.abort_list();
        assert_eq!(limits.kept_amount().objects, 1);
        one.begin_list();
        one.end_list();
        assert_eq!(limits.kept_amount(), KeptAmount::default());
        other.replace_object(&key, None, Some(&len)).unwrap();
        drop((one, other));
        assert_eq!(
            (limits.kept_amount(), *total.0.lock()),
            (KeptAmount::default(), 0)
        );
    }

    #[tokio::test]
    async fn an_endless_list_ends() {
        let limits = limits(1, &TotalBytes::default());
        for page in 0..MAX_PAGES {
            assert_eq!(limits.count_page("pods", page == 0), Ok(()));
        }
        assert_eq!(limits.count_page("pods", false), Err(LimitExceeded::Pages));
        assert_eq!(limits.count_page("secrets", false), Ok(()));
        assert_eq!(limits.count_page("pods", true), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_sends_fast_for_a_moment_and_then_at_its_rate() {
        let limits = limits(1, &TotalBytes::default());
        let second = Duration::from_secs(1);
        assert_eq!(limits.count_bytes(64 << 20), Duration::ZERO);
        assert_eq!(limits.count_bytes(4 << 20), second);
        tokio::time::advance(second).await;
        assert_eq!(limits.count_bytes(4 << 20), second);
    }

    #[tokio::test]
    async fn an_exceeded_limit_shows_until_it_is_respected_for_a_while() {
        let limits = limits(1, &TotalBytes::default());
        let now = Instant::now();
        assert_eq!(limits.exceeded_lately(now), None);
        limits.record_exceeded(LimitExceeded::Pages, now);
        let again = now + RETRY_DELAY * 2;
        limits.record_exceeded(LimitExceeded::Objects, again);
        let shown = |after: Duration| limits.exceeded_lately(again + after);
        assert_eq!(
            shown(SHOWN_FOR / 2),
            Some(LimitExceeded::Pages),
            "the text changes with each answer"
        );
        assert_eq!(shown(SHOWN_FOR), None);
    }

    #[tokio::test]
    async fn events_that_are_skipped_do_not_count_as_a_fault_of_the_provider() {
        let limits = limits(1, &TotalBytes::default());
        let now = Instant::now();
        limits.skipped_events(LimitExceeded::Pages, now);
        assert_eq!(
            (limits.exceeded_lately(now), limits.last_exceeded()),
            (None, None),
            "other watches would wait for it"
        );
    }

    #[tokio::test]
    async fn a_provider_fills_no_log() {
        let limits = limits(1, &TotalBytes::default());
        let now = Instant::now();
        assert!(
            limits.may_log(now)
                && !limits.may_log(now + LOG_INTERVAL / 2)
                && limits.may_log(now + LOG_INTERVAL)
        );
    }
}
