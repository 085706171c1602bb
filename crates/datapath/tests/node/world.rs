//! Clusters of namespaces, all with the same ranges, that agree on their addresses by the rules of `liqo_network`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use liqo_api::{ApiServerEndpoint, ClusterId};
use liqo_datapath::{
    node::{self, NetlinkLinks, NetlinkRoutes, Nft, Node, Present, Step},
    testbed::namespace::Namespace,
    tunnel::{Endpoint, PrivateKey, Remote, Tunnel as _, UserspaceTunnel},
};
use liqo_network::{
    Here,
    allocator::Allocations,
    negotiation::{Announcement, Ranges, agree, place},
    plan::{Fabric, Gateway, Mac, Node as ClusterNode, Open, Peer, TUNNEL},
    spread::gateway_number,
};
use liqo_playground::{Requirements, Silent};

pub const PORT: u16 = 8080;
const TUNNEL_PORT: u16 = 6471;
const MTU: u16 = 1420;
const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// A node of a cluster, and the one pod on it. The first nodes of each cluster are its gateways.
pub type Place = (usize, usize);

/// How many nodes and gateways a cluster has, and addresses of which families.
type Shape = (usize, usize, &'static [Family]);

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("few of them")
}

fn id(cluster: usize) -> ClusterId {
    char::from(b'a' + small(cluster)).to_string().repeat(32).parse().expect("an ID")
}

/// Addresses of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

pub const V4: &[Family] = &[Family::V4];
pub const V6: &[Family] = &[Family::V6];
pub const BOTH: &[Family] = &[Family::V4, Family::V6];

impl Family {
    /// As `ip` and nftables call it.
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
    family.choose(IpAddr::from([10, 70, 0, last]), IpAddr::from([0xfd70, 0, 0, 0, 0, 0, 0, last.into()]))
}

pub fn node_address((cluster, node): Place, family: Family) -> IpAddr {
    let (cluster, last) = (small(cluster), 11 + small(node));
    family.choose(IpAddr::from([172, 30, cluster, last]), IpAddr::from([0xfd30, 0, 0, cluster.into(), 0, 0, 0, last.into()]))
}

/// The prefix of the pods on a node.
fn pods_on(node: usize, family: Family) -> IpNet {
    net(&family.choose(format!("10.244.{node}.0/24"), format!("fd44:0:0:{node}::/64")))
}

fn address_on(node: usize, last: u8, family: Family) -> IpAddr {
    let node = small(node);
    family.choose(IpAddr::from([10, 244, node, last]), IpAddr::from([0xfd44, 0, 0, node.into(), 0, 0, 0, last.into()]))
}

/// The address of the pod on a node, in its own cluster.
pub fn pod_address((_, node): Place, family: Family) -> IpAddr {
    address_on(node, 2, family)
}

/// More addresses of the same pod, which differ in what gateways share flows by.
pub fn pod_addresses((_, node): Place, family: Family) -> impl Iterator<Item = IpAddr> {
    (16..32).map(move |last| address_on(node, last, family))
}

/// Every cluster has the same, of its families.
fn ranges(cluster: usize, families: &[Family]) -> Ranges {
    let of_each = |v4: &str, v6: &str| families.iter().map(|family| net(family.choose(v4, v6))).collect();
    Ranges {
        pods: of_each("10.244.0.0/16", "fd44::/56"),
        services: of_each("10.96.0.0/12", "fd96::/112"),
        external: of_each("10.70.0.0/24", "fd70::/120"),
        nodes: families.iter().map(|family| node_address((cluster, 0), *family)).collect(),
        reserved: of_each("172.30.0.0/16", "fd30::/16"),
        pools: of_each("10.0.0.0/8", "fd00::/16"),
    }
}

/// Clusters that are connected.
pub struct World {
    nodes: BTreeMap<Place, Namespace>,
    pods: BTreeMap<Place, Namespace>,
    shapes: Vec<Shape>,
    fabrics: Vec<Fabric>,
    keys: BTreeMap<Place, PrivateKey>,
    tunnels: BTreeMap<Place, (UserspaceTunnel, Endpoint)>,
    _switch: Namespace,
}

