//! Clusters of namespaces, all with the same ranges, that agree on their addresses by the rules of `liqo_network`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
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

/// A node of a cluster, and the one pod on it. The first nodes of each cluster are its gateways.
pub type Place = (usize, usize);

/// How many nodes and gateways a cluster has.
type Size = (usize, usize);

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("few of them")
}

fn id(cluster: usize) -> ClusterId {
    char::from(b'a' + small(cluster)).to_string().repeat(32).parse().expect("an ID")
}

fn stand_in(number: usize) -> IpAddr {
    IpAddr::from([10, 70, 0, 2 + small(number)])
}

pub fn node_address((cluster, node): Place) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, small(cluster), 11 + small(node))
}

/// The address of the pod on a node, in its own cluster.
pub fn pod_address((_, node): Place) -> IpAddr {
    IpAddr::from([10, 244, small(node), 2])
}

/// More addresses of the same pod, which differ in what gateways share flows by.
pub fn pod_addresses((_, node): Place) -> impl Iterator<Item = IpAddr> {
    (16..32).map(move |last| IpAddr::from([10, 244, small(node), last]))
}

/// Every cluster has the same.
fn ranges(cluster: usize) -> Ranges {
    Ranges {
        pods: vec![net("10.244.0.0/16")],
        services: vec![net("10.96.0.0/12")],
        external: vec![net("10.70.0.0/24")],
        nodes: vec![node_address((cluster, 0)).into()],
        reserved: vec![net("172.30.0.0/16")],
        pools: vec![net("10.0.0.0/8")],
    }
}

/// Clusters that are connected.
pub struct World {
    nodes: BTreeMap<Place, Namespace>,
    pods: BTreeMap<Place, Namespace>,
    fabrics: Vec<Fabric>,
    keys: BTreeMap<Place, PrivateKey>,
    tunnels: BTreeMap<Place, (UserspaceTunnel, Endpoint)>,
    _switch: Namespace,
}

impl World {
    /// Two clusters of two nodes each.
    pub fn two() -> io::Result<Self> {
        Self::new(&[(2, 1), (2, 1)], &[(0, 1)], None)
    }

    /// Two clusters with so many gateways, and a node more each.
    pub fn with_gateways(one: usize, other: usize) -> io::Result<Self> {
        Self::new(&[(one + 1, one), (other + 1, other)], &[(0, 1)], None)
    }

    /// A hub of two nodes with so many gateways, and two leaves of one node each that are connected to the hub alone.
    pub fn hub_and_leaves(gateways: usize) -> io::Result<Self> {
        Self::new(&[(2, gateways), (1, 1), (1, 1)], &[(0, 1), (0, 2)], Some(0))
    }

