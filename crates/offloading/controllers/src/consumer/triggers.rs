//! The one place that says which keys of which queues are due when something changes.
//!
//! ```text
//!   "X changed"  --a pure function for each X-->  triggers  --keys, from what is cached-->  queues
//! ```
//!
//! If a trigger is missing, a key is never reconciled after that change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use liqo_api::{
    BudgetStatus, ClusterId, ForeignCluster, LargestPods, MappedNamespace, NAMESPACE_OFFLOADING,
    NamespaceMap, NamespaceOffloading, NamespaceOffloadingSpec, PodOffloadingStrategy, VirtualNode,
    annotations,
};
use liqo_controller_runtime::{Cache, Key};
use serde_json::{Map, Value};

use super::state::{
    ConsumerQueues, ConsumerState, EventKey, NamespaceKey, NodeKey, RemoteProvider, recorded_node,
};
use crate::networks::NetworkToPeer;
use liqo_offloading_rules::node::priced::PricedNode;
use liqo_offloading_rules::pod::carry::api_server::ApiServerChoice;
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
use liqo_offloading_rules::replica::record::ReflectionRecord;
use liqo_offloading_rules::views::NodeObjectView;

/// A provider may write the status of a record as often as it likes. What follows from it waits
/// this long, and is done once.
const PROBLEM_DELAY: Duration = Duration::from_secs(5);
const EXPOSURE_DELAY: Duration = Duration::from_secs(2);

/// Pods come and go by the dozen: what follows for policies waits this long, and is done once for
/// all of them.
const POLICY_DELAY: Duration = Duration::from_millis(300);

/// The status of a disruption budget follows that of its pods within this time.
const BUDGET_DELAY: Duration = Duration::from_secs(2);

/// The same for what a deleted pod named, and for the namespace of a pod that is gone on both
/// sides.
const DELETED_POD_DELAY: Duration = Duration::from_secs(1);

/// The same for the watch of events in the namespace of a pod that came, ended or went.
const EVENT_WATCH_DELAY: Duration = Duration::from_secs(1);

/// The API server reads within this time which pods the webhook is to see. Then pods that it did
/// not see are looked for.
const WEBHOOK_DELAY: Duration = Duration::from_secs(2);

/// Keys of one provider's queues that are due, and after which delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerTrigger {
    target: ConsumerTarget,
    delay: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ConsumerTarget {
    NodesOfProvider,
    Namespace(NamespaceKey),
    Map,
    Pods(DuePods),
    Records(DueRecords),
    Events(DueEvents),
}

/// Events of the provider about remote pods.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DueEvents {
    /// About the remote pod of this pod, if there is something to say.
    Of(String),
    /// The watch for this namespace.
    Watch(String),
    /// The watches for the namespaces of all pods.
    AllWatches,
}

/// Pods on the virtual nodes of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DuePods {
    One(String),
    /// Also those that are gone here and have a shadow pod there.
    All,
    In(String),
    Naming(Reference),
}

/// Objects that are or should be recorded at a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DueRecords {
    One(Reference),
    /// The same, if a pod or an Ingress at the provider names it.
    IfNamed(Reference),
    /// Everything that is recorded, or that a pod names.
    All,
    /// The Secrets by which pods use the API server of this cluster.
    Tokens,
    /// The objects that travel with their namespace: those of one namespace or of all. Policies
    /// always of all namespaces, because the policies of one may select pods of another.
    Namespaced(Option<String>),
    Policies(Option<String>),
    /// The disruption budgets of one namespace, or of all.
    Budgets(Option<String>),
    /// The Secrets that this Ingress names.
    SecretsOf(Key),
    /// The recorded Secrets of a namespace, except tokens.
    SecretsIn(String),
    /// The Ingresses that name this Secret.
    IngressesNaming(Reference),
}

fn due_now(target: ConsumerTarget) -> ConsumerTrigger {
    ConsumerTrigger {
        target,
        delay: Duration::ZERO,
    }
}

fn pods_due(pods: DuePods) -> ConsumerTrigger {
    due_now(ConsumerTarget::Pods(pods))
}

fn records_due(records: DueRecords) -> ConsumerTrigger {
    due_now(ConsumerTarget::Records(records))
}

fn events_due(events: DueEvents) -> ConsumerTrigger {
    due_now(ConsumerTarget::Events(events))
}

