use std::{borrow::Cow, fmt, str::FromStr};

use data_encoding::BASE32_NOPAD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The identity of a cluster: the first 32 characters of the lower-case base32 form of
/// SHA-256(`liqo-id-v1` followed by the Ed25519 public key).
///
/// Only the holder of the key can claim it. It is a valid DNS label, and it never changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(String);

impl JsonSchema for ClusterId {
    fn schema_name() -> Cow<'static, str> {
        "ClusterId".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z2-7]{32}$" })
    }
}

/// The text is not a cluster ID.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is not a cluster ID: an ID has 32 characters, each one of a-z or 2-7 (`liqoctl status` on that cluster shows its ID)"
)]
pub struct InvalidClusterId(String);

impl ClusterId {
    /// Length of an ID in characters.
    pub const LENGTH: usize = 32;

    /// The ID of the cluster with this raw Ed25519 public key.
    pub fn of_public_key(key: &[u8; 32]) -> Self {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(b"liqo-id-v1");
        context.update(key);
        let mut text = BASE32_NOPAD.encode(context.finish().as_ref());
        text.make_ascii_lowercase();
        text.truncate(Self::LENGTH);
        Self(text)
    }

    /// The text of the ID.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first six characters, which distinguish clusters of the same name.
    pub fn short_id(&self) -> &str {
        self.0.get(..6).unwrap_or(&self.0)
    }
}

/// Whether a name can be a cluster's name: it must be a DNS label (RFC 1123) that cannot be
/// mistaken for a cluster ID.
pub fn valid_cluster_name(name: &str) -> bool {
    let label = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    label && name.parse::<ClusterId>().is_err()
}

impl FromStr for ClusterId {
    type Err = InvalidClusterId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = text.len() == Self::LENGTH
            && text
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidClusterId(text.chars().take(80).collect()))
        }
    }
}

impl TryFrom<String> for ClusterId {
    type Error = InvalidClusterId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_only_on_the_key() {
        let id = ClusterId::of_public_key(&[7; 32]);
        assert_eq!(id, ClusterId::of_public_key(&[7; 32]));
        assert_ne!(id, ClusterId::of_public_key(&[8; 32]));
        assert_eq!(id.as_str().parse::<ClusterId>().unwrap(), id);
    }

    #[test]
    fn other_texts_are_not_ids() {
        for text in [
            "",
            "milan",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
            "abcdefghijklmnopqrstuvwxyz23456",
            "abcdefghijklmnopqrstuvwxyz2345678",
        ] {
            assert!(text.parse::<ClusterId>().is_err(), "{text:?} was accepted");
        }
        assert!(serde_json::from_str::<ClusterId>("\"../etc\"").is_err());
    }
}
