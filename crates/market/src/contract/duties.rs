//! Finds duties that the other side, or this side itself, does not fulfil.
//!
//! The consumer judges only what it saw itself: a notice only if it was connected for longer than
//! the tolerance when the notice came, because otherwise it does not know when the provider
//! announced it.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::{
    BreachKind, Claimed, Commitment, ContractEnd, ContractSpec, ContractTerms, EndCause, Party,
    ResourceList, ResourceOffer, Time,
};

use super::{
    TOLERANCE, after,
    breaches::BreachFinding,
    document::ContractDocument,
    record::{ContractAtProvider, ContractCopy},
};

/// The object of breaches that are about the contract and not about a pool.
pub const CONTRACT: &str = "contract";

/// Promised amounts that an offer lacks, in words; `None` if it has all of them.
pub fn missing_amounts(promised: &ResourceList, offered: Option<&ResourceList>) -> Option<String> {
    let mut words = Vec::new();
    for (name, promised) in promised {
        let offered = offered.map(|list| list.get(name)).unwrap_or_default();
        if offered < promised {
            words.push(format!("{offered} of {promised} {name}"));
        }
    }
    (!words.is_empty()).then(|| format!("it offers only {}", words.join(", ")))
}

/// Whether the provider ends guaranteed amounts before the date that it promised.
pub fn ended_early(terms: &ContractTerms, end: &ContractEnd) -> Option<BreachFinding> {
    let promised = &terms
        .end
        .as_ref()
        .filter(|_| terms.commitment == Commitment::Guaranteed)?
        .0;
    let by_provider = end.by == Party::Provider && end.cause != EndCause::Breach;
    (by_provider && is_before(end.at.0, *promised)).then(|| {
        let message = format!(
            "it ends at {}, and the amounts are guaranteed until {promised}",
            end.at.0
        );
        by_provider_finding(BreachKind::EndedEarly, CONTRACT, message)
    })
}

/// Whether a time is earlier than another one by more than clocks differ.
fn is_before(time: Timestamp, limit: Timestamp) -> bool {
    time.saturating_add(TOLERANCE)
        .is_ok_and(|time| time < limit)
}

fn by_provider_finding(kind: BreachKind, object: &str, message: String) -> BreachFinding {
    BreachFinding::new(Party::Provider, kind, object, message)
}

/// State of one contract, as the consumer sees it.
pub struct ObservedContract<'a> {
    pub record: &'a ContractAtProvider,
    /// The terms that this cluster signed.
    pub signed: Option<&'a ContractDocument>,
    /// The copy here, from the last time.
    pub copy: Option<&'a ContractCopy>,
    /// The offers at the provider, and their copies here, by pool.
    pub offers: &'a BTreeMap<String, Arc<Claimed<ResourceOffer>>>,
    pub offer_copies: &'a BTreeMap<String, Arc<ResourceOffer>>,
    /// Whether the connection has worked for longer than the tolerance.
    pub steady: bool,
    pub now: Timestamp,
}

#[derive(Debug, Default, PartialEq)]
pub struct ContractFindings {
    pub certain: Vec<BreachFinding>,
    /// Breaches only if they last.
    pub unconfirmed: Vec<BreachFinding>,
    /// Kinds that could not be looked at.
    pub unknown: Vec<BreachKind>,
}

