use std::collections::HashMap;

use liqo_api::{ClusterId, DEFAULT_POOL, PeeringPolicySpec, RESOURCE_REQUEST, ResourceOfferStatus};
use serde_json::{Value, json};

use super::*;
use crate::{
    decide::{
        picture::{OfferWrite, Reading, Written},
        reduce::{Claim, ConsumerNamespace, LocalNode, PodUse, Request},
    },
    tests::{cluster, list, offer_of},
};
use liqo_api::{OfferPhase, ResourceOffer, ResourceOfferSpec, provider_namespace, tenant_namespace};
use liqo_kit::Key;

pub(super) const ROME: u8 = 1;
pub(super) const TURIN: u8 = 2;
const MILAN: u8 = 3;

/// A policy of this priority.
pub(super) fn policy(name: &str, priority: i32, spec: Value) -> Arc<PeeringPolicy> {
    let spec = PeeringPolicySpec { priority, ..serde_json::from_value(spec).unwrap() };
    Arc::new(PeeringPolicy::new(name, spec))
}

/// An offer of the default pool that nothing is special about.
fn plain(hard: &str) -> ResourceOfferSpec {
    offer_of(MILAN, hard)
}

/// Milan with one node of 10 cpu and 10 pods, sharing all of it.
pub(super) fn milan() -> Picture {
    let node = LocalNode { eligible: true, allocatable: list("cpu=10, pods=10"), labels: BTreeMap::new() };
    Picture {
        own: cluster(MILAN),
        policies: vec![policy("default", 0, json!({ "provide": { "percentage": 100 } }))],
        peers: HashMap::new(),
        readings: HashMap::new(),
        cluster_labels: BTreeMap::new(),
        nodes: vec![(Key::new("", "a"), node.into())],
        pods: Arc::default(),
        namespaces: BTreeMap::new(),
        requests: Vec::new(),
        offers: Vec::new(),
        written: HashMap::new(),
        followed: HashMap::new(),
        today: Timestamp::UNIX_EPOCH,
    }
}

impl Picture {
    pub(super) fn tenant(mut self, consumer: u8) -> Self {
        let id = cluster(consumer);
        let uid = format!("tenant-{consumer}");
        let tenant = ConsumerNamespace { uid, consumer: id.clone(), tenant: true, terminating: false };
        let mapped = ConsumerNamespace { uid: format!("mapped-{consumer}"), tenant: false, ..tenant.clone() };
        self.namespaces.insert(tenant_namespace(&id), tenant.into());
        self.namespaces.insert(format!("mapped-{consumer}"), mapped.into());
        self
    }

    pub(super) fn request(mut self, consumer: u8, asked: &str) -> Self {
        let request = Request { resources: Ok(list(asked)), conditions: Vec::new() };
        let key = Key::new(tenant_namespace(&cluster(consumer)), RESOURCE_REQUEST);
        self.requests.push((key, request.into()));
        self
    }

    pub(super) fn asks(self, consumer: u8, asked: &str) -> Self {
        self.tenant(consumer).request(consumer, asked)
    }

    pub(super) fn offers(mut self, consumer: u8, hard: &str) -> Self {
        let spec = plain(hard);
        let mut offer = ResourceOffer::new(DEFAULT_POOL, spec);
        offer.metadata.namespace = Some(tenant_namespace(&cluster(consumer)));
        self.offers.push((Key::of(&offer), offer.into()));
        self
    }

    pub(super) fn pod(mut self, namespace: &str, consumer: Option<u8>, requests: &str) -> Self {
        let claim = consumer.map(|consumer| claim(namespace, consumer, DEFAULT_POOL));
        self.add(PodUse { node: Some("a".to_owned()), held: list(requests).into(), claim, waits: false });
        self
    }

    pub(super) fn add(&mut self, pod: PodUse) {
        Arc::make_mut(&mut self.pods).push(pod);
    }

    pub(super) fn plan(&self) -> Plan {
        decide(self, Instant::now())
    }

    /// Consumer and amounts of each write.
    pub(super) fn writes(&self) -> Vec<(ClusterId, String)> {
        self.plan().writes.into_iter().map(|write| (write.consumer, write.spec.resource_quota.hard.to_string())).collect()
    }
}

pub(super) fn claim(namespace: &str, consumer: u8, pool: &str) -> Claim {
    Claim { namespace: namespace.into(), consumer: cluster(consumer).to_string(), pool: pool.into() }
}

