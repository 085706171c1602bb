//! Tests the client and the server of the auth endpoint over real sockets.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use liqo_api::{ClusterId, Key, PeeringIntent};
use liqo_controller_runtime::{Clock, Tcp, writes::StepContext as _};
use liqo_signing::{ClusterIdentity, Envelope, PublicKey};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    client::{Applicant, AuthClient, ClientError},
    server::{Tenancies, TenancyError, serve_endpoint},
};
use crate::{
    decide::access::{
        ApprovalQueue, GrantedConsumer, KnownConsumer, TokenClaim, TokenVerdict, reasons,
    },
    protocol::{
        AccessGrant, AccessRefusal, GrantedApiServer, PEERING_REQUEST, PeeringAnswer,
        PeeringRequest, ProtocolRange, SecretText, SignedEndRequest,
    },
    tls,
};

/// A provider's cluster, in memory.
#[derive(Default)]
struct InMemory {
    tenants: Mutex<HashMap<ClusterId, String>>,
    blocked: Mutex<HashSet<ClusterId>>,
    /// Those that a policy lets in without a token.
    named: Mutex<HashSet<ClusterId>>,
    one_time: Mutex<HashSet<String>>,
    claimed: Mutex<HashMap<String, ClusterId>>,
    granted: Mutex<usize>,
    waiting: Mutex<HashSet<ClusterId>>,
    /// How often the endpoint asked what is known about a consumer, and for the approval queue.
    looks: Mutex<(usize, usize)>,
    by_hand: bool,
    names_taken: bool,
    broken: bool,
    /// How many of the next requests fail after they claimed their token.
    fails: Mutex<usize>,
    /// How long each grant takes.
    delay: Duration,
    /// For each consumer, how many grants are in progress; and these numbers over time.
    in_progress: Mutex<HashMap<ClusterId, usize>>,
    concurrent: Mutex<Vec<usize>>,
}

impl InMemory {
    /// Fails if the cluster is broken, or as often as `fails` says.
    fn work(&self) -> Result<(), TenancyError> {
        let mut fails = self.fails.lock().unwrap();
        if self.broken || *fails > 0 {
            *fails = fails.saturating_sub(1);
            let full: kube::Result<()> = Err(kube::Error::Service("disk full".into()));
            full.step("create", "secret thing", Key::default())?;
        }
        Ok(())
    }
}

/// A grant in progress, until it is dropped: a caller may not wait for the answer.
struct InProgress<'a>(&'a InMemory, ClusterId);

impl<'a> InProgress<'a> {
    fn begin(cluster: &'a InMemory, consumer: &ClusterId) -> Self {
        let mut all = cluster.in_progress.lock().unwrap();
        let number = all.entry(consumer.clone()).or_default();
        *number += 1;
        cluster.concurrent.lock().unwrap().push(*number);
        Self(cluster, consumer.clone())
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        *self
            .0
            .in_progress
            .lock()
            .unwrap()
            .entry(self.1.clone())
            .or_default() -= 1;
    }
}

impl Tenancies for InMemory {
    fn cluster_name(&self) -> String {
        "milan".to_owned()
    }

    fn is_known(&self, consumer: &ClusterId) -> bool {
        self.tenants.lock().unwrap().contains_key(consumer)
            || self.waiting.lock().unwrap().contains(consumer)
            || self.blocked.lock().unwrap().contains(consumer)
    }

    fn needs_no_token(&self, consumer: &ClusterId) -> bool {
        self.named.lock().unwrap().contains(consumer)
    }

    async fn known_consumer(
        &self,
        consumer: &ClusterId,
        _name: &str,
    ) -> Result<KnownConsumer, TenancyError> {
        self.looks.lock().unwrap().0 += 1;
        let name = self.tenants.lock().unwrap().get(consumer).cloned();
        let incoming = if self.blocked.lock().unwrap().contains(consumer) {
            PeeringIntent::No
        } else {
            PeeringIntent::Auto
        };
        let waits = self.waiting.lock().unwrap().contains(consumer);
        Ok(KnownConsumer {
            approved: name.is_some(),
            ending: false,
            cluster_name: name,
            incoming,
            by_hand: self.by_hand,
            needs_no_token: self.named.lock().unwrap().contains(consumer),
            waits,
        })
    }

