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

pub use between::between;
pub use offloading::advice as offloading_advice;
pub use peers::advice as link_advice;

use super::finding::Finding;
use crate::{
    inspect::{Facts, Heartbeat},
    manifests::MANAGER,
};

pub fn decide(facts: &Facts) -> Vec<Finding> {
    let mut found = cluster::decide(facts);
    found.extend(clocks::decide(facts));
    found.extend(nodes::decide(facts));
    if !matches!(facts.liqo.config, Ok(None)) {
        found.extend(rights::decide(facts));
        found.extend(ranges::decide(facts));
        found.extend(gateways::decide(facts));
        found.extend(peers::decide(facts));
        found.extend(offloading::decide(facts));
        found.push(daemon_sets::decide(facts));
    }
    found
}

/// The last heartbeat of the leading manager.
fn leader(facts: &Facts) -> Option<(String, Heartbeat)> {
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
    Some((holder, Heartbeat::of(lease)?))
}

/// Whether the manager keeps conditions up to date. True if that is not known.
fn manager_speaks(facts: &Facts) -> bool {
    facts.leases.is_err()
        || leader(facts).is_some_and(|(_, heartbeat)| heartbeat.is_fresh(facts.now()))
}

/// `3 pods`, `1 pod`.
fn count(number: usize, word: &str) -> String {
    if number == 1 {
        format!("1 {word}")
    } else {
        format!("{number} {word}s")
    }
}

/// The first few of a list, and how many more there are.
fn some<S: AsRef<str>>(all: &[S]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<&str> = all.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match all.len().checked_sub(SHOWN) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The finding for something that could not be read.
fn unread(check: super::Check, why: &str) -> Finding {
    Finding::unknown(check, why)
}
