//! The signed bytes of a receipt, and what they say.

use liqo_api::ReceiptPhase::{self, Disputed, Pending, Signed};
use liqo_api::{
    Claimed, ClusterId, RECEIPT_PAYLOAD_TYPE, Receipt, ReceiptSignature, ReceiptStatement,
    consumer_of_tenant_namespace, provider_namespace,
};
use liqo_signing::{ClusterIdentity, Envelope, EnvelopeError, Signature};

use crate::contract::document::shortened_error;

/// Maximum length of a receipt's document in bytes.
pub const MAX_DOCUMENT_LEN: usize = liqo_api::MAX_RECEIPT_LEN;

/// Reason to reject a receipt.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReceiptError {
    #[error("the receipt is longer than {MAX_DOCUMENT_LEN} bytes")]
    TooLong,
    #[error("the receipt's document is no signed envelope: {0}")]
    NoEnvelope(String),
    #[error("{0}")]
    Envelope(EnvelopeError),
    #[error("the receipt's statement cannot be read: {0}")]
    Unreadable(String),
    #[error("the receipt names {named} as its provider, but {signer} signed it")]
    OtherProvider { named: String, signer: String },
    #[error("the copy of the statement differs from what the provider signed")]
    CopyDiffers,
    #[error("it is about other clusters")]
    OtherClusters,
}

/// The two clusters that a receipt has to be about. They follow from where it is, never from what
/// it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptParties {
    pub provider: ClusterId,
    pub consumer: ClusterId,
}

impl ReceiptParties {
    /// The parties of the receipts in a namespace of this cluster: it lends in tenant namespaces,
    /// and borrows in provider namespaces.
    pub fn of_namespace(own: &ClusterId, namespace: &str) -> Option<Self> {
        if let Some(consumer) = consumer_of_tenant_namespace(namespace) {
            return Some(Self {
                provider: own.clone(),
                consumer,
            });
        }
        let provider: ClusterId = namespace.rsplit('-').next()?.parse().ok()?;
        (namespace == provider_namespace(&provider)).then(|| Self {
            provider,
            consumer: own.clone(),
        })
    }
}

impl From<EnvelopeError> for ReceiptError {
    fn from(error: EnvelopeError) -> Self {
        if error == EnvelopeError::TooLarge {
            Self::TooLong
        } else {
            Self::Envelope(error)
        }
    }
}

/// A receipt with the valid signature of its provider.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedReceipt {
    pub envelope: Envelope,
    /// The exact bytes that were signed.
    payload: Vec<u8>,
    /// The statement in these bytes.
    pub statement: ReceiptStatement,
}

impl SignedReceipt {
    /// Signs a statement as the provider. Returns the text that is stored.
    pub fn compose(
        identity: &ClusterIdentity,
        statement: &ReceiptStatement,
    ) -> Result<String, ReceiptError> {
        let payload = serde_json::to_vec(statement)
            .map_err(|error| ReceiptError::Unreadable(error.to_string()))?;
        let envelope = Envelope::sign(identity, RECEIPT_PAYLOAD_TYPE, &payload)?;
        let text = serde_json::to_string(&envelope)
            .map_err(|error| ReceiptError::NoEnvelope(error.to_string()))?;
        if text.len() > MAX_DOCUMENT_LEN {
            Err(ReceiptError::TooLong)
        } else {
            Ok(text)
        }
    }

    /// Reads a stored text. Only the provider may have signed it.
    pub fn read(text: &str) -> Result<Self, ReceiptError> {
        if text.len() > MAX_DOCUMENT_LEN {
            return Err(ReceiptError::TooLong);
        }
        let envelope: Envelope = serde_json::from_str(text)
            .map_err(|error| ReceiptError::NoEnvelope(shortened_error(&error)))?;
        let verified = envelope.verify(RECEIPT_PAYLOAD_TYPE)?;
        let statement: ReceiptStatement = serde_json::from_slice(&verified.payload)
            .map_err(|error| ReceiptError::Unreadable(shortened_error(&error)))?;
        if statement.provider != verified.signer {
            let (named, signer) = (statement.provider.to_string(), verified.signer.to_string());
            return Err(ReceiptError::OtherProvider { named, signer });
        }
        Ok(Self {
            envelope,
            payload: verified.payload,
            statement,
        })
    }

    /// Reads a receipt between two clusters. Whoever reads its statement afterwards reads what was
    /// signed.
    pub fn between_parties(
        parties: &ReceiptParties,
        receipt: Claimed<&Receipt>,
    ) -> Result<Self, ReceiptError> {
        let receipt = *receipt.unverified();
        let signed = Self::read(&receipt.spec.document)?;
        if signed.statement != receipt.spec.statement {
            return Err(ReceiptError::CopyDiffers);
        }
        if (&signed.statement.provider, &signed.statement.consumer)
            != (&parties.provider, &parties.consumer)
        {
            return Err(ReceiptError::OtherClusters);
        }
        Ok(signed)
    }

