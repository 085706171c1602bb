//! Makes a node's kernel hold what is wanted: the overlay, routes, rules and nftables.
//!
//! ```text
//!   liqo_network::plan::NodePlan --(wanted)--+
//!                                            +--> steps: what to add, change, remove --> Links, Routes, Firewall
//!   kernel --(present: only what is ours)----+
//! ```
//!
//! Ours is what bears our mark: devices and tables by their names, routes and rules by the number of their protocol. Everything
//! else is left alone, and everything of ours that is not wanted is removed. When nothing differs, nothing is touched.
//!
//! The steps have an order. Tables stand before there is a way that they guard, and are removed after all ways; so do the routes that
//! lead nowhere, which hold packets back while a device is missing.

mod connections;
mod fake;
mod firewall;
mod links;
mod routes;

use std::collections::{BTreeMap, BTreeSet};

use liqo_network::{
    plan::{NodePlan, OVERLAY, Overlay, Route, Rule, Way},
    ruleset::{GUARD, Table, carried},
    spread::Buckets,
};

pub use fake::FakeKernel;
pub use firewall::{Firewall, FirewallError, Nft, TableName};
pub use links::{Entry, Links, NetlinkLinks};
pub use routes::{NetlinkRoutes, Routes};

/// Why the kernel does not hold what is wanted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel cannot be asked.
    #[error("talking to the kernel (netlink): {0}")]
    Connect(std::io::Error),
    /// What there is cannot be read.
    #[error("reading {what} from the kernel: {source}")]
    Read {
        /// Links, neighbours, routes or rules.
        what: &'static str,
        /// Why.
        source: rtnetlink::Error,
    },
    /// A change was refused.
    #[error("{step}: {source}; does this process have NET_ADMIN?")]
    Change {
        /// What was to be done.
        step: String,
        /// Why.
        source: rtnetlink::Error,
    },
    /// A device that routes need is not there.
    #[error("there is no network device {device} yet")]
    NoDevice {
        /// Its name.
        device: &'static str,
    },
    /// nftables.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

/// What there is of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The overlay's device: its addresses and MTU; not its neighbours.
    pub overlay: Option<Overlay>,
    /// What the overlay knows of its neighbours.
    pub entries: BTreeSet<Entry>,
    /// Our routes.
    pub routes: BTreeSet<Route>,
    /// Our rules.
    pub rules: BTreeSet<Rule>,
    /// Our tables and the fingerprints of what they hold.
    pub tables: BTreeMap<TableName, String>,
}

/// One change of the kernel's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A table of nftables is replaced as a whole.
    ReplaceTable(Table),
    /// A table goes.
    RemoveTable(TableName),
    /// The overlay's device is made.
    MakeOverlay(Overlay),
    /// Packets in it may measure so much from now on.
    ResizeOverlay(u32),
    /// It goes, with its neighbours and the routes through it.
    RemoveOverlay,
    /// The overlay learns of a neighbour.
    AddEntry(Entry),
    /// And forgets one.
    RemoveEntry(Entry),
    /// A route is made, or takes the place of the one to the same destination.
    PutRoute(Route),
    /// A route goes.
    RemoveRoute(Route),
    /// A rule is made.
    AddRule(Rule),
    /// A rule goes.
    RemoveRule(Rule),
    /// Connections with these prefixes are translated anew, as far as they are of these buckets.
    ForgetConnections(Vec<ipnet::IpNet>, Buckets),
}

