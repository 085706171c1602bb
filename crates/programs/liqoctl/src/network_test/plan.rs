//! The questions, and the right answer to each.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use liqo_network_probe::{AskedQuestion, PORT, QuestionKind};
use serde::Serialize;

use super::setup::{AskerKind, HomeView, NetworkTestSetup, Prober};

/// Bytes that go there and back between clusters, once for each kind of asker.
const BULK: u64 = 8_000_000;
/// Bytes between each pair: enough to see that large packets pass.
const SOME: u64 = 250_000;
/// A datagram of this length is fragmented.
const FRAGMENTED_LEN: usize = 4_000;
/// The largest packet that is tried without fragmentation: Ethernet's MTU.
const MAX_PACKET_LEN: u16 = 1_500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TargetKind {
    /// Pods by their addresses.
    Pod,
    /// A Service, by address and names.
    Service,
    /// The Service's port on nodes of home.
    NodePort,
}

/// A path: from whom, to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TestPath {
    /// The asking cluster, and whether a pod or a node asks.
    pub from: (usize, AskerKind),
    /// The asked cluster, and how its pods are reached.
    pub to: (usize, TargetKind),
}

/// A question and its right answer.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedQuestion {
    /// The asker, as an index into the setup's probers.
    pub asker: usize,
    /// The path that it tests.
    pub path: TestPath,
    /// As text: `milan-1a by TCP at 10.65.0.9:7462`.
    pub words: String,
    pub question: AskedQuestion,
    pub expected: ExpectedAnswer,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ExpectedAnswer {
    /// One of these pods answers, and sees one of these source addresses; any if there are none.
    Answer {
        pods: BTreeSet<String>,
        /// The source addresses that it may see.
        sources: Option<BTreeSet<IpAddr>>,
    },
    Addresses(BTreeSet<IpAddr>),
    /// Packets pass, or the sender learns that they are too long.
    Path,
}

/// All questions, and the paths without questions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuestionPlan {
    pub asks: Vec<PlannedQuestion>,
    /// Paths that are not meant to exist, and why.
    pub closed: BTreeMap<TestPath, String>,
    /// Paths that should exist and cannot be tested, and why.
    pub missing: BTreeMap<TestPath, String>,
    /// Questions that cannot be asked, on paths that other questions test.
    pub untestable: Vec<UntestableQuestion>,
}

/// A question that cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntestableQuestion {
    /// The asker, as an index into the setup's probers.
    pub asker: usize,
    /// The path that it would have tested.
    pub path: TestPath,
    /// As text: `milan-1a cannot be asked`.
    pub words: String,
    pub why: String,
    pub advice: &'static str,
}

const NO_ADDRESS: &str = "a remote pod gets its address here when its provider reports it: see `kubectl describe pod`, `liqoctl status`, and `liqoctl doctor`";
const OUTSIDE: &str = "a cluster announces only known ranges of pods: set all of them with `liqoctl install --set network.podCIDRs=...` in the \
    cluster of that pod (`liqoctl doctor` there, pod-addresses)";
const NO_FALLBACK_ADDRESS: &str = "nodes are seen as addresses of network.externalCIDRs: `liqoctl doctor` in both clusters (own-ranges, network-agreed)";
const NO_PORT: &str = "the API server did not assign it: `kubectl describe service`, and the range of node ports of the API server";

/// Plans all questions of this setup.
pub fn plan_questions(setup: &NetworkTestSetup) -> QuestionPlan {
    let mut plan = QuestionPlan::default();
    let clusters = 0..setup.clusters.len();
    for (number, asker) in setup.probers.iter().enumerate() {
        for target in clusters.clone() {
            for to in [TargetKind::Pod, TargetKind::Service, TargetKind::NodePort] {
                let path = TestPath {
                    from: (asker.cluster, asker.kind),
                    to: (target, to),
                };
                let mut questions = PathQuestions {
                    setup,
                    number,
                    asker,
                    target,
                    path,
                    plan: &mut plan,
                };
                match questions.find_obstacle() {
                    Some(PathObstacle::Closed(why)) => drop(plan.closed.insert(path, why)),
                    Some(PathObstacle::Missing(why)) => drop(plan.missing.insert(path, why)),
                    None => questions.add_path_questions(),
                }
            }
        }
    }
    plan
}

enum PathObstacle {
    Closed(String),
    Missing(String),
}