    /// The consumer's valid signature, if the receipt has one: the kept one, or the one that the
    /// consumer shows.
    pub fn countersignature<'a>(
        &self,
        receipt: Claimed<&'a Receipt>,
    ) -> Option<&'a ReceiptSignature> {
        let receipt = *receipt.unverified();
        let shown = receipt
            .status
            .as_ref()
            .and_then(|status| status.signature.as_ref());
        let all = [receipt.spec.countersignature.as_ref(), shown];
        all.into_iter()
            .flatten()
            .find(|signature| self.check_countersignature(signature).is_ok())
    }

    /// Signs the same bytes as the consumer.
    pub fn countersign(&self, identity: &ClusterIdentity) -> ReceiptSignature {
        let Signature {
            keyid,
            sig,
            public_key,
        } = Signature::over(identity, RECEIPT_PAYLOAD_TYPE, &self.payload);
        ReceiptSignature {
            keyid,
            public_key: public_key.unwrap_or_default(),
            sig,
        }
    }

    /// Checks that provider and consumer signed the same bytes.
    pub fn check_countersignature(
        &self,
        signature: &ReceiptSignature,
    ) -> Result<(), EnvelopeError> {
        let ReceiptSignature {
            keyid,
            public_key,
            sig,
        } = signature.clone();
        let both = self.envelope.with_signature(Signature {
            keyid,
            sig,
            public_key: Some(public_key),
        });
        let signers = [&self.statement.provider, &self.statement.consumer];
        both.verify_signed_by(RECEIPT_PAYLOAD_TYPE, &signers)
            .map(drop)
    }
}

/// The answer to a receipt between two clusters. Both signatures make it signed, never a word.
pub fn answered_phase(parties: &ReceiptParties, receipt: Claimed<&Receipt>) -> ReceiptPhase {
    let signed = SignedReceipt::between_parties(parties, receipt);
    if signed.is_ok_and(|signed| signed.countersignature(receipt).is_some()) {
        return Signed;
    }
    match receipt
        .unverified()
        .status
        .as_ref()
        .map(|status| status.phase)
    {
        Some(Disputed) => Disputed,
        _ => Pending,
    }
}

#[cfg(test)]
pub mod tests {
    use liqo_metering::receipt::{ContractVersion, ReceiptContract};
    use liqo_metering::{Period, UsageEntries};
    use proptest::prelude::*;

    use super::*;

    pub fn contract(provider: &ClusterIdentity, consumer: &ClusterIdentity) -> ReceiptContract {
        let version = ContractVersion {
            version: 1,
            digest: "d".repeat(64),
            from: 0,
            prices: std::collections::BTreeMap::new(),
        };
        let id = "0123456789abcdef0123456789abcdef".to_owned();
        ReceiptContract {
            id,
            provider: provider.id().clone(),
            consumer: consumer.id().clone(),
            versions: vec![version],
            end: None,
        }
    }

    fn signed() -> (ClusterIdentity, ClusterIdentity, String) {
        let (provider, consumer) = (
            ClusterIdentity::generate().unwrap(),
            ClusterIdentity::generate().unwrap(),
        );
        let usage = UsageEntries::parse("u p 0 3600 cpu=1\n").unwrap();
        let statement = contract(&provider, &consumer)
            .receipt(Period::at(0, 3600), &usage)
            .unwrap();
        let text = SignedReceipt::compose(&provider, &statement).unwrap();
        (provider, consumer, text)
    }

    #[test]
    fn both_sign_the_same_bytes_and_nobody_else_does() {
        let (_, consumer, text) = signed();
        let receipt = SignedReceipt::read(&text).unwrap();
        assert_eq!(
            receipt.check_countersignature(&receipt.countersign(&consumer)),
            Ok(())
        );
        let stranger = ClusterIdentity::generate().unwrap();
        assert!(
            receipt
                .check_countersignature(&receipt.countersign(&stranger))
                .is_err()
        );
        assert_eq!(receipt.statement.pods, 1);
    }

    #[test]
    fn nobody_writes_a_receipt_in_the_name_of_another_provider() {
        let (_, consumer, text) = signed();
        let statement = SignedReceipt::read(&text).unwrap().statement;
        let forged = SignedReceipt::compose(&consumer, &statement).unwrap();
        assert!(matches!(
            SignedReceipt::read(&forged),
            Err(ReceiptError::OtherProvider { .. })
        ));
    }

