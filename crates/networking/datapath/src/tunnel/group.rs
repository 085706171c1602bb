//! Groups datagrams that one call can send.
//!
//! The kernel cuts one large buffer into datagrams of one size (`UDP_SEGMENT`); only the last one
//! may be shorter.

/// Maximum number of datagrams in one call (`UDP_MAX_SEGMENTS` of older kernels).
const MAX_DATAGRAMS: usize = 64;

/// Maximum bytes in one call: those of one UDP datagram over IPv4.
const MAX_BYTES: usize = 65_507;

/// Datagrams to one address that wait to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DatagramGroup {
    count: usize,
    bytes: usize,
    size: usize,
    closed: bool,
}

impl DatagramGroup {
    /// Adds a datagram, if one call can send it together with the others.
    pub(super) fn add(&mut self, length: usize) -> bool {
        if self.count == 0 {
            *self = Self {
                count: 1,
                bytes: length,
                size: length,
                closed: length == 0,
            };
            return true;
        }
        if self.closed
            || self.count == MAX_DATAGRAMS
            || length > self.size
            || length == 0
            || self.bytes + length > MAX_BYTES
        {
            return false;
        }
        self.count += 1;
        self.bytes += length;
        self.closed = length < self.size;
        true
    }

    /// The size of the segments, if there are several.
    pub(super) fn segment_size(&self) -> Option<u16> {
        if self.count > 1 {
            u16::try_from(self.size).ok()
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sizes of the groups that datagrams of these lengths make.
    fn groups(lengths: &[usize]) -> Vec<usize> {
        let (mut group, mut counts) = (DatagramGroup::default(), vec![0]);
        for length in lengths {
            if !group.add(*length) {
                group = DatagramGroup::default();
                assert!(group.add(*length));
                counts.push(0);
            }
            *counts.last_mut().unwrap() += 1;
        }
        counts
    }

    #[test]
    fn a_shorter_datagram_is_the_last_one() {
        assert_eq!(groups(&[1452, 1452, 800, 1452, 800]), [3, 2]);
    }

    #[test]
    fn a_longer_datagram_begins_a_new_group() {
        assert_eq!(groups(&[96, 1452, 1452]), [1, 2]);
    }

    #[test]
    fn a_group_ends_at_the_kernels_limits() {
        assert_eq!(groups(&[96; 100]), [64, 36]);
        assert_eq!(groups(&[1452; 50]), [45, 5]);
    }

    #[test]
    fn one_datagram_is_not_segmented() {
        let mut group = DatagramGroup::default();
        group.add(96);
        assert_eq!(group.segment_size(), None);
        group.add(96);
        assert_eq!(group.segment_size(), Some(96));
    }

    proptest! {
        #[test]
        fn every_group_is_within_the_kernels_limits(lengths in proptest::collection::vec(0usize..3000, 1..300)) {
            let mut rest = &lengths[..];
            for count in groups(&lengths) {
                let (group, others) = rest.split_at(count);
                rest = others;
                prop_assert!(count <= MAX_DATAGRAMS && (count == 1 || group.iter().sum::<usize>() <= MAX_BYTES));
                prop_assert!(group[..count - 1].iter().all(|length| *length == group[0]));
                prop_assert!(group[count - 1] <= group[0]);
            }
            prop_assert!(rest.is_empty());
        }
    }
}
