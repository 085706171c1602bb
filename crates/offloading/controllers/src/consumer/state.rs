//! The state that the consumer's controllers share: caches of objects, queues, and what this
//! process remembers. Nothing here decides which key of a queue is due; that is what
//! [`triggers`](super::triggers) are for.

mod peer;
mod pod_index;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use liqo_api::reflection::passes_list;
use liqo_api::{
    ClusterId, ForeignCluster, NAMESPACE_OFFLOADING, NamespaceOffloading, PeeringPolicy,
    VirtualNode,
};
use liqo_controller_runtime::{Cache, Context, Key, Queue, watch};
use liqo_metering::VoucherKey;
use liqo_quantity::ResourceList;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::{
    sync::OnceCell,
    time::{Duration, Instant},
};
use tokio_util::sync::DropGuard;

use crate::{
    https_listener::ClientAuthority,
    kubelet::{KubeletApi, serving::CertificateState},
    metering::UsageRecorder,
    networks::NetworksToPeers,
    provider::RemotePods,
    webhook::SelectedNamespaces,
};
use liqo_offloading_rules::budget::{BudgetEvaluation, ClosedByBudget};
use liqo_offloading_rules::namespace::brokered;
use liqo_offloading_rules::namespace::placement;
use liqo_offloading_rules::namespace::placement::CandidateNode;
use liqo_offloading_rules::namespace::unoffloaded::UnoffloadedNamespaces;
use liqo_offloading_rules::node::object::Outage;
use liqo_offloading_rules::pod::admission::PoolOffer;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::remote_events::EventSelection;
use liqo_offloading_rules::pod::unscheduled::UnscheduledPod;
use liqo_offloading_rules::replica::disruption_budget::LocalDisruptionBudget;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::label_selector::LabelMap;
use liqo_offloading_rules::replica::network_policy::NormalizedPolicy;
use liqo_offloading_rules::replica::network_policy_translation;
use liqo_offloading_rules::replica::record::LocalIngress;
use liqo_offloading_rules::replica::record::LocalService;
use liqo_offloading_rules::replica::record::LocalSlice;
use liqo_offloading_rules::replica::record::Reference;
use liqo_offloading_rules::views::NodeObjectView;

pub use peer::{
    EventKey, EventWatch, NewRemoteProvider, RemoteObjects, RemoteProvider, RemoteProviders,
    WatchedEvents,
};

/// A key of the queue of virtual nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKey {
    VirtualNode(Key),
    /// The `VirtualNode` whose Node has this name.
    Node(String),
    /// The condition of the `ForeignCluster` of this provider.
    Link(ClusterId),
}

/// A key of the queue of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceKey {
    /// The `NamespaceMap` at this provider.
    Map(ClusterId),
    AllMaps,
    /// The `NamespaceOffloading` of this namespace.
    Namespace(String),
    AllNamespaces,
    /// The pods of this namespace and what is reflected for them, at every provider.
    Pods(String),
    AllPods,
    /// The pods of all namespaces that have no node.
    AllUnscheduled,
}

/// The queues that exist once, not for each provider.
#[derive(Clone, Default)]
pub struct ConsumerQueues {
    pub nodes: Queue<NodeKey>,
    pub namespaces: Queue<NamespaceKey>,
    /// Pods of offloaded namespaces that have no node.
    pub unscheduled: Queue<Key>,
    /// Namespaces whose pods may have got a node of this cluster although they may run in others
    /// only.
    pub at_home: Queue<String>,
}