impl ConsumerTrigger {
    fn delayed_by(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

// What is due when something changes.

/// A `VirtualNode` changed.
pub fn virtual_node_changed(
    key: &Key,
    old: Option<&VirtualNode>,
    new: Option<&VirtualNode>,
) -> (Vec<NodeKey>, Vec<NamespaceKey>) {
    let link = new
        .or(old)
        .map(|node| NodeKey::Link(node.spec.cluster_id.clone()));
    let has_other_name = old.map(recorded_node) != new.map(recorded_node);
    let maps = has_other_name.then_some(NamespaceKey::AllMaps);
    (
        [NodeKey::VirtualNode(key.clone())]
            .into_iter()
            .chain(link)
            .collect(),
        maps.into_iter().collect(),
    )
}

/// The Node of a virtual node changed.
pub fn node(
    key: &Key,
    old: Option<&Value>,
    new: Option<&Value>,
) -> (Vec<NodeKey>, Vec<NamespaceKey>) {
    // The selectors of namespaces look at labels only.
    let mut placement = if node_labels(old) == node_labels(new) {
        Vec::new()
    } else {
        vec![NamespaceKey::AllMaps, NamespaceKey::AllPods]
    };
    // A pod that was kept off may have room now.
    let has_changed = largest_pods_annotation(old) != largest_pods_annotation(new);
    let has_grown = has_changed && largest_pods(new).has_grown(&largest_pods(old));
    placement.extend(has_grown.then_some(NamespaceKey::AllUnscheduled));
    (vec![NodeKey::Node(key.name.clone())], placement)
}

fn node_labels(node: Option<&Value>) -> Option<&Map<String, Value>> {
    NodeObjectView::of(node?).metadata().labels()
}

fn largest_pods_annotation(node: Option<&Value>) -> Option<&str> {
    let metadata = NodeObjectView::of(node?).metadata();
    metadata.annotation(annotations::LARGEST_PODS)
}

fn largest_pods(node: Option<&Value>) -> LargestPods {
    node.map(|node| PricedNode::from_json("", node).largest_pods)
        .unwrap_or_default()
}

/// A `NamespaceOffloading` changed.
pub fn offloading_changed(
    key: &Key,
    old: Option<&NamespaceOffloading>,
    new: Option<&NamespaceOffloading>,
) -> Vec<NamespaceKey> {
    if key.name != NAMESPACE_OFFLOADING {
        return Vec::new();
    }
    let mut due = vec![NamespaceKey::Namespace(key.namespace.clone())];
    if old.map(OffloadingIntent::of) != new.map(OffloadingIntent::of) {
        due.extend([
            NamespaceKey::Pods(key.namespace.clone()),
            NamespaceKey::AllMaps,
        ]);
    }
    due
}

/// The parts of a `NamespaceOffloading` that the pods of the namespace depend on.
#[derive(PartialEq)]
struct OffloadingIntent<'a> {
    spec: &'a NamespaceOffloadingSpec,
    is_ending: bool,
    /// Most of the status is our own, but pods that a budget holds wait for what it says.
    budget: Option<&'a BudgetStatus>,
    events: EventSelection,
}

impl<'a> OffloadingIntent<'a> {
    fn of(offloading: &'a NamespaceOffloading) -> Self {
        Self {
            spec: &offloading.spec,
            is_ending: offloading.metadata.deletion_timestamp.is_some(),
            budget: offloading
                .status
                .as_ref()
                .and_then(|status| status.budget.as_ref()),
            events: EventSelection::of_namespace(Some(offloading)),
        }
    }
}

/// The webhook began or ceased to see the new pods of these namespaces, or sees them for another
/// strategy.
pub fn webhook_changed(changed: &BTreeSet<String>) -> Vec<NamespaceKey> {
    changed
        .iter()
        .cloned()
        .map(NamespaceKey::Namespace)
        .collect()
}

/// A `ForeignCluster` changed.
pub fn foreign_cluster_changed(new: Option<&ForeignCluster>) -> Option<NodeKey> {
    new.map(|cluster| NodeKey::Link(cluster.spec.cluster_id.clone()))
}

/// The kubelet API of a virtual node is served in another way.
pub fn kubelet_serving_changed(virtual_node: &Key) -> NodeKey {
    NodeKey::VirtualNode(virtual_node.clone())
}

/// The network to this provider came, changed or went. Whatever holds addresses is due; and the
/// tokens, when our API server is opened or closed.
pub fn network_changed(
    old: Option<&NetworkToPeer>,
    new: Option<&NetworkToPeer>,
) -> Vec<ConsumerTrigger> {
    let was_open = old.is_some_and(|network| network.api_server);
    let is_open = new.is_some_and(|network| network.api_server);
    let tokens = (was_open != is_open).then(|| records_due(DueRecords::Tokens));
    [
        pods_due(DuePods::All),
        records_due(DueRecords::Namespaced(None)),
    ]
    .into_iter()
    .chain(tokens)
    .collect()
}

/// A connection to this provider came, went, fell silent or was listed.
pub fn connection_changed() -> [ConsumerTrigger; 7] {
    [
        pods_due(DuePods::All),
        records_due(DueRecords::All),
        records_due(DueRecords::Namespaced(None)),
        due_now(ConsumerTarget::Map),
        due_now(ConsumerTarget::Namespace(NamespaceKey::AllNamespaces)),
        due_now(ConsumerTarget::NodesOfProvider),
        events_due(DueEvents::AllWatches),
    ]
}

/// The outage of a virtual node's provider became another one.
pub fn outage_changed() -> [ConsumerTrigger; 2] {
    [
        pods_due(DuePods::All),
        due_now(ConsumerTarget::Namespace(NamespaceKey::AllNamespaces)),
    ]
}

/// A shadow pod at this provider changed. It may show the UID of the remote pod, which events are
/// compared with.
pub fn shadow_pod_changed(name: &str) -> [ConsumerTrigger; 2] {
    [
        pods_due(DuePods::One(name.to_owned())),
        events_due(DueEvents::Of(name.to_owned())),
    ]
}

/// A watch showed an event about the remote pod of the pod with this UID.
pub fn remote_event_changed(uid: &str) -> ConsumerTrigger {
    events_due(DueEvents::Of(uid.to_owned()))
}

/// The `NamespaceMap` at this provider changed.
pub fn namespace_map_changed(
    old: Option<&NamespaceMap>,
    new: Option<&NamespaceMap>,
) -> Vec<ConsumerTrigger> {
    let (old, new) = (reported_namespaces(old), reported_namespaces(new));
    let changed: BTreeSet<&String> = old
        .keys()
        .chain(new.keys())
        .filter(|key| old.get(*key) != new.get(*key))
        .collect();
    [due_now(ConsumerTarget::Map)]
        .into_iter()
        .chain(
            changed
                .into_iter()
                .flat_map(|namespace| mapping_changed(namespace)),
        )
        .collect()
}

/// The namespaces in the status of a map.
fn reported_namespaces(map: Option<&NamespaceMap>) -> BTreeMap<String, MappedNamespace> {
    map.and_then(|map| map.status.clone())
        .unwrap_or_default()
        .namespaces
}

/// The provider says something else than before of this namespace.
fn mapping_changed(namespace: &str) -> [ConsumerTrigger; 4] {
    [
        pods_due(DuePods::In(namespace.to_owned())),
        records_due(DueRecords::Namespaced(Some(namespace.to_owned()))),
        due_now(ConsumerTarget::Namespace(NamespaceKey::Namespace(
            namespace.to_owned(),
        ))),
        events_due(DueEvents::Watch(namespace.to_owned())),
    ]
}

/// A record at this provider changed.
pub fn record_changed(
    old: Option<&ReflectionRecord>,
    new: Option<&ReflectionRecord>,
) -> Vec<ConsumerTrigger> {
    let mut due = Vec::new();
    if old
        .zip(new)
        .is_none_or(|(old, new)| new.differs_beyond_problem(old))
    {
        due.extend(
            [old, new]
                .into_iter()
                .flatten()
                .map(|record| records_due(DueRecords::One(record.reference.clone()))),
        );
    }
    let Some(reference) = old.or(new).map(|record| record.reference.clone()) else {
        return due;
    };
    let exposure_before = old.and_then(|record| record.exposure.as_ref());
    let exposure = new.and_then(|record| record.exposure.as_ref());
    if exposure_before != exposure {
        let namespace = reference.namespace.clone();
        let ingress = (reference.kind == ReplicaKind::Ingress).then(|| {
            let key = Key::new(namespace.clone(), reference.name.clone());
            // Also Secrets that no Ingress names any more, or not for this provider.
            [
                records_due(DueRecords::SecretsOf(key)),
                records_due(DueRecords::SecretsIn(namespace.clone())),
            ]
        });
        let namespace = due_now(ConsumerTarget::Namespace(NamespaceKey::Namespace(
            namespace,
        )));
        due.extend(
            [namespace]
                .into_iter()
                .chain(ingress.into_iter().flatten())
                .map(|one| one.delayed_by(EXPOSURE_DELAY)),
        );
    }
    let problem_before = old.and_then(|record| record.problem.as_ref());
    let problem = new.and_then(|record| record.problem.as_ref());
    if problem_before != problem {
        if reference.kind.is_of_namespace() {
            due.push(records_due(DueRecords::One(reference)).delayed_by(PROBLEM_DELAY));
        } else {
            due.push(pods_due(DuePods::Naming(reference.clone())).delayed_by(PROBLEM_DELAY));
            due.push(
                records_due(DueRecords::IngressesNaming(reference)).delayed_by(EXPOSURE_DELAY),
            );
        }
    }
    due
}

/// A pod on a virtual node of this provider changed.
pub fn local_pod_changed(old: Option<&LocalPod>, new: Option<&LocalPod>) -> Vec<ConsumerTrigger> {
    // What a new pod names is recorded before it is sent.
    let gone = old.filter(|old| new.is_none_or(|new| new.uid != old.uid));
    let named = gone
        .into_iter()
        .flat_map(Reference::all_of_pod)
        .map(|one| records_due(DueRecords::One(one)).delayed_by(DELETED_POD_DELAY));
    // An ephemeral container may name more.
    let grown = old
        .zip(new)
        .filter(|(old, new)| old.uid == new.uid && old.refs != new.refs);
    let more = grown.into_iter().flat_map(|(old, new)| {
        Reference::all_of_pod(new)
            .into_iter()
            .filter(|one| !one.is_named_by(old))
    });
    let more = more.map(|one| records_due(DueRecords::One(one)));
    // A pod that is sent needs a token; one that ended, or is annotated so, needs none any more.
    let token = old.zip(new).filter(|(old, new)| {
        old.api_server != new.api_server
            || old.finished != new.finished
            || old.sent_to != new.sent_to
    });
    let token = token.map(|(_, new)| records_due(DueRecords::One(Reference::of_api_server(new))));
    let both = [old, new]
        .into_iter()
        .flatten()
        .map(|pod| pods_due(DuePods::One(pod.uid.clone())));
    let ran = old.is_some_and(|pod| !pod.finished);
    let runs = new.is_some_and(|pod| !pod.finished);
    let changed = old.or(new).filter(|_| ran != runs);
    let watch = changed.map(|pod| {
        events_due(DueEvents::Watch(pod.key.namespace.clone())).delayed_by(EVENT_WATCH_DELAY)
    });
    named
        .chain(more)
        .chain(token)
        .chain(both)
        .chain(watch)
        .collect()
}

/// A pod of an offloaded namespace that has no node changed. One that got a node, or is gone, is
/// due no more.
pub fn unscheduled_pod_changed(key: &Key, new: Option<&UnscheduledPod>) -> Option<Key> {
    new.map(|_| key.clone())
}

/// Whether a pod that is gone from those without a node may have got one of this cluster.
pub fn may_be_at_home(old: Option<&UnscheduledPod>, new: Option<&UnscheduledPod>) -> bool {
    new.is_none() && old.is_some_and(|old| !old.must_leave)
}

/// All pods of a virtual node are listed.
pub fn pods_listed() -> [ConsumerTrigger; 3] {
    [
        records_due(DueRecords::All),
        records_due(DueRecords::Budgets(None)),
        events_due(DueEvents::AllWatches),
    ]
}

/// A pod is gone here, and its shadow pod at the provider too: the last one of a namespace that is
/// no longer wanted there lets the mapping go.
pub fn pod_gone() -> ConsumerTrigger {
    due_now(ConsumerTarget::Map).delayed_by(DELETED_POD_DELAY)
}

/// A `ConfigMap` or Secret of an offloaded namespace changed.
pub fn named_object_changed(kind: ReplicaKind, key: &Key) -> ConsumerTrigger {
    records_due(DueRecords::IfNamed(Reference::new(kind, key)))
}

/// A Service of an offloaded namespace changed; `slices` are all of its namespace.
pub fn service_changed(
    key: &Key,
    old: Option<&LocalService>,
    new: Option<&LocalService>,
    slices: &[(Key, Arc<LocalSlice>)],
) -> Vec<ConsumerTrigger> {
    let with_slices = old.map(|old| old.is_allowed) != new.map(|new| new.is_allowed);
    let slices = slices
        .iter()
        .filter(|(_, slice)| with_slices && slice.service == key.name);
    let slices = slices.map(|(key, _)| object_changed(ReplicaKind::EndpointSlice, key));
    [object_changed(ReplicaKind::Service, key)]
        .into_iter()
        .chain(slices)
        .collect()
}

/// An Ingress of an offloaded namespace changed: it is due, and so are the Secrets that it names or
/// named.
pub fn ingress_changed(
    key: &Key,
    old: Option<&LocalIngress>,
    new: Option<&LocalIngress>,
) -> Vec<ConsumerTrigger> {
    let secrets = [old, new]
        .into_iter()
        .flatten()
        .flat_map(|ingress| secrets_of(&key.namespace, ingress));
    [object_changed(ReplicaKind::Ingress, key)]
        .into_iter()
        .chain(secrets.map(|one| records_due(DueRecords::One(one))))
        .collect()
}

/// An `EndpointSlice`, a `NetworkPolicy` or a disruption budget of an offloaded namespace changed.
pub fn object_changed(kind: ReplicaKind, key: &Key) -> ConsumerTrigger {
    records_due(DueRecords::One(Reference::new(kind, key)))
}

/// The Services, slices and Ingresses of a namespace are listed: records of those that are gone
/// since must go.
pub fn services_listed(namespace: &str) -> ConsumerTrigger {
    records_due(DueRecords::Namespaced(Some(namespace.to_owned())))
}

pub fn policies_listed(namespace: &str) -> ConsumerTrigger {
    records_due(DueRecords::Policies(Some(namespace.to_owned())))
}

/// The disruption budgets of a namespace are listed.
pub fn budgets_listed(namespace: &str) -> ConsumerTrigger {
    records_due(DueRecords::Budgets(Some(namespace.to_owned())))
}

/// A pod on a virtual node changed: the budgets are due that select it, at every provider.
/// `budgets` finds those of a namespace.
pub fn budget_pod_changed(
    old: Option<&LocalPod>,
    new: Option<&LocalPod>,
    budgets: impl FnOnce(&str) -> Vec<(Key, Arc<LocalDisruptionBudget>)>,
) -> Vec<ConsumerTrigger> {
    let Some(pod) = new.or(old) else {
        return Vec::new();
    };
    let budgets = budgets(&pod.key.namespace);
    if budgets.is_empty() {
        return Vec::new();
    }
    if old.map(as_counted) == new.map(as_counted) {
        return Vec::new();
    }
    let due = budgets.iter().filter(|(_, budget)| {
        [old, new]
            .into_iter()
            .flatten()
            .any(|pod| budget.selector.matches(&pod.labels))
    });
    due.map(|(key, _)| {
        object_changed(ReplicaKind::PodDisruptionBudget, key).delayed_by(BUDGET_DELAY)
    })
    .collect()
}

/// The input of the budgets.
fn as_counted(pod: &LocalPod) -> (bool, bool, bool, &LabelMap) {
    (
        pod.is_ready_there,
        pod.finished,
        pod.deletion.is_some(),
        &pod.labels,
    )
}

/// A provider began or ended to drain a node with pods that a budget selects: the budget is due at
/// every provider.
pub fn draining_changed(
    old: Option<&ReflectionRecord>,
    new: Option<&ReflectionRecord>,
) -> Vec<ConsumerTrigger> {
    let drained = old.is_some_and(|record| record.is_draining);
    let drains = new.is_some_and(|record| record.is_draining);
    let changed = new.or(old).filter(|_| drained != drains);
    changed
        .map(|record| records_due(DueRecords::One(record.reference.clone())))
        .into_iter()
        .collect()
}

/// A pod anywhere in this cluster changed: those of the policies are due that select it.
pub fn policy_pod_changed(
    changed: &[&network_policy_translation::PolicyPod],
    labels_of_namespace: impl Fn(&str) -> Option<Arc<LabelMap>>,
    policies: &[(Key, Arc<NormalizedPolicy>)],
) -> Vec<ConsumerTrigger> {
    let concerned = policies.iter().filter(|(key, policy)| {
        changed.iter().any(|pod| {
            network_policy_translation::depends_on_pod(
                policy,
                &key.namespace,
                pod,
                labels_of_namespace(&pod.namespace).as_deref(),
            )
        })
    });
    concerned
        .map(|(key, _)| object_changed(ReplicaKind::NetworkPolicy, key).delayed_by(POLICY_DELAY))
        .collect()
}

/// The labels of a namespace changed, or all pods and namespaces that policies select from are
/// listed.
pub fn policy_sources_changed() -> ConsumerTrigger {
    records_due(DueRecords::Policies(None)).delayed_by(POLICY_DELAY)
}

fn secrets_of<'a>(
    namespace: &'a str,
    ingress: &'a LocalIngress,
) -> impl Iterator<Item = Reference> + use<'a> {
    let named = ingress.secrets.iter();
    named.map(|name| Reference {
        kind: ReplicaKind::Secret,
        namespace: namespace.to_owned(),
        name: name.clone(),
    })
}

