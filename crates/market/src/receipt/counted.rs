//! The consumer: whether its own entries of a period are complete, so that it can answer the
//! receipt.
//!
//! Offloading marks each period as complete when it knows all pods, and writes an empty record if
//! it counted nothing. That may be long after the end of the period, when either manager was away.
//! A clock says nothing about it.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use liqo_api::ReceiptPhase;
use liqo_metering::Seconds;

use super::issue::{ContractPeriod, ReceiptHead, RecordHead};
use super::unclaimed::{AFTER_END, ContractEnds};

/// Delay before the consumer compares a disputed receipt again. Nobody has signed anything yet.
const COMPARED_AGAIN_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// Whether this cluster's entries of a period are complete. `copies` are its own copies of
/// receipts. `ends` has each contract that is known here, with the end of those that ended.
pub fn is_counted(
    of: &ContractPeriod,
    records: &[RecordHead],
    copies: &[&ReceiptHead],
    ends: &ContractEnds,
    is_known: bool,
    now: Seconds,
) -> bool {
    let (contract, period) = of;
    // Nobody counts any more under a contract that ended long ago, or that this cluster does not
    // know.
    let end = if is_known {
        ends.get(contract).copied()
    } else {
        Some(period.end())
    };
    if end.is_some_and(|end| end.max(period.end()).saturating_add(AFTER_END) <= now) {
        return true;
    }
    let mut own = records.iter().filter(|record| record.of == *of).peekable();
    if own.peek().is_some() {
        return own.any(|record| record.is_last);
    }
    // When a period is complete, so are all before it.
    counted_periods(records, copies)
        .any(|other| other.0 == *contract && other.1.end() >= period.end())
}

/// Whether a receipt that this cluster disputed is compared again. `compared`: when this process
/// did that last.
pub fn is_compared_again(compared: Option<Timestamp>, now: Timestamp) -> bool {
    compared.is_none_or(|last| now.duration_since(last) >= COMPARED_AGAIN_AFTER)
}

/// The periods in which this cluster counted nothing, and said so in a record that makes no
/// difference any more: a later period is complete, or this cluster signed its receipt.
pub fn superseded_periods(records: &[RecordHead], copies: &[&ReceiptHead]) -> Vec<ContractPeriod> {
    let with_entries: BTreeSet<&ContractPeriod> = records
        .iter()
        .filter(|record| !record.is_empty)
        .map(|record| &record.of)
        .collect();
    let all: BTreeSet<&ContractPeriod> = records.iter().map(|record| &record.of).collect();
    all.difference(&with_entries)
        .filter(|of| {
            counted_periods(records, copies)
                .any(|other| other.0 == of.0 && other.1.start > of.1.start)
        })
        .map(|of| (*of).clone())
        .collect()
}

/// The periods that this cluster has counted, as its own records and copies say.
fn counted_periods<'a>(
    records: &'a [RecordHead],
    copies: &'a [&ReceiptHead],
) -> impl Iterator<Item = &'a ContractPeriod> {
    let complete = records
        .iter()
        .filter(|record| record.is_last)
        .map(|record| &record.of);
    let signed = copies
        .iter()
        .filter(|copy| copy.phase == ReceiptPhase::Signed)
        .map(|copy| &copy.of);
    complete.chain(signed)
}

#[cfg(test)]
mod tests {
    use liqo_metering::Period;

    use super::*;

    const HOUR: Seconds = 3600;

    fn of(hour: i64) -> ContractPeriod {
        ("c".to_owned(), Period::at(hour * HOUR, 3600))
    }

    fn record(hour: i64, is_last: bool, is_empty: bool) -> RecordHead {
        RecordHead {
            of: of(hour),
            is_last,
            is_empty,
            len: 0,
        }
    }

    fn counted(hour: i64, records: &[RecordHead], now: Seconds) -> bool {
        is_counted(&of(hour), records, &[], &ContractEnds::new(), true, now)
    }

    #[test]
    fn a_receipt_waits_for_the_own_count_however_long_a_manager_was_away() {
        // The provider was away for ten minutes, hours, or a month, over the boundary: its receipt
        // comes, and the own count not yet.
        for now in [HOUR + 600, 12 * HOUR, 30 * 24 * HOUR] {
            assert!(!counted(0, &[], now), "at {now}");
            assert!(
                !counted(0, &[record(0, false, false)], now),
                "at {now}: pods may be missing"
            );
        }
        assert!(counted(
            0,
            &[record(0, false, false), record(0, true, false)],
            HOUR + 600
        ));
        assert!(
            counted(0, &[record(0, true, true)], HOUR + 600),
            "this cluster counted nothing, and says so"
        );
        assert!(
            counted(0, &[record(7, true, true)], 12 * HOUR),
            "after an outage one record speaks for all before it"
        );
        assert!(!counted(8, &[record(7, true, true)], 12 * HOUR));
        let other = RecordHead {
            of: ("d".to_owned(), of(7).1),
            ..record(7, true, true)
        };
        assert!(!counted(0, &[other], 12 * HOUR), "another contract");
    }

    #[test]
    fn what_this_cluster_signed_says_that_it_had_counted() {
        let signed = |phase| ReceiptHead {
            of: of(3),
            created: Timestamp::UNIX_EPOCH,
            phase,
            is_kept: true,
        };
        let counted = |hour, copy: &ReceiptHead| {
            is_counted(
                &of(hour),
                &[],
                &[copy],
                &ContractEnds::new(),
                true,
                5 * HOUR,
            )
        };
        let copy = signed(ReceiptPhase::Signed);
        assert!(
            counted(2, &copy) && !counted(4, &copy) && !counted(2, &signed(ReceiptPhase::Pending))
        );
    }

    #[test]
    fn a_receipt_of_a_contract_that_is_unknown_or_long_over_is_answered_in_the_end() {
        let at =
            |ends: &ContractEnds, is_known, now| is_counted(&of(0), &[], &[], ends, is_known, now);
        let ends = ContractEnds::from([("c".to_owned(), HOUR)]);
        assert!(!at(&ends, true, HOUR + AFTER_END - 1) && at(&ends, true, HOUR + AFTER_END));
        assert!(
            !at(&ContractEnds::new(), false, HOUR + AFTER_END - 1)
                && at(&ContractEnds::new(), false, HOUR + AFTER_END)
        );
        assert!(
            !at(&ContractEnds::new(), true, HOUR + AFTER_END),
            "it is in force"
        );
    }

    #[test]
    fn a_dispute_is_compared_again_after_a_restart_and_each_hour() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(is_compared_again(None, at(0)));
        assert!(
            !is_compared_again(Some(at(0)), at(HOUR - 1))
                && is_compared_again(Some(at(0)), at(HOUR))
        );
    }

    #[test]
    fn only_the_last_record_that_says_nothing_was_counted_stays() {
        let records = [
            record(0, true, true),
            record(1, true, true),
            record(2, true, false),
            record(3, true, true),
        ];
        assert_eq!(superseded_periods(&records, &[]), [of(0), of(1)]);
        assert!(superseded_periods(&records[3..], &[]).is_empty());
        let signed = ReceiptHead {
            of: of(4),
            created: Timestamp::UNIX_EPOCH,
            phase: ReceiptPhase::Signed,
            is_kept: true,
        };
        assert_eq!(superseded_periods(&records[3..], &[&signed]), [of(3)]);
        let mixed = [
            record(0, false, false),
            record(0, true, true),
            record(1, true, true),
        ];
        assert!(
            superseded_periods(&mixed, &[]).is_empty(),
            "its last chunk is empty, and another one is not"
        );
    }
}
