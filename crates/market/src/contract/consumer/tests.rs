use liqo_api::{
    BreachKind, Contract, ContractEnd, EarlierTerms, OfferContract, ProposedTerms,
    ResourceOfferSpec, Time,
};

use super::*;
use crate::{
    contract::fixtures::{PEERING, Parties, at, at_provider, copy, terms},
    tests::{list, offer_of},
};

/// A consumer that sees one provider.
struct World {
    parties: Parties,
    consume: Consume,
    decisions: BTreeMap<String, ContractDecision>,
    contracts: BTreeMap<String, Contract>,
    copies: BTreeMap<String, Contract>,
    offers: BTreeMap<String, Arc<ResourceOffer>>,
    offer_copies: BTreeMap<String, Arc<ResourceOffer>>,
    unconfirmed: BTreeMap<String, UnconfirmedBreaches>,
    steady: bool,
    peering: String,
}

const NAME: &str = "contract-01234567";

impl World {
    /// It sees this contract.
    fn with(make: impl FnOnce(&Parties) -> Contract) -> Self {
        let parties = Parties::new();
        let contract = make(&parties);
        Self {
            contracts: BTreeMap::from([(contract.metadata.name.clone().unwrap(), contract)]),
            parties,
            consume: Consume::default(),
            decisions: BTreeMap::new(),
            copies: BTreeMap::new(),
            offers: BTreeMap::new(),
            offer_copies: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            steady: true,
            peering: PEERING.to_owned(),
        }
    }

    fn proposed() -> Self {
        Self::with(|parties| parties.proposal(&terms(parties)))
    }

    /// Both signed these terms, and this cluster has a copy.
    fn signed(change: impl FnOnce(&mut ContractTerms)) -> Self {
        let mut world = Self::with(|parties| {
            let mut terms = terms(parties);
            change(&mut terms);
            parties.proposal(&terms)
        });
        world.step(1000);
        world.take_signature(1000);
        world.step(1500);
        world
    }

    /// The provider puts the amendment in force at this second.
    fn promote(&mut self, seconds: i64) {
        let amendment = self.contract().spec.pending.take().unwrap();
        (self.contract().spec.document, self.contract().spec.terms) =
            (amendment.document, amendment.terms);
        self.contract().spec.countersignature = self.status().pending_signature;
        self.contract().spec.in_force_since = Some(Time(at(seconds)));
    }

    /// The provider takes the consumer's signature over, and says that the contract is in force
    /// since this second.
    fn take_signature(&mut self, seconds: i64) {
        let contract = self.contract();
        contract.spec.countersignature = contract
            .status
            .as_ref()
            .and_then(|status| status.signature.clone());
        contract.spec.in_force_since = Some(Time(at(seconds)));
    }

    fn contract(&mut self) -> &mut Contract {
        self.contracts.values_mut().next().unwrap()
    }

    fn judge(&mut self, seconds: i64) -> ContractJudgement {
        let contracts = self
            .contracts
            .iter()
            .map(|(name, contract)| (name.clone(), at_provider(contract)))
            .collect();
        let copies = self
            .copies
            .iter()
            .map(|(name, contract)| (name.clone(), copy(contract)))
            .collect();
        let offers = self.offers.iter().map(|(pool, offer)| {
            (
                pool.clone(),
                Arc::new(Claimed::new(ResourceOffer::clone(offer))),
            )
        });
        let offers = offers.collect();
        let view = ContractView {
            identity: &self.parties.consumer,
            provider: self.parties.provider.id(),
            peer: "milan",
            peering: &self.peering,
            consume: Some(&self.consume),
            decisions: &self.decisions,
            contracts: &contracts,
            copies: &copies,
            offers: &offers,
            offer_copies: &self.offer_copies,
            steady: self.steady,
            now: at(seconds),
        };
        judge_contracts(&view, &mut self.unconfirmed)
    }

    /// Judges, and carries it out.
    fn step(&mut self, seconds: i64) -> ContractJudgement {
        let judgement = self.judge(seconds);
        for action in judgement.actions.clone() {
            match action {
                ContractAction::ApplyCopy(name, spec) => {
                    let status = self.copies.get(&name).and_then(|copy| copy.status.clone());
                    let mut copy = Contract::new(&name, *spec);
                    copy.status = status;
                    self.copies.insert(name, copy);
                }
                ContractAction::AnswerCopy(name, status) => {
                    self.copies.get_mut(&name).unwrap().status = Some(status);
                }
                ContractAction::DeleteCopy { name, .. } => drop(self.copies.remove(&name)),
                ContractAction::Answer(name, status) => {
                    self.contracts.get_mut(&name).unwrap().status = Some(status);
                }
            }
        }
        self.offer_copies = self.offers.clone();
        judgement
    }

    fn status(&self) -> ContractStatus {
        self.contracts[NAME].status.clone().unwrap()
    }

    fn breaches(&self) -> Vec<(BreachKind, bool)> {
        self.status()
            .breaches
            .iter()
            .map(|breach| (breach.kind, breach.until.is_none()))
            .collect()
    }

