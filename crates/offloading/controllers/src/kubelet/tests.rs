//! The API over real sockets: a caller with TLS on one side, an API server that upgrades
//! connections on the other.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::ServerName;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::serving::{NodeIdentity, self_signed};
use super::*;
use liqo_controller_runtime::watch;

use crate::https_listener::{Certificate, ClientAuthority};

/// Only the pods demo/web and demo/customers on node milan run at the provider.
struct OnePod(Client);

impl RemotePodIndex for OnePod {
    fn find_remote_pod(&self, node: &str, namespace: &str, pod: &str) -> Option<RemotePodTarget> {
        let here = (node, namespace) == ("milan", "demo") && ["web", "customers"].contains(&pod);
        let is_customers = pod == "customers";
        here.then(|| RemotePodTarget {
            client: self.0.clone(),
            namespace: "demo-rome".into(),
            name: pod.into(),
            is_customers,
        })
    }

    fn container_refusal(&self, _: &str, pod: (&str, &str), container: &str) -> Option<String> {
        (pod == ("demo", "web") && container == "privileged")
            .then(|| "violates PodSecurity".to_owned())
    }

    fn pods(&self, node: &str) -> Vec<(LocalPodRef, RemotePodTarget)> {
        let local = LocalPodRef {
            namespace: "demo".into(),
            name: "web".into(),
            uid: "u".into(),
        };
        self.find_remote_pod(node, "demo", "web")
            .map(|remote| (local, remote))
            .into_iter()
            .collect()
    }
}

/// The home API server: it knows the token `good` of the user `admin`, who may do everything, the
/// token `scraper` of a user who may get nodes/metrics, and by certificate the user
/// `kube-apiserver`.
fn home() -> Client {
    let answer = |request: http::Request<kube::client::Body>| async move {
        let path = request.uri().path().to_owned();
        let sent: Value =
            serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes())
                .unwrap_or_default();
        let answer = match path.rsplit('/').next().unwrap() {
            "tokenreviews" => {
                let user = match sent["spec"]["token"].as_str() {
                    Some("good") => Some("admin"),
                    Some("scraper") => Some("scraper"),
                    _ => None,
                };
                json!({"spec": {}, "status": {"authenticated": user.is_some(), "user": {"username": user}}})
            }
            "subjectaccessreviews" => {
                let asked = &sent["spec"]["resourceAttributes"];
                assert_eq!(
                    (&asked["resource"], &asked["name"]),
                    (&json!("nodes"), &json!("milan"))
                );
                let allowed = match sent["spec"]["user"].as_str().unwrap() {
                    "admin" | "kube-apiserver" => asked["subresource"] == "proxy",
                    "scraper" => asked["subresource"] == "metrics" && asked["verb"] == "get",
                    _ => false,
                };
                json!({"spec": {}, "status": {"allowed": allowed}})
            }
            "pods" => json!({"kind": "PodList", "items": []}),
            other => panic!("unexpected call of {other}"),
        };
        Ok::<_, Infallible>(http::Response::new(kube::client::Body::from(
            answer.to_string().into_bytes(),
        )))
    };
    Client::new(tower::service_fn(answer), "default")
}

use std::convert::Infallible;

/// A frame with output of a command, on SPDY stream 5.
const OUTPUT: &[u8] = b"\0\0\0\x05\0\0\0\x06output";
/// Instead of a line of the log: the provider's API server breaks the connection.
const BROKEN: &str = "BROKEN";

/// The requests that the provider's API server got, and the rest of a log that it sends.
#[derive(Clone)]
struct Provider {
    asked: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    log: Arc<tokio::sync::Mutex<mpsc::Receiver<&'static str>>>,
    /// Whether it has the metrics API.
    measures: Arc<AtomicBool>,
    /// How many of the next commands it refuses for the moment.
    refusing: Arc<AtomicUsize>,
}

