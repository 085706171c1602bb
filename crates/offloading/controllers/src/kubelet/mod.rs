//! The kubelet API of virtual nodes: what `kubectl logs`, `exec`, `attach`, `port-forward` and
//! metrics-server call.
//!
//! Each virtual node has its own listener (port), which answers only for pods on this node. It
//! checks callers as a kubelet does: a client certificate or a bearer token authenticates them, a
//! `SubjectAccessReview` authorises them. Logs come as a stream from the provider's API server.
//! exec, attach and port-forward are *spliced*: this process forwards the bytes of the upgraded
//! connection, whatever its protocol is. A connection that breaks never looks like a normal end.
//!
//! ```text
//!   kubectl -> home API server -TLS-> access -> index: local pod to remote pod -> request -> provider's API server
//!                                                                                    |                 |
//!                                     <=========== logs, or the spliced stream ======+=================+
//! ```
//! Only the action and known query keys of the caller's request reach the provider: host and path
//! come from the index.

mod access;
pub mod client_ca;
mod exec_result;
mod log_stream;
mod pod_metrics;
mod request;
pub mod serving;
mod splice;
#[cfg(test)]
mod tests;
mod waiting_line;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use liqo_controller_runtime::{Clock, network::Listener, peers::CALL_TIMEOUT};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::https_listener::{self, ClientCertificate, ListenerTls};
use access::{AccessReviewer, NodeAccess};
pub use pod_metrics::LocalPodRef;
use pod_metrics::{KubeletNodeUsage, PodMetrics, PodMetricsList};
use request::PodAction;
use splice::SpliceLimits;
use waiting_line::WaitingLine;

/// An idle spliced connection is closed after this time, as by a kubelet.
const IDLE_TIMEOUT: Duration = Duration::from_hours(4);

/// Time that callers have to learn that the API stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum length of a provider's error text.
const MAX_ERROR_LEN: usize = 64 * 1024;

/// How long the provider's answer about usage is served. metrics-server asks every 15 s.
const USAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum length of that answer, for one namespace: about 1000 pods. In memory it can take thirty
/// times as much.
const MAX_USAGE_LEN: usize = 4 * 1024 * 1024;

/// The remote pod of a local pod.
#[derive(Clone)]
pub struct RemotePodTarget {
    pub client: Client,
    pub namespace: String,
    pub name: String,
    /// A customer of this broker owns the pod. Its commands wait in the cluster of the customer,
    /// which gives an answer less time.
    pub is_customers: bool,
}

/// Finds the remote pod of a local pod.
pub trait RemotePodIndex: Send + Sync + 'static {
    /// The remote pod of a local pod on this node. `None` for all others, whatever access the
    /// caller has.
    fn find_remote_pod(&self, node: &str, namespace: &str, pod: &str) -> Option<RemotePodTarget>;

    /// Why the provider refused an ephemeral container of a local pod (namespace and name) on this
    /// node; `None` if it did not.
    fn container_refusal(&self, node: &str, pod: (&str, &str), container: &str) -> Option<String>;

    /// The local pods on this node, with their remote pods.
    fn pods(&self, node: &str) -> Vec<(LocalPodRef, RemotePodTarget)>;
}

/// The kubelet API of all virtual nodes.
pub struct KubeletApi {
    home: Client,
    index: Arc<dyn RemotePodIndex>,
    gate: AccessReviewer,
    clock: Clock,
    idle: Duration,
    /// The listeners and the spliced connections.
    open: TaskTracker,
}

