//! Joins packets of a flow that arrive together, so that the kernel handles them as one.
//!
//! It joins what the kernel itself would join: consecutive packets that differ only in their
//! position in the stream. The kernel splits them again where necessary, with the same headers.
//! Packets of a flow never change their order.

use std::io::IoSlice;

use bytes::BytesMut;

use super::{
    checksum::PartialChecksum,
    offload::{LENGTH, OffloadHeader, SegmentKind},
    packet::{self, Flow, IPV4_HEADER, PacketHeader, TCP, UDP, tcp_flag},
    segment::put_word,
};

/// Maximum length of an IP packet.
const MAX_PACKET_LEN: usize = 65_535;

/// Maximum number of packets to join: the kernel accepts a bounded number of parts in one call.
const MAX_PACKETS: usize = 512;

/// Packets for the device, joined by flow.
#[derive(Default)]
pub(super) struct Coalescer {
    /// Whether the kernel accepts joined UDP datagrams (Linux 6.2 and later).
    udp: bool,
    packets: Vec<QueuedPacket>,
    groups: Vec<PacketGroup>,
}

struct QueuedPacket {
    packet: BytesMut,
    /// The next packet of the same group.
    next: Option<usize>,
}

/// Packets to write at once.
struct PacketGroup {
    flow: Flow,
    first: usize,
    last: usize,
    count: usize,
    /// No further packet may join.
    closed: bool,
    /// The checksum of the first packet was verified.
    verified: bool,
    shape: Option<PacketShape>,
    /// Length of the joined packet in bytes.
    length: usize,
}

/// The properties that decide whether packets may be joined.
#[derive(Clone, Copy)]
struct PacketShape {
    transport: usize,
    headers: usize,
    payload: usize,
    /// TCP only, as is the next one.
    sequence: u32,
    next_sequence: u32,
    /// The PSH flag: the receiver must not wait for more.
    push: bool,
}

impl Coalescer {
    pub(super) fn new(udp: bool) -> Self {
        Self {
            udp,
            ..Self::default()
        }
    }

    /// Adds a packet without padding.
    pub(super) fn push(&mut self, packet: BytesMut, header: &PacketHeader) {
        let shape =
            packet_shape(&packet, header).filter(|_| self.udp || header.flow.protocol == TCP);
        let index = self.packets.len();
        let length = packet.len();
        // Only the flow's last group: a packet must not overtake earlier ones.
        let latest = self
            .groups
            .iter_mut()
            .rev()
            .find(|group| group.flow == header.flow);
        let joined = match (latest, shape) {
            (Some(group), Some(shape)) => group
                .try_join(&mut self.packets, &packet, &shape, header)
                .then_some(group),
            _ => None,
        };
        if let Some(group) = joined
            && let Some(last) = self.packets.get_mut(group.last)
        {
            last.next = Some(index);
            group.last = index;
        } else {
            let closed = shape.is_none_or(|shape| shape.push);
            self.groups.push(PacketGroup {
                flow: header.flow,
                first: index,
                last: index,
                count: 1,
                closed,
                verified: false,
                shape,
                length,
            });
        }
        self.packets.push(QueuedPacket { packet, next: None });
    }

