//! Stores what pods used: the usage records of one side, in its own namespaces.
//!
//! Before a controller lets a pod go, it calls [`UsageRecorder::store_entries`]. When the entries are stored,
//! its key is enqueued again, and it goes on. Entries are written in batches: the first at once,
//! then at most one write a second for each namespace, and fewer while pods keep ending. At the end
//! of a period the recorder adds the pods that still run, and marks the period as complete.
//!
//! Without a contract, a namespace has no records and costs nothing.

mod metered_contracts;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use kube::{Api, api::PostParams, runtime::watcher::Config};
use liqo_api::{ClusterId, UsageRecord, UsageRecordSpec, labels};
use liqo_controller_runtime::conditions::namespaced_api;
use liqo_controller_runtime::put::{create_or_replace, with_peer_labels};
use liqo_controller_runtime::writes::{StepContext as _, StepError};
use liqo_controller_runtime::{Batches, Cache, Context, Key, Queue, Requeue, metrics};
use liqo_metering::receipt::{api_period, period_label, period_of};
use liqo_metering::spending::ContractAccount;
use liqo_metering::voucher::may_have_run_on;
use liqo_metering::{ChunkBook, ChunkWrite, Period, Seconds, UsageEntry};
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, family::Family};
use tokio::time::Instant;

pub use liqo_metering::period::GRACE;
pub use metered_contracts::{MeteredContract, MeteredContracts};

/// Minimum time between two writes in one namespace.
const PACE: Duration = Duration::from_secs(1);
/// The same while pods go on to end. A pod that ends waits as long.
const MAX_PACE: Duration = Duration::from_secs(3);
/// Delay before a period is completed whose pods are not known now.
const UNKNOWN_RETRY: Duration = Duration::from_secs(10);

/// Usage records in one page: each may take 256 KiB.
const PAGE: u32 = 16;
/// The last chunk is remembered for so many of the latest periods of a namespace.
const MAX_REMEMBERED: usize = 16;

/// The facts that a side knows and the recorder does not.
pub trait MeteringSide: Send + Sync + 'static {
    /// The entries, at this time, of all pods of a namespace that still exist. `None` if that is
    /// not known now.
    fn open_entries(&self, namespace: &str, now: Seconds) -> Option<Vec<UsageEntry>>;
    fn entry_parts(&self, entry: &UsageEntry, period_seconds: u32) -> Vec<(Period, UsageEntry)>;
    /// The entries of these pods are stored: what waits for that can go on.
    fn entries_stored(&self, namespace: &str, pods: Vec<String>);
    /// Seconds between the end of a period and its completion.
    fn completion_grace(&self) -> Seconds;
}

/// A record that exists.
#[derive(Clone, Debug, PartialEq)]
struct FoundChunk {
    contract: String,
    period: Period,
    chunk: u32,
    chunks: Option<u32>,
    /// Only a consumer keeps them, for its budgets.
    entries: Box<str>,
}

/// The number of a chunk, and how many there are if the period is complete.
type LastChunk = (u32, Option<u32>);

/// The known facts about one namespace.
#[derive(Default)]
struct MeteredNamespace {
    /// `None` until it was read from the cache, and after a write of unknown outcome.
    book: Option<ChunkBook>,
    /// Entries to be stored, by pod.
    pending: BTreeMap<String, Vec<UsageEntry>>,
    /// Pods whose entries are being written.
    writing: HashSet<String>,
    /// Pods whose entries are stored, until they are forgotten.
    stored: BTreeSet<String>,
    /// The last second of the entries of each pod that are stored or wait for that, until they are
    /// forgotten.
    ends: BTreeMap<String, Seconds>,
    /// Pods that existed when this process last completed a period, and whose last entry had ended.
    ended: HashSet<String>,
    /// The last chunk that this process wrote, of each of the latest periods: the cache may not
    /// show it yet.
    chunks: BTreeMap<(Period, String), LastChunk>,
    batches: Batches,
}

