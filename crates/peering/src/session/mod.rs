//! The consumer's side of a peering: from the first call to a connection that sharing, networking
//! and offloading use.
//!
//! ```text
//!   authenticate ──credential──▶ hold ─┬─ heartbeat: renew our lease there, read the provider's, every 3 s
//!        ▲                             ├─ judge: reachable or not; publish the connection, a new one after an outage
//!        └── new address or CA ────────┴─ renew the credential: at 60% of its life, when it is refused, if its Secret
//!                                         is gone, or its CA does not verify the API server's certificate
//! ```
//!
//! The auth endpoint renews credentials, and says if the API server has another address or CA.
//! While it does not answer, the session renews its token at the provider's API server.
//!
//! One session runs for each provider, as one task. Its results are in [`SessionView`]; the
//! lifecycle controller writes them into the `ForeignCluster`.

mod renewal;
mod tunnel_connections;

use std::{convert::Infallible, sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    AuthenticatedReason, CallReason, ClusterId, GatewayAddress, IdentityVerifiedReason,
    PeerReachableReason, leases, links, provider_namespace, tenant_namespace,
};
use liqo_controller_runtime::{
    ConnectionHealth, Context, Key, Network, PeerConnection, ProviderLimits, Queue,
    queue::error_chain,
    watch,
    writes::{StepContext as _, StepError},
};
use liqo_signing::ClusterIdentity;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::client::{Applicant, AuthClient, ClientError},
    decide::{
        access::reasons,
        credential::{CREDENTIAL_SECRET, Credential, CredentialError, stored_credential},
        heartbeats::{PeerHealth, ProviderHeartbeat, is_invalid_certificate},
        manifests,
        session_view::{
            SessionPurpose, SessionView, granted_condition, granted_view, reachable_condition,
            valid_reason, verified_text,
        },
        tokens::TOKEN,
    },
    objects,
    protocol::{AccessRefusal, PeeringAnswer, SecretText, sanitized_text},
    transport::{self, BearerToken, UnusableToken},
};

pub use self::tunnel_connections::TunnelConnections;

pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// If the first heartbeat is refused, how often and at which interval to try again.
const MAX_FIRST_HEARTBEATS: u32 = 10;
const FIRST_HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);
/// Delays before access is requested again. The delay doubles up to the maximum.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);
/// The same, if a person has to do something first.
const DENIED_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Timeout of telling a provider that the peering has ended.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// Minimum delay before a credential is renewed, even if the provider says that its life is
/// shorter.
const MIN_RENEWAL_DELAY: Duration = Duration::from_secs(10);
/// Refusals of a new token are ignored for this time before the next one is requested.
const NEW_TOKEN_GRACE: Duration = Duration::from_secs(10);

/// A running session. Dropping it ends it.
pub struct ProviderSession {
    /// Its URL may change while the session runs.
    purpose: Arc<Mutex<SessionPurpose>>,
    tunnel_connections: Arc<TunnelConnections>,
    view: Arc<Mutex<SessionView>>,
    stop: CancellationToken,
}