impl World {
    /// Two clusters of two nodes each.
    pub fn two() -> io::Result<Self> {
        Self::of_families(BOTH, BOTH)
    }

    /// The same, where everything of a cluster has addresses of these families alone.
    pub fn of_families(one: &'static [Family], other: &'static [Family]) -> io::Result<Self> {
        Self::new(&[(2, 1, one), (2, 1, other)], &[(0, 1)], None)
    }

    /// Two clusters with so many gateways, and a node more each.
    pub fn with_gateways(one: usize, other: usize) -> io::Result<Self> {
        Self::new(&[(one + 1, one, BOTH), (other + 1, other, BOTH)], &[(0, 1)], None)
    }

    /// A hub of two nodes with so many gateways, and two leaves of one node each that are connected to the hub alone.
    pub fn hub_and_leaves(gateways: usize) -> io::Result<Self> {
        Self::new(&[(2, gateways, BOTH), (1, 1, BOTH), (1, 1, BOTH)], &[(0, 1), (0, 2)], Some(0))
    }

    fn new(shapes: &[Shape], links: &[(usize, usize)], hub: Option<usize>) -> io::Result<Self> {
        install_programs()?;
        let switch = Namespace::new()?;
        switch.ip("link add bridge type bridge\nlink set bridge up")?;
        let (mut nodes, mut pods) = (BTreeMap::new(), BTreeMap::new());
        for (cluster, &shape) in shapes.iter().enumerate() {
            for place in (0..shape.0).map(|node| (cluster, node)) {
                let (node, pod) = (Namespace::new()?, Namespace::new()?);
                build_node(&switch, &node, &pod, place, shape)?;
                nodes.insert(place, node);
                pods.insert(place, pod);
            }
        }
        let places =
            shapes.iter().enumerate().flat_map(|(cluster, (_, gateways, _))| (0..*gateways).map(move |node| (cluster, node)));
        let keys: BTreeMap<Place, PrivateKey> = places.map(|place| (place, PrivateKey::generate())).collect();
        let fabrics = fabrics(shapes, links, hub, &keys);
        let shapes = shapes.to_vec();
        let mut world = Self { nodes, pods, shapes, fabrics, keys, tunnels: BTreeMap::new(), _switch: switch };
        world.connect()?;
        for place in world.places() {
            world.apply(place).map_err(io::Error::other)?;
        }
        Ok(world)
    }

    /// The families that both of these clusters have.
    pub fn families(&self, one: usize, other: usize) -> impl Iterator<Item = Family> {
        let others = self.shapes[other].2;
        self.shapes[one].2.iter().copied().filter(|family| others.contains(family))
    }

    pub fn places(&self) -> Vec<Place> {
        self.nodes.keys().copied().collect()
    }

    pub fn node(&self, place: Place) -> &Namespace {
        &self.nodes[&place]
    }

    pub fn pod(&self, place: Place) -> &Namespace {
        &self.pods[&place]
    }

    /// Servers in each pod.
    pub fn serve(&self) -> io::Result<()> {
        self.pods.values().try_for_each(serve_in)
    }

    /// And on nodes.
    pub fn serve_on(&self, nodes: &[Place]) -> io::Result<()> {
        nodes.iter().try_for_each(|node| serve_in(&self.nodes[node]))
    }

    /// How this cluster sees the pod at a place of another: straight, or through a hub that both are connected to.
    pub fn seen_from(&self, cluster: usize, of: Place, family: Family) -> Option<IpAddr> {
        self.sees(cluster, of.0, pod_address(of, family))
    }

    /// How it sees all the addresses of that pod.
    pub fn all_seen_from(&self, cluster: usize, of: Place, family: Family) -> Vec<IpAddr> {
        pod_addresses(of, family).filter_map(|address| self.sees(cluster, of.0, address)).collect()
    }

