//! Remotes that come, go, move and die, and the same for our own end.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use liqo_datapath::tunnel::{
    EndpointConfig, PathMeasurement, PrivateKey, PublicKey, RemoteConfig, Tunnel, UserspaceTunnel,
};
use liqo_datapath_testbed::{
    Pair, PairEnd,
    process::{self, ChildProcess, TunnelSide},
};

use crate::{
    Tunnels,
    carries::{datagram_sockets, under_load, with_port},
    relay::block_udp,
    until,
    wire::ping,
};

/// The measured path quality of the left end's first remote.
fn measured(tunnels: &Tunnels) -> Result<Option<PathMeasurement>> {
    Ok(tunnels.remote(PairEnd::Left)?.measured)
}

pub fn the_path_to_a_remote_is_measured_while_the_remote_is_enabled() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    // On a busy machine answers may come too late, which counts as a loss for a minute.
    let mut lost = 0;
    until("an answer", || {
        let found = measured(&tunnels)?.filter(|now| {
            now.shortest
                .is_some_and(|time| time < Duration::from_secs(1))
        });
        lost = found.as_ref().map_or(lost, |now| now.lost_per_thousand);
        Ok(found.is_some())
    })?;
    ensure!(
        tunnels.remote(PairEnd::Right)?.dropped.not_ip == 0,
        "a question went to the device"
    );
    block_udp(&tunnels, true)?;
    until("more losses", || {
        Ok(measured(&tunnels)?.is_some_and(|now| now.lost_per_thousand > lost))
    })?;
    block_udp(&tunnels, false)?;
    let mut endpoint = tunnels.endpoint(PairEnd::Left);
    endpoint.remotes[0].enabled = false;
    tunnels.apply(PairEnd::Left, &endpoint)?;
    until("that it is not measured", || {
        Ok(measured(&tunnels)?.is_none())
    })
}

pub fn a_connection_survives_the_death_of_the_process() -> Result<()> {
    let pair = Pair::new()?;
    let sides = TunnelSide::both("tunnel", false);
    let mut left = ChildProcess::start("tunnel", &pair.left, &sides[0])?;
    let _right = ChildProcess::start("tunnel", &pair.right, &sides[1])?;
    for end in [PairEnd::Left, PairEnd::Right] {
        pair.address(end, &format!("tunnel{}", end.number()), 1420)?;
    }
    pair.left.ip("route add 198.51.100.0/24 dev tunnel1")?;
    let listener = pair
        .right
        .run(|| TcpListener::bind(PairEnd::Right.inside(false, 5001)))??;
    let mut client = pair
        .left
        .run(|| TcpStream::connect(PairEnd::Right.inside(false, 5001)))??;
    let (mut server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    }
    let echo = thread::spawn(move || {
        let mut message = [0; 8];
        while server.read_exact(&mut message).is_ok() && server.write_all(&message).is_ok() {}
    });
    let mut round_trips = |from: u64, to: u64| -> Result<()> {
        for number in from..to {
            let mut message = number.to_be_bytes();
            client.write_all(&message)?;
            client.read_exact(&mut message)?;
            ensure!(message == number.to_be_bytes());
        }
        Ok(())
    };
    round_trips(0, 100)?;
    drop(left);
    ensure!(
        !ping(&pair.left, PairEnd::Right.inside(false, 0), 0)?,
        "the process lives"
    );
    left = ChildProcess::start("tunnel", &pair.left, &sides[0])?;
    round_trips(100, 200)?;
    let routes = pair
        .left
        .command("ip", &["route", "show", "dev", "tunnel1"], "")?;
    ensure!(
        routes.contains("198.51.100.0/24"),
        "the routes went: {routes}"
    );
    drop((left, client));
    let _ = echo.join();
    Ok(())
}

/// Addresses behind the left end that differ in the bits that spread flows.
const SOURCES: &str = "10.99.1.0/27";

