//! The consumer's side: pods of this cluster that run in another one.
//!
//! ```text
//!   watches ─▶ state (caches) ─▶ triggers: which keys are due ─▶ queues ─▶ controllers: read state, ask rules, write:
//!   virtual_nodes     VirtualNode ──▶ Node, Lease, kubelet API; evictions and drain
//!   namespaces        NamespaceOffloading ──▶ NamespaceMap at each provider, status here
//!   pods              pods on virtual nodes ──▶ ShadowPod at the provider, status here   (the hot path)
//!   records           objects that travel with pods ──▶ ReflectedObject or Secret at the provider
//!   unscheduled_pods  pods without a node ──▶ what the webhook did not add
//!   savings, notices  pods that cost too much, or that their provider will end ──▶ evictions
//!   budgets           usage and prices ──▶ which providers get no new pods; the other controllers read it
//!   remote_events     events of remote pods ──▶ events here;   connections: the connection to one provider
//! ```
//! `state` has caches of this cluster and, while a provider is connected, of its tenant namespace.
//! Read `pods` first.

mod controllers;
mod events;
mod evictions;
mod kubelet_index;
mod metered_pods;
mod node_objects;
mod node_tasks;
mod records;
mod serving_certificate;
mod state;
mod triggers;
mod watches;

use std::sync::Arc;

use liqo_controller_runtime::Context;
use liqo_metering::VoucherKey;
use tokio::{sync::mpsc, task::JoinSet};

use controllers::{
    budgets, connections, namespaces, notices, pods, savings, unscheduled_pods, virtual_nodes,
};
use state::{ConsumerState, NewRemoteProvider};

use crate::provider::RemotePods;

/// Field manager of server-side apply.
pub const FIELD_MANAGER: &str = liqo_api::conditions::owners::OFFLOADING.field_manager;

/// Runs the consumer's controllers until the context stops.
/// `remote_pods` are those of our own consumers.
pub async fn run_consumer(context: Context, voucher_key: VoucherKey, remote_pods: RemotePods) {
    let (consumer, new_peers) = watches::start_consumer(context, voucher_key, remote_pods);
    let mut tasks = JoinSet::new();
    tasks.spawn(virtual_nodes::run_controller(consumer.clone()));
    tasks.spawn(namespaces::run_controller(consumer.clone()));
    tasks.spawn(unscheduled_pods::run_controller(consumer.clone()));
    tasks.spawn(savings::run_controller(consumer.clone()));
    tasks.spawn(notices::run_controller(consumer.clone()));
    tasks.spawn(budgets::run_controller(consumer.clone()));
    tasks.spawn(run_peers(consumer.clone(), new_peers));
    tasks.spawn(
        consumer
            .recorder
            .clone()
            .run(Arc::new(metered_pods::ConsumerMetering(consumer.clone()))),
    );
    let kubelet = consumer.kubelet.clone();
    tasks.spawn(async move {
        let (stop, peers) = (
            consumer.context.stop.clone(),
            consumer.context.peers.clone(),
        );
        peers
            .for_each(stop, move |connection| {
                connections::follow_connection(consumer.clone(), connection)
            })
            .await;
    });
    // Each of them ends with the context only.
    tasks.join_all().await;
    kubelet.wait_until_closed().await;
}

/// Runs the controllers of each provider that is added.
async fn run_peers(
    consumer: Arc<ConsumerState>,
    mut new_peers: mpsc::UnboundedReceiver<NewRemoteProvider>,
) {
    loop {
        let new = tokio::select! {
            biased;
            () = consumer.context.stop.cancelled() => return,
            new = new_peers.recv() => new,
        };
        let Some((peer, stop)) = new else { return };
        tokio::spawn(pods::run_controller(
            consumer.clone(),
            peer.clone(),
            stop.clone(),
        ));
        tokio::spawn(controllers::records::run_controller(
            consumer.clone(),
            peer.clone(),
            stop.clone(),
        ));
        tokio::spawn(controllers::remote_events::run_controller(
            consumer.clone(),
            peer,
            stop,
        ));
    }
}