    fn is_settled(&mut self, seconds: i64) -> bool {
        self.judge(seconds).actions.is_empty()
    }

    fn amend(&mut self, change: impl FnOnce(&mut ContractTerms)) {
        let current = at_provider(&self.contracts[NAME])
            .current
            .clone()
            .unwrap()
            .document;
        let mut next = ContractTerms {
            version: current.terms.version + 1,
            previous: Some(current.digest),
            ..current.terms
        };
        change(&mut next);
        let document = ContractDocument::compose(&self.parties.provider, &next).unwrap();
        let proposed = Time(at(2000));
        self.contract().spec.pending = Some(ProposedTerms {
            document,
            terms: next,
            proposed,
            countersignature: None,
            signed: None,
        });
    }

    fn offers(&mut self, change: impl FnOnce(&mut ResourceOfferSpec)) {
        let mut spec = offer_of(3, "cpu=4, memory=8Gi, pods=10");
        spec.contract = Some(OfferContract {
            name: NAME.to_owned(),
            version: 1,
            in_force: true,
        });
        change(&mut spec);
        self.offers.insert(
            "default".to_owned(),
            Arc::new(ResourceOffer::new("default", spec)),
        );
    }
}

fn ended_at(seconds: i64, cause: EndCause) -> ContractEnd {
    ContractEnd {
        by: Party::Provider,
        cause,
        announced: Time(at(2000)),
        at: Time(at(seconds)),
        reason: "r".to_owned(),
    }
}

fn decision(decision: ContractAnswer) -> BTreeMap<String, ContractDecision> {
    BTreeMap::from([(
        NAME.to_owned(),
        ContractDecision {
            decision,
            terms: None,
            reason: None,
        },
    )])
}

#[test]
fn acceptable_terms_are_signed_and_copied() {
    let mut world = World::proposed();
    let judgement = world.step(1500);
    assert!(matches!(
        judgement.contract_stances[NAME],
        ContractStance::Signed { .. }
    ));
    assert_eq!(world.status().phase, ContractPhase::InForce);
    assert!(
        at_provider(&world.contracts[NAME])
            .signed_document()
            .is_some()
    );
    assert_eq!(world.copies[NAME].spec, world.contracts[NAME].spec);
    assert!(world.is_settled(1600));
}

#[test]
fn a_person_decides_where_the_policy_says_so_on_the_terms_that_it_saw() {
    let mut world = World::proposed();
    world.consume.contract.accept = AcceptContract::Manual;
    let asks = world.step(1500);
    assert!(
        matches!(&asks.contract_stances[NAME], ContractStance::Asks(why) if why.contains("`liqoctl offer accept milan`"))
    );
    assert_eq!(
        (world.status().phase, world.status().signature),
        (ContractPhase::AwaitingDecision, None)
    );
    world.decisions = decision(ContractAnswer::Accept);
    world.decisions.get_mut(NAME).unwrap().terms = Some("f".repeat(64));
    world.step(1600);
    assert_eq!(
        world.status().phase,
        ContractPhase::AwaitingDecision,
        "it saw other terms"
    );
    let digest = at_provider(&world.contracts[NAME])
        .current
        .clone()
        .unwrap()
        .document
        .digest;
    world.decisions.get_mut(NAME).unwrap().terms = Some(digest);
    world.step(1700);
    assert_eq!(world.status().phase, ContractPhase::InForce);
}

fn price(terms: &mut ContractTerms, rate: &str, currency: &str) {
    let prices = serde_json::json!({ "currency": currency, "rates": { "cpu": rate } });
    terms.prices = BTreeMap::from([(
        "default".to_owned(),
        serde_json::from_value(prices).unwrap(),
    )]);
}

#[test]
fn terms_beyond_the_limits_of_the_policy_are_refused_with_the_limit() {
    let refused = |change: fn(&mut Consume), terms_change: fn(&mut ContractTerms)| {
        let mut world = World::with(|parties| {
            let mut terms = terms(parties);
            terms_change(&mut terms);
            parties.proposal(&terms)
        });
        change(&mut world.consume);
        world.step(1500);
        (
            world.status().phase,
            world.status().message.unwrap_or_default(),
        )
    };
    let limited = |consume: &mut Consume| consume.contract.max_period_seconds = Some(3600);
    let (phase, message) = refused(limited, |_| ());
    assert_eq!(phase, ContractPhase::Refused);
    assert!(message.contains("no end"), "{message}");
    assert!(
        refused(limited, |terms| terms.end = Some(Time(at(4601))))
            .1
            .contains("lasts 3601 s")
    );
    assert_eq!(
        refused(limited, |terms| terms.end = Some(Time(at(4600)))).0,
        ContractPhase::InForce
    );
    let few = |consume: &mut Consume| consume.contract.max_resources = list("cpu=2");
    let (_, message) = refused(few, |terms| terms.commitment = Commitment::Guaranteed);
    assert!(message.contains("guarantees 4 of cpu"), "{message}");
    assert_eq!(
        refused(few, |_| ()).0,
        ContractPhase::InForce,
        "best effort promises no amounts"
    );
    let cheap = |consume: &mut Consume| {
        consume.max_prices = serde_json::from_value(
            serde_json::json!({ "currency": "EUR", "rates": { "cpu": "0.05" } }),
        )
        .unwrap();
    };
    let (phase, message) = refused(cheap, |terms| price(terms, "0.06", "EUR"));
    assert_eq!(phase, ContractPhase::Refused);
    assert!(message.contains("cpu costs 0.06 EUR"), "{message}");
    assert_eq!(
        refused(cheap, |terms| price(terms, "0.05", "EUR")).0,
        ContractPhase::InForce
    );
    assert_eq!(
        refused(cheap, |terms| price(terms, "0.01", "USD")).0,
        ContractPhase::Refused
    );
}

