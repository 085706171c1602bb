//! What is due: [`triggers`](crate::triggers) says it, and these tell whoever does it.

use std::sync::Arc;

use liqo_api::ClusterId;
use liqo_controller_runtime::Queue;
use tokio::sync::Notify;

use crate::triggers::PeeringTrigger;

/// One for each [`PeeringTrigger`]. Clones share them.
#[derive(Clone, Default)]
pub struct PeeringQueues {
    /// The peers to reconcile.
    pub peers: Queue<ClusterId>,
    pub tunnel_clients: Arc<Notify>,
    pub discovery: Arc<Notify>,
    pub lookups: Arc<Notify>,
}

impl PeeringQueues {
    pub fn add(&self, triggers: impl IntoIterator<Item = PeeringTrigger>) {
        for trigger in triggers {
            match trigger {
                PeeringTrigger::Peer(peer) => self.peers.add(peer),
                PeeringTrigger::TunnelClients => self.tunnel_clients.notify_one(),
                PeeringTrigger::Discovery => self.discovery.notify_one(),
                PeeringTrigger::Lookups => self.lookups.notify_one(),
            }
        }
    }
}