    fn sees(&self, cluster: usize, whose: usize, address: IpAddr) -> Option<IpAddr> {
        let maps = |own: usize, peer: usize| self.fabrics[own].peers.get(&id(peer)).map(|peer| &peer.maps);
        let from = |peer: usize, address| maps(cluster, peer)?.seen_here(liqo_network::There(address)).map(|here| here.0);
        if maps(cluster, whose).is_some() {
            return from(whose, address);
        }
        let through = |hub: usize| {
            let at_hub = maps(hub, whose)?.seen_here(liqo_network::There(address))?;
            // What is there for the hub is here for the leaf.
            maps(hub, cluster)?.seen_there(Here(at_hub.0)).map(|there| there.0)
        };
        (0..self.fabrics.len()).find_map(through)
    }

    /// The addresses that stand for the nodes of a cluster at another.
    pub fn nodes_seen_from(&self, cluster: usize, of: usize, family: Family) -> Vec<IpAddr> {
        (0..16).filter_map(|last| self.sees(cluster, of, external_address(last, family))).collect()
    }

    /// How many bytes the gateways of a cluster have sent and received, each.
    pub fn carried(&self, cluster: usize) -> Vec<u64> {
        let of = self.tunnels.iter().filter(|((owner, _), _)| *owner == cluster);
        let remotes = of.map(|(_, (tunnel, _))| tunnel.state().remotes);
        remotes.map(|remotes| remotes.iter().map(|remote| remote.sent_bytes + remote.received_bytes).sum()).collect()
    }

    /// Tunnels from the gateways of each cluster to those of its peers.
    fn connect(&mut self) -> io::Result<()> {
        for (&place, key) in &self.keys {
            let peers = self.keys.iter().filter_map(|(other, key)| {
                let peer = self.fabrics[place.0].peers.get(&id(other.0))?;
                Some((*other, key.public(), peer))
            });
            let remotes = peers.map(|(other, public_key, peer)| Remote {
                public_key,
                inward: None,
                first_key: None,
                endpoint: self.families(place.0, other.0).next().map(|family| (node_address(other, family), TUNNEL_PORT).into()),
                relay: None,
                keepalive: Some(Duration::from_secs(15)),
                prefixes: peer.maps.imported.pairs().map(|(here, _)| here.0).collect(),
                enabled: true,
            });
            let endpoint = Endpoint {
                private_key: key.clone(),
                previous_key: None,
                listen: self.shapes[place.0].2.iter().map(|family| (family.choose(ANY_V4, ANY_V6), TUNNEL_PORT).into()).collect(),
                device: TUNNEL.to_owned(),
                mtu: MTU,
                remotes: remotes.collect(),
            };
            let tunnel = UserspaceTunnel::new();
            self.nodes[&place].run(|| tunnel.apply(&endpoint))?.map_err(io::Error::other)?;
            self.tunnels.insert(place, (tunnel, endpoint));
        }
        Ok(())
    }

    /// Ends the tunnel's program on a gateway, as if it had died, and starts it again.
    pub fn restart_tunnel(&self, place: Place) -> io::Result<()> {
        self.tunnels[&place].0.stop();
        self.start_tunnel(place)
    }

    fn start_tunnel(&self, place: Place) -> io::Result<()> {
        let (tunnel, endpoint) = &self.tunnels[&place];
        self.nodes[&place].run(|| tunnel.apply(endpoint))?.map_err(io::Error::other)
    }

    /// A gateway dies: its program ends, and everybody else comes to know. Its node and the pod on it are left as they are.
    pub fn lose(&mut self, place: Place) -> Result<(), String> {
        self.tunnels[&place].0.stop();
        self.set_gateway(place, false)
    }

    /// It is back.
    pub fn regain(&mut self, place: Place) -> Result<(), String> {
        self.start_tunnel(place).map_err(|error| error.to_string())?;
        self.set_gateway(place, true)?;
        self.apply(place)?;
        // Others carried them meanwhile.
        let plan = self.fabrics[place.0].plan(&place.1.to_string());
        self.on(place, async |node| {
            node.forget(&plan).await;
            Ok(())
        })
    }

