//! Metering: how long each pod was charged for which amounts, and what that costs. Pure: no client,
//! no clock, no files.
//!
//! Provider and consumer count the same pods. Neither trusts the other one, and the manager of each
//! may restart at any moment. So nothing is counted from the memory of a process: every start and
//! end that counts is stored in an object.
//!
//! ```text
//!   provider                                            consumer
//!
//!   remote pod: created, ended                          local pod: sent, gone
//!        │ charges                                           │ observation: earliest start and latest end
//!        ▼                                                   ▼
//!   ShadowPod.status.charges ───────────────────────▶  adopts the charges that are within these bounds
//!        │ when the shadow pod goes, or a period ends        │
//!        ▼                                                   ▼
//!   UsageRecord: entries, one line for each pod ────▶  compare ◀─── UsageRecord: its own entries
//!        │ receipt                                           │
//!        ▼                                                   ▼
//!   Receipt, signed by the provider ────────────────▶  signs it, too, or disputes it
//! ```
//!
//! A *charge* is a span of time in which the provider charges a pod for equal amounts. An *entry*
//! is the same in a usage record. Contracts have *periods* of equal length; a *receipt* is the bill
//! of one period.
//!
//! In the order in which to read:
//! * [`entry`]: one line of a usage record, and its grammar.
//! * [`charges`]: the provider's charges for one pod, as the status of its shadow pod stores them.
//! * [`observation`]: what the consumer knows of the same pod by itself, and which charges it
//!   adopts.
//! * [`voucher`]: text that the consumer adds to a shadow pod, by which it later recognises a pod
//!   that it no longer has.
//! * [`usage_entries`]: a set of entries, keyed by pod and start, so that adding one twice changes
//!   nothing; canonical text, digest.
//! * [`period`]: the periods of a contract; cuts entries at their boundaries. [`book`]: which
//!   objects store the entries.
//! * [`mod@compare`]: compares the entries of both sides, pod by pod.
//! * [`receipt`]: amounts, rates and costs of one period. [`spending`]: what the consumer spent in
//!   a day or a month.
//!
//! `liqo-offloading-rules` and `liqo-offloading` compute the charges and store the records, because
//! they see the pods. `liqo-market` decides about receipts and `liqo-sharing` writes them.
//! docs/explanation/how-both-sides-count-the-same-seconds.md shows all of it to users.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod book;
pub mod charges;
pub mod compare;
pub mod entry;
pub mod observation;
pub mod period;
pub mod receipt;
pub mod spending;
pub mod usage_entries;
pub mod voucher;

#[cfg(test)]
mod histories;
#[cfg(test)]
mod hostile_histories;

pub use book::{ChunkBook, ChunkWrite};
pub use charges::{Charges, SeenPod};
pub use compare::{Comparison, PodDifference, Tolerance, compare_usage};
pub use entry::{EntryError, UsageEntry};
pub use observation::ConsumerObservation;
pub use period::Period;
pub use usage_entries::UsageEntries;
pub use voucher::{Voucher, VoucherKey};

/// Seconds since 1970 in UTC. Whole seconds, as Kubernetes writes times.
pub type Seconds = i64;