/// Limits of the consumer's policy.
#[allow(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
fn limits(rates: serde_json::Value) -> Option<PriceList> {
    serde_json::from_value(serde_json::json!({ "currency": "EUR", "rates": rates })).unwrap()
}

#[test]
fn what_costs_something_without_a_limit_waits_for_a_person() {
    let proposed = |rates: serde_json::Value, max_prices: Option<PriceList>| {
        let mut world = World::with(|parties| {
            let prices =
                serde_json::from_value(serde_json::json!({ "currency": "EUR", "rates": rates }))
                    .unwrap();
            parties.proposal(&ContractTerms {
                prices: BTreeMap::from([("default".to_owned(), prices)]),
                ..terms(parties)
            })
        });
        world.consume.max_prices = max_prices;
        world.step(1500);
        world
    };
    let asks = |world: &World| {
        world.status().phase == ContractPhase::AwaitingDecision
            && world.status().signature.is_none()
    };
    let mut dear = proposed(serde_json::json!({ "cpu": "1000000" }), None);
    assert!(
        asks(&dear)
            && dear
                .status()
                .message
                .unwrap()
                .contains("cpu of pool default costs 1000000 EUR, and")
    );
    dear.decisions = decision(ContractAnswer::Accept);
    dear.step(1600);
    assert_eq!(dear.status().phase, ContractPhase::InForce);
    assert!(asks(&proposed(
        serde_json::json!({ "cpu": "0.04", "pods": "1000000" }),
        limits(serde_json::json!({ "cpu": "0.05" }))
    )));
    let signed =
        |rates, max_prices| proposed(rates, max_prices).status().phase == ContractPhase::InForce;
    assert!(signed(
        serde_json::json!({ "cpu": "0.04", "pods": "0" }),
        limits(serde_json::json!({ "cpu": "0.05" }))
    ));
    assert!(signed(serde_json::json!({ "cpu": "0" }), None) && signed(serde_json::json!({}), None));
}

/// A contract at this price that a person accepted, with an amendment.
fn amended(max_prices: Option<PriceList>, change: impl FnOnce(&mut ContractTerms)) -> World {
    let mut world = World::signed(|terms| {
        price(terms, "0.04", "EUR");
    });
    world.decisions = decision(ContractAnswer::Accept);
    world.step(1600);
    world.take_signature(1600);
    world.step(1700);
    world.decisions.clear();
    world.consume.max_prices = max_prices;
    world.amend(change);
    world.step(2000);
    world
}

/// What the consumer says about the amendment; nothing if it signed it.
fn answer(world: &World) -> String {
    let status = world.status();
    assert_eq!(
        (status.phase, status.message.is_none()),
        (ContractPhase::InForce, status.pending_signature.is_some())
    );
    status.message.unwrap_or_default()
}

#[test]
fn an_amendment_that_costs_more_is_signed_only_within_a_limit_and_counts_after_the_notice() {
    let to = |rate: &'static str, delay: Option<u32>| {
        move |terms: &mut ContractTerms| {
            price(terms, rate, "EUR");
            terms.counts_after_seconds = delay;
        }
    };
    let cpu = || limits(serde_json::json!({ "cpu": "0.05" }));
    assert!(answer(&amended(None, to("1000000", Some(300)))).contains("no limit for it"));
    assert!(answer(&amended(cpu(), to("0.06", Some(300)))).contains("at most 0.05"));
    let at_once = answer(&amended(cpu(), to("0.05", None)));
    assert!(
        at_once.contains("it counts after 0 s, and the notice is 300 s"),
        "{at_once}"
    );
    assert_ne!(answer(&amended(cpu(), to("0.05", Some(299)))), "");
    assert_eq!(answer(&amended(cpu(), to("0.05", Some(300)))), "");
    // What a person accepted once goes on, and becomes cheaper, without another question.
    assert_eq!(answer(&amended(None, to("0.03", None))), "");
    assert_eq!(
        answer(&amended(None, |terms| terms.limits.max_services = 7)),
        ""
    );
}

