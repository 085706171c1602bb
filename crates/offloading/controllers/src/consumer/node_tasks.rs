//! The tasks that run for each virtual node as long as it exists: the watch of its pods, its lease
//! and its kubelet API.

use std::collections::HashSet;
use std::sync::Arc;

use liqo_api::VirtualNode;
use liqo_controller_runtime::Key;

use super::node_objects;
use super::serving_certificate;
use super::state::{ConsumerState, DelayedEvictions, NodeTasks};
use super::triggers;
use super::watches;
use liqo_offloading_rules::node::object::Outage;

/// Starts the tasks of a virtual node, unless they run already.
pub fn start(consumer: &Arc<ConsumerState>, key: &Key, node: &VirtualNode, name: &str, port: u16) {
    let mut tasks = consumer.node_tasks.lock();
    if tasks.contains_key(key) {
        return;
    }
    let stop = consumer.context.stop.child_token();
    let peer = consumer.remote_provider(&node.spec.cluster_id);
    // An earlier watch may have reported pods while it was being stopped. Those that still exist
    // are reported again.
    peer.forget_pods_on(key);
    let pods = watches::pods(consumer, key, peer.clone(), name, stop.clone());
    tokio::spawn(node_objects::renew_lease(
        consumer.context.clone(),
        name.to_owned(),
        stop.clone(),
    ));
    tokio::spawn(serving_certificate::serve_kubelet_api(
        consumer.clone(),
        key.clone(),
        name.to_owned(),
        port,
        stop.clone(),
    ));
    let listed = pods.clone();
    let started = NodeTasks {
        pods,
        serving: None,
        outage: Outage::None,
        surcharge: None,
        draining: None,
        told_removal: HashSet::new(),
        delayed_evictions: DelayedEvictions::new(),
        _stop: stop.drop_guard(),
    };
    tasks.insert(key.clone(), started);
    let consumer = consumer.clone();
    tokio::spawn(async move {
        if listed.wait_until_synced().await {
            triggers::enqueue_triggers(&consumer, &peer, triggers::pods_listed());
            // Those that were forgotten above and not listed again are gone.
            peer.gone_pods()
                .into_iter()
                .for_each(|uid| peer.pod_queue.add(uid));
        }
    });
}

/// Stops the tasks of a virtual node, and forgets its pods.
pub fn stop(consumer: &ConsumerState, key: &Key) {
    let Some(tasks) = consumer.node_tasks.lock().remove(key) else {
        return;
    };
    let pods = tasks.pods.all();
    // This stops the watch, so it reports nothing after this.
    drop(tasks);
    for (_, pod) in pods {
        for peer in consumer.peers.all() {
            if peer
                .pod(&pod.uid)
                .is_some_and(|known| known.virtual_node == *key)
            {
                peer.pod_changed(Some(&pod), None);
                triggers::enqueue_triggers(
                    consumer,
                    &peer,
                    triggers::local_pod_changed(Some(&pod), None),
                );
                let budgets = triggers::budget_pod_changed(Some(&pod), None, |namespace| {
                    consumer.disruption_budgets(namespace)
                });
                triggers::enqueue_everywhere(consumer, &budgets);
            }
        }
    }
}
