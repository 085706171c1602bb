//! The consumer: which answer it gave already to a receipt.
//!
//! What the provider shows of that answer counts only with this cluster's own signature over
//! exactly these bytes. While this cluster has its own records of the period, it compares them
//! again instead.

use liqo_api::ReceiptPhase::Signed;
use liqo_api::{Claimed, Receipt, ReceiptSpec, ReceiptStatus};
use liqo_metering::receipt::{period_of, receipt_name};

use super::answer::{agreement_status, disagreement_status};
use super::document::{ReceiptParties, SignedReceipt, answered_phase};
use super::issue::ContractPeriod;

/// Evidence of this cluster about one period.
#[derive(Clone, Copy, Debug)]
pub struct OwnEvidence<'a> {
    pub copy: Option<&'a Receipt>,
    /// Whether it has usage records of its own.
    pub has_records: bool,
}

/// The answer that this cluster gave already to a receipt at its provider. `None`: it has to
/// compare.
pub fn earlier_answer(
    found: Claimed<&Receipt>,
    parties: &ReceiptParties,
    own: OwnEvidence<'_>,
) -> Option<ReceiptStatus> {
    if let Some(copy) = own
        .copy
        .filter(|copy| answered_phase(parties, Claimed::new(copy)) == Signed)
    {
        if !shows_same(found, copy) {
            return Some(disagreement_status(
                "this cluster signed another receipt of the same period",
                None,
            ));
        }
        return signed_answer(Claimed::new(copy), parties);
    }
    if own.has_records {
        return None;
    }
    signed_answer(found, parties)
}

/// Next step for the copy of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// Create it, or write the new answer into it.
    Write,
    /// Delete it, because it is of another document, and create it again.
    Replace,
    /// It stays as it is: this cluster signed it.
    Keep,
}

/// Decides on the copy after a receipt of the same name was found at the provider. A copy that this
/// cluster signed is never replaced, neither by another receipt of the period nor by one of a
/// contract whose names are the same.
pub fn copy_step(
    copy: Option<&Receipt>,
    found: Claimed<&Receipt>,
    parties: &ReceiptParties,
) -> CopyStep {
    let Some(copy) = copy else {
        return CopyStep::Write;
    };
    let has_same_document = found
        .map(|found| &found.spec.document)
        .says(&&copy.spec.document);
    match answered_phase(parties, Claimed::new(copy)) {
        _ if shows_same(found, copy) => CopyStep::Write,
        Signed => CopyStep::Keep,
        _ if has_same_document => CopyStep::Write,
        _ => CopyStep::Replace,
    }
}

/// Whether an answer of the provider is the object that was asked for: the receipt of this period,
/// under its name.
pub fn is_asked_for(found: Claimed<&Receipt>, of: &ContractPeriod) -> bool {
    let found = *found.unverified();
    let statement = &found.spec.statement;
    let found_of = period_of(&statement.period).map(|period| (statement.contract.clone(), period));
    found_of.as_ref() == Some(of)
        && found.metadata.name.as_deref() == Some(&receipt_name(&of.0, of.1))
}

/// The spec of the copy of a receipt that was answered so. What this cluster disputes is stored as
/// the provider shows it: whoever reads it verifies it again, and says what is wrong with it.
pub fn copy_spec(found: Claimed<&Receipt>, answer: &ReceiptStatus) -> ReceiptSpec {
    ReceiptSpec {
        countersignature: answer.signature.clone(),
        ..found.unverified().spec.clone()
    }
}

/// Whether the provider shows the document and the statement of this cluster's copy.
fn shows_same(found: Claimed<&Receipt>, copy: &Receipt) -> bool {
    found
        .map(|found| (&found.spec.document, &found.spec.statement))
        .says(&(&copy.spec.document, &copy.spec.statement))
}

fn signed_answer(receipt: Claimed<&Receipt>, parties: &ReceiptParties) -> Option<ReceiptStatus> {
    let signed = SignedReceipt::between_parties(parties, receipt).ok()?;
    signed
        .countersignature(receipt)
        .cloned()
        .map(agreement_status)
}

