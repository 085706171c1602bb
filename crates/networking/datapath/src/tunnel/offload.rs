//! The header before each packet on the TUN device (`virtio_net_hdr`): which work the writer left
//! to the reader.
//!
//! The kernel passes packets of up to 64 KiB that must be cut into segments, and accepts packets of
//! that size. This makes a tunnel in user space fast: one call and one pass through the kernel's
//! network stack for about fifty packets on the wire.

/// Default length of the header in bytes.
pub(super) const LENGTH: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;

/// The kind of segments of a large packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentKind {
    /// The packet is not cut.
    None,
    Tcp4,
    Tcp6,
    /// UDP datagrams (`UDP_SEGMENT`) of either family.
    Udp,
}

impl SegmentKind {
    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tcp4 => 1,
            Self::Tcp6 => 4,
            Self::Udp => 5,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::None, Self::Tcp4, Self::Tcp6, Self::Udp]
            .into_iter()
            .find(|segments| segments.number() == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffloadHeader {
    pub(super) segments: SegmentKind,
    /// Payload of each segment but the last, in bytes.
    pub(super) size: u16,
    /// Length of all headers together, in bytes.
    pub(super) headers: u16,
    /// Set if the checksum field holds only the sum of the pseudo header: where the summed bytes
    /// begin, and the offset of the field from there.
    pub(super) checksum: Option<(u16, u16)>,
}

impl OffloadHeader {
    /// Nothing is left to do.
    pub(super) const NONE: Self = Self {
        segments: SegmentKind::None,
        size: 0,
        headers: 0,
        checksum: None,
    };

    /// Splits what was read from the device into header and packet.
    pub(super) fn split_header(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, packet) = bytes.split_first_chunk::<LENGTH>()?;
        let (words, _) = header.as_chunks();
        let [[flags, segments], headers, size, start, offset] = words else {
            return None;
        };
        let [headers, size, start, offset] =
            [headers, size, start, offset].map(|word| u16::from_ne_bytes(*word));
        let checksum = (flags & NEEDS_CHECKSUM != 0).then_some((start, offset));
        Some((
            Self {
                segments: SegmentKind::from_number(*segments)?,
                headers,
                size,
                checksum,
            },
            packet,
        ))
    }

    /// The header to write before the packet.
    pub(super) fn bytes(self) -> [u8; LENGTH] {
        let (start, offset) = self.checksum.unwrap_or_default();
        let flags = if self.checksum.is_some() {
            NEEDS_CHECKSUM
        } else {
            0
        };
        let numbers = [self.headers, self.size, start, offset].map(u16::to_ne_bytes);
        let mut bytes = [0; LENGTH];
        bytes[0] = flags;
        bytes[1] = self.segments.number();
        bytes[2..].copy_from_slice(numbers.as_flattened());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for segments in [
            SegmentKind::None,
            SegmentKind::Tcp4,
            SegmentKind::Tcp6,
            SegmentKind::Udp,
        ] {
            for checksum in [None, Some((20, 16))] {
                let offload = OffloadHeader {
                    segments,
                    size: 1360,
                    headers: 52,
                    checksum,
                };
                let bytes = [&offload.bytes()[..], b"packet"].concat();
                assert_eq!(
                    OffloadHeader::split_header(&bytes),
                    Some((offload, &b"packet"[..]))
                );
            }
        }
    }

    #[test]
    fn a_kind_of_segments_that_was_not_asked_for_is_refused() {
        let mut bytes = OffloadHeader::NONE.bytes();
        bytes[1] = 3;
        assert_eq!(OffloadHeader::split_header(&bytes), None);
        assert_eq!(OffloadHeader::split_header(&bytes[..9]), None);
    }
}
