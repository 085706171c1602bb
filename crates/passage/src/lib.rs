//! TCP streams inside a WireGuard session, without the kernel.
//!
//! A cluster that exposes nothing but the UDP port of its tunnel is reached through that port: its auth endpoint and its API server
//! answer on two ports inside a WireGuard session. Neither end needs an address, a route, a rule of nftables or a device for it: each
//! session has a small TCP stack of its own in the process, and what comes out of the session goes nowhere else.
//!
//! ```text
//!   consumer's manager                                       provider's gateway
//!
//!   connect(port) --> stack --> WireGuard ==== UDP ====> tunnel --> stack --> accepted (port)
//!   (a TCP stream)    (packets)                                     (packets)  (a TCP stream)
//! ```
//!
//! Both stacks are [`Stack`], over packets; [`dial`](session::dial) is the consumer's WireGuard. The provider's is the tunnel of its gateway, which
//! hands over what comes from such a remote.
//!
//! **What can be reached** is what the provider's end accepts: two ports, so many streams at a time. TLS goes from end to end, so nothing is
//! trusted on the way; the session only decides who gets as far as the door.

pub mod keys;
pub mod session;
mod stack;

pub use stack::{Accepted, Doors, End, MOST_STREAMS, Place, Stack, Wire};

/// Port of the auth endpoint inside a session.
pub const AUTH_PORT: u16 = 443;
/// Port of the API server inside a session.
pub const API_PORT: u16 = 6443;
/// What a packet in a session may measure: any way that IPv6 takes carries it.
pub const MTU: usize = 1280;
