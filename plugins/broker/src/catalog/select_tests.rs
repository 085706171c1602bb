use std::collections::BTreeMap;

use liqo_api::ClusterId;
use serde_json::{Value, from_value, json};

use super::*;

fn id(number: u8) -> ClusterId {
    ClusterId::of_public_key(&[number; 32])
}

fn entry(number: u8, name: &str, capacity: &str, price: &Value, latency: Option<u32>) -> Entry {
    let spec = json!({
        "clusterID": id(number), "pool": "default", "resourceQuota": { "hard": { "cpu": capacity, "memory": "8Gi" } }, "path": [id(number)],
        "hops": number, "prices": price, "labels": { "topology.kubernetes.io/region": name }
    });
    let offer = ResourceOffer::new("default", from_value(spec).unwrap());
    let peer: ForeignCluster =
        from_value(json!({ "metadata": { "name": name }, "spec": { "clusterID": id(number) } }))
            .unwrap();
    Entry {
        latency_microseconds: latency,
        ..entry_of(&offer, Some(&peer), None).unwrap()
    }
}

fn euros(cpu: &str, memory: &str) -> Value {
    json!({ "currency": "EUR", "rates": { "cpu": cpu, "memory": memory } })
}

fn catalog() -> Vec<Entry> {
    vec![
        entry(1, "turin", "4", &euros("0.04", "0.01"), Some(20_000)),
        entry(2, "genoa", "8", &euros("0.02", "0.05"), Some(5_000)),
        entry(
            3,
            "venice",
            "16",
            &json!({ "currency": "USD", "rates": { "cpu": "0.01" } }),
            None,
        ),
        entry(4, "naples", "2", &Value::Null, Some(90_000)),
    ]
}

fn query(parameters: Value) -> Result<OfferQuery, QueryError> {
    OfferQuery::from_parameters(from_value(parameters).unwrap())
}

fn found(parameters: Value) -> Vec<String> {
    select_offers(catalog(), &query(parameters).unwrap())
        .offers
        .into_iter()
        .map(|entry| entry.name)
        .collect()
}

#[test]
fn without_criteria_all_offers_are_in_the_order_of_their_names() {
    assert_eq!(found(json!({})), ["genoa", "naples", "turin", "venice"]);
}

#[test]
fn every_criterion_leaves_out_what_does_not_meet_it() {
    assert_eq!(
        found(json!({ "currency": "EUR", "maxPrice": "cpu=0.02,memory=0.05" })),
        ["genoa", "naples"]
    );
    assert_eq!(
        found(json!({ "currency": "USD" })),
        ["naples", "venice"],
        "what costs nothing has every currency"
    );
    assert_eq!(
        found(json!({ "labelSelector": "topology.kubernetes.io/region in (turin,venice)" })),
        ["turin", "venice"]
    );
    assert_eq!(
        found(json!({ "maxLatencyMilliseconds": 20 })),
        ["genoa", "turin"],
        "an unknown latency is not small"
    );
    assert_eq!(found(json!({ "maxHops": 2 })), ["genoa", "turin"]);
    assert_eq!(
        found(json!({ "capacity": "cpu=4,memory=8Gi" })),
        ["genoa", "turin", "venice"]
    );
    assert_eq!(found(json!({ "capacity": "nvidia.com/gpu=1" })), [""; 0]);
    assert_eq!(found(json!({ "accepted": true })), [""; 0]);
}

#[test]
fn offers_are_sorted_by_the_price_of_the_requested_capacity() {
    assert_eq!(
        found(json!({ "sort": "price", "currency": "EUR" })),
        ["naples", "turin", "genoa"]
    );
    assert_eq!(
        found(json!({ "sort": "price", "currency": "EUR", "capacity": "cpu=2" })),
        ["naples", "genoa", "turin"]
    );
    assert_eq!(
        found(json!({ "sort": "latency" })),
        ["genoa", "turin", "naples", "venice"],
        "what is unknown comes last"
    );
}

