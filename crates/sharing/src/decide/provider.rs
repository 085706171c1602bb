//! All that the provider side does at one time: from a picture of the cluster to offers, answers and links.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use liqo_api::{
    ANSWERED, ClusterId, Condition, DEFAULT_POOL, RESOURCE_REQUEST, ResourceList, ResourceOffer, ResourceOfferSpec,
    ResourceQuota, links,
};
use liqo_kit::{Key, conditions::Wanted};

use super::{
    ledger::{self, Claim},
    publish::{self, Standing},
    reduce::{ConsumerNamespace, LocalNode, PodUse, Request},
    source,
};

/// What the provider side knows at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    /// This cluster.
    pub own: ClusterId,
    /// How much is shared; nothing if there is no policy.
    pub percentage: Option<u8>,
    /// By how much, in percent, an offer must be off to be rewritten.
    pub threshold: u8,
    /// Labels of this cluster.
    pub cluster_labels: BTreeMap<String, String>,
    /// Nodes that are not virtual.
    pub nodes: Vec<(Key, Arc<LocalNode>)>,
    /// Unfinished pods.
    pub pods: Vec<(Key, Arc<PodUse>)>,
    /// Namespaces that Liqo made for consumers, by name.
    pub namespaces: BTreeMap<String, Arc<ConsumerNamespace>>,
    /// What consumers ask for.
    pub requests: Vec<(Key, Arc<Request>)>,
    /// Offers, those that we received included.
    pub offers: Vec<(Key, Arc<ResourceOffer>)>,
    /// What was written in the last seconds, by UID of the tenant namespace.
    pub written: HashMap<String, Written>,
}

/// An offer that was written a short time ago; the cache may not show it yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// When.
    pub at: Instant,
    /// What.
    pub hard: ResourceList,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Offers that nobody asks for any more.
    pub deletions: Vec<Key>,
    /// Offers to write, in this order.
    pub writes: Vec<OfferWrite>,
    /// What to say in the status of each request.
    pub answers: Vec<Answer>,
    /// What to say about each consumer.
    pub links: BTreeMap<ClusterId, Wanted>,
    /// When to look again although nothing changed.
    pub wake: Option<Duration>,
}

/// One offer to write.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferWrite {
    /// The tenant namespace.
    pub namespace: String,
    /// Its UID.
    pub namespace_uid: String,
    /// Whose it is.
    pub consumer: ClusterId,
    /// What to write.
    pub spec: ResourceOfferSpec,
    /// Whether there is an offer already.
    pub exists: bool,
    /// Whether it needs what earlier writes give up.
    pub grows: bool,
}

/// The condition of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The tenant namespace.
    pub namespace: String,
    /// The conditions that stand.
    pub current: Vec<Condition>,
    /// The one that should.
    pub wanted: Wanted,
}

/// A tenant with a request that can be read.
struct Asking<'a> {
    namespace: &'a str,
    tenant: &'a ConsumerNamespace,
    request: &'a Request,
    offer: Option<&'a ResourceOffer>,
}

/// Decides everything anew.
pub fn decide(picture: &Picture, now: Instant) -> Plan {
    let asking = asking(picture);
    let (in_use, occupants) = charge(picture, &asking);
    let claims: Vec<Claim> = asking
        .iter()
        .zip(in_use)
        .map(|(asking, in_use)| Claim {
            consumer: asking.tenant.consumer.clone(),
            weight: 1,
            in_use,
            asked: asking.request.resources.clone().unwrap_or_default(),
        })
        .collect();
    let nodes = || picture.nodes.iter().map(|(key, node)| (key.name.as_str(), node.as_ref()));
    let total = source::capacity(nodes(), occupants, picture.percentage.unwrap_or(0));
    let labels = labels(picture);
    let standings: Vec<Standing> = ledger::split(&total, &claims)
        .into_iter()
        .zip(claims)
        .zip(&asking)
        .map(|((target, claim), asking)| standing(picture, &labels, asking, claim, target))
        .collect();
    let publication = publish::decide(&total, &standings, picture.threshold, now);

    let mut plan = Plan { wake: publication.wake, deletions: deletions(picture, &asking), ..Plan::default() };
    for write in publication.writes {
        let asking = &asking[write.index];
        plan.writes.push(OfferWrite {
            namespace: asking.namespace.to_owned(),
            namespace_uid: asking.tenant.uid.clone(),
            consumer: asking.tenant.consumer.clone(),
            spec: spec(picture, &labels, write.hard),
            exists: asking.offer.is_some(),
            grows: write.grows,
        });
    }
    for (asking, standing) in asking.iter().zip(&standings) {
        // What does not stand yet is written now or in a moment.
        let offered = standing.published.is_some() || !standing.target.is_zero();
        plan.answers.push(Answer {
            namespace: asking.namespace.to_owned(),
            current: asking.request.conditions.clone(),
            wanted: outcome(picture, ANSWERED, offered),
        });
        plan.links.insert(asking.tenant.consumer.clone(), outcome(picture, links::RESOURCES_OFFERED, offered));
    }
    not_asking(picture, &mut plan);
    plan
}

