//! A provider whose API server has one remote pod, and no news after the first lists.

use std::{convert::Infallible, sync::Arc};

use http::{Method, Response};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use liqo_api::{Charge, ClusterId, annotations, labels, tenant_namespace};
use liqo_controller_runtime::Key;
use liqo_offloading_rules::pod::tenant_pace::TenantPace;
use parking_lot::Mutex;
use serde_json::json;

use super::super::ShadowPodMemory;
use super::*;
use crate::{provider::state::ProviderState, testing};

const NAMESPACE: &str = "demo-rome";

fn consumer() -> ClusterId {
    ClusterId::of_public_key(&[7; 32])
}

fn resources(cpu: &str) -> Value {
    json!({ "requests": { "cpu": cpu, "memory": "32Mi" } })
}

/// A remote pod that was created with this size.
fn remote(name: &str, cpu: &str) -> Value {
    let record = json!({ "labels": [], "annotations": [], "images": { "c": "i" }, "resources": { "c": resources(cpu) } });
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": NAMESPACE, "name": name, "uid": name, "resourceVersion": "1",
            "annotations": { annotations::TRAVELLED: record.to_string() },
            "labels": { labels::CONSUMER_ID: consumer(), labels::SHADOW_POD: name, labels::POOL: "default" } },
        "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i", "resources": resources(cpu) }] },
        "status": { "phase": "Running" } })
}

/// The shadow pod, which asks for another size than in its first generation.
fn shadow_pod(cpu: &str) -> Value {
    let pod = json!({ "metadata": { "name": "web" },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": resources(cpu) }] } });
    json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowPod",
        "metadata": { "namespace": tenant_namespace(&consumer()), "name": "web", "uid": "s", "generation": 2, "resourceVersion": "1" },
        "spec": { "namespace": "demo", "pool": "default", "pod": pod.to_string() } })
}

fn listed(kind: &str, live: &Value) -> Vec<Value> {
    let tenant = tenant_namespace(&consumer());
    let namespace = |name: &str, kind: &str| {
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "uid": name, "resourceVersion": "1",
            "labels": { labels::MANAGED: "true", labels::CONSUMER_ID: consumer(), labels::NAMESPACE_KIND: kind,
                labels::HOME_NAMESPACE: "demo" } } })
    };
    match kind {
        "namespaces" => vec![
            namespace(&tenant, labels::KIND_TENANT),
            namespace(NAMESPACE, labels::KIND_MAPPED),
        ],
        "pods" => vec![live.clone()],
        "peeringpolicies" => vec![
            json!({ "apiVersion": "policy.liqo.io/v1alpha1", "kind": "PeeringPolicy",
            "metadata": { "name": "all", "resourceVersion": "1" }, "spec": {} }),
        ],
        "resourceoffers" => vec![
            json!({ "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
            "metadata": { "namespace": tenant, "name": "default", "resourceVersion": "1" },
            "spec": { "clusterID": ClusterId::of_public_key(&[1; 32]), "pool": "default",
                "resourceQuota": { "hard": { "cpu": "4", "memory": "1Gi", "pods": "10" } } },
            "status": { "phase": "Accepted" } }),
        ],
        _ => Vec::new(),
    }
}

/// An API server that refuses resizes with these codes, the last one first, and then accepts them.
/// Its shadow pod asks for `wanted` cpu.
fn api_server(live: Arc<Mutex<Value>>, wanted: &'static str, codes: Vec<u16>) -> Client {
    let codes = Arc::new(Mutex::new(codes));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (live, codes) = (live.clone(), codes.clone());
        async move {
            let (parts, body) = request.into_parts();
            if parts
                .uri
                .query()
                .is_some_and(|query| query.contains("watch=true"))
            {
                std::future::pending::<()>().await;
            }
            let change: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes())
                .unwrap_or_default();
            let (path, mut live) = (parts.uri.path().to_owned(), live.lock());
            let code = if path.ends_with("/resize") {
                codes.lock().pop().unwrap_or(200)
            } else {
                200
            };
            let object = if code != 200 {
                json!({ "kind": "Status", "status": "Failure", "reason": "Other", "message": "no", "code": code })
            } else if path.ends_with("/pods/web/resize") {
                let requests = &change["spec"]["containers"][0]["resources"]["requests"];
                for (name, amount) in requests.as_object().into_iter().flatten() {
                    live["spec"]["containers"][0]["resources"]["requests"][name] = amount.clone();
                }
                live.clone()
            } else if path.ends_with("/pods/web") {
                if let Some(record @ Value::String(_)) =
                    change["metadata"]["annotations"].get(annotations::TRAVELLED)
                {
                    live["metadata"]["annotations"][annotations::TRAVELLED] = record.clone();
                }
                live.clone()
            } else if path.ends_with("/shadowpods/web") {
                shadow_pod(wanted)
            } else if parts.method == Method::GET {
                let items = listed(path.rsplit('/').next().unwrap_or_default(), &live);
                json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items })
            } else {
                change
            };
            Ok::<_, Infallible>(
                Response::builder()
                    .status(code)
                    .body(Body::from(object.to_string().into_bytes()))
                    .unwrap(),
            )
        }
    });
    Client::new(service, "default")
}

