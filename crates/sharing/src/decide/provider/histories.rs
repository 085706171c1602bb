//! Random histories of a provider: after each event, the offers promise only what exists.

use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::{
    tests::{ROME, TURIN, milan, owner, policy},
    *,
};
use liqo_api::Key;
use liqo_api::Quantity;

use crate::{
    decide::{
        free_capacity,
        reduce::{LocalNode, PodUsage},
        snapshot::is_refused,
    },
    tests::{cluster, list},
};

const VENICE: u8 = 5;
const CONSUMERS: [u8; 3] = [ROME, TURIN, VENICE];

#[derive(Clone, Debug)]
enum Event {
    /// A consumer requests at most this many cores, or withdraws its request.
    Requests(usize, Option<u8>),
    /// A consumer creates a pod with this many cores, if it fits into the offer: on one of the
    /// nodes, or waiting for one.
    PodOf(usize, u8, Option<u8>),
    /// All pods of a consumer end.
    EndsPods(usize),
    /// This cluster creates a pod of its own with this many cores.
    OwnPod(u8),
    /// All own pods of this cluster end.
    EndsOwn,
    /// A node with this many cores joins, with a GPU or without, or the last one leaves.
    Node(Option<(u8, bool)>),
    /// A consumer refuses its offers, or accepts them again.
    Refuses(usize, bool),
    /// Another set of policies applies.
    Policies(u8),
    /// Time passes.
    Seconds(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..CONSUMERS.len();
    prop_oneof![
        (who.clone(), proptest::option::of(0..20_u8))
            .prop_map(|(who, cpu)| Event::Requests(who, cpu)),
        (who.clone(), 1..6_u8, any::<u8>()).prop_map(|(who, cpu, node)| Event::PodOf(
            who,
            cpu,
            Some(node)
        )),
        (who.clone(), 1..6_u8).prop_map(|(who, cpu)| Event::PodOf(who, cpu, None)),
        who.clone().prop_map(Event::EndsPods),
        (who, any::<bool>()).prop_map(|(who, refuses)| Event::Refuses(who, refuses)),
        (1..8_u8).prop_map(Event::OwnPod),
        Just(Event::EndsOwn),
        proptest::option::of((1..16_u8, any::<bool>())).prop_map(Event::Node),
        (0..5_u8).prop_map(Event::Policies),
        (0..600_u16).prop_map(Event::Seconds),
    ]
}

/// A set of policies. None has a threshold, so every promise is exact.
fn policies(which: u8) -> Vec<Arc<PeeringPolicy>> {
    let everybody = |provide: serde_json::Value| json!({ "provide": provide });
    let rome = |provide: serde_json::Value| json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": provide });
    let prices = json!({ "currency": "EUR", "rates": { "cpu": "0.04" },
        "schedule": [{ "from": "00:05", "to": "00:20", "percentage": 50 }],
        "utilization": [{ "above": 50, "percentage": 150 }, { "above": 80, "percentage": 200 }] });
    let plain = everybody(
        json!({ "percentage": 80, "offerUpdateThresholdPercentage": 0, "prices": prices }),
    );
    match which {
        0 => vec![policy("default", 0, plain)],
        1 => vec![
            policy("default", 0, plain),
            policy(
                "rome",
                1,
                rome(
                    json!({ "percentage": 50, "weight": 3, "caps": { "cpu": "4" }, "offerUpdateThresholdPercentage": 0 }),
                ),
            ),
        ],
        2 => vec![
            policy("default", 0, plain),
            policy(
                "rome",
                1,
                rome(
                    json!({ "source": { "fixed": { "resources": { "cpu": "5" } } }, "offerUpdateThresholdPercentage": 0 }),
                ),
            ),
        ],
        3 => vec![
            policy("default", 0, plain),
            policy(
                "rome",
                1,
                rome(
                    json!({ "percentage": 100, "offerUpdateThresholdPercentage": 0,
                    "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } }),
                ),
            ),
        ],
        _ => vec![policy(
            "default",
            0,
            everybody(
                json!({ "percentage": 100, "overcommitPercentage": 150, "offerUpdateThresholdPercentage": 0, "prices": prices }),
            ),
        )],
    }
}

fn is_of(pod: &PodUsage, who: usize) -> bool {
    pod.owner
        .as_ref()
        .is_some_and(|owner| owner.consumer == cluster(CONSUMERS[who]).as_str())
}

impl ProviderSnapshot {
    fn apply(&mut self, event: &Event, number: usize) {
        let name = |who: usize| format!("mapped-{}", CONSUMERS[who]);
        match event {
            Event::Requests(who, requested) => {
                let namespace = liqo_api::tenant_namespace(&cluster(CONSUMERS[*who]));
                self.requests.retain(|(key, _)| key.namespace != namespace);
                if let Some(cpu) = requested {
                    *self = self.clone().request(CONSUMERS[*who], &format!("cpu={cpu}"));
                }
            }
            Event::PodOf(who, cpu, node) => {
                let hard = self.offered(*who);
                let used: Quantity = self.used(*who) + Quantity::from_units(i64::from(*cpu));
                if used <= hard {
                    let node = node.and_then(|node| {
                        self.nodes.get(usize::from(node) % self.nodes.len().max(1))
                    });
                    let node = node.map(|(key, _)| key.name.clone());
                    let owner = owner(&name(*who), CONSUMERS[*who], liqo_api::DEFAULT_POOL);
                    let resources = list(&format!("cpu={cpu}")).into();
                    self.add(PodUsage {
                        waits_for_node: node.is_none(),
                        node,
                        resources,
                        owner: Some(owner),
                        ..PodUsage::default()
                    });
                }
            }
            Event::EndsPods(who) => Arc::make_mut(&mut self.pods).retain(|pod| !is_of(pod, *who)),
            Event::OwnPod(cpu) => *self = self.clone().pod("default", None, &format!("cpu={cpu}")),
            Event::EndsOwn => Arc::make_mut(&mut self.pods).retain(|pod| pod.owner.is_some()),
            Event::Node(Some((cpu, gpu))) => {
                let labels = gpu
                    .then(|| ("gpu".to_owned(), "yes".to_owned()))
                    .into_iter()
                    .collect();
                let node = LocalNode {
                    eligible: true,
                    allocatable: list(&format!("cpu={cpu}")),
                    labels,
                    upstream: None,
                };
                self.nodes
                    .push((Key::new("", format!("node-{number}")), node.into()));
            }
            Event::Node(None) => drop(self.nodes.pop()),
            Event::Refuses(who, refuses) => self.answer(CONSUMERS[*who], *refuses),
            Event::Policies(which) => self.policies = policies(*which),
            Event::Seconds(seconds) => {
                self.wall_time = self
                    .wall_time
                    .saturating_add(SignedDuration::from_secs((*seconds).into()))
                    .unwrap();
            }
        }
    }

    fn offered(&self, who: usize) -> Quantity {
        let namespace = liqo_api::tenant_namespace(&cluster(CONSUMERS[who]));
        let offers = self
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == namespace);
        offers
            .map(|(_, offer)| offer.spec.resource_quota.hard.get("cpu"))
            .sum()
    }

    /// Whether all consumers of each policy see the same prices.
    fn has_equal_prices(&self) -> bool {
        let mut of_policies: BTreeMap<&str, &Option<liqo_api::PriceList>> = BTreeMap::new();
        CONSUMERS.iter().all(|consumer| {
            let Some(policy) = self.policy(&cluster(*consumer)) else {
                return true;
            };
            let namespace = liqo_api::tenant_namespace(&cluster(*consumer));
            let mut offers = self
                .offers
                .iter()
                .filter(|(key, _)| key.namespace == namespace);
            offers.all(|(_, offer)| {
                let name = policy.metadata.name.as_deref().unwrap_or_default();
                *of_policies.entry(name).or_insert(&offer.spec.prices) == &offer.spec.prices
            })
        })
    }

    fn refuses(&self, who: usize) -> bool {
        let namespace = liqo_api::tenant_namespace(&cluster(CONSUMERS[who]));
        self.offers
            .iter()
            .any(|(key, offer)| key.namespace == namespace && is_refused(offer))
    }

    fn used(&self, who: usize) -> Quantity {
        self.pods
            .iter()
            .filter(|pod| is_of(pod, who))
            .map(|pod| pod.resources.requests.get("cpu"))
            .sum()
    }

    /// The most that may be promised: the free resources with the overcommitment.
    fn max_promised(&self) -> Quantity {
        let own = self
            .pods
            .iter()
            .filter(|pod| pod.owner.is_none())
            .cloned()
            .collect();
        let nodes: Vec<(&str, &LocalNode)> = self
            .nodes
            .iter()
            .map(|(key, node)| (key.name.as_str(), node.as_ref()))
            .collect();
        let overcommit = self
            .policies
            .iter()
            .map(|policy| policy.spec.provide.overcommit_percentage)
            .max()
            .unwrap_or(100);
        free_capacity::of_all(&nodes, &own)
            .percentage(overcommit.into())
            .get("cpu")
    }

    /// CPU that pods of consumers use beyond what exists, if there are two pools: on nodes that own
    /// pods fill, and rome's without a node while its pool has none. The pods keep it until they
    /// end, for which they get a notice if their pool has other nodes.
    fn displaced(&self) -> Quantity {
        if self
            .policies
            .iter()
            .all(|policy| policy.spec.provide.source.nodes.is_none())
        {
            return Quantity::ZERO;
        }
        let sum = |counts: &dyn Fn(&PodUsage) -> bool| -> Quantity {
            self.pods
                .iter()
                .filter(|pod| counts(pod))
                .map(|pod| pod.resources.requests.get("cpu"))
                .sum()
        };
        let has_gpu = |node: &LocalNode| node.labels.contains_key("gpu");
        let overfull = self
            .nodes
            .iter()
            .filter(|(_, node)| !has_gpu(node))
            .map(|(name, node)| {
                let here = |pod: &PodUsage| pod.node.as_ref() == Some(&name.name);
                let (own, lent) = (
                    sum(&|pod| here(pod) && pod.owner.is_none()),
                    sum(&|pod| here(pod) && pod.owner.is_some()),
                );
                (own + lent)
                    .saturating_sub(node.allocatable.get("cpu"))
                    .min(lent)
            });
        let nowhere = |pod: &PodUsage| {
            self.nodes
                .iter()
                .all(|(name, node)| pod.node.as_ref() != Some(&name.name) && !has_gpu(node))
        };
        overfull.sum::<Quantity>() + sum(&|pod| is_of(pod, 0) && nowhere(pod))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn offers_promise_only_what_exists_after_every_event(events in vec(event(), 1..40)) {
        let mut snapshot = CONSUMERS.iter().fold(milan(), |snapshot, &consumer| snapshot.tenant(consumer));
        snapshot.policies = policies(0);
        let now = Instant::now();
        for (number, event) in events.iter().enumerate() {
            snapshot.apply(event, number);
            // Growing offers wait for shrinking ones, so there are a few rounds until nothing
            // changes.
            let mut rounds = 0;
            loop {
                let plan = decide_offers(&snapshot, now);
                if plan.writes.is_empty() && plan.deletions.is_empty() {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 6, "it does not settle after {event:?}: {:?}", plan.writes);
                snapshot = snapshot.after(plan);
            }
            let offered: Quantity = (0..CONSUMERS.len()).map(|who| snapshot.offered(who)).sum();
            let used: Quantity = (0..CONSUMERS.len()).map(|who| snapshot.used(who)).sum();
            prop_assert!(offered <= snapshot.max_promised().max(used) + snapshot.displaced(), "{offered} offered, {} free, {used} used", snapshot.max_promised());
            prop_assert!(snapshot.has_equal_prices(), "{:?}", snapshot.offers);
            for (who, consumer) in CONSUMERS.iter().enumerate() {
                let due = snapshot.offers.iter().any(|(key, offer)| {
                    key.namespace == liqo_api::tenant_namespace(&cluster(*consumer))
                        && offer.spec.reclaim_timestamp.as_ref().is_none_or(|time| time.0 > snapshot.wall_time)
                });
                prop_assert!(!due || snapshot.offered(who) >= snapshot.used(who), "cut below use without a notice");
                prop_assert!(!snapshot.refuses(who) || snapshot.offered(who) <= snapshot.used(who), "a refused offer keeps more than is used");
            }
        }
    }
}
