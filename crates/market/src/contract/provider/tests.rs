use liqo_api::{Breach, ContractPool, EndRequest, IfNotSigned, MAX_EARLIER_TERMS, PriceList};
use liqo_metering::{Period, receipt};
use proptest::prelude::*;

use super::*;
use crate::{
    contract::{
        fixtures::{PEERING, Parties, at, issued, terms},
        wanted::PoolOnOffer,
    },
    tests::list,
};

/// A provider with one consumer, which asks for something and has been offered the default pool.
struct World {
    parties: Parties,
    provide: Option<Provide>,
    asks: bool,
    is_heard: bool,
    peering: Option<String>,
    prices: Option<PriceList>,
    offered: Option<BTreeMap<String, ResourceList>>,
    contracts: Vec<Contract>,
    decisions: BTreeMap<String, ContractDecision>,
    unanswered: BTreeMap<String, String>,
    unconfirmed: UnconfirmedBreaches,
}

impl World {
    fn new() -> Self {
        let amounts = list("cpu=4, memory=8Gi, pods=10");
        Self {
            parties: Parties::new(),
            provide: Some(Provide {
                contract: Some(ProvideContract::default()),
                ..Provide::default()
            }),
            asks: true,
            is_heard: true,
            peering: Some(PEERING.to_owned()),
            prices: None,
            offered: Some(BTreeMap::from([("default".to_owned(), amounts)])),
            contracts: Vec::new(),
            decisions: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            unconfirmed: UnconfirmedBreaches::default(),
        }
    }

    /// With this contract, which both signed.
    fn signed(change: impl FnOnce(&mut ContractTerms)) -> Self {
        let mut world = Self::new();
        let mut terms = terms(&world.parties);
        change(&mut terms);
        let policy = world.policy();
        (policy.commitment, policy.renewal) = (terms.commitment, terms.renewal);
        policy.period_seconds = terms
            .end
            .as_ref()
            .map(|end| u32::try_from(end.0.duration_since(terms.start.0).as_secs()).unwrap());
        world.contracts = vec![world.parties.in_force(&terms)];
        world
    }

    fn policy(&mut self) -> &mut ProvideContract {
        self.provide.as_mut().unwrap().contract.as_mut().unwrap()
    }

    fn decide(&mut self, seconds: i64) -> ContractPlan {
        let records: Vec<Arc<IssuedContract>> = self.contracts.iter().map(issued).collect();
        let amounts = list("cpu=4, memory=8Gi, pods=10");
        let pool = PoolOnOffer {
            name: "default".to_owned(),
            resources: amounts,
            prices: self.prices.clone(),
        };
        let case = ContractInput {
            identity: &self.parties.provider,
            consumer: self.parties.consumer.id(),
            provide: self.provide.as_ref(),
            asks: self.asks,
            is_heard: self.is_heard,
            peering: self.peering.as_deref(),
            wanted: self
                .provide
                .as_ref()
                .and_then(|provide| WantedTerms::of_policy(provide, vec![pool], &[])),
            offered: self.offered.clone(),
            records: &records,
            decisions: &self.decisions,
            unanswered: &self.unanswered,
            nonce: b"0123456789abcdef",
            now: at(seconds),
        };
        decide_contracts(&case, &mut self.unconfirmed)
    }

    /// Decides, and carries it out. Returns the newest contract.
    fn step(&mut self, seconds: i64) -> Contract {
        let plan = self.decide(seconds);
        for write in plan.writes {
            let known = self
                .contracts
                .iter_mut()
                .find(|contract| contract.metadata.name.as_deref() == Some(&write.name));
            if let Some(contract) = known {
                contract.spec = write.spec;
            } else {
                let mut contract = Contract::new(&write.name, write.spec);
                contract.metadata.creation_timestamp = Some(Time(at(seconds)));
                self.contracts.push(contract);
            }
        }
        self.contracts.retain(|contract| {
            !plan
                .deletions
                .contains(contract.metadata.name.as_ref().unwrap())
        });
        self.contracts.last().unwrap().clone()
    }

