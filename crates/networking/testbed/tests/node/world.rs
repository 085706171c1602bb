//! Clusters of namespaces with the same ranges, which agree on addresses by the rules of
//! `liqo_network_model`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use liqo_api::{ApiServerEndpoint, ClusterId};
use liqo_datapath::{
    node::{self, KernelState, KernelStep, NetlinkLinks, NetlinkRoutes, Nft, NodeKernel},
    tunnel::{
        DirectPathConfig, EndpointConfig, LocalAddresses, PrivateKey, RemoteConfig, Tunnel as _,
        TunnelError, UserspaceTunnel,
    },
};
use liqo_datapath_testbed::namespace::NetworkNamespace;
use liqo_network_model::{
    Here, PeerMaps, PrefixMap, There,
    allocator::Allocations,
    fabric::{
        Fabric, FabricGateway, FabricNode as ClusterNode, MacAddress, PeerNetwork, ReachableScope,
        TUNNEL,
    },
    negotiation::{
        ClusterRanges, KeptByPeer, PrefixAnnouncement, allocate_views, compute_agreement,
    },
    spread::gateway_number,
};
use liqo_playground::{Requirements, Silent};

use crate::traffic::{self, ANY_V4, ANY_V6, DATAGRAMS, PORT, send, serve_in};

const TUNNEL_PORT: u16 = 6471;
const MTU: u16 = 1420;

/// Cluster and number of a node, and of the one pod on it. The first nodes of each cluster are its
/// gateways.
pub type NodeId = (usize, usize);

/// Number of nodes, number of gateways, and address families of a cluster.
type Shape = (usize, usize, &'static [Family]);

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("few of them")
}

fn id(cluster: usize) -> ClusterId {
    char::from(b'a' + small(cluster))
        .to_string()
        .repeat(32)
        .parse()
        .expect("an ID")
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

pub const V4: &[Family] = &[Family::V4];
pub const V6: &[Family] = &[Family::V6];
pub const BOTH: &[Family] = &[Family::V4, Family::V6];

impl Family {
    /// Its name for `ip` and nftables.
    pub fn keyword(self) -> &'static str {
        if self == Self::V4 { "ip" } else { "ip6" }
    }

    fn choose<T>(self, v4: T, v6: T) -> T {
        if self == Self::V4 { v4 } else { v6 }
    }
}

fn stand_in(number: usize, family: Family) -> IpAddr {
    external_address(2 + small(number), family)
}

fn external_address(last: u8, family: Family) -> IpAddr {
    family.choose(
        IpAddr::from([10, 70, 0, last]),
        IpAddr::from([0xfd70, 0, 0, 0, 0, 0, 0, last.into()]),
    )
}

pub fn node_address((cluster, node): NodeId, family: Family) -> IpAddr {
    let (cluster, last) = (small(cluster), 11 + small(node));
    family.choose(
        IpAddr::from([172, 30, cluster, last]),
        IpAddr::from([0xfd30, 0, 0, cluster.into(), 0, 0, 0, last.into()]),
    )
}

/// The pod prefix of a node.
fn pods_on(node: usize, family: Family) -> IpNet {
    net(&family.choose(
        format!("10.244.{node}.0/24"),
        format!("fd44:0:0:{node}::/64"),
    ))
}

fn address_on(node: usize, last: u8, family: Family) -> IpAddr {
    let node = small(node);
    family.choose(
        IpAddr::from([10, 244, node, last]),
        IpAddr::from([0xfd44, 0, 0, node.into(), 0, 0, 0, last.into()]),
    )
}

/// The address of the pod on a node, in its own cluster.
pub fn pod_address((_, node): NodeId, family: Family) -> IpAddr {
    address_on(node, 2, family)
}

/// More addresses of the same pod. They differ in the bits by which gateways share flows.
pub fn pod_addresses((_, node): NodeId, family: Family) -> impl Iterator<Item = IpAddr> {
    (16..32).map(move |last| address_on(node, last, family))
}

/// The ranges of a cluster: the same ones for all clusters, except for the nodes.
fn ranges(cluster: usize, families: &[Family]) -> ClusterRanges {
    let of_each = |v4: &str, v6: &str| {
        families
            .iter()
            .map(|family| net(family.choose(v4, v6)))
            .collect()
    };
    ClusterRanges {
        pods: of_each("10.244.0.0/16", "fd44::/56"),
        services: of_each("10.96.0.0/12", "fd96::/112"),
        external: of_each("10.70.0.0/24", "fd70::/120"),
        nodes: families
            .iter()
            .map(|family| node_address((cluster, 0), *family))
            .collect(),
        reserved: of_each("172.30.0.0/16", "fd30::/16"),
        pools: of_each("10.0.0.0/8", "fd00::/16"),
    }
}

