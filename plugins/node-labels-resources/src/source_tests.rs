//! Tests with an API server in memory: lists, watches, and interrupted watches.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::{FutureExt as _, channel::mpsc};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use liqo_api::ClusterId;
use liqo_resource_plugin::ChangeStream;
use serde_json::{Value, json};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/pods";
const NAMESPACES: &str = "/api/v1/namespaces";

type Answer = UnsyncBoxBody<Bytes, Infallible>;
type Frames = mpsc::UnboundedSender<Result<http_body::Frame<Bytes>, Infallible>>;

/// Serves lists and watches of its objects.
#[derive(Default)]
struct ApiServer {
    objects: Mutex<BTreeMap<(String, String), Value>>,
    watches: Mutex<Vec<(String, Frames)>>,
    version: AtomicUsize,
    queries: Mutex<Vec<String>>,
}

impl ApiServer {
    fn client(self: &Arc<Self>) -> Client {
        let server = self.clone();
        let answer = move |request: Request<Body>| {
            let response = server.answer(&request);
            async move { Ok::<_, Infallible>(response) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn answer(&self, request: &Request<Body>) -> Response<Answer> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        if query.contains("watch=true") {
            let (sender, receiver) = mpsc::unbounded();
            self.watches.lock().unwrap().push((path, sender));
            return Response::new(StreamBody::new(receiver).boxed_unsync());
        }
        self.queries.lock().unwrap().push(format!("{path}?{query}"));
        let objects = self.objects.lock().unwrap();
        let items: Vec<&Value> = objects
            .iter()
            .filter(|((of, _), _)| *of == path)
            .map(|(_, object)| object)
            .collect();
        let version = self.version.load(Ordering::SeqCst).to_string();
        let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": version }, "items": items });
        Response::new(Full::from(list.to_string()).boxed_unsync())
    }

    /// The key under which an object is stored: path of its kind, and namespace and name.
    fn key(path: &str, object: &Value) -> (String, String) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        (
            path.to_owned(),
            format!("{}/{}", text("namespace"), text("name")),
        )
    }

    fn send_event(&self, path: &str, kind: &str, object: &Value) {
        let event = format!("{}\n", json!({ "type": kind, "object": object }));
        let frame = || Ok(http_body::Frame::data(Bytes::from(event.clone())));
        self.watches
            .lock()
            .unwrap()
            .retain(|(of, watch)| of != path || watch.unbounded_send(frame()).is_ok());
    }

    fn apply(&self, path: &str, mut object: Value) {
        let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        self.objects
            .lock()
            .unwrap()
            .insert(Self::key(path, &object), object.clone());
        self.send_event(path, "MODIFIED", &object);
    }

    /// Removes an object without an event, as if the watch was interrupted.
    fn forget(&self, path: &str, object: &Value) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.objects
            .lock()
            .unwrap()
            .remove(&Self::key(path, object))
            .unwrap();
    }

    /// Ends the watches with `410 Gone`, so the client lists everything again.
    fn expire(&self, path: &str) {
        let gone = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old" });
        self.send_event(path, "ERROR", &gone);
        self.watches.lock().unwrap().retain(|(of, _)| of != path);
    }
}

fn node(name: &str, cpu: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": name, "labels": { "pool": "shared" } },
        "status": {
            "allocatable": { "cpu": cpu, "memory": "8Gi", "pods": "10" },
            "conditions": [{ "type": "Ready", "status": "True" }]
        }
    })
}

fn pod(name: &str, namespace: &str, consumer: Option<&str>) -> Value {
    let labels = consumer.map_or(
        json!({}),
        |consumer| json!({ "liqo.io/consumer-id": consumer }),
    );
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "nodeName": "a", "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
        "status": { "phase": "Running" }
    })
}

struct Running {
    server: Arc<ApiServer>,
    source: NodeLabels,
    changes: ChangeStream,
    stop: CancellationToken,
}

impl Running {
    async fn start(server: Arc<ApiServer>) -> Self {
        let stop = CancellationToken::new();
        let source = NodeLabels::start(
            &server.client(),
            vec!["pool=shared".parse().unwrap()],
            &stop,
        );
        let mut changes = source.announcer.listen();
        tokio::time::timeout(TIMEOUT, source.ready()).await.unwrap();
        assert_eq!(
            tokio::time::timeout(TIMEOUT, changes.next()).await.unwrap(),
            Some(Change::All),
            "the source can be read now"
        );
        Self {
            server,
            source,
            changes,
            stop,
        }
    }

    async fn offered(&self, cluster: &str) -> String {
        let pools = self.source.read(cluster).await.unwrap();
        assert_eq!(pools.len(), 1);
        pools[0].resources.to_string()
    }

