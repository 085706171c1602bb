//! The consumer: whether it signs a receipt.

use liqo_api::ReceiptPhase::{Disputed, Signed};
use liqo_api::{Claimed, ClusterId, Dispute, Receipt, ReceiptSignature, ReceiptStatus};
use liqo_metering::receipt::{
    ReceiptContract, period_of, statement_contradiction, statement_difference,
};
use liqo_metering::{Tolerance, UsageEntries, compare_usage};
use liqo_signing::ClusterIdentity;

use super::document::{ReceiptParties, SignedReceipt};

/// Facts that the consumer knows when it compares.
#[derive(Clone, Debug)]
pub struct ConsumerEvidence<'a> {
    pub provider: &'a ClusterId,
    /// The contract, from this cluster's copy.
    pub contract: Option<&'a ReceiptContract>,
    /// The provider's entries of the period, or why they cannot be read.
    pub theirs: &'a Claimed<Result<UsageEntries, String>>,
    /// This cluster's own entries.
    pub ours: &'a UsageEntries,
    pub tolerance: Tolerance,
}

pub fn answer_receipt(
    receipt: Claimed<&Receipt>,
    evidence: &ConsumerEvidence<'_>,
    identity: &ClusterIdentity,
) -> ReceiptStatus {
    match check_receipt(receipt, evidence, identity) {
        Ok(signed) => agreement_status(signed.countersign(identity)),
        Err(refusal) => disagreement_status(&refusal.message, refusal.dispute),
    }
}

/// The answer with this cluster's signature.
pub(super) fn agreement_status(signature: ReceiptSignature) -> ReceiptStatus {
    let message = Some("both clusters counted the same".to_owned());
    ReceiptStatus {
        phase: Signed,
        message,
        signature: Some(signature),
        dispute: None,
    }
}

/// The answer of a cluster that does not sign.
pub(super) fn disagreement_status(message: &str, dispute: Option<Dispute>) -> ReceiptStatus {
    ReceiptStatus {
        phase: Disputed,
        message: Some(message.chars().take(1000).collect()),
        signature: None,
        dispute,
    }
}

/// A receipt is not signed.
struct ReceiptRefusal {
    message: String,
    /// The pods that differ.
    dispute: Option<Dispute>,
}

fn wrong_receipt(message: impl Into<String>) -> ReceiptRefusal {
    ReceiptRefusal {
        message: message.into(),
        dispute: None,
    }
}

