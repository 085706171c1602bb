//! Effect of the contracts of one consumer on the offers that it gets now.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use liqo_api::{
    Commitment, ContractAnswer, ContractDecision, ContractEnd, ContractTerms, EndCause,
    IfNotSigned, OfferContract, OnBreach, Party, Provide, ProvideContract, Renewal, ResourceList,
    ResourceOfferSpec,
};

use super::{after, breaches::lasting_breaches, record::IssuedContract};

/// Effect of the contracts of one consumer on its offers.
#[derive(Clone, Debug, Default)]
pub struct ContractStanding<'a> {
    /// The contract that is proposed or in force.
    pub live: Option<&'a IssuedContract>,
    /// The terms that both signed. They bind prices, classes and notice.
    pub bound: Option<&'a ContractTerms>,
    /// The terms whose amounts are reserved.
    reserved: Option<&'a ContractTerms>,
    /// Whether new pods are admitted.
    admits: bool,
    /// Whether offers that do not exist yet wait for a proposal.
    pub waits_for_proposal: bool,
    /// Whether there must be no offer.
    withheld: bool,
    /// Time at which the announced end of the contract takes the offers away.
    pub ends_at: Option<Timestamp>,
    /// The contracts whose end took their offers away.
    over: Vec<&'a str>,
    /// Time at which all this may change by itself.
    pub next: Option<Timestamp>,
}

impl<'a> ContractStanding<'a> {
    pub fn of_records(
        provide: Option<&Provide>,
        records: &'a [Arc<IssuedContract>],
        reopened: bool,
        now: Timestamp,
    ) -> Self {
        let policy = provide.and_then(|provide| provide.contract.as_ref());
        let over = records.iter().filter(|record| {
            record.is_over(now) && !record.spec.ended.as_ref().is_some_and(is_by_policy)
        });
        let over = over.map(|record| record.name.as_str()).collect();
        let Some(live) = live_contract(records, now) else {
            let Some(policy) = policy else {
                return Self {
                    over,
                    ..Self::default()
                };
            };
            let proposes = may_propose(policy, records, reopened);
            return Self {
                waits_for_proposal: proposes,
                withheld: !proposes,
                over,
                ..Self::default()
            };
        };
        let signed = live.signed_document().map(|document| &document.terms);
        // Without contracts in the policy, a proposal means nothing, and what was signed goes on
        // until its end.
        if policy.is_none() && signed.is_none() {
            return Self {
                over,
                ..Self::default()
            };
        }
        let end = live.spec.ended.as_ref();
        // Whoever ends it, and whatever the cause: without a contract in the policy, nobody has to
        // sign one.
        let by_policy = end.is_some_and(is_by_policy);
        let keeps_offers = by_policy && policy.is_none();
        let deadline = policy.and_then(|policy| signing_deadline(policy, live));
        let overdue = policy
            .is_some_and(|policy| policy.if_not_signed == IfNotSigned::WithdrawOffer)
            && deadline.is_some_and(|deadline| deadline <= now)
            && signed.is_none_or(|terms| terms.commitment == Commitment::BestEffort);
        let broken = policy.is_some_and(|policy| policy.on_breach != OnBreach::Warn)
            && records.iter().any(|record| {
                lasting_breaches(&record.spec.breaches, Party::Consumer)
                    .next()
                    .is_some()
            });
        let next = [deadline, end.map(|end| end.at.0)]
            .into_iter()
            .flatten()
            .filter(|time| *time > now)
            .min();
        Self {
            live: Some(live),
            bound: signed,
            // A proposal reserves nothing: otherwise a consumer could keep others away for as long
            // as it does not sign.
            reserved: signed.filter(|terms| terms.commitment == Commitment::Guaranteed),
            admits: signed.is_some() && !broken,
            waits_for_proposal: false,
            withheld: overdue || (end.is_some() && !keeps_offers),
            // Offers that were to stay are withdrawn with the whole notice.
            ends_at: end.map(|end| end.at.0).filter(|_| !by_policy),
            over,
            next,
        }
    }

