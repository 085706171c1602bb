//! Starts the watches that fill the caches of the [state](super::state), and ties each to its
//! [triggers].

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
    PeeringPolicy, ResourceOffer, VirtualNode, is_final_phase, labels,
};
use liqo_controller_runtime::{
    Cache, Context, Key, PeerConnection,
    cache::{parsed_len, without_managed_fields},
    events::object_ref,
    follow::{FollowedObject, follow_objects},
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
    ConsumerQueues, ConsumerState, EventWatch, FollowedNamespace, NewRemoteProvider, NodeKey,
    PolicySources, RemoteObjects, RemoteProvider, RemoteProviders, TravellingObjects,
    WatchedEvents,
};
use super::triggers;
use super::triggers::{ConsumerTrigger, enqueue_everywhere, enqueue_keys, enqueue_triggers};
use crate::{
    kubelet::{KubeletApi, client_ca},
    metering::UsageRecorder,
    networks::NetworksToPeers,
    provider::RemotePods,
    webhook,
};
use liqo_offloading_rules::json::json_fingerprint;
use liqo_offloading_rules::pod::admission::PoolOffer;
use liqo_offloading_rules::pod::local_state::ConsumerShadowPod;
use liqo_offloading_rules::pod::local_state::JsonPod;
use liqo_offloading_rules::pod::local_state::LocalPod;
use liqo_offloading_rules::pod::remote_events::RemoteEvent;
use liqo_offloading_rules::pod::unscheduled::UnscheduledPod;
use liqo_offloading_rules::replica::disruption_budget::LocalDisruptionBudget;
use liqo_offloading_rules::replica::isolation::may_travel;
use liqo_offloading_rules::replica::kind::ReplicaKind;
use liqo_offloading_rules::replica::network_policy::NormalizedPolicy;
use liqo_offloading_rules::replica::network_policy_translation;
use liqo_offloading_rules::replica::record::LocalIngress;
use liqo_offloading_rules::replica::record::LocalService;
use liqo_offloading_rules::replica::record::LocalSlice;
use liqo_offloading_rules::replica::record::ReflectionRecord;
use liqo_offloading_rules::replica::record::config_map_object;
use liqo_offloading_rules::replica::record::fingerprint_of_secret;

/// Minimum time between two events about skipped events of a namespace: how long API servers keep
/// events.
const SKIPPED_INTERVAL: Duration = Duration::from_hours(1);

/// A watch at a peer is started again after this time, so that one which died silently is noticed.
const WATCH_SECONDS: u32 = 120;