// From triggers to keys.

/// Adds what is due to the queues that exist before the rest of the state does.
pub fn enqueue_keys(
    queues: &ConsumerQueues,
    (nodes, namespaces): (Vec<NodeKey>, Vec<NamespaceKey>),
) {
    for key in nodes {
        queues.nodes.add(key);
    }
    for key in namespaces {
        queues.namespaces.add(key);
    }
}

/// Adds what is due at one provider.
pub fn enqueue_triggers(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    triggers: impl IntoIterator<Item = ConsumerTrigger>,
) {
    for ConsumerTrigger { target, delay } in triggers {
        match target {
            ConsumerTarget::NodesOfProvider => {
                for (key, _) in consumer.nodes_of_provider(&peer.id) {
                    consumer
                        .queues
                        .nodes
                        .add_after(NodeKey::VirtualNode(key), delay);
                }
            }
            ConsumerTarget::Namespace(key) => consumer.queues.namespaces.add_after(key, delay),
            ConsumerTarget::Map => consumer
                .queues
                .namespaces
                .add_after(NamespaceKey::Map(peer.id.clone()), delay),
            ConsumerTarget::Pods(pods) => enqueue_pods(peer, &pods, delay),
            ConsumerTarget::Events(events) => enqueue_events(peer, events, delay),
            ConsumerTarget::Records(records) => {
                for reference in references_due(consumer, peer, records) {
                    peer.record_queue.add_after(reference, delay);
                }
            }
        }
    }
}

