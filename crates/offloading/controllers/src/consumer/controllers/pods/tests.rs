//! A consumer and a provider, both with an API server that says little.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Response};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use liqo_api::{Claimed, ClusterId};
use liqo_controller_runtime::{ConnectionHealth, PeerConnection, watch};
use liqo_metering::{Voucher, VoucherKey};

use super::send::{NO_POLICIES_RETRY, SendingMark};
use super::*;
use crate::consumer::controllers::connections;
use crate::consumer::{run_peers, watches};
use crate::provider::ProviderState;
use crate::testing;
use liqo_offloading_rules::replica::kind::ReplicaKind;

/// An API server with these objects, by the last part of the path at which they are listed; it
/// reports no change, and creates objects as long as `answer` lets it.
pub(in crate::consumer) fn api_server<F>(
    objects: Value,
    answer: impl Fn(&Method, &str) -> F + Clone + Send + Sync + 'static,
) -> Client
where
    F: Future<Output = bool> + Send,
{
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (objects, answer) = (objects.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            if parts
                .uri
                .query()
                .is_some_and(|query| query.contains("watch=true"))
            {
                std::future::pending::<()>().await;
            }
            let kind = parts.uri.path().rsplit('/').next().unwrap_or_default();
            let (status, object) = if !answer(&parts.method, kind).await {
                (
                    403,
                    json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403 }),
                )
            } else if parts.method == Method::GET {
                let items = objects.get(kind).cloned().unwrap_or_else(|| json!([]));
                (
                    200,
                    json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items }),
                )
            } else {
                (
                    201,
                    serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap(),
                )
            };
            Ok::<_, Infallible>(
                Response::builder()
                    .status(status)
                    .body(Body::from(object.to_string().into_bytes()))
                    .unwrap(),
            )
        }
    });
    Client::new(service, "default")
}

/// The key of the cluster of these tests.
fn voucher_key() -> VoucherKey {
    VoucherKey::derive(b"rome")
}

/// The state, with the controllers of providers.
pub(in crate::consumer) fn started(client: Client) -> Arc<ConsumerState> {
    let context = testing::context("rome", client);
    let remote_pods = ProviderState::start(context.clone()).remote_pods();
    let (consumer, new_peers) = watches::start_consumer(context, voucher_key(), remote_pods);
    tokio::spawn(run_peers(consumer.clone(), new_peers));
    consumer
}

pub(in crate::consumer) async fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = found() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking)
        .await
        .expect("it comes")
}

fn provider() -> ClusterId {
    ClusterId::of_public_key(&[2; 32])
}

fn virtual_node() -> Value {
    json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "VirtualNode",
        "metadata": { "namespace": "tenant", "name": "milan", "resourceVersion": "1" }, "status": { "nodeName": "milan" },
        "spec": { "clusterID": provider(), "clusterName": "milan", "pool": "default", "resources": {} } })
}

/// The objects here: a virtual node, and a namespace that is offloaded like this.
pub(in crate::consumer) fn here(offloading: &Value) -> Value {
    json!({ "virtualnodes": [virtual_node()],
        "nodes": [{ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "milan", "labels": { "region": "us" }, "resourceVersion": "1" } }],
        "namespaceoffloadings": [{ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading", "spec": offloading,
            "metadata": { "namespace": "demo", "name": liqo_api::NAMESPACE_OFFLOADING, "resourceVersion": "1" } }] })
}

/// The map of namespaces at the provider, which has that namespace.
pub fn mapping() -> Value {
    json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
        "metadata": { "namespace": "tenant", "name": liqo_api::NAMESPACE_MAP, "uid": "m", "resourceVersion": "1" },
        "spec": { "mappings": { "demo": { "remoteName": "demo-rome" } } },
        "status": { "namespaces": { "demo": { "remoteName": "demo-rome", "phase": "Ready" } } } })
}