    /// The consumer signs what is proposed.
    fn sign(&mut self) {
        let contract = self.contracts.last_mut().unwrap();
        let (record, status) = (issued(contract), contract.status.get_or_insert_default());
        let sign = |document: &ContractDocument| Some(document.countersign(&self.parties.consumer));
        status.signature = record
            .current
            .as_ref()
            .ok()
            .and_then(|terms| sign(&terms.document));
        status.pending_signature = record.amendment().and_then(|terms| sign(&terms.document));
    }

    /// The notice of the policy changes, and the consumer signs at once whatever is proposed.
    fn change(&mut self, notice: u32, seconds: i64) -> Contract {
        self.provide.as_mut().unwrap().notice_seconds = notice;
        self.step(seconds);
        self.sign();
        self.step(seconds)
    }

    /// A core costs this much from now on.
    fn sells(&mut self, rate: &str) {
        self.prices = serde_json::from_value(
            serde_json::json!({ "currency": "EUR", "rates": { "cpu": rate } }),
        )
        .unwrap();
    }

    /// The version in force and the one that is proposed.
    fn versions(&mut self, seconds: i64) -> (u32, Option<u32>) {
        let spec = self.step(seconds).spec;
        (
            spec.terms.version,
            spec.pending.map(|pending| pending.terms.version),
        )
    }

    fn is_settled(&mut self, seconds: i64) -> bool {
        self.decide(seconds).writes.is_empty()
    }

    fn says_end(&mut self, name: &str) {
        let decision = ContractDecision {
            decision: ContractAnswer::End,
            terms: None,
            reason: None,
        };
        self.decisions.insert(name.to_owned(), decision);
    }
}

#[test]
fn a_contract_is_proposed_signed_and_in_force() {
    let mut world = World::new();
    let proposed = world.step(1000);
    assert_eq!(
        (
            proposed.spec.terms.version,
            proposed.spec.in_force_since.clone()
        ),
        (1, None)
    );
    assert!(world.is_settled(1500));
    world.sign();
    let contract = world.step(1600);
    assert_eq!(contract.spec.in_force_since, Some(Time(at(1600))));
    assert!(contract.spec.countersignature.is_some() && world.is_settled(1700));
}

#[test]
fn a_policy_without_contracts_proposes_none_and_takes_an_unsigned_one_back() {
    let mut world = World::new();
    world.step(1000);
    world.policy();
    world.provide.as_mut().unwrap().contract = None;
    assert_eq!(world.decide(1001).deletions.len(), 1);
    world.contracts.clear();
    assert_eq!(world.decide(1002), ContractPlan::default());
}

#[test]
fn a_proposal_that_nobody_signed_follows_the_policy() {
    let mut world = World::new();
    let first = world.step(1000);
    world.provide.as_mut().unwrap().notice_seconds = 60;
    let second = world.step(1100);
    assert_eq!(
        (
            second.spec.terms.version,
            second.spec.terms.notice_seconds,
            &second.spec.pending
        ),
        (2, 60, &None)
    );
    assert_eq!(second.spec.terms.contract, first.spec.terms.contract);
}

#[test]
fn a_change_of_the_policy_is_an_amendment_that_counts_when_it_is_signed() {
    let mut world = World::signed(|_| ());
    world.provide.as_mut().unwrap().notice_seconds = 60;
    let contract = world.step(2000);
    assert_eq!(
        contract.spec.terms.notice_seconds, 300,
        "the old terms go on"
    );
    let pending = contract.spec.pending.clone().unwrap();
    assert_eq!(
        (pending.terms.version, pending.terms.notice_seconds),
        (2, 60)
    );
    assert_eq!(
        pending.terms.previous,
        Some(issued(&contract).signed_document().unwrap().digest.clone())
    );
    assert!(world.is_settled(2100));
    world.sign();
    let contract = world.step(2200);
    assert_eq!(
        (
            contract.spec.terms.version,
            contract.spec.terms.notice_seconds
        ),
        (2, 60)
    );
    assert_eq!(
        (contract.spec.in_force_since.clone(), &contract.spec.pending),
        (Some(Time(at(2200))), &None)
    );
    assert!(issued(&contract).signed_document().is_some() && world.is_settled(2300));
}

