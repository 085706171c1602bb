//! Signed documents: DSSE envelopes under cluster keys.
//!
//! A signature covers the type, the length and the exact bytes of the payload (DSSE's
//! pre-authentication encoding). Verifying returns those bytes; nothing is serialised again. Each
//! signature comes with its public key, and the cluster ID is derived from the key, so the verifier
//! needs no directory: it learns *who signed*, then decides what that cluster may do.

use data_encoding::{BASE64, HEXLOWER};
use liqo_api::ClusterId;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::identity::{ClusterIdentity, PublicKey};

/// Maximum length of a payload in bytes.
pub const MAX_PAYLOAD_LEN: usize = 32 * 1024;

/// Maximum length of a payload type in bytes.
const MAX_TYPE_LEN: usize = 128;

/// A payload with the signatures of one or two clusters, as it travels in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The exact bytes that were signed, in base64.
    pub payload: String,
    /// The type of the payload, for example `application/vnd.liqo.peering-request+json`.
    pub payload_type: String,
    /// One signature, or two over the same bytes.
    pub signatures: Vec<Signature>,
    /// The raw Ed25519 public key of the first signer, in base64.
    pub public_key: String,
}

/// One signature in an [`Envelope`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signature {
    /// The cluster ID of the signer.
    pub keyid: String,
    /// The signature over the pre-authentication encoding, in base64.
    pub sig: String,
    /// The signer's raw Ed25519 public key, in base64. Absent in the first signature, whose key is
    /// in the envelope: envelopes with one signature are older than those with two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
}

/// The contents of an envelope with one valid signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPayload {
    /// The exact bytes that were signed.
    pub payload: Vec<u8>,
    /// Who signed them.
    pub signer: ClusterId,
    /// The key that the signer's ID is derived from.
    pub public_key: PublicKey,
}

/// Why an envelope is not believed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvelopeError {
    /// The payload or its type is too long.
    #[error("the signed document is larger than {MAX_PAYLOAD_LEN} bytes")]
    TooLarge,
    #[error("the signed document does not have the expected type {expected}")]
    WrongType { expected: &'static str },
    /// A field is not base64, or has the wrong length.
    #[error("the signed document's {field} is malformed")]
    Malformed {
        /// The field's name in JSON.
        field: &'static str,
    },
    #[error("the signed document has {found} signatures instead of {expected}")]
    WrongNumber { found: usize, expected: usize },
    /// The key ID does not belong to the key.
    #[error("the signed document names a cluster that its key does not belong to")]
    ForeignKeyId,
    /// An expected cluster has not signed.
    #[error("the signed document has no signature of cluster {0}")]
    NotSignedBy(ClusterId),
    /// The signature is not over these bytes, this type and by this key.
    #[error(
        "the signature of the signed document is wrong: the document was changed, or signed with another key"
    )]
    BadSignature,
}

impl Envelope {
    pub fn sign(
        identity: &ClusterIdentity,
        payload_type: &str,
        payload: &[u8],
    ) -> Result<Self, EnvelopeError> {
        if payload.len() > MAX_PAYLOAD_LEN || payload_type.len() > MAX_TYPE_LEN {
            return Err(EnvelopeError::TooLarge);
        }
        let first = Signature::over(identity, payload_type, payload);
        Ok(Self {
            payload: BASE64.encode(payload),
            payload_type: payload_type.to_owned(),
            signatures: vec![Signature {
                public_key: None,
                ..first
            }],
            public_key: BASE64.encode(identity.public_key()),
        })
    }

    /// The same document with one more signature over the same bytes.
    #[must_use]
    pub fn with_signature(&self, signature: Signature) -> Self {
        let mut both = self.clone();
        both.signatures.push(signature);
        both
    }

    /// Checks the type, and the only signature. The caller learns who signed.
    pub fn verify(&self, expected_type: &'static str) -> Result<VerifiedPayload, EnvelopeError> {
        let payload = self.decode_payload(expected_type)?;
        let [signature] = self.signatures.as_slice() else {
            return Err(EnvelopeError::WrongNumber {
                found: self.signatures.len(),
                expected: 1,
            });
        };
        let public_key = signature.verify(&self.public_key, expected_type, &payload)?;
        Ok(VerifiedPayload {
            payload,
            signer: ClusterId::of_public_key(&public_key),
            public_key,
        })
    }