/// Writes the usage records of one side.
pub struct UsageRecorder {
    context: Context,
    /// The label that names the peer.
    peer_label: &'static str,
    role: &'static str,
    contracts: MeteredContracts,
    records: Cache<FoundChunk>,
    queue: Queue<String>,
    namespaces: Mutex<HashMap<String, MeteredNamespace>>,
}

impl FoundChunk {
    fn reduce(record: UsageRecord) -> Option<Self> {
        let UsageRecordSpec {
            contract,
            period,
            chunk,
            chunks,
            entries,
        } = record.spec;
        Some(Self {
            contract,
            period: period_of(&period)?,
            chunk,
            chunks,
            entries: entries.into(),
        })
    }

    fn without_entries(record: UsageRecord) -> Option<Self> {
        Some(Self {
            entries: Box::default(),
            ..Self::reduce(record)?
        })
    }
}

impl UsageRecorder {
    /// Starts the watches. `peer_label` is on the objects of this side; `role` is its word in the
    /// metrics.
    pub fn start(context: &Context, peer_label: &'static str, role: &'static str) -> Arc<Self> {
        let queue = Queue::new();
        let (client, stop, ours) = (
            context.client.clone(),
            context.stop.clone(),
            Config::default().labels(peer_label),
        );
        let changed = queue.clone();
        let contracts = MeteredContracts::follow(context, peer_label, move |namespace| {
            changed.add(namespace.to_owned());
        });
        let all = Api::<UsageRecord>::all(client);
        let reduce = if peer_label == labels::PROVIDER_ID {
            FoundChunk::reduce
        } else {
            FoundChunk::without_entries
        };
        let records = Cache::watch(all, ours.page_size(PAGE), stop, reduce, |_, _, _| {});
        let (context, namespaces) = (context.clone(), Mutex::default());
        Arc::new(Self {
            context,
            peer_label,
            role,
            contracts,
            records,
            queue,
            namespaces,
        })
    }

    /// Waits for the initial lists.
    pub async fn synced(&self) -> bool {
        self.contracts.synced().await && self.records.wait_until_synced().await
    }

    /// The latest contract of a namespace.
    pub fn latest_contract(&self, namespace: &str) -> Option<Arc<MeteredContract>> {
        self.contracts
            .charging_contracts(namespace, self.context.now())
            .pop()
    }

    /// The peers with a contract.
    pub fn peers(&self) -> Vec<ClusterId> {
        self.contracts
            .namespaces()
            .iter()
            .filter_map(|namespace| peer_of_namespace(namespace))
            .collect()
    }

    /// Returns the stored costs of each contract of a namespace of the consumer.
    pub fn accounts(&self, namespace: &str) -> Vec<ContractAccount> {
        let contracts = self.contracts.all_in_namespace(namespace);
        let mut accounts: Vec<(&str, ContractAccount)> = contracts
            .iter()
            .map(|one| (one.id.as_str(), one.account()))
            .collect();
        for (_, found) in self.records.in_namespace(namespace) {
            if let Some((_, account)) = accounts.iter_mut().find(|(id, _)| *id == found.contract) {
                account.add_record(found.period, found.chunks.is_some(), &found.entries);
            }
        }
        accounts.into_iter().map(|(_, account)| account).collect()
    }

    /// The end of the last period whose entries are complete.
    pub fn settled_until(&self, namespace: &str) -> Timestamp {
        let mut all = self.namespaces.lock();
        let settled = self
            .book_of_namespace(namespace, all.entry(namespace.to_owned()).or_default())
            .settled_until();
        settled
            .and_then(|settled| Timestamp::from_second(settled).ok())
            .unwrap_or_default()
    }

    /// The same for a pod, whose entries of that period say that it ran on. Second 0 if they have
    /// its end.
    pub fn settled_until_running(&self, namespace: &str, pod: &str) -> Timestamp {
        let has_end = self
            .namespaces
            .lock()
            .get(namespace)
            .is_some_and(|known| known.ended.contains(pod));
        if has_end {
            Timestamp::default()
        } else {
            self.settled_until(namespace)
        }
    }