#[test]
fn an_amendment_that_is_no_longer_wanted_is_taken_back_and_a_new_one_has_a_new_version() {
    let mut world = World::signed(|_| ());
    world.provide.as_mut().unwrap().notice_seconds = 60;
    world.step(2000);
    world.provide.as_mut().unwrap().notice_seconds = 30;
    assert_eq!(world.step(2100).spec.pending.unwrap().terms.version, 3);
    world.provide.as_mut().unwrap().notice_seconds = 300;
    assert_eq!(world.step(2200).spec.pending, None);
}

#[test]
fn a_dearer_version_counts_when_the_notice_is_over_after_the_signature_and_a_cheaper_one_at_once() {
    let mut world = World::signed(|_| ());
    world.sells("0.04");
    assert_eq!(
        world
            .step(2000)
            .spec
            .pending
            .unwrap()
            .terms
            .counts_after_seconds,
        Some(300)
    );
    world.sign();
    let waiting = world.step(5000);
    assert_eq!(
        (
            waiting.spec.terms.version,
            waiting.spec.pending.unwrap().signed
        ),
        (1, Some(Time(at(5000))))
    );
    assert_eq!(
        world.decide(5001).next,
        Some(at(5300)),
        "no deadline to sign is left"
    );
    // The consumer takes it back.
    world.contracts[0]
        .status
        .as_mut()
        .unwrap()
        .pending_signature = None;
    assert_eq!(world.versions(5299), (1, Some(2)));
    let counts = world.step(5300);
    assert_eq!(
        (
            counts.spec.terms.version,
            counts.spec.in_force_since.clone()
        ),
        (2, Some(Time(at(5300))))
    );
    assert!(issued(&counts).signed_document().is_some() && world.is_settled(5400));
    world.sells("0.03");
    assert_eq!(
        world
            .step(6000)
            .spec
            .pending
            .unwrap()
            .terms
            .counts_after_seconds,
        None
    );
    world.sign();
    assert_eq!(world.versions(6001), (3, None));
}

#[test]
fn a_price_that_goes_on_to_rise_counts_and_one_that_falls_again_does_not() {
    let mut world = World::signed(|_| ());
    world.sells("0.04");
    world.step(2000);
    world.sign();
    world.step(2000);
    world.sells("0.05");
    assert_eq!(
        world.versions(2100),
        (1, Some(2)),
        "it waits until 0.04 counts"
    );
    assert_eq!(world.versions(2300), (2, None));
    assert_eq!(world.versions(2301), (2, Some(3)));
    world.sign();
    world.step(2302);
    world.sells("0.04");
    assert_eq!(world.versions(2400), (2, None));
}

#[test]
fn a_dearer_renewal_counts_at_the_end_of_the_period_at_the_latest() {
    let mut world = World::signed(|terms| terms.end = Some(Time(at(11_000))));
    world.provide.as_mut().unwrap().notice_seconds = 300;
    world.sells("0.04");
    world.step(10_750);
    world.sign();
    let waiting = world.step(10_900);
    assert_eq!(
        (waiting.spec.terms.version, &waiting.spec.ended),
        (1, &None),
        "it was signed in time"
    );
    assert_eq!(world.versions(10_999), (1, Some(2)));
    let renewed = world.step(11_000);
    assert_eq!(
        (
            renewed.spec.terms.version,
            renewed.spec.terms.end,
            renewed.spec.ended
        ),
        (2, Some(Time(at(21_000))), None)
    );
}