/// Adds what is due at every provider.
pub fn enqueue_everywhere(consumer: &ConsumerState, triggers: &[ConsumerTrigger]) {
    for peer in consumer.peers.all() {
        enqueue_triggers(consumer, &peer, triggers.iter().cloned());
    }
}

/// The `VirtualNode`s whose Node has this name.
pub fn enqueue_named(consumer: &ConsumerState, node: &str) {
    for (key, virtual_node) in consumer.virtual_nodes.all() {
        if recorded_node(&virtual_node).is_some_and(|recorded| recorded.name == node) {
            consumer.queues.nodes.add(NodeKey::VirtualNode(key));
        }
    }
}

/// The maps of all providers, and the status of all namespaces.
pub fn enqueue_all_maps(consumer: &ConsumerState) {
    enqueue_everywhere(consumer, &[due_now(ConsumerTarget::Map)]);
    consumer.queues.namespaces.add(NamespaceKey::AllNamespaces);
}

pub fn enqueue_all_namespaces(consumer: &ConsumerState) {
    for (key, _) in consumer.offloadings.all() {
        consumer
            .queues
            .namespaces
            .add(NamespaceKey::Namespace(key.namespace));
    }
}

/// Looks soon for pods of a namespace that run here although they may run in other clusters only.
pub fn enqueue_pods_running_here(consumer: &ConsumerState, namespace: &str) {
    let offloading = consumer
        .offloadings
        .get(&Key::new(namespace, NAMESPACE_OFFLOADING));
    if offloading
        .is_some_and(|one| one.spec.pod_offloading_strategy == PodOffloadingStrategy::Remote)
    {
        consumer
            .queues
            .at_home
            .add_after(namespace.to_owned(), WEBHOOK_DELAY);
    }
}