    /// Whether the consumer may have offers.
    pub fn may_have_offers(&self) -> bool {
        !self.withheld
    }

    /// Whether an offer goes with its contract. The next contract gets a new one: otherwise pods
    /// would go on without a signature.
    pub fn has_lost(&self, offer: &ResourceOfferSpec) -> bool {
        offer
            .contract
            .as_ref()
            .is_some_and(|contract| self.over.contains(&contract.name.as_str()))
    }

    /// The amounts of a pool that nobody else gets.
    pub fn reserved_amounts(&self, pool: &str) -> Option<&'a ResourceList> {
        self.reserved?.guaranteed_in_pool(pool)
    }

    /// The amounts of all pools that nobody else gets.
    pub fn reserved_total(&self) -> Option<ResourceList> {
        self.reserved.map(ContractTerms::total_resources)
    }

    /// The `contract` field of the offer of a pool.
    pub fn offer_contract(&self, pool: &str) -> Option<OfferContract> {
        let live = self.live?;
        let terms = &live.current.as_ref().ok()?.document.terms;
        let contains = self
            .bound
            .is_some_and(|terms| terms.amounts_of_pool(pool).is_some());
        Some(OfferContract {
            name: live.name.clone(),
            version: terms.version,
            in_force: self.admits && contains,
        })
    }
}

/// Whether a contract ends because the provider's policy has no contracts any more.
fn is_by_policy(end: &ContractEnd) -> bool {
    end.cause == EndCause::PolicyChanged && end.by == Party::Provider
}

/// The contract that is proposed or in force: the newest one that is not over.
pub fn live_contract(records: &[Arc<IssuedContract>], now: Timestamp) -> Option<&IssuedContract> {
    let open = records
        .iter()
        .filter(|record| !record.deleting && !record.is_over(now));
    open.max_by_key(|record| (record.created, record.name.as_str()))
        .map(Arc::as_ref)
}

/// Time until which the consumer has to sign the proposed terms; `None` if there is nothing to
/// sign.
pub fn signing_deadline(policy: &ProvideContract, live: &IssuedContract) -> Option<Timestamp> {
    let is_signed = live
        .amendment()
        .is_some_and(|terms| terms.countersignature.is_some());
    let proposed = match (&live.spec.pending, live.signed_document()) {
        // It waits until it counts.
        (Some(_), _) if is_signed => return None,
        (Some(pending), _) => pending.proposed.0,
        (None, None) => live.spec.terms.start.0,
        (None, Some(_)) => return None,
    };
    Some(after(proposed, policy.sign_within_seconds))
}

/// Whether no decision of a person here stands against a new contract.
pub fn is_reopened(
    records: &[Arc<IssuedContract>],
    decisions: &BTreeMap<String, ContractDecision>,
) -> bool {
    !records.iter().any(|record| {
        decisions
            .get(&record.name)
            .is_some_and(|decision| decision.decision == ContractAnswer::End)
    })
}

/// Whether the provider proposes a new contract after the last one. `reopened`: no decision of a
/// person here stands against it.
pub fn may_propose(
    policy: &ProvideContract,
    records: &[Arc<IssuedContract>],
    reopened: bool,
) -> bool {
    let last = records
        .iter()
        .filter_map(|record| Some((record.spec.ended.as_ref()?, record)));
    let Some((end, _)) = last.max_by_key(|(end, record)| (end.at.0, record.name.as_str())) else {
        return reopened;
    };
    match end.cause {
        EndCause::PeriodOver => policy.renewal == Renewal::Automatic && reopened,
        // A person deletes the ended contract to begin again.
        EndCause::Breach => false,
        EndCause::Requested
        | EndCause::PolicyChanged
        | EndCause::NothingRequested
        | EndCause::Damaged
        | EndCause::Removed => reopened,
    }
}

