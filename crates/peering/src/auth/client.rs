//! The consumer's side of the auth endpoint.
//!
//! Every call opens one connection to one address, checks that the expected cluster answers, and
//! ends within a few seconds. The client uses no proxy and follows no redirect.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use http::{Method, Request, StatusCode, Uri, header};
use hyper::body::Bytes;
use liqo_api::{CallReason, ClusterId};
use liqo_controller_runtime::{Network, network::BoxNetworkStream};
use liqo_signing::{ClusterIdentity, Envelope, EnvelopeError};
use liqo_tunnel_client::{AUTH_PORT, session::TunnelConnection};
use rustls::pki_types::ServerName;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::{
    decide::{access::reasons, addresses::only_local},
    exchange::exchange_http,
    protocol::{
        self, AccessRefusal, ChallengeAnswer, Identification, PEERING_END, PEERING_REQUEST,
        PeeringAnswer, PeeringRequest, SecretText, SignedEndRequest, paths, sanitized_text,
    },
    tls::{self, TlsConfigError},
};

/// Timeout of a call that changes nothing, connection included.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a call that makes the provider do something.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before a provider that was busy, or did not answer, is told again that the peering has
/// ended.
const END_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum length of an answer in bytes.
const MAX_ANSWER_LEN: usize = 256 * 1024;

/// Failure of a call to another cluster's auth endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not the URL of an auth endpoint.
    #[error(
        "{url:?} is not the URL of an auth endpoint ({problem}): it looks like https://203.0.113.5:30443"
    )]
    Url { url: String, problem: &'static str },
    /// The address means the machine that uses it.
    #[error(
        "{url} is an address that only the machine itself can reach: in the other cluster run `liqoctl install --set {flag}=...` with an address that this cluster can reach"
    )]
    Loopback {
        url: String,
        /// The setting to correct.
        flag: &'static str,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// Nothing listens there, or a firewall blocks it.
    #[error(
        "cannot connect to {address}: {source} (is the address right, and do firewalls let the port through? The other cluster announces the address that `--set authentication.address` sets there)"
    )]
    Connect {
        /// Host and port.
        address: String,
        #[source]
        source: std::io::Error,
    },
    /// The tunnel to the other cluster does not connect.
    #[error(
        "cannot connect to the other cluster through its tunnel: {0} (does UDP pass to its gateways, and is the token valid there? `liqoctl generate peer-command --through-tunnel` in the other cluster prints their current addresses)"
    )]
    Tunnel(#[source] std::io::Error),
    /// Something else answers, or not with TLS 1.3.
    #[error(
        "what answers at {address} did not prove to be cluster {expected}: {source} (correct the address or the cluster ID)"
    )]
    Handshake {
        /// Host and port.
        address: String,
        expected: ClusterId,
        #[source]
        source: std::io::Error,
    },
    /// The call took too long.
    #[error(
        "{address} did not answer within {seconds} s (is the address right, and do firewalls let the port through?)"
    )]
    Timeout {
        /// Host and port.
        address: String,
        /// The limit.
        seconds: u64,
    },
    /// The connection broke, or the answer was not HTTP.
    #[error("the call to {path} at {address} failed: {source}")]
    Http {
        /// Host and port.
        address: String,
        path: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// This version does not understand the answer.
    #[error(
        "this version of Liqo does not understand the answer of {address} to {path} (status {status}): are the versions in both clusters at most one apart?"
    )]
    Answer {
        /// Host and port.
        address: String,
        path: &'static str,
        status: StatusCode,
    },
    /// The other cluster has a problem of its own.
    #[error("the other cluster cannot answer at the moment: {message}")]
    Unavailable {
        /// The message in its answer.
        message: String,
    },
    /// The request could not be signed.
    #[error("cannot sign the request: {0}")]
    Sign(#[from] EnvelopeError),
}