pub(super) fn write(consumer: u8, hard: &str) -> (ClusterId, String) {
    (cluster(consumer), hard.to_owned())
}

#[test]
fn a_request_is_answered_with_an_offer_that_names_its_origin() {
    let mut picture = milan().asks(ROME, "");
    picture.cluster_labels.insert("tier".into(), "gold".into());
    let plan = picture.plan();
    let [offer] = plan.writes.as_slice() else { panic!("{plan:?}") };
    assert_eq!(offer.namespace, tenant_namespace(&cluster(ROME)));
    assert_eq!(offer.spec.cluster_id, cluster(MILAN));
    assert_eq!(offer.spec.path, [cluster(MILAN)]);
    assert_eq!(offer.spec.pool, DEFAULT_POOL);
    assert_eq!(offer.spec.labels, picture.cluster_labels);
    assert_eq!(offer.spec.resource_quota.hard, list("cpu=10, pods=10"));
    assert_eq!(plan.answers[0].wanted.status, Some(true));
    assert_eq!(plan.links[&cluster(ROME)].status, Some(true));
}

#[test]
fn a_settled_cluster_plans_no_write() {
    let plan = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").plan();
    assert_eq!((plan.writes, plan.deletions, plan.wake), (Vec::new(), Vec::new(), None));
}

#[test]
fn a_consumers_own_pods_do_not_shrink_its_offer_but_other_pods_do() {
    let picture = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10");
    assert_eq!(picture.clone().pod("mapped-1", Some(ROME), "cpu=8, pods=8").writes(), []);
    assert_eq!(picture.pod("default", None, "cpu=4, pods=1").writes(), [write(ROME, "cpu=6, pods=9")]);
}

#[test]
fn a_label_is_not_believed_outside_the_consumers_own_mapped_namespaces() {
    let picture = milan().asks(ROME, "").asks(TURIN, "").offers(ROME, "cpu=5, pods=5").offers(TURIN, "cpu=5, pods=5");
    for namespace in ["default", "mapped-2", &tenant_namespace(&cluster(ROME))] {
        let forged = picture.clone().pod(namespace, Some(ROME), "cpu=4, pods=4");
        assert_eq!(forged.writes(), [write(ROME, "cpu=3, pods=3"), write(TURIN, "cpu=3, pods=3")], "{namespace}");
    }
}

#[test]
fn pods_of_a_consumer_that_asks_for_nothing_any_more_still_occupy_their_place() {
    let picture = milan().tenant(TURIN).asks(ROME, "").pod("mapped-2", Some(TURIN), "cpu=4, pods=1");
    assert_eq!(picture.writes(), [write(ROME, "cpu=6, pods=9")]);
}

#[test]
fn pods_of_another_pool_are_not_charged_to_the_default_one() {
    let mut picture = milan().asks(ROME, "");
    let pod = PodUse { node: Some("a".into()), held: list("cpu=4, pods=1").into(), ..PodUse::default() };
    picture.add(PodUse { claim: Some(claim("mapped-1", ROME, "other")), ..pod });
    assert_eq!(picture.writes(), [write(ROME, "cpu=6, pods=9")]);
}

#[test]
fn a_second_consumer_gets_its_share_after_the_first_gave_it_up() {
    let picture = milan().asks(TURIN, "").offers(TURIN, "cpu=10, pods=10").asks(ROME, "");
    assert_eq!(picture.writes(), [write(TURIN, "cpu=5, pods=5"), write(ROME, "cpu=5, pods=5")]);
}

#[test]
fn an_offer_without_a_request_is_deleted() {
    let plan = milan().tenant(ROME).offers(ROME, "cpu=10").plan();
    assert_eq!(plan.deletions, [Key::new(tenant_namespace(&cluster(ROME)), DEFAULT_POOL)]);
    assert!(!plan.links.contains_key(&cluster(ROME)), "it may want the network alone");
}

#[test]
fn offers_that_we_received_are_left_alone() {
    let mut picture = milan();
    let mut offer = ResourceOffer::new(DEFAULT_POOL, plain("cpu=1"));
    offer.metadata.namespace = Some(provider_namespace(&cluster(ROME)));
    picture.offers.push((Key::of(&offer), offer.into()));
    assert_eq!(Plan { policies: Vec::new(), ..picture.plan() }, Plan::default());
}

#[test]
fn a_request_in_a_namespace_that_is_no_tenants_is_not_looked_at() {
    assert_eq!(Plan { policies: Vec::new(), ..milan().request(ROME, "").plan() }, Plan::default());
}

