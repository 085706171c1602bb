//! The key that identifies a cluster.

use std::fmt;

use liqo_api::ClusterId;
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair},
};

/// The raw form of an Ed25519 public key.
pub type PublicKey = [u8; 32];

/// Why there is no key.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdentityKeyError {
    /// The system's random generator failed, or generated an unusable key.
    #[error("cannot create an Ed25519 key: the system's random generator failed")]
    Generate,
    #[error("the bytes are no Ed25519 key (PKCS#8 DER)")]
    Unusable,
}

/// A cluster's key, and the ID that is derived from it.
pub struct ClusterIdentity {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
    public_key: PublicKey,
    id: ClusterId,
}

impl ClusterIdentity {
    pub fn generate() -> Result<Self, IdentityKeyError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| IdentityKeyError::Generate)?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads a stored key, and checks that its public part matches the private part.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, IdentityKeyError> {
        let pair = Ed25519KeyPair::from_pkcs8(der).map_err(|_| IdentityKeyError::Unusable)?;
        let public_key = PublicKey::try_from(pair.public_key().as_ref())
            .map_err(|_| IdentityKeyError::Unusable)?;
        Ok(Self {
            pair,
            pkcs8: der.to_vec(),
            public_key,
            id: ClusterId::of_public_key(&public_key),
        })
    }

    pub fn id(&self) -> &ClusterId {
        &self.id
    }

    pub fn public_key(&self) -> &PublicKey {
        &self.public_key
    }

    /// Returns the Ed25519 signature of a message. The same message always has the same signature.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }

    /// The private key as PKCS#8 DER.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// The seed of the private key.
    pub fn seed(&self) -> Option<&[u8; 32]> {
        // RFC 8410: the seed is an octet string within an octet string.
        let marked = self
            .pkcs8
            .windows(4)
            .position(|window| window == [0x04, 0x22, 0x04, 0x20])?;
        self.pkcs8.get(marked + 4..)?.first_chunk::<32>()
    }
}

impl fmt::Debug for ClusterIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterIdentity")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_key_is_the_same_key() {
        let made = ClusterIdentity::generate().unwrap();
        let read = ClusterIdentity::from_pkcs8(made.pkcs8()).unwrap();
        assert_eq!(read.id(), made.id());
        assert_eq!(read.sign(b"x"), made.sign(b"x"));
        assert_eq!(
            ClusterIdentity::from_pkcs8(&[1, 2, 3]).err(),
            Some(IdentityKeyError::Unusable)
        );
    }

    #[test]
    fn the_seed_gives_the_same_public_key() {
        let made = ClusterIdentity::generate().unwrap();
        let pair = Ed25519KeyPair::from_seed_unchecked(made.seed().unwrap()).unwrap();
        assert_eq!(pair.public_key().as_ref(), made.public_key());
    }

    #[test]
    fn two_clusters_never_share_an_identity() {
        assert_ne!(
            ClusterIdentity::generate().unwrap().id(),
            ClusterIdentity::generate().unwrap().id()
        );
    }

    #[test]
    fn the_private_key_does_not_show_in_debug_output() {
        let made = ClusterIdentity::generate().unwrap();
        let text = format!("{made:?}");
        assert!(text.contains(made.id().as_str()));
        assert!(!text.contains("pkcs8"), "{text}");
    }
}
