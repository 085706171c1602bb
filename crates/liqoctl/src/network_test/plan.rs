//! Which questions are asked, and what the right answer to each is.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use liqo_probe::{PORT, Question, What};
use serde::Serialize;

use super::scene::{From, Party, Scene, Sees};

/// So many bytes go there and back between clusters, once for each kind of asker.
const BULK: u64 = 8_000_000;
/// And so many between each two: enough to see that large packets pass.
const SOME: u64 = 250_000;
/// A datagram of this length travels in pieces.
const PIECES: usize = 4_000;
/// The largest packet that is tried in one piece: what Ethernet carries.
const LARGEST: u16 = 1_500;

/// What is asked.
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

/// A way: from whom, to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// Which cluster asks, and as what.
    pub from: (usize, From),
    /// Which cluster's pods are meant, and how they are reached.
    pub to: (usize, To),
}

/// A question, and the right answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Who asks, by place in the scene.
    pub asker: usize,
    /// The way that it tests.
    pub way: Way,
    /// In words: `milan-1a by TCP at 10.65.0.9:7462`.
    pub words: String,
    /// The question.
    pub question: Question,
    /// The right answer.
    pub expected: Expected,
}

/// The right answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// One of these pods answers, and takes the asker for one of these; for whomever where nothing is said.
    Answer {
        /// The pods.
        pods: BTreeSet<String>,
        /// How the asker looks there.
        sources: Option<BTreeSet<IpAddr>>,
    },
    /// Exactly these.
    Addresses(BTreeSet<IpAddr>),
    /// Packets pass or are told that they are too long.
    Path,
}

/// All questions, and the ways on which there is nothing to ask.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The questions.
    pub asks: Vec<Ask>,
    /// Ways that nobody means to be there, and why.
    pub closed: BTreeMap<Way, String>,
    /// Ways that should be there and cannot even be tried, and why.
    pub missing: BTreeMap<Way, String>,
    /// What cannot be tried on ways that are tried otherwise.
    pub lost: Vec<Lost>,
}

/// Something that should be tried, and cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Who should have asked, by place in the scene.
    pub asker: usize,
    /// The way that it would have tested.
    pub way: Way,
    /// In words: `milan-1a cannot be asked`.
    pub words: String,
    /// Why not.
    pub why: String,
    /// What to do.
    pub advice: &'static str,
}

const NO_ADDRESS: &str = "a pod elsewhere has its address here once its provider has told of it: `kubectl describe pod`, `liqoctl status`, and `liqoctl doctor`";
const OUTSIDE: &str = "peers are told of the ranges of pods that are known: name all of them with `liqoctl install --set network.podCIDRs=...` in the \
    cluster of that pod (`liqoctl doctor` there, pod-addresses)";
const NO_STAND_IN: &str =
    "nodes are seen as addresses of network.externalCIDRs: `liqoctl doctor` in both clusters (own-ranges, network-agreed)";
const NO_PORT: &str = "the API server did not give it: `kubectl describe service`, and the range of node ports of the API server";