#[test]
fn nothing_is_written_into_a_namespace_that_is_going_away() {
    let mut picture = milan().asks(ROME, "").offers(ROME, "cpu=1");
    let name = tenant_namespace(&cluster(ROME));
    let going = ConsumerNamespace { terminating: true, ..(*picture.namespaces[&name]).clone() };
    picture.namespaces.insert(name, going.into());
    assert_eq!(Plan { policies: Vec::new(), ..picture.plan() }, Plan::default());
}

#[test]
fn without_a_policy_nothing_is_shared_and_the_answer_says_why() {
    let nothing = policy("default", 0, json!({ "provide": { "percentage": 0 } }));
    for (policies, reason) in [(vec![], "NoPolicy"), (vec![nothing], "NothingShared")] {
        let picture = Picture { policies, ..milan().asks(ROME, "") };
        let plan = picture.plan();
        assert_eq!(plan.writes, []);
        assert_eq!(plan.answers[0].wanted.reason, reason);
        assert_eq!(plan.links[&cluster(ROME)].reason, reason);
    }
}

#[test]
fn withdrawing_the_policy_leaves_running_pods_their_place() {
    let picture = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=2, pods=1");
    assert_eq!(
        Picture { policies: vec![policy("default", 0, json!({ "provide": { "percentage": 0 } }))], ..picture }.writes(),
        [write(ROME, "cpu=2, pods=1")]
    );
}

#[test]
fn a_full_cluster_answers_that_nothing_is_free() {
    let plan = milan().asks(ROME, "").pod("default", None, "cpu=10, pods=10").plan();
    assert_eq!(plan.writes, []);
    assert_eq!(plan.answers[0].wanted.reason, "NothingFree");
}

#[test]
fn a_request_that_cannot_be_read_hurts_its_consumer_only() {
    let mut picture = milan().tenant(ROME).asks(TURIN, "");
    let request = Request { resources: Err("no".into()), conditions: Vec::new() };
    picture.requests.push((Key::new(tenant_namespace(&cluster(ROME)), RESOURCE_REQUEST), request.into()));
    assert_eq!(picture.writes(), [write(TURIN, "cpu=10, pods=10")]);
    assert_eq!(picture.plan().links[&cluster(ROME)].reason, "Unreadable");
}

#[test]
fn requests_of_other_names_are_not_looked_at() {
    let mut picture = milan().tenant(ROME);
    let request = Request { resources: Ok(list("")), conditions: Vec::new() };
    picture.requests.push((Key::new(tenant_namespace(&cluster(ROME)), "another"), request.into()));
    assert_eq!(picture.writes(), []);
}

#[test]
fn what_was_just_written_counts_although_the_cache_shows_the_old_offer() {
    let mut picture = milan().asks(ROME, "cpu=5, pods=10").offers(ROME, "cpu=10, pods=10");
    let at = Instant::now();
    picture.written.insert(("tenant-1".into(), DEFAULT_POOL.into()), Written { at, hard: list("cpu=5, pods=10") });
    let plan = decide(&picture, at);
    assert_eq!((plan.writes, plan.wake), (Vec::new(), None));
}

#[test]
fn a_consumer_that_comes_back_in_a_new_namespace_is_answered_at_once() {
    let mut picture = milan().asks(ROME, "");
    let at = Instant::now();
    picture.written.insert(("a former namespace".into(), DEFAULT_POOL.into()), Written { at, hard: list("cpu=10, pods=10") });
    assert_eq!(decide(&picture, at).writes.len(), 1);
}

#[test]
fn a_changed_cluster_label_is_published() {
    let mut picture = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10");
    picture.cluster_labels.insert("tier".into(), "gold".into());
    assert_eq!(picture.plan().writes[0].spec.labels, picture.cluster_labels);
}

impl Picture {
    /// With these policies instead of the one for everybody.
    pub(super) fn under(self, policies: &[(&str, i32, Value)]) -> Self {
        let policies = policies.iter().map(|(name, priority, spec)| policy(name, *priority, spec.clone())).collect();
        Self { policies, ..self }
    }

    /// Consumer, pool and amounts of each write.
    fn pools(&self) -> Vec<(ClusterId, String, String)> {
        let text = |write: OfferWrite| (write.consumer, write.spec.pool, write.spec.resource_quota.hard.to_string());
        self.plan().writes.into_iter().map(text).collect()
    }

