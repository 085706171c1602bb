//! The signed bytes of a contract, and what they say.

use liqo_api::{CONTRACT_PAYLOAD, ClusterId, ContractSignature, ContractTerms, MAX_CONTRACT_LEN};
use liqo_signing::{ClusterIdentity, Envelope, EnvelopeError, Signature, payload_digest};
use serde_json::Value;

/// Reason to reject a document.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DocumentError {
    #[error(
        "the contract is longer than {MAX_CONTRACT_LEN} bytes: fewer pools, or fewer prices, make it shorter"
    )]
    TooLong,
    #[error("the contract's document is no signed envelope: {0}")]
    NoEnvelope(String),
    #[error("{0}")]
    Envelope(EnvelopeError),
    #[error("the contract's terms cannot be read: {0}")]
    Unreadable(String),
    #[error(
        "the contract's terms say something that this version of Liqo does not understand: update Liqo to sign them"
    )]
    NotUnderstood,
    #[error("the contract names {named} as its provider, but {signer} signed it")]
    OtherProvider { named: ClusterId, signer: ClusterId },
    #[error("the signature covers version {signed}, and the terms are version {version}")]
    OtherVersion { signed: u32, version: u32 },
}

/// Whoever writes terms knows the limit of a contract, and not that of an envelope.
impl From<EnvelopeError> for DocumentError {
    fn from(error: EnvelopeError) -> Self {
        if error == EnvelopeError::TooLarge {
            Self::TooLong
        } else {
            Self::Envelope(error)
        }
    }
}

/// A document with the valid signature of its provider.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractDocument {
    pub envelope: Envelope,
    /// The exact bytes that were signed.
    pub payload: Vec<u8>,
    /// The terms in these bytes.
    pub terms: ContractTerms,
    /// SHA-256 of the payload, in hexadecimal.
    pub digest: String,
}

impl ContractDocument {
    /// Signs terms as their provider. Returns the text that is stored.
    pub fn compose(
        identity: &ClusterIdentity,
        terms: &ContractTerms,
    ) -> Result<String, DocumentError> {
        let payload = serde_json::to_vec(terms)
            .map_err(|error| DocumentError::Unreadable(error.to_string()))?;
        let envelope = Envelope::sign(identity, CONTRACT_PAYLOAD, &payload)?;
        let text = serde_json::to_string(&envelope)
            .map_err(|error| DocumentError::NoEnvelope(error.to_string()))?;
        if text.len() > MAX_CONTRACT_LEN {
            Err(DocumentError::TooLong)
        } else {
            Ok(text)
        }
    }

    /// Reads a stored text. Only the provider may have signed it, and every word of it must be
    /// understood.
    pub fn read(text: &str) -> Result<Self, DocumentError> {
        if text.len() > MAX_CONTRACT_LEN {
            return Err(DocumentError::TooLong);
        }
        let envelope: Envelope = serde_json::from_str(text)
            .map_err(|error| DocumentError::NoEnvelope(shortened_error(&error)))?;
        let verified = envelope.verify(CONTRACT_PAYLOAD)?;
        let value: Value =
            serde_json::from_slice(&verified.payload).map_err(|error| unreadable_terms(&error))?;
        let terms: ContractTerms =
            serde_json::from_slice(&verified.payload).map_err(|error| unreadable_terms(&error))?;
        // Who signs terms has read all of them.
        if serde_json::to_value(&terms).ok().as_ref() != Some(&value) {
            return Err(DocumentError::NotUnderstood);
        }
        if terms.provider != verified.signer {
            return Err(DocumentError::OtherProvider {
                named: terms.provider,
                signer: verified.signer,
            });
        }
        Ok(Self {
            digest: payload_digest(&verified.payload),
            envelope,
            payload: verified.payload,
            terms,
        })
    }

    /// Signs the same bytes as the consumer.
    pub fn countersign(&self, identity: &ClusterIdentity) -> ContractSignature {
        let Signature {
            keyid,
            sig,
            public_key,
        } = Signature::over(identity, CONTRACT_PAYLOAD, &self.payload);
        ContractSignature {
            version: self.terms.version,
            keyid,
            public_key: public_key.unwrap_or_default(),
            sig,
        }
    }

