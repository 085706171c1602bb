//! Code that tests of several modules use.

use std::sync::{Arc, OnceLock};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use liqo_api::ClusterId;
use liqo_controller_runtime::{
    Clock, Context, Informers, Peers, Tcp, events::EventRecorder, watch,
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The clock of all contexts. It shows the middle of an hour: no period of a contract ends while a
/// test runs.
pub fn clock() -> Clock {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    let half_past_twelve = Timestamp::from_second(1_772_368_200).expect("it is a time");
    Clock::simulated(
        half_past_twelve,
        *STARTED.get_or_init(Instant::now),
        SignedDuration::ZERO,
    )
}

/// A process of the cluster with this name and this API server.
pub fn context(name: &str, client: Client) -> Context {
    let config = json!({ "apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig", "metadata": { "name": "liqo" },
        "spec": { "clusterName": name } });
    let stop = CancellationToken::new();
    Context {
        namespace: "liqo".into(),
        pod_ip: [10, 0, 0, 1].into(),
        cluster_domain: None,
        cluster_id: ClusterId::of_public_key(&[1; 32]),
        clock: clock(),
        network: Tcp::network(),
        config: watch::channel(Arc::new(serde_json::from_value(config).unwrap())).1,
        peers: Peers::default(),
        events: EventRecorder::new(client.clone(), clock(), None),
        unwatched_since: None,
        informers: Informers::new(client.clone(), stop.clone()),
        stop,
        client,
    }
}
