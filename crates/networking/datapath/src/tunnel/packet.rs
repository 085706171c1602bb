//! Reads the headers of IP packets: addresses, flow, length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol numbers (IANA).
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// Flags of a TCP header.
pub(super) mod tcp_flag {
    pub(in crate::tunnel) const FIN: u8 = 0x01;
    pub(in crate::tunnel) const PSH: u8 = 0x08;
    pub(in crate::tunnel) const ACK: u8 = 0x10;
    pub(in crate::tunnel) const CWR: u8 = 0x80;
}

pub(super) const IPV4_HEADER: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;

/// The flow of a packet. Ports are 0 for protocols without ports, and in fragments: only the first
/// fragment has ports, but all fragments of a packet must belong to one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
}

/// The header of a valid IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHeader {
    pub(super) flow: Flow,
    /// Offset of the transport header, or of IPv6's extension headers.
    pub(super) transport: usize,
    /// Length of the packet in bytes without padding.
    pub(super) length: usize,
    pub(super) fragment: bool,
}

/// Reads the header of an IP packet. All offsets and lengths are within the bytes.
pub(super) fn parse_header(packet: &[u8]) -> Option<PacketHeader> {
    match packet.first()? >> 4 {
        4 => parse_v4(packet),
        6 => parse_v6(packet),
        _ => None,
    }
}

pub(super) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn parse_v4(packet: &[u8]) -> Option<PacketHeader> {
    let header: &[u8; IPV4_HEADER] = packet.first_chunk()?;
    let transport = usize::from(header[0] & 0x0f) * 4;
    let length = usize::from(read_u16(header, 2)?);
    if transport < IPV4_HEADER || length < transport || length > packet.len() {
        return None;
    }
    // The flag "more fragments" and the fragment offset.
    let fragment = read_u16(header, 6)? & 0x3fff != 0;
    let addresses = (
        Ipv4Addr::from_bits(read_u32(header, 12)?),
        Ipv4Addr::from_bits(read_u32(header, 16)?),
    );
    let addresses = (addresses.0.into(), addresses.1.into());
    Some(PacketHeader {
        flow: packet_flow(
            addresses,
            header[9],
            packet.get(transport..length)?,
            fragment,
        ),
        transport,
        length,
        fragment,
    })
}

fn parse_v6(packet: &[u8]) -> Option<PacketHeader> {
    const FRAGMENT: u8 = 44;
    let header: &[u8; IPV6_HEADER] = packet.first_chunk()?;
    let length = IPV6_HEADER + usize::from(read_u16(header, 4)?);
    if length > packet.len() {
        return None;
    }
    let fragment = header[6] == FRAGMENT;
    let flow = packet_flow(
        (v6_address(header, 8)?, v6_address(header, 24)?),
        header[6],
        packet.get(IPV6_HEADER..length)?,
        fragment,
    );
    Some(PacketHeader {
        flow,
        transport: IPV6_HEADER,
        length,
        fragment,
    })
}

fn v6_address(header: &[u8; IPV6_HEADER], at: usize) -> Option<IpAddr> {
    let bytes = *header.get(at..)?.first_chunk::<16>()?;
    Some(IpAddr::V6(Ipv6Addr::from(bytes)))
}

