//! Probes the nodes of the other gateways of this cluster, so that a dead one is replaced before
//! its Lease expires.
//!
//! A probe opens a TCP connection to the port of their health checks. The kernel answers, even
//! while the program restarts: that pause costs less than replacing the gateway.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc};

use futures::future::join_all;
use liqo_controller_runtime::{Cache, Key};
use tokio::{
    net::TcpStream,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    decide::probe_results::{OtherGateway, PROBE_PERIOD, PROBE_TIMEOUT, ProbeResults},
    gateway_leases::GatewayLeases,
    view::NodeView,
};

pub struct GatewayProber {
    pub gateways: Arc<GatewayLeases>,
    pub nodes: Cache<NodeView>,
    /// Port of health checks, on each node.
    pub port: u16,
    pub stop: CancellationToken,
}

impl GatewayProber {
    /// Probes until it is asked to stop.
    pub async fn run(self) {
        let mut results = ProbeResults::default();
        let mut period = interval(PROBE_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = period.tick() => {}
            }
            let round = self
                .gateways
                .other_gateways()
                .into_iter()
                .map(|other| async {
                    let answers = self.is_answering(&other).await;
                    (other, answers)
                });
            if let Some(suspects) = results.record_round(&join_all(round).await) {
                if !suspects.is_empty() {
                    tracing::warn!(%suspects, "the node of another gateway stopped answering");
                }
                self.gateways.publish_suspects(suspects);
            }
        }
    }

    /// Whether the node answers; refusing the connection is an answer, too.
    async fn is_answering(&self, other: &OtherGateway) -> bool {
        let addresses = self
            .nodes
            .get(&Key::new("", &other.node))
            .map(|node| node.addresses.clone())
            .unwrap_or_default();
        let probes = addresses
            .into_iter()
            .map(|address| answers_at(SocketAddr::new(address, self.port)));
        join_all(probes).await.contains(&true)
    }
}

async fn answers_at(address: SocketAddr) -> bool {
    match timeout(PROBE_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.kind() == ErrorKind::ConnectionRefused,
        Err(_) => false,
    }
}
