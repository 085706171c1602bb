//! Contracts in the provider's decision: what is reserved, and random histories of a provider and
//! its consumer.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::decide::snapshot::ContractFacts;
use liqo_api::{
    Claimed, Consume, Contract, ContractAnswer, ContractDecision, ContractPhase, ContractSpec,
    ContractStatus, RequestedGranularity, Time,
};
use liqo_market::contract::{
    breaches::UnconfirmedBreaches,
    consumer::{ContractAction, ContractView, judge_contracts},
    fixtures::{PEERING, Parties, at},
    record::{ContractCopy, ContractRecord, IssuedContract},
};

/// The contract with this answer of the consumer, as it is read again.
fn stored<Status>(
    record: &ContractRecord<ContractSpec, Status>,
    answer: &ContractStatus,
) -> ContractCopy {
    let mut contract = Contract::new(&record.name, record.spec.clone());
    contract.metadata.uid = Some(record.uid.clone());
    contract.metadata.creation_timestamp = Some(Time(record.created));
    contract.status = Some(answer.clone());
    ContractRecord::from_own_copy(contract)
}

/// Milan with 10 cpu and rome as its consumer; both have keys. Turin has no contract.
struct World {
    parties: Parties,
    provider: ProviderSnapshot,
    consume: Consume,
    decisions: BTreeMap<String, ContractDecision>,
    copies: BTreeMap<String, Arc<ContractCopy>>,
    offer_copies: BTreeMap<String, Arc<ResourceOffer>>,
    unconfirmed: BTreeMap<String, UnconfirmedBreaches>,
    /// Whether rome's connection has worked for long.
    steady: bool,
    /// Seconds by which rome's clock is ahead.
    ahead: i64,
}

impl World {
    fn new(provide: &Value) -> Self {
        let parties = Parties::known();
        let rome = parties.consumer.id().clone();
        let contracts = ContractFacts {
            identity: Some(Arc::new(Parties::known().provider)),
            ..ContractFacts::default()
        };
        let mut provider = ProviderSnapshot {
            own: parties.provider.id().clone(),
            contracts,
            ..milan()
        }
        .at(10_000);
        let tenant = TenancyNamespace {
            uid: "tenant".to_owned(),
            consumer: rome.clone(),
            tenant: true,
            terminating: false,
        };
        let mapped = TenancyNamespace {
            uid: "mapped".to_owned(),
            tenant: false,
            ..tenant.clone()
        };
        provider
            .namespaces
            .insert(tenant_namespace(&rome), tenant.into());
        provider
            .namespaces
            .insert("mapped-rome".to_owned(), mapped.into());
        let request = ConsumerRequest {
            peering: Some(PEERING.to_owned()),
            ..ConsumerRequest::default()
        };
        provider.requests.push((
            Key::new(tenant_namespace(&rome), RESOURCE_REQUEST),
            request.into(),
        ));
        let mut world = Self {
            parties,
            provider,
            consume: Consume::default(),
            decisions: BTreeMap::new(),
            copies: BTreeMap::new(),
            offer_copies: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            steady: true,
            ahead: 0,
        };
        world.set_policy(provide);
        world
    }

    fn namespace(&self) -> String {
        tenant_namespace(self.parties.consumer.id())
    }

    /// What rome's policy provides. Everybody else gets the rest, without contracts.
    fn set_policy(&mut self, provide: &Value) {
        let of_rome =
            json!({ "peers": { "clusterIDs": [self.parties.consumer.id()] }, "provide": provide });
        let others = json!({ "provide": { "percentage": 100 } });
        self.provider.policies = vec![policy("rome", 1, of_rome), policy("default", 0, others)];
    }

    /// Rome signs what a core costs up to this price.
    fn pays(&mut self, cpu: &str) {
        let max = json!({ "currency": "EUR", "rates": { "cpu": cpu } });
        self.consume.max_prices = serde_json::from_value(max).unwrap();
    }

    fn records(&self) -> &[Arc<IssuedContract>] {
        self.provider
            .contracts
            .of_tenant(&tenant_namespace(self.parties.consumer.id()))
    }

    fn live(&self) -> Option<&Arc<IssuedContract>> {
        self.records()
            .iter()
            .find(|record| !record.is_over(self.provider.wall_time))
    }