    /// Whether a pod that is gone here may have run on after the last complete period, as far as
    /// the records say.
    pub fn may_have_run_on(&self, namespace: &str, uid: &str, sent: Seconds) -> bool {
        let settled = self.settled_until(namespace).as_second();
        let records = self.records.in_namespace(namespace);
        may_have_run_on(
            uid,
            sent,
            settled,
            records
                .iter()
                .map(|(_, found)| (found.period, &*found.entries)),
        )
    }

    /// Returns the end of the last entry of all pods of this name except `life`, a key as
    /// [`Self::store_entries`] gets it. Second 0 without any.
    pub fn stored_before(&self, namespace: &str, name: &str, life: &str) -> Timestamp {
        let all = self.namespaces.lock();
        let ends = all
            .get(namespace)
            .into_iter()
            .flat_map(|known| keys_of_name(&known.ends, name));
        let last = ends
            .filter(|(key, _)| *key != life)
            .map(|(_, end)| *end)
            .max();
        last.and_then(|end| Timestamp::from_second(end).ok())
            .unwrap_or_default()
    }

    /// Whether the entries of a pod are stored.
    pub fn is_stored(&self, namespace: &str, pod: &str) -> bool {
        self.namespaces
            .lock()
            .get(namespace)
            .is_some_and(|known| known.stored.contains(pod))
    }

    /// Stores the entries of a pod. Returns whether they are stored already, or need not be.
    /// Otherwise [`MeteringSide::entries_stored`] tells it. The first entries of a pod count, not later ones.
    ///
    /// `pod` is the name of a shadow pod, and may have a part after a slash: one name may have
    /// several lives, each with entries of its own.
    pub fn store_entries(&self, namespace: &str, pod: &str, entries: Vec<UsageEntry>) -> bool {
        if self.is_stored(namespace, pod) {
            return true;
        }
        let contracts = self
            .contracts
            .charging_contracts(namespace, self.context.now());
        if entries.iter().all(|entry| {
            contracts
                .iter()
                .all(|contract| contract.part_of(entry).is_none())
        }) {
            return true;
        }
        let mut all = self.namespaces.lock();
        let known = all.entry(namespace.to_owned()).or_default();
        if known.writing.contains(pod) {
            return false;
        }
        if let Some(end) = entries.iter().map(|entry| entry.until.at).max() {
            known.ends.entry(pod.to_owned()).or_insert(end);
        }
        known.pending.entry(pod.to_owned()).or_insert(entries);
        // What is written just now is followed by a batch of what came meanwhile.
        if !known.writing.is_empty() {
            return false;
        }
        let waits = known.batches.time_to_wait(Instant::now());
        drop(all);
        if waits.is_zero() {
            self.queue.add(namespace.to_owned());
        } else {
            self.queue.add_after(namespace.to_owned(), waits);
        }
        false
    }

    /// Nothing needs to be remembered of the pods of this name any more. Entries that wait are
    /// stored all the same.
    pub fn forget(&self, namespace: &str, name: &str) {
        if let Some(known) = self.namespaces.lock().get_mut(namespace) {
            known.stored.retain(|key| name_of_key(key) != name);
            known.ends.retain(|key, _| name_of_key(key) != name);
        }
    }

    /// Writes until the context's `stop`.
    pub async fn run(self: Arc<Self>, side: Arc<dyn MeteringSide>) {
        if self.context.stop.run_until_cancelled(self.synced()).await != Some(true) {
            return;
        }
        let (queue, stop, name) = (
            self.queue.clone(),
            self.context.stop.clone(),
            if self.role == "provider" {
                "usage-records"
            } else {
                "own-usage-records"
            },
        );
        queue
            .run(name, 8, stop, move |namespace| {
                let (recorder, side) = (self.clone(), side.clone());
                async move { recorder.reconcile(&namespace, side.as_ref()).await }
            })
            .await;
    }

