//! The provider: consumers that answer no receipts.
//!
//! A consumer may dispute what it did not use. One that signs nothing for many periods uses
//! resources without any proof of it.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use liqo_api::ReceiptPhase::{Disputed, Pending, Signed};

use super::issue::ReceiptHead;

/// Number of receipts in a row, the latest ones, of which the consumer has to sign at least one.
pub const MAX_IN_A_ROW: usize = 24;
/// Maximum time that a consumer may take for an answer.
const TIME_TO_ANSWER: SignedDuration = SignedDuration::from_hours(1);

/// The contracts (their IDs) whose latest receipts have no signature of the consumer, each with the
/// evidence.
pub fn unanswered_contracts<R: Borrow<ReceiptHead>>(
    receipts: &[R],
    now: Timestamp,
) -> BTreeMap<String, String> {
    let mut by_contract: BTreeMap<&str, Vec<&ReceiptHead>> = BTreeMap::new();
    for receipt in receipts.iter().map(Borrow::borrow) {
        let is_new = now.duration_since(receipt.created) < TIME_TO_ANSWER;
        if receipt.phase != Pending || !is_new {
            by_contract.entry(&receipt.of.0).or_default().push(receipt);
        }
    }
    by_contract
        .into_iter()
        .filter_map(|(contract, receipts)| {
            Some((contract.to_owned(), missing_answer_evidence(receipts)?))
        })
        .collect()
}

fn missing_answer_evidence(mut receipts: Vec<&ReceiptHead>) -> Option<String> {
    receipts.sort_by_key(|receipt| std::cmp::Reverse(receipt.of.1));
    receipts.truncate(MAX_IN_A_ROW);
    if receipts.len() < MAX_IN_A_ROW || receipts.iter().any(|receipt| receipt.phase == Signed) {
        return None;
    }
    let disputed = receipts
        .iter()
        .filter(|receipt| receipt.phase == Disputed)
        .count();
    let silent = MAX_IN_A_ROW - disputed;
    Some(format!(
        "none of the latest {MAX_IN_A_ROW} receipts is signed: {silent} have no answer, {disputed} are disputed"
    ))
}

#[cfg(test)]
mod tests {
    use liqo_metering::Period;

    use super::*;

    fn receipts(phases: &[liqo_api::ReceiptPhase]) -> Vec<ReceiptHead> {
        let head = |(hour, phase): (i64, &liqo_api::ReceiptPhase)| {
            let period = Period::at(hour * 3600, 3600);
            let created = Timestamp::from_second(period.end()).unwrap();
            ReceiptHead {
                of: ("c".to_owned(), period),
                created,
                phase: *phase,
                is_kept: *phase == Signed,
            }
        };
        (0..).zip(phases).map(head).collect()
    }

    fn found(phases: &[liqo_api::ReceiptPhase], hour: i64) -> Option<String> {
        unanswered_contracts(
            &receipts(phases),
            Timestamp::from_second(hour * 3600).unwrap(),
        )
        .remove("c")
    }

    #[test]
    fn who_signs_none_of_many_receipts_is_found() {
        let mut phases = vec![Signed];
        phases.extend([Pending; MAX_IN_A_ROW - 1]);
        assert_eq!(
            found(&phases, 100),
            None,
            "one of the latest ones is signed"
        );
        phases.push(Disputed);
        let text = found(&phases, 100).unwrap();
        assert!(
            text.ends_with("23 have no answer, 1 are disputed"),
            "{text}"
        );
        phases.push(Signed);
        assert_eq!(found(&phases, 100), None, "it signs again");
    }

    #[test]
    fn a_consumer_has_time_to_answer() {
        let phases = [Pending; MAX_IN_A_ROW];
        let last = i64::try_from(MAX_IN_A_ROW).unwrap();
        assert!(found(&phases, last).is_none() && found(&phases, last + 1).is_some());
    }
}
