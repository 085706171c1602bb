//! `NetworkPolicy`s as values.
//!
//! Reading one never makes it wider. A peer, port or rule with an unknown part is left out. If the
//! pods or the direction are unknown, all pods are closed. In Kubernetes "no peers" and "no ports"
//! mean everybody and everything, and such code often gets that wrong: here these are values of
//! their own, and a rule from which everything was left out is no rule.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use liqo_api::{RESOLVER, SYSTEM_NAMESPACE};
use liqo_network_model::space::prefixes_overlap;
use serde_json::{Map, Value, json};

use crate::replica::label_selector::NormalizedSelector;

/// Networks that are not the internet: private and shared ones, loopback and link-local, those
/// reserved for protocols and measurements, the IPv4 translation prefixes, and the address where
/// Azure's nodes ask their host. A cluster's pods, services and nodes usually have addresses in
/// these, so they mean different things in two clusters.
const PRIVATE: [&str; 20] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    // Multicast, and the reserved range that some clusters use for pods.
    "224.0.0.0/3",
    "::1/128",
    // Each address in the next four contains an IPv4 address, which may be private.
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2001::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    // Private addresses of before 2004, which some routers still carry.
    "fec0::/10",
    // Multicast.
    "ff00::/8",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalizedPolicy {
    /// The pods that it selects.
    pub pods: NormalizedSelector,
    /// Ingress rules, if it restricts ingress.
    pub ingress: Option<Vec<NormalizedRule>>,
    /// Egress rules, if it restricts egress.
    pub egress: Option<Vec<NormalizedRule>>,
    /// Whether something was left out.
    pub narrowed: bool,
}

/// The direction that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyDirection {
    Ingress,
    Egress,
}

/// One rule: each of these peers, at each of these ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NormalizedRule {
    /// `None` means everybody.
    pub peers: Option<BTreeSet<RulePeer>>,
    /// `None` means all ports.
    pub ports: Option<BTreeSet<PolicyPort>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulePeer {
    /// Pods of the policy's own namespace.
    Pods(NormalizedSelector),
    /// Pods of other namespaces; all pods of these if `pods` is `None`.
    Elsewhere {
        namespaces: NormalizedSelector,
        pods: Option<NormalizedSelector>,
    },
    Block(IpBlock),
}

/// A range of addresses with exceptions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IpBlock {
    pub cidr: IpNet,
    /// Each is a proper part of the range.
    pub except: BTreeSet<IpNet>,
}

/// A port, or a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `None` means all ports of the protocol.
    pub port: Option<PortNumber>,
    /// The last port of a range.
    pub end: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortNumber {
    Number(u16),
    /// The name that a container gives the port.
    Name(String),
}

impl NormalizedPolicy {
    /// Closes all pods of a namespace; also the reading of a policy that cannot be read.
    pub fn closed() -> Self {
        Self {
            pods: NormalizedSelector::default(),
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
            narrowed: true,
        }
    }

    /// Reads the spec of a policy.
    pub fn from_spec(spec: &Value) -> Self {
        Self::parse_spec(spec).unwrap_or_else(Self::closed)
    }

    fn parse_spec(spec: &Value) -> Option<Self> {
        let fields = known_fields(spec, &["podSelector", "policyTypes", "ingress", "egress"])?;
        let pods = match fields.get("podSelector") {
            None | Some(Value::Null) => NormalizedSelector::default(),
            Some(selector) => NormalizedSelector::from_json(selector)?,
        };
        let (ingress, egress) = (list_at(spec, "ingress")?, list_at(spec, "egress")?);
        let mut types: Vec<&str> = match fields.get("policyTypes") {
            None | Some(Value::Null) => Vec::new(),
            Some(types) => types
                .as_array()?
                .iter()
                .map(Value::as_str)
                .collect::<Option<_>>()?,
        };
        if types.is_empty() {
            // The API server's default for a policy without the field.
            types = if egress.is_empty() {
                vec!["Ingress"]
            } else {
                vec!["Ingress", "Egress"]
            };
        }
        if types.iter().any(|one| !["Ingress", "Egress"].contains(one)) {
            return None;
        }
        let mut narrowed = false;
        let ingress = types.contains(&"Ingress").then(|| {
            let rules = ingress.iter();
            sorted_rules(
                rules.filter_map(|rule| NormalizedRule::from_json(rule, "from", &mut narrowed)),
            )
        });
        let egress = types.contains(&"Egress").then(|| {
            let rules = egress.iter();
            sorted_rules(
                rules.filter_map(|rule| NormalizedRule::from_json(rule, "to", &mut narrowed)),
            )
        });
        Some(Self {
            pods,
            ingress,
            egress,
            narrowed,
        })
    }