/// Connected clusters.
pub struct World {
    nodes: BTreeMap<NodeId, NetworkNamespace>,
    pods: BTreeMap<NodeId, NetworkNamespace>,
    shapes: Vec<Shape>,
    fabrics: Vec<Fabric>,
    keys: BTreeMap<NodeId, PrivateKey>,
    tunnels: BTreeMap<NodeId, (UserspaceTunnel, EndpointConfig)>,
    _switch: NetworkNamespace,
}

impl World {
    /// Two clusters of two nodes each.
    pub fn two() -> io::Result<Self> {
        Self::of_families(BOTH, BOTH)
    }

    /// The same, with these address families in the two clusters.
    pub fn of_families(one: &'static [Family], other: &'static [Family]) -> io::Result<Self> {
        Self::new(&[(2, 1, one), (2, 1, other)], &[(0, 1)], None, |_, _| false)
    }

    /// Two clusters with this number of gateways and one more node each.
    pub fn with_gateways(one: usize, other: usize) -> io::Result<Self> {
        Self::new(
            &[(one + 1, one, BOTH), (other + 1, other, BOTH)],
            &[(0, 1)],
            None,
            |_, _| false,
        )
    }

    /// A hub of two nodes with this number of gateways, and two leaves of one node each that are
    /// connected only to the hub.
    pub fn hub_and_leaves(gateways: usize) -> io::Result<Self> {
        Self::new(
            &[(2, gateways, BOTH), (1, 1, BOTH), (1, 1, BOTH)],
            &[(0, 1), (0, 2)],
            Some(0),
            |_, _| true,
        )
    }

    /// A broker with this number of gateways and one more node, and three clusters that are
    /// connected only to it: a customer, the provider with two nodes, and another customer. Nobody
    /// has pods at the provider yet.
    pub fn broker(gateways: usize) -> io::Result<Self> {
        let leaf = (1, 1, BOTH);
        let shapes = [(gateways + 1, gateways, BOTH), leaf, (2, 1, BOTH), leaf];
        Self::new(&shapes, &[(0, 1), (0, 2), (0, 3)], Some(0), |one, other| {
            [one, other].contains(&2)
        })
    }

    fn new(
        shapes: &[Shape],
        links: &[(usize, usize)],
        hub: Option<usize>,
        is_passed_on: fn(usize, usize) -> bool,
    ) -> io::Result<Self> {
        install_programs()?;
        let switch = NetworkNamespace::new()?;
        switch.ip("link add bridge type bridge\nlink set bridge up")?;
        let (mut nodes, mut pods) = (BTreeMap::new(), BTreeMap::new());
        for (cluster, &shape) in shapes.iter().enumerate() {
            for node_id in (0..shape.0).map(|node| (cluster, node)) {
                let (node, pod) = (NetworkNamespace::new()?, NetworkNamespace::new()?);
                build_node(&switch, &node, &pod, node_id, shape)?;
                nodes.insert(node_id, node);
                pods.insert(node_id, pod);
            }
        }
        let node_ids = shapes
            .iter()
            .enumerate()
            .flat_map(|(cluster, (_, gateways, _))| {
                (0..*gateways).map(move |node| (cluster, node))
            });
        let keys: BTreeMap<NodeId, PrivateKey> = node_ids
            .map(|node_id| (node_id, PrivateKey::generate()))
            .collect();
        let fabrics = fabrics(shapes, links, hub, is_passed_on, &keys);
        let shapes = shapes.to_vec();
        let mut world = Self {
            nodes,
            pods,
            shapes,
            fabrics,
            keys,
            tunnels: BTreeMap::new(),
            _switch: switch,
        };
        world.connect()?;
        for node_id in world.node_ids() {
            world.apply(node_id).map_err(io::Error::other)?;
        }
        Ok(world)
    }

    /// The address families that both clusters have.
    pub fn families(&self, one: usize, other: usize) -> impl Iterator<Item = Family> {
        let others = self.shapes[other].2;
        self.shapes[one]
            .2
            .iter()
            .copied()
            .filter(|family| others.contains(family))
    }

    pub fn node_ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub fn node(&self, node_id: NodeId) -> &NetworkNamespace {
        &self.nodes[&node_id]
    }

    pub fn pod(&self, node_id: NodeId) -> &NetworkNamespace {
        &self.pods[&node_id]
    }

