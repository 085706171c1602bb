//! The provider: which periods get a receipt now, and what is deleted. The consumer uses the same
//! rules for its copies.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use liqo_api::{Claimed, MeteringSettings, Receipt, ReceiptPhase, ReceiptSignature, UsageRecord};
use liqo_metering::Period;
use liqo_metering::receipt::{period_of, receipt_name};

use super::document::{ReceiptParties, SignedReceipt, answered_phase};

/// Number of periods, the latest ones, whose records are always kept although not both sides have
/// signed. A busy period may take a megabyte.
const ALWAYS_KEPT: usize = 100;
/// Records of older periods are kept as well while all of a peer take at most so many bytes: 32
/// MiB.
const MAX_UNSIGNED_LEN: usize = 32 << 20;
/// Bytes of an object in addition to its entries.
const RECORD_OVERHEAD: usize = 1024;

/// The ID of a contract, and a period.
pub type ContractPeriod = (String, Period);

/// A usage record without its entries.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordHead {
    pub of: ContractPeriod,
    /// Whether no more entries will follow.
    pub is_last: bool,
    /// Whether it has no entries.
    pub is_empty: bool,
    /// Bytes that the object takes.
    pub len: usize,
}

/// A receipt without its statement.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceiptHead {
    pub of: ContractPeriod,
    pub created: Timestamp,
    /// Signed only with both signatures. The rest is what the consumer says.
    pub phase: ReceiptPhase,
    /// Whether the consumer's signature is where only this cluster writes.
    pub is_kept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReceiptAction {
    /// Write the receipt of a period.
    Issue(ContractPeriod),
    /// Keep the consumer's signature where it cannot take it back.
    KeepSignature(ContractPeriod),
    DeleteRecords(ContractPeriod),
    DeleteReceipt(ContractPeriod),
}

impl RecordHead {
    pub fn reduce(record: UsageRecord) -> Option<Self> {
        let of = (record.spec.contract, period_of(&record.spec.period)?);
        let entries = &record.spec.entries;
        let len = entries.len().saturating_add(RECORD_OVERHEAD);
        Some(Self {
            of,
            is_last: record.spec.chunks.is_some(),
            is_empty: entries.is_empty(),
            len,
        })
    }
}

impl ReceiptHead {
    /// Reads a receipt between two clusters. `None` if its name is not that of its contract and
    /// period.
    pub fn reduce(parties: &ReceiptParties, claimed: Claimed<&Receipt>) -> Option<Self> {
        let receipt = *claimed.unverified();
        let statement = &receipt.spec.statement;
        let of = (statement.contract.clone(), period_of(&statement.period)?);
        if receipt.metadata.name.as_deref() != Some(&receipt_name(&of.0, of.1)) {
            return None;
        }
        let created = receipt
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|created| created.0)
            .unwrap_or_default();
        let phase = answered_phase(parties, claimed);
        let is_kept = phase == ReceiptPhase::Signed
            && kept_signature(parties, claimed).as_ref() == receipt.spec.countersignature.as_ref();
        Some(Self {
            of,
            created,
            phase,
            is_kept,
        })
    }
}

/// The consumer's valid signature, as `spec.countersignature` has to keep it.
pub fn kept_signature(
    parties: &ReceiptParties,
    receipt: Claimed<&Receipt>,
) -> Option<ReceiptSignature> {
    SignedReceipt::between_parties(parties, receipt)
        .ok()?
        .countersignature(receipt)
        .cloned()
}

/// Decides on the records and receipts of one namespace.
pub fn decide_actions<'a>(
    records: impl IntoIterator<Item = &'a RecordHead>,
    receipts: impl IntoIterator<Item = &'a ReceiptHead>,
    settings: &MeteringSettings,
    now: Timestamp,
) -> BTreeSet<ReceiptAction> {
    let receipts: BTreeMap<&ContractPeriod, &ReceiptHead> = receipts
        .into_iter()
        .map(|receipt| (&receipt.of, receipt))
        .collect();
    let mut complete: BTreeMap<&ContractPeriod, bool> = BTreeMap::new();
    let mut lengths: BTreeMap<&ContractPeriod, usize> = BTreeMap::new();
    for record in records {
        *lengths.entry(&record.of).or_default() += record.len;
        *complete.entry(&record.of).or_default() |= record.is_last;
    }
    let mut actions = BTreeSet::new();
    actions.extend(
        beyond_bound(&lengths)
            .into_iter()
            .map(|of| ReceiptAction::DeleteRecords(of.clone())),
    );
    for (of, is_complete) in complete {
        let action = match receipts.get(of) {
            None if is_expired(of.1, settings, now) => {
                Some(ReceiptAction::DeleteRecords(of.clone()))
            }
            None if is_complete => Some(ReceiptAction::Issue(of.clone())),
            Some(receipt) if receipt.is_kept => Some(ReceiptAction::DeleteRecords(of.clone())),
            // They are the evidence.
            _ => None,
        };
        actions.extend(action);
    }
    let surplus = surplus_receipts(receipts.keys().copied(), settings, now);
    let shown = receipts
        .values()
        .filter(|receipt| receipt.phase == ReceiptPhase::Signed && !receipt.is_kept);
    actions.extend(
        shown
            .filter(|receipt| !surplus.contains(&&receipt.of))
            .map(|receipt| ReceiptAction::KeepSignature(receipt.of.clone())),
    );
    for of in surplus {
        actions.insert(ReceiptAction::DeleteReceipt(of.clone()));
        actions.insert(ReceiptAction::DeleteRecords(of.clone()));
    }
    actions
}

