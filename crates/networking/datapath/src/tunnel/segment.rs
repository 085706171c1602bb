//! Cuts large packets from the TUN device into segments that fit the path.

use bytes::{BufMut, BytesMut};

use super::{
    checksum::PartialChecksum,
    offload::{OffloadHeader, SegmentKind},
    packet::{self, PacketHeader, TCP, UDP, tcp_flag},
};

/// The bytes from the kernel are not a packet, or do not match their own header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedPacket;

/// Cuts a packet into segments, completes their checksums, and appends them to `segments`. Pads
/// each with zeros to a multiple of 16 bytes (WireGuard's rule, to hide exact lengths), but not
/// beyond the MTU. The segments are slices of `space`, whose memory is reused once they are
/// dropped.
pub(super) fn cut_segments(
    offload: OffloadHeader,
    packet: &[u8],
    header: &PacketHeader,
    mtu: u16,
    space: &mut BytesMut,
    segments: &mut Vec<BytesMut>,
) -> Result<(), MalformedPacket> {
    let mtu = usize::from(mtu);
    let packet = packet.get(..header.length).ok_or(MalformedPacket)?;
    if offload.segments == SegmentKind::None {
        space.reserve(packet.len() + 16);
        space.put_slice(packet);
        if let Some((start, offset)) = offload.checksum {
            complete_checksum(space, usize::from(start), usize::from(offset))?;
        }
        pad_packet(space, mtu);
        segments.push(space.split());
        return Ok(());
    }
    let cut = SegmentPlan::new(offload, packet, header)?;
    let (headers, payload) = packet.split_at(cut.headers);
    let parts = payload.len().div_ceil(cut.size);
    space.reserve(parts * (cut.headers + 16) + payload.len());
    for (number, part) in payload.chunks(cut.size).enumerate() {
        space.put_slice(headers);
        space.put_slice(part);
        cut.adjust_headers(space, number, number + 1 == parts)?;
        pad_packet(space, mtu);
        segments.push(space.split());
    }
    Ok(())
}

fn pad_packet(packet: &mut BytesMut, mtu: usize) {
    let length = packet.len().next_multiple_of(16).min(mtu).max(packet.len());
    packet.resize(length, 0);
}

fn complete_checksum(
    packet: &mut [u8],
    start: usize,
    offset: usize,
) -> Result<(), MalformedPacket> {
    let sum = PartialChecksum::of_bytes(packet.get(start..).ok_or(MalformedPacket)?).checksum();
    put_word(
        packet,
        start + offset,
        if sum == 0 && offset == 6 { 0xffff } else { sum },
    )
}

pub(super) fn put_word(packet: &mut [u8], at: usize, word: u16) -> Result<(), MalformedPacket> {
    packet
        .get_mut(at..at + 2)
        .ok_or(MalformedPacket)?
        .copy_from_slice(&word.to_be_bytes());
    Ok(())
}

/// Parameters for cutting one large packet.
struct SegmentPlan {
    header: PacketHeader,
    /// Offset of the TCP or UDP header, behind IPv6's extension headers, if there are any.
    transport: usize,
    protocol: u8,
    headers: usize,
    size: usize,
    sequence: u32,
    identification: u16,
}

impl SegmentPlan {
    fn new(
        offload: OffloadHeader,
        packet: &[u8],
        header: &PacketHeader,
    ) -> Result<Self, MalformedPacket> {
        let (start, _) = offload.checksum.ok_or(MalformedPacket)?;
        let transport = usize::from(start);
        let protocol = if offload.segments == SegmentKind::Udp {
            UDP
        } else {
            TCP
        };
        let length = match protocol {
            TCP => usize::from(packet.get(transport + 12).ok_or(MalformedPacket)? >> 4) * 4,
            _ => 8,
        };
        let headers = transport + length;
        let plausible = transport >= header.transport
            && length >= 8
            && headers < packet.len()
            && offload.size > 0
            && !header.fragment;
        if !plausible || (protocol == TCP && length < 20) {
            return Err(MalformedPacket);
        }
        Ok(Self {
            header: *header,
            transport,
            protocol,
            headers,
            size: usize::from(offload.size),
            sequence: packet::read_u32(packet, transport + 4).ok_or(MalformedPacket)?,
            identification: packet::read_u16(packet, 4).ok_or(MalformedPacket)?,
        })
    }

