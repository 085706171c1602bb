//! Finds the remote pod of a local pod, for the kubelet API.

use std::sync::{Arc, Weak};

use liqo_api::{Key, ShadowPodPhase, labels};
use liqo_offloading_rules::pod::ephemeral;
use liqo_offloading_rules::pod::local_state::LocalPod;

use super::state::{ConsumerState, RemoteProvider};
use crate::kubelet::{LocalPodRef, RemotePodIndex, RemotePodTarget};

/// The pods on our virtual nodes.
pub struct ConsumerPodIndex {
    consumer: Weak<ConsumerState>,
}

impl ConsumerPodIndex {
    pub fn new(consumer: Weak<ConsumerState>) -> Self {
        Self { consumer }
    }

    /// A local pod on this node, with its provider.
    fn local_pod(
        &self,
        node: &str,
        namespace: &str,
        pod: &str,
    ) -> Option<(Arc<RemoteProvider>, Arc<LocalPod>)> {
        let consumer = self.consumer.upgrade()?;
        let key = Key::new(namespace, pod);
        consumer.peers.all().into_iter().find_map(|peer| {
            let local = peer
                .pods()
                .into_iter()
                .find(|local| local.key == key && is_node(&consumer, &local.virtual_node, node))?;
            Some((peer, local))
        })
    }
}

impl RemotePodIndex for ConsumerPodIndex {
    fn find_remote_pod(&self, node: &str, namespace: &str, pod: &str) -> Option<RemotePodTarget> {
        let (peer, local) = self.local_pod(node, namespace, pod)?;
        remote_pod(&peer, &local)
    }

    fn container_refusal(
        &self,
        node: &str,
        (namespace, pod): (&str, &str),
        container: &str,
    ) -> Option<String> {
        let (_, local) = self.local_pod(node, namespace, pod)?;
        ephemeral::container_refusal(&local.to_json(), container)
    }

    fn pods(&self, node: &str) -> Vec<(LocalPodRef, RemotePodTarget)> {
        let Some(consumer) = self.consumer.upgrade() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for peer in consumer.peers.all() {
            let here = peer
                .pods()
                .into_iter()
                .filter(|local| is_node(&consumer, &local.virtual_node, node));
            found.extend(here.filter_map(|local| {
                let Key { namespace, name } = local.key.clone();
                Some((
                    LocalPodRef {
                        namespace,
                        name,
                        uid: local.uid.clone(),
                    },
                    remote_pod(&peer, &local)?,
                ))
            }));
        }
        found
    }
}

/// Whether this is the node of a `VirtualNode`.
fn is_node(consumer: &ConsumerState, virtual_node: &Key, node: &str) -> bool {
    let virtual_node = consumer.virtual_nodes.get(virtual_node);
    virtual_node
        .and_then(|one| Some(one.status.as_ref()?.node_name.as_deref()? == node))
        .unwrap_or(false)
}

fn remote_pod(peer: &RemoteProvider, local: &LocalPod) -> Option<RemotePodTarget> {
    let remote = peer.remote()?;
    // Until then, a pod of this name at the provider is somebody else's.
    if !has_remote_pod(*remote.shadow_pod(&local.uid)?.phase.unverified()) {
        return None;
    }
    let namespace = remote.mapped_namespace(&local.key.namespace)?;
    let is_customers = local.labels.contains_key(labels::CONSUMER_ID);
    Some(RemotePodTarget {
        client: remote.connection.client.clone(),
        namespace,
        name: local.key.name.clone(),
        is_customers,
    })
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
        assert!(
            !has_remote_pod(ShadowPodPhase::Pending) && !has_remote_pod(ShadowPodPhase::Refused)
        );
        assert!(has_remote_pod(ShadowPodPhase::Created) && has_remote_pod(ShadowPodPhase::Failed));
    }
}