/// Everything that is asked in this scene.
pub fn plan(scene: &Scene) -> Plan {
    let mut plan = Plan::default();
    let clusters = 0..scene.clusters.len();
    for (number, asker) in scene.parties.iter().enumerate() {
        for target in clusters.clone() {
            for to in [To::Pod, To::Service, To::NodePort] {
                let way = Way { from: (asker.cluster, asker.kind), to: (target, to) };
                let mut questions = Questions { scene, number, asker, target, way, plan: &mut plan };
                match questions.obstacle() {
                    Some(Obstacle::Closed(why)) => drop(plan.closed.insert(way, why)),
                    Some(Obstacle::Missing(why)) => drop(plan.missing.insert(way, why)),
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
    asker: &'a Party,
    target: usize,
    way: Way,
    plan: &'a mut Plan,
}

impl Questions<'_> {
    /// Why nothing can be asked.
    fn obstacle(&self) -> Option<Obstacle> {
        let Self { scene, asker, target, .. } = self;
        let (from, to) = (&scene.clusters[asker.cluster], &scene.clusters[*target]);
        let home = &scene.clusters[0].name;
        for member in [from, to] {
            match &member.sees {
                Sees::Unwanted(why) => return Some(Obstacle::Closed(why.clone())),
                Sees::Nothing(why) => return Some(Obstacle::Missing(why.clone())),
                Sees::Itself | Sees::By(_) => {}
            }
        }
        if self.way.to.1 == To::NodePort && asker.cluster != 0 {
            return Some(Obstacle::Closed(format!(
                "nodes of {home} are closed to other clusters, and a Service has node ports at home only"
            )));
        }
        let mut pods = scene.pods(*target).peekable();
        if pods.peek().is_none() {
            return Some(Obstacle::Missing(format!("there is no pod in {}", to.name)));
        }
        let addresses: Vec<IpAddr> = pods.flat_map(|pod| &pod.addresses).copied().collect();
        if addresses.is_empty() {
            return Some(Obstacle::Missing(format!("the pods in {} have no address at {home}", to.name)));
        }
        // Between two others home decides, and both have to be told.
        let is_leaf_to_leaf = asker.cluster != *target && asker.cluster != 0 && *target != 0;
        if is_leaf_to_leaf && addresses.iter().all(|address| scene.seen(asker.cluster, *address).is_none()) {
            if from.transit && to.transit {
                return Some(Obstacle::Missing(format!(
                    "{home} is to pass packets on between {} and {} (spec.network.transit of its PeeringPolicies), and {} does not see the other's pods: \
                     see its link NetworkAgreed in {home}",
                    from.name, to.name, from.name
                )));
            }
            return Some(Obstacle::Closed(format!(
                "{home} does not pass packets on between {} and {}: set spec.network.transit in the PeeringPolicies of {home} that hold for them",
                from.name, to.name
            )));
        }
        None
    }

    fn ask(&mut self) {
        match self.way.to.1 {
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
            What::Udp { bytes } if *bytes > usize::from(LARGEST) => format!("by UDP with {bytes} bytes, in pieces,"),
            What::Udp { .. } => "by UDP".to_owned(),
            What::Bulk { bytes } => format!("by TCP with {} kB there and back", bytes / 1_000),
            What::Path { .. } => "with packets that may not be cut".to_owned(),
            _ => "by name".to_owned(),
        };
        let words = format!("{whom} {how} at {to}");
        let question = Question { to: to.to_owned(), what };
        self.plan.asks.push(Ask { asker: self.number, way: self.way, words, question, expected });
    }

    fn lose(&mut self, words: String, why: String, advice: &'static str) {
        self.plan.lost.push(Lost { asker: self.number, way: self.way, words, why, advice });
    }

    /// The addresses of a pod as those of a cluster see them, and why others are not seen, with what to do. A family that the cluster
    /// and home do not share is none of theirs.
    fn seen(&self, cluster: usize, pod: &Party) -> (Vec<IpAddr>, Vec<(String, &'static str)>) {
        let member = &self.scene.clusters[cluster];
        let (mut seen, mut unseen) = (Vec::new(), Vec::new());
        for &address in &pod.addresses {
            match self.scene.seen(cluster, address) {
                Some(address) => seen.push(address),
                None if member.shares(address.is_ipv4()) => unseen.push((
                    format!("{} has the address {address}, which is in no prefix that {} knows", pod.pod, member.name),
                    OUTSIDE,
                )),
                None => {}
            }
        }
        if seen.is_empty() && unseen.is_empty() {
            let known = if pod.addresses.is_empty() { "no address" } else { "no address of a family that both clusters have" };
            unseen.push((format!("{} has {known} at {}", pod.pod, self.scene.clusters[0].name), NO_ADDRESS));
        }
        (seen, unseen)
    }

    /// Whether the asker has an address of this family, as far as its addresses are known. Far away nodes have what stands for them.
    fn has_family(&self, of: IpAddr) -> bool {
        let own: BTreeSet<IpAddr> = match self.asker.kind {
            From::Pod => self.asker.addresses.iter().copied().collect(),
            From::Node if self.is_near() => return true,
            From::Node => self.stand_ins(),
        };
        own.is_empty() || own.iter().any(|own| own.is_ipv4() == of.is_ipv4())
    }

    /// How the asker looks to the pods that it asks by their addresses; nothing where that may be any. What should be known and is not
    /// is lost.
    fn own_address(&mut self) -> Option<BTreeSet<IpAddr>> {
        let (known, unknown): (BTreeSet<IpAddr>, Vec<_>) = match self.asker.kind {
            From::Pod => {
                let (seen, unseen) = self.seen(self.target, self.asker);
                (seen.into_iter().collect(), unseen)
            }
            // Near it may be any of the node's addresses.
            From::Node if self.is_near() => return None,
            From::Node => {
                let (from, to) = (&self.scene.clusters[self.asker.cluster].name, &self.scene.clusters[self.target].name);
                let known = self.stand_ins();
                let why = (format!("nothing that {to} knows stands for the nodes of {from}"), NO_STAND_IN);
                let unknown = if known.is_empty() { vec![why] } else { Vec::new() };
                (known, unknown)
            }
        };
        for (why, advice) in unknown {
            self.lose("as whom it should be seen is not known".to_owned(), why, advice);
        }
        Some(known).filter(|known| !known.is_empty())
    }

    /// What stands for the asker's node, as the pods that it asks see it.
    fn stand_ins(&self) -> BTreeSet<IpAddr> {
        let all = self.scene.clusters[self.asker.cluster].stand_ins.iter();
        all.filter_map(|&address| self.scene.seen(self.target, address)).collect()
    }

    /// The same by way of a Service: the asker's node may stand for it. Near, that can be any address.
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
        let is_first = !self.plan.asks.iter().any(|ask| ask.way == self.way);
        let mut bytes = if is_first { BULK } else { SOME };
        let others: Vec<&Party> = scene.pods(self.target).filter(|pod| pod.pod != asker.pod).collect();
        let sources = if others.is_empty() { None } else { self.own_address() };
        for pod in others {
            let (seen, mut unseen) = self.seen(asker.cluster, pod);
            let reached: Vec<IpAddr> = seen.iter().copied().filter(|address| self.has_family(*address)).collect();
            if !seen.is_empty() && reached.is_empty() {
                let advice = if asker.kind == From::Node { NO_STAND_IN } else { NO_ADDRESS };
                unseen.push((format!("{} has no address of a family that the asker has", pod.pod), advice));
            }
            for (why, advice) in unseen {
                self.lose(format!("{} cannot be asked", pod.pod), why, advice);
            }
            for address in reached {
                let to = SocketAddr::new(address, PORT).to_string();
                let expected = Expected::Answer { pods: [pod.pod.clone()].into(), sources: sources.clone() };
                for what in [What::Tcp, What::Udp { bytes: 0 }, What::Udp { bytes: PIECES }] {
                    self.add(&pod.pod, &to, what, expected.clone());
                }
                if !self.is_near() {
                    self.add(&pod.pod, &to, What::Bulk { bytes }, expected);
                    bytes = SOME;
                    self.add(&pod.pod, &to, What::Path { largest: LARGEST }, Expected::Path);
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
        let expected = Expected::Answer { pods, sources: self.own_addresses() };
        let full = format!("{}.{namespace}.svc:{PORT}", service.name);
        let mut names = vec![full.clone()];
        if self.asker.kind == From::Pod {
            names.push(format!("{}:{PORT}", service.name));
        }
        if self.asker.cluster == 0 {
            if service.addresses.is_empty() {
                self.lose(format!("{whom} cannot be asked by its address"), "it has none".to_owned(), NO_PORT);
            }
            let own = service.addresses.iter().filter(|address| self.has_family(**address));
            names.extend(own.map(|address| SocketAddr::new(*address, PORT).to_string()));
        }
        for name in &names {
            self.add(&whom, name, What::Tcp, expected.clone());
        }
        self.add(&whom, &full, What::Udp { bytes: 0 }, expected);
        let addresses = scene.pods(self.target).flat_map(|pod| scene.in_services(self.asker.cluster, pod)).collect();
        let each = format!("{}-each.{namespace}.svc:{PORT}", service.name);
        self.add(&format!("Service {}-each", service.name), &each, What::Resolve, Expected::Addresses(addresses));
    }

    fn node_port(&mut self) {
        let scene = self.scene;
        let service = &scene.clusters[self.target].service;
        let Some((tcp, udp)) = service.node_ports else {
            return self.lose(format!("Service {} cannot be asked", service.name), "it has no node ports".to_owned(), NO_PORT);
        };
        let pods: BTreeSet<String> = scene.pods(self.target).map(|pod| pod.pod.clone()).collect();
        let expected = Expected::Answer { pods, sources: self.own_addresses() };
        for (node, address) in &scene.nodes {
            let whom = format!("Service {} on node {node}", service.name);
            self.add(&whom, &SocketAddr::new(*address, tcp).to_string(), What::Tcp, expected.clone());
            self.add(&whom, &SocketAddr::new(*address, udp).to_string(), What::Udp { bytes: 0 }, expected.clone());
        }
    }
}
