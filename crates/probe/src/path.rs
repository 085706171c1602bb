//! The largest packet that passes in one piece.

use std::{io, time::Duration};

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover};
use tokio::{net::UdpSocket, time::timeout};

use crate::{Finding, Problem, Server, ask};

/// Every network carries this much.
const SMALLEST: u16 = 576;
/// So long an answer is waited for, and then once more.
const PATIENCE: Duration = Duration::from_millis(700);

/// What became of one packet.
enum Fate {
    Passed,
    /// Somebody said that it is too long.
    TooLong,
    Vanished,
}

/// Looks for it by halves.
pub async fn find(to: &Server, largest: u16) -> Result<Finding, Problem> {
    let socket = ask::datagram_socket(to.address).await?;
    let headers: u16 = if to.address.is_ipv4() {
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).map_err(io::Error::from)?;
        28
    } else {
        set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO).map_err(io::Error::from)?;
        48
    };
    let (mut passes, mut fails) = (None, largest.saturating_add(1));
    let mut vanished = None;
    let mut next = largest;
    loop {
        match send(&socket, to, usize::from(next - headers)).await? {
            Fate::Passed => passes = Some(next),
            Fate::TooLong => fails = next,
            Fate::Vanished => {
                fails = next;
                vanished = Some(next);
            }
        }
        let floor = passes.unwrap_or(SMALLEST);
        if floor + 1 >= fails {
            break;
        }
        // The smallest comes second: if that does not pass, nothing will.
        next = if passes.is_none() { SMALLEST } else { floor + (fails - floor) / 2 };
        if passes.is_none() && fails <= SMALLEST {
            break;
        }
    }
    passes.map(|largest| Finding::Passes { largest, vanished }).ok_or_else(Problem::silence)
}

async fn send(socket: &UdpSocket, to: &Server, bytes: usize) -> Result<Fate, Problem> {
    for _ in 0..2 {
        match timeout(PATIENCE, ask::exchange(socket, to, bytes)).await {
            Ok(Ok(_)) => return Ok(Fate::Passed),
            Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                return Ok(Fate::TooLong);
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(Fate::Vanished)
}