    async fn reconcile(
        &self,
        namespace: &str,
        side: &dyn MeteringSide,
    ) -> Result<Requeue, StepError> {
        let Some(peer) = peer_of_namespace(namespace) else {
            return Ok(Requeue::OnChange);
        };
        let time = self.context.now();
        let (now, contracts) = (
            time.as_second(),
            self.contracts.charging_contracts(namespace, time),
        );
        let (pending, mut writes) = self.take_batch(namespace, side, &contracts);
        let is_known = contracts.is_empty()
            || self.complete_periods(namespace, side, &contracts, now, &mut writes);
        let outcome = self.write_all(namespace, &peer, writes).await;
        let mut all = self.namespaces.lock();
        let known = all.entry(namespace.to_owned()).or_default();
        known.writing.clear();
        if let Err(error) = outcome {
            // It may have been written or not: read again what exists. What was written twice
            // counts once.
            known.book = None;
            for (pod, entries) in pending {
                known.pending.entry(pod).or_insert(entries);
            }
            return Err(error);
        }
        let stored: Vec<String> = pending.into_keys().collect();
        known.stored.extend(stored.iter().cloned());
        if !stored.is_empty() {
            known.batches.record_batch(Instant::now(), PACE, MAX_PACE);
        }
        let (more, pace) = (
            !known.pending.is_empty(),
            known.batches.time_to_wait(Instant::now()),
        );
        if contracts.is_empty() && !more {
            all.remove(namespace);
        }
        drop(all);
        if !stored.is_empty() {
            side.entries_stored(namespace, stored);
        }
        if more {
            return Ok(Requeue::After(pace));
        }
        if !is_known {
            return Ok(Requeue::After(UNKNOWN_RETRY));
        }
        let ends = contracts.iter().map(|contract| {
            Period::at(now - side.completion_grace(), contract.period_seconds).end()
                + side.completion_grace()
        });
        let next = ends.min().and_then(|end| u64::try_from(end - now).ok());
        Ok(next.map_or(Requeue::OnChange, |seconds| {
            Requeue::After(Duration::from_secs(seconds.max(1)))
        }))
    }

    /// Takes the entries that wait, and what to write for them.
    fn take_batch(
        &self,
        namespace: &str,
        side: &dyn MeteringSide,
        contracts: &[Arc<MeteredContract>],
    ) -> (BTreeMap<String, Vec<UsageEntry>>, Vec<ChunkWrite>) {
        let mut all = self.namespaces.lock();
        let known = all.entry(namespace.to_owned()).or_default();
        let pending = std::mem::take(&mut known.pending);
        known.writing = pending.keys().cloned().collect();
        let mut by_period: BTreeMap<(String, Period), Vec<UsageEntry>> = BTreeMap::new();
        for contract in contracts {
            let parts = pending
                .values()
                .flatten()
                .filter_map(|entry| contract.part_of(entry));
            for (period, part) in
                parts.flat_map(|part| side.entry_parts(&part, contract.period_seconds))
            {
                by_period
                    .entry((contract.id.clone(), period))
                    .or_default()
                    .push(part);
            }
        }
        let book = self.book_of_namespace(namespace, known);
        let mut writes = Vec::new();
        for ((contract, period), entries) in by_period {
            if !book.is_complete(&contract, period) {
                self.count_entries(namespace, &entries);
            }
            writes.extend(book.append_entries(&contract, period, entries));
        }
        (pending, writes)
    }

    /// The periods of a contract that are over and not complete.
    fn due_periods(
        &self,
        namespace: &str,
        contract: &MeteredContract,
        grace: Seconds,
        now: Seconds,
    ) -> Vec<Period> {
        let mut all = self.namespaces.lock();
        let book = self.book_of_namespace(namespace, all.entry(namespace.to_owned()).or_default());
        let first = book
            .settled_until()
            .unwrap_or(contract.start)
            .max(contract.start);
        let mut periods =
            book.due_periods(&contract.id, contract.period_seconds, first, now, grace);
        periods.retain(|period| contract.reaches_into(*period));
        periods
    }