/// Another gateway in the namespace of the right end, for the same prefixes.
fn second_gateway(tunnels: &Tunnels) -> Result<(UserspaceTunnel, RemoteConfig)> {
    let key = PrivateKey::generate();
    let mut endpoint = tunnels.endpoint(PairEnd::Right);
    endpoint.device = "second".into();
    endpoint.listen[0].set_port(51_821);
    endpoint.private_key = key.clone();
    endpoint.remotes[0].prefixes.push(SOURCES.parse()?);
    let gateway = UserspaceTunnel::new();
    tunnels.pair.right.run(|| gateway.apply(&endpoint))??;
    // Packets from here are for an address of another device, and answers leave through that one.
    tunnels.pair.right.command(
        "sh",
        &[
            "-c",
            "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done",
        ],
        "",
    )?;
    let remote = RemoteConfig {
        public_key: key.public_key(),
        endpoint: Some(PairEnd::Right.outside(false, 51_821)),
        ..tunnels.endpoint(PairEnd::Left).remotes[0].clone()
    };
    Ok((gateway, remote))
}

fn has_session(tunnels: &Tunnels, key: PublicKey) -> bool {
    let remotes = tunnels.tunnel(PairEnd::Left).state().remotes;
    remotes
        .iter()
        .any(|remote| remote.public_key == key && remote.last_handshake.is_some())
}

pub fn a_remote_is_replaced_under_load_without_a_loss() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (sender, receiver) = datagram_sockets(&tunnels.pair, false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    let (gateway, second) = second_gateway(&tunnels)?;
    let (sent, arrived) = under_load(&sender, &receiver, || {
        // First in addition to the former one, without traffic, then instead of it.
        let mut endpoint = tunnels.endpoint(PairEnd::Left);
        endpoint.remotes.push(RemoteConfig {
            enabled: false,
            ..second.clone()
        });
        tunnels.apply(PairEnd::Left, &endpoint)?;
        until("a session", || Ok(has_session(&tunnels, second.public_key)))?;
        endpoint.remotes[0].enabled = false;
        endpoint.remotes[1].enabled = true;
        tunnels.apply(PairEnd::Left, &endpoint)?;
        until("packets through the second", || {
            Ok(gateway.state().remotes[0].received_bytes > 10_000)
        })?;
        endpoint.remotes.remove(0);
        tunnels.apply(PairEnd::Left, &endpoint)
    })?;
    ensure!(sent > 100 && sent == arrived, "{arrived} of {sent} arrived");
    Ok(())
}

pub fn our_key_changes_under_load_without_a_loss() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (sender, receiver) = datagram_sockets(&tunnels.pair, false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    let key = PrivateKey::generate();
    let (sent, arrived) = under_load(&sender, &receiver, || {
        // Our key changes; the peer does not know yet.
        let mut left = tunnels.endpoint(PairEnd::Left);
        left.previous_key = Some(std::mem::replace(&mut left.private_key, key.clone()));
        tunnels.apply(PairEnd::Left, &left)?;
        let carried = || tunnels.tunnel(PairEnd::Right).state().remotes[0].received_bytes;
        let before = carried();
        until("datagrams that the former key carries", || {
            Ok(carried() > before + 10_000)
        })?;
        // The peer learns the new key, in addition to the former one.
        let mut right = tunnels.endpoint(PairEnd::Right);
        let former = right.remotes[0].clone();
        let first_key = Some(former.public_key);
        right.remotes.push(RemoteConfig {
            public_key: key.public_key(),
            first_key,
            enabled: false,
            ..former
        });
        tunnels.apply(PairEnd::Right, &right)?;
        let fresh = || tunnels.tunnel(PairEnd::Right).state().remotes[1].clone();
        until("a session of the new key", || {
            Ok(fresh().last_handshake.is_some())
        })?;
        // The initiator uses the new session at once. For the peer both keys are one gateway; it
        // sends with the last one.
        right.remotes[1].enabled = true;
        tunnels.apply(PairEnd::Right, &right)?;
        until("packets under the new key", || {
            Ok(fresh().received_bytes > 10_000)
        })?;
        let before = tunnels.remote(PairEnd::Right)?.sent_bytes;
        ensure!(
            ping(&tunnels.pair.right, PairEnd::Left.inside(false, 0), 1000)?,
            "with the new key"
        );
        ensure!(
            tunnels.remote(PairEnd::Right)?.sent_bytes < before + 1000,
            "it was sent with the former key"
        );
        right.remotes.remove(0);
        tunnels.apply(PairEnd::Right, &right)?;
        left.previous_key = None;
        tunnels.apply(PairEnd::Left, &left)
    })?;
    ensure!(sent > 100 && sent == arrived, "{arrived} of {sent} arrived");
    ensure!(
        ping(&tunnels.pair.right, PairEnd::Left.inside(false, 0), 0)?,
        "the way back"
    );
    Ok(())
}

