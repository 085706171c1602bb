//! What the tunnel carries.

use std::{
    net::{SocketAddr, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use liqo_datapath::tunnel::Tunnel;
use liqo_datapath_testbed::{Pair, PairEnd, traffic::arrives_unchanged};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt},
};

use crate::{Tunnels, until, wire::ping};

const FIFTY_MEGABYTES: usize = 50 << 20;

pub fn ping_in_both_families() -> Result<()> {
    for outside_v6 in [false, true] {
        let tunnels = Tunnels::new(outside_v6)?;
        for v6 in [false, true] {
            for size in [0, 56, 1372, 8000] {
                until("an answer", || {
                    ping(&tunnels.pair.left, PairEnd::Right.inside(v6, 0), size)
                })?;
                until("an answer", || {
                    ping(&tunnels.pair.right, PairEnd::Left.inside(v6, 0), size)
                })?;
            }
        }
    }
    Ok(())
}

fn transfer_all(pair: &Pair, length: usize) -> Result<()> {
    for v6 in [false, true] {
        ensure!(
            arrives_unchanged(
                &pair.left,
                &pair.right,
                PairEnd::Right.inside(v6, 5001),
                length
            )?,
            "damaged on the way to the right"
        );
        ensure!(
            arrives_unchanged(
                &pair.right,
                &pair.left,
                PairEnd::Left.inside(v6, 5002),
                length
            )?,
            "damaged on the way to the left"
        );
    }
    Ok(())
}

pub fn fifty_megabytes_arrive_unchanged_both_ways() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    transfer_all(&tunnels.pair, FIFTY_MEGABYTES)?;
    for end in [PairEnd::Left, PairEnd::Right] {
        let remote = tunnels.remote(end)?;
        ensure!(
            remote.sent_bytes > 2 * FIFTY_MEGABYTES as u64
                && remote.received_bytes > 2 * FIFTY_MEGABYTES as u64,
            "{remote:?}"
        );
        ensure!(
            remote.last_handshake.is_some() && remote.last_received < Some(Duration::from_secs(5)),
            "{remote:?}"
        );
        ensure!(remote.endpoint == Some(end.other().outside(false, 51_820)));
    }
    Ok(())
}

pub fn everything_travels_over_ipv6_too() -> Result<()> {
    let tunnels = Tunnels::new(true)?;
    transfer_all(&tunnels.pair, 5 << 20)?;
    ensure!(tunnels.remote(PairEnd::Left)?.endpoint == Some(PairEnd::Right.outside(true, 51_820)));
    Ok(())
}

/// A sender at the left end and a receiver at the right end, with addresses inside the tunnel.
pub fn datagram_sockets(pair: &Pair, v6: bool) -> Result<(UdpSocket, UdpSocket)> {
    let sender = pair
        .left
        .run(|| UdpSocket::bind(PairEnd::Left.inside(v6, 0)))??;
    let receiver = pair
        .right
        .run(|| UdpSocket::bind(PairEnd::Right.inside(v6, 5005)))??;
    sender.connect(PairEnd::Right.inside(v6, 5005))?;
    receiver.set_read_timeout(Some(Duration::from_secs(5)))?;
    // A datagram is sent once. It may be lost while two ends that call each other at once agree on
    // a session.
    until("a session that carries packets", || {
        ping(&pair.left, PairEnd::Right.inside(v6, 0), 0)
    })?;
    Ok((sender, receiver))
}

pub fn datagrams_of_all_sizes_arrive_unchanged() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    for v6 in [false, true] {
        let (sender, receiver) = datagram_sockets(&tunnels.pair, v6)?;
        let mut buffer = vec![0; 65_536];
        for size in (0..1400)
            .step_by(7)
            .chain([1392, 1393, 3000, 20_000, 65_000])
        {
            let datagram: Vec<_> = (0..=250).cycle().take(size).collect();
            sender.send(&datagram)?;
            let length = receiver.recv(&mut buffer)?;
            ensure!(
                buffer[..length] == datagram[..],
                "a datagram of {size} bytes"
            );
        }
        // The kernel passes them to the device as one packet, and accepts them as one.
        setsockopt(&sender, sockopt::UdpGsoSegment, &500)?;
        sender.send(&vec![9; 10_250])?;
        for number in 0..21 {
            let length = receiver.recv(&mut buffer)?;
            ensure!(
                length == if number == 20 { 250 } else { 500 }
                    && buffer[..length].iter().all(|byte| *byte == 9)
            );
        }
    }
    Ok(())
}

