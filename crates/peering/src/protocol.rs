//! The messages between two clusters at the auth endpoint.
//!
//! This version ignores unknown fields, so that a newer peer can send more.

use std::fmt;

use liqo_api::ClusterId;
pub use liqo_api::valid_cluster_name;
use serde::{Deserialize, Serialize};

/// The protocol versions that this program supports.
pub const PROTOCOL: ProtocolRange = ProtocolRange { min: 1, max: 1 };

/// Names of optional features that this program supports.
pub const FEATURES: &[&str] = &[];

/// Payload type of a signed [`PeeringRequest`].
pub const PEERING_REQUEST: &str = "application/vnd.liqo.peering-request+json";

/// Payload type of a [`SignedEndRequest`].
pub const PEERING_END: &str = "application/vnd.liqo.peering-end+json";

/// Paths of the auth endpoint.
pub mod paths {
    /// GET: [`super::Identification`].
    pub const IDS: &str = "/ids";
    /// GET: [`super::ChallengeAnswer`].
    pub const CHALLENGE: &str = "/v1/challenge";
    /// POST: an envelope with a [`super::PeeringRequest`]; returns a [`super::PeeringAnswer`].
    pub const PEERINGS: &str = "/v1/peerings";
    /// POST: an envelope with a [`super::SignedEndRequest`]; returns a [`super::PeeringAnswer`].
    pub const END: &str = "/v1/peerings/end";
}

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolRange {
    pub min: u32,
    pub max: u32,
}

/// The two ranges have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCommonVersion {
    /// The consumer's newest version is older than the provider's oldest.
    #[error(
        "the consumer supports protocol versions {consumer}, the provider needs {provider}: upgrade Liqo in the consumer"
    )]
    UpgradeConsumer {
        consumer: ProtocolRange,
        provider: ProtocolRange,
    },
    /// The provider's newest version is older than the consumer's oldest.
    #[error(
        "the consumer needs protocol versions {consumer}, the provider supports {provider}: upgrade Liqo in the provider"
    )]
    UpgradeProvider {
        consumer: ProtocolRange,
        provider: ProtocolRange,
    },
}

/// Chooses the protocol version: the lower of the two newest ones, if both sides support it.
pub fn negotiate_version(
    consumer: ProtocolRange,
    provider: ProtocolRange,
) -> Result<u32, NoCommonVersion> {
    if consumer.max < provider.min {
        Err(NoCommonVersion::UpgradeConsumer { consumer, provider })
    } else if provider.max < consumer.min || consumer.min > consumer.max {
        Err(NoCommonVersion::UpgradeProvider { consumer, provider })
    } else {
        Ok(consumer.max.min(provider.max))
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// The cluster that answers at an auth endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identification {
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    #[serde(rename = "clusterName")]
    pub cluster_name: String,
    /// The raw Ed25519 public key, in base64.
    #[serde(rename = "publicKey")]
    pub public_key: String,
    pub protocol: ProtocolRange,
    #[serde(default)]
    pub features: Vec<String>,
    /// The version of Liqo, for people.
    #[serde(default)]
    pub version: String,
}

/// A challenge to sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChallengeAnswer {
    /// Opaque to the client.
    pub challenge: String,
    pub expires_in_seconds: u64,
}

/// A consumer's request to peer, or to get a new credential for an existing peering.
///
/// `audience` and `cluster_id` are claims, so they are plain text until they were compared with the
/// signer's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeeringRequest {
    /// From [`ChallengeAnswer`].
    pub challenge: String,
    /// The cluster ID of the provider that this is meant for.
    pub audience: String,
    /// The consumer's cluster ID.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    #[serde(rename = "clusterName")]
    pub cluster_name: String,
    pub protocol: ProtocolRange,
    #[serde(default)]
    pub features: Vec<String>,
    /// Needed only for the first contact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretText>,
}

/// A consumer's message that the peering has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedEndRequest {
    /// From [`ChallengeAnswer`].
    pub challenge: String,
    /// The cluster ID of the provider that this is meant for.
    pub audience: String,
    /// The consumer's cluster ID.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
}

/// The provider's answer to a signed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result")]
pub enum PeeringAnswer {
    /// The consumer has access.
    Granted(Box<AccessGrant>),
    /// There is no peering any more.
    Ended {},
    /// Somebody has to approve the consumer first: try again later.
    Pending(AccessRefusal),
    Denied(AccessRefusal),
}

/// Everything that a consumer needs to use the provider's API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessGrant {
    pub tenant_namespace: String,
    pub api_server: GrantedApiServer,
    /// A bearer token for it.
    pub token: SecretText,
    /// Lifetime of the token from now on.
    pub expiration_seconds: u64,
    pub protocol_version: u32,
    pub provider_name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedApiServer {
    pub url: String,
    /// The CA certificates (PEM) that verify its own certificate.
    pub ca: String,
}

