//! Who takes part, and how each cluster sees the others: all that questions and judgements follow from.

use std::{collections::BTreeSet, net::IpAddr};

use liqo_network::{Here, PeerMaps};
use serde::Serialize;

use crate::probes::LeftOut;

/// What was set up in and around one cluster that borrows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// The clusters; the one that borrows, home, is the first.
    pub clusters: Vec<Member>,
    /// Who asks, and whom.
    pub parties: Vec<Party>,
    /// Nodes of home and their addresses: there node ports are asked.
    pub nodes: Vec<(String, IpAddr)>,
}

/// One cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// What the namespace is called there.
    pub namespace: String,
    /// How it sees the addresses of home.
    pub sees: Sees,
    /// What stands for its nodes where others see them, as home sees it: one of these.
    pub stand_ins: BTreeSet<IpAddr>,
    /// The Service before its pods.
    pub service: Service,
    /// Whether home is to let it through to others of which that holds, too.
    pub transit: bool,
    /// Nodes that should take part, and cannot.
    pub left_out: Vec<LeftOut>,
    /// The tunnel between it and home; none for home itself.
    pub tunnel: Option<Tunnel>,
}

impl Member {
    /// Whether it and home know each other by IPv4 addresses, or else by those of IPv6.
    pub fn shares(&self, is_ipv4: bool) -> bool {
        match &self.sees {
            Sees::Itself => true,
            Sees::By(maps) => maps.exported.pairs().any(|(here, _)| here.0.addr().is_ipv4() == is_ipv4),
            Sees::Unwanted(_) | Sees::Nothing(_) => false,
        }
    }
}

/// How a cluster sees the addresses of home.
#[derive(Clone, Debug, PartialEq)]
pub enum Sees {
    /// It is home.
    Itself,
    /// By these maps of home's.
    By(PeerMaps),
    /// Not at all, because nobody wants that.
    Unwanted(String),
    /// Not at all, though it should.
    Nothing(String),
}

/// A Service, and one of its kind without an address of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Its name; the headless one is called `<name>-each`.
    pub name: String,
    /// Its addresses at home, one of each family that it has.
    pub addresses: Vec<IpAddr>,
    /// Its ports on nodes, for TCP and UDP.
    pub node_ports: Option<(u16, u16)>,
}

/// What home's gateway says of the tunnel to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// Whether it works.
    pub works: bool,
    /// In one word.
    pub reason: String,
    /// In a sentence.
    pub message: String,
    /// Home's gateway.
    pub gateway: Option<String>,
    /// What a packet in it may measure.
    pub mtu: u16,
}

/// From where is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum From {
    /// A pod.
    Pod,
    /// A node, which is a pod in the network of its node.
    Node,
}

/// Who asks; pods are asked, too.
#[derive(Clone, Debug, PartialEq)]
pub struct Party {
    /// Its cluster, by place.
    pub cluster: usize,
    /// What it is.
    pub kind: From,
    /// Its pod.
    pub pod: String,
    /// The node, as home knows it.
    pub node: String,
    /// A pod's addresses, as home knows them, one of each family that it has.
    pub addresses: Vec<IpAddr>,
}

impl Scene {
    /// How a cluster sees an address of home's space.
    pub fn seen(&self, cluster: usize, address: IpAddr) -> Option<IpAddr> {
        match &self.clusters[cluster].sees {
            Sees::Itself => Some(address),
            Sees::By(maps) => maps.seen_there(Here(address)).map(|there| there.0),
            Sees::Unwanted(_) | Sees::Nothing(_) => None,
        }
    }

    /// The addresses of a pod that stand for it in its Services, as a cluster sees them.
    pub fn in_services(&self, cluster: usize, pod: &Party) -> impl Iterator<Item = IpAddr> {
        let service = &self.clusters[pod.cluster].service;
        let of_service = pod.addresses.iter().filter(|own| service.addresses.iter().any(|one| one.is_ipv4() == own.is_ipv4()));
        of_service.filter_map(move |address| self.seen(cluster, *address))
    }

    /// The pods of a cluster that are asked.
    pub fn pods(&self, cluster: usize) -> impl Iterator<Item = &Party> {
        self.parties.iter().filter(move |party| party.cluster == cluster && party.kind == From::Pod)
    }
}