    /// Completes the periods that are over. Returns whether all pods are known that may still run.
    fn complete_periods(
        &self,
        namespace: &str,
        side: &dyn MeteringSide,
        contracts: &[Arc<MeteredContract>],
        now: Seconds,
        writes: &mut Vec<ChunkWrite>,
    ) -> bool {
        let mut due: Vec<(&MeteredContract, Period)> = Vec::new();
        for contract in contracts {
            let periods = self.due_periods(namespace, contract, side.completion_grace(), now);
            due.extend(
                periods
                    .into_iter()
                    .map(|period| (contract.as_ref(), period)),
            );
        }
        if due.is_empty() {
            return true;
        }
        let Some(open) = side.open_entries(namespace, now) else {
            return false;
        };
        let mut all = self.namespaces.lock();
        let known = all.entry(namespace.to_owned()).or_default();
        // What came since this batch was taken is written first: a complete period takes no more
        // entries.
        if !known.pending.is_empty() {
            return true;
        }
        known.ended = ended_pods(&open, now);
        let newest: BTreeMap<&str, Period> = due
            .iter()
            .map(|(contract, period)| (contract.id.as_str(), *period))
            .collect();
        let book = self.book_of_namespace(namespace, known);
        for (contract, period) in due {
            let parts = open
                .iter()
                .filter_map(|entry| period.part_of(&contract.part_of(entry)?))
                .collect::<Vec<_>>();
            self.count_entries(namespace, &parts);
            writes.extend(book.append_entries(&contract.id, period, parts));
            // A consumer answers a receipt only after its own record of that period, or of a later
            // one.
            let is_last = self.peer_label == labels::PROVIDER_ID
                && newest.get(contract.id.as_str()) == Some(&period);
            writes.extend(if is_last {
                book.close_period(&contract.id, period)
            } else {
                book.complete_period(&contract.id, period)
            });
        }
        true
    }

