//! Where the data path is tried and measured: two network namespaces with one link between them, as two gateways with the world
//! between them.
//!
//! Namespaces have no names: the kernel removes them, with everything in them, when this process ends, however it ends. Needs root
//! and the program `ip`.

// Figures, not accounts.
#![allow(clippy::cast_precision_loss)]

pub mod contenders;
pub mod measure;
pub mod namespace;
pub mod process;
pub mod traffic;
pub mod wireguard_go;

use std::{io, net::SocketAddr};

use namespace::Namespace;

/// Two namespaces and a link between them. The left one is `192.0.2.1` and `2001:db8::1` there, the right one
/// `192.0.2.2` and `2001:db8::2`.
pub struct Pair {
    /// One end.
    pub left: Namespace,
    /// The other end.
    pub right: Namespace,
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Number 1.
    Left,
    /// Number 2.
    Right,
}

impl End {
    /// 1 or 2: the last number of its addresses.
    pub fn number(self) -> u8 {
        if self == Self::Left { 1 } else { 2 }
    }

    /// Its address on the link.
    pub fn outside(self, v6: bool, port: u16) -> SocketAddr {
        let number = self.number();
        let address = if v6 { format!("2001:db8::{number}") } else { format!("192.0.2.{number}") };
        SocketAddr::new(address.parse().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into()), port)
    }

    /// Its address inside the tunnel.
    pub fn inside(self, v6: bool, port: u16) -> SocketAddr {
        let number = self.number();
        let address = if v6 { format!("fd99::{number}") } else { format!("10.99.0.{number}") };
        SocketAddr::new(address.parse().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into()), port)
    }

    /// The one across.
    #[must_use]
    pub fn other(self) -> Self {
        if self == Self::Left { Self::Right } else { Self::Left }
    }
}

impl Pair {
    /// Makes both namespaces and the link, whose ends are both named `wire`.
    pub fn new() -> io::Result<Self> {
        let (left, right) = (Namespace::new()?, Namespace::new()?);
        left.ip(&format!("link add wire type veth peer name wire netns {}", right.path()))?;
        let pair = Self { left, right };
        for end in [End::Left, End::Right] {
            let number = end.number();
            pair.end(end).ip(&format!(
                "link set lo up\nlink set wire up\naddress add 192.0.2.{number}/24 dev wire\naddress add 2001:db8::{number}/64 dev wire nodad"
            ))?;
        }
        Ok(pair)
    }

    /// The namespace of one end.
    pub fn end(&self, end: End) -> &Namespace {
        if end == End::Left { &self.left } else { &self.right }
    }

    /// Gives the tunnel's device of one end its addresses inside.
    pub fn address(&self, end: End, device: &str, mtu: u16) -> io::Result<()> {
        let number = end.number();
        self.end(end).ip(&format!(
            "link set {device} mtu {mtu} up\naddress replace 10.99.0.{number}/24 dev {device}\naddress replace fd99::{number}/64 dev {device} nodad"
        ))
    }
}
