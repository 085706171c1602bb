//! The participants, and how each cluster sees the others. Questions and judgements depend on
//! nothing else.

use std::{collections::BTreeSet, net::IpAddr};

use liqo_network_model::{Here, PeerMaps};
use serde::Serialize;

use crate::probes::ExcludedNode;

/// The test setup of one cluster that borrows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkTestSetup {
    /// The clusters; the one that borrows, home, is the first.
    pub clusters: Vec<TestedCluster>,
    /// The pods and nodes that ask; pods also answer.
    pub probers: Vec<Prober>,
    /// Nodes of home and their addresses, for calls to node ports.
    pub nodes: Vec<(String, IpAddr)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TestedCluster {
    pub name: String,
    /// Name of the namespace there.
    pub namespace: String,
    /// Its view of the addresses of home.
    pub sees: HomeView,
    /// The fallback addresses of its nodes, as home sees them.
    pub fallback_addresses: BTreeSet<IpAddr>,
    /// The Service before its pods.
    pub service: ProbedService,
    /// Whether home lets it reach other clusters with this property.
    pub transit: bool,
    /// Nodes that should take part and cannot.
    pub left_out: Vec<ExcludedNode>,
    /// The tunnel between it and home; none for home itself.
    pub tunnel: Option<ReportedTunnel>,
}

impl TestedCluster {
    /// Whether it and home use IPv4 with each other, or IPv6.
    pub fn shares_family(&self, is_ipv4: bool) -> bool {
        match &self.sees {
            HomeView::Itself => true,
            HomeView::By(maps) => maps
                .exported
                .pairs()
                .any(|(here, _)| here.0.addr().is_ipv4() == is_ipv4),
            HomeView::Unwanted(_) | HomeView::Nothing(_) => false,
        }
    }
}

/// The view that a cluster has of the addresses of home.
#[derive(Clone, Debug, PartialEq)]
pub enum HomeView {
    Itself,
    /// By these maps of home.
    By(PeerMaps),
    /// Not at all, on purpose.
    Unwanted(String),
    /// Not at all, though it should.
    Nothing(String),
}

impl HomeView {
    /// An address of home's address space, as the cluster sees it.
    pub fn seen_address(&self, of_home: IpAddr) -> Option<IpAddr> {
        match self {
            Self::Itself => Some(of_home),
            Self::By(maps) => maps.seen_there(Here(of_home)).map(|there| there.0),
            Self::Unwanted(_) | Self::Nothing(_) => None,
        }
    }
}

/// A Service and its headless counterpart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbedService {
    /// Its name; the headless one is called `<name>-each`.
    pub name: String,
    /// Its addresses at home, one of each family that it has.
    pub addresses: Vec<IpAddr>,
    /// Its node ports for TCP and UDP.
    pub node_ports: Option<(u16, u16)>,
}

/// The tunnel to a cluster, as home's gateway reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedTunnel {
    pub works: bool,
    pub reason: String,
    pub message: String,
    pub gateway: Option<String>,
    /// Its MTU in bytes.
    pub mtu: u16,
}

/// The kind of an asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AskerKind {
    Pod,
    /// A node: a pod in its node's network namespace.
    Node,
}

/// A pod or node that asks. Pods also answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Prober {
    /// Its cluster, as an index into the setup.
    pub cluster: usize,
    pub kind: AskerKind,
    pub pod: String,
    /// The node, as home knows it.
    pub node: String,
    /// A pod's addresses, as home knows them, one of each family that it has.
    pub addresses: Vec<IpAddr>,
    /// The view of home from the cluster that runs it, if that is a cluster behind its own one: a
    /// broker offloads pods on.
    pub behind: Option<HomeView>,
}

impl NetworkTestSetup {
    pub fn cluster_name(&self, cluster: usize) -> &str {
        &self.clusters[cluster].name
    }

    /// The view that a pod or node has of home.
    pub fn home_view<'a>(&'a self, prober: &'a Prober) -> &'a HomeView {
        prober
            .behind
            .as_ref()
            .unwrap_or(&self.clusters[prober.cluster].sees)
    }

    /// The addresses of a pod in the endpoints of its Services, as a cluster sees them.
    pub fn in_services(&self, pod: &Prober, by: &HomeView) -> Vec<IpAddr> {
        let service = &self.clusters[pod.cluster].service;
        let of_service = pod.addresses.iter().filter(|own| {
            service
                .addresses
                .iter()
                .any(|one| one.is_ipv4() == own.is_ipv4())
        });
        of_service
            .filter_map(|address| by.seen_address(*address))
            .collect()
    }

    /// The pods of a cluster that are asked.
    pub fn pods(&self, cluster: usize) -> impl Iterator<Item = &Prober> {
        self.probers
            .iter()
            .filter(move |prober| prober.cluster == cluster && prober.kind == AskerKind::Pod)
    }
}
