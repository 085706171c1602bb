//! Sockets for multicast DNS, one for each interface and address family.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::{net::UdpSocket, sync::mpsc, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::decide::lan::NodeInterface;

const PORT: u16 = 5353;
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
/// Other hosts require this hop limit of packets of multicast DNS.
const HOPS: u32 = 255;
/// Maximum number of packets that one socket takes in a second. Further ones are dropped unread.
const MAX_PACKETS_PER_SECOND: u32 = 100;
/// Longer packets are cut, and so not understood.
const BUFFER_LEN: usize = liqo_discovery::message::MAX_UDP_LEN + 1;

/// The interfaces of this node.
pub fn node_interfaces() -> io::Result<Vec<NodeInterface>> {
    let mut found: Vec<NodeInterface> = Vec::new();
    for one in getifaddrs()? {
        let position = found
            .iter()
            .position(|known| known.name == one.interface_name);
        let at = position.unwrap_or_else(|| {
            found.push(NodeInterface {
                name: one.interface_name.clone(),
                index: nix::net::if_::if_nametoindex(one.interface_name.as_str())
                    .unwrap_or_default(),
                is_up: one
                    .flags
                    .contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                is_multicast: one.flags.contains(InterfaceFlags::IFF_MULTICAST),
                is_loopback: one.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                is_point_to_point: one.flags.contains(InterfaceFlags::IFF_POINTOPOINT),
                addresses: Vec::new(),
            });
            found.len() - 1
        });
        let Some(address) = one.address else { continue };
        let v4 = address
            .as_sockaddr_in()
            .map(|address| IpAddr::V4(address.ip()));
        let v6 = address
            .as_sockaddr_in6()
            .map(|address| IpAddr::V6(address.ip()));
        found[at].addresses.extend(v4.or(v6));
    }
    Ok(found)
}

/// A packet, and who sent it.
pub struct LanPacket {
    pub key: LanSocketKey,
    pub sender: IpAddr,
    pub bytes: Vec<u8>,
}

/// An interface and an address family: each pair has its own socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LanSocketKey {
    pub interface: String,
    pub index: u32,
    pub is_v6: bool,
}

/// An open socket. It receives until it is dropped.
pub struct LanSocket {
    socket: std::sync::Arc<UdpSocket>,
    group: SocketAddr,
    _receiver: AbortOnDropHandle<()>,
}

impl LanSocket {
    /// Joins the group on one interface. The socket is bound to the group's address, which routers
    /// do not forward, so everything that it receives comes from the link.
    pub fn open(key: &LanSocketKey, received: mpsc::Sender<LanPacket>) -> io::Result<Self> {
        let group = if key.is_v6 {
            SocketAddr::V6(SocketAddrV6::new(GROUP_V6, PORT, 0, key.index))
        } else {
            SocketAddr::new(GROUP_V4.into(), PORT)
        };
        let socket = Socket::new(
            Domain::for_address(group),
            Type::DGRAM.nonblocking(),
            Some(Protocol::UDP),
        )?;
        // Other programs of the node may speak multicast DNS, too.
        socket.set_reuse_address(true)?;
        socket.bind_device(Some(key.interface.as_bytes()))?;
        if key.is_v6 {
            socket.set_only_v6(true)?;
            socket.set_multicast_if_v6(key.index)?;
            socket.set_multicast_hops_v6(HOPS)?;
            socket.join_multicast_v6(&GROUP_V6, key.index)?;
        } else {
            socket.set_multicast_ttl_v4(HOPS)?;
            socket.join_multicast_v4_n(&GROUP_V4, &InterfaceIndexOrAddress::Index(key.index))?;
        }
        socket.bind(&group.into())?;
        let socket = std::sync::Arc::new(UdpSocket::from_std(socket.into())?);
        let task = tokio::spawn(receive_packets(socket.clone(), key.clone(), received));
        Ok(Self {
            socket,
            group,
            _receiver: AbortOnDropHandle::new(task),
        })
    }

    /// Sends to all on the link.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.socket.send_to(bytes, self.group).await.map(drop)
    }
}

async fn receive_packets(
    socket: std::sync::Arc<UdpSocket>,
    key: LanSocketKey,
    received: mpsc::Sender<LanPacket>,
) {
    let mut buffer = vec![0; BUFFER_LEN];
    let (mut second, mut packets) = (Instant::now(), 0);
    loop {
        let Ok((length, sender)) = socket.recv_from(&mut buffer).await else {
            // The interface may be down for a moment.
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        if second.elapsed() >= Duration::from_secs(1) {
            (second, packets) = (Instant::now(), 0);
        }
        packets += 1;
        // Answers of multicast DNS come from its port (RFC 6762, section 6).
        if packets > MAX_PACKETS_PER_SECOND || sender.port() != PORT {
            continue;
        }
        let bytes = buffer[..length].to_vec();
        // If the queue is full, the packet is lost, as packets may be.
        let _ = received.try_send(LanPacket {
            key: key.clone(),
            sender: sender.ip(),
            bytes,
        });
    }
}
