//! Metering: how long each pod was charged for what, and what that costs. Pure: no client, no clock, no files.
//!
//! Both clusters count the same pods. Neither trusts the other's process, and each process may restart at any moment. Therefore a time
//! is never what a process remembers, but a fact that an object holds:
//!
//! ```text
//!   provider                                                          consumer
//!
//!   remote pod: created, ended                                        local pod: sent, gone
//!        │ charges                                                         │ observation: bounds by its own clock
//!        ▼                                                                 ▼
//!   ShadowPod.status.charges ─────────────────────────────────────▶  charges within the bounds are adopted
//!        │ when the shadow pod goes, and at the end of a period            │
//!        ▼                                                                 ▼
//!   UsageRecord: entries, one line a pod ───────────────────────▶  compare ◀─── UsageRecord: its own entries
//!        │ receipt                                                         │
//!        ▼                                                                 ▼
//!   Receipt, signed by the provider ────────────────────────────▶  signed by the consumer, too, or disputed
//! ```
//!
//! * [`entry`]: one line of a usage record, and its grammar.
//! * [`period`]: the periods of a contract; cuts entries at their boundaries.
//! * [`usage`]: a set of entries, keyed by pod and start, so that the same observation twice changes nothing; canonical text, digest.
//! * [`book`]: which objects hold the entries.
//! * [`charges`]: what the provider knows of one pod, as the status of its shadow pod holds it.
//! * [`observation`]: what the consumer knows of the same pod.
//! * [`voucher`]: how the consumer knows its pods again.
//! * [`mod@compare`]: both sides' entries, pod by pod.
//! * [`receipt`]: amounts, rates and costs of one period.
//! * [`spending`]: what the consumer spent in a day or a month, by namespace.

#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used))] // It reads what peers write.

pub mod book;
pub mod charges;
pub mod compare;
pub mod entry;
pub mod observation;
pub mod period;
pub mod receipt;
pub mod spending;
pub mod usage;
pub mod voucher;

#[cfg(test)]
mod histories;
#[cfg(test)]
mod hostile_histories;

pub use book::{Book, ChunkWrite};
pub use charges::{Charges, SeenPod};
pub use compare::{Comparison, Difference, Tolerance, compare};
pub use entry::{Entry, EntryError};
pub use observation::Observation;
pub use period::Period;
pub use usage::Usage;
pub use voucher::{Voucher, VoucherKey};

/// Seconds since 1970 in UTC. Whole seconds, as Kubernetes writes times.
pub type Seconds = i64;