#[cfg(test)]
mod tests {
    use liqo_api::{Breach, BreachKind, Time};

    use super::*;
    use crate::contract::fixtures::{Parties, at, issued, terms};

    fn provide(contract: ProvideContract) -> Provide {
        Provide {
            contract: Some(contract),
            ..Provide::default()
        }
    }

    #[test]
    fn without_contracts_in_the_policy_nothing_changes() {
        let standing = ContractStanding::of_records(Some(&Provide::default()), &[], true, at(0));
        assert!(
            standing.may_have_offers()
                && !standing.waits_for_proposal
                && standing.offer_contract("default").is_none()
        );
    }

    #[test]
    fn a_new_offer_waits_until_its_contract_is_proposed_and_admits_no_pod_until_it_is_signed() {
        let parties = Parties::new();
        let policy = provide(ProvideContract::default());
        assert!(ContractStanding::of_records(Some(&policy), &[], true, at(0)).waits_for_proposal);
        let proposed = [issued(&parties.proposal(&terms(&parties)))];
        let standing = ContractStanding::of_records(Some(&policy), &proposed, true, at(1001));
        assert!(
            standing.may_have_offers() && !standing.offer_contract("default").unwrap().in_force
        );
        let signed = [issued(&parties.in_force(&terms(&parties)))];
        let standing = ContractStanding::of_records(Some(&policy), &signed, true, at(1001));
        assert!(standing.offer_contract("default").unwrap().in_force);
        assert!(
            !standing.offer_contract("gold").unwrap().in_force,
            "the terms do not contain that pool"
        );
    }

    #[test]
    fn an_unsigned_contract_keeps_or_loses_the_offer_as_the_policy_says() {
        let parties = Parties::new();
        let proposed = [issued(&parties.proposal(&terms(&parties)))];
        let keeps = provide(ProvideContract {
            sign_within_seconds: 100,
            ..ProvideContract::default()
        });
        let loses = provide(ProvideContract {
            if_not_signed: IfNotSigned::WithdrawOffer,
            sign_within_seconds: 100,
            ..ProvideContract::default()
        });
        assert!(
            ContractStanding::of_records(Some(&keeps), &proposed, true, at(5000)).may_have_offers()
        );
        let early = ContractStanding::of_records(Some(&loses), &proposed, true, at(1050));
        assert!(early.may_have_offers() && early.next == Some(at(1100)));
        assert!(
            !ContractStanding::of_records(Some(&loses), &proposed, true, at(1100))
                .may_have_offers()
        );
    }

    #[test]
    fn guaranteed_amounts_are_reserved_from_the_signature_until_the_end() {
        let parties = Parties::new();
        let guaranteed = ContractTerms {
            commitment: Commitment::Guaranteed,
            ..terms(&parties)
        };
        let policy = provide(ProvideContract {
            commitment: Commitment::Guaranteed,
            ..ProvideContract::default()
        });
        let reserved = |contract: &liqo_api::Contract, now| {
            let records = [issued(contract)];
            ContractStanding::of_records(Some(&policy), &records, true, at(now))
                .reserved_amounts("default")
                .is_some()
        };
        assert!(
            !reserved(&parties.proposal(&guaranteed), 1001),
            "a proposal that nobody signs costs others nothing"
        );
        let mut contract = parties.in_force(&guaranteed);
        assert!(reserved(&contract, 1001));
        contract.spec.ended = Some(end(EndCause::Requested, 9000));
        assert!(reserved(&contract, 8999) && !reserved(&contract, 9000));
    }

    fn end(cause: EndCause, at_seconds: i64) -> ContractEnd {
        let (announced, at) = (Time(at(1000)), Time(at(at_seconds)));
        ContractEnd {
            by: Party::Provider,
            cause,
            announced,
            at,
            reason: String::new(),
        }
    }