    fn set_gateway(&mut self, place: Place, is_gateway: bool) -> Result<(), String> {
        let gateway = gateway(&self.keys, place).filter(|_| is_gateway);
        if let Some(node) = self.fabrics[place.0].nodes.get_mut(&place.1.to_string()) {
            node.gateway = gateway;
        }
        let lost = self.keys[&place].public();
        for (_, endpoint) in self.tunnels.values_mut() {
            for remote in endpoint.remotes.iter_mut().filter(|remote| remote.public_key == lost) {
                remote.enabled = is_gateway;
            }
        }
        for peer in self.tunnels.keys().filter(|peer| peer.0 != place.0) {
            self.start_tunnel(*peer).map_err(|error| error.to_string())?;
        }
        let others = self.places().into_iter().filter(|other| other.0 == place.0 && *other != place);
        others.into_iter().try_for_each(|other| self.apply(other).map(drop))
    }

    /// Makes a node hold what it should, and returns what had to be done.
    pub fn apply(&self, place: Place) -> Result<Vec<Step>, String> {
        let plan = self.fabrics[place.0].plan(&place.1.to_string());
        self.on(place, async |node| node.apply(&plan).await)
    }

    /// Loads all tables of a node again, although nothing differs.
    pub fn replace_tables(&self, place: Place) -> Result<(), String> {
        let plan = self.fabrics[place.0].plan(&place.1.to_string());
        self.on(place, async |node| {
            for table in &plan.tables {
                node::Firewall::replace(&node.firewall, table).await?;
            }
            Ok(())
        })
    }

    /// Loads all tables of a node, has somebody else change them by this script, and returns what is done about that.
    pub fn meddle(&self, place: Place, script: &str) -> Result<Vec<Step>, String> {
        let plan = self.fabrics[place.0].plan(&place.1.to_string());
        self.on(place, async |node| {
            for table in &plan.tables {
                node::Firewall::replace(&node.firewall, table).await?;
            }
            assert_eq!(node.apply(&plan).await?, [], "nobody has changed anything yet");
            let changed = std::process::Command::new("nft").args(script.split(' ')).status();
            assert!(changed.is_ok_and(|status| status.success()), "{script}");
            node.apply(&plan).await
        })
    }

    /// What a packet to and from the pod at this place may measure.
    pub fn narrow(&self, place: Place, mtu: u16) -> io::Result<()> {
        self.node(place).ip(&format!("link set pod mtu {mtu}"))?;
        self.pod(place).ip(&format!("link set eth0 mtu {mtu}"))
    }

    /// Has a node let out whatever its pod says to be.
    pub fn let_anything_out(&self, place: Place) -> io::Result<()> {
        ["all", "pod"].iter().try_for_each(|device| set(self.node(place), &format!("ipv4/conf/{device}/rp_filter"), "0"))
    }

    /// Where a pod hears what others say to it.
    pub fn ear(&self, place: Place) -> io::Result<UdpSocket> {
        let socket = self.pod(place).run(|| UdpSocket::bind((ANY_V6, WORDS)))??;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(socket)
    }

    /// Has the pod at this place say something in the name of any address.
    pub fn say_as(&self, place: Place, name: IpAddr, to: SocketAddr) -> io::Result<()> {
        let at_once = if name.is_ipv4() { "" } else { "nodad" };
        self.pod(place).ip(&format!("address replace {name} dev lo {at_once}"))?;
        self.pod(place).run(|| say(name, to))?
    }

    /// Has a pod forget what it was told of narrow ways.
    pub fn forget_ways(&self, place: Place) -> io::Result<()> {
        for family in ["-4", "-6"] {
            self.pod(place).command("ip", &[family, "route", "flush", "cache"], "")?;
        }
        Ok(())
    }

    pub fn clear(&self, place: Place) -> Result<Vec<Step>, String> {
        self.on(place, async |node| node.clear().await)
    }

    pub fn present(&self, place: Place) -> Result<Present, String> {
        self.on(place, async |node| node.present().await)
    }

    /// Lets peers of a cluster reach these addresses only.
    pub fn open_only(&mut self, cluster: usize, addresses: &[IpAddr]) -> Result<(), String> {
        for peer in self.fabrics[cluster].peers.values_mut() {
            peer.open = Open::Only(addresses.iter().copied().collect::<BTreeSet<_>>());
        }
        let places = self.places().into_iter().filter(|place| place.0 == cluster);
        places.into_iter().try_for_each(|place| self.apply(place).map(drop))
    }