#[test]
fn an_amendment_that_charges_other_amounts_waits_for_a_person() {
    let all = || {
        limits(
            serde_json::json!({ "cpu": "0.05", "memory": "1", "pods": "1", "ephemeral-storage": "1" }),
        )
    };
    let to_limits = |terms: &mut ContractTerms| {
        terms.limits.charge = liqo_api::Charge::Limits;
        terms.counts_after_seconds = Some(300);
    };
    let to_percentage = |terms: &mut ContractTerms| {
        terms.limits.default_limit_percentage = 100_000;
        terms.counts_after_seconds = Some(300);
    };
    assert!(answer(&amended(all(), to_percentage)).contains("which amounts of a pod are charged"));
    let mut world = amended(all(), to_limits);
    assert!(answer(&world).contains("which amounts of a pod are charged"));
    world.decisions = decision(ContractAnswer::Accept);
    world.step(2001);
    assert_eq!(answer(&world), "");
}

#[test]
fn an_amendment_that_was_signed_stays_signed_until_it_counts() {
    let mut world = amended(limits(serde_json::json!({ "cpu": "0.05" })), |terms| {
        price(terms, "0.05", "EUR");
        terms.counts_after_seconds = Some(300);
    });
    world.consume.contract.accept = AcceptContract::Manual;
    world.consume.max_prices = None;
    assert!(world.is_settled(2100));
    // The provider says that it counts at once.
    world.promote(2100);
    world.step(2101);
    let copy = &world.copies[NAME].spec;
    assert_eq!(
        (copy.terms.version, copy.in_force_since.clone()),
        (2, Some(Time(at(2300))))
    );
}

#[test]
fn what_was_signed_stays_signed_when_the_policy_changes() {
    let mut world = World::signed(|_| ());
    world.consume.accept = Accept::Never;
    assert!(world.is_settled(1600));
}

#[test]
fn nothing_is_signed_for_another_cluster() {
    let mut world = World::with(|parties| {
        parties.proposal(&ContractTerms {
            consumer: parties.provider.id().clone(),
            ..terms(parties)
        })
    });
    world.step(1500);
    assert_eq!(
        (world.status().phase, world.status().signature),
        (ContractPhase::Refused, None)
    );
}

/// Why a contract that the provider brings into an empty cluster is not signed.
fn refusal(world: &mut World, contract: Contract) -> String {
    let name = contract.metadata.name.clone().unwrap();
    world.contracts = BTreeMap::from([(name.clone(), contract)]);
    match world.step(2000).contract_stances[&name].clone() {
        ContractStance::Refused { why, .. } => why,
        other => format!("{other:?}"),
    }
}

#[test]
fn a_contract_of_an_earlier_peering_does_not_come_back() {
    let mut world = World::signed(|_| ());
    let old = world.contracts[NAME].clone();
    assert!(old.spec.countersignature.is_some() && old.spec.in_force_since.is_some());
    world.copies.clear();
    world.peering = "another".to_owned();
    assert_eq!(refusal(&mut world, old.clone()), "it is of another peering");
    assert_eq!(
        (
            world.status().signature,
            world.copies[NAME].spec.in_force_since.clone()
        ),
        (None, None)
    );
    // Not even if the provider shows the answer of that time, or a person accepted these terms
    // then.
    world.decisions = decision(ContractAnswer::Accept);
    assert_eq!(refusal(&mut world, old), "it is of another peering");
    let unnamed = world.parties.in_force(&ContractTerms {
        peering: None,
        ..terms(&world.parties)
    });
    assert!(refusal(&mut world, unnamed).contains("names no peering"));
}

#[test]
fn a_signature_that_only_the_provider_shows_does_not_count() {
    let mut world = World::signed(|_| ());
    world.copies.clear();
    world.consume.contract.accept = AcceptContract::Manual;
    assert!(matches!(
        world.step(2000).contract_stances[NAME],
        ContractStance::Asks(_)
    ));
    assert_eq!(world.copies[NAME].spec.in_force_since, None);
    assert_eq!(world.breaches(), [], "this cluster lost its copy");
    // Terms that were in force, and that others replaced since.
    let mut world = World::signed(|_| ());
    let first = world.contracts[NAME].clone();
    world.amend(|terms| terms.notice_seconds = 60);
    world.step(2000);
    world.promote(2001);
    world.step(2002);
    world.contracts.insert(NAME.to_owned(), first);
    world.step(2003);
    let copy = &world.copies[NAME];
    assert_eq!(
        (
            copy.spec.terms.version,
            at_provider(copy).signed_document().is_some()
        ),
        (2, true)
    );
    assert_eq!(world.breaches(), [(BreachKind::TermsNotSigned, true)]);
}

