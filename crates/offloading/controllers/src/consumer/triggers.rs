//! The one place that says which keys of which queues are due when something changes.
//!
//! ```text
//!   "X changed"  --a pure function for each X-->  triggers  --keys, from what is cached-->  queues
//! ```
//!
//! If a trigger is missing, a key is never reconciled after that change.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use liqo_api::{
    ClusterId, ForeignCluster, NAMESPACE_OFFLOADING, NamespaceMap, NamespaceOffloading,
    PodOffloadingStrategy, VirtualNode, annotations,
};
use liqo_controller_runtime::{Cache, Key, Queue};
use serde_json::Value;

use super::state::{Consumer, EventKey, NamespaceKey, NodeKey, PeerState, Queues, recorded_node};
use crate::networks::Network;
use liqo_offloading_rules::node::priced::PricedNode;
use liqo_offloading_rules::pod::carry::api_server::ApiServerChoice;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::remote_events::Selection;
use liqo_offloading_rules::pod::unscheduled::UnscheduledPod;
use liqo_offloading_rules::replica::disruption_budget::LocalBudget;
use liqo_offloading_rules::replica::kind::Kind;
use liqo_offloading_rules::replica::label_selector::Labels;
use liqo_offloading_rules::replica::network_policy::NetworkPolicy;
use liqo_offloading_rules::replica::network_policy_translation;
use liqo_offloading_rules::replica::record::LocalIngress;
use liqo_offloading_rules::replica::record::LocalService;
use liqo_offloading_rules::replica::record::LocalSlice;
use liqo_offloading_rules::replica::record::Reference;
use liqo_offloading_rules::replica::record::ReflectionRecord;

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
pub struct Trigger {
    target: Target,
    delay: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    NodesOfProvider,
    Namespace(NamespaceKey),
    Map,
    Pods(Pods),
    Records(Records),
    Events(Events),
}

/// Events of the provider about remote pods.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Events {
    /// About the remote pod of this pod, if there is something to say.
    Of(String),
    /// The watch for this namespace.
    Watch(String),
    /// The watches for the namespaces of all pods.
    AllWatches,
}

/// Pods on the virtual nodes of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pods {
    One(String),
    /// Also those that are gone here and have a shadow pod there.
    All,
    In(String),
    Naming(Reference),
}

/// Objects that are or should be recorded at a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Records {
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

fn now(target: Target) -> Trigger {
    Trigger {
        target,
        delay: Duration::ZERO,
    }
}

fn pods(pods: Pods) -> Trigger {
    now(Target::Pods(pods))
}

fn records(records: Records) -> Trigger {
    now(Target::Records(records))
}

fn events(events: Events) -> Trigger {
    now(Target::Events(events))
}