/// What is to be done, in this order, so that there is what is wanted.
pub fn steps(wanted: &NodePlan, present: &Present) -> Vec<Step> {
    let mut steps = Vec::new();
    let outdated = |table: &&Table| present.tables.get(&TableName::of(table)) != Some(&table.fingerprint);
    steps.extend(wanted.tables.iter().filter(outdated).cloned().map(Step::ReplaceTable));

    // Without its device nothing of the overlay is there, whatever was read before.
    let shape = |overlay: &Overlay| Overlay { neighbours: Vec::new(), ..overlay.clone() };
    let but_its_size = |overlay: &Overlay| Overlay { mtu: 0, ..shape(overlay) };
    let overlay_stays = wanted.overlay.as_ref().map(but_its_size) == present.overlay.as_ref().map(but_its_size);
    if overlay_stays {
        // In place: making it anew would interrupt everybody, and a peer has a say in the size.
        let sizes = wanted.overlay.iter().zip(&present.overlay).map(|(wanted, present)| (wanted.mtu, present.mtu));
        steps.extend(sizes.filter(|(wanted, present)| wanted != present).map(|(wanted, _)| Step::ResizeOverlay(wanted)));
    } else {
        steps.extend(present.overlay.is_some().then_some(Step::RemoveOverlay));
        steps.extend(wanted.overlay.as_ref().map(|overlay| Step::MakeOverlay(shape(overlay))));
    }
    let entries: BTreeSet<Entry> = wanted.overlay.iter().flat_map(Entry::of).collect();
    let known = if overlay_stays { present.entries.clone() } else { BTreeSet::new() };
    // A neighbour with a new address keeps its place: the former entry goes first.
    steps.extend(known.difference(&entries).cloned().map(Step::RemoveEntry));
    steps.extend(entries.difference(&known).cloned().map(Step::AddEntry));

    let lost = |route: &&Route| !overlay_stays && matches!(route.way, Way::Overlay { .. });
    let standing: BTreeSet<Route> = present.routes.iter().filter(|route| !lost(route)).cloned().collect();
    let routes: BTreeSet<Route> = wanted.routes.iter().cloned().collect();
    // What keeps packets from leaving elsewhere comes first: the devices of the others may not be there yet.
    let (nowhere, somewhere): (Vec<&Route>, Vec<&Route>) =
        routes.difference(&standing).partition(|route| route.way == Way::Unreachable);
    steps.extend(nowhere.into_iter().chain(somewhere).cloned().map(Step::PutRoute));
    let rules: BTreeSet<Rule> = wanted.rules.iter().cloned().collect();
    steps.extend(rules.difference(&present.rules).cloned().map(Step::AddRule));

    steps.extend(present.rules.difference(&rules).cloned().map(Step::RemoveRule));
    let places: BTreeSet<Place> = routes.iter().map(place).collect();
    let gone = standing.iter().filter(|route| !places.contains(&place(route)));
    steps.extend(gone.cloned().map(Step::RemoveRoute));
    let names: BTreeSet<TableName> = wanted.tables.iter().map(TableName::of).collect();
    let mut without: Vec<TableName> = present.tables.keys().filter(|name| !names.contains(name)).cloned().collect();
    without.sort_by_key(|table| table.name == GUARD);
    steps.extend(without.into_iter().map(Step::RemoveTable));
    let remote = remote(wanted);
    // Where a gateway carries a bucket, translations are others than elsewhere; the guard, which gateways alone have, tells what this
    // node carried.
    let guards = present.tables.iter().filter(|(table, _)| table.name == GUARD);
    let before = guards.fold(0, |all, (_, fingerprint)| all | carried(fingerprint));
    let now = carried_under(wanted);
    if !present.tables.is_empty() && !remote.is_empty() && before != now {
        steps.push(Step::ForgetConnections(remote, before ^ now));
    }
    steps
}

/// The prefixes of peers.
fn remote(wanted: &NodePlan) -> Vec<ipnet::IpNet> {
    wanted.routes.iter().filter(|route| route.way == Way::Unreachable).map(|route| route.destination).collect()
}

/// What this node is to carry as a gateway.
fn carried_under(wanted: &NodePlan) -> Buckets {
    let guards = wanted.tables.iter().filter(|table| table.name == GUARD);
    guards.fold(0, |all, table| all | carried(&table.fingerprint))
}

