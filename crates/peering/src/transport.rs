//! The HTTP client for a peer's API server: with a replaceable token and limited answers, and optionally through the peer's tunnel.

mod answers;
mod connector;

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use hyper::rt::ReadBufCursor;
use hyper_util::{
    client::legacy::connect::{Connect, Connected, Connection},
    rt::{TokioExecutor, TokioIo},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt as _},
};
use liqo_controller_runtime::provider_limits::{LimitExceeded, ProviderLimits};
use liqo_tunnel_client::{API_PORT, session::TunnelConnection};
use parking_lot::RwLock;
use tokio::{io::DuplexStream, time::timeout_at};
use tower::{BoxError, Layer, Service};

use self::{
    answers::{Answer, LimitedBody, admit, exceeded},
    connector::{TimedConnector, connector},
};
use crate::credential::CONNECT_TIMEOUT;

/// The bearer token of a client. It can be replaced while the client is in use.
#[derive(Clone, Default)]
pub struct Token {
    header: Arc<RwLock<Option<HeaderValue>>>,
}

/// The token contains characters that a header cannot contain.
#[derive(Debug, thiserror::Error)]
#[error("the token that the provider issued cannot be sent in a header")]
pub struct UnusableToken;

impl Token {
    /// Uses this token from the next request on.
    pub fn set(&self, token: &str) -> Result<(), UnusableToken> {
        let mut header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| UnusableToken)?;
        header.set_sensitive(true);
        *self.header.write() = Some(header);
        Ok(())
    }

    fn get(&self) -> Option<HeaderValue> {
        self.header.read().clone()
    }
}

/// A client for a peer's API server whose token can be replaced. `config` carries address, CA and time-outs, no credential.
/// The peer may be hostile, so the client reads its answers within `limits`.
///
/// Names that mean this machine or its link are refused when a connection is made. With a `tunnel` every connection goes through the peer's tunnel. The address and the CA of `config` still say what the API
/// server's certificate must prove. Each request is made once; whoever calls a peer tries again.
pub fn client(
    mut config: Config,
    token: Token,
    limits: Arc<ProviderLimits>,
    tunnel: Option<Arc<TunnelConnection>>,
) -> kube::Result<Client> {
    config.default_retry = false;
    let layer = PeerLayer { token, limits };
    if let Some(tunnel) = tunnel {
        let connector = config.rustls_https_connector_with_connector(TunnelConnector(tunnel))?;
        return Ok(client_over(config, connector, &layer));
    }
    let inner = config.rustls_https_connector_with_connector(connector())?;
    let timeout = config.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    Ok(client_over(config, TimedConnector { inner, timeout }, &layer))
}

fn client_over<C>(config: Config, connector: C, layer: &PeerLayer) -> Client
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let http = hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build(connector);
    let service = tower::ServiceBuilder::new().layer(config.base_uri_layer()).service(http);
    ClientBuilder::new(service, config.default_namespace).with_layer(layer).build()
}

/// Connects to the API server through the tunnel, and ignores its address.
#[derive(Clone)]
struct TunnelConnector(Arc<TunnelConnection>);

impl Service<http::Uri> for TunnelConnector {
    type Response = TunnelStream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TunnelStream>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let tunnel = Arc::clone(&self.0);
        Box::pin(async move { Ok(TunnelStream(TokioIo::new(tunnel.connect(API_PORT).await?))) })
    }
}

/// A connection through the tunnel.
struct TunnelStream(TokioIo<DuplexStream>);

impl Connection for TunnelStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for TunnelStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for TunnelStream {
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

#[derive(Clone)]
struct PeerLayer {
    token: Token,
    limits: Arc<ProviderLimits>,
}

impl<S> Layer<S> for PeerLayer {
    type Service = PeerService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PeerService { inner, token: self.token.clone(), limits: self.limits.clone() }
    }
}

#[derive(Clone)]
struct PeerService<S> {
    inner: S,
    token: Token,
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
        let (answer, uri, limits) = (Answer::to(request.uri()), request.uri().clone(), self.limits.clone());
        // It sends nothing before it is polled.
        let called = self.inner.call(request);
        Box::pin(async move {
            let page = admit(answer, &uri, &limits).await?;
            let called = async { called.await.map_err(Into::into) };
            let response = match &page {
                Some(page) => timeout_at(page.until, called).await.map_err(|_| exceeded(&limits, LimitExceeded::PageTime))??,
                None => called.await?,
            };
            Ok(response.map(|body| LimitedBody::new(body, answer, limits, page)))
        })
    }
}

#[cfg(test)]
mod tests;