    #[test]
    fn an_announced_end_takes_the_offers_away_unless_the_policy_no_longer_has_contracts() {
        let parties = Parties::new();
        let mut ending = parties.in_force(&terms(&parties));
        ending.spec.ended = Some(end(EndCause::Requested, 2000));
        let records = [issued(&ending)];
        let policy = provide(ProvideContract::default());
        let standing = ContractStanding::of_records(Some(&policy), &records, true, at(1500));
        assert_eq!(
            (standing.may_have_offers(), standing.ends_at, standing.next),
            (false, Some(at(2000)), Some(at(2000)))
        );
        ending.spec.ended = Some(end(EndCause::PolicyChanged, 2000));
        let records = [issued(&ending)];
        let standing =
            ContractStanding::of_records(Some(&Provide::default()), &records, true, at(1500));
        assert!(standing.may_have_offers() && standing.offer_contract("default").unwrap().in_force);
        let standing =
            ContractStanding::of_records(Some(&Provide::default()), &records, true, at(2000));
        assert!(standing.may_have_offers() && standing.offer_contract("default").is_none());
    }

    #[test]
    fn offers_stay_after_an_end_only_while_the_policy_has_no_contracts() {
        let parties = Parties::new();
        let keeps = |by, provide: &Provide| {
            let mut ending = parties.in_force(&terms(&parties));
            ending.spec.ended = Some(ContractEnd {
                by,
                ..end(EndCause::PolicyChanged, 2000)
            });
            let records = [issued(&ending)];
            let standing = ContractStanding::of_records(Some(provide), &records, true, at(1500));
            (standing.may_have_offers(), standing.ends_at)
        };
        let (with, without) = (provide(ProvideContract::default()), Provide::default());
        assert_eq!(keeps(Party::Provider, &without), (true, None));
        assert_eq!(
            keeps(Party::Provider, &with),
            (false, None),
            "with the notice from now on"
        );
        assert_eq!(keeps(Party::Consumer, &without), (false, Some(at(2000))));
        assert_eq!(keeps(Party::Consumer, &with), (false, Some(at(2000))));
    }

    #[test]
    fn a_consumer_that_broke_the_contract_gets_no_new_pods_if_the_policy_says_so() {
        let parties = Parties::new();
        let mut contract = parties.in_force(&terms(&parties));
        contract.spec.breaches = vec![Breach {
            by: Party::Consumer,
            kind: BreachKind::EndNotAccepted,
            object: "contract".to_owned(),
            time: Time(at(1000)),
            until: None,
            message: String::new(),
        }];
        let records = [issued(&contract)];
        let in_force = |on_breach| {
            let policy = provide(ProvideContract {
                on_breach,
                ..ProvideContract::default()
            });
            ContractStanding::of_records(Some(&policy), &records, true, at(1001))
                .offer_contract("default")
                .unwrap()
                .in_force
        };
        assert!(
            in_force(OnBreach::Warn)
                && !in_force(OnBreach::RefuseNew)
                && !in_force(OnBreach::EndWithNotice)
        );
    }

    #[test]
    fn after_its_end_a_contract_is_followed_by_another_one_only_where_somebody_wants_it() {
        let parties = Parties::new();
        let follows = |cause, renewal, reopened| {
            let mut contract = parties.in_force(&terms(&parties));
            contract.spec.ended = Some(end(cause, 2000));
            let policy = ProvideContract {
                renewal,
                ..ProvideContract::default()
            };
            may_propose(&policy, &[issued(&contract)], reopened)
        };
        assert!(follows(EndCause::PeriodOver, Renewal::Automatic, true));
        assert!(!follows(EndCause::PeriodOver, Renewal::None, true));
        assert!(!follows(EndCause::Breach, Renewal::Automatic, true));
        assert!(
            follows(EndCause::Requested, Renewal::None, true)
                && !follows(EndCause::Requested, Renewal::None, false)
        );
    }
}