    fn offers(&self) -> BTreeMap<String, Arc<ResourceOffer>> {
        let here = self.namespace();
        let all = self
            .provider
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == here);
        all.map(|(key, offer)| (key.name.clone(), offer.clone()))
            .collect()
    }

    fn offered(&self) -> String {
        self.offers()
            .get(DEFAULT_POOL)
            .map(|offer| offer.spec.resource_quota.hard.to_string())
            .unwrap_or_default()
    }

    fn in_force(&self) -> bool {
        self.offers()
            .get(DEFAULT_POOL)
            .and_then(|offer| offer.spec.contract.clone())
            .is_some_and(|contract| contract.in_force)
    }

    /// Milan's turn. Returns whether it wrote anything.
    fn milan(&mut self) -> bool {
        self.provider.contracts.nonce = rand::random();
        let mut plan = self.provider.plan();
        let is_idle = plan.writes.is_empty() && plan.deletions.is_empty();
        let wrote =
            !(is_idle && plan.contract_writes.is_empty() && plan.contract_deletions.is_empty());
        self.provider.contracts.unconfirmed = std::mem::take(&mut plan.unconfirmed_breaches);
        let created = self.provider.wall_time;
        for change in std::mem::take(&mut plan.contract_writes) {
            let all = self
                .provider
                .contracts
                .records
                .entry(change.namespace)
                .or_default();
            let known = all
                .iter()
                .position(|record| record.name == change.write.name)
                .map(|at| all.remove(at));
            let mut contract = Contract::new(&change.write.name, change.write.spec);
            contract.metadata.uid = Some(change.write.name.clone());
            contract.metadata.creation_timestamp =
                Some(Time(known.as_ref().map_or(created, |known| known.created)));
            contract.status = known.map(|known| known.status.unverified().clone());
            all.push(Arc::new(ContractRecord::from_issued(contract)));
        }
        for key in std::mem::take(&mut plan.contract_deletions) {
            self.provider
                .contracts
                .records
                .entry(key.namespace)
                .or_default()
                .retain(|record| record.name != key.name);
        }
        self.provider = self.provider.clone().after(plan);
        wrote
    }

    /// Rome's turn. Returns whether it wrote anything.
    fn rome(&mut self) -> bool {
        let namespace = self.namespace();
        let at_provider = |record: &IssuedContract| {
            Arc::new(stored(record, record.status.unverified()).into_at_provider())
        };
        let contracts = self
            .records()
            .iter()
            .map(|record| (record.name.clone(), at_provider(record)))
            .collect();
        let own = self.offers();
        let offers = own
            .iter()
            .map(|(pool, offer)| {
                (
                    pool.clone(),
                    Arc::new(Claimed::new(ResourceOffer::clone(offer))),
                )
            })
            .collect();
        let now = at(self.provider.wall_time.as_second() + self.ahead);
        let view = ContractView {
            identity: &self.parties.consumer,
            provider: self.parties.provider.id(),
            peer: "milan",
            peering: PEERING,
            consume: Some(&self.consume),
            decisions: &self.decisions,
            contracts: &contracts,
            copies: &self.copies,
            offers: &offers,
            offer_copies: &self.offer_copies,
            steady: self.steady,
            now,
        };
        let actions = judge_contracts(&view, &mut self.unconfirmed).actions;
        let wrote = !actions.is_empty();
        for action in actions {
            match action {
                ContractAction::ApplyCopy(name, spec) => {
                    let mut copy = Contract::new(&name, *spec);
                    copy.status = self.copies.get(&name).map(|copy| copy.status.clone());
                    self.copies
                        .insert(name, Arc::new(ContractRecord::from_own_copy(copy)));
                }
                ContractAction::AnswerCopy(name, status) => {
                    let copy = self.copies.get_mut(&name).unwrap();
                    *copy = Arc::new(stored(copy, &status));
                }
                ContractAction::DeleteCopy { name, .. } => drop(self.copies.remove(&name)),
                ContractAction::Answer(name, status) => {
                    let all = self.provider.contracts.records.get_mut(&namespace).unwrap();
                    let record = all.iter_mut().find(|record| record.name == name).unwrap();
                    *record = Arc::new(stored(record, &status).into_issued());
                }
            }
        }
        self.offer_copies = own;
        wrote
    }

    /// Both take turns until nobody writes.
    fn settle(&mut self) -> usize {
        for round in 0..20 {
            if !(self.milan() | self.rome()) {
                return round;
            }
        }
        20
    }

    fn pass(&mut self, seconds: i64) {
        self.provider.wall_time = at(self.provider.wall_time.as_second() + seconds);
        self.provider.recent_writes.clear();
    }

    fn breaches(&self) -> Vec<String> {
        let lists = self.records().iter().flat_map(|record| {
            record
                .spec
                .breaches
                .iter()
                .chain(&record.status.unverified().breaches)
        });
        let of_copies = self.copies.values().flat_map(|copy| &copy.status.breaches);
        lists
            .chain(of_copies)
            .map(|breach| format!("{:?} by the {}: {}", breach.kind, breach.by, breach.message))
            .collect()
    }

    fn turin(mut self) -> Self {
        self.provider = self.provider.asks(TURIN, "");
        self
    }

    fn pod(&mut self, cpu: &str) {
        let owner = owner(&format!("mapped-{TURIN}"), TURIN, DEFAULT_POOL);
        let resources = list(&format!("cpu={cpu}, pods=1")).into();
        self.provider.add(PodUsage {
            node: Some("a".to_owned()),
            resources,
            owner: Some(owner),
            waits_for_node: false,
            ..PodUsage::default()
        });
    }

    fn offered_to_turin(&self) -> String {
        let offer = self.provider.offer(TURIN, DEFAULT_POOL);
        offer
            .map(|offer| offer.resource_quota.hard.to_string())
            .unwrap_or_default()
    }
}

