//! Keeps the records at one provider as they should be.

use std::sync::{Arc, Weak};

use liqo_controller_runtime::Requeue;
use tokio_util::sync::CancellationToken;

use crate::consumer::records;
use crate::consumer::state::{ConsumerState, RemoteProvider};

/// Records that are handled at the same time, for each provider.
const CONCURRENCY: usize = 4;

/// Runs the controller for one provider.
pub async fn run_controller(
    consumer: Arc<ConsumerState>,
    peer: Weak<RemoteProvider>,
    stop: CancellationToken,
) {
    // The provider can be forgotten while its controllers run.
    let Some(queue) = peer.upgrade().map(|peer| peer.record_queue.clone()) else {
        return;
    };
    queue
        .run("reflection", CONCURRENCY, stop, move |reference| {
            let (consumer, peer) = (consumer.clone(), peer.upgrade());
            async move {
                match peer {
                    Some(peer) => records::reconcile_record(&consumer, &peer, &reference).await,
                    None => Ok(Requeue::OnChange),
                }
            }
        })
        .await;
}