    /// Passes each group to `write` as the parts of one packet, and clears everything.
    pub(super) fn drain(&mut self, mut write: impl FnMut(&[IoSlice<'_>])) {
        for group in &self.groups {
            let offload = group.finish_headers(&mut self.packets);
            let header: [u8; LENGTH] = offload.bytes();
            let mut parts = Vec::with_capacity(group.count + 1);
            parts.push(IoSlice::new(&header));
            let (mut next, mut skip) = (Some(group.first), 0);
            while let Some(entry) = next.and_then(|index| self.packets.get(index)) {
                parts.push(IoSlice::new(entry.packet.get(skip..).unwrap_or_default()));
                skip = group.shape.map_or(0, |shape| shape.headers);
                next = entry.next;
            }
            write(&parts);
        }
        self.groups.clear();
        self.packets.clear();
    }
}

impl PacketGroup {
    /// Joins a packet, if it continues the group.
    fn try_join(
        &mut self,
        packets: &mut [QueuedPacket],
        packet: &[u8],
        new: &PacketShape,
        header: &PacketHeader,
    ) -> bool {
        let Some(mut shape) = self.shape.filter(|_| !self.closed) else {
            return false;
        };
        let (Some(first), true) = (packets.get(self.first), self.count < MAX_PACKETS) else {
            return false;
        };
        let fits = new.headers == shape.headers
            && new.payload <= shape.payload
            && self.length + new.payload <= MAX_PACKET_LEN;
        let follows = header.flow.protocol == UDP || new.sequence == shape.next_sequence;
        if !fits || !follows || !same_headers(&first.packet, packet, &shape, header) {
            return false;
        }
        // The kernel computes a new checksum, which must not hide a damaged packet.
        if !self.verified && !is_intact(&first.packet, shape.transport, header) {
            self.closed = true;
            return false;
        }
        self.verified = true;
        if !is_intact(packet, new.transport, header) {
            return false;
        }
        shape.next_sequence = new.next_sequence;
        shape.push = new.push;
        self.closed = new.push || new.payload < shape.payload;
        self.shape = Some(shape);
        self.count += 1;
        self.length += new.payload;
        true
    }

    /// Turns the headers of the first packet into those of the whole group.
    fn finish_headers(&self, packets: &mut [QueuedPacket]) -> OffloadHeader {
        let (Some(shape), Some(first)) = (
            self.shape.filter(|_| self.count > 1),
            packets.get_mut(self.first),
        ) else {
            return OffloadHeader::NONE;
        };
        let Some((ip, transport)) = first.packet.split_at_mut_checked(shape.transport) else {
            return OffloadHeader::NONE;
        };
        // Lengths were checked when the packets were joined.
        let length = self.length - shape.transport;
        let v4 = self.flow.source.is_ipv4();
        let (segments, checksum_at) = match self.flow.protocol {
            TCP if v4 => (SegmentKind::Tcp4, 16),
            TCP => (SegmentKind::Tcp6, 16),
            _ => (SegmentKind::Udp, 6),
        };
        if v4 {
            set_word(ip, 2, saturated(self.length));
            set_word(ip, 10, 0);
            let sum = PartialChecksum::of_bytes(ip).checksum();
            set_word(ip, 10, sum);
        } else {
            set_word(ip, 4, saturated(length));
        }
        if self.flow.protocol == UDP {
            set_word(transport, 4, saturated(length));
        }
        let pseudo = PartialChecksum::pseudo_header(
            self.flow.source,
            self.flow.destination,
            self.flow.protocol,
            length,
        );
        set_word(transport, checksum_at, pseudo.folded());
        if let Some(flags) = transport
            .get_mut(13)
            .filter(|_| self.flow.protocol == TCP && shape.push)
        {
            *flags |= tcp_flag::PSH;
        }
        OffloadHeader {
            segments,
            size: saturated(shape.payload),
            headers: saturated(shape.headers),
            checksum: Some((saturated(shape.transport), saturated(checksum_at))),
        }
    }
}

/// The shape of a packet, if it may be joined with others.
fn packet_shape(packet: &[u8], header: &PacketHeader) -> Option<PacketShape> {
    let transport = header.transport;
    // IPv4 options are rare, and some must not be copied.
    if header.fragment || (header.flow.source.is_ipv4() && transport != IPV4_HEADER) {
        return None;
    }
    let (headers, sequence, push) = match header.flow.protocol {
        TCP => {
            let length = usize::from(packet.get(transport + 12)? >> 4) * 4;
            let flags = packet.get(transport + 13)?;
            if length < 20 || flags & !tcp_flag::PSH != tcp_flag::ACK {
                return None;
            }
            (
                transport + length,
                packet::read_u32(packet, transport + 4)?,
                flags & tcp_flag::PSH != 0,
            )
        }
        UDP => {
            let whole =
                usize::from(packet::read_u16(packet, transport + 4)?) == header.length - transport;
            let checksum = packet::read_u16(packet, transport + 6)?;
            if !whole || checksum == 0 {
                return None;
            }
            (transport + 8, 0, false)
        }
        _ => return None,
    };
    let payload = header
        .length
        .checked_sub(headers)
        .filter(|payload| *payload > 0)?;
    let next_sequence = sequence.wrapping_add(u32::try_from(payload).ok()?);
    Some(PacketShape {
        transport,
        headers,
        payload,
        sequence,
        next_sequence,
        push,
    })
}

fn saturated(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// Sets a word of a header whose length was checked.
fn set_word(header: &mut [u8], at: usize, word: u16) {
    put_word(header, at, word).unwrap_or_default();
}

/// Whether two packets of a flow differ only in length, checksums, sequence number and
/// identification.
fn same_headers(first: &[u8], packet: &[u8], shape: &PacketShape, header: &PacketHeader) -> bool {
    let same = |from: usize, to: usize| {
        first
            .get(from..to)
            .is_some_and(|bytes| packet.get(from..to) == Some(bytes))
    };
    let ip = if header.flow.source.is_ipv4() {
        same(0, 2) && same(6, 10)
    } else {
        same(0, 4) && same(6, 8)
    };
    let transport = shape.transport;
    // TCP: acknowledgement and header length; window; urgent pointer and options.
    ip && (header.flow.protocol == UDP
        || (same(transport + 8, transport + 13)
            && same(transport + 14, transport + 16)
            && same(transport + 18, shape.headers)))
}

fn is_intact(packet: &[u8], transport: usize, header: &PacketHeader) -> bool {
    let payload = packet.get(transport..).unwrap_or_default();
    let sum = PartialChecksum::pseudo_header(
        header.flow.source,
        header.flow.destination,
        header.flow.protocol,
        payload.len(),
    );
    sum.add(payload).checksum() == 0
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{
            packet::tests::{Make, is_intact},
            segment::cut_segments,
        },
        *,
    };

    fn join(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut coalescer = Coalescer::new(true);
        for packet in packets {
            coalescer.push(
                BytesMut::from(&packet[..]),
                &packet::parse_header(packet).unwrap(),
            );
        }
        let mut written = Vec::new();
        coalescer
            .drain(|parts| written.push(parts.iter().flat_map(|part| part.to_vec()).collect()));
        assert!(coalescer.groups.is_empty() && coalescer.packets.is_empty());
        written
    }

    /// Splits joined packets as the kernel does.
    fn cut(written: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        for bytes in written {
            let (offload, packet) = OffloadHeader::split_header(bytes).unwrap();
            let header = packet::parse_header(packet).unwrap();
            assert_eq!(header.length, packet.len());
            cut_segments(
                offload,
                packet,
                &header,
                68,
                &mut BytesMut::new(),
                &mut segments,
            )
            .unwrap();
        }
        let length = |segment: &[u8]| packet::parse_header(segment).unwrap().length;
        segments
            .iter()
            .map(|segment| segment[..length(segment)].to_vec())
            .collect()
    }

    fn stream(make: &Make, sizes: &[usize]) -> Vec<Vec<u8>> {
        let mut make = make.clone();
        let part = |(number, size): (usize, &usize)| {
            make.payload = vec![number as u8; *size];
            let bytes = make.bytes();
            make.sequence = make.sequence.wrapping_add(*size as u32);
            bytes
        };
        sizes.iter().enumerate().map(part).collect()
    }

    #[test]
    fn a_stream_becomes_one_packet_in_both_protocols_and_families() {
        for make in [
            Make::tcp4(b""),
            Make::tcp6(b""),
            Make::udp4(b""),
            Make::udp4(b"").v6(),
        ] {
            let packets = stream(&make, &[1000, 1000, 1000, 300]);
            let written = join(&packets);
            assert_eq!(written.len(), 1, "{make:?}");
            let (offload, large) = OffloadHeader::split_header(&written[0]).unwrap();
            assert_eq!(offload.size, 1000);
            assert_eq!(usize::from(offload.headers), packets[0].len() - 1000);
            assert_eq!(large.len(), packets[0].len() + 2300);
            for (segment, packet) in cut(&written).iter().zip(&packets) {
                assert!(is_intact(segment));
                // The kernel numbers the segments on; that number means nothing where fragmenting
                // is forbidden.
                assert_eq!(segment[20..], packet[20..]);
            }
        }
    }

    #[test]
    fn a_shorter_packet_is_the_last_one() {
        assert_eq!(join(&stream(&Make::tcp4(b""), &[1000, 300, 300])).len(), 2);
        assert_eq!(join(&stream(&Make::udp4(b""), &[1000, 300, 1000])).len(), 2);
    }

    #[test]
    fn a_longer_packet_is_not_joined() {
        assert_eq!(join(&stream(&Make::tcp4(b""), &[1000, 1001])).len(), 2);
    }

    #[test]
    fn a_pushed_packet_is_the_last_one_and_the_whole_is_pushed() {
        let mut packets = stream(&Make::tcp4(b""), &[100]);
        let pushed = Make {
            flags: tcp_flag::ACK | tcp_flag::PSH,
            sequence: 1100,
            ..Make::tcp4(&[1; 100])
        };
        packets.push(pushed.bytes());
        packets.push(
            Make {
                sequence: 1200,
                ..Make::tcp4(&[2; 100])
            }
            .bytes(),
        );
        let written = join(&packets);
        assert_eq!(written.len(), 2);
        assert_eq!(written[0][LENGTH + 33], tcp_flag::ACK | tcp_flag::PSH);
        assert_eq!(written[1][LENGTH + 33], tcp_flag::ACK);
    }

    #[test]
    fn packets_that_differ_in_more_than_their_position_are_not_joined() {
        let first = Make::tcp4(&[1; 100]);
        let second = Make {
            sequence: 1100,
            ..first.clone()
        };
        assert_eq!(
            join(&[first.bytes(), second.bytes()]).len(),
            1,
            "the control"
        );
        let mut options = second.options.clone();
        options[11] += 1;
        let others = [
            Make {
                sequence: 1101,
                ..second.clone()
            },
            Make {
                sequence: 1000,
                ..second.clone()
            },
            Make {
                ttl: 62,
                ..second.clone()
            },
            Make {
                options,
                ..second.clone()
            },
            Make {
                options: Vec::new(),
                ..second.clone()
            },
            Make {
                flags: tcp_flag::ACK | tcp_flag::FIN,
                ..second.clone()
            },
            Make {
                flags: tcp_flag::ACK | tcp_flag::CWR,
                ..second.clone()
            },
            Make {
                flow: Flow {
                    source_port: 4,
                    ..second.flow
                },
                ..second.clone()
            },
            Make {
                payload: Vec::new(),
                ..second.clone()
            },
        ];
        for other in others {
            assert_eq!(join(&[first.bytes(), other.bytes()]).len(), 2, "{other:?}");
        }
        let acknowledgement = |packet: &mut [u8]| packet[31] += 1;
        let window = |packet: &mut [u8]| packet[35] += 1;
        let service = |packet: &mut [u8]| packet[1] += 4;
        let may_fragment = |packet: &mut [u8]| packet[6] = 0;
        for change in [acknowledgement, window, service, may_fragment] {
            let mut packet = second.bytes();
            change(&mut packet);
            fix_checksums(&mut packet);
            assert!(is_intact(&packet));
            assert_eq!(join(&[first.bytes(), packet]).len(), 2);
        }
    }

    fn fix_checksums(packet: &mut [u8]) {
        put_word(packet, 10, 0).unwrap();
        let sum = PartialChecksum::of_bytes(&packet[..20]).checksum();
        put_word(packet, 10, sum).unwrap();
        put_word(packet, 36, 0).unwrap();
        let flow = packet::parse_header(packet).unwrap().flow;
        let sum = PartialChecksum::pseudo_header(
            flow.source,
            flow.destination,
            flow.protocol,
            packet.len() - 20,
        )
        .add(&packet[20..]);
        put_word(packet, 36, sum.checksum()).unwrap();
    }

    #[test]
    fn a_damaged_packet_stays_damaged_and_alone() {
        for damaged in 0..3 {
            let mut packets = stream(&Make::tcp4(b""), &[100, 100, 100]);
            packets[damaged][80] ^= 1;
            let written = join(&packets);
            assert!(
                written
                    .iter()
                    .any(|bytes| bytes[LENGTH..] == packets[damaged][..]),
                "{damaged}"
            );
        }
    }

    #[test]
    fn flows_are_joined_apart_and_keep_their_order() {
        let (one, mut two) = (Make::tcp4(b""), Make::tcp4(b""));
        two.flow.source_port = 5;
        let (one, two) = (stream(&one, &[10; 6]), stream(&two, &[20; 6]));
        let mixed: Vec<_> = one
            .iter()
            .zip(&two)
            .flat_map(|(one, two)| [one.clone(), two.clone()])
            .collect();
        assert_eq!(join(&mixed).len(), 2);
    }

    #[test]
    fn a_packet_never_overtakes_another_of_its_flow() {
        let first = Make::tcp4(&[1; 100]);
        let fin = Make {
            flags: tcp_flag::ACK | tcp_flag::FIN,
            sequence: 1100,
            payload: Vec::new(),
            ..first.clone()
        };
        let late = Make {
            sequence: 1100,
            ..first.clone()
        };
        let packets = [first.bytes(), fin.bytes(), late.bytes()];
        let written = join(&packets);
        assert_eq!(
            written
                .iter()
                .map(|bytes| bytes[LENGTH..].to_vec())
                .collect::<Vec<_>>(),
            packets
        );
    }

    #[test]
    fn no_packet_exceeds_the_maximum_length_of_ip() {
        let written = join(&stream(&Make::tcp4(b""), &[1400; 100]));
        assert_eq!(written.len(), 3);
        assert!(
            written
                .iter()
                .all(|bytes| bytes.len() - LENGTH <= MAX_PACKET_LEN)
        );
    }

    #[test]
    fn datagrams_stay_apart_where_the_kernel_does_not_accept_joined_ones() {
        let packets = stream(&Make::udp4(b""), &[100, 100]);
        let mut coalescer = Coalescer::new(false);
        for packet in &packets {
            coalescer.push(
                BytesMut::from(&packet[..]),
                &packet::parse_header(packet).unwrap(),
            );
        }
        let mut written = 0;
        coalescer.drain(|_| written += 1);
        assert_eq!(written, 2);
    }

    proptest! {
        #[test]
        fn joined_packets_split_into_the_originals(
            parts in proptest::collection::vec((0usize..4, 1usize..600, any::<bool>(), 0u8..20), 1..60),
        ) {
            let mut makes = [Make::tcp4(b""), Make::tcp6(b""), Make::udp4(b""), Make::udp4(b"").v6()];
            let mut packets = Vec::new();
            for (which, size, push, kind) in parts {
                let make = &mut makes[which];
                // Mostly of one size, so that much is joined.
                make.payload = vec![kind; if kind < 15 { 500 } else { size }];
                make.flags = if push { tcp_flag::ACK | tcp_flag::PSH } else { tcp_flag::ACK };
                make.ttl = if kind == 19 { 9 } else { 63 };
                packets.push(make.bytes());
                make.sequence = make.sequence.wrapping_add(make.payload.len() as u32);
            }
            let segments = cut(&join(&packets));
            prop_assert_eq!(segments.len(), packets.len());
            let of_flow = |list: &[Vec<u8>], flow: Flow| -> Vec<Vec<u8>> {
                let mut mine: Vec<_> = list.iter().filter(|packet| packet::parse_header(packet).unwrap().flow == flow).cloned().collect();
                // The identification of IPv4 and with it its checksum are new.
                for packet in mine.iter_mut().filter(|packet| packet[0] >> 4 == 4) {
                    packet[4..6].fill(0);
                    packet[10..12].fill(0);
                }
                mine
            };
            for make in &makes {
                prop_assert_eq!(of_flow(&segments, make.flow), of_flow(&packets, make.flow));
            }
            prop_assert!(segments.iter().all(|segment| is_intact(segment)));
        }

        #[test]
        fn any_packets_are_accepted_without_a_panic(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 20..90), 1..8), version in any::<bool>()) {
            let mut coalescer = Coalescer::new(true);
            for mut packet in packets {
                let length = packet.len() as u16;
                if version {
                    packet[0] = 0x45;
                    packet[2..4].copy_from_slice(&length.to_be_bytes());
                    packet[6..8].fill(0);
                    packet[9] = if packet[9] & 1 == 0 { TCP } else { UDP };
                } else {
                    packet[0] = 0x60;
                    packet[4..6].copy_from_slice(&length.saturating_sub(40).to_be_bytes());
                    packet[6] = if packet[6] & 1 == 0 { TCP } else { UDP };
                }
                if let Some(header) = packet::parse_header(&packet) {
                    coalescer.push(BytesMut::from(&packet[..header.length]), &header);
                }
            }
            coalescer.drain(|parts| assert!(parts.len() > 1));
        }

        #[test]
        fn mutated_packets_are_joined_to_no_more_than_a_packet_may_have(packets in proptest::collection::vec(packet::tests::mutated_packets(), 1..12)) {
            let mut coalescer = Coalescer::new(true);
            for packet in &packets {
                if let Some(header) = packet::parse_header(packet) {
                    coalescer.push(BytesMut::from(&packet[..header.length]), &header);
                }
            }
            let (mut written, mut longest) = (0, 0);
            coalescer.drain(|parts| {
                let length: usize = parts.iter().map(|part| part.len()).sum();
                (written, longest) = (written + length, longest.max(length));
            });
            let arrived: usize = packets.iter().map(Vec::len).sum();
            prop_assert!(longest <= MAX_PACKET_LEN.max(packets.iter().map(Vec::len).max().unwrap()) + LENGTH, "{}", longest);
            prop_assert!(written <= arrived + packets.len() * LENGTH, "{} of {}", written, arrived);
        }
    }
}