fn guaranteed() -> Value {
    json!({ "percentage": 40, "offerUpdateThresholdPercentage": 5, "contract": { "commitment": "Guaranteed" } })
}

#[test]
fn prices_that_change_too_often_stay_as_they_were_signed_and_the_condition_says_until_when() {
    let sells = |cpu: u32| json!({ "percentage": 100, "contract": {}, "prices": { "currency": "EUR", "rates": { "cpu": cpu.to_string() } } });
    let mut world = World::new(&sells(79));
    world.pays("79");
    world.settle();
    for cpu in (1..79).rev() {
        world.pass(10);
        world.set_policy(&sells(cpu));
        world.settle();
    }
    let price = |world: &World| {
        world.offers()[DEFAULT_POOL]
            .spec
            .prices
            .as_ref()
            .map(ToString::to_string)
    };
    let shown = |world: &World| {
        world.provider.plan().peer_conditions[world.parties.consumer.id()]
            .message
            .clone()
    };
    assert_eq!(
        price(&world).as_deref(),
        Some("cpu=17 EUR"),
        "the last price that both signed"
    );
    assert!(
        shown(&world).contains("its contract: its terms changed 62 times lately"),
        "{}",
        shown(&world)
    );
    assert!(world.breaches().is_empty(), "{:?}", world.breaches());
    world.pass(2 * 3600);
    world.settle();
    assert_eq!(price(&world).as_deref(), Some("cpu=1 EUR"));
    assert!(!shown(&world).contains("its contract"), "{}", shown(&world));
}

#[test]
fn an_offer_waits_for_its_contract_and_admits_pods_when_both_signed() {
    let mut world = World::new(&json!({ "percentage": 100, "contract": {} }));
    assert!(
        world.milan() && world.offers().is_empty() && world.records().len() == 1,
        "the contract comes first"
    );
    assert!(world.milan() && !world.in_force() && world.offered() == "cpu=10, pods=10");
    world.settle();
    assert!(world.in_force());
    assert_eq!(world.settle(), 0, "nobody writes any more");
}