impl KubeletApi {
    /// `home` is a client for this cluster, to check callers and list pods.
    pub fn new(home: Client, index: Arc<dyn RemotePodIndex>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            gate: AccessReviewer::new(home.clone()),
            home,
            index,
            clock,
            idle: IDLE_TIMEOUT,
            open: TaskTracker::new(),
        })
    }

    /// Serves one node on its listener until `stop`.
    pub async fn serve_node(
        self: Arc<Self>,
        node: &str,
        listener: Box<dyn Listener>,
        tls: ListenerTls,
        stop: CancellationToken,
    ) {
        let _open = self.open.token();
        let served = Arc::new(ServedNode {
            api: self.clone(),
            node: node.to_owned(),
            measured: Mutex::default(),
            line: WaitingLine::default(),
            stop: stop.clone(),
        });
        https_listener::serve_routes(listener, tls, kubelet_routes(served), stop).await;
    }

    /// Waits until every caller was told that its stream was cut, after all nodes were stopped. A
    /// process that ends earlier makes commands look as if they had succeeded.
    pub async fn wait_until_closed(&self) {
        self.open.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.open.wait())
            .await
            .is_err()
        {
            tracing::debug!(
                open = self.open.len(),
                "kubelet API ends with open connections"
            );
        }
    }
}

/// The state of one node's routes.
struct ServedNode {
    api: Arc<KubeletApi>,
    node: String,
    measured: Mutex<MeasuredUsage>,
    line: WaitingLine,
    stop: CancellationToken,
}

/// What the pods of the node use, and when the provider was asked.
#[derive(Default)]
struct MeasuredUsage {
    asked: Option<Instant>,
    usage: KubeletNodeUsage,
    failure: Option<String>,
}

type NodeRouteState = State<Arc<ServedNode>>;

fn kubelet_routes(served: Arc<ServedNode>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
        .route("/exec/{namespace}/{pod}/{container}", any(exec))
        .route("/attach/{namespace}/{pod}/{container}", any(attach))
        .route("/portForward/{namespace}/{pod}", any(port_forward))
        .route("/pods", get(pods))
        .route("/runningpods/", get(running_pods))
        .route("/stats/summary", get(summary))
        .route("/metrics/resource", get(metrics))
        .route("/metrics/cadvisor", get(container_metrics))
        .route("/metrics", get(own_metrics))
        .route("/metrics/probes", get(no_metrics))
        .route("/configz", get(configuration))
        .with_state(served)
}

#[derive(Debug, thiserror::Error)]
enum CallFailure {
    #[error(transparent)]
    Denied(#[from] access::AccessDenied),
    #[error(transparent)]
    Malformed(#[from] request::MalformedCall),
    // A consumer of ours reads it, too, and knows no names of nodes here.
    #[error("pod {namespace}/{pod} is not on this node, or does not run in the other cluster yet")]
    NoSuchPod { namespace: String, pod: String },
    #[error("the other cluster's API server: {0}")]
    Peer(#[source] kube::Error),
    #[error("the other cluster's API server did not answer in {} s", CALL_TIMEOUT.as_secs())]
    PeerSilent,
    #[error("the other cluster: {message}")]
    PeerRefused { status: StatusCode, message: String },
    #[error("the other cluster refused the ephemeral container {container}: {why}")]
    ContainerRefused { container: String, why: String },
    #[error("this call needs an upgrade to SPDY/3.1 or WebSocket")]
    NoUpgrade,
    #[error("listing the pods of the node: {0}")]
    Home(#[source] kube::Error),
    #[error(
        "the other cluster has no metrics API (metrics.k8s.io): it needs metrics-server, for example"
    )]
    NoMetrics,
    #[error("the other cluster's metrics cannot be read: {0}")]
    MetricsUnreadable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("what the pods of the node use is not known: {0}")]
    UsageUnknown(String),
}

impl CallFailure {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Denied(denied) => denied.status_code(),
            Self::Malformed(_) | Self::NoUpgrade | Self::ContainerRefused { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::NoSuchPod { .. } => StatusCode::NOT_FOUND,
            Self::PeerSilent => StatusCode::GATEWAY_TIMEOUT,
            Self::PeerRefused { status, .. } if is_about_pod(*status) => *status,
            Self::NoMetrics | Self::UsageUnknown(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Peer(_)
            | Self::PeerRefused { .. }
            | Self::Home(_)
            | Self::MetricsUnreadable(_) => StatusCode::BAD_GATEWAY,
        }
    }