/// The addresses of a pod, as somebody else sees them.
#[derive(Default)]
struct VisibleAddresses {
    seen: Vec<IpAddr>,
    unseen: Vec<UnseenAddress>,
}

struct UnseenAddress {
    why: String,
    advice: &'static str,
}

struct PathQuestions<'a> {
    setup: &'a NetworkTestSetup,
    number: usize,
    asker: &'a Prober,
    target: usize,
    path: TestPath,
    plan: &'a mut QuestionPlan,
}

impl PathQuestions<'_> {
    /// Reason why no question can be asked.
    fn find_obstacle(&self) -> Option<PathObstacle> {
        let Self {
            setup,
            asker,
            target,
            ..
        } = self;
        let (from, to) = (&setup.clusters[asker.cluster], &setup.clusters[*target]);
        let home = &setup.clusters[0].name;
        for member in [from, to] {
            match &member.sees {
                HomeView::Unwanted(why) => return Some(PathObstacle::Closed(why.clone())),
                HomeView::Nothing(why) => return Some(PathObstacle::Missing(why.clone())),
                HomeView::Itself | HomeView::By(_) => {}
            }
        }
        if let HomeView::Nothing(why) = setup.home_view(asker) {
            return Some(PathObstacle::Missing(why.clone()));
        }
        if self.path.to.1 == TargetKind::NodePort && asker.cluster != 0 {
            return Some(PathObstacle::Closed(format!(
                "nodes of {home} are closed to other clusters, and a Service has node ports only in {home}"
            )));
        }
        let mut pods = setup.pods(*target).peekable();
        if pods.peek().is_none() {
            return Some(PathObstacle::Missing(format!(
                "there is no pod in {}",
                to.name
            )));
        }
        let addresses: Vec<IpAddr> = pods.flat_map(|pod| &pod.addresses).copied().collect();
        if addresses.is_empty() {
            return Some(PathObstacle::Missing(format!(
                "the pods in {} have no address at {home}",
                to.name
            )));
        }
        // Home decides whether two providers reach each other, and both have to allow it.
        let is_leaf_to_leaf = asker.cluster != *target && asker.cluster != 0 && *target != 0;
        if is_leaf_to_leaf
            && addresses
                .iter()
                .all(|address| setup.home_view(asker).seen_address(*address).is_none())
        {
            if from.transit && to.transit {
                return Some(PathObstacle::Missing(format!(
                    "{home} should forward packets between {} and {} (spec.network.transit of its PeeringPolicies), but {} does not see the other's pods: \
                     see its link NetworkAgreed in {home}",
                    from.name, to.name, from.name
                )));
            }
            return Some(PathObstacle::Closed(format!(
                "{home} does not forward packets between {} and {}: set spec.network.transit in the PeeringPolicies of {home} that apply to them",
                from.name, to.name
            )));
        }
        None
    }

    fn add_path_questions(&mut self) {
        match self.path.to.1 {
            TargetKind::Pod => self.add_pod_questions(),
            TargetKind::Service => self.add_service_questions(),
            TargetKind::NodePort => self.add_node_port_questions(),
        }
    }

    fn is_near(&self) -> bool {
        self.asker.cluster == self.target
    }

    fn add_question(&mut self, whom: &str, to: &str, what: QuestionKind, expected: ExpectedAnswer) {
        let how = match &what {
            QuestionKind::Tcp => "by TCP".to_owned(),
            QuestionKind::Udp { bytes } if *bytes > usize::from(MAX_PACKET_LEN) => {
                format!("by UDP with {bytes} bytes, fragmented,")
            }
            QuestionKind::Udp { .. } => "by UDP".to_owned(),
            QuestionKind::Bulk { bytes } => {
                format!("by TCP with {} kB there and back", bytes / 1_000)
            }
            QuestionKind::Path { .. } => "with packets that may not be fragmented".to_owned(),
            _ => "by name".to_owned(),
        };
        let words = format!("{whom} {how} at {to}");
        let question = AskedQuestion {
            to: to.to_owned(),
            what,
        };
        self.plan.asks.push(PlannedQuestion {
            asker: self.number,
            path: self.path,
            words,
            question,
            expected,
        });
    }

    fn add_untestable(&mut self, words: String, why: String, advice: &'static str) {
        self.plan.untestable.push(UntestableQuestion {
            asker: self.number,
            path: self.path,
            words,
            why,
            advice,
        });
    }

    /// The addresses of a pod as another pod or a node sees them. Leaves out an address family that
    /// the cluster and home do not share.
    fn visible_addresses(&self, by: &Prober, pod: &Prober) -> VisibleAddresses {
        let (member, view) = (&self.setup.clusters[by.cluster], self.setup.home_view(by));
        let mut found = VisibleAddresses::default();
        for &address in &pod.addresses {
            match view.seen_address(address) {
                Some(address) => found.seen.push(address),
                None if member.shares_family(address.is_ipv4()) => {
                    found.unseen.push(UnseenAddress {
                        why: format!(
                            "{} has the address {address}, which is in no prefix that {} knows",
                            pod.pod, member.name
                        ),
                        advice: OUTSIDE,
                    });
                }
                None => {}
            }
        }
        if found.seen.is_empty() && found.unseen.is_empty() {
            let known = if pod.addresses.is_empty() {
                "no address"
            } else {
                "no address of a family that both clusters have"
            };
            found.unseen.push(UnseenAddress {
                why: format!("{} has {known} at {}", pod.pod, self.setup.clusters[0].name),
                advice: NO_ADDRESS,
            });
        }
        found
    }

    /// Whether the asker has an address of this family, as far as its addresses are known. Remote
    /// nodes have fallback addresses.
    fn has_family(&self, of: IpAddr) -> bool {
        let own: BTreeSet<IpAddr> = match self.asker.kind {
            AskerKind::Pod => self.asker.addresses.iter().copied().collect(),
            AskerKind::Node if self.is_near() => return true,
            AskerKind::Node => self.fallback_addresses(),
        };
        own.is_empty() || own.iter().any(|own| own.is_ipv4() == of.is_ipv4())
    }

    /// The different views of home that the asked pods have.
    fn distinct_views(&self) -> Vec<&'_ Prober> {
        let mut views: Vec<&Prober> = Vec::new();
        for pod in self.setup.pods(self.target) {
            if views
                .iter()
                .all(|known| self.setup.home_view(known) != self.setup.home_view(pod))
            {
                views.push(pod);
            }
        }
        views
    }

    /// The source addresses that pods see if the asker calls them by their addresses; nothing if
    /// any is right, or if nobody knows. A missing address that should be known is an error.
    fn own_address(&mut self) -> Option<BTreeSet<IpAddr>> {
        if self
            .distinct_views()
            .into_iter()
            .any(|pod| matches!(self.setup.home_view(pod), HomeView::Nothing(_)))
        {
            return None;
        }
        let mut known = BTreeSet::new();
        let mut unknown = Vec::new();
        match self.asker.kind {
            AskerKind::Pod => {
                for pod in self.distinct_views() {
                    let found = self.visible_addresses(pod, self.asker);
                    known.extend(found.seen);
                    unknown.extend(found.unseen);
                }
            }
            // Within one cluster it may be any address of the node.
            AskerKind::Node if self.is_near() => return None,
            AskerKind::Node => {
                known = self.fallback_addresses();
                if known.is_empty() {
                    let (from, to) = (
                        self.setup.cluster_name(self.asker.cluster),
                        self.setup.cluster_name(self.target),
                    );
                    unknown.push(UnseenAddress {
                        why: format!("{to} knows no fallback address for the nodes of {from}"),
                        advice: NO_FALLBACK_ADDRESS,
                    });
                }
            }
        }
        for UnseenAddress { why, advice } in unknown {
            self.add_untestable("its source address is not known".to_owned(), why, advice);
        }
        Some(known).filter(|known| !known.is_empty())
    }

    /// The fallback addresses of the asker's node, as the asked pods see them.
    fn fallback_addresses(&self) -> BTreeSet<IpAddr> {
        let all = &self.setup.clusters[self.asker.cluster].fallback_addresses;
        self.distinct_views()
            .into_iter()
            .flat_map(|pod| {
                all.iter()
                    .filter_map(|&address| self.setup.home_view(pod).seen_address(address))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// The same for a call to a Service: the source may be the asker's node. Within one cluster
    /// that can be any address.
    fn own_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        if self.is_near() {
            return None;
        }
        let mut known = self.own_address()?;
        known.extend(self.fallback_addresses());
        Some(known)
    }

    fn add_pod_questions(&mut self) {
        let (setup, asker) = (self.setup, self.asker);
        let is_first = !self.plan.asks.iter().any(|ask| ask.path == self.path);
        let mut bytes = if is_first { BULK } else { SOME };
        let others: Vec<&Prober> = setup
            .pods(self.target)
            .filter(|pod| pod.pod != asker.pod)
            .collect();
        let sources = if others.is_empty() {
            None
        } else {
            self.own_address()
        };
        for pod in others {
            let VisibleAddresses { seen, mut unseen } = self.visible_addresses(asker, pod);
            let reached: Vec<IpAddr> = seen
                .iter()
                .copied()
                .filter(|address| self.has_family(*address))
                .collect();
            if !seen.is_empty() && reached.is_empty() {
                let advice = if asker.kind == AskerKind::Node {
                    NO_FALLBACK_ADDRESS
                } else {
                    NO_ADDRESS
                };
                unseen.push(UnseenAddress {
                    why: format!("{} has no address of a family that the asker has", pod.pod),
                    advice,
                });
            }
            for UnseenAddress { why, advice } in unseen {
                self.add_untestable(format!("{} cannot be asked", pod.pod), why, advice);
            }
            for address in reached {
                let to = SocketAddr::new(address, PORT).to_string();
                let expected = ExpectedAnswer::Answer {
                    pods: [pod.pod.clone()].into(),
                    sources: sources.clone(),
                };
                for what in [
                    QuestionKind::Tcp,
                    QuestionKind::Udp { bytes: 0 },
                    QuestionKind::Udp {
                        bytes: FRAGMENTED_LEN,
                    },
                ] {
                    self.add_question(&pod.pod, &to, what, expected.clone());
                }
                if !self.is_near() {
                    self.add_question(&pod.pod, &to, QuestionKind::Bulk { bytes }, expected);
                    bytes = SOME;
                    self.add_question(
                        &pod.pod,
                        &to,
                        QuestionKind::Path {
                            largest: MAX_PACKET_LEN,
                        },
                        ExpectedAnswer::Path,
                    );
                }
            }
        }
    }

    fn add_service_questions(&mut self) {
        let setup = self.setup;
        let service = &setup.clusters[self.target].service;
        let namespace = &setup.clusters[self.asker.cluster].namespace;
        let pods: BTreeSet<String> = setup.pods(self.target).map(|pod| pod.pod.clone()).collect();
        let whom = format!("Service {}", service.name);
        let expected = ExpectedAnswer::Answer {
            pods,
            sources: self.own_addresses(),
        };
        let full = format!("{}.{namespace}.svc:{PORT}", service.name);
        let mut names = vec![full.clone()];
        if self.asker.kind == AskerKind::Pod {
            names.push(format!("{}:{PORT}", service.name));
        }
        if self.asker.cluster == 0 {
            if service.addresses.is_empty() {
                self.add_untestable(
                    format!("{whom} cannot be asked by its address"),
                    "it has none".to_owned(),
                    NO_PORT,
                );
            }
            let own = service
                .addresses
                .iter()
                .filter(|address| self.has_family(**address));
            names.extend(own.map(|address| SocketAddr::new(*address, PORT).to_string()));
        }
        for name in &names {
            self.add_question(&whom, name, QuestionKind::Tcp, expected.clone());
        }
        self.add_question(&whom, &full, QuestionKind::Udp { bytes: 0 }, expected);
        let addresses = setup
            .pods(self.target)
            .flat_map(|pod| setup.in_services(pod, setup.home_view(self.asker)))
            .collect();
        let each = format!("{}-each.{namespace}.svc:{PORT}", service.name);
        self.add_question(
            &format!("Service {}-each", service.name),
            &each,
            QuestionKind::Resolve,
            ExpectedAnswer::Addresses(addresses),
        );
    }

    fn add_node_port_questions(&mut self) {
        let setup = self.setup;
        let service = &setup.clusters[self.target].service;
        let Some((tcp, udp)) = service.node_ports else {
            return self.add_untestable(
                format!("Service {} cannot be asked", service.name),
                "it has no node ports".to_owned(),
                NO_PORT,
            );
        };
        let pods: BTreeSet<String> = setup.pods(self.target).map(|pod| pod.pod.clone()).collect();
        let expected = ExpectedAnswer::Answer {
            pods,
            sources: self.own_addresses(),
        };
        for (node, address) in &setup.nodes {
            let whom = format!("Service {} on node {node}", service.name);
            self.add_question(
                &whom,
                &SocketAddr::new(*address, tcp).to_string(),
                QuestionKind::Tcp,
                expected.clone(),
            );
            self.add_question(
                &whom,
                &SocketAddr::new(*address, udp).to_string(),
                QuestionKind::Udp { bytes: 0 },
                expected.clone(),
            );
        }
    }
}