impl Trigger {
    fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

// What is due when something changes.

/// A `VirtualNode` changed.
pub fn virtual_node(
    key: &Key,
    old: Option<&VirtualNode>,
    new: Option<&VirtualNode>,
) -> (Vec<NodeKey>, Vec<NamespaceKey>) {
    let link = new
        .or(old)
        .map(|node| NodeKey::Link(node.spec.cluster_id.clone()));
    let name = |node: Option<&VirtualNode>| node.map(recorded_node);
    let maps = (name(old) != name(new)).then_some(NamespaceKey::AllMaps);
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
    let labels =
        |node: Option<&Value>| node.and_then(|node| node.pointer("/metadata/labels").cloned());
    let mut placement = if labels(old) == labels(new) {
        Vec::new()
    } else {
        vec![NamespaceKey::AllMaps, NamespaceKey::AllPods]
    };
    // A pod that was kept off may have room now.
    let said = |node: Option<&Value>| {
        node.and_then(|node| {
            node.pointer("/metadata/annotations")?
                .get(annotations::LARGEST_PODS)
                .cloned()
        })
    };
    let largest_pods = |node: Option<&Value>| {
        node.map(|node| PricedNode::of_json("", node).largest_pods)
            .unwrap_or_default()
    };
    let has_grown = said(old) != said(new) && largest_pods(new).has_grown(&largest_pods(old));
    placement.extend(has_grown.then_some(NamespaceKey::AllUnscheduled));
    (vec![NodeKey::Node(key.name.clone())], placement)
}

/// A `NamespaceOffloading` changed.
pub fn offloading(
    key: &Key,
    old: Option<&NamespaceOffloading>,
    new: Option<&NamespaceOffloading>,
) -> Vec<NamespaceKey> {
    if key.name != NAMESPACE_OFFLOADING {
        return Vec::new();
    }
    let mut due = vec![NamespaceKey::Namespace(key.namespace.clone())];
    // Most of its status is our own, but pods that a budget holds wait for what it says.
    let budget =
        |one: &NamespaceOffloading| one.status.as_ref().and_then(|status| status.budget.clone());
    let intent = |one: Option<&NamespaceOffloading>| {
        one.map(|one| {
            (
                one.spec.clone(),
                one.metadata.deletion_timestamp.is_some(),
                budget(one),
                Selection::of(Some(one)),
            )
        })
    };
    if intent(old) != intent(new) {
        due.extend([
            NamespaceKey::Pods(key.namespace.clone()),
            NamespaceKey::AllMaps,
        ]);
    }
    due
}

/// The webhook began or ceased to see the new pods of these namespaces, or sees them for another
/// strategy.
pub fn webhook(changed: &BTreeSet<String>) -> Vec<NamespaceKey> {
    changed
        .iter()
        .cloned()
        .map(NamespaceKey::Namespace)
        .collect()
}

/// A `ForeignCluster` changed.
pub fn foreign_cluster(new: Option<&ForeignCluster>) -> Option<NodeKey> {
    new.map(|cluster| NodeKey::Link(cluster.spec.cluster_id.clone()))
}

/// The kubelet API of a virtual node is served in another way.
pub fn kubelet_serving(virtual_node: &Key) -> NodeKey {
    NodeKey::VirtualNode(virtual_node.clone())
}

/// The network to this provider came, changed or went. Whatever holds addresses is due; and the
/// tokens, when our API server is opened or closed.
pub fn network(old: Option<&Network>, new: Option<&Network>) -> Vec<Trigger> {
    let is_open = |network: Option<&Network>| network.is_some_and(|network| network.api_server);
    let tokens = (is_open(old) != is_open(new)).then(|| records(Records::Tokens));
    [pods(Pods::All), records(Records::Namespaced(None))]
        .into_iter()
        .chain(tokens)
        .collect()
}

/// A connection to this provider came, went, fell silent or was listed.
pub fn connection() -> [Trigger; 7] {
    [
        pods(Pods::All),
        records(Records::All),
        records(Records::Namespaced(None)),
        now(Target::Map),
        now(Target::Namespace(NamespaceKey::AllNamespaces)),
        now(Target::NodesOfProvider),
        events(Events::AllWatches),
    ]
}

/// The outage of a virtual node's provider became another one.
pub fn outage() -> [Trigger; 2] {
    [
        pods(Pods::All),
        now(Target::Namespace(NamespaceKey::AllNamespaces)),
    ]
}

/// A shadow pod at this provider changed. It may show the UID of the remote pod, which events are
/// compared with.
pub fn shadow_pod(name: &str) -> [Trigger; 2] {
    [
        pods(Pods::One(name.to_owned())),
        events(Events::Of(name.to_owned())),
    ]
}

/// A watch showed an event about the remote pod of the pod with this UID.
pub fn remote_event(uid: &str) -> Trigger {
    events(Events::Of(uid.to_owned()))
}

/// The `NamespaceMap` at this provider changed.
pub fn namespace_map(old: Option<&NamespaceMap>, new: Option<&NamespaceMap>) -> Vec<Trigger> {
    let namespaces = |map: Option<&NamespaceMap>| {
        map.and_then(|map| map.status.clone())
            .unwrap_or_default()
            .namespaces
    };
    let (old, new) = (namespaces(old), namespaces(new));
    let changed: BTreeSet<&String> = old
        .keys()
        .chain(new.keys())
        .filter(|key| old.get(*key) != new.get(*key))
        .collect();
    let of_namespace = |namespace: &String| {
        [
            pods(Pods::In(namespace.clone())),
            records(Records::Namespaced(Some(namespace.clone()))),
            now(Target::Namespace(NamespaceKey::Namespace(
                namespace.clone(),
            ))),
            events(Events::Watch(namespace.clone())),
        ]
    };
    [now(Target::Map)]
        .into_iter()
        .chain(changed.into_iter().flat_map(of_namespace))
        .collect()
}

/// A record at this provider changed.
pub fn record(old: Option<&ReflectionRecord>, new: Option<&ReflectionRecord>) -> Vec<Trigger> {
    let mut due = Vec::new();
    if old
        .zip(new)
        .is_none_or(|(old, new)| new.differs_beyond_problem(old))
    {
        due.extend(
            [old, new]
                .into_iter()
                .flatten()
                .map(|record| records(Records::One(record.reference.clone()))),
        );
    }
    let Some(reference) = old.or(new).map(|record| record.reference.clone()) else {
        return due;
    };
    let exposure =
        |record: Option<&ReflectionRecord>| record.and_then(|record| record.exposure.clone());
    if exposure(old) != exposure(new) {
        let namespace = reference.namespace.clone();
        let ingress = (reference.kind == Kind::Ingress).then(|| {
            let key = Key::new(namespace.clone(), reference.name.clone());
            // Also Secrets that no Ingress names any more, or not for this provider.
            [
                records(Records::SecretsOf(key)),
                records(Records::SecretsIn(namespace.clone())),
            ]
        });
        let namespace = now(Target::Namespace(NamespaceKey::Namespace(namespace)));
        due.extend(
            [namespace]
                .into_iter()
                .chain(ingress.into_iter().flatten())
                .map(|one| one.after(EXPOSURE_DELAY)),
        );
    }
    let problem =
        |record: Option<&ReflectionRecord>| record.and_then(|record| record.problem.clone());
    if problem(old) != problem(new) {
        if reference.kind.is_of_namespace() {
            due.push(records(Records::One(reference)).after(PROBLEM_DELAY));
        } else {
            due.push(pods(Pods::Naming(reference.clone())).after(PROBLEM_DELAY));
            due.push(records(Records::IngressesNaming(reference)).after(EXPOSURE_DELAY));
        }
    }
    due
}

/// A pod on a virtual node of this provider changed.
pub fn local_pod(old: Option<&LocalPod>, new: Option<&LocalPod>) -> Vec<Trigger> {
    // What a new pod names is recorded before it is sent.
    let gone = old.filter(|old| new.is_none_or(|new| new.uid != old.uid));
    let named = gone
        .into_iter()
        .flat_map(Reference::all)
        .map(|one| records(Records::One(one)).after(DELETED_POD_DELAY));
    // An ephemeral container may name more.
    let grown = old
        .zip(new)
        .filter(|(old, new)| old.uid == new.uid && old.refs != new.refs);
    let more = grown.into_iter().flat_map(|(old, new)| {
        Reference::all(new)
            .into_iter()
            .filter(|one| !one.is_named_by(old))
    });
    let more = more.map(|one| records(Records::One(one)));
    // A pod that is sent needs a token; one that ended, or is annotated so, needs none any more.
    let uses = |pod: &LocalPod| (pod.api_server, pod.finished, pod.sent_to.clone());
    let token = old.zip(new).filter(|(old, new)| uses(old) != uses(new));
    let token = token.map(|(_, new)| records(Records::One(Reference::of_api_server(new))));
    let both = [old, new]
        .into_iter()
        .flatten()
        .map(|pod| pods(Pods::One(pod.uid.clone())));
    let runs = |pod: Option<&LocalPod>| pod.is_some_and(|pod| !pod.finished);
    let changed = old.or(new).filter(|_| runs(old) != runs(new));
    let watch = changed
        .map(|pod| events(Events::Watch(pod.key.namespace.clone())).after(EVENT_WATCH_DELAY));
    named
        .chain(more)
        .chain(token)
        .chain(both)
        .chain(watch)
        .collect()
}

/// A pod of an offloaded namespace that has no node changed. One that got a node, or is gone, is
/// due no more.
pub fn unscheduled_pod(key: &Key, new: Option<&UnscheduledPod>) -> Option<Key> {
    new.map(|_| key.clone())
}

/// Whether a pod that is gone from those without a node may have got one of this cluster.
pub fn may_be_at_home(old: Option<&UnscheduledPod>, new: Option<&UnscheduledPod>) -> bool {
    new.is_none() && old.is_some_and(|old| !old.must_leave)
}

/// All pods of a virtual node are listed.
pub fn pods_listed() -> [Trigger; 3] {
    [
        records(Records::All),
        records(Records::Budgets(None)),
        events(Events::AllWatches),
    ]
}

/// A pod is gone here, and its shadow pod at the provider too: the last one of a namespace that is
/// no longer wanted there lets the mapping go.
pub fn pod_gone() -> Trigger {
    now(Target::Map).after(DELETED_POD_DELAY)
}

/// A `ConfigMap` or Secret of an offloaded namespace changed.
pub fn named_object(kind: Kind, key: &Key) -> Trigger {
    records(Records::IfNamed(Reference::new(kind, key)))
}

/// A Service of an offloaded namespace changed; `slices` are all of its namespace.
pub fn service(
    key: &Key,
    old: Option<&LocalService>,
    new: Option<&LocalService>,
    slices: &[(Key, Arc<LocalSlice>)],
) -> Vec<Trigger> {
    let is_allowed = |service: Option<&LocalService>| service.map(|service| service.is_allowed);
    let with_slices = is_allowed(old) != is_allowed(new);
    let slices = slices
        .iter()
        .filter(|(_, slice)| with_slices && slice.service == key.name);
    let slices = slices.map(|(key, _)| object(Kind::EndpointSlice, key));
    [object(Kind::Service, key)]
        .into_iter()
        .chain(slices)
        .collect()
}

/// An Ingress of an offloaded namespace changed: it is due, and so are the Secrets that it names or
/// named.
pub fn ingress(key: &Key, old: Option<&LocalIngress>, new: Option<&LocalIngress>) -> Vec<Trigger> {
    let secrets = [old, new]
        .into_iter()
        .flatten()
        .flat_map(|ingress| secrets_of(&key.namespace, ingress));
    [object(Kind::Ingress, key)]
        .into_iter()
        .chain(secrets.map(|one| records(Records::One(one))))
        .collect()
}

/// An `EndpointSlice`, a `NetworkPolicy` or a disruption budget of an offloaded namespace changed.
pub fn object(kind: Kind, key: &Key) -> Trigger {
    records(Records::One(Reference::new(kind, key)))
}

/// The Services, slices and Ingresses of a namespace are listed: records of those that are gone
/// since must go.
pub fn services_listed(namespace: &str) -> Trigger {
    records(Records::Namespaced(Some(namespace.to_owned())))
}

pub fn policies_listed(namespace: &str) -> Trigger {
    records(Records::Policies(Some(namespace.to_owned())))
}

/// The disruption budgets of a namespace are listed.
pub fn budgets_listed(namespace: &str) -> Trigger {
    records(Records::Budgets(Some(namespace.to_owned())))
}

/// A pod on a virtual node changed: the budgets are due that select it, at every provider.
/// `budgets` finds those of a namespace.
pub fn budgets_of_pod(
    old: Option<&LocalPod>,
    new: Option<&LocalPod>,
    budgets: impl FnOnce(&str) -> Vec<(Key, Arc<LocalBudget>)>,
) -> Vec<Trigger> {
    let Some(pod) = new.or(old) else {
        return Vec::new();
    };
    let budgets = budgets(&pod.key.namespace);
    if budgets.is_empty() {
        return Vec::new();
    }
    let selects = |budget: &LocalBudget| {
        [old, new]
            .into_iter()
            .flatten()
            .any(|pod| budget.selector.matches(&pod.labels))
    };
    let is_changed = old.map(as_counted) != new.map(as_counted);
    let due = budgets
        .iter()
        .filter(|(_, budget)| is_changed && selects(budget));
    due.map(|(key, _)| object(Kind::PodDisruptionBudget, key).after(BUDGET_DELAY))
        .collect()
}

/// The input of the budgets.
fn as_counted(pod: &LocalPod) -> (bool, bool, bool, &Labels) {
    (
        pod.is_ready_there,
        pod.finished,
        pod.deletion.is_some(),
        &pod.labels,
    )
}

/// A provider began or ended to drain a node with pods that a budget selects: the budget is due at
/// every provider.
pub fn draining(old: Option<&ReflectionRecord>, new: Option<&ReflectionRecord>) -> Vec<Trigger> {
    let drains =
        |record: Option<&ReflectionRecord>| record.is_some_and(|record| record.is_draining);
    let changed = new.or(old).filter(|_| drains(old) != drains(new));
    changed
        .map(|record| records(Records::One(record.reference.clone())))
        .into_iter()
        .collect()
}

/// A pod anywhere in this cluster changed: those of the policies are due that select it.
pub fn policy_pod(
    changed: &[&network_policy_translation::Pod],
    labels_of_namespace: impl Fn(&str) -> Option<Arc<Labels>>,
    policies: &[(Key, Arc<NetworkPolicy>)],
) -> Vec<Trigger> {
    let concerns = |namespace: &str, policy: &NetworkPolicy| {
        changed.iter().any(|pod| {
            network_policy_translation::concerns(
                policy,
                namespace,
                pod,
                labels_of_namespace(&pod.namespace).as_deref(),
            )
        })
    };
    let concerned = policies
        .iter()
        .filter(|(key, policy)| concerns(&key.namespace, policy));
    concerned
        .map(|(key, _)| object(Kind::NetworkPolicy, key).after(POLICY_DELAY))
        .collect()
}

/// The labels of a namespace changed, or all pods and namespaces that policies select from are
/// listed.
pub fn policy_sources() -> Trigger {
    records(Records::Policies(None)).after(POLICY_DELAY)
}

fn secrets_of<'a>(
    namespace: &'a str,
    ingress: &'a LocalIngress,
) -> impl Iterator<Item = Reference> + use<'a> {
    let named = ingress.secrets.iter();
    named.map(|name| Reference {
        kind: Kind::Secret,
        namespace: namespace.to_owned(),
        name: name.clone(),
    })
}

