//! The interface of a plugin: [`ResourceSource`] says how much each cluster is offered. Start to
//! read here.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt as _, stream, stream::BoxStream};

use crate::model::{Change, Pool, Prices};

/// Decides how much each cluster is offered: your plugin, or a source inside Liqo.
///
/// Liqo calls `read` often, concurrently, and again after each change. So `read` should answer from
/// memory, and must not change anything.
///
/// The page of this crate shows an example.
#[async_trait]
pub trait ResourceSource: Send + Sync + 'static {
    /// What the cluster with this ID is offered now. No pools means no offer.
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError>;

    /// What the resources of all pools that have no prices of their own cost this cluster now. By
    /// default nothing is said about it, and the prices in the policy of the provider apply. Needs
    /// the third generation of the protocol.
    fn prices(&self, _cluster: &str) -> Option<Prices> {
        None
    }

    /// Changes from now on: one [`Change`] whenever `read` or `prices` would answer differently.
    /// Receivers read again.
    ///
    /// [`crate::Announcer`] creates such streams. By default, nothing ever changes.
    fn changes(&self) -> BoxStream<'static, Change> {
        stream::pending().boxed()
    }

    /// Called after the peering with this cluster has ended: remove what you store for it. It may
    /// be called more than once, and for unknown clusters.
    async fn removed(&self, _cluster: &str) {}

    /// Returns once `read` can answer. Until then, the plugin reports to Kubernetes that it is not
    /// ready.
    async fn ready(&self) {}
}

/// Why a source cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot answer yet, or not now. The caller tries again.
    #[error("not ready: {0}")]
    NotReady(String),
    /// It does not know this cluster.
    #[error("cluster {0} is unknown")]
    UnknownCluster(String),
    /// It failed.
    #[error("{0}")]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl SourceError {
    /// Wraps the error of a failed source.
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

#[async_trait]
impl<S: ResourceSource + ?Sized> ResourceSource for Arc<S> {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        (**self).read(cluster).await
    }

    fn prices(&self, cluster: &str) -> Option<Prices> {
        (**self).prices(cluster)
    }

    fn changes(&self) -> BoxStream<'static, Change> {
        (**self).changes()
    }

    async fn removed(&self, cluster: &str) {
        (**self).removed(cluster).await;
    }

    async fn ready(&self) {
        (**self).ready().await;
    }
}