/// The state that the consumer's controllers share.
pub struct ConsumerState {
    pub context: Context,
    pub queues: ConsumerQueues,
    pub virtual_nodes: Cache<VirtualNode>,
    pub offloadings: Cache<NamespaceOffloading>,
    /// Offers, among them those to our consumers, whose pods may run on our virtual nodes.
    pub offers: Cache<PoolOffer>,
    /// The Nodes with our label, as JSON.
    pub nodes: Cache<Value>,
    /// The networks to the providers, with their address translation.
    pub networks: NetworksToPeers,
    /// The pods of our consumers here, among which may be pods of ours that a provider runs here.
    pub remote_pods: RemotePods,
    pub foreign_clusters: Cache<ForeignCluster>,
    /// The namespaces whose new pods the webhook sees.
    pub webhook: Cache<SelectedNamespaces>,
    pub node_tasks: Mutex<HashMap<Key, NodeTasks>>,
    /// The caches of each offloaded namespace.
    pub followed: Mutex<BTreeMap<String, FollowedNamespace>>,
    /// Pods and namespaces that policies select; watched from the first policy on.
    pub policy_sources: OnceLock<PolicySources>,
    pub peers: RemoteProviders,
    /// Time of the last replacement of a refused pod, by UID of its owner.
    pub replaced: Mutex<HashMap<String, Instant>>,
    /// First time that this process saw that the strategy of a namespace is Local, and the
    /// generation of its `NamespaceOffloading` then.
    pub local_since: Mutex<HashMap<String, (Option<i64>, Timestamp)>>,
    /// Namespaces whose late pods are deleted.
    pub unoffloaded: Mutex<UnoffloadedNamespaces>,
    /// Names and ports that were chosen for virtual nodes.
    pub chosen: tokio::sync::Mutex<HashMap<Key, ChosenNode>>,
    /// Without their status.
    pub policies: Cache<PeeringPolicy>,
    /// The effects of the budgets; `None` until all of them were judged.
    pub budgets: RwLock<Option<Arc<BudgetEvaluation>>>,
    /// Stores what pods used under contracts, as this cluster counts it.
    pub recorder: Arc<UsageRecorder>,
    /// Authenticates what this cluster writes into shadow pods, to know its pods again.
    pub voucher_key: VoucherKey,
    /// Answers `kubectl logs` and the like.
    pub kubelet: Arc<KubeletApi>,
    /// The authority that signs the certificates of its callers.
    pub client_authority: watch::Receiver<ClientAuthority>,
    /// The version of Kubernetes that virtual nodes show.
    pub version: OnceCell<String>,
}

/// Name and port of the Node of the `VirtualNode` with this UID.
pub struct ChosenNode {
    pub uid: String,
    pub name: String,
    pub port: u16,
}

/// The tasks of a virtual node, and their state, as long as it exists.
pub struct NodeTasks {
    pub pods: Cache<LocalPod>,
    /// The certificate of its kubelet API, as far as it is known.
    pub serving: Option<CertificateState>,
    /// The outage of the peer at the last reconciliation.
    pub outage: Outage,
    /// The charges for its pods beyond their requests, as its Node shows them, and since when.
    pub surcharge: Option<(ResourceList, Instant)>,
    /// Begin of its drain.
    pub draining: Option<Instant>,
    /// UIDs of pods with an event about that.
    pub told_removal: HashSet<String>,
    /// Evictions that disruption budgets did not allow yet.
    pub delayed_evictions: DelayedEvictions,
    /// Ends the watch, the lease and the kubelet API.
    pub _stop: DropGuard,
}

/// Evictions that were not allowed, by the UID of the pod.
pub type DelayedEvictions = HashMap<String, EvictionBackoff>;

/// Next eviction request, and the last delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionBackoff {
    pub until: Instant,
    pub last: Duration,
}

/// The caches of one offloaded namespace, and the end of their watches.
pub struct FollowedNamespace {
    pub objects: TravellingObjects,
    pub unscheduled: Cache<UnscheduledPod>,
    /// Changes of these are noticed; their content is read when it is needed.
    pub _fingerprints: [Cache<u64>; 2],
    pub _stop: DropGuard,
}

