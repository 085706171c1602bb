//! The consumer's side of a peering: from the first call to a connection that the other slices use.
//!
//! ```text
//!   authenticate ──credential──▶ hold ─┬─ beat: renew our lease there, look at the provider's, every 3 s
//!        ▲                             ├─ judge: reachable or not; publish the connection, anew after an outage
//!        └────── other place ──────────┴─ renew: the credential, at 60% of its life or when it is refused
//! ```
//!
//! One session runs for each provider, as one task. What it finds out stands in [`View`]; the lifecycle controller
//! writes that into the `ForeignCluster`.

mod passages;
mod view;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use liqo_api::{ClusterId, GatewayAddress, leases, links, provider_namespace, tenant_namespace};
use liqo_kit::{
    Context, Health, PeerConnection, Queue,
    conditions::Wanted,
    peers::{self, Token},
    queue::error_chain,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{
        client::{Applicant, AuthClient, ClientError, for_people},
        decide::reasons,
        tokens::TOKEN,
    },
    credential::{Credential, CredentialError, stored},
    decide::{PeerHealth, Pulse},
    identity::ClusterIdentity,
    objects::{self, Step, StepError, delete_present},
    protocol::{PeeringAnswer, Refusal, SecretText},
};

pub use self::passages::{Passages, to_call};
pub use self::view::{Granted, View};
use self::view::{for_reason, granted, granted_condition, reachable_condition, reason_of, verified_text};

/// How often a provider is asked.
const BEAT: Duration = Duration::from_secs(3);
/// How long each of these calls may take.
const BEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often, and after which pauses, the first call is tried again when it is refused.
const FIRST_BEATS: u32 = 10;
const FIRST_BEAT: Duration = Duration::from_millis(200);
/// How often it is judged.
const JUDGE: Duration = Duration::from_secs(1);
/// How long to wait before asking again for access: first, at most, and when a person has to do something.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(15);
const DENIED_RETRY: Duration = Duration::from_secs(5);
/// How long a provider is given to hear that the peering is over.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A credential is not renewed sooner than this, however short its life is said to be.
const SOONEST_RENEWAL: Duration = Duration::from_secs(10);
/// How long a new token is given before its refusal leads to the next one.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a session is for. When any of it changes, a new session takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// The provider.
    pub cluster_id: ClusterId,
    /// Its name here.
    pub cluster_name: String,
    /// Name of its `ForeignCluster`.
    pub foreign_cluster: String,
    /// URL of its auth endpoint.
    pub auth_url: Option<String>,
    /// Whether it is called through its tunnel.
    pub through_tunnel: bool,
    /// Name of the Secret with the token for the first contact.
    pub token_secret: Option<String>,
}

/// A session that runs. It ends when this is dropped.
pub struct Session {
    purpose: Purpose,
    passages: Arc<Passages>,
    view: Arc<Mutex<View>>,
    stop: CancellationToken,
}

impl Session {
    /// Starts a session. Whenever its view changes, the provider's ID is added to `queue`. `gateways` are those through which the provider
    /// is called; none where it is called directly.
    pub fn start(
        context: &Context,
        identity: &Arc<ClusterIdentity>,
        purpose: Purpose,
        gateways: &[GatewayAddress],
        queue: Queue<ClusterId>,
    ) -> Self {
        let (stop, view) = (context.stop.child_token(), Arc::new(Mutex::new(View::new())));
        let passages = Arc::new(Passages::new(gateways, identity));
        let worker = Worker {
            context: context.clone(),
            passages: passages.clone(),
            identity: Arc::clone(identity),
            purpose: purpose.clone(),
            view: Arc::clone(&view),
            queue,
            stop: stop.clone(),
        };
        let until = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = until.cancelled() => {}
                () = worker.run() => {}
                never = worker.follow_gateway() => match never {},
            }
        });
        Self { purpose, passages, view, stop }
    }

    /// Calls the provider through these gateways from now on. What stands is not disturbed.
    pub fn know(&self, gateways: &[GatewayAddress]) {
        self.passages.know(gateways);
    }

    /// Its passages, by which the provider can be told that it has ended: by others the answer might go to these.
    pub fn passages(&self) -> Arc<Passages> {
        self.passages.clone()
    }

    /// What it is for.
    pub fn purpose(&self) -> &Purpose {
        &self.purpose
    }

    /// How far it is.
    pub fn view(&self) -> View {
        lock(&self.view).clone()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Under the lock, so that a connection is published before this or not at all.
        let _view = lock(&self.view);
        self.stop.cancel();
    }
}