#[test]
fn pools_of_a_contract_in_force_stay_whatever_the_consumer_asks_for() {
    let provide = json!({ "percentage": 100, "granularity": { "peersMayChoose": true }, "contract": { "commitment": "Guaranteed" } });
    let pools = |world: &World| world.offers().into_keys().collect::<Vec<_>>();
    let reason = |world: &World| {
        let wanted = world.provider.plan().request_conditions.remove(0).wanted;
        wanted
            .into_iter()
            .find(|condition| condition.kind == "PoolForEachNode")
            .map(|condition| condition.reason)
    };
    let asks = |world: &mut World, granularity| {
        for (_, request) in &mut world.provider.requests {
            Arc::make_mut(request).granularity = granularity;
        }
        // What it asked before is long ago.
        world.pass(1000);
        world.settle();
        world.pass(1000);
        world.settle();
    };
    for (first, second, kept) in [
        (None, Some(RequestedGranularity::Node), DEFAULT_POOL),
        (Some(RequestedGranularity::Node), None, "a"),
    ] {
        let mut world = World::new(&provide);
        asks(&mut world, first);
        assert!(
            pools(&world) == [kept]
                && world.offers()[kept]
                    .spec
                    .contract
                    .as_ref()
                    .unwrap()
                    .in_force
        );
        asks(&mut world, second);
        assert_eq!(
            (pools(&world), world.breaches()),
            (vec![kept.to_owned()], Vec::new())
        );
        assert_eq!(reason(&world).as_deref(), Some("BoundByContract"));
        // When it is over, the next contract has the other pools.
        let ended = |record: &Arc<IssuedContract>| {
            (
                record.name.clone(),
                ContractDecision {
                    decision: ContractAnswer::End,
                    terms: None,
                    reason: None,
                },
            )
        };
        let decisions = world.records().iter().map(ended).collect();
        world
            .provider
            .contracts
            .decisions
            .insert(world.parties.consumer.id().clone(), decisions);
        world.settle();
        world.pass(1000);
        world.provider.contracts.decisions.clear();
        world.settle();
        world.pass(1000);
        world.settle();
        assert_ne!(pools(&world), [kept]);
    }
}

#[test]
fn no_second_contract_is_proposed_while_the_watch_does_not_show_the_first() {
    let mut world = World::new(&json!({ "percentage": 100, "contract": {} }));
    world.provider.contracts.unseen.insert(world.namespace());
    assert!(!world.milan() && world.records().is_empty());
    world.provider.contracts.unseen.clear();
    assert!(world.milan() && world.records().len() == 1);
}

#[test]
fn an_offer_that_exists_stays_when_its_policy_gets_contracts() {
    let mut world = World::new(&json!({ "percentage": 100 }));
    world.settle();
    assert!(world.offered() == "cpu=10, pods=10" && world.records().is_empty());
    world.set_policy(&json!({ "percentage": 100, "contract": {} }));
    world.milan();
    assert_eq!(world.offered(), "cpu=10, pods=10");
    world.settle();
    assert!(world.in_force());
}

#[test]
fn an_amendment_that_is_not_signed_leaves_prices_and_notice_as_they_are() {
    let priced = |rate: &str, notice: u32| {
        json!({ "percentage": 100, "noticeSeconds": notice, "contract": {},
            "prices": { "currency": "EUR", "rates": { "cpu": rate } } })
    };
    let mut world = World::new(&priced("0.04", 300));
    world.pays("0.05");
    world.settle();
    world.set_policy(&priced("0.06", 600));
    world.settle();
    let offer = |world: &World| world.offers()[DEFAULT_POOL].spec.clone();
    let rate = |world: &World| {
        offer(world)
            .prices
            .unwrap()
            .rates
            .get("cpu")
            .unwrap()
            .to_string()
    };
    assert_eq!(
        (rate(&world), offer(&world).notice_seconds),
        ("0.04".to_owned(), Some(300))
    );
    assert!(world.in_force());
    world.set_policy(&priced("0.05", 600));
    world.settle();
    assert_eq!(
        (rate(&world), world.in_force()),
        ("0.04".to_owned(), true),
        "it is signed, and counts after the notice"
    );
    world.pass(300);
    world.settle();
    assert_eq!(
        (rate(&world), offer(&world).notice_seconds),
        ("0.05".to_owned(), Some(600))
    );
    assert_eq!(
        offer(&world).contract.unwrap().version,
        world.live().unwrap().spec.terms.version
    );
    assert_eq!(world.breaches(), [""; 0]);
}

