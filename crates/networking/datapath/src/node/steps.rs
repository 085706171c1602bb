//! Computes the changes that bring a kernel from its present state to the plan. Pure.

use std::collections::{BTreeMap, BTreeSet};

use liqo_network_model::{
    node_plan::{MarkRule, NextHop, NodePlan, Overlay, Route},
    ruleset::{GUARD, NftTable, buckets_in_fingerprint},
    spread::Buckets,
};

use super::{firewall::TableName, links::NeighbourEntry};

/// Our part of the kernel's present state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState {
    /// The overlay's device with its addresses and MTU, without its neighbours.
    pub overlay: Option<Overlay>,
    /// Neighbours of the overlay.
    pub neighbours: BTreeSet<NeighbourEntry>,
    pub routes: BTreeSet<Route>,
    pub rules: BTreeSet<MarkRule>,
    /// Our tables, with the fingerprints of their contents.
    pub tables: BTreeMap<TableName, String>,
}

/// One change of the kernel's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelStep {
    /// Replace a table of nftables as a whole.
    ReplaceTable(NftTable),
    RemoveTable(TableName),
    CreateOverlay(Overlay),
    /// Change the overlay's MTU.
    ResizeOverlay(u32),
    /// Remove the overlay's device, and with it its neighbours and the routes through it.
    RemoveOverlay,
    AddNeighbour(NeighbourEntry),
    RemoveNeighbour(NeighbourEntry),
    /// Add a route, or replace the one to the same destination.
    PutRoute(Route),
    RemoveRoute(Route),
    AddRule(MarkRule),
    RemoveRule(MarkRule),
    /// Forget connections with these prefixes that belong to these buckets, so that their next
    /// packets are translated again.
    ForgetConnections(Vec<ipnet::IpNet>, Buckets),
}

/// The changes that lead from the present to the wanted state, in the order in which they must
/// happen.
pub fn steps_between(wanted: &NodePlan, present: &KernelState) -> Vec<KernelStep> {
    let mut steps = Vec::new();
    let outdated = wanted.tables.iter().filter(|table| {
        present.tables.get(&TableName::of_table(table)) != Some(&table.fingerprint)
    });
    steps.extend(outdated.cloned().map(KernelStep::ReplaceTable));

    let overlay_stays = keeps_overlay(wanted, present);
    steps.extend(overlay_steps(wanted, present));
    steps.extend(neighbour_steps(wanted, present));

    // Without the overlay's device its routes are lost.
    let remaining: BTreeSet<Route> = present
        .routes
        .iter()
        .filter(|route| overlay_stays || !matches!(route.next, NextHop::Overlay { .. }))
        .cloned()
        .collect();
    let routes: BTreeSet<Route> = wanted.routes.iter().cloned().collect();
    // Unreachable routes first: they keep packets from leaving elsewhere while a device is missing.
    let (unreachable, others): (Vec<&Route>, Vec<&Route>) = routes
        .difference(&remaining)
        .partition(|route| route.next == NextHop::Unreachable);
    steps.extend(
        unreachable
            .into_iter()
            .chain(others)
            .cloned()
            .map(KernelStep::PutRoute),
    );
    let rules: BTreeSet<MarkRule> = wanted.rules.iter().cloned().collect();
    steps.extend(
        rules
            .difference(&present.rules)
            .cloned()
            .map(KernelStep::AddRule),
    );

    steps.extend(
        present
            .rules
            .difference(&rules)
            .cloned()
            .map(KernelStep::RemoveRule),
    );
    let keys: BTreeSet<RouteKey> = routes.iter().map(route_key).collect();
    let gone = remaining
        .iter()
        .filter(|route| !keys.contains(&route_key(route)));
    steps.extend(gone.cloned().map(KernelStep::RemoveRoute));
    let names: BTreeSet<TableName> = wanted.tables.iter().map(TableName::of_table).collect();
    let mut without: Vec<TableName> = present
        .tables
        .keys()
        .filter(|name| !names.contains(name))
        .cloned()
        .collect();
    without.sort_by_key(|table| table.name == GUARD);
    steps.extend(without.into_iter().map(KernelStep::RemoveTable));
    let remote = remote_prefixes(wanted);
    // Only the gateway that carries a bucket translates it. The fingerprint of the guard, which
    // only gateways have, tells what this node carried before.
    let guards = present
        .tables
        .iter()
        .filter(|(table, _)| table.name == GUARD);
    let before = guards.fold(0, |all, (_, fingerprint)| {
        all | buckets_in_fingerprint(fingerprint)
    });
    let now = carried_buckets(wanted);
    if !present.tables.is_empty() && !remote.is_empty() && before != now {
        steps.push(KernelStep::ForgetConnections(remote, before ^ now));
    }
    steps
}