    /// The picture after what was planned was done.
    pub(super) fn after(mut self, plan: Plan) -> Self {
        for key in plan.deletions {
            self.offers.retain(|(standing, _)| *standing != key);
        }
        for write in plan.writes {
            let mut offer = ResourceOffer::new(&write.spec.pool.clone(), write.spec);
            offer.metadata.namespace = Some(write.namespace);
            let key = Key::of(&offer);
            if let Some(at) = self.offers.iter().position(|(standing, _)| *standing == key) {
                offer.status = self.offers.remove(at).1.status.clone();
            }
            self.offers.push((key, offer.into()));
        }
        self.followed = plan.followed;
        self
    }

    /// The picture after everything that is planned now was done.
    fn settled(self) -> Self {
        let plan = self.plan();
        self.after(plan)
    }

    /// A consumer answers all its offers.
    pub(super) fn answer(&mut self, consumer: u8, refuses: bool) {
        let phase = if refuses { OfferPhase::Refused } else { OfferPhase::Accepted };
        let namespace = tenant_namespace(&cluster(consumer));
        for (_, offer) in self.offers.iter_mut().filter(|(key, _)| key.namespace == namespace) {
            Arc::make_mut(offer).status = Some(ResourceOfferStatus { phase, message: None });
        }
    }

    fn node(mut self, name: &str, allocatable: &str, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let node = LocalNode { eligible: true, allocatable: list(allocatable), labels };
        self.nodes.push((Key::new("", name), node.into()));
        self
    }

    pub(super) fn at(self, seconds: i64) -> Self {
        Self { today: Timestamp::from_second(seconds).unwrap(), ..self }
    }

    fn offer(&self, consumer: u8, pool: &str) -> Option<ResourceOfferSpec> {
        let key = Key::new(tenant_namespace(&cluster(consumer)), pool);
        self.offers.iter().find(|(standing, _)| *standing == key).map(|(_, offer)| offer.spec.clone())
    }
}

fn rome_only(provide: &Value) -> Value {
    json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": provide })
}

#[test]
fn two_peers_under_different_policies_get_different_offers() {
    let policies =
        [("default", 0, json!({ "provide": { "percentage": 20 } })), ("partners", 10, rome_only(&json!({ "percentage": 40 })))];
    let picture = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    assert_eq!(picture.writes(), [write(ROME, "cpu=4, pods=4"), write(TURIN, "cpu=2, pods=2")]);
    let picture = milan().asks(ROME, "").asks(TURIN, "").under(&policies[1..]);
    assert_eq!(picture.writes(), [write(ROME, "cpu=4, pods=4")]);
    assert_eq!(picture.plan().links[&cluster(TURIN)].reason, "NoPolicy");
}

#[test]
fn policies_that_together_share_more_than_there_is_share_it_fairly() {
    let policies =
        [("default", 0, json!({ "provide": { "percentage": 100 } })), ("partners", 1, rome_only(&json!({ "percentage": 80 })))];
    let picture = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    assert_eq!(picture.writes(), [write(ROME, "cpu=5, pods=5"), write(TURIN, "cpu=5, pods=5")]);
}

#[test]
fn caps_bound_what_each_peer_gets_and_can_keep_a_resource_from_it() {
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 100, "caps": { "nvidia.com/gpu": "0" } } })),
        ("gpus", 1, rome_only(&json!({ "percentage": 100, "caps": { "cpu": "1" } }))),
    ];
    let picture = milan().node("g", "cpu=0, pods=0, nvidia.com/gpu=2", &[]).asks(ROME, "").asks(TURIN, "").under(&policies);
    let expected = [write(ROME, "cpu=1, nvidia.com/gpu=2, pods=5"), write(TURIN, "cpu=9, nvidia.com/gpu=0, pods=5")];
    assert_eq!(picture.writes(), expected);
}

#[test]
fn weights_and_overcommitment_of_a_policy_count() {
    let policies = [
        ("default", 0, json!({ "provide": { "percentage": 100 } })),
        ("heavy", 1, rome_only(&json!({ "percentage": 100, "weight": 4 }))),
    ];
    let picture = milan().asks(ROME, "").asks(TURIN, "").under(&policies);
    assert_eq!(picture.writes(), [write(ROME, "cpu=8, pods=8"), write(TURIN, "cpu=2, pods=2")]);
    let twice = [("default", 0, json!({ "provide": { "percentage": 100, "overcommitPercentage": 200 } }))];
    assert_eq!(milan().asks(ROME, "").under(&twice).writes(), [write(ROME, "cpu=20, pods=20")]);
}

