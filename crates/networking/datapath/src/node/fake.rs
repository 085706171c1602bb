//! A kernel in memory, for tests, also of other crates. It is no feature of this crate: cargo would
//! compile all that uses it twice, for programs and for tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ipnet::IpNet;
use liqo_network_model::{
    fabric::{OVERLAY, TUNNEL},
    node_plan::{MarkRule, NextHop, Overlay, Route},
    ruleset::{LIMITS, NftTable},
    spread::Buckets,
};
use parking_lot::{Mutex, MutexGuard};

use super::{
    apply::NodeKernel,
    error::NodeError,
    firewall::{Firewall, FirewallError, TableName},
    links::{Links, NeighbourEntry},
    routes::Routes,
    steps::{KernelState, route_key},
};

/// A kernel in memory. Like the real one it removes with a device what depends on it.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    state: Arc<Mutex<KernelState>>,
    has_no_tunnel: Arc<AtomicBool>,
    refused: Arc<Mutex<Option<IpNet>>>,
    has_no_limits: Arc<AtomicBool>,
}

impl FakeKernel {
    /// A node with this kernel.
    pub fn node(&self) -> NodeKernel<Self, Self, Self> {
        NodeKernel {
            links: self.clone(),
            routes: self.clone(),
            firewall: self.clone(),
        }
    }

    pub fn state(&self) -> KernelState {
        self.lock().clone()
    }

    /// Loses everything.
    pub fn reboot(&self) {
        *self.lock() = KernelState::default();
    }

    /// Has no tunnel device from now on.
    pub fn lose_tunnel(&self) {
        self.has_no_tunnel.store(true, Ordering::Relaxed);
    }

    /// Cannot limit connections from now on.
    pub fn lose_limits(&self) {
        self.has_no_limits.store(true, Ordering::Relaxed);
    }

    /// Refuses routes to this destination from now on.
    pub fn refuse(&self, destination: IpNet) {
        *self.refused.lock() = Some(destination);
    }

    fn lock(&self) -> MutexGuard<'_, KernelState> {
        self.state.lock()
    }
}

impl Links for FakeKernel {
    async fn overlay(&self) -> Result<Option<Overlay>, NodeError> {
        Ok(self.lock().overlay.clone())
    }

    async fn neighbours(&self) -> Result<BTreeSet<NeighbourEntry>, NodeError> {
        Ok(self.lock().neighbours.clone())
    }

    async fn create_overlay(&self, overlay: &Overlay) -> Result<(), NodeError> {
        self.lock().overlay = Some(overlay.clone());
        Ok(())
    }

    async fn resize_overlay(&self, mtu: u32) -> Result<(), NodeError> {
        let mut state = self.lock();
        let overlay = state
            .overlay
            .as_mut()
            .ok_or(NodeError::NoDevice { device: OVERLAY })?;
        overlay.mtu = mtu;
        Ok(())
    }

    async fn remove(&self, _: &'static str) -> Result<(), NodeError> {
        let mut state = self.lock();
        state.overlay = None;
        state.neighbours.clear();
        state
            .routes
            .retain(|route| !matches!(route.next, NextHop::Overlay { .. }));
        Ok(())
    }

    async fn add_neighbour(&self, neighbour: &NeighbourEntry) -> Result<(), NodeError> {
        self.lock().neighbours.insert(neighbour.clone());
        Ok(())
    }

    async fn remove_neighbour(&self, neighbour: &NeighbourEntry) -> Result<(), NodeError> {
        self.lock().neighbours.remove(neighbour);
        Ok(())
    }
}

impl Routes for FakeKernel {
    async fn routes(&self) -> Result<BTreeSet<Route>, NodeError> {
        Ok(self.lock().routes.clone())
    }

    async fn put_route(&self, route: &Route) -> Result<(), NodeError> {
        if *self.refused.lock() == Some(route.destination) {
            return Err(NodeError::Change {
                step: format!("routing {}", route.destination),
                source: rtnetlink::Error::RequestFailed,
            });
        }
        let mut state = self.lock();
        if matches!(route.next, NextHop::Overlay { .. }) && state.overlay.is_none() {
            return Err(NodeError::NoDevice { device: OVERLAY });
        }
        if matches!(route.next, NextHop::Tunnel { .. })
            && self.has_no_tunnel.load(Ordering::Relaxed)
        {
            return Err(NodeError::NoDevice { device: TUNNEL });
        }
        state
            .routes
            .retain(|other| route_key(other) != route_key(route));
        state.routes.insert(route.clone());
        Ok(())
    }

    async fn remove(&self, route: &Route) -> Result<(), NodeError> {
        self.lock()
            .routes
            .retain(|other| route_key(other) != route_key(route));
        Ok(())
    }

    async fn rules(&self) -> Result<BTreeSet<MarkRule>, NodeError> {
        Ok(self.lock().rules.clone())
    }

    async fn add_rule(&self, rule: &MarkRule) -> Result<(), NodeError> {
        self.lock().rules.insert(rule.clone());
        Ok(())
    }

    async fn remove_rule(&self, rule: &MarkRule) -> Result<(), NodeError> {
        self.lock().rules.remove(rule);
        Ok(())
    }
}

impl Firewall for FakeKernel {
    async fn tables(&self) -> Result<BTreeMap<TableName, String>, FirewallError> {
        Ok(self.lock().tables.clone())
    }

    async fn replace_table(&self, table: &NftTable) -> Result<(), FirewallError> {
        if table.name == LIMITS && self.has_no_limits.load(Ordering::Relaxed) {
            return Err(FirewallError::Refused {
                arguments: "--file -".to_owned(),
                output: "No such file or directory".to_owned(),
            });
        }
        self.lock()
            .tables
            .insert(TableName::of_table(table), table.fingerprint.clone());
        Ok(())
    }

    async fn forget_connections(&self, _: &[IpNet], _: Buckets) {}

    async fn remove(&self, table: &TableName) -> Result<(), FirewallError> {
        self.lock().tables.remove(table);
        Ok(())
    }
}
