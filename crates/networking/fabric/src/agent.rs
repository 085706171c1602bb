//! Applies the desired state to this node.

use jiff::Timestamp;
use liqo_datapath::{
    node::{Firewall, Links, NodeError, NodeKernel, Routes},
    tunnel::{EndpointConfig, Tunnel, TunnelError},
};
use liqo_network_model::{fabric::TUNNEL, node_plan::NodePlan};

use crate::{
    decide::{DesiredState, NodeAction, TunnelEnd},
    key::NodeGatewayKeys,
};

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
}

impl AgentError {
    /// Whether a gateway carries packets nevertheless, although not to all.
    pub fn is_partial(&self) -> bool {
        matches!(self, Self::Node(NodeError::Change { .. }))
    }
}

/// The kernel of a node. Methods that change it return the number of steps that this took.
pub trait Kernel {
    async fn apply_plan(&self, plan: &NodePlan) -> Result<usize, NodeError>;
    async fn clear(&self) -> Result<usize, NodeError>;
    /// Forgets translations that may be out of date.
    async fn forget_translations(&self, plan: &NodePlan);
}

impl<L: Links, R: Routes, F: Firewall> Kernel for NodeKernel<L, R, F> {
    async fn apply_plan(&self, plan: &NodePlan) -> Result<usize, NodeError> {
        Ok(NodeKernel::apply(self, plan).await?.len())
    }

    async fn clear(&self) -> Result<usize, NodeError> {
        Ok(NodeKernel::clear(self).await?.len())
    }

    async fn forget_translations(&self, plan: &NodePlan) {
        NodeKernel::forget_carried_connections(self, plan).await;
    }
}

/// Changes the kernel and the tunnel of a node.
pub struct NodeAgent<'a, T, K> {
    pub tunnel: &'a T,
    pub kernel: K,
}

impl<T: Tunnel, K: Kernel> NodeAgent<'_, T, K> {
    /// Carries out the action and returns the number of steps in the kernel. Call it again after an
    /// error: finished steps stay.
    pub async fn apply_action(
        &self,
        action: &NodeAction,
        keys: &NodeGatewayKeys,
        now: Timestamp,
    ) -> Result<usize, AgentError> {
        match action {
            NodeAction::Wait(_) => Ok(0),
            NodeAction::Clear => {
                self.stop_tunnel()?;
                Ok(self.kernel.clear().await?)
            }
            NodeAction::Apply(desired) => self.apply_state(desired, keys, now).await,
        }
    }

    /// The tables that guard the tunnel must exist before packets come out of it, so the kernel
    /// comes first. The first pass does everything but the routes into the tunnel, which need its
    /// device; a second pass adds them. An address that the kernel refuses does not hold up the
    /// tunnel.
    async fn apply_state(
        &self,
        desired: &DesiredState,
        keys: &NodeGatewayKeys,
        now: Timestamp,
    ) -> Result<usize, AgentError> {
        let Some(end) = &desired.tunnel else {
            self.stop_tunnel()?;
            return Ok(self.kernel.apply_plan(&desired.plan).await?);
        };
        let first = match self.kernel.apply_plan(&desired.plan).await {
            Err(NodeError::NoDevice { .. } | NodeError::Change { .. }) => None,
            done => Some(done?),
        };
        self.tunnel.apply(&endpoint_config(end, keys, now))?;
        match first {
            Some(steps) => Ok(steps),
            None => Ok(self.kernel.apply_plan(&desired.plan).await?),
        }
    }

    fn stop_tunnel(&self) -> Result<(), AgentError> {
        self.tunnel.stop();
        Ok(self.tunnel.remove_device(TUNNEL)?)
    }
}

fn endpoint_config(end: &TunnelEnd, keys: &NodeGatewayKeys, now: Timestamp) -> EndpointConfig {
    EndpointConfig {
        private_key: keys.newest.clone(),
        previous_key: keys.accepted_former(now).cloned(),
        listen: end.listen.clone(),
        device: TUNNEL.to_owned(),
        mtu: end.mtu,
        remotes: end.remotes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use liqo_datapath::{
        node::{FakeKernel, KernelState},
        tunnel::FakeTunnel,
    };
    use liqo_network_model::ruleset::GUARD;

    use super::*;
    use crate::decide::{decide_action, fixtures};

    fn agent<'a>(
        tunnel: &'a FakeTunnel,
        kernel: &FakeKernel,
    ) -> NodeAgent<'a, FakeTunnel, impl Kernel> {
        NodeAgent {
            tunnel,
            kernel: kernel.node(),
        }
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn keys() -> NodeGatewayKeys {
        NodeGatewayKeys::generate_first(NOW)
    }

    fn action(this: &str) -> NodeAction {
        decide_action(&fixtures::snapshot(), this, &[])
    }

    #[tokio::test]
    async fn a_gateway_has_the_tunnel_and_other_nodes_have_none() {
        let (tunnel, kernel) = (FakeTunnel::default(), FakeKernel::default());
        let agent = agent(&tunnel, &kernel);
        assert!(
            agent
                .apply_action(&action("n1"), &keys(), NOW)
                .await
                .unwrap()
                > 0
        );
        let applied = tunnel.applied();
        assert_eq!(
            (applied.len(), applied[0].device.as_str(), applied[0].mtu),
            (1, TUNNEL, 1420)
        );
        assert!(tunnel.state().running && tunnel.removed().is_empty());
        assert_eq!(
            agent
                .apply_action(&action("n1"), &keys(), NOW)
                .await
                .unwrap(),
            0
        );

        // Another one is the gateway now.
        let mut snapshot = fixtures::snapshot();
        snapshot.gateways = [fixtures::active(1, "n2")].into();
        agent
            .apply_action(&decide_action(&snapshot, "n1", &[]), &keys(), NOW)
            .await
            .unwrap();
        assert!(!tunnel.state().running);
        assert_eq!(tunnel.removed(), [TUNNEL]);
        assert!(kernel.state().overlay.is_some());
    }

    #[tokio::test]
    async fn the_guard_exists_even_if_the_tunnels_device_cannot_be_created() {
        let (tunnel, kernel) = (FakeTunnel::default(), FakeKernel::default());
        kernel.lose_tunnel();
        let agent = agent(&tunnel, &kernel);
        assert!(matches!(
            agent.apply_action(&action("n1"), &keys(), NOW).await,
            Err(AgentError::Node(NodeError::NoDevice { .. }))
        ));
        assert_eq!(tunnel.applied().len(), 1);
        assert!(
            kernel
                .state()
                .tables
                .keys()
                .any(|table| table.name == GUARD)
        );
    }

    #[tokio::test]
    async fn waiting_touches_nothing_and_clearing_leaves_nothing() {
        let (tunnel, kernel) = (FakeTunnel::default(), FakeKernel::default());
        let agent = agent(&tunnel, &kernel);
        agent
            .apply_action(&action("n1"), &keys(), NOW)
            .await
            .unwrap();
        let before = kernel.state();
        agent
            .apply_action(&NodeAction::Wait("something"), &keys(), NOW)
            .await
            .unwrap();
        assert_eq!(kernel.state(), before);
        assert!(tunnel.state().running);

        agent
            .apply_action(&NodeAction::Clear, &keys(), NOW)
            .await
            .unwrap();
        assert_eq!(kernel.state(), KernelState::default());
        assert!(!tunnel.state().running);
        assert_eq!(tunnel.removed(), [TUNNEL]);
    }
}