pub fn a_packet_that_is_too_large_and_must_not_be_fragmented_is_refused_at_once() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (sender, receiver) = datagram_sockets(&tunnels.pair, true)?;
    setsockopt(&sender, sockopt::Ipv6DontFrag, &true)?;
    let mut buffer = [0; 2048];
    sender.send(&[1; 1372])?;
    ensure!(receiver.recv(&mut buffer)? == 1372);
    let refused = sender.send(&[1; 1373]);
    ensure!(refused.is_err_and(|error| error.raw_os_error() == Some(Errno::EMSGSIZE as i32)));
    Ok(())
}

pub fn a_smaller_mtu_between_the_gateways_only_costs_fragments() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    for end in [PairEnd::Left, PairEnd::Right] {
        tunnels.pair.end(end).ip("link set wire mtu 1300")?;
    }
    transfer_all(&tunnels.pair, 5 << 20)?;
    ensure!(ping(
        &tunnels.pair.left,
        PairEnd::Right.inside(false, 0),
        1392
    )?);
    ensure!(tunnels.remote(PairEnd::Left)?.dropped.send_failed == 0);
    Ok(())
}

pub fn applying_the_same_again_changes_nothing_and_loses_nothing() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (sender, receiver) = datagram_sockets(&tunnels.pair, false)?;
    until("a session", || {
        Ok(tunnels.remote(PairEnd::Left)?.last_handshake.is_some())
    })?;
    let handshake =
        |end| -> Result<_> { Ok(tunnels.remote(end)?.last_handshake.unwrap_or_default()) };
    let mut buffer = [0; 64];
    let (before, mut arrived) = (handshake(PairEnd::Left)?, 0);
    for number in 0..200u32 {
        sender.send(&number.to_be_bytes())?;
        tunnels.apply(PairEnd::Left, &tunnels.endpoint(PairEnd::Left))?;
        tunnels.apply(PairEnd::Right, &tunnels.endpoint(PairEnd::Right))?;
        arrived +=
            usize::from(receiver.recv(&mut buffer)? == 4 && buffer[..4] == number.to_be_bytes());
    }
    ensure!(arrived == 200, "{arrived} of 200 arrived");
    ensure!(
        handshake(PairEnd::Left)? >= before,
        "there is a new session"
    );
    ensure!(tunnels.tunnel(PairEnd::Left).state().running);
    Ok(())
}

pub fn handshakes_that_start_at_both_ends_at_once_end_in_one_session() -> Result<()> {
    for _ in 0..5 {
        let tunnels = Tunnels::prepare(false)?;
        let start = |end| tunnels.apply(end, &tunnels.endpoint(end));
        thread::scope(|scope| {
            let right = scope.spawn(|| start(PairEnd::Right));
            start(PairEnd::Left)?;
            right
                .join()
                .map_err(|_| anyhow::anyhow!("a thread ended"))?
        })?;
        for end in [PairEnd::Left, PairEnd::Right] {
            tunnels.pair.address(end, &tunnels.side(end).device, 1420)?;
        }
        transfer_all(&tunnels.pair, 100_000)?;
    }
    Ok(())
}

/// Sends a number every millisecond during some work. Returns how many were sent and how many of
/// them arrived.
pub fn under_load(
    sender: &UdpSocket,
    receiver: &UdpSocket,
    work: impl FnOnce() -> Result<()>,
) -> Result<(u32, u32)> {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let done = AtomicBool::new(false);
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut sent = 0u32;
            while !done.load(Relaxed) {
                sent += u32::from(sender.send(&sent.to_be_bytes()).is_ok());
                thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        let receiving = scope.spawn(|| {
            let mut numbers = std::collections::HashSet::new();
            let mut buffer = [0; 64];
            while let Ok(4) = receiver.recv(&mut buffer) {
                numbers.insert([buffer[0], buffer[1], buffer[2], buffer[3]]);
            }
            numbers.len()
        });
        let result = work();
        done.store(true, Relaxed);
        let ended = |_| anyhow::anyhow!("a thread ended");
        let (sent, arrived) = (
            sending.join().map_err(ended)?,
            receiving.join().map_err(ended)?,
        );
        result?;
        Ok((sent, u32::try_from(arrived)?))
    })
}

/// The same address for another port.
pub fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address.ip(), port)
}
