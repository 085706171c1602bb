//! The kubelet API of virtual nodes: what `kubectl logs`, `exec`, `attach`, `port-forward` and metrics-server call.
//!
//! Each virtual node has its own listener (port), which answers only for pods that are bound to this node. It checks callers as a
//! kubelet does: a client certificate or a bearer token authenticates them, a `SubjectAccessReview` authorises them. Logs are
//! streamed from the provider's API server. exec, attach and port-forward are *spliced*: the upgraded connection is forwarded byte
//! by byte, whatever its protocol is.
//!
//! ```text
//!   kubectl -> home API server --TLS--> [access] -> [index: local pod -> remote pod] -> [request] -> provider's API server
//!                                                                                         |                 |
//!                                       <================ logs, or the spliced stream ====+=================+
//! ```
//!
//! Only the action and known query keys of the caller's request reach the provider: host and path come from the index.

mod access;
pub mod client_ca;
mod request;
pub mod serving;
mod splice;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use liqo_controller_runtime::peers::CALL_TIMEOUT;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::server::{self, ClientCertificate, Tls};
use access::{Access, Gate};
use request::Action;

/// An idle spliced connection is closed after this time, as by a kubelet.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);

/// Maximum length of a provider's error text.
const MAX_ERROR_LEN: usize = 64 * 1024;

/// The remote pod of a local pod.
#[derive(Clone)]
pub struct RemotePod {
    pub client: Client,
    pub namespace: String,
    pub name: String,
}

/// Finds the remote pod of a local pod.
pub trait Index: Send + Sync + 'static {
    /// The remote pod of a local pod on this node. `None` for all others, whatever access the caller has.
    fn lookup(&self, node: &str, namespace: &str, pod: &str) -> Option<RemotePod>;
}

/// The kubelet API of all virtual nodes.
pub struct KubeletApi {
    home: Client,
    index: Arc<dyn Index>,
    gate: Gate,
    idle: Duration,
}

impl KubeletApi {
    /// `home` is a client for this cluster, to check callers and list pods.
    pub fn new(home: Client, index: Arc<dyn Index>) -> Arc<Self> {
        Arc::new(Self { gate: Gate::new(home.clone()), home, index, idle: IDLE_TIMEOUT })
    }

    /// Serves one node on its listener until `stop`.
    pub async fn serve(self: Arc<Self>, node: &str, listener: TcpListener, tls: Tls, stop: CancellationToken) {
        let served = Arc::new(Served { api: self, node: node.to_owned(), stop: stop.clone() });
        server::serve(listener, tls, routes(served), stop).await;
    }
}

/// The state of one node's routes.
struct Served {
    api: Arc<KubeletApi>,
    node: String,
    stop: CancellationToken,
}

type Node = State<Arc<Served>>;

