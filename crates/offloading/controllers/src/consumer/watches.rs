//! Starts the watches that fill the caches of the [state](super::state), and ties each to its
//! [triggers](super::triggers).

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Event, Namespace, Node, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::{self, Ingress},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    runtime::watcher,
};
use liqo_api::policies::without_status;
use liqo_api::reflection::is_denied;
use liqo_api::{
    Claimed, ForeignCluster, NAMESPACE_OFFLOADING, NamespaceMap, NamespaceOffloading,
    PeeringPolicy, ResourceOffer, VirtualNode, labels,
};
use liqo_controller_runtime::{
    Cache, Context, Key, PeerConnection,
    cache::{parsed_len, whole},
    events::object_ref,
    follow::{Followed, follow},
    provider_limits::LimitExceeded,
};
use liqo_metering::VoucherKey;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::{
    sync::{OnceCell, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::events::BEHIND;
use super::kubelet_index;
use super::node_objects;
use super::state::{
    Consumer, EventWatch, FollowedNamespace, LocalObjects, NewPeer, NodeKey, PeerState, PeerStates,
    PolicySources, Queues, RemoteState, WatchedEvents,
};
use super::triggers;
use super::triggers::{Trigger, enqueue, enqueue_everywhere, enqueue_keys};
use crate::{
    kubelet::{KubeletApi, client_ca},
    metering::Recorder,
    networks::Networks,
    provider::RemotePods,
    webhook,
};
use liqo_offloading_rules::json::fingerprint;
use liqo_offloading_rules::pod::admission::Offer;
use liqo_offloading_rules::pod::local_state::JsonPod;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::local_state::Shadow;
use liqo_offloading_rules::pod::remote_events::RemoteEvent;
use liqo_offloading_rules::pod::unscheduled::UnscheduledPod;
use liqo_offloading_rules::replica::disruption_budget::LocalBudget;
use liqo_offloading_rules::replica::isolation::may_travel;
use liqo_offloading_rules::replica::kind::Kind;
use liqo_offloading_rules::replica::network_policy::NetworkPolicy;
use liqo_offloading_rules::replica::network_policy_translation;
use liqo_offloading_rules::replica::record::LocalIngress;
use liqo_offloading_rules::replica::record::LocalService;
use liqo_offloading_rules::replica::record::LocalSlice;
use liqo_offloading_rules::replica::record::ReflectionRecord;
use liqo_offloading_rules::replica::record::fingerprint_of_secret;
use liqo_offloading_rules::replica::record::object_of;

/// Minimum time between two events about skipped events of a namespace: how long API servers keep
/// events.
const SKIPPED_INTERVAL: Duration = Duration::from_hours(1);

/// A watch at a peer is started again after this time, so that one which died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// Starts the watches of this cluster. Providers that are added to the state are sent to the
/// receiver.
pub fn start(
    context: Context,
    voucher_key: VoucherKey,
    remote_pods: RemotePods,
) -> (Arc<Consumer>, mpsc::UnboundedReceiver<NewPeer>) {
    let (client, stop) = (context.client.clone(), context.stop.clone());
    let (queues, (peers, new_peers)) = (Queues::default(), PeerStates::new());
    let queue = queues.namespaces.clone();
    let webhook = webhook::follow(&context, move |old, new| {
        for key in triggers::webhook(&new.changed_since(old)) {
            queue.add(key);
        }
    });
    let client_authority = client_ca::follow(client.clone(), stop);
    let consumer = Arc::new_cyclic(|consumer: &Weak<Consumer>| Consumer {
        virtual_nodes: virtual_nodes(&context, &queues),
        nodes: nodes(&context, &queues),
        offloadings: offloadings(&context, &queues),
        offers: offers(&context),
        foreign_clusters: foreign_clusters(&context, &queues),
        policies: peering_policies(&context),
        budgets: RwLock::default(),
        networks: networks(&context, consumer.clone()),
        remote_pods,
        recorder: Recorder::start(&context, labels::PROVIDER_ID, "consumer"),
        voucher_key,
        kubelet: KubeletApi::new(
            client,
            Arc::new(kubelet_index::LocalPods::new(consumer.clone())),
            context.clock,
        ),
        context,
        queues,
        webhook,
        node_tasks: Mutex::default(),
        followed: Mutex::default(),
        policy_sources: OnceLock::new(),
        peers,
        replaced: Mutex::default(),
        local_since: Mutex::default(),
        unoffloaded: Mutex::default(),
        chosen: tokio::sync::Mutex::default(),
        client_authority,
        version: OnceCell::new(),
    });
    (consumer, new_peers)
}

fn offers(context: &Context) -> Cache<Offer> {
    let api = Api::<ResourceOffer>::all(context.client.clone());
    // Who needs one asks again and again.
    Cache::watch(
        api,
        watcher::Config::default(),
        context.stop.clone(),
        Offer::reduce,
        |_, _, _| (),
    )
}

fn virtual_nodes(context: &Context, queues: &Queues) -> Cache<VirtualNode> {
    let (api, queues) = (Api::all(context.client.clone()), queues.clone());
    Cache::watch(
        api,
        watcher::Config::default(),
        context.stop.clone(),
        whole,
        move |key, old, new| {
            enqueue_keys(
                &queues,
                triggers::virtual_node(key, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
            );
        },
    )
}

fn nodes(context: &Context, queues: &Queues) -> Cache<Value> {
    let only_ours = watcher::Config::default().labels(&format!(
        "{}={}",
        labels::TYPE,
        labels::TYPE_VIRTUAL_NODE
    ));
    let api =
        Api::<DynamicObject>::all_with(context.client.clone(), &ApiResource::erase::<Node>(&()));
    let queues = queues.clone();
    Cache::watch(
        api,
        only_ours,
        context.stop.clone(),
        node_objects::as_json,
        move |key, old, new| {
            enqueue_keys(
                &queues,
                triggers::node(key, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
            );
        },
    )
}

fn offloadings(context: &Context, queues: &Queues) -> Cache<NamespaceOffloading> {
    let (api, queues) = (Api::all(context.client.clone()), queues.clone());
    Cache::watch(
        api,
        watcher::Config::default(),
        context.stop.clone(),
        whole,
        move |key, old, new| {
            enqueue_keys(
                &queues,
                (
                    Vec::new(),
                    triggers::offloading(key, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
                ),
            );
        },
    )
}

fn foreign_clusters(context: &Context, queues: &Queues) -> Cache<ForeignCluster> {
    let (api, queues) = (Api::all(context.client.clone()), queues.clone());
    Cache::watch(
        api,
        watcher::Config::default(),
        context.stop.clone(),
        whole,
        move |_, _, new| {
            enqueue_keys(
                &queues,
                (
                    triggers::foreign_cluster(new.map(AsRef::as_ref))
                        .into_iter()
                        .collect(),
                    Vec::new(),
                ),
            );
        },
    )
}

fn peering_policies(context: &Context) -> Cache<PeeringPolicy> {
    Cache::watch(
        Api::all(context.client.clone()),
        watcher::Config::default(),
        context.stop.clone(),
        without_status,
        |_, _, _| {},
    )
}

/// While the state is being created there are no providers yet, so no change is lost.
fn networks(context: &Context, consumer: Weak<Consumer>) -> Networks {
    Networks::follow(context, move |id, old, new| {
        if let Some(consumer) = consumer.upgrade()
            && let Some(peer) = consumer.peers.get(&id)
        {
            enqueue(&consumer, &peer, triggers::network(old, new));
        }
    })
}

/// Adds triggers at every provider, as long as the state exists.
fn everywhere(consumer: &Weak<Consumer>, triggers: &[Trigger]) {
    if let Some(consumer) = consumer.upgrade() {
        enqueue_everywhere(&consumer, triggers);
    }
}

/// Watches the pods on the Node of a virtual node.
pub fn pods(
    consumer: &Arc<Consumer>,
    virtual_node: &Key,
    peer: Arc<PeerState>,
    node: &str,
    stop: CancellationToken,
) -> Cache<LocalPod> {
    let (state, virtual_node, node_key) = (
        Arc::downgrade(consumer),
        virtual_node.clone(),
        virtual_node.clone(),
    );
    Cache::watch(
        Api::<JsonPod>::all_with(
            consumer.context.client.clone(),
            &ApiResource::erase::<Pod>(&()),
        ),
        watcher::Config::default().fields(&format!("spec.nodeName={node}")),
        stop,
        move |pod| LocalPod::of(pod, &virtual_node),
        move |_, old, new| {
            peer.pod_changed(old, new);
            if let Some(consumer) = state.upgrade() {
                if old.and_then(|old| old.extra_charge()) != new.and_then(|new| new.extra_charge())
                {
                    consumer
                        .queues
                        .nodes
                        .add(NodeKey::VirtualNode(node_key.clone()));
                }
                let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
                enqueue(&consumer, &peer, triggers::local_pod(old, new));
                enqueue_everywhere(
                    &consumer,
                    &triggers::budgets_of_pod(old, new, |namespace| consumer.budgets(namespace)),
                );
            }
        },
    )
}

/// Watches the objects in our tenant namespace at a provider.
pub fn remote(
    consumer: &Arc<Consumer>,
    peer: &Arc<PeerState>,
    connection: Arc<PeerConnection>,
    stop: &CancellationToken,
) -> RemoteState {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let at_peer = || {
        let (state, peer) = (Arc::downgrade(consumer), peer.clone());
        move |triggers: Vec<Trigger>| {
            if let Some(consumer) = state.upgrade() {
                enqueue(&consumer, &peer, triggers);
            }
        }
    };
    let (enqueue, seen) = (at_peer(), peer.clone());
    let shadows = Cache::watch_provider(
        &connection,
        config.clone(),
        stop.clone(),
        Shadow::stored_len,
        Shadow::of,
        move |key, old, new| {
            seen.shadow_seen(&key.name, old.filter(|_| new.is_none()));
            enqueue(triggers::shadow_pod(&key.name).into());
        },
    );
    let enqueue = at_peer();
    let maps = Cache::watch_provider(
        &connection,
        config.clone(),
        stop.clone(),
        parsed_len::<NamespaceMap>,
        |map: Claimed<NamespaceMap>| whole(map.into_unverified()),
        move |_, old, new| {
            enqueue(triggers::namespace_map(
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        },
    );
    let changed = || {
        let (enqueue, seen, state) = (at_peer(), peer.clone(), Arc::downgrade(consumer));
        move |_: &Key, old: Option<&Arc<ReflectionRecord>>, new: Option<&Arc<ReflectionRecord>>| {
            [old, new]
                .into_iter()
                .flatten()
                .for_each(|record| seen.record_seen(&record.own_reference()));
            let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            enqueue(triggers::record(old, new));
            everywhere(&state, &triggers::draining(old, new));
        }
    };
    let objects = Cache::watch_provider(
        &connection,
        config.clone(),
        stop.clone(),
        ReflectionRecord::stored_len,
        |object: Claimed<_>| ReflectionRecord::of_object(object.into_unverified()),
        changed(),
    );
    let reflected = config.labels(&format!("{}=true", labels::REFLECTED));
    let secrets = Cache::watch_provider(
        &connection,
        reflected,
        stop.clone(),
        ReflectionRecord::stored_len,
        |secret: Claimed<_>| ReflectionRecord::of_secret(secret.into_unverified()),
        changed(),
    );
    RemoteState {
        connection,
        shadows,
        maps,
        objects,
        secrets,
        event_watches: Mutex::default(),
        stop: stop.clone(),
    }
}

/// Watches events about pods in the provider's namespace `mapped`, which is ours by the name of
/// `namespace`.
pub fn remote_events(
    consumer: &Arc<Consumer>,
    peer: &Arc<PeerState>,
    remote: &RemoteState,
    namespace: &str,
    wanted: WatchedEvents,
) -> EventWatch {
    let WatchedEvents { mapped, selection } = &wanted;
    let config = watcher::Config::default()
        .timeout(WATCH_SECONDS)
        .fields(selection.field_selector());
    let (client, limits) = (
        remote.connection.client.clone(),
        remote.connection.limits.clone(),
    );
    let clock = consumer.context.clock;
    let mut seen = follow(Api::<Event>::namespaced(client, mapped), config, limits);
    let mut told: Option<Instant> = None;
    let (stop, consumer, peer) = (
        remote.stop.child_token(),
        Arc::downgrade(consumer),
        peer.clone(),
    );
    let (ended, namespace, here, selection) = (
        stop.clone(),
        namespace.to_owned(),
        mapped.clone(),
        *selection,
    );
    tokio::spawn(ended.run_until_cancelled_owned(async move {
        while let Some(followed) = seen.next().await {
            let event = match followed {
                Followed::Object(event) => event,
                Followed::Skipped(limit) => {
                    let Some(consumer) = consumer.upgrade() else {
                        return;
                    };
                    if told.is_none_or(|told| told.elapsed() >= SKIPPED_INTERVAL)
                        && tell_skipped(&consumer, &peer, &namespace, limit).await
                    {
                        told = Some(Instant::now());
                    }
                    continue;
                }
            };
            // Reduced first: a whole event takes more memory.
            let event = RemoteEvent::of(event, &here, selection, clock.now());
            // What the provider sends faster waits there.
            tokio::time::sleep(peer.event_delay(Instant::now())).await;
            let Some(consumer) = consumer.upgrade() else {
                return;
            };
            remote_event(&consumer, &peer, &namespace, event);
        }
    }));
    EventWatch {
        events: wanted,
        _stop: stop.drop_guard(),
    }
}

/// Tells the owner of a namespace that some events of remote pods are not shown. Returns whether
/// there was something to write that on.
async fn tell_skipped(
    consumer: &Consumer,
    peer: &PeerState,
    namespace: &str,
    limit: LimitExceeded,
) -> bool {
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    let (Some(offloading), Some(remote)) = (consumer.offloadings.get(&key), peer.remote()) else {
        return false;
    };
    let provider = if consumer.is_lent_on(namespace) {
        BEHIND
    } else {
        &remote.connection.cluster_name
    };
    let note = format!(
        "{provider} has more events of this namespace than this cluster reads ({limit}): those from before now may be missing on pods"
    );
    let (version, kind) = (
        NamespaceOffloading::api_version(&()),
        NamespaceOffloading::kind(&()),
    );
    let object = object_ref(&version, &kind, &key, offloading.uid());
    consumer
        .context
        .events
        .warning(&object, "EventsSkipped", note)
        .await;
    true
}

/// Takes over an event, if it is about a pod of this namespace that is on a virtual node of this
/// provider.
fn remote_event(
    consumer: &Consumer,
    peer: &PeerState,
    namespace: &str,
    event: Option<RemoteEvent>,
) {
    let pod = event.and_then(|event| {
        Some((
            peer.pod_named(&Key::new(namespace, event.pod_name.as_str()))?,
            event,
        ))
    });
    let Some((pod, event)) = pod else { return };
    let remote_uid = peer
        .remote()
        .and_then(|remote| remote.shadow(&pod.uid)?.remote_uid.clone());
    if peer.journal.lock().arrived(
        &pod.uid,
        remote_uid.as_deref(),
        event,
        Instant::now().into_std(),
    ) {
        enqueue(consumer, peer, [triggers::remote_event(&pod.uid)]);
    }
}

/// Watches the objects of a namespace, from when the manager may read them until the namespace is
/// no longer offloaded.
pub fn follow_namespace(consumer: &Arc<Consumer>, namespace: &str) {
    let mut followed = consumer.followed.lock();
    if followed.contains_key(namespace) {
        return;
    }
    let (client, stop) = (
        consumer.context.client.clone(),
        consumer.context.stop.child_token(),
    );
    let config = watcher::Config::default;
    let state = || Arc::downgrade(consumer);

    let weak = state();
    let config_maps = Cache::watch(
        Api::<ConfigMap>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        |map| Some(fingerprint(&object_of(&map))),
        move |key, _, _| everywhere(&weak, &[triggers::named_object(Kind::ConfigMap, key)]),
    );
    let weak = state();
    let secrets = Cache::watch(
        Api::<Secret>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        |secret| Some(fingerprint_of_secret(&secret)),
        move |key, _, _| everywhere(&weak, &[triggers::named_object(Kind::Secret, key)]),
    );
    let weak = state();
    let slices = Cache::watch(
        Api::<EndpointSlice>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        LocalSlice::of,
        move |key, _, _| everywhere(&weak, &[triggers::object(Kind::EndpointSlice, key)]),
    );
    let weak = state();
    let ingresses = Cache::watch(
        Api::<Ingress>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        LocalIngress::of,
        move |key, old, new| {
            everywhere(
                &weak,
                &triggers::ingress(key, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
            );
        },
    );
    let (weak, all_slices) = (state(), slices.clone());
    let services = Cache::watch(
        Api::<Service>::namespaced(client, namespace),
        config(),
        stop.clone(),
        LocalService::of,
        move |key, old, new| {
            let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            everywhere(&weak, &triggers::service(key, old, new, &all_slices.all()));
        },
    );
    let policies = policies(consumer, namespace, stop.clone());
    let budgets = budgets(consumer, namespace, stop.clone());
    let unscheduled = unscheduled_pods(consumer, namespace, stop.clone());
    let objects = LocalObjects {
        services,
        slices,
        ingresses,
        policies,
        budgets,
    };
    followed.insert(
        namespace.to_owned(),
        FollowedNamespace {
            objects: objects.clone(),
            unscheduled,
            _fingerprints: [config_maps, secrets],
            _stop: stop.drop_guard(),
        },
    );
    drop(followed);
    enqueue_when_listed(consumer, namespace, objects);
}

/// Watches the pods of a namespace that have no node. One that gets a node leaves the watch.
fn unscheduled_pods(
    consumer: &Arc<Consumer>,
    namespace: &str,
    stop: CancellationToken,
) -> Cache<UnscheduledPod> {
    let resource = ApiResource::erase::<Pod>(&());
    let api: Api<JsonPod> =
        Api::namespaced_with(consumer.context.client.clone(), namespace, &resource);
    let (queue, weak) = (
        consumer.queues.unscheduled.clone(),
        Arc::downgrade(consumer),
    );
    Cache::watch(
        api,
        watcher::Config::default().fields("spec.nodeName="),
        stop,
        UnscheduledPod::of,
        move |key, old, new| {
            let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            if let Some(due) = triggers::unscheduled_pod(key, new) {
                queue.add(due);
            }
            if triggers::may_be_at_home(old, new)
                && let Some(consumer) = weak.upgrade()
            {
                triggers::enqueue_at_home(&consumer, &key.namespace);
            }
        },
    )
}

fn policies(
    consumer: &Arc<Consumer>,
    namespace: &str,
    stop: CancellationToken,
) -> Cache<NetworkPolicy> {
    // As JSON: a field that this version does not know must not vanish unseen.
    let resource = ApiResource::erase::<v1::NetworkPolicy>(&());
    let api: Api<DynamicObject> =
        Api::namespaced_with(consumer.context.client.clone(), namespace, &resource);
    let cluster = consumer.context.cluster_id.clone();
    let travels = move |object: &DynamicObject| !is_denied(object) && may_travel(object, &cluster);
    let reduce = move |object: DynamicObject| {
        travels(&object).then(|| NetworkPolicy::of(&object.data["spec"]))
    };
    let weak = Arc::downgrade(consumer);
    Cache::watch(
        api,
        watcher::Config::default(),
        stop,
        reduce,
        move |key, _, _| {
            everywhere(&weak, &[triggers::object(Kind::NetworkPolicy, key)]);
        },
    )
}

fn budgets(
    consumer: &Arc<Consumer>,
    namespace: &str,
    stop: CancellationToken,
) -> Cache<LocalBudget> {
    let api = Api::<PodDisruptionBudget>::namespaced(consumer.context.client.clone(), namespace);
    let weak = Arc::downgrade(consumer);
    Cache::watch(
        api,
        watcher::Config::default(),
        stop,
        LocalBudget::of,
        move |key, _, _| {
            everywhere(&weak, &[triggers::object(Kind::PodDisruptionBudget, key)]);
        },
    )
}

fn enqueue_when_listed(consumer: &Arc<Consumer>, namespace: &str, objects: LocalObjects) {
    let LocalObjects {
        services,
        slices,
        ingresses,
        policies,
        budgets,
    } = objects;
    let (weak, name) = (Arc::downgrade(consumer), namespace.to_owned());
    tokio::spawn(async move {
        if services.synced().await && slices.synced().await && ingresses.synced().await {
            everywhere(&weak, &[triggers::services_listed(&name)]);
        }
    });
    let (weak, name) = (Arc::downgrade(consumer), namespace.to_owned());
    tokio::spawn(async move {
        if policies.synced().await {
            everywhere(&weak, &[triggers::policies_listed(&name)]);
        }
    });
    let (weak, name) = (Arc::downgrade(consumer), namespace.to_owned());
    tokio::spawn(async move {
        if budgets.synced().await {
            everywhere(&weak, &[triggers::budgets_listed(&name)]);
        }
    });
}

/// Watches the pods and namespaces that policies select from.
pub fn policy_sources(consumer: &Arc<Consumer>) -> PolicySources {
    let (client, stop) = (
        consumer.context.client.clone(),
        consumer.context.stop.clone(),
    );
    let weak = Arc::downgrade(consumer);
    let namespaces = Cache::watch(
        Api::<Namespace>::all(client.clone()),
        watcher::Config::default(),
        stop.clone(),
        |namespace| Some(namespace.metadata.labels.unwrap_or_default()),
        move |_, _, _| everywhere(&weak, &[triggers::policy_sources()]),
    );
    let (weak, known) = (Arc::downgrade(consumer), namespaces.clone());
    let pods = Cache::watch(
        Api::<Pod>::all(client),
        watcher::Config::default(),
        stop,
        reduce_pod,
        move |_, old, new| {
            let Some(consumer) = weak.upgrade() else {
                return;
            };
            let changed: Vec<&network_policy_translation::Pod> = [old, new]
                .into_iter()
                .flatten()
                .map(AsRef::as_ref)
                .collect();
            let labels = |namespace: &str| known.get(&Key::new("", namespace));
            let policies: Vec<_> = consumer
                .local_objects_in(None)
                .iter()
                .flat_map(|objects| objects.policies.all())
                .collect();
            enqueue_everywhere(
                &consumer,
                &triggers::policy_pod(&changed, labels, &policies),
            );
        },
    );
    let (weak, all) = (Arc::downgrade(consumer), (namespaces.clone(), pods.clone()));
    tokio::spawn(async move {
        if all.0.synced().await && all.1.synced().await {
            everywhere(&weak, &[triggers::policy_sources()]);
        }
    });
    PolicySources { namespaces, pods }
}

/// The reduced form of a pod; nothing of one that has ended, because its address may be another
/// one's.
#[allow(
    clippy::needless_pass_by_value,
    reason = "what a watch's reduction takes"
)]
pub fn reduce_pod(pod: Pod) -> Option<network_policy_translation::Pod> {
    let namespace = pod.namespace()?;
    let status = pod.status.unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let addresses: BTreeSet<IpAddr> = status
        .pod_ips
        .iter()
        .flatten()
        .map(|one| one.ip.as_str())
        .chain(status.pod_ip.as_deref())
        .filter_map(|ip| ip.parse().ok())
        .collect();
    Some(network_policy_translation::Pod {
        namespace,
        labels: pod.metadata.labels.unwrap_or_default(),
        addresses: addresses.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(pod: Value) -> Option<network_policy_translation::Pod> {
        reduce_pod(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_has_all_its_addresses_until_it_has_ended() {
        let pod = |phase: &str| {
            json!({ "metadata": { "namespace": "shop", "name": "web", "labels": { "app": "web" } },
                "status": { "phase": phase, "podIP": "10.244.0.5", "podIPs": [{ "ip": "10.244.0.5" }, { "ip": "fd00::5" }] } })
        };
        let running = kept(pod("Running")).unwrap();
        assert_eq!(
            running.addresses,
            ["10.244.0.5", "fd00::5"].map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert_eq!(
            (running.namespace.as_str(), running.labels["app"].as_str()),
            ("shop", "web")
        );
        assert_eq!((kept(pod("Succeeded")), kept(pod("Failed"))), (None, None));
    }
}
