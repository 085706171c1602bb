//! A `NetworkPolicy` of an offloaded namespace as it is to stand at one provider, where namespaces and pods are others.
//!
//! | here | there |
//! |---|---|
//! | pods by their labels | the same labels; and each pod that is not there as the address by which the provider sees it |
//! | namespaces by their labels | those that are offloaded there, by their names here; and the pods of all that are not there |
//! | all pods of all namespaces | all of this cluster's pods that are there, and the ranges of its pods as the provider sees them |
//! | addresses of this cluster's pods | the same pods as the provider sees them |
//! | addresses on the internet | the same |
//! | other addresses | nothing: there they would be somebody else's |
//! | pods that resolve names | those of the provider, which its pods ask |
//! | everybody | everybody whom the provider lets its pods meet |
//!
//! Whatever cannot be said there is left out, so that a policy is never wider there than here.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use liqo_api::labels;
use liqo_network::{Here, PeerMaps, space::translate};

use super::{
    network_policies::{Block, DNS_LABEL, DNS_NAMESPACE, NetworkPolicy, Peer, Rule},
    selectors::{Labels, Requirement, Selector},
    travel::is_label_of_remote_pod,
};

/// So many single addresses a policy holds at most.
const MOST_ADDRESSES: usize = 200;
/// So long a policy is at most, in bytes of JSON: what a provider keeps of an object has room for it.
const LONGEST: usize = 16_000;

/// A pod, as far as policies look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: Labels,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// What is known of this cluster, and of how one provider sees it.
pub struct Seen<'a> {
    /// The labels of each namespace here.
    pub namespaces: &'a BTreeMap<String, Labels>,
    /// Every pod that has not ended, wherever it runs.
    pub pods: &'a [&'a Pod],
    /// Those of our namespaces that exist at the provider.
    pub mapped: &'a BTreeSet<String>,
    /// How the provider and we see each other; nothing without a network, so that no address there is ours.
    pub maps: Option<&'a PeerMaps>,
    /// The ranges of this cluster's pods: all of them are pods of some namespace here.
    pub ranges: &'a [IpNet],
}

/// The policy of this namespace as it is to stand at the provider.
pub fn at_provider(policy: &NetworkPolicy, namespace: &str, seen: &Seen) -> NetworkPolicy {
    let mut at = Translation { namespace, seen, room: MOST_ADDRESSES, narrowed: policy.narrowed };
    let pods = Selector(policy.pods.0.iter().filter(|one| is_label_of_remote_pod(&one.key)).cloned().collect());
    let closed = |pods: Selector| {
        let none = |rules: &Option<Vec<Rule>>| rules.as_ref().map(|_| Vec::new());
        NetworkPolicy { pods, ingress: none(&policy.ingress), egress: none(&policy.egress), narrowed: true }
    };
    if pods != policy.pods {
        // It cannot be told there which pods are meant. More than these are closed, and nothing is opened to them.
        return closed(pods);
    }
    let ingress = policy.ingress.as_ref().map(|rules| at.rules(rules, false));
    let egress = policy.egress.as_ref().map(|rules| at.rules(rules, true));
    let there = NetworkPolicy { pods, ingress, egress, narrowed: at.narrowed };
    if there.to_json().to_string().len() > LONGEST { closed(there.pods) } else { there }
}

/// Whether what the policy of this namespace is elsewhere depends on this pod.
pub fn concerns(policy: &NetworkPolicy, namespace: &str, pod: &Pod, labels_of_namespace: Option<&Labels>) -> bool {
    let mut peers = policy.rules().flat_map(|rule| rule.peers.iter().flatten());
    peers.any(|peer| selects(peer, namespace, pod, labels_of_namespace) || is_dns(pod))
}

fn selects(peer: &Peer, own: &str, pod: &Pod, labels_of_namespace: Option<&Labels>) -> bool {
    match peer {
        Peer::Pods(pods) => pod.namespace == own && pods.matches(&pod.labels),
        Peer::Elsewhere { namespaces, pods } => {
            labels_of_namespace.is_some_and(|labels| namespaces.matches(labels))
                && pods.as_ref().is_none_or(|pods| pods.matches(&pod.labels))
        }
        Peer::Block(block) => pod.addresses.iter().any(|address| block.contains(address)),
    }
}

/// Whether this cluster's pods ask this one for names.
fn is_dns(pod: &Pod) -> bool {
    pod.namespace == DNS_NAMESPACE && pod.labels.get(DNS_LABEL.0).is_some_and(|value| value == DNS_LABEL.1)
}

struct Translation<'a> {
    namespace: &'a str,
    seen: &'a Seen<'a>,
    /// So many single addresses may still be named.
    room: usize,
    narrowed: bool,
}

