//! The auth endpoint: HTTPS for strangers.
//!
//! Every caller is a stranger until a signature says otherwise, so every step has a limit: the
//! number of connections, the time of a handshake, of the headers, of a body and of a whole
//! connection, and the size of a body. A request costs the API server nothing before caches show a
//! tenancy, a `ForeignCluster` or a valid token for its key. Each consumer has one request in
//! progress.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequest, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use data_encoding::BASE64;
use liqo_api::ClusterId;
use liqo_controller_runtime::{
    Clock,
    http1::{self, RequestHeadLimits, RequestsPerConnection},
    metrics,
    network::{BoxNetworkStream, Listener},
    writes::StepError,
};
use liqo_signing::{ClusterIdentity, Envelope, PublicKey};
use prometheus_client::metrics::{counter::Counter, family::Family};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    connections::{AuthConnections, ConnectionProof, ConnectionRegistration},
    request_turns::{RequestTurn, RequestTurns},
};
use crate::{
    challenge::{self, ChallengeError, Challenges},
    decide::access::{
        self, AccessDecision, ApprovalQueue, DecisionInput, GrantedConsumer, KnownConsumer,
        TokenClaim, TokenVerdict, reasons, refusal_because,
    },
    protocol::{
        self, AccessGrant, AccessRefusal, ChallengeAnswer, Identification, PEERING_END,
        PEERING_REQUEST, PeeringAnswer, PeeringRequest, SignedEndRequest, paths,
    },
    tls::{self, TlsConfigError},
};

/// Maximum length of a request's body in bytes.
const MAX_BODY_LEN: usize = 64 * 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_LIMITS: RequestHeadLimits = RequestHeadLimits {
    max_len: 16 * 1024,
    timeout: Duration::from_secs(5),
};
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum lifetime of a connection, whatever it does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Failure of the provider to do what was granted.
#[derive(Debug, thiserror::Error)]
pub enum TenancyError {
    /// Something is wrong in the provider, and the consumer may know what.
    #[error("{}", .0.message)]
    Refused(AccessRefusal),
    /// A step failed; the text is for the provider's log only.
    #[error(transparent)]
    Step(#[from] StepError),
    /// No `ForeignCluster` can be created for a consumer that waits for approval.
    #[error("all names for the ForeignCluster of a consumer that waits for approval are taken")]
    NamesTaken,
}

/// The services that the endpoint needs from its cluster.
pub trait Tenancies: Send + Sync + 'static {
    /// This cluster's current name.
    fn cluster_name(&self) -> String;

    /// Whether the caches show a tenancy or a `ForeignCluster` of this consumer.
    fn is_known(&self, consumer: &ClusterId) -> bool;

    /// Whether a policy in the cache lets in a consumer that this cluster does not know without a
    /// token.
    fn needs_no_token(&self, consumer: &ClusterId) -> bool;

    /// The known facts about a consumer that calls itself by this valid name.
    fn known_consumer(
        &self,
        consumer: &ClusterId,
        name: &str,
    ) -> impl Future<Output = Result<KnownConsumer, TenancyError>> + Send;

    /// Whether a consumer has access.
    fn is_approved(
        &self,
        consumer: &ClusterId,
    ) -> impl Future<Output = Result<bool, TenancyError>> + Send;

    /// The queue for approval. This lists every `ForeignCluster`, so the caller must have checked
    /// the request.
    fn approval_queue(
        &self,
        consumer: &ClusterId,
        name: &str,
    ) -> impl Future<Output = Result<ApprovalQueue, TenancyError>> + Send;

    /// Checks a token, from a cache.
    fn judge_token(
        &self,
        token: Option<&str>,
        consumer: &ClusterId,
    ) -> impl Future<Output = Result<TokenVerdict, TenancyError>> + Send;

    /// Reserves a token for a consumer: `true` for no more consumers than may use it.
    fn claim_token(
        &self,
        token: &TokenClaim,
        consumer: &ClusterId,
    ) -> impl Future<Output = Result<bool, TenancyError>> + Send;