async fn answer(State(provider): State<Provider>, request: Request) -> Response {
    provider
        .asked
        .lock()
        .unwrap()
        .push((request.uri().to_string(), request.headers().clone()));
    let subresource = request.uri().path().rsplit('/').next().unwrap().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    match subresource.as_str() {
        "log" => {
            let lines = futures::stream::unfold(provider.log, |log| async {
                let line = match log.lock().await.recv().await? {
                    BROKEN => Err("broken"),
                    line => Ok(Frame::data(Bytes::from(line))),
                };
                Some((line, log))
            });
            Body::new(StreamBody::new(lines)).into_response()
        }
        "exec" if provider.refuses_command() => {
            let status = json!({"kind": "Status", "message": "50 at once, and then 2 a second", "code": 429});
            (StatusCode::TOO_MANY_REQUESTS, axum::Json(status)).into_response()
        }
        "exec" if query.contains("command=sleep") => run_sleep(request),
        "exec" if query.contains("command=absent") => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "container not found (\"c\")\n",
        )
            .into_response(),
        "exec" => run_echo(request),
        "attach" => (
            StatusCode::NOT_FOUND,
            axum::Json(json!({"kind": "Status", "message": "container c is not there"})),
        )
            .into_response(),
        "pods" if provider.measures.load(Ordering::Relaxed) => {
            let usage = |pod: &str| {
                let containers = json!([{"name": "c", "usage": {"cpu": "250m", "memory": "64Mi"}}]);
                json!({"metadata": {"name": pod, "namespace": "demo-rome"}, "containers": containers})
            };
            axum::Json(
                json!({"kind": "PodMetricsList", "items": [usage("web"), usage("stranger")]}),
            )
            .into_response()
        }
        "pods" => (StatusCode::NOT_FOUND, "404 page not found").into_response(),
        _ => (
            StatusCode::TEMPORARY_REDIRECT,
            [("location", "http://127.0.0.1:1/")],
            "",
        )
            .into_response(),
    }
}

impl Provider {
    /// Counts one command less that it refuses.
    fn refuses_command(&self) -> bool {
        self.refusing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
            .is_ok()
    }
}

/// A command that sends a frame and the beginning of another one, and then waits or, if its
/// arguments say so, breaks.
fn run_sleep(mut request: Request) -> Response {
    let breaks = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("breaks"));
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        stream.write_all(OUTPUT).await.unwrap();
        // The beginning of a frame.
        stream.write_all(&OUTPUT[..10]).await.unwrap();
        if !breaks {
            _ = stream.read(&mut [0; 8]).await;
        }
    });
    let headers = [
        ("upgrade", "SPDY/3.1"),
        ("connection", "Upgrade"),
        ("x-stream-protocol-version", "v5.channel.k8s.io"),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers, "").into_response()
}

/// A command that answers to five bytes, and ends when its caller does.
fn run_echo(mut request: Request) -> Response {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        let mut said = [0; 5];
        stream.read_exact(&mut said).await.unwrap();
        stream
            .write_all(&[b"you said ", &said[..]].concat())
            .await
            .unwrap();
        assert_eq!(
            stream.read(&mut said).await.unwrap(),
            0,
            "the caller's end arrives"
        );
        stream.write_all(b", bye").await.unwrap();
    });
    let protocol = request.headers()["upgrade"].clone();
    (
        StatusCode::SWITCHING_PROTOCOLS,
        [
            ("upgrade", protocol),
            ("connection", "Upgrade".parse().unwrap()),
        ],
        "",
    )
        .into_response()
}

