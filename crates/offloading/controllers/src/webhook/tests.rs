//! The webhook over a real socket, and its certificate and configuration against an API server of
//! one function.

use std::collections::BTreeSet;
use std::convert::Infallible;

use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use liqo_offloading_rules::pod::refusals::{NewRefusal, RefusalCause};

use super::configuration::{webhook_entries, write_configuration};
use super::*;

/// An API server that stores what is written by path and counts the writes.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(std::collections::BTreeMap<String, Value>, usize)>>);

impl Store {
    fn client(&self) -> Client {
        let store = self.clone();
        let answer = move |request: http::Request<kube::client::Body>| {
            let store = store.clone();
            async move {
                let (parts, body) = request.into_parts();
                let sent: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes())
                    .unwrap_or_default();
                let (status, answer) = store.answer(&parts.method, parts.uri.path(), &sent);
                let response = http::Response::builder()
                    .status(status)
                    .body(kube::client::Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn answer(&self, method: &http::Method, path: &str, sent: &Value) -> (u16, Value) {
        let mut state = self.0.lock();
        let error = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
            )
        };
        if method == http::Method::GET && path.ends_with("namespaceoffloadings") {
            return (
                200,
                json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}),
            );
        }
        if method == http::Method::GET && path == "/api/v1/nodes" {
            let nodes: Vec<&Value> = state
                .0
                .iter()
                .filter(|(path, _)| path.starts_with("/api/v1/nodes/"))
                .map(|(_, node)| node)
                .collect();
            return (
                200,
                json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": nodes}),
            );
        }
        if method == http::Method::GET {
            return state
                .0
                .get(path)
                .map_or_else(|| error(404, "NotFound"), |object| (200, object.clone()));
        }
        state.1 += 1;
        let path = if method == http::Method::POST {
            format!("{path}/{}", sent["metadata"]["name"].as_str().unwrap())
        } else {
            path.to_owned()
        };
        if method == http::Method::POST && state.0.contains_key(&path) {
            return error(409, "AlreadyExists");
        }
        let object = state.0.entry(path).or_insert(json!({}));
        json_patch::merge(object, sent);
        (200, object.clone())
    }

    fn put(&self, path: &str, object: Value) {
        self.0.lock().0.insert(path.into(), object);
    }

    fn get(&self, path: &str) -> Value {
        self.0.lock().0[path].clone()
    }

    fn writes(&self) -> usize {
        self.0.lock().1
    }
}

const SECRET_PATH: &str = "/api/v1/namespaces/liqo/secrets/liqo-webhook";
const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/liqo";
const OFFLOADING: &str =
    "/apis/offloading.liqo.io/v1alpha1/namespaces/demo/namespaceoffloadings/offloading";

fn now() -> Timestamp {
    Timestamp::now()
}

async fn material(store: &Store) -> certificate::CertificateMaterial {
    certificate::load_or_create(&Api::namespaced(store.client(), "liqo"), "liqo", now())
        .await
        .unwrap()
}

/// A cache that knows nothing: what it is asked for is read from the store.
async fn nothing_cached(store: &Store, stop: &CancellationToken) -> Cache<Offloading> {
    let api = Api::<NamespaceOffloading>::all(store.client());
    let cache = Cache::watch(
        api,
        watcher::Config::default(),
        stop.clone(),
        Offloading::from_object,
        |_, _, _| (),
    );
    assert!(cache.wait_until_synced().await);
    cache
}

fn offloading(strategy: PodOffloadingStrategy) -> Offloading {
    Offloading {
        strategy,
        selector: None,
        cluster_selector: None,
        placement: None,
        refusals: Refusals::default(),
        budget: None,
    }
}

fn review(pod: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "web", "namespace": "demo", "operation": "CREATE", "userInfo": {}, "dryRun": false, "object": pod}})
}