impl ClientError {
    /// The reason in a condition.
    pub fn call_reason(&self) -> CallReason {
        match self {
            Self::Url { .. } => CallReason::InvalidUrl,
            Self::Loopback { .. } => CallReason::LoopbackAddress,
            Self::Handshake { .. } => CallReason::IdentityMismatch,
            Self::Connect { .. } | Self::Tunnel(_) | Self::Timeout { .. } | Self::Http { .. } => {
                CallReason::Unreachable
            }
            Self::Answer { .. } => CallReason::InvalidAnswer,
            Self::Unavailable { .. } => CallReason::Unavailable,
            Self::Tls(_) | Self::Sign(_) => CallReason::LocalError,
        }
    }

    /// Whether the same call may succeed a moment later.
    fn is_transient(&self) -> bool {
        use ClientError::{Connect, Http, Timeout, Tunnel, Unavailable};
        matches!(
            self,
            Connect { .. } | Tunnel(_) | Timeout { .. } | Http { .. } | Unavailable { .. }
        )
    }
}

/// A client of one cluster's auth endpoint.
#[derive(Clone, Debug)]
pub struct AuthClient {
    expected: ClusterId,
    url: String,
    host: String,
    port: u16,
    tls: Arc<rustls::ClientConfig>,
    network: Arc<dyn Network>,
    loopback: bool,
    tunnel: Option<Arc<TunnelConnection>>,
}

/// A consumer that asks for access, as it describes itself.
#[derive(Clone, Debug)]
pub struct Applicant<'a> {
    /// Its key.
    pub identity: &'a ClusterIdentity,
    /// Its friendly name.
    pub cluster_name: &'a str,
    /// The token for the first contact.
    pub token: Option<&'a SecretText>,
}