#[test]
fn guaranteed_amounts_are_offered_exactly_and_reserved() {
    let mut world = World::new(&guaranteed()).turin();
    world.settle();
    assert_eq!(
        (world.offered(), world.offered_to_turin()),
        ("cpu=4, pods=4".to_owned(), "cpu=6, pods=6".to_owned())
    );
    // The share would shrink.
    world.provider = world.provider.pod("own", None, "cpu=2, pods=1");
    world.pass(20);
    world.settle();
    assert_eq!(world.offered(), "cpu=4, pods=4");
    assert_eq!(world.offered_to_turin(), "cpu=4, pods=5");
    // The share would grow.
    world.provider.nodes.push((
        Key::new("", "b"),
        (*world.provider.nodes[0].1).clone().into(),
    ));
    world.pass(20);
    world.settle();
    assert_eq!(world.offered(), "cpu=4, pods=4");
    assert_eq!(world.breaches(), [""; 0]);
}

#[test]
fn when_a_node_dies_others_shrink_first() {
    let mut world = World::new(&guaranteed()).turin();
    world.settle();
    world.pod("5");
    world.pass(20);
    world.settle();
    let smaller = LocalNode {
        eligible: true,
        allocatable: list("cpu=6, pods=10"),
        labels: BTreeMap::new(),
        upstream: None,
    };
    world.provider.nodes = vec![(Key::new("", "a"), smaller.into())];
    world.pass(20);
    world.settle();
    assert_eq!(
        world.offered(),
        "cpu=4, pods=4",
        "the guaranteed amounts stay"
    );
    let notice = world
        .provider
        .offer(TURIN, DEFAULT_POOL)
        .unwrap()
        .reclaim_timestamp;
    assert!(notice.is_some(), "turin has to give up what it uses");
    world.pass(400);
    world.settle();
    assert_eq!(world.offered_to_turin(), "cpu=2, pods=6");
    assert_eq!(world.breaches(), [""; 0]);
}

#[test]
fn a_guarantee_that_cannot_be_kept_is_a_breach_that_both_find() {
    let mut world = World::new(&guaranteed()).turin();
    world.settle();
    let tiny = LocalNode {
        eligible: true,
        allocatable: list("cpu=3, pods=10"),
        labels: BTreeMap::new(),
        upstream: None,
    };
    let nodes = std::mem::replace(
        &mut world.provider.nodes,
        vec![(Key::new("", "a"), tiny.into())],
    );
    world.pass(20);
    world.settle();
    assert_eq!(
        (world.offered(), world.breaches()),
        ("cpu=3, pods=4".to_owned(), vec![])
    );
    world.pass(301);
    world.settle();
    let breaches = world.breaches();
    let found = |by: &str| breaches.iter().filter(|text| text.starts_with(by)).count();
    assert_eq!(
        found("CapacityMissing by the provider: it offers only 3 of 4 cpu"),
        3,
        "{breaches:?}"
    );
    world.provider.nodes = nodes;
    world.pass(20);
    world.settle();
    assert_eq!(world.offered(), "cpu=4, pods=4");
    let record = world.live().unwrap();
    assert!(
        record
            .spec
            .breaches
            .iter()
            .chain(&record.status.unverified().breaches)
            .all(|breach| breach.until.is_some())
    );
}

#[test]
fn an_end_with_notice_withdraws_the_offers_at_that_time() {
    let mut world = World::new(&json!({ "percentage": 100, "contract": {} }));
    world.settle();
    let name = world.live().unwrap().name.clone();
    world.decisions.insert(
        name,
        ContractDecision {
            decision: ContractAnswer::End,
            terms: None,
            reason: None,
        },
    );
    world.settle();
    let end = world.offers()[DEFAULT_POOL]
        .spec
        .withdrawal_timestamp
        .clone();
    assert_eq!(end, Some(Time(at(10_300))));
    world.pass(299);
    world.settle();
    assert_eq!(
        world.offers().len(),
        1,
        "the consumer sees that the notice is kept"
    );
    world.pass(1);
    world.settle();
    // The provider proposes another contract, and the consumer's person has to decide.
    assert!(!world.in_force());
    assert_eq!(
        world.records()[0].status.unverified().phase,
        ContractPhase::Ended
    );
    assert_eq!(
        world.records()[1].status.unverified().phase,
        ContractPhase::AwaitingDecision
    );
    assert_eq!(world.breaches(), [""; 0]);
}

