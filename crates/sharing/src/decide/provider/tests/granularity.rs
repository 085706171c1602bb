//! Consumers that ask for one pool for each node.

use liqo_api::{Quantity, RequestedGranularity, conditions};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::decide::consumer::MAX_POOLS;

impl ProviderSnapshot {
    /// A consumer asks for one pool for each node, or takes that back.
    fn chooses(mut self, consumer: u8, granularity: Option<RequestedGranularity>) -> Self {
        for (key, request) in &mut self.requests {
            if key.namespace == tenant_namespace(&cluster(consumer)) {
                Arc::make_mut(request).granularity = granularity;
            }
        }
        self
    }

    fn for_nodes(self, consumer: u8) -> Self {
        self.asks(consumer, "")
            .chooses(consumer, Some(RequestedGranularity::Node))
    }

    /// The snapshot after this plan was carried out, with the answers to requests.
    fn after_with_answers(self, plan: ProviderPlan) -> Self {
        let mut answered = self;
        for condition in &plan.request_conditions {
            for (_, request) in answered
                .requests
                .iter_mut()
                .filter(|(key, _)| key.namespace == condition.namespace)
            {
                let request = Arc::make_mut(request);
                let now = answered.wall_time;
                let changed = conditions::updated_conditions_for(
                    request.generation,
                    &request.conditions,
                    &condition.wanted,
                    now,
                );
                request.conditions = changed.unwrap_or_else(|| request.conditions.clone());
            }
        }
        answered.after(plan)
    }

    /// The snapshot when nothing is left to write.
    fn at_rest(mut self) -> Self {
        for _ in 0..10 {
            let plan = self.plan();
            if plan.writes.is_empty() && plan.deletions.is_empty() {
                return self.after_with_answers(plan);
            }
            self = self.after_with_answers(plan);
        }
        panic!("it does not settle: {:?}", self.plan().writes);
    }

    /// Pool and amounts of each offer to a consumer that is not being withdrawn.
    fn pools_of(&self, consumer: u8) -> Vec<(String, String)> {
        let mut pools: Vec<_> = self
            .offers
            .iter()
            .filter(|(key, offer)| {
                key.namespace == tenant_namespace(&cluster(consumer))
                    && offer.spec.withdrawal_timestamp.is_none()
            })
            .map(|(key, offer)| (key.name.clone(), offer.spec.resource_quota.hard.to_string()))
            .collect();
        pools.sort();
        pools
    }

    /// Status and reason of the answer to a consumer.
    fn answer_to(&self, consumer: u8) -> Option<(Option<bool>, String)> {
        let namespace = tenant_namespace(&cluster(consumer));
        let answered = self
            .plan()
            .request_conditions
            .into_iter()
            .find(|condition| condition.namespace == namespace)?;
        let found = answered
            .wanted
            .into_iter()
            .find(|condition| condition.kind == "PoolForEachNode")?;
        Some((found.status, found.reason))
    }
}