/// The receipt, if it is right.
fn check_receipt(
    receipt: Claimed<&Receipt>,
    evidence: &ConsumerEvidence<'_>,
    identity: &ClusterIdentity,
) -> Result<SignedReceipt, ReceiptRefusal> {
    let parties = ReceiptParties {
        provider: evidence.provider.clone(),
        consumer: identity.id().clone(),
    };
    let signed = SignedReceipt::between_parties(&parties, receipt)
        .map_err(|error| wrong_receipt(error.to_string()))?;
    let statement = &signed.statement;
    let Some(period) = period_of(&statement.period) else {
        return Err(wrong_receipt("its period is none"));
    };
    if let Some(message) = statement_contradiction(statement) {
        return Err(wrong_receipt(message));
    }
    let theirs =
        evidence.theirs.unverified().as_ref().map_err(|why| {
            wrong_receipt(format!("the provider's entries cannot be read: {why}"))
        })?;
    if theirs
        .entries()
        .any(|entry| entry.from.at < period.start || entry.until.at > period.end())
    {
        return Err(wrong_receipt(
            "the provider's entries are not all in the period",
        ));
    }
    let Some(contract) = evidence
        .contract
        .filter(|contract| contract.id == statement.contract)
    else {
        return Err(wrong_receipt("this cluster has no such contract"));
    };
    let expected = contract
        .receipt(period, theirs)
        .map_err(|error| wrong_receipt(error.to_string()))?;
    if let Some(message) = statement_difference(&expected, statement) {
        return Err(wrong_receipt(message));
    }
    let comparison = compare_usage(theirs, evidence.ours, evidence.tolerance);
    match comparison.dispute() {
        None => Ok(signed),
        Some(dispute) => {
            let pods = if dispute.number == 1 { "pod" } else { "pods" };
            Err(ReceiptRefusal {
                message: format!(
                    "the provider counted more than this cluster for {} {pods}",
                    dispute.number
                ),
                dispute: Some(dispute),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::{ReceiptPhase, ReceiptSpec};
    use liqo_metering::Period;

    use super::*;
    use crate::receipt::document::tests::contract;

    const THEIRS: &str = "u p 0 3600 cpu=1\nv p 10 20 cpu=1\n";

    struct Case {
        provider: ClusterIdentity,
        consumer: ClusterIdentity,
        contract: ReceiptContract,
        receipt: Receipt,
        theirs: Result<UsageEntries, String>,
        ours: UsageEntries,
    }

    impl Case {
        fn new() -> Self {
            let (provider, consumer) = (
                ClusterIdentity::generate().unwrap(),
                ClusterIdentity::generate().unwrap(),
            );
            let contract = contract(&provider, &consumer);
            let theirs = UsageEntries::parse(THEIRS).unwrap();
            let statement = contract.receipt(Period::at(0, 3600), &theirs).unwrap();
            let document = SignedReceipt::compose(&provider, &statement).unwrap();
            let receipt = Receipt::new(
                "r",
                ReceiptSpec {
                    document,
                    statement,
                    countersignature: None,
                },
            );
            Self {
                provider,
                consumer,
                contract,
                receipt,
                ours: theirs.clone(),
                theirs: Ok(theirs),
            }
        }

        fn answer(&self) -> (ReceiptPhase, String, Option<Dispute>) {
            let evidence = ConsumerEvidence {
                provider: self.provider.id(),
                contract: Some(&self.contract),
                theirs: &Claimed::new(self.theirs.clone()),
                ours: &self.ours,
                tolerance: Tolerance::default(),
            };
            let status = answer_receipt(Claimed::new(&self.receipt), &evidence, &self.consumer);
            if let Some(signature) = &status.signature {
                SignedReceipt::read(&self.receipt.spec.document)
                    .unwrap()
                    .check_countersignature(signature)
                    .unwrap();
            }
            (status.phase, status.message.unwrap(), status.dispute)
        }

        fn disputed(&self) -> String {
            let (phase, message, _) = self.answer();
            assert_eq!(phase, ReceiptPhase::Disputed, "{message}");
            message
        }
    }

    #[test]
    fn a_receipt_of_what_both_counted_is_signed() {
        assert_eq!(Case::new().answer().0, ReceiptPhase::Signed);
    }

    #[test]
    fn a_pod_that_the_provider_counts_too_long_is_named() {
        let ours = UsageEntries::parse("u p 0 3600 cpu=1\nv p 10 19 cpu=1\n").unwrap();
        let (phase, message, dispute) = Case {
            ours,
            ..Case::new()
        }
        .answer();
        assert_eq!(
            (phase, message.as_str()),
            (
                ReceiptPhase::Disputed,
                "the provider counted more than this cluster for 1 pod"
            )
        );
        let pods = dispute.unwrap().pods;
        assert_eq!(
            (
                pods[0].uid.as_str(),
                pods[0].provider_seconds,
                pods[0].consumer_seconds
            ),
            ("v", 10, 9)
        );
    }

    #[test]
    fn whatever_does_not_follow_from_the_contract_and_the_entries_is_disputed() {
        let mut case = Case::new();
        case.theirs = Err("they take 20 MiB".to_owned());
        assert!(case.disputed().contains("20 MiB"));

        let mut case = Case::new();
        case.theirs = Ok(UsageEntries::parse("u p 0 3600 cpu=1\n").unwrap());
        assert!(case.disputed().contains("digest"));

        let mut case = Case::new();
        case.theirs = Ok(UsageEntries::parse("u p 0 9000 cpu=1\n").unwrap());
        assert!(case.disputed().contains("in the period"));

        let mut case = Case::new();
        case.receipt.spec.statement.pods = 7;
        assert!(case.disputed().contains("copy"));

        let mut case = Case::new();
        case.contract.id = "other".to_owned();
        assert!(case.disputed().contains("no such contract"));

        let mut case = Case::new();
        case.consumer = ClusterIdentity::generate().unwrap();
        assert!(case.disputed().contains("other clusters"));
    }
}
