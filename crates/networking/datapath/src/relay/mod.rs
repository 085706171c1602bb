//! Carries a tunnel's datagrams over TLS on TCP, where UDP does not pass.
//!
//! A relay is separate from the tunnel. On both machines it is a UDP socket on the loopback device,
//! which the tunnel uses like any remote's address. WireGuard already encrypts and authenticates
//! the datagrams, so TLS only serves to pass firewalls: the server creates a new certificate at
//! each start, and clients do not check it. An eavesdropper sees as much as with UDP, and a
//! stranger who connects can do no more than one who sends datagrams to the tunnel's port.
//!
//! ```text
//!   tunnel <--UDP, loopback--> Client ======TLS 1.3, TCP 443======> Server <--UDP, loopback--> tunnel
//!                              one for each remote                  one socket for each connection
//! ```
//!
//! On the TLS connection, the length of each datagram (two bytes, big-endian) precedes it. `carry`
//! has the limits.

mod carry;
mod client;
mod frames;
mod loopback;
mod queue;
mod server;
mod tls;

pub use carry::{IDLE_TIMEOUT, PROOF_TIMEOUT};
pub use client::RelayClient;
pub use loopback::is_relay;
pub use server::{LIMITS, RelayCounts, RelayServer};
pub use tls::{CONNECT_TIMEOUT, connector};
