//! The checksum of IP, TCP and UDP: the sum of 16-bit words in ones' complement (RFC 1071).

use std::net::IpAddr;

/// A sum that is not folded yet, of words in this machine's byte order: the order of the bytes in the sum is that of the bytes in the
/// words, so it is enough to put the result right. Sums of parts may be added when each part but the last has an even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Sum {
    /// The sum of some bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::default().add(bytes)
    }

    /// Four bytes are added at a time: ones' complement does not care about the width of the words, and 32 bits leave room for
    /// the carries of any packet.
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Self(self.0 + sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// What TCP and UDP add for the addresses, the protocol and the length of the transport header with its payload.
    pub(super) fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Self {
        let addresses = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::of(&source.octets()).add(&destination.octets()),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Self::of(&source.octets()).add(&destination.octets()),
            // One packet never has both.
            _ => Self::default(),
        };
        // No IP packet is longer than 32 bits can tell.
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

    /// What stands in the header.
    pub(super) fn checksum(self) -> u16 {
        !self.folded()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As RFC 1071 writes it down: word by word, the carry added at once.
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
        assert_eq!(Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).folded(), 0xddf2);
    }

    proptest! {
        #[test]
        fn any_bytes_sum_as_word_by_word(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(Sum::of(&bytes).checksum(), slow(&bytes));
        }

        #[test]
        fn parts_of_even_length_may_be_added(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            let cut = (cut * 2).min(bytes.len() / 2 * 2);
            prop_assert_eq!(Sum::of(&bytes[..cut]).add(&bytes[cut..]).checksum(), slow(&bytes));
        }

        #[test]
        fn a_packet_with_its_checksum_sums_to_nothing(mut bytes in proptest::collection::vec(any::<u8>(), 2..200)) {
            bytes[0] = 0;
            bytes[1] = 0;
            let checksum = Sum::of(&bytes).checksum();
            bytes[..2].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(Sum::of(&bytes).checksum(), 0);
        }
    }
}
