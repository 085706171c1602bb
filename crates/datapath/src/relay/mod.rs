//! The way for where UDP does not pass: the tunnel's datagrams, carried over TLS on TCP.
//!
//! A relay stands beside the tunnel and not in it. On both sides it is a UDP socket on the machine itself, which the tunnel speaks to
//! as to any remote; between the two is a TLS connection. What travels is encrypted and authenticated by WireGuard already, so TLS is
//! only the way through: its certificate is made anew at each start and nobody checks it. Whoever stands between the two sees as
//! much as with UDP, and whoever connects to the server can do no more than one who sends datagrams to the tunnel's port.
//!
//! ```text
//!   tunnel <--UDP, loopback--> Client ======TLS 1.3, TCP 443======> Server <--UDP, loopback--> tunnel
//!                              one for each remote                  one socket for each connection
//! ```
//!
//! On the connection each datagram is preceded by its length in two bytes, the higher one first.
//!
//! **Bounds.** Only what has the shape of a WireGuard message passes. A connection on which the tunnel does not answer ends after
//! [`PROOF`], one that is silent or takes nothing after [`IDLE`]. When TCP is slow, the oldest datagrams of a small queue are dropped, as
//! a router would. There are only so many connections; of those on which the tunnel did not answer yet the oldest makes room.

mod carry;
mod client;
mod frames;
mod queue;
mod server;
mod tls;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

pub use client::Client;
pub use server::{Counts, Limits, Server};
#[cfg(feature = "testbed")]
pub use tls::connector;

/// Within this time a datagram must have passed in each direction.
pub const PROOF: Duration = Duration::from_secs(10);
/// After so long without a datagram from the other side the connection is taken for dead. Tunnels speak every few seconds.
pub const IDLE: Duration = Duration::from_secs(30);
/// How long a connection and its handshake may take together.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Whether an address is one of a relay's own: no remote can be there.
pub fn is_relay(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The loopback address of the family of `tunnel`, with a port of the kernel's choice.
fn beside(tunnel: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if tunnel.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(ip, 0)
}
