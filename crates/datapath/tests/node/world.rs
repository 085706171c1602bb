//! Two clusters of namespaces.

use std::{
    collections::BTreeSet,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use liqo_datapath::{
    node::{Node, Present, Step},
    testbed::namespace::Namespace,
    tunnel::{Endpoint, PrivateKey, Remote, Tunnel as _, UserspaceTunnel},
};
use liqo_network::{
    Here, PeerMaps, PrefixMap, There,
    plan::{Fabric, Mac, Node as ClusterNode, Open, Peer, TUNNEL},
};

const PORT: u16 = 8080;
const MTU: u16 = 1420;

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    Rome,
    Milan,
}

impl Cluster {
    /// Third number of its nodes' addresses.
    fn number(self) -> u8 {
        if self == Self::Rome { 1 } else { 2 }
    }

    fn node_address(self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.number(), 11 + u8::try_from(node).expect("few nodes"))
    }

    fn other(self) -> Self {
        if self == Self::Rome { Self::Milan } else { Self::Rome }
    }

    /// What it sees of the other cluster: pods, external.
    fn views(self) -> (&'static str, &'static str) {
        if self == Self::Rome { ("10.71.0.0/16", "10.73.0.0/24") } else { ("10.72.0.0/16", "10.74.0.0/24") }
    }
}

const PODS: &str = "10.244.0.0/16";
const EXTERNAL: &str = "10.70.0.0/24";

fn map(pairs: [(&str, &str); 2]) -> PrefixMap {
    let parse = |text: &str| text.parse().expect("a prefix");
    PrefixMap::new(pairs.map(|(here, there)| (Here(parse(here)), There(parse(there))))).expect("a map")
}

fn fabric(cluster: Cluster) -> Fabric {
    let (own, other) = (cluster.views(), cluster.other().views());
    let maps =
        PeerMaps { exported: map([(PODS, other.0), (EXTERNAL, other.1)]), imported: map([(own.0, PODS), (own.1, EXTERNAL)]) };
    let node = |node: usize| ClusterNode {
        addresses: vec![cluster.node_address(node).into()],
        pods: vec![format!("10.244.{node}.0/24").parse().expect("a prefix")],
        mac: Mac::of([0, 0, 0, cluster.number(), u8::try_from(node).expect("few nodes")]),
        is_gateway: node == 0,
    };
    Fabric {
        pods: vec![PODS.parse().expect("a prefix")],
        external: vec![EXTERNAL.parse().expect("a prefix")],
        nodes: [("1".into(), node(0)), ("2".into(), node(1))].into(),
        peers: [("a".repeat(32).parse().expect("an ID"), Peer { maps, open: Open::Everything })].into(),
        mtu: MTU.into(),
        ..Fabric::default()
    }
}

/// Both clusters, connected.
pub struct World {
    nodes: Vec<Namespace>,
    pods: Vec<Namespace>,
    fabrics: [Fabric; 2],
    _tunnels: Vec<UserspaceTunnel>,
    _switch: Namespace,
}

/// Of each cluster the first node is the gateway.
type Place = (Cluster, usize);

fn index((cluster, node): Place) -> usize {
    usize::from(cluster == Cluster::Milan) * 2 + node
}

impl World {
    pub fn new() -> io::Result<Self> {
        let switch = Namespace::new()?;
        switch.ip("link add bridge type bridge\nlink set bridge up")?;
        let (mut nodes, mut pods) = (Vec::new(), Vec::new());
        for place in places() {
            let (node, pod) = (Namespace::new()?, Namespace::new()?);
            build_node(&switch, &node, &pod, place)?;
            nodes.push(node);
            pods.push(pod);
        }
        let fabrics = [fabric(Cluster::Rome), fabric(Cluster::Milan)];
        let mut world = Self { nodes, pods, fabrics, _tunnels: Vec::new(), _switch: switch };
        world.connect()?;
        for node in places() {
            world.apply(node).map_err(io::Error::other)?;
        }
        Ok(world)
    }

    pub fn node(&self, place: Place) -> &Namespace {
        &self.nodes[index(place)]
    }

    pub fn pod(&self, place: Place) -> &Namespace {
        &self.pods[index(place)]
    }

    pub fn all_pods(&self) -> impl Iterator<Item = Place> {
        places()
    }

    pub fn all_nodes(&self) -> impl Iterator<Item = Place> {
        places()
    }