// From triggers to keys.

/// Adds what is due to the queues that exist before the rest of the state does.
pub fn enqueue_keys(queues: &Queues, (nodes, namespaces): (Vec<NodeKey>, Vec<NamespaceKey>)) {
    for key in nodes {
        queues.nodes.add(key);
    }
    for key in namespaces {
        queues.namespaces.add(key);
    }
}

/// Adds what is due at one provider.
pub fn enqueue(consumer: &Consumer, peer: &PeerState, triggers: impl IntoIterator<Item = Trigger>) {
    for Trigger { target, delay } in triggers {
        match target {
            Target::NodesOfProvider => {
                for (key, _) in consumer.nodes_of(&peer.id) {
                    add(&consumer.queues.nodes, NodeKey::VirtualNode(key), delay);
                }
            }
            Target::Namespace(key) => add(&consumer.queues.namespaces, key, delay),
            Target::Map => add(
                &consumer.queues.namespaces,
                NamespaceKey::Map(peer.id.clone()),
                delay,
            ),
            Target::Pods(pods) => enqueue_pods(peer, &pods, delay),
            Target::Events(events) => enqueue_events(peer, events, delay),
            Target::Records(records) => {
                for reference in references(consumer, peer, records) {
                    add(&peer.record_queue, reference, delay);
                }
            }
        }
    }
}

