//! What a consumer takes over from a contract into its copy.
//!
//! Nobody signs since when terms are in force, which terms they replaced, and when they end. Budgets depend on that, so the copy keeps
//! what it says once. Otherwise a provider could forget what was spent, and say it again later.

use liqo_api::{ContractSpec, EarlierTerms, Time};

use super::record::ContractRecord;

/// The next spec of the copy. `is_signed`: this cluster signed the terms at the provider.
pub fn copied(copy: Option<&ContractRecord>, record: &ContractRecord, is_signed: bool) -> ContractSpec {
    let mut spec = record.spec.clone();
    let Some(copy) = copy else { return spec };
    let Some(since) = &copy.spec.in_force_since else { return spec };
    if spec.document == copy.spec.document {
        spec.in_force_since = Some(since.clone());
        spec.earlier.clone_from(&copy.spec.earlier);
        spec.ended = copy.spec.ended.clone().or(spec.ended);
        return spec;
    }
    match &copy.current {
        Ok(replaced) if is_signed && spec.terms.version > copy.spec.terms.version => {
            let (version, digest) = (replaced.document.terms.version, replaced.document.digest.clone());
            let prices = replaced.document.terms.prices.clone();
            spec.earlier.clone_from(&copy.spec.earlier);
            spec.remember(EarlierTerms { version, digest, since: since.clone(), prices });
            spec.in_force_since = spec.in_force_since.map(|next| Time(next.0.max(since.0)));
            spec
        }
        _ => ContractSpec { ended: copy.spec.ended.clone().or(spec.ended), breaches: spec.breaches, ..copy.spec.clone() },
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::{Contract, ContractEnd, ContractTerms, EndCause, Party};

    use super::*;
    use crate::contract::fixtures::{Parties, at, record, terms};

    fn end(at_second: i64) -> ContractEnd {
        let at = Time(at(at_second));
        ContractEnd { by: Party::Provider, cause: EndCause::Requested, announced: at.clone(), at, reason: "r".to_owned() }
    }

    fn signed(parties: &Parties, version: u32, since: i64) -> Contract {
        let mut contract = parties.in_force(&ContractTerms { version, ..terms(parties) });
        contract.spec.in_force_since = Some(Time(at(since)));
        contract
    }

    /// The second since which the terms of the copy are in force, and the versions and seconds of the earlier ones.
    fn history(spec: &ContractSpec) -> (Option<i64>, Vec<(u32, i64)>) {
        let earlier = spec.earlier.iter().map(|one| (one.version, one.since.0.as_second())).collect();
        (spec.in_force_since.as_ref().map(|since| since.0.as_second()), earlier)
    }

    #[test]
    fn a_provider_does_not_change_since_when_terms_are_in_force() {
        let parties = Parties::known();
        let copy = record(&signed(&parties, 1, 1000));
        let changed = |since: Option<i64>| {
            let mut contract = signed(&parties, 1, 1000);
            contract.spec.in_force_since = since.map(|since| Time(at(since)));
            history(&copied(Some(&copy), &record(&contract), true))
        };
        assert_eq!((changed(None), changed(Some(9000))), ((Some(1000), vec![]), (Some(1000), vec![])));
        let proposal = record(&parties.proposal(&terms(&parties)));
        let begun = copied(Some(&proposal), &record(&signed(&parties, 1, 2000)), true);
        assert_eq!(history(&begun), (Some(2000), vec![]), "it was not in force before");
    }

    #[test]
    fn the_copy_remembers_the_terms_that_others_replace_whatever_the_provider_lists() {
        let parties = Parties::known();
        let copy = record(&signed(&parties, 1, 1000));
        let mut next = signed(&parties, 2, 3000);
        let replaced = copied(Some(&copy), &record(&next), true);
        assert_eq!(history(&replaced), (Some(3000), vec![(1, 1000)]));
        next.spec.earlier.clone_from(&replaced.earlier);
        assert_eq!(copied(Some(&copy), &record(&next), true), next.spec, "an honest provider lists the same");

        let copy = record(&Contract { spec: replaced, ..next.clone() });
        next.spec.earlier.clear();
        assert_eq!(history(&copied(Some(&copy), &record(&next), true)), (Some(3000), vec![(1, 1000)]));
        assert_eq!(
            history(&copied(Some(&copy), &record(&signed(&parties, 3, 10)), true)),
            (Some(3000), vec![(1, 1000), (2, 3000)])
        );
    }

    #[test]
    fn an_end_neither_moves_nor_goes_unless_the_contract_is_renewed() {
        let parties = Parties::known();
        let ending = |version, ended| {
            let mut contract = signed(&parties, version, 1000);
            contract.spec.ended = ended;
            record(&contract)
        };
        let copy = ending(1, Some(end(2000)));
        for changed in [None, Some(end(10)), Some(end(9000))] {
            assert_eq!(copied(Some(&copy), &ending(1, changed), true).ended, Some(end(2000)));
        }
        assert_eq!(copied(Some(&copy), &ending(2, None), true).ended, None);
    }

    #[test]
    fn terms_that_are_not_signed_or_older_replace_nothing_but_an_end_is_copied() {
        let parties = Parties::known();
        let copy = record(&signed(&parties, 2, 1000));
        for (version, is_signed) in [(3, false), (1, true)] {
            let mut other = signed(&parties, version, 3000);
            other.spec.ended = Some(end(2000));
            let expected = ContractSpec { ended: Some(end(2000)), ..copy.spec.clone() };
            assert_eq!(copied(Some(&copy), &record(&other), is_signed), expected, "{version}");
        }
    }
}