/// One virtual node's API, a provider behind it, and a client.
struct Setting {
    address: SocketAddr,
    certificate: Arc<Certificate>,
    authority: watch::Sender<ClientAuthority>,
    provider: Provider,
    log: mpsc::Sender<&'static str>,
    api: Arc<KubeletApi>,
    stop: CancellationToken,
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn setting() -> Setting {
    let (log, lines) = mpsc::channel(4);
    let measures = Arc::new(AtomicBool::new(true));
    let log_lines = Arc::new(tokio::sync::Mutex::new(lines));
    let provider = Provider {
        asked: Arc::default(),
        log: log_lines,
        measures,
        refusing: Arc::default(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let stop = CancellationToken::new();
    let router = Router::new().fallback(answer).with_state(provider.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });

    // As for every peer: whoever calls it tries again, and not the client.
    let mut config = kube::Config::new(url);
    config.default_retry = false;
    let remote = Client::try_from(config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let certificate = Arc::new(
        self_signed(&NodeIdentity {
            node: "milan".into(),
            address: address.ip(),
        })
        .unwrap(),
    );
    let (authority, clients) = watch::channel(ClientAuthority::default());
    let api = KubeletApi::new(home(), Arc::new(OnePod(remote)), Clock::system());
    let tls = ListenerTls {
        certificate: certificate.clone(),
        clients,
    };
    let (served, stopped) = (api.clone(), stop.clone());
    tokio::spawn(async move {
        served
            .serve_node("milan", Box::new(listener), tls, stopped)
            .await;
    });
    Setting {
        address,
        certificate,
        authority,
        provider,
        log,
        api,
        stop,
    }
}

/// A client certificate and its key.
type Pair = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Setting {
    /// A connection by HTTP/2 or HTTP/1.1, as the API server makes it with
    /// `--kubelet-certificate-authority` not set.
    async fn connect(
        &self,
        protocol: &str,
        pair: Option<Pair>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Trusting(provider)));
        let mut config = match pair {
            Some((certificate, key)) => config
                .with_client_auth_cert(vec![certificate], key)
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let socket = TcpStream::connect(self.address).await?;
        let name = ServerName::IpAddress(self.address.ip().into());
        tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(name, socket)
            .await
    }

    async fn send(
        &self,
        request: http::request::Builder,
        pair: Option<Pair>,
    ) -> http::Response<Incoming> {
        let stream = TokioIo::new(self.connect("http/1.1", pair).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
            .send_request(request.body(Empty::<Bytes>::new()).unwrap())
            .await
            .unwrap()
    }

    /// Status and text for a path, asked with a token.
    async fn get(&self, path: &str, token: &str) -> (u16, String) {
        let response = self
            .send(
                http::Request::get(path).header("authorization", format!("Bearer {token}")),
                None,
            )
            .await;
        let status = response.status().as_u16();
        (
            status,
            String::from_utf8(
                response
                    .into_body()
                    .collect()
                    .await
                    .unwrap()
                    .to_bytes()
                    .to_vec(),
            )
            .unwrap(),
        )
    }

    fn asked(&self) -> Vec<(String, HeaderMap)> {
        self.provider.asked.lock().unwrap().clone()
    }
}

/// Accepts any server certificate.
#[derive(Debug)]
struct Trusting(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A CA, as PEM, and a client certificate that it signed.
fn client_of_a_ca(user: &str) -> (String, Pair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (
        authority.pem(),
        (
            certificate.der().clone(),
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        ),
    )
}

const LOGS: &str = "/containerLogs/demo/web/c?follow=true&tailLines=5";

#[tokio::test]
async fn an_anonymous_caller_is_turned_away() {
    let setting = setting().await;
    for path in [
        LOGS,
        "/healthz",
        "/pods",
        "/runningpods/",
        "/stats/summary",
        "/metrics/resource",
        "/metrics/cadvisor",
        "/metrics/probes",
        "/metrics",
        "/configz",
        "/exec/demo/web/c",
        "/attach/demo/web/c",
        "/portForward/demo/web",
    ] {
        let response = setting.send(http::Request::get(path), None).await;
        assert_eq!(response.status(), 401, "{path}");
        assert_eq!(setting.get(path, "unknown").await.0, 401, "{path}");
    }
    assert!(setting.asked().is_empty());
}

#[tokio::test]
async fn a_caller_without_the_right_is_turned_away() {
    let setting = setting().await;
    for path in [LOGS, "/exec/demo/web/c", "/pods", "/stats/summary"] {
        assert_eq!(setting.get(path, "scraper").await.0, 403, "{path}");
    }
    assert!(setting.asked().is_empty());
}

#[tokio::test]
async fn the_right_on_a_part_is_enough_and_that_on_the_whole_node_counts_for_each() {
    let setting = setting().await;
    let metrics = [
        "/metrics",
        "/metrics/resource",
        "/metrics/cadvisor",
        "/metrics/probes",
    ];
    for path in metrics {
        assert_eq!(setting.get(path, "scraper").await.0, 200, "{path}");
    }
    for path in metrics.into_iter().chain([
        "/stats/summary",
        "/healthz",
        "/pods",
        "/runningpods/",
        "/configz",
    ]) {
        assert_eq!(setting.get(path, "good").await.0, 200, "{path}");
    }
    assert!(
        setting
            .get("/stats/summary", "good")
            .await
            .1
            .contains(r#""nodeName":"milan""#)
    );
}

#[tokio::test]
async fn usage_is_that_of_the_nodes_own_pods_and_is_asked_for_once() {
    let setting = setting().await;
    let text = setting.get("/metrics/resource", "good").await.1;
    assert!(text.contains(r#"container_memory_working_set_bytes{container="c",namespace="demo",pod="web"} 67108864 "#), "{text}");
    assert!(!text.contains("stranger"), "{text}");
    let summary: Value =
        serde_json::from_str(&setting.get("/stats/summary", "good").await.1).unwrap();
    assert_eq!(summary["pods"][0]["podRef"]["name"], "web");
    let asked: Vec<String> = setting.asked().into_iter().map(|(uri, _)| uri).collect();
    assert_eq!(
        asked,
        ["/apis/metrics.k8s.io/v1beta1/namespaces/demo-rome/pods"]
    );
}

#[tokio::test]
async fn usage_of_a_provider_without_metrics_is_not_known() {
    let setting = setting().await;
    setting.provider.measures.store(false, Ordering::Relaxed);
    for path in ["/metrics/resource", "/stats/summary"] {
        let (status, text) = setting.get(path, "good").await;
        assert_eq!(status, 503, "{path}");
        assert!(text.contains("no metrics API (metrics.k8s.io)"), "{text}");
    }
}

#[tokio::test]
async fn a_certificate_of_the_client_ca_names_the_caller() {
    let setting = setting().await;
    let (authority, pair) = client_of_a_ca("kube-apiserver");
    let (_, stranger) = client_of_a_ca("kube-apiserver");
    setting
        .authority
        .send_replace(ClientAuthority::from_pem(&authority).unwrap());
    assert_eq!(
        setting
            .send(http::Request::get("/healthz"), Some(pair))
            .await
            .status(),
        200
    );
    assert_eq!(
        setting.get("/healthz", "good").await.0,
        200,
        "a token serves beside it"
    );
    // In TLS 1.3 the client learns that its certificate was refused with the first answer.
    let refused = match setting.connect("http/1.1", Some(stranger)).await {
        Ok(mut stream) => stream.read_u8().await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "a certificate of another CA");
}

#[tokio::test]
async fn a_certificate_that_no_ca_was_asked_for_names_nobody() {
    let setting = setting().await;
    let (_, pair) = client_of_a_ca("kube-apiserver");
    assert_eq!(
        setting
            .send(http::Request::get("/healthz"), Some(pair))
            .await
            .status(),
        401
    );
}

#[tokio::test]
async fn logs_come_as_they_are_written_also_over_http_2() {
    let setting = setting().await;
    let stream = TokioIo::new(setting.connect("h2", None).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
    tokio::spawn(connection);
    let url = format!("https://{}{LOGS}", setting.address);
    let request = http::Request::get(url)
        .header("authorization", "Bearer good")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.version()),
        (200, http::Version::HTTP_2)
    );
    let mut body = response.into_body();
    for line in ["first\n", "second\n"] {
        setting.log.send(line).await.unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            line
        );
    }
    let (asked, headers) = setting.asked().remove(0);
    assert_eq!(
        asked,
        "/api/v1/namespaces/demo-rome/pods/web/log?container=c&follow=true&tailLines=5"
    );
    assert_eq!(
        headers.get("authorization"),
        None,
        "the caller's token stays at home"
    );
}

#[tokio::test]
async fn a_pod_that_is_not_on_the_node_is_not_found() {
    let setting = setting().await;
    for path in [
        "/containerLogs/demo/other/c",
        "/containerLogs/kube-system/web/c",
        "/exec/demo/other/c",
        "/containerLogs/demo/web%2F..%2Fx/c",
    ] {
        assert_eq!(setting.get(path, "good").await.0, 404, "{path}");
    }
    assert!(setting.asked().is_empty());
}

fn upgrade(path: &str) -> http::request::Builder {
    http::Request::post(path)
        .header("authorization", "Bearer good")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "v5.channel.k8s.io")
        .header("cookie", "secret")
}

#[tokio::test]
async fn exec_is_spliced_both_ways_and_the_ends_are_told() {
    let setting = setting().await;
    let response = setting
        .send(upgrade("/exec/demo/web/c?command=ls&output=1"), None)
        .await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["upgrade"]),
        (101, &"SPDY/3.1".parse().unwrap())
    );
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut heard = [0; 14];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"you said hello");
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    // The connection may end without a TLS close_notify.
    _ = stream.read_to_string(&mut rest).await;
    assert_eq!(rest, ", bye");

    let (asked, headers) = setting.asked().remove(0);
    assert_eq!(
        asked,
        "/api/v1/namespaces/demo-rome/pods/web/exec?container=c&command=ls&stdout=true"
    );
    assert_eq!(headers["x-stream-protocol-version"], "v5.channel.k8s.io");
    assert_eq!(
        (headers.get("authorization"), headers.get("cookie")),
        (None, None)
    );
}

#[tokio::test]
async fn a_command_that_the_provider_paces_is_tried_again_and_that_of_a_customer_is_not() {
    let setting = setting().await;
    setting.provider.refusing.store(2, Ordering::Relaxed);
    let response = setting
        .send(upgrade("/exec/demo/web/c?command=sleep"), None)
        .await;
    assert_eq!(
        (response.status().as_u16(), setting.asked().len()),
        (101, 3)
    );

    setting.provider.refusing.store(2, Ordering::Relaxed);
    let response = setting
        .send(upgrade("/exec/demo/customers/c?command=ls"), None)
        .await;
    assert_eq!(
        (response.status().as_u16(), setting.asked().len()),
        (429, 4)
    );
    assert_eq!(
        said(response).await,
        "the other cluster: 50 at once, and then 2 a second"
    );
}

#[tokio::test]
async fn a_command_is_not_tried_again_for_a_caller_that_is_gone() {
    let setting = setting().await;
    setting
        .provider
        .refusing
        .store(usize::MAX, Ordering::Relaxed);
    let request = setting.send(upgrade("/exec/demo/web/c?command=ls"), None);
    assert!(
        tokio::time::timeout(Duration::from_millis(500), request)
            .await
            .is_err(),
        "it waits"
    );
    let asked = setting.asked().len();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(setting.asked().len(), asked);
}

#[tokio::test]
async fn what_the_provider_says_against_it_reaches_the_caller() {
    let setting = setting().await;
    let response = setting.send(upgrade("/attach/demo/web/c"), None).await;
    assert_eq!(response.status(), 404);
    assert_eq!(
        said(response).await,
        "the other cluster: container c is not there"
    );

    // A kubelet's text, which the provider's API server passes on.
    let response = setting
        .send(upgrade("/exec/demo/web/c?command=absent"), None)
        .await;
    assert_eq!(response.status(), 500);
    assert_eq!(
        said(response).await,
        "the other cluster: container not found (\"c\")"
    );
}

#[tokio::test]
async fn the_cause_of_a_refused_container_reaches_the_caller() {
    let setting = setting().await;
    let response = setting
        .send(upgrade("/attach/demo/web/privileged"), None)
        .await;
    assert_eq!(response.status(), 400);
    let cause =
        "the other cluster refused the ephemeral container privileged: violates PodSecurity";
    assert_eq!(said(response).await, cause);
    let response = setting
        .send(upgrade("/exec/demo/web/privileged?command=absent"), None)
        .await;
    assert_eq!(said(response).await, cause);
}

/// The message of an answer in the form that API servers and clients read.
async fn said(response: http::Response<Incoming>) -> String {
    let status: Value =
        serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(
        (&status["kind"], &status["apiVersion"], &status["status"]),
        (&json!("Status"), &json!("v1"), &json!("Failure"))
    );
    status["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let setting = setting().await;
    let response = setting
        .send(upgrade("/portForward/demo/web?port=80"), None)
        .await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers().get("location"), None);
}

#[tokio::test]
async fn exec_without_an_upgrade_is_refused() {
    let setting = setting().await;
    assert_eq!(
        setting.get("/exec/demo/web/c?command=ls", "good").await.0,
        400
    );
    assert!(setting.asked().is_empty());
}

/// What the caller of an exec gets from then on, until its connection ends: the message of the
/// failure after the output.
async fn failure_of(mut stream: TokioIo<hyper::upgrade::Upgraded>, cut: impl FnOnce()) -> String {
    let mut heard = vec![0; OUTPUT.len()];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, OUTPUT);
    cut();
    let mut result = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut result))
        .await
        .unwrap();
    assert!(
        ended.is_err(),
        "the end of the connection is not a clean one"
    );
    assert_eq!(
        result[..5],
        [0, 0, 0, 1, 1],
        "the last frame of the error stream"
    );
    let status: Value = serde_json::from_slice(&result[8..]).unwrap();
    assert_eq!(status["status"], "Failure");
    status["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_exec_that_ends_with_the_node_fails() {
    let setting = setting().await;
    let response = setting
        .send(upgrade("/exec/demo/web/c?command=sleep"), None)
        .await;
    let stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let failure = failure_of(stream, || setting.stop.cancel()).await;
    assert!(
        failure.contains("the kubelet API of the virtual node stopped"),
        "{failure}"
    );
    tokio::time::timeout(Duration::from_secs(5), setting.api.wait_until_closed())
        .await
        .expect("nothing is open");
}