#[test]
fn a_contract_whose_copy_is_gone_does_not_come_back() {
    let mut world = World::signed(|_| ());
    let old = world.contracts.remove(NAME).unwrap();
    let newer = ContractTerms {
        contract: "f".repeat(32),
        start: Time(at(1600)),
        ..terms(&world.parties)
    };
    let mut newer = world.parties.in_force(&newer);
    newer.spec.ended = Some(ended_at(1900, EndCause::Requested));
    world.copies = BTreeMap::from([("contract-ffffffff".to_owned(), newer)]);
    assert_eq!(
        refusal(&mut world, old),
        "it is older than contract-ffffffff, which is known here"
    );
    let future = world.parties.proposal(&ContractTerms {
        start: Time(at(2301)),
        ..terms(&world.parties)
    });
    assert!(refusal(&mut world, future).contains("in the future"));
}

#[test]
fn a_contract_under_the_name_of_another_one_is_not_signed() {
    let mut world = World::proposed();
    let mut other = world.parties.proposal(&ContractTerms {
        contract: "f".repeat(32),
        ..terms(&world.parties)
    });
    other.metadata.name = Some(NAME.to_owned());
    assert!(refusal(&mut world, other).contains("the name of another contract"));
}

#[test]
fn terms_in_force_are_replaced_only_by_an_amendment() {
    for over in [false, true] {
        let mut world = World::signed(|_| ());
        if over {
            world.contract().spec.ended = Some(ended_at(1600, EndCause::Requested));
            world.step(1600);
        }
        let next = world.parties.proposal(&ContractTerms {
            version: 9,
            notice_seconds: 1,
            ..terms(&world.parties)
        });
        world.contract().spec.document = next.spec.document;
        world.contract().spec.terms = next.spec.terms;
        world.step(2000);
        let copy = &world.copies[NAME];
        assert_eq!(
            (
                copy.spec.terms.version,
                at_provider(copy).signed_document().is_some()
            ),
            (1, true),
            "the copy stays"
        );
        assert_eq!(
            world.status().signature.map(|signature| signature.version),
            Some(1)
        );
    }
}

#[test]
fn an_amendment_is_signed_within_the_limits_and_must_follow_the_version_in_force() {
    let mut world = World::signed(|_| ());
    world.amend(|terms| terms.notice_seconds = 60);
    world.step(2000);
    assert!(
        at_provider(&world.contracts[NAME])
            .amendment()
            .unwrap()
            .countersignature
            .is_some()
    );
    assert!(world.is_settled(2100));

    let mut world = World::signed(|_| ());
    world.amend(|terms| terms.previous = None);
    world.step(2000);
    assert_eq!(world.status().pending_signature, None);
    assert!(world.status().message.unwrap().contains("does not follow"));

    let mut world = World::signed(|_| ());
    world.consume.contract.accept = AcceptContract::Manual;
    world.amend(|terms| terms.notice_seconds = 60);
    world.step(2000);
    assert_eq!(
        (world.status().phase, world.status().pending_signature),
        (ContractPhase::InForce, None)
    );
    assert!(
        world
            .status()
            .message
            .unwrap()
            .contains("version 2: the contract requires a decision")
    );
}

#[test]
fn a_person_ends_a_contract_and_is_asked_about_the_next_one() {
    let mut world = World::signed(|_| ());
    world.decisions = decision(ContractAnswer::End);
    world.step(2000);
    assert_eq!(
        world.status().end_requested.unwrap().cause,
        EndCause::Requested
    );
    world.contract().spec.ended = Some(ended_at(2100, EndCause::Requested));
    let another = ContractTerms {
        contract: "f".repeat(32),
        ..terms(&world.parties)
    };
    let proposal = world.parties.proposal(&another);
    world
        .contracts
        .insert("contract-ffffffff".to_owned(), proposal);
    let judgement = world.step(2100);
    assert!(matches!(
        judgement.contract_stances["contract-ffffffff"],
        ContractStance::Asks(_)
    ));
}

#[test]
fn the_end_of_a_contract_is_accepted() {
    let mut world = World::signed(|_| ());
    let (announced, end) = (Time(at(2000)), Time(at(2300)));
    let cause = EndCause::Requested;
    world.contract().spec.ended = Some(ContractEnd {
        by: Party::Provider,
        cause,
        announced,
        at: end,
        reason: "r".to_owned(),
    });
    assert_eq!(world.step(2000).next, Some(at(2300)));
    assert_eq!(world.status().phase, ContractPhase::InForce);
    world.step(2300);
    assert_eq!(
        (world.status().phase, world.breaches()),
        (ContractPhase::Ended, vec![])
    );
    assert!(world.is_settled(2400));
}