    /// Starts servers in each pod.
    pub fn serve(&self) -> io::Result<()> {
        self.pods.values().try_for_each(serve_in)
    }

    /// Starts servers on these nodes.
    pub fn serve_on(&self, nodes: &[NodeId]) -> io::Result<()> {
        nodes
            .iter()
            .try_for_each(|node| serve_in(&self.nodes[node]))
    }

    /// The address of another cluster's pod as this cluster sees it: directly, or through a hub
    /// that both are connected to.
    pub fn seen_from(&self, cluster: usize, of: NodeId, family: Family) -> Option<IpAddr> {
        self.sees(cluster, of.0, pod_address(of, family))
    }

    /// All addresses of that pod as this cluster sees them.
    pub fn all_seen_from(&self, cluster: usize, of: NodeId, family: Family) -> Vec<IpAddr> {
        pod_addresses(of, family)
            .filter_map(|address| self.sees(cluster, of.0, address))
            .collect()
    }

    fn sees(&self, cluster: usize, owner: usize, address: IpAddr) -> Option<IpAddr> {
        let maps = |own: usize, peer: usize| {
            self.fabrics[own]
                .peers
                .get(&id(peer))
                .map(|peer| &peer.maps)
        };
        let from = |peer: usize, address| seen_here(maps(cluster, peer)?, address);
        if maps(cluster, owner).is_some() {
            return from(owner, address);
        }
        let through = |hub: usize| {
            let at_hub = seen_here(maps(hub, owner)?, address)?;
            // The hub's "there" is the leaf's "here".
            maps(hub, cluster)?
                .seen_there(Here(at_hub))
                .map(|there| there.0)
        };
        (0..self.fabrics.len()).find_map(through)
    }

    /// The stand-ins of a cluster's nodes, as another cluster sees them.
    pub fn nodes_seen_from(&self, cluster: usize, of: usize, family: Family) -> Vec<IpAddr> {
        (0..16)
            .filter_map(|last| self.sees(cluster, of, external_address(last, family)))
            .collect()
    }

    /// Bytes that each gateway of a cluster has sent and received.
    pub fn carried(&self, cluster: usize) -> Vec<u64> {
        let of = self
            .tunnels
            .iter()
            .filter(|((owner, _), _)| *owner == cluster);
        let remotes = of.map(|(_, (tunnel, _))| tunnel.state().remotes);
        remotes
            .map(|remotes| {
                remotes
                    .iter()
                    .map(|remote| remote.sent_bytes + remote.received_bytes)
                    .sum()
            })
            .collect()
    }

    /// Starts tunnels from the gateways of each cluster to those of its peers.
    fn connect(&mut self) -> io::Result<()> {
        for (&node_id, key) in &self.keys {
            let peers = self.keys.iter().filter_map(|(other, key)| {
                let peer = self.fabrics[node_id.0].peers.get(&id(other.0))?;
                Some((*other, key.public_key(), peer))
            });
            let remotes = peers.map(|(other, public_key, peer)| RemoteConfig {
                endpoint: self
                    .families(node_id.0, other.0)
                    .next()
                    .map(|family| (node_address(other, family), TUNNEL_PORT).into()),
                keepalive: Some(Duration::from_secs(15)),
                prefixes: peer.maps.imported.pairs().map(|(here, _)| here.0).collect(),
                ..RemoteConfig::new(public_key)
            });
            let endpoint = EndpointConfig {
                private_key: key.clone(),
                previous_key: None,
                listen: self.shapes[node_id.0]
                    .2
                    .iter()
                    .map(|family| (family.choose(ANY_V4, ANY_V6), TUNNEL_PORT).into())
                    .collect(),
                device: TUNNEL.to_owned(),
                mtu: MTU,
                remotes: remotes.collect(),
            };
            let tunnel = UserspaceTunnel::new();
            self.nodes[&node_id]
                .run(|| tunnel.apply(&endpoint))?
                .map_err(io::Error::other)?;
            self.tunnels.insert(node_id, (tunnel, endpoint));
        }
        Ok(())
    }