    /// As Kubernetes writes it; equal policies give the same JSON.
    pub fn to_json(&self) -> Value {
        let mut spec = Map::from_iter([("podSelector".to_owned(), self.pods.to_json())]);
        let mut types: Vec<&str> = Vec::new();
        for (name, field, peers, rules) in [
            ("Ingress", "ingress", "from", &self.ingress),
            ("Egress", "egress", "to", &self.egress),
        ] {
            types.extend(rules.as_ref().map(|_| name));
            let rules: Vec<Value> = rules
                .iter()
                .flatten()
                .filter_map(|rule| rule.to_json(peers))
                .collect();
            if !rules.is_empty() {
                spec.insert(field.into(), rules.into());
            }
        }
        spec.insert("policyTypes".into(), types.into());
        spec.into()
    }

    pub fn rules(&self) -> impl Iterator<Item = &NormalizedRule> {
        self.ingress.iter().chain(&self.egress).flatten()
    }
}

/// Their order has no meaning: [`NormalizedPolicy::from_spec`] reads them in this one, so that
/// equal policies are equal.
pub(super) fn sorted_rules(rules: impl Iterator<Item = NormalizedRule>) -> Vec<NormalizedRule> {
    rules.collect::<BTreeSet<_>>().into_iter().collect()
}

impl NormalizedRule {
    fn from_json(rule: &Value, peers: &str, narrowed: &mut bool) -> Option<Self> {
        let read = known_fields(rule, &[peers, "ports"])
            .and_then(|_| Some((list_at(rule, peers)?, list_at(rule, "ports")?)));
        let Some((said_peers, said_ports)) = read else {
            *narrowed = true;
            return None;
        };
        let peers: BTreeSet<RulePeer> = said_peers.iter().filter_map(RulePeer::from_json).collect();
        let ports: BTreeSet<PolicyPort> = said_ports
            .iter()
            .filter_map(PolicyPort::from_json)
            .collect();
        *narrowed |= said_peers
            .iter()
            .any(|one| RulePeer::from_json(one).is_none())
            || said_ports
                .iter()
                .any(|one| PolicyPort::from_json(one).is_none());
        Self {
            peers: (!said_peers.is_empty()).then_some(peers),
            ports: (!said_ports.is_empty()).then_some(ports),
        }
        .unless_empty()
    }

    pub(crate) fn at_all_ports(peers: impl Iterator<Item = RulePeer>) -> Self {
        Self {
            peers: Some(peers.collect()),
            ports: None,
        }
    }

    /// The rule, unless it has no peer or no port.
    pub(crate) fn unless_empty(self) -> Option<Self> {
        let is_empty = self.peers.as_ref().is_some_and(BTreeSet::is_empty)
            || self.ports.as_ref().is_some_and(BTreeSet::is_empty);
        (!is_empty).then_some(self)
    }

    fn to_json(&self, peers: &str) -> Option<Value> {
        let rule = self.clone().unless_empty()?;
        let mut all = Map::new();
        all.extend(rule.peers.map(|found| {
            (
                peers.to_owned(),
                found.iter().map(RulePeer::to_json).collect(),
            )
        }));
        all.extend(rule.ports.map(|ports| {
            (
                "ports".to_owned(),
                ports.iter().map(PolicyPort::to_json).collect(),
            )
        }));
        Some(all.into())
    }
}