    fn new(sizes: &[Size], links: &[(usize, usize)], hub: Option<usize>) -> io::Result<Self> {
        install_programs()?;
        let switch = Namespace::new()?;
        switch.ip("link add bridge type bridge\nlink set bridge up")?;
        let (mut nodes, mut pods) = (BTreeMap::new(), BTreeMap::new());
        for (cluster, &(size, _)) in sizes.iter().enumerate() {
            for place in (0..size).map(|node| (cluster, node)) {
                let (node, pod) = (Namespace::new()?, Namespace::new()?);
                build_node(&switch, &node, &pod, place, size)?;
                nodes.insert(place, node);
                pods.insert(place, pod);
            }
        }
        let places =
            sizes.iter().enumerate().flat_map(|(cluster, (_, gateways))| (0..*gateways).map(move |node| (cluster, node)));
        let keys: BTreeMap<Place, PrivateKey> = places.map(|place| (place, PrivateKey::generate())).collect();
        let fabrics = fabrics(sizes, links, hub, &keys);
        let mut world = Self { nodes, pods, fabrics, keys, tunnels: BTreeMap::new(), _switch: switch };
        world.connect()?;
        for place in world.places() {
            world.apply(place).map_err(io::Error::other)?;
        }
        Ok(world)
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

    /// A server in each pod.
    pub fn serve(&self) -> io::Result<()> {
        self.pods.values().try_for_each(serve_in)
    }

    /// How this cluster sees the pod at a place of another: straight, or through a hub that both are connected to.
    pub fn seen_from(&self, cluster: usize, of: Place) -> Option<IpAddr> {
        self.sees(cluster, of.0, pod_address(of))
    }

    /// How it sees all the addresses of that pod.
    pub fn all_seen_from(&self, cluster: usize, of: Place) -> Vec<IpAddr> {
        pod_addresses(of).filter_map(|address| self.sees(cluster, of.0, address)).collect()
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
    pub fn nodes_seen_from(&self, cluster: usize, of: usize) -> Vec<IpAddr> {
        (0..16).filter_map(|last| self.sees(cluster, of, IpAddr::from([10, 70, 0, last]))).collect()
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
                first_key: None,
                endpoint: Some((node_address(other), TUNNEL_PORT).into()),
                relay: None,
                keepalive: Some(Duration::from_secs(15)),
                prefixes: peer.maps.imported.pairs().map(|(here, _)| here.0).collect(),
                enabled: true,
            });
            let endpoint = Endpoint {
                private_key: key.clone(),
                previous_key: None,
                listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, TUNNEL_PORT))],
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
    pub fn show_api_servers(&mut self, cluster: usize, machines: &[Place], to_peers: bool) -> Result<(), String> {
        let server = |(number, machine): (usize, &Place)| ApiServerEndpoint {
            address: node_address(*machine).into(),
            port: PORT,
            stand_in: stand_in(number),
        };
        let fabric = &mut self.fabrics[cluster];
        if fabric.api_servers.is_empty() {
            machines.iter().try_for_each(|machine| serve_in(&self.nodes[machine])).map_err(|error| error.to_string())?;
        }
        fabric.api_servers = machines.iter().enumerate().map(server).collect();
        fabric.peers.values_mut().for_each(|peer| peer.api_server = to_peers);
        let nodes: Vec<Place> = self.places().into_iter().filter(|place| place.0 == cluster).collect();
        nodes.into_iter().try_for_each(|place| self.apply(place).map(drop))
    }

    /// How a cluster sees what stands for an API server of another.
    pub fn api_server_seen_from(&self, cluster: usize, of: usize, number: usize) -> Option<IpAddr> {
        let maps = &self.fabrics[cluster].peers.get(&id(of))?.maps;
        maps.seen_here(liqo_network::There(stand_in(number))).map(|here| here.0)
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
        let install = async { Requirements::check().await?.install(&Silent).await };
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
fn fabrics(sizes: &[Size], links: &[(usize, usize)], hub: Option<usize>, keys: &BTreeMap<Place, PrivateKey>) -> Vec<Fabric> {
    let peers_of = |own: usize| {
        let all = links.iter().flat_map(|&(one, other)| [(one, other), (other, one)]);
        all.filter(move |(from, _)| *from == own).map(|(_, to)| to)
    };
    let mut allocations = vec![Allocations::new(); sizes.len()];
    let exports = |allocations: &[Allocations], from: usize, to: usize| -> BTreeSet<IpNet> {
        let others = allocations[from].iter().filter(|((owner, _), _)| hub == Some(from) && *owner != id(to));
        let ranges = ranges(from);
        ranges.pods.into_iter().chain(ranges.external).chain(others.map(|(_, here)| *here)).collect()
    };
    loop {
        let before = allocations.clone();
        for own in 0..sizes.len() {
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
    let fabric = |(own, &(size, _)): (usize, &Size)| {
        let peer = |peer: usize| {
            let agreement = agree(&says(own, peer), &says(peer, own)).expect("an agreement");
            assert!(agreement.is_complete(), "{agreement:?}");
            (id(peer), Peer { maps: agreement.maps, open: Open::Everything, api_server: false })
        };
        let node = |node: usize| ClusterNode {
            addresses: vec![node_address((own, node)).into()],
            pods: vec![net(&format!("10.244.{node}.0/24"))],
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
    sizes.iter().enumerate().map(fabric).collect()
}

/// A node with one pod and the way to the others' pods, as a plain CNI does it: what leaves the pod range, or comes from outside
/// of it, is masqueraded. Sources are checked strictly.
fn build_node(switch: &Namespace, node: &Namespace, pod: &Namespace, place: Place, size: usize) -> io::Result<()> {
    let (cluster, number) = place;
    let (address, port) = (node_address(place), format!("port{cluster}{number}"));
    switch.ip(&format!("link add {port} type veth peer name eth0 netns {}\nlink set {port} master bridge up", node.path()))?;
    node.ip(&format!(
        "link set lo up\nlink set eth0 up\naddress add {address}/16 dev eth0\n\
         link add pod type veth peer name eth0 netns {}\nlink set pod up\naddress add 10.244.{number}.1/24 dev pod",
        pod.path(),
    ))?;
    for other in (0..size).filter(|other| *other != number) {
        node.ip(&format!("route add 10.244.{other}.0/24 via {}", node_address((cluster, other))))?;
    }
    pod.ip(&format!(
        "link set lo up\nlink set eth0 up\naddress add 10.244.{number}.2/24 dev eth0\nroute add default via 10.244.{number}.1"
    ))?;
    for address in pod_addresses(place) {
        pod.ip(&format!("address add {address}/32 dev eth0"))?;
    }
    node.run(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        // Some programs have marks count for the checks of sources, too.
        std::fs::write("/proc/sys/net/ipv4/conf/all/src_valid_mark", (number % 2).to_string())?;
        for device in ["all", "default", "eth0", "pod"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "1")?;
        }
        io::Result::Ok(())
    })??;
    let masquerade = "table ip cni {\nchain post {\ntype nat hook postrouting priority srcnat;\n\
                      ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade\n\
                      ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade\n}\n}\n";
    node.command("nft", &["--file", "-"], masquerade).map(drop)
}

const UPLOADS: u16 = 8081;
const ECHO: u16 = 8082;
/// How long a server may take to be reached; what is closed is waited for just as long.
const REACH: Duration = Duration::from_secs(10);
/// How long a connection that stands may be silent.
const PATIENCE: Duration = Duration::from_mins(1);

/// Servers in a pod: one tells whoever asks whom it sees, one counts what is uploaded, one sends everything back, byte for byte,
/// and one datagrams.
fn serve_in(pod: &Namespace) -> io::Result<()> {
    let listen = |port| pod.run(move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
    serve(listen(PORT)?, |mut stream| {
        let seen = stream.peer_addr()?.ip().to_string();
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
    let socket = pod.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ECHO)))??;
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

/// Sends a datagram of this many bytes, and returns how many came back.
pub fn echo(address: IpAddr, bytes: usize) -> io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
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