#[test]
fn a_contract_is_renewed_before_its_end() {
    let mut world = World::signed(|terms| terms.end = Some(Time(at(11_000))));
    let plan = world.decide(1500);
    assert_eq!(
        (plan.writes.len(), plan.next),
        (0, Some(at(6000))),
        "half a period before the end"
    );
    let pending = world.step(6000).spec.pending.unwrap();
    assert_eq!(pending.terms.end, Some(Time(at(21_000))));
    world.sign();
    let contract = world.step(6100);
    assert_eq!(
        (contract.spec.terms.end, contract.spec.ended),
        (Some(Time(at(21_000))), None)
    );
    assert!(world.is_settled(11_001));
}

#[test]
fn a_renewal_that_is_not_signed_ends_the_contract_and_one_signed_late_does_not() {
    let mut world = World::signed(|terms| terms.end = Some(Time(at(11_000))));
    world.step(6000);
    let contract = world.step(10_700);
    let end = contract.spec.ended.unwrap();
    assert_eq!(
        (end.cause, end.at),
        (EndCause::PeriodOver, Time(at(11_000)))
    );
    assert!(
        contract.spec.pending.is_some(),
        "the consumer can still sign"
    );
    world.sign();
    let contract = world.step(10_800);
    assert_eq!(
        (contract.spec.terms.version, contract.spec.ended),
        (2, None)
    );
}

#[test]
fn without_renewal_a_contract_ends_at_its_end_and_no_other_one_follows() {
    let mut world = World::signed(|terms| {
        terms.end = Some(Time(at(11_000)));
        terms.renewal = Renewal::None;
    });
    assert!(world.is_settled(10_600));
    assert_eq!(world.step(10_700).spec.ended.unwrap().at, Time(at(11_000)));
    world.contracts[0].status.as_mut().unwrap().phase = ContractPhase::Ended;
    assert!(world.is_settled(12_000), "no new proposal");
}

#[test]
fn either_side_ends_a_contract_with_notice() {
    let mut world = World::signed(|_| ());
    let name = world.contracts[0].metadata.name.clone().unwrap();
    world.says_end(&name);
    let end = world.step(2000).spec.ended.unwrap();
    assert_eq!(
        (end.by, end.cause, end.at),
        (Party::Provider, EndCause::Requested, Time(at(2300)))
    );
    assert!(world.is_settled(2100));

    let mut world = World::signed(|_| ());
    let request = EndRequest {
        cause: EndCause::Requested,
        reason: "too dear".to_owned(),
    };
    world.contracts[0].status.as_mut().unwrap().end_requested = Some(request);
    let end = world.step(2000).spec.ended.unwrap();
    assert_eq!(
        (end.by, end.reason.as_str(), end.at),
        (Party::Consumer, "too dear", Time(at(2300)))
    );
}

#[test]
fn a_consumer_that_ends_a_contract_in_the_name_of_the_providers_policy_ends_it_by_itself() {
    let ended = |said| {
        let mut world = World::signed(|_| ());
        world.contracts[0].status.as_mut().unwrap().end_requested = Some(EndRequest {
            cause: said,
            reason: "r".to_owned(),
        });
        let end = world.step(2000).spec.ended.unwrap();
        (end.by, end.cause)
    };
    for cause in [
        EndCause::PolicyChanged,
        EndCause::PeriodOver,
        EndCause::Damaged,
        EndCause::Removed,
        EndCause::Requested,
    ] {
        assert_eq!(ended(cause), (Party::Consumer, EndCause::Requested));
    }
    for cause in [EndCause::NothingRequested, EndCause::Breach] {
        assert_eq!(ended(cause), (Party::Consumer, cause));
    }
}

