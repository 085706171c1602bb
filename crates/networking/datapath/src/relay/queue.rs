//! The queue of datagrams that wait for TCP.

use std::collections::VecDeque;

use bytes::BytesMut;

use super::frames;

/// Maximum bytes that wait: what a link of 100 Mbit/s carries in 20 ms.
const MAX_BYTES: usize = 256 << 10;
/// Bytes to pass to TLS at once.
const BATCH: usize = 32 << 10;

#[derive(Debug, Default)]
pub(super) struct DatagramQueue {
    waiting: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl DatagramQueue {
    /// Adds a datagram and drops the oldest ones if there are too many: their senders have probably
    /// repeated them. Returns how many it dropped.
    pub(super) fn push(&mut self, datagram: &[u8]) -> u64 {
        self.bytes += datagram.len();
        self.waiting.push_back(datagram.into());
        let mut dropped = 0;
        while self.bytes > MAX_BYTES {
            let Some(oldest) = self.waiting.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            dropped += 1;
        }
        dropped
    }

    /// Moves one batch to the stream.
    pub(super) fn fill_batch(&mut self, stream: &mut BytesMut) {
        while stream.len() < BATCH {
            let Some(datagram) = self.waiting.pop_front() else {
                break;
            };
            self.bytes -= datagram.len();
            frames::put_datagram(&datagram, stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_and_drops_the_oldest() {
        let mut queue = DatagramQueue::default();
        let datagrams = 10 * MAX_BYTES / 1000;
        let dropped: u64 = (0..datagrams)
            .map(|number| queue.push(&[u8::try_from(number % 251).unwrap(); 1000]))
            .sum();
        assert_eq!(queue.waiting.len() as u64 + dropped, datagrams as u64);
        assert_eq!(queue.waiting.len(), MAX_BYTES / 1000);
        assert_eq!(
            queue.waiting.back().unwrap()[0],
            u8::try_from((datagrams - 1) % 251).unwrap()
        );
        let mut stream = BytesMut::new();
        while queue.bytes > 0 {
            stream.clear();
            queue.fill_batch(&mut stream);
            assert!(stream.len() <= BATCH + 1002);
        }
        assert!(queue.waiting.is_empty());
    }
}
