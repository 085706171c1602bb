use jiff::Timestamp;
use liqo_api::{
    Breach, BreachKind, Commitment, ContractClasses, ContractPool, ContractTerms, EndCause, Party,
    ProposedTerms, Time,
};
use liqo_market::contract::document::ContractDocument;
use liqo_market::contract::fixtures::{self, Parties};

use super::*;
use crate::parties::PeerObject;

fn parties() -> Parties {
    Parties::new()
}

fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(1_767_225_600 + seconds).unwrap())
}

fn terms_of(parties: &Parties) -> ContractTerms {
    let prices = serde_json::from_value(
        json!({ "currency": "EUR", "rates": { "cpu": "0.04", "memory": "0.005" } }),
    )
    .unwrap();
    let resources = [
        ("cpu", "4".parse().unwrap()),
        ("memory", "8590000000".parse().unwrap()),
    ]
    .into();
    ContractTerms {
        commitment: Commitment::Guaranteed,
        pools: vec![ContractPool {
            name: "default".to_owned(),
            resources,
        }],
        classes: ContractClasses {
            ingress: vec![String::new()],
            ..ContractClasses::default()
        },
        prices: [("default".to_owned(), prices)].into(),
        start: at(0),
        end: Some(at(86_400)),
        ..fixtures::terms(parties)
    }
}

fn signed(parties: &Parties) -> Contract {
    let mut contract = parties.in_force(&terms_of(parties));
    contract.spec.in_force_since = Some(at(60));
    contract
}

fn found(contract: Contract) -> ListedContract {
    let (id, name) = (
        contract.spec.terms.provider.clone(),
        contract.metadata.name.clone().unwrap(),
    );
    let peer = "milan".to_owned();
    ListedContract::new(
        PeerObject {
            id,
            peer,
            role: ContractRole::Consumer,
            is_kept: false,
            name,
            object: contract,
        },
        at(100).0,
    )
}

fn proposal(parties: &Parties) -> Contract {
    parties.proposal(&terms_of(parties))
}

#[test]
fn a_contract_is_shown_as_people_read_it() {
    let expected = "\
contract-01234567 with milan, as its provider: in force since 2026-01-01T00:01:00Z
  version      1
  commitment   Guaranteed: the amounts are reserved until the end
  pool         default: cpu=4, memory=8.0Gi
    price      cpu 0.04 EUR per core and hour, memory 0.005 EUR per GiB and hour
               all of it: 0.2 EUR per hour
  notice       5 minutes
  from         2026-01-01T00:00:00Z
  until        2026-01-02T00:00:00Z, then renewed if both sign again
  classes      storage none; ingress default; load balancers none
  limits       Pod Security baseline; at most 50 namespaces, 1000 Services, 50000 endpoints; pods are charged their requests
  receipts     every 1 hour";
    assert_eq!(render_contract(&found(signed(&parties()))), expected);
}