    /// Checks that exactly these clusters signed the same bytes, and returns them. No signature is
    /// ignored.
    pub fn verify_signed_by(
        &self,
        expected_type: &'static str,
        signers: &[&ClusterId],
    ) -> Result<Vec<u8>, EnvelopeError> {
        let payload = self.decode_payload(expected_type)?;
        if self.signatures.len() != signers.len() {
            return Err(EnvelopeError::WrongNumber {
                found: self.signatures.len(),
                expected: signers.len(),
            });
        }
        let mut found = Vec::with_capacity(signers.len());
        for signature in &self.signatures {
            let key = signature.public_key.as_ref().unwrap_or(&self.public_key);
            found.push(ClusterId::of_public_key(&signature.verify(
                key,
                expected_type,
                &payload,
            )?));
        }
        match signers.iter().find(|signer| !found.contains(signer)) {
            Some(&missing) => Err(EnvelopeError::NotSignedBy(missing.clone())),
            None => Ok(payload),
        }
    }

    /// The bytes of the payload, if type and length are right. Nobody has vouched for them.
    fn decode_payload(&self, expected_type: &'static str) -> Result<Vec<u8>, EnvelopeError> {
        if self.payload.len() > BASE64.encode_len(MAX_PAYLOAD_LEN) {
            return Err(EnvelopeError::TooLarge);
        }
        if self.payload_type != expected_type {
            return Err(EnvelopeError::WrongType {
                expected: expected_type,
            });
        }
        decode_field(&self.payload, "payload")
    }
}

impl Signature {
    /// The signature of a cluster over a payload of this type, with the cluster's public key.
    pub fn over(identity: &ClusterIdentity, payload_type: &str, payload: &[u8]) -> Self {
        Self {
            keyid: identity.id().to_string(),
            sig: BASE64.encode(&identity.sign(&pre_authentication_encoding(payload_type, payload))),
            public_key: Some(BASE64.encode(identity.public_key())),
        }
    }

    fn verify(
        &self,
        public_key: &str,
        payload_type: &str,
        payload: &[u8],
    ) -> Result<PublicKey, EnvelopeError> {
        let public_key: PublicKey = decode_field(public_key, "publicKey")?
            .try_into()
            .map_err(|_| EnvelopeError::Malformed { field: "publicKey" })?;
        if self.keyid != ClusterId::of_public_key(&public_key).as_str() {
            return Err(EnvelopeError::ForeignKeyId);
        }
        let bytes = decode_field(&self.sig, "signatures")?;
        UnparsedPublicKey::new(&ED25519, &public_key)
            .verify(&pre_authentication_encoding(payload_type, payload), &bytes)
            .map_err(|_| EnvelopeError::BadSignature)?;
        Ok(public_key)
    }
}

/// SHA-256 of a payload, in lower-case hexadecimal. Documents refer to each other by it.
pub fn payload_digest(payload: &[u8]) -> String {
    HEXLOWER.encode(ring::digest::digest(&ring::digest::SHA256, payload).as_ref())
}

fn decode_field(text: &str, field: &'static str) -> Result<Vec<u8>, EnvelopeError> {
    BASE64
        .decode(text.as_bytes())
        .map_err(|_| EnvelopeError::Malformed { field })
}

