//! Types and lengths of WireGuard's messages.

/// The kind of a datagram, judged by its first bytes and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramKind {
    Handshake,
    /// With the receiver index, which names the session.
    Data(u32),
}

pub(crate) fn datagram_kind(datagram: &[u8]) -> Option<DatagramKind> {
    match (datagram.first_chunk::<4>()?, datagram.len()) {
        ([1, 0, 0, 0], 148) | ([2, 0, 0, 0], 92) | ([3, 0, 0, 0], 64) => {
            Some(DatagramKind::Handshake)
        }
        ([4, 0, 0, 0], 32..) => Some(DatagramKind::Data(u32::from_le_bytes(
            *datagram.get(4..)?.first_chunk()?,
        ))),
        _ => None,
    }
}

/// Whether a datagram that the tunnel sends proves that the tunnel knows the remote. Cookie replies
/// go to anybody.
pub(crate) fn proves_known_remote(datagram: &[u8]) -> bool {
    matches!(datagram.first(), Some(2 | 4))
}

#[cfg(test)]
mod tests {
    use gotatun::packet::Packet;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_protocols_lengths_pass() {
        let datagram = |first: u8, length: usize| {
            let mut bytes = vec![7; length];
            bytes[..4].copy_from_slice(&[first, 0, 0, 0]);
            bytes
        };
        for (first, length) in [(1, 148), (2, 92), (3, 64)] {
            assert_eq!(
                datagram_kind(&datagram(first, length)),
                Some(DatagramKind::Handshake)
            );
            assert_eq!(datagram_kind(&datagram(first, length + 1)), None);
            assert_eq!(datagram_kind(&datagram(first, length - 1)), None);
        }
        assert_eq!(
            datagram_kind(&datagram(4, 32)),
            Some(DatagramKind::Data(0x0707_0707))
        );
        assert_eq!(datagram_kind(&datagram(4, 31)), None);
        assert_eq!(datagram_kind(&datagram(5, 148)), None);
        assert_eq!(datagram_kind(&[4, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn what_passes_is_what_the_protocol_accepts(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), first in 0u8..6) {
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[first, 0, 0, 0]);
            }
            let parsed = Packet::copy_from(&bytes[..]).try_into_wg();
            prop_assert_eq!(datagram_kind(&bytes).is_some(), parsed.is_ok());
        }
    }
}
