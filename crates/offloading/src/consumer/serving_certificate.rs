//! The kubelet API of one virtual node: its port, its certificate, and what is told of both.

use std::{net::IpAddr, sync::Arc, time::Duration};

use liqo_kit::{Key, context::every_address, queue::error_chain};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Consumer, locked, virtual_nodes::Work};
use crate::{
    kubelet::serving::{Identity, Serving, keep_signed, self_signed},
    server::Tls,
};

/// How long to wait before a port that is taken is tried again.
const BETWEEN_TRIES: Duration = Duration::from_secs(5);

/// Serves the kubelet API of the Node of this `VirtualNode` until `stop`.
pub async fn serve(consumer: Arc<Consumer>, key: Key, node: String, port: u16, stop: CancellationToken) {
    let Ok(address) = consumer.context.pod_ip.parse::<IpAddr>() else {
        let reason = format!("the manager's own address {:?} is no IP address; is --pod-ip set?", consumer.context.pod_ip);
        return tell(&consumer, &key, Serving::SelfSigned(reason));
    };
    let identity = Identity { node: node.clone(), address };
    let certificate = match self_signed(&identity) {
        Ok(certificate) => Arc::new(certificate),
        Err(error) => return tell(&consumer, &key, Serving::SelfSigned(error_chain(&error))),
    };
    let Some(listener) = listen(&node, address, port, &stop).await else { return };
    let tls = Tls { certificate: certificate.clone(), clients: consumer.client_authority.clone() };
    let told = |serving| tell(&consumer, &key, serving);
    let signing = keep_signed(consumer.context.client.clone(), identity, certificate, told, stop.clone());
    tokio::join!(consumer.kubelet.clone().serve(&node, listener, tls, stop), signing);
}

/// Every address of the family that the Node shows, so that one which is forwarded to us is answered, too.
async fn listen(node: &str, address: IpAddr, port: u16, stop: &CancellationToken) -> Option<TcpListener> {
    loop {
        match TcpListener::bind(every_address(address, port)).await {
            Ok(listener) => return Some(listener),
            Err(error) => tracing::warn!(node, port, %error, "kubelet API cannot listen, trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(BETWEEN_TRIES) => {}
        }
    }
}

fn tell(consumer: &Consumer, key: &Key, serving: Serving) {
    if let Some(tasks) = locked(&consumer.node_tasks).get_mut(key) {
        tasks.serving = Some(serving);
    }
    consumer.node_queue.add(Work::Node(key.clone()));
}
