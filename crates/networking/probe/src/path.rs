//! The path MTU: the largest packet that passes unfragmented.

use std::{io, time::Duration};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use tokio::{net::UdpSocket, time::timeout};

use crate::{Finding, Problem, Server, datagram};

/// Every IPv4 network carries packets of this size.
const MIN_MTU: u16 = 576;
/// Timeout of an answer. Each size is tried twice.
const TIMEOUT: Duration = Duration::from_millis(700);

/// The outcome of one packet.
enum Outcome {
    Passed,
    /// An error said that it is too long.
    TooLong,
    Vanished,
}

/// Finds the path MTU by bisection.
pub async fn find(to: &Server, largest: u16) -> Result<Finding, Problem> {
    let socket = datagram::connect(to.address).await?;
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
            Outcome::Passed => passes = Some(next),
            Outcome::TooLong => fails = next,
            Outcome::Vanished => {
                fails = next;
                vanished = Some(next);
            }
        }
        let floor = passes.unwrap_or(MIN_MTU);
        if floor + 1 >= fails {
            break;
        }
        // Try the smallest second: if that does not pass, nothing does.
        next = if passes.is_none() {
            MIN_MTU
        } else {
            floor + (fails - floor) / 2
        };
        if passes.is_none() && fails <= MIN_MTU {
            break;
        }
    }
    passes
        .map(|largest| Finding::Passes { largest, vanished })
        .ok_or_else(Problem::silence)
}

async fn send(socket: &UdpSocket, to: &Server, bytes: usize) -> Result<Outcome, Problem> {
    for _ in 0..2 {
        match timeout(TIMEOUT, datagram::exchange(socket, to, bytes)).await {
            Ok(Ok(_)) => return Ok(Outcome::Passed),
            Ok(Err(error))
                if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) =>
            {
                return Ok(Outcome::TooLong);
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(Outcome::Vanished)
}
