//! Addresses of relays: they are on the loopback device, next to the tunnel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whether an address is that of a relay: remotes are never on the loopback device.
pub fn is_relay(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The loopback address of the tunnel's family, with a port that the kernel chooses.
pub(super) fn loopback_for(tunnel: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if tunnel.is_ipv4() {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv6Addr::LOCALHOST.into()
    };
    SocketAddr::new(ip, 0)
}
