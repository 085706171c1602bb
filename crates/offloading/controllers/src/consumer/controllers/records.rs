//! Keeps the records at one provider as they should be.

use std::sync::{Arc, Weak};

use liqo_controller_runtime::Next;
use tokio_util::sync::CancellationToken;

use crate::consumer::records;
use crate::consumer::state::{Consumer, PeerState};

/// Records that are handled at the same time, for each provider.
const CONCURRENCY: usize = 4;

/// Runs the controller for one provider.
pub async fn run(consumer: Arc<Consumer>, peer: Weak<PeerState>, stop: CancellationToken) {
    // The provider can be forgotten while its controllers run.
    let Some(queue) = peer.upgrade().map(|peer| peer.record_queue.clone()) else {
        return;
    };
    queue
        .run("reflection", CONCURRENCY, stop, move |reference| {
            let (consumer, peer) = (consumer.clone(), peer.upgrade());
            async move {
                match peer {
                    Some(peer) => records::reconcile(&consumer, &peer, &reference).await,
                    None => Ok(Next::OnChange),
                }
            }
        })
        .await;
}