impl Translation<'_> {
    fn rules(&mut self, rules: &[Rule], is_egress: bool) -> Vec<Rule> {
        rules.iter().filter_map(|rule| self.rule(rule, is_egress)).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn rule(&mut self, rule: &Rule, is_egress: bool) -> Option<Rule> {
        let Some(peers) = &rule.peers else { return Some(rule.clone()) };
        let mut there = BTreeSet::new();
        // Where the provider's pods are for us, as far as ranges of the rule have it all.
        let mut covered = BTreeSet::new();
        for peer in peers {
            match peer {
                Peer::Pods(pods) => there.extend(is_known_there(pods).then(|| peer.clone())),
                Peer::Elsewhere { namespaces, pods } => there.extend(self.elsewhere(namespaces, pods.as_ref())),
                Peer::Block(block) => {
                    there.extend(self.block(block));
                    covered.extend(self.imported().filter(|prefix| block.covers(prefix)));
                }
            }
            if !matches!(peer, Peer::Block(_)) {
                there.extend(self.addresses(peer));
            }
            if is_egress && self.resolves_names(peer) {
                there.insert(Peer::dns());
            }
        }
        if !covered.is_empty() && self.imported().all(|prefix| covered.contains(&prefix)) {
            there.insert(Peer::Elsewhere { namespaces: Selector::default(), pods: None });
        }
        Rule { peers: Some(there), ports: rule.ports.clone() }.unless_empty()
    }

    /// The pods there of the namespaces that are selected here.
    fn elsewhere(&self, namespaces: &Selector, pods: Option<&Selector>) -> Option<Peer> {
        if !pods.is_none_or(is_known_there) {
            return None;
        }
        if namespaces.is_everything() {
            return Some(Peer::Elsewhere { namespaces: Selector::default(), pods: pods.cloned() });
        }
        let is_selected = |name: &&String| self.seen.namespaces.get(*name).is_some_and(|labels| namespaces.matches(labels));
        let names: Vec<&String> = self.seen.mapped.iter().filter(is_selected).collect();
        let by_name = Requirement::is_in(labels::HOME_NAMESPACE, names.iter().map(|name| name.as_str()));
        (!names.is_empty()).then(|| Peer::Elsewhere { namespaces: Selector([by_name].into()), pods: pods.cloned() })
    }

    /// The addresses, as the provider sees them, of the selected pods that are not there.
    fn addresses(&mut self, peer: &Peer) -> Vec<Peer> {
        let Some(maps) = self.seen.maps else { return Vec::new() };
        let whole: Vec<IpNet> = if selects_every_pod(peer) { self.seen.ranges.to_vec() } else { Vec::new() };
        let pairs = maps.exported.pairs().filter(|(here, _)| whole.iter().any(|range| range.contains(&here.0)));
        let is_selected = |pod: &&&Pod| selects(peer, self.namespace, pod, self.seen.namespaces.get(&pod.namespace));
        let addresses = self.seen.pods.iter().filter(is_selected).flat_map(|pod| &pod.addresses);
        // Where the provider's own pods are for us, nothing is shown to it.
        let single = addresses.filter_map(|&address| Some(IpNet::from(maps.exported.there(Here(address))?.0)));
        let blocks = IpNet::aggregate(&pairs.map(|(_, there)| there.0).chain(single).collect());
        if blocks.len() > self.room {
            self.narrowed = true;
            return Vec::new();
        }
        self.room -= blocks.len();
        blocks.into_iter().filter_map(|cidr| Block::new(cidr, [])).map(Peer::Block).collect()
    }

    /// What a range of addresses here is for the provider.
    fn block(&self, block: &Block) -> Vec<Peer> {
        let exported = || self.seen.maps.into_iter().flat_map(|maps| maps.exported.pairs());
        let moved = exported().filter_map(|(here, there)| {
            let inner = block.within(&here.0)?;
            let moved = |one: &IpNet| IpNet::new(translate(one.network(), &here.0, &there.0)?, one.prefix_len()).ok();
            let except: Option<Vec<IpNet>> = inner.except.iter().map(moved).collect();
            Block::new(moved(&inner.cidr)?, except?)
        });
        let ours = exported().map(|(here, _)| here.0).chain(self.imported());
        moved.chain(block.on_the_internet(ours)).map(Peer::Block).collect()
    }

    /// Where we see the provider's prefixes.
    fn imported(&self) -> impl Iterator<Item = IpNet> + use<'_> {
        self.seen.maps.into_iter().flat_map(|maps| maps.imported.pairs()).map(|(here, _)| here.0)
    }

    /// Whether this peer has to do with names, so that there the provider's are meant. Names may be resolved on the nodes.
    fn resolves_names(&self, peer: &Peer) -> bool {
        let namespace = self.seen.namespaces.get(DNS_NAMESPACE);
        let (key, value) = DNS_LABEL;
        let labels = Labels::from([(key.to_owned(), value.to_owned())]);
        let usual = Pod { namespace: DNS_NAMESPACE.to_owned(), labels, addresses: Vec::new() };
        let known = self.seen.pods.iter().copied().filter(|pod| is_dns(pod));
        known.chain([&usual]).any(|pod| selects(peer, self.namespace, pod, namespace))
    }
}

fn selects_every_pod(peer: &Peer) -> bool {
    matches!(peer, Peer::Elsewhere { namespaces, pods }
        if namespaces.is_everything() && pods.as_ref().is_none_or(Selector::is_everything))
}

/// Whether this selects the same of our pods there as here.
fn is_known_there(pods: &Selector) -> bool {
    pods.0.iter().all(|one| is_label_of_remote_pod(&one.key))
}

#[cfg(test)]
mod tests;