#[test]
fn a_policy_that_loses_its_contracts_ends_them_with_notice_but_keeps_a_guarantee() {
    let mut world = World::signed(|_| ());
    world.provide.as_mut().unwrap().contract = None;
    let end = world.step(2000).spec.ended.unwrap();
    assert_eq!(
        (end.cause, end.at),
        (EndCause::PolicyChanged, Time(at(2300)))
    );

    let mut world = World::signed(|terms| {
        terms.commitment = Commitment::Guaranteed;
        terms.end = Some(Time(at(11_000)));
    });
    world.provide.as_mut().unwrap().contract = None;
    assert_eq!(world.step(2000).spec.ended.unwrap().at, Time(at(11_000)));
}

#[test]
fn who_ends_a_guarantee_before_its_date_breaks_the_contract() {
    let mut world = World::signed(|terms| {
        terms.commitment = Commitment::Guaranteed;
        terms.end = Some(Time(at(11_000)));
    });
    let name = world.contracts[0].metadata.name.clone().unwrap();
    world.says_end(&name);
    let breaches = world.step(2000).spec.breaches;
    assert_eq!(
        (breaches.len(), breaches[0].kind, breaches[0].by),
        (1, BreachKind::EndedEarly, Party::Provider)
    );
    assert!(world.is_settled(2100), "it is found once");
}

#[test]
fn a_provider_says_itself_that_guaranteed_amounts_are_missing() {
    let mut world = World::signed(|terms| terms.commitment = Commitment::Guaranteed);
    world.offered = Some(BTreeMap::from([(
        "default".to_owned(),
        list("cpu=2, memory=8Gi, pods=10"),
    )]));
    assert_eq!(world.decide(2000).next, Some(at(2300)));
    let breaches = world.step(2300).spec.breaches;
    assert_eq!(breaches[0].message, "it offers only 2 of 4 cpu");
    assert!(world.is_settled(2400));
    world.offered = Some(BTreeMap::from([(
        "default".to_owned(),
        list("cpu=4, memory=8Gi, pods=10"),
    )]));
    assert_eq!(
        world.step(2500).spec.breaches[0].until,
        Some(Time(at(2500)))
    );
}

#[test]
fn best_effort_amounts_may_be_missing() {
    let mut world = World::signed(|_| ());
    world.offered = Some(BTreeMap::new());
    world.step(2000);
    assert!(world.step(3000).spec.breaches.is_empty());
}

#[test]
fn a_consumer_that_answers_no_receipts_breaks_the_contract_until_it_signs_one() {
    let mut world = World::signed(|_| {});
    let id = terms(&world.parties).contract;
    world
        .unanswered
        .insert(id, "24 of the latest 24 receipts have no answer".to_owned());
    assert!(
        world.step(1000).spec.breaches.is_empty(),
        "it does not last yet"
    );
    let breaches = world.step(2000).spec.breaches;
    assert_eq!(
        (breaches[0].kind, breaches[0].by),
        (BreachKind::ReceiptsNotAnswered, Party::Consumer)
    );
    assert_eq!(
        world.step(2100).spec.breaches,
        breaches,
        "it is listed once"
    );
    world.unanswered.clear();
    assert!(world.step(3000).spec.breaches[0].until.is_some());
}

#[test]
fn a_consumer_that_does_not_accept_the_end_is_found_if_it_is_heard() {
    let ended = |is_heard| {
        let mut world = World::signed(|terms| {
            terms.end = Some(Time(at(11_000)));
            terms.renewal = Renewal::None;
        });
        world.is_heard = is_heard;
        world.step(10_999);
        world.step(11_001);
        world.step(11_500).spec.breaches
    };
    assert_eq!(ended(true)[0].kind, BreachKind::EndNotAccepted);
    assert!(ended(false).is_empty());
}