impl ProviderSession {
    /// Starts a session, which adds the provider's ID to `queue` whenever its view changes. Calls
    /// go through these `gateways`, or directly if there are none.
    pub fn start(
        context: &Context,
        identity: &Arc<ClusterIdentity>,
        purpose: SessionPurpose,
        gateways: &[GatewayAddress],
        queue: Queue<ClusterId>,
    ) -> Self {
        let (stop, view) = (
            context.stop.child_token(),
            Arc::new(Mutex::new(SessionView::at_start())),
        );
        let tunnel_connections = Arc::new(TunnelConnections::new(gateways, identity));
        let current = Arc::new(Mutex::new(purpose.clone()));
        let worker = SessionWorker {
            context: context.clone(),
            tunnel_connections: tunnel_connections.clone(),
            identity: Arc::clone(identity),
            limits: context.peers.limits_of(&purpose.cluster_id),
            purpose,
            current: current.clone(),
            view: Arc::clone(&view),
            queue,
            deleted: Arc::default(),
            stop: stop.clone(),
        };
        let until = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = until.cancelled() => {}
                () = worker.run() => {}
                never = worker.follow_gateway() => match never {},
            }
        });
        Self {
            purpose: current,
            tunnel_connections,
            view,
            stop,
        }
    }

    /// Calls the provider through these gateways from now on. Existing connections continue.
    pub fn set_gateways(&self, gateways: &[GatewayAddress]) {
        self.tunnel_connections.set_gateways(gateways);
    }

    /// The connections through the tunnel. The end of the peering must be sent through them:
    /// answers to other connections with the same key might arrive here.
    pub fn tunnel_connections(&self) -> Arc<TunnelConnections> {
        self.tunnel_connections.clone()
    }

    /// Whether this session serves the purpose from now on. A session that has access takes over a
    /// new URL, which the next call to the auth endpoint uses; connections to the API server
    /// continue.
    pub fn takes_over(&self, wanted: &SessionPurpose) -> bool {
        let mut current = self.purpose.lock();
        if *current == *wanted {
            return true;
        }
        if !(current.differs_only_in_url(wanted) && self.view.lock().granted.is_some()) {
            return false;
        }
        tracing::info!(provider = %wanted.cluster_id, url = wanted.auth_url, "the provider has another URL");
        *current = wanted.clone();
        true
    }

    pub fn view(&self) -> SessionView {
        self.view.lock().clone()
    }
}

impl Drop for ProviderSession {
    fn drop(&mut self) {
        // Under the lock, so that no connection is published afterwards.
        let _view = self.view.lock();
        self.stop.cancel();
    }
}

/// Whether there is a credential that still works. Then failures matter less to the user.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CurrentAccess {
    Works,
    Missing,
}

/// The kind of failure of a request for access.
enum AuthFailure {
    /// Try again soon.
    Transient,
    /// A person has to do something first.
    Denied,
}

struct SessionWorker {
    context: Context,
    identity: Arc<ClusterIdentity>,
    tunnel_connections: Arc<TunnelConnections>,
    purpose: SessionPurpose,
    /// Limits of what the provider may make this process read and keep.
    limits: Arc<ProviderLimits>,
    /// The same with the URL as it is now.
    current: Arc<Mutex<SessionPurpose>>,
    view: Arc<Mutex<SessionView>>,
    queue: Queue<ClusterId>,
    /// Somebody deleted the Secret with the credential.
    deleted: Arc<Notify>,
    stop: CancellationToken,
}

