//! The questions, and the right answer to each.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use liqo_network_probe::{PORT, Question, What};
use serde::Serialize;

use super::scene::{From, Prober, Scene, Sees};

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
pub enum To {
    /// Pods by their addresses.
    Pod,
    /// A Service, by address and names.
    Service,
    /// The Service's port on nodes of home.
    NodePort,
}

/// A path: from whom, to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The asking cluster, and whether a pod or a node asks.
    pub from: (usize, From),
    /// The asked cluster, and how its pods are reached.
    pub to: (usize, To),
}

/// A question and its right answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The asker, as an index into the scene's probers.
    pub asker: usize,
    /// The path that it tests.
    pub path: Path,
    /// As text: `milan-1a by TCP at 10.65.0.9:7462`.
    pub words: String,
    pub question: Question,
    pub expected: Expected,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
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
pub struct Plan {
    pub asks: Vec<Ask>,
    /// Paths that are not meant to exist, and why.
    pub closed: BTreeMap<Path, String>,
    /// Paths that should exist and cannot be tested, and why.
    pub missing: BTreeMap<Path, String>,
    /// Questions that cannot be asked, on paths that other questions test.
    pub lost: Vec<Untestable>,
}

/// A question that cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untestable {
    /// The asker, as an index into the scene's probers.
    pub asker: usize,
    /// The path that it would have tested.
    pub path: Path,
    /// As text: `milan-1a cannot be asked`.
    pub words: String,
    pub why: String,
    pub advice: &'static str,
}

const NO_ADDRESS: &str = "a remote pod gets its address here when its provider reports it: see `kubectl describe pod`, `liqoctl status`, and `liqoctl doctor`";
const OUTSIDE: &str = "a cluster announces only known ranges of pods: set all of them with `liqoctl install --set network.podCIDRs=...` in the \
    cluster of that pod (`liqoctl doctor` there, pod-addresses)";
const NO_STAND_IN: &str = "nodes are seen as addresses of network.externalCIDRs: `liqoctl doctor` in both clusters (own-ranges, network-agreed)";
const NO_PORT: &str = "the API server did not assign it: `kubectl describe service`, and the range of node ports of the API server";

/// Plans all questions of this scene.
pub fn plan(scene: &Scene) -> Plan {
    let mut plan = Plan::default();
    let clusters = 0..scene.clusters.len();
    for (number, asker) in scene.probers.iter().enumerate() {
        for target in clusters.clone() {
            for to in [To::Pod, To::Service, To::NodePort] {
                let path = Path {
                    from: (asker.cluster, asker.kind),
                    to: (target, to),
                };
                let mut questions = Questions {
                    scene,
                    number,
                    asker,
                    target,
                    path,
                    plan: &mut plan,
                };
                match questions.obstacle() {
                    Some(Obstacle::Closed(why)) => drop(plan.closed.insert(path, why)),
                    Some(Obstacle::Missing(why)) => drop(plan.missing.insert(path, why)),
                    None => questions.ask(),
                }
            }
        }
    }
    plan
}

enum Obstacle {
    Closed(String),
    Missing(String),
}

struct Questions<'a> {
    scene: &'a Scene,
    number: usize,
    asker: &'a Prober,
    target: usize,
    path: Path,
    plan: &'a mut Plan,
}

