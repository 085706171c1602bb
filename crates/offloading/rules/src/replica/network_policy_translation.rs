//! Translates a `NetworkPolicy` of an offloaded namespace for one provider, where namespaces and
//! pods differ.
//!
//! | here | there |
//! |---|---|
//! | pods by their labels | the same labels; and each pod that is not there as the address by which the provider sees it |
//! | namespaces by their labels | those that are offloaded there, by their names here; and the addresses of their other pods |
//! | all pods of all namespaces | all of this cluster's pods there, and the ranges of its pods as the provider sees them |
//! | addresses of this cluster's pods | the same pods, as the provider sees them |
//! | addresses on the internet | the same |
//! | other addresses | nothing: there they belong to others |
//! | DNS pods, and Liqo's resolver | the DNS pods of the provider, which its pods ask |
//! | everybody | everybody whom the provider lets its pods reach |
//!
//! The translation leaves out what it cannot express, so a policy is never wider at the provider
//! than here.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::{RESOLVER_PORT, labels};
use liqo_network_model::{Here, PeerMaps, There, space::translate_address};

use crate::pod::carry::is_label_of_remote_pod;
use crate::replica::label_selector::{LabelMap, NormalizedSelector, key, key_in_values};
use crate::replica::network_policy::{
    DNS_LABEL, DNS_NAMESPACE, IpBlock, NormalizedPolicy, NormalizedRule, PolicyDirection,
    PolicyPort, PortNumber, RulePeer,
};

/// Maximum number of single addresses in a policy.
const MAX_ADDRESSES: usize = 200;
/// Maximum length of a policy in bytes of JSON; less than a provider stores of an object.
const MAX_LEN: usize = 16_000;
const DNS_PORT: u16 = 53;

/// The fields of a pod that policies look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPod {
    pub namespace: String,
    pub labels: LabelMap,
    pub addresses: Vec<IpAddr>,
}

/// This cluster, and how one provider sees it.
pub struct ClusterView<'a> {
    /// The labels of each namespace, by its name.
    pub namespaces: &'a BTreeMap<String, LabelMap>,
    /// Every pod that has not ended, wherever it runs.
    pub pods: &'a [&'a PolicyPod],
    /// Our namespaces that exist at the provider.
    pub mapped: &'a BTreeSet<String>,
    /// The address translation between both clusters; `None` without a network, so that no address
    /// is translated.
    pub maps: Option<&'a PeerMaps>,
    /// The ranges of this cluster's pods.
    pub ranges: &'a [IpNet],
}

/// Translates the policy of this namespace for the provider.
pub fn translate_policy(
    policy: &NormalizedPolicy,
    namespace: &str,
    seen: &ClusterView,
) -> NormalizedPolicy {
    let mut at = Translation {
        namespace,
        seen,
        room: MAX_ADDRESSES,
        narrowed: policy.narrowed,
    };
    let pods = NormalizedSelector(
        policy
            .pods
            .0
            .iter()
            .filter(|one| is_label_of_remote_pod(key(one)))
            .cloned()
            .collect(),
    );
    if pods != policy.pods {
        // The provider cannot tell which pods the policy selects. It closes more pods than these,
        // and opens nothing to them.
        return without_rules(policy, pods);
    }
    let ingress = policy
        .ingress
        .as_ref()
        .map(|rules| at.translate_rules(rules, PolicyDirection::Ingress));
    let egress = policy
        .egress
        .as_ref()
        .map(|rules| at.translate_rules(rules, PolicyDirection::Egress));
    let there = NormalizedPolicy {
        pods,
        ingress,
        egress,
        narrowed: at.narrowed,
    };
    if there.to_json().to_string().len() > MAX_LEN {
        without_rules(policy, there.pods)
    } else {
        there
    }
}

/// Closes these pods in the directions that the policy restricts.
fn without_rules(policy: &NormalizedPolicy, pods: NormalizedSelector) -> NormalizedPolicy {
    NormalizedPolicy {
        pods,
        ingress: policy.ingress.as_ref().map(|_| Vec::new()),
        egress: policy.egress.as_ref().map(|_| Vec::new()),
        narrowed: true,
    }
}

/// Whether the translation of this namespace's policy depends on this pod.
pub fn depends_on_pod(
    policy: &NormalizedPolicy,
    namespace: &str,
    pod: &PolicyPod,
    labels_of_namespace: Option<&LabelMap>,
) -> bool {
    let mut peers = policy.rules().flat_map(|rule| rule.peers.iter().flatten());
    peers.any(|peer| selects_pod(peer, namespace, pod, labels_of_namespace) || is_dns(pod))
}

