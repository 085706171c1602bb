//! Who may read the catalog: callers with a token that this cluster issued for the catalog, and with the right to get its path.

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

/// For whom a token must be. Those for the API server are refused, so nobody has a reason to send one here.
pub const AUDIENCE: &str = "liqo-broker-catalog";
/// Longer tokens are refused.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// Why a caller may not read.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// No token, one that this cluster does not know, or one for somebody else.
    #[error("no valid bearer token for the catalog: `kubectl create token NAME --audience {AUDIENCE}` creates one")]
    Unauthenticated,
    /// The right is missing.
    #[error("{user} may not get {path}: bind the ClusterRole liqo-broker-catalog-reader")]
    Forbidden { user: String, path: String },
    /// The API server does not answer.
    #[error("asking the API server about the caller: {0}")]
    Review(#[source] kube::Error),
}

impl Denied {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden { .. } => StatusCode::FORBIDDEN,
            Self::Review(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// The bearer token of a request.
fn token(headers: &HeaderMap) -> Option<&str> {
    let token = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    Some(token).filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN_LEN)
}

/// Whether the token is valid, and for the catalog. An authenticator that ignores audiences names none.
fn is_accepted(status: &TokenReviewStatus) -> bool {
    let audiences = status.audiences.as_deref().unwrap_or_default();
    status.authenticated == Some(true) && audiences.iter().any(|audience| audience == AUDIENCE)
}

/// Succeeds if the API server knows the token as one for the catalog, and its user may get this path. There are few calls, so no
/// answer is cached.
pub async fn admit(client: &Client, headers: &HeaderMap, path: &str) -> Result<(), Denied> {
    let token = token(headers).ok_or(Denied::Unauthenticated)?;
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let review = Api::all(client.clone()).create(&PostParams::default(), &review).await.map_err(Denied::Review)?;
    let status = review.status.filter(is_accepted).ok_or(Denied::Unauthenticated)?;
    let caller = status.user.unwrap_or_default();
    let user = caller.username.filter(|name| !name.is_empty()).ok_or(Denied::Unauthenticated)?;
    let spec = SubjectAccessReviewSpec {
        user: Some(user.clone()),
        groups: caller.groups,
        uid: caller.uid,
        extra: caller.extra,
        non_resource_attributes: Some(NonResourceAttributes { path: Some(path.to_owned()), verb: Some("get".to_owned()) }),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let review = Api::all(client.clone()).create(&PostParams::default(), &review).await.map_err(Denied::Review)?;
    let is_granted = review.status.is_some_and(|status| status.allowed && status.denied != Some(true));
    if is_granted { Ok(()) } else { Err(Denied::Forbidden { user, path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_bearer_token_of_bounded_length() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            token(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        for value in ["Bearer ", "Basic abc", "abc", &format!("Bearer {}", "a".repeat(MAX_TOKEN_LEN + 1))] {
            assert_eq!(of(value), None);
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }

    #[test]
    fn only_a_token_whose_audience_is_the_catalog_is_accepted() {
        let of = |authenticated, audiences: Option<&[&str]>| {
            let audiences = audiences.map(|names| names.iter().map(|&name| name.to_owned()).collect());
            is_accepted(&TokenReviewStatus { authenticated, audiences, ..TokenReviewStatus::default() })
        };
        assert!(of(Some(true), Some(&[AUDIENCE])));
        assert!(of(Some(true), Some(&["another", AUDIENCE])));
        let refused: [Option<&[&str]>; 3] = [None, Some(&[]), Some(&["https://kubernetes.default.svc"])];
        for audiences in refused {
            assert!(!of(Some(true), audiences), "{audiences:?}");
        }
        assert!(!of(Some(false), Some(&[AUDIENCE])));
        assert!(!of(None, Some(&[AUDIENCE])));
    }
}