    #[test]
    fn the_parties_of_a_receipt_follow_from_its_namespace() {
        let id = |byte: u8| ClusterId::of_public_key(&[byte; 32]);
        let of = |namespace: &str| ReceiptParties::of_namespace(&id(1), namespace);
        let lent = ReceiptParties {
            provider: id(1),
            consumer: id(2),
        };
        assert_eq!(of(&liqo_api::tenant_namespace(&id(2))), Some(lent));
        let borrowed = ReceiptParties {
            provider: id(2),
            consumer: id(1),
        };
        assert_eq!(of(&provider_namespace(&id(2))), Some(borrowed));
        assert_eq!((of(&format!("other-{}", id(2))), of("liqo")), (None, None));
    }

    #[test]
    fn a_receipt_counts_as_signed_only_between_the_clusters_of_its_namespace() {
        let (provider, consumer, document) = signed();
        let parties = ReceiptParties {
            provider: provider.id().clone(),
            consumer: consumer.id().clone(),
        };
        let read = SignedReceipt::read(&document).unwrap();
        let mut receipt = Receipt::new(
            "r",
            liqo_api::ReceiptSpec {
                document,
                statement: read.statement.clone(),
                countersignature: None,
            },
        );
        let mut status = liqo_api::ReceiptStatus {
            phase: Signed,
            ..liqo_api::ReceiptStatus::default()
        };
        receipt.status = Some(status.clone());
        assert_eq!(
            answered_phase(&parties, Claimed::new(&receipt)),
            Pending,
            "a word is no signature"
        );
        status.signature = Some(read.countersign(&consumer));
        receipt.status = Some(status);
        assert_eq!(answered_phase(&parties, Claimed::new(&receipt)), Signed);

        // Two throw-away keys sign whatever they like.
        let other = ReceiptParties {
            provider: ClusterIdentity::generate().unwrap().id().clone(),
            ..parties.clone()
        };
        assert_eq!(answered_phase(&other, Claimed::new(&receipt)), Pending);
        // Real signatures of an old receipt, below a statement that nobody signed.
        receipt
            .spec
            .statement
            .totals
            .insert("EUR".to_owned(), "1000000".parse().unwrap());
        assert_eq!(answered_phase(&parties, Claimed::new(&receipt)), Pending);
        assert_eq!(
            SignedReceipt::between_parties(&parties, Claimed::new(&receipt)),
            Err(ReceiptError::CopyDiffers)
        );
    }

    #[test]
    fn a_receipt_of_the_largest_statement_can_be_signed_and_stored_with_the_longest_dispute() {
        use liqo_api::{
            Dispute, DisputedPod, MAX_DISPUTED_PODS, Receipt, ReceiptPhase, ReceiptSpec,
            ReceiptStatus,
        };
        use liqo_metering::receipt::MAX_STATEMENT_LEN;

        let (provider, consumer, text) = signed();
        let mut statement = SignedReceipt::read(&text).unwrap().statement;
        let length = |statement: &ReceiptStatement| serde_json::to_string(statement).unwrap().len();
        let mut pool = statement.pools[0].clone();
        pool.pool = "p".repeat(200);
        while length(&statement) < MAX_STATEMENT_LEN - 400 {
            statement.pools.push(pool.clone());
        }
        statement.contract =
            "c".repeat(statement.contract.len() + MAX_STATEMENT_LEN - length(&statement));
        assert_eq!(length(&statement), MAX_STATEMENT_LEN);

        let document = SignedReceipt::compose(&provider, &statement).unwrap();
        let signature = SignedReceipt::read(&document)
            .unwrap()
            .countersign(&consumer);
        let pod = DisputedPod {
            uid: "u".repeat(253),
            provider_seconds: i64::MAX,
            consumer_seconds: i64::MIN,
            message: "m".repeat(256),
        };
        let dispute = Dispute {
            number: u64::MAX,
            pods: vec![pod; MAX_DISPUTED_PODS],
        };
        let mut receipt = Receipt::new(
            "receipt",
            ReceiptSpec {
                document,
                statement,
                countersignature: Some(signature.clone()),
            },
        );
        let message = Some("\u{10ffff}".repeat(1024));
        receipt.status = Some(ReceiptStatus {
            phase: ReceiptPhase::Disputed,
            message,
            signature: Some(signature),
            dispute: Some(dispute),
        });
        let stored = serde_json::to_string(&receipt).unwrap().len();
        assert!(stored < 160 * 1024, "{stored} bytes; etcd takes 1.5 MiB");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn a_receipt_with_a_changed_byte_is_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let (_, _, text) = signed();
            let before = SignedReceipt::read(&text).unwrap().statement;
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
            if let Ok(receipt) = SignedReceipt::read(&changed) {
                prop_assert_eq!(receipt.statement, before, "only the form of the envelope may differ");
            }
        }
    }
}
