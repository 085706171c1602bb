//! Asks the nodes of the other gateways of this cluster whether they are there, so that a dead one is replaced before its Lease runs
//! out.
//!
//! A question is the beginning of a TCP connection to the port of their health checks. It is the kernel that answers, also where the
//! program is just being started again: that is a pause, which costs less than to replace the gateway.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc};

use futures::future::join_all;
use liqo_kit::{Cache, Key};
use tokio::{
    net::TcpStream,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::siblings::{Other, PATIENCE, PERIOD, Siblings},
    gateways::Gateways,
    view::NodeView,
};

pub(crate) struct Listener {
    pub gateways: Arc<Gateways>,
    pub nodes: Cache<NodeView>,
    /// Of health checks, on each node.
    pub port: u16,
    pub stop: CancellationToken,
}

impl Listener {
    /// Until it is asked to stop.
    pub(crate) async fn keep(self) {
        let mut siblings = Siblings::default();
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = period.tick() => {}
            }
            let asked = self.gateways.others().into_iter().map(|other| async {
                let answers = self.answers(&other).await;
                (other, answers)
            });
            if let Some(unheard) = siblings.asked(&join_all(asked).await) {
                if !unheard.is_empty() {
                    tracing::warn!(%unheard, "the node of another gateway does not answer any more");
                }
                self.gateways.do_not_hear(unheard);
            }
        }
    }

    /// Whether the node is there: also one that refuses the connection is.
    async fn answers(&self, other: &Other) -> bool {
        let addresses = self.nodes.get(&Key::new("", &other.node)).map(|node| node.addresses.clone()).unwrap_or_default();
        let ask = |address| async move {
            let connected = timeout(PATIENCE, TcpStream::connect(SocketAddr::new(address, self.port))).await;
            matches!(connected, Ok(Ok(_))) || matches!(connected, Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused)
        };
        join_all(addresses.into_iter().map(ask)).await.contains(&true)
    }
}