impl Questions<'_> {
    /// Reason why no question can be asked.
    fn obstacle(&self) -> Option<Obstacle> {
        let Self {
            scene,
            asker,
            target,
            ..
        } = self;
        let (from, to) = (&scene.clusters[asker.cluster], &scene.clusters[*target]);
        let home = &scene.clusters[0].name;
        for member in [from, to] {
            match &member.sees {
                Sees::Unwanted(why) => return Some(Obstacle::Closed(why.clone())),
                Sees::Nothing(why) => return Some(Obstacle::Missing(why.clone())),
                Sees::Itself | Sees::By(_) => {}
            }
        }
        if let Sees::Nothing(why) = scene.sees(asker) {
            return Some(Obstacle::Missing(why.clone()));
        }
        if self.path.to.1 == To::NodePort && asker.cluster != 0 {
            return Some(Obstacle::Closed(format!(
                "nodes of {home} are closed to other clusters, and a Service has node ports only in {home}"
            )));
        }
        let mut pods = scene.pods(*target).peekable();
        if pods.peek().is_none() {
            return Some(Obstacle::Missing(format!("there is no pod in {}", to.name)));
        }
        let addresses: Vec<IpAddr> = pods.flat_map(|pod| &pod.addresses).copied().collect();
        if addresses.is_empty() {
            return Some(Obstacle::Missing(format!(
                "the pods in {} have no address at {home}",
                to.name
            )));
        }
        // Home decides whether two providers reach each other, and both have to allow it.
        let is_leaf_to_leaf = asker.cluster != *target && asker.cluster != 0 && *target != 0;
        if is_leaf_to_leaf
            && addresses
                .iter()
                .all(|address| scene.sees(asker).address(*address).is_none())
        {
            if from.transit && to.transit {
                return Some(Obstacle::Missing(format!(
                    "{home} should forward packets between {} and {} (spec.network.transit of its PeeringPolicies), but {} does not see the other's pods: \
                     see its link NetworkAgreed in {home}",
                    from.name, to.name, from.name
                )));
            }
            return Some(Obstacle::Closed(format!(
                "{home} does not forward packets between {} and {}: set spec.network.transit in the PeeringPolicies of {home} that apply to them",
                from.name, to.name
            )));
        }
        None
    }

    fn ask(&mut self) {
        match self.path.to.1 {
            To::Pod => self.pods(),
            To::Service => self.service(),
            To::NodePort => self.node_port(),
        }
    }

    fn is_near(&self) -> bool {
        self.asker.cluster == self.target
    }

    fn add(&mut self, whom: &str, to: &str, what: What, expected: Expected) {
        let how = match &what {
            What::Tcp => "by TCP".to_owned(),
            What::Udp { bytes } if *bytes > usize::from(MAX_PACKET_LEN) => {
                format!("by UDP with {bytes} bytes, fragmented,")
            }
            What::Udp { .. } => "by UDP".to_owned(),
            What::Bulk { bytes } => format!("by TCP with {} kB there and back", bytes / 1_000),
            What::Path { .. } => "with packets that may not be fragmented".to_owned(),
            _ => "by name".to_owned(),
        };
        let words = format!("{whom} {how} at {to}");
        let question = Question {
            to: to.to_owned(),
            what,
        };
        self.plan.asks.push(Ask {
            asker: self.number,
            path: self.path,
            words,
            question,
            expected,
        });
    }

    fn lose(&mut self, words: String, why: String, advice: &'static str) {
        self.plan.lost.push(Untestable {
            asker: self.number,
            path: self.path,
            words,
            why,
            advice,
        });
    }

    /// The addresses of a pod as another pod or a node sees them, and why others are not visible,
    /// with advice. Leaves out an address family that the cluster and home do not share.
    fn seen(&self, by: &Prober, pod: &Prober) -> (Vec<IpAddr>, Vec<(String, &'static str)>) {
        let (member, view) = (&self.scene.clusters[by.cluster], self.scene.sees(by));
        let (mut seen, mut unseen) = (Vec::new(), Vec::new());
        for &address in &pod.addresses {
            match view.address(address) {
                Some(address) => seen.push(address),
                None if member.shares(address.is_ipv4()) => unseen.push((
                    format!(
                        "{} has the address {address}, which is in no prefix that {} knows",
                        pod.pod, member.name
                    ),
                    OUTSIDE,
                )),
                None => {}
            }
        }
        if seen.is_empty() && unseen.is_empty() {
            let known = if pod.addresses.is_empty() {
                "no address"
            } else {
                "no address of a family that both clusters have"
            };
            unseen.push((
                format!("{} has {known} at {}", pod.pod, self.scene.clusters[0].name),
                NO_ADDRESS,
            ));
        }
        (seen, unseen)
    }

    /// Whether the asker has an address of this family, as far as its addresses are known. Remote
    /// nodes have fallback addresses.
    fn has_family(&self, of: IpAddr) -> bool {
        let own: BTreeSet<IpAddr> = match self.asker.kind {
            From::Pod => self.asker.addresses.iter().copied().collect(),
            From::Node if self.is_near() => return true,
            From::Node => self.stand_ins(),
        };
        own.is_empty() || own.iter().any(|own| own.is_ipv4() == of.is_ipv4())
    }

    /// The different views of home that the asked pods have.
    fn views(&self) -> Vec<&'_ Prober> {
        let mut views: Vec<&Prober> = Vec::new();
        for pod in self.scene.pods(self.target) {
            if views
                .iter()
                .all(|known| self.scene.sees(known) != self.scene.sees(pod))
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
            .views()
            .into_iter()
            .any(|pod| matches!(self.scene.sees(pod), Sees::Nothing(_)))
        {
            return None;
        }
        let (known, unknown): (BTreeSet<IpAddr>, Vec<_>) = match self.asker.kind {
            From::Pod => {
                let all: Vec<_> = self
                    .views()
                    .into_iter()
                    .map(|pod| self.seen(pod, self.asker))
                    .collect();
                let (seen, unseen): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                (
                    seen.into_iter().flatten().collect(),
                    unseen.into_iter().flatten().collect(),
                )
            }
            // Within one cluster it may be any address of the node.
            From::Node if self.is_near() => return None,
            From::Node => {
                let (from, to) = (
                    &self.scene.clusters[self.asker.cluster].name,
                    &self.scene.clusters[self.target].name,
                );
                let known = self.stand_ins();
                let why = (
                    format!("{to} knows no fallback address for the nodes of {from}"),
                    NO_STAND_IN,
                );
                let unknown = if known.is_empty() {
                    vec![why]
                } else {
                    Vec::new()
                };
                (known, unknown)
            }
        };
        for (why, advice) in unknown {
            self.lose("its source address is not known".to_owned(), why, advice);
        }
        Some(known).filter(|known| !known.is_empty())
    }

    /// The fallback addresses of the asker's node, as the asked pods see them.
    fn stand_ins(&self) -> BTreeSet<IpAddr> {
        let all = &self.scene.clusters[self.asker.cluster].stand_ins;
        let seen = |pod: &Prober| {
            all.iter()
                .filter_map(|&address| self.scene.sees(pod).address(address))
                .collect::<Vec<_>>()
        };
        self.views().into_iter().flat_map(seen).collect()
    }

    /// The same for a call to a Service: the source may be the asker's node. Within one cluster
    /// that can be any address.
    fn own_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        if self.is_near() {
            return None;
        }
        let mut known = self.own_address()?;
        known.extend(self.stand_ins());
        Some(known)
    }

    fn pods(&mut self) {
        let (scene, asker) = (self.scene, self.asker);
        let is_first = !self.plan.asks.iter().any(|ask| ask.path == self.path);
        let mut bytes = if is_first { BULK } else { SOME };
        let others: Vec<&Prober> = scene
            .pods(self.target)
            .filter(|pod| pod.pod != asker.pod)
            .collect();
        let sources = if others.is_empty() {
            None
        } else {
            self.own_address()
        };
        for pod in others {
            let (seen, mut unseen) = self.seen(asker, pod);
            let reached: Vec<IpAddr> = seen
                .iter()
                .copied()
                .filter(|address| self.has_family(*address))
                .collect();
            if !seen.is_empty() && reached.is_empty() {
                let advice = if asker.kind == From::Node {
                    NO_STAND_IN
                } else {
                    NO_ADDRESS
                };
                unseen.push((
                    format!("{} has no address of a family that the asker has", pod.pod),
                    advice,
                ));
            }
            for (why, advice) in unseen {
                self.lose(format!("{} cannot be asked", pod.pod), why, advice);
            }
            for address in reached {
                let to = SocketAddr::new(address, PORT).to_string();
                let expected = Expected::Answer {
                    pods: [pod.pod.clone()].into(),
                    sources: sources.clone(),
                };
                for what in [
                    What::Tcp,
                    What::Udp { bytes: 0 },
                    What::Udp {
                        bytes: FRAGMENTED_LEN,
                    },
                ] {
                    self.add(&pod.pod, &to, what, expected.clone());
                }
                if !self.is_near() {
                    self.add(&pod.pod, &to, What::Bulk { bytes }, expected);
                    bytes = SOME;
                    self.add(
                        &pod.pod,
                        &to,
                        What::Path {
                            largest: MAX_PACKET_LEN,
                        },
                        Expected::Path,
                    );
                }
            }
        }
    }

    fn service(&mut self) {
        let scene = self.scene;
        let service = &scene.clusters[self.target].service;
        let namespace = &scene.clusters[self.asker.cluster].namespace;
        let pods: BTreeSet<String> = scene.pods(self.target).map(|pod| pod.pod.clone()).collect();
        let whom = format!("Service {}", service.name);
        let expected = Expected::Answer {
            pods,
            sources: self.own_addresses(),
        };
        let full = format!("{}.{namespace}.svc:{PORT}", service.name);
        let mut names = vec![full.clone()];
        if self.asker.kind == From::Pod {
            names.push(format!("{}:{PORT}", service.name));
        }
        if self.asker.cluster == 0 {
            if service.addresses.is_empty() {
                self.lose(
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
            self.add(&whom, name, What::Tcp, expected.clone());
        }
        self.add(&whom, &full, What::Udp { bytes: 0 }, expected);
        let addresses = scene
            .pods(self.target)
            .flat_map(|pod| scene.in_services(pod, scene.sees(self.asker)))
            .collect();
        let each = format!("{}-each.{namespace}.svc:{PORT}", service.name);
        self.add(
            &format!("Service {}-each", service.name),
            &each,
            What::Resolve,
            Expected::Addresses(addresses),
        );
    }

    fn node_port(&mut self) {
        let scene = self.scene;
        let service = &scene.clusters[self.target].service;
        let Some((tcp, udp)) = service.node_ports else {
            return self.lose(
                format!("Service {} cannot be asked", service.name),
                "it has no node ports".to_owned(),
                NO_PORT,
            );
        };
        let pods: BTreeSet<String> = scene.pods(self.target).map(|pod| pod.pod.clone()).collect();
        let expected = Expected::Answer {
            pods,
            sources: self.own_addresses(),
        };
        for (node, address) in &scene.nodes {
            let whom = format!("Service {} on node {node}", service.name);
            self.add(
                &whom,
                &SocketAddr::new(*address, tcp).to_string(),
                What::Tcp,
                expected.clone(),
            );
            self.add(
                &whom,
                &SocketAddr::new(*address, udp).to_string(),
                What::Udp { bytes: 0 },
                expected.clone(),
            );
        }
    }
}