async fn provider(client: Client) -> Arc<ProviderState> {
    let provider = Arc::new(ProviderState::start(testing::context("milan", client)));
    assert!(provider.synced().await);
    provider
}

fn reduced(object: Value) -> RemotePod {
    RemotePod::from_pod(serde_json::from_value(object).unwrap()).unwrap()
}

fn charged(provider: &ProviderState, pod: &RemotePod) -> String {
    provider
        .ledger
        .lock()
        .total_charged(&pod.account(), Charge::Requests, |_| true)
        .get("cpu")
        .to_string()
}

#[tokio::test]
async fn a_resize_that_got_room_is_tried_again_after_an_error_and_stays_charged() {
    let live = Arc::new(Mutex::new(remote("web", "1")));
    let provider = provider(api_server(live.clone(), "3", vec![503])).await;
    let pod = provider.pods.get(&Key::new(NAMESPACE, "web")).unwrap();
    let key = pod.shadow_key();
    let memory = ShadowPodMemory {
        applied: Some(1),
        ..ShadowPodMemory::default()
    };
    let mut pass = ShadowPodReconciliation {
        provider: &provider,
        key: &key,
        memory,
        pace: &Mutex::new(TenantPace::for_pods()),
    };
    let other = reduced(remote("other", "2"));
    provider.ledger.lock().pod_changed(None, Some(&other));

    pass.update_pod(&pod, 2).await.unwrap();
    assert_eq!(
        pass.memory.unresized.as_ref().unwrap().pending.reason,
        "Deferred"
    );
    assert_eq!(
        (pass.memory.applied, pass.resize_retry("default")),
        (Some(2), None)
    );
    provider.ledger.lock().pod_changed(Some(&other), None);
    assert_eq!(pass.resize_retry("default"), Some(Duration::ZERO));

    pass.update_pod(&pod, 2).await.unwrap_err();
    assert_ne!(
        pass.memory.applied,
        Some(2),
        "the next pass updates the pod again"
    );
    assert_eq!(
        charged(&provider, &pod),
        "3",
        "the API server may have accepted it"
    );
    pass.update_pod(&pod, 2).await.unwrap();
    assert_eq!(
        (pass.memory.applied, pass.memory.unresized.is_none()),
        (Some(2), true)
    );
    assert_eq!(
        live.lock()["spec"]["containers"][0]["resources"],
        resources("3")
    );

    // Another change follows before the watch shows the new size.
    pass.update_pod(&pod, 3).await.unwrap();
    assert_eq!(charged(&provider, &pod), "3");
    provider.context.stop.cancel();
}

#[tokio::test]
async fn a_resize_that_is_refused_leaves_the_charge_of_what_the_pod_asks_for() {
    let live = Arc::new(Mutex::new(remote("web", "1")));
    let provider = provider(api_server(live, "3", vec![404, 422])).await;
    let pod = provider.pods.get(&Key::new(NAMESPACE, "web")).unwrap();
    let key = pod.shadow_key();
    let mut pass = ShadowPodReconciliation {
        provider: &provider,
        key: &key,
        memory: ShadowPodMemory::default(),
        pace: &Mutex::new(TenantPace::for_pods()),
    };
    for message in ["no", NO_SUBRESOURCE] {
        pass.update_pod(&pod, 2).await.unwrap();
        let unresized = pass.memory.unresized.as_ref().unwrap();
        assert_eq!(
            (unresized.pending.reason, unresized.pending.message.as_str()),
            ("Infeasible", message)
        );
        assert_eq!(charged(&provider, &pod), "1");
    }
    provider.context.stop.cancel();
}

#[test]
fn a_pod_that_is_gone_does_not_mean_that_the_api_server_cannot_resize() {
    let answer = |details: Value| {
        serde_json::from_value(json!({ "code": 404, "message": "no", "details": details })).unwrap()
    };
    assert!(is_about(
        &answer(json!({ "name": "web", "kind": "pods" })),
        "web"
    ));
    assert!(!is_about(&answer(json!({})), "web") && !is_about(&answer(Value::Null), "web"));
}