#[test]
fn a_provider_that_dates_terms_or_lists_earlier_ones_changes_nothing_that_is_charged() {
    let mut world = World::proposed();
    world.step(1000);
    world.take_signature(4_000_000_000);
    let mut dear = terms(&world.parties);
    price(&mut dear, "1000", "EUR");
    let (digest, since) = ("d".repeat(64), Time(at(10)));
    world.contract().spec.earlier = vec![EarlierTerms {
        version: 1,
        digest,
        since,
        prices: dear.prices,
    }];
    world.step(1500);
    let copy = &world.copies[NAME];
    assert_eq!(
        (copy.spec.in_force_since.clone(), copy.spec.earlier.len()),
        (Some(Time(at(1000))), 0)
    );
    let priced = crate::receipt::contract::metered_contract(copy)
        .unwrap()
        .unwrap();
    assert_eq!(
        priced
            .versions
            .iter()
            .map(|version| (version.version, version.from))
            .collect::<Vec<_>>(),
        [(1, 1000)]
    );

    // A dearer amendment that the provider dates back, and one that it leaves in the future.
    for said in [1001, 4_000_000_000] {
        let mut world = World::signed(|_| ());
        world.amend(|_| ());
        world.step(9000);
        world.promote(said);
        world.step(9001);
        let copy = &world.copies[NAME].spec;
        let earlier: Vec<_> = copy
            .earlier
            .iter()
            .map(|one| (one.version, one.since.0.as_second()))
            .collect();
        assert_eq!(
            (copy.in_force_since.clone(), earlier),
            (Some(Time(at(9000))), vec![(1, 1000)]),
            "{said}"
        );
    }
}

#[test]
fn a_provider_that_changes_a_term_is_found_and_the_evidence_stays() {
    let mut world = World::signed(|_| ());
    world.contract().spec.terms.notice_seconds = 10;
    world.step(2000);
    assert_eq!(world.breaches(), [(BreachKind::TermsDiffer, true)]);
    assert_eq!(world.copies[NAME].spec.terms.notice_seconds, 300);
    let status = world.status();
    let honoured = &status.conditions[0];
    assert_eq!(
        (honoured.status.as_str(), honoured.reason.as_str()),
        ("False", "TermsDiffer")
    );
    assert!(
        honoured
            .message
            .contains("noticeSeconds is 10 instead of 300"),
        "{}",
        honoured.message
    );
    assert!(world.is_settled(2100));
    world.contract().spec.terms.notice_seconds = 300;
    world.step(2200);
    assert_eq!(world.breaches(), [(BreachKind::TermsDiffer, false)]);
    assert_eq!(world.status().conditions[0].status, "True");
}

#[test]
fn a_provider_that_signs_other_terms_alone_is_found() {
    let mut world = World::signed(|_| ());
    let alone = ContractTerms {
        notice_seconds: 10,
        ..terms(&world.parties)
    };
    let document = ContractDocument::compose(&world.parties.provider, &alone).unwrap();
    (world.contract().spec.document, world.contract().spec.terms) = (document, alone);
    world.consume.contract.accept = AcceptContract::Manual;
    world.step(2000);
    assert_eq!(world.breaches(), [(BreachKind::TermsNotSigned, true)]);
    assert_eq!(world.copies[NAME].spec.terms.notice_seconds, 300);
}

#[test]
fn a_status_that_the_provider_wiped_is_written_again() {
    let mut world = World::signed(|_| ());
    world.contract().status = None;
    world.contract().spec.countersignature = None;
    world.step(2000);
    assert!(
        at_provider(&world.contracts[NAME])
            .signed_document()
            .is_some()
    );
    assert_eq!(world.breaches(), []);
}

#[test]
fn an_offer_with_another_price_than_the_contract_is_a_breach() {
    let mut world = World::signed(|_| ());
    world.offers(|_| ());
    world.step(2000);
    assert_eq!(world.breaches(), []);
    let dear =
        serde_json::from_value(serde_json::json!({ "currency": "EUR", "rates": { "cpu": "9" } }))
            .unwrap();
    world.offers(|offer| offer.prices = Some(dear));
    world.step(2100);
    assert_eq!(world.breaches(), [(BreachKind::PriceDiffers, true)]);
    world.offers(|offer| offer.contract.as_mut().unwrap().version = 2);
    world.step(2200);
    assert_eq!(
        world.breaches(),
        [(BreachKind::PriceDiffers, false)],
        "the contract of that offer has not arrived yet"
    );
}

#[test]
fn guaranteed_amounts_that_are_missing_for_long_are_a_breach() {
    let mut world = World::signed(|terms| terms.commitment = Commitment::Guaranteed);
    world.offers(|_| ());
    assert_eq!(world.step(1600).next, None);
    world.offers(|offer| offer.resource_quota.hard = list("cpu=3, memory=8Gi, pods=10"));
    assert_eq!(world.step(2000).next, Some(at(2300)));
    world.step(2299);
    assert_eq!(world.breaches(), []);
    world.step(2300);
    assert_eq!(world.breaches(), [(BreachKind::CapacityMissing, true)]);
    world.consume.contract.on_breach = OnBreach::RefuseNew;
    let ContractStance::Signed {
        no_new_pods: Some(why),
        ..
    } = world.step(2400).contract_stances[NAME].clone()
    else {
        unreachable!()
    };
    assert!(why.contains("3 of 4 cpu"), "{why}");
}

