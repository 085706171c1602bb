//! Contracts: what both sides sign, and what follows from it.
//!
//! ```text
//!   provider   standing   what the contracts of a consumer mean for its offers: reserved amounts, bound prices, whether pods are admitted
//!              wanted     the terms that the policy and the offers mean now
//!              provider   proposes, amends, marks in force, renews, ends
//!              earlier    whether the terms may change again, before the receipts of those that were replaced
//!
//!   consumer   consumer   signs, asks, refuses, ends; keeps copies
//!              copied     what the copy takes over of what nobody signed
//!              duties     finds what the provider does not fulfil
//!
//!   both       dearer     whether a version costs more than the one before it, and from when it counts
//!              document   the signed bytes, and what they say
//!              record     a contract as it is read from the API server, verified once
//!              breaches   the list of breaches
//!              verify     two stored copies, offline
//! ```
//!
//! The document counts. Nobody serialises terms again to verify them, and the typed copy is never an input of a decision.

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

/// How far apart the clocks of two clusters may be, and how long one of them may be slow, before a difference counts as a breach.
pub const TOLERANCE: SignedDuration = SignedDuration::from_secs(300);
/// Maximum number of contracts of one tenancy that are kept after their end, and for how long.
pub const MAX_ENDED: usize = 10;
pub const ENDED_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The time so many seconds later.
pub fn after(time: Timestamp, seconds: u32) -> Timestamp {
    time.saturating_add(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(time)
}

/// The time so many seconds earlier.
pub fn before(time: Timestamp, seconds: u32) -> Timestamp {
    time.saturating_sub(SignedDuration::from_secs(i64::from(seconds))).unwrap_or(time)
}

/// The time without its fraction of a second, which Kubernetes does not store.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