    /// Deletes a one-time token after its use.
    fn discard_token(
        &self,
        token: &TokenClaim,
    ) -> impl Future<Output = Result<(), TenancyError>> + Send;

    /// Records in a `ForeignCluster` that a consumer waits for approval.
    fn note_waiting(
        &self,
        consumer: &ClusterId,
        key: &PublicKey,
        name: &str,
    ) -> impl Future<Output = Result<(), TenancyError>> + Send;

    /// Creates what is missing in a consumer's tenancy, and issues a credential.
    fn ensure_tenancy(
        &self,
        consumer: &GrantedConsumer,
    ) -> impl Future<Output = Result<AccessGrant, TenancyError>> + Send;

    /// Begins to end a consumer's tenancy: removes its rights.
    fn end_tenancy(
        &self,
        consumer: &ClusterId,
    ) -> impl Future<Output = Result<(), TenancyError>> + Send;
}

/// Failure to start the endpoint.
#[derive(Debug, thiserror::Error)]
pub enum AuthServeError {
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// The key for challenges could not be created.
    #[error("cannot set up challenges: {0}")]
    Challenges(#[from] ChallengeError),
}

/// Serves the auth endpoint until `stop`.
pub async fn serve_endpoint<T: Tenancies>(
    listener: Box<dyn Listener>,
    identity: &ClusterIdentity,
    tenancies: Arc<T>,
    clock: Clock,
    stop: CancellationToken,
) -> Result<(), AuthServeError> {
    let acceptor = TlsAcceptor::from(Arc::new(tls::server_config(identity, clock)?));
    let router = router(identity, tenancies)?;
    let connections = Arc::new(AuthConnections::default());
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    let (registration, is_full) = connections.register(from);
                    if is_full {
                        displaced_connections().inc();
                    }
                    // Dropping the stream closes it.
                    let Some(registration) = registration else { continue };
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    tasks.spawn(async move {
                        tokio::select! {
                            biased;
                            () = registration.evicted.notified() => {
                                tracing::debug!(%from, "a connection to the auth endpoint made room for another one");
                            }
                            ended = timeout(CONNECTION_TIMEOUT, serve_connection(stream, acceptor, router, &registration)) => {
                                if ended.is_err() {
                                    tracing::debug!(%from, "closed a connection to the auth endpoint that took too long");
                                }
                            }
                        }
                    });
                }
                Err(error) => {
                    // Perhaps too many open files: give other connections time to end.
                    tracing::warn!(%error, "cannot accept a connection to the auth endpoint");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn serve_connection(
    stream: BoxNetworkStream,
    acceptor: TlsAcceptor,
    router: Router,
    registration: &ConnectionRegistration,
) {
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else {
        return;
    };
    // A connection is proven by its one request.
    let router = router.layer(Extension(registration.proof.clone()));
    let serving = http1::serve_connection(stream, router, HEAD_LIMITS, RequestsPerConnection::One);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "a connection to the auth endpoint broke");
    }
}

/// A request's body, if it arrived in time.
struct TimelyBody(Bytes);

impl<S: Send + Sync> FromRequest<S> for TimelyBody {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = timeout(BODY_TIMEOUT, Bytes::from_request(request, state)).await;
        let body = body.map_err(|_| StatusCode::REQUEST_TIMEOUT.into_response())?;
        body.map(Self).map_err(IntoResponse::into_response)
    }
}

struct AuthEndpoint<T> {
    id: ClusterId,
    public_key: PublicKey,
    challenges: Challenges,
    started: Instant,
    turns: RequestTurns,
    tenancies: Arc<T>,
}

