//! The parts of a contract that a consumer takes over into its copy.
//!
//! The copy prices what was used, so it contains only what this cluster signed, and what it found
//! itself:
//! - the terms are read from the signed document, never from the readable copy at the provider;
//! - terms count from when the provider says so, if that is between this cluster's signature and
//!   now, as clocks go. Otherwise they count from the signature. A delay that both signed comes on
//!   top of that;
//! - earlier terms are those that the copy itself had before;
//! - an end that the copy has once stays, unless this cluster signed a renewal.
//!
//! Nobody signs since when terms are in force, which terms they replaced, and when they end.
//! Otherwise a provider could date a dearer version back or a cheaper one into the future, list
//! terms that nobody signed, or forget what was spent and say it again later.

use jiff::Timestamp;
use liqo_api::{ContractSpec, EarlierTerms, Time};

use super::{
    TOLERANCE, after,
    dearer::counts_from,
    record::{ContractAtProvider, ContractCopy},
    whole_seconds,
};

/// Facts that this cluster itself knows.
#[derive(Clone, Copy, Debug)]
pub struct OwnKnowledge<'a> {
    /// The copy, from the last time.
    pub copy: Option<&'a ContractCopy>,
    /// Time of this cluster's signature under the terms at the provider, if its own copy has that
    /// signature.
    pub signed: Option<Timestamp>,
    /// The end of the contract before this one.
    pub not_before: Option<Timestamp>,
    /// Whether another contract with this provider is in force.
    pub has_follower: bool,
    pub now: Timestamp,
}

impl OwnKnowledge<'_> {
    /// Time since which terms count. The provider says it: its manager may have been down when this
    /// cluster signed. `agreed`: the time of the signature, and the delay that both signed.
    fn counts_since(&self, said: &Time, agreed: Timestamp) -> Option<Time> {
        let earliest = agreed
            .saturating_sub(TOLERANCE)
            .ok()?
            .max(self.not_before.unwrap_or(Timestamp::MIN));
        let latest = self.now.saturating_add(TOLERANCE).ok()?;
        // A delay cannot be over here before it is, whatever the provider's clock says.
        let is_possible = earliest <= said.0 && said.0 <= latest && agreed <= self.now;
        let not_before = self.not_before.unwrap_or(agreed);
        Some(if is_possible {
            said.clone()
        } else {
            Time(whole_seconds(agreed.max(not_before)))
        })
    }

    /// Whether a contract is over for good. A renewal that this cluster signed before the end may
    /// arrive a little after it.
    fn is_closed(&self, copy: &ContractCopy) -> bool {
        let is_late = copy.spec.ended.as_ref().is_some_and(|end| {
            end.at
                .0
                .saturating_add(TOLERANCE)
                .is_ok_and(|at| at <= self.now)
        });
        copy.is_over(self.now) && (self.has_follower || is_late)
    }
}

/// The next spec of the copy.
pub fn next_copy(known: &OwnKnowledge<'_>, record: &ContractAtProvider) -> ContractSpec {
    let mut spec = signed_contents(record);
    spec.countersignature = spec.countersignature.filter(|_| known.signed.is_some());
    let was_in_force = known
        .copy
        .and_then(|copy| Some((copy, copy.spec.in_force_since.as_ref()?)));
    let replaced = was_in_force
        .and_then(|(copy, _)| copy.current.as_ref().ok())
        .map(|terms| &terms.document.terms);
    // Without terms in force that it replaces, a delay that both signed counts all the same.
    let delay = spec.terms.counts_after_seconds.unwrap_or_default();
    let since = known.signed.and_then(|signed| {
        let counts = match replaced {
            Some(replaced) => counts_from(signed, replaced, &spec.terms),
            None => after(signed, delay),
        };
        known.counts_since(spec.in_force_since.as_ref()?, counts)
    });
    let Some((copy, before)) = was_in_force else {
        spec.in_force_since = since;
        // An end stays also if the contract was signed, and not in force yet: the next one may have
        // begun.
        let own_end = known
            .copy
            .filter(|copy| copy.signed_document().is_some())
            .and_then(|copy| copy.spec.ended.clone());
        spec.ended = own_end.or(spec.ended);
        return spec;
    };
    if spec.document == copy.spec.document {
        spec.in_force_since = Some(before.clone());
        spec.earlier.clone_from(&copy.spec.earlier);
        spec.ended = copy.spec.ended.clone().or(spec.ended);
        return spec;
    }
    match (&copy.current, since) {
        (Ok(replaced), Some(since))
            if spec.terms.version > replaced.document.terms.version && !known.is_closed(copy) =>
        {
            let (version, digest) = (
                replaced.document.terms.version,
                replaced.document.digest.clone(),
            );
            let prices = replaced.document.terms.prices.clone();
            spec.earlier.clone_from(&copy.spec.earlier);
            spec.remember_terms(EarlierTerms {
                version,
                digest,
                since: before.clone(),
                prices,
            });
            spec.in_force_since = Some(Time(since.0.max(before.0)));
            spec
        }
        _ => ContractSpec {
            ended: copy.spec.ended.clone().or(spec.ended),
            breaches: spec.breaches,
            ..copy.spec.clone()
        },
    }
}