/// The provider, when it answers and has the namespace.
pub async fn connected(
    consumer: &Arc<ConsumerState>,
    there: Client,
) -> (
    Arc<RemoteProvider>,
    Arc<RemoteObjects>,
    watch::Sender<ConnectionHealth>,
) {
    let id = provider();
    let (healthy, health) = watch::channel(ConnectionHealth::Reachable);
    let connection = PeerConnection {
        cluster_id: id.clone(),
        cluster_name: "milan".into(),
        foreign_cluster: "milan".into(),
        client: there,
        tenant_namespace: "tenant".into(),
        protocol_version: 1,
        health,
        limits: consumer.context.peers.limits_of(&id),
        ended: CancellationToken::new(),
    };
    tokio::spawn(connections::follow_connection(
        consumer.clone(),
        Arc::new(connection),
    ));
    watches::follow_namespace(consumer, "demo");
    let peer = consumer.remote_provider(&id);
    let remote = until(|| peer.answering_remote()).await;
    until(|| remote.mapped_namespace("demo")).await;
    (peer, remote, healthy)
}

#[tokio::test]
async fn a_pod_is_sent_after_the_policies_of_its_namespace() {
    // Here the policies are not listed before `told`; the provider accepts none before `taken`.
    let (told, taken) = (watch::channel(false), watch::channel(false));
    let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "demo", "name": "closed", "resourceVersion": "1" }, "spec": { "podSelector": {} } });
    let (is_told, shown) = (told.1.clone(), Arc::new(parking_lot::Mutex::new(0)));
    let showing = shown.clone();
    let mut here = here(&json!({}));
    here["networkpolicies"] = json!([policy]);
    let home = api_server(here, move |_, kind| {
        *showing.lock() += usize::from(kind == "status");
        let (mut told, waits) = (is_told.clone(), kind == "networkpolicies");
        async move { !waits || told.wait_for(|told| *told).await.is_ok() }
    });
    let made: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let (is_taken, making) = (taken.1.clone(), made.clone());
    let there = api_server(
        json!({ "namespacemaps": [mapping()] }),
        move |method, kind| {
            let refused = kind == "reflectedobjects" && !*is_taken.borrow();
            if *method == Method::POST && !refused {
                making.lock().push(kind.to_owned());
            }
            std::future::ready(*method == Method::GET || !refused)
        },
    );

    let consumer = started(home);
    let (peer, remote, _healthy) = connected(&consumer, there).await;
    let node: VirtualNode = serde_json::from_value(virtual_node()).unwrap();
    let local_pod = |status: Value| {
        let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "image": "i" }] }, "status": status });
        LocalPod::from_pod(
            serde_json::from_value(pod).unwrap(),
            &Key::new("tenant", "milan"),
        )
        .unwrap()
    };
    let pod = local_pod(json!({}));
    let facts = LocalPodFacts {
        home: Some(&pod),
        shadow: None,
        peer: local::PeerReachability::Answers,
        ran: LastRunPlace::Elsewhere,
        namespace: RemoteNamespaceState::Ready,
        tenancy: None,
        sent: local::SendProgress::No,
        removed: false,
        eviction_delay: None,
        is_brokered: false,
        may_run_here: Some(true),
        stuck: None,
        refusal_timeout: Duration::from_mins(5),
        now: consumer.context.now(),
    };
    let pass = LocalPodReconciliation {
        consumer: &consumer,
        peer: &peer,
        remote: Some(remote.as_ref()),
        node: Some(&node),
        pod: &pod,
        facts: &facts,
    };

    assert_eq!(
        pass.send_pod(SendingMark::LeaveAsIs).await.unwrap(),
        Requeue::After(NO_POLICIES_RETRY),
        "it is not known which policies there are"
    );
    told.0.send_replace(true);
    until(|| consumer.network_policies("demo")).await;
    assert_eq!(
        pass.send_pod(SendingMark::LeaveAsIs).await.unwrap(),
        Requeue::After(NO_POLICIES_RETRY),
        "the provider does not have the policy"
    );
    assert_eq!(*made.lock(), [] as [&str; 0]);
    assert_eq!(*shown.lock(), 0, "it is not known to wait for long");
    let condition = json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let waiting = LocalPodReconciliation {
        pod: &local_pod(json!({ "conditions": [condition] })),
        ..pass
    };
    assert_eq!(
        waiting.send_pod(SendingMark::LeaveAsIs).await.unwrap(),
        Requeue::After(NO_POLICIES_RETRY)
    );
    assert_eq!(*shown.lock(), 1, "one that waits for long says so");
    taken.0.send_replace(true);
    let sent = async {
        while pass.send_pod(SendingMark::LeaveAsIs).await.unwrap() != Requeue::OnChange {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), sent)
        .await
        .expect("the pod is sent");
    // The worker may have recorded it, too.
    let mut made = made.lock().clone();
    made.dedup();
    assert_eq!(made[..2], ["reflectedobjects", "shadowpods"]);
    consumer.context.stop.cancel();
}