fn choosing(provide: &Value) -> [(&'static str, i32, Value); 1] {
    let mut all = json!({ "percentage": 100, "granularity": { "peersMayChoose": true }, "noticeSeconds": 300 });
    all.as_object_mut()
        .unwrap()
        .extend(provide.as_object().unwrap().clone());
    [("default", 0, json!({ "provide": all }))]
}

fn pools(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter()
        .map(|(pool, amounts)| ((*pool).to_owned(), (*amounts).to_owned()))
        .collect()
}

/// Nodes a with 10 cpu and b with 4, under a policy that lets its peers choose.
fn two_nodes() -> ProviderSnapshot {
    milan()
        .node("b", "cpu=4, pods=10", &[])
        .under(&choosing(&json!({})))
}

#[test]
fn a_consumer_gets_one_pool_for_each_node_if_the_policy_lets_it_choose() {
    let snapshot = two_nodes().for_nodes(ROME).at_rest();
    assert_eq!(
        snapshot.pools_of(ROME),
        pools(&[("a", "cpu=10, pods=10"), ("b", "cpu=4, pods=10")])
    );
    assert_eq!(
        snapshot.answer_to(ROME),
        Some((Some(true), "Granted".to_owned()))
    );
    let selector = serde_json::to_value(snapshot.offer(ROME, "b").unwrap().node_selector).unwrap();
    assert_eq!(
        selector["nodeSelectorTerms"][0]["matchFields"][0]["values"],
        json!(["b"])
    );
    assert_eq!(
        snapshot
            .offer(ROME, "b")
            .unwrap()
            .largest_pods
            .iter()
            .count(),
        1
    );
}

#[test]
fn without_leave_or_without_a_request_there_are_the_pools_of_the_policy() {
    let one = pools(&[("default", "cpu=14, pods=20")]);
    let refused = two_nodes()
        .under(&[("default", 0, json!({ "provide": { "percentage": 100 } }))])
        .for_nodes(ROME)
        .at_rest();
    assert_eq!(refused.pools_of(ROME), one);
    assert_eq!(
        refused.answer_to(ROME),
        Some((Some(false), "NotAllowed".to_owned()))
    );
    let absent = two_nodes().asks(ROME, "").at_rest();
    assert_eq!((absent.pools_of(ROME), absent.answer_to(ROME)), (one, None));
}

#[test]
fn only_nodes_that_the_policy_lends_become_pools() {
    let east =
        json!({ "source": { "nodes": { "selectors": [{ "matchLabels": { "zone": "east" } }] } } });
    let nodes = milan()
        .node("b", "cpu=4", &[("zone", "east")])
        .node("c", "cpu=2", &[]);
    let snapshot = nodes.under(&choosing(&east)).for_nodes(ROME).at_rest();
    assert_eq!(snapshot.pools_of(ROME), pools(&[("b", "cpu=4")]));
    let by_zone =
        json!({ "granularity": { "by": "NodeLabel", "label": "zone", "peersMayChoose": true } });
    let nodes =
        milan()
            .node("b", "cpu=4", &[("zone", "east")])
            .node("c", "cpu=2", &[("zone", "east")]);
    let snapshot = nodes
        .under(&choosing(&by_zone))
        .for_nodes(ROME)
        .asks(TURIN, "")
        .at_rest();
    assert_eq!(
        snapshot.pools_of(ROME),
        pools(&[("b", "cpu=2"), ("c", "cpu=1")])
    );
    assert_eq!(snapshot.pools_of(TURIN), pools(&[("east", "cpu=3")]));
}

#[test]
fn what_one_consumer_asks_for_changes_no_offer_of_another() {
    let gpus = (0..7).fold(milan(), |snapshot, number| {
        snapshot.node(
            &format!("gpu-{number}"),
            "cpu=3, memory=5, nvidia.com/gpu=1",
            &[],
        )
    });
    for percentage in [10, 50, 90, 100] {
        let both = gpus
            .clone()
            .under(&choosing(&json!({ "percentage": percentage })))
            .asks(ROME, "")
            .asks(TURIN, "");
        let before = both.clone().at_rest().pools_of(TURIN);
        let after = both
            .clone()
            .chooses(ROME, Some(RequestedGranularity::Node))
            .at_rest();
        assert_eq!(after.pools_of(TURIN), before, "{percentage} percent");
        let sum: ResourceList = after
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == tenant_namespace(&cluster(ROME)))
            .map(|(_, offer)| &offer.spec.resource_quota.hard)
            .sum();
        assert_eq!(
            sum.to_string(),
            both.at_rest().pools_of(ROME)[0].1,
            "nor the sum of its own, at {percentage} percent"
        );
    }
}

#[test]
fn using_a_pool_changes_no_offer() {
    let mut snapshot = two_nodes().for_nodes(ROME).asks(TURIN, "").at_rest();
    let before = [
        pools(&[("a", "cpu=5, pods=5"), ("b", "cpu=2, pods=5")]),
        pools(&[("default", "cpu=7, pods=10")]),
    ];
    assert_eq!(
        [ROME, TURIN].map(|consumer| snapshot.pools_of(consumer)),
        before
    );
    snapshot.add(romes_pod("a", "a", "cpu=5, pods=2"));
    snapshot.add(PodUsage {
        node: None,
        waits_for_node: true,
        ..romes_pod("b", "b", "cpu=2, pods=1")
    });
    let after = snapshot.at_rest();
    assert_eq!(
        [ROME, TURIN].map(|consumer| after.pools_of(consumer)),
        before
    );
}

