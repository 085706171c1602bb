//! Isolation of pods in mapped namespaces, for what they reach and what reaches them: the
//! provider's limits, and within them the consumer's own `NetworkPolicy`s. Pure.
//!
//! Kubernetes adds policies up, so a policy next to those of the consumer cannot limit them.
//! Instead one policy, `liqo`, closes all pods, and this module renders everything else within the
//! limits:
//!
//! - each policy of the consumer, see `IsolationPolicy::clamp_policy`;
//! - what pods may do by default, only for pods that no policy of the consumer selects, see
//!   [`IsolationPolicy::own_policies`]: otherwise the default would open what the consumer's policy
//!   closes.
//!
//! | | what reaches pods | what they reach |
//! |---|---|---|
//! | by default | the consumer's pods, here and elsewhere, and the ingress sources that our policy allows; our own pods, if what runs
//! here is ours | the consumer's pods, the internet, DNS |
//! | at most | these, and the internet where the consumer's policy says so | the consumer's pods, the internet, DNS |
//!
//! The internet is what is not private and belongs neither to this cluster nor to a peer, see
//! [`internal_networks`]. DNS is Liqo's resolver, which asks our own but knows no names of other
//! namespaces; only where there is no resolver, it is our own at port 53. Where the consumer's pods
//! may use our API server, they reach it in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt as _};
use liqo_api::{ClusterConfig, ClusterId, RESOLVER_PORT, labels, reflection};
use serde_json::Value;

use crate::json::{managed_object, set_at};
use crate::replica::label_selector::{NormalizedSelector, complement};
use crate::replica::network_policy::{
    IpBlock, NormalizedPolicy, NormalizedRule, PolicyDirection, PolicyPort, RulePeer,
    all_addresses, is_private, sorted_rules,
};

/// The policy that closes all pods, and the prefix of the names of our other policies.
const OWN: &str = "liqo";
/// Maximum length of a policy in bytes of JSON, with the exceptions of its ranges.
const MAX_LEN: usize = 64 * 1024;
/// A policy with more ranges is always longer than that, so it is not even serialised.
const MAX_RANGES: usize = MAX_LEN / r#""0.0.0.0/0","#.len();
/// Maximum number of networks that are not the internet. With these a policy still has room for its
/// own rules.
const MAX_INTERNAL: usize = 1000;
const DNS_PORT_NAMES: [&str; 2] = ["dns", "dns-tcp"];

/// The limits for the pods of one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationPolicy {
    pub consumer: ClusterId,
    /// Public addresses that are not the internet, see [`internal_networks`].
    pub internal: BTreeSet<IpNet>,
    /// The consumer's prefixes, as we see them: its pods in other clusters.
    pub prefixes: Vec<IpNet>,
    /// The prefixes of our own pods, if what runs in the namespace is ours: the consumer is our
    /// provider, and runs pods of ours here. Like any pod of ours at a provider, they are open to
    /// our pods. What they reach is a matter of the consumer, so they reach no pod of ours.
    pub own_pods: Vec<IpNet>,
    /// Our API servers, if the consumer's pods may use them.
    pub api_servers: Vec<SocketAddr>,
    /// Whether the consumer's pods ask our own DNS, because there is no resolver.
    pub cluster_dns: bool,
    /// Other allowed ingress sources, see [`allowed_ingress_source`].
    pub ingress_sources: Vec<RulePeer>,
}

/// Parses an allowed ingress source of a policy: the pods of a namespace here, or a range of
/// addresses.
pub fn allowed_ingress_source(said: &str) -> Option<RulePeer> {
    if said.contains('/') {
        return Some(RulePeer::Block(IpBlock::new(
            said.parse::<IpNet>().ok()?.trunc(),
            [],
        )?));
    }
    let namespaces = NormalizedSelector::exactly(&[("kubernetes.io/metadata.name", said)]);
    Some(RulePeer::Elsewhere {
        namespaces,
        pods: None,
    })
}

/// A consumer's policy within the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClampedPolicy {
    pub policy: NormalizedPolicy,
    /// Ranges of which nothing is left.
    pub refused: BTreeSet<IpNet>,
}