#[test]
fn a_consumer_that_ends_a_contract_and_signs_no_other_one_keeps_no_offer() {
    let mut world = World::new(&json!({ "percentage": 100, "contract": {} }));
    world.settle();
    let name = world.live().unwrap().name.clone();
    world.decisions.insert(
        name.clone(),
        ContractDecision {
            decision: ContractAnswer::End,
            terms: None,
            reason: None,
        },
    );
    world.settle();
    world.pass(300);
    let is_of = |world: &World, name: &str| {
        world
            .offers()
            .values()
            .any(|offer| offer.spec.contract.as_ref().unwrap().name == name)
    };
    assert!(
        world.milan() && !is_of(&world, &name),
        "the offer of the contract that ended goes first"
    );
    world.settle();
    assert_eq!(
        (world.offers().len(), world.in_force()),
        (1, false),
        "the next one admits no pods"
    );
    assert_eq!(world.breaches(), [""; 0]);
}

/// What may happen to a contract whose both sides are honest.
#[derive(Clone, Debug)]
enum Event {
    /// Milan's policy changes.
    Policy(u8),
    /// Rome's policy decides by itself, or asks a person.
    Manual(bool),
    /// Rome's person decides on all contracts, or takes it back.
    Rome(Option<u8>),
    /// Milan's person ends all contracts, or takes it back.
    Milan(bool),
    /// Rome asks for resources, or does not.
    Asks(bool),
    /// A manager starts again, and forgets what is not in objects.
    MilanRestarts,
    RomeRestarts,
    /// Rome hears nothing for so many seconds.
    Outage(u16),
    /// Rome's clock changes.
    Clock(i16),
    /// Milan's own pods come, or go.
    OwnPod(u8),
    Seconds(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..9_u8).prop_map(Event::Policy),
        1 => any::<bool>().prop_map(Event::Manual),
        2 => proptest::option::of(0..3_u8).prop_map(Event::Rome),
        1 => any::<bool>().prop_map(Event::Milan),
        1 => any::<bool>().prop_map(Event::Asks),
        2 => Just(Event::MilanRestarts),
        2 => Just(Event::RomeRestarts),
        1 => (0..2000_u16).prop_map(Event::Outage),
        1 => (-140..140_i16).prop_map(Event::Clock),
        1 => (0..4_u8).prop_map(Event::OwnPod),
        4 => (0..900_u16).prop_map(Event::Seconds),
    ]
}

fn provides(which: u8) -> Value {
    let contract = match which {
        0 => return json!({ "percentage": 60 }),
        1 => json!({}),
        2 => json!({ "commitment": "Guaranteed" }),
        3 => json!({ "periodSeconds": 2000, "signWithinSeconds": 300 }),
        4 => json!({ "periodSeconds": 2000, "renewal": "None" }),
        5 => json!({ "signWithinSeconds": 100, "ifNotSigned": "WithdrawOffer" }),
        6 => json!({ "onBreach": "EndWithNotice" }),
        7 => return json!({ "percentage": 60, "noticeSeconds": 60, "contract": {} }),
        _ => {
            let prices = json!({ "currency": "EUR", "rates": { "cpu": "0.04" } });
            return json!({ "percentage": 60, "contract": {}, "prices": prices });
        }
    };
    json!({ "percentage": 60, "contract": contract })
}

