//! Clusters on a local network find each other by real packets: two nodes and a liar, in namespaces
//! on one bridge.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use liqo_api::ClusterId;
use liqo_datapath_testbed::namespace::NetworkNamespace;
use liqo_discovery::{
    announcement::Announcement,
    lan_table::MAX_ENTRIES_PER_SENDER,
    responder::{OwnAnnouncement, TTL},
};
use liqo_fabric::lan_service::{LanConfig, run_service};
use liqo_playground::{Requirements, Silent};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 251), 5353);
const TIMEOUT: Duration = Duration::from_secs(15);

fn id(number: u8) -> ClusterId {
    ClusterId::of_public_key(&[number; 32])
}

fn own(number: u8, address: &str) -> OwnAnnouncement {
    OwnAnnouncement::new(
        id(number),
        format!("c{number}"),
        [1, 1],
        &format!("https://{address}:30443"),
    )
    .expect("a URL")
}

/// The announcer of a cluster in a namespace of its own.
struct Node {
    configure: watch::Sender<Option<LanConfig>>,
    found: watch::Receiver<Option<Vec<Announcement>>>,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Node {
    fn start(namespace: &'static NetworkNamespace, own: OwnAnnouncement) -> Self {
        let config = LanConfig {
            own_id: own.cluster_id.clone(),
            own: Some(own),
            interfaces: Vec::new(),
            pods: Vec::new(),
        };
        let (configure, config) = watch::channel(Some(config));
        let (publish, found) = watch::channel(None);
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(run_service(config, publish, ended));
        };
        let thread = thread::spawn(move || namespace.run(work).expect("in the namespace"));
        Self {
            configure,
            found,
            stop,
            thread: Some(thread),
        }
    }

    /// Waits until exactly these clusters are found, with these URLs.
    fn finds(&self, expected: &[(u8, &str)]) {
        let mut expected: Vec<_> = expected
            .iter()
            .map(|(number, url)| (id(*number), format!("https://{url}:30443")))
            .collect();
        expected.sort();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.found.borrow().clone().unwrap_or_default();
            let mut now: Vec<_> = found
                .iter()
                .map(|one| (one.cluster_id.clone(), one.auth_urls[0].clone()))
                .collect();
            now.sort();
            if now == expected {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "found {found:?} instead of {expected:?}"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Namespaces on one bridge, each with `eth0`, and something like a pod's interface, which has no
/// part in this.
fn network(count: u8) -> io::Result<&'static [NetworkNamespace]> {
    tokio::runtime::Runtime::new()?
        .block_on(async { Requirements::check(&[]).await?.install(&Silent).await })
        .map_err(io::Error::other)?;
    let switch = NetworkNamespace::new()?;
    switch.ip("link set lo up\nlink add lan type bridge\nlink set lan up\n")?;
    let mut nodes = Vec::new();
    for number in 1..=count {
        let node = NetworkNamespace::new()?;
        switch.ip(&format!(
            "link add p{number} type veth peer name eth0 netns {}\nlink set p{number} master lan up\n",
            node.path()
        ))?;
        node.ip(&format!(
            "link set lo up\nlink set eth0 up\naddress add 192.0.2.{number}/24 dev eth0\n\
             link add veth9 type veth peer name veth8\nlink set veth8 up\nlink set veth9 up\naddress add 198.51.100.{number}/24 dev veth9\n"
        ))?;
        nodes.push(node);
    }
    // They live until the end of the process.
    Box::leak(Box::new(switch));
    Ok(Box::leak(nodes.into_boxed_slice()))
}

/// Sends packets from a namespace, as others that speak multicast DNS do.
fn send(namespace: &NetworkNamespace, packets: &[Vec<u8>]) -> io::Result<()> {
    namespace.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.bind_device(Some(b"eth0"))?;
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], 5353)).into())?;
        for packet in packets {
            socket.send_to(packet, &SocketAddr::from(GROUP).into())?;
        }
        Ok(())
    })?
}

#[test]
fn clusters_find_each_other_whatever_a_liar_sends() {
    let nodes = network(3).expect("a network");
    let [rome_node, milan_node, liar] = nodes else {
        panic!("three nodes")
    };
    let rome = Node::start(rome_node, own(1, "192.0.2.1"));
    rome.finds(&[]);
    let milan = Node::start(milan_node, own(2, "192.0.2.2"));
    rome.finds(&[(2, "192.0.2.2")]);
    milan.finds(&[(1, "192.0.2.1")]);

    // A change of address is seen at once.
    let moved = own(2, "192.0.2.22");
    milan.configure.send_modify(|config| {
        if let Some(config) = config {
            config.own = Some(moved);
        }
    });
    rome.finds(&[(2, "192.0.2.22")]);

    // A goodbye in the name of another one, and nonsense.
    let mut packets = vec![own(2, "192.0.2.22").encode_answer(0).expect("a message")];
    packets.extend((0..=255).map(|byte| vec![byte; 1400]));
    packets.push([&[0; 4][..], &[0xff; 8]].concat());
    packets.push(Vec::new());
    send(liar, &packets).expect("sent");
    // More clusters than one sender may announce. What comes too fast is dropped, so it says so
    // again.
    let lies: Vec<_> = (100..140)
        .map(|number| {
            own(number, "192.0.2.3")
                .encode_answer(TTL)
                .expect("a message")
        })
        .collect();
    let deadline = Instant::now() + TIMEOUT;
    while rome.found.borrow().as_ref().map_or(0, Vec::len) != 1 + MAX_ENTRIES_PER_SENDER {
        assert!(Instant::now() < deadline, "{:?}", rome.found.borrow());
        send(liar, &lies).expect("sent");
        thread::sleep(Duration::from_millis(500));
    }
    let found = rome.found.borrow().clone().unwrap_or_default();
    let milans = found
        .iter()
        .find(|one| one.cluster_id == id(2))
        .expect("milan is still found");
    assert_eq!(milans.auth_urls, ["https://192.0.2.22:30443"]);

    // Switching it off is a goodbye, and switching it on again is seen, too.
    milan.configure.send_replace(None);
    let deadline = Instant::now() + TIMEOUT;
    while rome
        .found
        .borrow()
        .iter()
        .flatten()
        .any(|one| one.cluster_id == id(2))
    {
        assert!(Instant::now() < deadline, "milan said goodbye");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(*milan.found.borrow(), None);
}
