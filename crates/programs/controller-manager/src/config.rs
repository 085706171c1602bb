//! The configuration: waits until the `ClusterConfig` exists, and follows its changes.

use std::sync::Arc;

use kube::{Api, Client, runtime::watcher};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig};
use liqo_controller_runtime::{
    cache::{Cache, without_managed_fields},
    watch,
};
use tokio_util::sync::CancellationToken;

/// Waits until the `ClusterConfig` exists, then follows its changes. If it is deleted, its last
/// state stays in force.
pub async fn follow_config(
    client: &Client,
    stop: CancellationToken,
) -> watch::Receiver<Arc<ClusterConfig>> {
    let (sender, mut receiver) = watch::channel(None);
    let only = watcher::Config::default().fields(&format!("metadata.name={CLUSTER_CONFIG}"));
    tracing::info!("waiting for ClusterConfig {CLUSTER_CONFIG}");
    Cache::watch(
        Api::<ClusterConfig>::all(client.clone()),
        only,
        stop,
        without_managed_fields,
        move |_, _, new| {
            if let Some(config) = new {
                sender.send_replace(Some(config.clone()));
            } else {
                tracing::warn!(
                    "ClusterConfig {CLUSTER_CONFIG} was deleted; its last state stays in force"
                );
            }
        },
    );
    let first = receiver
        .wait_for(Option::is_some)
        .await
        .map(|()| receiver.borrow().clone());
    let (live, config) = watch::channel(first.ok().flatten().unwrap_or_default());
    tokio::spawn(async move {
        while receiver.changed().await.is_ok() {
            if let Some(new) = receiver.borrow_and_update().clone() {
                live.send_replace(new);
            }
        }
    });
    config
}
