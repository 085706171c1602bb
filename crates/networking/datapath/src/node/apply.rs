//! Reads the kernel's present state and applies the steps to it.

use std::collections::BTreeSet;

use liqo_network_model::{fabric::OVERLAY, node_plan::NodePlan, ruleset::LIMITS};

use super::{
    error::NodeError,
    firewall::{Firewall, Nft},
    links::{Links, NetlinkLinks},
    routes::{NetlinkRoutes, Routes},
    steps::{KernelState, KernelStep, carried_buckets, remote_prefixes, steps_between},
};

/// The kernel of a node.
#[derive(Clone, Debug)]
pub struct NodeKernel<L, R, F> {
    pub links: L,
    pub routes: R,
    pub firewall: F,
}

impl NodeKernel<NetlinkLinks, NetlinkRoutes, Nft> {
    /// The kernel of this thread's network namespace. Needs a tokio runtime.
    pub fn of_this_namespace() -> Result<Self, NodeError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Connect)?;
        tokio::spawn(connection);
        Ok(Self {
            links: NetlinkLinks::new(handle.clone()),
            routes: NetlinkRoutes::new(handle),
            firewall: Nft::default(),
        })
    }
}

impl<L: Links, R: Routes, F: Firewall> NodeKernel<L, R, F> {
    /// Brings the kernel to the wanted state and returns the steps that this took. When a step
    /// fails, the others are still applied, and the first error is returned; but when a table
    /// cannot be written, no route that it guards is added. A missing tunnel device is reported
    /// only if nothing else failed. A kernel that cannot limit connections is good enough.
    pub async fn apply(&self, wanted: &NodePlan) -> Result<Vec<KernelStep>, NodeError> {
        let steps = steps_between(wanted, &self.present_state().await?);
        let (mut done, mut failed): (Vec<KernelStep>, Option<NodeError>) = (Vec::new(), None);
        for step in steps {
            tracing::debug!(?step, "changing the node");
            match self.apply_step(&step).await {
                Ok(()) => done.push(step),
                Err(error) if matches!(&step, KernelStep::ReplaceTable(table) if table.name == LIMITS) =>
                {
                    tracing::warn!(%error, "the connections of peers are not limited; does the kernel have nft_connlimit?");
                }
                Err(error) if matches!(step, KernelStep::ReplaceTable(_)) => return Err(error),
                Err(error)
                    if failed
                        .as_ref()
                        .is_none_or(|first| matches!(first, NodeError::NoDevice { .. })) =>
                {
                    failed = Some(error);
                }
                Err(error) => tracing::warn!(%error, "another step failed"),
            }
        }
        failed.map_or(Ok(done), Err)
    }

    /// Removes everything of ours.
    pub async fn clear(&self) -> Result<Vec<KernelStep>, NodeError> {
        self.apply(&NodePlan::default()).await
    }

    /// Makes the kernel forget the connections that this gateway carries: other gateways carried
    /// them while it was away, so its own records of them are outdated.
    pub async fn forget_carried_connections(&self, wanted: &NodePlan) {
        self.firewall
            .forget_connections(&remote_prefixes(wanted), carried_buckets(wanted))
            .await;
    }

    /// Reads our part of the kernel's state.
    pub async fn present_state(&self) -> Result<KernelState, NodeError> {
        let overlay = self.links.overlay().await?;
        let neighbours = if overlay.is_some() {
            self.links.neighbours().await?
        } else {
            BTreeSet::new()
        };
        Ok(KernelState {
            overlay,
            neighbours,
            routes: self.routes.routes().await?,
            rules: self.routes.rules().await?,
            tables: self.firewall.tables().await?,
        })
    }

    async fn apply_step(&self, step: &KernelStep) -> Result<(), NodeError> {
        match step {
            KernelStep::ReplaceTable(table) => Ok(self.firewall.replace_table(table).await?),
            KernelStep::RemoveTable(name) => Ok(self.firewall.remove(name).await?),
            KernelStep::CreateOverlay(overlay) => self.links.create_overlay(overlay).await,
            KernelStep::ResizeOverlay(mtu) => self.links.resize_overlay(*mtu).await,
            KernelStep::RemoveOverlay => self.links.remove(OVERLAY).await,
            KernelStep::AddNeighbour(entry) => self.links.add_neighbour(entry).await,
            KernelStep::RemoveNeighbour(entry) => self.links.remove_neighbour(entry).await,
            KernelStep::PutRoute(route) => self.routes.put_route(route).await,
            KernelStep::RemoveRoute(route) => self.routes.remove(route).await,
            KernelStep::AddRule(rule) => self.routes.add_rule(rule).await,
            KernelStep::RemoveRule(rule) => self.routes.remove_rule(rule).await,
            KernelStep::ForgetConnections(prefixes, buckets) => {
                self.firewall.forget_connections(prefixes, *buckets).await;
                Ok(())
            }
        }
    }
}