#[tokio::test]
async fn an_exec_whose_connection_breaks_at_the_provider_fails() {
    let setting = setting().await;
    let response = setting
        .send(
            upgrade("/exec/demo/web/c?command=sleep&command=breaks"),
            None,
        )
        .await;
    let failure = failure_of(
        TokioIo::new(hyper::upgrade::on(response).await.unwrap()),
        || (),
    )
    .await;
    assert!(failure.contains("without a result"), "{failure}");
}

#[tokio::test]
async fn a_log_that_is_cut_says_so_and_does_not_end_in_order() {
    for (protocol, stops) in [
        ("http/1.1", true),
        ("http/1.1", false),
        ("h2", true),
        ("h2", false),
    ] {
        let setting = setting().await;
        let stream = TokioIo::new(setting.connect(protocol, None).await.unwrap());
        let url = if protocol == "h2" {
            format!("https://{}{LOGS}", setting.address)
        } else {
            LOGS.to_owned()
        };
        let request = http::Request::get(url)
            .header("authorization", "Bearer good")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = if protocol == "h2" {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
                    .await
                    .unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        } else {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        };
        let mut body = response.into_body();
        setting.log.send("begun").await.unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "begun"
        );
        if stops {
            setting.stop.cancel();
        } else {
            setting.log.send(BROKEN).await.unwrap();
        }
        let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(
            last.starts_with(b"\nliqo: the log ends here: "),
            "{protocol}: {last:?}"
        );
        assert!(body.frame().await.unwrap().is_err(), "{protocol}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_to_the_next_caller() {
    let setting = setting().await;
    let shown = async || {
        setting
            .connect("h2", None)
            .await
            .unwrap()
            .get_ref()
            .1
            .peer_certificates()
            .unwrap()[0]
            .clone()
            .into_owned()
    };
    let before = shown().await;
    let key = KeyPair::generate().unwrap();
    let other = CertificateParams::new(["other".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    setting
        .certificate
        .replace(
            vec![other.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let after = shown().await;
    assert_ne!(before, after);
    assert_eq!(&after, other.der());
}
