//! Brings pods home when control is back: evicts those on virtual nodes, so that their controllers
//! create others here.

use std::sync::Arc;

use liqo_api::departure::DepartureCause;
use liqo_controller_runtime::{
    departures::{self, Departure},
    writes::StepError,
};

use crate::{
    cluster::{COUNT_INTERVAL, ClusterCaches},
    decide::homecoming::next_to_evict,
};

/// Runs until the context stops.
pub async fn run_controller(cluster: Arc<ClusterCaches>) {
    loop {
        tokio::select! {
            biased;
            () = cluster.context.stop.cancelled() => return,
            () = tokio::time::sleep(COUNT_INTERVAL) => {}
        }
        for namespace in cluster.namespaces_to_bring_home() {
            if let Err(error) = bring_home(&cluster, &namespace).await {
                tracing::warn!(namespace, %error, "pods not brought home, trying again");
            }
        }
    }
}

async fn bring_home(cluster: &ClusterCaches, namespace: &str) -> Result<(), StepError> {
    let pods = cluster.pods(namespace).await?;
    for pod in next_to_evict(&pods) {
        let message =
            "evicted, because this cluster is not tethered any more: the next pod runs here"
                .to_owned();
        let departure =
            Departure::new(DepartureCause::ControlIsBack, &pod.key, &pod.uid).with_message(message);
        departures::request_departure(&cluster.context, departure).await?;
    }
    Ok(())
}
