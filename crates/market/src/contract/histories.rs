//! Random histories of an honest consumer and a provider that lies: it writes whatever it likes
//! into its objects, and has kept every document and every signature that it ever saw. A model
//! notes what the consumer signs, and when. After each event, the consumer's copies price nothing
//! else.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use liqo_api::{
    Charge, Consume, Contract, ContractAnswer, ContractDecision, ContractEnd, ContractSpec,
    ContractStatus, ContractTerms, EarlierTerms, EndCause, Party, PriceList, ProposedTerms, Time,
};
use proptest::{collection::vec, option, prelude::*};

use super::{
    TOLERANCE, after,
    breaches::UnconfirmedBreaches,
    consumer::{ContractAction, ContractView, judge_contracts},
    dearer::{cost_increase, counts_from},
    document::ContractDocument,
    fixtures::{Parties, at, copy, terms},
    record::ContractCopy,
};
use crate::receipt::contract::metered_contract;

/// Action of the provider on one of its contracts, or an event at the consumer.
#[derive(Clone, Debug)]
enum Event {
    /// The provider proposes a contract with an ID and a price, for a peering: this one, the one
    /// before, or none.
    Propose {
        id: u8,
        price: u8,
        peering: u8,
        starts: i64,
    },
    /// It proposes an amendment of what it shows: a price, a delay, whether it names the version
    /// before it.
    Amend {
        id: u8,
        price: u8,
        delay: u16,
        follows: bool,
        limits: bool,
        ends: Option<u16>,
    },
    /// It puts the amendment in force, since a time.
    Promote {
        id: u8,
        since: i64,
    },
    /// It says since when a contract is in force.
    Since {
        id: u8,
        since: Option<i64>,
    },
    /// It lists earlier terms that nobody signed.
    Earlier {
        id: u8,
        price: u8,
        since: i64,
    },
    /// It says that a contract ends, or that it does not.
    End {
        id: u8,
        at: Option<i64>,
    },
    /// It shows a document that it signed once under another name or in place of another one.
    Swap {
        id: u8,
        document: u16,
    },
    /// It brings back a contract as it was once, with the consumer's answers of that time.
    Restore {
        seen: u16,
    },
    /// It shows other readable terms than it signed.
    Readable {
        id: u8,
        price: u8,
    },
    /// It removes a contract, or the consumer's answer.
    Remove(u8),
    Wipe(u8),
    /// After the next event, the consumer's manager carries out only so many writes, and starts
    /// again after another one.
    Crashes(u8),
    /// The consumer's person accepts everything that is proposed, ends everything, or takes that
    /// back.
    Person(Option<bool>),
    /// The consumer's policy has this limit.
    Limit(Option<u8>),
    /// Both peer again. The decisions of persons stay.
    PeersAgain,
    Seconds(u32),
}

const IDS: u8 = 3;

fn event() -> impl Strategy<Value = Event> {
    let id = || 0..IDS;
    let price = || 0..4_u8;
    let moved = || prop_oneof![4 => -20..5_i64, 1 => -4000..4000_i64, 1 => Just(1_000_000_000)];
    prop_oneof![
        6 => (id(), price(), prop_oneof![6 => Just(0_u8), 1 => 1..3_u8], moved())
            .prop_map(|(id, price, peering, starts)| Event::Propose { id, price, peering, starts }),
        6 => (id(), price(), prop_oneof![Just(300_u16), 0..700_u16], prop::bool::weighted(0.8), prop::bool::weighted(0.2), option::weighted(0.2, 0..2000_u16))
            .prop_map(|(id, price, delay, follows, limits, ends)| Event::Amend { id, price, delay, follows, limits, ends }),
        5 => (id(), moved()).prop_map(|(id, since)| Event::Promote { id, since }),
        5 => (id(), option::weighted(0.8, moved())).prop_map(|(id, since)| Event::Since { id, since }),
        1 => (id(), price(), moved()).prop_map(|(id, price, since)| Event::Earlier { id, price, since }),
        3 => (id(), option::weighted(0.7, moved())).prop_map(|(id, at)| Event::End { id, at }),
        2 => (id(), any::<u16>()).prop_map(|(id, document)| Event::Swap { id, document }),
        3 => any::<u16>().prop_map(|seen| Event::Restore { seen }),
        1 => (id(), price()).prop_map(|(id, price)| Event::Readable { id, price }),
        1 => id().prop_map(Event::Remove),
        1 => id().prop_map(Event::Wipe),
        2 => (0..5_u8).prop_map(Event::Crashes),
        2 => option::of(prop::bool::weighted(0.8)).prop_map(Event::Person),
        1 => option::of(price()).prop_map(Event::Limit),
        1 => Just(Event::PeersAgain),
        6 => prop_oneof![3 => 0..400_u32, 1 => 0..9000_u32].prop_map(Event::Seconds),
    ]
}

