//! Makes this node hold what was decided.

use jiff::Timestamp;
use liqo_datapath::{
    node::{Error, Firewall, Links, Node, Routes},
    tunnel::{Endpoint, Tunnel, TunnelError},
};
use liqo_network::plan::TUNNEL;

use crate::{
    decide::{TunnelEnd, Wanted, Work},
    key::Keys,
};

/// Why the node does not hold what was decided.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its kernel does not.
    #[error(transparent)]
    Node(#[from] Error),
    /// Its tunnel does not.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
}

impl AgentError {
    /// Whether a gateway carries packets all the same, if not to all.
    pub fn is_partial(&self) -> bool {
        matches!(self, Self::Node(Error::Change { .. }))
    }
}

/// The kernel and the tunnel of a node.
pub struct Agent<'a, T, L, R, F> {
    /// The tunnel.
    pub tunnel: &'a T,
    /// The kernel.
    pub node: Node<L, R, F>,
}

impl<T: Tunnel, L: Links, R: Routes, F: Firewall> Agent<'_, T, L, R, F> {
    /// Does it, and says how many steps that took in the kernel. To be called again after an error: what is done stays done.
    pub async fn make(&self, work: &Work, keys: &Keys, now: Timestamp) -> Result<usize, AgentError> {
        match work {
            Work::Wait(_) => Ok(0),
            Work::Clear => {
                self.without_tunnel()?;
                Ok(self.node.clear().await?.len())
            }
            Work::Hold(wanted) => self.hold(wanted, keys, now).await,
        }
    }

    /// The tables that guard the tunnel stand before anything comes out of it, so the node goes first. All but the routes into the tunnel
    /// is done then, and these follow once its device is there. One address that the kernel does not want holds up no peer.
    async fn hold(&self, wanted: &Wanted, keys: &Keys, now: Timestamp) -> Result<usize, AgentError> {
        let Some(end) = &wanted.tunnel else {
            self.without_tunnel()?;
            return Ok(self.node.apply(&wanted.plan).await?.len());
        };
        let first = self.node.apply(&wanted.plan).await;
        let done = match first {
            Err(Error::NoDevice { .. } | Error::Change { .. }) => None,
            done => Some(done?.len()),
        };
        self.tunnel.apply(&endpoint(end, keys, now))?;
        match done {
            Some(steps) => Ok(steps),
            None => Ok(self.node.apply(&wanted.plan).await?.len()),
        }
    }

    fn without_tunnel(&self) -> Result<(), AgentError> {
        self.tunnel.stop();
        Ok(self.tunnel.remove_device(TUNNEL)?)
    }
}

fn endpoint(end: &TunnelEnd, keys: &Keys, now: Timestamp) -> Endpoint {
    Endpoint {
        private_key: keys.newest.clone(),
        previous_key: keys.taken(now).cloned(),
        listen: end.listen.clone(),
        device: TUNNEL.to_owned(),
        mtu: end.mtu,
        remotes: end.remotes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use liqo_datapath::{
        node::{FakeKernel, Present},
        tunnel::FakeTunnel,
    };

    use super::*;
    use crate::decide::{decide, fixtures};

    fn agent<'a>(tunnel: &'a FakeTunnel, kernel: &FakeKernel) -> Agent<'a, FakeTunnel, FakeKernel, FakeKernel, FakeKernel> {
        Agent { tunnel, node: kernel.node() }
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn keys() -> Keys {
        Keys::first(NOW)
    }

    fn work(this: &str) -> Work {
        decide(&fixtures::snapshot(), this, &[])
    }

    #[tokio::test]
    async fn a_gateway_has_the_tunnel_and_other_nodes_have_none() {
        let (tunnel, kernel) = (FakeTunnel::default(), FakeKernel::default());
        let agent = agent(&tunnel, &kernel);
        assert!(agent.make(&work("n1"), &keys(), NOW).await.unwrap() > 0);
        let applied = tunnel.applied();
        assert_eq!((applied.len(), applied[0].device.as_str(), applied[0].mtu), (1, TUNNEL, 1400));
        assert!(tunnel.state().running && tunnel.removed().is_empty());
        assert_eq!(agent.make(&work("n1"), &keys(), NOW).await.unwrap(), 0);

        // Another one is the gateway now.
        let mut snapshot = fixtures::snapshot();
        snapshot.gateways = [fixtures::in_use(1, "n2")].into();
        agent.make(&decide(&snapshot, "n1", &[]), &keys(), NOW).await.unwrap();
        assert!(!tunnel.state().running);
        assert_eq!(tunnel.removed(), [TUNNEL]);
        assert!(kernel.holds().overlay.is_some());
    }

    #[tokio::test]
    async fn the_guard_stands_although_the_tunnels_device_cannot_be_made() {
        let (tunnel, kernel) = (FakeTunnel::default(), FakeKernel::default());
        kernel.lose_tunnel();
        let agent = agent(&tunnel, &kernel);
        assert!(matches!(agent.make(&work("n1"), &keys(), NOW).await, Err(AgentError::Node(Error::NoDevice { .. }))));
        assert_eq!(tunnel.applied().len(), 1);
        assert_eq!(kernel.holds().tables.len(), 2);
    }

    #[tokio::test]
    async fn waiting_touches_nothing_and_clearing_leaves_nothing() {
        let (tunnel, kernel) = (FakeTunnel::default(), FakeKernel::default());
        let agent = agent(&tunnel, &kernel);
        agent.make(&work("n1"), &keys(), NOW).await.unwrap();
        let before = kernel.holds();
        agent.make(&Work::Wait("something"), &keys(), NOW).await.unwrap();
        assert_eq!(kernel.holds(), before);
        assert!(tunnel.state().running);

        agent.make(&Work::Clear, &keys(), NOW).await.unwrap();
        assert_eq!(kernel.holds(), Present::default());
        assert!(!tunnel.state().running);
        assert_eq!(tunnel.removed(), [TUNNEL]);
    }
}
