//! The clusters that we borrow from.
//!
//! Peering fills this registry, and the other parts follow it. A [`PeerConnection`] is valid until
//! its `ended` token is cancelled: the credential was withdrawn, the peering ended, or the peer
//! came back after an outage. After an outage, a new connection follows at once, because old
//! watches may have died silently. While a peer only does not answer, its connection stays, and its
//! health says so.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::Client;
use liqo_api::ClusterId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    provider_limits::{ProviderLimits, TotalBytes},
    watch,
};

/// Timeout of a call to a peer.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionHealth {
    /// Its API server answers and its manager renews its lease.
    Reachable,
    /// The time is that of the local monotonic clock.
    Unreachable { since: Instant },
}

/// One cluster that we borrow from.
pub struct PeerConnection {
    pub cluster_id: ClusterId,
    pub cluster_name: String,
    /// Name of its `ForeignCluster` here.
    pub foreign_cluster: String,
    /// Client for its API server, with our rights. The token inside is renewed without a new
    /// client.
    pub client: Client,
    /// Our namespace at the peer.
    pub tenant_namespace: String,
    pub protocol_version: u32,
    pub health: watch::Receiver<ConnectionHealth>,
    /// Limits of what it may make this process read and keep.
    pub limits: Arc<ProviderLimits>,
    /// Cancelled when this connection must not be used any more.
    pub ended: CancellationToken,
}

impl PeerConnection {
    pub fn is_reachable(&self) -> bool {
        matches!(*self.health.borrow(), ConnectionHealth::Reachable)
    }
}

/// The clusters that we borrow from, by ID. Clones share the same registry.
#[derive(Clone)]
pub struct Peers {
    connections: Arc<watch::Sender<BTreeMap<ClusterId, Arc<PeerConnection>>>>,
    total: TotalBytes,
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            connections: Arc::new(watch::channel(BTreeMap::new()).0),
            total: TotalBytes::default(),
        }
    }
}

impl Peers {
    /// Limits for a new session with a provider.
    pub fn limits_of(&self, id: &ClusterId) -> Arc<ProviderLimits> {
        Arc::new(ProviderLimits::new(id.clone(), self.total.clone()))
    }

    /// Publishes a connection. An older one to the same peer ends.
    pub fn publish(&self, connection: PeerConnection) {
        self.connections.send_modify(|all| {
            if let Some(old) = all.insert(connection.cluster_id.clone(), Arc::new(connection)) {
                old.ended.cancel();
            }
        });
    }

    pub fn withdraw(&self, id: &ClusterId) {
        self.connections
            .send_if_modified(|all| match all.remove(id) {
                Some(old) => {
                    old.ended.cancel();
                    true
                }
                None => false,
            });
    }

    pub fn get(&self, id: &ClusterId) -> Option<Arc<PeerConnection>> {
        self.connections.borrow().get(id).cloned()
    }

    /// Starts `task` once for every current and future connection, until `stop`. A task must end
    /// when its connection's `ended` is cancelled. A new connection to the same peer gets a new
    /// task.
    pub async fn for_each<F, Fut>(&self, stop: CancellationToken, task: F)
    where
        F: Fn(Arc<PeerConnection>) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut connections = self.connections.subscribe();
        let mut started: BTreeMap<ClusterId, Arc<PeerConnection>> = BTreeMap::new();
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let current = connections.borrow_and_update().clone();
            for (id, connection) in &current {
                if !started
                    .get(id)
                    .is_some_and(|known| Arc::ptr_eq(known, connection))
                {
                    tasks.spawn(task(connection.clone()));
                }
            }
            started = current;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = connections.changed() => if changed.is_err() { break },
            }
            while tasks.try_join_next().is_some() {}
        }
        tasks.shutdown().await;
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("the peer's API server: {0}")]
    Api(#[from] kube::Error),
    /// No answer in [`CALL_TIMEOUT`].
    #[error("the peer's API server did not answer in {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
}

/// Sends one request to a peer, with a time limit, so that a dead peer blocks nothing.
pub async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, PeerError> {
    tokio::time::timeout(CALL_TIMEOUT, request)
        .await
        .map_err(|_| PeerError::Timeout)?
        .map_err(PeerError::Api)
}