/// Adds what is due at every provider.
pub fn enqueue_everywhere(consumer: &Consumer, triggers: &[Trigger]) {
    for peer in consumer.peers.all() {
        enqueue(consumer, &peer, triggers.iter().cloned());
    }
}

/// The `VirtualNode`s whose Node has this name.
pub fn enqueue_named(consumer: &Consumer, node: &str) {
    for (key, virtual_node) in consumer.virtual_nodes.all() {
        if recorded_node(&virtual_node).is_some_and(|(name, _)| name == node) {
            consumer.queues.nodes.add(NodeKey::VirtualNode(key));
        }
    }
}

/// The maps of all providers, and the status of all namespaces.
pub fn enqueue_all_maps(consumer: &Consumer) {
    enqueue_everywhere(consumer, &[now(Target::Map)]);
    consumer.queues.namespaces.add(NamespaceKey::AllNamespaces);
}

pub fn enqueue_all_namespaces(consumer: &Consumer) {
    for (key, _) in consumer.offloadings.all() {
        consumer
            .queues
            .namespaces
            .add(NamespaceKey::Namespace(key.namespace));
    }
}

/// Looks soon for pods of a namespace that run here although they may run in other clusters only.
pub fn enqueue_at_home(consumer: &Consumer, namespace: &str) {
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
pub fn enqueue_pods_of(consumer: &Consumer, namespace: &str) {
    enqueue_at_home(consumer, namespace);
    let unscheduled = consumer
        .followed
        .lock()
        .get(namespace)
        .map(|followed| followed.unscheduled.clone());
    enqueue_unscheduled(consumer, unscheduled);
    let namespaced = records(Records::Namespaced(Some(namespace.to_owned())));
    let watch = events(Events::Watch(namespace.to_owned()));
    enqueue_everywhere(
        consumer,
        &[
            pods(Pods::In(namespace.to_owned())),
            records(Records::All),
            namespaced,
            watch,
        ],
    );
}

pub fn enqueue_all_unscheduled(consumer: &Consumer) {
    let all: Vec<Cache<UnscheduledPod>> = consumer
        .followed
        .lock()
        .values()
        .map(|followed| followed.unscheduled.clone())
        .collect();
    enqueue_unscheduled(consumer, all);
}

fn enqueue_unscheduled(consumer: &Consumer, pods: impl IntoIterator<Item = Cache<UnscheduledPod>>) {
    for (key, _) in pods.into_iter().flat_map(|pods| pods.all()) {
        consumer.queues.unscheduled.add(key);
    }
}

pub fn enqueue_all_pods(consumer: &Consumer) {
    enqueue_everywhere(consumer, &[pods(Pods::All)]);
}

/// The map at one provider, from which a namespace is to go.
pub fn enqueue_map(consumer: &Consumer, provider: &ClusterId) {
    consumer
        .queues
        .namespaces
        .add(NamespaceKey::Map(provider.clone()));
}

fn add<K: Clone + Eq + std::hash::Hash + Ord + std::fmt::Debug + Send + 'static>(
    queue: &Queue<K>,
    key: K,
    delay: Duration,
) {
    if delay.is_zero() {
        queue.add(key);
    } else {
        queue.add_after(key, delay);
    }
}