    /// Servers on these machines, which are the API servers of a cluster; peers may reach them, or not (any more).
    pub fn show_api_servers(&mut self, cluster: usize, machines: &[Place], family: Family, to_peers: bool) -> Result<(), String> {
        let server = |(number, machine): (usize, &Place)| ApiServerEndpoint {
            address: node_address(*machine, family),
            port: PORT,
            stand_in: stand_in(number, family),
        };
        let fabric = &mut self.fabrics[cluster];
        fabric.api_servers = machines.iter().enumerate().map(server).collect();
        fabric.peers.values_mut().for_each(|peer| peer.api_server = to_peers);
        let nodes: Vec<Place> = self.places().into_iter().filter(|place| place.0 == cluster).collect();
        nodes.into_iter().try_for_each(|place| self.apply(place).map(drop))
    }

    /// How a cluster sees what stands for an API server of another.
    pub fn api_server_seen_from(&self, cluster: usize, of: usize, number: usize, family: Family) -> Option<IpAddr> {
        let maps = &self.fabrics[cluster].peers.get(&id(of))?.maps;
        maps.seen_here(liqo_network::There(stand_in(number, family))).map(|here| here.0)
    }

    fn on<T: Send>(
        &self,
        place: Place,
        work: impl AsyncFnOnce(&Node<NetlinkLinks, NetlinkRoutes, Nft>) -> Result<T, node::Error> + Send,
    ) -> Result<T, String> {
        let inside = || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
            runtime.block_on(async {
                let node = Node::of_this_namespace().map_err(|error| error.to_string())?;
                work(&node).await.map_err(|error| error.to_string())
            })
        };
        self.node(place).run(inside).map_err(|error| error.to_string())?
    }
}

/// Installs `ip` and `nft`, if they are not there: once, whichever test comes first.
fn install_programs() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        let install = async { Requirements::check(&[]).await?.install(&Silent).await };
        tokio::runtime::Runtime::new()?.block_on(install).map_err(io::Error::other)?;
        *installed = true;
    }
    Ok(())
}

/// What everybody has to know of a gateway.
fn gateway(keys: &BTreeMap<Place, PrivateKey>, place: Place) -> Option<Gateway> {
    let number = gateway_number(&keys.get(&place)?.public().0);
    Some(Gateway { slot: small(place.1), number })
}

/// What the nodes of each cluster have to know, once all have told each other everything.
fn fabrics(shapes: &[Shape], links: &[(usize, usize)], hub: Option<usize>, keys: &BTreeMap<Place, PrivateKey>) -> Vec<Fabric> {
    let ranges = |cluster: usize| ranges(cluster, shapes[cluster].2);
    let peers_of = |own: usize| {
        let all = links.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
        all.filter(move |(from, _)| *from == own).map(|(_, to)| to)
    };
    let mut allocations = vec![Allocations::new(); shapes.len()];
    let exports = |allocations: &[Allocations], from: usize, to: usize| -> BTreeSet<IpNet> {
        let others = allocations[from].iter().filter(|((owner, _), _)| hub == Some(from) && *owner != id(to));
        let ranges = ranges(from);
        ranges.pods.into_iter().chain(ranges.external).chain(others.map(|(_, here)| *here)).collect()
    };
    loop {
        let before = allocations.clone();
        for own in 0..shapes.len() {
            let theirs = peers_of(own).map(|peer| (id(peer), exports(&before, peer, own))).collect();
            allocations[own] = place(&ranges(own), &theirs, &before[own]).0;
        }
        if before == allocations {
            break;
        }
    }
    let says = |from: usize, to: usize| {
        let of_peer = allocations[from].iter().filter(|((owner, _), _)| *owner == id(to));
        Announcement {
            exports: exports(&allocations, from, to),
            views: of_peer.map(|((_, prefix), here)| (*prefix, *here)).collect(),
        }
    };
    let fabric = |(own, &(size, _, families)): (usize, &Shape)| {
        let peer = |peer: usize| {
            let agreement = agree(&says(own, peer), &says(peer, own)).expect("an agreement");
            assert!(agreement.is_complete(), "{agreement:?}");
            (id(peer), Peer { maps: agreement.maps, open: Open::Everything, api_server: false })
        };
        let node = |node: usize| ClusterNode {
            addresses: families.iter().map(|family| node_address((own, node), *family)).collect(),
            pods: families.iter().map(|family| pods_on(node, *family)).collect(),
            mac: Mac::of([0, 0, 0, small(own), small(node)]),
            gateway: gateway(keys, (own, node)),
        };
        Fabric {
            pods: ranges(own).pods,
            external: ranges(own).external,
            nodes: (0..size).map(|index| (index.to_string(), node(index))).collect(),
            peers: peers_of(own).map(peer).collect(),
            mtu: MTU.into(),
            ..Fabric::default()
        }
    };
    shapes.iter().enumerate().map(fabric).collect()
}