/// Asks the webhook as the API server does: it trusts the CA alone, and the name of the Service.
async fn ask(address: std::net::SocketAddr, ca: &str, body: String) -> Value {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("liqo-webhook.liqo.svc").unwrap();
    let socket = TcpStream::connect(address).await.unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("/mutate?timeout=3s")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

async fn answered(store: &Store, body: String) -> Value {
    answered_with(store, ClusterConfig::default(), body).await
}

async fn answered_with(store: &Store, config: ClusterConfig, body: String) -> Value {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let material = material(store).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let offloadings = nothing_cached(store, &stop).await;
    let all = watcher::Config::default();
    let nodes = Cache::watch(
        Api::<Node>::all(store.client()),
        all,
        stop.clone(),
        priced_node,
        |_, _, _| (),
    );
    assert!(nodes.wait_until_synced().await);
    let config = watch::channel(Arc::new(config)).1;
    let (client, clock, commands, system) = (
        store.client(),
        Clock::system(),
        ConsumerCommands::new("liqo"),
        "liqo".to_owned(),
    );
    let ended = EndedOffloadings::default();
    let webhook = Arc::new(Webhook {
        client,
        offloadings,
        nodes,
        config,
        clock,
        commands,
        ended,
        system,
    });
    let tls = ListenerTls::anonymous(Arc::new(material.certificate().unwrap()));
    tokio::spawn(https_listener::serve_routes(
        Box::new(listener),
        tls,
        webhook_routes(webhook),
        stop,
    ));
    ask(address, &material.ca, body).await["response"].clone()
}

fn store_with(strategy: &str) -> Store {
    let store = Store::default();
    store.put(
        OFFLOADING,
        json!({"apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "demo"}, "spec": {"podOffloadingStrategy": strategy}}),
    );
    store
}

#[tokio::test]
async fn a_pod_of_an_offloaded_namespace_is_patched() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": []}});
    let response = answered(&store_with("Remote"), review(&pod).to_string()).await;
    assert_eq!(
        (
            &response["uid"],
            &response["allowed"],
            &response["patchType"]
        ),
        (&json!("u1"), &json!(true), &json!("JSONPatch"))
    );
    let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(
        (&patch[0]["path"], &patch[1]["path"]),
        (&json!("/spec/tolerations"), &json!("/spec/affinity"))
    );
}

#[tokio::test]
async fn a_pod_that_names_a_virtual_node_may_stay_there_or_its_owner_is_warned() {
    let on = async |node: &str, selector: Value| {
        let store = store_with("LocalAndRemote");
        store.put(
            "/api/v1/nodes/milan",
            json!({"metadata": {"name": "milan", "labels": {"liqo.io/type": "virtual-node"}}}),
        );
        let mut offloading = store.get(OFFLOADING);
        offloading["spec"]["clusterSelector"] = selector;
        store.put(OFFLOADING, offloading);
        let spec = json!({"containers": [], "nodeName": node});
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
        let response = answered(&store, review(&pod).to_string()).await;
        let patch: Option<Vec<u8>> = serde_json::from_value(response["patch"].clone()).unwrap();
        (
            patch.map(|patch| String::from_utf8(patch).unwrap()),
            response["warnings"][0].as_str().map(str::to_owned),
        )
    };
    let (patch, warning) = on("milan", Value::Null).await;
    assert!(patch.unwrap().contains("/spec/tolerations") && warning.is_none());
    let elsewhere = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "In", "values": ["x"]}]}]});
    let (patch, warning) = on("milan", elsewhere).await;
    assert_eq!(patch, None);
    assert!(warning.unwrap().contains("does not select this node"));
    assert_eq!(
        on("rome-1", Value::Null).await,
        (None, None),
        "a node of this cluster"
    );
}