/// The reason why the provider does not grant a request, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRefusal {
    /// One word for programs, for example `TokenRequired`.
    pub reason: String,
    /// A sentence for people, with the next step.
    pub message: String,
}

/// A text that is never shown in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A peer's text, cut to 500 characters and without control characters, so that it can be shown.
pub fn sanitized_text(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(500)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u32, max: u32) -> ProtocolRange {
        ProtocolRange { min, max }
    }

    #[test]
    fn both_sides_speak_the_lower_of_the_newest_versions() {
        assert_eq!(negotiate_version(range(1, 1), range(1, 2)), Ok(1));
        assert_eq!(negotiate_version(range(1, 3), range(1, 2)), Ok(2));
        assert_eq!(negotiate_version(range(2, 3), range(3, 4)), Ok(3));
        assert_eq!(negotiate_version(range(2, 2), range(2, 2)), Ok(2));
    }

    #[test]
    fn without_a_common_version_the_older_side_is_told_to_upgrade() {
        let error = negotiate_version(range(1, 1), range(2, 3)).unwrap_err();
        assert!(
            error.to_string().ends_with("upgrade Liqo in the consumer"),
            "{error}"
        );
        let error = negotiate_version(range(3, 4), range(1, 2)).unwrap_err();
        assert!(
            error.to_string().ends_with("upgrade Liqo in the provider"),
            "{error}"
        );
    }

    #[test]
    fn a_range_that_is_upside_down_matches_nothing() {
        assert!(negotiate_version(range(3, 1), range(1, 5)).is_err());
    }

    #[test]
    fn cluster_names_are_dns_labels() {
        for name in ["rome", "a", "a-1", &"x".repeat(63)] {
            assert!(valid_cluster_name(name), "{name:?}");
        }
        for name in [
            "",
            "-a",
            "a-",
            "Rome",
            "a.b",
            "a_b",
            "../x",
            "röm",
            "a b",
            &"x".repeat(64),
        ] {
            assert!(!valid_cluster_name(name), "{name:?}");
        }
    }

    #[test]
    fn no_cluster_is_called_what_may_be_the_id_of_another() {
        let id = ClusterId::of_public_key(&[1; 32]);
        assert!(!valid_cluster_name(id.as_str()));
        assert!(valid_cluster_name(&format!("rome-{id}")));
    }

    #[test]
    fn answers_have_the_documented_form() {
        let granted = PeeringAnswer::Granted(Box::new(AccessGrant {
            tenant_namespace: "t".into(),
            api_server: GrantedApiServer {
                url: "https://10.0.0.1:6443".into(),
                ca: "pem".into(),
            },
            token: SecretText("s".into()),
            expiration_seconds: 3600,
            protocol_version: 1,
            provider_name: "milan".into(),
        }));
        let expected = serde_json::json!({
            "result": "Granted", "tenantNamespace": "t", "apiServer": {"url": "https://10.0.0.1:6443", "ca": "pem"},
            "token": "s", "expirationSeconds": 3600, "protocolVersion": 1, "providerName": "milan",
        });
        assert_eq!(serde_json::to_value(&granted).unwrap(), expected);
        assert_eq!(
            serde_json::from_value::<PeeringAnswer>(expected).unwrap(),
            granted
        );
        let denied =
            serde_json::json!({"result": "Denied", "reason": "TokenRequired", "message": "m"});
        let refusal = AccessRefusal {
            reason: "TokenRequired".into(),
            message: "m".into(),
        };
        assert_eq!(
            serde_json::from_value::<PeeringAnswer>(denied).unwrap(),
            PeeringAnswer::Denied(refusal)
        );
    }

    #[test]
    fn a_newer_peer_may_say_more_than_we_know() {
        let request = serde_json::json!({
            "challenge": "c", "audience": "a", "clusterID": "i", "clusterName": "rome", "protocol": {"min": 1, "max": 9, "odd": 1}, "news": [1],
        });
        let request: PeeringRequest = serde_json::from_value(request).unwrap();
        assert_eq!(request.protocol.max, 9);
        assert_eq!(request.token, None);
        let answer = serde_json::json!({"result": "Ended", "news": true});
        assert_eq!(
            serde_json::from_value::<PeeringAnswer>(answer).unwrap(),
            PeeringAnswer::Ended {}
        );
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", SecretText("hunter2".into())), "(secret)");
    }

    #[test]
    fn words_of_a_peer_are_cut_and_cleaned() {
        assert_eq!(sanitized_text("a\u{1b}[31m\nb"), "a[31mb");
        assert_eq!(sanitized_text(&"x".repeat(9999)).len(), 500);
    }
}
