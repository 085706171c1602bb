//! Authenticates and authorises callers as a kubelet does.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::https_listener::ClientCertificate;

/// Lifetime of a cached answer of the API server.
const CACHE_DURATION: Duration = Duration::from_secs(10);
/// Maximum number of cached answers.
const MAX_CACHED: usize = 1000;
/// Longer tokens are refused.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// The access that a call needs: a verb on a subresource of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NodeAccess {
    verb: &'static str,
    part: &'static str,
}

impl NodeAccess {
    /// To run commands, or to open a connection to a pod.
    pub(super) const CONNECT: Self = Self {
        verb: "create",
        part: "proxy",
    };

    /// To read one subresource of a node.
    pub(super) const fn to_read(part: &'static str) -> Self {
        Self { verb: "get", part }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessDenied {
    #[error("no client certificate or bearer token that this cluster accepts")]
    Unauthenticated,
    #[error("{user} may not {} nodes/{} of node {node}", access.verb, access.part)]
    Forbidden {
        user: String,
        node: String,
        access: NodeAccess,
    },
    #[error("asking the API server about the caller: {0}")]
    Review(#[source] kube::Error),
}

impl AccessDenied {
    pub(super) fn status_code(&self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::Review(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Caller {
    user: String,
    groups: Vec<String>,
    uid: Option<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Asks the API server, and caches its answers.
pub(super) struct AccessReviewer {
    client: Client,
    tokens: AnswerCache<String, Caller>,
    grants: AnswerCache<(Caller, String, NodeAccess), bool>,
}

impl AccessReviewer {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            tokens: AnswerCache::default(),
            grants: AnswerCache::default(),
        }
    }

    /// Succeeds if the caller has access.
    pub(super) async fn check_access(
        &self,
        client: &ClientCertificate,
        headers: &HeaderMap,
        node: &str,
        access: NodeAccess,
    ) -> Result<(), AccessDenied> {
        let caller = match client.0.as_ref().and_then(caller_of_certificate) {
            Some(caller) => caller,
            None => self.authenticate_token(headers).await?,
        };
        // Access to the whole node (`proxy`) includes each part, as in clusters that don't know the
        // parts yet.
        for part in [access.part, "proxy"] {
            if self
                .is_authorized(&caller, node, NodeAccess { part, ..access })
                .await?
            {
                return Ok(());
            }
            if access.part == "proxy" {
                break;
            }
        }
        Err(AccessDenied::Forbidden {
            user: caller.user,
            node: node.to_owned(),
            access,
        })
    }

    async fn authenticate_token(&self, headers: &HeaderMap) -> Result<Caller, AccessDenied> {
        let token = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let token = token
            .filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN_LEN)
            .ok_or(AccessDenied::Unauthenticated)?;
        if let Some(caller) = self.tokens.get(&token.to_owned(), Instant::now()) {
            return Ok(caller);
        }
        let spec = TokenReviewSpec {
            token: Some(token.to_owned()),
            audiences: None,
        };
        let review = TokenReview {
            spec,
            ..TokenReview::default()
        };
        let review = Api::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(AccessDenied::Review)?;
        let status = review
            .status
            .filter(|status| status.authenticated == Some(true))
            .ok_or(AccessDenied::Unauthenticated)?;
        let user = status.user.unwrap_or_default();
        let caller = Caller {
            user: user
                .username
                .filter(|name| !name.is_empty())
                .ok_or(AccessDenied::Unauthenticated)?,
            groups: user.groups.unwrap_or_default(),
            uid: user.uid,
            extra: user.extra.unwrap_or_default(),
        };
        self.tokens
            .put(token.to_owned(), caller.clone(), Instant::now());
        Ok(caller)
    }

    async fn is_authorized(
        &self,
        caller: &Caller,
        node: &str,
        access: NodeAccess,
    ) -> Result<bool, AccessDenied> {
        let key = (caller.clone(), node.to_owned(), access);
        if let Some(granted) = self.grants.get(&key, Instant::now()) {
            return Ok(granted);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(caller.user.clone()),
                groups: Some(caller.groups.clone()),
                uid: caller.uid.clone(),
                extra: Some(caller.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(access.verb.into()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(access.part.into()),
                    name: Some(node.into()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let review = Api::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await
            .map_err(AccessDenied::Review)?;
        let granted = review
            .status
            .is_some_and(|status| status.allowed && status.denied != Some(true));
        self.grants.put(key, granted, Instant::now());
        Ok(granted)
    }
}

/// The user (CN) and groups (O) of a client certificate, which the TLS handshake verified.
fn caller_of_certificate(certificate: &CertificateDer<'static>) -> Option<Caller> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let user = subject
        .iter_common_name()
        .next()?
        .as_str()
        .ok()
        .filter(|name| !name.is_empty())?
        .to_owned();
    let mut groups: Vec<String> = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok().map(str::to_owned))
        .collect();
    groups.push("system:authenticated".into());
    Some(Caller {
        user,
        groups,
        uid: None,
        extra: BTreeMap::new(),
    })
}

/// Cached answers.
struct AnswerCache<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K, V> Default for AnswerCache<K, V> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq, V: Clone> AnswerCache<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        let known = self.0.lock();
        known
            .get(key)
            .filter(|(_, end)| now < *end)
            .map(|(value, _)| value.clone())
    }

    fn put(&self, key: K, value: V, now: Instant) {
        let mut known = self.0.lock();
        if known.len() >= MAX_CACHED {
            known.retain(|_, (_, end)| now < *end);
        }
        if known.len() < MAX_CACHED {
            known.insert(key, (value, now + CACHE_DURATION));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cached_for_ten_seconds() {
        let (cache, start) = (AnswerCache::default(), Instant::now());
        cache.put("k", true, start);
        assert_eq!(cache.get(&"k", start + Duration::from_secs(9)), Some(true));
        assert_eq!(cache.get(&"k", start + Duration::from_secs(10)), None);
    }

    #[test]
    fn the_cache_does_not_grow_without_end_and_drops_old_answers() {
        let (cache, start) = (AnswerCache::default(), Instant::now());
        for key in 0..2 * MAX_CACHED {
            cache.put(key, true, start);
        }
        assert_eq!(cache.0.lock().len(), MAX_CACHED);
        cache.put(usize::MAX, true, start + CACHE_DURATION);
        assert_eq!(cache.0.lock().len(), 1);
    }
}