/// The tenants that ask for something, in the order of their IDs.
fn asking(picture: &Picture) -> Vec<Asking<'_>> {
    let requests: HashMap<&str, &Request> = of_name(&picture.requests, RESOURCE_REQUEST);
    let offers: HashMap<&str, &ResourceOffer> = of_name(&picture.offers, DEFAULT_POOL);
    let mut asking: Vec<Asking<'_>> = tenants(picture)
        .filter_map(|(namespace, tenant)| {
            let request = requests.get(namespace).copied().filter(|request| request.resources.is_ok())?;
            // An offer that is being deleted is as good as gone: the one after it is a new one.
            let offer = offers.get(namespace).copied().filter(|offer| offer.metadata.deletion_timestamp.is_none());
            Some(Asking { namespace, tenant, request, offer })
        })
        .collect();
    asking.sort_by_key(|asking| &asking.tenant.consumer);
    asking
}

fn of_name<'a, T>(objects: &'a [(Key, Arc<T>)], name: &str) -> HashMap<&'a str, &'a T> {
    objects.iter().filter(|(key, _)| key.name == name).map(|(key, object)| (key.namespace.as_str(), object.as_ref())).collect()
}

fn tenants(picture: &Picture) -> impl Iterator<Item = (&str, &ConsumerNamespace)> {
    let all = picture.namespaces.iter().map(|(name, namespace)| (name.as_str(), namespace.as_ref()));
    all.filter(|(_, namespace)| namespace.tenant && !namespace.terminating)
}

/// Charges each pod to the offer that it uses; the others occupy what could be offered. A pod's labels are believed only in
/// a mapped namespace of the same consumer, because nobody but us makes pods there.
fn charge<'a>(picture: &'a Picture, asking: &[Asking<'_>]) -> (Vec<ResourceList>, Vec<&'a PodUse>) {
    let index: HashMap<&str, usize> =
        asking.iter().enumerate().map(|(index, asking)| (asking.tenant.consumer.as_str(), index)).collect();
    let mut in_use = vec![ResourceList::new(); asking.len()];
    let mut occupants = Vec::new();
    for (key, pod) in &picture.pods {
        let charged = pod.consumer.as_deref().filter(|consumer| {
            let namespace = picture.namespaces.get(&key.namespace);
            pod.pool == DEFAULT_POOL
                && namespace.is_some_and(|namespace| !namespace.tenant && namespace.consumer.as_str() == *consumer)
        });
        match charged.and_then(|consumer| index.get(consumer)) {
            Some(&index) => in_use[index] += &pod.requests,
            None => occupants.push(pod.as_ref()),
        }
    }
    (in_use, occupants)
}

fn labels(picture: &Picture) -> BTreeMap<String, String> {
    let mut labels = picture.cluster_labels.clone();
    labels.extend(source::uniform_labels(picture.nodes.iter().map(|(_, node)| node.as_ref())));
    labels
}

fn spec(picture: &Picture, labels: &BTreeMap<String, String>, hard: ResourceList) -> ResourceOfferSpec {
    ResourceOfferSpec {
        cluster_id: picture.own.clone(),
        pool: DEFAULT_POOL.to_owned(),
        resource_quota: ResourceQuota { hard },
        labels: labels.clone(),
        path: vec![picture.own.clone()],
        storage_classes: Vec::new(),
        ingress_classes: Vec::new(),
        load_balancer_classes: Vec::new(),
        withdrawal_timestamp: None,
        reclaim_timestamp: None,
    }
}