#[test]
fn invalid_parameters_are_refused_by_name() {
    for (parameters, name) in [
        (json!({ "sort": "price" }), "currency: "),
        (json!({ "maxPrice": "cpu=1" }), "currency: "),
        (json!({ "currency": "E R" }), "currency: "),
        (
            json!({ "currency": "EUR", "maxPrice": "cpu" }),
            "maxPrice: ",
        ),
        (json!({ "labelSelector": "a in (b" }), "labelSelector: "),
        (json!({ "capacity": "cpu=much" }), "capacity: "),
        (json!({ "limit": 0 }), "limit: "),
        (json!({ "limit": MAX_PAGE + 1 }), "limit: "),
        (
            json!({ "labelSelector": "a".repeat(MAX_PARAMETER_LEN + 1) }),
            "labelSelector: ",
        ),
    ] {
        let error = query(parameters.clone()).unwrap_err().to_string();
        assert!(
            error.starts_with(name) && error.len() < 2 * MAX_PARAMETER_LEN,
            "{parameters}: {error}"
        );
    }
    assert!(
        from_value::<Parameters>(json!({ "maxprice": "cpu=1" })).is_err(),
        "a mistyped criterion is not ignored"
    );
}

#[test]
fn pages_contain_every_offer_once() {
    let page = |offset: usize| {
        select_offers(
            catalog(),
            &query(json!({ "limit": 3, "offset": offset })).unwrap(),
        )
    };
    let (first, second, beyond) = (page(0), page(3), page(9));
    assert_eq!(
        (first.offers.len(), first.total, first.next),
        (3, 4, Some(3))
    );
    assert_eq!((second.offers.len(), second.next), (1, None));
    assert_eq!((beyond.offers.len(), beyond.next), (0, None));
}

#[test]
fn a_page_is_bounded_in_bytes_and_its_next_one_continues() {
    let large = |number: u8| {
        let mut entry = entry(1, &format!("turin-{number:02}"), "4", &Value::Null, None);
        entry.labels = (0..MAX_LABELS)
            .map(|label| (format!("{label}{}", "k".repeat(300)), "v".repeat(63)))
            .collect();
        entry
    };
    let entries: Vec<Entry> = (0..99).map(large).collect();
    let page = select_offers(entries.clone(), &query(json!({ "limit": 100 })).unwrap());
    assert!(
        page.offers.len() < 99 && serde_json::to_vec(&page).unwrap().len() < MAX_PAGE_LEN + 1000
    );
    let next = page.next.unwrap();
    let rest = select_offers(
        entries,
        &query(json!({ "limit": 100, "offset": next })).unwrap(),
    );
    assert_eq!(rest.offers[0].name, format!("turin-{next:02}"));
}

#[test]
fn an_entry_shows_a_bounded_number_of_labels_and_the_slowest_connected_gateway() {
    let labels: BTreeMap<String, String> = (0..500)
        .map(|number| (format!("label-{number}"), "x".to_owned()))
        .collect();
    let spec = json!({ "clusterID": id(1), "pool": "gold", "resourceQuota": { "hard": {} }, "labels": labels });
    let mut offer = ResourceOffer::new("gold", from_value(spec).unwrap());
    let gateway = |connected: bool, latency: u32| json!({ "node": "n", "connected": connected, "latencyMicroseconds": latency });
    let tunnel: TunnelEndpoint = from_value(json!({
        "metadata": { "name": id(1) }, "spec": { "clusterID": id(1), "mtu": 1400 },
        "status": { "gateways": [gateway(true, 10), gateway(true, 30), gateway(false, 90)] }
    }))
    .unwrap();
    let found = entry_of(&offer, None, Some(&tunnel)).unwrap();
    assert_eq!(
        (found.labels.len(), found.latency_microseconds, found.name),
        (MAX_LABELS, Some(30), id(1).to_string())
    );
    offer.spec.withdrawal_timestamp = Some(liqo_api::Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(
        entry_of(&offer, None, None),
        None,
        "what is taken back is not for sale"
    );
}