#[test]
fn a_node_that_others_fill_up_is_offered_less_and_the_other_nodes_more() {
    let mut snapshot = two_nodes().for_nodes(ROME).asks(TURIN, "").at_rest();
    let turins = PodUsage {
        owner: Some(owner("mapped-2", TURIN, DEFAULT_POOL)),
        ..romes_pod("a", "b", "cpu=4, pods=4")
    };
    snapshot.add(turins);
    let after = snapshot.at_rest();
    assert_eq!(
        after.pools_of(ROME),
        pools(&[("a", "cpu=7, pods=6"), ("b", "cpu=0, pods=4")])
    );
    assert_eq!(
        after.pools_of(TURIN),
        pools(&[("default", "cpu=7, pods=10")])
    );
}

#[test]
fn pods_beyond_the_policy_get_notice_in_the_pools_that_have_them() {
    let capped = json!({ "caps": { "cpu": "3" } });
    let mut snapshot = two_nodes().for_nodes(ROME).at_rest();
    snapshot.add(romes_pod("a", "a", "cpu=6, pods=1"));
    let noticed = snapshot.under(&choosing(&capped)).at(1000).at_rest();
    let reclaimed_at = |snapshot: &ProviderSnapshot, pool: &str| {
        snapshot
            .offer(ROME, pool)
            .unwrap()
            .reclaim_timestamp
            .map(|time| time.0.as_second())
    };
    assert_eq!(
        (reclaimed_at(&noticed, "a"), reclaimed_at(&noticed, "b")),
        (Some(1300), None)
    );
    assert_eq!(
        noticed.pools_of(ROME),
        pools(&[("a", "cpu=6, pods=10"), ("b", "cpu=0, pods=10")])
    );
    let over = noticed.at(1300).at_rest();
    assert_eq!(
        over.pools_of(ROME),
        pools(&[("a", "cpu=3, pods=10"), ("b", "cpu=0, pods=10")]),
        "what runs comes first"
    );
    assert_eq!(reclaimed_at(&over, "a"), Some(1300));
}

#[test]
fn a_refused_pool_keeps_only_what_is_used_and_the_others_stay() {
    let mut snapshot = two_nodes().for_nodes(ROME).at_rest();
    for (key, offer) in &mut snapshot.offers {
        let phase = if key.name == "b" {
            OfferPhase::Refused
        } else {
            OfferPhase::Accepted
        };
        Arc::make_mut(offer).status = Some(ResourceOfferStatus {
            phase,
            message: None,
        });
    }
    assert_eq!(
        snapshot.at_rest().pools_of(ROME),
        pools(&[("a", "cpu=10, pods=10"), ("b", "cpu=0, pods=0")])
    );
}

#[test]
fn the_pools_cost_what_the_pool_of_the_policy_costs() {
    let prices = json!({ "currency": "EUR", "rates": { "cpu": "1" }, "pools": { "default": { "cpu": "9" } } });
    let snapshot = two_nodes()
        .under(&choosing(&json!({ "prices": prices })))
        .for_nodes(ROME)
        .at_rest();
    for pool in ["a", "b"] {
        assert_eq!(
            snapshot
                .offer(ROME, pool)
                .unwrap()
                .prices
                .unwrap()
                .to_string(),
            "cpu=9 EUR",
            "{pool}"
        );
    }
}

#[test]
fn a_pool_that_is_no_longer_asked_for_is_withdrawn_with_notice() {
    let mut used = two_nodes().asks(ROME, "").at_rest();
    used.add(romes_pod(DEFAULT_POOL, "a", "cpu=3, pods=1"));
    let switched = used
        .at(1000)
        .chooses(ROME, Some(RequestedGranularity::Node))
        .at_rest();
    let end = |snapshot: &ProviderSnapshot, pool: &str| {
        snapshot
            .offer(ROME, pool)
            .and_then(|offer| offer.withdrawal_timestamp)
            .map(|time| time.0.as_second())
    };
    assert_eq!(
        end(&switched, DEFAULT_POOL),
        Some(1300),
        "the pod that runs has time to move"
    );
    assert_eq!(
        switched.pools_of(ROME),
        pools(&[("a", "cpu=7, pods=9"), ("b", "cpu=4, pods=10")])
    );
    // It changes its mind before the notice is over.
    let back = switched.clone().at(1100).chooses(ROME, None).at_rest();
    assert_eq!(
        (end(&back, DEFAULT_POOL), back.offer(ROME, "a")),
        (None, None),
        "unused pools go at once"
    );
    // The pod has moved.
    let mut moved = ProviderSnapshot {
        pods: Arc::default(),
        ..switched
    };
    moved.add(romes_pod("b", "b", "cpu=3, pods=1"));
    let moved = moved.at_rest();
    assert_eq!(moved.offer(ROME, DEFAULT_POOL), None);
    assert_eq!(
        moved.pools_of(ROME),
        pools(&[("a", "cpu=10, pods=10"), ("b", "cpu=4, pods=10")])
    );
}