/// Why access was not had this time.
enum Setback {
    /// Again soon.
    Soon,
    /// A person has to do something first.
    Denied,
}

struct Worker {
    context: Context,
    identity: Arc<ClusterIdentity>,
    passages: Arc<Passages>,
    purpose: Purpose,
    view: Arc<Mutex<View>>,
    queue: Queue<ClusterId>,
    stop: CancellationToken,
}

impl Worker {
    async fn run(&self) {
        let mut credential = self.load().await;
        let mut delay = FIRST_RETRY;
        loop {
            let current = match credential.take() {
                Some(current) => current,
                None => match self.authenticate(true).await {
                    Ok(granted) => granted,
                    Err(setback) => {
                        tokio::time::sleep(if matches!(setback, Setback::Denied) { DENIED_RETRY } else { delay }).await;
                        delay = (delay * 2).min(LONGEST_RETRY);
                        continue;
                    }
                },
            };
            delay = FIRST_RETRY;
            let held = self.hold(current).await;
            // Nobody looks after it any more, so nobody would notice when it breaks.
            self.unless_stopped(|| self.context.peers.withdraw(&self.purpose.cluster_id));
            match held {
                Ok(next) => credential = Some(next),
                Err(error) => {
                    self.show(|view| view.reachable = Wanted::no(links::PEER_REACHABLE, "InvalidGrant", error.to_string()));
                    tokio::time::sleep(DENIED_RETRY).await;
                }
            }
        }
    }

    /// Shows through which gateway the provider is called, whatever the session is at.
    async fn follow_gateway(&self) -> Infallible {
        let mut ticks = tokio::time::interval(JUDGE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let through = self.passages.gateway();
            if lock(&self.view).gateway != through {
                self.show(|view| view.gateway = through);
            }
        }
    }

    /// The credential that an earlier session stored, if it may be of use.
    async fn load(&self) -> Option<Credential> {
        let found = self.secrets().get_opt(crate::credential::CREDENTIAL_SECRET).await;
        let found =
            found.inspect_err(|error| tracing::warn!(%error, "cannot read the stored credential, asking for a new one")).ok()?;
        let credential = stored(found).filter(|credential| credential.is_usable(Timestamp::now()))?;
        credential.client_config(&tenant_namespace(self.identity.id())).ok()?;
        self.show(|view| {
            view.identity = Wanted::yes(links::IDENTITY_VERIFIED, "Verified", verified_text(&self.purpose));
            view.authenticated = granted_condition(&credential);
            view.granted = Some(granted(&credential));
        });
        Some(credential)
    }

    /// Proves who is who, and asks for access. `first`: there is no access that still works.
    async fn authenticate(&self, first: bool) -> Result<Credential, Setback> {
        let Some(url) = &self.purpose.auth_url else {
            self.show(|view| {
                view.identity =
                    Wanted::no(links::IDENTITY_VERIFIED, "AuthURLMissing", "spec.authURL is not set: `liqoctl peer` sets it");
            });
            return Err(Setback::Denied);
        };
        let token = self.first_token().await.map_err(|error| self.locally_failed(&error))?;
        let client = self.identify(url, token.as_ref()).await.map_err(|error| self.not_identified(&error, first))?;
        self.show(|view| view.identity = Wanted::yes(links::IDENTITY_VERIFIED, "Verified", verified_text(&self.purpose)));
        let cluster_name = self.context.config().spec.cluster_name.clone();
        let applicant = Applicant { identity: &self.identity, cluster_name: &cluster_name, token: token.as_ref() };
        match client.request_peering(&applicant).await {
            Ok(PeeringAnswer::Granted(grant)) => self.take(Credential::granted(*grant, Timestamp::now()), token.is_some()).await,
            Ok(PeeringAnswer::Pending(refusal)) => {
                self.passages.answered(true);
                Err(self.refused(&refusal, "PendingApproval"))
            }
            Ok(PeeringAnswer::Denied(refusal)) => {
                self.passages.answered(false);
                Err(self.refused(&refusal, &for_reason(&refusal.reason)))
            }
            Ok(PeeringAnswer::Ended {}) => Err(Setback::Soon),
            Err(error) => {
                if first {
                    let text = error_chain(&error);
                    self.show(|view| view.authenticated = Wanted::no(links::AUTHENTICATED, reason_of(&error), text));
                }
                Err(Setback::Soon)
            }
        }
    }