/// The objects of one offloaded namespace that travel with it.
#[derive(Clone)]
pub struct TravellingObjects {
    pub services: Cache<LocalService>,
    pub slices: Cache<LocalSlice>,
    pub ingresses: Cache<LocalIngress>,
    pub policies: Cache<NormalizedPolicy>,
    pub budgets: Cache<LocalDisruptionBudget>,
}

/// The pods and namespaces of this whole cluster, which policies select from.
pub struct PolicySources {
    /// Labels by the name of the namespace.
    pub namespaces: Cache<LabelMap>,
    pub pods: Cache<network_policy_translation::PolicyPod>,
}

impl PolicySources {
    pub fn is_synced(&self) -> bool {
        self.namespaces.is_synced() && self.pods.is_synced()
    }
}

impl ConsumerState {
    /// The state of this provider; created when it is asked for first.
    pub fn remote_provider(&self, id: &ClusterId) -> Arc<RemoteProvider> {
        self.peers.get_or_create(id, &self.context.stop)
    }

    pub fn nodes_of_provider(&self, id: &ClusterId) -> Vec<(Key, Arc<VirtualNode>)> {
        self.virtual_nodes
            .all()
            .into_iter()
            .filter(|(_, node)| node.spec.cluster_id == *id)
            .collect()
    }

    /// The labels of the Node of this virtual node; none while it does not exist.
    pub fn node_labels(&self, node: &VirtualNode) -> Option<BTreeMap<String, String>> {
        let name = node.status.as_ref()?.node_name.as_deref()?;
        let live = self.nodes.get(&Key::new("", name))?;
        BTreeMap::deserialize(NodeObjectView::of(&live).metadata().labels()?).ok()
    }

    /// The providers that have a virtual node, with their names.
    pub fn providers(&self) -> Vec<(ClusterId, String)> {
        let nodes = self.virtual_nodes.all();
        let mut providers: Vec<_> = nodes
            .iter()
            .map(|(_, node)| (node.spec.cluster_id.clone(), node.spec.cluster_name.clone()))
            .collect();
        providers.sort();
        providers.dedup_by(|one, other| one.0 == other.0);
        providers
    }

    /// The name of a provider, as its virtual nodes have it; its ID if it has none.
    pub fn name_of_provider(&self, id: &ClusterId) -> String {
        let named = self.nodes_of_provider(id).into_iter().next();
        named.map_or_else(
            || id.to_string(),
            |(_, node)| node.spec.cluster_name.clone(),
        )
    }

    /// Whether the pods on all virtual nodes of a provider are known. Until then, a pod's absence
    /// proves nothing.
    pub fn all_pods_known(&self, id: &ClusterId) -> bool {
        let tasks = self.node_tasks.lock();
        self.virtual_nodes.is_synced()
            && self
                .nodes_of_provider(id)
                .iter()
                .filter(|(_, node)| recorded_node(node).is_some())
                .all(|(key, _)| tasks.get(key).is_some_and(|tasks| tasks.pods.is_synced()))
    }

    /// Whether the budgets of policies that apply to this provider were judged, if there are any.
    pub fn policy_budgets_known(&self, id: &ClusterId) -> bool {
        if !self.policies.is_synced() {
            return false;
        }
        let has_evaluated = self
            .budgets
            .read()
            .as_ref()
            .is_some_and(|standing| standing.has_evaluated(id));
        has_evaluated
            || self
                .policies
                .all()
                .iter()
                .all(|(_, policy)| policy.spec.consume.budget.is_none())
    }

    /// Says why a budget lets no new pod of this namespace go to this provider. `Err` while that is
    /// not known.
    pub fn closed_by_budget(
        &self,
        offloading: &NamespaceOffloading,
        namespace: &str,
        id: &ClusterId,
    ) -> Result<Option<ClosedByBudget>, ()> {
        if !self.policy_budgets_known(id) {
            return Err(());
        }
        let budget = offloading.spec.budget.as_ref();
        let Some(standing) = self.budgets.read().clone() else {
            return if budget.is_none() { Ok(None) } else { Err(()) };
        };
        let judged = standing
            .state_of_namespace(namespace)
            .map(|verdict| &verdict.held.budget);
        let is_judged = judged == budget && (budget.is_none() || standing.has_evaluated(id));
        if is_judged {
            Ok(standing.closed_for(namespace, id).cloned())
        } else {
            Err(())
        }
    }

