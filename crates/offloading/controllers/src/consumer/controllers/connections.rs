//! Follows the connection to one provider: what we have there is cached while it exists, and
//! everything of the provider is due when it comes, goes, falls silent or answers again.

use std::{sync::Arc, time::Duration};

use liqo_controller_runtime::PeerConnection;

use crate::consumer::state::ConsumerState;
use crate::consumer::triggers;
use crate::consumer::watches;

/// Follows one connection until it ends.
pub async fn follow_connection(consumer: Arc<ConsumerState>, connection: Arc<PeerConnection>) {
    let peer = consumer.remote_provider(&connection.cluster_id);
    let stop = consumer.context.stop.child_token();
    let _ends_watches = stop.clone().drop_guard();
    let remote = Arc::new(watches::remote(&consumer, &peer, connection.clone(), &stop));
    peer.set_remote(remote.clone());
    let mut health = connection.health.clone();
    let mut is_listed = false;
    let listed = async {
        remote.synced().await
            && consumer.offloadings.wait_until_synced().await
            && consumer.nodes.wait_until_synced().await
            && consumer.virtual_nodes.wait_until_synced().await
            && consumer.networks.synced().await
            && consumer.remote_pods.synced().await
    };
    tokio::pin!(listed);
    loop {
        // First: what becomes due in between is seen by those who are told.
        let next_outage = peer.next_outage();
        triggers::enqueue_triggers(&consumer, &peer, triggers::connection_changed());
        tokio::select! {
            biased;
            () = connection.ended.cancelled() => break,
            () = stop.cancelled() => break,
            listed = &mut listed, if !is_listed => {
                is_listed = true;
                if !listed { break }
            }
            changed = health.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(next_outage.unwrap_or(Duration::MAX)), if next_outage.is_some() => {}
        }
    }
    if peer.clear_remote(&remote) {
        triggers::enqueue_triggers(&consumer, &peer, triggers::connection_changed());
    }
}