/// The contract at the provider without what nobody signed: readable terms are those of the
/// documents, and no earlier terms.
fn signed_contents(record: &ContractAtProvider) -> ContractSpec {
    let mut spec = ContractSpec {
        earlier: Vec::new(),
        ..record.spec.unverified().clone()
    };
    if let Ok(current) = &record.current {
        spec.terms = current.document.terms.clone();
    }
    if let (Some(pending), Some(amendment)) = (&mut spec.pending, record.amendment()) {
        pending.terms = amendment.document.terms.clone();
    }
    spec
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use liqo_api::{Contract, ContractEnd, ContractTerms, EndCause, Party};

    use super::*;
    use crate::contract::fixtures::{Parties, at, at_provider, copy as copy_of, terms};

    /// Long after everything.
    const NOW: i64 = 20_000;

    fn end(at_second: i64) -> ContractEnd {
        let at = Time(at(at_second));
        ContractEnd {
            by: Party::Provider,
            cause: EndCause::Requested,
            announced: at.clone(),
            at,
            reason: "r".to_owned(),
        }
    }

    fn signed(parties: &Parties, version: u32, since: i64) -> Contract {
        let mut contract = parties.in_force(&ContractTerms {
            version,
            ..terms(parties)
        });
        contract.spec.in_force_since = Some(Time(at(since)));
        contract
    }

    /// The next copy, if this cluster signed at this second.
    fn next(
        copy: Option<&Arc<ContractCopy>>,
        contract: &Contract,
        signed: Option<i64>,
    ) -> ContractSpec {
        let known = OwnKnowledge {
            copy: copy.map(Arc::as_ref),
            signed: signed.map(at),
            not_before: None,
            has_follower: false,
            now: at(NOW),
        };
        next_copy(&known, &at_provider(contract))
    }

    /// The second since which the terms of the copy are in force, and the versions and seconds of
    /// the earlier ones.
    fn history(spec: &ContractSpec) -> (Option<i64>, Vec<(u32, i64)>) {
        let earlier = spec
            .earlier
            .iter()
            .map(|one| (one.version, one.since.0.as_second()))
            .collect();
        (
            spec.in_force_since
                .as_ref()
                .map(|since| since.0.as_second()),
            earlier,
        )
    }

    #[test]
    fn a_first_copy_takes_over_no_earlier_terms_and_no_time_before_the_signature() {
        let parties = Parties::known();
        let mut contract = signed(&parties, 2, 1000);
        let (digest, prices) = ("d".repeat(64), BTreeMap::new());
        contract.spec.earlier = vec![EarlierTerms {
            version: 1,
            digest,
            since: Time(at(0)),
            prices,
        }];
        // Before the signature, in the future, or when an honest manager came back.
        for (said, counts) in [
            (3600, 5000),
            (2_000_000_000, 5000),
            (4701, 4701),
            (9000, 9000),
            (NOW + 300, NOW + 300),
        ] {
            contract.spec.in_force_since = Some(Time(at(said)));
            assert_eq!(
                history(&next(None, &contract, Some(5000))),
                (Some(counts), vec![]),
                "{said}"
            );
        }
        assert_eq!(
            history(&next(None, &contract, None)),
            (None, vec![]),
            "terms without a signature are never in force"
        );
    }

    #[test]
    fn a_version_counts_neither_before_it_was_signed_nor_from_a_time_in_the_future() {
        let parties = Parties::known();
        let copy = copy_of(&signed(&parties, 1, 1000));
        let since =
            |said: i64| history(&next(Some(&copy), &signed(&parties, 2, said), Some(5000))).0;
        assert_eq!(
            (since(1001), since(4_000_000_000), since(5002)),
            (Some(5000), Some(5000), Some(5002))
        );
    }

    #[test]
    fn a_dearer_version_counts_after_the_delay_that_both_signed() {
        let parties = Parties::known();
        let copy = copy_of(&signed(&parties, 1, 1000));
        let since = |said: i64| {
            let delayed = ContractTerms {
                version: 2,
                counts_after_seconds: Some(3600),
                ..terms(&parties)
            };
            let mut contract = parties.in_force(&delayed);
            contract.spec.in_force_since = Some(Time(at(said)));
            history(&next(Some(&copy), &contract, Some(5000))).0
        };
        assert_eq!(
            (since(5000), since(8299), since(8300), since(9000)),
            (Some(8600), Some(8600), Some(8300), Some(9000))
        );
    }

    #[test]
    fn the_terms_of_a_copy_are_those_of_the_document() {
        let parties = Parties::known();
        let mut contract = signed(&parties, 1, 1000);
        contract.spec.terms.notice_seconds = 1;
        assert_eq!(next(None, &contract, Some(1000)).terms, terms(&parties));
    }

    #[test]
    fn a_provider_does_not_change_since_when_terms_are_in_force() {
        let parties = Parties::known();
        let copy = copy_of(&signed(&parties, 1, 1000));
        let changed = |since: Option<i64>| {
            let mut contract = signed(&parties, 1, 1000);
            contract.spec.in_force_since = since.map(|since| Time(at(since)));
            history(&next(Some(&copy), &contract, Some(1000)))
        };
        assert_eq!(
            (changed(None), changed(Some(9000))),
            ((Some(1000), vec![]), (Some(1000), vec![]))
        );
        let proposal = copy_of(&parties.proposal(&terms(&parties)));
        let begun = next(Some(&proposal), &signed(&parties, 1, 2000), Some(1999));
        assert_eq!(
            history(&begun),
            (Some(2000), vec![]),
            "it was not in force before"
        );
    }

    #[test]
    fn the_copy_remembers_the_terms_that_others_replace_whatever_the_provider_lists() {
        let parties = Parties::known();
        let copy = copy_of(&signed(&parties, 1, 1000));
        let mut contract = signed(&parties, 2, 3000);
        let replaced = next(Some(&copy), &contract, Some(3000));
        assert_eq!(history(&replaced), (Some(3000), vec![(1, 1000)]));
        contract.spec.earlier.clone_from(&replaced.earlier);
        assert_eq!(
            next(Some(&copy), &contract, Some(3000)),
            contract.spec,
            "an honest provider lists the same"
        );

        let copy = copy_of(&Contract {
            spec: replaced,
            ..contract.clone()
        });
        contract.spec.earlier.clear();
        assert_eq!(
            history(&next(Some(&copy), &contract, Some(3000))),
            (Some(3000), vec![(1, 1000)])
        );
        let third = next(Some(&copy), &signed(&parties, 3, 10), Some(3000));
        assert_eq!(history(&third), (Some(3000), vec![(1, 1000), (2, 3000)]));
    }

    #[test]
    fn an_end_neither_moves_nor_goes_unless_the_contract_is_renewed() {
        let parties = Parties::known();
        let ending = |version, ended| {
            let mut contract = signed(&parties, version, 1000);
            contract.spec.ended = ended;
            contract
        };
        let copy = copy_of(&ending(1, Some(end(2000))));
        for changed in [None, Some(end(10)), Some(end(9000))] {
            assert_eq!(
                next(Some(&copy), &ending(1, changed), Some(1000)).ended,
                Some(end(2000))
            );
        }
        let renewed = |end_at, has_follower| {
            let copy = copy_of(&ending(1, Some(end(end_at))));
            let known = OwnKnowledge {
                copy: Some(&copy),
                signed: Some(at(end_at - 10)),
                not_before: None,
                has_follower,
                now: at(NOW),
            };
            next_copy(&known, &at_provider(&ending(2, None))).ended
        };
        assert_eq!(
            (renewed(NOW + 10, false), renewed(NOW - 10, false)),
            (None, None)
        );
        let long_ago = NOW - 300;
        assert_eq!(
            renewed(long_ago, false),
            Some(end(long_ago)),
            "it is over for good"
        );
        assert_eq!(
            renewed(NOW - 10, true),
            Some(end(NOW - 10)),
            "another one has begun"
        );
    }

    #[test]
    fn a_contract_begins_at_the_end_of_the_one_before_at_the_earliest() {
        let parties = Parties::known();
        let begins = |said| {
            let known = OwnKnowledge {
                copy: None,
                signed: Some(at(5000)),
                not_before: Some(at(4990)),
                has_follower: false,
                now: at(NOW),
            };
            history(&next_copy(&known, &at_provider(&signed(&parties, 1, said)))).0
        };
        assert_eq!((begins(4989), begins(4990)), (Some(5000), Some(4990)));
    }

    #[test]
    fn terms_that_are_not_signed_or_older_replace_nothing_but_an_end_is_copied() {
        let parties = Parties::known();
        let copy = copy_of(&signed(&parties, 2, 1000));
        for (version, time) in [(3, None), (1, Some(3000))] {
            let mut other = signed(&parties, version, 3000);
            other.spec.ended = Some(end(2000));
            let expected = ContractSpec {
                ended: Some(end(2000)),
                ..copy.spec.clone()
            };
            assert_eq!(next(Some(&copy), &other, time), expected, "{version}");
        }
    }
}
