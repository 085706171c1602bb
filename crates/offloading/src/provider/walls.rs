//! What pods in mapped namespaces reach, and who reaches them: the provider's limits, and within them what the consumer's own
//! `NetworkPolicy`s say. Pure.
//!
//! Policies of Kubernetes only ever add up, so limits cannot be a policy beside those of the consumer. Instead one policy,
//! `liqo`, closes all pods, and everything else is rendered here, with nothing in it that goes beyond the limits:
//!
//! - each policy of the consumer, see [`Walls::bound`];
//! - what pods may by default, for those that no policy of the consumer is for, see [`Walls::own_policies`]: else the default would
//!   open what the consumer's policy closes.
//!
//! | | who reaches pods | whom they reach |
//! |---|---|---|
//! | by default | the consumer's pods, here and elsewhere, and those through whom our policy lets the world in | these, the internet, names |
//! | at most | these, and the internet where the consumer says so | these, the internet, names |
//!
//! The internet is what is not private and not of this cluster or of a peer, see [`inside`]. Names are resolved by our own DNS, at port 53.
//! Where the consumer's pods may use our API server, that is reached as names are.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use liqo_api::{ClusterConfig, ClusterId, labels};
use serde_json::Value;

use super::{manifests, namespaces::MAPPED};
use crate::decide::{
    network_policies::{Block, NetworkPolicy, Peer, Port, PortNumber, Rule, everywhere, is_private},
    selectors::{Selector, complement},
};

/// The policy that closes all pods. The names of our others begin with it, too.
const OWN: &str = "liqo";
/// A policy is at most so long, in bytes of JSON, with what was excepted from its ranges.
const LONGEST: usize = 64 * 1024;
/// So many ranges are longer than that, whichever they are. A policy with more is not even written down.
const MOST_RANGES: usize = LONGEST / r#""0.0.0.0/0","#.len();
/// Beside so many networks that are not the internet a policy still has room for what it is about.
const MOST_INSIDE: usize = 1000;
/// The names of the port at which names are resolved.
const DNS_PORT_NAMES: [&str; 2] = ["dns", "dns-tcp"];

/// What limits the pods of one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walls {
    /// The consumer.
    pub consumer: ClusterId,
    /// What is not the internet although its addresses are not private, see [`inside`].
    pub inside: BTreeSet<IpNet>,
    /// The consumer's prefixes, as we see them: its pods in other clusters.
    pub prefixes: Vec<IpNet>,
    /// Our API servers, if the consumer's pods may use them.
    pub api_servers: Vec<SocketAddr>,
    /// Who else reaches its pods: see [`entrance`].
    pub entrances: Vec<Peer>,
}

/// Through whom the world reaches pods, as a policy names it: the pods of a namespace here, or a range of addresses.
pub fn entrance(said: &str) -> Option<Peer> {
    if said.contains('/') {
        return Some(Peer::Block(Block::new(said.parse::<IpNet>().ok()?.trunc(), [])?));
    }
    let namespaces = Selector::exactly(&[("kubernetes.io/metadata.name", said)]);
    Some(Peer::Elsewhere { namespaces, pods: None })
}

/// A consumer's policy within the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounded {
    /// What it may say.
    pub policy: NetworkPolicy,
    /// Ranges of which nothing is left.
    pub refused: BTreeSet<IpNet>,
}

/// What comes up while a policy is bounded.
#[derive(Default)]
struct Found {
    /// Ranges of which nothing is left.
    refused: BTreeSet<IpNet>,
    /// How many ranges the rules have until now, with what is excepted from them.
    ranges: usize,
}

impl Found {
    fn is_too_long(&self) -> bool {
        self.ranges > MOST_RANGES
    }

    /// These parts, which count from now on.
    fn counted(&mut self, parts: impl Iterator<Item = Block>) -> Vec<Block> {
        let parts: Vec<Block> = parts.collect();
        self.ranges += parts.iter().map(|part| 1 + part.except.len()).sum::<usize>();
        parts
    }
}

impl Walls {
    /// A policy of the consumer as it is to stand here. Nothing if that is too long.
    pub fn bound(&self, policy: &NetworkPolicy) -> Option<Bounded> {
        let mut found = Found::default();
        let mut rules = |rules: &Option<Vec<Rule>>, is_egress: bool| {
            let bounded = |rules: &Vec<Rule>| rules.iter().flat_map(|rule| self.rule(rule, is_egress, &mut found)).collect();
            rules.as_ref().map(bounded).map(|rules: BTreeSet<Rule>| rules.into_iter().collect())
        };
        let (ingress, egress) = (rules(&policy.ingress, false), rules(&policy.egress, true));
        if found.is_too_long() {
            return None;
        }
        let refused = found.refused;
        let policy = NetworkPolicy { pods: policy.pods.clone(), ingress, egress, narrowed: policy.narrowed };
        (policy.to_json().to_string().len() <= LONGEST).then_some(Bounded { policy, refused })
    }

