//! The data that every part of the manager gets when it starts: client, clock, network,
//! configuration, peers, events.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use jiff::Timestamp;
use kube::Client;
use liqo_api::{ClusterConfig, ClusterId};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    events::EventRecorder,
    informers::Informers,
    network::{Listener, Network},
    peers::Peers,
    watch,
};

/// The data that every part gets when it starts. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Context {
    /// Client for this cluster, with the manager's rights.
    pub client: Client,
    /// Watches that several parts share.
    pub informers: Informers,
    /// Namespace that Liqo runs in.
    pub namespace: String,
    /// Address of this pod, at which it serves the kubelet API of every virtual node.
    pub pod_ip: IpAddr,
    /// DNS domain of this cluster, such as `cluster.local`, if it is known.
    pub cluster_domain: Option<String>,
    pub cluster_id: ClusterId,
    pub clock: Clock,
    pub network: Arc<dyn Network>,
    pub config: watch::Receiver<Arc<ClusterConfig>>,
    pub peers: Peers,
    pub events: EventRecorder,
    /// The last time at which the former leader was alive; `None` if none is known. Nobody watched
    /// from then until this process listed what exists.
    pub unwatched_since: Option<Timestamp>,
    /// Ends everything.
    pub stop: CancellationToken,
}

/// The unspecified address of the pod's address family, to listen on. The node may not have the
/// other family.
pub fn every_address(pod_ip: IpAddr, port: u16) -> SocketAddr {
    let every = if pod_ip.is_ipv4() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    SocketAddr::new(every, port)
}

impl Context {
    pub fn config(&self) -> Arc<ClusterConfig> {
        self.config.borrow().clone()
    }

    /// Listens on every address of the family of the pod's address.
    pub async fn listen(&self, port: u16) -> io::Result<Box<dyn Listener>> {
        self.network.listen(every_address(self.pod_ip, port)).await
    }

    /// The time of day, by this cluster's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