fn enqueue_pods(peer: &PeerState, pods: &Pods, delay: Duration) {
    let enqueue = |uid: &str| add(&peer.pod_queue, uid.to_owned(), delay);
    match pods {
        Pods::One(uid) => enqueue(uid),
        Pods::All => {
            peer.pods_and_left()
                .iter()
                .for_each(|pod| enqueue(&pod.uid));
            peer.remote()
                .iter()
                .flat_map(|remote| remote.shadows.all())
                .for_each(|(key, _)| enqueue(&key.name));
        }
        Pods::In(namespace) => peer
            .pods()
            .iter()
            .filter(|pod| pod.key.namespace == *namespace)
            .for_each(|pod| enqueue(&pod.uid)),
        Pods::Naming(reference) => {
            peer.pods()
                .iter()
                .filter(|pod| reference.is_named_by(pod))
                .for_each(|pod| enqueue(&pod.uid));
        }
    }
}

fn enqueue_events(peer: &PeerState, events: Events, delay: Duration) {
    let watch = |namespace: String| add(&peer.event_queue, EventKey::Watch(namespace), delay);
    match events {
        Events::Of(uid) => {
            if peer.journal.lock().has(&uid) {
                add(&peer.event_queue, EventKey::Pod(uid), delay);
            }
        }
        Events::Watch(namespace) => watch(namespace),
        Events::AllWatches => {
            let namespaces: BTreeSet<String> = peer
                .pods()
                .iter()
                .map(|pod| pod.key.namespace.clone())
                .collect();
            namespaces.into_iter().for_each(watch);
        }
    }
}

