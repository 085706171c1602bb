//! A consumer's credential: the provider's API server, its CA, and a token. A Secret in the
//! consumer's own cluster stores it, so after a restart the consumer does not have to request
//! access again.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use data_encoding::BASE64URL_NOPAD;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::Secret,
    },
};
use kube::{Config, api::ObjectMeta};
use liqo_api::{PeeringTimes, labels};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, de::DeserializeOwned};

use super::addresses::{is_local, only_local};
use crate::protocol::{AccessGrant, GrantedApiServer, SecretText};

/// Name of the Secret, in the provider namespace.
pub const CREDENTIAL_SECRET: &str = "credential";

/// Shortest and longest lifetime of a token, in seconds.
const MIN_LIFE: i64 = PeeringTimes::MIN_CREDENTIAL_LIFETIME_SECONDS as i64;
const MAX_LIFE: i64 = PeeringTimes::MAX_CREDENTIAL_LIFETIME_SECONDS as i64;

/// Maximum difference of the clocks of two nodes in seconds: one may have stored a credential, the
/// other reads it.
pub const MAX_CLOCK_DIFFERENCE: i64 = 300;

/// Timeout of connecting to a provider's API server.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

const SERVER: &str = "server";
const CA: &str = "ca";
const TOKEN: &str = "token";
const ISSUED_AT: &str = "issued-at";
const EXPIRES_AT: &str = "expires-at";
const TENANT_NAMESPACE: &str = "tenant-namespace";
const PROTOCOL_VERSION: &str = "protocol-version";
const PROVIDER_NAME: &str = "provider-name";

/// The data for the renewal of a credential at the provider's API server.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRenewal {
    /// The namespace of our account there.
    pub namespace: String,
    pub account: String,
    pub request: TokenRequest,
}

/// The part of a `ServiceAccount`'s token that says which account it is for, and to which Secret it
/// is bound.
#[derive(Deserialize)]
struct TokenClaims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: KubernetesClaims,
}

/// The part of a token that says how long it lives, in seconds since 1970 by the clock of the API
/// server that issued it.
#[derive(Deserialize)]
struct TokenValidity {
    iat: i64,
    exp: i64,
}

#[derive(Deserialize)]
struct KubernetesClaims {
    namespace: String,
    serviceaccount: NamedClaim,
    secret: NamedClaim,
}

#[derive(Deserialize)]
struct NamedClaim {
    name: String,
    uid: String,
}

/// A grant with its times, by the clock of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub api_server: GrantedApiServer,
    /// A bearer token.
    pub token: SecretText,
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    /// Our namespace at the provider.
    pub tenant_namespace: String,
    pub protocol_version: u32,
    pub provider_name: String,
}

/// The reason why a grant cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// The address of the API server is not an `https://` URL.
    #[error(
        "the provider's address of its API server is not an https:// URL: correct `--set apiServer.address` there"
    )]
    Server,
    /// The address of the API server means the machine itself, or machines of one link.
    #[error(
        "only the provider itself can reach the address that it gave for its API server: correct `--set apiServer.address` there"
    )]
    LocalServer,
    #[error(
        "the provider gave no certificate (PEM) for its API server: correct `--set apiServer.ca` there"
    )]
    Ca,
    #[error("the provider gave a tenant namespace that is not ours")]
    TenantNamespace,
}

impl Credential {
    /// Makes a credential from a grant that was received at `now`.
    pub fn from_grant(grant: AccessGrant, now: Timestamp) -> Self {
        let life = token_lifetime(
            &grant.token.0,
            i64::try_from(grant.expiration_seconds).unwrap_or(i64::MAX),
        );
        Self {
            api_server: grant.api_server,
            token: grant.token,
            issued_at: now,
            expires_at: Timestamp::from_second(now.as_second().saturating_add(life)).unwrap_or(now),
            tenant_namespace: grant.tenant_namespace,
            protocol_version: grant.protocol_version,
            provider_name: grant.provider_name,
        }
    }