    /// The answer to a request for an upgrade. API servers and clients read it as a `Status`, and
    /// fall back to the text only if it cannot be one: a text with a colon is YAML, and would
    /// become a `Status` without a message.
    fn to_upgrade(&self) -> Response {
        let status = self.status_code();
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "code": status.as_u16(), "message": self.to_string(),
        });
        (status, axum::Json(body)).into_response()
    }
}

/// Whether a provider's answer is about the pod, or about how often its users call. The caller gets
/// its message, but neither messages about us nor redirects.
fn is_about_pod(status: StatusCode) -> bool {
    [400, 404, 409, 422, 429, 500].contains(&status.as_u16())
}

impl IntoResponse for CallFailure {
    fn into_response(self) -> Response {
        (self.status_code(), format!("{self}\n")).into_response()
    }
}

impl ServedNode {
    async fn admit(
        &self,
        client: &ClientCertificate,
        headers: &HeaderMap,
        access: NodeAccess,
    ) -> Result<(), CallFailure> {
        Ok(self
            .api
            .gate
            .check_access(client, headers, &self.node, access)
            .await?)
    }

    fn remote_pod(&self, namespace: &str, pod: &str) -> Result<RemotePodTarget, CallFailure> {
        let found = self.api.index.find_remote_pod(&self.node, namespace, pod);
        found.ok_or_else(|| CallFailure::NoSuchPod {
            namespace: namespace.into(),
            pod: pod.into(),
        })
    }

    /// The failure of a call about a container. The provider does not know one that it refused, so
    /// its answer names no cause.
    fn explain_failure(
        &self,
        failure: CallFailure,
        pod: (&str, &str),
        container: &str,
    ) -> CallFailure {
        let CallFailure::PeerRefused { status, .. } = &failure else {
            return failure;
        };
        let refusal = self
            .api
            .index
            .container_refusal(&self.node, pod, container)
            .filter(|_| is_about_pod(*status));
        refusal.map_or(failure, |why| CallFailure::ContainerRefused {
            container: container.to_owned(),
            why,
        })
    }

    /// Splices the caller with the remote pod.
    async fn stream_pod(
        &self,
        action: PodAction<'_>,
        client: &ClientCertificate,
        pod: (&str, &str),
        request: Request,
    ) -> Response {
        let container = match action {
            PodAction::Log { container }
            | PodAction::Exec { container }
            | PodAction::Attach { container } => Some(container),
            PodAction::PortForward => None,
        };
        let answer = self.splice_remote(action, client, pod, request).await;
        answer.unwrap_or_else(|failure| match container {
            Some(container) => self.explain_failure(failure, pod, container).to_upgrade(),
            None => failure.to_upgrade(),
        })
    }

    async fn splice_remote(
        &self,
        action: PodAction<'_>,
        client: &ClientCertificate,
        pod: (&str, &str),
        request: Request,
    ) -> Result<Response, CallFailure> {
        // Also for GET, which WebSockets use: running a command needs more than read access.
        self.admit(client, request.headers(), NodeAccess::CONNECT)
            .await?;
        let remote = self.remote_pod(pod.0, pod.1)?;
        let uri =
            request::provider_uri(&remote, action, request.uri().query().unwrap_or_default())?;
        let limits = SpliceLimits {
            idle: self.api.idle,
            stop: self.stop.clone(),
            open: self.api.open.clone(),
        };
        let line = (!remote.is_customers).then_some(&self.line);
        splice::splice_connection(&remote.client, &uri, request, line, limits).await
    }

    /// What the pods of the node use, as the provider said at most [`USAGE_INTERVAL`] ago.
    async fn current_usage(&self) -> Result<KubeletNodeUsage, CallFailure> {
        let mut measured = self.measured.lock().await;
        if measured
            .asked
            .is_none_or(|at| at.elapsed() >= USAGE_INTERVAL)
        {
            match self.reported_usage().await {
                Ok(reported) => {
                    measured.usage = measured.usage.updated_with(&reported, self.api.clock.now());
                    measured.failure = None;
                }
                Err(failure) => measured.failure = Some(failure.to_string()),
            }
            measured.asked = Some(Instant::now());
        }
        measured.failure.clone().map_or_else(
            || Ok(measured.usage.clone()),
            |failure| Err(CallFailure::UsageUnknown(failure)),
        )
    }