    fn rule(&self, rule: &Rule, is_egress: bool, found: &mut Found) -> Vec<Rule> {
        if found.is_too_long() {
            return Vec::new();
        }
        let mut resolves = rule.peers.is_none();
        let peers = match &rule.peers {
            None => {
                let internet = found.counted(self.internet());
                found.refused.extend(everywhere().map(|all| all.cidr).into_iter().filter(|_| internet.is_empty()));
                let entrances = self.entrances.iter().filter(|_| !is_egress).cloned();
                self.tenant().chain(internet.into_iter().map(Peer::Block)).chain(entrances).collect()
            }
            Some(peers) => {
                let mut bounded = BTreeSet::new();
                for peer in peers {
                    if found.is_too_long() {
                        return Vec::new();
                    }
                    match peer {
                        dns if *dns == Peer::dns() => resolves = true,
                        Peer::Pods(_) => _ = bounded.insert(peer.clone()),
                        Peer::Elsewhere { namespaces, pods } => {
                            let namespaces = namespaces.clone().and(&self.namespaces());
                            bounded.insert(Peer::Elsewhere { namespaces, pods: pods.clone() });
                        }
                        Peer::Block(block) => {
                            let parts = found.counted(self.parts(block));
                            found.refused.extend(parts.is_empty().then_some(block.cidr));
                            bounded.extend(parts.into_iter().map(Peer::Block));
                        }
                    }
                }
                bounded
            }
        };
        let rules = Rule { peers: Some(peers), ports: rule.ports.clone() }.unless_empty().into_iter();
        let dns = (is_egress && resolves).then(|| dns_rule(rule.ports.as_ref()).unless_empty()).flatten();
        let is_everybody = is_egress && rule.peers.is_none();
        rules.chain(dns).chain(is_everybody.then(|| self.api_server_rules(rule.ports.as_ref())).into_iter().flatten()).collect()
    }

    /// What of a range may be met.
    fn parts(&self, block: &Block) -> impl Iterator<Item = Block> {
        let elsewhere = self.prefixes.iter().filter_map(|prefix| block.within(prefix));
        elsewhere.chain(block.on_the_internet(self.inside.iter().copied()))
    }

    /// The consumer's namespaces here.
    fn namespaces(&self) -> Selector {
        Selector::exactly(&[(labels::CONSUMER_ID, self.consumer.as_str()), (labels::NAMESPACE_KIND, MAPPED)])
    }

    /// The consumer's pods, here and elsewhere.
    fn tenant(&self) -> impl Iterator<Item = Peer> {
        let elsewhere = self.prefixes.iter().filter_map(|prefix| Block::new(*prefix, [])).map(Peer::Block);
        [Peer::Elsewhere { namespaces: self.namespaces(), pods: None }].into_iter().chain(elsewhere)
    }

    fn internet(&self) -> impl Iterator<Item = Block> {
        everywhere().into_iter().filter_map(|block| block.on_the_internet(self.inside.iter().copied()))
    }

    /// Each of our API servers that may be used, at its port if these ports have it.
    fn api_server_rules(&self, ports: Option<&BTreeSet<Port>>) -> Vec<Rule> {
        let has = |server: &&SocketAddr| ports.is_none_or(|ports| ports.iter().any(|port| port.has("TCP", server.port(), &[])));
        let rule = |server: &SocketAddr| {
            let port = Port { protocol: "TCP".to_owned(), port: Some(PortNumber::Number(server.port())), end: None };
            let block = Block::new(server.ip().into(), [])?;
            Some(Rule { peers: Some([Peer::Block(block)].into()), ports: Some([port].into()) })
        };
        self.api_servers.iter().filter(has).filter_map(rule).collect()
    }