/// The periods whose records take too much space, the oldest ones.
fn beyond_bound<'a>(lengths: &BTreeMap<&'a ContractPeriod, usize>) -> Vec<&'a ContractPeriod> {
    let mut periods: Vec<(&'a ContractPeriod, usize)> =
        lengths.iter().map(|(of, len)| (*of, *len)).collect();
    periods.sort_by_key(|(of, _)| std::cmp::Reverse(of.1));
    let (mut sum, mut beyond) = (0_usize, Vec::new());
    for (number, (of, len)) in periods.into_iter().enumerate() {
        sum = sum.saturating_add(len);
        if number >= ALWAYS_KEPT && sum > MAX_UNSIGNED_LEN {
            beyond.push(of);
        }
    }
    beyond
}

/// The receipts that are too old, or too many for their contract.
pub fn surplus_receipts<'a>(
    receipts: impl Iterator<Item = &'a ContractPeriod>,
    settings: &MeteringSettings,
    now: Timestamp,
) -> Vec<&'a ContractPeriod> {
    let mut by_contract: BTreeMap<&str, Vec<&ContractPeriod>> = BTreeMap::new();
    for of in receipts {
        by_contract.entry(&of.0).or_default().push(of);
    }
    let max = usize::try_from(settings.max_receipts).unwrap_or(usize::MAX);
    let mut surplus = Vec::new();
    for mut of_contract in by_contract.into_values() {
        of_contract.sort_by_key(|of| of.1);
        let too_many = of_contract.len().saturating_sub(max);
        for (at, of) in of_contract.into_iter().enumerate() {
            if at < too_many || is_expired(of.1, settings, now) {
                surplus.push(of);
            }
        }
    }
    surplus
}