impl SessionWorker {
    async fn run(&self) {
        let stored = self.load_credential().await;
        self.watch_deletion();
        let mut credential = stored
            .clone()
            .map(Credential::with_clock_margin)
            .filter(|stored| stored.is_usable(self.context.now()));
        let mut delay = FIRST_RETRY_DELAY;
        loop {
            let current = match credential.take() {
                Some(current) => current,
                None => match self.authenticate_or_renew(stored.as_ref()).await {
                    Ok(granted) => granted,
                    Err(failure) => {
                        tokio::time::sleep(if matches!(failure, AuthFailure::Denied) {
                            DENIED_RETRY_DELAY
                        } else {
                            delay
                        })
                        .await;
                        delay = (delay * 2).min(MAX_RETRY_DELAY);
                        continue;
                    }
                },
            };
            delay = FIRST_RETRY_DELAY;
            let held = self.hold_connection(current).await;
            // Nothing watches this connection any more.
            self.unless_stopped(|| self.context.peers.withdraw(&self.purpose.cluster_id));
            match held {
                Ok(next) => credential = Some(next),
                Err(error) => {
                    self.update_view(|view| {
                        view.reachable = DesiredCondition::no(
                            links::PEER_REACHABLE,
                            PeerReachableReason::InvalidGrant,
                            error.to_string(),
                        );
                    });
                    tokio::time::sleep(DENIED_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Shows the gateway that carries the calls, in every state of the session.
    async fn follow_gateway(&self) -> Infallible {
        let mut ticks = tokio::time::interval(JUDGE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let through = self.tunnel_connections.gateway();
            if self.view.lock().gateway != through {
                self.update_view(|view| view.gateway = through);
            }
        }
    }

    /// Requests access. While the auth endpoint does not answer, renews the credential that an
    /// earlier session stored: it looks expired, but maybe only by this node's clock.
    async fn authenticate_or_renew(
        &self,
        stored: Option<&Credential>,
    ) -> Result<Credential, AuthFailure> {
        let answer = self.request_access(CurrentAccess::Missing).await;
        if matches!(answer, Err(AuthFailure::Transient))
            && let Some(stored) = stored.filter(|stored| stored.may_be_usable(self.context.now()))
            && let Some(next) = self.renew_at_api_server(stored).await
        {
            return Ok(next);
        }
        answer
    }

    /// The credential that an earlier session stored, if it may still be usable.
    async fn load_credential(&self) -> Option<Credential> {
        let found = self.secrets().get_opt(CREDENTIAL_SECRET).await;
        let found =
            found.inspect_err(|error| tracing::warn!(%error, "cannot read the stored credential, asking for a new one")).ok()?;
        let credential = stored_credential(found)
            .filter(|credential| credential.may_be_usable(self.context.now()))?;
        credential
            .client_config(&tenant_namespace(self.identity.id()))
            .ok()?;
        if !credential
            .clone()
            .with_clock_margin()
            .is_usable(self.context.now())
        {
            return Some(credential);
        }
        self.update_view(|view| {
            view.identity = DesiredCondition::yes(
                links::IDENTITY_VERIFIED,
                IdentityVerifiedReason::Verified,
                verified_text(&self.purpose),
            );
            view.authenticated = granted_condition(&credential);
            view.granted = Some(granted_view(&credential));
        });
        Some(credential)
    }

    /// Verifies the provider's identity and requests access.
    async fn request_access(&self, current: CurrentAccess) -> Result<Credential, AuthFailure> {
        let purpose = self.current.lock().clone();
        let Some(url) = &purpose.auth_url else {
            self.update_view(|view| {
                view.identity = DesiredCondition::no(
                    links::IDENTITY_VERIFIED,
                    IdentityVerifiedReason::AuthUrlMissing,
                    "spec.authURL is not set: `liqoctl peer` sets it",
                );
            });
            return Err(AuthFailure::Denied);
        };
        let token = self
            .first_token()
            .await
            .map_err(|error| self.locally_failed(&error))?;
        let client = self
            .identified_client(url, token.as_ref())
            .await
            .map_err(|error| self.not_identified(&error, current))?;
        self.update_view(|view| {
            view.identity = DesiredCondition::yes(
                links::IDENTITY_VERIFIED,
                IdentityVerifiedReason::Verified,
                verified_text(&purpose),
            );
        });
        let cluster_name = self.context.config().spec.cluster_name.clone();
        let applicant = Applicant {
            identity: &self.identity,
            cluster_name: &cluster_name,
            token: token.as_ref(),
        };
        match client.request_peering(&applicant).await {
            Ok(PeeringAnswer::Granted(grant)) => {
                self.accept_credential(
                    Credential::from_grant(*grant, self.context.now()),
                    token.as_ref(),
                )
                .await
            }
            Ok(PeeringAnswer::Pending(refusal)) => {
                self.tunnel_connections.record_answer(true);
                Err(self.show_refusal(
                    &refusal,
                    AuthenticatedReason::PendingApproval.as_str(),
                    current,
                ))
            }
            Ok(PeeringAnswer::Denied(refusal)) => {
                self.tunnel_connections.record_answer(false);
                Err(self.show_refusal(&refusal, &valid_reason(&refusal.reason), current))
            }
            Ok(PeeringAnswer::Ended {}) => Err(AuthFailure::Transient),
            Err(error) => {
                if current == CurrentAccess::Missing {
                    let text = error_chain(&error);
                    self.update_view(|view| {
                        view.authenticated =
                            DesiredCondition::no(links::AUTHENTICATED, error.call_reason(), text);
                    });
                }
                Err(AuthFailure::Transient)
            }
        }
    }

    /// A client for the auth endpoint of a provider that has proved its identity.
    async fn identified_client(
        &self,
        url: &str,
        token: Option<&SecretText>,
    ) -> Result<AuthClient, ClientError> {
        let client = AuthClient::new(&self.context.network, &self.purpose.cluster_id, url)?;
        let mut keys = self
            .tunnel_connections
            .keys_to_try(token)
            .map_err(ClientError::Tunnel)?
            .into_iter();
        let mut client = client.through_tunnel(self.tunnel_connection(keys.next().flatten())?);
        loop {
            match (client.request_identification().await, keys.next()) {
                (Ok(_), _) => return Ok(client),
                (Err(ClientError::Tunnel(_) | ClientError::Timeout { .. }), Some(key)) => {
                    client = client.through_tunnel(self.tunnel_connection(key)?);
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    fn tunnel_connection(
        &self,
        key: Option<[u8; 32]>,
    ) -> Result<Option<Arc<liqo_tunnel_client::session::TunnelConnection>>, ClientError> {
        self.tunnel_connections
            .connection_for_key(key)
            .map_err(ClientError::Tunnel)
    }

    async fn accept_credential(
        &self,
        credential: Credential,
        used_token: Option<&SecretText>,
    ) -> Result<Credential, AuthFailure> {
        if let Err(error) = credential.client_config(&tenant_namespace(self.identity.id())) {
            self.update_view(|view| {
                view.authenticated = DesiredCondition::no(
                    links::AUTHENTICATED,
                    AuthenticatedReason::InvalidGrant,
                    error.to_string(),
                );
            });
            return Err(AuthFailure::Denied);
        }
        self.store_credential(&credential, used_token)
            .await
            .map_err(|error| self.locally_failed(&error))?;
        self.tunnel_connections.record_answer(true);
        self.update_view(|view| {
            view.authenticated = granted_condition(&credential);
            view.granted = Some(granted_view(&credential));
        });
        tracing::info!(provider = %self.purpose.cluster_id, name = self.purpose.cluster_name, "the provider granted a credential");
        Ok(credential)
    }

    async fn store_credential(
        &self,
        credential: &Credential,
        used_token: Option<&SecretText>,
    ) -> Result<(), StepError> {
        let parameters = PatchParams::apply(crate::FIELD_MANAGER).force();
        let stored = self
            .secrets()
            .patch(
                CREDENTIAL_SECRET,
                &parameters,
                &Patch::Apply(credential.to_secret()),
            )
            .await;
        let namespace = provider_namespace(&self.purpose.cluster_id);
        stored.step("write", "Secret", Key::new(namespace, CREDENTIAL_SECRET))?;
        if let (Some(_), Some(name)) = (used_token, &self.purpose.token_secret) {
            let secrets: Api<Secret> =
                Api::namespaced(self.context.client.clone(), &self.context.namespace);
            objects::delete(&secrets, name).await?;
        }
        Ok(())
    }

    /// The token for the first contact. There is none after it was used, or if the user gave none.
    async fn first_token(&self) -> Result<Option<SecretText>, StepError> {
        let Some(name) = &self.purpose.token_secret else {
            return Ok(None);
        };
        let secrets: Api<Secret> =
            Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let found = secrets.get_opt(name).await.step(
            "read",
            "Secret",
            Key::new(&self.context.namespace, name),
        )?;
        let token = found
            .and_then(|secret| secret.data?.remove(TOKEN))
            .and_then(|bytes| String::from_utf8(bytes.0).ok());
        Ok(token.map(|text| SecretText(text.trim().to_owned())))
    }

    /// Keeps the connection until a new credential needs other clients; returns that credential.
    async fn hold_connection(&self, credential: Credential) -> Result<Credential, HoldError> {
        let token = BearerToken::default();
        token.set(&credential.token.0)?;
        let own = self.provider_client(&credential, &token)?;
        let refused = Notify::new();
        // The first heartbeat comes first, so that the published health is right.
        let heartbeat = Mutex::new(self.first_heartbeat(&own, &credential, &refused).await);
        tokio::select! {
            biased;
            never = self.send_heartbeats(&own, &credential, &heartbeat, &refused) => match never {},
            failed = self.publish_health(&credential, &token, &heartbeat) => Err(failed),
            next = self.renew_credential(&credential, &token, &refused) => Ok(next),
        }
    }

    /// Sends the first heartbeat. Repeats it if it is refused, because new rights may take a moment
    /// to have an effect.
    async fn first_heartbeat(
        &self,
        client: &Client,
        credential: &Credential,
        refused: &Notify,
    ) -> ProviderHeartbeat {
        let mut heartbeat = ProviderHeartbeat::new(Instant::now());
        for _ in 0..MAX_FIRST_HEARTBEATS {
            self.heartbeat_once(client, credential, &mut heartbeat, None)
                .await;
            if !heartbeat.refused {
                return heartbeat;
            }
            tokio::time::sleep(FIRST_HEARTBEAT_INTERVAL).await;
        }
        refused.notify_one();
        heartbeat
    }

    fn provider_client(
        &self,
        credential: &Credential,
        token: &BearerToken,
    ) -> Result<Client, HoldError> {
        let config = credential.client_config(&tenant_namespace(self.identity.id()))?;
        let (network, tunnel) = (
            &self.context.network,
            self.tunnel_connections.own_connection()?,
        );
        transport::peer_client(network, config, token.clone(), self.limits.clone(), tunnel)
            .map_err(HoldError::Client)
    }

    async fn send_heartbeats(
        &self,
        client: &Client,
        credential: &Credential,
        heartbeat: &Mutex<ProviderHeartbeat>,
        refused: &Notify,
    ) -> Infallible {
        let mut heartbeats =
            tokio::time::interval_at(Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
        heartbeats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            heartbeats.tick().await;
            let mut next = heartbeat.lock().clone();
            self.heartbeat_once(client, credential, &mut next, Some(refused))
                .await;
            *heartbeat.lock() = next;
        }
    }

    /// Renews our lease at the provider, and reads the provider's lease.
    async fn heartbeat_once(
        &self,
        client: &Client,
        credential: &Credential,
        heartbeat: &mut ProviderHeartbeat,
        refused: Option<&Notify>,
    ) {
        let api: Api<Lease> = Api::namespaced(client.clone(), &credential.tenant_namespace);
        let renewal = Patch::Merge(manifests::lease_renewal(
            self.identity.id(),
            self.context.now(),
        ));
        let parameters = PatchParams::default();
        let both = async {
            tokio::try_join!(
                api.patch(leases::CONSUMER, &parameters, &renewal),
                api.get(leases::PROVIDER)
            )
        };
        match timeout(HEARTBEAT_TIMEOUT, both).await {
            Ok(Ok((_, lease))) => {
                heartbeat.answered_with(
                    manifests::lease_version(&lease).or_else(|| Some(String::new())),
                    Instant::now(),
                );
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403 | 404) => {
                tracing::debug!(provider = %self.purpose.cluster_id, code = status.code, "the provider refused our heartbeat");
                heartbeat.refused = true;
                if let Some(refused) = refused {
                    refused.notify_one();
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(provider = %self.purpose.cluster_id, %error, "no heartbeat");
                let is_invalid = is_invalid_certificate(&error);
                heartbeat.record_failure(is_invalid);
                if let Some(refused) = refused.filter(|_| is_invalid) {
                    refused.notify_one();
                }
            }
            Err(_) => heartbeat.record_failure(false),
        }
    }

    /// Publishes the connection and whether the provider is reachable, and a new connection after
    /// each outage. Ends only with an error.
    async fn publish_health(
        &self,
        credential: &Credential,
        token: &BearerToken,
        heartbeat: &Mutex<ProviderHeartbeat>,
    ) -> HoldError {
        let mut health = heartbeat.lock().health(Instant::now());
        let mut sender = match self.publish_connection(credential, token, health) {
            Ok(sender) => sender,
            Err(error) => return error,
        };
        let mut exceeded = self.limits.exceeded_lately(Instant::now());
        self.update_view(|view| view.reachable = reachable_condition(health, exceeded));
        let mut ticks = tokio::time::interval(JUDGE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = heartbeat.lock().health(Instant::now());
            let lately = self.limits.exceeded_lately(Instant::now());
            if std::mem::replace(&mut exceeded, lately) != lately || now != health {
                self.update_view(|view| view.reachable = reachable_condition(now, lately));
            }
            if now == health {
                continue;
            }
            let was = std::mem::replace(&mut health, now);
            tracing::info!(provider = %self.purpose.cluster_id, ?was, ?now, "the provider's reachability changed");
            match (was, now) {
                (_, PeerHealth::Reachable) => match self.publish_connection(credential, token, now)
                {
                    Ok(fresh) => sender = fresh,
                    Err(error) => return error,
                },
                (PeerHealth::Reachable, _) => {
                    sender.send_replace(ConnectionHealth::Unreachable {
                        since: Instant::now(),
                    });
                }
                _ => {}
            }
        }
    }

    fn publish_connection(
        &self,
        credential: &Credential,
        token: &BearerToken,
        health: PeerHealth,
    ) -> Result<watch::Sender<ConnectionHealth>, HoldError> {
        let health = if health == PeerHealth::Reachable {
            ConnectionHealth::Reachable
        } else {
            ConnectionHealth::Unreachable {
                since: Instant::now(),
            }
        };
        let (sender, receiver) = watch::channel(health);
        let connection = PeerConnection {
            cluster_id: self.purpose.cluster_id.clone(),
            cluster_name: self.purpose.cluster_name.clone(),
            foreign_cluster: self.purpose.foreign_cluster.clone(),
            client: self.provider_client(credential, token)?,
            tenant_namespace: credential.tenant_namespace.clone(),
            protocol_version: credential.protocol_version,
            health: receiver,
            limits: self.limits.clone(),
            ended: CancellationToken::new(),
        };
        self.unless_stopped(|| self.context.peers.publish(connection));
        Ok(sender)
    }

    /// A stopped session must not publish anything.
    fn unless_stopped(&self, act: impl FnOnce()) {
        let _view = self.view.lock();
        if !self.stop.is_cancelled() {
            act();
        }
    }

    /// Replaces the token in time, if it is refused, or if somebody deletes its Secret. Returns a
    /// new credential if it needs other clients.
    async fn renew_credential(
        &self,
        credential: &Credential,
        token: &BearerToken,
        refused: &Notify,
    ) -> Credential {
        let mut current = credential.clone();
        let mut retry: Option<Duration> = None;
        let mut accept_refusals_from: Option<Instant> = None;
        loop {
            let due = retry
                .unwrap_or_else(|| current.renew_in(self.context.now()).max(MIN_RENEWAL_DELAY));
            tokio::select! {
                biased;
                () = tokio::time::sleep(due) => {}
                () = wait_for_refusal(refused, accept_refusals_from), if retry.is_none() => {}
                () = self.deleted.notified() => {}
            }
            let now = self.context.now();
            let access = if current.is_usable(now) {
                CurrentAccess::Works
            } else {
                CurrentAccess::Missing
            };
            let mut answer = self.request_access(access).await;
            if current.may_be_usable(now)
                && matches!(answer, Err(AuthFailure::Transient))
                && let Some(next) = self.renew_at_api_server(&current).await
            {
                answer = Ok(next);
            }
            match answer {
                Ok(next)
                    if next.serves_same_clients(&current) && token.set(&next.token.0).is_ok() =>
                {
                    current = next;
                    retry = None;
                    accept_refusals_from = Some(Instant::now() + NEW_TOKEN_GRACE);
                }
                Ok(next) => return next,
                Err(AuthFailure::Denied) => retry = Some(DENIED_RETRY_DELAY),
                Err(AuthFailure::Transient) => {
                    retry = Some(
                        retry.map_or(FIRST_RETRY_DELAY, |last| (last * 2).min(MAX_RETRY_DELAY)),
                    );
                }
            }
        }
    }

    fn not_identified(&self, error: &ClientError, current: CurrentAccess) -> AuthFailure {
        let mismatch = matches!(error, ClientError::Handshake { .. });
        // While the current credential works, a failed call does not matter to the user.
        if current == CurrentAccess::Missing || mismatch {
            let text = error_chain(error);
            self.update_view(|view| {
                view.identity = DesiredCondition::no(
                    links::IDENTITY_VERIFIED,
                    error.call_reason(),
                    text.clone(),
                );
                if view.granted.is_none() {
                    view.reachable =
                        DesiredCondition::no(links::PEER_REACHABLE, error.call_reason(), text);
                }
            });
        }
        AuthFailure::Transient
    }

    fn show_refusal(
        &self,
        refusal: &AccessRefusal,
        reason: &str,
        current: CurrentAccess,
    ) -> AuthFailure {
        let is_transient = [reasons::BUSY, reasons::CHALLENGE_INVALID, reasons::REPLAYED]
            .contains(&refusal.reason.as_str());
        // While the current credential works, a provider that is busy does not matter to the user.
        if current == CurrentAccess::Missing || !is_transient {
            self.update_view(|view| {
                view.authenticated = DesiredCondition::no(
                    links::AUTHENTICATED,
                    reason,
                    sanitized_text(&refusal.message),
                );
            });
        }
        if is_transient {
            AuthFailure::Transient
        } else {
            AuthFailure::Denied
        }
    }

    fn locally_failed(&self, error: &StepError) -> AuthFailure {
        let text = error_chain(error);
        tracing::warn!(provider = %self.purpose.cluster_id, error = text, "cannot handle the credential");
        self.update_view(|view| {
            view.authenticated =
                DesiredCondition::no(links::AUTHENTICATED, CallReason::LocalError, text);
        });
        AuthFailure::Transient
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(
            self.context.client.clone(),
            &provider_namespace(&self.purpose.cluster_id),
        )
    }

    fn update_view(&self, change: impl FnOnce(&mut SessionView)) {
        change(&mut self.view.lock());
        self.queue.add(self.purpose.cluster_id.clone());
    }
}

/// The reason why a credential cannot be used.
#[derive(Debug, thiserror::Error)]
enum HoldError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Token(#[from] UnusableToken),
    #[error("cannot use the provider's tunnel: {0}")]
    Tunnel(#[from] std::io::Error),
    #[error("cannot create a client for the provider's API server: {0}")]
    Client(#[source] kube::Error),
}

/// Tells a provider that the peering has ended. Tries only once unless it answered until now, and
/// goes on without it.
pub async fn end_at_provider(
    network: &Arc<dyn Network>,
    identity: &ClusterIdentity,
    id: &ClusterId,
    url: &str,
    tunnel_connections: &TunnelConnections,
    answered: bool,
) {
    let limit = if answered {
        END_TIMEOUT
    } else {
        Duration::ZERO
    };
    let call = async {
        let tunnel = tunnel_connections
            .own_connection()
            .map_err(ClientError::Tunnel)?;
        AuthClient::new(network, id, url)?
            .through_tunnel(tunnel)
            .end_peering_within(limit, identity)
            .await
    };
    match timeout(END_TIMEOUT, call).await {
        Ok(Ok(PeeringAnswer::Ended {})) => {
            tracing::info!(provider = %id, "the provider knows that the peering has ended");
        }
        Ok(Ok(answer)) => {
            tracing::warn!(provider = %id, ?answer, "the provider did not accept the end of the peering");
        }
        Ok(Err(error)) => {
            tracing::warn!(provider = %id, error = error_chain(&error), "ended the peering without the provider");
        }
        Err(_) => {
            tracing::warn!(provider = %id, "ended the peering without the provider, which does not answer");
        }
    }
}

/// Waits for a refusal. Refusals before this time do not concern the current token.
async fn wait_for_refusal(refused: &Notify, from: Option<Instant>) {
    if let Some(from) = from {
        tokio::time::sleep_until(from).await;
        let _ = timeout(Duration::ZERO, refused.notified()).await;
    }
    refused.notified().await;
}
