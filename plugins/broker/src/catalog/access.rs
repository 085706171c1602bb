//! Checks the readers of the catalog: callers with a token that this cluster issued for it, and its
//! customers, which sign in with their key. The API server says which of them have the right to get
//! its path.
//!
//! ```text
//!   Bearer token         ──▶ TokenReview ───────────────────────▶ user ─┐
//!   LiqoCluster sign-in  ──▶ signature, audience, time; customer? ▶ user ─┴▶ SubjectAccessReview
//! ```
//!
//! A cluster that is no customer costs the API server nothing.

use std::{sync::Arc, time::SystemTime};

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use liqo_api::conditions::StatusCondition;
use liqo_api::{ClusterId, ForeignCluster, PeeringIntent, catalog::AUDIENCE, links};
use liqo_signing::sign_in::{self, SignInError};

/// Longer tokens are refused.
const MAX_TOKEN_LEN: usize = 16 * 1024;
/// The name of a customer as a user, before its ID.
const CUSTOMER_PREFIX: &str = "liqo:cluster:";
/// The group of all customers.
const CUSTOMERS: &str = "liqo:customers";

/// Reason why a caller may not read.
#[derive(Debug, thiserror::Error)]
pub enum DeniedReason {
    /// No token, one that this cluster does not know, or one for somebody else.
    #[error(
        "no valid bearer token for the catalog (`kubectl create token NAME --audience {AUDIENCE}` creates one), \
         and no sign-in of a customer (`liqoctl catalog` sends one)"
    )]
    Unauthenticated,
    #[error(transparent)]
    SignIn(#[from] SignInError),
    /// This cluster has no ID yet, so nobody can sign in at it.
    #[error("Liqo in this cluster has not started yet: try again soon")]
    NoId,
    #[error(
        "this cluster does not know cluster {0}: let it borrow from here first, with `liqoctl peer`"
    )]
    NoPeer(ClusterId),
    /// The user does not want this consumer.
    #[error(
        "this cluster does not lend to cluster {0}: spec.incomingPeering is No in its ForeignCluster"
    )]
    Refused(ClusterId),
    /// It is a provider, was only found, or waits for approval.
    #[error(
        "cluster {0} does not borrow from this cluster: `liqoctl peer` there asks for it, `liqoctl approve {0}` here allows it"
    )]
    NoCustomer(ClusterId),
    /// The right is missing.
    #[error("{user} may not get {path}: bind the ClusterRole liqo-broker-catalog-reader")]
    Forbidden { user: String, path: String },
    /// The API server does not answer.
    #[error("asking the API server about the caller: {0}")]
    Review(#[source] kube::Error),
}