#[test]
fn a_consumer_that_broke_a_contract_loses_it_if_the_policy_says_so() {
    let mut world = World::signed(|_| ());
    world.contracts[0].spec.breaches = vec![Breach {
        by: Party::Consumer,
        kind: BreachKind::EndedEarly,
        object: "contract".to_owned(),
        time: Time(at(1500)),
        until: None,
        message: "m".to_owned(),
    }];
    assert!(world.is_settled(2000));
    world.policy().on_breach = OnBreach::EndWithNotice;
    let end = world.step(2000).spec.ended.unwrap();
    assert_eq!((end.cause, end.at), (EndCause::Breach, Time(at(2300))));
}

#[test]
fn a_consumer_that_asks_for_nothing_any_more_has_no_contract() {
    let mut world = World::signed(|_| ());
    world.asks = false;
    let end = world.step(2000).spec.ended.unwrap();
    assert_eq!(
        (end.by, end.cause, end.at),
        (Party::Consumer, EndCause::NothingRequested, Time(at(2000)))
    );
    assert!(world.is_settled(3000), "it need not answer");
    world.asks = true;
    assert_eq!(world.decide(4000).writes[0].spec.terms.version, 1);
}

#[test]
fn terms_name_the_peering_that_the_consumer_asks_in() {
    let mut world = World::new();
    assert_eq!(
        world.step(1000).spec.terms.peering.as_deref(),
        Some(PEERING)
    );
    world.peering = Some("another".to_owned());
    let replaced = world.step(1100);
    assert_eq!(
        (
            replaced.spec.terms.version,
            replaced.spec.terms.peering.as_deref()
        ),
        (2, Some("another"))
    );
    world.peering = None;
    assert_eq!(
        world.step(1200).spec.terms.peering,
        None,
        "an older version of Liqo asks"
    );
}

#[test]
fn a_consumer_that_peered_again_ends_what_it_signed_before_with_the_notice() {
    let mut world = World::signed(|_| ());
    world.peering = Some("another".to_owned());
    let end = world.step(2000).spec.ended.unwrap();
    assert_eq!(
        (end.by, end.cause, end.at),
        (Party::Consumer, EndCause::Requested, Time(at(2300)))
    );
    world.contracts[0].status.as_mut().unwrap().phase = ContractPhase::Ended;
    assert_eq!(
        world.step(2300).spec.terms.peering.as_deref(),
        Some("another")
    );

    let mut world = World::signed(|terms| terms.peering = None);
    assert!(
        world.is_settled(2000),
        "what both signed before peerings had names goes on"
    );
}

#[test]
fn a_damaged_document_ends_the_contract() {
    let mut world = World::signed(|_| ());
    world.contracts[0].spec.document = "{}".to_owned();
    assert_eq!(
        world.step(2000).spec.ended.unwrap().cause,
        EndCause::Damaged
    );
}

#[test]
fn ended_contracts_are_kept_for_a_while_and_not_without_number() {
    let mut world = World::signed(|_| ());
    let ended = |number: i64| {
        let mut contract = world.contracts[0].clone();
        contract.metadata.name = Some(format!("contract-{number}"));
        contract.status.as_mut().unwrap().phase = ContractPhase::Ended;
        contract.spec.ended = Some(ContractEnd {
            by: Party::Provider,
            cause: EndCause::Requested,
            announced: Time(at(number)),
            at: Time(at(number)),
            reason: String::new(),
        });
        contract
    };
    let all: Vec<Contract> = (0..12).map(ended).collect();
    world.contracts = all;
    world.asks = false;
    assert_eq!(world.decide(2000).deletions, ["contract-1", "contract-0"]);
    assert_eq!(world.decide(91 * 24 * 3600).deletions.len(), 12);
}

#[test]
fn terms_that_are_too_long_are_a_problem_that_is_told() {
    let mut world = World::new();
    world.provide.as_mut().unwrap().usage.storage_classes = (0..500)
        .map(|n| format!("a-long-storage-class-{n}"))
        .collect();
    let plan = world.decide(1000);
    assert!(plan.writes.is_empty() && plan.problem.unwrap().contains("longer than"));
}

