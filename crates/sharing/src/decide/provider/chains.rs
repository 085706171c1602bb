//! Random graphs of clusters that lend to each other what they own and what they borrow. They
//! settle, no pod comes back to a cluster, and nothing runs that nobody owns.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::NodeSelector;
use liqo_api::{
    Claimed, ClusterId, Consume, Key, Quantity, RequestedResources, ResourceOffer, labels,
    provider_namespace, tenant_namespace,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::{
    tests::{milan, owner, policy},
    *,
};
use crate::{
    decide::{
        consumer::{
            BorrowingIntent, ConsumerAction, ObjectsOfProvider, VirtualNodeState, judge_offers,
        },
        reduce::{LocalNode, PodUsage, UpstreamPool},
        tethering::OwnNodesReturn,
    },
    tests::{cluster, list},
};

/// More rounds than offers with the most hops need to settle, with all notices.
const MAX_ROUNDS: usize = 60;
const OWN_NODE: &str = "own";

#[derive(Clone, Debug)]
struct Graph {
    /// Cores and the source of each cluster.
    clusters: Vec<(u8, u8)>,
    /// Pairs of a lender and a borrower, each as an index of `clusters`.
    edges: Vec<(usize, usize)>,
    /// Pods that start: at which cluster, with how many cores, and which nodes are chosen on their
    /// way.
    pods: Vec<(usize, u8, Vec<u8>)>,
}

fn graph() -> impl Strategy<Value = Graph> {
    (2..9_usize).prop_flat_map(|size| {
        let clusters = vec((1..12_u8, 0..4_u8), size);
        let edges = vec((0..size, 0..size), 1..size * 3);
        let pods = vec((0..size, 1..4_u8, vec(any::<u8>(), 10)), 0..20);
        (clusters, edges, pods).prop_map(|(clusters, edges, pods)| {
            let mut edges: Vec<(usize, usize)> =
                edges.into_iter().filter(|(from, to)| from != to).collect();
            edges.sort_unstable();
            edges.dedup();
            Graph {
                clusters,
                edges,
                pods,
            }
        })
    })
}

fn source(which: u8) -> Value {
    match which {
        0 => json!({}),
        1 => json!({ "source": { "offers": {} } }),
        2 => json!({ "source": { "offers": { "ownNodes": true } } }),
        _ => {
            json!({ "source": { "offers": { "ownNodes": true } }, "granularity": { "by": "Node" } })
        }
    }
}

struct Cluster {
    snapshot: ProviderSnapshot,
    /// The virtual nodes, by provider and pool.
    nodes: BTreeMap<(usize, String), Arc<VirtualNodeState>>,
}

fn number(index: usize) -> u8 {
    u8::try_from(index).unwrap() + 1
}

fn id(index: usize) -> ClusterId {
    cluster(number(index))
}

fn node_name(provider: usize, pool: &str) -> String {
    format!("c{provider}-{pool}")
}

struct World {
    clusters: Vec<Cluster>,
    graph: Graph,
}

impl World {
    fn new(graph: Graph) -> Self {
        let new = |(index, (cores, which)): (usize, &(u8, u8))| {
            let mut provide = json!({ "percentage": 100, "offerUpdateThresholdPercentage": 0 });
            json_merge(&mut provide, source(*which));
            let own = LocalNode {
                eligible: true,
                allocatable: list(&format!("cpu={cores}")),
                ..LocalNode::default()
            };
            let mut snapshot = ProviderSnapshot {
                own: id(index),
                policies: vec![policy("default", 0, json!({ "provide": provide }))],
                nodes: vec![(Key::new("", OWN_NODE), own.into())],
                ..milan()
            };
            for (_, to) in graph.edges.iter().filter(|(from, _)| *from == index) {
                snapshot = snapshot.asks(number(*to), "");
            }
            Cluster {
                snapshot,
                nodes: BTreeMap::new(),
            }
        };
        let clusters = graph.clusters.iter().enumerate().map(new).collect();
        Self { clusters, graph }
    }

    /// One decision of every cluster, as provider and as consumer. Returns whether anything
    /// changed.
    fn round(&mut self) -> bool {
        let mut changed = false;
        for cluster in &mut self.clusters {
            cluster.refresh_nodes();
            let plan = cluster.snapshot.plan();
            changed |= !plan.writes.is_empty() || !plan.deletions.is_empty();
            let wall_time = cluster
                .snapshot
                .wall_time
                .saturating_add(SignedDuration::from_secs(400))
                .unwrap();
            cluster.snapshot = ProviderSnapshot {
                wall_time,
                ..cluster.snapshot.clone().after(plan)
            };
        }
        for (from, to) in self.graph.edges.clone() {
            changed |= self.judge(from, to);
        }
        changed
    }

    fn offers(&self, from: usize, to: usize) -> BTreeMap<String, Arc<ResourceOffer>> {
        let namespace = tenant_namespace(&id(to));
        let offers = self.clusters[from]
            .snapshot
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == namespace);
        offers
            .map(|(key, offer)| (key.name.clone(), offer.clone()))
            .collect()
    }

    fn judge(&mut self, from: usize, to: usize) -> bool {
        let claimed = |(pool, offer): (String, Arc<ResourceOffer>)| {
            (pool, Arc::new(Claimed::new(ResourceOffer::clone(&offer))))
        };
        let (offers, copies) = (
            self.offers(from, to).into_iter().map(claimed).collect(),
            provider_namespace(&id(from)),
        );
        let consumer = &mut self.clusters[to];
        let here = consumer
            .snapshot
            .offers
            .iter()
            .filter(|(key, _)| key.namespace == copies);
        let nodes = consumer
            .nodes
            .iter()
            .filter(|((provider, _), _)| *provider == from);
        let local = ObjectsOfProvider {
            mirrors: here
                .map(|(key, offer)| (key.name.clone(), offer.clone()))
                .collect(),
            nodes: nodes
                .map(|((_, pool), node)| (pool.clone(), node.clone()))
                .collect(),
        };
        let intent = BorrowingIntent {
            own: id(to),
            provider: id(from),
            cluster_name: format!("c{from}"),
            peer: format!("c{from}"),
            request: RequestedResources::default(),
            consume: Some(Consume::default()),
            decisions: BTreeMap::new(),
            contracts: BTreeMap::new(),
            returns: OwnNodesReturn::default(),
            tethered_elsewhere: None,
        };
        let actions = judge_offers(&intent, &offers, &local, None).actions;
        let changed = !actions.is_empty();
        for action in actions {
            let consumer = &mut self.clusters[to];
            let copy = |name: &str| Key::new(copies.clone(), name);
            match action {
                ConsumerAction::DeleteNode(name) => drop(consumer.nodes.remove(&(from, name))),
                ConsumerAction::ApplyNode(spec) => {
                    let node = VirtualNodeState {
                        spec,
                        deleting: false,
                    };
                    consumer
                        .nodes
                        .insert((from, node.spec.pool.clone()), node.into());
                }
                ConsumerAction::DeleteMirror(name) => consumer
                    .snapshot
                    .offers
                    .retain(|(key, _)| *key != copy(&name)),
                ConsumerAction::ApplyMirror(spec) => {
                    let key = copy(&spec.pool);
                    let status = local
                        .mirrors
                        .get(&key.name)
                        .and_then(|mirror| mirror.status.clone());
                    consumer.snapshot.offers.retain(|(known, _)| *known != key);
                    let offer = ResourceOffer {
                        status,
                        ..ResourceOffer::new(&key.name.clone(), spec)
                    };
                    consumer.snapshot.offers.push((key, offer.into()));
                }
                ConsumerAction::AnswerMirror(name, status) => {
                    answer(&mut consumer.snapshot, &copy(&name), &status);
                }
                ConsumerAction::Answer(name, status) => {
                    answer(
                        &mut self.clusters[from].snapshot,
                        &Key::new(tenant_namespace(&id(to)), name),
                        &status,
                    );
                }
            }
        }
        changed
    }

    /// Runs rounds until nothing changes.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..MAX_ROUNDS {
            if !self.round() {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("it does not settle"))
    }

    /// Starts a pod at a cluster on one of its virtual nodes, if every cluster on its way admits
    /// it. Returns these clusters.
    fn start(&mut self, at: usize, cores: u8, choices: &[u8]) -> Option<Vec<usize>> {
        let cpu = Quantity::from_units(i64::from(cores));
        let (mut here, mut way, mut placed) = (at, vec![at], Vec::new());
        let mut owner_here = None;
        let mut selector: Option<NodeSelector> = None;
        for choice in choices {
            let cluster = &self.clusters[here];
            let matches = |node: &LocalNode| {
                selector
                    .as_ref()
                    .is_none_or(|selector| selects(selector, node))
            };
            // The first cluster sends the pod away; the others put it where its pool is.
            let may_run = |node: &LocalNode| {
                if way.len() == 1 {
                    node.upstream.is_some()
                } else {
                    matches(node)
                }
            };
            let may_run = |node: &LocalNode| {
                let is_default = selector.is_none() && way.len() > 1;
                may_run(node) && (!is_default || node.upstream.is_none())
            };
            let nodes: Vec<_> = cluster
                .snapshot
                .nodes
                .iter()
                .filter(|(_, node)| node.eligible && may_run(node))
                .collect();
            let (key, node) = *nodes.get(usize::from(*choice) % nodes.len().max(1))?;
            let pod = PodUsage {
                node: Some(key.name.clone()),
                resources: list(&format!("cpu={cores}")).into(),
                owner: owner_here.take(),
                ..PodUsage::default()
            };
            placed.push((here, pod));
            let Some(upstream) = &node.upstream else {
                for (cluster, pod) in placed {
                    self.clusters[cluster].snapshot.add(pod);
                }
                return Some(way);
            };
            let next = self.index(&upstream.provider);
            let offer = self.offers(next, here).get(&upstream.pool)?.clone();
            // Admission at the provider.
            if self.used(next, here, &upstream.pool) + cpu
                > offer.spec.resource_quota.hard.get("cpu")
            {
                return None;
            }
            owner_here = Some(owner(
                &format!("mapped-{}", number(here)),
                number(here),
                &upstream.pool,
            ));
            selector = offer.spec.node_selector.clone();
            here = next;
            way.push(here);
        }
        panic!("a pod passes through more clusters than there are: {way:?}");
    }

    fn index(&self, id: &ClusterId) -> usize {
        (0..self.clusters.len())
            .find(|index| super::chains::id(*index) == *id)
            .unwrap()
    }

    /// CPU that the pods of a consumer request from a pool.
    fn used(&self, at: usize, consumer: usize, pool: &str) -> Quantity {
        let is_its = |pod: &&PodUsage| {
            pod.owner
                .as_ref()
                .is_some_and(|owner| owner.consumer == id(consumer).as_str() && owner.pool == pool)
        };
        self.clusters[at]
            .snapshot
            .pods
            .iter()
            .filter(is_its)
            .map(|pod| pod.resources.requests.get("cpu"))
            .sum()
    }

    /// CPU that pods on the own nodes of a cluster request.
    fn runs(&self, at: usize) -> Quantity {
        let pods = self.clusters[at]
            .snapshot
            .pods
            .iter()
            .filter(|pod| pod.node.as_deref() == Some(OWN_NODE));
        pods.map(|pod| pod.resources.requests.get("cpu")).sum()
    }
}