fn standing(
    picture: &Picture,
    labels: &BTreeMap<String, String>,
    asking: &Asking<'_>,
    claim: Claim,
    target: ResourceList,
) -> Standing {
    let written = picture.written.get(&asking.tenant.uid);
    let published = asking.offer.map(|offer| &offer.spec.resource_quota.hard);
    let outdated = asking.offer.is_some_and(|offer| {
        let hard = offer.spec.resource_quota.hard.clone();
        offer.spec != spec(picture, labels, hard)
    });
    Standing {
        published: published.map(|published| written.map_or(published, |written| &written.hard).clone()),
        written: written.map(|written| written.at),
        outdated,
        target,
        in_use: claim.in_use,
        asked: claim.asked,
    }
}

/// Offers in tenant namespaces that answer no request.
fn deletions(picture: &Picture, asking: &[Asking<'_>]) -> Vec<Key> {
    let tenants: HashMap<&str, &ConsumerNamespace> = tenants(picture).collect();
    let wanted = |key: &Key| key.name == DEFAULT_POOL && asking.iter().any(|asking| asking.namespace == key.namespace);
    let ours = picture.offers.iter().filter(|(key, _)| tenants.contains_key(key.namespace.as_str()));
    let standing = ours.filter(|(_, offer)| offer.metadata.deletion_timestamp.is_none());
    let mut deletions: Vec<Key> = standing.map(|(key, _)| key.clone()).filter(|key| !wanted(key)).collect();
    deletions.sort();
    deletions
}

fn outcome(picture: &Picture, kind: &'static str, offered: bool) -> Wanted {
    if offered {
        return Wanted::yes(kind, "Offered", format!("pool {DEFAULT_POOL} is offered"));
    }
    match picture.percentage {
        None => Wanted::no(kind, "NoPolicy", "the provider shares nothing: it has no PeeringPolicy named default"),
        Some(0) => Wanted::no(kind, "NothingShared", "the provider's PeeringPolicy shares 0 percent of its resources"),
        Some(_) => Wanted::no(
            kind,
            "NothingFree",
            "the provider has nothing free that was asked for; an offer follows as soon as there is something",
        ),
    }
}

/// Tenants without a request, or with one that cannot be read.
fn not_asking(picture: &Picture, plan: &mut Plan) {
    let requests: HashMap<&str, &Request> = of_name(&picture.requests, RESOURCE_REQUEST);
    for (namespace, tenant) in tenants(picture) {
        let wanted = |kind| match requests.get(namespace).map(|request| &request.resources) {
            None => Some(Wanted::no(kind, "NotRequested", "the consumer has not asked for resources")),
            Some(Err(error)) => {
                let error: String = error.chars().take(200).collect();
                Some(Wanted::no(kind, "Unreadable", format!("the request cannot be read: {error}")))
            }
            Some(Ok(_)) => None,
        };
        if let Some(wanted) = wanted(links::RESOURCES_OFFERED) {
            plan.links.insert(tenant.consumer.clone(), wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, list};
    use liqo_api::{provider_namespace, tenant_namespace};

    const ROME: u8 = 1;
    const TURIN: u8 = 2;
    const MILAN: u8 = 3;

    /// Milan with one node of 10 cpu and 10 pods, sharing all of it.
    fn milan() -> Picture {
        let node = LocalNode { eligible: true, allocatable: list("cpu=10, pods=10"), labels: BTreeMap::new() };
        Picture {
            own: cluster(MILAN),
            percentage: Some(100),
            threshold: 5,
            cluster_labels: BTreeMap::new(),
            nodes: vec![(Key::new("", "a"), node.into())],
            pods: Vec::new(),
            namespaces: BTreeMap::new(),
            requests: Vec::new(),
            offers: Vec::new(),
            written: HashMap::new(),
        }
    }

    impl Picture {
        fn tenant(mut self, consumer: u8) -> Self {
            let id = cluster(consumer);
            let uid = format!("tenant-{consumer}");
            let tenant = ConsumerNamespace { uid, consumer: id.clone(), tenant: true, terminating: false };
            let mapped = ConsumerNamespace { uid: format!("mapped-{consumer}"), tenant: false, ..tenant.clone() };
            self.namespaces.insert(tenant_namespace(&id), tenant.into());
            self.namespaces.insert(format!("mapped-{consumer}"), mapped.into());
            self
        }

        fn request(mut self, consumer: u8, asked: &str) -> Self {
            let request = Request { resources: Ok(list(asked)), conditions: Vec::new() };
            let key = Key::new(tenant_namespace(&cluster(consumer)), RESOURCE_REQUEST);
            self.requests.push((key, request.into()));
            self
        }

        fn asks(self, consumer: u8, asked: &str) -> Self {
            self.tenant(consumer).request(consumer, asked)
        }

        fn offers(mut self, consumer: u8, hard: &str) -> Self {
            let spec = spec(&self, &BTreeMap::new(), list(hard));
            let mut offer = ResourceOffer::new(DEFAULT_POOL, spec);
            offer.metadata.namespace = Some(tenant_namespace(&cluster(consumer)));
            self.offers.push((Key::of(&offer), offer.into()));
            self
        }

        fn pod(mut self, namespace: &str, consumer: Option<u8>, requests: &str) -> Self {
            let consumer = consumer.map(|consumer| cluster(consumer).to_string());
            let node = Some("a".to_owned());
            let pod = PodUse { node, requests: list(requests), consumer, pool: DEFAULT_POOL.to_owned(), waits: false };
            let name = format!("pod-{}", self.pods.len());
            self.pods.push((Key::new(namespace, name), pod.into()));
            self
        }

        fn plan(&self) -> Plan {
            decide(self, Instant::now())
        }

        /// Consumer and amounts of each write.
        fn writes(&self) -> Vec<(ClusterId, String)> {
            self.plan().writes.into_iter().map(|write| (write.consumer, write.spec.resource_quota.hard.to_string())).collect()
        }
    }

    fn write(consumer: u8, hard: &str) -> (ClusterId, String) {
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
        let pod = PodUse { node: Some("a".into()), requests: list("cpu=4, pods=1"), ..PodUse::default() };
        let pod = PodUse { consumer: Some(cluster(ROME).to_string()), pool: "other".into(), ..pod };
        picture.pods.push((Key::new("mapped-1", "p"), pod.into()));
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
        assert_eq!(plan.links[&cluster(ROME)].reason, "NotRequested");
    }

    #[test]
    fn offers_that_we_received_are_left_alone() {
        let mut picture = milan();
        let mut offer = ResourceOffer::new(DEFAULT_POOL, spec(&picture, &BTreeMap::new(), list("cpu=1")));
        offer.metadata.namespace = Some(provider_namespace(&cluster(ROME)));
        picture.offers.push((Key::of(&offer), offer.into()));
        assert_eq!(picture.plan(), Plan::default());
    }

    #[test]
    fn a_request_in_a_namespace_that_is_no_tenants_is_not_looked_at() {
        assert_eq!(milan().request(ROME, "").plan(), Plan::default());
    }

    #[test]
    fn nothing_is_written_into_a_namespace_that_is_going_away() {
        let mut picture = milan().asks(ROME, "").offers(ROME, "cpu=1");
        let name = tenant_namespace(&cluster(ROME));
        let going = ConsumerNamespace { terminating: true, ..(*picture.namespaces[&name]).clone() };
        picture.namespaces.insert(name, going.into());
        assert_eq!(picture.plan(), Plan::default());
    }

    #[test]
    fn without_a_policy_nothing_is_shared_and_the_answer_says_why() {
        for (percentage, reason) in [(None, "NoPolicy"), (Some(0), "NothingShared")] {
            let picture = Picture { percentage, ..milan().asks(ROME, "") };
            let plan = picture.plan();
            assert_eq!(plan.writes, []);
            assert_eq!(plan.answers[0].wanted.reason, reason);
            assert_eq!(plan.links[&cluster(ROME)].reason, reason);
        }
    }

    #[test]
    fn withdrawing_the_policy_leaves_running_pods_their_place() {
        let picture = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10").pod("mapped-1", Some(ROME), "cpu=2, pods=1");
        assert_eq!(Picture { percentage: Some(0), ..picture }.writes(), [write(ROME, "cpu=2, pods=1")]);
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
        picture.written.insert("tenant-1".into(), Written { at, hard: list("cpu=5, pods=10") });
        let plan = decide(&picture, at);
        assert_eq!((plan.writes, plan.wake), (Vec::new(), None));
    }

    #[test]
    fn a_consumer_that_comes_back_in_a_new_namespace_is_answered_at_once() {
        let mut picture = milan().asks(ROME, "");
        let at = Instant::now();
        picture.written.insert("a former namespace".into(), Written { at, hard: list("cpu=10, pods=10") });
        assert_eq!(decide(&picture, at).writes.len(), 1);
    }

    #[test]
    fn a_changed_cluster_label_is_published() {
        let mut picture = milan().asks(ROME, "").offers(ROME, "cpu=10, pods=10");
        picture.cluster_labels.insert("tier".into(), "gold".into());
        assert_eq!(picture.plan().writes[0].spec.labels, picture.cluster_labels);
    }
}