    /// Asks the provider about the pods of the node, and about no others that it has.
    async fn reported_usage(&self) -> Result<Vec<(LocalPodRef, PodMetrics)>, CallFailure> {
        let mut namespaces: BTreeMap<String, (Client, HashMap<String, LocalPodRef>)> =
            BTreeMap::new();
        for (local, remote) in self.api.index.pods(&self.node) {
            let (_, pods) = namespaces
                .entry(remote.namespace)
                .or_insert_with(|| (remote.client, HashMap::new()));
            pods.insert(remote.name, local);
        }
        // One answer at a time is in memory. A namespace that cannot be read says nothing about the
        // others.
        let (mut reported, mut failure, mut has_answered) = (Vec::new(), None, false);
        for (namespace, (client, mut pods)) in namespaces {
            match metrics_of(&client, &namespace).await {
                Ok(found) => {
                    has_answered = true;
                    reported.extend(
                        found
                            .items
                            .into_iter()
                            .filter_map(|metrics| Some((pods.remove(metrics.name())?, metrics))),
                    );
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.filter(|_| !has_answered).map_or(Ok(reported), Err)
    }

    async fn list_pods(&self, fields: &str) -> Result<Response, CallFailure> {
        Ok((
            [(CONTENT_TYPE, "application/json")],
            self.pods_text(fields).await?,
        )
            .into_response())
    }

    /// The list of the node's pods, as the API server has it.
    async fn pods_text(&self, fields: &str) -> Result<String, CallFailure> {
        let uri = format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{}{fields}",
            self.node
        );
        let request = http::Request::get(uri)
            .body(Vec::new())
            .map_err(|error| CallFailure::Home(kube::Error::HttpError(error)))?;
        self.api
            .home
            .request_text(request)
            .await
            .map_err(CallFailure::Home)
    }
}

async fn healthz(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("healthz"))
        .await?;
    Ok("ok".into_response())
}

async fn logs(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("proxy"))
        .await?;
    let remote = node.remote_pod(&namespace, &pod)?;
    let uri = request::provider_uri(
        &remote,
        PodAction::Log {
            container: &container,
        },
        query.as_deref().unwrap_or_default(),
    )?;
    let request = http::Request::get(uri).body(kube::client::Body::empty());
    let request = request.map_err(|error| CallFailure::Peer(kube::Error::HttpError(error)))?;
    let response = ask_peer(&remote.client, request).await?;
    if response.status() != StatusCode::OK {
        return Err(node.explain_failure(
            failure_of_answer(response).await,
            (&namespace, &pod),
            &container,
        ));
    }
    Ok((
        [(CONTENT_TYPE, "text/plain")],
        log_stream::log_body(response.into_body(), node.stop.clone()),
    )
        .into_response())
}

async fn exec(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    node.stream_pod(
        PodAction::Exec {
            container: &container,
        },
        &client,
        (&namespace, &pod),
        request,
    )
    .await
}

async fn attach(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    request: Request,
) -> Response {
    node.stream_pod(
        PodAction::Attach {
            container: &container,
        },
        &client,
        (&namespace, &pod),
        request,
    )
    .await
}

async fn port_forward(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod)): Path<(String, String)>,
    request: Request,
) -> Response {
    node.stream_pod(PodAction::PortForward, &client, (&namespace, &pod), request)
        .await
}

async fn pods(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("pods"))
        .await?;
    node.list_pods("").await
}

async fn running_pods(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("pods"))
        .await?;
    node.list_pods("%2Cstatus.phase%3DRunning").await
}

async fn summary(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("stats"))
        .await?;
    Ok(axum::Json(node.current_usage().await?.summary(&node.node)).into_response())
}