fn selects_pod(
    peer: &RulePeer,
    own: &str,
    pod: &PolicyPod,
    labels_of_namespace: Option<&LabelMap>,
) -> bool {
    match peer {
        RulePeer::Pods(pods) => pod.namespace == own && pods.matches(&pod.labels),
        RulePeer::Elsewhere { namespaces, pods } => {
            labels_of_namespace.is_some_and(|labels| namespaces.matches(labels))
                && pods.as_ref().is_none_or(|pods| pods.matches(&pod.labels))
        }
        RulePeer::Block(block) => pod.addresses.iter().any(|address| block.contains(address)),
    }
}

/// Whether this is a DNS pod of this cluster.
fn is_dns(pod: &PolicyPod) -> bool {
    pod.namespace == DNS_NAMESPACE
        && pod
            .labels
            .get(DNS_LABEL.0)
            .is_some_and(|value| value == DNS_LABEL.1)
}

struct Translation<'a> {
    namespace: &'a str,
    seen: &'a ClusterView<'a>,
    /// Number of further single addresses that the policy may name.
    room: usize,
    narrowed: bool,
}

impl Translation<'_> {
    fn translate_rules(
        &mut self,
        rules: &[NormalizedRule],
        direction: PolicyDirection,
    ) -> Vec<NormalizedRule> {
        rules
            .iter()
            .filter_map(|rule| self.translate_rule(rule, direction))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    fn translate_rule(
        &mut self,
        rule: &NormalizedRule,
        direction: PolicyDirection,
    ) -> Option<NormalizedRule> {
        let Some(peers) = &rule.peers else {
            return Some(rule.clone());
        };
        let is_egress = direction == PolicyDirection::Egress;
        // What we open for the pods of a consumer of ours.
        if is_egress && peers.len() == 1 && peers.contains(&RulePeer::resolver_pods()) {
            return Some(provider_dns_rule(rule));
        }
        let mut there = BTreeSet::new();
        // The ranges at which we see the provider's pods, where ranges of the rule contain them
        // completely.
        let mut covered = BTreeSet::new();
        for peer in peers {
            match peer {
                RulePeer::Pods(pods) => there.extend(is_known_there(pods).then(|| peer.clone())),
                RulePeer::Elsewhere { namespaces, pods } => {
                    there.extend(self.remote_pods_peer(namespaces, pods.as_ref()));
                }
                RulePeer::Block(block) => {
                    there.extend(self.translate_block(block));
                    covered.extend(self.imported_ranges().filter(|prefix| block.covers(prefix)));
                }
            }
            if !matches!(peer, RulePeer::Block(_)) {
                there.extend(self.remote_pod_addresses(peer));
            }
            if is_egress && self.resolves_names(peer) {
                there.insert(RulePeer::dns_pods());
            }
        }
        if !covered.is_empty()
            && self
                .imported_ranges()
                .all(|prefix| covered.contains(&prefix))
        {
            there.insert(RulePeer::Elsewhere {
                namespaces: NormalizedSelector::default(),
                pods: None,
            });
        }
        NormalizedRule {
            peers: Some(there),
            ports: rule.ports.clone(),
        }
        .unless_empty()
    }

    /// The pods at the provider of the namespaces that are selected here.
    fn remote_pods_peer(
        &self,
        namespaces: &NormalizedSelector,
        pods: Option<&NormalizedSelector>,
    ) -> Option<RulePeer> {
        if !pods.is_none_or(is_known_there) {
            return None;
        }
        if namespaces.selects_everything() {
            return Some(RulePeer::Elsewhere {
                namespaces: NormalizedSelector::default(),
                pods: pods.cloned(),
            });
        }
        let names: Vec<&String> = self
            .seen
            .mapped
            .iter()
            .filter(|name| {
                let found = self.seen.namespaces.get(*name);
                found.is_some_and(|labels| namespaces.matches(labels))
            })
            .collect();
        let by_name = key_in_values(
            labels::HOME_NAMESPACE,
            names.iter().map(|name| name.as_str()),
        );
        (!names.is_empty()).then(|| RulePeer::Elsewhere {
            namespaces: NormalizedSelector([by_name].into()),
            pods: pods.cloned(),
        })
    }

    /// The addresses, as the provider sees them, of the selected pods that run elsewhere.
    fn remote_pod_addresses(&mut self, peer: &RulePeer) -> Vec<RulePeer> {
        let Some(maps) = self.seen.maps else {
            return Vec::new();
        };
        let whole: Vec<IpNet> = if selects_every_pod(peer) {
            self.seen.ranges.to_vec()
        } else {
            Vec::new()
        };
        let pairs = maps
            .exported
            .pairs()
            .filter(|(here, _)| whole.iter().any(|range| range.contains(&here.0)));
        let addresses = self
            .seen
            .pods
            .iter()
            .filter(|pod| {
                let namespace_labels = self.seen.namespaces.get(&pod.namespace);
                selects_pod(peer, self.namespace, pod, namespace_labels)
            })
            .flat_map(|pod| &pod.addresses);
        // The provider must not see the ranges at which we see its own pods.
        let single = addresses
            .filter_map(|&address| Some(IpNet::from(maps.exported.to_there(Here(address))?.0)));
        let blocks = IpNet::aggregate(&pairs.map(|(_, there)| there.0).chain(single).collect());
        if blocks.len() > self.room {
            self.narrowed = true;
            return Vec::new();
        }
        self.room -= blocks.len();
        blocks
            .into_iter()
            .filter_map(|cidr| IpBlock::new(cidr, []))
            .map(RulePeer::Block)
            .collect()
    }

    /// Translates a range of addresses.
    fn translate_block(&self, block: &IpBlock) -> Vec<RulePeer> {
        let moved = self.exported_pairs().filter_map(|(here, there)| {
            let inner = block.part_within(&here.0)?;
            let except: Option<Vec<IpNet>> = inner
                .except
                .iter()
                .map(|one| translate_range(*one, &here.0, &there.0))
                .collect();
            IpBlock::new(translate_range(inner.cidr, &here.0, &there.0)?, except?)
        });
        let ours = self
            .exported_pairs()
            .map(|(here, _)| here.0)
            .chain(self.imported_ranges());
        moved
            .chain(block.part_on_internet(ours))
            .map(RulePeer::Block)
            .collect()
    }

    /// Our prefixes, as we and the provider see them.
    fn exported_pairs(&self) -> impl Iterator<Item = (Here<IpNet>, There<IpNet>)> + use<'_> {
        self.seen
            .maps
            .into_iter()
            .flat_map(|maps| maps.exported.pairs())
    }

    /// The ranges at which we see the provider's prefixes.
    fn imported_ranges(&self) -> impl Iterator<Item = IpNet> + use<'_> {
        self.seen
            .maps
            .into_iter()
            .flat_map(|maps| maps.imported.pairs())
            .map(|(here, _)| here.0)
    }

    /// Whether this peer selects DNS pods or nodes, which may resolve names; the provider's DNS
    /// takes their place.
    fn resolves_names(&self, peer: &RulePeer) -> bool {
        let namespace = self.seen.namespaces.get(DNS_NAMESPACE);
        let (key, value) = DNS_LABEL;
        let labels = LabelMap::from([(key.to_owned(), value.to_owned())]);
        let usual = PolicyPod {
            namespace: DNS_NAMESPACE.to_owned(),
            labels,
            addresses: Vec::new(),
        };
        let known = self.seen.pods.iter().copied().filter(|pod| is_dns(pod));
        known
            .chain([&usual])
            .any(|pod| selects_pod(peer, self.namespace, pod, namespace))
    }
}