/// A node with one pod and the way to the others' pods, as a plain CNI does it: what leaves the pod range, or comes from outside
/// of it, is masqueraded. Sources of IPv4 are checked strictly; of IPv6 nobody checks them.
fn build_node(switch: &Namespace, node: &Namespace, pod: &Namespace, place: Place, (size, _, families): Shape) -> io::Result<()> {
    let (cluster, number) = place;
    let port = format!("port{cluster}{number}");
    for namespace in [node, pod] {
        set(namespace, "ipv6/conf/default/accept_dad", "0")?;
    }
    switch.ip(&format!("link add {port} type veth peer name eth0 netns {}\nlink set {port} master bridge up", node.path()))?;
    node.ip(&format!(
        "link set lo up\nlink set eth0 up\nlink add pod type veth peer name eth0 netns {}\nlink set pod up",
        pod.path()
    ))?;
    pod.ip("link set lo up\nlink set eth0 up")?;
    // Devices that are made from now on have the kernel's own value.
    set(node, "ipv6/conf/default/accept_dad", "1")?;
    for &family in families {
        address_node(node, pod, place, size, family)?;
    }
    // Some programs have marks count for the checks of sources, too.
    set(node, "ipv4/conf/all/src_valid_mark", &(number % 2).to_string())?;
    for device in ["all", "default", "eth0", "pod"] {
        set(node, &format!("ipv4/conf/{device}/rp_filter"), "1")?;
    }
    Ok(())
}

/// Gives a node and its pod their addresses of a family, and the ways between them.
fn address_node(node: &Namespace, pod: &Namespace, place: Place, size: usize, family: Family) -> io::Result<()> {
    let (cluster, number) = place;
    let (address, length) = (node_address(place, family), family.choose(16, 48));
    let (own, gateway, pods) = (pod_address(place, family), address_on(number, 1, family), pods_on(number, family).prefix_len());
    let (whole, at_once) = family.choose((32, ""), (128, "nodad"));
    node.ip(&format!("address add {address}/{length} dev eth0 {at_once}\naddress add {gateway}/{pods} dev pod {at_once}"))?;
    for other in (0..size).filter(|other| *other != number) {
        node.ip(&format!("route add {} via {}", pods_on(other, family), node_address((cluster, other), family)))?;
    }
    let more = pod_addresses(place, family).map(|more| format!("address add {more}/{whole} dev eth0 {at_once}\n"));
    let more: Vec<String> = more.collect();
    pod.ip(&format!("address add {own}/{pods} dev eth0 {at_once}\n{}route add default via {gateway} src {own}", more.concat()))?;
    set(node, family.choose("ipv4/ip_forward", "ipv6/conf/all/forwarding"), "1")?;
    let (keyword, pods) = (family.keyword(), ranges(cluster, &[family]).pods[0]);
    let masquerade = format!(
        "table {keyword} cni {{\nchain post {{\ntype nat hook postrouting priority srcnat;\n\
         {keyword} saddr {pods} {keyword} daddr != {pods} masquerade\n\
         {keyword} saddr != {pods} {keyword} daddr {pods} masquerade\n}}\n}}\n"
    );
    node.command("nft", &["--file", "-"], &masquerade).map(drop)
}

/// Sets something of the network of a namespace.
fn set(namespace: &Namespace, name: &str, value: &str) -> io::Result<()> {
    namespace.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))?
}