async fn metrics(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("metrics"))
        .await?;
    Ok(prometheus_response(
        node.current_usage().await?.resource_metrics(),
    ))
}

/// Serves CPU time and memory of containers as cAdvisor does in a kubelet, with the images by which
/// dashboards select them.
async fn container_metrics(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("metrics"))
        .await?;
    let usage = node.current_usage().await?;
    let pods = serde_json::from_str(&node.pods_text("").await?)
        .map_err(|error| CallFailure::Home(kube::Error::SerdeError(error)))?;
    Ok(prometheus_response(usage.container_metrics(&pods)))
}

/// Serves the few metrics of a kubelet about itself that are true here.
async fn own_metrics(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("metrics"))
        .await?;
    let running = node.api.index.pods(&node.node).len();
    Ok(prometheus_response(pod_metrics::own_metrics(
        &node.node, running,
    )))
}

/// Probes run at the provider, which tells nothing about them but their outcome.
async fn no_metrics(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("metrics"))
        .await?;
    Ok(prometheus_response(String::new()))
}

/// Serves the part of the configuration of a kubelet that is true here: who may call.
async fn configuration(
    State(node): NodeRouteState,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, CallFailure> {
    node.admit(&client, &headers, NodeAccess::to_read("configz"))
        .await?;
    let configuration = serde_json::json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": { "anonymous": { "enabled": false }, "webhook": { "enabled": true } },
        "authorization": { "mode": "Webhook" },
    });
    Ok(axum::Json(serde_json::json!({ "kubeletconfig": configuration })).into_response())
}

/// Metrics in the text format of Prometheus.
fn prometheus_response(text: String) -> Response {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response()
}

type PeerResponse = http::Response<kube::client::Body>;

/// Sends a request to the peer. The answer must begin within [`CALL_TIMEOUT`], and may then go on
/// without limit.
async fn ask_peer(
    client: &Client,
    request: http::Request<kube::client::Body>,
) -> Result<PeerResponse, CallFailure> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, client.send(request)).await;
    answer
        .map_err(|_| CallFailure::PeerSilent)?
        .map_err(CallFailure::Peer)
}

/// What the pods of a namespace use, as the provider's metrics API says.
async fn metrics_of(client: &Client, namespace: &str) -> Result<PodMetricsList, CallFailure> {
    let request =
        http::Request::get(request::usage_uri(namespace)?).body(kube::client::Body::empty());
    let response = ask_peer(
        client,
        request.map_err(|error| CallFailure::Peer(kube::Error::HttpError(error)))?,
    )
    .await?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err(CallFailure::NoMetrics),
        _ => return Err(failure_of_answer(response).await),
    }
    let body = Limited::new(response.into_body(), MAX_USAGE_LEN).collect();
    let body = tokio::time::timeout(CALL_TIMEOUT, body)
        .await
        .map_err(|_| CallFailure::PeerSilent)?;
    let body = body.map_err(CallFailure::MetricsUnreadable)?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| CallFailure::MetricsUnreadable(error.into()))
}

/// The error text of an answer.
async fn failure_of_answer(response: PeerResponse) -> CallFailure {
    let status = response.status();
    let body = tokio::time::timeout(
        CALL_TIMEOUT,
        Limited::new(response.into_body(), MAX_ERROR_LEN).collect(),
    )
    .await;
    let body = body
        .ok()
        .and_then(Result::ok)
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let said: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let message = said
        .as_ref()
        .and_then(|said| said["message"].as_str())
        .map(str::to_owned);
    let message = message.unwrap_or_else(|| match String::from_utf8_lossy(&body).trim() {
        // A kubelet answers with a text.
        text if is_about_pod(status) && !text.is_empty() => text.to_owned(),
        text => format!("{status} {text}").trim_end().to_owned(),
    });
    // A broker says so of a cluster behind it.
    let message = message
        .strip_prefix("the other cluster")
        .map(|rest| format!("a further cluster{rest}"))
        .unwrap_or(message);
    CallFailure::PeerRefused { status, message }
}