#[tokio::test]
async fn a_pod_whose_namespace_has_spent_its_budget_gets_no_toleration() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": []}});
    let paths = |all_closed: bool| {
        let store = store_with("Remote");
        let mut offloading = store.get(OFFLOADING);
        offloading["spec"]["budget"] = json!({"currency": "EUR", "amount": "1"});
        let id = liqo_api::ClusterId::of_public_key(&[3; 32]);
        offloading["status"] =
            json!({"budget": {"closedClusterIDs": [id], "allClosed": all_closed}});
        store.put(OFFLOADING, offloading);
        let pod = pod.clone();
        async move {
            let response = answered(&store, review(&pod).to_string()).await;
            let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
            let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
            let paths = patch
                .iter()
                .map(|one| one["path"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>();
            (
                paths,
                patch.last().unwrap().to_string().contains(id.as_str()),
            )
        }
    };
    assert_eq!(
        paths(true).await,
        (vec!["/spec/affinity".to_owned()], false)
    );
    let (open, avoids) = paths(false).await;
    assert_eq!((open.len(), avoids), (2, true), "it goes to the others");
}

#[tokio::test]
async fn a_pod_prefers_the_cheapest_of_the_nodes_that_its_namespace_selects() {
    let store = store_with("Remote");
    let mut offloading = store.get(OFFLOADING);
    offloading["spec"]["placement"] = json!({"strategy": "Cheapest"});
    let region = json!({"key": "region", "operator": "In", "values": ["eu"]});
    offloading["spec"]["clusterSelector"] =
        json!({"nodeSelectorTerms": [{"matchExpressions": [region]}]});
    store.put(OFFLOADING, offloading);
    for (name, region, cpu) in [
        ("milan", "eu", "0.05"),
        ("turin", "eu", "0.04"),
        ("boston", "us", "0.01"),
    ] {
        let prices = json!({"currency": "EUR", "rates": {"cpu": cpu}}).to_string();
        let metadata = json!({"name": name, "labels": {"region": region}, "annotations": {"liqo.io/prices": prices}});
        store.put(
            &format!("/api/v1/nodes/{name}"),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}),
        );
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let response = answered(&store, review(&pod).to_string()).await;
    let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(
        (&patch[1]["path"], patch.as_array().unwrap().len()),
        (&json!("/spec/affinity"), 2)
    );
    let terms =
        patch[1]["value"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            .as_array()
            .unwrap();
    let best = |term: &Value| {
        (
            term["weight"].clone(),
            term["preference"]["matchExpressions"][1]["values"].clone(),
        )
    };
    let expected = [(json!(100), json!(["turin"])), (json!(1), json!(["milan"]))];
    assert_eq!(terms.iter().map(best).collect::<Vec<_>>(), expected);
    assert!(
        patch[1]["value"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            .is_object()
    );
}

#[tokio::test]
async fn a_pod_is_kept_off_a_provider_without_a_node_for_it_as_long_as_it_may_run_elsewhere() {
    let milan = liqo_api::ClusterId::of_public_key(&[2; 32]);
    let metadata = json!({"name": "milan", "labels": {labels::REMOTE_CLUSTER_ID: milan, labels::TYPE: labels::TYPE_VIRTUAL_NODE},
        "annotations": {annotations::LARGEST_PODS: r#"[{"cpu":"1719m","memory":"2Gi","pods":"1"}]"#}});
    let pod = |cpu: &str| {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}}}]}})
    };
    let asked = async |strategy: &str, cpu: &str| {
        let store = store_with(strategy);
        store.put(
            "/api/v1/nodes/milan",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata.clone()}),
        );
        let response = answered(&store, review(&pod(cpu)).to_string()).await;
        let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
        let avoids = String::from_utf8(patch).unwrap().contains(milan.as_str());
        (
            avoids,
            response["warnings"][0]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let (avoids, warning) = asked("LocalAndRemote", "2300m").await;
    assert!(
        avoids && warning.contains("kept off") && warning.contains("milan (cpu: 581m short"),
        "{warning}"
    );
    let (avoids, warning) = asked("Remote", "2300m").await;
    assert!(!avoids && warning.contains("waits for room"), "{warning}");
    assert_eq!(
        asked("LocalAndRemote", "1700m").await,
        (false, String::new())
    );
}

#[tokio::test]
async fn a_pod_with_a_claim_comes_with_a_warning() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db"}, "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "d"}}]}});
    let response = answered(&store_with("Remote"), review(&pod).to_string()).await;
    assert_eq!(response["allowed"], true);
    assert!(
        response["warnings"][0]
            .as_str()
            .unwrap()
            .contains("persistentVolumeClaim")
    );
}

