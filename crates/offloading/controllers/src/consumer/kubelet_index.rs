//! Finds the remote pod of a local pod, for the kubelet API.

use std::sync::Weak;

use liqo_api::Key;
use liqo_api::ShadowPodPhase;

use super::state::Consumer;
use crate::kubelet::{Index, RemotePod};

/// The pods on our virtual nodes.
pub struct LocalPods {
    consumer: Weak<Consumer>,
}

impl LocalPods {
    pub fn new(consumer: Weak<Consumer>) -> Self {
        Self { consumer }
    }
}

impl Index for LocalPods {
    fn lookup(&self, node: &str, namespace: &str, pod: &str) -> Option<RemotePod> {
        let consumer = self.consumer.upgrade()?;
        let key = Key::new(namespace, pod);
        let bound_here = |virtual_node: &Key| {
            let virtual_node = consumer.virtual_nodes.get(virtual_node);
            virtual_node.and_then(|one| Some(one.status.as_ref()?.node_name.as_deref()? == node)).unwrap_or(false)
        };
        let peers = consumer.peers.all();
        let (peer, local) = peers.iter().find_map(|peer| {
            let local = peer.pods().into_iter().find(|local| local.key == key && bound_here(&local.virtual_node));
            local.map(|local| (peer, local))
        })?;
        let remote = peer.remote()?;
        // Until then, a pod of this name at the provider is somebody else's.
        if !has_remote_pod(remote.shadow(&local.uid)?.phase) {
            return None;
        }
        Some(RemotePod { client: remote.connection.client.clone(), namespace: remote.mapped(namespace)?, name: pod.to_owned() })
    }
}

/// Whether the provider created the remote pod.
fn has_remote_pod(phase: ShadowPodPhase) -> bool {
    phase == ShadowPodPhase::Created || phase.is_final()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_the_provider_did_not_create_has_no_logs_there() {
        assert!(!has_remote_pod(ShadowPodPhase::Pending) && !has_remote_pod(ShadowPodPhase::Refused));
        assert!(has_remote_pod(ShadowPodPhase::Created) && has_remote_pod(ShadowPodPhase::Failed));
    }
}