/// Terms that the consumer signed in this peering. While they are not in force, it forgets its
/// signature if the provider shows other terms. Then it may sign them again.
struct SignedTerms {
    first: Timestamp,
    last: Timestamp,
    terms: ContractTerms,
}

struct World {
    parties: Parties,
    now: Timestamp,
    peering: u32,
    contracts: BTreeMap<String, Contract>,
    copies: BTreeMap<String, Contract>,
    consume: Consume,
    decisions: BTreeMap<String, ContractDecision>,
    unconfirmed: BTreeMap<String, UnconfirmedBreaches>,
    /// All that the provider has seen: contracts with the answers of the consumer.
    seen: Vec<Contract>,
    /// By digest.
    signed: BTreeMap<String, SignedTerms>,
    /// The versions that were in force in a copy.
    in_force: BTreeSet<String>,
    /// Contracts as they were read: verifying takes time.
    records: RefCell<Vec<(Contract, Arc<ContractCopy>)>>,
}

fn priced(price: u8) -> BTreeMap<String, PriceList> {
    let list = serde_json::from_value(
        serde_json::json!({ "currency": "EUR", "rates": { "cpu": price.to_string() } }),
    )
    .unwrap();
    BTreeMap::from([("default".to_owned(), list)])
}

fn id_of(id: u8) -> String {
    format!("{id:08x}{:024x}", 0)
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            parties: Parties::known(),
            now: at(1_000_000),
            peering: 1,
            contracts: BTreeMap::new(),
            copies: BTreeMap::new(),
            consume: Consume::default(),
            decisions: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            seen: Vec::new(),
            signed: BTreeMap::new(),
            in_force: BTreeSet::new(),
            records: RefCell::default(),
        };
        world.limit(Some(2));
        world
    }

    fn limit(&mut self, most: Option<u8>) {
        self.consume.max_prices = most.and_then(|most| priced(most).remove("default"));
    }

    fn record(&self, contract: &Contract) -> Arc<ContractCopy> {
        let mut known = self.records.borrow_mut();
        if let Some((_, record)) = known.iter().find(|(one, _)| one == contract) {
            return record.clone();
        }
        let read = copy(contract);
        if known.len() > 40 {
            known.remove(0);
        }
        known.push((contract.clone(), read.clone()));
        read
    }

    fn contract(&mut self, id: u8) -> Option<&mut Contract> {
        self.contracts.get_mut(&Contract::name_of(&id_of(id)))
    }

    fn moved(&self, seconds: i64) -> Time {
        Time(at(self.now.as_second() + seconds))
    }

    fn promote_amendment(&mut self, id: u8, since: Time) {
        let Some(contract) = self.contract(id) else {
            return;
        };
        let Some(pending) = contract.spec.pending.take() else {
            return;
        };
        contract.spec.countersignature = contract
            .status
            .as_ref()
            .and_then(|status| status.pending_signature.clone());
        (contract.spec.document, contract.spec.terms) = (pending.document, pending.terms);
        contract.spec.in_force_since = Some(since);
    }

    fn announce_end(&mut self, id: u8, end: Option<Time>) {
        let announced = self.moved(0);
        if let Some(contract) = self.contract(id) {
            contract.spec.ended = end.map(|at| ContractEnd {
                by: Party::Provider,
                cause: EndCause::PeriodOver,
                announced,
                at,
                reason: "r".to_owned(),
            });
        }
    }

    /// The provider signs something new.
    fn propose(&mut self, event: &Event) {
        let moved = |seconds: i64| self.moved(seconds);
        match *event {
            Event::Propose {
                id,
                price,
                peering,
                starts,
            } => {
                let peering =
                    [Some(self.peering), self.peering.checked_sub(1), None][usize::from(peering)];
                let terms = ContractTerms {
                    contract: id_of(id),
                    prices: priced(price),
                    start: moved(starts.min(3000)),
                    peering: peering.map(|number| number.to_string()),
                    ..terms(&self.parties)
                };
                let proposal = self.parties.proposal(&terms);
                self.contracts
                    .insert(Contract::name_of(&terms.contract), proposal);
            }
            Event::Amend {
                id,
                price,
                delay,
                follows,
                limits,
                ends,
            } => {
                let end = ends.map(|ends| moved(ends.into()));
                let proposed = moved(0);
                let Some(current) = self
                    .contract(id)
                    .and_then(|contract| ContractDocument::read(&contract.spec.document).ok())
                else {
                    return;
                };
                let mut next = ContractTerms {
                    version: current.terms.version + 1,
                    previous: follows.then_some(current.digest),
                    prices: priced(price),
                    counts_after_seconds: (delay > 0).then_some(delay.into()),
                    end,
                    ..current.terms
                };
                if limits {
                    next.limits.charge = Charge::Limits;
                }
                let document = ContractDocument::compose(&self.parties.provider, &next).unwrap();
                let pending = ProposedTerms {
                    document,
                    terms: next,
                    proposed,
                    countersignature: None,
                    signed: None,
                };
                if let Some(contract) = self.contract(id) {
                    contract.spec.pending = Some(pending);
                }
            }
            _ => {}
        }
    }

    /// The provider, and everything else that happens before the consumer looks.
    fn apply(&mut self, event: &Event) {
        let moved = |seconds: i64| self.moved(seconds);
        match *event {
            Event::Propose { .. } | Event::Amend { .. } => self.propose(event),
            Event::Promote { id, since } => self.promote_amendment(id, moved(since)),
            Event::Since { id, since } => {
                let since = since.map(moved);
                if let Some(contract) = self.contract(id) {
                    contract.spec.countersignature = contract
                        .status
                        .as_ref()
                        .and_then(|status| status.signature.clone());
                    contract.spec.in_force_since = since;
                }
            }
            Event::Earlier { id, price, since } => {
                let (digest, since, prices) = ("d".repeat(64), moved(since), priced(price));
                if let Some(contract) = self.contract(id) {
                    contract.spec.earlier.push(EarlierTerms {
                        version: 1,
                        digest,
                        since,
                        prices,
                    });
                }
            }
            Event::End { id, at } => self.announce_end(id, at.map(moved)),
            Event::Swap { id, document } => {
                let Some(other) = self
                    .seen
                    .get(usize::from(document) % self.seen.len().max(1))
                    .cloned()
                else {
                    return;
                };
                if let Some(contract) = self.contract(id) {
                    (contract.spec.document, contract.spec.terms) =
                        (other.spec.document, other.spec.terms);
                    contract.spec.countersignature = other.spec.countersignature;
                    contract.status = other.status;
                }
            }
            Event::Restore { seen } => {
                let Some(old) = self
                    .seen
                    .get(usize::from(seen) % self.seen.len().max(1))
                    .cloned()
                else {
                    return;
                };
                self.contracts
                    .insert(old.metadata.name.clone().unwrap(), old);
            }
            Event::Readable { id, price } => {
                if let Some(contract) = self.contract(id) {
                    contract.spec.terms.prices = priced(price);
                }
            }
            Event::Remove(id) => drop(self.contracts.remove(&Contract::name_of(&id_of(id)))),
            Event::Wipe(id) => {
                if let Some(contract) = self.contract(id) {
                    (contract.status, contract.spec.countersignature) = (None, None);
                }
            }
            Event::Crashes(_) => {}
            Event::Person(None) => self.decisions.clear(),
            Event::Person(Some(accepts)) => {
                let decision = if accepts {
                    ContractAnswer::Accept
                } else {
                    ContractAnswer::End
                };
                let decided = |name: &String| {
                    (
                        name.clone(),
                        ContractDecision {
                            decision,
                            terms: None,
                            reason: None,
                        },
                    )
                };
                self.decisions = self.contracts.keys().map(decided).collect();
            }
            Event::Limit(most) => self.limit(most),
            Event::PeersAgain => {
                self.peering += 1;
                self.contracts.clear();
                self.copies.clear();
                self.signed.clear();
            }
            Event::Seconds(seconds) => self.now = at(self.now.as_second() + i64::from(seconds)),
        }
    }

    /// The consumer judges, and carries out at most so many writes.
    fn judge(&mut self, writes: usize) -> Result<bool, TestCaseError> {
        let at_provider = |contract: &Contract| {
            Arc::new(ContractCopy::clone(&self.record(contract)).into_at_provider())
        };
        let contracts = self
            .contracts
            .iter()
            .map(|(name, contract)| (name.clone(), at_provider(contract)))
            .collect();
        let copies = self
            .copies
            .iter()
            .map(|(name, contract)| (name.clone(), self.record(contract)))
            .collect();
        let peering = self.peering.to_string();
        let view = ContractView {
            identity: &self.parties.consumer,
            provider: self.parties.provider.id(),
            peer: "milan",
            peering: &peering,
            consume: Some(&self.consume),
            decisions: &self.decisions,
            contracts: &contracts,
            copies: &copies,
            offers: &BTreeMap::new(),
            offer_copies: &BTreeMap::new(),
            steady: true,
            now: self.now,
        };
        let actions = judge_contracts(&view, &mut self.unconfirmed).actions;
        let wrote = !actions.is_empty();
        for action in actions.into_iter().take(writes) {
            match action {
                ContractAction::ApplyCopy(name, spec) => {
                    let created = self
                        .copies
                        .get(&name)
                        .and_then(|copy| copy.metadata.creation_timestamp.clone());
                    let mut copy = Contract::new(&name, ContractSpec::clone(&spec));
                    copy.metadata.creation_timestamp = created.or(Some(Time(self.now)));
                    copy.status = self.copies.get(&name).and_then(|copy| copy.status.clone());
                    self.copies.insert(name, copy);
                }
                ContractAction::AnswerCopy(name, status) => {
                    self.note(&name, &status)?;
                    if let Some(copy) = self.copies.get_mut(&name) {
                        copy.status = Some(status);
                    }
                }
                ContractAction::DeleteCopy { name, .. } => drop(self.copies.remove(&name)),
                ContractAction::Answer(name, status) => {
                    self.note(&name, &status)?;
                    if let Some(contract) = self.contracts.get_mut(&name) {
                        contract.status = Some(status);
                    }
                }
            }
        }
        for contract in self.contracts.values() {
            if !self.seen.contains(contract) {
                self.seen.push(contract.clone());
            }
        }
        Ok(wrote)
    }

    /// Notes what the consumer signs now and has no signature for in its copy, and whether it may.
    fn note(&mut self, name: &str, status: &ContractStatus) -> Result<(), TestCaseError> {
        let Some(contract) = self.contracts.get(name) else {
            return Ok(());
        };
        let texts = [
            Some(&contract.spec.document),
            contract
                .spec
                .pending
                .as_ref()
                .map(|pending| &pending.document),
        ];
        for document in texts
            .into_iter()
            .flatten()
            .filter_map(|text| ContractDocument::read(text).ok())
        {
            let known = self.copies.get(name).and_then(|copy| copy.status.as_ref());
            if !has_signature(status, &document)
                || known.is_some_and(|known| has_signature(known, &document))
            {
                continue;
            }
            let (terms, accepted) = (
                &document.terms,
                self.decisions.get(name).map(|decision| decision.decision),
            );
            prop_assert_eq!(
                &terms.peering,
                &Some(self.peering.to_string()),
                "of another peering"
            );
            // What follows terms that it did not sign is judged like a first proposal.
            let before = terms
                .previous
                .as_ref()
                .and_then(|digest| self.signed.get(digest))
                .map(|signed| &signed.terms);
            let rate = |terms: &ContractTerms| terms.prices["default"].rates.get("cpu").unwrap();
            let most = self
                .consume
                .max_prices
                .as_ref()
                .and_then(|most| most.rates.get("cpu"));
            let is_within = most.is_some_and(|most| rate(terms) <= most);
            let is_no_more =
                before.is_some_and(|before| rate(terms) <= rate(before)) && most.is_none();
            let by_person = accepted == Some(ContractAnswer::Accept)
                && most.is_none_or(|most| rate(terms) <= most);
            prop_assert!(
                is_within || is_no_more || by_person || rate(terms).is_zero(),
                "nobody accepted this price"
            );
            // Under terms that are not in force there are no pods.
            let had_pods = terms
                .previous
                .as_ref()
                .is_some_and(|digest| self.in_force.contains(digest));
            if let Some(before) =
                before.filter(|before| had_pods && cost_increase(before, terms).is_some())
            {
                prop_assert!(
                    terms.counts_after_seconds.unwrap_or_default() >= before.notice_seconds,
                    "a dearer one without notice"
                );
            }
            let now = self.now;
            self.signed
                .entry(document.digest)
                .and_modify(|signed| signed.last = now)
                .or_insert(SignedTerms {
                    first: now,
                    last: now,
                    terms: document.terms,
                });
        }
        Ok(())
    }

    /// Time from which terms may be charged: their first signature, with the delay that both
    /// signed.
    fn counts(&self, signed: &SignedTerms) -> Timestamp {
        let SignedTerms { first, terms, .. } = signed;
        let before = terms
            .previous
            .as_ref()
            .and_then(|digest| self.signed.get(digest));
        let delayed = || after(*first, terms.counts_after_seconds.unwrap_or_default());
        before.map_or_else(delayed, |before| counts_from(*first, &before.terms, terms))
    }

    /// The copies price only what was signed in this peering, from when both agreed, and no second
    /// twice.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let priced = self
            .copies
            .values()
            .filter_map(|copy| metered_contract(copy).ok().flatten());
        self.in_force.extend(
            priced
                .flat_map(|contract| contract.versions)
                .map(|version| version.digest),
        );
        let mut spans: Vec<(i64, i64, &str)> = Vec::new();
        for (name, copy) in &self.copies {
            let of_receipts =
                metered_contract(copy).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let of_budgets = liqo_metering::receipt::ReceiptContract::of_spec(&copy.spec);
            prop_assert_eq!(copy.spec.in_force_since.is_some(), of_budgets.is_some());
            let Some(priced) = of_receipts else {
                prop_assert_eq!(of_budgets, None, "{} is recorded without a signature", name);
                continue;
            };
            let mut last = i64::MIN;
            for version in &priced.versions {
                let Some(signed) = self.signed.get(&version.digest) else {
                    return Err(TestCaseError::fail(format!(
                        "{name}: version {} was not signed",
                        version.version
                    )));
                };
                prop_assert_eq!(&version.prices, &signed.terms.prices);
                let earliest = self.counts(signed).as_second() - TOLERANCE.as_secs();
                prop_assert!(
                    version.from >= earliest,
                    "{}: {} counts before {}",
                    name,
                    version.from,
                    earliest
                );
                let whole_delay = after(
                    signed.last,
                    signed.terms.counts_after_seconds.unwrap_or_default(),
                );
                let latest = self.now.max(whole_delay).as_second() + TOLERANCE.as_secs();
                // Terms may be replaced before their own delay is over, and a contract that has ended
                // counts nothing.
                let has_ended = priced.end.is_some_and(|end| end <= version.from);
                prop_assert!(
                    has_ended || version.from <= latest.max(last),
                    "{}: {} counts in the future of {}",
                    name,
                    version.from,
                    latest
                );
                prop_assert!(version.from >= last);
                last = version.from;
            }
            spans.push((
                priced.versions[0].from,
                priced.end.unwrap_or(i64::MAX),
                name,
            ));
        }
        // While none overlaps another, the last of them also ends last, so neighbours are enough.
        spans.retain(|(from, end, _)| from < end);
        spans.sort_unstable();
        for pair in spans.windows(2) {
            prop_assert!(
                pair[0].1 <= pair[1].0,
                "{:?} overlaps {:?}",
                pair[0],
                pair[1]
            );
        }
        Ok(())
    }
}

