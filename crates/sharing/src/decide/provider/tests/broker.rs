//! A broker: milan lends to rome and others what it borrows from turin and genoa.

use super::*;
use crate::decide::reduce::UpstreamPool;

const GENOA: u8 = 4;
const VENICE: u8 = 5;

/// Milan with its own node `a`, and with policies that lend what it borrows.
fn broker(source: &Value) -> ProviderSnapshot {
    let offers = json!({ "provide": { "percentage": 100, "noticeSeconds": 60, "source": { "offers": source } } });
    ProviderSnapshot {
        policies: vec![policy("default", 0, offers)],
        ..milan()
    }
}

/// Two providers, each with one node of 4 and 6 cpu.
fn two_providers(source: &Value) -> ProviderSnapshot {
    broker(source)
        .borrows(TURIN, DEFAULT_POOL, "cpu=4, pods=10", |_| {})
        .borrows(GENOA, DEFAULT_POOL, "cpu=6, pods=10", |_| {})
}

fn node_name(provider: u8, pool: &str) -> String {
    format!("node-{provider}-{pool}")
}

impl ProviderSnapshot {
    /// Adds a virtual node with the offer that it comes from.
    fn borrows(
        mut self,
        provider: u8,
        pool: &str,
        hard: &str,
        change: impl FnOnce(&mut ResourceOfferSpec),
    ) -> Self {
        let id = cluster(provider);
        let labels = [
            (labels::TYPE, labels::TYPE_VIRTUAL_NODE),
            (labels::REMOTE_CLUSTER_ID, id.as_str()),
            (labels::POOL, pool),
        ];
        let node = LocalNode {
            eligible: true,
            allocatable: list(hard),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            upstream: Some(UpstreamPool {
                provider: id.clone(),
                pool: pool.to_owned(),
                offer: None,
            }),
        };
        self.nodes
            .push((Key::new("", node_name(provider, pool)), node.into()));
        let mut offer = ResourceOffer::new(
            pool,
            ResourceOfferSpec {
                pool: pool.to_owned(),
                ..offer_of(provider, hard)
            },
        );
        change(&mut offer.spec);
        offer.metadata.namespace = Some(provider_namespace(&id));
        self.offers.push((Key::of_object(&offer), offer.into()));
        self
    }

    fn change_node(&mut self, provider: u8, change: impl FnOnce(&mut LocalNode)) {
        let name = node_name(provider, DEFAULT_POOL);
        let node = self
            .nodes
            .iter_mut()
            .find(|(key, _)| key.name == name)
            .unwrap();
        change(Arc::make_mut(&mut node.1));
    }

    fn change_upstream_offer(&mut self, provider: u8, change: impl FnOnce(&mut ResourceOfferSpec)) {
        let namespace = provider_namespace(&cluster(provider));
        let offer = self
            .offers
            .iter_mut()
            .find(|(key, _)| key.namespace == namespace)
            .unwrap();
        change(&mut Arc::make_mut(&mut offer.1).spec);
    }

    /// A pod on the virtual node of a provider.
    fn pod_at(mut self, provider: u8, owner: Option<ClaimedOwner>, requests: &str) -> Self {
        let node = Some(node_name(provider, DEFAULT_POOL));
        self.add(PodUsage {
            node,
            resources: list(requests).into(),
            owner,
            ..PodUsage::default()
        });
        self
    }

    /// Pool and amounts of each offer to a consumer.
    fn offered_to(&self, consumer: u8) -> Vec<(String, String)> {
        let namespace = tenant_namespace(&cluster(consumer));
        let offers = self
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == namespace);
        let mut found: Vec<_> = offers
            .map(|(_, offer)| {
                (
                    offer.spec.pool.clone(),
                    offer.spec.resource_quota.hard.to_string(),
                )
            })
            .collect();
        found.sort();
        found
    }
}

fn pool(name: &str, hard: &str) -> (String, String) {
    (name.to_owned(), hard.to_owned())
}

/// The values of a label in the terms of an offer's selector.
fn selected(offer: &ResourceOfferSpec, key: &str) -> Vec<String> {
    let terms = offer.node_selector.clone().unwrap().node_selector_terms;
    let expressions = terms
        .into_iter()
        .flat_map(|term| term.match_expressions.unwrap_or_default());
    expressions
        .filter(|one| one.key == key)
        .flat_map(|one| one.values.unwrap_or_default())
        .collect()
}

