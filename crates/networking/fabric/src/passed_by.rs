//! On a broker's gateways: keeps connections alive whose packets took the direct path between their
//! ends for a while.
//!
//! When such packets come back to the broker, its kernel has not seen the bytes before them, and
//! would not translate them. This task tells the kernel to accept gaps in those connections.

use std::time::Duration;

use liqo_datapath::node::allow_gaps;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::decide::AppliedState;

/// A new connection keeps a gateway strict for at most this time. Packets that the gateway refuses
/// meanwhile are sent again.
const PERIOD: Duration = Duration::from_secs(3);

/// Allows gaps until it is asked to stop.
pub async fn keep_gaps_allowed(applied: watch::Receiver<AppliedState>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let pairs = applied
            .borrow()
            .as_ref()
            .map(|applied| applied.passed_by.clone())
            .unwrap_or_default();
        if pairs.is_empty() {
            continue;
        }
        match allow_gaps(pairs).await {
            Ok(0) => {}
            Ok(connections) => tracing::debug!(connections, "connections may have gaps now"),
            Err(error) => tracing::warn!(%error, "cannot allow gaps in connections, trying again"),
        }
    }
}