/// Counts ranges while a policy is clamped.
#[derive(Default)]
struct ClampedRanges {
    /// Ranges of which nothing is left.
    refused: BTreeSet<IpNet>,
    /// The number of ranges in the rules so far, with their exceptions.
    ranges: usize,
}

impl ClampedRanges {
    fn is_too_long(&self) -> bool {
        self.ranges > MAX_RANGES
    }

    /// Counts these parts.
    fn count_parts(&mut self, parts: impl Iterator<Item = IpBlock>) -> Vec<IpBlock> {
        let parts: Vec<IpBlock> = parts.collect();
        self.ranges += parts
            .iter()
            .map(|part| 1 + part.except.len())
            .sum::<usize>();
        parts
    }
}

impl IsolationPolicy {
    /// Clamps a policy of the consumer to the limits. `None` if the result is too long.
    pub(crate) fn clamp_policy(&self, policy: &NormalizedPolicy) -> Option<ClampedPolicy> {
        let mut ranges = ClampedRanges::default();
        let ingress = policy
            .ingress
            .as_ref()
            .map(|rules| self.clamp_rules(rules, PolicyDirection::Ingress, &mut ranges));
        let egress = policy
            .egress
            .as_ref()
            .map(|rules| self.clamp_rules(rules, PolicyDirection::Egress, &mut ranges));
        if ranges.is_too_long() {
            return None;
        }
        let refused = ranges.refused;
        let policy = NormalizedPolicy {
            pods: policy.pods.clone(),
            ingress,
            egress,
            narrowed: policy.narrowed,
        };
        (policy.to_json().to_string().len() <= MAX_LEN).then_some(ClampedPolicy { policy, refused })
    }

    fn clamp_rules(
        &self,
        rules: &[NormalizedRule],
        direction: PolicyDirection,
        ranges: &mut ClampedRanges,
    ) -> Vec<NormalizedRule> {
        let clamped: BTreeSet<NormalizedRule> = rules
            .iter()
            .flat_map(|rule| self.clamp_rule(rule, direction, ranges))
            .collect();
        clamped.into_iter().collect()
    }

    fn clamp_rule(
        &self,
        rule: &NormalizedRule,
        direction: PolicyDirection,
        ranges: &mut ClampedRanges,
    ) -> Vec<NormalizedRule> {
        if ranges.is_too_long() {
            return Vec::new();
        }
        let is_egress = direction == PolicyDirection::Egress;
        let mut resolves = rule.peers.is_none();
        let peers = match &rule.peers {
            None => {
                let internet = ranges.count_parts(self.internet_blocks());
                ranges.refused.extend(
                    all_addresses()
                        .map(|all| all.cidr)
                        .into_iter()
                        .filter(|_| internet.is_empty()),
                );
                let ingress_sources = self.ingress_sources.iter().filter(|_| !is_egress).cloned();
                let own_pods = self.own_pods(direction).map(RulePeer::Block);
                self.consumer_pods()
                    .chain(internet.into_iter().map(RulePeer::Block))
                    .chain(ingress_sources)
                    .chain(own_pods)
                    .collect()
            }
            Some(peers) => {
                let mut clamped = BTreeSet::new();
                for peer in peers {
                    if ranges.is_too_long() {
                        return Vec::new();
                    }
                    match peer {
                        dns if *dns == RulePeer::dns_pods() => resolves = true,
                        RulePeer::Pods(_) => _ = clamped.insert(peer.clone()),
                        RulePeer::Elsewhere { namespaces, pods } => {
                            let namespaces = namespaces.clone().and(&self.consumer_namespaces());
                            clamped.insert(RulePeer::Elsewhere {
                                namespaces,
                                pods: pods.clone(),
                            });
                        }
                        RulePeer::Block(block) => {
                            let parts = ranges.count_parts(self.reachable_parts(block, direction));
                            ranges
                                .refused
                                .extend(parts.is_empty().then_some(block.cidr));
                            clamped.extend(parts.into_iter().map(RulePeer::Block));
                        }
                    }
                }
                clamped
            }
        };
        let rules = NormalizedRule {
            peers: Some(peers),
            ports: rule.ports.clone(),
        }
        .unless_empty()
        .into_iter();
        let dns = self
            .dns_rules(rule.ports.as_ref())
            .into_iter()
            .filter_map(NormalizedRule::unless_empty)
            .filter(|_| is_egress && resolves);
        let is_everybody = is_egress && rule.peers.is_none();
        rules
            .chain(dns)
            .chain(
                is_everybody
                    .then(|| self.api_server_rules(rule.ports.as_ref()))
                    .into_iter()
                    .flatten(),
            )
            .collect()
    }

