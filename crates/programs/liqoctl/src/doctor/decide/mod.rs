//! Judges the facts, one file for each area. Pure: the time is part of the facts.

mod between;
mod clocks;
mod cluster;
mod daemon_sets;
mod gateways;
mod nodes;
mod offloading;
mod peers;
mod ranges;
mod rights;
mod workloads;

pub use between::check_cluster_pair;
pub use nodes::isolation_verdict;
pub use offloading::advice as offloading_advice;
pub use peers::advice as link_advice;

use super::check::CheckFinding;
use crate::{
    inspect::{ClusterFacts, LeaseHeartbeat},
    manifests::MANAGER,
};

pub fn check_facts(facts: &ClusterFacts) -> Vec<CheckFinding> {
    let mut found = cluster::check_cluster(facts);
    found.extend(clocks::check_clocks(facts));
    found.extend(nodes::check_nodes(facts));
    if !matches!(facts.liqo.config, Ok(None)) {
        found.extend(rights::check_rights(facts));
        found.extend(ranges::check_ranges(facts));
        found.extend(gateways::check_gateways(facts));
        found.extend(peers::check_peers(facts));
        found.extend(offloading::check_offloading(facts));
        found.push(daemon_sets::check_daemon_sets(facts));
    }
    found
}

/// The last heartbeat of the leading manager.
fn leader_heartbeat(facts: &ClusterFacts) -> Option<(String, LeaseHeartbeat)> {
    let lease = facts
        .leases
        .iter()
        .flatten()
        .find(|lease| lease.metadata.name.as_deref() == Some(MANAGER))?;
    let holder = lease
        .spec
        .as_ref()?
        .holder_identity
        .clone()
        .filter(|holder| !holder.is_empty())?;
    Some((holder, LeaseHeartbeat::from_lease(lease)?))
}

/// Whether the manager keeps conditions up to date. True if that is not known.
fn is_manager_alive(facts: &ClusterFacts) -> bool {
    facts.leases.is_err()
        || leader_heartbeat(facts).is_some_and(|(_, heartbeat)| heartbeat.is_fresh(facts.now()))
}

/// `3 pods`, `1 pod`.
fn count_of(number: usize, word: &str) -> String {
    if number == 1 {
        format!("1 {word}")
    } else {
        format!("{number} {word}s")
    }
}

/// The first few of a list, and how many more there are.
fn first_few<S: AsRef<str>>(all: &[S]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<&str> = all.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match all.len().checked_sub(SHOWN) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The finding for something that could not be read.
fn unread_finding(check: super::Check, why: &str) -> CheckFinding {
    CheckFinding::unknown(check, why)
}