impl ObservedContract<'_> {
    /// The contract that the provider shows. Nothing but breaches follows from it.
    fn shown_contract(&self) -> &ContractSpec {
        self.record.spec.unverified()
    }

    fn shown_offer(&self, pool: &str) -> Option<&ResourceOffer> {
        self.offers.get(pool).map(|offer| offer.unverified())
    }

    fn shown_offers(&self) -> impl Iterator<Item = (&String, &ResourceOffer)> {
        self.offers
            .iter()
            .map(|(pool, offer)| (pool, offer.unverified()))
    }

    fn is_over(&self) -> bool {
        self.shown_contract()
            .ended
            .as_ref()
            .is_some_and(|end| end.at.0 <= self.now)
    }

    pub fn findings(&self) -> ContractFindings {
        let mut findings = ContractFindings {
            certain: self.terms_findings(),
            ..ContractFindings::default()
        };
        let ended = self.shown_contract().ended.as_ref();
        let Some(signed) = self.signed.filter(|_| !self.is_over()) else {
            findings.unknown = vec![BreachKind::CapacityMissing, BreachKind::PriceDiffers];
            return findings;
        };
        findings
            .certain
            .extend(ended.and_then(|end| ended_early(&signed.terms, end)));
        findings.certain.extend(self.price_findings(&signed.terms));
        if ended.is_none() {
            findings.unconfirmed = self.amount_findings(&signed.terms);
        } else {
            findings.unknown.push(BreachKind::CapacityMissing);
        }
        if self.steady {
            findings.certain.extend(self.notice_findings(&signed.terms));
            findings.certain.extend(self.notice_of_end(&signed.terms));
        }
        findings
    }

    /// Whether the provider's copy of the terms, and what it acts on, is what this cluster signed.
    fn terms_findings(&self) -> Vec<BreachFinding> {
        let mut found = Vec::new();
        let difference = match &self.record.current {
            Ok(current) if current.document.terms != self.shown_contract().terms => Some(
                differing_fields(&current.document.terms, &self.shown_contract().terms),
            ),
            Ok(_) => None,
            Err(error) => Some(error.clone()),
        };
        found.extend(
            difference.map(|difference| {
                by_provider_finding(BreachKind::TermsDiffer, CONTRACT, difference)
            }),
        );
        let pending = self
            .record
            .amendment()
            .zip(self.shown_contract().pending.as_ref());
        if let Some((read, pending)) =
            pending.filter(|(read, pending)| read.document.terms != pending.terms)
        {
            found.push(by_provider_finding(
                BreachKind::TermsDiffer,
                "amendment",
                differing_fields(&read.document.terms, &pending.terms),
            ));
        }
        let was_signed = self
            .copy
            .is_some_and(|copy| copy.spec.in_force_since.is_some());
        // A copy that this cluster lost is no breach of the provider.
        let acts = was_signed
            || (self.shown_contract().in_force_since.is_some()
                && self.record.signed_document().is_none());
        if self.signed.is_none() && acts && self.record.current.is_ok() && !self.is_over() {
            let message = format!(
                "the provider's terms are version {}, which this cluster did not sign",
                self.shown_contract().terms.version
            );
            found.push(by_provider_finding(
                BreachKind::TermsNotSigned,
                CONTRACT,
                message,
            ));
        }
        found
    }

    /// Whether an offer is under this contract.
    fn is_under(&self, offer: &ResourceOffer) -> bool {
        let contract = offer.spec.contract.as_ref();
        contract.is_some_and(|contract| contract.name == self.record.name && contract.in_force)
    }

    fn price_findings(&self, terms: &ContractTerms) -> Vec<BreachFinding> {
        let differing = self.shown_offers().filter(|(pool, offer)| {
            let same_version = offer
                .spec
                .contract
                .as_ref()
                .is_some_and(|contract| contract.version == terms.version);
            self.is_under(offer)
                && same_version
                && offer.spec.prices.as_ref() != terms.prices.get(*pool)
        });
        differing
            .map(|(pool, offer)| {
                let message = format!(
                    "the offer says {}, the contract {}",
                    prices_text(offer.spec.prices.as_ref()),
                    prices_text(terms.prices.get(pool))
                );
                by_provider_finding(BreachKind::PriceDiffers, pool, message)
            })
            .collect()
    }

    fn amount_findings(&self, terms: &ContractTerms) -> Vec<BreachFinding> {
        let guaranteed = terms
            .pools
            .iter()
            .filter(|_| terms.commitment == Commitment::Guaranteed);
        guaranteed
            .filter_map(|pool| {
                let offered = self
                    .shown_offer(&pool.name)
                    .map(|offer| &offer.spec.resource_quota.hard);
                let missing = missing_amounts(&pool.resources, offered)?;
                let kind = BreachKind::CapacityMissing;
                Some(by_provider_finding(kind, &pool.name, missing))
            })
            .collect()
    }

    /// Whether the provider takes something back too early. Only an announcement that is new
    /// counts.
    fn notice_findings(&self, terms: &ContractTerms) -> Vec<BreachFinding> {
        let due = after(self.now, terms.notice_seconds);
        let mut found = Vec::new();
        let copies = self
            .offer_copies
            .iter()
            .filter(|(_, copy)| self.is_under(copy) && copy.spec.withdrawal_timestamp.is_none());
        for (pool, copy) in copies {
            let offer = self.shown_offer(pool);
            let message = match offer.map(|offer| first_new_end(offer, copy)) {
                None if self.shown_contract().ended.is_none() => {
                    "the offer went without a notice".to_owned()
                }
                Some(Some(Time(end)))
                    if is_before(end, due) && !self.ends_as_agreed(terms, end) =>
                {
                    format!(
                        "it takes back at {end} what it announces at {}: the notice is {} s",
                        self.now, terms.notice_seconds
                    )
                }
                _ => continue,
            };
            found.push(by_provider_finding(
                BreachKind::NoticeTooShort,
                pool,
                message,
            ));
        }
        found
    }

    /// Whether a time is the end that the terms name, or one that this cluster asked for.
    fn ends_as_agreed(&self, terms: &ContractTerms, time: Timestamp) -> bool {
        let by_terms = terms
            .end
            .as_ref()
            .is_some_and(|end| !is_before(time, end.0));
        by_terms
            || self
                .shown_contract()
                .ended
                .as_ref()
                .is_some_and(|end| end.by == Party::Consumer)
    }

    fn notice_of_end(&self, terms: &ContractTerms) -> Option<BreachFinding> {
        let known = self.copy.is_none_or(|copy| copy.spec.ended.is_some());
        let end = self.shown_contract().ended.as_ref().filter(|_| !known)?;
        let is_short = is_before(end.at.0, after(self.now, terms.notice_seconds))
            && !self.ends_as_agreed(terms, end.at.0);
        is_short.then(|| {
            let message = format!(
                "it ends at {}, announced at {}: the notice is {} s",
                end.at.0, self.now, terms.notice_seconds
            );
            by_provider_finding(BreachKind::NoticeTooShort, CONTRACT, message)
        })
    }
}

