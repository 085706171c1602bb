//! A burst of ten thousand pods against pools with fragmented nodes, for which a packing exists: a
//! model of both schedulers around the rules.
//!
//! ```text
//!   every second   250 new pods ──webhook: Room──▶ scheduler at home ──▶ node at home, or virtual node
//!                                                                            │ ledger: sum, largest pods
//!   every 10 s     offers say what the largest nodes have                    ▼
//!                                                                       scheduler there, of free amounts of nodes
//!   a pod that was refused, or found no node there: its controller makes another one, which is not sent there again for some time
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use liqo_api::{ClusterId, FreeNodes, LargestPods, OffloadedReason, labels};
use liqo_quantity::{Quantity, ResourceList};

use super::ClusterRoom;
use crate::node::priced::PricedNode;
use crate::pod::refusals::{NewRefusal, RefusalCause, Refusals};

/// Cores in thousandths, and MiB.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Amounts {
    cpu: u64,
    memory: u64,
}

impl Amounts {
    fn fit_in(self, free: Self) -> bool {
        self.cpu <= free.cpu && self.memory <= free.memory
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu - other.cpu,
            memory: self.memory - other.memory,
        }
    }

    fn list(self) -> ResourceList {
        let memory = Quantity::from_bytes(i64::try_from(self.memory << 20).unwrap());
        [
            (
                "cpu",
                Quantity::from_millis(i64::try_from(self.cpu).unwrap()),
            ),
            ("memory", memory),
            ("pods", Quantity::from_units(1)),
        ]
        .into()
    }

    /// As Kubernetes scores nodes by default: the more is left, the better.
    fn share_left(self, free: Self, total: Self) -> u64 {
        let left = free.minus(self);
        1000 * left.cpu / total.cpu.max(1) + 1000 * left.memory / total.memory.max(1)
    }
}

const NOTHING: Amounts = Amounts { cpu: 0, memory: 0 };

#[derive(Clone, Copy, Debug)]
struct Node {
    total: Amounts,
    free: Amounts,
}

/// Binds a pod to the node where most is left.
fn schedule(pod: Amounts, nodes: &mut [Node]) -> bool {
    let fitting = nodes.iter_mut().filter(|node| pod.fit_in(node.free));
    let best = fitting.max_by_key(|node| pod.share_left(node.free, node.total));
    best.is_some_and(|node| {
        node.free = node.free.minus(pod);
        true
    })
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Small pods are common, large ones are rare.
    fn pod(&mut self) -> Amounts {
        let cpu = (100 + self.below(150)) << self.below(6);
        Amounts {
            cpu,
            memory: (128 + self.below(512)) << self.below(6),
        }
    }
}

/// Clusters of nodes that run other things already, and pods of which all fit: they were packed
/// into the nodes, which have `slack` per cent more than that.
fn packed(seed: u64, slack: u64) -> (Vec<Vec<Node>>, Vec<Amounts>) {
    let mut random = Random(seed);
    let (mut clusters, mut pods) = (vec![Vec::new(); 4], Vec::new());
    while pods.len() < PODS {
        let total = Amounts {
            cpu: 8000 << random.below(4),
            memory: 32_768 << random.below(4),
        };
        let used = random.below(90);
        let mut free = Amounts {
            cpu: total.cpu * (100 - used) / 100,
            memory: total.memory * (100 - used) / 100,
        };
        let before = free;
        let mut misses = 0;
        while misses < 20 && pods.len() < PODS {
            let pod = random.pod();
            if pod.fit_in(free) {
                free = free.minus(pod);
                pods.push(pod);
            } else {
                misses += 1;
            }
        }
        let packed = before.minus(free);
        let free = Amounts {
            cpu: packed.cpu * (100 + slack) / 100,
            memory: packed.memory * (100 + slack) / 100,
        };
        let at = usize::try_from(random.below(4)).unwrap();
        clusters[at].push(Node {
            total: Amounts {
                cpu: total.cpu.max(free.cpu),
                memory: total.memory.max(free.memory),
            },
            free,
        });
    }
    // They come in no order.
    for index in (1..pods.len()).rev() {
        pods.swap(
            index,
            usize::try_from(random.below(index as u64 + 1)).unwrap(),
        );
    }
    (clusters, pods)
}

/// The rules that apply in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rules {
    /// The sum of a pool.
    Sums,
    /// Also what single nodes have.
    Largest,
    /// In addition, a pod that does not start at a provider is replaced.
    LargestAndReplacement,
}

struct Provider {
    nodes: Vec<Node>,
    offered: Amounts,
    charged: Amounts,
    says: LargestPods,
    node: PricedNode,
    id: ClusterId,
}

