//! Whether a version of a contract costs more than the one that it replaces.
//!
//! A provider may change prices, but pods run when it does, and somebody pays for them. So a dearer
//! version counts only after the notice of the version that it replaces, from the consumer's
//! signature on.

use jiff::Timestamp;
use liqo_api::{ContractTerms, Money};

use super::after;

/// Describes what costs more under the next terms; `None` if nothing does.
pub fn cost_increase(now: &ContractTerms, next: &ContractTerms) -> Option<String> {
    let raised = positive_rates(next).find_map(|charge| {
        let before = now
            .prices
            .get(charge.pool)
            .filter(|list| list.currency == charge.currency);
        let before = before.and_then(|list| list.rates.get(charge.resource));
        let is_raised = before.is_none_or(|before| charge.rate > before);
        let before = before.map_or_else(|| "nothing".to_owned(), |before| before.to_string());
        let PositiveRate {
            pool,
            resource,
            rate,
            currency,
        } = charge;
        is_raised
            .then(|| format!("{resource} of pool {pool} costs {rate} {currency}, and {before} now"))
    });
    raised.or_else(|| {
        changes_charged_amounts(now, next)
            .then(|| "it changes which amounts of a pod are charged".to_owned())
    })
}

/// Whether other amounts of a pod are charged under the next terms, which have a price.
pub fn changes_charged_amounts(now: &ContractTerms, next: &ContractTerms) -> bool {
    let is_same = now.limits.charge == next.limits.charge
        && now.limits.default_limit_percentage == next.limits.default_limit_percentage;
    !is_same && positive_rates(next).next().is_some()
}

/// A rate above zero.
#[derive(Clone, Copy, Debug)]
pub struct PositiveRate<'a> {
    pub pool: &'a str,
    pub resource: &'a str,
    pub rate: Money,
    pub currency: &'a str,
}

/// All resources of the terms that cost something.
pub fn positive_rates(terms: &ContractTerms) -> impl Iterator<Item = PositiveRate<'_>> {
    terms.prices.iter().flat_map(|(pool, list)| {
        let rates = list.rates.iter().filter(|(_, rate)| !rate.is_zero());
        rates.map(|(resource, rate)| PositiveRate {
            pool,
            resource,
            rate,
            currency: &list.currency,
        })
    })
}

/// Time from which terms count that replace others: after their delay, at the latest when the
/// period of the others is over.
pub fn counts_from(signed: Timestamp, replaced: &ContractTerms, next: &ContractTerms) -> Timestamp {
    let delayed = after(signed, next.counts_after_seconds.unwrap_or_default());
    replaced
        .end
        .as_ref()
        .map_or(delayed, |end| delayed.min(end.0))
        .max(signed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use liqo_api::{Charge, Time};

    use super::*;
    use crate::contract::fixtures::{Parties, at, terms};

    #[allow(
        clippy::needless_pass_by_value,
        reason = "JSON literals are written in place"
    )]
    fn priced(currency: &str, rates: serde_json::Value) -> ContractTerms {
        let list =
            serde_json::from_value(serde_json::json!({ "currency": currency, "rates": rates }))
                .unwrap();
        ContractTerms {
            prices: BTreeMap::from([("default".to_owned(), list)]),
            ..terms(&Parties::known())
        }
    }

    #[test]
    fn a_version_is_dearer_if_a_rate_rises_or_other_amounts_are_charged() {
        use serde_json::json;
        let now = priced("EUR", json!({ "cpu": "0.04" }));
        let is_dearer = |next: &ContractTerms| cost_increase(&now, next).is_some();
        assert!(
            !is_dearer(&now)
                && !is_dearer(&priced("EUR", json!({ "cpu": "0.03" })))
                && !is_dearer(&terms(&Parties::known()))
        );
        assert!(
            is_dearer(&priced("EUR", json!({ "cpu": "0.05" })))
                && is_dearer(&priced("USD", json!({ "cpu": "0.01" })))
        );
        assert!(is_dearer(&priced(
            "EUR",
            json!({ "cpu": "0.04", "pods": "0.000000001" })
        )));
        assert!(
            !is_dearer(&priced("EUR", json!({ "cpu": "0.04", "pods": "0" })))
                && !is_dearer(&priced("USD", json!({ "cpu": "0" })))
        );
        let mut another_pool = now.clone();
        another_pool
            .prices
            .insert("gold".to_owned(), now.prices["default"].clone());
        assert!(is_dearer(&another_pool));
        let mut limits = now.clone();
        limits.limits.charge = Charge::Limits;
        assert!(is_dearer(&limits));
        let mut percentage = now.clone();
        percentage.limits.default_limit_percentage = 100_000;
        assert!(is_dearer(&percentage));
        let free = terms(&Parties::known());
        let mut limits = free.clone();
        limits.limits.charge = Charge::Limits;
        assert_eq!(
            cost_increase(&free, &limits),
            None,
            "nothing costs anything"
        );
    }

    #[test]
    fn a_version_counts_after_its_delay_or_when_the_period_before_is_over() {
        let now = terms(&Parties::known());
        let delayed = ContractTerms {
            counts_after_seconds: Some(300),
            ..now.clone()
        };
        let ending = ContractTerms {
            end: Some(Time(at(2100))),
            ..now.clone()
        };
        assert_eq!(counts_from(at(2000), &now, &now), at(2000));
        assert_eq!(counts_from(at(2000), &now, &delayed), at(2300));
        assert_eq!(
            (
                counts_from(at(2000), &ending, &delayed),
                counts_from(at(2200), &ending, &delayed)
            ),
            (at(2100), at(2200))
        );
    }
}
