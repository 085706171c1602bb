//! Pods: what travels, who is admitted, what the status says.

pub mod added_limits;
pub mod admission;
pub mod carry;
pub mod chargeable;
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
pub mod pace;
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
pub mod turns;
pub mod unscheduled;
pub mod usage;
pub mod waiting;

#[cfg(test)]
mod deletion_model;
