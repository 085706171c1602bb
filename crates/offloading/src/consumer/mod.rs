//! The consumer's side: pods of this cluster that run elsewhere.
//!
//! ```text
//!   VirtualNode ----------> virtual_nodes: Node, Lease, kubelet API; drain when it goes,
//!                           withdrawal when its provider gives notice that it will
//!   NamespaceOffloading --> namespaces:    NamespaceMap at each provider, status at home
//!   pods of the nodes ----> home_pods:     ShadowPod at the provider, status back home     (the hot path)
//!   what those name ------> reflection:    ReflectedObject or Secret at the provider
//!   Service, EndpointSlice -> services:    ReflectedObject, with addresses as the provider sees them
//!   NetworkPolicy --------> network_policies: ReflectedObject, with peers as the provider knows them
//! ```
//!
//! All of them share one picture, `Consumer`: what stands here, and for each provider a `Peer` with the pods on its
//! virtual nodes and, while there is a connection, what stands in our tenant namespace over there.

mod api_server;
mod drain;
mod home_pods;
mod kubelet_index;
mod namespace_decide;
mod namespaces;
mod network_policies;
mod node_decide;
mod node_objects;
mod peer;
pub mod pod_decide;
pub mod reduced;
mod reflected;
mod reflection;
mod selector;
mod services;
mod serving_certificate;
mod virtual_nodes;
mod withdrawal;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DynamicObject, runtime::watcher};
use liqo_api::{ClusterId, ForeignCluster, NAMESPACE_OFFLOADING, NamespaceOffloading, VirtualNode, labels};
use liqo_kit::{Cache, Context, Key, Queue, cache::whole};
use serde_json::Value;
use tokio::{
    sync::{OnceCell, watch},
    task::JoinSet,
    time::Instant,
};

use crate::{
    kubelet::{KubeletApi, client_ca},
    networks::{Network, Networks},
    server::ClientAuthority,
    webhook::{self, Selected},
};
use namespaces::Work;
use peer::{Peer, Peers};
use virtual_nodes::NodeTasks;

/// Server-side apply and events of this slice.
pub const FIELD_MANAGER: &str = "liqo-offloading";

/// Runs the consumer's controllers until the context stops.
pub async fn run(context: Context) {
    let consumer = Consumer::start(context);
    let mut tasks = JoinSet::new();
    tasks.spawn(virtual_nodes::run(consumer.clone()));
    tasks.spawn(namespaces::run(consumer.clone()));
    let following = consumer.clone();
    tasks.spawn(async move {
        let stop = following.context.stop.clone();
        let peers = following.context.peers.clone();
        peers.for_each(stop, move |connection| peer::follow(following.clone(), connection)).await;
    });
    // Each of them ends with the context only.
    tasks.join_all().await;
}

/// What the consumer's controllers share.
struct Consumer {
    context: Context,
    /// Every `VirtualNode`.
    virtual_nodes: Cache<VirtualNode>,
    /// Every `NamespaceOffloading`.
    offloadings: Cache<NamespaceOffloading>,
    /// The Nodes that bear our label, as JSON.
    nodes: Cache<Value>,
    /// How providers and we see each other's addresses.
    networks: Networks,
    /// Every `ForeignCluster`.
    foreign_clusters: Cache<ForeignCluster>,
    /// The namespaces whose new pods the webhook sees.
    webhook: Cache<Selected>,
    /// Virtual nodes to look at.
    node_queue: Queue<virtual_nodes::Work>,
    /// Namespaces and maps to look at.
    namespace_queue: Queue<Work>,
    /// What runs for each virtual node.
    node_tasks: Mutex<HashMap<Key, NodeTasks>>,
    /// What is followed in each offloaded namespace.
    home_objects: Mutex<HashMap<String, reflection::HomeObjects>>,
    /// What policies select from; followed when there is the first one.
    surroundings: OnceLock<network_policies::Surroundings>,
    /// The providers that there is a connection to, or a virtual node of.
    peers: Peers,
    /// When a pod of this owner was last replaced because it was refused.
    replaced: Mutex<HashMap<String, Instant>>,
    /// What was chosen for virtual nodes.
    chosen: tokio::sync::Mutex<HashMap<Key, virtual_nodes::Chosen>>,
    /// Answers `kubectl logs` and the like.
    kubelet: Arc<KubeletApi>,
    /// Whose certificates its callers have.
    client_authority: watch::Receiver<ClientAuthority>,
    /// The version of Kubernetes that virtual nodes show.
    version: OnceCell<String>,
}