#[cfg(test)]
mod tests {
    use liqo_api::ReceiptPhase;
    use liqo_metering::{Period, UsageEntries};
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
            let (provider, consumer) = (
                ClusterIdentity::generate().unwrap(),
                ClusterIdentity::generate().unwrap(),
            );
            let parties = ReceiptParties {
                provider: provider.id().clone(),
                consumer: consumer.id().clone(),
            };
            Self {
                provider,
                consumer,
                parties,
            }
        }

        /// A receipt for these lines that this key signed as the consumer.
        fn signed_by(&self, consumer: &ClusterIdentity, lines: &str) -> Receipt {
            let usage = UsageEntries::parse(lines).unwrap();
            let statement = contract(&self.provider, consumer)
                .receipt(Period::at(0, 3600), &usage)
                .unwrap();
            let document = SignedReceipt::compose(&self.provider, &statement).unwrap();
            let signature = SignedReceipt::read(&document)
                .unwrap()
                .countersign(consumer);
            let mut receipt = Receipt::new(
                "r",
                ReceiptSpec {
                    document,
                    statement,
                    countersignature: None,
                },
            );
            receipt.status = Some(agreement_status(signature));
            receipt
        }

        fn given(
            &self,
            found: &Receipt,
            copy: Option<&Receipt>,
            has_records: bool,
        ) -> Option<ReceiptPhase> {
            earlier_answer(
                Claimed::new(found),
                &self.parties,
                OwnEvidence { copy, has_records },
            )
            .map(|status| status.phase)
        }
    }

    #[test]
    fn an_answer_that_only_the_provider_shows_needs_our_own_signature_over_these_bytes() {
        let world = World::new();
        let real = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        assert_eq!(
            world.given(&real, None, false),
            Some(Signed),
            "our own signature, and the copy is lost"
        );

        let stranger = ClusterIdentity::generate().unwrap();
        assert_eq!(
            world.given(
                &world.signed_by(&stranger, "u p 0 3600 cpu=1\n"),
                None,
                false
            ),
            None
        );
        let mut replayed = real.clone();
        replayed
            .spec
            .statement
            .totals
            .insert("EUR".to_owned(), "1000000".parse().unwrap());
        assert_eq!(world.given(&replayed, None, false), None);
        let mut disputed = real.clone();
        disputed.status = Some(disagreement_status("the provider wrote this", None));
        assert_eq!(world.given(&disputed, None, false), None);
    }

    #[test]
    fn with_own_records_a_cluster_compares_whatever_the_provider_shows() {
        let world = World::new();
        let real = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        assert_eq!(world.given(&real, None, true), None);
        assert_eq!(
            world.given(&real, Some(&real), true),
            Some(Signed),
            "its own copy is its own answer"
        );
        let mut disputed = real.clone();
        disputed.status = Some(disagreement_status("seconds", None));
        assert_eq!(
            world.given(&real, Some(&disputed), true),
            None,
            "nobody signed yet"
        );
    }

    #[test]
    fn a_period_has_one_receipt_that_this_cluster_signs() {
        let world = World::new();
        let signed = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        let second = world.signed_by(&world.consumer, "u p 0 3600 cpu=2\n");
        assert_eq!(
            world.given(&second, Some(&signed), true),
            Some(ReceiptPhase::Disputed)
        );
    }

    #[test]
    fn an_answer_with_another_object_is_refused_and_a_signed_copy_is_never_replaced() {
        let world = World::new();
        let mut asked = world.signed_by(&world.consumer, "u p 0 3600 cpu=1\n");
        let of = (asked.spec.statement.contract.clone(), Period::at(0, 3600));
        asked.metadata.name = Some(receipt_name(&of.0, of.1));
        assert!(is_asked_for(Claimed::new(&asked), &of));
        let mut named_b = asked.clone();
        named_b.metadata.name = Some("receipt-01234567-197001010100".to_owned());
        assert!(
            !is_asked_for(Claimed::new(&named_b), &of),
            "GET A was answered with B"
        );
        // The names of objects have 8 characters of the contract's ID only.
        let mut twin = asked.clone();
        twin.spec.statement.contract = format!("{}{}", &of.0[..8], "f".repeat(24));
        assert!(!is_asked_for(Claimed::new(&twin), &of));

        let other = world.signed_by(&world.consumer, "u p 0 3600 cpu=2\n");
        let step = |copy: Option<&Receipt>, found: &Receipt| {
            copy_step(copy, Claimed::new(found), &world.parties)
        };
        assert_eq!(
            (step(None, &other), step(Some(&asked), &asked)),
            (CopyStep::Write, CopyStep::Write)
        );
        assert_eq!(step(Some(&asked), &other), CopyStep::Keep);
        assert_eq!(
            step(Some(&asked), &twin),
            CopyStep::Keep,
            "the same document below another statement"
        );
        let mut unsigned = asked.clone();
        unsigned.status = Some(disagreement_status("seconds", None));
        assert_eq!(step(Some(&unsigned), &other), CopyStep::Replace);
    }
}