/// Milan with so many nodes.
fn many_nodes(count: usize) -> ProviderSnapshot {
    let nodes = (0..count).fold(milan(), |snapshot, number| {
        snapshot.node(&format!("node-{number:02}"), "cpu=2, pods=4", &[])
    });
    nodes.under(&choosing(&json!({})))
}

#[test]
fn a_consumer_never_has_more_offers_than_it_reads() {
    let count = |snapshot: &ProviderSnapshot| snapshot.offers.len();
    let mut snapshot = many_nodes(30).asks(ROME, "").at_rest();
    snapshot.add(romes_pod(DEFAULT_POOL, "a", "cpu=1, pods=1"));
    let snapshot = snapshot
        .chooses(ROME, Some(RequestedGranularity::Node))
        .at_rest();
    assert_eq!(
        (count(&snapshot), snapshot.pools_of(ROME).len()),
        (MAX_POOLS, MAX_POOLS - 1)
    );
    // All of them are in use when it takes that back.
    let used = snapshot
        .pools_of(ROME)
        .into_iter()
        .map(|(pool, _)| romes_pod(&pool, &pool, "cpu=1, pods=1"));
    let used = ProviderSnapshot {
        pods: Arc::new(used.collect()),
        ..snapshot
    };
    let back = used.at_rest().at(1000).chooses(ROME, None).at_rest();
    assert_eq!((count(&back), back.pools_of(ROME).len()), (MAX_POOLS, 1));
}

#[test]
fn consumers_that_have_the_same_few_nodes_share_them_and_others_get_the_rest() {
    let all = many_nodes(44)
        .for_nodes(ROME)
        .for_nodes(TURIN)
        .asks(5, "")
        .at_rest();
    let cpu = |consumer: u8| -> String {
        let namespace = tenant_namespace(&cluster(consumer));
        let offers = all
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == namespace);
        offers
            .map(|(_, offer)| offer.spec.resource_quota.hard.get("cpu"))
            .sum::<Quantity>()
            .to_string()
    };
    // 98 cpu, 38 of them on the first 15 nodes.
    assert_eq!([ROME, TURIN, 5].map(cpu), ["19", "19", "60"]);
}

#[test]
fn nodes_of_any_size_can_be_divided() {
    // A provider of a broker can offer as much as it likes.
    let huge = (0..30).fold(milan(), |snapshot, number| {
        snapshot.node(&format!("huge-{number:02}"), "cpu=1e29, memory=1e28", &[])
    });
    let snapshot = huge
        .under(&choosing(&json!({ "overcommitPercentage": 1000 })))
        .for_nodes(ROME)
        .for_nodes(TURIN)
        .at_rest();
    assert_eq!(
        (
            snapshot.pools_of(ROME).len(),
            snapshot.pools_of(TURIN).len()
        ),
        (MAX_POOLS - 1, MAX_POOLS - 1)
    );
}

#[test]
fn a_consumer_that_keeps_changing_its_mind_causes_few_writes() {
    let mut snapshot = many_nodes(30).asks(ROME, "").at_rest();
    snapshot.add(romes_pod(DEFAULT_POOL, "a", "cpu=1, pods=1"));
    let (mut writes, mut most) = (0, 0);
    for second in 0..600 {
        let granularity = (second % 2 == 0).then_some(RequestedGranularity::Node);
        let plan = snapshot.chooses(ROME, granularity).at(second);
        let now = plan.plan();
        writes += now.writes.len() + now.deletions.len();
        snapshot = plan.after_with_answers(now);
        most = most.max(snapshot.offers.len());
    }
    assert_eq!(most, MAX_POOLS);
    // Each time all pools come or go, and are written once more when the others have made room.
    assert!(
        (10 * MAX_POOLS..=11 * 2 * MAX_POOLS).contains(&writes),
        "{writes} writes in ten minutes"
    );
}