const UPLOADS: u16 = 8081;
const ECHO: u16 = 8082;
pub const WORDS: u16 = 8083;
/// How long a server may take to be reached; what is closed is waited for just as long.
const REACH: Duration = Duration::from_secs(10);
/// How long a connection that stands may be silent.
const PATIENCE: Duration = Duration::from_mins(1);

/// Servers in a pod: one tells whoever asks whom it sees, one counts what is uploaded, one sends everything back, byte for byte,
/// and one datagrams.
fn serve_in(pod: &Namespace) -> io::Result<()> {
    let listen = |port| pod.run(move || TcpListener::bind((ANY_V6, port)))?;
    serve(listen(PORT)?, |mut stream| {
        let seen = stream.peer_addr()?.ip().to_canonical().to_string();
        stream.write_all(seen.as_bytes())
    });
    serve(listen(UPLOADS)?, |mut stream| {
        let count = io::copy(&mut stream, &mut io::sink())?;
        stream.write_all(count.to_string().as_bytes())
    });
    serve(listen(ECHO)?, |mut stream| {
        let mut byte = [0];
        while stream.read(&mut byte)? == 1 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let socket = pod.run(|| UdpSocket::bind((ANY_V6, ECHO)))??;
    thread::spawn(move || {
        let mut datagram = vec![0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut datagram) {
            // Whoever asked may have gone.
            let _ = socket.send_to(&datagram[..length], from);
        }
    });
    Ok(())
}

/// A connection that stays.
pub struct Talk(TcpStream);

impl Talk {
    pub fn with(address: IpAddr) -> io::Result<Self> {
        let stream = connect(address, ECHO)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Says one byte and hears it again.
    pub fn word(&mut self, byte: u8) -> io::Result<()> {
        self.0.write_all(&[byte])?;
        let mut heard = [0];
        self.0.read_exact(&mut heard)?;
        if heard == [byte] { Ok(()) } else { Err(io::Error::other("something else came back")) }
    }
}

fn serve(listener: TcpListener, answer: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), answer) = (stream, answer.clone()) else { return };
            // Whoever asked may have gone.
            thread::spawn(move || answer(stream));
        }
    });
}

fn connect(address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), REACH)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks the server at this address whom it sees.
pub fn ask(address: IpAddr) -> io::Result<IpAddr> {
    ask_at(address, PORT)
}

/// Asks a server at this port.
pub fn ask_at(address: IpAddr, port: u16) -> io::Result<IpAddr> {
    let mut answer = String::new();
    connect(address, port)?.read_to_string(&mut answer)?;
    answer.parse().map_err(io::Error::other)
}

/// Sends this many bytes, and returns how many the server counted.
pub fn upload(address: IpAddr, bytes: usize) -> io::Result<usize> {
    let mut stream = connect(address, UPLOADS)?;
    stream.write_all(&vec![7; bytes])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    answer.parse().map_err(io::Error::other)
}

/// Says something without waiting for an answer.
pub fn say(from: IpAddr, to: SocketAddr) -> io::Result<()> {
    UdpSocket::bind((from, 0))?.send_to(b"hello", to).map(drop)
}

/// Sends a datagram of this many bytes, and returns how many came back.
pub fn echo(address: IpAddr, bytes: usize) -> io::Result<usize> {
    let from = if address.is_ipv4() { ANY_V4 } else { ANY_V6 };
    echo_within(from, address, bytes, PATIENCE)
}

/// The same from one address of several, where the first ones may be lost: those that are too large for the way, until the sender was
/// told.
pub fn echo_in_the_end(from: IpAddr, address: IpAddr, bytes: usize) -> io::Result<usize> {
    eventually(REACH, || echo_within(from, address, bytes, Duration::from_millis(100)))
}

fn echo_within(from: IpAddr, address: IpAddr, bytes: usize, patience: Duration) -> io::Result<usize> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_read_timeout(Some(patience))?;
    socket.send_to(&vec![7; bytes], (address, ECHO))?;
    socket.recv(&mut vec![0; 65536])
}

/// Tries until it works, or until this much time has passed.
pub fn eventually<T>(patience: Duration, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + patience;
    loop {
        match attempt() {
            Err(error) if Instant::now() < end => drop(error),
            outcome => return outcome,
        }
    }
}