impl Provider {
    fn room(&self) -> Amounts {
        self.offered.minus(self.charged)
    }

    fn score_for(&self, pod: Amounts) -> u64 {
        pod.share_left(self.room(), self.offered)
    }

    fn new(number: usize, nodes: Vec<Node>) -> Self {
        let name = format!("provider-{number}");
        let labels = [(labels::REMOTE_CLUSTER_ID.to_owned(), name.clone())].into();
        let offered = nodes.iter().fold(NOTHING, |sum, node| sum.plus(node.free));
        let node = PricedNode {
            name,
            labels,
            ..PricedNode::default()
        };
        let id = ClusterId::of_public_key(&[u8::try_from(number).unwrap(); 32]);
        Self {
            nodes,
            offered,
            charged: NOTHING,
            says: LargestPods::default(),
            node,
            id,
        }
    }

    fn say(&mut self) {
        let free: FreeNodes = self.nodes.iter().map(|node| node.free.list()).collect();
        let now = free.select_largest(
            &Amounts {
                cpu: 1 << 40,
                memory: 1 << 30,
            }
            .list(),
        );
        if !self.says.still_holds(&now, 5) {
            self.says = now;
            self.node.largest_pods = self.says.clone();
        }
    }
}

/// A pod that has no node yet.
struct BurstPod {
    amounts: Amounts,
    created: u64,
    /// Clusters that the webhook keeps it off.
    avoided: Vec<bool>,
    /// The providers that did not start it.
    remembered: Refusals,
    /// The provider that it was sent to, and since when; `None` while it waits at home.
    at: Option<(usize, u64)>,
    admitted: bool,
    replaced: u32,
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    pending: usize,
    /// Those of them that some node could take.
    in_vain: usize,
    /// Pods that were created instead of others.
    replaced: u32,
    /// The most for one pod.
    rounds: u32,
    seconds: u64,
}

/// Each pod has an owner of its own.
const OWNER: &str = "owner";
const PODS: usize = 10_000;
const PODS_EACH_SECOND: usize = 250;
const OFFERS_EVERY: u64 = 10;
/// Seconds after which a pod that does not start is replaced.
const PATIENCE: u64 = 300;
/// As `unscheduled::SETTLING_TIME`.
const SETTLING: u64 = 10;
const LAST_SECOND: u64 = 4000;

/// Whether the webhook avoids each provider, or the controller remembers it.
fn avoided(pod: &BurstPod, providers: &[Provider], now: u64) -> Vec<bool> {
    let nodes: Vec<&PricedNode> = providers.iter().map(|provider| &provider.node).collect();
    let room = ClusterRoom::for_amounts(&pod.amounts.list(), &nodes, true);
    let full: Vec<&str> = room.avoided_clusters().collect();
    providers
        .iter()
        .map(|one| {
            full.contains(&one.node.name.as_str())
                || pod
                    .remembered
                    .valid_entry(OWNER, &one.id, at(now))
                    .is_some()
        })
        .collect()
}

fn refusal(provider: &Provider) -> NewRefusal<'_> {
    NewRefusal {
        owner: OWNER,
        cluster: (&provider.id, &provider.node.name),
        reason: OffloadedReason::Unschedulable,
        cause: RefusalCause::Passes,
        refusal_timeout: Duration::from_secs(PATIENCE),
    }
}

/// Whether some node could take a pod now.
fn has_node(pod: &BurstPod, home: &[Node], providers: &[Provider]) -> bool {
    let there = providers.iter().flat_map(|provider| &provider.nodes);
    home.iter()
        .chain(there)
        .any(|node| pod.amounts.fit_in(node.free))
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(second).unwrap()).unwrap()
}

