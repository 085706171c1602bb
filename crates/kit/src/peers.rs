//! The clusters that we borrow from.
//!
//! Peering fills this registry, the other slices follow it. A [`PeerConnection`] holds until its `ended` token is cancelled:
//! the credential was withdrawn, the peering ended, or the peer came back after an outage, in which case a new connection
//! follows at once, so that watches which may have died silently are started afresh. While a peer merely does not answer,
//! its connection stays and its health says so.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use http_body_util::Limited;
use hyper::rt::ReadBufCursor;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::{TokioExecutor, TokioIo},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use liqo_api::ClusterId;
use liqo_passage::{API_PORT, session::Passage};
use tokio::{io::DuplexStream, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tower::{Layer, Service};

/// How long a call to a peer may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its API server answers and its manager renews its lease.
    Reachable,
    /// It does not, since this time (of the local monotonic clock).
    Unreachable {
        /// Since when.
        since: Instant,
    },
}

/// One cluster that we borrow from.
pub struct PeerConnection {
    /// Its identity.
    pub cluster_id: ClusterId,
    /// Its friendly name.
    pub cluster_name: String,
    /// Name of its `ForeignCluster` here.
    pub foreign_cluster: String,
    /// Client for its API server, acting as us. The token inside is renewed without the client changing.
    pub client: Client,
    /// The namespace there that belongs to us.
    pub tenant_namespace: String,
    /// The protocol version that both speak.
    pub protocol_version: u32,
    /// Whether it answers.
    pub health: watch::Receiver<Health>,
    /// Cancelled when this connection must no longer be used.
    pub ended: CancellationToken,
}

impl PeerConnection {
    /// Whether the peer answers.
    pub fn is_reachable(&self) -> bool {
        matches!(*self.health.borrow(), Health::Reachable)
    }
}

/// The clusters that we borrow from, by ID. Clones share the same registry.
#[derive(Clone)]
pub struct Peers {
    connections: Arc<watch::Sender<BTreeMap<ClusterId, Arc<PeerConnection>>>>,
}

impl Default for Peers {
    fn default() -> Self {
        Self { connections: Arc::new(watch::channel(BTreeMap::new()).0) }
    }
}

impl Peers {
    /// Announces a connection; one that stood for the same peer ends.
    pub fn publish(&self, connection: PeerConnection) {
        self.connections.send_modify(|all| {
            if let Some(old) = all.insert(connection.cluster_id.clone(), Arc::new(connection)) {
                old.ended.cancel();
            }
        });
    }

    /// Ends the connection to this peer, if there is one.
    pub fn withdraw(&self, id: &ClusterId) {
        self.connections.send_if_modified(|all| match all.remove(id) {
            Some(old) => {
                old.ended.cancel();
                true
            }
            None => false,
        });
    }

    /// The connection to this peer.
    pub fn get(&self, id: &ClusterId) -> Option<Arc<PeerConnection>> {
        self.connections.borrow().get(id).cloned()
    }

    /// Starts `task` once for every connection, present and future, until `stop`. A task is expected to end when its
    /// connection's `ended` is cancelled; a new connection to the same peer gets a task of its own after that.
    pub async fn for_each<F, Fut>(&self, stop: CancellationToken, task: F)
    where
        F: Fn(Arc<PeerConnection>) -> Fut,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut connections = self.connections.subscribe();
        let mut started: BTreeMap<ClusterId, Arc<PeerConnection>> = BTreeMap::new();
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let current = connections.borrow_and_update().clone();
            for (id, connection) in &current {
                if !started.get(id).is_some_and(|known| Arc::ptr_eq(known, connection)) {
                    tasks.spawn(task(connection.clone()));
                }
            }
            started = current;
            tokio::select! {
                () = stop.cancelled() => break,
                changed = connections.changed() => if changed.is_err() { break },
            }
            while tasks.try_join_next().is_some() {}
        }
        tasks.shutdown().await;
    }
}

/// A call to a peer failed or took too long.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The peer's API server refused or could not be reached.
    #[error("the peer's API server: {0}")]
    Api(#[from] kube::Error),
    /// No answer in [`CALL_TIMEOUT`].
    #[error("the peer's API server did not answer in {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
}