pub fn a_gateway_that_moves_is_followed() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (sender, receiver) = datagram_sockets(&tunnels.pair, false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    let before = tunnels.remote(PairEnd::Left)?.last_handshake;
    let (sent, arrived) =
        under_load(&sender, &receiver, || {
            let mut endpoint = tunnels.endpoint(PairEnd::Left);
            endpoint.listen = vec![with_port(endpoint.listen[0], 4444)];
            tunnels.apply(PairEnd::Left, &endpoint)?;
            until("the new address", || {
                Ok(tunnels.remote(PairEnd::Right)?.endpoint
                    == Some(PairEnd::Left.outside(false, 4444)))
            })
        })?;
    ensure!(sent == arrived, "{arrived} of {sent} arrived");
    ensure!(ping(
        &tunnels.pair.right,
        PairEnd::Left.inside(false, 0),
        0
    )?);
    ensure!(
        tunnels.remote(PairEnd::Left)?.last_handshake >= before,
        "it needed a new session"
    );
    Ok(())
}

pub fn flows_are_spread_over_the_gateways_of_a_cluster() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let (gateway, second) = second_gateway(&tunnels)?;
    let mut endpoint = tunnels.endpoint(PairEnd::Left);
    endpoint.remotes.push(second.clone());
    tunnels.apply(PairEnd::Left, &endpoint)?;
    until("both sessions", || {
        Ok(has_session(&tunnels, second.public_key)
            && has_session(&tunnels, endpoint.remotes[0].public_key))
    })?;
    let receiver = tunnels
        .pair
        .right
        .run(|| UdpSocket::bind(PairEnd::Right.inside(false, 5005)))??;
    receiver.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut right = tunnels.endpoint(PairEnd::Right);
    right.remotes[0].prefixes.push(SOURCES.parse()?);
    tunnels.apply(PairEnd::Right, &right)?;
    tunnels
        .pair
        .left
        .ip(&format!("address add {SOURCES} dev lo"))?;
    let flow = |place: u8| -> Result<()> {
        let sender = tunnels
            .pair
            .left
            .run(|| UdpSocket::bind((Ipv4Addr::new(10, 99, 1, place), 0)))??;
        sender.send_to(&[0; 500], PairEnd::Right.inside(false, 5005))?;
        ensure!(receiver.recv(&mut [0; 600])? == 500);
        Ok(())
    };
    let shares = || {
        (
            tunnels.tunnel(PairEnd::Right).state().remotes[0].received_bytes,
            gateway.state().remotes[0].received_bytes,
        )
    };
    let before = shares();
    (0..16).try_for_each(flow)?;
    let after = shares();
    let (first, other) = (after.0 - before.0, after.1 - before.1);
    ensure!(
        first >= 8 * 500 && other >= 8 * 500,
        "{first} and {other} bytes"
    );
    // When one is disabled, the other carries everything.
    endpoint.remotes[0].enabled = false;
    tunnels.apply(PairEnd::Left, &endpoint)?;
    (0..16).try_for_each(flow)?;
    ensure!(shares().0 - after.0 < 500 && shares().1 - after.1 >= 16 * 500);
    Ok(())
}

/// The role of a process for the next test.
pub const DEAD_REMOTES: &str = "dead remotes";

const REMOTES: u16 = 300;

fn behind(number: u16) -> String {
    format!("10.{}.{}", 100 + number / 256, number % 256)
}