    fn book_of_namespace<'a>(
        &self,
        namespace: &str,
        known: &'a mut MeteredNamespace,
    ) -> &'a mut ChunkBook {
        let MeteredNamespace { book, chunks, .. } = known;
        book.get_or_insert_with(|| {
            let mut book = ChunkBook::default();
            for (_, found) in self.records.in_namespace(namespace) {
                book.note_chunk(&found.contract, found.period, found.chunk, found.chunks);
            }
            for ((period, contract), (chunk, chunks)) in chunks.iter() {
                book.note_chunk(contract, *period, *chunk, *chunks);
            }
            book
        })
    }

    async fn write_all(
        &self,
        namespace: &str,
        peer: &ClusterId,
        mut writes: Vec<ChunkWrite>,
    ) -> Result<(), StepError> {
        let api: Api<UsageRecord> = namespaced_api(&self.context.client, namespace);
        for n in 0..writes.len() {
            loop {
                let write = &writes[n];
                let key = Key::new(
                    namespace,
                    record_name(&write.contract, write.period, write.chunk),
                );
                let mut record = with_peer_labels(
                    UsageRecord::new(&key.name, record_spec(write)),
                    self.peer_label,
                    peer,
                );
                let period = period_label(&write.contract, write.period);
                record
                    .metadata
                    .labels
                    .get_or_insert_default()
                    .insert(labels::USAGE_PERIOD.to_owned(), period);
                let written = if write.is_new {
                    api.create(&PostParams::default(), &record).await.map(drop)
                } else {
                    create_or_replace(
                        &api,
                        liqo_api::conditions::owners::OFFLOADING.field_manager,
                        &record,
                        true,
                    )
                    .await
                };
                match written {
                    Err(kube::Error::Api(status)) if write.is_new && status.is_already_exists() => {
                        let mut all = self.namespaces.lock();
                        self.book_of_namespace(
                            namespace,
                            all.entry(namespace.to_owned()).or_default(),
                        )
                        .renumber(&mut writes[n..]);
                    }
                    // The tenancy ends, and its records with it.
                    Err(kube::Error::Api(status)) if is_ending(&status) => return Ok(()),
                    written => {
                        written.step("write", "UsageRecord", key)?;
                        self.note_written(namespace, write);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// A chunk was written.
    fn note_written(&self, namespace: &str, write: &ChunkWrite) {
        if let Some(known) = self.namespaces.lock().get_mut(namespace) {
            let last = known
                .chunks
                .entry((write.period, write.contract.clone()))
                .or_default();
            *last = (last.0.max(write.chunk), last.1.or(write.chunks));
            while known.chunks.len() > MAX_REMEMBERED {
                known.chunks.pop_first();
            }
        }
    }

    /// Counts for the metrics.
    fn count_entries(&self, namespace: &str, entries: &[UsageEntry]) {
        let Some(peer) = peer_of_namespace(namespace).map(|peer| peer.to_string()) else {
            return;
        };
        for entry in entries.iter().filter(|entry| !entry.from.is_estimate) {
            let seconds = u64::try_from(entry.seconds()).unwrap_or_default();
            for (resource, amount) in &entry.amounts {
                let labels = [
                    ("peer", peer.clone()),
                    ("role", self.role.to_owned()),
                    ("resource", resource.to_owned()),
                ];
                // Whole units: cores, bytes, pieces.
                let units = u64::try_from(amount.nanos() / 1_000_000)
                    .unwrap_or_default()
                    .saturating_mul(seconds)
                    / 1000;
                entry_counters().get_or_create(&labels).inc_by(units);
            }
        }
    }
}

type EntryLabels = [(&'static str, String); 3];

fn entry_counters() -> &'static Family<EntryLabels, Counter> {
    static COUNTERS: OnceLock<Family<EntryLabels, Counter>> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        let help =
            "Amounts times seconds that were charged under contracts, as far as they are stored";
        metrics::register("metered_seconds", help, Family::default())
    })
}

fn record_name(contract: &str, period: Period, chunk: u32) -> String {
    format!("usage-{}-{chunk}", period_label(contract, period))
}

fn record_spec(write: &ChunkWrite) -> UsageRecordSpec {
    UsageRecordSpec {
        contract: write.contract.clone(),
        period: api_period(write.period),
        chunk: write.chunk,
        chunks: write.chunks,
        entries: write.entries.clone(),
    }
}

/// The name in the key of a pod, see [`UsageRecorder::store_entries`].
pub fn name_of_key(key: &str) -> &str {
    key.split('/').next().unwrap_or(key)
}

/// The keys of this name.
fn keys_of_name<'a, T>(
    all: &'a BTreeMap<String, T>,
    name: &'a str,
) -> impl Iterator<Item = (&'a String, &'a T)> {
    all.range(name.to_owned()..)
        .take_while(move |(key, _)| key.starts_with(name))
        .filter(move |(key, _)| name_of_key(key) == name)
}

/// The pods that have entries, and none that goes on.
fn ended_pods(open: &[UsageEntry], now: Seconds) -> HashSet<String> {
    let goes_on: HashSet<&str> = open
        .iter()
        .filter(|entry| entry.until.at >= now)
        .map(|entry| entry.uid.as_str())
        .collect();
    open.iter()
        .filter(|entry| !goes_on.contains(entry.uid.as_str()))
        .map(|entry| entry.uid.clone())
        .collect()
}

/// The peer that a tenant or provider namespace is for: its name ends with the ID.
fn peer_of_namespace(namespace: &str) -> Option<ClusterId> {
    namespace.rsplit('-').next()?.parse().ok()
}

fn is_ending(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.is_not_found()
        || causes
            .into_iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests;