impl World {
    fn apply(&mut self, event: &Event) {
        match event {
            Event::Policy(which) => self.set_policy(&provides(*which)),
            Event::Manual(true) => self.consume.contract.accept = liqo_api::AcceptContract::Manual,
            Event::Manual(false) => {
                self.consume.contract.accept = liqo_api::AcceptContract::Automatic;
            }
            Event::Rome(None) => self.decisions.clear(),
            Event::Rome(Some(which)) => {
                let decision = [
                    ContractAnswer::Accept,
                    ContractAnswer::Refuse,
                    ContractAnswer::End,
                ][usize::from(*which)];
                let decided = |record: &Arc<IssuedContract>| {
                    (
                        record.name.clone(),
                        ContractDecision {
                            decision,
                            terms: None,
                            reason: None,
                        },
                    )
                };
                self.decisions = self.records().iter().map(decided).collect();
            }
            Event::Milan(ends) => {
                let ended = |record: &Arc<IssuedContract>| {
                    let decision = ContractDecision {
                        decision: ContractAnswer::End,
                        terms: None,
                        reason: None,
                    };
                    (record.name.clone(), decision)
                };
                let all = self.records().iter().filter(|_| *ends).map(ended).collect();
                self.provider
                    .contracts
                    .decisions
                    .insert(self.parties.consumer.id().clone(), all);
            }
            Event::Asks(asks) => {
                let namespace = self.namespace();
                self.provider
                    .requests
                    .retain(|(key, _)| key.namespace != namespace);
                if *asks {
                    let request = ConsumerRequest {
                        peering: Some(PEERING.to_owned()),
                        ..ConsumerRequest::default()
                    };
                    self.provider
                        .requests
                        .push((Key::new(namespace, RESOURCE_REQUEST), request.into()));
                }
            }
            Event::MilanRestarts => {
                self.provider.contracts.unconfirmed.clear();
                self.provider.applied_policies.clear();
            }
            Event::RomeRestarts => {
                self.unconfirmed.clear();
                self.steady = false;
                self.rome();
            }
            Event::Outage(seconds) => {
                // Milan goes on alone, and knows that.
                let silence = Silence {
                    lasts: Some(Duration::ZERO),
                    ended_offers: false,
                };
                self.provider
                    .silences
                    .insert(self.parties.consumer.id().clone(), silence);
                for _ in 0..3 {
                    self.pass(i64::from(*seconds) / 3);
                    while self.milan() {}
                }
                self.steady = false;
                self.provider.silences.clear();
                self.rome();
            }
            Event::Clock(ahead) => self.ahead = (*ahead).into(),
            Event::OwnPod(cpu) => {
                Arc::make_mut(&mut self.provider.pods).retain(|pod| pod.owner.is_some());
                self.provider =
                    self.provider
                        .clone()
                        .pod("own", None, &format!("cpu={cpu}, pods=1"));
            }
            Event::Seconds(seconds) => {
                // Time does not jump while both work.
                for _ in 0..9 {
                    self.pass(i64::from(*seconds) / 9);
                    self.settle();
                }
                self.steady |= *seconds >= 300;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn honest_clusters_find_no_breach_and_run_nothing_under_terms_that_one_did_not_sign(events in vec(event(), 0..25)) {
        let mut world = World::new(&provides(1));
        world.pays("0.05");
        world.settle();
        for event in events {
            world.apply(&event);
            prop_assert!(world.settle() < 20, "it does not settle after {event:?}");
            let breaches = world.breaches();
            let early = |text: &String| text.starts_with("EndedEarly");
            prop_assert!(breaches.iter().all(early), "{event:?}: {breaches:?}");
            let now = world.provider.wall_time;
            let live: Vec<_> = world.records().iter().filter(|record| !record.is_over(now)).collect();
            prop_assert!(live.len() <= 1, "{live:?}");
            for (pool, offer) in world.offers() {
                let Some(contract) = offer.spec.contract.clone().filter(|contract| contract.in_force) else { continue };
                let record = world.records().iter().find(|record| record.name == contract.name).unwrap();
                if offer.spec.withdrawal_timestamp.is_some() {
                    continue;
                }
                let signed = record.signed_document();
                prop_assert!(signed.is_some(), "{event:?}");
                let terms = &signed.unwrap().terms;
                prop_assert_eq!(contract.version, terms.version);
                prop_assert_eq!(offer.spec.prices.as_ref(), terms.prices.get(&pool));
                prop_assert_eq!(offer.spec.notice_seconds, Some(terms.notice_seconds));
                if let Some(guaranteed) = terms.guaranteed_in_pool(&pool) {
                    prop_assert_eq!(&offer.spec.resource_quota.hard, guaranteed);
                }
            }
            let statuses: Vec<&ContractStatus> = live.iter().map(|record| record.status.unverified()).collect();
            for (status, record) in statuses.iter().zip(&live) {
                let in_force = record.spec.in_force_since.is_some();
                prop_assert!(!in_force || record.signed_document().is_some(), "{status:?}");
            }
        }
    }
}
