//! A consumer and a provider, both with an API server that says little.

use std::convert::Infallible;

use http::{Method, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use liqo_api::ClusterId;
use liqo_kit::{Context, Health, PeerConnection, events::Events};
use tokio::sync::watch;

use super::*;

/// An API server with these objects, by the last part of the path at which they are listed; it has no news, and takes what is
/// made as long as `answer` lets it.
fn api_server<F>(objects: Value, answer: impl Fn(&Method, &str) -> F + Clone + Send + Sync + 'static) -> Client
where
    F: Future<Output = bool> + Send,
{
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (objects, answer) = (objects.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
                std::future::pending::<()>().await;
            }
            let kind = parts.uri.path().rsplit('/').next().unwrap_or_default();
            let (status, object) = if !answer(&parts.method, kind).await {
                (403, json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no", "code": 403 }))
            } else if parts.method == Method::GET {
                let items = objects.get(kind).cloned().unwrap_or_else(|| json!([]));
                (200, json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items }))
            } else {
                (201, serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap())
            };
            Ok::<_, Infallible>(Response::builder().status(status).body(Body::from(object.to_string().into_bytes())).unwrap())
        }
    });
    Client::new(service, "default")
}

fn context(client: Client) -> Context {
    let config = json!({ "apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig", "metadata": { "name": "liqo" },
        "spec": { "clusterName": "rome" } });
    Context {
        namespace: "liqo".into(),
        pod_ip: "10.0.0.1".into(),
        cluster_id: ClusterId::of_public_key(&[1; 32]),
        config: watch::channel(Arc::new(serde_json::from_value(config).unwrap())).1,
        peers: liqo_kit::Peers::default(),
        events: Events::new(client.clone(), None),
        stop: CancellationToken::new(),
        client,
    }
}

async fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = found() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), looking).await.expect("it comes")
}

#[tokio::test]
async fn a_pod_is_sent_after_the_policies_of_its_namespace() {
    // At home the policies are not told before `told`; the provider takes none before `taken`.
    let (told, taken) = (watch::channel(false), watch::channel(false));
    let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "demo", "name": "closed", "resourceVersion": "1" }, "spec": { "podSelector": {} } });
    let (is_told, shown) = (told.1.clone(), Arc::new(std::sync::Mutex::new(0)));
    let showing = shown.clone();
    let home = api_server(json!({ "networkpolicies": [policy] }), move |_, kind| {
        *locked(&showing) += usize::from(kind == "status");
        let (mut told, waits) = (is_told.clone(), kind == "networkpolicies");
        async move { !waits || told.wait_for(|told| *told).await.is_ok() }
    });
    let map = json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
        "metadata": { "namespace": "tenant", "name": liqo_api::NAMESPACE_MAP, "uid": "m", "resourceVersion": "1" },
        "spec": { "mappings": { "demo": { "remoteName": "demo-rome" } } },
        "status": { "namespaces": { "demo": { "remoteName": "demo-rome", "phase": "Ready" } } } });
    let made: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let (is_taken, making) = (taken.1.clone(), made.clone());
    let there = api_server(json!({ "namespacemaps": [map] }), move |method, kind| {
        let refused = kind == "reflectedobjects" && !*is_taken.borrow();
        if *method == Method::POST && !refused {
            locked(&making).push(kind.to_owned());
        }
        std::future::ready(*method == Method::GET || !refused)
    });

    let consumer = Consumer::start(context(home));
    let id = ClusterId::of_public_key(&[2; 32]);
    let (_healthy, health) = watch::channel(Health::Reachable);
    let connection = PeerConnection {
        cluster_id: id.clone(),
        cluster_name: "milan".into(),
        foreign_cluster: "milan".into(),
        client: there,
        tenant_namespace: "tenant".into(),
        protocol_version: 1,
        health,
        ended: CancellationToken::new(),
    };
    tokio::spawn(super::super::peer::follow(consumer.clone(), Arc::new(connection)));
    reflection::follow_namespace(&consumer, "demo");
    let peer = consumer.peer(&id);
    let remote = until(|| peer.answering()).await;
    until(|| remote.mapped("demo")).await;
    let node: VirtualNode = serde_json::from_value(json!({ "apiVersion": "virtualkubelet.liqo.io/v1alpha1",
        "kind": "VirtualNode", "metadata": { "namespace": "tenant", "name": "milan" },
        "spec": { "clusterID": id, "clusterName": "milan", "pool": "default", "resources": {} } }))
    .unwrap();
    let home_pod = |status: Value| {
        let pod = json!({ "metadata": { "namespace": "demo", "name": "web", "uid": "u" },
            "spec": { "containers": [{ "name": "c", "image": "i" }] }, "status": status });
        HomePod::of(serde_json::from_value(pod).unwrap(), &Key::new("tenant", "milan")).unwrap()
    };
    let pod = home_pod(json!({}));
    let handling = Handling { consumer: &consumer, peer: &peer, remote: Some(remote.as_ref()), node: Some(&node), pod: &pod };

    assert_eq!(handling.create(false).await.unwrap(), Some(NO_POLICIES_RETRY), "it is not known which policies there are");
    told.0.send_replace(true);
    until(|| network_policies::before_pods(&consumer, "demo")).await;
    assert_eq!(handling.create(false).await.unwrap(), Some(NO_POLICIES_RETRY), "the provider does not have the policy");
    assert_eq!(*locked(&made), [] as [&str; 0]);
    assert_eq!(*locked(&shown), 0, "it is not known to wait for long");
    let condition = json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let waiting = Handling { pod: &home_pod(json!({ "conditions": [condition] })), ..handling };
    assert_eq!(waiting.create(false).await.unwrap(), Some(NO_POLICIES_RETRY));
    assert_eq!(*locked(&shown), 1, "one that waits for long says so");
    taken.0.send_replace(true);
    let sent = async {
        while handling.create(false).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), sent).await.expect("the pod is sent");
    // The worker may have recorded it, too.
    let mut made = locked(&made).clone();
    made.dedup();
    assert_eq!(made[..2], ["reflectedobjects", "shadowpods"]);
    consumer.context.stop.cancel();
}
