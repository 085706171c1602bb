//! Tests and benchmarks of the data path on real kernels: namespaces, links and traffic that they
//! share.
//!
//! ```text
//!   namespace "left"                    namespace "right"
//!   tunnel1 10.99.0.1, fd99::1          tunnel2 10.99.0.2, fd99::2
//!   wire 192.0.2.1, 2001:db8::1 ------- wire 192.0.2.2, 2001:db8::2
//! ```
//!
//! A [`Pair`] represents two gateways and the internet between them. Namespaces have no names, so
//! the kernel removes them with everything in them when the process ends, however it ends. All of
//! this needs root and the program `ip`.
//!
//! | file | what it tests or measures |
//! |---|---|
//! | `tests/tunnel` | the tunnel alone, in a [`Pair`], also with wireguard-go at the other end |
//! | `tests/node` | clusters of several nodes: routes, nftables, gateways, tunnels |
//! | `tests/lan.rs` | discovery on a local network |
//! | `benches/tunnel.rs` | our tunnel and the other [`contenders`], in turns |
//! | `benches/peers.rs` | the cost of many peers on one gateway |
//!
//! Here are no tests with a kubelet or an API server: those are in `tests/` of the repository.

// The figures need no more precision.
#![allow(clippy::cast_precision_loss)]

pub mod contenders;
pub mod measure;
pub mod namespace;
pub mod process;
pub mod traffic;
pub mod wireguard_go;

use std::{io, net::SocketAddr};

use namespace::NetworkNamespace;

/// Two namespaces and the link between them.
pub struct Pair {
    pub left: NetworkNamespace,
    pub right: NetworkNamespace,
}

/// One end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairEnd {
    Left,
    Right,
}

impl PairEnd {
    /// The last number of its addresses: 1 or 2.
    pub fn number(self) -> u8 {
        if self == Self::Left { 1 } else { 2 }
    }

    /// Its address on the link.
    pub fn outside(self, v6: bool, port: u16) -> SocketAddr {
        let number = self.number();
        let address = if v6 {
            format!("2001:db8::{number}")
        } else {
            format!("192.0.2.{number}")
        };
        SocketAddr::new(
            address
                .parse()
                .unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into()),
            port,
        )
    }

    /// Its address inside the tunnel.
    pub fn inside(self, v6: bool, port: u16) -> SocketAddr {
        let number = self.number();
        let address = if v6 {
            format!("fd99::{number}")
        } else {
            format!("10.99.0.{number}")
        };
        SocketAddr::new(
            address
                .parse()
                .unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into()),
            port,
        )
    }

    #[must_use]
    pub fn other(self) -> Self {
        if self == Self::Left {
            Self::Right
        } else {
            Self::Left
        }
    }
}

impl Pair {
    /// Creates both namespaces and the link.
    pub fn new() -> io::Result<Self> {
        let (left, right) = (NetworkNamespace::new()?, NetworkNamespace::new()?);
        left.ip(&format!(
            "link add wire type veth peer name wire netns {}",
            right.path()
        ))?;
        let pair = Self { left, right };
        for end in [PairEnd::Left, PairEnd::Right] {
            let number = end.number();
            pair.end(end).ip(&format!(
                "link set lo up\nlink set wire up\naddress add 192.0.2.{number}/24 dev wire\naddress add 2001:db8::{number}/64 dev wire nodad"
            ))?;
        }
        Ok(pair)
    }

    /// The namespace of one end.
    pub fn end(&self, end: PairEnd) -> &NetworkNamespace {
        if end == PairEnd::Left {
            &self.left
        } else {
            &self.right
        }
    }

    /// Gives the tunnel device of one end its addresses and MTU.
    pub fn address(&self, end: PairEnd, device: &str, mtu: u16) -> io::Result<()> {
        let number = end.number();
        self.end(end).ip(&format!(
            "link set {device} mtu {mtu} up\naddress replace 10.99.0.{number}/24 dev {device}\naddress replace fd99::{number}/64 dev {device} nodad"
        ))
    }
}