impl Cluster {
    fn refresh_nodes(&mut self) {
        self.snapshot
            .nodes
            .retain(|(_, node)| node.upstream.is_none());
        for ((provider, pool), state) in &self.nodes {
            let provider_id = id(*provider);
            let labels = [
                (labels::TYPE, labels::TYPE_VIRTUAL_NODE),
                (labels::REMOTE_CLUSTER_ID, provider_id.as_str()),
                (labels::POOL, pool.as_str()),
            ];
            let node = LocalNode {
                eligible: state.spec.withdrawal_timestamp.is_none(),
                allocatable: state.spec.resources.clone(),
                labels: labels
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                upstream: Some(UpstreamPool {
                    provider: provider_id.clone(),
                    pool: pool.clone(),
                    offer: None,
                }),
            };
            self.snapshot
                .nodes
                .push((Key::new("", node_name(*provider, pool)), node.into()));
        }
    }
}

fn answer(snapshot: &mut ProviderSnapshot, key: &Key, status: &liqo_api::ResourceOfferStatus) {
    for (_, offer) in snapshot.offers.iter_mut().filter(|(known, _)| known == key) {
        Arc::make_mut(offer).status = Some(status.clone());
    }
}

/// Kubernetes' rule, for the operators that offers use.
fn selects(selector: &NodeSelector, node: &LocalNode) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let is_own =
            |values: &[String]| values.contains(&OWN_NODE.to_owned()) && node.upstream.is_none();
        expressions.iter().all(|one| {
            let values = one.values.as_deref().unwrap_or_default();
            let has = node
                .labels
                .get(&one.key)
                .is_some_and(|value| values.contains(value));
            if one.operator == "In" { has } else { !has }
        }) && fields
            .iter()
            .all(|one| is_own(one.values.as_deref().unwrap_or_default()))
    })
}

