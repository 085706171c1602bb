//! The consumer: which answer it gave already to a receipt.
//!
//! What the provider shows of that answer counts only with this cluster's own signature over exactly these bytes. While this cluster
//! has its own records of the period, it compares them again instead.

use liqo_api::ReceiptPhase::Signed;
use liqo_api::{Receipt, ReceiptStatus};

use super::answer::{agreement, disagreement};
use super::document::{ReceiptParties, SignedReceipt, answered_phase};

/// What this cluster has of one period.
#[derive(Clone, Copy, Debug)]
pub struct OwnEvidence<'a> {
    /// Its copy of the receipt.
    pub copy: Option<&'a Receipt>,
    /// Whether it has usage records of its own.
    pub has_records: bool,
}

/// The answer that this cluster gave already to a receipt at its provider. `None`: it has to compare.
pub fn given(found: &Receipt, parties: &ReceiptParties, own: OwnEvidence<'_>) -> Option<ReceiptStatus> {
    if let Some(copy) = own.copy.filter(|copy| answered_phase(parties, copy) == Signed) {
        if copy.spec.document != found.spec.document || copy.spec.statement != found.spec.statement {
            return Some(disagreement("this cluster signed another receipt of the same period", None));
        }
        return signed_answer(copy, parties);
    }
    if own.has_records {
        return None;
    }
    signed_answer(found, parties)
}

fn signed_answer(receipt: &Receipt, parties: &ReceiptParties) -> Option<ReceiptStatus> {
    let signed = SignedReceipt::between(parties, receipt).ok()?;
    signed.countersignature(receipt).cloned().map(agreement)
}

#[cfg(test)]
mod tests {
    use liqo_api::{ReceiptPhase, ReceiptSpec};
    use liqo_metering::{Period, Usage};
    use liqo_signing::ClusterIdentity;

    use super::*;
    use crate::receipt::document::tests::contract;

    struct World {
        provider: ClusterIdentity,
        consumer: ClusterIdentity,
        parties: ReceiptParties,
    }

    impl World {
        fn new() -> Self {
            let (provider, consumer) = (ClusterIdentity::generate().unwrap(), ClusterIdentity::generate().unwrap());
            let parties = ReceiptParties { provider: provider.id().clone(), consumer: consumer.id().clone() };
            Self { provider, consumer, parties }
        }

        /// A receipt for these lines that this key signed as the consumer.
        fn signed_by(&self, consumer: &ClusterIdentity, lines: &str) -> Receipt {
            let usage = Usage::read(lines).unwrap();
            let statement = contract(&self.provider, consumer).receipt(Period::at(0, 3600), &usage).unwrap();
            let document = SignedReceipt::compose(&self.provider, &statement).unwrap();
            let signature = SignedReceipt::read(&document).unwrap().countersign(consumer);
            let mut receipt = Receipt::new("r", ReceiptSpec { document, statement });
            receipt.status = Some(agreement(signature));
            receipt
        }

        fn given(&self, found: &Receipt, copy: Option<&Receipt>, has_records: bool) -> Option<ReceiptPhase> {
            given(found, &self.parties, OwnEvidence { copy, has_records }).map(|status| status.phase)
        }
    }

    #[test]
    fn an_answer_that_only_the_provider_shows_needs_our_own_signature_over_these_bytes() {
        let world = World::new();
        let real = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        assert_eq!(world.given(&real, None, false), Some(Signed), "our own signature, and the copy is lost");

        let stranger = ClusterIdentity::generate().unwrap();
        assert_eq!(world.given(&world.signed_by(&stranger, "u p 0 3600 cpu=1\n"), None, false), None);
        let mut replayed = real.clone();
        replayed.spec.statement.totals.insert("EUR".to_owned(), "1000000".parse().unwrap());
        assert_eq!(world.given(&replayed, None, false), None);
        let mut disputed = real.clone();
        disputed.status = Some(disagreement("the provider wrote this", None));
        assert_eq!(world.given(&disputed, None, false), None);
    }

    #[test]
    fn with_own_records_a_cluster_compares_whatever_the_provider_shows() {
        let world = World::new();
        let real = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        assert_eq!(world.given(&real, None, true), None);
        assert_eq!(world.given(&real, Some(&real), true), Some(Signed), "its own copy is its own answer");
        let mut disputed = real.clone();
        disputed.status = Some(disagreement("seconds", None));
        assert_eq!(world.given(&real, Some(&disputed), true), None, "nobody signed yet");
    }

    #[test]
    fn a_period_has_one_receipt_that_this_cluster_signs() {
        let world = World::new();
        let signed = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        let second = world.signed_by(&world.consumer, "u p 0 3600 cpu=2\n");
        assert_eq!(world.given(&second, Some(&signed), true), Some(ReceiptPhase::Disputed));
    }
}