#[test]
fn a_notice_that_is_too_short_is_a_breach_only_if_the_connection_was_steady() {
    for (steady, end, breaks) in [
        (true, 2600, false),
        (true, 1900, true),
        (false, 1900, false),
    ] {
        let mut world = World::signed(|_| ());
        world.steady = steady;
        world.offers(|_| ());
        world.step(1600);
        world.offers(|offer| offer.withdrawal_timestamp = Some(Time(at(end))));
        world.step(2000);
        assert_eq!(
            world.breaches().len(),
            usize::from(breaks),
            "{steady} {end}"
        );
        world.step(2100);
        assert_eq!(
            world.breaches().len(),
            usize::from(breaks),
            "it is found once"
        );
    }
}

#[test]
fn a_provider_that_ends_guaranteed_amounts_before_their_date_is_found_at_once() {
    let ends = |by: Party, at_second: i64| {
        let mut world = World::signed(|terms| {
            terms.commitment = Commitment::Guaranteed;
            terms.end = Some(Time(at(11_000)));
        });
        let (announced, end) = (Time(at(2000)), Time(at(at_second)));
        let cause = EndCause::Requested;
        world.contract().spec.ended = Some(ContractEnd {
            by,
            cause,
            announced,
            at: end,
            reason: "r".to_owned(),
        });
        world.steady = false;
        world.step(2000);
        let status = world.status();
        (
            world.breaches(),
            status
                .breaches
                .into_iter()
                .next()
                .map(|breach| breach.message),
        )
    };
    let (breaches, message) = ends(Party::Provider, 2300);
    assert_eq!(breaches, [(BreachKind::EndedEarly, true)]);
    assert!(message.is_some_and(|text| text.contains("guaranteed until 1970-01-01T03:03:20Z")));
    assert_eq!(ends(Party::Provider, 10_800).0, [], "clocks may differ");
    assert_eq!(
        ends(Party::Consumer, 2300).0,
        [],
        "this cluster ends it itself"
    );
}

#[test]
fn an_offer_that_vanishes_is_taken_back_without_notice() {
    let mut world = World::signed(|_| ());
    world.offers(|_| ());
    world.step(1600);
    world.offers.clear();
    world.step(2000);
    assert_eq!(world.breaches(), [(BreachKind::NoticeTooShort, true)]);
}

#[test]
fn a_copy_outlives_a_contract_that_the_provider_removed() {
    let mut world = World::signed(|_| ());
    world.contracts.clear();
    world.step(2000);
    let status = world.copies[NAME].status.clone().unwrap();
    assert_eq!(
        (status.phase, status.breaches.len()),
        (ContractPhase::Ended, 1)
    );
    assert!(world.is_settled(2100));
    let ended = world.copies[NAME].spec.ended.clone().unwrap();
    assert_eq!(
        (ended.cause, ended.at),
        (EndCause::Removed, Time(at(2000))),
        "nothing is recorded under it any more"
    );
    let back = world.parties.in_force(&terms(&world.parties));
    world.contracts.insert(NAME.to_owned(), back);
    assert_eq!(
        world.step(2200).contract_stances[NAME],
        ContractStance::Over,
        "it does not come back"
    );

    let mut world = World::proposed();
    world.consume.contract.accept = AcceptContract::Manual;
    world.step(1500);
    world.contracts.clear();
    world.step(2000);
    assert!(world.copies.is_empty(), "it was never signed");
}

#[test]
fn a_contract_that_is_removed_before_its_announced_end_is_over() {
    let announced = |world: &mut World| {
        world.contract().spec.ended = Some(ContractEnd {
            by: Party::Consumer,
            cause: EndCause::Requested,
            announced: Time(at(1600)),
            at: Time(at(5200)),
            reason: "r".to_owned(),
        });
        world.step(1600);
    };
    let end = |world: &World| {
        let ended = world.copies[NAME].spec.ended.clone().unwrap();
        (ended.cause, ended.at.0.as_second())
    };
    let found = |world: &World| -> Vec<BreachKind> {
        let status = world.copies[NAME].status.as_ref().unwrap();
        status.breaches.iter().map(|breach| breach.kind).collect()
    };
    let mut world = World::signed(|_| ());
    announced(&mut world);
    world.contracts.clear();
    world.step(2000);
    assert_eq!(end(&world), (EndCause::Removed, 2000));
    assert_eq!(found(&world), [BreachKind::NoticeTooShort]);
    assert!(world.is_settled(2100));

    // The provider's clock may be a little ahead.
    let mut world = World::signed(|_| ());
    announced(&mut world);
    world.contracts.clear();
    world.step(5000);
    assert_eq!(end(&world), (EndCause::Requested, 5000));
    assert_eq!(found(&world), []);
}

