//! Direct paths: packets go to a remote that is otherwise reached through another peer, the broker.
//! Pure.
//!
//! The kernels of both ends see what they see when the broker forwards packets. On the way, packets
//! have the addresses that they would have there: the sender translates the destination, the
//! receiver the source.
//!
//! ```text
//!   customer's device          on the way                 provider's device
//!   source       c at broker   c at broker   translated   c at provider
//!   destination  p at customer translated    p at broker  p at broker
//! ```
//!
//! Both ends use a path only while the other end answers probes that name the same broker: an end
//! without the path does not answer.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use liqo_network_model::{Here, PrefixMap, There};

use super::{
    checksum::PartialChecksum,
    packet::{self, IPV4_HEADER, IPV6_HEADER, TCP, UDP},
};

/// The direct path to a remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectPathConfig {
    /// Names the broker: the same number at both ends.
    pub number: u32,
    /// The remote's prefixes as they appear here, and at the broker.
    pub prefixes: PrefixMap,
    pub local: LocalAddresses,
}

/// The addresses here that may use a direct path, as the broker sees them. What other addresses
/// send goes through the broker. What arrives for them on the path is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddresses {
    /// At the customer, everything of its own. Not what it passes on from other clusters: its way
    /// leads through two brokers.
    Prefixes(Vec<IpNet>),
    /// At the provider, the customer's pods.
    Pods(Arc<BTreeSet<IpAddr>>),
}

impl DirectPathConfig {
    pub(super) fn admits(&self, address: IpAddr) -> bool {
        match &self.local {
            LocalAddresses::Prefixes(prefixes) => {
                prefixes.iter().any(|prefix| prefix.contains(&address))
            }
            LocalAddresses::Pods(pods) => pods.contains(&address),
        }
    }

    /// The token of a probe: only an end with this path answers it.
    pub(super) fn probe_token(&self, random: u32) -> u64 {
        u64::from(self.number) << 32 | u64::from(random)
    }

    /// Whether the token of a probe names this path.
    pub(super) fn is_named_by(&self, token: u64) -> bool {
        token >> 32 == u64::from(self.number)
    }

    /// Translates the destination of a packet that leaves. `None` if it is not the remote's, or the
    /// packet is malformed.
    pub(super) fn translate_outgoing(&self, packet: &mut [u8]) -> Option<()> {
        translate_packet(packet, AddressSide::Destination, &|address| {
            Some(self.prefixes.to_there(Here(address))?.0)
        })
    }

    /// Translates the source of a packet that arrived. `None` if it is not the remote's, or the
    /// packet is malformed.
    pub(super) fn translate_incoming(&self, packet: &mut [u8]) -> Option<()> {
        translate_packet(packet, AddressSide::Source, &|address| {
            Some(self.prefixes.to_here(There(address))?.0)
        })
    }
}

/// The number of probes in a row that must be answered before packets take the path, and unanswered
/// before they leave it.
const PROBES: usize = 4;