impl RulePeer {
    /// The pods of Liqo's resolver, which pods in mapped namespaces ask.
    pub(crate) fn resolver_pods() -> Self {
        let namespaces =
            NormalizedSelector::exactly(&[("kubernetes.io/metadata.name", SYSTEM_NAMESPACE)]);
        Self::Elsewhere {
            namespaces,
            pods: Some(NormalizedSelector::exactly(&[(
                "app.kubernetes.io/name",
                RESOLVER,
            )])),
        }
    }

    /// The DNS pods of this cluster.
    pub(crate) fn dns_pods() -> Self {
        let namespaces =
            NormalizedSelector::exactly(&[("kubernetes.io/metadata.name", DNS_NAMESPACE)]);
        Self::Elsewhere {
            namespaces,
            pods: Some(NormalizedSelector::exactly(&[DNS_LABEL])),
        }
    }

    fn from_json(peer: &Value) -> Option<Self> {
        let fields = known_fields(peer, &["podSelector", "namespaceSelector", "ipBlock"])?;
        let [pods, namespaces, block] = ["podSelector", "namespaceSelector", "ipBlock"]
            .map(|field| fields.get(field).filter(|value| !value.is_null()));
        match (
            pods.map(NormalizedSelector::from_json),
            namespaces.map(NormalizedSelector::from_json),
            block,
        ) {
            (Some(pods), None, None) => Some(Self::Pods(pods?)),
            (pods, Some(namespaces), None) => {
                let pods = match pods {
                    None => None,
                    Some(pods) => Some(pods?),
                };
                Some(Self::Elsewhere {
                    namespaces: namespaces?,
                    pods,
                })
            }
            (None, None, Some(block)) => IpBlock::from_json(block).map(Self::Block),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Pods(pods) => json!({ "podSelector": pods.to_json() }),
            Self::Elsewhere {
                namespaces,
                pods: None,
            } => json!({ "namespaceSelector": namespaces.to_json() }),
            Self::Elsewhere {
                namespaces,
                pods: Some(pods),
            } => {
                json!({ "namespaceSelector": namespaces.to_json(), "podSelector": pods.to_json() })
            }
            Self::Block(IpBlock { cidr, except }) if except.is_empty() => {
                json!({ "ipBlock": { "cidr": cidr } })
            }
            Self::Block(IpBlock { cidr, except }) => {
                json!({ "ipBlock": { "cidr": cidr, "except": except } })
            }
        }
    }
}

/// The namespace of the DNS pods, in every known distribution.
pub(crate) const DNS_NAMESPACE: &str = "kube-system";
pub(crate) const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");

impl IpBlock {
    /// The range without these; `None` if nothing is left.
    pub fn new(cidr: IpNet, except: impl IntoIterator<Item = IpNet>) -> Option<Self> {
        let parts: Vec<IpNet> = except
            .into_iter()
            .map(|one| one.trunc())
            .filter(|one| prefixes_overlap(one, &cidr))
            .collect();
        let except: BTreeSet<IpNet> = IpNet::aggregate(&parts).into_iter().collect();
        (!except.iter().any(|one| one.contains(&cidr))).then(|| Self {
            cidr: cidr.trunc(),
            except,
        })
    }

    /// The part of it that is in this range.
    pub(crate) fn part_within(&self, range: &IpNet) -> Option<Self> {
        let inner = if range.contains(&self.cidr) {
            self.cidr
        } else if self.cidr.contains(range) {
            *range
        } else {
            return None;
        };
        Self::new(inner, self.except.iter().copied())
    }

    /// The part of it that is on the internet, and in none of these networks.
    pub(crate) fn part_on_internet(
        &self,
        without: impl IntoIterator<Item = IpNet>,
    ) -> Option<Self> {
        let private = PRIVATE.iter().filter_map(|one| one.parse::<IpNet>().ok());
        Self::new(
            self.cidr,
            self.except.iter().copied().chain(private).chain(without),
        )
    }

    pub fn contains(&self, address: &IpAddr) -> bool {
        self.cidr.contains(address) && !self.except.iter().any(|one| one.contains(address))
    }

    /// Whether it contains this whole range.
    pub fn covers(&self, range: &IpNet) -> bool {
        self.cidr.contains(range) && !self.except.iter().any(|one| prefixes_overlap(one, range))
    }

