//! TCP streams inside a WireGuard session, without the kernel.
//!
//! A cluster may expose nothing but the UDP port of its tunnel. Then consumers reach its auth
//! endpoint ([`AUTH_PORT`]) and its API server ([`API_PORT`]) through that port: both listen on
//! fixed ports inside a WireGuard session. Neither side needs an address, a route, an nftables rule
//! or a network device for it. Each session has its own small TCP stack in the process, and its
//! packets go nowhere else.
//!
//! ```text
//!   consumer's manager                                       provider's gateway
//!
//!   connect(port) --> Stack --> WireGuard ==== UDP ====> tunnel --> Stack --> IncomingStream (port)
//!   (a TCP stream)    (packets)                                     (packets)  (a TCP stream)
//! ```
//!
//! - [`session::dial`]: the consumer's WireGuard client. `liqo-peering` calls it. Read this first.
//! - [`Stack`]: the TCP stack over packets, on both sides. `liqo-fabric` runs the provider's: the
//!   tunnel of its gateway hands packets of these clients to a stack instead of the kernel, and
//!   connects the streams to the two servers.
//! - [`ListenPolicy`]: what the provider's side accepts: which ports, and how many streams at a
//!   time.
//! - [`keys`]: the keys of both sides, derived from the cluster's key or from a token.
//!
//! TLS runs end to end inside the streams, so the session is not trusted: it only limits who can
//! reach the two ports.

#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::string_slice, clippy::expect_used)
)] // It reads what peers write.

pub mod keys;
pub mod session;
mod stack;

pub use stack::{
    IncomingStream, ListenPolicy, MAX_STREAMS, MTU, PacketLink, Stack, StackRole, StreamPermit,
};

/// Port of the auth endpoint inside a session.
pub const AUTH_PORT: u16 = 443;
/// Port of the API server inside a session.
pub const API_PORT: u16 = 6443;