    /// Adjusts the headers of one segment, which were copied from the large packet.
    fn adjust_headers(
        &self,
        segment: &mut [u8],
        number: usize,
        last: bool,
    ) -> Result<(), MalformedPacket> {
        let total = segment.len();
        if self.header.flow.source.is_ipv4() {
            put_word(segment, 2, sixteen_bits(total)?)?;
            put_word(
                segment,
                4,
                self.identification.wrapping_add(sixteen_bits(number)?),
            )?;
            put_word(segment, 10, 0)?;
            let sum = PartialChecksum::of_bytes(
                segment
                    .get(..self.header.transport)
                    .ok_or(MalformedPacket)?,
            );
            put_word(segment, 10, sum.checksum())?;
        } else {
            put_word(segment, 4, sixteen_bits(total - packet::IPV6_HEADER)?)?;
        }
        let length = total - self.transport;
        let transport = segment.get_mut(self.transport..).ok_or(MalformedPacket)?;
        let checksum_at = if self.protocol == TCP {
            let sequence = self
                .sequence
                .wrapping_add(u32::try_from(number * self.size).map_err(|_| MalformedPacket)?);
            let header: &mut [u8; 20] = transport.first_chunk_mut().ok_or(MalformedPacket)?;
            header[4..8].copy_from_slice(&sequence.to_be_bytes());
            if !last {
                header[13] &= !(tcp_flag::FIN | tcp_flag::PSH);
            }
            if number > 0 {
                header[13] &= !tcp_flag::CWR;
            }
            16
        } else {
            put_word(transport, 4, sixteen_bits(length)?)?;
            6
        };
        put_word(transport, checksum_at, 0)?;
        let pseudo = PartialChecksum::pseudo_header(
            self.header.flow.source,
            self.header.flow.destination,
            self.protocol,
            length,
        );
        let sum = pseudo.add(transport).checksum();
        put_word(
            transport,
            checksum_at,
            if sum == 0 && self.protocol == UDP {
                0xffff
            } else {
                sum
            },
        )
    }
}

