//! The consumer: records of periods for which no receipt comes.
//!
//! Where a pod ended close to a boundary, or was never charged, a consumer has entries in a period
//! in which the provider counted nothing. A provider completes and charges periods in their order.
//! So when both signed the receipt of a later period, and the provider has neither a record nor a
//! receipt of this one, it will never have any.

use std::collections::{BTreeMap, BTreeSet};

use liqo_api::{Claimed, ReceiptPhase};
use liqo_metering::Seconds;

use super::issue::{ContractPeriod, ReceiptHead, RecordHead};

/// A provider does not look at a contract any more so long after its end, and that of the period
/// then. Twice what it takes.
pub(super) const AFTER_END: Seconds = 2 * 24 * 3600;

/// The end of each contract (its ID) that has ended, in seconds since 1970.
pub type ContractEnds = BTreeMap<String, Seconds>;

/// The complete periods without a receipt here (`copies`) or at the provider (`theirs`), after
/// which this cluster signed one or whose contract ended long ago; the oldest first. Their records
/// can go if the provider has no record of them.
pub fn unclaimed_periods(
    records: &[RecordHead],
    copies: &[&ReceiptHead],
    theirs: &[&Claimed<ReceiptHead>],
    ends: &ContractEnds,
    now: Seconds,
) -> Vec<ContractPeriod> {
    let shown = theirs.iter().map(|receipt| &receipt.unverified().of);
    let known: BTreeSet<&ContractPeriod> = copies
        .iter()
        .map(|receipt| &receipt.of)
        .chain(shown)
        .collect();
    let mut signed: BTreeMap<&str, Seconds> = BTreeMap::new();
    // What only the provider shows deletes no evidence.
    for receipt in copies
        .iter()
        .filter(|receipt| receipt.phase == ReceiptPhase::Signed)
    {
        let last = signed.entry(&receipt.of.0).or_insert(Seconds::MIN);
        *last = (*last).max(receipt.of.1.start);
    }
    let complete = records
        .iter()
        .filter(|record| record.is_last)
        .map(|record| &record.of);
    let found: BTreeSet<&ContractPeriod> = complete
        .filter(|of| {
            let (contract, period) = of;
            let signed_until = signed.get(contract.as_str());
            let is_passed = signed_until.is_some_and(|last| period.end() <= *last)
                || ends
                    .get(contract)
                    .is_some_and(|end| (*end).max(period.end()).saturating_add(AFTER_END) <= now);
            is_passed && !known.contains(of)
        })
        .collect();
    let mut found: Vec<ContractPeriod> = found.into_iter().cloned().collect();
    found.sort_by_key(|of| of.1);
    found
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use liqo_metering::Period;

    use super::*;

    fn of(contract: &str, start: Seconds) -> ContractPeriod {
        (contract.to_owned(), Period::at(start, 60))
    }

    fn record(start: Seconds, is_last: bool) -> RecordHead {
        RecordHead {
            of: of("c", start),
            is_last,
            is_empty: false,
            len: 0,
        }
    }

    fn receipt(contract: &str, start: Seconds, phase: ReceiptPhase) -> ReceiptHead {
        ReceiptHead {
            of: of(contract, start),
            created: Timestamp::UNIX_EPOCH,
            phase,
            is_kept: true,
        }
    }

    fn found(
        records: &[RecordHead],
        receipts: &[ReceiptHead],
        ends: &ContractEnds,
        now: Seconds,
    ) -> Vec<Seconds> {
        let receipts: Vec<&ReceiptHead> = receipts.iter().collect();
        unclaimed_periods(records, &receipts, &[], ends, now)
            .into_iter()
            .map(|of| of.1.start)
            .collect()
    }

    #[test]
    fn complete_records_before_a_signed_receipt_are_unclaimed_if_they_have_none() {
        use ReceiptPhase::{Disputed, Pending, Signed};
        let records = [
            record(120, true),
            record(60, true),
            record(0, false),
            record(180, true),
            record(240, true),
        ];
        let after =
            |receipts: &[ReceiptHead]| found(&records, receipts, &ContractEnds::new(), 1000);
        assert_eq!(after(&[receipt("c", 180, Signed)]), [60, 120]);
        assert_eq!(
            after(&[receipt("c", 180, Signed), receipt("c", 60, Disputed)]),
            [120],
            "they are the evidence"
        );
        assert_eq!(
            after(&[receipt("c", 180, Signed), receipt("c", 120, Pending)]),
            [60]
        );
        assert_eq!(
            after(&[receipt("c", 180, Pending), receipt("c", 240, Disputed)]),
            [0_i64; 0],
            "nothing later is signed"
        );
        assert_eq!(
            after(&[receipt("d", 180, Signed)]),
            [0_i64; 0],
            "another contract"
        );
        assert!(after(&[]).is_empty());
    }

    #[test]
    fn a_receipt_that_only_the_provider_shows_deletes_no_records() {
        let (records, theirs) = (
            [record(60, true)],
            [
                receipt("c", 180, ReceiptPhase::Signed),
                receipt("c", 60, ReceiptPhase::Pending),
            ],
        );
        let found = |copies: &[&ReceiptHead], theirs: &[ReceiptHead]| {
            let theirs: Vec<Claimed<ReceiptHead>> =
                theirs.iter().cloned().map(Claimed::new).collect();
            unclaimed_periods(
                &records,
                copies,
                &theirs.iter().collect::<Vec<_>>(),
                &ContractEnds::new(),
                1000,
            )
            .len()
        };
        assert_eq!(
            (found(&[], &theirs[..1]), found(&[&theirs[0]], &[])),
            (0, 1)
        );
        assert_eq!(
            found(&[&theirs[0]], &theirs[1..]),
            0,
            "a receipt is still to be answered"
        );
    }

    #[test]
    fn after_the_last_receipt_records_are_unclaimed_when_the_contract_is_over_for_long() {
        let (records, ends) = (
            [record(60, true)],
            ContractEnds::from([("c".to_owned(), 60)]),
        );
        let at = |now: Seconds| found(&records, &[], &ends, now);
        assert_eq!(
            (at(120 + AFTER_END - 1).len(), at(120 + AFTER_END)),
            (0, vec![60])
        );
    }
}
