//! The UDP socket. One call sends or receives many datagrams of one size.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    cmsg_space,
    errno::Errno,
    libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo},
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
        SockaddrStorage, bind, recvmsg, sendmsg, setsockopt, socket, sockopt,
    },
};

/// Socket buffers in bytes.
const BUFFER: usize = 8 << 20;

/// Maximum bytes that one call receives.
pub(super) const MAX_BATCH_LEN: usize = 65_536;

/// The two addresses that datagrams travel between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramPath {
    pub(super) remote: SocketAddr,
    /// Our address that the remote sends to, so that answers come from it. `None`: the kernel
    /// chooses.
    pub(super) local: Option<IpAddr>,
}

impl DatagramPath {
    /// The path to a remote from the address that the kernel chooses.
    pub(super) fn to_remote(remote: SocketAddr) -> Self {
        Self {
            remote,
            local: None,
        }
    }
}

/// The datagrams that one call received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedDatagrams {
    pub(super) length: usize,
    /// The length of each datagram but the last.
    pub(super) segment: usize,
    pub(super) path: DatagramPath,
}

#[derive(Debug)]
pub(super) struct TunnelSocket {
    socket: OwnedFd,
    listen: SocketAddr,
}

impl TunnelSocket {
    pub(super) fn open(listen: SocketAddr) -> io::Result<Self> {
        let family = if listen.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        if listen.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        // Older kernels deliver datagrams one by one.
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        for result in [
            setsockopt(&socket, sockopt::RcvBufForce, &BUFFER),
            setsockopt(&socket, sockopt::SndBufForce, &BUFFER),
        ] {
            if let Err(error) = result {
                tracing::debug!(%error, "the socket keeps its small buffers");
            }
        }
        bind(socket.as_raw_fd(), &SockaddrStorage::from(listen))?;
        Ok(Self { socket, listen })
    }

    pub(super) fn listen_address(&self) -> SocketAddr {
        self.listen
    }

    pub(super) fn reaches(&self, remote: SocketAddr) -> bool {
        self.listen.is_ipv4() == remote.is_ipv4()
    }

    /// Receives datagrams of one size from one sender, or `None` if there are none now.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<ReceivedDatagrams>> {
        let mut control = cmsg_space!(i32, in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let result = recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::MSG_DONTWAIT,
        );
        let message = match result {
            Ok(message) => message,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(remote) = message.address.and_then(socket_address) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut received = ReceivedDatagrams {
            length: message.bytes,
            segment: message.bytes,
            path: DatagramPath {
                remote,
                local: None,
            },
        };
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::UdpGroSegments(size) => {
                    received.segment = usize::try_from(size).unwrap_or(0);
                }
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    received.path.local =
                        Some(Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr)).into());
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    received.path.local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => {}
            }
        }
        Ok(Some(received))
    }

    /// Sends datagrams of one size; only the last one may be shorter. Blocks while the socket's
    /// buffer is full, unless the flags forbid that.
    pub(super) fn send(
        &self,
        datagrams: &[IoSlice<'_>],
        segment: Option<u16>,
        path: DatagramPath,
        flags: MsgFlags,
    ) -> io::Result<()> {
        let v4 = match path.local {
            Some(IpAddr::V4(address)) => Some(in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr {
                    s_addr: address.to_bits().to_be(),
                },
                ipi_addr: in_addr { s_addr: 0 },
            }),
            _ => None,
        };
        let v6 = match path.local {
            Some(IpAddr::V6(address)) => Some(in6_pktinfo {
                ipi6_ifindex: 0,
                ipi6_addr: in6_addr {
                    s6_addr: address.octets(),
                },
            }),
            _ => None,
        };
        let mut control = Vec::with_capacity(2);
        control.extend(segment.as_ref().map(ControlMessage::UdpGsoSegments));
        control.extend(v4.as_ref().map(ControlMessage::Ipv4PacketInfo));
        control.extend(v6.as_ref().map(ControlMessage::Ipv6PacketInfo));
        let remote = SockaddrStorage::from(path.remote);
        sendmsg(
            self.socket.as_raw_fd(),
            datagrams,
            &control,
            flags,
            Some(&remote),
        )?;
        Ok(())
    }
}

impl AsFd for TunnelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn socket_address(storage: SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage
        .as_sockaddr_in()
        .map(|address| SocketAddr::new(address.ip().into(), address.port()));
    // With the scope of link-local addresses.
    v4.or_else(|| {
        storage
            .as_sockaddr_in6()
            .map(|address| SocketAddr::V6((*address).into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(address: &str) -> (TunnelSocket, TunnelSocket, DatagramPath) {
        let listen: SocketAddr = address.parse().unwrap();
        let (one, two) = (
            TunnelSocket::open(listen).unwrap(),
            TunnelSocket::open(listen).unwrap(),
        );
        let bound: SockaddrStorage = nix::sys::socket::getsockname(two.socket.as_raw_fd()).unwrap();
        (
            one,
            two,
            DatagramPath {
                remote: super::socket_address(bound).unwrap(),
                local: Some(listen.ip()),
            },
        )
    }

    fn receive(socket: &TunnelSocket, buffer: &mut [u8]) -> ReceivedDatagrams {
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(
                socket,
                rustix::event::PollFlags::IN,
            )],
            None,
        )
        .unwrap();
        socket.receive(buffer).unwrap().unwrap()
    }

    #[test]
    fn one_call_sends_and_one_call_receives_datagrams_of_one_size() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (one, two, path) = pair(address);
            let datagrams = [[1u8; 100], [2; 100], [3; 100]];
            let parts: Vec<_> = datagrams
                .iter()
                .map(|datagram| IoSlice::new(datagram))
                .chain([IoSlice::new(&[4; 50])])
                .collect();
            one.send(&parts, Some(100), path, MsgFlags::empty())
                .unwrap();
            let mut buffer = vec![0; MAX_BATCH_LEN];
            let received = receive(&two, &mut buffer);
            assert_eq!((received.length, received.segment), (350, 100));
            assert_eq!(received.path.local, path.local);
            assert_eq!(
                buffer[..350],
                [&[1; 100][..], &[2; 100], &[3; 100], &[4; 50]].concat()
            );
            assert_eq!(two.receive(&mut buffer).unwrap(), None);
        }
    }

    #[test]
    fn both_families_listen_on_the_same_port() {
        let v4 = TunnelSocket::open("0.0.0.0:0".parse().unwrap()).unwrap();
        let bound: SockaddrStorage = nix::sys::socket::getsockname(v4.socket.as_raw_fd()).unwrap();
        let port = super::socket_address(bound).unwrap().port();
        TunnelSocket::open(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).unwrap();
    }
}