/// DSSE's PAE: `"DSSEv1" SP LEN(type) SP type SP LEN(body) SP body`, lengths in decimal ASCII.
fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut encoding = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    )
    .into_bytes();
    encoding.extend_from_slice(payload);
    encoding
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::{Just, ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const TYPE: &str = "application/vnd.liqo.test+json";

    fn signed() -> (ClusterIdentity, Envelope) {
        let identity = ClusterIdentity::generate().unwrap();
        let envelope = Envelope::sign(&identity, TYPE, b"{\"a\" : 1}").unwrap();
        (identity, envelope)
    }

    #[test]
    fn the_encoding_is_that_of_the_dsse_specification() {
        assert_eq!(
            pre_authentication_encoding("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
        assert_eq!(pre_authentication_encoding("", b""), b"DSSEv1 0  0 ");
    }

    #[test]
    fn a_known_key_gives_a_known_signature() {
        // RFC 8032, section 7.1, test 1.
        let seed = data_encoding::HEXLOWER
            .decode(b"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
            .unwrap();
        let public = data_encoding::HEXLOWER
            .decode(b"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
            .unwrap();
        let pair =
            ring::signature::Ed25519KeyPair::from_seed_and_public_key(&seed, &public).unwrap();
        assert_eq!(
            data_encoding::HEXLOWER.encode(pair.sign(b"").as_ref()),
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        );
        let sig = pair.sign(&pre_authentication_encoding(TYPE, b"{}"));
        let key: PublicKey = public.try_into().unwrap();
        let envelope = Envelope {
            payload: "e30=".to_owned(),
            payload_type: TYPE.to_owned(),
            signatures: vec![Signature {
                keyid: ClusterId::of_public_key(&key).to_string(),
                sig: BASE64.encode(sig.as_ref()),
                public_key: None,
            }],
            public_key: "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=".to_owned(),
        };
        assert_eq!(envelope.verify(TYPE).unwrap().payload, b"{}");
    }

    #[test]
    fn verifying_gives_back_the_exact_bytes_and_the_signer() {
        let (identity, envelope) = signed();
        let text = serde_json::to_string(&envelope).unwrap();
        let verified = serde_json::from_str::<Envelope>(&text)
            .unwrap()
            .verify(TYPE)
            .unwrap();
        assert_eq!(verified.payload, b"{\"a\" : 1}");
        assert_eq!(&verified.signer, identity.id());
        assert_eq!(&verified.public_key, identity.public_key());
    }

    #[test]
    fn a_changed_payload_is_refused() {
        let (_, mut envelope) = signed();
        envelope.payload = BASE64.encode(b"{\"a\" : 2}");
        assert_eq!(envelope.verify(TYPE), Err(EnvelopeError::BadSignature));
        // The same JSON with other bytes is another payload.
        envelope.payload = BASE64.encode(b"{\"a\":1}");
        assert_eq!(envelope.verify(TYPE), Err(EnvelopeError::BadSignature));
    }

    #[test]
    fn a_signature_for_one_type_is_no_signature_for_another() {
        let (_, mut envelope) = signed();
        assert_eq!(
            envelope.verify("other"),
            Err(EnvelopeError::WrongType { expected: "other" })
        );
        envelope.payload_type = "other".to_owned();
        assert_eq!(envelope.verify("other"), Err(EnvelopeError::BadSignature));
    }

    #[test]
    fn every_flipped_bit_of_the_signature_is_noticed() {
        let (_, envelope) = signed();
        let good = BASE64
            .decode(envelope.signatures[0].sig.as_bytes())
            .unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut envelope = envelope.clone();
            envelope.signatures[0].sig = BASE64.encode(&bad);
            assert_eq!(
                envelope.verify(TYPE),
                Err(EnvelopeError::BadSignature),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_foreign_key_cannot_sign_under_a_known_id() {
        let (identity, _) = signed();
        let (_, mut envelope) = signed();
        envelope.signatures[0].keyid = identity.id().to_string();
        assert_eq!(envelope.verify(TYPE), Err(EnvelopeError::ForeignKeyId));
        envelope.public_key = BASE64.encode(identity.public_key());
        assert_eq!(envelope.verify(TYPE), Err(EnvelopeError::BadSignature));
    }

    #[test]
    fn exactly_one_signature_is_accepted() {
        let (_, mut envelope) = signed();
        envelope.signatures.push(envelope.signatures[0].clone());
        assert_eq!(
            envelope.verify(TYPE),
            Err(EnvelopeError::WrongNumber {
                found: 2,
                expected: 1
            })
        );
        envelope.signatures.clear();
        assert_eq!(
            envelope.verify(TYPE),
            Err(EnvelopeError::WrongNumber {
                found: 0,
                expected: 1
            })
        );
    }

    #[test]
    fn malformed_fields_are_named() {
        let (_, good) = signed();
        let mut envelope = good.clone();
        envelope.public_key = BASE64.encode(&[1; 31]);
        assert_eq!(
            envelope.verify(TYPE),
            Err(EnvelopeError::Malformed { field: "publicKey" })
        );
        let mut envelope = good.clone();
        envelope.payload = "***".to_owned();
        assert_eq!(
            envelope.verify(TYPE),
            Err(EnvelopeError::Malformed { field: "payload" })
        );
        let mut envelope = good;
        envelope.signatures[0].sig = "é".to_owned();
        assert_eq!(
            envelope.verify(TYPE),
            Err(EnvelopeError::Malformed {
                field: "signatures"
            })
        );
    }

    #[test]
    fn what_is_too_large_is_neither_signed_nor_decoded() {
        let (identity, mut envelope) = signed();
        assert_eq!(
            Envelope::sign(&identity, TYPE, &vec![0; MAX_PAYLOAD_LEN + 1]),
            Err(EnvelopeError::TooLarge)
        );
        assert!(
            Envelope::sign(&identity, TYPE, &vec![0; MAX_PAYLOAD_LEN])
                .unwrap()
                .verify(TYPE)
                .is_ok()
        );
        envelope.payload = "A".repeat(BASE64.encode_len(MAX_PAYLOAD_LEN) + 4);
        assert_eq!(envelope.verify(TYPE), Err(EnvelopeError::TooLarge));
    }

    /// The text of an envelope that is the same in each run.
    fn known_text() -> String {
        let seed = [7; 32];
        let pair = ring::signature::Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let public_key: PublicKey = ring::signature::KeyPair::public_key(&pair)
            .as_ref()
            .try_into()
            .unwrap();
        let sig = BASE64.encode(
            pair.sign(&pre_authentication_encoding(TYPE, PAYLOAD))
                .as_ref(),
        );
        let envelope = Envelope {
            payload: BASE64.encode(PAYLOAD),
            payload_type: TYPE.to_owned(),
            signatures: vec![Signature {
                keyid: ClusterId::of_public_key(&public_key).to_string(),
                sig,
                public_key: None,
            }],
            public_key: BASE64.encode(&public_key),
        };
        serde_json::to_string(&envelope).unwrap()
    }

    const PAYLOAD: &[u8] = br#"{"challenge":"c","audience":"a"}"#;

    #[test]
    fn the_text_that_is_mutated_is_valid() {
        let envelope: Envelope = serde_json::from_str(&known_text()).unwrap();
        assert_eq!(envelope.verify(TYPE).unwrap().payload, PAYLOAD);
    }

    #[test]
    fn an_envelope_with_one_signature_has_the_form_that_older_peers_read() {
        let envelope: serde_json::Value = serde_json::from_str(&known_text()).unwrap();
        let fields: Vec<&String> = envelope.as_object().unwrap().keys().collect();
        assert_eq!(
            fields,
            ["payload", "payloadType", "publicKey", "signatures"]
        );
        let fields: Vec<&String> = envelope["signatures"][0]
            .as_object()
            .unwrap()
            .keys()
            .collect();
        assert_eq!(fields, ["keyid", "sig"]);
    }

    /// A document that two clusters signed.
    fn signed_by_two() -> (ClusterIdentity, ClusterIdentity, Envelope) {
        let (first, envelope) = signed();
        let second = ClusterIdentity::generate().unwrap();
        let envelope = envelope.with_signature(Signature::over(&second, TYPE, b"{\"a\" : 1}"));
        (first, second, envelope)
    }

    #[test]
    fn two_clusters_sign_the_same_bytes() {
        let (first, second, envelope) = signed_by_two();
        let text = serde_json::to_string(&envelope).unwrap();
        let read: Envelope = serde_json::from_str(&text).unwrap();
        for signers in [[first.id(), second.id()], [second.id(), first.id()]] {
            assert_eq!(
                read.verify_signed_by(TYPE, &signers).unwrap(),
                b"{\"a\" : 1}"
            );
        }
        assert_eq!(
            read.verify(TYPE),
            Err(EnvelopeError::WrongNumber {
                found: 2,
                expected: 1
            })
        );
    }

    #[test]
    fn every_expected_cluster_must_have_signed_and_no_other() {
        let (first, second, envelope) = signed_by_two();
        let stranger = ClusterIdentity::generate().unwrap();
        assert_eq!(
            envelope.verify_signed_by(TYPE, &[first.id(), stranger.id()]),
            Err(EnvelopeError::NotSignedBy(stranger.id().clone()))
        );
        assert_eq!(
            envelope.verify_signed_by(TYPE, &[first.id()]),
            Err(EnvelopeError::WrongNumber {
                found: 2,
                expected: 1
            })
        );
        let (_, one) = signed();
        let twice = Envelope {
            signatures: vec![one.signatures[0].clone(); 2],
            ..one
        };
        assert_eq!(
            twice.verify_signed_by(TYPE, &[first.id(), second.id()]),
            Err(EnvelopeError::NotSignedBy(first.id().clone()))
        );
    }

    #[test]
    fn a_second_signature_over_other_bytes_or_with_another_key_is_refused() {
        let (first, second, envelope) = signed_by_two();
        let both = [first.id(), second.id()];
        let (_, one) = signed();
        let other_bytes = Envelope {
            payload: BASE64.encode(b"{\"a\":1}"),
            ..envelope.clone()
        };
        assert_eq!(
            other_bytes.verify_signed_by(TYPE, &both),
            Err(EnvelopeError::BadSignature)
        );
        let mut keyless = envelope.clone();
        keyless.signatures[1].public_key = None;
        assert_eq!(
            keyless.verify_signed_by(TYPE, &both),
            Err(EnvelopeError::ForeignKeyId)
        );
        let mut foreign = envelope;
        foreign.signatures[1].public_key = Some(one.public_key);
        assert_eq!(
            foreign.verify_signed_by(TYPE, &both),
            Err(EnvelopeError::ForeignKeyId)
        );
    }

    #[test]
    fn a_digest_is_sha_256_in_hexadecimal() {
        assert_eq!(
            payload_digest(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn a_mutated_envelope_is_refused_or_says_what_was_signed(text in mutated_text(Just(known_text()))) {
            let Ok(envelope) = serde_json::from_str::<Envelope>(&text) else { return Ok(()) };
            match envelope.verify(TYPE) {
                Ok(verified) => prop_assert_eq!(verified.payload, PAYLOAD),
                Err(error) => prop_assert!(error.to_string().len() < 200),
            }
        }
    }
}