/// The pods of a namespace at every provider, and all that is or should be recorded for them; those
/// that have no node; and those here.
pub fn enqueue_pods_of(consumer: &ConsumerState, namespace: &str) {
    enqueue_pods_running_here(consumer, namespace);
    let unscheduled = consumer
        .followed
        .lock()
        .get(namespace)
        .map(|followed| followed.unscheduled.clone());
    enqueue_unscheduled(consumer, unscheduled);
    let namespaced = records_due(DueRecords::Namespaced(Some(namespace.to_owned())));
    let watch = events_due(DueEvents::Watch(namespace.to_owned()));
    enqueue_everywhere(
        consumer,
        &[
            pods_due(DuePods::In(namespace.to_owned())),
            records_due(DueRecords::All),
            namespaced,
            watch,
        ],
    );
}

pub fn enqueue_all_unscheduled(consumer: &ConsumerState) {
    let all: Vec<Cache<UnscheduledPod>> = consumer
        .followed
        .lock()
        .values()
        .map(|followed| followed.unscheduled.clone())
        .collect();
    enqueue_unscheduled(consumer, all);
}

fn enqueue_unscheduled(
    consumer: &ConsumerState,
    pods: impl IntoIterator<Item = Cache<UnscheduledPod>>,
) {
    for (key, _) in pods.into_iter().flat_map(|pods| pods.all()) {
        consumer.queues.unscheduled.add(key);
    }
}