    /// Reads a stored credential. Returns none if it is incomplete: then a new grant replaces it.
    pub fn of_secret(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| {
            data.get(key)
                .and_then(|bytes| String::from_utf8(bytes.0.clone()).ok())
        };
        Some(Self {
            api_server: GrantedApiServer {
                url: text(SERVER)?,
                ca: text(CA)?,
            },
            token: SecretText(text(TOKEN)?),
            issued_at: text(ISSUED_AT)?.parse().ok()?,
            expires_at: text(EXPIRES_AT)?.parse().ok()?,
            tenant_namespace: text(TENANT_NAMESPACE)?,
            protocol_version: text(PROTOCOL_VERSION)?.parse().ok()?,
            provider_name: text(PROVIDER_NAME)?,
        })
    }

    pub fn to_secret(&self) -> Secret {
        let version = self.protocol_version.to_string();
        let (issued_at, expires_at) = (self.issued_at.to_string(), self.expires_at.to_string());
        let data = [
            (SERVER, &self.api_server.url),
            (CA, &self.api_server.ca),
            (TOKEN, &self.token.0),
            (ISSUED_AT, &issued_at),
            (EXPIRES_AT, &expires_at),
            (TENANT_NAMESPACE, &self.tenant_namespace),
            (PROTOCOL_VERSION, &version),
            (PROVIDER_NAME, &self.provider_name),
        ];
        let data = data
            .into_iter()
            .map(|(key, value)| (key.to_owned(), ByteString(value.clone().into_bytes())))
            .collect();
        Secret {
            metadata: ObjectMeta {
                name: Some(CREDENTIAL_SECRET.to_owned()),
                labels: Some(BTreeMap::from([(
                    labels::MANAGED.to_owned(),
                    "true".to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            data: Some(data),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        }
    }

    /// Time from `now` until it should be renewed: at 60% of its life, at once if it has expired.
    /// It is never younger than new, so a clock that was set back changes little.
    pub fn renew_in(&self, now: Timestamp) -> Duration {
        let whole = self.lifetime_seconds().saturating_mul(3) / 5;
        let due = self.issued_at.as_second().saturating_add(whole);
        Duration::from_secs(
            u64::try_from(due.saturating_sub(now.as_second()).min(whole)).unwrap_or(0),
        )
    }

    /// In seconds.
    fn lifetime_seconds(&self) -> i64 {
        self.expires_at
            .as_second()
            .saturating_sub(self.issued_at.as_second())
    }

    /// The same credential with times that are earlier by as much as clocks may differ. Another
    /// node may have stored it: if its clock was ahead of this one, the credential is older than it
    /// looks.
    #[must_use]
    pub fn with_clock_margin(self) -> Self {
        Self {
            issued_at: with_margin(self.issued_at),
            expires_at: with_margin(self.expires_at),
            ..self
        }
    }

    /// The data to renew it at the provider's API server for its own lifetime; none if its token
    /// does not say what it is bound to.
    pub fn renewal(&self) -> Option<TokenRenewal> {
        Self::renewal_of(&self.token.0, self.lifetime_seconds())
    }

    /// The same for a token and a lifetime in seconds.
    pub(crate) fn renewal_of(token: &str, life: i64) -> Option<TokenRenewal> {
        let TokenClaims {
            kubernetes:
                KubernetesClaims {
                    namespace,
                    serviceaccount,
                    secret,
                },
        } = read_claims(token)?;
        // The provider wrote the token, and these become a path.
        if ![&namespace, &serviceaccount.name]
            .into_iter()
            .all(|name| is_object_name(name))
        {
            return None;
        }
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: Some(secret.name),
            uid: Some(secret.uid),
        };
        let spec = TokenRequestSpec {
            bound_object_ref: Some(bound),
            expiration_seconds: Some(life.clamp(MIN_LIFE, MAX_LIFE)),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest {
            metadata: ObjectMeta::default(),
            spec,
            status: None,
        };
        Some(TokenRenewal {
            namespace,
            account: serviceaccount.name,
            request,
        })
    }

    /// The same credential with the answer to a [`TokenRenewal`] that arrived at `now`; none if
    /// there is no token in it.
    pub fn with_renewed_token(&self, answer: TokenRequest, now: Timestamp) -> Option<Self> {
        let token = answer
            .status
            .map(|status| status.token)
            .filter(|token| !token.is_empty())?;
        let life = token_lifetime(&token, answer.spec.expiration_seconds.unwrap_or(MIN_LIFE));
        let expires_at = Timestamp::from_second(now.as_second().saturating_add(life)).ok()?;
        Some(Self {
            token: SecretText(token),
            issued_at: now,
            expires_at,
            ..self.clone()
        })
    }

    /// Whether it has not expired.
    pub fn is_usable(&self, now: Timestamp) -> bool {
        now < self.expires_at
    }

    /// Whether it has not expired by some clock: then it is worth a request.
    pub fn may_be_usable(&self, now: Timestamp) -> bool {
        now.as_second()
            < self
                .expires_at
                .as_second()
                .saturating_add(MAX_CLOCK_DIFFERENCE)
    }

    /// Whether clients that were created for `other` also work with this credential's token.
    pub fn serves_same_clients(&self, other: &Self) -> bool {
        self.api_server == other.api_server
            && self.tenant_namespace == other.tenant_namespace
            && self.protocol_version == other.protocol_version
            && self.provider_name == other.provider_name
    }

    /// Checks what the provider said, and returns a client configuration without the token.
    pub fn client_config(&self, expected_namespace: &str) -> Result<Config, CredentialError> {
        if self.tenant_namespace != expected_namespace {
            return Err(CredentialError::TenantNamespace);
        }
        let url: http::Uri = self
            .api_server
            .url
            .parse()
            .map_err(|_| CredentialError::Server)?;
        let host = url
            .host()
            .filter(|_| url.scheme_str() == Some("https"))
            .ok_or(CredentialError::Server)?;
        if is_local(host) || names_no_server(host) {
            return Err(CredentialError::LocalServer);
        }
        let roots: Result<Vec<Vec<u8>>, _> =
            CertificateDer::pem_slice_iter(self.api_server.ca.as_bytes())
                .map(|found| found.map(|der| der.to_vec()))
                .collect();
        let roots = roots
            .ok()
            .filter(|roots| !roots.is_empty())
            .ok_or(CredentialError::Ca)?;
        let mut config = Config::new(url);
        config.root_cert = Some(roots);
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.default_namespace.clone_from(&self.tenant_namespace);
        Ok(config)
    }
}

impl TokenRenewal {
    /// The same for the shortest lifetime, which every provider allows; none if this is it. The
    /// provider may allow less than it did when it granted the credential.
    pub fn with_shortest_lifetime(mut self) -> Option<Self> {
        let before = self.request.spec.expiration_seconds.replace(MIN_LIFE);
        (before != Some(MIN_LIFE)).then_some(self)
    }
}

/// Lifetime of a token in seconds: as the token says, and at most `said`. The API server may issue
/// it for a shorter time than was asked for.
fn token_lifetime(token: &str, said: i64) -> i64 {
    let validity = read_claims::<TokenValidity>(token)
        .and_then(|validity| validity.exp.checked_sub(validity.iat));
    validity.unwrap_or(said).min(said).clamp(0, MAX_LIFE)
}

/// Reads the claims of a token. Nothing here checks its signature.
fn read_claims<C: DeserializeOwned>(token: &str) -> Option<C> {
    let payload = BASE64URL_NOPAD
        .decode(token.split('.').nth(1)?.as_bytes())
        .ok()?;
    serde_json::from_slice(&payload).ok()
}

fn with_margin(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second().saturating_sub(MAX_CLOCK_DIFFERENCE))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Whether no API server of another cluster has this host: see [`is_no_server`]. Also what looks
/// like a name, but resolves as an IPv4 address in an unusual form, such as `2130706433` or
/// `0x7f.1`. What other names resolve to is checked when a connection is made.
fn names_no_server(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(address) => is_no_server(address),
        Err(_) => host
            .to_ascii_lowercase()
            .trim_end_matches('.')
            .rsplit('.')
            .next()
            .is_some_and(is_number),
    }
}

fn is_number(label: &str) -> bool {
    label.starts_with("0x") || label.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether no API server of another cluster has this address: it means this machine, its link, with
/// metadata services, or many machines. Private addresses are allowed, because clusters of one
/// organisation have them.
pub(crate) fn is_no_server(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    only_local(address) || address.is_multicast() || is_broadcast
}

/// Whether a text can be the name of an object, and so a part of a path.
fn is_object_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    !text.is_empty()
        && text.len() <= 253
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The credential in a Secret that is not being deleted.
pub fn stored_credential(secret: Option<Secret>) -> Option<Credential> {
    secret
        .filter(|secret| secret.metadata.deletion_timestamp.is_none())
        .as_ref()
        .and_then(Credential::of_secret)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::authentication::v1::TokenRequestStatus, apimachinery::pkg::apis::meta::v1::Time,
    };
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn a_grant() -> AccessGrant {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let ca = rcgen::CertificateParams::new(vec!["ca".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap()
            .pem();
        AccessGrant {
            tenant_namespace: "liqo-tenant-x".into(),
            api_server: GrantedApiServer {
                url: "https://203.0.113.5:6443".into(),
                ca,
            },
            token: SecretText("t".into()),
            expiration_seconds: 3600,
            protocol_version: 1,
            provider_name: "milan".into(),
        }
    }

    fn credential() -> Credential {
        Credential::from_grant(a_grant(), now())
    }

    #[test]
    fn a_credential_survives_its_secret() {
        let one = credential();
        assert_eq!(Credential::of_secret(&one.to_secret()), Some(one));
    }

    #[test]
    fn a_credential_is_renewed_at_sixty_percent_of_its_life() {
        let credential = credential();
        assert_eq!(credential.renew_in(now()), Duration::from_mins(36));
        assert_eq!(
            credential.renew_in("2026-06-01T12:40:00Z".parse().unwrap()),
            Duration::ZERO
        );
        assert!(credential.is_usable("2026-06-01T12:59:59Z".parse().unwrap()));
        assert!(!credential.is_usable("2026-06-01T13:00:00Z".parse().unwrap()));
    }

    #[test]
    fn an_absurd_lifetime_does_no_harm() {
        let mut grant = credential();
        grant.expires_at = Timestamp::MAX;
        assert!(grant.renew_in(now()) > Duration::ZERO);
        let granted = AccessGrant {
            expiration_seconds: u64::MAX,
            ..a_grant()
        };
        assert_eq!(
            Credential::from_grant(granted, now()).renew_in(now()),
            Duration::from_mins(24 * 60 * 3 / 5)
        );
        grant = credential();
        grant.expires_at = now();
        assert_eq!(grant.renew_in(now()), Duration::ZERO);
    }

    #[test]
    fn what_a_provider_says_is_checked_before_it_is_used() {
        let good = credential();
        assert!(good.client_config("liqo-tenant-x").is_ok());
        assert_eq!(
            good.client_config("liqo-tenant-y").unwrap_err(),
            CredentialError::TenantNamespace
        );
        let at = |url: &str| Credential {
            api_server: GrantedApiServer {
                url: url.into(),
                ca: good.api_server.ca.clone(),
            },
            ..good.clone()
        };
        assert_eq!(
            at("https://127.0.0.1:6443")
                .client_config("liqo-tenant-x")
                .unwrap_err(),
            CredentialError::LocalServer
        );
        for nowhere in [
            "169.254.169.254",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "255.255.255.255",
            "2130706433",
            "0x7f.1",
            "127.1",
            "0177.0.0.1.",
        ] {
            let refused = at(&format!("https://{nowhere}:6443")).client_config("liqo-tenant-x");
            assert_eq!(
                refused.unwrap_err(),
                CredentialError::LocalServer,
                "{nowhere}"
            );
        }
        for private in [
            "10.0.0.7",
            "[fd00::7]",
            "api.milan.example",
            "api.7eleven.example",
        ] {
            assert!(
                at(&format!("https://{private}:6443"))
                    .client_config("liqo-tenant-x")
                    .is_ok(),
                "{private}"
            );
        }
        assert_eq!(
            at("http://203.0.113.5")
                .client_config("liqo-tenant-x")
                .unwrap_err(),
            CredentialError::Server
        );
        let mut bare = good.clone();
        bare.api_server.ca = "no certificate".into();
        assert_eq!(
            bare.client_config("liqo-tenant-x").unwrap_err(),
            CredentialError::Ca
        );
    }

    fn token_with(claims: &serde_json::Value) -> SecretText {
        SecretText(format!(
            "e30.{}.c2ln",
            BASE64URL_NOPAD.encode(claims.to_string().as_bytes())
        ))
    }

    fn token_for(namespace: &str) -> SecretText {
        token_with(&serde_json::json!({ "sub": "x", "kubernetes.io": {
            "namespace": namespace,
            "serviceaccount": { "name": "liqo-consumer-x", "uid": "1" },
            "secret": { "name": "liqo-consumer-x", "uid": "2" },
        }}))
    }

    /// A token that an API server whose clock differs by `offset` issues at `now` for `life`
    /// seconds.
    fn token_of(life: i64, offset: i64) -> SecretText {
        let iat = now().as_second() + offset;
        token_with(&serde_json::json!({ "iat": iat, "nbf": iat, "exp": iat + life }))
    }

    #[test]
    fn a_token_says_how_to_renew_it_and_cannot_name_another_path() {
        let credential = Credential {
            token: token_for("liqo"),
            ..credential()
        };
        let renewal = credential.renewal().unwrap();
        assert_eq!(
            (renewal.namespace.as_str(), renewal.account.as_str()),
            ("liqo", "liqo-consumer-x")
        );
        let bound = renewal.request.spec.bound_object_ref.unwrap();
        assert_eq!(
            (bound.name.as_deref(), bound.uid.as_deref()),
            (Some("liqo-consumer-x"), Some("2"))
        );
        for token in [
            token_for("../../x"),
            token_for(""),
            SecretText("opaque".into()),
            SecretText("a.b.c".into()),
        ] {
            assert_eq!(
                Credential {
                    token,
                    ..credential.clone()
                }
                .renewal(),
                None
            );
        }
    }

    #[test]
    fn a_credential_is_renewed_for_its_own_lifetime_within_the_limits() {
        for (life, asked) in [(3600, 3600), (7200, 7200), (86_400, 86_400), (60, 600)] {
            let grant = AccessGrant {
                token: token_for("liqo"),
                expiration_seconds: life,
                ..a_grant()
            };
            let renewal = Credential::from_grant(grant, now()).renewal().unwrap();
            assert_eq!(renewal.request.spec.expiration_seconds, Some(asked));
            let shortest = renewal.with_shortest_lifetime();
            assert_eq!(
                shortest.map(|renewal| renewal.request.spec.expiration_seconds),
                (asked != 600).then_some(Some(600))
            );
        }
    }

    #[test]
    fn a_token_that_lives_shorter_than_was_asked_for_is_renewed_by_its_own_lifetime() {
        let grant = AccessGrant {
            token: token_of(1000, 0),
            expiration_seconds: 7200,
            ..a_grant()
        };
        assert_eq!(
            Credential::from_grant(grant, now()).renew_in(now()),
            Duration::from_mins(10)
        );
        let answer = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            },
            status: Some(TokenRequestStatus {
                token: token_of(1000, 0).0,
                expiration_timestamp: Time(now()),
            }),
            ..TokenRequest::default()
        };
        assert_eq!(
            credential()
                .with_renewed_token(answer, now())
                .unwrap()
                .renew_in(now()),
            Duration::from_mins(10)
        );
        // A token with absurd times does no harm.
        for (iat, exp) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (5, 1)] {
            let token = token_with(&serde_json::json!({ "iat": iat, "exp": exp }));
            let credential = Credential::from_grant(AccessGrant { token, ..a_grant() }, now());
            assert!(credential.renew_in(now()) <= Duration::from_mins(36));
        }
    }

    #[test]
    fn a_renewed_credential_has_a_new_token_and_at_most_a_day() {
        let credential = credential();
        let answer = |token: &str| TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(i64::MAX),
                ..TokenRequestSpec::default()
            },
            status: Some(TokenRequestStatus {
                token: token.to_owned(),
                expiration_timestamp: Time(now()),
            }),
            ..TokenRequest::default()
        };
        let later = "2026-06-01T12:50:00Z".parse().unwrap();
        let renewed = credential.with_renewed_token(answer("new"), later).unwrap();
        assert_eq!(
            (renewed.token.0.as_str(), renewed.renew_in(later)),
            ("new", Duration::from_mins(24 * 60 * 3 / 5))
        );
        assert!(renewed.serves_same_clients(&credential));
        assert_eq!(credential.with_renewed_token(answer(""), later), None);
    }

    #[test]
    fn an_incomplete_secret_is_as_good_as_none() {
        let mut secret = credential().to_secret();
        secret.data.as_mut().unwrap().remove("token");
        assert_eq!(Credential::of_secret(&secret), None);
    }

    fn mutated_credentials() -> impl Strategy<Value = Credential> {
        let good = credential();
        let url = prop_oneof![
            Just(good.api_server.url.clone()),
            mutated_text(Just(good.api_server.url.clone()))
        ];
        let ca = prop_oneof![
            Just(good.api_server.ca.clone()),
            mutated_text(Just(good.api_server.ca.clone()))
        ];
        let namespace = prop_oneof![
            Just(good.tenant_namespace.clone()),
            mutated_text(Just(good.tenant_namespace.clone()))
        ];
        (url, ca, namespace).prop_map(move |(url, ca, tenant_namespace)| Credential {
            api_server: GrantedApiServer { url, ca },
            tenant_namespace,
            ..good.clone()
        })
    }

    proptest! {
        /// The provider's clock differs from the consumer's, and the node that reads the credential
        /// has another clock than the one that stored it.
        #[test]
        fn a_credential_is_renewed_before_it_expires_although_clocks_differ_by_five_minutes(
            life in MIN_LIFE..=MAX_LIFE,
            provider in -MAX_CLOCK_DIFFERENCE..=MAX_CLOCK_DIFFERENCE,
            reader in -MAX_CLOCK_DIFFERENCE..=MAX_CLOCK_DIFFERENCE,
            age in 0..MAX_LIFE,
        ) {
            let expiration_seconds = u64::try_from(life).unwrap();
            let grant = AccessGrant { token: token_of(life, provider), expiration_seconds, ..a_grant() };
            let issued = Credential::from_grant(grant, now());
            let at = |seconds: i64| Timestamp::from_second(now().as_second() + seconds).unwrap();
            // The process that got it renews it in time, whatever the provider's clock shows.
            prop_assert_eq!(issued.renew_in(at(0)), Duration::from_secs(expiration_seconds * 3 / 5));
            // Another node, on which the process starts when the credential has this age, does so,
            // too.
            let age = age.min(life - 1);
            let seen = at(age + reader);
            prop_assert!(issued.may_be_usable(seen), "it still works, and counts as worthless");
            let renewed_at = age + i64::try_from(issued.with_clock_margin().renew_in(seen).as_secs()).unwrap();
            prop_assert!(renewed_at <= age.max(life * 3 / 5), "renewed at the age of {} s of {}", renewed_at, life);
        }

        #[test]
        fn a_mutated_grant_is_refused_or_leads_to_another_machine_by_https(credential in mutated_credentials()) {
            if let Ok(config) = credential.client_config("liqo-tenant-x") {
                prop_assert_eq!(config.cluster_url.scheme_str(), Some("https"));
                prop_assert!(config.cluster_url.host().is_some_and(|host| !host.is_empty() && !is_local(host)));
                prop_assert_eq!(config.default_namespace, "liqo-tenant-x");
                prop_assert!(config.root_cert.is_some_and(|roots| !roots.is_empty()));
            }
            prop_assert_eq!(Credential::of_secret(&credential.to_secret()), Some(credential));
        }
    }
}