fn references(consumer: &Consumer, peer: &PeerState, records: Records) -> Vec<Reference> {
    match records {
        Records::One(reference) => vec![reference],
        Records::IfNamed(reference) => {
            let by_ingress = || {
                peer.remote()
                    .and_then(|remote| consumer.is_named_by_ingress(peer, &remote, &reference))
                    == Some(true)
            };
            let is_named = peer.pods().iter().any(|pod| reference.is_named_by(pod)) || by_ingress();
            is_named.then_some(reference).into_iter().collect()
        }
        Records::All => {
            let named = peer
                .pods()
                .into_iter()
                .flat_map(|pod| Reference::all(&pod))
                .collect::<Vec<_>>();
            named
                .into_iter()
                .chain(recorded_objects(peer))
                .chain(recorded_secrets(peer))
                .collect()
        }
        Records::Tokens => token_references(peer),
        Records::Namespaced(namespace) => {
            let mut all = policy_references(consumer, peer, None);
            all.extend(budget_references(consumer, peer, namespace.as_deref()));
            all.extend(service_references(consumer, peer, namespace.as_deref()));
            all
        }
        Records::Policies(namespace) => policy_references(consumer, peer, namespace.as_deref()),
        Records::Budgets(namespace) => budget_references(consumer, peer, namespace.as_deref()),
        Records::SecretsOf(key) => {
            let ingress = consumer.ingress(&key);
            ingress
                .iter()
                .flat_map(|ingress| secrets_of(&key.namespace, ingress))
                .collect()
        }
        Records::SecretsIn(namespace) => {
            let is_concerned =
                |one: &Reference| one.namespace == namespace && one.is_for_api_server().is_none();
            recorded_secrets(peer)
                .into_iter()
                .filter(is_concerned)
                .collect()
        }
        Records::IngressesNaming(secret) => {
            let ingresses = consumer
                .local_objects(&secret.namespace)
                .map(|objects| objects.ingresses.all())
                .unwrap_or_default();
            let naming = ingresses
                .iter()
                .filter(|(_, ingress)| ingress.secrets.contains(&secret.name));
            naming
                .map(|(key, _)| Reference::new(Kind::Ingress, key))
                .collect()
        }
    }
}

