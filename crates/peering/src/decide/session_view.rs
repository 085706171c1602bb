//! The purpose of a session with a provider, and its state as conditions.

use std::net::SocketAddr;

use liqo_api::conditions::DesiredCondition;
use liqo_api::{
    AuthenticatedReason, CallReason, ClusterId, IdentityVerifiedReason, PeerReachableReason, links,
};
use liqo_controller_runtime::provider_limits::LimitExceeded;

use super::{credential::Credential, heartbeats::PeerHealth};
use crate::protocol::sanitized_text;

/// The provider of a session, and the ways to reach it. If this changes, a new session takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPurpose {
    pub cluster_id: ClusterId,
    /// The provider's name in this cluster.
    pub cluster_name: String,
    /// Name of the provider's `ForeignCluster`.
    pub foreign_cluster: String,
    pub auth_url: Option<String>,
    /// Whether to call the provider through its tunnel.
    pub through_tunnel: bool,
    /// Name of the Secret with the token for the first contact.
    pub token_secret: Option<String>,
}

impl SessionPurpose {
    /// Whether the other purpose is the same at another URL.
    pub fn differs_only_in_url(&self, other: &Self) -> bool {
        self != other
            && other.auth_url.is_some()
            && Self {
                auth_url: other.auth_url.clone(),
                ..self.clone()
            } == *other
    }
}

/// The state of a session.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Condition `IdentityVerified`.
    pub identity: DesiredCondition,
    /// Condition `Authenticated`.
    pub authenticated: DesiredCondition,
    /// Condition `PeerReachable`.
    pub reachable: DesiredCondition,
    /// Namespace, API server and protocol version, once granted.
    pub granted: Option<GrantedView>,
    /// The address of the provider's gateway that answers, if calls go through its tunnel.
    pub gateway: Option<SocketAddr>,
}

/// The parts of a grant that the `ForeignCluster` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedView {
    /// Our namespace at the provider.
    pub tenant_namespace: String,
    pub api_server_url: String,
    pub protocol_version: u32,
}

impl SessionView {
    /// Whether anything of the provider answers, as far as that is known.
    pub fn is_answering(&self) -> bool {
        self.reachable.reason != CallReason::Unreachable.as_str()
    }

    /// The state before the first call.
    pub fn at_start() -> Self {
        Self {
            identity: DesiredCondition::unknown(
                links::IDENTITY_VERIFIED,
                IdentityVerifiedReason::Waiting,
                "this cluster has not called the provider's auth endpoint yet",
            ),
            authenticated: DesiredCondition::unknown(
                links::AUTHENTICATED,
                AuthenticatedReason::Waiting,
                "this cluster has not requested access yet",
            ),
            reachable: DesiredCondition::unknown(
                links::PEER_REACHABLE,
                PeerReachableReason::Waiting,
                "this cluster has no access to the provider yet",
            ),
            granted: None,
            gateway: None,
        }
    }
}

pub fn granted_view(credential: &Credential) -> GrantedView {
    GrantedView {
        tenant_namespace: credential.tenant_namespace.clone(),
        api_server_url: credential.api_server.url.clone(),
        protocol_version: credential.protocol_version,
    }
}

pub fn verified_text(purpose: &SessionPurpose) -> String {
    let place = if purpose.through_tunnel {
        "through its tunnel"
    } else {
        "at "
    };
    let url = purpose
        .auth_url
        .as_deref()
        .filter(|_| !purpose.through_tunnel)
        .unwrap_or_default();
    format!(
        "cluster {} proved its identity {place}{url}",
        purpose.cluster_id
    )
}

pub fn granted_condition(credential: &Credential) -> DesiredCondition {
    DesiredCondition::yes(
        links::AUTHENTICATED,
        AuthenticatedReason::Granted,
        granted_text(credential),
    )
}

pub fn granted_text(credential: &Credential) -> String {
    format!(
        "we may use namespace {} of {}",
        credential.tenant_namespace,
        sanitized_text(&credential.provider_name)
    )
}