#[test]
fn nothing_is_signed_until_the_end_of_a_removed_contract_is_stored() {
    let mut world = World::signed(|_| ());
    let next = ContractTerms {
        contract: "c".repeat(32),
        start: Time(at(2000)),
        ..terms(&world.parties)
    };
    let (name, next) = (
        Contract::name_of(&next.contract),
        world.parties.proposal(&next),
    );
    world.contracts = BTreeMap::from([(name.clone(), next)]);
    let judgement = world.judge(2000);
    assert!(matches!(
        &judgement.actions[0],
        ContractAction::ApplyCopy(removed, spec) if removed == NAME && spec.ended.is_some()
    ));
    assert!(matches!(
        judgement.contract_stances[&name],
        ContractStance::Waits(_)
    ));
    world.step(2000);
    world.step(2000);
    assert!(
        world.copies[&name]
            .status
            .as_ref()
            .unwrap()
            .signature
            .is_some()
    );
}

#[test]
fn the_oldest_ended_copies_leave_what_they_cost_to_the_newest_one_which_never_goes() {
    let ended = |world: &World, number: i64| {
        let mut copy = world.parties.in_force(&terms(&world.parties));
        let (by, cause) = (Party::Provider, EndCause::Requested);
        copy.metadata.name = Some(format!("c{number:02}"));
        copy.metadata.creation_timestamp = Some(Time(at(number)));
        copy.spec.ended = Some(ContractEnd {
            by,
            cause,
            announced: Time(at(number)),
            at: Time(at(number)),
            reason: "r".to_owned(),
        });
        copy.status.as_mut().unwrap().phase = ContractPhase::Ended;
        copy
    };
    let mut world = World::signed(|_| ());
    world.contracts.clear();
    world.copies = (1..=12)
        .map(|number| (format!("c{number:02}"), ended(&world, number)))
        .collect();
    let successor = Some("c12".to_owned());
    let deletes = |name: &str| ContractAction::DeleteCopy {
        name: name.to_owned(),
        successor: successor.clone(),
    };
    assert_eq!(world.step(2000).actions, [deletes("c02"), deletes("c01")]);
    let years_later = 400 * 24 * 3600;
    assert_eq!(world.step(years_later).actions.len(), 9);
    assert_eq!(world.copies.keys().collect::<Vec<_>>(), ["c12"]);
    assert!(world.is_settled(years_later));
}

#[test]
fn a_provider_that_breaks_a_contract_loses_it_if_the_policy_says_so() {
    let mut world = World::signed(|_| ());
    world.consume.contract.on_breach = OnBreach::EndWithNotice;
    world.contract().spec.terms.notice_seconds = 10;
    world.step(2000);
    assert_eq!(
        world.status().end_requested.map(|request| request.cause),
        Some(EndCause::Breach)
    );
}

#[test]
fn few_contracts_of_a_provider_are_read() {
    let mut world = World::proposed();
    for number in 0..100 {
        let terms = ContractTerms {
            contract: format!("{number:08x}{:024x}", 0),
            ..terms(&world.parties)
        };
        let proposal = world.parties.proposal(&terms);
        world
            .contracts
            .insert(Contract::name_of(&terms.contract), proposal);
    }
    let contract_stances = world.step(1500).contract_stances;
    assert_eq!(contract_stances.len(), MAX_CONTRACTS);
    let signed = |stance: &&ContractStance| matches!(stance, ContractStance::Signed { .. });
    assert_eq!(
        contract_stances.values().filter(signed).count(),
        1,
        "one contract at a time"
    );
}

#[test]
fn a_second_contract_of_a_provider_is_not_signed_beside_the_one_in_force() {
    let mut world = World::signed(|_| ());
    let another = ContractTerms {
        contract: "f".repeat(32),
        ..terms(&world.parties)
    };
    let other = "contract-ffffffff";
    let proposal = world.parties.proposal(&another);
    world.contracts.insert(other.to_owned(), proposal);
    let refused = |stance: &ContractStance| matches!(stance, ContractStance::Refused { why, .. } if why.contains("contract-01234567 with the same"));
    assert!(refused(&world.step(2000).contract_stances[other]));
    world.decisions = BTreeMap::from([(
        other.to_owned(),
        ContractDecision {
            decision: ContractAnswer::Accept,
            terms: None,
            reason: None,
        },
    )]);
    assert!(
        refused(&world.step(2000).contract_stances[other]),
        "not even if a person says so"
    );

    world.contracts.get_mut(NAME).unwrap().spec.ended = Some(ended_at(2300, EndCause::PeriodOver));
    assert!(
        matches!(&world.step(2000).contract_stances[other], ContractStance::Waits(why) if why.contains("until 1970-01-01T00:38:20Z"))
    );
    assert!(matches!(
        world.step(2300).contract_stances[other],
        ContractStance::Signed { .. }
    ));
    // The provider says that it began before the end of the first one.
    world.contracts.get_mut(other).unwrap().spec.in_force_since = Some(Time(at(2250)));
    world.step(2301);
    assert_eq!(
        world.copies[other].spec.in_force_since,
        Some(Time(at(2300)))
    );
    // A renewal of the first one that the consumer signed does not bring it back.
    world.contracts.get_mut(NAME).unwrap().spec.ended = None;
    assert_eq!(
        world.step(2302).contract_stances[NAME],
        ContractStance::Over
    );
}
