//! Contracts: what both sides sign, and what follows from it. Read `document`, then `provider` and
//! `consumer`.
//!
//! ```text
//!   provider   wanted: the terms that policy and offers ask for now     provider: proposes, amends, renews, ends
//!              standing: what a consumer's contracts mean for its offers: reserved amounts, prices, admission
//!              earlier: whether the terms may change again before the receipts for the replaced terms
//!   consumer   consumer: signs, asks a person, refuses, ends            copied: what its copy takes over
//!   both       document: the signed bytes, and what they say            record: a contract, verified when it is read
//!              dearer: whether a version costs more than the former     duties: promises that a side does not keep
//!              breaches: the list of breaches                           verify: checks two stored copies offline
//! ```
//! Only the signed document counts. A verifier checks its bytes and never serialises terms again.
//! The readable terms next to it are never an input of a decision.

pub mod breaches;
pub mod consumer;
pub mod copied;
pub mod dearer;
pub mod document;
pub mod duties;
pub mod earlier;
pub mod fixtures;
#[cfg(test)]
mod histories;
pub mod provider;
pub mod record;
pub mod standing;
pub mod verify;
pub mod wanted;

use jiff::{SignedDuration, Timestamp};

/// How far apart the clocks of two clusters may be, and how long one of them may be slow, before a
/// difference counts as a breach.
pub const TOLERANCE: SignedDuration = SignedDuration::from_secs(300);
/// Maximum number of contracts of one tenancy that are kept after their end, and for how long.
pub const MAX_ENDED: usize = 10;
pub const ENDED_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The time so many seconds later.
pub fn after(time: Timestamp, seconds: u32) -> Timestamp {
    time.saturating_add(SignedDuration::from_secs(i64::from(seconds)))
        .unwrap_or(time)
}

/// The time so many seconds earlier.
pub fn before(time: Timestamp, seconds: u32) -> Timestamp {
    time.saturating_sub(SignedDuration::from_secs(i64::from(seconds)))
        .unwrap_or(time)
}

/// The time without its fraction of a second, which Kubernetes does not store.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