/// The rule for the provider's DNS instead of the one for our resolver, which listens at another
/// port.
fn provider_dns_rule(rule: &NormalizedRule) -> NormalizedRule {
    let ports = rule
        .ports
        .as_ref()
        .map(|ports| ports.iter().map(with_dns_port).collect());
    NormalizedRule {
        peers: Some([RulePeer::dns_pods()].into()),
        ports,
    }
}

/// The port with that of DNS in place of that of Liqo's resolver.
fn with_dns_port(port: &PolicyPort) -> PolicyPort {
    match port.port {
        Some(PortNumber::Number(RESOLVER_PORT)) => PolicyPort {
            port: Some(PortNumber::Number(DNS_PORT)),
            ..port.clone()
        },
        _ => port.clone(),
    }
}

fn translate_range(range: IpNet, here: &IpNet, there: &IpNet) -> Option<IpNet> {
    let network = translate_address(range.network(), here, there)?;
    IpNet::new(network, range.prefix_len()).ok()
}

fn selects_every_pod(peer: &RulePeer) -> bool {
    matches!(peer, RulePeer::Elsewhere { namespaces, pods }
        if namespaces.selects_everything() && pods.as_ref().is_none_or(NormalizedSelector::selects_everything))
}

/// Whether this selects the same of our pods at the provider as here.
fn is_known_there(pods: &NormalizedSelector) -> bool {
    pods.0.iter().all(|one| is_label_of_remote_pod(key(one)))
}

#[cfg(test)]
mod tests;