fn is_expired(period: Period, settings: &MeteringSettings, now: Timestamp) -> bool {
    let kept = SignedDuration::from_hours(i64::from(settings.receipt_days) * 24);
    period.end().saturating_add(kept.as_secs()) < now.as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: i64) -> ContractPeriod {
        ("c".to_owned(), Period::at(start, 3600))
    }

    fn record(start: i64, is_last: bool) -> RecordHead {
        RecordHead {
            of: of(start),
            is_last,
            is_empty: false,
            len: 1 << 20,
        }
    }

    fn receipt(start: i64, phase: ReceiptPhase) -> ReceiptHead {
        ReceiptHead {
            of: of(start),
            created: Timestamp::UNIX_EPOCH,
            phase,
            is_kept: phase == ReceiptPhase::Signed,
        }
    }

    fn decided(
        records: &[RecordHead],
        receipts: &[ReceiptHead],
        settings: &MeteringSettings,
    ) -> Vec<ReceiptAction> {
        decide_actions(
            records,
            receipts,
            settings,
            Timestamp::from_second(20_000).unwrap(),
        )
        .into_iter()
        .collect()
    }

    #[test]
    fn a_period_gets_its_receipt_when_its_records_are_complete() {
        let settings = MeteringSettings::default();
        assert_eq!(
            decided(&[record(0, false), record(0, false)], &[], &settings),
            []
        );
        assert_eq!(
            decided(&[record(0, false), record(0, true)], &[], &settings),
            [ReceiptAction::Issue(of(0))]
        );
        assert_eq!(
            decided(
                &[record(0, true)],
                &[receipt(0, ReceiptPhase::Pending)],
                &settings
            ),
            []
        );
    }

    #[test]
    fn records_go_when_both_signed_and_stay_as_evidence_of_a_dispute() {
        let settings = MeteringSettings::default();
        let records = [record(0, true), record(3600, true)];
        let receipts = [
            receipt(0, ReceiptPhase::Signed),
            receipt(3600, ReceiptPhase::Disputed),
        ];
        assert_eq!(
            decided(&records, &receipts, &settings),
            [ReceiptAction::DeleteRecords(of(0))]
        );
    }

    #[test]
    fn a_signature_is_kept_before_the_records_go_and_cannot_be_taken_back() {
        use liqo_signing::ClusterIdentity;

        let shown = ReceiptHead {
            is_kept: false,
            ..receipt(0, ReceiptPhase::Signed)
        };
        let (records, settings) = ([record(0, true)], MeteringSettings::default());
        assert_eq!(
            decided(&records, &[shown], &settings),
            [ReceiptAction::KeepSignature(of(0))]
        );

        let (provider, consumer) = (
            ClusterIdentity::generate().unwrap(),
            ClusterIdentity::generate().unwrap(),
        );
        let usage = liqo_metering::UsageEntries::parse("u p 0 3600 cpu=1\n").unwrap();
        let contract = crate::receipt::document::tests::contract(&provider, &consumer);
        let statement = contract.receipt(Period::at(0, 3600), &usage).unwrap();
        let document = SignedReceipt::compose(&provider, &statement).unwrap();
        let signature = SignedReceipt::read(&document)
            .unwrap()
            .countersign(&consumer);
        let name = receipt_name(&contract.id, Period::at(0, 3600));
        let mut object = Receipt::new(
            &name,
            liqo_api::ReceiptSpec {
                document,
                statement,
                countersignature: None,
            },
        );
        object.status = Some(liqo_api::ReceiptStatus {
            signature: Some(signature),
            ..liqo_api::ReceiptStatus::default()
        });
        let parties = ReceiptParties {
            provider: contract.provider,
            consumer: contract.consumer,
        };
        let head = |object: &Receipt| {
            ReceiptHead::reduce(&parties, Claimed::new(object))
                .map(|head| (head.phase, head.is_kept))
                .unwrap()
        };
        assert_eq!(head(&object), (ReceiptPhase::Signed, false));
        object.spec.countersignature = kept_signature(&parties, Claimed::new(&object));
        let phase = ReceiptPhase::Disputed;
        object.status = Some(liqo_api::ReceiptStatus {
            phase,
            ..liqo_api::ReceiptStatus::default()
        });
        assert_eq!(
            head(&object),
            (ReceiptPhase::Signed, true),
            "the consumer took it back from the status"
        );
    }

    #[test]
    fn records_of_a_peer_that_never_signs_do_not_fill_the_cluster() {
        let records: Vec<RecordHead> = (0..103).map(|hour| record(hour * 3600, true)).collect();
        let receipts: Vec<ReceiptHead> = (0..103)
            .map(|hour| receipt(hour * 3600, ReceiptPhase::Disputed))
            .collect();
        let expected: Vec<ReceiptAction> = (0..3)
            .map(|hour| ReceiptAction::DeleteRecords(of(hour * 3600)))
            .collect();
        assert_eq!(
            decided(&records, &receipts, &MeteringSettings::default()),
            expected
        );
    }

    #[test]
    fn small_records_of_a_dispute_are_kept_for_longer() {
        let small = |hour: i64| RecordHead {
            len: 32 << 10,
            ..record(hour * 3600, true)
        };
        let records: Vec<RecordHead> = (0..1030).map(small).collect();
        let receipts: Vec<ReceiptHead> = (0..1030)
            .map(|hour| receipt(hour * 3600, ReceiptPhase::Disputed))
            .collect();
        let settings = MeteringSettings {
            max_receipts: 2000,
            ..MeteringSettings::default()
        };
        let expected: Vec<ReceiptAction> = (0..6)
            .map(|hour| ReceiptAction::DeleteRecords(of(hour * 3600)))
            .collect();
        assert_eq!(
            decided(&records, &receipts, &settings),
            expected,
            "1024 of 32 KiB"
        );
    }

    #[test]
    fn the_oldest_receipts_go_first() {
        let settings = MeteringSettings {
            max_receipts: 2,
            ..MeteringSettings::default()
        };
        let receipts: Vec<ReceiptHead> = [7200, 0, 3600]
            .map(|start| receipt(start, ReceiptPhase::Signed))
            .into();
        assert_eq!(
            decided(&[], &receipts, &settings),
            [
                ReceiptAction::DeleteRecords(of(0)),
                ReceiptAction::DeleteReceipt(of(0))
            ]
        );
        let settings = MeteringSettings {
            receipt_days: 0,
            ..MeteringSettings::default()
        };
        assert_eq!(decided(&[], &receipts[1..], &settings).len(), 4);
        assert_eq!(
            decided(&[record(0, true)], &[], &settings),
            [ReceiptAction::DeleteRecords(of(0))],
            "nobody reads it any more"
        );
    }
}
