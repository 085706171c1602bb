//! The auth endpoint: HTTPS for strangers.
//!
//! Everybody who reaches the port is a stranger until a signature says otherwise, so every step has a limit: the
//! number of connections, the time of a handshake, of the headers and of a whole connection, and the size of a body.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use data_encoding::BASE64;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use liqo_api::ClusterId;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::decide::{self, Decision, Known, OneTimeToken, Room, Situation, TokenVerdict, reasons};
use crate::{
    challenge::{self, ChallengeError, Challenges},
    envelope::Envelope,
    identity::{ClusterIdentity, PublicKey},
    protocol::{
        self, ChallengeAnswer, EndRequest, Grant, Identification, PEERING_END, PEERING_REQUEST, PeeringAnswer, PeeringRequest,
        Refusal, paths,
    },
    tls::{self, TlsError},
};

/// The largest body of a request, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// How many connections are served at a time.
const MAX_CONNECTIONS: usize = 128;
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may live, whatever it does.
const CONNECTION: Duration = Duration::from_secs(30);

/// A consumer whose key was proved and whose request is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Its cluster ID.
    pub id: ClusterId,
    /// The key that the ID follows from.
    pub public_key: PublicKey,
    /// Its friendly name, a DNS label.
    pub name: String,
    /// The version that both sides speak.
    pub protocol_version: u32,
}