#[tokio::test]
async fn a_pod_avoids_a_provider_that_refused_one_of_its_owner() {
    let store = store_with("LocalAndRemote");
    let milan = liqo_api::ClusterId::of_public_key(&[2; 32]);
    let (cluster, reason) = ((&milan, "milan"), liqo_api::OffloadedReason::NotAllowed);
    let refusal_timeout = Duration::from_mins(5);
    let refusal = NewRefusal {
        owner: "o",
        cluster,
        reason,
        cause: RefusalCause::Lasts,
        refusal_timeout,
    };
    let refusals = Refusals::default().with_refusal(refusal, now()).unwrap();
    let mut offloading = store.get(OFFLOADING);
    offloading["metadata"]["annotations"] =
        json!({ annotations::REFUSED_PODS: refusals.to_annotation() });
    store.put(OFFLOADING, offloading);
    let answer = async |owner: &str| {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": owner, "controller": true});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "ownerReferences": [owner]}, "spec": {"containers": []}});
        let response = answered(&store, review(&pod).to_string()).await;
        let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
        (
            String::from_utf8(patch).unwrap().contains(milan.as_str()),
            response["warnings"][0]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let (avoids, warning) = answer("o").await;
    assert!(
        avoids && warning.contains("not sent to milan (it refused one for NotAllowed)"),
        "{warning}"
    );
    assert_eq!(answer("another").await, (false, String::new()));
}

#[tokio::test]
async fn a_pod_of_another_namespace_is_let_through_as_it_is() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {}});
    let response = answered(&Store::default(), review(&pod).to_string()).await;
    assert_eq!(
        (&response["allowed"], response.get("patch")),
        (&json!(true), None)
    );
}

/// The patch of the answer.
fn patch_of(response: &Value) -> Value {
    let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap_or_default();
    serde_json::from_slice(&patch).unwrap_or_default()
}

#[tokio::test]
async fn a_pod_of_a_new_namespace_with_the_label_waits_for_the_namespace_offloading() {
    let answer = async |label: &str, age: i64, spec: Value| {
        let (store, created) = (Store::default(), now() - SignedDuration::from_secs(age));
        let metadata = json!({"name": "demo", "labels": {labels::SCHEDULING_ENABLED: label}, "creationTimestamp": created});
        store.put(
            "/api/v1/namespaces/demo",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}),
        );
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "web-"}, "spec": spec});
        answered(&store, review(&pod).to_string()).await
    };
    let plain = json!({"containers": []});
    let held_back = answer("true", 10, plain.clone()).await;
    let gate = json!([{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "liqo.io/offloading"}]}]);
    assert_eq!(
        (patch_of(&held_back), &held_back["allowed"]),
        (gate, &json!(true))
    );
    assert!(
        held_back["warnings"][0]
            .as_str()
            .unwrap()
            .contains("waits until its namespace has a NamespaceOffloading")
    );
    let here = answer("true", 10, json!({"containers": [], "hostNetwork": true})).await;
    assert!(
        here["warnings"][0]
            .as_str()
            .unwrap()
            .contains("in this cluster only"),
        "{here}"
    );
    for (label, age) in [("false", 10), ("true", 301)] {
        assert_eq!(
            answer(label, age, plain.clone()).await.get("patch"),
            None,
            "{label}, {age} s old"
        );
    }
}

#[test]
fn a_label_that_is_left_behind_announces_nothing() {
    let created = now();
    let metadata = json!({"name": "demo", "labels": {labels::SCHEDULING_ENABLED: "true"}, "creationTimestamp": created});
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    let after = |seconds| created + SignedDuration::from_secs(seconds);
    let is_announced = |ended, now| announces_offloading(&namespace, ended, after(now));
    assert!(is_announced(None, 10));
    assert!(
        !is_announced(Some(after(5)), 10),
        "it is not offloaded any more"
    );
    assert!(
        is_announced(Some(after(-5)), 10),
        "that was another namespace of this name"
    );
    assert!(!is_announced(None, 300));
}

fn tethered(to: &ClusterId) -> ClusterConfig {
    serde_json::from_value(json!({"apiVersion": "config.liqo.io/v1alpha1", "kind": "ClusterConfig", "metadata": {"name": "liqo"},
        "spec": {"clusterName": "rome", "tethering": {"clusterID": to, "systemNamespaces": ["calico-*", "demo-system"]}},
        "status": {"tethering": {"state": "Tethered", "clusterID": to, "since": now()}}}))
    .unwrap()
}