fn recorded_objects(peer: &PeerState) -> Vec<Reference> {
    let remote = peer.remote();
    let all = remote.iter().flat_map(|remote| remote.objects.all());
    all.map(|(_, record)| record.reference.clone()).collect()
}

fn recorded_secrets(peer: &PeerState) -> Vec<Reference> {
    let remote = peer.remote();
    let all = remote.iter().flat_map(|remote| remote.secrets.all());
    all.map(|(_, record)| record.reference.clone()).collect()
}

/// The recorded objects of these kinds in a namespace, or in all.
fn recorded_in(peer: &PeerState, namespace: Option<&str>, kinds: &[Kind]) -> Vec<Reference> {
    recorded_objects(peer)
        .into_iter()
        .filter(|one| kinds.contains(&one.kind))
        .filter(|one| namespace.is_none_or(|namespace| namespace == one.namespace))
        .collect()
}

fn token_references(peer: &PeerState) -> Vec<Reference> {
    let pods = peer.pods();
    let wanted = pods
        .iter()
        .filter(|pod| matches!(pod.api_server, ApiServerChoice::Home { .. }));
    let recorded = recorded_secrets(peer)
        .into_iter()
        .filter(|reference| reference.is_for_api_server().is_some());
    wanted
        .map(|pod| Reference::of_api_server(pod))
        .chain(recorded)
        .collect()
}

/// The Services, slices and Ingresses of a namespace, or of all.
fn service_references(
    consumer: &Consumer,
    peer: &PeerState,
    namespace: Option<&str>,
) -> Vec<Reference> {
    let mut all = Vec::new();
    for objects in consumer.local_objects_in(namespace) {
        all.extend(
            objects
                .services
                .all()
                .iter()
                .map(|(key, _)| Reference::new(Kind::Service, key)),
        );
        all.extend(
            objects
                .slices
                .all()
                .iter()
                .map(|(key, _)| Reference::new(Kind::EndpointSlice, key)),
        );
        all.extend(
            objects
                .ingresses
                .all()
                .iter()
                .map(|(key, _)| Reference::new(Kind::Ingress, key)),
        );
    }
    all.extend(recorded_in(peer, namespace, &Kind::SERVICES));
    all
}

fn policy_references(
    consumer: &Consumer,
    peer: &PeerState,
    namespace: Option<&str>,
) -> Vec<Reference> {
    let local = consumer
        .local_objects_in(namespace)
        .into_iter()
        .flat_map(|objects| objects.policies.all());
    let local = local.map(|(key, _)| Reference::new(Kind::NetworkPolicy, &key));
    let recorded = recorded_in(peer, namespace, &[Kind::NetworkPolicy]);
    local.chain(recorded).collect()
}

fn budget_references(
    consumer: &Consumer,
    peer: &PeerState,
    namespace: Option<&str>,
) -> Vec<Reference> {
    let local = consumer
        .local_objects_in(namespace)
        .into_iter()
        .flat_map(|objects| objects.budgets.all());
    let local = local.map(|(key, _)| Reference::new(Kind::PodDisruptionBudget, &key));
    let recorded = recorded_in(peer, namespace, &[Kind::PodDisruptionBudget]);
    local.chain(recorded).collect()
}

#[cfg(test)]
mod tests;