pub fn enqueue_all_pods(consumer: &ConsumerState) {
    enqueue_everywhere(consumer, &[pods_due(DuePods::All)]);
}

/// The map at one provider, from which a namespace is to go.
pub fn enqueue_map(consumer: &ConsumerState, provider: &ClusterId) {
    consumer
        .queues
        .namespaces
        .add(NamespaceKey::Map(provider.clone()));
}

fn enqueue_pods(peer: &RemoteProvider, pods: &DuePods, delay: Duration) {
    for uid in uids_of_pods(peer, pods) {
        peer.pod_queue.add_after(uid, delay);
    }
}

fn uids_of_pods(peer: &RemoteProvider, pods: &DuePods) -> Vec<String> {
    match pods {
        DuePods::One(uid) => vec![uid.clone()],
        DuePods::All => {
            let remote = peer.remote();
            let shadows = remote.iter().flat_map(|remote| remote.shadows.all());
            let here = peer.pods_and_gone().into_iter().map(|pod| pod.uid.clone());
            here.chain(shadows.map(|(key, _)| key.name)).collect()
        }
        DuePods::In(namespace) => peer
            .pods()
            .iter()
            .filter(|pod| pod.key.namespace == *namespace)
            .map(|pod| pod.uid.clone())
            .collect(),
        DuePods::Naming(reference) => peer
            .pods()
            .iter()
            .filter(|pod| reference.is_named_by(pod))
            .map(|pod| pod.uid.clone())
            .collect(),
    }
}