    /// Our own policies, by name: the one that closes all pods, and those that say what is open by default, for the pods that none
    /// of these policies is for. Where that takes too many selectors, it is open to nobody.
    pub fn own_policies(&self, policies: &[NetworkPolicy]) -> BTreeMap<String, NetworkPolicy> {
        let to = |peers: BTreeSet<Peer>| Rule { peers: Some(peers), ports: None };
        let ingress = vec![to(self.tenant().chain(self.entrances.iter().cloned()).collect())];
        let mut egress = vec![to(self.tenant().chain(self.internet().map(Peer::Block)).collect()), dns_rule(None)];
        egress.extend(self.api_server_rules(None));
        let others = |says: fn(&NetworkPolicy) -> bool| {
            let selectors: BTreeSet<Selector> =
                policies.iter().filter(|policy| says(policy)).map(|policy| policy.pods.clone()).collect();
            complement(&selectors).unwrap_or_default()
        };
        let ingress = others(|policy| policy.ingress.is_some()).into_iter().map(|pods| NetworkPolicy {
            pods,
            ingress: Some(ingress.clone()),
            egress: None,
            narrowed: false,
        });
        let egress = others(|policy| policy.egress.is_some()).into_iter().map(|pods| NetworkPolicy {
            pods,
            ingress: None,
            egress: Some(egress.clone()),
            narrowed: false,
        });
        let fits = |(_, policy): &(String, NetworkPolicy)| policy.to_json().to_string().len() <= LONGEST;
        let named = |name: &'static str| {
            move |(number, policy): (usize, NetworkPolicy)| {
                (if number == 0 { format!("{OWN}-{name}") } else { format!("{OWN}-{name}-{number}") }, policy)
            }
        };
        let open = ingress.enumerate().map(named("ingress")).chain(egress.enumerate().map(named("egress"))).filter(fits);
        [(OWN.to_owned(), NetworkPolicy::closed())].into_iter().chain(open).collect()
    }

    /// One of these, or of the consumer's, as an object of a namespace.
    pub fn object(namespace: &str, name: &str, policy: &NetworkPolicy) -> Value {
        let mut object = manifests::object("networking.k8s.io/v1", "NetworkPolicy", namespace, name);
        object["spec"] = policy.to_json();
        object
    }
}

/// Our DNS, at those of its ports that these ports have.
fn dns_rule(ports: Option<&BTreeSet<Port>>) -> Rule {
    let has = |protocol: &&str| ports.is_none_or(|ports| ports.iter().any(|port| port.has(protocol, 53, &DNS_PORT_NAMES)));
    let port = |protocol: &str| Port { protocol: protocol.to_owned(), port: Some(PortNumber::Number(53)), end: None };
    Rule { peers: Some([Peer::dns()].into()), ports: Some(["TCP", "UDP"].iter().copied().filter(has).map(port).collect()) }
}

/// Whether a policy of this name is our own.
pub fn is_own(name: &str) -> bool {
    name.strip_prefix(OWN).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The policy that closes all pods of a namespace.
pub fn closed(namespace: &str) -> Value {
    Walls::object(namespace, OWN, &NetworkPolicy::closed())
}

/// What is not the internet although its addresses are not private: these networks of nodes and places of peers, this cluster's
/// pods, Services and stand-ins, and where peers will be. Everything, where these are more than policies can name.
pub fn inside(config: &ClusterConfig, nodes_and_places: impl IntoIterator<Item = IpNet>) -> BTreeSet<IpNet> {
    let ranges = config.status.iter().filter_map(|status| status.network.as_ref());
    let ranges = ranges.flat_map(|ranges| ranges.pods.iter().chain(&ranges.services).chain(&ranges.external));
    let ours = ranges.chain(&config.spec.network.peer_cidrs).copied();
    let networks: Vec<IpNet> = not_private(nodes_and_places.into_iter().chain(ours)).into_iter().collect();
    let networks = IpNet::aggregate(&networks);
    if networks.len() > MOST_INSIDE { everywhere().map(|all| all.cidr).into() } else { networks.into_iter().collect() }
}

/// Whether nothing is left of the internet.
pub fn are_everywhere(inside: &BTreeSet<IpNet>) -> bool {
    everywhere().iter().all(|all| inside.contains(&all.cidr))
}

/// The networks of a node: its own addresses, and those of its pods.
pub fn networks_of_node(node: &Node) -> BTreeSet<IpNet> {
    let own = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let own = own.filter_map(|address| address.address.parse::<IpAddr>().ok().map(IpNet::from));
    let pods = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
    let pods = pods.filter_map(|network| network.parse::<IpNet>().ok());
    not_private(own.chain(pods))
}

/// Those of these networks that are not private anyway.
pub fn not_private(networks: impl Iterator<Item = IpNet>) -> BTreeSet<IpNet> {
    networks.map(|network| network.trunc()).filter(|network| !is_private(network)).collect()
}

#[cfg(test)]
mod tests;