    /// The reachable part of a range.
    fn reachable_parts(
        &self,
        block: &IpBlock,
        direction: PolicyDirection,
    ) -> impl Iterator<Item = IpBlock> {
        let elsewhere = self
            .prefixes
            .iter()
            .chain(self.own_prefixes(direction))
            .filter_map(|prefix| block.part_within(prefix));
        elsewhere.chain(block.part_on_internet(self.internal.iter().copied()))
    }

    /// Our own pods, as far as they may reach the consumer's.
    fn own_pods(&self, direction: PolicyDirection) -> impl Iterator<Item = IpBlock> {
        self.own_prefixes(direction)
            .iter()
            .filter_map(|prefix| IpBlock::new(*prefix, []))
    }

    fn own_prefixes(&self, direction: PolicyDirection) -> &[IpNet] {
        match direction {
            PolicyDirection::Ingress => &self.own_pods,
            PolicyDirection::Egress => &[],
        }
    }

    /// The consumer's namespaces here.
    fn consumer_namespaces(&self) -> NormalizedSelector {
        NormalizedSelector::exactly(&[
            (labels::CONSUMER_ID, self.consumer.as_str()),
            (labels::NAMESPACE_KIND, labels::KIND_MAPPED),
        ])
    }

    /// The consumer's pods, here and elsewhere.
    fn consumer_pods(&self) -> impl Iterator<Item = RulePeer> {
        let elsewhere = self
            .prefixes
            .iter()
            .filter_map(|prefix| IpBlock::new(*prefix, []))
            .map(RulePeer::Block);
        [RulePeer::Elsewhere {
            namespaces: self.consumer_namespaces(),
            pods: None,
        }]
        .into_iter()
        .chain(elsewhere)
    }

    fn internet_blocks(&self) -> impl Iterator<Item = IpBlock> {
        all_addresses()
            .into_iter()
            .filter_map(|block| block.part_on_internet(self.internal.iter().copied()))
    }

    /// Each of our API servers that may be used, at its port if these ports have it.
    fn api_server_rules(&self, ports: Option<&BTreeSet<PolicyPort>>) -> Vec<NormalizedRule> {
        let mut rules = Vec::new();
        for server in &self.api_servers {
            let has_port = allow_port(ports, "TCP", server.port(), &[]);
            let block = IpBlock::new(server.ip().into(), []);
            rules.extend(block.filter(|_| has_port).map(|block| NormalizedRule {
                peers: Some([RulePeer::Block(block)].into()),
                ports: Some([PolicyPort::single("TCP", server.port())].into()),
            }));
        }
        rules
    }

    /// Liqo's resolver, and our DNS where pods ask it, over those of their protocols for which
    /// these ports contain the port of DNS. The resolver's pods listen at another port, behind its
    /// Service.
    fn dns_rules(&self, ports: Option<&BTreeSet<PolicyPort>>) -> Vec<NormalizedRule> {
        let own = self.cluster_dns.then_some((RulePeer::dns_pods(), 53));
        own.into_iter()
            .chain([(RulePeer::resolver_pods(), RESOLVER_PORT)])
            .map(|(peer, number)| NormalizedRule {
                peers: Some([peer].into()),
                ports: Some(
                    ["TCP", "UDP"]
                        .into_iter()
                        .filter(|protocol| allow_port(ports, protocol, 53, &DNS_PORT_NAMES))
                        .map(|protocol| PolicyPort::single(protocol, number))
                        .collect(),
                ),
            })
            .collect()
    }