    /// Whether everything is listed that decides where namespaces go.
    pub fn placement_known(&self) -> bool {
        self.offloadings.is_synced()
            && self.virtual_nodes.is_synced()
            && self.nodes.is_synced()
            && self.webhook.is_synced()
    }

    /// The virtual nodes of a provider; nothing while one of them has no Node yet.
    pub fn placement_candidates(&self, id: &ClusterId) -> Option<Vec<CandidateNode>> {
        self.nodes_of_provider(id)
            .iter()
            .map(|(_, node)| {
                Some(CandidateNode {
                    node: node.status.as_ref()?.node_name.clone()?,
                    labels: self.node_labels(node)?,
                })
            })
            .collect()
    }

    /// The providers with their names to which a namespace goes, or may go: those of which not all
    /// virtual nodes have a Node yet are among them.
    pub fn selected_providers(&self, offloading: &NamespaceOffloading) -> Vec<(ClusterId, String)> {
        let mut providers = self.providers();
        providers.retain(|(id, _)| {
            self.placement_candidates(id)
                .is_none_or(|nodes| placement::is_wanted(offloading, &nodes))
        });
        providers
    }

    /// Whether a namespace goes to this provider, by the objects of this cluster; nothing while
    /// that is not known. The map at the provider is no answer: the provider can write it.
    pub fn is_offloaded_to(&self, peer: &RemoteProvider, namespace: &str) -> Option<bool> {
        if !self.placement_known() {
            return None;
        }
        let Some(offloading) = self
            .offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
        else {
            return Some(false);
        };
        let stays = offloading.metadata.deletion_timestamp.is_none();
        if stays && placement::is_wanted(&offloading, &self.placement_candidates(&peer.id)?) {
            return Some(true);
        }
        Some(
            peer.pods()
                .iter()
                .any(|pod| pod.key.namespace == namespace && peer.may_run(pod)),
        )
    }

    /// Whether the namespace is offloaded, to whichever provider. It still is while it is being
    /// unoffloaded: its pods still read what they name.
    pub fn is_offloaded(&self, namespace: &str) -> bool {
        self.offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
            .is_some()
    }

    /// Whether the namespace is that of one of our consumers, whose pods run at a provider of ours.
    pub fn is_brokered(&self, namespace: &str) -> bool {
        self.offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
            .is_some_and(|offloading| brokered::is_brokered(&offloading))
    }

    /// Selects the events about the remote pods of this namespace that come back.
    pub fn event_selection(&self, namespace: &str) -> EventSelection {
        EventSelection::of_namespace(
            self.offloadings
                .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
                .as_deref(),
        )
    }