    /// A client for the auth endpoint, after the provider proved who it is.
    async fn identify(&self, url: &str, token: Option<&SecretText>) -> Result<AuthClient, ClientError> {
        let client = AuthClient::new(&self.purpose.cluster_id, url)?;
        let mut ways = self.passages.ways(token).map_err(ClientError::Tunnel)?.into_iter();
        let open = |way| self.passages.open(way).map_err(ClientError::Tunnel);
        let mut client = client.through(open(ways.next().flatten())?);
        loop {
            match (client.ids().await, ways.next()) {
                (Ok(_), _) => return Ok(client),
                (Err(ClientError::Tunnel(_) | ClientError::Timeout { .. }), Some(way)) => client = client.through(open(way)?),
                (Err(error), _) => return Err(error),
            }
        }
    }

    async fn take(&self, credential: Credential, used_token: bool) -> Result<Credential, Setback> {
        if let Err(error) = credential.client_config(&tenant_namespace(self.identity.id())) {
            self.show(|view| view.authenticated = Wanted::no(links::AUTHENTICATED, "InvalidGrant", error.to_string()));
            return Err(Setback::Denied);
        }
        self.store(&credential, used_token).await.map_err(|error| self.locally_failed(&error))?;
        self.passages.answered(true);
        self.show(|view| {
            view.authenticated = granted_condition(&credential);
            view.granted = Some(granted(&credential));
        });
        tracing::info!(provider = %self.purpose.cluster_id, name = self.purpose.cluster_name, "the provider granted a credential");
        Ok(credential)
    }

    async fn store(&self, credential: &Credential, used_token: bool) -> Result<(), StepError> {
        let parameters = PatchParams::apply(crate::FIELD_MANAGER).force();
        let stored =
            self.secrets().patch(crate::credential::CREDENTIAL_SECRET, &parameters, &Patch::Apply(credential.to_secret())).await;
        stored.step(|| format!("store the credential for {}", self.purpose.cluster_id))?;
        if let (true, Some(name)) = (used_token, &self.purpose.token_secret) {
            let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
            delete_present(&secrets, name).await?;
        }
        Ok(())
    }