    /// Lets the gateways of a customer and of a provider of the broker, cluster 0, exchange packets
    /// of a pod directly, or no longer. Returns when they do.
    pub fn set_direct(
        &mut self,
        customer: NodeId,
        provider: NodeId,
        is_wanted: bool,
    ) -> io::Result<()> {
        let (ends, pod) = ([customer, provider], provider);
        for [own, other] in [ends, [provider, customer]] {
            let at_broker: BTreeSet<IpNet> = self.fabrics[0].peers[&id(other.0)]
                .maps
                .imported
                .pairs()
                .map(|(here, _)| here.0)
                .collect();
            let maps = &self.fabrics[own.0].peers[&id(0)].maps;
            let pairs = maps
                .imported
                .pairs()
                .filter(|(_, there)| at_broker.contains(&there.0));
            let local = if own == customer {
                LocalAddresses::Prefixes(maps.exported.pairs().map(|(_, there)| there.0).collect())
            } else {
                let seen = |family: &Family| {
                    self.all_seen_from(0, pod, *family)
                        .into_iter()
                        .chain(self.seen_from(0, pod, *family))
                };
                LocalAddresses::Pods(Arc::new(BOTH.iter().flat_map(seen).collect()))
            };
            let direct = DirectPathConfig {
                number: 1,
                prefixes: PrefixMap::new(pairs).map_err(io::Error::other)?,
                local,
            };
            let key = self.keys[&other].public_key();
            let (tunnel, endpoint) = self.tunnels.get_mut(&own).ok_or(io::ErrorKind::NotFound)?;
            endpoint.remotes.retain(|remote| remote.public_key != key);
            if is_wanted {
                endpoint.remotes.push(RemoteConfig {
                    endpoint: Some((node_address(other, Family::V4), TUNNEL_PORT).into()),
                    prefixes: direct.prefixes.pairs().map(|(here, _)| here.0).collect(),
                    direct: Some(direct),
                    ..RemoteConfig::new(key)
                });
            }
            self.nodes[&own]
                .run(|| tunnel.apply(endpoint))?
                .map_err(io::Error::other)?;
        }
        let is_direct = |own: &NodeId| {
            self.tunnels[own]
                .0
                .state()
                .remotes
                .iter()
                .any(|remote| remote.is_direct)
        };
        traffic::until("both ends have changed the way", || {
            ends.iter().all(|end| is_direct(end) == is_wanted)
        });
        Ok(())
    }

    /// Makes a broker's gateway accept gaps in the connections between a customer and a provider.
    /// Returns in how many it did not before.
    pub fn allow_gaps(&self, broker: NodeId, ends: [NodeId; 2]) -> io::Result<usize> {
        let prefixes = |end: NodeId| {
            self.fabrics[broker.0].peers[&id(end.0)]
                .maps
                .imported
                .pairs()
                .map(|(here, _)| here.0)
                .collect()
        };
        let pairs = vec![ends.map(prefixes)];
        self.nodes[&broker]
            .run(|| tokio::runtime::Runtime::new()?.block_on(node::allow_gaps(pairs)))?
    }

    /// Stops the tunnel of a gateway, as if its process had died, and starts it again.
    pub fn restart_tunnel(&self, node_id: NodeId) -> io::Result<()> {
        self.tunnels[&node_id].0.stop();
        self.start_tunnel(node_id)
    }

    /// Tries again for a while, as the agent does: a child process that another test is just
    /// starting has a copy of the former device and sockets until it executes its program, and the
    /// kernel refuses them to us meanwhile.
    fn start_tunnel(&self, node_id: NodeId) -> io::Result<()> {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let (tunnel, endpoint) = &self.tunnels[&node_id];
        let deadline = Instant::now() + TIMEOUT;
        self.nodes[&node_id].run(|| {
            loop {
                match tunnel.apply(endpoint) {
                    Err(TunnelError::Device { .. } | TunnelError::Listen { .. })
                        if Instant::now() < deadline =>
                    {
                        thread::sleep(Duration::from_millis(10));
                    }
                    outcome => return outcome.map_err(io::Error::other),
                }
            }
        })?
    }

    /// A gateway dies: its tunnel stops, and all others learn of it. Its node and the pod on it
    /// stay.
    pub fn lose(&mut self, node_id: NodeId) -> Result<(), String> {
        self.tunnels[&node_id].0.stop();
        self.set_gateway(node_id, false)
    }

    /// The gateway comes back.
    pub fn regain(&mut self, node_id: NodeId) -> Result<(), String> {
        self.start_tunnel(node_id)
            .map_err(|error| error.to_string())?;
        self.set_gateway(node_id, true)?;
        self.apply(node_id)?;
        // Other gateways carried its connections meanwhile.
        let plan = self.fabrics[node_id.0].node_plan(&node_id.1.to_string());
        self.on(node_id, async |node| {
            node.forget_carried_connections(&plan).await;
            Ok(())
        })
    }