/// Without its device the overlay has no neighbours and no routes, whatever was read before.
fn keeps_overlay(wanted: &NodePlan, present: &KernelState) -> bool {
    wanted.overlay.as_ref().map(without_size) == present.overlay.as_ref().map(without_size)
}

fn without_size(overlay: &Overlay) -> Overlay {
    Overlay {
        mtu: 0,
        ..without_neighbours(overlay)
    }
}

fn without_neighbours(overlay: &Overlay) -> Overlay {
    Overlay {
        neighbours: Vec::new(),
        ..overlay.clone()
    }
}

/// Changes of the overlay's device.
fn overlay_steps(wanted: &NodePlan, present: &KernelState) -> Vec<KernelStep> {
    if keeps_overlay(wanted, present) {
        // In place: a new device would interrupt all connections.
        let sizes = wanted
            .overlay
            .iter()
            .zip(&present.overlay)
            .map(|(wanted, present)| (wanted.mtu, present.mtu));
        return sizes
            .filter(|(wanted, present)| wanted != present)
            .map(|(wanted, _)| KernelStep::ResizeOverlay(wanted))
            .collect();
    }
    let removal = present
        .overlay
        .is_some()
        .then_some(KernelStep::RemoveOverlay);
    let creation = wanted
        .overlay
        .as_ref()
        .map(|overlay| KernelStep::CreateOverlay(without_neighbours(overlay)));
    removal.into_iter().chain(creation).collect()
}

fn neighbour_steps(wanted: &NodePlan, present: &KernelState) -> Vec<KernelStep> {
    let neighbours: BTreeSet<NeighbourEntry> = wanted
        .overlay
        .iter()
        .flat_map(NeighbourEntry::all_of_overlay)
        .collect();
    let known = if keeps_overlay(wanted, present) {
        present.neighbours.clone()
    } else {
        BTreeSet::new()
    };
    // A neighbour with a new address has the same key: the former entry must go first.
    let former = known
        .difference(&neighbours)
        .cloned()
        .map(KernelStep::RemoveNeighbour);
    let new = neighbours
        .difference(&known)
        .cloned()
        .map(KernelStep::AddNeighbour);
    former.chain(new).collect()
}

/// The prefixes of all peers.
pub(super) fn remote_prefixes(wanted: &NodePlan) -> Vec<ipnet::IpNet> {
    wanted
        .routes
        .iter()
        .filter(|route| route.next == NextHop::Unreachable)
        .map(|route| route.destination)
        .collect()
}

/// The buckets that this node carries as a gateway.
pub(super) fn carried_buckets(wanted: &NodePlan) -> Buckets {
    let guards = wanted.tables.iter().filter(|table| table.name == GUARD);
    guards.fold(0, |all, table| {
        all | buckets_in_fingerprint(&table.fingerprint)
    })
}

/// Identity of a route: destination, table, and whether it is the unreachable one.
pub(super) type RouteKey = (ipnet::IpNet, Option<u32>, bool);

pub(super) fn route_key(route: &Route) -> RouteKey {
    (
        route.destination,
        route.table,
        route.next == NextHop::Unreachable,
    )
}
