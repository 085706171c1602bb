//! Attacks on the tunnel.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, ensure};
use gotatun::{
    noise::{Tunn, index_table::IndexTable, rate_limiter::RateLimiter},
    packet::{Packet, WgKind},
    x25519,
};
use liqo_datapath::tunnel::{PrivateKey, Tunnel};
use liqo_datapath_testbed::{PairEnd, traffic::arrives_unchanged};

use crate::{
    Tunnels,
    carries::datagram_sockets,
    until,
    wire::{eavesdrop, ping},
};

pub fn a_packet_with_a_source_that_the_remote_may_not_use_is_dropped() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    // The left end may use 10.99.0.1 only.
    tunnels.pair.left.ip("address add 10.99.0.77/32 dev tunnel1\naddress add fd99::77/128 dev tunnel1 nodad preferred_lft 0")?;
    for (v6, address) in [(false, "10.99.0.77:0"), (true, "[fd99::77]:0")] {
        until("a session", || {
            ping(&tunnels.pair.left, PairEnd::Right.inside(v6, 0), 0)
        })?;
        let (right, receiver) = datagram_sockets(&tunnels.pair, v6)?;
        receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
        let wrong = tunnels.pair.left.run(|| {
            UdpSocket::bind(address.parse::<SocketAddr>()?).map_err(anyhow::Error::from)
        })??;
        let dropped = tunnels.remote(PairEnd::Right)?.dropped.wrong_source;
        for _ in 0..10 {
            wrong.send_to(b"wrong", PairEnd::Right.inside(v6, 5005))?;
        }
        until("drops", || {
            Ok(tunnels.remote(PairEnd::Right)?.dropped.wrong_source == dropped + 10)
        })?;
        right.send(b"right")?;
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer)?;
        ensure!(
            buffer[..length] == b"right"[..],
            "a packet from a wrong source arrived"
        );
    }
    Ok(())
}

pub fn garbage_is_counted_and_harms_nobody() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    let stranger = tunnels
        .pair
        .left
        .run(|| UdpSocket::bind(PairEnd::Left.outside(false, 0)))??;
    let target = PairEnd::Right.outside(false, 51_820);
    let mut sent = 0;
    for size in (0..2000).step_by(3) {
        for kind in 0..6 {
            let mut datagram = vec![0_u8; size];
            rand::fill(&mut datagram[..]);
            for (at, byte) in [kind, 0, 0, 0].into_iter().enumerate().take(size) {
                datagram[at] = byte;
            }
            stranger.send_to(&datagram, target)?;
            sent += 1;
        }
    }
    until("counts", || {
        let dropped = tunnels.tunnel(PairEnd::Right).state().dropped;
        // Empty datagrams are not counted. Some sizes are handshake messages, nearly all name
        // unknown sessions.
        Ok(dropped.not_wireguard + dropped.unknown_session + dropped.bad_handshake + 6 >= sent)
    })?;
    ensure!(tunnels.tunnel(PairEnd::Right).state().running);
    ensure!(tunnels.remote(PairEnd::Right)?.endpoint == Some(PairEnd::Left.outside(false, 51_820)));
    ensure!(arrives_unchanged(
        &tunnels.pair.left,
        &tunnels.pair.right,
        PairEnd::Right.inside(false, 5001),
        5 << 20
    )?);
    Ok(())
}

