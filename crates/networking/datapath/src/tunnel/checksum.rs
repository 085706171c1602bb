//! The checksum of IP, TCP and UDP: the ones' complement sum of 16-bit words (RFC 1071).

use std::net::IpAddr;

/// A sum that is not folded yet, of words in this machine's byte order: only the result must be
/// swapped. Sums of parts may be added if each part but the last has an even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartialChecksum(u64);

impl PartialChecksum {
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self::default().add(bytes)
    }

    /// Adds four bytes at a time: the width of the words does not matter in ones' complement, and
    /// 64 bits hold the carries of any packet.
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let sum: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        let mut last = [0; 4];
        last.iter_mut()
            .zip(rest)
            .for_each(|(last, byte)| *last = *byte);
        Self(self.0 + sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// The pseudo header of TCP and UDP. `length` is that of the transport header with its payload.
    pub(super) fn pseudo_header(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        length: usize,
    ) -> Self {
        let addresses = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Self::of_bytes(&source.octets()).add(&destination.octets())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Self::of_bytes(&source.octets()).add(&destination.octets())
            }
            // A packet never has both families.
            _ => Self::default(),
        };
        // The length of an IP packet fits 32 bits.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        addresses.add(&[0, protocol]).add(&length.to_be_bytes())
    }

    /// The sum in 16 bits, not inverted.
    pub(super) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // At most 16 bits are left.
        u16::from_be(u16::try_from(sum).unwrap_or(u16::MAX))
    }

    /// The value for the header.
    pub(super) fn checksum(self) -> u16 {
        !self.folded()
    }

    /// A checksum after some of the bytes that it covers changed, at an even offset: by their sums
    /// before and now (RFC 1624).
    pub(super) fn adjusted_checksum(checksum: u16, before: Self, now: Self) -> u16 {
        let sum = u32::from(!checksum) + u32::from(!before.folded()) + u32::from(now.folded());
        let sum = (sum & 0xffff) + (sum >> 16);
        !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As in RFC 1071: word by word, with the carry added at once.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(
            PartialChecksum::of_bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).folded(),
            0xddf2
        );
    }

    proptest! {
        #[test]
        fn any_bytes_sum_as_in_the_rfc(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(PartialChecksum::of_bytes(&bytes).checksum(), slow(&bytes));
        }

        #[test]
        fn parts_of_even_length_may_be_added(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            let cut = (cut * 2).min(bytes.len() / 2 * 2);
            prop_assert_eq!(PartialChecksum::of_bytes(&bytes[..cut]).add(&bytes[cut..]).checksum(), slow(&bytes));
        }

        #[test]
        fn a_changed_checksum_is_the_checksum_of_the_changed_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..200), at in 0usize..2, new in any::<[u8; 4]>(),
        ) {
            // One with a byte that is not zero: both forms of zero occur only in sums of nothing
            // but zeros.
            bytes[7] |= 1;
            let (checksum, before) = (PartialChecksum::of_bytes(&bytes).checksum(), PartialChecksum::of_bytes(&bytes[at * 2..at * 2 + 4]));
            bytes[at * 2..at * 2 + 4].copy_from_slice(&new);
            prop_assert_eq!(PartialChecksum::adjusted_checksum(checksum, before, PartialChecksum::of_bytes(&new)), slow(&bytes));
        }

        #[test]
        fn a_packet_with_its_checksum_sums_to_nothing(mut bytes in proptest::collection::vec(any::<u8>(), 2..200)) {
            bytes[0] = 0;
            bytes[1] = 0;
            let checksum = PartialChecksum::of_bytes(&bytes).checksum();
            bytes[..2].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(PartialChecksum::of_bytes(&bytes).checksum(), 0);
        }
    }
}