/// Fails for no segment: a segment is shorter than the packet, whose length fits 16 bits.
fn sixteen_bits(length: usize) -> Result<u16, MalformedPacket> {
    u16::try_from(length).map_err(|_| MalformedPacket)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::packet::tests::{Make, is_intact},
        *,
    };

    fn cut(
        offload: OffloadHeader,
        packet: &[u8],
        mtu: u16,
    ) -> Result<Vec<Vec<u8>>, MalformedPacket> {
        let header = packet::parse_header(packet).ok_or(MalformedPacket)?;
        let mut segments = Vec::new();
        cut_segments(
            offload,
            packet,
            &header,
            mtu,
            &mut BytesMut::new(),
            &mut segments,
        )?;
        Ok(segments.iter().map(|segment| segment.to_vec()).collect())
    }

    fn large(make: &Make, size: u16) -> OffloadHeader {
        let start = if make.flow.source.is_ipv4() { 20 } else { 40 };
        let (segments, offset) = match (make.flow.protocol, start) {
            (UDP, _) => (SegmentKind::Udp, 6),
            (_, 20) => (SegmentKind::Tcp4, 16),
            _ => (SegmentKind::Tcp6, 16),
        };
        OffloadHeader {
            segments,
            size,
            headers: 0,
            checksum: Some((start, offset)),
        }
    }

    fn without_padding(segment: &[u8]) -> &[u8] {
        &segment[..packet::parse_header(segment).unwrap().length]
    }

    #[test]
    fn only_the_last_segment_ends_the_stream() {
        let make = Make {
            flags: tcp_flag::ACK | tcp_flag::PSH | tcp_flag::FIN,
            ..Make::tcp4(&[7; 250])
        };
        let segments = cut(large(&make, 100), &make.bytes(), 1420).unwrap();
        let flags: Vec<_> = segments.iter().map(|segment| segment[33]).collect();
        assert_eq!(flags, [tcp_flag::ACK, tcp_flag::ACK, make.flags]);
    }

    #[test]
    fn only_the_first_segment_says_that_the_window_was_reduced() {
        let make = Make {
            flags: tcp_flag::ACK | tcp_flag::CWR,
            ..Make::tcp4(&[7; 250])
        };
        let segments = cut(large(&make, 100), &make.bytes(), 1420).unwrap();
        let flags: Vec<_> = segments.iter().map(|segment| segment[33]).collect();
        assert_eq!(flags, [make.flags, tcp_flag::ACK, tcp_flag::ACK]);
    }

    #[test]
    fn padding_ends_at_the_mtu() {
        let make = Make::tcp4(&[7; 100]);
        let length = make.bytes().len();
        assert_eq!(
            cut(OffloadHeader::NONE, &make.bytes(), 1420).unwrap()[0].len(),
            length.next_multiple_of(16)
        );
        let mtu = u16::try_from(length).unwrap() + 1;
        assert_eq!(
            cut(OffloadHeader::NONE, &make.bytes(), mtu).unwrap()[0].len(),
            length + 1
        );
        assert_eq!(
            cut(OffloadHeader::NONE, &make.bytes(), 68).unwrap()[0].len(),
            length
        );
    }

    #[test]
    fn a_checksum_that_the_kernel_left_open_is_completed() {
        for make in [
            Make::tcp4(b"hello"),
            Make::tcp6(b"hello"),
            Make::udp4(b"hello"),
            Make::udp4(b"hello").v6(),
        ] {
            let whole = make.bytes();
            let (start, offset) = large(&make, 1).checksum.unwrap();
            let mut open = whole.clone();
            let at = usize::from(start);
            let pseudo = PartialChecksum::pseudo_header(
                make.flow.source,
                make.flow.destination,
                make.flow.protocol,
                whole.len() - at,
            )
            .folded();
            put_word(&mut open, at + usize::from(offset), pseudo).unwrap();
            let offload = OffloadHeader {
                checksum: Some((start, offset)),
                ..OffloadHeader::NONE
            };
            assert_eq!(
                without_padding(&cut(offload, &open, 1420).unwrap()[0]),
                whole
            );
        }
    }

    #[test]
    fn the_memory_is_reused_when_the_segments_are_dropped() {
        let make = Make::tcp4(&vec![7; 30_000]);
        let (bytes, mut space, mut segments) =
            (make.bytes(), BytesMut::with_capacity(70_000), Vec::new());
        let place = space.as_ptr() as usize;
        for _ in 0..10 {
            let header = packet::parse_header(&bytes).unwrap();
            cut_segments(
                large(&make, 1300),
                &bytes,
                &header,
                1420,
                &mut space,
                &mut segments,
            )
            .unwrap();
            assert!((place..place + 70_000).contains(&(segments[0].as_ptr() as usize)));
            segments.clear();
        }
    }

    #[test]
    fn a_packet_that_does_not_match_its_offload_header_is_refused() {
        let make = Make::tcp4(&[7; 250]);
        let right = large(&make, 100);
        let wrong = [
            OffloadHeader { size: 0, ..right },
            OffloadHeader {
                checksum: None,
                ..right
            },
            OffloadHeader {
                checksum: Some((290, 16)),
                ..right
            },
            OffloadHeader {
                checksum: Some((4, 16)),
                ..right
            },
            OffloadHeader {
                segments: SegmentKind::None,
                checksum: Some((60_000, 60_000)),
                ..right
            },
        ];
        for offload in wrong {
            assert_eq!(
                cut(offload, &make.bytes(), 1420),
                Err(MalformedPacket),
                "{offload:?}"
            );
        }
    }

    fn any_packet() -> impl Strategy<Value = Make> {
        (
            0..4,
            proptest::collection::vec(any::<u8>(), 1..5000),
            any::<u32>(),
        )
            .prop_map(|(kind, payload, sequence)| {
                let make = match kind {
                    0 => Make::tcp4(&payload),
                    1 => Make::tcp6(&payload),
                    2 => Make::udp4(&payload),
                    _ => Make::udp4(&payload).v6(),
                };
                Make { sequence, ..make }
            })
    }

    proptest! {
        #[test]
        fn segments_are_whole_packets_that_carry_the_payload_in_order(make in any_packet(), size in 1u16..1400) {
            let segments = cut(large(&make, size), &make.bytes(), 1420).unwrap();
            let (mut payload, mut sequence) = (Vec::new(), make.sequence);
            for (number, segment) in segments.iter().enumerate() {
                prop_assert!(is_intact(segment));
                let header = packet::parse_header(segment).unwrap();
                prop_assert_eq!(header.flow, make.flow);
                let start = header.transport + if make.flow.protocol == TCP { 32 } else { 8 };
                if make.flow.protocol == TCP {
                    prop_assert_eq!(packet::read_u32(segment, header.transport + 4).unwrap(), sequence);
                }
                let part = &segment[start..header.length];
                prop_assert!(part.len() == usize::from(size) || number + 1 == segments.len());
                sequence = sequence.wrapping_add(u32::try_from(part.len()).unwrap());
                payload.extend_from_slice(part);
            }
            prop_assert_eq!(payload, make.payload);
        }

        #[test]
        fn any_description_of_any_packet_is_cut_or_refused(
            make in any_packet(), kind in 0u8..6, size in any::<u16>(), start in 0u16..2000, offset in 0u16..2000, noise in any::<[u8; 4]>(),
        ) {
            let mut header = [0; 10];
            header[0] = 1;
            header[1] = kind;
            header[4..6].copy_from_slice(&size.to_ne_bytes());
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..10].copy_from_slice(&offset.to_ne_bytes());
            let mut packet = make.bytes();
            for (at, byte) in noise.into_iter().enumerate() {
                packet[at * 7 % 40] ^= byte;
            }
            if let Some((offload, _)) = OffloadHeader::split_header(&header) {
                let _ = cut(offload, &packet, 1420);
            }
        }
    }
}
