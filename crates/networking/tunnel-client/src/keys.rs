//! WireGuard keys of sessions. Each is derived from a cluster's Ed25519 key, or from a token before
//! the cluster is known. So no key is generated, stored or exchanged for a session.

use curve25519_dalek::edwards::CompressedEdwardsY;
use gotatun::x25519;
use sha2::{Digest as _, Sha256, Sha512};

/// Separates these keys from everything else that is derived from tokens.
const TOKEN_CONTEXT: &[u8] = b"liqo-tunnel-v1";

/// The private key of a cluster that holds this token and is not known yet.
pub fn private_key_of_token(token: &str) -> [u8; 32] {
    Sha256::new()
        .chain_update(TOKEN_CONTEXT)
        .chain_update(token.as_bytes())
        .finalize()
        .into()
}

/// The private key of the cluster with this Ed25519 seed: the scalar that also signs.
pub fn private_key_of_seed(seed: &[u8; 32]) -> [u8; 32] {
    let digest: [u8; 64] = Sha512::digest(seed).into();
    let mut key = [0; 32];
    key.copy_from_slice(&digest[..32]);
    key
}

/// The public key of a private key.
pub fn public_key(private: [u8; 32]) -> [u8; 32] {
    x25519::PublicKey::from(&x25519::StaticSecret::from(private)).to_bytes()
}

/// The WireGuard public key of the cluster with this Ed25519 public key: the same point in
/// Montgomery form. `None` if it is not a point of the curve, or a point of small order.
pub fn public_key_of_cluster(public_key: &[u8; 32]) -> Option<[u8; 32]> {
    let point = CompressedEdwardsY(*public_key)
        .decompress()
        .filter(|point| !point.is_small_order())?;
    Some(point.to_montgomery().to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, section 7.1, test 1.
    const SEED: [u8; 32] = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c,
        0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae,
        0x7f, 0x60,
    ];
    const PUBLIC: [u8; 32] = [
        0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe, 0xd3, 0xc9, 0x64, 0x07,
        0x3a, 0x0e, 0xe1, 0x72, 0xf3, 0xda, 0xa6, 0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07,
        0x51, 0x1a,
    ];

    #[test]
    fn a_cluster_and_its_peer_arrive_at_the_same_key() {
        assert_eq!(
            public_key_of_cluster(&PUBLIC),
            Some(public_key(private_key_of_seed(&SEED)))
        );
    }

    #[test]
    fn an_invalid_point_has_no_key() {
        // The neutral element, and no point at all.
        let neutral = std::array::from_fn(|at| u8::from(at == 0));
        assert_eq!(public_key_of_cluster(&neutral), None);
        assert_eq!(public_key_of_cluster(&[2; 32]), None);
    }

    #[test]
    fn each_token_has_a_key_of_its_own() {
        assert_ne!(private_key_of_token("one"), private_key_of_token("two"));
        assert_ne!(
            private_key_of_token("one"),
            <[u8; 32]>::from(Sha256::digest("one"))
        );
    }
}