#[test]
fn a_virtual_node_of_a_broker_becomes_a_pool_of_its_own() {
    let provider = cluster(TURIN);
    let labels = [
        (labels::TYPE, labels::TYPE_VIRTUAL_NODE),
        (labels::REMOTE_CLUSTER_ID, provider.as_str()),
        (labels::POOL, DEFAULT_POOL),
    ];
    let node = LocalNode {
        eligible: true,
        allocatable: list("cpu=6, pods=6"),
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        upstream: Some(crate::decide::reduce::UpstreamPool {
            provider: provider.clone(),
            pool: DEFAULT_POOL.into(),
            offer: None,
        }),
    };
    let mut broker = milan()
        .under(&choosing(
            &json!({ "source": { "offers": { "ownNodes": true } } }),
        ))
        .for_nodes(ROME);
    broker.nodes.push((Key::new("", "turin"), node.into()));
    let mut offer = ResourceOffer::new(DEFAULT_POOL, offer_of(TURIN, "cpu=6, pods=6"));
    offer.metadata.namespace = Some(provider_namespace(&provider));
    broker.offers.push((Key::of_object(&offer), offer.into()));
    let broker = broker.at_rest();
    assert_eq!(
        broker.pools_of(ROME),
        pools(&[("a", "cpu=10, pods=10"), ("turin", "cpu=6, pods=6")])
    );
    let (own, borrowed) = (
        broker.offer(ROME, "a").unwrap(),
        broker.offer(ROME, "turin").unwrap(),
    );
    assert_eq!(
        (own.hops, borrowed.hops, borrowed.path),
        (1, 2, vec![cluster(MILAN), provider])
    );
    let selector = serde_json::to_value(borrowed.node_selector).unwrap();
    assert_eq!(selector["nodeSelectorTerms"].as_array().unwrap().len(), 1);
}

/// What happens to a provider with consumers that may choose.
#[derive(Clone, Debug)]
enum Event {
    Chooses(u8, bool),
    /// A pod of a consumer on a node, if its pool there has room.
    Pod(u8, usize, u8),
    OwnPod(usize, u8),
    EndsPods(u8),
    NodeFails(usize),
    Seconds(i64),
}

const NODES: usize = 20;

fn event() -> impl Strategy<Value = Event> {
    let (who, node) = (1..4_u8, 0..NODES);
    prop_oneof![
        (who.clone(), any::<bool>()).prop_map(|(who, asks)| Event::Chooses(who, asks)),
        (who.clone(), node.clone(), 1..3_u8)
            .prop_map(|(who, node, cpu)| Event::Pod(who, node, cpu)),
        (node.clone(), 1..3_u8).prop_map(|(node, cpu)| Event::OwnPod(node, cpu)),
        who.prop_map(Event::EndsPods),
        node.prop_map(Event::NodeFails),
        (1..200_i64).prop_map(Event::Seconds),
    ]
}