    async fn is_approved(&self, consumer: &ClusterId) -> Result<bool, TenancyError> {
        Ok(self.tenants.lock().unwrap().contains_key(consumer))
    }

    async fn approval_queue(
        &self,
        consumer: &ClusterId,
        _name: &str,
    ) -> Result<ApprovalQueue, TenancyError> {
        self.looks.lock().unwrap().1 += 1;
        let waiting = self.waiting.lock().unwrap();
        Ok(ApprovalQueue {
            waits: waiting.contains(consumer),
            waiting: waiting.len(),
            has_name: !self.names_taken,
        })
    }

    async fn judge_token(
        &self,
        token: Option<&str>,
        consumer: &ClusterId,
    ) -> Result<TokenVerdict, TenancyError> {
        let user = token.and_then(|token| self.claimed.lock().unwrap().get(token).cloned());
        Ok(match token {
            None => TokenVerdict::Absent,
            Some("reusable") => TokenVerdict::Valid(TokenClaim {
                name: "reusable".to_owned(),
                uid: "1".to_owned(),
                resource_version: "1".to_owned(),
                is_claimed: false,
                is_reusable: true,
                used_by: String::new(),
            }),
            Some(_) if user.as_ref().is_some_and(|user| user != consumer) => TokenVerdict::Unknown,
            Some(token) if self.one_time.lock().unwrap().contains(token) => {
                TokenVerdict::Valid(TokenClaim {
                    name: token.to_owned(),
                    uid: "1".to_owned(),
                    resource_version: "1".to_owned(),
                    is_claimed: user.is_some(),
                    is_reusable: false,
                    used_by: consumer.to_string(),
                })
            }
            Some(_) => TokenVerdict::Unknown,
        })
    }

    async fn claim_token(
        &self,
        token: &TokenClaim,
        consumer: &ClusterId,
    ) -> Result<bool, TenancyError> {
        if token.is_reusable {
            return Ok(true);
        }
        Ok(self
            .claimed
            .lock()
            .unwrap()
            .entry(token.name.clone())
            .or_insert_with(|| consumer.clone())
            == consumer)
    }

    async fn discard_token(&self, token: &TokenClaim) -> Result<(), TenancyError> {
        self.one_time.lock().unwrap().remove(&token.name);
        Ok(())
    }

    async fn ensure_tenancy(
        &self,
        consumer: &GrantedConsumer,
    ) -> Result<AccessGrant, TenancyError> {
        self.work()?;
        let one = InProgress::begin(self, &consumer.id);
        tokio::time::sleep(self.delay).await;
        drop(one);
        self.tenants
            .lock()
            .unwrap()
            .insert(consumer.id.clone(), consumer.name.clone());
        *self.granted.lock().unwrap() += 1;
        Ok(AccessGrant {
            tenant_namespace: liqo_api::tenant_namespace(&consumer.id),
            api_server: GrantedApiServer {
                url: "https://203.0.113.5:6443".to_owned(),
                ca: "pem".to_owned(),
            },
            token: SecretText("credential".to_owned()),
            expiration_seconds: 3600,
            protocol_version: consumer.protocol_version,
            provider_name: self.cluster_name(),
        })
    }

    async fn note_waiting(
        &self,
        consumer: &ClusterId,
        _: &PublicKey,
        _: &str,
    ) -> Result<(), TenancyError> {
        self.work()?;
        self.waiting.lock().unwrap().insert(consumer.clone());
        Ok(())
    }

    async fn end_tenancy(&self, consumer: &ClusterId) -> Result<(), TenancyError> {
        self.work()?;
        self.tenants.lock().unwrap().remove(consumer);
        Ok(())
    }
}

struct Provider {
    identity: ClusterIdentity,
    cluster: Arc<InMemory>,
    address: SocketAddr,
    _stop: DropGuard,
}

impl Provider {
    async fn start(cluster: InMemory) -> Self {
        let identity = ClusterIdentity::generate().unwrap();
        let cluster = Arc::new(cluster);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served = ClusterIdentity::from_pkcs8(identity.pkcs8()).unwrap();
        let (tenancies, until) = (Arc::clone(&cluster), stop.clone());
        tokio::spawn(async move {
            serve_endpoint(
                Box::new(listener),
                &served,
                tenancies,
                Clock::system(),
                until,
            )
            .await
            .unwrap();
        });
        Self {
            identity,
            cluster,
            address,
            _stop: stop.drop_guard(),
        }
    }