/// Whether an answer of the consumer has its signature under a document.
fn has_signature(status: &ContractStatus, document: &ContractDocument) -> bool {
    [&status.signature, &status.pending_signature]
        .into_iter()
        .flatten()
        .any(|signature| document.check_countersignature(signature).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_provider_that_lies_is_paid_only_for_what_the_consumer_signed_in_this_peering(events in vec(event(), 5..40)) {
        tell(events)?;
    }
}

/// Checks the copies after each event.
fn tell(events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut crashes_after = None;
    for event in events {
        world.apply(&event);
        if let Event::Crashes(writes) = event {
            crashes_after = Some(writes.into());
            continue;
        }
        // What happens next happens before the manager is there again.
        if let Some(writes) = crashes_after.take() {
            world.judge(writes)?;
            world.check()?;
            world.unconfirmed.clear();
            continue;
        }
        let mut rounds = 0;
        while world.judge(usize::MAX)? {
            world.check()?;
            rounds += 1;
            prop_assert!(rounds < 6, "it does not settle after {event:?}");
        }
        world.check()?;
    }
    Ok(())
}

/// Proposes a free contract of this peering, which begins now.
fn propose(id: u8) -> Event {
    Event::Propose {
        id,
        price: 0,
        peering: 0,
        starts: 0,
    }
}

/// Says that a contract is in force since now.
fn in_force(id: u8) -> Event {
    Event::Since { id, since: Some(0) }
}

/// Amends a contract to terms that are as free and count after this delay in seconds.
fn amend(id: u8, delay: u16) -> Event {
    Event::Amend {
        id,
        price: 0,
        delay,
        follows: true,
        limits: false,
        ends: None,
    }
}

/// Its provider says only after its end, and after the begin of the next one, that it was in force.
#[test]
fn a_contract_that_was_signed_and_ended_overlaps_the_next_one_in_no_second() {
    let end = Event::End { id: 1, at: Some(0) };
    let (next_begins, was_in_force) = (
        Event::Since {
            id: 2,
            since: Some(-1),
        },
        Event::Since {
            id: 1,
            since: Some(1_000_000_000),
        },
    );
    tell(vec![
        propose(1),
        Event::Seconds(5),
        propose(2),
        end,
        next_begins,
        was_in_force,
    ])
    .unwrap();
}

/// Its provider says that it was in force when the next one, which also ends one day, is signed.
#[test]
fn a_contract_that_has_ended_counts_nothing_whenever_it_was_in_force() {
    tell(vec![
        propose(0),
        propose(1),
        Event::End { id: 0, at: Some(0) },
        Event::End {
            id: 1,
            at: Some(1_000_000_000),
        },
        propose(2),
        in_force(0),
    ])
    .unwrap();
}

/// The consumer signs terms, forgets that while the provider shows others, and signs them anew: the
/// delay begins again.
#[test]
fn terms_that_are_signed_anew_count_after_their_delay_from_then() {
    tell(vec![
        propose(0),
        Event::Propose {
            id: 0,
            price: 0,
            peering: 0,
            starts: -1,
        },
        Event::Since { id: 0, since: None },
        Event::PeersAgain,
        propose(1),
        amend(1, 301),
        Event::Seconds(301),
        Event::Swap {
            id: 1,
            document: 855,
        },
        Event::Promote { id: 1, since: 0 },
    ])
    .unwrap();
}

/// Its provider announces the end of a contract, and removes it before.
#[test]
fn a_contract_that_is_removed_before_its_end_overlaps_the_next_one_in_no_second() {
    tell(vec![
        propose(0),
        in_force(0),
        propose(1),
        Event::End {
            id: 0,
            at: Some(3600),
        },
        Event::Remove(0),
        in_force(1),
    ])
    .unwrap();
}

/// The terms that it replaces do not count yet.
#[test]
fn an_amendment_counts_from_when_the_terms_before_it_would() {
    let promote = || Event::Promote { id: 2, since: 0 };
    tell(vec![
        propose(2),
        Event::Amend {
            id: 2,
            price: 0,
            delay: 601,
            follows: false,
            limits: false,
            ends: None,
        },
        promote(),
        amend(2, 300),
        promote(),
    ])
    .unwrap();
}

/// Its provider removes a contract, and brings it back while the consumer's manager is away.
#[test]
fn a_crash_between_the_writes_for_a_removed_contract_lets_none_overlap_it() {
    for writes in 0..6 {
        for seen in 0..8 {
            tell(vec![
                propose(0),
                in_force(0),
                Event::Seconds(400),
                propose(1),
                Event::Crashes(writes),
                Event::Remove(0),
                Event::Restore { seen },
                in_force(1),
                Event::Seconds(400),
            ])
            .unwrap();
        }
    }
}

/// The provider shows other terms, and puts a signed amendment in force after the contract ended
/// and another one followed.
#[test]
fn a_contract_that_ended_keeps_the_signature_of_its_last_terms() {
    for document in 0..8 {
        tell(vec![
            propose(0),
            in_force(0),
            Event::Restore { seen: 0 },
            propose(1),
            propose(1),
            amend(0, 300),
            Event::Swap { id: 0, document },
            Event::End { id: 0, at: Some(0) },
            Event::Promote { id: 0, since: 0 },
        ])
        .unwrap();
    }
}