fn packet_flow(
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    transport: &[u8],
    fragment: bool,
) -> Flow {
    let has_ports = !fragment && matches!(protocol, TCP | UDP);
    let [source_port, destination_port] = if has_ports {
        [0, 2].map(|at| read_u16(transport, at).unwrap_or(0))
    } else {
        [0, 0]
    };
    Flow {
        source,
        destination,
        protocol,
        source_port,
        destination_port,
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
pub(super) mod tests {
    use liqo_byte_mutations::mutated;
    use proptest::prelude::*;

    use super::{super::checksum::PartialChecksum, *};

    /// Builds packets with valid checksums.
    #[derive(Clone, Debug)]
    pub(in crate::tunnel) struct Make {
        pub(in crate::tunnel) flow: Flow,
        pub(in crate::tunnel) flags: u8,
        pub(in crate::tunnel) sequence: u32,
        pub(in crate::tunnel) options: Vec<u8>,
        pub(in crate::tunnel) ttl: u8,
        pub(in crate::tunnel) payload: Vec<u8>,
    }

    impl Make {
        pub(in crate::tunnel) fn tcp4(payload: &[u8]) -> Self {
            let flow = Flow {
                source: "10.1.0.5".parse().unwrap(),
                destination: "10.2.0.7".parse().unwrap(),
                protocol: TCP,
                source_port: 40_000,
                destination_port: 80,
            };
            let options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
            Self {
                flow,
                flags: tcp_flag::ACK,
                sequence: 1000,
                options,
                ttl: 63,
                payload: payload.to_vec(),
            }
        }

        pub(in crate::tunnel) fn tcp6(payload: &[u8]) -> Self {
            Self::tcp4(payload).v6()
        }

        pub(in crate::tunnel) fn udp4(payload: &[u8]) -> Self {
            let mut make = Self::tcp4(payload);
            make.flow.protocol = UDP;
            make
        }

        pub(in crate::tunnel) fn v6(mut self) -> Self {
            self.flow.source = "fd00:1::5".parse().unwrap();
            self.flow.destination = "fd00:2::7".parse().unwrap();
            self
        }

        pub(in crate::tunnel) fn bytes(&self) -> Vec<u8> {
            let mut transport = [
                self.flow.source_port.to_be_bytes(),
                self.flow.destination_port.to_be_bytes(),
            ]
            .concat();
            let checksum_at = if self.flow.protocol == TCP {
                transport.extend(self.sequence.to_be_bytes());
                transport.extend(77u32.to_be_bytes());
                transport.extend([
                    ((20 + self.options.len()) as u8 / 4) << 4,
                    self.flags,
                    1,
                    0,
                    0,
                    0,
                    0,
                    0,
                ]);
                transport.extend(&self.options);
                16
            } else {
                transport.extend((8 + self.payload.len() as u16).to_be_bytes());
                transport.extend([0, 0]);
                6
            };
            transport.extend(&self.payload);
            let pseudo = PartialChecksum::pseudo_header(
                self.flow.source,
                self.flow.destination,
                self.flow.protocol,
                transport.len(),
            );
            let checksum = pseudo.add(&transport).checksum();
            transport[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
            let mut packet = match (self.flow.source, self.flow.destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    let mut header = vec![0x45, 0];
                    header.extend((20 + transport.len() as u16).to_be_bytes());
                    header.extend([0, 9, 0x40, 0, self.ttl, self.flow.protocol, 0, 0]);
                    header.extend(source.octets());
                    header.extend(destination.octets());
                    let checksum = PartialChecksum::of_bytes(&header).checksum();
                    header[10..12].copy_from_slice(&checksum.to_be_bytes());
                    header
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    let mut header = vec![0x60, 0, 0, 0];
                    header.extend((transport.len() as u16).to_be_bytes());
                    header.extend([self.flow.protocol, self.ttl]);
                    header.extend(source.octets());
                    header.extend(destination.octets());
                    header
                }
                _ => unreachable!(),
            };
            packet.extend(transport);
            packet
        }
    }

    /// Packets of each protocol and family with a few faults.
    pub(in crate::tunnel) fn mutated_packets() -> impl Strategy<Value = Vec<u8>> {
        let makes = [Make::tcp4, Make::tcp6, Make::udp4, |payload: &[u8]| {
            Make::udp4(payload).v6()
        }];
        let makes = prop::sample::select(makes.to_vec());
        mutated((makes, 0..300_usize).prop_map(|(make, length)| make(&vec![7; length]).bytes()))
    }

    /// Whether all checksums of a packet are valid.
    pub(in crate::tunnel) fn is_intact(packet: &[u8]) -> bool {
        let header = parse_header(packet).unwrap();
        let transport = &packet[header.transport..header.length];
        let pseudo = PartialChecksum::pseudo_header(
            header.flow.source,
            header.flow.destination,
            header.flow.protocol,
            transport.len(),
        );
        let ip = header.flow.source.is_ipv6()
            || PartialChecksum::of_bytes(&packet[..header.transport]).checksum() == 0;
        ip && pseudo.add(transport).checksum() == 0
    }

    #[test]
    fn a_flow_is_read_from_tcp_and_udp_in_both_families() {
        for make in [
            Make::tcp4(b"x"),
            Make::tcp6(b"x"),
            Make::udp4(b"x"),
            Make::udp4(b"x").v6(),
        ] {
            let bytes = make.bytes();
            let header = parse_header(&bytes).unwrap();
            assert_eq!(header.flow, make.flow);
            assert_eq!(header.length, bytes.len());
            assert!(is_intact(&bytes));
        }
    }

    #[test]
    fn padding_is_not_part_of_the_packet() {
        let mut bytes = Make::tcp4(b"x").bytes();
        let length = bytes.len();
        bytes.resize(length + 15, 0);
        assert_eq!(parse_header(&bytes).unwrap().length, length);
    }

    #[test]
    fn all_fragments_of_a_packet_belong_to_one_flow() {
        let mut first = Make::udp4(b"x").bytes();
        first[6] = 0x20;
        let mut second = first.clone();
        second[6] = 0;
        second[7] = 185;
        second[20..24].copy_from_slice(b"data");
        assert_eq!(
            parse_header(&first).unwrap().flow,
            parse_header(&second).unwrap().flow
        );
        assert!(parse_header(&first).unwrap().fragment);
    }

    #[test]
    fn a_truncated_packet_is_refused() {
        for bytes in [Make::tcp4(b"hello").bytes(), Make::tcp6(b"hello").bytes()] {
            for length in 0..bytes.len() {
                assert_eq!(parse_header(&bytes[..length]), None, "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), version in 0u8..8) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | version << 4;
            }
            if let Some(header) = parse_header(&bytes) {
                prop_assert!(header.transport <= header.length && header.length <= bytes.len());
            }
        }

        #[test]
        fn a_mutated_packet_is_refused_or_read_within_its_bytes(bytes in mutated_packets()) {
            if let Some(header) = parse_header(&bytes) {
                prop_assert!(header.transport <= header.length && header.length <= bytes.len());
                prop_assert!(header.length <= usize::from(u16::MAX) + IPV6_HEADER);
                let has_ports = matches!(header.flow.protocol, TCP | UDP) && !header.fragment;
                prop_assert!(has_ports || (header.flow.source_port, header.flow.destination_port) == (0, 0));
            }
            // No packet is taken for a question between the ends of a tunnel.
            prop_assert!(parse_header(&bytes).is_none() || super::super::probe::TunnelProbe::from_packet(&bytes).is_none());
        }
    }
}