#[test]
fn virtual_nodes_are_not_lent_unless_the_policy_says_so() {
    let snapshot = milan()
        .borrows(TURIN, DEFAULT_POOL, "cpu=4, pods=10", |_| {})
        .asks(ROME, "");
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=10, pods=10")]);
    let everything = json!({ "provide": { "percentage": 100, "source": { "nodes": { "selectors": [
        { "matchExpressions": [{ "key": "liqo.io/type", "operator": "Exists" }] }] } } } });
    let by_label = ProviderSnapshot {
        policies: vec![policy("default", 0, everything)],
        ..snapshot
    };
    assert!(
        by_label.writes().is_empty(),
        "a selector of nodes finds no virtual one"
    );
}

#[test]
fn a_broker_lends_the_sum_of_what_it_borrows_and_none_of_its_own_nodes() {
    let snapshot = two_providers(&json!({})).asks(ROME, "");
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=10, pods=20")]);
    let offer = snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(
        (offer.path[0].clone(), offer.path.len(), offer.hops),
        (cluster(MILAN), 3, 2)
    );
    let providers: BTreeSet<String> = selected(&offer, labels::REMOTE_CLUSTER_ID)
        .into_iter()
        .collect();
    assert_eq!(
        providers,
        BTreeSet::from([cluster(TURIN).to_string(), cluster(GENOA).to_string()])
    );
    assert!(offer.is_borrowed());
}

#[test]
fn percentage_caps_and_several_consumers_count_as_for_real_nodes() {
    let mut snapshot = two_providers(&json!({}))
        .asks(ROME, "")
        .asks(VENICE, "cpu=1, pods=1");
    let provide = json!({ "percentage": 50, "caps": { "pods": "2" }, "source": { "offers": {} } });
    snapshot.policies = vec![policy("default", 0, json!({ "provide": provide }))];
    let settled = snapshot.settled().settled();
    assert_eq!(
        settled.offered_to(ROME),
        [pool(DEFAULT_POOL, "cpu=4, pods=2")]
    );
    assert_eq!(
        settled.offered_to(VENICE),
        [pool(DEFAULT_POOL, "cpu=1, pods=1")]
    );
}

