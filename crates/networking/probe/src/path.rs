//! The path MTU: the largest packet that passes unfragmented.

use std::{io, time::Duration};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use tokio::{net::UdpSocket, time::timeout};

use crate::{AnswerProblem, AskedServer, MeasuredAnswer, datagram};

/// Every IPv4 network carries packets of this size.
const MIN_MTU: u16 = 576;
/// Timeout of an answer. Each size is tried twice.
const TIMEOUT: Duration = Duration::from_millis(700);

/// The outcome of one packet.
enum PacketOutcome {
    Passed,
    /// An error said that it is too long.
    TooLong,
    Vanished,
}

/// Finds the path MTU by bisection.
pub async fn find_path_mtu(
    to: &AskedServer,
    largest: u16,
) -> Result<MeasuredAnswer, AnswerProblem> {
    let socket = datagram::connect_socket(to.address).await?;
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
        match send_packet(&socket, to, usize::from(next - headers)).await? {
            PacketOutcome::Passed => passes = Some(next),
            PacketOutcome::TooLong => fails = next,
            PacketOutcome::Vanished => {
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
        .map(|largest| MeasuredAnswer::Passes { largest, vanished })
        .ok_or_else(AnswerProblem::no_answer)
}

async fn send_packet(
    socket: &UdpSocket,
    to: &AskedServer,
    bytes: usize,
) -> Result<PacketOutcome, AnswerProblem> {
    for _ in 0..2 {
        match timeout(TIMEOUT, datagram::ask_identity(socket, to, bytes)).await {
            Ok(Ok(_)) => return Ok(PacketOutcome::Passed),
            Ok(Err(error))
                if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) =>
            {
                return Ok(PacketOutcome::TooLong);
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(PacketOutcome::Vanished)
}