fn router<T: Tenancies>(
    identity: &ClusterIdentity,
    tenancies: Arc<T>,
) -> Result<Router, AuthServeError> {
    let endpoint = AuthEndpoint {
        id: identity.id().clone(),
        public_key: *identity.public_key(),
        challenges: Challenges::new()?,
        started: Instant::now(),
        turns: RequestTurns::default(),
        tenancies,
    };
    Ok(Router::new()
        .route(paths::IDS, get(answer_ids::<T>))
        .route(paths::CHALLENGE, get(issue_challenge::<T>))
        .route(paths::PEERINGS, post(answer_peering_request::<T>))
        .route(paths::END, post(answer_end_request::<T>))
        .layer(DefaultBodyLimit::max(MAX_BODY_LEN))
        .with_state(Arc::new(endpoint)))
}

async fn answer_ids<T: Tenancies>(
    State(endpoint): State<Arc<AuthEndpoint<T>>>,
) -> Json<Identification> {
    Json(Identification {
        cluster_id: endpoint.id.clone(),
        cluster_name: endpoint.tenancies.cluster_name(),
        public_key: BASE64.encode(&endpoint.public_key),
        protocol: protocol::PROTOCOL,
        features: protocol::FEATURES.iter().map(ToString::to_string).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

async fn issue_challenge<T: Tenancies>(State(endpoint): State<Arc<AuthEndpoint<T>>>) -> Response {
    match endpoint.challenges.issue(endpoint.started.elapsed()) {
        Ok(challenge) => Json(ChallengeAnswer {
            challenge,
            expires_in_seconds: challenge::LIFETIME.as_secs(),
        })
        .into_response(),
        Err(error) => response_of_answer(PeeringAnswer::Denied(access::challenge_refusal(error))),
    }
}

async fn answer_peering_request<T: Tenancies>(
    State(endpoint): State<Arc<AuthEndpoint<T>>>,
    Extension(proof): Extension<ConnectionProof>,
    TimelyBody(body): TimelyBody,
) -> Response {
    response_of_result(endpoint.handle_peering_request(&body, &proof).await)
}

async fn answer_end_request<T: Tenancies>(
    State(endpoint): State<Arc<AuthEndpoint<T>>>,
    Extension(proof): Extension<ConnectionProof>,
    TimelyBody(body): TimelyBody,
) -> Response {
    response_of_result(endpoint.handle_end_request(&body, &proof).await)
}

impl<T: Tenancies> AuthEndpoint<T> {
    async fn handle_peering_request(
        &self,
        body: &[u8],
        proof: &ConnectionProof,
    ) -> Result<PeeringAnswer, TenancyError> {
        let (request, signer, public_key) = open_envelope::<PeeringRequest>(body, PEERING_REQUEST)?;
        // A stranger must not cause requests to the API server, so this comes first.
        let challenge = self
            .challenges
            .check(&request.challenge, self.started.elapsed());
        let checked =
            match access::check_request(&self.id, protocol::PROTOCOL, &signer, &request, challenge)
            {
                Ok(checked) => checked,
                Err(refusal) => return Ok(denied_answer(&signer, refusal)),
            };
        let token = self
            .tenancies
            .judge_token(
                request.token.as_ref().map(|token| token.0.as_str()),
                &signer,
            )
            .await?;
        let _turn = match self.take_turn(&signer, &token) {
            Ok(turn) => turn,
            Err(refusal) => return Ok(denied_answer(&signer, refusal)),
        };
        proof.mark_proven();
        let known = self
            .tenancies
            .known_consumer(&signer, &request.cluster_name)
            .await?;
        let decision = access::decide_access(&DecisionInput {
            signer: &signer,
            request: &request,
            checked,
            known: &known,
            token: &token,
        });
        let (challenge, token, protocol_version) = match decision {
            AccessDecision::Grant {
                challenge,
                token,
                protocol_version,
            } => (challenge, token, protocol_version),
            AccessDecision::Pend { token, refusal } => {
                if known.waits {
                    return Ok(PeeringAnswer::Pending(refusal));
                }
                // First, so that no token is claimed for a consumer that cannot be recorded.
                let queue = self
                    .tenancies
                    .approval_queue(&signer, &request.cluster_name)
                    .await?;
                match access::admit_to_queue(queue, &request.cluster_name) {
                    Ok(true) => {}
                    Ok(false) => return Ok(PeeringAnswer::Pending(refusal)),
                    Err(refusal) => return Ok(denied_answer(&signer, refusal)),
                }
                if let Some(refusal) = self.reserve_token(token.as_ref(), &signer).await? {
                    return Ok(denied_answer(&signer, refusal));
                }
                self.tenancies
                    .note_waiting(&signer, &public_key, &request.cluster_name)
                    .await?;
                self.discard_used_token(token.as_ref()).await;
                tracing::info!(consumer = %signer, name = request.cluster_name, "a consumer waits for approval");
                return Ok(PeeringAnswer::Pending(refusal));
            }
            AccessDecision::Deny(refusal) => return Ok(denied_answer(&signer, refusal)),
        };
        if let Err(error) = self.challenges.spend(challenge, self.started.elapsed()) {
            return Ok(PeeringAnswer::Denied(access::challenge_refusal(error)));
        }
        if let Some(refusal) = self.reserve_token(token.as_ref(), &signer).await? {
            return Ok(denied_answer(&signer, refusal));
        }
        let consumer = GrantedConsumer {
            id: signer,
            public_key,
            name: request.cluster_name,
            protocol_version,
        };
        let grant = self.tenancies.ensure_tenancy(&consumer).await?;
        self.discard_used_token(token.as_ref()).await;
        tracing::info!(consumer = %consumer.id, name = consumer.name, first = !known.approved, "granted access");
        Ok(PeeringAnswer::Granted(Box::new(grant)))
    }

    /// Whether to read from the cluster for this consumer now. The caches and the rates decide.
    fn take_turn(
        &self,
        signer: &ClusterId,
        token: &TokenVerdict,
    ) -> Result<RequestTurn<'_>, AccessRefusal> {
        let now = self.started.elapsed();
        if !self.tenancies.is_known(signer) {
            if !self.tenancies.needs_no_token(signer) {
                access::admit_stranger(token)?;
            }
            if !self.turns.admit_unknown_key(now) {
                return Err(access::too_often());
            }
        }
        self.turns
            .take_consumer_turn(signer, now)
            .ok_or_else(access::too_often)
    }

    /// Reserves the token for this consumer, if there is one. Returns a refusal if another consumer
    /// was faster.
    async fn reserve_token(
        &self,
        token: Option<&TokenClaim>,
        consumer: &ClusterId,
    ) -> Result<Option<AccessRefusal>, TenancyError> {
        let Some(token) = token else { return Ok(None) };
        let is_ours = self.tenancies.claim_token(token, consumer).await?;
        Ok((!is_ours).then(|| access::token_used(token)))
    }

    /// Deletes the token, if there is one that nobody else may use. If that fails it stays until it
    /// expires, and only for this consumer.
    async fn discard_used_token(&self, token: Option<&TokenClaim>) {
        let Some(token) = token.filter(|token| !token.is_reusable) else {
            return;
        };
        if let Err(error) = self.tenancies.discard_token(token).await {
            tracing::warn!(%error, token = token.name, "cannot delete a one-time token that was used");
        }
    }

    async fn handle_end_request(
        &self,
        body: &[u8],
        proof: &ConnectionProof,
    ) -> Result<PeeringAnswer, TenancyError> {
        let (request, signer, _) = open_envelope::<SignedEndRequest>(body, PEERING_END)?;
        let challenge = self
            .challenges
            .check(&request.challenge, self.started.elapsed());
        let challenge = match access::decide_end(&self.id, &signer, &request, challenge) {
            Ok(challenge) => challenge,
            Err(refusal) => return Ok(PeeringAnswer::Denied(refusal)),
        };
        let now = self.started.elapsed();
        // The caches may not show a new tenancy yet, so a stranger is looked up too, but not often.
        let is_let_in = self.tenancies.is_known(&signer) || self.turns.admit_unknown_leaving(now);
        let Some(_turn) = self
            .turns
            .take_consumer_turn(&signer, now)
            .filter(|_| is_let_in)
        else {
            return Ok(denied_answer(&signer, access::too_often()));
        };
        proof.mark_proven();
        // A stranger has nothing to end, and must not fill the set of spent challenges.
        if self.tenancies.is_approved(&signer).await? {
            if let Err(error) = self.challenges.spend(challenge, self.started.elapsed()) {
                return Ok(PeeringAnswer::Denied(access::challenge_refusal(error)));
            }
            self.tenancies.end_tenancy(&signer).await?;
            tracing::info!(consumer = %signer, "the consumer ended the peering");
        }
        Ok(PeeringAnswer::Ended {})
    }
}

/// Anybody can cause denials, so they are not in the log by default.
fn denied_answer(signer: &ClusterId, refusal: AccessRefusal) -> PeeringAnswer {
    static DENIALS: OnceLock<Family<[(&'static str, String); 1], Counter>> = OnceLock::new();
    let help = "Peering requests that the auth endpoint denied";
    let denials =
        DENIALS.get_or_init(|| metrics::register("auth_denials", help, Family::default()));
    denials
        .get_or_create(&[("reason", refusal.reason.clone())])
        .inc();
    tracing::debug!(consumer = %signer, reason = refusal.reason, "denied a peering request");
    PeeringAnswer::Denied(refusal)
}

/// Counter of the connections that had to make room for another one, or were refused.
fn displaced_connections() -> &'static Counter {
    static DISPLACED: OnceLock<Counter> = OnceLock::new();
    let help = "Connections to the auth endpoint over its limits";
    DISPLACED
        .get_or_init(|| metrics::register("auth_connections_over_limit", help, Counter::default()))
}

/// Verifies an envelope and reads what was signed.
fn open_envelope<R: serde::de::DeserializeOwned>(
    body: &[u8],
    payload_type: &'static str,
) -> Result<(R, ClusterId, PublicKey), TenancyError> {
    let envelope: Envelope = serde_json::from_slice(body)
        .map_err(|error| invalid_request(format!("the body is not a signed envelope: {error}")))?;
    let verified = envelope
        .verify(payload_type)
        .map_err(|error| invalid_request(error.to_string()))?;
    let request = serde_json::from_slice(&verified.payload)
        .map_err(|error| invalid_request(format!("the signed document is malformed: {error}")))?;
    Ok((request, verified.signer, verified.public_key))
}

fn invalid_request(message: String) -> TenancyError {
    TenancyError::Refused(refusal_because(reasons::INVALID_REQUEST, message))
}

fn response_of_result(result: Result<PeeringAnswer, TenancyError>) -> Response {
    match result {
        Ok(result) => response_of_answer(result),
        Err(TenancyError::Refused(refusal)) => response_of_answer(PeeringAnswer::Denied(refusal)),
        Err(error) => {
            tracing::warn!(%error, "cannot answer a peering request");
            let message =
                "the provider failed: the log of its liqo-controller-manager says why".to_owned();
            (
                StatusCode::SERVICE_UNAVAILABLE,
                Json(AccessRefusal {
                    reason: "Unavailable".to_owned(),
                    message,
                }),
            )
                .into_response()
        }
    }
}

fn response_of_answer(result: PeeringAnswer) -> Response {
    let status = match &result {
        PeeringAnswer::Granted(_) | PeeringAnswer::Ended {} => StatusCode::OK,
        PeeringAnswer::Pending(_) => StatusCode::ACCEPTED,
        PeeringAnswer::Denied(refusal) if refusal.reason == reasons::INVALID_REQUEST => {
            StatusCode::BAD_REQUEST
        }
        PeeringAnswer::Denied(refusal) if refusal.reason == reasons::BUSY => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        PeeringAnswer::Denied(_) => StatusCode::FORBIDDEN,
    };
    (status, Json(result)).into_response()
}