    /// The changes that are announced soon, and for a while after that.
    async fn announced(&mut self) -> Vec<Change> {
        let first = tokio::time::timeout(TIMEOUT, self.changes.next())
            .await
            .unwrap()
            .unwrap();
        // Twice the time until the offers are computed again.
        tokio::time::sleep(DEBOUNCE * 2).await;
        std::iter::once(first)
            .chain(std::iter::from_fn(|| {
                self.changes.next().now_or_never().flatten()
            }))
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test]
async fn it_is_not_ready_before_all_objects_are_listed() {
    let server = Arc::new(ApiServer::default());
    let stop = CancellationToken::new();
    let source = NodeLabels::start(
        &server.client(),
        vec!["pool=shared".parse().unwrap()],
        &stop,
    );
    assert!(matches!(
        source.read("rome").await,
        Err(SourceError::NotReady(_))
    ));
    tokio::time::timeout(TIMEOUT, source.ready()).await.unwrap();
    assert_eq!(
        source.read("rome").await.unwrap()[0].resources.to_string(),
        "cpu=0, memory=0, pods=0"
    );
    let queries = server.queries.lock().unwrap().join("\n");
    assert!(
        queries.contains("fieldSelector=status.phase%21%3DSucceeded"),
        "finished pods are not listed: {queries}"
    );
    stop.cancel();
}

#[tokio::test]
async fn simultaneous_changes_are_announced_once_and_heartbeats_are_not_announced() {
    let server = Arc::new(ApiServer::default());
    server.apply(NODES, node("a", "4"));
    let mut running = Running::start(server).await;
    assert_eq!(running.offered("rome").await, "cpu=4, memory=8Gi, pods=10");
    for name in ["p", "q", "r"] {
        running.server.apply(PODS, pod(name, "default", None));
    }
    assert_eq!(running.announced().await, [Change::All]);
    assert_eq!(running.offered("rome").await, "cpu=1, memory=8Gi, pods=7");

    let mut with_heartbeat = node("a", "4");
    with_heartbeat["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:00:00Z");
    running.server.apply(NODES, with_heartbeat);
    let mut unselected = node("b", "100");
    unselected["metadata"]["labels"] = json!({});
    running.server.apply(NODES, unselected);
    running.server.apply(NODES, node("a", "5"));
    assert_eq!(
        running.announced().await,
        [Change::All],
        "only the last of the three changes an offer"
    );
    assert_eq!(running.offered("rome").await, "cpu=2, memory=8Gi, pods=7");
}

#[tokio::test]
async fn a_pod_that_was_removed_while_the_watch_was_interrupted_does_not_count() {
    let server = Arc::new(ApiServer::default());
    server.apply(NODES, node("a", "4"));
    server.apply(PODS, pod("p", "default", None));
    server.apply(PODS, pod("p", "other", None));
    let mut running = Running::start(server).await;
    assert_eq!(
        running.offered("rome").await,
        "cpu=2, memory=8Gi, pods=8",
        "two pods of one name in two namespaces"
    );
    running.server.forget(PODS, &pod("p", "default", None));
    running.server.expire(PODS);
    assert_eq!(running.announced().await, [Change::All]);
    assert_eq!(running.offered("rome").await, "cpu=3, memory=8Gi, pods=9");
}

#[tokio::test]
async fn a_consumers_own_pods_do_not_make_its_offer_smaller_even_on_a_cordoned_node() {
    let server = Arc::new(ApiServer::default());
    server.apply(NODES, node("a", "4"));
    let rome = ClusterId::of_public_key(&[1; 32]).to_string();
    let labels = json!({ "liqo.io/managed": "true", "liqo.io/namespace-kind": "mapped", "liqo.io/consumer-id": rome, "liqo.io/home-namespace": "demo" });
    server.apply(
        NAMESPACES,
        json!({ "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": "demo-rome", "labels": labels } }),
    );
    server.apply(PODS, pod("p", "demo-rome", Some(&rome)));
    let mut running = Running::start(server).await;
    assert_eq!(running.offered(&rome).await, "cpu=4, memory=8Gi, pods=10");
    assert_eq!(running.offered("milan").await, "cpu=3, memory=8Gi, pods=9");
    let mut cordoned = node("a", "4");
    cordoned["spec"] = json!({ "unschedulable": true });
    running.server.apply(NODES, cordoned);
    assert_eq!(running.announced().await, [Change::All]);
    assert_eq!(
        running.offered(&rome).await,
        "cpu=1, memory=0, pods=1",
        "the requests of its pod"
    );
    assert_eq!(running.offered("milan").await, "cpu=0, memory=0, pods=0");
}