/// Runs one request to a peer with a time limit, so that a dead peer holds nobody up.
pub async fn call<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, PeerError> {
    tokio::time::timeout(CALL_TIMEOUT, request).await.map_err(|_| PeerError::Timeout)?.map_err(PeerError::Api)
}

/// The bearer token of a peer client, to be replaced while the client is in use.
#[derive(Clone, Default)]
pub struct Token {
    header: Arc<RwLock<Option<HeaderValue>>>,
}

/// The token holds characters that no header can carry.
#[derive(Debug, thiserror::Error)]
#[error("the token that the provider issued cannot be sent in a header")]
pub struct UnusableToken;

impl Token {
    /// Uses this token from the next request on.
    pub fn set(&self, token: &str) -> Result<(), UnusableToken> {
        let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| UnusableToken)?;
        header.set_sensitive(true);
        *self.header.write().unwrap_or_else(PoisonError::into_inner) = Some(header);
        Ok(())
    }

    fn get(&self) -> Option<HeaderValue> {
        self.header.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A client for a peer's API server whose token can be replaced. `config` carries address, CA and time-outs, no credential.
/// The peer may be hostile: what it answers is cut off at [`LONGEST_ANSWER`].
///
/// With a passage every connection goes through the peer's tunnel; address and CA are what the API server is checked against all the same.
pub fn client(config: Config, token: Token, passage: Option<Arc<Passage>>) -> kube::Result<Client> {
    let Some(passage) = passage else {
        return Ok(ClientBuilder::try_from(config)?.with_layer(&PeerLayer { token }).build());
    };
    let connector = config.rustls_https_connector_with_connector(Through(passage))?;
    let http = hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build(connector);
    let service = tower::ServiceBuilder::new().layer(config.base_uri_layer()).service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).with_layer(&PeerLayer { token }).build())
}

/// Connects with the API server inside of a passage, whatever its address is.
#[derive(Clone)]
struct Through(Arc<Passage>);

impl Service<http::Uri> for Through {
    type Response = InPassage;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<InPassage>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let passage = Arc::clone(&self.0);
        Box::pin(async move { Ok(InPassage(TokioIo::new(passage.connect(API_PORT).await?))) })
    }
}

/// A connection inside of a passage.
struct InPassage(TokioIo<DuplexStream>);

impl Connection for InPassage {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for InPassage {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for InPassage {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// How much of one answer is read, in bytes. A watch that comes that far is resumed.
pub const LONGEST_ANSWER: usize = 64 << 20;

/// Logs are passed on to whoever asked, and not collected here.
fn longest_answer(path: &str) -> usize {
    if path.ends_with("/log") { usize::MAX } else { LONGEST_ANSWER }
}

#[derive(Clone)]
struct PeerLayer {
    token: Token,
}

impl<S> Layer<S> for PeerLayer {
    type Service = PeerService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PeerService { inner, token: self.token.clone() }
    }
}

#[derive(Clone)]
struct PeerService<S> {
    inner: S,
    token: Token,
}

impl<S, B, R> Service<Request<B>> for PeerService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<Limited<R>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(header) = self.token.get() {
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        let longest = longest_answer(request.uri().path());
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Limited::new(body, longest))) })
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use http_body_util::{BodyExt as _, Full};
    use tower::ServiceExt as _;

    use super::*;

    async fn read_of(path: &str, length: usize) -> bool {
        let server = tower::service_fn(move |request: Request<()>| async move {
            assert_eq!(request.headers()[AUTHORIZATION], "Bearer t");
            Ok::<_, Infallible>(Response::new(Full::<VecDeque<u8>>::new(vec![0; length].into())))
        });
        let token = Token::default();
        token.set("t").unwrap();
        let request = Request::builder().uri(path).body(()).unwrap();
        let response = PeerLayer { token }.layer(server).oneshot(request).await.unwrap();
        response.into_body().collect().await.is_ok()
    }

    #[tokio::test]
    async fn a_peer_cannot_fill_our_memory_with_one_answer() {
        let list = "/apis/virtualkubelet.liqo.io/v1alpha1/namespaces/t/shadowpods";
        assert!(read_of(list, LONGEST_ANSWER).await);
        assert!(!read_of(list, LONGEST_ANSWER + 1).await);
        assert!(read_of("/api/v1/namespaces/m/pods/p/log", LONGEST_ANSWER + 1).await);
    }
}