    /// The token for the first contact; none once it was used, or where the user gave none.
    async fn first_token(&self) -> Result<Option<SecretText>, StepError> {
        let Some(name) = &self.purpose.token_secret else { return Ok(None) };
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.context.namespace);
        let found = secrets.get_opt(name).await.step(|| format!("read Secret {name}"))?;
        let token = found.and_then(|secret| secret.data?.remove(TOKEN)).and_then(|bytes| String::from_utf8(bytes.0).ok());
        Ok(token.map(|text| SecretText(text.trim().to_owned())))
    }

    /// Keeps the connection until a new credential leads to another place, which is returned.
    async fn hold(&self, credential: Credential) -> Result<Credential, HoldError> {
        let token = Token::default();
        token.set(&credential.token.0)?;
        let own = self.client(&credential, &token)?;
        let refused = Notify::new();
        // The first beat comes before the connection is shown, so that what is shown is true.
        let pulse = Mutex::new(self.first_beat(&own, &credential, &refused).await);
        tokio::select! {
            never = self.beat(&own, &credential, &pulse, &refused) => match never {},
            failed = self.judge(&credential, &token, &pulse) => Err(failed),
            next = self.renew(&credential, &token, &refused) => Ok(next),
        }
    }

    /// Rights that were given a moment ago may take another one to hold.
    async fn first_beat(&self, client: &Client, credential: &Credential, refused: &Notify) -> Pulse {
        let mut pulse = Pulse::new(Instant::now());
        for _ in 0..FIRST_BEATS {
            self.beat_once(client, credential, &mut pulse, None).await;
            if !pulse.refused {
                return pulse;
            }
            tokio::time::sleep(FIRST_BEAT).await;
        }
        refused.notify_one();
        pulse
    }

    fn client(&self, credential: &Credential, token: &Token) -> Result<Client, HoldError> {
        let config = credential.client_config(&tenant_namespace(self.identity.id()))?;
        peers::client(config, token.clone(), self.passages.own()?).map_err(HoldError::Client)
    }

    async fn beat(&self, client: &Client, credential: &Credential, pulse: &Mutex<Pulse>, refused: &Notify) -> Infallible {
        let mut beats = tokio::time::interval_at(Instant::now() + BEAT, BEAT);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let mut next = lock(pulse).clone();
            self.beat_once(client, credential, &mut next, Some(refused)).await;
            *lock(pulse) = next;
        }
    }

    /// Renews our lease at the provider and looks at the provider's.
    async fn beat_once(&self, client: &Client, credential: &Credential, pulse: &mut Pulse, refused: Option<&Notify>) {
        let api: Api<Lease> = Api::namespaced(client.clone(), &credential.tenant_namespace);
        let renewal = Patch::Merge(objects::renewal(self.identity.id(), Timestamp::now()));
        let parameters = PatchParams::default();
        let both = async { tokio::try_join!(api.patch(leases::CONSUMER, &parameters, &renewal), api.get(leases::PROVIDER)) };
        match timeout(BEAT_TIMEOUT, both).await {
            Ok(Ok((_, lease))) => pulse.heard(objects::lease_version(&lease).or_else(|| Some(String::new())), Instant::now()),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403 | 404) => {
                tracing::debug!(provider = %self.purpose.cluster_id, code = status.code, "the provider refused our heartbeat");
                pulse.refused = true;
                if let Some(refused) = refused {
                    refused.notify_one();
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(provider = %self.purpose.cluster_id, %error, "no heartbeat");
                pulse.refused = false;
            }
            Err(_) => pulse.refused = false,
        }
    }

    /// Publishes the connection, says whether the provider is reachable, and publishes a fresh connection after an
    /// outage. Ends only by an error.
    async fn judge(&self, credential: &Credential, token: &Token, pulse: &Mutex<Pulse>) -> HoldError {
        let mut health = lock(pulse).health(Instant::now());
        let mut sender = match self.publish(credential, token, health) {
            Ok(sender) => sender,
            Err(error) => return error,
        };
        self.show(|view| view.reachable = reachable_condition(health));
        let mut ticks = tokio::time::interval(JUDGE);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = lock(pulse).health(Instant::now());
            if now == health {
                continue;
            }
            let was = std::mem::replace(&mut health, now);
            tracing::info!(provider = %self.purpose.cluster_id, ?was, ?now, "the provider's reachability changed");
            self.show(|view| view.reachable = reachable_condition(now));
            match (was, now) {
                (_, PeerHealth::Reachable) => match self.publish(credential, token, now) {
                    Ok(fresh) => sender = fresh,
                    Err(error) => return error,
                },
                (PeerHealth::Reachable, _) => {
                    sender.send_replace(Health::Unreachable { since: Instant::now() });
                }
                _ => {}
            }
        }
    }

    fn publish(&self, credential: &Credential, token: &Token, health: PeerHealth) -> Result<watch::Sender<Health>, HoldError> {
        let health =
            if health == PeerHealth::Reachable { Health::Reachable } else { Health::Unreachable { since: Instant::now() } };
        let (sender, receiver) = watch::channel(health);
        let connection = PeerConnection {
            cluster_id: self.purpose.cluster_id.clone(),
            cluster_name: self.purpose.cluster_name.clone(),
            foreign_cluster: self.purpose.foreign_cluster.clone(),
            client: self.client(credential, token)?,
            tenant_namespace: credential.tenant_namespace.clone(),
            protocol_version: credential.protocol_version,
            health: receiver,
            ended: CancellationToken::new(),
        };
        self.unless_stopped(|| self.context.peers.publish(connection));
        Ok(sender)
    }

    /// A session that was stopped has no say in what is published any more.
    fn unless_stopped(&self, act: impl FnOnce()) {
        let _view = lock(&self.view);
        if !self.stop.is_cancelled() {
            act();
        }
    }

    /// Replaces the token in time, or when it is refused; returns a credential that needs other clients.
    async fn renew(&self, credential: &Credential, token: &Token, refused: &Notify) -> Credential {
        let mut current = credential.clone();
        let mut retry: Option<Duration> = None;
        let mut patience: Option<Instant> = None;
        loop {
            let due = retry.unwrap_or_else(|| current.renew_in(Timestamp::now()).max(SOONEST_RENEWAL));
            tokio::select! {
                () = tokio::time::sleep(due) => {}
                () = refused_from(refused, patience), if retry.is_none() => {}
            }
            let works = current.is_usable(Timestamp::now());
            match self.authenticate(!works).await {
                Ok(next) if next.same_place(&current) && token.set(&next.token.0).is_ok() => {
                    current = next;
                    retry = None;
                    patience = Some(Instant::now() + PATIENCE);
                }
                Ok(next) => return next,
                Err(Setback::Denied) => retry = Some(DENIED_RETRY),
                Err(Setback::Soon) => retry = Some(retry.map_or(FIRST_RETRY, |last| (last * 2).min(LONGEST_RETRY))),
            }
        }
    }

    fn not_identified(&self, error: &ClientError, first: bool) -> Setback {
        let mismatch = matches!(error, ClientError::Handshake { .. });
        // While the present credential works, a call that failed is no news for the user.
        if first || mismatch {
            let text = error_chain(error);
            self.show(|view| {
                view.identity = Wanted::no(links::IDENTITY_VERIFIED, reason_of(error), text.clone());
                if view.granted.is_none() {
                    view.reachable = Wanted::no(links::PEER_REACHABLE, reason_of(error), text);
                }
            });
        }
        Setback::Soon
    }

    fn refused(&self, refusal: &Refusal, reason: &str) -> Setback {
        self.show(|view| view.authenticated = Wanted::no(links::AUTHENTICATED, reason, for_people(&refusal.message)));
        let soon = [reasons::BUSY, reasons::CHALLENGE_INVALID, reasons::REPLAYED];
        if soon.contains(&refusal.reason.as_str()) { Setback::Soon } else { Setback::Denied }
    }

    fn locally_failed(&self, error: &StepError) -> Setback {
        let text = error_chain(error);
        tracing::warn!(provider = %self.purpose.cluster_id, error = text, "cannot handle the credential");
        self.show(|view| view.authenticated = Wanted::no(links::AUTHENTICATED, "LocalError", text));
        Setback::Soon
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.context.client.clone(), &provider_namespace(&self.purpose.cluster_id))
    }

    fn show(&self, change: impl FnOnce(&mut View)) {
        change(&mut lock(&self.view));
        self.queue.add(self.purpose.cluster_id.clone());
    }
}