/// The API server writes a grace of zero before it deletes the object.
#[tokio::test]
async fn a_removal_that_failed_half_way_is_tried_again_and_one_that_succeeded_is_not() {
    let removals = Arc::new(AtomicUsize::new(0));
    let counted = removals.clone();
    let home = api_server(here(&json!({})), move |method, name| {
        let is_removal = *method == Method::DELETE && name == "web";
        std::future::ready(!is_removal || counted.fetch_add(1, Ordering::SeqCst) > 0)
    });
    let there = api_server(json!({ "namespacemaps": [mapping()] }), |_, _| {
        std::future::ready(true)
    });
    let consumer = started(home);
    let (peer, _remote, _healthy) = connected(&consumer, there).await;
    let pod = |grace: i64| {
        let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace }, "spec": { "containers": [] } });
        Arc::new(
            LocalPod::from_pod(
                serde_json::from_value(pod).unwrap(),
                &Key::new("tenant", "milan"),
            )
            .unwrap(),
        )
    };
    let (ending, half_removed) = (pod(30), pod(0));
    peer.pod_changed(None, Some(&ending));
    peer.pod_queue.add("u".to_owned());
    until(|| (removals.load(Ordering::SeqCst) > 0).then_some(())).await;
    peer.pod_changed(Some(&ending), Some(&half_removed));
    until(|| peer.is_removed("u").then_some(())).await;
    assert_eq!(removals.load(Ordering::SeqCst), 2);
    // The watch does not show yet that it is gone.
    peer.pod_queue.add("u".to_owned());
    until(|| peer.pod_queue.is_empty().then_some(())).await;
    assert_eq!(removals.load(Ordering::SeqCst), 2);
    consumer.context.stop.cancel();
}

