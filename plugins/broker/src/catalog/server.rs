//! Serves the catalog over HTTPS.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json, Router,
    extract::{Query as Parsed, Request, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode, Uri, header::CONTENT_TYPE},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use kube::Client;
use liqo_api::catalog::{Entry, OFFERS, Page, Parameters};
use liqo_controller_runtime::http1::{self, RequestHeadLimits, RequestsPerConnection};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    access::{self, DeniedReason, KnownClusters},
    caller_pace::CallerPace,
    connections::CatalogConnections,
    select::{OfferQuery, QueryError, select_offers},
};

const OPENAPI: &str = "/openapi.json";
/// The description of this interface.
pub const OPENAPI_DOCUMENT: &str = include_str!("openapi.json");

/// Maximum number of open connections, of which each address has few; further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// Limit for the TLS handshake, and then for the head of the request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// No body is read.
const HEAD_LIMITS: RequestHeadLimits = RequestHeadLimits {
    max_len: 32 * 1024,
    timeout: TIMEOUT,
};
/// Limit for one connection, with its request.
const CONNECTION_TIMEOUT: Duration = Duration::from_mins(1);

/// Reason why the catalog cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error(
        "cannot listen on {address} for the catalog: {source} (--catalog-port chooses another one)"
    )]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot read {}: {problem} (--catalog-tls-cert and --catalog-tls-key name the files)", path.display())]
    File { path: PathBuf, problem: String },
    #[error("cannot create a certificate for the catalog: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot serve the catalog with TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The data that the catalog reads at each request.
pub trait CatalogSource: KnownClusters + 'static {
    /// All offers that this cluster received.
    fn entries(&self) -> Vec<Entry>;
}

/// A certificate chain and its key.
pub struct CatalogCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl CatalogCertificate {
    /// Reads PEM files.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, CatalogError> {
        let certificates =
            CertificateDer::pem_file_iter(chain).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = certificates.map_err(|error| unreadable_file(chain, &error))?;
        let key =
            PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable_file(key, &error))?;
        Ok(Self {
            chain: certificates,
            key,
        })
    }

    /// Creates a certificate for these names that nobody has signed.
    pub fn self_signed(names: Vec<String>) -> Result<Self, CatalogError> {
        let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names)?;
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
        Ok(Self {
            chain: vec![cert.der().clone()],
            key,
        })
    }

    fn acceptor(self) -> Result<TlsAcceptor, CatalogError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = versions
            .with_no_client_auth()
            .with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// A catalog that listens but does not serve yet.
pub struct Catalog {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    served: Arc<ServedCatalog>,
}

struct ServedCatalog {
    client: Client,
    offered: Box<dyn CatalogSource>,
    pace: Mutex<CallerPace>,
}

impl Catalog {
    /// Listens. The API server behind `client` knows who may read.
    pub async fn bind(
        address: SocketAddr,
        certified: CatalogCertificate,
        client: Client,
        offered: impl CatalogSource,
    ) -> Result<Self, CatalogError> {
        let acceptor = certified.acceptor()?;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| CatalogError::Listen { address, source })?;
        Ok(Self {
            listener,
            acceptor,
            served: Arc::new(ServedCatalog {
                client,
                offered: Box::new(offered),
                pace: Mutex::default(),
            }),
        })
    }

    /// The address on which it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let router = router(self.served);
        let (places, connections) = (
            Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            CatalogConnections::default(),
        );
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = async { (places.clone().acquire_owned().await, self.listener.accept().await) } => accepted,
            };
            match accepted {
                (Ok(place), Ok((stream, from))) => {
                    let Some(counted) = connections.count_connection(from.ip()) else {
                        tracing::debug!(%from, "closed a connection to the catalog: its address has too many");
                        continue;
                    };
                    let (acceptor, router, stop) =
                        (self.acceptor.clone(), router.clone(), stop.clone());
                    tokio::spawn(async move {
                        let serving = timeout(
                            CONNECTION_TIMEOUT,
                            serve_connection(stream, from, &acceptor, router),
                        );
                        stop.run_until_cancelled(serving).await;
                        drop((place, counted));
                    });
                }
                (_, Err(error)) => {
                    // Usually: too many open files. An immediate retry would only burn the
                    // processor.
                    tracing::warn!(%error, "cannot accept a connection to the catalog");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                (Err(_), _) => return,
            }
        }
    }
}

/// Serves the only request of a connection.
async fn serve_connection(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: &TlsAcceptor,
    router: Router,
) {
    let Ok(Ok(stream)) = timeout(TIMEOUT, acceptor.accept(stream)).await else {
        return;
    };
    let router = router.layer(Extension(Caller(from)));
    let serving = http1::serve_connection(stream, router, HEAD_LIMITS, RequestsPerConnection::One);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "a connection to the catalog broke");
    }
}

/// Address that a request comes from.
#[derive(Clone, Copy)]
struct Caller(SocketAddr);

fn unreadable_file(path: &Path, problem: &impl ToString) -> CatalogError {
    CatalogError::File {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

async fn answer_document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], OPENAPI_DOCUMENT)
}

fn router(served: Arc<ServedCatalog>) -> Router {
    Router::new()
        .route(OFFERS, get(answer_offers))
        .route(OPENAPI, get(answer_document))
        .layer(from_fn_with_state(served.clone(), limit_requests))
        .with_state(served)
}

async fn limit_requests(
    State(served): State<Arc<ServedCatalog>>,
    request: Request,
    next: Next,
) -> Response {
    let caller = request
        .extensions()
        .get::<Caller>()
        .map(|caller| caller.0.ip());
    let is_admitted = caller.is_some_and(|caller| {
        let mut pace = served.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.admit(caller, Instant::now())
    });
    if is_admitted {
        next.run(request).await
    } else {
        failure_response(
            StatusCode::TOO_MANY_REQUESTS,
            "too many requests: wait a few seconds",
        )
    }
}

/// The failures of a request.
enum RequestFailure {
    Denied(DeniedReason),
    Parameters(QueryRejection),
    Query(QueryError),
}

impl IntoResponse for RequestFailure {
    fn into_response(self) -> Response {
        match self {
            // The error may say something about the API server.
            Self::Denied(denied @ DeniedReason::Review(_)) => {
                tracing::warn!(error = %denied, "cannot check a reader of the catalog");
                failure_response(
                    denied.status(),
                    "the API server does not say whether you may read",
                )
            }
            Self::Denied(denied) => failure_response(denied.status(), &denied.to_string()),
            Self::Parameters(rejection) => {
                failure_response(StatusCode::BAD_REQUEST, &rejection.body_text())
            }
            Self::Query(error) => failure_response(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }
}

fn failure_response(status: StatusCode, problem: &str) -> Response {
    (status, Json(json!({ "error": problem }))).into_response()
}

async fn answer_offers(
    State(served): State<Arc<ServedCatalog>>,
    uri: Uri,
    headers: HeaderMap,
    parameters: Result<Parsed<Parameters>, QueryRejection>,
) -> Result<Json<Page>, RequestFailure> {
    access::admit_caller(
        &served.client,
        served.offered.as_ref(),
        &headers,
        uri.path(),
    )
    .await
    .map_err(RequestFailure::Denied)?;
    let Parsed(parameters) = parameters.map_err(RequestFailure::Parameters)?;
    let query = OfferQuery::from_parameters(parameters).map_err(RequestFailure::Query)?;
    Ok(Json(select_offers(served.offered.entries(), &query)))
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
