//! What every slice is given when it starts.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use kube::Client;
use liqo_api::{ClusterConfig, ClusterId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{events::Events, peers::Peers};

/// What every slice is given when it starts. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Context {
    /// Client for this cluster, acting as the manager.
    pub client: Client,
    /// Namespace that Liqo runs in.
    pub namespace: String,
    /// Address of this pod, which the kubelet API of every virtual node is served at.
    pub pod_ip: String,
    /// This cluster.
    pub cluster_id: ClusterId,
    /// The live configuration.
    pub config: watch::Receiver<Arc<ClusterConfig>>,
    /// The clusters that we borrow from.
    pub peers: Peers,
    /// Events on objects of this cluster.
    pub events: Events,
    /// Ends everything.
    pub stop: CancellationToken,
}

/// Where a pod with this address listens: on every address of its family, because the other one may not exist on its node.
pub fn every_address(pod_ip: IpAddr, port: u16) -> SocketAddr {
    let every = if pod_ip.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    SocketAddr::new(every, port)
}

impl Context {
    /// The configuration now.
    pub fn config(&self) -> Arc<ClusterConfig> {
        self.config.borrow().clone()
    }
}
