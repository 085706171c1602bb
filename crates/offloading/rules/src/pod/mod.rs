//! Pods: what travels, who is admitted, what the status says. Read `local` and `remote` first.
//!
//! ```text
//!   place a new pod   scheduling preference room; without the webhook: unscheduled
//!   consumer, send    local (decides) local_state carry references injected eviction; on failure: waiting refusals
//!   provider, run     remote (decides) shadow_pod remote_pod usage recreated pace host_name
//!   provider, admit   admission (accounts) ledger (what fits) reclaim (which pods end)
//!   back to home      reported_status local_status remote_events home_text added_limits
//!   pods that run     ephemeral; which ones leave, and when: saving turns running_pod controller job
//!   metering          chargeable (consumer) metering (provider)
//! ```
//! `carry` has one function for each side, because the provider trusts nothing and applies the same
//! rules again.

pub mod added_limits;
pub mod admission;
pub mod carry;
pub mod chargeable;
pub mod consumer_policy;
pub mod controller;
pub mod ephemeral;
pub mod eviction;
pub mod home_text;
pub mod host_name;
mod injected;
pub mod job;
pub mod ledger;
pub mod local;
pub mod local_state;
pub mod local_status;
pub mod metering;
pub mod preference;
pub mod reclaim;
pub mod recreated;
pub mod references;
pub mod refusals;
pub mod remote;
pub mod remote_events;
pub mod remote_pod;
pub mod reported_status;
pub mod room;
pub mod running_pod;
pub mod saving;
pub mod scheduling;
pub mod shadow_pod;
pub mod tenant_pace;
pub mod turns;
pub mod unscheduled;
pub mod waiting;

#[cfg(test)]
mod deletion_model;