#[test]
fn the_list_says_where_each_contract_stands_and_who_keeps_it() {
    let parties = parties();
    let mut broken = signed(&parties);
    broken.status.as_mut().unwrap().breaches = vec![Breach {
        by: Party::Provider,
        kind: BreachKind::CapacityMissing,
        object: "default".to_owned(),
        time: at(70),
        until: None,
        message: "it offers only 2 of 4 cpu\u{1b}".to_owned(),
    }];
    let mut ending = signed(&parties);
    ending.spec.ended = Some(ContractEnd {
        by: Party::Consumer,
        cause: EndCause::Requested,
        announced: at(50),
        at: at(350),
        reason: "too dear".to_owned(),
    });
    let all = [
        found(broken.clone()),
        found(ending),
        found(proposal(&parties)),
    ];
    let lines: Vec<String> = render_contracts(&all).lines().map(str::to_owned).collect();
    assert!(
        lines[0].starts_with("PEER    ROLE       STATE"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("InForce") && lines[1].contains("no: CapacityMissing"),
        "{lines:?}"
    );
    assert!(
        lines[2].contains("Ending")
            && lines[2].contains("2026-01-01T00:05:50Z")
            && lines[2].contains("yes"),
        "{lines:?}"
    );
    assert!(lines[3].contains("Proposed"), "{lines:?}");
    let text = render_contract(&found(broken));
    assert!(
        text.ends_with("(lasts): CapacityMissing, default: it offers only 2 of 4 cpu"),
        "{text}"
    );
    assert!(render_contracts(&[]).contains("`provide.contract`"));
}

#[test]
fn what_the_consumer_has_not_signed_is_what_a_person_accepts() {
    let parties = parties();
    let digest = ContractDocument::read(&signed(&parties).spec.document)
        .unwrap()
        .digest;
    assert_eq!(
        found(proposal(&parties))
            .unsigned_terms()
            .map(|terms| terms.digest),
        Some(digest.clone())
    );
    assert_eq!(found(signed(&parties)).unsigned_terms(), None);
    let mut amended = signed(&parties);
    let next = ContractTerms {
        version: 2,
        previous: Some(digest),
        ..terms_of(&parties)
    };
    let document = ContractDocument::compose(&parties.provider, &next).unwrap();
    amended.spec.pending = Some(ProposedTerms {
        document,
        terms: next,
        proposed: at(80),
        countersignature: None,
        signed: None,
    });
    let amended = found(amended);
    assert_eq!(
        (
            amended.state,
            amended.unsigned_terms().map(|terms| terms.terms.version)
        ),
        (ContractState::Amending, Some(2))
    );
    assert!(render_contract(&amended).contains("An amendment waits"));
}

#[test]
fn the_contract_to_end_must_be_clear() {
    let parties = parties();
    let one = || found(signed(&parties));
    assert_eq!(
        contract_to_end(vec![one()], "milan", None).unwrap().name,
        "contract-01234567"
    );
    let as_provider = ListedContract {
        role: ContractRole::Provider,
        name: "contract-ffffffff".to_owned(),
        ..one()
    };
    let error = contract_to_end(vec![one(), as_provider.clone()], "milan", None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("--contract: contract-01234567, contract-ffffffff"),
        "{error}"
    );
    assert!(
        contract_to_end(
            vec![one(), as_provider.clone()],
            "milan",
            Some("contract-ffffffff")
        )
        .is_ok()
    );
    assert!(
        contract_to_end(vec![], "milan", None)
            .unwrap_err()
            .to_string()
            .contains("no contract with milan")
    );
    let question = question_of_end(&as_provider);
    assert!(
        question.contains("notice of 5 minutes") && question.contains("is a breach"),
        "{question}"
    );
    assert!(!question_of_end(&one()).contains("is a breach"));
}

#[test]
fn stored_copies_are_verified_and_a_changed_byte_is_refused() {
    let parties = parties();
    let copy = |contract: &Contract| {
        let text = serde_json::to_string(contract).unwrap();
        serde_saphyr::from_str::<Contract>(&text).unwrap()
    };
    let contract = signed(&parties);
    let both = [
        ("a".to_owned(), copy(&contract)),
        ("b".to_owned(), copy(&contract)),
    ];
    let text = render_contract_verdict(&verify::verify_contracts(&both)).unwrap();
    assert!(
        text.starts_with(
            "Both copies contain the same contract: 0123456789abcdef0123456789abcdef, version 1."
        ),
        "{text}"
    );
    assert!(
        render_contract_verdict(&verify::verify_contracts(&both[..1]))
            .unwrap()
            .starts_with("The copy is valid")
    );
    let mut changed = contract.clone();
    changed.spec.terms.notice_seconds = 10;
    let error = render_contract_verdict(&verify::verify_contracts(&[
        ("a".to_owned(), contract),
        ("b".to_owned(), changed),
    ]))
    .unwrap_err()
    .to_string();
    assert_eq!(
        error,
        "b: spec.terms differs from the signed document: noticeSeconds is 10 instead of 300"
    );
}

#[test]
fn the_contracts_that_are_not_over_are_shown_else_the_last_one() {
    let parties = parties();
    let over = |seconds: i64| {
        let mut contract = signed(&parties);
        contract.spec.ended = Some(ContractEnd {
            by: Party::Consumer,
            cause: EndCause::Requested,
            announced: at(0),
            at: at(seconds),
            reason: String::new(),
        });
        found(contract)
    };
    assert_eq!(
        contracts_to_show(vec![found(signed(&parties)), over(50)], "milan")
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        contracts_to_show(vec![over(50), over(40)], "milan")
            .unwrap()
            .len(),
        1
    );
    assert!(contracts_to_show(vec![], "milan").is_err());
}
