//! What the two clusters of a peering say to each other over the auth endpoint, as it stands on the wire.
//!
//! Fields that this version does not know are ignored, so that a newer peer can say more.

use std::fmt;

use liqo_api::ClusterId;
use serde::{Deserialize, Serialize};

/// The protocol versions that this program speaks.
pub const PROTOCOL: ProtocolRange = ProtocolRange { min: 1, max: 1 };

/// What this program can do beyond the protocol version's minimum, by name.
pub const FEATURES: &[&str] = &[];

/// Payload type of a signed [`PeeringRequest`].
pub const PEERING_REQUEST: &str = "application/vnd.liqo.peering-request+json";

/// Payload type of a signed [`EndRequest`].
pub const PEERING_END: &str = "application/vnd.liqo.peering-end+json";

/// Paths of the auth endpoint.
pub mod paths {
    /// GET: [`super::Identification`].
    pub const IDS: &str = "/ids";
    /// GET: [`super::ChallengeAnswer`].
    pub const CHALLENGE: &str = "/v1/challenge";
    /// POST: an envelope with a [`super::PeeringRequest`]; gives a [`super::PeeringAnswer`].
    pub const PEERINGS: &str = "/v1/peerings";
    /// POST: an envelope with an [`super::EndRequest`]; gives a [`super::PeeringAnswer`].
    pub const END: &str = "/v1/peerings/end";
}

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolRange {
    /// The oldest version that is spoken.
    pub min: u32,
    /// The newest version that is spoken.
    pub max: u32,
}

/// The two ranges have no version in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCommonVersion {
    /// The consumer's newest is older than the provider's oldest.
    #[error("the consumer speaks protocol versions {consumer}, the provider needs {provider}: upgrade Liqo in the consumer")]
    UpgradeConsumer {
        /// What the consumer speaks.
        consumer: ProtocolRange,
        /// What the provider speaks.
        provider: ProtocolRange,
    },
    /// The provider's newest is older than the consumer's oldest.
    #[error("the consumer needs protocol versions {consumer}, the provider speaks {provider}: upgrade Liqo in the provider")]
    UpgradeProvider {
        /// What the consumer speaks.
        consumer: ProtocolRange,
        /// What the provider speaks.
        provider: ProtocolRange,
    },
}

/// The version to speak: the lower of the two newest ones, if both sides know it.
pub fn negotiate(consumer: ProtocolRange, provider: ProtocolRange) -> Result<u32, NoCommonVersion> {
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

/// Who answers at an auth endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identification {
    /// The cluster ID.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,
    /// The friendly name that the cluster gave itself.
    #[serde(rename = "clusterName")]
    pub cluster_name: String,
    /// The raw Ed25519 public key, in base64.
    #[serde(rename = "publicKey")]
    pub public_key: String,
    /// The protocol versions that it speaks.
    pub protocol: ProtocolRange,
    /// What else it can do.
    #[serde(default)]
    pub features: Vec<String>,
    /// The version of its program, for people.
    #[serde(default)]
    pub version: String,
}

/// A challenge to sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChallengeAnswer {
    /// Opaque to the client.
    pub challenge: String,
    /// How long it is good.
    pub expires_in_seconds: u64,
}

/// The consumer's wish to peer, or to have a new credential for a peering that exists.
///
/// The claims are plain text here: they become a [`ClusterId`] only after they were compared with the signer's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeeringRequest {
    /// From [`ChallengeAnswer`].
    pub challenge: String,
    /// The cluster ID of the provider that this is meant for.
    pub audience: String,
    /// The consumer's cluster ID.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// The consumer's friendly name.
    #[serde(rename = "clusterName")]
    pub cluster_name: String,
    /// The protocol versions that the consumer speaks.
    pub protocol: ProtocolRange,
    /// What else the consumer can do.
    #[serde(default)]
    pub features: Vec<String>,
    /// Needed the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretText>,
}