pub fn a_replayed_packet_does_not_arrive_again() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    let (sender, receiver) = datagram_sockets(&tunnels.pair, false)?;
    receiver.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = [0; 64];
    let frames = eavesdrop(&tunnels.pair.left, || {
        for number in 0..20u8 {
            sender.send(&[number])?;
            receiver.recv(&mut buffer)?;
        }
        Ok(())
    })?;
    // Data from left to right: Ethernet, IPv4 and UDP are 42 bytes.
    let own = [192, 0, 2, 1];
    let datagrams: Vec<_> = frames
        .iter()
        .filter(|frame| frame.len() > 46 && frame[26..30] == own && frame[42..46] == [4, 0, 0, 0])
        .collect();
    ensure!(
        datagrams.len() >= 20,
        "{} datagrams were heard",
        datagrams.len()
    );
    let stranger = tunnels
        .pair
        .left
        .run(|| UdpSocket::bind(PairEnd::Left.outside(false, 0)))??;
    for datagram in &datagrams {
        stranger.send_to(&datagram[42..], PairEnd::Right.outside(false, 51_820))?;
    }
    let replayed = datagrams.len() as u64;
    until("drops", || {
        Ok(tunnels.remote(PairEnd::Right)?.dropped.replayed == replayed)
    })?;
    ensure!(
        receiver.recv(&mut buffer).is_err(),
        "a packet arrived again"
    );
    let remote = tunnels.remote(PairEnd::Right)?;
    ensure!(
        remote.endpoint == Some(PairEnd::Left.outside(false, 51_820)),
        "the tunnel follows the sender of the replay"
    );
    // The same with another counter.
    let mut forged = datagrams[0][42..].to_vec();
    forged[8..16].copy_from_slice(&1_000_000u64.to_le_bytes());
    stranger.send_to(&forged, PairEnd::Right.outside(false, 51_820))?;
    until("the forgery is counted", || {
        Ok(tunnels.remote(PairEnd::Right)?.dropped.forged == 1)
    })
}

pub fn a_stranger_gets_no_session() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    // The left end gets a key that the right one does not know.
    let mut endpoint = tunnels.endpoint(PairEnd::Left);
    endpoint.private_key = PrivateKey::generate();
    tunnels.apply(PairEnd::Left, &endpoint)?;
    until("refusals", || {
        Ok(tunnels.tunnel(PairEnd::Right).state().dropped.bad_handshake > 0)
    })?;
    ensure!(!ping(
        &tunnels.pair.left,
        PairEnd::Right.inside(false, 0),
        0
    )?);
    ensure!(tunnels.remote(PairEnd::Left)?.last_handshake.is_none());
    Ok(())
}

pub fn a_flood_of_handshakes_is_answered_with_cookies_and_sessions_go_on() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    let flooder = tunnels
        .pair
        .left
        .run(|| UdpSocket::bind(PairEnd::Left.outside(false, 0)))??;
    flooder.set_read_timeout(Some(Duration::from_millis(100)))?;
    // A stranger who knows the tunnel's public key.
    let own = PrivateKey::generate();
    let target = x25519::PublicKey::from(tunnels.side(PairEnd::Left).remote_key.0);
    let secret = x25519::StaticSecret::from(*own.bytes());
    let limiter = Arc::new(RateLimiter::new(
        &x25519::PublicKey::from(own.public_key().0),
        100,
    ));
    let mut stranger = Tunn::new(
        secret,
        target,
        None,
        None,
        IndexTable::from_os_rng(),
        limiter,
    );
    let (mut cookies, mut answer) = (0, [0; 256]);
    until("cookies", || {
        for _ in 0..200 {
            let begin = stranger
                .format_handshake_initiation(true)
                .ok_or_else(|| anyhow::anyhow!("no handshake"))?;
            flooder.send_to(
                &Packet::from(WgKind::from(begin)),
                PairEnd::Right.outside(false, 51_820),
            )?;
        }
        while let Ok(length) = flooder.recv(&mut answer) {
            ensure!(
                length == 64 && answer[..4] == [3, 0, 0, 0],
                "a stranger got an answer of {length} bytes"
            );
            cookies += 1;
        }
        Ok(cookies > 50)
    })?;
    ensure!(tunnels.tunnel(PairEnd::Right).state().dropped.bad_handshake > 0);
    ensure!(ping(
        &tunnels.pair.left,
        PairEnd::Right.inside(false, 0),
        0
    )?);
    Ok(())
}