#[test]
fn an_unsigned_amendment_that_costs_the_offer_is_decided_again_at_its_deadline() {
    let mut world = World::signed(|_| ());
    (
        world.policy().sign_within_seconds,
        world.policy().if_not_signed,
    ) = (100, IfNotSigned::WithdrawOffer);
    world.provide.as_mut().unwrap().notice_seconds = 60;
    world.step(2000);
    assert_eq!(world.decide(2001).next, Some(at(2100)));
}

#[test]
fn amounts_of_a_guarantee_change_only_by_an_amendment() {
    let mut world = World::signed(|terms| {
        terms.commitment = Commitment::Guaranteed;
        terms.pools = vec![ContractPool {
            name: "default".to_owned(),
            resources: list("cpu=2, memory=8Gi, pods=10"),
        }];
    });
    let contract = world.step(2000);
    assert_eq!(
        contract.spec.terms.pools[0].resources,
        list("cpu=2, memory=8Gi, pods=10")
    );
    assert_eq!(
        contract.spec.pending.unwrap().terms.pools[0].resources,
        list("cpu=4, memory=8Gi, pods=10")
    );
}

#[test]
fn terms_that_change_too_often_wait_for_receipts() {
    let mut world = World::signed(|_| ());
    let changes = u32::try_from(MAX_EARLIER_TERMS).unwrap() - 2;
    for number in 0..changes {
        let contract = world.change(1000 + number, 2000 + i64::from(number));
        assert_eq!(contract.spec.terms.notice_seconds, 1000 + number);
    }
    let contract = world.change(7, 3000);
    assert_eq!(
        (
            contract.spec.terms.notice_seconds,
            contract.spec.pending.is_none()
        ),
        (1000 + changes - 1, true)
    );
    let plan = world.decide(3000);
    assert_eq!(
        (plan.writes.is_empty(), plan.next),
        (true, Some(at(7200))),
        "an hour after the end of the period"
    );
    assert!(
        plan.problem
            .unwrap()
            .contains("no change before 1970-01-01T02:00:00Z")
    );
    assert_eq!(
        world.change(7, 7199).spec.terms.notice_seconds,
        1000 + changes - 1
    );
    assert_eq!(world.change(7, 7200).spec.terms.notice_seconds, 7);
}

#[test]
fn a_contract_is_renewed_although_its_terms_changed_too_often() {
    let mut world = World::signed(|terms| terms.end = Some(Time(at(11_000))));
    for number in 0..70 {
        world.change(1000 + number, 5900 + i64::from(number));
    }
    let contract = world.change(7, 6000);
    assert_eq!(
        (
            contract.spec.terms.end.clone(),
            contract.spec.terms.notice_seconds
        ),
        (Some(Time(at(21_000))), 7)
    );
    assert!(contract.spec.earlier.len() < MAX_EARLIER_TERMS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn the_terms_of_every_second_are_known_until_its_receipt_is_due(
        period_minutes in 1..240_u32,
        gaps in prop::collection::vec(prop_oneof![6 => 1..60_i64, 1 => 60..7200_i64], 200),
    ) {
        let mut world = World::signed(|terms| terms.metering_period_seconds = period_minutes * 60);
        let mut now = 1000;
        for (gap, notice) in gaps.into_iter().zip(1000..) {
            now += gap;
            let contract = world.change(notice, now);
            let terms = receipt::ReceiptContract::of_spec(&contract.spec).unwrap();
            let first = terms.versions[0].from;
            // A period whose receipt may still be compared.
            let needed = Period::at(now - 3600, period_minutes * 60).start.max(1000);
            prop_assert!(first <= needed, "at {now} second {needed} has no terms: the first ones are of {first}");
            prop_assert!(contract.spec.earlier.len() <= MAX_EARLIER_TERMS);
        }
    }
}