/// What only one route can have: family and destination, table, and whether it is the twin that leads nowhere.
type Place = (ipnet::IpNet, Option<u32>, bool);

fn place(route: &Route) -> Place {
    (route.destination, route.table, route.way == Way::Unreachable)
}

/// The kernel of a node.
#[derive(Clone, Debug)]
pub struct Node<L, R, F> {
    /// Its devices.
    pub links: L,
    /// Its routes and rules.
    pub routes: R,
    /// Its nftables.
    pub firewall: F,
}

impl Node<NetlinkLinks, NetlinkRoutes, Nft> {
    /// The kernel of the network namespace that this thread is in. To be called within a tokio runtime.
    pub fn of_this_namespace() -> Result<Self, Error> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Connect)?;
        tokio::spawn(connection);
        Ok(Self { links: NetlinkLinks::new(handle.clone()), routes: NetlinkRoutes::new(handle), firewall: Nft::default() })
    }
}

impl<L: Links, R: Routes, F: Firewall> Node<L, R, F> {
    /// Makes the kernel hold what is wanted, and returns what had to be done for it. When something cannot be done, everything else
    /// is, and the error tells of it; but where a table cannot be written, nothing that it guards is opened. That the tunnel's device
    /// is not there yet is told only if that is all.
    pub async fn apply(&self, wanted: &NodePlan) -> Result<Vec<Step>, Error> {
        let steps = steps(wanted, &self.present().await?);
        let mut failed: Option<Error> = None;
        for step in &steps {
            tracing::debug!(?step, "changing the node");
            match self.take(step).await {
                Ok(()) => {}
                Err(error) if matches!(step, Step::ReplaceTable(_)) => return Err(error),
                Err(error) if failed.as_ref().is_none_or(|first| matches!(first, Error::NoDevice { .. })) => failed = Some(error),
                Err(error) => tracing::warn!(%error, "failed as well"),
            }
        }
        failed.map_or(Ok(steps), Err)
    }

    /// Removes everything that is ours.
    pub async fn clear(&self) -> Result<Vec<Step>, Error> {
        self.apply(&NodePlan::default()).await
    }

    /// Has the kernel forget the connections that this gateway is to carry: while it was away others carried them, and of what it
    /// remembers they do not go on.
    pub async fn forget(&self, wanted: &NodePlan) {
        self.firewall.forget_connections(&remote(wanted), carried_under(wanted)).await;
    }

    /// What there is of ours.
    pub async fn present(&self) -> Result<Present, Error> {
        let overlay = self.links.overlay().await?;
        let entries = if overlay.is_some() { self.links.entries().await? } else { BTreeSet::new() };
        Ok(Present {
            overlay,
            entries,
            routes: self.routes.routes().await?,
            rules: self.routes.rules().await?,
            tables: self.firewall.tables().await?,
        })
    }

    async fn take(&self, step: &Step) -> Result<(), Error> {
        match step {
            Step::ReplaceTable(table) => Ok(self.firewall.replace(table).await?),
            Step::RemoveTable(name) => Ok(self.firewall.remove(name).await?),
            Step::MakeOverlay(overlay) => self.links.make_overlay(overlay).await,
            Step::ResizeOverlay(mtu) => self.links.resize_overlay(*mtu).await,
            Step::RemoveOverlay => self.links.remove(OVERLAY).await,
            Step::AddEntry(entry) => self.links.add_entry(entry).await,
            Step::RemoveEntry(entry) => self.links.remove_entry(entry).await,
            Step::PutRoute(route) => self.routes.put(route).await,
            Step::RemoveRoute(route) => self.routes.remove(route).await,
            Step::AddRule(rule) => self.routes.add_rule(rule).await,
            Step::RemoveRule(rule) => self.routes.remove_rule(rule).await,
            Step::ForgetConnections(prefixes, buckets) => {
                self.firewall.forget_connections(prefixes, *buckets).await;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