/// Runs a tunnel to remotes that do not answer, if this process was started in that role. Returns
/// whether it was.
pub fn serve_dead_remotes() -> Result<bool> {
    if std::env::var(process::ROLE).as_deref() != Ok(DEAD_REMOTES) {
        return Ok(false);
    }
    let side: TunnelSide = std::env::var(process::SIDE)?.parse()?;
    let remote = |number: u16| {
        let prefix: IpNet = format!("{}.0/24", behind(number)).parse()?;
        let endpoint: SocketAddr = format!("192.0.2.{}:51820", 3 + number % 200).parse()?;
        let public_key = PrivateKey::generate().public_key();
        let model = side.endpoint().remotes.remove(0);
        anyhow::Ok(RemoteConfig {
            public_key,
            endpoint: Some(endpoint),
            prefixes: vec![prefix],
            ..model
        })
    };
    let remotes = (0..REMOTES).map(remote).collect::<Result<Vec<_>>>()?;
    let tunnel = UserspaceTunnel::new();
    tunnel.apply(&EndpointConfig {
        remotes,
        ..side.endpoint()
    })?;
    process::wait_for_the_end()?;
    Ok(true)
}

pub fn hundreds_of_dead_remotes_take_little_memory() -> Result<()> {
    const EACH: usize = 300;
    let pair = Pair::new()?;
    let tunnel = ChildProcess::start(
        DEAD_REMOTES,
        &pair.left,
        &TunnelSide::both("tunnel", false)[0],
    )?;
    pair.address(PairEnd::Left, "tunnel1", 1420)?;
    pair.left.ip("route add 10.100.0.0/14 dev tunnel1")?;
    let sender = pair.left.run(|| UdpSocket::bind("0.0.0.0:0"))??;
    let taken = || -> Result<usize> {
        let shown = pair
            .left
            .command("ip", &["-s", "-j", "link", "show", "tunnel1"], "")?;
        let packets = shown
            .split("\"tx\":")
            .nth(1)
            .and_then(|rest| rest.split("\"packets\":").nth(1))
            .unwrap_or_default();
        Ok(packets.split(',').next().unwrap_or_default().parse()?)
    };
    let before = tunnel.resident_memory()?;
    for number in 0..REMOTES {
        let (to, target) = (format!("{}.9:9", behind(number)), taken()? + EACH);
        // Not more at once than the device's queue holds. Packets that it drops are sent again.
        until("packets taken from the device", || {
            for _ in 0..EACH {
                sender.send_to(&[0; 1300], &to)?;
            }
            Ok(taken()? >= target)
        })?;
    }
    let grown = tunnel.resident_memory()?.saturating_sub(before);
    // 64 packets of 1344 bytes each are 26 MiB; all that were sent would be more than 110.
    ensure!(
        grown < 60 << 20,
        "{} MiB for {REMOTES} remotes",
        grown >> 20
    );
    Ok(())
}

pub fn the_device_outlives_the_tunnel_until_it_is_removed() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    let device = || {
        tunnels
            .pair
            .left
            .command("ip", &["link", "show", "tunnel1"], "")
    };
    tunnels.tunnel(PairEnd::Left).stop();
    ensure!(!tunnels.tunnel(PairEnd::Left).state().running);
    ensure!(device()?.contains("mtu 1420"));
    tunnels
        .pair
        .left
        .run(|| tunnels.tunnel(PairEnd::Left).remove_device("tunnel1"))??;
    ensure!(device().is_err(), "the device is still there");
    // Removing it twice is no error.
    tunnels
        .pair
        .left
        .run(|| tunnels.tunnel(PairEnd::Left).remove_device("tunnel1"))??;
    Ok(())
}

pub fn a_device_that_somebody_removed_comes_back() -> Result<()> {
    let tunnels = Tunnels::new(false)?;
    until("a session", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    tunnels.pair.left.ip("link delete tunnel1")?;
    until("the loss is noticed", || {
        Ok(!tunnels.tunnel(PairEnd::Left).state().running)
    })?;
    tunnels.apply(PairEnd::Left, &tunnels.endpoint(PairEnd::Left))?;
    tunnels.pair.address(PairEnd::Left, "tunnel1", 1420)?;
    ensure!(tunnels.tunnel(PairEnd::Left).state().running);
    let start = Instant::now();
    until("an answer", || {
        ping(&tunnels.pair.left, PairEnd::Right.inside(false, 0), 0)
    })?;
    ensure!(
        start.elapsed() < Duration::from_secs(3),
        "the session did not survive"
    );
    Ok(())
}