#[tokio::test]
async fn a_provider_that_is_not_selected_gets_no_key_whatever_it_writes_itself() {
    let ingress = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": { "namespace": "demo", "name": "shop", "resourceVersion": "1" },
        "spec": { "rules": [{ "host": "shop.example.com" }], "tls": [{ "hosts": ["shop.example.com"], "secretName": "cert" }] } });
    let of_ingress = Reference {
        kind: ReplicaKind::Ingress,
        namespace: "demo".into(),
        name: "shop".into(),
    };
    let object = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": { "name": "shop" } });
    let record = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ReflectedObject",
        "metadata": { "namespace": "tenant", "name": of_ingress.record_name(), "resourceVersion": "1" },
        "spec": { "namespace": "demo", "object": object.to_string() },
        "status": { "exposure": { "class": "public" } } });
    let key = Reference {
        kind: ReplicaKind::Secret,
        namespace: "demo".into(),
        name: "cert".into(),
    };
    let names = async |offloading: Value| {
        let mut here = here(&offloading);
        here["ingresses"] = json!([ingress]);
        let consumer = started(api_server(here, |_, _| std::future::ready(true)));
        let there = json!({ "namespacemaps": [mapping()], "reflectedobjects": [record] });
        let there = api_server(there, |method, _| {
            std::future::ready(*method == Method::GET)
        });
        let (peer, remote, _healthy) = connected(&consumer, there).await;
        until(|| remote.record(&of_ingress)).await;
        let names = until(|| consumer.is_named_by_ingress(&peer, &remote, &key)).await;
        consumer.context.stop.cancel();
        names
    };
    let region = |name: &str| json!({ "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "region", "operator": "In", "values": [name] }] }] });
    assert!(names(json!({})).await && names(json!({ "clusterSelector": region("us") })).await);
    assert!(!names(json!({ "clusterSelector": region("eu") })).await);
    assert!(!names(json!({ "reflection": "AllowList" })).await);
}

/// These objects, with a contract in force.
fn with_contract(mut objects: Value) -> Value {
    let limits = json!({ "podSecurity": "baseline", "maxNamespaces": 1, "maxServices": 1, "maxEndpoints": 1, "charge": "Requests",
        "defaultLimitPercentage": 800 });
    let prices = json!({ "default": { "currency": "EUR", "rates": { "cpu": "3600" } } });
    let since = "2026-01-01T00:00:00Z";
    let terms = json!({ "contract": "c", "version": 1, "provider": provider(), "consumer": ClusterId::of_public_key(&[1; 32]),
        "commitment": "BestEffort", "pools": [], "classes": {}, "prices": prices, "noticeSeconds": 0, "limits": limits, "start": since,
        "renewal": "None", "meteringPeriodSeconds": 3600 });
    objects["contracts"] = json!([{ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "Contract",
        "metadata": { "namespace": provider_namespace(&provider()), "name": "contract-c", "resourceVersion": "1",
            "labels": { liqo_api::labels::PROVIDER_ID: provider() } },
        "spec": { "document": "", "terms": terms, "inForceSince": since } }]);
    objects
}

/// A pod with UID `u` that ended and is being deleted, bound a minute ago; its shadow pod, and the
/// charges.
fn ended_pod() -> (Arc<LocalPod>, Value, String) {
    let now = testing::clock().now().as_second();
    let charges = format!("{}-{} cpu=1,memory=16777216,pods=1", now - 50, now - 10);
    let bound = Timestamp::from_second(now - 60).unwrap().to_string();
    let conditions = json!([{ "type": "PodScheduled", "status": "True", "lastTransitionTime": bound },
        { "type": "liqo.io/Offloaded", "status": "True", "reason": "Sent", "lastTransitionTime": bound }]);
    let resources =
        json!({ "requests": { "cpu": "1", "memory": "16Mi" }, "limits": { "memory": "16Mi" } });
    let pod = json!({ "metadata": { "namespace": "demo", "name": "job", "uid": "u", "creationTimestamp": bound,
            "deletionTimestamp": bound, "deletionGracePeriodSeconds": 30, "finalizers": ["batch.kubernetes.io/job-tracking"] },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i", "resources": resources }] },
        "status": { "phase": "Succeeded", "conditions": conditions } });
    let carried = json!({ "metadata": { "name": "job" }, "spec": {} });
    let shadow = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "namespace": "tenant", "name": "u", "resourceVersion": "1", "finalizers": ["liqo.io/shadow-pod"] },
        "spec": { "namespace": "demo", "pool": "default", "pod": carried.to_string() },
        "status": { "phase": "Succeeded", "pod": { "phase": "Succeeded" }, "charges": charges } });
    let pod = LocalPod::from_pod(
        serde_json::from_value(pod).unwrap(),
        &Key::new("tenant", "milan"),
    )
    .unwrap();
    (Arc::new(pod), shadow, charges)
}

/// What happened in both clusters, in order: kinds of objects that were written here, and calls
/// that deleted something there.
type Calls = Arc<parking_lot::Mutex<Vec<String>>>;

/// A consumer with a contract and this pod, whose provider has these shadow pods.
async fn metered(
    pod: Option<&Arc<LocalPod>>,
    shadows: Value,
) -> (
    Arc<ConsumerState>,
    Arc<RemoteProvider>,
    Calls,
    watch::Sender<ConnectionHealth>,
) {
    let calls = Calls::default();
    let (made, deleted) = (calls.clone(), calls.clone());
    let home = api_server(with_contract(here(&json!({}))), move |method, kind| {
        if *method == Method::POST {
            made.lock().push(kind.to_owned());
        }
        std::future::ready(true)
    });
    let there = api_server(
        json!({ "namespacemaps": [mapping()], "shadowpods": shadows }),
        move |method, name| {
            if *method == Method::DELETE {
                deleted.lock().push(format!("delete {name}"));
            }
            std::future::ready(true)
        },
    );
    let consumer = started(home);
    tokio::spawn(consumer.recorder.clone().run(Arc::new(
        crate::consumer::metered_pods::ConsumerMetering(consumer.clone()),
    )));
    consumer.remote_provider(&provider()).pod_changed(None, pod);
    let (peer, _remote, healthy) = connected(&consumer, there).await;
    (consumer, peer, calls, healthy)
}