    /// Our own policies, by name: the one that closes all pods, and those that open the defaults
    /// for the pods that none of these policies selects. If that takes too many selectors, they
    /// open nothing.
    pub fn own_policies(
        &self,
        policies: &[NormalizedPolicy],
    ) -> BTreeMap<String, NormalizedPolicy> {
        let restrict_ingress = policies.iter().filter(|policy| policy.ingress.is_some());
        let restrict_egress = policies.iter().filter(|policy| policy.egress.is_some());
        let ingress = self.default_ingress_rules();
        let egress = self.default_egress_rules();
        let opens_ingress =
            unselected_pods(restrict_ingress)
                .into_iter()
                .map(|pods| NormalizedPolicy {
                    pods,
                    ingress: Some(ingress.clone()),
                    egress: None,
                    narrowed: false,
                });
        let opens_egress =
            unselected_pods(restrict_egress)
                .into_iter()
                .map(|pods| NormalizedPolicy {
                    pods,
                    ingress: None,
                    egress: Some(egress.clone()),
                    narrowed: false,
                });
        let named_ingress = opens_ingress
            .enumerate()
            .map(|(number, policy)| (numbered_name("ingress", number), policy));
        let named_egress = opens_egress
            .enumerate()
            .map(|(number, policy)| (numbered_name("egress", number), policy));
        let open = named_ingress
            .chain(named_egress)
            .filter(|(_, policy)| policy.to_json().to_string().len() <= MAX_LEN);
        [(OWN.to_owned(), NormalizedPolicy::closed())]
            .into_iter()
            .chain(open)
            .collect()
    }

    fn default_ingress_rules(&self) -> Vec<NormalizedRule> {
        let own_pods = self.own_pods(PolicyDirection::Ingress).map(RulePeer::Block);
        let peers = self
            .consumer_pods()
            .chain(self.ingress_sources.iter().cloned())
            .chain(own_pods);
        vec![NormalizedRule::at_all_ports(peers)]
    }

    fn default_egress_rules(&self) -> Vec<NormalizedRule> {
        let peers = self
            .consumer_pods()
            .chain(self.internet_blocks().map(RulePeer::Block));
        let mut rules = vec![NormalizedRule::at_all_ports(peers)];
        rules.extend(self.dns_rules(None));
        rules.extend(self.api_server_rules(None));
        sorted_rules(rules.into_iter())
    }

    /// A policy, ours or the consumer's, as an object of a namespace.
    pub fn policy_object(namespace: &str, name: &str, policy: &NormalizedPolicy) -> Value {
        let mut object = managed_object("networking.k8s.io/v1", "NetworkPolicy", namespace, name);
        set_at(&mut object, &["spec"], policy.to_json());
        object
    }
}

/// The beginning of the names of those policies of ours that travel, in namespaces whose pods run
/// at other clusters: the pods of one of our consumers must not reach those of another one there,
/// where all of them are ours. Each cluster has another name for them, because the next one may
/// lend the pods on, too.
pub fn brokered_copy_prefix(own: &ClusterId) -> String {
    format!("lent-on-{}-", own.short_id())
}

/// The name of the copy that closes all pods. It always exists, and sorts before the others; no pod
/// travels before it.
pub fn brokered_closed_copy(own: &ClusterId) -> String {
    format!("{}all", brokered_copy_prefix(own))
}

/// Whether a `NetworkPolicy` of an offloaded namespace may travel. Of our own policies only the
/// copies do. Only Liqo's label proves that the copy that closes all pods is ours: anybody may
/// create a policy with its name.
pub fn may_travel(policy: &impl Resource, own: &ClusterId) -> bool {
    let name = policy.name_any();
    if reflection::is_own(policy) {
        name.starts_with(&brokered_copy_prefix(own))
    } else {
        name != brokered_closed_copy(own)
    }
}

