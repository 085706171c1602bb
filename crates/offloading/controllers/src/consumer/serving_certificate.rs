//! The kubelet API of one virtual node: its port, its certificate, and how it is served.

use std::{sync::Arc, time::Duration};

use liqo_controller_runtime::{Context, Key, network::Listener, queue::error_chain};
use tokio_util::sync::CancellationToken;

use super::state::ConsumerState;
use super::triggers;
use crate::{
    https_listener::ListenerTls,
    kubelet::serving::{CertificateState, NodeIdentity, keep_signed, self_signed},
};

/// Delay before a port that is taken is tried again.
const LISTEN_RETRY: Duration = Duration::from_secs(5);

/// Serves the kubelet API of the Node of this `VirtualNode` until `stop`.
pub async fn serve_kubelet_api(
    consumer: Arc<ConsumerState>,
    key: Key,
    node: String,
    port: u16,
    stop: CancellationToken,
) {
    let address = consumer.context.pod_ip;
    let identity = NodeIdentity {
        node: node.clone(),
        address,
    };
    let certificate = match self_signed(&identity) {
        Ok(certificate) => Arc::new(certificate),
        Err(error) => {
            return record_serving_state(
                &consumer,
                &key,
                CertificateState::SelfSigned(error_chain(&error)),
            );
        }
    };
    let Some(listener) = listen_for_node(&consumer.context, &node, port, &stop).await else {
        return;
    };
    let tls = ListenerTls {
        certificate: certificate.clone(),
        clients: consumer.client_authority.clone(),
    };
    let signing = keep_signed(
        consumer.context.clone(),
        identity,
        certificate,
        |serving| record_serving_state(&consumer, &key, serving),
        stop.clone(),
    );
    tokio::join!(
        consumer
            .kubelet
            .clone()
            .serve_node(&node, listener, tls, stop),
        signing
    );
}

/// Listens on every address of the family that the Node shows, so that forwarded connections are
/// answered, too.
async fn listen_for_node(
    context: &Context,
    node: &str,
    port: u16,
    stop: &CancellationToken,
) -> Option<Box<dyn Listener>> {
    loop {
        match context.listen(port).await {
            Ok(listener) => return Some(listener),
            Err(error) => {
                tracing::warn!(node, port, %error, "kubelet API cannot listen, trying again");
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(LISTEN_RETRY) => {}
        }
    }
}

fn record_serving_state(consumer: &ConsumerState, key: &Key, serving: CertificateState) {
    if let Some(tasks) = consumer.node_tasks.lock().get_mut(key) {
        tasks.serving = Some(serving);
    }
    consumer
        .queues
        .nodes
        .add(triggers::kubelet_serving_changed(key));
}