impl DeniedReason {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated | Self::SignIn(_) => StatusCode::UNAUTHORIZED,
            Self::NoPeer(_) | Self::Refused(_) | Self::NoCustomer(_) | Self::Forbidden { .. } => {
                StatusCode::FORBIDDEN
            }
            Self::NoId | Self::Review(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// The knowledge of this cluster about those that sign in.
pub trait KnownClusters: Send + Sync {
    /// The ID of this cluster, once it has one.
    fn own_id(&self) -> Option<ClusterId>;
    /// The record of another cluster.
    fn record(&self, id: &ClusterId) -> Option<Arc<ForeignCluster>>;
}

/// The proof of a caller's identity.
#[derive(Debug, PartialEq, Eq)]
enum Credentials<'a> {
    Token(&'a str),
    SignIn(&'a str),
}

fn read_credentials(headers: &HeaderMap) -> Option<Credentials<'_>> {
    match headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')? {
        ("Bearer", token) if !token.is_empty() && token.len() <= MAX_TOKEN_LEN => {
            Some(Credentials::Token(token))
        }
        (sign_in::SCHEME, text) => Some(Credentials::SignIn(text)),
        _ => None,
    }
}

/// Succeeds if the caller is known, and may get this path. There are few calls, so no answer is
/// cached.
pub async fn admit_caller(
    client: &Client,
    clusters: &dyn KnownClusters,
    headers: &HeaderMap,
    path: &str,
) -> Result<(), DeniedReason> {
    let caller = match read_credentials(headers).ok_or(DeniedReason::Unauthenticated)? {
        Credentials::Token(token) => token_holder(client, token).await?,
        Credentials::SignIn(text) => signed_in_customer(clusters, text, SystemTime::now())?,
    };
    authorize_path(client, caller, path).await
}

/// The user of a token that the API server knows as one for the catalog.
async fn token_holder(client: &Client, token: &str) -> Result<UserInfo, DeniedReason> {
    let spec = TokenReviewSpec {
        token: Some(token.to_owned()),
        audiences: Some(vec![AUDIENCE.to_owned()]),
    };
    let review = TokenReview {
        spec,
        ..TokenReview::default()
    };
    let review = Api::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .map_err(DeniedReason::Review)?;
    let status = review
        .status
        .filter(is_accepted)
        .ok_or(DeniedReason::Unauthenticated)?;
    status.user.ok_or(DeniedReason::Unauthenticated)
}

/// Whether the token is valid, and for the catalog. An authenticator that ignores audiences names
/// none.
fn is_accepted(status: &TokenReviewStatus) -> bool {
    let audiences = status.audiences.as_deref().unwrap_or_default();
    status.authenticated == Some(true) && audiences.iter().any(|audience| audience == AUDIENCE)
}

/// The user that a cluster is, if it signs in properly and may borrow from this one. Discovery
/// makes records of clusters that nobody here knows, and those that only lend to this cluster need
/// not see what others ask for.
fn signed_in_customer(
    clusters: &dyn KnownClusters,
    sign_in: &str,
    now: SystemTime,
) -> Result<UserInfo, DeniedReason> {
    let own = clusters.own_id().ok_or(DeniedReason::NoId)?;
    let id = sign_in::verified_signer(sign_in, &own, now)?;
    let Some(record) = clusters.record(&id) else {
        return Err(DeniedReason::NoPeer(id));
    };
    if record.spec.incoming_peering == PeeringIntent::No {
        return Err(DeniedReason::Refused(id));
    }
    let is_authorized = record
        .condition(links::CONSUMER_AUTHORIZED)
        .is_some_and(StatusCondition::is_true);
    if !is_authorized || record.metadata.deletion_timestamp.is_some() {
        return Err(DeniedReason::NoCustomer(id));
    }
    let username = Some(format!("{CUSTOMER_PREFIX}{id}"));
    Ok(UserInfo {
        username,
        groups: Some(vec![CUSTOMERS.to_owned()]),
        ..UserInfo::default()
    })
}

/// Succeeds if this user may get this path.
async fn authorize_path(client: &Client, caller: UserInfo, path: &str) -> Result<(), DeniedReason> {
    let user = caller
        .username
        .filter(|name| !name.is_empty())
        .ok_or(DeniedReason::Unauthenticated)?;
    let spec = SubjectAccessReviewSpec {
        user: Some(user.clone()),
        groups: caller.groups,
        uid: caller.uid,
        extra: caller.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        }),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    let review = Api::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .map_err(DeniedReason::Review)?;
    let is_granted = review
        .status
        .is_some_and(|status| status.allowed && status.denied != Some(true));
    if is_granted {
        Ok(())
    } else {
        Err(DeniedReason::Forbidden {
            user,
            path: path.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_shows_a_token_of_bounded_length_or_signs_in() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            read_credentials(&headers).map(|found| format!("{found:?}"))
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("Token(\"abc\")"));
        assert_eq!(of("LiqoCluster abc").as_deref(), Some("SignIn(\"abc\")"));
        for value in [
            "Bearer ",
            "Basic abc",
            "abc",
            &format!("Bearer {}", "a".repeat(MAX_TOKEN_LEN + 1)),
        ] {
            assert_eq!(of(value), None);
        }
        assert_eq!(read_credentials(&HeaderMap::new()), None);
    }

    #[test]
    fn only_a_token_whose_audience_is_the_catalog_is_accepted() {
        let of = |authenticated, audiences: Option<&[&str]>| {
            let audiences =
                audiences.map(|names| names.iter().map(|&name| name.to_owned()).collect());
            is_accepted(&TokenReviewStatus {
                authenticated,
                audiences,
                ..TokenReviewStatus::default()
            })
        };
        assert!(of(Some(true), Some(&[AUDIENCE])));
        assert!(of(Some(true), Some(&["another", AUDIENCE])));
        let refused: [Option<&[&str]>; 3] =
            [None, Some(&[]), Some(&["https://kubernetes.default.svc"])];
        for audiences in refused {
            assert!(!of(Some(true), audiences), "{audiences:?}");
        }
        assert!(!of(Some(false), Some(&[AUDIENCE])));
        assert!(!of(None, Some(&[AUDIENCE])));
    }

    #[test]
    fn the_manifests_give_the_right_to_the_group_of_customers() {
        let manifests = include_str!("../../../../deploy/broker/account.yaml");
        assert!(
            manifests.contains(&format!("kind: Group\n    name: {CUSTOMERS}\n")),
            "{manifests}"
        );
    }
}