/// The consumer's word that the peering is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRequest {
    /// From [`ChallengeAnswer`].
    pub challenge: String,
    /// The cluster ID of the provider that this is meant for.
    pub audience: String,
    /// The consumer's cluster ID.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
}

/// What the provider answers to a signed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result")]
pub enum PeeringAnswer {
    /// Access is granted, or was already.
    Granted(Box<Grant>),
    /// The peering is over, or never was.
    Ended {},
    /// Somebody has to approve it first: try again later.
    Pending(Refusal),
    /// Not granted.
    Denied(Refusal),
}

/// Everything that the consumer needs in order to work with the provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// The one namespace where the two clusters talk.
    pub tenant_namespace: String,
    /// Where the provider's API server is.
    pub api_server: ApiServer,
    /// A bearer token for it.
    pub token: SecretText,
    /// How long the token is good, from now.
    pub expiration_seconds: u64,
    /// The version that both sides speak from now on.
    pub protocol_version: u32,
    /// The provider's friendly name.
    pub provider_name: String,
}

/// The way to an API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiServer {
    /// Its URL.
    pub url: String,
    /// The certificates (PEM) that its own is to be verified with.
    pub ca: String,
}

/// Why something is not granted, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// One word for machines, such as `TokenRequired`.
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

/// Whether a name is fit to be a cluster's name: a DNS label (RFC 1123) that cannot be taken for a cluster's ID.
pub fn valid_cluster_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label = (1..=63).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-');
    label && name.parse::<ClusterId>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: u32, max: u32) -> ProtocolRange {
        ProtocolRange { min, max }
    }

    #[test]
    fn both_sides_speak_the_lower_of_the_newest_versions() {
        assert_eq!(negotiate(range(1, 1), range(1, 2)), Ok(1));
        assert_eq!(negotiate(range(1, 3), range(1, 2)), Ok(2));
        assert_eq!(negotiate(range(2, 3), range(3, 4)), Ok(3));
        assert_eq!(negotiate(range(2, 2), range(2, 2)), Ok(2));
    }

    #[test]
    fn without_a_common_version_the_older_side_is_told_to_upgrade() {
        let error = negotiate(range(1, 1), range(2, 3)).unwrap_err();
        assert!(error.to_string().ends_with("upgrade Liqo in the consumer"), "{error}");
        let error = negotiate(range(3, 4), range(1, 2)).unwrap_err();
        assert!(error.to_string().ends_with("upgrade Liqo in the provider"), "{error}");
    }

    #[test]
    fn a_range_that_is_upside_down_matches_nothing() {
        assert!(negotiate(range(3, 1), range(1, 5)).is_err());
    }

    #[test]
    fn cluster_names_are_dns_labels() {
        for name in ["rome", "a", "a-1", &"x".repeat(63)] {
            assert!(valid_cluster_name(name), "{name:?}");
        }
        for name in ["", "-a", "a-", "Rome", "a.b", "a_b", "../x", "röm", "a b", &"x".repeat(64)] {
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
        let granted = PeeringAnswer::Granted(Box::new(Grant {
            tenant_namespace: "t".into(),
            api_server: ApiServer { url: "https://10.0.0.1:6443".into(), ca: "pem".into() },
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
        assert_eq!(serde_json::from_value::<PeeringAnswer>(expected).unwrap(), granted);
        let denied = serde_json::json!({"result": "Denied", "reason": "TokenRequired", "message": "m"});
        let refusal = Refusal { reason: "TokenRequired".into(), message: "m".into() };
        assert_eq!(serde_json::from_value::<PeeringAnswer>(denied).unwrap(), PeeringAnswer::Denied(refusal));
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
        assert_eq!(serde_json::from_value::<PeeringAnswer>(answer).unwrap(), PeeringAnswer::Ended {});
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", SecretText("hunter2".into())), "(secret)");
    }
}