    fn set_gateway(&mut self, node_id: NodeId, is_gateway: bool) -> Result<(), String> {
        self.set_used_by_peers(node_id, is_gateway)?;
        self.set_used_by_its_cluster(node_id, is_gateway)
    }

    /// Whether peers send by this gateway.
    pub fn set_used_by_peers(&mut self, node_id: NodeId, is_gateway: bool) -> Result<(), String> {
        let lost = self.keys[&node_id].public_key();
        for (_, endpoint) in self.tunnels.values_mut() {
            for remote in endpoint
                .remotes
                .iter_mut()
                .filter(|remote| remote.public_key == lost)
            {
                remote.enabled = is_gateway;
            }
        }
        for peer in self.tunnels.keys().filter(|peer| peer.0 != node_id.0) {
            self.start_tunnel(*peer)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether the other nodes of its cluster send by this gateway.
    pub fn set_used_by_its_cluster(
        &mut self,
        node_id: NodeId,
        is_gateway: bool,
    ) -> Result<(), String> {
        let gateway = gateway(&self.keys, node_id).filter(|_| is_gateway);
        if let Some(node) = self.fabrics[node_id.0]
            .nodes
            .get_mut(&node_id.1.to_string())
        {
            node.gateway = gateway;
        }
        let others = self
            .node_ids()
            .into_iter()
            .filter(|other| other.0 == node_id.0 && *other != node_id);
        others
            .into_iter()
            .try_for_each(|other| self.apply(other).map(drop))
    }

    /// Brings a node to its planned state and returns the steps.
    pub fn apply(&self, node_id: NodeId) -> Result<Vec<KernelStep>, String> {
        let plan = self.fabrics[node_id.0].node_plan(&node_id.1.to_string());
        self.on(node_id, async |node| node.apply(&plan).await)
    }

    /// Replaces all tables of a node, although nothing differs.
    pub fn replace_tables(&self, node_id: NodeId) -> Result<(), String> {
        let plan = self.fabrics[node_id.0].node_plan(&node_id.1.to_string());
        self.on(node_id, async |node| {
            for table in &plan.tables {
                node::Firewall::replace_table(&node.firewall, table).await?;
            }
            Ok(())
        })
    }

    /// Replaces all tables of a node, changes them by this script as somebody else would, and
    /// returns the steps that repair them.
    pub fn meddle(&self, node_id: NodeId, script: &str) -> Result<Vec<KernelStep>, String> {
        let plan = self.fabrics[node_id.0].node_plan(&node_id.1.to_string());
        self.on(node_id, async |node| {
            for table in &plan.tables {
                node::Firewall::replace_table(&node.firewall, table).await?;
            }
            assert_eq!(
                node.apply(&plan).await?,
                [],
                "nobody has changed anything yet"
            );
            let changed = std::process::Command::new("nft")
                .args(script.split(' '))
                .status();
            assert!(changed.is_ok_and(|status| status.success()), "{script}");
            node.apply(&plan).await
        })
    }

    /// Sets the MTU of a pod.
    pub fn narrow(&self, node_id: NodeId, mtu: u16) -> io::Result<()> {
        self.node(node_id).ip(&format!("link set pod mtu {mtu}"))?;
        self.pod(node_id).ip(&format!("link set eth0 mtu {mtu}"))
    }

    /// Declares that the way from a cluster to a peer carries packets of this size.
    pub fn narrow_way(&mut self, cluster: usize, peer: usize, mtu: u32) -> Result<(), String> {
        let peer = self.fabrics[cluster]
            .peers
            .get_mut(&id(peer))
            .ok_or("no such peer")?;
        peer.mtus = peer
            .maps
            .imported
            .pairs()
            .map(|(here, _)| (here.0, mtu))
            .collect();
        let nodes: Vec<NodeId> = self
            .node_ids()
            .into_iter()
            .filter(|node_id| node_id.0 == cluster)
            .collect();
        nodes
            .into_iter()
            .try_for_each(|node_id| self.apply(node_id).map(drop))
    }

    pub fn disable_source_checks(&self, node_id: NodeId) -> io::Result<()> {
        ["all", "pod"].iter().try_for_each(|device| {
            set(
                self.node(node_id),
                &format!("ipv4/conf/{device}/rp_filter"),
                "0",
            )
        })
    }

    /// A socket of a pod that receives single datagrams.
    pub fn listen(&self, node_id: NodeId) -> io::Result<UdpSocket> {
        let socket = self
            .pod(node_id)
            .run(|| UdpSocket::bind((ANY_V6, DATAGRAMS)))??;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(socket)
    }

    /// Sends a datagram from a pod with any source address.
    pub fn send_as(&self, node_id: NodeId, source: IpAddr, to: SocketAddr) -> io::Result<()> {
        let at_once = if source.is_ipv4() { "" } else { "nodad" };
        self.pod(node_id)
            .ip(&format!("address replace {source} dev lo {at_once}"))?;
        self.pod(node_id).run(|| send(source, to))?
    }

    /// Makes a pod forget the path MTUs that it learned.
    pub fn forget_path_mtus(&self, node_id: NodeId) -> io::Result<()> {
        for family in ["-4", "-6"] {
            self.pod(node_id)
                .command("ip", &[family, "route", "flush", "cache"], "")?;
        }
        Ok(())
    }

    pub fn clear(&self, node_id: NodeId) -> Result<Vec<KernelStep>, String> {
        self.on(node_id, async |node| node.clear().await)
    }

    pub fn present(&self, node_id: NodeId) -> Result<KernelState, String> {
        self.on(node_id, async |node| node.present_state().await)
    }

    /// Lets peers of a cluster reach only these addresses.
    pub fn open_only(&mut self, cluster: usize, addresses: &[IpAddr]) -> Result<(), String> {
        self.set_reachable(
            cluster,
            &ReachableScope::only_addresses(addresses.iter().copied()),
        )
    }

    /// Lets peers of a cluster go on with their connections to these addresses, and reach no
    /// others.
    pub fn open_to_established(
        &mut self,
        cluster: usize,
        addresses: &[IpAddr],
    ) -> Result<(), String> {
        let established = addresses.iter().copied().collect();
        self.set_reachable(
            cluster,
            &ReachableScope::Only {
                all: BTreeSet::new(),
                established,
            },
        )
    }

    fn set_reachable(&mut self, cluster: usize, reachable: &ReachableScope) -> Result<(), String> {
        for peer in self.fabrics[cluster].peers.values_mut() {
            peer.reachable = reachable.clone();
        }
        let node_ids = self
            .node_ids()
            .into_iter()
            .filter(|node_id| node_id.0 == cluster);
        node_ids
            .into_iter()
            .try_for_each(|node_id| self.apply(node_id).map(drop))
    }

    /// The broker offloaded pods of these customers on to the provider, where they have these
    /// addresses. Nothing else is open at the broker.
    pub fn offload_on(
        &mut self,
        provider: usize,
        pods: &[(usize, Vec<IpAddr>)],
    ) -> Result<(), String> {
        let at_broker = |address: &IpAddr| self.sees(0, provider, *address);
        let seen: Vec<(usize, BTreeSet<IpAddr>)> = pods
            .iter()
            .map(|(customer, addresses)| {
                (*customer, addresses.iter().filter_map(at_broker).collect())
            })
            .collect();
        let peers = &mut self.fabrics[0].peers;
        for peer in peers.values_mut() {
            (peer.transit, peer.reachable) = (false, ReachableScope::default());
        }
        for (customer, addresses) in seen {
            let customer = id(customer);
            if let Some(provider) = peers.get_mut(&id(provider)) {
                provider.customers.insert(customer.clone());
            }
            if let Some(customer) = peers.get_mut(&customer) {
                customer.offloaded = addresses;
            }
        }
        let node_ids = self.node_ids().into_iter().filter(|node_id| node_id.0 == 0);
        node_ids
            .into_iter()
            .try_for_each(|node_id| self.apply(node_id).map(drop))
    }

    /// Declares these machines as the API servers of a cluster, which these pods of peers may
    /// reach; none ever may without a list.
    pub fn set_api_servers(
        &mut self,
        cluster: usize,
        machines: &[NodeId],
        family: Family,
        clients: Option<&[NodeId]>,
    ) -> Result<(), String> {
        let server = |(number, machine): (usize, &NodeId)| ApiServerEndpoint {
            address: node_address(*machine, family),
            port: PORT,
            stand_in: stand_in(number, family),
        };
        let clients: Option<BTreeSet<IpAddr>> = clients.map(|clients| {
            clients
                .iter()
                .filter_map(|client| self.seen_from(cluster, *client, family))
                .collect()
        });
        let fabric = &mut self.fabrics[cluster];
        fabric.api_servers = machines.iter().enumerate().map(server).collect();
        fabric
            .peers
            .values_mut()
            .for_each(|peer| peer.api_server.clone_from(&clients));
        let nodes: Vec<NodeId> = self
            .node_ids()
            .into_iter()
            .filter(|node_id| node_id.0 == cluster)
            .collect();
        nodes
            .into_iter()
            .try_for_each(|node_id| self.apply(node_id).map(drop))
    }

    /// The stand-in of another cluster's API server, as this cluster sees it.
    pub fn api_server_seen_from(
        &self,
        cluster: usize,
        of: usize,
        number: usize,
        family: Family,
    ) -> Option<IpAddr> {
        let maps = &self.fabrics[cluster].peers.get(&id(of))?.maps;
        seen_here(maps, stand_in(number, family))
    }

    fn on<T: Send>(
        &self,
        node_id: NodeId,
        work: impl AsyncFnOnce(
            &NodeKernel<NetlinkLinks, NetlinkRoutes, Nft>,
        ) -> Result<T, node::NodeError>
        + Send,
    ) -> Result<T, String> {
        let inside = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let node = NodeKernel::of_this_namespace().map_err(|error| error.to_string())?;
                work(&node).await.map_err(|error| error.to_string())
            })
        };
        self.node(node_id)
            .run(inside)
            .map_err(|error| error.to_string())?
    }
}