/// `exceeded`: what the provider sent too much of lately. It counts as reachable all the same, so
/// its pods stay.
pub fn reachable_condition(
    health: PeerHealth,
    exceeded: Option<LimitExceeded>,
) -> DesiredCondition {
    let (reason, text): (PeerReachableReason, &str) = match health {
        PeerHealth::Reachable => match exceeded {
            Some(limit) => {
                let text = format!(
                    "the provider sent {limit}: what this cluster knows of it may be out of date"
                );
                let reason = PeerReachableReason::LimitExceeded;
                return DesiredCondition::no(links::PEER_REACHABLE, reason, text);
            }
            None => {
                return DesiredCondition::yes(
                    links::PEER_REACHABLE,
                    PeerReachableReason::Reachable,
                    "the provider's API server and manager answer",
                );
            }
        },
        PeerHealth::NoAnswer => (
            CallReason::Unreachable.into(),
            "the provider's API server does not answer: is it up, and does this cluster reach it?",
        ),
        PeerHealth::AccessDenied => (
            PeerReachableReason::AccessDenied,
            "the provider's API server denies us access: see condition Authenticated",
        ),
        PeerHealth::InvalidCertificate => (
            PeerReachableReason::InvalidCertificate,
            "the certificate of the provider's API server cannot be verified with the CA that the provider named; this cluster asks the \
             provider for its current CA",
        ),
        PeerHealth::ManagerSilent => (
            PeerReachableReason::ManagerSilent,
            "the provider's API server answers, but its liqo-controller-manager does not: is it running?",
        ),
    };
    DesiredCondition::no(links::PEER_REACHABLE, reason, text)
}

/// A peer's reason, if it is a valid reason for a condition.
pub fn valid_reason(text: &str) -> String {
    let fits = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if fits && text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        text.to_owned()
    } else {
        AuthenticatedReason::Denied.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_from_a_peer_cannot_break_a_condition() {
        assert_eq!(valid_reason("TokenRequired"), "TokenRequired");
        for text in ["", "a b", "<script>", "1st", &"x".repeat(65)] {
            assert_eq!(valid_reason(text), "Denied", "{text:?}");
        }
    }

    fn purpose() -> SessionPurpose {
        SessionPurpose {
            cluster_id: liqo_api::ClusterId::of_public_key(&[1; 32]),
            cluster_name: "milan".to_owned(),
            foreign_cluster: "milan".to_owned(),
            auth_url: Some("https://203.0.113.5:30443".to_owned()),
            through_tunnel: false,
            token_secret: None,
        }
    }

    #[test]
    fn a_session_takes_over_another_url_but_no_other_change() {
        let moved = SessionPurpose {
            auth_url: Some("https://203.0.113.6:30443".to_owned()),
            ..purpose()
        };
        assert!(purpose().differs_only_in_url(&moved));
        assert!(!purpose().differs_only_in_url(&purpose()));
        assert!(!purpose().differs_only_in_url(&SessionPurpose {
            auth_url: None,
            ..purpose()
        }));
        assert!(!purpose().differs_only_in_url(&SessionPurpose {
            through_tunnel: true,
            ..moved
        }));
    }

    #[test]
    fn it_is_said_where_a_cluster_proved_its_identity() {
        let mut purpose = purpose();
        assert!(verified_text(&purpose).ends_with("at https://203.0.113.5:30443"));
        purpose.through_tunnel = true;
        assert!(verified_text(&purpose).ends_with("through its tunnel"));
    }

    #[test]
    fn every_kind_of_unreachable_has_its_own_reason() {
        let all = [
            PeerHealth::Reachable,
            PeerHealth::NoAnswer,
            PeerHealth::AccessDenied,
            PeerHealth::InvalidCertificate,
            PeerHealth::ManagerSilent,
        ];
        let reason = |health: PeerHealth| reachable_condition(health, None).reason;
        let reasons: std::collections::BTreeSet<String> =
            all.iter().map(|health| reason(*health)).collect();
        assert_eq!(reasons.len(), all.len());
        let flooded = |health| reachable_condition(health, Some(LimitExceeded::Pages));
        assert_eq!(flooded(PeerHealth::Reachable).reason, "LimitExceeded");
        assert!(
            flooded(PeerHealth::Reachable)
                .message
                .contains("a list of more than 1000 pages")
        );
        assert_eq!(
            flooded(PeerHealth::NoAnswer).reason,
            reason(PeerHealth::NoAnswer),
            "the outage comes first"
        );
    }
}