#[tokio::test]
async fn a_pod_that_the_api_server_removed_together_with_its_shadow_pod_is_stored() {
    let (pod, shadow, charges) = ended_pod();
    let (consumer, peer, calls, _healthy) = metered(None, json!([])).await;
    peer.pod_changed(None, Some(&pod));
    peer.observe_charges(
        &pod,
        &ConsumerShadowPod::from_claimed(Claimed::new(serde_json::from_value(shadow).unwrap()))
            .unwrap(),
    );
    peer.pod_changed(Some(&pod), None);
    let open = crate::metering::MeteringSide::open_entries(
        &crate::consumer::metered_pods::ConsumerMetering(consumer.clone()),
        &provider_namespace(&provider()),
        testing::clock().now().as_second(),
    );
    assert!(
        open.is_none_or(|open| open.len() == 1),
        "it counts until its entry is stored"
    );
    peer.pod_queue.add("u".to_owned());
    until(|| {
        calls
            .lock()
            .iter()
            .any(|kind| kind == "usagerecords")
            .then_some(())
    })
    .await;
    until(|| peer.gone_pod("u").is_none().then_some(())).await;
    assert!(
        peer.seen_charges("u").is_none(),
        "then it is forgotten: {charges}"
    );
    consumer.context.stop.cancel();
}

#[tokio::test]
async fn what_a_pod_used_that_has_ended_is_stored_before_its_shadow_pod_goes() {
    let (pod, shadow, _) = ended_pod();
    let (consumer, peer, calls, _healthy) = metered(Some(&pod), json!([shadow])).await;
    peer.pod_queue.add("u".to_owned());
    until(|| {
        calls
            .lock()
            .iter()
            .any(|call| call.starts_with("delete"))
            .then_some(())
    })
    .await;
    let first = |call: &str| calls.lock().iter().position(|one| one == call);
    assert!(
        first("usagerecords").is_some_and(|stored| Some(stored) < first("delete u")),
        "{:?}",
        calls.lock()
    );
    consumer.context.stop.cancel();
}

#[tokio::test]
async fn a_pod_that_was_never_charged_leaves_an_entry_before_its_shadow_pod_goes() {
    let amounts = vec![[("cpu", "1".parse().unwrap())].into_iter().collect()];
    let (namespace, pool, sent) = (
        "demo".to_owned(),
        "default".to_owned(),
        testing::clock().now().as_second() - 60,
    );
    let voucher = voucher_key().write_voucher(
        provider().as_str(),
        "u",
        &Voucher {
            namespace,
            pool,
            sent,
            amounts,
        },
    );
    let (_, mut shadow, _) = ended_pod();
    shadow["metadata"]["annotations"] = json!({ annotations::VOUCHER: voucher });
    shadow["status"] = json!({});
    let (consumer, _peer, calls, _healthy) = metered(None, json!([shadow])).await;
    until(|| {
        calls
            .lock()
            .iter()
            .any(|call| call == "delete u")
            .then_some(())
    })
    .await;
    let first = |call: &str| calls.lock().iter().position(|one| one == call);
    assert!(
        first("usagerecords").is_some_and(|stored| Some(stored) < first("delete u")),
        "{:?}",
        calls.lock()
    );
    consumer.context.stop.cancel();
}