#[tokio::test]
async fn while_the_cluster_is_tethered_the_first_pod_of_a_namespace_goes_to_the_peer() {
    let peer = ClusterId::of_public_key(&[4; 32]);
    let answer = async |namespace: &str| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": []}});
        let mut review = review(&pod);
        review["request"]["namespace"] = json!(namespace);
        patch_of(&answered_with(&Store::default(), tethered(&peer), review.to_string()).await)
    };
    let patch = answer("demo").await;
    assert_eq!(
        (&patch[0]["path"], &patch[1]["path"]),
        (&json!("/spec/tolerations"), &json!("/spec/affinity"))
    );
    assert!(patch.to_string().contains(peer.as_str()));
    for own in ["kube-system", "calico-node", "demo-system", "default"] {
        assert_eq!(answer(own).await, Value::Null, "{own}");
    }
}

#[test]
fn a_new_namespace_has_an_entry_of_its_own_until_its_strategy_is_known() {
    let all = [(
        Key::new("known", "offloading"),
        offloading(PodOffloadingStrategy::Local),
    )];
    let entry = |config: &ClusterConfig| {
        let mut entries = webhook_entries(
            "liqo",
            "ca",
            &all.iter().map(|(key, one)| (key, one)),
            config,
        );
        let entry = entries.remove(
            entries
                .iter()
                .position(|entry| entry.name == "new-namespaces.liqo.io")
                .unwrap(),
        );
        let selector = json!(entry.namespace_selector.unwrap().match_expressions.unwrap());
        let conditions: Vec<String> = entry
            .match_conditions
            .unwrap()
            .into_iter()
            .map(|one| one.expression)
            .collect();
        (entry.failure_policy.unwrap(), selector, conditions)
    };
    let unknown =
        json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["known"]});
    let (failure_policy, selector, conditions) = entry(&ClusterConfig::default());
    let labelled =
        json!({"key": "liqo.io/scheduling-enabled", "operator": "In", "values": ["true"]});
    assert_eq!(
        (failure_policy.as_str(), selector),
        ("Fail", json!([labelled, unknown]))
    );
    let of_user = "!(request.namespace in ['default', 'liqo']) \
         && !['kube-', 'openshift-', 'liqo'].exists(prefix, request.namespace.startsWith(prefix))";
    assert_eq!(
        conditions,
        ["!has(object.spec.nodeName)", of_user],
        "the label does nothing where the cluster's own pods are"
    );
    let (failure_policy, selector, conditions) =
        entry(&tethered(&ClusterId::of_public_key(&[4; 32])));
    let of_others = json!({"key": "liqo.io/managed", "operator": "NotIn", "values": ["true"]});
    assert_eq!(
        (failure_policy.as_str(), selector),
        ("Ignore", json!([of_others, unknown]))
    );
    let of_user = "!(request.namespace in ['default', 'liqo', 'demo-system']) \
         && !['kube-', 'openshift-', 'liqo', 'calico-'].exists(prefix, request.namespace.startsWith(prefix))";
    assert_eq!(conditions, ["!has(object.spec.nodeName)", of_user]);
}

#[tokio::test]
async fn a_review_that_cannot_be_read_is_answered_all_the_same() {
    for nonsense in [
        "{}",
        "nonsense",
        r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
    ] {
        assert_eq!(
            answered(&Store::default(), nonsense.into()).await["allowed"],
            false,
            "{nonsense}"
        );
    }
}

#[tokio::test]
async fn replicas_share_one_certificate() {
    let store = Store::default();
    let (first, second) = (material(&store).await, material(&store).await);
    assert!(first == second);
    assert_eq!(store.writes(), 1);
    assert_eq!(
        store.get(SECRET_PATH)["metadata"]["labels"],
        json!({"liqo.io/managed": "true"})
    );
}

