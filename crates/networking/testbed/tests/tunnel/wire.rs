//! Raw sockets: pings, and an eavesdropper on the link.

use std::{
    net::SocketAddr,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use liqo_datapath_testbed::{PairEnd, namespace::NetworkNamespace, traffic};
use nix::{
    net::if_::if_nametoindex,
    sys::{
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage,
            connect, recv, recvfrom, send, setsockopt, socket, sockopt,
        },
        time::TimeVal,
    },
};

use crate::Tunnels;

fn with_timeout(socket: OwnedFd) -> Result<OwnedFd> {
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 200_000))?;
    Ok(socket)
}

/// Sends one ICMP echo request with `size` bytes of payload. Returns whether it is answered within
/// a second.
pub fn ping(from: &NetworkNamespace, to: SocketAddr, size: usize) -> Result<bool> {
    let socket = from.run(|| {
        let (family, protocol) = if to.is_ipv4() {
            (AddressFamily::Inet, SockProtocol::Icmp)
        } else {
            (AddressFamily::Inet6, SockProtocol::IcmpV6)
        };
        socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
    })??;
    let socket = with_timeout(socket)?;
    connect(
        socket.as_raw_fd(),
        &SockaddrStorage::from(SocketAddr::new(to.ip(), 0)),
    )?;
    let (request, answer, header) = if to.is_ipv4() {
        (8, 0, 20)
    } else {
        (128, 129, 0)
    };
    let mut message = vec![request, 0, 0, 0, 0x12, 0x34, 0, 1];
    message.extend(std::iter::repeat_n(7, size));
    if to.is_ipv4() {
        let sum: u32 = message
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16))?;
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut buffer = vec![0; 65_536];
    for _ in 0..5 {
        if let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            let icmp = buffer[..length].get(header..).unwrap_or_default();
            if icmp.first() == Some(&answer) && icmp.get(4..) == message.get(4..) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Captures the frames on the link during some work.
pub fn eavesdrop(
    namespace: &NetworkNamespace,
    during: impl FnOnce() -> Result<()> + Send,
) -> Result<Vec<Vec<u8>>> {
    let tap = namespace.run(|| {
        socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )
    })??;
    // The socket captures all devices, including the tunnel.
    let wire = namespace.run(|| if_nametoindex("wire"))??;
    let tap = with_timeout(tap)?;
    setsockopt(&tap, sockopt::RcvBufForce, &(64 << 20))?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let (mut frames, mut buffer) = (Vec::new(), vec![0; 70_000]);
            // Reads everything that was sent before the end.
            loop {
                let ending = done.load(Relaxed);
                match recvfrom::<LinkAddr>(tap.as_raw_fd(), &mut buffer) {
                    Ok((length, Some(device))) if device.ifindex() == wire as usize => {
                        frames.push(buffer[..length].to_vec());
                    }
                    Err(_) if ending => return frames,
                    _ => {}
                }
            }
        });
        let result = during();
        done.store(true, Relaxed);
        let frames = listener
            .join()
            .map_err(|_| anyhow::anyhow!("the listener ended"))?;
        result.map(|()| frames)
    })
}

/// The number of frames with plain text: the testbed's TCP traffic consists of sevens.
fn plain_text(frames: &[Vec<u8>]) -> usize {
    frames
        .iter()
        .filter(|frame| frame.windows(64).any(|window| window == [7; 64]))
        .count()
}

pub fn an_eavesdropper_sees_no_plain_text() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (left, right) = (&tunnels.pair.left, &tunnels.pair.right);
    let mut sent = 0;
    let encrypted = eavesdrop(left, || {
        sent = traffic::send_tcp(
            left,
            right,
            PairEnd::Right.inside(false, 5001),
            1,
            Duration::from_millis(500),
        )?
        .bytes;
        Ok(())
    })?;
    let heard: usize = encrypted
        .iter()
        .filter(|frame| frame.len() > 42)
        .map(Vec::len)
        .sum();
    ensure!(
        sent > 1_000_000 && heard as u64 > sent / 2,
        "{sent} bytes were sent, {heard} heard"
    );
    ensure!(plain_text(&encrypted) == 0, "plain text on the wire");
    // The control: without the tunnel, it is seen.
    let open = || {
        traffic::send_tcp(
            left,
            right,
            PairEnd::Right.outside(false, 5001),
            1,
            Duration::from_millis(200),
        )
        .map(drop)
    };
    ensure!(
        plain_text(&eavesdrop(left, || Ok(open()?))?) > 10,
        "the listener would not see it"
    );
    Ok(())
}
