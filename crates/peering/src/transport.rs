//! The HTTP client for a peer's API server. Its token can be replaced while it is in use, the
//! answers that it reads are limited, and it can go through the peer's tunnel.

mod answers;

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use hyper::rt::ReadBufCursor;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use liqo_controller_runtime::{
    Network,
    network::BoxNetworkStream,
    provider_limits::{LimitExceeded, ProviderLimits},
};
use liqo_tunnel_client::{API_PORT, session::TunnelConnection};
use parking_lot::RwLock;
use tokio::time::{timeout, timeout_at};
use tower::{BoxError, Layer, Service};

use self::answers::{LimitedBody, admit_answer, record_exceeded};
use crate::decide::{
    answers::AnswerKind,
    credential::{CONNECT_TIMEOUT, is_no_server},
};

/// The bearer token of a client. It can be replaced while the client is in use.
#[derive(Clone, Default)]
pub struct BearerToken {
    header: Arc<RwLock<Option<HeaderValue>>>,
}

/// The token contains characters that a header cannot contain.
#[derive(Debug, thiserror::Error)]
#[error("the token that the provider issued cannot be sent in a header")]
pub struct UnusableToken;

impl BearerToken {
    /// Uses this token from the next request on.
    pub fn set(&self, token: &str) -> Result<(), UnusableToken> {
        let mut header =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| UnusableToken)?;
        header.set_sensitive(true);
        *self.header.write() = Some(header);
        Ok(())
    }

    fn get(&self) -> Option<HeaderValue> {
        self.header.read().clone()
    }
}

/// A client for a peer's API server whose token can be replaced. `config` carries address, CA and
/// time-outs, no credential. The peer may be hostile, so the client reads its answers within
/// `limits`.
///
/// Names that mean this machine or its link are refused when a connection is made: what a name
/// resolved to earlier does not matter. With a `tunnel` every connection goes through the peer's
/// tunnel. The address and the CA of `config` still say what the API server's certificate must
/// prove. Each request is made once; whoever calls a peer tries again.
pub fn peer_client(
    network: &Arc<dyn Network>,
    mut config: Config,
    token: BearerToken,
    limits: Arc<ProviderLimits>,
    tunnel: Option<Arc<TunnelConnection>>,
) -> kube::Result<Client> {
    config.default_retry = false;
    let limit = tunnel
        .is_none()
        .then_some(config.connect_timeout.unwrap_or(CONNECT_TIMEOUT));
    let way = tunnel.map_or_else(
        || ConnectorRoute::Direct(Arc::clone(network)),
        ConnectorRoute::Tunnel,
    );
    let connector = TimedConnector {
        inner: config.rustls_https_connector_with_connector(ApiServerConnector(way))?,
        limit,
    };
    // Idle connections end by tokio's clock, not by another one.
    let http = hyper_util::client::legacy::Builder::new(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(connector);
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace)
        .with_layer(&PeerLayer { token, limits })
        .build())
}

/// Connects to the API server.
#[derive(Clone)]
struct ApiServerConnector(ConnectorRoute);

#[derive(Clone)]
enum ConnectorRoute {
    Direct(Arc<dyn Network>),
    /// The address is ignored.
    Tunnel(Arc<TunnelConnection>),
}

impl Service<http::Uri> for ApiServerConnector {
    type Response = PeerStream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<PeerStream>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let way = self.0.clone();
        Box::pin(async move {
            let stream: BoxNetworkStream = match way {
                ConnectorRoute::Tunnel(tunnel) => Box::new(tunnel.connect(API_PORT).await?),
                ConnectorRoute::Direct(network) => connect_directly(&*network, &uri).await?,
            };
            Ok(PeerStream(TokioIo::new(stream)))
        })
    }
}

async fn connect_directly(network: &dyn Network, uri: &http::Uri) -> io::Result<BoxNetworkStream> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let (stream, _) = network
        .connect(host, uri.port_u16().unwrap_or(443), |address| {
            !is_no_server(address)
        })
        .await?;
    Ok(stream)
}

/// A connector that gives up after a time, which includes the resolution of the name and TLS.
#[derive(Clone)]
struct TimedConnector<C> {
    inner: C,
    /// None through a tunnel, which has its own.
    limit: Option<Duration>,
}

impl<C> Service<http::Uri> for TimedConnector<C>
where
    C: Service<http::Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        let (connected, limit) = (self.inner.call(uri), self.limit);
        Box::pin(async move {
            let Some(limit) = limit else {
                return connected.await.map_err(Into::into);
            };
            let connected = timeout(limit, connected).await.map_err(|_| {
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {limit:?}"),
                )
            })?;
            connected.map_err(Into::into)
        })
    }
}

/// A connection to a peer's API server.
struct PeerStream(TokioIo<BoxNetworkStream>);

impl Connection for PeerStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[derive(Clone)]
struct PeerLayer {
    token: BearerToken,
    limits: Arc<ProviderLimits>,
}

impl<S> Layer<S> for PeerLayer {
    type Service = PeerService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PeerService {
            inner,
            token: self.token.clone(),
            limits: self.limits.clone(),
        }
    }
}

#[derive(Clone)]
struct PeerService<S> {
    inner: S,
    token: BearerToken,
    limits: Arc<ProviderLimits>,
}

impl<S, B, R> Service<Request<B>> for PeerService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<LimitedBody<R>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(header) = self.token.get() {
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        let (answer, uri, limits) = (
            AnswerKind::for_request(request.uri()),
            request.uri().clone(),
            self.limits.clone(),
        );
        // It sends nothing before it is polled.
        let called = self.inner.call(request);
        Box::pin(async move {
            let page = admit_answer(answer, &uri, &limits).await?;
            let called = async { called.await.map_err(Into::into) };
            let response = match &page {
                Some(page) => timeout_at(page.until, called)
                    .await
                    .map_err(|_| record_exceeded(answer, &limits, LimitExceeded::PageTime))??,
                None => called.await?,
            };
            Ok(response.map(|body| LimitedBody::new(body, answer, limits, page)))
        })
    }
}

#[cfg(test)]
mod tests;