#[test]
fn remote_namespaces_fail_and_others_are_ignored_when_nobody_answers() {
    let key = |namespace| Key::new(namespace, "offloading");
    let (remote, both, local) = (
        offloading(PodOffloadingStrategy::Remote),
        offloading(PodOffloadingStrategy::LocalAndRemote),
        offloading(PodOffloadingStrategy::Local),
    );
    let all = [
        (key("b"), &remote),
        (key("a"), &remote),
        (key("c"), &both),
        (key("d"), &local),
        (key("kube-system"), &remote),
        (key("liqo"), &both),
    ];
    let entries = webhook_entries(
        "liqo",
        "ca",
        &all.iter().map(|(key, offloading)| (key, *offloading)),
        &ClusterConfig::default(),
    );
    let named: Vec<_> = entries
        .iter()
        .take(2)
        .map(|entry| {
            let namespaces = entry
                .namespace_selector
                .as_ref()
                .unwrap()
                .match_expressions
                .as_ref()
                .unwrap()[0]
                .values
                .clone()
                .unwrap();
            (
                entry.name.as_str(),
                entry.failure_policy.as_deref().unwrap(),
                namespaces,
            )
        })
        .collect();
    assert_eq!(
        named,
        [
            (
                "remote.liqo.io",
                "Fail",
                vec!["a".to_owned(), "b".to_owned()]
            ),
            ("local-and-remote.liqo.io", "Ignore", vec!["c".to_owned()])
        ]
    );
    let entry = &entries[0];
    assert_eq!(
        (entry.timeout_seconds, &entry.client_config.ca_bundle),
        (Some(3), &Some(ByteString(b"ca".to_vec())))
    );
    assert_eq!(
        entry.match_conditions, None,
        "a pod that names a virtual node needs its toleration, too"
    );
}

#[test]
fn a_changed_configuration_concerns_the_namespaces_that_entered_or_left_an_entry() {
    let selected = |all: &[(&str, PodOffloadingStrategy)]| {
        let all: Vec<_> = all
            .iter()
            .map(|(name, of)| (Key::new(*name, "offloading"), offloading(*of)))
            .collect();
        let entries = webhook_entries(
            "liqo",
            "ca",
            &all.iter().map(|(key, offloading)| (key, offloading)),
            &ClusterConfig::default(),
        );
        SelectedNamespaces::of_configuration(MutatingWebhookConfiguration {
            webhooks: Some(entries),
            ..MutatingWebhookConfiguration::default()
        })
    };
    let (remote, both) = (
        PodOffloadingStrategy::Remote,
        PodOffloadingStrategy::LocalAndRemote,
    );
    let (before, after) = (
        selected(&[("a", remote), ("b", remote), ("c", both)]),
        selected(&[("b", both), ("c", both), ("d", both)]),
    );
    assert_eq!(
        after.changed_since(&before),
        ["a", "b", "d"].map(str::to_owned).into()
    );
    assert_eq!(after.changed_since(&after), BTreeSet::new());
    assert_eq!(
        before.changed_since(&SelectedNamespaces::default()),
        ["a", "b", "c"].map(str::to_owned).into()
    );
}

#[tokio::test]
async fn the_configuration_is_written_once() {
    let store = Store::default();
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    store.put(CONFIGURATION, json!({"metadata": {"name": "liqo"}, "webhooks": [{"name": "old.liqo.io", "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"]}]}));
    let offloadings = nothing_cached(&store, &stop).await;
    material(&store).await;
    let before = store.writes();
    write_configuration(
        &store.client(),
        "liqo",
        &offloadings,
        (&ClusterConfig::default(), now()),
    )
    .await
    .unwrap();
    write_configuration(
        &store.client(),
        "liqo",
        &offloadings,
        (&ClusterConfig::default(), now()),
    )
    .await
    .unwrap();
    assert_eq!(store.writes() - before, 1);
    let webhooks = store.get(CONFIGURATION)["webhooks"].clone();
    let names: Vec<&Value> = webhooks
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["name"])
        .collect();
    assert_eq!(names, ["new-namespaces.liqo.io", "commands.liqo.io"]);
}

