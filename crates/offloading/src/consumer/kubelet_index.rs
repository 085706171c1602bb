//! Which remote pod belongs to a home pod, for the kubelet API.

use std::sync::Weak;

use liqo_api::ShadowPodPhase;
use liqo_kit::Key;

use super::Consumer;
use crate::kubelet::{Index, RemotePod};

/// The pods on our virtual nodes.
pub struct HomePods {
    consumer: Weak<Consumer>,
}

impl HomePods {
    /// Looks into the picture that the controllers share.
    pub fn new(consumer: Weak<Consumer>) -> Self {
        Self { consumer }
    }
}

impl Index for HomePods {
    fn lookup(&self, node: &str, namespace: &str, pod: &str) -> Option<RemotePod> {
        let consumer = self.consumer.upgrade()?;
        let key = Key::new(namespace, pod);
        let bound_here = |virtual_node: &Key| {
            let virtual_node = consumer.virtual_nodes.get(virtual_node);
            virtual_node.and_then(|one| Some(one.status.as_ref()?.node_name.as_deref()? == node)).unwrap_or(false)
        };
        let peers = consumer.all_peers();
        let (peer, home) = peers.iter().find_map(|peer| {
            let home = peer.home_pods().into_iter().find(|home| home.key == key && bound_here(&home.virtual_node));
            home.map(|home| (peer, home))
        })?;
        let remote = peer.remote()?;
        // Before that, a pod of this name over there is somebody else's.
        if !has_remote_pod(remote.shadow(&home.uid)?.phase) {
            return None;
        }
        Some(RemotePod { client: remote.connection.client.clone(), namespace: remote.mapped(namespace)?, name: pod.to_owned() })
    }
}

/// Whether the pod over there is, or was, that of this home pod.
fn has_remote_pod(phase: ShadowPodPhase) -> bool {
    phase == ShadowPodPhase::Created || phase.is_final()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_was_not_made_over_there_has_no_logs_there() {
        assert!(!has_remote_pod(ShadowPodPhase::Pending) && !has_remote_pod(ShadowPodPhase::Refused));
        assert!(has_remote_pod(ShadowPodPhase::Created) && has_remote_pod(ShadowPodPhase::Failed));
    }
}
