//! Whether a contract has room for terms that others replace.
//!
//! Receipts need the terms of the whole period, so a contract lists those that were replaced, and
//! the list is bounded. While it is full of terms that a receipt still needs, the provider proposes
//! no other change: what was used under the oldest terms could not be charged.

use jiff::Timestamp;
use liqo_api::{ContractSpec, EarlierTerms};
use liqo_metering::Period;

/// Seconds after the end of a period in which both sides write and compare its receipt, also if
/// their clocks differ.
const RECEIPT_SECONDS: i64 = 3600;
/// Places that only renewals take: a contract that is not renewed ends.
const FOR_RENEWALS: usize = 2;

/// Time at which there will be room to replace the terms in force; `None` if there is room now.
pub fn full_until(spec: &ContractSpec, renews: bool, now: Timestamp) -> Option<Timestamp> {
    let replaced = EarlierTerms {
        version: spec.terms.version,
        digest: "0".repeat(64),
        since: spec.in_force_since.clone()?,
        prices: spec.terms.prices.clone(),
    };
    let more = 1 + if renews { 0 } else { FOR_RENEWALS };
    // The last one that must leave applied until the next one did.
    let leaving = spec
        .surplus_terms(more, replaced.json_len())
        .checked_sub(1)?;
    let next = spec
        .earlier
        .get(leaving + 1)
        .map_or(&replaced.since, |next| &next.since);
    let last = Period::at(
        next.0.as_second().saturating_sub(1),
        spec.terms.metering_period_seconds,
    );
    let until = Timestamp::from_second(last.end().saturating_add(RECEIPT_SECONDS)).ok()?;
    (until > now).then_some(until)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use liqo_api::{MAX_EARLIER_LEN, MAX_EARLIER_TERMS, PriceList, Time};

    use super::*;
    use crate::contract::fixtures::{Parties, at, terms};

    /// A contract whose terms changed at these times, after version 1 at second 1000.
    fn changed(times: impl IntoIterator<Item = i64>) -> ContractSpec {
        let parties = Parties::known();
        let mut spec = parties.in_force(&terms(&parties)).spec;
        for (time, version) in times.into_iter().zip(1..) {
            let since = spec.in_force_since.replace(Time(at(time))).unwrap();
            spec.earlier.push(EarlierTerms {
                version,
                digest: "d".repeat(64),
                since,
                prices: spec.terms.prices.clone(),
            });
        }
        spec
    }

    #[test]
    fn there_is_room_until_all_places_but_those_of_renewals_are_taken() {
        let full = |changes: i64, renews, now| {
            full_until(&changed((1..=changes).map(|n| 1000 + n)), renews, at(now))
        };
        assert_eq!(full(0, false, 2000), None);
        assert_eq!(
            (full(61, false, 2000), full(62, false, 2000)),
            (None, Some(at(7200)))
        );
        assert_eq!(
            (full(63, true, 2000), full(64, true, 2000)),
            (None, Some(at(7200)))
        );
        assert_eq!(
            (full(64, false, 7199), full(64, false, 7200)),
            (Some(at(7200)), None)
        );
    }

    #[test]
    fn terms_are_needed_until_the_receipt_of_the_period_in_which_they_were_replaced() {
        // The first ones until the last second of the first period, and the second ones in the
        // second period.
        let until = |first: i64| {
            full_until(
                &changed([first].into_iter().chain((1..62).map(|n| 8000 + n))),
                false,
                at(2000),
            )
        };
        assert_eq!(
            (until(3600), until(3601)),
            (Some(at(7200)), Some(at(10_800)))
        );
    }

    #[test]
    fn long_price_lists_leave_room_for_fewer_terms() {
        let rates = (0..60)
            .map(|n| {
                (
                    format!("example.com/a-long-name-{n}"),
                    "0.123456789".parse().unwrap(),
                )
            })
            .collect();
        let list = PriceList {
            currency: "EUR".to_owned(),
            rates,
        };
        let prices: BTreeMap<String, PriceList> = (0..3)
            .map(|pool| (format!("pool-{pool}"), list.clone()))
            .collect();
        let mut spec = changed([]);
        spec.terms.prices = prices;
        let mut changes = 0;
        while full_until(&spec, false, at(2000)).is_none() {
            changes += 1;
            let since = spec
                .in_force_since
                .replace(Time(at(1000 + changes)))
                .unwrap();
            let digest = "d".repeat(64);
            spec.remember_terms(EarlierTerms {
                version: 1,
                digest,
                since,
                prices: spec.terms.prices.clone(),
            });
            assert_eq!(
                i64::try_from(spec.earlier.len()),
                Ok(changes),
                "nothing that is needed leaves"
            );
        }
        let length: usize = spec.earlier.iter().map(EarlierTerms::json_len).sum();
        assert!(
            spec.earlier.len() < MAX_EARLIER_TERMS / 2 && length < MAX_EARLIER_LEN,
            "{changes} changes take {length} bytes"
        );
        assert_eq!(full_until(&spec, true, at(2000)), None, "it can be renewed");
    }
}