/// Installs `ip` and `nft` if they are missing, once for all tests.
fn install_programs() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().expect("no other test panicked here");
    if !*installed {
        let install = async { Requirements::check(&[]).await?.install(&Silent).await };
        tokio::runtime::Runtime::new()?
            .block_on(install)
            .map_err(io::Error::other)?;
        *installed = true;
    }
    Ok(())
}

/// A gateway as all nodes of its cluster know it.
fn gateway(keys: &BTreeMap<NodeId, PrivateKey>, node_id: NodeId) -> Option<FabricGateway> {
    let number = gateway_number(&keys.get(&node_id)?.public_key().0);
    Some(FabricGateway {
        slot: small(node_id.1),
        number,
    })
}

/// The fabric of each cluster, after all have exchanged their announcements. The hub passes
/// prefixes of one peer on to another.
fn fabrics(
    shapes: &[Shape],
    links: &[(usize, usize)],
    hub: Option<usize>,
    is_passed_on: fn(usize, usize) -> bool,
    keys: &BTreeMap<NodeId, PrivateKey>,
) -> Vec<Fabric> {
    let ranges = |cluster: usize| ranges(cluster, shapes[cluster].2);
    let peers_of = |own: usize| {
        let all = links
            .iter()
            .flat_map(|&(one, other)| [(one, other), (other, one)]);
        all.filter(move |(from, _)| *from == own).map(|(_, to)| to)
    };
    let mut allocations = vec![Allocations::new(); shapes.len()];
    let exports = |allocations: &[Allocations], from: usize, to: usize| -> BTreeSet<IpNet> {
        let is_passed_on = |owner: &ClusterId| {
            (0..shapes.len()).any(|one| id(one) == *owner && one != to && is_passed_on(one, to))
        };
        let others = allocations[from]
            .iter()
            .filter(|((owner, _), _)| hub == Some(from) && is_passed_on(owner));
        let ranges = ranges(from);
        ranges
            .pods
            .into_iter()
            .chain(ranges.external)
            .chain(others.map(|(_, here)| *here))
            .collect()
    };
    loop {
        let before = allocations.clone();
        for own in 0..shapes.len() {
            let theirs = peers_of(own)
                .map(|peer| (id(peer), exports(&before, peer, own).into_iter().collect()))
                .collect();
            allocations[own] =
                allocate_views(&ranges(own), &theirs, KeptByPeer::new(), &before[own]).0;
        }
        if before == allocations {
            break;
        }
    }
    let says = |from: usize, to: usize| {
        let of_peer = allocations[from]
            .iter()
            .filter(|((owner, _), _)| *owner == id(to));
        PrefixAnnouncement {
            exports: exports(&allocations, from, to),
            views: of_peer
                .map(|((_, prefix), here)| (*prefix, *here))
                .collect(),
        }
    };
    let fabric = |(own, &(size, _, families)): (usize, &Shape)| {
        let peer = |peer: usize| {
            let agreement =
                compute_agreement(&says(own, peer), &says(peer, own)).expect("an agreement");
            assert!(agreement.is_complete(), "{agreement:?}");
            (
                id(peer),
                PeerNetwork {
                    maps: agreement.maps,
                    reachable: ReachableScope::Everything,
                    transit: hub == Some(own),
                    ..PeerNetwork::default()
                },
            )
        };
        let node = |node: usize| ClusterNode {
            addresses: families
                .iter()
                .map(|family| node_address((own, node), *family))
                .collect(),
            pods: families
                .iter()
                .map(|family| pods_on(node, *family))
                .collect(),
            mac: MacAddress::from_hash([0, 0, 0, small(own), small(node)]),
            gateway: gateway(keys, (own, node)),
        };
        Fabric {
            pods: ranges(own).pods,
            external: ranges(own).external,
            nodes: (0..size)
                .map(|index| (index.to_string(), node(index)))
                .collect(),
            peers: peers_of(own).map(peer).collect(),
            mtu: MTU.into(),
            ..Fabric::default()
        }
    };
    shapes.iter().enumerate().map(fabric).collect()
}

