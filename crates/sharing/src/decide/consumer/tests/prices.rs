//! Prices, and what the policy accepts of them.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, from_value, json};

#[expect(
    clippy::needless_pass_by_value,
    reason = "JSON literals are written in place"
)]
fn prices(currency: &str, rates: Value) -> PriceList {
    from_value(json!({ "currency": currency, "rates": rates })).unwrap()
}

fn priced(hard: &str, prices: PriceList) -> ResourceOffer {
    let mut offer = offer(hard);
    offer.spec.prices = Some(prices);
    offer
}

/// At most 0.04 EUR for a core.
fn limited() -> BorrowingIntent {
    under(Consume {
        max_prices: Some(prices("EUR", json!({ "cpu": "0.04" }))),
        ..Consume::default()
    })
}

fn judge_one(
    intent: &BorrowingIntent,
    offer: &ResourceOffer,
    local: &ObjectsOfProvider,
) -> OfferJudgement {
    judge_offers(
        intent,
        &[("default".to_owned(), Arc::new(Claimed::new(offer.clone())))].into(),
        local,
        None,
    )
}

fn answer(judgement: &OfferJudgement) -> ResourceOfferStatus {
    let of_one = |action: &ConsumerAction| match action {
        ConsumerAction::Answer(_, status) => Some(status.clone()),
        _ => None,
    };
    judgement.actions.iter().find_map(of_one).unwrap()
}

fn node(judgement: &OfferJudgement) -> Option<&VirtualNodeSpec> {
    judgement.actions.iter().find_map(|action| match action {
        ConsumerAction::ApplyNode(spec) => Some(spec),
        _ => None,
    })
}

#[test]
fn the_node_and_the_copy_of_the_offer_show_its_prices() {
    let list = prices("EUR", json!({ "cpu": "0.04" }));
    let judgement = judged(priced("cpu=4", list.clone()), &ObjectsOfProvider::default());
    assert_eq!(node(&judgement).unwrap().prices, Some(list.clone()));
    assert!(judgement.actions.iter().any(
        |action| matches!(action, ConsumerAction::ApplyMirror(spec) if spec.prices == Some(list.clone()))
    ));
}

#[test]
fn an_offer_above_the_limit_waits_and_is_accepted_when_the_price_falls() {
    let nothing = ObjectsOfProvider::default();
    let dear = judge_one(
        &limited(),
        &priced("cpu=4", prices("EUR", json!({ "cpu": "0.05" }))),
        &nothing,
    );
    let status = answer(&dear);
    assert_eq!((status.phase, node(&dear)), (OfferPhase::Pending, None));
    let expected = "cpu costs 0.05 EUR per core and hour, and the consumer's PeeringPolicy accepts at most 0.04";
    assert!(status.message.unwrap().starts_with(expected));
    assert_eq!(
        (dear.condition.reason.as_str(), dear.condition.message),
        ("PriceTooHigh", format!("pool default: {expected}"))
    );
    let fair = judge_one(
        &limited(),
        &priced("cpu=4", prices("EUR", json!({ "cpu": "0.04" }))),
        &nothing,
    );
    assert_eq!(answer(&fair).phase, OfferPhase::Accepted);
}

#[test]
fn an_offer_in_another_currency_waits_unless_it_costs_nothing() {
    let phase = |currency: &str, rates: Value| {
        let judgement = judge_one(
            &limited(),
            &priced("cpu=4", prices(currency, rates)),
            &ObjectsOfProvider::default(),
        );
        answer(&judgement)
    };
    let other = phase("credits", json!({ "cpu": "0.01" }));
    assert_eq!(other.phase, OfferPhase::Pending);
    assert!(
        other
            .message
            .unwrap()
            .starts_with("its prices are in credits, and the consumer's PeeringPolicy accepts EUR")
    );
    assert_eq!(
        phase("credits", json!({ "cpu": "0" })).phase,
        OfferPhase::Accepted
    );
    assert_eq!(
        phase("credits", json!({ "nvidia.com/gpu": "9" })).phase,
        OfferPhase::Accepted,
        "it contains none"
    );
    assert_eq!(
        phase("EUR", json!({ "memory": "9" })).phase,
        OfferPhase::Accepted,
        "no limit"
    );
    let free = judge_one(&limited(), &offer("cpu=4"), &ObjectsOfProvider::default());
    assert_eq!(answer(&free).phase, OfferPhase::Accepted);
}

