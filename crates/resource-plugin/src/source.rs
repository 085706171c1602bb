//! What decides how much each cluster is offered.

use std::sync::Arc;

use async_trait::async_trait;
use futures::{StreamExt as _, stream, stream::BoxStream};

use crate::model::{Change, Pool};

/// What decides how much each cluster is offered: a plugin of yours, or something inside Liqo.
///
/// It is asked often, by several at once, and again whenever it says that something changed; so `read` answers from what it
/// knows, and changes nothing.
///
/// The crate's page shows one.
#[async_trait]
pub trait ResourceSource: Send + Sync + 'static {
    /// What the cluster with this ID is offered now. No pool means nothing.
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError>;

    /// News from now on: one [`Change`] each time that `read` would answer differently. Those who listen read again.
    ///
    /// [`crate::Announcer`] makes such streams. Without it, nothing ever changes.
    fn changes(&self) -> BoxStream<'static, Change> {
        stream::pending().boxed()
    }

    /// The peering with this cluster has ended: what is kept for it may go. Said more than once, and of clusters never heard of.
    async fn removed(&self, _cluster: &str) {}

    /// Returns when `read` can answer for the first time. Until then, the plugin tells Kubernetes that it is not ready.
    async fn ready(&self) {}
}

/// The source cannot say.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Not yet, or not now; ask again.
    #[error("not ready: {0}")]
    NotReady(String),
    /// Not for this cluster.
    #[error("cluster {0} is not known here")]
    UnknownCluster(String),
    /// Something failed.
    #[error("{0}")]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl SourceError {
    /// Something failed.
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

#[async_trait]
impl<S: ResourceSource + ?Sized> ResourceSource for Arc<S> {
    async fn read(&self, cluster: &str) -> Result<Vec<Pool>, SourceError> {
        (**self).read(cluster).await
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
