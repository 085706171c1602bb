//! WireGuard keys in their usual form: 32 bytes in Base64.

use std::{fmt, str::FromStr};

use data_encoding::BASE64;
use gotatun::x25519;

/// An X25519 secret. It is zeroed when dropped, and `Debug` does not print it.
#[derive(Clone)]
pub struct PrivateKey(x25519::StaticSecret);

/// An X25519 public key, which identifies an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// The text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 32 bytes in Base64")]
pub struct InvalidKey;

impl PrivateKey {
    /// A new random key.
    pub fn generate() -> Self {
        rand::random::<[u8; 32]>().into()
    }

    pub fn public_key(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.0).to_bytes())
    }

    pub fn bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    pub(super) fn x25519_secret(&self) -> x25519::StaticSecret {
        self.0.clone()
    }
}

impl From<[u8; 32]> for PrivateKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes.into())
    }
}

impl PartialEq for PrivateKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for PrivateKey {}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn decode_key(text: &str) -> Result<[u8; 32], InvalidKey> {
    BASE64
        .decode(text.as_bytes())
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(InvalidKey)
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        decode_key(text).map(Self)
    }
}

impl FromStr for PrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        decode_key(text).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_belongs_to_its_private_key() {
        let key = PrivateKey::generate();
        assert_eq!(
            PrivateKey::from(*key.bytes()).public_key(),
            key.public_key()
        );
        assert_ne!(PrivateKey::generate().public_key(), key.public_key());
    }

    #[test]
    fn a_printed_key_is_parsed_again() {
        let key = PrivateKey::generate().public_key();
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!("AAAA".parse::<PublicKey>(), Err(InvalidKey));
        assert_eq!("not base64".parse::<PublicKey>(), Err(InvalidKey));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", PrivateKey::generate()), "PrivateKey(..)");
    }
}