#[test]
fn a_node_whose_price_rises_stays_and_takes_no_new_pods_until_it_falls() {
    let mut offer = priced("cpu=4", prices("EUR", json!({ "cpu": "0.04" })));
    let mut local = ObjectsOfProvider::default();
    let actions = judge_one(&limited(), &offer, &local).actions;
    carry_out(&actions, &mut offer, &mut local);
    offer.spec.prices = Some(prices("EUR", json!({ "cpu": "0.050" })));
    let dear = judge_one(&limited(), &offer, &local);
    let why = "cpu costs 0.05 EUR per core and hour, and the consumer's PeeringPolicy accepts at most 0.04";
    assert_eq!(node(&dear).unwrap().no_new_pods.as_deref(), Some(why));
    assert_eq!(
        answer(&dear),
        ResourceOfferStatus {
            phase: OfferPhase::Accepted,
            message: Some(format!("no new pods: {why}"))
        }
    );
    assert_eq!(dear.condition.reason, "Accepted");
    assert_eq!(
        dear.condition.message,
        format!("pool default accepted; pool default takes no new pods: {why}")
    );
    carry_out(&dear.actions, &mut offer, &mut local);
    assert_eq!(
        judge_one(&limited(), &offer, &local).actions,
        [],
        "it is settled"
    );
    offer.spec.prices = Some(prices("EUR", json!({ "cpu": "0.03" })));
    let fair = judge_one(&limited(), &offer, &local);
    assert_eq!(
        (
            node(&fair).unwrap().no_new_pods.as_deref(),
            answer(&fair).message
        ),
        (None, None)
    );
}

#[test]
fn prices_that_are_none_are_refused() {
    let many: BTreeMap<String, &str> = (0..65)
        .map(|number| (format!("example.com/r{number}"), "1"))
        .collect();
    for (list, expected) in [
        (prices("", json!({ "cpu": "1" })), "no valid currency"),
        (prices("EUR\n", json!({ "cpu": "1" })), "no valid currency"),
        (
            prices("EUR", json!({ "cpu": "-1" })),
            "the price of cpu is negative: -1",
        ),
        (prices("EUR", json!(many)), "more than 64 prices"),
    ] {
        let found = refusal(|offer| offer.spec.prices = Some(list));
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn an_answer_is_no_longer_than_its_schema_allows() {
    let name = format!(
        "{}/{}",
        ["a".repeat(62).as_str(); 4].join("."),
        "b".repeat(63)
    );
    let mut offer = priced(
        &format!("{name}=4"),
        prices(
            "EUR",
            json!({ name.clone(): "999999999999999999.999999999" }),
        ),
    );
    let limit = prices("EUR", json!({ name: "0.000000001" }));
    let intent = under(Consume {
        max_prices: Some(limit),
        ..Consume::default()
    });
    offer.spec.labels = (0..60)
        .map(|number| {
            (
                format!("example.com/{}{number}", "x".repeat(90)),
                String::new(),
            )
        })
        .collect();
    let (_, local) = settled("cpu=1");
    let message = answer(&judge_one(&intent, &offer, &local)).message.unwrap();
    assert!(
        message.len() <= MAX_MESSAGE_LEN && message.starts_with("no new pods: aaa"),
        "{message}"
    );
}

proptest! {
    /// A node gets new pods exactly if no price is above its limit.
    #[test]
    fn a_price_is_too_high_exactly_above_the_limit(rate in 0..5_i128, most in 0..5_i128, exists in any::<bool>()) {
        let of = |nanos: i128| prices("EUR", json!({ "cpu": liqo_api::Money::from_nanos(nanos) }));
        let intent = under(Consume { max_prices: Some(of(most)), ..Consume::default() });
        let local = if exists { settled("cpu=1").1 } else { ObjectsOfProvider::default() };
        let judgement = judge_one(&intent, &priced("cpu=1", of(rate)), &local);
        let open = node(&judgement).is_some_and(|node| node.no_new_pods.is_none());
        prop_assert_eq!(open, rate <= most);
        prop_assert_eq!(answer(&judgement).phase == OfferPhase::Accepted, exists || rate <= most);
    }
}