/// Whether packets take a path that they took before, or not.
pub(super) fn is_used(was_used: bool, answered_in_a_row: usize, unanswered: usize) -> bool {
    if was_used {
        unanswered < PROBES
    } else {
        answered_in_a_row >= PROBES && unanswered < PROBES
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressSide {
    Source,
    Destination,
}

impl AddressSide {
    fn other(self) -> Self {
        match self {
            Self::Source => Self::Destination,
            Self::Destination => Self::Source,
        }
    }

    /// Offset of the address in an IP header.
    fn offset(self, is_v4: bool) -> usize {
        match (self, is_v4) {
            (Self::Source, true) => 12,
            (Self::Destination, true) => 16,
            (Self::Source, false) => 8,
            (Self::Destination, false) => 24,
        }
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;
/// Length of the header of an ICMP error, before the packet that it is about.
const ICMP_HEADER: usize = 8;

/// Replaces one address of a packet, and of the packet that an ICMP error is about, where it is on
/// the other side. Keeps checksums as right or wrong as they were. `None` if the address has no
/// translation; then the packet is as before.
fn translate_packet(
    packet: &mut [u8],
    side: AddressSide,
    translate: &impl Fn(IpAddr) -> Option<IpAddr>,
) -> Option<()> {
    replace_address(packet, side, translate)?;
    let Some((at, protocol)) = transport_header(packet) else {
        return Some(());
    };
    let is_error = match (protocol, packet.get(at)) {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
        (ICMP, Some(kind)) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        (ICMPV6, Some(kind)) => *kind < 128,
        _ => false,
    };
    let inner_at = at + ICMP_HEADER;
    if is_error && inner_at < packet.len() {
        let inner = packet.get_mut(inner_at..)?;
        let before = PartialChecksum::of_bytes(inner);
        if replace_address(inner, side.other(), translate).is_some() {
            let now = PartialChecksum::of_bytes(inner);
            adjust_checksum(packet, at + 2, before, now);
        }
    }
    Some(())
}

/// Replaces one address of a packet, whose end may be missing.
fn replace_address(
    packet: &mut [u8],
    side: AddressSide,
    translate: &impl Fn(IpAddr) -> Option<IpAddr>,
) -> Option<()> {
    let is_v4 = match packet.first()? >> 4 {
        4 if packet.len() >= IPV4_HEADER => true,
        6 if packet.len() >= IPV6_HEADER => false,
        _ => return None,
    };
    let at = side.offset(is_v4);
    let (before, now) = if is_v4 {
        let old: [u8; 4] = *packet.get(at..)?.first_chunk()?;
        let IpAddr::V4(new) = translate(old.into())? else {
            return None;
        };
        packet.get_mut(at..at + 4)?.copy_from_slice(&new.octets());
        (
            PartialChecksum::of_bytes(&old),
            PartialChecksum::of_bytes(&new.octets()),
        )
    } else {
        let old: [u8; 16] = *packet.get(at..)?.first_chunk()?;
        let IpAddr::V6(new) = translate(old.into())? else {
            return None;
        };
        packet.get_mut(at..at + 16)?.copy_from_slice(&new.octets());
        (
            PartialChecksum::of_bytes(&old),
            PartialChecksum::of_bytes(&new.octets()),
        )
    };
    if is_v4 {
        adjust_checksum(packet, 10, before, now);
    }
    if let Some((at, protocol)) = transport_header(packet) {
        match protocol {
            TCP => adjust_checksum(packet, at + 16, before, now),
            // Without a checksum, which IPv4 allows, it stays so.
            UDP | UDP_LITE if packet::read_u16(packet, at + 6) != Some(0) => {
                adjust_udp(packet, at + 6, before, now);
            }
            ICMPV6 => adjust_checksum(packet, at + 2, before, now),
            _ => {}
        }
    }
    Some(())
}

/// Offset and protocol of the transport header, if the packet is not a later fragment.
fn transport_header(packet: &[u8]) -> Option<(usize, u8)> {
    if packet.first()? >> 4 == 4 {
        transport_v4(packet)
    } else {
        transport_v6(packet)
    }
}

fn transport_v4(packet: &[u8]) -> Option<(usize, u8)> {
    let is_later_fragment = packet::read_u16(packet, 6)? & 0x1fff != 0;
    let at = usize::from(packet.first()? & 0x0f) * 4;
    (!is_later_fragment && at >= IPV4_HEADER).then_some((at, *packet.get(9)?))
}

/// Walks through the extension headers.
fn transport_v6(packet: &[u8]) -> Option<(usize, u8)> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION_OPTIONS: u8 = 60;
    let (mut at, mut protocol) = (IPV6_HEADER, *packet.get(6)?);
    loop {
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                protocol = *packet.get(at)?;
                at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
            }
            FRAGMENT => {
                if packet::read_u16(packet, at + 2)? >> 3 != 0 {
                    return None;
                }
                protocol = *packet.get(at)?;
                at += 8;
            }
            _ => return Some((at, protocol)),
        }
    }
}

/// Changes a checksum, if it is there, as the bytes changed that it covers (RFC 1624).
fn adjust_checksum(packet: &mut [u8], at: usize, before: PartialChecksum, now: PartialChecksum) {
    if let (Some(checksum), Some(field)) =
        (packet::read_u16(packet, at), packet.get_mut(at..at + 2))
    {
        field.copy_from_slice(
            &PartialChecksum::adjusted_checksum(checksum, before, now).to_be_bytes(),
        );
    }
}

/// The same for UDP, where 0 means that there is no checksum.
fn adjust_udp(packet: &mut [u8], at: usize, before: PartialChecksum, now: PartialChecksum) {
    adjust_checksum(packet, at, before, now);
    if let Some(field) = packet.get_mut(at..at + 2)
        && *field == [0, 0]
    {
        field.copy_from_slice(&[0xff, 0xff]);
    }
}

#[cfg(test)]
mod tests;