/// Builds a node with one pod and routes to the other nodes' pods, as a simple CNI does: it
/// masquerades packets that leave the pod range or come from outside of it. IPv4 sources are
/// checked strictly; Linux does not check IPv6 sources.
fn build_node(
    switch: &NetworkNamespace,
    node: &NetworkNamespace,
    pod: &NetworkNamespace,
    node_id: NodeId,
    (size, _, families): Shape,
) -> io::Result<()> {
    let (cluster, number) = node_id;
    let port = format!("port{cluster}{number}");
    for namespace in [node, pod] {
        set(namespace, "ipv6/conf/default/accept_dad", "0")?;
    }
    switch.ip(&format!(
        "link add {port} type veth peer name eth0 netns {}\nlink set {port} master bridge up",
        node.path()
    ))?;
    node.ip(&format!(
        "link set lo up\nlink set eth0 up\nlink add pod type veth peer name eth0 netns {}\nlink set pod up",
        pod.path()
    ))?;
    pod.ip("link set lo up\nlink set eth0 up")?;
    // New devices get the kernel's default again.
    set(node, "ipv6/conf/default/accept_dad", "1")?;
    for &family in families {
        address_node(node, pod, node_id, size, family)?;
    }
    // Some programs make the kernel use marks in the checks of sources, too.
    set(
        node,
        "ipv4/conf/all/src_valid_mark",
        &(number % 2).to_string(),
    )?;
    for device in ["all", "default", "eth0", "pod"] {
        set(node, &format!("ipv4/conf/{device}/rp_filter"), "1")?;
    }
    Ok(())
}

