//! Code that tests of several modules use.

use std::sync::Arc;

use kube::Client;
use liqo_api::ClusterId;
use liqo_controller_runtime::{Clock, Context, Peers, Tcp, events::Events, watch};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// A process of the cluster with this name and this API server.
pub fn context(name: &str, client: Client) -> Context {
    let config = json!({ "apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig", "metadata": { "name": "liqo" },
        "spec": { "clusterName": name } });
    Context {
        namespace: "liqo".into(),
        pod_ip: [10, 0, 0, 1].into(),
        cluster_domain: None,
        cluster_id: ClusterId::of_public_key(&[1; 32]),
        clock: Clock::system(),
        network: Tcp::network(),
        config: watch::channel(Arc::new(serde_json::from_value(config).unwrap())).1,
        peers: Peers::default(),
        events: Events::new(client.clone(), Clock::system(), None),
        unwatched_since: None,
        stop: CancellationToken::new(),
        client,
    }
}