    fn from_json(block: &Value) -> Option<Self> {
        let fields = known_fields(block, &["cidr", "except"])?;
        let except = match fields.get("except") {
            None | Some(Value::Null) => Vec::new(),
            Some(list) => list
                .as_array()?
                .iter()
                .map(|one| one.as_str()?.parse().ok())
                .collect::<Option<Vec<IpNet>>>()?,
        };
        Self::new(fields.get("cidr")?.as_str()?.parse().ok()?, except)
    }
}

pub fn all_addresses() -> [IpBlock; 2] {
    [
        IpNet::V4(ipnet::Ipv4Net::default()),
        IpNet::V6(ipnet::Ipv6Net::default()),
    ]
    .map(|cidr| IpBlock {
        cidr,
        except: BTreeSet::new(),
    })
}

/// Whether this whole range is in one of the networks that are not the internet.
pub(crate) fn is_private(range: &IpNet) -> bool {
    PRIVATE
        .iter()
        .filter_map(|one| one.parse::<IpNet>().ok())
        .any(|network| network.contains(range))
}

impl PolicyPort {
    pub(crate) fn single(protocol: &str, number: u16) -> Self {
        Self {
            protocol: protocol.to_owned(),
            port: Some(PortNumber::Number(number)),
            end: None,
        }
    }
    /// Whether this allows a port that has this number and these names.
    pub fn allows_port(&self, protocol: &str, number: u16, names: &[&str]) -> bool {
        self.protocol == protocol
            && match (&self.port, self.end) {
                (None, _) => true,
                (Some(PortNumber::Number(first)), end) => {
                    (*first..=end.unwrap_or(*first)).contains(&number)
                }
                (Some(PortNumber::Name(name)), _) => names.contains(&name.as_str()),
            }
    }

    fn from_json(port: &Value) -> Option<Self> {
        let fields = known_fields(port, &["protocol", "port", "endPort"])?;
        let [protocol, port, end] = ["protocol", "port", "endPort"]
            .map(|field| fields.get(field).filter(|value| !value.is_null()));
        let protocol = protocol.map_or(Some("TCP"), Value::as_str)?;
        let port = match port {
            None => None,
            Some(Value::String(name)) => Some(PortNumber::Name(name.clone())),
            Some(value) => Some(PortNumber::Number(port_number(value)?)),
        };
        let end = match end {
            None => None,
            Some(end) => Some(port_number(end)?),
        };
        let is_range = match (&port, end) {
            (_, None) => true,
            (Some(PortNumber::Number(first)), Some(last)) => *first <= last,
            _ => false,
        };
        (is_range && ["TCP", "UDP", "SCTP"].contains(&protocol)).then(|| Self {
            protocol: protocol.to_owned(),
            port,
            end,
        })
    }

    fn to_json(&self) -> Value {
        let mut all = Map::from_iter([("protocol".to_owned(), self.protocol.as_str().into())]);
        all.extend(self.port.as_ref().map(|port| {
            let port = match port {
                PortNumber::Number(number) => Value::from(*number),
                PortNumber::Name(name) => name.as_str().into(),
            };
            ("port".to_owned(), port)
        }));
        all.extend(self.end.map(|end| ("endPort".to_owned(), end.into())));
        all.into()
    }
}

/// The list in this field; empty if there is none, and `None` if it is no list.
fn list_at<'a>(object: &'a Value, field: &str) -> Option<&'a [Value]> {
    match object.get(field) {
        None | Some(Value::Null) => Some(&[]),
        Some(list) => list.as_array().map(Vec::as_slice),
    }
}

fn port_number(value: &Value) -> Option<u16> {
    u16::try_from(value.as_u64()?)
        .ok()
        .filter(|number| *number > 0)
}

/// The fields of an object, if it has no others than these.
fn known_fields<'a>(value: &'a Value, fields: &[&str]) -> Option<&'a Map<String, Value>> {
    let object = value.as_object()?;
    object
        .iter()
        .all(|(field, value)| value.is_null() || fields.contains(&field.as_str()))
        .then_some(object)
}

#[cfg(test)]
mod tests;
