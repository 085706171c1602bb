//! The header that stands before each packet on the TUN device (`virtio_net_hdr`): which work the writer left to the reader.
//!
//! The kernel hands over packets of up to 64 KiB, to be cut into segments, and takes such packets. That is what makes
//! a tunnel in user space fast: one call, one walk through the kernel's network stack, for some fifty packets on the wire.

/// Its length as the kernel uses it unless told otherwise.
pub(super) const LENGTH: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;

/// What a large packet is to be cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segments {
    /// It is one packet.
    None,
    Tcp4,
    Tcp6,
    /// UDP datagrams (`UDP_SEGMENT`), either family.
    Udp,
}

impl Segments {
    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tcp4 => 1,
            Self::Tcp6 => 4,
            Self::Udp => 5,
        }
    }

    fn of(number: u8) -> Option<Self> {
        [Self::None, Self::Tcp4, Self::Tcp6, Self::Udp].into_iter().find(|segments| segments.number() == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offload {
    pub(super) segments: Segments,
    /// How much payload each segment but the last has.
    pub(super) size: u16,
    /// All headers together.
    pub(super) headers: u16,
    /// The checksum holds the sum of the pseudo header only: from where it is to be completed, and where it stands, counted from there.
    pub(super) checksum: Option<(u16, u16)>,
}

impl Offload {
    /// Nothing is left to do.
    pub(super) const NONE: Self = Self { segments: Segments::None, size: 0, headers: 0, checksum: None };

    /// Splits what was read from the device into header and packet.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, packet) = bytes.split_first_chunk::<LENGTH>()?;
        let number = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let checksum = (header[0] & NEEDS_CHECKSUM != 0).then(|| (number(6), number(8)));
        Some((Self { segments: Segments::of(header[1])?, headers: number(2), size: number(4), checksum }, packet))
    }

    /// What is written before the packet.
    pub(super) fn bytes(self) -> [u8; LENGTH] {
        let (start, offset) = self.checksum.unwrap_or_default();
        let mut bytes = [0; LENGTH];
        bytes[0] = if self.checksum.is_some() { NEEDS_CHECKSUM } else { 0 };
        bytes[1] = self.segments.number();
        for (at, number) in [(2, self.headers), (4, self.size), (6, start), (8, offset)] {
            bytes[at..at + 2].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for segments in [Segments::None, Segments::Tcp4, Segments::Tcp6, Segments::Udp] {
            for checksum in [None, Some((20, 16))] {
                let offload = Offload { segments, size: 1360, headers: 52, checksum };
                let bytes = [&offload.bytes()[..], b"packet"].concat();
                assert_eq!(Offload::read(&bytes), Some((offload, &b"packet"[..])));
            }
        }
    }

    #[test]
    fn a_kind_of_segments_that_was_not_asked_for_is_refused() {
        let mut bytes = Offload::NONE.bytes();
        bytes[1] = 3;
        assert_eq!(Offload::read(&bytes), None);
        assert_eq!(Offload::read(&bytes[..9]), None);
    }
}