impl Consumer {
    fn start(context: Context) -> Arc<Self> {
        let (client, stop) = (context.client.clone(), context.stop.clone());
        let (node_queue, namespace_queue) = (Queue::new(), Queue::new());
        let everything = watcher::Config::default();

        let queues = (node_queue.clone(), namespace_queue.clone());
        let virtual_nodes = Cache::watch(
            Api::all(client.clone()),
            everything.clone(),
            stop.clone(),
            whole,
            move |key, old: Option<&Arc<VirtualNode>>, new: Option<&Arc<VirtualNode>>| {
                queues.0.add(virtual_nodes::Work::Node(key.clone()));
                if let Some(node) = new.or(old) {
                    queues.0.add(virtual_nodes::Work::Link(node.spec.cluster_id.clone()));
                }
                let named = |node: Option<&Arc<VirtualNode>>| node.map(|node| virtual_nodes::recorded(node));
                if named(old) != named(new) {
                    queues.1.add(Work::AllMaps);
                }
            },
        );
        let queues = (node_queue.clone(), namespace_queue.clone());
        let only_ours = watcher::Config::default().labels(&format!("{}={}", labels::TYPE, labels::TYPE_VIRTUAL_NODE));
        let nodes = Cache::watch(
            Api::<DynamicObject>::all_with(client.clone(), &kube::api::ApiResource::erase::<Node>(&())),
            only_ours,
            stop.clone(),
            node_objects::as_json,
            move |key, old, new| {
                queues.0.add(virtual_nodes::Work::NamedNode(key.name.clone()));
                // The namespaces' selectors look at labels only.
                let labels = |node: Option<&Arc<Value>>| node.and_then(|node| node.pointer("/metadata/labels").cloned());
                if labels(old) != labels(new) {
                    queues.1.add(Work::AllMaps);
                    queues.1.add(Work::AllPods);
                }
            },
        );
        let queue = namespace_queue.clone();
        let offloadings =
            Cache::watch(Api::all(client.clone()), everything.clone(), stop.clone(), whole, move |key, old, new| {
                if key.name != NAMESPACE_OFFLOADING {
                    return;
                }
                queue.add(Work::Namespace(key.namespace.clone()));
                // Its status is our own.
                let wish = |one: Option<&Arc<NamespaceOffloading>>| {
                    one.map(|one| (one.spec.clone(), one.metadata.deletion_timestamp.is_some()))
                };
                if wish(old) != wish(new) {
                    queue.add(Work::Pods(key.namespace.clone()));
                    queue.add(Work::AllMaps);
                }
            });
        let queue = namespace_queue.clone();
        let webhook = webhook::follow(&context, move || queue.add(Work::AllNamespaces));
        let queue = node_queue.clone();
        let foreign_clusters =
            Cache::watch(Api::all(client.clone()), everything, stop, whole, move |_, _, new: Option<&Arc<ForeignCluster>>| {
                if let Some(cluster) = new {
                    queue.add(virtual_nodes::Work::Link(cluster.spec.cluster_id.clone()));
                }
            });
        let client_authority = client_ca::follow(client.clone(), context.stop.clone());
        Arc::new_cyclic(|consumer: &Weak<Self>| Self {
            networks: follow_networks(&context, consumer.clone()),
            kubelet: KubeletApi::new(client, Arc::new(kubelet_index::HomePods::new(consumer.clone()))),
            context,
            virtual_nodes,
            offloadings,
            nodes,
            foreign_clusters,
            webhook,
            node_queue,
            namespace_queue,
            node_tasks: Mutex::default(),
            home_objects: Mutex::default(),
            surroundings: OnceLock::new(),
            peers: Peers::default(),
            replaced: Mutex::default(),
            chosen: tokio::sync::Mutex::default(),
            client_authority,
            version: OnceCell::new(),
        })
    }

    /// What is known of this provider. Made, with its queues' workers, when it is asked for first.
    fn peer(self: &Arc<Self>, id: &ClusterId) -> Arc<Peer> {
        self.peers.get_or_make(id, &self.context.stop, |peer, stop| {
            home_pods::start(self.clone(), peer, stop.clone());
            reflection::start(self.clone(), peer, stop);
        })
    }

    /// The version of Kubernetes that virtual nodes show: this cluster's own, so that nobody sees a skew.
    async fn version(&self) -> String {
        let asked = self.version.get_or_try_init(|| async {
            let version = self.context.client.apiserver_version().await?;
            Ok::<_, kube::Error>(version.git_version)
        });
        asked.await.cloned().unwrap_or_else(|_| "v1.34.0".to_owned())
    }

    /// The providers that something is known of.
    fn all_peers(&self) -> Vec<Arc<Peer>> {
        self.peers.all()
    }

    /// The virtual nodes of a provider.
    fn nodes_of(&self, id: &ClusterId) -> Vec<(Key, Arc<VirtualNode>)> {
        self.virtual_nodes.all().into_iter().filter(|(_, node)| node.spec.cluster_id == *id).collect()
    }

    /// The labels of the Node of this virtual node; none while it does not exist.
    fn node_labels(&self, node: &VirtualNode) -> Option<BTreeMap<String, String>> {
        let name = node.status.as_ref()?.node_name.as_deref()?;
        let live = self.nodes.get(&Key::new("", name))?;
        serde_json::from_value(live.pointer("/metadata/labels")?.clone()).ok()
    }
}

/// With a network that comes, changes or goes, all that holds addresses is looked at again; and the tokens, when our API server is
/// opened or closed.
fn follow_networks(context: &Context, consumer: Weak<Consumer>) -> Networks {
    let is_open = |network: Option<&Network>| network.is_some_and(|network| network.api_server);
    Networks::follow(context, move |id, old, new| {
        let consumer = consumer.upgrade();
        if let Some((consumer, peer)) = consumer.and_then(|consumer| Some((consumer.clone(), consumer.peers.get(&id)?))) {
            peer.look_at_all_pods();
            services::look_at(&consumer, &peer, None);
            if is_open(old) != is_open(new) {
                peer.look_at_all_tokens();
            }
        }
    })
}

/// A lock that a panic elsewhere does not spoil: what it guards is replaced, never half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