#[tokio::test]
async fn a_pod_that_only_the_provider_knows_costs_no_namespace_anything() {
    let objects = with_contract(here(&json!({})));
    let now = testing::clock().now().as_second();
    let shadow = |uid: &str, voucher: Option<String>| {
        json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
            "metadata": { "namespace": "tenant", "name": uid, "resourceVersion": "1",
                "annotations": voucher.map(|voucher| json!({ annotations::VOUCHER: voucher })) },
            "spec": { "namespace": "shop", "pool": "dear", "pod": "{}" },
            "status": { "charges": format!("{}- cpu=1", now - 60) } })
    };
    let voucher = |uid: &str, sent: i64| {
        let amounts = vec![[("cpu", "1".parse().unwrap())].into_iter().collect()];
        let (namespace, pool) = ("demo".to_owned(), "default".to_owned());
        voucher_key().write_voucher(
            provider().as_str(),
            uid,
            &Voucher {
                namespace,
                pool,
                sent,
                amounts,
            },
        )
    };
    let shadows = json!([
        shadow("invented", None),
        shadow("copied", voucher("sent", now - 62)),
        shadow("sent", voucher("sent", now - 62)),
        // Its amounts are right, and its time is not.
        shadow("moved", voucher("moved", now - 10)),
    ]);
    let there = api_server(
        json!({ "namespacemaps": [mapping()], "shadowpods": shadows }),
        |_, _| std::future::ready(true),
    );
    let consumer = started(api_server(objects, |_, _| std::future::ready(true)));
    let (peer, remote, _healthy) = connected(&consumer, there).await;
    let costs = until(|| {
        let costs = consumer
            .accounts_with_provider(&provider())
            .pop()?
            .spent(liqo_api::BudgetPeriod::Month, now + 1);
        (!costs.total("EUR").is_zero()).then_some(costs)
    })
    .await;
    assert_eq!(costs.of_namespace("EUR", "shop"), liqo_api::Money::ZERO);
    assert_eq!(
        costs.of_namespace("EUR", "demo"),
        costs.total("EUR"),
        "only the pod that this cluster sent, in its own namespace"
    );
    for (uid, seconds) in [
        ("invented", None),
        ("copied", None),
        ("sent", Some(60..=61)),
        ("moved", Some(10..=16)),
    ] {
        let entries =
            consumer.entries_of_orphan(&peer, uid, &remote.shadow_pod(uid).unwrap(), None, now);
        let counted = entries
            .iter()
            .find(|entry| !entry.amounts.is_empty())
            .map(liqo_metering::UsageEntry::seconds);
        assert!(
            counted.is_none() == seconds.is_none()
                && seconds.is_none_or(|all| all.contains(&counted.unwrap())),
            "{uid} {counted:?}"
        );
        assert!(entries.iter().all(|entry| entry.pool == "default"), "{uid}");
    }
    consumer.context.stop.cancel();
}

#[tokio::test]
async fn a_shadow_pod_says_what_its_consumer_needs_to_know_it_again() {
    let (pod, ..) = ended_pod();
    let consumer = started(api_server(with_contract(here(&json!({}))), |_, _| {
        std::future::ready(true)
    }));
    until(|| consumer.pod_voucher(&provider(), &pod, "default", Claimed::default())).await;
    let written = consumer
        .pod_voucher(&provider(), &pod, "default", Claimed::default())
        .unwrap();
    let read = voucher_key()
        .read_voucher(provider().as_str(), "u", Claimed::new(Some(&written)))
        .unwrap();
    assert_eq!(
        (
            read.namespace.as_str(),
            read.pool.as_str(),
            read.amounts.len()
        ),
        ("demo", "default", 1)
    );
    assert!(
        (testing::clock().now().as_second() - 65..=testing::clock().now().as_second() - 55)
            .contains(&read.sent)
    );
    // After a resize it has the former amounts, too.
    let former = Voucher {
        sent: 5,
        amounts: vec![[("cpu", "7".parse().unwrap())].into_iter().collect()],
        ..read.clone()
    };
    let former = voucher_key().write_voucher(provider().as_str(), "u", &former);
    let renewed = consumer
        .pod_voucher(
            &provider(),
            &pod,
            "default",
            Claimed::new(former.as_deref()),
        )
        .unwrap();
    let renewed = voucher_key()
        .read_voucher(provider().as_str(), "u", Claimed::new(Some(&renewed)))
        .unwrap();
    assert_eq!(
        (renewed.sent, renewed.amounts.len(), renewed.amounts.last()),
        (5, 2, read.amounts.last())
    );
    let foreign =
        VoucherKey::derive(b"milan").write_voucher(provider().as_str(), "u", &former_of(&read));
    let renewed = consumer.pod_voucher(
        &provider(),
        &pod,
        "default",
        Claimed::new(foreign.as_deref()),
    );
    assert_eq!(
        renewed.as_deref(),
        Some(written.as_str()),
        "the provider adds no amounts"
    );
    consumer.context.stop.cancel();
}

fn former_of(voucher: &Voucher) -> Voucher {
    Voucher {
        sent: 5,
        amounts: vec![[("cpu", "1000".parse().unwrap())].into_iter().collect()],
        ..voucher.clone()
    }
}
