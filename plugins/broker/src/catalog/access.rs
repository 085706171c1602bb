//! Who may read the catalog: whoever has a token of this cluster, and the right to get its path.

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

/// Longer tokens are refused.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// Why a caller may not read.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// No token, or one that this cluster does not know.
    #[error("no bearer token that this cluster accepts: `kubectl create token NAME` creates one")]
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

/// Succeeds if the API server knows the token, and its user may get this path. There are few calls, so no answer is cached.
pub async fn admit(client: &Client, headers: &HeaderMap, path: &str) -> Result<(), Denied> {
    let token = token(headers).ok_or(Denied::Unauthenticated)?;
    let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
    let review = TokenReview { spec, ..TokenReview::default() };
    let review = Api::all(client.clone()).create(&PostParams::default(), &review).await.map_err(Denied::Review)?;
    let status = review.status.filter(|status| status.authenticated == Some(true)).ok_or(Denied::Unauthenticated)?;
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
}
