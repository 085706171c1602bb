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
}

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
        let Some(address) = pods.find_map(|pod| pod.address) else {
            return Some(Obstacle::Missing(format!("the pods in {} have no address at {home}", to.name)));
        };
        // Between two others home decides, and both have to be told.
        let is_leaf_to_leaf = asker.cluster != *target && asker.cluster != 0 && *target != 0;
        if is_leaf_to_leaf && scene.seen(asker.cluster, address).is_none() {
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

    /// How the asker looks to the pods that it asks by their addresses.
    fn own_address(&self) -> Option<BTreeSet<IpAddr>> {
        match self.asker.kind {
            From::Pod => self.scene.seen(self.target, self.asker.address?).map(|there| [there].into()),
            // Near it may be any of the node's addresses.
            From::Node if self.is_near() => None,
            From::Node => Some(self.stand_ins()).filter(|all| !all.is_empty()),
        }
    }

    /// What stands for the asker's node, as the pods that it asks see it.
    fn stand_ins(&self) -> BTreeSet<IpAddr> {
        let all = self.scene.clusters[self.asker.cluster].stand_ins.iter();
        all.filter_map(|&address| self.scene.seen(self.target, address)).collect()
    }

    /// The same by way of a Service: the asker's node may stand for it. Near, that can be any address.
    fn own_addresses(&self) -> Option<BTreeSet<IpAddr>> {
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
        for pod in scene.pods(self.target).filter(|pod| pod.pod != asker.pod) {
            // One alone without an address is behind those that have one.
            let Some(address) = pod.address.and_then(|address| scene.seen(asker.cluster, address)) else { continue };
            let to = SocketAddr::new(address, PORT).to_string();
            let expected = Expected::Answer { pods: [pod.pod.clone()].into(), sources: self.own_address() };
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
            names.extend(service.address.map(|address| SocketAddr::new(address, PORT).to_string()));
        }
        for name in &names {
            self.add(&whom, name, What::Tcp, expected.clone());
        }
        self.add(&whom, &full, What::Udp { bytes: 0 }, expected);
        let addresses = scene.pods(self.target).filter_map(|pod| scene.seen(self.asker.cluster, pod.address?)).collect();
        let each = format!("{}-each.{namespace}.svc:{PORT}", service.name);
        self.add(&format!("Service {}-each", service.name), &each, What::Resolve, Expected::Addresses(addresses));
    }

    fn node_port(&mut self) {
        let scene = self.scene;
        let service = &scene.clusters[self.target].service;
        let Some((tcp, udp)) = service.node_ports else { return };
        let pods: BTreeSet<String> = scene.pods(self.target).map(|pod| pod.pod.clone()).collect();
        let expected = Expected::Answer { pods, sources: self.own_addresses() };
        for (node, address) in &scene.nodes {
            let whom = format!("Service {} on node {node}", service.name);
            self.add(&whom, &SocketAddr::new(*address, tcp).to_string(), What::Tcp, expected.clone());
            self.add(&whom, &SocketAddr::new(*address, udp).to_string(), What::Udp { bytes: 0 }, expected.clone());
        }
    }
}