#[test]
fn limits_are_charged_where_the_policy_says_so() {
    let spec = json!({ "nodeName": "a", "containers": [{ "name": "c",
        "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": "8" } } }] });
    let labels = json!({ "liqo.io/consumer-id": cluster(ROME), "liqo.io/pool": DEFAULT_POOL });
    let pod = json!({ "metadata": { "name": "p", "namespace": "mapped-1", "labels": labels }, "spec": spec });
    let pod = crate::decide::reduce::pod(serde_json::from_value(pod).unwrap()).unwrap();
    let mut picture = milan().asks(ROME, "").asks(TURIN, "");
    picture.add(pod);
    let writes = |charge: &str| {
        let policy = json!({ "provide": { "percentage": 100, "usage": { "charge": charge } } });
        picture.clone().under(&[("default", 0, policy)]).writes()
    };
    assert_eq!(writes("Requests"), [write(ROME, "cpu=5, pods=5"), write(TURIN, "cpu=5, pods=5")]);
    assert_eq!(writes("Limits"), [write(ROME, "cpu=8, pods=5"), write(TURIN, "cpu=2, pods=5")]);
}

#[test]
fn fixed_amounts_come_first_and_are_never_more_than_there_is() {
    let fixed = |cpu: &str| rome_only(&json!({ "source": { "fixed": { "resources": { "cpu": cpu, "pods": "4" } } } }));
    let under = |cpu: &str| [("default", 0, json!({ "provide": { "percentage": 100 } })), ("rome", 1, fixed(cpu))];
    let picture = milan().asks(ROME, "").asks(TURIN, "");
    assert_eq!(picture.clone().under(&under("7")).writes(), [write(ROME, "cpu=7, pods=4"), write(TURIN, "cpu=3, pods=6")]);
    assert_eq!(picture.under(&under("70")).writes(), [write(ROME, "cpu=10, pods=4"), write(TURIN, "cpu=0, pods=6")]);
}