fn routes(served: Arc<Served>) -> Router {
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
        .with_state(served)
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Denied(#[from] access::Denied),
    #[error(transparent)]
    Malformed(#[from] request::Malformed),
    #[error("pod {namespace}/{pod} is not on node {node}, or does not run in the other cluster yet")]
    NoSuchPod { node: String, namespace: String, pod: String },
    #[error("the other cluster's API server: {0}")]
    Peer(#[source] kube::Error),
    #[error("the other cluster's API server did not answer in {} s", CALL_TIMEOUT.as_secs())]
    PeerSilent,
    #[error("the other cluster: {message}")]
    PeerRefused { status: StatusCode, message: String },
    #[error("this call needs an upgrade to SPDY/3.1 or WebSocket")]
    NoUpgrade,
    #[error("listing the pods of the node: {0}")]
    Home(#[source] kube::Error),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Denied(denied) => denied.status(),
            Self::Malformed(_) | Self::NoUpgrade => StatusCode::BAD_REQUEST,
            Self::NoSuchPod { .. } => StatusCode::NOT_FOUND,
            Self::PeerSilent => StatusCode::GATEWAY_TIMEOUT,
            // The caller gets the peer's message about the pod, but neither messages about us nor redirects.
            Self::PeerRefused { status, .. } if [400, 404, 409, 422].contains(&status.as_u16()) => *status,
            Self::Peer(_) | Self::PeerRefused { .. } | Self::Home(_) => StatusCode::BAD_GATEWAY,
        };
        (status, format!("{self}\n")).into_response()
    }
}

impl Served {
    async fn admit(&self, client: &ClientCertificate, headers: &HeaderMap, access: Access) -> Result<(), Failure> {
        Ok(self.api.gate.admit(client, headers, &self.node, access).await?)
    }

    fn remote(&self, namespace: &str, pod: &str) -> Result<RemotePod, Failure> {
        let found = self.api.index.lookup(&self.node, namespace, pod);
        found.ok_or_else(|| Failure::NoSuchPod { node: self.node.clone(), namespace: namespace.into(), pod: pod.into() })
    }

    /// Splices the caller with the remote pod.
    async fn stream(
        &self,
        action: Action<'_>,
        client: &ClientCertificate,
        pod: (&str, &str),
        request: Request,
    ) -> Result<Response, Failure> {
        // Also for GET, which WebSockets use: running a command needs more than read access.
        self.admit(client, request.headers(), Access::CONNECT).await?;
        let remote = self.remote(pod.0, pod.1)?;
        let uri = request::uri(&remote, action, request.uri().query().unwrap_or_default())?;
        splice::splice(&remote.client, &uri, request, self.api.idle, self.stop.clone()).await
    }

    async fn list(&self, fields: &str) -> Result<Response, Failure> {
        let uri = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}{fields}", self.node);
        let request = http::Request::get(uri).body(Vec::new()).map_err(|error| Failure::Home(kube::Error::HttpError(error)))?;
        let pods = self.api.home.request_text(request).await.map_err(Failure::Home)?;
        Ok(([(CONTENT_TYPE, "application/json")], pods).into_response())
    }
}

async fn healthz(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    node.admit(&client, &headers, Access::read("healthz")).await?;
    Ok("ok".into_response())
}

async fn logs(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    node.admit(&client, &headers, Access::read("proxy")).await?;
    let remote = node.remote(&namespace, &pod)?;
    let uri = request::uri(&remote, Action::Log { container: &container }, query.as_deref().unwrap_or_default())?;
    let request = http::Request::get(uri).body(kube::client::Body::empty());
    let request = request.map_err(|error| Failure::Peer(kube::Error::HttpError(error)))?;
    let response = ask(&remote.client, request).await?;
    if response.status() != StatusCode::OK {
        return Err(refusal(response).await);
    }
    Ok(([(CONTENT_TYPE, "text/plain")], Body::new(response.into_body())).into_response())
}

async fn exec(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    node.stream(Action::Exec { container: &container }, &client, (&namespace, &pod), request).await
}

async fn attach(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    node.stream(Action::Attach { container: &container }, &client, (&namespace, &pod), request).await
}

async fn port_forward(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    Path((namespace, pod)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    node.stream(Action::PortForward, &client, (&namespace, &pod), request).await
}

async fn pods(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    node.admit(&client, &headers, Access::read("pods")).await?;
    node.list("").await
}

async fn running_pods(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    node.admit(&client, &headers, Access::read("pods")).await?;
    node.list("%2Cstatus.phase%3DRunning").await
}

/// The resource use at the peer is unknown: a valid answer without pods.
async fn summary(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    node.admit(&client, &headers, Access::read("stats")).await?;
    Ok(axum::Json(serde_json::json!({"node": {"nodeName": node.node}, "pods": []})).into_response())
}

async fn metrics(
    State(node): Node,
    Extension(client): Extension<ClientCertificate>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    node.admit(&client, &headers, Access::read("metrics")).await?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], "").into_response())
}

type PeerResponse = http::Response<kube::client::Body>;

/// Sends a request to the peer. The answer must begin within [`CALL_TIMEOUT`], and may then go on without limit.
async fn ask(client: &Client, request: http::Request<kube::client::Body>) -> Result<PeerResponse, Failure> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, client.send(request)).await;
    answer.map_err(|_| Failure::PeerSilent)?.map_err(Failure::Peer)
}

/// The error text of an answer.
async fn refusal(response: PeerResponse) -> Failure {
    let status = response.status();
    let body = tokio::time::timeout(CALL_TIMEOUT, Limited::new(response.into_body(), MAX_ERROR_LEN).collect()).await;
    let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let said: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let message = said.as_ref().and_then(|said| said["message"].as_str()).map(str::to_owned);
    let message = message.unwrap_or_else(|| format!("{status} {}", String::from_utf8_lossy(&body).trim()));
    Failure::PeerRefused { status, message }
}