/// A contract that both signed is gone at the provider.
pub fn removal_finding() -> BreachFinding {
    by_provider_finding(
        BreachKind::NoticeTooShort,
        CONTRACT,
        "the provider removed the contract without a notice".to_owned(),
    )
}

/// Names the fields in which two lists of terms differ.
pub fn differing_fields(signed: &ContractTerms, shown: &ContractTerms) -> String {
    let (signed, shown) = (terms_fields(signed), terms_fields(shown));
    let names: std::collections::BTreeSet<&String> = signed.keys().chain(shown.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| signed.get(*name) != shown.get(*name));
    let words: Vec<String> = differing
        .map(|name| {
            format!(
                "{name} is {} instead of {}",
                value_text(shown.get(name)),
                value_text(signed.get(name))
            )
        })
        .collect();
    words.join("; ")
}

fn terms_fields(terms: &ContractTerms) -> serde_json::Map<String, serde_json::Value> {
    serde_json::to_value(terms)
        .ok()
        .and_then(|value| value.as_object().cloned())
        .unwrap_or_default()
}

fn value_text(value: Option<&serde_json::Value>) -> String {
    value.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

fn prices_text(prices: Option<&liqo_api::PriceList>) -> String {
    prices.map_or_else(|| "no price".to_owned(), ToString::to_string)
}

/// The first time at which an offer takes something back that its copy does not say.
fn first_new_end(offer: &ResourceOffer, copy: &ResourceOffer) -> Option<Time> {
    let (offer, copy) = (&offer.spec, &copy.spec);
    let reclaim = offer.reclaim_timestamp.clone();
    let drain = offer.drain_timestamp.clone();
    let ends = [
        offer.withdrawal_timestamp.clone(),
        reclaim.filter(|_| copy.reclaim_timestamp.is_none()),
        drain.filter(|_| copy.drain_timestamp.is_none()),
    ];
    ends.into_iter().flatten().min_by_key(|time| time.0)
}