    /// The tunnel between the two gateways.
    fn connect(&mut self) -> io::Result<()> {
        let keys = [PrivateKey::generate(), PrivateKey::generate()];
        for cluster in [Cluster::Rome, Cluster::Milan] {
            let (own, other) = (usize::from(cluster == Cluster::Milan), usize::from(cluster == Cluster::Rome));
            let (pods, external) = cluster.views();
            let endpoint = Endpoint {
                private_key: keys[own].clone(),
                previous_key: None,
                listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 6471))],
                device: TUNNEL.to_owned(),
                mtu: MTU,
                remotes: vec![Remote {
                    public_key: keys[other].public(),
                    preshared_key: None,
                    endpoint: Some((cluster.other().node_address(0), 6471).into()),
                    keepalive: Some(Duration::from_secs(15)),
                    prefixes: [pods, external].iter().map(|prefix| prefix.parse().expect("a prefix")).collect(),
                    enabled: true,
                }],
            };
            let tunnel = UserspaceTunnel::new();
            self.node((cluster, 0)).run(|| tunnel.apply(&endpoint))?.map_err(io::Error::other)?;
            self._tunnels.push(tunnel);
        }
        Ok(())
    }

    /// Makes a node hold what it should, and returns what had to be done.
    pub fn apply(&self, place: Place) -> Result<Vec<Step>, String> {
        let plan = self.fabrics[usize::from(place.0 == Cluster::Milan)].plan(&(place.1 + 1).to_string());
        self.on(place, async |node| node.apply(&plan).await)
    }

    pub fn clear(&self, place: Place) -> Result<Vec<Step>, String> {
        self.on(place, async |node| node.clear().await)
    }

    pub fn present(&self, place: Place) -> Result<Present, String> {
        self.on(place, async |node| node.present().await)
    }

    /// Lets the other cluster reach these addresses only.
    pub fn open_only(&mut self, cluster: Cluster, addresses: &[IpAddr]) -> Result<(), String> {
        for peer in self.fabrics[usize::from(cluster == Cluster::Milan)].peers.values_mut() {
            peer.open = Open::Only(addresses.iter().copied().collect::<BTreeSet<_>>());
        }
        self.apply((cluster, 0)).map(drop)
    }

    fn on<T: Send>(
        &self,
        place: Place,
        work: impl AsyncFnOnce(&KernelNode) -> Result<T, liqo_datapath::node::Error> + Send,
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

type KernelNode = Node<liqo_datapath::node::NetlinkLinks, liqo_datapath::node::NetlinkRoutes, liqo_datapath::node::Nft>;

fn places() -> impl Iterator<Item = Place> {
    [(Cluster::Rome, 0), (Cluster::Rome, 1), (Cluster::Milan, 0), (Cluster::Milan, 1)].into_iter()
}

/// A node with one pod, its neighbour's pods routed, as a plain CNI does it: pods that leave the pod range are masqueraded, and
/// sources are checked strictly.
fn build_node(switch: &Namespace, node: &Namespace, pod: &Namespace, (cluster, number): Place) -> io::Result<()> {
    let (address, port) = (cluster.node_address(number), format!("port{}{number}", cluster.number()));
    let neighbour = 1 - number;
    switch.ip(&format!("link add {port} type veth peer name eth0 netns {}\nlink set {port} master bridge up", node.path()))?;
    node.ip(&format!(
        "link set lo up\nlink set eth0 up\naddress add {address}/16 dev eth0\n\
         link add pod type veth peer name eth0 netns {}\nlink set pod up\naddress add 10.244.{number}.1/24 dev pod\n\
         route add 10.244.{neighbour}.0/24 via {}",
        pod.path(),
        cluster.node_address(neighbour)
    ))?;
    pod.ip(&format!(
        "link set lo up\nlink set eth0 up\naddress add 10.244.{number}.2/24 dev eth0\nroute add default via 10.244.{number}.1"
    ))?;
    node.run(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
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

/// A server in a pod: it tells whoever asks whom it sees, counts what is uploaded, and sends datagrams back.
pub struct Server;

const UPLOADS: u16 = 8081;
const ECHO: u16 = 8082;
const PATIENCE: Duration = Duration::from_secs(10);

impl Server {
    pub fn start(pod: &Namespace) -> io::Result<Self> {
        let listen = |port| pod.run(move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        serve(listen(PORT)?, |mut stream| {
            let seen = stream.peer_addr()?.ip().to_string();
            stream.write_all(seen.as_bytes())
        });
        serve(listen(UPLOADS)?, |mut stream| {
            let count = io::copy(&mut stream, &mut io::sink())?;
            stream.write_all(count.to_string().as_bytes())
        });
        let socket = pod.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, ECHO)))??;
        thread::spawn(move || {
            let mut datagram = [0; 65536];
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                // Whoever asked may have gone.
                let _ = socket.send_to(&datagram[..length], from);
            }
        });
        Ok(Self)
    }
}

fn serve(listener: TcpListener, answer: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            // Whoever asked may have gone.
            let _ = answer(stream);
        }
    });
}

fn connect(address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Asks the server at this address whom it sees.
pub fn ask(address: IpAddr) -> io::Result<IpAddr> {
    let mut answer = String::new();
    connect(address, PORT)?.read_to_string(&mut answer)?;
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
    socket.recv(&mut [0; 65536])
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