#[test]
fn a_broker_says_of_single_nodes_what_its_providers_say_and_nothing_if_one_says_nothing() {
    let says = |largest: &str| serde_json::from_str(largest).unwrap();
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    snapshot.change_upstream_offer(TURIN, |offer| {
        offer.largest_pods = says(r#"[{"cpu":"2","pods":"1"}]"#);
    });
    let half = snapshot
        .clone()
        .settled()
        .offer(ROME, DEFAULT_POOL)
        .unwrap();
    assert!(half.largest_pods.is_empty());
    snapshot.change_upstream_offer(GENOA, |offer| {
        offer.largest_pods = says(r#"[{"cpu":"5","pods":"1"}]"#);
    });
    let said = |snapshot: ProviderSnapshot| {
        let offer = snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap();
        offer
            .largest_pods
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(said(snapshot.clone()), ["cpu=5, pods=1"]);
    assert_eq!(
        said(snapshot.pod_at(GENOA, None, "cpu=5, pods=1")),
        ["cpu=2, pods=1"],
        "one cpu is left at the other"
    );
}

#[test]
fn own_nodes_are_a_pool_of_their_own() {
    let settled = two_providers(&json!({ "ownNodes": true }))
        .asks(ROME, "")
        .settled();
    assert_eq!(
        settled.offered_to(ROME),
        [
            pool(DEFAULT_POOL, "cpu=10, pods=10"),
            pool("hops-2", "cpu=10, pods=20")
        ]
    );
    let own = settled.offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(
        (
            own.path.clone(),
            own.hops,
            selected(&own, labels::REMOTE_CLUSTER_ID)
        ),
        (vec![cluster(MILAN)], 1, Vec::new())
    );
}

#[test]
fn each_offer_can_be_a_pool() {
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    let provide =
        json!({ "percentage": 100, "granularity": { "by": "Node" }, "source": { "offers": {} } });
    snapshot.policies = vec![policy("default", 0, json!({ "provide": provide }))];
    let settled = snapshot.settled();
    let (turin, genoa) = (
        node_name(TURIN, DEFAULT_POOL),
        node_name(GENOA, DEFAULT_POOL),
    );
    assert_eq!(
        settled.offered_to(ROME),
        [
            pool(&turin, "cpu=4, pods=10"),
            pool(&genoa, "cpu=6, pods=10")
        ]
    );
    let offer = settled.offer(ROME, &turin).unwrap();
    assert_eq!(
        (offer.path.clone(), selected(&offer, labels::POOL)),
        (
            vec![cluster(MILAN), cluster(TURIN)],
            vec![DEFAULT_POOL.to_owned()]
        )
    );
}

#[test]
fn pools_of_different_hops_are_not_mixed() {
    let through_genoa = |spec: &mut ResourceOfferSpec| {
        spec.path.push(cluster(VENICE));
        spec.hops = 2;
    };
    let snapshot = broker(&json!({}))
        .borrows(TURIN, DEFAULT_POOL, "cpu=4", |_| {})
        .borrows(GENOA, "default", "cpu=6", through_genoa);
    let settled = snapshot.asks(ROME, "").settled();
    assert_eq!(
        settled.offered_to(ROME),
        [pool(DEFAULT_POOL, "cpu=4"), pool("hops-3", "cpu=6")]
    );
    assert_eq!(settled.offer(ROME, "hops-3").unwrap().hops, 3);
}

#[test]
fn nobody_is_offered_its_own_resources_nor_what_comes_through_it() {
    // Turin and genoa borrow from milan, too, and genoa passes on what venice owns.
    let mut snapshot = two_providers(&json!({}))
        .asks(TURIN, "")
        .asks(GENOA, "")
        .asks(VENICE, "")
        .asks(ROME, "");
    snapshot.change_upstream_offer(GENOA, |spec| spec.path.push(cluster(VENICE)));
    let settled = snapshot.settled().settled().settled();
    for consumer in [TURIN, GENOA, VENICE, ROME] {
        let offer = settled.offer(consumer, DEFAULT_POOL).unwrap();
        assert!(!offer.path.contains(&cluster(consumer)), "{consumer}");
        let providers = selected(&offer, labels::REMOTE_CLUSTER_ID);
        assert!(
            !providers.contains(&cluster(consumer).to_string()),
            "{consumer}"
        );
    }
    assert_eq!(
        selected(
            &settled.offer(VENICE, DEFAULT_POOL).unwrap(),
            labels::REMOTE_CLUSTER_ID
        ),
        [cluster(TURIN).to_string()]
    );
    assert_eq!(settled.offer(ROME, DEFAULT_POOL).unwrap().path.len(), 4);
}

#[test]
fn the_brokers_own_pods_reduce_what_it_lends_and_those_of_consumers_are_part_of_their_offers() {
    let romes = owner("mapped-1", ROME, DEFAULT_POOL);
    let snapshot = two_providers(&json!({}))
        .asks(ROME, "")
        .pod_at(TURIN, None, "cpu=1, pods=1");
    assert_eq!(
        snapshot
            .clone()
            .pod_at(GENOA, Some(romes), "cpu=2, pods=1")
            .writes(),
        [write(ROME, "cpu=9, pods=19")]
    );
    assert_eq!(
        snapshot.pod("default", None, "cpu=5, pods=5").writes(),
        [write(ROME, "cpu=9, pods=19")],
        "own nodes do not count"
    );
}

#[test]
fn pods_that_wait_for_a_virtual_node_come_first_and_others_do_not_count() {
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    let waiting = PodUsage {
        resources: list("cpu=3, pods=1").into(),
        waits_for_node: true,
        ..PodUsage::default()
    };
    snapshot.add(waiting.clone());
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=10, pods=20")]);
    snapshot.add(PodUsage {
        waits_for_node: false,
        waits_for_virtual_node: true,
        ..waiting
    });
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=7, pods=19")]);
}

#[test]
fn a_provider_that_is_down_or_cordoned_counts_as_a_node_that_is() {
    let romes = owner("mapped-1", ROME, DEFAULT_POOL);
    let mut snapshot = two_providers(&json!({}))
        .asks(ROME, "")
        .pod_at(GENOA, Some(romes), "cpu=5, pods=1")
        .settled();
    snapshot.change_node(GENOA, |node| node.eligible = false);
    snapshot = snapshot.settled();
    let offer = snapshot.offer(ROME, DEFAULT_POOL).unwrap();
    assert!(
        offer.reclaim_timestamp.is_some(),
        "rome uses more than is left"
    );
    assert_eq!(offer.resource_quota.hard.get("cpu").to_string(), "5");
    snapshot.change_node(GENOA, |node| node.eligible = true);
    let offer = snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(
        (
            offer.reclaim_timestamp,
            offer.resource_quota.hard.to_string().as_str()
        ),
        (None, "cpu=10, pods=20")
    );
}

#[test]
fn changed_amounts_are_passed_on() {
    let mut snapshot = two_providers(&json!({})).asks(ROME, "").settled();
    snapshot.change_node(TURIN, |node| node.allocatable = list("cpu=8, pods=10"));
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=14, pods=20")]);
}

#[test]
fn what_a_provider_takes_back_is_taken_back_from_the_consumers() {
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    let provide =
        json!({ "percentage": 100, "granularity": { "by": "Node" }, "source": { "offers": {} } });
    snapshot.policies = vec![policy("default", 0, json!({ "provide": provide }))];
    let turin = node_name(TURIN, DEFAULT_POOL);
    let mut snapshot = snapshot
        .pod_at(
            TURIN,
            Some(owner("mapped-1", ROME, &turin)),
            "cpu=1, pods=1",
        )
        .settled();
    snapshot.change_upstream_offer(TURIN, |spec| {
        spec.withdrawal_timestamp = Some(liqo_api::Time(Timestamp::UNIX_EPOCH));
    });
    let settled = snapshot.settled();
    assert!(
        settled
            .offer(ROME, &turin)
            .unwrap()
            .withdrawal_timestamp
            .is_some()
    );
    assert!(
        settled
            .offer(ROME, &node_name(GENOA, DEFAULT_POOL))
            .unwrap()
            .withdrawal_timestamp
            .is_none()
    );
}

/// Their customers move pods as soon as they know which ones end.
#[test]
fn customers_read_at_once_that_nodes_have_no_room_because_a_cluster_behind_takes_it_back() {
    let says = |amounts: Value| serde_json::from_value(json!([amounts])).unwrap();
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    for provider in [TURIN, GENOA] {
        snapshot.change_upstream_offer(provider, |offer| {
            offer.largest_pods = says(json!({ "cpu": "3", "pods": "1" }));
        });
    }
    let mut snapshot = snapshot.settled();
    let hard = snapshot
        .offer(ROME, DEFAULT_POOL)
        .unwrap()
        .resource_quota
        .hard
        .clone();
    let mut has_room = |cpu: &str, lasting: Option<&str>, is_early: bool| {
        let written = RecentWrite {
            at: Instant::now(),
            hard: hard.clone(),
            prices: None,
            is_early,
        };
        snapshot
            .recent_writes
            .insert(("tenant-1".into(), DEFAULT_POOL.into()), written);
        for provider in [TURIN, GENOA] {
            snapshot.change_upstream_offer(provider, |offer| {
                offer.largest_pods = says(json!({ "cpu": cpu, "pods": "1" }));
                offer.reclaim_to = lasting.map(list);
                offer.reclaim_timestamp = lasting.map(|_| liqo_api::Time(Timestamp::UNIX_EPOCH));
            });
        }
        snapshot.plan().writes.len()
    };
    assert_eq!(
        has_room("1", None, false),
        0,
        "amounts that go up and down are told every ten seconds"
    );
    assert_eq!(has_room("1", Some("cpu=0, pods=0"), false), 1);
    assert_eq!(
        has_room("1", Some("cpu=0, pods=0"), true),
        0,
        "a provider that changes all the time causes no more writes"
    );
    assert_eq!(
        has_room("4", Some("cpu=0, pods=0"), false),
        0,
        "more room has time"
    );
}

#[test]
fn a_broker_that_hears_neither_its_customer_nor_its_provider_takes_nothing_back() {
    let romes = owner("mapped-1", ROME, DEFAULT_POOL);
    let both = two_providers(&json!({}))
        .asks(ROME, "")
        .pod_at(GENOA, Some(romes), "cpu=5, pods=1")
        .settled()
        .at(1000);
    let silence = || Silence {
        lasts: Some(Duration::from_secs(1)),
        ended_offers: false,
    };
    let reclaim = |rome_is_silent: bool, genoa_is_silent: bool| {
        let mut snapshot = both.clone();
        snapshot.change_node(GENOA, |node| node.eligible = !genoa_is_silent);
        if rome_is_silent {
            snapshot.silences = HashMap::from([(cluster(ROME), silence())]);
        }
        snapshot
            .settled()
            .offer(ROME, DEFAULT_POOL)
            .unwrap()
            .reclaim_timestamp
            .map(|time| time.0.as_second())
    };
    assert_eq!(
        reclaim(false, true),
        Some(1060),
        "the customer reads that a provider is down"
    );
    assert_eq!(reclaim(true, true), None, "the broker may be cut off");
    // Silence alone keeps nobody's room beyond what the policy says.
    let mut capped = both.clone();
    capped.policies = vec![policy(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "noticeSeconds": 60, "caps": { "cpu": "2" }, "source": { "offers": {} } } }),
    )];
    capped.silences = HashMap::from([(cluster(ROME), silence())]);
    assert!(
        capped
            .settled()
            .offer(ROME, DEFAULT_POOL)
            .unwrap()
            .reclaim_timestamp
            .is_some()
    );
}

