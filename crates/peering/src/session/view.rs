//! What a session shows of itself: the conditions and their words.

use std::net::SocketAddr;

use liqo_api::links;
use liqo_kit::conditions::Wanted;

use crate::{
    auth::client::{ClientError, for_people},
    credential::Credential,
    decide::PeerHealth,
};

use super::Purpose;

/// How far a session is.
#[derive(Clone, Debug)]
pub struct View {
    /// Condition `IdentityVerified`.
    pub identity: Wanted,
    /// Condition `Authenticated`.
    pub authenticated: Wanted,
    /// Condition `PeerReachable`.
    pub reachable: Wanted,
    /// Namespace, API server and protocol version, once granted.
    pub granted: Option<Granted>,
    /// Where the gateway of the provider is that answers, where it is called through its tunnel.
    pub gateway: Option<SocketAddr>,
}

/// What was granted, as the `ForeignCluster` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The namespace there that belongs to us.
    pub tenant_namespace: String,
    /// URL of the provider's API server.
    pub api_server_url: String,
    /// The version that both sides speak.
    pub protocol_version: u32,
}

impl View {
    pub(super) fn new() -> Self {
        Self {
            identity: Wanted::unknown(links::IDENTITY_VERIFIED, "Waiting", "the provider's auth endpoint was not called yet"),
            authenticated: Wanted::unknown(links::AUTHENTICATED, "Waiting", "access was not asked for yet"),
            reachable: Wanted::unknown(links::PEER_REACHABLE, "Waiting", "there is no access to the provider yet"),
            granted: None,
            gateway: None,
        }
    }
}

pub(super) fn granted(credential: &Credential) -> Granted {
    Granted {
        tenant_namespace: credential.tenant_namespace.clone(),
        api_server_url: credential.api_server.url.clone(),
        protocol_version: credential.protocol_version,
    }
}

pub(super) fn verified_text(purpose: &Purpose) -> String {
    let place = if purpose.through_tunnel { "through its tunnel" } else { "at " };
    let url = purpose.auth_url.as_deref().filter(|_| !purpose.through_tunnel).unwrap_or_default();
    format!("cluster {} proved its identity {place}{url}", purpose.cluster_id)
}

pub(super) fn granted_condition(credential: &Credential) -> Wanted {
    let text = format!("we may use namespace {} of {}", credential.tenant_namespace, for_people(&credential.provider_name));
    Wanted::yes(links::AUTHENTICATED, "Granted", text)
}

pub(super) fn reachable_condition(health: PeerHealth) -> Wanted {
    let no = |reason: &str, text: &str| Wanted::no(links::PEER_REACHABLE, reason, text);
    match health {
        PeerHealth::Reachable => Wanted::yes(links::PEER_REACHABLE, "Reachable", "the provider's API server and manager answer"),
        PeerHealth::NoAnswer => {
            no("Unreachable", "the provider's API server does not answer: is it up, and is the way to it open?")
        }
        PeerHealth::AccessDenied => {
            no("AccessDenied", "the provider's API server does not let us in any more: see condition Authenticated")
        }
        PeerHealth::ManagerSilent => {
            no("ManagerSilent", "the provider's API server answers, but its liqo-controller-manager does not: is it running?")
        }
    }
}

pub(super) fn reason_of(error: &ClientError) -> &'static str {
    match error {
        ClientError::Url { .. } => "InvalidURL",
        ClientError::Loopback { .. } => "LoopbackAddress",
        ClientError::Handshake { .. } => "IdentityMismatch",
        ClientError::Connect { .. } | ClientError::Tunnel(_) | ClientError::Timeout { .. } | ClientError::Http { .. } => {
            "Unreachable"
        }
        ClientError::Answer { .. } => "InvalidAnswer",
        ClientError::Unavailable { .. } => "Unavailable",
        ClientError::Tls(_) | ClientError::Sign(_) => "LocalError",
    }
}

/// A reason that a peer gave, as a condition can bear it.
pub(super) fn for_reason(text: &str) -> String {
    let fits = !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if fits && text.starts_with(|first: char| first.is_ascii_alphabetic()) { text.to_owned() } else { "Denied".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_from_a_peer_cannot_break_a_condition() {
        assert_eq!(for_reason("TokenRequired"), "TokenRequired");
        for text in ["", "a b", "<script>", "1st", &"x".repeat(65)] {
            assert_eq!(for_reason(text), "Denied", "{text:?}");
        }
    }

    #[test]
    fn it_is_said_where_a_cluster_proved_its_identity() {
        let mut purpose = Purpose {
            cluster_id: liqo_api::ClusterId::of_public_key(&[1; 32]),
            cluster_name: "milan".to_owned(),
            foreign_cluster: "milan".to_owned(),
            auth_url: Some("https://203.0.113.5:30443".to_owned()),
            through_tunnel: false,
            token_secret: None,
        };
        assert!(verified_text(&purpose).ends_with("at https://203.0.113.5:30443"));
        purpose.through_tunnel = true;
        assert!(verified_text(&purpose).ends_with("through its tunnel"));
    }

    #[test]
    fn every_kind_of_unreachable_has_its_own_reason() {
        let all = [PeerHealth::Reachable, PeerHealth::NoAnswer, PeerHealth::AccessDenied, PeerHealth::ManagerSilent];
        let reasons: std::collections::BTreeSet<String> = all.iter().map(|health| reachable_condition(*health).reason).collect();
        assert_eq!(reasons.len(), all.len());
    }
}