/// Why the provider cannot do what was granted.
#[derive(Debug, thiserror::Error)]
pub enum TenancyError {
    /// Something is to be put right in the provider, and the consumer may know what.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// A step failed; the text is for the provider's log only.
    #[error("cannot {step}: {source}")]
    Failed {
        /// What was tried, such as "create the tenant namespace of ...".
        step: String,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What the endpoint needs of the cluster behind it.
pub trait Tenancies: Send + Sync + 'static {
    /// This cluster's friendly name, as it is now.
    fn cluster_name(&self) -> String;

    /// What is known of a consumer that comes under this name, which was checked.
    fn known(&self, consumer: &ClusterId, name: &str) -> impl Future<Output = Result<Known, TenancyError>> + Send;

    /// Whether a consumer has access.
    fn is_approved(&self, consumer: &ClusterId) -> impl Future<Output = Result<bool, TenancyError>> + Send;

    /// Whether there is room for a consumer to wait for approval. It costs more than the rest, and is not for strangers.
    fn room(&self, consumer: &ClusterId, name: &str) -> impl Future<Output = Result<Room, TenancyError>> + Send;

    /// What a token is worth.
    fn judge_token(&self, token: Option<&str>) -> impl Future<Output = Result<TokenVerdict, TenancyError>> + Send;

    /// Uses a one-time token up: `true` for exactly one caller.
    fn spend_token(&self, token: &OneTimeToken) -> impl Future<Output = Result<bool, TenancyError>> + Send;

    /// Records that a consumer waits for approval, where a person sees it.
    fn note(&self, consumer: &ClusterId, key: &PublicKey, name: &str) -> impl Future<Output = Result<(), TenancyError>> + Send;

    /// Makes what is missing of a consumer's tenancy and gives it a credential.
    fn ensure(&self, consumer: &Consumer) -> impl Future<Output = Result<Grant, TenancyError>> + Send;

    /// Starts the end of a consumer's tenancy, beginning with its rights.
    fn end(&self, consumer: &ClusterId) -> impl Future<Output = Result<(), TenancyError>> + Send;
}

/// Why the endpoint could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key for challenges could not be made.
    #[error("cannot set up challenges: {0}")]
    Challenges(#[from] ChallengeError),
}

/// Serves the auth endpoint until it is told to stop.
pub async fn serve<T: Tenancies>(
    listener: TcpListener,
    identity: &ClusterIdentity,
    tenancies: Arc<T>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let acceptor = TlsAcceptor::from(Arc::new(tls::server_config(identity)?));
    let router = router(identity, tenancies)?;
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // A slot first: beyond the limit, strangers wait in the kernel's queue.
        let accept = async {
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(_) = connections.join_next() => {}
            (slot, accepted) = accept => match accepted {
                Ok((stream, from)) => {
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    connections.spawn(async move {
                        if timeout(CONNECTION, serve_connection(stream, acceptor, router)).await.is_err() {
                            tracing::debug!(%from, "closed a connection to the auth endpoint that took too long");
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Such as too many open files: give other connections the time to end.
                    tracing::warn!(%error, "cannot accept a connection to the auth endpoint");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn serve_connection(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move { router.oneshot(request).await.map_err(|never: Infallible| match never {}) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the auth endpoint broke");
    }
}

struct Endpoint<T> {
    id: ClusterId,
    public_key: PublicKey,
    challenges: Challenges,
    started: Instant,
    tenancies: Arc<T>,
}

fn router<T: Tenancies>(identity: &ClusterIdentity, tenancies: Arc<T>) -> Result<Router, ServeError> {
    let endpoint = Endpoint {
        id: identity.id().clone(),
        public_key: *identity.public_key(),
        challenges: Challenges::new()?,
        started: Instant::now(),
        tenancies,
    };
    Ok(Router::new()
        .route(paths::IDS, get(ids::<T>))
        .route(paths::CHALLENGE, get(issue_challenge::<T>))
        .route(paths::PEERINGS, post(peer::<T>))
        .route(paths::END, post(end::<T>))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::new(endpoint)))
}

async fn ids<T: Tenancies>(State(endpoint): State<Arc<Endpoint<T>>>) -> Json<Identification> {
    Json(Identification {
        cluster_id: endpoint.id.clone(),
        cluster_name: endpoint.tenancies.cluster_name(),
        public_key: BASE64.encode(&endpoint.public_key),
        protocol: protocol::PROTOCOL,
        features: protocol::FEATURES.iter().map(ToString::to_string).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

async fn issue_challenge<T: Tenancies>(State(endpoint): State<Arc<Endpoint<T>>>) -> Response {
    match endpoint.challenges.issue(endpoint.started.elapsed()) {
        Ok(challenge) => Json(ChallengeAnswer { challenge, expires_in_seconds: challenge::LIFETIME.as_secs() }).into_response(),
        Err(error) => answer(PeeringAnswer::Denied(decide::challenge_refusal(error))),
    }
}

async fn peer<T: Tenancies>(State(endpoint): State<Arc<Endpoint<T>>>, body: Bytes) -> Response {
    respond(endpoint.peer(&body).await)
}

async fn end<T: Tenancies>(State(endpoint): State<Arc<Endpoint<T>>>, body: Bytes) -> Response {
    respond(endpoint.end(&body).await)
}

impl<T: Tenancies> Endpoint<T> {
    async fn peer(&self, body: &[u8]) -> Result<PeeringAnswer, TenancyError> {
        let (request, signer, public_key) = open::<PeeringRequest>(body, PEERING_REQUEST)?;
        // Before that, nobody looks into the cluster for a stranger.
        let challenge = self.challenges.check(&request.challenge, self.started.elapsed());
        let checked = match decide::check(&self.id, protocol::PROTOCOL, &signer, &request, challenge) {
            Ok(checked) => checked,
            Err(refusal) => return Ok(denied(&signer, refusal)),
        };
        let known = self.tenancies.known(&signer, &request.cluster_name).await?;
        let token = self.tenancies.judge_token(request.token.as_ref().map(|token| token.0.as_str())).await?;
        let decision = decide::decide(&Situation { signer: &signer, request: &request, checked, known: &known, token: &token });
        let (challenge, spend, protocol_version) = match decision {
            Decision::Grant { challenge, spend, protocol_version } => (challenge, spend, protocol_version),
            Decision::Pend { spend, refusal } => {
                if known.waits {
                    return Ok(PeeringAnswer::Pending(refusal));
                }
                // First, for a token that is spent helps nobody who cannot be noted.
                let room = self.tenancies.room(&signer, &request.cluster_name).await?;
                match decide::find_place(room, &request.cluster_name) {
                    Ok(true) => {}
                    Ok(false) => return Ok(PeeringAnswer::Pending(refusal)),
                    Err(refusal) => return Ok(denied(&signer, refusal)),
                }
                if !self.spend(spend.as_ref()).await? {
                    return Ok(PeeringAnswer::Denied(decide::token_used()));
                }
                self.tenancies.note(&signer, &public_key, &request.cluster_name).await?;
                tracing::info!(consumer = %signer, name = request.cluster_name, "a consumer waits for approval");
                return Ok(PeeringAnswer::Pending(refusal));
            }
            Decision::Deny(refusal) => return Ok(denied(&signer, refusal)),
        };
        if let Err(error) = self.challenges.spend(challenge, self.started.elapsed()) {
            return Ok(PeeringAnswer::Denied(decide::challenge_refusal(error)));
        }
        if !self.spend(spend.as_ref()).await? {
            return Ok(PeeringAnswer::Denied(decide::token_used()));
        }
        let consumer = Consumer { id: signer, public_key, name: request.cluster_name, protocol_version };
        let grant = self.tenancies.ensure(&consumer).await?;
        tracing::info!(consumer = %consumer.id, name = consumer.name, first = !known.approved, "granted access");
        Ok(PeeringAnswer::Granted(Box::new(grant)))
    }

    /// Whether nobody else used the token up, where there is one.
    async fn spend(&self, token: Option<&OneTimeToken>) -> Result<bool, TenancyError> {
        match token {
            Some(token) => self.tenancies.spend_token(token).await,
            None => Ok(true),
        }
    }

    async fn end(&self, body: &[u8]) -> Result<PeeringAnswer, TenancyError> {
        let (request, signer, _) = open::<EndRequest>(body, PEERING_END)?;
        let challenge = self.challenges.check(&request.challenge, self.started.elapsed());
        let challenge = match decide::decide_end(&self.id, &signer, &request, challenge) {
            Ok(challenge) => challenge,
            Err(refusal) => return Ok(PeeringAnswer::Denied(refusal)),
        };
        // Strangers have nothing to end, and must not fill the memory of spent challenges.
        if self.tenancies.is_approved(&signer).await? {
            if let Err(error) = self.challenges.spend(challenge, self.started.elapsed()) {
                return Ok(PeeringAnswer::Denied(decide::challenge_refusal(error)));
            }
            self.tenancies.end(&signer).await?;
            tracing::info!(consumer = %signer, "the consumer ended the peering");
        }
        Ok(PeeringAnswer::Ended {})
    }
}

fn denied(signer: &ClusterId, refusal: Refusal) -> PeeringAnswer {
    tracing::info!(consumer = %signer, reason = refusal.reason, "denied a peering request");
    PeeringAnswer::Denied(refusal)
}

/// Verifies an envelope and reads what was signed.
fn open<R: serde::de::DeserializeOwned>(
    body: &[u8],
    payload_type: &'static str,
) -> Result<(R, ClusterId, PublicKey), TenancyError> {
    let invalid = |message: String| TenancyError::Refused(Refusal { reason: reasons::INVALID_REQUEST.to_owned(), message });
    let envelope: Envelope =
        serde_json::from_slice(body).map_err(|error| invalid(format!("the body is not a signed envelope: {error}")))?;
    let verified = envelope.verify(payload_type).map_err(|error| invalid(error.to_string()))?;
    let request = serde_json::from_slice(&verified.payload)
        .map_err(|error| invalid(format!("the signed document is malformed: {error}")))?;
    Ok((request, verified.signer, verified.public_key))
}

fn respond(result: Result<PeeringAnswer, TenancyError>) -> Response {
    match result {
        Ok(said) => answer(said),
        Err(TenancyError::Refused(refusal)) => answer(PeeringAnswer::Denied(refusal)),
        Err(error @ TenancyError::Failed { .. }) => {
            tracing::warn!(%error, "cannot answer a peering request");
            let message = "the provider could not do it: the log of its liqo-controller-manager says why".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, Json(Refusal { reason: "Unavailable".to_owned(), message })).into_response()
        }
    }
}

fn answer(said: PeeringAnswer) -> Response {
    let status = match &said {
        PeeringAnswer::Granted(_) | PeeringAnswer::Ended {} => StatusCode::OK,
        PeeringAnswer::Pending(_) => StatusCode::ACCEPTED,
        PeeringAnswer::Denied(refusal) if refusal.reason == reasons::INVALID_REQUEST => StatusCode::BAD_REQUEST,
        PeeringAnswer::Denied(refusal) if refusal.reason == reasons::BUSY => StatusCode::SERVICE_UNAVAILABLE,
        PeeringAnswer::Denied(_) => StatusCode::FORBIDDEN,
    };
    (status, Json(said)).into_response()
}