fn run(rules: Rules, mut clusters: Vec<Vec<Node>>, pods: &[Amounts]) -> Outcome {
    let mut home = clusters.remove(0);
    let mut providers: Vec<Provider> = clusters
        .into_iter()
        .enumerate()
        .map(|(number, nodes)| Provider::new(number, nodes))
        .collect();
    let mut coming: VecDeque<Amounts> = pods.iter().copied().collect();
    let mut waiting: Vec<BurstPod> = Vec::new();
    let mut outcome = Outcome::default();
    for now in 0..LAST_SECOND {
        if rules != Rules::Sums && now % OFFERS_EVERY == 0 {
            for provider in &mut providers {
                provider.say();
            }
        }
        for amounts in coming.drain(..PODS_EACH_SECOND.min(coming.len())) {
            let mut pod = BurstPod {
                amounts,
                created: now,
                avoided: Vec::new(),
                remembered: Refusals::default(),
                at: None,
                admitted: false,
                replaced: 0,
            };
            pod.avoided = avoided(&pod, &providers, now);
            waiting.push(pod);
        }
        // The scheduler at home: its own nodes and the virtual ones are nodes.
        let mut still: Vec<BurstPod> = Vec::new();
        for mut pod in waiting {
            if pod.at.is_none() && now % OFFERS_EVERY == 0 && now >= pod.created + SETTLING {
                let wanted = avoided(&pod, &providers, now);
                if pod
                    .avoided
                    .iter()
                    .zip(&wanted)
                    .any(|(avoids, wanted)| *avoids && !wanted)
                {
                    (pod.avoided, pod.created) = (wanted, now);
                }
            }
            if pod.at.is_none() {
                let fitting = (0..providers.len()).filter(|index| {
                    !pod.avoided[*index] && pod.amounts.fit_in(providers[*index].room())
                });
                let best = fitting.max_by_key(|index| providers[*index].score_for(pod.amounts));
                let at_home = home.iter().filter(|node| pod.amounts.fit_in(node.free));
                let at_home = at_home
                    .map(|node| pod.amounts.share_left(node.free, node.total))
                    .max();
                match best {
                    Some(index)
                        if at_home.is_none_or(|at_home| {
                            providers[index].score_for(pod.amounts) >= at_home
                        }) =>
                    {
                        providers[index].charged = providers[index].charged.plus(pod.amounts);
                        pod.at = Some((index, now));
                    }
                    _ if schedule(pod.amounts, &mut home) => continue,
                    _ => {}
                }
            }
            // The provider: its ledger, and its scheduler. The sum holds, because the scheduler at
            // home knows it.
            if let Some((index, since)) = pod.at {
                let provider = &mut providers[index];
                pod.admitted |= provider.says.may_have_room(&pod.amounts.list()).is_ok();
                if pod.admitted && schedule(pod.amounts, &mut provider.nodes) {
                    continue;
                }
                if rules == Rules::LargestAndReplacement && now >= since + PATIENCE {
                    provider.charged = provider.charged.minus(pod.amounts);
                    pod.remembered = pod
                        .remembered
                        .with_refusal(refusal(provider), at(now))
                        .unwrap();
                    (pod.at, pod.admitted, pod.created, pod.replaced) =
                        (None, false, now, pod.replaced + 1);
                    pod.avoided = avoided(&pod, &providers, now);
                    outcome.replaced += 1;
                    outcome.rounds = outcome.rounds.max(pod.replaced);
                }
            }
            still.push(pod);
        }
        waiting = still;
        outcome.seconds = now;
        if coming.is_empty() && waiting.is_empty() {
            break;
        }
    }
    outcome.in_vain = waiting
        .iter()
        .filter(|pod| has_node(pod, &home, &providers))
        .count();
    outcome.pending = waiting.len();
    outcome
}

/// The number of pods that one cluster with all these nodes would leave without a node.
fn pending_in_one_cluster(clusters: &[Vec<Node>], pods: &[Amounts]) -> usize {
    let mut nodes: Vec<Node> = clusters.iter().flatten().copied().collect();
    pods.iter()
        .filter(|pod| !schedule(**pod, &mut nodes))
        .count()
}

/// A packing exists, but no scheduler that never moves a pod finds it: with these nodes in one
/// cluster, Kubernetes leaves pods without a node. Here, a pod that found none there is tried
/// elsewhere.
#[test]
fn of_ten_thousand_pods_in_a_burst_none_is_left_without_a_node_once_those_that_found_none_tried_elsewhere()
 {
    for seed in 1..=3 {
        let (clusters, pods) = packed(seed, 30);
        let (nodes, one) = (
            clusters.iter().map(Vec::len).sum::<usize>(),
            pending_in_one_cluster(&clusters, &pods),
        );
        println!("seed {seed}: {nodes} nodes; in one cluster {one} pods get none");
        let [sums, largest, again] = [Rules::Sums, Rules::Largest, Rules::LargestAndReplacement]
            .map(|rules| {
                let outcome = run(rules, clusters.clone(), &pods);
                println!("{rules:?}: {outcome:?}");
                outcome
            });
        assert!(sums.pending > 0, "sums alone are enough");
        assert!(largest.pending <= sums.pending);
        assert_eq!(again.pending, 0);
    }
}

#[test]
fn where_room_is_scarce_only_pods_wait_that_no_node_could_take_and_fewer_than_in_one_cluster() {
    let (clusters, pods) = packed(1, 20);
    let (one, outcome) = (
        pending_in_one_cluster(&clusters, &pods),
        run(Rules::LargestAndReplacement, clusters, &pods),
    );
    println!("in one cluster {one} pods get none; {outcome:?}");
    assert!(outcome.pending < one && outcome.in_vain == 0);
}