fn enqueue_events(peer: &RemoteProvider, events: DueEvents, delay: Duration) {
    match events {
        DueEvents::Of(uid) => {
            if peer.journal.lock().has_events(&uid) {
                peer.event_queue.add_after(EventKey::Pod(uid), delay);
            }
        }
        DueEvents::Watch(namespace) => {
            peer.event_queue
                .add_after(EventKey::Watch(namespace), delay);
        }
        DueEvents::AllWatches => {
            let namespaces: BTreeSet<String> = peer
                .pods()
                .iter()
                .map(|pod| pod.key.namespace.clone())
                .collect();
            for namespace in namespaces {
                peer.event_queue
                    .add_after(EventKey::Watch(namespace), delay);
            }
        }
    }
}

fn references_due(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    records: DueRecords,
) -> Vec<Reference> {
    match records {
        DueRecords::One(reference) => vec![reference],
        DueRecords::IfNamed(reference) => {
            let is_named = peer.pods().iter().any(|pod| reference.is_named_by(pod))
                || is_named_by_ingress(consumer, peer, &reference);
            is_named.then_some(reference).into_iter().collect()
        }
        DueRecords::All => {
            let named = peer
                .pods()
                .into_iter()
                .flat_map(|pod| Reference::all_of_pod(&pod))
                .collect::<Vec<_>>();
            named
                .into_iter()
                .chain(recorded_objects(peer))
                .chain(recorded_secrets(peer))
                .collect()
        }
        DueRecords::Tokens => token_references(peer),
        DueRecords::Namespaced(namespace) => {
            let mut all = policy_references(consumer, peer, None);
            all.extend(budget_references(consumer, peer, namespace.as_deref()));
            all.extend(service_references(consumer, peer, namespace.as_deref()));
            all
        }
        DueRecords::Policies(namespace) => policy_references(consumer, peer, namespace.as_deref()),
        DueRecords::Budgets(namespace) => budget_references(consumer, peer, namespace.as_deref()),
        DueRecords::SecretsOf(key) => {
            let ingress = consumer.ingress(&key);
            ingress
                .iter()
                .flat_map(|ingress| secrets_of(&key.namespace, ingress))
                .collect()
        }
        DueRecords::SecretsIn(namespace) => {
            let mut secrets = recorded_secrets(peer);
            secrets.retain(|one| one.namespace == namespace && one.api_server_pod_uid().is_none());
            secrets
        }
        DueRecords::IngressesNaming(secret) => {
            let ingresses = consumer
                .local_objects(&secret.namespace)
                .map(|objects| objects.ingresses.all())
                .unwrap_or_default();
            let naming = ingresses
                .iter()
                .filter(|(_, ingress)| ingress.secrets.contains(&secret.name));
            naming
                .map(|(key, _)| Reference::new(ReplicaKind::Ingress, key))
                .collect()
        }
    }
}