impl AuthClient {
    /// A client for the cluster with this ID, at this URL.
    pub fn new(
        network: &Arc<dyn Network>,
        expected: &ClusterId,
        url: &str,
    ) -> Result<Self, ClientError> {
        let bad = |problem| ClientError::Url {
            url: url.to_owned(),
            problem,
        };
        let parsed: Uri = url
            .trim_end_matches('/')
            .parse()
            .map_err(|_| bad("it is malformed"))?;
        if parsed.scheme_str() != Some("https") {
            return Err(bad("it does not start with https://"));
        }
        if parsed.path_and_query().is_some_and(|path| path != "/") {
            return Err(bad("it has a path"));
        }
        let authority = parsed.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(bad("it names no plain host"));
        }
        let port = match authority.port_u16() {
            Some(port) => port,
            None if authority.as_str() == authority.host() => 443,
            None => return Err(bad("its port is not a number")),
        };
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self {
            expected: expected.clone(),
            url: url.to_owned(),
            host,
            port,
            tls: Arc::new(tls::client_config(expected)?),
            network: Arc::clone(network),
            loopback: false,
            tunnel: None,
        })
    }

    /// Calls through the other cluster's tunnel. The URL then only serves as the host name.
    #[must_use]
    pub fn through_tunnel(mut self, tunnel: Option<Arc<TunnelConnection>>) -> Self {
        self.tunnel = tunnel;
        self
    }

    /// For tests: lets the client call its own machine.
    #[cfg(test)]
    #[must_use]
    pub fn allow_loopback(mut self) -> Self {
        self.loopback = true;
        self
    }

    /// Who answers. TLS has proved that it is the expected cluster.
    pub async fn request_identification(&self) -> Result<Identification, ClientError> {
        let (status, body) = self
            .call(Method::GET, paths::IDS, None, QUERY_TIMEOUT)
            .await?;
        let ids: Identification = self.parse_answer(paths::IDS, status, &body)?;
        if ids.cluster_id == self.expected {
            Ok(ids)
        } else {
            Err(self.unexpected_answer(paths::IDS, status))
        }
    }

    /// A challenge to sign.
    pub async fn request_challenge(&self) -> Result<String, ClientError> {
        let (status, body) = self
            .call(Method::GET, paths::CHALLENGE, None, QUERY_TIMEOUT)
            .await?;
        let answer: ChallengeAnswer = self.parse_answer(paths::CHALLENGE, status, &body)?;
        Ok(answer.challenge)
    }

    /// Requests access, or a new credential for access that was granted before.
    pub async fn request_peering(
        &self,
        applicant: &Applicant<'_>,
    ) -> Result<PeeringAnswer, ClientError> {
        self.send_signed(
            paths::PEERINGS,
            PEERING_REQUEST,
            applicant.identity,
            |challenge| PeeringRequest {
                challenge,
                audience: self.expected.to_string(),
                cluster_id: applicant.identity.id().to_string(),
                cluster_name: applicant.cluster_name.to_owned(),
                protocol: protocol::PROTOCOL,
                features: protocol::FEATURES.iter().map(ToString::to_string).collect(),
                token: applicant.token.cloned(),
            },
        )
        .await
    }

    /// Tells the provider that the peering has ended.
    pub async fn end_peering(
        &self,
        identity: &ClusterIdentity,
    ) -> Result<PeeringAnswer, ClientError> {
        self.send_signed(paths::END, PEERING_END, identity, |challenge| {
            SignedEndRequest {
                challenge,
                audience: self.expected.to_string(),
                cluster_id: identity.id().to_string(),
            }
        })
        .await
    }

    /// Tells the provider that the peering has ended, and tries again while the provider is busy or
    /// does not answer: one that does not know of the end keeps what it lent until the consumer
    /// counts as expired. After `limit` no new attempt is made.
    pub async fn end_peering_within(
        &self,
        limit: Duration,
        identity: &ClusterIdentity,
    ) -> Result<PeeringAnswer, ClientError> {
        let started = Instant::now();
        loop {
            let result = self.end_peering(identity).await;
            let may_change = match &result {
                Ok(PeeringAnswer::Denied(refusal)) => refusal.reason == reasons::BUSY,
                Ok(_) => false,
                Err(error) => error.is_transient(),
            };
            if !may_change || started.elapsed() + END_RETRY_DELAY >= limit {
                return result;
            }
            sleep(END_RETRY_DELAY).await;
        }
    }

    /// Sends a signed document with a fresh challenge; once more if the provider restarted in
    /// between.
    async fn send_signed<R: Serialize>(
        &self,
        path: &'static str,
        payload_type: &str,
        identity: &ClusterIdentity,
        document: impl Fn(String) -> R,
    ) -> Result<PeeringAnswer, ClientError> {
        let mut first = true;
        loop {
            let payload = serde_json::to_vec(&document(self.request_challenge().await?))
                .map_err(|error| self.http_error(path, error))?;
            let envelope = Envelope::sign(identity, payload_type, &payload)?;
            match self.submit(path, &envelope).await? {
                PeeringAnswer::Denied(refusal)
                    if first && refusal.reason == reasons::CHALLENGE_INVALID =>
                {
                    first = false;
                }
                answer => return Ok(answer),
            }
        }
    }

    /// Sends a signed document to one of [`paths`].
    pub async fn submit(
        &self,
        path: &'static str,
        envelope: &Envelope,
    ) -> Result<PeeringAnswer, ClientError> {
        let body = serde_json::to_vec(envelope).map_err(|error| self.http_error(path, error))?;
        let (status, answer) = self
            .call(Method::POST, path, Some(body), REQUEST_TIMEOUT)
            .await?;
        self.parse_answer(path, status, &answer)
    }

    fn parse_answer<A: DeserializeOwned>(
        &self,
        path: &'static str,
        status: StatusCode,
        body: &[u8],
    ) -> Result<A, ClientError> {
        if let Ok(answer) = serde_json::from_slice(body) {
            return Ok(answer);
        }
        match serde_json::from_slice::<AccessRefusal>(body) {
            Ok(refusal) => Err(ClientError::Unavailable {
                message: sanitized_text(&refusal.message),
            }),
            Err(_) => Err(self.unexpected_answer(path, status)),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &'static str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        timeout(limit, self.exchange(method, path, body))
            .await
            .map_err(|_| ClientError::Timeout {
                address: self.address(),
                seconds: limit.as_secs(),
            })?
    }

    async fn exchange(
        &self,
        method: Method,
        path: &'static str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (peer, stream) = self.connect().await.map_err(|source| match self.tunnel {
            Some(_) => ClientError::Tunnel(source),
            None => ClientError::Connect {
                address: self.address(),
                source,
            },
        })?;
        if !self.loopback && self.tunnel.is_none() && only_local(peer) {
            return Err(ClientError::Loopback {
                url: self.url.clone(),
                flag: "authentication.address",
            });
        }
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(ServerName::from(peer), stream)
            .await
            .map_err(|source| ClientError::Handshake {
                address: self.address(),
                expected: self.expected.clone(),
                source,
            })?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(body.unwrap_or_default())
            .map_err(|error| self.http_error(path, error))?;
        exchange_http(stream, request, MAX_ANSWER_LEN)
            .await
            .map_err(|error| self.http_error(path, error))
    }

    async fn connect(&self) -> std::io::Result<(IpAddr, BoxNetworkStream)> {
        if let Some(tunnel) = &self.tunnel {
            // The name means nothing: the certificate is bound to the cluster's key.
            return Ok((
                Ipv6Addr::UNSPECIFIED.into(),
                Box::new(tunnel.connect(AUTH_PORT).await?),
            ));
        }
        let (stream, peer) = self
            .network
            .connect(&self.host, self.port, |_| true)
            .await?;
        Ok((peer.ip(), stream))
    }

    /// What is called, for error texts.
    fn address(&self) -> String {
        if self.tunnel.is_some() {
            "the other cluster's tunnel".to_owned()
        } else {
            self.authority()
        }
    }

    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn http_error(
        &self,
        path: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ClientError {
        ClientError::Http {
            address: self.address(),
            path,
            source: source.into(),
        }
    }

    fn unexpected_answer(&self, path: &'static str, status: StatusCode) -> ClientError {
        ClientError::Answer {
            address: self.address(),
            path,
            status,
        }
    }
}