#[test]
fn only_commands_of_consumers_come_to_the_webhook_and_they_go_on_when_nobody_answers() {
    let entry = webhook_entries("liqo", "ca", &std::iter::empty(), &ClusterConfig::default())
        .pop()
        .unwrap();
    let rule = &entry.rules.as_ref().unwrap()[0];
    assert_eq!(rule.operations, Some(vec!["CONNECT".to_owned()]));
    assert_eq!(
        rule.resources,
        Some(
            ["pods/exec", "pods/attach", "pods/portforward"]
                .map(str::to_owned)
                .to_vec()
        )
    );
    let condition = &entry.match_conditions.as_ref().unwrap()[0].expression;
    assert_eq!(
        condition,
        "request.userInfo.username.startsWith('system:serviceaccount:liqo:liqo-consumer-')"
    );
    let path = entry
        .client_config
        .service
        .as_ref()
        .unwrap()
        .path
        .as_deref();
    assert_eq!(
        (path, entry.failure_policy.as_deref()),
        (Some("/commands"), Some("Ignore"))
    );
}

/// The request that the API server sends before it runs a command for this user.
fn command(user: &str) -> AdmissionRequest<DynamicObject> {
    let options = json!({"apiVersion": "v1", "kind": "PodExecOptions", "stdout": true, "container": "main", "command": ["true"]});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "kind": {"group": "", "version": "v1", "kind": "PodExecOptions"},
        "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "exec", "name": "web", "namespace": "demo",
        "operation": "CONNECT", "userInfo": {"username": user}, "dryRun": false, "object": options}});
    read_review(&Bytes::from(review.to_string())).unwrap()
}

#[tokio::test]
async fn a_consumer_that_starts_commands_without_end_waits_and_is_refused_and_others_are_not() {
    let commands = ConsumerCommands::new("liqo");
    let flood = command("system:serviceaccount:liqo:liqo-consumer-a");
    let answers = futures::future::join_all((0..200).map(|_| commands.respond(&flood))).await;
    let refused: Vec<_> = answers.iter().filter(|answer| !answer.allowed).collect();
    // A slow machine lets some more through.
    assert!((130..=146).contains(&refused.len()), "{}", refused.len());
    assert_eq!(
        (refused[0].result.code, refused[0].result.reason.as_str()),
        (429, "TooManyRequests")
    );
    for user in [
        "system:serviceaccount:liqo:liqo-consumer-b",
        "admin",
        "system:serviceaccount:demo:liqo-consumer-a",
    ] {
        assert!(commands.respond(&command(user)).await.allowed, "{user}");
    }
    for _ in 0..200 {
        assert!(commands.respond(&command("admin")).await.allowed);
    }
}

#[test]
fn a_namespace_that_is_taken_back_offloads_nothing_new() {
    let object = |metadata: Value| {
        serde_json::from_value::<NamespaceOffloading>(json!({"apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
        "metadata": metadata, "spec": {"podOffloadingStrategy": "Remote", "clusterSelector": {"nodeSelectorTerms": [{"matchFields": []}]}}})).unwrap()
    };
    assert_eq!(
        Offloading::from_object(object(
            json!({"name": "offloading", "deletionTimestamp": "2026-01-01T00:00:00Z"})
        )),
        None
    );
    let selector = Some(vec![json!({"matchFields": []})]);
    let offloaded = object(json!({"name": "offloading"}));
    let cluster_selector = offloaded.spec.cluster_selector.clone();
    assert_eq!(
        Offloading::from_object(offloaded),
        Some(Offloading {
            selector,
            cluster_selector,
            ..offloading(PodOffloadingStrategy::Remote)
        })
    );
}

#[test]
fn the_pods_of_a_brokered_namespace_are_left_alone() {
    assert!(labelled(&json!({ "liqo.io/managed": "" })).is_some());
    assert!(labelled(&json!({ "liqo.io/managed": "true" })).is_none());
}

#[test]
fn the_pods_of_a_namespace_that_the_working_mode_offloaded_are_sent_to_the_peer() {
    let tethered = labelled(&json!({ "liqo.io/managed": "true", "liqo.io/tethered": "true" }));
    assert_eq!(
        tethered.map(|offloading| offloading.strategy),
        Some(PodOffloadingStrategy::Remote)
    );
}

/// What the webhook does with a `NamespaceOffloading` with these labels.
fn labelled(labels: &Value) -> Option<Offloading> {
    let object = json!({ "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
        "metadata": { "name": "offloading", "namespace": "demo", "labels": labels },
        "spec": { "podOffloadingStrategy": "Remote" } });
    Offloading::from_object(serde_json::from_value(object).unwrap())
}
