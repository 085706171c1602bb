//! Random histories of a provider: whatever happens, what is offered is true.

use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::{
    tests::{ROME, TURIN, claim, milan, policy},
    *,
};
use liqo_api::Quantity;
use liqo_kit::Key;

use crate::{
    decide::{
        reduce::{LocalNode, PodUse},
        source,
    },
    tests::{cluster, list},
};

const VENICE: u8 = 5;
const CONSUMERS: [u8; 3] = [ROME, TURIN, VENICE];

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A consumer asks for at most so many cores; or no longer asks.
    Asks(usize, Option<u8>),
    /// A pod of a consumer is created, if its offer has room for it: on one of the nodes, or it waits for one.
    PodOf(usize, u8, Option<u8>),
    /// The pods of a consumer end.
    EndsPods(usize),
    /// A pod of this cluster's own is created.
    OwnPod(u8),
    /// This cluster's own pods end.
    EndsOwn,
    /// A node of so many cores joins, with a GPU or without; or the last one leaves.
    Node(Option<(u8, bool)>),
    /// A consumer refuses what it is offered, or wants it after all.
    Refuses(usize, bool),
    /// Other policies hold.
    Policies(u8),
    /// Time passes.
    Seconds(u16),
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..CONSUMERS.len();
    prop_oneof![
        (who.clone(), proptest::option::of(0..20_u8)).prop_map(|(who, cpu)| Event::Asks(who, cpu)),
        (who.clone(), 1..6_u8, any::<u8>()).prop_map(|(who, cpu, node)| Event::PodOf(who, cpu, Some(node))),
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

/// Sets of policies. None has a threshold, so that every promise is exact.
fn policies(which: u8) -> Vec<Arc<PeeringPolicy>> {
    let everybody = |provide: serde_json::Value| json!({ "provide": provide });
    let rome = |provide: serde_json::Value| json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": provide });
    let plain = everybody(json!({ "percentage": 80, "offerUpdateThresholdPercentage": 0 }));
    match which {
        0 => vec![policy("default", 0, plain)],
        1 => vec![
            policy("default", 0, plain),
            policy(
                "rome",
                1,
                rome(json!({ "percentage": 50, "weight": 3, "caps": { "cpu": "4" }, "offerUpdateThresholdPercentage": 0 })),
            ),
        ],
        2 => vec![
            policy("default", 0, plain),
            policy(
                "rome",
                1,
                rome(json!({ "source": { "fixed": { "resources": { "cpu": "5" } } }, "offerUpdateThresholdPercentage": 0 })),
            ),
        ],
        3 => vec![
            policy("default", 0, plain),
            policy(
                "rome",
                1,
                rome(json!({ "percentage": 100, "offerUpdateThresholdPercentage": 0,
                    "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } })),
            ),
        ],
        _ => vec![policy(
            "default",
            0,
            everybody(json!({ "percentage": 100, "overcommitPercentage": 150, "offerUpdateThresholdPercentage": 0 })),
        )],
    }
}

fn is_of(pod: &PodUse, who: usize) -> bool {
    pod.claim.as_ref().is_some_and(|claim| claim.consumer == cluster(CONSUMERS[who]).as_str())
}

impl Picture {
    fn happens(&mut self, event: &Event, number: usize) {
        let name = |who: usize| format!("mapped-{}", CONSUMERS[who]);
        match event {
            Event::Asks(who, asked) => {
                let namespace = liqo_api::tenant_namespace(&cluster(CONSUMERS[*who]));
                self.requests.retain(|(key, _)| key.namespace != namespace);
                if let Some(cpu) = asked {
                    *self = self.clone().request(CONSUMERS[*who], &format!("cpu={cpu}"));
                }
            }
            Event::PodOf(who, cpu, node) => {
                let hard = self.offered(*who);
                let used: Quantity = self.used(*who) + Quantity::from_units(i64::from(*cpu));
                if used <= hard {
                    let node = node.and_then(|node| self.nodes.get(usize::from(node) % self.nodes.len().max(1)));
                    let node = node.map(|(key, _)| key.name.clone());
                    let claim = claim(&name(*who), CONSUMERS[*who], liqo_api::DEFAULT_POOL);
                    let held = list(&format!("cpu={cpu}")).into();
                    self.add(PodUse { waits: node.is_none(), node, held, claim: Some(claim) });
                }
            }
            Event::EndsPods(who) => Arc::make_mut(&mut self.pods).retain(|pod| !is_of(pod, *who)),
            Event::OwnPod(cpu) => *self = self.clone().pod("default", None, &format!("cpu={cpu}")),
            Event::EndsOwn => Arc::make_mut(&mut self.pods).retain(|pod| pod.claim.is_some()),
            Event::Node(Some((cpu, gpu))) => {
                let labels = gpu.then(|| ("gpu".to_owned(), "yes".to_owned())).into_iter().collect();
                let node = LocalNode { eligible: true, allocatable: list(&format!("cpu={cpu}")), labels };
                self.nodes.push((Key::new("", format!("node-{number}")), node.into()));
            }
            Event::Node(None) => drop(self.nodes.pop()),
            Event::Refuses(who, refuses) => self.answer(CONSUMERS[*who], *refuses),
            Event::Policies(which) => self.policies = policies(*which),
            Event::Seconds(seconds) => {
                self.today = self.today.saturating_add(SignedDuration::from_secs((*seconds).into())).unwrap();
            }
        }
    }

    fn offered(&self, who: usize) -> Quantity {
        let namespace = liqo_api::tenant_namespace(&cluster(CONSUMERS[who]));
        let offers = self.offers.iter().filter(|(key, _)| key.namespace == namespace);
        offers.map(|(_, offer)| offer.spec.resource_quota.hard.get("cpu")).sum()
    }

    fn refuses(&self, who: usize) -> bool {
        let namespace = liqo_api::tenant_namespace(&cluster(CONSUMERS[who]));
        self.offers.iter().any(|(key, offer)| key.namespace == namespace && is_refused(offer))
    }

    fn used(&self, who: usize) -> Quantity {
        self.pods.iter().filter(|pod| is_of(pod, who)).map(|pod| pod.held.requests.get("cpu")).sum()
    }

    /// The most that may be promised: what is free of own pods, with the overcommitment.
    fn bound(&self) -> Quantity {
        let own = self.pods.iter().filter(|pod| pod.claim.is_none()).cloned().collect();
        let nodes: Vec<(&str, &LocalNode)> = self.nodes.iter().map(|(key, node)| (key.name.as_str(), node.as_ref())).collect();
        let overcommit = self.policies.iter().map(|policy| policy.spec.provide.overcommit_percentage).max().unwrap_or(100);
        source::of_all(&nodes, &own).percentage(overcommit.into()).get("cpu")
    }

    /// What rome's pods use, beyond what there is, on nodes that are not in its pool, or without a node while its pool has none:
    /// it is theirs as long as they are, and was nobody else's to have.
    fn displaced(&self) -> Quantity {
        if self.policies.iter().all(|policy| policy.spec.provide.source.nodes.is_none()) {
            return Quantity::ZERO;
        }
        let sum = |counts: &dyn Fn(&PodUse) -> bool| -> Quantity {
            self.pods.iter().filter(|pod| counts(pod)).map(|pod| pod.held.requests.get("cpu")).sum()
        };
        let has_gpu = |node: &LocalNode| node.labels.contains_key("gpu");
        let overfull = self.nodes.iter().filter(|(_, node)| !has_gpu(node)).map(|(name, node)| {
            let here = |pod: &PodUse| pod.node.as_ref() == Some(&name.name);
            let (own, romes) = (sum(&|pod| here(pod) && pod.claim.is_none()), sum(&|pod| here(pod) && is_of(pod, 0)));
            (own + romes).saturating_sub(node.allocatable.get("cpu")).min(romes)
        });
        let nowhere =
            |pod: &PodUse| self.nodes.iter().all(|(name, node)| pod.node.as_ref() != Some(&name.name) && !has_gpu(node));
        overfull.sum::<Quantity>() + sum(&|pod| is_of(pod, 0) && nowhere(pod))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_offered_is_true_after_every_step(events in vec(event(), 1..40)) {
        let mut picture = CONSUMERS.iter().fold(milan(), |picture, &consumer| picture.tenant(consumer));
        picture.policies = policies(0);
        let now = Instant::now();
        for (number, event) in events.iter().enumerate() {
            picture.happens(event, number);
            // Offers that grow wait for those that shrink: a few rounds, then nothing is left to do.
            let mut rounds = 0;
            loop {
                let plan = decide(&picture, now);
                if plan.writes.is_empty() && plan.deletions.is_empty() {
                    break;
                }
                rounds += 1;
                prop_assert!(rounds < 6, "it does not settle after {event:?}: {:?}", plan.writes);
                picture = picture.after(plan);
            }
            let offered: Quantity = (0..CONSUMERS.len()).map(|who| picture.offered(who)).sum();
            let used: Quantity = (0..CONSUMERS.len()).map(|who| picture.used(who)).sum();
            prop_assert!(offered <= picture.bound().max(used) + picture.displaced(), "{offered} offered, {} free, {used} used", picture.bound());
            for (who, consumer) in CONSUMERS.iter().enumerate() {
                let due = picture.offers.iter().any(|(key, offer)| {
                    key.namespace == liqo_api::tenant_namespace(&cluster(*consumer))
                        && offer.spec.reclaim_timestamp.as_ref().is_none_or(|time| time.0 > picture.today)
                });
                prop_assert!(!due || picture.offered(who) >= picture.used(who), "cut below use without a notice");
                prop_assert!(!picture.refuses(who) || picture.offered(who) <= picture.used(who), "what is refused is kept");
            }
        }
    }
}