    /// The document with both signatures.
    pub fn with_countersignature(&self, signature: &ContractSignature) -> Envelope {
        let ContractSignature {
            keyid,
            public_key,
            sig,
            ..
        } = signature.clone();
        self.envelope.with_signature(Signature {
            keyid,
            sig,
            public_key: Some(public_key),
        })
    }

    /// Checks that provider and consumer signed the same bytes.
    pub fn check_countersignature(
        &self,
        signature: &ContractSignature,
    ) -> Result<(), DocumentError> {
        if signature.version != self.terms.version {
            return Err(DocumentError::OtherVersion {
                signed: signature.version,
                version: self.terms.version,
            });
        }
        let signers = [&self.terms.provider, &self.terms.consumer];
        self.with_countersignature(signature)
            .verify_signed_by(CONTRACT_PAYLOAD, &signers)?;
        Ok(())
    }
}

fn unreadable_terms(error: &serde_json::Error) -> DocumentError {
    DocumentError::Unreadable(shortened_error(error))
}

/// Errors repeat what the other cluster wrote.
pub fn shortened_error(error: &serde_json::Error) -> String {
    error.to_string().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::fixtures::{Parties, terms};

    #[test]
    fn both_sign_the_same_bytes() {
        let parties = Parties::new();
        let text = ContractDocument::compose(&parties.provider, &terms(&parties)).unwrap();
        let document = ContractDocument::read(&text).unwrap();
        assert_eq!(document.terms, terms(&parties));
        let signature = document.countersign(&parties.consumer);
        assert_eq!(document.check_countersignature(&signature), Ok(()));
        assert_eq!(
            serde_json::to_string(&document.envelope).unwrap(),
            text,
            "the stored text is the envelope"
        );
    }

    #[test]
    fn only_the_consumer_in_the_terms_can_countersign_and_only_this_version() {
        let parties = Parties::new();
        let document = parties.document(&terms(&parties));
        let stranger = ClusterIdentity::generate().unwrap();
        assert!(
            document
                .check_countersignature(&document.countersign(&stranger))
                .is_err()
        );
        let other = ContractSignature {
            version: 2,
            ..document.countersign(&parties.consumer)
        };
        assert_eq!(
            document.check_countersignature(&other),
            Err(DocumentError::OtherVersion {
                signed: 2,
                version: 1
            })
        );
        let next = parties.document(&ContractTerms {
            version: 2,
            ..terms(&parties)
        });
        assert!(
            document
                .check_countersignature(&ContractSignature {
                    version: 1,
                    ..next.countersign(&parties.consumer)
                })
                .is_err()
        );
    }

    #[test]
    fn nobody_proposes_terms_in_the_name_of_another_provider() {
        let parties = Parties::new();
        let text = ContractDocument::compose(&parties.consumer, &terms(&parties)).unwrap();
        assert!(matches!(
            ContractDocument::read(&text),
            Err(DocumentError::OtherProvider { .. })
        ));
    }

    #[test]
    fn terms_that_this_version_does_not_understand_are_not_signed() {
        let parties = Parties::new();
        let mut value = serde_json::to_value(terms(&parties)).unwrap();
        value["penalty"] = serde_json::json!("1000 EUR");
        let envelope = Envelope::sign(
            &parties.provider,
            CONTRACT_PAYLOAD,
            &serde_json::to_vec(&value).unwrap(),
        )
        .unwrap();
        assert_eq!(
            ContractDocument::read(&serde_json::to_string(&envelope).unwrap()),
            Err(DocumentError::NotUnderstood)
        );
    }

    #[test]
    fn a_contract_that_is_too_long_is_not_proposed() {
        let parties = Parties::new();
        // The second is also longer than an envelope may be.
        for classes in [500, 2000] {
            let mut long = terms(&parties);
            long.classes.storage = (0..classes)
                .map(|number| format!("a-long-name-of-a-storage-class-{number}"))
                .collect();
            assert_eq!(
                ContractDocument::compose(&parties.provider, &long),
                Err(DocumentError::TooLong)
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_contract_with_a_changed_byte_is_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let parties = Parties::known();
            let text = ContractDocument::compose(&parties.provider, &terms(&parties)).unwrap();
            let mut bytes = text.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
            if let Ok(document) = ContractDocument::read(&changed) {
                prop_assert_eq!(document.terms, terms(&parties), "only the form of the envelope may differ");
            }
        }
    }
}