    /// Whether providers get tokens of the `ServiceAccount`s of this namespace.
    pub fn gives_tokens(&self, namespace: &str) -> bool {
        self.offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING))
            .is_some_and(|offloading| offloading.spec.api_server)
    }

    /// Whether the reflection list of the namespace lets an object travel.
    pub fn is_on_list(&self, namespace: &str, is_allowed: bool) -> bool {
        let offloading = self
            .offloadings
            .get(&Key::new(namespace, NAMESPACE_OFFLOADING));
        passes_list(
            offloading
                .map(|offloading| offloading.spec.reflection)
                .unwrap_or_default(),
            is_allowed,
        )
    }

    /// The caches of a namespace that is followed.
    pub fn local_objects(&self, namespace: &str) -> Option<TravellingObjects> {
        self.followed
            .lock()
            .get(namespace)
            .map(|followed| followed.objects.clone())
    }

    /// The caches of every followed namespace, or of this one.
    pub fn local_objects_in(&self, namespace: Option<&str>) -> Vec<TravellingObjects> {
        let followed = self.followed.lock();
        let concerned = followed
            .iter()
            .filter(|(name, _)| namespace.is_none_or(|namespace| namespace == *name));
        concerned
            .map(|(_, followed)| followed.objects.clone())
            .collect()
    }

    /// A pod of a followed namespace that has no node.
    pub fn unscheduled_pod(&self, key: &Key) -> Option<Arc<UnscheduledPod>> {
        self.followed
            .lock()
            .get(&key.namespace)?
            .unscheduled
            .get(key)
    }

    /// Stops the watches of a namespace.
    pub fn unfollow_namespace(&self, namespace: &str) {
        self.followed.lock().remove(namespace);
    }

    /// The policies of a namespace that travel; nothing while not all of them are known.
    pub fn network_policies(&self, namespace: &str) -> Option<Cache<NormalizedPolicy>> {
        self.local_objects(namespace)
            .map(|objects| objects.policies)
            .filter(Cache::is_synced)
    }

    /// The disruption budgets of a namespace, as far as they are known.
    pub fn disruption_budgets(&self, namespace: &str) -> Vec<(Key, Arc<LocalDisruptionBudget>)> {
        self.local_objects(namespace)
            .map(|objects| objects.budgets.all())
            .unwrap_or_default()
    }

    /// Whether this is a disruption budget of this cluster.
    pub fn has_budget(&self, reference: &Reference) -> bool {
        reference.kind == ReplicaKind::PodDisruptionBudget
            && self
                .local_objects(&reference.namespace)
                .is_some_and(|objects| objects.budgets.get(&reference.key()).is_some())
    }

    pub fn ingress(&self, key: &Key) -> Option<Arc<LocalIngress>> {
        self.local_objects(&key.namespace)?.ingresses.get(key)
    }

    /// Whether an Ingress that travels to this provider, and that the provider accepted, names this
    /// Secret. Until then the provider needs none of its Secrets. Nothing while not everything is
    /// known that decides on it.
    pub fn is_named_by_ingress(
        &self,
        peer: &RemoteProvider,
        remote: &RemoteObjects,
        reference: &Reference,
    ) -> Option<bool> {
        // The Ingresses of our consumers go no further, and so do their keys.
        if reference.kind != ReplicaKind::Secret || self.is_brokered(&reference.namespace) {
            return Some(false);
        }
        // A namespace that is not followed is not offloaded.
        let Some(objects) = self.local_objects(&reference.namespace) else {
            return Some(false);
        };
        if !objects.ingresses.is_synced() {
            return None;
        }
        let is_named = objects.ingresses.all().iter().any(|(key, ingress)| {
            ingress.secrets.contains(&reference.name)
                && self.is_on_list(&reference.namespace, ingress.is_allowed)
                && is_ingress_accepted(remote, key)
        });
        if is_named {
            self.is_offloaded_to(peer, &reference.namespace)
        } else {
            Some(false)
        }
    }
}

/// Whether the provider shows that it accepted an Ingress. It writes both the record and its
/// status, so these alone give it no key.
fn is_ingress_accepted(remote: &RemoteObjects, ingress: &Key) -> bool {
    remote
        .record(&Reference::new(ReplicaKind::Ingress, ingress))
        .is_some_and(|record| record.exposure.is_some())
}

/// The Node that a virtual node has, or will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedNode {
    pub name: String,
    /// The port of its kubelet API.
    pub port: u16,
}

/// Returns name and port of a virtual node's Node, once they are recorded.
pub fn recorded_node(node: &VirtualNode) -> Option<RecordedNode> {
    let status = node.status.as_ref()?;
    Some(RecordedNode {
        name: status.node_name.clone()?,
        port: status.kubelet_port?,
    })
}