    fn client(&self) -> AuthClient {
        AuthClient::new(
            &Tcp::network(),
            self.identity.id(),
            &format!("https://{}", self.address),
        )
        .unwrap()
        .allow_loopback()
    }

    /// Sends bytes over TLS and returns all that comes back.
    async fn raw(&self, request: &[u8]) -> String {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector =
            TlsConnector::from(Arc::new(tls::client_config(self.identity.id()).unwrap()));
        let mut stream = connector
            .connect(self.address.ip().into(), stream)
            .await
            .unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn post(&self, path: &str, envelope: &Envelope) -> String {
        let body = serde_json::to_string(envelope).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.raw((head + &body).as_bytes()).await
    }
}

async fn ask(
    provider: &Provider,
    identity: &ClusterIdentity,
    name: &str,
    token: Option<&str>,
) -> PeeringAnswer {
    let token = token.map(|token| SecretText(token.to_owned()));
    let applicant = Applicant {
        identity,
        cluster_name: name,
        token: token.as_ref(),
    };
    provider.client().request_peering(&applicant).await.unwrap()
}

fn reason(answer: PeeringAnswer) -> String {
    match answer {
        PeeringAnswer::Denied(AccessRefusal { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn request(provider: &Provider, rome: &ClusterIdentity, challenge: String) -> PeeringRequest {
    PeeringRequest {
        challenge,
        audience: provider.identity.id().to_string(),
        cluster_id: rome.id().to_string(),
        cluster_name: "rome".to_owned(),
        protocol: ProtocolRange { min: 1, max: 1 },
        features: Vec::new(),
        token: Some(SecretText("reusable".to_owned())),
    }
}

#[tokio::test]
async fn a_consumer_with_a_token_is_granted_access_and_later_needs_none() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    assert_eq!(
        milan
            .client()
            .request_identification()
            .await
            .unwrap()
            .cluster_name,
        "milan"
    );
    let PeeringAnswer::Granted(grant) = ask(&milan, &rome, "rome", Some("reusable")).await else {
        panic!("not granted")
    };
    assert_eq!(grant.tenant_namespace, format!("liqo-tenant-{}", rome.id()));
    assert_eq!(grant.protocol_version, 1);
    assert!(matches!(
        ask(&milan, &rome, "rome", None).await,
        PeeringAnswer::Granted(_)
    ));
}

#[tokio::test]
async fn a_consumer_that_a_person_is_to_approve_is_noted_and_told_to_wait() {
    let milan = Provider::start(InMemory {
        by_hand: true,
        ..InMemory::default()
    })
    .await;
    let rome = ClusterIdentity::generate().unwrap();
    let answer = ask(&milan, &rome, "rome", Some("reusable")).await;
    assert!(
        matches!(&answer, PeeringAnswer::Pending(refusal) if refusal.reason == reasons::PENDING_APPROVAL),
        "{answer:?}"
    );
    assert!(milan.cluster.waiting.lock().unwrap().contains(rome.id()));
    let stranger = ClusterIdentity::generate().unwrap();
    assert!(matches!(
        ask(&milan, &stranger, "rome", None).await,
        PeeringAnswer::Denied(_)
    ));
    assert!(
        !milan
            .cluster
            .waiting
            .lock()
            .unwrap()
            .contains(stranger.id())
    );
}

#[tokio::test]
async fn a_one_time_token_lets_one_cluster_wait_for_approval() {
    let one_time = Mutex::new(HashSet::from(["once".to_owned()]));
    let milan = Provider::start(InMemory {
        by_hand: true,
        one_time,
        ..InMemory::default()
    })
    .await;
    let rome = ClusterIdentity::generate().unwrap();
    for _ in 0..2 {
        assert!(matches!(
            ask(&milan, &rome, "rome", Some("once")).await,
            PeeringAnswer::Pending(_)
        ));
    }
    let turin = ClusterIdentity::generate().unwrap();
    assert_eq!(
        reason(ask(&milan, &turin, "turin", Some("once")).await),
        reasons::TOKEN_INVALID
    );
    assert_eq!(
        *milan.cluster.waiting.lock().unwrap(),
        HashSet::from([rome.id().clone()])
    );
}

#[tokio::test]
async fn a_one_time_token_is_not_spent_on_a_cluster_that_cannot_be_noted() {
    let one_time = Mutex::new(HashSet::from(["once".to_owned()]));
    let milan = Provider::start(InMemory {
        by_hand: true,
        names_taken: true,
        one_time,
        ..InMemory::default()
    })
    .await;
    let rome = ClusterIdentity::generate().unwrap();
    assert_eq!(
        reason(ask(&milan, &rome, "rome", Some("once")).await),
        reasons::NAME_TAKEN
    );
    assert!(milan.cluster.one_time.lock().unwrap().contains("once"));
    assert!(milan.cluster.waiting.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_request_that_fails_halfway_leaves_the_one_time_token_to_its_cluster() {
    for by_hand in [false, true] {
        let one_time = Mutex::new(HashSet::from(["once".to_owned()]));
        let milan = Provider::start(InMemory {
            by_hand,
            one_time,
            fails: Mutex::new(1),
            ..InMemory::default()
        })
        .await;
        let (rome, turin) = (
            ClusterIdentity::generate().unwrap(),
            ClusterIdentity::generate().unwrap(),
        );
        let token = SecretText("once".to_owned());
        let applicant = Applicant {
            identity: &rome,
            cluster_name: "rome",
            token: Some(&token),
        };
        let error = milan
            .client()
            .request_peering(&applicant)
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::Unavailable { .. }), "{error}");
        assert_eq!(
            reason(ask(&milan, &turin, "turin", Some("once")).await),
            reasons::TOKEN_INVALID
        );
        let answer = ask(&milan, &rome, "rome", Some("once")).await;
        assert!(
            matches!(
                answer,
                PeeringAnswer::Granted(_) | PeeringAnswer::Pending(_)
            ),
            "{answer:?}"
        );
        assert!(
            milan.cluster.one_time.lock().unwrap().is_empty(),
            "the token was used and is still there"
        );
    }
}

#[tokio::test]
async fn nobody_looks_for_room_for_a_stranger_without_challenge_and_token() {
    let milan = Provider::start(InMemory {
        by_hand: true,
        ..InMemory::default()
    })
    .await;
    let rome = ClusterIdentity::generate().unwrap();
    let document = request(&milan, &rome, "made-up".to_owned());
    let envelope = Envelope::sign(
        &rome,
        PEERING_REQUEST,
        &serde_json::to_vec(&document).unwrap(),
    )
    .unwrap();
    let answer = milan.post("/v1/peerings", &envelope).await;
    assert!(answer.contains("ChallengeInvalid"), "{answer}");
    assert_eq!(*milan.cluster.looks.lock().unwrap(), (0, 0));
    for token in [None, Some("guess")] {
        assert!(matches!(
            ask(&milan, &rome, "rome", token).await,
            PeeringAnswer::Denied(_)
        ));
    }
    assert_eq!(
        milan.client().end_peering(&rome).await.unwrap(),
        PeeringAnswer::Ended {}
    );
    assert_eq!(*milan.cluster.looks.lock().unwrap(), (0, 0));
    // The same for a consumer that waits, or if nobody has to approve.
    for _ in 0..3 {
        ask(&milan, &rome, "rome", Some("reusable")).await;
    }
    assert_eq!(milan.cluster.looks.lock().unwrap().1, 1);
    let turin = Provider::start(InMemory::default()).await;
    assert!(matches!(
        ask(&turin, &rome, "rome", Some("reusable")).await,
        PeeringAnswer::Granted(_)
    ));
    assert_eq!(turin.cluster.looks.lock().unwrap().1, 0);
}

#[tokio::test]
async fn a_stranger_without_a_token_or_with_a_wrong_one_is_denied() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    assert_eq!(
        reason(ask(&milan, &rome, "rome", None).await),
        reasons::TOKEN_REQUIRED
    );
    assert_eq!(
        reason(ask(&milan, &rome, "rome", Some("guess")).await),
        reasons::TOKEN_INVALID
    );
    assert_eq!(*milan.cluster.granted.lock().unwrap(), 0);
}

#[tokio::test]
async fn a_consumer_that_a_policy_names_needs_neither_record_nor_token() {
    let rome = ClusterIdentity::generate().unwrap();
    let cluster = InMemory {
        named: Mutex::new(HashSet::from([rome.id().clone()])),
        ..InMemory::default()
    };
    let milan = Provider::start(cluster).await;
    assert!(matches!(
        ask(&milan, &rome, "rome", None).await,
        PeeringAnswer::Granted(_)
    ));
    let other = ClusterIdentity::generate().unwrap();
    assert_eq!(
        reason(ask(&milan, &other, "turin", None).await),
        reasons::TOKEN_REQUIRED
    );
}

#[tokio::test]
async fn strangers_who_end_what_they_never_had_keep_no_first_contact_out() {
    let milan = Arc::new(Provider::start(InMemory::default()).await);
    let ends = (0..100).map(|_| {
        let milan = Arc::clone(&milan);
        tokio::spawn(async move {
            drop(
                milan
                    .client()
                    .end_peering(&ClusterIdentity::generate().unwrap())
                    .await,
            );
        })
    });
    futures::future::join_all(ends).await;
    is_let_in_soon(&milan, &ClusterIdentity::generate().unwrap()).await;
}

#[tokio::test]
async fn of_many_with_the_same_one_time_token_one_gets_in() {
    let cluster = InMemory {
        one_time: Mutex::new(HashSet::from(["once".to_owned()])),
        ..InMemory::default()
    };
    let milan = Arc::new(Provider::start(cluster).await);
    let tries = (0..8).map(|_| {
        let milan = Arc::clone(&milan);
        tokio::spawn(async move {
            ask(
                &milan,
                &ClusterIdentity::generate().unwrap(),
                "rome",
                Some("once"),
            )
            .await
        })
    });
    let mut granted = 0;
    for answer in futures::future::join_all(tries).await {
        match answer.unwrap() {
            PeeringAnswer::Granted(_) => granted += 1,
            other => assert_eq!(reason(other), reasons::TOKEN_INVALID),
        }
    }
    assert_eq!(granted, 1);
    assert_eq!(milan.cluster.tenants.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_blocked_cluster_is_denied_although_it_was_granted_before() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    ask(&milan, &rome, "rome", Some("reusable")).await;
    milan
        .cluster
        .blocked
        .lock()
        .unwrap()
        .insert(rome.id().clone());
    assert_eq!(
        reason(ask(&milan, &rome, "rome", Some("reusable")).await),
        reasons::BLOCKED
    );
}

#[tokio::test]
async fn a_replayed_request_is_refused() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    let document = request(
        &milan,
        &rome,
        milan.client().request_challenge().await.unwrap(),
    );
    let envelope = Envelope::sign(
        &rome,
        PEERING_REQUEST,
        &serde_json::to_vec(&document).unwrap(),
    )
    .unwrap();
    assert!(
        milan
            .post("/v1/peerings", &envelope)
            .await
            .starts_with("HTTP/1.1 200")
    );
    let second = milan.post("/v1/peerings", &envelope).await;
    assert!(
        second.starts_with("HTTP/1.1 403") && second.contains("Replayed"),
        "{second}"
    );
    assert_eq!(*milan.cluster.granted.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_foreign_key_that_claims_a_known_id_is_refused() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    let thief = ClusterIdentity::generate().unwrap();
    ask(&milan, &rome, "rome", Some("reusable")).await;
    // Claimed inside the signed document.
    let document = request(
        &milan,
        &rome,
        milan.client().request_challenge().await.unwrap(),
    );
    let bytes = serde_json::to_vec(&document).unwrap();
    let envelope = Envelope::sign(&thief, PEERING_REQUEST, &bytes).unwrap();
    let answer = milan.post("/v1/peerings", &envelope).await;
    assert!(answer.contains("IdentityMismatch"), "{answer}");
    // Claimed around it.
    let mut envelope = Envelope::sign(&thief, PEERING_REQUEST, &bytes).unwrap();
    envelope.signatures[0].keyid = rome.id().to_string();
    envelope.public_key = data_encoding::BASE64.encode(rome.public_key());
    let answer = milan.post("/v1/peerings", &envelope).await;
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("signature"),
        "{answer}"
    );
    assert_eq!(*milan.cluster.granted.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_request_that_was_signed_for_another_provider_is_refused() {
    let milan = Provider::start(InMemory::default()).await;
    let turin = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    // Turin forwards what rome signed for turin, with a challenge that milan issued to turin.
    let document = request(
        &turin,
        &rome,
        milan.client().request_challenge().await.unwrap(),
    );
    let envelope = Envelope::sign(
        &rome,
        PEERING_REQUEST,
        &serde_json::to_vec(&document).unwrap(),
    )
    .unwrap();
    let answer = milan.post("/v1/peerings", &envelope).await;
    assert!(answer.contains("WrongAudience"), "{answer}");
}

#[tokio::test]
async fn a_signed_request_cannot_be_used_as_the_end_of_a_peering() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    ask(&milan, &rome, "rome", Some("reusable")).await;
    let document = request(
        &milan,
        &rome,
        milan.client().request_challenge().await.unwrap(),
    );
    let envelope = Envelope::sign(
        &rome,
        PEERING_REQUEST,
        &serde_json::to_vec(&document).unwrap(),
    )
    .unwrap();
    let answer = milan.post("/v1/peerings/end", &envelope).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(milan.cluster.tenants.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn ending_is_for_the_own_peering_only_and_may_be_repeated() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    let thief = ClusterIdentity::generate().unwrap();
    ask(&milan, &rome, "rome", Some("reusable")).await;
    assert_eq!(
        milan.client().end_peering(&thief).await.unwrap(),
        PeeringAnswer::Ended {}
    );
    let document = SignedEndRequest {
        challenge: milan.client().request_challenge().await.unwrap(),
        audience: milan.identity.id().to_string(),
        cluster_id: rome.id().to_string(),
    };
    let envelope = Envelope::sign(
        &thief,
        crate::protocol::PEERING_END,
        &serde_json::to_vec(&document).unwrap(),
    )
    .unwrap();
    assert!(
        milan
            .post("/v1/peerings/end", &envelope)
            .await
            .contains("IdentityMismatch")
    );
    assert_eq!(milan.cluster.tenants.lock().unwrap().len(), 1);
    for _ in 0..2 {
        assert_eq!(
            milan.client().end_peering(&rome).await.unwrap(),
            PeeringAnswer::Ended {}
        );
        assert_eq!(milan.cluster.tenants.lock().unwrap().len(), 0);
    }
}

#[tokio::test]
async fn a_provider_with_a_problem_is_told_of_the_end_again() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    ask(&milan, &rome, "rome", Some("reusable")).await;
    *milan.cluster.fails.lock().unwrap() = 2;
    assert!(
        milan
            .client()
            .end_peering_within(Duration::ZERO, &rome)
            .await
            .is_err()
    );
    let answer = milan
        .client()
        .end_peering_within(Duration::from_mins(1), &rome)
        .await;
    assert_eq!(answer.unwrap(), PeeringAnswer::Ended {});
    assert_eq!(milan.cluster.tenants.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn another_cluster_at_the_address_is_noticed() {
    let milan = Provider::start(InMemory::default()).await;
    let expected = ClusterIdentity::generate().unwrap();
    let client = AuthClient::new(
        &Tcp::network(),
        expected.id(),
        &format!("https://{}", milan.address),
    )
    .unwrap()
    .allow_loopback();
    let error = client.request_identification().await.unwrap_err();
    assert!(matches!(error, ClientError::Handshake { .. }), "{error}");
}

#[tokio::test]
async fn a_problem_of_the_provider_is_told_without_its_details() {
    let milan = Provider::start(InMemory {
        broken: true,
        ..InMemory::default()
    })
    .await;
    let rome = ClusterIdentity::generate().unwrap();
    let token = SecretText("reusable".to_owned());
    let applicant = Applicant {
        identity: &rome,
        cluster_name: "rome",
        token: Some(&token),
    };
    let error = milan
        .client()
        .request_peering(&applicant)
        .await
        .unwrap_err();
    let ClientError::Unavailable { message } = error else {
        panic!("{error}")
    };
    assert!(
        message.contains("log") && !message.contains("disk full"),
        "{message}"
    );
}

#[tokio::test]
async fn what_is_no_request_gets_a_plain_no() {
    let milan = Provider::start(InMemory::default()).await;
    let post = |body: &str| {
        format!(
            "POST /v1/peerings HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for body in ["", "{}", "[]", "\u{0}", "{\"payload\": 3}"] {
        let answer = milan.raw(post(body).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{body:?}: {answer}");
    }
    let answer = milan.raw(post(&"x".repeat(65 * 1024)).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(
        milan
            .raw(b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 404")
    );
    let long = format!("GET /ids HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
    let answer = milan.raw(long.as_bytes()).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    assert_eq!(
        milan
            .client()
            .request_identification()
            .await
            .unwrap()
            .cluster_name,
        "milan"
    );
}

/// Tries again when its connection made room for others, as a consumer does. The time is less than
/// those who crowd the provider would take one after another, and enough for a busy machine.
async fn is_let_in_soon(provider: &Provider, identity: &ClusterIdentity) {
    let token = SecretText("reusable".to_owned());
    let applicant = Applicant {
        identity,
        cluster_name: "rome",
        token: Some(&token),
    };
    let tries = async {
        while !matches!(
            provider.client().request_peering(&applicant).await,
            Ok(PeeringAnswer::Granted(_))
        ) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), tries)
        .await
        .unwrap();
}

#[tokio::test]
async fn silent_connections_do_not_keep_others_out() {
    let milan = Provider::start(InMemory::default()).await;
    let rome = ClusterIdentity::generate().unwrap();
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(TcpStream::connect(milan.address).await.unwrap());
    }
    // The oldest made room, long before the handshake timeout.
    let mut byte = [0];
    let closed = tokio::time::timeout(Duration::from_secs(3), silent[0].read(&mut byte))
        .await
        .unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    is_let_in_soon(&milan, &rome).await;
    // The server closes the others after the handshake timeout.
    let closed = tokio::time::timeout(Duration::from_secs(20), silent[499].read(&mut byte))
        .await
        .unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn a_body_that_never_arrives_is_not_waited_for() {
    let milan = Provider::start(InMemory::default()).await;
    let head = "POST /v1/peerings HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n";
    let answer = tokio::time::timeout(Duration::from_secs(10), milan.raw(head.as_bytes()))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn signed_requests_of_strangers_cost_the_cluster_nothing() {
    let milan = Arc::new(Provider::start(InMemory::default()).await);
    let flood = (0..200).map(|number| {
        let milan = Arc::clone(&milan);
        let token = (number % 2 == 0).then_some("guess");
        tokio::spawn(async move {
            ask(&milan, &ClusterIdentity::generate().unwrap(), "rome", token).await
        })
    });
    let flood: Vec<_> = flood.collect();
    let rome = ClusterIdentity::generate().unwrap();
    is_let_in_soon(&milan, &rome).await;
    for answer in flood {
        // Some are displaced, and their clients fail.
        if let Ok(answer) = answer.await {
            assert!(matches!(answer, PeeringAnswer::Denied(_)), "{answer:?}");
        }
    }
    let looks = *milan.cluster.looks.lock().unwrap();
    assert!(looks.0 <= 3 && looks.1 == 0, "{looks:?}");
}

#[tokio::test]
async fn one_tenant_that_renews_in_parallel_gets_one_turn_and_delays_nobody() {
    let milan = Arc::new(
        Provider::start(InMemory {
            delay: Duration::from_millis(200),
            ..InMemory::default()
        })
        .await,
    );
    let greedy = Arc::new(ClusterIdentity::generate().unwrap());
    ask(&milan, &greedy, "greedy", Some("reusable")).await;
    let renewals = (0..128).map(|_| {
        let (milan, greedy) = (Arc::clone(&milan), Arc::clone(&greedy));
        tokio::spawn(async move { ask(&milan, &greedy, "greedy", None).await })
    });
    let renewals: Vec<_> = renewals.collect();
    let rome = ClusterIdentity::generate().unwrap();
    is_let_in_soon(&milan, &rome).await;
    let mut granted = 0;
    for answer in futures::future::join_all(renewals).await {
        match answer {
            Ok(PeeringAnswer::Granted(_)) => granted += 1,
            Ok(other) => assert_eq!(reason(other), reasons::BUSY),
            // Displaced.
            Err(_) => {}
        }
    }
    assert!((1..=10).contains(&granted), "{granted}");
    assert!(
        milan
            .cluster
            .concurrent
            .lock()
            .unwrap()
            .iter()
            .all(|number| *number == 1)
    );
}