#[cfg(test)]
mod tests {
    use liqo_controller_runtime::Tcp;
    use liqo_tunnel_client::session::{DialConfig, dial};

    use super::*;

    fn client(url: &str) -> Result<AuthClient, ClientError> {
        AuthClient::new(&Tcp::network(), &ClusterId::of_public_key(&[1; 32]), url)
    }

    #[test]
    fn urls_of_auth_endpoints_are_understood() {
        for (url, address) in [
            ("https://203.0.113.5:30443", "203.0.113.5:30443"),
            ("https://203.0.113.5:30443/", "203.0.113.5:30443"),
            ("https://milan.example", "milan.example:443"),
            ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443"),
        ] {
            assert_eq!(client(url).unwrap().address(), address);
        }
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "",
            "milan:443",
            "http://203.0.113.5",
            "https://",
            "https://a/b",
            "https://a?b",
            "https://u@h",
            "https://a:b",
        ] {
            assert!(
                matches!(client(url), Err(ClientError::Url { .. })),
                "{url:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_loopback_address_is_refused_with_the_flag_to_set() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://localhost:{}",
            listener.local_addr().unwrap().port()
        );
        let error = client(&url)
            .unwrap()
            .request_identification()
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::Loopback { .. }), "{error}");
        assert!(
            error.to_string().contains("--set authentication.address"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_closed_port_is_reported_as_such() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        drop(listener);
        let error = client(&url)
            .unwrap()
            .request_identification()
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    }

    #[tokio::test]
    async fn who_is_called_through_a_tunnel_that_does_not_answer_is_told_of_the_tunnel() {
        let tunnel = dial(DialConfig {
            private_key: [1; 32],
            gateways: Vec::new(),
        })
        .unwrap();
        let client = client("https://203.0.113.5:30443")
            .unwrap()
            .through_tunnel(Some(tunnel.into()));
        let text = client
            .request_identification()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("no gateway of the other cluster answers (UDP)"),
            "{text}"
        );
        assert!(
            !text.contains("203.0.113.5") && !text.contains("authentication.address"),
            "{text}"
        );
        assert_eq!(client.authority(), "203.0.113.5:30443");
    }
}
