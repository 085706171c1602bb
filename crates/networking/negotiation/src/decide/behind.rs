//! Prefixes of clusters behind others: where pods were offloaded on, their consumer and they reach
//! each other through us.
//!
//! ```text
//!   rome (customer)              milan (us)                   turin (provider)
//!   sees 10.65/16 as 10.66/16 <-- announces where we see turin
//!                                 announces where we see rome --> sees 10.66/16 as 10.65/16
//! ```
//!
//! We announce to a provider where we see the customers whose pods it runs, and to these customers
//! where we see the provider. Nobody else learns of these prefixes. What is behind such a peer is
//! announced in the same way, with the clusters on the way: a prefix on whose way the other cluster
//! is already does not go to it, so prefixes never circulate.

use std::collections::BTreeMap;

use ipnet::IpNet;
use liqo_api::{ClusterId, MAX_BEHIND, MAX_WAY_LEN, NetworkAnnouncement};
use liqo_network_model::{allocator::Allocations, negotiation::size_of};

use super::snapshot::{MAX_PASSED_ON, NetworkSnapshot, last_announcement};

/// Prefixes, and the clusters on the way to each, the owner first.
pub type PrefixesBehind = BTreeMap<IpNet, Vec<ClusterId>>;

/// Whether pods of one peer were offloaded on to the other one.
pub fn are_customer_and_provider(
    snapshot: &NetworkSnapshot,
    one: &ClusterId,
    other: &ClusterId,
) -> bool {
    one != other && (runs_pods_of(snapshot, one, other) || runs_pods_of(snapshot, other, one))
}

fn runs_pods_of(snapshot: &NetworkSnapshot, provider: &ClusterId, customer: &ClusterId) -> bool {
    snapshot
        .peers
        .get(provider)
        .is_some_and(|peer| peer.customers.contains_key(customer))
}

/// The prefixes behind us that we announce to a peer. If there are too many, each owner has an
/// equal share, with the shortest ways first.
pub fn announce_behind(
    snapshot: &NetworkSnapshot,
    allocations: &Allocations,
    to: &ClusterId,
) -> PrefixesBehind {
    let found = allocations
        .iter()
        .filter(|((owner, _), _)| are_customer_and_provider(snapshot, owner, to));
    let mut found: Vec<(IpNet, &ClusterId, Vec<ClusterId>)> = found
        .filter_map(|((owner, there), here)| {
            let mut way = way_to_prefix(snapshot, to, owner, there, here)?;
            way.push(owner.clone());
            (way.len() <= MAX_WAY_LEN && !way.contains(to)).then_some((*here, owner, way))
        })
        .collect();
    found.sort_by_key(|(here, _, way)| (way.len(), *here));
    let ordered = in_fair_order(found, |(_, owner, _)| *owner, |_| 1);
    let some = ordered
        .into_iter()
        .take_while(|(count, _)| *count <= MAX_PASSED_ON as u128)
        .take(MAX_BEHIND);
    some.map(|(_, (here, _, way))| (here, way)).collect()
}

/// The clusters behind a peer on the way to one of its prefixes; `None` if the prefix is not passed
/// on. While the announcement of the peer is not known, what was passed on before still is.
fn way_to_prefix(
    snapshot: &NetworkSnapshot,
    to: &ClusterId,
    owner: &ClusterId,
    there: &IpNet,
    here: &IpNet,
) -> Option<Vec<ClusterId>> {
    match last_announcement(snapshot.peers.get(owner)?) {
        Some(theirs) if theirs.exports.contains(there) => Some(Vec::new()),
        Some(theirs) => theirs.behind.get(there).cloned(),
        None => {
            let was_passed_on = snapshot.current.get(to)?.exported.contains_key(here);
            let way = snapshot
                .current
                .get(owner)?
                .behind
                .get(there)
                .cloned()
                .unwrap_or_default();
            was_passed_on.then_some(way)
        }
    }
}

/// Puts items in the order in which each owner gets an equal share before any gets more: by the
/// total cost of the owner's items so far.
fn in_fair_order<T, O: Ord>(
    items: Vec<T>,
    owner: impl Fn(&T) -> O,
    cost: impl Fn(&T) -> u128,
) -> Vec<(u128, T)> {
    let mut totals: BTreeMap<O, u128> = BTreeMap::new();
    let mut all: Vec<(u128, T)> = Vec::new();
    for item in items {
        let total = totals.entry(owner(&item)).or_default();
        *total = total.saturating_add(cost(&item));
        all.push((*total, item));
    }
    all.sort_by_key(|(total, _)| *total);
    all
}

/// The prefixes behind a peer that we accept, in the order in which they get addresses: the
/// clusters next to the peer have equal shares, and of each of them the shortest ways come first.
/// No way leads through ourselves.
pub fn accept_behind(
    own: &ClusterId,
    theirs: &NetworkAnnouncement,
) -> Vec<(IpNet, Vec<ClusterId>)> {
    let mut sound: Vec<_> = theirs
        .behind
        .iter()
        .filter(|(prefix, way)| {
            (1..=MAX_WAY_LEN).contains(&way.len())
                && !way.contains(own)
                && !theirs.exports.contains(*prefix)
        })
        .collect();
    sound.sort_by_key(|(prefix, way)| (way.len(), **prefix));
    let ordered = in_fair_order(
        sound,
        |(prefix, way)| (prefix.addr().is_ipv4(), way.last().cloned()),
        |(prefix, _)| size_of([*prefix], prefix.addr().is_ipv4()),
    );
    ordered
        .into_iter()
        .take(MAX_BEHIND)
        .map(|(_, (prefix, way))| (*prefix, way.clone()))
        .collect()
}
