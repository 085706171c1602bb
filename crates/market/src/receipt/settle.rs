//! The consumer: which complete periods it adds to the costs that are settled, before their records
//! go.

use std::collections::BTreeMap;

use liqo_metering::{Period, Seconds};

use super::issue::{ReceiptAction, RecordHead};

/// The time until which the costs of each contract (its ID) are settled. A contract without one has
/// none that must be.
pub type SettledUntil = BTreeMap<String, Seconds>;

/// The periods of a contract to settle, in their order. When a period is complete, so are all
/// before it: nothing can be added to them.
pub fn periods_to_settle(contract: &str, records: &[RecordHead], until: Seconds) -> Vec<Period> {
    let of_contract = records.iter().filter(|record| record.of.0 == contract);
    let complete = of_contract
        .clone()
        .filter(|record| record.is_last)
        .map(|record| record.of.1.end())
        .max();
    let mut due: Vec<Period> = of_contract.map(|record| record.of.1).collect();
    due.retain(|period| {
        period.end() > until && complete.is_some_and(|complete| period.end() <= complete)
    });
    due.sort();
    due.dedup();
    due
}

/// Whether an action can be taken now: the records of a complete period are the only place where
/// its costs are, until they are settled.
pub fn is_action_allowed(
    action: &ReceiptAction,
    records: &[RecordHead],
    settled: &SettledUntil,
) -> bool {
    match action {
        ReceiptAction::DeleteRecords(of) => {
            settled.get(&of.0).is_none_or(|until| of.1.end() <= *until)
                || !records
                    .iter()
                    .any(|record| record.of == *of && record.is_last)
        }
        ReceiptAction::Issue(_)
        | ReceiptAction::KeepSignature(_)
        | ReceiptAction::DeleteReceipt(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(contract: &str, start: Seconds, is_last: bool) -> RecordHead {
        RecordHead {
            of: (contract.to_owned(), Period::at(start, 60)),
            is_last,
            is_empty: false,
            len: 0,
        }
    }

    #[test]
    fn complete_periods_and_those_before_them_are_settled_in_their_order() {
        let records = [
            head("c", 60, false),
            head("c", 120, true),
            head("c", 60, true),
            head("c", 180, false),
            head("d", 0, true),
        ];
        let starts = |until| {
            periods_to_settle("c", &records, until)
                .iter()
                .map(|period| period.start)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (starts(0), starts(120), starts(180)),
            (vec![60, 120], vec![120], Vec::new())
        );
        assert_eq!(
            periods_to_settle("c", &records[3..], 0),
            [],
            "nothing is complete"
        );
    }

    #[test]
    fn records_stay_until_their_costs_are_settled() {
        let records = [head("c", 60, true), head("c", 120, false)];
        let settled = |until| SettledUntil::from([("c".to_owned(), until)]);
        let delete = |start| ReceiptAction::DeleteRecords(("c".to_owned(), Period::at(start, 60)));
        assert!(
            !is_action_allowed(&delete(60), &records, &settled(60))
                && is_action_allowed(&delete(60), &records, &settled(120))
        );
        assert!(
            is_action_allowed(&delete(120), &records, &settled(0)),
            "it will never be complete"
        );
        assert!(
            is_action_allowed(&delete(60), &records, &SettledUntil::new()),
            "the contract is gone"
        );
        assert!(is_action_allowed(
            &ReceiptAction::DeleteReceipt(("c".to_owned(), Period::at(60, 60))),
            &records,
            &settled(0)
        ));
    }
}