fn is_named_by_ingress(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    reference: &Reference,
) -> bool {
    peer.remote()
        .and_then(|remote| consumer.is_named_by_ingress(peer, &remote, reference))
        == Some(true)
}

fn recorded_objects(peer: &RemoteProvider) -> Vec<Reference> {
    let remote = peer.remote();
    let all = remote.iter().flat_map(|remote| remote.objects.all());
    all.map(|(_, record)| record.reference.clone()).collect()
}

fn recorded_secrets(peer: &RemoteProvider) -> Vec<Reference> {
    let remote = peer.remote();
    let all = remote.iter().flat_map(|remote| remote.secrets.all());
    all.map(|(_, record)| record.reference.clone()).collect()
}

/// The recorded objects of these kinds in a namespace, or in all.
fn recorded_in(
    peer: &RemoteProvider,
    namespace: Option<&str>,
    kinds: &[ReplicaKind],
) -> Vec<Reference> {
    recorded_objects(peer)
        .into_iter()
        .filter(|one| kinds.contains(&one.kind))
        .filter(|one| namespace.is_none_or(|namespace| namespace == one.namespace))
        .collect()
}

fn token_references(peer: &RemoteProvider) -> Vec<Reference> {
    let pods = peer.pods();
    let wanted = pods
        .iter()
        .filter(|pod| matches!(pod.api_server, ApiServerChoice::Home { .. }));
    let recorded = recorded_secrets(peer)
        .into_iter()
        .filter(|reference| reference.api_server_pod_uid().is_some());
    wanted
        .map(|pod| Reference::of_api_server(pod))
        .chain(recorded)
        .collect()
}

/// The Services, slices and Ingresses of a namespace, or of all.
fn service_references(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    namespace: Option<&str>,
) -> Vec<Reference> {
    let mut all = Vec::new();
    for objects in consumer.local_objects_in(namespace) {
        all.extend(
            objects
                .services
                .all()
                .iter()
                .map(|(key, _)| Reference::new(ReplicaKind::Service, key)),
        );
        all.extend(
            objects
                .slices
                .all()
                .iter()
                .map(|(key, _)| Reference::new(ReplicaKind::EndpointSlice, key)),
        );
        all.extend(
            objects
                .ingresses
                .all()
                .iter()
                .map(|(key, _)| Reference::new(ReplicaKind::Ingress, key)),
        );
    }
    all.extend(recorded_in(peer, namespace, &ReplicaKind::SERVICES));
    all
}

fn policy_references(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    namespace: Option<&str>,
) -> Vec<Reference> {
    let local = consumer
        .local_objects_in(namespace)
        .into_iter()
        .flat_map(|objects| objects.policies.all());
    let local = local.map(|(key, _)| Reference::new(ReplicaKind::NetworkPolicy, &key));
    let recorded = recorded_in(peer, namespace, &[ReplicaKind::NetworkPolicy]);
    local.chain(recorded).collect()
}

fn budget_references(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    namespace: Option<&str>,
) -> Vec<Reference> {
    let local = consumer
        .local_objects_in(namespace)
        .into_iter()
        .flat_map(|objects| objects.budgets.all());
    let local = local.map(|(key, _)| Reference::new(ReplicaKind::PodDisruptionBudget, &key));
    let recorded = recorded_in(peer, namespace, &[ReplicaKind::PodDisruptionBudget]);
    local.chain(recorded).collect()
}

#[cfg(test)]
mod tests;