impl ProviderSnapshot {
    fn apply_choice(mut self, event: &Event) -> Self {
        let node = |at: usize| self.nodes[at].0.name.clone();
        match event {
            Event::Chooses(who, asks) => {
                self = self.chooses(*who, asks.then_some(RequestedGranularity::Node));
            }
            Event::Pod(who, at, cpu) => {
                let (node, cpu) = (node(*at), format!("cpu={cpu}, pods=1"));
                let pool = [node.as_str(), DEFAULT_POOL]
                    .into_iter()
                    .find(|pool| self.offer(*who, pool).is_some());
                let Some((pool, offer)) =
                    pool.and_then(|pool| Some((pool, self.offer(*who, pool)?)))
                else {
                    return self;
                };
                let claimed = owner(&format!("mapped-{who}"), *who, pool);
                let is_its = |pod: &&PodUsage| pod.owner.as_ref() == Some(&claimed);
                let used: ResourceList = self
                    .pods
                    .iter()
                    .filter(is_its)
                    .map(|pod| &pod.resources.requests)
                    .sum();
                let pod = PodUsage {
                    node: Some(node.clone()),
                    resources: list(&cpu).into(),
                    owner: Some(claimed.clone()),
                    ..PodUsage::default()
                };
                let here: ResourceList = self
                    .pods
                    .iter()
                    .filter(|pod| pod.node.as_ref() == Some(&node))
                    .map(|pod| &pod.resources.requests)
                    .sum();
                let fits = (used + &list(&cpu))
                    .fits_in(&offer.resource_quota.hard)
                    .is_ok()
                    && (here + &list(&cpu))
                        .fits_in(&self.nodes[*at].1.allocatable)
                        .is_ok()
                    && offer.withdrawal_timestamp.is_none();
                if fits {
                    self.add(pod);
                }
            }
            Event::OwnPod(at, cpu) => {
                let pod = PodUsage {
                    node: Some(node(*at)),
                    resources: list(&format!("cpu={cpu}, pods=1")).into(),
                    ..PodUsage::default()
                };
                self.add(pod);
            }
            Event::EndsPods(who) => {
                let id = cluster(*who).to_string();
                Arc::make_mut(&mut self.pods)
                    .retain(|pod| pod.owner.as_ref().is_none_or(|owner| owner.consumer != id));
            }
            Event::NodeFails(at) => {
                let node = Arc::make_mut(&mut self.nodes[*at].1);
                node.eligible = !node.eligible;
            }
            Event::Seconds(seconds) => {
                let now = self.wall_time.as_second() + seconds;
                self = self.at(now);
            }
        }
        self
    }

    /// What is offered, and used, of a resource by all consumers.
    fn promised(&self, pool: Option<&str>) -> (Quantity, Quantity) {
        let counts = |name: &str| pool.is_none_or(|pool| pool == name);
        let offers = self
            .offers
            .iter()
            .filter(|(key, offer)| counts(&key.name) && offer.spec.withdrawal_timestamp.is_none());
        let offered = offers
            .map(|(_, offer)| offer.spec.resource_quota.hard.get("cpu"))
            .sum();
        let pods = self
            .pods
            .iter()
            .filter(|pod| pod.owner.as_ref().is_some_and(|owner| counts(&owner.pool)));
        (
            offered,
            pods.map(|pod| pod.resources.requests.get("cpu")).sum(),
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_node_and_no_cluster_is_promised_twice_whoever_chooses(events in vec(event(), 1..40)) {
        let nodes = (0..NODES).fold(milan(), |snapshot, number| {
            snapshot.node(&format!("n{number:02}"), &format!("cpu={}, pods=5", number % 5 + 1), &[])
        });
        let mut snapshot = ProviderSnapshot { nodes: nodes.nodes[1..].to_vec(), ..nodes };
        let policy = json!({ "offerUpdateThresholdPercentage": 0 });
        snapshot = (1..4).fold(snapshot.under(&choosing(&policy)), |snapshot, who| snapshot.asks(who, "")).at_rest();
        for event in &events {
            snapshot = snapshot.apply_choice(event).at_rest();
            let pods_on = |name: &str, own: bool| -> Quantity {
                let here = snapshot.pods.iter().filter(|pod| pod.node.as_deref() == Some(name) && (!own || pod.owner.is_none()));
                here.map(|pod| pod.resources.requests.get("cpu")).sum()
            };
            let mut free = Quantity::ZERO;
            for (key, node) in snapshot.nodes.iter().filter(|(_, node)| node.eligible) {
                free += node.allocatable.get("cpu").saturating_sub(pods_on(&key.name, true));
                let (offered, used) = snapshot.promised(Some(&key.name));
                let left = node.allocatable.get("cpu").saturating_sub(pods_on(&key.name, false));
                prop_assert!(offered <= left + used, "{event:?}: node {} offers {offered}, {used} used, {left} left", key.name);
            }
            let (offered, used) = snapshot.promised(None);
            prop_assert!(offered <= free.max(used), "{event:?}: {offered} offered, {free} free, {used} used");
            for who in 1..4 {
                let of_it = snapshot.offers.iter().filter(|(key, _)| key.namespace == tenant_namespace(&cluster(who)));
                prop_assert!(of_it.count() <= MAX_POOLS);
            }
        }
    }
}