/// Gives a node and its pod their addresses of a family, and the routes between them.
fn address_node(
    node: &NetworkNamespace,
    pod: &NetworkNamespace,
    node_id: NodeId,
    size: usize,
    family: Family,
) -> io::Result<()> {
    let (cluster, number) = node_id;
    let (address, length) = (node_address(node_id, family), family.choose(16, 48));
    let (own, gateway, pods) = (
        pod_address(node_id, family),
        address_on(number, 1, family),
        pods_on(number, family).prefix_len(),
    );
    let (whole, at_once) = family.choose((32, ""), (128, "nodad"));
    node.ip(&format!("address add {address}/{length} dev eth0 {at_once}\naddress add {gateway}/{pods} dev pod {at_once}"))?;
    for other in (0..size).filter(|other| *other != number) {
        node.ip(&format!(
            "route add {} via {}",
            pods_on(other, family),
            node_address((cluster, other), family)
        ))?;
    }
    let more = pod_addresses(node_id, family)
        .map(|more| format!("address add {more}/{whole} dev eth0 {at_once}\n"));
    let more: Vec<String> = more.collect();
    pod.ip(&format!(
        "address add {own}/{pods} dev eth0 {at_once}\n{}route add default via {gateway} src {own}",
        more.concat()
    ))?;
    set(
        node,
        family.choose("ipv4/ip_forward", "ipv6/conf/all/forwarding"),
        "1",
    )?;
    let (keyword, pods) = (family.keyword(), ranges(cluster, &[family]).pods[0]);
    let masquerade = format!(
        "table {keyword} cni {{\nchain post {{\ntype nat hook postrouting priority srcnat;\n\
         {keyword} saddr {pods} {keyword} daddr != {pods} masquerade\n\
         {keyword} saddr != {pods} {keyword} daddr {pods} masquerade\n}}\n}}\n"
    );
    node.command("nft", &["--file", "-"], &masquerade).map(drop)
}

/// Sets a sysctl of a namespace below `net/`.
fn set(namespace: &NetworkNamespace, name: &str, value: &str) -> io::Result<()> {
    namespace.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))?
}

/// How a cluster sees an address of its peer: the inverse of [`PeerMaps::seen_there`].
fn seen_here(maps: &PeerMaps, address: IpAddr) -> Option<IpAddr> {
    maps.imported
        .to_here(There(address))
        .or_else(|| maps.exported.to_here(There(address)))
        .map(|here| here.0)
}