#[test]
fn pods_on_nodes_that_a_pool_does_not_have_any_more_get_a_notice_whatever_the_pool_is_called() {
    let romes = || Some(owner("mapped-1", ROME, DEFAULT_POOL));
    let drain = |snapshot: &ProviderSnapshot| {
        snapshot
            .offer(ROME, DEFAULT_POOL)
            .unwrap()
            .drain_timestamp
            .map(|time| time.0.as_second())
    };
    let own = policy(
        "default",
        0,
        json!({ "provide": { "percentage": 100, "noticeSeconds": 60 } }),
    );
    let before = two_providers(&json!({}))
        .asks(ROME, "")
        .pod_at(TURIN, romes(), "cpu=1, pods=1")
        .settled()
        .at(1000);
    assert_eq!(drain(&before), None);
    // The cluster ends to be a broker.
    let ended = ProviderSnapshot {
        policies: vec![own],
        ..before.clone()
    }
    .settled();
    assert_eq!(
        (ended.offer(ROME, DEFAULT_POOL).unwrap().hops, drain(&ended)),
        (1, Some(1060))
    );
    assert_eq!(
        drain(&ended.clone().at(1200).settled()),
        Some(1060),
        "a notice does not begin anew"
    );
    assert_eq!(
        drain(
            &ProviderSnapshot {
                pods: Arc::default(),
                ..ended
            }
            .settled()
        ),
        None,
        "the pods have left"
    );
    // It becomes one again, and its own nodes are not lent any more.
    let begun = broker(&json!({}))
        .borrows(TURIN, DEFAULT_POOL, "cpu=4, pods=10", |_| {})
        .asks(ROME, "");
    let begun = begun
        .pod("mapped-1", Some(ROME), "cpu=1, pods=1")
        .at(1000)
        .settled();
    assert_eq!(drain(&begun), Some(1060));
    // Other labels are selected.
    let selecting = json!({ "provide": { "percentage": 100, "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } } });
    let mut labelled = milan()
        .node("b", "cpu=4, pods=10", &[("gpu", "yes")])
        .asks(ROME, "");
    labelled.add(romes_pod(DEFAULT_POOL, "a", "cpu=1"));
    assert_eq!(drain(&labelled.clone().settled()), None);
    labelled.policies = vec![policy("default", 0, selecting)];
    assert_eq!(drain(&labelled.at(1000).settled()), Some(1300));
}

#[test]
fn a_node_that_its_provider_takes_back_keeps_its_pods_until_the_end_that_was_announced() {
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    snapshot = snapshot
        .pod_at(
            TURIN,
            Some(owner("mapped-1", ROME, DEFAULT_POOL)),
            "cpu=1, pods=1",
        )
        .settled();
    snapshot.change_upstream_offer(TURIN, |spec| {
        spec.withdrawal_timestamp = Some(liqo_api::Time(Timestamp::UNIX_EPOCH));
    });
    let offer = snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(
        selected(&offer, labels::REMOTE_CLUSTER_ID),
        [cluster(GENOA).to_string()]
    );
    assert_eq!(offer.drain_timestamp, None);
}

#[test]
fn a_pool_without_nodes_is_withdrawn_with_its_notice_and_stays_what_it_was() {
    for source in [json!({}), json!({ "ownNodes": true })] {
        let pool = if source == json!({}) {
            DEFAULT_POOL
        } else {
            "hops-2"
        };
        let mut snapshot = broker(&source)
            .borrows(TURIN, DEFAULT_POOL, "cpu=4", |_| {})
            .asks(ROME, "");
        snapshot = snapshot
            .pod_at(TURIN, Some(owner("mapped-1", ROME, pool)), "cpu=1")
            .settled();
        let before = snapshot.offer(ROME, pool).unwrap();
        let (later, soon) = ([3600, 60], [20, 20]);
        for [upstream, promised] in [later, soon] {
            let (mut withdrawn, now) = (snapshot.clone(), snapshot.wall_time.as_second());
            let end = Timestamp::from_second(now + upstream).unwrap();
            withdrawn.change_upstream_offer(TURIN, |spec| {
                spec.withdrawal_timestamp = Some(liqo_api::Time(end));
            });
            let offer = withdrawn.settled().offer(ROME, pool).unwrap();
            let end = offer
                .withdrawal_timestamp
                .clone()
                .map(|end| end.0.as_second() - now);
            assert_eq!(
                (end, offer.is_borrowed()),
                (Some(promised), true),
                "the notice of 60 s, if turin leaves that much time"
            );
            assert_eq!(
                (offer.hops, &offer.path, &offer.node_selector),
                (before.hops, &before.path, &before.node_selector)
            );
        }
    }
}

#[test]
fn a_broker_that_borrows_nothing_offers_nothing() {
    let snapshot = broker(&json!({})).asks(ROME, "");
    assert!(snapshot.writes().is_empty());
    let own = broker(&json!({ "ownNodes": true }))
        .asks(ROME, "")
        .settled();
    assert_eq!(
        own.offered_to(ROME),
        [pool(DEFAULT_POOL, "cpu=10, pods=10")]
    );
}

#[test]
fn a_node_whose_offer_is_unknown_is_not_lent() {
    let mut snapshot = two_providers(&json!({})).asks(ROME, "");
    let namespace = provider_namespace(&cluster(GENOA));
    snapshot
        .offers
        .retain(|(key, _)| key.namespace != namespace);
    assert_eq!(snapshot.writes(), [write(ROME, "cpu=4, pods=10")]);
}

#[test]
fn an_offer_names_no_more_clusters_than_its_consumer_accepts() {
    let long = |from: u8| {
        move |spec: &mut ResourceOfferSpec| {
            spec.path
                .extend((from..from + 100).map(|number| ClusterId::of_public_key(&[number; 32])));
        }
    };
    let snapshot = broker(&json!({}))
        .borrows(TURIN, "a", "cpu=4", long(20))
        .borrows(GENOA, "b", "cpu=6", long(130));
    let offer = snapshot
        .asks(ROME, "")
        .settled()
        .offer(ROME, DEFAULT_POOL)
        .unwrap();
    assert_eq!(
        (
            offer.path.len(),
            offer.resource_quota.hard.to_string().as_str()
        ),
        (102, "cpu=4")
    );
}

#[test]
fn the_prices_of_providers_are_passed_on_with_a_margin() {
    let prices = |currency: &str, cpu: &str| {
        let prices =
            serde_json::from_value(json!({ "currency": currency, "rates": { "cpu": cpu } }))
                .unwrap();
        move |spec: &mut ResourceOfferSpec| spec.prices = Some(prices)
    };
    let snapshot = broker(
        &json!({ "margin": { "currency": "EUR", "percent": 50, "fixed": { "memory": "0.01" } } }),
    )
    .borrows(TURIN, "a", "cpu=4", prices("EUR", "0.02"))
    .borrows(GENOA, "b", "cpu=6", prices("EUR", "0.04"))
    .borrows(VENICE, "c", "cpu=9", prices("USD", "0.01"));
    let offer = snapshot
        .asks(ROME, "")
        .settled()
        .offer(ROME, DEFAULT_POOL)
        .unwrap();
    assert_eq!(
        offer.prices.unwrap().to_string(),
        "cpu=0.06, memory=0.01 EUR"
    );
    assert_eq!(
        offer.resource_quota.hard.to_string(),
        "cpu=10",
        "nothing is lent whose price is in another currency"
    );
}

/// The source of a policy that names a plugin.
fn asks_a_plugin() -> Value {
    json!({ "provide": { "noticeSeconds": 60, "source": { "plugin": { "address": "liqo-broker-plugin.liqo:7000" } } } })
}

/// What the plugin says about one pool of a consumer.
fn says(snapshot: &mut ProviderSnapshot, consumer: u8, name: &str, hard: &str, hops: u8) {
    let answer = snapshot
        .plugin_answers
        .entry(cluster(consumer))
        .or_default();
    answer
        .pools
        .get_or_insert_default()
        .insert(name.to_owned(), list(hard));
    answer.hops.insert(name.to_owned(), hops);
}

#[test]
fn the_borrowed_pools_of_a_plugin_are_the_virtual_nodes_that_come_through_as_many_clusters() {
    let through_genoa = |spec: &mut ResourceOfferSpec| {
        spec.path.push(cluster(VENICE));
        spec.hops = 2;
    };
    let mut snapshot = milan()
        .under(&[("default", 0, asks_a_plugin())])
        .borrows(TURIN, DEFAULT_POOL, "cpu=4, pods=10", |_| {})
        .borrows(GENOA, DEFAULT_POOL, "cpu=6, pods=10", through_genoa)
        .asks(ROME, "")
        .asks(VENICE, "");
    for consumer in [ROME, VENICE] {
        says(&mut snapshot, consumer, DEFAULT_POOL, "cpu=4, pods=10", 2);
        says(&mut snapshot, consumer, "hops-3", "cpu=6, pods=10", 3);
    }
    let settled = snapshot.settled();
    let read = |consumer: u8, pool: &str| {
        let offer = settled.offer(consumer, pool).unwrap();
        (
            offer.hops,
            selected(&offer, labels::REMOTE_CLUSTER_ID),
            offer.path,
        )
    };
    let (turin, genoa) = (cluster(TURIN).to_string(), cluster(GENOA).to_string());
    assert_eq!(
        read(ROME, DEFAULT_POOL),
        (2, vec![turin.clone()], vec![cluster(MILAN), cluster(TURIN)])
    );
    assert_eq!(
        read(ROME, "hops-3"),
        (
            3,
            vec![genoa],
            vec![cluster(MILAN), cluster(GENOA), cluster(VENICE)]
        )
    );
    assert_eq!(read(VENICE, DEFAULT_POOL).1, [turin]);
    let through_itself = settled.offer(VENICE, "hops-3").unwrap();
    let terms = through_itself
        .node_selector
        .clone()
        .unwrap()
        .node_selector_terms;
    assert_eq!(
        (
            terms.len(),
            selected(&through_itself, labels::REMOTE_CLUSTER_ID)
        ),
        (1, Vec::new()),
        "no node is selected"
    );
    // Another manager does not know the plugin's answer at first.
    let restarted = ProviderSnapshot {
        plugin_answers: HashMap::new(),
        ..settled.clone()
    };
    assert!(
        restarted.plan().writes.is_empty(),
        "{:?}",
        restarted.plan().writes
    );
}

#[test]
fn the_other_pools_of_a_plugin_are_own_nodes() {
    let mut snapshot = two_providers(&json!({}))
        .under(&[("default", 0, asks_a_plugin())])
        .asks(ROME, "");
    says(&mut snapshot, ROME, DEFAULT_POOL, "cpu=2, pods=10", 1);
    snapshot
        .plugin_answers
        .get_mut(&cluster(ROME))
        .unwrap()
        .hops
        .clear();
    let offer = snapshot.settled().offer(ROME, DEFAULT_POOL).unwrap();
    assert_eq!(
        (offer.hops, offer.node_selector, offer.path),
        (1, None, vec![cluster(MILAN)])
    );
}