/// Adds copies of our own policies that travel. Here they open nothing that is closed, because they
/// say the same.
pub fn with_brokered_copies(
    mut policies: BTreeMap<String, NormalizedPolicy>,
    own: &ClusterId,
) -> BTreeMap<String, NormalizedPolicy> {
    let prefix = brokered_copy_prefix(own);
    let mut copies = Vec::new();
    for (name, policy) in &policies {
        if name == OWN {
            copies.push((brokered_closed_copy(own), policy.clone()));
        } else if let Some(rest) = name
            .strip_prefix(OWN)
            .and_then(|rest| rest.strip_prefix('-'))
        {
            copies.push((format!("{prefix}{rest}"), policy.clone()));
        }
    }
    policies.extend(copies);
    policies
}

/// Selectors of all pods that none of these policies selects; none if there would be too many.
fn unselected_pods<'a>(
    policies: impl Iterator<Item = &'a NormalizedPolicy>,
) -> Vec<NormalizedSelector> {
    let selectors: BTreeSet<NormalizedSelector> =
        policies.map(|policy| policy.pods.clone()).collect();
    complement(&selectors).unwrap_or_default()
}

fn numbered_name(name: &str, number: usize) -> String {
    if number == 0 {
        format!("{OWN}-{name}")
    } else {
        format!("{OWN}-{name}-{number}")
    }
}

/// Whether these ports contain one; `None` means all ports.
fn allow_port(
    ports: Option<&BTreeSet<PolicyPort>>,
    protocol: &str,
    number: u16,
    names: &[&str],
) -> bool {
    ports.is_none_or(|ports| {
        ports
            .iter()
            .any(|port| port.allows_port(protocol, number, names))
    })
}

/// Whether a policy of this name is our own.
pub fn is_own(name: &str) -> bool {
    name.strip_prefix(OWN)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The policy that closes all pods of a namespace.
pub fn closed_policy_object(namespace: &str) -> Value {
    IsolationPolicy::policy_object(namespace, OWN, &NormalizedPolicy::closed())
}

/// Public addresses that are not the internet: these networks of nodes and peers, the pods,
/// Services and replacement addresses of this cluster, and the ranges reserved for peers.
/// Everything, if these are more than policies can name.
pub fn internal_networks(
    config: &ClusterConfig,
    nodes_and_places: impl IntoIterator<Item = IpNet>,
) -> BTreeSet<IpNet> {
    let ranges = config
        .status
        .iter()
        .filter_map(|status| status.network.as_ref());
    let ranges = ranges.flat_map(|ranges| {
        ranges
            .pods
            .iter()
            .chain(&ranges.services)
            .chain(&ranges.external)
    });
    let ours = ranges.chain(&config.spec.network.peer_cidrs).copied();
    let networks: Vec<IpNet> = public_networks(nodes_and_places.into_iter().chain(ours))
        .into_iter()
        .collect();
    let networks = IpNet::aggregate(&networks);
    if networks.len() > MAX_INTERNAL {
        all_addresses().map(|all| all.cidr).into()
    } else {
        networks.into_iter().collect()
    }
}

/// Whether nothing is left of the internet.
pub fn leave_no_internet(internal: &BTreeSet<IpNet>) -> bool {
    all_addresses()
        .iter()
        .all(|all| internal.contains(&all.cidr))
}

/// The networks of a node: its own addresses, and those of its pods.
pub fn networks_of_node(node: &Node) -> BTreeSet<IpNet> {
    let own = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    let own = own.filter_map(|address| address.address.parse::<IpAddr>().ok().map(IpNet::from));
    let pods = node
        .spec
        .iter()
        .flat_map(|spec| spec.pod_cidrs.iter().flatten());
    let pods = pods.filter_map(|network| network.parse::<IpNet>().ok());
    public_networks(own.chain(pods))
}

pub fn public_networks(networks: impl Iterator<Item = IpNet>) -> BTreeSet<IpNet> {
    networks
        .map(|network| network.trunc())
        .filter(|network| !is_private(network))
        .collect()
}

#[cfg(test)]
mod tests;
