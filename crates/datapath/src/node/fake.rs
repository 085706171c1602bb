//! A kernel that only remembers, for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use ipnet::IpNet;
use liqo_network::{
    plan::{OVERLAY, Overlay, Route, Rule, TUNNEL, Way},
    ruleset::Table,
    spread::Buckets,
};

use super::{Entry, Error, Firewall, FirewallError, Links, Node, Present, Routes, TableName, place};

/// Remembers what it is told, and forgets with a device what depends on it, as the kernel does.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    holds: Arc<Mutex<Present>>,
    has_no_tunnel: Arc<AtomicBool>,
    refused: Arc<Mutex<Option<IpNet>>>,
}

impl FakeKernel {
    /// A node of this kernel alone.
    pub fn node(&self) -> Node<Self, Self, Self> {
        Node { links: self.clone(), routes: self.clone(), firewall: self.clone() }
    }

    /// What it holds.
    pub fn holds(&self) -> Present {
        self.lock().clone()
    }

    /// Loses everything, as by a reboot.
    pub fn reboot(&self) {
        *self.lock() = Present::default();
    }

    /// Has no device for the tunnel from now on.
    pub fn lose_tunnel(&self) {
        self.has_no_tunnel.store(true, Ordering::Relaxed);
    }

    /// Takes no route to there from now on.
    pub fn refuse(&self, destination: IpNet) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(destination);
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Links for FakeKernel {
    async fn overlay(&self) -> Result<Option<Overlay>, Error> {
        Ok(self.lock().overlay.clone())
    }

    async fn entries(&self) -> Result<BTreeSet<Entry>, Error> {
        Ok(self.lock().entries.clone())
    }

    async fn make_overlay(&self, overlay: &Overlay) -> Result<(), Error> {
        self.lock().overlay = Some(overlay.clone());
        Ok(())
    }

    async fn resize_overlay(&self, mtu: u32) -> Result<(), Error> {
        let mut holds = self.lock();
        let overlay = holds.overlay.as_mut().ok_or(Error::NoDevice { device: OVERLAY })?;
        overlay.mtu = mtu;
        Ok(())
    }

    async fn remove(&self, _: &'static str) -> Result<(), Error> {
        let mut holds = self.lock();
        holds.overlay = None;
        holds.entries.clear();
        holds.routes.retain(|route| !matches!(route.way, Way::Overlay { .. }));
        Ok(())
    }

    async fn add_entry(&self, entry: &Entry) -> Result<(), Error> {
        self.lock().entries.insert(entry.clone());
        Ok(())
    }

    async fn remove_entry(&self, entry: &Entry) -> Result<(), Error> {
        self.lock().entries.remove(entry);
        Ok(())
    }
}

impl Routes for FakeKernel {
    async fn routes(&self) -> Result<BTreeSet<Route>, Error> {
        Ok(self.lock().routes.clone())
    }

    async fn put(&self, route: &Route) -> Result<(), Error> {
        if *self.refused.lock().unwrap_or_else(PoisonError::into_inner) == Some(route.destination) {
            return Err(Error::Change {
                step: format!("routing {}", route.destination),
                source: rtnetlink::Error::RequestFailed,
            });
        }
        let mut holds = self.lock();
        if matches!(route.way, Way::Overlay { .. }) && holds.overlay.is_none() {
            return Err(Error::NoDevice { device: OVERLAY });
        }
        if matches!(route.way, Way::Tunnel { .. }) && self.has_no_tunnel.load(Ordering::Relaxed) {
            return Err(Error::NoDevice { device: TUNNEL });
        }
        holds.routes.retain(|other| place(other) != place(route));
        holds.routes.insert(route.clone());
        Ok(())
    }

    async fn remove(&self, route: &Route) -> Result<(), Error> {
        self.lock().routes.retain(|other| place(other) != place(route));
        Ok(())
    }

    async fn rules(&self) -> Result<BTreeSet<Rule>, Error> {
        Ok(self.lock().rules.clone())
    }

    async fn add_rule(&self, rule: &Rule) -> Result<(), Error> {
        self.lock().rules.insert(rule.clone());
        Ok(())
    }

    async fn remove_rule(&self, rule: &Rule) -> Result<(), Error> {
        self.lock().rules.remove(rule);
        Ok(())
    }
}

impl Firewall for FakeKernel {
    async fn tables(&self) -> Result<BTreeMap<TableName, String>, FirewallError> {
        Ok(self.lock().tables.clone())
    }

    async fn replace(&self, table: &Table) -> Result<(), FirewallError> {
        self.lock().tables.insert(TableName::of(table), table.fingerprint.clone());
        Ok(())
    }

    async fn forget_connections(&self, _: &[IpNet], _: Buckets) {}

    async fn remove(&self, table: &TableName) -> Result<(), FirewallError> {
        self.lock().tables.remove(table);
        Ok(())
    }
}