fn json_merge(into: &mut Value, from: Value) {
    let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) else {
        return;
    };
    into.extend(from);
}

/// Brokers that lend what they own and what they borrow, each to the next one.
fn ring(size: usize) -> World {
    let edges = (0..size).map(|index| (index, (index + 1) % size)).collect();
    World::new(Graph {
        clusters: vec![(4, 2); size],
        edges,
        pods: Vec::new(),
    })
}

#[test]
fn brokers_in_a_ring_settle_with_all_hops_that_policies_accept() {
    for size in 2..9 {
        let mut world = ring(size);
        world.settle().unwrap();
        let pools: Vec<String> = world.clusters[0]
            .nodes
            .keys()
            .map(|(_, pool)| pool.clone())
            .collect();
        let wanted = ["default", "hops-2", "hops-3"];
        assert_eq!(
            pools,
            wanted[..(size - 1).min(wanted.len())],
            "{size} clusters"
        );
    }
}

#[test]
fn a_pod_goes_through_brokers_to_the_owner() {
    let mut world = ring(5);
    world.settle().unwrap();
    // The virtual nodes are in the order of their pools, after the own node.
    assert_eq!(world.start(4, 3, &[2, 0, 0, 0, 0]), Some(vec![4, 3, 2, 1]));
    world.settle().unwrap();
    assert_eq!(
        [1, 2, 3].map(|at| world.runs(at).to_string()),
        ["3", "0", "0"]
    );
    assert_eq!(
        world.start(4, 3, &[2, 0, 0, 0, 0]),
        None,
        "nobody in the chain admits more than the owner has"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn brokers_settle_without_loops_and_lend_only_what_somebody_owns(graph in graph()) {
        let owned: HashMap<usize, Quantity> =
            graph.clusters.iter().enumerate().map(|(index, (cores, _))| (index, Quantity::from_units((*cores).into()))).collect();
        let mut world = World::new(graph.clone());
        world.settle()?;
        for (from, to) in &graph.edges {
            for offer in world.offers(*from, *to).values() {
                let path = &offer.spec.path;
                prop_assert!(path[0] == id(*from) && !path.contains(&id(*to)), "{path:?}");
                let distinct: BTreeSet<&ClusterId> = path.iter().collect();
                prop_assert_eq!(distinct.len(), path.len());
            }
        }
        for (at, cores, choices) in &graph.pods {
            if let Some(way) = world.start(*at, *cores, choices) {
                let distinct: BTreeSet<usize> = way.iter().copied().collect();
                prop_assert_eq!(distinct.len(), way.len(), "a pod came back: {:?}", way);
            }
            world.settle()?;
            for (index, owned) in &owned {
                prop_assert!(world.runs(*index) <= *owned, "cluster {index} runs {} of {owned}", world.runs(*index));
            }
            for (from, to) in &graph.edges {
                for (pool, offer) in world.offers(*from, *to) {
                    prop_assert!(world.used(*from, *to, &pool) <= offer.spec.resource_quota.hard.get("cpu"));
                }
            }
        }
    }
}
