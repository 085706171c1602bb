//! The HTTPS listener that the kubelet API and the webhook share: TLS whose certificate and client
//! CA may change while it runs, HTTP/2 and HTTP/1.1 by ALPN, connections that can be upgraded.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use liqo_controller_runtime::{
    network::{BoxNetworkStream, Listener},
    watch,
};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Limit for the TLS handshake, and then for the headers of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that open requests have to end after the listener was stopped.
const GRACE_PERIOD: Duration = Duration::from_secs(2);
/// Maximum number of open connections; further ones wait.
const MAX_CONNECTIONS: usize = 1024;

/// A certificate, key or CA could not be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum ServingTlsError {
    /// The private key is of a kind that cannot sign, or does not match the certificate.
    #[error("the serving certificate and its key cannot be used: {0}")]
    Certificate(#[source] rustls::Error),
    /// A CA certificate for clients cannot be read.
    #[error("the CA for client certificates cannot be used: {0}")]
    ClientAuthority(String),
    #[error("TLS cannot be configured: {0}")]
    Configuration(#[source] rustls::Error),
}

/// A serving certificate that can be replaced while connections are accepted.
pub struct Certificate {
    current: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    /// Starts with this chain (leaf first) and its key.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, ServingTlsError> {
        Ok(Self {
            current: RwLock::new(certified_key(chain, key)?),
        })
    }

    /// Uses another chain and key for new connections.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), ServingTlsError> {
        *self.current.write() = certified_key(chain, key)?;
        Ok(())
    }
}

fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, ServingTlsError> {
    CertifiedKey::from_der(chain, key, &crypto_provider())
        .map(Arc::new)
        .map_err(ServingTlsError::Certificate)
}

fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

/// The CA of client certificates. Clients without a certificate are accepted; they need a token.
#[derive(Clone, Default)]
pub struct ClientAuthority(Option<Arc<dyn ClientCertVerifier>>);

impl ClientAuthority {
    /// Reads CA certificates from a PEM text; without any, the listener requests no client
    /// certificates.
    pub fn from_pem(pem: &str) -> Result<Self, ServingTlsError> {
        use rustls_pki_types::pem::PemObject as _;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate =
                certificate.map_err(|error| ServingTlsError::ClientAuthority(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| ServingTlsError::ClientAuthority(error.to_string()))?;
        }
        if roots.is_empty() {
            return Ok(Self::default());
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crypto_provider())
                .allow_unauthenticated();
        verifier
            .build()
            .map(|verifier| Self(Some(verifier)))
            .map_err(|error| ServingTlsError::ClientAuthority(error.to_string()))
    }
}

/// The certificate of the client of a request, verified against the [`ClientAuthority`]. An
/// extension of every request.
#[derive(Clone, Debug, Default)]
pub struct ClientCertificate(pub Option<CertificateDer<'static>>);

/// The TLS settings of a listener.
#[derive(Clone)]
pub struct ListenerTls {
    pub certificate: Arc<Certificate>,
    pub clients: watch::Receiver<ClientAuthority>,
}

impl ListenerTls {
    /// TLS without client certificates.
    pub fn anonymous(certificate: Arc<Certificate>) -> Self {
        Self {
            certificate,
            clients: watch::channel(ClientAuthority::default()).1,
        }
    }

    /// Created for every connection, so that changes apply at once; next to the handshake the cost
    /// is small.
    fn server_config(&self) -> Result<ServerConfig, ServingTlsError> {
        let versions = ServerConfig::builder_with_provider(crypto_provider())
            .with_safe_default_protocol_versions();
        let clients = versions.map_err(ServingTlsError::Configuration)?;
        let certificates = match &self.clients.borrow().0 {
            Some(verifier) => clients.with_client_cert_verifier(verifier.clone()),
            None => clients.with_no_client_auth(),
        };
        let mut config = certificates.with_cert_resolver(self.certificate.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Serves `listener` until `stop`, then gives open requests `GRACE_PERIOD` to end.
pub async fn serve_routes(
    listener: Box<dyn Listener>,
    tls: ListenerTls,
    routes: Router,
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = async { (places.clone().acquire_owned().await, listener.accept().await) } => accepted,
        };
        match accepted {
            (Ok(place), Ok((socket, from))) => {
                let (tls, routes, stop) = (tls.clone(), routes.clone(), stop.clone());
                connections.spawn(async move {
                    if let Err(error) = serve_connection(socket, &tls, routes, stop).await {
                        tracing::debug!(%from, %error, "connection ended");
                    }
                    drop(place);
                });
            }
            (_, Err(error)) => {
                // Usually: too many open files. An immediate retry would only burn the processor.
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (Err(_), _) => break,
        }
    }
    connections.close();
    if tokio::time::timeout(GRACE_PERIOD, connections.wait())
        .await
        .is_err()
    {
        tracing::debug!(
            open = connections.len(),
            "listener ends with open connections"
        );
    }
}

/// A reason why a connection ended early.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error(transparent)]
    Tls(#[from] ServingTlsError),
    #[error("no TLS handshake in {} s", TIMEOUT.as_secs())]
    TooSlow,
    #[error("TLS handshake: {0}")]
    Handshake(#[source] std::io::Error),
    #[error("HTTP: {0}")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
}

async fn serve_connection(
    socket: BoxNetworkStream,
    tls: &ListenerTls,
    routes: Router,
    stop: CancellationToken,
) -> Result<(), ConnectionError> {
    let handshake = TlsAcceptor::from(Arc::new(tls.server_config()?)).accept(socket);
    let stream = tokio::time::timeout(TIMEOUT, handshake)
        .await
        .map_err(|_| ConnectionError::TooSlow)?;
    let stream = stream.map_err(ConnectionError::Handshake)?;
    let leaf = stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(<[_]>::first);
    let client = ClientCertificate(leaf.map(|certificate| certificate.clone().into_owned()));

    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(client.clone());
        let routes = routes.clone();
        async move {
            Ok::<_, Infallible>(
                routes
                    .oneshot(request)
                    .await
                    .unwrap_or_else(|never| match never {}),
            )
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        biased;
        () = stop.cancelled() => serving.as_mut().graceful_shutdown(),
        ended = serving.as_mut() => return ended.map_err(ConnectionError::Http),
    }
    // A followed log never ends by itself.
    tokio::time::timeout(GRACE_PERIOD, serving)
        .await
        .unwrap_or(Ok(()))
        .map_err(ConnectionError::Http)
}