#[test]
fn nodes_that_two_policies_lend_are_not_lent_twice() {
    let gpus = json!({ "percentage": 100, "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } });
    let policies = [("default", 0, json!({ "provide": { "percentage": 100 } })), ("gpus", 1, rome_only(&gpus))];
    let nodes = milan().node("g", "cpu=6, nvidia.com/gpu=1", &[("gpu", "yes")]);
    let picture = nodes.asks(ROME, "").asks(TURIN, "").under(&policies);
    let expected = [write(ROME, "cpu=3, nvidia.com/gpu=1"), write(TURIN, "cpu=13, nvidia.com/gpu=0, pods=10")];
    assert_eq!(picture.writes(), expected);
    let specs: Vec<_> = picture.plan().writes.into_iter().map(|write| write.spec.node_selector.is_some()).collect();
    assert_eq!(specs, [true, false]);
}

/// Everything is for everybody, and rome has the nodes with a GPU only: one of 6 cpu beside milan's of 10.
fn gpus_for_rome() -> Picture {
    let gpus = json!({ "percentage": 100, "source": { "nodes": { "selectors": [{ "matchLabels": { "gpu": "yes" } }] } } });
    let policies = [("default", 0, json!({ "provide": { "percentage": 100 } })), ("gpus", 1, rome_only(&gpus))];
    milan().node("g", "cpu=6", &[("gpu", "yes")]).asks(ROME, "").asks(TURIN, "").under(&policies)
}

/// A pod of turin's on a node, or without one.
fn of_turin(node: Option<&str>, requests: &str) -> PodUse {
    let claim = Some(claim("mapped-2", TURIN, DEFAULT_POOL));
    PodUse { node: node.map(str::to_owned), held: list(requests).into(), claim, waits: node.is_none() }
}

#[test]
fn pods_that_wait_for_a_node_move_no_offer_as_long_as_they_fit_into_their_own() {
    let mut picture = gpus_for_rome();
    let idle = [write(ROME, "cpu=3"), write(TURIN, "cpu=13, pods=10")];
    assert_eq!(picture.writes(), idle);
    picture.add(of_turin(None, "cpu=13, pods=1"));
    assert_eq!(picture.writes(), idle);
    picture.pods = Arc::default();
    picture.add(of_turin(Some("a"), "cpu=9, pods=1"));
    picture.add(of_turin(None, "cpu=4, pods=1"));
    assert_eq!(picture.writes(), idle);
}

#[test]
fn who_uses_more_than_its_share_of_some_nodes_gets_less_of_the_others() {
    let mut picture = gpus_for_rome();
    picture.add(of_turin(Some("g"), "cpu=5"));
    assert_eq!(picture.writes(), [write(ROME, "cpu=1"), write(TURIN, "cpu=13, pods=10")]);
    // Where another can make use of what it gives up, everybody gets its share, wherever the pods of one run.
    let mut picture = gpus_for_rome().asks(5, "");
    let shares = |picture: &Picture| picture.writes().into_iter().map(|(_, hard)| hard).collect::<Vec<_>>();
    let fair = ["cpu=2", "cpu=7, pods=5", "cpu=7, pods=5"];
    assert_eq!(shares(&picture), fair);
    picture.add(of_turin(Some("g"), "cpu=4"));
    assert_eq!(shares(&picture), fair);
}

#[test]
fn what_a_consumer_refuses_goes_to_the_others_until_it_wants_it_after_all() {
    let mut picture = milan().asks(ROME, "").asks(TURIN, "").pod("mapped-1", Some(ROME), "cpu=2, pods=2").settled();
    picture.answer(ROME, true);
    assert_eq!(picture.writes(), [write(ROME, "cpu=2, pods=2"), write(TURIN, "cpu=8, pods=8")]);
    let mut picture = picture.settled();
    assert_eq!(picture.writes(), []);
    // When its last pod is gone, it keeps nothing.
    let unused = Picture { pods: Arc::default(), ..picture.clone() };
    assert_eq!(unused.writes(), [write(ROME, "cpu=0, pods=0"), write(TURIN, "cpu=10, pods=10")]);
    picture.answer(ROME, false);
    assert_eq!(picture.writes(), [write(TURIN, "cpu=5, pods=5"), write(ROME, "cpu=5, pods=5")]);
}

fn by_zone() -> [(&'static str, i32, Value); 1] {
    [("default", 0, json!({ "provide": { "percentage": 100, "granularity": { "by": "NodeLabel", "label": "zone" } } }))]
}

/// A pod of rome's in a pool.
fn of_pool(pool: &str, node: &str, requests: &str) -> PodUse {
    PodUse { node: Some(node.into()), held: list(requests).into(), claim: Some(claim("mapped-1", ROME, pool)), waits: false }
}

#[test]
fn a_group_of_nodes_is_a_pool_and_its_pods_are_charged_to_it() {
    let nodes = milan().node("b", "cpu=4", &[("zone", "east")]).node("c", "cpu=8", &[("zone", "west")]);
    let mut picture = nodes.under(&by_zone()).asks(ROME, "");
    let offer = |pool: &str, hard: &str| (cluster(ROME), pool.to_owned(), hard.to_owned());
    assert_eq!(picture.pools(), [offer("east", "cpu=4"), offer("west", "cpu=8")]);
    picture.add(of_pool("west", "c", "cpu=6"));
    assert_eq!(picture.pools(), [offer("east", "cpu=4"), offer("west", "cpu=8")]);
}

#[test]
fn a_pool_that_vanishes_is_taken_back_with_notice() {
    let mut picture = milan().node("b", "cpu=4", &[("zone", "east")]).under(&by_zone()).asks(ROME, "").settled();
    assert!(picture.offer(ROME, "east").is_some());
    picture.nodes.retain(|(key, _)| key.name != "b");
    picture.add(of_pool("east", "b", "cpu=1"));
    let picture = picture.at(1000).settled();
    let end = picture.offer(ROME, "east").unwrap().withdrawal_timestamp.unwrap();
    assert_eq!(end.0.as_second(), 1300);
    let plan = picture.plan();
    assert_eq!((plan.writes, plan.deletions, plan.wake), (vec![], vec![], Some(Duration::from_secs(300))));
    // What nobody uses any more need not wait.
    let unused = Picture { pods: Arc::default(), ..picture.clone() };
    assert_eq!(unused.plan().deletions.len(), 1);
    assert_eq!(picture.clone().at(1300).plan().deletions.len(), 1);
    // A pool that comes back is offered again.
    let back = picture.node("b", "cpu=4", &[("zone", "east")]).settled();
    assert_eq!(back.offer(ROME, "east").unwrap().withdrawal_timestamp, None);
}

#[test]
fn the_notice_of_a_policy_that_is_gone_is_kept() {
    let policies = [("default", 0, json!({ "provide": { "percentage": 100, "noticeSeconds": 3600 } }))];
    let picture = milan().asks(ROME, "").under(&policies).pod("mapped-1", Some(ROME), "cpu=2, pods=1").settled().at(1000);
    assert_eq!(picture.offer(ROME, "default").unwrap().notice_seconds, Some(3600));
    let end = |picture: Picture| picture.settled().offer(ROME, "default").unwrap().withdrawal_timestamp.unwrap().0.as_second();
    assert_eq!(end(picture.clone().under(&[])), 4600);
    // Where another policy holds, its notice counts.
    let by_zone = json!({ "provide": { "noticeSeconds": 60, "granularity": { "by": "NodeLabel", "label": "zone" } } });
    assert_eq!(end(picture.under(&[("default", 0, by_zone)])), 1060);
}

#[test]
fn use_beyond_a_new_cap_is_reclaimed_after_the_notice() {
    let picture = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=8, pods=8");
    let capped = [("default", 0, json!({ "provide": { "percentage": 100, "caps": { "cpu": "2" }, "noticeSeconds": 60 } }))];
    let picture = picture.under(&capped).at(1000).settled();
    let offer = picture.offer(ROME, "default").unwrap();
    assert_eq!(offer.resource_quota.hard, list("cpu=8, pods=10"));
    assert_eq!(offer.reclaim_timestamp.unwrap().0.as_second(), 1060);
    assert_eq!((picture.plan().writes, picture.plan().wake), (vec![], Some(Duration::from_secs(60))));
    let picture = picture.at(1060).settled();
    assert_eq!(picture.offer(ROME, "default").unwrap().resource_quota.hard, list("cpu=2, pods=10"));
    // When the pods are gone, there is nothing to reclaim any more. That is written without a pause: a notice that is over must
    // not count for the next time.
    let mut gone = Picture { pods: Arc::default(), ..picture.clone() };
    let written = Written { at: Instant::now(), hard: list("cpu=2, pods=10") };
    gone.written.insert(("tenant-1".into(), DEFAULT_POOL.into()), written);
    assert_eq!(gone.writes(), [write(ROME, "cpu=2, pods=10")]);
    let offer = Picture { pods: Arc::default(), ..picture }.settled().offer(ROME, "default").unwrap();
    assert_eq!((offer.resource_quota.hard, offer.reclaim_timestamp), (list("cpu=2, pods=10"), None));
}

#[test]
fn another_peer_or_own_pods_take_nothing_that_is_used_without_a_notice() {
    let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=8, pods=8");
    assert_eq!(used.clone().asks(TURIN, "").settled().offer(ROME, "default").unwrap().reclaim_timestamp, None);
    // Own pods crowd the nodes: there is less than the peer uses, so it gets notice, and keeps its place until then.
    let offer = used.pod("default", None, "cpu=5, pods=1").settled().offer(ROME, "default").unwrap();
    assert_eq!((offer.resource_quota.hard, offer.reclaim_timestamp.is_some()), (list("cpu=8, pods=9"), true));
}

#[test]
fn a_new_policy_is_followed_at_once_whatever_the_threshold() {
    let mut picture = milan().asks(ROME, "").settled();
    let written = Written { at: Instant::now(), hard: list("cpu=10, pods=10") };
    picture.written.insert(("tenant-1".into(), DEFAULT_POOL.into()), written);
    assert_eq!(picture.writes(), []);
    let picture = picture.under(&[("other", 0, json!({ "provide": { "percentage": 98 } }))]);
    assert_eq!(picture.writes(), [write(ROME, "cpu=9800m, pods=9")]);
}

#[test]
fn what_a_plugin_says_is_offered_to_the_letter_but_for_caps() {
    let plugin = json!({ "provide": { "source": { "plugin": { "address": "p.liqo:6001" } }, "caps": { "memory": "1Gi" } } });
    let mut picture = milan().asks(ROME, "cpu=3").under(&[("default", 0, plugin)]);
    assert_eq!((picture.writes(), picture.plan().links[&cluster(ROME)].reason.as_str()), (vec![], "NothingOffered"));
    let pools = BTreeMap::from([("gold".to_owned(), list("cpu=64, memory=2Gi")), ("default".to_owned(), list("cpu=100m"))]);
    picture.readings.insert(cluster(ROME), Reading { pools: Some(pools), problem: None });
    let offer = |pool: &str, hard: &str| (cluster(ROME), pool.to_owned(), hard.to_owned());
    assert_eq!(picture.pools(), [offer("default", "cpu=100m"), offer("gold", "cpu=2900m, memory=1Gi")]);
    let mut picture = picture.settled();
    // A plugin that fails changes nothing of what was offered, also after a restart.
    picture.readings.insert(cluster(ROME), Reading { pools: None, problem: Some("plugin p.liqo:6001 does not answer".into()) });
    let plan = picture.plan();
    assert_eq!((plan.writes, plan.deletions), (vec![], vec![]));
    assert_eq!(plan.links[&cluster(ROME)].reason, "PluginFailed");
    assert_eq!(plan.answers[0].wanted.reason, "Offered");
}

#[test]
fn what_may_be_used_travels_with_the_offer() {
    let usage = json!({ "storageClasses": ["fast"], "ingressClasses": ["public"], "loadBalancerClasses": ["edge"] });
    let policies = [("default", 0, json!({ "provide": { "percentage": 100, "usage": usage } }))];
    let spec = milan().asks(ROME, "").under(&policies).plan().writes.remove(0).spec;
    let classes = [spec.storage_classes, spec.ingress_classes, spec.load_balancer_classes].concat();
    assert_eq!(classes, ["fast", "public", "edge"]);
}

#[test]
fn a_little_more_use_than_there_is_is_not_reclaimed() {
    let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=10, pods=5");
    let crowded = |own: &str| used.clone().pod("default", None, own).settled().offer(ROME, "default").unwrap();
    assert_eq!(crowded("cpu=300m").reclaim_timestamp, None);
    assert!(crowded("cpu=1").reclaim_timestamp.is_some());
}

#[test]
fn what_is_reclaimed_is_taken_back_to_the_letter() {
    // 10 of 9.4 cpu are used: after the notice the offer is cut, although it is off by little more than the threshold.
    let used = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=10, pods=5");
    let noticed = used.pod("default", None, "cpu=600m").settled();
    assert_eq!(noticed.offer(ROME, "default").unwrap().resource_quota.hard.get("cpu"), list("cpu=10").get("cpu"));
    let due = noticed.at(301).settled();
    assert_eq!(due.offer(ROME, "default").unwrap().resource_quota.hard.get("cpu"), list("cpu=9400m").get("cpu"));
    // When pods ended for it, the notice is over.
    let mut less = due;
    Arc::make_mut(&mut less.pods).retain(|pod| pod.claim.is_none());
    assert_eq!(less.settled().offer(ROME, "default").unwrap().reclaim_timestamp, None);
}

#[test]
fn a_pod_outside_of_its_pool_occupies_the_node_that_it_runs_on() {
    let nodes = milan().node("b", "cpu=4", &[("zone", "east")]).node("c", "cpu=8", &[("zone", "west")]);
    let mut picture = nodes.under(&by_zone()).asks(ROME, "").asks(TURIN, "");
    picture.add(of_pool("east", "c", "cpu=6"));
    let of = |consumer: u8, pool: &str, hard: &str| (cluster(consumer), pool.to_owned(), hard.to_owned());
    // West has 2 left for both. In the east rome's offer is what it uses, more than there is: turin waits.
    let expected = [of(ROME, "east", "cpu=6"), of(ROME, "west", "cpu=1"), of(TURIN, "west", "cpu=1")];
    assert_eq!(picture.pools(), expected);
}

#[test]
fn no_more_pools_are_made_than_a_consumer_takes() {
    let by_node = [("default", 0, json!({ "provide": { "percentage": 100, "granularity": { "by": "Node" } } }))];
    let picture = (0..30).fold(milan(), |picture, number| picture.node(&format!("node-{number}"), "cpu=1", &[]));
    assert_eq!(picture.under(&by_node).asks(ROME, "").pools().len(), 16);
}

#[test]
fn a_consumer_stays_one_when_no_plugin_decides_about_it_and_is_none_when_it_does_not_ask() {
    let asks = json!({ "peers": { "clusterIDs": [cluster(ROME)] }, "provide": { "source": { "plugin": { "address": "p:1" } } } });
    let mut picture = milan().asks(ROME, "").asks(TURIN, "").tenant(4);
    picture.policies.push(policy("asks", 10, asks));
    let plugins = picture.plugins();
    assert_eq!(plugins.keys().collect::<BTreeSet<_>>(), [&cluster(ROME), &cluster(TURIN)].into());
    assert_eq!(plugins[&cluster(ROME)].as_ref().map(|plugin| plugin.address.as_str()), Some("p:1"));
    assert_eq!(plugins[&cluster(TURIN)], None);
}