/// Starts the watches of this cluster. Providers that are added to the state are sent to the
/// receiver.
pub fn start_consumer(
    context: Context,
    voucher_key: VoucherKey,
    remote_pods: RemotePods,
) -> (
    Arc<ConsumerState>,
    mpsc::UnboundedReceiver<NewRemoteProvider>,
) {
    let (client, stop) = (context.client.clone(), context.stop.clone());
    let (queues, (peers, new_peers)) = (ConsumerQueues::default(), RemoteProviders::new());
    let queue = queues.namespaces.clone();
    let webhook = webhook::follow_configuration(&context, move |old, new| {
        for key in triggers::webhook_changed(&new.changed_since(old)) {
            queue.add(key);
        }
    });
    let client_authority = client_ca::follow_client_ca(client.clone(), stop);
    let consumer = Arc::new_cyclic(|consumer: &Weak<ConsumerState>| ConsumerState {
        virtual_nodes: watch_virtual_nodes(&context, &queues),
        nodes: watch_nodes(&context, &queues),
        offloadings: watch_offloadings(&context, &queues),
        offers: watch_offers(&context),
        foreign_clusters: watch_foreign_clusters(&context, &queues),
        policies: watch_peering_policies(&context),
        budgets: RwLock::default(),
        networks: watch_networks(&context, consumer.clone()),
        remote_pods,
        recorder: UsageRecorder::start(&context, labels::PROVIDER_ID, "consumer"),
        voucher_key,
        kubelet: KubeletApi::new(
            client,
            Arc::new(kubelet_index::ConsumerPodIndex::new(consumer.clone())),
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

fn watch_offers(context: &Context) -> Cache<PoolOffer> {
    // Who needs one asks again and again.
    context.informers.of_kind::<ResourceOffer>().reduced_cache(
        context.stop.clone(),
        PoolOffer::from_resource_offer,
        |_, _, _| (),
    )
}

fn watch_virtual_nodes(context: &Context, queues: &ConsumerQueues) -> Cache<VirtualNode> {
    let queues = queues.clone();
    context
        .informers
        .of_kind::<VirtualNode>()
        .cache(context.stop.clone(), move |key, old, new| {
            enqueue_keys(
                &queues,
                triggers::virtual_node_changed(key, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
            );
        })
}

fn watch_nodes(context: &Context, queues: &ConsumerQueues) -> Cache<Value> {
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

fn watch_offloadings(context: &Context, queues: &ConsumerQueues) -> Cache<NamespaceOffloading> {
    let queues = queues.clone();
    context.informers.of_kind::<NamespaceOffloading>().cache(
        context.stop.clone(),
        move |key, old, new| {
            enqueue_keys(
                &queues,
                (
                    Vec::new(),
                    triggers::offloading_changed(
                        key,
                        old.map(AsRef::as_ref),
                        new.map(AsRef::as_ref),
                    ),
                ),
            );
        },
    )
}

fn watch_foreign_clusters(context: &Context, queues: &ConsumerQueues) -> Cache<ForeignCluster> {
    let queues = queues.clone();
    context
        .informers
        .of_kind::<ForeignCluster>()
        .cache(context.stop.clone(), move |_, _, new| {
            enqueue_keys(
                &queues,
                (
                    triggers::foreign_cluster_changed(new.map(AsRef::as_ref))
                        .into_iter()
                        .collect(),
                    Vec::new(),
                ),
            );
        })
}

fn watch_peering_policies(context: &Context) -> Cache<PeeringPolicy> {
    context.informers.of_kind::<PeeringPolicy>().reduced_cache(
        context.stop.clone(),
        without_status,
        |_, _, _| {},
    )
}

/// While the state is being created there are no providers yet, so no change is lost.
fn watch_networks(context: &Context, consumer: Weak<ConsumerState>) -> NetworksToPeers {
    NetworksToPeers::follow(context, move |id, old, new| {
        if let Some(consumer) = consumer.upgrade()
            && let Some(peer) = consumer.peers.get(&id)
        {
            enqueue_triggers(&consumer, &peer, triggers::network_changed(old, new));
        }
    })
}

/// Adds triggers at every provider, as long as the state exists.
fn enqueue_if_alive(consumer: &Weak<ConsumerState>, triggers: &[ConsumerTrigger]) {
    if let Some(consumer) = consumer.upgrade() {
        enqueue_everywhere(&consumer, triggers);
    }
}

/// Watches the pods on the Node of a virtual node.
pub fn pods(
    consumer: &Arc<ConsumerState>,
    virtual_node: &Key,
    peer: Arc<RemoteProvider>,
    node: &str,
    stop: CancellationToken,
) -> Cache<LocalPod> {
    let (state, virtual_node, node_key) = (
        Arc::downgrade(consumer),
        virtual_node.clone(),
        virtual_node.clone(),
    );
    Cache::watch(
        Api::<JsonPod>::all(consumer.context.client.clone()),
        watcher::Config::default().fields(&format!("spec.nodeName={node}")),
        stop,
        move |pod| LocalPod::from_pod(pod, &virtual_node),
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
                enqueue_triggers(&consumer, &peer, triggers::local_pod_changed(old, new));
                enqueue_everywhere(
                    &consumer,
                    &triggers::budget_pod_changed(old, new, |namespace| {
                        consumer.disruption_budgets(namespace)
                    }),
                );
            }
        },
    )
}

/// Watches the objects in our tenant namespace at a provider.
pub fn remote(
    consumer: &Arc<ConsumerState>,
    peer: &Arc<RemoteProvider>,
    connection: Arc<PeerConnection>,
    stop: &CancellationToken,
) -> RemoteObjects {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let (enqueue, seen) = (enqueue_at_peer(consumer, peer), peer.clone());
    let shadows = Cache::watch_provider(
        &connection,
        config.clone(),
        stop.clone(),
        ConsumerShadowPod::stored_len,
        ConsumerShadowPod::from_claimed,
        move |key, old, new| {
            seen.observe_shadow(&key.name, old.filter(|_| new.is_none()));
            enqueue(triggers::shadow_pod_changed(&key.name).into());
        },
    );
    let enqueue = enqueue_at_peer(consumer, peer);
    let maps = Cache::watch_provider(
        &connection,
        config.clone(),
        stop.clone(),
        parsed_len::<NamespaceMap>,
        |map: Claimed<NamespaceMap>| without_managed_fields(map.into_unverified()),
        move |_, old, new| {
            enqueue(triggers::namespace_map_changed(
                old.map(AsRef::as_ref),
                new.map(AsRef::as_ref),
            ));
        },
    );
    let objects = Cache::watch_provider(
        &connection,
        config.clone(),
        stop.clone(),
        ReflectionRecord::stored_len,
        |object: Claimed<_>| ReflectionRecord::from_object(object.into_unverified()),
        observe_records(consumer, peer),
    );
    let reflected = config.labels(&format!("{}=true", labels::REFLECTED));
    let secrets = Cache::watch_provider(
        &connection,
        reflected,
        stop.clone(),
        ReflectionRecord::stored_len,
        |secret: Claimed<_>| ReflectionRecord::from_secret(secret.into_unverified()),
        observe_records(consumer, peer),
    );
    RemoteObjects {
        connection,
        shadows,
        maps,
        objects,
        secrets,
        event_watches: Mutex::default(),
        stop: stop.clone(),
    }
}

/// A function that enqueues triggers at this provider.
fn enqueue_at_peer(
    consumer: &Arc<ConsumerState>,
    peer: &Arc<RemoteProvider>,
) -> impl Fn(Vec<ConsumerTrigger>) + Send + 'static {
    let (state, peer) = (Arc::downgrade(consumer), peer.clone());
    move |triggers| {
        if let Some(consumer) = state.upgrade() {
            enqueue_triggers(&consumer, &peer, triggers);
        }
    }
}

/// A function for the watches of records at this provider, called with each change.
fn observe_records(
    consumer: &Arc<ConsumerState>,
    peer: &Arc<RemoteProvider>,
) -> impl Fn(&Key, Option<&Arc<ReflectionRecord>>, Option<&Arc<ReflectionRecord>>) + Send + 'static
{
    let enqueue = enqueue_at_peer(consumer, peer);
    let (seen, state) = (peer.clone(), Arc::downgrade(consumer));
    move |_, old, new| {
        for record in [old, new].into_iter().flatten() {
            seen.observe_record(&record.own_reference());
        }
        let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
        enqueue(triggers::record_changed(old, new));
        enqueue_if_alive(&state, &triggers::draining_changed(old, new));
    }
}

/// Watches events about pods in the provider's namespace `mapped`, which is ours by the name of
/// `namespace`.
pub fn watch_remote_events(
    consumer: &Arc<ConsumerState>,
    peer: &Arc<RemoteProvider>,
    remote: &RemoteObjects,
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
    let mut seen = follow_objects(Api::<Event>::namespaced(client, mapped), config, limits);
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
                FollowedObject::Object(event) => event,
                FollowedObject::Skipped(limit) => {
                    let Some(consumer) = consumer.upgrade() else {
                        return;
                    };
                    if told.is_none_or(|told| told.elapsed() >= SKIPPED_INTERVAL)
                        && report_skipped_events(&consumer, &peer, &namespace, limit).await
                    {
                        told = Some(Instant::now());
                    }
                    continue;
                }
            };
            // Reduced first: a whole event takes more memory.
            let event = RemoteEvent::from_event(event, &here, selection, clock.now());
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
async fn report_skipped_events(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
    namespace: &str,
    limit: LimitExceeded,
) -> bool {
    let key = Key::new(namespace, NAMESPACE_OFFLOADING);
    let (Some(offloading), Some(remote)) = (consumer.offloadings.get(&key), peer.remote()) else {
        return false;
    };
    let provider = if consumer.is_brokered(namespace) {
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
        .record_warning(&object, "EventsSkipped", note)
        .await;
    true
}

/// Takes over an event, if it is about a pod of this namespace that is on a virtual node of this
/// provider.
fn remote_event(
    consumer: &ConsumerState,
    peer: &RemoteProvider,
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
        .and_then(|remote| remote.shadow_pod(&pod.uid)?.remote_uid.clone());
    if peer.journal.lock().event_arrived(
        &pod.uid,
        remote_uid.as_deref(),
        event,
        Instant::now().into_std(),
    ) {
        enqueue_triggers(consumer, peer, [triggers::remote_event_changed(&pod.uid)]);
    }
}

/// Watches the objects of a namespace, from when the manager may read them until the namespace is
/// no longer offloaded.
pub fn follow_namespace(consumer: &Arc<ConsumerState>, namespace: &str) {
    let mut followed = consumer.followed.lock();
    if followed.contains_key(namespace) {
        return;
    }
    let (client, stop) = (
        consumer.context.client.clone(),
        consumer.context.stop.child_token(),
    );
    let config = watcher::Config::default;

    let weak = Arc::downgrade(consumer);
    let config_maps = Cache::watch(
        Api::<ConfigMap>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        |map| Some(json_fingerprint(&config_map_object(&map))),
        move |key, _, _| {
            enqueue_if_alive(
                &weak,
                &[triggers::named_object_changed(ReplicaKind::ConfigMap, key)],
            );
        },
    );
    let weak = Arc::downgrade(consumer);
    let secrets = Cache::watch(
        Api::<Secret>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        |secret| Some(fingerprint_of_secret(&secret)),
        move |key, _, _| {
            enqueue_if_alive(
                &weak,
                &[triggers::named_object_changed(ReplicaKind::Secret, key)],
            );
        },
    );
    let weak = Arc::downgrade(consumer);
    let slices = Cache::watch(
        Api::<EndpointSlice>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        LocalSlice::from_endpoint_slice,
        move |key, _, _| {
            enqueue_if_alive(
                &weak,
                &[triggers::object_changed(ReplicaKind::EndpointSlice, key)],
            );
        },
    );
    let weak = Arc::downgrade(consumer);
    let ingresses = Cache::watch(
        Api::<Ingress>::namespaced(client.clone(), namespace),
        config(),
        stop.clone(),
        LocalIngress::from_ingress,
        move |key, old, new| {
            enqueue_if_alive(
                &weak,
                &triggers::ingress_changed(key, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
            );
        },
    );
    let (weak, all_slices) = (Arc::downgrade(consumer), slices.clone());
    let services = Cache::watch(
        Api::<Service>::namespaced(client, namespace),
        config(),
        stop.clone(),
        LocalService::from_service,
        move |key, old, new| {
            let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            enqueue_if_alive(
                &weak,
                &triggers::service_changed(key, old, new, &all_slices.all()),
            );
        },
    );
    let policies = watch_policies(consumer, namespace, stop.clone());
    let budgets = watch_budgets(consumer, namespace, stop.clone());
    let unscheduled = watch_unscheduled_pods(consumer, namespace, stop.clone());
    let objects = TravellingObjects {
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
fn watch_unscheduled_pods(
    consumer: &Arc<ConsumerState>,
    namespace: &str,
    stop: CancellationToken,
) -> Cache<UnscheduledPod> {
    let api: Api<JsonPod> = Api::namespaced(consumer.context.client.clone(), namespace);
    let (queue, weak) = (
        consumer.queues.unscheduled.clone(),
        Arc::downgrade(consumer),
    );
    Cache::watch(
        api,
        watcher::Config::default().fields("spec.nodeName="),
        stop,
        UnscheduledPod::from_pod,
        move |key, old, new| {
            let (old, new) = (old.map(AsRef::as_ref), new.map(AsRef::as_ref));
            if let Some(due) = triggers::unscheduled_pod_changed(key, new) {
                queue.add(due);
            }
            if triggers::may_be_at_home(old, new)
                && let Some(consumer) = weak.upgrade()
            {
                triggers::enqueue_pods_running_here(&consumer, &key.namespace);
            }
        },
    )
}

fn watch_policies(
    consumer: &Arc<ConsumerState>,
    namespace: &str,
    stop: CancellationToken,
) -> Cache<NormalizedPolicy> {
    // As JSON: a field that this version does not know must not vanish unseen.
    let resource = ApiResource::erase::<v1::NetworkPolicy>(&());
    let api: Api<DynamicObject> =
        Api::namespaced_with(consumer.context.client.clone(), namespace, &resource);
    let cluster = consumer.context.cluster_id.clone();
    let weak = Arc::downgrade(consumer);
    Cache::watch(
        api,
        watcher::Config::default(),
        stop,
        move |object: DynamicObject| {
            let travels = !is_denied(&object) && may_travel(&object, &cluster);
            travels.then(|| NormalizedPolicy::from_spec(&object.data["spec"]))
        },
        move |key, _, _| {
            enqueue_if_alive(
                &weak,
                &[triggers::object_changed(ReplicaKind::NetworkPolicy, key)],
            );
        },
    )
}

fn watch_budgets(
    consumer: &Arc<ConsumerState>,
    namespace: &str,
    stop: CancellationToken,
) -> Cache<LocalDisruptionBudget> {
    let api = Api::<PodDisruptionBudget>::namespaced(consumer.context.client.clone(), namespace);
    let weak = Arc::downgrade(consumer);
    Cache::watch(
        api,
        watcher::Config::default(),
        stop,
        LocalDisruptionBudget::from_budget,
        move |key, _, _| {
            enqueue_if_alive(
                &weak,
                &[triggers::object_changed(
                    ReplicaKind::PodDisruptionBudget,
                    key,
                )],
            );
        },
    )
}

fn enqueue_when_listed(consumer: &Arc<ConsumerState>, namespace: &str, objects: TravellingObjects) {
    let TravellingObjects {
        services,
        slices,
        ingresses,
        policies,
        budgets,
    } = objects;
    let (weak, name) = (Arc::downgrade(consumer), namespace.to_owned());
    tokio::spawn(async move {
        if services.wait_until_synced().await
            && slices.wait_until_synced().await
            && ingresses.wait_until_synced().await
        {
            enqueue_if_alive(&weak, &[triggers::services_listed(&name)]);
        }
    });
    let (weak, name) = (Arc::downgrade(consumer), namespace.to_owned());
    tokio::spawn(async move {
        if policies.wait_until_synced().await {
            enqueue_if_alive(&weak, &[triggers::policies_listed(&name)]);
        }
    });
    let (weak, name) = (Arc::downgrade(consumer), namespace.to_owned());
    tokio::spawn(async move {
        if budgets.wait_until_synced().await {
            enqueue_if_alive(&weak, &[triggers::budgets_listed(&name)]);
        }
    });
}

/// Watches the pods and namespaces that policies select from.
pub fn watch_policy_sources(consumer: &Arc<ConsumerState>) -> PolicySources {
    let Context {
        client,
        informers,
        stop,
        ..
    } = &consumer.context;
    let weak = Arc::downgrade(consumer);
    let namespaces = informers.of_kind::<Namespace>().reduced_cache(
        stop.clone(),
        |namespace| Some(namespace.metadata.labels.unwrap_or_default()),
        move |_, _, _| enqueue_if_alive(&weak, &[triggers::policy_sources_changed()]),
    );
    let (weak, known) = (Arc::downgrade(consumer), namespaces.clone());
    let pods = Cache::watch(
        Api::<Pod>::all(client.clone()),
        watcher::Config::default(),
        stop.clone(),
        reduce_pod,
        move |_, old, new| {
            let Some(consumer) = weak.upgrade() else {
                return;
            };
            let changed: Vec<&network_policy_translation::PolicyPod> = [old, new]
                .into_iter()
                .flatten()
                .map(AsRef::as_ref)
                .collect();
            let policies: Vec<_> = consumer
                .local_objects_in(None)
                .iter()
                .flat_map(|objects| objects.policies.all())
                .collect();
            let due = triggers::policy_pod_changed(
                &changed,
                |namespace| known.get(&Key::new("", namespace)),
                &policies,
            );
            enqueue_everywhere(&consumer, &due);
        },
    );
    let (weak, all) = (Arc::downgrade(consumer), (namespaces.clone(), pods.clone()));
    tokio::spawn(async move {
        if all.0.wait_until_synced().await && all.1.wait_until_synced().await {
            enqueue_if_alive(&weak, &[triggers::policy_sources_changed()]);
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
pub fn reduce_pod(pod: Pod) -> Option<network_policy_translation::PolicyPod> {
    let namespace = pod.namespace()?;
    let status = pod.status.unwrap_or_default();
    if status.phase.as_deref().is_some_and(is_final_phase) {
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
    Some(network_policy_translation::PolicyPod {
        namespace,
        labels: pod.metadata.labels.unwrap_or_default(),
        addresses: addresses.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(pod: Value) -> Option<network_policy_translation::PolicyPod> {
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