/// Why a granted connection cannot be used.
#[derive(Debug, thiserror::Error)]
enum HoldError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Token(#[from] peers::UnusableToken),
    #[error("cannot go through the provider's tunnel: {0}")]
    Passage(#[from] std::io::Error),
    #[error("cannot make a client for the provider's API server: {0}")]
    Client(#[source] kube::Error),
}

/// Tells a session's provider that the peering is over. A provider that does not answer is not waited for.
pub async fn end_at_provider(identity: &ClusterIdentity, id: &ClusterId, url: &str, passages: &Passages) {
    let call = async {
        let way = passages.own().map_err(ClientError::Tunnel)?;
        AuthClient::new(id, url)?.through(way).end_peering(identity).await
    };
    match timeout(END_TIMEOUT, call).await {
        Ok(Ok(PeeringAnswer::Ended {})) => tracing::info!(provider = %id, "the provider knows that the peering is over"),
        Ok(Ok(answer)) => tracing::warn!(provider = %id, ?answer, "the provider did not take note that the peering is over"),
        Ok(Err(error)) => tracing::warn!(provider = %id, error = error_chain(&error), "ended the peering without the provider"),
        Err(_) => tracing::warn!(provider = %id, "ended the peering without the provider, which does not answer"),
    }
}

/// Waits for a refusal. One from before this time says nothing about the present token.
async fn refused_from(refused: &Notify, from: Option<Instant>) {
    if let Some(from) = from {
        tokio::time::sleep_until(from).await;
        let _ = timeout(Duration::ZERO, refused.notified()).await;
    }
    refused.notified().await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
